"""The lines below a table: numbered footnotes of its rows, and lines about the whole run.

A warning is stored in its result, so that every table shows it. A log line would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torchcoll.core import summary
from torchcoll.core.answer import Caveat
from torchcoll.core.case import Case
from torchcoll.core.collectives import has_splits
from torchcoll.core.errors import one_line
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.run_facts import facts_of
from torchcoll.core.splits import COMBINE
from torchcoll.core.two_modes import Modes, two_modes
from torchcoll.core.units import counted, format_ns, format_ranges, format_size, plural

SPLITS_LINE = (
    "size is the largest sum that a rank sends or receives; "
    "bytes that a rank sends to itself count, but not in busbw: it is of the busiest rank"
)

FLUSH_LINE = (
    "before every call, first calls included, each rank overwrites its caches and waits for the "
    "others: neither is timed, but a rank that resumes late, as on busy cores, lengthens the call"
)

# bench/stopping.py does not call a median precise with fewer calls either.
FEW_CALLS = 60
_MODES = "bimodal"  # placeholder: all bimodal rows share one footnote


class Notes:
    """Numbers the footnotes of a table in the order in which its rows refer to them.

    Equal texts share a number. All bimodal rows share one footnote.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._modes: dict[Case, Modes] = {}
        self._with_ramp_up: dict[Case, tuple[int, int]] = {}  # case -> its calls, ramp-up calls
        self._short: dict[Case, int] = {}  # case -> its calls, if too few to show two modes

    @property
    def bimodal(self) -> int:
        """How many results have calls that form two clusters."""
        return len(self._modes)

    def mark(self, *texts: str) -> str:
        """The marks of the texts, such as ``[1][3]``; a new text gets the next number.

        They are sorted, because an earlier row may have given a later text a smaller number.
        """
        if not texts:
            return ""
        numbers = {self._numbers.setdefault(text, len(self._numbers) + 1) for text in texts}
        return "".join(f"[{number}]" for number in sorted(numbers))

    def marks(self, result: CaseResult, *more: str, times: Sequence[float] | None = None) -> str:
        """The marks of all remarks about a result, and of ``more``.

        times: its ``steady_times`` on the clock of the table in ns; None to compute them.
        """
        texts = list(_result_notes(result))
        if not result.time_ns:  # modes and issue times need the samples of single calls
            return self.mark(*texts, *more)
        times, ramp_up = _judged_times(result, times)
        calls = len(times) - ramp_up  # as in the column of the table
        if modes := two_modes(times):
            self._modes[result.case] = modes
            if ramp_up:
                self._with_ramp_up[result.case] = (calls, ramp_up)
            texts.append(_MODES)
        elif 0 < calls < FEW_CALLS:
            self._short[result.case] = calls
        return self.mark(*texts, *_host_bound_notes(result), *more)

    def lines(self, footnotes: bool = True, verbose: bool = False) -> list[str]:
        """The numbered footnotes, and if verbose a line about rows that have none. footnotes:
        whether the former are among them.
        """
        numbered = [
            Caveat(self._bimodal_text() if text is _MODES else text, f"[{number}] ")
            for text, number in self._numbers.items()
            if footnotes
        ]
        return [*numbered, *(self._short_lines() if verbose else ())]

    def _bimodal_text(self) -> str:
        """The footnote of all bimodal rows: ``bimodal in 8 rows: 14 to 45 % of the calls ...``.

        Of one row also the times of both clusters; of several they would describe no row.
        """
        modes, with_ramp_up = [*self._modes.values()], [*self._with_ramp_up.values()]
        shares = sorted(mode.share for mode in modes)
        share = " to ".join(dict.fromkeys(f"{100 * end:.0f}" for end in (shares[0], shares[-1])))
        if len(modes) > 1:
            text = f"bimodal in {len(modes)} rows: {share} % of the calls of each form a slower "
            text += "cluster"
            if with_ramp_up:
                text += f"; ramp-up calls count in rows of fewer than {FEW_CALLS} calls"
            return text
        of = "the calls"
        if with_ramp_up:
            calls, ramp_up = with_ramp_up[0]
            of = f"{counted(calls, 'call')} and {counted(ramp_up, 'ramp-up call')}"
        slow, fast = _time_range(modes[0].slow), _time_range(modes[0].fast)
        return f"bimodal: {share} % of {of} take {slow}, the others {fast}"

    def _short_lines(self) -> list[str]:
        """If some rows are bimodal, a line about the others with too few calls to rule it out.

        Modes come in clusters, so a few calls may all be of one mode.
        """
        if not (self._modes and self._short):
            return []
        least, most = min(self._short.values()), max(self._short.values())
        calls = f"{least} calls" if least == most else f"{least} to {most} calls"
        rows = len(self._short)
        are, have = plural(rows, "is", "are"), plural(rows, "has", "have")
        return [
            f"{counted(rows, 'row')} {are} not marked bimodal, but {have} only {calls}: "
            "too few to rule it out"
        ]


