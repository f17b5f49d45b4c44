"""Find the slow rank, node or link among the pairs of a run, and describe it.

Pure and without numpy, because rank 0 uses it during the run to choose the pairs to repeat.

A pair is slow if two conditions hold. Its speed is an outlier among the pairs of its kind, by the
modified z-score of Iglewicz and Hoaglin (How to Detect and Handle Outliers, ASQC 1993:
0.6745 (x - median) / MAD, beyond 3.5), computed with logarithms because a speed can fall by at most
100 %. And it is below the median by a relative threshold. Both are needed: if all pairs agree to
0.1 %, every small difference is an outlier, and if they scatter, 20 % is not one. The scale of the
score is at least the scatter of the calls of one pair, because a few pairs may agree by chance.
Pairs within a node and pairs between nodes are separate kinds and are never compared. The speed is
that of the good calls (the lower quartile of the times; for latency the minimum), because a fault
slows all calls, and other work on the machine only some of them.

The reference for a unit is the pairs without this unit. With few units, the unit's own pairs would
dominate the median of all pairs: with 4 ranks it has 3 of the 6. A unit is a suspect if more than
half of its pairs are below the threshold and their median is an outlier, on the scale of a median
of so many pairs. This works as long as at most a quarter of the units are bad. A slow pair of two
other units is a suspect link, by bandwidth only: the latency of two ranks may be high because there
are many switches between them, which is no fault.

On a CPU host with more ranks than cores, calls wait for a core, at random with one partner or
another. The pairs of such a host accuse nobody and are not part of any reference.

A suspicion is confirmed if the pairs are slow alone too. A pair that is slow only while other pairs
run is limited by the network that they share. Suspect pairs run alone in four passes, between usual
pairs. One pass clears them: a pass in which they are not both below the threshold and slower than
each of the usual pairs. A healthy pair is the slowest of four in every pass with a probability of
4**-4 = 0.4 % for any scatter of calls, if the passes are independent. (Taking the better of two
passes was not enough: gloo exchanges 8 MiB over TCP in 35 or in 70 ms, and all calls of a pass take
the same one of the two, so 2 of 26 healthy runs accused a link.)

The scatter limits what can be detected: a pair below the threshold that is no outlier accuses
nobody. ``find_detectable`` returns which losses are found.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.summary import median
from torchcoll.core.units import format_size, shorten
from torchcoll.questions.pairs.matches import (
    EXCHANGE,
    LATENCY,
    PRINTED,
    RECEIVE,
    SEND,
    Pairs,
    Times,
    undirected,
)
from torchcoll.questions.pairs.schedule import ITERS, SIZES, Pair

Z_LIMIT = 3.5
# Twice the latency of the others: latencies of healthy pairs scatter far more than bandwidths.
LATENCY_THRESHOLD = 0.5
# With more units than this (nodes, for pairs between nodes) a single unit cannot move the median.
_FEW = 16
# Scales of the noise by which a loss must exceed the limits to be found in 9 of 10 runs, in the
# rounds and in every pass alone (results/benchmarks/power-2026-11-28.txt).
_MARGIN = 2.0
_AGAIN = 3  # pairs of each suspect to repeat alone, and usual pairs of each kind to go with them


@dataclass(frozen=True)
class Evidence:
    """Why a unit or a link is suspected, for one kind of call.

    what: the kind of call, such as ``both ways``.
    within: whether these are pairs within a node.
    ratio: the median speed of its pairs over that of the pairs without it.
    z: the modified z-score of this median.
    slow, pairs: how many of how many pairs are below the threshold.
    alone_ratio: as ratio, for pairs that ran alone, over the usual pairs that ran alone; the median
        of the passes, None if not measured.
    confirmed: whether it was slow in every pass alone; None if there was no such pass.
    """

    what: str
    size_bytes: int
    within: bool
    ratio: float
    z: float
    slow: int
    pairs: int
    alone_ratio: float | None = None
    confirmed: bool | None = None


@dataclass(frozen=True)
class Suspect:
    """A suspect unit (one number in ``units``) or link (two). evidence: the strongest first."""

    units: tuple[int, ...]
    evidence: tuple[Evidence, ...]

    @property
    def is_link(self) -> bool:
        return len(self.units) == 2

    @property
    def confirmed(self) -> bool:
        """Whether some evidence was not cleared by a pass alone."""
        return any(evidence.confirmed is not False for evidence in self.evidence)


@dataclass(frozen=True)
class Detectable:
    """The smallest losses of speed that are found in about 9 of 10 runs, as shares.

    unit: of a rank or node; None if one cannot be compared with others.
    link: of a single link; None for latencies.
    within: whether it is about pairs within a node.
    """

    unit: float | None
    link: float | None
    within: bool


Speeds = dict[Pair, float]
_Reference = tuple[float, float, float]  # median speed; median and scale of the logarithms


def robust(values: Sequence[float], least: float = 0.0) -> tuple[float, float]:
    """(median, scale) of ``values`` for ``modified_z``; the scale is at least ``least``.

    If more than half of the values are equal, the MAD is 0 and the mean absolute deviation is used
    instead (1.253314 is the ratio of the two scales for the normal distribution); it may be 0 too.
    """
    middle = median(values)
    off = [abs(v - middle) for v in values]
    mad = median(off)
    return middle, max(mad / 0.6745 if mad else 1.253314 * sum(off) / len(off), least)


def modified_z(value: float, middle: float, scale: float) -> float:
    """Iglewicz and Hoaglin's score of ``value``, given the ``robust`` median and scale of others.

    If the scale is 0, the score is 0 or infinite.
    """
    if scale:
        return (value - middle) / scale
    return 0.0 if value == middle else math.copysign(math.inf, value - middle)


def _scale_of_median(count: int) -> float:
    """The scale of the median of ``count`` values over that of a single value.

    It is sqrt(pi / 2 / count), which holds for many normal values (Kendall and Stuart, The Advanced
    Theory of Statistics 1, 10.12); 1 for one and two values.
    """
    return math.sqrt(math.pi / 2 / count) if count > 2 else 1.0


def find_suspects(
    pairs: Pairs, threshold: float | None = None, with_hidden: bool = False
) -> list[Suspect]:
    """The suspects of a run: units first, then links, each in ascending order.

    threshold: a share of the speed of the others; None for the threshold of the run.
    with_hidden: also return links of units that are suspects themselves by another kind of call.
        These links count if the units are cleared, so they run alone too.
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
    confirmed_units = {each.units[0] for each in result if each.confirmed and not each.is_link}
    return [
        suspect
        for suspect in result
        if with_hidden or not suspect.is_link or not {*suspect.units} & confirmed_units
    ]


