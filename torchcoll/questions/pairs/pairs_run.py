"""Measure every pair of ranks or nodes: ``torchrun -m torchcoll.pairs`` and its command line.

The pairs run in rounds of disjoint pairs; then the slow pairs run again alone, and finally all
ranks run all_reduce together.

The pairs do not get process groups of their own: 512 ranks have 130816 pairs, every rank would have
to take part in creating each of the groups, and each rank would keep 511 communicators. Ranks send
and receive over the group of all ranks, in which the library connects peers when needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from torchcoll.bench.communicators import first_call
from torchcoll.bench.main import measure
from torchcoll.bench.options import Options, Other, Parser, number, parse
from torchcoll.bench.session import Session
from torchcoll.bench.sweep import Sweep
from torchcoll.bench.verify import Buffers, Checker, allocate
from torchcoll.core import errors
from torchcoll.core.backends import communicates
from torchcoll.core.case import Case, SizedCase, size_case
from torchcoll.core.collectives import DEFAULT_COLLECTIVE
from torchcoll.core.spec import Spec
from torchcoll.core.units import format_size, parse_share, shorten, whole_number
from torchcoll.machine.devices import nothing
from torchcoll.machine.launcher import Launch
from torchcoll.questions.pairs import schedule

if TYPE_CHECKING:
    from torchcoll.bench.output import Output


# The fields of Spec that torchcoll.pairs supports; it refuses the others.
_SUPPORTED = (
    "collectives",
    "sizes",
    "dtypes",
    "backend",
    "device",
    "iters",
    "check",
    "timeout_s",
    "labels",
    "rehearse",
)


def _parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="torchcoll.pairs",
        description="Measure every pair of ranks or nodes, and say which one is slow. Pairs of a "
        "round run at the same time, every pair meets once; the slow ones run again alone, then "
        "all ranks do all_reduce together. Exit code 1 where a suspect is left.",
        epilog="Further, as torchcoll.allreduce --help has them: --sizes "
        f"({','.join(map(format_size, schedule.SIZES))}) "
        f"-n ({schedule.ITERS}) -d -c -T --backend --device --rehearse "
        "--rendezvous-file -J --no-output --label "
        "--library-log --format --quiet --dry-run --ranks.",
        allow_abbrev=False,
    )
    p.add_argument(
        "--by",
        default=schedule.BY[0],
        help="rank (default): every rank with every other; node: all ranks of a node with those "
        "of another at once, first with first, second with second",
    )
    p.add_argument(
        "--threshold",
        metavar="SHARE",
        default=str(schedule.THRESHOLD),
        help=f"a pair slower than the others by this share (and an outlier) is suspect "
        f"({100 * schedule.THRESHOLD:g}%%)",
    )
    p.add_argument("--ranks-per-node", help="for --dry-run --by node")
    return p


def parse_pairs(argv: Sequence[str]) -> tuple[Options, schedule.PairOptions]:
    """Parse a command line. Raises UsageError."""
    arguments, remaining = _parser().parse_known_args(list(argv))
    options = parse(remaining, DEFAULT_COLLECTIVE, "torchcoll.pairs")
    spec, plain = options.spec, Spec()
    for field in fields(Spec):
        given = getattr(spec, field.name)
        if field.name not in _SUPPORTED and given != getattr(plain, field.name):
            flag = field.name.replace("_", "-")
            raise errors.UsageError(flag, given, "none: torchcoll.pairs has no such choice")
    if options.resume:
        raise errors.UsageError("resume", options.resume, "none: pairs are measured in one go")
    errors.choice(options.format, "format", ("table", "markdown", "csv", "json"))
    sizes = spec.sizes or schedule.SIZES
    if min(sizes) <= schedule.LATENCY_BYTES:
        expected = f"more than {schedule.LATENCY_BYTES} bytes"
        raise errors.UsageError(
            "sizes", min(sizes), expected, "The latency is measured in any case."
        )
    for size_bytes in sizes:
        if size_bytes % schedule.LATENCY_BYTES:  # a whole number of elements of every type
            raise errors.UsageError(
                "sizes", size_bytes, f"a multiple of {schedule.LATENCY_BYTES} bytes"
            )
    if len(spec.dtypes) > 1:
        raise errors.UsageError("dtype", ",".join(spec.dtypes), "one type")
    iters = schedule.ITERS if spec.iters is None else spec.iters
    whole_number(iters, "iters", 1)
    threshold = parse_share(arguments.threshold, "threshold")
    per_node = arguments.ranks_per_node
    if per_node is not None:
        per_node = whole_number(number(per_node, int), "ranks-per-node", 1)
        if not options.dry_run:
            raise errors.UsageError("ranks-per-node", per_node, "--dry-run with it")
    pairs = schedule.PairOptions(arguments.by, threshold, per_node)
    # The threshold goes into the file, so that ``torchcoll pairs`` judges as the run did.
    pairs_action = Other("pairs", pairs, {"threshold": threshold})
    return replace(options, spec=replace(spec, sizes=sizes, iters=iters), other=pairs_action), pairs


_NAMED = 8  # pairs: messages name the pairs of a round up to so many


@dataclass(frozen=True)
class _Role:
    """What this rank does in a round.

    pair: the units that meet.
    peer: the rank that this rank communicates with.
    index: 0 if this rank is in the lower unit of the pair, 1 in the higher.
    """

    pair: schedule.Pair
    peer: int
    index: int


class PairsRun:
    """The measurement of all pairs in one session.

    on_progress: called with a short description of each step.
    """

    def __init__(
        self, session: Session, options: schedule.PairOptions, on_progress: Callable[[str], None]
    ) -> None:
        self.session, self.local = session, session.local
        self.options, self._on_progress = options, on_progress
        self._all = Sweep(session)
        self.units = schedule.group_ranks(options.by, self.local.control.hosts)
        schedule.check_units(self.units, options.by)
        first = session.sizings[0].case
        rule = "pair" if options.by == "rank" else "node"
        self._rule = rule
        self._cases = schedule.pair_cases(session.spec, rule, first)
        self._buffers: dict[int, Buffers] = {}  # by the size of the case in bytes
        self._tried = False
        self._began = (0, 0)  # start of the latest kind of call: monotonic in ns, wall clock in us

    def sweep(self) -> None:
        """Run the rounds, the slow pairs alone, then all ranks together, and record the suspects.

        Collective.
        """
        self._prepare()
        count = len(self.units)
        for turn, round_pairs in enumerate(schedule.rounds(count), 1):
            self._round(
                round_pairs,
                f"round {turn} of {schedule.round_count(count)}",
                self._rule,
                self._cases,
            )
        for turn in range(1, schedule.PASSES + 1):
            repeated, indexes = self.local.control.decide(self._next_pass())
            cases = [self._cases[index] for index in indexes]
            for pair in repeated:
                self._round(
                    [(pair[0], pair[1])], f"pass {turn} alone", f"{self._rule} alone", cases
                )
        self._buffers.clear()
        self.local.device.release()
        self._on_progress("all ranks together")
        self._all.run()
        if self.local.rank == 0:
            self._events()

    def _prepare(self) -> None:
        """Allocate memory on every rank and connect the group of all ranks."""
        session = self.session
        for case in self._cases:
            sizing = size_case(case, self.local.ranks)
            if refused := self._all.agree_on_case(sizing):
                raise errors.TorchcollError(f"pairs: {case.describe()}: {refused.reason}")
        self._allocate()
        self.local.progress.step("connecting all ranks")
        # PyTorch requires all ranks to take part in the first call on a group if it is a send or
        # receive; a barrier first makes sure that they do.
        self._or_abort(session.communicators.align(self._cases[0].backend), "a barrier")

    def _allocate(self) -> None:
        failure = ""
        try:
            for case in self._cases:
                sizing = size_case(case, 2)
                if case.size_bytes not in self._buffers:
                    buffers = allocate(self.local.torch, sizing, 0, self.local.device.name)
                    self._buffers[case.size_bytes] = buffers
                    beat = self.local.progress.beat
                    Checker(self.local.torch, sizing, 0, buffers, beat).prepare()
        except (RuntimeError, MemoryError) as error:
            failure = errors.brief(error)
        failed = self.local.control.failed(failure)
        if failed:
            raise errors.TorchcollError("pairs: no memory on {}: {}".format(*failed))

    def _or_abort(self, call: Callable[[], object], what: str) -> None:
        try:
            call()
        except RuntimeError as error:
            self.local.abort(f"{what}: {errors.brief(error)}")

    def _role(self, round_pairs: Sequence[schedule.Pair]) -> _Role | None:
        for pair in round_pairs:
            for low, high in schedule.rank_pairs(self.units, pair):
                if self.local.rank in (low, high):
                    first = self.local.rank == low
                    return _Role(pair, high if first else low, 0 if first else 1)
        return None

    def _round(
        self, round_pairs: Sequence[schedule.Pair], text: str, rule: str, cases: Sequence[Case]
    ) -> None:
        role = self._role(round_pairs)
        if len(round_pairs) <= _NAMED:
            text += f" ({' '.join(f'{low}-{high}' for low, high in round_pairs)})"
        elif role:
            text += f", pair {role.pair[0]}-{role.pair[1]}"
        self._on_progress(text)
        # If the run dies, the file names the round that was in flight, not one of its pairs.
        started = replace(self._cases[0], group=f"{rule}/{text}")
        if self.local.rank == 0:
            self._recorder.started(started)
        for case in cases:
            gathered = self._measure_kind(case, role, text)
            if self.local.rank == 0:
                self._record(case, gathered, round_pairs, rule)

    def _measure_kind(self, case: Case, role: _Role | None, text: str) -> list[Any]:
        """Run one kind of call on all pairs of the round; rank 0 gets the samples of each rank."""
        session, iters = self.session, self.session.spec.iters or 0
        if case.size_bytes == schedule.LATENCY_BYTES:
            iters = max(iters, schedule.LATENCY_ITERS)
        kind = f"{text}: {case.describe()}"
        cold: list[int] = []
        steady: list[int] = []
        self.local.progress.step(kind, steady if role else range(iters))
        self._began = (time.perf_counter_ns(), time.time_ns() // 1000)
        self.local.control.align()
        checked: tuple[int, int] | None = None
        if role is None:
            self._first(None, case)
        else:
            sizing = size_case(case, 2)
            buffers = self._buffers[case.size_bytes]
            small = self._buffers[self._cases[0].size_bytes]
            call = self._call(role, buffers, case.root)
            align = self._call(role, small, None)
            self._first(lambda: self._timed(call, nothing, 1, cold), case, role)
            who = f"pair {role.pair[0]}-{role.pair[1]}"
            self._or_abort(lambda: self._timed(call, align, iters, steady), who)
            if session.spec.check and case.root is None:
                self._or_abort(align, who)
                checked = self._verified(sizing, role, buffers, call)
        return self.local.control.gather([cold, steady, checked])

    def _timed(self, call: Any, align: Any, calls: int, durations: list[int]) -> None:
        self.local.device.synchronized(call, align, calls, {"host": durations, "issue": []})

    def _first(
        self, call: Callable[[], None] | None, case: Case, role: _Role | None = None
    ) -> None:
        """The first call of the run, on all ranks: shows whether the backend supports sending.

        Raises UnavailableError on all ranks if it does not.
        """
        if self._tried:
            if call and role:
                self._or_abort(call, f"pair {role.pair[0]}-{role.pair[1]}")
            return
        self._tried = True
        refused = first_call(self.local, "pairs: sending", call)
        if refused:
            (entry, *_) = self.session.entries
            raise errors.UnavailableError(
                "pairs",
                f"{case.backend} on {case.device}: {entry.reason(case, refused.text)}",
                "a backend that sends from rank to rank",
                "Choose another with --backend.",
            )

    def _call(self, role: _Role, buffers: Buffers, root: int | None) -> Callable[[], None]:
        """A call of this rank: send and receive if root is None, else only the unit with index
        ``root`` sends.
        """
        dist = self.local.dist
        group = self.session.communicators.whole(self._cases[0].backend)
        steps = []
        if root is None or root == role.index:
            steps.append(dist.P2POp(dist.isend, buffers.send, role.peer, group))
        if root is None or root != role.index:
            steps.append(dist.P2POp(dist.irecv, buffers.recv, role.peer, group))
        if role.index == 1:
            steps.reverse()  # xccl can deadlock if both peers send first

        def call() -> None:
            for work in dist.batch_isend_irecv(steps):
                work.wait()

        return call

    def _verified(
        self, sizing: SizedCase, role: _Role, buffers: Buffers, call: Callable[[], None]
    ) -> tuple[int, int]:
        """(elements checked, elements wrong) of an additional exchange."""
        checker = Checker(self.local.torch, sizing, role.index, buffers, self.local.progress.beat)
        checker.prepare()
        self._or_abort(call, f"pair {role.pair[0]}-{role.pair[1]}")
        self.local.device.synchronize()
        return checker.count_wrong()

    @property
    def _recorder(self) -> Any:
        return self.session.recorder

    def _record(
        self, case: Case, gathered: list[Any], round_pairs: Sequence[schedule.Pair], rule: str
    ) -> None:
        from torchcoll.bench.recorder import result_of_pair

        for pair in round_pairs:
            members = schedule.rank_pairs(self.units, pair)
            ranks = [low for low, _ in members] + [high for _, high in members]
            pair_case = replace(case, group=f"{rule}/{pair[0]}-{pair[1]}")
            result = result_of_pair(pair_case, ranks, [gathered[rank] for rank in ranks])
            result.start_ns, result.start_wall_us = self._began
            self._recorder.case(result)

    def _next_pass(self) -> tuple[list[schedule.Pair], list[int]] | None:
        """The pairs of the next pass alone, and the indexes of the cases in which they were slow.

        These are the pairs of suspects that no pass has cleared yet, between usual pairs. Only rank
        0 decides; the others get None.
        """
        if self.local.rank:
            return None
        from torchcoll.questions.pairs.matches import case_key, read_pairs
        from torchcoll.questions.pairs.suspects import (
            find_suspects,
            pairs_to_repeat,
            suspected_kinds,
        )

        pairs = read_pairs(self._recorder.run)
        suspected = find_suspects(pairs, self.options.threshold, with_hidden=True) if pairs else []
        uncleared = {index for index, suspect in enumerate(suspected) if suspect.confirmed}
        if pairs is None or not uncleared:
            return [], []
        usual, chosen = pairs_to_repeat(pairs, suspected)  # the same in each pass
        suspect_pairs = [
            pair for pair, indexes in chosen.items() if uncleared & {*indexes} and pair not in usual
        ]
        mixed = [pair for several in zip_longest(usual, suspect_pairs) for pair in several if pair]
        kinds = suspected_kinds(suspected[index] for index in sorted(uncleared))
        return mixed, [i for i, case in enumerate(self._cases) if case_key(case) in kinds]

    def _events(self) -> None:
        from torchcoll.questions.pairs.matches import read_pairs
        from torchcoll.questions.pairs.suspects import find_suspects, suspect_events

        pairs = read_pairs(self._recorder.run)
        if pairs:
            for event in suspect_events(pairs, find_suspects(pairs, self.options.threshold)):
                self._recorder.event(**event)


def refuse_lone(backend: str | None, ranks: int) -> None:
    """Raises UsageError if there can be no pairs, before anything starts."""
    schedule.check_units(tuple((rank,) for rank in range(ranks)), "rank")
    if backend and not communicates(backend):
        raise errors.UsageError(
            "backend", backend, "one that communicates", "--dry-run plans without one."
        )
    if backend and "," in backend:
        raise errors.UsageError("backend", backend, "one backend")


def run_pairs(launch: Launch, arguments: list[str]) -> int:
    """Run ``torchrun -m torchcoll.pairs``: measure every pair of ranks, or print the plan."""
    options, pairs = parse_pairs(arguments)
    if options.dry_run:
        lines = schedule.plan_lines(options.spec, pairs, options.ranks or launch.ranks)
        if launch.rank == 0:
            print("\n".join(lines))
        return errors.ExitCode.OK
    refuse_lone(options.spec.backend, launch.ranks)
    return measure(options, launch, arguments, partial(_sweep, options, pairs))


def _sweep(
    options: Options, pairs: schedule.PairOptions, session: Session, output: Output | None
) -> str | None:
    """Measure the pairs and print the result on rank 0.

    Returns why the exit code is 1 (a case that failed, or a suspect), or None.
    """
    on_progress: Callable[[str], None] = no_progress
    line = None
    if session.local.rank == 0 and not options.quiet:
        from torchcoll.report.destination import ProgressLine

        line = ProgressLine(sys.stderr, 80)
        on_progress = line.show
    PairsRun(session, pairs, on_progress).sweep()
    failure = None
    if output:
        finished = output.run

        def show() -> None:
            from torchcoll.questions.pairs.show import show_pairs

            show_pairs(finished, options.format, pairs.threshold)

        if line:
            line.clear()
        output.show(show)
        failure = output.failure()
        accused = [e["message"] for e in finished.events if e["kind"] == "suspect"]
        if accused and not failure:
            failure = f"suspect: {shorten(accused, 1, ' (and {} more)')}"
    agreed: str | None = session.local.control.decide(failure)
    return agreed


def no_progress(text: str) -> None:
    pass
