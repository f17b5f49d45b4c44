"""Buffers, what is put into them, and whether the answer is right.

Patterns are held exactly by every type; what differs is counted, not only noticed.

Every input repeats a short table, so every expected output is a short row too, whatever the size.
Rejected: tables of period 3 for sums and 2**k for moves. Those cannot fail where the
ranks are a multiple of 3 (all sums are 0) or where a block lands a multiple of the period away, the
likeliest fault of all. The periods here are primes, and no sum over all ranks vanishes everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchcoll.core.case import CHECK_CHUNK_NBYTES, CHECK_ELEMENT_NBYTES, Case, Sizing
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.dtypes import DTYPES, Dtype

# A pattern row is repeated to at least so many elements: long rows copy faster.
ROW_ELEMENTS = 4096


@dataclass
class Buffers:
    """``send`` and ``recv``, flat; in place the smaller is a view of the larger.

    rooms: what they are a place in, where there are several (see bench/rotation.py); ``move`` takes
    them to another one.
    """

    send: Any
    recv: Any
    in_place: bool
    pool: Any = None  # what the memory was taken from, where that must outlive the buffers
    rooms: tuple[Any, Any] = (None, None)
    at: Callable[[int], tuple[Any, Any]] | None = None

    def move(self, place: int) -> None:
        assert self.at
        self.send, self.recv = self.at(place)


def allocate(torch: Any, sizing: Sizing, rank: int, device: str) -> Buffers:
    """The buffers of this rank. Raises torch's or Python's out-of-memory error."""
    case = sizing.case
    dtype = getattr(torch, case.dtype) if case.dtype else torch.uint8
    sent, received = sizing.elements(rank)
    sizes = sizing.room(rank)
    if case.in_place:
        room = torch.empty(max(sizes), dtype=dtype, device=device)
        rooms = (room, room)
    else:
        send = torch.empty(sizes[0], dtype=dtype, device=device)
        rooms = (send, torch.empty(sizes[1], dtype=dtype, device=device))

    def at(place: int) -> tuple[Any, Any]:
        start, small = place * sizing.stride, min(sent, received)
        if not case.in_place:
            pairs = zip(rooms, (sent, received), strict=True)
            send, recv = (room.narrow(0, start, n) if n else room for room, n in pairs)
            return send, recv
        whole = rooms[0].narrow(0, start, max(sent, received))
        # A rank with nothing to send or receive (not the root) has no place in the larger buffer.
        offset = COLLECTIVES[case.collective].overlap(sizing.layout(rank)) if small else 0
        part = whole.narrow(0, offset, small) if small < len(whole) else whole
        return (whole, part) if sent == len(whole) else (part, whole)

    send, recv = at(0)
    return Buffers(send, recv, bool(case.in_place), rooms=rooms, at=at)


class Pattern:
    """A periodic pattern: element i of a buffer is ``values[(shift + i) mod period]``.

    ``row(shift)`` is a whole number of periods that begins at ``shift``.
    """

    def __init__(self, torch: Any, values: Sequence[float], dtype: Any, device: Any) -> None:
        self.period = len(values)
        self.length = -(-ROW_ELEMENTS // self.period) * self.period
        # float8 and unsigned types are not made from Python numbers everywhere: convert from wide.
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        one = torch.tensor(values, dtype=wide).to(dtype)
        self._repeated = one.repeat(self.length // self.period + 1).to(device)

    def row(self, shift: int) -> Any:
        start = shift % self.period
        return self._repeated[start : start + self.length]

    def chunks(self, buffer: Any, shift: int, most: int) -> Iterator[tuple[Any, Any]]:
        """(part of the buffer, pattern that broadcasts over it), parts of at most ``most`` elements
        or one row.
        """
        row = self.row(shift)
        step = max(1, most // self.length) * self.length
        for start in range(0, len(buffer), step):
            chunk = buffer[start : start + step]
            whole = len(chunk) // self.length * self.length
            if whole:
                yield chunk[:whole].view(-1, self.length), row
            if whole < len(chunk):
                yield chunk[whole:], row[: len(chunk) - whole]

    def fill(
        self, buffer: Any, shift: int, most: int = 1 << 22, pulse: Callable[[], object] = list
    ) -> None:
        """Fill the buffer, ``pulse`` after every ``most`` elements."""
        for part, row in self.chunks(buffer, shift, most):
            part.copy_(row)
            pulse()


def poison(torch: Any, buffer: Any) -> None:
    """Values that no right answer holds (floats: NaN) or few do (integers: near the end of the
    range that patterns leave alone).
    """
    if buffer.dtype.is_floating_point:
        buffer.fill_(float("nan"))
        return
    range_of = torch.iinfo(buffer.dtype)
    buffer.fill_(range_of.min + 1 if range_of.min else range_of.max - 1)


_MOVES_PERIOD = 65521
# Reductions are tabulated over all ranks for one period: keep it short.
_REDUCED_PERIOD = 251
_RANK_STEP = 31  # moves of rank r begin so many elements further: distinct for 65521 ranks
_STEPS_WITHIN = 2  # running sums of the steps table stay within +- this
_CHUNK_ELEMENTS = CHECK_CHUNK_NBYTES // CHECK_ELEMENT_NBYTES


@cache
def _steps() -> tuple[int, ...]:
    """-1, 0, 1 in an order whose running sum stays within +-2 and ends at 1.

    So a sum over any ranks in a row stays within +-4, and one that goes round the end within +-8:
    exact in every type, in whatever order a backend adds. The 1 keeps sums over 251 ranks from
    vanishing.
    """
    draw, height = random.Random(1), 0
    steps: list[int] = []
    while len(steps) < _REDUCED_PERIOD or height != 1:
        if len(steps) == _REDUCED_PERIOD:
            steps, height = [], 0
        step = draw.choice([s for s in (-1, 0, 1) if abs(height + s) <= _STEPS_WITHIN])
        height += step
        steps.append(step)
    return tuple(steps)


@cache
def _table(most: int, period: int) -> tuple[int, ...]:
    """``period`` numbers from 0 to ``most``: all different where they fit, else drawn by seed."""
    if most >= period - 1:
        return tuple(range(period))
    draw = random.Random(2)
    return tuple(draw.randrange(most + 1) for _ in range(period))


def input_values(case: Case) -> tuple[float, ...]:
    """One period; rank r's input is ``values[(input_shift(case, r) + i) mod period]`` at i."""
    dtype = DTYPES[case.dtype or "uint8"]
    if case.op in ("sum", "avg"):
        # Unsigned types have no -1; their sums wrap round, which is exact too.
        low = 1 if dtype.kind == "uint" else 0
        return tuple(step + low for step in _steps())
    if case.op == "prod":
        if dtype.kind == "float":
            return tuple(2.0**step for step in _steps())
        # Odd integers never multiply to 0 modulo a power of two, however many ranks there are.
        return tuple(2 * step + 3 for step in _steps())
    # Integers leave the poison out, which is their type's largest but one.
    most = dtype.exact if dtype.kind == "float" else dtype.exact - 2
    if case.op is None:
        return _table(most, _MOVES_PERIOD)
    if case.op in ("band", "bor"):
        return _sparse(dtype, ones=case.op == "bor")
    return _table(most, _REDUCED_PERIOD)