def find_detectable(pairs: Pairs, threshold: float | None = None) -> list[Detectable]:
    """What would have been found among the pairs within nodes, and among those between nodes: the
    largest of all kinds of calls.
    """
    every = [each for table in _loud_tables(pairs, threshold) if (each := table.detectable())]
    limits = []
    for within in (True, False):
        units, links = (
            [getattr(each, name) for each in every if each.within == within]
            for name in ("unit", "link")
        )
        if units:
            unit, link = (None if None in losses else max(losses) for losses in (units, links))
            limits.append(Detectable(unit, link, within))
    return limits


def _tables(pairs: Pairs, threshold: float) -> list[_Table]:
    return [_Table(pairs, key, within, threshold) for key in pairs.times for within in (1, 0)]


def _loud_tables(pairs: Pairs, threshold: float | None) -> list[_Table]:
    """Those whose noise matters. Latency has a threshold of its own, so it does only if nothing
    else was measured.
    """
    tables = _tables(pairs, threshold or pairs.threshold)
    return [table for table in tables if not table.is_latency] or tables


class _Table:
    """The pairs of one kind of call, within nodes or between them, as speeds."""

    def __init__(
        self, pairs: Pairs, key: tuple[str, int], within: bool | int, threshold: float
    ) -> None:
        self._pairs, self._key, self._within = pairs, key, bool(within)
        self._threshold = max(threshold, LATENCY_THRESHOLD) if key[0] == LATENCY else threshold
        self._speeds = self._read_speeds(pairs.times)
        self._alone = [self._read_speeds(tables) for tables in pairs.alone]
        # A bad node has many ranks: between nodes, all pairs of its ranks are left out together.
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
        """The speeds of the pairs without this unit (between nodes: without its node)."""
        group = self._group(unit)
        if self._groups > _FEW:
            group = None
        if group not in self._scales:
            group_of = self._group
            ends = ((pair, {group_of(pair[0]), group_of(pair[1])}) for pair in self._speeds)
            other_pairs = [pair for pair, groups in ends if group is None or group not in groups]
            self._scales[group] = self._scaled(other_pairs)
        return self._scales[group]

    def units(self) -> Iterable[tuple[int, Evidence]]:
        # The name of the kind of call, and the ends of the pair that it is evidence against.
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
        # A single link moves the median only if there are few of them.
        are_few = len(healthy) <= _FEW
        overall = self._scaled(healthy)
        what = "one way" if self._key[0] == SEND else self._key[0]
        for pair, speed in sorted(healthy.items()):
            reference = overall
            if are_few:
                # Both directions of a link are left out of its reference.
                reference = self._scaled([p for p in healthy if undirected(p) != undirected(pair)])
            # The cheap test first: of 100000 pairs only a few need the second one.
            if reference and speed <= (1 - self._threshold) * reference[0]:
                evidence = self._evidence(what, [pair], 1, reference)
                if evidence.z <= -Z_LIMIT:
                    yield undirected(pair), evidence

    @property
    def is_latency(self) -> bool:
        return self._key[0] == LATENCY

    def detectable(self) -> Detectable | None:
        """None without pairs. A loss must be both below the threshold and an outlier."""
        if not self._speeds:
            return None

        def loss(scale: float, pairs: int) -> float:
            limit = max(-math.log1p(-self._threshold), Z_LIMIT * scale * _scale_of_median(pairs))
            return 1 - math.exp(-limit - _MARGIN * scale)

        units = Counter(unit for pair in self._speeds for unit in {*pair})
        references = {unit: self._reference(unit) for unit in units}
        scales = {unit: each[2] for unit, each in references.items() if each}
        unit = link = None
        if len(scales) == len(units):
            unit = max(loss(scales[n], units[n]) for n in units)
        overall = self._scaled([*self._speeds])
        if overall and not self.is_latency and len({*map(undirected, self._speeds)}) > 1:
            link = loss(max([overall[2], *scales.values()]), 1)
        return Detectable(unit, link, self._within)

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
            usual = []  # speeds alone, of pairs that were not slow in the rounds
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
    """The pairs to repeat alone; both are empty if there are no suspects.

    Returns usual pairs of each kind, and at most max(8, units) pairs of suspects, each with the
    indexes in ``suspected`` of the suspects that it belongs to.
    """
    if not suspected:
        return [], {}
    bad = {unit for suspect in suspected if not suspect.is_link for unit in suspect.units}
    links = [suspect.units for suspect in suspected if suspect.is_link]
    large = [key for key in pairs.times if key[0] in (EXCHANGE, PRINTED)]
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
            unit = suspect.units[0]
            suspect_pairs = [pair for pair in speeds if unit in pair and pairs.judged(pair)]
            # Prefer partners that are not suspects, as a slow partner would explain the pair.
            suspect_pairs.sort(key=lambda pair: (len({*pair} & bad), -speeds[pair], pair))
        for pair in suspect_pairs[:_AGAIN]:
            if pair in chosen or len(chosen) < max(8, len(pairs.units)):
                chosen.setdefault(pair, []).append(index)
    return usual, chosen


