"""Which rank, node or link is slow: a reading of the pairs that torchcoll.pairs measured, and what
is said of a suspect: one line, and the events of a result file.

Pure and without numpy: rank 0 reads its own run with it, and chooses what is measured again.

A pair is slow when its speed is an outlier among the pairs of its kind, by the modified z-score of
Iglewicz and Hoaglin (How to Detect and Handle Outliers, ASQC 1993: 0.6745 (x - median) / MAD,
beyond 3.5; of logarithms, for a speed can fall by no more than 100 %), AND below the median by a
relative threshold: where all pairs are alike to a per mille, every small difference is an outlier,
and where they scatter, 20 % is none. The scale of the score is at least the scatter of the calls of
one pair, for a few pairs may agree by chance. Pairs within a node and pairs between nodes are two
kinds, never compared. Judged are the speeds of the good calls (lower quartile of the times; for
latency the least): a fault slows all calls, and what else runs on a machine only some.

What is compared with is the pairs that the unit has no part in. With a few units the median of all
pairs would be the culprit's own: of 4 ranks it has 3 of the 6 pairs. A unit is a suspect when more
than half of its pairs are below the threshold and the median over all of them is an outlier, on the
scale that a median of so many has. This holds as long as no more than a quarter of the units are
bad. A slow pair of two others is a suspect link, by bandwidth alone: two ranks may be far apart, in
switches, and nothing is wrong.

On a CPU whose host has more ranks than cores a call waits for a core, now with one partner and then
with another: the pairs of that host accuse nobody and are compared with nothing.

A suspicion stands when the pairs are slow alone too: what is slow only beside the others is a
matter of the network that they share. They run alone in four passes, between usual pairs, and are
cleared by the first pass in which they are not below the threshold and slower than each of these.
A sound pair among three others is the slowest of four in every pass with a chance of 4**-4 = 0.4 %,
however the calls scatter, where passes do not depend on each other. (The better of two passes was
no test: gloo exchanges 8 MiB over TCP in 35 or in 70 ms, in one of the two for all calls of a pass,
and 2 of 26 healthy runs accused a link.)

The scatter is a bound on what can be told: what is slow by the threshold and yet no outlier accuses
nobody. A run in which that can happen is too noisy for its threshold, and ``noise`` says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.summary import median
from torchcoll.core.units import format_size
from torchcoll.pairs.matches import EXCHANGE, LATENCY, RECEIVE, SEND, Pairs, Times, undirected
from torchcoll.pairs.schedule import ITERS, SIZES, Pair

Z_LIMIT = 3.5
# An answer that takes twice as long: latencies of healthy pairs scatter by far more than bandwidth.
LATENCY_THRESHOLD = 0.5
# Beyond so many units (nodes, between nodes) one has too small a part to move the median.
_FEW = 16
_AGAIN = 3  # pairs of each suspect that run again alone, and usual ones of each kind beside them


@dataclass(frozen=True)
class Evidence:
    """Why a unit or a link is suspected, of one kind of call.

    ratio: its speed over that of the pairs without it, medians. z: the modified z-score of that
    median. slow, pairs: how many of its pairs are below the threshold. alone_ratio: the same when
    its pairs ran alone, over the usual pairs that ran alone, the median of the passes; None: not
    measured.
    """

    what: str
    size_bytes: int
    within: bool  # pairs of one node
    ratio: float
    z: float
    slow: int
    pairs: int
    alone_ratio: float | None = None
    confirmed: bool | None = None  # in every pass alone too; None: nothing to tell it by


@dataclass(frozen=True)
class Suspect:
    """A unit (one number) or a link (two). ``evidence``: the strongest first."""

    units: tuple[int, ...]
    evidence: tuple[Evidence, ...]

    @property
    def is_link(self) -> bool:
        return len(self.units) == 2

    @property
    def confirmed(self) -> bool:
        return any(evidence.confirmed is not False for evidence in self.evidence)


@dataclass(frozen=True)
class Noise:
    """A kind of call whose scatter is too large for the threshold.

    spread: scale of the logarithms of the calls of a pair, the middle one of the pairs; between:
    that of the pairs' speeds. seen: from what share below the others on a pair is an outlier.
    """

    what: str
    size_bytes: int
    within: bool
    calls: int
    spread: float
    between: float
    threshold: float

    @property
    def seen(self) -> float:
        return 1 - math.exp(-Z_LIMIT * max(self.spread, self.between))


Speeds = dict[Pair, float]
_Reference = tuple[float, float, float]  # median speed; median and scale of the logarithms


def robust(values: Sequence[float], least: float = 0.0) -> tuple[float, float]:
    """(median, scale) of ``values`` for ``modified_z``; the scale is ``least`` or more.

    Where more than half of the values are equal the MAD is 0; then their mean absolute deviation
    takes its place (1.253314 is the ratio of the two scales for the normal distribution), which may
    be 0 too.
    """
    middle = median(values)
    off = [abs(v - middle) for v in values]
    mad = median(off)
    return middle, max(mad / 0.6745 if mad else 1.253314 * sum(off) / len(off), least)


def modified_z(value: float, middle: float, scale: float) -> float:
    """Iglewicz and Hoaglin's score of ``value`` against values with that ``robust`` median and
    scale; where the scale is 0, it is 0 or infinite.
    """
    if scale:
        return (value - middle) / scale
    return 0.0 if value == middle else math.copysign(math.inf, value - middle)


def _scale_of_median(count: int) -> float:
    """The scale of the median of ``count`` values over that of one: sqrt(pi / 2 / count), what it
    is of many normal ones (Kendall and Stuart, The Advanced Theory of Statistics 1, 10.12); of one
    and two 1, as if they were one.
    """
    return math.sqrt(math.pi / 2 / count) if count > 2 else 1.0


def find_suspects(
    pairs: Pairs, threshold: float | None = None, with_hidden: bool = False
) -> list[Suspect]:
    """Units first, then links, each in order. ``threshold``: a share of the speed of the others;
    None: that of the run. with_hidden: also links of units that stand as suspects themselves, by
    another kind of call: they count once these are cleared, and run alone before.
    """
    if pairs.rehearsal:
        return []
    threshold = threshold or pairs.threshold
    evidence_by_units: defaultdict[tuple[int, ...], list[Evidence]] = defaultdict(list)
    tables = [(table, set[int]()) for table in _tables(pairs, threshold)]
    for table, bad in tables:
        for unit, evidence in table.units():
            evidence_by_units[(unit,)].append(evidence)
            bad.add(unit)
    for table, bad in tables:
        for link, evidence in table.links(bad):
            evidence_by_units[link].append(evidence)
    ordered = sorted(evidence_by_units.items(), key=lambda item: (len(item[0]), item[0]))
    result = [
        Suspect(units, tuple(sorted(evidence, key=lambda e: (e.confirmed is False, e.ratio))))
        for units, evidence in ordered
    ]
    confirmed_suspects = {
        suspect.units[0] for suspect in result if suspect.confirmed and not suspect.is_link
    }
    return [
        suspect
        for suspect in result
        if with_hidden or not suspect.is_link or not {*suspect.units} & confirmed_suspects
    ]


def find_noise(
    pairs: Pairs, suspected: Sequence[Suspect], threshold: float | None = None
) -> list[Noise]:
    """The kinds of calls in which nobody can be accused of being slower by ``threshold`` alone.
    ``found``: who is left out, for a fault is no noise.
    """
    if pairs.rehearsal:
        return []
    units = {suspect.units[0] for suspect in suspected if not suspect.is_link}
    links = {suspect.units for suspect in suspected if suspect.is_link}
    noises = [table.noise(units, links) for table in _tables(pairs, threshold or pairs.threshold)]
    return [noise for noise in noises if noise]


def _tables(pairs: Pairs, threshold: float) -> list[_Table]:
    return [_Table(pairs, key, within, threshold) for key in pairs.times for within in (1, 0)]


class _Table:
    """The pairs of one kind of call, within nodes or between them, as speeds."""

    def __init__(
        self, pairs: Pairs, key: tuple[str, int], within: bool | int, threshold: float
    ) -> None:
        self._pairs, self._key, self._within = pairs, key, bool(within)
        self._threshold = max(threshold, LATENCY_THRESHOLD) if key[0] == LATENCY else threshold
        self._speeds = self._read_speeds(pairs.times)
        self._alone = [self._read_speeds(tables) for tables in pairs.alone]
        # Between nodes a bad node has many ranks: all its pairs are left out together.
        self._group = (lambda unit: unit) if within else (lambda unit: pairs.hosts[unit])
        self._groups = len({self._group(unit) for pair in self._speeds for unit in pair})
        self._scales: dict[Any, _Reference | None] = {}

    def _read_speeds(self, times: Mapping[tuple[str, int], Times]) -> Speeds:
        hosts = self._pairs.hosts
        return {
            pair: 1 / timing.good_ns
            for pair, timing in times.get(self._key, {}).items()
            if (hosts[pair[0]] == hosts[pair[1]]) == self._within and self._pairs.judged(pair)
        }

    def _scaled(self, pairs: Collection[Pair]) -> _Reference | None:
        if not pairs:
            return None
        timings = self._pairs.times[self._key]
        speeds = [self._speeds[pair] for pair in pairs]
        middle = median(speeds)
        least = median([timings[pair].spread for pair in pairs])
        return middle, *robust([math.log(speed) for speed in speeds], least)

    def _reference(self, unit: int) -> _Reference | None:
        """The speeds of the pairs that the unit (between nodes: its node) has no part in."""
        group = self._group(unit)
        if self._groups > _FEW:
            group = None
        if group not in self._scales:
            other_pairs = [
                pair
                for pair in self._speeds
                if group is None or group not in (self._group(pair[0]), self._group(pair[1]))
            ]
            self._scales[group] = self._scaled(other_pairs)
        return self._scales[group]

    def units(self) -> Iterable[tuple[int, Evidence]]:
        # What it is called, and the places in the pair that are to blame.
        kind = self._key[0]
        sides: Sequence[tuple[str, tuple[int, ...]]] = [(kind, (0, 1))]
        if kind == SEND:
            sides = [(SEND, (0,)), (RECEIVE, (1,))]
        for what, ends in sides:
            pairs_by_unit: defaultdict[int, list[Pair]] = defaultdict(list)
            for pair in self._speeds:
                for end in ends:
                    pairs_by_unit[pair[end]].append(pair)
            for unit, unit_pairs in sorted(pairs_by_unit.items()):
                reference = self._reference(unit)
                if reference is None:
                    continue
                limit = (1 - self._threshold) * reference[0]
                slow = sum(self._speeds[pair] <= limit for pair in unit_pairs)
                if 2 * slow <= len(unit_pairs):
                    continue
                evidence = self._evidence(what, unit_pairs, slow, reference)
                if evidence.z <= -Z_LIMIT:
                    yield unit, evidence

    def links(self, bad: Collection[int]) -> Iterable[tuple[Pair, Evidence]]:
        if self._key[0] == LATENCY:
            return
        healthy = {p: s for p, s in self._speeds.items() if not {*p} & {*bad}}
        # One link more or less moves no median, but where there are a few.
        are_few = len(healthy) <= _FEW
        overall = self._scaled(healthy)
        what = "one way" if self._key[0] == SEND else self._key[0]
        for pair, speed in sorted(healthy.items()):
            reference = overall
            if are_few:
                # Nor with its own other direction: two ranks have but one link.
                reference = self._scaled([p for p in healthy if undirected(p) != undirected(pair)])
            # The cheap question first: of 100000 pairs a few reach the second.
            if reference and speed <= (1 - self._threshold) * reference[0]:
                evidence = self._evidence(what, [pair], 1, reference)
                if evidence.z <= -Z_LIMIT:
                    yield undirected(pair), evidence

    def noise(self, units: Collection[int], links: Collection[tuple[int, ...]]) -> Noise | None:
        sound = [p for p in self._speeds if not {*p} & {*units} and undirected(p) not in links]
        if len({undirected(pair) for pair in sound}) < _AGAIN:
            return None  # as good as nothing to judge it by
        timings = [self._pairs.times[self._key][pair] for pair in sound]
        _, between = robust([math.log(self._speeds[pair]) for pair in sound])
        spread = median([timing.spread for timing in timings])
        calls = round(median([timing.calls for timing in timings]))
        what, size_bytes = self._key
        what = "one way" if what == SEND else what
        result = Noise(what, size_bytes, self._within, calls, spread, between, self._threshold)
        return result if result.seen > self._threshold else None

    def _evidence(
        self, what: str, unit_pairs: Sequence[Pair], slow: int, reference: _Reference
    ) -> Evidence:
        speed = median([self._speeds[pair] for pair in unit_pairs])
        ratio = speed / reference[0]
        z = modified_z(math.log(speed), *reference[1:]) / _scale_of_median(len(unit_pairs))
        own_links = {undirected(pair) for pair in unit_pairs}
        ratios, confirmed = [], []
        for speeds in self._alone:
            speeds_alone = [speeds[pair] for pair in unit_pairs if pair in speeds]
            usual = []  # speeds alone of pairs that were not slow beside the others
            for pair, alone_speed in speeds.items():
                if undirected(pair) in own_links or pair not in self._speeds:
                    continue
                pair_reference = self._reference(pair[0])
                if (
                    not pair_reference
                    or self._speeds[pair] > (1 - self._threshold) * pair_reference[0]
                ):
                    usual.append(alone_speed)
            if speeds_alone and usual:
                ratios.append(median(speeds_alone) / median(usual))
                slower = median(speeds_alone) < min(usual)
                confirmed.append(slower and ratios[-1] <= 1 - self._threshold)
        alone = (median(ratios), all(confirmed)) if ratios else (None, None)
        return Evidence(what, self._key[1], self._within, ratio, z, slow, len(unit_pairs), *alone)


def pairs_to_repeat(
    pairs: Pairs, suspected: Sequence[Suspect]
) -> tuple[list[Pair], dict[Pair, list[int]]]:
    """What runs again alone: usual pairs of each kind; and those of the suspects, at most max(8,
    units), with the places in ``found`` of whom they tell of. Nothing where nobody is suspected.
    """
    if not suspected:
        return [], {}
    bad = {unit for suspect in suspected if not suspect.is_link for unit in suspect.units}
    links = [suspect.units for suspect in suspected if suspect.is_link]
    large = [key for key in pairs.times if key[0] == EXCHANGE]
    timings = pairs.times[large[0]] if large else {}
    speeds = {pair: 1 / timing.good_ns for pair, timing in timings.items()}
    usual: list[Pair] = []
    for within in (True, False):
        kind = [
            pair
            for pair in speeds
            if (pairs.hosts[pair[0]] == pairs.hosts[pair[1]]) == within
            and pairs.judged(pair)
            and not {*pair} & bad
            and pair not in links
        ]
        if kind:
            middle = median([speeds[pair] for pair in kind])
            usual += sorted(kind, key=lambda pair: (abs(speeds[pair] - middle), pair))[:_AGAIN]
    chosen: dict[Pair, list[int]] = {}
    for index, suspect in enumerate(suspected):
        suspect_pairs = [(suspect.units[0], suspect.units[-1])]
        if not suspect.is_link:
            suspect_pairs = [
                pair for pair in speeds if suspect.units[0] in pair and pairs.judged(pair)
            ]
            # With partners that nobody suspects: else it would be theirs.
            suspect_pairs.sort(key=lambda pair: (len({*pair} & bad), -speeds[pair], pair))
        for pair in suspect_pairs[:_AGAIN]:
            if pair in chosen or len(chosen) < max(8, len(pairs.units)):
                chosen.setdefault(pair, []).append(index)
    return usual, chosen


def suspected_kinds(suspected: Iterable[Suspect]) -> set[tuple[str, int]]:
    """The kinds of calls by which they are still suspected: what runs again."""
    remaining = [
        evidence
        for suspect in suspected
        for evidence in suspect.evidence
        if evidence.confirmed is not False
    ]
    kinds = {(evidence.what, evidence.size_bytes) for evidence in remaining}
    return {
        (what if what in (LATENCY, EXCHANGE) else SEND, size_bytes) for what, size_bytes in kinds
    }


def largest_sound_group(pairs: Pairs, suspected: Sequence[Suspect]) -> list[int]:
    """The largest group of units without suspects: of links one end leaves, that of the most links
    first (greedy: the smallest cover is NP-hard, and a few links leave no doubt).
    """
    confirmed_suspects = [suspect for suspect in suspected if suspect.confirmed]
    excluded = {suspect.units[0] for suspect in confirmed_suspects if not suspect.is_link}
    links = [
        suspect.units
        for suspect in confirmed_suspects
        if suspect.is_link and not {*suspect.units} & excluded
    ]
    while links:
        ends = [unit for link in links for unit in link]
        worst = max(sorted({*ends}), key=ends.count)
        excluded.add(worst)
        links = [link for link in links if worst not in link]
    return [unit for unit in range(len(pairs.units)) if unit not in excluded]


_MOST_SHOWN = 3  # kinds of calls in the line of a suspect


def suspect_text(pairs: Pairs, suspect: Suspect) -> str:
    """One line: who, at how much of the others' speed, and how sure."""
    return f"{suspect_name(pairs, suspect)}: {evidence_text(pairs, suspect)}"


