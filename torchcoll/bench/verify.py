"""Is the answer right? Patterns that every type holds exactly, and a count of what differs.

Inputs repeat with a short period, so every expected output is a short row too, whatever the size.
DESIGN section 4.4 gives the patterns; one is changed: moves count modulo a prime, not modulo 2**k,
because a block that lands at the wrong multiple of a power of two is the likeliest fault of all and
would not be seen.
"""

from __future__ import annotations

from typing import Any

from torchcoll.bench.buffers import Buffers, Pattern, poison
from torchcoll.core.case import CHECK_CHUNK_NBYTES, CHECK_ELEMENT_NBYTES, Case, Sizing
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.dtypes import DTYPES, Dtype

# Primes for the moves pattern: the largest at most the `exact` of a type, so that 0 ... prime - 1
# are held exactly. Beyond 65521 a longer row would show no more.
_PRIMES = (65521, 32749, 2039, 251, 127, 13, 7)
# min, max and the bit operations tabulate all ranks over one period: keep it short.
_REDUCED_PRIME = 251
_CHUNK_ELEMENTS = CHECK_CHUNK_NBYTES // CHECK_ELEMENT_NBYTES
_RANK_STEP = 31


def input_values(case: Case) -> list[float] | range:
    """One period of the pattern; element i of rank r's input is ``values[(s + i) mod period]``
    with s = ``input_shift(case, r)``.
    """
    dtype = DTYPES[case.dtype or "uint8"]
    if case.op in ("sum", "avg"):
        # Three ranks in a row cancel out, so no sum leaves the exact range; unsigned types have no
        # -1 and wrap round, which is exact too.
        return [0, 1, 2] if dtype.kind == "uint" else [-1, 0, 1]
    if case.op == "prod":
        # Odd integers never multiply to 0 modulo a power of two, however many ranks there are.
        return [0.5, 1.0, 2.0] if dtype.kind == "float" else [1, 3, 5]
    return range(_prime(dtype, reduced=case.op is not None))


def _prime(dtype: Dtype, reduced: bool) -> int:
    most = min(dtype.exact, _REDUCED_PRIME) if reduced else dtype.exact
    return next(prime for prime in _PRIMES if prime <= most)


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
    """0: equal to the bit. avg of floats: one ulp a rank, as a backend may divide before adding."""
    averaged = case.op == "avg" and DTYPES[case.dtype or "uint8"].kind == "float"
    return ranks if averaged else 0


class Checker:
    """The patterns of one case on one rank."""

    def __init__(self, torch: Any, sizing: Sizing, rank: int, buffers: Buffers) -> None:
        self._torch = torch
        self._sizing = sizing
        self._case = sizing.case
        self._rank = rank
        self._buffers = buffers
        self._input = self._pattern(input_values(self._case))

    def _pattern(self, values: Any) -> Pattern:
        buffer = self._buffers.send
        return Pattern(self._torch, values, buffer.dtype, buffer.device)

    def refill(self) -> None:
        """Fresh input. In place 200 sums of ones are infinite, so every batch begins with this."""
        self._input.fill(self._buffers.send, input_shift(self._case, self._rank))

    def prepare(self) -> None:
        """Fresh input, and poison wherever the output is not the input."""
        poison(self._torch, self._buffers.recv)
        self.refill()

    def count_wrong(self) -> tuple[int, int]:
        """(elements checked, elements wrong) of this rank's output."""
        case, torch = self._case, self._torch
        ulp = tolerance_ulp(case, self._sizing.ranks)
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
                wrong += int(torch.count_nonzero(_differs(torch, got, expected, ulp)))
            checked += segment.length
        return checked, wrong


def _differs(torch: Any, got: Any, expected: Any, ulp: int) -> Any:
    if ulp:
        # No average of the pattern exceeds 1 / ranks, so `ranks` ulp of it are one eps.
        # Not `>`: NaN must count as wrong.
        return ~((got.double() - expected.double()).abs() <= torch.finfo(got.dtype).eps)
    if got.dtype.is_floating_point and got.element_size() == 1:
        return got.view(torch.uint8) != expected.view(torch.uint8)  # float8 has no comparison
    return got != expected
