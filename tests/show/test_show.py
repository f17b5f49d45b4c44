"""The text of tables, exactly."""

from __future__ import annotations

import io
import sys

import pytest
from error_form import error_tail, error_text
from handmade import Terminal, case, not_run, result, run

from torchcoll.core.errors import UsageError
from torchcoll.core.result import Choice, Run, Verification
from torchcoll.questions.show.show import show

pytestmark = pytest.mark.usefixtures("fixed_columns")

HEADER = """\
torchcoll 0.1.0: all_reduce, float32, sum, in place
backend: gloo of torch 2.13.0; 8 ranks on vm, cpu
clock: host; mode: synchronized (a barrier before every call, outside the stamps)
time = max over ranks, the slowest rank
a case ends when its median is known within 5 %, or after 1 s; verification on; \
the same buffers in every call
first call 5.00 ms, steady after 2 calls
low, high = p5, p95 within this run
"""
NONE = (
    "NO REFERENCE for gloo on cpu within one host\n"
    "Next: torchcoll check FILE --baseline EARLIER-RUN"
)
# 64M in 1 ms, times 2 x 7/8.
ALL_REDUCE = "all_reduce on 8 gloo ranks takes 1.00 ms and reaches 117 GB/s of busbw at 64M"


def answer(*clauses: str) -> str:
    """What was measured, and that it has no reference."""
    return "; ".join([*clauses, NONE]) + "\n"


def body(text: str) -> str:
    """What follows the header lines; on a terminal the answer stands above these."""
    return text[text.index("torchcoll 0.1.0:") :].split("\n\n", 1)[1]


def test_what_authors_ask_for_is_in_the_header_of_verbose(shown):
    text = shown(run(result()), verbose=True)
    lines = text.splitlines()
    assert lines[5:8] == [
        "start up: import torch 1.20 s, rendezvous 2.00 ms, init 24.0 ms, connects in the first "
        "call",
        "first call 5.00 ms, steady after 2 calls",
        "cost of measuring, a call: timed loop 80 ns, barrier 35.0 us",
    ]
    assert "\n".join([*lines[:5], lines[6], *lines[8:], ""]) == shown(run(result()))


def test_one_case_on_8_ranks(shown):
    # 67108864 B / 1 ms = 67.108864 GB/s; x 2 x 7 / 8 = 117.440512.
    assert shown(run(result())) == HEADER + (
        "\n"
        "size      first    median       low      high  calls   algbw    busbw  verified\n"
        "          call                   p5       p95           GB/s     GB/s\n"
        " 64M  5.000 ms*  1.000 ms  910.0 us  1.090 ms     21  67.109  117.441  correct\n"
        "\n"
        "* first call over 3 times the median\n"
        + answer(ALL_REDUCE, "1 of 1 case correct", "time to first result 5.00 ms")
    )


def test_a_stream_shows_its_period_and_names_its_spread(shown):
    """Two batches, of 30 and 10 ms on the slowest rank, over 20 + 5 calls: 1.6 ms."""
    fast, slow = [1_000_000] * 20 + [2_000_000] * 5, [1_500_000] * 20 + [1_000_000] * 5
    asked = case(mode="back-to-back")
    text = shown(run(result(2, case=asked, time_ns={"host": [fast, slow]}, batches=[20, 5])))
    assert "\nperiod = time of the batches on the slowest rank / calls\n" in text
    assert (
        "\nlow, high = p5, p95 of the intervals between calls, within this run; "
        "the period, their mean, may lie outside\n"
    ) in text
    assert "\n* first call over 3 times the period\n" in text
    assert body(text).splitlines()[:3] == [
        "size      first    period       low      high  calls   algbw   busbw  verified",
        "          call                   p5       p95           GB/s    GB/s",
        " 64M  5.000 ms*  1.600 ms  1.500 ms  2.000 ms     25  41.943  41.943  correct",
    ]
    # Beside calls after a barrier both are named.
    both = shown(run(result(2), result(2, case=asked), ranks=2))
    assert "\n* first call over 3 times the median or period\n" in both
    assert (
        "time = max over ranks, the slowest rank; period = time of the batches on the slowest"
        in both
    )
    assert " statistic " in body(both).splitlines()[0] and "  time " in body(both).splitlines()[0]


