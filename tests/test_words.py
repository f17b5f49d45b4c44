"""The words of the field: private words stay out of what users see, and out of names.

A word may come back only with a reason here.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_files import nodes

from torchcoll import cli

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torchcoll"
PAGES = sorted({*(ROOT / "docs").glob("*.md"), ROOT / "README.md"})

# What users read: the word, and what is written in its place.
PRIVATE = {
    r"\blaunches\b": "runs (`launch` is a verb, and a folder)",
    r"\bunclear\b": "inconclusive",
    r"\bincomparable\b": "not comparable",
    r"\bsettled\b": "decided, or steady",
    r"\btwo modes\b": "bimodal",
    r"\blead calls\b": "ramp-up calls",
    r"\bhypervisor took\b": "CPU steal",
    r"\bwhat is not here\b": "not included",
    r"\bbeyond the data\b": "extrapolated",
    r"--(launches|beside|around|against)\b": "--runs, --concurrent, --baseline",
    r"\bexternal:": "background:",
}


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each string of a file that is not a docstring."""
    of_file = nodes(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in of_file
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in of_file:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and id(node) not in docstrings:
            yield node.lineno, text


def test_no_private_word_in_what_the_product_prints():
    private = re.compile("|".join(PRIVATE))
    offences = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]!r}: write {PRIVATE[word]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in strings(path)
        if private.search(text)
        for word in PRIVATE
        if re.search(word, text)
    ]
    assert offences == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_private_word_on_a_page(path):
    text = path.read_text()
    offences = [
        f"{path.name}: {match.group()}: write {better}"
        for word, better in PRIVATE.items()
        for match in re.finditer(word, text)
    ]
    assert offences == []


def test_no_private_word_in_the_help():
    parser = cli._parser(cli.commands(), cli.commands())
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    texts = {"torchcoll": parser.format_help()}
    for name, subparser in subparsers.choices.items():
        texts[name] = subparser.format_help()
    private = re.compile(r"\b(told|tells|stated|beside|behind)\b|" + "|".join(PRIVATE))
    assert {
        name: private.findall(text) for name, text in texts.items() if private.search(text)
    } == {}


# Names of values that say nothing: pronouns, and participles of whatever came last.
NAMES = {
    "found",
    "got",
    "made",
    "one",
    "own",
    "both",
    "known",
    "stated",
    "told",
    "tells",
    "said",
    "word",
    "words",
    "way",
    "ways",
    "beside",
    "trouble",
    "thing",
    "things",
}
# (file, name) -> why it stays.
KEPT_NAMES = {("torchcoll/questions/check/limits.py", "word"): "the key of a verdict's JSON"}


def bound_names(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(path.read_text()):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


@pytest.mark.parametrize(
    "package", sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists())
)
def test_names_say_what_a_value_is(package):
    offences = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for line, name in bound_names(path)
        if name in NAMES and (str(path.relative_to(ROOT)), name) not in KEPT_NAMES
    ]
    assert offences == []
