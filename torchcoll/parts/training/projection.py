"""The communication that a training step would have, in bytes, and in time on a machine.

The durations are the machine's (curves/predictor.py): of a call that all groups of a layout make
at once, if the machine was measured so, and otherwise of a group that calls alone. What is hidden
follows from the program of one rank (training/step_program.py). Groups whose ranks are on several
hosts have one lane together, because their calls share the network interface of the host. The ranks
of a group with ranks in between share the interfaces of their hosts with the neighbouring groups:
such a call counts as one with the bytes of all these groups.

At the ends of the exposed time, all calls of a group take as much longer, or shorter, as their sum
does at the ends of its interval (``sum_of`` of curves/predictor.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError
from torchcoll.parts.curves.predictor import (
    WIDEST,
    Ends,
    PlannedCalls,
    Prediction,
    Predictor,
    sum_of,
    too_wide,
)
from torchcoll.parts.training.step_program import BACKWARD, FORWARD, Memory, SentCall, StepProgram

if TYPE_CHECKING:
    from torchcoll.parts.training.measured_step import MeasuredStep

# The ratio of a measured step's communication to its plan where nothing was measured.
UNCORRECTED = (
    "real steps took 1.4 (FSDP2) and 2.0 (DDP) times the planned communication, on 4 gloo ranks of "
    "2 cores (docs/method.md); --measured CAPTURE corrects the plan by yours"
)


@dataclass(frozen=True)
class Correction:
    """What a measured step changes in a plan.

    - factor: (measured, low, high) over planned time of all calls, with FSDP2's copies.
    - others: the same without the copies, for collectives that were not measured.
    - factors: of each measured collective.
    - sizes: the measured sizes S by collective and number of ranks.
    - gap_ns: the time in which nothing runs, divided by the calls; 0.0 if unknown.
    - blocking: collectives whose calls the program waits for at once, so that nothing hides them.
    """

    factor: Ends
    others: Ends
    factors: Mapping[str, Ends]
    sizes: Mapping[tuple[str, int], frozenset[int]]
    gap_ns: float
    blocking: frozenset[str]

    def of(
        self, prediction: Prediction, collective: str, size_bytes: int, ranks: int
    ) -> Prediction:
        """Returns the corrected prediction of a call.

        The time takes the factor that was measured for its collective; other collectives take that
        of all calls, without FSDP2's copies. Calls like those measured (collective, number of ranks
        and size) have the error of the factor alone. Where only the size differs, by an octave at
        most, the error of the machine's law that is independent between sizes comes on top, and for
        all other calls its whole error.
        """
        factor = self.factors.get(collective, self.others)
        sizes = self.sizes.get((collective, ranks), frozenset())
        if size_bytes in sizes:
            return corrected(prediction, factor, 0.0, 0.0)
        near = bool(sizes) and min(sizes) / 2 <= size_bytes <= 2 * max(sizes)
        return corrected(prediction, factor, 0.0 if near else 1.0, 1.0)


def corrected(prediction: Prediction, factor: Ends, common: float, rest: float) -> Prediction:
    """Returns the prediction times the factor, with the error of the factor and shares of its own.

    - factor: value, low, high.
    - common, rest: the shares of the variance that all calls of the machine have in common, and of
      the rest, that come on top of the factor's.
    """
    value, low, high = factor
    time = prediction.time_ns * value
    ends, common_share = [], 1.0
    for end, factor_end in ((prediction.low_ns, low), (prediction.high_ns, high)):
        wide = abs(math.log(end / prediction.time_ns))
        of_factor = abs(math.log(factor_end / value))
        shared = of_factor**2 + common * prediction.common * wide**2
        total = shared + rest * (1 - prediction.common) * wide**2
        ends.append(math.exp(min(350.0, math.sqrt(total))))
        common_share = shared / total if total else 1.0
    return Prediction(time, time / ends[0], time * ends[1], prediction.beyond, common_share)


# The backward pass computes two products for each one of the forward pass.
PASS_SHARES = {FORWARD: 1 / 3, BACKWARD: 2 / 3}
# It stops scaling if more than half of a step is exposed communication (weak), or if twice the
# ranks make the step less than 1.25 times as fast (strong).
HALF, GAIN = 0.5, 1.25
FITS, TIGHT, TOO_LARGE = "yes", "tight", "no"
# The memory of a plan may be off by so much: torch's allocator and kernels decide about the rest.
UNSURE = 0.1
WEAK, STRONG = "weak", "strong"
_MESSAGE = "sendrecv"
_NETWORK = "network"  # the lane of all groups that leave a host


@dataclass(frozen=True)
class Computation:
    """The computation of a step on a rank.

    - ns: its duration (value, low, high), with what checkpointing computes again.
    - flops: the model's operations on the rank, without what is computed again; 0.0 if unknown.
    - tokens: all tokens of the step / ranks; 0.0 if unknown.
    - peak: FLOP/s of the GPU for matrices of 16 bits; None if unknown.
    - assumed: the assumption behind the duration, such as ``35 to 55 % MFU``; '' for a given one.
    """

    ns: Ends
    flops: float = 0.0
    tokens: float = 0.0
    peak: float | None = None
    assumed: str = ""

    def times(self, share: float) -> Computation:
        """Returns the computation of a share of the batch."""
        value, low, high = self.ns
        ends = (share * value, share * low, share * high)
        return replace(self, ns=ends, flops=share * self.flops, tokens=share * self.tokens)


@dataclass(frozen=True)
class PlannedGroup:
    """A group of a plan.

    - ranks: the number of its ranks.
    - hosts: the number of hosts that they are on; None if unknown.
    - apart: how far one rank is from the next.
    - concurrent: how many such groups use the interfaces of a host at the same time.
    """

    name: str
    ranks: int
    hosts: int | None = None
    concurrent: int = 1
    apart: int = 1


@dataclass(frozen=True)
class PlannedRow:
    """The calls of one size of a group in a step.

    - prediction: one of them; None without a machine.
    - what: what they carry; '' if unknown.
    - apart: how far one rank of the group is from the next.
    - modules: the modules or parameters behind them, by name in the model, in the order in which
      these first make the call.
    """

    group: str
    collective: str
    ranks: int
    size_bytes: int
    calls: int
    prediction: Prediction | None
    what: str = ""
    apart: int = 1
    modules: tuple[str, ...] = ()

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in all of them, with the algorithm of a ring."""
        entry = COLLECTIVES[self.collective]
        share = entry.moved(self.ranks) * entry.bus_factor(self.ranks)
        return self.calls * self.size_bytes * share

    @property
    def time_ns(self) -> Ends | None:
        """All of them, one after another."""
        return sum_of(self.planned) if self.prediction else None

    @property
    def planned(self) -> list[PlannedCalls]:
        """The calls as a part of a sum; [] if they are not predicted."""
        if self.prediction is None:
            return []
        return [PlannedCalls(self.collective, self.size_bytes, self.calls, self.prediction)]

    @property
    def extrapolated(self) -> str:
        """How far the size or ranks are outside of the machine's data; '' if within."""
        return self.prediction.beyond if self.prediction else ""


