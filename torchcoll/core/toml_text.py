"""TOML: reading with the standard library where it can, and the texts of a file that is written."""

from __future__ import annotations

import json
import re
import sys
from typing import Any


def toml_table(text: str) -> dict[str, Any]:
    """Raises ImportError before Python 3.11 without tomli, ValueError for what is no TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    table: dict[str, Any] = tomllib.loads(text)
    return table


def toml_string(text: str) -> str:
    """The text as a TOML string on one line. What UTF-8 cannot encode is written as an escape."""
    clean = text.encode(errors="backslashreplace").decode()
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(text: str) -> str:
    """The text as a key, without quotes where TOML needs none."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml_string(text)
