"""Every command of the README, in its order, in a copy of the repository."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchcoll import cli
from torchcoll.bench import main as bench

ROOT = Path(__file__).parent.parent
# Runs this very suite.
NOT_HERE = ("bash tests/run.sh",)


def blocks() -> list[list[str]]:
    """The commands, block by block."""
    found = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    lines = [[line for line in block.splitlines() if line.strip()] for block in found]
    return [[line for line in block if line not in NOT_HERE] for block in lines]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme") / "torchcoll"
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "torchcoll-runs", "build")
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


@pytest.mark.timeout(300)
def test_every_command_of_the_readme_works(copy: Path) -> None:
    assert sum(map(len, blocks())) > 10
    # The python of this test has torch, so nothing is downloaded.
    path = f"{copy}/.venv/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)

    def works(command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], cwd=copy, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), command

    first, *others = blocks()
    for command in first:  # installs, then shows
        works(command)
    for block in others:  # at the same time: most of a launch is starting Python
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(works, block))


def test_options_that_the_readme_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        with contextlib.suppress(SystemExit):
            cli.main([command, "--help"])
    with contextlib.suppress(SystemExit):
        bench.main(argv=["--help"])
    options = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    known = set(options.findall(capsys.readouterr().out))
    # torchrun's, srun's, sbatch's and pip's.
    known |= {"--nproc-per-node", "--ntasks-per-node", "--partition", "--extra-index-url"}
    assert set(options.findall((ROOT / "README.md").read_text())) - known == set()
