"""The sentence that ends a run: PASS, WARN, FAIL or NO REFERENCE, each with its reason.

It is a reading of the file, never a part of it: another fabric, other rules or a later version may
read the same samples otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.errors import UsageError
from torchcoll.core.first_result import first_result_ns
from torchcoll.core.plausibility import IMPLAUSIBLE, stated_link_gbps, summarise_run
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.summary import Row
from torchcoll.core.units import format_size, format_time
from torchcoll.verdict.fabric import fabric_of
from torchcoll.verdict.rules import Fabric, Limit

PASS, WARN, FAIL, NO_REFERENCE = "PASS", "WARN", "FAIL", "NO REFERENCE"
# Shares of a limit, torchcoll's own choice: healthy systems of results/ and of public logs reach 91
# to 102 % of the ring limit at their largest sizes; a link or a rail of eight that is gone costs
# 12 % and more.
GOOD, POOR = 0.9, 0.75
_BEYOND = 1.05  # of the ring limit: something better than a ring was used
_SAME = (
    *("collective", "dtype", "op", "root", "in_place", "cadence", "clock", "group", "ranks"),
    *("backend", "buffers", "asynchronous", "coalesce", "splits", "nbytes"),
)


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

    fabric: stated; else the label ``fabric``, or what the links of the ranks show. rules: files of
    the user's own. against: a run to be measured by, in place of a fabric's limits. rows: those of
    the run, where they are known already (completion over ranks, default clocks). Raises
    UsageError for rules and fabrics that are not there or cannot be the run's.
    """
    rows = summarise_run(run) if rows is None else rows
    found, problems = None, []
    if against is None:
        try:
            found = fabric_of(run, fabric, rules)
        except UsageError as error:
            if fabric:
                raise
            problems.append(str(error))  # a label: the file is to be shown all the same
    if "link_gbps" in run.labels and stated_link_gbps(run) is None:
        problems.append(f"label link_gbps: got {run.labels['link_gbps']}, expected GB/s above 0")
    failures = list(_failures(run, rows))
    good = [row for row in rows if row.status == "ok" and row.verified != "wrong"]
    if against is not None:
        reference = [_against(good, run, against)]
    else:
        reference = _by_fabric(good, found, run)
    if failures and all(phrase.word == NO_REFERENCE for phrase in reference):
        reference = []
    warnings = [Phrase(WARN, text) for text in [*problems, *_told(run, "machine")]]
    return Verdict(
        (*failures, *reference, *warnings, *_facts(run, rows, bool(failures))),
        found.name if found else None,
    )


def _failures(run: Run, rows: Sequence[Row]) -> Iterator[Phrase]:
    if run.ending or (run.end is None and not run.source):
        yield Phrase(FAIL, run.ending or "the run did not end: its file has no end record")
    wrong = [row for row in rows if row.verified == "wrong" or row.status == "wrong"]
    doubted = [row for row in rows if row.status == IMPLAUSIBLE]
    known = (*EXPECTED_STATUSES, "wrong", IMPLAUSIBLE)
    failed = [row for row in rows if row.status not in known]
    for items, word in ((wrong, "wrong"), (doubted, IMPLAUSIBLE), (failed, "failed")):
        if items:
            first = _case_text(items[0])
            if word == IMPLAUSIBLE and (peak := max(r.busbw_gbps or 0 for r in items)):
                first = f"busbw up to {peak:.0f} GB/s, see the footnotes"
            elif len(items) > 1:
                first = f"the first {first}"
            yield Phrase(FAIL, f"{len(items)} of {_cases(len(rows))} {word}: {first}")
    for text in _told(run, "suspect"):
        yield Phrase(FAIL, text)


def _told(run: Run, kind: str) -> list[str]:
    texts = (str(e.get("message")) for e in run.events if e.get("kind") == kind)
    return list(dict.fromkeys(texts))


def _by_fabric(rows: Sequence[Row], fabric: Fabric | None, run: Run) -> list[Phrase]:
    if not rows:
        return [Phrase(NO_REFERENCE, "no case has a result")]
    if all(row.ranks == 1 for row in rows):
        return [Phrase(NO_REFERENCE, "one rank: nothing is communicated")]
    if all(row.backend == "fake" for row in rows):
        return [Phrase(NO_REFERENCE, "fake backend: nothing is communicated")]
    if any(row.rehearsal for row in rows):
        return [Phrase(NO_REFERENCE, "a rehearsal on one GPU: bandwidth means nothing")]
    if fabric is None:
        where = " and ".join(dict.fromkeys(f"{row.backend} on {row.device}" for row in rows))
        text = f"for this fabric ({where}); `torchcoll show` takes --fabric and --against"
        return [Phrase(NO_REFERENCE, text)]
    judged = list(_judged(rows, fabric))
    if not judged:
        sizes = sorted({limit.nbytes for limit in fabric.limits})
        text = f"of {fabric.name} for these cases: its limits begin at {format_size(sizes[0])}"
        return [Phrase(NO_REFERENCE, text)]
    share, row, limit = min(judged, key=lambda item: item[0])
    several = f", the lowest of {len(judged)} collectives" if len(judged) > 1 else ""
    text = (
        f"{row.busbw_gbps:.4g} GB/s busbw at {format_size(row.nbytes)}"
        f"{' of ' + row.collective if several else ''}, {100 * share:.1f} % of the "
        f"{limit.algorithm} limit of {fabric.name}{several} ({limit.source})"
    )
    phrases = [Phrase(_word(share), text)]
    phrases += [Phrase(WARN, text) for text in _unused(rows, fabric, judged)]
    return phrases


