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
from torchcoll.core.two_modes import Modes, two_modes
from torchcoll.core.units import counted, format_ns, format_ranges, plural

SPLITS_LINE = (
    "size is the largest sum that a rank sends or receives; "
    "bytes that a rank sends to itself count, but not in busbw: it is of the busiest rank"
)

# bench/stopping.py does not call a median precise with fewer calls either.
FEW_CALLS = 60
_MODES = "bimodal"  # placeholder: all bimodal rows share one footnote


class Notes:
    """Numbers the footnotes of a table, of which equal texts and all bimodal rows share one."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._modes: dict[Case, Modes] = {}

    @property
    def bimodal(self) -> int:
        """How many results have calls that form two clusters."""
        return len(self._modes)

    def mark(self, *texts: str) -> str:
        """The marks of the texts in order, such as ``[1][3]``; a new text gets the next number."""
        numbers = {self._numbers.setdefault(text, len(self._numbers) + 1) for text in texts}
        return "".join(f"[{number}]" for number in sorted(numbers))

    def marks(self, result: CaseResult, *more: str, times: Sequence[float] | None = None) -> str:
        """The marks of all remarks about a result. times: its ``steady_times`` in ns."""
        texts = list(_result_notes(result))
        if not result.time_ns:  # modes and issue times need the samples of single calls
            return self.mark(*texts, *more)
        if modes := two_modes(_judged_times(result, times)):
            self._modes[result.case] = modes
            texts.append(_MODES)
        return self.mark(*texts, *_host_bound_notes(result), *more)

    def lines(self) -> list[str]:
        """The numbered footnotes."""
        return [
            Caveat(self._bimodal_text() if text is _MODES else text, f"[{number}] ")
            for text, number in self._numbers.items()
        ]

    def _bimodal_text(self) -> str:
        """The footnote of all bimodal rows, with the times of both clusters if it is one row."""
        modes = [*self._modes.values()]
        shares = sorted(mode.share for mode in modes)
        share = " to ".join(dict.fromkeys(f"{100 * end:.0f}" for end in (shares[0], shares[-1])))
        if len(modes) > 1:
            each = f"{share} % of the calls of each form a slower cluster"
            return f"bimodal in {len(modes)} rows: {each}"
        slow, fast = _time_range(modes[0].slow), _time_range(modes[0].fast)
        return f"bimodal: {share} % of the calls take {slow}, the others {fast}"


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


def _judged_times(result: CaseResult, times: Sequence[float] | None) -> Sequence[float]:
    """The times in ns in which two modes are looked for: periods are means of both."""
    clock = summary.default_clock(result)
    if summary.has_period(result, clock):
        return ()
    times = summary.steady_times(result, clock) if times is None else times
    if not 0 < len(times) < FEW_CALLS:
        return times
    # Both modes occur in the ramp-up calls too.
    return [*summary.over_ranks(result.ramp_up_ns), *times]


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
    """At most MOST_NOTES of the lines below a table: what happened to the run comes first."""
    happened = set(outcome_lines(run))
    first = sorted(range(len(lines)), key=lambda place: lines[place] not in happened)[:MOST_NOTES]
    rest = [line for place, line in enumerate(lines) if place not in first]
    return first_notes([*(lines[place] for place in sorted(first)), *rest], verbose)


def first_notes(lines: Sequence[str], verbose: bool) -> list[str]:
    """The first MOST_NOTES of the lines, and how many more there are."""
    left = len(lines) - MOST_NOTES
    if verbose or left <= 0:
        return [*lines]
    return [*lines[:MOST_NOTES], f"{counted(left, 'more note')}: --verbose"]


def run_lines(run: Run, rows: Sequence[summary.Row], first_calls: bool = True) -> list[str]:
    """The lines below the tables of a run: ``row_lines``, then ``outcome_lines``."""
    return row_lines(rows, first_calls) + outcome_lines(run)


def row_lines(rows: Sequence[summary.Row], first_calls: bool = True) -> list[str]:
    """The lines that explain rows without marks. first_calls: whether their column is shown."""
    slow = dict.fromkeys(one_line(row.statistic) for row in rows if row.slow_first)
    lines = [f"* first call over 3 times the {' or '.join(slow)}"] if first_calls and slow else []
    if any(row.ranks == 1 for row in rows):
        lines.append(summary.ONE_RANK)
    lines += [text] if (text := summary.nothing_sent(rows)) else []
    names = dict.fromkeys(row.collective for row in rows if has_splits(row.collective))
    lines += [f"{name}: {SPLITS_LINE}" for name in names]
    return list(map(Caveat, lines))


def stop_text(row: summary.Row) -> str:
    """Why a case ended: ``precision of 60 calls in 2.1 ms``, ``limit of 1000 calls``, ``time``."""
    if row.stop == "precision":
        took = "" if row.steady_ns is None else f" in {format_ns(row.steady_ns, 2)}"
        return f"precision of {row.calls} calls{took}"
    return f"limit of {row.calls} calls" if row.stop == "cap" else one_line(row.stop)


def outcome_lines(run: Run) -> list[str]:
    """The lines about a run as a whole: events, the runs of --resume, problems, how it ended."""
    reason = (run.end or {}).get("reason")
    events_shown = [
        e for e in run.events if not reason or e.get("message") != reason or e.get("resumed")
    ]
    events = dict.fromkeys(map(_event_caveat, events_shown))
    lines = [*_continuation_lines(run), *run_problems(run)]
    return [*events, *map(Caveat, lines)]


def runs_lines(runs: Sequence[Run]) -> list[Caveat]:
    """The outcome lines of several runs, each once, after its file or the number of its runs."""
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
    """What stderr gets for csv and json: the problems of files, and for csv also ``notes``."""
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
