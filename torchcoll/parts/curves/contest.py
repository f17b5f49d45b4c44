"""Decide which forced algorithm wins at each size, and how much AUTO loses to it.

Runs are the replicates. AUTO is compared with a cell as ``compare`` compares two sides
(stats/statistics.py): the model includes drift over the runs, and runs that are outliers over all
comparisons are left out of all cases. A cell with a wrong result at one size cannot win at any
size: its other results are not reliable.

* Is AUTO beaten? The model's t tests AUTO against every forced cell at every size, corrected by
  Holm over all of them. AUTO is beaten if p is below 0.05 and the difference above the threshold.
* Is AUTO near-optimal? It is if the 95 % interval of its regret ends below the threshold. A table
  is called near-optimal only if every size is; such a statement about all sizes needs no correction
  (R. L. Berger, Technometrics 24 (1982) 295).
* Which cell wins? The cells that may be the best (``may_be_best``: the truly best one with 95 %;
  S. S. Gupta, Technometrics 7 (1965) 225) are ties. Neighbouring sizes with a common winner form
  one range.

The cell with the smallest mean is not only good but also lucky. To avoid this winner's curse, no
function here selects a cell and compares with it by the same values. ``regret`` times the best cell
by the run that it was chosen without. ``regret_interval``: the regret is the largest of the k
ratios AUTO / cell. If the lower bounds of all cells hold (error 2.5 % / k each, Bonferroni), the
largest of them is a lower bound of the regret. The largest upper bound is an upper bound, and needs
no correction, because only that of the truly best cell can fail (J. C. Hsu, Annals of Statistics 9
(1981) 1026). Dunnett's test assumes that all cells are equally noisy; LL and Simple are not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

from torchcoll.core.result import Choice
from torchcoll.core.units import counted, format_percent, format_size
from torchcoll.parts.curves.forced_cells import Forced
from torchcoll.questions.comparison.results import p_text
from torchcoll.stats import statistics
from torchcoll.stats.distributions import t_quantile
from torchcoll.stats.needed import make_target, runs_needed, runs_to_bound
from torchcoll.stats.power import holm
from torchcoll.stats.ratios import LEVEL, NO_SPREAD, Ratio, geometric


@dataclass
class CellAt:
    """One cell at one size.

    values: the time of each run in ns.
    state: ok, or why there is no time (wrong, oom, ...).
    choices: what the log names; disobeyed: those of them that differ from the request.
    ratio: AUTO / cell.
    p_value: of this ratio, corrected by Holm over the whole command.
    runs, starts: the number and start time (in seconds; None if unknown) of each value's run.
    """

    cell: Forced
    values: tuple[float, ...]
    state: str
    choices: tuple[Choice, ...]
    disobeyed: tuple[Choice, ...]
    ratio: Ratio | None = None
    p_value: float | None = None
    runs: tuple[int, ...] = ()
    starts: tuple[float | None, ...] = ()

    def numbers(self, order: Mapping[float, float]) -> tuple[float, ...]:
        """The position of each run in time. order: start time -> position."""
        return tuple(order[start] for start in self.starts if start is not None)

    def leave_out(self, runs: Collection[int]) -> None:
        keep = [i for i, run in enumerate(self.runs) if run not in runs]
        self.values = tuple(self.values[i] for i in keep)
        self.starts = tuple(self.starts[i] for i in keep)
        self.runs = tuple(self.runs[i] for i in keep)

    @property
    def time_ns(self) -> float | None:
        return geometric(self.values)

    @property
    def shown(self) -> bool:
        """Whether the cell is shown to differ from AUTO."""
        return self.p_value is not None and self.p_value < LEVEL


@dataclass
class SizeContest:
    """The cells at one size.

    best: the fastest forced cell with right results. tied: the names of cells that may be the best.
    regret, low, high: AUTO's time over that of the best cell, with its 95 % interval.
    result, reason: beaten, near-optimal or inconclusive, and why.
    stated_regret: the regret where it has an interval, else None.
    needed: the runs of each cell that would decide an inconclusive result.
    """

    size_bytes: int
    auto: CellAt | None
    cells: list[CellAt]
    best: CellAt | None = None
    tied: list[str] = field(default_factory=list)
    regret: float | None = None
    low: float | None = None
    high: float | None = None
    result: str = ""
    reason: str = ""
    needed: int | None = None

    @property
    def stated_regret(self) -> float | None:
        return self.regret if self.low is not None or self.high is not None else None

    def auto_wins(self, threshold: float) -> bool:
        """Whether AUTO is shown to be faster than every right cell, by more than the threshold."""
        ratios = [c.ratio.ratio if c.shown and c.ratio else 1.0 for c in self.cells if c.values]
        return bool(ratios) and max(ratios) < 1 / (1 + threshold)


@dataclass(frozen=True)
class WinnerRange:
    """Neighbouring measured sizes with one winner. ties: cells that tie with it at all of them."""

    low_bytes: int
    high_bytes: int
    winner: Forced
    ties: tuple[str, ...] = ()

    @property
    def span(self) -> str:
        return " to ".join(dict.fromkeys(map(format_size, (self.low_bytes, self.high_bytes))))


@dataclass
class Table:
    """Cases that differ only in the size and in the forced variables. hosts: 0 if unknown."""

    common: dict[str, Any]
    hosts: int
    library: str | None
    sizes: list[SizeContest]
    ranges: list[WinnerRange]
    wrong: dict[str, list[int]]  # forced cell -> sizes
    unchecked: list[str]  # cells whose results nobody verified
    uneven: list[str]  # cells whose runs measured different sizes

    @property
    def cells(self) -> list[Forced]:
        return list({at.cell.name: at.cell for size in self.sizes for at in size.cells}.values())

    def statement(self, threshold: float) -> str:
        """How AUTO compares with the forced cells, in a sentence; '' if the table has no AUTO."""
        judged = [size for size in self.sizes if size.result]
        if not judged:
            return ""
        right = len(self.cells) - len(self.wrong)
        among = f"the best of {right} forced cells" if right > 1 else "the one forced cell"
        # By Holm's p, as for "beaten": separate bounds at many sizes would name some by chance.
        faster = [size for size in judged if size.auto_wins(threshold)]
        texts = []
        for span in self.ranges:
            inside = range(span.low_bytes, span.high_bytes + 1)
            beaten = [s for s in judged if s.result == "beaten" and s.size_bytes in inside]
            if beaten:
                gains = sorted(size.regret or 0.0 for size in beaten)
                by = " to ".join(dict.fromkeys(f"{gain:.2f}x" for gain in (gains[0], gains[-1])))
                where = self._where(beaten)
                texts.append(f"force {span.winner.name} {where}: {by} as fast as AUTO")
        if faster:
            texts.append(f"AUTO is faster than every forced cell {self._where(faster)}")
        if faster != judged and all(size.result == "near-optimal" for size in self.sizes):
            most = max(size.high or 0.0 for size in judged)
            extent = f"at most {format_percent(round(max(most - 1, 0.0), 4))} slower than {among}"
            texts.insert(0, f"AUTO is near-optimal at every size measured: {extent} (95 %)")
            return "; ".join(texts)
        inconclusive = [size for size in judged if size.result == "inconclusive"]
        if inconclusive:
            run_counts = [size.needed for size in inconclusive if size.needed]
            decided = ""
            if len(run_counts) == len(inconclusive):
                decided = f" ({max(run_counts)} runs a cell would decide it)"
            texts.append(f"inconclusive {self._where(inconclusive)}{decided}")
        near = [s for s in judged if s.result == "near-optimal" and s not in faster]
        if near:
            within = f"AUTO is within {format_percent(threshold)} of the best"
            texts.append(f"{within} {self._where(near)}")
        if not_judged := [size for size in self.sizes if not size.result]:
            texts.append(f"not judged {self._where(not_judged)}")
        return "; ".join(texts)

    def _where(self, sizes: Sequence[SizeContest]) -> str:
        """``from 16M on``, ``up to 32K``, ``at 1K, 1M``."""
        first, last = self.sizes.index(sizes[0]), self.sizes.index(sizes[-1])
        if len(sizes) > 1 and sizes == self.sizes[first : last + 1]:
            if last == len(self.sizes) - 1:
                return f"from {format_size(sizes[0].size_bytes)} on"
            if not first:
                return f"up to {format_size(sizes[-1].size_bytes)}"
        return f"at {self._spans(sizes)}"

    def _spans(self, sizes: Sequence[SizeContest]) -> str:
        """Sizes such as ``1K to 4K, 1M``, with neighbouring measured sizes as one span."""
        members = set(map(id, sizes))
        indexes = [i for i, size in enumerate(self.sizes) if id(size) in members]
        spans: list[list[int]] = []
        for index in indexes:
            if spans and index == spans[-1][1] + 1:
                spans[-1][1] = index
            else:
                spans.append([index, index])
        ends = [[format_size(self.sizes[i].size_bytes) for i in span] for span in spans]
        return ", ".join(a if a == b else f"{a} to {b}" for a, b in ends)


@dataclass(frozen=True)
class Tests:
    """The tests of AUTO against every cell.

    left_out: runs that are left out of all cases.
    in_order: whether the start times of all runs are known.
    interleaved: whether no cell ran entirely before or after AUTO.
    """

    comparisons: int
    left_out: list[statistics.Outlier]
    in_order: bool
    interleaved: bool


def judge(tables: Sequence[Table], threshold: float) -> Tests:
    """Judge the tables: sets the winners and results of each size, and the ranges of each table."""
    all_cells = [c for t in tables for s in t.sizes for c in (s.auto, *s.cells) if c is not None]
    starts = {start for cell in all_cells for start in cell.starts}
    # The position of each run in time; runs that start in the same second share a position.
    known_starts = sorted(start for start in starts if start is not None)
    order = {start: float(number) for number, start in enumerate(known_starts)}
    in_order = None not in starts
    pairs = [pair for table in tables for pair in _pairs(table, order, in_order).values()]
    left_out = statistics.outliers([figures for cell_pairs in pairs for figures, _ in cell_pairs])
    for cell in all_cells:
        cell.leave_out([outlier.run[1] for outlier in left_out])
    tested, interleaved = [], True
    right: dict[int, list[CellAt]] = {}  # by id of the size
    for table in tables:
        for cell_pairs in _pairs(table, order, in_order).values():
            share = statistics.common_share([figures for figures, _ in cell_pairs])
            for figures, cell in cell_pairs:
                judged = min(len(figures.of(0)), len(figures.of(1))) >= statistics.FEWEST
                cell.ratio = statistics.plain_ratio(figures)
                if judged:
                    cell.ratio = statistics.side_ratio(figures, share)
                interleaved = interleaved and figures.interleaved
                if cell.ratio.p_value is not None and cell.cell.name not in table.wrong:
                    tested.append(cell)
        for size in table.sizes:
            right[id(size)] = [c for c in size.cells if c.values and c.cell.name not in table.wrong]
            _winners(size, right[id(size)], order if in_order else None, threshold)
    adjusted = holm([c.ratio.p_value or 0.0 for c in tested if c.ratio])
    for cell, p in zip(tested, adjusted, strict=True):
        cell.p_value = p
    for table in tables:
        for size in table.sizes:
            if size.regret is not None:
                _result(size, right[id(size)], len(tested), threshold)
        table.ranges = _ranges(table, threshold)
    return Tests(len(tested), left_out, in_order, interleaved)


def _pairs(
    table: Table, order: Mapping[float, float], in_order: bool
) -> dict[str, list[tuple[statistics.Figures, CellAt]]]:
    """The values of each cell and of AUTO (the second side) at every size that both have."""
    pairs: dict[str, list[tuple[statistics.Figures, CellAt]]] = {}
    for size in table.sizes:
        auto = size.auto
        for cell in size.cells:
            if auto and auto.values and cell.values:
                figures = statistics.Figures(
                    (*cell.values, *auto.values),
                    (*((0, n) for n in cell.runs), *((1, n) for n in auto.runs)),
                    (*cell.numbers(order), *auto.numbers(order)) if in_order else None,
                )
                pairs.setdefault(cell.cell.name, []).append((figures, cell))
    return pairs


def _winners(
    size: SizeContest,
    right: Sequence[CellAt],
    order: Mapping[float, float] | None,
    threshold: float,
) -> None:
    """Set the best cell, its ties and the regret of a size, from values without the drift."""
    if not right:
        return
    auto = size.auto if size.auto and size.auto.values else None
    cells_by_name = {cell.cell.name: cell for cell in (*right, *([auto] if auto else []))}
    values = {name: cell.values for name, cell in cells_by_name.items()}
    numbers = None
    if order is not None:
        numbers = {name: cell.numbers(order) for name, cell in cells_by_name.items()}
    drift = fit_drift(values, numbers)
    level = drift.without_drift(values, numbers or {})
    names = [cell.cell.name for cell in right]
    size.best = min(right, key=lambda cell: geometric(level[cell.cell.name]) or math.inf)
    size.tied = may_be_best({name: level[name] for name in names}, threshold, drift)
    if auto is None:
        return
    size.regret = regret(level[auto.cell.name], {name: level[name] for name in names})
    low, high = regret_interval([cell.ratio for cell in right if cell.ratio])
    # Estimate and interval come from two methods: in 1 % of cases the estimate is just outside.
    size.low = None if low is None else min(low, size.regret)
    size.high = None if high is None else max(high, size.regret)


def _result(size: SizeContest, cells: Sequence[CellAt], tested: int, threshold: float) -> None:
    limit = 1 + threshold
    beating = [c for c in cells if c.shown and c.ratio and c.ratio.ratio > limit]
    if beating:
        first = min(beating, key=lambda c: c.p_value or 0.0)
        size.result, size.reason = "beaten", f"by {first.cell.name}, {p_text(first.p_value or 0)}"
        return
    if size.high is not None and size.high < limit:
        size.result, size.reason = "near-optimal", f"95 % below {format_percent(threshold)}"
        if size.auto_wins(threshold):
            size.reason = "faster than every forced cell"
        return
    size.result = "inconclusive"
    runs = min([len(c.values) for c in cells] + [len(size.auto.values if size.auto else ())])
    if runs < statistics.FEWEST:
        size.reason = f"{counted(runs, 'run')} a cell"
        return
    undecided = [c.ratio for c in cells if c.ratio and not (c.ratio.high and c.ratio.high < limit)]
    if any(ratio.p_value is None for ratio in undecided):
        size.reason = "runs are equal: no spread to judge by"
        return
    # AUTO is beaten if one cell is shown to be faster; it is near-optimal only if none can be.
    test = make_target(threshold, tested)
    above = [r for r in undecided if r.ratio > limit]
    faster = [runs_needed(test, r.design, math.log(r.ratio), r.spread or 0.0) for r in above]
    slower = [runs_to_bound(r, threshold) for r in undecided if r.ratio <= limit]
    run_counts = [n for n in faster if n] if faster else slower
    numbers = [n for n in run_counts if n]
    if not numbers or (not faster and None in run_counts):
        size.reason = f"too near {format_percent(threshold)} to decide"
        return
    needed = min(numbers) if faster else max(numbers)
    size.needed = max(needed, runs + 1)
    size.reason = f"needs {size.needed} runs"


def _ranges(table: Table, threshold: float) -> list[WinnerRange]:
    """The winner of each range of sizes, AUTO included, with ties resolved such that there are few.

    Among several common winners, one that obeyed the request wins, then the fastest over the range.
    """
    cells = {cell.name: cell for cell in table.cells}
    tied = [size.tied for size in table.sizes]
    for index, size in enumerate(table.sizes):
        if size.auto and size.auto_wins(threshold):
            tied[index], cells["AUTO"] = ["AUTO"], replace(size.auto.cell, name="AUTO")
    ranges = []
    for first, last, names in winner_spans(tied):
        inside = table.sizes[first : last + 1]

        def rank(name: str, inside: Sequence[SizeContest] = inside) -> tuple[bool, float]:
            cells_of_name = [c for size in inside for c in size.cells if c.cell.name == name]
            times = [math.log(c.time_ns) for c in cells_of_name if c.time_ns]
            return any(c.disobeyed for c in cells_of_name), sum(times)

        winner = min(names, key=rank)
        ties = tuple(name for name in names if name != winner)
        sizes = inside[0].size_bytes, inside[-1].size_bytes
        ranges.append(WinnerRange(*sizes, cells[winner], ties))
    return ranges


Values = Mapping[str, Sequence[float]]  # cell -> one figure a run, above 0
Numbers = Mapping[str, Sequence[float]]  # cell -> the number of each run in order of time


@dataclass(frozen=True)
class Drift:
    """A linear drift over the runs.

    slope: change of the logarithm of the time from one run to the next.
    squares: sum of squares of the run numbers about the mean of their cell; 0 without a drift.
    centres: mean run number of each cell.
    """

    slope: float = 0.0
    squares: float = 0.0
    centres: Mapping[str, float] = field(default_factory=dict)

    def without_drift(self, cells: Values, numbers: Numbers) -> dict[str, list[float]]:
        """The values without the drift, as if all were measured at run number 0."""
        if not self.squares:
            return {name: list(values) for name, values in cells.items()}
        return {
            name: [
                v * math.exp(-self.slope * n) for v, n in zip(figures, numbers[name], strict=True)
            ]
            for name, figures in cells.items()
        }


def fit_drift(cells: Values, numbers: Numbers | None) -> Drift:
    """Fit the drift by least squares: log value ~ cell + run number.

    Returns no drift if the order of the runs is unknown (None), or if no degree of freedom would
    remain for the noise.
    """
    if numbers is None or sum(len(values) - 1 for values in cells.values()) < 2:
        return Drift()
    centres = {name: float(numpy.mean(numbers[name])) for name, values in cells.items() if values}
    squares = products = 0.0
    for name, centre in centres.items():
        deviations = numpy.array(numbers[name], dtype=float) - centre
        squares += float(deviations @ deviations)
        products += float(deviations @ numpy.log(cells[name]))
    return Drift(products / squares, squares, centres) if squares > NO_SPREAD else Drift()


def regret(auto: Sequence[float], cells: Values) -> float:
    """AUTO's time over that of the best cell, which is chosen without the run that times it.

    If each cell has one run only, it is the plain ratio to the shortest time.
    """
    logs = {name: numpy.log(values) for name, values in cells.items()}
    held = []
    for number in range(max(map(len, logs.values()))):
        remaining = {name: numpy.delete(cell_logs, number) if number < len(cell_logs) else cell_logs
                for name, cell_logs in logs.items()}  # fmt: skip
        means = {name: float(logs.mean()) for name, logs in remaining.items() if len(logs)}
        if not means:
            break
        chosen = logs[min(means, key=lambda name: means[name])]
        held += [float(chosen[number])] if number < len(chosen) else []
    best = (
        sum(held) / len(held)
        if held
        else min(float(cell_logs.mean()) for cell_logs in logs.values())
    )
    return math.exp(float(numpy.log(auto).mean()) - best)


def regret_interval(ratios: Sequence[Ratio]) -> tuple[float | None, float | None]:
    """95 % bounds of AUTO's time over that of the truly best cell, from AUTO / cell of each cell.

    A bound is None if there are too few runs.
    """
    rate = LEVEL / 2 / len(ratios)
    lows = [low for ratio in ratios if (low := ratio.beyond(rate)) is not None]
    highs = [ratio.high for ratio in ratios if ratio.high is not None]
    return max(lows, default=None), max(highs) if len(highs) == len(ratios) else None


def may_be_best(cells: Values, threshold: float, drift: Drift | None = None) -> list[str]:
    """The cells that tie: not shown to be slower than the best one by more than ``threshold``.

    The noise is pooled over all cells, because two cells with two runs each are not enough. A cell
    with k - 1 rivals is excluded at an error of 5 % / (k - 1), so that the truly best cell is kept
    with 95 %.
    drift: the drift that was removed from the values; its uncertainty is added to the noise.
    """
    logs = {name: numpy.log(values) for name, values in cells.items()}
    means = {name: float(cell_logs.mean()) for name, cell_logs in logs.items()}
    best = min(means, key=lambda name: means[name])
    drifts = drift is not None and drift.squares > 0
    degrees = sum(len(cell_logs) - 1 for cell_logs in logs.values()) - drifts
    squares = sum(float(((cell_logs - cell_logs.mean()) ** 2).sum()) for cell_logs in logs.values())
    names = []
    for name, cell_logs in logs.items():
        margin = math.log1p(threshold)
        if degrees > 0 and len(logs) > 1:
            share = 1 / len(cell_logs) + 1 / len(logs[best])
            if drift is not None and drifts:
                share += (drift.centres[name] - drift.centres[best]) ** 2 / drift.squares
            quantile = t_quantile(1 - LEVEL / (len(logs) - 1), degrees)
            margin = max(margin, quantile * math.sqrt(squares / degrees * share))
        if means[name] - means[best] <= margin:
            names.append(name)
    return names


def winner_spans(tied: Sequence[Sequence[str]]) -> list[tuple[int, int, list[str]]]:
    """The fewest spans of neighbouring sizes with a common winner: (first, last, common winners).

    tied: the possible winners at each size. A size without any (no cell was right there) belongs to
    no span and does not end one.
    """
    spans: list[tuple[int, int, list[str]]] = []
    for index, names in enumerate(tied):
        if not names:
            continue
        shared = [name for name in spans[-1][2] if name in names] if spans else []
        if shared:
            spans[-1] = (spans[-1][0], index, shared)
        else:
            spans.append((index, index, list(names)))
    return spans
