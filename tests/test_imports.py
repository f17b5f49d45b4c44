"""Who may import whom, what importing costs, and the public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torchcoll
from torchcoll.core.collectives import COLLECTIVES

PACKAGE = Path(torchcoll.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

# Room: (torchcoll's rooms, other packages) that it may import at the top of a module, and what it
# may import besides inside a function or for type checkers only. `torchcoll` itself is free: it
# loads nothing.
TABLE = {
    "core": (set(), set(), set()),
    "bench": ({"core", "libraries"}, {"torch"}, {"report", "verdict"}),
    "train": ({"core", "libraries"}, {"torch"}, {"report"}),
    "libraries": ({"core"}, {"defusedxml"}, set()),
    "matrix": ({"core", "libraries"}, set(), set()),
    "importers": ({"core", "libraries"}, set(), set()),
    "verdict": ({"core"}, set(), {"tomli", "tomllib"}),
    "analysis": ({"core", "libraries"}, {"numpy", "scipy", "pandas"}, set()),
    "report": ({"core"}, set(), {"analysis", "verdict", "pandas", "rich", "matplotlib"}),
    "cli": ({"core"}, set(), ROOMS),
    "commands": ({"core"}, set(), ROOMS),
    "__main__": ({"cli"}, set(), set()),
    "__init__": (set(), set(), set()),
}
STUBS = {entry.module for entry in COLLECTIVES.values()} | {"suite", "pairs"}


def imports(tree, package):
    """(imported module, inside a function or for type checkers, line) of every import."""

    def visit(node, inside):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, inside, node.lineno
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            name = ".".join([*parts, node.module or ""]).strip(".") if node.level else node.module
            for alias in node.names:
                yield f"{name}.{alias.name}" if name == "torchcoll" else name, inside, node.lineno
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inside or function or typing)

    yield from visit(tree, False)


def offences(source, path):
    """Imports in ``source`` that the table does not allow at ``path`` (relative to torchcoll)."""
    room = path.parts[0] if len(path.parts) > 1 else path.stem
    package = ".".join(["torchcoll", *path.parts[:-1]])
    found = []
    for name, inside, line in imports(ast.parse(source), package):
        first, *rest = name.split(".")
        if room in STUBS:
            allowed = name == "torchcoll.bench.main" and not inside
        elif first in sys.stdlib_module_names:
            allowed = True
        else:
            rooms, packages, inner = TABLE[room]
            if first != "torchcoll":
                allowed = first in packages or (inside and first in inner)
            elif not rest or (rest[0] not in ROOMS and not (PACKAGE / f"{rest[0]}.py").exists()):
                allowed = True  # torchcoll itself, or a name in it
            else:
                allowed = rest[0] in {room, *rooms} or (inside and rest[0] in inner)
        if not allowed:
            found.append(f"{path}:{line} imports {name}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_table_of_rooms(path):
    assert offences(path.read_text(), path.relative_to(PACKAGE)) == []


def test_every_room_is_in_the_table():
    assert set(TABLE) >= ROOMS
    assert {"core", "bench", "report", "analysis"} <= ROOMS


@pytest.mark.parametrize(
    ("place", "source", "caught"),
    [
        ("core/x.py", "import torch", True),
        ("core/x.py", "def f():\n    import numpy", True),
        ("core/x.py", "from torchcoll.bench import runner", True),
        ("core/x.py", "from ..bench import runner", True),
        ("core/x.py", "from . import units", False),
        ("core/x.py", "from torchcoll import bench", True),
        ("core/x.py", "from torchcoll import __version__", False),
        ("core/x.py", "import torchcoll.runs.show", True),
        ("bench/x.py", "import torch.distributed as dist", False),
        ("bench/x.py", "import numpy", True),
        ("bench/x.py", "from torchcoll.runs.show import show", True),
        ("bench/x.py", "def f():\n    from torchcoll.runs.show import show", False),
        ("bench/x.py", "class A:\n    from torchcoll.runs.show import show", True),
        ("bench/x.py", "try:\n    import rich\nexcept ImportError:\n    pass", True),
        ("bench/x.py", "def f():\n    import rich", True),
        ("analysis/x.py", "import pandas", False),
        ("analysis/x.py", "def f():\n    import torch", True),
        ("analysis/x.py", "from torchcoll.report import text", True),
        ("report/x.py", "import rich.table", True),
        ("report/x.py", "def f():\n    import rich.table", False),
        ("report/x.py", "from torchcoll.runs.export import table", True),
        ("report/x.py", "if TYPE_CHECKING:\n    from torchcoll.analysis import table", False),
        ("report/x.py", "def f():\n    import torch", True),
        ("report/x.py", "def f():\n    from torchcoll.bench import runner", True),
        ("cli.py", "from torchcoll.bench import runner", True),
        ("cli.py", "def f():\n    from torchcoll.bench import runner", False),
        ("allreduce.py", "from torchcoll.bench.main import main", False),
        ("allreduce.py", "import os", True),
        ("allreduce.py", "from torchcoll.core.errors import UsageError", True),
    ],
)
def test_the_check_itself(place, source, caught):
    assert bool(offences(source, Path(place))) is caught


def loaded_by(*modules):
    """Which heavy packages a new Python holds after these imports."""
    code = "import sys\n" + "".join(f"import {module}\n" for module in modules)
    code += (
        "heavy = ('torch', 'numpy', 'scipy', 'pandas', 'rich', 'matplotlib')\n"
        "print(' '.join(name for name in heavy if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def modules_of(room):
    return [f"torchcoll.{room}.{path.stem}" for path in sorted((PACKAGE / room).glob("[!_]*.py"))]


def test_importing_torchcoll_loads_nothing_heavy():
    assert loaded_by("torchcoll") == []


def test_core_report_and_cli_load_nothing_heavy():
    assert loaded_by(*modules_of("core"), *modules_of("report"), "torchcoll.cli") == []


def test_the_check_of_what_is_loaded_sees_it():
    assert loaded_by("numpy") == ["numpy"]


PUBLIC = ["Case", "Run", "Spec", "TorchcollError", "Traffic"]
PUBLIC += ["advise", "algorithms", "capture", "cold", "compare", "cost", "ddp_hook"]
PUBLIC += [
    "gradient_buckets",
    "load",
    "plot",
    "replay",
    "run",
    "save",
    "scaling",
    "shard_traffic",
    "show",
]
PUBLIC += ["table", "transitions", "try_buckets"]


def test_public_names():
    assert sorted(torchcoll.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(torchcoll))
    namespace = {}
    exec("from torchcoll import *", namespace)
    for name in PUBLIC:
        value = getattr(torchcoll, name)
        assert callable(value)
        assert value.__name__ == name
        assert namespace[name] is value


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'torchcoll' has no attribute 'nothing'$"):
        _ = torchcoll.nothing


def test_no_module_hides_a_public_name():
    """Importing torchcoll.x sets torchcoll.x, whatever was there."""
    names = {path.stem for path in PACKAGE.glob("*.py")} | ROOMS
    assert names & set(torchcoll.__all__) == set()


def test_inits_of_rooms_are_empty():
    inits = sorted(PACKAGE.rglob("*/__init__.py"))
    inner = [path for path in inits if path.parent != PACKAGE]
    assert len(inner) >= 4
    assert [path for path in inner if path.read_bytes()] == []


def test_one_stub_for_each_collective():
    others = {"__init__", "__main__", "cli"}
    assert {path.stem for path in PACKAGE.glob("*.py")} - others == STUBS


@pytest.mark.parametrize("module", sorted(STUBS))
def test_stub(module):
    text = (PACKAGE / f"{module}.py").read_text()
    assert len(text.splitlines()) < 8
    tree = ast.parse(text)
    # A docstring, one import, one guarded call; runpy loads it twice, so it defines nothing.
    assert [type(node) for node in tree.body] == [ast.Expr, ast.ImportFrom, ast.If]
    assert ast.unparse(tree.body[2].test) == "__name__ == '__main__'"
    names = {entry.module: entry.name for entry in COLLECTIVES.values()} | {"pairs": "pairs"}
    argument = repr(names[module]) if module in names else ""
    assert [ast.unparse(node) for node in tree.body[2].body] == [f"main({argument})"]
    assert f"torchcoll.{module}" in ast.get_docstring(tree)
