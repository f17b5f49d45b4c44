import dataclasses

import numpy
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core import summary
from torchcoll.core.case import Case
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import CaseResult, Choice, Reported, Run, Verification

TIMES = st.lists(st.integers(1, 10**12), min_size=1, max_size=60)
CASE = Case("all_reduce", 1000, "float32", "sum", None, True, "synchronized", "gloo", "cpu")


@given(TIMES, st.floats(0, 1))
def test_quantile_is_numpys(values, q):
    assert summary.quantile(sorted(values), q) == pytest.approx(numpy.quantile(values, q), rel=1e-9)


@pytest.mark.parametrize("degrees", [*range(1, 61), 100, 1000, 10**6])
def test_t_table_is_scipys(degrees):
    assert summary.t_975(degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=6e-5)


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=50))
def test_paired_ratio_is_scipys_interval_of_logarithms(ratios):
    logs = numpy.log(ratios)
    if logs.std() < 1e-9:  # all alike: scipy has no interval of no width
        return
    found = scipy.stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    expected = [numpy.exp(logs.mean()), *numpy.exp(found)]
    assert summary.geometric_interval(ratios) == pytest.approx(expected, rel=1e-3)


@given(st.lists(st.floats(1, 1e9), min_size=2, max_size=50))
def test_relative_half_width_is_scipys_interval(values):
    mean, error = numpy.mean(values), scipy.stats.sem(values)
    if error < 1e-9 * mean:  # all alike: scipy has no interval of no width
        return
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=mean, scale=error)
    expected = (high - low) / 2 / numpy.median(values)
    assert summary.relative_half_width(values) == pytest.approx(expected, rel=1e-4)


SAMPLES = [[10, 20, 31], [12, 18, 30], [11, 25, 30]]


@pytest.mark.parametrize(
    ("how", "durations"),
    [
        ("max", [12, 25, 31]),
        ("min", [10, 18, 30]),
        ("mean", [11, 21, 91 / 3]),
        ("rank0", [10, 20, 31]),
    ],
)
def test_over_ranks(how, durations):
    assert summary.over_ranks(SAMPLES, how) == durations


def test_over_ranks_keeps_whole_calls_only():
    assert summary.over_ranks([[1, 2, 3], [4, 5]]) == [4, 5]
    assert summary.over_ranks([[1, 2, 3], []]) == []
    assert summary.over_ranks([]) == []
    assert summary.over_ranks([[3, 4]], "mean") == [3, 4]


def result(**fields):
    values = {"case": CASE, "status": "ok", "ranks": 2, "count": 250, "size_bytes": 1000}
    return CaseResult(**{**values, "bytes_in": 1000, "bytes_out": 1000, **fields})


STREAM = dataclasses.replace(CASE, mode="back-to-back")
# Two batches of 3 and 2 calls. Rank 0 stalls in the first (90), rank 1 hears of it one call later;
# rank 1 is slower in the second. Times of the batches: 110 and 120, 50 and 70.
INTERVALS = [[10, 90, 10, 25, 25], [10, 10, 100, 30, 40]]


def test_the_figure_of_a_stream_is_its_period():
    """(120 + 70) / 5 = 38 on the slowest rank of each batch. The maxima over ranks, 10 90 100 30
    40, count the stall twice: their mean is 54, their median 40.
    """
    measured = result(case=STREAM, time_ns={"host": INTERVALS}, batches=[3, 2])
    row = summary.summarise(measured)
    assert (row.statistic, row.median_ns, row.calls) == ("period", 38, 5)
    assert row.algbw_gbps == pytest.approx(1000 / 38)
    # The spread is of the intervals on those ranks: 10, 10, 30, 40, 100, at places 0.2 and 3.8.
    assert (row.low_ns, row.high_ns) == (10, pytest.approx(40 + 0.8 * 60))
    # Fastest: 110 and 50; mean of the ranks: 115 and 60; rank 0 again 110 and 50.
    readings = {how: summary.summarise(measured, how).median_ns for how in ("min", "mean", "rank0")}
    assert readings == {"min": 32, "mean": 35, "rank0": 32}
    isolated = result(time_ns={"host": INTERVALS}, batches=[3, 2])
    assert (summary.summarise(isolated).statistic, summary.summarise(isolated).median_ns) == (
        "median",
        40,
    )


