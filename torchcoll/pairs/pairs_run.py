"""Every pair of ranks or nodes: in rounds of disjoint pairs, the slow ones again alone, then all;
and the command line of ``torchrun -m torchcoll.pairs``, with options of its own and some of the
others'.

No groups of two are made: 512 ranks have 130816 of them, each of which every rank would have to
take part in making, and each rank would keep 511 communicators. Ranks send and receive over the
group of all ranks, whose connections the library makes where they are needed.
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

from torchcoll.bench.main import measure
from torchcoll.bench.measure import first_call
from torchcoll.bench.options import Options, Other, Parser, number, parse
from torchcoll.bench.session import Session
from torchcoll.bench.sweep import Sweep
from torchcoll.bench.verify import Buffers, Checker, allocate
from torchcoll.core.backends import communicates
from torchcoll.core.case import Case, SizedCase, size_case
from torchcoll.core.collectives import DEFAULT_COLLECTIVE
from torchcoll.core.errors import (
    ExitCode,
    TorchcollError,
    UnavailableError,
    UsageError,
    brief,
    choice,
)
from torchcoll.core.spec import Spec
from torchcoll.core.units import format_size, parse_share, whole_number
from torchcoll.machine.devices import nothing
from torchcoll.machine.launcher import Launch
from torchcoll.pairs.bisect import bisect
from torchcoll.pairs.schedule import (
    BY,
    ITERS,
    LATENCY_BYTES,
    LATENCY_ITERS,
    PASSES,
    SIZES,
    THRESHOLD,
    Pair,
    PairOptions,
    check_units,
    members_of,
    pair_cases,
    plan_lines,
    rounds,
    rounds_of,
    units_of,
)

if TYPE_CHECKING:
    from torchcoll.bench.output import Output


# Fields of Spec that mean something here; the others are refused.
_OWN = (
    *("collectives", "sizes", "dtypes", "backend", "device", "iters", "check", "timeout_s"),
    *("labels", "rehearse"),
)


def _parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="torchcoll.pairs",
        description="Measure every pair of ranks or nodes, and say which one is slow. Pairs of a "
        "round run at the same time, every pair meets once; the slow ones run again alone, then "
        "all ranks do all_reduce together. Exit code 1 where a suspect is left.",
        epilog="Further, as torchcoll.allreduce --help has them: --sizes "
        f"({','.join(map(format_size, SIZES))}) -n ({ITERS}) -d -c -T "
        "--backend --device --rehearse --rendezvous-file -J --no-output --label "
        "--library-log --format --quiet --gate --dry-run --ranks --require-idle.",
        allow_abbrev=False,
    )
    p.add_argument(
        "--by",
        default=BY[0],
        help=(
            "rank (default): every rank with every other; node: all ranks of a node"
            " with those of another at once, first with first, second with second"
        ),
    )
    p.add_argument(
        "--threshold",
        metavar="SHARE",
        default=str(THRESHOLD),
        help=f"a pair slower than the others by this share (and an outlier) is suspect "
        f"({100 * THRESHOLD:g}%%)",
    )
    p.add_argument(
        "--bisect",
        action="store_true",
        help=(
            "then halve the ranks (or nodes) with all_reduce until the slow group "
            "is small, for faults that pairs do not show"
        ),
    )
    p.add_argument("--ranks-per-node", help="for --dry-run --by node")
    return p


def parse_pairs(argv: Sequence[str]) -> tuple[Options, PairOptions]:
    """What a command line asks for. Raises UsageError."""
    own, rest = _parser().parse_known_args(list(argv))
    options = parse(rest, DEFAULT_COLLECTIVE, "torchcoll.pairs")
    spec, plain = options.spec, Spec()
    for field in fields(Spec):
        given = getattr(spec, field.name)
        if field.name not in _OWN and given != getattr(plain, field.name):
            flag = field.name.replace("_", "-")
            raise UsageError(flag, given, "none: torchcoll.pairs has no such choice")
    if options.resume:
        raise UsageError("resume", options.resume, "none: pairs are measured in one go")
    choice(options.format, "format", ("table", "markdown", "csv", "json"))
    sizes = spec.sizes or SIZES
    if min(sizes) <= LATENCY_BYTES:
        expected = f"more than {LATENCY_BYTES} bytes"
        raise UsageError("sizes", min(sizes), expected, "The latency is measured in any case.")
    for size_bytes in sizes:
        if size_bytes % LATENCY_BYTES:  # of every type a whole number of elements
            raise UsageError("sizes", size_bytes, f"a multiple of {LATENCY_BYTES} bytes")
    if len(spec.dtypes) > 1:
        raise UsageError("dtype", ",".join(spec.dtypes), "one type")
    iters = ITERS if spec.iters is None else spec.iters
    whole_number(iters, "iters", 1)
    threshold = parse_share(own.threshold, "threshold")
    per_node = own.ranks_per_node
    if per_node is not None:
        per_node = whole_number(number(per_node, int), "ranks-per-node", 1)
        if not options.dry_run:
            raise UsageError("ranks-per-node", per_node, "--dry-run with it")
    pairs = PairOptions(own.by, own.bisect, threshold, per_node)
    # A reading of the file judges as the run did.
    other = Other("pairs", pairs, {"threshold": threshold})
    return replace(options, spec=replace(spec, sizes=sizes, iters=iters), other=other), pairs


_NAMED = 8  # of a round's pairs, in messages


@dataclass(frozen=True)
class _Own:
    """What this rank does in a round. place: 0 is the lower unit of the pair, 1 the higher."""

    pair: Pair
    peer: int
    place: int


class PairsRun:
    """All pairs of one session. ``stated`` is called on rank 0 with how far it is."""

    def __init__(
        self, session: Session, options: PairOptions, stated: Callable[[str], None]
    ) -> None:
        self.session, self.local = session, session.local
        self.options, self._stated = options, stated
        self._all = Sweep(session)
        self.units = units_of(options.by, [m["host"] for m in self.local.control.members])
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
            again, places = self.local.control.decide(self._again())
            cases = [self._cases[place] for place in places]
            for pair in again:
                self._round(
                    [(pair[0], pair[1])], f"pass {turn} alone", f"{self._rule} alone", cases
                )
        self._buffers.clear()
        self.local.device.release()
        self._stated("all ranks together")
        self._all.run()
        if self.options.bisect:
            bisect(session, self.units, self.options.threshold, self._stated)
        if self.local.rank == 0:
            self._events()

    def _prepare(self) -> None:
        """Memory on every rank, and a connected group."""
        session, failure = self.session, ""
        for case in self._cases:
            sizing = size_case(case, self.local.ranks)
            if refused := self._all.agree_on_case(sizing):
                raise TorchcollError(f"pairs: {case.describe()}: {refused.reason}")
        try:
            for case in self._cases:
                sizing = size_case(case, 2)
                if case.size_bytes not in self._buffers:
                    buffers = allocate(self.local.torch, sizing, 0, self.local.device.name)
                    self._buffers[case.size_bytes] = buffers
                    Checker(
                        self.local.torch, sizing, 0, buffers, self.local.progress.beat
                    ).prepare()
        except (RuntimeError, MemoryError) as error:
            failure = brief(error)
        failed = self.local.control.failed(failure)
        if failed:
            raise TorchcollError("pairs: no memory on {}: {}".format(*failed))
        self.local.progress.step("connecting all ranks")
        # torch: all ranks take part in the first call on a group, if it is a send or a receive.
        self._or_trouble(session.communicators.align(self._cases[0].backend), "a barrier")

    def _or_trouble(self, call: Callable[[], object], what: str) -> None:
        try:
            call()
        except RuntimeError as error:
            self.local.abort(f"{what}: {brief(error)}")

    def _own(self, met: Sequence[Pair]) -> _Own | None:
        for pair in met:
            for low, high in members_of(self.units, pair):
                if self.local.rank in (low, high):
                    first = self.local.rank == low
                    return _Own(pair, high if first else low, 0 if first else 1)
        return None

    def _round(self, met: Sequence[Pair], text: str, rule: str, cases: Sequence[Case]) -> None:
        own = self._own(met)
        if len(met) <= _NAMED:
            text += f" ({' '.join(f'{low}-{high}' for low, high in met)})"
        elif own:
            text += f", pair {own.pair[0]}-{own.pair[1]}"
        self._stated(text)
        # In the file a round is in flight, not one of its pairs.
        started = replace(self._cases[0], group=f"{rule}/{text}")
        if self.local.rank == 0:
            self._recorder.started(started)
        for case in cases:
            gathered = self._one_kind(case, own, text)
            if self.local.rank == 0:
                self._keep(case, gathered, met, rule)

    def _one_kind(self, case: Case, own: _Own | None, text: str) -> list[Any]:
        """This kind of call on all pairs of the round; [rank] of samples on rank 0."""
        session, iters = self.session, self.session.spec.iters or 0
        if case.size_bytes == LATENCY_BYTES:
            iters = max(iters, LATENCY_ITERS)
        kind = f"{text}: {case.describe()}"
        cold: list[int] = []
        steady: list[int] = []
        self.local.progress.step(kind, steady if own else range(iters))
        self._began = (time.perf_counter_ns(), time.time_ns() // 1000)
        self.local.control.align()
        checked: tuple[int, int] | None = None
        if own is None:
            self._first(None, case)
        else:
            sizing = size_case(case, 2)
            buffers = self._buffers[case.size_bytes]
            small = self._buffers[self._cases[0].size_bytes]
            call = self._call(own, buffers, case.root)
            align = self._call(own, small, None)
            self._first(lambda: self._timed(call, nothing, 1, cold), case, own)
            who = f"pair {own.pair[0]}-{own.pair[1]}"
            self._or_trouble(lambda: self._timed(call, align, iters, steady), who)
            if session.spec.check and case.root is None:
                self._or_trouble(align, who)
                checked = self._verified(sizing, own, buffers, call)
        return self.local.control.gather([cold, steady, checked])

    def _timed(self, call: Any, align: Any, calls: int, durations: list[int]) -> None:
        self.local.device.synchronized(call, align, calls, {"host": durations, "issue": []})

    def _first(self, call: Callable[[], None] | None, case: Case, own: _Own | None = None) -> None:
        """The first call of all: a backend that cannot send says so here, on all ranks alike."""
        if self._tried:
            if call and own:
                self._or_trouble(call, f"pair {own.pair[0]}-{own.pair[1]}")
            return
        self._tried = True
        refused = first_call(self.local, "pairs: sending", call)
        if refused:
            (entry, *_) = self.session.entries
            raise UnavailableError(
                "pairs",
                f"{case.backend} on {case.device}: {entry.reason(case, refused.text)}",
                "a backend that sends from rank to rank",
                "Choose another with --backend.",
            )

    def _call(self, own: _Own, buffers: Buffers, root: int | None) -> Callable[[], None]:
        """Send and receive (root None), or one of them: the unit in place ``root`` sends."""
        dist = self.local.dist
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
        self, sizing: SizedCase, own: _Own, buffers: Buffers, call: Callable[[], None]
    ) -> tuple[int, int]:
        """(elements checked, elements wrong) of one more exchange."""
        checker = Checker(self.local.torch, sizing, own.place, buffers, self.local.progress.beat)
        checker.prepare()
        self._or_trouble(call, f"pair {own.pair[0]}-{own.pair[1]}")
        self.local.device.synchronize()
        return checker.count_wrong()

    @property
    def _recorder(self) -> Any:
        return self.session.recorder

    def _keep(self, case: Case, gathered: list[Any], met: Sequence[Pair], rule: str) -> None:
        from torchcoll.bench.recorder import result_of_pair

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
        if self.local.rank:
            return None
        from torchcoll.pairs.matches import key_of, read_pairs
        from torchcoll.pairs.suspects import again_alone, kinds_of, suspects

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
        from torchcoll.pairs.matches import read_pairs
        from torchcoll.pairs.suspects import events, suspects

        found = read_pairs(self._recorder.run)
        if found:
            for event in events(found, suspects(found, self.options.threshold)):
                self._recorder.event(**event)


def refuse_lone(backend: str | None, ranks: int) -> None:
    """Raises UsageError for what has no pairs, before anything starts."""
    check_units(tuple((rank,) for rank in range(ranks)), "rank")
    if backend and not communicates(backend):
        raise UsageError(
            "backend", backend, "one that communicates", "--dry-run plans without one."
        )
    if backend and "," in backend:
        raise UsageError("backend", backend, "one backend")


def run_pairs(launch: Launch, arguments: list[str]) -> int:
    """What ``torchrun -m torchcoll.pairs`` does: every pair of ranks is measured, or planned."""
    options, pairs = parse_pairs(arguments)
    if options.dry_run:
        lines = plan_lines(options.spec, pairs, options.ranks or launch.ranks)
        if launch.rank == 0:
            print("\n".join(lines))
        return ExitCode.OK
    refuse_lone(options.spec.backend, launch.ranks)
    return measure(options, launch, arguments, partial(_sweep, options, pairs))


def _sweep(
    options: Options, pairs: PairOptions, session: Session, output: Output | None
) -> str | None:
    """Measure the pairs and print what they say on rank 0.

    The text of what makes the exit code 1: a case that failed, a suspect.
    """
    stated: Callable[[str], None] = nothing_stated
    line = None
    if session.local.rank == 0 and not options.quiet:
        from torchcoll.report.destination import ProgressLine

        line = ProgressLine(sys.stderr, 80)
        stated = line.show
    PairsRun(session, pairs, stated).sweep()
    failure = None
    if output:
        finished = output.run

        def show() -> None:
            from torchcoll.pairs.show import show_pairs

            show_pairs(finished, options.format, pairs.threshold)

        if line:
            line.clear()
        output.show(show)
        failure = output.failure()
        accused = [e["message"] for e in finished.events if e["kind"] == "suspect"]
        if accused and not failure:
            more = f" (and {len(accused) - 1} more)" if len(accused) > 1 else ""
            failure = f"suspect: {accused[0]}{more}"
    agreed: str | None = session.local.control.decide(failure)
    return agreed


def nothing_stated(text: str) -> None:
    pass
