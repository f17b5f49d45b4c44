"""Shows a plan of a training: the answer, a row per group and collective, scaling, and a measured
step beside it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import (
    counted,
    format_bytes,
    format_digits,
    format_ns,
    plural,
)
from torchcoll.parts.curves.predictor import MORE_DATA, Ends, sum_of
from torchcoll.parts.curves.published_machine import LARGEST_MEMORY
from torchcoll.parts.training.measured_step import (
    MeasuredStep,
    describe_unmatched,
    largest_cause,
)
from torchcoll.parts.training.projection import (
    FITS,
    GAIN,
    HALF,
    STRONG,
    TIGHT,
    UNSURE,
    WEAK,
    Plan,
    PlannedRow,
    PlannedStep,
)
from torchcoll.parts.training.step_program import Memory
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.notes import MOST_NOTES, first_notes

_CAUSES = (
    "of the calls that are in both: slower: on the rank that came last, by contention or by the "
    "error of the machine's law; late: "
    "waiting for the last rank; gaps: neither calls nor computation"
)


def _causes(measured: MeasuredStep) -> Grid:
    planned = measured.planned_ns[0]
    rows: list[tuple[str, float | None]] = [
        ("planned", planned),
        ("+ slower", measured.slower_ns),
        ("+ late ranks", measured.late_ns),
        ("+ FSDP2's copies", measured.copies_ns),
        ("= measured", measured.correction.factor[0] * planned),
        ("gaps", measured.gaps_ns),
    ]
    steps = counted(measured.steps, "steady step")
    layout = f"{measured.layout}, " if measured.layout else ""
    return make_grid(
        [
            (Head("communication", left=True), lambda row: row[0]),
            (Head("a step"), lambda row: "unknown" if row[1] is None else format_signed(row[1])),
            (
                Head("of planned"),
                lambda row: "" if row[1] is None else f"{row[1] / planned:.2f}",
            ),
        ],
        rows,
        above=[
            one_line(
                f"measured by {measured.capture}: {layout}"
                f"{counted(measured.ranks, 'rank')}, {steps}"
            )
        ],
        below=[_CAUSES, *map(one_line, describe_unmatched(measured))],
    )


def format_signed(ns: float) -> str:
    return f"-{format_ns(-ns, 3)}" if ns < 0 else format_ns(ns, 3)


def correction_text(measured: MeasuredStep) -> str:
    """Returns a clause for the answer."""
    value, low, high = measured.correction.factor
    cause = largest_cause(measured)
    text = f"the measured step communicates {format_digits(value)} times as long as planned"
    text += f" ({format_digits(low)} to {format_digits(high)})"
    return f"{text}, mostly by {cause}" if cause else text


def measured_object(measured: MeasuredStep) -> dict[str, Any]:
    """Returns the measured step as an object of JSON."""

    def ends(values: Ends) -> dict[str, float]:
        return dict(zip(("value", "low", "high"), values, strict=True))

    correction = measured.correction
    fields = {
        field.name: getattr(measured, field.name)
        for field in dataclasses.fields(measured)
        if field.name not in ("matched", "unmatched", "planned_ns", "correction", "notes")
    }
    return {
        **fields,
        "planned": ends(measured.planned_ns),
        "slower_ns": measured.slower_ns,
        "factor": ends(correction.factor),
        "others": ends(correction.others),
        "factors": {name: ends(values) for name, values in correction.factors.items()},
        "gap_ns": correction.gap_ns,
        "blocking": sorted(correction.blocking),
        "matched": [dataclasses.asdict(row) for row in measured.matched],
        "unmatched": [
            {"where": where, **kind._asdict(), "calls": calls}
            for where, kinds in measured.unmatched.items()
            for kind, calls in kinds.items()
        ],
    }


_LEGEND = "comm: all calls of a rank in a step, one after another; low and high: 90 % intervals"
_EXPOSED = "exposed: the time of a step that is not computation"
_SENT_LEGEND = "sent: by each rank in a step, with the algorithm of a ring"
_SCALINGS = {
    WEAK: "each rank computes as much as before; it stops where less than "
    f"{100 * HALF:.0f} % of a step computes",
    STRONG: "all ranks together compute as much as before; it stops where twice the ranks are less "
    f"than {GAIN:g} times as fast",
}


def show_training_plans(
    plans: Sequence[Plan],
    format: str = "table",
    file: TextIO | None = None,
    verbose: bool = False,
) -> None:
    """Prints the plans; verbose: with all notes. Raises UsageError for an unknown format."""
    print_results([_forms(plan, verbose) for plan in plans], format, file)


def _forms(projection: Plan, verbose: bool) -> Forms:
    source = f", by {os.path.basename(projection.machine)}" if projection.machine else ""
    grids = [Grid([], [], above=[one_line(f"{projection.what}{source}")])]
    grids.append(_rows(projection.step))
    if projection.step.memory:
        grids.append(_memory(projection.step.memory))
    for kind in (WEAK, STRONG):
        if steps := getattr(projection, kind):
            grids.append(_over_ranks(kind, steps))
    measured, before = projection.measured, projection.uncorrected
    if measured is not None:
        grids.append(_causes(measured))
    all_notes = [*projection.notes, *(measured.notes if measured else ())]
    # One more note takes no more lines than the hint at it.
    every = verbose or len(all_notes) == MOST_NOTES + 1
    shown = map(one_line, first_notes(all_notes, every))
    notes = Grid([], [], below=list(shown), answer=plan_answer(projection))
    # csv has the rows of the step and the steps over ranks; its column ``table`` tells them apart.
    rows = [_row(row) for row in projection.step.rows]
    over_ranks = {
        kind: [_step(step) for step in getattr(projection, kind)] for kind in (WEAK, STRONG)
    }
    records = [{"table": "calls", **row} for row in rows]
    records += [{"table": kind, **step} for kind, steps in over_ranks.items() for step in steps]
    document = {
        "schema": "torchcoll-plan/1",
        "what": projection.what,
        "machine": projection.machine or None,
        "compute_ns": projection.compute_ns,
        "step": _step(projection.step),
        "memory": vars(projection.step.memory) if projection.step.memory else None,
        "rows": rows,
        "weak": over_ranks[WEAK],
        "strong": over_ranks[STRONG],
        "stops": {
            kind: broken[1].ranks if (broken := projection.scaling_break(kind)) else None
            for kind in (WEAK, STRONG)
        },
        "measured": measured_object(measured) if measured else None,
        "uncorrected": _step(before) if before else None,
        "notes": all_notes,
    }
    return Forms([*grids, notes], document, records)


def plan_answer(projection: Plan) -> Answer:
    step = projection.step
    degrees = " x ".join(f"{name}={n}" for name, n in step.degrees.items())
    setup = f"{counted(step.ranks, 'rank')}{f' ({degrees})' if degrees else ''}"
    calls = f"{step.calls:,} {plural(step.calls, 'call')}"
    sent = f"{format_gigabytes(step.sent_bytes)} per rank in {calls}"
    if step.comm_ns is None:
        text = f"{projection.subject or 'a step'} on {setup} sends {sent} per step"
        memory = f"; {format_gigabytes(step.memory.total)} of memory" if step.memory else ""
        if step.memory and step.memory.total > (1 + UNSURE) * LARGEST_MEMORY:
            largest = format_gigabytes(LARGEST_MEMORY)
            memory += f", more than any GPU that torchcoll knows has ({largest})"
        return Answer(one_line(text + memory))
    of_subject = f" of {projection.subject}" if projection.subject else ""
    if step.only_a_guess:
        low, high = (format_ns(end, 3) for end in step.comm_ns[1:])
        text = f"how long a step{of_subject} on {setup} communicates is only a guess"
        return Answer(one_line(f"{text}, {low} to {high}. {MORE_DATA}"), "doubt")
    texts: list[str] = []
    comm = f"takes {_ends(step.comm_ns)} on {os.path.basename(projection.machine)}"
    if step.exposed_ns and step.step_ns and projection.compute_ns:
        parts = [f"{format_ns(projection.compute_ns, 3)} of computation"]
        if step.idle_ns:
            parts.append(f"{format_ns(step.idle_ns, 3)} of waiting for other pipeline stages")
        hidden = f"{_ends(step.exposed_ns)} of communication that computation does not hide"
        text = (
            f"a step{of_subject} on {setup} takes {format_ns(step.step_ns[0], 3)}: "
            f"{', '.join(parts)} and {hidden}"
        )
        if step.compute is not None and step.compute.assumed:
            text = text.replace(format_ns(step.step_ns[0], 3), _ends(step.step_ns), 1)
        if step.mfu is not None and step.tokens_per_s is not None:
            texts.append(f"{100 * step.mfu:.0f} % MFU, {step.tokens_per_s:,.0f} tokens/s a GPU")
        texts.append(f"all communication ({sent}) {comm}")
    else:
        text = f"the communication of a step{of_subject} on {setup} ({sent}) {comm}"
    if projection.measured is not None:
        texts.append(correction_text(projection.measured))
    kinds = [kind for kind in (WEAK, STRONG) if getattr(projection, kind)]
    level, limit = "", projection.memory_bytes
    if step.memory and limit and projection.fits != FITS:
        size = f"{format_gigabytes(step.memory.total)} of memory on a GPU of"
        size += f" {format_gigabytes(limit)}"
        if projection.fits == TIGHT:
            texts.insert(0, f"it is tight: {size}, and a plan may be off by {100 * UNSURE:.0f} %")
        else:
            if projection.smaller:
                name, least = projection.smaller
                size += f"; {name} needs {format_gigabytes(least)}{', tight' * (least > limit)}"
            texts.insert(0, f"if it did: {text}")
            text = f"a step{of_subject} on {setup} does not fit: {size}; --find has others"
            level = "doubt"
    if kinds and projection.compute_ns is None:
        texts.append(f"{' and '.join(kinds)} scaling: not known without --step-ms")
    elif kinds:
        level = "doubt" if level or any(map(projection.scaling_break, kinds)) else "good"
        scaling = "; ".join(_scaling_text(projection, kind) for kind in kinds)
        steps = getattr(projection, kinds[0])
        fewest = steps[0]
        if fewest.ranks < step.ranks == steps[-1].ranks and fewest.step_ns:
            text += f"; {format_ns(fewest.step_ns[0], 3)} on {counted(fewest.ranks, 'rank')}"
            texts.insert(0, scaling)
        else:
            texts.insert(0, text)
            text = scaling
    return Answer(one_line(text), level, details=tuple(map(one_line, texts)))


def _scaling_text(projection: Plan, kind: str) -> str:
    """``weak scaling to 2048 ranks (at 4096 only 46 % of a step computes)``."""
    steps: list[PlannedStep] = getattr(projection, kind)
    broken = projection.scaling_break(kind)
    if broken is None:
        return f"{kind} scaling to {steps[-1].ranks} ranks, the most planned"
    last, first_bad = broken
    scales = last is not None and (kind == WEAK or last is not steps[0])
    why = f"at {first_bad.ranks} only {100 * (first_bad.efficiency or 0):.0f} % of a step computes"
    if kind == STRONG and last and last.step_ns and first_bad.step_ns:
        why = f"{first_bad.ranks} ranks: {last.step_ns[0] / first_bad.step_ns[0]:.2f}x"
        why += f" as fast as {last.ranks}" if scales else ""
    reach = f"to {last.ranks} ranks" if last and scales else "not at all"
    return f"{kind} scaling {reach} ({why})"


def _rows(step: PlannedStep) -> Grid:
    """Returns the table of calls, with all sizes of a group, collective and kind of data in one
    row; json has each.
    """
    together: dict[tuple[str, str, str], list[PlannedRow]] = {}
    for row in step.rows:
        together.setdefault((row.group, row.collective, row.what), []).append(row)

    def comm(end: int) -> Any:
        def cell(rows: Sequence[PlannedRow]) -> str:
            return format_ns(sum_of(each for row in rows for each in row.planned)[end], 3)

        return cell

    def weight(rows: Sequence[PlannedRow]) -> float:
        times = [row.time_ns[0] for row in rows if row.time_ns]
        return sum(times) if times else sum(row.sent_bytes for row in rows)

    of_times = [
        (Head("comm", "a step"), comm(0)),
        (Head("low"), comm(1)),
        (Head("high"), comm(2)),
    ]
    described = any(row.what for row in step.rows)
    return make_grid(
        [
            (Head("group", left=True, repeat=True), lambda rows: one_line(rows[0].group)),
            (Head("ranks", repeat=True), lambda rows: str(rows[0].ranks)),
            (Head("collective", left=True, repeat=True), lambda rows: rows[0].collective),
            (Head("calls", "a step"), lambda rows: str(sum(row.calls for row in rows))),
            (Head("sizes"), _sizes),
            (
                Head("sent", "a step"),
                lambda rows: format_gigabytes(sum(row.sent_bytes for row in rows)),
            ),
            *(of_times if step.comm_ns else []),
            *([(Head("carries", left=True), lambda rows: rows[0].what)] if described else []),
        ],
        sorted(together.values(), key=weight, reverse=True),
        below=[*([_LEGEND] if step.comm_ns else []), _SENT_LEGEND],
    )


def format_gigabytes(size_bytes: float) -> str:
    """Returns for example ``46.1 GB`` (1e9 bytes)."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= 0.9995 * factor:
            digits = 3 if size_bytes < 1e12 else 4
            return f"{size_bytes / factor:.{digits}g} {unit}"
    return f"{size_bytes:.0f} B"