@pytest.mark.parametrize("batches", [[], [5], [4, 4]])
def test_a_stream_whose_batches_are_not_told_is_one_batch(batches):
    """Rank 0: 160 of 5 calls, rank 1: 190."""
    measured = result(case=STREAM, time_ns={"host": INTERVALS}, batches=batches)
    assert summary.summarise(measured).median_ns == 38
    lost = [INTERVALS[0], INTERVALS[1][:2]]  # a rank that was lost: whole calls are kept
    assert (
        summary.summarise(result(case=STREAM, time_ns={"host": lost}, batches=[5])).median_ns == 50
    )


@pytest.mark.parametrize(
    ("issue", "bound"),
    [
        ([8, 8, 8, 8], (8, 10)),
        ([7.5, 7.5, 9, 9], (7.5, 10)),
        ([7, 7, 7, 7], None),
        ([2, 2, 10, 10], None),  # a full queue held the host back later on
        ([13, 13, 13, 13], (13, 10)),
        ([14, 14, 14, 14], None),  # the calls had queued up before the device took them
        ([], None),
    ],
)
def test_host_bound(issue, bound):
    clocks = {"device": [[10, 12, 8, 10]], "issue": [issue] if issue else []}
    assert summary.host_bound(result(case=STREAM, time_ns=clocks, batches=[4])) == bound
    isolated = {"host": [[10] * 4], "issue": [[10] * 4]}
    assert summary.host_bound(result(time_ns=isolated, batches=[4])) is None


@pytest.mark.parametrize(("slowest", "bound"), [(10, None), (45, (45, 50))])
def test_host_bound_is_read_rank_by_rank(slowest, bound):
    """64 ranks issue in 10, one call in 32 (3 %) in 100: some rank in each. One may be slow."""
    issue = [[100 if (call + rank) % 32 == 0 else 10 for call in range(96)] for rank in range(63)]
    assert {max(call) for call in zip(*issue, strict=True)} == {100}
    clocks = {"device": [[50] * 96] * 64, "issue": [*issue, [slowest] * 96]}
    assert summary.host_bound(result(case=STREAM, ranks=64, time_ns=clocks, batches=[96])) == bound


def test_row_by_hand():
    measured = result(
        cold_ns=[[5000, 900, 100], [6000, 800, 200]],
        warmup_ns=[[9, 9], [9, 9]],
        time_ns={"host": [[100, 210, 300], [110, 190, 320]]},
        stop="time",
        steady_ns=1234,
        choices=[Choice("RING", "LL", 2)],
        verification=Verification(checked=500, wrong=0),
    )
    # Completions 110, 210, 320: median 210; 5 % at place 0.1, 95 % at place 1.9. 1000 B in 210 ns;
    # the bus factor of all_reduce on two ranks is 1.
    assert summary.summarise(measured, library="gloo 1") == summary.Row(
        collective="all_reduce",
        backend="gloo",
        library="gloo 1",
        device="cpu",
        ranks=2,
        dtype="float32",
        op="sum",
        root=None,
        in_place=True,
        group=None,
        buffers="default",
        buffer_reuse="same",
        misalign_bytes=0,
        implementation="own",
        asynchronous=False,
        coalesce=1,
        rehearsal=False,
        splits=None,
        communicator="shared",
        mode="synchronized",
        clock="host",
        size_bytes_requested=1000,
        size_bytes=1000,
        count=250,
        bytes_in=1000,
        bytes_out=1000,
        first_call_ns=6000,
        second_call_ns=900,
        statistic="median",
        median_ns=210,
        low_ns=pytest.approx(120),
        high_ns=pytest.approx(309),
        p99_ns=None,
        calls=3,
        stop="time",
        steady_ns=1234,
        algorithm="RING/LL",
        channels=2,
        algbw_gbps=pytest.approx(1000 / 210),
        busbw_gbps=pytest.approx(1000 / 210),
        verified="correct",
        status="ok",
        reason="",
    )
    by_min = summary.summarise(measured, how="min")
    assert (by_min.median_ns, by_min.first_call_ns, by_min.second_call_ns) == (190, 5000, 800)
    assert by_min.library is None


def test_calls_of_one_case_may_be_served_by_several_algorithms():
    both = [Choice("RING", "LL", 2), Choice("RING", "LL", 4), Choice("NVLS")]
    row = summary.summarise(result(choices=both))
    assert (row.algorithm, row.channels) == ("RING/LL, NVLS", None)
    row = summary.summarise(result())
    assert (row.algorithm, row.channels) == (None, None)


