"""The console command: exit codes, one line for each error, and what it must not import."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from error_form import error_line, error_text

from torchcoll import __version__, cli
from torchcoll.cli import GROUPS, commands, group_options, load_command, main
from torchcoll.core.case import Case
from torchcoll.core.file import save
from torchcoll.core.result import CaseResult, Run

ROOT = Path(__file__).resolve().parent.parent
CASE = Case("all_reduce", 1000, "float32", "sum", None, True, "synchronized", "gloo", "cpu")
LISTS = "torchcoll --help lists the commands."
MEASURE = "To measure: torchrun --nproc-per-node N -m torchcoll.allreduce."
COMPLETE = {"status": "complete", "exit_code": 0, "wall_s": 1.0}


def result(calls: int = 3) -> CaseResult:
    times = {"host": [[1_000] * calls, [2_000] * calls]}
    return CaseResult(CASE, "ok", 2, count=250, size_bytes=1000, time_ns=times)


@pytest.fixture
def path(tmp_path):
    save(Run(header={"ranks": 2}, results=[result()], end=COMPLETE), tmp_path / "a.jsonl")
    return tmp_path / "a.jsonl"


def command(*arguments: object, **how) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchcoll", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        **how,
    )


def test_show_prints_the_table(path, capsys):
    assert main(["show", str(path)]) == 0
    out, err = capsys.readouterr()
    # 1000 B in 2 us is 0.5 GB/s, and 2 ranks have a bus factor of 1.
    assert out.splitlines()[-3].split() == [
        "1000",
        "-",
        "2.000",
        "us",
        "2.000",
        "us",
        "2.000",
        "us",
        "3",
        "0.500",
        "0.500",
        "unchecked",
    ]
    # 1000 B in 2 us.
    measured = "all_reduce on 2 gloo ranks takes 2.00 us and reaches 0.500 GB/s of busbw at 1000 B"
    assert out.startswith(f"{measured}; ") and "; NO REFERENCE for gloo on cpu" in out
    assert err == ""


def test_show_takes_every_choice(path, capsys):
    line = f"show {path} --format csv --columns median_ns --percentiles 0,100 --over-ranks min"
    assert main([*line.split(), "--clock", "host"]) == 0
    assert capsys.readouterr().out == "median_ns,p0_ns,p100_ns\n1000.0,1000.0,1000.0\n"
    assert main(["show", str(path), "--view", "pivot:ranks", "--metric", "time"]) == 0
    assert "\nsize         2\n1000  2.000 us\n" in capsys.readouterr().out
    assert main(["show", str(path), "--view", "ranks"]) == 0
    assert main(["show", str(path), "--view", "calls"]) == 0
    assert main(["show", str(path), str(path)]) == 0


def test_a_truncated_file_is_shown_and_said_to_be(tmp_path, capsys):
    cut = tmp_path / "cut.jsonl"
    save(Run(header={"ranks": 2}, results=[result()]), cut)
    assert main(["show", str(cut)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(
        "FAIL truncated: the file has no end record\n"
        f"Next: run the rest: torchrun ... -m torchcoll.suite --resume {cut}\n"
    )
    assert err == ""  # once is enough
    # What a machine reads may say it nowhere.
    assert main(["show", str(cut), "--format", "csv"]) == 0
    assert capsys.readouterr().err == (
        f"torchcoll: warning: {cut}: truncated: the file has no end record\n"
    )
    with open(cut, "a") as file:
        file.write("{")
    assert main(["show", str(cut), "--format", "csv"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.count(str(cut)) for line in lines] == [1, 1]


def test_what_could_be_shown_is_success(tmp_path):
    """Whatever the file tells of failures."""
    bad = tmp_path / "bad.jsonl"
    failed = CaseResult(CASE, "failed", 2, "broken")
    ended = {"status": "failed", "exit_code": 5, "reason": "lost rank 1"}
    save(Run(header={"ranks": 2}, results=[failed], end=ended), bad)
    assert main(["show", str(bad)]) == 0
    save(Run(header={"ranks": 2}), tmp_path / "cut.jsonl")
    assert main(["show", str(tmp_path / "cut.jsonl")]) == 0


def test_a_part_is_not_counted_beside_its_whole(path, capsys):
    save(Run(header={"ranks": 2}, results=[], end=COMPLETE), f"{path}.2")
    assert main(["show", str(path), f"{path}.2", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["run"]["path"] == str(path)  # one run, no array
    assert err == f"torchcoll: warning: {path}.2 is a part of {path}: it is shown once\n"


@pytest.fixture(scope="module")
def completion(tmp_path_factory):
    written = command("--print-completion", "bash")
    assert (written.returncode, written.stderr) == (0, "")
    script = tmp_path_factory.mktemp("completion") / "script"
    script.write_text(written.stdout)
    return script


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["comp"], ["compare"]),
        (["show", "--ve"], ["--verbose"]),
        (["show", "se"], ["setup.cfg"]),
        (["check", "--baseline", "se"], ["setup.cfg"]),
        (["matrix", "--output", "exam"], ["examples"]),
        (["--print"], ["--print-completion"]),
    ],
)
def test_bash_completes(words, completed, completion):
    """As bash does it: the words in COMP_WORDS, the function that was registered, COMPREPLY."""
    asked = '''source "$0" || exit 1
        COMP_WORDS=(torchcoll "$@") COMP_CWORD=$#
        found=$(complete -p torchcoll) && [[ $found =~ -F\\ ([^ ]+) ]] || exit 2
        "${BASH_REMATCH[1]}" torchcoll "${@: -1}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf "%s\\n" "${COMPREPLY[@]}"'''
    done = subprocess.run(
        ["bash", "--norc", "-c", asked, str(completion), *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == completed


def test_completion_of_other_shells(capsys, monkeypatch):
    assert main(["--print-completion", "tcsh"]) == 0
    assert "complete torchcoll" in capsys.readouterr().out
    assert main(["--print-completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef torchcoll")
    assert main(["--print-completion", "fish"]) == 2
    assert capsys.readouterr().err == (
        error_line("print-completion", "fish", "one of bash, zsh, tcsh\n")
    )
    monkeypatch.setitem(sys.modules, "shtab", None)  # an image that lacks it
    assert main(["--print-completion", "bash"]) == 4
    assert capsys.readouterr().err == (
        error_line("shtab", "none", "it installed. python -m pip install shtab.\n")
    )


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"torchcoll {__version__}\n"
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: torchcoll [-h]")
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "To measure: torchrun --nproc-per-node N -m torchcoll.allreduce" in text
    assert "show" in text
    assert main(["show", "--help"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ("xyzzy", 2, error_text("command", "xyzzy", f"a command. {LISTS} {MEASURE}")),
        ("--x", 2, "the following arguments are required: COMMAND. See torchcoll --help."),
        ("show", 2, error_text("show", "no file", "at least one result file")),
        (
            "show FILE --form csv",
            2,
            "unrecognized arguments: --form csv. Did you mean --format? See torchcoll show --help.",
        ),
        (
            "compare FILE FILE --bogus",
            2,
            "unrecognized arguments: --bogus. See torchcoll compare --help.",
        ),
        (
            "compare FILE FILE -o x.csv",
            2,
            "unrecognized arguments: -o x.csv. See torchcoll compare --help.",
        ),
        (
            "check FILE --junit -",
            2,
            error_text("junit", "-", "a file. What is shown goes to stdout."),
        ),
        (
            "compair",
            2,
            error_text(
                "command",
                "compair",
                f"a command. Did you mean compare or pairs? {LISTS} {MEASURE}",
            ),
        ),
        (
            "export",
            2,
            error_text(
                "command",
                "export",
                "a command. torchcoll show FILE --format csv (or json, markdown) prints results "
                f"as data. {LISTS} {MEASURE}",
            ),
        ),
        (
            "contention runs/",
            2,
            error_text(
                "command",
                "contention",
                "a command. torchrun ... -m torchcoll.allreduce --concurrent copy, then torchcoll "
                f"show FILE. {LISTS} {MEASURE}",
            ),
        ),
        (
            "import",
            2,
            error_text(
                "command",
                "import",
                "a command. torchcoll convert LOG -o RUN.jsonl reads a log of another tool. "
                f"{LISTS} {MEASURE}",
            ),
        ),
        (
            "show fail.jsonl",
            3,
            "file: got fail.jsonl, expected a file that exists. Did you mean file.jsonl?",
        ),
        (
            "show DIRR/file.jsonl",
            3,
            "file: got DIRR/file.jsonl, expected a file that exists",
        ),
        ("show a", 3, "file: got a, expected a file that exists"),
        (
            "again azure-nd-h100-v6",
            3,
            error_text(
                "result file",
                "azure-nd-h100-v6",
                "a file, or an entry of torchcoll show --published. Did you mean azure-nd-h100-v5?",
            ),
        ),
        (
            "show FILE --format",
            2,
            "argument --format: expected one argument. See torchcoll show --help.",
        ),
        ("show FILE --metric gbps", 2, error_text("metric", "gbps", "one of time, algbw, busbw")),
        ("show absent.jsonl", 3, "file: got absent.jsonl, expected a file that exists"),
        ("show DIR", 3, error_text("folder", "DIR", "a folder with result files")),
        (
            f"show {ROOT}/pyproject.toml",
            3,
            error_text(
                "file",
                f"{ROOT}/pyproject.toml",
                "a torchcoll result file, output of a benchmark, a log, or a trace. It begins with "
                "'# pip refuses a setup.cfg alone; everything about the package is in setup.cfg.'. "
                "Give the lines of the benchmark itself, with the heading of its table.",
            ),
        ),
    ],
)
def test_errors_are_one_line(arguments, code, line, path, in_tmp_path, capsys):
    for folder in ("DIR", "FULL", "b"):  # no name is like that of a single letter
        os.mkdir(folder)
    for file in ("file.jsonl", "FULL/a.jsonl"):
        Path(file).write_text("{}")
    assert main([str(path) if a == "FILE" else a for a in arguments.split()]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"torchcoll: error: {line}\n"


def test_a_converted_file_has_the_format_that_its_name_ends_in(path, in_tmp_path, capsys):
    assert main(["convert", str(path), "-o", "rows.csv"]) == 0
    assert Path("rows.csv").read_text().startswith("collective,backend,")
    assert main(["convert", str(path), "-o", "rows.txt"]) == 2
    assert error_text("output ends in", "txt", "one of ") in capsys.readouterr().err


def test_interrupt(path, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchcoll.reading.inputs.load_own", stop)
    assert main(["show", str(path)]) == 130


def test_a_reader_that_leaves_is_no_error(tmp_path):
    long = tmp_path / "long.jsonl"
    save(Run(results=[result(20_000)], end=COMPLETE), long)
    child = subprocess.Popen(
        [sys.executable, "-m", "torchcoll", "show", str(long), "--view", "calls"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert child.stdout and child.stderr
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 128 + 13


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "torchcoll", "show", str(path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    assert done.returncode == 1
    assert done.stderr == "torchcoll: error: cannot write to stdout (No space left on device)\n"


def test_a_closed_stdout_is_no_error(path):
    program = f"exec {sys.executable} -m torchcoll show {path} >&-"
    done = subprocess.run(["sh", "-c", program], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_and_an_ascii_locale(path, tmp_path):
    labels = {"site": "Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich"}
    named = tmp_path / "b.jsonl"
    save(Run(header={"spec": {"labels": labels}}, results=[result()], end=COMPLETE), named)
    done = command("show", named, env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nlabels: site=Z\\xfcrich\n" in done.stdout


def test_a_library_that_an_image_lacks(monkeypatch, tmp_path, capsys):
    (tmp_path / "topo.xml").write_text('<system version="1"></system>')
    monkeypatch.setitem(sys.modules, "defusedxml.common", None)
    assert main(["log", str(tmp_path / "topo.xml")]) == 4
    assert capsys.readouterr().err == (
        error_line("defusedxml", "none", "it installed. python -m pip install defusedxml.\n")
    )
    monkeypatch.setitem(
        sys.modules, "torchcoll.libraries.show", None
    )  # ours: a defect, not an image
    with pytest.raises(ModuleNotFoundError):
        main(["log", str(tmp_path / "topo.xml")])


def test_a_slow_command_says_on_a_terminal_that_it_works(path):
    """As a user sees it: a terminal of both streams, and a command that takes its time."""
    program = (
        "import sys, time\nfrom torchcoll import cli\n"
        "from torchcoll.report import destination\n"
        "destination._WAITING_S = 0.2\n"
        "from torchcoll.questions.show import command\n"
        "shown = command._shown\n"
        "command._shown = lambda options: (time.sleep(1), shown(options))[1]\n"
        f"sys.exit(cli.main(['show', {str(path)!r}]))\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="200", NO_COLOR="1")
        os.execv(sys.executable, [sys.executable, "-c", program])
    seen = b""
    with contextlib.suppress(OSError):  # Linux: the other end is closed
        while piece := os.read(terminal, 1 << 16):
            seen += piece
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    first, *rest = seen.decode().splitlines()
    assert first == "torchcoll show is working ..."
    assert "all_reduce on 2 gloo ranks" in rest[0] and "working" not in "".join(rest)


LOADED = {name: load_command(name, entry) for name, entry in commands().items()}
EXAMPLES = [line for command in LOADED.values() for line in command.examples]


def test_every_command_is_in_a_group():
    assert {entry.group for entry in commands().values()} == {*GROUPS} - {"other"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_help_are_understood(example):
    """Their options are there; what they read need not be."""
    program, *words = shlex.split(example)
    if program == "torchrun":
        words = words[words.index("torchcoll") + 1 :]
    assert cli._parse(words, commands()[words[0]]).command == words[0]


def test_the_help_lists_commands_by_what_they_are_for(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    heads = [line for line in text.splitlines() if line.rstrip(":") in GROUPS]
    assert heads == [f"{group}:" for group in GROUPS if group != "other"]
    assert all(f"\n  {name} " in text for name in commands())
    assert main(["show", "--help"]) == 0
    assert "examples:\n  torchcoll show run.jsonl\n" in capsys.readouterr().out


def test_a_mistyped_option_names_the_nearest(capsys):
    assert main(["cold", "x", "--form", "csv"]) == 2
    assert "Did you mean --format or --force? See torchcoll cold --help" in capsys.readouterr().err


@pytest.mark.parametrize("name", commands())
def test_many_options_are_in_named_groups(name):
    """From ten on; all of them but --help."""
    parser = argparse.ArgumentParser()
    command = LOADED[name]
    cli._add_options(name, command, parser)
    group_options(parser, command)
    ungrouped = {id(action) for action in parser._optionals._group_actions}
    assert len(ungrouped) <= 10  # --help is one of them
    assert not command.option_groups or len(ungrouped) == 1  # --help
    grouped = [g for g in parser._action_groups if g.title in command.option_groups]
    assert sum(len(group._group_actions) for group in grouped) == sum(
        len(names.split()) for names in command.option_groups.values()
    )
