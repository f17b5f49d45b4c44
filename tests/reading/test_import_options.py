"""``torchcoll convert`` with options that contradict the file, and with files that were cut off."""

import pytest
from error_form import error_line, error_text
from foreign_files import ONECCL, OSU, PARAM, RCCL, SMALL, text

from torchcoll.cli import main
from torchcoll.reading.inputs import load

TABLE = "collective,Size,Zeit (us)\nreduce,1K,2.5\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "--statistic typical",
            error_text("statistic", "typical", "one of mean, median, min, max"),
        ),
        ("--label a", error_text("label", "a", "KEY=VALUE, such as kernel=6.8.0-generic")),
        (
            "--from osu --map size=Size",
            error_text("map", "columns for osu", "them for --from plain alone"),
        ),
    ],
)
def test_options_that_do_not_fit(tmp_path, capsys, arguments, line):
    path = tmp_path / "x.csv"
    path.write_text(TABLE)
    assert main(["convert", str(path), *arguments.split()]) == 2
    assert capsys.readouterr().err == f"torchcoll: error: {line}\n"


def test_a_map_makes_it_a_plain_table(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text(TABLE)
    assert (
        main(["convert", str(path), "--map", "collective=collective,size=Size,time=Zeit (us)"]) == 0
    )
    assert capsys.readouterr().out.endswith(f"\n{path}: plain: 1 of 1 row read, 1 case\n")


def test_the_wrong_format_by_force(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text(TABLE)
    assert main(["convert", str(path), "--from", "oneccl"]) == 3
    assert capsys.readouterr().err == error_line(f"{path} (oneccl)", "no rows", "rows of results\n")


def test_a_statistic_is_for_tables(imported):
    result = imported(text(), statistic="median")
    assert "--statistic median is for plain tables: not used" in result.warnings
    assert result.runs[0].results[0].reported.statistic == "mean"


def test_what_only_import_can_fill_in(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_text("size,time (us)\n1K,2.5\n")
    assert main(["show", str(path)]) == 3
    assert capsys.readouterr().err == (
        f"torchcoll: error: {path}:2: the table names no collective and no ranks: give "
        f"--collective and --ranks. Such as: torchcoll convert {path} --collective "
        "all_reduce --ranks 8 -o RUN.jsonl.\n"
    )
    out = str(tmp_path / "mine.jsonl")
    assert main(["convert", str(path), "--ranks", "4", "-o", out]) == 3
    assert f"{path} --collective all_reduce -o {out}.\n" in capsys.readouterr().err


def test_another_tools_run_is_not_resumed(tmp_path, capsys):
    path, out = tmp_path / "all_reduce.log", tmp_path / "run.jsonl"
    path.write_text(text(SMALL, foot=""))
    assert main(["convert", str(path), "-o", str(out)]) == 0
    stops = "truncated: the output stops before its last lines"
    assert f"{path}: {stops}\n" in capsys.readouterr().out
    assert (load(out).ending, load(out).way_on) == (stops, "")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (ONECCL.format(names="allreduce"), {"ranks": 7}, "--ranks 7, but the file says 4"),
        (
            ONECCL.format(names="allreduce"),
            {"collective": "broadcast"},
            "--collective broadcast, but the file says all_reduce",
        ),
        (
            OSU.format(kind="", name="Allreduce"),
            {"collective": "broadcast"},
            "--collective broadcast, but the file says all_reduce",
        ),
        (PARAM, {"ranks": 7}, "--ranks 7, but the file says "),
        (
            f"{RCCL}\n1,AllReduce,2,1048576,float,sum,0,24.31,43.13,43.13,0\n",
            {"ranks": 7},
            "--ranks 7, but the file says 2",
        ),
    ],
)
def test_an_option_against_the_file(imported, content, options, message):
    assert any(warning.startswith(message) for warning in imported(content, **options).warnings)
