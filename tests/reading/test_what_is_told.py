"""--collective, --ranks and label=PATH of commands that read; folders of other files; stdin."""

from __future__ import annotations

import io
import json
import sys
import tempfile

import pytest
from error_form import error_line, error_tail, got
from foreign_files import ROW, SMALL, text
from made_runs import measured, run

from torchcoll.cli import main
from torchcoll.core import opening
from torchcoll.core.file import save
from torchcoll.reading.base import ImportOptions, make_run
from torchcoll.reading.inputs import load, split_label

# 1048576 B in 24.31 us are 43.13 GB/s; of two ranks all_reduce and sendrecv look alike.
UNNAMED = ROW


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text(UNNAMED)
    (tmp_path / "other.txt").write_text(UNNAMED.replace("24.31", "34.31").replace("43.13", "30.56"))
    monkeypatch.setattr(opening, "_stdin", [])
    return tmp_path


def rows(capsys, *arguments):
    assert main([*arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


def test_show_takes_options_that_the_file_lacks(folder, capsys):
    assert main(["show", "one.txt"]) == 3
    assert "figures fit all_reduce and sendrecv: give --collective" in capsys.readouterr().err
    (first, _) = rows(capsys, "show", "one.txt", "--collective", "sendrecv", "--ranks", "4")
    assert (first["collective"], first["ranks"], first["busbw_gbps"]) == (
        "sendrecv",
        4,
        pytest.approx(1048576 / 24310),
    )


def test_options_for_other_tools_are_refused_for_result_files(folder, capsys):
    for name in ("one", "other"):
        save(load(f"{name}.txt", collective="all_reduce"), f"{name}.jsonl")
    for command in (["show"], ["compare", "other.jsonl"]):
        assert main([*command, "one.jsonl", "--ranks", "2"]) == 2
        assert capsys.readouterr().err == error_line(
            "ranks", "2", "output of another tool: a result file has its own\n"
        )


def test_labels_name_the_files(folder, capsys):
    argv = ["--collective", "all_reduce"]
    assert main(["show", "a=one.txt", "b=other.txt", "--view", "pivot:label", *argv]) == 0
    assert "cell=a" in capsys.readouterr().out
    labels = rows(capsys, "compare", "one.txt", "other.txt", *argv)
    assert [row["ratio"] for row in labels] == [pytest.approx(34.31 / 24.31), 1]
    assert main(["algorithms", "auto=one.txt", "tree-ll=other.txt", *argv]) == 0
    assert "tree-ll" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("one.txt", ("", "one.txt")),
        ("missing.txt", ("", "missing.txt")),
        ("ring=one.txt", ("ring", "one.txt")),
        ("NCCL_ALGO=Ring=one.txt", ("NCCL_ALGO=Ring", "one.txt")),
        ("a=b.txt", ("", "a=b.txt")),  # a file of that name is there
    ],
)
def test_label_and_path(folder, argument, expected):
    (folder / "a=b.txt").write_text(UNNAMED)
    assert split_label(argument) == expected


def test_a_label_with_a_colon_selects_cases_as_in_compare(folder, capsys):
    """plot drew the cases of both backends under each of the labels backend:gloo, backend:ccl."""
    cases = [measured(50_000, backend=backend) for backend in ("gloo", "nccl")]
    save(run(*cases), "both.jsonl")
    assert {row["backend"] for row in rows(capsys, "show", "both.jsonl")} == {"gloo", "nccl"}
    assert {row["backend"] for row in rows(capsys, "show", "backend:nccl=both.jsonl")} == {"nccl"}
    arguments = ["backend:gloo=both.jsonl", "backend:nccl=both.jsonl", "-o", "p.svg"]
    assert main(["plot", *arguments]) == 0
    capsys.readouterr()
    drawn = (folder / "p.svg").read_text()
    assert "<!-- backend:gloo, gloo -->" in drawn and "backend:gloo, nccl -->" not in drawn
    for label, expected in (
        ("backend:ccl", "a backend that some case has\n"),
        ("x:gloo", "a field of a case before ':', such as backend:gloo\n"),
    ):
        assert main(["show", f"{label}=both.jsonl"]) == 2
        assert capsys.readouterr().err == error_line("label", label, expected)


@pytest.mark.parametrize("command", ["plot", "compare", "show"])
def test_two_labels_are_refused_and_the_right_one_is_named(folder, capsys, command):
    """plot dropped x and backend:gloo, and drew both backends."""
    save(run(*(measured(50_000, backend=backend) for backend in ("gloo", "nccl"))), "both.jsonl")
    assert main([command, "x=backend:gloo=both.jsonl", "y=both.jsonl"]) == 2
    expected = (
        "one label: NAME=PATH, or FIELD:VALUE=PATH. "
        "backend:gloo names the side itself: backend:gloo=both.jsonl.\n"
    )
    assert capsys.readouterr().err == error_line("label", "x=backend:gloo", expected)


