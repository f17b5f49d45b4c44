"""Two captures of a training compared: what they send, how long it takes, and who is waited for.

What is sent can be compared exactly. Times cannot be judged: a capture is one run, whatever the
number of its steps, and the next run of the same program takes another time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.display import Displayed, OneLine
from torchcoll.core.errors import one_line
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import (
    counted,
    format_bytes,
    format_digits,
    format_ns,
    format_size,
    format_time,
    plural,
)
from torchcoll.parts.training.arrivals import Arrivals
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_show import arrivals_object
from torchcoll.parts.training.traffic_table import TrafficRow, TrafficTable, summarise_traffic
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head

_ONE_RUN = "one run on each side, so whether a time differs by more than chance is unknown"
_ALIKE = 0.01  # of a step: a smaller difference is none
_LEGEND = (
    "time: the call's time on its slowest rank; waiting: the longest time that a rank of the call "
    "waited for the last rank; both are summed over a step, then the median over the steps"
)
# What calls of both sides have in common, and what is compared.
_COMMON = ("collective", "bytes_in", "bytes_out", "dtype", "op", "group_ranks", "groups")
_SENT = ("calls_per_step", "bytes_per_step")
_FIGURES = (*_SENT, "time_per_step_ns", "wait_per_step_ns")


@dataclass(frozen=True, repr=False)
class CapturedSide(OneLine):
    """One of the two captures. Figures are of the steady steps; None: unknown.

    - name: what it is called; path: its file or folder.
    """

    name: str
    path: str
    ranks: int
    table: TrafficTable

    @property
    def arrivals(self) -> Arrivals | None:
        return self.table.arrivals

    @property
    def steps(self) -> int:
        return len(self.table.steps)

    @property
    def step_ns(self) -> float | None:
        return self.table.step_ns

    def _sum(self, figure: str) -> float | None:
        """A figure of a rank in a step; None if the ranks do not send alike."""
        rows = self.table.rows
        alike = len({row.ranks for row in rows}) == 1
        return sum(getattr(row, figure) for row in rows) if alike else None

    @property
    def calls(self) -> float | None:
        return self._sum("calls_per_step")

    @property
    def sent_bytes(self) -> float | None:
        return self._sum("bytes_per_step") if self.table.sized else None

    @property
    def wait_ns(self) -> float | None:
        """The waiting of all ranks in a step, a mean over the steps."""
        late = self.arrivals
        return late.wait_ns / self.steps if late and late.calls and self.steps else None

    @property
    def sent(self) -> str:
        """What a rank sends in a step, in words."""
        if self.calls is None:
            return "other calls on each rank"
        calls = f"{format_digits(self.calls, 4)} {plural(self.calls, 'call')}"
        return calls if self.sent_bytes is None else f"{format_bytes(self.sent_bytes)} in {calls}"

    @property
    def parts(self) -> dict[str, float]:
        """What may make a step longer -> its time in a step, mean over the ranks."""
        table = self.table
        calls_ns = table.busy_ns if table.exposed.unknown else table.exposed.total_ns
        parts = {
            "the ranks wait on average {} longer for {}": table.wait_ns,
            "the ranks compute {} longer": table.computing_ns,
            "the calls take {} longer": calls_ns and calls_ns - (table.wait_ns or 0.0),
        }
        return {part: ns for part, ns in parts.items() if ns is not None}


@dataclass(repr=False)
class TrafficComparison(Displayed):
    """The result of ``compare`` with two Traffics.

    - base, new: the two sides.
    - rows: the kinds of calls, in the order of ``base``: what both sides have in common, figures of
      each side (None: not made there), and the ratio of the times per step.
    - notes: what could not be seen or compared, by side.
    - sent_alike: whether both sides send the same in a step.
    """

    base: CapturedSide
    new: CapturedSide
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    @property
    def sent_alike(self) -> bool:
        return all(row["sent_alike"] for row in self.rows)

    @property
    def answer(self) -> Answer:
        """Which side has the longer step and why; then what is sent, and who is late."""
        base, new = self.base, self.new
        texts = [self._longer(base.step_ns, new.step_ns)] if base.step_ns and new.step_ns else []
        if self.sent_alike:
            texts.append(f"both send the same, {new.sent} a step")
        else:
            changed = sum(not row["sent_alike"] for row in self.rows)
            texts.append(
                f"{new.name} sends {new.sent} a step, {base.name} {base.sent} "
                f"({changed} of {len(self.rows)} rows differ)"
            )
        late = [
            f"in {side.name} {side.arrivals.answer.headline}"
            for side in (new, base)
            if side.arrivals and side.arrivals.late
        ]
        level = "" if self.sent_alike and not late else "doubt"
        first, *details = map(one_line, (*texts, *late, _ONE_RUN))
        return Answer(first, level, details=tuple(details))

    def _longer(self, base_ns: float, new_ns: float) -> str:
        """How much longer a step takes on one side, with the change that is most of it."""
        low_ns, high_ns = sorted([base_ns, new_ns])
        faster, slower = (self.base, self.new) if low_ns == base_ns else (self.new, self.base)
        longer_ns = high_ns - low_ns
        times = f"{format_ns(high_ns, 3)} and {format_ns(low_ns, 3)}"
        if longer_ns < _ALIKE * low_ns:
            return f"a step takes as long in {slower.name} as in {faster.name} ({times})"
        late = slower.arrivals.late if slower.arrivals else []
        whom = f"rank {late[0].rank}" if late else "each other"
        before = faster.parts
        changes = [(ns - before[part], part) for part, ns in slower.parts.items() if part in before]
        most_ns, cause = max(changes, default=(0.0, ""))
        text = f"a step takes {format_ns(longer_ns, 3)} longer in {slower.name} than in "
        text += f"{faster.name} ({times}, {format_digits(high_ns / low_ns)}x)"
        if most_ns < longer_ns / 2:
            return text
        return f"{text}, mostly because {cause.format(format_ns(most_ns, 3), whom)}"


def compare_traffic(
    base: Traffic, new: Traffic, names: tuple[str, str] = ("base", "new")
) -> TrafficComparison:
    """Compares the steady steps of two captures, call by call.

    Groups are matched by their size, because their names differ between runs.
    """
    sides = []
    for traffic, name in zip((base, new), names, strict=True):
        table = summarise_traffic(Ledger(traffic))
        sides.append(CapturedSide(name, str(traffic.path or name), traffic.ranks, table))
    base_rows, new_rows = (_by_key(side.table.rows) for side in sides)
    rows = []
    for key in {**base_rows, **new_rows}:
        row: dict[str, Any] = dict(zip(_COMMON, key, strict=False))
        for name, of_side in (("base", base_rows.get(key)), ("new", new_rows.get(key))):
            for figure in _FIGURES:
                row[f"{name}_{figure}"] = getattr(of_side, figure, None)
        base_ns, new_ns = (row[f"{name}_time_per_step_ns"] for name in ("base", "new"))
        row["ratio"] = new_ns / base_ns if base_ns and new_ns is not None else None
        row["sent_alike"] = all(row[f"base_{sent}"] == row[f"new_{sent}"] for sent in _SENT)
        rows.append(row)
    notes = [
        f"{side.name}: {note}"
        for side, traffic in zip(sides, (base, new), strict=True)
        for note in (*traffic.problems, *side.table.notes)
    ]
    return TrafficComparison(sides[0], sides[1], rows, notes)


def _by_key(rows: Sequence[TrafficRow]) -> dict[tuple[object, ...], TrafficRow]:
    """Returns the rows by what the sides must have in common, and a number among equal ones."""
    seen: Counter[tuple[object, ...]] = Counter()
    rows_by_key = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in _COMMON)
        numbered = (*key, seen[key])
        rows_by_key[numbered] = row
        seen[key] += 1
    return rows_by_key


def show_traffic_comparisons(
    comparisons: Sequence[TrafficComparison], format: str = "table", file: TextIO | None = None
) -> None:
    """Prints the comparisons. Raises UsageError for an unknown format."""
    print_results([_forms(comparison) for comparison in comparisons], format, file)


def _forms(comparison: TrafficComparison) -> Forms:
    sides = (comparison.base, comparison.new)
    names = [one_line(side.name) for side in sides]
    heads = [Head("collective", left=True, repeat=True), Head("bytes", "in", repeat=True)]
    heads += [Head("calls", name, drop=1) for name in names]
    heads += [Head("time", name, legend=_LEGEND) for name in names]
    heads += [Head("ratio"), *(Head("waiting", name) for name in names)]
    cells = [
        [
            one_line(" ".join(filter(None, (row["collective"], row["dtype"], row["op"])))),
            "varies" if row["bytes_in"] is None else format_size(row["bytes_in"]),
            *(_digits(row[f"{side}_calls_per_step"], 4) for side in ("base", "new")),
            *(format_time(row[f"{side}_time_per_step_ns"]) for side in ("base", "new")),
            _digits(row["ratio"]),
            *(format_time(row[f"{side}_wait_per_step_ns"]) for side in ("base", "new")),
        ]
        for row in comparison.rows
    ]
    above = [
        f"{name}: {one_line(side.path)}, {counted(side.ranks, 'rank')}, "
        f"{counted(side.steps, 'steady step')}"
        for name, side in zip(names, sides, strict=True)
    ]
    below = [one_line(note) for note in comparison.notes]
    grids = [
        Grid(heads, cells, above, [] if cells else ["no calls"]),
        Grid([], [], below=below, answer=comparison.answer),
    ]
    document = {
        "schema": "torchcoll-traffic-comparison/1",
        **{name: _side_object(getattr(comparison, name)) for name in ("base", "new")},
        "sent_alike": comparison.sent_alike,
        "notes": comparison.notes,
        "rows": comparison.rows,
    }
    return Forms(grids, document)


def _digits(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else format_digits(value, digits)


def _side_object(side: CapturedSide) -> dict[str, Any]:
    facts = select_fields(side, "name path ranks steps step_ns calls sent_bytes wait_ns")
    return {**facts, "arrivals": arrivals_object(side.arrivals) if side.arrivals else None}
