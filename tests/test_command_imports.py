"""Which slow packages each command imports: most of its time is theirs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import in_turn, make_runs

import torchcoll
from torchcoll.core.file import save

# Each takes 0.1 s or more to import.
HEAVY = (
    "torch",
    "numpy",
    "scipy.special",
    "scipy.linalg",
    "scipy.optimize",
    "scipy.interpolate",
    "scipy.stats",
    "pandas",
    "rich",
    "matplotlib",
    "plotly",
    "sqlalchemy",
)
COMPUTED = {"numpy", "scipy.special"}
FITTED = {*COMPUTED, "scipy.linalg", "scipy.optimize"}
COMMANDS = {
    "show base": set(),
    "show base/0.jsonl --view ranks": set(),
    "show base/0.jsonl --view pivot:ranks": set(),
    "show base/0.jsonl --format=json": set(),
    "check base/0.jsonl": set(),
    "show base/0.jsonl --explain": set(),
    "compare base new": COMPUTED,
    "cold base": COMPUTED,
    "scaling base": FITTED,
    "curve base": FITTED,
    "nightly base --night last": {*COMPUTED, "sqlalchemy"},
    "model fit base": {*FITTED, "scipy.interpolate"},
    "collect base --into x.db": {"sqlalchemy"},
}
# One Python for all: a child for each command, which has imported nothing yet.
FORKED = """
import io, json, os, sys

heavy, commands = json.loads(sys.argv[1])
for command in commands:
    if os.fork() == 0:
        code, out = 1, os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        from torchcoll.cli import main

        code = main(command.split())
        found = [name for name in heavy if name in sys.modules]
        os.write(out, (json.dumps([command, int(code), found]) + "\\n").encode())
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    sizes = {8 << n: 10_000 + (8 << n) for n in range(6)}
    runs = [make_runs([sizes] * 3) for _ in "ab"]
    for name, side in zip(("base", "new"), in_turn(*runs), strict=True):
        for number, one in enumerate(side):
            save(one, folder / name / f"{number}.jsonl")
    done = subprocess.run(
        [sys.executable, "-c", FORKED, json.dumps([HEAVY, list(COMMANDS)])],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(torchcoll.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = map(json.loads, done.stdout.splitlines())
    return {command: (code, set(names)) for command, code, names in lines}, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_imports(imported, command):
    found, errors = imported
    code = 2 if command.startswith("nightly") else 0  # too few nights: it cannot tell
    assert found[command] == (code, COMMANDS[command]), errors


def test_the_help_imports_no_command():
    """Nor importlib.metadata: without an installed part it takes a third of the time."""
    program = "import sys; from torchcoll.cli import main; main(['--help']); print(*sys.modules)"
    command = [sys.executable, "-S", "-c", program]
    env = {"PYTHONPATH": str(Path(torchcoll.__file__).parents[1])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()[-1].split()
    assert not {"importlib.metadata", "numpy", "pandas", "rich", "scipy", "torch"} & {*names}
    ours = {name for name in names if name.startswith("torchcoll.")}
    described = {name for name in ours if name.startswith("torchcoll.parts")}
    assert all(name.count(".") < 3 or name.endswith(".part") for name in described)
    of_help = "cli core core.commands core.errors core.parts"
    assert ours - described == {f"torchcoll.{name}" for name in of_help.split()}


def test_one_file_imports_scipy_stats():
    """It takes half a second; stats/distributions.py has what most commands need of it."""
    imports = [
        f"{path.name}: {line.partition('#')[0].strip()}"
        for path in sorted(Path(torchcoll.__file__).parent.rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.match(r"\s*(import|from) scipy", line)
    ]
    assert len(imports) > 10  # of scipy.special and others
    of_stats = {line for line in imports if re.search(r"scipy.*\bstats\b", line)}
    assert of_stats == {"distributions.py: from scipy import stats"}
