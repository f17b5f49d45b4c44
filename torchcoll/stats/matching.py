"""Which cases of two sides are the same: matched on what they have in common.

A dimension of which the sides share no value is what is compared (a backend), or it keeps them
apart (a dtype). One that a source does not tell matches everything: if only some runs do not tell
and the rest have one value, they are taken for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.case import DIMENSIONS, SETTINGS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.result import EXPECTED_STATUSES
from torchcoll.core.summary import Row
from torchcoll.core.units import format_size, shorten_middle
from torchcoll.stats.sides import Measured, value_of_fact

# Other values here are another question: 2 GB of bfloat16 do not answer for 2 GB of float32.
_SAME = (
    "collective",
    "dtype",
    "op",
    "root",
    "group",
    *(setting.name for setting in SETTINGS if not setting.compared),
    "splits",
)
# These may be what is compared; a footnote says so.
_COMPARED = tuple(name for name in DIMENSIONS if name not in (*_SAME, "rehearsal"))
# A case that did not run has none of these: it is taken for one like the others.
_OF_SAMPLES = ("communicator", "clock")
NAMES = (*_SAME, *_COMPARED)
_KNOWN_ONCE = 2  # not known, and the one value of all that tell: the others are taken for it

Key = tuple[tuple[str, Any], ...]


@dataclass
class Pair:
    """One case on both sides; a side without it is empty.

    common: the dimensions that both share, without the size. side_values: each side's dimensions
    that they do not share. taken: (name, value) of what some runs do not record and was assumed.
    """

    common: dict[str, Any]
    size_bytes: int
    base: list[Measured] = field(default_factory=list)
    new: list[Measured] = field(default_factory=list)
    side_values: tuple[dict[str, Any], dict[str, Any]] = field(default_factory=lambda: ({}, {}))
    taken: Key = ()

    @property
    def table(self) -> object:
        """A key that the pairs share that differ only in size."""
        return (*self.common.items(), *self.side_values[0].items(), *self.side_values[1].items())

    @property
    def matched(self) -> bool:
        """False where only one side has the case."""
        return bool(self.base and self.new)

    @property
    def collective(self) -> str:
        return (self.new or self.base)[0].row.collective

    @property
    def size_text(self) -> str:
        """``4M``; '' for a barrier."""
        return format_size(self.size_bytes) if COLLECTIVES[self.collective].has_data else ""

    @property
    def is_faulty(self) -> bool:
        """Whether a run of a side has a wrong or a failed result."""
        return any(item.row.outcome not in EXPECTED_STATUSES for item in (*self.base, *self.new))


def value_of(item: Measured, name: str) -> Any:
    """A dimension or a fact of a measured case; None is 'has no such thing' or 'unknown'."""
    if name not in NAMES:
        return item.facts.get(name)
    value = getattr(item.row, name)
    return None if value == "unknown" or (name == "ranks" and not value) else value


def kind_of(item: Measured, separate: Sequence[str] = ()) -> dict[str, Any]:
    """A case's dimensions except size, ranks and clock, and the facts in ``separate``."""
    kind = {name: value_of(item, name) for name in NAMES if name not in ("ranks", "clock")}
    return kind | {name: value_of_fact(item.facts, name) for name in separate}


def pairs_of(
    base: Sequence[Measured],
    new: Sequence[Measured],
    by: Sequence[str] = (),
    asked: Sequence[str] = (),
) -> list[Pair]:
    """Every case of either side, in the order of the base, sizes ascending.

    by: further names that both sides must agree in. asked: what is compared, whatever its values
    are. Raises UsageError if the sides share no case, naming what keeps them apart.
    """
    names = [*NAMES, *(name for name in by if name not in NAMES)]
    pairs = []
    for collective in dict.fromkeys(m.row.collective for m in [*base, *new]):
        ours = [m for m in base if m.row.collective == collective]
        theirs = [m for m in new if m.row.collective == collective]
        free = [n for n in names if n not in by and (n in asked or _is_free(n, ours, theirs))]
        constants = {n: _only_known(n, [*ours, *theirs]) for n in _COMPARED if n not in free}
        alone = {name: value for name, value in constants.items() if value is not None}
        pairs += _pairs(ours, theirs, names, free, alone)
    if not any(pair.matched for pair in pairs):
        error = UsageError if base and new else UnusableError
        raise error("cases", _separate(base, new, names), "cases that both sides have")
    order = {table: place for place, table in enumerate(dict.fromkeys(p.table for p in pairs))}
    return sorted(pairs, key=lambda pair: (order[pair.table], pair.size_bytes))


def sizes_of_sides(
    pair: Pair, pairs: Iterable[Pair]
) -> tuple[list[list[Measured]], list[list[Measured]]]:
    """The runs of every size that each side has in the table of ``pair``, sizes ascending."""
    alike = [other for other in pairs if other.common == pair.common]
    ours, theirs = pair.side_values
    base = {p.size_bytes: p.base for p in alike if p.base and p.side_values[0] == ours}
    new = {p.size_bytes: p.new for p in alike if p.new and p.side_values[1] == theirs}
    return [base[size] for size in sorted(base)], [new[size] for size in sorted(new)]


