"""Which runs stand for how a machine should be, and the file that keeps them.

Runs that failed, gave wrong results or were slow are left out and named. The file has the times of
the runs that are left; what is usual is computed from them whenever it is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from torchcoll.core.errors import UnreadableError, UnusableError, UsageError
from torchcoll.core.opening import open_to_read
from torchcoll.core.units import format_change, shorten
from torchcoll.parts.fleet.address import MARK, is_good_runs, parse_address
from torchcoll.parts.fleet.change_text import case_names, machine_text
from torchcoll.parts.fleet.fleet_state import subsets_of
from torchcoll.parts.fleet.good_runs import (
    FEWEST_NODES,
    FEWEST_RUNS,
    THRESHOLD,
    Baseline,
    CannotJudge,
    GoodRun,
    GoodRuns,
    baseline_of,
)
from torchcoll.parts.fleet.night_judgements import (
    Acceptance,
    nightly_of_runs,
    stored_acceptances,
)
from torchcoll.parts.fleet.noise import Floats, quiet_median
from torchcoll.parts.fleet.peers import outlying
from torchcoll.parts.fleet.records import FAILED, WRONG, CaseKey
from torchcoll.parts.fleet.series import RUN_STATUSES, STATUSES, UNKNOWN_START, Summaries
from torchcoll.parts.fleet.sources import store_of, summaries_of

_VERSION = 1
_MOST_BYTES = 64 << 20
_EXPECTED = "a file that torchcoll check --learn wrote"
_ERROR = 0.01  # probability that a healthy run of a set is left out as slow
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
class Learned:
    """Baselines by device model and number of ranks, most runs first, and what was left out.

    too_few: sets of runs that are too few for a baseline, as a clause each. answers: run_id -> what
    ``nightly`` says of the run, '' for nothing.
    """

    baselines: tuple[Baseline, ...]
    left_out: tuple[RunLeftOut, ...] = ()
    too_few: tuple[str, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)


def learn_from(paths: Sequence[str]) -> Learned:
    """The baselines of the good runs of files, or of a store with what was accepted in it."""
    store = store_of(paths)
    after = {} if store is None else stored_acceptances(parse_address(store))
    return learn(summaries_of(paths), after)


def learn(
    summaries: Summaries, after: Mapping[int, Sequence[Acceptance]] = MappingProxyType({})
) -> Learned:
    """The baselines of all good runs. after: what was accepted after each night.

    Raises UsageError if no device model and number of ranks has enough good runs.
    """
    nightly = nightly_of_runs(summaries, after)
    reasons = nightly.not_usual | _failures(summaries)
    usable = np.ones(len(summaries), dtype=bool)
    usable[list(reasons)] = False
    baselines: list[Baseline] = []
    too_few: list[str] = []
    for stratum in np.unique(summaries.stratum[usable]).tolist():
        members = np.flatnonzero((summaries.stratum == stratum) & usable)
        table, keys = _table(summaries, members)
        # First runs that are slow among all runs, then runs that are slow for their node.
        for by_node in (False, True):
            number = np.unique(summaries.node[members], return_inverse=True)[1]
            if by_node and not 0 < number.max(initial=0) < len(members) - 1:
                continue  # one node, or one run of each
            slow = _slow_runs(table, keys, number if by_node else None)
            slow = {r: why for r, why in slow.items() if int(members[r]) not in nightly.accepted}
            reasons |= {int(members[row]): reason for row, reason in slow.items()}
            kept = np.array([row not in slow for row in range(len(members))], dtype=bool)
            members, table = members[kept], table[kept]
        good = _good_runs(summaries, stratum, members, table, keys)
        try:
            baselines.append(baseline_of(good))
        except CannotJudge as error:
            what = machine_text(good.device_name, good.ranks)
            too_few.append(f"{error.value} of {what}, {error.expected} needed")
    left_out = tuple(
        RunLeftOut(summaries.run_ids[index], summaries.paths[index], reason)
        for index, reason in reasons.items()
    )
    if not baselines:
        texts = [f"{each.path or each.run_id}: {each.reason}" for each in left_out]
        named = shorten(texts, 3, "; and {} more", between="; ")
        refusal = UsageError if too_few else UnusableError
        raise refusal(
            "baseline",
            "; ".join(too_few) or "no good run",
            f"at least {FEWEST_RUNS} good runs of one device model and number of ranks",
            f"Left out: {named}." if named else "",
        )
    baselines.sort(key=lambda each: -len(each.good.runs))
    answers = {summaries.run_ids[index]: text for index, text in nightly.answers.items()}
    return Learned(tuple(baselines), left_out, tuple(too_few), answers)


def _failures(summaries: Summaries) -> dict[int, str]:
    """Index -> why a run cannot be trusted, for the runs for which something speaks against it."""
    reasons: dict[int, str] = {}
    for status, what in ((WRONG, "wrong results"), (FAILED, "failed")):
        bad = summaries.status == STATUSES.index(status)
        runs, first, counts = np.unique(summaries.run[bad], return_index=True, return_counts=True)
        for run, key, count in zip(
            runs.tolist(), summaries.key[bad][first].tolist(), counts.tolist(), strict=True
        ):
            case = case_names([summaries.keys[key]])[0]
            more = f" and {count - 1} more" if count > 1 else ""
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
) -> tuple[Floats, tuple[CaseKey, ...]]:
    """Log times [R, C] of the cases that at least half of the runs have."""
    row = np.full(len(summaries), -1)
    row[members] = np.arange(len(members))
    kept = (row[summaries.run] >= 0) & np.isfinite(summaries.time_ns)
    numbers, column = np.unique(summaries.key[kept], return_inverse=True)
    table = np.full((len(members), len(numbers)), np.nan)
    table[row[summaries.run[kept]], column] = np.log(summaries.time_ns[kept])
    enough = np.isfinite(table).sum(axis=0) * 2 >= len(members)
    return table[:, enough], tuple(summaries.keys[key] for key in numbers[enough].tolist())


def _slow_runs(
    table: Floats, keys: Sequence[CaseKey], node: npt.NDArray[np.intp] | None
) -> dict[int, str]:
    """Row -> why a run is left out: it is slower than the other runs, as a node is slower than its
    peers in `torchcoll nightly`.

    node [R]: the number of each run's node, whose difference from the others is removed first.
    None: it is not removed.
    """
    without = np.flatnonzero(~np.isfinite(table).any(axis=1))
    slow = dict.fromkeys(without.tolist(), "no case in common with the other runs")
    left = table - quiet_median(table)
    if len(table) - len(slow) < FEWEST_NODES:
        return slow
    if node is not None:
        of_runs = pd.Series(quiet_median(left, axis=1))
        left = left - of_runs.groupby(node).transform("median").to_numpy()[:, None]
    scopes = [(subset.name or "all cases", subset.cases) for subset in subsets_of(keys)]
    if len(keys) > 1:
        scopes += zip(case_names(keys), np.eye(len(keys), dtype=bool), strict=True)
    for where, cases in scopes:
        effects = quiet_median(left[:, cases], axis=1)
        ratios = outlying(effects, _ERROR / len(scopes))
        for row in np.flatnonzero((ratios > 1) & (effects > math.log1p(THRESHOLD))).tolist():
            change = format_change(math.exp(float(effects[row])))
            slow.setdefault(row, f"{change} than the other runs in {where}")
    return slow


def _good_runs(
    summaries: Summaries,
    stratum: int,
    members: npt.NDArray[np.intp],
    table: Floats,
    keys: tuple[CaseKey, ...],
) -> GoodRuns:
    order = np.argsort(summaries.start_us[members], kind="stable")
    members, table = members[order], table[order]
    starts = summaries.start_us[members].tolist()
    runs = tuple(
        GoodRun(
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
    return GoodRuns(
        *summaries.strata[stratum],
        runs,
        keys,
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


def format_good_runs(machines: Sequence[GoodRuns]) -> str:
    """The text of the file. Times are in ns, null where a run lacks a case."""
    document = {
        MARK: _VERSION,
        "machines": [
            {
                "device_name": good.device_name,
                "ranks": good.ranks,
                "versions": good.versions,
                "cases": [key.to_json() for key in good.keys],
                "runs": [
                    {
                        **vars(run),
                        "times_ns": [
                            None if math.isnan(time) else round(math.exp(time), 3) for time in times
                        ],
                    }
                    for run, times in zip(good.runs, good.log_times.tolist(), strict=True)
                ],
            }
            for good in machines
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def read_good_runs(path: str | os.PathLike[str]) -> tuple[list[GoodRuns], Mapping[str, str]]:
    """The good runs of a file, a folder, a glob or a store, and what ``nightly`` says of its runs.

    Raises UnreadableError for what cannot be read, UsageError if there are too few good runs.
    """
    if not is_good_runs(path):
        learned = learn_from([os.fspath(path)])
        return [baseline.good for baseline in learned.baselines], learned.answers
    with open_to_read(Path(path)) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise UnreadableError("baseline", path, f"a file of at most {_MOST_BYTES >> 20} MiB")
    try:
        document = json.loads(content)
        if document[MARK] != _VERSION:
            raise ValueError(f"version {document[MARK]} and not {_VERSION}")
        return [_machine(machine) for machine in document["machines"]], {}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UnreadableError("baseline", f"{path} ({why})", _EXPECTED) from None


def _machine(data: Mapping[str, Any]) -> GoodRuns:
    """Raises KeyError, TypeError, ValueError or AttributeError for what cannot be."""
    times = [run["times_ns"] for run in data["runs"]]
    keys = tuple(map(CaseKey.from_json, data["cases"]))
    times_ns = np.array(times, dtype=np.float64).reshape(len(times), len(keys))
    if not len(keys) or len(set(keys)) != len(keys) or np.nanmin(times_ns) <= 0:
        raise ValueError("no case, one twice, or a time that is not above 0")
    return GoodRuns(
        str(data["device_name"]),
        int(data["ranks"]),
        tuple(
            GoodRun(str(run["run_id"]), str(run["node"]), run["start_us"]) for run in data["runs"]
        ),
        keys,
        np.log(times_ns),
        {name: tuple(map(str, values)) for name, values in data["versions"].items()},
    )
