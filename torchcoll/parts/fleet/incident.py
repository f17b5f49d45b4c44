"""Incidents: what is slow, since when, and what has been said about it; as records that are only
ever added to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

OPEN, CLOSED, ACCEPTED, EXPLAINED = "open", "closed", "accepted", "explained"
SLOW, WRONG = "slow", "wrong"


@dataclass(frozen=True)
class Level:
    """From this night on an incident has this effect, a difference of log times.

    unseen: how many nights before it had no run; it may have begun in one of them.
    """

    night: int
    effect: float
    unseen: int = 0


@dataclass(frozen=True)
class Incident:
    """A node, a group of nodes or the fleet that became slower, or a node with wrong results.

    - id: for a ticket, the same for ever: ``gpu013@2026-10-31``.
    - scope: node, group or fleet.
    - kind: slow or wrong.
    - subject: the node, or the fact that the nodes of a group share: ``rack=r1``.
    - nodes: names; of the fleet those that are slower.
    - levels: effects, each from a night on; those of a group hold for a node from its change on.
    - low, high: 90 % interval of the last level.
    - cases: indexes of the cases that are slower.
    - where: these cases in words.
    - opened: the night after which it was first reported.
    - ended: the first good night, None while it lasts.
    - state: open, closed, accepted, or explained by the incident of a group.
    - changed: recorded facts that changed with it: ``nccl 2.27.5 -> 2.27.7``.
    - openings: how often it began.
    - good_nights: how many nights the subject was as usual before.
    - staged: the nodes changed in different nights.
    - always: slower than its peers since its first night.
    - seen: the last night with a wrong result.
    - first_calls: of the first calls, not of the steady times.
    """

    id: str
    scope: str
    kind: str
    subject: str
    nodes: tuple[str, ...]
    levels: tuple[Level, ...]
    low: float
    high: float
    cases: tuple[int, ...]
    where: str
    opened: int
    ended: int | None = None
    state: str = OPEN
    changed: tuple[str, ...] = ()
    openings: int = 1
    good_nights: int = 0
    staged: bool = False
    always: bool = False
    seen: int = 0
    first_calls: bool = False

    @property
    def began(self) -> int:
        """The first night of its last opening."""
        for before, level in zip(reversed(self.levels[:-1]), reversed(self.levels), strict=False):
            if before.effect == 0.0:
                return level.night
        return self.levels[0].night

    @property
    def since(self) -> int:
        """The night of its last change of level."""
        return self.levels[-1].night

    @property
    def effect(self) -> float:
        return self.levels[-1].effect

    @property
    def is_open(self) -> bool:
        return self.state == OPEN

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Incident:
        """Raises KeyError or TypeError for what no incident can be."""
        texts = {name: tuple(data[name]) for name in ("nodes", "cases", "changed")}
        levels = tuple(Level(**each) for each in data["levels"])
        return cls(**{**data, **texts, "levels": levels})


@dataclass(frozen=True)
class IncidentRecord:
    """What was said of an incident in one night, and is never changed.

    night: after which it was said. event: opened, worse, better, relapsed, closed, accepted or
    explained. since: the night in which it happened. accepted_by, reason: of an acceptance.
    """

    incident: str
    night: int
    event: str
    since: int
    effect: float
    low: float
    high: float
    accepted_by: str = ""
    reason: str = ""
