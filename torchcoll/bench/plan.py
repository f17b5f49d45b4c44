"""What a Spec will do, before anything starts: cases, bytes, memory and an upper bound of time.

Pure, without torch. The memory that is checked before a case runs is the memory planned here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchcoll.core.case import CHECK_CHUNK_BYTES, NATIVE, Case, NotRun, SizedCase, need_bytes
from torchcoll.core.collectives import COLLECTIVES, DTYPES
from torchcoll.core.spec import Spec
from torchcoll.core.units import counted, format_bytes, format_duration, format_size, whole_number

# The limits of bench/stopping.py (a test holds them together): nothing there may be imported here.
COLD_LIMIT_S = 5.0
COLD_CALLS = 20
PATIENCE = 10  # steady calls end, however few they are, after so many times the time limit
SLOW_CALL = 0.25  # of the time limit: with slower calls the least number of calls takes longer

WIDTH = 80
BITWISE = ("band", "bor", "bxor")


def impossible(case: Case, ranks: int) -> NotRun | None:
    """Why where no backend can run the case on so many ranks, else None."""
    entry = COLLECTIVES[case.collective]
    if ranks < entry.min_ranks:
        return NotRun("skipped", f"{entry.name} needs {entry.min_ranks} ranks or more")
    if entry.power_of_two and ranks & (ranks - 1):
        text = f"{entry.name} needs a power of two of ranks, here {ranks}"
        return NotRun("skipped", text)
    if case.implementation != NATIVE:
        from torchcoll.core.implementations import refusal

        reason = refusal(case)
        if reason or not case.by_backend:
            return NotRun("unsupported", reason) if reason else None
    elif case.in_place not in entry.placements:
        only = "in place" if entry.placements[0] else "out of place"
        return NotRun("unsupported", f"torch.distributed has {entry.name} {only} only")
    if case.op in BITWISE and case.dtype and DTYPES[case.dtype].kind == "float":
        return NotRun("unsupported", f"{case.op} needs whole numbers, not {case.dtype}")
    return None


def needs_bytes(sizing: SizedCase, check: bool) -> list[int]:
    """``need_bytes`` of every rank."""
    ranks, root = sizing.ranks, sizing.case.root
    if sizing.division:
        return [need_bytes(sizing, rank, check) for rank in range(ranks)]
    # All alike, but for the root.
    needs = [need_bytes(sizing, ranks - 1 if root == 0 else 0, check)] * ranks
    if root is not None:
        needs[root] = need_bytes(sizing, root, check)
    return needs


def case_limit_s(spec: Spec) -> float | None:
    """Upper bound of the cold and steady calls of a case; None where calls are counted, not timed.

    It holds while no call takes longer than ``slow_call_s``.
    """
    if spec.iters or spec.warmup or spec.cold > COLD_CALLS:
        return None
    return COLD_LIMIT_S + (0 if spec.iters == 0 else PATIENCE * spec.max_time_s)


def slow_call_s(spec: Spec) -> float:
    """Beyond so long a call, the least number of calls overruns ``case_limit_s``."""
    cold = COLD_LIMIT_S / COLD_CALLS
    return cold if spec.iters == 0 else min(cold, SLOW_CALL * spec.max_time_s)


@dataclass(frozen=True)
class PlanRow:
    """One case. ``need_bytes`` is that of the rank that needs most, ``host_bytes`` the sum over
    the ranks of the host that needs most; nothing is allocated where ``status`` is not empty.
    """

    case: Case
    count: int
    size_bytes: int
    bytes_in: int
    bytes_out: int
    need_bytes: int
    host_bytes: int
    limit_s: float | None
    status: str = ""  # skipped or unsupported, where that is known without trying
    reason: str = ""


@dataclass(frozen=True)
class SweepPlan:
    """The rows in the order in which they run, and what they come to.

    Memory is that of the largest case, for buffers are freed in between; ``limit_s`` is the sum.
    """

    spec: Spec
    ranks: int
    ranks_per_host: int
    rows: tuple[PlanRow, ...]
    need_bytes: int
    host_bytes: int
    limit_s: float | None


def plan(spec: Spec, ranks: int, ranks_per_host: int | None = None) -> SweepPlan:
    """The plan for ``ranks`` ranks in blocks of ``ranks_per_host`` (None: all on one host).

    Raises UsageError as ``Spec.cases`` does, and for less than one rank.
    """
    per_host = ranks if ranks_per_host is None else min(ranks, ranks_per_host)
    for what, value in (("ranks", ranks), ("ranks per host", per_host)):
        whole_number(value, what, 1)
    rows = tuple(_row(spec, sizing, per_host) for sizing in spec.sizings(ranks))
    limits = [row.limit_s for row in rows]
    return SweepPlan(
        spec,
        ranks,
        per_host,
        rows,
        max((row.need_bytes for row in rows), default=0),
        max((row.host_bytes for row in rows), default=0),
        None if None in limits else sum(limit for limit in limits if limit is not None),
    )


def _row(spec: Spec, sizing: SizedCase, per_host: int) -> PlanRow:
    case, ranks = sizing.case, sizing.ranks
    sizes = (case, sizing.count, sizing.size_bytes, sizing.bytes_in, sizing.bytes_out)
    refusal = impossible(case, ranks)
    if refusal:
        return PlanRow(*sizes, 0, 0, 0.0, *refusal)
    needs = needs_bytes(sizing, spec.check)
    host = max(sum(needs[first : first + per_host]) for first in range(0, ranks, per_host))
    return PlanRow(*sizes, max(needs), host, case_limit_s(spec))


def plan_lines(plan: SweepPlan) -> list[str]:
    """The plan as text, ASCII, 80 columns: what is assumed, a line a case, and the totals."""
    lines = [line for text in _assumptions(plan) for line in _wrapped(text)]
    groups: dict[str, list[PlanRow]] = {}
    for row in plan.rows:
        groups.setdefault(_group(row.case), []).append(row)
    table = _table(plan.rows, format_size)
    if len(table[0]) > WIDTH:  # odd numbers of terabytes
        table = _table(plan.rows, format_bytes)
    text = dict(zip(plan.rows, table[1:], strict=True))
    lines += ["", table[0]]
    for name, rows in groups.items():
        lines += [name, *(text[row] for row in rows)]
        for reason in dict.fromkeys(f"{row.status}: {row.reason}" for row in rows if row.status):
            lines += _wrapped(reason)
    return [*lines, "", *_wrapped(_total(plan))]


_HEAD = ("size", "actual", "in", "out", "a rank", "a host", "at most")


def _table(rows: Sequence[PlanRow], in_out: Callable[[int], str]) -> list[str]:
    """The heading and a line for each row."""
    cells = [_HEAD, *(_cells(row, in_out) for row in rows)]
    if all(row.size_bytes == row.case.size_bytes for row in rows):
        cells = [(size, *rest) for size, _, *rest in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    ]


def _cells(row: PlanRow, in_out: Callable[[int], str]) -> tuple[str, ...]:
    sizes = (format_size(row.case.size_bytes), format_size(row.size_bytes))
    sides = (in_out(row.bytes_in), in_out(row.bytes_out))
    if row.status:
        return (*sizes, *sides, "-", "-", row.status)
    memory = (format_bytes(row.need_bytes), format_bytes(row.host_bytes))
    return (*sizes, *sides, *memory, format_duration(row.limit_s))


def _group(case: Case) -> str:
    root = None if case.root is None else f"root {case.root}"
    place = ("in place" if case.in_place else "out of place") if case.dtype else None
    return "  ".join(w for w in (case.collective, case.dtype, case.op, root, place) if w)


def _assumptions(plan: SweepPlan) -> list[str]:
    spec = plan.spec
    first = plan.rows[0].case if plan.rows else None
    ranks = counted(plan.ranks, "rank")
    ranks += (
        " on one host" if plan.ranks_per_host == plan.ranks else f", {plan.ranks_per_host} a host"
    )
    lines = ["Dry run: nothing was started, and no device was looked for."]
    if first:
        calls = f"{first.mode} calls"
        calls += f", {spec.coalesce} in a group" if spec.coalesce > 1 else ""
        lines.append(f"Assumed: {ranks}, {first.backend} on {first.device}, {calls}.")
    if spec.order != "size":
        lines.append(f"Order: shown by collective; they run {spec.order}, seed {spec.seed}.")
    held = "buffers (shared by the calls of a group)" if spec.coalesce > 1 else "buffers"
    if spec.buffer_reuse == "rotate":
        held += " of the size of the largest, which the calls walk through,"
    if spec.check and any(row.case.verifiable for row in plan.rows):
        held += f" and at most {format_bytes(CHECK_CHUNK_BYTES)} to verify in"
    uncounted = "what the communication library takes"
    if spec.buffer_reuse == "flush":
        uncounted += " and what is written to flush the caches"
    lines.append(f"Memory: {held}, without {uncounted}.")
    if case_limit_s(spec) is None:
        counts = [f"{spec.cold} cold"] if spec.cold > COLD_CALLS else []
        counts += [f"{spec.warmup} warm-up"] if spec.warmup else []
        counts += [f"{spec.iters} steady"] if spec.iters else []
        lines.append(
            f"Time: no bound. {' and '.join(counts)} calls a case take as long as they take; "
            f"{spec.timeout_s:g} s without progress (--timeout) end the run."
        )
    else:
        steady = f" and {format_duration(PATIENCE * spec.max_time_s)} of steady"
        lines.append(
            f"Time: at most {format_duration(COLD_LIMIT_S)} of cold"
            f"{'' if spec.iters == 0 else steady} calls a case, unless a call takes over "
            f"{slow_call_s(spec):.3g} s. Start-up and verification come on top."
        )
    return lines


def _total(plan: SweepPlan) -> str:
    cases = counted(len(plan.rows), "case")
    refused = sum(1 for row in plan.rows if row.status)
    if refused:
        cases += f" ({refused} cannot run)"
    time = (
        "no bound in time" if plan.limit_s is None else f"at most {format_duration(plan.limit_s)}"
    )
    return (
        f"Total: {cases}, {time}; the largest needs {format_bytes(plan.need_bytes)} a rank, "
        f"{format_bytes(plan.host_bytes)} a host."
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
