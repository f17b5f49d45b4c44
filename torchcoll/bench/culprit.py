"""Which rank made a run fail: a pure function of the status that each rank reported. A rank is
named if it differs from the others; otherwise no rank is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from torchcoll.core.units import plural

# What libraries say of a connection that another rank has closed.
_BY_OTHERS = ("by peer", "broken pipe")
ECHO = "another rank reports trouble"

# Where a thread is. In user code and in torchcoll's (busy) it waits for no other rank; in the
# collective and in the control exchange it does.
CODE, BUSY, COLLECTIVE, EXCHANGE = "code", "busy", "collective", "exchange"

# The status that a rank reports. A field that is not known is absent.
#   steps, doing: how many steps it has done, and the description of the present one
#   place, text, how, s: where its thread stalls, the description, sleeps/spins/waits, seconds
#   subgroup, calls: its sub-group, and the calls that torch has counted in it
#   lacks: ranks whose value rank 0 waits for
#   last: the buffers of its last calls (watchdog.last_calls)
#   ranks: how many there are
#   still_s: how long its process stood still
#   cause, signal, hang, damaged: what went wrong, by kind
#   waited: the hang is an exchange that waited in vain for the value of a rank
#   code: the exit code of a user's mistake
Status = dict[str, Any]
Names = Callable[[Sequence[int]], str]

_STILL = "A stopped process, swapping, a paused machine or native code with Python's lock does that"
SAME = "all ranks wait at the same place"
_PLACES = {
    CODE: "user code",
    BUSY: "torchcoll",
    COLLECTIVE: "the collective",
    EXCHANGE: "the control exchange",
}


class Why(Enum):
    """What is named as the reason."""

    DAMAGED = "a value in the store that no rank has written"
    MISTAKE = "a mistake of the user's that one rank met"
    WORLD = "ranks that were told of different numbers of ranks"
    BUFFERS = "ranks that gave another buffer"
    PAUSE = "ranks that stood still"
    LOST = "ranks that do not answer"
    MET = "what a rank met itself"
    ODD = "the odd one out, if any"


@dataclass(frozen=True)
class Witness:
    """What the rank that asks knows itself.

    symptom: what it met; None if it has only heard the alarm. kind: of the event.
    still: this rank stood still.
    here, gone: the known ranks of this host, and those of them whose process has ended.
    first: the rank that raised the alarm before all others.
    """

    rank: int
    symptom: str | None
    kind: str
    timeout_s: float
    still: bool = False
    here: Sequence[int] = ()
    gone: Sequence[int] = ()
    first: int | None = None
    waited: bool = False


@dataclass(frozen=True)
class Culprit:
    """Why a run ends. clause: which ranks did what, for reasons that have no other field.

    lost: ranks that did not answer.
    alone: a rank that hears of no other rank, so that it may be cut off itself.
    code: an exit code other than that of a hang.
    """

    why: Why
    kind: str
    symptom: str | None
    clause: str = ""
    lost: Sequence[int] = ()
    alone: int | None = None
    code: int | None = None

    def story(self, names: Names) -> str:
        """What happened, without the step in which this rank was: equal on all ranks."""
        if self.why in (Why.BUFFERS, Why.PAUSE):
            return self.clause
        if self.why is Why.LOST:
            cut_off = ""
            if self.alone is not None:
                cut_off = f"{names([self.alone])} is cut off from all others, or "
            return f"{cut_off}lost {names(self.lost)}"
        return self.symptom or ECHO

    def text(self, doing: str, names: Names, seen: str = "") -> str:
        """The message of a rank in step ``doing``. seen: what lost processes do, or ''."""
        if self.why in (Why.DAMAGED, Why.MISTAKE):
            return self.story(names)
        symptom, more = self.symptom or ECHO, ""
        if self.why is Why.WORLD:
            more = f"; {self.clause}. Start all ranks with the same number of ranks"
        elif self.why is Why.BUFFERS:
            more = f" ({f'lost {names(self.lost)}, ' if self.lost else ''}{symptom})"
        elif self.why is Why.PAUSE:
            more = f"{f'; {self.symptom}' if self.symptom else ''}. {_STILL}"
        elif self.why is Why.LOST:
            more = f" (no answer; {seen}{symptom})"
        elif self.why is Why.ODD:
            more = f"; {self.clause}"
        return f"{self.story(names)} in {doing}{more}"


def find(witness: Witness, statuses: Sequence[Status | None], names: Names) -> Culprit:
    """The reason that explains most. statuses: None for no answer, {} for a rank not asked."""
    symptom, kind, waited = witness.symptom, witness.kind, witness.waited
    hangs = [status for status in statuses if status and status.get("hang")]
    # Another rank waited too long first, maybe for this one, whose errors are a consequence.
    if hangs and (symptom is None or witness.still):
        symptom, kind, waited = hangs[0]["hang"], "hang", bool(hangs[0].get("waited"))
    damaged = next(
        (status["damaged"] for status in statuses if status and status.get("damaged")), None
    )
    if mistake := next((status for status in statuses if status and status.get("code")), None):
        return Culprit(Why.MISTAKE, "error", mistake["cause"], code=mistake["code"])
    if damaged:
        return Culprit(Why.DAMAGED, "store", str(damaged))
    # What a rank met itself explains more than that another reports trouble; where one had waited
    # too long, errors of others come of its leaving.
    causes: list[tuple[int, str]] = [
        (rank, status[key])
        for key in ("cause", "signal")
        for rank, status in enumerate(statuses)
        if status and status.get(key) and not hangs
    ]
    causes.sort(key=lambda cause: cause[0] != witness.first)
    if causes:
        symptom = f"{names([causes[0][0]])}: {causes[0][1]}"
    silent = [rank for rank, status in enumerate(statuses) if status is None]
    culprit = Culprit(Why.MET, kind, symptom)
    if world := other_world(statuses, names):
        return replace(culprit, why=Why.WORLD, clause=world)
    if buffers := other_buffers(statuses, names):
        return replace(culprit, why=Why.BUFFERS, clause=buffers, lost=silent)
    # A connection that others have closed is no cause; before any other one, that a busy rank did
    # not answer in time is no news. Where it is gone it is.
    hanging = [
        text
        for rank, text in causes
        if not any(part in text.lower() for part in _BY_OTHERS)
        and not (statuses[rank] or {}).get("still_s")
    ]
    if not hanging and (still := stood_still(statuses, names)):
        return replace(culprit, why=Why.PAUSE, clause=still)
    if silent and not (hanging and {*witness.gone}.isdisjoint(silent)):
        no_answer = len(silent) == len(statuses) - 1 > 1 and [*witness.here] == [witness.rank]
        alone = witness.rank if no_answer else None
        return replace(culprit, why=Why.LOST, lost=silent, alone=alone)
    if causes:
        return culprit
    if waited:  # for rank 0, which waits itself
        symptom = f"no progress for {witness.timeout_s:g} s"
    clause = odd_one([status for status in statuses if status], names)
    return replace(culprit, why=Why.ODD, symptom=symptom, clause=clause)


def pause(clause: str, symptom: str | None) -> Culprit:
    """For a rank that stood still itself and cannot ask the others."""
    return Culprit(Why.PAUSE, "hang", symptom, clause)


def odd_one(statuses: Sequence[Status], names: Names) -> str:
    """A clause that names the rank that differs most from the others, if one does."""
    finds = (_not_waiting, _out_of_step, _owing, _other_call, _unlike, _behind, _nobody)
    return next(filter(None, (find(statuses, names) for find in finds)), "")


def other_world(statuses: Sequence[Status | None], names: Names) -> str:
    """Ranks that were started with another number of ranks; None and {} for unknown statuses."""
    ranks_told = [rank for rank, status in enumerate(statuses) if status and status.get("ranks")]
    counts = _grouped(ranks_told, lambda rank: str((statuses[rank] or {})["ranks"]))
    counts.sort(key=lambda count: len(count[1]))
    if len(counts) < 2:
        return ""
    return ", ".join(
        f"{names(ranks)} {plural(len(ranks), 'counts', 'count')} {count} ranks"
        for count, ranks in counts
    )


def stood_still(statuses: Sequence[Status | None], names: Names) -> str:
    """Ranks whose clock has jumped: they stood still themselves, whatever they see of others."""
    ranks = [rank for rank, status in enumerate(statuses) if status and status.get("still_s")]
    seconds = [(statuses[rank] or {})["still_s"] for rank in ranks]
    return f"{names(ranks)} stood still for {max(seconds)} s" if ranks else ""


def other_buffers(statuses: Sequence[Status | None], names: Names) -> str:
    """Ranks that gave their last call another buffer than the calls before, within one case; ''
    if all ranks did. A root's buffers differ from those of other ranks.
    """
    last_buffers = {
        rank: last for rank, status in enumerate(statuses) if (last := (status or {}).get("last"))
    }
    odd = [
        rank
        for rank, last in last_buffers.items()
        if len({*last[:-1]}) == 1 and last[-1] != last[-2]
    ]
    if len(odd) == len(last_buffers) > 1:
        return ""
    return ", ".join(
        f"{names(ranks)} gave another buffer ({text})"
        for text, ranks in _grouped(
            odd, lambda rank: f"{last_buffers[rank][-1]}, before {last_buffers[rank][0]}"
        )
    )


def _not_waiting(statuses: Sequence[Status], names: Names) -> str:
    """Ranks that wait for no rank while others wait. User code is named before torchcoll's."""
    for kind in (CODE, BUSY):
        odd = [rank for rank, status in enumerate(statuses) if status.get("place") == kind]
        waiting = [
            rank
            for rank, status in enumerate(statuses)
            if status.get("place") in (COLLECTIVE, EXCHANGE)
        ]
        if odd and waiting:
            clauses = [
                f"{names(ranks)} {_be(ranks)} in {_PLACES[kind]} ({text})"
                for text, ranks in _grouped(odd, lambda rank: _thread(statuses[rank]))
            ]
            return ", ".join([*clauses, _waits(statuses, waiting, names)])
    return ""


