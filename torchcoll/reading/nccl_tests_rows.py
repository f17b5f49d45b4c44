"""Parses rows of nccl-tests' text.

The columns are those of the heading, counted from the right (as in superbenchmark), because the
columns on the left differ between versions: root, redop (blank for hypercube), Group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchcoll.reading import base
from torchcoll.reading.nccl_tests import Block, NcclTestsRow

_CHOICE = re.compile(r"(?!inf|nan)[A-Za-z][\w*/]*\s+(?!inf|nan)[A-Za-z][\w*/]*\s+(?:\d+|N/A)\s*$")
# An empty out-of-place block has 32 blanks; columns are separated by 2 to 11.
_IN_PLACE_ONLY = " " * 24
_NO_NUMBER = ("inf", "nan", "-nan", "-inf")  # bandwidths if the time is 0


class RowParser:
    """Parses the rows below one heading."""

    def __init__(self, names: Sequence[str], placed: Sequence[str]) -> None:
        """names: the heading, [] without one. placed: placements in the line above it."""
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

    def row(self, line: int, text: str) -> NcclTestsRow | str:
        """Parse a row; returns why it is not one if that fails."""
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
                return f"{base.HALF_ROW}: {field_count} fields of {expected}{more}"
            placements = [(not self._only_out, heads)]
        return self._of_placements(line, tokens, heads, placements)

    def half(self, line: int, text: str) -> NcclTestsRow | str:
        """Parse a row that ends after the figures out of place, with its last field whole."""
        tokens = text.split()
        heads = len(tokens) - self._width
        if not self._two_placements or self._trailing or not self._possible(heads, tokens):
            return base.HALF_ROW
        if not _WHOLE.fullmatch(tokens[-1]):
            return base.HALF_ROW
        return self._of_placements(line, tokens, heads, [(False, heads)])

    def _of_placements(
        self, line: int, tokens: Sequence[str], heads: int, placements: Sequence[tuple[bool, int]]
    ) -> NcclTestsRow | str:
        """placements: whether in place, and the index of its first figure."""
        width = self._width
        size, count = base.whole(tokens[0]), base.whole(tokens[1])
        if size is None or count is None:
            return f"{base.HALF_ROW}: size and count are {tokens[0]} and {tokens[1]}"
        op, root = _op_and_root(*tokens[3:heads])
        if op and op not in _OPERATIONS:
            return f"{base.HALF_ROW}: redop is {op}"
        blocks = []
        for in_place, first in placements:
            block = self._block(tokens[first : first + width], in_place)
            if isinstance(block, str):
                return block if block == base.COMMAS else f"{base.HALF_ROW}: {block}"
            blocks.append(block)
        return NcclTestsRow(line, size, count, base.dtype_named(tokens[2]) or "", op, root, blocks)

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
        time, algbw, busbw = base.number(raw), base.number(alg), base.number(bus)
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
        error = base.number(figures[self._error].rstrip("*")) if self._error else None
        steps = base.rounding(raw) * scale, base.rounding(bus)
        block = Block(in_place, time * scale, algbw, busbw, *steps, wrong, error)
        for index, name in self._more:
            setattr(block, name, base.ns_of_us(figures[index]))
        return block


_WHOLE = re.compile(r"N/A|0|\d(?:\.\d+)?e[+-]\d\d")  # a last field that nothing can follow
_OPERATIONS = ("sum", "prod", "max", "min", "avg", "mulsum")
_PER_ITERATION = {"i_min": "min_ns", "i_max": "max_ns", "i_p99": "p99_ns"}


def _elements(text: str) -> int | None:
    """The number in #wrong; None if it is not a whole number. rccl-tests appends a star."""
    count = base.number(text.rstrip("*"))
    return None if count is None or count % 1 else int(count)


def _op_and_root(*tokens: str) -> tuple[str | None, int | None]:
    op, root = None, None
    for token in tokens:
        if token.removeprefix("-").isdecimal():
            root = base.whole(token)  # -1 becomes None
        elif token != "none":
            op = token
    return op, root
