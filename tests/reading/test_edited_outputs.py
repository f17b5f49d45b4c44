"""Outputs that people cut, annotate and paste: the rest is read by its headings."""

import json

import pytest
from foreign_files import NAMES, ROW, SMALL, text

from torchcoll.core.errors import UnreadableError
from torchcoll.core.summary import summarise


def summary_rows(imported):
    return [summarise(result) for run in imported.runs for result in run.results]


def test_the_last_line_names_the_collective(imported):
    """`# Collective test concluded: sendrecv_perf` below a table without any other name."""
    result = imported(text(SMALL + ROW, program="sendrecv_perf", head="", names=NAMES))
    assert {row.collective for row in summary_rows(result)} == {"sendrecv"}
    assert result.warnings == []


@pytest.mark.parametrize("note", ["<-- here", "# best", "| ok", "// 43 GB/s", "  (peak)"])
def test_a_note_after_a_row(imported, note):
    result = imported(text(SMALL + ROW.rstrip() + f"  {note}\n"))
    assert (result.rows, result.refused) == (2, [])
    assert summary_rows(result)[2].median_ns == 24310


def test_two_tables_side_by_side_are_no_note(imported):
    result = imported(text(SMALL.rstrip() + "  |  " + SMALL + ROW))
    assert [r.reason for r in result.refused] == [
        "rows of several tables side by side: put each table into a file of its own"
    ]
    assert result.rows == 1


def test_osu_rows_longer_than_a_short_heading(imported):
    """OMB 7.3 with -f: the heading ends with the mean, the rows do not."""
    result = imported(
        "# OSU MPI Allreduce Latency Test v7.3\n# Size         Avg Latency(us)\n"
        "1024    3.31    3.10    3.70    1000\n4096    5.50    5.00    6.00    1000\n"
    )
    assert (result.rows, result.refused) == (2, [])
    assert [row.median_ns for row in summary_rows(result)] == [3310, 5500]
    assert "rows have 5 fields, the heading names 2: the others are not read" in result.warnings


def test_osu_rows_shorter_than_the_heading_are_cut(imported):
    result = imported(
        "# OSU MPI Allreduce Latency Test v7.3\n"
        "# Size         Avg Latency(us)     Min Latency(us)     Max Latency(us)  Iterations\n"
        "1024    3.31    3.10    3.70\n"
    )
    assert [r.reason for r in result.refused] == ["half a row: 4 fields, the heading has 5"]


def test_deepspeed_reads_the_mean_and_not_the_stragglers(imported):
    """The heading names the column with the mean; the straggler's wait is not a duration."""
    names = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg straggler(ms)")
    names += ("Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)")
    values = ("", "1.0 MB", "10", "20.00", "7.00", "2.00", "8.00", "7.00")
    lines = ["".join(f"{cell:<20}" for cell in cells) for cells in (names, values)]
    result = imported(f"{lines[0]}\nall_reduce\n{lines[1]}\n", ranks=8)
    assert [row.median_ns for row in summary_rows(result)] == [2_000_000]


TABLE = text(SMALL + ROW)
DOCKER = "".join(
    json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-07-20T19:33:49Z"}) + "\n"
    for line in TABLE.splitlines()
)
NOTEBOOK = {"cells": [{"outputs": [{"text": TABLE.splitlines(keepends=True)}]}], "nbformat": 4}


@pytest.mark.parametrize(
    "content",
    [
        DOCKER,
        json.dumps(NOTEBOOK, indent=1),
        json.dumps({"stdout": TABLE}),
        json.dumps([{"stdout_lines": TABLE.splitlines()}], indent=2),
        json.dumps({"data": {"result": [{"values": [["17", x] for x in TABLE.splitlines()]}]}}),
        "".join(
            json.dumps({"labels": {"pod": "nccl-0"}, "line": line}) + "\n"
            for line in TABLE.splitlines()
        ),
    ],
)
def test_json_around_text(imported, content):
    result = imported(content, "log.json")
    assert (result.rows, result.refused) == (2, [])
    assert [each.reported.time_ns for each in result.runs[0].results][2:] == [24310, 24070]


def test_json_without_text_is_not_recognised(imported):
    for content in ('{"a": 1}', '[{"a": "b"}]', '{"log": 5}', "[" * 5000):
        with pytest.raises(UnreadableError):
            imported(content, "log.json")
