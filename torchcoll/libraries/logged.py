"""What a communication library's log says of calls, and of how much of the log was understood."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

_EXAMPLES = 5  # lines that are quoted where they are not understood


class LoggedCall(NamedTuple):
    """A call as the log names it; equal calls are counted.

    function: the library's name of it, '' where the log has none. size: in ``unit``, which is
    ``bytes`` (NCCL) or ``elements`` (oneCCL). basis: what the size is of, ``total`` or ``per
    rank``, where all-gather and reduce-scatter count differently. channels: None where not known.
    """

    function: str
    size: int
    algorithm: str
    protocol: str = ""
    channels: int | None = None
    basis: str = ""
    unit: str = "bytes"

    @property
    def label(self) -> str:
        return f"{self.algorithm}/{self.protocol}" if self.protocol else self.algorithm


@dataclass
class Tally:
    """Every line of a file, once.

    understood: something was taken from it. known: a line of the library that tells nothing that is
    needed here. cut: of a known kind, but truncated, edited, or with another line inside it; what
    stands in it whole is taken. unknown: the library's, of no known kind. other: of other programs.
    """

    counts: Counter[str] = field(default_factory=Counter)  # understood, known, cut, unknown, other
    examples: list[tuple[int, str]] = field(default_factory=list)  # (line, text) cut or unknown

    @property
    def lines(self) -> int:
        return sum(self.counts.values())

    def note(self, raw: bytes) -> None:
        """Quote the line that was just counted."""
        if len(self.examples) < _EXAMPLES:
            self.examples.append((self.lines, raw[:160].decode("utf-8", "replace").strip()))


class LoggedRange(NamedTuple):
    """Neighbouring sizes of one function at which the log names the same choices."""

    function: str
    low: int
    high: int
    sizes: int
    labels: tuple[str, ...]
    channels: tuple[int, ...]  # all that occur, ascending
    calls: int
    unit: str
    basis: str


def ranges(calls: Counter[LoggedCall]) -> list[LoggedRange]:
    """The calls of each function by size, neighbours with equal choices together."""
    by_size: dict[tuple[str, str, str], dict[int, list[LoggedCall]]] = {}
    for call in calls:
        key = (call.function, call.unit, call.basis)
        by_size.setdefault(key, {}).setdefault(call.size, []).append(call)
    found: list[LoggedRange] = []
    for (function, unit, basis), sizes in sorted(by_size.items()):
        last: LoggedRange | None = None
        for size in sorted(sizes):
            own = sizes[size]
            labels = tuple(sorted({call.label for call in own}))
            channels = tuple(sorted({call.channels for call in own if call.channels is not None}))
            count = sum(calls[call] for call in own)
            if last and last.labels == labels:
                every = tuple(sorted({*last.channels, *channels}))
                last = last._replace(
                    high=size, sizes=last.sizes + 1, channels=every, calls=last.calls + count
                )
                found[-1] = last
            else:
                last = LoggedRange(function, size, size, 1, labels, channels, count, unit, basis)
                found.append(last)
    return found
