"""Dumps of the Flight Recorder as evidence: in the form of nccl by hand, and real ones of gloo."""

from __future__ import annotations

import json
import os
import pickle
import re
import time

import pytest
import torch
import torch.distributed as dist
from foreign_traces import CONFIG, CREATED, entry
from ranks import Job, announce, await_event

from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Group
from torchcoll.parts.postmortem import call_evidence
from torchcoll.parts.postmortem.evidence import CallSeen, JobEvidence, Place

FRAMES = [
    {"name": "all_reduce", "filename": "/torch/distributed_c10d.py", "line": 2501},
    {"name": "step", "filename": "/home/me/train.py", "line": 17},
]


def dump(*entries, **changed):
    status = {"last_enqueued_collective": 3, "last_started_collective": 3}
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": CONFIG,
        "pg_status": {"0": status | {"last_completed_collective": 2}},
        "entries": list(entries),
        **changed,
    }


@pytest.fixture
def read(tmp_path):
    """A function that reads the evidence of a dump, in both forms, which must be the same."""

    def run(data, name: str = "nccl_trace_rank_1") -> JobEvidence:
        both = []
        for content in (pickle.dumps(data, protocol=2), json.dumps(data).encode()):
            path = tmp_path / os.path.basename(name)
            path.write_bytes(content)
            assert call_evidence.recognizes(path, content[: 1 << 16])
            both += call_evidence.read_evidence(path, name)
        assert both[0] == both[1]
        return both[0]

    return run


def test_a_call_that_is_in_flight(read):
    communicators = {"0x9a": {"rank": "1"}, "0x5d": {}}
    evidence = read(
        dump(
            entry("all_reduce", 2),
            entry("_reduce_scatter_base", 3, [[8]], [[4]], state="started", frames=FRAMES,
                  duration_ms=None, retired=False),
            nccl_comm_state=communicators,
        )
    )  # fmt: skip
    place = Place("nccl_trace_rank_1")
    first, second = evidence.calls
    assert first == CallSeen(
        1, "0", 2, "all_reduce", place, ((3, 4),), ((3, 4),), "float32", "completed",
        created_ns=CREATED + 2_000_000,
    )  # fmt: skip
    assert second == CallSeen(
        1, "0", 3, "reduce_scatter", place, ((8,),), ((4,),), "float32", "started",
        created_ns=CREATED + 3_000_000,
        origin="me/train.py:17 step",
    )  # fmt: skip
    assert evidence.ranks == 2
    assert evidence.groups == {
        "0": Group("0", (0, 1), "nccl", "default_pg"),
        "7": Group("7", (1, 0), "", "undefined"),
    }
    assert evidence.identities == {"communicator 0x9a", "communicator 0x5d"}
    assert (evidence.first_ns, evidence.last_ns) == (CREATED + 2_000_000, CREATED + 3_000_000)
    assert (evidence.files[0].path, evidence.files[0].ranks) == ("nccl_trace_rank_1", (1,))
    assert evidence.events == []


# The stack of a call under torchcoll's capture, in torch 2.11.
_PASSED_ON = [
    ("torch/_ops.py", 872, "redispatch"),
    ("torchcoll/parts/training/capture.py", 358, "issue"),
    ("torch/distributed/distributed_c10d.py", 4186, "all_gather_into_tensor"),
    ("torch/distributed/c10d_logger.py", 83, "wrapper"),
]


@pytest.mark.parametrize(
    ("callers", "origin"),
    [
        ([("train.py", 28, "step"), ("train.py", 40, "<module>")], "train.py:28 step"),
        ([("megatron/core/layers.py", 9, "forward")], "core/layers.py:9 forward"),
        ([], "torch/_ops.py:872 redispatch"),
    ],
)
def test_the_origin_of_a_call_is_the_line_that_called_torch(read, callers, origin):
    frames = [
        {"name": name, "filename": f"/venv/site-packages/{file}" if "/" in file else file,
         "line": line}
        for file, line, name in [*_PASSED_ON, *callers]
    ]  # fmt: skip
    assert read(dump(entry("all_reduce", 1, frames=frames))).calls[0].origin == origin


def test_a_call_that_timed_out(read):
    """Retired without having completed; then no last completed number can be trusted."""
    evidence = read(dump(entry("all_reduce", 1), entry("all_reduce", 2, state="started")))
    (event,) = evidence.events
    assert (event.kind, event.rank, event.group, event.number, event.collective) == (
        "timeout",
        1,
        "0",
        2,
        "all_reduce",
    )
    assert event.text == (
        "call 2 (all_reduce) was given up before it completed, whose timeout is 600 s"
    )
    assert evidence.last_completed == {}


