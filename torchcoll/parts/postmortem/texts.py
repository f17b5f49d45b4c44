"""What programs say when a job dies: one table, used for whole files and for single lines.

The table is texts.toml. ``TEXTS`` prove a cause. ``EVENTS`` are events by themselves, and
``COMPLAINTS`` are those of a rank. ``LINES`` say what kind of evidence any other line is.
``ASIDES`` are worth a clause beside a finding. ``REMEDIES`` are what several texts, and conclusions
without a text, say to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from torchcoll.core.toml_text import toml_table


@dataclass(frozen=True)
class Text:
    """A text that proves a cause.

    - source: who prints it: project and file or function, and the versions where known.
    - cause: the kind of the diagnosis, with blanks.
    - pattern: the text; its groups fill ``says`` and ``remedy``.
    - says: the finding. ``{rank}`` is who wrote the line, ``{any}`` the first group that is not
      empty, ``{host}`` the host that the line is of, or names.
    - remedy: what to do now, as an imperative.
    - whose: ``writer`` if the rank that writes the line is the culprit, ``named`` if the groups
      ``rank``, ``rank2`` or ``ranks`` are, '' if no rank can be named.
    - weak: it is only said if nothing else tells what happened: it follows from a first failure, or
      leaves open whose it is.
    """

    source: str
    cause: str
    pattern: re.Pattern[str]
    says: str
    remedy: str
    whose: str = ""
    weak: bool = False

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """Words of which each match has one; () if the pattern does not tell. Looking for them is a
        hundred times faster than the pattern.
        """
        literals = _words(re.sub(r"\\.|\[(?:\\.|[^]\\])*\]", ".", self.pattern.pattern))
        return tuple(literals) if min(map(len, literals)) >= _SHORTEST else ()


_SHORTEST = 4
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>)?([^()]*)\)")


def _words(pattern: str) -> list[str]:
    """A word of each alternative of a pattern without escapes and classes; '' if there is none."""
    groups: list[str] = []  # those without groups inside, which the pattern has as <0>, <1>, ...

    def keep(match: re.Match[str]) -> str:
        groups.append(match[1])
        return f"<{len(groups) - 1}>"

    while _GROUP.search(pattern):
        pattern = _GROUP.sub(keep, pattern)
    return [text for part in pattern.split("|") for text in _words_of(part, groups)]


def _words_of(part: str, groups: Sequence[str]) -> list[str]:
    certain = re.sub(r"(?:<\d+>|.)(?:[?*]|\{[^}]*\})|.\+", ".", part)
    best = max(re.findall(r"[\w /:'=-]+", re.sub(r"<\d+>", ".", certain)), key=len, default="")
    if len(best) >= _SHORTEST:
        return [best]
    for number in re.findall(r"<(\d+)>", certain):
        inside = groups[int(number)].split("|")
        texts = [text for inner in inside for text in _words_of(inner, groups)]
        if min(map(len, texts)) >= _SHORTEST:
            return texts
    return [best]


def _pattern(entry: Mapping[str, Any], flags: int = 0) -> re.Pattern[str]:
    given = entry.get("pattern", "")
    return re.compile(given if isinstance(given, str) else "|".join(given), flags)


def _remedy(text: str) -> str:
    """The text with the shared remedies that it names; groups of its pattern stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda match: REMEDIES.get(match[1], match[0]), text)


def _text(entry: Mapping[str, Any]) -> Text:
    parsed = {"pattern": _pattern(entry, re.S), "remedy": _remedy(entry["remedy"])}
    return Text(**{**entry, **parsed})


_FILE = resources.files("torchcoll").joinpath("parts/postmortem/texts.toml")
_TABLE = toml_table(_FILE.read_text(encoding="utf-8"))
REMEDIES: dict[str, str] = _TABLE["remedies"]
FOREIGN_FILES = tuple(_TABLE["foreign_files"])
TEXTS = tuple(_text(entry) for entry in _TABLE["text"])
EVENTS = tuple({**entry, "pattern": _pattern(entry)} for entry in _TABLE["event"])
COMPLAINTS = tuple((entry["text"], _pattern(entry)) for entry in _TABLE["complaint"])
LINES = tuple((entry["kind"], _pattern(entry)) for entry in _TABLE["line"])
ASIDES = tuple((_pattern(entry), str(entry["says"])) for entry in _TABLE["aside"])


def about_kind(what: str, kind: str, detail: str | None = None) -> str:
    """What the table says of a kind of diagnosis: of its detail, or else of all of the kind.

    what: ``did``, ``remedy`` or ``called``. Returns '' if the table does not say it.
    """
    of_kind = _TABLE["kinds"].get(kind, {})
    of_detail = of_kind.get(detail, {})
    return _remedy(of_detail.get(what) or of_kind.get(what, ""))


def kind_of(text: str) -> str:
    """What kind of evidence an error with this text is: as JobEvent.kind, ``exception``
    if no entry fits.
    """
    return next((kind for kind, pattern in LINES if pattern.search(text)), "exception")


def known_text(text: str) -> Text | None:
    """The entry of TEXTS that fits a line."""
    return next((each for each in TEXTS if each.pattern.search(text)), None)
