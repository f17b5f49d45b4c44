"""Every call on every rank as a Chrome trace, which Perfetto and chrome://tracing show.

A result file keeps durations of all calls, and when calls began only as far as the format tells:
the cold ones on each rank's own monotonic clock, the steady ones by the start of their batch on
rank 0. What lies between is reckoned, and every event says which it is (``start`` in its args).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchcoll.core.errors import UnusableError, one_line
from torchcoll.core.result import CaseResult, Matrix, Run
from torchcoll.core.summary import batches_of, default_clock, median
from torchcoll.report.perfetto import complete_event, named_track, trace_document
from torchcoll.report.sample_views import rank_of

_US = 1e3
RECORDED = "recorded"
_RECKONED = "reckoned: the batch's start on rank 0 and the calls before it, without the barriers"
_ORDER = "in order only: the file does not tell when"


def trace_text(runs: Sequence[Run]) -> str:
    """A process a rank. Raises UsageError where no run has samples."""
    events: list[dict[str, Any]] = []
    notes: list[str] = []
    for number, run in enumerate(runs):
        events_of_run, notes_of_run = _events(run, number)
        events += events_of_run
        notes += notes_of_run
    if not any(event["ph"] == "X" for event in events):
        raise UnusableError("trace", "no call", "result files with samples")
    return trace_document(events, notes)


def _events(run: Run, number: int) -> tuple[list[dict[str, Any]], list[str]]:
    hosts = [one_line(m.get("host") or "?") for m in run.members]
    offsets, note = clock_offsets(run, hosts)
    starts = [r.start_ns for r in run.results if r.start_ns is not None]
    zero = min(starts, default=0)
    events: list[dict[str, Any]] = []
    several = one_line(run.path or run.header.get("run_id") or number)
    ranks: set[int] = set()  # with a call: a file may claim a million others
    at = 0
    for result in run.results:
        latest = at
        for event in _case_events(result, zero, at, offsets):
            latest = max(latest, int((event["ts"] + event["dur"]) * _US))
            ranks.add(event["pid"])
            event["pid"] += number * 100_000
            events.append(event)
        at = latest
    tracks = []
    for rank in sorted(ranks):
        name = f"rank {rank}" + (f" on {hosts[rank]}" if rank < len(hosts) else "")
        process = number * 100_000 + rank
        tracks.append(named_track("process_name", process, f"{name}, {several}"))
    return tracks + events, [f"{several}: {note}"]


def clock_offsets(run: Run, hosts: Sequence[str]) -> tuple[list[int], str]:
    """What to add to each rank's stamps to have rank 0's, in ns, and how good that is, in words.

    Ranks of one host share their monotonic clock. Those of others are put to rank 0's by the calls
    that were aligned: the median of the differences of their starts; the error is their spread and
    whatever the alignment itself is off by, at most the longest of these calls.
    """
    first = hosts[0] if hosts else "?"
    remote_ranks = [rank for rank in range(run.ranks) if rank < len(hosts) and hosts[rank] != first]
    if not remote_ranks:
        return [0] * run.ranks, "one host, one monotonic clock: offsets 0"
    aligned = [
        r for r in run.results
        if len(r.cold_start_ns) == run.ranks and not r.members and all(r.cold_start_ns)
    ]  # fmt: skip
    offsets, errors = [0] * run.ranks, [0.0]
    for rank in remote_ranks:
        gaps = []
        for result in aligned:
            starts = zip(result.cold_start_ns[0], result.cold_start_ns[rank], strict=False)
            # The first call of a communicator has met at the store alone, behind no barrier.
            behind_barriers = list(starts)[1 if result.ordinal == 0 else 0 :]
            gaps += [first_rank - this_rank for first_rank, this_rank in behind_barriers]
        gaps.sort()
        if not gaps:
            return [0] * run.ranks, (
                f"{len(set(hosts))} hosts whose clocks the file cannot align: each host's events "
                "are right among themselves only"
            )
        offsets[rank] = int(median([float(gap) for gap in gaps]))
        errors.append((gaps[-1] - gaps[0]) / 2)
    return offsets, (
        f"{len(set(hosts))} hosts, aligned by the starts of calls behind a barrier (median of each "
        f"rank's differences): within {max(errors) / 1e3:.1f} us as far as these starts agree, and "
        "never better than the barrier"
    )


def _case_events(
    result: CaseResult, zero: int, after: int, offsets: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """after: where the events before it end, for files without stamps; ns from the first case."""
    case = result.case
    name = one_line(case.describe())
    arguments = {
        "collective": case.collective,
        "size_bytes": result.size_bytes,
        "backend": case.backend,
    }

    def event(
        index: int, kind: str, call: int, start: float, ns: float, how: str
    ) -> dict[str, Any]:
        args = {**arguments, "kind": kind, "call": call, "start": how}
        return complete_event(name, kind, rank_of(result, index), start, ns, args)

    at = result.start_ns - zero if result.start_ns is not None else after
    for index, (durations, begun) in enumerate(_cold_calls(result)):
        rank = rank_of(result, index)
        shift = offsets[rank] if rank < len(offsets) else 0
        start: float = at
        for call, ns in enumerate(durations):
            recorded = begun[call] + shift - zero if call < len(begun) else None
            start = recorded if recorded is not None else start
            yield event(index, "cold", call, start, ns, _ORDER if recorded is None else RECORDED)
            start += ns
    first = max(map(len, result.cold_ns), default=0)
    if result.batch_start_ns:
        yield from _steady_events(result, zero, first, event)
        return
    ends = [sum(times) for times in result.cold_ns]
    at += max(ends, default=0)
    for calls in (result.warmup_ns, result.time_ns.get(default_clock(result) or "", [])):
        for call, times in enumerate(zip(*calls, strict=False)):
            for index, ns in enumerate(times):
                yield event(index, "steady", first + call, at, ns, _ORDER)
            at += max(times)


def _cold_calls(result: CaseResult) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    for index, durations in enumerate(result.cold_ns):
        starts = result.cold_start_ns
        yield durations, starts[index] if index < len(starts) else []


def _steady_events(
    result: CaseResult, zero: int, first: int, event: Any
) -> Iterator[dict[str, Any]]:
    """Batch by batch: of each call all ranks begin when the slowest of the call before has ended,
    for they meet at a barrier, or where none is, each when its own call before has ended.
    """
    samples: Matrix = result.time_ns.get(default_clock(result) or "", [])
    batches = batches_of(result, samples)
    leads = max(map(len, result.ramp_up_ns), default=0) // max(1, len(batches))
    number = first
    meets = result.case.mode == "synchronized"
    starts = result.batch_start_ns
    for batch, (low, high) in enumerate(batches):
        if batch >= len(starts):
            return
        at = [float(starts[batch] - zero)] * len(samples)
        lead = [times[batch * leads : (batch + 1) * leads] for times in result.ramp_up_ns]
        for kind, rows in (("ramp_up", lead), ("steady", [times[low:high] for times in samples])):
            for call in zip(*rows, strict=False):
                for index, ns in enumerate(call):
                    whole = ns * (result.calls_per_sample if kind == "steady" else 1)
                    yield event(index, kind, number, at[index], whole, _RECKONED)
                    at[index] += whole
                if meets:
                    at = [max(at)] * len(at)
                number += 1
