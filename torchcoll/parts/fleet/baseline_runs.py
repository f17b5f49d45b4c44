"""Which runs may stand for how a machine should be: those that failed, gave wrong results or were
slow compared with the others are left out and named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from torchcoll.core.errors import UnusableError, UsageError, one_line
from torchcoll.core.units import counted, format_change, plural, shorten
from torchcoll.parts.fleet import good_runs
from torchcoll.parts.fleet.change_text import case_names
from torchcoll.parts.fleet.fleet_state import subsets_of
from torchcoll.parts.fleet.night_judgements import runs_of_incidents
from torchcoll.parts.fleet.noise import Floats, quiet_median
from torchcoll.parts.fleet.peers import outlying
from torchcoll.parts.fleet.records import FAILED, WRONG, CaseKey
from torchcoll.parts.fleet.series import (
    RUN_STATUSES,
    STATUSES,
    UNKNOWN_START,
    Summaries,
    format_night,
)
from torchcoll.stats.distributions import kendall_p, median_slope

_ERROR = 0.01  # probability that a healthy run of a set is left out as slow
_DAY_US = 86_400_000_000
_NIGHT_START_US = _DAY_US // 2
_DRIFT_P = 0.01
_DRIFT_LEAST = 0.01  # over the whole time: less is no warning
_FEWEST_FOR_DRIFT = 8
_OURS = "torchcoll"  # the recorded source of a run that torchcoll measured
_STATUS_TEXTS = {
    "truncated": "the run did not end",
    "failed": "the run failed",
    "interrupted": "the run was interrupted",
}
# Recorded facts that are no versions: where a run was made, and what the machine is called.
_NO_VERSIONS = ("label=", "device_name", "cores", "threads", "cpu", "source", "python")


@dataclass(frozen=True)
class RunLeftOut:
    """A run that is not in the baseline, and why."""

    run_id: str
    path: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """Baselines by device model and number of ranks, most runs first, and what was left out.

    too_few: sets of runs that are too few for a baseline, as a clause each. notes: cases left out,
    and what makes a baseline doubtful, as a sentence each.
    """

    baselines: tuple[good_runs.Baseline, ...]
    left_out: tuple[RunLeftOut, ...] = ()
    too_few: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def machine_text(device_name: str, ranks: int) -> str:
    return f"{one_line(device_name) or 'device not recorded'}, {counted(ranks, 'rank')}"


def select_baselines(
    summaries: Summaries,
    accepted: int | None = None,
    without: str | None = None,
    threshold: float = good_runs.THRESHOLD,
    false_alarms: float = good_runs.FALSE_ALARMS,
    replaced: Sequence[good_runs.Baseline] = (),
) -> Selection:
    """The baselines of all good runs.

    accepted: the first day, in days since 1970-01-01 UTC, whose runs may be used. without: the
    run_id of a run that is to be judged, and does not count. threshold, false_alarms: as of
    Baseline. replaced: an earlier baseline, by which no run may be slow.

    Raises UsageError if no device model and number of ranks has enough good runs.
    """
    left_out: list[RunLeftOut] = []
    notes: list[str] = []
    usable = np.array([run_id != without for run_id in summaries.run_ids], dtype=bool)
    if accepted is not None:
        dated = summaries.start_us != UNKNOWN_START
        late = usable & dated & (summaries.start_us >= accepted * _DAY_US)
        early, undated = int((usable & dated & ~late).sum()), int((usable & ~dated).sum())
        if early:
            notes.append(f"{counted(early, 'run')} from before {format_night(accepted)} not used")
        if undated:
            notes.append(f"{counted(undated, 'run')} without a date not used")
        usable = late

    def leave_out(index: int, reason: str) -> None:
        usable[index] = False
        left_out.append(RunLeftOut(summaries.run_ids[index], summaries.paths[index], reason))

    for index, reason in _failures(summaries).items():
        if usable[index]:
            leave_out(index, reason)
    chosen = np.flatnonzero(usable)
    for index, name in runs_of_incidents(summaries.select(usable), _NIGHT_START_US).items():
        leave_out(int(chosen[index]), f"its node was slow ({name}, torchcoll nightly)")
    baselines: list[good_runs.Baseline] = []
    too_few: list[str] = []
    for stratum in np.unique(summaries.stratum).tolist():
        members = np.flatnonzero((summaries.stratum == stratum) & usable)
        if not len(members):
            continue
        what = machine_text(*summaries.strata[stratum])
        table, keys, more_notes = _table(summaries, members)
        notes += more_notes
        kind = summaries.strata[stratum]
        earlier = next((b for b in replaced if (b.device_name, b.ranks) == kind), None)
        nodes = [summaries.nodes[number] for number in summaries.node[members].tolist()]
        run_ids = [summaries.run_ids[index] for index in members.tolist()]
        slow = {} if earlier is None else _slow_by(earlier, table, keys, nodes, run_ids)
        for row, reason in slow.items():
            leave_out(int(members[row]), reason)
        kept = np.array([row not in slow for row in range(len(members))], dtype=bool)
        members, table = members[kept], table[kept]
        # First runs that are slow among all runs, then runs that are slow for their node.
        for by_node in (False, True):
            number = np.unique(summaries.node[members], return_inverse=True)[1]
            if by_node and not 0 < number.max(initial=0) < len(members) - 1:
                continue  # one node, or one run of each
            slow = _slow_runs(table, keys, number if by_node else None, threshold)
            for row, reason in slow.items():
                leave_out(int(members[row]), reason)
            kept = np.array([row not in slow for row in range(len(members))], dtype=bool)
            members, table = members[kept], table[kept]
        nodes = [summaries.nodes[number] for number in summaries.node[members].tolist()]
        if missing := good_runs.runs_missing(nodes):
            of_nodes = f" of {counted(len(set(nodes)), 'node')}" if len(set(nodes)) > 1 else ""
            count = counted(len(nodes), "good run")
            too_few.append(f"{count}{of_nodes} of {what}, {missing} more needed")
            continue
        good = _good_runs(summaries, stratum, members, table, keys)
        try:
            baseline = good_runs.baseline_of(good, threshold, false_alarms)
        except good_runs.CannotJudge as error:
            too_few.append(f"{what}: {error}, {error.expected} needed")
            continue
        if rare := [key for key in keys if key not in {case.key for case in baseline.cases}]:
            names = shorten(case_names(rare), 3)
            notes.append(f"{counted(len(rare), 'case')} left out, with too few runs: {names}")
        baselines.append(baseline)
        notes += [f"{what}: {text}" for text in _doubts(good, baseline)]
    if not baselines:
        reasons = [f"{item.path or item.run_id}: {item.reason}" for item in left_out]
        named = shorten(reasons, 3, "; and {} more", between="; ")
        refusal = UsageError if too_few or accepted is not None else UnusableError
        raise refusal(
            "baseline",
            "; ".join(too_few) or "no good run",
            f"at least {good_runs.FEWEST_RUNS} good runs of one device model and number of ranks",
            f"Left out: {named}." if named else "",
        )
    baselines.sort(key=lambda item: -len(item.run_ids))
    return Selection(tuple(baselines), tuple(left_out), tuple(too_few), tuple(dict.fromkeys(notes)))


def _failures(summaries: Summaries) -> dict[int, str]:
    """Index -> why a run cannot be trusted, for the runs for which something speaks against it."""
    reasons: dict[int, str] = {}
    for status in (WRONG, FAILED):
        bad = summaries.status == STATUSES.index(status)
        runs, first, counts = np.unique(summaries.run[bad], return_index=True, return_counts=True)
        for run, key, count in zip(
            runs.tolist(), summaries.key[bad][first].tolist(), counts.tolist(), strict=True
        ):
            case = case_names([summaries.keys[key]])[0]
            more = f" and {count - 1} more" if count > 1 else ""
            what = "wrong results" if status == WRONG else "failed"
            reasons.setdefault(run, f"{what} in {case}{more}")
    for run in np.flatnonzero(summaries.run_status != RUN_STATUSES.index("complete")).tolist():
        status_of_run = RUN_STATUSES[int(summaries.run_status[run])]
        facts = summaries.environments[summaries.environment[run]]
        # The output of other tools does not say whether the run ended.
        if status_of_run != "truncated" or facts.get("source", _OURS) == _OURS:
            reasons.setdefault(run, _STATUS_TEXTS[status_of_run])
    timed = np.zeros(len(summaries), dtype=bool)
    timed[summaries.run[np.isfinite(summaries.time_ns)]] = True
    for run in np.flatnonzero(~timed).tolist():
        reasons.setdefault(run, "no case has a time")
    return dict(sorted(reasons.items()))


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
        notes.append(
            f"{counted(len(rare), 'case')} left out, which fewer than half of "
            f"{counted(len(members), 'run')} have: {shorten(rare, 3)}"
        )
    return table[:, enough], [summaries.keys[k] for k in numbers[enough].tolist()], notes


def common_cases(present: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.intp]]:
    """The sets of nodes that are connected by common cases, largest first. present: [N, C]."""
    unseen = np.ones(len(present), dtype=bool)
    sets = []
    while unseen.any():
        members = np.zeros(len(present), dtype=bool)
        cases = np.zeros(present.shape[1], dtype=bool)
        reached = np.argmax(unseen, keepdims=True)  # nodes whose cases have not been followed yet
        while len(reached):
            members[reached] = True
            new_cases = np.flatnonzero(present[reached].any(axis=0) & ~cases)
            cases[new_cases] = True
            reached = np.flatnonzero(present[:, new_cases].any(axis=1) & ~members)
        unseen &= ~members
        sets.append(np.flatnonzero(members))
    return sorted(sets, key=len, reverse=True)


def _slow_runs(
    table: Floats, keys: Sequence[CaseKey], node: npt.NDArray[np.intp] | None, threshold: float
) -> dict[int, str]:
    """Row -> why a run is left out: it is slower than the other runs, as a node is slower than its
    peers in `torchcoll nightly`.

    node [R]: the number of each run's node, whose difference from the others is removed first.
    None: it is not removed.
    """
    count = len(table)
    if not count:
        return {}
    largest = common_cases(np.isfinite(table))[0]
    outside = {*range(count)} - {*largest.tolist()}
    slow = {row: "no case in common with the other runs" for row in sorted(outside)}
    left = table[largest] - quiet_median(table[largest])
    if node is not None:
        of_runs = pd.Series(quiet_median(left, axis=1))
        left = left - of_runs.groupby(node[largest]).transform("median").to_numpy()[:, None]
    if len(largest) < good_runs.FEWEST_NODES:
        return slow
    scopes = [(subset.name or "all cases", subset.cases) for subset in subsets_of(keys)]
    if len(keys) > 1:
        each = np.eye(len(keys), dtype=bool)
        scopes += list(zip(case_names(keys), each, strict=True))
    for where, cases in scopes:
        effects = quiet_median(left[:, cases], axis=1)
        ratios = outlying(effects, _ERROR / len(scopes))
        for index in np.flatnonzero((ratios > 1) & (effects > math.log1p(threshold))).tolist():
            change = format_change(math.exp(float(effects[index])))
            slow.setdefault(int(largest[index]), f"{change} than the other runs in {where}")
    return slow


def _slow_by(
    earlier: good_runs.Baseline,
    table: Floats,
    keys: Sequence[CaseKey],
    nodes: Sequence[str],
    run_ids: Sequence[str],
) -> dict[int, str]:
    """Row -> why a run is left out, for the runs that an earlier baseline calls slow."""
    slow: dict[int, str] = {}
    members = {*earlier.run_ids}
    for row, (node, run_id) in enumerate(zip(nodes, run_ids, strict=True)):
        if run_id in members:
            continue
        times_ns = {
            key: math.exp(value)
            for key, value in zip(keys, table[row].tolist(), strict=True)
            if math.isfinite(value)
        }
        try:
            judged = good_runs.judge_new_run(earlier, node, times_ns)
        except good_runs.CannotJudge:
            continue
        if judged.slow:
            effect, where = judged.effect, "all cases"
            if not judged.slow_overall:
                effect, where = judged.cases[0].effect, case_names([judged.cases[0].key])[0]
            slow[row] = (
                f"{format_change(math.exp(effect))} in {where} than in the baseline that is "
                "replaced (--accept DATE begins a new one)"
            )
    return slow


def _good_runs(
    summaries: Summaries,
    stratum: int,
    members: npt.NDArray[np.intp],
    table: Floats,
    keys: Sequence[CaseKey],
) -> good_runs.GoodRuns:
    order = np.argsort(summaries.start_us[members], kind="stable")
    members, table = members[order], table[order]
    starts = summaries.start_us[members].tolist()
    runs = tuple(
        good_runs.GoodRun(
            summaries.run_ids[index],
            summaries.nodes[summaries.node[index]],
            None if start == UNKNOWN_START else start,
        )
        for index, start in zip(members.tolist(), starts, strict=True)
    )
    versions: dict[str, dict[str, None]] = {}
    for number in dict.fromkeys(summaries.environment[members].tolist()):
        for name, value in versions_of(summaries.environments[number]).items():
            versions.setdefault(name, {})[value] = None
    device_name, ranks = summaries.strata[stratum]
    return good_runs.GoodRuns(
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


def _doubts(good: good_runs.GoodRuns, baseline: good_runs.Baseline) -> list[str]:
    """What makes a baseline doubtful: copies, runs of one day, and a steady change."""
    doubts = []
    copies = len(good.log_times) - len(np.unique(np.nan_to_num(good.log_times), axis=0))
    if copies:
        verb = plural(copies, "has", "have")
        doubts.append(
            f"{counted(copies, 'run')} {verb} exactly the times of another run: copies make the "
            "spread too small"
        )
    first, last = baseline.first_us, baseline.last_us
    if first is not None and last is not None and last - first < _DAY_US:
        doubts.append(
            "all runs are of one day: what changes from day to day is not in the spread, and the "
            "false alarms will be more"
        )
    if change := drift_of(good, baseline):
        doubts.append(
            f"the runs became {format_change(math.exp(change))} from the first to the last, and "
            "the spread contains that"
        )
    return doubts


def drift_of(good: good_runs.GoodRuns, baseline: good_runs.Baseline) -> float:
    """How much the mean over the cases changed from the first run to the last, as a difference of
    log times; 0.0 where no steady change is proven or it is below 1 %.

    Kendall's rank correlation with the time (p below 1 %), and the slope of Theil and Sen.
    """
    dated = np.array([run.start_us is not None for run in good.runs], dtype=bool)
    if dated.sum() < _FEWEST_FOR_DRIFT:
        return 0.0
    kept = [good.keys.index(case.key) for case in baseline.cases]
    levels = np.log([case.usual_ns for case in baseline.cases])
    effects = np.array([baseline.nodes[run.node].effects for run in good.runs])
    spreads = np.array([case.spread for case in baseline.cases])
    values = good_runs.mean_over_cases(good.log_times[:, kept] - levels - effects, spreads)[dated]
    days = np.array([run.start_us or 0 for run in good.runs], dtype=np.float64)[dated] / _DAY_US
    if not days[-1] > days[0] or not values.std() > 0:
        return 0.0
    if kendall_p(days, values) > _DRIFT_P:
        return 0.0
    change = median_slope(days, values) * float(days[-1] - days[0])
    return change if abs(change) >= math.log1p(_DRIFT_LEAST) else 0.0
