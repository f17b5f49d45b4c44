"""ASTRA-sim's output, and the input that a model becomes for it."""

from __future__ import annotations

import pytest

import torchcoll
from torchcoll.core.errors import TorchcollError
from torchcoll.core.plausibility import summarise_run

LINE = (
    "[2026-11-22 10:00:00.000] [workload] [info] sys[{}] finished, {} cycles, exposed "
    "communication {} cycles.\n"
)
CASE = "torchcoll case: collective=all_reduce size_bytes=1048576 ranks=2\n"


def test_the_last_npu_ends_the_case(tmp_path):
    path = tmp_path / "sim.log"
    path.write_text(CASE + LINE.format(0, 72000, 72000) + LINE.format(1, 73500, 73500))
    (row,) = summarise_run(torchcoll.load(path))
    assert (row.collective, row.size_bytes, row.ranks) == ("all_reduce", 1 << 20, 2)
    assert (row.median_ns, row.statistic) == (73500, "simulated")  # a cycle is a nanosecond


def test_a_simulation_that_stops_midway_is_no_case(tmp_path):
    path = tmp_path / "sim.log"
    whole = CASE + LINE.format(0, 9000, 9000) + LINE.format(1, 9000, 9000)
    path.write_text(whole + CASE.replace("1048576", "4096") + LINE.format(1, 5, 5))
    run = torchcoll.load(path)
    assert [result.size_bytes for result in run.results] == [1 << 20]
    assert "all_reduce of 4096 bytes stopped midway: 1 of 2 NPUs finished" in str(run.events)
    path.write_text(CASE + LINE.format(0, 9000, 9000))
    with pytest.raises(TorchcollError, match="stopped midway: 1 of 2 NPUs finished"):
        torchcoll.load(path)


def test_cycles_of_no_case_are_refused(tmp_path):
    path = tmp_path / "sim.log"
    path.write_text(LINE.format(0, 9000, 9000))
    with pytest.raises(TorchcollError, match=r"cycles of no known case: .*run\.sh"):
        torchcoll.load(path)