@dataclass(frozen=True)
class PlannedStep:
    """A step on a given number of ranks. Times in ns, as (value, low, high) with a 90 % interval;
    None without a machine, those with computation also without its time.

    - comm_ns: all calls, one after another.
    - compute: the computation; None if unknown.
    - exposed_ns: the communication that nothing hides; corrected by a measured step, with the gaps
      in which nothing runs.
    - step_ns: the step with its computation.
    - at_rate_ns: the step with the expected computation: without its uncertainty, which all
      layouts share.
    - idle_ns: waiting for the other stages of a pipeline; 0 without one.
    - memory: of a rank; None if unknown.
    """

    ranks: int
    degrees: Mapping[str, int]
    rows: tuple[PlannedRow, ...]
    comm_ns: Ends | None
    compute: Computation | None
    exposed_ns: Ends | None
    step_ns: Ends | None
    idle_ns: float = 0.0
    memory: Memory | None = None
    at_rate_ns: Ends | None = None

    @property
    def compute_ns(self) -> float | None:
        return self.compute.ns[0] if self.compute else None

    @property
    def mfu(self) -> float | None:
        """The share of the GPU's peak that the model's operations use; None if unknown."""
        compute = self.compute
        if compute is None or not compute.peak or not compute.flops or not self.step_ns:
            return None
        return compute.flops / compute.peak / (self.step_ns[0] / 1e9)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens that a GPU trains with in a second; None if unknown."""
        if self.compute is None or not self.compute.tokens or not self.step_ns:
            return None
        return self.compute.tokens / (self.step_ns[0] / 1e9)

    @property
    def calls(self) -> int:
        """Number of calls of a rank."""
        return sum(row.calls for row in self.rows)

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends."""
        return sum(row.sent_bytes for row in self.rows)

    @property
    def only_a_guess(self) -> bool:
        """Whether the interval is too wide to be a prediction (curves/predictor.py)."""
        return self.comm_ns is not None and too_wide(*self.comm_ns[1:])

    @property
    def efficiency(self) -> float | None:
        """The share of the step that computes."""
        if self.compute is None or self.step_ns is None:
            return None
        return self.compute.ns[0] / self.step_ns[0]


