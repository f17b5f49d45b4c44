"""Flight Recorder dumps in the form of nccl, by hand: torch's FlightRecorderDetail.hpp, dump_json.

A real one of gloo is read in test_kineto.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from error_form import error_tail, error_text
from foreign_traces import CONFIG, entry

from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traces import read_traffic
from torchcoll.parts.training.traffic_show import traffic_answer, traffic_grids
from torchcoll.parts.training.traffic_table import summarise_traffic
from torchcoll.reading.torch_names import (
    parse_rank_list,
    rank_in_name,
    torch_collective,
    torch_dtype,
)


@pytest.fixture
def read(tmp_path):
    """A function that reads the Traffic of dumps with these entries, for ranks 0, 1, ..."""

    def run(*dumps: Any, config: Any = CONFIG, names: str = "nccl_trace_rank_{}") -> Traffic:
        paths = []
        for rank, entries in enumerate(dumps):
            data = {"version": "2.10", "comm_lib_version": "", "pg_config": config, "pg_status": {}}
            data |= {"entries": entries} if entries else {}
            paths.append(tmp_path / names.format(rank))
            paths[-1].write_text(json.dumps(data))
        return read_traffic(paths)

    return run


def test_a_dump(read):
    traffic = read([entry("all_reduce", 1), entry("_all_gather_base", 2, [[12]], [[24]])])
    common = {"group": "0", "clock": "device", "time_ns": 2_500_000}
    assert traffic.calls == {
        0: [
            TrafficCall("all_reduce", 48, 48, "float32", sequence=0, start_ns=0, **common),
            TrafficCall("all_gather", 48, 96, "float32", sequence=1, start_ns=1_000_000, **common),
        ]
    }
    assert traffic.groups == {
        "0": Group("0", (0, 1), "nccl", "default_pg"),
        "7": Group("7", (1, 0), "", "undefined"),
    }
    assert (traffic.source, traffic.ranks, traffic.steps) == ("flight recorder", 2, {})
    assert traffic.notes == []


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (entry("_reduce_scatter_base", 1, [[24]], [[12]]), ("reduce_scatter", 96, 48, "float32")),
        (entry("all_reduce_barrier", 1, [[1]]), ("barrier", 0, 0, None)),
        (entry("gather", 1, [[12]], [[12], [12]]), ("gather", 48, 96, "float32")),
        (entry("gather", 1, [[12]], []), ("gather", 48, 0, "float32")),
        (entry("scatter", 1, [], [[12]]), ("scatter", 0, 48, "float32")),
        (entry("_broadcast_oop", 1), ("broadcast", 48, 48, "float32")),
        (entry("all_to_all", 1, [[4, 3]]), ("all_to_all", 48, 48, "float32")),
        # One tensor: its rows are no multiple of the 2 ranks, or differ from those that come back.
        (entry("all_to_all", 1, [[3, 4]]), ("all_to_all_v", 48, 48, "float32")),
        (entry("all_to_all", 1, [[4]], [[2]]), ("all_to_all_v", 16, 8, "float32")),
        # Lists: a tensor for each rank.
        (entry("all_to_all", 1, [[3], [5]], [[3], [3]]), ("all_to_all_v", 32, 24, "float32")),
        (entry("all_to_all", 1, [[3], [3]], [[3], [3]]), ("all_to_all", 24, 24, "float32")),
        (entry("reduce_scatter", 1, [[3], [3]], [[3]]), ("reduce_scatter", 24, 12, "float32")),
        (entry("reduce_scatter", 1, [[3], [5]], [[3]]), ("reduce_scatter_v", 32, 12, "float32")),
        (entry("all_gather", 1, [[3]], [[3], [5]]), ("all_gather_v", 12, 32, "float32")),
        # Several calls in one, each of them even.
        (
            entry("reduce_scatter_tensor_coalesced", 1, [[4], [6]], [[2], [3]]),
            ("reduce_scatter", 40, 20, "float32"),
        ),
        (entry("allreduce_coalesced", 1, [[2], [3]]), ("all_reduce", 20, 20, "float32")),
        (entry("send 0->1", 1), ("send", 48, 0, "float32")),
        (entry("recv 0<-1", 1), ("recv", 0, 48, "float32")),
        (
            entry("all_reduce", 1, input_dtypes=["BFloat16"], output_dtypes=["BFloat16"]),
            ("all_reduce", 24, 24, "bfloat16"),
        ),
    ],
)
def test_the_call_of_an_entry(read, record, expected):
    ((call,),) = read([record]).calls.values()
    assert (call.collective, call.bytes_in, call.bytes_out, call.dtype) == expected
    assert call.peer == (1 if call.point_to_point else None)
    assert call.tensors == (2 if "coalesced" in record["profiling_name"] else 1)


def test_messages_are_numbered_by_peer_and_name_ranks_of_the_world(read):
    """In group 7 rank 0 of the world is the second."""
    fields = {"process_group": ["7", "undefined"], "collective_seq_id": 0, "is_p2p": True}
    traffic = read(
        [entry(name, i + 1, **fields) for i, name in enumerate(["send 1->0", "recv 1<-0"] * 2)]
    )
    assert [(c.collective, c.peer, c.sequence) for c in traffic.calls[0]] == [
        ("send", 1, 0),
        ("recv", 1, 0),
        ("send", 1, 1),
        ("recv", 1, 1),
    ]


def test_the_ranks_are_joined_by_their_numbers(read):
    """Rank 1's buffer lost its first call."""
    traffic = read([entry("all_reduce", i) for i in (1, 2)], [entry("all_reduce", 2)])
    assert {r: [c.sequence for c in calls] for r, calls in traffic.calls.items()} == {
        0: [0, 1],
        1: [1],
    }
    assert "the buffer kept the last 1 call, and lost 1 before" in traffic.notes


