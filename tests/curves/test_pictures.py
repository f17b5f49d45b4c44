"""Pictures over ranks and of a model's errors: the numbers that are drawn."""

from __future__ import annotations

import made_models
import pytest
from error_form import error_text

from torchcoll import cli
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.parts.curves.scaling import scaling
from torchcoll.parts.curves.scaling_show import scaling_figure
from torchcoll.parts.curves.validation import validate, validate_predicted
from torchcoll.parts.curves.validation_show import errors_figure
from torchcoll.questions.show.plot import plot
from torchcoll.reading.inputs import load_all


@pytest.fixture
def files(tmp_path):
    paths = [str(tmp_path / f"{run.ranks}.jsonl") for run in made_models.runs()]
    for run, path in zip(made_models.runs(), paths, strict=True):
        save(run, path)
    return paths


def test_the_speed_up_is_of_the_fewest_ranks():
    """1K: 5 us + 2 us x 2 (n - 1) + 1024 x 2 (n - 1) / n / 10 ns: 9.1024, 17.1536, 33.1792 us."""
    left, right = scaling_figure(scaling(made_models.runs(), sizes=[1024])).axes
    drawn = next(line for line in right.lines if len(line.get_xdata()) == 3)
    assert list(drawn.get_xdata()) == [2, 4, 8]
    times = [9102.4, 17153.6, 33179.2]
    assert list(drawn.get_ydata()) == pytest.approx([times[0] / t for t in times], rel=1e-3)
    assert list(left.lines[0].get_ydata()) == pytest.approx(times, rel=1e-3)
    assert right.get_title(loc="left") == "speed-up: time with 2 ranks / time"


def test_one_number_of_ranks_has_no_speed_up():
    with pytest.raises(
        UsageError, match=error_text("picture", "no case with several numbers of ranks")
    ):
        scaling_figure(scaling(made_models.runs(ranks=(4,))))


def test_the_error_of_a_simulator_is_drawn_with_its_sign(tmp_path, files):
    rows = [
        f"all_reduce,{n},{size},{0.8 * made_models.ring_ns('all_reduce', size, n) / 1e3}\n"
        for n in (2, 4, 8)
        for size in made_models.SIZES
    ]
    (tmp_path / "sim.csv").write_text("collective,ranks,size (B),time (us)\n" + "".join(rows))
    found = validate_predicted(load_all([str(tmp_path / "sim.csv")]), files)
    assert found.predicted == "sim.csv"  # of runs too, one a number of ranks
    left, right = errors_figure(found).axes
    curves = [line for line in right.lines if len(line.get_xdata()) == len(made_models.SIZES)]
    assert len(curves) == 3
    assert {round(y, 1) for line in curves for y in line.get_ydata()} == {-20.0}
    dots = next(line for line in left.lines if line.get_label() == "8 ranks")
    assert [y / x for x, y in zip(*dots.get_data(), strict=True)] == pytest.approx([0.8] * 10, 1e-3)


def test_left_out_sizes_and_ranks_have_a_row_each():
    figure = errors_figure(validate(made_models.runs(ranks=(2, 4, 8))))
    titles = [axis.get_title(loc="left") for axis in figure.axes[::2]]
    assert [("left-out sizes" in t, "left-out ranks" in t) for t in titles] == [
        (True, False),
        (False, True),
    ]
    assert "cubic" in figure.get_supxlabel()


def test_the_commands_write_them(tmp_path, files, capsys):
    copy = tmp_path / "sim.csv"
    us = made_models.ring_ns("all_reduce", 1024, 2) / 1e3
    copy.write_text(f"collective,ranks,size (B),time (us)\nall_reduce,2,1024,{us}\n")
    model = ["model", "validate", "--predicted", str(copy), files[0]]
    for words in (["scaling", *files], model):
        picture = tmp_path / f"{words[0]}.png"
        assert cli.main([*words, "--plot", str(picture)]) in (0, 1)  # 1: one size alone
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"picture: {picture}" in capsys.readouterr().err
        assert cli.main([*words, "--plot", str(picture)]) == 2  # it is there
        assert "--force" in capsys.readouterr().err
        missing = tmp_path / "no" / "a.png"
        assert cli.main([*words, "--plot", str(missing)]) == 2
        assert "a folder that exists" in capsys.readouterr().err


def test_plot_takes_what_scaling_found(tmp_path):
    drawn = plot(scaling(made_models.runs()), tmp_path / "a.svg")
    assert "speed-up" in drawn.path.read_text()
