"""``capture(every=N)`` captures one step in N for hours; ``metrics=`` reports the last one.

Between captured steps no kernel of ours is installed; only the mark of each step remains.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import tell
from torchcoll.core.metrics import JOB, Labels, Metric, write_metrics
from torchcoll.core.traffic import TrafficCall
from torchcoll.parts.training.intervals import Union

if TYPE_CHECKING:
    from torchcoll.parts.training.recorded_calls import CallRecorder


class Sampling:
    """Decides which steps are captured: 1, N + 1, 2 N + 1, ... (the first step of a training is
    unusual).

    ``step`` is the mark.

    - on, off: begin and end recording calls.
    - poll: checks which calls have ended.
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
        self._recorder = recorder
        self._on, self._off, self._poll = on, off, poll
        self._metrics = metrics
        if metrics:
            recorder.keep_steps()
        # Captured steps that are not reported yet: some of their calls may not have ended at the
        # mark. The numbers among all marks, and among the captured steps.
        self._pending: deque[tuple[int, int]] = deque()
        self._recording = False
        self._prepare()

    def step(self) -> None:
        """Marks the end of a step; at most marks this is a no-op of a microsecond."""
        self.marked += 1
        self._poll()
        if self._recording:
            if self._metrics:  # otherwise the step would be reported one mark later than necessary
                self._recorder.wait_for_ends()
            self._recorder.step()
        if self._metrics:
            self._metrics.report()
            self._report(self._metrics)
        self._prepare()

    def _report(self, metrics: StepMetrics) -> None:
        """Reports the steps of which all calls have ended; on an accelerator this is after their
        mark.
        """
        if self._recording:
            self._pending.append((self.marked - 1, self._recorder.marked - 1))
        while self._pending and (step_data := self._recorder.take_step(self._pending[0][1])):
            metrics.add(*self._pending.popleft(), *step_data)

    def _prepare(self) -> None:
        """Starts or stops recording for the step that begins."""
        wanted = self.marked % self.every == 1 % self.every
        if wanted and not self._recording:
            self._on()
            self._recorder.begin_step()
        elif self._recording and not wanted:
            self._off()
        self._recording = wanted


TURNS = 8


class StepMetrics:
    """The last captured step, in a file for Prometheus that rank 0 writes.

    Each rank puts into the store how long it was in the collectives of each group, under TURNS keys
    in rotation. At each mark rank 0 checks, without waiting, whether all ranks have reported. A
    failure here ends the metrics alone.
    """

    def __init__(self, path: Path, store: Any, name: str, rank: int, ranks: int) -> None:
        self._path, self._store = path, store
        self._rank, self._ranks = rank, ranks
        self._key = f"torchcoll/metrics/{name}"
        # (number, turn) of the steps that rank 0 has not written yet. Newer ones overwrite older.
        self._waiting: deque[tuple[int, int]] = deque(maxlen=TURNS)
        self._broken = False
        self._labels: dict[str, object] = {"job": JOB, "world_size": ranks}
        if slurm_job_id := os.environ.get("SLURM_JOB_ID"):
            self._labels["slurm_job_id"] = slurm_job_id

    def add(
        self, number: int, turn: int, span: tuple[int, int], calls: Sequence[TrafficCall]
    ) -> None:
        """Reports a captured step of which all calls have ended.

        - number: the number of its mark.
        - turn: how many steps were captured before it.
        - span: its begin and end (ns).
        - calls: its calls.
        """
        of_groups: dict[str, list[TrafficCall]] = defaultdict(list)
        for call in calls:
            entry = COLLECTIVES.get(call.collective)
            waits_for_all = entry is not None and not entry.has_root
            if call.time_ns is not None and waits_for_all:
                of_groups[call.group].append(call)
        busy = {
            group: [len(group_calls), _busy_ns(group_calls)]
            for group, group_calls in of_groups.items()
        }
        status = {"step": number, "took_ns": span[1] - span[0], "busy": busy}
        self._safely(lambda: self._store.set(self._store_key(self._rank, turn), json.dumps(status)))
        if self._rank == 0:
            self._waiting.append((number, turn))

    def report(self) -> None:
        """Writes the newest step that all ranks have reported; only rank 0 has any to write."""
        self._safely(self._report)

    def _report(self) -> None:
        for number, turn in reversed(self._waiting):
            keys = [self._store_key(rank, turn) for rank in range(self._ranks)]
            if not self._store.check(keys):
                continue
            several = self._store.has_extended_api()
            texts = self._store.multi_get(keys) if several else [self._store.get(k) for k in keys]
            statuses = [json.loads(text) for text in texts]
            if all(status["step"] == number for status in statuses):
                while self._waiting.popleft() != (number, turn):
                    pass  # drop an older step
                write_metrics(self._path, step_metrics(statuses, time.time(), self._labels))
                return

    def _store_key(self, rank: int, turn: int) -> str:
        return f"{self._key}/{turn % TURNS}/{rank}"

    def _safely(self, action: Callable[[], object]) -> None:
        if self._broken:
            return
        try:
            action()
        except Exception as error:  # a full disk, a store that is gone
            self._broken = True
            tell(f"torchcoll: warning: metrics: {error}; the capture goes on without them")


