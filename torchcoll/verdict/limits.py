"""A run measured by the limits of its fabric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchcoll.core.hardware import Device, device_of
from torchcoll.core.plausibility import SWEEP
from torchcoll.core.result import Run
from torchcoll.core.summary import Row
from torchcoll.core.units import format_size
from torchcoll.verdict.fabric import hosts_of
from torchcoll.verdict.rules import Fabric, Limit, capped
from torchcoll.verdict.words import (
    NO_REFERENCE,
    PASS,
    POOR,
    WARN,
    Phrase,
    case_text,
    word_of,
)

_BEYOND = 1.05  # of the ring's limit: something better than a ring was used
# Of all limits of a fabric: it is another one. Some limits were measured, and others measure more.
_ANOTHER = 1.25


def by_fabric(rows: Sequence[Row], fabric: Fabric | None, run: Run) -> list[Phrase]:
    """The headline, and what it does not say. rows: those with a result, of several ranks; an
    imported file may not tell of how many.
    """
    if all(row.ranks < 1 for row in rows):
        return [Phrase(NO_REFERENCE, "where the number of ranks is unknown")]
    if fabric is None:
        where = " and ".join(dict.fromkeys(f"{row.backend} on {row.device}" for row in rows))
        within = hosts_of(run) == 1 and all(row.device == "cpu" for row in rows)
        way = "" if within else "--fabric NAME and "
        text = f"for {where}{' within one host' if within else ''}"
        return [Phrase(NO_REFERENCE, f"{text} (torchcoll show has {way}--against RUN)")]
    device = device_of(run) if fabric.several_hosts else None
    judged = list(_judged(rows, fabric, device))
    if not judged:
        return [Phrase(NO_REFERENCE, f"of {fabric.name} for these cases: {_held(rows, fabric)}")]
    return [
        _headline(fabric, judged),
        *_doubts(rows, fabric, judged, device),
        *_unused(fabric, judged),
    ]


def _doubts(
    rows: Sequence[Row],
    fabric: Fabric,
    judged: Sequence[tuple[float, Row, Limit]],
    device: Device | None,
) -> Iterator[Phrase]:
    """What the headline, which is the best of each collective, does not say."""
    for share, row, _ in judged:
        alike = [r for r in rows if (r.collective, r.nbytes) == (row.collective, row.nbytes)]
        alike = [r for r in alike if _usable(r, fabric) and _held_by_any(fabric, r)]
        worst = min(alike, key=lambda r: r.busbw_gbps or 0.0)
        least = worst.busbw_gbps or 0.0
        if share < POOR or least >= POOR * _limit_of(worst, fabric, device).busbw_gbps:
            continue
        pairs = ((name, getattr(worst, name)) for name in SWEEP)
        other = [f"{name} {value}" for name, value in pairs if value != getattr(row, name)]
        text = f"{least:.4g} GB/s busbw in {' '.join([case_text(worst), *other])}"
        yield Phrase(WARN, f"{text}, {row.busbw_gbps:.4g} in the best of this size")


def _headline(fabric: Fabric, judged: Sequence[tuple[float, Row, Limit]]) -> Phrase:
    """The lowest share decides; where it is well, all_reduce speaks for the fabric."""
    lowest = min(judged, key=lambda item: item[0])
    word = word_of(lowest[0])
    reduced = (item for item in judged if item[1].collective == "all_reduce")
    share, row, limit = next(reduced, lowest) if word == PASS else lowest
    text = f"{row.busbw_gbps:.4g} GB/s busbw at {format_size(row.nbytes)}"
    text += f" of {row.collective}" if len(judged) > 1 else ""
    text += f", {100 * share:.1f} % of the {limit.algorithm} limit of {fabric.name}"
    text += f" ({limit.source})"
    if len(judged) > 1:
        least = f"{100 * lowest[0]:.1f} %"
        text += f", {len(judged)} collectives at {least} and more" if word == PASS else ""
        text += f", the lowest of {len(judged)} collectives" if word != PASS else ""
    beyond = any(_is_beyond(row, fabric) for _, row, _ in judged)
    if beyond:
        text += "; more than it carries: another fabric, switches that reduce, or fewer ranks"
    return Phrase(WARN if beyond and word == PASS else word, text)


def _is_beyond(row: Row, fabric: Fabric) -> bool:
    most = max(x.busbw_gbps for x in fabric.limits if row.collective in x.collectives)
    return (row.busbw_gbps or 0.0) > _ANOTHER * most


def _held(rows: Sequence[Row], fabric: Fabric) -> str:
    """From which sizes on the limits of a fabric hold, for what was run where it has any."""
    ran = {row.collective for row in rows if fabric.connects(row)}
    if not ran:
        return "they did not go through it"
    ranks = max(row.ranks for row in rows)
    known: dict[str, int] = {}
    for limit in fabric.limits:
        for name in limit.collectives:
            known[name] = min(limit.least(ranks), known.get(name, limit.least(ranks)))
    asked = {name: nbytes for name, nbytes in known.items() if name in ran} or known
    by_size: dict[int, list[str]] = {}
    for name, nbytes in asked.items():
        by_size.setdefault(nbytes, []).append(name)
    texts = (f"{', '.join(names)} from {format_size(nbytes)}" for nbytes, names in by_size.items())
    return f"it has limits for {' and '.join(texts)}"


def _judged(
    rows: Sequence[Row], fabric: Fabric, device: Device | None
) -> Iterator[tuple[float, Row, Limit]]:
    """For each collective its best row of the largest size, and the limit it comes under."""
    usable = [row for row in rows if _usable(row, fabric)]
    for collective in dict.fromkeys(row.collective for row in usable):
        own = [row for row in usable if row.collective == collective]
        own = [row for row in own if _held_by_any(fabric, row)]
        if not own:
            continue
        largest = max(row.nbytes for row in own)
        row = max((r for r in own if r.nbytes == largest), key=lambda r: r.busbw_gbps or 0)
        limit = _limit_of(row, fabric, device)
        yield (row.busbw_gbps or 0.0) / limit.busbw_gbps, row, limit


def _usable(row: Row, fabric: Fabric) -> bool:
    """Whether its bandwidth is that of the fabric: enqueueing alone moves nothing."""
    timed = row.busbw_gbps and row.ranks > 1 and row.clock != "issue"
    return bool(timed) and fabric.connects(row)


def _held_by_any(fabric: Fabric, row: Row) -> bool:
    return any(limit.holds(row) for limit in fabric.limits)


def _limit_of(row: Row, fabric: Fabric, device: Device | None) -> Limit:
    """The limit of the algorithm that the log names; else the lowest that could have done it: a
    ring is no bad NVLS.
    """
    here = sorted((x for x in fabric.limits if x.holds(row)), key=lambda x: x.busbw_gbps)
    named = [x for x in here if x.algorithm.upper() in (row.algorithm or "").upper()]
    busbw = row.busbw_gbps or 0.0
    limit = next((x for x in named or here if busbw <= _BEYOND * x.busbw_gbps), (named or here)[-1])
    gbps, source = capped(limit, device)
    return Limit(limit.algorithm, limit.collectives, gbps, source)


def _unused(fabric: Fabric, judged: Sequence[tuple[float, Row, Limit]]) -> Iterator[Phrase]:
    """Faster algorithms of the fabric that were not used where they could have been."""
    for _, row, used in judged:
        for limit in fabric.limits:
            faster = limit.busbw_gbps > _BEYOND * used.busbw_gbps
            if not limit.holds(row) or not faster or limit.algorithm == used.algorithm:
                continue
            where = f" in {row.collective}" if len(judged) > 1 else ""
            # Without a log it follows from the bandwidth alone.
            sure = "" if row.algorithm else "apparently "
            text = f"{limit.algorithm} {sure}not in use{where}, would allow about"
            yield Phrase(WARN, f"{text} {limit.busbw_gbps:g} GB/s")
