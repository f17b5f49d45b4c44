"""Which forced algorithm wins at each size, and what AUTO loses to it.

Launches are the replicates, as in ``compare``. Three questions with three answers:

* Is AUTO beaten? Welch's t of AUTO against every forced cell at every size, Holm over all of them:
  no cell is picked first, so no winner's curse. Beaten: p below 0.05 and beyond the threshold.
* Is AUTO near-optimal? Where the 95 % interval of its regret (analysis/winners.py) ends below the
  threshold. It is said of a table only if it holds at every size; such an 'all of them' needs no
  correction (R. L. Berger, Technometrics 24 (1982) 295).
* Which cell wins? Those that may be the best are ties; neighbouring sizes with a winner in common
  are one range.

A cell that was wrong at one size wins at none: its other results were luck.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.analysis.forced import Forced
from torchcoll.analysis.needed import asked, launches_needed, launches_to_bound
from torchcoll.analysis.stats import LEVEL, Ratio, geometric, holm, welch_ratio
from torchcoll.analysis.verdicts import p_text, percent
from torchcoll.analysis.winners import may_be_best, regret, regret_interval, runs_of_winners
from torchcoll.core.result import Choice
from torchcoll.core.units import format_size


@dataclass
class CellAt:
    """One cell at one size. values: ns, one a launch. state: ok, or why it has no time (wrong,
    oom, ...). ratio: AUTO / cell, with Holm's p over the whole command.
    """

    cell: Forced
    values: tuple[float, ...]
    state: str
    choices: tuple[Choice, ...]
    disobeyed: tuple[Choice, ...]
    ratio: Ratio | None = None
    p_value: float | None = None

    @property
    def time_ns(self) -> float | None:
        return geometric(self.values)

    @property
    def shown(self) -> bool:
        """Whether it is shown to differ from AUTO."""
        return self.p_value is not None and self.p_value < LEVEL


@dataclass
class SizeFound:
    """One size. best: of the forced cells that were right. tied: names of those that may be it."""

    nbytes: int
    auto: CellAt | None
    cells: list[CellAt]
    best: CellAt | None = None
    tied: list[str] = field(default_factory=list)
    regret: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""
    reason: str = ""
    needed: int | None = None  # launches a cell that would settle what is unclear

    @property
    def auto_ahead(self) -> bool:
        """AUTO is shown to be faster than every forced cell that was right."""
        ratios = [c.ratio.ratio if c.shown and c.ratio else None for c in self.cells if c.values]
        return bool(ratios) and all(ratio is not None and ratio < 1 for ratio in ratios)


@dataclass(frozen=True)
class Range:
    """Measured sizes next to each other with one winner; others: cells that tie in all of it."""

    low_nbytes: int
    high_nbytes: int
    winner: Forced
    others: tuple[str, ...] = ()


@dataclass
class Table:
    """Cases that differ in the size and in what was forced alone. hosts: 0 where unknown."""

    common: dict[str, Any]
    hosts: int
    library: str | None
    sizes: list[SizeFound]
    ranges: list[Range]
    wrong: dict[str, list[int]]  # forced cell -> sizes
    unchecked: list[str]  # cells whose results nobody verified
    uneven: list[str]  # cells whose launches measured different sizes

    @property
    def cells(self) -> list[Forced]:
        return list({at.cell.name: at.cell for size in self.sizes for at in size.cells}.values())

    def statement(self, threshold: float) -> str:
        """What is shown of AUTO in this table, in a sentence; '' without AUTO."""
        judged = [size for size in self.sizes if size.verdict]
        if not judged:
            return ""
        right = len(self.cells) - len(self.wrong)
        among = f"the best of {right} forced cells" if right > 1 else "the one forced cell"
        # By Holm's p, as "beaten" is: a bound at each size apart would name one in many by chance.
        faster = [size for size in judged if size.auto_ahead]
        ahead = [f"faster than every forced cell at {self._spans(faster)}"] if faster else []
        if all(size.verdict == "near-optimal" for size in self.sizes):
            most = max(size.high or 0.0 for size in judged)
            extent = f"at most {percent(round(max(most - 1, 0.0), 4))} slower than {among}"
            return "; ".join(
                [f"AUTO is near-optimal at every size measured: {extent} (95 %)", *ahead]
            )
        words = []
        beaten = [size for size in judged if size.verdict == "beaten"]
        if beaten:
            most = max(size.regret or 0.0 for size in beaten)
            words.append(f"AUTO is beaten at {self._spans(beaten)} (regret up to {most:.2f})")
        unclear = [size for size in judged if size.verdict == "unclear"]
        if unclear:
            needed = [size.needed for size in unclear]
            known = [number for number in needed if number]
            settled = f" ({max(known)} launches a cell would settle it)" if len(
                known) == len(needed) else ""  # fmt: skip
            words.append(f"unclear at {self._spans(unclear)}{settled}")
        near = [size for size in judged if size.verdict == "near-optimal"]
        if near:
            words.append(f"near-optimal (within {percent(threshold)}) at {self._spans(near)}")
        if rest := [size for size in self.sizes if not size.verdict]:
            words.append(f"not judged at {self._spans(rest)}")
        text = "; ".join([*words, *ahead])
        return text if beaten else f"AUTO: {text}"

    def _spans(self, sizes: Sequence[SizeFound]) -> str:
        """``1K to 4K, 1M``: neighbours among the measured sizes as one span."""
        places = [i for i, size in enumerate(self.sizes) if any(size is one for one in sizes)]
        spans: list[list[int]] = []
        for place in places:
            if spans and place == spans[-1][1] + 1:
                spans[-1][1] = place
            else:
                spans.append([place, place])
        ends = [[format_size(self.sizes[i].nbytes) for i in span] for span in spans]
        return ", ".join(a if a == b else f"{a} to {b}" for a, b in ends)


# -- verdicts --------------------------------------------------------------------------------


def judge(tables: Sequence[Table], threshold: float) -> int:
    """Fills in what is found of each size; how many comparisons with AUTO Holm went over."""
    tested = []
    for table in tables:
        for size in table.sizes:
            right = [c for c in size.cells if c.values and c.cell.name not in table.wrong]
            if not right:
                continue
            size.best = min(right, key=lambda c: c.time_ns or math.inf)
            values = {c.cell.name: c.values for c in right}
            size.tied = may_be_best(values, threshold)
            if not (size.auto and size.auto.values):
                continue
            auto = size.auto.values
            size.regret = regret(auto, values)
            low, high = regret_interval(auto, values)
            # Two estimators: one in a hundred times the one lies just outside the other's interval.
            size.low = None if low is None else min(low, size.regret)
            size.high = None if high is None else max(high, size.regret)
            for one in size.cells:
                one.ratio = welch_ratio(one.values, auto) if one.values else None
            tested += [c for c in right if c.ratio and c.ratio.p_value is not None]
    adjusted = holm([c.ratio.p_value or 0.0 for c in tested if c.ratio])
    for one, p in zip(tested, adjusted, strict=True):
        one.p_value = p
    for table in tables:
        for size in table.sizes:
            if size.regret is not None:
                names = {one.cell.name for one in size.cells if one.values} - set(table.wrong)
                own = [one for one in size.cells if one.cell.name in names]
                _verdict(size, own, len(tested), threshold)
        table.ranges = _ranges(table)
    return len(tested)


def _verdict(size: SizeFound, cells: Sequence[CellAt], tested: int, threshold: float) -> None:
    limit = 1 + threshold
    beating = [c for c in cells if c.shown and c.ratio and c.ratio.ratio > limit]
    if beating:
        first = min(beating, key=lambda c: c.p_value or 0.0)
        size.verdict, size.reason = "beaten", f"by {first.cell.name}, {p_text(first.p_value or 0)}"
        return
    if size.high is not None and size.high < limit:
        size.verdict, size.reason = "near-optimal", f"95 % below {percent(threshold)}"
        return
    size.verdict = "unclear"
    launches = min([len(c.values) for c in cells] + [len(size.auto.values if size.auto else ())])
    if launches < 2:
        size.reason = "1 launch a cell"
        return
    unsettled = [c.ratio for c in cells if c.ratio and not (c.ratio.high and c.ratio.high < limit)]
    if any(ratio.p_value is None for ratio in unsettled):
        size.reason = "launches are equal: no spread to judge by"
        return
    # One cell shown to be faster settles it; else all must be shown not to be.
    what = asked(threshold, tested)
    faster = [
        launches_needed(what, r.design, math.log(r.ratio), r.spread or 0.0)
        for r in unsettled
        if r.ratio > limit
    ]
    slower = [launches_to_bound(r, threshold) for r in unsettled if r.ratio <= limit]
    known = [n for n in faster if n] if faster else slower
    numbers = [n for n in known if n]
    if not numbers or (not faster and None in known):
        size.reason = f"too near {percent(threshold)} to settle"
        return
    needed = min(numbers) if faster else max(numbers)
    size.needed = max(needed, launches + 1)
    size.reason = f"needs {size.needed} launches"


def _ranges(table: Table) -> list[Range]:
    """Ties take what leaves the fewest ranges; of several common winners the one that did what its
    name says, then the fastest over the range.
    """
    cells = {cell.name: cell for cell in table.cells}
    found = []
    for first, last, names in runs_of_winners([size.tied for size in table.sizes]):
        inside = table.sizes[first : last + 1]

        def rank(name: str, inside: Sequence[SizeFound] = inside) -> tuple[bool, float]:
            own = [c for size in inside for c in size.cells if c.cell.name == name]
            times = [math.log(c.time_ns) for c in own if c.time_ns]
            return any(c.disobeyed for c in own), sum(times)

        winner = min(names, key=rank)
        others = tuple(name for name in names if name != winner)
        sizes = inside[0].nbytes, inside[-1].nbytes
        found.append(Range(*sizes, cells[winner], others))
    return found
