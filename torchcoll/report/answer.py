"""What a command found: one sentence, and the facts behind it as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERDICTS = {"good": "PASS", "doubt": "WARN", "bad": "FAIL", "": "NO REFERENCE"}  # by level


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
