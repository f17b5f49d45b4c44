"""The cases of a comparison: the runs of each, their figures, and the result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.core.case import value_text
from torchcoll.core.display import OneLine, as_one_line
from torchcoll.core.plausibility import IMPLAUSIBLE, LIKELY
from torchcoll.core.result import EXPECTED_STATUSES
from torchcoll.core.summary import COLD_CALL, Row, median, stated
from torchcoll.core.units import counted, format_digits, format_factor, format_percent, format_ratio
from torchcoll.stats.across_hardware import unlike, unlike_ranks
from torchcoll.stats.matching import NAMES, Pair
from torchcoll.stats.needed import (
    SEARCH_RUNS,
    Target,
    least_difference,
    make_target,
    smallest_difference,
)
from torchcoll.stats.power import holm, holm_levels
from torchcoll.stats.ratios import LEVEL, Ratio, exp, geometric
from torchcoll.stats.side_faults import fault_runs
from torchcoll.stats.sides import METRICS, PUBLISHED, Measured, Side
from torchcoll.stats.statistics import (
    FEWEST,
    Figures,
    Outlier,
    common_share,
    outliers,
    plain_ratio,
    side_ratio,
)

NO_BOUND = "too noisy for a lower bound"  # of a difference that is shown
# Values of ``buffer_reuse``. In a table of comparisons `same` alone would read as a result.
BUFFER_REUSE_TEXTS = {
    "same": "reused buffers",
    "rotate": "rotating buffers",
    "flush": "flushed caches",
}
LEAST_STATED = 0.001  # a smaller bound says nothing
FAR_SLOWER = 2.0  # a case that looks so many times slower is always named, and passes no gate
NOTABLE = 1.5  # a factor that is named, whether or not it is evidence
NO_STARTS = "start times are not known of all runs: a drift would look like a difference"
ONE_AFTER_THE_OTHER = (
    "measured one after the other: a change of the machine between the sides would look the same"
)


@dataclass(frozen=True)
class Judged:
    """The result of one case.

    - base, new: one figure per run.
    - result: faster, slower, same, inconclusive, not comparable. reason: why, as shown.
    - p_value: adjusted by Holm over all cases of the comparison.
    - interleaved: False if one side was measured before the other.
    - resolution: ``smallest_difference`` of an inconclusive case.
    - least: the ratio differs from 1 by at least this, if that is known.
    - fault: the outcome, such as ``wrong``, that makes the case not comparable.
    - unlike: whether the hardware or the number of ranks makes it not comparable.
    - too_few: whether it is not tested because a side has too few runs with samples.
    """

    base: tuple[float, ...]
    new: tuple[float, ...]
    result: str
    reason: str
    ratio: Ratio | None = None
    p_value: float | None = None
    interleaved: bool = True
    resolution: float | None = None
    least: float | None = None
    fault: str = ""
    unlike: bool = False
    too_few: bool = False

    @property
    def decided(self) -> bool:
        """Whether the result is known without a test."""
        return self.ratio is None or self.ratio.p_value is None

    @property
    def shown_ratio(self) -> float:
        """new / base of the geometric means, whenever the runs were measured."""
        return (geometric(self.new) or 0.0) / (geometric(self.base) or math.nan)


def measure(figures: Figures, single: str = "", share: float | None = None) -> Judged:
    """Compute the ratio of one case. single: a note on what the figure of a run is. share: as in
    ``side_ratio``.
    """
    base, new = figures.of(0), figures.of(1)
    least = min(len(base), len(new))
    ratio = plain_ratio(figures) if least < FEWEST else side_ratio(figures, share)
    judged = Judged(base, new, "inconclusive", "", ratio, interleaved=figures.interleaved)
    if least < FEWEST:
        where = "a side" if len(base) == len(new) else "in base" if len(base) == least else "in new"
        reason = f"{single}{counted(least, 'run')} {where}"
        return replace(judged, reason=reason, too_few=not single)
    if ratio.p_value is None:
        return replace(judged, reason="the runs of each side are equal: no spread to judge by")
    return judged


def ratio_alone(figures: Figures, reason: str) -> Judged:
    """A ratio that is never evidence, however many runs there are."""
    return Judged(figures.of(0), figures.of(1), "inconclusive", reason, plain_ratio(figures))


def not_comparable(figures: Figures, reason: str, fault: str = "", unlike: bool = False) -> Judged:
    base, new = figures.of(0), figures.of(1)
    return Judged(base, new, "not comparable", reason, fault=fault, unlike=unlike)


def judge(cases: Sequence[Judged], threshold: float, more_is_faster: bool) -> list[Judged]:
    """Test all cases, and add what further runs would show of those that stay inconclusive."""
    return with_resolutions(decide(cases, threshold, more_is_faster), threshold)


def targets_of(judged: Sequence[Judged], threshold: float, looks: bool = False) -> list[Target]:
    """What each case must pass to be decided, given the others.

    judged: all cases that Holm counts. looks: by the rule of ``versus``.
    """
    tested = [case for case in judged if not case.decided]
    decided = sum((case.p_value or 0.0) < LEVEL for case in tested)
    # Cases that are already significant do not take a turn of their own again.
    return [
        make_target(threshold, len(tested), decided - ((case.p_value or 0.0) < LEVEL), looks)
        if not case.decided
        else make_target(threshold, len(tested), decided, looks)
        for case in judged
    ]


def with_resolutions(
    judged: Sequence[Judged], threshold: float, looks: bool = False
) -> list[Judged]:
    """Add to each inconclusive case, and to its reason, what further runs would show.

    Parameters as of ``targets_of``.
    """
    cases = []
    for case, what in zip(judged, targets_of(judged, threshold, looks), strict=True):
        if not case.decided and case.result == "inconclusive" and case.ratio is not None:
            resolution = smallest_difference(what, case.ratio)
            case = _without_contradiction(case, case.ratio)
            if resolution is not None:
                reason = f"{case.reason}, {resolution_text(resolution)}"
                case = replace(case, resolution=resolution, reason=reason)
        cases.append(case)
    return cases


def _without_contradiction(case: Judged, ratio: Ratio) -> Judged:
    """An inconclusive case with the ratio of its figures, where the ratio that is corrected for
    drift has the opposite direction or an interval that does not contain the ratio of the figures.
    """
    plain = case.shown_ratio
    low, high = min(plain, ratio.low or plain), max(plain, ratio.high or plain)
    if (plain > 1) == (ratio.ratio > 1) and plain not in (low, high):
        return case
    shown = replace(ratio, ratio=plain, low=ratio.low and low, high=ratio.high and high)
    return replace(case, ratio=shown)


def decide(cases: Sequence[Judged], threshold: float, more_is_faster: bool) -> list[Judged]:
    """Test all cases."""
    tested = [i for i, case in enumerate(cases) if not case.decided]
    p_values = [case.ratio.p_value or 0.0 for i in tested if (case := cases[i]).ratio]
    judged = list(cases)
    for i, p, level in zip(tested, holm(p_values), holm_levels(p_values, LEVEL), strict=True):
        result = _result(replace(cases[i], p_value=p), threshold, more_is_faster)
        judged[i] = with_bound(result, Target(threshold, level))
    return judged


def with_bound(case: Judged, what: Target) -> Judged:
    """Add the bound of the difference to a case that ``what`` has shown to differ."""
    if case.result not in ("faster", "slower"):
        return case
    assert case.ratio is not None
    least = least_difference(what, case.ratio)
    if least < LEAST_STATED:
        return case
    return replace(case, least=exp(math.copysign(least, math.log(case.ratio.ratio))))


def resolution_text(change: float) -> str:
    """What further runs could show at this noise: ``smallest_difference``."""
    text = f"{format_digits(100 * change, 2)} %" if change < 0.995 else format_factor(1 + change)
    return f"{SEARCH_RUNS} runs per side would show {text}"


def beyond(ratio: Ratio, threshold: float) -> bool:
    """True where the estimate differs by more than the threshold, up or down alike."""
    return abs(math.log(ratio.ratio)) > math.log1p(threshold)


def _result(case: Judged, threshold: float, more_is_faster: bool) -> Judged:
    ratio, p = case.ratio, case.p_value
    assert ratio is not None and p is not None
    assert ratio.low_90 is not None and ratio.high_90 is not None
    significant, limit = p < LEVEL, 1 + threshold
    if significant and beyond(ratio, threshold):
        faster = (ratio.ratio > 1) == more_is_faster
        return replace(case, result="faster" if faster else "slower", reason=p_text(p))
    # Two one-sided tests (D. J. Schuirmann, J. Pharmacokinetics Biopharmaceutics 15 (1987) 657).
    if 1 / limit < ratio.low_90 and ratio.high_90 < limit:
        return replace(case, result="same", reason=f"90 % within {format_percent(threshold)}")
    return replace(case, reason=p_text(p))


def outlier_text(name: str, outlier: Outlier) -> str:
    """A run that is left out, and why."""
    return (
        f"left out of all cases: {name}, {format_ratio(outlier.factor)} times what the other runs "
        f"give (median over the cases; deleted residual {abs(outlier.t):.1f}, "
        f"limit {outlier.limit:.1f})"
    )


def p_text(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p {p:.2g}" if p < 0.995 else "p 1"


_ROW_NAMES = tuple(field.name for field in dataclasses.fields(Row))
FIRST_CALLS = "first calls of a process: torchcoll cold"


def speed_up(ratio: float, more_is_faster: bool) -> float:
    """How many times as fast the new side is, from new / base of the metric."""
    return ratio if more_is_faster else 1 / ratio


def speed_interval(ratio: Ratio | None, more_is_faster: bool) -> tuple[float, float] | None:
    """The 95 % interval of the speed-up; None if the ratio has none."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    return (ratio.low, ratio.high) if more_is_faster else (1 / ratio.high, 1 / ratio.low)