def test_a_colon_in_the_value_of_a_setting_selects_nothing(folder, capsys):
    for number, name in enumerate("ab"):
        save(run(measured(50_000 + number)), f"{name}.jsonl")
    sides = [f"NCCL_IB_HCA=mlx5_{number}:1={name}.jsonl" for number, name in enumerate("ab")]
    assert main(["compare", *sides]) == 0
    assert "NCCL_IB_HCA=mlx5_0:1" in capsys.readouterr().out


def test_a_folder_with_another_file_shows_the_rest(folder, capsys):
    for name in ("one.txt", "other.txt"):
        (folder / name).unlink()
    (folder / "a.log").write_text(text())
    (folder / "README.md").write_text("# Notes\n")
    (folder / "hosts.txt").write_text("node1 node2\n")
    assert main(["show", "."]) == 0
    out, err = capsys.readouterr()
    assert "all_reduce" in out
    # Notes are no results, which nobody needs to be told.
    assert err == "torchcoll: note: skipped 1 file without results: hosts.txt\n"
    (folder / "hosts.txt").unlink()
    # What is named is wanted; and so is something of a folder.
    assert main(["show", "README.md"]) == 3
    (folder / "a.log").unlink()
    assert main(["show", "."]) == 3


def test_a_folder_without_results(folder, capsys):
    runs = folder / "runs"
    runs.mkdir()
    for number in range(7):
        (runs / f"{number}.md").write_text("# Notes\n")
    assert main(["cold", "runs"]) == 3
    assert capsys.readouterr().err == error_line(
        "result files",
        "runs/0.md, runs/1.md, runs/2.md, runs/3.md, runs/4.md and 2 more",
        "a torchcoll result file, or output of another tool\n",
    )

    # Beside a result they are one line, whatever there are.
    (runs / "a.log").write_text(text())
    for number in range(7):
        (runs / f"{number}.md").rename(runs / f"{number}.txt")
    assert main(["show", "runs"]) == 0
    assert capsys.readouterr().err == (
        "torchcoll: note: skipped 7 files without results: runs/0.txt, runs/1.txt, runs/2.txt, "
        "runs/3.txt, runs/4.txt and 2 more\n"
    )


def test_stdin_is_read_by_every_command(folder, capsys, monkeypatch):
    save(load("one.txt", collective="all_reduce"), "own.jsonl")

    def typed(data: bytes) -> None:
        monkeypatch.setattr(opening, "_stdin", [])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    typed((folder / "own.jsonl").read_bytes())
    assert [row["size_bytes"] for row in rows(capsys, "show", "-")] == [1 << 20] * 2
    typed(UNNAMED.encode())
    assert len(rows(capsys, "show", "-", "--collective", "all_reduce")) == 2
    typed((folder / "other.txt").read_bytes())
    assert len(rows(capsys, "compare", "own.jsonl", "-", "--collective", "all_reduce")) == 2
    typed((folder / "own.jsonl").read_bytes())
    assert load("-").path is None


def test_messages_name_standard_input(folder, capsys, monkeypatch):
    """Messages must not name the temporary file that stdin was copied to."""
    for command in ("show", "trace", "log", "algorithms"):
        monkeypatch.setattr(opening, "_stdin", [])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nothing of use\n")))
        assert main([command, "-"]) == 3
        err = capsys.readouterr().err
        assert got(error_tail("standard input", "")) in err and tempfile.gettempdir() not in err
    monkeypatch.setattr(opening, "_stdin", [])
    cut = text(rows=SMALL + ROW[:60] + "\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(cut.encode())))
    assert main(["show", "-", "--format", "json"]) in (0, 1)
    message = [event["message"] for event in json.loads(capsys.readouterr().out)["run"]["events"]]
    assert any(line.startswith("refused: standard input:") for line in message)


def test_a_model_is_named_as_such(folder, capsys):
    (folder / "machine.json").write_text('{\n "schema": "torchcoll-model/2"\n}\n')
    assert main(["show", "machine.json"]) == 3
    expected = error_tail("machine.json", "results; this is a model. torchcoll model predict")
    assert got(expected) in capsys.readouterr().err


def test_secrets_in_what_a_tool_printed_are_masked():
    source = {"tool": "x", "command": "x --token canary1"}
    events = [{"kind": "error", "message": "no proxy at http://bob:canary2@h", "rank": 1}]
    run = make_run([], ImportOptions(file="a.txt"), source, events=events)
    assert run.header["source"]["command"] == "x --token ***"
    assert run.events == [{"kind": "error", "message": "no proxy at http://***@h", "rank": 1}]
