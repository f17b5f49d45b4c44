"""Traces of torch.profiler as evidence."""

from __future__ import annotations

import json

import pytest
from foreign_traces import INFO, kernel, param

from torchcoll.core.errors import UnreadableError
from torchcoll.parts.postmortem import kineto_evidence
from torchcoll.parts.postmortem.evidence import CallSeen, GroupSeen, Place

BASE_NS = 1_790_857_026_000_000_000


@pytest.fixture
def read(tmp_path):
    def run(**changed):
        events = [
            param("allreduce", 1000, 7, 12, 12, Seq=41),
            kernel("nccl", 1100, 200, 7),
            param("allreduce", 2000, 8, 12, 12, Seq=42),  # no kernel: it may not have ended
        ]
        data = {"schemaVersion": 1, "distributedInfo": INFO | {"rank": 1}, "host_name": "n7"}
        data |= {"baseTimeNanoseconds": BASE_NS, "traceEvents": events} | changed
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(data))
        assert kineto_evidence.recognizes(path, path.read_bytes())
        (evidence,) = kineto_evidence.read_evidence(path, "a/trace.json")
        return evidence

    return run


def test_calls(read):
    evidence = read()
    place = Place("a/trace.json")
    assert evidence.calls == [
        CallSeen(1, "0", 41, "all_reduce", place, dtype="float32", state="completed",
                 created_ns=BASE_NS + 1_000_000, duration_ns=200_000),
        CallSeen(1, "0", 42, "all_reduce", place, dtype="float32", reliable_state=False,
                 created_ns=BASE_NS + 2_000_000),
    ]  # fmt: skip
    assert evidence.groups == {"0": GroupSeen("0", (0, 1), "default_pg")}
    assert (evidence.ranks, evidence.nodes) == (2, {1: "n7"})
    assert (evidence.first_ns, evidence.last_ns) == (BASE_NS + 1_000_000, BASE_NS + 2_000_000)
    assert evidence.files[0].ranks == (1,)


def test_times_without_a_base(read):
    """Small ones are of an unknown start; before torch 2.4 they were since 1970."""
    assert read(baseTimeNanoseconds=None).calls[0].created_ns is None
    begun = 1_700_000_000_000_000
    events = [param("allreduce", begun, 7, 12, 12, Seq=1), kernel("nccl", begun + 9, 200, 7)]
    assert read(baseTimeNanoseconds=None, traceEvents=events).calls[0].created_ns == begun * 1000


def test_calls_without_sizes(read):
    """gloo without record_shapes: the order of the calls is there, their dtype is not."""
    calls = [
        {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 9, "tid": 9, "ts": begin,
         "dur": 50, "args": {"External id": begin}}
        for begin in (1000, 2000)
    ]  # fmt: skip
    seen = read(traceEvents=calls).calls
    assert [(c.number, c.collective, c.dtype) for c in seen] == [
        (1, "all_reduce", None),
        (2, "all_reduce", None),
    ]


def test_what_is_no_trace_of_a_rank(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 1, "distributedInfo": {}}')
    with pytest.raises(UnreadableError, match="expected a trace of torch"):
        kineto_evidence.read_evidence(path, "trace.json")
    with open(path, "r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(UnreadableError, match="torchcoll trace reads it"):
        kineto_evidence.read_evidence(path, "trace.json")