def _result_notes(result: CaseResult) -> Iterable[str]:
    if result.reason:
        yield one_line(result.reason)
    check = result.verification
    if check is not None and check.failed and check.wrong_ranks:
        ranks = plural(len(check.wrong_ranks), "rank")
        yield f"wrong on {ranks} {format_ranges(check.wrong_ranks)}"
    if check is not None and check.tolerance_ulp:
        yield f"values within {check.tolerance_ulp} ulp count as correct"
    yield from (one_line(text) for text in result.warnings)


def _judged_times(result: CaseResult, times: Sequence[float] | None) -> tuple[Sequence[float], int]:
    """The times in ns in which two modes are looked for, and how many of them are ramp-up calls.

    Back-to-back calls have none.

    A period is a mean over calls of both modes, so it cannot show them. If there are fewer than
    FEW_CALLS steady calls, the ramp-up calls are added: both modes occur in them too.
    """
    clock = summary.default_clock(result)
    if summary.has_period(result, clock):
        return (), 0
    times = summary.steady_times(result, clock) if times is None else times
    if not 0 < len(times) < FEW_CALLS or not result.ramp_up_ns:
        return times, 0
    ramp_up = [*summary.over_ranks(result.ramp_up_ns)]
    return [*ramp_up, *times], len(ramp_up)


def _host_bound_notes(result: CaseResult) -> Iterable[str]:
    if bound := summary.host_bound(result):
        issued, period = (format_ns(ns, 3) for ns in bound)
        text = f"host-bound: the host takes {issued} to issue a call of {period}"
        graph = result.case.device == "cuda" and result.case.mode == "back-to-back"
        yield f"{text}; --mode graph costs the host less" if graph else text


def _time_range(ns: tuple[float, float]) -> str:
    """``2.1 to 4.0 ms``; each end has its own unit if the units differ."""
    (low, low_unit), (high, high_unit) = (format_ns(ns_value, 2).split() for ns_value in ns)
    return (
        f"{low} to {high} {high_unit}"
        if low_unit == high_unit
        else f"{low} {low_unit} to {high} {high_unit}"
    )


MOST_NOTES = 4  # below a table


def most_notes(lines: Sequence[str], run: Run, verbose: bool) -> list[str]:
    """The lines below the table of a run, of which at most MOST_NOTES are shown unless verbose:
    what happened to the run, and the first of the others.
    """
    if verbose or len(lines) <= MOST_NOTES:
        return [*lines]
    happened = set(outcome_lines(run))
    first = sorted(range(len(lines)), key=lambda place: lines[place] not in happened)[:MOST_NOTES]
    left = len(lines) - MOST_NOTES
    return [*(lines[place] for place in sorted(first)), f"{counted(left, 'more note')}: --verbose"]


def run_lines(
    run: Run, rows: Sequence[summary.Row], first_calls: bool = True, verbose: bool = False
) -> list[str]:
    """The lines below the tables of a run: about its rows, then about the run.

    first_calls: whether a table has the column of first calls, whose ``*`` needs explaining.
    """
    return row_lines(rows, first_calls, verbose) + outcome_lines(run)


