"""What a command answers, as data that every display renders (text, page, JSON, JUnit, metrics):
one sentence about one subject, how sure it is, the next step, and the details behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchcoll.core.units import format_bytes, format_factor, format_ns

# The verdict of each level of an answer; '' where nothing was judged.
VERDICTS = {"good": "PASS", "doubt": "WARN", "bad": "FAIL", "": "NO REFERENCE"}
_WORST = ("", "good", "doubt", "bad")  # levels
_LONG = 110  # characters: a shorter caveat is printed in full each time
_SHORTENED = 45  # characters of a repeated caveat: enough to recognise it
_MOST = 200  # characters of the first paragraph of an answer: two lines of 100

CERTAIN = "certain"
PROBABLY = "probably"
CANNOT_TELL = "cannot tell"
_PREFIXES = {"": "", CERTAIN: "", PROBABLY: "Probably ", CANNOT_TELL: "Cannot tell whether "}

_PLURALS = {"is": "are", "was": "were", "has": "have", "does": "do"}


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
        """The line; shortened or '' if its text is in ``printed``, to which it is added."""
        if len(self.text) < _LONG and not self.of_runs:
            return str(self)
        if self.text in printed and self.of_runs:
            return ""
        if self.text in printed:
            cut = self.text[:_SHORTENED].rpartition(" ")[0] or self.text[:_SHORTENED]
            return f"{self.before}{cut.rstrip(',;:(')} ... (said above)"
        printed.add(self.text)
        return str(self)


def format_quantity(value: float, unit: str) -> str:
    """``3.1x``, ``12 %``, ``1.5 ms``, ``1.21 GB/s``; never with an exponent. unit: ``x``, ``%`` for
    a share (0.12), ``ns``, ``B``, or any other as it is.
    """
    if unit == "x":
        return format_factor(value)
    if unit == "%":
        percent = 100 * value
        return f"{percent:.{int(0 < abs(percent) < 9.95)}f} %"
    if unit == "ns":
        return format_ns(value, 3)
    if unit == "B":
        return format_bytes(value)
    return f"{_three_digits(value)} {unit}".rstrip()


def _three_digits(value: float) -> str:
    """With three significant digits, without an exponent: ``0.0123``, ``1.21``, ``29000``."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{float(f'{value:.3g}'):.{decimals}f}"


@dataclass(frozen=True)
class Answer:
    """The answer of a command.

    - subject: a noun phrase, ``rank 1``, ``3 of 64 cases``; or the whole sentence if verb is ''.
    - level: ``good``, ``doubt`` or ``bad``, which is its colour too; '' if nothing was judged.
    - counts: how many cases or runs have which result.
    - worst: what is worst, by name.
    - details: what is known beside the sentence, a clause each, the most important first.
    - verb: in the third person singular, ``is late``; ``{}`` in it stands for the size, which
      otherwise follows: ``is {} slower``.
    - many: whether the subject is a plural.
    - size: how much, in ``unit``: see format_quantity.
    - scope: where, when, how often: ``in 18 of 19 steps``; or a list: ``: 4M 1.3x, 8M 2.0x``.
    - certainty: ``certain``, ``probably``, ``cannot tell``, or '' for what was measured.
    - next_step: what to do now, as an imperative: ``record about 60 steps``.
    - detectable: if nothing was found, the smallest size that would have been found, as a share.
    - before: what stands before the sentence, such as the title of its table.

    Raises ValueError for 'cannot tell' with level ``good`` or none.
    """

    subject: str
    level: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    worst: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    verb: str = ""
    many: bool = False
    size: float | None = None
    unit: str = ""
    scope: str = ""
    certainty: str = ""
    next_step: str = ""
    detectable: float | None = None
    before: str = ""

    def __post_init__(self) -> None:
        if self.certainty not in _PREFIXES:
            raise ValueError(f"certainty {self.certainty!r}")
        if self.certainty == CANNOT_TELL and self.level not in ("doubt", "bad"):
            raise ValueError(f"cannot tell with level {self.level!r}")

    @property
    def headline(self) -> str:
        """The sentence that can be quoted, without a full stop."""
        if not (self.verb or self.scope or self.certainty or self.before):
            return self.subject  # may be a Caveat, which a page shortens
        phrases = [self.subject]
        if self.verb:
            first, _, rest = self.verb.partition(" ")
            if self.many:
                first = _PLURALS.get(first) or first.removesuffix("s")
            verb = f"{first} {rest}".rstrip()
            size = "" if self.size is None else format_quantity(self.size, self.unit)
            phrases.append(verb.replace("{}", size) if "{}" in verb else f"{verb} {size}".rstrip())
        if self.scope.startswith(":"):
            phrases[-1] += self.scope
        elif self.scope:
            phrases.append(self.scope)
        return self.before + _PREFIXES[self.certainty] + " ".join(phrases)

    @property
    def lines(self) -> list[str]:
        """The sentence with as many details as fit into two lines, the others, the next step.

        A detail of several sentences has a line of its own.
        """
        first, details = self.headline, list(self.details)
        while details and ". " not in details[0] and len(first) + len(details[0]) + 2 <= _MOST:
            first += f"; {details.pop(0)}"
        return [first, *details, *([f"Next: {self.next_step}"] if self.next_step else [])]

    @property
    def text(self) -> str:
        """All of it in one line."""
        sentence = "; ".join((self.headline, *self.details))
        return f"{sentence}. Next: {self.next_step}" if self.next_step else sentence

    def with_sentence(self, text: str, alone: bool = False) -> Answer:
        """The same answer with another sentence. alone: without details and next step."""
        answer = replace(self, details=(), next_step="") if alone else self
        return replace(answer, subject=text, verb="", scope="", certainty="", before="")

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level or None,
            "headline": self.headline,
            "subject": self.subject,
            "verb": self.verb or None,
            "size": self.size,
            "unit": self.unit or None,
            "scope": self.scope or None,
            "certainty": self.certainty or None,
            "next_step": self.next_step or None,
            "detectable": self.detectable,
            "counts": dict(self.counts),
            "worst": list(self.worst),
            "details": list(self.details),
        }