@pytest.mark.parametrize(
    "late, says",
    [
        (5, "rank 0 made 6 all_reduce, rank 1 made 5: it never entered the last"),
        (3, "rank 0 made 6 all_reduce, rank 1 made 3: it never entered the last 3"),
    ],
)
def test_a_rank_that_did_not_enter_the_last_call_is_named_first(read, late, says):
    """No rank made 11: the calls of a rank are never added to those of another one."""
    traffic = read(*([entry("all_reduce", i) for i in range(1, n + 1)] for n in (6, late)))
    answer = traffic_answer(summarise_traffic(Ledger(traffic)))
    assert (answer.headline, answer.level) == (says, "bad")
    assert answer.details[0] == "each rank makes at most 6 all_reduce in all"
    assert answer.next_step.startswith("torchcoll postmortem ")


def test_a_buffer_that_lost_calls_is_no_rank_behind(read):
    traffic = read([entry("all_reduce", i) for i in (1, 2)], [entry("all_reduce", 2)])
    answer = traffic_answer(summarise_traffic(Ledger(traffic)))
    assert answer.headline == "each rank makes at most 2 all_reduce in all (no steps are marked)"


def test_coalesced_calls_share_a_number_and_their_end_is_no_call(read):
    traffic = read(
        [
            entry("all_reduce", 1, op_id=1, duration_ms=None),
            entry("all_reduce", 1, op_id=2, duration_ms=None),
            entry("coalesced", 1, [], []),
        ]
    )
    assert [(c.sequence, c.time_ns) for c in traffic.calls[0]] == [(0, None), (0, None)]


def test_what_the_dump_lacks_is_reported(read):
    hung = entry("all_reduce", 2, state="started")
    for record in (first := entry("all_reduce", 1)), hung:
        del record["duration_ms"]
    assert read([first, hung]).notes == [
        "the dump has no durations: TORCH_NCCL_ENABLE_TIMING=1 records those of calls that were "
        "sent alone",
        "1 call had not completed when the dump was written",
    ]


def gloo(name: str, group: str = "0", description: str = "default_pg") -> Any:
    record = entry(name, 1, process_group=[group, description], state="scheduled")
    return record | {"profiling_name": f"gloo:{name}", "duration_ms": None}


def test_gloo_configures_no_ranks(read):
    """The default group has all ranks; another group has the ranks that call in it, if all were
    read.
    """
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    calls = [gloo("all_reduce"), gloo("barrier", "3", "undefined")]
    traffic = read(calls, [gloo("all_reduce")], calls, config=config, names="fr{}.json")
    assert traffic.groups == {
        "0": Group("0", (0, 1, 2), "gloo", "default_pg"),
        "3": Group("3", (0, 2), "gloo", "undefined"),
    }
    assert traffic.notes == [
        "the dump has no durations",
        "group 3: its ranks are not known, taken for 0,2, which made calls in it",
    ]


