"""A captured training step, played again without the model: the same calls, sizes and groups.

Each rank plays its own part (training/playback.py). Nothing is sent before all ranks have agreed
that their parts fit together: every group the same calls in the same order, every message a
receiver. In training each rank waited for an asynchronous call at a place that no capture sees;
here it waits where the call had ended in training, and else at the end of the step. So every wait
is one that was met in training too, which is why no two can wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.control import lacks_memory
from torchcoll.bench.measure import first_call, prepared
from torchcoll.bench.session import Session, opened
from torchcoll.bench.verify import allocate
from torchcoll.core.case import Case, Sizing, fingerprint, size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import TorchcollError, UnavailableError, UsageError, brief
from torchcoll.core.spec import Spec
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import format_size, format_time, whole_number
from torchcoll.machine.environment import free_memory
from torchcoll.training.playback import Part, Play, Step, digest, mismatch, part_of, usual_steps

if TYPE_CHECKING:
    from torchcoll.machine.devices import Device


# -------------------------------------------------------------------------------------------------
# When a call that is not waited for at once was complete: by the host's clock, or by events.

Mark = list[int | None]  # start, and once it is known the end
_SETTLE_S = 5.0


class HostStamps:
    """From issue to completion on the host's clock.

    Of an asynchronous call the backend's own thread tells when it was complete. Where it does not
    (messages on gloo) nobody knows: it is waited for where the step has time, not where it ends.
    """

    clock = "host"

    def __init__(self) -> None:
        self._asked = 0
        self._freed: list[None] = []  # appended to by threads of the backend

    def begin(self) -> Mark:
        return [time.perf_counter_ns()]

    def end(self, mark: Mark) -> None:
        if len(mark) == 1:  # the first word counts
            mark.append(time.perf_counter_ns())

    def follow(self, mark: Mark, work: Any, group: Hashable) -> None:
        try:
            future = work.get_future()
        except RuntimeError:
            mark.append(None)
            return
        self._asked += 1
        future.add_done_callback(_Told(mark, self._freed))

    def settle(self) -> None:
        """Waits until the backend's threads have freed every callback, a moment after the call."""
        until = time.monotonic() + _SETTLE_S
        while len(self._freed) < self._asked and time.monotonic() < until:
            time.sleep(0.001)

    def ns(self, mark: Mark) -> int | None:
        start, end = mark[:2]
        return None if start is None or end is None else end - start


class _Told:
    """The callback of a call's end; tells when it is freed, too."""

    def __init__(self, mark: Mark, freed: list[None]) -> None:
        self._mark, self._freed = mark, freed

    def __call__(self, _: Any) -> None:
        if len(self._mark) == 1:
            self._mark.append(time.perf_counter_ns())

    def __del__(self) -> None:
        self._freed.append(None)


class DeviceStamps:
    """From issue to completion on the device, by events.

    The end of an asynchronous call is an event on a stream that waits for it: one stream a group,
    for the calls of a group end in the order of issue.
    """

    clock = "device"

    def __init__(self, torch: Any, device: Device) -> None:
        self._torch = torch
        self._name = device.name
        self._module = torch.get_device_module(device.kind)
        self._beside: dict[Hashable, Any] = {}

    def _event(self) -> Any:
        event = self._torch.Event(self._name, enable_timing=True)
        event.record()
        return event

    def begin(self) -> list[Any]:
        return [self._event()]

    def end(self, mark: list[Any]) -> None:
        if len(mark) == 1:
            mark.append(self._event())

    def follow(self, mark: list[Any], work: Any, group: Hashable) -> None:
        if group not in self._beside:
            self._beside[group] = self._module.Stream()
        with self._module.stream(self._beside[group]):
            work.wait()
            self.end(mark)

    def settle(self) -> None:
        """Nobody is asked."""

    def ns(self, mark: list[Any]) -> int:
        return round(mark[0].elapsed_time(mark[1]) * 1e6)  # elapsed_time is in ms


# -------------------------------------------------------------------------------------------------
# One rank's calls of a replayed step: buffers, how each is made, and its duration.

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
        size = format_size(point.nbytes if point else call.nbytes_in or call.nbytes_out)
        words = (call.collective, size, call.dtype, point and point.op)
        return " ".join(word for word in words if word)


