"""Who may import whom, what importing costs, and the public names."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from source_files import nodes, parsed

import torchcoll
from torchcoll.core.collectives import COLLECTIVES

PACKAGE = Path(torchcoll.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
NESTED = {"questions", "parts"}  # folders of packages


def package_of(path):
    """Such as ``parts/curves`` and ``core``; of a file beside them its name."""
    *folders, _ = path.parts
    if not folders:
        return path.stem
    return "/".join(folders[: 1 + (folders[0] in NESTED)])


PACKAGES = {package_of(path.relative_to(PACKAGE)) for path in PACKAGE.glob("*/**/__init__.py")}
PACKAGES -= NESTED

# What a file may import at its top: our packages, or files of one, and others; and what besides
# inside a function, or for type checkers only. `torchcoll` itself is free: it loads nothing. The
# kernel's packages import downwards, and none imports a part.
SCIENCE = {"numpy", "scipy", "pandas"}
DRAWN = {"rich", "matplotlib", "pandas", "jinja2", "markupsafe", "plotly"}
NOUNS = {"core", "libraries", "reading"}
QUESTIONS = {
    "questions/check",
    "questions/comparison",
    "questions/contention",
    "questions/pairs",
    "questions/show",
    "questions/startup",
}
KERNEL = {*NOUNS, "stats", *QUESTIONS, "questions/page"}
TABLE = {
    "core": (set(), set(), {"tomli", "tomllib"}),
    "libraries": ({"core"}, {"defusedxml"}, set()),
    "machine": ({"core", "libraries"}, {"torch"}, set()),
    "bench": (
        {"core", "libraries", "machine"},
        {"torch"},
        {"report", "questions/check", "questions/show"},
    ),
    "bench/live": ({"core", "report", "questions/check", "questions/show"}, set(), set()),
    "reading": ({"core", "libraries"}, set(), set()),
    "report": ({"core"}, set(), {"libraries", "numpy", *DRAWN}),
    "stats": (NOUNS, SCIENCE, set()),
    "questions/check": ({*NOUNS, "questions/pairs", "report/junit"}, set(), set()),
    "questions/comparison": ({*NOUNS, "stats", "report/junit"}, SCIENCE, set()),
    "questions/contention": ({*NOUNS, "stats"}, SCIENCE, set()),
    "questions/pairs": ({*NOUNS, "stats"}, SCIENCE, set()),
    "questions/show": (
        {*NOUNS, "stats", "report", *QUESTIONS, "bench/live"},
        SCIENCE,
        {"pyarrow", *DRAWN},
    ),
    "questions/startup": ({*NOUNS, "stats", "questions/comparison"}, SCIENCE, set()),
    "questions/page": ({*NOUNS, "stats", "report", *QUESTIONS}, SCIENCE, {"IPython", *DRAWN}),
    "parts/experiments": ({*KERNEL, "machine"}, SCIENCE, set()),
    "parts/curves": (KERNEL, SCIENCE, set()),
    "parts/training": ({*KERNEL, "parts/curves"}, SCIENCE, {"torch"}),
    "parts/fleet": (KERNEL, {*SCIENCE, "sqlalchemy"}, {"psycopg", "pyarrow"}),
    "parts/postmortem": (KERNEL, set(), {"scipy"}),
    "parts/proof": ({*KERNEL, "machine"}, set(), {"parts/curves", "parts/training", "torch"}),
    "answering": ({"core"}, set(), {"reading"}),
    "cli": ({"core", "answering"}, set(), {"machine", "bench", "report", "shtab"}),
    "integrations": ({"core"}, set(), {"mlflow", "wandb"}),
    "pairs": ({"bench", "questions/pairs"}, set(), set()),
    "__main__": ({"cli"}, set(), set()),
    "__init__": (set(), set(), {"core/parts"}),
}
# Files that run on ranks, in packages of questions and parts.
ON_RANKS = {
    "questions/pairs/pairs_run",
    *(f"parts/proof/{name}" for name in ("fault_probe", "probe", "probes")),
    *(
        f"parts/training/{name}"
        for name in (
            "bucket_trial",
            "call_ends",
            "capture",
            "decode",
            "ddp_buckets",
            "meta_model",
            "module_names",
            "player",
            "recorded_calls",
            "replay",
            "ring_file",
        )
    ),
}
DRAWING = ("show", "shown", "charts", "page")  # how the names of files that draw end
DOORS = {*TABLE} - {name for name in TABLE if name.startswith("parts/")}  # of a command
LIBRARIES = {("libraries", "nccl"), ("libraries", "oneccl")}
# Torch's spelling is one too: all_reduce beside nccl-tests' allreduce.
STUBS = {one.module for one in COLLECTIVES.values()} | {"suite"}


def allowed(path):
    """(our packages or files, other packages, besides inside functions) of the file at ``path``."""
    package, name = package_of(path), path.stem
    file = "/".join(path.with_suffix("").parts)
    if package in STUBS:
        return {"bench/main"}, set(), set()
    if file in NESTED_INITS:
        return set(), set(), set()
    ours, others, inner = TABLE.get(file, TABLE[package])
    if name.endswith("command") and name != "launch_command":
        ours, inner = ours | {"report"}, {*DOORS, *ours, *inner, *DRAWN}
    elif name.endswith(DRAWING):
        ours, others, inner = ours | {"report"}, others | {"numpy"}, inner | DRAWN
    elif file in ON_RANKS:
        ours, others = ours | {"bench", "machine"}, others | {"torch"}
        inner = inner | {"report", "rich", f"{package}/show"}
    return ours | {package}, others, inner


NESTED_INITS = {f"{name}/__init__" for name in NESTED}


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
                if not isinstance(child, ast.expr):  # no expression holds an import
                    yield from visit(child, inside or function or typing)

    yield from visit(tree, False)


def offences(source, path):
    """Imports in ``source`` that the table does not allow at ``path`` (relative to torchcoll)."""
    ours, others, inner = allowed(path)
    package = ".".join(["torchcoll", *path.parts[:-1]])
    found = []
    for name, inside, line in imports(parsed(source), package):
        first, *rest = name.split(".")
        if first in sys.stdlib_module_names:
            continue
        if first != "torchcoll":
            fine = first in others or (inside and first in inner)
        elif not (PACKAGE / f"{(rest or ['-'])[0]}.py").exists() and not any(
            package.startswith(rest[0]) for package in PACKAGES if rest
        ):
            fine = True  # torchcoll itself, or a name in it
        else:
            asked = {"/".join(rest[:count]) for count in (1, 2, 3)}
            fine = bool(asked & ours) or (inside and bool(asked & inner))
        if not fine:
            found.append(f"{path}:{line} imports {name}")
    return found


def test_the_table_of_packages():
    assert [
        line for path in MODULES for line in offences(path.read_text(), path.relative_to(PACKAGE))
    ] == []


def test_every_package_is_in_the_table():
    assert set(TABLE) >= PACKAGES
    assert {"core", "bench", "report", "questions/comparison", "parts/curves"} <= PACKAGES


@pytest.mark.parametrize(
    ("place", "source", "caught"),
    [
        ("core/x.py", "import torch", True),
        ("core/x.py", "def f():\n    import numpy", True),
        ("core/x.py", "from torchcoll.bench import session", True),
        ("core/x.py", "from ..bench import session", True),
        ("core/x.py", "from . import units", False),
        ("core/x.py", "from torchcoll import bench", True),
        ("core/x.py", "from torchcoll import __version__", False),
        ("core/x.py", "import torchcoll.questions.show.show", True),
        ("machine/x.py", "from torchcoll.bench import session", True),
        ("bench/x.py", "import torch.distributed as dist", False),
        ("bench/x.py", "import numpy", True),
        ("bench/x.py", "from torchcoll.questions.show.show import show", True),
        ("bench/x.py", "def f():\n    from torchcoll.questions.show.show import show", False),
        ("bench/x.py", "def f():\n    from torchcoll.questions.page import document", True),
        (
            "bench/x.py",
            "def f():\n    from torchcoll.questions.pairs.pairs_run import run_pairs",
            True,
        ),
        ("bench/x.py", "class A:\n    from torchcoll.questions.show.show import show", True),
        ("bench/x.py", "try:\n    import rich\nexcept ImportError:\n    pass", True),
        ("bench/x.py", "def f():\n    import rich", True),
        ("parts/curves/x.py", "import pandas", False),
        ("parts/curves/x.py", "def f():\n    import torch", True),
        ("parts/curves/x.py", "from torchcoll.report import grid", True),
        ("parts/curves/x.py", "from torchcoll.parts.training import plans", True),
        ("parts/curves/scaling_show.py", "from torchcoll.report import grid", False),
        ("parts/curves/command.py", "def f():\n    from torchcoll.reading import registry", False),
        ("parts/training/x.py", "import torch", True),
        ("parts/training/replay.py", "import torch", False),
        ("report/x.py", "import rich.table", True),
        ("report/x.py", "def f():\n    import rich.table", False),
        ("report/x.py", "from torchcoll.questions.show.show import show", True),
        ("report/x.py", "def f():\n    import torch", True),
        ("questions/show/x.py", "def f():\n    from torchcoll.parts.fleet import address", True),
        ("questions/show/command.py", "def f():\n    from torchcoll.parts.fleet import read", True),
        (
            "parts/fleet/command.py",
            "def f():\n    from torchcoll.parts.training import capture",
            True,
        ),
        ("cli.py", "from torchcoll.bench import main", True),
        ("cli.py", "def f():\n    from torchcoll.bench import main", False),
        ("allreduce.py", "from torchcoll.bench.main import main", False),
        ("allreduce.py", "import os", False),
        ("allreduce.py", "from torchcoll.core.errors import UsageError", True),
    ],
)
def test_the_check_itself(place, source, caught):
    assert bool(offences(source, Path(place))) is caught


def test_no_package_grows_unnoticed():
    """ARCHITECTURE.md states how many lines each package has, and all together."""
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    stated = {
        n: int(count) for n, count in re.findall(r"\| `torchcoll/([\w/]+)/` \|.*\| (\d+) \|", page)
    }
    assert stated.keys() == PACKAGES
    sizes = Counter()
    for path in MODULES:
        sizes[package_of(path.relative_to(PACKAGE))] += len(path.read_text().splitlines())
    assert {n: sizes[n] for n in stated if sizes[n] > 1.05 * stated[n]} == {}
    (most,) = re.findall(r"All together: at most ([\d,]+)\.", page)
    assert sizes.total() <= int(most.replace(",", ""))


def graph():
    """File -> the files that it imports, inside functions too; not for type checkers alone."""
    names = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in MODULES}
    found = {}
    for name, path in names.items():
        tree, edges = nodes(path.read_text()), set()
        typing = [n for n in tree if isinstance(n, ast.If) and "TYPE_" in ast.dump(n.test)]
        aside = {id(n) for branch in typing for n in ast.walk(branch)}
        for node in tree:
            if isinstance(node, ast.ImportFrom) and node.module and id(node) not in aside:
                base = node.module.removeprefix("torchcoll").removeprefix(".")
                edges |= {base} | {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
        found[name] = edges & names.keys() - {name}
    return found


def circles(found):
    """What is left when files that import nothing of it, or that nothing of it imports, go."""
    left = dict(found)
    while ends := {
        name
        for name, to in left.items()
        if not to & left.keys() or not any(name in other for other in left.values())
    }:
        left = {name: to for name, to in left.items() if name not in ends}
    return sorted(left)


def test_no_circle_of_files():
    assert circles(graph()) == []


def test_the_check_sees_circles():
    assert circles({"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a"}}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]


def test_no_two_files_share_a_name():
    """But for the anatomy of a package, and for what all of libraries/*/ have alike."""
    alike = {"__init__", "__main__", "command", "part", "show", "shown"}
    paths = [path.relative_to(PACKAGE) for path in MODULES if path.stem not in alike]
    names = Counter(path.stem for path in paths if path.parts[:2] not in LIBRARIES)
    assert [name for name, count in names.items() if count > 1] == []


def test_one_name_one_class():
    classes = Counter(
        node.name
        for path in MODULES
        for node in parsed(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []


def loaded_by(*modules):
    """Which heavy packages a new Python holds after these imports."""
    code = "import sys\n" + "".join(f"import {module}\n" for module in modules)
    code += (
        "heavy = ('torch', 'numpy', 'scipy', 'pandas', 'rich', 'matplotlib')\n"
        "print(' '.join(name for name in heavy if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def modules_of(package):
    return [
        f"torchcoll.{package}.{path.stem}" for path in sorted((PACKAGE / package).glob("[!_]*.py"))
    ]


def test_importing_torchcoll_loads_nothing_heavy():
    assert loaded_by("torchcoll") == []


def test_core_report_and_cli_load_nothing_heavy():
    assert loaded_by(*modules_of("core"), *modules_of("report"), "torchcoll.cli") == []


def test_the_check_of_what_is_loaded_sees_it():
    assert loaded_by("numpy") == ["numpy"]


PUBLIC = ["Algorithms", "Case", "Cold", "Comparison"]
PUBLIC += ["FittedModel", "LayoutComparison", "Plan", "Postmortem", "Prediction", "Run", "Scaling"]
PUBLIC += ["Spec", "TorchcollError", "Traffic", "TrafficComparison"]
PUBLIC += ["Transitions"]
PUBLIC += ["Trial", "Verdict"]
PUBLIC += ["algorithms", "capture", "check", "cold", "compare", "compare_plans"]
PUBLIC += [
    "fit_model",
    "load",
    "plan",
    "plot",
    "postmortem",
    "predict",
    "replay",
    "run",
    "save",
    "scaling",
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
    names = {path.stem for path in PACKAGE.glob("*.py")} | PACKAGES | NESTED
    assert names & set(torchcoll.__all__) == set()


def test_inits_of_packages_are_empty():
    inits = sorted(PACKAGE.rglob("*/__init__.py"))
    inner = [path for path in inits if path.parent != PACKAGE]
    assert len(inner) >= 4
    assert [path for path in inner if path.read_bytes()] == []


