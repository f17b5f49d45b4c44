"""The documented output of hccl_test."""

from __future__ import annotations

import pytest

from torchcoll.core.summary import summarise

TABLE = """\
the minbytes is 8192, maxbytes is 67108864, iters is 20, warmup_iters is 5
data_size(Bytes): |   aveg_time(us): | alg_bandwidth(GB/s): | check_result:
2097152           |     1000.00      |       2.09715        | success
4194304           |     1000.00      |       3.90625        | failed
8388608           |     1000.00      |       8.38861        | NULL
"""


def summary_rows(output):
    return [summarise(result) for run in output.runs for result in run.results]


def test_rows(imported):
    output = imported(TABLE, collective="all_gather", ranks=8)
    assert (output.importer, output.rows, output.refused, output.warnings) == ("hccl", 3, [], [])
    rows = summary_rows(output)
    assert [row.size_bytes for row in rows] == [2097152, 4194304, 8388608]
    assert [row.verified for row in rows] == ["correct", "wrong", "unchecked"]
    assert rows[0].busbw_gbps == pytest.approx(7 / 8 * 2.097152)
    assert (rows[0].median_ns, rows[0].calls, rows[0].backend) == (1_000_000, 20, "hccl")
    reported = output.runs[0].results[0].reported
    assert (reported.statistic, reported.over_ranks, reported.clock) == ("mean", "rank0", "device")
    # 4 MiB in 1 ms are 3.90625 GiB/s, the unit of early releases.
    assert [result.warnings for result in output.runs[0].results] == [[], [], []]


def test_a_bandwidth_that_is_of_another_size(imported):
    output = imported(TABLE.replace("2.09715", "16.77722"), collective="all_gather", ranks=8)
    assert output.runs[0].results[0].warnings == [
        "given algbw 16.7772 GB/s, but 2.09715 follows from size and time"
    ]


def test_the_collective_is_that_of_the_program_or_the_file(imported):
    command = "# mpirun -n 8 ./bin/reduce_scatter_test -b 8K -e 64M -f 2 -d fp32 -o sum -p 8\n"
    assert {row.collective for row in summary_rows(imported(command + TABLE))} == {"reduce_scatter"}
    output = imported(TABLE, "all_reduce_test.log")
    assert {row.collective for row in summary_rows(output)} == {"all_reduce"}
    assert output.warnings == ["the file does not tell the ranks: give --ranks for bus bandwidth"]


def test_no_name_at_all(imported):
    output = imported(TABLE)
    assert output.runs == []
    assert [why for _, why in output.refusals()] == [
        "hccl_test does not name the collective: give --collective"
    ]


def test_other_headings_and_half_a_row(imported):
    text = TABLE.replace("aveg_time", "avg_time") + "16777216 | 1000.0"
    output = imported(text, collective="broadcast")
    assert output.rows == 3
    assert [r.reason for r in output.refused] == ["half a row: 2 fields, the heading has 4"]
    output = imported("".join(f"node0: {line}\n" for line in TABLE.splitlines()), "broadcast.log")
    assert output.rows == 3
