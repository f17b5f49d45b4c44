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
from torchcoll.core.first import first_result_ns
from torchcoll.core.hardware import Device, device_of
from torchcoll.core.plausibility import IMPLAUSIBLE, summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.summary import FAKE, ONE_RANK, Row
from torchcoll.core.units import format_size, format_time, one_line
from torchcoll.verdict.fabric import fabric_of, hosts_of, label_problem, odd_links
from torchcoll.verdict.rules import Fabric, Limit, capped, read_rules

PASS, WARN, FAIL, NO_REFERENCE = "PASS", "WARN", "FAIL", "NO REFERENCE"
# Shares of a reference, torchcoll's own choice: healthy systems of results/ and of public logs
# reach 90 to 102 % of the limits in rules/ from the sizes on that stand there; one of eight rails
# that is gone costs 12 %.
GOOD, POOR = 0.9, 0.75
_MOST_TOLD = 3  # events of a kind; the others stand above the verdict
_BEYOND = 1.05  # of the ring's limit: something better than a ring was used


@dataclass(frozen=True)
class Phrase:
    """One part of the sentence. word: PASS, WARN, FAIL, NO REFERENCE, or '' for a plain fact."""

    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.word} {self.text}".strip()


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
    found, problems = None, [label_problem(run)]
    if against is not None:
        if fabric or rules:
            raise UsageError("against", "a run beside a fabric or rules", "one of them")
        from torchcoll.verdict.against import against_phrase

        reference = [against_phrase(good, run, against)]
    else:
        found, problem = _fabric(run, fabric, rules)
        problems.append(problem)
        reference = _by_fabric(good, found, run)
    if failures and all(phrase.word == NO_REFERENCE for phrase in reference):
        reference = []
    told = [*problems, *odd_links(run), *_told(run, "machine")]
    warnings = [Phrase(WARN, text) for text in told if text]
    phrases = [*failures, *reference, *warnings, *_facts(run, rows, bool(failures))]
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
                first = f"busbw up to {peak:.0f} GB/s, " if peak else ""
                first += "see the footnotes"
            elif len(items) > 1:
                first = f"the first {first}"
            yield Phrase(FAIL, f"{len(items)} of {cases(len(rows))} {word}: {first}")
    for text in _told(run, "suspect"):
        yield Phrase(FAIL, text)


def _told(run: Run, kind: str) -> list[str]:
    texts = dict.fromkeys(str(e.get("message")) for e in run.events if e.get("kind") == kind)
    first = list(texts)[:_MOST_TOLD]
    more = len(texts) - len(first)
    return [*first, f"{more} more of the {kind} events above"] if more else first


def _by_fabric(rows: Sequence[Row], fabric: Fabric | None, run: Run) -> list[Phrase]:
    if not rows:
        return [Phrase(NO_REFERENCE, "no case has a result")]
    if all(row.ranks == 1 for row in rows):
        return [Phrase(NO_REFERENCE, ONE_RANK)]
    if all(row.backend == "fake" for row in rows):
        return [Phrase(NO_REFERENCE, FAKE)]
    if any(row.rehearsal for row in rows):
        return [Phrase(NO_REFERENCE, "a rehearsal on one GPU: its bandwidth means nothing")]
    if fabric is None:
        where = " and ".join(dict.fromkeys(f"{row.backend} on {row.device}" for row in rows))
        within = hosts_of(run) == 1 and all(row.device == "cpu" for row in rows)
        way = "" if within else "--fabric NAME and "
        text = f"for {where}{' within one host' if within else ''}"
        return [Phrase(NO_REFERENCE, f"{text} (torchcoll show has {way}--against RUN)")]
    judged = list(_judged(rows, fabric, device_of(run)))
    if not judged:
        return [Phrase(NO_REFERENCE, f"of {fabric.name} for these cases: {_held(rows, fabric)}")]
    return [_headline(fabric, judged), *_unused(fabric, judged)]


def _headline(fabric: Fabric, judged: Sequence[tuple[float, Row, Limit]]) -> Phrase:
    """The lowest share decides; where it is well, all_reduce speaks for the fabric."""
    lowest = min(judged, key=lambda item: item[0])
    word = word_of(lowest[0])
    reduced = (item for item in judged if item[1].collective == "all_reduce")
    share, row, limit = next(reduced, lowest) if word == PASS else lowest
    text = f"{row.busbw_gbps:.4g} GB/s busbw at {format_size(row.nbytes)}"
    text += f" of {row.collective}" if len(judged) > 1 else ""
    text += f", {100 * share:.1f} % of the {limit.algorithm} limit of {fabric.name}"
    text += f" ({limit.source})"
    if len(judged) > 1:
        least = f"{100 * lowest[0]:.1f} %"
        text += f", {len(judged)} collectives at {least} and more" if word == PASS else ""
        text += f", the lowest of {len(judged)} collectives" if word != PASS else ""
    return Phrase(word, text)


