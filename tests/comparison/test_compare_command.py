"""``torchcoll compare``: sides, gates, formats, and one line for each error."""

import csv
import dataclasses
import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest
from error_form import error_line, error_text
from made_runs import given, in_turn, make_runs, measured, run

from torchcoll.cli import main
from torchcoll.core.file import save
from torchcoll.core.summary import Row
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import answer_of
from torchcoll.questions.comparison.results import tables_of
from torchcoll.questions.comparison.show import matrix_grid, show_comparisons
from torchcoll.stats.sides import side

ROOT = Path(__file__).resolve().parents[2]
BASE = make_runs([100_000, 101_000, 99_000, 100_500, 99_500, 100_000])
THIRD = make_runs([100_000, 99_500, 100_500, 99_000, 101_000, 100_000])
SLOW = make_runs([n * 104 // 100 for n in (100_100, 101_000, 99_000, 100_600, 99_400, 99_900)])


@pytest.fixture(autouse=True)
def _screen(monkeypatch):
    """The answer below long tables alone, as users get it."""
    monkeypatch.setattr("torchcoll.report.grid._SCREEN", 15)


@pytest.fixture
def folder(in_tmp_path):
    sides = in_turn(BASE, SLOW, THIRD)
    for name, runs in zip(("before", "after", "third"), sides, strict=True):
        for number, each in enumerate(runs):
            save(each, in_tmp_path / name / f"{number}.jsonl")
    return in_tmp_path


def rows(capsys):
    return json.loads(capsys.readouterr().out)["rows"]


TABLE = """\
after is 1.04x slower than before at 1K (at least 1.03x, 6 runs each)

base: before (6 runs); new: after (6 runs)
all_reduce, float32, sum, in place; gloo, cpu, 2 ranks, synchronized mode, host clock
time: median over calls, max over ranks; geometric mean over the runs; \
speed-up: how many times as fast the new side is

size    before     after  speed-up  result                95 % interval
  1K  100.0 us  104.0 us     0.961  slower (p < 0.0001)  0.952 to 0.970
"""


def test_the_table(folder, capsys):
    """1 / 1.0405 is 0.961; 1.0507 and 1.0305, the ends of the ratio's interval, are 0.952 and 0.970
    (``test_json_has_the_fields_of_a_row_and_what_was_found``).
    """
    assert main(["compare", "before", "after"]) == 0
    assert capsys.readouterr().out == TABLE


@pytest.mark.parametrize(
    "sides",
    [
        "before after",
        "before/*.jsonl after/*.jsonl",
        "old=before new=after",
        "old=before/*.jsonl new=after/[0-4].jsonl new=after/5.jsonl",
        "before " + " ".join(f"after/{number}.jsonl" for number in range(6)),
    ],
)
def test_sides(folder, sides, capsys):
    assert main(["compare", *sides.split(), "--format", "json"]) == 0
    (row,) = rows(capsys)
    assert (row["base_runs"], row["new_runs"], row["result"]) == (6, 6, "slower")


ALGO = "NCCL_ALGO"


@pytest.mark.parametrize(
    ("base", "new", "text"),
    [
        # The files of many/*0* many/*1*, which the shell found.
        ({"labels": {"cell": "0"}}, [{"labels": {"cell": c}} for c in "0011"], "2 like BASE in "
         "label=cell and 2 not"),
        ({"labels": {}}, [{"labels": {}}, {"labels": {"tuned": "yes"}}], "1 like BASE in "
         "label=tuned and 1 not"),
        ({"variables": {}}, [{"variables": {}}, {"variables": {ALGO: "RING"}}], "1 like BASE in "
         "NCCL_ALGO and 1 not"),
        ({"ranks": 2}, [{"ranks": 4}, {"ranks": 2}, {"ranks": 4}], "1 like BASE in ranks and 2 "
         "not"),
        ({}, [{"environment": {"torch": "2.13.0"}}, {"environment": {"torch": "2.14.0"}}],
         "1 like BASE in torch and 1 not"),
    ],
)  # fmt: skip
def test_unnamed_files_of_two_sides_are_not_one(in_tmp_path, base, new, text, capsys):
    for number, changed in enumerate([base, *new]):
        save(run(measured(100_000 + number), **changed), f"{number}.jsonl")
    files = [f"{number}.jsonl" for number in range(len(new) + 1)]
    assert main(["compare", *files]) == 2
    error = error_line(
        "new",
        f"{len(new)} runs, {text}",
        "those of one side. Name both sides, quoted: a='...*' b='...*'.\n",
    )
    assert capsys.readouterr() == ("", error)
    # What is named is meant.
    assert main(["compare", f"a={files[0]}", *(f"b={name}" for name in files[1:])]) == 0
    assert main(["compare", *files, "--by", "kernel"]) == 0


@pytest.mark.parametrize(
    ("base", "new"),
    [
        ({"labels": {"cell": "0", "run": "1"}}, {"labels": {"cell": "1", "run": "1"}}),
        ({"environment": {"torch": "2.13.0"}}, {"environment": {"torch": "2.14.0"}}),
        ({"variables": {}}, {"variables": {ALGO: "RING"}}),
        ({}, {}),
    ],
)
def test_unnamed_files_behind_the_first_are_launches_of_one_side(in_tmp_path, base, new, capsys):
    save(run(measured(100_000), **base), "0.jsonl")
    save(run(measured(90_000), **new), "1.jsonl")
    if "labels" in new:
        new = {"labels": {**new["labels"], "run": "2"}}
    # Another host and kernel are a scheduler's choice.
    save(run(measured(91_000), **{"hosts": ["other"], **new}), "2.jsonl")
    assert main(["compare", "0.jsonl", "1.jsonl", "2.jsonl", "--format", "json"]) == 0
    assert rows(capsys)[0]["new_runs"] == 2


def test_two_backends_of_the_same_launches(folder, capsys):
    for number, noise in enumerate((0, 100, -100, 50)):
        both = [measured(100_000 + noise), measured(120_000 - noise, backend="ccl")]
        more = [
            measured(90_000 + noise, dtype="bfloat16"),
            measured(9, size_bytes=8, dtype="bfloat16"),
        ]
        save(run(*both, *more), folder / "one" / f"{number}.jsonl")
    assert main(["compare", "backend:gloo=one", "backend:ccl=one", "--format", "json"]) == 0
    found = rows(capsys)
    assert [(r["result"], r["dtype"], r["ratio"] and round(r["ratio"], 2)) for r in found] == [
        ("slower", "float32", 1.2),
        ("not comparable", "bfloat16", None),
        ("not comparable", "bfloat16", None),
    ]
    # What keeps cases apart otherwise is compared where it is asked for.
    line = "compare dtype:float32=one dtype:bfloat16=one --filter backend=gloo,size=1K"
    assert main([*line.split(), "--format", "json"]) == 0
    assert [r["result"] for r in rows(capsys)] == ["faster"]
    assert main(["compare", "speed:1=one", "speed:2=one"]) == 2
    assert error_text("filter name", "speed", "one of size, ") in capsys.readouterr().err


def test_three_sides_are_two_comparisons(folder, capsys):
    assert main(["compare", "a=before", "b=after", "c=third", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["base"]["name"], each["new"]["name"]) for each in found] == [
        ("a", "b"),
        ("a", "c"),
    ]
    assert [each["rows"][0]["result"] for each in found] == ["slower", "same"]
    assert main(["compare", "a=before", "b=after", "c=third"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[:2] == [
        "b is 1.04x slower than a at 1K (at least 1.03x, 6 runs each)",
        "c is as fast as a: 1K is the same within 2 %",
    ]
    assert "\nbase: a (before, 6 runs); new: c (third, 6 runs)\n" in text
    assert main(["compare", "a=before", "b=after", "c=third", "--format", "csv"]) == 0
    assert [r["new_name"] for r in csv.DictReader(io.StringIO(capsys.readouterr().out))] == [
        "b",
        "c",
    ]


@pytest.fixture
def sizes(in_tmp_path):
    """8: slower by 20 %, 64: faster by 10 %, 1K: the same, 1M: inconclusive (its runs scatter)."""
    noise = (-200, 100, 0, 200, -100, 50)
    far = (-20_000, 20_000, -15_000, 12_000, 9_000, -9_000)
    for name, slow, fast, shift in (
        ("before", 100_000, 100_000, 1),
        ("after", 120_000, 90_000, -1),
    ):
        for number, (own, wide) in enumerate(zip(noise, far, strict=True)):
            cases = {8: slow, 64: fast, 1024: 100_000}
            times = {size: ns + shift * own for size, ns in cases.items()}
            times[1 << 20] = 100_000 + shift * wide
            one = run(*(measured(ns, size_bytes=size) for size, ns in times.items()))
            one.header["start_utc"] = f"2026-02-01T00:{number:02}:0{shift + 1}.000000Z"
            save(one, in_tmp_path / name / f"{number}.jsonl")
    return in_tmp_path


ANSWER = (
    "after is 1.20x slower than before at 8 B (at least 1.19x, 6 runs each); 1.11x faster at 64 B "
    "(at least 1.10x); not decided: 1M 1.01x slower; 1K is the same within 2 %"
)


@pytest.mark.parametrize("choices", ["", "--all"])
def test_the_list_has_every_case(sizes, choices, capsys):
    assert main(["compare", "before", "after", *choices.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(n for n, line in enumerate(lines) if line.split()[:1] == ["size"])
    assert [line.split()[0] for line in lines[head + 1 : head + 5]] == ["8", "64", "1K", "1M"]
    assert lines[head + 5 :][:1] in ([], [""])
    assert lines[0] == ANSWER


def test_a_matrix_of_speed_ups(sizes):
    """1 / 1.2 is 0.833, 1 / 0.9 is 1.111; the last size differs by 20 % of noise."""
    found = compare("before", "after")
    grid = matrix_grid(found, tables_of(found.rows))
    assert grid.above == ["speed-up of after over before; ~ inconclusive; = the same within 2 %"]
    assert grid.rows[:3] == [["8", "0.833"], ["64", "1.111"], ["1K", "="]]
    assert grid.rows[3][1].startswith("~")
    assert grid.styles == ["red", "", "", ""]
    assert grid.below == ["times and intervals: --all"]


def test_many_cases_are_a_matrix(in_tmp_path, capsys):
    """2 collectives of 8 sizes, with one run of each side: nothing is marked, as all are alike."""
    sizes = [8 << n for n in range(8)]
    for name, factor in (("a", 2), ("b", 1)):
        cases = [
            measured(1000 * factor * (1 + number), size_bytes=size, collective=collective)
            for number, collective in enumerate(("all_reduce", "all_gather"))
            for size in sizes
        ]
        save(run(*cases), in_tmp_path / f"{name}.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    start = lines.index(["size", "all_reduce", "all_gather"])
    assert lines[start + 1 : start + 9] == [[str(size), "2.00", "2.00"] for size in sizes[:7]] + [
        ["1K", "2.00", "2.00"]
    ]
    assert lines[start - 2][-4:] == ["1", "run", "a", "side"]
    assert main(["compare", "a.jsonl", "b.jsonl", "--all"]) == 0
    assert "--all" not in capsys.readouterr().out


def test_the_answer_comes_first_on_a_terminal_and_is_coloured(sizes, monkeypatch):
    """And in a pipe. Below fewer than 16 lines it is not repeated."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    found = compare("before", "after")
    for name, text in (("NO_COLOR", f"\x1b[1m{ANSWER}"), ("NO", f"\x1b[1;31m{ANSWER}")):
        monkeypatch.setenv(name, "1")
        file = Terminal()
        show_comparisons([found], file=file)
        assert file.getvalue().startswith(text)
        assert file.getvalue().count(ANSWER) == 1
        monkeypatch.delenv(name)
    piped = io.StringIO()
    show_comparisons([found], file=piped)
    assert piped.getvalue().startswith(f"{ANSWER}\n\n")
    assert piped.getvalue().count(ANSWER) == 1


def test_below_a_long_table_the_answer_is_repeated(in_tmp_path):
    """Four lines above the table and a line a size: 15 lines of 11 sizes, 16 of 12."""
    for sizes, times in ((11, 1), (12, 2)):
        one, other = (
            make_runs([{8 * n: ns for n in range(1, sizes + 1)}])[0] for ns in (1000, 1100)
        )
        text = io.StringIO()
        found = compare(one, other)
        show_comparisons([found], file=text, every=True)
        answer, *further = answer_of(found).lines
        assert text.getvalue().count(answer) == times
        assert text.getvalue().startswith("\n".join([answer, *further]) + "\n\n")
        assert text.getvalue().endswith(f"\n\n{answer}\n") == (times == 2)


def test_json_has_the_fields_of_a_row_and_what_was_found(folder, capsys):
    assert main(["compare", "before", "after", "--format", "json"]) == 0
    (row,) = rows(capsys)
    assert {field.name for field in dataclasses.fields(Row)} <= set(row)
    wanted = {
        "result": "slower",
        "reason": "p < 0.0001",
        # statsmodels 0.15.0: OLS of the logarithms on [1, side, 0 to 11].
        "ratio": pytest.approx(1.04053086),
        "ratio_low": pytest.approx(1.03047345),
        "ratio_high": pytest.approx(1.05068643),
        "resolution": None,
        "size_bytes": 1024,
        "calls": 18,
        "median_ns": pytest.approx(104_000, rel=1e-3),
        "notes": [],
    }
    assert {name: row[name] for name in wanted} == wanted
    assert 0 < row["p_value"] < 1e-4


def test_csv_and_markdown(folder, capsys):
    assert main(["compare", "before", "after", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["collective"], row["result"], row["p_value"] != "") == (
        "all_reduce",
        "slower",
        True,
    )
    assert main(["compare", "before", "after", "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "- after is 1.04x slower than before at 1K (at least 1.03x, 6 runs each)\n"
    )
    assert "\n| size | before | after | speed-up | result | 95 % interval |\n" in text
    assert "| slower (p \\< 0.0001) | 0.952 to 0.970 |" in text


@pytest.mark.parametrize(
    ("gate", "code", "line"),
    [
        ("slower", 1, "1 slower"),
        ("slower:3%", 1, "1 slower"),
        ("slower:0.03", 1, "1 slower"),
        ("slower:5%", 0, ""),
        ("inconclusive,not-comparable", 0, ""),
        ("inconclusive,slower", 1, "1 slower"),
    ],
)
def test_fail_on(folder, gate, code, line, capsys):
    assert main(["compare", "before", "after", "--fail-on", gate]) == code
    out, err = capsys.readouterr()
    assert out == TABLE
    assert err == (f"torchcoll: --fail-on {gate}: {line}\n" if line else "")


def test_fail_on_what_could_not_be_compared(folder, capsys):
    save(run(measured(100, status="wrong"), measured(9, size_bytes=8)), folder / "bad.jsonl")
    save(run(measured(100), measured(9, size_bytes=8)), folder / "good.jsonl")
    line = ["compare", "good.jsonl", "bad.jsonl", "--fail-on"]
    assert main([*line, "slower,ignore-wrong"]) == 2  # one run of each side shows nothing
    assert main([*line, "not-comparable,ignore-wrong"]) == 1


def test_only_what_both_sides_tell_stands_above_the_table(folder, capsys):
    asked = {"dtype": "float32", "op": "sum", "in_place": False}
    unstated = dict.fromkeys(asked)
    save(run(given(100, **unstated), measured(9, collective="broadcast")), folder / "a.jsonl")
    save(run(given(120, **asked)), folder / "b.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "\nall_reduce; gloo, cpu, 2 ranks, synchronized mode, device clock\n" in out
    assert "speed-up: how many times as fast the new side is" in out


FLUSH, MISALIGNED = {"buffer_reuse": "flush"}, {"misalign_bytes": 4}


@pytest.mark.parametrize(
    ("base", "new", "heading", "differences"),
    [
        (
            MISALIGNED,
            FLUSH,
            "in place; gloo, cpu, 2 ranks, synchronized mode, host clock",
            ["buffer_reuse: same -> flush", "misalign_bytes: 4 -> 0"],
        ),
        (
            {},
            {"mode": "blocking", "implementation": "one_shot"},
            "in place; gloo, cpu, 2 ranks, host clock",
            ["implementation: own -> one_shot", "mode: synchronized -> blocking"],
        ),
        (
            FLUSH,
            FLUSH | MISALIGNED,
            "in place, caches overwritten before every call; "
            "gloo, cpu, 2 ranks, synchronized mode, host clock",
            ["misalign_bytes: 0 -> 4"],
        ),
    ],
)
def test_the_heading_has_only_what_both_sides_share(
    folder, base, new, heading, differences, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    save(run(measured(100, **base)), folder / "a.jsonl")
    save(run(measured(120, **new), environment={"kernel": "6.2"}), folder / "b.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    place = lines.index(f"all_reduce, float32, sum, {heading}")
    expected = ["differences:", *(f"  {text}" for text in [*differences, "kernel: 6.1 -> 6.2"])]
    assert lines[place + 1 : place + 1 + len(expected)] == expected
    assert "the sides also differ" not in out  # it would say it twice


def test_no_size_is_small_enough_for_a_latency(folder, capsys):
    save(make_runs([{1 << 20: 20_000, 4 << 20: 50_000}])[0], folder / "a.jsonl")
    save(make_runs([{1 << 20: 20_000}], device_name="PVC")[0], folder / "b.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    # 1 MiB in 20 us are 52 GB/s, above half of the 84 GB/s at 4 MiB.
    assert "half-bandwidth size 1M or less 1M or less" in lines
    assert "latency floor not seen, from 1M on not seen, from 1M on" in lines
    assert "the sides also differ" not in out  # in nothing but the hardware
    assert "speed-up" not in out


def test_different_hardware_is_shown_side_by_side(folder, capsys):
    sizes = {1024: 10_000, 1 << 20: 20_000, 4 << 20: 50_000}
    save(make_runs([sizes])[0], folder / "a.jsonl")
    save(make_runs([sizes], device_name="PVC")[0], folder / "b.jsonl")
    assert main(["compare", "nccl=a.jsonl", "oneccl=b.jsonl"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    start = lines.index("each by its own measure nccl oneccl")
    assert lines[start + 1 : start + 18] == [
        "ranks 2 2",
        "best busbw (GB/s) 83.886 83.886",
        "best busbw at 4M 4M",
        "half-bandwidth size 1K to 1M 1K to 1M",
        "latency floor 10.00 us at 1K 10.00 us at 1K",
        "first call 30.00 us 30.00 us",
        "time to first result 30.00 us 30.00 us",
        "",
        "nccl: the best is that of its largest size, 4M; larger sizes may reach more",
        "oneccl: the best is that of its largest size, 4M; larger sizes may reach more",
        "",
        "all sizes: not comparable (different hardware: device names Xeon and PVC)",
        "",
        "size nccl of its oneccl of its",
        "best best",
        "1K 10.00 us 0.1 % 10.00 us 0.1 %",
        "1M 20.00 us 62.5 % 20.00 us 62.5 %",
    ]
    assert lines[0] == (
        "nccl reaches 83.9 GB/s busbw, oneccl 83.9; no ratio (different hardware: device names "
        "Xeon and PVC); half-bandwidth size: nccl 1K to 1M, oneccl 1K to 1M"
    )
    assert lines[1:3] == [
        "latency floor: nccl 10.00 us at 1K, oneccl 10.00 us at 1K",
        "first call: nccl 30.0 us, oneccl 30.0 us",
    ]
    assert lines[-1] == lines[0]


def test_what_only_one_side_has_is_in_the_answer(folder, capsys):
    save(run(*(measured(9, size_bytes=n) for n in (8, 16, 32))), folder / "a.jsonl")
    more = (64, 128, 256, 512, 1024, 2048)
    save(run(*(measured(9, size_bytes=n) for n in (16, *more))), folder / "b.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "b lacks 2 of 3 cases (8, 32); b is within 2 % of a at 16 B; not proven: only 1 run of "
        "each side; at least 3 are needed; a lacks 6 of 7 cases (64, 128, 256, ..., 2K)"
    )
    assert not any("only in" in line for line in lines)  # the answer names the cases
    assert main(["compare", "a.jsonl", "b.jsonl", "--all"]) == 0
    out = capsys.readouterr().out
    assert "\n2 cases only in base: 8, 32\n6 cases only in new: 64, 128, 256, 512, 1K, 2K\n" in out
    assert main(["compare", "a.jsonl", "b.jsonl", "--format", "json"]) == 0
    assert len(rows(capsys)) == 9


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ("", 2, "the following arguments are required: SIDE. See torchcoll compare --help."),
        (
            "before",
            2,
            error_text("compare", "the side base alone",
                "BASE and NEW, of two names. Files of one name are runs of one side: "
                "before='a/*.jsonl' after='b/*.jsonl'."),
        ),
        (
            "before/0.jsonl before/1.jsonl after/0.jsonl",
            2,
            error_text("new", "files of 2 folders, one of them the folder of BASE",
                "files of one side. Name the folders (before ...), or each side: before=PATH "
                "after=PATH."),
        ),
        (
            "before before/0.jsonl",
            2,
            error_text("new", "before/0.jsonl, the same run as before/0.jsonl",
                "a run that is not in base. Name two different files or folders."),
        ),
        ("before =after", 2, error_text("file", "=after", "a path, or label=PATH")),
        ("before none/*.jsonl", 3, error_text("result files", "none/*.jsonl",
            "a pattern that some file matches")),
        ("before empty", 3, error_text("folder", "empty", "a folder with result files")),
        ("before above", 3, error_text("folder", "above",
            "a folder with result files. Below it are above/one/gpu (1 file), above/two (2 "
            "files): name what is meant, or 'above/**/*' for all.")),
        ("before nowhere", 3, "file: got nowhere, expected a file that exists"),
        ("before after --threshold 2", 2, error_text("threshold", "2",
            "a share above 0 and below 1, such as 2% or 0.02")),
        ("before after --fail-on faster", 2, error_text("fail-on", "faster",
            "slower, slower:5%, inconclusive, not-comparable, or ignore-wrong, ignore-failed, "
            "ignore-missing")),
        ("before after --fail-on slower:much", 2, error_text("fail-on slower", "much",
            "a share above 0 and below 1, such as 2% or 0.02")),
        ("before after --format html", 2, error_text("format", "html",
            "one of table, markdown, csv, json")),
        ("before after --metric speed", 2, error_text("metric", "speed",
            "one of time, algbw, busbw")),
        ("backend:glo=before backend:gloo=after", 2, error_text("backend", "glo",
            "a value that some case of before has: gloo. Did you mean gloo?")),
        ("backend:glo=a{b}/y.jsonl new=after", 2, error_text("backend", "glo",
            "a value that some case of a{b}/y.jsonl has: gloo. Did you mean gloo?")),
        ("misalign_bytes:4=before new=after", 2, error_text("misalign_bytes", "4",
            "a value that some case of before has: 0")),
        ("before other", 2, error_text("cases", "nothing in common in dtype (float32; bfloat16)",
            "cases that both sides have")),
    ],
)  # fmt: skip
def test_errors_are_one_line(folder, arguments, code, line, capsys):
    (folder / "empty").mkdir()
    for name in ("one/gpu/a.out", "two/a.out", "two/b.out", "two/.hidden", ".git/config"):
        path = folder / "above" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    save(run(measured(100, dtype="bfloat16")), folder / "other" / "0.jsonl")
    save(BASE[0], folder / "a{b}" / "y.jsonl")
    assert main(["compare", *arguments.split()]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"torchcoll: error: {line}\n")


@pytest.mark.parametrize("sides", ["base=real model=sim", "model=sim base=real"])
def test_a_side_named_model_has_its_errors_told(in_tmp_path, sides, capsys):
    sizes = (1 << 20, 4 << 20, 16 << 20)
    for name, times in (("real", (40_000, 100_000, 200_000)), ("sim", (30_000, 110_000, 202_000))):
        cases = [measured(ns, size_bytes=n) for ns, n in zip(times, sizes, strict=True)]
        save(run(*cases), in_tmp_path / name)
    assert main(["compare", *sides.split()]) == 0
    # |30 / 40 - 1|, |110 / 100 - 1|, |202 / 200 - 1|: 0.25 x 0.1 x 0.01 = 0.063 to the third.
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(lines[0]) == (
        "the model's time has a mean error of 12.0 % (6.3 % geometric mean) over 3 cases; worst "
        "25.0 % (1M)"
    )
    assert ["all_reduce", "3", "6.3", "%", "12.0", "%", "25.0", "%", "1M"] in lines
    # An error in place of a result, with its sign.
    assert [(line[0], line[-2]) for line in lines if line and line[-1] == "%"] == [
        ("1M", "-25.0"),
        ("4M", "+10.0"),
        ("16M", "+1.0"),
    ]
    assert main(["compare", *sides.split(), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["error"] for row in found["rows"]] == pytest.approx([-0.25, 0.1, 0.01])
    assert [(one["cases"], one["worst_bytes"]) for one in found["errors"]] == [(3, 1 << 20)] * 2
    assert main(["compare", *sides.replace("model", "new").split()]) == 0
    assert "error of the model" not in capsys.readouterr().out


def test_errors_of_a_model_by_scenario(in_tmp_path, capsys):
    """The labels that both sides tell scenarios by, and the ranks: none is pooled with another."""
    for name, factor in (("real", 100), ("sim", 110)):
        for number, (pattern, ranks) in enumerate((("incast", 2), ("incast", 4), ("ring", 2))):
            extra = 20 * (name == "sim") * (pattern == "ring")
            case = measured(factor + extra, ranks=ranks)
            one = run(case, ranks=ranks, labels={"pattern": pattern, "run": str(number)})
            save(one, in_tmp_path / name / f"{number}.jsonl")
    assert main(["compare", "measured=real", "model=sim", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["errors"]
    scenarios = [(one.get("label=pattern"), one.get("ranks"), one["cases"]) for one in found]
    assert scenarios == [(None, None, 3), ("incast", 2, 1), ("incast", 4, 1), ("ring", 2, 1)]
    assert [one["mean"] for one in found] == pytest.approx([0.5 / 3, 0.1, 0.1, 0.3])
    assert main(["compare", "measured=real", "model=sim"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "2 ranks ring 1 30.0 % 30.0 % 30.0 % 1K" in lines


def test_a_model_that_is_exact_somewhere_has_no_geometric_mean_to_boast_of():
    exact, model = (
        side("base", make_runs([{8: 100, 64: 100}])),
        side("model", make_runs([{8: 100, 64: 150}])),
    )
    every, _ = compare(exact, model).errors
    assert (every.summary.geomean, every.summary.mean) == (0.0, pytest.approx(0.25))


def test_a_pattern_takes_folders_of_folders(folder, capsys):
    (folder / "all").mkdir()
    for name in ("after", "third"):
        (folder / name).rename(folder / "all" / name)
    assert main(["compare", "before", "all/**/*"]) == 0
    assert "; new (all/**/*, 12 runs)\n" in capsys.readouterr().out


def test_a_truncated_file_is_said_to_be(folder, capsys):
    save(run(measured(100), end=None), folder / "cut.jsonl")
    assert main(["compare", "cut.jsonl", "after/0.jsonl"]) == 0
    assert "cut.jsonl: truncated: the file has no end record\n" in capsys.readouterr().out


def test_the_simulation_is_what_compare_does():
    """The benchmark states the rates; here that it simulates this command."""
    path = ROOT / "tests" / "benchmarks"
    spec = importlib.util.spec_from_file_location(
        "compare_simulation", path / "compare_simulation.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path))  # it imports what the benchmarks share
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path))
    for scenario in (module.Scenario("A-B", drift=0.01, outlier=2), module.POWERED[8]):
        agree, total = module.agreement(scenario, 2)
        assert (agree, total) == (50, 50)


def test_buffer_reuse_in_words(in_tmp_path, capsys):
    for number, name in enumerate(("a", "b")):
        reuses = ("same", "rotate", "flush")
        cases = [measured(1000 + number, buffer_reuse=reuse) for reuse in reuses]
        save(run(*cases), f"{name}.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines[-3:]] == [
        "reused buffers",
        "rotating buffers",
        "flushed caches",
    ]