def test_two_modes_are_told_beside_the_median(shown):
    """35 % of the calls take 2 to 4 ms."""
    times = (
        [500_000] * 13 + [2_000_000, 3_000_000, 4_000_000, 4_000_000, 4_000_000] + [4_000_000] * 2
    )
    text = shown(run(result(2, time_ns={"host": [times] * 2}), ranks=2))
    assert "\n[1] bimodal: 35 % of the calls take 2.3 to 4.0 ms, the others 500 to 500 us\n" in text
    assert " correct [1]\n" in text
    # A period is a mean, which both modes enter.
    stream = result(2, case=case(mode="back-to-back"), time_ns={"host": [times] * 2}, batches=[20])
    assert "bimodal" not in shown(run(stream, ranks=2))


def test_rows_with_two_modes_share_one_line(shown):
    """35 % of 20 calls and 25 % of them: 0.5 and 2.5 to 3 ms, 0.6 and 4 ms."""
    first = [500_000] * 13 + [2_500_000] * 4 + [3_000_000] * 3
    second = [600_000] * 15 + [4_000_000] * 5
    results = [
        result(2, case=case(size_bytes=size), time_ns={"host": [times] * 2})
        for size, times in ((64, first), (128, [500_000] * 20), (256, second))
    ]
    text = shown(run(*results, ranks=2), verbose=True)
    line = "bimodal in 2 rows: 25 to 35 % of the calls of each form a slower cluster"
    assert f"\n[1] {line}\n" in text
    assert text.count("[1] bimodal") == 1
    assert [" correct [1]" in row for row in body(text).splitlines()[2:5]] == [True, False, True]


def test_host_bound_is_told(shown):
    clocks = {"device": [[10_000] * 20], "issue": [[8_000] * 20]}
    asked = case(mode="back-to-back", device="cuda", backend="nccl")
    bound = "host-bound: the host takes 8.00 us to issue a call of 10.0 us"
    text = shown(run(result(1, case=asked, time_ns=clocks, batches=[20]), ranks=1))
    assert f"\n[1] {bound}; --mode graph costs the host less\n" in text
    asked = case(mode="back-to-back", device="xpu", backend="xccl")  # captures no graphs
    text = shown(run(result(1, case=asked, time_ns=clocks, batches=[20]), ranks=1))
    assert f"\n[1] {bound}\n" in text


def test_columns_line_up_from_nanoseconds_to_minutes_and_from_bytes_to_terabytes(shown):
    def timed(size_bytes, cold, time, ranks=2):
        asked = case(size_bytes=size_bytes)
        return result(ranks, (cold,), case=asked, time_ns={"host": [[time] * 100] * 2})

    text = shown(
        run(
            timed(1, 900, 812),
            timed(1_000_000, 12_345, 15_520),
            timed(1536 << 20, 999_960, 999_949),
            timed(2 << 40, 3_700_000_000_000, 1_203_000_000),
            ranks=2,
        )
    )
    assert body(text) == (
        "   size      first    median       low      high       p99  calls     algbw     busbw"
        "  verified\n"
        "             call                   p5       p95                       GB/s      GB/s\n"
        "      1    900 ns     812 ns    812 ns    812 ns    812 ns    100     0.001     0.001"
        "  correct\n"
        "1000000  12.35 us   15.52 us  15.52 us  15.52 us  15.52 us    100    64.433    64.433"
        "  correct\n"
        "   1.5G  1.000 ms   999.9 us  999.9 us  999.9 us  999.9 us    100  1610.695  1610.695"
        "  correct\n"
        "     2T   3700 s *  1.203 s   1.203 s   1.203 s   1.203 s     100  1827.950  1827.950"
        "  correct\n"
        "\n"
        "* first call over 3 times the median\n"
        + answer(
            # 2T, 2199023255552 B, in 1.203 s on 2 ranks.
            "all_reduce on 2 gloo ranks takes 812 ns at 1 B and reaches 1830 GB/s of busbw at 2T",
            "4 of 4 cases correct",
            "time to first result 900 ns",
        )
    )


