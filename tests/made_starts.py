"""Runs made by hand whose starts differ: first calls, phases, jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from made_runs import measured, run

from torchcoll.core.result import Run

MS = 1_000_000


def start(
    calls_ms: Sequence[float], ranks: int = 2, steady_ns: int = 1000, *more: Any, **changed: Any
) -> Run:
    """A run whose first case has these first calls, of 1 KiB; ``more`` results behind it.

    The last rank takes as long as they say, the others half of it. job, utc: of the header.
    """
    header = {"connects": "first call", **changed.pop("header", {})}
    header |= {"job_id": changed.pop("job", None), "start_utc": changed.pop("utc", None)}
    calls = [round(ms * MS) for ms in calls_ms]
    cold = [*([[ns // 2 for ns in calls]] * (ranks - 1)), calls]
    first = measured(steady_ns, ranks, cold_ns=cold)
    return run(first, *more, ranks=ranks, header=header, **changed)


ROWS = """\

options:
  processes:       {ranks}
  backend:         sycl
  iters:           {iters}
  warmup_iters:    {warmup}
  iter_policy:     off
  buf_count:       1
  check:           {check}
  inplace:         0
  collectives:     allreduce

datatype: float32
reduction: sum

#------------------------------------------------------------
# Benchmarking: allreduce
# #processes: {ranks}
#------------------------------------------------------------

        #bytes   #elem_count  #repetitions   t_min[usec]   t_max[usec]   t_avg[usec]  stddev[%]
{rows}

# All done

"""


def benchmark(calls_us: Sequence[float], ranks: int, **changed: Any) -> str:
    """What oneCCL's benchmark prints with -i 1 -w 0: a row a call, of 4, 8, 16, ... bytes.

    t_max is the figure, t_avg 0.9 of it.
    """
    asked = {"iters": 1, "warmup": 0, "check": "off"} | changed
    rows = [
        f"{4 << k} {1 << k} {asked['iters']} {0.8 * us:.2f} {us:.2f} {0.9 * us:.2f} 5.00"
        for k, us in enumerate(calls_us)
    ]
    return ROWS.format(ranks=ranks, rows="\n".join(rows), **asked)
