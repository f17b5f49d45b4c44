"""The parts: each can be taken away as a folder, and others plug in from outside."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchcoll
from torchcoll.core.parts import missing_part, modules_of, parts
from torchcoll.questions.page.page_draft import PLACES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torchcoll"
RUNS = ROOT / "results/gloo-oneccl-2ranks"
OWN = sorted(path.parent.name for path in PACKAGE.glob("parts/*/part.py"))
# What each part brings that is gone with it: commands, and a heading of the page of RUNS.
BROUGHT = {
    "curves": ({"algorithms", "curve", "model", "scaling"}, "Where it switches"),
    "experiments": ({"again", "bisect", "matrix", "versus"}, ""),
    "fleet": ({"collect", "nightly"}, ""),
    "postmortem": ({"postmortem"}, ""),
    "proof": (set(), ""),
    "training": ({"gradients", "plan", "replay", "trace"}, ""),
}
COMMANDS = [
    ["--help"],
    ["show", "run-1.jsonl"],
    ["check", "run-1.jsonl", "run-2.jsonl", "--format", "json"],
    ["compare", "backend:gloo=.", "backend:ccl=."],
    ["doctor", "--help"],
    ["report", "run-1.jsonl", "-o", "PAGE"],
]
_PROGRAM = """
import contextlib, io, json, os, sys
from torchcoll import cli
ended = []
for argv in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(argv)
    ended.append([code, out.getvalue(), err.getvalue()])
