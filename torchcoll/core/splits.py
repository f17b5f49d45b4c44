"""How all_to_all_v divides a size among the pairs of ranks.

Three ways to say it: ``seed:N`` (random weights 0 to 15, some pairs send nothing), a list of one
weight a rank (``1,2,4,1``: every rank sends in these proportions, so receivers differ), or a file
with a matrix (row s, column d: the weight of what rank s sends to rank d; spaces or commas).
"""

from __future__ import annotations

import random
from pathlib import Path

from torchcoll.core.errors import UsageError

Weights = tuple[tuple[float, ...], ...]

_EXPECTED = "seed:N, one weight a rank such as 1,2,4,1, or the path of a matrix file"


def split_weights(splits: str, ranks: int) -> Weights:
    """Weights [source][destination] of a ``splits`` text for so many ranks. Raises UsageError."""
    if splits.startswith("seed:"):
        if not splits[5:].isdigit():
            raise UsageError("splits", splits, _EXPECTED)
        return _random(int(splits[5:]), ranks)
    path = Path(splits)
    if path.is_file():
        return _matrix(path, ranks)
    try:
        row = tuple(float(part) for part in splits.split(","))
    except ValueError:
        raise UsageError("splits", splits, _EXPECTED) from None
    if len(row) != ranks:
        raise UsageError("splits", splits, f"{ranks} weights, one a rank")
    return _checked((row,) * ranks, splits)


def _random(seed: int, ranks: int) -> Weights:
    rng = random.Random(seed)
    rows = [tuple(float(rng.randrange(16)) for _ in range(ranks)) for _ in range(ranks)]
    if not any(any(row) for row in rows):  # one rank can draw a single 0
        rows = [(1.0,) * ranks] * ranks
    return tuple(rows)


def _matrix(path: Path, ranks: int) -> Weights:
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        rows = tuple(tuple(float(x) for x in line.replace(",", " ").split()) for line in lines)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UsageError("splits file", path, f"a matrix of numbers ({error})") from None
    if len(rows) != ranks or any(len(row) != ranks for row in rows):
        shape = f"{len(rows)} rows of {sorted({len(row) for row in rows})} numbers"
        raise UsageError(
            f"splits file {path}", shape, f"{ranks} rows of {ranks} numbers, one a rank"
        )
    return _checked(rows, str(path))


def _checked(rows: Weights, text: str) -> Weights:
    flat = [x for row in rows for x in row]
    if not all(0 <= x < float("inf") for x in flat) or not any(flat):
        raise UsageError("splits", text, "weights from 0 on, at least one above 0")
    return rows


def split_elements(weights: Weights, elements: int) -> tuple[tuple[int, ...], ...]:
    """Element counts [source][destination], in proportion to the weights and rounded down.

    Scaled so that the largest sum that one rank sends or receives is at most ``elements``. The
    heaviest pair gets at least one element, so that a case is never empty.
    """
    sent = max(map(sum, weights))
    received = max(map(sum, zip(*weights, strict=True)))
    scale = elements / max(sent, received)
    rows = [[int(w * scale) for w in row] for row in weights]
    if not any(map(any, rows)):
        _, s, d = max((w, s, d) for s, row in enumerate(weights) for d, w in enumerate(row))
        rows[s][d] = 1
    return tuple(map(tuple, rows))