def _pairs(
    base: list[Measured],
    new: list[Measured],
    names: Sequence[str],
    free: Sequence[str],
    alone: Mapping[str, Any],
) -> list[Pair]:
    """alone: the values that are assumed if a case does not record them."""
    shared = [n for n in names if n not in free]
    size = _size_of([*base, *new])
    groups_by_case: dict[tuple[Key, int], list[dict[Key, list[Measured]]]] = {}
    for number, items in enumerate((base, new)):
        own_usual = {name: _usual(name, items) for name in _OF_SAMPLES}
        any_usual = {n: v or _usual(n, [*base, *new]) for n, v in own_usual.items()}
        for item in items:
            values = {name: value_of(item, name) for name in names}
            # What ran and does not tell stays unknown: the other side cannot know it.
            usual = own_usual if _ran(item) else any_usual
            values |= {name: values[name] or value for name, value in usual.items()}
            values |= {name: value for name, value in alone.items() if _unstated(item, name)}
            common = tuple((name, values[name]) for name in shared)
            free_values = tuple((name, values[name]) for name in free)
            groups = groups_by_case.setdefault((common, size(item.row)), [{}, {}])
            groups[number].setdefault(free_values, []).append(item)
    pairs = []
    for (common, size_bytes), (ours, theirs) in groups_by_case.items():
        # What one side has in several kinds is compared in each of them, never pooled.
        for own_b, b in (ours or {(): []}).items():
            for own_n, n in (theirs or {(): []}).items():
                taken = [it for it in alone.items() if any(_unstated(m, it[0]) for m in b + n)]
                remaining = (dict(own_b), dict(own_n))
                pairs.append(Pair(dict(common), size_bytes, b, n, remaining, tuple(taken)))
    return pairs


def _ran(item: Measured) -> bool:
    return bool(item.result.reported or item.result.time_ns)


def _usual(name: str, items: Iterable[Measured]) -> Any:
    return next((v for item in items if (v := value_of(item, name)) is not None), None)


def _unstated(item: Measured, name: str) -> bool:
    return bool(getattr(item.row, name) == "unknown")


def _only_known(name: str, items: Sequence[Measured]) -> Any:
    """The one value that some items record and others do not; otherwise None."""
    values = {value_of(m, name) for m in items if not _unstated(m, name)}
    some = any(_unstated(m, name) for m in items)
    return values.pop() if some and len(values) == 1 and name not in _OF_SAMPLES else None


def _is_free(name: str, base: Sequence[Measured], new: Sequence[Measured]) -> bool:
    ours, theirs = ({value_of(m, name) for m in side} for side in (base, new))
    if name in _OF_SAMPLES:
        value_sets = ({value_of(m, name) for m in side if _ran(m)} for side in (base, new))
        ours, theirs = (values - {None} or values for values in value_sets)
    if not ours or not theirs:
        return False
    if ours & theirs:  # perhaps that both do not tell
        alone = [all(_unstated(m, name) for m in side) for side in (base, new)]
        several = len(ours | theirs) > _KNOWN_ONCE
        return name in _COMPARED and name not in _OF_SAMPLES and any(alone) and several
    return name in _COMPARED or ours == {None} or theirs == {None}


def _size_of(items: Iterable[Measured]) -> Callable[[Row], int]:
    """Requested bytes if both sides know them, otherwise the actual ones."""
    if all(item.knows_requested for item in items):
        return lambda row: row.size_bytes_requested
    return lambda row: row.size_bytes or row.size_bytes_requested


def _separate(base: Sequence[Measured], new: Sequence[Measured], names: Sequence[str]) -> str:
    """``nothing in common in dtype (float32, bfloat16)``: the differences of the nearest cases."""
    if not base or not new:
        return f"none in {'base' if not base else 'new'}"
    names = [n for n in names if n not in _COMPARED or n == "ranks"]
    size = _size_of([*base, *new])
    ours, theirs = (
        [{n: value_of(m, n) for n in names} | {"size": size(m.row)} for m in side]
        for side in (base, new)
    )
    # Two lists of a hundred thousand sizes each need no exact answer.
    combined = itertools.product(ours[:300], theirs[:300])
    differing = (([name for name in a if a[name] != b[name]], a) for a, b in combined)
    nearest, alike = min(differing, key=lambda pair: ("collective" in pair[0], len(pair[0])))
    # What further cases of a side have may be on both sides: 8 of another collective.
    ours, theirs = (
        [case for case in side if all(case[n] == alike[n] for n in case if n not in nearest)]
        for side in (ours, theirs)
    )
    reasons = []
    for name in nearest:
        values = (list(dict.fromkeys(case[name] for case in side)) for side in (ours, theirs))
        reasons.append(f"{name} ({'; '.join(_several(name, of_side) for of_side in values)})")
    several = len({m.row.collective for m in [*base, *new]}) > 1 and "collective" not in nearest
    of = f" of {alike['collective']}" if several else ""
    return f"nothing in common in {' and '.join(reasons) or 'any dimension'}{of}"


def _several(name: str, values: Sequence[Any]) -> str:
    none = "unset" if name.isupper() else "none"
    texts = [format_size(v) if name == "size" else none if v is None else str(v) for v in values]
    return ", ".join(shorten_middle(texts, 4))
