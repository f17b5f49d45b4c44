"""The syntax trees of the product's files: several tests look at every file."""

from __future__ import annotations

import ast
from functools import cache


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(parsed(source)))
