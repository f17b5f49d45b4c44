"""Nights x nodes x cases: the times of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet.noise import Floats
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.parts.fleet.series import NO_NIGHT, Summaries, nights_of

FIRST_CALL = "first call"  # statistic of a case that is a first call


@dataclass(frozen=True)
class Panel:
    """The runs of one device model and number of ranks, over all nights from first to last.

    first_night: days since 1970-01-01. log_times [T, N, C]: natural logarithm of ns, the median of
    a night's runs; NaN where there is none. environment [T, N]: index into environments of the last
    run of the night, -1 where there is none.
    """

    device_name: str
    ranks: int
    first_night: int
    nodes: tuple[str, ...]
    keys: tuple[CaseKey, ...]
    log_times: npt.NDArray[np.float32]
    environment: npt.NDArray[np.int32]
    environments: Sequence[Mapping[str, str]]

    @property
    def kind(self) -> str:
        kind = f"{self.device_name}|{self.ranks}"
        return f"{kind}|{FIRST_CALL}" if self.keys[0].statistic == FIRST_CALL else kind


def first_calls_of(summaries: Summaries) -> Summaries:
    """The first call of each collective, at its smallest size, in the place of the cases: this call
    connects the ranks, and larger sizes add their transfer to it.
    """
    smallest: dict[tuple[str, int], int] = {}
    for index, key in enumerate(summaries.keys):
        name = (key.case.collective, key.ranks)
        best = summaries.keys[smallest.setdefault(name, index)]
        if key.case.size_bytes < best.case.size_bytes:
            smallest[name] = index
    kept = np.isin(summaries.key, list(smallest.values())) & np.isfinite(summaries.first_ns)
    return replace(
        summaries,
        keys=[replace(key, statistic=FIRST_CALL) for key in summaries.keys],
        run=summaries.run[kept],
        key=summaries.key[kept],
        time_ns=summaries.first_ns[kept].astype(np.float64),
        first_ns=summaries.first_ns[kept],
        status=summaries.status[kept],
    )


def panels_of(summaries: Summaries) -> list[Panel]:
    """One panel per device model and number of ranks, most runs first. Runs without a date, and
    those over several hosts together with runs on one, are series of their own name.
    """
    nights = nights_of(summaries)
    panels = []
    for stratum in np.unique(summaries.stratum).tolist():
        runs = (summaries.stratum == stratum) & (nights != NO_NIGHT)
        kept = runs[summaries.run] & np.isfinite(summaries.time_ns)
        if not kept.any():
            continue
        first, last = int(nights[runs].min()), int(nights[runs].max())
        node_indexes, node_of_run = np.unique(summaries.node[runs], return_inverse=True)
        key_indexes = np.flatnonzero(np.bincount(summaries.key[kept]))
        shape = (last - first + 1, len(node_indexes), len(key_indexes))
        size = int(np.prod(shape))
        number = np.zeros(len(summaries), dtype=np.int64)
        number[runs] = node_of_run
        # A year has millions of cases: the largest of these arrays have one short number per case.
        row = np.zeros(len(summaries), dtype=np.int32 if size < 1 << 31 else np.int64)
        row[runs] = ((nights[runs] - first) * shape[1] + number[runs]) * shape[2]
        column = np.zeros(len(summaries.keys), dtype=row.dtype)
        column[key_indexes] = np.arange(len(key_indexes))
        cell = row[summaries.run[kept]]
        cell += column[summaries.key[kept]]
        log_time = summaries.time_ns[kept]
        np.log(log_time, out=log_time)
        log_times = np.full(size, np.nan, dtype=np.float32)
        log_times[cell] = log_time
        if np.count_nonzero(~np.isnan(log_times)) < len(cell):  # a case several times in a night
            cells, medians = grouped_medians(cell, log_time)
            log_times[cells] = medians
        environment = np.full(shape[:2], -1, dtype=np.int32)
        order = np.flatnonzero(runs)[np.argsort(summaries.start_us[runs], kind="stable")]
        environment[nights[order] - first, number[order]] = summaries.environment[order]
        device_name, ranks = summaries.strata[stratum]
        panels.append(
            Panel(
                device_name,
                ranks,
                first,
                tuple(summaries.nodes[n] or "several hosts" for n in node_indexes.tolist()),
                tuple(summaries.keys[k] for k in key_indexes.tolist()),
                log_times.reshape(shape),
                environment,
                summaries.environments,
            )
        )
    return sorted(panels, key=lambda panel: -int((panel.environment >= 0).sum()))


def grouped_medians(
    groups: npt.NDArray[np.integer[Any]], values: Floats
) -> tuple[npt.NDArray[np.integer[Any]], Floats]:
    """The groups that occur, ascending, and the median of the values of each."""
    order = np.lexsort((values, groups))
    ordered, groups = values[order], groups[order]
    begins = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else order
    counts = np.diff(np.r_[begins, len(groups)])
    medians = (ordered[begins + (counts - 1) // 2] + ordered[begins + counts // 2]) / 2
    return groups[begins], medians
