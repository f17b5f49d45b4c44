"""A model of a machine from its runs: the laws over sizes and over ranks, and their intervals.

Every interval comes from leaving out. Of a parameter it is the jackknife's (R. G. Miller,
Biometrika 61 (1974) 1): how far it moves where one size, or one number of ranks, is left out. Of a
prediction it is the jackknife+ (see size_law.py), reduced to two factors a curve: what laws without
one size say at the sizes, each with its own left-out error. A curve of 8 sizes has too few of these
for a 90th percentile: the errors of all curves are pooled, each over the mean error of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
from scipy import optimize, stats

from torchcoll.comparison.differences import kept_separate
from torchcoll.comparison.matching import kind_of
from torchcoll.comparison.sides import Measured, Reading, Side, known_of, side
from torchcoll.core.errors import UsageError
from torchcoll.core.paths import Source
from torchcoll.core.result import Run
from torchcoll.core.units import counted
from torchcoll.curves.model import (
    Figure,
    KindModel,
    Link,
    MachineModel,
    OverRanks,
    OverSizes,
    Spread,
    terms,
)
from torchcoll.curves.scaling import hosts_of, unusable, why_out
from torchcoll.curves.size_law import (
    FEWEST_SIZES,
    TAIL,
    Fit,
    Floats,
    factors,
    fit_corrections,
    fit_form,
    fit_piece,
    fit_size_law,
)
from torchcoll.curves.step_laws import StepLaw, step_laws
from torchcoll.curves.transitions import size_points

LEVEL = 0.9
FEWEST_RANKS = 2
_OWN = 4  # left-out errors, by which a curve's own mean counts as much as that of all curves
_TWO = 2  # numbers of ranks: leaving one out leaves no law
_LEAST = 0.002  # nothing is known better: clocks and rounding reach it
_AHEAD = 3  # doublings of the ranks, at which the laws that remain are asked how far they disagree


@dataclass(frozen=True)
class Curve:
    """The times of one kind of case on one number of ranks: what a model is fitted to."""

    ranks: int
    hosts: int
    sizes: Floats
    times: Floats
    errors: tuple[float, ...]

    def without(self, index: int) -> Curve:
        rest = numpy.arange(len(self.sizes)) != index
        errors = tuple(e for i, e in enumerate(self.errors) if i != index)
        return replace(self, sizes=self.sizes[rest], times=self.times[rest], errors=errors)


Kinds = list[tuple[dict[str, Any], list[Curve]]]


@dataclass(frozen=True)
class FittedModel:
    """What ``fit_model`` found, and from which launches. notes: what was left out, and why."""

    model: MachineModel
    runs: list[Run]
    notes: list[str] = field(default_factory=list)


def fit_model(sources: Source | Sequence[Source]) -> FittedModel:
    """The model of the launches of a folder, files or Runs.

    Raises UsageError where no kind of case has FEWEST_SIZES sizes; UnreadableError for a file.
    """
    files = side("files", sources)
    kinds, notes = curves_of(files)
    return FittedModel(MachineModel(fit_entries(kinds), _facts(files)), files.runs, notes)


def _facts(files: Side) -> dict[str, Any]:
    known = [known_of(part) for part in files.parts]
    facts: dict[str, Any] = {"launches": len(files.parts)}
    for name in ("device_name", "source", "torch"):
        values = list(dict.fromkeys(str(one[name]) for one in known if one.get(name)))
        if values:
            facts[name] = ", ".join(values[:4])
    return facts


# -- what was measured -----------------------------------------------------------------------


def curves_of(files: Side) -> tuple[Kinds, list[str]]:
    """Each kind of case with its curves, by ranks and hosts; and what is in none of them.

    Raises UsageError where no curve has FEWEST_SIZES sizes.
    """
    separate = kept_separate((part.ranks, known_of(part)) for part in files.parts)
    hosts = list(map(hosts_of, files.parts))
    groups: dict[str, tuple[dict[str, Any], dict[tuple[int, int], list[Measured]]]] = {}
    out: Counter[str] = Counter()
    for item in files.measured("time", Reading()):
        if reason := _why_not(item):
            out[reason] += 1
            continue
        kind = kind_of(item, separate)
        place = (item.row.ranks, hosts[item.part])
        groups.setdefault(repr(kind), (kind, {}))[1].setdefault(place, []).append(item)
    if not groups:
        got, why = unusable(files)
        raise UsageError("cases", got, "some with ranks, a size and a time, and right", why)
    found: Kinds = []
    most = 0
    for kind, places in groups.values():
        curves = []
        for (ranks, count), items in sorted(places.items()):
            points = size_points(items)
            most = max(most, len(points))
            if len(points) < FEWEST_SIZES:
                out[f"of {counted(len(points), 'size')}, {FEWEST_SIZES} are needed"] += len(points)
                continue
            sizes = numpy.array([float(p.size_bytes) for p in points])
            times = numpy.array([p.time_ns for p in points])
            curves.append(Curve(ranks, count, sizes, times, tuple(p.error for p in points)))
        if curves:
            found.append((kind, curves))
    if not found:
        raise UsageError(
            "sizes", f"{most} at most in a kind of case", f"at least {FEWEST_SIZES}",
            "Measure more, such as -b 1K -e 64M -f 4.",
        )  # fmt: skip
    notes = [f"in no law: {counted(count, 'case')} {why}" for why, count in out.items()]
    return found, [*notes, *filter(None, [files.rehearsal_note])]


def _why_not(item: Measured) -> str:
    row = item.row
    if row.status != "ok" or row.verified == "wrong" or not row.ranks or not item.figure:
        return why_out(item)
    if row.ranks < 2:
        return "of 1 rank, which communicates nothing"
    if not row.size_bytes:
        return "without a size"
    return "" if row.communicates else f"on {row.backend}, which sends nothing"


# -- fitting ---------------------------------------------------------------------------------


def fit_entries(kinds: Kinds) -> tuple[KindModel, ...]:
    """The laws of every kind; the errors of all curves tell the intervals of each."""
    fits = [[fit_size_law(c.sizes, c.times, c.errors) for c in curves] for _, curves in kinds]
    flat = [
        (curve, fit)
        for (_, curves), own in zip(kinds, fits, strict=True)
        for curve, fit in zip(curves, own, strict=True)
    ]
    spreads = iter(size_spreads([left_out(*one) for one in flat]))
    shared = iter(shared_slopes(kinds))
    entries = []
    for (kind, curves), own in zip(kinds, fits, strict=True):
        over = [
            _over_sizes(c, fit, next(spreads), next(shared))
            for c, fit in zip(curves, own, strict=True)
        ]
        ranks, why = _over_ranks(str(kind["collective"]), curves)
        entries.append(KindModel(kind, tuple(over), ranks, why))
    return tuple(entries)


def jackknife(value: float, without: Sequence[float], logs: bool = False) -> Figure:
    """The value with its 90 % interval; in logarithms where it cannot be below 0."""
    n = len(without)
    if n < 3 or (logs and min(value, *without) <= 0):
        return value, min(value, *without), max(value, *without)
    values = numpy.log(without) if logs else numpy.asarray(without)
    error = math.sqrt((n - 1) / n * float(((values - values.mean()) ** 2).sum()))
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
    if logs:
        factor = math.exp(min(half, 50.0))
        return value, value / factor, value * factor
    return value, max(0.0, value - half), value + half


def _over_sizes(curve: Curve, fit: Fit, spread: Spread, shared: SharedSlope | None) -> OverSizes:
    latencies, bandwidths = [], []
    for number, piece in enumerate(fit.law.pieces):
        others = [law.pieces[number] for law in fit.without if number < len(law.pieces)]
        latencies.append(_resolved(piece.latency_ns, [one.latency_ns for one in others]))
        bandwidths.append(_bandwidth(piece.ns_per_byte, [one.ns_per_byte for one in others]))
    knots = [
        jackknife(fit.law.factor(size), [law.factor(size) for law in fit.without], logs=True)
        for size, _ in fit.law.corrections
    ]
    law, without = fit.law, [one.beyond_ns_per_byte for one in fit.without]
    if shared:
        law, without = replace(law, beyond_ns_per_byte=shared.ns_per_byte), [*shared.without]
    return OverSizes(
        curve.ranks,
        curve.hosts,
        round(curve.sizes[0]),
        round(curve.sizes[-1]),
        len(curve.sizes),
        law,
        tuple(latencies),
        tuple(bandwidths),
        tuple(knots),
        _bandwidth(law.beyond_ns_per_byte, without),
        shared.collectives if shared else 1,
        spread,
    )


def _resolved(value: float, without: Sequence[float]) -> Figure | None:
    return jackknife(value, without) if value > 0 else None


def _bandwidth(ns_per_byte: float, without: Sequence[float]) -> Figure | None:
    """GB/s; None where time does not grow. Where it does not without some size, no upper end is
    known: it is that of the others.
    """
    own = [1 / one for one in without if one > 0]
    return jackknife(1 / ns_per_byte, own, logs=True) if ns_per_byte > 0 and own else None


# -- beyond the largest size -------------------------------------------------------------------

_FEWEST_TOGETHER = 3  # collectives, of which one can stand apart from the others
_APART = 3.5  # modified z-score: B. Iglewicz and D. C. Hoaglin, How to Detect ... Outliers (1993)
_BY_COLLECTIVE = ("collective", "op", "root", "dtype", "in_place")


@dataclass(frozen=True)
class SharedSlope:
    """Of a curve: ns for a byte of its size beyond the largest one, as so many collectives tell it
    together; without: what they tell without each curve of another.
    """

    ns_per_byte: float
    without: tuple[float, ...]
    collectives: int


def shared_slopes(kinds: Kinds) -> list[SharedSlope | None]:
    """For every curve in order; None where its own last sizes tell more.

    Once no protocol changes any more, the wire carries the bytes of all collectives alike: as many
    as a rank sends in a ring. A curve that ends before has a slope of its own there, too steep or
    too flat, and the median of several is nearer. It is taken where it predicts better than the
    curves' own slopes what is left out of all of them: the largest third of the sizes, and the
    largest size. A collective that stands apart from the others keeps its own.
    """
    flat = [(kind, curve) for kind, curves in kinds for curve in curves]
    places: dict[str, list[int]] = {}
    for index, (kind, curve) in enumerate(flat):
        other = {name: value for name, value in kind.items() if name not in _BY_COLLECTIVE}
        places.setdefault(repr((curve.ranks, curve.hosts, other)), []).append(index)
    found: list[SharedSlope | None] = [None] * len(flat)
    for indices in places.values():
        names = {flat[index][0]["collective"] for index in indices}
        if len(names) < _FEWEST_TOGETHER:
            continue
        shares = [
            step_laws(flat[index][0]["collective"])[0].share(flat[index][1].ranks)
            for index in indices
        ]
        curves = [flat[index][1] for index in indices]
        if not _together_is_better(curves, shares):
            continue
        own = [_slope(curve, len(curve.sizes)) / s for curve, s in zip(curves, shares, strict=True)]
        wire, alike = _wire(own)
        without = [_wire([*own[:i], *own[i + 1 :]])[0] for i in range(len(own))]
        for index, share, same in zip(indices, shares, alike, strict=True):
            if same:
                each = tuple(one * share for one in without)
                found[index] = SharedSlope(wire * share, each, len(names))
    return found


def _slope(curve: Curve, number: int) -> float:
    """ns per byte of the last TAIL of the first ``number`` sizes."""
    last = slice(max(0, number - TAIL), number)
    return fit_piece(curve.sizes[last], curve.times[last]).ns_per_byte


def _wire(slopes: Sequence[float]) -> tuple[float, list[bool]]:
    """The median in logarithms, and which do not stand apart from it."""
    logs = numpy.log(numpy.maximum(slopes, 1e-12))
    middle = float(numpy.median(logs))
    away = numpy.abs(logs - middle)
    limit = _APART * max(float(numpy.median(away)), _LEAST) / stats.norm.ppf(0.75)
    return math.exp(middle), (away <= limit).tolist()


def _together_is_better(curves: Sequence[Curve], shares: Sequence[float]) -> bool:
    """Where the largest third is left out of every curve, and where the largest size is."""
    numbers = [len(curve.sizes) for curve in curves]
    for kept in ([n - max(1, n // 3) for n in numbers], [n - 1 for n in numbers]):
        used = [i for i, number in enumerate(kept) if number >= FEWEST_SIZES]
        if not used:
            return False
        own = [_slope(curves[i], kept[i]) / shares[i] for i in used]
        wire, alike = _wire(own)
        errors = numpy.zeros(2)
        for i, slope, same in zip(used, own, alike, strict=True):
            curve, last = curves[i], kept[i] - 1
            beyond = shares[i] * (curve.sizes[last + 1 :] - curve.sizes[last])
            for column, each in enumerate((slope, wire if same else slope)):
                predicted = numpy.log(curve.times[last] + each * beyond)
                errors[column] += numpy.abs(predicted - numpy.log(curve.times[last + 1 :])).sum()
        if errors[1] >= errors[0]:
            return False
    return True


# -- intervals -------------------------------------------------------------------------------


def quantile(values: Floats, points: int) -> float:
    """The (1 - a)(points + 1)-th of ``points``, as the jackknife+ has it; below 9 the largest one,
    stretched as if the next ones were as much larger.
    """
    rank = math.ceil(LEVEL * (points + 1)) / points
    if rank <= 1:
        return float(numpy.quantile(values, rank - 1e-9, method="inverted_cdf"))
    return float(values.max()) * rank


@dataclass(frozen=True)
class LeftOut:
    """What leaving out told of one curve, in logarithms. inner: the errors between the ends. up,
    down: how far the ends of the jackknife+ lie from the law. below, above: of what was left out at
    an end the errors, and how many doublings outside it was.
    """

    inner: Floats
    up: Floats
    down: Floats
    below: tuple[Floats, Floats]
    above: tuple[Floats, Floats]


def left_out(curve: Curve, fit: Fit) -> LeftOut:
    n = len(fit.missed)
    places = range(1, n - 1) if n > _OWN else range(n)
    law = fit.law.logs(curve.sizes)
    up, down = [], []
    for index in places:
        moved = fit.without[index].logs(curve.sizes) - law
        error = abs(float(fit.missed[index]))
        up.append(error + moved)
        down.append(error - moved)
    return LeftOut(
        numpy.abs(fit.missed[places.start : places.stop]),
        numpy.concatenate(up),
        numpy.concatenate(down),
        _beyond_end(curve, fit, 0),
        _beyond_end(curve, fit, -1),
    )


def _beyond_end(curve: Curve, fit: Fit, end: int) -> tuple[Floats, Floats]:
    """A third of the sizes is left out at this end, one more at a time."""
    errors, distances = [numpy.zeros(0)], [numpy.zeros(0)]
    for sizes, times, left, taken in _ends(curve, end):
        law = fit_form(sizes, times, fit.form).logs(left)
        errors.append(numpy.abs(numpy.log(taken) - law))
        distances.append(numpy.abs(numpy.log2(left / sizes[end])))
    return numpy.concatenate(errors), numpy.concatenate(distances)


def size_spreads(left: Sequence[LeftOut]) -> list[Spread]:
    """Of each curve. The errors of all, each over its curve's mean error, tell how far out 90 % of
    errors lie; the mean error of a curve with few sizes leans to that of all.
    """
    count = sum(len(one.inner) for one in left)
    usual = float(numpy.median([one.inner.mean() for one in left]))
    scales = [
        (float(one.inner.sum()) + _OWN * usual) / (len(one.inner) + _OWN) + 1e-9 for one in left
    ]
    both = list(zip(left, scales, strict=True))
    high = max(0.0, quantile(numpy.concatenate([one.up / s for one, s in both]), count))
    low = max(0.0, quantile(numpy.concatenate([one.down / s for one, s in both]), count))
    above, below = _widening([one.above for one in left]), _widening([one.below for one in left])
    return [
        Spread(
            math.exp(-max(_LEAST, low * s)),
            math.exp(max(_LEAST, high * s)),
            math.exp(below),
            math.exp(above),
            count,
        )
        for s in scales
    ]


def _widening(ends: Sequence[tuple[Floats, Floats]]) -> float:
    """By how much the error of 90 % of what was left out at an end grew with each doubling."""
    rates = numpy.concatenate([errors / distances for errors, distances in ends])
    return quantile(rates, len(rates)) if len(rates) else 0.0


def _ends(curve: Curve, end: int) -> Iterable[tuple[Floats, Floats, Floats, Floats]]:
    """What is kept and what is left out: (sizes, times, sizes, times)."""
    n = len(curve.sizes)
    for count in range(1, min(n - 2, max(1, n // 3)) + 1):
        keep = slice(count, None) if end == 0 else slice(None, n - count)
        drop = slice(None, count) if end == 0 else slice(n - count, None)
        yield curve.sizes[keep], curve.times[keep], curve.sizes[drop], curve.times[drop]


# -- over ranks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RanksFit:
    """launch, step and byte within a host, step and byte between hosts; factors at some sizes."""

    steps: StepLaw
    figures: Floats
    corrections: tuple[tuple[float, float], ...]
    only_between: bool

    def factor(self, size: float) -> float:
        return math.exp(float(factors(self.corrections, numpy.array([size]))[0]))

    def logs(self, curve: Curve) -> Floats:
        return self.at(curve.sizes, curve.ranks, curve.hosts)

    def at(self, sizes: Floats, ranks: int, hosts: int) -> Floats:
        rows = numpy.array([terms(self.steps, s, ranks, hosts, self.only_between) for s in sizes])
        return numpy.log(numpy.maximum(rows @ self.figures, 1e-3)) + factors(
            self.corrections, sizes
        )


def fit_ranks(steps: StepLaw, curves: Sequence[Curve], share: float) -> RanksFit:
    """Least squares of the relative deviations, no figure below 0."""
    between = all(curve.hosts > 1 for curve in curves)
    rows = numpy.array(
        [
            terms(steps, size, curve.ranks, curve.hosts, between)
            for curve in curves
            for size in curve.sizes
        ]
    )
    sizes = numpy.concatenate([curve.sizes for curve in curves])
    times = numpy.concatenate([curve.times for curve in curves])
    columns = rows / times[:, None]
    scale = numpy.maximum(columns.max(axis=0), 1e-300)
    figures, _ = optimize.nnls(columns / scale, numpy.ones(len(times)))
    found = RanksFit(steps, figures / scale, (), between)
    rest = numpy.concatenate([numpy.log(curve.times) - found.logs(curve) for curve in curves])
    return replace(found, corrections=fit_corrections(sizes, rest, share))


@dataclass(frozen=True)
class LeftRanks:
    """A law, the laws without one number of ranks in turn, by how much they missed it (logarithms),
    and what the law itself leaves.
    """

    fit: RanksFit
    without: tuple[RanksFit, ...]
    missed: tuple[Floats, ...]
    within: tuple[Floats, ...]

    @property
    def square(self) -> float:
        """Mean over the numbers of ranks of the mean square error where it was left out. Of two one
        would be left, which tells no launch from its steps: then what the law leaves of both.
        """
        errors = self.missed if len(self.missed) > _TWO else self.within
        return float(numpy.mean([(own**2).mean() for own in errors])) + _LEAST**2


def choose_ranks(collective: str, curves: Sequence[Curve]) -> tuple[LeftRanks, list[str]]:
    """The law that predicts left-out numbers of ranks best, and those that leaving out cannot tell
    from it: F of the mean squares, 95 %. The errors of one number of ranks go together, so that
    each number is one degree of freedom, however many sizes it has.
    """
    tried = []
    shares = (0.0, 0.25, 0.5) if len(curves) > _TWO else (0.0,)
    for steps in step_laws(collective):
        own = [_leave_ranks(steps, curves, share) for share in shares]
        tried.append(min(own, key=lambda one: one.square))
    tried.sort(key=lambda one: one.square)
    limit = float(stats.f.ppf(0.95, len(curves), len(curves))) * tried[0].square
    return tried[0], [one.fit.steps.name for one in tried if one.square <= limit]


def _leave_ranks(steps: StepLaw, curves: Sequence[Curve], share: float) -> LeftRanks:
    without = [fit_ranks(steps, [c for c in curves if c is not own], share) for own in curves]
    missed = tuple(
        numpy.log(own.times) - fit.logs(own) for own, fit in zip(curves, without, strict=True)
    )
    fit = fit_ranks(steps, curves, share)
    within = tuple(numpy.log(own.times) - fit.logs(own) for own in curves)
    return LeftRanks(fit, tuple(without), missed, within)


def _over_ranks(collective: str, curves: Sequence[Curve]) -> tuple[OverRanks | None, str]:
    numbers = sorted({curve.ranks for curve in curves})
    if len(numbers) < FEWEST_RANKS:
        words = counted(len(numbers), "number") + " of ranks"
        return None, f"{words}, {FEWEST_RANKS} are needed for a law over ranks: measure another"
    best, remaining = choose_ranks(collective, curves)
    spread = ranks_spread(collective, curves, best, remaining)
    fit = best.fit

    def figure(number: int) -> Figure | None:
        own = [float(one.figures[number]) for one in best.without]
        return _resolved(float(fit.figures[number]), own)

    def link(first: int) -> Link | None:
        own = [float(one.figures[first + 1]) for one in best.without]
        if not any(fit.figures[first : first + 2]):
            return None
        return figure(first), _bandwidth(float(fit.figures[first + 1]), own)

    corrections = tuple(
        (size, jackknife(fit.factor(size), [one.factor(size) for one in best.without], True))
        for size, _ in fit.corrections
    )
    found = OverRanks(
        fit.steps.name,
        tuple(remaining),
        tuple(numbers),
        tuple(sorted({curve.hosts for curve in curves})),
        round(min(curve.sizes[0] for curve in curves)),
        round(max(curve.sizes[-1] for curve in curves)),
        figure(0),
        link(1),
        link(3),
        corrections,
        spread,
    )
    return found, ""


def ranks_spread(
    collective: str, curves: Sequence[Curve], best: LeftRanks, remaining: Sequence[str]
) -> Spread:
    """Within the numbers of ranks: the jackknife+ over the numbers left out. Beyond them: as the
    laws without the outermost numbers were wrong there, or as far as the laws that remain disagree.
    """
    up, down = [], []
    for one, missed in zip(best.without, best.missed, strict=True):
        error = numpy.abs(missed)
        for curve in curves:
            moved = (one.logs(curve) - best.fit.logs(curve)).mean()
            up.append(error + moved)
            down.append(error - moved)
    points = sum(len(missed) for missed in best.missed)
    # The errors of one number of ranks go together: there are as many as numbers of ranks.
    few = float(stats.t.ppf((1 + LEVEL) / 2, len(curves)) / stats.norm.ppf((1 + LEVEL) / 2))
    high, low = (few * max(_LEAST, quantile(numpy.concatenate(v), points)) for v in (up, down))
    half = min(high, low)
    above = max(
        few * _ranks_widening(best, curves, -1),
        _disagreement(collective, curves, best, remaining, half, 2.0),
    )
    below = max(
        few * _ranks_widening(best, curves, 0),
        _disagreement(collective, curves, best, remaining, half, 0.5),
    )
    return Spread(math.exp(-low), math.exp(high), math.exp(below), math.exp(above), points)


def _ranks_widening(best: LeftRanks, curves: Sequence[Curve], end: int) -> float:
    """A doubling: the error of the outermost number where it was left out, by its distance. Fewer
    doublings were tried than predictions go: what grew there is taken to grow on.
    """
    order = sorted(range(len(curves)), key=lambda i: curves[i].ranks)
    last = order[end]
    outer, inner = curves[last], curves[order[1 if end == 0 else -2]]
    distance = abs(math.log2(outer.ranks / inner.ranks))
    if not distance:
        return 0.0
    away = numpy.abs(best.missed[last])
    return quantile(away, len(away)) / distance


def _disagreement(
    collective: str,
    curves: Sequence[Curve],
    best: LeftRanks,
    remaining: Sequence[str],
    half: float,
    factor: float,
) -> float:
    """A doubling: what laws that remain, and the best one without one number of ranks, differ."""
    ends = sorted(curves, key=lambda curve: curve.ranks)
    outer = ends[-1] if factor > 1 else ends[0]
    others = list(best.without)
    for steps in step_laws(collective):
        if steps.name in remaining and steps.name != best.fit.steps.name:
            share = 0.5 if best.fit.corrections else 0.0
            others.append(fit_ranks(steps, curves, share))
    rates = [0.0]
    for doublings in range(1, _AHEAD + 1):
        ranks = round(outer.ranks * factor**doublings)
        if ranks < 2:
            break
        hosts = max(1, round(outer.hosts * ranks / outer.ranks)) if outer.hosts else 0
        law = best.fit.at(outer.sizes, ranks, hosts)
        for one in others:
            away = numpy.abs(one.at(outer.sizes, ranks, hosts) - law)
            # Together with the errors that the interval holds already, as independent ones add up.
            wider = numpy.sqrt(half**2 + away**2) - half
            rates.append(float(numpy.median(wider)) / doublings)
    return max(rates)
