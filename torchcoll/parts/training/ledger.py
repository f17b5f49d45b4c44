"""The ledger of a capture: when each call began on each rank, how long it waited and transferred,
what of it was exposed, and which rank came last. It is made once; every table adds up its columns.

- A call begins when its group has a worker for it (training/joined.py). The time before is spent in
  a queue, and is no wait for a rank.
- Transfer: the time since the begin on the rank that came last, which has the shortest one: all
  ranks that need each other end a call together.
- Wait: what a rank has more than the transfer. This compares durations, so the clocks of the ranks
  need not agree. A capture learns late of the end of an asynchronous call on a CPU, so such a wait
  follows from when each rank issued the call, which needs clocks that can be compared: without them
  it is unknown. A rank that waits in several calls at once waits once: the time counts for the
  earlier call.
- Exposed: a call is in flight, and the rank does nothing else. A trace shows what else ran; a
  capture, when the program waited for the call. While two calls are exposed at the same time, that
  time counts for the earlier one, so that the times of calls add up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from torchcoll.core.backends import backend_of
from torchcoll.core.traffic import Span, Traffic, TrafficCall
from torchcoll.parts.training.joined import (
    JoinedCall,
    Offsets,
    begun_ns,
    cut_at_marks,
    join_ranks,
    may_end_late,
    measure_offsets,
    unsplit_reason,
)
from torchcoll.parts.training.steps import Steps, find_steps

NO_CLOCK = "asynchronous, and the clocks of its ranks are not aligned"

Column = Callable[[int, int], int | None]  # of a rank, and the index of a call among its calls
Indices = Mapping[int, Mapping[int, Sequence[int]]]  # rank -> step -> indices of the rank's calls


class Ledger:
    """The ledger of one Traffic.

    - whole: the traffic as it was read; traffic: with late ends cut at the marks of their steps.
    - entries: rank -> the collective of each call, in the order of its calls; every: all of them.
    - begun_ns: when each call began, by its id; a call without a span is missing.
    - notes: on the calls that were not joined over the ranks.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.whole, self.traffic = traffic, cut_at_marks(traffic)
        self.entries, self.notes = join_ranks(self.traffic)
        self.every = list(dict.fromkeys(itertools.chain(*self.entries.values())))
        self.begun_ns, errors = begun_ns(self.traffic)
        for entry in self.every:
            self._split(entry, errors)
        self._count_once()

    def _split(self, entry: JoinedCall, errors: Mapping[int, int]) -> None:
        """Sets the figures of a collective."""
        entry.service_ns = {
            rank: call.span[1] - self.begun_ns[id(call)] if call.span else call.time_ns
            for rank, call in entry.calls.items()
            if call.time_ns is not None
        }
        entry.reason = unsplit_reason(entry)
        if entry.reason:
            return
        service = entry.service_ns
        entry.transfer_ns = min(service.values())
        entry.error_ns = max(errors.get(id(call), 0) for call in entry.calls.values())
        if not any(may_end_late(call, self.traffic.source) for call in entry.calls.values()):
            entry.waits_ns = {rank: ns - entry.transfer_ns for rank, ns in service.items()}
        elif begins := self._aligned_ns(entry):
            latest = max(begins.values())
            entry.waits_ns = {rank: min(latest - at, service[rank]) for rank, at in begins.items()}
            entry.error_ns += 2 * max(self.offsets.error_ns[rank] for rank in begins)
        else:
            entry.reason = NO_CLOCK
        entry.last = last_rank(entry.waits_ns, entry.error_ns)

    def _aligned_ns(self, entry: JoinedCall) -> dict[int, int]:
        """Returns when the call began on each rank, on the clock of the first; {} if unknown."""
        begins = {
            rank: self.begun_ns[id(call)] + self.offsets.added_ns[rank]
            for rank, call in entry.calls.items()
            if call.span and rank in self.offsets.added_ns
        }
        return begins if len(begins) == len(entry.calls) else {}

    def _count_once(self) -> None:
        """Takes from each wait the time in which its rank already waited in an earlier call."""
        for rank, calls in self.traffic.calls.items():
            waiting = [
                (self.begun_ns[id(call)], entry)
                for call, entry in zip(calls, self.entries[rank], strict=True)
                if call.span and rank in entry.waits_ns
            ]
            until: float = -math.inf
            for start, entry in sorted(waiting, key=lambda each: each[0]):
                end = start + entry.waits_ns[rank]
                entry.waits_ns[rank] = round(max(0, end - max(start, until)))
                until = max(until, end)

    @cached_property
    def steps(self) -> Steps:
        return find_steps(self.traffic)

    @cached_property
    def offsets(self) -> Offsets:
        """The clock offsets of the ranks, from all calls with their ends as they were stamped."""
        joined, _ = join_ranks(self.whole)
        return measure_offsets(self.whole, dict.fromkeys(itertools.chain(*joined.values())))

    # The columns

    def call(self, rank: int, index: int) -> TrafficCall:
        return self.traffic.calls[rank][index]

    def time_ns(self, rank: int, index: int) -> int | None:
        """Returns the duration of the call on its slowest rank, from issue to completion."""
        return self.entries[rank][index].completion_ns

    def transfer_ns(self, rank: int, index: int) -> int | None:
        return self.entries[rank][index].transfer_ns

    def wait_ns(self, rank: int, index: int) -> int | None:
        return self.entries[rank][index].waits_ns.get(rank)

    def exposed_ns(self, rank: int, index: int) -> int | None:
        return call_exposed_ns(self.traffic, self.call(rank, index))

    def exposed_wait_ns(self, rank: int, index: int) -> int | None:
        """Returns the part of exposed_ns that may be waiting for the last rank."""
        exposed_ns = self.exposed_ns(rank, index)
        return None if exposed_ns is None else min(exposed_ns, self.wait_ns(rank, index) or 0)

    def moving_ns(self, rank: int, index: int) -> int:
        """Returns exposed_ns without the waiting; 0 if it is unknown."""
        return (self.exposed_ns(rank, index) or 0) - (self.exposed_wait_ns(rank, index) or 0)

    def slowest(self, at: Indices, step: int, column: Column, partial: bool = False) -> int | None:
        """Returns the largest of the ranks' sums over their calls of a step; None if a call has no
        figure, or none is in the step.

        - partial: of the calls that have the figure; None if none has.
        """
        sums = []
        for rank, by_step in at.items():
            values = [column(rank, index) for index in by_step.get(step, ())]
            figures = [value for value in values if value is not None]
            if len(figures) < len(values) and not partial:
                return None
            sums += [sum(figures)] if figures or not partial else []
        return max(sums, default=None)


