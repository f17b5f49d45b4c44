"""Replays a captured training step without the model: the same calls, sizes and groups.

Each rank plays its own calls (training/player.py). Nothing is sent before all ranks have agreed
that their calls fit together. The replay waits for an asynchronous call where it had ended in
training, otherwise at the end of the step, so no two ranks can wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torchcoll.bench.communicators import first_call
from torchcoll.bench.plan import lacks_memory
from torchcoll.bench.session import Session, SessionOptions, opened
from torchcoll.core.case import fingerprint
from torchcoll.core.collectives import COLLECTIVES, DTYPES, Layout
from torchcoll.core.errors import TorchcollError, UnavailableError, UsageError, brief
from torchcoll.core.spec import Spec
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.core.traffic_spec import point_of
from torchcoll.core.units import format_bytes, whole_number
from torchcoll.machine.environment import free_memory
from torchcoll.parts.training.player import (
    Members,
    Player,
    RankPlayback,
    Step,
    digest,
    mismatch,
    most_common_steps,
    rank_playback,
)
from torchcoll.reading.torch_names import Numbers


def shrink_traffic(traffic: Traffic, ranks: int) -> tuple[Traffic, list[str]]:
    """Returns the traffic of the ranks 0 to ``ranks`` - 1 alone, and sentences on what is left out.

    Ranks are numbered as in a mesh of torch: the inner dimensions (tensor parallel) stay whole. The
    size S of a collective stays as it was, as if the same model was trained on fewer ranks.

    A call whose group has only one rank left, and a message from or to a rank that is left out, is
    left out. An uneven all_to_all keeps the blocks between the ranks that stay. A root that is left
    out is replaced by the first rank of the group.

    Raises UsageError if groups of one kind would get different sizes, or if no call is left.
    """
    members = {
        name: group.ranks or tuple(range(traffic.ranks)) for name, group in traffic.groups.items()
    }
    allowed = [n for n in range(2, traffic.ranks) if _fits(members.values(), n)]
    if ranks not in allowed:
        numbers = " or ".join(map(str, allowed)) or f"{traffic.ranks}, for no smaller number does"
        raise UsageError(
            "ranks", ranks, f"a number that shortens all groups of a kind alike: {numbers}"
        )
    left_out: Counter[str] = Counter()
    left_out_bytes = 0
    calls: dict[int, list[TrafficCall]] = {}
    for rank, captured in traffic.calls.items():
        if rank >= ranks:
            continue
        calls[rank] = []
        for call in captured:
            smaller = _call(call, rank, ranks, traffic.members(call))
            if smaller is None:
                left_out[call.collective] += 1
                left_out_bytes += max(call.bytes_in, call.bytes_out)
            else:
                calls[rank].append(smaller)
    if not any(calls.values()):
        raise UsageError("ranks", ranks, "more: all calls are with ranks that are left out")
    kept = {
        name: replace(traffic.groups[name], ranks=tuple(r for r in old if r < ranks))
        for name, old in members.items()
    }
    notes = [
        f"captured on {traffic.ranks} ranks; ranks 0 to {ranks - 1} are played, with smaller "
        "groups and unchanged sizes of collectives"
    ]
    if left_out:
        kinds = ", ".join(f"{count} {name}" for name, count in left_out.most_common())
        notes.append(
            f"left out, because their other ranks are: {kinds} of all steps of these ranks, with "
            f"{format_bytes(left_out_bytes)} of data"
        )
    groups = {name: group for name, group in kept.items() if group.ranks}
    return replace(traffic, ranks=ranks, calls=calls, groups=groups), notes


def _fits(groups: Iterable[tuple[int, ...]], ranks: int) -> bool:
    """Returns whether all groups of one size and stride keep equally many of the first ranks."""
    kept: dict[tuple[int, int], set[int]] = {}
    for group in groups:
        count = sum(rank < ranks for rank in group)
        if count:
            stride = group[1] - group[0] if len(group) > 1 else 0
            kept.setdefault((len(group), stride), set()).add(count)
    return all(len(counts) == 1 for counts in kept.values())


def _call(call: TrafficCall, rank: int, ranks: int, members: tuple[int, ...]) -> TrafficCall | None:
    """Returns the call among the first ``ranks`` ranks; None if it is left out."""
    if call.point_to_point:
        return None if call.peer is not None and call.peer >= ranks else call
    kept = [member for member in members if member < ranks]
    if len(kept) == len(members):
        return call
    if len(kept) == 1:
        return None
    if call.splits:
        splits = tuple(call.splits[members.index(member)] for member in kept)
        return replace(call, splits=splits, bytes_in=sum(splits))
    point, _ = point_of(call, len(members))
    if point is None:  # neither measured nor replayed
        return call
    entry = COLLECTIVES[point.collective]
    root = call.root if call.root is None or call.root in kept else kept[0]
    if not entry.has_data:
        return replace(call, root=root)
    assert point.dtype is not None  # of a collective with data
    itemsize = DTYPES[point.dtype].itemsize
    count = max(1, point.size_bytes // (itemsize * entry.parts(len(kept))))
    root_index = 0 if root is None else kept.index(root)
    sent, received = entry.elements(Layout(kept.index(rank), len(kept), count, root_index))
    return replace(
        call,
        collective=point.collective,
        root=root,
        bytes_in=sent * itemsize,
        bytes_out=received * itemsize,
    )


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
    shrink: bool = False,
) -> Traffic | None:
    """Replays a captured step of ``traffic`` on all ranks of this run, ``steps`` times.

    The step is the last one that all ranks have among those that send what most steps send. Returns
    a Traffic of source ``replay`` on rank 0, with the calls of all ranks and their durations, and
    None on the other ranks. A first play, which connects, comes before the marked steps.

    - traffic: a Traffic of all ranks, or of this rank in the run that captured it.
    - shrink: with fewer ranks than captured, the first ranks play what is left of their groups;
      ``notes`` say what is left out.
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

    asked = ["replay", backend, device, steps, timeout_s, rehearse, shrink]
    spec = Spec(backend=backend, device=device, timeout_s=timeout_s, rehearse=rehearse)
    options = SessionOptions(spec, asked=fingerprint(asked))
    return play(torch, options, lambda: traffic, steps, shrink)


