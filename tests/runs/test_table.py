"""A run as a pandas table."""

from __future__ import annotations

import math

import pytest

import torchcoll
from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Run
from torchcoll.runs.export import table

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
    assert len(frame.columns) == 43
