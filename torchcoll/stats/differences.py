"""What differs between the sides besides the figures: usually the explanation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchcoll.core.backends import NCCL, ONECCL, of_family
from torchcoll.core.case import value_text
from torchcoll.core.errors import UsageError
from torchcoll.core.variables import MASK
from torchcoll.stats import sides
from torchcoll.stats.matching import Pair

# Told first: what an upgrade changes. Then the variables and the rest, by name.
_FIRST: tuple[str, ...] = (
    "label=",
    "source",
    "device_name",
    "hosts",
    "kernel",
    "driver",
    *(*of_family(NCCL), "rccl", *of_family(ONECCL), "mapped ", "torch", "torchcoll"),
)
# Labels of `torchcoll matrix` that count runs and ranks, or name combinations.
_COUNTING = ("cell", "run", "nproc", "ranks", "nnodes", "nodes")
# What may differ from run to run of one side: a scheduler chooses the place.
_OF_THE_PLACE = ("label=run", "hosts", "device_name", "kernel", "cpu", "cores", "threads")


@dataclass(frozen=True)
class Difference:
    """A fact that differs between the sides, with the values of each side; () is not known."""

    name: str
    base: tuple[str, ...]
    new: tuple[str, ...]
    where: str = ""  # '' in all cases

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.name}: {_several(self.base)} -> {_several(self.new)}{where}"


def differences_of(base: sides.Side, new: sides.Side) -> list[Difference]:
    """Every fact that both sides record and whose values differ."""
    facts = [fact for fact in _facts(base, new) if fact.base and fact.new]
    return sorted((fact for fact in facts if {*fact.base} != {*fact.new}), key=_order)


def unknown_facts(base: sides.Side, new: sides.Side) -> list[str]:
    """Sentences on facts that only one side records, and on values that both sides withhold."""
    alone = _recorded_by_one(base, new)
    unknown = [(base, [f.name for f in alone if not f.base])]
    unknown.append((new, [f.name for f in alone if not f.new]))
    lines = [
        f"{side.name} does not tell {', '.join(names)}: it may differ"
        for side, names in unknown
        if names
    ]
    if withheld := [f.name for f in _facts(base, new) if MASK in f.base and MASK in f.new]:
        lines.append(f"both sides withhold the value of {', '.join(withheld)}: it may differ")
    return lines


def all_differences(base: sides.Side, new: sides.Side, pairs: Sequence[Pair]) -> list[Difference]:
    """Everything that differs: in the cases, in how they were measured, in the environments."""
    matched = [pair for pair in pairs if pair.matched]
    side_cases = ([m for p in matched for m in p.base], [m for p in matched for m in p.new])
    names = [sorted({m.row.library for m in items if m.row.library}) for items in side_cases]
    library = Difference("library", tuple(names[0]), tuple(names[1]))
    cases = [d for d in [*dimensions_of(pairs), library] if d.base != d.new]
    facts = [*differences_of(base, new), *_recorded_by_one(base, new)]
    return [*cases, *method_differences(pairs), *sorted(facts, key=_order)]


def _facts(base: sides.Side, new: sides.Side) -> list[Difference]:
    """Every fact that a side records, with the values of both sides."""
    ours, theirs = sides.values_by_name(base), sides.values_by_name(new)
    names = dict.fromkeys([*ours, *theirs])
    return [Difference(n, tuple(_values(ours, n)), tuple(_values(theirs, n))) for n in names]


def _recorded_by_one(base: sides.Side, new: sides.Side) -> list[Difference]:
    """The facts that only one side records. A library belongs to its backend, and is none."""
    parts = [*base.parts, *new.parts]
    libraries = {name for run in parts for name in run.environment.get("libraries") or ()}
    return [
        fact
        for fact in _facts(base, new)
        if not (fact.base and fact.new)
        and fact.name not in libraries
        and not fact.name.startswith("mapped ")
    ]


def _values(facts: Mapping[str, list[str]], name: str) -> list[str]:
    # Of an imported file nearly nothing is known, and a label is there or not.
    if name in facts or not name.isupper():
        return facts.get(name, ["none"] if name.startswith("label=") else [])
    value = sides.value_of_fact(dict.fromkeys(facts, ""), name)
    return [] if value == sides.NOT_KNOWN else [value]


def _order(fact: Difference) -> tuple[int, str]:
    orders = (i for i, start in enumerate(_FIRST) if fact.name.startswith(start))
    return next(orders, len(_FIRST)), fact.name


def mixture_lines(base: sides.Side, new: sides.Side, by: Sequence[str]) -> list[str]:
    """Sentences on what varies among the runs of one side: their ratio is over a mixture."""
    lines = []
    for side in (base, new):
        varying = varying_text(sides.values_by_name(side), [*by, "label=run"])
        if text := hidden_note(varying, f"the runs of {side.name}"):
            lines.append(f"{text} (--by NAME keeps them apart)")
    return lines


def hidden_note(varying: str, which: str = "the runs") -> str:
    """A sentence on runs that are shown as one although they differ; '' if they do not."""
    return f"hidden: {which} are not alike in {varying}" if varying else ""


def varying_text(values: Mapping[str, Sequence[str]], without: Sequence[str] = ()) -> str:
    """``kernel (6.1, 6.8); NCCL_ALGO (Ring, unset)``: the facts that have several values."""
    several = {n: each for n, each in values.items() if len(each) > 1 and n not in without}
    return "; ".join(f"{name} ({_several(each)})" for name, each in several.items())


def kept_separate(runs: Iterable[tuple[int, Mapping[str, str]]]) -> list[str]:
    """The facts with several values at one number of ranks, and the device of unlike machines.

    runs: (ranks, facts) of each.
    """
    values: dict[tuple[int, str], set[str]] = {}
    facts = list(runs)
    names = dict.fromkeys(name for _, fact in facts for name in fact if _on_purpose(name))
    for ranks, fact in facts:
        for name in names:
            values.setdefault((ranks, name), set()).add(sides.value_of_fact(fact, name))
    kept = [n for n in names if any(len(v) > 1 for (_, name), v in values.items() if name == n)]
    return [*kept, *([_DEVICE] if unlike_machines(fact for _, fact in facts) else [])]


_DEVICE = "device_name"


def unlike_machines(facts: Iterable[Mapping[str, str]]) -> list[str]:
    """The devices of the runs, if two runs have none in common; otherwise []. A log without the
    names of its devices is of an unknown machine.
    """
    names = [fact.get(_DEVICE, "") for fact in facts]
    devices = [set(name.split(", ")) for name in names if name]
    if not any(a.isdisjoint(b) for a in devices for b in devices):
        return []
    unknown = ["others that are not recorded"] if not all(names) else []
    return [*dict.fromkeys(filter(None, names)), *unknown]


def check_unmixed(base: sides.Side, new: sides.Side) -> None:
    """Raises UsageError if the shell expanded NEW to runs of both sides."""
    runs = [
        {"ranks": [str(run.ranks)]} | {n: [v] for n, v in sides.known_of(run).items()}
        for run in (*base.parts, *new.parts)
    ]
    ours, theirs = runs[: len(base.parts)], runs[len(base.parts) :]
    names = {name for facts in runs for name in facts}.difference(_OF_THE_PLACE)
    # Labels say best what was meant, then variables.
    for name in sorted(names, key=lambda n: (not n.startswith("label="), not n.isupper(), n)):
        base_values = {value for facts in ours for value in _values(facts, name)}
        values = [value for facts in theirs for value in _values(facts, name)]
        alike = sum(value in base_values for value in values)
        if 0 < alike < len(values):
            given = f"{len(theirs)} runs, {alike} like BASE in {name} and {len(values) - alike} not"
            action = "Name both sides, quoted: a='...*' b='...*'."
            raise UsageError("new", given, "those of one side", action)


def hidden_among(runs: Sequence[Mapping[str, str]], separate: Sequence[str]) -> str:
    """What differs among runs that are shown as one kind, but for ``separate`` facts."""
    values = sides.values_of_facts([dict(facts) for facts in runs])
    return varying_text(values, [*separate, *(f"label={name}" for name in _COUNTING)])


def _on_purpose(name: str) -> bool:
    if name.startswith("label="):
        return name.removeprefix("label=") not in _COUNTING
    return name.isupper() or name in sides.SETTINGS


def dimensions_of(pairs: Sequence[Pair]) -> list[Difference]:
    """The dimensions in which matched cases differ; () on a side that does not record one."""
    values: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for pair in filter(lambda pair: pair.matched, pairs):
        for name in pair.side_values[0]:
            value_sets = values.setdefault(name, ({}, {}))
            for values_of_side, texts in zip(pair.side_values, value_sets, strict=True):
                texts[value_text(name, values_of_side[name])] = None
    differences = []
    for name, texts_of_sides in values.items():
        base, new = (() if [*texts] == ["-"] else tuple(texts) for texts in texts_of_sides)
        differences.append(Difference(name, base, new))
    return differences


def dimension_lines(pairs: Sequence[Pair], chosen_by: str = "") -> list[str]:
    """``dimensions_of`` in sentences, without the dimension that names the sides."""
    dimensions = [dimension for dimension in dimensions_of(pairs) if dimension.name != chosen_by]
    unknown = [d.name for d in dimensions if not (d.base and d.new)]
    lines = also_differ([d for d in dimensions if d.base and d.new])
    if unknown:
        lines.append(f"matched without {', '.join(unknown)}: one side does not tell")
    return lines


def also_differ(dimensions: Sequence[Difference]) -> list[str]:
    """One line on the dimensions in which the cases of the sides differ; [] without any."""
    differ = [f"{d.name} ({_several(d.base)} -> {_several(d.new)})" for d in dimensions]
    return [f"the sides also differ in: {'; '.join(differ)}"] if differ else []


def assumed_lines(pairs: Sequence[Pair]) -> list[str]:
    """Sentences on dimensions that some runs do not record and that were assumed."""
    taken = dict.fromkeys(item for pair in pairs if pair.matched for item in pair.taken)
    return [
        f"some runs do not tell {name}: taken for {value_text(name, value)}, as all others"
        for name, value in taken
    ]


def _several(values: Sequence[str]) -> str:
    few = values if len(values) < 6 else [*values[:4], f"... ({len(values)} values)"]
    return ", ".join(few) or sides.NOT_KNOWN


def method_differences(pairs: Sequence[Pair]) -> list[Difference]:
    """How matched cases were measured differently: the ways in which the sides share no value."""
    matched = [pair for pair in pairs if pair.matched]
    differences = []
    for name in ("iterations (-n)", "stopped by", "ramp-up calls"):
        values = [
            [{text for m in items if (text := _method_of(m)[name])} for items in (p.base, p.new)]
            for p in matched
        ]
        complete = [of_sides for of_sides in values if all(of_sides)]
        differing = [of_sides for of_sides in complete if of_sides[0].isdisjoint(of_sides[1])]
        if differing:
            base, new = (sorted(set().union(*of_side)) for of_side in zip(*differing, strict=True))
            where = f"in {len(differing)} of {len(complete)} cases"
            where = where if len(differing) < len(complete) else ""
            differences.append(Difference(name, tuple(base), tuple(new), where))
    return differences


def _method_of(item: sides.Measured) -> dict[str, str]:
    """How a case was measured; '' is unknown. Equal runs differ in the number of ramp-up calls."""
    result = item.result
    calls = str(result.reported.calls or "") if result.reported else item.iters
    ramp_up = "some" if any(result.ramp_up_ns) else "none"
    stop, ramp_up = (result.stop, ramp_up) if result.time_ns else ("", "")
    return {"iterations (-n)": calls, "stopped by": stop, "ramp-up calls": ramp_up}
