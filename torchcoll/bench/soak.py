"""``--soak``: all cases again and again for hours, every round checked, the file bounded.

The first round is kept like every run, sample by sample. Of the later ones each window of time
(at most WINDOWS of them) keeps, case by case, the median, p99 and maximum of its calls, a
histogram, and how often each rank was the last. What a checked call put out is held against the
first round, bit by bit, and against the ranks that should have the same. Loaded where it is asked
for.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchcoll.core.units import counted

if TYPE_CHECKING:
    from torchcoll.bench.recorder import Recorder
    from torchcoll.bench.session import Sweep
    from torchcoll.core.case import Case
    from torchcoll.core.result import CaseResult

WINDOWS = 240
FAULTS = 20  # that are recorded one by one; the rest are counted


def soak(sweep: Sweep, seconds: float, tell: Callable[[str], None] | None) -> str | None:
    """What makes the exit code 1, on all ranks alike; None where nothing does.

    tell: on rank 0, how far it is. Ends after the case in which the time is over, or a rank was
    asked to stop (SIGUSR1).
    """
    session, began = sweep.session, time.monotonic()
    account = _Account(sweep, seconds) if session.recorder else None
    sweep.digested = True
    for sizing in session.sizings:
        sweep.one_case(sizing)
        if account:
            account.first(sizing.case, sweep.gathered)
    took, rounds = time.monotonic() - began, 1
    if session.control.decide(took >= seconds) and not session.asked_to_stop:
        if account:
            account.close()
        return f"soak: got {seconds:g} s, expected more than one round, which took {took:.0f} s"
    going = True
    while going:
        rounds += 1
        for sizing in session.sizings:
            over = time.monotonic() - began >= seconds
            # Rank 0's clock alone, but anybody's signal.
            stops = session.control.gather(session.asked_to_stop)
            going = not session.control.decide(account and (over or any(stops)))
            if not going:
                break
            results = sweep.measured(sizing)
            if account:
                account.add(rounds, sizing.case, results, sweep.gathered)
                if tell:
                    left = max(0.0, seconds - (time.monotonic() - began)) / 60
                    tell(f"round {rounds}, {sizing.case.describe()}, {left:.0f} min left")
    if account:
        account.close()
    failure: str | None = session.control.decide(account and account.failure())
    return failure


@dataclass
class _Gathering:
    """Of one case in the window that is being filled."""

    times: list[int] = field(default_factory=list)
    slowest: Counter[int] = field(default_factory=Counter)


class _Account:
    """Rank 0's: fills windows, and holds what was put out against the first round."""

    def __init__(self, sweep: Sweep, seconds: float) -> None:
        recorder = sweep.session.recorder
        assert recorder is not None
        self._recorder: Recorder = recorder
        self._window_s = seconds / WINDOWS
        self._digests: dict[Case, list[Any]] = {}
        self._open: dict[Case, _Gathering] = {}
        self._rounds = (0, 0)
        self._began_us = 0
        self.faults = 0

    def first(self, case: Case, gathered: Sequence[dict[str, Any]]) -> None:
        digests = [words.get("digests") for words in gathered]
        self._digests[case] = digests
        self._unlike(1, case, digests)

    def add(
        self,
        number: int,
        case: Case,
        results: Sequence[CaseResult],
        gathered: Sequence[dict[str, Any]],
    ) -> None:
        if number > self._rounds[1] and self._open and self._full():
            self.flush()
        now = time.time_ns() // 1000
        if not self._open:
            self._rounds, self._began_us = (number, number), now
        self._rounds = (self._rounds[0], number)
        digests = [words.get("digests") for words in gathered]
        bad = [result for result in results if not result.expected]
        for result in bad:
            self._fault(f"round {number}: {result.case.describe()}: {result.reason}")
        if not bad:
            self._unlike(number, case, digests)
            for rank, (one, before) in enumerate(zip(digests, self._digests[case], strict=True)):
                if one != before:
                    text = f"{self._names(rank)} has other bits than in round 1"
                    self._fault(f"round {number}: {case.describe()}: {text}")
        gathering = self._open.setdefault(case, _Gathering())
        for result in results:
            clocks = list(result.time_ns.values())
            for call in zip(*clocks[0], strict=True) if clocks else ():
                last = max(call)
                gathering.times.append(last)
                if case.mode == "synchronized":  # without a barrier the last is not the late one
                    place = call.index(last)
                    gathering.slowest[(result.members or range(len(call)))[place]] += 1

    def _full(self) -> bool:
        return time.time_ns() // 1000 - self._began_us >= self._window_s * 1e6

    def _names(self, rank: int) -> str:
        return f"rank {rank}"

    def _unlike(self, number: int, case: Case, digests: Sequence[Any]) -> None:
        """Ranks that should have put out the same and have not, named against the most."""
        of_key: dict[str, list[tuple[int, Any]]] = {}
        for rank, one in enumerate(digests):
            if one:
                of_key.setdefault(one[0][0], []).append((rank, one))
        for ranks in of_key.values():
            usual = Counter(str(one) for _, one in ranks).most_common(1)[0][0]
            for rank, one in ranks:
                if str(one) != usual:
                    text = f"{self._names(rank)} has other bits than the ranks with the same output"
                    self._fault(f"round {number}: {case.describe()}: {text}")

    def _fault(self, text: str) -> None:
        self.faults += 1
        if self.faults <= FAULTS:
            self._recorder.event("soak", text)

    def flush(self) -> None:
        from torchcoll.core.result import SoakCase, SoakWindow

        cases = [
            SoakCase(
                case,
                len(found.times),
                statistics.median(found.times),
                _p99(found.times),
                max(found.times),
                dict(Counter(str(int(8 * math.log2(max(ns, 1)))) for ns in found.times)),
                {str(rank): calls for rank, calls in sorted(found.slowest.items())},
            )
            for case, found in self._open.items()
            if found.times
        ]
        if cases:
            now = time.time_ns() // 1000
            self._recorder.window(SoakWindow(*self._rounds, self._began_us, now, tuple(cases)))
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


def _p99(times: Sequence[int]) -> float:
    """The least time that 99 % of the calls do not pass."""
    return sorted(times)[math.ceil(0.99 * len(times)) - 1]
