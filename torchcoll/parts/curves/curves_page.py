"""The sections of a page on sizes, ranks and algorithms."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torchcoll.core.errors import UsageError, one_line
from torchcoll.parts.curves.algorithms import algorithms
from torchcoll.parts.curves.algorithms_show import algorithms_grids
from torchcoll.parts.curves.curves_charts import errors_charts, scaling_charts, transitions_charts
from torchcoll.parts.curves.scaling import scaling
from torchcoll.parts.curves.scaling_show import scaling_grids
from torchcoll.parts.curves.transitions import transitions
from torchcoll.parts.curves.transitions_show import transitions_grids
from torchcoll.questions.comparison.compare import Comparison, compare
from torchcoll.questions.comparison.prediction import MODEL
from torchcoll.questions.page.page_draft import Drawing, PageDraft
from torchcoll.stats.sides import Side

_MOST_CURVES = 12


def add_algorithms(draft: PageDraft) -> list[Comparison] | None:
    """Add the section on forced algorithms. Returns [] with a section, None without one."""
    if not any(run.labels.get("cell") for run in draft.material.runs):
        return None
    try:
        finding = algorithms(draft.material.folders or draft.material.runs)
    except UsageError:  # nothing was forced
        return None
    draft.add("Which algorithm wins", algorithms_grids(finding), draft.command("algorithms"))
    return []


def add_errors(draft: PageDraft) -> None:
    """Add a section on the errors of a model, for each pair of a model and a measured side."""
    models = [side for side in draft.sides if side.name == MODEL]
    measured = [side for side in draft.sides if side.name != MODEL]

    def add_side(model: Side, side: Side) -> None:
        comparison = compare(side, model)
        title, whose = "How wrong the model is", "the measured times"
        if len(measured) > 1:
            title += f" about {one_line(side.name)}"
            whose = f"the times of {one_line(side.name)}"
        text = f"Error of the predicted times, relative to {whose}"
        draft.add(title, [], "", [Drawing(text, lambda: errors_charts(comparison))])

    for model in models:
        for side in measured:
            what = f"how wrong the model is about {side.name}"
            draft.tried(what, partial(add_side, model, side))


def add_transitions(draft: PageDraft) -> None:
    draft.tried("transitions", lambda: _add_transitions(draft))


def add_scaling(draft: PageDraft) -> None:
    draft.tried("the number of ranks", lambda: _add_scaling(draft))


def _add_transitions(draft: PageDraft) -> None:
    finding = transitions(draft.plain)
    if all(curve.note and not curve.doubt for curve in finding.curves):
        draft.notes.append(
            "no section on transitions: too few sizes, or too much scatter, to fit any law"
        )
        return
    if len(finding.curves) > _MOST_CURVES:
        action = "--filter collective=NAME,dtype=NAME,... leaves fewer."
        raise UsageError("curves", len(finding.curves), f"at most {_MOST_CURVES}", action)
    changing = replace(finding, curves=[curve for curve in finding.curves if curve.transitions])
    text = "Measured and fitted times, and where the fit changes"
    drawing = Drawing(text, lambda: transitions_charts(changing), "curve")
    drawings = [drawing] if changing.curves else []
    draft.add("Where it switches", transitions_grids([finding]), draft.command("curve"), drawings)


def _add_scaling(draft: PageDraft) -> None:
    finding = scaling(draft.plain)
    several = any(len([p for p in curve.points if p.time_ns]) > 1 for curve in finding.curves)
    drawing = Drawing("Time and speed-up over the ranks", lambda: scaling_charts(finding))
    drawings = [drawing] if several else []
    command = draft.command("scaling")
    draft.add("Over the number of ranks", scaling_grids(finding), command, drawings)
