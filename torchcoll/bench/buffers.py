"""The buffers of a case: allocate, fill with a pattern, poison.

Patterns repeat, so they are made as one short row and copied over the buffer at memory speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.case import Sizing
from torchcoll.core.collectives import COLLECTIVES

# A pattern row is repeated to at least so many elements: long rows copy faster.
ROW_ELEMENTS = 4096


@dataclass
class Buffers:
    """``send`` and ``recv``, flat; in place the smaller is a view of the larger."""

    send: Any
    recv: Any
    in_place: bool
    pool: Any = None  # what the memory was taken from, where that must outlive the buffers


def allocate(torch: Any, sizing: Sizing, rank: int, device: str) -> Buffers:
    """The buffers of this rank. Raises torch's or Python's out-of-memory error."""
    case = sizing.case
    dtype = getattr(torch, case.dtype) if case.dtype else torch.uint8
    sent, received = sizing.elements(rank)
    if not case.in_place:
        send = torch.empty(sent, dtype=dtype, device=device)
        return Buffers(send, torch.empty(received, dtype=dtype, device=device), False)
    whole = torch.empty(max(sent, received), dtype=dtype, device=device)
    small = min(sent, received)
    # A rank with nothing to send or receive (not the root) has no place in the larger buffer.
    offset = COLLECTIVES[case.collective].overlap(sizing.layout(rank)) if small else 0
    part = whole.narrow(0, offset, small) if small < len(whole) else whole
    return Buffers(
        whole if sent == len(whole) else part, part if sent == len(whole) else whole, True
    )


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