def suspected_kinds(suspected: Iterable[Suspect]) -> set[tuple[str, int]]:
    """The kinds of calls by which units or links are still suspected, and which run again."""
    every = [evidence for suspect in suspected for evidence in suspect.evidence]
    kinds = {(e.what, e.size_bytes) for e in every if e.confirmed is not False}
    return {(what if what in (LATENCY, EXCHANGE, PRINTED) else SEND, size) for what, size in kinds}


def largest_sound_group(pairs: Pairs, suspected: Sequence[Suspect]) -> list[int]:
    """The largest group of units without confirmed suspects.

    For each suspect link one end is removed, starting with the unit that has the most links. This
    is greedy, because the smallest cover is NP-hard; with a few links it hardly matters.
    """
    confirmed_suspects = [suspect for suspect in suspected if suspect.confirmed]
    excluded = {suspect.units[0] for suspect in confirmed_suspects if not suspect.is_link}
    links = [each.units for each in confirmed_suspects if each.is_link]
    links = [units for units in links if not {*units} & excluded]
    while links:
        ends = [unit for link in links for unit in link]
        worst = max(sorted({*ends}), key=ends.count)
        excluded.add(worst)
        links = [link for link in links if worst not in link]
    return [unit for unit in range(len(pairs.units)) if unit not in excluded]


