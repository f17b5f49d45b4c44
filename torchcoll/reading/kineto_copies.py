"""FSDP2's copies into and out of its flat buffers, in a trace of torch.profiler.

FSDP2 copies the shards of a unit into one buffer before its all_gather, the gathered buffer into
the parameters after it, and the gradients into one buffer before the reduce_scatter
(torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from torchcoll.core.intervals import Span
from torchcoll.reading.kineto_events import ON_DEVICE, Event

_OPERATORS = ("fsdp::all_gather_copy_in", "fsdp::split_with_sizes_copy", "fsdp::chunk_cat")


def find_copies(events: Sequence[Event]) -> list[Span]:
    """Returns when the copies ran: on the device their kernels, on a CPU the operators.

    - events: of a trace, by start.
    """
    copies: dict[object, list[Event]] = defaultdict(list)  # by thread
    for event in events:
        if event.category == "cpu_op" and event.name in _OPERATORS:
            copies[event.thread].append(event)
    if not copies:
        return []
    starts = {thread: [copy.start for copy in ran] for thread, ran in copies.items()}
    ids = set()  # of the operators in them, which a kernel has as its External id
    for event in events:
        if event.category != "cpu_op" or event.thread not in copies:
            continue
        index = bisect_right(starts[event.thread], event.start) - 1
        if index >= 0 and event.end <= copies[event.thread][index].end:
            ids.add(event.id)
    kernels = [e for e in events if e.category in ON_DEVICE]
    if kernels:
        return [(e.start, e.end) for e in kernels if e.id is not None and e.id in ids]
    return [(copy.start, copy.end) for ran in copies.values() for copy in ran]
