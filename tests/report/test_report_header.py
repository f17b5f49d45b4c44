"""The lines above the table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from handmade import case, result, run

from torchcoll.core.spec import Spec
from torchcoll.questions.show.show import table_grid
from torchcoll.report.header import first_lines, header_lines, ranks_text


def members(hosts: int, each: int, device: str = "cuda", name: str = "NVIDIA H200"):
    return [
        {
            "rank": r,
            "host": f"node{r // each + 1}",
            "device": f"{device}:{r % each}" if device != "cpu" else "cpu",
            "device_name": name,
        }
        for r in range(hosts * each)
    ]


@pytest.mark.parametrize(
    ("hosts", "each", "device", "name", "text"),
    [
        (1, 8, "cuda", "NVIDIA H200", "8 ranks on node1, cuda:0-7, NVIDIA H200"),
        (1, 1, "cpu", "", "1 rank (no communication) on node1, cpu"),
        (
            2,
            8,
            "cuda",
            "NVIDIA H200",
            "16 ranks: 0-7 on node1 (cuda:0-7), 8-15 on node2 (cuda:0-7), NVIDIA H200",
        ),
        (
            128,
            8,
            "cuda",
            "",
            "1024 ranks on 128 hosts, 8 each (node1 ... node128), cuda:0-7 on each",
        ),
    ],
)
def test_ranks_text(hosts, each, device, name, text):
    launch = run(ranks=hosts * each, members=members(hosts, each, device, name))
    assert ranks_text(launch) == text


def test_ranks_dealt_out_in_turn_and_unequal_hosts():
    launch = run(ranks=4, members=members(4, 1))
    for member in launch.members:
        member["host"] = f"node{member['rank'] % 2}"
        member["device"] = f"cuda:{member['rank'] // 2}"
    assert ranks_text(launch) == (
        "4 ranks: 0,2 on node0 (cuda:0-1), 1,3 on node1 (cuda:0-1), NVIDIA H200"
    )
    launch = run(ranks=6, members=members(5, 1, name="")[:5] + members(5, 1, name="")[4:])
    assert ranks_text(launch) == (
        "6 ranks on 5 hosts, 1 to 2 each (node1 ... node5), cuda:0 on each"
    )


def test_rules_order_labels_and_stream_mode():
    spec = {
        "iters": 20,
        "warmup": 5,
        "check": False,
        "order": "shuffled",
        "seed": 7,
        "fresh_group": True,
        "labels": {"driver": "550", "net": "ib"},
    }
    asked = case(mode="back-to-back", device="cuda")
    lines = header_lines(run(header={"spec": spec}), [asked], clocks=["device"])
    assert lines[2] == "clock: device; mode: back-to-back (calls queued, no barrier)"
    assert lines[4:6] == [
        "20 calls a case; 5 warm-up calls; verification off; the same buffers in every call; "
        "order shuffled (seed 7); a new communicator for every case",
        "labels: driver=550, net=ib",
    ]


def test_two_backends_and_many_collectives():
    cases = [
        case(backend=backend, collective=name, in_place=False, root=0)
        for backend in ("gloo", "ccl")
        for name in ("gather", "scatter", "reduce")
    ]
    lines = header_lines(run(), cases)
    assert lines[0] == "torchcoll 0.1.0: 3 collectives, float32, sum, root 0, out of place"
    assert lines[1] == "backends: gloo of torch 2.13.0, ccl; 8 ranks on vm, cpu"


def test_time_to_first_result_adds_an_eager_connect():
    # The slowest connect is 40 ms, the slowest first call 5 ms.
    launch = run(result(steady_after=None))
    launch.header["connects"] = "communicator"
    launch.phases["communicator"] = [40_000_000, *[1_000_000] * 7]
    assert first_lines(launch)[0] == (
        "first call 5.00 ms, not steady after 2 calls, time to first result 45.0 ms"
    )
    start_up = header_lines(launch, [case()], verbose=True)[5]
    assert start_up == (
        "start up: import torch 1.20 s, rendezvous 2.00 ms, init 24.0 ms, connect 40.0 ms"
    )


def test_a_fresh_communicator_has_its_own_connect():
    launch = run(result(2, connect_ns=[3_000_000, 30_000_000]), ranks=2)
    assert first_lines(launch)[0] == (
        "connect 30.0 ms, first call 5.00 ms, steady after 2 calls, time to first result 35.0 ms"
    )


def test_the_first_call_is_that_of_the_first_case_that_ran():
    later = result(cold=(1_000,), ordinal=30)
    first = result(cold=(7_000_000,), steady_after=4)
    assert first_lines(run(later, first))[0].startswith("first call 7.00 ms, steady after 4 calls")
    assert first_lines(run(later, phases={})) == []


def test_what_connects_within_init_counts_into_the_time_to_first_result():
    launch = run(
        result(cold=(1_000_000, 500_000)),
        header={"connects": "init_process_group"},
        phases={"init_process_group": [24_000_000] * 8},
    )
    assert (
        header_lines(launch, [], verbose=True)[-1] == "start up: init 24.0 ms including connecting"
    )
    assert first_lines(launch)[0].endswith("time to first result 25.0 ms")


@pytest.mark.parametrize(("backend", "ranks"), [("gloo", 1), ("fake", 8)])
def test_nothing_connects_where_nothing_is_communicated(backend, ranks):
    launch = run(
        result(ranks, (1_000_000,), case=case(backend=backend)),
        ranks=ranks,
        header={"connects": "init_process_group"},
        phases={"init_process_group": [24_000_000] * ranks},
    )
    assert (
        header_lines(launch, [case(backend=backend)], verbose=True)[-1] == "start up: init 24.0 ms"
    )
    assert first_lines(launch)[0].endswith("time to first result 1.00 ms")


def test_a_file_cut_during_start_up_names_no_phase_that_it_has_not():
    launch = run(
        header={"connects": "init_process_group"}, phases={"import_torch": [1_200_000_000]}
    )
    assert header_lines(launch, [], verbose=True)[-1] == "start up: import torch 1.20 s"


def test_a_file_without_a_case_names_what_was_asked():
    spec = Spec(collectives="all_gather,all_to_all_v", splits="1,3", dtypes="bfloat16")
    spec = replace(spec, backend="gloo", device="cpu")
    launch = run(ranks=2, header={"spec": json.loads(json.dumps(spec.to_json()))}, end=None)
    assert table_grid(launch).above[:3] == [
        "torchcoll 0.1.0: all_gather, all_to_all_v, bfloat16, out of place, splits 1,3",
        "backend: gloo of torch 2.13.0; 2 ranks on vm, cpu",
        "mode: synchronized (a barrier before every call, outside the stamps)",
    ]
    launch.header["spec"] = {"collectives": ["of a later version"]}
    assert table_grid(launch).above[0] == "torchcoll 0.1.0:"


def test_the_first_call_is_read_as_the_table_is():
    launch = run(result(2, cold_ns=[[4_000_000], [8_000_000]], steady_after=None), ranks=2)
    assert first_lines(launch)[0].startswith("first call 8.00 ms, ")
    line = first_lines(launch, "mean")[0]
    assert line == "first call 6.00 ms, not steady after 1 call, time to first result 6.00 ms"
    assert first_lines(launch, "rank0")[0].startswith("first call 4.00 ms, ")


def test_slow_first_calls_are_counted_against_the_steady_median():
    slow = result(2, cold_ns=[[4_400_000, 5_000_000, 4_500_000]] * 2, steady_after=2)
    slow.time_ns = {"host": [[200_000] * 20] * 2}
    line = first_lines(run(slow, ranks=2))[0]
    assert line.startswith("first 3 calls 4.40 ms to 5.00 ms, 22 times the later calls, time to")
    slow.cold_ns = [[4_400_000, 5_000_000, 290_000]] * 2
    assert first_lines(run(slow, ranks=2))[0].startswith("first call 4.40 ms, steady after 2 calls")


def test_the_first_call_of_sub_groups_is_that_of_all_of_them():
    def part(number, members, ns, size_bytes=8, ordinal=0):
        asked = case(size_bytes=size_bytes, group=f"1,3;0,2/{number}")
        return result(2, cold_ns=[[n] for n in ns], case=asked, members=members, ordinal=ordinal)

    launch = run(
        part(0, [1, 3], (1_000_000, 2_000_000)),
        part(1, [0, 2], (7_000_000, 3_000_000)),
        part(0, [1, 3], (90_000_000, 90_000_000), size_bytes=32, ordinal=9),
        ranks=4,
    )
    assert first_lines(launch)[0].startswith("first call 7.00 ms, ")
    assert first_lines(launch, "min")[0].startswith("first call 1.00 ms, ")
    assert first_lines(launch, "rank0")[0].startswith("first call 7.00 ms, ")


def test_a_stream_is_no_completion():
    asked, unknown = case(mode="back-to-back"), case(mode="unknown")
    period = "period = time of the batches on the slowest rank / calls"
    assert period in header_lines(run(), [asked])
    assert f"time = max over ranks, the slowest rank; {period}" in header_lines(
        run(), [case(), asked]
    )
    assert (
        "time = max over ranks; ranks are not aligned: the maximum over ranks is no call's time"
    ) in header_lines(run(), [unknown])
    assert "time = max over ranks, the slowest rank" in header_lines(run(), [case()])
    assert "time = mean over ranks, not the slowest rank" in header_lines(run(), [case()], "mean")
    of_mean = "period = time of the batches, mean over ranks, / calls"
    assert of_mean in header_lines(run(), [asked], "mean")


def test_each_backend_has_its_first_call():
    """gloo connects within init (24 ms at the slowest), ccl in its first call."""
    of_each = {"gloo": "init_process_group", "ccl": "first call"}
    header = {"connects": "init_process_group", "connects_of": of_each}
    gloo = result(cold=(1_000_000, 500_000), steady_after=2, case=case(backend="gloo"))
    ccl = result(cold=(900_000_000, 5_000_000), steady_after=None, case=case(backend="ccl"))
    launch = run(gloo, ccl, header=header)
    assert first_lines(launch)[:2] == [
        "gloo: first call 1.00 ms, steady after 2 calls, time to first result 25.0 ms",
        "ccl: first call 900 ms, not steady after 2 calls, time to first result 900 ms",
    ]
    assert header_lines(launch, [case()], verbose=True)[5] == (
        "start up: import torch 1.20 s, rendezvous 2.00 ms, init 24.0 ms including connecting, "
        "ccl connects in its first call"
    )


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("cta_policy=zero", ["communicator configuration: cta_policy=zero"]),
        ("default", []),
        (None, []),
    ],
)
def test_the_configuration_of_communicators_is_shown(config, line):
    launch = run(result(), header={"environment": {"communicator_config": config}})
    lines = header_lines(launch, [each.case for each in launch.results])
    assert [each for each in lines if each.startswith("communicator configuration")] == line


def test_a_group_that_had_connected_before_its_first_call():
    """2 s in init_process_group, 5 ms in the first call: NCCL2 of torch 2.14."""
    phases = {"init_process_group": [2_000_000_000] * 8}
    launch = run(result(ordinal=0), header={"connects": "first call"}, phases=phases)
    launch.members = [{"implementation": {case().backend: "ProcessGroupNCCL2"}}] * 8
    (line,) = first_lines(launch)
    assert "ProcessGroupNCCL2 had connected in init_process_group" in line
    assert line.endswith("time to first result 2.00 s")
    launch.members = [{"implementation": {case().backend: "ProcessGroupNCCL"}}] * 8
    assert "connected" not in first_lines(launch)[0]


READ = {"sm_clock_mhz": 1980, "reasons": [], "limited_ns": None, "others": []}


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        ([], ""),  # CPUs
        ([READ, READ], ""),
        # A container hides the processes from NVIDIA's driver; the rest can be told.
        ([{**READ, "others": None}], ""),
        (
            [{"sm_clock_mhz": 1205, "others": None}],  # AMD's sysfs
            "not known: throttling of the devices on n1",
        ),
        (
            [READ, {"place": "0000:05:00.0"}],  # no driver library
            "not known: throttling of the devices on n1",
        ),
    ],
)
def test_a_state_that_was_not_read_is_called_unknown(devices, line):
    """No warning of it can come, so that the verdict must not look as if it had been checked."""
    launch = run(result())
    launch.machine = [{"when": "before", "host": "n1", "devices": devices}]
    said = [text for text in header_lines(launch, [case()]) if text.startswith("not known")]
    assert said == ([line] if line else [])