def _sparse(dtype: Dtype, ones: bool) -> tuple[int, ...]:
    """Few bits set (or clear), so that many ranks do not set (or clear) them all."""
    bits = dtype.exact.bit_length()
    draw = random.Random(3)
    found = [
        1 << draw.randrange(bits) if draw.random() < 0.25 else 0 for _ in range(_REDUCED_PERIOD)
    ]
    return tuple(found if ones else [dtype.exact ^ bit for bit in found])


def input_shift(case: Case, rank: int) -> int:
    return rank if case.op in ("sum", "avg", "prod") else _RANK_STEP * rank


def reduced_values(case: Case, ranks: int) -> list[float]:
    """One period of the reduction over all ranks, computed in Python's own numbers."""
    values = input_values(case)
    shifts = [input_shift(case, rank) for rank in range(ranks)]
    dtype = DTYPES[case.dtype or "uint8"]
    reduced = [
        _reduce(case.op or "", [values[(shift + i) % len(values)] for shift in shifts])
        for i in range(len(values))
    ]
    if dtype.kind == "float":
        return reduced
    # Integers wrap round; the average of integers is an integer division.
    bits = 8 * dtype.itemsize
    wrapped = [int(value) % (1 << bits) for value in reduced]
    if dtype.kind == "int":
        wrapped = [v - (1 << bits) if v >= 1 << (bits - 1) else v for v in wrapped]
    return list(wrapped)