def test_messages_are_counted_by_peer(read):
    """In group 7 rank 0 of the world is the second. torch's own number counts all messages."""
    fields = {"process_group": ["7", "undefined"], "collective_seq_id": 0, "is_p2p": True}
    names = ("send 1->0", "send 1->0", "recv 1<-0", "coalesced")
    evidence = read(
        dump(*(entry(name, i, **fields, p2p_seq_id=i) for i, name in enumerate(names, 1))),
        "dump_0.pickle",
    )
    assert [(c.collective, c.peer, c.number, c.group) for c in evidence.calls] == [
        ("send", 1, 1, "7"),
        ("send", 1, 2, "7"),
        ("recv", 1, 1, "7"),
    ]
    assert evidence.last_number == {}  # the status may count a message


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("node3/comm_lib_trace_rank_5", 5),
        ("job/rank7/dump.pickle", 7),
        ("job/rank_7/host1/dump.json", 7),
    ],
)
def test_the_rank(read, name, rank):
    fields = {"process_group": ["7", "undefined"], "is_p2p": True}
    assert {c.rank for c in read(dump(entry("send 0->1", 1, **fields)), name).calls} == {rank}


def test_the_rank_in_the_dump(read):
    assert [c.rank for c in read(dump(entry("barrier", 1), rank=4), "dump").calls] == [4]


def test_a_dump_without_a_rank(tmp_path):
    path = tmp_path / "dump"
    path.write_text(json.dumps(dump(entry("barrier", 1))))
    with pytest.raises(UnreadableError, match="a name that ends in the rank"):
        call_evidence.read_evidence(path, "dump")


def test_broken_entries(read):
    entries = [
        3,
        {"profiling_name": "nccl:all_reduce"},
        entry("all_reduce", 1, process_group="0"),
        entry("all_reduce", 2, input_sizes=[[1], "x"], input_dtypes=7, state="lost", frames=[4]),
    ]
    evidence = read(dump(*entries, pg_status={"0": 7, "x": {}}))
    (call,) = evidence.calls
    assert (call.number, call.sizes_in, call.sizes_out) == (2, None, ((3, 4),))
    assert (call.dtype, call.state, call.origin) == ("float32", "scheduled", "")


@pytest.mark.parametrize("form", ("pickle", "json"))
def test_a_dump_that_was_cut_off(tmp_path, form):
    """As a full disk leaves it: what it has is read, and said to be not all."""
    whole = dump(*(entry("all_reduce", i) for i in range(1, 101)))
    del whole["pg_status"]  # which would be read, from before the entries
    data = pickle.dumps(whole, 2) if form == "pickle" else json.dumps(whole).encode()
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data[: len(data) * 3 // 4])
    (evidence,) = call_evidence.read_evidence(path, "nccl_trace_rank_0")
    numbers = [call.number for call in evidence.calls]
    assert numbers == list(range(1, len(numbers) + 1)) and 60 < len(numbers) < 90


@pytest.mark.parametrize(
    "content",
    [
        b'{"schemaVersion": 1, "distributedInfo": {"pg_config": []}, "traceEvents": []}',
        b'{"results": [1]}',
        pickle.dumps({"weights": [1, 2]}, 2),
        b"rank 0: pg_config",
    ],
)
def test_other_files_are_not_recognized(tmp_path, content):
    assert not call_evidence.recognizes(tmp_path, content)


def hanging() -> None:
    """Rank 1 never makes the third call of rank 0."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    x = torch.ones(3, 4)
    for _ in range(2):
        dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x, async_op=True)
        time.sleep(0.2)
    else:
        await_event("rank 0 has dumped")
    dumped = torch._C._distributed_c10d
    with open(f"nccl_trace_rank_{rank}", "wb") as file:
        file.write(dumped._dump_fr_trace())
    with open(f"fr{rank}.json", "wb") as file:
        file.write(dumped._dump_fr_trace_json())
    if rank == 0:
        announce("rank 0 has dumped")
        await_event("rank 1 has dumped")  # whose store is here
    else:
        announce("rank 1 has dumped")
    os._exit(0)  # without waiting for the call


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"),
    reason="the Flight Recorder of this torch is nccl's alone",
)
def test_real_dumps_of_gloo(tmp_path):
    job = Job(tmp_path, hanging, ranks=2, environment={"TORCH_FR_BUFFER_SIZE": "100"})
    assert job.codes() == [0, 0], job.text(0)
    for rank in range(2):
        both = []
        for name in (f"nccl_trace_rank_{rank}", f"fr{rank}.json"):
            path = tmp_path / name
            assert call_evidence.recognizes(path, path.read_bytes())
            both += call_evidence.read_evidence(path, name)
        pickled, text = both
        seen = [
            (c.number, c.collective, c.sizes_in, c.dtype, c.reliable_state) for c in both[0].calls
        ]
        numbers = (1, 2, 3) if rank == 0 else (1, 2)
        # Only of the call that has not ended the recorder says so.
        assert seen == [(n, "all_reduce", ((3, 4),), "float32", n == 3) for n in numbers]
        assert {c.state for c in pickled.calls} == {"scheduled"}
        assert re.fullmatch(r"postmortem/\S+\.py:\d+ hanging", pickled.calls[0].origin)
        assert text.calls[0].origin == ""  # JSON has no frames
        assert 0 < pickled.calls[1].created_ns - pickled.calls[0].created_ns < 60e9
