"""Which node is slow: planted slowdowns are named, and healthy fleets are left alone."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from handmade import case
from made_fleet import made_fleet

from torchcoll.parts.fleet.fleet_show import fleet_grid, slower
from torchcoll.parts.fleet.node_report import fleet_finding
from torchcoll.parts.fleet.records import summarise_run
from torchcoll.parts.fleet.series import SummariesBuilder
from torchcoll.parts.fleet.slow_nodes import case_subsets


def finding_of(runs, threshold=0.03, **options):
    builder = SummariesBuilder()
    for run in runs:
        builder.add(*summarise_run(run))
    return fleet_finding(builder.build(), threshold, **options)


def test_one_slow_node_of_64_is_named_with_its_slowdown():
    finding = finding_of(made_fleet(64, times=lambda node, *_: 1.08 if node == 37 else 1))
    (judged,) = finding.judged
    (slow,) = judged.slow
    assert slow.node == "node037"
    assert math.expm1(slow.effect) == pytest.approx(0.08, abs=0.01)  # noise 0.2 %
    assert (slow.displaced, len(slow.cases), slow.scope) == (10, 10, "")
    assert finding.accused == ("node037",)


def test_a_healthy_fleet_is_left_alone_and_says_what_would_have_been_found():
    finding = finding_of(made_fleet(64))
    assert finding.good
    assert finding.judged[0].detectable == pytest.approx(math.log(1.03), abs=0.005)


def test_a_node_slow_in_some_cases_is_found_with_these():
    slow = lambda node, night, case: 1.08 if node == 5 and case >= 5 else 1  # noqa: E731
    (item,) = finding_of(made_fleet(64, times=slow)).judged[0].slow
    assert item.node == "node005"
    assert item.displaced in (5, 10)
    assert {key.case.collective for key in item.cases} >= {"all_gather"}


def test_a_node_slow_in_three_cases_of_ten_is_found():
    slow = lambda node, night, case: 1.3 if node == 5 and case in (1, 4, 7) else 1  # noqa: E731
    (item,) = finding_of(made_fleet(64, times=slow)).judged[0].slow
    assert item.node == "node005"
    assert item.scope


def test_a_fast_node_is_shown_and_not_accused():
    finding = finding_of(made_fleet(32, times=lambda node, *_: 0.9 if node == 3 else 1))
    assert [item.effect < 0 for item in finding.judged[0].slow] == [True]
    assert finding.accused == ()
    assert finding.good


def test_a_signed_column_has_the_change_of_the_time_and_says_so():
    """0.8 times the time: -20 % of the time, and 25 % more speed."""
    finding = finding_of(made_fleet(32, times=lambda node, *_: 0.8 if node == 3 else 1))
    (fast,) = finding.judged[0].slow
    assert slower(fast.effect).startswith("25 % faster")
    grid = fleet_grid(finding, whole=True)
    assert (grid.heads[1].first, grid.heads[4].first) == ("time", "time in")
    row = next(row for row in grid.rows if row[0] == fast.node)
    assert float(row[1].split()[0]) == pytest.approx(-20, abs=0.5)
    assert "time: change of the time of a call; -20 % is 0.8 times the time, 25 % faster" in (
        grid.below
    )


def test_eight_nodes_have_too_few_peers_for_an_accusation():
    finding = finding_of(made_fleet(8, times=lambda node, *_: 2 if node == 3 else 1))
    assert not finding.judged[0].judged
    assert finding.accused == ()
    assert finding.judged[0].effects.argmax() == 3  # ranked all the same


def test_nine_nodes_are_enough():
    assert finding_of(made_fleet(9, times=lambda n, *_: 2 if n == 3 else 1)).accused == ("node003",)


def test_a_slow_rack_is_named_and_its_nodes_are_not():
    racks = lambda node, night: {"rack": f"r{node // 8}", "row": f"w{node // 8}"}  # noqa: E731
    times = lambda node, *_: 1.05 if node // 8 == 2 else 1  # noqa: E731
    finding = finding_of(made_fleet(64, times=times, labels=racks))
    (judged,) = finding.judged
    (group,) = judged.groups
    assert set(group.names) == {"rack=r2", "row=w2"}  # the same nodes: not told apart
    assert sorted(group.members.tolist()) == list(range(16, 24))
    assert math.expm1(group.effect) == pytest.approx(0.05, abs=0.005)
    assert judged.slow == ()
    assert not finding.good


def test_a_bad_node_in_a_slow_rack_is_judged_without_the_racks_effect():
    racks = lambda node, night: {"rack": f"r{node // 8}"}  # noqa: E731
    times = lambda n, *_: 1.3 if n == 17 else 1.05 if n // 8 == 2 else 1  # noqa: E731
    (judged,) = finding_of(made_fleet(64, times=times, labels=racks)).judged
    (slow,) = judged.slow
    assert (slow.node, slow.group) == ("node017", "rack=r2")
    assert math.exp(slow.effect) == pytest.approx(1.3 / 1.05, rel=0.01)


def test_two_halves_are_two_populations_without_a_culprit():
    finding = finding_of(made_fleet(64, times=lambda node, *_: 1.08 if node % 2 else 1))
    two = finding.judged[0].populations
    assert two is not None
    assert (len(two.slow), len(two.fast)) == (32, 32)
    assert finding.accused == ()
    assert not finding.good


def test_wrong_results_and_failures_come_before_slow_nodes():
    from made_runs import measured

    from torchcoll.core.result import Verification

    runs = made_fleet(16, times=lambda node, *_: 2 if node == 1 else 1)
    runs[4].results[0] = measured(10**6, size_bytes=1024, verification=Verification(100, 3))
    runs[7].end = {"status": "failed", "exit_code": 5}
    finding = finding_of(runs)
    assert finding.accused == ("node004", "node007", "node001")
    assert [failure.kind for failure in finding.failures] == ["wrong", "failed"]


def test_expected_nodes_without_a_run_are_missing():
    finding = finding_of(made_fleet(10), expected=["node003", "node100"])
    assert finding.missing == ("node100",)
    assert "not in the list of expected nodes" in " ".join(finding.notes)


def test_a_node_of_an_earlier_night_is_missing_tonight():
    runs = [r for r in made_fleet(10, nights=2) if r.header["run_id"] != "0001-0004"]
    assert finding_of(runs).missing == ("node004",)


@pytest.mark.parametrize(("night", "missing"), [(31, ("node004",)), (32, ())])
def test_a_node_that_went_long_ago_is_no_longer_missing(night, missing):
    kept = {1, night}
    runs = [r for r in made_fleet(10, nights=night + 1) if int(r.header["run_id"][:4]) in kept]
    of_last = f"{night:04}-0004"
    assert finding_of([r for r in runs if r.header["run_id"] != of_last]).missing == missing


def test_another_number_of_ranks_has_its_own_peers():
    runs = [*made_fleet(10), *made_fleet(20)[10:]]
    for run in runs[10:]:
        run.header["ranks"] = 4
    assert [len(judged.peers.nodes) for judged in finding_of(runs).judged] == [10, 10]


def test_a_case_that_few_nodes_have_is_left_out_and_said():
    runs = made_fleet(20)
    for run in runs[5:]:
        run.results = run.results[:9]
    finding = finding_of(runs)
    assert len(finding.judged[0].peers.keys) == 9
    assert "1 case left out" in " ".join(finding.notes)


def test_a_run_received_before_it_began_has_a_wrong_clock():
    builder = SummariesBuilder()
    for run in made_fleet(10):
        received = int(1.8e15) if run.header["run_id"] != "0000-0004" else int(1.70e15)
        builder.add(*summarise_run(run, received_us=received))
    finding = fleet_finding(builder.build(), 0.03)
    assert finding.nodes == 9  # its night is that of its receipt, in 2023
    assert "clock of node004:" in " ".join(finding.notes)


def test_sizes_are_small_below_64_kib_and_large_from_4_mib():
    sizes = ((64 << 10) - 8, 64 << 10, (4 << 20) - 8, 4 << 20)
    keys = [SimpleNamespace(case=case(size_bytes=size_bytes)) for size_bytes in sizes]
    subsets = {name: members.tolist() for name, members in case_subsets(keys) if name}
    assert subsets == {"small sizes": [0], "medium sizes": [1, 2], "large sizes": [3]}


def test_one_node_alone_is_named_and_not_judged():
    assert "node000 has no peer to be compared with" in (
        fleet_grid(finding_of(made_fleet(1)), whole=True).answer.text
    )
