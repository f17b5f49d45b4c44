"""The communication that a step waits for: in all, and by the module whose parameters it moves.

A call is exposed while it is in flight and the rank does nothing else. A trace shows what else ran;
a capture, when the program waited for the call. While two calls are exposed at the same time, that
time counts for the earlier one, so that the times of calls add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchcoll.core.backends import backend_of
from torchcoll.core.intervals import Span, Union, merged, uncovered
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.parts.training.joined import JoinedCall
from torchcoll.parts.training.steps import Steps


@dataclass(frozen=True)
class ModuleRow:
    """The calls of one collective that move parameters or gradients of one module, in a step.

    Times in ns of the slowest rank, the median over the steady steps; None: unknown.

    - module: its name in the model, see TrafficCall.
    - calls_per_step, bytes_per_step: those of one rank; bytes that it puts in.
    - time_per_step_ns: durations of the calls, added up.
    - exposed_ns: the part of it that is exposed.
    - share: exposed_ns / duration of a step.
    """

    module: str
    collective: str
    calls_per_step: float
    bytes_per_step: float
    time_per_step_ns: float | None
    exposed_ns: float | None
    share: float | None

    @property
    def text(self) -> str:
        numbers = self.module.split(" to ")
        kind = "" if not numbers[0].isdecimal() else "module " if len(numbers) == 1 else "modules "
        return f"{self.collective} of {kind}{self.module}"


@dataclass(frozen=True)
class Exposed:
    """The exposed communication of a step.

    - total_ns: on the rank with most, the median over the steady steps; None: unknown.
    - share: total_ns / duration of a step.
    - unknown: how many calls a step do not tell whether they are exposed; the total lacks theirs.
    - modules: in the order of their first call; [] if no call names a module.
    """

    total_ns: float | None
    share: float | None
    unknown: float
    modules: list[ModuleRow]

    @property
    def most(self) -> ModuleRow | None:
        """The module and collective that is exposed most."""
        exposed = [row for row in self.modules if row.exposed_ns]
        return max(exposed, key=lambda row: row.exposed_ns or 0, default=None)


def call_exposed_ns(traffic: Traffic, call: TrafficCall) -> int | None:
    """Returns the exposed part of a call, or all of it if the host waited for it at once."""
    if call.exposed_ns is not None:
        return call.exposed_ns
    group = traffic.groups.get(call.group)
    at_once = call.asynchronous is False and call.clock == "host"
    return call.time_ns if at_once and group and backend_of(group.backend).on_host else None


def waiting_spans(traffic: Traffic, calls: Sequence[TrafficCall]) -> list[Span] | None:
    """Returns when a rank of a capture waited for the calls; None if a call does not tell it."""
    spans = []
    for call in calls:
        exposed_ns = call_exposed_ns(traffic, call)
        if exposed_ns is None or call.span is None or call.clock != "host":
            return None
        spans.append((max(call.span[0], call.span[1] - exposed_ns), call.span[1]))
    return merged(spans)


def find_exposed(
    traffic: Traffic, steps: Steps, joined: Mapping[int, Sequence[JoinedCall]]
) -> Exposed:
    """Returns the exposed communication of the steady steps.

    - traffic: with late ends cut at the marks (``cut_at_marks``).
    """
    totals: dict[int, int] = {}  # of the rank with most, by step
    unknown = 0
    for step in steps.steady:
        for rank, by_step in steps.at.items():
            marked = traffic.steps.get(rank, ())
            if step >= len(marked):
                continue
            span = marked[step]
            calls = [traffic.calls[rank][i] for i in by_step.get(step, ())]
            exposed = _exposed_spans(traffic, rank, calls)
            total = Union(exposed).within(*span)
            totals[step] = max(totals.get(step, 0), total)
            if rank not in traffic.computing:
                unknown += sum(call_exposed_ns(traffic, call) is None for call in calls)
    rank_steps = max(1, len(steps.steady) * len(steps.at))
    total_ns = steps.reduce(totals.get) if any(totals.values()) or not unknown else None
    return Exposed(
        total_ns,
        total_ns / steps.duration_ns if total_ns is not None and steps.duration_ns else None,
        unknown / rank_steps,
        _module_rows(traffic, steps, joined),
    )


def _exposed_spans(traffic: Traffic, rank: int, calls: Sequence[TrafficCall]) -> list[Span]:
    """Returns when calls of a rank were exposed, without those that do not tell it."""
    if rank not in traffic.computing:
        on_host = [call for call in calls if call.clock == "host"]
        timed = [call for call in on_host if call_exposed_ns(traffic, call) is not None]
        return waiting_spans(traffic, timed) or []
    talking = merged(call.span for call in calls if call.span)
    return uncovered(talking, merged(traffic.computing[rank]))


Key = tuple[str, str]  # module and collective


def _module_rows(
    traffic: Traffic, steps: Steps, joined: Mapping[int, Sequence[JoinedCall]]
) -> list[ModuleRow]:
    at: dict[Key, dict[int, dict[int, list[int]]]] = {}  # -> step -> rank -> indices of calls
    for rank, by_step in steps.at.items():
        for step in steps.steady:
            for i in by_step.get(step, ()):
                call = traffic.calls[rank][i]
                if call.module:
                    by_step_of = at.setdefault((call.module, call.collective), defaultdict(dict))
                    by_step_of[step].setdefault(rank, []).append(i)

    def slowest(key: Key, time_ns: Callable[[int, int], int | None]) -> float | None:
        def of_step(step: int) -> int | None:
            sums = []
            for rank, indices in at[key].get(step, {}).items():
                times = [time_ns(rank, i) for i in indices]
                if None in times:
                    return None
                sums.append(sum(time for time in times if time is not None))
            return max(sums, default=None)

        return steps.reduce(of_step)

    rows = []
    for key, by_step_of in at.items():
        counts = [len(i) for by_rank in by_step_of.values() for i in by_rank.values()]
        sent = [
            traffic.calls[rank][i].bytes_in
            for by_rank in by_step_of.values()
            for rank, indices in by_rank.items()
            for i in indices
        ]
        # A step in which a rank does not make the call counts too.
        ranks = len({rank for by_rank in by_step_of.values() for rank in by_rank})
        rank_steps = ranks * len(steps.steady)
        exposed_ns = slowest(key, lambda rank, i: call_exposed_ns(traffic, traffic.calls[rank][i]))
        row = ModuleRow(
            *key,
            sum(counts) / rank_steps,
            sum(sent) / rank_steps,
            slowest(key, lambda rank, i: joined[rank][i].completion_ns),
            exposed_ns,
            exposed_ns / steps.duration_ns
            if exposed_ns is not None and steps.duration_ns
            else None,
        )
        rows.append(row)
    return rows
