"""What starting costs: set-up, the first calls of each launch, and cases that pay again later.

The unit is the launch. Of its calls the completion is read, the maximum over ranks. Nothing is said
of growth with the number of ranks here: that needs a law, which is ``torchcoll scaling``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchcoll.analysis.environments import hidden_among, hidden_note, kept_apart
from torchcoll.analysis.late import Late, late_cases
from torchcoll.analysis.matching import kind_of
from torchcoll.analysis.repeats import (
    FIRST_TWO,
    Pairs,
    Placed,
    in_job,
    later_of,
    pairs_of,
    places_of,
)
from torchcoll.analysis.sides import (
    Measured,
    Reader,
    Reading,
    Side,
    Source,
    known_of,
    side,
)
from torchcoll.analysis.startup import Slowest, init_parts, phases_of, slowest
from torchcoll.analysis.stats import geometric
from torchcoll.core.errors import UsageError
from torchcoll.core.first import backends_of, cold_by_rank, first_result_ns, first_results
from torchcoll.core.records import load_all
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import over_ranks


@dataclass(frozen=True)
class ColdRow:
    """One launch (of several backends: one for each). Durations in ns, None where unknown.

    kind: what its first case is, the number of ranks aside. placed: its scheduler's job, and its
    place there; in_job: its place among those of its kind, where it matters. calls_ns: its first
    calls in order; sizes: S of each, in bytes. own: False where others had used the communicator
    before. steady_ns: the figure (median, or period) of the steady calls of the same case, on
    ``clock``. first: the first call by ranks. parts_ns: of NCCL's 'Init timings', of the rank that
    took longest.
    """

    name: str
    launch: Run
    kind: Mapping[str, Any]
    ranks: int
    hosts: int | None
    placed: Placed
    calls_ns: tuple[float | None, ...]
    sizes: tuple[int, ...]
    own: bool
    steady_ns: float | None
    clock: str | None
    status: str
    first: Slowest | None
    first_result_ns: float | None
    phases: Mapping[str, Slowest]
    parts_ns: Mapping[str, float]
    facts: Mapping[str, str] = field(repr=False, default_factory=dict)
    in_job: str = ""

    def call_ns(self, number: int) -> float | None:
        """The call of this number from 1 on."""
        return self.calls_ns[number - 1] if len(self.calls_ns) >= number else None

    @property
    def last_ns(self) -> float | None:
        """The last cold call, where there are enough to call it one, and all of one size."""
        return self.calls_ns[-1] if len(self.calls_ns) > 2 and len(self.sizes) == 1 else None

    @property
    def largest_part(self) -> tuple[str, float] | None:
        """Name and ns of what took most of NCCL's initialisation."""
        return max(self.parts_ns.items(), key=lambda part: part[1], default=None)


@dataclass(frozen=True)
class Scale:
    """Launches of one kind and one number of ranks: geometric means over the launches.

    in_job: '', or at which place of their jobs all of them stood, as repeats.in_job tells. low_ns,
    high_ns: the least and the largest first call of them. again: the second launch of a job against
    the first, beside the second where they are apart.
    """

    kind: Mapping[str, Any]
    ranks: int
    in_job: str
    hosts: tuple[int, ...]
    launches: int
    first_ns: float | None
    low_ns: float | None
    high_ns: float | None
    second_ns: float | None
    third_ns: float | None
    steady_ns: float | None
    first_result_ns: float | None
    again: Pairs | None


@dataclass
class Cold:
    """What ``cold`` found. again: second launches against first ones over all numbers of ranks."""

    runs: list[Run]
    rows: list[ColdRow]
    scales: list[Scale]
    again: list[Pairs]
    late: list[Late]
    notes: list[str]


