"""Replays a captured training step without the model: the same calls, sizes and groups.

Each rank plays its own calls (training/playback.py). Nothing is sent before all ranks have agreed
that their calls fit together. The replay waits for an asynchronous call where it had ended in
training, otherwise at the end of the step, so no two ranks can wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchcoll.bench.communicators import first_call
from torchcoll.bench.plan import lacks_memory
from torchcoll.bench.session import Session, SessionOptions, opened
from torchcoll.core.case import fingerprint
from torchcoll.core.errors import TorchcollError, UnavailableError, UsageError, brief
from torchcoll.core.spec import Spec
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.units import whole_number
from torchcoll.machine.environment import free_memory
from torchcoll.parts.training.playback import (
    RankPlayback,
    Step,
    digest,
    mismatch,
    most_common_steps,
    rank_playback,
)
from torchcoll.parts.training.player import Members, Player
from torchcoll.reading.torch_names import Numbers

_MAX_OFFERS = 50  # latest steps of a rank that are searched for one that all ranks have
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
    timeout_s: float = 300.0,
    rehearse: bool = False,
) -> Traffic | None:
    """Replays a captured step of ``traffic`` on all ranks of this run, ``steps`` times.

    The step is the last one that all ranks have among those that send what most steps send. Returns
    a Traffic of source ``replay`` on rank 0, with the calls of all ranks and their durations, and
    None on the other ranks. A first play, which connects, comes before the marked steps.

    - traffic: a Traffic of all ranks, or of this rank in the run that captured it.
    - backend, device, timeout_s, rehearse: as in Spec.

    Calls are made in the captured order on the same groups. Buffers hold zeros, and similar calls
    share theirs. Before each step all ranks meet in a barrier. Nothing is computed.

    Raises UsageError for a different number of ranks than captured and for calls that do not fit
    together, UnavailableError for what the backend cannot do, on all ranks.
    """
    if not isinstance(traffic, Traffic):
        action = "torchcoll.Traffic.load reads a file."
        raise UsageError("traffic", type(traffic).__name__, "a Traffic", action)
    import torch

    asked = ["replay", backend, device, steps, timeout_s, rehearse]
    spec = Spec(backend=backend, device=device, timeout_s=timeout_s, rehearse=rehearse)
    options = SessionOptions(spec, asked=fingerprint(asked))
    return play(torch, options, lambda: traffic, steps)


def play(
    torch: Any,
    options: SessionOptions,
    read: Callable[[], Traffic],
    steps: int,
) -> Traffic | None:
    """Runs ``replay`` in a session with these options; ``read`` is called on each rank."""
    whole_number(steps, "steps", 1)
    backend = options.spec.backend
    names = options.spec.backends if backend else ()
    if len(names) > 1 or not options.spec.communicates:
        raise UsageError("backend", backend, "one that communicates")
    with opened(torch, options) as session:
        traffic, playback, step = _agree_on_step(session, read)
        player = _prepare_player(session, playback)
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
        report = {
            "calls": [
                replace(play.call, asynchronous=play.asynchronous).to_json()
                for play in playback.plays
            ],
            "members": [play.members for play in playback.plays],
            "descriptions": {group.name: group.description for group in traffic.groups.values()},
            "started": player.started,
            "times": player.times,
            "spans": spans,
            "step_ns": playback.span_ns,
            "in_flight_ns": playback.in_flight_ns,
            "notes": playback.notes,
        }
        gathered = session.local.control.gather(report)
        player.release()
        if session.run is None:
            return None
        result = _traffic(gathered, player.clock, session.entries[0].name)
        played: dict[str, int | None] = {"step": step}
        for name in ("step_ns", "in_flight_ns"):
            times = [report[name] for report in gathered if report[name] is not None]
            played[name] = max(times, default=None)
        result.environment = {**session.run.environment, "replay": played}
        result.notes = [
            *_notes(gathered, traffic, step),
            *([_ON_DEVICE] if player.clock == "device" else []),
            *(event["message"] for event in session.run.events),
        ]
        return result


def _agree_on_step(
    session: Session, read: Callable[[], Traffic]
) -> tuple[Traffic, RankPlayback, Step]:
    """Returns the traffic, what this rank plays, and the step that all ranks play."""
    refusal: TorchcollError | None = None
    usual: list[Step] = []
    try:
        traffic = read()
        ranks = session.local.ranks
        if ranks != traffic.ranks:
            raise UsageError(
                "ranks",
                ranks,
                f"{traffic.ranks}, as the step was captured on",
                f"Its sizes can be measured on {ranks}: torchcoll.suite --traffic.",
            )
        usual = most_common_steps(traffic, session.local.rank)[-_MAX_OFFERS:]
    except TorchcollError as error:
        refusal = error
    control = session.local.control
    offers = [set(steps) for steps in control.agree(refusal, usual) if steps]
    # A problem in the file is the likely cause of a mismatch.
    action = ". ".join([*traffic.problems[:1], _ONE_CAPTURE])
    common: set[Step] = set.intersection(*offers) if offers else set()
    step = max(common, key=lambda number: -1 if number is None else number, default=None)
    actual = "no step that all ranks have" if offers else "no calls"
    step, actual = control.decide([step, "" if common else actual])
    if actual:
        raise UsageError("traffic", actual, "a captured step", action)
    try:
        playback = rank_playback(traffic, session.local.rank, step)
    except TorchcollError as error:
        refusal = error
    control.agree(refusal)
    digests = control.gather(digest(playback, session.local.rank))
    text = control.decide(mismatch(digests))
    if text:
        raise UsageError("traffic", text, "parts that fit together", action)
    return traffic, playback, step


def _prepare_player(session: Session, playback: RankPlayback) -> Player:
    """Makes the groups and the buffers. Every rank takes part in making every group."""
    gathered = session.local.control.gather(sorted({play.members for play in playback.plays}))
    all_members = sorted({tuple(members) for rank_members in gathered for members in rank_members})
    groups: dict[Members, Any] = {}
    for members in map(tuple, session.local.control.decide(all_members)):
        session.local.progress.step(f"replay: group {','.join(map(str, members))}")
        groups[members] = session.communicators.over(session.entries[0], members)
    player = Player(session.local, session.entries[0], playback, groups)
    session.local.progress.step("replay: buffers")
    statuses = session.local.control.gather(
        {"need": player.buffer_bytes, **free_memory(session.local.device)}
    )
    needs = {rank: status["need"] for rank, status in enumerate(statuses)}
    text = session.local.control.decide(lacks_memory(needs, statuses))
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
    """Returns the Traffic of all ranks from the report of each."""
    result = Traffic("replay", len(gathered))
    for rank, report in enumerate(gathered):
        origin = (report["started"][0] or report["spans"][0])[0]
        result.steps[rank] = [(start - origin, end - origin) for start, end in report["spans"]]
        calls = [TrafficCall.from_json(call) for call in report["calls"]]
        groups = [
            _group(
                result, call, tuple(members), backend, report["descriptions"].get(call.group, "")
            )
            for call, members in zip(calls, report["members"], strict=True)
        ]
        numbers = Numbers()
        calls_of_rank = result.calls[rank] = []
        for played, (starts, times) in enumerate(
            zip(report["started"], report["times"], strict=True)
        ):
            for call, group, start, ns in zip(calls, groups, starts, times, strict=True):
                calls_of_rank.append(
                    replace(
                        call,
                        group=group,
                        sequence=numbers.next(call.collective, group, call.peer),
                        step=played - 1 if played else None,
                        start_ns=start - origin,
                        time_ns=ns,
                        clock=clock,
                        exposed_ns=None,
                        began_ns=None,
                        algorithm="",
                    )
                )
    return result


def _group(
    result: Traffic, call: TrafficCall, members: Members, backend: str, description: str
) -> str:
    """Returns the group's name in the result: as captured, unless another group has that name."""
    name = call.group or "default"
    if name in result.groups and result.groups[name].ranks != members:
        name = f"{name}@{members[0]}"
    result.groups.setdefault(name, Group(name, members, backend, description))
    return name


def _notes(gathered: Sequence[dict[str, Any]], traffic: Traffic, step: Step) -> list[str]:
    """Returns notes on what was played, of which step of ``traffic``."""
    what = "the captured step" if step is None else f"step {step}"
    source = f" of {traffic.path}" if traffic.path else ""
    notes = [f"replay of {what}{source}: no gaps between calls, and nothing was computed"]
    notes += traffic.problems
    return list(dict.fromkeys([*notes, *(n for each in gathered for n in each["notes"])]))
