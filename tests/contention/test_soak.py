"""--soak: rounds for a while, on real ranks, and what hours of them say."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import signal
import time
from types import SimpleNamespace

import pytest
from error_form import error_line, error_text
from ranks import Measured

from torchcoll.bench import soak, verify
from torchcoll.bench.control import Control
from torchcoll.bench.options import parse
from torchcoll.bench.output import Output
from torchcoll.bench.recorder import Recorder
from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.file import Writer
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.soak_windows import SoakCase, SoakWindow
from torchcoll.core.units import parse_duration
from torchcoll.questions.contention.soaked import soaked
from torchcoll.questions.show.show import show
from torchcoll.reading.inputs import load

CASE = Case("all_reduce", 1 << 20, "float32", "sum", None, True, "synchronized", "gloo", "cpu")


def with_a_flipped_bit(rank: int) -> None:
    """Of rank 1 in the first check of round 7, in place 17; and its SIGUSR1 in round 9, which ends
    the hour.
    """
    counted, rounds = verify.Checker.count_wrong, itertools.count(1)
    checker_of = verify.Checker.__init__

    def init(self, *arguments):
        self.round, self.checks = next(rounds), itertools.count()
        checker_of(self, *arguments)

    def count_wrong(self):
        if rank == 1 and next(self.checks) == 0:
            if self.round == 7:
                self._buffers.recv.view(verify_bits(self))[17] ^= 1
            if self.round == 9:
                os.kill(os.getpid(), signal.SIGUSR1)
        return counted(self)

    verify.Checker.__init__, verify.Checker.count_wrong = init, count_wrong


def verify_bits(checker):
    import torch

    return {4: torch.int32}[checker._buffers.recv.element_size()]


def test_a_bit_in_round_7_is_named_and_a_signal_ends_it(tmp_path, capsys):
    words = "--sizes 1K -n 5 --soak 1h"
    job = Measured(tmp_path / "job", "all_reduce", words, 2, setup=with_a_flipped_bit).ended(1)
    run = job.run
    assert run.complete
    (fault,) = soaked(run).faults
    # 256 elements on each of two ranks, in as many checks as a tenth of the calls needs.
    begin = r"round 7: all_reduce 1K float32 sum on gloo: 1 of (\d+) elements wrong; "
    counted = re.match(begin + "first on rank 1, element 17: ", fault)
    assert counted and int(counted[1]) % 512 == 0
    assert f"torchcoll: error: soak: 1 fault. First: {fault}" in job.stderr()
    assert run.windows[0].first_round == 2
    assert 8 <= run.windows[-1].last_round <= 12  # the watchdog looks four times a second
    (result,) = run.results  # of the first round alone, whole
    assert result.status == "ok"
    show(job.path)
    out = capsys.readouterr().out
    found = soaked(run)
    head = f"1 fault in {found.duration} of soak ({found.checked} of {found.calls} calls checked)"
    assert " ".join(out.split()).startswith(head)
    assert f"FAULT {fault}" in out
    show(job.path, format="json")
    (case,) = json.loads(capsys.readouterr().out)["soak"]["cases"]
    assert case["calls"] == 5 * (run.windows[-1].last_round - 1)


def with_a_slow_table(rank: int) -> None:
    """On a busy machine: torchrun would have ended rank 0 before it has told what failed."""
    with_a_flipped_bit(rank)
    close = Output.close

    def slow(self):
        if self._shown:
            time.sleep(1)
        close(self)

    Output.close = slow


def test_what_failed_is_told_before_another_rank_leaves(tmp_path):
    words = "--sizes 1K -n 5 --soak 1h"
    job = Measured(tmp_path / "job", "all_reduce", words, 2, setup=with_a_slow_table)
    job.job.until(lambda: job.job.running() != [0, 1])
    if 0 in job.job.running():  # as torchrun does where a rank has failed
        job.job.signal(0, signal.SIGTERM)
    job.ended(1)
    (fault,) = soaked(job.run).faults
    assert f"FAULT {fault}" in job.stdout()
    assert job.errors() == [f"torchcoll: error: soak: 1 fault. First: {fault}"]


def test_a_signal_while_the_failure_is_told(tmp_path):
    """It is told to its end; how the run has ended does not change any more."""

    def setup(rank: int) -> None:
        with_a_flipped_bit(rank)
        close = Output.close

        def ended(self):
            if self._shown:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.5)
            close(self)

        Output.close = ended

    job = Measured(tmp_path / "job", "all_reduce", "--sizes 1K -n 5 --soak 1h", 2, setup=setup)
    codes = job.job.codes()
    (fault,) = soaked(job.run).faults
    assert codes[0] == 1 and f"FAULT {fault}" in job.stdout()
    assert f"torchcoll: error: soak: 1 fault. First: {fault}" in job.stderr()
    assert job.run.end["exit_code"] == 1 and job.run.complete


def counting_keys(rank: int) -> None:
    """Rank 0 writes how many keys the store has after each round; the soak ends after the 21st."""
    kept = soak._Account.add

    def add(self, number, case, results, gathered):
        kept(self, number, case, results, gathered)
        store = control_of_rank_0[0].store
        with open("keys", "a") as file:
            file.write(f"{number} {store.num_keys()}\n")
        if number == 21:
            os.kill(os.getpid(), signal.SIGUSR1)

    soak._Account.add, control_of_rank_0, made = add, [], Control.__init__

    def init(self, *words):
        made(self, *words)
        control_of_rank_0.append(self)

    Control.__init__ = init


def test_the_store_of_a_soak_does_not_grow(tmp_path):
    words = "--sizes 1K -n 5 --soak 1h"
    job = Measured(tmp_path / "job", "all_reduce", words, 3, setup=counting_keys).ended(0)
    lines = (job.job.folder / "keys").read_text().splitlines()
    keys = dict(map(int, line.split()) for line in lines)
    # The others write and delete meanwhile, a few each: less than a key a round is no growth.
    assert abs(keys[21] - keys[3]) < 18


def of_three_rounds(rank: int) -> None:
    """However long they take on a busy machine."""
    kept = soak._Account.add

    def add(self, number, case, results, gathered):
        kept(self, number, case, results, gathered)
        if number == 3:
            os.kill(os.getpid(), signal.SIGUSR1)

    soak._Account.add = add


def test_sub_groups_of_unlike_size_are_no_fault(tmp_path):
    """Their sums differ. And nothing is said of what is not checked: the end of a soak without."""
    words, how = "--sizes 1K -n 5 --soak 1h", {"setup": of_three_rounds}
    job = Measured(tmp_path / "groups", "all_reduce", f"{words} --groups div:2", 3, **how)
    run = job.ended(0).run
    found = soaked(run)
    assert (found.faults, found.faulty) == ((), 0)
    rounds = run.windows[-1].last_round
    # Each round makes two cold calls at least, a ramp-up call or more, and five that are measured.
    assert found.calls - found.checked >= 8 * rounds
    assert found.calls <= 10 * found.checked
    text = f"{found.checked} of {found.calls} calls checked, all correct"
    assert text in " ".join(job.stdout().split())
    assert len(run.machine) == 2  # before the first round and after the last
    unchecked = Measured(tmp_path / "none", "all_reduce", f"{words} -c 0", 2, **how)
    assert "no result was checked" in " ".join(unchecked.ended(0).stdout().split())


@pytest.mark.parametrize(
    ("words", "iters"), [("", 20), ("-n 5", 5), ("--max-time 2", None), ("--precision 0.1", None)]
)
def test_rounds_are_short_unless_something_else_ends_a_case(words, iters):
    options = parse(f"--sizes 1K --soak 1h {words}".split(), "all_reduce", "x")
    assert options.spec.iters == iters


def test_a_min_is_checked_by_pairs_of_calls(tmp_path):
    """Two calls tell; both kinds of output are compared with those of the first round."""
    words = "--sizes 1K -n 40 --op min --soak 1h"
    run = Measured(tmp_path / "min", "all_reduce", words, 2, setup=of_three_rounds).ended(0).run
    found = soaked(run)
    assert (found.faulty, found.checked % 2) == (0, 0)
    assert found.checked <= found.calls <= 10 * found.checked


def stopped_in_round_1(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)


def test_a_signal_in_the_first_round(tmp_path):
    """Of one rank alone, twice: all end after the case that runs, and none thinks otherwise."""

    def told_early(rank: int) -> None:
        counted = verify.Checker.count_wrong

        def count_wrong(self):
            stopped_in_round_1(rank)
            return counted(self)

        verify.Checker.count_wrong = count_wrong

    words = "--sizes 1K,2K,4K,8K -n 2 --soak 1h"
    job = Measured(tmp_path / "job", "all_reduce", words, 2, setup=told_early).ended(0)
    assert job.run.complete
    assert 1 <= len(job.run.results) <= 4


def test_a_soak_shorter_than_a_round(tmp_path):
    job = Measured(tmp_path / "job", "all_reduce", "--sizes 1K,2K -n 50 --soak 0.001s", 2).ended(1)
    line = error_line("soak", "0.001 s", "more than one round, which took ")
    assert line in job.stderr()
    assert len(job.run.results) == 2  # what was measured is there


def with_a_disk_that_fills_in_window_3(rank: int) -> None:
    original, windows = Writer.write, [0]

    def write(self, record, data, durable=False):
        original(self, record, data, durable)
        windows[0] += record == "soak"
        if windows[0] == 2:
            most = os.path.getsize(self.path)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    Writer.write = write
    soak.WINDOWS = 36_000_000  # of a round each


def test_a_disk_that_fills(tmp_path):
    """One line, the same code on all ranks, and what was measured is in the file."""
    job = Measured(
        tmp_path / "job",
        "all_reduce",
        "--sizes 1K -n 5 --soak 1h",
        2,
        setup=with_a_disk_that_fills_in_window_3,
    )
    ended = job.job.wait(60)
    assert ended[0].code == ended[1].code != 0
    (line,) = job.errors()
    assert "File too large" in line
    assert len(job.run.windows) == 2
    assert job.run.way_on == ""  # a soak begins anew


class Clock:
    """time of bench/soak.py: seconds that the test sets, for both clocks apart."""

    def __init__(self) -> None:
        self.monotonic_s, self.wall_us = 0.0, 1_000_000_000_000

    def monotonic(self) -> float:
        return self.monotonic_s

    def time_ns(self) -> int:
        return 1000 * self.wall_us

    def pass_s(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.wall_us += int(1e6 * seconds)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(soak, "time", made)
    return made


def account(seconds: float = 240):
    """Of two ranks with the same output; 240 s are windows of one."""
    recorder = Recorder()
    sweep = SimpleNamespace(session=SimpleNamespace(recorder=recorder), subgroups=((0, 1),))
    return soak._Account(sweep, seconds), recorder.run


def of_round(clock, account, number, digests=(7, 7), wrong="", took_s=0.4):
    """A round of one case that takes so long and puts out these bits."""
    began = clock.wall_us
    clock.pass_s(took_s)
    counts = {"wrong": int(bool(wrong)), "calls": 30, "checked_calls": 3}
    gathered = [{**counts, "digests": {"0 0": ["same", bits]}} for bits in digests]
    if number == 1:
        account.first(CASE, gathered)
        return
    status = "wrong" if wrong else "ok"
    result = CaseResult(CASE, status, 2, reason=wrong, start_wall_us=began)
    result.time_ns = {"host": [[1000], [2000]]}
    account.add(number, CASE, [result], gathered)


def test_windows_are_of_the_monotonic_clock_and_stamped_by_the_calls(clock):
    """Rounds of 0.4 s in windows of 1 s: three of them pass 1 s. The wall clock is put back by an
    hour in between: no window is longer or shorter for it. Each begins where its first round did,
    and ends where its last one did.
    """
    kept, run = account()
    begun = clock.wall_us + 400_000
    for number in range(1, 9):
        if number == 6:
            clock.wall_us -= 3600_000_000
        of_round(clock, kept, number)
    kept.close()
    assert [(w.first_round, w.last_round) for w in run.windows] == [(2, 4), (5, 7), (8, 8)]
    first, second, last = ((w.start_wall_us - begun, w.end_wall_us - begun) for w in run.windows)
    assert first == (0, 1_200_000)
    assert second == (1_200_000, 2_400_000 - 3600_000_000)
    assert last == (2_400_000 - 3600_000_000, 2_800_000 - 3600_000_000)


def test_every_fault_is_counted(clock):
    """25 rounds in which rank 1 has other bits: than rank 0, and than in round 1. Of 50 the first
    20 are told one by one.
    """
    kept, run = account()
    of_round(clock, kept, 1)
    for number in range(2, 27):
        of_round(clock, kept, number, digests=(7, 8))
    kept.close()
    told = [event["message"] for event in run.events]
    assert len(told) == 21
    assert told[:2] == [
        "round 2: all_reduce 1M float32 sum on gloo: rank 1 has other bits than the ranks with the "
        "same output",
        "round 2: all_reduce 1M float32 sum on gloo: rank 1 has other bits than in round 1",
    ]
    assert told[-1] == "30 more like these"
    assert (soaked(run).faulty, soaked(run).checked, soaked(run).calls) == (50, 3 * 26, 30 * 26)
    assert kept.failure() == f"soak: 50 faults. First: {told[0]}"


def test_a_wrong_first_round_is_no_measure_of_the_others(clock):
    """What the second put out is: the fourth differs."""
    kept, run = account()
    of_round(clock, kept, 1, digests=(1, 1), wrong="3 elements wrong")
    for number, bits in ((2, 7), (3, 7), (4, 9)):
        of_round(clock, kept, number, digests=(bits, bits))
    kept.close()
    told = [event["message"].partition("gloo: ")[2] for event in run.events]
    assert told == [f"rank {rank} has other bits than in round 2" for rank in (0, 1)]
    assert (soaked(run).checked, soaked(run).calls) == (12, 120)


@pytest.mark.parametrize("text", ["30", "m", "", "0s", "-3h", "nans", "infh", "1w"])
def test_what_is_no_time(text):
    with pytest.raises(UsageError, match=error_text("^soak", ".*", "a time above 0 with its unit")):
        parse_duration(text, "soak")


def test_times():
    assert [parse_duration(text, "soak") for text in ("90s", "30m", "1.5h", "2d")] == [
        90,
        1800,
        5400,
        172800,
    ]


def window(number: int, median_ns: float) -> SoakWindow:
    start = number * 60_000_000
    case = SoakCase(CASE, 100, median_ns, 2 * median_ns, 3 * median_ns, {"80": 100}, {"1": 100})
    return SoakWindow(number, number, start, start + 60_000_000, (case,), 1, 0)


def soaked_of(medians: list[float]):
    return soaked(Run(windows=[window(k + 2, ns) for k, ns in enumerate(medians)]))


def test_a_step_is_told_as_large_as_it_is():
    """240 windows, twice as slow from half time on: the last quarter is 2 times the first."""
    found = soaked_of([1000.0] * 120 + [2000.0] * 120)
    drift = found.cases[0].drift
    assert drift.value == pytest.approx(1.0)
    assert drift.low < 1.0 < drift.high
    assert found.drifting == found.cases
    assert found.answer.headline == (
        "all_reduce 1M takes 100 % longer in the last quarter of 4.0 h than in the first"
    )


def test_the_interval_of_the_drift():
    """log medians of eight windows: 0 0 0.1 0 0 0.1 0 0. Last two less first two: 0. The line has
    the slope 0 (symmetric) and the height 0.025; squares 6 x 0.025^2 + 2 x 0.075^2 = 0.015, over 6
    degrees 0.0025: error 0.05. t of 6 degrees at 90 % is 1.94318: +- 0.097159.
    """
    from math import exp, expm1

    logs = [0, 0, 0.1, 0, 0, 0.1, 0, 0]
    found = soaked_of([1000 * exp(one) for one in logs])
    drift = found.cases[0].drift
    assert drift.value == pytest.approx(0, abs=1e-9)
    assert drift.low == pytest.approx(expm1(-0.097159), rel=1e-4)
    assert drift.high == pytest.approx(expm1(0.097159), rel=1e-4)
    assert drift.p == pytest.approx(1)
    assert found.drifting == ()
    # Found at p 0.05 in 9 of 10: (2.44691 + 1.43976) x 0.05 = 0.19433: 21 % is more than 5 %.
    assert found.answer.detectable == pytest.approx(expm1(0.19433), rel=1e-4)
    assert found.answer.headline == (
        "Cannot tell whether a case drifts in 8.0 min (only a drift of 21 % or more would have "
        "been found)"
    )


def test_a_small_drift_is_not_spoken_of():
    """1 % from the first to the last, without any noise: certain, and below 2 %."""
    found = soaked_of([1000 * 1.01 ** (k / 7) for k in range(8)])
    assert found.cases[0].drift.p == pytest.approx(0, abs=1e-9)
    assert found.drifting == ()
    headline = "no case drifts in 8.0 min (a drift of 2.0 % would have been found)"
    assert (found.answer.headline, found.answer.level) == (headline, "good")
    assert found.answer.details == ("8 calls checked, all correct",)  # nothing on other cases


def test_few_windows_cannot_tell_of_drift():
    answer = soaked_of([1000.0] * 7).answer
    assert answer.headline == (
        "Cannot tell whether a case drifts in 7.0 min (a drift of any size may be hidden)"
    )
    assert answer.next_step == "soak at least eight windows"


def test_the_worst_window():
    """2^(81 / 8) ns is the upper end of bin 80, 1117 ns: no p99 is above the largest time."""
    found = soaked_of([1000, 1500, 1200] * 3).cases[0]
    assert (found.worst, found.worst_us) == (1, 3 * 60_000_000)
    assert found.p99_ns == pytest.approx(2 ** (81 / 8))
    assert found.max_ns == pytest.approx(4500)
    assert found.calls == 900
    assert soaked(Run()) is None


def test_a_window_in_a_file():
    one = window(3, 1000.5)
    assert SoakWindow.from_json(json.loads(json.dumps(one.to_json()))) == one
    bins = {**one.to_json()["cases"][0], "bins": {"99999999": 1}}
    for broken in ({"first_round": "x"}, {"cases": [{}]}, {"faults": None}, {"cases": [bins]}):
        with pytest.raises((TypeError, KeyError, ValueError)):
            SoakWindow.from_json({**one.to_json(), **broken})


def test_a_broken_window_is_a_problem_and_the_rest_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        {"record": "header", "schema": "torchcoll/2", "ranks": 2},
        {"record": "soak", "first_round": None},
        {"record": "soak", **window(2, 1000).to_json()},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = load(path)
    assert len(run.windows) == 1
    assert any("a.jsonl:2" in problem for problem in run.problems)
