"""Every pair of ranks or nodes: in rounds of disjoint pairs, the slow ones again alone, then all.

No groups of two are made: 512 ranks have 130816 of them, each of which every rank would have to
take part in making, and each rank would keep 511 communicators. Ranks send and receive over the
group of all ranks, whose connections the library makes where they are needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from torchcoll.bench.device import nothing
from torchcoll.bench.measure import first_call
from torchcoll.bench.verify import Buffers, Checker, allocate
from torchcoll.core.case import Case, Sizing, size_case
from torchcoll.core.errors import TorchcollError, UnavailableError, UsageError, brief
from torchcoll.core.tournament import (
    LATENCY_ITERS,
    LATENCY_NBYTES,
    PASSES,
    Pair,
    PairOptions,
    check_units,
    members_of,
    pair_cases,
    rounds,
    rounds_of,
    units_of,
)

if TYPE_CHECKING:
    from torchcoll.bench.options import Options
    from torchcoll.bench.output import Output
    from torchcoll.bench.runner import Session
    from torchcoll.core.result import Run

_NAMED = 8  # of a round's pairs, in messages


@dataclass(frozen=True)
class _Own:
    """What this rank does in a round. place: 0 is the lower unit of the pair, 1 the higher."""

    pair: Pair
    peer: int
    place: int


class PairsRun:
    """All pairs of one session. ``told`` is called on rank 0 with how far it is."""

    def __init__(self, session: Session, options: PairOptions, told: Callable[[str], None]) -> None:
        self.session, self.options, self._told = session, options, told
        self.units = units_of(options.by, [m["host"] for m in session.control.members])
        check_units(self.units, options.by)
        first = session.sizings[0].case
        rule = "pair" if options.by == "rank" else "node"
        self._rule = rule
        self._cases = pair_cases(session.spec, rule, first)
        self._buffers: dict[int, Buffers] = {}  # by the bytes asked
        self._tried = False
        self._began = (0, 0)  # the last kind of call, monotonic in ns, wall in us

    def sweep(self) -> None:
        """Rounds, the slow pairs alone, all ranks together; events of the suspects. Collective."""
        session = self.session
        self._prepare()
        count = len(self.units)
        for turn, met in enumerate(rounds(count), 1):
            self._round(met, f"round {turn} of {rounds_of(count)}", self._rule, self._cases)
        for turn in range(1, PASSES + 1):
            again, places = session.control.decide(self._again())
            cases = [self._cases[place] for place in places]
            for pair in again:
                self._round(
                    [(pair[0], pair[1])], f"pass {turn} alone", f"{self._rule} alone", cases
                )
        self._buffers.clear()
        session.device.release()
        self._told("all ranks together")
        session.sweep()
        if self.options.bisect:
            from torchcoll.bench.bisect import bisect

            bisect(session, self.units, self.options.threshold, self._told)
        self._on_rank_0(self._events)

    # -- before -----------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Memory on every rank, and a connected group."""
        session, failure = self.session, ""
        for case in self._cases:
            sizing = size_case(case, session.ranks)
            if refused := session.agree_on_case(sizing):
                raise TorchcollError(f"pairs: {case.describe()}: {refused[1]}")
        try:
            for case in self._cases:
                sizing = size_case(case, 2)
                if case.nbytes not in self._buffers:
                    buffers = allocate(session.torch, sizing, 0, session.device.name)
                    self._buffers[case.nbytes] = buffers
                    Checker(session.torch, sizing, 0, buffers, session.progress.beat).prepare()
        except (RuntimeError, MemoryError) as error:
            failure = brief(error)
        failed = session.control.failed(failure)
        if failed:
            raise TorchcollError("pairs: no memory on {}: {}".format(*failed))
        session.progress.step("connecting all ranks")
        # torch: all ranks take part in the first call on a group, if it is a send or a receive.
        self._or_trouble(session.communicators.align(self._cases[0].backend), "a barrier")

    def _or_trouble(self, call: Callable[[], object], what: str) -> None:
        try:
            call()
        except RuntimeError as error:
            self.session.trouble(f"{what}: {brief(error)}")

    # -- one round --------------------------------------------------------------------------

    def _own(self, met: Sequence[Pair]) -> _Own | None:
        for pair in met:
            for low, high in members_of(self.units, pair):
                if self.session.rank in (low, high):
                    first = self.session.rank == low
                    return _Own(pair, high if first else low, 0 if first else 1)
        return None

    def _round(self, met: Sequence[Pair], text: str, rule: str, cases: Sequence[Case]) -> None:
        own = self._own(met)
        if len(met) <= _NAMED:
            text += f" ({' '.join(f'{low}-{high}' for low, high in met)})"
        elif own:
            text += f", pair {own.pair[0]}-{own.pair[1]}"
        self._told(text)
        # In the file a round is in flight, not one of its pairs.
        started = replace(self._cases[0], group=f"{rule}/{text}")
        self._on_rank_0(lambda: self._recorder.started(started))
        for case in cases:
            gathered = self._one_kind(case, own, text)
            self._on_rank_0(partial(self._keep, case, gathered, met, rule))

    def _one_kind(self, case: Case, own: _Own | None, text: str) -> list[Any]:
        """This kind of call on all pairs of the round; [rank] of samples on rank 0."""
        session, iters = self.session, self.session.spec.iters or 0
        if case.nbytes == LATENCY_NBYTES:
            iters = max(iters, LATENCY_ITERS)
        kind = f"{text}: {case.describe()}"
        cold: list[int] = []
        steady: list[int] = []
        session.progress.step(kind, steady if own else range(iters))
        self._began = (time.perf_counter_ns(), time.time_ns() // 1000)
        session.control.align()
        checked: tuple[int, int] | None = None
        if own is None:
            self._first(None, case)
        else:
            sizing = size_case(case, 2)
            buffers = self._buffers[case.nbytes]
            small = self._buffers[self._cases[0].nbytes]
            call = self._call(own, buffers, case.root)
            align = self._call(own, small, None)
            self._first(lambda: self._timed(call, nothing, 1, cold), case, own)
            who = f"pair {own.pair[0]}-{own.pair[1]}"
            self._or_trouble(lambda: self._timed(call, align, iters, steady), who)
            if session.spec.check and case.root is None:
                self._or_trouble(align, who)
                checked = self._verified(sizing, own, buffers, call)
        return session.control.gather([cold, steady, checked])

    def _timed(self, call: Any, align: Any, calls: int, durations: list[int]) -> None:
        self.session.device.isolated(call, align, calls, {"host": durations, "issue": []})

    def _first(self, call: Callable[[], None] | None, case: Case, own: _Own | None = None) -> None:
        """The first call of all: a backend that cannot send says so here, on all ranks alike."""
        if self._tried:
            if call and own:
                self._or_trouble(call, f"pair {own.pair[0]}-{own.pair[1]}")
            return
        self._tried = True
        refused = first_call(self.session, "pairs: sending", call)
        if refused:
            (entry, *_) = self.session.entries
            raise UnavailableError(
                "pairs",
                f"{case.backend} on {case.device}: {entry.reason(case, refused)}",
                "a backend that sends from rank to rank",
                "Choose another with --backend.",
            )

    def _call(self, own: _Own, buffers: Buffers, root: int | None) -> Callable[[], None]:
        """Send and receive (root None), or one of them: the unit in place ``root`` sends."""
        dist = self.session.dist
        group = self.session.communicators.whole(self._cases[0].backend)
        steps = []
        if root is None or root == own.place:
            steps.append(dist.P2POp(dist.isend, buffers.send, own.peer, group))
        if root is None or root != own.place:
            steps.append(dist.P2POp(dist.irecv, buffers.recv, own.peer, group))
        if own.place == 1:
            steps.reverse()  # xccl can deadlock where both peers send first

        def call() -> None:
            for work in dist.batch_isend_irecv(steps):
                work.wait()

        return call

    def _verified(
        self, sizing: Sizing, own: _Own, buffers: Buffers, call: Callable[[], None]
    ) -> tuple[int, int]:
        """(elements checked, elements wrong) of one more exchange."""
        session = self.session
        checker = Checker(session.torch, sizing, own.place, buffers, session.progress.beat)
        checker.prepare()
        self._or_trouble(call, f"pair {own.pair[0]}-{own.pair[1]}")
        session.device.synchronize()
        return checker.count_wrong()

    # -- rank 0 -----------------------------------------------------------------------------

    @property
    def _recorder(self) -> Any:
        return self.session.recorder

    def _on_rank_0(self, action: Callable[[], object]) -> None:
        if self.session.rank == 0:
            action()

    def _keep(self, case: Case, gathered: list[Any], met: Sequence[Pair], rule: str) -> None:
        from torchcoll.bench.results import result_of_pair

        for pair in met:
            members = members_of(self.units, pair)
            ranks = [low for low, _ in members] + [high for _, high in members]
            own = replace(case, group=f"{rule}/{pair[0]}-{pair[1]}")
            result = result_of_pair(own, ranks, [gathered[rank] for rank in ranks])
            result.start_ns, result.start_wall_us = self._began
            self._recorder.case(result)

    def _again(self) -> tuple[list[Pair], list[int]] | None:
        """The pairs of the next pass alone, and the places of the cases in which they were slow:
        of the suspects that no pass so far has cleared, between usual ones.
        """
        if self.session.rank:
            return None
        from torchcoll.core.pair_times import key_of, read_pairs
        from torchcoll.core.suspects import again_alone, kinds_of, suspects

        pairs = read_pairs(self._recorder.run)
        found = suspects(pairs, self.options.threshold, with_hidden=True) if pairs else []
        left = {place for place, one in enumerate(found) if one.stands}
        if pairs is None or not left:
            return [], []
        usual, chosen = again_alone(pairs, found)  # the same in each pass
        own = [pair for pair, whose in chosen.items() if left & {*whose} and pair not in usual]
        mixed = [pair for both in zip_longest(usual, own) for pair in both if pair]
        kinds = kinds_of(found[place] for place in sorted(left))
        return mixed, [i for i, case in enumerate(self._cases) if key_of(case) in kinds]

    def _events(self) -> None:
        from torchcoll.core.pair_times import read_pairs
        from torchcoll.core.suspect_texts import events
        from torchcoll.core.suspects import suspects

        found = read_pairs(self._recorder.run)
        if found:
            for event in events(found, suspects(found, self.options.threshold)):
                self._recorder.event(**event)


def refuse_lone(backend: str | None, ranks: int) -> None:
    """Raises UsageError for what has no pairs, before anything starts."""
    check_units(tuple((rank,) for rank in range(ranks)), "rank")
    if backend == "fake":
        raise UsageError("backend", "fake", "one that communicates", "--dry-run plans without one.")
    if backend and "," in backend:
        raise UsageError("backend", backend, "one backend")


def sweep_pairs(options: Options, session: Session, output: Output | None) -> str | None:
    """The sweep of bench/main.py: measure the pairs, print what they say on rank 0.

    The text of what makes the exit code 1: a case that failed, a suspect.
    """
    assert options.pairs is not None
    told: Callable[[str], None] = nothing_told
    line = None
    if session.rank == 0 and not options.quiet:
        from torchcoll.report.progress import ProgressLine

        line = ProgressLine(sys.stderr, 80)
        told = line.show
    PairsRun(session, options.pairs, told).sweep()
    failure = None
    if output and session.run:
        if line:
            line.clear()
        session.run.path = output.path
        output.show(lambda: _show(session.run, options))
        failure = output.failure(session) or _accused(session.run)
    failure = session.control.decide(failure)
    return failure


def nothing_told(text: str) -> None:
    pass


def _show(run: Run | None, options: Options) -> None:
    from torchcoll.report.pairs import show_pairs

    assert run is not None and options.pairs is not None
    show_pairs(run, options.format, options.pairs.threshold)


def _accused(run: Run) -> str | None:
    told = [event["message"] for event in run.events if event["kind"] == "suspect"]
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return f"suspect: {told[0]}{more}" if told else None
