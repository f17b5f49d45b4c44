"""Kineto traces: the form of nccl by hand, gloo's for real.

No GPU made the events of nccl here: they follow torch/csrc/profiler/util.cpp (saveNcclMeta),
ProcessGroupNCCL.cpp (RECORD_PARAM_COMMS) and kineto's output_json.cpp.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from error_form import error_text
from foreign_traces import INFO, event, fields, kernel, param, step
from ranks import Job

from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training.kineto_events import find_copies, read_events
from torchcoll.parts.training.traces import read_traffic
from torchcoll.parts.training.traffic_show import show_traffic

US = 1000  # ns
SHORT = "the trace does not tell which of its 2 groups its calls are of"


def operator(name: str, ts: float, types: Any, dims: Any, values: Any = (), **args: Any) -> Any:
    """A c10d operator of 20 us with record_shapes."""
    shown = {"Input_type": types, "Input_Dims": dims, "Concrete_Inputs": list(values)}
    return event(name, ts, args.pop("dur", 20), **shown, **args)


def work(name: str, ts: float, dur: float, *shapes: list[int], dtype: str = "float") -> Any:
    """An event of gloo's work in its own thread."""
    shown = {"Input_type": [dtype] * len(shapes), "Input_Dims": list(shapes)} if shapes else {}
    return event(name, ts, dur, "user_annotation", tid=77, **shown)


@pytest.fixture
def read(tmp_path):
    """A function that reads the Traffic of a trace with these events."""

    def run(*events: Any, name: str = "t.json", info: Any = INFO) -> Traffic:
        data = {"schemaVersion": 1, "traceEvents": list(events)}
        data |= {"distributedInfo": info} if info else {}
        (tmp_path / name).write_text(json.dumps(data))
        return read_traffic([tmp_path / name])

    return run


def only(traffic: Traffic) -> TrafficCall:
    ((call,),) = traffic.calls.values()
    return call


def test_a_step_of_ddp_on_nccl(read):
    """Two buckets with kernels of 100 us each; a matrix product hides 30 us of the first one."""
    traffic = read(
        step(3, 0, 1000),
        step(3, 200, 300, "gpu_user_annotation"),  # the same on the device
        event("aten::mm", 10, 20, External_id=1),
        kernel("gemm", 150, 80, 1),  # to 230
        event("c10d::allreduce_", 100, 30, External_id=6, Concrete_Inputs=["", "", "", "", "True"]),
        param("allreduce", 110, 7, Seq=5),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200, 100, 7),
        event("c10d::allreduce_", 300, 30, External_id=8),
        param("allreduce", 310, 9, 1000, 1000, dtype="BFloat16", Seq=6),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 400, 100, 9),
        param("wait", 500, 10, 0, 0, dtype="Byte"),
        step(4, 1000, 500),
        param("barrier", 1100, 11, 0, 0, dtype="Byte", Seq=7),
    )
    group = {"group": "0", "clock": "device"}
    assert traffic.calls == {
        0: [
            TrafficCall(
                "all_reduce",
                1000,
                1000,
                "float32",
                **group,
                **{"sequence": 4, "step": 0, "asynchronous": True, "start_ns": 110 * US},
                **{"time_ns": 100 * US, "exposed_ns": 70 * US, "algorithm": "RING/LL"},
                began_ns=200 * US,
            ),
            TrafficCall(
                "all_reduce",
                2000,
                2000,
                "bfloat16",
                **group,
                **{"sequence": 5, "step": 0, "start_ns": 310 * US},
                **{"time_ns": 100 * US, "exposed_ns": 100 * US, "algorithm": "RING/LL"},
                began_ns=400 * US,
            ),
            TrafficCall("barrier", 0, 0, group="0", sequence=6, step=1, start_ns=1100 * US),
        ]
    }
    assert traffic.groups == {"0": Group("0", (0, 1), "nccl", "default_pg")}
    assert (traffic.source, traffic.ranks) == ("kineto", 2)
    assert traffic.steps == {0: [(0, 1000 * US), (1000 * US, 1500 * US)]}
    assert traffic.notes == [
        "1 of 3 calls have no time: the trace has no kernels of them",
    ]


