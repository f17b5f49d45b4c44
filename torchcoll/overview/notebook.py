"""What a notebook displays: the table of a finding, and its interactive charts below."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.comparison.compare import Comparison
from torchcoll.contention.soaked import soaked
from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import counted, format_bytes, format_ns
from torchcoll.curves.scaling import Scaling
from torchcoll.curves.transitions import Transitions
from torchcoll.overview.charts import (
    calls_chart,
    curves_charts,
    first_calls_charts,
    speed_up_charts,
)
from torchcoll.overview.figures import case_text, chosen
from torchcoll.overview.finding_charts import (
    cold_charts,
    scaling_charts,
    soak_chart,
    transitions_charts,
)
from torchcoll.overview.heat_maps import pairs_charts, ranks_chart
from torchcoll.overview.plot import picture_of
from torchcoll.overview.show import has_pairs, html_of
from torchcoll.pairs.matches import read_pairs
from torchcoll.report.chart import PALETTE, Chart, plain, seconds
from torchcoll.startup.cold import Cold
from torchcoll.stats.sides import Side
from torchcoll.training.traffic_table import TrafficRow, summarise_traffic

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_BARS = 40  # kinds of calls in one chart of traffic


class RunFigures(Sequence["Figure"]):
    """The charts of a run as plotly Figures, which a notebook displays below each other.

    Each is a Figure with all of plotly's methods: ``figures[0].write_html("busbw.html")``.
    """

    def __init__(self, charts: Sequence[Chart]) -> None:
        self._charts = charts
        self._figures = [chart.figure() for chart in charts]

    def __getitem__(self, index: Any) -> Any:
        return self._figures[index]

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'figure')}: {'; '.join(c.title for c in self._charts)}>"

    def _ipython_display_(self) -> None:
        from IPython.display import display as display_output

        if not _in_notebook():
            print(repr(self))
            return
        for chart, figure in zip(self._charts, self._figures, strict=True):
            display_output(figure)
            if chart.caption:
                text = "<br>".join(html.escape(line) for line in chart.caption)
                display_output({"text/html": f"<small>{text}</small>"}, raw=True)


def figures_of(run: Run) -> RunFigures:
    """Everything that can be drawn of a run: time and bus bandwidth over sizes for each collective,
    first and second calls, the calls in order of its smallest, middle and largest size, and ranks
    by sizes.

    Raises UsageError where the run has nothing to draw, UnavailableError without plotly.
    """
    charts = charts_of(run)
    charts += first_calls_charts(run, summarise_run(run))
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
    for kind, charts in _CHARTS.items():
        if isinstance(finding, kind):
            return charts(finding)
    return []


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


def _traffic_charts(traffic: Traffic) -> list[Chart]:
    """The calls of a step by kind: the time that they take, or their bytes where nothing ran."""
    rows = summarise_traffic(traffic).rows
    timed = any(row.time_per_step_ns for row in rows)

    def weight(row: TrafficRow) -> float:
        return (row.time_per_step_ns if timed else row.bytes_per_step) or 0

    largest = sorted(rows, key=weight, reverse=True)[:MOST_BARS]
    if not any(map(weight, largest)):
        return []
    names = [plain(_traffic_name(row)) for row in largest]
    # Two kinds may have one name, such as the calls of two dtypes: each needs a bar of its own.
    names = [f"{name} ({n})" if name in names[: n - 1] else name for n, name in enumerate(names, 1)]

    def bars(title: str, values: Sequence[float | None], colour: str) -> dict[str, Any]:
        return {
            "type": "bar",
            "orientation": "h",
            "name": title,
            "y": names,
            "x": list(values),
            "marker": {"color": colour},
            "hovertemplate": "%{y}<br>%{text}<extra></extra>",
            "textposition": "none",
            "text": [_traffic_text(row) for row in largest],
        }

    if timed:
        traces = [bars("total", [seconds(row.time_per_step_ns) for row in largest], PALETTE[0])]
        if any(row.exposed_ns is not None for row in largest):
            exposed = [seconds(row.exposed_ns) for row in largest]
            traces.append(bars("exposed", exposed, PALETTE[1]))
        axis = {"title": {"text": "time per step"}, "ticksuffix": "s", "rangemode": "tozero"}
    else:
        traces = [bars("bytes", [row.bytes_per_step for row in largest], PALETTE[0])]
        axis = {"title": {"text": "bytes per step and rank"}, "rangemode": "tozero"}
    caption = ["of the calls of a step, on the slowest rank" if timed else "of a step of one rank"]
    if len(rows) > len(largest):
        caption.append(f"the {len(largest)} largest of {len(rows)} kinds of calls")
    layout = {
        "xaxis": axis,
        "yaxis": {"autorange": "reversed", "automargin": True},
        "showlegend": len(traces) > 1,
        "height": 160 + 24 * len(largest) * len(traces),
    }
    title = "Communication of a step, by kind of call"
    return [Chart(title, traces, layout, caption=caption)]


def _traffic_name(row: TrafficRow) -> str:
    sent = None if row.bytes_in is None else max(row.bytes_in, row.bytes_out or 0)
    size = "several sizes" if sent is None else format_bytes(sent)
    return f"{row.collective} {size}, {row.group}"


def _traffic_text(row: TrafficRow) -> str:
    times = {"per step": row.time_per_step_ns, "exposed": row.exposed_ns, "a call": row.median_ns}
    lines = [f"{row.calls_per_step:g} calls per step"]
    lines += [f"{format_ns(ns, 3)} {what}" for what, ns in times.items() if ns is not None]
    return "<br>".join(lines)


_CHARTS: dict[type, Callable[[Any], list[Chart]]] = {
    Run: _run_charts,
    Comparison: speed_up_charts,
    Cold: cold_charts,
    Scaling: scaling_charts,
    Transitions: transitions_charts,
    Traffic: _traffic_charts,
}


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
    for figure in _figures(finding):
        display_output(figure)


def _figures(finding: Any) -> Iterator[Any]:
    with suppress(UnavailableError):  # without plotly the table is all that can be shown
        for chart in charts_of(finding):
            yield chart.figure()


def _in_notebook() -> bool:
    """Only a kernel has a front end: in a terminal plotly would open a browser."""
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None