@dataclass(repr=False)
class Plan(Displayed):
    """A plan of a training.

    - subject: what is trained and how, such as ``llama-3-8b with FSDP2``; '' if unknown.
    - what: what is planned, in words.
    - step: the step on the requested ranks, the first of several: times in ns, bytes of a rank.
    - weak, strong: the steps over ranks; [] for one number of ranks.
    - machine: its name; '' without one.
    - notes: what is assumed and left out.
    - memory_bytes: the memory of the machine's GPU; None if unknown.
    - fits: whether the step fits in it, as of a LayoutRow.
    - smaller: a layout like it that fits or is tight, and its bytes; only if the step does not fit.
    - measured: the measured step that corrects the times, and uncorrected: the step without it;
      None without one.
    """

    what: str
    step: PlannedStep
    weak: list[PlannedStep] = field(default_factory=list)
    strong: list[PlannedStep] = field(default_factory=list)
    machine: str = ""
    notes: list[str] = field(default_factory=list)
    memory_bytes: float | None = None
    fits: str = FITS
    smaller: tuple[str, float] | None = None
    subject: str = ""
    measured: MeasuredStep | None = None
    uncorrected: PlannedStep | None = None

    @property
    def compute_ns(self) -> float | None:
        """The computation of a step; None if unknown."""
        return self.step.compute_ns

    def scaling_break(self, kind: str) -> tuple[PlannedStep | None, PlannedStep] | None:
        """The last step that scales (None: none) and the first that does not; None: all scale."""
        steps: list[PlannedStep] = getattr(self, kind)
        for before, step in zip([None, *steps], steps, strict=False):
            if step.step_ns is None or step.compute_ns is None:
                return None
            if kind == WEAK and step.compute_ns < HALF * step.step_ns[0]:
                return before, step
            if kind == STRONG and before is not None and before.step_ns is not None:
                doublings = math.log2(step.ranks / before.ranks)
                if before.step_ns[0] / step.step_ns[0] < GAIN**doublings:
                    return before, step
        return None


def planned_step(
    machine: Predictor | None,
    program: StepProgram,
    groups: Mapping[str, PlannedGroup],
    ranks: int,
    degrees: Mapping[str, int],
    compute: Computation | None,
    memory: Memory | None = None,
    correction: Correction | None = None,
) -> PlannedStep:
    """Returns the times of one step. Raises UsageError for calls that cannot be predicted.

    - compute: the computation of a step; None if unknown.
    """
    predictions: dict[SentCall, Prediction] = {}
    of_groups: dict[str, list[PlannedCalls]] = {}
    rows = []
    modules = program.modules
    remote = [
        (sent, calls, group)
        for sent, calls in program.counts.items()
        if (group := groups.get(sent.group)) is not None and group.ranks > 1
    ]
    if machine is not None:  # a message has a substitute
        machine.check_collectives(s.collective for s, *_ in remote if s.collective != _MESSAGE)
    for sent, calls, group in remote:
        prediction = None
        if machine is not None:
            at_once = _groups_at_once(machine, group, ranks)
            if at_once > 1:
                prediction = machine.predict_at_once(
                    sent.collective, sent.size_bytes, group.ranks, at_once, group.hosts
                )
            prediction = prediction or _predict_alone(machine, sent, group)
            if correction is not None:
                prediction = correction.of(
                    prediction, sent.collective, sent.size_bytes, group.ranks
                )
            predictions[sent] = prediction
        row = PlannedRow(
            sent.group,
            sent.collective,
            group.ranks,
            sent.size_bytes,
            calls,
            prediction,
            sent.what,
            group.apart,
            modules.get(sent, ()),
        )
        of_groups.setdefault(sent.group, []).extend(row.planned)
        rows.append(row)
    if machine is None:
        return PlannedStep(ranks, degrees, tuple(rows), None, compute, None, None, memory=memory)
    comm = sum_of(each for row in rows for each in row.planned)
    if compute is None:
        return PlannedStep(ranks, degrees, tuple(rows), comm, None, None, None, memory=memory)
    passes = [{phase: share * ns for phase, share in PASS_SHARES.items()} for ns in compute.ns]
    # How much longer the calls of a group are together at each end of their interval.
    longer = {
        name: tuple(end / sums[0] for end in sums)
        for name, sums in ((name, sum_of(sent)) for name, sent in of_groups.items())
    }

    def times_at(end: int) -> Callable[[SentCall], float]:
        def time_ns(sent: SentCall) -> float:
            prediction = predictions.get(sent)
            return prediction.time_ns * longer[sent.group][end] if prediction else 0.0

        return time_ns

    lanes = {
        name: _NETWORK if group.hosts is not None and group.hosts > 1 else name
        for name, group in groups.items()
    }
    gaps_ns = 0.0
    if correction is not None:
        program = program.waiting_for(correction.blocking)
        gaps_ns = correction.gap_ns * sum(row.calls for row in rows)
    step = tuple(program.step_ns(times_at(end), passes[end], lanes) + gaps_ns for end in range(3))
    at_rate = [program.step_ns(times_at(end), passes[0], lanes) + gaps_ns for end in (1, 2)]
    idle = tuple(program.idle_ns(times_at(end), passes[end]) for end in range(3))
    exposed = [max(0.0, step[end] - compute.ns[end] - idle[end]) for end in range(3)]
    # Less computation hides less: the ends of the exposed time may be in the other order.
    exposed[1:] = min(exposed), max(exposed)
    return PlannedStep(
        ranks,
        degrees,
        tuple(rows),
        comm,
        compute,
        (exposed[0], exposed[1], exposed[2]),
        (step[0], step[1], step[2]),
        idle[0],
        memory,
        (step[0], at_rate[0], at_rate[1]),
    )