def play(
    torch: Any,
    options: SessionOptions,
    read: Callable[[], Traffic],
    steps: int,
    shrink: bool,
) -> Traffic | None:
    """Runs ``replay`` in a session with these options; ``read`` is called on each rank."""
    whole_number(steps, "steps", 1)
    backend = options.spec.backend
    names = options.spec.backends if backend else ()
    if len(names) > 1 or not options.spec.communicates:
        raise UsageError("backend", backend, "one that communicates")
    with opened(torch, options) as session:
        traffic, playback, step = _agree_on_step(session, read, shrink)
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
    session: Session, read: Callable[[], Traffic], shrink: bool
) -> tuple[Traffic, RankPlayback, Step]:
    """Returns the traffic, what this rank plays, and the step that all ranks play."""
    refusal: TorchcollError | None = None
    usual: list[Step] = []
    left_out: list[str] = []
    try:
        traffic = read()
        ranks = session.local.ranks
        if shrink and ranks < traffic.ranks:
            traffic, left_out = shrink_traffic(traffic, ranks)
        if ranks != traffic.ranks:
            smaller = "--shrink plays what is left of its groups. "
            raise UsageError(
                "ranks",
                ranks,
                f"{traffic.ranks}, as the step was captured on",
                f"{smaller if ranks < traffic.ranks else ''}Its sizes can be measured on {ranks}: "
                "torchcoll.suite --traffic.",
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
        playback = replace(playback, notes=(*left_out, *playback.notes))
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
        calls = []
        for data, members in zip(report["calls"], report["members"], strict=True):
            call = TrafficCall.from_json(data)
            description = report["descriptions"].get(call.group, "")
            group = Group(call.group or "default", tuple(members), backend, description)
            name = result.add_group(group)
            calls.append(
                replace(call, group=name, clock=clock, exposed_ns=None, began_ns=None, algorithm="")
            )
        numbers = Numbers()
        calls_of_rank = result.calls[rank] = []
        for played, (starts, times) in enumerate(
            zip(report["started"], report["times"], strict=True)
        ):
            for call, start, ns in zip(calls, starts, times, strict=True):
                calls_of_rank.append(
                    replace(
                        call,
                        sequence=numbers.next(call.collective, call.group, call.peer),
                        step=played - 1 if played else None,
                        start_ns=start - origin,
                        time_ns=ns,
                    )
                )
    return result


def _notes(gathered: Sequence[dict[str, Any]], traffic: Traffic, step: Step) -> list[str]:
    """Returns notes on what was played, of which step of ``traffic``."""
    what = "the captured step" if step is None else f"step {step}"
    source = f" of {traffic.path}" if traffic.path else ""
    notes = [f"replay of {what}{source}: no gaps between calls, and nothing was computed"]
    notes += traffic.problems
    return list(dict.fromkeys([*notes, *(n for each in gathered for n in each["notes"])]))
