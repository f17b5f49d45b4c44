"""The calls that each rank replays of one step of a traffic, and whether the ranks agree.

Nothing here communicates. Every rank makes its own RankPlayback from what it has: the file of all
ranks, or its own capture alone. ``mismatch`` compares digests of them before anything is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchcoll.core.case import fingerprint
from torchcoll.core.collectives import exchange_with_splits, has_splits
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import ExactCall
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import counted
from torchcoll.parts.training.intervals import Union
from torchcoll.parts.training.steps import find_steps

Step = int | None  # its number; None where no step was marked: all calls are one


@dataclass(frozen=True)
class PlayedCall:
    """One call of the step.

    - call: the call as captured.
    - members: the ranks of the world in its group.
    - point: the collective with its size; None for send and recv.
    - after: indices in the step of the asynchronous calls that had ended before this one was
      issued.
    """

    call: TrafficCall
    members: tuple[int, ...]
    point: ExactCall | None
    after: tuple[int, ...]

    @property
    def asynchronous(self) -> bool:
        """Whether the call is replayed asynchronously.

        torch does not record this for messages. They count as asynchronous, because a message
        without a wait cannot block others.
        """
        call = self.call
        return bool(call.point_to_point if call.asynchronous is None else call.asynchronous)


@dataclass(frozen=True)
class RankPlayback:
    """The calls that one rank replays.

    - plays: the calls in the order of issue.
    - span_ns: duration of the step in training; None without marks.
    - in_flight_ns: how long any of its calls was in flight then; None if a call has no time.
    - notes: what is not replayed as captured, one sentence each.
    """

    plays: tuple[PlayedCall, ...]
    span_ns: int | None
    in_flight_ns: int | None
    notes: tuple[str, ...]


def most_common_steps(traffic: Traffic, rank: int) -> list[Step]:
    """Returns the steps of the rank that send what most of its steps send, in order.

    [None] if no call is in a marked step; [] if the rank made no call.
    """
    calls = _calls_of(traffic, rank)
    if all(call.step is None for call in calls):
        return [None] if calls else []
    marks = {rank: traffic.steps.get(rank, [])}
    return list(find_steps(replace(traffic, calls={rank: calls}, steps=marks)).steady)


def _calls_of(traffic: Traffic, rank: int) -> list[TrafficCall]:
    """Returns the calls of a rank. Raises UsageError if it was not captured."""
    if rank in traffic.calls:
        return traffic.calls[rank]
    action = "Put the files of all ranks into one folder."
    raise UsageError("traffic", f"no calls of rank {rank}", "calls of all ranks", action)


def rank_playback(traffic: Traffic, rank: int, step: Step) -> RankPlayback:
    """Returns what the rank replays of a step.

    Raises UsageError for calls that cannot be replayed.
    """
    plays: list[PlayedCall] = []
    notes: dict[str, None] = {}
    calls = [call for call in _calls_of(traffic, rank) if call.step == step]
    spans = traffic.steps.get(rank, [])
    step_span = spans[step] if step is not None and step < len(spans) else None
    end_ns: dict[int, int] = {}  # index of an asynchronous call -> its end
    for call in calls:
        members = traffic.members(call)
        point, remark = _point(call, members, rank)
        if call.point_to_point and call.asynchronous is None:
            remark = "played asynchronously, for torch does not tell what it was"
        if remark:
            notes[f"{call.collective}: {remark.replace('measured', 'played')}"] = None
        if point is None and not call.point_to_point:
            continue
        start = call.start_ns
        ended_before = (
            [] if start is None else [index for index, end in end_ns.items() if end <= start]
        )
        for index in ended_before:
            del end_ns[index]
        plays.append(PlayedCall(call, members, point, tuple(ended_before)))
        if call.span and call.clock == "host" and plays[-1].asynchronous:
            end_ns[len(plays) - 1] = call.span[1]
    span_ns = step_span[1] - step_span[0] if step_span else None
    in_training = [call.span for call in calls if call.span]
    in_flight_ns = Union(in_training).total if len(in_training) == len(calls) else None
    return RankPlayback(tuple(plays), span_ns, in_flight_ns, tuple(notes))


def _point(call: TrafficCall, members: tuple[int, ...], rank: int) -> tuple[ExactCall | None, str]:
    if rank not in members:
        raise UsageError("traffic", f"rank {rank} in a call of ranks {members}", "its own group")
    if call.point_to_point:
        if call.peer is None:
            actual = f"{call.collective} of rank {rank} with no peer"
            raise UsageError("traffic", actual, "a rank to send to or receive from")
        return None, ""
    if call.splits:  # replayed byte for byte; a rank may move nothing
        name = exchange_with_splits(call.collective) or call.collective
        return ExactCall(name, max(call.bytes_in, call.bytes_out), "uint8"), ""
    return point_of(call, len(members))


def digest(playback: RankPlayback, rank: int) -> list[list[Any]]:
    """Returns what other ranks must agree with.

    [ranks of a group, calls, hash] for each group of the rank, and [[source, target, "message"],
    messages, hash] for each pair of ranks that exchange messages.
    """
    sent: dict[tuple[Any, ...], list[Any]] = {}
    for play in playback.plays:
        call = play.call
        if play.point is None:
            pair = (rank, call.peer) if call.collective == "send" else (call.peer, rank)
            size_bytes = call.bytes_in or call.bytes_out
            sent.setdefault((*pair, "message"), []).append(size_bytes)
            continue
        point = play.point
        # The sizes of an uneven collective differ between ranks.
        size = None if has_splits(point.collective) else point.size_bytes
        contents = [point.collective, size, point.dtype, point.op, call.root]
        sent.setdefault(play.members, []).append(contents)
    return [[list(key), len(contents), fingerprint(contents)] for key, contents in sent.items()]


def mismatch(digests: Sequence[Sequence[Sequence[Any]]]) -> str:
    """Returns '' if the digests of all ranks agree, otherwise what differs and on which rank.

    - digests: the digest of each rank, by rank.
    """
    by_key: dict[tuple[Any, ...], dict[int, tuple[int, str]]] = {}
    for rank, rank_digest in enumerate(digests):
        for key, count, content_hash in rank_digest:
            by_key.setdefault(tuple(key), {})[rank] = (count, content_hash)
    for key, by_rank in by_key.items():
        text = _messages(key, by_rank) if key[-1] == "message" else _group(key, by_rank)
        if text:
            return text
    return ""


def _messages(key: tuple[Any, ...], by_rank: Mapping[int, tuple[int, str]]) -> str:
    source, target, _ = key
    sends, receives = (by_rank.get(rank, (0, "")) for rank in (source, target))
    if sends == receives:
        return ""
    if sends[0] != receives[0]:
        received = f"rank {target} receives {receives[0]} from it"
        return f"rank {source} sends {counted(sends[0], 'message')} to rank {target}, {received}"
    return f"rank {source} sends rank {target} other sizes than it receives"


def _group(key: tuple[Any, ...], by_rank: Mapping[int, tuple[int, str]]) -> str:
    group = f"group of ranks {','.join(map(str, key))}"
    absent = [rank for rank in key if rank not in by_rank]
    if absent:
        return f"rank {absent[0]} makes no call in the {group}, where rank {min(by_rank)} does"
    usual = Counter(by_rank.values()).most_common(1)[0][0]
    odd = next((rank for rank in key if by_rank[rank] != usual), None)
    if odd is None:
        return ""
    if by_rank[odd][0] != usual[0]:
        return (
            f"rank {odd} makes {counted(by_rank[odd][0], 'call')} in the {group}, others {usual[0]}"
        )
    return f"rank {odd} makes other calls in the {group} than the others"
