"""Which runs may stand for how a machine should be: those that failed, gave wrong results or were
slow beside the others are left out and named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import stats

from torchcoll.core.errors import UsageError
from torchcoll.core.units import counted
from torchcoll.fleet.critical import critical_value
from torchcoll.fleet.effects import Floats, common_cases, robust_scale, two_way
from torchcoll.fleet.good_runs import (
    ERROR,
    FEWEST_RUNS,
    GoodRun,
    GoodRuns,
    runs_missing,
    usual_of,
)
from torchcoll.fleet.nights import format_night
from torchcoll.fleet.node_report import case_names
from torchcoll.fleet.slow_nodes import FEWEST_PEERS, Peers, judge_peers
from torchcoll.store.records import FAILED, WRONG, CaseKey
from torchcoll.store.series import RUN_STATUSES, STATUSES, UNKNOWN_START, Summaries

SLOW = 0.03  # a run that is slower than the others by less is not accused, as in `torchcoll fleet`
_OF_RUNS = 0.5  # share of the error that a run over all cases has in `torchcoll fleet`
_DAY_US = 86_400_000_000
_DRIFT_P = 0.01
_DRIFT_LEAST = 0.01  # over the whole time: less is no warning
_FEWEST_FOR_DRIFT = 8
# Recorded facts that are no versions: where a run was made, and what the machine is called.
_NO_VERSIONS = ("label=", "device_name", "cores", "threads", "cpu", "source", "python")


@dataclass(frozen=True)
class LeftOut:
    """A run of the folder that is not in the baseline, and why."""

    run_id: str
    path: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """Good runs by device model and number of ranks, most runs first, and what was left out.

    too_few: sets of runs that are no baseline, as a clause each. notes: cases left out, and similar.
    """

    good: tuple[GoodRuns, ...]
    left_out: tuple[LeftOut, ...] = ()
    too_few: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def date_of(start_us: int | None) -> str:
    """The day in UTC, '' where the start is not known."""
    return "" if start_us is None else format_night(start_us // _DAY_US)


def machine_text(device_name: str, ranks: int) -> str:
    return f"{device_name or 'device not recorded'}, {counted(ranks, 'rank')}"


def select_good_runs(
    summaries: Summaries, accepted: int | None = None, without: str | None = None
) -> Selection:
    """accepted: the first day, in days since 1970-01-01 UTC, whose runs may be used. without: the
    run_id of a run that is judged by the others.

    Raises UsageError if no device model and number of ranks has enough good runs.
    """
    left_out: list[LeftOut] = []
    notes: list[str] = []
    usable = np.ones(len(summaries), dtype=bool)

    def leave_out(index: int, reason: str) -> None:
        usable[index] = False
        left_out.append(LeftOut(summaries.run_ids[index], summaries.paths[index], reason))

    if without in summaries.run_ids:
        usable[list(summaries.run_ids).index(without)] = False
    if accepted is not None:
        known = summaries.start_us != UNKNOWN_START
        late = usable & known & (summaries.start_us >= accepted * _DAY_US)
        early, undated = int((usable & known & ~late).sum()), int((usable & ~known).sum())
        if early:
            notes.append(f"{counted(early, 'run')} from before {format_night(accepted)} not used")
        if undated:
            notes.append(f"{counted(undated, 'run')} without a date not used")
        usable = late
    for index in np.flatnonzero(usable).tolist():
        if reason := _failure(summaries, index):
            leave_out(index, reason)
    good: list[GoodRuns] = []
    too_few: list[str] = []
    for stratum in np.unique(summaries.stratum).tolist():
        members = np.flatnonzero((summaries.stratum == stratum) & usable)
        if not len(members):
            continue
        what = machine_text(*summaries.strata[stratum])
        table, keys, more_notes = _table(summaries, members)
        if not len(keys):
            too_few.append(f"{what}: no case that half of {counted(len(members), 'run')} have")
            continue
        notes += more_notes
        # Runs of a slow node first, then runs that are slow for their node.
        nodes = [summaries.nodes[n] for n in summaries.node[members].tolist()]
        for by_node in (False, True):
            slow = _slow_runs(table, keys, nodes if by_node else None)
            for row, reason in slow.items():
                leave_out(int(members[row]), reason)
            kept = np.array([row not in slow for row in range(len(members))])
            members, table = members[kept], table[kept]
            nodes = [node for node, keep in zip(nodes, kept.tolist(), strict=True) if keep]
        if missing := runs_missing(nodes):
            too_few.append(_missing_text(what, nodes, missing))
            continue
        enough = np.isfinite(table).sum(axis=0) >= FEWEST_RUNS
        if not enough.any():
            too_few.append(f"{what}: no case that {FEWEST_RUNS} runs have")
            continue
        good.append(
            _good_runs(
                summaries,
                stratum,
                members,
                table[:, enough],
                [key for key, keep in zip(keys, enough.tolist(), strict=True) if keep],
            )
        )
    if not good:
        text = "; ".join(too_few) or "none that is good"
        named = "; ".join(f"{item.path or item.run_id}: {item.reason}" for item in left_out[:3])
        raise UsageError(
            "baseline",
            text,
            f"at least {FEWEST_RUNS} good runs of one device model and number of ranks",
            f"Left out: {named}." if named else "",
        )
    good.sort(key=lambda item: -len(item.runs))
    return Selection(tuple(good), tuple(left_out), tuple(too_few), tuple(dict.fromkeys(notes)))


def _missing_text(what: str, nodes: Sequence[str], missing: int) -> str:
    different = len(set(nodes))
    of_nodes = f" of {counted(different, 'node')}" if different > 1 else ""
    return f"{counted(len(nodes), 'good run')}{of_nodes} of {what}: {missing} more needed"


def _failure(summaries: Summaries, index: int) -> str:
    """Why a run cannot be trusted; '' where nothing speaks against it."""
    own = summaries.run == index
    names = dict(zip(range(len(summaries.keys)), summaries.keys, strict=True))
    for status in (WRONG, FAILED):
        cases = summaries.key[own & (summaries.status == STATUSES.index(status))].tolist()
        if cases:
            first = case_names([names[cases[0]]])[0]
            more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
            return f"{'wrong results' if status == WRONG else 'failed'} in {first}{more}"
    status = RUN_STATUSES[int(summaries.run_status[index])]
    if status != "complete":
        return "the run did not end" if status == "truncated" else f"the run was {status}"
    return "" if np.isfinite(summaries.time_ns[own]).any() else "no case has a time"


def _table(
    summaries: Summaries, members: npt.NDArray[np.intp]
) -> tuple[Floats, list[CaseKey], list[str]]:
    """Log times [R, C] of the cases that at least half of the runs have, and what was left out."""
    row = np.full(len(summaries), -1)
    row[members] = np.arange(len(members))
    kept = (row[summaries.run] >= 0) & np.isfinite(summaries.time_ns)
    numbers, column = np.unique(summaries.key[kept], return_inverse=True)
    table = np.full((len(members), len(numbers)), np.nan)
    table[row[summaries.run[kept]], column] = np.log(summaries.time_ns[kept])
    enough = np.isfinite(table).sum(axis=0) * 2 >= len(members)
    notes = []
    if not enough.all():
        rare = case_names([summaries.keys[k] for k in numbers[~enough].tolist()])
        more = f" and {len(rare) - 3} more" if len(rare) > 3 else ""
        notes.append(
            f"{counted(len(rare), 'case')} left out, which fewer than half of "
            f"{counted(len(members), 'run')} have: {', '.join(rare[:3])}{more}"
        )
    return table[:, enough], [summaries.keys[k] for k in numbers[enough].tolist()], notes


def _slow_runs(
    table: Floats, keys: Sequence[CaseKey], nodes: Sequence[str] | None
) -> dict[int, str]:
    """Rows of the runs that the rule of `torchcoll fleet` accuses, and why.

    nodes: of each run; the difference of a node from the others is removed first. None: it is not.
    """
    count = len(table)
    largest = common_cases(np.isfinite(table))[0]
    slow = {row: "no case in common with the other runs" for row in {*range(count)} - {*largest.tolist()}}
    if nodes is not None:
        if not 1 < len(set(nodes)) < count:
            return {}
        table = table.copy()
        effects = two_way(table).effects
        for node in set(nodes):
            rows = np.array([name == node for name in nodes])
            table[rows] -= np.median(effects[rows])
    if len(largest) < FEWEST_RUNS:
        return slow
    values = table[largest]
    if len(largest) > FEWEST_PEERS:
        names = tuple(str(row) for row in largest.tolist())
        peers = Peers("", 0, names, tuple(keys), values, ({},) * len(names))
        for item in judge_peers(peers, SLOW, ERROR).slow:
            if item.effect > 0:
                where = "all cases" if not item.scope else item.scope
                if item.scope and len(item.cases) == 1:
                    where = case_names(item.cases)[0]
                slow[int(item.node)] = _slow_text(item.effect, where)
        return slow
    effects = two_way(values).effects
    limit = critical_value(len(values), len(values), ERROR * _OF_RUNS) * robust_scale(effects)
    for row, effect in zip(largest.tolist(), effects.tolist(), strict=True):
        if effect > max(limit, math.log1p(SLOW)):
            slow[row] = _slow_text(effect, "all cases")
    return slow


def _slow_text(effect: float, where: str) -> str:
    return f"{100 * math.expm1(effect):.1f} % slower than the other runs in {where}"


def _good_runs(
    summaries: Summaries,
    stratum: int,
    members: npt.NDArray[np.intp],
    table: Floats,
    keys: Sequence[CaseKey],
) -> GoodRuns:
    order = np.argsort(summaries.start_us[members], kind="stable")
    members, table = members[order], table[order]
    starts = summaries.start_us[members].tolist()
    runs = tuple(
        GoodRun(
            summaries.run_ids[index],
            summaries.nodes[summaries.node[index]],
            None if start == UNKNOWN_START else start,
            summaries.paths[index],
        )
        for index, start in zip(members.tolist(), starts, strict=True)
    )
    versions: dict[str, dict[str, None]] = {}
    for number in dict.fromkeys(summaries.environment[members].tolist()):
        for name, value in versions_of(summaries.environments[number]).items():
            versions.setdefault(name, {})[value] = None
    device_name, ranks = summaries.strata[stratum]
    return GoodRuns(
        device_name,
        ranks,
        runs,
        tuple(keys),
        table,
        {name: tuple(values) for name, values in sorted(versions.items())},
    )


def versions_of(facts: Mapping[str, str]) -> dict[str, str]:
    """The recorded facts that name a version: torch, libraries, driver, kernel; no variables."""
    return {
        name: value
        for name, value in facts.items()
        if not name.startswith(_NO_VERSIONS) and not name.isupper()
    }


def drift_of(good: GoodRuns) -> float:
    """How much the mean over the cases changed from the first run to the last, as a difference of
    log times; 0.0 where no steady change is proven or it is below 1 %.

    Kendall's rank correlation with the order in time (p below 1 %), and the slope of Theil and Sen.
    """
    known = np.array([run.start_us is not None for run in good.runs])
    if known.sum() < _FEWEST_FOR_DRIFT:
        return 0.0
    usual = usual_of(good)
    shift = np.array([usual.node_effects.get(run.node, 0.0) for run in good.runs])
    values = (usual.run_effects)[known]
    del shift
    days = np.array([run.start_us or 0 for run in good.runs], dtype=np.float64)[known] / _DAY_US
    if not days[-1] > days[0] or not values.std() > 0:
        return 0.0
    if stats.kendalltau(days, values).pvalue > _DRIFT_P:
        return 0.0
    change = float(stats.theilslopes(values, days).slope * (days[-1] - days[0]))
    return change if abs(change) >= math.log1p(_DRIFT_LEAST) else 0.0
