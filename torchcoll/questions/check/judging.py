"""The sentence that ends a run: PASS, WARN, FAIL, CANNOT TELL or NO REFERENCE, with its reason.

It is computed from the file and not part of it: another fabric, other rules or a later version may
judge the same samples differently.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.core import plausibility
from torchcoll.core.answer import VERDICTS, Answer
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.display import OneLine, as_one_line
from torchcoll.core.errors import UsageError, one_line, path_text
from torchcoll.core.file import truncated_text
from torchcoll.core.jsonl import CUT_OFF, damaged_lines
from torchcoll.core.parts import first_answer
from torchcoll.core.result import EXPECTED_STATUSES, Run
from torchcoll.core.summary import ONE_RANK, Row, backends_of, first_result_ns, nothing_sent
from torchcoll.core.units import (
    counted,
    format_digits,
    format_factor,
    format_ns,
    format_ranges,
    plural,
    shorten_list,
)
from torchcoll.questions.check import limits
from torchcoll.questions.check.baseline import BaselineRuns, JudgedByBaseline, baseline_phrases
from torchcoll.questions.check.oddities import odd_cases
from torchcoll.questions.check.rules import Fabric
from torchcoll.reading.inputs import load_one

_LEVELS = {verdict: level for level, verdict in VERDICTS.items()} | {limits.CANNOT_TELL: "doubt"}
_FAILING = ("bad", "doubt")
_STEPS = {
    "wrong": "use neither these results nor this setting: torchcoll doctor names known faults",
    plausibility.IMPLAUSIBLE: plausibility.CHECK_RANKS,
    "failed": "run the failed cases again alone, with --library-log",
}
_WHOLE = "give the whole output of a run that ended well"
_CHECK_AGAIN = "run again with -c 1; do not use this machine until all results are right"
_QUIET = "measure again without what disturbed it"
_COPY = "copy the file again from where the run wrote it"
_MOST_TOLD = 3  # events of a kind; the others stand above the verdict


@dataclass(frozen=True, repr=False)
class Verdict(OneLine):
    """judged: whether the run failed, or a reference judged it. A warning about the machine or a
    setting makes the word WARN, with or without a reference. by_good_runs: if good runs judged it,
    how much slower it is.
    """

    phrases: tuple[limits.Phrase, ...]
    fabric: str | None = None
    judged: bool = True
    by_good_runs: JudgedByBaseline | None = None

    def __repr__(self) -> str:
        return as_one_line(self.line)

    @property
    def word(self) -> str:
        """The worst of its phrases: one of WORDS."""
        of_phrases = {phrase.word for phrase in self.phrases}
        return next(
            (verdict for verdict in limits.WORDS if verdict in of_phrases), limits.NO_REFERENCE
        )

    @property
    def answer(self) -> Answer:
        """The verdict as an Answer. ``worst``: why it is no better; a WARN may begin well."""
        first, *others = self._texts or [""]
        level = _LEVELS[self.word]
        failing = [p.text for p in self.phrases if p.word == self.word and level in _FAILING]
        next_step = self.by_good_runs.next_step if self.by_good_runs else ""
        steps = {phrase.word: phrase.next_step for phrase in self.phrases[::-1] if phrase.next_step}
        next_step = next_step or next(
            (steps[verdict] for verdict in limits.WORDS if verdict in steps), ""
        )
        if not self.judged:  # a quiet run needs a reference too
            reference = steps.get(limits.NO_REFERENCE, "")
            next_step = ", then ".join(dict.fromkeys(filter(None, (next_step, reference))))
        return Answer(
            first, level, worst=tuple(failing), details=tuple(others), next_step=next_step
        )

    @property
    def line(self) -> str:
        return "; ".join(self._texts)

    @property
    def _texts(self) -> list[str]:
        """The phrases. Of neighbours with the same verdict only the first one names it."""
        before = ["", *(phrase.word for phrase in self.phrases)]
        return [
            phrase.text if phrase.word == verdict else str(phrase)
            for phrase, verdict in zip(self.phrases, before, strict=False)
        ]

    def to_json(self) -> dict[str, Any]:
        phrases = [{"word": phrase.word, "text": phrase.text} for phrase in self.phrases]
        facts = {"word": self.word, "line": self.line, "fabric": self.fabric}
        verdict: dict[str, Any] = {**facts, "phrases": phrases}
        if self.by_good_runs is not None:
            verdict["deviation"] = self.by_good_runs.to_json()
        return verdict


def check(
    source: Run | str | os.PathLike[str],
    *,
    fabric: str | None = None,
    baseline: Run | str | os.PathLike[str] | None = None,
) -> Verdict:
    """Judge a run, or the run of a file: ``word`` is PASS, WARN, FAIL, CANNOT TELL or NO
    REFERENCE.

    fabric: the reference, such as ``nvswitch-h200`` or ``ib-ndr:8``; by default the fabric that the
    run shows. baseline: in place of a fabric, a run
    or its file; or a file of check --learn, a folder or a store of good runs. Raises
    UsageError for an unknown fabric or one that cannot be the run's, and for a baseline that cannot
    judge it; UnreadableError for a file.
    """
    if not isinstance(source, Run | str | os.PathLike):
        raise UsageError("source", type(source).__name__, "a Run or its file")
    run = source if isinstance(source, Run) else load_one(source)
    reference: Run | BaselineRuns | None = None
    if isinstance(baseline, Run):
        reference = baseline
    elif baseline is not None:
        path_text(baseline, "baseline", "a Run, or its file")
        reference = first_answer("answers", "baseline", os.fspath(baseline)) or load_one(baseline)
    return judge(run, fabric, reference)


def judge(
    run: Run,
    fabric: str | None = None,
    baseline: Run | BaselineRuns | None = None,
    rows: Sequence[Row] | None = None,
) -> Verdict:
    """Judge a run.

    fabric: as stated; otherwise the label ``fabric``, or the one that the links of the ranks show.
    baseline: a run, or the source of many, in place of a fabric. rows: those of the run, if they
    are known already. Raises UsageError for an impossible fabric, and for a baseline of another
    machine.
    """
    rows = plausibility.summarise_run(run) if rows is None else rows
    failures = list(_failures(run, rows))
    good = [row for row in rows if row.is_right]
    nothing = _nothing_to_judge(good)
    fabric_found, problems = None, [limits.label_problem(run)]
    taken: list[limits.Phrase] = []
    by_good_runs = None
    if baseline is not None:
        if fabric:
            raise UsageError("baseline", "a run with a fabric", "one of them")
        if nothing:
            reference = [nothing]
        elif isinstance(baseline, Run):
            reference = baseline_phrases(good, run, baseline)
        else:
            by_good_runs = baseline.judge(run)
            reference = by_good_runs.phrases()
    else:
        fabric_found, problem = _fabric(run, fabric)
        if fabric_found is None and not problem and (fabric_found := limits.by_names(run)):
            where = "log" if run.members else "labels"
            machine = f"{run.ranks} {limits.device_name_of(run)} on one host"
            text = f"{fabric_found.name} is taken from the {where}: {machine}"
            taken = [limits.Phrase("", text)]
        problems.append(problem)
        reference = [nothing] if nothing else limits.by_fabric(good, fabric_found, run)
    if failures and all(phrase.word == limits.NO_REFERENCE for phrase in reference):
        reference = []
    unread = [] if failures else [*_unread(run, rows)]
    events = (*_stated(run, "setting"), *_stated(run, "machine"))
    texts = [*problems, *limits.odd_links(run), *events]
    step = _QUIET if events else ""
    warnings = [*unread, *(limits.Phrase(limits.WARN, t, next_step=step) for t in texts if t)]
    on_tcp = fabric_found is not None and fabric_found.name.startswith("ethernet")
    slow = [] if on_tcp else _slow_paths(run)
    if slow and not failures:
        remedy = slow[0].next_step
        reference = [replace(p, next_step=remedy if p.next_step else "") for p in reference]
    if failures:
        taken = []
    judged = bool(failures) or any(p.word not in (limits.NO_REFERENCE, "") for p in reference)
    why = [*reference, *slow] if judged else [*slow, *reference]
    odd = [] if failures or baseline else [limits.Phrase("", text) for text in odd_cases(rows)]
    why = [*(phrase for phrase in unread if phrase.explains), *why]
    warnings = [phrase for phrase in warnings if not phrase.explains]
    phrases = [*failures, *why, *taken, *warnings, *odd, *_facts(run, rows, failures, judged)]
    if any(phrase.word == limits.FAIL for phrase in phrases):
        phrases = [replace(p, word="" if p.word == limits.PASS else p.word) for p in phrases]
    plain = (replace(phrase, text=one_line(phrase.text)) for phrase in phrases)
    fabric_name = fabric_found.name if fabric_found else None
    return Verdict(tuple(plain), fabric_name, judged, by_good_runs)


def _fabric(run: Run, fabric: str | None) -> tuple[Fabric | None, str]:
    """The fabric of a run, and what is wrong with its label. The file is shown anyway."""
    try:
        return limits.fabric_of(run, fabric), ""
    except UsageError as error:
        if fabric:
            raise
        return None, f"label {error}".rstrip(".")


def _failures(run: Run, rows: Sequence[Row]) -> Iterator[limits.Phrase]:
    from torchcoll.questions.pairs.matches import read_pairs
    from torchcoll.questions.pairs.show import pairs_answer
    from torchcoll.questions.pairs.suspects import find_suspects

    wrong = [row for row in rows if row.outcome == "wrong"]
    if run.ending and not (wrong and (run.end or {}).get("wrong_results")):  # said below
        text = run.ending.removeprefix("failed: ") if run.source else run.ending
        yield limits.Phrase(limits.FAIL, text, next_step=_step_after(run))
    elif run.end is None and not run.source:
        text = truncated_text(run)
        text = text if text in run.problems else "the run did not end"
        damage = _damage_text(run, rows)
        steps = [_COPY] if damage else []
        steps += [one_line(run.way_on)] if run.way_on else []
        yield limits.Phrase(limits.FAIL, damage or text, next_step=", or ".join(steps))
    doubted = [row for row in rows if row.outcome == plausibility.IMPLAUSIBLE]
    accepted = (*EXPECTED_STATUSES, "wrong", plausibility.IMPLAUSIBLE)
    failed = [row for row in rows if row.outcome not in accepted]
    for items, status in (
        (wrong, "wrong"),
        (doubted, plausibility.IMPLAUSIBLE),
        (failed, "failed"),
    ):
        if items:
            first = limits.case_text(items[0], rows)
            step = _STEPS[status]
            if status == "wrong":
                verified = (result.verification for result in run.results)
                outcome = next((each for each in verified if each and each.failed), None)
                if outcome:
                    elements = f"{outcome.wrong or outcome.changed:,} of {outcome.checked:,}"
                    first += f" ({elements} elements)"
                step = _CHECK_AGAIN if run.source else step
            if status == plausibility.IMPLAUSIBLE:
                first = _implausible_text(run, items)
            elif len(items) > 1:
                first = f"the first {first}"
            if status == "failed" and items[0].reason:
                first += f": {items[0].reason}"
            text = f"{len(items)} of {counted(len(rows), 'case')} {status}: {first}"
            yield limits.Phrase(limits.FAIL, text, next_step=step)
    # What reading the pairs shows, as `torchcoll pairs` says it; else what the ranks reported.
    if pairs := read_pairs(run):
        suspects = find_suspects(pairs, pairs.threshold)
        if any(suspect.confirmed for suspect in suspects):
            answer = pairs_answer(run, pairs, suspects, pairs.threshold)
            yield limits.Phrase(limits.FAIL, answer.headline, next_step=answer.next_step)
            yield from (limits.Phrase("", text) for text in answer.details)
    else:
        for text in _first(_messages(run, "suspect"), "suspect"):
            yield limits.Phrase(limits.FAIL, text)


def _step_after(run: Run) -> str:
    """What to do about a run that did not end well."""
    end = run.end or {}
    if not run.source:
        return one_line(run.way_on)
    if end.get("wrong_results"):
        return _CHECK_AGAIN
    return limits.FIND_SLOW if end.get("status") == "failed" else _WHOLE


def _implausible_text(run: Run, rows: Sequence[Row]) -> str:
    """The largest busbw of implausible rows, and the limit that it exceeds."""
    row, device = max(rows, key=lambda row: row.busbw_gbps or 0.0), plausibility.device_of(run)
    busbw, why = row.busbw_gbps or 0.0, row.reason.partition(plausibility.LIKELY)[0]
    if device:
        most = device.ring_gbps, device.multicast
        limit = plausibility.ceiling_gbps(row.collective, row.ranks, *most)
        if busbw > limit:
            times = format_factor(busbw / limit).removesuffix("x")
            why = f"{times} times the {limit:.0f} GB/s limit of the links of one {device.name}"
    return f"busbw up to {format_digits(busbw, 4)} GB/s, {why}" if busbw >= 0.01 else why


def _slow_paths(run: Run) -> list[limits.Phrase]:
    """Why the run is slow, by the log of the library in its file."""
    return [
        limits.Phrase(
            limits.WARN,
            str(event.get("message")),
            next_step=str(event.get("remedy")),
            explains=True,
        )
        for event in run.events
        if event.get("kind") == "slow_path"
    ]


def _stated(run: Run, kind: str) -> list[str]:
    return _first(_messages(run, kind), kind)


def _messages(run: Run, kind: str) -> list[str]:
    events = [event for event in run.events if event.get("kind") == kind]
    return [str(event.get("message") or f"{kind} event without a text") for event in events]


def _first(messages: Iterable[str], kind: str) -> list[str]:
    texts = list(dict.fromkeys(messages))
    return shorten_list(texts, _MOST_TOLD, f"{{}} more of the {kind} events above")


def _damage_text(run: Run, rows: Sequence[Row]) -> str:
    """Where the file is damaged, and what could be read of it; '' if it is whole."""
    lines = damaged_lines(run.problems)
    if not lines:
        return ""
    verb = (
        "is cut off in" if any(CUT_OFF in problem for problem in run.problems) else "is damaged at"
    )
    where = f"{plural(len(lines), 'line')} {format_ranges(lines)}"
    return f"the file {verb} {where}: {counted(len(rows), 'case')} could be read"


def _unread(run: Run, rows: Sequence[Row]) -> Iterator[limits.Phrase]:
    """Problems in reading the file. They do not make it fail."""
    if damage := _damage_text(run, rows):
        yield limits.Phrase(limits.WARN, damage, next_step=_COPY, explains=True)
        return
    failures = (truncated_text(run), run.ending)  # which have phrases of their own
    lost = [p for p in run.problems if p not in failures and not p.endswith("shown once")]
    if lost:
        text = f"{counted(len(lost), 'problem')} in reading: {lost[0]}"
        yield limits.Phrase(limits.WARN, text)


def _nothing_to_judge(rows: Sequence[Row]) -> limits.Phrase | None:
    """Why no reference applies to these rows; None if one may."""
    if not rows:
        reason = "no case has a result"
    elif all(row.ranks == 1 for row in rows):
        reason = ONE_RANK
    elif not any(row.communicates for row in rows):
        reason = nothing_sent(rows)
    elif any(row.rehearsal for row in rows):
        reason = "a rehearsal on one GPU: its bandwidth means nothing"
    else:
        return None
    return limits.Phrase(limits.NO_REFERENCE, reason, " applies: ")


def _facts(
    run: Run, rows: Sequence[Row], failures: Sequence[limits.Phrase], judged: bool
) -> Iterable[limits.Phrase]:
    with_data = [row for row in rows if row.status == "ok" and COLLECTIVES[row.collective].has_data]
    if not failures and (correct := limits.correct_text(with_data, "case")):
        counts = Counter(row.status for row in rows if row.status != "ok")
        others = [f"{count} {name}" for name, count in counts.items() if count]
        yield limits.Phrase("", ", ".join([correct, *others]))
    elif not failures and judged and with_data:
        yield limits.Phrase("", "no values checked")
    if unused := plausibility.link_unused(run):
        yield limits.Phrase("", unused)
    backends = backends_of(run.results)
    firsts = {b: ns for b in backends if (ns := first_result_ns(run, backend=b)) is not None}
    several = len(backends) > 1
    times = [format_ns(ns, 3) + (f" on {b}" if several else "") for b, ns in firsts.items()]
    if times:
        yield limits.Phrase("", f"time to first result {' and '.join(times)}")
