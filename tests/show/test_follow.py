"""``torchcoll show --follow``: a run is watched by another process while it goes on."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from error_form import error_text
from handmade import case, result, run
from ranks import Measured

import torchcoll
from torchcoll.cli import main
from torchcoll.core.jsonl import CUT_OFF, TRUNCATED
from torchcoll.questions.page.document import _ended_so_far
from torchcoll.questions.show import follow as module

SIZES = ["1K", "4K", "16K"]


@pytest.fixture
def text(tmp_path):
    """The file of a run with three cases."""
    whole = run(*(result(case=case(size_bytes=n), size_bytes=n) for n in (1024, 4096, 16384)))
    whole.header["spec"] |= {"sizes": [1024, 4096, 16384], "collectives": ["all_reduce"]}
    torchcoll.save(whole, tmp_path / "whole.jsonl")
    return (tmp_path / "whole.jsonl").read_text()


def sizes_of_rows(out):
    rows = [line.split() for line in out.splitlines() if "correct" in line]
    return [row[0] for row in rows if row[0][0].isdigit()]


def test_rows_come_as_the_file_grows(text, tmp_path, monkeypatch, capsys):
    """The file is written in pieces that end within a line; every row is printed once."""
    path = tmp_path / "run.jsonl"
    cuts = [0, 40, len(text) // 3, len(text) // 2, len(text)]
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    printed = []

    def sleep(seconds):
        printed.append(capsys.readouterr().out)
        with path.open("a") as file:
            file.write(pieces.pop(0))

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert main(["show", "--follow", str(path)]) == 0
    out = "".join([*printed, capsys.readouterr().out])
    assert not pieces
    assert sizes_of_rows(out) == SIZES
    assert any(printed), "something was printed before the end"


def test_a_file_that_is_made_during_the_look_is_read_at_the_next(text, tmp_path, monkeypatch):
    path, load_one = tmp_path / "run.jsonl", module.load_one

    def load_late(name):
        try:
            return load_one(name)
        finally:
            path.write_text(text)

    monkeypatch.setattr(module, "load_one", load_late)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: path.write_text(text))
    assert main(["show", "--follow", str(path)]) == 0


def test_a_real_run_and_its_page(tmp_path, capsys):
    """The page is there at the end, and does not reload itself any more."""
    pytest.importorskip("plotly")
    measured = Measured(tmp_path / "run", "all_reduce", "--sizes 8,1K,4K -n 50", 2)
    page = tmp_path / "page.html"
    assert main(["show", "--follow", str(measured.path), "-o", str(page)]) == 0
    measured.ended(0)
    out = capsys.readouterr().out
    assert sizes_of_rows(out) == ["8", "1K", "4K"]
    assert out.endswith(f"report: {page}\n")
    assert 'http-equiv="refresh"' not in page.read_text()


def test_a_page_of_a_run_that_goes_on_reloads_itself(text, tmp_path, monkeypatch):
    pytest.importorskip("plotly")
    path, page = tmp_path / "run.jsonl", tmp_path / "page.html"
    *lines, end = text.splitlines(keepends=True)
    path.write_text("".join([*lines, end[:20]]))  # a record is being written
    pages = []

    def sleep(seconds):
        pages.append(page.read_text())
        path.write_text("".join([*lines, end]))

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert main(["show", "--follow", str(path), "-o", str(page)]) == 0
    assert [p.count('http-equiv="refresh"') for p in (*pages, page.read_text())] == [1, 0]
    # How far the run is comes first, and that its file has no end yet is no failure.
    assert re.search(r'<div class="answer">\s*<p>running: 3 of 3 cases, [\d:]+ elapsed', pages[0])
    assert "FAIL" not in pages[0]
    assert "cut off" not in pages[0]
    assert "running: " not in page.read_text()


def test_only_the_missing_end_of_a_run_that_goes_on_is_no_problem():
    problems = [TRUNCATED, f"line 9 is no JSON{CUT_OFF}", "line 3 is no JSON"]
    ended = _ended_so_far(run(problems=problems, end=None))
    assert (ended.problems, ended.end["status"]) == (["line 3 is no JSON"], "complete")


def test_another_run_in_the_same_file(text, tmp_path, monkeypatch, capsys):
    """A restart writes a new file of that name: its rows are not added to those before."""
    path = tmp_path / "run.jsonl"
    path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    again = run(*(result(case=case(size_bytes=n), size_bytes=n) for n in (64, 256)))
    again.header |= {"run_id": "r2"}
    again.header["spec"] |= {"sizes": [64, 256], "collectives": ["all_reduce"]}

    def sleep(seconds):
        path.unlink()
        torchcoll.save(again, path)

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert main(["show", "--follow", str(path)]) == 0
    captured = capsys.readouterr()
    assert sizes_of_rows(captured.out) == [*SIZES, "64", "256"]
    assert captured.out.count("    busbw ") == 2  # two tables
    assert f"another run began in {path}" in captured.err


def test_a_run_that_was_killed_is_mentioned(text, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.jsonl"
    path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    monkeypatch.setattr(module, "_STILL_S", 0.0)
    sleeps = []

    def sleep(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 3:
            path.write_text(text)

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert main(["show", "--follow", str(path)]) == 0
    assert capsys.readouterr().err.count("has not grown") == 1


def test_the_page_of_a_run_that_was_killed_does_not_promise_its_end(text, tmp_path, monkeypatch):
    pytest.importorskip("plotly")
    path, page = tmp_path / "run.jsonl", tmp_path / "page.html"
    path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    monkeypatch.setattr(module, "_STILL_S", 0.0)
    pages = []

    def sleep(seconds):
        pages.append(page.read_text())
        path.write_text(text)

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert main(["show", "--follow", str(path), "-o", str(page)]) == 0
    assert "the run may have been killed" in pages[0]
    assert "running: " not in pages[0]
    assert "has not grown" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["a.jsonl", "b.jsonl", "--follow"], ("follow", "2 files", "one result file")),
        (["-", "--follow"], ("follow", "-", "one result file")),
        (["a.jsonl", "--follow", "--format", "csv"], ("format", "csv", "none with --follow")),
        (["a.jsonl", "--follow", "-o", "a.txt"], ("output", "a.txt", "a file that ends in .html")),
        (["a.jsonl", "-o", "a.html"], ("output", "a.html", "--follow with it")),
    ],
)
def test_bad_input(words, error, capsys):
    assert main(["show", *words]) == 2
    assert error_text(*error) in capsys.readouterr().err


def test_a_file_that_is_no_result(tmp_path, capsys):
    (tmp_path / "notes.jsonl").write_text("no result\n")
    assert main(["show", "--follow", str(tmp_path / "notes.jsonl")]) == 3
    assert "notes.jsonl" in capsys.readouterr().err
