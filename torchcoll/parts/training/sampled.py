"""``capture(every=N)`` captures one step in N for hours; ``metrics=`` reports the last one.

Between captured steps no kernel of ours is installed; only the mark of each step remains. At most
MAX_STEPS_KEPT steps are kept: then every second of them is dropped, and N doubles. All ranks mark
the same steps, so they keep the same ones.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import tell
from torchcoll.core.intervals import Union
from torchcoll.core.metrics import JOB, Labels, Metric, write_metrics
from torchcoll.core.traffic import TrafficCall

if TYPE_CHECKING:
    from torchcoll.parts.training.arrivals import Arrivals, SplitCall
    from torchcoll.parts.training.recorded_calls import CallRecorder

Value = TypeVar("Value")

# In three days an hour has 7 of them; 512 steps of 500 calls take 60 MB.
MAX_STEPS_KEPT = 512


@dataclass
class _PendingStep:
    """A captured step that is not reported yet: some of its calls may not have ended at its mark.

    - number: its number among all marks.
    - turn: its number among the captured steps, equal on all ranks.
    - kept: its number among the kept steps.
    """

    number: int
    turn: int
    kept: int


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
        self._thins = every > 1
        self._recorder = recorder
        self._on, self._off, self._poll = on, off, poll
        self._metrics = metrics
        if metrics:
            recorder.keep_steps()
        self._pending: deque[_PendingStep] = deque()
        self._captured = 0
        self._recording = False
        self._prepare()

    def step(self) -> Arrivals | None:
        """Marks the end of a step; at most marks this is a no-op of a microsecond.

        Returns what ``StepMetrics.report`` does.
        """
        arrivals = None
        self.marked += 1
        self._poll()
        if self._recording:
            if self._metrics:  # otherwise the step would be reported one mark later than necessary
                self._recorder.wait_for_ends()
            self._recorder.step()
        if self._metrics:
            arrivals = self._metrics.report()
            self._report(self._metrics)
        if self._recording and self._thins and self._recorder.kept >= MAX_STEPS_KEPT:
            # Steps that are dropped before they are reported never are: at most one in 256.
            self._recorder.thin()
            self.every *= 2
            self._pending = deque(step for step in self._pending if step.kept % 2 == 0)
            for step in self._pending:
                step.kept //= 2
        self._prepare()
        return arrivals

    def _report(self, metrics: StepMetrics) -> None:
        """Reports the steps of which all calls have ended; on an accelerator this is after their
        mark.
        """
        if self._recording:
            self._pending.append(
                _PendingStep(self.marked - 1, self._captured, self._recorder.kept - 1)
            )
            self._captured += 1
        while self._pending and (step_data := self._recorder.take_step(self._pending[0].kept)):
            step = self._pending.popleft()
            metrics.add(step.number, step.turn, *step_data)

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
# The rank that the others wait for is looked for in every WINDOW captured steps (by the test of
# training/arrivals.py), and named if it is late in LOOKS such windows in a row: a training has
# hundreds of looks, and each of them may name an innocent rank at 5 %. A look takes rank 0 about
# 2 ms of CPU time (time.process_time) for 4 ranks in one group, and 0.3 s for 1024.
WINDOW, LOOKS = 32, 3


class StepMetrics:
    """The last captured step, in a file for Prometheus that rank 0 writes.

    Each rank puts into the store how long it was in the collectives of each group, under TURNS keys
    in rotation, because on an accelerator ranks learn of the ends of calls some steps apart. At
    each mark rank 0 checks, without waiting, whether all ranks have reported. A failure here ends
    the metrics alone.

    To find the rank that the others wait for (training/arrivals.py), a step counts as one call of
    each group: single calls of all ranks would be megabytes in the store. The difference to the
    calls themselves is that waits of two ranks for each other within a step cancel out.
    """

    def __init__(self, path: Path, store: Any, name: str, rank: int, ranks: int) -> None:
        self._path, self._store = path, store
        self._rank, self._ranks = rank, ranks
        self._key = f"torchcoll/metrics/{name}"
        # (number, turn) of the steps that rank 0 has not written yet. Newer ones overwrite older.
        self._waiting: deque[tuple[int, int]] = deque(maxlen=TURNS)
        self._last_steps: deque[list[SplitCall]] = deque(maxlen=WINDOW * LOOKS)
        # (group, rank) of those that were late, by look.
        self._looks: deque[set[tuple[str, int]]] = deque(maxlen=LOOKS)
        self._written = 0  # number of steps
        self._late = Metric(
            "late_rank_caused_seconds",
            f"Waiting that a late rank caused in the last {WINDOW * LOOKS} captured steps; no "
            "series: no rank is late beyond chance.",
            [],
        )
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
            group: [len(group_calls), _busy_ns(group_calls), _error_ns(group_calls)]
            for group, group_calls in of_groups.items()
        }
        status = {"step": number, "took_ns": span[1] - span[0], "busy": busy}
        self._safely(lambda: self._store.set(self._store_key(self._rank, turn), json.dumps(status)))
        if self._rank == 0:
            self._waiting.append((number, turn))

    def report(self) -> Arrivals | None:
        """Writes the newest step that all ranks have reported; only rank 0 has any to write.

        Returns who caused the waiting in the last LOOKS windows after each WINDOW captured steps,
        from the last of the first LOOKS windows on, otherwise None. Late are the ranks that are so
        in each of these windows, and in all together.
        """
        return self._safely(self._report)

    def _report(self) -> Arrivals | None:
        for number, turn in reversed(self._waiting):
            keys = [self._store_key(rank, turn) for rank in range(self._ranks)]
            if not self._store.check(keys):
                continue
            several = self._store.has_extended_api()
            texts = self._store.multi_get(keys) if several else [self._store.get(k) for k in keys]
            statuses = [json.loads(text) for text in texts]
            if all(status["step"] == number for status in statuses):
                while self._waiting.popleft() != (number, turn):
                    pass  # drop an older step, which some rank dropped when it thinned its steps
                return self._write(number, statuses)
        return None

    def _write(self, number: int, statuses: Sequence[dict[str, Any]]) -> Arrivals | None:
        self._last_steps.append(split_step(number, statuses))
        self._written += 1
        arrivals = None
        if self._written % WINDOW == 0:
            arrivals = self._look()
            late = arrivals.late if arrivals else []
            labels = [{**self._labels, "group": row.group, "rank": row.rank} for row in late]
            values = [row.caused_ns / 1e9 for row in late]
            self._late = replace(self._late, values=list(zip(labels, values, strict=True)))
        metrics = [*step_metrics(statuses, time.time(), self._labels), self._late]
        write_metrics(self._path, metrics)
        return arrivals

    def _look(self) -> Arrivals | None:
        steps = list(self._last_steps)
        look = _arrivals_of(steps[-WINDOW:])
        self._looks.append({(row.group, row.rank) for row in look.late} if look else set())
        if len(self._looks) < LOOKS:
            return None
        named = set.intersection(*self._looks)
        if arrivals := _arrivals_of(steps):
            arrivals.ranks = [
                row if (row.group, row.rank) in named else replace(row, when=None)
                for row in arrivals.ranks
            ]
        return arrivals

    def _store_key(self, rank: int, turn: int) -> str:
        return f"{self._key}/{turn % TURNS}/{rank}"

    def _safely(self, action: Callable[[], Value]) -> Value | None:
        if self._broken:
            return None
        try:
            return action()
        except Exception as error:  # a full disk, a store that is gone
            self._broken = True
            tell(f"torchcoll: warning: metrics: {error}; the capture goes on without them")
            return None


def _arrivals_of(steps: Sequence[Sequence[SplitCall]]) -> Arrivals | None:
    from torchcoll.parts.training.arrivals import SplitTraffic, arrivals_of

    calls = list(itertools.chain.from_iterable(steps))
    return arrivals_of(SplitTraffic(calls, Counter()), {})


def _busy_ns(calls: Sequence[TrafficCall]) -> int:
    """Returns how long any of these calls of one rank was in flight."""
    spans = [call.span for call in calls if call.span]
    return Union(spans).total if len(spans) == len(calls) else sum(c.time_ns or 0 for c in calls)


def _error_ns(calls: Sequence[TrafficCall]) -> int:
    """Returns by how much that may be too long: the last end may be stamped late."""
    from torchcoll.parts.training.joined import MAX_LATENESS_NS, may_end_late

    return MAX_LATENESS_NS if any(may_end_late(call, "capture") for call in calls) else 0


def _times_of_groups(statuses: Sequence[dict[str, Any]]) -> dict[str, dict[int, int]]:
    """Returns, by group, how long (ns) each of its ranks was in its collectives.

    A group whose ranks recorded different numbers of calls is omitted.
    """
    times: dict[str, dict[int, int]] = defaultdict(dict)
    counts: dict[str, set[int]] = defaultdict(set)
    for rank, status in enumerate(statuses):
        for name, (calls, ns, _) in status["busy"].items():
            times[name][rank] = ns
            counts[name].add(calls)
    return {
        name: times[name]
        for name in sorted(times)
        if len(times[name]) > 1 and len(counts[name]) == 1
    }


def split_step(number: int, statuses: Sequence[dict[str, Any]]) -> list[SplitCall]:
    """Returns the calls of one step, as one call of each group.

    - number: the number of the step.
    - statuses: as in ``step_metrics``.
    """
    from torchcoll.parts.training.arrivals import SplitCall
    from torchcoll.parts.training.ledger import last_rank

    calls = []
    for group, times in _times_of_groups(statuses).items():
        shortest = min(times.values())
        waits = {rank: ns - shortest for rank, ns in times.items()}
        error = max(status["busy"][group][2] for status in statuses if group in status["busy"])
        last = last_rank(waits, error)
        others = {} if last is None else {r: ns for r, ns in waits.items() if r != last}
        calls.append(SplitCall(group, tuple(times), (number, 0), last, others, shortest))
    return calls


def step_metrics(statuses: Sequence[dict[str, Any]], now: float, common: Labels) -> list[Metric]:
    """Returns the metrics of one step.

    - statuses: for each rank ``step``, ``took_ns``, and ``busy``: group -> [number of its calls,
      how long any of them was in flight (ns), by how much that may be too long (ns)].
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
        (
            "step_caused_seconds",
            "Waiting of all other ranks of the group together for that rank.",
            caused,
        ),
    ):
        samples: list[tuple[dict[str, object], float]]
        samples = [({**common, "group": group}, value) for group, value in of_groups.items()]
        metrics.append(Metric(name, text, samples))
    return metrics
