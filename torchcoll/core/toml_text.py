"""Reads TOML, with the standard library from Python 3.11 on, and formats keys and texts of TOML."""

from __future__ import annotations

import json
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


def toml_string(text: str) -> str:
    """Format a text as a TOML string on one line. What UTF-8 cannot encode becomes an escape."""
    clean = text.encode(errors="backslashreplace").decode()
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")