@pytest.mark.parametrize(
    ("name", "n_in", "n_out", "args", "expected"),
    [
        ("_allgather_base", 10, 20, {}, ("all_gather", 40, 80)),
        ("all_gather", 10, 20, {}, ("all_gather", 40, 80)),
        ("_reduce_scatter_base", 20, 10, {}, ("reduce_scatter", 80, 40)),
        ("all_gather_single", 10, 20, {}, ("all_gather", 40, 80)),
        ("reduce_scatter_tensor_coalesced", 20, 10, {}, ("reduce_scatter", 80, 40)),
        ("all_to_all", 20, 20, {}, ("all_to_all", 80, 80)),
        ("broadcast", 10, 10, {"Rank": 1}, ("broadcast", 40, 40)),
        ("reduce", 10, 10, {"Rank": 0}, ("reduce", 40, 40)),
        ("allreduce", 10, 10, {"dtype": "Long"}, ("all_reduce", 80, 80)),
        ("allreduce", 10, 10, {"dtype": "Float8_e4m3fn"}, ("all_reduce", 10, 10)),
        ("allreduce", 10, 10, {"dtype": "ComplexFloat"}, ("all_reduce", 80, 80)),
        ("allreduce", 10, 10, {"dtype": "Bool"}, ("all_reduce", 10, 10)),
        # Both ranks are told both sizes: only the root has both.
        ("gather", 10, 20, {"Rank": 0}, ("gather", 40, 80)),
        ("gather", 10, 20, {"Rank": 1}, ("gather", 40, 0)),
        ("scatter", 20, 10, {"Rank": 0}, ("scatter", 80, 40)),
        ("scatter", 20, 10, {"Rank": 1}, ("scatter", 0, 40)),
        ("send", 10, 10, {"Rank": 1, "Dst_Rank": 1}, ("send", 40, 0)),
        ("recv", 10, 10, {"Rank": 1, "Src_Rank": 1}, ("recv", 0, 40)),
    ],
)
def test_the_messages_of_nccl(read, name, n_in, n_out, args, expected):
    call = only(read(param(name, 0, 7, n_in, n_out, **args)))
    assert fields(call, "collective", "bytes_in", "bytes_out") == expected
    rooted = call.collective in ("broadcast", "reduce", "gather", "scatter")
    assert call.root == (args["Rank"] if rooted else None)
    assert call.peer == (1 if call.point_to_point else None)


def test_splits_become_bytes(read):
    """3 and 1 rows of 2 floats; a call with split sizes counts as uneven."""
    sizes = {"In_split_size": "[3, 1]", "Out_split_size": "[2, 2]"}
    call = only(read(param("all_to_allv", 0, 7, 8, 8, **sizes)))
    assert fields(call, "collective", "bytes_in", "splits") == ("all_to_all_v", 32, (24, 8))
    even = only(read(param("all_to_allv", 0, 7, 8, 8, Out_split_size="[2, 2]")))
    assert fields(even, "collective", "splits") == ("all_to_all_v", (16, 16))
    long = only(read(param("all_to_allv", 0, 7, 8, 8, In_split_size="[1, 2, ...]")))
    assert fields(long, "collective", "splits") == ("all_to_all_v", ())


def test_root_and_peer_are_ranks_of_the_world(read):
    ranks = {"Process_Group_Name": "5", "Process_Group_Ranks": "[2, 0]"}
    traffic = read(param("broadcast", 0, 7, Rank=0, **ranks))
    assert only(traffic).root == 2
    assert traffic.groups["5"] == Group("5", (2, 0), "", "default_pg")
    assert traffic.ranks == 3


