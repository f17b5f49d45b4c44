"""One step of a traffic as each rank plays it again, and whether the ranks fit together.

Pure. Every rank makes its own part from what it has (the file of all ranks, or its own capture
alone); ``mismatch`` compares digests of the parts before anything is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.core.case import fingerprint, mesh_of
from torchcoll.core.collectives import exchange_with_splits, has_splits
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import ExactCall, point_of
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.units import counted

Step = int | None  # its number; None where no step was marked: all calls are one


@dataclass(frozen=True)
class Play:
    """One call of the step. ``call``: as captured; ``members``: ranks of the world in its group.

    point: the collective with its size; None for send and recv. gap_ns: of the host, between the
    return of the call before (or the start of the step) and this one; None where it is not known.
    after: places in the step of the asynchronous calls that had ended before this one was issued.
    """

    call: TrafficCall
    members: tuple[int, ...]
    point: ExactCall | None
    gap_ns: int | None
    after: tuple[int, ...]

    @property
    def asynchronous(self) -> bool:
        """Of a message torch tells a capture nothing: without a wait it cannot block others."""
        call = self.call
        return bool(call.point_to_point if call.asynchronous is None else call.asynchronous)


@dataclass(frozen=True)
class Part:
    """What one rank plays. rest_ns: between its last call and the end of the step, as ``gap_ns``.

    span_ns: what the step took in training; None without marks. notes: what is not played as it
    was, a sentence each.
    """

    plays: tuple[Play, ...]
    rest_ns: int | None
    span_ns: int | None
    notes: tuple[str, ...]


def usual_steps(traffic: Traffic, rank: int) -> list[Step]:
    """The steps of the rank that send what most of its steps send, in order.

    [None] where no call is in a marked step; [] where the rank made no call at all.
    """
    own = traffic.calls[source_of(traffic, rank)]
    calls: dict[Step, list[Any]] = {}
    for call in own:
        if call.step is not None:
            sent = (call.collective, call.bytes_in, call.bytes_out, call.dtype, call.group)
            calls.setdefault(call.step, []).append((*sent, call.peer))
    if not calls:
        return [None] if own else []
    sent_by = {step: tuple(sent) for step, sent in calls.items()}
    usual = Counter(reversed(sent_by.values())).most_common(1)[0][0]  # of several the latest
    return [step for step, sent in sent_by.items() if sent == usual]


def source_of(traffic: Traffic, rank: int) -> int:
    """The rank whose calls this one plays: its own, or the nearest that was captured, below first.

    Raises UsageError where none was.
    """
    captured = [other for other, calls in traffic.calls.items() if calls]
    if rank in traffic.calls:
        return rank
    if not captured:
        raise UsageError("traffic", f"no calls in {traffic.path or 'it'}", "a captured step")
    return max((other for other in captured if other < rank), default=min(captured))


def part_of(traffic: Traffic, rank: int, step: Step) -> Part:
    """What the rank plays of that step. Raises UsageError for what cannot be played."""
    source = source_of(traffic, rank)
    plays: list[Play] = []
    notes: dict[str, None] = {}
    if source != rank:
        notes[f"calls of rank {source} stand for those of ranks that were not captured"] = None
    calls = [c for c in traffic.calls[source] if c.step == step]
    spans = traffic.steps.get(source, [])
    span = spans[step] if step is not None and step < len(spans) else None
    reached = span[0] if span else None
    ended: dict[int, int] = {}  # place of an asynchronous call -> when it had ended
    for captured in calls:
        members = traffic.members(captured)
        call = captured if source == rank else _stand_in(captured, members, source, rank, traffic)
        if source != rank:
            members = _own_group(members, rank, traffic.ranks)
        point, remark = _point(call, members, rank)
        if call.point_to_point and call.asynchronous is None:
            remark = "played asynchronously, for torch does not tell what it was"
        if remark:
            notes[f"{call.collective}: {remark.replace('measured', 'played')}"] = None
        if point is None and not call.point_to_point:
            continue
        start = call.start_ns
        gap = None if start is None or reached is None else max(0, start - reached)
        after = [] if start is None else [there for there, end in ended.items() if end <= start]
        for there in after:
            del ended[there]
        plays.append(Play(call, members, point, gap, tuple(after)))
        reached = start
        if start is not None and call.time_ns is not None and call.clock == "host":
            if plays[-1].asynchronous:
                ended[len(plays) - 1] = start + call.time_ns
            else:
                reached = start + call.time_ns
    rest = None if span is None or reached is None else max(0, span[1] - reached)
    return Part(tuple(plays), rest, span[1] - span[0] if span else None, tuple(notes))


def _point(call: TrafficCall, members: tuple[int, ...], rank: int) -> tuple[ExactCall | None, str]:
    if rank not in members:
        raise UsageError("traffic", f"rank {rank} in a call of ranks {members}", "its own group")
    if call.point_to_point:
        if call.peer is None:
            got = f"{call.collective} of rank {rank} with no peer"
            raise UsageError("traffic", got, "a rank to send to or receive from")
        return None, ""
    if call.splits:  # as it was, byte for byte; what a rank moves may be nothing
        name = exchange_with_splits(call.collective) or call.collective
        return ExactCall(name, max(call.bytes_in, call.bytes_out), "uint8"), ""
    return point_of(call, len(members))


def _stand_in(
    call: TrafficCall, members: tuple[int, ...], source: int, rank: int, traffic: Traffic
) -> TrafficCall:
    """The call as the other rank makes it. Raises UsageError where ranks do different things."""
    if call.point_to_point or call.splits:
        got = f"no calls of rank {rank}, and rank {source} has {call.collective}"
        expected = "calls of all ranks, for this one differs from rank to rank"
        raise UsageError("traffic", got, expected, "Put the files of all ranks into one folder.")
    own = _own_group(members, rank, traffic.ranks)
    if not own:
        got = f"no calls of rank {rank}, and rank {source} has one in the group of ranks {members}"
        expected = "calls of every rank, or of groups that form a mesh"
        raise UsageError("traffic", got, expected, "Put the files of all ranks into one folder.")
    if call.root is None:
        return call
    return replace(call, root=own[members.index(call.root)] if call.root in members else own[0])


def _own_group(members: tuple[int, ...], rank: int, ranks: int) -> tuple[int, ...]:
    """The group itself where the rank is in it, else the one of its mesh that has the rank."""
    if rank in members:
        return members
    return next((part for part in mesh_of(members, ranks) if rank in part), ())


def digest(part: Part, rank: int) -> list[list[Any]]:
    """What others must agree with: [ranks of a group, calls, hash] for each group of the rank, and
    [[from, to], messages, hash] for each pair with which it exchanges messages.

    A pair has its ranks in the order of travel, and a third entry that tells it from a group.
    """
    sent: dict[tuple[Any, ...], list[Any]] = {}
    for play in part.plays:
        call = play.call
        if play.point is None:
            pair = (rank, call.peer) if call.collective == "send" else (call.peer, rank)
            size_bytes = call.bytes_in or call.bytes_out
            sent.setdefault((*pair, "message"), []).append(size_bytes)
            continue
        point = play.point
        size = None if has_splits(point.collective) else point.size_bytes  # its ranks differ
        words = [point.collective, size, point.dtype, point.op, call.root]
        sent.setdefault(play.members, []).append(words)
    return [[list(key), len(words), fingerprint(words)] for key, words in sent.items()]


def mismatch(digests: Sequence[Sequence[Sequence[Any]]]) -> str:
    """'' where all ranks fit together, else what does not and on which rank. ``digests[rank]``."""
    stated: dict[tuple[Any, ...], dict[int, tuple[int, str]]] = {}
    for rank, own in enumerate(digests):
        for key, count, words in own:
            stated.setdefault(tuple(key), {})[rank] = (count, words)
    for key, made in stated.items():
        text = _messages(key, made) if key[-1] == "message" else _group(key, made)
        if text:
            return text
    return ""


def _messages(key: tuple[Any, ...], made: Mapping[int, tuple[int, str]]) -> str:
    source, target, _ = key
    sends, receives = (made.get(rank, (0, "")) for rank in (source, target))
    if sends == receives:
        return ""
    if sends[0] != receives[0]:
        received = f"rank {target} receives {receives[0]} from it"
        return f"rank {source} sends {counted(sends[0], 'message')} to rank {target}, {received}"
    return f"rank {source} sends rank {target} other sizes than it receives"


def _group(key: tuple[Any, ...], made: Mapping[int, tuple[int, str]]) -> str:
    where = f"group of ranks {','.join(map(str, key))}"
    absent = [rank for rank in key if rank not in made]
    if absent:
        return f"rank {absent[0]} makes no call in the {where}, where rank {min(made)} does"
    usual = Counter(made.values()).most_common(1)[0][0]
    odd = next((rank for rank in key if made[rank] != usual), None)
    if odd is None:
        return ""
    if made[odd][0] != usual[0]:
        return f"rank {odd} makes {counted(made[odd][0], 'call')} in the {where}, others {usual[0]}"
    return f"rank {odd} makes other calls in the {where} than the others"