@pytest.mark.parametrize(("calls", "p99"), [(99, None), (100, pytest.approx(99.01))])
def test_p99_from_100_calls(calls, p99):
    row = summary.summarise(result(time_ns={"host": [list(range(1, calls + 1))]}))
    assert row.p99_ns == p99
    assert row.calls == calls


def test_no_samples():
    row = summary.summarise(result(status="skipped", reason="too large"))
    assert (row.clock, row.median_ns, row.low_ns, row.high_ns, row.p99_ns) == (None,) * 5
    assert (row.first_call_ns, row.second_call_ns) == (None, None)
    assert (row.algbw_gbps, row.busbw_gbps, row.calls) == (None, None, 0)
    assert (row.status, row.reason, row.verified) == ("skipped", "too large", "unchecked")
    assert not row.slow_first


def test_cold_calls_alone():
    row = summary.summarise(result(cold_ns=[[500], [600]]))
    assert (row.first_call_ns, row.second_call_ns, row.median_ns) == (600, None, None)
    assert not row.slow_first


def test_one_rank_has_times_and_no_bandwidth():
    row = summary.summarise(result(ranks=1, time_ns={"host": [[100, 200, 300]]}))
    assert (row.median_ns, row.algbw_gbps, row.busbw_gbps) == (200, None, None)


def test_fake_has_times_and_no_bandwidth():
    """Nothing was communicated, whatever the number of ranks."""
    case = dataclasses.replace(CASE, backend="fake")
    row = summary.summarise(result(case=case, ranks=8, time_ns={"host": [[100, 200, 300]]}))
    assert (row.median_ns, row.algbw_gbps, row.busbw_gbps) == (200, None, None)


def test_busbw_of_all_to_all_v_is_the_busiest_ranks():
    """1000 B in 200 ns, of which 790 B cross: nccl-tests' (n - 1) / n would be 2.5 GB/s."""
    case = dataclasses.replace(CASE, collective="all_to_all_v", op=None, splits="1,3")
    timed = {"case": case, "time_ns": {"host": [[200], [100]]}}
    row = summary.summarise(result(busiest_bytes=790, **timed))
    assert (row.algbw_gbps, row.busbw_gbps) == (5.0, 3.95)
    twice = dataclasses.replace(case, coalesce=2)
    row = summary.summarise(result(busiest_bytes=790, **timed | {"case": twice}))
    assert (row.algbw_gbps, row.busbw_gbps) == (10.0, 7.9)
    # A file that does not tell, and a source that does.
    row = summary.summarise(result(**timed))
    assert (row.algbw_gbps, row.busbw_gbps) == (5.0, None)
    reported = Reported(200.0, clock="host", algbw_gbps=5.0, busbw_gbps=2.5)
    row = summary.summarise(result(case=case, reported=reported))
    assert (row.algbw_gbps, row.busbw_gbps) == (5.0, 2.5)


def test_barrier_has_no_bandwidth():
    barrier = Case("barrier", 0, None, None, None, False, "synchronized", "gloo", "cpu")
    row = summary.summarise(
        result(case=barrier, size_bytes=0, count=0, time_ns={"host": [[5], [6]]})
    )
    assert (row.median_ns, row.algbw_gbps, row.dtype, row.size_bytes) == (6, None, None, 0)


@pytest.mark.parametrize(
    ("first", "slow"), [(299, False), (300, False), (301, True), (100000, True)]
)
def test_slow_first_is_over_three_medians(first, slow):
    row = summary.summarise(result(cold_ns=[[first]], time_ns={"host": [[90, 100, 110]]}))
    assert row.slow_first is slow


@pytest.mark.parametrize(
    ("clocks", "chosen"),
    [
        (["issue", "host", "device"], "device"),
        (["issue", "host"], "host"),
        (["issue"], "issue"),
        ([], None),
    ],
)
def test_default_clock(clocks, chosen):
    assert summary.default_clock(result(time_ns={clock: [[1]] for clock in clocks})) == chosen


@pytest.mark.parametrize(
    ("verification", "word"),
    [
        (None, "unchecked"),
        (Verification(checked=10, wrong=0), "correct"),
        (Verification(checked=10, wrong=1, wrong_ranks=(1,)), "wrong"),
        (Verification(checked=0, wrong=0), "unchecked"),  # barrier: nothing was looked at
    ],
)
def test_verified(verification, word):
    assert summary.verified(result(verification=verification)) == word


