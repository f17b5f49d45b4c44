"""Which rank is the odd one out, from what all of them said when nothing moved any more. Pure.

A rank is named for a difference that can be told: it is in code that waits for nobody, it has made
another number of calls than its place asks for, it owes the word that rank 0 waits for, its thread
spins or sleeps where those of the others wait, it is behind. Else nobody is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchcoll.bench.whereabouts import BUSY, CODE, COLLECTIVE, EXCHANGE

# What a rank says of itself. steps: how far it is; doing: in words. place, text, how, s: see
# Whereabouts.told. part, calls: the sub-group, and the calls that torch has counted in it. lacks:
# ranks for whose word rank 0 waits. Unknown ones are not there.
Word = dict[str, Any]
Names = Callable[[Sequence[int]], str]

SAME = "all ranks wait at the same place"
_PLACES = {
    CODE: "user code",
    BUSY: "torchcoll",
    COLLECTIVE: "the collective",
    EXCHANGE: "the control exchange",
}


def odd_one(words: Sequence[Word], names: Names) -> str:
    """One clause; ``words`` of all ranks, in order."""
    found = _not_waiting(words, names) or _out_of_step(words, names) or _owing(words, names)
    found = found or _other_call(words, names)
    return found or _unlike(words, names) or _behind(words, names) or _nobody(words, names)


def _not_waiting(words: Sequence[Word], names: Names) -> str:
    """Ranks in code of their own while others wait: somebody else's code before torchcoll's."""
    for kind in (CODE, BUSY):
        odd = [rank for rank, word in enumerate(words) if word.get("place") == kind]
        waiting = [
            rank for rank, word in enumerate(words) if word.get("place") in (COLLECTIVE, EXCHANGE)
        ]
        if odd and waiting:
            clauses = [
                f"{names(ranks)} {_be(ranks)} in {_PLACES[kind]} ({text})"
                for text, ranks in _grouped(odd, lambda rank: _thread(words[rank]))
            ]
            return ", ".join([*clauses, _waits(words, waiting, names)])
    return ""


def _thread(word: Word) -> str:
    how = word.get("how")
    told = f": {how}" if how in ("sleeps", "spins") else ""
    return f"{word.get('text')}{told}"


def _waits(words: Sequence[Word], ranks: Sequence[int], names: Names) -> str:
    """``rank 0 (a), rank 1 (a) wait in the collective``, by place."""
    by_place = _grouped(ranks, lambda rank: _PLACES.get(words[rank].get("place", ""), "?"))
    return ", ".join(
        f"{names(own)} wait{'s' if len(own) == 1 else ''} in {place}" for place, own in by_place
    )


def _be(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _grouped(ranks: Iterable[int], key: Callable[[int], str]) -> list[tuple[str, list[int]]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        found[key(rank)].append(rank)
    return list(found.items())


def _out_of_step(words: Sequence[Word], names: Names) -> str:
    """Who is further must have made more calls of the library, as torch counts them. Where that is
    not so one has left a call out, or made one too many: the fewer who contradict the more.
    """
    kinds: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for rank, word in enumerate(words):
        if word.get("calls") is not None:
            inside = word.get("place") == COLLECTIVE
            kinds[(word.get("part"), word["steps"], word["calls"], inside)].append(rank)
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
    left_out, too_many = (sorted(r for kind in side for r in kinds[kind]) for side in
                          (further, nearer))  # fmt: skip
    skipped = f"{names(left_out)} left out a call of the library: past it, with fewer calls made"
    added = f"{names(too_many)} made a call of the library too many"
    if len(left_out) == len(too_many):
        return f"{skipped}, or {added}"
    if len(left_out) < len(too_many):
        return f"{skipped}; {_waits(words, too_many, names)}"
    return f"{added}; {names(left_out)} {_be(left_out)} past it"


def _owing(words: Sequence[Word], names: Names) -> str:
    """Rank 0 waits for the words of some, which wait for rank 0 as if they had given theirs."""
    lacks = words[0].get("lacks") or []
    owing = [rank for rank in lacks if words[rank].get("place") == EXCHANGE]
    if not owing or len(owing) == len(words) - 1:
        return ""
    return f"{names(owing)} did not give {'its' if len(owing) == 1 else 'their'} word to rank 0"


def _other_call(words: Sequence[Word], names: Names) -> str:
    """Equally far, and in different calls of the library: the fewer are named, of two both."""
    if len({(word["steps"], word.get("part"), word.get("place")) for word in words}) > 1:
        return ""
    if words[0].get("place") != COLLECTIVE:
        return ""
    calls = _grouped(range(len(words)), lambda rank: str(words[rank].get("text")))
    calls.sort(key=lambda call: len(call[1]))
    if len(calls) == 1:
        return ""
    return ", ".join(f"{names(own)} {_be(own)} in {text}" for text, own in calls)


def _unlike(words: Sequence[Word], names: Names) -> str:
    """Threads that sleep or spin in a place where most of those of the others wait."""
    calm = [rank for rank, word in enumerate(words) if word.get("how") == "waits"]
    odd = [rank for rank, word in enumerate(words) if word.get("how") in ("sleeps", "spins")]
    if not odd or len(odd) > len(calm):
        return ""
    clauses = [
        f"{names(ranks)} {text}"
        for text, ranks in _grouped(
            odd,
            lambda rank: f"{words[rank]['how']} in {_PLACES.get(words[rank].get('place', ''))}",
        )
    ]
    return ", ".join([*clauses, _waits(words, calm, names)])


def _behind(words: Sequence[Word], names: Names) -> str:
    done = [word["steps"] for word in words]
    behind = [rank for rank, steps in enumerate(done) if steps < max(done)]
    return f"behind: {names(behind)}, in {words[behind[0]]['doing']}" if behind else ""


def _nobody(words: Sequence[Word], names: Names) -> str:
    if len({word.get("place") for word in words}) == 1:
        return SAME
    return f"{_waits(words, range(len(words)), names)}: cannot tell who is late"
