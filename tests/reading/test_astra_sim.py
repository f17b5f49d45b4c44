"""ASTRA-sim's output."""

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
# Said on 22 November 2026 by AstraSim_Analytical_Congestion_Unaware (astra-sim 518bd513) to
# traces of a run of 2 gloo ranks; the ring's four lines of each rank are one here.
SAID = """\
torchcoll case: collective=all_to_all size_bytes=4096 ranks=2
[2026-11-22 15:59:58.949] [system::topology::RingTopology] [info] ring of node 0, id: 0 dimension: \
local total nodes in ring: 2 index in ring: 0 offset: 1 total nodes in ring: 2
[2026-11-22 15:59:58.950] [workload] [info] sys[1] finished, 310150 cycles, exposed communication \
310150 cycles.
[2026-11-22 15:59:58.950] [statistics] [info] sys[1]. Post statistics processing start.
[2026-11-22 15:59:58.950] [statistics] [info] sys[1]. Post statistics processing end.
[2026-11-22 15:59:58.950] [statistics] [info] sys[1], Wall time: 310150
[2026-11-22 15:59:58.950] [statistics] [info] sys[1], Comm time: 310150
[2026-11-22 15:59:58.950] [workload] [info] sys[0] finished, 310150 cycles, exposed communication \
310150 cycles.
[2026-11-22 15:59:58.950] [statistics] [info] sys[0]. Post statistics processing start.
[2026-11-22 15:59:58.950] [statistics] [info] sys[0]. Post statistics processing end.
[2026-11-22 15:59:58.950] [statistics] [info] sys[0], Wall time: 310150
[2026-11-22 15:59:58.950] [statistics] [info] sys[0], Comm time: 310150
[2026-11-22 15:59:58.950] [system] [warning] Exiting
"""


def test_the_simulators_output_is_read_completely(tmp_path):
    path = tmp_path / "sim.log"
    path.write_text(SAID)
    run = torchcoll.load(path)
    (row,) = summarise_run(run)
    assert (row.collective, row.size_bytes, row.ranks) == ("all_to_all", 4096, 2)
    assert row.median_ns == 310150
    assert not [event for event in run.events if "refused" in str(event)]


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


def test_a_size_on_several_numbers_of_ranks_is_no_repetition(tmp_path):
    path = tmp_path / "sim.log"
    more = CASE.replace("ranks=2", "ranks=3") + "".join(LINE.format(n, 8, 8) for n in range(3))
    whole = CASE + LINE.format(0, 9, 9) + LINE.format(1, 9, 9)
    for text, repeated in ((whole + more, False), (whole + whole, True)):
        path.write_text(text)
        assert ("measured up to 2 times" in str(torchcoll.load(path).events)) == repeated


def test_cycles_of_no_case_are_refused(tmp_path):
    path = tmp_path / "sim.log"
    path.write_text(LINE.format(0, 9000, 9000))
    with pytest.raises(TorchcollError, match="cycles of no known case: print a line"):
        torchcoll.load(path)
