"""Fit the model of a machine: collect the measured curves of its runs and fit a law to each."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from torchcoll.core.answer import Answer
from torchcoll.core.case import partition
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.plausibility import stated_link_gbps
from torchcoll.core.result import Run
from torchcoll.core.run_facts import host_names, hosts_of
from torchcoll.core.units import counted, format_factor, format_size, shorten
from torchcoll.parts.curves.model import (
    GROUPS_AT_ONCE,
    LINK_GBPS,
    KindModel,
    MachineModel,
    Spread,
)
from torchcoll.parts.curves.model_ranks import over_ranks
from torchcoll.parts.curves.model_sizes import (
    Curve,
    Kinds,
    leave_one_out,
    over_sizes,
    size_spreads,
)
from torchcoll.parts.curves.predictor import WIDEST, too_wide
from torchcoll.parts.curves.scaling import describe_unusable, exclusion_reason
from torchcoll.parts.curves.size_law import FEWEST_SIZES, fit_size_law
from torchcoll.parts.curves.transitions import size_points
from torchcoll.reading.inputs import Source
from torchcoll.stats.differences import kept_separate
from torchcoll.stats.matching import kind_of
from torchcoll.stats.sides import Measured, Reading, Side, known_of, side


@dataclass(frozen=True, repr=False)
class FittedModel(Displayed):
    """A fitted model and its runs: what ``fit_model`` returns.

    - model: the laws; ``predict`` takes it, or the whole object.
    - runs: what it was fitted to.
    - notes: which cases were left out, and why.
    """

    model: MachineModel
    runs: list[Run]
    notes: list[str] = field(default_factory=list)

    @property
    def answer(self) -> Answer:
        """What it predicts, and how well: the kind of case whose left-out sizes it misses most."""
        entries = self.model.entries
        ranks = ", ".join(map(str, self.model.measured_ranks))
        low, high = map(format_size, self.model.measured_sizes)
        laws = [entry.over_ranks for entry in entries if entry.over_ranks]
        kinds = [{k: v for k, v in entry.kind.items() if isinstance(v, str)} for entry in entries]
        common = set.intersection(*({*kind.items()} for kind in kinds)) if kinds[1:] else set()
        titles = [" ".join(v for k, v in kind.items() if (k, v) not in common) for kind in kinds]
        off = {
            title: max(_most_off(curve.spread) for curve in entry.over_sizes)
            for title, entry in zip(titles, entries, strict=True)
        }
        poor = sorted((title for title in off if off[title] >= _POOR), key=lambda t: -off[t])
        next_step = "" if laws else "measure another number of ranks to predict others"
        details = []
        if poor:
            texts = shorten(
                [f"{title} ({format_factor(off[title])})" for title in poor], _MOST_POOR
            )
            details.append(f"further off, and so not good for a decision: {texts}")
            next_step = "measure these at more sizes, and fit again"
        if len(laws) < len(entries):
            which = f"only {len(laws)} of them predict other numbers of ranks"
            details.append(which if laws else "it predicts no other number of ranks")
        if assumed := sum(not law.supported for law in laws):
            details.append(
                f"in {assumed} of them the law over ranks is assumed, not supported by the data"
            )
        alone = len(entries) == 1
        what = str(entries[0].kind["collective"]) if alone else f"{len(entries)} kinds of cases"
        good = [factor for factor in off.values() if factor < _POOR]
        if good and poor:
            what = f"{len(good)} of {what}"
        return Answer(
            f"the model predicts {what} on {ranks} ranks, {low} to {high}, within "
            f"{format_factor(max(good or off.values()))} for 9 of 10 sizes",
            "doubt" if poor or assumed or len(laws) < len(entries) else "",
            details=tuple(details),
            next_step=next_step,
        )


_POOR = 1.5  # a prediction that is further off is no basis for a decision
_MOST_POOR = 3  # kinds that are named


def _most_off(spread: Spread) -> float:
    """The larger of the two factors by which a prediction may be off."""
    return max(1 / max(spread.low, 1e-9), spread.high)


def fit_model(sources: Source | Sequence[Source]) -> FittedModel:
    """Fit a model of a machine to the runs of a folder, of files, or to Runs.

    The model predicts the time of a call from its size and number of ranks, with 90 % intervals.
    Kinds of cases whose times vary too much for a prediction are left out. Raises UsageError if
    none remains, and if no kind of case has FEWEST_SIZES sizes; UnreadableError for a file that
    cannot be read.
    """
    files = side("files", sources)
    kinds, notes = read_curves(files)
    entries, text = predictable(fit_entries(kinds))
    model = MachineModel(entries, machine_facts(files))
    return FittedModel(model, files.runs, [*notes, *filter(None, [text])])


def predictable(entries: Sequence[KindModel]) -> tuple[tuple[KindModel, ...], str]:
    """The kinds of cases that can be predicted for some measured number of ranks, and a note on
    the others: the times of these vary so much that each interval is wider than WIDEST.

    Raises UsageError if there is none.
    """
    kept = tuple(
        entry
        for entry in entries
        if any(not too_wide(curve.spread.low, curve.spread.high) for curve in entry.over_sizes)
    )
    if not kept:
        ratio = min(c.spread.high / c.spread.low for entry in entries for c in entry.over_sizes)
        raise UsageError(
            "times",
            f"a 90 % interval of {float(f'{ratio:.2g}'):.0f}x on sizes left out of the fit",
            f"{WIDEST:g}x at most",
            "Measure more sizes, or more runs, with nothing else on the machine.",
        )
    excluded = [entry.collective for entry in entries if entry not in kept]
    if not excluded:
        return kept, ""
    names = ", ".join(dict.fromkeys(excluded))
    return kept, (
        f"not in the model: {counted(len(excluded), 'kind')} of cases ({names}), each with a 90 % "
        f"interval wider than {WIDEST:g}x: measure more sizes or runs"
    )


def machine_facts(files: Side) -> dict[str, Any]:
    """The facts about the machine and its runs that the model's file records."""
    facts_by_run = [known_of(run) for run in files.parts]
    facts: dict[str, Any] = {"number_of_runs": len(files.parts)}
    for name in ("device_name", "source", "torch"):
        texts = (str(facts_of_run[name]) for facts_of_run in facts_by_run if facts_of_run.get(name))
        values = list(dict.fromkeys(texts))
        if values:
            facts[name] = ", ".join(values[:4])
    links = {stated_link_gbps(run) for run in files.parts if hosts_of(run) != 1}
    if len(links) == 1 and (link := links.pop()):
        facts[LINK_GBPS] = link
    return facts