def suspect_name(pairs: Pairs, suspect: Suspect) -> str:
    if suspect.is_link:
        return f"link of {pairs.ranks(suspect.units[0])} and {pairs.ranks(suspect.units[1])}"
    return pairs.ranks(suspect.units[0])


def evidence_text(pairs: Pairs, suspect: Suspect) -> str:
    """``54 % of the others' speed both ways (5 of 5 pairs slow, 56 % when measured alone)``."""
    shown = [
        evidence
        for evidence in suspect.evidence
        if evidence.confirmed is not False or not suspect.confirmed
    ]
    texts: list[str] = []
    for evidence in shown[:_MOST_SHOWN]:
        scope = "" if len({*pairs.hosts}) in (1, len(pairs.units)) else _scope_text(evidence)
        notes = [] if suspect.is_link else [f"{evidence.slow} of {evidence.pairs} pairs slow"]
        notes.append(
            "not measured alone"
            if evidence.alone_ratio is None
            else f"{100 * evidence.alone_ratio:.0f} % when measured alone"
        )
        of = "" if texts else " of the others' speed"
        texts.append(
            f"{100 * evidence.ratio:.0f} %{of} {evidence.what}{scope} ({', '.join(notes)})"
        )
    more = f", and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return ", ".join(texts) + more


