"""Which forced algorithm wins at each size, and what AUTO loses to it.

Launches are the replicates, and AUTO against a cell is judged as ``compare`` judges two sides
(stats/statistics.py): drift over the launches is in the model, launches that are outliers over
all of these comparisons are left out of all cases. Three questions with three answers:

* Is AUTO beaten? The model's t of AUTO against every forced cell at every size, Holm over all of
  them: no cell is picked first, so no winner's curse. Beaten: p below 0.05, beyond the threshold.
* Is AUTO near-optimal? Where the 95 % interval of its regret ends below the
  threshold. It is said of a table only if it holds at every size; such an 'all of them' needs no
  correction (R. L. Berger, Technometrics 24 (1982) 295).
* Which cell wins? Those that may be the best are ties; neighbouring sizes with a winner in common
  are one range.

A cell that was wrong at one size wins at none: its other results were luck.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
from scipy import stats

from torchcoll.comparison.results import p_text
from torchcoll.core.backends import backend_of
from torchcoll.core.result import Choice
from torchcoll.core.units import format_percent, format_size
from torchcoll.libraries.known_variables import FORCING
from torchcoll.libraries.nccl import forced as nccl_forced
from torchcoll.libraries.nccl.algorithms import FUNCTIONS, canonical
from torchcoll.libraries.oneccl.algorithms import variables_of
from torchcoll.stats.needed import asked, launches_needed, launches_to_bound
from torchcoll.stats.ratios import LEVEL, NO_SPREAD, Ratio, geometric, holm
from torchcoll.stats.statistics import Figures, Outlier, common_share, outliers, side_ratio

# -------------------------------------------------------------------------------------------------
# What each launch forced: its cell, and whether the library did as it was told.

AUTO = "auto"
_LIBRARY = ("NCCL_", "RCCL_", "CCL_")
_OF_LOGS = ("NCCL_DEBUG", "CCL_LOG")
_NONE = ("", "-", "auto", "default", "none", "unset")  # labels that say: nothing is forced


@dataclass(frozen=True)
class Forced:
    """A cell: what was set in it and unset in others. Nothing set is AUTO."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def auto(self) -> bool:
        return not self.settings


def settings_of(facts: Mapping[str, str], varied: Sequence[str], backend: str) -> dict[str, str]:
    """The variables of a launch that force, or that some launch sets and another does not.

    A label named like a variable that forces (``--label NCCL_ALGO=Ring``) counts where the file
    does not tell the variable. {} for a backend that reads none: what differs between its cells is
    noise.
    """
    if not backend_of(backend).forced:
        return {}
    names = dict.fromkeys((*FORCING, *varied))
    return {name: value for name in names if (value := facts.get(name) or _labelled(facts, name))}


def _labelled(facts: Mapping[str, str], name: str) -> str:
    value = facts.get(f"label={name}", "") if name in FORCING else ""
    return "" if value.strip().lower() in _NONE else value


def tells_variables(facts: Mapping[str, str]) -> bool:
    """False for an imported file that names no variable of a library: some may have been set."""
    return "torch" in facts or any(name.startswith(_LIBRARY) for name in facts)


def varied_of(launches: Iterable[Mapping[str, str]]) -> list[str]:
    """Variables of the libraries that some launches set and others leave alone.

    One that all set, to several values, is an axis: it keeps tables apart. A file that tells no
    variable leaves none alone.
    """
    facts = [own for own in launches if tells_variables(own)]
    names = dict.fromkeys(n for own in facts for n in own if n.startswith(_LIBRARY))
    wanted = [n for n in names if not n.startswith(_OF_LOGS)]
    return [n for n in wanted if any(n not in own for own in facts)]


def name_of(settings: Mapping[str, str], labels: Iterable[str | None]) -> str:
    """``auto``; the label ``cell`` where all launches agree on it; else the words: ``ring-ll``.

    A label that says ``auto`` of launches that force something (by the shell's environment) lies.
    """
    if not settings:
        return AUTO
    names = set(labels)
    if len(names) == 1 and (name := names.pop()) and name.split("-")[0] != AUTO:
        return name
    words = [
        "+".join(dict.fromkeys(part.rpartition(":")[2].lower() for part in value.split(";")))
        if name in FORCING
        else f"{name}={value}"
        for name, value in settings.items()
    ]
    return "-".join(dict.fromkeys(words))


