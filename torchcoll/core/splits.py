"""How a size is divided among the pairs of ranks if blocks are uneven.

The weights are given as one of:
- ``seed:N``: random weights from 0 to 15; some pairs send nothing.
- ``1,2,4,1``: a weight for each rank. All ranks send in these proportions, so receivers differ.
- a file with a matrix: row s, column d is the weight of what rank s sends to rank d.
- a pattern of mixture-of-experts traffic, also sent alike by all: ``balanced``, ``zipf:A`` (rank d
  receives in proportion to 1 / (d + 1)**A), ``hot:K`` (ranks 0 to K - 1 receive ``HEAT`` times as
  much as each other rank).

``combine:RULE`` exchanges senders and receivers; ``pair:RULE`` asks for both, as two cases.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from torchcoll.core.errors import UsageError
from torchcoll.core.units import counted

# How many times as much a hot rank receives as each other rank.
HEAT = 8
_EXPECTED = (
    "balanced, zipf:A, hot:K, seed:N, one weight per rank such as 1,2,4,1, or the path of a matrix "
    "file; combine: or pair: may stand before it"
)
COMBINE, _PAIR = "combine:", "pair:"
_PATTERN = re.compile(r"balanced|(zipf):([0-9.]{1,9})|(hot):([0-9]{1,6})")
_ZIPF_SCALE = 1 << 40  # weights are whole: the error of a proportion is below 1e-9
_SEED = re.compile(r"seed:([0-9]{1,18})")
_LOW_4_BITS = bytes(i & 15 for i in range(256))


class Weights:
    """Whole weights ``rows[source][destination]``, at least one of them above 0. As 1024 ranks have
    a million pairs, rows of small weights may be ``bytes``, and sums come from histograms.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.rows = rows

    @cached_property
    def sent(self) -> list[Mapping[int, int]]:
        """For each source: weight -> how often it occurs in the row."""
        return _histograms(self.rows)

    @cached_property
    def received(self) -> list[Mapping[int, int]]:
        """For each destination: weight -> how often it occurs in the column."""
        return _histograms(zip(*self.rows, strict=True))

    @cached_property
    def largest(self) -> int:
        """The largest sum of a row or a column."""
        histograms = (*self.sent, *self.received)
        return max(sum(weight * times for weight, times in h.items()) for h in histograms)


def _histograms(rows: Iterable[Sequence[int]]) -> list[Mapping[int, int]]:
    # With one weight per rank all rows are equal, so only one is counted.
    by_row: dict[Sequence[int], Mapping[int, int]] = {}
    histograms = []
    for row in rows:
        histogram = by_row.get(row)
        if histogram is None:
            histogram = by_row[row] = Counter(row)
        histograms.append(histogram)
    return histograms


