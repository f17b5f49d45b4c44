"""Of a page: a caveat is said once. Tables that stand alone in a terminal each say it; on a page
that has them all it would be read ten times, and then not at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torchcoll.core.plausibility import LIKELY
from torchcoll.report.answer import Answer
from torchcoll.report.grid import Grid
from torchcoll.report.page import Section, Titled

_LONG = 110  # characters from which a repetition is in the way
_KEPT = 45  # of one that was said: enough to know it again
_DOUBTED = "implausible: "
_MARK = re.compile(r"(?:\[\d+\] |implausible: )*")


def said_once(answers: Sequence[Answer], sections: Sequence[Section]) -> list[Section]:
    """The sections, where of what the answers or an earlier line below a table say word for word
    the first words stand. Tables, and what stands above them, are not touched.
    """
    said: list[str] = []
    for answer in answers:
        said += _clauses(answer.text)
    return [
        replace(section, parts=[_of_part(part, said) for part in section.parts])
        for section in sections
    ]


def _of_part(part: Titled, said: list[str]) -> Titled:
    return replace(part, grids=[_of_grid(grid, said) for grid in part.grids])


def _of_grid(grid: Grid, said: list[str]) -> Grid:
    answer = grid.answer
    if answer and answer.text.startswith(_DOUBTED):
        answer = replace(answer, headline=_lines([answer.text], said)[0], caveats=())
    return replace(grid, below=_lines(grid.below, said), answer=answer)


def _lines(lines: Sequence[str], said: list[str]) -> list[str]:
    kept = []
    for line in lines:
        mark = (_MARK.match(line) or [""])[0]
        core = line[len(mark) :]
        known = [clause for clause in said if clause in core]
        if not known:
            kept.append(line)
            said += _clauses(core)
        elif core not in known:
            for clause in sorted(known, key=len, reverse=True):
                core = core.replace(clause, _short(clause))
            kept.append(mark + core)
        else:  # it holds here too: it is not left out
            kept.append(f"{mark}{_short(core)} (said above)")
    return kept


def _clauses(text: str) -> list[str]:
    """What may come again: the whole, and what follows a ``NAME: `` that differs."""
    core = text[len((_MARK.match(text) or [""])[0]) :]
    found = [core, core.partition(_DOUBTED)[2]]
    found += [one.partition(LIKELY)[0] for one in found]
    return [one for one in dict.fromkeys(found) if len(one) >= _LONG]


def _short(text: str) -> str:
    cut = text[:_KEPT].rpartition(" ")[0] or text[:_KEPT]
    return f"{cut.rstrip(',;:(')} ..."
