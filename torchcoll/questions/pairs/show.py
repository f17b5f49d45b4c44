"""Show the pairs of a run: a matrix, a line for each unit, and the suspects.

The matrix has numbers if there are few units, and shades of speed otherwise. Formats: text,
markdown, CSV, JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TextIO

from torchcoll.core.answer import CERTAIN, Answer, format_quantity, nothing_found
from torchcoll.core.errors import UnusableError, one_line
from torchcoll.core.result import Run
from torchcoll.core.summary import median, summarise
from torchcoll.core.units import (
    counted,
    format_bandwidth,
    format_ns,
    format_ranges,
    format_size,
    format_time,
    shorten,
    shorten_list,
)
from torchcoll.questions.pairs import matches, suspects
from torchcoll.questions.pairs.schedule import Pair
from torchcoll.report.destination import Destination
from torchcoll.report.formats import Forms, print_results, select_fields
from torchcoll.report.grid import Grid, Head
from torchcoll.stats.power import ACT_ON_CASE

_NUMBERS = 12  # units: up to so many the cells are numbers, above shades
MOST_ROWS = 64  # units: of more there is no matrix, and only the slowest are shown
_WORST = 16  # how many
# The slower a pair, the darker its cell; a fast pair is blank.
_SHADES, _ASCII = " ░▒▓█", " .:x#"
_LIMITS = (0.9, 0.8, 0.6, 0.4)  # shares of the median: below each the next shade
_NONE, _SELF = "?", "\\"


def _of_size(key: tuple[str, int]) -> str:
    """``at 8M ``; '' for a list of figures without a size."""
    if key == (matches.PRINTED, matches.NO_SIZE):
        return ""
    return f"at {format_size(key[1])} "


def matrix_grid(pairs: matches.Pairs, key: tuple[str, int], out: Destination) -> Grid:
    """The matrix of one kind of call, with a row and a column for each unit.

    The cells are GB/s (us for latency), or shades relative to the median within a node or between
    nodes.
    """
    kind, size_bytes = key
    if kind in (matches.EXCHANGE, matches.PRINTED):
        per = "node" if pairs.by == "node" else "rank"
        above = f"{format_size(size_bytes)} both ways at once, {pairs.unit} sent by each {per}"
        if kind == matches.PRINTED:
            above = f"{pairs.unit} {_of_size(key)}as printed"
    else:
        above = "latency in us"
    count = len(pairs.units)
    if count <= _NUMBERS:
        heads = [Head(pairs.by, repeat=True), *(Head(str(unit)) for unit in range(count))]
        rows = [
            [str(a), *(_figure(pairs, key, (a, b)) for b in range(count))] for a in range(count)
        ]
        return Grid(heads, rows, [above])
    relative = _relative(pairs, key)
    label = max(len(str(count - 1)), len(pairs.by))
    width = (out.width or 200) - label - 2
    each = 2 if 2 * count <= width else 1
    encoding = getattr(out.file, "encoding", None) or "utf-8"
    shades = _SHADES if out.terminal and encoding.lower().startswith("utf") else _ASCII
    rows = []
    for unit in range(count):
        cells = []
        for peer in range(count):
            speed = relative.get((unit, peer)) or relative.get((peer, unit))
            if peer == unit:
                cells.append(_SELF)
            elif speed is None:
                cells.append(_NONE)
            else:
                cells.append(shades[sum(speed < limit for limit in _LIMITS)])
        rows.append([str(unit), "|" + "".join(cell * each for cell in cells) + "|"])
    steps = ", ".join(f"{s} below {100 * x:g} %" for s, x in zip(shades[1:], _LIMITS, strict=True))
    lines = [above, f"of the median (within a node, between nodes): {steps}; {_SELF} itself"]
    return Grid([Head(pairs.by), Head("", left=True)], rows, lines)


def _figure(pairs: matches.Pairs, key: tuple[str, int], pair: Pair) -> str:
    times = pairs.times[key]
    timing = times.get(pair) or times.get(pair[::-1])
    if timing is None:
        return "" if pair[0] == pair[1] else _NONE
    ns = timing.median_ns
    return (
        f"{ns / 1e3:.1f}" if key[0] == matches.LATENCY else _speed(pairs, pairs.gbps(key, pair, ns))
    )


def _speed(pairs: matches.Pairs, gbps: float) -> str:
    """In the unit of the pairs: ``24.117 GB/s`` is ``24.117``, 0.024117 GB/s is ``24.1``."""
    return format_bandwidth(gbps) if pairs.unit == "GB/s" else f"{1000 * gbps:.1f}"


def _relative(pairs: matches.Pairs, key: tuple[str, int]) -> dict[Pair, float]:
    """Each pair's speed over the median of its kind: within a node, between nodes."""
    kinds: dict[bool, list[float]] = {True: [], False: []}
    within = {pair: pairs.hosts[pair[0]] == pairs.hosts[pair[1]] for pair in pairs.times[key]}
    for pair, timing in pairs.times[key].items():
        kinds[within[pair]].append(1 / timing.median_ns)
    middles = {kind: median(speeds) for kind, speeds in kinds.items() if speeds}
    times = pairs.times[key].items()
    return {pair: 1 / timing.median_ns / middles[within[pair]] for pair, timing in times}


