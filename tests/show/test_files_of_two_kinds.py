"""A folder of results has traffic too, after ``torchcoll replay``, and a matrix its manifest."""

import json
from pathlib import Path

import pytest
from error_form import error_line, error_text
from made_runs import measured, run
from sent import call, traffic

from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.report.pictures import WrittenPicture

MANIFEST = '{"record":"matrix","schema":"torchcoll-matrix/1","spec":{}}\n'
LEFT_OUT = (
    "torchcoll: note: skipped traffic, which holds no results: runs/3-replay.jsonl; torchcoll show "
    "FILE shows what it holds\n"
)
ALONE = error_line(
    "result files",
    "traffic alone: runs/3-replay.jsonl",
    "results. torchcoll show FILE shows traffic; in Python torchcoll.Traffic.load reads it.\n",
)


@pytest.fixture
def runs(in_tmp_path):
    """Two runs, a replay's traffic and a manifest."""
    for number in (1, 2):
        cases = [measured(number * 100_000, size_bytes=1 << n) for n in range(10, 16)]
        save(run(*cases), f"runs/{number}-all_reduce.jsonl")
    traffic(lambda rank: [call(time_ns=1_000_000)]).save("runs/3-replay.jsonl")
    Path("runs/manifest.jsonl").write_text(MANIFEST)
    return sorted(map(str, Path("runs").iterdir()))


@pytest.mark.parametrize("how", ["list", "folder", "pattern"])
def test_show_has_the_results_and_names_the_traffic(runs, how, capsys):
    reported = {"list": runs[::-1], "folder": ["runs"], "pattern": ["runs/*.jsonl"]}[how]
    assert main(["show", *reported]) == 0
    out, err = capsys.readouterr()
    assert err == LEFT_OUT
    assert out.count("2 runs, in short") == 1  # of the same cases: medians
    assert "100.0 us" in out and "200.0 us" in out


def test_traffic_alone_is_shown_and_refuses_options_of_results(runs, capsys):
    assert main(["show", "runs/3-replay.jsonl"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("each rank sends 1 MiB in all in 1 all_reduce (no steps are marked); ")
    assert "\nruns/3-replay.jsonl: capture, 2 ranks" in text
    assert main(["show", "runs/3-replay.jsonl", "--view", "ranks"]) == 2
    assert error_text("view", "ranks", "none with Traffic") in capsys.readouterr().err


def test_a_folder_of_one_capture_is_joined(in_tmp_path, capsys):
    for rank in (0, 1):
        save_as = f"seen/traffic-rank{rank}.jsonl"
        traffic(lambda rank: [call(time_ns=1_000_000)], recorded=[rank]).save(save_as)
    assert main(["show", "seen"]) == 0
    assert capsys.readouterr().out.count("seen: capture, 2 ranks") == 1
    Path("seen/traffic-rank1.jsonl").write_text("")
    assert main(["show", "seen"]) == 3
    assert error_text("traffic file", "seen/traffic-rank1.jsonl") in capsys.readouterr().err


@pytest.mark.parametrize("command", ["cold", "scaling", "curve", "compare before.jsonl"])
@pytest.mark.parametrize("how", ["list", "folder", "pattern"])
def test_other_commands_leave_traffic_out(runs, command, how, capsys):
    reported = {"list": runs, "folder": ["runs"], "pattern": ["runs/*.jsonl"]}[how]
    save(run(measured(100_000)), "before.jsonl")
    assert main([*command.split(), *reported]) == 0
    assert capsys.readouterr().err == LEFT_OUT


def test_compare_takes_the_first_with_results_as_its_base(runs, capsys):
    assert main(["compare", *runs[::-1], "--format", "json"]) == 0
    stated = capsys.readouterr()
    assert stated.err.startswith(LEFT_OUT)
    ratios = [row["ratio"] for row in json.loads(stated.out)["rows"]]
    assert ratios == [pytest.approx(0.5)] * 6  # runs/1 takes half as long as runs/2


def test_show_leaves_traffic_out_as_json(runs, capsys):
    assert main(["show", "--format", "json", *runs]) == 0
    stated = capsys.readouterr()
    assert (stated.out.count('"median_ns"'), stated.err) == (12, LEFT_OUT)


@pytest.mark.parametrize(
    "reported", ["runs/3-replay.jsonl", "runs/3-replay.jsonl runs/manifest.jsonl"]
)
@pytest.mark.parametrize("command", ["cold", "curve", "plot"])
def test_traffic_alone_is_one_line(runs, command, reported, capsys):
    assert main([*command.split(), *reported.split()]) == 3
    assert capsys.readouterr() == ("", ALONE)


def test_plot_draws_a_side_for_each_file_of_results(runs, capsys, monkeypatch):
    from torchcoll.questions.show import plot

    drawn = []

    def recorded(sides, path, **_):
        drawn.extend(sides)
        return WrittenPicture(path)

    monkeypatch.setattr(plot, "plot", recorded)
    assert main(["plot", *runs]) == 0
    assert drawn == ["1-all_reduce", "2-all_reduce"]
    assert capsys.readouterr().err == LEFT_OUT
    assert main(["plot", "runs"]) == 0
    assert drawn[2:] == ["runs"]