def test_what_varies_becomes_a_column_at_the_left(shown):
    gather = case(collective="all_gather", op=None, in_place=False, size_bytes=8)
    rows = body(
        shown(
            run(
                result(cold=(1_000_000,), case=case(size_bytes=32)),
                result(cold=(1_000_000,), case=gather, size_bytes=32),
            )
        )
    )
    assert rows == (
        "collective  in      size  size      first    median       low      high  calls   algbw"
        "   busbw  verified\n"
        "            place  asked            call                   p5       p95           GB/s"
        "    GB/s\n"
        "all_reduce  yes       32    32  1.000 ms   1.000 ms  910.0 us  1.090 ms     21  <0.001"
        "  <0.001  correct\n"
        "all_gather  no         8    32  1.000 ms   1.000 ms  910.0 us  1.090 ms     21  <0.001"
        "  <0.001  correct\n"
        "\n"
        + answer(
            "2 cases of all_reduce, all_gather on 8 gloo ranks take 1.00 ms",
            "2 of 2 cases correct",
            "time to first result 1.00 ms",
        )
    )


def test_status_reason_warnings_and_problems_are_footnotes(shown):
    wrong = Verification(checked=64, wrong=3, wrong_ranks=(0, 1, 5))
    shaky = Verification(checked=64, wrong=0, tolerance_ulp=8)
    text = shown(
        run(
            not_run("unsupported", "gloo has no avg\nfor bfloat16"),
            not_run("oom", size_bytes=8),
            result(cold=(1_000_000,), status="wrong", verification=wrong),
            result(cold=(1_000_000,), verification=shaky, warnings=["the clock stepped"]),
            result(cold=(1_000_000,), verification=None),
            events=[{"kind": "warning", "message": "turbo is on"}],
            end=None,
            problems=["truncated: the file has no end record"],
        )
    )
    assert body(text) == (
        "size      first    median       low      high  calls   algbw    busbw  verified\n"
        "          call                   p5       p95           GB/s     GB/s\n"
        "   8         -          -         -         -      0       -        -  oom\n"
        " 64M         -          -         -         -      0       -        -  unsupported [1]\n"
        " 64M  1.000 ms   1.000 ms  910.0 us  1.090 ms     21  67.109  117.441"
        "  wrong (3 of 64) [2]\n"
        " 64M  1.000 ms   1.000 ms  910.0 us  1.090 ms     21  67.109  117.441  correct [3][4]\n"
        " 64M  1.000 ms   1.000 ms  910.0 us  1.090 ms     21  67.109  117.441  unchecked\n"
        "\n"
        "[1] gloo has no avg for bfloat16\n"
        "[2] wrong on ranks 0-1,5\n"
        "[3] values within 8 ulp count as correct\n"
        "warning: turbo is on\n"
        "1 more note: --verbose\n"
        "FAIL truncated: the file has no end record; 1 of 5 cases wrong: all_reduce 64M "
        "(3 of 64 elements); 1 of 5 cases failed: all_reduce 8; time to first result 1.00 ms\n"
        "Next: use neither these results nor this setting: torchcoll doctor names known faults\n"
    )


def test_one_rank_has_times_and_no_bandwidth(shown):
    text = shown(run(result(1, (1_000_000,)), ranks=1))
    assert "backend: gloo of torch 2.13.0; 1 rank (no communication) on vm, cpu\n" in text
    assert body(text).splitlines()[2:] == [
        " 64M  1.000 ms   1.000 ms  910.0 us  1.090 ms     21      -      -  correct",
        "",
        "all_reduce on 1 gloo rank takes 1.00 ms; 1 of 1 case correct; "
        "time to first result 1.00 ms; "
        "NO REFERENCE applies: one rank, no communication: times, but no bandwidth",
    ]


def test_fake_backend_says_that_nothing_was_communicated(shown):
    text = shown(run(result(cold=(1_000_000,), case=case(backend="fake"))))
    assert "backend: fake (nothing is communicated); 8 ranks on vm, cpu\n" in text
    assert text.endswith(
        "\n\nall_reduce on 8 fake ranks takes 1.00 ms; 1 of 1 case correct; time to first result "
        "1.00 ms; NO REFERENCE applies: fake backend, nothing was communicated: times, but no "
        "bandwidth\n"
    )
    assert body(text).splitlines()[2].split()[-3:] == ["-", "-", "correct"]


