"""Parses rows of nccl-tests' text.

The columns are those of the heading, counted from the right (as in superbenchmark), because the
columns on the left differ between versions: root, redop (blank for hypercube), Group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat

from torchcoll.reading import base
from torchcoll.reading.nccl_tests import Block, NcclTestsRow

_CHOICE = re.compile(r"(?!inf|nan)[A-Za-z][\w*/]*\s+(?!inf|nan)[A-Za-z][\w*/]*\s+(?:\d+|N/A)\s*$")
# An empty out-of-place block has 32 blanks; columns are separated by 2 to 11.
_IN_PLACE_ONLY = " " * 24
_NO_NUMBER = ("inf", "nan", "-nan", "-inf")  # bandwidths if the time is 0


class RowParser:
    """Parses the rows below one heading."""

    def __init__(self, names: Sequence[str], placed: Sequence[str]) -> None:
        """names: columns of the heading; [] without one. placed: placements in the line above
        it.
        """
        first = next((i for i, n in enumerate(names) if n in ("time", "cputime")), 0)
        body = list(names[first:]) if first else ["time", "algbw", "busbw", "#wrong"] * 2
        starts = [i for i, n in enumerate(body) if n in ("time", "cputime")]
        self._width = width = starts[1] - starts[0] if len(starts) > 1 else 4
        tail = body[2 * width :] if len(starts) > 1 else []
        self._trailing = len(tail) + ("timestamp" in tail)
        self._choices = not tail  # rccl-tests -A adds three columns without names
        self._two_placements = len(starts) > 1 or not first
        self._heads = first  # columns before the time; 0 without a heading
        self._seen = 0  # without a heading: the most such columns of the rows before
        self._blank_op = {"redop", "op"} & set(names)
        self._one_placement = len(starts) == 1
        self._only_out = tuple(placed) == ("out-of-place",)  # rccl-tests can omit a placement
        self._scale = 1e6 if "res" in names else 1e3  # the oldest versions print ms
        self._body = body[:width]
        indices = {name: index for index, name in enumerate(self._body)}
        self._time = indices.get("time", indices.get("cputime", 0))
        self._algbw, self._busbw = indices.get("algbw", 0), indices.get("busbw", 0)
        self._wrong = indices.get("#wrong", indices.get("wrong", 0))
        self._error = indices.get("error", indices.get("res", 0))
        self._more = [
            (index, _PER_ITERATION[n]) for n, index in indices.items() if n in _PER_ITERATION
        ]
        self._steps = [half * self._scale for half in base.HALVES]
        self._before: NcclTestsRow | None = None  # the last row with two placements
        self._labels: list[str] = []  # its type, operation and root
        self._fields = 0  # how many fields it has
        self._kept: list[tuple[int, str]] = []
        self._tokens: list[str] = []  # all fields of the kept rows

    def row(self, line: int, text: str) -> NcclTestsRow | str:
        """Parse a row; returns why it is not one if that fails."""
        self._before = None
        tokens = text.split()
        width = self._width
        field_count = len(tokens)
        if self._choices and field_count > 2 and tokens[-3][0].isalpha() and _CHOICE.search(text):
            del tokens[-3:]
            field_count -= 3
        heads = field_count - self._trailing - 2 * width
        if self._two_placements and self._possible(heads, tokens):
            placements = [(False, heads), (True, heads + width)]
        else:
            heads = field_count - self._trailing - width
            single = self._one_placement or _IN_PLACE_ONLY in text.strip()
            if not (single and self._possible(heads, tokens)):
                figures = self._trailing + (width if self._one_placement else 2 * width)
                expected = f"{(self._heads or self._seen or 3) + figures}"
                more = "" if self._heads or self._seen else " or more"
                return f"half a row: {field_count} fields of {expected}{more}"
            placements = [(not self._only_out, heads)]
        size, count = base.whole(tokens[0]), base.whole(tokens[1])
        if size is None or count is None:
            return f"half a row: size and count are {tokens[0]} and {tokens[1]}"
        op, root = _op_and_root(*tokens[3:heads])
        blocks = []
        for in_place, first in placements:
            block = self._block(tokens[first : first + width], in_place)
            if isinstance(block, str):
                return block if block == base.COMMAS else f"half a row: {block}"
            blocks.append(block)
        row = NcclTestsRow(line, size, count, base.dtype_named(tokens[2]) or "", op, root, blocks)
        if len(blocks) == 2 and not (self._trailing or self._error or self._more):
            self._before, self._labels, self._fields = row, tokens[2:heads], field_count
        return row

    # Rows that look like the row before, as most do, are kept and parsed together, which takes a
    # third of the time. If one of them is unusual, ``row`` parses them one by one.

    def keep(self, line: int, text: str) -> bool:
        """Whether the line looks like the row before, and is kept for ``kept`` to parse."""
        if self._before is None or len(self._kept) == _AT_ONCE:
            return False
        tokens = text.split()
        if len(tokens) != self._fields or tokens[2 : 2 + len(self._labels)] != self._labels:
            return False
        if not (tokens[0].isdecimal() and tokens[1].isdecimal()):  # not a row
            return False
        self._kept.append((line, text))
        self._tokens += tokens
        return True

    def kept(self) -> list[tuple[int, NcclTestsRow | str]]:
        """(line, result of ``row``) for all lines that were kept since the last call."""
        kept, self._kept = self._kept, []
        tokens, self._tokens = self._tokens, []
        if not kept:
            return []
        lines = [line for line, _ in kept]
        try:
            columns = [tokens[at :: self._fields] for at in range(self._fields)]
            return [*zip(lines, self._rows(lines, columns), strict=True)]
        except (ValueError, IndexError):
            return [(line, self.row(line, text)) for line, text in kept]

    def _rows(self, lines: Sequence[int], columns: Sequence[Column]) -> list[NcclTestsRow]:
        """Parse kept rows by column. Raises ValueError or IndexError for an unusual field."""
        assert self._before
        like, width = self._before, self._width
        first = 2 + len(self._labels)
        out = self._blocks(columns[first : first + width], False)
        within = self._blocks(columns[first + width :], True)
        return [
            NcclTestsRow(line, size, count, like.dtype, like.op, like.root, [*blocks])
            for line, size, count, *blocks in zip(
                lines, _sizes(columns[0]), _sizes(columns[1]), out, within, strict=True
            )
        ]

    def _blocks(self, columns: Sequence[Column], in_place: bool) -> Iterator[Block]:
        """The result of ``_block`` for each row, computed by column. Raises as ``_rows``."""
        times, algbw, busbw = (columns[at] for at in (self._time, self._algbw, self._busbw))
        durations = [time * self._scale for time in _figures(times)]
        if not all(durations):
            raise ValueError("a time of 0")
        wrong: Iterable[int | None] = repeat(None)
        if self._wrong:
            column = columns[self._wrong]
            counts = {text: _elements(text) for text in {*column} - {"N/A"}}
            if None in counts.values():
                raise ValueError("no number of elements")
            wrong = map(counts.get, column)
        steps = [self._steps[len(text.partition(".")[2])] for text in times]
        bw_steps = [base.HALVES[len(text.partition(".")[2])] for text in busbw]
        figures = (durations, _figures(algbw), _figures(busbw), steps, bw_steps)
        return map(Block, repeat(in_place), *figures, wrong)

    def _possible(self, heads: int, tokens: Sequence[str]) -> bool:
        """Whether a row can have so many fields before the time, and lacks none at its end."""
        if not 3 <= heads <= 5:
            return False
        if self._heads:
            # hypercube prints a blank instead of the operation.
            blank = heads == self._heads - 1 and self._blank_op and tokens[3][-1].isdecimal()
            return heads == self._heads or bool(blank)
        self._seen = max(self._seen, heads)
        return heads == self._seen

    def _block(self, figures: Sequence[str], in_place: bool) -> Block | str:
        raw, alg, bus = figures[self._time], figures[self._algbw], figures[self._busbw]
        time, algbw, busbw = base.numbers(raw, alg, bus)
        if not time:
            return base.no_figure(self._body[self._time], raw)
        if algbw is None and alg not in _NO_NUMBER:
            return base.no_figure("algbw", alg)
        if busbw is None and bus not in _NO_NUMBER:
            return base.no_figure("busbw", bus)
        wrong: int | None = None
        if self._wrong and (text := figures[self._wrong]) != "N/A":
            count = _elements(text)
            if count is None:
                return f"{self._body[self._wrong]} is {text}"
            wrong = count
        scale = self._scale
        error = base.number(figures[self._error]) if self._error else None
        steps = base.rounding(raw) * scale, base.rounding(bus)
        block = Block(in_place, time * scale, algbw, busbw, *steps, wrong, error)
        for index, name in self._more:
            setattr(block, name, base.ns_of_us(figures[index]))
        return block


_AT_ONCE = 1000
Column = Sequence[str]


def _sizes(column: Column) -> list[int]:
    """``whole`` of each text. Raises ValueError if one is too large."""
    values = [*map(int, column)]
    if max(values) >= base.MOST_WHOLE:
        raise ValueError("no plain sizes")
    return values


def _figures(column: Column) -> list[float]:
    """``number`` of each text. Raises ValueError for a text with other characters than digits and a
    point: Python also accepts 1_0, nan and +5.
    """
    values = [*map(float, column)]
    if "".join(column).strip("0123456789.") or max(values) >= base.MOST_NUMBER:
        raise ValueError("no plain figures")
    return values


_PER_ITERATION = {"i_min": "min_ns", "i_max": "max_ns", "i_p99": "p99_ns"}


@lru_cache(maxsize=64)  # most values are 0
def _elements(text: str) -> int | None:
    """The number in #wrong; None if it is not a whole number. rccl-tests appends a star."""
    count = base.number(text.rstrip("*"))
    return None if count is None or count % 1 else int(count)


@lru_cache(maxsize=64)
def _op_and_root(*tokens: str) -> tuple[str | None, int | None]:
    op, root = None, None
    for token in tokens:
        if token.removeprefix("-").isdecimal():
            root = base.whole(token)  # -1 becomes None
        elif token != "none":
            op = token
    return op, root