def _memory(memory: Memory) -> Grid:
    """Returns the table of a rank's memory."""
    parts = [
        ("parameters", memory.parameters),
        ("gradients", memory.gradients),
        ("optimiser", memory.optimizer),
        ("buffers", memory.buffers),
        ("activations", memory.activations),
        ("peak", memory.peak),
        ("all", memory.total),
        ("unfused", memory.most),
    ]
    columns = [(Head(name), lambda _, size=size: format_gigabytes(size)) for name, size in parts]
    below = (
        "buffers: whole parameters and gradients of FSDP2 at their peak, or DDP's buckets; peak: "
        "logits and their gradient, or with checkpointing a layer that is computed again; unfused: "
        "all, where norms and products are not fused"
    )
    return make_grid(columns, [memory], above=["memory of a rank"], below=[below])


def _sizes(rows: Sequence[PlannedRow]) -> str:
    sizes = sorted({row.size_bytes for row in rows})
    texts = [format_bytes(size) for size in (sizes[0], sizes[-1])]
    return " to ".join(dict.fromkeys(texts))


def _over_ranks(kind: str, steps: Sequence[PlannedStep]) -> Grid:
    first = steps[0].step_ns

    def of(name: str, end: int = 0) -> Any:
        def cell(step: PlannedStep) -> str:
            ends: Ends | None = getattr(step, name)
            return "-" if ends is None else format_ns(ends[end], 3)

        return cell

    def faster(step: PlannedStep) -> str:
        if kind == WEAK or first is None or step.step_ns is None:
            return "-"
        return f"{first[0] / step.step_ns[0]:.2f}x"

    def memory(step: PlannedStep) -> str:
        return format_gigabytes(step.memory.total) if step.memory else "-"

    return make_grid(
        [
            (Head("ranks"), lambda step: str(step.ranks)),
            (Head("sent", "a step"), lambda step: format_gigabytes(step.sent_bytes)),
            (Head("memory", drop=1), memory),
            (Head("comm", "a step"), of("comm_ns")),
            (Head("low", drop=2), of("comm_ns", 1)),
            (Head("high", drop=2), of("comm_ns", 2)),
            (Head("exposed", legend=_EXPOSED), of("exposed_ns")),
            (Head("step"), of("step_ns")),
            (Head("faster", "than first"), faster),
            (
                Head("% that", "computes"),
                lambda step: "-" if step.efficiency is None else f"{100 * step.efficiency:.0f}",
            ),
        ],
        steps,
        above=[f"{kind} scaling: {_SCALINGS[kind]}"],
    )