@dataclass(frozen=True, repr=False)
class Compared(OneLine):
    """One case on both sides, with its result.

    - more_is_faster: whether a larger figure is a faster one: of a bandwidth, not of a time.
    - row: of the new side, or of the base if the new side lacks the case. Figures are geometric
      means over the runs, other numbers medians.
    - base, new: the metric; of implausible figures if a side has no others.
    """

    pair: Pair
    judged: Judged
    more_is_faster: bool
    row: Row
    base: float | None
    new: float | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        what = " ".join(filter(None, [self.pair.collective, self.pair.size_text]))
        speed = f", speed-up {self.speed:.3g}" if self.judged.ratio else ""
        return as_one_line(f"Compared: {what} {self.result} ({self.reason}){speed}")

    @property
    def result(self) -> str:
        return self.judged.result

    @property
    def reason(self) -> str:
        return self.judged.reason

    @property
    def speed(self) -> float:
        """How many times as fast the new side is; only of a pair with a ratio."""
        assert self.judged.ratio is not None
        return speed_up(self.judged.ratio.ratio, self.more_is_faster)

    @property
    def factor(self) -> float:
        """How many times as fast the faster side is."""
        return max(self.speed, 1 / self.speed)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``speed``; None if the ratio has none."""
        return speed_interval(self.judged.ratio, self.more_is_faster)

    @property
    def is_notable(self) -> bool:
        """Whether an undecided case looks so much slower or faster that it is named."""
        undecided = self.result == "inconclusive" and self.judged.ratio is not None
        return undecided and self.factor >= NOTABLE

    @property
    def matched(self) -> bool:
        return self.pair.matched

    @property
    def size_cell(self) -> str:
        return self.pair.size_text or "-"

    @property
    def record(self) -> dict[str, Any]:
        """The fields of the row and of ``record_of``, in base units."""
        reported = any(m.result.reported for m in self.pair.new or self.pair.base)
        row = {name: stated(self.row, name, reported) for name in _ROW_NAMES}
        return row | record_of(self.judged, self.base, self.new)

    @property
    def ratio(self) -> float | None:
        return self.judged.ratio.ratio if self.judged.ratio else None


def record_of(judged: Judged, base: float | None, new: float | None) -> dict[str, Any]:
    """The result as a JSON object."""
    ratio = judged.ratio
    return {
        "result": judged.result,
        "reason": judged.reason,
        "ratio": ratio.ratio if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "p_value": judged.p_value,
        "base": base,
        "new": new,
        "base_runs": len(judged.base),
        "new_runs": len(judged.new),
        "resolution": judged.resolution,
    }


RESULT_NAMES = tuple(record_of(Judged((), (), "", ""), None, None))


def measured_cases(
    pairs: Sequence[Pair], base: Side, new: Side, metric: str
) -> tuple[list[Judged], list[Outlier]]:
    """Each case with its ratio and before its result, and the runs left out of all of them."""
    different = unlike(base, new)
    orders = Orders(pairs)
    every = [figures_of(pair, orders) for pair in pairs]
    refused = [
        _refused(pair, figures, metric, different)
        for pair, figures in zip(pairs, every, strict=True)
    ]
    left_out = outliers([figures for figures, why in zip(every, refused, strict=True) if not why])
    out = [outlier.run for outlier in left_out]
    remaining = [figures.without(out) for figures in every]
    for number, (figures, kept) in enumerate(zip(every, remaining, strict=True)):
        gone = [name for side, name in enumerate(("base", "new")) if not kept.of(side)]
        if gone and not refused[number]:
            reason = f"{' and '.join(gone)} only in runs left out"
            refused[number] = not_comparable(figures, reason)
    share = common_share([kept for kept, why in zip(remaining, refused, strict=True) if not why])
    cases = [
        why or case_of(pair, kept, base, new, share)
        for pair, kept, why in zip(pairs, remaining, refused, strict=True)
    ]
    return cases, left_out


class Orders:
    """Numbers the starts of all compared runs, in order.

    Runs that started in the same second, and both sides of one run, share a number.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        matched = [m for pair in pairs if pair.matched for m in (*pair.base, *pair.new)]
        starts = {m.start for m in matched if m.row.is_right}
        recorded = sorted(start for start in starts if start is not None)
        # With one unknown start, the others alone are no order.
        self._numbers = {start: float(n) for n, start in enumerate(recorded)}
        self.known = None not in starts

    def of(self, starts: Iterable[float | None]) -> tuple[float, ...] | None:
        if not self.known:
            return None
        return tuple(self._numbers[start] for start in starts if start is not None)