def test_a_group_whose_list_was_shortened(read):
    assert read(param("allreduce", 0, 7), info=INFO | {"world_size": 8}).ranks == 8
    cut = {"Process_Group_Name": "5", "Process_Group_Ranks": "[0, 2, ..., 62]", "Group_size": 32}
    assert read(param("allreduce", 0, 7, **cut)).groups["5"].ranks == ()
    regular = cut | {"Global_rank_start": 0, "Global_rank_stride": 2}
    assert read(param("allreduce", 0, 7, **regular)).groups["5"].ranks == tuple(range(0, 64, 2))


def test_nothing_is_counted_twice(read):
    traffic = read(
        event("_c10d_functional::all_reduce", 0, 100, External_id=1),
        event("c10d::allreduce_", 10, 80, External_id=2),
        param("allreduce", 20, 3),
        {**param("broadcast", 22, 4), "dur": 2},  # how the one above is made
        param("startCoalescing", 200, 5, 0, 0),
        param("endCoalescing", 220, 6, 0, 0),
        event("_c10d_functional::wait_tensor", 300, 10),
    )
    assert only(traffic).collective == "all_reduce"


def test_calls_in_one_operator_are_all_counted(read):
    traffic = read(
        event("c10d::allgather_coalesced_", 0, 100),
        param("_allgather_base", 10, 3),
        param("_allgather_base", 40, 4),
    )
    assert len(traffic.calls[0]) == 2


def test_calls_are_counted_if_torch_has_no_sequence_number(read):
    def numbers(*sequences: int | None) -> list[int]:
        args = [{} if sequence is None else {"Seq": sequence} for sequence in sequences]
        traffic = read(*(param("allreduce", 50 * i, i, **each) for i, each in enumerate(args)))
        return [call.sequence for call in traffic.calls[0]]

    assert numbers(7, 8, 11) == [6, 7, 10]
    assert numbers(None, None) == numbers(0, 0) == numbers(4, 4) == [0, 1]


def test_messages_are_numbered_by_peer(read):
    traffic = read(
        param("send", 0, 1, Dst_Rank=1),
        param("recv", 50, 2, Src_Rank=1),
        param("send", 100, 3, Dst_Rank=1),
        param("send", 150, 4, Dst_Rank=0),
    )
    assert [call.sequence for call in traffic.calls[0]] == [0, 0, 1, 0]


def test_several_kernels_are_one_call(read):
    call = only(read(param("allreduce", 0, 7), kernel("a", 100, 10, 7), kernel("b", 150, 20, 7)))
    assert fields(call, "time_ns", "clock") == (70 * US, "device")


def test_kernels_of_coalesced_calls_are_of_no_call(read):
    traffic = read(
        param("startCoalescing", 0, 1, 0, 0),
        param("send", 20, 2, Dst_Rank=1),
        param("recv", 40, 3, Src_Rank=1),
        param("endCoalescing", 60, 4, 0, 0),
        kernel("ncclDevKernel_SendRecv", 100, 10, 4, Collective_name="endCoalescing"),
    )
    assert [call.time_ns for call in traffic.calls[0]] == [None, None]
    why = "the trace does not tell which kernels are theirs, as of coalesced calls"
    assert f"2 of 2 calls have no time: {why}" in traffic.notes


def test_kernels_alone_give_the_same_calls(read):
    """A trace that was profiled without the host's activity."""
    arguments = {key.replace(" ", "_"): v for key, v in param("allreduce", 0, 7)["args"].items()}
    call = only(
        read(kernel("ncclDevKernel_AllReduce", 100, 10, arguments.pop("External_id"), **arguments))
    )
    assert fields(call, "collective", "bytes_in", "time_ns") == ("all_reduce", 1000, 10 * US)


def test_is_it_asynchronous(read):
    def asynchronous(outer: list[str], **args: Any) -> bool | None:
        around = event("c10d::allreduce_", 0, 50, Concrete_Inputs=outer)
        return only(read(around, param("allreduce", 10, 7, **args))).asynchronous

    assert asynchronous(["", "", "False", "-1"], Is_asynchronized_op=True) is False
    assert asynchronous([], Is_asynchronized_op=True) is True
    assert asynchronous([], Is_asynchronized_op="False") is False
    assert asynchronous([]) is None


