"""Check a fitted model against runs that it was not fitted to: the error of each case.

The model's entry of the same kind (collective, dtype, op, backend, mode and so on) predicts a case.
As in a comparison, a field that only the model or only the run records does not matter; a field
that both record has to be the same: a model of one backend does not predict another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.answer import Answer
from torchcoll.core.display import OneLine
from torchcoll.core.errors import UsageError, brief, one_line
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.units import counted, format_share
from torchcoll.parts.curves import model_fit
from torchcoll.parts.curves.model import (
    CONCURRENT,
    GROUPS_AT_ONCE,
    KindModel,
    MachineModel,
    most_measured,
)
from torchcoll.parts.curves.predictor import only_a_guess
from torchcoll.parts.curves.transitions import size_points
from torchcoll.parts.curves.validation import (
    NEW_RUN,
    HeldOut,
    ValidationRow,
    coverage_text,
    narrow,
    validation_row,
    worst_text,
)
from torchcoll.reading.inputs import Source
from torchcoll.stats.matching import NAMES, value_of
from torchcoll.stats.sides import NOT_KNOWN, Measured, Side, side, value_of_fact


@dataclass(frozen=True, repr=False)
class CheckedModel(OneLine):
    """The errors of a model about some runs.

    rows: one for each kind of case and number of ranks.
    totals: of all cases; if some are extrapolated, also of those within the data of the model and
        of the extrapolated ones.
    points: each predicted case.
    unknown: how many cases the model does not predict.
    """

    runs: list[Run]
    model: str
    rows: list[ValidationRow]
    totals: list[ValidationRow]
    points: list[HeldOut]
    unknown: int
    notes: list[str] = field(default_factory=list)

    @property
    def answer(self) -> Answer:
        """The mean error, and whether the 90 % intervals hold."""
        total, *subsets = self.totals
        details = [coverage_text(total)]
        if subsets:
            within, beyond = subsets
            details.append(
                f"{format_share(within.errors.mean)} within its data, "
                f"{format_share(beyond.errors.mean)} extrapolated "
                f"({counted(beyond.errors.count, 'time')})"
            )
        elif total.beyond:
            details.append("all are extrapolated")
        if self.unknown:
            details.append(f"{counted(self.unknown, 'case')} it does not predict")
        return Answer(
            one_line(self.model),
            "doubt" if narrow(total) or self.unknown else "",
            verb="is off by",
            size=total.errors.mean,
            unit="%",
            scope=f"on average ({worst_text(total)} on {total.worst.ranks} ranks)",
            details=tuple(details),
        )


Unknown = Counter[tuple[str, str]]  # cases that are not predicted, by collective and reason
Group = tuple[KindModel, int, int, list[Measured]]  # entry, ranks, hosts and their cases


def check_model(model: MachineModel, sources: Source | Sequence[Source]) -> CheckedModel:
    """The errors of a model about the cases of these runs, which are pooled.

    Raises UsageError with the first reason if the model predicts none of the cases;
    UnreadableError for a file that cannot be read.
    """
    measured = side("measured", sources)
    concurrent = any(entry.concurrent for entry in model.entries)
    items, out = model_fit.measured_times(measured, concurrent)
    groups, unknown, notes = _groups(model, measured, items)
    name = str(model.path or "the model")
    points, first = [], None
    for entry, ranks, hosts, cases in groups:
        try:
            predicted, guesses = _points(entry, ranks, hosts, cases)
        except UsageError as error:
            first = first or error
            unknown[entry.collective, brief(error)] += len(cases)
            continue
        points += predicted
        unknown.update(guesses)
    if not points:
        if first:
            raise first
        raise UsageError(
            "cases", "; ".join(_reasons(unknown)), f"some that {name} predicts",
            "Fit a model to runs of their kind: torchcoll model fit RUN... -o FILE.",
        )  # fmt: skip
    by_row: dict[str, list[HeldOut]] = {}
    for point in points:
        by_row.setdefault(repr((point.kind, point.ranks)), []).append(point)
    subsets = [[p for p in points if not p.beyond], [p for p in points if p.beyond]]
    totals = [points, *(subsets if all(subsets) else [])]
    notes += [f"in no error: {counted(count, 'case')} {why}" for why, count in out.items()]
    notes += [f"not predicted: {text}" for text in _reasons(unknown)]
    notes += _differences(model, measured)
    return CheckedModel(
        measured.runs,
        name,
        [
            validation_row(row_points, row_points[0].kind, row_points[0].ranks)
            for row_points in by_row.values()
        ],
        [validation_row(total_points) for total_points in totals],
        points,
        unknown.total(),
        notes,
    )


def _reasons(unknown: Unknown) -> list[str]:
    """Texts such as ``20 cases of all_reduce, all_gather: REASON``, one for each reason."""
    texts = []
    for why in dict.fromkeys(why for _, why in unknown):
        counts = {name: count for (name, reason), count in unknown.items() if reason == why}
        texts.append(f"{counted(sum(counts.values()), 'case')} of {', '.join(counts)}: {why}")
    return texts


def _groups(
    model: MachineModel, measured: Side, items: Sequence[Measured]
) -> tuple[list[Group], Unknown, list[str]]:
    """Group the cases by entry, ranks and hosts.

    Also returns the cases without an entry, and notes on fields that the run does not record.
    """
    hosts = list(map(hosts_of, measured.parts))
    groups: dict[tuple[int, int, int], Group] = {}
    unknown: Unknown = Counter()
    taken: dict[str, None] = {}
    for item in items:
        run = measured.parts[item.part]
        entry, reason = _match_entry(model, run, item)
        if entry is None:
            unknown[item.row.collective, reason] += 1
            continue
        taken |= {reason: None} if reason else {}
        ranks, count = item.row.ranks, hosts[item.part]
        if entry.groups_at_once > 1:
            count = model_fit.subgroup_hosts(run, item)
        group = groups.setdefault((id(entry), ranks, count), (entry, ranks, count, []))
        group[-1].append(item)
    return list(groups.values()), unknown, list(taken)


def _points(
    entry: KindModel, ranks: int, hosts: int, items: Sequence[Measured]
) -> tuple[list[HeldOut], Unknown]:
    """A point for each size of some cases, and the sizes whose prediction would be too vague."""
    points: list[HeldOut] = []
    guesses: Unknown = Counter()
    for point in size_points(items):
        size = point.size_bytes
        prediction = entry.predict(size, ranks, hosts or None)
        if reason := only_a_guess(prediction):
            guesses[entry.collective, f"on {ranks} ranks: {reason}"] += 1
            continue
        ends = prediction.low_ns, prediction.high_ns
        points.append(
            HeldOut(
                *(entry.kind, NEW_RUN, ranks, size, point.time_ns, prediction.time_ns, *ends),
                beyond=prediction.beyond,
            )
        )
    return points, guesses


def _match_entry(model: MachineModel, run: Run, item: Measured) -> tuple[KindModel | None, str]:
    """The entry that predicts a case, and a note if several could; None and the reason if none."""
    name = item.row.collective
    entries = [entry for entry in model.entries if entry.collective == name]
    if not entries:
        has = ", ".join(dict.fromkeys(entry.collective for entry in model.entries))
        return None, f"not in the model, which has {has}"
    differ = [(kind_differences(entry, run, item), entry) for entry in entries]
    fitting = [entry for differences, entry in differ if not differences]
    if not fitting:
        differences, entry = min(differ, key=lambda candidate: len(candidate[0]))
        found_text = ", ".join(f"{n} {value}" for n, value in differences.items())
        return (
            None,
            f"{found_text}; the model has {', '.join(str(_kind(entry)[n]) for n in differences)}",
        )
    recorded = [sum(_value(run, item, n) is not None for n in _kind(e)) for e in fitting]
    best = [entry for entry, n in zip(fitting, recorded, strict=True) if n == max(recorded)]
    chosen = most_measured(best)
    if len(best) < 2:
        return chosen, ""
    unrecorded = [n for n in chosen.kind if len({repr(e.kind.get(n)) for e in best}) > 1]
    texts = [f"{n} {chosen.kind[n]}" for n in unrecorded]
    return (
        chosen,
        f"{name}: the run does not tell {', '.join(unrecorded)}: taken for {', '.join(texts)}",
    )


def _kind(entry: KindModel) -> dict[str, Any]:
    """The kind of an entry, with the number of groups that called at once also where it is 1."""
    return {**entry.kind, GROUPS_AT_ONCE: entry.groups_at_once}


def _value(run: Run, item: Measured, name: str) -> Any:
    """A field of a case, in the form of the model's file; None if it is not recorded."""
    if name == GROUPS_AT_ONCE:
        return model_fit.groups_at_once(run, item)
    if name == CONCURRENT:
        return item.result.concurrent.work if item.result.concurrent else None
    value = value_of(item, name) if name in NAMES else value_of_fact(item.facts, name)
    return None if value == NOT_KNOWN else value


def kind_differences(entry: KindModel, run: Run, item: Measured) -> dict[str, Any]:
    """The fields of a case that differ from the kind of an entry; only fields that both record."""
    kind = _kind(entry)
    recorded = {name: _value(run, item, name) for name, ours in kind.items() if ours is not None}
    return {name: v for name, v in recorded.items() if v is not None and v != kind[name]}


def _differences(model: MachineModel, measured: Side) -> list[str]:
    """Notes on differences of the machine, and on runs that the model was fitted to."""
    notes = [measured.rehearsal_note] * bool(measured.rehearsal_note)
    facts, fitted_facts = model_fit.machine_facts(measured), model.facts
    for name in ("device_name", "source", "torch"):
        if name in fitted_facts and name in facts and fitted_facts[name] != facts[name]:
            title = name.replace("_", " ")
            notes.append(
                f"{title}: {facts[name]} here, {fitted_facts[name]} where the model was fitted"
            )
    if seen_runs := set(model_fit.run_ids(measured)) & set(fitted_facts.get("runs") or ()):
        notes.append(
            f"{counted(len(seen_runs), 'run')} of these are among those that the model "
            "was fitted to: its errors there are no test of it"
        )
    return notes