def figures_of(pair: Pair, orders: Orders | None = None) -> Figures:
    """The figures of both sides with a right result; without ``orders`` their order is unknown."""
    sides = [(side, runs_of(items)) for side, items in enumerate((pair.base, pair.new))]
    values = [(value, side, items[0]) for side, several in sides for value, items in several]
    return Figures(
        tuple(value for value, *_ in values),
        tuple((side, first.run) for _, side, first in values),
        orders.of(first.start for *_, first in values) if orders and pair.matched else None,
    )


def case_of(
    pair: Pair, figures: Figures, base: Side, new: Side, share: float | None = None
) -> Judged:
    """Judge a comparable case before the test. share: as in ``side_ratio``."""
    if (base.tools == {PUBLISHED}) != (new.tools == {PUBLISHED}):
        return ratio_alone(figures, "reference, a published figure")
    if how := _measured_separately(pair, base, new):
        return ratio_alone(figures, how)
    if base.keeps_samples and new.keeps_samples:
        return measure(figures, share=share)
    reported = {r.reported.statistic for s in (base, new) for r in s.results if r.reported}
    what = "single means, " if reported == {"mean"} else "single figures, "
    return measure(figures, what, share)


def _enters(item: Measured) -> bool:
    return item.row.is_right and bool(item.figure)


