"""Where ranks meet, and through which interface, from the command itself."""

from __future__ import annotations

NO_MASTER = {"MASTER_ADDR": None, "MASTER_PORT": None}


def test_a_rendezvous_file_instead_of_a_master(launch, tmp_path):
    meeting = tmp_path / "meeting"
    options = f"--sizes 8 -n 1 --rendezvous-file {meeting}"
    run = launch("all_reduce", options, 2, environment=NO_MASTER).ended(0).run
    assert [result.status for result in run.results] == ["ok"]
    # Processes that end by os._exit leave it: the next launch must not meet the dead.
    meeting.touch()
    refused = launch("all_reduce", f"{options} -T 3", 2, environment=NO_MASTER).job.wait()
    assert refused[0].code != 0 and str(meeting) in refused[0].stderr


def test_an_interface_that_is_not_there(launch):
    measured = launch("all_reduce", "--sizes 8", 2, environment={"GLOO_SOCKET_IFNAME": "eth77"})
    ended = measured.job.wait()
    assert [rank.code for rank in ended.values()] == [4, 4]
    line = ended[0].stderr.strip()
    assert line.startswith("torchcoll: error: GLOO_SOCKET_IFNAME: got eth77 on ")
    assert "(no interface eth77), expected one of" in line and "\n" not in line
    assert ended[1].stderr == ""