def measured_times(files: Side) -> tuple[list[Measured], Counter[str]]:
    """The cases that a model can be fitted to, and the number of excluded cases by reason.

    Raises UsageError if there is no such case.
    """
    items: list[Measured] = []
    excluded: Counter[str] = Counter()
    for item in files.measured("time", Reading()):
        if reason := _exclusion_reason(item):
            excluded[reason] += 1
        else:
            items.append(item)
    if not items:
        rejected, why = describe_unusable(files)
        expected = "right ones with ranks, a size and a steady time"
        raise UnusableError("cases", rejected, expected, why)
    return items, excluded


def read_curves(files: Side) -> tuple[Kinds, list[str]]:
    """Each kind of case with its curves by ranks and hosts, and notes on cases in no curve.

    Raises UsageError if no curve has FEWEST_SIZES sizes.
    """
    separate = kept_separate((run.ranks, known_of(run)) for run in files.parts)
    hosts = list(map(hosts_of, files.parts))
    groups: dict[str, tuple[dict[str, Any], dict[tuple[int, int], list[Measured]]]] = {}
    items, excluded = measured_times(files)
    for item in items:
        kind = kind_of(item, separate)
        ranks_and_hosts = (item.row.ranks, hosts[item.part])
        run = files.parts[item.part]
        if (at_once := groups_at_once(run, item)) > 1:
            # All sub-groups with as many hosts are one curve.
            kind |= {"group": None, GROUPS_AT_ONCE: at_once}
            ranks_and_hosts = (item.row.ranks, subgroup_hosts(run, item))
        groups.setdefault(repr(kind), (kind, {}))[1].setdefault(ranks_and_hosts, []).append(item)
    kinds: Kinds = []
    most = 0
    for kind, by_ranks in groups.values():
        curves = []
        for (ranks, count), items in sorted(by_ranks.items()):
            points = size_points(items)
            most = max(most, len(points))
            if len(points) < FEWEST_SIZES:
                excluded[f"of {counted(len(points), 'size')}, {FEWEST_SIZES} are needed"] += len(
                    points
                )
                continue
            sizes = numpy.array([float(p.size_bytes) for p in points])
            times = numpy.array([p.time_ns for p in points])
            curves.append(Curve(ranks, count, sizes, times, tuple(p.error for p in points)))
        if curves:
            kinds.append((kind, curves))
    if not kinds:
        raise UsageError(
            "sizes", f"{most} at most in a kind of case", f"at least {FEWEST_SIZES}",
            "Measure more, such as -b 1K -e 64M -f 4.",
        )  # fmt: skip
    notes = [f"in no law: {counted(count, 'case')} {why}" for why, count in excluded.items()]
    return kinds, [*notes, *filter(None, [files.rehearsal_note])]


