"""``capture(every=N)``: a step in N is captured, for hours; and ``metrics=``, what it was like.

Between them nothing of ours stands above the kernels of the backends: a mark of a step is all that
is left. At most MOST steps are kept: then every second of them goes, and N is twice as large. All
ranks mark the same steps, so they keep the same ones.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import tell
from torchcoll.core.metrics import Metric, write_metrics
from torchcoll.core.traffic import TrafficCall

if TYPE_CHECKING:
    from torchcoll.training.recorded_calls import CallRecorder

MOST = 512  # an hour has 7 of them in three days, and a step of 500 calls makes 60 MB of them


@dataclass
class _Untold:
    """A captured step whose figures are not told yet: calls of it may not have ended at its mark.

    number: of the marks; turn: of the captured steps, on all ranks alike; kept: of those kept.
    """

    number: int
    turn: int
    kept: int


class Sampling:
    """Which steps are captured: 1, N + 1, 2 N + 1, ... (the first of a training is like no other).

    on, off: begin and end to see calls. poll: looks which have ended. ``step`` is the mark.
    """

    def __init__(
        self,
        every: int,
        recorder: CallRecorder,
        on: Callable[[], None],
        off: Callable[[], None],
        poll: Callable[[], None],
        metrics: StepMetrics | None,
    ) -> None:
        self.every = every
        self.marked = 0
        self._thins = every > 1
        self._recorder = recorder
        self._on, self._off, self._poll = on, off, poll
        self._metrics = metrics
        if metrics:
            recorder.hold_steps()
        self._untold: deque[_Untold] = deque()
        self._turns = 0
        self._seeing = False
        self._prepare()

    def step(self) -> None:
        """The end of a step. A no-op of a microsecond at most of them."""
        self.marked += 1
        self._poll()
        if self._seeing:
            if self._metrics:  # else this step is told a mark later for nothing
                self._recorder.settle()
            self._recorder.step()
        if self._metrics:
            self._metrics.look()
            self._tell(self._metrics)
        if self._seeing and self._thins and self._recorder.kept >= MOST:
            # What is forgotten before it was told is never told: one step in 256 at most.
            self._recorder.thin()
            self.every *= 2
            self._untold = deque(step for step in self._untold if step.kept % 2 == 0)
            for step in self._untold:
                step.kept //= 2
        self._prepare()

    def _tell(self, metrics: StepMetrics) -> None:
        """The steps of which all calls have ended: on an accelerator after their mark."""
        if self._seeing:
            self._untold.append(_Untold(self.marked - 1, self._turns, self._recorder.kept - 1))
            self._turns += 1
        while self._untold and (known := self._recorder.step_of(self._untold[0].kept)):
            step = self._untold.popleft()
            metrics.add(step.number, step.turn, *known)

    def _prepare(self) -> None:
        """For the step that begins."""
        wanted = self.marked % self.every == 1 % self.every
        if wanted and not self._seeing:
            self._on()
            self._recorder.begin_step()
        elif self._seeing and not wanted:
            self._off()
        self._seeing = wanted


TURNS = 8


class StepMetrics:
    """The last captured step, in a file for Prometheus that rank 0 writes.

    Each rank says in the store how long it was in the collectives of each group, under TURNS keys
    in turn: on an accelerator ranks learn the ends of calls some steps apart. Rank 0 looks at each
    mark until all have said it, without waiting. What fails here ends the metrics alone.
    """

    def __init__(self, path: Path, store: Any, name: str, rank: int, ranks: int) -> None:
        self._path, self._store = path, store
        self._rank, self._ranks = rank, ranks
        self._key = f"torchcoll/metrics/{name}"
        # (number, turn) of the steps that rank 0 has not told yet. Others overwrite older ones.
        self._waiting: deque[tuple[int, int]] = deque(maxlen=TURNS)
        self._broken = False

    def add(
        self, number: int, turn: int, span: tuple[int, int], calls: Sequence[TrafficCall]
    ) -> None:
        """A captured step of which all calls have ended: its number, how many were captured before
        it, its begin and end, and its calls.
        """
        busy: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for call in calls:
            entry = COLLECTIVES.get(call.collective)
            waits_for_all = entry is not None and not entry.has_root
            if call.time_ns is not None and waits_for_all:
                busy[call.group][0] += 1
                busy[call.group][1] += call.time_ns
        word = {"step": number, "took_ns": span[1] - span[0], "busy": busy}
        self._safely(lambda: self._store.set(self._key_of(self._rank, turn), json.dumps(word)))
        if self._rank == 0:
            self._waiting.append((number, turn))

    def look(self) -> None:
        """Rank 0 tells the newest step that all have told."""
        self._safely(self._tell)

    def _tell(self) -> None:
        for number, turn in reversed(self._waiting):
            keys = [self._key_of(rank, turn) for rank in range(self._ranks)]
            if not self._store.check(keys):
                continue
            several = self._store.has_extended_api()
            texts = self._store.multi_get(keys) if several else [self._store.get(k) for k in keys]
            words = [json.loads(text) for text in texts]
            if all(word["step"] == number for word in words):
                while self._waiting.popleft() != (number, turn):
                    pass  # an older one, which a rank forgot as its steps were thinned
                write_metrics(self._path, step_metrics(words, time.time()))
                return

    def _key_of(self, rank: int, turn: int) -> str:
        return f"{self._key}/{turn % TURNS}/{rank}"

    def _safely(self, action: Callable[[], object]) -> None:
        if self._broken:
            return
        try:
            action()
        except Exception as error:  # a full disk, a store that is gone
            self._broken = True
            tell(f"torchcoll: warning: metrics: {error}; the capture goes on without them")


def step_metrics(words: Sequence[dict[str, Any]], now: float) -> list[Metric]:
    """words: of each rank ``step``, ``took_ns``, and ``busy``: by the group how many calls, and
    their time. A rank that came last waited for none: its time is what the transfer took. Of a
    group whose ranks did not see equally many calls nothing is told.
    """
    groups: dict[str, dict[int, float]] = defaultdict(dict)
    counts: dict[str, set[int]] = defaultdict(set)
    for rank, word in enumerate(words):
        for name, (calls, ns) in word["busy"].items():
            groups[name][rank] = ns / 1e9
            counts[name].add(calls)
    alike = [name for name in sorted(groups) if len(groups[name]) > 1 and len(counts[name]) == 1]
    shared = {name: groups[name] for name in alike}
    least = {name: min(of.values()) for name, of in shared.items()}
    waits = {name: max(of.values()) - least[name] for name, of in shared.items()}
    slowest = {name: min(of, key=lambda rank: of[rank]) for name, of in shared.items()}

    none: dict[str, object] = {}
    took = max(word["took_ns"] for word in words) / 1e9
    metrics = [
        Metric("step", "Number of the last captured step.", [(none, words[0]["step"])]),
        Metric("step_timestamp_seconds", "When it was told, since 1970.", [(none, now)]),
        Metric("step_seconds", "How long it took, on the slowest rank.", [(none, took)]),
    ]
    for name, text, of_groups in (
        (
            "step_transfer_seconds",
            "Time in its collectives of the rank of the group that was in them least.",
            least,
        ),
        (
            "step_wait_seconds",
            "By how much longer another rank of the group was in them: it waited.",
            waits,
        ),
        (
            "step_slowest_rank",
            "The rank that the others waited for: it was in the collectives least.",
            {group: float(rank) for group, rank in slowest.items()},
        ),
    ):
        samples: list[tuple[dict[str, object], float]]
        samples = [({"group": group}, value) for group, value in of_groups.items()]
        metrics.append(Metric(name, text, samples))
    return metrics
