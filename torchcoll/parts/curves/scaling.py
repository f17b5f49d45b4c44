"""Time, bandwidth and first calls over the number of ranks, and the law by which they grow.

Bandwidth is shown as busbw, which is comparable between numbers of ranks. Bandwidth divided by
ranks would not be an efficiency.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchcoll.core.answer import (
    CANNOT_TELL,
    CERTAIN,
    PROBABLY,
    Answer,
    format_quantity,
    nothing_found,
    worst_level,
)
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.plausibility import CHECK_RANKS, IMPLAUSIBLE, LIKELY
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.shared_cores import oversubscribed_hosts
from torchcoll.core.units import (
    counted,
    format_factor,
    format_ns,
    format_size,
    plural,
    shorten,
    size_text,
)
from torchcoll.parts.curves.growth import FEWEST, TOO_FEW, Growth, growths
from torchcoll.questions.comparison.results import runs_of
from torchcoll.questions.startup.cold import Cold, ColdRow, cold
from torchcoll.reading.inputs import Source
from torchcoll.stats.differences import hidden_among, hidden_note, kept_separate, unlike_machines
from torchcoll.stats.matching import kind_of
from torchcoll.stats.power import ACT_ON_CASE
from torchcoll.stats.ratios import geometric
from torchcoll.stats.side_faults import SideFaults, faults_of_items
from torchcoll.stats.sides import Measured, Reading, Side, known_of, side


def describe_unusable(files: Side) -> tuple[str, str]:
    """How many cases there are, and why none of them is in a curve, as texts."""
    items = files.measured("time", Reading())
    reasons = [exclusion_reason(item) for item in items]
    first = {reason.partition(" (")[0]: reason for reason in reversed(reasons)}
    counts = Counter(reason.partition(" (")[0] for reason in reasons)
    texts = "; ".join(f"{number} {first[what]}" for what, number in counts.items())
    step = f" {CHECK_RANKS[0].upper()}{CHECK_RANKS[1:]}." if IMPLAUSIBLE in counts else ""
    return (
        f"no usable one among {counted(len(items), 'case')}",
        f"Left out: {texts}.{step}" if texts else "",
    )


def exclusion_reason(item: Measured) -> str:
    """Why a case is in no curve."""
    row, reported = item.row, item.result.reported
    if not row.is_right:
        reason = row.reason.partition(LIKELY)[0] if row.outcome == row.status else ""
        return f"{row.outcome} ({reason.partition(' (')[0]})" if reason else row.outcome
    if not row.ranks:
        return "without a number of ranks"
    return "of first calls alone" if reported and reported.first_call_ns else "without a time"


def later_runs(files: Side, started: Cold | None) -> set[int]:
    """Indexes in ``files.parts`` of runs that were not the first of their kind in their job.

    Their first calls are not comparable. Empty if the position in the job makes no difference.
    """
    rows = started.rows if started else []
    later = [row.run for row in rows if row.in_job not in ("", "-", "1")]
    return {n for n, run in enumerate(files.parts) if any(run is later_run for later_run in later)}


_ONE, _SEVERAL = "one host", "several hosts"
FIRST_CALL = "1st call of the run"
IN_JOB = "in job"  # of a kind: the position of its runs in their jobs


@dataclass(frozen=True)
class RanksPoint:
    """The geometric means over the runs on one number of ranks; None if unknown.

    hosts: the numbers of hosts that the runs had.
    low_ns, high_ns: the fastest and the slowest run.
    """

    ranks: int
    hosts: tuple[int, ...]
    runs: int
    time_ns: float | None
    low_ns: float | None
    high_ns: float | None
    busbw_gbps: float | None
    first_ns: float | None


@dataclass(frozen=True)
class GrowthFit:
    """The growth of one figure (time, first call, ...) of one curve.

    subset: the runs that it is about, if not all: on one host or several, position in the job.
    """

    figure: str
    subset: str
    growth: Growth


@dataclass(frozen=True)
class RanksCurve:
    """The points of one kind of case at one size, or of the start of the run."""

    kind: Mapping[str, Any]
    size_bytes: int
    points: list[RanksPoint]
    fits: list[GrowthFit]
    hidden: str


@dataclass(frozen=True, repr=False)
class Scaling(Displayed):
    """The result of ``scaling``.

    curves: one for each kind of case and size.
    starts: curves of the first call of the run, or of its time to first result.
    left_out: measured sizes that are not shown.
    faults: what of the runs is wrong or failed, and so in no curve.
    machines: the devices of the runs, if these are unlike machines, each with curves of its own.
    """

    runs: list[Run]
    curves: list[RanksCurve]
    starts: list[RanksCurve]
    left_out: list[int]
    notes: list[str]
    faults: SideFaults = field(default_factory=SideFaults)
    machines: list[str] = field(default_factory=list)

    @property
    def answer(self) -> Answer:
        """How the figures grow, the time of the calls first, with what failed as a caveat."""
        judged: dict[str, list[tuple[RanksCurve, GrowthFit]]] = {}
        numbers: set[int] = set()
        for curve in (*self.curves, *self.starts):
            for fit in curve.fits:
                numbers |= set(fit.growth.numbers)
                if fit.growth.result != TOO_FEW:
                    judged.setdefault(fit.figure, []).append((curve, fit))
        answers = [_figure_answer(figure, pairs) for figure, pairs in judged.items()]
        if not answers:
            measured = f"{' and '.join(map(str, sorted(numbers)))} ranks" if numbers else "nothing"
            answers = [
                Answer(
                    "the time",
                    "doubt",
                    verb="grows with the ranks",
                    scope=f"(measured on {measured}, and {FEWEST} numbers are needed)",
                    certainty=CANNOT_TELL,
                    next_step=_MEASURE_MORE,
                )
            ]
        why, step = "", "give the files of one machine"
        if self.machines:
            names = shorten(self.machines, _MOST_MACHINES)
            why = f"the {counted(len(self.runs), 'run')} are of unlike machines ({names}), which "
            why += "have no curve in common"
        elif shared := _shared_cores(self.runs):
            decided = any(answer.certainty != CANNOT_TELL for answer in answers)
            why = "" if decided else shared
            step = "measure with a core for each rank, at least 3 runs on each number of ranks"
            answers[0] = replace(answers[0], scope=f"{answers[0].scope}; {shared}", next_step=step)
        if why:
            unknown = Answer("the time", "doubt", verb="grows with the ranks", scope=f": {why}")
            answers = [replace(unknown, certainty=CANNOT_TELL, next_step=step)]
        first, *more = answers
        return replace(
            first,
            level=worst_level(first.level, *(answer.level for answer in more), self.faults.level),
            counts=self.faults.counts,
            details=(*first.details, *(each.headline for each in more), *self.faults.texts),
            next_step=next((each.next_step for each in answers if each.next_step), ""),
        )


_HOLDS = 1.05  # the highest busbw over the lowest
_MOST_MACHINES = 3  # in the sentence


def _shared_cores(runs: Sequence[Run]) -> str:
    """``3 ranks share 2 cores and 4 ranks share 2 cores``; '' if each rank has a core."""
    ordered = sorted(runs, key=lambda run: run.ranks)
    texts = [text for run in ordered for _, text in oversubscribed_hosts(run.members)]
    return shorten([*dict.fromkeys(text.partition(":")[0] for text in texts)], 2)


_MEASURE_MORE = (
    "torchcoll matrix --axis ranks=2,4,8 -o DIR -- torchrun --nproc-per-node {ranks} -m "
    "torchcoll.allreduce"
)


def _everywhere(judged: Sequence[tuple[RanksCurve, GrowthFit]]) -> str:
    """All curves of one figure, by what they differ in: ``at all 3 sizes``; '' for one curve."""
    if len(judged) < 2:
        return ""
    all_of = "both" if len(judged) == 2 else f"all {len(judged)}"
    kinds = {repr(kind_in_job(curve.kind)) for curve, _ in judged}
    if len({*kinds, *(fit.subset for _, fit in judged)}) == 2:
        return f" at {all_of} sizes"
    positions = dict.fromkeys(str(curve.kind.get(IN_JOB, "-")) for curve, _ in judged)
    if len(kinds) == 1 and len(positions) == len(judged):
        return f" in runs {' and '.join(positions)} of each job"
    return f" in {all_of} curves"


def kind_in_job(kind: Mapping[str, Any]) -> dict[str, Any]:
    """The kind of a curve without the position of its runs in their jobs."""
    return {name: value for name, value in kind.items() if name != IN_JOB}


def _figure_answer(figure: str, judged: Sequence[tuple[RanksCurve, GrowthFit]]) -> Answer:
    """How one figure grows, given its curves and their fits."""
    every = [fit.growth for _, fit in judged]
    changed = [(curve, fit.growth) for curve, fit in judged if fit.growth.changes]
    everywhere = _everywhere(judged)
    if not changed:
        limits = [growth.detectable for growth in every]
        detectable = None if None in limits else max(filter(None, limits))
        numbers = every[0].numbers
        runs = max(growth.runs // len(growth.numbers) for growth in every)
        answer = nothing_found(
            figure,
            "grows",
            detectable,
            ACT_ON_CASE,
            f"make {counted(4 * runs, 'run')} on each number of ranks instead of {runs}",
            what="growth",
            scope=f"from {numbers[0]} to {numbers[-1]} ranks{everywhere}",
        )
        if answer.level == "good":
            return replace(answer, subject=figure, verb="does not grow")
        if likely := _likely_growth(figure, judged):
            return replace(likely, next_step=answer.next_step)
        seen = sorted(growth.measured or 1.0 for growth in every)
        factors = " to ".join(dict.fromkeys(map(format_factor, (seen[0], seen[-1]))))
        details = (f"measured: {factors} the time on {numbers[-1]} ranks as on {numbers[0]}",)
        return replace(answer, subject=figure, details=details)
    curve, most = max(changed, key=lambda pair: abs(math.log(pair[1].measured or 1.0)))
    ends = (most.numbers[0], most.numbers[-1])
    first, last = (format_ns(most.means[end], 3) for end in ends)
    law = f", like {most.result.removeprefix('falls with ')}"
    steepest = _steepest(most) if most.result in ("grows", "falls") else ""
    if most.result in ("grows", "falls"):
        law = steepest or ", by none of the laws"
    if len({growth.result for growth in every}) == 1:
        where = f"; it {most.result}{everywhere}" if steepest and everywhere else everywhere
    else:
        where = f"; {len(changed)} of {len(judged)} curves change"
    cases = {(curve.kind["collective"], curve.size_bytes) for curve, _ in judged}
    name = f"{curve.kind['collective']} {size_text(curve.size_bytes)}"
    return Answer(
        f"{figure} of {name}" if len(cases) > 1 else figure,
        verb="falls to {}" if most.falls else "grows {}",
        size=most.measured,
        unit="x",
        scope=f"from {first} on {ends[0]} to {last} on {ends[1]} ranks{law}{where}",
        certainty=CERTAIN,
    )


def _likely_growth(figure: str, judged: Sequence[tuple[RanksCurve, GrowthFit]]) -> Answer | None:
    """The largest change, and what busbw does at the largest size, if the intervals of at least
    half of the curves exclude 1 although no law is proven; None otherwise.
    """
    sure = [
        (curve, fit.growth)
        for curve, fit in judged
        if (law := fit.growth.law) and not law.ratio_low <= 1 <= law.ratio_high
    ]
    if 2 * len(sure) < len(judged) or not sure:
        return None
    curve, most = max(sure, key=lambda pair: abs(math.log(pair[1].measured or 1.0)))
    ends = most.numbers[0], most.numbers[-1]
    first, last = (format_ns(most.means[end], 3) for end in ends)
    details = []
    largest, fit = max(judged, key=lambda pair: pair[0].size_bytes)
    busbw = [
        point.busbw_gbps
        for point in largest.points
        if point.ranks in fit.growth.numbers and point.busbw_gbps
    ]
    if len(busbw) > 1 and max(busbw) < _HOLDS * min(busbw):
        bounds = f"{format_quantity(max(busbw), '')} to {format_quantity(min(busbw), 'GB/s')}"
        details.append(f"busbw of {size_text(largest.size_bytes)} holds at {bounds}")
    runs = max(growth.runs // len(growth.numbers) for _, growth in sure)
    no_proof = f"{counted(runs, 'run')} on each number of ranks {plural(runs, 'does', 'do')}"
    details.append(f"{no_proof} not prove a law")
    return Answer(
        f"{figure} of {curve.kind['collective']} {size_text(curve.size_bytes)}",
        "doubt",
        details=tuple(details),
        verb="falls to {}" if (most.measured or 1.0) < 1 else "grows {}",
        size=most.measured,
        unit="x",
        scope=f"from {first} on {ends[0]} to {last} on {ends[1]} ranks",
        certainty=PROBABLY,
    )


def _steepest(growth: Growth) -> str:
    """The two numbers of ranks with most of the growth between them; '' if it is spread evenly."""
    steps = [
        (after / before, low, high)
        for (low, before), (high, after) in itertools.pairwise(growth.means.items())
    ]
    factor, low, high = max(steps, default=(1.0, 0, 0))
    if factor**2 < (growth.measured or 1.0):
        return ""
    return f", of which {format_factor(factor)} from {low} to {high}"


@dataclass(frozen=True)
class _Run:
    """The figures of one run of one case."""

    ranks: int
    hosts: int
    facts: Mapping[str, str]
    time_ns: float | None = None
    busbw_gbps: float | None = None
    first_ns: float | None = None


@dataclass(frozen=True)
class _Draft:
    """A curve before its fits.

    figures: the name of each figure to fit -> the field of a _Run.
    position: the position of its runs in their jobs, if it makes a difference.
    """

    kind: Mapping[str, Any]
    size_bytes: int
    runs: list[_Run]
    figures: Mapping[str, str]
    position: str = ""


def scaling(sources: Source | Sequence[Source], *, sizes: Sequence[int] = ()) -> Scaling:
    """The curves over ranks of every kind of case of a folder, files or Runs. ``show`` prints it.

    sizes: the requested sizes in bytes; default: the smallest, the middle and the largest of those
        that the most numbers of ranks have.
    Raises UsageError for a size that no case has, and if no case has ranks and a time;
    UnreadableError for a file that cannot be read.
    """
    files = side("files", sources)
    facts = [(run.ranks, known_of(run)) for run in files.parts]
    separate, machines = kept_separate(facts), unlike_machines(fact for _, fact in facts)
    try:
        started = cold(files.runs)
    except UsageError:  # no first call is known
        started = None
    if not (isinstance(sizes, list | tuple) and all(type(size) is int for size in sizes)):
        raise UsageError("sizes", sizes, "a list of whole numbers of bytes")
    cases, left_out = _cases(files, separate, sizes, started)
    drafts = [*cases, *_starts(started)]
    if not drafts:
        excluded, why = describe_unusable(files)
        raise UnusableError("cases", excluded, "right ones with ranks and a steady time", why)
    fits = _fits(drafts)
    curves = [
        RanksCurve(
            draft.kind,
            draft.size_bytes,
            _points(draft.runs),
            curve_fits,
            hidden_among(_without_nested_hosts(draft.runs), separate),
        )
        for draft, curve_fits in zip(drafts, fits, strict=True)
    ]
    notes = _notes(files, curves)
    if cases and (later := later_runs(files, started)):
        notes.append(
            f"{len(later)} of {len(files.parts)} runs came later in a job: their first calls are "
            "not in this table; `torchcoll cold` shows them"
        )
    faults = faults_of_items("", len(files.runs), files.measured("time", Reading()))
    return Scaling(
        files.runs,
        curves[: len(cases)],
        curves[len(cases) :],
        left_out,
        notes,
        faults,
        machines,
    )


def _without_nested_hosts(runs: Sequence[_Run]) -> list[dict[str, str]]:
    """The facts of the runs, without hosts where all begin with one host: more ranks need more."""
    hosts = {(run.hosts, run.facts.get("hosts", "")) for run in runs}
    nested = len({text.partition(" ")[0] for _, text in hosts}) == 1
    nested &= len(hosts) == len({number for number, _ in hosts})
    return [
        {name: value for name, value in run.facts.items() if not (nested and name == "hosts")}
        for run in runs
    ]


def _cases(
    files: Side, separate: Sequence[str], sizes: Sequence[int], started: Cold | None
) -> tuple[list[_Draft], list[int]]:
    """A draft for each kind of case and size, and the measured sizes that are not shown."""
    hosts, later = list(map(hosts_of, files.parts)), later_runs(files, started)
    groups: dict[str, dict[int, list[Measured]]] = {}
    for item in files.measured("time", Reading()):
        # A row with a single first call has no time of steady calls.
        single = item.result.reported and item.result.reported.first_call_ns
        if item.row.ranks and not single and runs_of([item]):
            by_size = groups.setdefault(repr(kind_of(item, separate)), {})
            by_size.setdefault(item.row.size_bytes_requested, []).append(item)
    measured = {size_bytes for by_size in groups.values() for size_bytes in by_size}
    missing = [size_bytes for size_bytes in sizes if size_bytes not in measured]
    if missing and measured:
        measured_text = ", ".join(map(format_size, sorted(measured)))
        raise UsageError(
            "sizes", format_size(missing[0]), f"sizes that were measured: {measured_text}"
        )
    drafts = []
    for by_size in groups.values():
        wanted = sorted(sizes)
        if not wanted:
            # The smallest, middle and largest of the sizes that most numbers of ranks have.
            numbers = {size: len({m.row.ranks for m in items}) for size, items in by_size.items()}
            common = sorted(size for size, n in numbers.items() if n == max(numbers.values()))
            wanted = sorted({common[0], common[(len(common) - 1) // 2], common[-1]})
        for size_bytes in wanted:
            if items := by_size.get(size_bytes):
                runs = _runs(items, hosts, later)
                figures = {"time": "time_ns", "1st call of the case": "first_ns"}
                drafts.append(_Draft(kind_of(items[0], separate), size_bytes, runs, figures))
    return drafts, sorted(measured - {draft.size_bytes for draft in drafts})


def _runs(items: Sequence[Measured], hosts: Sequence[int], later: set[int]) -> list[_Run]:
    """The figures of each run; geometric means if a run has the same case twice.

    hosts: the number of hosts of each part. later: parts whose first calls do not count.
    """
    by_ranks: dict[int, list[Measured]] = {}
    for item in items:
        by_ranks.setdefault(item.row.ranks, []).append(item)
    return [
        _Run(
            ranks,
            hosts[items_of_run[0].part],
            items_of_run[0].facts,
            time,
            geometric(m.row.busbw_gbps for m in items_of_run),
            geometric(
                ns
                for m in items_of_run
                if m.part not in later and (ns := m.row.first_call_ns) and ns > 0
            ),
        )
        for ranks, items_on_ranks in sorted(by_ranks.items())
        for time, items_of_run in runs_of(items_on_ranks)
    ]


def _starts(started: Cold | None) -> list[_Draft]:
    """The start of each run by kind: its time to first result if all runs of a kind recorded it,
    otherwise its first call.
    """
    kinds: dict[tuple[str, str], list[ColdRow]] = {}
    for row in started.rows if started else []:
        if row.status == "ok" and row.ranks and row.first_ns:
            kinds.setdefault((repr(row.kind), row.in_job), []).append(row)
    drafts = []
    for (_, position), kind_rows in sorted(kinds.items(), key=lambda item: item[0][1]):
        whole = all(row.first_result_ns for row in kind_rows)
        runs = [
            _Run(
                row.ranks,
                row.hosts or 0,
                row.facts,
                first_ns=row.first_result_ns if whole else row.first_ns,
            )
            for row in sorted(kind_rows, key=lambda row: row.ranks)
        ]
        kind: dict[str, Any] = {**kind_rows[0].kind, **({IN_JOB: position} if position else {})}
        name = "time to first result" if whole else FIRST_CALL
        drafts.append(_Draft(kind, kind.pop("size_bytes"), runs, {name: "first_ns"}, position))
    return drafts


def _points(runs: Sequence[_Run]) -> list[RanksPoint]:
    points = []
    for ranks in dict.fromkeys(run.ranks for run in runs):
        runs_on_ranks = [run for run in runs if run.ranks == ranks]
        times = [run.time_ns or run.first_ns or 0.0 for run in runs_on_ranks]
        points.append(
            RanksPoint(
                ranks,
                tuple(sorted({run.hosts for run in runs_on_ranks if run.hosts})),
                len(runs_on_ranks),
                geometric(run.time_ns for run in runs_on_ranks),
                min(times),
                max(times),
                geometric(run.busbw_gbps for run in runs_on_ranks),
                geometric(run.first_ns for run in runs_on_ranks),
            )
        )
    return points


def _fits(drafts: Sequence[_Draft]) -> list[list[GrowthFit]]:
    """The growth of each figure of every curve.

    If some runs have one host and others several, each subset is fitted separately, because they
    use other links. Runs on one rank are in no fit, because they do not communicate.
    """
    candidates: list[tuple[int, str, str, list[tuple[int, float]]]] = []
    for number, draft in enumerate(drafts):
        real = [run for run in draft.runs if run.ranks > 1]
        mixed = {run.hosts > 1 for run in real if run.hosts} == {False, True}
        for subset in (_ONE, _SEVERAL) if mixed else ("",):
            subset_runs = [r for r in real if not subset or (r.hosts > 1) == (subset == _SEVERAL)]
            for figure, name in draft.figures.items():
                points = [(run.ranks, ns) for run in subset_runs if (ns := getattr(run, name))]
                if points:
                    candidates.append((number, figure, subset, points))
    fits: list[list[GrowthFit]] = [[] for _ in drafts]
    judged = growths([points for *_, points in candidates])
    for (number, figure, subset, _), growth in zip(candidates, judged, strict=True):
        position = drafts[number].position
        position = f"run {position} of each job" if position else ""
        fits[number].append(GrowthFit(figure, ", ".join(filter(None, (subset, position))), growth))
    return fits


def _notes(files: Side, curves: Sequence[RanksCurve]) -> list[str]:
    notes = []
    measured = files.measured("time", Reading())
    bad = Counter(exclusion_reason(m) for m in measured if not m.row.is_right)
    notes += [f"in no curve: {counted(number, 'case')} {why}" for why, number in bad.items()]
    if any(point.ranks == 1 for curve in curves for point in curve.points):
        notes.append("1 rank communicates nothing: it is in no fit")
    if any(fit.subset.startswith((_ONE, _SEVERAL)) for curve in curves for fit in curve.fits):
        notes.append("one host and several hosts use other links: each part is fitted by itself")
    hidden = dict.fromkeys(hidden_note(curve.hidden, "the runs of a curve") for curve in curves)
    return [*notes, *filter(None, (*hidden, files.rehearsal_note))]