def test_a_barrier_has_no_size_and_no_bandwidth(shown):
    barrier = case(collective="barrier", size_bytes=0, dtype=None, op=None, in_place=False)
    text = shown(run(result(cold=(1_000_000,), case=barrier, verification=None)))
    assert body(text) == (
        "    first    median       low      high  calls  verified\n"
        "    call                   p5       p95\n"
        "1.000 ms   1.000 ms  910.0 us  1.090 ms     21  unchecked\n"
        "\n" + answer("barrier on 8 gloo ranks takes 1.00 ms", "time to first result 1.00 ms")
    )


def test_interrupted_says_why_once(shown):
    ended = {"status": "interrupted", "reason": "SIGTERM", "exit_code": 143}
    text = shown(run(result(), end=ended, problems=["interrupted by SIGTERM"]))
    assert text.count("interrupted by SIGTERM") == 1
    signal = [{"kind": "signal", "message": "SIGTERM"}]
    text = shown(run(result(), end=ended, events=signal))
    assert text.count("interrupted by SIGTERM") == 1
    assert "--resume" not in text  # there is no file


def test_the_end_of_a_file_that_is_not_complete_says_how_to_go_on(shown, tmp_path):
    lost = "lost rank 1 (vm) in all_reduce 8 float32 sum on gloo: first call"
    ended = {"status": "failed", "reason": lost, "exit_code": 5}
    events = [{"kind": "lost_rank", "message": lost}, {"kind": "rehearsal", "message": "one GPU"}]
    launch = run(result(cold=(1_000_000,)), end=ended, events=events)
    launch.path = tmp_path / "a run.jsonl"
    assert body(shown(launch)).splitlines()[4:] == [
        "rehearsal: one GPU",
        f"FAIL failed: {lost}; time to first result 1.00 ms",
        f"Next: run the rest: torchrun ... -m torchcoll.suite --resume '{launch.path}'",
    ]
    # FILE.2 alone: what is resumed is FILE.
    launch.path.touch()
    launch.path = tmp_path / "a run.jsonl.2"
    assert f" --resume '{tmp_path / 'a run.jsonl'}'\n" in shown(launch)
    launch.end = {"status": "complete"}
    assert "--resume" not in shown(launch)


@pytest.mark.parametrize(
    ("kind", "message", "line"),
    [
        ("signal", "SIGINT in x", "interrupted by SIGINT in x"),
        ("lost_rank", "lost rank 1", "lost rank 1"),
        ("lost_rank", "the store is gone", "lost rank: the store is gone"),
        ("hang", "no progress for 5 s", "hang: no progress for 5 s"),
        ("warning", "2 ranks\nshare 1 core", "warning: 2 ranks share 1 core"),
    ],
)
def test_events_are_words(shown, kind, message, line):
    launch = run(result(), events=[{"kind": kind, "message": message}])
    assert f"\n{line}\n{ALL_REDUCE}; " in shown(launch)
    launch.events[0]["resumed"] = True
    assert f"\nan earlier run ended and was resumed: {line}\n" in shown(launch)


def in_modes(*stretches, lead=(), **changed):
    """A case of stretches of (us, calls), one after another, on 8 ranks."""
    times = [round(1000 * us) for us, count in stretches for _ in range(count)]
    leads = [[1000 * us for us in lead]] * 8
    return result(time_ns={"host": [times] * 8}, batches=[len(times)], ramp_up_ns=leads, **changed)


def test_lead_calls_show_modes_that_few_steady_calls_do_not(shown):
    """10 calls of 900 us before 20 of 400 us: a third of the calls is slow."""
    text = shown(run(in_modes((400, 20), lead=[900] * 10)))
    assert "[1] bimodal: 33 % of the calls take 900 to 900 us, the others 400 to 400 us" in text
    slower = in_modes((400, 20), lead=[450] * 10)  # as they are after an interruption
    assert "bimodal" not in shown(run(slower))
    # Of many calls they change nothing.
    assert "bimodal" not in shown(run(in_modes((400, 60), lead=[900] * 20)))


