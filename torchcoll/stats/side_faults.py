"""What of one side has no figure: wrong results, hangs, failures and missing cases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import IMPLAUSIBLE
from torchcoll.core.result import EXPECTED_STATUSES
from torchcoll.core.units import counted, format_factor, format_size, shorten_middle
from torchcoll.stats.sides import Measured, Side

WRONG, FAILED, MISSING = ENTRIES = ("wrong", "failed", "missing")
ENDED_EARLY = "ended early"  # runs without cases that other runs of the side have
# What is said of the runs that have a fault; the worst first.
_TEXTS = {
    "wrong": "wrong results in {}",
    "timeout": "{} timed out",
    "oom": "{} ran out of memory",
    "failed": "{} failed",
    IMPLAUSIBLE: "implausible figures in {}",
    ENDED_EARLY: "{} ended early",
}


def fault_runs(items: Iterable[Measured]) -> dict[str, set[int]]:
    """The runs of each outcome that is a fault."""
    faults: dict[str, set[int]] = {}
    for item in items:
        if (outcome := item.row.outcome) not in EXPECTED_STATUSES:
            faults.setdefault(outcome, set()).add(item.run)
    return faults


@dataclass(frozen=True)
class Fault:
    """kind: the outcome of the cases, or ENDED_EARLY. runs: how many runs have it."""

    kind: str
    runs: int
    cases: tuple[str, ...]

    @property
    def entry(self) -> str:
        """Which of ENTRIES it is counted under."""
        return {"wrong": WRONG, ENDED_EARLY: MISSING}.get(self.kind, FAILED)


@dataclass(frozen=True)
class SideFaults:
    """The faults of one side.

    side: its name, '' for all runs. runs: how many it has. faults: the worst first. missing: cases
    that only the other side has. cases: how many there are. outliers: of each run that was left
    out, how many times as fast it is as the rest.
    """

    side: str = ""
    runs: int = 0
    faults: tuple[Fault, ...] = ()
    missing: tuple[str, ...] = ()
    cases: int = 0
    outliers: tuple[float, ...] = ()

    @property
    def names(self) -> dict[str, set[str]]:
        """The names of the wrong, failed and missing cases."""
        cases: dict[str, set[str]] = {name: set() for name in ENTRIES}
        for fault in self.faults:
            cases[fault.entry] |= set(fault.cases)
        cases[MISSING] |= set(self.missing)
        return cases

    @property
    def counts(self) -> dict[str, int]:
        """The number of wrong, failed and missing cases, without zeros."""
        return {name: len(names) for name, names in self.names.items() if names}

    @property
    def level(self) -> str:
        """``bad`` with a wrong or a failed result, ``doubt`` with a missing one, else ''."""
        counts = self.counts
        return "bad" if WRONG in counts or FAILED in counts else "doubt" if counts else ""

    @property
    def without_figure(self) -> bool:
        """Whether a case has no figure. After an early end other runs have figures."""
        return bool(self.missing) or any(fault.kind != ENDED_EARLY for fault in self.faults)

    @property
    def texts(self) -> list[str]:
        """Such as ``3 of 6 runs of new timed out (128)``, ``new lacks 2 of 10 cases (64, 128)``."""
        side, clauses = one_line(self.side), []
        for number, fault in enumerate(self.faults):
            runs = f"{fault.runs} of {self.runs}"
            if self.runs == 1:
                runs = side or "the run"
            elif not number:
                runs += f" runs of {side}" if side else " runs"
            clause = _TEXTS.get(fault.kind, f"{{}} ended with {fault.kind}").format(runs)
            if names := list(filter(None, fault.cases)):
                without = "without " if fault.kind == ENDED_EARLY else ""
                clause += f" ({without}{_few(names)})"
            clauses.append(clause)
        if self.missing:
            of = f"{len(self.missing)} of {counted(self.cases, 'case')}"
            clauses.append(f"{side} lacks {of} ({_few(self.missing)})")
        return clauses

    @property
    def outlier_text(self) -> str:
        """``1 of 6 runs of new is left out as an outlier (50x slower)``"""
        number = len(self.outliers)
        verb = "is left out as an outlier" if number == 1 else "are left out as outliers"
        speed = max(self.outliers, key=lambda speed: abs(math.log(speed)))
        by = format_factor(max(speed, 1 / speed))
        size = f"{'up to ' if number > 1 else ''}{by} {'slower' if speed < 1 else 'faster'}"
        return f"{number} of {self.runs} runs of {one_line(self.side)} {verb} ({size})"

    def to_json(self) -> dict[str, Any]:
        faults = [{**vars(fault), "cases": list(fault.cases)} for fault in self.faults]
        values = {"runs": self.runs, "faults": faults, "missing": list(self.missing)}
        return {**values, "outliers": len(self.outliers)}


def _few(names: Sequence[str]) -> str:
    return ", ".join(shorten_middle(names, 4, first=3))


def side_faults(
    side: str,
    runs: int,
    cases: Iterable[tuple[str, Sequence[Measured]]],
    missing: Sequence[str] = (),
    outliers: Sequence[float] = (),
    cut: Mapping[int, Collection[str]] | None = None,
) -> SideFaults:
    """The faults of a side; cases: (name, its measurements in the runs of this side)."""
    by_kind: dict[str, tuple[set[int], list[str]]] = {}
    cases = list(cases)
    for name, items in cases:
        faults = fault_runs(items)
        collectives = {item.row.collective for item in items}
        # A run that ended before it had any case may not say what it was asked for.
        asked = {n for n, of_run in (cut or {}).items() if not of_run or collectives & set(of_run)}
        if absent := asked - {item.run for item in items}:
            faults[ENDED_EARLY] = absent
        for kind, numbers in faults.items():
            all_runs, names = by_kind.setdefault(kind, (set(), []))
            all_runs |= numbers
            names.append(name)
    kinds = [
        Fault(kind, len(by_kind[kind][0]), tuple(dict.fromkeys(by_kind[kind][1])))
        for kind in dict.fromkeys([*_TEXTS, *by_kind])
        if kind in by_kind
    ]
    return SideFaults(side, runs, tuple(kinds), tuple(missing), len(cases), tuple(outliers))


def cut_runs(side: Side) -> dict[int, set[str]]:
    """The collectives that each run of torchcoll was to measure which did not end well."""
    return {
        number: set(run.header.get("spec", {}).get("collectives") or ())
        or {result.case.collective for result in run.results}
        for number, run in enumerate(side.runs)
        if not run.source and not run.complete
    }


def faults_of_items(side: str, runs: int, items: Sequence[Measured]) -> SideFaults:
    """The faults of a side that is not compared. items: of its ``runs``."""
    cases: dict[str, list[Measured]] = {}
    several = len({item.row.collective for item in items}) > 1
    for item in items:
        size = format_size(item.row.size_bytes_requested) if item.row.size_bytes_requested else ""
        name = f"{item.row.collective} {size}".strip() if several or not size else size
        cases.setdefault(name, []).append(item)
    return side_faults(side, runs, cases.items())


def entries_of(sides: Iterable[SideFaults]) -> Mapping[str, int]:
    """The sum of ``counts`` over several sides."""
    return sum((Counter(side.counts) for side in sides), Counter())