TENSORS = ["TensorList", "", "", "", "Scalar", "Scalar"]
GLOO = {
    "backend": "gloo",
    "rank": 1,
    "world_size": 2,
    "pg_config": [
        {
            **{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]},
            "backend_config": "cpu:gloo,cuda:gloo",
        }
    ],
}


def all_reduce(ts: float, count: int, asynchronous: bool = True) -> Any:
    values = ["", "", "", "", str(asynchronous), "-1"]
    return operator("c10d::allreduce_", ts, TENSORS, [[[count]], [], [], [], [], []], values)


def test_gloos_work_has_the_dtype_and_the_end(read):
    """An all_reduce from 100 to 400, under which a product runs from 150 to 250."""
    traffic = read(
        event("aten::zeros", 0, 10),
        all_reduce(100, 250),
        work("gloo:all_reduce", 110, 290, [250], dtype="c10::BFloat16"),
        event("MmBackward0", 150, 100),
        event("aten::mm", 150, 100),
        info=GLOO,
    )
    assert traffic.calls == {
        1: [
            TrafficCall(
                "all_reduce",
                500,
                500,
                "bfloat16",
                **{"group": "0", "asynchronous": True, "start_ns": 100 * US},
                **{"time_ns": 300 * US, "exposed_ns": 200 * US},
            )
        ]
    }
    assert traffic.groups == {"0": Group("0", (0, 1), "gloo", "default_pg")}
    assert traffic.notes == []


def test_what_holds_a_call_does_not_hide_it(read):
    """autograd's node is around the call and waits for it."""
    traffic = read(
        event("autograd::engine::evaluate_function: AllReduce", 90, 400),
        all_reduce(100, 250),
        work("gloo:all_reduce", 110, 290, [250]),
        info=GLOO,
    )
    assert only(traffic).exposed_ns == 300 * US


def test_works_are_put_to_calls_by_size_and_order(read):
    traffic = read(
        work("gloo:all_reduce", 5, 500, [4]),  # issued before the trace began
        all_reduce(10, 8),
        all_reduce(40, 4),
        all_reduce(70, 4),
        work("gloo:all_reduce", 80, 20, [2, 2]),
        work("gloo:all_reduce", 120, 80, [4]),
        work("gloo:all_reduce", 130, 170, [8]),
        info=GLOO,
    )
    assert [call.time_ns for call in traffic.calls[1]] == [290 * US, 60 * US, 130 * US]


def base(name: str, ts: float, out: list[int], reported: list[int], *values: str) -> Any:
    types = ["float", "float", "", "ScalarList", "ScalarList", "Scalar"]
    return operator(f"c10d::{name}", ts, types, [out, reported, [], [], [], []], ["", "", *values])


def lists(name: str, ts: float, types: list[str], dims: Any, root: str = "") -> Any:
    return operator(
        f"c10d::{name}", ts, [*types, "", "Scalar"], [*dims, [], []], ["", "", "", root]
    )


LISTS = ["TensorList", "TensorList"]
ONE = ["TensorList", "", "Scalar"]