def test_precision_names_the_stretch_that_it_holds_for(shown):
    """Modes that last longer than it would not have been seen."""
    first, other = (
        result(stop="precision", steady_ns=ns, batches=[n], time_ns={"host": [[1000] * n] * 8})
        for n, ns in ((60, 2_140_000), (180, 14_000_000))
    )
    columns = shown(run(first, other, result(stop="cap")), columns="size_bytes,stop")
    stops = [line.split("  ", 1)[1].strip() for line in body(columns).splitlines()[2:5]]
    assert stops == [
        "precision of 60 calls in 2.1 ms",
        "precision of 180 calls in 14 ms",
        "limit of 21 calls",
    ]


def test_how_buffers_are_reused_is_in_the_header(shown):
    spec = {"check": True, "iters": 20, "buffer_reuse": "same"}
    text = shown(run(result(), header={"spec": spec}))
    assert "20 calls a case; verification on; the same buffers in every call\n" in text
    walks = result(case=case(buffer_reuse="rotate"))
    text = shown(run(walks, header={"spec": {**spec, "buffer_reuse": "rotate"}}))
    assert ", in place, buffers that walk through the largest\n" in text
    assert "20 calls a case; verification on\n" in text
    # What the cases are is said, whatever was asked for; a file of before had one way.
    text = shown(run(result(), header={"spec": {"check": True, "iters": 20}}))
    assert "20 calls a case; verification on; the same buffers in every call\n" in text
    unstated = result(case=case(buffer_reuse="unknown"))
    assert "buffers in every" not in shown(run(unstated, header={"spec": {**spec}}))


def test_splits_are_in_the_header_or_a_column(shown):
    one, other = (
        result(case=case(collective="all_to_all_v", op=None, in_place=False, splits=splits))
        for splits in ("1,3", "seed:7")
    )
    text = shown(run(one))
    assert text.startswith("torchcoll 0.1.0: all_to_all_v, float32, out of place, splits 1,3\n")
    assert (
        "\nall_to_all_v: size is the largest sum that a rank sends or receives; "
        "bytes that a rank sends to itself count, but not in busbw: it is of the busiest rank\n"
        "all_to_all_v on 8 gloo ranks takes 1.00 ms; "
    ) in text
    text = shown(run(one, other))
    assert text.startswith(
        "torchcoll 0.1.0: all_to_all_v, float32, out of place, splits 1,3 and seed:7\n"
    )
    assert [line.split()[0] for line in body(text).splitlines()[2:4]] == ["1,3", "seed:7"]


def test_a_new_communicator_for_each_case_is_no_shared_one(shown):
    fresh = result(communicator="new_group")
    assert "communicator" not in body(shown(run(result(), not_run("oom"))))
    rows = body(shown(run(fresh, result()))).splitlines()
    assert [line.split()[0] for line in rows[:4]] == [
        "communicator",
        "call",
        "new_group",
        "shared",
    ]


def test_a_run_without_any_facts_has_a_table(shown):
    empty = Run(results=[result(2, (1_000_000,))])
    assert shown(empty).startswith(
        "torchcoll: all_reduce, float32, sum, in place\nbackend: gloo; 2 ranks\n"
    )
    assert shown(Run()) == (
        "torchcoll:\nbackend: unknown; 0 ranks\ntime = max over ranks, the "
        "slowest rank\nno case has ended\n"
        "FAIL the run did not end\n"
    )


# 101 calls of 0.900, 0.902, ... 1.100 ms: the percentiles 5, 50, 95, 99 are calls 5, 50, 95, 99.
HUNDRED = {"host": [[900_000 + 2_000 * i for i in range(101)]] * 8}


def test_a_full_table_fits_into_80_columns(on_terminal):
    text = on_terminal(run(result(time_ns=HUNDRED)), columns=80)
    assert max(map(len, text.splitlines())) <= 80
    assert body(text) == (
        "size     first   median      low     high      p99 calls  algbw   busbw verified\n"
        "         call                 p5      p95                  GB/s    GB/s\n"
        " 64M 5.000 ms* 1.000 ms 910.0 us 1.090 ms 1.098 ms   101 67.109 117.441 correct\n"
        "\n"
        "* first call over 3 times the median\n"
        f"{ALL_REDUCE}\n"
    )


def several_collectives(**changed):
    return run(
        *(
            result(case=case(collective=name, size_bytes=size), **changed)
            for name in ("all_reduce", "broadcast")
            for size in (1 << 20, 1 << 23, 1 << 26)
        )
    )