def word_of(value: str, collective: str) -> str | None:
    """What NCCL_ALGO or NCCL_PROTO = ``value`` says for a collective: one word; None: it does not
    say one (a list, an exclusion, another function).
    """
    function = FUNCTIONS.get(collective, "").lower()
    found = None
    for part in value.lower().split(";"):
        name, colon, word = part.rpartition(":")
        if not colon or name == function:
            found = word
    return found if found and re.fullmatch(r"\w+", found) else None


def requested(settings: Mapping[str, str], collective: str) -> tuple[str | None, str | None]:
    """(algorithm, protocol) as the library's log would name them; None where not said."""
    algorithm, protocol = (
        canonical(word_of(settings.get(name, ""), collective) or "")
        for name in nccl_forced.VARIABLES
    )
    if algorithm is None:
        own = variables_of(collective)
        words = {value for name, value in settings.items() if name in own}
        algorithm = words.pop() if len(words) == 1 else None
        algorithm = algorithm if algorithm and re.fullmatch(r"\w+", algorithm) else None
    return algorithm, protocol


def disobeyed(
    settings: Mapping[str, str], collective: str, choices: Iterable[Choice]
) -> list[Choice]:
    """Choices in the log that are not what was asked; [] where all are, or nothing is known.

    NCCL up to 2.23 runs Ring in silence where a forced algorithm does not exist for the function;
    oneCCL's ``direct`` becomes recursive_doubling over other transports than MPI.
    """
    logged = [choice for choice in choices if choice.source == "log"]
    return others_than(*requested(settings, collective), logged)


def others_than(
    algorithm: str | None, protocol: str | None, choices: Iterable[Choice]
) -> list[Choice]:
    """Those that are not of this algorithm and protocol; None is any."""
    return [
        one
        for one in choices
        if (algorithm and one.algorithm.lower() != algorithm.lower())
        or (protocol and one.protocol and one.protocol.lower() != protocol.lower())
    ]


# -------------------------------------------------------------------------------------------------
# The best of several cells from few launches each: which may be it, and what another loses to it.
#
# The cell with the least mean of k is not only the best but also the luckiest. Against that
# winner's curse nothing here compares with a cell that was chosen by the same figures as if it had
# been named before:
#
# * ``regret``, the estimate: the best is chosen without the launch that it is then timed by (leave
# one out). * ``regret_interval``: the regret is the largest of the k ratios AUTO / cell. If every
# cell's lower bound holds (error 2.5 % / k each, Bonferroni), the largest of them bounds it from
# below. From above the largest upper bound will do, and needs no correction: only that of the truly
# best cell can fail (J. C. Hsu, Annals of Statistics 9 (1981) 1026). Dunnett's test would be a
# little narrower; it assumes that all cells are equally noisy, which LL and Simple are not. *
# ``may_be_best``: contains the truly best cell with 95 % (S. S. Gupta, Technometrics 7 (1965) 225).

Values = Mapping[str, Sequence[float]]  # cell -> one figure a launch, above 0
Numbers = Mapping[str, Sequence[float]]  # cell -> the number of each launch in order of time


@dataclass(frozen=True)
class Drift:
    """slope: of the logarithms, a launch. squares: of the launch numbers within their cells, 0
    where no drift is known of; centres: their means, by cell.
    """

    slope: float = 0.0
    squares: float = 0.0
    centres: Mapping[str, float] = field(default_factory=dict)

    def levelled(self, cells: Values, numbers: Numbers) -> dict[str, list[float]]:
        """The figures as at one time, that of launch number 0."""
        if not self.squares:
            return {name: list(values) for name, values in cells.items()}
        return {
            name: [v * math.exp(-self.slope * n) for v, n in zip(own, numbers[name], strict=True)]
            for name, own in cells.items()
        }