@pytest.mark.parametrize(
    ("issued", "done", "expected"),
    [
        (base("_allgather_base_", 0, [20], [10]), ("all_gather", [10]), ("all_gather", 40, 80)),
        # gloo has no reduce_scatter.
        (
            base("_reduce_scatter_base_", 0, [10], [20]),
            ("all_reduce", [20]),
            ("reduce_scatter", 80, 40),
        ),
        (
            base("alltoall_base_", 0, [20], [20], "", "[]", "[]"),
            ("all_to_all", [20]),
            ("all_to_all", 80, 80),
        ),
        # Lists of lists show no shapes.
        (
            lists("allgather_", 0, ["", "TensorList"], [[], [[10]]]),
            ("all_gather", [10]),
            ("all_gather", 40, 80),
        ),
        (
            lists("reduce_scatter_", 0, ["TensorList", ""], [[[10]], []]),
            ("all_reduce", [10]),
            ("reduce_scatter", 80, 40),
        ),
        (
            lists("gather_", 0, ["", "TensorList"], [[], [[10]]], "1"),
            ("gather", [10]),
            ("gather", 40, 80),
        ),
        (
            lists("gather_", 0, ["", "TensorList"], [[], [[10]]], "0"),
            ("gather", [10]),
            ("gather", 40, 0),
        ),
        (
            lists("scatter_", 0, ["TensorList", ""], [[[10]], []], "1"),
            ("scatter", [10], [10]),
            ("scatter", 80, 40),
        ),
        (
            lists("alltoall_", 0, LISTS, [[[5], [5]], [[5], [5]]]),
            ("all_to_all", [5], [5]),
            ("all_to_all", 40, 40),
        ),
        (
            operator("c10d::send", 0, ONE, [[[10]], [], []], ["", "", "0"]),
            ("send", [10]),
            ("send", 40, 0),
        ),
        (
            operator("c10d::recv_", 0, ONE, [[[10]], [], []], ["", "", "0"]),
            ("recv", [10]),
            ("recv", 0, 40),
        ),
        (
            operator("c10d::allreduce_coalesced_", 0, ["TensorList"], [[[10], [2, 5]]]),
            ("all_reduce", [10], [2, 5]),
            ("all_reduce", 80, 80),
        ),
        (
            operator("c10d::barrier", 0, ["unsigned char", ""], [[1], []]),
            ("barrier",),
            ("barrier", 0, 0),
        ),
    ],
)
def test_the_call_of_a_c10d_operator(read, issued, done, expected):
    """On rank 1 of 2, root 0 is the other rank."""
    name, *shapes = done
    call = only(read(issued, work(f"gloo:{name}", 5, 10, *shapes), info=GLOO))
    assert fields(call, "collective", "bytes_in", "bytes_out") == expected
    assert (call.time_ns, call.group) == (15 * US, "0")
    assert call.peer == (0 if call.point_to_point else None)
    assert call.tensors == (2 if "coalesced" in issued["name"] else 1)


def test_gloo_reduces_a_list_one_by_one(read):
    """With two ranks gloo runs two all_reduces; the all_reduce after them is another call."""
    traffic = read(
        lists("reduce_scatter_", 0, ["TensorList", ""], [[[4]], []]),
        work("gloo:all_reduce", 5, 10, [4]),
        work("gloo:all_reduce", 30, 20, [4]),
        all_reduce(100, 4),
        work("gloo:all_reduce", 110, 30, [4]),
        info=GLOO,
    )
    assert [call.time_ns for call in traffic.calls[1]] == [50 * US, 40 * US]


def test_splits_of_gloo(read):
    """torch lists the output's splits first."""
    sizes = base("alltoall_base_", 0, [10], [4, 2], "", "[4, 1]", "[1, 3]")
    call = only(read(sizes, work("gloo:all_to_all", 5, 10, [4, 2]), info=GLOO))
    assert fields(call, "collective", "bytes_in", "splits") == ("all_to_all_v", 32, (8, 24))
    uneven = lists("alltoall_", 0, ["TensorList"] * 2, [[[5], [6]], [[5], [7]]])
    call = only(read(uneven, work("gloo:all_to_all", 5, 10, [5], [7]), info=GLOO))
    assert fields(call, "collective", "bytes_out", "splits") == ("all_to_all_v", 44, (20, 28))


