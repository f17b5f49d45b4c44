"""A captured training step, played again without the model: the same calls, sizes and groups.

Each rank plays its own part (training/playback.py). Nothing is sent before all ranks have agreed
that their parts fit together: every group the same calls in the same order, every message a
receiver. In training each rank waited for an asynchronous call at a place that no capture sees;
here it waits where the call had ended in training, and else at the end of the step. So every wait
is one that was met in training too, which is why no two can wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace as replaced
from typing import Any

from torchcoll.bench.admission import lacks_memory
from torchcoll.bench.measure import first_call
from torchcoll.bench.session import Session, SessionOptions, opened
from torchcoll.core.case import fingerprint
from torchcoll.core.errors import TorchcollError, UnavailableError, UsageError, brief
from torchcoll.core.spec import Spec
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import time_text, whole_number
from torchcoll.machine.environment import free_memory
from torchcoll.training.playback import Part, Step, digest, mismatch, part_of, usual_steps
from torchcoll.training.player import Members, Player

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
    """Play the last usual step of ``traffic`` on all ranks of this run, ``steps`` times.

    On rank 0 a Traffic of source ``replay``: what all ranks played, with its durations; None
    elsewhere. A first play, which connects, stands before the marked steps.

    Calls are made in the captured order on the same groups, asynchronous ones overlap as they did;
    messages that follow each other asynchronously go as one batch. Buffers hold zeros, and calls
    that are alike share theirs. compute: the host sleeps (its last 0.2 ms awake) as long as it did
    something else between the calls of the training. Nothing is computed, so no call has to share
    cores, memory or the device with a computation. Before each step all ranks meet in a barrier.
    backend, device, timeout_s, rehearse: as in Spec.

    traffic: of all ranks, or of this one in the run that captured it. Where some ranks were not
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
    options = SessionOptions(spec, asked=fingerprint(asked))
    return play(torch, options, lambda: traffic, steps, compute)


def play(
    torch: Any, options: SessionOptions, read: Callable[[], Traffic], steps: int, compute: bool
) -> Traffic | None:
    """``replay`` in a session of these options; ``read`` is called on each rank."""
    whole_number(steps, "steps", 1)
    backend = options.spec.backend
    names = options.spec.backends if backend else ()
    if len(names) > 1 or not options.spec.communicates:
        raise UsageError("backend", backend, "one that communicates")
    with opened(torch, options) as session:
        traffic, part, step = _agreed(session, read, compute)
        player = _player(session, part, compute)
        align = session.communicators.align(session.entries[0].name)
        align()

        def connect() -> None:
            try:
                player.play("replay: first play")
            except Exception as error:
                raise RuntimeError(f"{player.doing}: {brief(error)}") from error

        refused = first_call(session.local, "replay", connect)
        if refused:
            raise UnavailableError("replay", refused.text, f"what {session.entries[0].name} can do")
        spans = []
        for number in range(steps):
            session.local.progress.step(f"replay: before step {number}")
            align()
            try:
                spans.append(player.play(f"replay: step {number}"))
            except RuntimeError as error:
                session.local.abort(f"{player.doing}: {brief(error)}")
        session.local.progress.step("replay: times to rank 0")
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
        gathered = session.local.control.gather(words)
        player.release()
        if session.run is None:
            return None
        found = _traffic(gathered, player.clock, session.entries[0].name)
        found.environment = session.run.environment
        found.notes = [
            *_notes(gathered, found, traffic, step, compute),
            *([_ON_DEVICE] if player.clock == "device" else []),
            *(event["message"] for event in session.run.events),
        ]
        return found


