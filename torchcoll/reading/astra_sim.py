"""Reads ASTRA-sim's output: ``sys[3] finished, 1072000 cycles, ...`` for each NPU.

One cycle is one nanosecond (Sys::boostedTick). The output does not name the simulated case, so the
script that runs the simulator has to print a line before each simulation::

    torchcoll case: collective=all_reduce size_bytes=1048576 ranks=8

Output without such a line is refused. So is a case whose simulation stopped midway, before all NPUs
had finished.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchcoll.core.result import CaseResult, Reported
from torchcoll.reading import base

NAME = "astra_sim"
_CASE = re.compile(r"torchcoll case: collective=(\w+) size_bytes=(\d+) ranks=(\d+)\s*$")
_FINISHED = re.compile(r"\bsys\[(\d+)\] finished, (\d+) cycles\b")
_NO_CASE = (
    "cycles of no known case: print a line 'torchcoll case: collective=NAME size_bytes=BYTES "
    "ranks=N' before each simulation"
)


def sniff(head: Sequence[str]) -> bool:
    return any(_CASE.search(text) or _FINISHED.search(text) for text in head)


def read(lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
    imported = base.Imported()
    results: list[CaseResult] = []
    case: tuple[str, int, int] | None = None
    began = 0
    cycles: dict[int, int] = {}

    def end() -> None:
        if case is None:
            return
        name, size_bytes, ranks = case
        if len(cycles) < ranks:
            what = f"{name} of {size_bytes} bytes"
            imported.refuse(began, f"{what} stopped midway: {len(cycles)} of {ranks} NPUs finished")
            return
        imported.take()
        reported = Reported(float(max(cycles.values())), "simulated", over_ranks="max")
        results.append(
            base.make_result(
                name, size_bytes, reported, ranks=ranks, dtype=options.dtype, device="unknown"
            )
        )

    for line, text in lines:
        if match := _CASE.search(text):
            end()
            cycles, began = {}, line
            case = _case(match, imported, line)
        elif finished := _FINISHED.search(text):
            number, ticks = base.whole(finished[1]), base.whole(finished[2])
            if case is None:
                imported.refuse(line, _NO_CASE)
            elif number is not None and ticks and number < case[2]:
                cycles[number] = ticks
            else:
                imported.refuse(line, f"NPU {finished[1]} of a case of {case[2]} ranks")
    end()
    if results:
        source = {"tool": "ASTRA-sim", "format": "text"}
        ranks = max(result.ranks for result in results)
        imported.runs.append(base.make_run(results, options, source, ranks=ranks))
        imported.warn("times of a simulator, the last NPU to finish; 1 cycle is taken for 1 ns")
    return imported


def _case(match: re.Match[str], imported: base.Imported, line: int) -> tuple[str, int, int] | None:
    name = base.collective_named(match[1])
    size_bytes, ranks = base.whole(match[2]), base.parse_ranks(match[3])
    if name is None or not size_bytes or ranks is None:
        imported.refuse(line, f"{match[1]} of {match[2]} bytes on {match[3]} ranks is no case")
        return None
    return name, size_bytes, ranks
