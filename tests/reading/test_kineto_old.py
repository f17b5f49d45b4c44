"""Kineto traces of 2022 and 2023, in the form that those of HolisticTraceAnalysis' tests have.

record_param_comms tells nothing there: names, sizes and types stand in the annotation within it,
and a kernel is of the call around its launch, which has the same correlation.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from foreign_traces import event, fields

from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Traffic
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_show import traffic_grids
from torchcoll.parts.training.traffic_table import summarise_traffic
from torchcoll.reading.traces import read_traffic

OLD = {"backend": "nccl", "rank": 3, "world_size": 8}


def call(ts: float, name: str, annotation: str, dims: Any, sent: Any, number: int) -> list[Any]:
    """Nested c10d operator, record_param_comms, annotation and launch, and the kernel."""
    types = ["float" if shape else "" for shape in dims]
    linked = {"External_id": 800 + number, "correlation": 800 + number}
    return [
        event(name, ts, 100, External_id=number, Input_Dims=dims, Input_type=types),
        event("record_param_comms", ts, 100, External_id=number + 1, Input_Dims=[[], []]),
        event(
            f"nccl:{annotation}", ts + 10, 80, "user_annotation", External_id=number + 2,
            Input_Dims=[sent], Input_type=["float"],
        ),
        event("cudaLaunchKernel", ts + 20, 5, "cuda_runtime", **linked),
        event("ncclKernel_X", ts + 500, 40 + number, "kernel", tid=7, device=0, **linked),
        # A wait, which tells as little.
        event("record_param_comms", ts + 200, 5, External_id=number + 3),
    ]  # fmt: skip


@pytest.fixture
def calls(tmp_path):
    def run(*event_lists: list[Any]) -> list[Any]:
        events = [event for event_list in event_lists for event in event_list]
        data = {"traceEvents": events, "distributedInfo": OLD}
        (tmp_path / "t.json").write_text(json.dumps(data))
        ((_, rank_calls),) = read_traffic([tmp_path / "t.json"]).calls.items()
        return rank_calls

    return run


NAMES = ("collective", "bytes_in", "bytes_out", "dtype", "time_ns")


def test_names_sizes_types_and_times(calls):
    result = calls(
        call(0, "c10d::allreduce_", "all_reduce", [[], []], [250], 1),
        call(1000, "c10d::_allgather_base_", "_all_gather_base", [[800], [100]], [100], 11),
        call(2000, "c10d::alltoall_base_", "all_to_all", [[30], [50]], [50], 21),
    )
    assert [fields(call, *NAMES) for call in result] == [
        ("all_reduce", 1000, 1000, "float32", 41_000),
        ("all_gather", 400, 3200, "float32", 51_000),
        ("all_to_all_v", 200, 120, "float32", 61_000),  # 50 rows out, 30 in: uneven
    ]


def test_an_annotation_without_an_operator(calls):
    """As before torch 1.13: no event has what an all_to_all receives."""
    reduce = call(0, "c10d::allreduce_", "all_reduce", [[]], [250], 1)[1:]
    assert [fields(call, *NAMES) for call in calls(reduce)] == [
        ("all_reduce", 1000, 1000, "float32", 41_000)
    ]
    with pytest.raises(UnreadableError, match="all_to_all: sizes not known"):
        calls(call(0, "c10d::alltoall_", "all_to_all", [[]], [250], 1)[1:])


def test_calls_without_a_size_are_counted_in_the_head(tmp_path):
    """Two of three all_to_all have no size, so the sums of the table are not those of the step."""
    events = [
        *call(0, "c10d::alltoall_base_", "all_to_all", [[32], [32]], [32], 1),
        *call(1000, "c10d::alltoall_", "all_to_all", [[]], [32], 11)[1:],
        *call(2000, "c10d::alltoall_", "all_to_all", [[]], [32], 21)[1:],
    ]
    path = tmp_path / "trace_rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    traffic = read_traffic([path])
    line = "2 of 3 calls have no size in the source: not included here"
    assert line in traffic_grids(traffic, summarise_traffic(Ledger(traffic)))[0].above
    traffic.save(tmp_path / "traffic.jsonl")
    loaded = Traffic.load(tmp_path / "traffic.jsonl")
    assert line in traffic_grids(loaded, summarise_traffic(Ledger(loaded)))[0].above


def test_the_id_of_a_launch_is_not_that_of_an_operator(calls):
    """The kernel's External id is 802, and so is that of another call's operator."""
    first = call(0, "c10d::allreduce_", "all_reduce", [[]], [250], 2)
    second = call(1000, "c10d::allreduce_", "all_reduce", [[]], [99], 801)
    assert second[1]["args"]["External id"] == 802 == first[4]["args"]["External id"]
    assert [call.time_ns for call in calls(first, second)] == [42_000, 841_000]


def test_kernels_without_an_id_stay_separate(tmp_path):
    """Three kernels of 6, 3 and 1 ms, each of a separate call."""
    arguments = {"Collective_name": "allreduce", "dtype": "Float", "In_msg_nelems": 250}
    arguments |= {"Out_msg_nelems": 250, "Process_Group_Name": "0", "Group_size": 8}
    kernels = [
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts, dur, "kernel", tid=7, **arguments)
        for ts, dur in ((0, 6000), (7000, 3000), (11000, 1000))
    ]
    data = {"traceEvents": kernels, "distributedInfo": OLD}
    (tmp_path / "t.json").write_text(json.dumps(data))
    ((_, calls),) = read_traffic([tmp_path / "t.json"]).calls.items()
    assert [call.time_ns for call in calls] == [6_000_000, 3_000_000, 1_000_000]
