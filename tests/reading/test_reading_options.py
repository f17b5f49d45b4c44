"""The options that reading commands share, and files of which some cannot be read."""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from error_form import error_text, got
from foreign_files import ROW, text

import torchcoll
from torchcoll import cli
from torchcoll.cli import main

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "results/gloo-oneccl-2ranks"
# @ stands for the files.
READERS = (
    "show @",
    "check @",
    "convert @ --format csv",
    "plot @ -o p.svg",
    "report @ -o p.md",
    "cold @",
    "curve @",
    "scaling @",
    "compare run-1.jsonl @ --format csv",
    "model fit @ -o m.json",
)
SHARED = {"--collective", "--ranks", "--filter"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 3):
        shutil.copy(RUNS / f"run-{number}.jsonl", tmp_path)
    (tmp_path / "bad.json").write_text('{"a": [1, 2]}\n')
    # The two rows fit all_reduce and sendrecv of 2 ranks.
    (tmp_path / "unnamed.log").write_text(ROW)
    (tmp_path / "good.log").write_text(text())
    return tmp_path


def options_of(name: str) -> set[str]:
    parser = argparse.ArgumentParser()
    cli._add_options(name, cli.load_command(name, cli.commands()[name]), parser)
    return set(parser._option_string_actions)


@pytest.mark.parametrize(
    "name",
    [
        "show",
        "check",
        "convert",
        "plot",
        "report",
        "cold",
        "curve",
        "scaling",
        "compare",
        "algorithms",
    ],
)
def test_reading_commands_share_options(name):
    assert options_of(name) >= SHARED


@pytest.mark.parametrize("reader", READERS)
def test_files_of_several_that_cannot_be_read(reader, capsys):
    def answer(files: str) -> tuple[int, str, str]:
        code = main([*reader.replace("@", files).split(), *force])
        return code, *capsys.readouterr()

    force = ["--force"] if "-o " in reader else []
    code, expected, earlier = answer("run-2.jsonl run-3.jsonl")
    assert (code, "skipped" in earlier) == (0, False)
    code, out, err = answer("run-2.jsonl bad.json missing.jsonl run-3.jsonl")
    assert (code, out) == (1, expected)
    bad, missing = [line for line in err.splitlines() if line.startswith("torchcoll: skipped: ")]
    assert (
        got("bad.json") in bad and "file: got missing.jsonl, expected a file that exists" in missing
    )


def test_a_log_without_its_command_line_does_not_stop_the_others(capsys):
    assert main(["convert", "good.log", "unnamed.log", "--format", "csv"]) == 1
    out, err = capsys.readouterr()
    assert {row["collective"] for row in csv.DictReader(io.StringIO(out))} == {"all_reduce"}
    assert "torchcoll: skipped: unnamed.log" in err and "give --collective" in err
    # The same with the option that the error names.
    words = ["--collective", "sendrecv", "--format", "csv"]
    assert main(["convert", "unnamed.log", *words]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["collective"] for row in rows} == {"sendrecv"}


def test_many_files_are_a_few_lines(folder, capsys):
    paths = [folder / f"gpu{number}.log" for number in range(6)]
    for path in paths:
        path.write_text(text())
    names = [str(path) for path in (*paths, folder / "unnamed.log")]
    assert main(["convert", *names, "-o", "rows.csv"]) == 1
    out, err = capsys.readouterr()
    first, *further, last = out.splitlines()
    assert first.startswith("6 files: ") and len(further) <= 2
    assert last == "written: rows.csv"
    (line,) = err.splitlines()
    assert str(folder) not in out + err and line.startswith("torchcoll: skipped: unnamed.log:")
    step = "torchcoll convert unnamed.log --collective all_reduce -o RUN.jsonl takes it"
    assert line.endswith(f"{step} (or sendrecv).")
    for collective in ("all_reduce", "sendrecv"):  # both are true
        assert main(["convert", "unnamed.log", "--collective", collective, "--format", "csv"]) == 0


def test_no_file_that_can_be_read(capsys):
    assert main(["show", "missing.jsonl", "other.jsonl"]) == 3
    expected = [
        f"file: got {name}, expected a file that exists"
        for name in ("missing.jsonl", "other.jsonl")
    ]
    assert capsys.readouterr().err.splitlines() == [f"torchcoll: error: {e}" for e in expected]


def test_in_python_an_error_is_raised():
    with pytest.raises(torchcoll.TorchcollError):
        torchcoll.table(["run-1.jsonl", "bad.json"])


@pytest.mark.parametrize("reader", ["show", "check", "cold", "compare run-1.jsonl", "convert"])
def test_a_filter_selects_cases(reader, capsys):
    words = [*reader.split(), "run-2.jsonl", "--filter", "collective=all_reduce,size>=1M"]
    form = "json" if reader != "check" else "table"
    assert main([*words, "--format", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        # Each run has 8 sizes of each collective on both backends, three of them of 1M or more.
        rows = json.loads(out)["rows"]
        assert {row.get("collective", "all_reduce") for row in rows} == {"all_reduce"}
    words[-1] = "collective=reduce"
    assert main(words) == 2
    assert error_text("filter", "collective=reduce", "conditions") in capsys.readouterr().err


def test_convert_writes_the_chosen_columns(capsys):
    assert (
        main(["convert", "run-1.jsonl", "-o", "rows.csv", "--columns", "size_bytes,backend"]) == 0
    )
    rows = list(csv.DictReader(io.StringIO(Path("rows.csv").read_text())))
    assert set(rows[0]) == {"size_bytes", "backend"}
    assert main(["convert", "run-1.jsonl", "-o", "run.jsonl", "--columns", "size_bytes"]) == 2
    assert "--columns" in options_of("show") & options_of("convert")


def test_table_reads_files():
    frame = torchcoll.table("run-1.jsonl")
    assert frame.equals(torchcoll.table(torchcoll.load("run-1.jsonl")))
    assert len(torchcoll.table(["run-1.jsonl", "run-2.jsonl"])) == 2 * len(frame)


def test_dir_lists_what_is_public():
    names = [name for name in dir(torchcoll) if not name.startswith("__")]
    assert names == torchcoll.__all__
