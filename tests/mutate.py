"""Small wrong changes of torchcoll's own code: does a test fail?

    python tests/mutate.py N SEED [--seconds 60] [--clean FILE] > results

N places of torchcoll/ are chosen at random, and one of them at a time is changed: a comparison,
``and``, an arithmetic operator, a number, a condition. Then tests run, nearest first, until one
fails twice; ``--seconds`` is for how long they may take without the change: at 15 s a sixth of the
survivors were noticed by tests that did not fit. Each run is forked from a process that has
imported everything but torchcoll. (tests/mutations.py changes the answers of a library instead.)

Annotations, decorators, assertions and zip's ``strict`` are not changed: no result depends on them.
Tests that fail without a change, take longer than 5 s or need a server do not run. ``--clean``
keeps for the next call which tests pass without a change, and how long they take.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).parents[1]
# Not hypothesis: pytest rewrites its assertions when it is imported.
IMPORTED = ["torch.distributed.run", "pandas", "scipy.optimize", "scipy.stats", "rich"]
IMPORTED += ["matplotlib.pyplot", "sqlalchemy", "jinja2", "plotly", "jsonschema", "pytest"]
MARKERS = "not postgres and not slurm and not browser and not notebook"
SLOW_SECONDS = 5

_PAIRS: list[tuple[Any, Any]] = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
]
_OTHER = {**dict(_PAIRS), **{new: old for old, new in _PAIRS}}
_OTHER |= {ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult}


class Site(NamedTuple):
    """A place that can be changed.

    - node, new: what is there, and what the change puts there.
    - unit: what is written anew: the node, or the f-string around it (its parts have no positions).
    """

    node: Any
    new: ast.AST
    unit: Any


def find_sites(node: ast.AST, unit: ast.AST | None = None) -> Iterator[Site]:
    """The sites in a syntax tree, in the order of the file."""
    if isinstance(node, ast.JoinedStr):
        unit = unit or node
    for new in _changes(node):
        yield Site(node, new, unit or node)
    tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
    for test in node.ifs if isinstance(node, ast.comprehension) else tests:
        if not isinstance(test, ast.Constant) and ast.unparse(test) != "TYPE_CHECKING":
            yield Site(test, ast.UnaryOp(ast.Not(), test), unit or test)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_strict = isinstance(child, ast.keyword) and child.arg == "strict"
            if isinstance(child, ast.AST) and not isinstance(child, ast.Assert) and not is_strict:
                yield from find_sites(child, unit)


def _changes(node: Any) -> Iterator[ast.AST]:
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            ops = [*node.ops[:i], _OTHER[type(operator)](), *node.ops[i + 1 :]]
            yield ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign) and type(node.op) in _OTHER:
        sides = [fields.get("left"), fields.get("right")]
        is_text = any(isinstance(getattr(side, "value", None), str) for side in sides)
        # Of texts and lists every other operator is an error.
        if not is_text and not any(isinstance(side, ast.JoinedStr | ast.List) for side in sides):
            yield type(node)(**{**fields, "op": _OTHER[type(node.op)]()})
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield ast.Constant(node.value * 2 or 1.0)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def rewrite(source: str, tree: ast.Module, site: Site) -> str:
    """The source with the site changed, every other line where it was. The tree is changed too."""
    unit = site.unit
    more_lines = unit.end_lineno - unit.lineno
    _Replace(site.node, site.new).visit(tree)
    text = ast.unparse(site.new if unit is site.node else unit)
    if isinstance(unit, ast.expr):
        text = f"({text}" + "\n" * more_lines + ")"
    lines = source.encode().split(b"\n")  # columns are of bytes
    head = [*lines[: unit.lineno - 1], lines[unit.lineno - 1][: unit.col_offset]]
    tail = [lines[unit.end_lineno - 1][unit.end_col_offset :], *lines[unit.end_lineno :]]
    changed = (b"\n".join(head) + text.encode() + b"\n".join(tail)).decode()
    assert ast.dump(ast.parse(changed)) == ast.dump(tree), (unit.lineno, text)
    return changed


def choose(number: int, seed: int) -> Iterator[tuple[Path, str, str]]:
    """(file relative to ROOT, "line: old -> new", changed source)."""
    sources = {path.relative_to(ROOT): path.read_text() for path in ROOT.glob("torchcoll/**/*.py")}
    every = [
        (path, index)
        for path, source in sorted(sources.items())
        for index, _ in enumerate(find_sites(ast.parse(source)))
    ]
    print(f"{len(every):,} sites in {len(sources)} files, {number} of them with seed {seed}")
    for path, index in random.Random(seed).sample(every, number):
        tree = ast.parse(sources[path])
        site = list(find_sites(tree))[index]
        old, new = (ast.unparse(node).replace("\n", " ")[:90] for node in (site.node, site.new))
        changed = rewrite(sources[path], tree, site)
        yield path, f"{site.node.lineno}: {old} -> {new}", changed


@cache
def imports(path: Path) -> set[str]:
    """Modules that a file imports, or names in a text."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and str(node.value).startswith("torchcoll."):
            names.add(str(node.value).partition(":")[0])
    return names