def _ends(ends: Ends) -> str:
    return f"{format_ns(ends[0], 3)} ({format_ns(ends[1], 3)} to {format_ns(ends[2], 3)})"


def flat_ends(name: str, ends: Ends | None) -> dict[str, float | None]:
    value, low, high = ends or (None, None, None)
    return {f"{name}_ns": value, f"{name}_low_ns": low, f"{name}_high_ns": high}


def _step(step: PlannedStep) -> dict[str, Any]:
    return {
        "ranks": step.ranks,
        **{f"parallel_{name}": n for name, n in step.degrees.items()},
        "calls": step.calls,
        "sent_bytes": step.sent_bytes,
        **flat_ends("comm", step.comm_ns),
        **flat_ends("exposed", step.exposed_ns),
        **flat_ends("step", step.step_ns),
        "compute_ns": step.compute_ns,
        "mfu": step.mfu,
        "tokens_per_s": step.tokens_per_s,
        "idle_ns": step.idle_ns,
        "memory_bytes": step.memory.total if step.memory else None,
    }


def _row(row: PlannedRow) -> dict[str, Any]:
    return {
        "group": row.group,
        "collective": row.collective,
        "ranks": row.ranks,
        "size_bytes": row.size_bytes,
        "calls": row.calls,
        "sent_bytes": row.sent_bytes,
        "carries": row.what or None,
        "modules": list(row.modules),
        **flat_ends("comm", row.time_ns),
        "beyond": row.extrapolated or None,
    }