def _word(share: float) -> str:
    return PASS if share >= GOOD else WARN if share >= POOR else FAIL


def _judged(rows: Sequence[Row], fabric: Fabric) -> Iterator[tuple[float, Row, Limit]]:
    """For each collective its best row of the largest size, and the limit it comes under."""
    for collective in dict.fromkeys(row.collective for row in rows):
        limits = [limit for limit in fabric.limits if collective in limit.collectives]
        own = [r for r in rows if r.collective == collective and r.busbw_gbps]
        own = [r for r in own if any(r.nbytes >= limit.nbytes for limit in limits)]
        if not own:
            continue
        largest = max(row.nbytes for row in own)
        row = max((r for r in own if r.nbytes == largest), key=lambda r: r.busbw_gbps or 0)
        here = sorted((x for x in limits if row.nbytes >= x.nbytes), key=lambda x: x.busbw_gbps)
        # The slowest algorithm that could have done it: a ring is no bad NVLS.
        limit = next((x for x in here if (row.busbw_gbps or 0) <= _BEYOND * x.busbw_gbps), here[-1])
        yield (row.busbw_gbps or 0.0) / limit.busbw_gbps, row, limit


def _unused(
    rows: Sequence[Row], fabric: Fabric, judged: Sequence[tuple[float, Row, Limit]]
) -> Iterator[str]:
    """Faster algorithms of the fabric that were not used where they could have been."""
    for _, row, used in judged:
        for limit in fabric.limits:
            possible = row.collective in limit.collectives and row.nbytes >= limit.nbytes
            if possible and limit.busbw_gbps > _BEYOND * used.busbw_gbps:
                where = f" in {row.collective}" if len(judged) > 1 else ""
                allowed = f"would allow about {limit.busbw_gbps:g} GB/s"
                if limit.algorithm not in (row.algorithm or "").upper():
                    yield f"{limit.algorithm} not in use{where}, {allowed}"


def _against(rows: Sequence[Row], run: Run, base: Run) -> Phrase:
    _check_alike(run, base)
    name = os.path.basename(base.path) if base.path else "the baseline"
    known = {_key(row): row for row in summarise_run(base) if row.status == "ok" and row.median_ns}
    pairs = [(row, known[_key(row)]) for row in rows if row.median_ns and _key(row) in known]
    if not pairs:
        raise UsageError("against", name, "a run that has a case in common with this one")
    worst, base_row = min(pairs, key=lambda p: (p[1].median_ns or 0) / (p[0].median_ns or 1))
    share = (base_row.median_ns or 0.0) / (worst.median_ns or 1.0)
    text = (
        f"{100 * share:.1f} % of the speed of {name} at its worst, {_case_text(worst)} "
        f"({format_time(base_row.median_ns).strip()} -> {format_time(worst.median_ns).strip()}), "
        f"of {_cases(len(pairs))} in common; single launches, `torchcoll compare` tests several"
    )
    return Phrase(_word(share), text)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in _SAME)


def _check_alike(run: Run, base: Run) -> None:
    """Raises UsageError for a baseline of another fabric."""
    for what, of in (
        ("devices", lambda r: {m["device_name"] for m in r.members if m.get("device_name")}),
        ("hosts", lambda r: {len({m["host"] for m in r.members if m.get("host")})} - {0}),
        ("NVLinks", lambda r: {m["nvlinks"] for m in r.members if m.get("nvlinks") is not None}),
        ("fabric", lambda r: {r.labels["fabric"]} if r.labels.get("fabric") else set()),
    ):
        ours, theirs = of(run), of(base)
        if ours and theirs and ours != theirs:
            texts = [", ".join(map(str, sorted(values))) for values in (theirs, ours)]
            raise UsageError("against", f"{what} {texts[0]}", f"{texts[1]}, as this run has")


def _facts(run: Run, rows: Sequence[Row], failed: bool) -> Iterator[Phrase]:
    correct = sum(row.verified == "correct" for row in rows)
    if correct == len(rows) and rows and not failed:
        yield Phrase("", f"{_cases(correct)} correct")
    if (first := first_result_ns(run)) is not None:
        yield Phrase("", f"first result after {format_time(first, 3).strip()}")


def _cases(number: int) -> str:
    return f"{number} case{'s' if number != 1 else ''}"


def _case_text(row: Row) -> str:
    size = format_size(row.nbytes or row.nbytes_requested)
    return f"{row.collective} {size}" if row.collective != "barrier" else row.collective
