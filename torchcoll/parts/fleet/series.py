"""Summaries of many runs as columns: 3.65 million cases of a year fit into 200 MB; and to which
night a run belongs, by UTC.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from torchcoll.core.errors import UsageError
from torchcoll.parts.fleet.records import (
    CLOCK_OFF_US,
    DAY_US,
    FAILED,
    NIGHT_START_US,
    OK,
    SKIPPED,
    WRONG,
    CaseKey,
    CaseSummary,
    RunSummary,
)

STATUSES = (OK, WRONG, FAILED, SKIPPED)  # a case's status column holds an index into it
RUN_STATUSES = ("complete", "interrupted", "failed", "truncated")
UNKNOWN_START = np.iinfo(np.int64).min  # start_us of a run whose file does not say when it began


# The columns of Summaries by run and by case, in this order, and their types.
_OF_RUN = {
    "node": np.int32,
    "environment": np.int32,
    "stratum": np.int32,
    "start_us": np.int64,
    "received_us": np.int64,
    "run_status": np.int8,
}
_OF_CASE = {
    "run": np.int32,
    "key": np.int32,
    "time_ns": np.float64,
    "first_ns": np.float32,
    "status": np.int8,
}


@dataclass(frozen=True)
class Summaries:
    """R runs with C cases in all, as read from files or from a store.

    Per run [R]: run_ids; node, environment, strata (indexes into nodes, environments and strata);
    start_us and received_us (UTC, int64, UNKNOWN_START where not recorded); run_status (index into
    RUN_STATUSES). Per case [C]: run (index), key (index into keys), time_ns (float64, NaN where the
    case has no time that may be compared), first_ns (float32, time of the first call), status
    (index into STATUSES).

    nodes: names; '' is a run over several hosts. environments: facts by name, shared by many runs.
    strata: (device name, ranks): only runs of one stratum are peers.
    """

    run_ids: Sequence[str]
    paths: Sequence[str]
    nodes: Sequence[str]
    environments: Sequence[Mapping[str, str]]
    strata: Sequence[tuple[str, int]]
    keys: Sequence[CaseKey]
    node: np.ndarray
    environment: np.ndarray
    stratum: np.ndarray
    start_us: np.ndarray
    received_us: np.ndarray
    run_status: np.ndarray
    run: np.ndarray
    key: np.ndarray
    time_ns: np.ndarray
    first_ns: np.ndarray
    status: np.ndarray

    def __len__(self) -> int:
        """How many runs."""
        return len(self.run_ids)

    def select(self, runs: np.ndarray) -> Summaries:
        """Only the runs of a mask or of indexes in ascending order [R], with their cases."""
        indexes = np.flatnonzero(runs) if runs.dtype == bool else runs
        new_index = np.full(len(self), -1, dtype=np.int32)
        new_index[indexes] = np.arange(len(indexes), dtype=np.int32)
        kept = new_index[self.run] >= 0
        columns = {name: getattr(self, name)[indexes] for name in _OF_RUN}
        columns |= {name: getattr(self, name)[kept] for name in _OF_CASE}
        columns["run"] = new_index[columns["run"]]
        return replace(
            self,
            run_ids=[self.run_ids[i] for i in indexes.tolist()],
            paths=[self.paths[i] for i in indexes.tolist()],
            **columns,
        )


@dataclass(frozen=True)
class RunOverview:
    """What all runs of an input say together. nights: those that have a run, ascending, in days
    since 1970-01-01. nodes: first and last night of each. undated: how many runs have no time.
    """

    nights: tuple[int, ...]
    nodes: Mapping[str, tuple[int, int]]
    undated: int


class Interned:
    """Numbers hashable values in the order in which they first come."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._index: dict[Any, int] = {}

    def number(self, identity: Any, value: Any = None) -> int:
        index = self._index.setdefault(identity, len(self.values))
        if index == len(self.values):
            self.values.append(identity if value is None else value)
        return index


