"""examples/explore.ipynb in a real Jupyter kernel: every cell runs, and displays what it should."""

import json
import os
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

EXAMPLES = Path(__file__).parents[2] / "examples"
PLOTLY = "application/vnd.plotly.v1+json"

pytestmark = [
    pytest.mark.notebook,
    # Of nbclient's own event loop and sockets.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def executed():
    notebook = nbformat.read(EXAMPLES / "explore.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    path = os.pathsep.join(filter(None, (str(EXAMPLES.parent), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        resources = {"metadata": {"path": str(EXAMPLES)}}
        nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    return notebook


def test_every_chart_is_in_a_page_without_network_and_javascript(executed):
    """nbconvert writes the first kind that it knows: no HTML of plotly stands before the SVG."""
    displayed = [o for cell in executed.cells for o in cell.get("outputs", ()) if "data" in o]
    charts = [output for output in displayed if PLOTLY in output.data]
    assert len(charts) > 12
    for chart in charts:
        assert "text/html" not in chart.data and chart.data["image/svg+xml"].count("<svg") == 1
    nbconvert = pytest.importorskip("nbconvert")
    page, _ = nbconvert.HTMLExporter(embed_images=True).from_notebook_node(executed)
    assert page.count('src="data:image/svg+xml') >= len(charts)


def outputs(notebook, text):
    """The data of the outputs of the cell that has the text."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and text in c.source]
    return [output.data for output in cell.outputs if "data" in output]


def test_a_run_displays_its_table_and_a_figure_for_each_collective(executed):
    table, *figures = outputs(executed, "\nrun")
    assert "<table>" in table["text/html"]
    titles = [figure[PLOTLY]["layout"]["title"]["text"] for figure in figures if PLOTLY in figure]
    assert {"all_reduce", "all_gather", "broadcast"} <= {*titles}


def test_plot_displays_more(executed):
    figures = [data for data in outputs(executed, "\nfigures") if PLOTLY in data]
    assert len(figures) > len([data for data in outputs(executed, "\nrun") if PLOTLY in data])
    assert any("in order" in data[PLOTLY]["layout"]["title"]["text"] for data in figures)


def test_frames_are_tables(executed):
    for text in ('values="median_ns")', "describe("):
        (data,) = outputs(executed, text)
        assert "<table" in data["text/html"]


def test_a_comparison_displays_its_answer_first(executed):
    table, *figures = outputs(executed, 'f"backend:ccl={results}")')
    assert table["text/html"].startswith("<p><b>ccl is 4.6x faster than gloo ")
    assert figures and PLOTLY in figures[0]
    assert json.dumps(figures[0][PLOTLY])  # finite numbers, no NaN that JSON has not
