"""One rank's calls of a replayed step: buffers, how each is made, and its duration."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.measure import prepared
from torchcoll.bench.verify import allocate
from torchcoll.core.case import Case, Sizing, size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.units import format_size
from torchcoll.training.playback import Part, Play
from torchcoll.training.stamps import DeviceStamps, HostStamps

if TYPE_CHECKING:
    from torchcoll.bench.session import Rank
    from torchcoll.core.backends import BackendEntry

Members = tuple[int, ...]
Issue = Callable[[bool], list[Any]]  # asynchronous or not -> what is to be waited for
_AWAKE_NS = 200_000  # a sleeping host wakes up late by less than this, as a rule


@dataclass
class _Item:
    """Calls that are made at once: one, or a batch of messages. places: theirs in the step."""

    places: list[int]
    play: Play  # the first
    after: set[int]
    issue: Issue = field(init=False)

    @property
    def text(self) -> str:
        """``all_reduce 1M float32 sum``: how messages name it."""
        call, point = self.play.call, self.play.point
        size = format_size(point.size_bytes if point else call.bytes_in or call.bytes_out)
        words = (call.collective, size, call.dtype, point and point.op)
        return " ".join(word for word in words if word)


class Player:
    """``prepare``, then ``play`` as often as wanted.

    started[n][i], times[n][i]: when call i of play n was issued on the host, and its duration on
    ``clock``, None where the backend does not tell; nanoseconds. groups: torch's, by their ranks.
    """

    def __init__(
        self,
        local: Rank,
        entry: BackendEntry,
        part: Part,
        groups: dict[Members, Any],
        compute: bool,
    ) -> None:
        self._local = local
        self._part = part
        self._groups = groups
        self._compute = compute
        self._entry = entry
        streams = self._local.device.kind != "cpu" and not self._entry.on_host
        self._stamps = (
            DeviceStamps(self._local.torch, self._local.device) if streams else HostStamps()
        )
        self.clock = self._stamps.clock
        self._received: dict[int, list[int]] = {}  # place of an uneven all_to_all: bytes from each
        self._items = _items(part)
        self.started: list[list[int]] = []
        self.times: list[list[int | None]] = []
        self.doing = ""
        self._buffers: dict[Any, Any] = {}

    @property
    def need_bytes(self) -> int:
        """Bytes of all buffers. Calls that are alike share theirs."""
        sizes: dict[Any, int] = {}
        for play in self._part.plays:
            call = play.call
            if play.point and not call.splits:
                sizing, place = self._sizing(play)
                sizes[sizing.case, play.members] = sizing.buffer_bytes(place)
            else:
                sizes["sent", call.bytes_in] = call.bytes_in
                sizes["received", call.bytes_out] = call.bytes_out
        return sum(sizes.values())

    def _sizing(self, play: Play) -> tuple[Sizing, int]:
        """The sizes of a collective, and the place of this rank in its group."""
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
        """What each rank receives in an uneven all_to_all, which only the senders know.

        Group by group in one order on all ranks, so that no two wait for each other.
        """
        torch, dist = self._local.torch, self._local.dist
        plays = sorted(enumerate(self._part.plays), key=lambda pair: (pair[1].members, pair[0]))
        for place, play in plays:
            if play.call.splits:
                sent = torch.tensor(play.call.splits, device=self._local.device.name)
                received = torch.empty_like(sent)
                dist.all_to_all_single(received, sent, group=self._groups[play.members])
                self._received[place] = received.tolist()

    def prepare(self) -> None:
        """Allocate, and make every call ready. Raises torch's or Python's out-of-memory error."""
        made: dict[Any, Any] = {}
        for item in self._items:
            play, place = item.play, item.places[0]
            if play.point is None:
                item.issue = self._messages(item)
            elif play.call.splits:
                item.issue = _issue(self._uneven(play, self._received[place]))
            else:
                sizing, rank = self._sizing(play)
                key = (sizing.case, play.members)
                if key not in made:
                    made[key] = self._collective(sizing, rank, play.members)
                item.issue = _issue(made[key])
        self._local.device.synchronize()

    def _collective(self, sizing: Sizing, rank: int, members: Members) -> Any:
        case = sizing.case
        buffers = allocate(self._local.torch, sizing, rank, self._local.device.name)
        for side, buffer in (("sent", buffers.send), ("received", buffers.recv)):
            self._buffers[side, case, members] = buffer.zero_()
        return prepared(self._local, sizing, rank, buffers, self._groups[members])

    def _bytes(self, side: str, size_bytes: int) -> Any:
        torch, key = self._local.torch, (side, size_bytes)
        if key not in self._buffers:
            device = self._local.device.name
            self._buffers[key] = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        return self._buffers[key]

    def _uneven(self, play: Play, received: list[int]) -> Any:
        sent = list(play.call.splits)
        return partial(
            self._local.dist.all_to_all_single,
            self._bytes("received", sum(received)),
            self._bytes("sent", sum(sent)),
            received,
            sent,
            group=self._groups[play.members],
        )

    def _messages(self, item: _Item) -> Issue:
        dist, group, messages = self._local.dist, self._groups[item.play.members], []
        for place in item.places:
            call = self._part.plays[place].call
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
            if asynchronous:  # alone: on nccl a batch of one would go another way
                return [message.op(message.tensor, message.peer, group) for message in batch]
            for sends, buffer, peer in messages:
                (dist.send if sends else dist.recv)(buffer, peer, group)
            return []

        return issue

    def play(self, name: str) -> tuple[int, int]:
        """Play the step once; its start and end on the host, the device idle at both."""
        stamps, plays, now = self._stamps, self._part.plays, time.perf_counter_ns
        started: list[int] = []
        marks: list[Any] = []
        pending: dict[int, Any] = {}

        def wait(place: int) -> None:
            work = pending.pop(place, None)
            if work is not None:
                work.wait()
                stamps.end(marks[place])

        self._local.progress.step(name, started)
        self._local.device.synchronize()
        begin = now()
        for item in self._items:
            if self._compute:
                _pause(item.play.gap_ns)
            for place in sorted(item.after):
                wait(place)
            self.doing = item.text
            asynchronous = item.play.asynchronous
            for _ in item.places:
                started.append(now())
                marks.append(stamps.begin())
            works = item.issue(asynchronous)
            for number, place in enumerate(item.places):
                if works:
                    work = pending[place] = works[number if len(works) > 1 else 0]
                    stamps.follow(marks[place], work, plays[place].members)
                else:
                    stamps.end(marks[place])
        for place in list(pending):
            wait(place)
        if self._compute:
            _pause(self._part.rest_ns)
        self._local.device.synchronize()
        end = now()
        self.started.append(started)
        self.times.append([stamps.ns(mark) for mark in marks])
        return begin, end

    def release(self) -> None:
        """Let go of the groups, which are destroyed next; the buffers go after them.

        A gloo group that is destroyed waits for its threads and holds the GIL meanwhile. One of
        them that needs it then, to free a callback or the last reference to a tensor, never ends
        (seen with torch 2.6).
        """
        self._stamps.wait_for_callbacks()
        self._items.clear()
        self._groups.clear()


def _items(part: Part) -> list[_Item]:
    """Asynchronous messages that follow each other in a group go as one batch.

    Alone, each would block the stream of its pair on nccl, and a send to a rank that sends too
    would wait for ever; in training a batch was what kept them from it, and no capture tells it.
    """
    items: list[_Item] = []
    for place, play in enumerate(part.plays):
        last = items[-1] if items else None
        if (
            last
            and play.point is None
            and last.play.point is None
            and play.asynchronous
            and last.play.asynchronous
            and play.members == last.play.members
            and not set(play.after) & set(last.places)
        ):
            last.places.append(place)
            last.after |= set(play.after)
        else:
            items.append(_Item([place], play, set(play.after)))
    return items


def _issue(once: Any) -> Issue:
    def issue(asynchronous: bool) -> list[Any]:
        if asynchronous and isinstance(once, partial):
            return [once(async_op=True)]
        once()
        return []

    return issue


def _pause(gap_ns: int | None) -> None:
    """As long as the training did something else: asleep, but for the end."""
    if not gap_ns:
        return
    until = time.perf_counter_ns() + gap_ns
    if gap_ns > _AWAKE_NS:
        time.sleep((gap_ns - _AWAKE_NS) / 1e9)
    while time.perf_counter_ns() < until:
        pass
