"""The section of a page on nodes over nights, of stores and of runs of many days."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial

from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.result import Run
from torchcoll.core.units import counted
from torchcoll.parts.fleet.changes_over_time import history_of
from torchcoll.parts.fleet.history_show import history_grid
from torchcoll.parts.fleet.nights import parse_night_start
from torchcoll.parts.fleet.nights_charts import nights_charts
from torchcoll.parts.fleet.panel import panels_of
from torchcoll.parts.fleet.sources import summaries_of
from torchcoll.questions.page.page_draft import Drawing, PageDraft

_FEWEST_NIGHTS = 6


def add_nights(draft: PageDraft) -> None:
    draft.title = "Nodes over nights"
    arguments = [*draft.others, *(draft.files if _has_nights(draft.material.runs) else ())]
    if arguments:
        draft.tried("nights", lambda: _add(draft, arguments))


def _has_nights(runs: Sequence[Run]) -> bool:
    """Whether the runs are of several nodes over enough days for ``torchcoll history``."""
    nodes = {(run.members[0].get("host"), run.ranks) for run in runs if run.members}
    days = {str(run.header.get("start_utc") or "")[:10] for run in runs}
    return len(nodes) > 1 and len(days - {""}) >= _FEWEST_NIGHTS


def _add(draft: PageDraft, arguments: Sequence[str]) -> None:
    """Which node differs, and since when, of each device model and number of ranks."""
    # As torchcoll history without options.
    panels = panels_of(summaries_of(arguments), parse_night_start("12:00"))
    if not panels:
        raise UsageError("nights", " ".join(arguments), "runs with dates and times")
    quoted = shlex.join(arguments)
    for panel in panels:
        if len(panel.nodes) < 2:
            continue
        history = history_of(panel, 0.03)
        kind = f"{panel.device_name or 'device not recorded'}, {counted(panel.ranks, 'rank')}"
        title = f"Nodes over nights{f': {one_line(kind)}' if len(panels) > 1 else ''}"
        text = "How much slower each node was in each night"
        charts = partial(nights_charts, history, f"torchcoll fleet {quoted} --night {{x}}")
        grids = [history_grid(history, False)]
        drawings = [Drawing(text, charts, "nodes")] if draft.inline else []
        draft.add(title, grids, f"torchcoll history {quoted}", drawings)
