"""The cost of starting: set-up, the first calls of each run, and later cases that are cold again.

Later cases are cold because NCCL connects an algorithm when it is first used, a library may set up
something at a new size, and --fresh-group makes a communicator for every case. One run cannot
distinguish such a call from a hiccup, so each case says in how many runs it was cold.

The unit is the run, and a call takes as long as on its slowest rank. ``torchcoll scaling`` fits the
growth with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchcoll.core.bounds import MOST_ROWS
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UnusableError
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import (
    SLOW_FIRST,
    backends_of,
    cold_by_rank,
    first_result_ns,
    first_results,
    median,
    over_ranks,
)
from torchcoll.core.units import counted
from torchcoll.questions.startup.repeats import Placed, in_job, places_of, second_runs
from torchcoll.reading.inputs import Source
from torchcoll.stats.differences import hidden_among, hidden_note, kept_separate
from torchcoll.stats.matching import kind_of
from torchcoll.stats.ratios import geometric
from torchcoll.stats.sides import Measured, Reading, Side, known_of, side

PHASES = ("import_torch", "rendezvous", "device", "init_process_group", "communicator")


@dataclass(frozen=True)
class Slowest:
    """The longest of the durations of all ranks.

    rank, host: where it was measured. beyond_ns: how much longer than the median of the others.
    These are None if one rank or none is known.
    """

    ns: float
    rank: int | None = None
    host: str | None = None
    beyond_ns: float | None = None


def slowest(durations: Mapping[int, float], run: Run) -> Slowest | None:
    """The longest of the durations by rank."""
    if not durations:
        return None
    ns = max(durations.values())
    if len(durations) < 2:
        return Slowest(ns)
    rank = next(rank for rank, duration in durations.items() if duration == ns)
    member = run.members[rank] if rank < len(run.members) else {}
    others = [duration for other, duration in durations.items() if other != rank]
    return Slowest(ns, rank, member.get("host"), ns - median(others))


def _set_up_of(run: Run) -> dict[str, Slowest]:
    """The set-up phases in order, without the cost of measuring and the parts of NCCL's init."""
    names = [name for name in run.phases if not name.startswith(("cost_", "nccl_init_"))]
    names.sort(key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES))
    slowest_ranks = {name: slowest(dict(enumerate(run.phases[name])), run) for name in names}
    return {name: longest for name, longest in slowest_ranks.items() if longest}


@dataclass(frozen=True)
class Late:
    """One case of equal runs: geometric means over the runs, on the slowest rank, in ns.

    steady_ns: the steady figure (median, or period) or the last cold call, whichever is larger:
    the steady calls may be on another clock and back to back. cold: in how many of the ``runs`` the
    first call took over 3 times that. ordinal: the fewest calls on the communicator before it.
    why: the cause, such as an algorithm that is used for the first time; '' if not known.
    """

    kind: Mapping[str, Any]
    ranks: int
    size_bytes: int
    ordinal: int | None
    algorithm: str | None
    why: str
    first_ns: float
    steady_ns: float
    cold: int
    runs: int

    @property
    def extra_ns(self) -> float:
        return self.first_ns - self.steady_ns


@dataclass(frozen=True)
class _Seen:
    item: Measured
    first_ns: float
    steady_ns: float
    why: str
    is_first_use: bool  # of an algorithm


def late_cases(runs: Iterable[Sequence[Measured]], separate: Sequence[str]) -> list[Late]:
    """Cases that were cold in more than half of their runs, or that use an algorithm for the first
    time by the log of the library; without the first case of each run.
    """
    groups: dict[str, list[_Seen]] = {}
    kinds: dict[str, dict[str, Any]] = {}
    for items in runs:
        for seen in _seen(items):
            kind = kind_of(seen.item, separate)
            key = repr((kind, seen.item.row.ranks, seen.item.row.size_bytes_requested))
            groups.setdefault(key, []).append(seen)
            kinds[key] = kind
    late = []
    for key, calls in groups.items():
        case = _late(kinds[key], calls)
        explained = [call for call in calls if call.why]
        if 2 * case.cold > case.runs or (explained and explained[0].is_first_use):
            late.append(case)
    return late


