"""What mypy and editors know of an installed torchcoll: every public name, with its types."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import torchcoll
from torchcoll.core.parts import parts

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def public_names() -> list[str]:
    return list(torchcoll.__all__)


def test_the_stub_has_the_lazy_names():
    """A checker reads the stub in place of __init__.py, whose names come from __getattr__."""
    tree = ast.parse((ROOT / "torchcoll/__init__.pyi").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    # Only ``import x as x`` is exported.
    names = {alias.asname: node.module for node in imports for alias in node.names}
    of_parts = {
        name: f"{package}.{module}"
        for package, part in parts()
        for name, module in part.public.items()
    }
    assert names == torchcoll._LAZY | of_parts
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    assert (ROOT / "torchcoll/py.typed").exists()


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """Runs mypy on programs of users, beside whom the package lies as pip installs it.

    Nothing else is installed there: torch alone takes mypy a minute.
    """
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "torchcoll", packages / "torchcoll", ignore=ignored)

    def run(programs: dict[str, str]) -> list[str]:
        for name, text in programs.items():
            (folder / name).write_text(text)
        options = [
            "--python-executable",
            str(folder / "venv/bin/python"),
            "--config-file=",
            "--check-untyped-defs",
            "--no-error-summary",
            "--disable-error-code",
            "import-not-found",
            "--no-color-output",
            # Programs of the docs are parts of one: `model`, `loader`.
            "--disable-error-code",
            "name-defined",
            "--disable-error-code",
            "has-type",
        ]
        command = [sys.executable, "-m", "mypy", *options, *programs]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert not done.stderr
        return done.stdout.splitlines()

    return run


def test_every_public_name_has_a_type(check):
    lines = ["import torchcoll", *(f"reveal_type(torchcoll.{name})" for name in public_names())]
    types = {}
    for line in check({"names.py": "\n".join(lines)}):
        number, text = re.fullmatch(r'names.py:(\d+): note: Revealed type is "(.*)"', line).groups()
        types[public_names()[int(number) - 2]] = text
    assert set(types) == set(public_names())
    assert all(text.startswith(("def ", "Overload(")) for text in types.values()), types
    for result in (
        "questions.comparison.compare.Comparison",
        "core.display.Displayed",
    ):
        assert f"-> torchcoll.{result}" in types["compare"]
    assert types["run"].endswith("-> torchcoll.core.result.Run | None")
    assert "[torchcoll.core.traffic.Traffic" in types["capture"].partition("->")[2]


def test_a_spec_reads_more_than_its_fields_hold(check):
    program = """import dataclasses
import torchcoll
spec = torchcoll.Spec("all_reduce,barrier", "1K", sizes="1K,2K", dtypes=["int8"], roots=1)
reveal_type(dataclasses.replace(spec, step_bytes="4K", misalign_bytes=4).misalign_bytes)
reveal_type(spec.collectives)
reveal_type(spec.step_bytes)
torchcoll.Spec(sizes=1.5)
torchcoll.Spec(iters="5")
"""
    lines = check({"spec.py": program})
    assert [line.partition(": ")[2] for line in lines[:3]] == [
        'note: Revealed type is "int"',
        'note: Revealed type is "tuple[str, ...]"',
        'note: Revealed type is "int | None"',
    ]
    assert [line.endswith("[arg-type]") for line in lines[3:]] == [True, True]


def test_mistakes_of_users_are_found(check):
    program = """import torchcoll
torchcoll.loda("x")
torchcoll.load(5)
torchcoll.run(torchcoll.Spec()).results
torchcoll.Spec(size="1K")
"""
    lines = check({"wrong.py": program})
    found = [re.search(r"\[([\w-]+)\]$", line)[1] for line in lines if ": error: " in line]
    assert found == ["attr-defined", "arg-type", "union-attr", "call-arg"]


def test_programs_of_the_docs(check):
    programs = {}
    for page in PAGES:
        texts = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        for number, text in enumerate(texts):
            # A part of a program goes on from one that has it.
            start = "" if "import torchcoll" in text else "import torchcoll\n"
            programs[f"{page.stem}_{number}.py"] = start + text
    assert len(programs) >= 9
    assert check(programs) == []
