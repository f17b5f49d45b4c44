"""The tuning table in NCCL's log: what the cost model expects of each algorithm and protocol.

Up to 2.17 one table, ``Latency/AlgBw | Tree/ LL | Tree/ LL128 |``; from 2.18 on blocks of
algorithms, ``Algorithm | Tree | Ring | CollNetDirect |``, of three columns each. Then a row for
each function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchcoll.libraries.nccl.calls import PROTOCOLS, canonical
from torchcoll.libraries.nccl.members import Tuned

Column = tuple[str, str]  # (algorithm, protocol)
_CELL = re.compile(r"(\d+\.\d+)/(\d+\.\d+)$")


def columns_of(message: str) -> tuple[list[Column], bool]:
    """The columns of a block (>= 2.18), and whether all of its algorithms are known."""
    names = [canonical(cell.strip()) for cell in message.split("|")[1:-1]]
    columns = [(name, protocol) for name in names if name for protocol in PROTOCOLS]
    return columns, bool(columns) and None not in names


def wide_columns_of(message: str) -> tuple[list[Column], bool]:
    """The columns of the one table (<= 2.17), and whether each was whole."""
    cells = [cell.split("/") for cell in message.split("|")[1:-1]]
    # CollNet was one algorithm before 2.14, and chain came as its second.
    columns = [
        (canonical(a.strip()) or a.strip().upper(), canonical(p.strip()) or "")
        for a, p in (cell for cell in cells if len(cell) == 2)
    ]
    return columns, bool(columns) and len(columns) == len(cells)


def row_of(message: str, columns: Sequence[Column]) -> list[Tuned]:
    """``AllReduce | 16.8/ 0.5 | ...``; [] for a row that is not whole, or of another table."""
    name, *cells = (cell.strip() for cell in message.split("|"))
    values = [_CELL.match(cell.replace(" ", "")) for cell in cells[:-1]]
    if len(values) != len(columns) or not all(values):
        return []
    return [
        Tuned(name, *column, float(value[1]), float(value[2]))
        for column, value in zip(columns, values, strict=True)
        if value
    ]
