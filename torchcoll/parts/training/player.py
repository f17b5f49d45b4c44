"""The calls of a step that a rank replays, whether the ranks agree on them, and how a rank plays
and times them.

Every rank makes its own RankPlayback from what it has: the file of all ranks, or its own capture
alone. ``mismatch`` compares digests of them before anything is sent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.measure import prepare_call
from torchcoll.bench.verify import allocate
from torchcoll.core.case import Case, SizedCase, fingerprint, size_case
from torchcoll.core.collectives import COLLECTIVES, exchange_with_splits, has_splits
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import ExactCall
from torchcoll.core.traffic import Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import counted, format_size
from torchcoll.parts.training.intervals import Union
from torchcoll.parts.training.steps import find_steps

if TYPE_CHECKING:
    from torchcoll.bench.session import Rank
    from torchcoll.core.backends import BackendEntry
    from torchcoll.machine.devices import Device

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


Mark = list[Any]  # the stamp of the start, then of the end once it is known; None: unknown
_CALLBACK_TIMEOUT_S = 5.0


class HostStamps:
    """Times a call from issue to completion on the host's clock.

    The completion of an asynchronous call is stamped by the backend's own thread. For calls without
    a future (messages on gloo) it is unknown.
    """

    clock = "host"

    def __init__(self) -> None:
        self._callbacks = 0
        self._freed: list[None] = []  # appended to by threads of the backend

    def stamp(self) -> Any:
        return time.perf_counter_ns()

    def begin(self) -> Mark:
        return [self.stamp()]

    def end(self, mark: Mark) -> None:
        if len(mark) == 1:  # the first stamp counts
            mark.append(self.stamp())

    def follow(self, mark: Mark, work: Any, group: Hashable) -> None:
        """Stamps the end of an asynchronous call."""
        try:
            future = work.get_future()
        except RuntimeError:
            mark.append(None)
            return
        self._callbacks += 1
        future.add_done_callback(_EndCallback(lambda: self.end(mark), self._freed))

    def wait_for_callbacks(self) -> None:
        """Waits until the backend's threads have freed every callback, a moment after the call."""
        until = time.monotonic() + _CALLBACK_TIMEOUT_S
        while len(self._freed) < self._callbacks and time.monotonic() < until:
            time.sleep(0.001)

    def ns(self, mark: Mark) -> int | None:
        start, end = mark
        return None if end is None else end - start


class _EndCallback:
    """Stamps the end of a call when called, and records when it is freed itself."""

    def __init__(self, end: Callable[[], None], freed: list[None]) -> None:
        self._end, self._freed = end, freed

    def __call__(self, _: Any) -> None:
        self._end()

    def __del__(self) -> None:
        self._freed.append(None)


class DeviceStamps(HostStamps):
    """Times a call from issue to completion on the device, with events.

    The end of an asynchronous call is an event on a stream that waits for it. One stream per group
    is enough, because the calls of a group end in the order of issue.
    """

    clock = "device"

    def __init__(self, torch: Any, device: Device) -> None:
        super().__init__()
        self._torch = torch
        self._name = device.name
        self._module = torch.get_device_module(device.kind)
        self._streams: dict[Hashable, Any] = {}

    def stamp(self) -> Any:
        event = self._torch.Event(self._name, enable_timing=True)
        event.record()
        return event

    def follow(self, mark: Mark, work: Any, group: Hashable) -> None:
        if group not in self._streams:
            self._streams[group] = self._module.Stream()
        with self._module.stream(self._streams[group]):
            work.wait()
            self.end(mark)

    def ns(self, mark: Mark) -> int:
        elapsed_ms: float = mark[0].elapsed_time(mark[1])
        return round(elapsed_ms * 1e6)


Members = tuple[int, ...]
Issue = Callable[[bool], list[Any]]  # (asynchronous) -> the Work objects to wait for