def last_rank(waits_ns: Mapping[int, int], error_ns: int) -> int | None:
    """Returns the rank that waited for nobody, or None if several waited no longer than the error.

    - waits_ns: of each rank, 0 of the last.
    """
    first = [rank for rank, wait in waits_ns.items() if wait <= error_ns]
    return first[0] if len(first) == 1 else None


def call_exposed_ns(traffic: Traffic, call: TrafficCall) -> int | None:
    """Returns the exposed part of a call, or all of it if the host waited for it at once."""
    if call.exposed_ns is not None:
        return call.exposed_ns
    return call.time_ns if blocks(traffic, call) else None


def blocks(traffic: Traffic, call: TrafficCall) -> bool:
    """Returns whether the program waited for the call at once, on the host."""
    group = traffic.groups.get(call.group)
    on_host = group is not None and backend_of(group.backend).on_host
    return call.asynchronous is False and call.clock == "host" and on_host


def waiting_spans(traffic: Traffic, calls: Iterable[TrafficCall]) -> list[Span]:
    """Returns when a rank of a capture waited for those calls that tell it."""
    return [
        (max(call.span[0], call.span[1] - exposed_ns), call.span[1])
        for call in calls
        if (exposed_ns := call_exposed_ns(traffic, call)) is not None
        and call.span is not None
        and call.clock == "host"
    ]
