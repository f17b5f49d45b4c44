"""What NCCL Inspector's files say of a dead job."""

from __future__ import annotations

import json

import pytest

from torchcoll.core.errors import UnreadableError
from torchcoll.parts.postmortem.inspector_evidence import read_evidence, recognizes


def record(number, rank=3, coll="AllReduce", comm="0x7f", ranks=8):
    return {
        "header": {"id": comm, "comm_name": "dp", "rank": rank, "n_ranks": ranks, "nnodes": 2},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": 1_763_000_000_000_000 + number,
            "hostname": "n1",
            "pid": 42,
        },
        "coll_perf": {
            "coll": coll,
            "coll_sn": number,
            "coll_msg_size_bytes": 1 << 20,
            "coll_exec_time_us": 9,
            "coll_timing_source": "kernel_gpu",
        },
    }


def test_the_last_completed_call_of_each_collective(tmp_path):
    """coll_sn counts from 0, and each collective of a communicator separately."""
    path = tmp_path / "n1-pid42.log"
    records = [record(0), record(1), record(0, coll="AllGather"), record(5, 1, comm="0x8", ranks=2)]
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    assert recognizes(path, path.read_bytes())
    (evidence,) = read_evidence(path, "logs/n1-pid42.log")
    assert evidence.last_completed == {
        (3, "0x7f all_reduce"): 2,
        (3, "0x7f all_gather"): 1,
        (3, "0x8 all_reduce"): 6,
    }
    assert (evidence.ranks, evidence.nodes, evidence.pids) == (8, {3: "n1"}, {3: 42})
    assert evidence.identities == {"communicator 0x7f", "communicator 0x8"}
    assert evidence.groups["0x7f all_reduce"].ranks == tuple(range(8))
    assert evidence.groups["0x8 all_reduce"].ranks == ()
    assert evidence.last_ns == 1_763_000_000_000_005_000
    (file,) = evidence.files
    assert (file.path, file.ranks) == ("logs/n1-pid42.log", (3,))


def test_a_file_without_a_call_is_refused(tmp_path):
    path = tmp_path / "a.log"
    path.write_text('{"metadata":{"inspector_output_format_version":"v4.0"}}\n')
    with pytest.raises(UnreadableError, match="no collective"):
        read_evidence(path, "a.log")
    assert not recognizes(path, b"step 1 loss 0.3\n")