def slowest_units(pairs: matches.Pairs, key: tuple[str, int]) -> list[int]:
    """All units, or the _WORST slowest if there are more than MOST_ROWS, ascending."""
    count = len(pairs.units)
    if count <= MOST_ROWS:
        return list(range(count))
    relative = _relative(pairs, key)
    speeds: dict[int, list[float]] = {unit: [] for unit in range(count)}
    for pair, value in relative.items():
        for unit in pair:
            speeds[unit].append(value)
    order = sorted(speeds, key=lambda unit: (median(speeds[unit]) if speeds[unit] else 0.0, unit))
    return sorted(order[:_WORST])


SCHEMA = "torchcoll-pairs/1"


def show_pairs(
    run: Run, format: str = "table", threshold: float | None = None, file: TextIO | None = None
) -> bool:
    """Print the pairs of a run; returns whether there is a suspect, or a pair without a time.

    threshold: None for that of the run.
    Raises UsageError for an unknown format and for a run without pairs.
    """
    pairs = matches.read_pairs(run)
    if pairs is None:
        what = run.path or run.source.get("file") or "this run"
        action = "torchcoll show reads it." if run.results else ""
        raise UnusableError("pairs", one_line(what), "a result file of torchcoll.pairs", action)
    threshold = threshold or pairs.threshold
    suspected = suspects.find_suspects(pairs, threshold)
    document = _object(run, pairs, suspected, threshold)
    grids = pairs_grids(run, pairs, Destination(file), suspected, threshold, format)
    print_results([Forms(grids, document)], format, file)
    has_suspect = any(suspect.confirmed for suspect in suspected)
    return has_suspect or bool(pairs.failed)


def pairs_grids(
    run: Run,
    pairs: matches.Pairs,
    out: Destination,
    suspected: Sequence[suspects.Suspect],
    threshold: float,
    format: str = "table",
) -> list[Grid]:
    """The tables: the matrix of up to MOST_ROWS units, then a line for each unit with the suspects
    below it. format: ``page`` has no matrix of shades, because it has a picture.
    """
    most = _NUMBERS if format == "page" else MOST_ROWS
    kinds = (matches.EXCHANGE, matches.PRINTED)
    keys = [key for key in pairs.times if key[0] in kinds]
    keys = keys or [key for key in pairs.times if key[0] == matches.LATENCY]
    grids = [matrix_grid(pairs, key, out) for key in keys if len(pairs.units) <= most]
    units = _units(pairs, suspected, format)
    first = [*grids, units][0]
    first.above = [*_title(run, pairs), *first.above]
    units.below += _below(run, pairs, suspected, threshold)
    units.answer = pairs_answer(run, pairs, suspected, threshold)
    return [*grids, units]


def _title(run: Run, pairs: matches.Pairs) -> list[str]:
    what = f"{len(pairs.units)} {pairs.by}s"
    if pairs.by == "node":
        what += f" of {run.ranks} ranks, first with first, second with second, all at once"
    results = [result for result in run.results if matches.is_pair(result)]
    if run.source:
        return [
            f"torchcoll pairs: {one_line(run.path or run.source.get('file') or '')}".rstrip(": "),
            f"{len(pairs.units)} {pairs.by}s, {run.source['tool']}: {len(pairs.pairs)} of "
            f"{counted(pairs.pair_count, 'pair')}, figures as they are printed",
        ]
    case = results[0].case
    large = [result for result in results if matches.case_key(result.case)[0] != matches.LATENCY]
    calls = max((len(c) for result in large for c in result.time_ns.get("host", [])), default=0)
    done = len(pairs.pairs)
    lines = [
        f"torchcoll pairs: {one_line(run.path or run.header.get('run_id') or '')}".rstrip(": "),
        f"{what}, {case.backend} on {case.device}, {case.dtype}: {done} of "
        f"{counted(pairs.pair_count, 'pair')}, in rounds of disjoint pairs at the same time",
        f"median of {calls} calls after a first one, each until the later of the two ranks is done "
        "(host clock)",
    ]
    if pairs.rehearsal:
        lines.append("several ranks share one GPU: the figures mean nothing")
    return lines


