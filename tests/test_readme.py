"""Every command of the README, in its order, in a copy of the repository."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import Job
from torch.distributed.run import parse_args

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


def torchrun(copy: Path, folder: Path, words: list[str]) -> Job:
    """What torchrun would start, forked: of real launches most is the import of torch, which
    launch/local.sh in the README's first block and tests/bench/test_bench_torchrun.py pay for.
    """
    asked = parse_args(words)

    def target() -> None:
        os.chdir(copy)
        sys.argv = [asked.training_script, *asked.training_script_args]
        if asked.module:
            runpy.run_module(asked.training_script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(asked.training_script, run_name="__main__")

    return Job(folder, target, int(asked.nproc_per_node))


@pytest.mark.timeout(900)  # 60 s alone on 2 cores
def test_every_command_of_the_readme_works(copy: Path, tmp_path: Path) -> None:
    commands = [command for block in blocks() for command in block]
    assert len(commands) > 10
    # The python of this test has torch, so nothing is downloaded.
    path = f"{copy}/.venv/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    for number, command in enumerate(commands):
        program, *words = shlex.split(command)
        if program == "torchrun":
            ranks = torchrun(copy, tmp_path / str(number), words).wait(300)
            codes, out = [rank.code for rank in ranks.values()], ranks[0].stdout
            err = "".join(rank.stderr for rank in ranks.values())
        else:
            done = subprocess.run(
                ["bash", "-c", command], cwd=copy, env=env, capture_output=True, text=True
            )
            codes, out, err = [done.returncode], done.stdout, done.stderr
        assert not any(codes), f"{command}\n{out}\n{err}"
        assert out.strip(), command


def test_options_that_the_readme_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli.COMMANDS:
        with contextlib.suppress(SystemExit):
            cli.main([command, "--help"])
    for collective in (None, "pairs"):
        with contextlib.suppress(SystemExit):
            bench.main(collective, ["--help"])
    options = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    known = set(options.findall(capsys.readouterr().out))
    # torchrun's, srun's, sbatch's and pip's.
    known |= {"--nproc-per-node", "--ntasks-per-node", "--partition", "--extra-index-url"}
    assert set(options.findall((ROOT / "README.md").read_text())) - known == set()