def _seen(items: Sequence[Measured]) -> Iterable[_Seen]:
    """Yields the cases of one run whose first call can be judged."""
    starts: list[CaseResult] = []
    for backend in dict.fromkeys(item.result.case.backend for item in items):
        results = [item.result for item in items if item.result.case.backend == backend]
        starts += first_results(results)
    used: dict[str, set[str]] = {}
    for item in items:
        result = item.result
        labels = [choice.label for choice in result.choices]
        before = used.setdefault(result.case.backend, set())
        new = [label for label in dict.fromkeys(labels) if label not in before]
        before.update(labels)
        calls = over_ranks(result.cold_ns)
        if any(result is start for start in starts) or not calls or not result.is_right:
            continue
        if result.ranks == 1:  # one rank connects to nobody
            continue
        steady = max(item.figure or 0.0, calls[-1] if len(calls) > 1 else 0.0)
        if steady <= 0 or calls[0] <= 0:
            continue
        why = f"first of {', '.join(new)}" if new else ""
        if result.ordinal == 0:
            why = f"a communicator of its own ({result.communicator})"
        yield _Seen(item, calls[0], steady, why, bool(new) and result.ordinal != 0)


def _late(kind: dict[str, Any], seen: Sequence[_Seen]) -> Late:
    rows = [call.item.row for call in seen]
    ordinals = [n for call in seen if (n := call.item.result.ordinal) is not None]
    names = dict.fromkeys(row.algorithm for row in rows if row.algorithm)
    causes = dict.fromkeys(call.why for call in seen if call.why)
    return Late(
        kind=kind,
        ranks=rows[0].ranks,
        size_bytes=rows[0].size_bytes_requested,
        ordinal=min(ordinals, default=None),
        algorithm=", ".join(names) or None,
        why="; ".join(causes),
        first_ns=geometric(call.first_ns for call in seen) or 0.0,
        steady_ns=geometric(call.steady_ns for call in seen) or 0.0,
        cold=sum(call.first_ns > SLOW_FIRST * call.steady_ns for call in seen),
        runs=len(seen),
    )


@dataclass(frozen=True)
class ColdRow:
    """One run on one backend. Durations in ns, None if unknown.

    kind: of its first case, without the number of ranks. placed: its position in its scheduler's
    job. in_job: its position among the runs of its kind, if it matters. calls_ns: its first calls
    in order; sizes: S of each, in bytes. fresh: whether nobody had used the communicator before.
    steady_ns: the figure (median, or period) of the steady calls of the same case, on ``clock``.
    first: the first call on the slowest rank.
    """

    name: str
    run: Run
    kind: Mapping[str, Any]
    ranks: int
    hosts: int | None
    placed: Placed
    calls_ns: tuple[float | None, ...]
    sizes: tuple[int, ...]
    fresh: bool
    steady_ns: float | None
    clock: str | None
    status: str
    first: Slowest | None
    first_result_ns: float | None
    phases: Mapping[str, Slowest]
    facts: Mapping[str, str] = field(repr=False, default_factory=dict)
    in_job: str = ""

    @property
    def first_ns(self) -> float | None:
        return self.calls_ns[0] if self.calls_ns else None

    @property
    def second_ns(self) -> float | None:
        return self.calls_ns[1] if len(self.calls_ns) > 1 else None

    @property
    def third_ns(self) -> float | None:
        return self.calls_ns[2] if len(self.calls_ns) > 2 else None

    @property
    def last_ns(self) -> float | None:
        """The last cold call, if there are three or more and all have one size."""
        return self.calls_ns[-1] if len(self.calls_ns) > 2 and len(self.sizes) == 1 else None

    @property
    def connect_ns(self) -> float | None:
        """How much longer the first result took than a steady call; None if the communicator was
        not new, or has one rank.
        """
        first = self.first_result_ns or self.first_ns
        if not (self.fresh and first and self.steady_ns) or self.ranks == 1:
            return None
        return first - self.steady_ns if first > self.steady_ns else None