def test_gloo_does_not_record_the_group(read):
    """If all groups have the same ranks the group does not matter; otherwise it stays unknown."""
    events = [all_reduce(0, 4), work("gloo:all_reduce", 5, 10, [4])]
    second = GLOO["pg_config"][0] | {"pg_name": "1", "pg_desc": "undefined"}
    info = GLOO | {"pg_config": [*GLOO["pg_config"], second]}
    traffic = read(*events, info=info)
    assert traffic.groups == {"0 or 1": Group("0 or 1", (0, 1), "gloo")}
    assert only(traffic).group == "0 or 1"
    info["pg_config"][1] = second | {"ranks": [1], "pg_size": 1}
    traffic = read(*events, info=info)
    assert only(traffic).group == ""
    assert SHORT in traffic.notes


def test_calls_without_sizes_are_dropped_but_counted(read):
    """For a scatter on other ranks than the root torch does not record the dtype."""
    traffic = read(
        lists("scatter_", 0, ["TensorList", "ScalarList"], [[[10]], []], "0"),
        work("gloo:scatter", 5, 10),
        all_reduce(50, 4),
        work("gloo:all_reduce", 60, 10, [4]),
        info=GLOO,
    )
    assert fields(only(traffic), "collective", "sequence") == ("all_reduce", 1)
    assert traffic.notes[0] == "left out: 1 call of scatter: dtype not known"


def test_a_trace_without_shapes_has_times_and_no_bytes(read):
    """As torch.profiler writes it by default: how often and how long is known."""
    traffic = read(
        event("c10d::allreduce_", 0, 10),
        work("gloo:all_reduce", 5, 10),
        event("c10d::barrier", 50, 10),
        info=GLOO,
    )
    ((call, _),) = traffic.calls.values()
    assert fields(call, "collective", "dtype", "time_ns") == ("all_reduce", None, 15_000)
    assert traffic.notes[0] == "the trace has no sizes: profile again with record_shapes=True"
    assert traffic.left_out == 0
    shown = io.StringIO()
    show_traffic([traffic], file=shown)
    assert shown.getvalue().startswith("each rank makes 1 all_reduce, 1 barrier in all (no steps")
    assert "15.00 us" in shown.getvalue()
    assert "bytes" not in shown.getvalue() and " B" not in shown.getvalue()
    shown = io.StringIO()
    show_traffic([traffic], "json", shown)
    assert [row["bytes_in"] for row in json.loads(shown.getvalue())["rows"]] == [None, None]


@pytest.mark.parametrize(
    ("kernels", "answer"),
    [
        (
            True,
            "a step of 100 us spends 30.0 us on communication (30 %); a collective is in flight",
        ),
        (False, "a step of 100 us has communication of unknown time; "),
    ],
)
def test_calls_of_which_no_kernel_is_known(read, kernels, answer):
    """In torch 2.3 and earlier a kernel has its correlation as its id, and a call has no name of
    its group. What kernels of no call say is used; without any, nothing is known, not 0.
    """
    call = param("allreduce", 10, 77)
    del call["args"]["Process Group Name"]
    events = [step(1, 0, 100), call, event("gemm", 60, 25, "kernel", device=0, tid=7)]
    traffic = read(*events, *[kernel("ncclKernel_AllReduce", 20, 30, 9999)] * kernels)
    assert only(traffic).group == "0"
    shown = io.StringIO()
    show_traffic([traffic], file=shown)
    assert " ".join(shown.getvalue().split()).startswith(answer)


def test_a_trace_without_communication(read):
    with pytest.raises(UnreadableError) as caught:
        read(event("aten::mm", 0, 10), param("wait", 50, 3, 0, 0), info=None)
    expected = "record_param_comms or c10d:: events. Profile a step that has some."
    assert str(caught.value).endswith(error_text("t.json", "no communication", expected))


def test_the_rank_is_recorded_or_in_the_name(read):
    event = param("allreduce", 0, 7)
    assert list(read(event, name="my_rank_12.json", info=None).calls) == [12]
    assert list(read(event, name="rank3.1700000000000000000.pt.trace.json", info=None).calls) == [3]
    with pytest.raises(UnreadableError, match=error_text(r"host_4321\.json", "no rank", "dist")):
        read(event, name="host_4321.json", info=None)  # tensorboard's handler: this is a process


