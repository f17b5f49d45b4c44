"""Run every command of the README and of docs/, and compare its output with the block below it.

Each page has its own copy of the repository. Its blocks run in their order.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import types
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked_programs import forked_program, run_python
from ranks import Job
from torch.distributed.run import parse_args

import torchcoll
from torchcoll import cli
from torchcoll.cli import KERNEL
from torchcoll.core.commands import Listed
from torchcoll.reading import registry

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SETUP = (ROOT / "setup.cfg").read_text()
DOCS = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [
    ROOT / name
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/SECURITY.md")
]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *DOCS)}
# These pages begin by installing torchcoll. They share a copy, each command runs once, and .ci/run
# has a step for them.
TOGETHER = ("README.md", "docs/install.md", "docs/start.md")
# This command would run the tests again.
NOT_HERE = ("bash tests/run.sh",)
# These programs run in a process forked from this one, because the imports of torch and of
# LIBRARIES take most of their time. tests/bench/test_bench_torchrun.py includes that time.
FORKED = ("torchcoll", "python", "torchrun")
LIBRARIES = ("matplotlib.figure", "pandas", "rich.console", "scipy.stats", "torch._dynamo")
# By default a case takes up to a second, and the largest size is 128 MiB.
SHORT = ("--max-time", "0.05")
LOCAL = ("-e", "4M", "-f", "8", *SHORT)
# What a page asks for, and the smaller question that shows here that the command works.
SMALLER = {
    "torchcoll matrix ": "torchcoll matrix --runs 3 ",  # six by default; three can be compared
    "DETAIL -o many -- torchrun --nproc-per-node 2 -m torchcoll.allreduce -b 1K -e 1M": (
        "DETAIL -o many -- torchrun --nproc-per-node 2 -m torchcoll.allreduce -b 1K -e 8K"
    ),
    "plan llama-3-70b --ranks 512 --find": "plan llama-3-8b --ranks 4 --find",
    "--soak 3s": "--soak 1s",
}
OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
NO_LAUNCHER = dict.fromkeys((*OF_A_LAUNCHER, "MASTER_PORT"))


@dataclass(frozen=True)
class Block:
    """A block of commands of a page.

    shown: the expected output of its one command, or ''. A line ``...`` matches any lines.
    """

    page: str
    name: str
    commands: list[str]
    shown: str


def blocks() -> list[Block]:
    """Return the blocks of all pages, in their order."""
    of_pages = []
    for page, text in PAGES.items():
        for section in re.split(r"^## ", text, flags=re.M):
            heading = section.partition("\n")[0] if section[0].isalnum() else "top"
            pairs = re.findall(
                r"^```bash\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", section, re.M | re.S
            )
            for number, (block, shown) in enumerate(pairs, 1):
                lines = [
                    line for line in block.splitlines() if line.strip() and line not in NOT_HERE
                ]
                if lines:
                    of_pages.append(Block(page, f"{heading} {number}", lines, shown))
    return of_pages


BLOCKS = blocks()
BLOCK_PARAMETERS = [
    pytest.param(
        block,
        marks=[pytest.mark.install] if block.page in TOGETHER else [],
        id=f"{block.page}: {block.name}",
    )
    for block in BLOCKS
]


def printed(shown: str, out: str) -> bool:
    """Return whether the output matches ``shown``, line by line."""
    pieces = re.split(r"^\.\.\.\n", shown, flags=re.M)
    pattern = "(?:.*\n)*?".join(map(re.escape, pieces))
    return re.fullmatch(pattern, out) is not None


def launched(folder: Path, words: list[str], cwd: Path) -> Job:
    """Start the ranks that torchrun would start."""
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


def python_with_torch(folder: Path) -> Path:
    """Make a python that has torch, as an image of a vendor has, and return its path.

    local.sh then does not install torch, which would take a minute.
    """
    venv.create(folder, symlinks=True)
    for kind in ("purelib", "platlib"):
        inside = sysconfig.get_path(kind, "venv", {"base": str(folder), "platbase": str(folder)})
        own = Path(inside, f"{kind}.pth")
        own.write_text(f"import site; site.addsitedir({sysconfig.get_path(kind)!r})\n")
    return folder / "bin" / "python"


def copy_repository(target: Path, whole: bool) -> None:
    """Copy the repository; unless ``whole``, only the folders of data that commands name, beside
    links to the rest.
    """
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "torchcoll-runs", "build")
    if whole:
        shutil.copytree(ROOT, target, ignore=ignored)
        return
    target.mkdir()
    names = [path.name for path in ROOT.iterdir()]
    for name in {*names} - ignored(ROOT, names):
        if name in ("examples", "results"):
            shutil.copytree(ROOT / name, target / name)
        else:
            (target / name).symlink_to(ROOT / name)


class Reader:
    """Runs the blocks of some pages, one after the other."""

    def __init__(self, folder: Path, pages: Sequence[str], torchrun: Path, python: str) -> None:
        self.folder, self.copy, self.torchrun = folder, folder / "torchcoll", torchrun
        self.of_pages = [block for block in BLOCKS if block.page in pages]
        copy_repository(self.copy, whole=pages is TOGETHER)
        self.blocks = 0
        self.printed: dict[str, str] = {}
        path = f"{torchrun.parent}:{self.copy}/.venv/bin:{Path(sys.executable).parent}"
        self.env = {"PATH": f"{path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        if pages is TOGETHER:
            self.env["PYTHON"] = str(python_with_torch(folder / "python"))
            # For local.sh: the python of its ranks, and no time for compiling bytecode.
            self.env |= {"PYTHON_EXEC": python, "PIP_NO_COMPILE": "1"}

    def read(self, block: Block) -> None:
        """Run this block, after all earlier blocks of its pages: it may read their files."""
        while self.blocks <= self.of_pages.index(block):
            self.blocks += 1
            for command in self.of_pages[self.blocks - 1].commands:
                if command not in self.printed:
                    self.printed[command] = self.run(command)
        if block.shown:
            (command,) = block.commands
            out = self.printed[command]
            if not printed(block.shown, out):
                # Tests print wide lines. The pages quote the output of a pipe: 120 columns.
                self.env["COLUMNS"] = "120"
                out = self.run(command)
                del self.env["COLUMNS"]
            assert printed(block.shown, out), f"{command}\n{out}"

    def run(self, command: str) -> str:
        """Run a command and return its output."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        for asked, smaller in SMALLER.items():
            command = command.replace(asked, smaller)
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
            assert not any(job.text(rank, "stdout") for rank in job.pids if rank), command
            err = "".join(rank.stderr for rank in ranks)
        assert not any(codes), f"{command}\n{out}\n{err}"
        assert out.strip() or " -o " in command, command  # with -o the output is on stderr
        return out

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.env}
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        return subprocess.run(
            ["bash", "-c", command], cwd=self.copy, env=env, capture_output=True, text=True
        )

    def words(self, program: str, command: str) -> list[str]:
        """Return the arguments of the program, after bash has expanded quotes and globs."""
        done = self.shell(f'{program}() {{ printf "%s\\0" "$@"; }}\n{command}')
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\0")[:-1]

    def forked(self, folder: Path, program: str, words: list[str]) -> Job:
        execv = os.execv

        def target() -> None:
            os.chdir(self.copy)
            if program == "python":
                run_python(words)
            else:
                # `torchcoll run` becomes torchrun: replace it by the stand-in.
                os.execv = lambda _, words: execv(self.torchrun, [self.torchrun, *words[3:]])
                sys.argv = [program, *words]
                sys.exit(cli.main())

        return Job(folder, target, 1, environment={**NO_LAUNCHER, **self.env})


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a stand-in for torchrun, for `torchcoll matrix ... -- torchrun ...`."""
    folder = tmp_path_factory.mktemp("bin")
    for name in LIBRARIES:
        importlib.import_module(name)

    def program(words: list[str]) -> None:
        with tempfile.TemporaryDirectory() as job:
            ranks = launched(Path(job), words, Path.cwd()).wait(300).values()
        sys.stdout.writelines(rank.stdout for rank in ranks)
        sys.stderr.writelines(rank.stderr for rank in ranks)
        sys.exit(max(abs(rank.code) for rank in ranks))

    with forked_program(folder / "torchrun", program):
        yield folder / "torchrun"


@pytest.fixture(scope="module")
def readers(
    tmp_path_factory: pytest.TempPathFactory, torchrun: Path, python: str
) -> Iterator[Callable[[str], Reader]]:
    """Return the function that returns the reader of a page."""
    of_first_page: dict[str, Reader] = {}

    def of(page: str) -> Reader:
        pages = TOGETHER if page in TOGETHER else (page,)
        if pages[0] not in of_first_page:
            folder = tmp_path_factory.mktemp(Path(page).stem)
            of_first_page[pages[0]] = Reader(folder, pages, torchrun, python)
        return of_first_page[pages[0]]

    yield of
    for reader in of_first_page.values():
        shutil.rmtree(reader.folder)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("block", BLOCK_PARAMETERS)
def test_every_command_works(readers: Callable[[str], Reader], block: Block) -> None:
    readers(block.page).read(block)


def test_what_the_example_of_ddp_prints(readers: Callable[[str], Reader]) -> None:
    """The example has run as a block of its page; here its output is checked."""
    command = "torchrun --nproc-per-node 2 examples/ddp_profile.py traffic"
    (block,) = (block for block in BLOCKS if command in block.commands)
    reader = readers(block.page)
    reader.read(block)
    first = reader.printed[command]
    # 256 x 128 embedding, 32 x 128 positions, 4 layers of 198272, the head with its bias.
    size_bytes = 4 * (256 * 128 + 32 * 128 + 4 * 198272 + 128 * 256 + 256)
    assert f"each rank sends {size_bytes / (1 << 20):.2f} MiB a step in 4 all_reduce" in first
    assert "with other calls than most steps" in first  # the first step
    assert re.search(r"\n +in  a step   a step    a step .* a step ", first)  # time and transfer
    assert "bucket_cap_mb=" in first
    assert sorted(path.name for path in (reader.copy / "traffic").glob("traffic-*")) == [
        "traffic-rank0.jsonl",
        "traffic-rank1.jsonl",
    ]


def test_there_are_commands() -> None:
    names = {(block.page, block.name) for block in BLOCKS}
    assert {("README.md", "Three uses 2"), ("docs/slow.md", "top 1")} <= names
    assert BLOCKS[0].commands[0] == "bash launch/local.sh"
    assert len(names) == len(BLOCKS) > 20
    assert sum(len(block.commands) for block in BLOCKS) > 40
    assert sum(bool(block.shown) for block in BLOCKS) >= 5


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("a\nb\nc\n", True),
        ("a\n...\nc\n", True),
        ("...\nb\n...\n", True),
        ("...\na\nb\nc\n...\n", True),
        ("a\nb\n", False),
        ("...\nb\n", False),
        ("c\n...\na\n", False),
        ("a.\n...\n", False),
    ],
)
def test_the_check_of_what_is_shown(shown: str, same: bool) -> None:
    assert printed(shown, "a\nb\nc\n") is same


def test_options_that_the_pages_name_exist() -> None:
    """The reference lists all options (tests/docs/test_reference.py)."""
    options = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    known = set(options.findall(PAGES["docs/reference/commands.md"]))
    # torchrun's, srun's, sbatch's and pip's.
    known |= {
        "--exclusive",
        "--gpus-per-node",
        "--nproc-per-node",
        "--max-restarts",
        "--standalone",
        "--ntasks-per-node",
        "--nodes",
        "--cpus-per-task",
        "--gpus-per-task",
        "--partition",
        "--help",
    }
    # More of Slurm's, and of docker, on the page of clusters.
    known |= {"--gpus-per-node", "--gpu-bind", "--tres-bind", "--tres-per-task", "--gres-flags"}
    known |= {"--distribution", "--cpu-bind", "--segment", "--container-env", "--rm", "--gpus"}
    known |= {"--network", "--ipc", "--ulimit", "--cap-add", "--shm-size", "--device"}
    known |= {"--extra-index-url", "--version", "--print-completion"}
    known |= {"--no-deps", "--no-index", "--find-links"}
    known.add("--token")  # of any program: what is masked
    # analyze_perf_json.py of nccl-tests, py-spy, and more of torchrun.
    known |= {"--straggler", "--spikes", "--iter", "--pid", "--log-dir", "--redirects", "--tee"}
    known |= {"--fleets", "--missing"}  # of a benchmark
    known.add("--tp-comm-overlap")  # of Megatron-LM
    for page, text in PAGES.items():
        assert set(options.findall(text)) - known == set(), page


def test_commands_that_the_pages_name_exist() -> None:
    for page, text in PAGES.items():
        assert {*re.findall(r"`torchcoll ([a-z]+)", text)} <= {*cli.commands()}, page


# Links, files and install lines.

LINKED = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
TEXTS = PAGES | {path.name: path.read_text() for path in OTHERS}
KEPT = r"(?:docs|examples|run|results|tests|torchcoll)"


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as code forges and MkDocs generate them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_somewhere(name: str) -> None:
    """MkDocs checks the links of docs/ (tests/docs/test_site.py)."""
    for target in re.findall(r"\]\(([^)]+)\)", TEXTS[name]):
        path, _, anchor = target.partition("#")
        assert (ROOT / (path or name)).exists(), target
        if anchor:
            assert anchor in anchors((ROOT / (path or name)).read_text()), target


@pytest.mark.parametrize("name", TEXTS)
def test_files_that_a_page_names_are_there(name: str) -> None:
    for path in re.findall(rf"`({KEPT}/[\w./*-]*(?:/|\.[a-z]+))`", TEXTS[name]):
        if not re.search("NAME|mybench", path):  # those of a recipe
            assert list(ROOT.glob(path)), path


def test_install_lines_name_what_exists() -> None:
    """torchcoll is not on PyPI, where somebody else owns a package of this name."""
    ours = (
        ".",
        "torchcoll @ git+",
        "torchcoll[measure]",
        "oneccl_bindings_for_pytorch",
        "wheelhouse/",
    )
    (requirements,) = re.findall(r"^install_requires =\n((?:    .*\n)+)", SETUP, re.M)
    for name, text in TEXTS.items():
        for rest in re.findall(r"pip install ([^`\n]*)", text):
            word, *others = shlex.split(rest) or [""]
            if not word.startswith(ours):
                for each in filter(None, (word, *others)):
                    required = re.split("[<>=]", each)[0]
                    assert f"    {required}>=" in requirements, f"{name}: {rest}"


def test_the_readme_shows_lines_of_its_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = re.findall(r"from a 2-core virtual machine:\n\n```text\n(.*?)```", README, re.S)
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["show", str(ROOT / "results/gloo-2ranks/run.jsonl")]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    excerpt = shown.splitlines()
    assert len(excerpt) > 4
    assert [line for line in excerpt if line not in lines] == []


def test_the_readme_is_short() -> None:
    assert 500 <= len(README.split()) <= 720


# Programs.


def programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGES[page], re.M | re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)])
def test_programs_use_what_is_public(page: str) -> None:
    for program in programs(page):
        compile(program, page, "exec")
        used = set(re.findall(r"\btorchcoll\.(\w+)", re.sub(r"(?m)^ *from .*$", "", program)))
        assert used <= {*torchcoll.__all__}, used


def test_the_program_of_the_reference(tmp_path: Path) -> None:
    (program,) = programs("docs/reference/api.md")
    (tmp_path / "results").symlink_to(ROOT / "results")

    def target() -> None:
        os.chdir(tmp_path)
        exec(program, {})

    job = Job(tmp_path / "job", target, 1, environment={**NO_LAUNCHER, "OMP_NUM_THREADS": "1"})
    (rank,) = job.wait(300).values()
    assert rank.code == 0, rank.stderr
    assert "1M" in rank.stdout and (tmp_path / "run.jsonl").exists()


def test_the_recipe_of_an_importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = next(text for text in programs("docs/extending.md") if "def sniff" in text)
    module = types.ModuleType("mybench")
    exec(recipe, module.__dict__)
    monkeypatch.setattr(registry, "importers", lambda: {"mybench": module})
    path = tmp_path / "x.log"
    path.write_text(
        "hello\nranks=8 op=allreduce bytes=1048576 us=54.9\nranks=8 op=x bytes=8 us=1\n"
    )
    found = registry.import_file(str(path))
    (result,) = found.runs[0].results
    assert (found.importer, result.case.collective, result.ranks) == ("mybench", "all_reduce", 8)
    assert result.reported and result.reported.time_ns == 54900
    assert found.refusals() == [("3", "x is no collective that torchcoll has")]


def test_the_recipe_of_a_sub_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = next(text for text in programs("docs/extending.md") if "COMMANDS" in text)
    names: dict[str, Any] = {}
    exec(recipe, names)
    monkeypatch.setitem(KERNEL, "hello", Listed("say it", "files", "hello"))
    monkeypatch.setitem(sys.modules, "torchcoll.hello", types.SimpleNamespace(**names))
    path = str(ROOT / "results/h200-8gpu-kernels/generic.jsonl")
    assert cli.main(["hello", path]) == 0
    assert capsys.readouterr().out == f"{path}: 80 cases\n"
