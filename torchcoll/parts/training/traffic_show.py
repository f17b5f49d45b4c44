"""Shows the traffic of a training: tables, rows and the object of ``show``; who came last, and what
a step waits for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.answer import PROBABLY, Answer
from torchcoll.core.errors import one_line
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import (
    counted,
    format_bytes,
    format_digits,
    format_ns,
    format_ranges,
    format_size,
    format_time,
    plural,
)
from torchcoll.parts.training.arrivals import Arrivals, RankArrival, find_arrivals
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_charts import step_charts, traffic_charts
from torchcoll.parts.training.traffic_table import (
    Exposed,
    ModuleRow,
    OverTime,
    RankTimes,
    TrafficRow,
    TrafficTable,
    summarise_traffic,
    traffic_frame,
)
from torchcoll.report.columns import distinct_values
from torchcoll.report.destination import clock_text
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head, make_grid
from torchcoll.report.shown import Shown
from torchcoll.stats.drift import LEAST, SURE, drift_text

if TYPE_CHECKING:
    from torchcoll.questions.page.page_draft import PageDraft

_MOST_ROWS = 8
_LAST = (
    "who came last: the rank with the shortest time of a call; caused: the waiting of all other "
    "ranks in these calls"
)
_TEST = (
    "late = yes: this rank comes later than the others on average, and chance does not explain it "
    "(error 5 % over all ranks, groups and thirds of the time)"
)


def arrivals_answer(arrivals: Arrivals, sent: Answer | None) -> Answer:
    """Who is late, and ``sent``, the answer on what was sent; that first where no rank is late."""
    who = arrivals.answer
    who = dataclasses.replace(who, subject=one_line(who.subject))
    if sent is None:
        return who
    if (who.certainty == PROBABLY or arrivals.late) and not sent.next_step:
        return dataclasses.replace(who, details=(*who.details, sent.text))
    details = (*sent.details, who.headline, *map(one_line, who.details))
    return dataclasses.replace(sent, details=details, next_step=sent.next_step or who.next_step)


def arrivals_object(arrivals: Arrivals) -> dict[str, Any]:
    return {"answer": arrivals.answer.to_json(), **dataclasses.asdict(arrivals)}


def arrivals_grids(arrivals: Arrivals) -> list[Grid]:
    several = len({row.group for row in arrivals.ranks}) > 1
    chosen = [row for row in arrivals.ranks if row.late]
    chosen += [row for row in arrivals.ranks if not row.late][: max(0, _MOST_ROWS - len(chosen))]
    with_host = any(row.host for row in chosen)
    columns = [(Head("rank", repeat=True), lambda r: str(r.rank))]
    columns += [(Head("host", left=True), lambda r: one_line(r.host or "-"))] * with_host
    columns += [(Head("group", left=True, repeat=True), lambda r: one_line(r.group))] * several
    columns += [
        (Head("calls"), lambda r: str(r.calls + r.ties)),
        (Head("last in", "% of calls"), lambda r: _whole_percent(r.share)),
        (Head("by", "chance"), lambda r: _whole_percent(r.chance)),
        (Head("caused"), lambda r: format_time(r.caused_ns)),
        (Head("% of", "waiting"), lambda r: _whole_percent(r.caused_share)),
        (Head("late", left=True), _late_text),
    ]
    below = []
    if len(arrivals.ranks) > len(chosen):
        below.append(f"the {len(chosen)} of {len(arrivals.ranks)} rows with most waiting caused")
    below += [
        f"{counted(number, 'call')} not counted: {reason}"
        for reason, number in arrivals.unsplit.items()
    ]
    return [make_grid(columns, chosen, above=[_LAST, _TEST], below=below)]


def _late_text(row: RankArrival) -> str:
    if row.small:
        return "< 1 %"
    if row.undecided:
        return "unknown"
    if not row.late:
        return "chance" if row.p > 0.05 else "-"
    if row.after is not None:
        return f"after rank {row.after}"
    return row.when or "yes"


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


MOST_ROWS = 10
_EXPOSED_OF_MODULE = (
    "exposed: the call is in flight and the rank does nothing else (in a capture: the program "
    "waits for the call); each row is for the rank on which it takes longest"
)


def exposed_object(exposed: Exposed, traffic: Traffic) -> dict[str, Any]:
    """Returns the members of a JSON document: the total, and all modules with their parameters."""
    modules = [
        {**dataclasses.asdict(row), "parameters": list(traffic.parameters.get(row.module, ()))}
        for row in exposed.modules
    ]
    total = {"total_ns": exposed.total_ns, "share": exposed.share, "unknown": exposed.unknown}
    return {"exposed": total, "modules": modules}


def module_grids(exposed: Exposed) -> list[Grid]:
    """Returns the table of modules, those with most exposed or sent first; [] without modules."""
    if not exposed.modules:
        return []

    def order(row: ModuleRow) -> tuple[float, ...]:
        return row.exposed_ns or 0, row.time_per_step_ns or 0, row.bytes_per_step

    rows = sorted(exposed.modules, key=order, reverse=True)
    more = len(rows) - MOST_ROWS
    below = [f"{more} more, with less: --format json has all of them"] if more > 0 else []
    grid = make_grid(
        [
            (Head("module", left=True, repeat=True), lambda row: one_line(row.module)),
            (Head("collective", left=True, repeat=True), lambda row: one_line(row.collective)),
            (Head("calls", "a step", drop=2), lambda row: format_digits(row.calls_per_step)),
            (Head("bytes", "a step", drop=1), lambda row: format_bytes(row.bytes_per_step)),
            (Head("time", "a step"), lambda row: format_time(row.time_per_step_ns)),
            (
                Head("exposed", "a step", legend=_EXPOSED_OF_MODULE),
                lambda row: format_time(row.exposed_ns),
            ),
            (Head("share", "of step"), lambda row: _percent(row.share)),
        ],
        rows[:MOST_ROWS],
        above=["by module: whose parameters or gradients the calls move"],
    )
    grid.below = [*grid.below, *below]
    return [grid]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


_SUMMARY = (
    "in flight: a collective runs; exposed: it runs, and the rank does nothing else; waiting: for "
    "the last rank of a call; each on the rank with the most"
)
_BYTES = "bytes a step: the input of one rank"
_TIME = (
    "time a step: the calls' times on their slowest ranks, which include waiting for other ranks, "
    "summed over a step; each row has its own median or mean over steps, so rows need not add up"
)
_WAITING = (
    "waiting: for the last rank of each call, on the rank that waited longest; transfer: the rest "
    "of the time, from when all ranks had begun the call"
)
_ALGORITHM = "algorithm: a hint (?) by the names of the kernels, some of which run others too"
_EXPOSED = "exposed: the part of that time that no computation hides, an estimate"
# Dimensions are columns, or part of the header if all rows agree; the functions make that text.
_TRAFFIC_DIMENSIONS: dict[str, Callable[[Any], str]] = {
    "ranks": "ranks {}".format,
    "backend": str,
    "dtype": str,
    "op": str,
    "group": "group {}".format,
    "group_ranks": lambda value: f"{counted(value, 'rank')} a group",
    "groups": "{} groups".format,
    "asynchronous": lambda value: "async" if value else "not async",
    "clock": "{} clock".format,
}
_NOTHING = {"group_ranks": 0, "groups": 1}  # values that are not worth showing


VIEWS = ("calls", "modules", "ranks", "time")


def show_traffic(
    traffics: Sequence[Traffic],
    format: str = "table",
    file: TextIO | None = None,
    views: Sequence[str] = ("calls", "modules", "time"),
    step: int | None = None,
) -> None:
    """Prints the traffic of each source.

    - views: names of VIEWS, shown below the summary.
    - step: the number of a step, which alone is shown; None: the steady steps.

    Raises UsageError for an unknown format or step.
    """
    forms = []
    for traffic in traffics:
        ledger = Ledger(traffic)
        if step is not None:
            ledger.keep_step(step)
        table, arrivals = summarise_traffic(ledger), find_arrivals(ledger)
        file_name = {"file": one_line(traffic.path or "traffic")} if len(traffics) > 1 else {}
        apart = ("rows", "ranks", "over_time", "exposed", "behind", "most_calls")
        facts = {name: value for name, value in vars(table).items() if name not in apart}
        document: dict[str, Any] = {
            "schema": "torchcoll-traffic-rows/1",
            "traffic": {
                "path": None if traffic.path is None else str(traffic.path),
                **select_fields(traffic, "source ranks"),
                "recorded": sorted(traffic.calls),
                **facts,
                "notes": [*table.notes, *traffic.notes],
                "problems": traffic.problems,
            },
            "rows": [select_fields(row, " ".join(_COLUMNS)) for row in table.rows],
            **exposed_object(table.exposed, traffic),
            "ranks": [dataclasses.asdict(rank) for rank in table.ranks],
            **({"over_time": dataclasses.asdict(table.over_time)} if table.over_time else {}),
            **({"arrivals": arrivals_object(arrivals)} if arrivals else {}),
        }
        records = [{**file_name, **row} for row in document["rows"]]
        forms.append(Forms(traffic_grids(traffic, table, arrivals, views), document, records))
    print_results(forms, format, file)


def traffic_grids(
    traffic: Traffic,
    table: TrafficTable,
    arrivals: Arrivals | None = None,
    views: Sequence[str] = VIEWS,
) -> list[Grid]:
    """Returns the summary and the tables of the views, followed by what is left out and unknown."""
    grids = [_summary(table, arrivals)] if table.marked and table.rows else []
    if "calls" in views or not grids:
        grids.append(_calls(table))
    grids[0].above = [*_title(traffic, table), *grids[0].above]
    if "modules" in views:
        grids += module_grids(table.exposed)
    if "time" in views and table.over_time:
        grids.append(_time_grid(table.over_time))
    if "ranks" in views:
        grids += [_rank_times(table.ranks)] if table.marked else []
        grids += arrivals_grids(arrivals) if arrivals else []
    answer = traffic_answer(table)
    answer = arrivals_answer(arrivals, answer) if arrivals else answer
    below = [*table.notes, *traffic.notes, *traffic.problems]
    return [*grids, Grid([], [], below=[one_line(text) for text in below], answer=answer)]


def _summary(table: TrafficTable, arrivals: Arrivals | None) -> Grid:
    """Returns the table of five rows: what a step consists of, and where most of it is."""

    def rank_with_most(figure: str) -> str:
        candidates = [rank for rank in table.ranks if getattr(rank, figure)]
        most = max(candidates, key=lambda rank: getattr(rank, figure), default=None)
        return f"on rank {most.rank}" if most and len(table.ranks) > 1 else ""

    exposed = table.exposed
    module = exposed.most
    waited = arrivals.ranks[0] if arrivals and arrivals.ranks else None
    rows = [
        ("step", table.step_ns, rank_with_most("step_ns")),
        ("computing", table.computing_ns, rank_with_most("computing_ns")),
        ("in flight", table.busy_ns, rank_with_most("in_flight_ns")),
        (
            "exposed",
            None if exposed.unknown else exposed.total_ns,
            f"{one_line(module.text)}: {format_ns(module.exposed_ns, 3)}" if module else "",
        ),
        (
            "waiting",
            table.wait_ns,
            f"for rank {waited.rank}: {_whole_percent(waited.caused_share)} of all waiting"
            if waited
            else "",
        ),
    ]
    return make_grid(
        [
            (Head("", left=True), lambda row: row[0]),
            (Head("a step"), lambda row: format_time(row[1])),
            (
                Head("share"),
                lambda row: _percent(row[1] / table.step_ns if row[1] and table.step_ns else None),
            ),
            (Head("most of it", left=True, legend=_SUMMARY), lambda row: row[2]),
        ],
        rows,
    )


def _rank_times(ranks: Sequence[RankTimes]) -> Grid:
    names = ("step", "computing", "in_flight", "exposed", "idle", "wait")
    return make_grid(
        [
            (Head("rank", repeat=True), lambda rank: str(rank.rank)),
            *(
                (
                    Head(name.replace("_", " ")),
                    lambda rank, name=name: format_time(getattr(rank, f"{name}_ns")),
                )
                for name in names
            ),
        ],
        ranks,
        above=["by rank: computing + exposed + idle = the step"],
    )


def _calls(table: TrafficTable) -> Grid:
    columns = [_COLUMNS[name] for name in _default(table.rows)]
    rows = [[cell(row) for _, cell in columns] for row in table.rows]
    heads = [head for head, _ in columns]
    return Grid(heads, rows, [_BYTES] if rows else [], [] if rows else ["no calls"])


def _varying(rows: Sequence[TrafficRow]) -> dict[str, bool]:
    """Returns the dimensions that are worth showing: whether they differ between the rows."""
    values = {name: distinct_values(rows, name) for name in _TRAFFIC_DIMENSIONS}
    return {
        name: len(each) > 1
        for name, each in values.items()
        if each not in ([], [_NOTHING.get(name)])
    }


def _default(rows: Sequence[TrafficRow]) -> list[str]:
    keys = ["collective", "bytes_in"]
    if any(row.bytes_out != row.bytes_in for row in rows):
        keys.append("bytes_out")
    keys += [name for name, varies in _varying(rows).items() if varies]
    keys += ["calls_per_step", "bytes_per_step"]
    figures = ["time_per_step_ns", "wait_per_step_ns", "transfer_per_step_ns", "median_ns", "share"]
    figures += ["exposed_ns", "algorithm"]
    return keys + [name for name in figures if any(getattr(row, name) is not None for row in rows)]


def _title(traffic: Traffic, table: TrafficTable) -> list[str]:
    """Returns the source, the ranks, what all rows share, and the steps."""
    recorded = format_ranges(traffic.calls)
    who = f"{plural(len(traffic.calls) or 1, 'rank')} {recorded or 'none'} of {traffic.ranks}"
    alone = traffic.source == "flight recorder" and len(traffic.calls) == 1
    if alone and not any(group.ranks for group in traffic.groups.values()):
        who = f"rank {recorded} of an unknown number"
    elif len(traffic.calls) == traffic.ranks:
        who = counted(traffic.ranks, "rank")
    common = [name for name, varies in _varying(table.rows).items() if not varies]
    values = {name: distinct_values(table.rows, name)[0] for name in common if name != "ranks"}
    facts = [
        one_line(_TRAFFIC_DIMENSIONS[name](value)) for name, value in values.items() if value != ""
    ]
    if table.marked and table.rows:
        which = f"{plural(len(table.steps), 'step')} {format_ranges(table.steps)} of {table.total}"
        facts.append(f"{which}, {table.statistic} over them" if len(table.steps) > 1 else which)
    name = one_line(traffic.path or "traffic")
    lines = [f"{name}: {', '.join([one_line(traffic.source), who, *facts])}"]
    if traffic.left_out:
        every = sum(map(len, traffic.calls.values())) + traffic.left_out
        lines.append(
            f"{traffic.left_out} of {every} calls have no size in the source: not included here"
        )
    return lines


def traffic_answer(table: TrafficTable) -> Answer | None:
    """How long a step takes, how much of it a collective is in flight, and what is sent. None if
    there are no calls.
    """
    if not table.rows:
        return None
    numbers = table.most_calls.items()
    sent = ", ".join(f"{_count(number)} {one_line(name)}" for name, number in numbers)
    if len({row.ranks for row in table.rows}) == 1:
        sent += f", {format_bytes(sum(row.bytes_per_step for row in table.rows))} per rank"
    elif len(table.ranks) > 1:  # each rank has a different sum
        sent = f"at most {sent} per rank"
    if not table.marked:
        sent += " in all (no steps are marked)"
        return dataclasses.replace(table.behind, details=(sent,)) if table.behind else Answer(sent)
    if not table.step_ns:
        return Answer(f"a step sends {sent}")
    text = f"a step takes {format_ns(table.step_ns, 3)}"
    if table.busy_ns is not None:
        text += f", {100 * table.busy_ns / table.step_ns:.0f} % of it with a collective in flight"
    if table.exposed.share is not None and not table.exposed.unknown:
        text += f" and {100 * table.exposed.share:.0f} % exposed"
        if most := table.exposed.most:
            text += f" (most for the {one_line(most.text)})"
    return Answer(f"{text}; {sent}")


def _time_grid(over_time: OverTime) -> Grid:
    """Returns the table over time: drift, and which rank was late when."""
    if over_time.drift is None:
        drift = "too few steps to tell of drift"
    else:
        drift = f"{drift_text(over_time.drift)}, the last quarter of the time over the first [90 %]"
        if over_time.drift.p <= SURE and abs(over_time.drift.value) >= LEAST:
            drift = f"steps became {'slower' if over_time.drift.value > 0 else 'faster'}: {drift}"
        else:
            drift = f"no drift of the time of a step shown: {drift}"

    return make_grid(
        [
            (Head("from"), lambda s: clock_text(s.from_s)),
            (Head("to"), lambda s: clock_text(s.to_s)),
            (Head("steps"), lambda s: str(s.steps)),
            (Head("a step", "takes"), lambda s: format_time(s.step_ns)),
            (Head("wait", "a step", legend=_WAIT), lambda s: format_time(s.wait_ns)),
            (Head("transfer", "a step"), lambda s: format_time(s.transfer_ns)),
            (
                Head("most waiting", "caused by"),
                lambda s: (
                    "-"
                    if s.late_share is None
                    else f"rank {s.late_rank}, {100 * s.late_share:.0f} % of it"
                ),
            ),
        ],
        over_time.stretches,
        above=[f"over time: {drift}"],
    )


_WAIT = (
    "wait, transfer: added up over the calls of a step, on the rank with most; medians over steps"
)


def _count(number: float) -> str:
    return format_digits(number, 4)


def _bytes(size_bytes: float) -> str:
    return (
        format_size(int(size_bytes)) if float(size_bytes).is_integer() else format_bytes(size_bytes)
    )


def _traffic_cell(name: str) -> Callable[[Any], str]:
    def cell(row: Any) -> str:
        value = getattr(row, name)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return "-" if value in (None, "") else one_line(value)

    return cell


def _size(name: str) -> Callable[[Any], str]:
    def cell(row: Any) -> str:
        value = getattr(row, name)
        return "varies" if value is None else format_size(value)

    return cell


# Every field of a TrafficRow, in order: its heading and its cell.
_COLUMNS: dict[str, tuple[Head, Callable[[Any], str]]] = {
    "collective": (Head("collective", left=True, repeat=True), _traffic_cell("collective")),
    "bytes_in": (Head("bytes", "in", repeat=True), _size("bytes_in")),
    "bytes_out": (Head("bytes", "out"), _size("bytes_out")),
    "dtype": (Head("dtype", left=True), _traffic_cell("dtype")),
    "op": (Head("op", left=True), _traffic_cell("op")),
    "group": (Head("group", left=True, repeat=True), _traffic_cell("group")),
    "group_ranks": (Head("ranks", "a group"), _traffic_cell("group_ranks")),
    "groups": (Head("groups"), _traffic_cell("groups")),
    "backend": (Head("backend", left=True), _traffic_cell("backend")),
    "asynchronous": (Head("async", left=True), _traffic_cell("asynchronous")),
    "ranks": (Head("ranks", left=True), _traffic_cell("ranks")),
    "calls_per_step": (Head("calls", "a step"), lambda row: _count(row.calls_per_step)),
    "bytes_per_step": (Head("bytes", "a step"), lambda row: _bytes(row.bytes_per_step)),
    "time_per_step_ns": (
        Head("time", "a step", legend=_TIME),
        lambda row: format_time(row.time_per_step_ns),
    ),
    "wait_per_step_ns": (
        Head("waiting", "a step", legend=_WAITING),
        lambda row: format_time(row.wait_per_step_ns),
    ),
    "transfer_per_step_ns": (
        Head("transfer", "a step", drop=3),
        lambda row: format_time(row.transfer_per_step_ns),
    ),
    "median_ns": (Head("median", "a call", drop=2), lambda row: format_time(row.median_ns)),
    "clock": (Head("clock", left=True), _traffic_cell("clock")),
    "share": (
        Head("share", "of step", drop=1),
        lambda row: "-" if row.share is None else f"{100 * row.share:.1f} %",
    ),
    "exposed_ns": (
        Head("exposed", "a step", legend=_EXPOSED),
        lambda row: format_time(row.exposed_ns),
    ),
    # ``RING/LL?``: the question mark of ``show`` for what is known only from a kernel's name.
    "algorithm": (
        Head("algorithm", left=True, drop=3, legend=_ALGORITHM),
        lambda row: (
            "-" if row.algorithm is None else one_line(row.algorithm).replace(", ", "?, ") + "?"
        ),
    ),
}


def add_traffic(draft: PageDraft) -> None:
    """Adds the sections of captures: the tables, the sentence and a chart of ``trace``."""
    from torchcoll.questions.page.page_draft import Drawing

    several = len(draft.material.traffic) > 1
    for traffic in draft.material.traffic:
        ledger = Ledger(traffic)
        arrivals = find_arrivals(ledger)
        table = summarise_traffic(ledger)
        grids = traffic_grids(traffic, table, arrivals)
        name = f": {one_line(traffic.path or 'traffic')}" if several else ""
        drawing = Drawing("Where the step goes", partial(step_charts, ledger, table, arrivals))
        command = draft.command("trace", "traffic")
        draft.add(f"What a training sends{name}", grids, command, [drawing])
        if not several and grids[-1].answer:
            draft.answers[-1] = grids[-1].answer  # the sentence of trace, without a title


TRAFFIC = Shown(
    show_traffic,
    charts=traffic_charts,
    frame=traffic_frame,
    answer=lambda traffic: traffic_answer(summarise_traffic(Ledger(traffic))),
)
SHOWN = {Traffic: TRAFFIC}