def row_lines(
    rows: Sequence[summary.Row], first_calls: bool = True, verbose: bool = False
) -> list[str]:
    """The lines that explain rows without marks: first calls, one rank, splits; if verbose also
    what ended the cases.

    first_calls: whether a table has the column of first calls.
    """
    slow = dict.fromkeys(one_line(row.statistic) for row in rows if row.slow_first)
    lines = [f"* first call over 3 times the {' or '.join(slow)}"] if first_calls and slow else []
    lines += [FLUSH_LINE] if any(row.buffer_reuse == "flush" for row in rows) else []
    lines += stop_lines(rows) if verbose else []
    if any(row.ranks == 1 for row in rows):
        lines.append(summary.ONE_RANK)
    lines += [text] if (text := summary.nothing_sent(rows)) else []
    names = dict.fromkeys(row.collective for row in rows if has_splits(row.collective))
    lines += [f"{name}: {SPLITS_LINE}" for name in names]
    lines += _pair_line(rows)
    return list(map(Caveat, lines))


def _pair_line(rows: Sequence[summary.Row]) -> list[str]:
    """The time of dispatch and combine together, for the pairs among the rows; [] without any."""

    def key(row: summary.Row, rule: str) -> tuple[Any, ...]:
        return (row.backend, row.implementation, row.dtype, row.size_bytes, row.group, rule)

    dispatch = {key(row, row.splits or ""): row for row in rows if has_splits(row.collective)}
    sums = []
    for row in rows:
        rule = row.splits or ""
        other = dispatch.get(key(row, rule.removeprefix(COMBINE)))
        if rule.startswith(COMBINE) and other and other.median_ns and row.median_ns:
            on = f" on {row.backend}" if len({r.backend for r in rows}) > 1 else ""
            total = format_ns(other.median_ns + row.median_ns, 4)
            sums.append(f"{format_size(row.size_bytes_requested)}{on} {total}")
    return [f"dispatch and combine together (sum of both times): {', '.join(sums)}"] if sums else []


def stop_lines(rows: Iterable[summary.Row]) -> list[str]:
    """How many cases each stopping rule ended, as one line; [] if all ran a fixed number of calls.

    The precision is that of the calls made, and does not bound what a longer run would measure:
    ``precision 3 (after 60 to 180 calls in 2.1 ms to 14 ms; longer runs may differ)``.
    """
    rows_by_reason: dict[str, list[summary.Row]] = {}
    for row in rows:
        if not row.stop:
            continue
        rows_by_reason.setdefault(
            "precision" if row.stop == "precision" else stop_text(row), []
        ).append(row)
    rows_by_reason.pop("", None)
    if not set(rows_by_reason) - {"count"}:  # count: the user fixed the number of calls
        return []
    parts = [
        f"{text} {len(rows_of_reason)}"
        + (
            f" (after {_calls_and_time(rows_of_reason)}; longer runs may differ)"
            if text == "precision"
            else ""
        )
        for text, rows_of_reason in sorted(rows_by_reason.items(), key=lambda item: -len(item[1]))
    ]
    return [f"cases ended by: {', '.join(parts)}"]


def stop_text(row: summary.Row) -> str:
    """Why a case ended: ``precision of 60 calls in 2.1 ms``, ``limit of 1000 calls``, ``time``."""
    if row.stop == "precision":
        return f"precision of {_calls_and_time([row])}"
    return f"limit of {row.calls} calls" if row.stop == "cap" else one_line(row.stop)


def _calls_and_time(rows: Sequence[summary.Row]) -> str:
    """``60 to 180 calls in 2.1 ms to 14 ms``; files of earlier versions lack the times."""
    least, most = (choose(row.calls for row in rows) for choose in (min, max))
    parts = [f"{least} calls" if least == most else f"{least} to {most} calls"]
    times = sorted(row.steady_ns for row in rows if row.steady_ns is not None)
    texts = dict.fromkeys(format_ns(ns, 2) for ns in (times[:1] + times[-1:]))
    return " in ".join([*parts, " to ".join(texts)] if texts else parts)


def outcome_lines(run: Run) -> list[str]:
    """The lines about a run as a whole: events, the runs of --resume, problems, how it ended."""
    reason = (run.end or {}).get("reason")
    events_shown = [
        e for e in run.events if not reason or e.get("message") != reason or e.get("resumed")
    ]
    events = dict.fromkeys(map(_event_caveat, events_shown))
    lines = [*_continuation_lines(run), *run_problems(run)]
    lines += [one_line(run.way_on)] if run.way_on else []
    return [*events, *map(Caveat, lines)]


