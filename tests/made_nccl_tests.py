"""JSON of nccl-tests 2.19.6 with -I 1, made as src/util.cu writes it, from times of our choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

SIZE = 1 << 20


def per_iteration(processes: Sequence[Sequence[float]], skip: int = 0) -> dict[str, Any]:
    """``*_per_iter`` of times [process][iteration] in us: computeIterStats, writePerIterReport."""
    times = [max(column) for column in zip(*processes, strict=True)]
    counted = sorted(times[skip:])
    n = len(counted)

    def percentile(p: int) -> float:
        return counted[min(n - 1, (n * p + 99) // 100 - 1)]

    mean = sum(counted) / n
    deviation = math.sqrt(sum((t - mean) ** 2 for t in counted) / n)
    return {
        "skipped_iterations": skip,
        "min_us": counted[0],
        "max_us": counted[-1],
        "avg_us": mean,
        "p50_us": counted[n // 2],
        "p95_us": percentile(95),
        "p99_us": percentile(99),
        "stdev_us": deviation,
        "cv_pct": deviation / mean * 100,
        "times_us": times,
        **({"per_process_max_times_us": processes} if len(processes) > 1 else {}),
    }


def made_json(
    processes: Sequence[Sequence[float]],
    *,
    args: Sequence[str] = (),
    warmup: int = 1,
    gpus: int = 1,
    per_node: int = 2,
    skip: int = 0,
) -> dict[str, Any]:
    """A whole file of one size: ``gpus`` of each process, ``per_node`` processes of each node."""
    ranks = len(processes) * gpus
    time = sum(sum(p) / len(p) for p in processes) / len(processes)  # -a 1
    algbw = SIZE / time / 1e3
    figures = {
        "time": time,
        "alg_bw": algbw,
        "bus_bw": algbw * 2 * (ranks - 1) / ranks,
        "nwrong": 0.0,
    }
    each = per_iteration(processes, skip)
    return {
        "version": 3,
        "start_time": "2026-07-20 19:33:49",
        "args": ["./all_reduce_perf", "-I", "1", "-w", str(warmup), *args],
        "env": [],
        "nccl_version": 22902,
        "config": {
            "nthreads": 1,
            "ngpus": gpus,
            "minimum_bytes": SIZE,
            "maximum_bytes": SIZE,
            "step_factor": 2,
            "warmup_iters": warmup,
            "iterations": len(processes[0]),
            "aggregated_iterations": 1,
            "validation": 1,
            "graph": 0,
            "per_iter_timing": "true",
            "per_iter_skip": skip,
            "devices": [
                {
                    "rank": process * gpus,  # only the first GPU of each process is listed
                    "group": 0,
                    "pid": 100 + process,
                    "hostname": f"node{process // per_node}",
                    "device": process % per_node * gpus,
                    "device_hex": "0000:18:00",
                    "device_info": "NVIDIA H100 80GB HBM3",
                }
                for process in range(len(processes))
            ],
        },
        "results": [
            {
                "size": SIZE,
                "count": SIZE // 4,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": figures,
                "out_of_place_per_iter": each,
                "in_place": figures,
                "in_place_per_iter": each,
                "actual_iterations": len(processes[0]),
                "experiment_name": "",
            }
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": algbw, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-07-20 19:33:55",
    }
