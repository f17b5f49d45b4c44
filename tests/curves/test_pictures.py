"""Pictures over ranks and of a model's errors: the numbers that are drawn."""

from pathlib import Path

import made_models
import pytest
from error_form import error_text

from torchcoll import cli
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.parts.curves.curves_charts import errors_charts, scaling_charts
from torchcoll.parts.curves.scaling import scaling
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.show.plot import plot
from torchcoll.stats.sides import side

COLD = Path(__file__).parents[2] / "results" / "oneccl-cold-scaling"


@pytest.fixture
def files(tmp_path):
    paths = [str(tmp_path / f"{run.ranks}.jsonl") for run in made_models.runs()]
    for run, path in zip(made_models.runs(), paths, strict=True):
        save(run, path)
    return paths


def test_the_speed_up_is_of_the_fewest_ranks():
    """1K: 5 us + 2 us x 2 (n - 1) + 1024 x 2 (n - 1) / n / 10 ns: 9.1024, 17.1536, 33.1792 us."""
    (chart,) = scaling_charts(scaling(made_models.runs(), sizes=[1024]))
    line = chart.traces[-1]
    times = [9102.4e-9, 17153.6e-9, 33179.2e-9]
    assert line["x"] == [2, 4, 8]
    assert line["y"] == pytest.approx(times, rel=1e-3)
    speed_up = chart.selectors[0].options[1]
    assert speed_up.traces["y"][-1] == pytest.approx([times[0] / t for t in times], rel=1e-3)
    assert speed_up.layout["yaxis.title.text"] == "times as fast as on 2 ranks"
    (same,) = chart.more_traces
    assert (same["x"], same["y"]) == ([2, 8], [1, 1])


def test_one_rank_sends_nothing_and_is_no_base_of_a_speed_up():
    (chart,) = scaling_charts(scaling(made_models.runs(ranks=(1, 2, 4, 8)), sizes=[1024]))
    assert chart.traces[-1]["x"] == [2, 4, 8]
    speed_up = chart.selectors[0].options[1]
    assert speed_up.traces["y"][-1][0] == 1
    assert speed_up.layout["yaxis.title.text"] == "times as fast as on 2 ranks"
    assert scaling_charts(scaling(made_models.runs(ranks=(1, 4)))) == []


def test_first_calls_alone_are_drawn_by_cold_and_the_error_says_so(tmp_path, capsys):
    files = sorted(map(str, COLD.glob("*.txt")))
    options = ["--plot", str(tmp_path / "a.png")]
    assert cli.main(["scaling", *files, *options]) == 2
    assert "First calls: torchcoll cold FILE ... --plot FILE." in capsys.readouterr().err
    assert cli.main(["cold", *files, *options]) == 0


def test_one_number_of_ranks_has_no_speed_up(tmp_path):
    with pytest.raises(
        UsageError, match=error_text("picture", "no case with several numbers of ranks")
    ):
        plot(scaling(made_models.runs(ranks=(4,))), tmp_path / "a.png")


def test_the_error_of_a_simulator_is_drawn_with_its_sign(tmp_path, files):
    rows = [
        f"all_reduce,{n},{size},{0.8 * made_models.ring_ns('all_reduce', size, n) / 1e3}\n"
        for n in (2, 4, 8)
        for size in made_models.SIZES
    ]
    (tmp_path / "sim.csv").write_text("collective,ranks,size (B),time (us)\n" + "".join(rows))
    (chart,) = errors_charts(compare(side("measured", files), side("model", tmp_path / "sim.csv")))
    assert [trace["name"] for trace in chart.traces] == ["2 ranks", "4 ranks", "8 ranks"]
    assert all(trace["x"] == list(made_models.SIZES) for trace in chart.traces)
    assert {round(y, 1) for trace in chart.traces for y in trace["y"]} == {-20.0}


def test_the_command_writes_it(tmp_path, files, capsys):
    picture = tmp_path / "scaling.png"
    words = ["scaling", *files, "--plot"]
    assert cli.main([*words, str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}" in capsys.readouterr().err
    assert cli.main([*words, str(picture)]) == 2  # it is there
    assert "--force" in capsys.readouterr().err
    assert cli.main([*words, str(tmp_path / "no" / "a.png")]) == 2
    assert "a folder that exists" in capsys.readouterr().err


def test_plot_takes_what_scaling_found(tmp_path):
    drawn = plot(scaling(made_models.runs()), tmp_path / "a.svg")
    assert "speed-up" in drawn.path.read_text()
