"""Shows the traffic of a training: tables, rows and the object of ``show``; who came last, and what
a step waits for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.answer import PROBABLY, Answer
from torchcoll.core.errors import one_line
from torchcoll.core.summary import median
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
from torchcoll.parts.training.arrivals import Arrivals, RankArrival
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_charts import step_charts, traffic_charts
from torchcoll.parts.training.traffic_table import (
    Exposed,
    OverTime,
    TrafficRow,
    TrafficTable,
    quote_numbers,
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

VIEWS = ("calls", "modules", "ranks", "time")
_ALL = 0.99  # of the exposed time
_FACTS = "steps total marked statistic step_ns computing_ns busy_ns wait_ns"
MOST_ROWS = 10  # of modules and of ranks; ``--format json`` has all of them
_LATE = (
    "last: with the shortest time of a call; caused: the waiting of all other ranks in these "
    "calls; late: chance does not explain it"
)
_SUMMARY = (
    "in flight: a collective runs; exposed: it runs, and the rank does nothing else; waiting: for "
    "the last rank of a call; each the mean of the ranks"
)
_BYTES = "bytes a step: the input of one rank"
_TIME = "time a step: of the calls on their slowest ranks, added up; they may overlap"
_WAITING = "waiting: for the last rank of each call, on the rank that waited longest"
_TRANSFER = "transfer: from when all ranks had begun a call; medians of columns need not add up"
_ALGORITHM = "algorithm: a hint (?) by the names of the kernels, some of which run others too"
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


def _percent(share: float | None, decimals: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{decimals}f} %"


def _whole_percent(share: float | None) -> str:
    return _percent(share, 0)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else one_line(value)


def _bytes(size_bytes: float | None) -> str:
    if size_bytes is None:
        return "varies"
    whole = float(size_bytes).is_integer()
    return format_size(int(size_bytes)) if whole else format_bytes(size_bytes)


def _count(number: float) -> str:
    return format_digits(number, 4)


# Fields of the rows of all tables: the heading, and the cell of a value.
_COLUMNS: dict[str, tuple[Head, Callable[[Any], str]]] = {
    "collective": (Head("collective", left=True, repeat=True), _plain),
    "bytes_in": (Head("bytes", "in", repeat=True), _bytes),
    "bytes_out": (Head("bytes", "out"), _bytes),
    "dtype": (Head("dtype", left=True), _plain),
    "op": (Head("op", left=True), _plain),
    "group": (Head("group", left=True, repeat=True), _plain),
    "group_ranks": (Head("ranks", "a group"), _plain),
    "groups": (Head("groups"), _plain),
    "backend": (Head("backend", left=True), _plain),
    "asynchronous": (Head("async", left=True), _plain),
    "ranks": (Head("ranks", left=True), _plain),
    "clock": (Head("clock", left=True), _plain),
    "calls_per_step": (Head("calls", "a step"), _count),
    "bytes_per_step": (Head("bytes", "a step", legend=_BYTES), _bytes),
    "time_per_step_ns": (Head("time", "a step", legend=_TIME), format_time),
    "wait_per_step_ns": (Head("waiting", "a step", legend=_WAITING), format_time),
    "transfer_per_step_ns": (Head("transfer", "a step", drop=3, legend=_TRANSFER), format_time),
    "median_ns": (Head("median", "a call", drop=2), format_time),
    "share": (Head("share", "of step", drop=1), _percent),
    "exposed_ns": (Head("exposed", "a step"), format_time),
    # ``RING/LL?``: the question mark of ``show`` for what is known only from a kernel's name.
    "algorithm": (
        Head("algorithm", left=True, drop=3, legend=_ALGORITHM),
        lambda text: "-" if text is None else one_line(text).replace(", ", "?, ") + "?",
    ),
    "module": (
        Head("module", left=True, repeat=True),
        lambda name: one_line(quote_numbers(name)),
    ),
    "rank": (Head("rank", repeat=True), _plain),
    "host": (Head("host", left=True), _plain),
    "step_ns": (Head("step"), format_time),
    "computing_ns": (Head("computing"), format_time),
    "in_flight_ns": (Head("in flight"), format_time),
    "idle_ns": (Head("idle", legend="computing + exposed + idle = the step"), format_time),
    "wait_ns": (Head("wait"), format_time),
    "chance": (Head("by", "chance"), _whole_percent),
    "caused_ns": (Head("caused"), format_time),
    "caused_share": (Head("% of", "waiting"), _whole_percent),
}
_FIGURES = [*_COLUMNS][[*_COLUMNS].index("calls_per_step") : [*_COLUMNS].index("module")]


def _columns(names: Iterable[str], sized: bool = True) -> list[tuple[Head, Callable[[Any], str]]]:
    """Returns the columns of these fields; without those of bytes if the source has no sizes."""

    def column(head: Head, cell: Callable[[Any], str], name: str) -> Any:
        return head, lambda row: cell(getattr(row, name))

    kept = [name for name in names if sized or not name.startswith("bytes_")]
    return [column(*_COLUMNS[name], name) for name in kept]


def show_traffic(
    traffics: Sequence[Traffic],
    format: str = "table",
    file: TextIO | None = None,
    views: Sequence[str] = ("calls", "modules", "time"),
) -> None:
    """Prints the traffic of each source. Raises UsageError for an unknown format.

    - views: names of VIEWS, shown below the summary.
    """
    forms = []
    for traffic in traffics:
        table = summarise_traffic(Ledger(traffic))
        file_name = {"file": one_line(traffic.path or "traffic")} if len(traffics) > 1 else {}
        facts = select_fields(table, _FACTS)
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
            "rows": list(map(dataclasses.asdict, table.rows)),
            "exposed": select_fields(table.exposed, "total_ns share unknown"),
            "modules": [
                {**dataclasses.asdict(row), "parameters": traffic.parameters.get(row.module, ())}
                for row in table.exposed.modules
            ],
            "ranks": [dataclasses.asdict(rank) for rank in table.ranks],
            **({"over_time": dataclasses.asdict(table.over_time)} if table.over_time else {}),
            **({"arrivals": arrivals_object(table.arrivals)} if table.arrivals else {}),
        }
        if not table.sized:
            for row in (*document["rows"], *document["modules"]):
                row.update((name, None) for name in row if name.startswith("bytes_"))
        records = [{**file_name, **row} for row in document["rows"]]
        forms.append(Forms(traffic_grids(traffic, table, views), document, records))
    print_results(forms, format, file)


def traffic_grids(
    traffic: Traffic, table: TrafficTable, views: Sequence[str] = VIEWS
) -> list[Grid]:
    """Returns the summary and the tables of the views, followed by what is left out and unknown."""
    grids = [_summary(traffic, table)] if table.marked and table.rows else []
    if "calls" in views or not grids:
        grids.append(_calls(table))
    grids[0].above = [*_title(traffic, table), *grids[0].above]
    if "modules" in views and table.exposed.modules:
        grids.append(_modules(table))
    if "time" in views and table.over_time:
        grids.append(_time_grid(table.over_time))
    if "ranks" in views and table.marked:
        names = ("rank", "step_ns", "computing_ns", "in_flight_ns", "exposed_ns", "idle_ns")
        grids.append(make_grid(_columns((*names, "wait_ns")), table.ranks, above=["by rank:"]))
    if "ranks" in views and table.arrivals:
        grids.append(_arrivals_grid(table.arrivals))
    answer = traffic_answer(table)
    below = [*table.notes, *traffic.notes, *traffic.problems]
    return [*grids, Grid([], [], below=[one_line(text) for text in below], answer=answer)]


def _summary(traffic: Traffic, table: TrafficTable) -> Grid:
    """Returns the table of five rows: what a step consists of, and where most of it is."""

    def rank_with_most(figure: str) -> str:
        candidates = [rank for rank in table.ranks if getattr(rank, figure)]
        most = max(candidates, key=lambda rank: getattr(rank, figure), default=None)
        return f"on rank {most.rank}" if most and len(table.ranks) > 1 else ""

    exposed = table.exposed
    of_exposed, module = "", exposed.most
    if module:
        moving = f"{format_ns(module.moving_ns, 3)} without waiting, on average"
        of_exposed = f"{one_line(module.text)}: {moving}"
    elif exposed.unknown:
        number = exposed.unknown
        of_exposed = f"not known of {_count(number)} {plural(number, 'call')} a step"
    computing = rank_with_most("computing_ns")
    if table.computing_ns is None:
        computing = "not recorded: traces of torch.profiler have it"
    waited = table.arrivals.ranks[0] if table.arrivals and table.arrivals.ranks else None
    rows = [
        ("step", table.step_ns, rank_with_most("step_ns")),
        ("computing", table.computing_ns, computing),
        ("in flight", table.busy_ns, rank_with_most("in_flight_ns")),
        ("exposed", None if exposed.unknown else exposed.total_ns, of_exposed),
        (
            "waiting",
            table.wait_ns,
            f"for rank {waited.rank}: {_whole_percent(waited.caused_share)} of all waiting"
            if waited
            else "not known from one rank alone" * (len(table.ranks) == 1 < traffic.ranks),
        ),
    ]
    if table.replayed:  # nothing is computed, so every call is exposed
        rows = [row for row in rows if row[0] not in ("computing", "exposed")]
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


def _calls(table: TrafficTable) -> Grid:
    if not table.rows:
        return Grid([], [], below=["no calls"])
    names = ["collective", "bytes_in"]
    if any(row.bytes_out != row.bytes_in for row in table.rows):
        names.append("bytes_out")
    names += [name for name, varies in _varying(table.rows).items() if varies]
    return make_grid(_columns([*names, *_FIGURES], table.sized), table.rows)


def _varying(rows: Sequence[TrafficRow]) -> dict[str, bool]:
    """Returns the dimensions that are worth showing: whether they differ between the rows."""
    values = {name: distinct_values(rows, name) for name in _TRAFFIC_DIMENSIONS}
    return {
        name: len(each) > 1
        for name, each in values.items()
        if each not in ([], [_NOTHING.get(name)])
    }


def _modules(table: TrafficTable) -> Grid:
    """Returns the table of modules, those with most exposed or sent first."""
    rows = sorted(
        table.exposed.modules,
        key=lambda row: (row.exposed_ns or 0, row.time_per_step_ns or 0, row.bytes_per_step),
        reverse=True,
    )
    more = len(rows) - MOST_ROWS
    figures = ("calls_per_step", "bytes_per_step", "time_per_step_ns", "exposed_ns", "share")
    columns = _columns(("module", "collective", *figures), table.sized)
    return make_grid(
        [(dataclasses.replace(head, legend=""), cell) for head, cell in columns],
        rows[:MOST_ROWS],
        above=["by module: whose parameters or gradients the calls move"],
        below=[f"{more} more, with less: --format json has all of them"] if more > 0 else [],
    )


def _arrivals_grid(arrivals: Arrivals) -> Grid:
    rows = sorted(arrivals.ranks, key=lambda row: not row.late)
    shown = rows[: max(MOST_ROWS, sum(row.late for row in rows))]
    several = len({row.group for row in rows}) > 1
    columns = _columns(("rank", "host", *["group"] * several))
    columns.append((Head("calls"), lambda row: str(row.calls)))
    columns.append((Head("last in", "% of calls"), lambda row: _percent(row.last / row.calls, 0)))
    columns += _columns(("chance", "caused_ns", "caused_share"))
    columns.append((Head("late", left=True), _late_text))
    below = [
        f"{counted(number, 'call')} not counted: {reason}"
        for reason, number in {"no single rank was last": arrivals.ties, **arrivals.unsplit}.items()
        if number
    ]
    if len(rows) > len(shown):
        below.insert(0, f"the {len(shown)} of {len(rows)} rows with most waiting caused")
    return make_grid(columns, shown, above=[_LATE], below=below)


def _late_text(row: RankArrival) -> str:
    if row.small:
        return "< 1 %"
    if row.undecided:
        return "probably" if row.probable else "unknown"
    if not row.late:
        return "chance" if row.p > 0.05 else "-"
    if row.after is not None:
        return f"after rank {row.after}"
    return row.when or "yes"


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


def arrivals_object(arrivals: Arrivals) -> dict[str, Any]:
    return {"answer": arrivals.answer.to_json(), **dataclasses.asdict(arrivals)}


def traffic_answer(table: TrafficTable) -> Answer | None:
    """Who is late; first what communication costs a step, where no rank is late. None if there are
    no calls.
    """
    cost, arrivals = _cost(table), table.arrivals
    if arrivals is None or cost is None:
        return cost
    who = arrivals.answer
    details = (*_why_late(table, arrivals), *who.details)
    who = dataclasses.replace(who, subject=one_line(who.subject), details=details)
    if table.replayed and not arrivals.late:
        return cost
    if (who.certainty == PROBABLY or arrivals.late) and not cost.next_step:
        return dataclasses.replace(who, details=(*who.details, cost.text))
    details = (*cost.details, who.headline, *map(one_line, who.details))
    return dataclasses.replace(cost, details=details, next_step=cost.next_step or who.next_step)


def _why_late(table: TrafficTable, arrivals: Arrivals) -> list[str]:
    """Returns what the late rank does longer than the other ranks, if that explains the waiting."""
    texts = []
    late, waited_ns = next(iter(arrivals.suspects), -1), arrivals.answer.size
    for name, verb in (
        ("computing_ns", "computes"),
        ("idle_ns", "is idle"),
        ("outside_ns", "is outside of calls"),
    ):
        of_ranks = {rank.rank: getattr(rank, name) for rank in table.ranks}
        own_ns = of_ranks.pop(late, None)
        others = [ns for ns in of_ranks.values() if ns is not None]
        if own_ns and others and waited_ns and own_ns - median(others) >= waited_ns / 2:
            times = f"{format_ns(own_ns, 3)} in a step, the others {format_ns(median(others), 3)}"
            texts.append(f"it {verb} {times}")
    return texts


def _cost(table: TrafficTable) -> Answer | None:
    """What communication costs a step: what is exposed, or else how long any call is in flight."""
    if not table.rows:
        return None
    sent, busy_ns, step_ns = _sent(table), table.busy_ns, table.step_ns
    if table.behind:
        return dataclasses.replace(table.behind, details=(sent,))
    if not table.marked:
        unmarked = "(no steps are marked)"
        if not busy_ns:
            return Answer(sent, scope=unmarked)
        return _time_answer("communication", "takes {} in all", busy_ns, unmarked, sent)
    if not step_ns:
        return Answer(sent)
    if table.replayed:
        names = ("step", "step_ns", "in_flight_ns")
        number, trained_ns, flight_ns = map(table.replayed.get, names)
        which = "the captured step" if number is None else one_line(f"step {number}")
        details = [sent]
        if isinstance(trained_ns, int):
            training = f"the step took {format_ns(trained_ns, 3)}"
            if isinstance(flight_ns, int):
                training += f", and they were in flight for {format_ns(flight_ns, 3)} of it"
            details.insert(0, f"in training {training}")
        backends = one_line(", ".join(distinct_values(table.rows, "backend")))
        where = f"on {len(table.ranks)} {backends} ranks"
        answer = _time_answer(f"the calls of {which}", "take {} alone", step_ns, where, *details)
        return dataclasses.replace(answer, many=True)
    step, exposed = f"a step of {format_ns(step_ns, 3)}", table.exposed
    busy = None if busy_ns is None else _whole_percent(busy_ns / step_ns)
    if exposed.total_ns is not None and not exposed.unknown:
        scope = f"({_whole_percent(exposed.share)}{_spent_on(exposed)})"
        flight = [] if busy is None else [f"a collective is in flight in {busy} of the step"]
        verb = "spends {} on communication"
        return _time_answer(step, verb, exposed.total_ns, scope, *flight, sent)
    if busy_ns is None:
        return Answer(step, verb="has communication of unknown time", details=(sent,))
    return _time_answer(step, "has a collective in flight for {}", busy_ns, f"({busy})", sent)


def _time_answer(subject: str, verb: str, time_ns: float, scope: str, *details: str) -> Answer:
    return Answer(subject, verb=verb, size=time_ns, unit="ns", scope=scope, details=details)


def _spent_on(exposed: Exposed) -> str:
    """Returns for what the exposed time of a step is: waiting, and the module with most calls."""
    total_ns, most, share = exposed.total_ns or 0.0, exposed.most, exposed.share or 0.0
    if exposed.waiting_ns and exposed.waiting_ns >= _ALL * total_ns:
        return ", all of it waiting for other ranks"
    if not exposed.waiting_ns:
        return f", most of it for the {one_line(most.text)}" if most else ""
    waiting = share * exposed.waiting_ns / total_ns
    calls = _whole_percent(share - waiting)
    parts = f": {_whole_percent(waiting)} waiting for other ranks, {calls} in calls"
    return f"{parts}, most for the {one_line(most.text)}" if most else parts


def _sent(table: TrafficTable) -> str:
    numbers = table.most_calls.items()
    calls = ", ".join(f"{_count(number)} {one_line(name)}" for name, number in numbers)
    span = " a step" if table.marked else " in all"
    alike = len({row.ranks for row in table.rows}) == 1
    if alike and table.sized:
        size = format_bytes(sum(row.bytes_per_step for row in table.rows))
        return f"each rank sends {size}{span} in {calls}"
    most = "" if alike else "at most "  # each rank has a different sum
    return f"each rank makes {most}{calls}{span}"


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
            (Head("wait", "a step"), lambda s: format_time(s.wait_ns)),
            (Head("transfer", "a step"), lambda s: format_time(s.transfer_ns)),
            (
                Head("most waiting", "caused by"),
                lambda s: (
                    "-"
                    if s.late_share is None
                    else f"rank {s.late_rank}, {_whole_percent(s.late_share)} of it"
                ),
            ),
        ],
        over_time.stretches,
        above=[f"over time: {drift}"],
    )


def add_traffic(draft: PageDraft) -> None:
    """Adds the sections of captures: the tables, the sentence and a chart of ``trace``."""
    from torchcoll.questions.page.page_draft import Drawing

    several = len(draft.material.traffic) > 1
    for traffic in draft.material.traffic:
        ledger = Ledger(traffic)
        table = summarise_traffic(ledger)
        grids = traffic_grids(traffic, table)
        name = f": {one_line(traffic.path or 'traffic')}" if several else ""
        drawing = Drawing("Where the step goes", partial(step_charts, ledger, table))
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
