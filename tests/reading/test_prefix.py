"""Rows after prefixes of launchers, containers and mails."""

from __future__ import annotations

import pytest
from foreign_files import HEAD, NAMES, ROW, SMALL, text

import torchcoll
from torchcoll.reading.base import COMMAS
from torchcoll.reading.source import cleaned

PREFIXES = (
    "   [1,0]<stdout>:",
    "[prterun-node0-4711@1,0]<stdout>: ",
    "node0: ",
    "[pod/nccl-x7k2p/nccl] ",
    "2026-07-20T19:33:49.123456789+02:00 ",
    "nccl-1  | ",
    "> ",
    "- ",
    "[2026-07-20T19:33:49.123Z] ",
    "Jul 20 19:33:49 node0 nccl[4711]: ",
    "17:",
    "INFO:bench.nccl:",
    "[2026-07-20 19:33:49,123] [INFO] ",
)
OSU = """\
# OSU MPI All-to-All Personalized Exchange Latency Test v7.4
# Datatype: MPI_CHAR.
# Size         Avg Latency(us)
1                         3.21
1048576                 108.07
"""
ONECCL = """\
datatype: float32
reduction: sum
# Benchmarking: allreduce
# #processes: 2
#bytes  #repetitions   t_min[usec]   t_max[usec]   t_avg[usec]  stddev[%]
  4096            16         10.20         12.30         11.25       9.42
"""


def before(prefix: str, lines: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in lines.splitlines())


def times(imported_file):
    return [result.reported.time_ns for run in imported_file.runs for result in run.results]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_of_any_kind(imported, prefix):
    result = imported(before(prefix, text()))
    assert (result.rows, result.refused, result.runs[0].ranks) == (2, [], 2)
    assert times(result) == [11520, 11400, 24310, 24070]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_of_rows_that_are_numbers_alone(imported, prefix):
    result = imported(before(prefix, OSU), ranks=4)
    assert (result.refused, times(result)) == ([], [3210, 108070])
    # OSU's size is for one peer: S = 4 x it.
    assert [r.size_bytes for r in result.runs[0].results] == [4, 4 << 20]
    assert times(imported(before(prefix, ONECCL))) == [11250]


def test_a_tag_inside_of_a_row(imported):
    row = ROW[:30] + "[1,0]<stdout>:" + ROW[30:]
    result = imported(HEAD.format(program="all_reduce_perf") + NAMES + row)
    assert times(result) == [24310, 24070]
    assert cleaned("\x1b[32m1%\r8\n9\r") == ["8", "9"]


LOG = "node0:4711:4720 [0] NCCL INFO Launch mode Parallel"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (LOG + ROW.strip(), "a row that other output runs into: where it begins cannot be told"),
        (ROW.strip() + ROW.strip(), "half a row: 25 fields of 13"),
        (ROW.rstrip().replace("24.31", "N/A"), "half a row: time is N/A"),
        (ROW.rstrip().replace("43.13   43.13", "43.13   43,13"), COMMAS),
        (ROW[20:].rstrip(), "a row that other output runs into: where it begins cannot be told"),
    ],
)
def test_a_row_that_cannot_be_taken_is_refused_by_its_line(imported, line, why):
    result = imported(text(SMALL + line + "\n", foot=""))
    assert [(r.line, r.reason) for r in result.refused] == [(13, why)]
    assert result.rows == 1


def test_a_message_inside_of_the_size(imported):
    result = imported(text(SMALL + ROW[:18] + LOG + "\n" + ROW[18:], foot=""))
    assert (result.rows, result.refused, times(result)[2:]) == (2, [], [24310, 24070])


def test_a_cut_row_is_no_row_of_other_columns(imported):
    """`none 2` and 11 figures: if the last field were missing the root would be read as the
    time.
    """
    row = ROW.replace("sum      -1", "none      2")
    result = imported(
        text(SMALL.replace("sum", "none").replace("-1", " 2") + row.rstrip()[:-1] + "\n")
    )
    assert [r.reason for r in result.refused] == ["half a row: 12 fields of 13"]
    alone = "".join(row.rstrip()[:cut] + "\n" for cut in (200, -1))
    result = imported(alone, collective="broadcast")
    assert (result.rows, [r.line for r in result.refused]) == (1, [2])


def test_thousands_separators(imported):
    grouped = ROW.replace("1048576", "1,048,576").replace("262144", "262,144")
    (first, _) = imported(text(grouped, foot="")).runs[0].results
    assert (first.size_bytes, first.count) == (1048576, 262144)
    # 1,234 may be a decimal comma: it is no time.
    result = imported(text(ROW.replace("  24.31", "  1,234"), foot=""))
    assert result.refused[0].reason == COMMAS


@pytest.mark.parametrize("host", ["7node", "38dcf168f605", "10-0-0-1", "10.0.0.1", "node7"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_row_that_a_message_of_any_host_cuts(host, whole, tmp_path):
    """The message begins within the row, right after a field: the host's own name tells where."""
    message = f"{host}:1417:1417 [0] NCCL INFO AllReduce: 268435456 Bytes -> Algo RING"
    path = tmp_path / "all_reduce.log"
    path.write_text(
        (f"{message}\n" if whole else "") + "# Collective test starting: all_reduce_perf\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     "
        "time   algbw   busbw  #wrong\n"
        f"   268435456      67108864     float     sum      -1{message}\n"
        f"  1187.29  226.09  339.14       0{message}\n"
        "  1189.60  225.65  338.48       0\n"
        "# Avg bus bandwidth    : 338.81\n"
    )
    run = torchcoll.load(path)
    assert [result.reported.time_ns for result in run.results] == [1_187_290, 1_189_600]
    assert [result.verification.wrong for result in run.results] == [0, 0]


OLD_NAMES = "#       size         count    type   redop     time   algbw   busbw  error\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("     sum", "  1187.29  226.09  339.14  2e-07"),
        ("     sum  1187.29  226.09  339.14  2e-07", ""),
        ("     sum  1187.29  226.09  339.14    N/A", ""),
    ],
)
def test_a_message_right_after_a_word_of_a_row(imported, before, after):
    """Nothing else in the file names the host."""
    row = f"   268435456      67108864   float{before}node7:12:13 [0] NCCL INFO hi\n{after}\n"
    result = imported(f"# Collective test starting: all_reduce_perf\n{OLD_NAMES}{row}")
    assert (result.rows, result.refused) == (1, [])
    (first,) = result.runs[0].results
    assert (first.case.op, first.reported.time_ns) == ("sum", 1187290)


def test_an_operation_that_nccl_does_not_have(imported):
    result = imported(text(ROW.replace("    sum", "  -1[0]")))
    assert [each.reason for each in result.refused] == ["half a row: redop is -1[0]"]
