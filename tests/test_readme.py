"""Every command of the README, block by block, in their order, in one copy of the repository."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from ranks import Job
from torch.distributed.run import parse_args

from torchcoll import cli
from torchcoll.bench import main as bench
from torchcoll.pairs.sweep import run_pairs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# Runs this very suite.
NOT_HERE = ("bash tests/run.sh",)
# They run in a process forked from this one: most of such a command is the import of torch and of
# what follows. The first block and tests/bench/test_bench_torchrun.py pay for it as a user does.
FORKED = ("torchcoll", "python", "torchrun")
LIBRARIES = ("matplotlib.figure", "pandas", "rich.console", "scipy.stats", "torch._dynamo")
# A case takes up to a second by default, and the largest is 128 MiB: no part of what these commands
# show.
SHORT = ("--max-time", "0.05")
LOCAL = ("-e", "4M", *SHORT)
OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
NO_LAUNCHER = dict.fromkeys((*OF_A_LAUNCHER, "MASTER_PORT"))


def blocks() -> list[tuple[str, list[str]]]:
    """(heading above it and its number there, its commands) of every block."""
    found: list[tuple[str, list[str]]] = []
    for section in re.split(r"^## ", README, flags=re.M):
        heading = section.partition("\n")[0]
        for number, block in enumerate(re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S), 1):
            lines = [line for line in block.splitlines() if line.strip() and line not in NOT_HERE]
            if lines:
                found.append((f"{heading} {number}", lines))
    return found


BLOCKS = blocks()


def launched(folder: Path, words: list[str], cwd: Path) -> Job:
    """What torchrun would start."""
    asked = parse_args(words)

    def target() -> None:
        os.chdir(cwd)
        sys.argv = [asked.training_script, *asked.training_script_args]
        if asked.module:
            if asked.training_script.startswith("torchcoll.") and "-n" not in sys.argv:
                sys.argv += SHORT
            runpy.run_module(asked.training_script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(asked.training_script, run_name="__main__")

    return Job(folder, target, int(asked.nproc_per_node))


def python(words: list[str]) -> None:
    """``python -m MODULE``: the README has no other."""
    assert words[0] == "-m", words
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)


class Reader:
    """Somebody who runs one block after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.copy = folder, folder / "torchcoll"
        ignored = (".*", "*.egg-info", "__pycache__", "torchcoll-runs", "build")
        shutil.copytree(ROOT, self.copy, ignore=shutil.ignore_patterns(*ignored))
        self.blocks = self.commands = 0
        for name in LIBRARIES:
            importlib.import_module(name)
        stub = folder / "bin/torchrun"
        stub.parent.mkdir()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "asked"))
        listener.listen()
        stub.write_text(STUB.format(python=sys.executable, path=str(folder / "asked")))
        stub.chmod(0o755)
        # The python of this test has torch, so nothing is downloaded.
        path = f"{stub.parent}:{self.copy}/.venv/bin:{Path(sys.executable).parent}"
        self.env = {"PATH": f"{path}:{os.environ['PATH']}", "PYTHON": sys.executable}
        self.env |= {"OMP_NUM_THREADS": "1"}
        self.serving = os.fork()
        if not self.serving:
            serve(listener)
        listener.close()

    def close(self) -> None:
        os.kill(self.serving, signal.SIGKILL)
        os.waitpid(self.serving, 0)

    def read(self, number: int) -> None:
        """Block ``number``, and of those before it, whose files it may read, what was left out."""
        while self.blocks <= number:
            self.blocks += 1
            for command in BLOCKS[self.blocks - 1][1]:
                self.run(command)

    def run(self, command: str) -> None:
        self.commands += 1
        folder = self.folder / f"{self.commands}"
        program = shlex.split(command)[0]
        if program not in FORKED or set("|&;<>$`") & set(command):
            done = self.shell(" ".join((command, *LOCAL)) if "local.sh" in command else command)
            codes, out, err = [done.returncode], done.stdout, done.stderr
        else:
            words = self.words(program, command)
            if program == "torchrun":
                job = launched(folder, words, self.copy)
            else:
                job = self.forked(folder, program, words)
            ranks = job.wait(300).values()
            codes, out = [rank.code for rank in ranks], job.text(0, "stdout")
            err = "".join(rank.stderr for rank in ranks)
        assert not any(codes), f"{command}\n{out}\n{err}"
        assert out.strip(), command

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.env}
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        return subprocess.run(
            ["bash", "-c", command], cwd=self.copy, env=env, capture_output=True, text=True
        )

    def words(self, program: str, command: str) -> list[str]:
        """The program's arguments as bash makes them, of quotes and globs."""
        stated = self.shell(f'{program}() {{ printf "%s\\0" "$@"; }}\n{command}')
        assert stated.returncode == 0, stated.stderr
        return stated.stdout.split("\0")[:-1]

    def forked(self, folder: Path, program: str, words: list[str]) -> Job:
        def target() -> None:
            os.chdir(self.copy)
            if program == "python":
                python(words)
            else:
                sys.argv = [program, *words]
                sys.exit(cli.main())

        return Job(folder, target, 1, environment={**NO_LAUNCHER, **self.env})


# The torchrun of `torchcoll matrix ... -- torchrun ...`: it asks a process that has imported torch.
STUB = """#!{python} -S
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({path!r})
    socket.send_fds(asked, [b"."], [1, 2])
    asked.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
    asked.shutdown(socket.SHUT_WR)
    sys.exit(int(asked.recv(9)))
"""


def serve(listener: socket.socket) -> NoReturn:
    """Be torchrun for one stub after the other; never returns into the test runner."""
    try:
        tests = os.getppid()
        listener.settimeout(5)
        while os.getppid() == tests:
            try:
                asked, _ = listener.accept()
            except TimeoutError:
                continue
            with asked, tempfile.TemporaryDirectory() as folder:
                _, (out, err), *_ = socket.recv_fds(asked, 1, 2)
                words, cwd, environment = json.loads(asked.makefile("rb").read())
                os.environ.clear()
                os.environ.update(environment)
                ranks = launched(Path(folder), words, Path(cwd)).wait(300).values()
                with open(out, "w") as stdout, open(err, "w") as stderr:
                    stdout.writelines(rank.stdout for rank in ranks)
                    stderr.writelines(rank.stderr for rank in ranks)
                asked.sendall(b"%d" % max(abs(rank.code) for rank in ranks))
    finally:
        os._exit(1)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("readme"))
    yield made
    made.close()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=[name for name, _ in BLOCKS])
def test_every_command_of_the_readme_works(reader: Reader, number: int) -> None:
    reader.read(number)


def test_the_readme_has_commands() -> None:
    names = [name for name, _ in BLOCKS]
    assert names[0] == "Start 1" and {"Measure 1", "Compare 1", "Many launches 2"} <= set(names)
    assert sum(len(commands) for _, commands in BLOCKS) > 30


def test_options_that_the_readme_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], *([command] for command in cli.commands())):
        with contextlib.suppress(SystemExit):
            cli.main([*words, "--help"])
    for action in (None, run_pairs):
        with contextlib.suppress(SystemExit):
            bench.main(argv=["--help"], action=action)
    options = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    known = set(options.findall(capsys.readouterr().out))
    # torchrun's, srun's, sbatch's and pip's.
    known |= {"--nproc-per-node", "--ntasks-per-node", "--partition", "--extra-index-url"}
    assert set(options.findall(README)) - known == set()