def short_names(names: Sequence[str]) -> list[str]:
    """The names, of paths the files alone if these differ."""
    files = [name.rpartition("/")[2] for name in names]
    return files if len(set(files)) == len(files) else [*names]


def of_several(named: Sequence[tuple[str, Answer]]) -> Answer:
    """One answer for several runs, each with its name: that of all, or the worst, with its name."""
    names = short_names([name for name, _ in named])
    name, worst = max(
        zip(names, (answer for _, answer in named), strict=True),
        key=lambda p: (_WORST.index(p[1].level), p[1].size or 0.0, p[1].detectable or 0.0),
    )
    alike = {(answer.subject, answer.verb, answer.size) for _, answer in named}
    details = {answer.details for _, answer in named}
    if len(alike) == 1:
        before = f"{len(named)} runs: {worst.before}"
        return replace(worst, before=before, details=worst.details if len(details) == 1 else ())
    more = f"and {len(named) - 1} more below"
    return replace(worst, before=f"{name}: {worst.before}", details=(*worst.details, more))


def nothing_found(
    subject: str,
    verb: str,
    detectable: float | None,
    act_from: float,
    next_step: str,
    *,
    what: str = "slowdown",
    of: str = "",
    scope: str = "",
    details: tuple[str, ...] = (),
) -> Answer:
    """The answer where nothing was found: 'good' only if what a user acts on would have been found.

    - detectable: the smallest share that would have been found; None if it is not known.
    - act_from: the share from which on a user acts, such as power.ACT_ON_ALL.
    - next_step: what would decide, if it cannot be told.
    - what, of: ``delay`` and `` of a step`` in 'a delay of 3.4 % of a step'.
    """
    noticed = "" if detectable is None else f"a {what} of {format_quantity(detectable, '%')}{of}"
    if detectable is not None and detectable <= act_from:
        article, level, certainty, next_step = "no", "good", CERTAIN, ""
        limit = f"{noticed} would have been found"
    else:
        article, level, certainty = "a", "doubt", CANNOT_TELL
        limit = f"a {what} of any size may be hidden"
        if detectable is not None:
            least = format_quantity(detectable, "%")
            limit = f"only a {what} of {least} or more{of} would have been found"
            limit = f"even a {what} of 100 %{of} may be hidden" if detectable >= 1 else limit
    return Answer(
        f"{article} {subject}",
        level,
        details=details,
        verb=verb,
        scope=f"{scope} ({limit})".lstrip(),
        certainty=certainty,
        next_step=next_step,
        detectable=detectable,
    )
