"""Summaries of many runs as columns: 3.65 million cases of a year fit into 200 MB."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from torchcoll.parts.fleet.records import (
    FAILED,
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


@dataclass(frozen=True)
class Summaries:
    """R runs with C cases in all, as read from files or from a store.

    Per run [R]: run_ids; node, environment, strata (indexes into nodes, environments and strata);
    start_us and received_us (UTC, int64, UNKNOWN_START where not recorded); run_status (index into
    RUN_STATUSES). Per case [C]: run (index), key (index into keys), time_ns (float64, NaN where the
    case has no time that may be compared), status (index into STATUSES).

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
        return replace(
            self,
            run_ids=[self.run_ids[i] for i in indexes.tolist()],
            paths=[self.paths[i] for i in indexes.tolist()],
            node=self.node[indexes],
            environment=self.environment[indexes],
            stratum=self.stratum[indexes],
            start_us=self.start_us[indexes],
            received_us=self.received_us[indexes],
            run_status=self.run_status[indexes],
            run=new_index[self.run[kept]],
            key=self.key[kept],
            time_ns=self.time_ns[kept],
            status=self.status[kept],
        )


@dataclass(frozen=True)
class RunOverview:
    """What all runs of an input say together, where only some of them are read.

    nights: those that have a run, ascending, in days since 1970-01-01. nodes: first and last night
    of each by its name, without runs over several hosts. undated: how many runs have no time at
    all. ahead: the nodes whose clock was over 5 minutes ahead of the receipt.
    """

    nights: tuple[int, ...]
    nodes: Mapping[str, tuple[int, int]]
    undated: int
    ahead: tuple[str, ...]


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


@dataclass
class SummariesBuilder:
    """Collects summaries run by run; ``build`` returns them as columns.

    A run that was added before (same run_id) is skipped and counted in ``doubled``.
    """

    doubled: int = 0
    _run_ids: dict[str, str] = field(default_factory=dict)
    _nodes: Interned = field(default_factory=Interned)
    _environments: Interned = field(default_factory=Interned)
    _strata: Interned = field(default_factory=Interned)
    _keys: Interned = field(default_factory=Interned)
    _run_columns: tuple[array[Any], ...] = field(
        default_factory=lambda: tuple(array("q") for _ in range(6))
    )
    _case_columns: tuple[array[Any], ...] = field(
        default_factory=lambda: (array("q"), array("q"), array("d"), array("b"))
    )

    def add(self, run: RunSummary, cases: Iterable[CaseSummary]) -> None:
        if run.run_id in self._run_ids:
            self.doubled += 1
            return
        index = len(self._run_ids)
        self._run_ids[run.run_id] = run.path
        values = (
            self._nodes.number(run.node),
            self._environments.number(tuple(sorted(run.facts.items())), dict(run.facts)),
            self._strata.number((run.device_name, run.ranks)),
            UNKNOWN_START if run.start_us is None else run.start_us,
            UNKNOWN_START if run.received_us is None else run.received_us,
            RUN_STATUSES.index(run.status if run.status in RUN_STATUSES else "failed"),
        )
        for column, value in zip(self._run_columns, values, strict=True):
            column.append(value)
        for case in cases:
            usable = case.status == OK and case.time_ns is not None and case.time_ns > 0
            figures = (
                index,
                self._keys.number(case.key),
                case.time_ns if usable else float("nan"),
                STATUSES.index(case.status),
            )
            for column, figure in zip(self._case_columns, figures, strict=True):
                column.append(figure)

    def build(self) -> Summaries:
        node, environment, stratum, start, received, status = (
            np.array(column, dtype=np.int64) for column in self._run_columns
        )
        run, key, time_ns, case_status = self._case_columns
        return Summaries(
            list(self._run_ids),
            list(self._run_ids.values()),
            self._nodes.values,
            self._environments.values,
            self._strata.values,
            self._keys.values,
            node.astype(np.int32),
            environment.astype(np.int32),
            stratum.astype(np.int32),
            start,
            received,
            status.astype(np.int8),
            np.array(run, dtype=np.int32),
            np.array(key, dtype=np.int32),
            np.array(time_ns, dtype=np.float64),
            np.array(case_status, dtype=np.int8),
        )