def shown(traffic) -> str:
    return traffic_grids(traffic, summarise_traffic(Ledger(traffic)))[0].above[0]


def test_a_gloo_dump_of_one_rank_lacks_the_number_of_ranks(read):
    """As torch 2.13 writes it: `pg_config` has the key '', and the entries have '0'."""
    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    traffic = read([gloo("all_reduce"), gloo("barrier", "3", "undefined")], config=config)
    assert traffic.groups["0"].ranks == traffic.groups["3"].ranks == ()
    assert "rank 0 of an unknown number" in shown(traffic)
    assert "a group" not in shown(traffic)
    note = "the dump does not say how many ranks there are: read those of all ranks together"
    assert traffic.notes[-1] == note


def test_without_entries(read):
    with pytest.raises(UnreadableError) as caught:
        read([])
    assert str(caught.value).endswith(
        error_text(
            "nccl_trace_rank_0",
            "no entries",
            "entries of collectives. Set TORCH_FR_BUFFER_SIZE=2000 before the start (torch "
            "2.6 to 2.8: TORCH_NCCL_TRACE_BUFFER_SIZE).",
        )
    )


def test_a_file_that_does_not_name_its_rank(read):
    with pytest.raises(UnreadableError) as caught:
        read([entry("all_reduce", 1)], names="dump{}x.json")
    assert str(caught.value).endswith(
        error_tail("dump0x.json", "a name that ends in the rank, such as fr_rank0.json")
    )


def test_broken_entries_are_problems(read):
    odd = [
        entry("all_reduce", 1, process_group=["0"]),
        entry("all_reduce", 1, input_sizes=[["a"]]),
        entry("all_reduce", 1, input_dtypes=["QInt4"], output_dtypes=["QInt4"]),
        {"record_id": 3},
    ]
    traffic = read([*odd, entry("all_reduce", 9), "text"], config=3)
    assert [call.bytes_in for call in traffic.calls[0]] == [48]
    assert len(traffic.problems) == 4
    assert (
        "nccl_trace_rank_0: entry 2: unusable: dtype qint4 of unknown size" in traffic.problems[2]
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("all_gather_single_coalesced", "all_gather"),
        ("c10d::reduce_scatter_tensor_coalesced_", "reduce_scatter"),
        ("nccl:all_to_all_v_single", "all_to_all_v"),
        ("xccl:all_reduce", "all_reduce"),
        ("c10d::monitored_barrier_", "monitored_barrier"),
        ("c10d::recv_any_source_", "recv"),
        ("nccl:send 3->1", "send"),
        ("nccl:split", "split"),
        ("something_new", "something_new"),
        ("base", "base"),
    ],
)
def test_names_of_collectives(name, expected):
    assert torch_collective(name) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Float", "float32"),
        ("c10::BFloat16", "bfloat16"),
        ("long int", "int64"),
        ("unsigned char", "uint8"),
        ("Byte", "uint8"),
        ("Char", "int8"),
        ("Half", "float16"),
        ("c10::complex<float>", "complex64"),
        ("ComplexDouble", "complex128"),
        ("bool", "bool"),
        ("TensorList", None),
        ("ScalarList", None),
        ("Scalar", None),
        ("", None),
        (3, None),
    ],
)
def test_names_of_types(text, expected):
    assert torch_dtype(text) == expected


@pytest.mark.parametrize(
    ("name", "rank", "bare"),
    [
        ("rank3.json", 3, 3),
        ("a_RANK-12_b.json.gz", 12, 12),
        ("nccl_trace_rank_7", 7, 7),
        ("fr_2.13.0_4.json", None, 4),
        ("trace", None, None),
        ("host_99.1.pt.trace.json", None, 1),
    ],
)
def test_ranks_in_names_of_files(name, rank, bare):
    assert (rank_in_name(f"rank9/{name}"), rank_in_name(name, bare=True)) == (rank, bare)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0, 2], (0, 2)),
        ("[0, 2]", (0, 2)),
        ("[]", ()),
        ([], ()),
        ("[0, ..., 9]", ()),
        (None, ()),
        (3, ()),
        ([True], ()),
        ([-1], ()),
    ],
)
def test_lists_of_ranks(value, expected):
    assert parse_rank_list(value) == expected