def _units(pairs: matches.Pairs, suspected: Sequence[suspects.Suspect], format: str) -> Grid:
    """A line for each unit: the medians over its pairs, and the speed alone of slow units."""
    keys = list(pairs.times)
    heads = [Head(pairs.by), Head("host", left=True)]
    for kind, size_bytes in keys:
        if kind == matches.LATENCY:
            heads.append(Head("latency", repeat=True))
            continue
        size = _of_size((kind, size_bytes)).removeprefix("at ")
        directions = ("sends", "receives") if kind == matches.SEND else (kind,)
        heads += [Head(direction, f"{size}({pairs.unit})") for direction in directions]
    shown: Sequence[int] = range(len(pairs.units))
    if format == "table" and len(pairs.units) > MOST_ROWS:
        shown = slowest_units(pairs, next((k for k in keys if k[0] == matches.EXCHANGE), keys[0]))
    columns = []
    for key in keys:
        for ends in ((0,), (1,)) if key[0] == matches.SEND else ((0, 1),):
            # The values of each unit, over the pairs that have it at one of these ends.
            values: dict[int, list[float]] = {}
            for pair, timing in pairs.times[key].items():
                ns = timing.median_ns
                value = ns if key[0] == matches.LATENCY else pairs.gbps(key, pair, ns)
                for end in ends:
                    values.setdefault(pair[end], []).append(value)
            middles = {unit: median(of_unit) for unit, of_unit in values.items()}
            latency = key[0] == matches.LATENCY
            columns.append(
                {
                    unit: format_time(middle) if latency else _speed(pairs, middle)
                    for unit, middle in middles.items()
                }
            )
    alone = {
        suspect.units[0]: format_quantity(ratio, "%")
        for suspect in suspected
        if suspect.confirmed and not suspect.is_link
        if (ratio := _leading_evidence(suspect).alone_ratio) is not None
    }
    if alone:  # the figures of the answer
        heads.append(Head("measured", "alone"))
        columns.append(alone)
    rows = [
        [
            format_ranges([unit]),
            one_line(pairs.hosts[unit]),
            *(column.get(unit, "-") for column in columns),
        ]
        for unit in shown
    ]
    above = f"each {pairs.by}: median over its pairs"
    above += "; measured alone: share of the speed of the other pairs" if alone else ""
    if len(rows) < len(pairs.units):
        above += f"; the slowest {len(rows)} of {len(pairs.units)}, --format csv has all"
    return Grid(heads, rows, [above])


def _below(
    run: Run, pairs: matches.Pairs, suspected: Sequence[suspects.Suspect], threshold: float
) -> list[str]:
    lines = []
    if len(pairs.pairs) < pairs.pair_count:
        lines.append(f"not complete: {len(pairs.pairs)} of {pairs.pair_count} pairs")
    if run.ending:
        lines.append(one_line(run.ending))
    lines += [one_line(problem) for problem in run.problems]
    lines += [one_line(e.get("message")) for e in run.events if e.get("kind") != "suspect"]
    lines += shorten_list(list(map(one_line, pairs.failed)), 8, "and {} more that failed")
    for result in run.results:
        if not matches.is_pair(result):
            lines.append(_together(result))
    lines += _conclusion(run, pairs, suspected, threshold)
    return lines


def pairs_answer(
    run: Run, pairs: matches.Pairs, suspected: Sequence[suspects.Suspect], threshold: float
) -> Answer:
    """Which unit or link is slow, and by how much; or what would have been found."""
    confirmed = [suspect for suspect in suspected if suspect.confirmed]
    names = [one_line(suspects.suspect_name(pairs, suspect)) for suspect in confirmed]
    if confirmed:
        return _suspect_answer(pairs, confirmed, names)
    if pairs.failed:
        failed = f"{len(pairs.failed)} failed, the first: {pairs.failed[0]}"
        return Answer(one_line(failed), "bad")
    if unjudged := _unjudged(pairs):
        text = f"no {pairs.by} can be judged"
        if len(pairs.units) == 2 and (figure := _figure_of_pair(pairs)):
            text = figure
        return Answer(text, "doubt", details=unjudged[:1], next_step=unjudged[1])
    return _sound_answer(pairs, threshold)