def _agreed(
    session: Session, read: Callable[[], Traffic], compute: bool
) -> tuple[Traffic, Part, Step]:
    """The traffic, what this rank plays, and the step that all ranks play."""
    refusal: TorchcollError | None = None
    usual: list[Step] = []
    try:
        traffic = read()
        ranks = session.local.ranks
        if ranks != traffic.ranks:
            its = "A group cannot be played without its ranks; its"
            action = f"{its if ranks < traffic.ranks else 'Its'} sizes can be measured on {ranks}: "
            raise UsageError(
                "ranks",
                ranks,
                f"{traffic.ranks}, as the step was captured on",
                f"{action}torchcoll.suite --traffic.",
            )
        usual = usual_steps(traffic, session.local.rank)[-_LAST:]
    except TorchcollError as error:
        refusal = error
    offers = [set(steps) for steps in session.local.control.agree(refusal, usual) if steps]
    # What is wrong in a file is the likely cause of what does not fit together.
    action = ". ".join([*traffic.problems[:1], _ONE_CAPTURE])
    common: set[Step] = set.intersection(*offers) if offers else set()
    if not common:
        got = "no step that all ranks have" if offers else "no calls"
        raise UsageError("traffic", got, "a captured step", action)
    step = max(common, key=lambda number: -1 if number is None else number)
    try:
        part = part_of(traffic, session.local.rank, step)
        if compute and part.plays and all(play.gap_ns is None for play in part.plays):
            raise UsageError("compute", "calls without times", "a traffic that was captured")
    except TorchcollError as error:
        refusal = error
    session.local.control.agree(refusal)
    digests = session.local.control.gather(digest(part, session.local.rank))
    text = session.local.control.decide(mismatch(digests))
    if text:
        raise UsageError("traffic", text, "parts that fit together", action)
    return traffic, part, step


def _player(session: Session, part: Part, compute: bool) -> Player:
    """Groups and buffers. Every rank takes part in the making of every group."""
    gathered = session.local.control.gather(sorted({play.members for play in part.plays}))
    found = sorted({tuple(members) for own in gathered for members in own})
    groups: dict[Members, Any] = {}
    for members in map(tuple, session.local.control.decide(found)):
        session.local.progress.step(f"replay: group {','.join(map(str, members))}")
        groups[members] = session.communicators.over(session.entries[0], members)
    player = Player(session.local, session.entries[0], part, groups, compute)
    session.local.progress.step("replay: buffers")
    words = session.local.control.gather(
        {"need": player.need_bytes, **free_memory(session.local.device)}
    )
    needs = {rank: word["need"] for rank, word in enumerate(words)}
    text = session.local.control.decide(lacks_memory(needs, words))
    if text:
        raise UnavailableError("memory", f"a step that {text}", "one whose buffers fit")
    refusal = None
    player.exchange_splits()
    try:
        player.prepare()
    except (RuntimeError, MemoryError) as error:
        refusal = UnavailableError("memory", brief(error), "room for the buffers of the step")
    session.local.control.agree(refusal)
    return player


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


def _notes(
    gathered: Sequence[dict[str, Any]], found: Traffic, traffic: Traffic, step: Step, compute: bool
) -> list[str]:
    """What was played, of which step of ``traffic``; found: with what durations."""
    what = "the captured step" if step is None else f"step {step}"
    where = f" of {traffic.path}" if traffic.path else ""
    gaps = "the host slept in the gaps between" if compute else "no gaps between"
    notes = [f"replay of {what}{where}: {gaps} calls, and nothing was computed"]
    spans = [words["span"] for words in gathered if words["span"] is not None]
    if spans:
        notes.append(f"the step took {time_text(max(spans))} in training")
    notes.append("asynchronous calls: waited for where they had ended in training, else at the end")
    notes.append("the first play of the step connects: it stands before the marked steps")
    notes += traffic.problems
    notes += [note for words in gathered for note in words["notes"]]
    notes = list(dict.fromkeys(notes))
    untimed = [c.collective for calls in found.calls.values() for c in calls if c.time_ns is None]
    if untimed:
        backend = next(iter(found.groups.values())).backend
        names = ", ".join(dict.fromkeys(untimed))
        notes.append(
            f"{len(untimed)} asynchronous calls have no duration: {backend} does not tell when "
            f"they end ({names})"
        )
    return notes
