"""Traffic made by hand, whose figures can be computed in the head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchcoll.core.traffic import Group, Traffic, TrafficCall

MIB = 1 << 20
MS = 1_000_000
STEP_NS = 100 * MS


def call(collective: str = "all_reduce", size_bytes: int = MIB, **changed: Any) -> TrafficCall:
    """An asynchronous all_reduce of the group "0", which nobody timed."""
    fields: dict[str, Any] = {
        "bytes_in": size_bytes,
        "bytes_out": size_bytes,
        "dtype": "float32",
        "group": "0",
        "asynchronous": True,
    }
    return TrafficCall(collective, **(fields | changed))


def world(ranks: int, name: str = "0", backend: str = "gloo") -> dict[str, Group]:
    return {name: Group(name, tuple(range(ranks)), backend, "default_pg")}


def traffic(
    calls_of: Callable[[int], Iterable[TrafficCall]],
    ranks: int = 2,
    steps: int = 0,
    groups: Mapping[str, Group] | None = None,
    recorded: Iterable[int] | None = None,
) -> Traffic:
    """``calls_of(rank)``: the calls of a rank. Steps of 100 ms each follow one another."""
    recorded_ranks = list(range(ranks) if recorded is None else recorded)
    spans = [(i * STEP_NS, (i + 1) * STEP_NS) for i in range(steps)]
    return Traffic(
        ranks=ranks,
        calls={rank: list(calls_of(rank)) for rank in recorded_ranks},
        groups=dict(world(ranks) if groups is None else groups),
        steps={rank: list(spans) for rank in recorded_ranks} if steps else {},
    )


def ddp(rank: int) -> Iterable[TrafficCall]:
    """Four steps of DDP on two ranks: first one bucket of everything, then four.

    Each call takes 12 ms on rank 0 and 7 ms on rank 1, which comes 5 ms later. Calls begin every
    10 ms. A broadcast of 8 bytes that the program waits for ends the step: 0.2 ms; a barrier comes
    after the last step.
    """
    sequence = 0
    for step in range(4):
        buckets = [84] if step == 0 else [25, 25, 25, 9]
        for index, mib in enumerate(buckets):
            yield call(
                size_bytes=mib * MIB,
                sequence=sequence,
                step=step,
                start_ns=step * STEP_NS + 10 * MS * index + 5 * MS * rank,
                time_ns=(12 - 5 * rank) * MS,
            )
            sequence += 1
        yield call(
            "broadcast",
            8,
            dtype="int64",
            root=0,
            sequence=sequence,
            step=step,
            asynchronous=False,
            start_ns=step * STEP_NS + 60 * MS,
            time_ns=MS // 5,
        )
        sequence += 1
    yield call(
        "barrier", 0, dtype=None, sequence=sequence, asynchronous=False, start_ns=4 * STEP_NS
    )
