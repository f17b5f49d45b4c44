"""The wheel in environments of its own, without torch: the oldest and the newest requirements.

Marked ``install``, for pip fetches the requirements; .ci/run runs it.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUN, H200 = "results/gloo-2ranks/run.jsonl", "results/h200-8gpu-kernels"
# The exit code, and what the first line of the answer begins with.
COMMANDS = {
    f"show {RUN}": (0, "all_reduce on 2 gloo ranks takes 228 us at 8 B"),
    f"{RUN}": (0, ""),
    f"check {H200}/generic.jsonl --fabric nvswitch-h200": (0, "WARN 369.1 GB/s busbw at 16G"),
    "compare backend:gloo=results/gloo-oneccl-2ranks backend:ccl=results/gloo-oneccl-2ranks": (
        0,
        "ccl is 4.6x faster than gloo",
    ),
    f"compare old={H200}/generic.jsonl new={H200}/nvidia.jsonl": (0, ""),
    "cold results/gloo-oneccl-2ranks": (0, ""),
    "curve results/nccl-transitions": (0, ""),
    "pairs results/pairs-6hosts/slow-link.jsonl": (1, "rank 4 (h4) is slow"),
    f"convert {RUN} -o rows.csv": (0, ""),
    f"report {RUN} -o page.html": (4, ""),  # its libraries are an extra
    f"run -n 2 all_reduce -b 8 -e 8 --output {RUN}.x": (4, ""),  # and so is torch
}
# What a package adds that is installed beside it, from the examples of docs/extending.md.
OF_PLUGIN = {
    "show mine.txt": (0, "all_reduce on 4 ranks takes 12.5 us and reaches 126 GB/s"),
    f"hello {RUN}": (0, f"{RUN}: "),
}
TWINE = "twine==7.0.0"  # whether an index can show the description


def python_of(version: str) -> str:
    """A Python of this version, such as 3.10: of PATH, or of pyenv."""
    name = f"python{version}"
    found = [shutil.which(name), *Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}")]
    for path in filter(None, found):
        if subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return str(path)
    return pytest.skip(f"no {name}")


def oldest() -> list[str]:
    """The requirements in their oldest versions, which setup.cfg states."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].split("\n")
    return [re.sub(">=([^;]*)", r"==\1.*", line).replace(" ", "") for line in lines if line]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel from the source distribution, as an index has both."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    copy.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "launch/description.md"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "torchcoll", copy / "torchcoll", ignore=leave)
    with tarfile.open(build("sdist", copy, folder)) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.glob("torchcoll-*/")
    return build("wheel", source, folder)


def build(kind: str, source: Path, folder: Path) -> Path:
    """The sdist or the wheel of what is in a folder."""
    code = f"from setuptools import build_meta as m; print(m.build_{kind}({str(folder)!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a package with an importer and a command, as docs/extending.md shows them."""
    folder = tmp_path_factory.mktemp("plugin")
    blocks = re.findall(r"```\w+\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.DOTALL)
    texts = {
        "setup.cfg": "[options.entry_points]",
        "torchcoll_mine/mybench.py": "def sniff",
        "torchcoll_mine/command.py": "COMMANDS = {",
    }
    package = folder / "copy/torchcoll_mine"
    package.mkdir(parents=True)
    for name, holds in texts.items():
        (folder / "copy" / name).write_text(next(text for text in blocks if holds in text))
    (package / "__init__.py").touch()
    (package / "part.py").write_text(
        "from torchcoll.core.commands import Listed\nfrom torchcoll.core.parts import Part\n"
        'PART = Part(commands={"hello": Listed("count cases", "files")})\n'
    )
    return build("wheel", folder / "copy", folder)


@pytest.mark.install
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("version", "requirements"),
    [("3.10", oldest()), (f"{sys.version_info[0]}.{sys.version_info[1]}", [])],
    ids=["oldest", "newest"],
)
def test_reading_needs_no_torch(
    version: str, requirements: list[str], wheel: Path, plugin: Path, tmp_path: Path
) -> None:
    venv, bin = tmp_path / "venv", tmp_path / "venv/bin"
    subprocess.run([python_of(version), "-m", "venv", str(venv)], check=True)
    pip = [str(bin / "python"), "-m", "pip", "install", "--quiet", "--no-input", str(wheel)]
    done = subprocess.run([*pip, *requirements], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([bin / "python", "-c", "import torch"], capture_output=True).returncode
    (tmp_path / "results").symlink_to(ROOT / "results")
    subprocess.run([*pip[:-1], "--no-deps", str(plugin)], check=True, capture_output=True)
    (tmp_path / "mine.txt").write_text("ranks=4 op=allreduce bytes=1048576 us=12.5\n")
    wrong = []
    for command, (code, begins) in {**COMMANDS, **OF_PLUGIN}.items():
        done = subprocess.run(
            [bin / "torchcoll", *command.split()], cwd=tmp_path, capture_output=True, text=True
        )
        clean = "Traceback" not in done.stderr and (code < 2 or done.stderr.count("\n") == 1)
        if (done.returncode, done.stdout.startswith(begins), clean) != (code, True, True):
            wrong.append((command, done.returncode, done.stdout[:200], done.stderr[-1000:]))
    assert wrong == []
    done = subprocess.run([*pip[:-1], TWINE], capture_output=True, text=True)
    if done.returncode == 0:  # it needs a newer Python than the oldest
        checked = [bin / "python", "-m", "twine", "check", "--strict", str(wheel)]
        done = subprocess.run(checked, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    removed = [*pip[:3], "uninstall", "--yes", "--quiet", "torchcoll", "torchcoll-mine"]
    subprocess.run(removed, check=True, capture_output=True)
    assert [path for path in venv.rglob("*torchcoll*") if path.suffix != ".pyc"] == []
