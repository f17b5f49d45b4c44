"""What the arguments ``BASE NEW...`` of ``torchcoll compare`` stand for: sides, and their paths."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence

from torchcoll.core.errors import UsageError
from torchcoll.core.parts import first_answer
from torchcoll.reading.inputs import split_label


def sides_of(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """``BASE NEW...`` of the command line: names of sides, and their paths.

    ``label=path`` names the side; those of one label are its runs, and of a label such as
    ``backend:gloo`` only those cases. Without a label the first
    is the base and all others are runs of the new side. Raises UsageError for fewer than two
    sides, and for a glob that the shell has torn apart.
    """
    named: dict[str, list[str]] = {}
    for number, argument in enumerate(arguments):
        label, path = split_label(argument)
        named.setdefault(label or ("new" if number else "base"), []).append(path)
    if len(named) < 2:
        name, paths = next(iter(named.items()), ("none", []))
        several = f", {len(paths)} times" if len(paths) > 1 else ""
        action = "Files of one name are runs of one side: before='a/*.jsonl' after='b/*.jsonl'."
        cells = first_answer("answers", "cells", paths[0]) or [] if paths else []
        if len(cells) > 1:
            suggestion = as_sides(paths[0], cells[:2])
            action = f"Name two of its {len(cells)} cells: torchcoll compare {suggestion}."
        raise UsageError(
            "compare", f"the side {name} alone{several}", "BASE and NEW, of two names", action
        )
    _check_torn(named)
    return list(named.items())


def as_sides(folder: str, cells: Iterable[str]) -> str:
    """Cells of a folder of matrix or versus, as words of a command: no other cell's runs."""
    return " ".join(shlex.quote(f"{cell}={folder}/{cell}-[0-9]*.jsonl") for cell in cells)


def _check_torn(named: dict[str, list[str]]) -> None:
    """``compare before/* after/*``: the shell makes files of it, and BASE would be one of them."""
    if set(named) != {"base", "new"} or len(named["base"]) > 1:
        return
    folder = os.path.dirname(named["base"][0])
    others = {os.path.dirname(path) for path in named["new"] if os.path.isfile(path)}
    if os.path.isfile(named["base"][0]) and folder in others and len(others) > 1:
        raise UsageError(
            "new",
            f"files of {len(others)} folders, one of them the folder of BASE",
            "files of one side",
            f"Name the folders ({folder or '.'} ...), or each side: before=PATH after=PATH.",
        )
