"""How ``torchcoll baseline`` displays what it wrote: one sentence, the cases, what was left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_ns, format_percent
from torchcoll.parts.fleet.baseline_file import format_time_utc
from torchcoll.parts.fleet.baseline_runs import RunLeftOut, Selection, machine_text
from torchcoll.parts.fleet.change_text import case_names, percent, slower
from torchcoll.parts.fleet.good_runs import Baseline, Limits, limits_of
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid, Head
from torchcoll.stats.power import ACT_ON_ALL, ACT_ON_CASE

_NAMED = 10  # runs left out, without --all
_ALIKE = 1.2  # ratio of the detectable changes of two cases that are given as one


def detectable_text(limits: Limits) -> str:
    """``2.1 % slower over all cases, or 3.1 to 4.0 % in one case``; ``65 % to 2.7x`` where one end
    is a factor.
    """
    in_cases = sorted(limits.case_detectable.tolist())
    text = percent(in_cases[-1])
    if in_cases[-1] > _ALIKE * in_cases[0]:
        lowest = percent(in_cases[0])
        text = f"{lowest.removesuffix(' %') if text.endswith(' %') else lowest} to {text}"
    return f"{percent(limits.run_detectable)} slower over all cases, or {text} in one case"


def answer_of(baseline: Baseline, left_out: int) -> Answer:
    limits = limits_of(baseline)
    runs, cases = len(baseline.run_ids), len(baseline.cases)
    noisy = int((limits.case_detectable > math.log1p(ACT_ON_CASE)).sum())
    name = f"baseline of {counted(runs, 'run')} on {counted(len(baseline.nodes), 'node')}"
    detectable = (
        f"a run that is {detectable_text(limits)}, is detected 9 times in 10; false alarms "
        f"{format_percent(baseline.false_alarms)} per run"
    )
    unseen = limits.run_detectable > math.log1p(ACT_ON_ALL)
    details = (f"{counted(left_out, 'run')} left out",) if left_out else ()
    counts = {
        "runs": runs,
        "nodes": len(baseline.nodes),
        "cases": cases,
        "left out": left_out,
    }
    if not noisy and not unseen:
        return Answer(
            f"{name}, {counted(cases, 'case')}: {detectable}", "good", counts, details=details
        )
    texts = []
    if noisy:
        texts.append(
            f"too noisy to notice a case 1.5x slower in {noisy} of {counted(cases, 'case')}"
        )
    if unseen:
        texts.append("too noisy to notice a run 5 % slower over all cases")
    return Answer(
        f"{name}: {', and '.join(texts)}",
        "doubt",
        counts,
        details=(detectable, *details),
        next_step="measure on a quieter machine, or collect more good runs",
    )


def _baseline_grid(baseline: Baseline, selection: Selection, whole: bool, first: bool) -> Grid:
    limits = limits_of(baseline)
    names = case_names([case.key for case in baseline.cases])
    rows = [
        [
            name,
            format_ns(case.usual_ns),
            f"{100 * case.spread:.2f} %",
            str(case.runs),
            slower(limit),
            slower(detectable),
        ]
        for name, case, limit, detectable in zip(
            names,
            baseline.cases,
            limits.case_named.tolist(),
            limits.case_detectable.tolist(),
            strict=True,
        )
    ]
    dates = [format_time_utc(us)[:10] for us in (baseline.first_us, baseline.last_us)]
    when = f", {dates[0]} to {dates[1]}" if all(dates) else ""
    above = [f"{machine_text(baseline.device_name, baseline.ranks)}{when}"]
    if baseline.versions:
        texts = [
            f"{one_line(name)} {one_line(' and '.join(values))}"
            for name, values in baseline.versions.items()
        ]
        above.append(", ".join(texts))
    below = []
    if first:
        below += [f"note: {text}" for text in selection.notes]
        below += [f"too few: {text}" for text in selection.too_few]
        below += _left_out_lines(selection.left_out, whole)
    heads = [
        Head("case", left=True),
        Head("usual", "time"),
        Head("spread", "of runs"),
        Head("runs", drop=2),
        Head("named", "from", drop=1),
        Head("detected", "9 in 10"),
    ]
    answer = answer_of(baseline, len(selection.left_out) if first else 0)
    return Grid(heads, rows, above=above, below=below, answer=answer)


def _left_out_lines(left_out: Sequence[RunLeftOut], whole: bool) -> list[str]:
    shown = left_out if whole else left_out[:_NAMED]
    lines = [
        f"left out: {one_line(item.path or item.run_id)}: {one_line(item.reason)}" for item in shown
    ]
    if len(shown) < len(left_out):
        lines.append(f"{counted(len(left_out) - len(shown), 'more run')} left out: --all")
    return lines


def _rows(baseline: Baseline) -> list[dict[str, Any]]:
    limits = limits_of(baseline)
    names = case_names([case.key for case in baseline.cases])
    return [
        {
            "name": name,
            **case.key.to_row(),
            "usual_ns": case.usual_ns,
            "spread": case.spread,
            "runs": case.runs,
            "limit": math.expm1(limit),
            "detectable": math.expm1(detectable),
        }
        for name, case, limit, detectable in zip(
            names,
            baseline.cases,
            limits.case_limits.tolist(),
            limits.case_detectable.tolist(),
            strict=True,
        )
    ]


def show_baselines(
    selection: Selection, format: str, whole: bool = False, file: TextIO | None = None
) -> None:
    """Prints them as table, markdown, csv or json. Raises UsageError for another format."""
    forms = []
    for number, baseline in enumerate(selection.baselines):
        document = {
            "device_name": baseline.device_name,
            "ranks": baseline.ranks,
            "nodes": list(baseline.nodes),
            "run_ids": list(baseline.run_ids),
            "versions": {name: list(values) for name, values in baseline.versions.items()},
            "left_out": [vars(item) for item in selection.left_out],
            "notes": list(selection.notes),
            "rows": _rows(baseline),
        }
        forms.append(Forms([_baseline_grid(baseline, selection, whole, number == 0)], document))
    print_results(forms, format, file)
