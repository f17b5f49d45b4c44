"""Summaries of many runs as columns: 3.65 million cases of a year fit into 200 MB; and to which
night a run belongs, by UTC.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from torchcoll.core.errors import UsageError
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


Ints = npt.NDArray[np.int64]
NO_NIGHT = np.iinfo(np.int64).min  # neither start nor receipt of the run is known
_DAY_US = 86_400_000_000
_CLOCK_OFF_US = 300_000_000  # 5 minutes: more than any transfer is early
_EPOCH = date(1970, 1, 1)


def parse_night_start(text: str) -> int:
    """Microseconds after midnight UTC at which a night begins, from ``HH:MM``.

    Raises UsageError for anything else.
    """
    hours, colon, minutes = text.partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and len(text) <= 5):
        raise UsageError("night-start", text, "a time of day in UTC such as 12:00")
    if int(hours) > 23 or int(minutes) > 59:
        raise UsageError("night-start", text, "a time of day in UTC from 00:00 to 23:59")
    return (int(hours) * 60 + int(minutes)) * 60_000_000


def parse_night(text: str, what: str = "night") -> int:
    """The number of a night, in days since 1970-01-01, from its date. Raises UsageError."""
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise UsageError(what, text, "a date such as 2026-11-22") from None


def format_night(night: int) -> str:
    """The date on which the night begins."""
    return (_EPOCH + timedelta(days=int(night))).isoformat()


def ahead_of_receipt(summaries: Summaries) -> npt.NDArray[np.bool_]:
    """Runs [R] that were received over 5 minutes before they began: the clock of their host is
    wrong. A clock that is behind cannot be told from a run that was collected late.
    """
    both_times = (summaries.start_us != UNKNOWN_START) & (summaries.received_us != UNKNOWN_START)
    ahead: npt.NDArray[np.bool_] = summaries.start_us > summaries.received_us + _CLOCK_OFF_US
    ahead &= both_times
    return ahead


def nights_of(summaries: Summaries, night_start_us: int) -> Ints:
    """The night of each run [R], in days since 1970-01-01.

    A run whose start is not recorded, or cannot be right, is of the night in which it was received.
    """
    unknown = (summaries.start_us == UNKNOWN_START) | ahead_of_receipt(summaries)
    when = np.where(unknown, summaries.received_us, summaries.start_us)
    night = (when - night_start_us) // _DAY_US
    return np.where(when == UNKNOWN_START, NO_NIGHT, night)


def overview_of(summaries: Summaries, night_start_us: int) -> RunOverview:
    """As ``run_overview`` of a store."""
    nights = nights_of(summaries, night_start_us)
    names = summaries.nodes
    dated = nights != NO_NIGHT
    nodes, node = np.unique(summaries.node[dated], return_inverse=True)
    first = np.full(len(nodes), np.iinfo(nights.dtype).max)
    last = np.full(len(nodes), np.iinfo(nights.dtype).min)
    np.minimum.at(first, node, nights[dated])
    np.maximum.at(last, node, nights[dated])
    of_nodes = {
        names[number]: (int(first[i]), int(last[i]))
        for i, number in enumerate(nodes.tolist())
        if names[number]
    }
    return RunOverview(
        tuple(np.unique(nights[nights != NO_NIGHT]).tolist()),
        of_nodes,
        int((nights == NO_NIGHT).sum()),
        tuple(sorted({names[node] for node in summaries.node[ahead_of_receipt(summaries)]})),
    )
