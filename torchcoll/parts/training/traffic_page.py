"""The section of a page on what a training sends."""

from __future__ import annotations

from torchcoll.core.errors import one_line
from torchcoll.parts.training.traffic_show import traffic_grids
from torchcoll.parts.training.traffic_table import summarise_traffic
from torchcoll.questions.page.page_draft import PageDraft


def add_traffic(draft: PageDraft) -> None:
    several = len(draft.material.traffic) > 1
    for traffic in draft.material.traffic:
        grids = traffic_grids(traffic, summarise_traffic(traffic))
        name = f": {one_line(traffic.path or 'traffic')}" if several else ""
        draft.add(f"What a training sends{name}", grids, draft.command("show", "traffic"))