def drift_of(cells: Values, numbers: Numbers | None) -> Drift:
    """By least squares, log figure ~ cell + launch number; none where times are unknown, or where
    it would leave nothing to know the noise by.
    """
    if numbers is None or sum(len(own) - 1 for own in cells.values()) < 2:
        return Drift()
    centres = {name: float(numpy.mean(numbers[name])) for name, own in cells.items() if own}
    squares = products = 0.0
    for name, centre in centres.items():
        away = numpy.array(numbers[name], dtype=float) - centre
        squares += float(away @ away)
        products += float(away @ numpy.log(cells[name]))
    return Drift(products / squares, squares, centres) if squares > NO_SPREAD else Drift()


def regret(auto: Sequence[float], cells: Values) -> float:
    """AUTO's time over that of the best cell, which is chosen without the launch that times it.

    With one launch a cell nothing can be left out: the plain ratio to the least time.
    """
    logs = {name: numpy.log(values) for name, values in cells.items()}
    held = []
    for number in range(max(map(len, logs.values()))):
        rest = {name: numpy.delete(own, number) if number < len(own) else own
                for name, own in logs.items()}  # fmt: skip
        means = {name: float(own.mean()) for name, own in rest.items() if len(own)}
        if not means:
            break
        chosen = logs[min(means, key=lambda name: means[name])]
        held += [float(chosen[number])] if number < len(chosen) else []
    best = sum(held) / len(held) if held else min(float(own.mean()) for own in logs.values())
    return math.exp(float(numpy.log(auto).mean()) - best)


def regret_interval(ratios: Sequence[Ratio]) -> tuple[float | None, float | None]:
    """95 % bounds of AUTO's time over the truly best cell's, from AUTO / cell of each; None where a
    launch is too few.
    """
    rate = LEVEL / 2 / len(ratios)
    lows = [low for ratio in ratios if (low := ratio.beyond(rate)) is not None]
    known = [ratio.high for ratio in ratios if ratio.high is not None]
    return max(lows, default=None), max(known) if len(known) == len(ratios) else None


def may_be_best(cells: Values, threshold: float, drift: Drift | None = None) -> list[str]:
    """The cells that tie: not shown to be slower than the best one, or by less than ``threshold``.

    The noise is pooled over the cells: with two launches each a pair alone could tell nothing.
    A cell with k - 1 rivals is out at an error of 5 % / (k - 1): the truly best stays with 95 %.
    drift: what was taken from the figures; it is known no better than its own error.
    """
    logs = {name: numpy.log(values) for name, values in cells.items()}
    means = {name: float(own.mean()) for name, own in logs.items()}
    best = min(means, key=lambda name: means[name])
    drifts = drift is not None and drift.squares > 0
    degrees = sum(len(own) - 1 for own in logs.values()) - drifts
    squares = sum(float(((own - own.mean()) ** 2).sum()) for own in logs.values())
    found = []
    for name, own in logs.items():
        margin = math.log1p(threshold)
        if degrees > 0 and len(logs) > 1:
            share = 1 / len(own) + 1 / len(logs[best])
            if drift is not None and drifts:
                share += (drift.centres[name] - drift.centres[best]) ** 2 / drift.squares
            quantile = float(stats.t.isf(LEVEL / (len(logs) - 1), degrees))
            margin = max(margin, quantile * math.sqrt(squares / degrees * share))
        if means[name] - means[best] <= margin:
            found.append(name)
    return found


def runs_of_winners(tied: Sequence[Sequence[str]]) -> list[tuple[int, int, list[str]]]:
    """The fewest runs of neighbours with a winner in common: (first, last, common winners) each.

    Places without any winner (nothing was right there) are in no run and end none.
    """
    found: list[tuple[int, int, list[str]]] = []
    for place, names in enumerate(tied):
        if not names:
            continue
        shared = [name for name in found[-1][2] if name in names] if found else []
        if shared:
            found[-1] = (found[-1][0], place, shared)
        else:
            found.append((place, place, list(names)))
    return found