def _groups_at_once(machine: Predictor, group: PlannedGroup, ranks: int) -> int:
    """Returns how many such groups of so many ranks make a call at once, and share the cores and
    the network of a host.
    """
    if group.name == "embedding":
        return 1  # only the first and the last stage of a pipeline are in such a group
    per_host = machine.ranks_per_host
    sharing = ranks if group.hosts != 1 or per_host is None else min(ranks, per_host)
    return max(1, int(sharing // group.ranks))


def _predict_alone(machine: Predictor, sent: SentCall, group: PlannedGroup) -> Prediction:
    """Returns the duration of a call of a group that calls alone. Groups that share the network of
    a host send their bytes together.

    A message to a neighbour that the machine has not measured (``sendrecv``) is taken for an
    all_gather of two ranks, in which each sends and receives as much.
    """
    size_bytes = sent.size_bytes * group.concurrent
    if sent.collective == _MESSAGE:
        try:
            machine.cases(_MESSAGE)
        except UsageError:
            hosts = None if group.hosts is None else min(2, group.hosts)
            return machine.predict("all_gather", 2 * size_bytes, 2, hosts)
    return machine.predict(sent.collective, size_bytes, group.ranks, group.hosts)


def place_group(name: str, ranks: int, apart: int, machine: Predictor | None) -> PlannedGroup:
    """Returns a group whose ranks are ``apart`` ranks from each other."""
    hosts, concurrent = None, 1
    most = machine.ranks_per_host if machine is not None else None
    if most is not None:
        hosts = max(1, math.ceil(ranks * apart / most - 1e-9))
        if hosts > 1:
            hosts, concurrent = min(ranks, hosts), max(1, min(apart, round(most)))
    return PlannedGroup(name, ranks, hosts, concurrent, apart)


def finish(projection: Plan, machine: Predictor | None, corrected_by_step: bool) -> Plan:
    """Adds notes on the limits, and removes what would be a guess.

    - corrected_by_step: whether a measured step corrects the times.
    """
    if machine is None:
        projection.notes.append("--machine NAME or FILE gives the times; --machine list, the names")
        return projection
    projection.machine = machine.name
    guesses = sorted(
        {step.ranks for step in (*projection.weak, *projection.strong) if step.only_a_guess}
    )
    projection.weak, projection.strong = (
        [step for step in steps if step.ranks not in guesses]
        for steps in (projection.weak, projection.strong)
    )
    if guesses:
        projection.notes.append(
            f"on {', '.join(map(str, guesses))} ranks the time is only a guess: the 90 % "
            f"interval of the communication is wider than {WIDEST:g}x"
        )
    if corrected_by_step:
        projection.notes.append(
            "each time is the machine's, corrected by the factor that the capture has for its "
            "collective, or for all calls"
        )
    else:
        projection.notes.append(UNCORRECTED)
    if projection.compute_ns is None:
        projection.notes.append("--step-ms MS tells how much of it is exposed, and how it scales")
    steps = (projection.step, *projection.weak, *projection.strong)
    projection.notes += machine.notes(max(step.ranks for step in steps))
    every = [row for step in steps for row in step.rows]
    extrapolated = dict.fromkeys(row.extrapolated for row in every if row.extrapolated)
    if extrapolated:
        count = sum(bool(row.extrapolated) for row in every)
        farthest = list(extrapolated)[-1]
        projection.notes.append(
            f"{count} of {len(every)} times are extrapolated, and their "
            f"intervals are wider: {farthest}"
        )
    return projection