def word_of(share: float) -> str:
    return PASS if share >= GOOD else WARN if share >= POOR else FAIL


def _held(rows: Sequence[Row], fabric: Fabric) -> str:
    """From which sizes on the limits of a fabric hold, for what was run where it has any."""
    ran = {row.collective for row in rows if fabric.connects(row)}
    if not ran:
        return "they did not go through it"
    ranks = max(row.ranks for row in rows)
    known: dict[str, int] = {}
    for limit in fabric.limits:
        for name in limit.collectives:
            known[name] = min(limit.least(ranks), known.get(name, limit.least(ranks)))
    asked = {name: nbytes for name, nbytes in known.items() if name in ran} or known
    by_size: dict[int, list[str]] = {}
    for name, nbytes in asked.items():
        by_size.setdefault(nbytes, []).append(name)
    texts = (f"{', '.join(names)} from {format_size(nbytes)}" for nbytes, names in by_size.items())
    return f"it has limits for {' and '.join(texts)}"


def _judged(
    rows: Sequence[Row], fabric: Fabric, device: Device | None
) -> Iterator[tuple[float, Row, Limit]]:
    """For each collective its best row of the largest size, and the limit it comes under."""
    usable = [row for row in rows if row.busbw_gbps and row.ranks > 1 and fabric.connects(row)]
    for collective in dict.fromkeys(row.collective for row in usable):
        own = [row for row in usable if row.collective == collective]
        own = [row for row in own if any(limit.holds(row) for limit in fabric.limits)]
        if not own:
            continue
        largest = max(row.nbytes for row in own)
        row = max((r for r in own if r.nbytes == largest), key=lambda r: r.busbw_gbps or 0)
        limit = _limit_of(row, fabric, device if fabric.several_hosts else None)
        yield (row.busbw_gbps or 0.0) / limit.busbw_gbps, row, limit


def _limit_of(row: Row, fabric: Fabric, device: Device | None) -> Limit:
    """The limit of the algorithm that the log names; else the lowest that could have done it: a
    ring is no bad NVLS.
    """
    here = sorted((x for x in fabric.limits if x.holds(row)), key=lambda x: x.busbw_gbps)
    named = [x for x in here if x.algorithm.upper() in (row.algorithm or "").upper()]
    busbw = row.busbw_gbps or 0.0
    limit = next((x for x in named or here if busbw <= _BEYOND * x.busbw_gbps), (named or here)[-1])
    gbps, source = capped(limit, device)
    return Limit(limit.algorithm, limit.collectives, gbps, source)


def _unused(fabric: Fabric, judged: Sequence[tuple[float, Row, Limit]]) -> Iterator[Phrase]:
    """Faster algorithms of the fabric that were not used where they could have been."""
    for _, row, used in judged:
        for limit in fabric.limits:
            faster = limit.busbw_gbps > _BEYOND * used.busbw_gbps
            if not limit.holds(row) or not faster or limit.algorithm == used.algorithm:
                continue
            where = f" in {row.collective}" if len(judged) > 1 else ""
            # Without a log it follows from the bandwidth alone.
            sure = "" if row.algorithm else "apparently "
            text = f"{limit.algorithm} {sure}not in use{where}, would allow about"
            yield Phrase(WARN, f"{text} {limit.busbw_gbps:g} GB/s")


def _facts(run: Run, rows: Sequence[Row], failed: bool) -> Iterable[Phrase]:
    ran = [row for row in rows if row.status == "ok"]
    if ran and not failed and all(row.verified == "correct" for row in ran):
        yield Phrase("", f"{cases(len(ran))} correct")
    if (first := first_result_ns(run)) is not None:
        yield Phrase("", f"first result after {format_time(first, 3).strip()}")


def cases(number: int) -> str:
    return f"{number} case{'s' if number != 1 else ''}"


def case_text(row: Row) -> str:
    size = format_size(row.nbytes or row.nbytes_requested)
    return f"{row.collective} {size}" if row.collective != "barrier" else row.collective
