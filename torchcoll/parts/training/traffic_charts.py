"""A chart of a training step that was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_ns
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traffic_table import (
    RankTimes,
    TrafficTable,
    quote_numbers,
    summarise_traffic,
)
from torchcoll.report import chart

MOST_BARS = 40  # of one chart
_TITLE = "Where the step goes"
COMPUTING, WAITING, REST = "computing", "waiting for another rank", "all else"
OTHER = "other communication"
_MOST_MODULES = 3
_LONGEST = 40  # letters of a module in the legend: the last, in which modules differ
# Of the modules, and of all other communication.
_OF_MODULES = chart.PALETTE[0], "#4c9cc9", "#8cbfdd", "#c3ddec"
_TIME = {
    "tickformat": "~s",
    "ticksuffix": "s",
    "rangemode": "tozero",
    "title": {"text": "time per step"},
}


def traffic_charts(traffic: Traffic) -> list[chart.Chart]:
    """What each rank does in a step, as ``step_charts``."""
    ledger = Ledger(traffic)
    return step_charts(ledger, summarise_traffic(ledger))


def step_charts(ledger: Ledger, table: TrafficTable) -> list[chart.Chart]:
    """The typical step of each rank and their mean: computing, the exposed calls of each module,
    waiting for other ranks; late ranks first. Without marks of steps, the calls of each rank.
    """
    late = table.arrivals.suspects if table.arrivals else {}
    if not ledger.steps.marked:
        return _calls_charts(ledger, late)
    every = [rank for rank in table.ranks if rank.step_ns]
    ranks = sorted(every, key=lambda rank: rank.rank not in late)[:MOST_BARS]
    of_modules = _module_times(ledger)
    totals = Counter[str]()
    for times in of_modules.values():
        totals.update(times)
    modules = [name for name, _ in totals.most_common() if name][:_MOST_MODULES]
    steps = {rank.rank: _step_parts(rank, of_modules[rank.rank], modules) for rank in every}
    names = (COMPUTING, *modules, OTHER, WAITING, REST)
    mean = {of: sum(parts[of] for parts in steps.values()) / len(every) for of in names if every}
    if not any(mean[of] for of in names[:-1] if every):
        return []
    rows = [mean, *(steps[rank.rank] for rank in ranks)]
    blues = [*_OF_MODULES[: len(modules)], _OF_MODULES[-1]]
    rest = chart.NEUTRAL if mean[COMPUTING] else chart.PALETTE[2]
    colours = (chart.PALETTE[2], *blues, chart.WAITING, rest)
    bars = []
    for of, colour in zip(names, colours, strict=True):
        if mean[of]:
            module = of if len(of) <= _LONGEST else f"...{of[-_LONGEST:].partition('.')[2]}"
            what = f"calls of {quote_numbers(module)}" if of in modules else of
            what = "outside of calls" if of == REST and not mean[COMPUTING] else what
            texts = [f"{chart.plain(what)}: {format_ns(row[of], 3)}" for row in rows]
            share = 100 * mean[of] / sum(mean.values())
            lengths = [chart.seconds(row[of]) for row in rows]
            name = f"{chart.plain(what)} {share:.0f} %"
            bars.append(chart.bars(name, lengths, texts, colour))
    of_ranks = [f"rank {rank.rank}{late.get(rank.rank, '')}" for rank in ranks]
    caption = [
        "the median step of each rank; shares of their mean; blue: calls that nothing hides",
        "a late rank waits least, and the others wait for it",
    ]
    if len(ranks) < len(every):
        caption.append(f"{len(ranks)} of {len(every)} ranks")
    return [chart.bar_chart(_TITLE, ["mean of the ranks", *of_ranks], bars, _TIME, caption)]


def _calls_charts(ledger: Ledger, late: Mapping[int, str]) -> list[chart.Chart]:
    """The calls of each rank, added up: waiting for the last rank, and the transfer after it."""
    every = sorted(ledger.entries, key=lambda rank: (rank not in late, rank))
    ranks = every[:MOST_BARS]
    waits, transfers = [], []
    for rank in ranks:
        split = [entry for entry in ledger.entries[rank] if rank in entry.waits_ns]
        waits.append(sum(entry.waits_ns[rank] for entry in split))
        transfers.append(sum(entry.transfer_ns or 0 for entry in split))
    if not any(waits):
        return []
    bars = [
        chart.bars(
            name,
            [chart.seconds(ns) for ns in times],
            [f"{name}: {format_ns(ns, 3)}" for ns in times],
            colour,
        )
        for name, times, colour in (
            ("transfer", transfers, chart.PALETTE[0]),
            (WAITING, waits, chart.WAITING),
        )
    ]
    caption = [
        "a late rank waits least, and the others wait for it",
        "all calls, added up; traffic.step() or an optimizer marks steps",
    ]
    if len(ranks) < len(every):
        caption.append(f"{len(ranks)} of {len(every)} ranks")
    names = [f"rank {rank}{late.get(rank, '')}" for rank in ranks]
    axis = _TIME | {"title": {"text": "time in collectives"}}
    return [chart.bar_chart("Who waits in the collectives", names, bars, axis, caption)]


def _module_times(ledger: Ledger) -> dict[int, Counter[str]]:
    """Rank -> module -> how long its calls of the steady steps are exposed, without the waiting."""
    times: dict[int, Counter[str]] = {}
    for rank, by_step in ledger.steps.at.items():
        of_rank = times[rank] = Counter()
        for step in ledger.steps.steady:
            for index in by_step.get(step, ()):
                of_rank[ledger.call(rank, index).module] += ledger.moving_ns(rank, index)
    return times


def _step_parts(
    rank: RankTimes, of_modules: Mapping[str, float], modules: Sequence[str]
) -> dict[str, float]:
    """The parts of the step of a rank, in ns: what it is exposed, split as the calls of modules."""
    waiting_ns = rank.exposed_wait_ns or 0.0
    exposed_ns = max(0.0, (rank.exposed_ns or 0.0) - waiting_ns)
    whole_ns = sum(of_modules.values()) or 1
    parts = {name: exposed_ns * of_modules.get(name, 0) / whole_ns for name in modules}
    parts[OTHER] = exposed_ns - sum(parts.values())
    parts |= {WAITING: waiting_ns, COMPUTING: rank.computing_ns or 0.0}
    return parts | {REST: max(0.0, (rank.step_ns or 0.0) - sum(parts.values()))}
