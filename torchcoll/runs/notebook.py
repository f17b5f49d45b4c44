"""What ``show`` prints, as HTML: the answer first, the tables as they stand in a terminal."""

from __future__ import annotations

import html
import io
from typing import Any

from torchcoll.runs.show import JUDGED, show

# Columns are aligned by blanks: the notebook must neither wrap nor collapse them.
_STYLE = "white-space: pre; overflow-x: auto; font-family: monospace; line-height: 1.25"


def html_of(found: Any) -> str:
    """The text of ``show``, as text; what judges has its answer first, too."""
    out = io.StringIO()
    show(found, file=out)
    text, answer = out.getvalue().rstrip("\n"), ""
    if type(found).__name__ in JUDGED:
        answer = text.rpartition("\n")[2]
    first = f"<p><b>{html.escape(answer)}</b></p>" if answer else ""
    return f'{first}<pre style="{_STYLE}">{html.escape(text)}</pre>'
