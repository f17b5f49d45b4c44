"""How the code is cut: lines, functions, short ones, ones used once, and ways into a package.

    python tests/benchmarks/shape.py [FOLDER]

FOLDER is the package to count (default: torchcoll/). A function counts as short if its body without
the docstring has at most three lines, and as used once if its name occurs once in the package
besides its definition. The names that enter a package are those that other packages import from it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

RULER = re.compile(r"\s*# ?[-=]{2,}")
LONG = 90


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's body, its docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def imported_names(tree: ast.AST, package: str) -> list[tuple[str, str]]:
    """(package of torchcoll, name) of every import in a file of ``package``."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            parts = node.module.split(".")
            if parts[0] == "torchcoll" and len(parts) > 1 and parts[1] != package:
                names += [(parts[1], f"{node.module}.{alias.name}") for alias in node.names]
    return names


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "torchcoll"
    files = sorted(folder.rglob("*.py"))
    functions: list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]] = []
    uses: Counter[str] = Counter()
    per_package: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    entering: dict[str, set[str]] = defaultdict(set)
    lines = rulers = 0
    for path in files:
        text = path.read_text()
        tree = ast.parse(text)
        parts = path.relative_to(folder).parts
        package = parts[0] if len(parts) > 1 else "."
        length = len(text.splitlines())
        lines += length
        rulers += sum(bool(RULER.match(line)) for line in text.splitlines())
        per_package[package][0] += 1
        per_package[package][1] += length
        for name, target in imported_names(tree, package):
            entering[name].add(target)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((path, node))
            elif isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
    short = sum(body_lines(function) <= 3 for _, function in functions)
    once = sum(uses[function.name] == 1 for _, function in functions)
    long = [
        (path.relative_to(folder), function.name, (function.end_lineno or 0) - function.lineno + 1)
        for path, function in functions
        if (function.end_lineno or 0) - function.lineno >= LONG
    ]
    print(f"files                                {len(files):6}")
    print(f"lines                                {lines:6}")
    print(f"functions                            {len(functions):6}")
    print(f"  body of at most 3 lines            {short:6}  {short / len(functions):.1%}")
    print(f"  used once                          {once:6}  {once / len(functions):.1%}")
    print(f"  longer than {LONG} lines            {len(long):6}")
    for path_, name, length in long:
        print(f"    {path_} {name}: {length}")
    print(f"section rulers                       {rulers:6}")
    print(f"\n{'package':14}  files   lines  names that other packages import")
    for package, (count, length) in sorted(per_package.items()):
        print(f"{package:14} {count:6} {length:7} {len(entering[package]):6}")


if __name__ == "__main__":
    main()
