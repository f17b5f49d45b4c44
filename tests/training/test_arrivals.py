"""Who came last, what that cost, and what is chance: numbers computed by hand."""

from __future__ import annotations

import dataclasses
import json

import numpy
import pytest
from handmade import result, run
from scipy import stats
from sent import MS

from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training.arrivals import (
    HIGHEST,
    chance_of_mean,
    correlation_bounds,
    detectable_mean,
    find_arrivals,
    independent_values,
)
from torchcoll.parts.training.joined import JoinedCall
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_show import _late_text
from torchcoll.questions.page.document import page_of


def traffic_of(
    rows, groups=None, *, steps=None, collective="all_reduce", source="kineto", **environment
):
    """rows: (group, {rank: time in us}) of each call, in order."""
    groups = groups or {"g": tuple(sorted(rows[0][1]))}
    ranks = 1 + max(rank for members in groups.values() for rank in members)
    calls: dict[int, list[TrafficCall]] = {rank: [] for rank in range(ranks)}
    count = dict.fromkeys(groups, 0)
    for number, (group, times) in enumerate(rows):
        for rank, us in times.items():
            calls[rank].append(
                TrafficCall(
                    collective,
                    1024,
                    1024,
                    group=group,
                    sequence=count[group],
                    step=None if steps is None else steps[number],
                    time_ns=round(us * 1000),
                    clock="device",
                )
            )
        count[group] += 1
    named = {name: Group(name, members, "nccl") for name, members in groups.items()}
    return Traffic(source, ranks, calls, named, environment=environment)


def test_waiting_is_what_others_have_more_than_the_shortest():
    """Rank 2 is last twice: (50 - 10) + (30 - 10), (20 - 5) + (25 - 5); rank 0 once: 3 + 7 us."""
    rows = [
        ("g", {0: 50, 1: 30, 2: 10}),
        ("g", {0: 20, 1: 25, 2: 5}),
        ("g", {0: 5, 1: 8, 2: 12}),
    ]
    arrivals = find_arrivals(Ledger(traffic_of(rows, hosts={"0": "a", "1": "a", "2": "b"})))
    by_rank = {row.rank: row for row in arrivals.ranks}
    assert [by_rank[r].caused_ns for r in (0, 1, 2)] == [10_000, 0, 95_000]
    assert [by_rank[r].last for r in (0, 1, 2)] == [1, 0, 2]
    assert arrivals.wait_ns == 105_000
    assert arrivals.transfer_ns == 20_000
    assert by_rank[2].caused_share == pytest.approx(95 / 105)


def test_a_coin_is_called_a_coin():
    """Of 50 calls of two ranks rank 1 is last in 26: 52 %."""
    lasts = [1] + [0, 1] * 24 + [1]
    rows = [("g", {0: 20 if last else 10, 1: 10 if last else 20}) for last in lasts]
    arrivals = find_arrivals(Ledger(traffic_of(rows)))
    assert not arrivals.late
    # 10 us in turn: a delay of half of the 20 us in a call may be among them.
    assert arrivals.answer.detectable > 0.1
    assert arrivals.answer.text.startswith(
        "Cannot tell whether a rank is late in 50 calls (only a delay of "
    )
    assert arrivals.answer.text.endswith(
        "or more of the time in collectives would have been found); most waiting: for rank 1 (52 % "
        "of all waiting, last in 26 of 50 calls, 50 % by chance). Next: record about 100 calls"
    )


def test_a_rank_that_is_always_last_is_late():
    """By 20 us in each of 10 calls, without any scatter: no correlation explains this."""
    arrivals = find_arrivals(Ledger(traffic_of([("g", {0: 30, 1: 10})] * 10)))
    (late,) = arrivals.late
    assert (late.rank, late.when, late.steps, late.p) == (1, "", 10, 0.0)
    assert arrivals.answer.headline == (
        "rank 1 is late: the other rank waits 20.0 us a call for it (100 % of all waiting, last in "
        "10 of 10 calls, 50 % by chance)"
    )
    assert (arrivals.answer.size, arrivals.answer.certainty) == (20_000, "certain")


def test_a_page_of_a_run_and_a_capture_begins_with_the_late_ranks_of_both(tmp_path):
    pytest.importorskip("plotly")
    save(run(result(4)), tmp_path / "run.jsonl")
    traffic_of([("g", {0: 30, 1: 10})] * 10, steps=[*range(10)]).save(tmp_path / "sent.jsonl")
    page = page_of([str(tmp_path / "run.jsonl"), str(tmp_path / "sent.jsonl")])
    assert any("rank 1 is late" in answer.text for answer in page.answers[:2])
    assert page.title == "all_reduce on gloo with 8 ranks and what a training sends"