class Division:
    """Elements of every pair of ranks, in proportion to the weights, rounded down, but at least one
    for the largest weight.

    elements: the most that one rank sends or receives in total.
    """

    def __init__(self, weights: Weights, elements: int) -> None:
        self.weights = weights
        heaviest = max(max(histogram) for histogram in weights.sent)
        # Computed with whole numbers, because 49 * (2 / 98) in floating point is below 1.
        self._scale = (elements, weights.largest)
        self.largest_pair = max(1, heaviest * elements // weights.largest)
        self._lone: tuple[int, int] | None = None
        if heaviest * elements < weights.largest:
            source = max(s for s, histogram in enumerate(weights.sent) if heaviest in histogram)
            row = weights.rows[source]
            self._lone = (source, max(d for d, weight in enumerate(row) if weight == heaviest))

    @cached_property
    def sent(self) -> list[int]:
        """Elements that each rank sends."""
        return self._sums(self.weights.sent, 0)

    @cached_property
    def received(self) -> list[int]:
        """Elements that each rank receives."""
        return self._sums(self.weights.received, 1)

    def pair(self, source: int, destination: int) -> int:
        """Elements that a source sends to a destination."""
        if self._lone:
            return int(self._lone == (source, destination))
        elements, largest = self._scale
        return self.weights.rows[source][destination] * elements // largest

    def _sums(self, histograms: Sequence[Mapping[int, int]], side: int) -> list[int]:
        if self._lone:
            return [int(rank == self._lone[side]) for rank in range(len(histograms))]
        elements, largest = self._scale
        return [
            sum(weight * elements // largest * times for weight, times in histogram.items())
            for histogram in histograms
        ]


def split_rules(splits: str) -> tuple[str, ...]:
    """The rules of the cases that ``splits`` asks for: two for a pair, otherwise itself."""
    rule = splits.removeprefix(_PAIR)
    return (splits,) if rule == splits else (rule, COMBINE + rule)


def split_weights(splits: str, ranks: int) -> Weights:
    """Read the text of a rule for so many ranks. Raises UsageError."""
    if splits.startswith(COMBINE):
        rows = split_weights(splits.removeprefix(COMBINE), ranks).rows
        return Weights(list(zip(*rows, strict=True)))
    if splits == "balanced" or splits.startswith(("zipf:", "hot:")):
        return _pattern(splits, ranks)
    if splits.startswith("seed:"):
        seed = _SEED.fullmatch(splits)
        if not seed:
            raise UsageError("splits", splits, _EXPECTED)
        return _random(int(seed[1]), ranks)
    if os.path.isfile(splits):  # Path.is_file raises for a list too long to be a file name
        return _matrix(Path(splits), ranks)
    try:
        row = tuple(float(part) for part in splits.split(","))
    except ValueError:
        raise UsageError("splits", splits, _EXPECTED) from None
    if len(row) != ranks:
        raise UsageError("splits", splits, f"{ranks} weights, one a rank")
    return Weights(_whole((row,), splits) * ranks)


def _pattern(splits: str, ranks: int) -> Weights:
    pattern = _PATTERN.fullmatch(splits)
    if not pattern:
        raise UsageError("splits", splits, _EXPECTED)
    if splits == "balanced":
        return Weights([(1,) * ranks] * ranks)
    if pattern[1]:
        try:
            exponent = float(pattern[2])
        except ValueError:
            raise UsageError("splits", splits, "zipf:A with a number, such as zipf:1.2") from None
        if not 0 < exponent <= 4:
            raise UsageError("splits", splits, "zipf:A with A above 0 and at most 4")
        row = tuple(max(1, round(_ZIPF_SCALE / (d + 1) ** exponent)) for d in range(ranks))
        return Weights([row] * ranks)
    hot = int(pattern[4])
    if not 0 < hot < max(2, ranks):
        expected = f"at least 1 and at most {ranks - 1} hot ranks of {ranks}"
        raise UsageError("splits", splits, expected)
    row = tuple(HEAT if d < hot else 1 for d in range(ranks))
    return Weights([row] * ranks)


def _random(seed: int, ranks: int) -> Weights:
    weights = random.Random(seed).randbytes(ranks * ranks).translate(_LOW_4_BITS)
    if not any(weights):  # with one rank the only weight may be 0
        weights = b"\1" * len(weights)
    return Weights([weights[i : i + ranks] for i in range(0, len(weights), ranks)])


def _matrix(path: Path, ranks: int) -> Weights:
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        rows = tuple(tuple(map(float, line.replace(",", " ").split())) for line in lines)
    except (OSError, ValueError) as error:
        raise UsageError("splits file", path, f"a matrix of numbers ({error})") from None
    if len(rows) != ranks or any(len(row) != ranks for row in rows):
        shape = f"{counted(len(rows), 'row')} of {sorted({len(row) for row in rows})} numbers"
        expected = f"{ranks} rows of {ranks} numbers, one a rank"
        raise UsageError(f"splits file {path}", shape, expected)
    return Weights(_whole(rows, str(path)))


def _whole(rows: tuple[tuple[float, ...], ...], text: str) -> tuple[tuple[int, ...], ...]:
    """Turn weights into whole numbers of the same proportions, exactly. Raises UsageError."""
    distinct = {weight for row in rows for weight in row}
    if not all(0 <= weight < math.inf for weight in distinct) or not any(distinct):
        raise UsageError("splits", text, "weights from 0 on, at least one above 0")
    ratios = {weight: weight.as_integer_ratio() for weight in distinct}
    common = max(below for _, below in ratios.values())
    whole = {weight: above * (common // below) for weight, (above, below) in ratios.items()}
    return tuple(tuple(map(whole.__getitem__, row)) for row in rows)