def _leading_evidence(suspect: suspects.Suspect) -> suspects.Evidence:
    return next(each for each in suspect.evidence if each.confirmed is not False)


def _suspect_answer(
    pairs: matches.Pairs, confirmed: Sequence[suspects.Suspect], names: Sequence[str]
) -> Answer:
    worst = confirmed[0]
    evidence = _leading_evidence(worst)
    alone = "measured alone" if evidence.alone_ratio is not None else "not measured alone"
    facts = [evidence.what, alone]
    if not worst.is_link:
        when = "" if evidence.alone_ratio is None else " in the first pass"
        facts.append(f"{evidence.slow} of {counted(evidence.pairs, 'pair')} slow{when}")
    size = evidence.ratio if evidence.alone_ratio is None else evidence.alone_ratio
    sound = suspects.largest_sound_group(pairs, confirmed)
    named = pairs.by == "node" and all(len(ranks) == 1 for ranks in pairs.units)
    others = "nodes" if pairs.by == "node" else "ranks"
    ranks = f"ranks {format_ranges(rank for unit in sound for rank in pairs.units[unit])}"
    if named:  # a list of nodes numbers no ranks
        ranks = shorten([one_line(pairs.hosts[unit]) for unit in sound], 4)
    hosts = one_line(
        " and ".join(
            dict.fromkeys(
                pairs.ranks(unit) if pairs.hosts[unit] == "?" else pairs.hosts[unit]
                for unit in worst.units
            )
        )
    )
    more = (f"{shorten(names[1:], 3)} too",) if len(names) > 1 else ()
    return Answer(
        names[0],
        "bad",
        worst=tuple(names),
        verb="is slow: it has {} of the speed of the other "
        + ("links" if worst.is_link else others),
        size=size,
        unit="%",
        scope=f"({', '.join(facts)})",
        certainty=CERTAIN,
        details=more,
        next_step=f"check the devices and cables of {hosts}"
        + (f", or go on with {ranks}" if sound else ""),
    )


def _figure_of_pair(pairs: matches.Pairs) -> str:
    """``gpu07-gpu09: 24.3 GB/s at 32M``; '' without a bandwidth."""
    keys = [key for key in pairs.times if key[0] == matches.PRINTED]
    if not keys:
        return ""
    key = max(keys, key=lambda key: key[1])
    timing = pairs.times[key].get((0, 1))
    if timing is None:
        return ""
    speed = _speed(pairs, pairs.gbps(key, (0, 1), timing.median_ns))
    hosts = one_line("-".join(pairs.hosts))
    return f"{hosts}: {speed} {pairs.unit} {_of_size(key)}{key[0]}"


def _unjudged(pairs: matches.Pairs) -> tuple[str, str] | None:
    """Why nobody can be judged, and what to do; None if somebody can."""
    if pairs.rehearsal:
        return "several ranks share one GPU", "give each rank a GPU of its own"
    if len(pairs.units) == 2:
        return "one pair has nothing to be compared with", f"measure three {pairs.by}s"
    if pairs.crowded and not any(map(pairs.judged, pairs.pairs)):
        return "ranks wait for a core on every host", "start no more ranks than cores"
    return None if pairs.times else ("no pair was measured", "run it again with torchcoll.pairs")


def _sound_answer(pairs: matches.Pairs, threshold: float) -> Answer:
    limits = suspects.find_detectable(pairs, threshold)
    units = [each.unit for each in limits]
    links = [each.link for each in limits if each.link is not None]
    detectable = None if None in units or not units else max(filter(None, units))
    link = max(links, default=0.0)
    act_from = ACT_ON_CASE / (1 + ACT_ON_CASE)  # of the speed: 1.5 times the time
    links_too = detectable is not None and link <= act_from
    judged = sum(map(pairs.judged, pairs.pairs))
    details = []
    if links and not links_too:
        details.append(f"a link only from a loss of {format_quantity(link, '%')} on")
    lonely = any(not each.within and each.unit is None for each in limits)
    remedy = suspects.scatter_remedy(pairs)
    if lonely:
        remedy = "measure a third node: two cannot be compared with each other"
    elif threshold > act_from:
        remedy = "lower --threshold"
    answer = nothing_found(
        f"{pairs.by} or link" if links_too and links else pairs.by,
        "is slow",
        max(detectable, link) if links_too and detectable is not None else detectable,
        act_from,
        remedy,
        what="loss",
        of=" of speed",
        details=tuple(details),
        scope="" if judged == pairs.pair_count else f"in {judged} of {pairs.pair_count} pairs",
    )
    if judged < pairs.pair_count or link > act_from:
        return replace(answer, level="doubt", next_step=answer.next_step or remedy)
    return answer


