"""What a Spec needs before anything starts: the plan of a dry run, and whether a case may begin, by
the same memory. Without torch.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchcoll.core.case import NATIVE, Case, NotRun, SizedCase, fingerprint, need_bytes
from torchcoll.core.collectives import COLLECTIVES, DTYPES
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import Spec
from torchcoll.core.units import counted, format_bytes, format_duration, format_size, whole_number

if TYPE_CHECKING:
    from torchcoll.bench.control import Control

# The limits of bench/stopping.py (a test holds them together): nothing there may be imported here.
COLD_LIMIT_S = 5.0
COLD_CALLS = 20
PATIENCE = 10  # steady calls end, however few they are, after so many times the time limit
SLOW_CALL = 0.25  # of the time limit: with slower calls the least number of calls takes longer

FREE_SHARE = 0.8  # of the free memory of a host; the rest is for other processes
_LONG = 60  # characters of a value
# Each rank may have made its Spec of what it sent itself.
_SAME_TRAFFIC = (
    "The ranks sent different calls: save the traffic of each, and measure all of it with "
    "torchcoll.suite --traffic FOLDER."
)

WIDTH = 80
BITWISE = ("band", "bor", "bxor")


def impossible(case: Case, ranks: int) -> NotRun | None:
    """Why no backend can run the case on so many ranks; None if one may."""
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


def odd_ranks(answers: Sequence[str]) -> list[int]:
    """The ranks whose answer is not the most frequent one."""
    usual = Counter(answers).most_common(1)[0][0]
    return [rank for rank, answer in enumerate(answers) if answer != usual]


def arguments_differ(
    control: Control, hellos: Sequence[Mapping[str, str]], spec: Spec
) -> UsageError:
    """The error of ranks with different arguments, from the hellos on rank 0. Collective."""
    specs: list[dict[str, list[str]]] = []
    if control.decide(not any(hello["argv"] for hello in hellos)):
        fields = spec.to_json()
        texts = {name: json.dumps(value) for name, value in fields.items()}
        texts["points"] = f"{len(spec.points)} calls"
        short = {
            name: text if len(text) <= _LONG else f"{text[:_LONG]}..."
            for name, text in texts.items()
        }
        specs = control.gather(
            {name: [fingerprint(value), short[name]] for name, value in fields.items()}
        )
    refusal: list[str] = []
    if hellos:
        odd = odd_ranks([hello["asked"] for hello in hellos])
        others = {*odd}
        like = next(rank for rank in range(len(hellos)) if rank not in others)
        argv, expected = hellos[odd[0]]["argv"], hellos[like]["argv"]
        if specs:
            argv, expected = (
                ", ".join(
                    f"{name} {specs[rank].get(name, ['', 'unknown'])[1]}"
                    for name in specs[like]
                    if specs[odd[0]].get(name) != specs[like][name]
                )
                or "another Spec"
                for rank in (odd[0], like)
            )
        refusal = [
            f"arguments of {control.names(odd)}",
            argv or "no arguments",
            f"as on {control.name(like)}: {expected or 'no arguments'}",
        ]
    what, value, expected = control.decide(refusal)
    action = _SAME_TRAFFIC if spec.points else "Start all ranks with the same arguments."
    return UsageError(what, value, expected, action)


def admit(
    sizing: SizedCase,
    subgroups: Sequence[Sequence[int]],
    answers: Sequence[Mapping[str, Any]],
    check: bool,
    control: Control,
) -> tuple[list[str] | None, NotRun | None]:
    """(arguments of a UsageError, None), (None, why not), or two Nones to run the case. answers: of
    each rank ``case`` (a hash), ``where`` and ``free`` (bytes).
    """
    hashes = [answer["case"] for answer in answers]
    if len(set(hashes)) > 1:
        refusal = [
            f"case on {control.names(odd_ranks(hashes))}",
            "another case than the other ranks",
            f"the same on all ranks (rank 0: {sizing.case.describe()})",
            "Start all ranks with the same arguments, files and torchcoll version.",
        ]
        return refusal, None
    for ranks in sorted({len(subgroup) for subgroup in subgroups}):
        if refused := impossible(sizing.case, ranks):
            return None, refused
    needs = needs_bytes(sizing, check)
    # With the fake backend this process is the only one of all ranks.
    of_rank = {
        rank: needs[group_rank]
        for subgroup in subgroups
        for group_rank, rank in enumerate(subgroup)
        if rank < len(answers)
    }
    text = lacks_memory(of_rank, answers)
    return None, NotRun("skipped", text) if text else None


def lacks_memory(needs: Mapping[int, int], answers: Sequence[Mapping[str, Any]]) -> str:
    """Why the ranks together need more bytes (by rank) than they may use; '' if there is enough."""
    ranks_at: defaultdict[str, list[int]] = defaultdict(list)
    for rank in needs:
        ranks_at[answers[rank]["where"]].append(rank)
    for where, ranks in ranks_at.items():
        need = sum(needs[rank] for rank in ranks)
        free = min(answers[rank]["free"] for rank in ranks)
        if need > FREE_SHARE * free:
            return (
                f"needs {format_bytes(need)} ({need} bytes, {len(ranks)} ranks) on {where}, "
                f"80 % of the free {format_bytes(free)} ({free} bytes) is less"
            )
    return ""


def case_limit_s(spec: Spec) -> float | None:
    """Most seconds of a case while no call takes over ``slow_call_s``; None if calls count."""
    if spec.iters or spec.warmup or spec.cold > COLD_CALLS:
        return None
    return COLD_LIMIT_S + (0 if spec.iters == 0 else PATIENCE * spec.max_time_s)


def slow_call_s(spec: Spec) -> float:
    """If calls take longer than this, the least number of them exceeds ``case_limit_s``."""
    cold = COLD_LIMIT_S / COLD_CALLS
    return cold if spec.iters == 0 else min(cold, SLOW_CALL * spec.max_time_s)


@dataclass(frozen=True)
class PlanRow:
    """One case. need_bytes: of the rank that needs most. host_bytes: of all ranks, on one host.
    status, reason: why nothing is allocated, where that is known without trying.
    """

    case: Case
    count: int
    size_bytes: int
    bytes_in: int
    bytes_out: int
    need_bytes: int
    host_bytes: int
    limit_s: float | None
    status: str = ""
    reason: str = ""


def plan(spec: Spec, ranks: int) -> list[PlanRow]:
    """The cases on one host in the order in which they run. Raises UsageError."""
    whole_number(ranks, "ranks", 1)
    return [_row(spec, sizing) for sizing in spec.sizings(ranks)]


def _row(spec: Spec, sizing: SizedCase) -> PlanRow:
    case = sizing.case
    sizes = (case, sizing.count, sizing.size_bytes, sizing.bytes_in, sizing.bytes_out)
    if refusal := impossible(case, sizing.ranks):
        return PlanRow(*sizes, 0, 0, 0.0, *refusal)
    needs = needs_bytes(sizing, spec.check)
    return PlanRow(*sizes, max(needs), sum(needs), case_limit_s(spec))


def plan_lines(spec: Spec, ranks: int) -> list[str]:
    """The plan as text, ASCII, 80 columns: what is assumed, a line a case, and the totals."""
    rows = plan(spec, ranks)
    lines = [line for text in _assumptions(spec, ranks, rows) for line in _wrapped(text)]
    groups: dict[str, list[PlanRow]] = {}
    for row in rows:
        groups.setdefault(_group(row.case), []).append(row)
    table = _table(rows, format_size)
    if len(table[0]) > WIDTH:  # odd numbers of terabytes
        table = _table(rows, format_bytes)
    text = dict(zip(rows, table[1:], strict=True))
    lines += ["", table[0]]
    for name, group in groups.items():
        lines += [name, *(text[row] for row in group)]
        for reason in dict.fromkeys(f"{row.status}: {row.reason}" for row in group if row.status):
            lines += _wrapped(reason)
    return [*lines, "", *_wrapped(_total(rows))]


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


def _assumptions(spec: Spec, ranks: int, rows: Sequence[PlanRow]) -> list[str]:
    lines = ["Dry run: nothing was started, and no device was looked for."]
    if rows:
        first, where = rows[0].case, f"{counted(ranks, 'rank')} on one host"
        lines.append(f"Assumed: {where}, {first.backend} on {first.device}, {first.mode} calls.")
    held = "buffers and verification" if spec.check else "buffers"
    lines.append(f"Memory: {held}, without what the communication library takes.")
    if case_limit_s(spec) is None:
        lines.append("Time: no bound, as calls are counted. --timeout ends a run without progress.")
    else:
        steady = f" and {format_duration(PATIENCE * spec.max_time_s)} of steady"
        lines.append(
            f"Time: at most {format_duration(COLD_LIMIT_S)} of cold"
            f"{'' if spec.iters == 0 else steady} calls a case, unless a call takes over "
            f"{slow_call_s(spec):.3g} s."
        )
    return lines


def _total(rows: Sequence[PlanRow]) -> str:
    cases = counted(len(rows), "case")
    refused = sum(1 for row in rows if row.status)
    if refused:
        cases += f" ({refused} cannot run)"
    limits = [row.limit_s for row in rows if row.limit_s is not None]
    bounded = len(limits) == len(rows)
    time = f"at most {format_duration(sum(limits))}" if bounded else "no bound in time"
    # Buffers are freed between cases.
    need = format_bytes(max((row.need_bytes for row in rows), default=0))
    host = format_bytes(max((row.host_bytes for row in rows), default=0))
    return f"Total: {cases}, {time}; the largest needs {need} a rank, {host} a host."


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
