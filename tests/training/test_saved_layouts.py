"""Pictures of compared layouts, and the JSON of a comparison as an argument of show and report."""

import json

import pytest
from error_form import error_line

from torchcoll.cli import main
from torchcoll.parts.training.plan_charts import layouts_charts
from torchcoll.parts.training.planning import compare_plans
from torchcoll.parts.training.saved_layouts import read_layouts
from torchcoll.questions.page.document import page_of

LAYOUTS = ["llama-3-8b", "--compare", "dp,fsdp,hsdp,fsdp+tp=8+sp", "--ranks", "64"]
MACHINE = ["--machine", "8xH100", "--memory-gb", "85"]


@pytest.fixture
def saved(tmp_path, capsys):
    """The file, and what the same comparison prints as a table."""
    printed = []
    for form in ("json", "table"):
        assert main(["plan", *LAYOUTS, *MACHINE, "--format", form]) == 0
        printed.append(capsys.readouterr().out)
    path = tmp_path / "plan.json"
    path.write_text(printed[0])
    return path, printed[1]


def test_what_does_not_fit_is_hatched_and_crosses_the_line():
    comparison = compare_plans(
        "llama-3-8b", "dp,fsdp,hsdp", ranks=64, machine="8xH100", memory_gb=85
    )
    time, memory = layouts_charts(comparison)
    names = ["fsdp=64", "hsdp=8x8<br>tight", "dp=64<br>does not fit"]
    for chart in (time, memory):
        assert [list(trace["y"]) for trace in chart.traces] == [names] * len(chart.traces)
        assert {(*t["marker"]["pattern"]["shape"],) for t in chart.traces} == {("", "", "/")}
        assert chart.caption[-1] == "hatched: does not fit"
    (line,) = memory.layout["shapes"]
    assert line["x0"] == line["x1"] == 85  # GB
    # The last part is what kernels that are not fused keep.
    *fused, unfused = [trace["x"] for trace in memory.traces]
    sums = [sum(sizes) for sizes in zip(*fused, strict=True)]
    assert [size > 85 for size in sums] == [False, False, True]
    longer = [1.1 * (a + b) > 85 for a, b in zip(sums, unfused, strict=True)]
    assert longer == [False, True, True]
    assert "tight: it would, if 10 % longer" in memory.caption
    # The whiskers are at the end of the whole bar.
    assert [trace.get("error_x") is None for trace in time.traces] == [True, False]


def test_plan_draws_a_picture(tmp_path, capsys):
    picture = tmp_path / "plan.svg"
    plan = ["plan", *LAYOUTS, *MACHINE, "--plot", str(picture)]
    assert main(plan) == 0
    assert f"torchcoll: picture: {picture}" in capsys.readouterr().err
    assert picture.read_text().startswith("<?xml")
    assert main(plan) == 2  # the picture is there
    assert error_line("picture", picture, "a file that does not exist") in capsys.readouterr().err


def test_show_prints_what_the_plan_printed(saved, capsys):
    path, printed = saved
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out == printed
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"answered by: torchcoll show {path}\n")
    assert main(["show", str(path), "--format", "json"]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_a_page_begins_with_the_answer_and_its_picture(saved):
    path, _ = saved
    page = page_of([str(path)])
    assert page.title == "Layouts on 64 ranks"
    assert page.answers[0].headline.startswith("of 4 layouts on 64 ranks fsdp=64 is predicted fast")
    assert [group.title for group in page.sections[0].charts] == ["Time of a step"]
    assert [group.title for group in page.sections[1].charts] == [
        "Memory of a rank, which has 85 GB"
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("ranks"),
        lambda document: document["rows"][0].pop("memory"),
        lambda document: document["rows"][0].update(layout="fdsp=64"),
        lambda document: document["rows"][0].update(batch=1),
    ],
)
def test_a_damaged_file_is_one_line(saved, capsys, change):
    path, _ = saved
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    assert main(["show", str(path)]) == 3
    line = capsys.readouterr().err
    assert error_line("file", path, "what plan --compare LIST --format json prints") in line
    assert line.count("\n") == 1


def test_options_of_results_are_refused(saved, capsys):
    assert main(["show", str(saved[0]), "--view", "ranks"]) == 2
    assert "layouts" in capsys.readouterr().err


def test_without_a_machine_only_memory_is_drawn(tmp_path, capsys):
    assert main(["plan", *LAYOUTS, "--format", "json"]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    assert [chart.title for chart in layouts_charts(read_layouts(str(path)))] == [
        "Memory of a rank"
    ]