def runs_of(items: Sequence[Measured]) -> list[tuple[float, list[Measured]]]:
    """One figure per run with a right result; a case that ran twice in a run counts once."""
    by_run: dict[int, list[Measured]] = {}
    for item in items:
        if _enters(item):
            by_run.setdefault(item.run, []).append(item)
    return [(geometric([m.figure for m in several]) or 0.0, several) for several in by_run.values()]


def _refused(pair: Pair, figures: Figures, metric: str, different: str) -> Judged | None:
    """The case as not comparable; None if it has a ratio. different: how the hardware differs."""
    if not pair.base or not pair.new:
        return not_comparable(figures, f"only in {'base' if pair.base else 'new'}")
    for side, (name, items) in enumerate((("base", pair.base), ("new", pair.new))):
        if faults := fault_runs(items):
            outcome = "wrong" if "wrong" in faults else next(iter(faults))
            return not_comparable(figures, _fault_text(name, items, faults, outcome), outcome)
        if figures.of(side):
            continue
        bad = next((m.row for m in items if not m.row.is_right), None)
        if any(m.row.statistic == COLD_CALL for m in items):
            reason = FIRST_CALLS
        elif bad is None:
            reason = f"no {metric} in {name}"
        else:
            reason = f"{bad.outcome} in {name}" + (f": {bad.reason}" if bad.reason else "")
        return not_comparable(figures, reason)
    if reason := other_clock(pair):
        return not_comparable(figures, reason)
    if reason := different or unlike_ranks(pair):
        return not_comparable(figures, reason, unlike=True)
    return None


