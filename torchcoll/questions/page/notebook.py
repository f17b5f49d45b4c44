"""What a notebook displays: the table of a finding, and its interactive charts below."""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.result import Run
from torchcoll.core.units import counted
from torchcoll.questions.contention.show import soak_chart
from torchcoll.questions.contention.soaked import soaked
from torchcoll.questions.page.charts import calls_chart, chosen, ranks_chart
from torchcoll.questions.pairs.matches import read_pairs
from torchcoll.questions.pairs.pairs_charts import pairs_charts
from torchcoll.questions.show.show import has_pairs, html_of
from torchcoll.questions.show.size_charts import curves_charts, picture_of
from torchcoll.report.chart import Chart, plain
from torchcoll.report.header import case_text
from torchcoll.report.shown import shown
from torchcoll.stats.sides import Side

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class RunFigures(Sequence["Figure"]):
    """The charts of a run as plotly Figures, which a notebook displays below each other.

    Each is a Figure with all of plotly's methods: ``figures[0].write_html("busbw.html")``.
    """

    def __init__(self, charts: Sequence[Chart]) -> None:
        self._charts = charts
        self._figures = list(map(_figure_of, charts))

    def __getitem__(self, index: Any) -> Any:
        return self._figures[index]

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'figure')}: {'; '.join(c.title for c in self._charts)}>"

    def _ipython_display_(self) -> None:
        if not _in_notebook():
            print(repr(self))
            return
        for chart, figure in zip(self._charts, self._figures, strict=True):
            _display_chart(chart, figure)


def figures_of(run: Run) -> RunFigures:
    """Everything that can be drawn of a run: time and bus bandwidth over sizes for each collective,
    the calls in order of its smallest, middle and largest size, and ranks
    by sizes.

    Raises UsageError where the run has nothing to draw, UnavailableError without plotly.
    """
    charts = charts_of(run)
    for result in chosen(run):
        title = f"{case_text(result.case)}: calls in order"
        charts.append(replace(calls_chart(run, result), title=plain(title)))
    if chart := ranks_chart(run):
        charts.append(chart)
    if not charts:
        raise UsageError("plot", repr(run), "a run in which a case has a time")
    return RunFigures(charts)


def charts_of(finding: Any) -> list[Chart]:
    """The charts that answer what the finding is about; [] where there is nothing to draw."""
    if isinstance(finding, Run):
        return _run_charts(finding)
    how = shown(finding)
    return how.charts(finding) if how and how.charts else []


def _run_charts(run: Run) -> list[Chart]:
    if has_pairs(run):
        pairs = read_pairs(run)
        return pairs_charts(pairs) if pairs else []
    over_time = soaked(run) if run.windows else None
    if over_time:
        return [soak_chart(over_time, run)]
    with suppress(UsageError):  # no case has both a time and a size
        return curves_charts(picture_of([Side("", [run])]))
    return []


def display(finding: Any) -> None:
    """Displays the finding as the result of a cell: as text in a terminal, in a notebook its table
    and its charts, which need plotly.
    """
    from IPython.display import display as display_output

    if not _in_notebook():
        print(repr(finding))
        return
    table = {"text/plain": repr(finding), "text/html": html_of(finding)}
    display_output(table, raw=True)
    with suppress(UnavailableError):  # without plotly the table is all that can be shown
        for chart in charts_of(finding):
            _display_chart(chart, chart.figure())


def _figure_of(chart: Chart) -> Figure:
    """The chart as a Figure, which displays a picture too until its user changes it."""
    figure = chart.figure()
    figure._ipython_display_ = lambda: _display_chart(chart, figure)
    return figure


def _display_chart(chart: Chart, figure: Figure) -> None:
    """Displays the figure, and below it what the chart says of itself."""
    from IPython.display import display as display_output

    from torchcoll.report.chart_matplotlib import caption_of

    display_output(_outputs(chart, figure), raw=True)
    if caption := caption_of([chart]):
        text = "<br>".join(html.escape(line) for line in caption)
        display_output({"text/html": f"<small>{text}</small>"}, raw=True)


def _outputs(chart: Chart, figure: Figure) -> dict[str, Any]:
    """The figure for front ends that show plotly's, and a picture of the chart for nbconvert,
    GitHub and mail.
    """
    from torchcoll.report.chart_matplotlib import draw_charts
    from torchcoll.report.pictures import svg_text

    plotly = {"application/vnd.plotly.v1+json": json.loads(figure.to_json())}
    outputs = {"text/plain": chart.title, **plotly, **figure._repr_mimebundle_()}
    with suppress(UnavailableError):  # without matplotlib
        if figure == chart.figure():
            outputs["image/svg+xml"] = svg_text(draw_charts([chart]))
    return outputs


def _in_notebook() -> bool:
    """Only a kernel has a front end: in a terminal plotly would open a browser."""
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None