# -------------------------------------------------------------------------------------------------


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
    launches: tuple[int, ...] = ()  # the number of each value's launch
    starts: tuple[float | None, ...] = ()  # of these, in seconds; None is unknown

    def leave_out(self, launches: Collection[int]) -> None:
        keep = [i for i, launch in enumerate(self.launches) if launch not in launches]
        self.values = tuple(self.values[i] for i in keep)
        self.starts = tuple(self.starts[i] for i in keep)
        self.launches = tuple(self.launches[i] for i in keep)

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
    needed: int | None = None  # launches a cell that would settle what is unclear

    @property
    def auto_ahead(self) -> bool:
        """AUTO is shown to be faster than every forced cell that was right."""
        ratios = [c.ratio.ratio if c.shown and c.ratio else None for c in self.cells if c.values]
        return bool(ratios) and all(ratio is not None and ratio < 1 for ratio in ratios)


@dataclass(frozen=True)
class WinnerRange:
    """Measured sizes next to each other with one winner; others: cells that tie in all of it."""

    low_bytes: int
    high_bytes: int
    winner: Forced
    others: tuple[str, ...] = ()


@dataclass
class Table:
    """Cases that differ in the size and in what was forced alone. hosts: 0 where unknown."""

    common: dict[str, Any]
    hosts: int
    library: str | None
    sizes: list[SizeFound]
    ranges: list[WinnerRange]
    wrong: dict[str, list[int]]  # forced cell -> sizes
    unchecked: list[str]  # cells whose results nobody verified
    uneven: list[str]  # cells whose launches measured different sizes

    @property
    def cells(self) -> list[Forced]:
        return list({at.cell.name: at.cell for size in self.sizes for at in size.cells}.values())

    def statement(self, threshold: float) -> str:
        """What is shown of AUTO in this table, in a sentence; '' without AUTO."""
        judged = [size for size in self.sizes if size.result]
        if not judged:
            return ""
        right = len(self.cells) - len(self.wrong)
        among = f"the best of {right} forced cells" if right > 1 else "the one forced cell"
        # By Holm's p, as "beaten" is: a bound at each size apart would name one in many by chance.
        faster = [size for size in judged if size.auto_ahead]
        ahead = [f"faster than every forced cell at {self._spans(faster)}"] if faster else []
        if all(size.result == "near-optimal" for size in self.sizes):
            most = max(size.high or 0.0 for size in judged)
            extent = f"at most {format_percent(round(max(most - 1, 0.0), 4))} slower than {among}"
            return "; ".join(
                [f"AUTO is near-optimal at every size measured: {extent} (95 %)", *ahead]
            )
        words = []
        beaten = [size for size in judged if size.result == "beaten"]
        if beaten:
            most = max(size.regret or 0.0 for size in beaten)
            words.append(f"AUTO is beaten at {self._spans(beaten)} (regret up to {most:.2f})")
        unclear = [size for size in judged if size.result == "unclear"]
        if unclear:
            needed = [size.needed for size in unclear]
            known = [number for number in needed if number]
            settled = f" ({max(known)} launches a cell would settle it)" if len(
                known) == len(needed) else ""  # fmt: skip
            words.append(f"unclear at {self._spans(unclear)}{settled}")
        near = [size for size in judged if size.result == "near-optimal"]
        if near:
            words.append(
                f"near-optimal (within {format_percent(threshold)}) at {self._spans(near)}"
            )
        if rest := [size for size in self.sizes if not size.result]:
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
        ends = [[format_size(self.sizes[i].size_bytes) for i in span] for span in spans]
        return ", ".join(a if a == b else f"{a} to {b}" for a, b in ends)


# -- results --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tests:
    """Of AUTO against every cell. left_out: of all cases. in_order: the launches' starts are known;
    interleaved: of no cell all launches were before or after those of AUTO.
    """

    comparisons: int
    left_out: list[Outlier]
    in_order: bool
    interleaved: bool