def test_collectives_over_sizes_are_one_table_on_a_terminal(on_terminal):
    # 1 MiB / 1 ms = 1.049 GB/s, for all_reduce x 2 x 7 / 8 = 1.835; 8 and 64 times as much below.
    lines = on_terminal(several_collectives(), columns=100).splitlines()
    rows = [line.split() for line in lines if line.strip().startswith(("1M", "8M", "64M"))]
    assert rows == [
        ["1M", "1.835", "1.049"],
        ["8M", "14.680", "8.389"],
        ["64M", "117.441", "67.109"],
    ]
    assert "times and first calls of each case: --view cases" in lines


@pytest.mark.parametrize(
    ("changed", "choices"),
    [({}, {"view": "cases"}), ({"verification": Verification(wrong=3, checked=9)}, {})],
)
def test_the_list_of_cases_stays_where_it_is_asked_for_or_a_case_failed(
    on_terminal, changed, choices
):
    text = on_terminal(several_collectives(**changed), columns=100, **choices)
    assert sum(" 1.000 ms " in line for line in text.splitlines()) == 6


def test_a_pipe_gets_the_list_of_cases(shown):
    assert shown(several_collectives()).count(" 1.000 ms ") == 6


def test_what_does_not_fit_is_named(on_terminal):
    rows = run(result(time_ns=HUNDRED), not_run("unsupported", "no avg"))
    text = on_terminal(rows, columns=80)
    assert max(map(len, text.splitlines())) <= 80
    lines = body(text).splitlines()
    assert lines[2:] == [
        " 64M 5.000 ms* 1.000 ms 910.0 us 1.090 ms   101 67.109 117.441 correct",
        " 64M        -         -        -        -     0      -       - unsupported [1]",
        "",
        "not shown in 80 columns: p99 (use a wider terminal, or --format json)",
        "[1] no avg",
        "* first call over 3 times the median",
        ALL_REDUCE,
    ]
    # 4 + 9 + 8 + 5 + 6 + 7 + 15 characters and 6 gaps: 60 without low and high.
    narrow = on_terminal(rows, columns=60)
    assert "low, high =" not in narrow  # a legend stands where its columns do
    assert "\nnot shown in 60 columns: low p5, high p95, p99 (use a" in narrow
    narrow = on_terminal(rows, columns=59)
    assert "\nnot shown in 59 columns: low p5, high p95, p99, algbw GB/s" in narrow


def test_200_columns_show_everything(on_terminal):
    rows = run(result(time_ns=HUNDRED), not_run("unsupported", "no avg"))
    text = on_terminal(rows, columns=200)
    assert (
        " 64M  5.000 ms*  1.000 ms  910.0 us  1.090 ms  1.098 ms    101  67.109  117.441  correct\n"
    ) in text
    assert "not shown" not in text


def test_numbers_stay_whole_even_where_nothing_fits(on_terminal):
    text = on_terminal(run(result(case=case(size_bytes=1 << 62))), columns=20)
    # 2**62 B / 1 ms x 1.75. Tables below each other; what is too wide for any is not cut.
    assert "4194304T 1.000 ms\n" in text
    assert "4194304T 8070450532247.929\n" in text
    assert "4194304T correct\n" in text


def test_the_algorithm_is_shown_where_a_log_named_it(shown, on_terminal):
    several = [Choice("RING", "LL", 2), Choice("NVLS", "SIMPLE", 16)]
    launch = run(
        result(choices=several),
        result(choices=[Choice("TREE", "LL", source="kernel name")]),
        result(choices=[Choice("recursive_doubling")]),
        result(),
    )
    lines = body(shown(launch)).splitlines()
    start = lines[0].index("algorithm")
    assert [line[start : start + 30].strip() for line in lines[2:6]] == [
        "RING/LL 2ch, NVLS/SIMPLE 16ch",
        "TREE/LL?",  # a hint only
        "recursive_doubling",
        "-",
    ]
    assert "algorithm" not in shown(run(result()))
    # It goes after the spread and the algbw.
    narrow = body(on_terminal(run(result(choices=several[:1])), columns=80)).splitlines()
    heading = " ".join(narrow[:2])
    assert "algorithm" in heading and "p5" not in heading


