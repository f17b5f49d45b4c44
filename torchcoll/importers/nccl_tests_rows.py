"""One row of nccl-tests' text: fields to figures.

The columns come from the heading and are counted from the right (superbenchmark's way), because
the left ones have come and gone: root, redop (blank for hypercube), Group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import repeat
from typing import NamedTuple

from torchcoll.importers.base import HALVES, dtype_named, ns_of_us, number, numbers, rounding, whole
from torchcoll.importers.nccl_tests import Block, NcclTestsRow

_CHOICE = re.compile(r"(?!inf|nan)[A-Za-z][\w*/]*\s+(?!inf|nan)[A-Za-z][\w*/]*\s+(?:\d+|N/A)\s*$")
_IN_PLACE_ONLY = " " * 24  # the out-of-place block is 32 blanks; columns are 2 to 11 apart
_NO_NUMBER = ("inf", "nan", "-nan", "-inf")  # bandwidths of a time of 0


class RowParser:
    """Reads the rows below one heading."""

    def __init__(self, names: Sequence[str], placed: Sequence[str]) -> None:
        """``names``: of the heading, [] without one. ``placed``: the placements named above it."""
        first = next((i for i, n in enumerate(names) if n in ("time", "cputime")), 0)
        body = list(names[first:]) if first else ["time", "algbw", "busbw", "#wrong"] * 2
        starts = [i for i, n in enumerate(body) if n in ("time", "cputime")]
        self._width = width = starts[1] - starts[0] if len(starts) > 1 else 4
        tail = body[2 * width :] if len(starts) > 1 else []
        self._trailing = len(tail) + ("timestamp" in tail)
        self._choices = not tail  # rccl-tests -A adds three columns without names of their own
        self._two = len(starts) > 1 or not first
        self._heads = first  # columns before the time; 0 where no heading tells
        self._seen = 0  # the most of the rows before, without a heading
        self._blank_op = {"redop", "op"} & set(names)
        self._one = len(starts) == 1
        self._only_out = tuple(placed) == ("out-of-place",)  # rccl-tests can leave one out
        self._scale = 1e6 if "res" in names else 1e3  # the oldest wrote ms
        self._body = body[:width]
        places = {name: place for place, name in enumerate(self._body)}
        self._time = places.get("time", places.get("cputime", 0))
        self._algbw, self._busbw = places.get("algbw", 0), places.get("busbw", 0)
        self._wrong = places.get("#wrong", places.get("wrong", 0))
        self._error = places.get("error", places.get("res", 0))
        self._more = [
            (place, _PER_ITERATION[n]) for n, place in places.items() if n in _PER_ITERATION
        ]
        self._steps = [half * self._scale for half in HALVES]
        self._before: _Look | None = None  # of the row before
        self._kept: list[tuple[int, re.Match[str]]] = []

    def row(self, line: int, text: str) -> NcclTestsRow | str:
        """The row; else why it is none."""
        self._before = None
        tokens = text.split()
        width = self._width
        found = len(tokens)
        if self._choices and found > 2 and tokens[-3][0].isalpha() and _CHOICE.search(text):
            del tokens[-3:]
            found -= 3
        heads = found - self._trailing - 2 * width
        if self._two and self._possible(heads, tokens):
            places = [(False, heads), (True, heads + width)]
        else:
            heads = found - self._trailing - width
            one = self._one or _IN_PLACE_ONLY in text.strip()
            if not (one and self._possible(heads, tokens)):
                figures = self._trailing + (width if self._one else 2 * width)
                expected = f"{(self._heads or self._seen or 3) + figures}"
                more = "" if self._heads or self._seen else " or more"
                return f"half a row: {found} fields of {expected}{more}"
            places = [(not self._only_out, heads)]
        size, count = whole(tokens[0]), whole(tokens[1])
        if size is None or count is None:
            return f"half a row: size and count are {tokens[0]} and {tokens[1]}"
        op, root = _op_and_root(*tokens[3:heads])
        blocks = []
        for in_place, first in places:
            block = self._block(tokens[first : first + width], in_place)
            if isinstance(block, str):
                return f"half a row: {block}"
            blocks.append(block)
        row = NcclTestsRow(line, size, count, dtype_named(tokens[2]) or "", op, root, blocks)
        if len(blocks) == 2 and self._plain:
            self._before = _look(row, text, _plain_row(heads, width, self._wrong))
        return row

    # -- rows that look like the one before, which most do: their columns are converted at once, in
    # a third of the time of ``row``

    @property
    def _plain(self) -> bool:
        """Whether a table has no columns but those of most."""
        return not (self._trailing or self._error or self._more) and self._width <= _WIDEST

    def keep(self, line: int, text: str) -> bool:
        """Whether it is a row like the one before, of plain numbers: it is among ``kept`` then."""
        if (look := self._before) is None or len(self._kept) == _AT_ONCE:
            return False
        found = look.pattern.fullmatch(text)
        if found is None or found[_WORDS] != look.words:
            return False
        self._kept.append((line, found))
        return True

    def kept(self) -> list[tuple[int, NcclTestsRow | str]]:
        """(line, what ``row`` returns of it) of those that were kept since the last time."""
        kept, self._kept = self._kept, []
        if not kept:
            return []
        return self._at_once(kept) or [(line, self.row(line, found.string)) for line, found in kept]

    def _at_once(
        self, kept: Sequence[tuple[int, re.Match[str]]]
    ) -> list[tuple[int, NcclTestsRow | str]]:
        """[] where a figure is none, which ``row`` is to say."""
        lines = [line for line, _ in kept]
        sizes, counts, _, *figures = zip(*(found.groups() for _, found in kept), strict=True)
        try:
            blocks = zip(
                self._blocks(figures[: self._width], False),
                self._blocks(figures[self._width :], True),
                strict=True,
            )
        except ValueError:
            return []
        assert self._before
        dtype, op, root = self._before.row.dtype, self._before.row.op, self._before.row.root
        return [
            (line, NcclTestsRow(line, int(size), int(count), dtype, op, root, list(both)))
            for line, size, count, both in zip(lines, sizes, counts, blocks, strict=True)
        ]

    def _blocks(self, columns: Sequence[Sequence[str]], in_place: bool) -> list[Block]:
        """``_block`` of all rows at once, figure by figure. Raises ValueError for what is none."""
        times, algbw, busbw = (columns[at] for at in (self._time, self._algbw, self._busbw))
        steps, scale = self._steps, self._scale
        durations = [float(text) * scale for text in times]
        if not all(durations):
            raise ValueError("a time of 0")
        wrong = columns[self._wrong] if self._wrong else ()
        elements = {text: None if text == "N/A" else int(text) for text in set(wrong)}
        return [
            *map(
                Block,
                repeat(in_place),
                durations,
                map(float, algbw),
                map(float, busbw),
                [steps[len(text.partition(".")[2])] for text in times],
                [HALVES[len(text.partition(".")[2])] for text in busbw],
                map(elements.get, wrong) if wrong else repeat(None),
            )
        ]

    def _possible(self, heads: int, tokens: Sequence[str]) -> bool:
        """Whether so many fields can stand before the time: a row that lacks its last one would
        have another number there.
        """
        if not 3 <= heads <= 5:
            return False
        if self._heads:
            # hypercube prints a blank in place of the operation.
            blank = heads == self._heads - 1 and self._blank_op and tokens[3][-1].isdecimal()
            return heads == self._heads or bool(blank)
        self._seen = max(self._seen, heads)
        return heads == self._seen

    def _block(self, figures: Sequence[str], in_place: bool) -> Block | str:
        raw, alg, bus = figures[self._time], figures[self._algbw], figures[self._busbw]
        time, algbw, busbw = numbers(raw, alg, bus)
        if not time:
            return f"{self._body[self._time]} is {raw}"
        if algbw is None and alg not in _NO_NUMBER:
            return f"algbw is {alg}"
        if busbw is None and bus not in _NO_NUMBER:
            return f"busbw is {bus}"
        wrong: int | None = None
        if self._wrong and (text := figures[self._wrong]) != "N/A":
            count = _elements(text)
            if count is None:
                return f"{self._body[self._wrong]} is {text}"
            wrong = count
        scale = self._scale
        error = number(figures[self._error]) if self._error else None
        steps = rounding(raw) * scale, rounding(bus)
        block = Block(in_place, time * scale, algbw, busbw, *steps, wrong, error)
        for place, name in self._more:
            setattr(block, name, ns_of_us(figures[place]))
        return block


# Bounds that keep the numbers of a plain row from being out of range, and hostile tables from
# having patterns without number: three by eight by eight are possible.
_WIDEST = 8  # columns of a placement
_AT_ONCE = 1000
_WORDS = 3  # the group of type, operation and root
_WHOLE, _FIGURE, _ELEMENTS = "([0-9]{1,18})", "([0-9.]{1,15})", "([0-9]{1,15}|N/A)"


@cache
def _plain_row(heads: int, width: int, wrong: int) -> re.Pattern[str]:
    """A row with so many fields before the time, and two placements of so many columns."""
    words = "([a-z][a-z0-9_]*" + " +[a-z0-9-]+" * (heads - 3) + ")"
    figures = [_ELEMENTS if wrong and place == wrong else _FIGURE for place in range(width)]
    return re.compile(" *" + " +".join([_WHOLE, _WHOLE, words, *figures, *figures]) + " *")


class _Look(NamedTuple):
    """What tells the rows that are like this one: pattern, and the words in it as they stand."""

    row: NcclTestsRow
    pattern: re.Pattern[str]
    words: str


def _look(row: NcclTestsRow, text: str, pattern: re.Pattern[str]) -> _Look | None:
    found = pattern.fullmatch(text)
    return _Look(row, pattern, found[_WORDS]) if found else None


_PER_ITERATION = {"i_min": "min_ns", "i_max": "max_ns", "i_p99": "p99_ns"}


@lru_cache(maxsize=64)  # mostly 0, as the next one's are mostly sum and -1
def _elements(text: str) -> int | None:
    """Of #wrong; None where it is no whole number. rccl-tests puts a star behind it."""
    count = number(text.rstrip("*"))
    return None if count is None or count % 1 else int(count)


@lru_cache(maxsize=64)
def _op_and_root(*rest: str) -> tuple[str | None, int | None]:
    op, root = None, None
    for token in rest:
        if token.removeprefix("-").isdecimal():
            root = whole(token)  # -1 is none
        elif token != "none":
            op = token
    return op, root