def noise_text(pairs: Pairs, several: Sequence[Noise]) -> str:
    """One line for all kinds of calls that are too noisy for the threshold that was asked for:
    which scatter by how much, what can still be seen, and what helps; '' where none is.

    A latency has a threshold of its own, which nobody asked for: it is said where nothing else was
    measured.
    """
    bandwidth = any(kind != LATENCY for kind, _ in pairs.times)
    relevant = [noise for noise in several if not bandwidth or noise.what != LATENCY]
    if not relevant:
        return ""
    actions = []
    if any(noise.what != LATENCY and noise.size_bytes < SIZES[0] for noise in relevant):
        actions.append(f"--sizes {format_size(SIZES[0])}")
    if any(noise.calls < ITERS for noise in relevant):
        actions.append(f"-n {ITERS}")
    least = max(math.ceil(100 * noise.seen) for noise in relevant)
    if not actions and least < 100 and bandwidth:
        actions = [f"--threshold {least}%"]
    use = f"; use {' '.join(actions)}" if actions else ""
    summaries = ", ".join(noise_summary(pairs, noise) for noise in relevant)
    return f"too noisy to accuse at {100 * relevant[0].threshold:g} %: {summaries}{use}"


def noise_summary(pairs: Pairs, noise: Noise) -> str:
    """``both ways 1M x 3 calls spread by 27 % (seen from 62 % on)``: of one kind of calls."""
    scope = "" if len({*pairs.hosts}) in (1, len(pairs.units)) else _scope_text(noise)
    scatter = f"spread by {100 * noise.spread:.0f} %"
    if noise.between > noise.spread:
        scatter = f"differ by {100 * noise.between:.0f} % from pair to pair"
    calls = f"{noise.what}{scope} {format_size(noise.size_bytes)} x {noise.calls} calls"
    return f"{calls} {scatter} (seen from {math.ceil(100 * noise.seen)} % on)"