def test_broken_events_are_passed_over(read):
    odd = [
        3,
        None,
        "text",
        {},
        {"ph": "X"},
        {"ph": "X", "ts": "now", "dur": 1},
        {"ph": "X", "ts": 1, "dur": -1},
        {"ph": "X", "ts": 1, "dur": 1, "args": 3},
        {"ph": "M", "name": "process_name"},
        param("allreduce", 0, 1, In_msg_nelems="many"),
        param("allreduce", 20, 2, dtype=None),
        param("allreduce", 40, 3, Process_Group_Name=7),
        operator("c10d::allreduce_", 80, "x", 3),
        operator("c10d::allreduce_", 110, ["TensorList"], [["a"]]),
        param("allreduce", 200, 9),
    ]
    traffic = read(
        *odd, info=INFO | {"pg_config": [3, {"pg_name": 4}, {"pg_name": "0", "ranks": "?"}]}
    )
    assert [call.bytes_in for call in traffic.calls[0]] == [1000, 1000]


def test_packed(tmp_path):
    data = {"traceEvents": [param("allreduce", 0, 7)], "distributedInfo": INFO}
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
    assert only(read_traffic([path])).bytes_in == 1000


def profiled() -> None:
    """Calls of all kinds that gloo has, captured and profiled at the same time."""
    from torch.profiler import ProfilerActivity, profile, schedule

    from torchcoll import capture

    dist.init_process_group("gloo")
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    rows = [4, 8] if rank == 0 else [8, 4]
    x, wide = torch.ones(12), torch.ones(24)
    plan = schedule(wait=0, warmup=0, active=3, repeat=1)
    cpu = [ProfilerActivity.CPU]
    with (
        profile(activities=cpu, record_shapes=True, schedule=plan) as profiler,
        capture() as traffics,
    ):
        for _ in range(2):
            ddp(torch.ones(2, 8)).sum().backward()
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
            dist.all_reduce(x, async_op=True).wait()
            dist.broadcast(x, 1)
            dist.reduce(x, 0)
            dist.all_gather([torch.empty(12)] * 2, x)
            scatter(torch.empty(12), wide)
            dist.all_to_all_single(torch.empty(24), wide)
            dist.all_to_all_single(torch.empty(12), x, rows, rows)
            dist.gather(x, [torch.empty(12)] * 2 if rank == 0 else None, 0)
            dist.scatter(torch.empty(12), [x, x] if rank == 0 else None, 0)
            dist.send(x, peer) if rank == 0 else dist.recv(x, peer)
            dist.barrier()
            traffics.step()
            profiler.step()
    profiler.export_chrome_trace(f"trace-rank{rank}.json")
    traffics.save(f"captured{rank}.jsonl")
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump:
        Path(f"fr{rank}.json").write_bytes(dump())
    dist.barrier()
    dist.destroy_process_group()


# The last step of it by hand: DDP's 8 * 16 + 16 + 16 * 4 + 4 = 212 parameters, then 12 or 24
# floats; (collective, bytes in and out on rank 0, on rank 1).
BY_HAND = [
    ("all_reduce", (848, 848), (848, 848)),
    ("all_reduce", (48, 48), (48, 48)),
    ("all_reduce", (48, 48), (48, 48)),
    ("broadcast", (48, 48), (48, 48)),
    ("reduce", (48, 48), (48, 48)),
    ("all_gather", (48, 96), (48, 96)),
    ("reduce_scatter", (96, 48), (96, 48)),
    ("all_to_all", (96, 96), (96, 96)),
    ("all_to_all_v", (48, 48), (48, 48)),
    ("gather", (48, 96), (48, 0)),
    ("scatter", (96, 48), (0, 48)),
    ("send", (48, 0), (0, 48)),
    ("barrier", (0, 0), (0, 0)),
]
SAME = ("collective", "bytes_in", "bytes_out", "dtype", "root", "peer", "group", "sequence")
SAME += ("step", "asynchronous", "tensors", "splits")


