"""How sides on different hardware are shown: each by its own measure, and no ratio."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import IMPLAUSIBLE
from torchcoll.core.units import (
    counted,
    format_bandwidth,
    format_digits,
    format_ns,
    format_share,
    format_size,
)
from torchcoll.questions.comparison.results import BUFFER_REUSE_TEXTS, Compared
from torchcoll.questions.comparison.wording import figure_cell
from torchcoll.report.grid import Grid, Head, grid_of_columns
from torchcoll.stats.across_hardware import Profile
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import NOT_KNOWN, Measured

if TYPE_CHECKING:
    from torchcoll.questions.comparison.compare import Comparison


def across_answer(comparison: Comparison) -> Answer:
    """Describe both sides in one sentence, without a ratio."""
    rows = [row for row in comparison.rows if row.matched]
    different = one_line("; ".join(dict.fromkeys(r.reason for r in rows if r.judged.unlike)))
    faulty = [row for row in rows if row.judged.fault not in ("", IMPLAUSIBLE)]
    others = Counter(row.reason for row in rows if not row.judged.unlike)
    counts = [f"{counted(number, 'case')} {one_line(text)}" for text, number in others.items()]
    texts = [*(counts if faulty else []), *_best_texts(comparison), f"no ratio ({different})"]
    tables = len(comparison.profiles)
    over = f" over {tables} tables" if tables > 1 else ""
    for what, text_of in (
        (f"half-bandwidth size{over}", _halves_text),
        (f"latency floor{over}", _floors_text),
        ("first call", _first_calls_text),
    ):
        sides = [text_of([pair[side] for pair in _profiles(comparison)]) for side in (0, 1)]
        if any(sides):
            texts.append(f"{what}: {_of_sides(comparison, [text or NOT_KNOWN for text in sides])}")
    texts += [] if faulty else counts
    return Answer(texts[0], "bad" if faulty else "doubt", details=tuple(texts[1:]))


def _best_texts(comparison: Comparison) -> list[str]:
    """``nccl reaches 52.4 GB/s busbw on 8 ranks, oneccl 4.19 on 2 ranks``; [] without them."""
    pairs = _profiles(comparison)
    bests = [max((pair[side].best_gbps or 0.0 for pair in pairs), default=0.0) for side in (0, 1)]
    if not all(bests):
        return []
    on_ranks = ["", ""]
    if ranks_texts(comparison):
        numbers = [sorted({n for pair in pairs for n in pair[side].ranks}) for side in (0, 1)]
        on_ranks = [f" on {', '.join(map(str, each))} ranks" for each in numbers]
    base, new = comparison.side_names
    first, second = map(format_digits, bests)
    return [f"{base} reaches {first} GB/s busbw{on_ranks[0]}, {new} {second}{on_ranks[1]}"]


def ranks_texts(comparison: Comparison) -> list[str]:
    """``ranks: nccl 8, oneccl 2``, where the sides have different numbers of ranks."""
    pairs = _profiles(comparison)
    ranks = [sorted({number for pair in pairs for number in pair[side].ranks}) for side in (0, 1)]
    if not all(ranks) or ranks[0] == ranks[1]:
        return []
    return [f"ranks: {_of_sides(comparison, [', '.join(map(str, each)) for each in ranks])}"]


def _profiles(comparison: Comparison) -> list[tuple[Profile, Profile]]:
    return [(base, new) for _, base, new in comparison.profiles]


def _of_sides(comparison: Comparison, texts: Sequence[str]) -> str:
    """``nccl 8, oneccl 2``"""
    pairs = zip(comparison.side_names, texts, strict=True)
    return ", ".join(f"{name} {text}" for name, text in pairs)


def _range_text(texts: Iterable[str]) -> str:
    """``8M to 16M`` of ascending texts, ``8M`` of equal ones, '' of none."""
    several = list(texts)
    return " to ".join(dict.fromkeys([*several[:1], *several[-1:]]))


def _halves_text(profiles: Sequence[Profile]) -> str:
    halves = [profile for profile in profiles if profile.half_bytes]
    if len(halves) == 1:
        return half_text(halves[0])
    sizes = [size for p in halves for size in (p.below_bytes or p.half_bytes, p.half_bytes) if size]
    return _range_text(map(format_size, sorted(sizes)))


def half_text(profile: Profile) -> str:
    """Between which two sizes busbw passes half of the best."""
    if not profile.half_bytes:
        return NOT_KNOWN
    if not profile.below_bytes:
        return f"{format_size(profile.half_bytes)} or less"
    return f"{format_size(profile.below_bytes)} to {format_size(profile.half_bytes)}"


def _floors_text(profiles: Sequence[Profile]) -> str:
    """The times and the sizes that they are of."""
    floors = [(p.floor_ns, p.floor_bytes) for p in profiles if p.floor_ns and p.floor_bytes]
    if not floors:
        return ""
    times = _range_text(format_ns(ns) for ns, _ in sorted(floors))
    return f"{times} at {_range_text(bytes_text(size) for size in sorted(s for _, s in floors))}"


def bytes_text(size_bytes: int) -> str:
    return format_size(size_bytes) if size_bytes >= 1024 else counted(size_bytes, "byte")


def _first_calls_text(profiles: Sequence[Profile]) -> str:
    times = {profile.first_call_ns for profile in profiles if profile.first_call_ns}
    return _range_text(format_ns(ns, 3) for ns in sorted(times))


def share_of(items: Sequence[Measured], best_gbps: float | None) -> float | None:
    """Geometric as the best is: an arithmetic mean would exceed 100 %."""
    mean = geometric(m.row.busbw_gbps for m in items)
    return mean / best_gbps if mean and best_gbps else None


def settings_grid(comparison: Comparison) -> Grid:
    """What both sides record where it is not the same; below it what only one of them records."""
    names = [one_line(side.name) for side in (comparison.base, comparison.new)]
    heads = [Head("settings that differ", left=True, repeat=True)]
    heads += [Head(name, left=True) for name in names]
    rows: list[list[str]] = []
    alone: tuple[list[str], list[str]] = ([], [])
    for setting in comparison.settings:
        name = one_line(setting.name) + (f" ({setting.where})" if setting.where else "")
        texts = [_values_text(setting.name, values) for values in (setting.base, setting.new)]
        if setting.base and setting.new:
            short = (textwrap.shorten(text, _WIDEST, placeholder=" ...") for text in texts)
            rows.append([name, *short])
        else:
            side = 0 if setting.base else 1
            alone[side].append(f"{name} {texts[side]}")
    recorded = [each for each in zip(names, alone, strict=True) if each[1]]
    below = [f"recorded for {name} only: {', '.join(texts)}" for name, texts in recorded]
    return Grid(heads if rows else [], rows, below=below)


_WIDEST = 28  # characters of a value, so that both sides fit into 80 columns
_MOST_VALUES = 4


def _values_text(name: str, values: Sequence[str]) -> str:
    if not values:
        return NOT_KNOWN
    if name == "buffer_reuse":
        values = [BUFFER_REUSE_TEXTS.get(value, value) for value in values]
    if len(values) > _MOST_VALUES:
        return f"{one_line(', '.join(values[:2]))}, ... ({len(values)} values)"
    return one_line(", ".join(values))


def profile_grid(comparison: Comparison, base: Profile, new: Profile, title: str) -> Grid:
    """The figures that are each side's own; a figure that neither side has is left out."""
    names = [one_line(side.name) for side in (comparison.base, comparison.new)]
    heads = [Head("each by its own measure", left=True), Head(names[0]), Head(names[1])]
    figures: list[tuple[str, Callable[[Profile], str]]] = [
        ("ranks", lambda p: ", ".join(map(str, p.ranks)) or NOT_KNOWN),
        ("best busbw (GB/s)", lambda p: format_bandwidth(p.best_gbps)),
        ("best busbw at", lambda p: format_size(p.best_bytes) if p.best_bytes else NOT_KNOWN),
        ("half-bandwidth size", half_text),
        ("latency floor", _floor_text),
        ("first call", lambda p: _time_text(p.first_call_ns)),
        ("time to first result", lambda p: _time_text(p.first_result_ns)),
    ]
    rows = [[name, text_of(base), text_of(new)] for name, text_of in figures]
    rows = [row for row in rows if set(row[1:]) - {NOT_KNOWN, "-"}]
    below = [
        f"{name}: the best is that of its largest size, {format_size(profile.best_bytes)}; larger "
        "sizes may reach more"
        for name, profile in zip(names, (base, new), strict=True)
        if profile.best_bytes and profile.best_bytes == profile.largest_bytes
    ]
    return Grid(heads, rows, above=[title] if title else [], below=below)


