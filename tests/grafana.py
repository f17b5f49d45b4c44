"""The queries of the Grafana dashboard, written out as Grafana's PostgreSQL plugin does.

The plugin replaces ``$__timeFilter(column)`` by ``column BETWEEN 'FROM' AND 'TO'`` (RFC 3339, UTC;
pkg/tsdb/grafana-postgresql-datasource/macros.go), and the browser ``${name:sqlstring}`` by the
chosen values as SQL strings with commas between them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[1] / "launch/grafana/torchcoll.json"
_MACRO = re.compile(r"\$__timeFilter\(([^()]*)\)")
_VARIABLE = re.compile(r"\$\{(\w+):sqlstring\}")


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def queries() -> dict[str, str]:
    """The SQL of each variable and of each target of a panel, by a name to show."""
    loaded = dashboard()
    named = {
        f"variable {each['name']}": each["query"]
        for each in loaded["templating"]["list"]
        if each["type"] == "query"
    }
    for panel in loaded["panels"]:
        for target in panel.get("targets", ()):
            suffix = "" if target["refId"] == "A" else f", query {target['refId']}"
            named[f"{panel['title']}{suffix}"] = target["rawSql"]
    return named


def expand(sql: str, begin: str, end: str, values: Mapping[str, str | Sequence[str]]) -> str:
    """Raises KeyError for a variable without a value, ValueError for any other macro."""

    def chosen(match: re.Match[str]) -> str:
        value = values[match[1]]
        texts = [value] if isinstance(value, str) else value
        return ",".join("'" + text.replace("'", "''") + "'" for text in texts)

    expanded = _MACRO.sub(lambda match: f"{match[1]} BETWEEN '{begin}' AND '{end}'", sql)
    if "$__" in expanded:
        raise ValueError(expanded)
    return _VARIABLE.sub(chosen, expanded)
