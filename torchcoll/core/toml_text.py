"""Reads TOML, with the standard library from Python 3.11 on."""

from __future__ import annotations

import sys
from typing import Any


def toml_table(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError for invalid TOML, ImportError if Python 3.10 lacks tomli."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    table: dict[str, Any] = tomllib.loads(text)
    return table
