"""Calls as a communication library's log names them, and counts of understood lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_EXAMPLES = 5  # lines of a file that are quoted because they were not understood


class LoggedCall(NamedTuple):
    """A call as the log describes it. Equal calls are counted in a Counter.

    function: the library's name of the function; '' where the log does not name it.
    size: in ``unit``.
    channels: number of channels; None where the log does not tell.
    basis: whether the size of an all-gather or reduce-scatter is ``total`` or ``per rank``.
    unit: ``bytes`` (NCCL) or ``elements`` (oneCCL).
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


class LoggedJob:
    """The processes of one run, as their logs show them: a base of the jobs of each library."""

    processes: Sequence[Any]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(process.file for process in self.processes))

    @property
    def calls(self) -> Counter[LoggedCall]:
        return self.total("calls")

    @property
    def warnings(self) -> Counter[str]:
        return self.total("warnings")

    def total(self, name: str) -> Counter[Any]:
        """The sum of a counter of all processes. ``sum`` would copy each intermediate total."""
        total: Counter[Any] = Counter()
        for process in self.processes:
            total.update(getattr(process, name))
        return total


@dataclass
class Tally:
    """Counts the lines of a file by kind, each line once. The keys of ``counts`` are:

    - ``understood``: the reader took something from the line.
    - ``known``: a line of the library that has nothing that is needed here.
    - ``cut``: a line of a known kind that is truncated, edited, or has another line inside it. The
      reader takes what is complete in it.
    - ``unknown``: a line of the library of no known kind.
    - ``other``: a line of another program.
    """

    counts: Counter[str] = field(default_factory=Counter)  # understood, known, cut, unknown, other
    examples: list[tuple[int, str]] = field(default_factory=list)  # (line, text) cut or unknown

    @property
    def lines(self) -> int:
        return sum(self.counts.values())

    def note(self, raw: bytes) -> None:
        """Keep the line that was just counted as an example."""
        if len(self.examples) < _EXAMPLES:
            self.examples.append((self.lines, raw[:160].decode("utf-8", "replace").strip()))


class LoggedRange(NamedTuple):
    """Neighbouring sizes of one function for which the library made the same choices.

    low, high: smallest and largest size, in ``unit``. sizes: how many sizes were logged.
    channels: all numbers of channels that occur, ascending. calls: how many calls were logged.
    """

    function: str
    low: int
    high: int
    sizes: int
    labels: tuple[str, ...]
    channels: tuple[int, ...]
    calls: int
    unit: str
    basis: str


def ranges(calls: Counter[LoggedCall]) -> list[LoggedRange]:
    """Merge the calls of each function into ranges of sizes with equal choices."""
    by_size: dict[tuple[str, str, str], dict[int, list[LoggedCall]]] = {}
    for call in calls:
        key = (call.function, call.unit, call.basis)
        by_size.setdefault(key, {}).setdefault(call.size, []).append(call)
    spans: list[LoggedRange] = []
    for (function, unit, basis), sizes in sorted(by_size.items()):
        last: LoggedRange | None = None
        for size in sorted(sizes):
            same_size = sizes[size]
            labels = tuple(sorted({call.label for call in same_size}))
            channels = tuple(
                sorted({call.channels for call in same_size if call.channels is not None})
            )
            count = sum(calls[call] for call in same_size)
            if last and last.labels == labels:
                merged = tuple(sorted({*last.channels, *channels}))
                last = last._replace(
                    high=size, sizes=last.sizes + 1, channels=merged, calls=last.calls + count
                )
                spans[-1] = last
            else:
                last = LoggedRange(function, size, size, 1, labels, channels, count, unit, basis)
                spans.append(last)
    return spans