def _reduce(op: str, column: list[Any]) -> Any:
    if op == "avg":
        return sum(column) / len(column)
    if op == "sum":
        return sum(column)
    if op in ("min", "max"):
        return min(column) if op == "min" else max(column)
    value, *rest = column
    for other in rest:
        if op == "prod":
            value *= other
        elif op == "band":
            value &= other
        elif op == "bor":
            value |= other
        else:
            value ^= other
    return value


def tolerance_ulp(case: Case, ranks: int) -> int:
    """0: equal to the bit. avg of floats: one ulp a rank, for a backend may divide before adding,
    and only a division by a power of two is exact.
    """
    averaged = case.op == "avg" and DTYPES[case.dtype or "uint8"].kind == "float"
    return ranks if averaged and ranks & (ranks - 1) else 0


class Checker:
    """The patterns of one case on one rank. ``pulse`` is called now and then: long fills and
    comparisons are work, not a hang.
    """

    def __init__(
        self,
        torch: Any,
        sizing: Sizing,
        rank: int,
        buffers: Buffers,
        pulse: Callable[[], object] = list,
    ) -> None:
        self._torch = torch
        self._sizing = sizing
        self._case = sizing.case
        self._rank = rank
        self._buffers = buffers
        self._pulse = pulse
        self._input = self._pattern(input_values(self._case))

    def _pattern(self, values: Any) -> Pattern:
        buffer = self._buffers.send
        return Pattern(self._torch, values, buffer.dtype, buffer.device)

    def refill(self) -> None:
        """Fresh input. In place 200 sums of ones are infinite, so every batch begins with this."""
        shift = input_shift(self._case, self._rank)
        self._input.fill(self._buffers.send, shift, pulse=self._pulse)

    def prepare(self) -> None:
        """Fresh input, and poison wherever the output is not the input."""
        recv = self._buffers.recv
        for start in range(0, len(recv), _CHUNK_ELEMENTS):
            poison(self._torch, recv[start : start + _CHUNK_ELEMENTS])
            self._pulse()
        self.refill()

    def count_wrong(self) -> tuple[int, int]:
        """(elements checked, elements wrong) of this rank's output."""
        case, torch = self._case, self._torch
        allowed = self._allowed()
        reduced: Pattern | None = None
        checked = wrong = 0
        layout = self._sizing.layout(self._rank)
        for segment in COLLECTIVES[case.collective].segments(layout):
            pattern, shift = self._input, segment.source_offset
            if segment.source is None:
                pattern = reduced = reduced or self._pattern(
                    reduced_values(case, self._sizing.ranks)
                )
            else:
                shift += input_shift(case, segment.source)
            part = self._buffers.recv.narrow(0, segment.offset, segment.length)
            for got, expected in pattern.chunks(part, shift, _CHUNK_ELEMENTS):
                # Not sum(): it would make an int64 of every comparison.
                wrong += int(torch.count_nonzero(_differs(torch, got, expected, allowed)))
                self._pulse()
            checked += segment.length
        return checked, wrong

    def _allowed(self) -> float:
        """The error allowed in avg: ``tolerance_ulp`` ulp of the largest partial average.

        Partial sums stay within 2 x _STEPS_WITHIN and one more for every 251 ranks.
        """
        ranks = self._sizing.ranks
        ulp = tolerance_ulp(self._case, ranks)
        if not ulp:
            return 0.0
        largest = 2 * _STEPS_WITHIN + ranks / _REDUCED_PERIOD
        eps: float = self._torch.finfo(self._buffers.recv.dtype).eps
        return ulp * eps * largest / ranks


def _differs(torch: Any, got: Any, expected: Any, allowed: float) -> Any:
    if allowed:
        # Not `>`: NaN must count as wrong.
        return ~((got.double() - expected.double()).abs() <= allowed)
    if got.dtype.is_floating_point and got.element_size() == 1:
        return got.view(torch.uint8) != expected.view(torch.uint8)  # float8 has no comparison
    return got != expected
