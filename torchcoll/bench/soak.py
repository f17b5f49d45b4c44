"""``--soak``: all cases again and again for hours, with checks in every round and a bounded file.

After the first round at most WINDOWS windows of time are recorded. The output of a checked call is
compared, bit by bit, with the first round and with ranks that should have the same.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UsageError
from torchcoll.core.units import counted

if TYPE_CHECKING:
    from torchcoll.bench.recorder import Recorder
    from torchcoll.bench.sweep import Sweep
    from torchcoll.core.case import Case
    from torchcoll.core.result import CaseResult

WINDOWS = 240
FAULTS = 20  # so many are recorded one by one; the rest are counted


def soak(sweep: Sweep, seconds: float, tell: Callable[[str], None] | None) -> str | None:
    """Repeat the cases until the time is over, after one round at least, or SIGUSR1. Returns what
    makes the exit code 1. tell: gets the progress on rank 0.
    """
    session, control, began, number = sweep.session, sweep.local.control, time.monotonic(), 0
    account = _Account(sweep, seconds) if session.recorder else None
    sweep.digested = True

    def hold(case: Case, results: Sequence[CaseResult] = ()) -> None:
        """Add to rank 0's account. If that fails (a full disk), all ranks raise its error."""

        def on_rank_0(recorder: Recorder) -> None:
            assert account
            if number == 1:
                account.first(case, sweep.gathered)
            else:
                account.add(number, case, results, sweep.gathered)

        session.on_rank_0(on_rank_0)

    def ends() -> bool:
        """By rank 0's clock, or a signal to any rank."""
        stops = control.gather(session.asked_to_stop)
        over = number > 1 and time.monotonic() - began >= seconds
        return bool(control.decide(account and (over or any(stops))))

    ended, short = False, None
    while not (ended or short):
        number += 1
        for sizing in session.sizings:
            if ended := ends():
                break
            if number == 1:
                sweep.one_case(sizing)
                hold(sizing.case)
                continue
            hold(sizing.case, sweep.measured(sizing))
            if tell:
                left = max(0.0, seconds - (time.monotonic() - began)) / 60
                tell(f"round {number}, {sizing.case.describe()}, {left:.0f} min left")
        if number == 1 and not ended:
            took, text = time.monotonic() - began, None
            if took >= seconds:
                expected = f"more than one round, which took {took:.2g} s"
                text = str(UsageError("soak", f"{seconds:g} s", expected))
            short = control.decide(account and text)
    sweep.finish()
    session.on_rank_0(lambda recorder: account.close() if account else None)
    failure: str | None = control.decide(account and (short or account.failure()))
    return failure


@dataclass
class _Gathering:
    """The calls of one case in the present window."""

    times: list[int] = field(default_factory=list)
    slowest: Counter[int] = field(default_factory=Counter)


