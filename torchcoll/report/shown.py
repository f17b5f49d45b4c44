"""How findings are displayed: the package of a finding's class has a module ``shown`` that says it.

A part shows findings of the kernel too, where its ``Part.shows`` names their module, such as
Traffic. So a class of findings has one description, from which ``torchcoll.show``, ``plot``,
``table`` and notebooks display it. A Run is no finding: questions/show displays it itself.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchcoll.core.display import Displayed
from torchcoll.core.parts import modules_of

if TYPE_CHECKING:
    import pandas

    from torchcoll.core.answer import Answer
    from torchcoll.report.chart import Chart
    from torchcoll.report.grid import Grid


@dataclass(frozen=True)
class Shown:
    """How findings of one class are displayed.

    - show: prints several, ``show(findings, format, file)``, as a table, markdown, csv or json.
    - takes_every: ``show`` takes ``every`` too.
    - charts: those of one, which answer what it is about; plotted: ``plot`` draws them to a file.
    - frame: the DataFrame of one; without it the ``rows`` of its JSON are one.
    - answer: that of one, where its class has no ``answer`` itself.
    """

    show: Callable[..., None]
    takes_every: bool = False
    charts: Callable[[Any], list[Chart]] | None = None
    plotted: bool = False
    frame: Callable[[Any], pandas.DataFrame] | None = None
    answer: Callable[[Any], Answer | None] | None = None


def last_answer(grids: Sequence[Grid]) -> Answer | None:
    """The answer of the tables of one finding."""
    return next((grid.answer for grid in reversed(grids) if grid.answer), None)


def shown(finding: Any) -> Shown | None:
    """How a finding is displayed; None for what is none."""
    kind = type(finding)
    if not isinstance(finding, Displayed):
        return None
    package = kind.__module__.rpartition(".")[0]
    module = next(modules_of("shows", kind.__module__), f"{package}.shown")
    if importlib.util.find_spec(module) is None:
        return None
    table: Mapping[type, Shown] = importlib.import_module(module).SHOWN
    return table.get(kind)