@dataclass
class _Batch:
    """Calls that are issued together: one call, or a batch of messages.

    - indices: their indices in the step.
    - play: the first of them.
    - after: indices of the calls to wait for before.
    """

    indices: list[int]
    play: PlayedCall  # the first
    after: set[int]
    issue: Issue = field(init=False)

    @property
    def text(self) -> str:
        """Its name in messages, for example ``all_reduce 1M float32 sum``."""
        call, point = self.play.call, self.play.point
        size = format_size(point.size_bytes if point else call.bytes_in or call.bytes_out)
        facts = (call.collective, size, call.dtype, point and point.op)
        return " ".join(fact for fact in facts if fact)


class Player:
    """Replays the calls of one rank: call ``prepare`` once, then ``play`` as often as needed.

    - started: started[n][i] is the time of issue on the host of call i in play n (ns).
    - times: times[n][i] is its duration on ``clock`` (ns); None if the backend does not record it.
    - groups: torch's process groups by their ranks.
    """

    def __init__(
        self,
        local: Rank,
        entry: BackendEntry,
        playback: RankPlayback,
        groups: dict[Members, Any],
    ) -> None:
        self._local = local
        self._playback = playback
        self._groups = groups
        self._entry = entry
        streams = self._local.device.kind != "cpu" and not self._entry.on_host
        self._stamps = (
            DeviceStamps(self._local.torch, self._local.device) if streams else HostStamps()
        )
        self.clock = self._stamps.clock
        self._received: dict[
            int, list[int]
        ] = {}  # index of an uneven all_to_all -> bytes from each rank
        self._batches = _batches(playback)
        self.started: list[list[int]] = []
        self.times: list[list[int | None]] = []
        self.doing = ""
        self._buffers: dict[Any, Any] = {}

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers; similar calls share theirs."""
        sizes: dict[Any, int] = {}
        for play in self._playback.plays:
            call = play.call
            if play.point and not call.splits:
                sizing, index = self._sizing(play)
                sizes[sizing.case, play.members] = sizing.buffer_bytes(index)
            else:
                sizes["sent", call.bytes_in] = call.bytes_in
                sizes["received", call.bytes_out] = call.bytes_out
        return sum(sizes.values())

    def _sizing(self, play: PlayedCall) -> tuple[SizedCase, int]:
        """Returns the sizes of a collective and the index of this rank in its group."""
        point = play.point
        assert point
        entry, root = COLLECTIVES[point.collective], None
        if entry.has_root:
            root = play.members.index(play.call.root) if play.call.root in play.members else 0
        case = Case(
            point.collective,
            point.size_bytes,
            point.dtype,
            point.op,
            root,
            entry.placements[0],
            "synchronized",
            self._entry.name,
            self._local.device.kind,
        )
        return size_case(case, len(play.members)), play.members.index(self._local.rank)

    def exchange_splits(self) -> None:
        """Exchanges what each rank receives in an uneven all_to_all, which only the senders know.

        All ranks go through their groups in the same order, so that no two wait for each other.
        """
        torch, dist = self._local.torch, self._local.dist
        plays = sorted(enumerate(self._playback.plays), key=lambda pair: (pair[1].members, pair[0]))
        for index, play in plays:
            if play.call.splits:
                sent = torch.tensor(play.call.splits, device=self._local.device.name)
                received = torch.empty_like(sent)
                dist.all_to_all_single(received, sent, group=self._groups[play.members])
                self._received[index] = received.tolist()

    def prepare(self) -> None:
        """Allocates the buffers and prepares every call. Raises an out-of-memory error of torch or
        Python.
        """
        collectives: dict[Any, Any] = {}
        for item in self._batches:
            play, index = item.play, item.indices[0]
            if play.point is None:
                item.issue = self._messages(item)
            elif play.call.splits:
                item.issue = _issue_function(self._uneven(play, self._received[index]))
            else:
                sizing, rank = self._sizing(play)
                key = (sizing.case, play.members)
                if key not in collectives:
                    collectives[key] = self._collective(sizing, rank, play.members)
                item.issue = _issue_function(collectives[key])
        self._local.device.synchronize()

    def _collective(self, sizing: SizedCase, rank: int, members: Members) -> Any:
        case = sizing.case
        buffers = allocate(self._local.torch, sizing, rank, self._local.device.name)
        for side, buffer in (("sent", buffers.send), ("received", buffers.recv)):
            self._buffers[side, case, members] = buffer.zero_()
        return prepare_call(self._local, sizing, rank, buffers, self._groups[members])

    def _bytes(self, side: str, size_bytes: int) -> Any:
        torch, key = self._local.torch, (side, size_bytes)
        if key not in self._buffers:
            device = self._local.device.name
            self._buffers[key] = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        return self._buffers[key]

    def _uneven(self, play: PlayedCall, received: list[int]) -> Any:
        sent = list(play.call.splits)
        return partial(
            self._local.dist.all_to_all_single,
            self._bytes("received", sum(received)),
            self._bytes("sent", sum(sent)),
            received,
            sent,
            group=self._groups[play.members],
        )

    def _messages(self, item: _Batch) -> Issue:
        dist, group, messages = self._local.dist, self._groups[item.play.members], []
        for index in item.indices:
            call = self._playback.plays[index].call
            sends = call.collective == "send"
            side, size_bytes = ("sent", call.bytes_in) if sends else ("received", call.bytes_out)
            messages.append((sends, self._bytes(side, size_bytes), call.peer))
        batch = [
            dist.P2POp(dist.isend if sends else dist.irecv, buffer, peer, group)
            for sends, buffer, peer in messages
        ]

        def issue(asynchronous: bool) -> list[Any]:
            if asynchronous and len(batch) > 1:
                return list(dist.batch_isend_irecv(batch))
            if asynchronous:  # one message alone: nccl handles a batch of one differently
                return [message.op(message.tensor, message.peer, group) for message in batch]
            for sends, buffer, peer in messages:
                (dist.send if sends else dist.recv)(buffer, peer, group)
            return []

        return issue

    def play(self, name: str) -> tuple[int, int]:
        """Plays the step once and returns its start and end on the host; the device is idle at
        both.
        """
        stamps, plays, now = self._stamps, self._playback.plays, time.perf_counter_ns
        started: list[int] = []
        marks: list[Any] = []
        pending: dict[int, Any] = {}

        def wait(index: int) -> None:
            work = pending.pop(index, None)
            if work is not None:
                work.wait()
                stamps.end(marks[index])

        self._local.progress.step(name, started)
        self._local.device.synchronize()
        begin = now()
        for item in self._batches:
            for call_index in sorted(item.after):
                wait(call_index)
            self.doing = item.text
            asynchronous = item.play.asynchronous
            for _ in item.indices:
                started.append(now())
                marks.append(stamps.begin())
            works = item.issue(asynchronous)
            for number, call_index in enumerate(item.indices):
                if works:
                    work = pending[call_index] = works[number if len(works) > 1 else 0]
                    stamps.follow(marks[call_index], work, plays[call_index].members)
                else:
                    stamps.end(marks[call_index])
        for call_index in list(pending):
            wait(call_index)
        self._local.device.synchronize()
        end = now()
        self.started.append(started)
        self.times.append([stamps.ns(mark) for mark in marks])
        return begin, end

    def release(self) -> None:
        """Releases the groups, which are destroyed next; the buffers are freed after them.

        Destroying a gloo group waits for its threads while holding the GIL, which a thread may need
        to free a callback or a tensor (seen with torch 2.6).
        """
        self._stamps.wait_for_callbacks()
        self._batches.clear()
        self._groups.clear()


def _batches(playback: RankPlayback) -> list[_Batch]:
    """Returns the calls of the step, with consecutive asynchronous messages of a group in one
    batch.

    On nccl two ranks that both send first, alone, would wait forever.
    """
    items: list[_Batch] = []
    for index, play in enumerate(playback.plays):
        last = items[-1] if items else None
        if (
            last
            and play.point is None
            and last.play.point is None
            and play.asynchronous
            and last.play.asynchronous
            and play.members == last.play.members
            and not set(play.after) & set(last.indices)
        ):
            last.indices.append(index)
            last.after |= set(play.after)
        else:
            items.append(_Batch([index], play, set(play.after)))
    return items


def _issue_function(once: Any) -> Issue:
    def issue(asynchronous: bool) -> list[Any]:
        if asynchronous and isinstance(once, partial):
            return [once(async_op=True)]
        once()
        return []

    return issue