class _Account:
    """Rank 0's account of a soak: fills windows, and compares outputs with the first round."""

    def __init__(self, sweep: Sweep, seconds: float) -> None:
        recorder = sweep.session.recorder
        assert recorder is not None
        self._recorder: Recorder = recorder
        self._window_s = seconds / WINDOWS
        self._subgroups = sweep.subgroups
        self._digests: dict[Case, tuple[int, list[Any]]] = {}  # (round, by rank)
        self._open: dict[Case, _Gathering] = {}
        self._rounds = (0, 0)
        self._began_us = self._ended_us = 0
        self._opened = time.monotonic()
        self.faults = self.checked = self.calls = 0
        self._written = (0, 0, 0)  # checked calls, faults and calls of the windows that are written

    def first(self, case: Case, gathered: Sequence[dict[str, Any]]) -> None:
        """Add a case of the first round, whose results are in the file."""
        right = all(answer.get("wrong", 1) == 0 for answer in gathered)
        self._hold(1, case, gathered, right)

    def add(
        self,
        number: int,
        case: Case,
        results: Sequence[CaseResult],
        gathered: Sequence[dict[str, Any]],
    ) -> None:
        full = time.monotonic() - self._opened >= self._window_s
        if number > self._rounds[1] and self._open and full:
            self.flush()
        if not self._open:
            start = results[0].start_wall_us if results else None
            self._rounds, self._began_us = (number, number), start or time.time_ns() // 1000
            self._opened = time.monotonic()
        from torchcoll.core.summary import default_clock

        self._rounds = (self._rounds[0], number)
        bad = [result for result in results if not result.expected]
        for result in bad:
            self._fault(number, result.case, result.reason)
        self._hold(number, case, gathered, not bad)
        gathering = self._open.setdefault(case, _Gathering())
        for result in results:
            # The clock of the table of the run.
            samples = result.time_ns.get(default_clock(result) or "", [])
            for call in zip(*samples, strict=True):
                last = max(call)
                gathering.times.append(last)
                if case.mode == "synchronized":  # without a barrier the last is not the late one
                    group_rank = call.index(last)
                    gathering.slowest[(result.members or range(len(call)))[group_rank]] += 1
        self._ended_us = time.time_ns() // 1000

    def _hold(
        self, number: int, case: Case, gathered: Sequence[dict[str, Any]], right: bool
    ) -> None:
        """Compare the outputs with those of other ranks, and with the first right round."""
        self.calls += gathered[0].get("calls", 0)
        self.checked += gathered[0].get("checked_calls", 0)
        answers = [answer.get("digests") for answer in gathered]
        if not right or not all(answers):
            return
        digests = [list(answer.values()) for answer in answers if answer]
        for subgroup in self._subgroups:
            self._unlike(number, case, {r: digests[r] for r in subgroup if r < len(digests)})
        before = self._digests.setdefault(case, (number, digests))
        for rank, (digest, other) in enumerate(zip(digests, before[1], strict=True)):
            if digest != other:
                self._fault(number, case, f"rank {rank} has other bits than in round {before[0]}")

    def _unlike(self, number: int, case: Case, digests: dict[int, Any]) -> None:
        """Name the ranks whose output differs from that of most ranks that should have the same."""
        of_key: dict[str, list[tuple[int, str]]] = {}
        for rank, digest in digests.items():
            of_key.setdefault(digest[0][0], []).append((rank, str(digest)))
        for ranks in of_key.values():
            usual = Counter(digest for _, digest in ranks).most_common(1)[0][0]
            for rank, digest in ranks:
                if digest != usual:
                    text = f"rank {rank} has other bits than the ranks with the same output"
                    self._fault(number, case, text)

    def _fault(self, number: int, case: Case, text: str) -> None:
        self.faults += 1
        if self.faults <= FAULTS:
            self._recorder.event("soak", f"round {number}: {case.describe()}: {text}")

    def flush(self) -> None:
        from torchcoll.core.soak_windows import SoakCase, SoakWindow

        cases = [
            SoakCase(
                case,
                len(measured.times),
                statistics.median(measured.times),
                sorted(measured.times)[math.ceil(0.99 * len(measured.times)) - 1],
                max(measured.times),
                dict(Counter(str(int(8 * math.log2(max(ns, 1)))) for ns in measured.times)),
                {str(rank): calls for rank, calls in sorted(measured.slowest.items())},
            )
            for case, measured in self._open.items()
            if measured.times
        ]
        if cases:
            stamps, written = (self._began_us, self._ended_us), self._written
            self._written = (self.checked, self.faults, self.calls)
            counts = (now - before for now, before in zip(self._written, written, strict=True))
            window = SoakWindow(*self._rounds, *stamps, tuple(cases), *counts)
            self._recorder.window(window)
        self._open = {}

    def close(self) -> None:
        self.flush()
        if self.faults > FAULTS:
            self._recorder.event("soak", f"{self.faults - FAULTS} more like these")

    def failure(self) -> str | None:
        if not self.faults:
            return None
        texts = [e["message"] for e in self._recorder.run.events if e["kind"] == "soak"]
        return f"soak: {counted(self.faults, 'fault')}. First: {texts[0]}"