def _fault_text(
    name: str, items: Sequence[Measured], faults: dict[str, set[int]], outcome: str
) -> str:
    """``wrong in 2 of 6 runs of new``, ``wrong in new: 3 of 8``, ``oom in new: too large``.

    The runs without a fault are no sample: a side that hangs when it is slow looks faster.
    """
    runs = {item.run for item in items}
    if faults[outcome] != runs:
        return f"{outcome} in {len(faults[outcome])} of {len(runs)} runs of {name}"
    first = next(item for item in items if item.row.outcome == outcome)
    check = first.result.verification
    if outcome == "wrong" and check and check.wrong:
        return f"wrong in {name}: {check.wrong} of {check.checked}"
    reason = first.row.reason.partition(LIKELY)[0]
    return f"{outcome} in {name}" + (f": {reason}" if reason else "")


def other_clock(pair: Pair) -> str:
    """Why only one side was measured with the issue clock, which stops when the call returns; ''
    if both sides or neither.
    """
    issued = [{m.row.clock == "issue" for m in items} for items in (pair.base, pair.new)]
    if issued[0] == issued[1]:
        return ""
    return f"the issue clock in {'base' if True in issued[0] else 'new'} alone: no operation's time"


def _measured_separately(pair: Pair, base: Side, new: Side) -> str:
    """How the sides were measured differently, by mode or clock; '' if they were not, or if the
    sides are named after the difference.
    """
    asked = {side.only[0] for side in (base, new) if side.only}
    pairs_of_values = [
        (name, [values_of_side[name] for values_of_side in pair.side_values])
        for name in ("mode", "clock")
        if name not in asked
        and all(values_of_side.get(name) for values_of_side in pair.side_values)
    ]
    texts = [f"{name} {a} / {b}" for name, (a, b) in pairs_of_values if a != b]
    return f"measured in different ways: {', '.join(texts)}" if texts else ""


def compared_row(
    pair: Pair, judged: Judged, more_is_faster: bool, left_out: Sequence[tuple[int, int]]
) -> Compared:
    """The case as it is shown. left_out: (side, number) of the runs that are outliers."""
    items = pair.new or pair.base
    side = int(bool(pair.new))
    kept = [m for m in items if (side, m.run) not in left_out] if judged.ratio else items
    good = [m.row for _, items_of_run in runs_of(kept) for m in items_of_run]
    notes = []
    for name, side_items in (("base", pair.base), ("new", pair.new)):
        out = [m for m in side_items if not _enters(m) and m.row.outcome in EXPECTED_STATUSES]
        if out and len(out) < len(side_items):
            reasons = dict.fromkeys(
                m.row.outcome
                if not m.row.is_right
                else COLD_CALL
                if m.row.statistic == COLD_CALL
                else "no figure"
                for m in out
            )
            left = f"{len(out)} of {len(side_items)} runs of {name} left out"
            notes.append(f"{left}: {', '.join(reasons)}")
        remarks = dict.fromkeys(text for m in side_items for text in m.result.warnings)
        notes += [f"{name}: {text}" for text in remarks]
    sizes = {m.row.size_bytes for m in [*pair.base, *pair.new] if m.row.size_bytes}
    if len(sizes) > 1 and pair.matched:
        notes.append(f"actual sizes differ: {', '.join(map(str, sorted(sizes)))} bytes")
    row = _one_row(good or [m.row for m in items])
    # Implausible figures are shown next to the reason, and are in no ratio.
    base, new = (
        geometric(
            values or [m.figure for m in side_items if m.figure and m.row.status == IMPLAUSIBLE]
        )
        for values, side_items in ((judged.base, pair.base), (judged.new, pair.new))
    )
    return Compared(pair, judged, more_is_faster, row, base, new, tuple(notes))


