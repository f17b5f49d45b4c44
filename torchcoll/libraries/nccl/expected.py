"""The time that NCCL itself expects of a call: the tuning table in its log and its own formula.

The formula is that of ncclTopoGetAlgoTime in src/graph/tuning.cc (2.30): latency + bytes /
bandwidth, with a factor for trees of medium size and one on the latency of rings over hosts. A
table belongs to one communicator and is valid for its number of ranks only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace

from torchcoll.core.errors import UsageError
from torchcoll.core.summary import Row
from torchcoll.libraries.log_files import group_jobs, list_log_files, read_log
from torchcoll.libraries.nccl.algorithms import FUNCTIONS
from torchcoll.libraries.nccl.jobs import NcclCommunicator, NcclJob
from torchcoll.libraries.nccl.messages import Tuned

# treeCorrectionFactor of all-reduce, for sizes in powers of two from 64 bytes to 256 MiB.
_TREE = {
    "LL": "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1",
    "LL128": "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1",
    "SIMPLE": ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9",
}
# "Plateau effect of ring" of Simple over hosts. It is 1.9 on GPUs before Ampere, but the log does
# not contain the GPU.
_PLATEAU, _PLATEAU_BYTES = 1.4, 64
_REDUCED = "AllReduce"


def time_ns(cell: Tuned, size_bytes: int, ranks: int, nodes: int, channels: int) -> float:
    """The time that NCCL expects with the algorithm and protocol of ``cell``, in ns.

    size_bytes: all bytes of all ranks, as the model counts them (nccl-tests' size).
    """
    latency, gbps = cell.latency_us, cell.algbw_gbps
    log_size = int(math.log2(size_bytes >> 6)) if size_bytes >> 6 else -1
    factors = _TREE.get(cell.protocol, "").split()
    if cell.algorithm == "TREE" and cell.function == _REDUCED and 0 <= log_size < len(factors):
        gbps *= float(factors[log_size])
    ring = (cell.algorithm, cell.protocol, cell.function) == ("RING", "SIMPLE", _REDUCED)
    if ring and nodes > 1 and size_bytes // (channels * ranks) >= _PLATEAU_BYTES:
        latency *= _PLATEAU
    return 1000 * latency + size_bytes / gbps


class TuningTables:
    """The tuning tables in some logs, by the number of ranks of their communicator."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        """Raises UnreadableError for a file that is no log, UsageError if no log has a table."""
        readers = [read_log(path)[0] for path in list_log_files(map(str, paths))]
        jobs = [job for job in group_jobs(readers) if isinstance(job, NcclJob)]
        self._of: dict[int, NcclCommunicator] = {}
        for group in (group for job in jobs for group in job.communicators if group.tuning):
            self._of.setdefault(group.nranks or 0, group)
        if not self._of:
            action = "Its rank 0 writes one: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING."
            names = ", ".join(map(str, paths))
            raise UsageError("nccl-log", names, "a log with NCCL's tuning table", action)

    def filled(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with ``expected_ns`` filled in where a table has their ranks and collective."""
        expected = [(row, self.expected_ns(row)) for row in rows]
        return [row if ns is None else replace(row, expected_ns=ns) for row, ns in expected]

    def expected_ns(self, row: Row) -> float | None:
        """The time of the algorithm that ran, or else of the fastest; None without a table."""
        group = self._of.get(row.ranks)
        function = FUNCTIONS.get(row.collective)
        if group is None or function is None or row.size_bytes < 1 or row.coalesce > 1:
            return None
        cells = [c for c in group.tuning if c.function == function and c.algbw_gbps > 0]
        if row.algorithm:
            cells = [c for c in cells if f"{c.algorithm}/{c.protocol}" == row.algorithm]
        counts = (m.channels.get("coll") for m in group.members)
        channels = next((count for count in counts if count), 1)
        nodes = group.nodes or 1
        times = (time_ns(cell, row.size_bytes, row.ranks, nodes, channels) for cell in cells)
        return min(times, default=None)