def _scope_text(finding: Evidence | Noise) -> str:
    return " within the node" if finding.within else " between nodes"


def suspect_events(pairs: Pairs, suspected: Sequence[Suspect]) -> list[dict[str, Any]]:
    """An event for each node with a confirmed_suspects suspect, and for each suspect link: kind, message,
    ranks, and ``host`` (a node) or ``link`` (the hosts of both ends).
    """
    confirmed_suspects = [suspect for suspect in suspected if suspect.confirmed]
    nodes: defaultdict[str, list[Suspect]] = defaultdict(list)
    result = []
    for suspect in confirmed_suspects:
        if not suspect.is_link:
            nodes[pairs.hosts[suspect.units[0]]].append(suspect)
    for host, node_suspects in nodes.items():
        ranks = [rank for suspect in node_suspects for rank in pairs.units[suspect.units[0]]]
        message = suspect_text(pairs, node_suspects[0])
        if len(node_suspects) > 1:
            of = sum(1 for unit_host in pairs.hosts if unit_host == host)
            message = f"{len(node_suspects)} of {of} ranks of node {host}; {message}"
        result.append({"kind": "suspect", "message": message, "host": host, "ranks": ranks})
    for suspect in confirmed_suspects:
        if suspect.is_link:
            ends = [pairs.hosts[unit] for unit in suspect.units]
            ranks = [rank for unit in suspect.units for rank in pairs.units[unit]]
            message = suspect_text(pairs, suspect)
            result.append({"kind": "suspect", "message": message, "link": ends, "ranks": ranks})
    return result