def _one_row(rows: Sequence[Row]) -> Row:
    """One row of several runs."""

    def over(name: str) -> float | None:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        return median(values) if values else None

    names = ("first_call_ns", "second_call_ns", "low_ns", "high_ns", "p99_ns")
    changed: dict[str, Any] = {name: over(name) for name in names}
    for name in METRICS.values():
        changed[name] = geometric([getattr(row, name) for row in rows])
    return dataclasses.replace(rows[0], calls=sum(row.calls for row in rows), **changed)


def names_of(items: Sequence[Compared]) -> list[str]:
    """Name each case by its collective and size, and by what else tells it from others of this
    collective and size. What all have in common is in no name.
    """
    several = len({item.pair.collective for item in items}) > 1
    shorts = []
    for item in items:
        names = [item.pair.collective] if several else []
        names += [item.pair.size_text] if item.pair.size_bytes else []
        shorts.append(" ".join(names))
    further = _distinctions([item.pair for item in items], shorts)
    return [" ".join(filter(None, names)) for names in zip(shorts, further, strict=True)]


def table_names(tables: Sequence[Sequence[Compared]]) -> list[tuple[str, str]]:
    """The collective of each table, and what tells it from others of this collective."""
    pairs = [table[0].pair for table in tables]
    collectives = [pair.collective for pair in pairs]
    return list(zip(collectives, _distinctions(pairs, collectives), strict=True))


def titles_of(pairs: Sequence[Pair]) -> list[str]:
    """What tells each table, of which ``pairs`` has one case, from the others; '' of one table."""
    several = len({pair.collective for pair in pairs}) > 1
    collectives = [pair.collective if several else "" for pair in pairs]
    further = _distinctions(pairs, collectives)
    return [" ".join(filter(None, names)) for names in zip(collectives, further, strict=True)]


def _distinctions(pairs: Sequence[Pair], shorts: Sequence[str]) -> list[str]:
    """The values in which each pair differs from others with the same short name."""
    groups: dict[str, list[Pair]] = {}
    for pair, short in zip(pairs, shorts, strict=True):
        groups.setdefault(short, []).append(pair)
    names = list(dict.fromkeys([*NAMES, *(name for pair in pairs for name in pair.common)]))
    names.remove("collective")
    differing = {
        short: [name for name in names if len({_stated(pair, name) for pair in group}) > 1]
        for short, group in groups.items()
    }
    return [
        " ".join(filter(None, (_stated(pair, name) for name in differing[short])))
        for pair, short in zip(pairs, shorts, strict=True)
    ]


def _stated(pair: Pair, name: str) -> str:
    values = [pair.common.get(name), *(of_side.get(name) for of_side in pair.side_values)]
    texts = [value_text(name, value) for value in values if value is not None]
    if name == "buffer_reuse":
        texts = [BUFFER_REUSE_TEXTS.get(text, text) for text in texts]
    form = {"ranks": "{} ranks", "root": "root {}"}.get(name, "{}")  # no number without its name
    return " -> ".join(form.format(text) for text in texts)


def tables_of(rows: Sequence[Compared]) -> list[list[Compared]]:
    """Group cases that differ only in size."""
    tables: dict[object, list[Compared]] = {}
    for row in rows:
        tables.setdefault(row.pair.table, []).append(row)
    return list(tables.values())
