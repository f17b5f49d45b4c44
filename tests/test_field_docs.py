"""What the docstring of a dataclass documents as ``name:`` is a name in its class."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from source_files import parsed

import torchcoll

PACKAGE = Path(torchcoll.__file__).parent
# At the beginning of a sentence, a clause or an item: ``low, high: the ends``.
NAMED = re.compile(r"(?:^|[.;] )(?:- )?(\w+(?:\[\w+\])*(?:, \w+)*): ", re.M)


def dataclasses():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and ast.get_docstring(node):
                name = f"{path.stem}.{node.name}"
                is_dataclass = any("dataclass" in ast.dump(item) for item in node.decorator_list)
                if is_dataclass:
                    yield pytest.param(node, id=name)


def documented(text):
    """Names in lower case before a colon, in paragraphs joined to one line each."""
    plain = re.sub(r"(?<!- )``(\w+)(?:\([^)]*\))?``", r"\1", text)  # ``divide(weights, elements)``:
    joined = re.sub(r"(?<=\S)\n\s*(?=[^\s-])", " ", plain)
    for match in NAMED.finditer(joined):
        names = re.sub(r"\[\w+\]", "", match[1]).split(", ")
        if all(name.islower() for name in names):
            yield from names


@pytest.mark.parametrize("node", list(dataclasses()))
def test_a_documented_field_exists(node):
    members = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
    members |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    assert [name for name in documented(ast.get_docstring(node)) if name not in members] == []


def test_a_name_that_no_field_has_is_found():
    text = (
        "A case.\n\n    size_bytes: size.\n    beside, op: work\n    at once. lead_ns[rank]: time."
        "\n    ``parts(n)``, ``crossing``: shares"
    )
    assert list(documented(text)) == ["size_bytes", "beside", "op", "lead_ns", "parts", "crossing"]
