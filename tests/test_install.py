"""launch/local.sh up to the point where it would install: what needs no network and no minutes."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from error_form import error_line, error_text

from torchcoll.core.collectives import COLLECTIVES

ROOT = Path(__file__).resolve().parent.parent
MODULES = " ".join([*(entry.module for entry in COLLECTIVES.values()), "suite", "pairs"])


def launch(*arguments, cwd=ROOT, script=ROOT / "launch/local.sh", **environment):
    """Run local.sh with nothing of this process' environment but PATH."""
    return subprocess.run(
        ["bash", str(script), *arguments],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def write_python(path, version):
    """A python that answers the version question of install.sh, and nothing else."""
    path.write_text(f"#!/bin/sh\necho '{version} {path}'\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path):
    """A copy where .venv does not exist, so that an installation started by mistake shows."""
    for name in ("launch", "setup.cfg", "pyproject.toml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("word", ["allreduc", "all-reduce", "ALLREDUCE", "32", "../x", "a b", "*"])
def test_an_unknown_collective_is_one_line_before_anything_is_installed(checkout, word):
    answer = launch(word, script=checkout / "launch/local.sh", cwd="/")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr == error_line(
        "collective", f"'{word}'", f"one of: {MODULES}. Put it first, its arguments after it\n"
    )

    assert not (checkout / ".venv").exists()


def test_the_modules_are_the_entry_stubs():
    stubs = {path.stem for path in ROOT.glob("torchcoll/*.py")} - {
        "__init__",
        "__main__",
        "cli",
        "help",
        "answering",
        "integrations",
    }
    stubs |= {path.parent.name for path in ROOT.glob("torchcoll/*/__main__.py")}
    assert set(MODULES.split()) == {name for name in stubs if "_" not in name}


@pytest.mark.parametrize("value", ["0", "-1", "abc", "2.5", "02", "gpu", " "])
def test_a_wrong_nproc_is_one_line_before_anything_is_installed(checkout, value):
    answer = launch(script=checkout / "launch/local.sh", NPROC=value)
    assert answer.returncode == 2
    assert answer.stderr == error_line(
        "NPROC", f"'{value}'", "a whole number from 1. Correct or unset it\n"
    )

    assert not (checkout / ".venv").exists()


def test_a_python_that_is_too_old_is_one_line(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bin")
    names = ["python3", *(f"python3.{minor}" for minor in range(10, 15))]
    for name in names:
        write_python(folder / name, "3.9")
    script = checkout / "launch/local.sh"
    answer = launch("all_reduce", script=script, PATH=f"{folder}:{os.environ['PATH']}")
    assert answer.returncode == 1
    assert answer.stderr == error_line(
        "python",
        f"3.9 {folder}/python3",
        f"3.10 or newer. Install one, or name one: PYTHON=/path/to/python3 bash {script}\n",
    )

    assert not (checkout / ".venv").exists()


def test_python_of_the_environment_is_the_only_one_tried(checkout):
    answer = launch(script=checkout / "launch/local.sh", PYTHON="/nowhere/python3")
    assert answer.returncode == 1
    assert error_text("error: python", "PYTHON=/nowhere/python3, which does not run", "3.10") in (
        answer.stderr
    )


def test_a_folder_of_someone_else_is_not_touched(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv/precious").write_text("mine")
    answer = launch(script=checkout / "launch/local.sh")
    assert answer.returncode == 1
    assert answer.stderr == error_line(
        f"{checkout}/.venv", "a folder that this script did not make", "none. Move it away\n"
    )

    assert (checkout / ".venv/precious").read_text() == "mine"


def test_an_old_torch_is_neither_used_nor_replaced(checkout, tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("__version__ = '2.5.1+cu124'\n")
    answer = launch(script=checkout / "launch/local.sh", PYTHONPATH=str(site))
    assert answer.returncode == 1
    assert re.fullmatch(
        error_line(
            r"torch of \S+",
            r"2\.5\.1",
            r"2\.6 or newer\. Name a python that has a newer torch, or none: "
            r"PYTHON=/path/to/python3 bash \S+\n",
        ),
        answer.stderr,
    )


def test_help_says_how_and_installs_nothing(checkout):
    answer = launch("--help", script=checkout / "launch/local.sh")
    assert answer.returncode == 0
    assert "bash launch/local.sh [COLLECTIVE] [ARGUMENTS...]" in answer.stdout
    assert "shellcheck" not in answer.stdout
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    "script", ["launch/local.sh", "launch/install.sh", "tests/run.sh", ".ci/run"]
)
def test_scripts_parse(script):
    answer = subprocess.run(["bash", "-n", ROOT / script], capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_the_build_installs_what_the_tests_need():
    """It does so ahead of tests/run.sh, which is to find nothing left to do."""
    lines = [
        re.findall(r"(?m)^install_torchcoll .*", (ROOT / script).read_text())
        for script in (".ci/run", "tests/run.sh")
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 1


def test_github_runs_what_the_build_server_runs():
    """The workflow calls .ci/run, and the forms ask for what every report needs."""
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    runs = " ".join(step.get("run", "") for step in steps)
    assert "bash .ci/run" in runs and "mkdocs build --strict" in runs
    forms = [*(ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")]
    loaded = {path.stem: yaml.safe_load(path.read_text()) for path in forms}
    assert set(loaded) == {"config", "crash", "file-not-read", "wrong-number"}
    for name, form in loaded.items():
        if name != "config":
            assert form["name"] and form["description"]
            ids = [field["id"] for field in form["body"]]
            assert len(ids) == len(set(ids))
            assert all(field["attributes"]["label"] for field in form["body"])
            asks = str(form)
            assert "torchcoll doctor" in asks or "torchcoll FILE" in asks


def test_every_dependency_is_pinned():
    from configparser import ConfigParser

    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = config["options"]["install_requires"]
    for extra, lines in config["options.extras_require"].items():
        wanted += lines if extra != "ipex" else ""  # its torch is older than ours
    pinned = re.findall(r"(?m)^([a-z0-9-]+)==", (ROOT / "launch/constraints.txt").read_text())
    assert set(re.findall(r"(?m)^([a-z][a-z0-9-]*)>=", wanted)) <= set(pinned)


def test_an_sdist_holds_the_repository(tmp_path):
    """What a packager gets: its tests, scripts, examples and data are there, and nothing made."""
    pytest.importorskip("setuptools")
    copy = tmp_path / "copy"
    made = ("__pycache__", "*.egg-info", "build", "dist", "torchcoll-runs", ".venv*", ".git")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*made, ".*_cache", ".hypothesis"))
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    kept = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    made = {path for path in kept if ".egg-info/" in path or path == ".gitignore"}
    assert kept - made - held == set()
    # And what an installation gets: all of the package, its rules, schema and page included.
    code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as archive:
        held = {name for name in archive.namelist() if name.startswith("torchcoll/")}
        (entries,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "torchcoll = torchcoll.cli:main" in archive.read(entries).decode()
    assert held == {path for path in kept if path.startswith("torchcoll/")}
    assert "torchcoll/core/torchcoll-2.schema.json" in held