print(json.dumps({"file": cli.__file__, "commands": sorted(cli.commands()), "ended": ended}))
"""


def linked(folder: Path, without: set[str]) -> Path:
    """A torchcoll of links to the real one, without these parts."""
    for source in PACKAGE.iterdir():
        if source.name not in ("parts", "__pycache__"):
            target = folder / "torchcoll" / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    (folder / "torchcoll/parts").mkdir()
    for source in (PACKAGE / "parts").iterdir():
        if source.name not in without | {"__pycache__"}:
            (folder / "torchcoll/parts" / source.name).symlink_to(source)
    return folder


def told(path: Path, page: Path, commands=COMMANDS) -> dict:
    """What the commands end with and print, of the torchcoll at ``path``."""
    argv = json.dumps([[w if w != "PAGE" else str(page) for w in c] for c in commands])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, argv],
        cwd=RUNS,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[dict, str]:
    page = tmp_path_factory.mktemp("whole") / "page.html"
    return told(ROOT, page), page.read_text()


def test_the_table_here_has_every_part():
    assert list(BROUGHT) == OWN == [name.rpartition(".")[2] for name, _ in parts()]


@pytest.mark.parametrize("without", [*([name] for name in OWN), OWN], ids="-".join)
def test_a_part_can_be_taken_away(tmp_path, whole, without):
    """Every command of the kernel works and says what it said; what the part brought is gone."""
    all_of_it, all_of_page = whole
    page = tmp_path / "page.html"
    rest = told(linked(tmp_path, set(without)), page)
    assert Path(rest["file"]).is_relative_to(tmp_path)
    gone = set().union(*(BROUGHT[name][0] for name in without))
    assert set(rest["commands"]) == set(all_of_it["commands"]) - gone
    for argv, (code, out, err), before in zip(
        COMMANDS, rest["ended"], all_of_it["ended"], strict=True
    ):
        assert code == 0, (argv, err)
        if argv[0] in ("show", "check", "compare"):
            assert [code, out, err] == before, argv
    first_words = {line.split()[0] for line in rest["ended"][0][1].splitlines() if line.strip()}
    assert not gone & first_words
    assert ("--launcher" in rest["ended"][4][1]) is ("proof" not in without)
    text = page.read_text()
    for name in OWN:
        if heading := BROUGHT[name][1]:
            assert heading in all_of_page
            assert (heading in text) is (name not in without)


def test_a_command_that_needs_a_part_that_is_away_says_so(tmp_path):
    plan = ["plan", "llama-3-8b", "--parallel", "fsdp=64", "--machine", "8xH100"]
    code, out, err = told(linked(tmp_path, {"curves"}), tmp_path, [plan])["ended"][0]
    assert (code, out) == (4, "")
    assert err == (
        "torchcoll: error: curves: got none, expected it installed. "
        "This command needs torchcoll's part curves.\n"
    )


@pytest.mark.parametrize(
    "table", ["commands", "public", "options", "extends", "sections", "shows", "answers"]
)
def test_what_a_part_names_is_there(table):
    for package, part in parts():
        names = getattr(part, table)
        for name, value in names.items():
            if table == "commands":
                assert name in importlib.import_module(f"{package}.{value.module}").COMMANDS
                continue
            module, _, function = value.partition(":")
            loaded = importlib.import_module(f"{package}.{module}")
            assert not function or callable(getattr(loaded, function))


def test_a_part_names_places_and_commands_of_the_kernel():
    for _, part in parts():
        assert {*part.sections} <= {*PLACES}
        assert {*part.extends, *part.options} <= {"check", "compare", "convert", "doctor"}
        assert {*part.answers} <= {"reads", "compares", "baseline", "cells"}


def test_tables_are_read_in_the_order_of_the_parts():
    assert next(modules_of("shows", "torchcoll.core.traffic")).endswith(".traffic_show")
    assert [*modules_of("shows", "torchcoll.core.result")] == []


def test_a_part_from_outside(tmp_path):
    """A package with an entry point brings a command, a public name and an option."""
    package = tmp_path / "weather_part"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(
        "from torchcoll.core.commands import Listed\n"
        "from torchcoll.core.parts import Part\n"
        "PART = Part(\n"
        "    commands={'weather': Listed('tell it', 'other')},\n"
        "    public={'forecast': 'weather'},\n"
        "    options={'doctor': 'weather:add'},\n"
        ")\n"
    )
    (package / "weather.py").write_text(
        "def forecast():\n    return 'rain'\n\n"
        "def add(parser):\n    parser.add_argument('--weather', action='store_true')\n"
    )
    (package / "command.py").write_text(
        "from torchcoll.core.commands import SubCommand\n"
        "COMMANDS = {'weather': SubCommand(lambda parser: None, lambda options: 0)}\n"
    )
    info = tmp_path / "weather-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchcoll.parts]\nweather = weather_part\n")
    program = (
        "import torchcoll; from torchcoll import cli\n"
        "print('forecast' in torchcoll.__all__, torchcoll.forecast())\n"
        "cli.main(['--help']); cli.main(['doctor', '--help'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("True rain\n")
    assert "other:\n  weather      tell it\n" in done.stdout
    assert "--weather" in done.stdout


def test_a_broken_part_from_outside_is_named_and_left_out(tmp_path):
    info = tmp_path / "weather-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchcoll.parts]\nweather = no_such_package\n")
    done = subprocess.run(
        [sys.executable, "-m", "torchcoll", "show", str(RUNS / "run-1.jsonl")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "all_gather" in done.stdout
    assert done.stderr == (
        "torchcoll: warning: the part no_such_package is left out: "
        "ModuleNotFoundError: No module named 'no_such_package'\n"
    )


def test_traffic_cannot_be_compared_without_training(tmp_path):
    program = (
        "import torchcoll\n"
        "sent = torchcoll.Traffic.__new__(torchcoll.Traffic)\n"
        "try:\n    torchcoll.compare(sent, sent)\n"
        "except torchcoll.TorchcollError as error:\n    print(error.line())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=RUNS,  # not here, where the whole torchcoll is
        env={**os.environ, "PYTHONPATH": str(linked(tmp_path, {"training"}))},
        capture_output=True,
        text=True,
    )
    assert done.stdout == (
        "torchcoll: error: training: got none, expected it installed. "
        "This needs torchcoll's part training.\n"
    )


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("torchcoll.parts.curves", "curves"),
        ("torchcoll.parts.curves.nothing", ""),  # a defect of a part that is there
        ("torchcoll.nothing", ""),
        ("scipy", ""),
    ],
)
def test_which_part_is_missing(module, part):
    assert missing_part(ModuleNotFoundError(name=module)) == part


def test_a_rank_finds_a_public_name_without_reading_every_distribution():
    program = (
        "import sys\n"
        "from torchcoll.core.parts import modules_of\n"
        "print(next(modules_of('public', 'capture')), 'importlib.metadata' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "torchcoll.parts.training.capture False\n"


def test_the_public_names_are_those_of_kernel_and_parts():
    of_parts = {name for _, part in parts() for name in part.public}
    assert {*torchcoll.__all__} == {*torchcoll._LAZY, *of_parts}
    assert not of_parts & {*torchcoll._LAZY}
