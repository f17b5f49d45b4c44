"""What starting costs: calls, set-up, runs of one job, cases that are cold later."""

import dataclasses

import pytest
from error_form import error_text
from made_runs import given, measured, run
from made_starts import MS, start

import torchcoll
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.core.result import Choice
from torchcoll.parts.curves.scaling import scaling
from torchcoll.questions.startup.cold import Slowest, cold


def only(*runs):
    (row,) = cold(list(runs)).rows
    return row


def test_the_calls_of_the_first_case_are_completions():
    row = only(start([40, 46, 0.5], ranks=4))
    assert (row.first_ns, row.second_ns, row.third_ns) == (40 * MS, 46 * MS, MS // 2)
    assert (row.steady_ns, row.clock, row.status, row.fresh) == (1000, "host", "ok", True)
    assert (row.ranks, row.hosts, row.placed.job) == (4, 1, None)
    # Rank 3 takes 40 ms, the others 20.
    assert row.first == Slowest(40 * MS, 3, "vm", 20 * MS)


def test_phases_in_their_order_with_the_slowest_rank():
    phases = {
        "communicator": [5, 5, 9],
        "cost_barrier": [1, 1, 1],
        "import_torch": [30, 10, 20],
        "new_group_ccl": [4, 4, 4],
        "init_process_group": [7, 7, 7],
    }
    row = only(start([1, 1, 1], ranks=3, hosts=["a", "b", "c"], phases=phases))
    names = ["import_torch", "init_process_group", "communicator", "new_group_ccl"]
    assert list(row.phases) == names
    assert row.phases["import_torch"] == Slowest(30, 0, "a", 15)  # 10 and 20: their median is 15
    assert row.phases["communicator"] == Slowest(9, 2, "c", 4)
    # Connecting at 9 ns and the first call of 1 ms.
    assert row.first_result_ns == MS + 9


def test_the_parts_of_nccls_initialisation_are_in_its_whole():
    phases = {"nccl_init": [50, 70], "nccl_init_topo": [40, 10]}
    assert list(only(start([1, 1, 1], phases=phases)).phases) == ["nccl_init"]


def test_one_rank_has_no_slowest():
    row = only(start([3, 2, 1], ranks=1, phases={"device": [7]}))
    assert (row.first, row.phases["device"]) == (Slowest(3 * MS), Slowest(7))


def test_without_steady_calls_the_last_cold_one_stands():
    launch = start([40, 9, 2, 1])
    launch.results[0].time_ns = {}
    row = only(launch)
    assert (row.steady_ns, row.clock, row.last_ns) == (None, None, MS)


def test_sub_groups_make_their_first_calls_together():
    parts = [
        measured(steady, cold_ns=[[first, 2], [1, 1]], members=members)
        for first, steady, members in ((9000, 100, [0, 2]), (7000, 300, [1, 3]))
    ]
    for number, part in enumerate(parts):
        part.case = dataclasses.replace(part.case, group=f"mod:2/{number}")
    row = only(run(*parts, ranks=4))
    assert (row.first_ns, row.first.rank, row.steady_ns) == (9000, 0, 300)


def test_a_communicator_that_others_had_used():
    launch = run(measured(100, ordinal=None), header={"connects": "before"})
    found = cold(launch)
    assert (found.rows[0].fresh, found.rows[0].first_result_ns) == (False, None)
    assert "the communicator had been used before" in found.notes[0]


def test_each_backend_of_a_launch_has_its_own_first_call():
    ccl = measured(100, cold_ns=[[900, 5]] * 2, backend="ccl")
    both = {"spec": {"backend": "gloo,ccl"}}
    found = cold(run(measured(100), ccl, phases={"communicator": [50, 60]}, header=both))
    gloo, other = found.rows
    assert (gloo.kind["backend"], gloo.first_result_ns) == ("gloo", 360)
    # What made its communicator is not known apart.
    assert (other.first_ns, other.first_result_ns) == (900, None)


def test_the_launches_of_a_continuation_are_launches():
    first = run(measured(100))
    later = run(measured(100, size_bytes=2048, cold_ns=[[77, 7]] * 2))
    first.results += later.results
    first.continuations.append(later)
    assert [row.first_ns for row in cold(first).rows] == [300, 77]


def test_a_stream_is_not_read_on_the_clock_of_the_first_calls():
    launch = start([3, 2, 1])
    launch.results[0] = measured(0, mode="back-to-back", time_ns={"device": [[50, 60]] * 2})
    assert "steady: device clock, back-to-back mode" in " ".join(cold(launch).notes)


def test_nothing_that_tells_a_first_call(tmp_path):
    with pytest.raises(UsageError, match=error_text("first calls", "none in 1 file", "runs with")):
        cold(run(given(100)))
    found = cold([run(given(100)), start([3, 2, 1])])
    assert found.notes[0] == "1 of 2 runs tell no first call"
    save(start([3, 2, 1]), tmp_path / "a.jsonl")
    assert torchcoll.cold(tmp_path).rows[0].name == "a.jsonl"


def test_by_number_of_ranks():
    found = cold([start([8, 2, 1], 4), start([2, 2, 1], 4), start([1, 1, 1], 2)])
    two, four = found.scales
    assert (two.ranks, two.runs, two.first_ns) == (2, 1, MS)
    # The geometric mean of 2 and 8 is 4.
    assert (four.first_ns, four.low_ns, four.high_ns) == (pytest.approx(4 * MS), 2 * MS, 8 * MS)
    assert four.second_ns == 2 * MS


def test_a_wrong_first_case_is_in_no_mean():
    bad = start([1000, 1, 1])
    bad.results[0].status = "wrong"
    found = cold([bad, start([2, 1, 1])])
    assert (len(found.rows), found.scales[0].runs, found.scales[0].first_ns) == (2, 1, 2 * MS)
    assert found.notes[0].startswith("in no mean, as their first case did not end well: r1 wrong")


def test_what_was_varied_makes_kinds_and_the_rest_is_told():
    ring, tree = (
        start([2, 1, 1], variables={"NCCL_ALGO": name}, labels={"cell": name, "run": "1"})
        for name in ("Ring", "Tree")
    )
    found = cold([ring, tree])
    assert [scale.kind["NCCL_ALGO"] for scale in found.scales] == ["Ring", "Tree"]
    old, new = start([2, 1, 1]), start([2, 1, 1], environment={"kernel": "6.8"})
    found = cold([old, new])
    assert len(found.scales) == 1
    assert found.notes == ["hidden: the runs are not alike in kernel (6.1, 6.8)"]


def test_launches_of_a_job_stand_in_the_order_of_time():
    late = start([1, 1, 1], job="7", utc="2026-11-20T10:00:09+00:00")
    early = start([2, 1, 1], job="7", utc="2026-11-20T10:00:01+00:00")
    other = start([3, 1, 1], job="6", utc="2026-11-20T10:00:05+00:00")
    rows = cold([late, early, other]).rows
    assert [(row.placed.job, row.placed.place, row.placed.of) for row in rows] == [
        ("7", 1, 2),
        ("7", 2, 2),
        ("6", 1, 1),
    ]
    assert [row.first_ns for row in rows] == [2 * MS, MS, 3 * MS]


def jobs(ratios, ranks=2, first=10.0, name=""):
    """A job for each ratio of its second to its first run."""
    return [
        start([first * factor, 1, 1], ranks, job=f"{name}{job}", utc=f"2026-11-20T10:0{job}:0{k}")
        for job, ratio in enumerate(ratios)
        for k, factor in enumerate((1.0, ratio))
    ]


@pytest.mark.parametrize(
    ("ratios", "places"),
    [
        ([0.5], ["1", "2"]),
        ([1.0, 1.02, 0.98, 1.01], [""]),
        ([1.0, 1.2, 0.98, 1.01], ["1", "2"]),
        ([1.01, 1.01, 1.01], ["1", "2"]),  # equal in all jobs: no noise
    ],
)
def test_the_second_launch_of_the_same_job(ratios, places):
    *first, scale = cold(jobs(ratios)).scales
    assert scale.again == pytest.approx(ratios, rel=1e-6)
    assert [one.in_job for one in (*first, scale)] == places
    assert all(one.again == () for one in first)
    assert cold([start([2, 1, 1]), start([1, 1, 1])]).scales[0].again == ()  # no job


def test_later_launches_of_a_job_are_not_told_apart():
    runs = [start([9 - k, 1, 1], job="5", utc=f"0{k}") for k in range(5)]
    found = cold([*runs, start([20, 1, 1], utc="09")])
    assert [(one.in_job, one.runs, one.low_ns) for one in found.scales] == [
        ("-", 1, 20 * MS),
        ("1", 1, 9 * MS),
        ("2", 1, 8 * MS),
        ("3 to 5", 3, 5 * MS),
    ]


@pytest.mark.parametrize(
    ("later", "places"),
    [
        ((), [("", 8)]),  # second runs are shown to be as fast as first ones
        ((0.3,), [("1", 4), ("2", 4), ("3", 4)]),
    ],
)
def test_a_third_launch_that_differs_is_not_averaged_with_the_first_two(later, places):
    runs = [
        start([100 * factor * noise**place, 1, 1], job=str(job), utc=f"{job}{place}")
        for job, noise in enumerate((0.98, 1.02, 0.99, 1.01))
        for place, factor in enumerate((1.0, 1.0, *later))
    ]
    found = cold(runs)
    assert [(one.in_job, one.runs) for one in found.scales] == places
    # Logarithms of the first two: half of them 0, the others' sum that of the noise, 0.
    assert found.scales[0].first_ns == pytest.approx(100 * MS, rel=0.001)
    assert len(found.scales[bool(later)].again) == 4


def test_only_launches_that_are_alike_are_a_pair():
    other = start([5, 1, 1], 4, job="0", utc="2026-11-20T09:00:00")
    found = cold([other, *jobs([1.0])])
    first, second, four = found.scales
    assert four.again == first.again == () and second.again
    assert (first.in_job, second.in_job, four.in_job) == ("1", "2", "")


def later(first, size_bytes=4096, steady=1000, label="", **changed):
    """A case that is not the run's first."""
    cold_ns = [[first, steady, steady]] * 2
    choices = [Choice(*label.split("/"))] if label else []
    changed = {"ordinal": 30, "choices": choices, **changed}
    return measured(steady, size_bytes=size_bytes, cold_ns=cold_ns, **changed)


def test_a_late_connect_is_told_from_a_settled_case():
    runs = [start([9, 1, 1], 2, 1000, later(50_000), later(2000, 8192)) for _ in range(2)]
    (late,) = cold(runs).late
    assert (late.size_bytes, late.ordinal, late.cold, late.runs) == (4096, 30, 2, 2)
    assert (late.first_ns, late.steady_ns, late.why) == (
        pytest.approx(50_000),
        pytest.approx(1000),
        "",
    )
    assert late.extra_ns == pytest.approx(49_000)
    # One call alone has nothing to be slow against.
    single = measured(1000, size_bytes=4096, ordinal=30, cold_ns=[[50_000]] * 2, time_ns={})
    assert cold(start([9, 1, 1], 2, 1000, single)).late == []


def test_what_happens_in_half_of_the_launches_is_a_hiccup():
    runs = [start([9, 1, 1], 2, 1000, later(ns)) for ns in (50_000, 2000)]
    assert cold(runs).late == []


def test_a_slow_device_clock_is_no_late_connect():
    """The steady calls back to back are faster than any call by itself."""
    launch = start([9, 1, 1], 2, 1000, later(50_000, steady=40_000))
    launch.results[1].time_ns = {"device": [[1000] * 3] * 2}
    assert cold(launch).late == []


def test_the_first_use_of_an_algorithm_is_named():
    launch = start([9, 1, 1], 2, 1000)
    launch.results[0].choices = [Choice("RING", "LL")]
    launch.results += [
        later(1500, 4096, label="RING/LL"),
        later(90_000, 8192, label="TREE/SIMPLE"),
        later(1200, 16384, label="TREE/SIMPLE"),
        later(1200, 32768, label="RING/SIMPLE"),
    ]
    tree, ring = cold(launch).late
    assert (tree.size_bytes, tree.why, tree.algorithm, tree.cold) == (
        8192,
        "first of TREE/SIMPLE",
        "TREE/SIMPLE",
        1,
    )
    assert (ring.size_bytes, ring.why, ring.cold) == (32768, "first of RING/SIMPLE", 0)


def test_communicators_of_their_own():
    own = later(90_000, ordinal=0, communicator="split")
    (late,) = cold(start([9, 1, 1], 2, 1000, own)).late
    assert (late.why, late.ordinal) == ("a communicator of its own (split)", 0)


def test_one_rank_connects_to_nobody():
    alone = measured(1000, 1, size_bytes=4096, cold_ns=[[50_000, 1000]], ordinal=30)
    assert cold(start([9, 1, 1], 1, 1000, alone)).late == []


def test_durations_of_a_broken_clock_are_no_durations():
    broken = start([3, 2, 1], 2, 1000, later(-5), later(0, 8192), phases={"communicator": [-9, 0]})
    broken.results[0].cold_ns = [[-3 * MS, 0, MS]] * 2
    broken.results[0].time_ns = {"host": [[-1000] * 3] * 2}
    row, other = cold([broken, start([3, 2, 1])]).rows
    assert (row.calls_ns, row.steady_ns, row.first_result_ns) == ((None, None, MS), None, None)
    scaling([broken, start([3, 2, 1])])
    assert other.first_ns == 3 * MS
