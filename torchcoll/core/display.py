"""What a notebook shows of what torchcoll found: what ``torchcoll.show`` prints of it."""

from __future__ import annotations

import importlib


class Displayed:
    """Shows itself where the last line of a cell is one of these."""

    def _repr_html_(self) -> str:
        # By name: what is found is known to all rooms, and how it is printed to `runs` alone.
        html: str = importlib.import_module("torchcoll.runs.show").html_of(self)
        return html
