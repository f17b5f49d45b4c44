"""The section of a page on nodes over nights, of stores and of runs of many days."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from torchcoll.core.result import Run
from torchcoll.parts.fleet.nightly import NightRequest, judge_night
from torchcoll.parts.fleet.nightly_show import night_grid
from torchcoll.parts.fleet.series import parse_night_start
from torchcoll.questions.page.page_draft import PageDraft

_FEWEST_NIGHTS = 6


def add_nights(draft: PageDraft) -> None:
    draft.title = "Nodes over nights"
    arguments = [*draft.others, *(draft.files if _has_nights(draft.material.runs) else ())]
    if arguments:
        draft.tried("nights", lambda: _add(draft, arguments))


def _has_nights(runs: Sequence[Run]) -> bool:
    """Whether the runs are of several nodes over enough days for ``torchcoll nightly``."""
    nodes = {(run.members[0].get("host"), run.ranks) for run in runs if run.members}
    days = {str(run.header.get("start_utc") or "")[:10] for run in runs}
    return len(nodes) > 1 and len(days - {""}) >= _FEWEST_NIGHTS


def _add(draft: PageDraft, arguments: Sequence[str]) -> None:
    request = NightRequest(parse_night_start("12:00"), last=True)
    grid = night_grid(judge_night(arguments, request))
    command = f"torchcoll nightly {shlex.join(arguments)} --night last"
    draft.add("Nodes over nights", [grid], command, [])
