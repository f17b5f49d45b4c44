"""The pairs of a run as a matrix: figures where units are few, else shades of how fast each is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchcoll.core.pair_times import EXCHANGE, LATENCY, Pairs, Timing
from torchcoll.core.summary import median
from torchcoll.core.tournament import Pair
from torchcoll.core.units import format_bandwidth, format_size
from torchcoll.report.grid import Grid, Head
from torchcoll.report.output import Output

_NUMBERS = 12  # units up to which the cells are figures; beyond, shades
_WORST = 16  # rows of a table that would be longer than
MOST_ROWS = 64
# A shade for each tenth of the median that is missing: fast is blank.
_SHADES, _ASCII = " ░▒▓█", " .:x#"
_LIMITS = (0.9, 0.8, 0.6, 0.4)  # below: the next shade
_NONE, _SELF = "?", "\\"


def matrix_grid(pairs: Pairs, key: tuple[str, int], out: Output) -> Grid:
    """A row and a column a unit; cells are GB/s (latency: us), or shades of the kind's median."""
    kind, nbytes = key
    if kind == EXCHANGE:
        per = "node" if pairs.by == "node" else "rank"
        above = f"{format_size(nbytes)} both ways at once, GB/s sent by each {per}"
    else:
        above = "latency in us"
    times, count = pairs.times[key], len(pairs.units)
    if count <= _NUMBERS:
        heads = [Head(pairs.by, repeat=True), *(Head(str(unit)) for unit in range(count))]
        rows = [
            [str(a), *(_figure(pairs, key, _at(times, a, b), (a, b)) for b in range(count))]
            for a in range(count)
        ]
        return Grid(heads, rows, [above])
    relative = _relative(pairs, key)
    label = max(len(str(count - 1)), len(pairs.by))
    width = (out.width or 200) - label - 2
    each = 2 if 2 * count <= width else 1
    merged = -(-count * each // width)
    shades = _SHADES if _unicode(out) else _ASCII
    rows = []
    for unit in slowest_units(pairs, key):
        cells = [_shade(relative, unit, other, shades) for other in range(count)]
        if merged > 1:
            order = [_SELF, *shades, _NONE]
            cells = [
                max(cells[first : first + merged], key=order.index)
                for first in range(0, count, merged)
            ]
        rows.append([str(unit), "|" + "".join(cell * each for cell in cells) + "|"])
    steps = ", ".join(f"{s} below {100 * x:g} %" for s, x in zip(shades[1:], _LIMITS, strict=True))
    lines = [above, f"of the median (within a node, between nodes): {steps}; {_SELF} itself"]
    if merged > 1:
        lines.append(f"each character: the slowest of {merged} {pairs.by}s")
    if len(rows) < count:
        lines.append(f"the slowest {len(rows)} of {count} {pairs.by}s; --format csv has all")
    return Grid([Head(pairs.by), Head("", left=True)], rows, lines)


def _unicode(out: Output) -> bool:
    encoding = getattr(out.file, "encoding", None) or "utf-8"
    return out.terminal and encoding.lower().startswith("utf")


def _at(times: Mapping[Pair, Any], a: int, b: int) -> Any:
    return times.get((a, b)) or times.get((b, a))


def _figure(pairs: Pairs, key: tuple[str, int], timing: Timing | None, pair: Pair) -> str:
    if timing is None:
        return "" if pair[0] == pair[1] else _NONE
    ns = timing.median_ns
    return f"{ns / 1e3:.1f}" if key[0] == LATENCY else format_bandwidth(pairs.gbps(key, pair, ns))


def _relative(pairs: Pairs, key: tuple[str, int]) -> dict[Pair, float]:
    """Each pair's speed over the median of its kind: within a node, between nodes."""
    kinds: dict[bool, list[float]] = {True: [], False: []}
    within = {pair: pairs.hosts[pair[0]] == pairs.hosts[pair[1]] for pair in pairs.times[key]}
    for pair, timing in pairs.times[key].items():
        kinds[within[pair]].append(1 / timing.median_ns)
    middles = {kind: median(speeds) for kind, speeds in kinds.items() if speeds}
    return {
        pair: 1 / timing.median_ns / middles[within[pair]]
        for pair, timing in pairs.times[key].items()
    }


def _shade(relative: dict[Pair, float], a: int, b: int, shades: str) -> str:
    if a == b:
        return _SELF
    value = _at(relative, a, b)
    if value is None:
        return _NONE
    return shades[sum(value < limit for limit in _LIMITS)]


def slowest_units(pairs: Pairs, key: tuple[str, int]) -> list[int]:
    """All units, or the slowest where they are many."""
    count = len(pairs.units)
    if count <= MOST_ROWS:
        return list(range(count))
    relative = _relative(pairs, key)
    own: dict[int, list[float]] = {unit: [] for unit in range(count)}
    for pair, value in relative.items():
        for unit in pair:
            own[unit].append(value)
    order = sorted(own, key=lambda unit: (median(own[unit]) if own[unit] else 0.0, unit))
    return sorted(order[:_WORST])