def sizes(calls: list[TrafficCall]) -> list[tuple[str, tuple[int, int]]]:
    return [(call.collective, (call.bytes_in, call.bytes_out)) for call in calls]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of one job of two gloo ranks."""
    importlib.import_module("torch._dynamo")  # DDP does: once here, and not in each rank
    folder = tmp_path_factory.mktemp("real") / "job"
    job = Job(folder, profiled, ranks=2, environment={"TORCH_FR_BUFFER_SIZE": "2000"})
    assert job.codes() == [0, 0], job.text(0)
    return folder


def test_a_real_gloo_trace_is_the_same_traffic_as_a_capture(real):
    traced = read_traffic([real / f"trace-rank{rank}.json" for rank in range(2)])
    captured = read_traffic([real / f"captured{rank}.jsonl" for rank in range(2)])
    assert traced.groups == captured.groups
    for rank, calls in traced.calls.items():
        # Only the root's trace has the type of a scatter.
        left_out = ("scatter",) if rank == 1 else ()
        captured_fields = [
            fields(call, *SAME) for call in captured.calls[rank] if call.collective not in left_out
        ]
        assert [fields(call, *SAME) for call in calls] == captured_fields
        expected = [(expected_call[0], expected_call[1 + rank]) for expected_call in BY_HAND]
        if rank == 1:
            expected[11] = ("recv", (0, 48))
        expected = [pair for pair in expected if pair[0] not in left_out]
        assert sizes(calls)[-len(expected) :] == expected
        assert all(0 <= call.exposed_ns <= call.time_ns for call in calls)
        assert all(call.time_ns for call in calls)


@pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"),
    reason="the Flight Recorder of this torch is nccl's alone",
)
def test_a_real_flight_recorder_dump_of_gloo(real):
    traffic = read_traffic([real / f"fr{rank}.json" for rank in range(2)])
    assert traffic.groups["0"] == Group("0", (0, 1), "gloo", "default_pg")
    # It has no messages, calls reduce_scatter what gloo makes of it, and does not tell splits.
    renamed = {"reduce_scatter": ("all_reduce", (96, 96)), "all_to_all_v": ("all_to_all", (48, 48))}
    for rank, calls in traffic.calls.items():
        expected = [
            (expected_call[0], expected_call[1 + rank])
            for expected_call in BY_HAND
            if expected_call[0] != "send"
        ]
        assert sizes(calls)[-12:] == [
            renamed.get(expected_call[0], expected_call) for expected_call in expected
        ]
        numbers = [call.sequence for call in calls]
        assert numbers == list(range(len(calls)))


# FSDP2's copies
COPIES = [
    event("aten::mm", 0, 5, External_id=1),
    event("fsdp::all_gather_copy_in", 10, 20, External_id=2),
    event("aten::_foreach_copy_", 12, 10, External_id=3),
    event("aten::_foreach_copy_", 40, 5, External_id=4),  # the optimizer's
    event("fsdp::chunk_cat", 50, 8, tid=2, External_id=5),
]


def test_on_a_cpu_the_operators_are_the_copies():
    copies = find_copies(read_events({"traceEvents": COPIES})[0])
    assert sorted(copies) == [(10_000, 30_000), (50_000, 58_000)]


def test_on_a_device_their_kernels_are_the_copies():
    kernels = [
        event("multi_tensor_apply", ts, 7, "kernel", tid=9, External_id=operator_id)
        for ts, operator_id in ((100, 3), (120, 4), (140, 5), (160, 1))
    ]
    copies = find_copies(read_events({"traceEvents": COPIES + kernels})[0])
    assert copies == [(100_000, 107_000), (140_000, 147_000)]


def test_without_fsdp_there_are_no_copies():
    assert find_copies(read_events({"traceEvents": COPIES[:1]})[0]) == []