class Player:
    """``prepare``, then ``play`` as often as wanted.

    started[n][i], times[n][i]: when call i of play n was issued on the host, and its duration on
    ``clock``, None where the backend does not tell; nanoseconds. groups: torch's, by their ranks.
    """

    def __init__(
        self, session: Session, part: Part, groups: dict[Members, Any], compute: bool
    ) -> None:
        self._session = session
        self._part = part
        self._groups = groups
        self._compute = compute
        self._entry = session.entries[0]
        streams = session.device.kind != "cpu" and self._entry.name != "gloo"
        self._stamps = DeviceStamps(session.torch, session.device) if streams else HostStamps()
        self.clock = self._stamps.clock
        self._received: dict[int, list[int]] = {}  # place of an uneven all_to_all: bytes from each
        self._items = _items(part)
        self.started: list[list[int]] = []
        self.times: list[list[int | None]] = []
        self.doing = ""
        self._buffers: dict[Any, Any] = {}

    # -- buffers -----------------------------------------------------------------------------

    @property
    def need_nbytes(self) -> int:
        """Bytes of all buffers. Calls that are alike share theirs."""
        sizes: dict[Any, int] = {}
        for play in self._part.plays:
            call = play.call
            if play.point and not call.splits:
                sizing, place = self._sizing(play)
                sizes[sizing.case, play.members] = sizing.buffer_nbytes(place)
            else:
                sizes["sent", call.nbytes_in] = call.nbytes_in
                sizes["received", call.nbytes_out] = call.nbytes_out
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
            point.nbytes,
            point.dtype,
            point.op,
            root,
            entry.placements[0],
            "isolated",
            self._entry.name,
            self._session.device.kind,
        )
        return size_case(case, len(play.members)), play.members.index(self._session.rank)

    def exchange_splits(self) -> None:
        """What each rank receives in an uneven all_to_all, which only the senders know.

        Group by group in one order on all ranks, so that no two wait for each other.
        """
        torch, dist = self._session.torch, self._session.dist
        plays = sorted(enumerate(self._part.plays), key=lambda pair: (pair[1].members, pair[0]))
        for place, play in plays:
            if play.call.splits:
                sent = torch.tensor(play.call.splits, device=self._session.device.name)
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
        self._session.device.synchronize()

    def _collective(self, sizing: Sizing, rank: int, members: Members) -> Any:
        session, case = self._session, sizing.case
        buffers = allocate(session.torch, sizing, rank, session.device.name)
        for side, buffer in (("sent", buffers.send), ("received", buffers.recv)):
            self._buffers[side, case, members] = buffer.zero_()
        return prepared(session, sizing, rank, buffers, self._groups[members])

    def _bytes(self, side: str, nbytes: int) -> Any:
        torch, key = self._session.torch, (side, nbytes)
        if key not in self._buffers:
            device = self._session.device.name
            self._buffers[key] = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        return self._buffers[key]

    def _uneven(self, play: Play, received: list[int]) -> Any:
        sent = list(play.call.splits)
        return partial(
            self._session.dist.all_to_all_single,
            self._bytes("received", sum(received)),
            self._bytes("sent", sum(sent)),
            received,
            sent,
            group=self._groups[play.members],
        )

    def _messages(self, item: _Item) -> Issue:
        dist, group, messages = self._session.dist, self._groups[item.play.members], []
        for place in item.places:
            call = self._part.plays[place].call
            sends = call.collective == "send"
            side, nbytes = ("sent", call.nbytes_in) if sends else ("received", call.nbytes_out)
            messages.append((sends, self._bytes(side, nbytes), call.peer))
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

    # -- the step ----------------------------------------------------------------------------

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

        self._session.progress.step(name, started)
        self._session.device.synchronize()
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
        self._session.device.synchronize()
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
        self._stamps.settle()
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


# -------------------------------------------------------------------------------------------------

_LAST = 50  # so many of the last usual steps are looked through for one that all ranks have
_ON_DEVICE = (
    "times are of events on the device: from where it reached the call, so earlier calls of the "
    "group that had not ended are in them"
)
_ONE_CAPTURE = "Replay the files of one capture, of all its ranks."


def replay(
    traffic: Traffic,
    backend: str | None = None,
    device: str | None = None,
    steps: int = 10,
    compute: bool = False,
    timeout_s: float = 300.0,
    rehearse: bool = False,
) -> Traffic | None:
    """Play the last usual step of ``traffic`` on all ranks of this launch, ``steps`` times.

    On rank 0 a Traffic of source ``replay``: what all ranks played, with its durations; None
    elsewhere. A first play, which connects, stands before the marked steps.

    Calls are made in the captured order on the same groups, asynchronous ones overlap as they did;
    messages that follow each other asynchronously go as one batch. Buffers hold zeros, and calls
    that are alike share theirs. compute: the host sleeps (its last 0.2 ms awake) as long as it did
    something else between the calls of the training. Nothing is computed, so no call has to share
    cores, memory or the device with a computation. Before each step all ranks meet in a barrier.
    backend, device, timeout_s, rehearse: as in Spec.

    traffic: of all ranks, or of this one in the launch that captured it. Where some ranks were not
    captured, calls of others stand for theirs, if all ranks of a collective do the same.
    Raises UsageError for another number of ranks than captured and for parts that do not fit
    together, UnavailableError for what the backend cannot do, on all ranks.
    """
    if not isinstance(traffic, Traffic):
        action = "torchcoll.Traffic.load reads a file."
        raise UsageError("traffic", type(traffic).__name__, "a Traffic", action)
    import torch

    asked = ["replay", backend, device, steps, compute, timeout_s, rehearse]
    spec = Spec(backend=backend, device=device, timeout_s=timeout_s, rehearse=rehearse)
    return play(Session(torch, spec, asked=fingerprint(asked)), lambda: traffic, steps, compute)


