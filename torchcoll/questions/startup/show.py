"""Output of ``torchcoll cold``: tables of runs, of numbers of ranks, of set-up and of later cases
whose first call is slow; and the same as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line
from torchcoll.core.summary import SLOW_FIRST, median
from torchcoll.core.units import (
    counted,
    format_factor,
    format_ns,
    format_ratio,
    format_size,
    format_time,
    shorten_list,
)
from torchcoll.report.formats import Forms, print_results, select_fields, without_none
from torchcoll.report.grid import Grid, Head, make_grid, without_repeated_lines
from torchcoll.report.header import kind_texts
from torchcoll.report.notes import footer_lines
from torchcoll.stats.ratios import geometric

if TYPE_CHECKING:
    from torchcoll.questions.startup.cold import Cold, ColdRow, Late, Scale


_MOST_RUNS = 5  # of one kind: of more, the means are shown
MOST_LATE = 5  # of the late cases, those that cost most; JSON has all
_PHASE_NAMES = {
    "import_torch": "import torch",
    "init_process_group": "init",
    "nccl_init": "NCCL init",
}
READING = "time = max over ranks, the slowest rank"
_RESULT = "to first result: connecting before the 1st call, if any, plus the 1st call"
_CONNECT = "library setup: time to first result minus one steady call"
_CALLS = (
    "1st, 2nd, 3rd: the first calls of one case; steady: the median of its steady calls "
    "(back-to-back: time of all / their number)"
)
_ROWS_OF_CALLS = (
    "1st, 2nd, 3rd: the first rows of the benchmark, each one call of its own size ({sizes}); "
    "t_max, the max over ranks"
)
_BEYOND = "excess over other ranks: the slowest rank's 1st call minus the median of the others"
_IN_JOB = "position: first, second, ... run within one job, where they differ"
_LONGEST = (
    "(+): longer than the median of the other ranks. In rendezvous, init and communicator ranks "
    "wait for each other: the slowest may be the rank that arrived first"
)


def cold_grids(finding: Cold) -> list[Grid]:
    groups: dict[str, list[ColdRow]] = {}
    for row in finding.rows:
        groups.setdefault(repr(row.kind), []).append(row)
    titles = kind_texts([rows[0].kind for rows in groups.values()])
    grids = []
    for title, (kind, rows) in zip(titles, groups.items(), strict=True):
        scales = [scale for scale in finding.scales if repr(scale.kind) == kind]
        above = [title, READING, calls_line(rows)]
        single = len(rows) > _MOST_RUNS and all(scale.runs == 1 for scale in scales)
        if len(rows) <= max(_MOST_RUNS, 2 * len(scales)):
            grids.append(_runs(rows, above))
            above = []
        if single:  # a table by ranks would list every run again
            grids.append(Grid([], [], below=_below_ranks(scales)))
        elif len(rows) > 1:
            grids.append(_by_ranks(scales, above))
    each = {row.placed.order: row for row in finding.rows}  # of several backends: set up once
    grids.append(_set_up(list(each.values())))
    grids.append(_late(finding.late))
    below = footer_lines(finding.notes, finding.runs)
    grids.append(Grid([], [], below=below, answer=answer_of(finding, list(titles))))
    return without_repeated_lines(grids)


_MOST_KINDS = 3  # in the sentence
_LONGER = 1.1  # times a steady call: a first call that takes less is no longer


def answer_of(finding: Cold, titles: Sequence[str]) -> Answer:
    """What the first call costs compared with a steady one, on the most ranks of each kind."""
    by_kind: dict[str, Scale] = {}
    fewest: dict[str, Scale] = {}
    # Of several runs in a job, the first one starts from nothing.
    scales = sorted(finding.scales, key=lambda scale: scale.in_job, reverse=True)
    for scale in sorted(scales, key=lambda scale: scale.ranks):
        if scale.first_ns:
            by_kind[repr(scale.kind)] = scale
            if fewest.setdefault(repr(scale.kind), scale).ranks == scale.ranks:
                fewest[repr(scale.kind)] = scale
    if not by_kind:
        return Answer("no first call has a time")
    order = sorted(by_kind.values(), key=lambda scale: -(scale.first_ns or 0.0))
    kinds = dict.fromkeys(repr(row.kind) for row in finding.rows)
    titles_of = dict(zip(kinds, titles, strict=False))
    title_parts = [titles_of.get(repr(scale.kind), "").split(", ") for scale in order]
    common = set(title_parts[0]).intersection(*title_parts)
    texts = []
    for scale, parts in zip(order, title_parts, strict=True):
        name = " ".join(part for part in parts if part not in common)
        of = f" of {name}" if name else ""
        text = f"the first call{of} takes {format_ns(scale.first_ns, 3)}"
        three = [ns or 0.0 for ns in (scale.first_ns, scale.second_ns, scale.third_ns)]
        slow_ns = scale.first_ns
        alike = max(three) < SLOW_FIRST * min(three)
        if alike and scale.steady_ns and min(three) > SLOW_FIRST * scale.steady_ns:
            ends = (format_ns(end(three), 3) for end in (min, max))
            text, slow_ns = f"the first 3 calls{of} take {' to '.join(ends)}", median(three)
        least = fewest.get(repr(scale.kind), scale)
        if least.ranks != scale.ranks:
            growth = over(scale.first_ns, least.first_ns)
            times = f"{format_factor(growth)} the " if growth else ""
            text += f" ({times}{format_ns(least.first_ns, 3)} on {least.ranks})"
        if ratio := over(slow_ns, scale.steady_ns):
            times = f"{_times(ratio)} times" if ratio >= _LONGER else "no longer than"
            text += f", {times} a steady call ({format_ns(scale.steady_ns, 3)})"
        if (over(scale.second_ns, scale.third_ns) or 0.0) > SLOW_FIRST:
            second, third = (format_ns(ns, 3) for ns in (scale.second_ns, scale.third_ns))
            text += f" and the second {second}; the third takes {third}"
        texts.append(text)
        if scale.first_result_ns:
            texts.append(f"time to first result{of}: {format_ns(scale.first_result_ns, 3)}")
    texts = shorten_list(texts, _MOST_KINDS, "{} more figures of kinds with less")
    ranks = dict.fromkeys(scale.ranks for scale in order if scale.ranks)
    if len(ranks) == 1:
        texts[0] = f"on {counted(next(iter(ranks)), 'rank')} {texts[0]}"
    phases = _phase_medians(finding.rows)
    longest = max(phases, key=lambda name: phases[name], default="")
    if longest and phases[longest] > max(scale.first_ns or 0.0 for scale in order):
        ns = format_ns(phases[longest], 3)
        texts.insert(len(by_kind), f"{_phase_name(longest)} takes most of the start: {ns}")
    if finding.late:
        texts.append(f"in {counted(len(finding.late), 'later case')} the first call was slow too")
    return Answer(texts[0], details=tuple(texts[1:]))


def _times(ratio: float, digits: int = 2) -> str:
    """``10,300``, ``98``, ``2.2``: three digits at most, below 10 ``digits``."""
    return f"{float(f'{ratio:.3g}'):,.0f}" if ratio >= 9.95 else f"{ratio:.{digits}g}"


def _runs(rows: Sequence[ColdRow], above: Sequence[str]) -> Grid:
    """One line a run, by the ranks, then in the order of jobs and time."""
    steady = any(row.steady_ns for row in rows)

    def name(row: ColdRow) -> str:
        status = "" if row.status == "ok" else f" ({one_line(row.status)})"
        return one_line(row.name) + ("" if row.fresh else " (used)") + status

    def steady_ns(row: ColdRow) -> float | None:
        return row.steady_ns if steady else row.last_ns

    def rank(row: ColdRow) -> str:
        return "-" if row.first is None or row.first.rank is None else str(row.first.rank)

    return make_grid(
        [
            (Head("run", left=True, repeat=True, numbered=2), name),
            # Runs whose output is in one file have its name already.
            (Head("job", left=True), lambda r: one_line(r.run.header.get("job_id") or "-")),
            (Head("position", "in job"), lambda r: str(r.placed.place) if r.placed.job else "-"),
            (Head("cell", left=True), lambda r: one_line(r.run.labels.get("cell", "-"))),
            (Head("ranks", repeat=True), lambda r: str(r.ranks or "-")),
            (Head("hosts", drop=3), lambda r: str(r.hosts or "-")),
            *_call_columns(Head("steady") if steady else Head("last", "cold"), steady_ns),
            (Head("slowest", "rank", drop=2), rank),
            (
                Head("excess over", "other ranks", drop=2, legend=_BEYOND),
                lambda r: format_time(r.first.beyond_ns) if r.first else "-",
            ),
        ],
        sorted(rows, key=lambda r: r.ranks or 0),
        above=above,
    )


def _call_columns(
    steady: Head, steady_ns: Callable[[Any], float | None]
) -> list[tuple[Head, Callable[[Any], str]]]:
    """The columns that a table of ColdRow and one of Scale share. On a narrow terminal both leave
    out the same ones.
    """
    return [
        (Head("1st", "call"), lambda r: format_time(r.first_ns)),
        (Head("2nd", "call"), lambda r: format_time(r.second_ns)),
        (Head("3rd", "call"), lambda r: format_time(r.third_ns)),
        (steady, lambda r: format_time(steady_ns(r))),
        (Head("1st /", steady.text.split()[0]), lambda r: _ratio(r.first_ns, steady_ns(r))),
        (Head("to first", "result", legend=_RESULT), lambda r: format_time(r.first_result_ns)),
        (Head("library", "setup", drop=1, legend=_CONNECT), lambda r: format_time(r.connect_ns)),
    ]


def calls_line(rows: Sequence[ColdRow]) -> str:
    sizes = max((row.sizes for row in rows), key=len)
    if len(sizes) < 2:
        return _CALLS
    named = ", ".join(format_size(size) for size in sizes[:3])
    return _ROWS_OF_CALLS.format(sizes=f"{named}{', ...' if len(sizes) > 3 else ''} bytes")


def _ratio(a: float | None, b: float | None) -> str:
    return format_ratio(over(a, b))


def over(a: float | None, b: float | None) -> float | None:
    """a / b where both are known."""
    return a / b if a and b else None


def _by_ranks(scales: Sequence[Scale], above: Sequence[str]) -> Grid:
    """One line for each number of ranks, as plots of cold starts have it."""

    def spread(scale: Scale) -> str:
        low, high = (format_ns(ns, 3) for ns in (scale.low_ns, scale.high_ns))
        return f"{low} to {high}" if scale.runs > 1 else "-"

    calls = _call_columns(Head("steady"), lambda s: s.steady_ns)
    calls.insert(1, (Head("range", "over runs", left=True, drop=2), spread))
    return make_grid(
        [
            (Head("ranks", repeat=True), lambda s: str(s.ranks or "-")),
            (Head("position", "in job", repeat=True, legend=_IN_JOB), lambda s: s.in_job or "-"),
            (Head("hosts", drop=3), lambda s: ", ".join(map(str, s.hosts)) or "-"),
            (Head("runs"), lambda s: str(s.runs)),
            *calls,
        ],
        scales,
        above=[*above, "geometric means over the runs; --format json has each run"],
        below=_below_ranks(scales),
    )


def _below_ranks(scales: Sequence[Scale]) -> list[str]:
    """The ratios from the fewest to the most ranks, and second runs compared with first ones."""
    texts = []
    for upper, lower, whose in (
        ("second_ns", "first_ns", "the 1st"),
        ("second_ns", "third_ns", "the 3rd"),
    ):
        ratios = {
            scale.ranks: _times(ratio, 3)
            for scale in reversed(scales)  # of several runs in a job the first one counts
            if scale.ranks > 1
            and (ratio := over(getattr(scale, upper), getattr(scale, lower)) or 0.0) > 1
        }
        if len(ratios) > 1:
            texts.append(f"{_ends(ratios)} times {whose}")
    lines = [f"the 2nd call takes {' and '.join(texts)}"] if texts else []
    again = [ratio for scale in scales for ratio in scale.again]
    if again:
        times = format_ratio(geometric(again))
        ends = dict.fromkeys((format_ratio(min(again)), format_ratio(max(again))))
        jobs = f"{' to '.join(ends)} in {counted(len(again), 'job')}"
        lines.append(f"the 2nd run of a job takes {times} times the 1st ({jobs})")
    return lines


def _ends(ratios: Mapping[int, str]) -> str:
    """``1.15``, ``29,000 (12 ranks) to 8,000 (768 ranks)``. ratios: by ranks."""
    if len(set(ratios.values())) == 1:
        return next(iter(ratios.values()))
    fewest, most = min(ratios), max(ratios)
    return f"{ratios[fewest]} ({fewest} ranks) to {ratios[most]} ({most} ranks)"


def _set_up(rows: Sequence[ColdRow]) -> Grid:
    """A line for each phase before the first call."""
    middle = _phase_medians(rows)
    names = list(middle)
    slowest = {
        name: max((row for row in rows if name in row.phases), key=lambda r: r.phases[name].ns)
        for name in names
    }

    def rank(name: str) -> str:
        phase = slowest[name].phases[name]
        return "-" if phase.rank is None else f"{phase.rank} (+{format_ns(phase.beyond_ns, 3)})"

    columns: list[tuple[Head, Callable[[str], str]]] = [
        (Head("longest"), lambda name: format_ns(slowest[name].phases[name].ns, 3)),
        (Head("slowest", "rank", left=True), rank),
    ]
    if len(rows) > 1:
        columns.insert(0, (Head("median", "of the runs"), lambda n: format_ns(middle[n], 3)))
        columns.append((Head("run", left=True), lambda name: one_line(slowest[name].name)))
    phase = Head("set-up phase", left=True)
    return make_grid([(phase, _phase_name), *columns], names, below=[_LONGEST])


def _phase_medians(rows: Sequence[ColdRow]) -> dict[str, float]:
    """Phase -> the median over the runs, in ns."""
    names = dict.fromkeys(name for row in rows for name in row.phases)
    return {n: median([row.phases[n].ns for row in rows if n in row.phases]) for n in names}


def _phase_name(name: str) -> str:
    return _PHASE_NAMES.get(name, one_line(name).replace("_", " "))


def _late(late: Sequence[Late]) -> Grid:
    """Later cases that were cold, the most expensive first."""
    shown = sorted(late, key=lambda case: -case.extra_ns)[:MOST_LATE]
    titles = kind_texts([case.kind for case in late])
    several = len(set(titles)) > 1
    named = {repr(case.kind): title for case, title in zip(late, titles, strict=True) if several}
    below = [f"{len(late) - len(shown)} more in --format json"] if len(late) > len(shown) else []
    if any(case.runs == 1 for case in late):
        below.append("one run cannot tell a call that connects from one that met a hiccup")
    return make_grid(
        [
            (Head("case", left=True, repeat=True), lambda o: named.get(repr(o.kind), "-")),
            (Head("ranks", repeat=True), lambda o: str(o.ranks or "-")),
            (Head("size", repeat=True), lambda o: format_size(o.size_bytes)),
            (
                Head("calls", "before", drop=4),
                lambda o: "-" if o.ordinal is None else str(o.ordinal),
            ),
            (Head("algorithm", left=True), lambda o: one_line(o.algorithm or "-")),
            (Head("1st", "call"), lambda o: format_time(o.first_ns)),
            (Head("steady"), lambda o: format_time(o.steady_ns)),
            (Head("1st /", "steady", drop=1), lambda o: _ratio(o.first_ns, o.steady_ns)),
            (Head("extra", drop=2), lambda o: format_time(o.extra_ns)),
            (Head("cold in", left=True), lambda o: f"{o.cold} of {o.runs}"),
            (Head("why", left=True), lambda o: one_line(o.why or "-")),
        ],
        shown,
        above=[
            "later cases whose 1st call took over 3 times the steady ones, or that use an "
            f"algorithm first{'' if several or not titles else f': {titles[0]}'}",
            "steady: the larger of the steady median (or period) and the last cold call",
        ],
        below=below,
    )


SCHEMA = "torchcoll-cold/1"


def show_cold(findings: Sequence[Cold], format: str = "table", file: TextIO | None = None) -> None:
    """Print cold starts. Raises UsageError for an unknown format."""
    forms = [Forms(cold_grids(finding), cold_object(finding)) for finding in findings]
    print_results(forms, format, file)


def cold_object(finding: Cold) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "rows": [_row_record(row) for row in finding.rows],
        "by_ranks": [
            {
                **dataclasses.asdict(scale),
                "kind": without_none(scale.kind),
            }
            for scale in finding.scales
        ],
        "late": [
            {**dataclasses.asdict(case), "kind": without_none(case.kind), "extra_ns": case.extra_ns}
            for case in finding.late
        ],
        "notes": footer_lines(finding.notes, finding.runs),
    }


_OF_ROW = (
    "first_result_ns connect_ns new_communicator=fresh status "
    "first_call_slowest_rank=first.rank first_call_beyond_ns=first.beyond_ns"
)


def _row_record(row: ColdRow) -> dict[str, Any]:
    """One run, flat: durations in ns, unknown is null."""
    return {
        "run": row.name,
        "cell": row.run.labels.get("cell"),
        "job": row.placed.job,
        "place_in_job": row.placed.place if row.placed.job else None,
        "start_utc": row.run.header.get("start_utc"),
        **without_none(row.kind),
        **select_fields(row, "ranks hosts"),
        "first_call_ns": row.first_ns,
        "second_call_ns": row.second_ns,
        "third_call_ns": row.third_ns,
        "last_cold_call_ns": row.last_ns,
        "steady_ns": row.steady_ns,
        "steady_clock": row.clock,
        "second_over_first": over(row.second_ns, row.first_ns),
        "second_over_third": over(row.second_ns, row.third_ns),
        "first_over_steady": over(row.first_ns, row.steady_ns),
        **select_fields(row, _OF_ROW),
        **{
            f"{name}_{field}": value
            for name, phase in row.phases.items()
            for field, value in select_fields(phase, "ns slowest_rank=rank beyond_ns").items()
        },
    }