def _busy_ns(calls: Sequence[TrafficCall]) -> int:
    """Returns how long any of these calls of one rank was in flight."""
    spans = [call.span for call in calls if call.span]
    return Union(spans).total if len(spans) == len(calls) else sum(c.time_ns or 0 for c in calls)


def _times_of_groups(statuses: Sequence[dict[str, Any]]) -> dict[str, dict[int, int]]:
    """Returns, by group, how long (ns) each of its ranks was in its collectives.

    A group whose ranks recorded different numbers of calls is omitted.
    """
    times: dict[str, dict[int, int]] = defaultdict(dict)
    counts: dict[str, set[int]] = defaultdict(set)
    for rank, status in enumerate(statuses):
        for name, (calls, ns) in status["busy"].items():
            times[name][rank] = ns
            counts[name].add(calls)
    return {
        name: times[name]
        for name in sorted(times)
        if len(times[name]) > 1 and len(counts[name]) == 1
    }


def step_metrics(statuses: Sequence[dict[str, Any]], now: float, common: Labels) -> list[Metric]:
    """Returns the metrics of one step.

    - statuses: for each rank ``step``, ``took_ns``, and ``busy``: group -> [number of its calls,
      how long any of them was in flight (ns)].
    - now: the time of the report, in seconds since 1970.
    - common: the labels of every series.

    The rank that came last did not wait, so its time is the transfer. A group whose ranks recorded
    different numbers of calls is omitted.
    """
    shared = _times_of_groups(statuses)
    least = {name: min(of.values()) / 1e9 for name, of in shared.items()}
    waits = {name: max(of.values()) / 1e9 - least[name] for name, of in shared.items()}
    caused = {name: sum(of.values()) / 1e9 - len(of) * least[name] for name, of in shared.items()}
    slowest = {name: min(of, key=lambda rank: of[rank]) for name, of in shared.items()}

    took = max(status["took_ns"] for status in statuses) / 1e9
    metrics = [
        Metric("step", "Number of the last captured step.", [(common, statuses[0]["step"])]),
        Metric("step_timestamp_seconds", "When it was reported, since 1970.", [(common, now)]),
        Metric("step_seconds", "How long it took, on the slowest rank.", [(common, took)]),
    ]
    in_groups: list[tuple[str, str, Mapping[str, float]]] = [
        ("transfer_seconds", "Time in collectives of the rank that was in them least.", least),
        ("wait_seconds", "By how much longer another rank of the group was in them.", waits),
        ("slowest_rank", "The rank that the others waited for: it was in them least.", slowest),
        ("caused_seconds", "Waiting of all other ranks together for that rank.", caused),
    ]
    for name, text, values in in_groups:
        samples: list[tuple[dict[str, object], float]]
        samples = [({**common, "group": group}, value) for group, value in values.items()]
        metrics.append(Metric(f"step_{name}", text, samples))
    return metrics