def play(
    session: Session, read: Callable[[], Traffic], steps: int, compute: bool
) -> Traffic | None:
    """``replay`` in a session that is not open yet; ``read`` is called on each rank."""
    whole_number(steps, "steps", 1)
    names = session.spec.backends if session.spec.backend else ()
    if len(names) > 1 or "fake" in names:
        raise UsageError("backend", session.spec.backend, "one that communicates")
    with opened(session):
        traffic, part, step = _agreed(session, read, compute)
        player = _player(session, part, compute)
        spans = _played(session, player, steps)
        session.progress.step("replay: times to rank 0")
        words = {
            "calls": [
                replaced(play.call, asynchronous=play.asynchronous).to_json() for play in part.plays
            ],
            "members": [play.members for play in part.plays],
            "descriptions": {group.name: group.description for group in traffic.groups.values()},
            "started": player.started,
            "times": player.times,
            "spans": spans,
            "span": part.span_ns,
            "notes": part.notes,
        }
        gathered = session.control.gather(words)
        player.release()
        if session.run is None:
            return None
        found = _traffic(gathered, player.clock, session.entries[0].name)
        found.environment = session.run.environment
        found.notes = [
            *_what_was_played(gathered, traffic, step, compute),
            *_untold(found, session.entries[0].name),
            *([_ON_DEVICE] if player.clock == "device" else []),
            *(event["message"] for event in session.run.events),
        ]
        return found


# -- before anything is sent -------------------------------------------------------------------


def _agreed(
    session: Session, read: Callable[[], Traffic], compute: bool
) -> tuple[Traffic, Part, Step]:
    """The traffic, what this rank plays, and the step that all ranks play."""
    refusal: TorchcollError | None = None
    usual: list[Step] = []
    try:
        traffic = read()
        _check_ranks(traffic, session.ranks)
        usual = usual_steps(traffic, session.rank)[-_LAST:]
    except TorchcollError as error:
        refusal = error
    offers = [set(steps) for steps in session.control.agree(refusal, usual) if steps]
    common: set[Step] = set.intersection(*offers) if offers else set()
    if not common:
        got = "no step that all ranks have" if offers else "no calls"
        raise UsageError("traffic", got, "a captured step", _next_action(traffic))
    step = max(common, key=lambda number: -1 if number is None else number)
    try:
        part = part_of(traffic, session.rank, step)
        if compute and part.plays and all(play.gap_ns is None for play in part.plays):
            raise UsageError("compute", "calls without times", "a traffic that was captured")
    except TorchcollError as error:
        refusal = error
    session.control.agree(refusal)
    digests = session.control.gather(digest(part, session.rank))
    text = session.control.decide(mismatch(digests))
    if text:
        raise UsageError("traffic", text, "parts that fit together", _next_action(traffic))
    return traffic, part, step


def _next_action(traffic: Traffic) -> str:
    """What is wrong in a file is the likely cause."""
    return ". ".join([*traffic.problems[:1], _ONE_CAPTURE])


def _check_ranks(traffic: Traffic, ranks: int) -> None:
    if ranks == traffic.ranks:
        return
    fewer = "A group cannot be played without its ranks; its" if ranks < traffic.ranks else "Its"
    action = f"{fewer} sizes can be measured on {ranks}: torchcoll.suite --traffic."
    raise UsageError("ranks", ranks, f"{traffic.ranks}, as the step was captured on", action)