def cold(sources: Source | Sequence[Source], *, reader: Reader = load_all) -> Cold:
    """What starting cost in these Runs, files, folders or globs, launch by launch.

    reader: ``torchcoll.importers.registry.read_all`` takes output of other tools too. Raises
    UsageError where no launch tells its first calls, UnreadableError for a file.
    """
    files = side("files", sources, reader)
    launches = [part for run in files.runs for part in run.launches()]
    facts = {id(launch): known_of(launch) for launch, _ in launches}
    apart = kept_apart((launch.ranks, facts[id(launch)]) for launch, _ in launches)
    measured = {id(m.result): m for m in files.measured("time", Reading())}
    places = places_of([launch for launch, _ in launches])
    found = [
        row
        for launch, results in launches
        for row in _rows(launch, results, measured, places[id(launch)], facts[id(launch)], apart)
    ]
    if not found:
        raise UsageError(
            "first calls",
            f"none in {len(files.runs)} file{'s' if len(files.runs) > 1 else ''}",
            "launches with cold calls, or output of oneCCL's benchmark -i 1 -w 0",
        )
    found.sort(key=lambda row: row.placed.order)
    pairs, pooled = pairs_of(_like(found))
    found = _told_apart(found, pairs, pooled)
    scales = _scales(found, pairs)
    late = late_cases(launches, measured, apart)
    return Cold(files.runs, found, scales, pooled, late, _notes(files, found, apart))


# -- one launch ------------------------------------------------------------------------------


def _rows(
    launch: Run,
    results: Sequence[CaseResult],
    measured: Mapping[int, Measured],
    placed: Placed,
    facts: Mapping[str, str],
    apart: Sequence[str],
) -> Iterable[ColdRow]:
    for backend in backends_of(results):
        firsts, own = _firsts([r for r in results if r.case.backend == backend])
        if not firsts:
            continue
        item = measured[id(firsts[0])]
        steady = [ns for r in firsts if (ns := measured[id(r)].figure) and r.time_ns]
        by_rank = cold_by_rank(firsts)
        calls = over_ranks(list(by_rank.values())) if by_rank else _calls_of_rows(firsts)
        bad = [r.status for r in firsts if r.status != "ok"]
        known = bool(by_rank) and own
        result = first_result_ns(launch, firsts) if known else None
        yield ColdRow(
            name=_name(launch),
            launch=launch,
            kind=kind_of(item, apart) | {"nbytes": item.row.nbytes_requested},
            ranks=launch.ranks or item.row.ranks,
            hosts=len({m["host"] for m in launch.members if m.get("host")}) or None,
            placed=placed,
            # A broken clock gives durations that have no logarithm.
            calls_ns=tuple(ns if ns and ns > 0 else None for ns in calls),
            sizes=tuple(r.nbytes for r in firsts) if not by_rank else (item.row.nbytes,),
            own=own,
            # Sub-groups make their calls together: the slowest one tells.
            steady_ns=max(steady, default=None),
            clock=item.row.clock if steady else None,
            status=bad[0] if bad else "ok",
            first=slowest({r: row[0] for r, row in by_rank.items()}, launch),
            first_result_ns=result if result and result > 0 else None,
            phases=phases_of(launch),
            parts_ns=init_parts(launch),
            facts=facts,
        )


def _firsts(results: Sequence[CaseResult]) -> tuple[list[CaseResult], bool]:
    """The results that hold the first calls, and whether the communicator was new to them."""
    if firsts := first_results(results):
        return firsts, True
    # Rows of one call each: the process' first calls, as the importer says.
    rows = [r for r in results if r.given and r.given.first_call_ns and r.ordinal is not None]
    if rows:
        return sorted(rows, key=lambda r: r.ordinal or 0), True
    return [r for r in results if r.cold_ns and all(r.cold_ns)][:1], False


def _calls_of_rows(rows: Sequence[CaseResult]) -> list[float | None]:
    """By their numbers: a row that could not be read leaves its place empty."""
    by_number = {r.ordinal: r.given.first_call_ns for r in rows if r.given}
    return [by_number.get(number) for number in range(1 + max(n or 0 for n in by_number))]


def _name(launch: Run) -> str:
    if launch.path:
        return launch.path.name
    number = launch.source.get("launch")
    name = launch.source.get("file") or launch.header.get("run_id") or "run"
    return f"{name} #{number}" if number else str(name)


# -- several launches ------------------------------------------------------------------------


def _usable(rows: Iterable[ColdRow]) -> list[ColdRow]:
    """What may enter a mean: a case that was wrong keeps its row and no more."""
    return [row for row in rows if row.status == "ok" and row.call_ns(1)]