def _together(result: Any) -> str:
    row = summarise(result)
    members = f"ranks {format_ranges(result.members)}" if result.members else "all ranks"
    what = f"{members} together, {result.case.describe()}"
    if row.median_ns is None:
        return f"{what}: {one_line(result.reason)}"
    busbw = format_bandwidth(row.busbw_gbps)
    return f"{what}: {format_ns(row.median_ns)}, {busbw} GB/s busbw"


def _conclusion(
    run: Run, pairs: matches.Pairs, suspected: Sequence[suspects.Suspect], threshold: float
) -> list[str]:
    lines = []
    if pairs.crowded and not pairs.rehearsal:
        hosts = [one_line(name) for name in sorted(pairs.crowded)]
        lines.append(
            f"on {shorten(hosts, 8)} ranks wait for a core: those pairs accuse nobody "
            "(start no more ranks than cores to judge them)"
        )
    if _unjudged(pairs):
        return lines
    lines.append(
        f"slow: {100 * threshold:g} % below the pairs without it, and an outlier among them; a "
        f"{pairs.by} is slow where more than half of its pairs are"
    )
    confirmed = [suspect for suspect in suspected if suspect.confirmed]
    lines += [f"SUSPECT {one_line(suspects.suspect_text(pairs, suspect))}" for suspect in confirmed]
    lines += [
        f"not alone: {one_line(suspects.suspect_text(pairs, suspect))}: not slow in every pass "
        "alone"
        for suspect in suspected
        if not suspect.confirmed
    ]
    if len(pairs.units) == 3 and not confirmed:
        lines.append("with three there are two other pairs to compare each with: little evidence")
    return lines


def _records(pairs: matches.Pairs) -> list[dict[str, Any]]:
    """One object for each pair, kind of call and pass (0: in the rounds; 1, 2, ...: alone).

    For one-way calls ``first`` is the sender.
    """
    rows = []
    for number, tables in enumerate([pairs.times, *pairs.alone]):
        for key, times in tables.items():
            kind = "one way" if key[0] == matches.SEND else key[0]
            for pair, timing in sorted(times.items()):
                latency, ns = key[0] == matches.LATENCY, timing.median_ns
                rows.append(
                    {
                        "kind": kind,
                        "size_bytes": key[1],
                        "alone": number > 0,
                        "pass": number,
                        "first": pair[0],
                        "second": pair[1],
                        "first_host": pairs.hosts[pair[0]],
                        "second_host": pairs.hosts[pair[1]],
                        "median_ns": ns,
                        "good_ns": timing.good_ns,
                        "gbps": None if latency else pairs.gbps(key, pair, ns),
                    }
                )
    return rows


def _object(
    run: Run, pairs: matches.Pairs, suspected: Sequence[suspects.Suspect], threshold: float
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "file": str(run.path) if run.path else None,
        "by": pairs.by,
        "units": [
            {"unit": unit, "host": host, "ranks": list(ranks)}
            for unit, (host, ranks) in enumerate(zip(pairs.hosts, pairs.units, strict=True))
        ],
        "threshold": threshold,
        "z_limit": suspects.Z_LIMIT,
        "rows": _records(pairs),
        "suspects": [_suspect_object(pairs, suspect) for suspect in suspected],
        "largest_group": suspects.largest_sound_group(pairs, suspected),
        "failed": pairs.failed,
        "not_judged_hosts": sorted(pairs.crowded),
    }


def _suspect_object(pairs: matches.Pairs, suspect: suspects.Suspect) -> dict[str, Any]:
    evidence = [
        {
            **select_fields(e, "kind=what size_bytes within_node=within ratio"),
            "z": e.z if abs(e.z) != float("inf") else None,
            **select_fields(e, "slow_pairs=slow pairs alone_ratio stands=confirmed"),
        }
        for e in suspect.evidence
    ]
    return {
        "what": "link" if suspect.is_link else pairs.by,
        "units": list(suspect.units),
        "hosts": [pairs.hosts[unit] for unit in suspect.units],
        "stands": suspect.confirmed,
        "message": suspects.suspect_text(pairs, suspect),
        "evidence": evidence,
    }