def _player(session: Session, part: Part, compute: bool) -> Player:
    """Groups and buffers. Every rank takes part in the making of every group."""
    gathered = session.control.gather(sorted({play.members for play in part.plays}))
    found = sorted({tuple(members) for own in gathered for members in own})
    groups: dict[Members, Any] = {}
    for members in map(tuple, session.control.decide(found)):
        session.progress.step(f"replay: group {','.join(map(str, members))}")
        groups[members] = session.communicators.over(session.entries[0], members)
    player = Player(session, part, groups, compute)
    session.progress.step("replay: buffers")
    words = session.control.gather({"need": player.need_nbytes, **free_memory(session.device)})
    needs = {rank: word["need"] for rank, word in enumerate(words)}
    text = session.control.decide(lacks_memory(needs, words))
    if text:
        raise UnavailableError("memory", f"a step that {text}", "one whose buffers fit")
    refusal = None
    player.exchange_splits()
    try:
        player.prepare()
    except (RuntimeError, MemoryError) as error:
        refusal = UnavailableError("memory", brief(error), "room for the buffers of the step")
    session.control.agree(refusal)
    return player


# -- the steps ---------------------------------------------------------------------------------


def _played(session: Session, player: Player, steps: int) -> list[tuple[int, int]]:
    """(start, end) of each step on this rank's clock; a first play stands before them."""
    align = session.communicators.align(session.entries[0].name)
    align()
    _first(session, player)
    spans = []
    for number in range(steps):
        session.progress.step(f"replay: before step {number}")
        align()
        try:
            spans.append(player.play(f"replay: step {number}"))
        except RuntimeError as error:
            session.trouble(f"{player.doing}: {brief(error)}")
    return spans


def _first(session: Session, player: Player) -> None:
    """The first play connects, and finds out what the backend refuses."""

    def play() -> None:
        try:
            player.play("replay: first play")
        except Exception as error:
            raise RuntimeError(f"{player.doing}: {brief(error)}") from error

    refused = first_call(session, "replay", play)
    if refused:
        raise UnavailableError("replay", refused, f"what {session.entries[0].name} can do")


# -- what comes back ---------------------------------------------------------------------------


def _traffic(gathered: Sequence[dict[str, Any]], clock: str, backend: str) -> Traffic:
    """The Traffic of all ranks, from what each has sent."""
    found = Traffic("replay", len(gathered))
    for rank, words in enumerate(gathered):
        origin = (words["started"][0] or words["spans"][0])[0]
        found.steps[rank] = [(start - origin, end - origin) for start, end in words["spans"]]
        calls = [TrafficCall.from_json(call) for call in words["calls"]]
        groups = [
            _group(found, call, tuple(members), backend, words["descriptions"].get(call.group, ""))
            for call, members in zip(calls, words["members"], strict=True)
        ]
        numbers: dict[Any, int] = {}
        own = found.calls[rank] = []
        for played, (starts, times) in enumerate(
            zip(words["started"], words["times"], strict=True)
        ):
            for call, group, start, ns in zip(calls, groups, starts, times, strict=True):
                line = (group, call.collective, call.peer) if call.point_to_point else group
                number = numbers[line] = numbers.get(line, -1) + 1
                own.append(
                    replaced(
                        call,
                        group=group,
                        sequence=number,
                        step=played - 1 if played else None,
                        start_ns=start - origin,
                        time_ns=ns,
                        clock=clock,
                        exposed_ns=None,
                    )
                )
    return found


def _group(
    found: Traffic, call: TrafficCall, members: Members, backend: str, description: str
) -> str:
    """The name of the group in the result: as captured, where no other has it."""
    name = call.group or "default"
    if name in found.groups and found.groups[name].ranks != members:
        name = f"{name}@{members[0]}"
    found.groups.setdefault(name, Group(name, members, backend, description))
    return name


def _what_was_played(
    gathered: Sequence[dict[str, Any]], traffic: Traffic, step: Step, compute: bool
) -> list[str]:
    what = "the captured step" if step is None else f"step {step}"
    where = f" of {traffic.path}" if traffic.path else ""
    gaps = "the host slept in the gaps between" if compute else "no gaps between"
    notes = [f"replay of {what}{where}: {gaps} calls, and nothing was computed"]
    spans = [words["span"] for words in gathered if words["span"] is not None]
    if spans:
        notes.append(f"the step took {format_time(max(spans)).strip()} in training")
    notes.append("asynchronous calls: waited for where they had ended in training, else at the end")
    notes.append("the first play of the step connects: it stands before the marked steps")
    notes += traffic.problems
    return list(dict.fromkeys([*notes, *(note for words in gathered for note in words["notes"])]))


def _untold(found: Traffic, backend: str) -> list[str]:
    calls = [c.collective for own in found.calls.values() for c in own if c.time_ns is None]
    names = ", ".join(dict.fromkeys(calls))
    told = f"{backend} does not tell when they end ({names})"
    return [f"{len(calls)} asynchronous calls have no duration: {told}"] if calls else []