def test_rows_of_a_run_name_the_library():
    other = dataclasses.replace(CASE, backend="ccl")
    run = Run(
        header={"environment": {"libraries": {"gloo": "gloo of torch 2.13.0"}}},
        results=[result(time_ns={"host": [[100], [300]]}), result(case=other)],
    )
    rows = summarise_run(run, how="min")
    assert [row.library for row in rows] == ["gloo of torch 2.13.0", None]
    assert [row.median_ns for row in rows] == [100, None]
    assert summarise_run(Run()) == []


def test_rows_of_a_continuation_have_the_library_of_their_launch():
    def launch(library, size_bytes):
        done = result(
            case=dataclasses.replace(CASE, size_bytes=size_bytes), time_ns={"host": [[1], [2]]}
        )
        return Run(header={"environment": {"libraries": {"gloo": library}}}, results=[done])

    run, further = launch("gloo 1", 8), launch("gloo 2", 16)
    run.results += further.results
    run.continuations = [further]
    assert [row.library for row in summarise_run(run)] == ["gloo 1", "gloo 2"]


def imported(collective="all_reduce", ranks=8, size_bytes=1000, **reported):
    case = dataclasses.replace(CASE, collective=collective, in_place=None)
    fields = {"time_ns": 500.0, "statistic": "mean", "over_ranks": "max", "clock": "host"}
    return CaseResult(
        case, "ok", ranks, size_bytes=size_bytes, reported=Reported(**{**fields, **reported})
    )


def test_one_cold_call_is_no_mean_and_has_no_bandwidth():
    row = summary.summarise(imported(calls=1, first_call_ns=7000.0))
    assert (row.statistic, row.median_ns, row.first_call_ns) == ("one cold call", 500.0, 7000.0)
    assert (row.algbw_gbps, row.busbw_gbps) == (None, None)


def test_a_given_mean_is_no_median():
    row = summary.summarise(imported(calls=20, p99_ns=900.0, first_call_ns=7000.0))
    assert (row.statistic, row.median_ns, row.clock, row.calls) == ("mean", 500.0, "host", 20)
    assert (row.first_call_ns, row.p99_ns, row.low_ns) == (7000.0, 900.0, None)
    # 1000 B in 500 ns, and 2 x 7 / 8 of it.
    assert (row.algbw_gbps, row.busbw_gbps) == (2.0, 3.5)
    assert (row.verified, row.in_place) == ("unchecked", None)


@pytest.mark.parametrize(
    ("collective", "expected"),
    [("all_reduce", (2.0, None)), ("broadcast", (2.0, 2.0)), ("hypercube", (None, None))],
)
def test_bandwidth_of_unknown_ranks_is_what_needs_no_ranks(collective, expected):
    row = summary.summarise(imported(collective, ranks=0))
    assert (row.algbw_gbps, row.busbw_gbps) == expected


def test_what_was_given_stands_where_nothing_can_be_derived():
    row = summary.summarise(imported(ranks=0, busbw_gbps=3.4))
    assert (row.algbw_gbps, row.busbw_gbps) == (2.0, 3.4)
    row = summary.summarise(imported(clock="issue", algbw_gbps=1.5, busbw_gbps=2.6))
    assert (row.median_ns, row.algbw_gbps, row.busbw_gbps) == (500.0, 1.5, 2.6)


def test_samples_come_before_what_is_given_beside_them():
    both = imported()
    both.time_ns = {"device": [[100, 200, 300]]}
    assert (summary.summarise(both).statistic, summary.summarise(both).median_ns) == ("median", 200)
    assert (
        summary.summarise(both, clock="host").statistic,
        summary.summarise(both, clock="host").calls,
    ) == ("mean", 0)


def test_the_library_of_symmetric_memory_is_torch():
    environment = {"torch": "2.13.0", "libraries": {"gloo": "gloo 1"}}
    assert summary.library_of(CASE, environment) == "gloo 1"
    other = dataclasses.replace(CASE, implementation="two_shot")
    assert summary.library_of(other, environment) == "symmetric memory of torch 2.13.0"
    assert summary.library_of(other, {}) == "symmetric memory of torch"