def _thread(status: Status) -> str:
    how = status.get("how")
    how_text = f": {how}" if how in ("sleeps", "spins") else ""
    return f"{status.get('text')}{how_text}"


def _waits(statuses: Sequence[Status], ranks: Sequence[int], names: Names) -> str:
    """``rank 0 (a), rank 1 (a) wait in the collective``, by place."""
    by_place = _grouped(ranks, lambda rank: _PLACES.get(statuses[rank].get("place", ""), "?"))
    return ", ".join(
        f"{names(group)} {plural(len(group), 'waits', 'wait')} in {place}"
        for place, group in by_place
    )


def _be(ranks: Sequence[int]) -> str:
    return plural(len(ranks), "is", "are")


def _grouped(ranks: Iterable[int], key: Callable[[int], str]) -> list[tuple[str, list[int]]]:
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        groups[key(rank)].append(rank)
    return list(groups.items())


def _out_of_step(statuses: Sequence[Status], names: Names) -> str:
    """Ranks that left out a call of the library, or made one too many: a rank that is further must
    have made more calls. If ranks contradict that, the smaller group is named.
    """
    kinds: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for rank, status in enumerate(statuses):
        if status.get("calls") is not None:
            inside = status.get("place") == COLLECTIVE
            kinds[(status.get("subgroup"), status["steps"], status["calls"], inside)].append(rank)
    further: set[tuple[Any, ...]] = set()
    nearer: set[tuple[Any, ...]] = set()
    for ahead in kinds:
        for back in kinds:
            same = ahead[0] == back[0] and ahead[1] > back[1] and back[3]
            if same and ahead[2] < back[2] + ahead[3]:
                further.add(ahead)
                nearer.add(back)
    if not further:
        return ""
    left_out = sorted(rank for kind in further for rank in kinds[kind])
    too_many = sorted(rank for kind in nearer for rank in kinds[kind])
    skipped = f"{names(left_out)} left out a call of the library: past it, with fewer calls made"
    added = f"{names(too_many)} made a call of the library too many"
    if len(left_out) == len(too_many):
        return f"{skipped}, or {added}"
    if len(left_out) < len(too_many):
        return f"{skipped}; {_waits(statuses, too_many, names)}"
    return f"{added}; {names(left_out)} {_be(left_out)} past it"


