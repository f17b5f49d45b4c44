"""Where the times of a curve contradict its regimes, and whether that may be noise.

Noise is said only where launches, or the calls of the only one, show it: a size that is slow in
every launch scatters about a law as well.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcoll.analysis.regimes import DISAGREEING, FEWEST
from torchcoll.core.units import format_size

if TYPE_CHECKING:
    from torchcoll.analysis.transitions import Point, Regimes

NOISY = 0.2  # scatter about the law beyond which no boundary can be told
POOR = 0.15  # a point further from its law than that, and than noise goes: the law does not fit
FEW = 16  # sizes, below which scatter about a law may be its misfit as well as noise
FALL = 0.1  # time that falls by less from one size to the next is nothing to act on
_UNKNOWN = 0.04  # of few sizes, where nothing tells the noise: a fall has to be 1.25x
_FAR = 4  # standard errors, as far as noise hardly goes


@dataclass(frozen=True)
class Fall:
    """More bytes in less time: ratio is the time at low_nbytes over that at high_nbytes."""

    low_nbytes: int
    high_nbytes: int
    low_ns: float
    high_ns: float

    @property
    def ratio(self) -> float:
        return self.low_ns / self.high_ns


def falls_of(found: Regimes) -> list[Fall]:
    """Where time falls by more than noise, and neither a dip nor a transition says it already."""
    told = found.known and found.known.launches
    noise = found.curve.noise if len(found.points) >= FEW else _UNKNOWN

    def limit(a: Point, b: Point) -> float:
        errors = (a.error, b.error) if told else (noise, noise)
        return max(math.log1p(FALL), _FAR * math.hypot(*errors))

    kept = [p for i, p in enumerate(found.points) if i not in found.curve.dips]
    zones = [(t.low_nbytes, t.high_nbytes) for t in found.transitions if t.kind == "drop"]
    return [
        Fall(a.nbytes, b.nbytes, a.time_ns, b.time_ns)
        for a, b in itertools.pairwise(kept)
        if math.log(a.time_ns / b.time_ns) > limit(a, b)
        and not any(low <= a.nbytes and b.nbytes <= high for low, high in zones)
    ]


def disagreeing(found: Regimes) -> list[Point]:
    """The sizes at which launches differ so much more than at most sizes that they weigh less."""
    if not (found.known and found.known.launches):
        return []
    usual = statistics.median(point.error for point in found.points)
    return [p for p in found.points if p.error > max(POOR, DISAGREEING * usual)]


def note_of(found: Regimes) -> str:
    """What speaks against the regimes that were found, or why none could be."""
    points, curve = found.points, found.curve
    few = len(points) < 2 * FEWEST
    if curve.noise > NOISY and (text := _noisy(found)):
        return text
    if not curve.regimes:  # each has too few sizes
        return ""
    worst = max(curve.regimes, key=lambda r: r.misfit)
    at = points[worst.misfit_at]
    if found.known and found.known.launches:
        noise = at.error
    else:  # of many sizes the scatter about the law, of which the furthest is no news
        noise = curve.noise if len(points) >= FEW else 0.0
    text = f"one law fits all within {100 * worst.misfit:.1f} % ({format_size(at.nbytes)})"
    poor = worst.misfit > max(POOR, _FAR * noise)
    ratio = at.time_ns / worst.time_ns(at.nbytes)
    if poor and curve.boundaries:
        number = curve.regimes.index(worst) + 1
        text = f"the law of regime {number} does not fit: {format_size(at.nbytes)} takes"
        return f"{text} {ratio:.2f}x its time{_agreement(found)}"
    if poor:
        text = f"one law does not fit: {format_size(at.nbytes)} takes {ratio:.2f}x its time"
        text += "; too few sizes to say more" if len(points) < FEW and not few else ""
        if len(points) >= 2 * FEWEST:
            return text + _agreement(found)
    if few:
        return (
            f"too few sizes to find a boundary: {len(points)}, and {FEWEST} on each side are "
            f"needed; {text}"
        )
    return ""


def _noisy(found: Regimes) -> str:
    """Where the launches, or the calls of the only one, are known to scatter as the points do."""
    known, scatter = found.known, found.curve.noise
    about = f"times scatter by {100 * scatter:.0f} % about any law of this kind"
    if known and known.point > scatter / 2:
        who = "launches" if known.launches else "calls"
        return f"too noisy: {about}, and {who} of one size as much; repeat the launches"
    if len(found.points) >= FEW and not (known and known.launches):
        return f"{about}; one launch cannot tell noise from what each size takes: repeat it"
    return ""


def _agreement(found: Regimes) -> str:
    """Whether it may be noise after all."""
    known = found.known
    if known and known.launches:
        return f" (launches of one size scatter by {100 * known.one:.1f} %)"
    return " (1 launch: whether that is noise is not known)"
