"""Which cases of a comparison a sentence is about, in words: ``at 8M in and out of place``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchcoll.core.units import counted, format_size
from torchcoll.questions.comparison.results import Compared, tables_of, titles_of

_MOST_SIZES = 3  # that are named one by one
_MOST_TABLES = 2
_PLACEMENTS = ["in place", "out of place"]


def scope_text(items: Sequence[Compared], of: Sequence[Compared]) -> str:
    """Words that are true of ``items`` and of no other case in ``of``; '' if no short ones are."""
    if len(items) == len(of):
        return _every(of)
    tables = {item.pair.table for item in items}
    sizes = {item.pair.size_bytes for item in items}
    among = [item for item in of if item.pair.table in tables]
    if sum(item.pair.size_bytes in sizes for item in among) != len(items):
        return ""
    at_sizes = sizes_text(sizes, {item.pair.size_bytes for item in among})
    in_tables = _tables_text(tables, of)
    if at_sizes is None or in_tables is None:
        return ""
    return f"{at_sizes} {in_tables}".strip()


def sizes_text(sizes: Collection[int], available: Collection[int]) -> str | None:
    """``at 1M and 4M``, ``from 1M on``; '' of all ``available``, None if it would be long."""
    every, named = sorted(available), sorted(sizes)
    texts = [f"{format_size(size)}{' B' if size < 1024 else ''}" for size in named]
    start = every.index(named[0])
    if named == every:
        return ""
    if len(named) == 1:
        return f"at {texts[0]}"
    if named == every[start:]:
        return f"from {texts[0]} on"
    if named == every[: len(named)] and len(named) > _MOST_SIZES:
        return f"up to {texts[-1]}"
    if len(named) <= _MOST_SIZES:
        return f"at {', '.join(texts[:-1])} and {texts[-1]}"
    if named == every[start : start + len(named)]:
        return f"from {texts[0]} to {texts[-1]}"
    return None


def _every(of: Sequence[Compared]) -> str:
    if len(of) == 1:
        sizes = {of[0].pair.size_bytes}
        return sizes_text(sizes, {*sizes, 0}) or "" if of[0].pair.size_text else ""
    one_each = len({item.pair.size_bytes for item in of}) * len(_titles(of)) == len(of)
    if one_each and len(of) > 2 and set(_titles(of).values()) <= {"", *_PLACEMENTS}:
        return "at all sizes"
    return "in both cases" if len(of) == 2 else f"in all {counted(len(of), 'case')}"


def _tables_text(tables: Collection[object], of: Sequence[Compared]) -> str | None:
    """``in broadcast``; '' of all tables, None if it would be long."""
    titles = _titles(of)
    if len(tables) == len(titles):
        return "in and out of place" if sorted(titles.values()) == _PLACEMENTS else ""
    if len(tables) > _MOST_TABLES:
        return None
    names = [title for table, title in titles.items() if table in tables]
    text = " and ".join(names)
    if text in _PLACEMENTS:
        return text
    return f"{'in' if len({item.pair.collective for item in of}) > 1 else 'with'} {text}"


def _titles(of: Sequence[Compared]) -> dict[object, str]:
    """The name of each table of cases that differ only in size."""
    pairs = [table[0].pair for table in tables_of(of)]
    return dict(zip([pair.table for pair in pairs], titles_of(pairs), strict=True))
