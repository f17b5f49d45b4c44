from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from handmade import Terminal

from torchcoll.questions.show.show import show
from torchcoll.report import columns as report_columns


@pytest.fixture
def fixed_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables have these columns, whatever is shown by default: for tests of how tables look.

    The list that is shown by default has a test of its own, in tests/show/test_table.py.
    """
    names = (
        "size_bytes",
        "first_call_ns",
        "median_ns",
        "low_ns",
        "high_ns",
        "p99_ns",
        "calls",
        "algorithm",
        "algbw_gbps",
        "busbw_gbps",
        "verified",
    )
    monkeypatch.setattr(report_columns, "SHOWN_BY_DEFAULT", names)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``show`` into a text, as a pipe gets it, from below its first answer on, which stands at the
    end instead: there a table of text repeats its first sentence (see conftest.py).
    """

    def run(*args: Any, **choices: Any) -> str:
        monkeypatch.delenv("COLUMNS", raising=False)  # which a terminal before it may have set
        out = io.StringIO()
        show(*args, file=out, **choices)
        first, _, rest = out.getvalue().partition("\n\n")
        lines = rest.splitlines(keepends=True)
        for count in range(1, min(len(lines), 6) + 1):
            repeated = " ".join("".join(lines[-count:]).split())
            if " ".join(first.split()).startswith(repeated):
                return "".join([*lines[:-count], first, "\n"])
        return out.getvalue()

    return run


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``show`` on a terminal of so many columns; ``names`` is its ``columns``."""

    def run(*args: Any, columns: int, names: str | None = None, **choices: Any) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm-256color")
        out = Terminal()
        show(*args, file=out, columns=names, **choices)
        return out.text()

    return run