def judge(tables: Sequence[Table], threshold: float) -> Tests:
    """Fills in what is found of each size. comparisons: those with AUTO that Holm went over."""
    every = [c for t in tables for s in t.sizes for c in (s.auto, *s.cells) if c is not None]
    starts = {start for one in every for start in one.starts}
    order = _Order(starts)
    pairs = [pair for table in tables for pair in _pairs(table, order).values()]
    left_out = outliers([figures for own in pairs for figures, _ in own])
    for one in every:
        one.leave_out([outlier.launch[1] for outlier in left_out])
    tested, interleaved = [], True
    for table in tables:
        for own in _pairs(table, order).values():
            share = common_share([figures for figures, _ in own])
            for figures, cell in own:
                cell.ratio = side_ratio(figures, share)
                interleaved = interleaved and figures.interleaved
                if cell.ratio.p_value is not None and cell.cell.name not in table.wrong:
                    tested.append(cell)
        for size in table.sizes:
            _winners(size, _right(table, size), order, threshold)
    adjusted = holm([c.ratio.p_value or 0.0 for c in tested if c.ratio])
    for one, p in zip(tested, adjusted, strict=True):
        one.p_value = p
    for table in tables:
        for size in table.sizes:
            if size.regret is not None:
                _result(size, _right(table, size), len(tested), threshold)
        table.ranges = _ranges(table)
    return Tests(len(tested), left_out, order.known, interleaved)


class _Order:
    """The number of each launch in order of time; launches of one second have one number."""

    def __init__(self, starts: Collection[float | None]) -> None:
        known = sorted(start for start in starts if start is not None)
        self._numbers = {start: float(number) for number, start in enumerate(known)}
        self.known = None not in starts

    def of(self, cell: CellAt) -> tuple[float, ...]:
        return tuple(self._numbers[start] for start in cell.starts if start is not None)


def _pairs(table: Table, order: _Order) -> dict[str, list[tuple[Figures, CellAt]]]:
    """Each cell against AUTO, which is the second side, at every size that both have."""
    found: dict[str, list[tuple[Figures, CellAt]]] = {}
    for size in table.sizes:
        auto = size.auto
        for cell in size.cells:
            if auto and auto.values and cell.values:
                figures = Figures(
                    (*cell.values, *auto.values),
                    (*((0, n) for n in cell.launches), *((1, n) for n in auto.launches)),
                    (*order.of(cell), *order.of(auto)) if order.known else None,
                )
                found.setdefault(cell.cell.name, []).append((figures, cell))
    return found


def _right(table: Table, size: SizeFound) -> list[CellAt]:
    return [one for one in size.cells if one.values and one.cell.name not in table.wrong]


def _winners(size: SizeFound, right: Sequence[CellAt], order: _Order, threshold: float) -> None:
    """The best cell, its ties, and the regret, of figures from which the drift is taken."""
    if not right:
        return
    auto = size.auto if size.auto and size.auto.values else None
    own = {one.cell.name: one for one in (*right, *([auto] if auto else []))}
    values = {name: one.values for name, one in own.items()}
    numbers = {name: order.of(one) for name, one in own.items()} if order.known else None
    drift = drift_of(values, numbers)
    level = drift.levelled(values, numbers or {})
    names = [one.cell.name for one in right]
    size.best = min(right, key=lambda one: geometric(level[one.cell.name]) or math.inf)
    size.tied = may_be_best({name: level[name] for name in names}, threshold, drift)
    if auto is None:
        return
    size.regret = regret(level[auto.cell.name], {name: level[name] for name in names})
    low, high = regret_interval([one.ratio for one in right if one.ratio])
    # Two estimators: one in a hundred times the one lies just outside the other's interval.
    size.low = None if low is None else min(low, size.regret)
    size.high = None if high is None else max(high, size.regret)


def _result(size: SizeFound, cells: Sequence[CellAt], tested: int, threshold: float) -> None:
    limit = 1 + threshold
    beating = [c for c in cells if c.shown and c.ratio and c.ratio.ratio > limit]
    if beating:
        first = min(beating, key=lambda c: c.p_value or 0.0)
        size.result, size.reason = "beaten", f"by {first.cell.name}, {p_text(first.p_value or 0)}"
        return
    if size.high is not None and size.high < limit:
        size.result, size.reason = "near-optimal", f"95 % below {format_percent(threshold)}"
        return
    size.result = "unclear"
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
        size.reason = f"too near {format_percent(threshold)} to settle"
        return
    needed = min(numbers) if faster else max(numbers)
    size.needed = max(needed, launches + 1)
    size.reason = f"needs {size.needed} launches"


def _ranges(table: Table) -> list[WinnerRange]:
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
        sizes = inside[0].size_bytes, inside[-1].size_bytes
        found.append(WinnerRange(*sizes, cells[winner], others))
    return found
