"""Two captures of a training compared: what they send, how long it takes, and who is waited for.

What is sent can be compared exactly. Times cannot be judged: a capture is one run, whatever the
number of its steps, and the next run of the same program takes another time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torchcoll.core.answer import Answer
from torchcoll.core.display import Displayed, OneLine
from torchcoll.core.errors import one_line
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_bytes, format_digits, format_ns, plural
from torchcoll.parts.training.arrivals import Arrivals, find_arrivals
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_table import TrafficRow, TrafficTable, summarise_traffic

_ONE_RUN = "one run on each side, so whether a time differs by more than chance is unknown"

_ALIKE = 0.01  # of a step: a smaller difference is none


@dataclass(frozen=True, repr=False)
class CapturedSide(OneLine):
    """One of the two captures. Figures are of the steady steps; None: unknown.

    - name: what it is called; path: its file or folder.
    - calls, sent_bytes: of a rank in a step; None if the ranks do not send alike, or have no sizes.
    - wait_ns: the waiting of all ranks in a step, a mean over the steps.
    """

    name: str
    path: str
    ranks: int
    steps: int
    step_ns: float | None
    calls: float | None
    sent_bytes: float | None
    wait_ns: float | None
    table: TrafficTable
    arrivals: Arrivals | None

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


@dataclass(frozen=True)
class ComparedCalls:
    """Calls of one collective, size, dtype, op and kind of group. None: not made on that side."""

    base: TrafficRow | None
    new: TrafficRow | None

    @property
    def row(self) -> TrafficRow:
        """Either of the two: what they have in common is the same."""
        row = self.base or self.new
        assert row is not None
        return row

    @property
    def ratio(self) -> float | None:
        """The time per step of ``new``, relative to ``base``."""
        if self.base is None or self.new is None or not self.base.time_per_step_ns:
            return None
        time_ns = self.new.time_per_step_ns
        return None if time_ns is None else time_ns / self.base.time_per_step_ns

    @property
    def sent_alike(self) -> bool:
        """Whether both sides make as many calls with as many bytes in a step."""
        if self.base is None or self.new is None:
            return False
        return (self.base.calls_per_step, self.base.bytes_per_step) == (
            self.new.calls_per_step,
            self.new.bytes_per_step,
        )


@dataclass(repr=False)
class TrafficComparison(Displayed):
    """The result of ``compare`` with two Traffics.

    - base, new: the two sides.
    - rows: the kinds of calls, in the order of ``base``.
    - notes: what could not be seen or compared, by side.
    - sent_alike: whether both sides send the same in a step.
    """

    base: CapturedSide
    new: CapturedSide
    rows: list[ComparedCalls]
    notes: list[str] = field(default_factory=list)

    @property
    def sent_alike(self) -> bool:
        return all(row.sent_alike for row in self.rows)

    @property
    def answer(self) -> Answer:
        """Which side has the longer step and why; then what is sent, and who is late."""
        base, new = self.base, self.new
        texts = [self._longer(base.step_ns, new.step_ns)] if base.step_ns and new.step_ns else []
        if self.sent_alike:
            texts.append(f"both send the same, {new.sent} a step")
        else:
            changed = sum(not row.sent_alike for row in self.rows)
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
    sides = [_side(traffic, name) for traffic, name in zip((base, new), names, strict=True)]
    base_rows, new_rows = (_by_key(side.table.rows) for side in sides)
    keys = dict.fromkeys([*base_rows, *new_rows])
    rows = [ComparedCalls(base_rows.get(key), new_rows.get(key)) for key in keys]
    notes = [
        f"{side.name}: {note}"
        for side, traffic in zip(sides, (base, new), strict=True)
        for note in (*traffic.problems, *side.table.notes)
    ]
    return TrafficComparison(sides[0], sides[1], rows, notes)


def _side(traffic: Traffic, name: str) -> CapturedSide:
    ledger = Ledger(traffic)
    table, arrivals = summarise_traffic(ledger), find_arrivals(ledger)
    alike = len({row.ranks for row in table.rows}) == 1
    steps = len(table.steps)
    return CapturedSide(
        name,
        str(traffic.path or name),
        traffic.ranks,
        steps,
        table.step_ns,
        sum(row.calls_per_step for row in table.rows) if alike else None,
        sum(row.bytes_per_step for row in table.rows) if alike and table.sized else None,
        arrivals.wait_ns / steps if arrivals and arrivals.calls and steps else None,
        table,
        arrivals,
    )


Key = tuple[object, ...]


def _by_key(rows: list[TrafficRow]) -> dict[Key, TrafficRow]:
    """Returns the rows by what the sides must have in common, and a number among equal ones."""
    seen: Counter[Key] = Counter()
    rows_by_key: dict[Key, TrafficRow] = {}
    for row in rows:
        size = (row.bytes_in, row.bytes_out)
        key = (row.collective, size, row.dtype, row.op, row.group_ranks, row.groups)
        numbered = (*key, seen[key])
        rows_by_key[numbered] = row
        seen[key] += 1
    return rows_by_key
