"""Nights x nodes x cases: the series of a fleet, and its baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchcoll.parts.fleet.effects import Floats, grouped_medians, nan_median
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.parts.fleet.series import NO_NIGHT, Summaries, nights_of
from torchcoll.stats.distributions import mad_scale

FEWEST_BASELINE, MOST_BASELINE = 5, 30  # nights


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
    def present(self) -> npt.NDArray[np.bool_]:
        """Whether a node has any figure in a night [T, N]."""
        return np.asarray(np.isfinite(self.log_times).any(axis=2))


def panels_of(summaries: Summaries, night_start_us: int = 0) -> list[Panel]:
    """One panel per device model and number of ranks, most runs first. Runs without a date, and
    those over several hosts together with runs on one, are series of their own name.
    """
    nights = nights_of(summaries, night_start_us)
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
    return sorted(panels, key=lambda panel: -int(panel.present.sum()))


def baseline_nights(present: npt.NDArray[np.bool_], accepted: int = 0) -> npt.NDArray[np.bool_]:
    """The nights [T, N] that make up the baseline of each node: its first ones, a third of them
    all, at least 5 and at most 30. accepted: index of the first night that may be one.
    """
    counted = present.copy()
    counted[:accepted] = False
    number = np.cumsum(counted, axis=0)
    length = np.clip(number[-1] // 3, FEWEST_BASELINE, MOST_BASELINE)
    return np.asarray(counted & (number <= length))


def deviations(panel: Panel, baseline: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """log_times without what is usual of each node in each case [T, N, C]: the median over its
    baseline. NaN for a case that a node has in fewer than 5 nights of its baseline.
    """
    result = np.full_like(panel.log_times, np.nan)
    for node in range(len(panel.nodes)):  # node by node: a median of all at once doubles the memory
        usual = panel.log_times[baseline[:, node], node]
        if not len(usual):
            continue
        counts = np.isfinite(usual).sum(axis=0)
        enough = counts >= FEWEST_BASELINE
        if enough.any():
            middle = nan_median(usual[:, enough])
            result[:, node, enough] = panel.log_times[:, node, enough] - middle
    return result


@dataclass(frozen=True)
class Split:
    """deviations [T, N, C] = fleet [T, C] + nodes [T, N] + rest: what all nodes share in a night,
    and what one node adds in all its cases. NaN where there is nothing.
    """

    fleet: Floats
    nodes: Floats


def split_fleet_and_nodes(values: npt.NDArray[np.float32], weights: Floats) -> Split:
    """The median over nodes of each night and case, and the weighted mean over cases of what is
    left, clipped at 3 robust standard deviations of it. weights [C].
    """
    nights, nodes, _ = values.shape
    fleet = np.full((nights, values.shape[2]), np.nan)
    node = np.full((nights, nodes), np.nan)
    for night in range(nights):
        present = np.isfinite(values[night]).any(axis=1)
        if not present.any():
            continue
        tonight = values[night, present].astype(np.float64)
        cases = np.isfinite(tonight).any(axis=0)
        tonight = tonight[:, cases]
        level = nan_median(tonight)
        if len(tonight) == 1:
            level = np.zeros_like(level)  # a single node has no peers: all is its own
        left = tonight - level
        weight = np.where(np.isnan(left), 0.0, weights[cases])
        filled = np.where(np.isnan(left), 0.0, left)
        total = weight.sum(axis=1)
        mean = (filled * weight).sum(axis=1) / total
        spread = mad_scale((left - mean[:, None])[~np.isnan(left)])
        clipped = np.clip(filled - mean[:, None], -3 * spread, 3 * spread)
        node[night, present] = mean + (clipped * weight).sum(axis=1) / total * (spread > 0)
        fleet[night, cases] = level
    return Split(fleet, node)