def test_one_stub_for_each_collective():
    others = {"__init__", "__main__", "answering", "cli", "integrations", "pairs"}
    assert {path.stem for path in PACKAGE.glob("*.py")} - others == STUBS


@pytest.mark.parametrize("module", sorted(STUBS))
def test_stub(module):
    text = (PACKAGE / f"{module}.py").read_text()
    assert len(text.splitlines()) < 8
    tree = ast.parse(text)
    # A docstring, one import, one guarded call; runpy loads it twice, so it defines nothing.
    assert [type(node) for node in tree.body] == [ast.Expr, ast.ImportFrom, ast.If]
    assert ast.unparse(tree.body[2].test) == "__name__ == '__main__'"
    names = {one.module: one.name for one in COLLECTIVES.values()}
    argument = repr(names[module]) if module in names else ""
    assert [ast.unparse(node) for node in tree.body[2].body] == [f"main({argument})"]
    assert f"torchcoll.{module}" in ast.get_docstring(tree)


def test_files_that_comments_name_are_there():
    """A file of ours, by its package, elsewhere than in itself: a move takes its mentions along."""
    ours = {str(path.relative_to(PACKAGE)) for path in MODULES}
    ours |= {name.partition("/")[2] for name in ours if name.partition("/")[0] in NESTED}
    gone = {"importers", "verdict", "overview", "matrix", "forcing", "reproduction", "store"}
    known = {*(package.rpartition("/")[2] for package in PACKAGES), *NESTED, *gone}
    found = {
        (str(path.relative_to(PACKAGE)), named)
        for path in MODULES
        for named in re.findall(r"(?<![\w/])([a-z_]+(?:/[a-z_]+)+\.py)\b", path.read_text())
        if named.partition("/")[0] in known
    }
    assert {(path, named) for path, named in found if named not in ours or named == path} == set()
