"""nccl-tests' text, read back by a parser that knows only nccl-tests."""

from __future__ import annotations

import re

import pytest
from handmade import case, not_run, result, run

from torchcoll.core.result import Verification
from torchcoll.report.nccl_tests import NcclTests, float_text

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
        "iters: 20 agg iters: 1 validation: 1 graph: 0\n"
        "# torchcoll: torch.distributed all_reduce on gloo, cadence isolated\n"
        "# torchcoll: time is the median over calls of the slowest rank\n"
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
        "# Out of bounds values : 0 OK\n"
        "# Avg bus bandwidth    : 67.1089 \n"
        "#\n"
        "# Collective test concluded: all_reduce_perf\n"
        "#\n"
        "\n"
    )


def test_two_placements_share_a_row_and_wrong_is_counted(shown):
    gather = {"collective": "all_gather", "op": None, "nbytes": 1000, "dtype": "float16"}
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
    send = case(collective="sendrecv", op=None, in_place=False, nbytes=1000)
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
        result(2, case=case(nbytes=8)),
        not_run("unsupported", "no\navg", ranks=2),
        result(2, case=case(collective="all_to_all", op=None, in_place=False)),
        ranks=2,
        end=None,
        problems=["truncated: the file has no end record"],
    )
    text = shown(launch, format="nccl-tests")
    assert "\n# unsupported: all_reduce 64M float32 sum on gloo: no avg\n" in text
    assert re.findall("# Collective test (.*)", text) == [
        "starting: all_reduce_perf",
        "concluded: all_reduce_perf",
        "starting: alltoall_perf",
        "concluded: alltoall_perf",
    ]
    assert text.endswith("# torchcoll: truncated: the file has no end record\n")


def test_one_rank_has_zero_bandwidth_and_says_why(shown):
    text = shown(run(result(1), ranks=1), format="nccl-tests")
    assert rows(text)[0][6:8] == ("0.00", "0.00")
    assert "# torchcoll: one rank, no communication\n" in text


def test_mixed_collectives_wait_for_the_end():
    cases = [case(), case(collective="reduce", root=0), case(nbytes=8)]
    text = NcclTests(run(ranks=2), cases)
    assert [list(text.done(result(2, case=c))) for c in cases] == [[], [], []]
    started = [line for line in text.end() if "starting" in line]
    assert started == [
        "# Collective test starting: all_reduce_perf",
        "# Collective test starting: reduce_perf",
    ]


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
