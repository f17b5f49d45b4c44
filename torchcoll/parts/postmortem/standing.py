"""Where each rank stood in each process group: the calls it made, and which of them are open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.parts.postmortem.evidence import STATES, CallSeen, GroupSeen, JobEvent, JobEvidence

_RECORDS = ("call ring", "Flight Recorder dump")
DEFAULT_GROUPS = ("0", "default_pg", "default", "world", "")


@dataclass
class GroupStanding:
    """The collectives of one process group. Ranks are of the world.

    members: () where neither a file states them nor the number of ranks is known. calls: rank ->
    number -> call. last: rank -> number of the last call that it made. completed: rank -> number of
    the last call that is recorded as completed.
    """

    key: str
    group: GroupSeen
    members: Sequence[int]
    calls: dict[int, dict[int, CallSeen]] = field(default_factory=lambda: defaultdict(dict))
    last: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)

    @property
    def is_default(self) -> bool:
        return "default" in self.group.description or self.group.name in DEFAULT_GROUPS

    @property
    def ranks(self) -> Sequence[int]:
        """The members, or the ranks that are seen in it where these are not known."""
        return self.members or tuple(sorted(self.last))

    def call(self, rank: int, number: int) -> CallSeen | None:
        return self.calls.get(rank, {}).get(number)

    def collective(self, number: int) -> str | None:
        """The name of the collective that most ranks called."""
        names = [calls[number].collective for calls in self.calls.values() if number in calls]
        return max(sorted(set(names)), key=names.count) if names else None


@dataclass(frozen=True)
class OpenCall:
    """A call that a rank was in: of a group and number, or send or recv with ``peer``.

    is_exact: False if the rank is in this call or in one of those that it issued after it.
    """

    rank: int
    key: str
    number: int
    call: CallSeen | None = None
    event: JobEvent | None = None
    peer: int | None = None
    is_exact: bool = True


@dataclass
class Standings:
    """All groups of a job, and what each rank waited in.

    ranks: of the world, where known, otherwise up to the highest that any file mentions.
    recorded: ranks of which a record of calls exists. without_calls: those of them whose record has
    none. waits: the calls of each rank that had not
    ended.
    """

    groups: dict[str, GroupStanding]
    ranks: range
    recorded: set[int]
    without_calls: set[int]
    waits: dict[int, list[OpenCall]]


def standings_of(job: JobEvidence) -> Standings:
    ranks = _ranks(job)
    groups: dict[str, GroupStanding] = {}

    def standing(key: str) -> GroupStanding:
        if key not in groups:
            group = job.groups.get(key, GroupSeen(key))
            groups[key] = GroupStanding(key, group, group.ranks)
            if not group.ranks and groups[key].is_default and job.ranks is not None:
                groups[key].members = ranks
        return groups[key]

    ended_only = {file.path for file in job.files if not file.has_open_calls}
    # Calls that a rank reports to have failed. A source may have these as ended.
    failed = {
        (event.rank, event.group, event.number): event
        for event in job.events_of("timeout", "peer_lost")
        if event.rank is not None and event.group is not None and event.number is not None
    }
    complaining = {event.rank for event in job.events_of("timeout", "peer_lost")}
    messages: dict[int, list[CallSeen]] = defaultdict(list)
    latest: dict[int, CallSeen] = {}
    for call in job.calls:
        if call.place.path not in ended_only and _is_later(call, latest.get(call.rank)):
            latest[call.rank] = call
        if call.peer is not None or call.collective in ("send", "recv"):
            if call.state != "completed" and call.reliable_state:
                messages[call.rank].append(call)
            continue
        group = standing(call.group)
        earlier = group.call(call.rank, call.number)
        if earlier is None or _progress(earlier) < _progress(call):
            group.calls[call.rank][call.number] = call
        if call.place.path not in ended_only:
            group.last[call.rank] = max(call.number, group.last.get(call.rank, 0))
        if call.reliable_state and call.state == "completed":
            # What ended last on a rank that complains may have failed.
            is_sure = call.place.path not in ended_only or call.rank not in complaining
            if is_sure and (call.rank, call.group, call.number) not in failed:
                group.completed[call.rank] = max(call.number, group.completed.get(call.rank, 0))
    for (rank, key), number in job.last_number.items():
        group = standing(key)
        if rank in group.last:
            continue  # the calls themselves tell it; gloo's own count has messages in it
        group.last[rank] = max(number, group.last.get(rank, 0))
    for (rank, key), number in job.last_completed.items():
        group = standing(key)
        if rank in complaining and rank in group.last:
            continue
        group.completed[rank] = max(number, group.completed.get(rank, 0))
    for rank, key, number in failed:
        group = standing(key)
        group.last[rank] = max(number, group.last.get(rank, 0))
    waits: dict[int, list[OpenCall]] = defaultdict(list)
    for group in groups.values():
        _add_waits(group, latest, waits)
    for (rank, key, number), event in failed.items():
        waits[rank] = [wait for wait in waits[rank] if wait.key != key or wait.is_exact]
        if (key, number) not in {(wait.key, wait.number) for wait in waits[rank]}:
            wait = OpenCall(rank, key, number, groups[key].call(rank, number), event)
            waits[rank].append(wait)
    for rank, calls in messages.items():
        waits[rank] += [OpenCall(rank, c.group, c.number, c, peer=c.peer) for c in calls]
    recorded = {call.rank for call in job.calls if call.place.path not in ended_only}
    recorded |= {rank for rank, _ in job.last_number}
    # A record without any call is one as well: its rank made none.
    recorded |= {rank for file in job.files if file.what in _RECORDS for rank in file.ranks}
    without_calls = recorded - {call.rank for call in job.calls} - {r for r, _ in job.last_number}
    return Standings(groups, ranks, recorded, without_calls, dict(waits))


def _ranks(job: JobEvidence) -> range:
    if job.ranks is not None:
        return range(job.ranks)
    seen = {call.rank for call in job.calls} | set(job.nodes) | set(job.pids)
    seen |= {event.rank for event in job.events if event.rank is not None}
    seen |= {rank for event in job.events for rank in event.about}
    seen |= {rank for group in job.groups.values() for rank in group.ranks}
    seen |= {rank for rank, _ in job.last_number}
    seen |= {rank for file in job.files for rank in file.ranks}
    return range(max(seen, default=-1) + 1)


def _progress(call: CallSeen) -> tuple[bool, int]:
    """By this two records of one call are compared: a source that records states is right."""
    return call.reliable_state, STATES.index(call.state)


def _is_later(call: CallSeen, other: CallSeen | None) -> bool:
    """Whether a rank made the call after the other one, which comes before it in the file."""
    if other is None or call.created_ns is None or other.created_ns is None:
        return True
    return call.created_ns >= other.created_ns


def _add_waits(
    group: GroupStanding, latest: dict[int, CallSeen], waits: dict[int, list[OpenCall]]
) -> None:
    """The calls of a group that had not ended on a rank, as far as is known."""
    slowest, front = min(group.last.values(), default=0), max(group.last.values(), default=0)
    most_done = max(group.completed.values(), default=0)
    for rank, last in group.last.items():
        calls = group.calls.get(rank, {})
        done = group.completed.get(rank)
        open_numbers = [
            number
            for number, call in calls.items()
            if call.reliable_state and call.state != "completed" and number > (done or 0)
        ]
        if not open_numbers and last not in calls and done is not None and last > done:
            # The count of completed calls may be out of date: calls after it may have ended.
            first = OpenCall(rank, group.key, done + 1, calls.get(done + 1))
            waits[rank].append(replace(first, is_exact=last == done + 1))
            continue
        if not open_numbers and (done is None or done < last):
            # The source does not record which calls ended. A call that another member has not made
            # cannot have ended, and the last thing that a rank did may not have, unless others went
            # on.
            open_numbers = [n for n in calls if n > max(slowest, most_done)]
            end = latest.get(rank)
            is_end = end is not None and end.group == group.key and end.number == last
            if is_end and last == front and last > most_done:
                open_numbers.append(last)
        for number in sorted(set(open_numbers)):
            waits[rank].append(OpenCall(rank, group.key, number, calls.get(number)))


def ranks_of_node(job: JobEvidence, node: str, ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if job.nodes.get(rank) == node)
