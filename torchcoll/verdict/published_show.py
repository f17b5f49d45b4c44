"""What others have published of a run's kind of machine, figure by figure, with the sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from torchcoll.core.errors import one_line
from torchcoll.core.plausibility import summarise_run
from torchcoll.core.result import Run, hosts_of
from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_bandwidth, format_size
from torchcoll.report.answer import Caveat
from torchcoll.report.formats import print_forms
from torchcoll.report.grid import Grid, Head, filled
from torchcoll.verdict.published import (
    Publication,
    PublishedCase,
    alike,
    kind_of_run,
    publications,
    standings,
)

SCHEMA = "torchcoll-published/1"
_CAVEAT = (
    "no verdict: networks, versions and settings of one kind of machine differ; most are means of "
    "calls back to back"
)


def show_published(runs: Sequence[Run], format: str = "table", file: TextIO | None = None) -> None:
    """Of the kinds of machine of ``runs``, or of all kinds without a run. Raises UsageError for an
    unknown format.
    """
    titled, records = [], []
    for run in runs:
        grids, own = _of_run(run)
        title = one_line(run.path or run.source.get("file") or "") if len(runs) > 1 else ""
        titled.append((title, grids))
        records += own
    if not runs:
        titled = [("", [_known_grid()])]
        records = [
            {**_record(one), "collective": key[0], "size_bytes": key[1], "busbw_gbps": gbps}
            for one in publications()
            for key, own in one.figures.items()
            for gbps in list(own.values())[:1]
        ]
    print_forms(titled, records, {"schema": SCHEMA, "rows": records}, format, file)


def published_lines(run: Run, rows: Sequence[Row]) -> list[Caveat]:
    """Where the run stands, in one sentence; none where nothing is published of such a machine."""
    best = standings(run, rows)[:1]
    return [Caveat(standing.text, after=" (torchcoll show --published)") for standing in best]


def published_grid(run: Run) -> Grid | None:
    """Each figure of a size that the run has too; of all sizes where it has none of them. None
    where nothing is published of such a machine.
    """
    known = alike(run)
    if not known:
        return None
    found = standings(run, summarise_run(run))
    items = [
        (one.row.collective, one.row.size_bytes, publication, gbps, one.row.busbw_gbps)
        for one in found
        for publication, gbps in one.published
    ] or [
        (collective, size, publication, next(iter(gbps.values())), None)
        for publication in known
        for (collective, size), gbps in publication.figures.items()
    ]
    shown = [item[2] for item in items]
    numbers = {one.source: number for number, one in enumerate(_by_source(shown), 1)}
    return filled(
        [
            (Head("collective", left=True), lambda i: i[0]),
            (Head("size"), lambda i: format_size(i[1])),
            (Head("busbw", "GB/s"), lambda i: format_bandwidth(i[3])),
            (Head("yours", "GB/s"), lambda i: format_bandwidth(i[4]) if i[4] else "-"),
            (Head("machine", left=True), lambda i: f"{i[2].machine} [{numbers[i[2].source]}]"),
            (_HEADS["network"], lambda i: i[2].network),
            (_HEADS["versions"], lambda i: i[2].versions),
            (_HEADS["date"], lambda i: i[2].date),
        ],
        items,
        above=[found[0].text if found else _nothing(known)],
        below=[*_sources(shown, numbers), _CAVEAT],
    )


# What a narrow terminal leaves out, the last first: a second table would be of what machine?
_HEADS = {
    name: Head(name, left=True, drop=drop)
    for drop, name in enumerate(("network", "date", "versions"), 1)
}


def _nothing(known: Sequence[Publication]) -> str:
    many = counted(len(known), "run")
    return f"published: {many} on {known[0].kind}, of none of this run's cases and sizes"


def _unknown(run: Run) -> str:
    gpus = bool(run.labels.get("gpu") or any(one.get("device_name") for one in run.members))
    missing = [] if gpus else ["gpu=NAME"]
    missing += [] if hosts_of(run) else ["hosts=N"]
    what = {1: "which GPUs it was" if not gpus else "on how many hosts"}
    text = what.get(len(missing), "which GPUs on how many hosts")
    ways = " and ".join(f"--label {one}" for one in missing)
    return f"{text} is not known; {ways} of torchcoll import or of the run tell it"


def _of_run(run: Run) -> tuple[list[Grid], list[dict[str, Any]]]:
    grid = published_grid(run)
    if grid is None:
        kind = one_line(kind_of_run(run))
        text = f"nothing of {kind}" if kind else _unknown(run)
        return [Grid([], [], above=[f"published: {text} (torchcoll show --published has all)"])], []
    found: list[PublishedCase] = standings(run, summarise_run(run))
    return [grid], [
        {
            **_record(one),
            "collective": standing.row.collective,
            "size_bytes": standing.row.size_bytes,
            "busbw_gbps": gbps,
            "own_busbw_gbps": standing.row.busbw_gbps,
        }
        for standing in found
        for one, gbps in standing.published
    ]


def _record(one: Publication) -> dict[str, Any]:
    names = ("machine", "gpu", "hosts", "ranks", "network", "library", "versions", "tool", "date")
    return {name: getattr(one, name) for name in (*names, "who", "source", "note")}


def _by_source(known: Sequence[Publication]) -> list[Publication]:
    return list({one.source: one for one in known}.values())


def _sources(known: Sequence[Publication], numbers: dict[str, int]) -> list[str]:
    texts = []
    for one in _by_source(known):
        own = [other for other in known if other.source == one.source]
        notes = dict.fromkeys(f"{other.machine}: {other.note}" for other in own if other.note)
        note = f" ({'; '.join(notes)})" if notes else ""  # an address ends with a blank
        texts.append(f"[{numbers[one.source]}] {one.who}, {one.source}{note}")
    return texts


def _known_grid() -> Grid:
    """A line for each run that is known, with its largest all_reduce or what else it has."""
    known = sorted(publications(), key=lambda one: (one.gpu, one.hosts, one.ranks))
    numbers = {one.source: number for number, one in enumerate(_by_source(known), 1)}

    def largest(one: Publication) -> tuple[str, int]:
        first = next(iter(one.figures))[0]
        return max(key for key in one.figures if key[0] == first)

    def largest_text(one: Publication) -> str:
        collective, size_bytes = largest(one)
        return f"{collective} {format_size(size_bytes)}"

    return filled(
        [
            (Head("kind", left=True), lambda one: one.kind),
            (Head("machine", left=True), lambda one: f"{one.machine} [{numbers[one.source]}]"),
            (Head("largest case", left=True), largest_text),
            (Head("busbw", "GB/s"),
             lambda one: format_bandwidth(next(iter(one.figures[largest(one)].values())))),
            (_HEADS["network"], lambda one: one.network),
            (_HEADS["versions"], lambda one: one.versions),
            (_HEADS["date"], lambda one: one.date),
        ],
        known,
        above=[f"published: {counted(len(known), 'run')} of "
               f"{len({one.kind for one in known})} kinds of machine"],
        below=[*_sources(known, numbers), _CAVEAT],
    )  # fmt: skip
