"""The tables of who came last, and who waited for whom."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_time
from torchcoll.report.answer import Answer
from torchcoll.report.grid import Grid, Head, make_grid

if TYPE_CHECKING:
    from torchcoll.parts.training.arrivals import Arrivals, RankArrival

_MOST_ROWS = 8
_LAST = (
    "who came last: the rank with the shortest time of a call; caused: the waiting of all other "
    "ranks in these calls"
)
_TEST = (
    "late = yes: this rank comes later than the others on average, and chance does not explain it "
    "(error 5 % over all ranks, groups and thirds of the time)"
)
_PAIRS = "who waited for whom"
_HOSTS = "by host"
_TIME = "by time: the rank that caused most waiting"


def arrivals_answer(arrivals: Arrivals, sent: Answer | None) -> Answer:
    """Who is late, and ``sent``, the answer on what was sent; that first where no rank is late."""
    who = one_line(arrivals.answer)
    if arrivals.late or sent is None:
        return Answer(who, "doubt" if arrivals.late else "", caveats=(sent.text,) if sent else ())
    return Answer(sent.headline, sent.level, caveats=(*sent.caveats, who))


def arrivals_object(arrivals: Arrivals) -> dict[str, Any]:
    return {"answer": arrivals.answer, **dataclasses.asdict(arrivals)}


def arrivals_grids(arrivals: Arrivals) -> list[Grid]:
    several = len({row.group for row in arrivals.ranks}) > 1
    chosen = [row for row in arrivals.ranks if row.late]
    chosen += [row for row in arrivals.ranks if not row.late][: max(0, _MOST_ROWS - len(chosen))]
    with_host = any(row.host for row in chosen)
    columns = [(Head("rank"), lambda r: str(r.rank))]
    columns += [(Head("host", left=True), lambda r: one_line(r.host or "-"))] * with_host
    columns += [(Head("group", left=True), lambda r: one_line(r.group))] * several
    share_of = "% of rest" if arrivals.ties else "% of calls"
    columns += [
        (Head("calls"), lambda r: str(r.calls + r.ties)),
        *([(Head("no single", "last rank"), lambda r: str(r.ties))] if arrivals.ties else []),
        (Head("last in", share_of), lambda r: _percent(r.share)),
        (Head("by", "chance"), lambda r: _percent(r.chance)),
        (Head("caused"), lambda r: format_time(r.caused_ns)),
        (Head("% of", "waiting"), lambda r: _percent(r.caused_share)),
        (Head("late", left=True), _late_text),
    ]
    below = []
    if len(arrivals.ranks) > len(chosen):
        below.append(f"the {len(chosen)} of {len(arrivals.ranks)} rows with most waiting caused")
    if arrivals.ties:
        below.append(
            "no single last rank: several ranks had the shortest time, as far as the records tell; "
            "rest: the other calls"
        )
    below += [
        f"{counted(number, 'call')} not counted: {reason}"
        for reason, number in arrivals.unsplit.items()
    ]
    grids = [make_grid(columns, chosen, above=[_LAST, _TEST], below=below)]
    grids.append(
        make_grid(
            [
                (Head("rank"), lambda p: str(p.waiter)),
                (Head("waited", "for"), lambda p: str(p.last)),
                (Head("calls"), lambda p: str(p.calls)),
                (Head("median"), lambda p: format_time(p.median_ns)),
                (Head("in all"), lambda p: format_time(p.total_ns)),
            ],
            arrivals.pairs[:_MOST_ROWS],
            above=[_PAIRS],
            below=[f"the first {_MOST_ROWS} of {len(arrivals.pairs)} pairs"]
            * (len(arrivals.pairs) > _MOST_ROWS),
        )
    )
    if arrivals.hosts:
        grids.append(
            make_grid(
                [
                    (Head("host", left=True), lambda h: one_line(h.host)),
                    (Head("ranks"), lambda h: str(h.ranks)),
                    (Head("last in", share_of), lambda h: _percent(h.last / max(h.calls, 1))),
                    (Head("caused"), lambda h: format_time(h.caused_ns)),
                    (Head("% of", "waiting"), lambda h: _percent(h.caused_share)),
                ],
                arrivals.hosts[:_MOST_ROWS],
                above=[_HOSTS],
            )
        )
    if arrivals.thirds:
        grids.append(
            make_grid(
                [
                    (Head("time", left=True), lambda t: t.name),
                    (Head("from, to", left=True, drop=1), lambda t: t.when),
                    (Head("calls"), lambda t: str(t.calls)),
                    (Head("rank"), lambda t: "-" if t.rank is None else str(t.rank)),
                    (Head("% of", "waiting"), lambda t: _percent(t.caused_share)),
                    (Head("last in", share_of), lambda t: _percent(t.last_share)),
                    (Head("waiting", "of all ranks"), lambda t: format_time(t.wait_ns)),
                    (Head("transfer"), lambda t: format_time(t.transfer_ns)),
                ],
                arrivals.thirds,
                above=[_TIME],
            )
        )
    return grids


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


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
