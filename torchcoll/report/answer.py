"""What a command answers: one sentence, the facts behind it as data, and the caveats of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The verdict of each level of an answer; '' where nothing was judged.
VERDICTS = {"good": "PASS", "doubt": "WARN", "bad": "FAIL", "": "NO REFERENCE"}
_WORST = ("", "good", "doubt", "bad")  # levels
_LONG = 110  # characters: a shorter caveat is printed in full each time
_SHORTENED = 45  # characters of a repeated caveat: enough to recognise it


def worst_level(*levels: str) -> str:
    return max(levels, key=_WORST.index)


class Caveat(str):
    """A line that limits a result: ``text``, which may be true of several tables, between what is
    particular to this table (``before``: the number of a footnote, a status; ``after``).
    of_runs: it is true of the runs, whatever a table shows of them.
    """

    text: str
    before: str
    of_runs: bool

    def __new__(cls, text: str, before: str = "", after: str = "", of_runs: bool = False) -> Caveat:
        caveat = super().__new__(cls, f"{before}{text}{after}")
        caveat.text, caveat.before, caveat.of_runs = text, before, of_runs
        return caveat

    def once(self, printed: set[str]) -> str:
        """The line, where its text is among those that a page has printed: shortened, or '' if it
        is one of the runs. Adds it.
        """
        if len(self.text) < _LONG and not self.of_runs:
            return str(self)
        if self.text in printed and self.of_runs:
            return ""
        if self.text in printed:
            cut = self.text[:_SHORTENED].rpartition(" ")[0] or self.text[:_SHORTENED]
            return f"{self.before}{cut.rstrip(',;:(')} ... (said above)"
        printed.add(self.text)
        return str(self)


@dataclass(frozen=True)
class Answer:
    """The answer of a command that judges or compares; grid.py, page.py and formats.py display it.

    headline: a sentence that can be quoted. level: ``good``, ``doubt`` or ``bad``, which is its
    colour too; '' where nothing was judged. counts: how many cases or runs have which result.
    worst: what is worst, by name. caveats: what limits the headline, a clause each.
    """

    headline: str
    level: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    worst: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "; ".join((self.headline, *self.caveats))

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level or None,
            "headline": self.headline,
            "counts": dict(self.counts),
            "worst": list(self.worst),
            "caveats": list(self.caveats),
        }
