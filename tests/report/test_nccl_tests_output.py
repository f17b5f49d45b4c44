"""nccl-tests' text, read back by a parser that knows only nccl-tests."""

from __future__ import annotations

import re

import pytest
from handmade import case, not_run, result, run

from torchcoll.bench.stopping import FIRST_BATCH
from torchcoll.core.result import Verification
from torchcoll.report.export import _LEAST_ITERS, NcclTests, float_text

NUMBER = r"(\d[\d.e+]*)"
ROW = re.compile(
    r"\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)"
    + rf"\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+(\d+|N/A)" * 2
)


def rows(text):
    """Data rows the way microsoft/superbenchmark finds them: after the last heading."""
    lines = text.splitlines()
    start = max(i for i, line in enumerate(lines) if "out-of-place" in line)
    return [ROW.fullmatch(line).groups() for line in lines[start:] if re.match(r"\s*\d", line)]


def test_the_whole_text(shown):
    assert shown(run(result(2), ranks=2), format="nccl-tests") == (
        "# torchcoll 0.1.0 in the text format of nccl-tests\n"
        "# Collective test starting: all_reduce_perf\n"
        "# nThread 1 nGpus 1 minBytes 67108864 maxBytes 67108864 step: 4(factor) warmup iters: 3 "
        "iters: 5 agg iters: 1 validation: 1 graph: 0\n"
        "# torchcoll: warmup iters and iters are the least of any case; below is what ran\n"
        "# torchcoll: torch.distributed all_reduce on gloo, mode synchronized\n"
        "# torchcoll: time is the median over calls of the slowest rank\n"
        "# torchcoll: buffer reuse: same\n"
        "# torchcoll: measured in-place only, the out-of-place columns repeat it\n"
        "#\n"
        "# Using devices\n"
        "#  Rank  0 Group  0 Pid    100 on         vm device  0 [0x00] cpu\n"
        "#  Rank  1 Group  0 Pid    101 on         vm device  0 [0x00] cpu\n"
        "#\n"
        "#                                                              out-of-place"
        "                       in-place          \n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong \n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
        "     (us)  (GB/s)  (GB/s)         \n"
        "    67108864      16777216     float     sum      -1  1000.00   67.11   67.11       0"
        "  1000.00   67.11   67.11       0\n"
        "# torchcoll: calls a case: warmup 2, timed 21\n"
        "# Out of bounds values : 0 OK\n"
        "# Avg bus bandwidth    : 67.1089 \n"
        "#\n"
        "# Collective test concluded: all_reduce_perf\n"
        "#\n"
        "\n"
    )


def test_two_placements_share_a_row_and_wrong_is_counted(shown):
    gather = {"collective": "all_gather", "op": None, "size_bytes": 1000, "dtype": "float16"}
    wrong = Verification(checked=9, wrong=3)
    launch = run(
        result(2, case=case(**gather, in_place=False), time_ns={"host": [[1_000]] * 2}, count=250),
        result(
            2,
            case=case(**gather, in_place=True),
            time_ns={"host": [[2_000]] * 2},
            status="wrong",
            verification=wrong,
        ),
        ranks=2,
    )
    text = shown(launch, format="nccl-tests")
    first, second = ("1.00", "1.00", "0.50", "0"), ("2.00", "0.50", "0.25", "3")
    assert rows(text) == [(*("1000", "250", "half", "none", "-1"), *first, *second)]
    assert "repeat it" not in text
    assert "\n# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 0.375 \n" in text


def test_unchecked_rooted_and_out_of_place_only(shown):
    send = case(collective="sendrecv", op=None, in_place=False, size_bytes=1000)
    launch = run(result(2, case=send, verification=None, time_ns={"host": [[1_000]] * 2}), ranks=2)
    text = shown(launch, format="nccl-tests")
    assert rows(text) == [
        ("1000", "250", "float", "none", "-1") + ("1.00", "1.00", "1.00", "N/A") * 2
    ]
    assert "# torchcoll: measured out-of-place only, the in-place columns repeat it\n" in text
    reduce = result(2, case=case(collective="reduce", root=1))
    assert rows(shown(run(reduce, ranks=2), format="nccl-tests"))[0][3:5] == ("sum", "1")


def test_what_did_not_run_is_a_comment_and_each_collective_a_block(shown):
    launch = run(
        result(2, case=case(size_bytes=8)),
        not_run("unsupported", "no\navg", ranks=2),
        result(2, case=case(collective="all_to_all", op=None, in_place=False)),
        ranks=2,
        end=None,
        problems=["truncated: the file has no end record"],
    )
    # The last block may lack rows: it has no end, as in the text of a run that was killed.
    text = shown(launch, format="nccl-tests")
    assert "\n# unsupported: all_reduce 64M float32 sum on gloo: no avg\n" in text
    assert re.findall("# Collective test (.*)", text) == [
        "starting: all_reduce_perf",
        "concluded: all_reduce_perf",
        "starting: alltoall_perf",
    ]
    assert text.endswith("# torchcoll: truncated: the file has no end record\n")


def test_one_rank_has_zero_bandwidth_and_says_why(shown):
    text = shown(run(result(1), ranks=1), format="nccl-tests")
    assert rows(text)[0][6:8] == ("0.00", "0.00")
    assert "# torchcoll: one rank, no communication\n" in text