def _like(rows: Sequence[ColdRow]) -> list[tuple[str, int, Placed, float, str]]:
    """(kind, ranks, place, figure, what the figure is) of each launch that may be compared."""
    return [
        (repr(row.kind), row.ranks, row.placed, row.first_result_ns, "time to first result")
        if row.first_result_ns
        else (repr(row.kind), row.ranks, row.placed, row.call_ns(1) or 0.0, "1st call")
        for row in _usable(rows)
    ]


def _told_apart(
    rows: Sequence[ColdRow], pairs: Mapping[tuple[str, int], Pairs], pooled: Sequence[Pairs]
) -> list[ColdRow]:
    """The rows with their places in their jobs, as repeats.in_job has them."""
    groups: dict[tuple[str, int], list[ColdRow]] = {}
    for row in _usable(rows):
        groups.setdefault((repr(row.kind), row.ranks), []).append(row)
    later, later_pooled = later_of(_like(rows))
    places: dict[int, str] = {}
    for key, own in groups.items():
        again, after = (
            [*([each[key]] if key in each else []), *(one for one in whole if one.kind == key[0])]
            for each, whole in ((pairs, pooled), (later, later_pooled))
        )
        texts = in_job([row.placed for row in own], again, after)
        places |= {id(row): text for row, text in zip(own, texts, strict=True)}
    return [replace(row, in_job=places.get(id(row), "")) for row in rows]


def _scales(rows: Sequence[ColdRow], pairs: Mapping[tuple[str, int], Pairs]) -> list[Scale]:
    groups: dict[tuple[str, int, str], list[ColdRow]] = {}
    for row in _usable(rows):
        groups.setdefault((repr(row.kind), row.ranks, row.in_job), []).append(row)
    kinds = list(dict.fromkeys(kind for kind, *_ in groups))
    order = sorted(groups, key=lambda key: (kinds.index(key[0]), *key[1:]))
    # Beside the second of a job, where it stands on a line of its own.
    return [
        _scale(groups[key], pairs.get(key[:2]) if key[2] in ("", "2", FIRST_TWO) else None)
        for key in order
    ]


def _scale(rows: Sequence[ColdRow], again: Pairs | None) -> Scale:
    firsts = [ns for row in rows if (ns := row.call_ns(1))]
    return Scale(
        kind=rows[0].kind,
        ranks=rows[0].ranks,
        in_job=rows[0].in_job,
        hosts=tuple(sorted({row.hosts for row in rows if row.hosts})),
        launches=len(rows),
        first_ns=geometric(firsts),
        low_ns=min(firsts),
        high_ns=max(firsts),
        second_ns=geometric(row.call_ns(2) for row in rows),
        third_ns=geometric(row.call_ns(3) for row in rows),
        steady_ns=geometric(row.steady_ns for row in rows),
        first_result_ns=geometric(row.first_result_ns for row in rows),
        again=again,
    )


def _notes(files: Side, rows: Sequence[ColdRow], apart: Sequence[str]) -> list[str]:
    notes = []
    told = {id(row.launch) for row in rows}
    silent = sum(id(part) not in told for part in files.parts)
    if silent:
        notes.append(f"{silent} of {len(files.parts)} launches tell no first call")
    if any(not row.own for row in rows):
        notes.append("(used): others had used the communicator before; its connecting is not here")
    steady = dict.fromkeys((row.kind["cadence"], row.clock) for row in rows if row.clock)
    for cadence, clock in steady:
        if (cadence, clock) != ("isolated", "host"):
            notes.append(
                f"1st, 2nd, 3rd: host clock, one by one; steady: {clock} clock, {cadence} cadence"
            )
    bad = [row for row in rows if row.status != "ok"]
    if bad:
        words = ", ".join(f"{row.name} {row.status}" for row in bad[:4])
        notes.append(f"in no mean, as their first case did not end well: {words}")
    notes.append(files.rehearsal_note)
    varying = (hidden_among([row.facts for row in kind], apart) for kind in _kinds(rows))
    notes += map(hidden_note, varying)
    return list(dict.fromkeys(filter(None, notes)))


def _kinds(rows: Sequence[ColdRow]) -> list[list[ColdRow]]:
    kinds: dict[str, list[ColdRow]] = {}
    for row in rows:
        kinds.setdefault(repr(row.kind), []).append(row)
    return list(kinds.values())