_MOST_SHOWN = 3  # kinds of calls in the line of a suspect


def suspect_text(pairs: Pairs, suspect: Suspect) -> str:
    """One line: the suspect, its share of the others' speed, and the evidence."""
    return f"{suspect_name(pairs, suspect)}: {evidence_text(pairs, suspect)}"


def suspect_name(pairs: Pairs, suspect: Suspect) -> str:
    if suspect.is_link:
        return f"link of {pairs.ranks(suspect.units[0])} and {pairs.ranks(suspect.units[1])}"
    return pairs.ranks(suspect.units[0])


def evidence_text(pairs: Pairs, suspect: Suspect) -> str:
    """Such as ``56 % of the others' speed both ways, alone (54 % while other pairs ran)``.

    The first figure is that of the pairs alone if they were measured so: in the rounds pairs share
    the network.
    """
    every = suspect.evidence
    shown = [e for e in every if e.confirmed is not False or not suspect.confirmed]
    texts: list[str] = []
    for evidence in shown:
        scope = "" if len({*pairs.hosts}) in (1, len(pairs.units)) else _scope_text(evidence)
        ratio, how, note = evidence.ratio, "", "not measured alone"
        if evidence.alone_ratio is not None:
            note = f"{100 * ratio:.0f} % while other pairs ran"
            ratio, how = evidence.alone_ratio, ", alone"
        if not suspect.is_link:
            note += f", {evidence.slow} of {evidence.pairs} pairs slow"
        of = "" if texts else " of the others' speed"
        texts.append(f"{100 * ratio:.0f} %{of} {evidence.what}{scope}{how} ({note})")
    return shorten(texts, _MOST_SHOWN, ", and {} more")


def scatter_remedy(pairs: Pairs) -> str:
    """The options with which the calls scatter less."""
    sizes = [size_bytes for kind, size_bytes in pairs.times if kind != LATENCY]
    options = [f"--sizes {format_size(SIZES[0])}"] if sizes and max(sizes) < SIZES[0] else []
    calls = min(timing.calls for times in pairs.times.values() for timing in times.values())
    options.append(f"-n {ITERS if calls < ITERS else 4 * calls}")
    return f"repeat with {' '.join(options)} while nothing else runs on the machine"


def _scope_text(finding: Evidence) -> str:
    return " within the node" if finding.within else " between nodes"


def suspect_events(pairs: Pairs, suspected: Sequence[Suspect]) -> list[dict[str, Any]]:
    """The events of a result file: for each node with confirmed suspects and each suspect link.

    The keys are kind, message, ranks, and ``host`` (a node) or ``link`` (the hosts of both ends).
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