def test_mixed_collectives_wait_for_the_end():
    cases = [case(), case(collective="reduce", root=0), case(size_bytes=8)]
    text = NcclTests(run(ranks=2), cases)
    assert [list(text.done(result(2, case=c))) for c in cases] == [[], [], []]
    started = [line for line in text.end() if "starting" in line]
    assert started == [
        "# Collective test starting: all_reduce_perf",
        "# Collective test starting: reduce_perf",
    ]


def heading(text):
    return re.search(r"warmup iters: (\d+) iters: (\d+) agg iters: (\d+)", text).groups()


def test_the_heading_states_the_least_and_the_end_what_ran(shown):
    assert _LEAST_ITERS == FIRST_BATCH
    assert set(heading(shown(run(result(2), ranks=2), format="nccl-tests"))) >= {"3", "5"}
    asked = run(
        result(2, (9, 8, 7), stop="time"),
        result(2, (9, 8, 7, 6), case=case(size_bytes=8), warmup_ns=[[1]] * 2, stop="time"),
        ranks=2,
    )
    asked.header["spec"] |= {"iters": 50, "warmup": 1, "cold": 2}
    text = shown(asked, format="nccl-tests")
    assert heading(text) == ("3", "50", "1")
    assert "# torchcoll: calls a case: warmup 3 to 5, timed 21\n" in text
    assert "# torchcoll: cases ended by: time 2\n" in text
    asked.header["spec"] = {}
    assert heading(shown(asked, format="nccl-tests")) == ("0", "0", "1")


@pytest.mark.parametrize("status", ["timeout", "oom", "failed"])
def test_a_failed_case_fails_its_block(shown, status):
    failed = not_run(status, "so it was", ranks=2, size_bytes=8)
    other = result(2, case=case(collective="broadcast", op=None, root=0))
    text = shown(run(result(2), failed, other, ranks=2), format="nccl-tests")
    assert re.findall("# Out of bounds values : (.*)", text) == ["1 FAILED", "0 OK"]
    assert "\n# torchcoll: failed cases: 1, each counted as out of bounds\n" in text
    alone = shown(run(failed, ranks=2), format="nccl-tests")
    assert "# Out of bounds values : 1 FAILED\n" in alone
    assert "OK only says" not in alone


def test_a_barrier_has_a_time_and_nothing_that_was_verified(shown):
    barrier = case(collective="barrier", size_bytes=0, dtype=None, op=None, in_place=False)
    unchecked = Verification(checked=0, wrong=0)
    text = shown(run(result(2, case=barrier, verification=unchecked), ranks=2), format="nccl-tests")
    assert rows(text) == [("0", "0", "none", "none", "-1") + ("1000.00", "0.00", "0.00", "N/A") * 2]
    # As nccl-tests ends with -c 0; a reader of the whole text is told what it is worth.
    assert (
        "\n# torchcoll: 1 of 1 rows were not verified: OK only says that nothing was found wrong\n"
        "# Out of bounds values : 0 OK\n"
    ) in text


def test_nothing_but_unsupported_cases(shown):
    text = shown(run(not_run("unsupported", ranks=2), ranks=2), format="nccl-tests")
    assert "\n# torchcoll: no rows: OK only says that nothing was found wrong\n" in text


def test_coalesced_calls_are_aggregated_iterations(shown):
    asked = case(coalesce=4, size_bytes=1000)
    launch = run(result(2, case=asked, time_ns={"host": [[8_000]] * 2}), ranks=2)
    text = shown(launch, format="nccl-tests")
    assert heading(text)[2] == "4"
    assert rows(text)[0][5:8] == ("2.00", "0.50", "0.50")  # us and GB/s of one call


def test_each_sub_group_is_a_block_with_its_own_ranks(shown):
    def part(number, members):
        asked = case(group=f"mod:2/{number}", size_bytes=1000)
        return result(2, case=asked, members=members)

    text = shown(run(part(0, [0, 2]), part(1, [1, 3]), ranks=4), format="nccl-tests")
    assert len(re.findall("Collective test concluded", text)) == 2
    # Readers take the largest rank for the number of ranks: they are counted in the sub-group.
    assert re.findall(r"#  Rank +(\d+) .* Pid +(\d+)", text) == [
        *(("0", "100"), ("1", "102"), ("0", "101"), ("1", "103")),
    ]
    assert "mode synchronized, sub-group mod:2/1\n" in text


def test_splits_and_a_stream_are_explained(shown):
    asked = case(
        collective="all_to_all_v", op=None, in_place=False, splits="1,3", mode="back-to-back"
    )
    text = shown(run(result(2, case=asked), ranks=2), format="nccl-tests")
    assert "\n# torchcoll: splits 1,3; all_to_all_v: size is the largest sum that a rank " in text
    assert "\n# torchcoll: time is the period over calls of the slowest rank\n" in text


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.0, 7, "   0.00"),
        (11.52, 7, "  11.52"),
        (812.4, 7, " 812.40"),
        (8124.0, 7, "8124.00"),
        (81240.0, 7, "81240.0"),
        (812400.0, 7, " 812400"),
        (81240000.0, 7, "8.1e+07"),
        (165.21, 6, "165.21"),
        (1652.1, 6, "1652.1"),
        (16521.0, 6, " 16521"),
        (16521000.0, 6, " 2e+07"),
    ],
)
def test_numbers_lose_decimals_as_in_nccl_tests(value, width, text):
    assert float_text(value, width) == text
