"""The section of a page on the folder of a versus."""

from __future__ import annotations

import shlex
from pathlib import Path

from torchcoll.parts.experiments.versus import read
from torchcoll.parts.experiments.versus_show import answer, versus_grids
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.page.comparing_sections import speed_ups
from torchcoll.questions.page.page_draft import PageDraft


def add_versus(draft: PageDraft) -> list[Comparison] | None:
    """What torchcoll versus has left in a folder, judged as it judges; None where it was none."""
    return next(filter(None, (_compared(draft, f) for f in draft.material.folders)), None)


def _compared(draft: PageDraft, folder: str) -> list[Comparison]:
    state = read(Path(folder))
    if state is None:
        return []
    comparisons = state.comparisons()
    if not comparisons:
        draft.notes.append(f"{folder}: no round of torchcoll versus is complete")
        return []
    grids = versus_grids(state, comparisons, folder, state.stopped)
    drawings = [drawing for comparison in comparisons for drawing in speed_ups(draft, comparison)]
    draft.add("A against B", grids, f"torchcoll versus --resume {shlex.quote(folder)}", drawings)
    draft.answers.append(answer(state, comparisons, folder))
    return comparisons