class SummariesBuilder:
    """Collects summaries run by run; ``build`` returns them as columns."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.nodes, self.environments, self.strata, self.keys = (Interned() for _ in range(4))
        self._run_columns = tuple(array("q") for _ in range(6))
        self._case_columns = (array("q"), array("q"), array("d"), array("f"), array("b"))

    def add(self, run: RunSummary, cases: Iterable[CaseSummary]) -> None:
        """A run that was added before (same run_id) is skipped."""
        if run.run_id in self.paths:
            return
        facts = self.environments.number(tuple(sorted(run.facts.items())), dict(run.facts))
        index = self.add_run(run, facts)
        for case in cases:
            key = self.keys.number(case.key)
            self.add_case(index, key, case.status, case.time_ns, case.first_call_ns)

    def add_run(self, run: Any, environment: int) -> int:
        """Returns the index of the run. run: a RunSummary, or a row of the runs of a store.
        environment: a number of ``environments``.
        """
        self.paths[run.run_id] = run.path
        values = (
            self.nodes.number(run.node),
            environment,
            self.strata.number((run.device_name, run.ranks)),
            UNKNOWN_START if run.start_us is None else run.start_us,
            UNKNOWN_START if run.received_us is None else run.received_us,
            RUN_STATUSES.index(run.status if run.status in RUN_STATUSES else "failed"),
        )
        for column, value in zip(self._run_columns, values, strict=True):
            column.append(value)
        return len(self.paths) - 1

    def add_case(
        self, run: int, key: int, status: str, time_ns: float | None, first_ns: float | None
    ) -> None:
        """run: index of the run. key: a number of ``keys``."""
        runs, keys, times, first_calls, statuses = self._case_columns
        runs.append(run)
        keys.append(key)
        for column, value in ((times, time_ns), (first_calls, first_ns)):
            usable = status == OK and value is not None and value > 0
            column.append(value if usable and value is not None else math.nan)
        statuses.append(STATUSES.index(status))

    def build(self) -> Summaries:
        """With nodes by name and cases by collective and size, so that answers do not depend on
        the order of files in a folder, or of rows in a store.
        """

        def size_order(index: int) -> tuple[str, int, str]:
            key = keys[index]
            return key.case.collective, key.case.size_bytes, key.sha256

        nodes, keys = self.nodes.values, self.keys.values
        by_name = sorted(range(len(nodes)), key=nodes.__getitem__)
        by_size = sorted(range(len(keys)), key=size_order)
        types = (*_OF_RUN.values(), *_OF_CASE.values())
        columns = zip((*self._run_columns, *self._case_columns), types, strict=True)
        summaries = Summaries(
            list(self.paths),
            list(self.paths.values()),
            [nodes[index] for index in by_name],
            self.environments.values,
            self.strata.values,
            [keys[index] for index in by_size],
            *(np.array(column, dtype=kind) for column, kind in columns),
        )
        return replace(
            summaries,
            node=np.argsort(by_name).astype(np.int32)[summaries.node],
            key=np.argsort(by_size).astype(np.int32)[summaries.key],
        )


Ints = npt.NDArray[np.int64]
NO_NIGHT = np.iinfo(np.int64).min  # neither start nor receipt of the run is known
_EPOCH = date(1970, 1, 1)


def parse_night(text: str, what: str = "night") -> int:
    """The number of a night, in days since 1970-01-01, from its date. Raises UsageError."""
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise UsageError(what, text, "a date such as 2026-11-22") from None


def format_night(night: int) -> str:
    """The date on which the night begins."""
    return (_EPOCH + timedelta(days=int(night))).isoformat()


def nights_of(summaries: Summaries) -> Ints:
    """The night of each run [R], in days since 1970-01-01.

    A run whose start is not recorded, or over 5 minutes later than its receipt because the clock of
    its host is wrong, is of the night in which it was received.
    """
    start, received = summaries.start_us, summaries.received_us
    ahead = (received != UNKNOWN_START) & (start > received + CLOCK_OFF_US)
    when = np.where((start == UNKNOWN_START) | ahead, received, start)
    return np.where(when == UNKNOWN_START, NO_NIGHT, (when - NIGHT_START_US) // DAY_US)


def overview_of(summaries: Summaries) -> RunOverview:
    nights = nights_of(summaries)
    dated = nights != NO_NIGHT
    nights, node = nights[dated], summaries.node[dated]
    return RunOverview(
        tuple(np.unique(nights).tolist()),
        {
            name: (int(of_node.min()), int(of_node.max()))
            for number, name in enumerate(summaries.nodes)
            if name and len(of_node := nights[node == number])
        },
        int((~dated).sum()),
    )