def nearest_tests(changed: Path) -> list[tuple[int, str]]:
    """(distance, file of tests) of a file, nearest first; paths are relative to ROOT.

    0: it is called as the module or imports it; 1: in the package's folder; 1 + n: in the folder of
    a package that imports it over n modules; 98: in no folder; 99: in that of no user. Of equal
    distances those come first whose names have more words of the module's.
    """
    paths = [path.relative_to(ROOT) for path in ROOT.glob("torchcoll/**/*.py")]
    name_of = {path: ".".join(path.with_suffix("").parts) for path in paths}
    folders = {"tests": 98}
    distances = {changed: 1}
    queue = [changed]
    for used in queue:  # it grows
        for folder in used.parts[1:-1]:
            folders.setdefault(folder, distances[used])
        users = {path for path in paths if name_of[used] in imports(ROOT / path)}
        for user in sorted(users - distances.keys()):
            distances[user] = distances[used] + 1
            queue.append(user)
    found = []
    for path in ROOT.glob("tests/**/test_*.py"):
        folder = path.parent.name
        named = path.stem.startswith(f"test_{changed.stem}") and folder in changed.parts
        near = named or name_of[changed] in imports(path)
        distance = 0 if near else folders.get(folder, 99)
        shared = {*path.stem.split("_")} & {*changed.stem.split("_")}
        found.append((distance, not named, -len(shared), str(path.relative_to(ROOT))))
    return [(distance, test) for distance, _, _, test in sorted(found)]


class Run:
    """A run of pytest, as a plug-in of it: of the tests that are ``wanted``, or of all if None."""

    def __init__(self, wanted: Sequence[str] | None, report: Path) -> None:
        self.wanted, self.report = None if wanted is None else set(wanted), report
        self.seconds: dict[str, float] = defaultdict(float)
        self.outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if self.wanted is None or item.nodeid in self.wanted]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.outcomes[report.nodeid] = report.outcome  # skipped or failed
        if report.when == "teardown":
            outcome = self.outcomes.get(report.nodeid, "passed")
            with self.report.open("a") as file:
                file.write(f"{outcome}\t{self.seconds[report.nodeid]:.3f}\t{report.nodeid}\n")


def run_tests(folder: Path, wanted: Sequence[str] | None, limit_s: float) -> str:
    """ "passed", "timed out", a test that failed, or how pytest ended, in ``folder/tree``."""
    report = folder / "report"
    report.write_text("")
    pid = os.fork()
    if not pid:
        _become_pytest(folder, wanted, report)
    ends = time.monotonic() + limit_s
    done = status = 0
    while not done and time.monotonic() < ends:
        time.sleep(0.02)
        done, status = os.waitpid(pid, os.WNOHANG)
    # Orphans became children of this process.
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := children.read_text().split():
        for child in map(int, pids):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if not done or code in (0, 5):  # 5: there were no tests
        return "passed" if done else "timed out"
    rows = [row.split("\t") for row in report.read_text().splitlines()]
    failed = [test for outcome, _, test in rows if outcome == "failed"]
    return failed[0] if failed else f"pytest ended with {code}"


def _become_pytest(folder: Path, wanted: Sequence[str] | None, report: Path) -> NoReturn:
    code = 3
    try:
        os.setsid()
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder / "tree")
        sys.path[0] = os.environ["PYTHONPATH"] = str(folder / "tree")
        options = ["-q", "-m", MARKERS, "-p", "no:cacheprovider", f"--basetemp={folder}/t"]
        if wanted is None:
            options.append("tests")
        else:
            options += ["-x", *dict.fromkeys(test.partition("::")[0] for test in wanted)]
        code = int(sys.modules["pytest"].main(options, plugins=[Run(wanted, report)]))
    finally:
        os._exit(code)


def read_clean(folder: Path, file: Path) -> dict[str, float]:
    """Seconds of each quick test that passes without a change; all run if there is no file."""
    if not file.exists():
        run_tests(folder, None, 7200)
        shutil.copy(folder / "report", file)
    rows = [row.split("\t") for row in file.read_text().splitlines()]
    seconds = {test: float(took) for outcome, took, test in rows if outcome == "passed"}
    return {test: took for test, took in seconds.items() if took < SLOW_SECONDS}


def find_failure(folder: Path, changed: Path, clean: dict[str, float], seconds: float) -> str:
    """What notices the change, or "". A test that failed by chance is taken out of ``clean``."""
    tests_of = defaultdict(list)
    for test in clean:
        tests_of[test.partition("::")[0]].append(test)
    stages: list[list[str]] = [[], []]  # tests of the module, and others
    for distance, file in nearest_tests(changed):
        for test in tests_of[file]:
            if clean[test] <= seconds:
                seconds -= clean[test]
                stages[distance > 0].append(test)
    for stage in stages:
        while stage := [test for test in stage if test in clean]:
            result = run_tests(folder, stage, 60 + 4 * sum(clean[test] for test in stage))
            if result == "passed":
                break
            if result not in clean or run_tests(folder, [result], 60) != "passed":
                return result
            del clean[result]
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clean", type=Path)
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for name in IMPORTED:
        importlib.import_module(name)
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ignored = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__")
        shutil.copytree(ROOT, folder / "tree", ignore=ignored)
        clean = read_clean(folder, options.clean or folder / "clean")
        for number, (file, change, source) in enumerate(choose(options.number, options.seed), 1):
            path = folder / "tree" / file
            times = path.stat()
            path.write_text(source)
            # Python looks at whole seconds to see that its compiled file is an old one.
            os.utime(path, (times.st_atime, times.st_mtime + number))
            result = find_failure(folder, file, clean, options.seconds)
            results.append(result)
            shutil.copy2(ROOT / file, path)
            print("noticed" if result else "SURVIVED", f"{file}:{change}", result, sep="\t")
    survived, timed_out = results.count(""), results.count("timed out")
    share = 100 * (1 - survived / len(results))
    print(
        f"noticed {len(results) - survived} of {len(results)} ({share:.0f} %), "
        f"{survived} survived, {timed_out} timed out (noticed)"
    )


if __name__ == "__main__":
    main()