def test_columns_chosen_by_name_are_never_hidden(on_terminal):
    names = "median_ns,size_bytes,bytes_in,bytes_out,count,low_ns,high_ns,p99_ns,status"
    text = on_terminal(run(result()), columns=30, names=names)
    assert max(map(len, body(text).splitlines())) <= 30
    assert [line for line in body(text).splitlines() if line.startswith(" 64M")] == [
        " 64M 1.000 ms   64M   64M",
        " 64M 16777216 910.0 us",
        " 64M 1.090 ms   - ok",
    ]
    assert "not shown" not in text


def test_all_columns_on_80_and_in_a_pipe(on_terminal, shown):
    everything = run(result(2, case=case(splits="1,2"), reason="because"), ranks=2)
    text = on_terminal(everything, columns=80, names="all")
    assert max(map(len, body(text).splitlines())) <= 80
    assert text.count("\n 64M ") == 5
    assert "not shown" not in text
    assert len(body(shown(everything, columns="all")).splitlines()) == 8


def test_digits_line_up_with_and_without_a_mark_on_a_terminal(on_terminal):
    rows = run(result(), result(cold=(1_000_000,)), result(cold=(1_000,)))
    text = body(on_terminal(rows, columns=80)).splitlines()[2:5]
    assert [line[4:17] for line in text] == ["  5.000 ms*  ", "  1.000 ms   ", "  1.000 us   "]


def test_a_terminal_that_is_no_unicode_has_a_plain_table(monkeypatch):
    class Latin(Terminal):
        encoding = "ascii"

    monkeypatch.setenv("TERM", "xterm-256color")
    out = Latin()
    show(run(not_run("failed", "Ger\N{LATIN SMALL LETTER A WITH DIAERESIS}t")), file=out)
    assert out.getvalue().isascii()
    assert "[1] Ger\\xe4t\n" in out.getvalue()


