"""Does verification see what a faulty library would leave?

Real collectives on the real device; on the last rank the output of each call is changed afterwards.
Once nothing is changed: then nothing may be reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.machine.launcher import Launch
from torchcoll.parts.proof.probe import Evidence, ProbeOptions, run_cases

SIZE_BYTES = 12_288  # whole blocks of every type for any number of ranks that divides it, else less
TYPES = ("float32", "bfloat16", "int32")
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
# (output, output before the call): what a fault does to the output, in place.
Fault = Callable[[Any, Any], object]


def measure(torch: Any, launch: Launch, options: ProbeOptions) -> Evidence:
    """On rank 0, for each fault and case: what verification said."""

    def one_bit(output: Any, before: Any) -> None:
        bits = output.view(getattr(torch, _BITS[output.element_size()]))
        bits[len(bits) // 3] ^= 1

    def stale(output: Any, before: Any) -> None:
        """As if a part of the output had not been written."""
        output[-1:] = before[-1:]

    def shifted(output: Any, before: Any) -> None:
        output.copy_(output.roll(1))

    faults: dict[str, Fault | None] = {
        "none": None,
        "one bit": one_bit,
        "not written": stale,
        "shifted": shifted,
    }
    # The output of these has data of other ranks on every rank, the last one too.
    names = [
        name
        for name, entry in COLLECTIVES.items()
        if entry.has_data and not entry.has_root and not entry.has_splits
        if not (entry.power_of_two and launch.ranks & (launch.ranks - 1))
    ]
    spec = options.spec(
        collectives=names,
        dtypes=TYPES,
        sizes=(SIZE_BYTES,),
        mode="synchronized",
        iters=1,
        cold=1,
    )
    seen = []
    for fault, change in faults.items():
        entries = dict(COLLECTIVES)
        if change and launch.rank == launch.ranks - 1:
            for name in names:
                COLLECTIVES[name] = _faulty(entries[name], change)
        try:
            result = run_cases(torch, spec)
        finally:
            COLLECTIVES.update(entries)
        for case in result.results if result else ():
            seen.append(
                {
                    "fault": fault,
                    "case": f"{case.case.collective} {case.case.dtype}",
                    "status": case.status,
                    "wrong": case.verification.wrong if case.verification else None,
                    "reason": case.reason,
                }
            )
    return {"ranks": launch.ranks, "seen": seen} if launch.rank == 0 else None


def _faulty(entry: Any, change: Fault) -> Any:
    """The collective, the output of which is changed after each call."""

    def prepare(dist: Any, layout: Any, send: Any, recv: Any, op: Any, group: Any) -> Any:
        call = entry.prepare(dist, layout, send, recv, op, group)

        def faulty_call() -> object:
            before = recv.clone()
            work = call()
            change(recv, before)
            return work

        return faulty_call

    return dataclasses.replace(entry, prepare=prepare)