def groups_at_once(run: Run, item: Measured) -> int:
    """Returns how many groups, of any size, called at once. 1 for a case of all ranks, and for a
    pair: pairs have curves of their own.
    """
    # A result has the rule and the number of its group: ``mod:2/0``, ``pair/0-1``.
    rule, _, number = (item.row.group or "").rpartition("/")
    if not item.result.members or not number.isdecimal():
        return 1
    return _number_of_groups(rule, run.ranks)


@functools.cache
def _number_of_groups(rule: str, ranks: int) -> int:
    try:
        return len(partition(rule, ranks))
    except UsageError:
        return 1


def subgroup_hosts(run: Run, item: Measured) -> int:
    """How many hosts the ranks of a sub-group are on; 0 if unknown."""
    of_ranks = [run.members[rank] for rank in item.result.members if rank < len(run.members)]
    return len(host_names(of_ranks))


def _exclusion_reason(item: Measured) -> str:
    row = item.row
    if not row.is_right or not row.ranks or not item.figure:
        return exclusion_reason(item)
    if row.ranks < 2:
        return "of 1 rank, which communicates nothing"
    if not row.size_bytes:
        return "without a size"
    return "" if row.communicates else f"on {row.backend}, which sends nothing"


def fit_entries(kinds: Kinds) -> tuple[KindModel, ...]:
    """Fit the laws of every kind; the intervals of a curve use the errors of all curves."""
    fits = [[fit_size_law(c.sizes, c.times, c.errors) for c in curves] for _, curves in kinds]
    flat = [
        (curve, fit)
        for (_, curves), curve_fits in zip(kinds, fits, strict=True)
        for curve, fit in zip(curves, curve_fits, strict=True)
    ]
    spreads = iter(size_spreads([leave_one_out(*curve_and_fit) for curve_and_fit in flat]))
    entries = []
    for (kind, curves), curve_fits in zip(kinds, fits, strict=True):
        over = [
            over_sizes(curve, fit, next(spreads))
            for curve, fit in zip(curves, curve_fits, strict=True)
        ]
        ranks, why = over_ranks(str(kind["collective"]), curves, str(kind.get("backend", "")))
        entries.append(KindModel(kind, tuple(over), ranks, why))
    return tuple(entries)