def runs_lines(runs: Sequence[Run]) -> list[Caveat]:
    """The outcome lines of several runs, each text once.

    A text of one run is preceded by its file, a text of several runs by their number.
    """
    runs_by_line: dict[str, list[Run]] = {}
    for run in runs:
        for line in outcome_lines(run):
            runs_by_line.setdefault(line, []).append(run)
    lines = []
    for line, runs_of_line in runs_by_line.items():
        name = _run_name(runs_of_line[0])
        source = name if len(runs_of_line) == 1 else f"{len(runs_of_line)} of {len(runs)} runs"
        text = line if len(runs) == 1 or name in line else f"{source}: {line}"
        lines.append(Caveat(one_line(text), of_runs=True))
    return lines


def footer_lines(notes: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The lines below the tables of a command: its notes, then the outcome lines of its runs."""
    lines = [*(Caveat(one_line(note)) for note in notes), *runs_lines(runs)]
    return list(dict.fromkeys(lines))


def note_lines(format: str, runs: Sequence[Run], notes: Sequence[str] = ()) -> list[str]:
    """The lines that csv and json cannot hold and that are printed to stderr instead.

    For both these are the problems of the files, each with its file; for csv also ``notes``, which
    are a field of json.
    """
    lines = []
    if format in ("csv", "json"):
        problems = ((_run_name(run), text) for run in runs for text in run_problems(run))
        lines = [f"warning: {text if n in text else f'{n}: {text}'}" for n, text in problems]
    if format == "csv":
        lines += map(one_line, notes)
    return list(dict.fromkeys(lines))


def _run_name(run: Run) -> str:
    names = (run.path, run.source.get("file"), run.header.get("run_id"), "a run")
    return one_line(next(filter(None, names)))


def _event_caveat(event: dict[str, Any]) -> Caveat:
    kind, message = event.get("kind") or "event", one_line(event.get("message") or "")
    before = "an earlier run ended and was resumed: " if event.get("resumed") else ""
    if kind == "signal":
        return Caveat(f"interrupted by {message}", before)
    if kind == "lost_rank" and message.startswith("lost "):
        return Caveat(message, before)
    return Caveat(message, f"{before}{one_line(kind).replace('_', ' ')}: ")


def _continuation_lines(run: Run) -> list[str]:
    """Which rows come from which run of --resume, and how the environments of these runs differ."""
    runs = [(run_part, results) for run_part, results in run.all_runs() if results]
    if len(runs) < 2:
        return []
    parts = [
        f"{one_line(run_part.path.name if run_part.path else '?')} from "
        f"{one_line(results[0].case.describe())} on"
        for run_part, results in runs[1:]
    ]
    lines = [f"rows of {len(runs)} runs (--resume): the first, {', '.join(parts)}"]
    facts = [{"ranks": str(run_part.ranks), **facts_of(run_part)} for run_part, _ in runs]
    differ = differences(facts)
    alike = "the runs had the same environment"
    return [*lines, f"differs between the runs: {differ}" if differ else alike]


def run_problems(run: Run) -> list[str]:
    """The problems of a file: what could not be read, and how the run ended if not normally."""
    problems = [one_line(text) for text in run.problems]
    ending = one_line(run.ending)
    # load() adds the ending to the problems; a run that has just ended has not been loaded.
    return problems if not ending or ending in problems else [*problems, ending]


def differences(facts: Sequence[dict[str, str]]) -> str:
    """The names whose values differ: ``torch (2.12.0, 2.13.0); NCCL_ALGO (Ring, unset)``.

    facts: for each run its values by name. Returns '' if all runs agree.
    """
    parts = []
    for name in dict.fromkeys(name for fact in facts for name in fact):
        values = list(dict.fromkeys(one_line(fact.get(name, "unset")) for fact in facts))
        if len(values) > 1:
            parts.append(f"{one_line(name)} ({', '.join(values)})")
    return "; ".join(parts)
