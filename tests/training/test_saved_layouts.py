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


@pytest.mark.parametrize(
    "model, layouts, ranks, times, sizes",
    [
        (
            "llama-3-8b",
            "dp,fsdp,hsdp",
            64,
            ["fsdp=64<br>907 ms", "hsdp=8x8<br>914 ms, may fit", "dp=64<br>896 ms, does not fit"],
            ["fsdp=64<br>55.3 GB", "hsdp=8x8<br>62.4 GB, may fit", "dp=64<br>130 GB, does not fit"],
        ),
        (  # A tight layout may be over the line as planned.
            "llama-3-70b",
            "fsdp,fsdp+tp=8+sp,hsdp",
            512,
            [
                "fsdp=512,ckpt<br>10.4 s",
                "fsdp=64,tp=8,sp<br>9.99 s, may fit",
                "hsdp=64x8<br>7.82 s, does not fit",
            ],
            [
                "fsdp=512,ckpt<br>36.6 GB",
                "fsdp=64,tp=8,sp<br>89.6 GB, may fit",
                "hsdp=64x8<br>275 GB, does not fit",
            ],
        ),
    ],
)
def test_bars_say_their_values_and_whether_they_fit(model, layouts, ranks, times, sizes):
    comparison = compare_plans(model, layouts, ranks=ranks, machine="8xH100", memory_gb=85)
    time, memory = layouts_charts(comparison)
    for chart, names in ((time, times), (memory, sizes)):
        assert [list(trace["y"]) for trace in chart.traces] == [names] * len(chart.traces)
        assert {(*t["marker"]["pattern"]["shape"],) for t in chart.traces} == {("", "", "/")}
        assert chart.caption[-1] == "hatched: does not fit, even if 10 % less is needed"
    assert time.caption[0] == "the fastest that surely fits is on top"
    (line,) = memory.layout["shapes"]
    assert line["x0"] == line["x1"] == 85  # GB
    (tight,) = [line for line in memory.caption if line.startswith("may fit")]
    assert tight.startswith(
        "may fit, tight: within 10 % of a rank's memory on either side, or over 91 %"
    )
    # The whiskers are at the end of the whole bar.
    assert [trace.get("error_x") is None for trace in time.traces] == [True, False]
    assert time.layout["height"] + memory.layout["height"] <= 600  # on one screen


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
    assert [group.title for group in page.sections[0].charts] == [
        "Time of a step",
        "Memory of a rank, which has 85 GB",
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
