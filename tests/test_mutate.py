"""tests/mutate.py: which places of a file it changes, and what it makes of them."""

from __future__ import annotations

import ast
from pathlib import Path

import mutate
import pytest

SOURCE = '''"""A docstring with 1 < 2."""
from __future__ import annotations
__all__ = ["f"]
if TYPE_CHECKING:
    import b
Pair = "tuple[int, int]"
@dataclass(frozen=True)
class A:
    x: Literal[4] = 3
def f(a: int | None, b: Callable[[1], 2]) -> Literal[5]:
    assert a > 0
    if a and b < 1:
        print(f"größer {a + 1:>8} als" " b")
    a += 2.5
    return list(zip("ä" + a, [n for n in b if n is not a], strict=True))
'''
CHANGES = [
    "9: 3 -> 4",
    "12: a and b < 1 -> not (a and b < 1)",
    "12: a and b < 1 -> a or b < 1",
    "12: b < 1 -> b <= 1",
    "12: 1 -> 2",
    "13: a + 1 -> a - 1",
    "13: 1 -> 2",
    "14: a += 2.5 -> a -= 2.5",
    "14: 2.5 -> 5.0",
    "15: n is not a -> not n is not a",
    "15: n is not a -> n is a",
]


def test_sites_and_what_becomes_of_them():
    found = []
    for index, _ in enumerate(mutate.find_sites(ast.parse(SOURCE))):
        tree = ast.parse(SOURCE)
        site = list(mutate.find_sites(tree))[index]
        change = f"{site.node.lineno}: {ast.unparse(site.node)} -> {ast.unparse(site.new)}"
        found.append(change)
        lines = mutate.rewrite(SOURCE, tree, site).splitlines()
        line = site.node.lineno - 1
        changed = [*SOURCE.splitlines()]
        changed[line] = lines[line]
        assert lines == changed != SOURCE.splitlines()
        assert ast.unparse(ast.parse("\n".join(lines))) == ast.unparse(tree)
    assert sorted(found) == sorted(CHANGES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a = (b\n     < c)\nd = 1\n", "a = ((b <= c\n))\nd = 1\n"),
        ("a = b if c else d\n", "a = b if (not c) else d\n"),
        ("a = f'{b:{c}}' f'{d == e}'\n", "a = (f'{b:{c}}{d != e}')\n"),
    ],
)
def test_other_lines_stay_where_they_are(old, new):
    tree = ast.parse(old)
    assert mutate.rewrite(old, tree, next(mutate.find_sites(tree))) == new


def test_tests_of_the_module_come_first(tmp_path, monkeypatch):
    """Then those of its package, of a package that imports it, of none, and of no user."""
    files = {
        "torchcoll/a/one.py": "",
        "torchcoll/b/two.py": "from torchcoll.a import one",
        "tests/c/test_c.py": "",
        "tests/test_top.py": "",
        "tests/b/test_b.py": "",
        "tests/a/test_others.py": "",
        "tests/a/test_one.py": "",
        "tests/a/test_user.py": "from torchcoll.a.one import name",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    assert mutate.nearest_tests(Path("torchcoll/a/one.py")) == [
        (0, "tests/a/test_one.py"),
        (0, "tests/a/test_user.py"),
        (1, "tests/a/test_others.py"),
        (2, "tests/b/test_b.py"),
        (98, "tests/test_top.py"),
        (99, "tests/c/test_c.py"),
    ]
