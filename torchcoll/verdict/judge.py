"""The sentence that ends a run: PASS, WARN, FAIL or NO REFERENCE, each with its reason.

It is a reading of the file, never a part of it: another fabric, other rules or a later version may
read the same samples otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.first import backends_of, first_result_ns
from torchcoll.core.plausibility import (
    IMPLAUSIBLE,
    link_unused,
    stated_link_gbps,
    summarise_run,
)
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.summary import FAKE, ONE_RANK, Row
from torchcoll.core.units import counted, format_time, one_line
from torchcoll.verdict.fabric import fabric_of, label_problem, odd_links
from torchcoll.verdict.limits import by_fabric
from torchcoll.verdict.rules import Fabric, read_rules
from torchcoll.verdict.words import FAIL, NO_REFERENCE, PASS, WARN, Phrase, case_text

_MOST_TOLD = 3  # events of a kind; the others stand above the verdict


@dataclass(frozen=True)
class Verdict:
    phrases: tuple[Phrase, ...]
    fabric: str | None = None

    @property
    def word(self) -> str:
        """The worst of its phrases."""
        words = {phrase.word for phrase in self.phrases}
        return next((word for word in (FAIL, WARN, PASS) if word in words), NO_REFERENCE)

    @property
    def line(self) -> str:
        return "; ".join(map(str, self.phrases))

    def to_json(self) -> dict[str, Any]:
        phrases = [vars(phrase) for phrase in self.phrases]
        return {"word": self.word, "line": self.line, "fabric": self.fabric, "phrases": phrases}


def judge(
    run: Run,
    fabric: str | None = None,
    rules: Sequence[str | os.PathLike[str]] = (),
    against: Run | None = None,
    rows: Sequence[Row] | None = None,
) -> Verdict:
    """The verdict on a run.

    fabric: stated; else that of the one file of ``rules``, else the label ``fabric``, or what the
    links of the ranks show. rules: files of the user's own. against: a run to be measured by, in
    place of a fabric's limits. rows: those of the run, where they are known already (completion
    over ranks, default clocks). Raises UsageError for rules and fabrics that are not there or
    cannot be the run's, and for a run to be measured by that is another machine's.
    """
    rows = summarise_run(run) if rows is None else rows
    failures = list(_failures(run, rows))
    good = [row for row in rows if row.status == "ok" and row.verified != "wrong"]
    nothing = _nothing_to_judge(good)
    found, problems = None, [label_problem(run)]
    if against is not None:
        if fabric or rules:
            raise UsageError("against", "a run beside a fabric or rules", "one of them")
        from torchcoll.verdict.against import against_phrase

        reference = [nothing] if nothing else [against_phrase(good, run, against)]
    else:
        found, problem = _fabric(run, fabric, rules)
        problems.append(problem)
        reference = [nothing] if nothing else by_fabric(good, found, run)
    if failures and all(phrase.word == NO_REFERENCE for phrase in reference):
        reference = []
    unread = () if failures else _unread(run)
    told = [*problems, *unread, *odd_links(run), *_told(run, "machine")]
    warnings = [Phrase(WARN, text) for text in told if text]
    if reference and not nothing and all(phrase.word == NO_REFERENCE for phrase in reference):
        reference += _not_bounded(run, good)
    phrases = [*failures, *reference, *warnings, *_facts(run, rows, failures, reference)]
    plain = (Phrase(phrase.word, one_line(phrase.text)) for phrase in phrases)
    return Verdict(tuple(plain), found.name if found else None)


def _fabric(
    run: Run, stated: str | None, rules: Sequence[str | os.PathLike[str]]
) -> tuple[Fabric | None, str]:
    """The fabric of a run, and what is wrong with its label: the file is shown all the same."""
    own = read_rules(rules)
    if not stated and len(own) == 1:
        stated = next(iter(own))
    elif not stated and own and "fabric" not in run.labels:
        raise UsageError("rules", f"{len(own)} fabrics", "--fabric NAME beside them")
    try:
        return fabric_of(run, stated, own), ""
    except UsageError as error:
        if stated:
            raise
        return None, f"label {error}".rstrip(".")


def _failures(run: Run, rows: Sequence[Row]) -> Iterator[Phrase]:
    if run.ending:
        yield Phrase(FAIL, run.ending)
    elif run.end is None and not run.source:
        cut = (problem for problem in run.problems if problem.startswith("truncated"))
        yield Phrase(FAIL, next(cut, "the run did not end"))
    wrong = [row for row in rows if row.verified == "wrong" or row.status == "wrong"]
    doubted = [row for row in rows if row.status == IMPLAUSIBLE]
    known = (*EXPECTED_STATUSES, "wrong", IMPLAUSIBLE)
    failed = [row for row in rows if row.status not in known]
    for items, word in ((wrong, "wrong"), (doubted, IMPLAUSIBLE), (failed, "failed")):
        if items:
            first = case_text(items[0])
            if word == IMPLAUSIBLE:
                peak = max(row.busbw_gbps or 0 for row in items)
                first = f"busbw up to {peak:.4g} GB/s, " if peak >= 0.01 else ""
                first += "see the footnotes"
            elif len(items) > 1:
                first = f"the first {first}"
            yield Phrase(FAIL, f"{len(items)} of {counted(len(rows), 'case')} {word}: {first}")
    for text in _suspected(run):
        yield Phrase(FAIL, text)


def _suspected(run: Run) -> list[str]:
    """What the ranks told, by the threshold they had; else what reading the pairs shows: a run that
    was cut told nothing.
    """
    from torchcoll.core.pair_times import read_pairs
    from torchcoll.core.suspect_texts import suspect_text
    from torchcoll.core.suspects import suspects

    told = _messages(run, "suspect")
    if not told and (pairs := read_pairs(run)):
        told = [suspect_text(pairs, one) for one in suspects(pairs) if one.stands]
    return _first(told, "suspect")


def _told(run: Run, kind: str) -> list[str]:
    return _first(_messages(run, kind), kind)


def _messages(run: Run, kind: str) -> list[str]:
    own = [event for event in run.events if event.get("kind") == kind]
    return [str(event.get("message") or f"{kind} event without a text") for event in own]


def _first(told: Iterable[str], kind: str) -> list[str]:
    texts = dict.fromkeys(told)
    first = list(texts)[:_MOST_TOLD]
    more = len(texts) - len(first)
    return [*first, f"{more} more of the {kind} events above"] if more else first


def _unread(run: Run) -> Iterator[str]:
    """What reading the file lost: it is not judged."""
    known = ("truncated", run.ending or "truncated")  # failures
    lost = [p for p in run.problems if not p.startswith(known) and not p.endswith("shown once")]
    if lost:
        yield f"{len(lost)} problem{'s' if len(lost) > 1 else ''} in reading: {lost[0]}"


def _nothing_to_judge(rows: Sequence[Row]) -> Phrase | None:
    """Why no reference says anything of these rows."""
    if not rows:
        return Phrase(NO_REFERENCE, "no case has a result")
    if all(row.ranks == 1 for row in rows):
        return Phrase(NO_REFERENCE, ONE_RANK)
    if all(row.backend == "fake" for row in rows):
        return Phrase(NO_REFERENCE, FAKE)
    if any(row.rehearsal for row in rows):
        return Phrase(NO_REFERENCE, "a rehearsal on one GPU: its bandwidth means nothing")
    return None


def _not_bounded(run: Run, rows: Sequence[Row]) -> Iterator[Phrase]:
    """Why nobody asked whether an imported figure is possible, and what would tell."""
    known = any(m.get("device_name") for m in run.members) or run.labels.get("gpu")
    bounded = known or (stated_link_gbps(run) is not None and not link_unused(run))
    accelerator = any(row.device != "cpu" for row in rows)
    missing = {
        "ranks": "--ranks N" if any(row.ranks < 1 for row in rows) else "",
        "GPU": "--label gpu=NAME" if accelerator and not bounded else "",
    }
    if run.source and any(missing.values()):
        names = " and ".join(name for name, way in missing.items() if way)
        way = " ".join(filter(None, missing.values()))
        text = f"whether it is possible was not judged: {names} unknown"
        yield Phrase("", f"{text} (torchcoll import FILE {way} -o RUN)")


def _facts(
    run: Run, rows: Sequence[Row], failures: Sequence[Phrase], reference: Sequence[Phrase]
) -> Iterable[Phrase]:
    ran = [row for row in rows if row.status == "ok"]
    correct = sum(row.verified == "correct" for row in ran)
    judged = any(phrase.word not in (NO_REFERENCE, "") for phrase in reference)  # the times alone
    if ran and not failures and (judged or correct == len(ran)):
        some = f"{counted(correct, 'case')} correct" if correct else "no values checked"
        rest = len(ran) - correct
        yield Phrase("", f"{some}, {rest} unchecked" if correct and rest else some)
    if unused := link_unused(run):
        yield Phrase("", unused)
    backends = backends_of(run.results)
    firsts = {b: ns for b in backends if (ns := first_result_ns(run, backend=b)) is not None}
    words = [
        format_time(ns, 3).strip() + (f" on {backend}" if len(backends) > 1 else "")
        for backend, ns in firsts.items()
    ]
    if words:
        yield Phrase("", f"first result after {' and '.join(words)}")
