"""A run as a pandas table."""

from __future__ import annotations

import dataclasses
import io
import json
import math

import made_runs
import pytest
from error_form import error_tail, error_text

import torchcoll
from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.result import CaseResult, Reported, Run
from torchcoll.questions.show.frames import table

CASE = Case("all_reduce", 1000, "float32", "sum", None, True, "synchronized", "gloo", "cpu")


@pytest.fixture
def run() -> Run:
    done = CaseResult(
        CASE,
        "ok",
        2,
        count=250,
        size_bytes=1000,
        cold_ns=[[9_000], [8_000]],
        time_ns={"host": [[1_000, 2_000, 3_000], [2_000, 1_000, 1_000]]},
    )
    return Run(results=[done, CaseResult(CASE, "oom", 2, "too large")])


def test_one_row_a_case_in_base_units(run):
    frame = table(run)
    assert len(frame) == 2
    first = frame.iloc[0]
    # The slower rank of the three calls takes 2, 2, 3 us.
    assert (first["median_ns"], first["first_call_ns"], first["calls"]) == (2_000, 9_000, 3)
    assert (first["algbw_gbps"], first["busbw_gbps"]) == (0.5, 0.5)
    assert (frame["status"].tolist(), frame["reason"].tolist()) == (
        ["ok", "oom"],
        ["", "too large"],
    )
    assert math.isnan(frame["median_ns"][1])


def test_read_otherwise(run):
    assert table(run, over_ranks="min")["median_ns"][0] == 1_000
    assert table(run, clock="device")["calls"][0] == 0


def test_without_rows_the_columns_are_there():
    frame = torchcoll.table(Run())
    assert len(frame) == 0
    assert list(frame.columns)[:3] == ["collective", "backend", "library"]
    assert len(frame.columns) == 43 + 5  # of where the rows are from


def night(number, **labels):
    """An all_reduce as another tool's log tells it, on one of two hosts."""
    case = dataclasses.replace(CASE, size_bytes=1024)
    done = CaseResult(case, "ok", 2, count=256, size_bytes=1024)
    done.reported = Reported(time_ns=1_000.0 * number)
    header = {
        "run_id": f"run{number}", "start_utc": f"2026-01-{number:02}T00:00:00Z", "ranks": 2,
        "source": {"file": f"night{number}.log", "tool": "nccl-tests"}, "spec": {"labels": labels},
    }  # fmt: skip
    return Run(header, [{"rank": 0, "host": f"node{number % 2}"}], results=[done])


def test_thirty_nights_can_be_told_apart():
    frame = table([night(number, site="a", **{"kernel v": "6"}) for number in range(1, 31)])
    assert len(frame) == 30 and list(frame.index) == list(range(30))
    assert list(frame["run_id"]) == [f"run{number}" for number in range(1, 31)]
    assert list(frame["file"])[:2] == ["night1.log", "night2.log"]
    assert frame.groupby("host")["median_ns"].count().to_dict() == {"node0": 15, "node1": 15}
    assert frame["start_utc"].iloc[-1] == "2026-01-30T00:00:00Z"
    assert set(frame["label_site"]) == {"a"} and set(frame["label_kernel v"]) == {"6"}


def test_a_run_over_several_hosts_has_no_node():
    run = made_runs.run(made_runs.measured(5), hosts=["a", "b"])
    assert (table(run)["host"][0], table(run)["node"][0]) == ("a", None)
    run = made_runs.run(made_runs.measured(5), hosts=["a"])
    assert table(run)["node"][0] == "a"


def test_the_rows_of_json_too():
    out = io.StringIO()
    torchcoll.show(night(1), night(2, site="b"), format="json", file=out)
    first, second = (found["rows"][0] for found in json.loads(out.getvalue()))
    names = ("run_id", "file", "host", "node", "start_utc")
    start = "2026-01-01T00:00:00Z"
    assert [first[name] for name in names] == ["run1", "night1.log", "node1", "node1", start]
    assert (second["file"], second["label_site"]) == ("night2.log", "b")
    assert "label_site" not in first


def test_a_continuation_is_a_launch_of_its_own(run):
    late = CaseResult(dataclasses.replace(CASE, size_bytes=2000), "ok", 2)
    further = Run({"run_id": "second", "start_utc": "2026-01-02T00:00:00Z"}, results=[late])
    run.header |= {"run_id": "first", "start_utc": "2026-01-01T00:00:00Z"}
    run.results.append(late)
    run.continuations.append(further)
    assert list(table(run)["run_id"]) == ["first", "first", "second"]


def test_what_was_found_is_a_table(run):
    """The rows that its JSON has."""
    run.results.pop()
    compared = torchcoll.compare(run, run)
    frame = table(compared)
    assert len(frame) == 1
    assert frame["size_bytes"][0] == 1000 and "ratio" in frame.columns
    with pytest.raises(UsageError, match=error_text("^table", "rank0 of Comparison")):
        table(compared, over_ranks="rank0")
    with pytest.raises(UsageError, match=error_text("^table", error_tail("list", "a Run"))):
        table([])