@dataclass(frozen=True)
class Scale:
    """Geometric means over the runs of one kind, number of ranks and position in their jobs.

    in_job: their position, as ``repeats.in_job`` names it. low_ns, high_ns: the shortest and the
    longest first call. again: the ratios of the second to the first run of each job.
    """

    kind: Mapping[str, Any]
    ranks: int
    in_job: str
    hosts: tuple[int, ...]
    runs: int
    first_ns: float | None
    low_ns: float | None
    high_ns: float | None
    second_ns: float | None
    third_ns: float | None
    steady_ns: float | None
    first_result_ns: float | None
    connect_ns: float | None
    again: tuple[float, ...]


@dataclass(repr=False)
class Cold(Displayed):
    """The result of ``cold``."""

    runs: list[Run]
    rows: list[ColdRow]
    scales: list[Scale]
    late: list[Late]
    notes: list[str]


def cold(sources: Source | Sequence[Source]) -> Cold:
    """The cost of starting in these Runs, files, folders or globs, run by run.

    Raises UnusableError if no run has first calls, UnreadableError for a file.
    """
    files = side("files", sources)
    runs = files.parts
    separate = kept_separate((run.ranks, known_of(run)) for run in runs)
    measured: list[list[Measured]] = [[] for _ in runs]
    for item in files.measured("time", Reading()):
        measured[item.part].append(item)
    of_runs = zip(runs, measured, places_of(runs), strict=True)
    rows = [row for run, items, placed in of_runs for row in _rows(run, items, placed, separate)]
    if not rows:
        raise UnusableError(
            "first calls",
            f"none in {counted(len(files.runs), 'file')}",
            "runs with cold calls, JSON of nccl-tests -w 0 -I 1, or output of oneCCL's benchmark "
            "-i 1 -w 0",
        )
    rows.sort(key=lambda row: row.placed.order)
    # A wrong case keeps its row, but is in no mean and no comparison.
    usable = [i for i, row in enumerate(rows) if row.status == "ok" and row.first_ns]
    likes = []
    groups: dict[tuple[str, int], list[int]] = {}
    for i in usable:
        row = rows[i]
        ns, figure = row.first_ns or 0.0, "1st call"
        if row.first_result_ns:
            ns, figure = row.first_result_ns, "time to first result"
        likes.append((repr(row.kind), row.ranks, row.placed, ns, figure))
        groups.setdefault((repr(row.kind), row.ranks), []).append(i)
    again = second_runs(likes)
    for (kind, _), members in groups.items():
        of_kind = [ratio for key, ratios in again.items() if key[0] == kind for ratio in ratios]
        texts = in_job([rows[i].placed for i in members], of_kind)
        for i, text in zip(members, texts, strict=True):
            rows[i] = replace(rows[i], in_job=text)
    scales = _scales([rows[i] for i in usable], again)
    late = late_cases(measured, separate)
    return Cold(files.runs, rows, scales, late, _notes(files, rows, separate))


def _rows(
    run: Run, items: Sequence[Measured], placed: Placed, separate: Sequence[str]
) -> Iterable[ColdRow]:
    """Yields a row for each backend of the run whose first calls are known."""
    results = [item.result for item in items]
    phases = _set_up_of(run)
    for backend in backends_of(results):
        mine = [r for r in results if r.case.backend == backend]
        # The results that hold the first calls, and whether the communicator was new to them.
        firsts, fresh = first_results(mine), True
        if not firsts:
            # An imported file may have the first calls of the process as rows of one call each.
            reported = [r for r in mine if r.reported and r.reported.first_call_ns]
            firsts = [r for r in reported if r.ordinal is not None]
            firsts.sort(key=lambda r: r.ordinal or 0)
        if not firsts:
            firsts, fresh = [r for r in mine if r.cold_ns and all(r.cold_ns)][:1], False
        if not firsts:
            continue
        measured = [next(item for item in items if item.result is result) for result in firsts]
        item = measured[0]
        steady = [ns for item in measured if (ns := item.figure) and item.result.time_ns]
        by_rank = cold_by_rank(firsts)
        calls: Sequence[float | None]
        if by_rank:
            calls = over_ranks(list(by_rank.values()))
        else:  # a row that could not be read leaves a gap
            by_number = {r.ordinal: r.reported.first_call_ns for r in firsts if r.reported}
            last = min(max(number or 0 for number in by_number), MOST_ROWS)
            calls = [by_number.get(number) for number in range(1 + last)]
        bad = [item.row.outcome for item in measured if not item.result.is_right]
        result = first_result_ns(run, firsts) if by_rank and fresh else None
        yield ColdRow(
            name=_name(run),
            run=run,
            kind=kind_of(item, separate) | {"size_bytes": item.row.size_bytes_requested},
            ranks=run.ranks or item.row.ranks,
            hosts=len({m["host"] for m in run.members if m.get("host")}) or None,
            placed=placed,
            # A broken clock gives durations without a logarithm.
            calls_ns=tuple(ns if ns and ns > 0 else None for ns in calls),
            sizes=tuple(r.size_bytes for r in firsts) if not by_rank else (item.row.size_bytes,),
            fresh=fresh,
            # Sub-groups call at the same time: the slowest counts.
            steady_ns=max(steady, default=None),
            clock=item.row.clock if steady else None,
            status=bad[0] if bad else "ok",
            first=slowest({r: row[0] for r, row in by_rank.items()}, run),
            first_result_ns=result if result and result > 0 else None,
            phases=phases,
            facts=item.facts,
        )


