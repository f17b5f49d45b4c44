"""A table as GitHub markdown."""

from __future__ import annotations

from collections.abc import Sequence

from torchcoll.report.grid import Grid, legends


def _escaped(text: str) -> str:
    # '*' marks a slow first call and would start emphasis; '<0.001' would be taken for a tag. Text
    # of a file that comes from elsewhere is to be no code and no link either.
    text = text.strip().replace("\\", "\\\\")
    for character in "|*<`":
        text = text.replace(character, f"\\{character}")
    return text.replace("](", "]\\(")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def markdown_text(grid: Grid) -> str:
    """Header lines and footnotes become lists, so that markdown keeps their line ends."""
    above = [*grid.above, *(legends(grid.heads) if grid.rows else [])]
    text = "".join(f"- {_escaped(line)}\n" for line in above)
    if grid.rows:
        text += "\n" if text else ""
        text += _row([_escaped(head.text) for head in grid.heads])
        text += _row([":---" if head.left else "---:" for head in grid.heads])
        text += "".join(_row([_escaped(cell) for cell in row]) for row in grid.rows)
    if grid.below:
        text += "\n" if text else ""
        text += "".join(f"- {_escaped(line)}\n" for line in grid.below)
    return text
