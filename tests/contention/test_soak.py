"""--soak: rounds for a while, on real ranks, and what hours of them say."""

from __future__ import annotations

import json
import os
import signal

import pytest
from ranks import Measured

from torchcoll.bench import verify
from torchcoll.bench.soak import WINDOWS
from torchcoll.contention.show import curve
from torchcoll.contention.soaked import soaked
from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.file import load
from torchcoll.core.result import Run, SoakCase, SoakWindow
from torchcoll.core.units import parse_duration
from torchcoll.runs.show import show

CASE = Case("all_reduce", 1 << 20, "float32", "sum", None, True, "synchronized", "gloo", "cpu")


def with_a_flipped_bit(rank: int) -> None:
    """Of rank 1 in round 7, in place 17; and its SIGUSR1 in round 9, which ends the hour."""
    counted, rounds = verify.Checker.count_wrong, [0]

    def count_wrong(self):
        rounds[0] += 1
        if rank == 1 and rounds[0] == 7:
            self._buffers.recv.view(verify_bits(self))[17] ^= 1
        if rank == 1 and rounds[0] == 9:
            os.kill(os.getpid(), signal.SIGUSR1)
        return counted(self)

    verify.Checker.count_wrong = count_wrong


def verify_bits(checker):
    import torch

    return {4: torch.int32}[checker._buffers.recv.element_size()]


def test_a_bit_in_round_7_is_named_and_a_signal_ends_it(tmp_path, capsys):
    job = Measured(
        tmp_path / "job", "all_reduce", "--sizes 1K -n 5 --soak 1h", 2, setup=with_a_flipped_bit
    ).ended(1)
    run = job.run
    assert run.complete
    (fault,) = soaked(run).faults
    assert fault.startswith("round 7: all_reduce 1K float32 sum on gloo: 1 of 512 elements wrong; ")
    assert "first on rank 1, element 17: " in fault
    assert f"torchcoll: error: soak: 1 fault. First: {fault}" in job.stderr()
    assert run.windows[0].first_round == 2
    assert 8 <= run.windows[-1].last_round <= 12  # the watchdog looks four times a second
    (result,) = run.results  # of the first round alone, whole
    assert result.status == "ok"
    show(job.path)
    out = capsys.readouterr().out
    assert "): 1 fault; too few windows to tell of drift" in out
    assert f"FAULT {fault}" in out
    show(job.path, format="json")
    (case,) = json.loads(capsys.readouterr().out)["soak"]["cases"]
    assert case["calls"] == 5 * (run.windows[-1].last_round - 1)


def test_a_soak_shorter_than_a_round(tmp_path):
    job = Measured(tmp_path / "job", "all_reduce", "--sizes 1K,2K -n 50 --soak 0.001s", 2).ended(1)
    line = "torchcoll: error: soak: got 0.001 s, expected more than one round, which took "
    assert line in job.stderr()
    assert len(job.run.results) == 2  # what was measured is there


@pytest.mark.parametrize("text", ["30", "m", "", "0s", "-3h", "nans", "infh", "1w"])
def test_what_is_no_time(text):
    with pytest.raises(UsageError, match=r"^soak: got .*expected a time above 0 with its unit"):
        parse_duration(text, "soak")


def test_times():
    assert [parse_duration(text, "soak") for text in ("90s", "30m", "1.5h", "2d")] == [
        *(90, 1800, 5400, 172800)
    ]


def window(number: int, median_ns: float, slowest: dict[str, int]) -> SoakWindow:
    start = number * 60_000_000
    case = SoakCase(CASE, 100, median_ns, 2 * median_ns, 3 * median_ns, {"80": 100}, slowest)
    return SoakWindow(number, number, start, start + 60_000_000, (case,))


def test_drift_the_worst_window_and_the_rank_that_is_late():
    """Medians that grow by a constant factor, 1.5 in all: a line of the logarithms without any
    error. 2^(81 / 8) ns is the upper end of bin 80.
    """
    medians = [1000 * 1.5 ** (k / 9) for k in range(10)]
    windows = [window(k + 2, ns, {"0": 30, "1": 70}) for k, ns in enumerate(medians)]
    (found,) = soaked(Run(windows=windows)).cases
    assert found.drift.value == pytest.approx(0.5)
    assert found.drift.low == pytest.approx(0.5) == found.drift.high
    assert (found.worst, found.worst_us) == (9, 11 * 60_000_000)
    assert found.slowest == (1, 0.7)
    assert found.p99_ns == pytest.approx(2 ** (81 / 8))
    assert found.max_ns == pytest.approx(4500)
    assert found.calls == 1000


def test_the_interval_of_the_drift():
    """log medians 0, 0.3, 0, 0.3 at shares 0, 1/3, 2/3, 1. By hand: slope = Sxy / Sxx = (0.1) /
    (5/9) = 0.18; residual sum of squares 0.09 - 0.18 x 0.1 = 0.072, over 2 degrees 0.036; error of
    the slope sqrt(0.036 / (5/9)) = 0.25456; t of 2 degrees at 90 % is 2.91999: +- 0.74331.
    """
    from math import exp, expm1

    medians = [1000, 1000 * exp(0.3)] * 2
    windows = [window(k, ns, {}) for k, ns in enumerate(medians)]
    (found,) = soaked(Run(windows=windows)).cases
    assert found.drift.value == pytest.approx(expm1(0.18))
    assert found.drift.low == pytest.approx(expm1(0.18 - 0.74331), rel=1e-4)
    assert found.drift.high == pytest.approx(expm1(0.18 + 0.74331), rel=1e-4)
    assert found.slowest is None


def test_three_windows_tell_nothing_of_drift():
    windows = [window(k, 1000, {}) for k in range(3)]
    assert soaked(Run(windows=windows)).cases[0].drift is None
    assert soaked(Run()) is None


def test_a_window_in_a_file():
    one = window(3, 1000.5, {"0": 100})
    assert SoakWindow.from_json(json.loads(json.dumps(one.to_json()))) == one
    for broken in ({"first_round": "x"}, {"cases": [{}]}, {"end_wall_us": None}):
        with pytest.raises((TypeError, KeyError, ValueError)):
            SoakWindow.from_json({**one.to_json(), **broken})


def test_a_broken_window_is_a_problem_and_the_rest_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        {"record": "header", "schema": "torchcoll/2", "ranks": 2},
        {"record": "soak", "first_round": None},
        {"record": "soak", **window(2, 1000, {}).to_json()},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = load(path)
    assert len(run.windows) == 1
    assert any("a.jsonl:2" in problem for problem in run.problems)


def test_the_curve():
    assert curve([1, 2, 3, 8]) == "▁▂▃█"
    assert curve([5, 5]) == "▁▁"
    assert len(curve(range(WINDOWS))) == 24