def test_calls_in_which_no_single_rank_is_last_are_named():
    """Three ranks in ten steps of 3 calls: rank 1 is 20 us late in one, the rest are ties."""
    step = [{0: 30, 1: 10, 2: 30}, {0: 10, 1: 10, 2: 10}, {0: 10, 1: 10, 2: 10}]
    traffic = traffic_of([("g", times) for times in step * 10], steps=[n // 3 for n in range(30)])
    traffic.steps = {r: [(100 * n * MS, 100 * (n + 1) * MS) for n in range(10)] for r in range(3)}
    arrivals = find_arrivals(Ledger(traffic))
    assert arrivals.answer.headline == (
        "rank 1 is late: the other ranks wait 20.0 us in a step of 100 ms for it (100 % of all "
        "waiting, last in 10 of 10 calls with a single last rank, 33 % by chance)"
    )
    assert [(row.calls, row.ties) for row in arrivals.ranks] == [(10, 20)] * 3


@pytest.mark.parametrize(
    ("waits_us", "waited"),
    [
        ([20] * 9 + [2000], "20.0 us in a step of 100 ms"),  # the median, as in the table
        ([0] * 6 + [50] * 4, "20.0 us on average in a step of 100 ms"),  # the median is 0
    ],
)
def test_the_wait_in_a_step_is_the_median_as_in_the_table(waits_us, waited):
    traffic = traffic_of([("g", {0: 10 + us, 1: 10}) for us in waits_us], steps=range(10))
    traffic.steps = {r: [(100 * n * MS, 100 * (n + 1) * MS) for n in range(10)] for r in range(2)}
    headline = find_arrivals(Ledger(traffic)).answer.text
    assert f"the other rank waits {waited} for it" in headline


def alternating(late_us, runs):
    """Twenty calls of two ranks. runs: how many calls in a row one rank is 100 us later than
    the other, which is then later; rank 1 is ``late_us`` later than that in all.
    """
    signs = [(-1) ** turn for turn, length in enumerate(runs) for _ in range(length)]
    late = [late_us + 100 * sign for sign in signs]
    return find_arrivals(
        Ledger(traffic_of([("g", {0: 10 + max(0, us), 1: 10 + max(0, -us)}) for us in late]))
    )


def test_a_rank_is_named_by_its_delay_over_the_scatter_that_correlated_steps_may_have():
    """Rank 1 is 60 us later than rank 0, by 160 and -40 us. In turn this is a mean of 60 with a
    scatter of 103 us: t = 2.6 for 20 independent calls. In runs of five calls the estimated
    correlation is 0.65, which may be one of 0.97. Then 500 +- 100 us are not enough either, because
    the mean of the noise may be as far off, and 5000 +- 100 us are.
    """
    assert [row.rank for row in alternating(60, [1] * 20).late] == [1]
    for late_us, words, late in (
        (60, "Cannot tell whether", "unknown"),  # last in 10 of 20 calls
        (500, "Probably", "probably"),  # in 20 of 20
    ):
        arrivals = alternating(late_us, [5] * 4)
        assert not arrivals.late
        assert arrivals.answer.headline.startswith(f"{words} rank 1 is late: the other rank waits ")
        assert _late_text(arrivals.ranks[0]) == late  # the table agrees with the sentence
        # 20 calls count as 1.2 independent ones, and 9 are needed: 20 * 9 / 1.2 = 150.
        assert arrivals.answer.next_step == "record about 150 calls to be certain"
        assert [row.undecided for row in arrivals.ranks] == [True, False]
    assert [row.rank for row in alternating(5000, [5] * 4).late] == [1]


def test_a_block_is_the_mean_of_its_steps():
    """64 calls in 32 blocks of two equal calls are as the 32 calls of their blocks."""
    once = [("g", {0: 30 + 10 * (n % 3), 1: 20 + 10 * (n % 2)}) for n in range(32)]
    twice = [row for row in once for _ in range(2)]
    few, many = (find_arrivals(Ledger(traffic_of(rows))).ranks for rows in (once, twice))
    assert few[0].detectable_ns == pytest.approx(many[0].detectable_ns)


def test_only_other_ranks_wait_for_the_last():
    """Rank 0 is last within an error of 5 ns; its own 3 ns are no wait for itself."""
    entry = JoinedCall({}, waits_ns={0: 3, 1: 50, 2: 40}, last=0, error_ns=5)
    assert entry.caused_ns == 90
    assert dataclasses.replace(entry, last=None).caused_ns == 0


def test_one_long_wait_does_not_hide_a_rank_that_is_late_in_each_call():
    """Rank 1 is 100 or 110 us later in 63 calls, and rank 0 by 3 ms in one."""
    late = [100 + 10 * (n % 2) for n in range(63)] + [-3000]
    rows = [("g", {0: 10 + max(0, us), 1: 10 + max(0, -us)}) for us in late]
    assert [row.rank for row in find_arrivals(Ledger(traffic_of(rows))).late] == [1]


def test_the_straggler_is_named_by_time_not_by_calls():
    """Rank 1 sleeps before one call of each step; rank 0 is last by 1 us in the other two."""
    step = [{0: 2010, 1: 10}, {0: 10, 1: 11}, {0: 10, 1: 11}]
    rows = [("g", times) for _ in range(10) for times in step]
    steps = [number // 3 for number in range(30)]
    arrivals = find_arrivals(Ledger(traffic_of(rows, steps=steps)))
    assert {row.rank: row.last for row in arrivals.ranks} == {1: 10, 0: 20}
    assert [row.rank for row in arrivals.late] == [1]
    # 10 x 2000 us of 10 x 2002 us.
    assert arrivals.late[0].caused_share == pytest.approx(2000 / 2002)


def test_a_rank_that_became_late_is_late_in_the_last_third():
    """Of 8 ranks each is last in turn, then rank 3 always: 11 of 33 calls, in 32 blocks."""
    rows = []
    for number in range(33):
        last = 3 if number >= 22 else (0, 4, 1, 5, 2, 6, 3, 7)[number % 8]
        wait = 500 if number >= 22 else 30
        rows.append(("g", {rank: 10 if rank == last else 10 + wait for rank in range(8)}))
    arrivals = find_arrivals(Ledger(traffic_of(rows)))
    assert {row.rank for row in arrivals.late} == {3}
    # Each other rank waits 500 us in 11 calls, and 30 us in two: 5560 us of 33 calls.
    assert arrivals.answer.headline.startswith(
        "rank 3 is late in the last third: the other ranks wait 168 us a call for it "
    )


def issued(*times_of_ranks, clocks=("one host", "one host"), asynchronous=True, backend="gloo"):
    """A capture of ten steps of 100 ms. times_of_ranks: (issued, ended) of each call, in ms."""
    calls = {
        rank: [
            TrafficCall(
                "all_reduce",
                1024,
                1024,
                **{"group": "g", "sequence": len(times) * step + number, "step": step},
                **{"start_ns": (100 * step + start) * MS, "time_ns": (end - start) * MS},
                asynchronous=asynchronous,
            )
            for step in range(10)
            for number, (start, end) in enumerate(times)
        ]
        for rank, times in enumerate(times_of_ranks)
    }
    traffic = Traffic("capture", 2, calls, {"g": Group("g", (0, 1), backend)})
    traffic.steps = {
        rank: [(100 * n * MS, 100 * (n + 1) * MS) for n in range(10)] for rank in calls
    }
    traffic.clocks = {rank: (name, 0) for rank, name in enumerate(clocks)}
    return traffic


def test_a_rank_waits_once_in_calls_at_the_same_time():
    """Rank 0 issues four calls at once, rank 1 20 ms later: 20 ms of waiting in a step, not 80."""
    arrivals = find_arrivals(Ledger(issued([(0, 25)] * 4, [(20, 25)] * 4, asynchronous=False)))
    assert {row.rank: row.caused_ns for row in arrivals.ranks} == {1: 200 * MS, 0: 0}


def test_asynchronous_calls_are_judged_by_when_they_were_issued():
    """Rank 1 comes 4 ms later, and its program waits long for the call: its time is the longer."""
    times = [(0, 7)], [(4, 40)]
    arrivals = find_arrivals(Ledger(issued(*times)))
    assert [row.rank for row in arrivals.late] == [1]
    assert arrivals.late[0].caused_ns == 10 * 4 * MS
    # 10 ms on clocks of hosts that only these calls align, to 18.5 ms: 7 - 4 to 40 - 0.
    assert find_arrivals(Ledger(issued(*times, clocks=("a", "b")))).late == []


@pytest.mark.parametrize("last_asynchronous", [True, False])
def test_time_in_the_queue_of_a_group_is_no_waiting(last_asynchronous):
    """Two calls are in flight on both ranks until 40 ms. Of the third rank 1 is 30 ms later, at 31
    ms, when it could not start yet: nobody waited for it. At 50 ms rank 0 waits 10 ms.
    """
    for late_ms, caused_ms in ((31, 0), (50, 100)):
        times = [(0, 20), (1, 40), (1, 60)], [(0, 20), (1, 40), (late_ms, 60)]
        traffic = issued(*times, backend="nccl")
        for calls in traffic.calls.values():
            calls[2::3] = [
                dataclasses.replace(call, asynchronous=last_asynchronous) for call in calls[2::3]
            ]
        arrivals = find_arrivals(Ledger(traffic))
        assert sum(row.caused_ns for row in arrivals.late if row.rank == 1) == caused_ms * MS
        assert arrivals.wait_ns == caused_ms * MS


def test_nobody_is_named_on_clocks_that_cannot_be_aligned():
    """Step by step the second clock is set on: no offset fits all calls."""
    traffic = issued([(0, 7)], [(4, 40)], clocks=("a", "b"))
    for step, call in enumerate(traffic.calls[1]):
        traffic.calls[1][step] = dataclasses.replace(call, start_ns=call.start_ns + 50 * step * MS)
    arrivals = find_arrivals(Ledger(traffic))
    assert arrivals.answer.headline == (
        "Cannot tell whether a rank is late (the clocks of the ranks are not aligned)"
    )
    assert arrivals.unsplit == {"asynchronous, and the clocks of its ranks are not aligned": 10}


def mesh(rows_of_step, steps=12):
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    return traffic_of([row for _ in range(steps) for row in rows_of_step], groups)


def test_a_rank_that_waited_for_the_late_one_is_not_blamed():
    """Rank 1 is late in tp0; rank 0, which waited for it there, is then last in dp0."""
    arrivals = find_arrivals(
        Ledger(
            mesh(
                [
                    ("tp0", {0: 510, 1: 10}),
                    ("tp1", {2: 10, 3: 10}),
                    ("dp0", {0: 10, 2: 510}),
                    ("dp1", {1: 10, 3: 510}),
                ]
            )
        )
    )
    assert {row.rank for row in arrivals.late} == {1}
    after = {(row.group, row.rank): row.after for row in arrivals.ranks if row.late}
    assert after == {("tp0", 1): None, ("dp1", 1): None, ("dp0", 0): 1}


def test_the_wait_per_call_is_of_the_calls_of_all_groups():
    """Rank 0 is 90 us late in each call of two groups, and in both of a step."""
    groups = {"a": (0, 1), "b": (0, 2)}
    rows = [("a", {0: 10, 1: 100}), ("b", {0: 10, 2: 100})] * 12
    text = find_arrivals(Ledger(traffic_of(rows, groups))).answer.text
    assert text.startswith("rank 0 is late: the other ranks wait 90.0 us a call for it (")
    marked = traffic_of(rows, groups, steps=[number // 2 for number in range(24)])
    text = find_arrivals(Ledger(marked)).answer.text
    assert text.startswith("rank 0 is late: the other ranks wait 90.0 us a step for it (")


def late_after(rows_of_step, groups):
    rows = [row for _ in range(12) for row in rows_of_step]
    steps = [number // len(rows_of_step) for number in range(len(rows))]
    arrivals = find_arrivals(Ledger(traffic_of(rows, groups, steps=steps)))
    return {(row.group, row.rank): row.after for row in arrivals.ranks if row.late}


def test_a_short_wait_does_not_explain_a_long_delay():
    """Rank 0 waits 20 us for rank 2 in dp, and the other 480 us of its delay in tp are its own."""
    groups = {"tp": (0, 1), "dp": (0, 2)}
    own = late_after([("tp", {0: 10, 1: 510}), ("dp", {0: 30, 2: 10})], groups)
    assert own == {("tp", 0): None, ("dp", 2): None}
    # A wait of 300 us explains most of the 500.
    after = late_after([("tp", {0: 10, 1: 510}), ("dp", {0: 310, 2: 10})], groups)
    assert after == {("tp", 0): 2, ("dp", 2): None}


def test_two_late_ranks_do_not_explain_each_other():
    """Rank 0 is late for all, rank 1 for rank 0 alone: each waits for the other."""
    waits = [("w", {0: 10, 1: 510, 2: 510}), ("s", {0: 510, 1: 10})]
    assert late_after(waits, {"w": (0, 1, 2), "s": (0, 1)}) == {("w", 0): None, ("s", 1): None}


def test_a_rank_that_is_late_by_less_than_one_percent_is_not_named():
    """Rank 0 is last in each call by 90 or by 110 us of about 10 ms."""
    small = find_arrivals(Ledger(traffic_of([("g", {0: 10_000, 1: 10_090})] * 12)))
    assert (small.late, [row.small for row in small.ranks]) == ([], [True, False])
    assert small.answer.text.startswith(
        "rank 0 is late: the other rank waits 90.0 us a call for it"
    )
    assert small.answer.text.endswith(
        "less than 1 % of the time in collectives, which is nothing to act on"
    )
    assert (small.answer.level, small.answer.certainty) == ("good", "certain")
    large = find_arrivals(Ledger(traffic_of([("g", {0: 10_000, 1: 10_110})] * 12)))
    assert [row.rank for row in large.late] == [0]


def test_a_rank_that_may_have_waited_for_an_unrecorded_one_is_in_doubt():
    """Rank 1 was not recorded: rank 0 may be last in dp0 only because it waited for it in tp0."""
    whole = mesh([("tp0", {0: 510, 1: 10}), ("dp0", {0: 10, 2: 510})])
    whole.calls.pop(1)
    arrivals = find_arrivals(Ledger(whole))
    assert [row.rank for row in arrivals.late] == [0]
    assert arrivals.answer.details[-1] == "unless it waited for a rank that was not recorded"
    assert arrivals.unsplit == {"1 of the 2 ranks of its group were recorded": 12}


def test_ties_and_rooted_calls_do_not_count():
    assert (
        find_arrivals(Ledger(traffic_of([("g", {0: 30, 1: 10})] * 9, collective="broadcast")))
        is None
    )
    arrivals = find_arrivals(Ledger(traffic_of([("g", {0: 10, 1: 10})] * 9)))
    assert (arrivals.calls, arrivals.ties, arrivals.ranks) == (9, 9, [])
    assert arrivals.answer.headline == (
        "no rank is late (the ranks came to each call at the same time, as far as recorded)"
    )


def test_trace_shows_who_is_late(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    traffic_of([("g", {0: 30, 1: 10})] * 10).save(path)
    assert main(["trace", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("rank 1 is late: ")
    assert main(["trace", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    arrivals = document["arrivals"]
    assert [row["rank"] for row in arrivals["ranks"]] == [1, 0]


def test_a_mean_of_two_values():
    """Of correlation r, their mean has the variance (1 + r) / 2 and their sample variance is 1 - r
    on average. 3 and 1: mean 2, sample variance 2. r = 0.5: t = 2 / sqrt(2 * 1.5) with one degree
    of freedom, whose tail is 1 / 2 - atan(t) / pi.
    """
    assert independent_values(2, 0.5) == pytest.approx(2 / 1.5)
    assert chance_of_mean(numpy.array([3, 1]), 0.0) == pytest.approx(stats.t.sf(2.0, 1))
    assert chance_of_mean(numpy.array([3, 1]), 0.5) == pytest.approx(stats.t.sf(2 / 3**0.5, 1))
    constant = [chance_of_mean(numpy.array([each] * 2), 0.9) for each in (0.1, 0.0)]
    assert constant == [0.0, 1.0]
    # 97.5 % of t with one degree of freedom are below 12.706; and 1.2816 for 9 times in 10.
    found = detectable_mean(numpy.array([3, 1]), 0.0, 0.025)
    assert found == pytest.approx(12.706 + 1.2816, abs=1e-3)


def test_the_bound_of_a_correlation():
    """Few values allow a high correlation, more values or more series less. In runs of ten the
    estimate itself is high.
    """
    alternating = [(-1.0) ** (k // 2) for k in range(96)]  # ++--++-- has correlation 0

    def bound(values, ranks):
        mirrored = [numpy.outer((1, -1) * (ranks // 2), values)]
        return correlation_bounds(mirrored)[0]

    assert bound(alternating[:8], 2) > bound(alternating[:20], 2) > bound(alternating, 2) > 0.1
    assert bound(alternating[:20], 2) > bound(alternating[:20], 16) > 0
    assert bound([(-1.0) ** (k // 10) for k in range(40)], 2) == HIGHEST
    flat = numpy.outer((1, -1), numpy.ones(48))  # in short segments the estimate is too low
    assert correlation_bounds([flat[:, :12]] * 4)[0] > correlation_bounds([flat])[0] + 0.05
    constant = numpy.outer((0.1, -0.1), numpy.ones(20))
    assert correlation_bounds([constant]) == pytest.approx([0.54, 0.54], abs=0.2)
