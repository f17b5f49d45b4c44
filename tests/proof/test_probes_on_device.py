"""The probes' branches for accelerators, on two ranks whose accelerator is simulated: time passes
there (tests/simulated_device.py), and a synchronise that is missing makes a figure wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import simulated_device
from ranks import Job
from simulated_device import BACKEND, CALL_S, SimulatedTorch

from torchcoll.machine.launcher import detect
from torchcoll.parts.proof import probes
from torchcoll.parts.proof.judge import PROVEN, judge_verification

CALL_NS = CALL_S * 1e9


def rank() -> None:
    """What each probe measures, on rank 0 into kept.json."""
    simulated_device.register()
    torch_, kept, launch = SimulatedTorch(), {}, detect()
    probes.PAIRS, probes.CALLS, probes.LEADS, probes.CLOCK_SIZES = 1, 3, 1, (4096,)
    probes.VERIFIED_TYPES = ("int32",)
    options = probes.ProbeOptions(BACKEND, "cuda")
    kept["clock"] = probes.measure_clock(torch_, launch, options, Path())
    simulated_device.CALL_S = simulated_device.BARRIER_S = 0.001  # no more times are looked at
    kept["verification"] = probes.measure_verification(torch_, launch, options, Path())
    if launch.rank == 0:
        Path("kept.json").write_text(json.dumps(kept))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated")
    ended = Job(folder, rank, 2).wait().values()
    assert [each.code for each in ended] == [0, 0], "\n".join(each.stderr for each in ended)
    return json.loads((folder / "kept.json").read_text())


def test_both_clocks_read_the_time_of_a_call(measured):
    assert [c["clock"] for c in measured["clock"]["compared"]] == ["host", "device"]
    for compared in measured["clock"]["compared"]:
        for pair in (*compared["pairs"], *compared["aa"]):
            assert all(CALL_NS <= ns < 4 * CALL_NS for ns in pair), compared


def test_planted_errors_on_a_device_are_seen(measured):
    assert judge_verification(measured["verification"]).status == PROVEN
