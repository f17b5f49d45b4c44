from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from torchcoll.report.text import show


class Terminal(io.StringIO):
    """A stdout that is a terminal; colour and cursor codes are taken out of what was written."""

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return "\n".join(line.rstrip() for line in plain.split("\n"))


@pytest.fixture
def shown() -> Callable[..., str]:
    """``show`` into a text, as a pipe gets it."""

    def run(*args: Any, **choices: Any) -> str:
        out = io.StringIO()
        show(*args, file=out, **choices)
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
