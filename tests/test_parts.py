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
# What each part brings that is gone with it: commands, and a heading of the page of COMMANDS.
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
    ["compare", "backend:gloo=run-1.jsonl", "backend:ccl=run-1.jsonl"],
    ["doctor", "--help"],
    ["report", "../a100-8gpu-baseline/curve-3gpu.jsonl", "-o", "PAGE"],  # small
]
# A fork for each torchcoll. What is not ours is imported before: it takes longer than all else.
_PROGRAM = """
import contextlib, io, json, os, sys
import jinja2, matplotlib.figure, pandas, plotly.graph_objects, rich.console, scipy.stats
for path, commands in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    sys.path.insert(0, path)
    from torchcoll import cli
    ended = []
    for argv in commands:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(argv)
        ended.append([code, out.getvalue(), err.getvalue()])
    stated = {"file": cli.__file__, "commands": sorted(cli.commands()), "ended": ended}
    print(json.dumps(stated), flush=True)
    os._exit(0)
"""
EXTENDED = {"check", "compare", "convert", "doctor", "show"}
AWAY = [[], *([name] for name in OWN), OWN]


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


def told(*jobs: tuple[Path, list[list[str]]]) -> list[dict]:
    """What the commands end with and print, of the torchcoll at each path."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([[str(path), argv] for path, argv in jobs])],
        cwd=RUNS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, tuple[dict, str]]:
    """{parts that are away: what the commands say, and the page}."""
    folders = [tmp_path_factory.mktemp("torchcoll") for _ in AWAY]
    jobs = [
        (
            linked(folder, {*without}) if without else ROOT,
            [[w if w != "PAGE" else str(folder / "page.html") for w in c] for c in COMMANDS],
        )
        for folder, without in zip(folders, AWAY, strict=True)
    ]
    pages = [(folder / "page.html").read_text for folder in folders]
    return {
        "-".join(without): (answer, page())
        for without, answer, page in zip(AWAY, told(*jobs), pages, strict=True)
    }


def test_the_table_here_has_every_part():
    assert list(BROUGHT) == OWN == [name.rpartition(".")[2] for name, _ in parts()]


@pytest.mark.parametrize("without", AWAY[1:], ids="-".join)
def test_a_part_can_be_taken_away(answers, without):
    """Every command of the kernel works and says what it said; what the part brought is gone."""
    (all_of_it, all_of_page), (rest, page) = answers[""], answers["-".join(without)]
    assert not Path(rest["file"]).is_relative_to(ROOT)
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
    for name in OWN:
        if heading := BROUGHT[name][1]:
            assert heading in all_of_page
            assert (heading in page) is (name not in without)


def python(*words: str, path: str) -> subprocess.CompletedProcess[str]:
    """This interpreter, which finds torchcoll on ``path``; not where the whole torchcoll is."""
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *words], cwd=RUNS, env=env, capture_output=True, text=True
    )


def test_a_command_that_needs_a_part_that_is_away_says_so(tmp_path):
    plan = ["plan", "llama-3-8b", "--parallel", "fsdp=64", "--machine", "8xH100"]
    done = python("-m", "torchcoll", *plan, path=str(linked(tmp_path, {"curves"})))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
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
        assert {*part.extends, *part.options} <= EXTENDED
        assert {*part.answers} <= {"reads", "compares", "baseline", "cells", "recognises", "files"}


def test_tables_are_read_in_the_order_of_the_parts():
    assert next(modules_of("shows", "torchcoll.core.traffic")).endswith(".traffic_show")
    assert [*modules_of("shows", "torchcoll.core.result")] == []


def installed(folder: Path, package: str) -> None:
    """A distribution whose entry point names this package as a part."""
    info = folder / "weather-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torchcoll.parts]\nweather = {package}\n")


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
    installed(tmp_path, "weather_part")
    program = (
        "import torchcoll; from torchcoll import cli\n"
        "print('forecast' in torchcoll.__all__, torchcoll.forecast())\n"
        "cli.main(['--help']); cli.main(['doctor', '--help'])\n"
    )
    done = python("-c", program, path=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.stderr == ""
    assert done.stdout.startswith("True rain\n")
    assert "other:\n  weather      tell it\n" in done.stdout
    assert "--weather" in done.stdout


def test_a_broken_part_from_outside_is_named_and_left_out(tmp_path):
    installed(tmp_path, "no_such_package")
    show = ["-m", "torchcoll", "show", "run-1.jsonl"]
    done = python(*show, path=f"{tmp_path}{os.pathsep}{ROOT}")
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
    done = python("-c", program, path=str(linked(tmp_path, {"training"})))
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
    done = python("-c", program, path=str(ROOT))
    assert done.stdout == "torchcoll.parts.training.capture False\n"


def test_the_public_names_are_those_of_kernel_and_parts():
    of_parts = {name for _, part in parts() for name in part.public}
    assert {*torchcoll.__all__} == {*torchcoll._LAZY, *of_parts}
    assert not of_parts & {*torchcoll._LAZY}