def test_no_color_is_honoured(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    rows = run(not_run("oom"))
    out = Terminal()
    show(rows, file=out)
    assert "\x1b[31m" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    show(rows, file=out)
    assert "\x1b[31m" not in out.getvalue()


@pytest.mark.parametrize("without", ["rich", "TERM"])
def test_without_rich_or_on_a_dumb_terminal_the_table_is_plain(on_terminal, monkeypatch, without):
    if without == "rich":
        for name in [n for n in sys.modules if n.split(".")[0] == "rich"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "rich", None)  # import rich raises ImportError
        text = on_terminal(run(result(time_ns=HUNDRED)), columns=80)
    else:
        monkeypatch.setenv("TERM", "dumb")
        out = Terminal()
        show(run(result(time_ns=HUNDRED)), file=out)
        assert "\x1b" not in out.getvalue()
        text = out.text()
    assert text.isascii()
    row = next(line for line in text.splitlines() if line.startswith(" 64M"))
    assert row.split()[:2] == ["64M", "5.000"]


def test_a_pipe_in_an_ascii_locale_gets_escapes_and_no_error():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    show(run(not_run("failed", "Ger\N{LATIN SMALL LETTER A WITH DIAERESIS}t\x1b[2Jweg")), file=out)
    out.flush()
    assert b"[1] Ger\\xe4t [2Jweg\n" in raw.getvalue()


def test_over_ranks_clock_and_percentiles(shown):
    asked = run(result(cold=(1_000_000,)))
    text = shown(asked, over_ranks="min", percentiles="0,100")
    assert "\ntime = min over ranks, not the slowest rank\n" in text
    assert body(text).splitlines()[2].split() == [
        "64M",
        "1.000",
        "ms",
        "500.0",
        "us",
        "500.0",
        "us",
        "500.0",
        "us",
        "500.0",
        "us",
        "500.0",
        "us",
        "21",
        "134.218",
        "234.881",
        "correct",
    ]
    text = shown(asked, clock="device")
    assert body(text).splitlines()[2:] == [
        " 64M  1.000 ms        -    -     -      0      -      -  correct",
        "",
        "1 of 1 cases have no device clock",
        f"{NONE.splitlines()[0]}; 1 of 1 case correct; time to first result 1.00 ms",
        NONE.splitlines()[1],
    ]


def test_chosen_columns_are_the_fields_of_a_row(shown):
    text = shown(run(result()), columns="count,median_ns,algbw_gbps")
    assert body(text) == (
        "   count    median   algbw\n                      GB/s\n16777216  1.000 ms  67.109\n"
        "\n" + answer(ALL_REDUCE, "1 of 1 case correct", "time to first result 5.00 ms")
    )
    assert "low, high =" not in text
    assert len(body(shown(run(result()), columns="all")).splitlines()) == 7


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"format": "xml"},
            error_text("format", "xml", "one of table, markdown, csv, json"),
        ),
        ({"metric": "x"}, error_text("metric", "x", "one of time, algbw, busbw")),
        ({"clock": "cpu"}, error_text("clock", "cpu", "one of host, device, issue")),
        ({"over_ranks": "p"}, error_text("over-ranks", "p", "one of max, mean, min, rank0")),
        (
            {"percentiles": "50,101"},
            error_text("percentiles", "101", "numbers from 0 to 100, such as 50,90,99.9"),
        ),
        (
            {"percentiles": "x"},
            error_text("percentiles", "x", "numbers from 0 to 100, such as 50,90,99.9"),
        ),
        (
            {"view": "call"},
            error_text(
                "view", "call", "one of cases, ranks, calls, pivot:KEY. Did you mean calls?"
            ),
        ),
        (
            {"view": "pivot:ranks", "format": "csv"},
            error_text("format", "csv", "one of table, markdown with --view pivot:ranks"),
        ),
        (
            {"view": "pivot:label={b}", "format": "csv"},
            error_text("format", "csv", "one of table, markdown with --view pivot:label={b}"),
        ),
        (
            {"metric": "time"},
            error_text("metric", "time", "--view pivot:KEY with it. A table has --columns."),
        ),
        (
            {"metric": "time", "format": "csv"},
            error_text("metric", "time", "--view pivot:KEY with it. A table has --columns."),
        ),
        (
            {"columns": "all", "view": "pivot:ranks"},
            error_text("columns", "all", "none with --view pivot:ranks"),
        ),
        (
            {"percentiles": "50,99.9", "view": "calls"},
            error_text("percentiles", "50,99.9", "none with --view calls"),
        ),
        (
            {"over_ranks": "mean", "view": "ranks"},
            error_text("over-ranks", "mean", "none with --view ranks: ranks stay apart"),
        ),
        (
            {"over_ranks": "mean", "view": "calls", "format": "json"},
            error_text("over-ranks", "mean", "none with --view calls: ranks stay apart"),
        ),
        (
            {"view": "pivot:size"},
            error_text(
                "pivot",
                "size",
                "one of collective, backend, implementation, device, ranks, dtype, op, root, "
                "in_place, group, buffers, buffer_reuse, misalign_bytes, asynchronous, coalesce, "
                "rehearsal, splits, communicator, mode, clock, label, label=KEY, file",
            ),
        ),
        (
            {"view": "pivot:label=x"},
            error_text("pivot label", "x", "a label, and the files have none"),
        ),
    ],
)
def test_bad_choices_are_one_line(shown, choices, message):
    with pytest.raises(UsageError) as caught:
        shown(run(result()), **choices)
    assert str(caught.value) == message


def test_an_unknown_column_names_the_nearest(shown):
    with pytest.raises(
        UsageError,
        match=error_text(
            "^columns",
            error_tail(
                "size", "all, or names as --columns all prints them. Did you mean size_bytes?"
            ),
        ),
    ):
        shown(run(result()), columns="median_ns,size")


def test_several_runs_stand_below_their_paths(shown, tmp_path):
    one, two = run(result()), run(result(case=case(dtype="float16")))
    one.path, two.path = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    text = shown(one, two)
    cases = "2 cases of all_reduce on 8 gloo ranks reach 117 GB/s of busbw "
    assert text.startswith(f"{one.path}\n{HEADER}\nsize  ") and f"\n{two.path}\n" in text
    assert text.endswith(answer(f"2 runs: {cases}in all_reduce at 64M", "2 of 2 results correct"))
    two = run(result(), header={"spec": {"labels": {"kernel": "new"}}})
    two.path = tmp_path / "b.jsonl"
    next_step = f"Next: torchcoll compare {one.path} {two.path} says how they differ"
    assert next_step in " ".join(shown(one, two).split())