def _owing(statuses: Sequence[Status], names: Names) -> str:
    """Ranks whose value rank 0 waits for, but which wait for rank 0 as if they had sent it."""
    lacks = statuses[0].get("lacks") or []
    owing = [rank for rank in lacks if statuses[rank].get("place") == EXCHANGE]
    if not owing or len(owing) == len(statuses) - 1:
        return ""
    return f"{names(owing)} did not give {'its' if len(owing) == 1 else 'their'} word to rank 0"


def _other_call(statuses: Sequence[Status], names: Names) -> str:
    """Ranks that are equally far, but in different calls of the library; the fewest first."""
    seen = {(status["steps"], status.get("subgroup"), status.get("place")) for status in statuses}
    if len(seen) > 1:
        return ""
    if statuses[0].get("place") != COLLECTIVE:
        return ""
    calls = _grouped(range(len(statuses)), lambda rank: str(statuses[rank].get("text")))
    calls.sort(key=lambda call: len(call[1]))
    if len(calls) == 1:
        return ""
    return ", ".join(f"{names(group)} {_be(group)} in {text}" for text, group in calls)


def _unlike(statuses: Sequence[Status], names: Names) -> str:
    """Ranks whose threads sleep or spin while most others wait."""
    calm = [rank for rank, status in enumerate(statuses) if status.get("how") == "waits"]
    odd = [rank for rank, status in enumerate(statuses) if status.get("how") in ("sleeps", "spins")]
    if not odd or len(odd) > len(calm):
        return ""
    clauses = [
        f"{names(ranks)} {text}"
        for text, ranks in _grouped(
            odd,
            lambda rank: (
                f"{statuses[rank]['how']} in {_PLACES.get(statuses[rank].get('place', ''))}"
            ),
        )
    ]
    return ", ".join([*clauses, _waits(statuses, calm, names)])


def _behind(statuses: Sequence[Status], names: Names) -> str:
    done = [status["steps"] for status in statuses]
    behind = [rank for rank, steps in enumerate(done) if steps < max(done)]
    return f"behind: {names(behind)}, in {statuses[behind[0]]['doing']}" if behind else ""


def _nobody(statuses: Sequence[Status], names: Names) -> str:
    if len({status.get("place") for status in statuses}) == 1:
        return SAME
    return f"{_waits(statuses, range(len(statuses)), names)}: cannot tell who is late"
