"""One cause gives one message, even if it affects many lines."""

from __future__ import annotations

import pytest
from foreign_files import HEAD, NAMES, ROW, SMALL, text

from torchcoll.core.summary import summarise
from torchcoll.reading.base import COMMAS, WRAPPED
from torchcoll.reading.nccl_tests_text import SUFFIXES

SIZES = (1 << 20, 1 << 21, 1 << 22)


def rows(*times: str) -> str:
    pairs = zip(SIZES, times, strict=True)
    return "".join(ROW.replace("1048576", f"{n:7}").replace("24.31", t) for n, t in pairs)


OSU = "# OSU MPI Allreduce Latency Test v7.4\n# Size         Avg Latency(us)\n"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (text(rows("24,31", "48,62", "97,24"), foot=""), "x.log"),
        ("## all_reduce\n| Size | Time (us) |\n|--|--|\n| 1K | 1,5 |\n| 2K | 2,5 |\n", "t.md"),
        ("size;time (us);busbw (GB/s)\n1024;12,5;3,4\n2048;13,5;3,4\n", "all_reduce.csv"),
        (OSU + "1024  3,21\n2048  3,5\n", "osu.txt"),
    ],
)
def test_decimal_commas(imported, content, name):
    result = imported(content, name)
    assert [why for _, why in result.refusals()] == [COMMAS]
    assert result.rows == 0


def test_a_comma_beside_decimal_points_groups_thousands(imported):
    """A row with 53.00 has no decimal commas, so 10,109 us is 10.1 ms."""
    table = "## all_reduce\n| Size | Time (us) | busbw (GB/s) |\n|--|--|--|\n"
    imported_file = imported(table + "| 256MB | 10,109 | 53.00 |\n", "t.md", ranks=64)
    (result,) = imported_file.runs[0].results
    assert summarise(result).median_ns == 10_109_000


def test_rows_that_were_wrapped(imported):
    content = text(SMALL + ROW)
    lines = [line[at : at + 80] for line in content.splitlines() for at in range(0, len(line), 80)]
    result = imported("\n".join(lines) + "\n")
    assert (result.rows, result.refused) == (2, [])
    assert [each.reported.time_ns for each in result.runs[0].results][2:] == [24310, 24070]
    assert result.runs[0].ranks == 2


def test_whole_rows_of_the_same_width_are_not_joined(imported):
    """The collective is unknown: busbw / algbw is 1.25 in one row and 1.75 in the others."""
    row = "67108864  16777216  float  sum  -1  730.61  91.85  {}  0  727.41  92.26  161.46  0\n"
    content = NAMES + "".join(row.format(busbw) for busbw in ("114.81", *["160.74"] * 7))
    result = imported(content, "rows.log")
    assert result.rows == 0 and {each.line for each in result.refused} >= {4, 5, 6, 7}


def test_rows_that_were_wrapped_between_words(imported):
    content = text(SMALL + ROW)
    lines = [part for line in content.splitlines() for part in (line[:52], line[52:]) if part]
    result = imported("\n".join(lines) + "\n")
    assert [why for _, why in result.refusals()] == [WRAPPED]
    assert (result.rows, len(result.refused)) == (0, 2)


def test_sizes_with_a_suffix(imported):
    with_suffix = ROW.replace("1048576", "     1M").replace("262144", "  256K")
    result = imported(HEAD.format(program="all_reduce_perf") + NAMES + SMALL + 2 * with_suffix)
    assert result.rows == 1
    assert [why for _, why in result.refusals()] == [SUFFIXES]
    assert len(result.refused) == 2
