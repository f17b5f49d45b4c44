"""A model of a machine from its runs: the curves that were measured, and a law to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

from torchcoll.core.errors import UsageError
from torchcoll.core.result import ConcurrentBlocks, Run, hosts_of
from torchcoll.core.units import counted
from torchcoll.curves.model import (
    CONCURRENT,
    TOO_SHORT,
    KindModel,
    MachineModel,
)
from torchcoll.curves.model_ranks import over_ranks
from torchcoll.curves.model_sizes import (
    Curve,
    Kinds,
    left_out,
    over_sizes,
    shared_slopes,
    size_spreads,
)
from torchcoll.curves.scaling import describe_unusable, exclusion_reason
from torchcoll.curves.size_law import (
    FEWEST_SIZES,
    fit_size_law,
)
from torchcoll.curves.transitions import size_points
from torchcoll.inputs import Source
from torchcoll.stats.differences import kept_separate
from torchcoll.stats.matching import kind_of
from torchcoll.stats.sides import Measured, Reading, Side, known_of, side


@dataclass(frozen=True)
class FittedModel:
    """What ``fit_model`` found, and from which runs. notes: what was left out, and why."""

    model: MachineModel
    runs: list[Run]
    notes: list[str] = field(default_factory=list)


def fit_model(sources: Source | Sequence[Source], concurrent: bool = False) -> FittedModel:
    """The model of the runs of a folder, files or Runs. beside: of their calls beside work
    (--concurrent), in place of those alone.

    Raises UsageError where no kind of case has FEWEST_SIZES sizes; UnreadableError for a file.
    """
    files = side("files", sources)
    kinds, notes = read_curves(files, concurrent)
    facts = machine_facts(files)
    works = [r.concurrent for r in files.results if r.concurrent and r.concurrent.blocks]
    short = sum(not work.covered for work in works)
    if concurrent and short:
        text = (
            f"in {short} of {counted(len(works), 'case')} the work ended before the calls: calls "
            "beside it for longer would take longer"
        )
        facts[TOO_SHORT] = text
        notes.append(text)
    return FittedModel(MachineModel(fit_entries(kinds), facts), files.runs, notes)


def machine_facts(files: Side) -> dict[str, Any]:
    """What is known of the machine and its runs."""
    known = [known_of(part) for part in files.parts]
    facts: dict[str, Any] = {"number_of_runs": len(files.parts)}
    for name in ("device_name", "source", "torch"):
        values = list(dict.fromkeys(str(one[name]) for one in known if one.get(name)))
        if values:
            facts[name] = ", ".join(values[:4])
    if ids := run_ids(files):
        facts["runs"] = ids  # so that no run is taken for one that the model has not seen
    return facts


def run_ids(files: Side) -> list[str]:
    """Of runs of ours: another tool's have a name alone."""
    every = (str(p.header.get("run_id") or "") for p in files.parts if not p.source)
    return list(dict.fromkeys(filter(None, every)))


def measured_times(files: Side, concurrent: bool = False) -> tuple[list[Measured], Counter[str]]:
    """The cases that a model can be of, and how many others there are, by reason. beside: their
    figures are of one call beside the work.

    Raises UsageError where there is none.
    """
    found: list[Measured] = []
    out: Counter[str] = Counter()
    for item in files.measured("time", Reading()):
        reason = _exclusion_reason(item)
        if concurrent and not (item.result.concurrent and item.result.concurrent.blocks):
            reason = reason or "without work beside it"
        if reason:
            out[reason] += 1
        else:
            found.append(replace(item, figure=_concurrent(item).call_ns) if concurrent else item)
    if not found and concurrent:
        got = "; ".join(f"{counted(n, 'case')} {why}" for why, n in out.items()) or "none"
        raise UsageError("cases", got, "some beside work", "Measure them with --concurrent matmul.")
    if not found:
        got, why = describe_unusable(files)
        raise UsageError("cases", got, "some with ranks, a size and a time, and right", why)
    return found, out


def _concurrent(item: Measured) -> ConcurrentBlocks:
    assert item.result.concurrent is not None
    return item.result.concurrent


def read_curves(files: Side, concurrent: bool = False) -> tuple[Kinds, list[str]]:
    """Each kind of case with its curves, by ranks and hosts; and what is in none of them.

    Raises UsageError where no curve has FEWEST_SIZES sizes.
    """
    separate = kept_separate((part.ranks, known_of(part)) for part in files.parts)
    hosts = list(map(hosts_of, files.parts))
    groups: dict[str, tuple[dict[str, Any], dict[tuple[int, int], list[Measured]]]] = {}
    items, out = measured_times(files, concurrent)
    for item in items:
        kind = kind_of(item, separate) | (
            {CONCURRENT: _concurrent(item).work} if concurrent else {}
        )
        place = (item.row.ranks, hosts[item.part])
        groups.setdefault(repr(kind), (kind, {}))[1].setdefault(place, []).append(item)
    found: Kinds = []
    most = 0
    for kind, places in groups.values():
        curves = []
        for (ranks, count), items in sorted(places.items()):
            points = size_points(items)
            most = max(most, len(points))
            if len(points) < FEWEST_SIZES:
                out[f"of {counted(len(points), 'size')}, {FEWEST_SIZES} are needed"] += len(points)
                continue
            sizes = numpy.array([float(p.size_bytes) for p in points])
            times = numpy.array([p.time_ns for p in points])
            curves.append(Curve(ranks, count, sizes, times, tuple(p.error for p in points)))
        if curves:
            found.append((kind, curves))
    if not found:
        raise UsageError(
            "sizes", f"{most} at most in a kind of case", f"at least {FEWEST_SIZES}",
            "Measure more, such as -b 1K -e 64M -f 4.",
        )  # fmt: skip
    notes = [f"in no law: {counted(count, 'case')} {why}" for why, count in out.items()]
    return found, [*notes, *filter(None, [files.rehearsal_note])]


def _exclusion_reason(item: Measured) -> str:
    row = item.row
    if row.status != "ok" or row.verified == "wrong" or not row.ranks or not item.figure:
        return exclusion_reason(item)
    if row.ranks < 2:
        return "of 1 rank, which communicates nothing"
    if not row.size_bytes:
        return "without a size"
    return "" if row.communicates else f"on {row.backend}, which sends nothing"


def fit_entries(kinds: Kinds) -> tuple[KindModel, ...]:
    """The laws of every kind; the errors of all curves tell the intervals of each."""
    fits = [[fit_size_law(c.sizes, c.times, c.errors) for c in curves] for _, curves in kinds]
    flat = [
        (curve, fit)
        for (_, curves), own in zip(kinds, fits, strict=True)
        for curve, fit in zip(curves, own, strict=True)
    ]
    spreads = iter(size_spreads([left_out(*one) for one in flat]))
    shared = iter(shared_slopes(kinds))
    entries = []
    for (kind, curves), own in zip(kinds, fits, strict=True):
        over = [
            over_sizes(c, fit, next(spreads), next(shared))
            for c, fit in zip(curves, own, strict=True)
        ]
        ranks, why = over_ranks(str(kind["collective"]), curves)
        entries.append(KindModel(kind, tuple(over), ranks, why))
    return tuple(entries)
