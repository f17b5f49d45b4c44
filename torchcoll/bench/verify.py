"""Buffers, the patterns in them, and whether the output of a call is right. Every type holds the
patterns exactly, and wrong elements are counted.

No rank's own input equals the result, so an element that the library did not write is wrong. Every
contribution counts (`Values` says how). Every input repeats a table of prime length.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchcoll.core.case import CHECK_CHUNK_BYTES, CHECK_ELEMENT_BYTES, Case, SizedCase, fingerprint
from torchcoll.core.collectives import COLLECTIVES, DTYPES, Dtype

# A pattern row is repeated to at least so many elements: long rows copy faster.
ROW_ELEMENTS = 4096


@dataclass
class Buffers:
    """``send`` and ``recv``, flat; in place the smaller is a view of the larger."""

    send: Any
    recv: Any
    in_place: bool
    pool: Any = None  # of the memory, if the pool must outlive the buffers
    rooms: tuple[Any, Any] = (None, None)  # the memory with several slots (bench/buffers.py)
    at: Callable[[int], tuple[Any, Any]] | None = None  # (send, recv) in another slot
    # The receive buffer and the result of the last call, if calls return new tensors.
    returned: tuple[Any, Any] | None = None

    def move(self, slot: int) -> None:
        assert self.at
        self.send, self.recv = self.at(slot)

    def receive(self) -> None:
        """Copy the result of the last call into the receive buffer, if it returned a new tensor."""
        if self.returned:
            recv, result = self.returned
            recv.narrow(0, 0, len(result)).copy_(result)


def allocate(
    torch: Any, sizing: SizedCase, rank: int, device: str, empty: Callable[..., Any] | None = None
) -> Buffers:
    """The buffers of this rank, by torch's ``empty`` or another. Raises an out-of-memory error."""
    case, make = sizing.case, empty or torch.empty
    skipped = case.misalign_bytes // case.itemsize  # elements before a buffer

    def buffer(elements: int, dtype: Any, device: str) -> Any:
        return make(skipped + elements, dtype=dtype, device=device)[skipped:]

    dtype = getattr(torch, case.dtype) if case.dtype else torch.uint8
    sizes = sizing.buffer_elements(rank)
    sent, received = sizing.elements(rank)
    if case.in_place:
        room = buffer(max(sizes), dtype, device)
        rooms = (room, room)
    else:
        rooms = (buffer(sizes[0], dtype, device), buffer(sizes[1], dtype, device))

    def at(slot: int) -> tuple[Any, Any]:
        start, small = slot * sizing.stride, min(sent, received)
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
    """Periodic: element i is ``values[(shift + i) mod period]``; ``row``: whole periods."""

    def __init__(self, torch: Any, values: Any, dtype: Any, device: Any) -> None:
        self.period = len(values)
        self.length = -(-ROW_ELEMENTS // self.period) * self.period
        # float8 and unsigned types are not made from Python numbers everywhere: convert from wide.
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        self.one = torch.as_tensor(values, dtype=wide).to(dtype)
        self._repeated = self.one.repeat(self.length // self.period + 1).to(device)

    def row(self, shift: int) -> Any:
        start = shift % self.period
        return self._repeated[start : start + self.length]

    def chunks(self, buffer: Any, shift: int, most: int) -> Iterator[tuple[Any, Any]]:
        """(part of the buffer of at most ``most`` elements or a row, pattern that broadcasts)."""
        row = self.row(shift)
        step = max(1, most // self.length) * self.length
        for start in range(0, len(buffer), step):
            chunk = buffer[start : start + step]
            whole = len(chunk) // self.length * self.length
            if whole:
                yield chunk[:whole].view(-1, self.length), row
            if whole < len(chunk):
                yield chunk[whole:], row[: len(chunk) - whole]

    def fill(self, buffer: Any, shift: int, pulse: Callable[[], object] = list) -> None:
        """Fill the buffer, with a call of ``pulse`` after every 4 Mi elements."""
        for part, row in self.chunks(buffer, shift, 1 << 22):
            part.copy_(row)
            pulse()


def poison(torch: Any, buffer: Any) -> None:
    """Fill the buffer with values that are hardly ever right: NaN if it has floats."""
    buffer.fill_(poison_value(torch, buffer.dtype, torch.empty(0)))


def poison_value(torch: Any, dtype: Any, expected: Any) -> float:
    """A value that is not in ``expected``: NaN, or a whole number if there is one."""
    if dtype.is_floating_point:
        return float("nan")
    limits = torch.iinfo(dtype)
    # Near the ends of the range, but for unsigned sums, which wrap round to there.
    for value in (limits.min + 1 if limits.min else limits.max - 1, 85, 86):
        if not bool((expected == value).any()):
            break
    return float(value) if value < 1 << 53 and value > -(1 << 53) else value


# Primes: no count of ranks, block or shift that comes up divides them. Tables of reductions are
# computed for each rank and call: keep them short.
_PERIOD = 65521
_REDUCED_PERIOD = 4093
# The pattern of rank r begins r times so many elements further (the golden section of the period:
# its small multiples are far from each other and from those of a block), and that of each checked
# call so many.
_RANK_STEP = 40495
_TURN_STEP = 21841
_CHUNK_ELEMENTS = CHECK_CHUNK_BYTES // CHECK_ELEMENT_BYTES
_STEPS_BETWEEN = (-1, 3)  # where running sums of the steps stay
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
# Steady calls have turn 0. A check has other turns, so that the output of an earlier call is wrong.
FIRST_TURN = 1


@cache
def _places(torch: Any, period: int = _REDUCED_PERIOD) -> tuple[Any, Any]:
    """i**3 and i**5 modulo the period: they neither repeat nor mirror, and the difference of two
    elements at a fixed distance is no constant, so that nothing shifted or swapped equals itself.
    """
    i = torch.arange(period, dtype=torch.int64)
    square = i * i % period
    return square * i % period, square * (square * i % period) % period


@cache
def _steps(count: int, total: int) -> tuple[int, ...]:
    """``count`` steps of 1 and -1, in random order, whose sum is ``total``. Steps in a row sum to
    at most 4, so that a ring or a tree adds exactly in any type.
    """
    draw, height = random.Random(count), 0
    low, high = _STEPS_BETWEEN
    steps: list[int] = []
    for left in range(count - 1, -1, -1):
        directions = [
            step
            for step in (1, -1)
            if low <= height + step <= high and abs(total - height - step) <= left
        ]
        steps.append(
            directions[0] if len(directions) == 1 or draw.random() < 0.5 else directions[1]
        )
        height += steps[-1]
    return tuple(steps)


@cache
def _terms(op: str, ranks: int) -> tuple[int, ...]:
    """The terms that the ranks add, in one order. None is 0, none is the sum (avg: the mean).

    Terms of +-1 have the sum 2. An odd number of them has an odd sum, which might be 1, so one term
    is 2 and the sum 4. For avg the sum is 1 or 2 and the mean less than 1; of two ranks it is 1/2.
    """
    odd = ranks % 2
    if ranks == 1:
        return (1,)
    if op == "avg":
        return (2, -1) if ranks == 2 else _steps(ranks, 1 if odd else 2)
    return (2, *_steps(ranks - 1, 2)) if odd else _steps(ranks, 2)


class Values:
    """Inputs and result of a reduction, for one period of elements.

    No element of a rank's own input is the result, and without a contribution, or with it twice,
    the result would differ. max and min are checked twice, because the rank that wins already holds
    the result: another rank wins in the second call. For band and bor a doubled contribution
    changes nothing, and some ranks contribute to each element.

    Which rank has which part changes from element to element. Sums of bounded terms are exact in
    any type. Products are powers with these sums as exponents: of 2, or for whole numbers, which
    wrap round, of 3, which has an inverse modulo 2**bits. avg of whole numbers drops the rest.
    """

    def __init__(self, torch: Any, case: Case, ranks: int, turn: int = 0) -> None:
        self.torch, self.ranks, self.turn, self.op = torch, ranks, turn, case.op or ""
        self._dtype: Dtype = DTYPES[case.dtype or "uint8"]
        self._float = self._dtype.kind == "float"
        first, second = _places(torch)
        self._place, self._variety = first, second // 2
        self._sign = 1 - 2 * ((second + turn) & 1)
        self._signed = 1 if self._dtype.kind == "uint" else self._sign
        self._bits = 8 * self._dtype.itemsize - 1  # not the sign's
        self._full = (1 << self._bits) - 1
        # One more than the ranks, so that some bit is left out: else all elements were equal.
        self._bit_parts = max(ranks + 1, self._bits)

    def _part(self, rank: int, turn: int = 0, parts: int = 0) -> Any:
        """Which part the rank has for each element."""
        return (self._place + rank + turn) % (parts or self.ranks)

    def input(self, rank: int) -> Any:
        """As float64 or int64, before it is converted to the type, which wraps round."""
        torch, op = self.torch, self.op
        if op in ("sum", "prod") or (op == "avg" and self._float):
            terms = torch.tensor(_terms(op, self.ranks))
            return self._of_exponents(terms[self._part(rank)] * self._sign)
        if op == "avg":
            large = self.ranks * (self._mean - 1) + 1
            return torch.where(self._part(rank) == 0, large, 1) * self._signed
        if op in ("min", "max"):
            low, high = self._pair
            odd, rest = (low, high) if op == "min" else (high, low)
            return torch.where(self._part(rank, self.turn) == 0, odd, rest)
        if op == "bxor":
            first, second, rest = self._masks
            part = self._part(rank)
            others = torch.where(part == 1, second, rest) if self.ranks % 2 else rest
            return torch.where(part == 0, first, others)
        bit = self._part(rank, self.turn, self._bit_parts)
        bits = torch.where(bit < self._bits, 1 << bit.clamp(max=self._bits - 1), 0)
        return self._full ^ bits if op == "band" else bits

    def result(self) -> Any:
        """The reduction over all ranks, in numbers that do not round; as ``input``."""
        torch, op = self.torch, self.op
        if op in ("sum", "prod"):
            return self._of_exponents(sum(_terms(op, self.ranks)) * self._sign)
        if op == "avg" and self._float:
            return sum(_terms(op, self.ranks)) * self._sign.double() / self.ranks
        if op == "avg":
            total = self._wrapped(self.ranks * self._mean * self._signed)
            return torch.div(total, self.ranks, rounding_mode="trunc")
        if op in ("min", "max"):
            return self._pair[0 if op == "min" else 1]
        if op == "bxor":
            first, second, rest = self._masks
            if self.ranks == 1:
                return first
            return first ^ second ^ rest if self.ranks % 2 else first ^ rest
        # The ranks' bits are neighbours, from the first rank's on and round the end.
        begin = torch.arange(self._bit_parts)
        together = torch.zeros_like(begin)
        for bit in range(self._bits):
            together |= ((bit - begin) % self._bit_parts < self.ranks).long() << bit
        combined = together[self._part(0, self.turn, self._bit_parts)]
        return self._full ^ combined if op == "band" else combined

    def _of_exponents(self, exponents: Any) -> Any:
        if self.op != "prod":
            return exponents.double() if self._float else exponents
        if self._float:
            return 2.0 ** exponents.double()
        modulus = 1 << 8 * self._dtype.itemsize
        powers = [pow(3, exponent, modulus) for exponent in range(-4, 5)]
        signed = [p - modulus if p >= modulus // 2 else p for p in powers]
        return self.torch.tensor(signed)[exponents + 4]

    @property
    def _mean(self) -> Any:
        """2 or more, as long as the sum of all ranks fits; it wraps round if 2 does not fit."""
        kinds = max(1, min(9, self._dtype.exact // self.ranks) - 1)
        return 2 + (self._variety + self.turn) % kinds

    def _wrapped(self, total: Any) -> Any:
        bits = 8 * self._dtype.itemsize
        if bits == 64:  # which torch's own numbers have done
            return total
        low = 0 if self._dtype.kind == "uint" else 1 << (bits - 1)
        return (total + low) % (1 << bits) - low

    @property
    def _pair(self) -> tuple[Any, Any]:
        """Neighbours, and not 0 and 1, for which a sum or a product may be the maximum."""
        kinds = min(self._dtype.exact, 100) - 2
        least = 2 + (self._variety + self.turn * (kinds // 3)) % kinds
        if self._dtype.kind == "uint":
            return least, least + 1
        below, wide = self._sign < 0, self.torch.float64 if self._float else self.torch.int64
        return (
            self.torch.where(below, -least - 1, least).to(wide),
            self.torch.where(below, -least, least + 1).to(wide),
        )

    @property
    def _masks(self) -> tuple[Any, Any, Any]:
        """Three different masks. An even number of equal masks would cancel: so one rank has the
        first, the others the last, except for one with the second if the number of ranks is odd.
        """
        kind, turn = self._variety, self.turn
        first, second = 32 + (kind // 31 + 7 * turn) % 32, 64 + (kind // 7 + 5 * turn) % 32
        return first, second, 1 + (kind + 11 * turn) % 31


def moved_values(torch: Any, case: Case) -> Any:
    """One period; element i of rank r's input is ``values[(move_shift(r, turn) + i) mod period]``,
    never 0, whose sign a comparison may not see, nor the poison of whole numbers.
    """
    dtype = DTYPES[case.dtype or "uint8"]
    if dtype.kind == "uint":
        return 1 + _places(torch, _PERIOD)[0] % min(_PERIOD, dtype.exact - 2)
    kinds = min(_PERIOD, 2 * (dtype.exact - 1))
    number = _places(torch, _PERIOD)[0] % kinds
    values = (1 + number // 2) * (1 - 2 * (number & 1))
    return values.double() if dtype.kind == "float" else values


def move_shift(rank: int, turn: int) -> int:
    return rank * _RANK_STEP + turn * _TURN_STEP


def input_of(
    torch: Any, sizing: SizedCase, rank: int, buffer: Any, turn: int = 0
) -> tuple[Pattern, int]:
    """(the pattern of the rank's input in the buffer's type, where in it the input begins)."""
    case = sizing.case
    if not case.op:
        moved = Pattern(torch, moved_values(torch, case), buffer.dtype, buffer.device)
        return moved, move_shift(rank, turn)
    values = Values(torch, case, sizing.ranks, turn).input(rank)
    return Pattern(torch, values, buffer.dtype, buffer.device), 0


def turns_of(case: Case) -> tuple[int, ...]:
    """The checked calls of a case."""
    return (FIRST_TURN, FIRST_TURN + 1) if case.op in ("min", "max") else (FIRST_TURN,)


def tolerance_ulp(case: Case, ranks: int) -> int:
    """0 if all bits must be equal. avg of floats: one ulp a rank, because a backend may divide
    before it adds, and only a division by a power of two is exact.
    """
    averaged = case.op == "avg" and DTYPES[case.dtype or "uint8"].kind == "float"
    return ranks if averaged and ranks & (ranks - 1) else 0


class Checker:
    """The patterns of one case on one rank.

    For each of ``turns``: ``prepare(turn)``, the call, ``count_wrong`` and ``count_changed``.
    pulse: called often, so that long fills and comparisons do not look like a hang.
    """

    def __init__(
        self,
        torch: Any,
        sizing: SizedCase,
        rank: int,
        buffers: Buffers,
        pulse: Callable[[], object] = list,
    ) -> None:
        self._torch, self._pulse = torch, pulse
        self._sizing, self._case = sizing, sizing.case
        self._rank = rank
        self._buffers = buffers
        layout = sizing.layout(rank)
        self._segments = COLLECTIVES[self._case.collective].segments(layout)
        self._first = input_of(torch, sizing, rank, buffers.send)  # needed before every batch
        self._moved = None if self._case.op else self._first[0]
        self._turn = 0
        self._now = self._first
        self._expected: Pattern | None = None  # of a reduction in this turn, once it is needed
        self.turns = turns_of(self._case)

    def _input(self, turn: int) -> tuple[Pattern, int]:
        if self._moved:
            return self._moved, move_shift(self._rank, turn)
        return input_of(self._torch, self._sizing, self._rank, self._buffers.send, turn)

    def _fill(self, source: tuple[Pattern, int]) -> None:
        pattern, shift = source
        pattern.fill(self._buffers.send, shift, pulse=self._pulse)

    def refill(self) -> None:
        """Fresh input, before every batch: in place 200 sums of ones are infinite."""
        self._fill(self._first)

    def prepare(self, turn: int = FIRST_TURN) -> None:
        """Fresh input, and poison where output is expected, but for a root's own buffer."""
        recv = self._buffers.recv
        self._turn, self._now, self._expected = turn, self._input(turn), None
        self._fill(self._now)
        if not self._buffers.in_place:
            self._poison(recv)
            return
        for segment in self._segments:
            if segment.source not in (None, self._rank):
                self._poison(recv.narrow(0, segment.offset, segment.length))

    def _poison(self, buffer: Any) -> None:
        expected = (self._moved or self._reduced).one
        value = poison_value(self._torch, self._buffers.recv.dtype, expected)
        for start in range(0, len(buffer), _CHUNK_ELEMENTS):
            buffer[start : start + _CHUNK_ELEMENTS].fill_(value)
            self._pulse()

    @property
    def _reduced(self) -> Pattern:
        if self._expected is None:
            values = Values(self._torch, self._case, self._sizing.ranks, self._turn).result()
            buffer = self._buffers.send
            self._expected = Pattern(self._torch, values, buffer.dtype, buffer.device)
        return self._expected

    def _outputs(self) -> Iterator[tuple[int, Any, Pattern, int]]:
        """(offset, part of the output, its pattern, where in that it begins) of each segment."""
        pattern = self._moved or self._reduced
        for segment in self._segments:
            shift = segment.source_offset
            if segment.source is not None:
                shift += move_shift(segment.source, self._turn)
            part = self._buffers.recv.narrow(0, segment.offset, segment.length)
            yield segment.offset, part, pattern, shift

    def count_wrong(self) -> tuple[int, int]:
        """(elements checked, elements wrong) of this rank's output."""
        allowed, checked, wrong = self._allowed(), 0, 0
        for _, part, pattern, shift in self._outputs():
            wrong += self._differing(part, pattern, shift, allowed)
            checked += len(part)
        return checked, wrong

    def first_wrong(self) -> tuple[int, str, str] | None:
        """(element, its value, the expected value) of the first wrong one of this rank's output."""
        allowed, torch = self._allowed(), self._torch
        for offset, part, pattern, shift in self._outputs():
            element = offset
            for chunk, expected in pattern.chunks(part, shift, _CHUNK_ELEMENTS):
                # A chunk is rows of the pattern, or less than one.
                positions = torch.nonzero(_differs(torch, chunk, expected, allowed).flatten())
                if len(positions):
                    at = int(positions[0])
                    there, wanted = chunk.flatten()[at], expected[at % len(expected)]
                    return element + at, str(there.item()), str(wanted.item())
                element += chunk.numel()
                self._pulse()
        return None

    def digest(self) -> tuple[str, int]:
        """(hash of the expected output; sum of the actual output's bits as whole numbers)."""
        torch, total = self._torch, 0
        bits = getattr(torch, _BITS[self._buffers.recv.element_size()])
        for segment in self._segments:
            part = self._buffers.recv.narrow(0, segment.offset, segment.length).view(bits)
            for start in range(0, len(part), _CHUNK_ELEMENTS):
                total += int(part[start : start + _CHUNK_ELEMENTS].sum(dtype=torch.int64))
                self._pulse()
        segments = [[s.offset, s.length, s.source, s.source_offset] for s in self._segments]
        return fingerprint(segments), total

    def count_changed(self) -> int:
        """Elements of the input that the call has changed; 0 in place, where it may change them."""
        pattern, shift = self._now
        return 0 if self._buffers.in_place else self._differing(self._buffers.send, pattern, shift)

    def _differing(self, buffer: Any, pattern: Pattern, shift: int, allowed: float = 0.0) -> int:
        count, torch = 0, self._torch
        for chunk, expected in pattern.chunks(buffer, shift, _CHUNK_ELEMENTS):
            # Not sum(): it would make an int64 of every comparison.
            count += int(torch.count_nonzero(_differs(torch, chunk, expected, allowed)))
            self._pulse()
        return count

    def _allowed(self) -> float:
        """The error allowed in avg: ``tolerance_ulp`` ulp of the largest partial average."""
        ranks = self._sizing.ranks
        ulp = tolerance_ulp(self._case, ranks)
        if not ulp:
            return 0.0
        low, high = _STEPS_BETWEEN
        largest = min(high - low, _terms("avg", ranks).count(1))
        eps: float = self._torch.finfo(self._buffers.recv.dtype).eps
        return ulp * eps * largest / ranks


def _differs(torch: Any, values: Any, expected: Any, allowed: float) -> Any:
    if allowed:
        # Not `>`: NaN must count as wrong.
        return ~((values.double() - expected.double()).abs() <= allowed)
    # As bits: NaN equals itself then, and float8 has no comparison.
    bits = getattr(torch, _BITS[values.element_size()])
    return values.view(bits) != expected.view(bits)
