"""A hook of mkdocs: a command has a copy button, and the sentences of its output wrap."""

from __future__ import annotations

import re
from typing import Any

_BLOCK = re.compile(
    r'<div class="language-(?P<kind>\w+) highlight"><pre>.*?<code>(?P<text>.*?)</code>', re.S
)
_COLUMNS = re.compile(r"\S {2,}\S")  # of a table, which scrolls


def on_page_content(html: str, **_: Any) -> str:
    return _BLOCK.sub(_block, html)


def _block(match: re.Match[str]) -> str:
    kind, text = match["kind"], match["text"]
    button = ""
    if kind == "bash":
        plain = re.sub(r"<.*?>", "", text).strip().replace('"', "&quot;")
        button = (
            '<button class="md-clipboard md-icon" title="Copy the command" '
            f'data-clipboard-text="{plain}"></button>'
        )
    elif kind == "text":
        lines = text.rstrip("\n").split("\n")
        text = "\n".join(
            line if _COLUMNS.search(line.strip()) else f'<span class="sentence">{line}</span>'
            for line in lines
        )
    # The theme moves its own tabindex about that of the code: the pre scrolls instead (pages.css).
    block = f'<div class="language-{kind} highlight">{button}<pre tabindex="0"><span></span>'
    return f"{block}<code>{text}</code>"
