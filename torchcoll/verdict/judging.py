"""The sentence that ends a run: PASS, WARN, FAIL or NO REFERENCE, each with its reason.

It is a reading of the file, never a part of it: another fabric, other rules or a later version may
read the same samples otherwise.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

from torchcoll.core.case import OWN
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.display import OneLine, as_one_line
from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.plausibility import (
    IMPLAUSIBLE,
    SWEEP,
    link_unused,
    stated_link_gbps,
    summarise_run,
)
from torchcoll.core.result import EXPECTED_STATUSES, Run, hosts_of
from torchcoll.core.summary import ONE_RANK, Row, backends_of, first_result_ns, median, nothing_sent
from torchcoll.core.units import counted, time_text
from torchcoll.inputs import load_one
from torchcoll.verdict.assumed import assumptions, by_names, by_names_text
from torchcoll.verdict.limits import (
    FAIL,
    NO_REFERENCE,
    PASS,
    POOR,
    WARN,
    Phrase,
    by_fabric,
    case_text,
    fabric_of,
    is_rccl,
    label_problem,
    odd_links,
    word_of,
)
from torchcoll.verdict.rules import Fabric, read_rules

# -------------------------------------------------------------------------------------------------
# A run measured by another one of the same machine, in place of a fabric's limits.


def against_phrase(rows: Sequence[Row], run: Run, base: Run) -> Phrase:
    """How fast the cases that both have are: the median of them, the largest sizes, and the worst.

    The lower of the first two decides. Of many cases of one launch some are slow on any machine, so
    the worst alone does not; but what is lost at the largest size of a collective is bandwidth, and
    a median over all sizes would hide it. A case below the lower threshold makes a PASS a WARN.
    Raises UsageError for a run of another machine or without a case in common.
    """
    _check_alike(run, base)
    path = base.path or base.source.get("file")
    name = os.path.basename(path) if path else "the baseline"
    known: dict[tuple[Any, ...], list[Row]] = {}
    for row in summarise_run(base):
        if row.status == "ok" and row.median_ns:
            known.setdefault(_key(row), []).append(row)
    both = [
        (row, before)
        for row in rows
        if row.median_ns and (before := _alike(row, known.get(_key(row), [])))
    ]
    shares = [((before.median_ns or 0.0) / (row.median_ns or 1.0), row) for row, before in both]
    if not shares:
        raise UsageError("against", name, "a run that has a case in common with this one")
    middle = median([share for share, _ in shares])
    worst, row = min(shares, key=lambda pair: pair[0])
    large, largest = min((_at_largest(shares, name) for name in _collectives(shares)), key=_share)
    word = word_of(min(middle, large))
    before_ns = next(before.median_ns for one, before in both if one is row)
    several = ", the lowest of the largest sizes" if len(_collectives(shares)) > 1 else ""
    text = (
        f"{100 * middle:.1f} % of the speed of {name}, the median of "
        f"{counted(len(shares), 'case')} in common, one launch each; "
        f"{100 * large:.1f} % in {case_text(largest)}{several}; at worst "
        f"{100 * worst:.1f} % in {case_text(row)} "
        f"({time_text(before_ns)} to {time_text(row.median_ns)})"
    )
    unstated = sum(row.buffer_reuse != before.buffer_reuse for row, before in both)
    if unstated:
        text += (
            f"; {counted(unstated, 'case')} matched without buffer reuse: one side does not tell"
        )
    if word == PASS and worst < POOR:
        return Phrase(WARN, f"{text}, a case below {100 * POOR:g} %")
    return Phrase(word, text)


Share = tuple[float, Row]
_UNTOLD = "buffer_reuse"  # a dimension that older imports do not tell


def _share(pair: Share) -> float:
    return pair[0]


def _collectives(shares: Sequence[Share]) -> list[str]:
    return list(dict.fromkeys(row.collective for _, row in shares))


def _at_largest(shares: Sequence[Share], collective: str) -> Share:
    """The median share of the cases of its largest size, and one of them."""
    own = [pair for pair in shares if pair[1].collective == collective]
    top = max(row.size_bytes for _, row in own)
    largest = [pair for pair in own if pair[1].size_bytes == top]
    return median([share for share, _ in largest]), largest[0][1]


def _key(row: Row) -> tuple[Any, ...]:
    names = [name for name in SWEEP if name != _UNTOLD]
    return tuple(getattr(row, name) for name in (*names, "size_bytes"))


def _alike(row: Row, known: Sequence[Row]) -> Row | None:
    """The one that reuses its buffers as ``row`` does, else one where either does not tell: a file
    that was imported before this was asked may have had either way.
    """
    same = [one for one in known if getattr(one, _UNTOLD) == getattr(row, _UNTOLD)]
    loose = [one for one in known if "unknown" in (getattr(one, _UNTOLD), getattr(row, _UNTOLD))]
    return next(reversed(same or loose), None)


def _values(run: Run, name: str) -> set[str]:
    return {str(m[name]) for m in run.members if m.get(name) not in (None, "")}


_ALIKE: tuple[tuple[str, Callable[[Run], set[str]]], ...] = (
    ("devices", lambda run: _values(run, "device_name")),
    ("hosts", lambda run: {str(hosts_of(run))} - {"0"}),
    ("NVLinks", lambda run: _values(run, "nvlinks")),
    ("fabric", lambda run: {str(run.labels["fabric"])} if run.labels.get("fabric") else set()),
)


def _check_alike(run: Run, base: Run) -> None:
    """Raises UsageError for a baseline of another fabric."""
    for what, of in _ALIKE:
        ours, theirs = of(run), of(base)
        if ours and theirs and ours != theirs:
            got, expected = (", ".join(sorted(values)) for values in (theirs, ours))
            raise UsageError("against", f"{what} {got}", f"{expected}, as this run has")


# -------------------------------------------------------------------------------------------------

_MOST_TOLD = 3  # events of a kind; the others stand above the verdict


@dataclass(frozen=True, repr=False)
class Verdict(OneLine):
    """judged: whether the run failed or was measured by anything. A warning about the machine or a
    setting is no judgement: with one the ``word`` is WARN, whether there was a reference or not.
    """

    phrases: tuple[Phrase, ...]
    fabric: str | None = None
    judged: bool = True

    def __repr__(self) -> str:
        return as_one_line(self.line)

    @property
    def word(self) -> str:
        """The worst of its phrases: PASS, WARN, FAIL or NO REFERENCE."""
        words = {phrase.word for phrase in self.phrases}
        return next((word for word in (FAIL, WARN, PASS) if word in words), NO_REFERENCE)

    @property
    def line(self) -> str:
        return "; ".join(map(str, self.phrases))

    def to_json(self) -> dict[str, Any]:
        phrases = [vars(phrase) for phrase in self.phrases]
        return {"word": self.word, "line": self.line, "fabric": self.fabric, "phrases": phrases}


def check(
    source: Run | str | os.PathLike[str],
    *,
    fabric: str | None = None,
    rules: Sequence[str | os.PathLike[str]] = (),
    against: Run | str | os.PathLike[str] | None = None,
) -> Verdict:
    """The verdict on a run, or on that of a file: ``word`` is PASS, WARN, FAIL or NO REFERENCE.

    fabric: what the run is measured by, such as ``nvswitch-h200`` or ``ib-ndr:8``; default: the
    fabric that it is known to be of. rules: files with fabrics of your own (TOML). against: a run,
    or its file, to be measured by in place of a fabric. Raises UsageError for a fabric that is not
    known or cannot be the run's, UnreadableError for a file.
    """
    run = source if isinstance(source, Run) else load_one(source)
    if against is not None and not isinstance(against, Run):
        against = load_one(against)
    return judge(run, fabric, rules, against)


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
    taken: list[Phrase] = []
    if against is not None:
        if fabric or rules:
            raise UsageError("against", "a run with a fabric or rules", "one of them")

        reference = [nothing] if nothing else [against_phrase(good, run, against)]
    else:
        found, problem = _fabric(run, fabric, rules)
        if found is None and not problem and (found := by_names(run)):
            taken = [Phrase("", by_names_text(run, found))]
        problems.append(problem)
        reference = [nothing] if nothing else by_fabric(good, found, run)
    if failures and all(phrase.word == NO_REFERENCE for phrase in reference):
        reference = []
    unread = () if failures else _unread(run)
    stated = [
        *problems,
        *unread,
        *odd_links(run),
        *_stated(run, "setting"),
        *_stated(run, "machine"),
    ]
    warnings = [Phrase(WARN, text) for text in stated if text]
    if reference and not nothing and all(phrase.word == NO_REFERENCE for phrase in reference):
        reference += _not_bounded(run, good)
        taken = assumptions(good, run) if found is None else taken
    judged = bool(failures) or any(p.word not in (NO_REFERENCE, "") for p in reference)
    phrases = [*failures, *reference, *taken, *warnings, *_facts(run, rows, failures, judged)]
    plain = (Phrase(phrase.word, one_line(phrase.text)) for phrase in phrases)
    return Verdict(tuple(plain), found.name if found else None, judged)


def _fabric(
    run: Run, stated: str | None, rules: Sequence[str | os.PathLike[str]]
) -> tuple[Fabric | None, str]:
    """The fabric of a run, and what is wrong with its label: the file is shown all the same."""
    own = read_rules(rules)
    if not stated and len(own) == 1:
        stated = next(iter(own))
    elif not stated and own and "fabric" not in run.labels:
        raise UsageError("rules", f"{len(own)} fabrics", "--fabric NAME with them")
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
            if word == "failed" and items[0].reason:
                first += f": {items[0].reason}"
            yield Phrase(FAIL, f"{len(items)} of {counted(len(rows), 'case')} {word}: {first}")
    for text in _suspected(run):
        yield Phrase(FAIL, text)


def _suspected(run: Run) -> list[str]:
    """What the ranks told, by the threshold they had; else what reading the pairs shows: a run that
    was cut told nothing.
    """
    from torchcoll.pairs.matches import read_pairs
    from torchcoll.pairs.suspects import suspect_text, suspects

    stated = _messages(run, "suspect")
    if not stated and (pairs := read_pairs(run)):
        stated = [suspect_text(pairs, one) for one in suspects(pairs) if one.stands]
    return _first(stated, "suspect")


def _stated(run: Run, kind: str) -> list[str]:
    return _first(_messages(run, kind), kind)


def _messages(run: Run, kind: str) -> list[str]:
    own = [event for event in run.events if event.get("kind") == kind]
    return [str(event.get("message") or f"{kind} event without a text") for event in own]


def _first(stated: Iterable[str], kind: str) -> list[str]:
    texts = dict.fromkeys(stated)
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
    if not any(row.communicates for row in rows):
        return Phrase(NO_REFERENCE, nothing_sent(rows))
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
    if missing["GPU"] and any(map(is_rccl, rows)):  # a name would be of no use
        missing["GPU"] = ""
        yield Phrase("", "whether it is possible was not judged: no bound of AMD's GPUs is known")
    if run.source and any(missing.values()):
        names = " and ".join(name for name, way in missing.items() if way)
        way = " ".join(filter(None, missing.values()))
        text = f"whether it is possible was not judged: {names} unknown"
        # A result file that was imported is none of another tool: its source is imported anew.
        file = shlex.quote(run.source.get("file") or "FILE") if run.path else "FILE"
        yield Phrase("", f"{text} (torchcoll import {file} {way} -o RUN)")


def _facts(
    run: Run, rows: Sequence[Row], failures: Sequence[Phrase], judged: bool
) -> Iterable[Phrase]:
    with_data = [row for row in rows if row.status == "ok" and COLLECTIVES[row.collective].has_data]
    correct = sum(row.verified == "correct" for row in with_data)
    if not failures and correct:
        counts = Counter(row.status for row in rows if row.status != "ok")
        counts["unchecked"] = len(with_data) - correct
        texts = [f"{count} {name}" for name, count in counts.items() if count]
        yield Phrase("", ", ".join([f"{counted(correct, 'case')} correct", *texts]))
    elif not failures and judged and with_data:
        yield Phrase("", "no values checked")
    if unused := link_unused(run):
        yield Phrase("", unused)
    backends = backends_of(run.results)
    firsts = {b: ns for b in backends if (ns := first_result_ns(run, backend=b)) is not None}
    words = [
        time_text(ns, 3) + (f" on {backend}" if len(backends) > 1 else "")
        for backend, ns in firsts.items()
    ]
    if words:
        yield Phrase("", f"first result after {' and '.join(words)}")


# -------------------------------------------------------------------------------------------------
# The verdict for machines: JUnit XML for build servers, a health event for schedulers.

HEALTH_SCHEMA = "torchcoll-health/1"


def junit_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """One test suite a run: a test for the verdict, and one for each case."""
    suites = [_suite(run, verdict) for run, verdict in zip(runs, verdicts, strict=True)]
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{"".join(suites)}</testsuites>\n'


def _suite(run: Run, verdict: Verdict) -> str:
    name = one_line(run.path or run.header.get("run_id") or "run")
    failed = [verdict.word == FAIL]
    # What nothing was held against has not passed.
    skipped = int(not verdict.judged)
    kind = "failure" if failed[0] else "skipped" if skipped else ""
    tests = [_test("verdict", kind, verdict.line)]
    names: Counter[str] = Counter()
    for row in summarise_run(run):
        title = _title(row)
        names[title] += 1
        title += f" #{names[title]}" if names[title] > 1 else ""
        text = f"{row.status}: {row.reason or row.verified}"
        expected = row.status in EXPECTED_STATUSES and row.verified != "wrong"
        kind = "failure" if not expected else "skipped" if row.status != "ok" else ""
        failed.append(not expected)
        skipped += kind == "skipped"
        tests.append(_test(title, kind, text, row.median_ns))
    counts = f'tests="{len(tests)}" failures="{sum(failed)}" skipped="{skipped}"'
    return f"<testsuite name={quoteattr(name)} {counts}>\n{''.join(tests)}</testsuite>\n"


def _title(row: Row) -> str:
    """What tells cases of a run apart; build servers know a test again by it."""
    words = [
        row.collective,
        str(row.size_bytes or row.size_bytes_requested or ""),
        row.dtype,
        row.op,
        None if row.root is None else f"root {row.root}",
        {True: "in place", False: "out of place", None: None}[row.in_place],
        f"on {row.backend}",
        f"by {row.implementation}" if row.implementation != OWN else None,
        f"group {row.group}" if row.group else None,
        f"{row.buffers} buffers" if row.buffers != "default" else None,
        "async" if row.asynchronous else None,
        f"coalesce {row.coalesce}" if row.coalesce > 1 else None,
        f"splits {row.splits}" if row.splits else None,
        row.mode if row.mode != "unknown" else None,
    ]
    return " ".join(filter(None, words))


def _test(name: str, kind: str, text: str, time_ns: float | None = None) -> str:
    """``kind``: failure, skipped, or '' for a test that passed. time_ns: of a call of the case."""
    message = f"<{kind} message={quoteattr(one_line(text))}/>" if kind else ""
    head = f'<testcase classname="torchcoll" name={quoteattr(one_line(name))}'
    head += f' time="{time_ns / 1e9:.9f}"' if time_ns is not None else ""
    return f"{head}>{message}</testcase>\n" if message else f"{head}/>\n"


def health_text(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> str:
    """One JSON object a line and run: what a scheduler needs to drain a node.

    healthy: False where the verdict is FAIL, None where nothing was judged. verdict, message: its
    word and its line. causes: why cases failed or are not possible. hosts: those of the run.
    suspects: the hosts that it accuses. start_utc, job: as recorded. file: its path.
    """
    lines = []
    for run, verdict in zip(runs, verdicts, strict=True):
        event: dict[str, Any] = {
            "schema": HEALTH_SCHEMA,
            "healthy": verdict.word != FAIL if verdict.judged else None,
            "verdict": verdict.word,
            "message": verdict.line,
            "causes": _causes(run),
            "hosts": _hosts(run.members),
            "suspects": _hosts([e for e in run.events if e.get("kind") == "suspect"]),
            "start_utc": run.header.get("start_utc"),
            "job": run.header.get("job_id"),
            "file": str(run.path) if run.path else None,
        }
        lines.append(json.dumps(event) + "\n")
    return "".join(lines)


def _causes(run: Run) -> list[str]:
    rows = [row for row in summarise_run(run) if row.status not in EXPECTED_STATUSES]
    return list(dict.fromkeys(one_line(row.reason) for row in rows if row.reason))


def _hosts(records: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(one["host"]) for one in records if one.get("host")))