def _time_text(ns: float | None) -> str:
    return NOT_KNOWN if ns is None else format_ns(ns)


def _floor_text(profile: Profile) -> str:
    if not profile.floor_bytes:
        return _time_text(profile.floor_ns)
    if profile.floor_ns is None:
        return f"not seen, from {format_size(profile.floor_bytes)} on"
    return f"{format_ns(profile.floor_ns)} at {bytes_text(profile.floor_bytes)}"


def shares_grid(
    comparison: Comparison, table: Sequence[Compared], base: Profile, new: Profile
) -> Grid:
    """The figures of each side, and their share of its own best."""
    sides = (
        (comparison.base, [(row.base, row.pair.base) for row in table], base.best_gbps),
        (comparison.new, [(row.new, row.pair.new) for row in table], new.best_gbps),
    )
    columns: list[tuple[Head, Sequence[str]]] = [
        (Head("size", repeat=True), [row.size_cell for row in table])
    ]
    for side, figures, best_gbps in sides:
        columns += [
            (
                Head(one_line(side.name)),
                [figure_cell(value, comparison.metric) for value, _ in figures],
            ),
            (
                Head("of its", "best"),
                [format_share(share_of(items, best_gbps)) for _, items in figures],
            ),
        ]
    results = [f"{row.result} ({one_line(row.reason)})" for row in table]
    above = []
    if len(set(results)) > 1:  # what is the same for all sizes is said once
        columns.append((Head("result", left=True), results))
    else:
        above.append(f"all sizes: {results[0]}")
    return grid_of_columns(columns, above)
