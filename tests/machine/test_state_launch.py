"""The machine's state in a run: read by one rank of each host, saved, shown, and refused."""

import os
import sys
from pathlib import Path

import pytest
from nvml_fake import FakeNvml
from ranks import command

import torchcoll
from torchcoll.bench.recorder import tell_links
from torchcoll.machine import environment, host_watch, state
from torchcoll.machine.host_watch import Watch, foreign_processes

PLACES = ("0000:1b:00.0", "0000:2c:00.0")
LINKS = {("NvLinkState", 0): 1, ("NvLinkRemoteDeviceType", 0): 2}
SIZE = "--sizes 1K -n 2"


def test_a_plain_launch(launch, tmp_path):
    measured = launch("all_reduce", SIZE, 3).ended(0)
    before, after = measured.run.machine
    assert [state["when"] for state in (before, after)] == ["before", "after"]
    assert {state["host"] for state in (before, after)} == {environment.hostname()}
    assert before["devices"] == after["devices"] == []
    assert after["cpu"]["cores"] == len(os.sched_getaffinity(0))
    assert after["cpu"]["seconds"] > 0 and after["cpu"]["others_cores"] is not None
    assert "seconds" not in before["cpu"]
    assert before["took_ns"] > 0
    names = [record["record"] for record in measured.records()]
    assert names.index("machine") < names.index("started") < names.index("end")
    assert names[-2:] == ["machine", "end"]
    assert "nvlinks" not in measured.run.members[0]
    torchcoll.save(measured.run, tmp_path / "again.jsonl")
    assert torchcoll.load(tmp_path / "again.jsonl").machine == [before, after]


STATE = ("torchcoll.machine.host_watch", "torchcoll.machine.gpu_state")


def test_only_one_rank_of_a_host_loads_it(jobs, tmp_path):
    """With thousands of ranks every import counts."""

    def forget(rank):
        for name in [n for n in sys.modules if n in STATE]:
            del sys.modules[name]

    def look():
        try:
            command("all_reduce", f"{SIZE} --no-output --quiet")()
        finally:
            names = [n for n in sys.modules if n in STATE]
            Path(f"loaded{os.environ['RANK']}").write_text(" ".join(names))

    job = jobs(tmp_path, look, 3, setup=forget)
    assert job.codes() == [0, 0, 0], job.text(0)
    loaded = [(tmp_path / f"loaded{rank}").read_text() for rank in range(3)]
    assert "torchcoll.machine.host_watch" in loaded[0]
    assert loaded[1:] == ["", ""]


def test_no_check_without_communication(launch):
    run = launch("all_reduce", f"{SIZE} --backend fake", 1).ended(0).run
    assert run.machine == []


def with_gpus(first, second, later=None):
    """A setup for children: rank r uses GPU r of these two."""

    def setup(rank):
        tables = {PLACES[0]: first, PLACES[1]: second}
        environment.device_place = lambda torch, device: (PLACES[rank], PLACES[rank])

        class WithDriver(Watch):
            def __init__(self, kind, places, pids):
                processes = [(pid, 1) for pid in pids]
                tables[PLACES[0]].setdefault("ComputeRunningProcesses_v3", []).append(processes[0])
                library = FakeNvml(tables, later={PLACES[0]: later or {}})
                super().__init__("cuda", places, pids, library=library)

        host_watch.Watch = WithDriver

    return setup


def gpu(index, **answers):
    return {"Index": index, "UtilizationRates": {"gpu": 0, "memory": 0}, **LINKS, **answers}


def test_a_gpu_that_another_uses_and_that_is_throttled(launch):
    # 34.2 GiB; the number of no process.
    first = gpu(0, ComputeRunningProcesses_v3=[(2**22 + 1, 36_721_970_381)])
    first[("ViolationStatus", 1)] = {"reference_us": 0, "violation_ns": 0}
    later = {("ViolationStatus", 1): {"reference_us": 0, "violation_ns": 10**12}}
    second = gpu(1, **{"ComputeRunningProcesses_v3": []})
    measured = launch("all_reduce", SIZE, 2, setup=with_gpus(first, second, later)).ended(0)
    run, host = measured.run, environment.hostname()
    messages = [event["message"] for event in run.events if event["kind"] == "machine"]
    # Of this machine anything may be told.
    messages = [text for text in messages if text.startswith("GPU")]
    process = f"a process (pid {2**22 + 1}, 34.2 GiB)"
    assert messages == [
        f"GPU 0 of {host}: in use by {process} before the run; 0 % busy",
        f"GPU 0 of {host}: throttled during the run (thermal 100% of the time)",
    ]
    for text in messages:
        assert f"WARN {text}" in measured.stdout()  # the verdict line
    assert [m["nvlinks"] for m in run.members] == [1, 1]
    assert [m["nvlink_to_switch"] for m in run.members] == [True, True]
    devices = run.machine[0]["devices"]
    assert [device["place"] for device in devices] == list(PLACES)
    assert [len(device["others"] or ()) for device in devices] == [1, 0]


def on_one_core():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.fixture
def burner():
    """A process that never idles, on the core of ``on_one_core``; with many cores its share is too
    small.
    """
    pid = os.fork()
    if not pid:
        on_one_core()
        while os.getppid() != 1:
            sum(range(10000))
        os._exit(0)
    yield pid
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_busy_cores_during_the_run(launch, burner):
    def setup(rank):
        state.LEAST_S = 0.0
        on_one_core()

    measured = launch("all_reduce", "--sizes 1K --max-time 0.2 --precision 0.0001", 2, setup=setup)
    measured.ended(0)
    messages = [e["message"] for e in measured.run.events if e["kind"] == "machine"]
    assert any(
        "other processes used " in text and text.endswith("during the run") for text in messages
    )


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, None),
        ([], None),  # ours at least should be there
        ([1, 2], []),
        ([1, 2, 7], [7]),
        ([101, 102], []),  # another namespace: as many as our ranks
        ([101, 102, 103], [None]),
    ],
)
def test_foreign_processes(listed, expected):
    processes = listed and [{"pid": pid, "size_bytes": 1} for pid in listed]
    if listed == []:
        processes = []
    foreign = foreign_processes(processes, run_pids={1, 2}, ranks=2)
    assert (foreign and [p["pid"] for p in foreign]) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({"nvlinks": 18, "nvlink_to": {"switch": 18}}, (18, True)),
        ({"nvlinks": 12, "nvlink_to": {"gpu": 8, "switch": 4}}, (12, False)),
        ({"nvlinks": 4, "nvlink_to": {"gpu": 3, "unknown": 1}}, (4, None)),
        ({"nvlinks": None, "nvlink_to": None}, (None, None)),
    ],
)
def test_the_links_of_a_rank(device, expected):
    members = [{"rank": 0}, {"rank": 1}]
    states = [{"host": "a", "devices": [{"place": PLACES[0], **device}]}]
    tell_links(members, states, [("a", PLACES[0]), ("b", PLACES[0])])  # b does not tell
    assert (members[0].get("nvlinks"), members[0].get("nvlink_to_switch")) == expected
    assert members[1] == {"rank": 1}
