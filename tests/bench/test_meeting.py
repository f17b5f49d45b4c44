"""Where ranks meet, and through which interface, from the command itself."""

import socket

import pytest
from error_form import error_line, error_tail, got

pytestmark = pytest.mark.usefixtures("less_patience")
NO_MASTER = {"MASTER_ADDR": None, "MASTER_PORT": None}


def test_a_rendezvous_file_instead_of_a_master(launch, tmp_path):
    meeting = tmp_path / "meeting"
    options = f"--sizes 8 -n 1 --rendezvous-file {meeting}"
    run = launch("all_reduce", options, 2, environment=NO_MASTER).ended(0).run
    assert [result.status for result in run.results] == ["ok"]
    # Processes that end by os._exit leave it: the next run must not meet the dead.
    meeting.touch()
    refused = launch("all_reduce", f"{options} -T 1", 2, environment=NO_MASTER).job.wait()
    assert refused[0].code != 0 and str(meeting) in refused[0].stderr


def test_ranks_of_a_host_are_counted_where_the_launcher_does_not(launch):
    """PMI without a local rank: each rank took the first GPU of its host."""

    def variables(rank):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return {**dict.fromkeys(names), "PMI_RANK": str(rank), "PMI_SIZE": "3"}

    run = launch("all_reduce", "--sizes 8 -n 1", 3, environment=variables).ended(0).run
    assert run.header["launcher"] == "MPI"
    assert [member["local_rank"] for member in run.members] == [0, 1, 2]


def test_an_interface_that_is_not_there(launch):
    measured = launch("all_reduce", "--sizes 8", 2, environment={"GLOO_SOCKET_IFNAME": "eth77"})
    ended = measured.job.wait()
    assert [rank.code for rank in ended.values()] == [4, 4]
    line = ended[0].stderr.strip()
    assert line.startswith(error_line("GLOO_SOCKET_IFNAME", "eth77 on "))
    assert error_tail("(no interface eth77)", "one of") in line and "\n" not in line
    assert ended[1].stderr == ""


def test_a_master_that_is_no_store_is_named_in_time(launch):
    """torch's client would wait for its answer for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        environment = {"MASTER_PORT": str(port)}
        measured = launch("all_reduce", "-T 1", 2, absent=[0], environment=environment)
        ended = measured.job.wait(45)
    assert ended[1].code == 5
    text = f"no store at 127.0.0.1:{port} within 1 s (what listens there does not answer: "
    assert got(f"{text}paused, or no store)") in ended[1].stderr


def test_variables_that_only_some_ranks_find_contradictory_are_told_by_those(launch):
    """RANK=0 for all: rank 0 finds nothing wrong with it."""

    def environment(rank):
        return {
            **{"RANK": "0", "WORLD_SIZE": "2"},
            **{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2"},
        }

    measured = launch("all_reduce", "-T 1", 2, environment=environment)
    ended = measured.job.wait()
    assert ended[1].code == 2
    stated = "rank 0 of 2 from torchrun's variables and rank 1 of 2 from Open MPI"
    assert stated in ended[1].stderr