def _name(run: Run) -> str:
    if run.path:
        return run.path.name
    number = run.source.get("run")
    name = run.source.get("file") or run.header.get("run_id") or "run"
    return f"{name} #{number}" if number else str(name)


def _scales(rows: Sequence[ColdRow], again: Mapping[tuple[str, int], list[float]]) -> list[Scale]:
    """Group rows with a first call by kind, number of ranks and position in the job."""
    groups: dict[tuple[str, int, str], list[ColdRow]] = {}
    for row in rows:
        groups.setdefault((repr(row.kind), row.ranks, row.in_job), []).append(row)
    kinds = list(dict.fromkeys(kind for kind, *_ in groups))
    scales = []
    for key in sorted(groups, key=lambda key: (kinds.index(key[0]), *key[1:])):
        alike = groups[key]
        firsts = [ns for row in alike if (ns := row.first_ns)]
        scale = Scale(
            kind=alike[0].kind,
            ranks=alike[0].ranks,
            in_job=alike[0].in_job,
            hosts=tuple(sorted({row.hosts for row in alike if row.hosts})),
            runs=len(alike),
            first_ns=geometric(firsts),
            low_ns=min(firsts),
            high_ns=max(firsts),
            second_ns=geometric(row.second_ns for row in alike),
            third_ns=geometric(row.third_ns for row in alike),
            steady_ns=geometric(row.steady_ns for row in alike),
            first_result_ns=geometric(row.first_result_ns for row in alike),
            connect_ns=geometric(row.connect_ns for row in alike),
            # If second runs have a line of their own, it is there.
            again=tuple(again.get(key[:2], ())) if key[2] in ("", "2") else (),
        )
        scales.append(scale)
    return scales


def _notes(files: Side, rows: Sequence[ColdRow], separate: Sequence[str]) -> list[str]:
    notes = []
    silent = len(files.parts) - len({row.placed.order for row in rows})
    if silent:
        notes.append(f"{silent} of {len(files.parts)} runs tell no first call")
    if any(not row.fresh for row in rows):
        notes.append("(used): the communicator had been used before, so connecting is not included")
    steady = dict.fromkeys((row.kind["mode"], row.clock) for row in rows if row.clock)
    for mode, clock in steady:
        if (mode, clock) != ("synchronized", "host"):
            notes.append(
                f"1st, 2nd, 3rd: host clock, one by one; steady: {clock} clock, {mode} mode"
            )
    bad = [row for row in rows if row.status != "ok"]
    if bad:
        statuses = ", ".join(f"{row.name} {row.status}" for row in bad[:4])
        notes.append(f"in no mean, as their first case did not end well: {statuses}")
    notes.append(files.rehearsal_note)
    kinds: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        kinds.setdefault(repr(row.kind), []).append(row.facts)
    notes += [hidden_note(hidden_among(facts, separate)) for facts in kinds.values()]
    return list(dict.fromkeys(filter(None, notes)))
