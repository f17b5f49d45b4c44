"""Where each rank stood in each process group: its calls, which of them are open, which differ from
those of other ranks, and who waited for whom.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.traffic import Group
from torchcoll.parts.postmortem.evidence import STATES, CallSeen, JobEvent, JobEvidence
from torchcoll.reading.torch_names import product

_RECORDS = ("call ring", "Flight Recorder dump")
DEFAULT_GROUPS = ("0", "default_pg", "default", "world", "")


@dataclass
class GroupStanding:
    """The collectives of one process group. calls: rank of the world -> number -> call."""

    key: str
    group: Group
    members: Sequence[int]  # () where not known
    calls: dict[int, dict[int, CallSeen]] = field(default_factory=lambda: defaultdict(dict))
    last: dict[int, int] = field(default_factory=dict)  # rank -> number of its last call
    completed: dict[int, int] = field(default_factory=dict)  # rank -> of the last that completed

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
    """A call that a rank was in: of a group and number, or send or recv with ``peer``."""

    rank: int
    key: str
    number: int
    call: CallSeen | None = None
    event: JobEvent | None = None
    peer: int | None = None
    is_exact: bool = True  # False if it may be in a call that it issued after this one


@dataclass
class Standings:
    """All groups of a job, and what each rank waited in."""

    groups: dict[str, GroupStanding]
    ranks: range  # of the world, where known, otherwise up to the highest in any file
    recorded: set[int]  # ranks with a record of calls
    without_calls: set[int]  # those whose record has none
    waits: dict[int, list[OpenCall]]  # the calls of each rank that had not ended


def standings_of(job: JobEvidence) -> Standings:
    ranks = range(max(job.named_ranks, default=-1) + 1 if job.ranks is None else job.ranks)
    groups: dict[str, GroupStanding] = {}

    def standing(key: str) -> GroupStanding:
        if key not in groups:
            group = job.groups.get(key, Group(key))
            groups[key] = GroupStanding(key, group, group.ranks)
            if not group.ranks and groups[key].is_default and job.ranks is not None:
                groups[key].members = ranks
        return groups[key]

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
        if _is_later(call, latest.get(call.rank)):
            latest[call.rank] = call
        if call.peer is not None or call.collective in ("send", "recv"):
            if call.state != "completed" and call.reliable_state:
                messages[call.rank].append(call)
            continue
        group = standing(call.group)
        earlier = group.call(call.rank, call.number)
        if earlier is None or _progress(earlier) < _progress(call):
            group.calls[call.rank][call.number] = call
        group.last[call.rank] = max(call.number, group.last.get(call.rank, 0))
        if _is_completed(call) and (call.rank, call.group, call.number) not in failed:
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
    recorded = {call.rank for call in job.calls}
    recorded |= {rank for rank, _ in job.last_number}
    # A record without any call is one as well: its rank made none.
    recorded |= {rank for file in job.files if file.what in _RECORDS for rank in file.ranks}
    without_calls = recorded - {call.rank for call in job.calls} - {r for r, _ in job.last_number}
    return Standings(groups, ranks, recorded, without_calls, dict(waits))


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


# Collectives that require the same number of elements of all ranks. Others may differ: a root has
# an output that the others lack, and splits may be uneven.
SAME_SIZE = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather")
_WITHOUT_DTYPE = ("barrier", "monitored_barrier")
# Ranks that completed so many calls alike after a difference were not stopped by it; more where
# the source does not record what completed, since ranks issue calls ahead.
_HARMLESS_AFTER, _HARMLESS_WITHOUT_STATES = 1, 16
_MAJORITY = 2  # times as many ranks as the others together


@dataclass(frozen=True)
class CallDifference:
    """Ranks that made different calls with the same number.

    what: ``collective``, ``size`` or ``dtype``. calls: one of each kind, the most frequent first.
    ranks: those of each kind.
    """

    group: GroupStanding
    number: int
    what: str
    calls: tuple[CallSeen, ...]
    ranks: tuple[tuple[int, ...], ...]

    def minority(self, groups: Mapping[str, GroupStanding]) -> tuple[int, ...]:
        """The ranks that differ from a majority of at least 2 to 1, or else from the groups beside
        theirs, such as the other rows of a mesh; () if neither tells.
        """
        others = [rank for ranks in self.ranks[1:] for rank in ranks]
        if len(self.ranks[0]) >= _MAJORITY * len(others):
            return tuple(sorted(others))
        size, members = len(self.group.ranks), set(self.group.ranks)
        sisters = [
            g for g in groups.values() if len(g.ranks) == size and members.isdisjoint(g.ranks)
        ]
        usual = [call for g in sisters for rank in g.ranks if (call := g.call(rank, self.number))]
        alike = [any(not _differ(example, call) for call in usual) for example in self.calls]
        if alike.count(True) != 1:
            return ()
        same = self.ranks[alike.index(True)]
        return tuple(rank for rank in self.all_ranks if rank not in same)

    @property
    def all_ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for ranks in self.ranks for rank in ranks))


def signature(call: CallSeen) -> tuple[str, int | None, str | None]:
    """What has to be equal on all ranks: collective, elements, dtype; None where not comparable."""
    elements = None
    sizes = call.sizes_out if call.collective == "broadcast" else call.sizes_in
    sizes = sizes or call.sizes_in
    if call.collective in SAME_SIZE and sizes:
        counts = [product(shape) for shape in sizes]
        elements = None if None in counts else sum(count or 0 for count in counts)
    dtype = None if call.collective in _WITHOUT_DTYPE else call.dtype
    return call.collective, elements, dtype


def _differ(a: CallSeen, b: CallSeen) -> str:
    """In what two calls of one number differ; '' if they agree, as far as is known."""
    first, second = signature(a), signature(b)
    # gloo's Flight Recorder has an all_reduce for each reduce_scatter.
    if {first[0], second[0]} == {"all_reduce", "reduce_scatter"} and first[1:] == second[1:]:
        return ""
    for what, mine, other in zip(("collective", "size", "dtype"), first, second, strict=True):
        if mine is not None and other is not None and mine != other:
            return what
    return ""


def find_difference(group: GroupStanding, survived: bool = False) -> CallDifference | None:
    """The first call of the group that its ranks made differently, if they did not go on alike.

    survived: also if they did.
    """
    by_number: dict[int, list[int]] = defaultdict(list)
    for rank, calls in sorted(group.calls.items()):
        for number in calls:
            by_number[number].append(rank)
    numbers = sorted(number for number, ranks in by_number.items() if len(ranks) > 1)
    differing = [number for number in numbers if _any_differ(group, number, by_number[number])]
    if not differing:
        return None
    if survived:
        number = differing[0]
        return _difference(group, number, {r: group.calls[r][number] for r in by_number[number]})
    last = differing[-1]
    alike_after = [
        [group.calls[rank][number] for rank in by_number[number]]
        for number in numbers
        if number > last
    ]
    completed = [all(_is_completed(call) for call in calls) for calls in alike_after]
    reliable = any(call.reliable_state for calls in alike_after for call in calls)
    if sum(completed) >= _HARMLESS_AFTER:
        return None
    if not reliable and len(alike_after) >= _HARMLESS_WITHOUT_STATES:
        return None
    for number in differing:
        calls_at = {rank: group.calls[rank][number] for rank in by_number[number]}
        if not all(_is_completed(call) for call in calls_at.values()):
            return _difference(group, number, calls_at)
    return None


def _is_completed(call: CallSeen) -> bool:
    return call.reliable_state and call.state == "completed"


def _any_differ(group: GroupStanding, number: int, ranks: list[int]) -> bool:
    example = group.calls[ranks[0]][number]
    return any(_differ(example, group.calls[rank][number]) for rank in ranks[1:])


def _difference(group: GroupStanding, number: int, calls: dict[int, CallSeen]) -> CallDifference:
    kinds: list[tuple[CallSeen, list[int]]] = []
    frequent = Counter(signature(call) for call in calls.values())
    for rank in sorted(calls, key=lambda r: (-frequent[signature(calls[r])], r)):
        for example, ranks in kinds:
            if not _differ(example, calls[rank]):
                ranks.append(rank)
                break
        else:
            kinds.append((calls[rank], [rank]))
    kinds.sort(key=lambda kind: -len(kind[1]))
    what = _differ(kinds[0][0], kinds[1][0])
    return CallDifference(
        group,
        number,
        what,
        tuple(example for example, _ in kinds),
        tuple(tuple(ranks) for _, ranks in kinds),
    )


_NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Edge:
    """A rank waits in a call."""

    wait: OpenCall
    behind: frozenset[int]  # ranks whose records end before that call
    unrecorded: frozenset[int]  # ranks without a record of that group


@dataclass
class WaitGraph:
    """Who waits for whom."""

    edges: list[Edge] = field(default_factory=list)
    roots: tuple[int, ...] = ()  # ranks that others wait for, and that wait for nobody
    cycle: tuple[int, ...] = ()  # ranks that wait for each other, if no root explains it
    unrecorded: tuple[int, ...] = ()  # ranks without a record that others may wait for
    waiting: tuple[int, ...] = ()  # ranks that wait for any of these, directly or not

    def wait_for(self, ranks: Collection[int]) -> OpenCall | None:
        """The call in which most ranks wait for one of these; None if nobody does."""
        waits = [
            edge.wait
            for edge in self.edges
            if not edge.behind.isdisjoint(ranks) or not edge.unrecorded.isdisjoint(ranks)
        ]
        calls = Counter((wait.key, wait.number, wait.peer) for wait in waits)
        order = sorted(waits, key=lambda w: (-calls[w.key, w.number, w.peer], w.number, w.rank))
        return order[0] if order else None


def wait_graph(standings: Standings, complained: Collection[int] = ()) -> WaitGraph:
    """complained: ranks that reported that they had waited in vain. Such a rank waits for somebody
    even where its record has no open call, such as a recv that the source does not record.
    """
    edges: list[Edge] = []
    missing: dict[tuple[str, int], tuple[frozenset[int], frozenset[int]]] = {}
    stuck: set[int] = set()
    for waits in standings.waits.values():
        for wait in waits:
            if wait.peer is not None:
                behind, unrecorded = _missing_message(wait, standings)
            else:
                key = (wait.key, wait.number)
                if key not in missing:
                    missing[key] = _missing_members(wait, standings)
                behind, unrecorded = missing[key]
                if not behind and _is_stuck(wait, standings):
                    stuck.add(wait.rank)
            if behind or unrecorded:
                edges.append(Edge(wait, behind, unrecorded))
    behind_of: dict[int, frozenset[int]] = {}
    maybe_of: dict[int, frozenset[int]] = {}
    for edge in edges:
        for ranks, added in ((behind_of, edge.behind), (maybe_of, edge.unrecorded)):
            earlier = ranks.get(edge.wait.rank, _NOBODY)
            if added and not added <= earlier:
                ranks[edge.wait.rank] = earlier | added if earlier else added
    graph = WaitGraph(edges)
    awaited = _NOBODY.union(*set(behind_of.values()))
    awaited_maybe = _NOBODY.union(*set(maybe_of.values()))
    roots = awaited - behind_of.keys() - maybe_of.keys() - stuck - set(complained)
    graph.roots = tuple(sorted(roots))
    graph.unrecorded = tuple(sorted(awaited_maybe - behind_of.keys() - set(complained)))
    if not roots:
        cycle = _cycle(behind_of)
        # A rank of the cycle that also waits for one without a record may wait for that one only.
        if not any(maybe_of.get(rank) for rank in cycle):
            graph.cycle = tuple(sorted(cycle))
    ends = {*graph.roots, *graph.cycle, *graph.unrecorded}
    graph.waiting = tuple(sorted(_reaching((behind_of, maybe_of), ends) - roots))
    return graph


def _missing_members(wait: OpenCall, standings: Standings) -> tuple[frozenset[int], frozenset[int]]:
    """The members of the group that have not made the call, and those of which nothing is recorded.
    Where the members are not known, any rank without a record may be one.
    """
    group = standings.groups[wait.key]
    behind = {rank for rank, last in group.last.items() if last < wait.number}
    if group.members:
        unrecorded = {rank for rank in group.members if rank not in group.last}
    else:
        unrecorded = {rank for rank in standings.ranks if rank not in standings.recorded}
    # A record without any call, or one that cannot have lost an earlier call of the group.
    made_none = unrecorded & standings.without_calls
    behind |= unrecorded & standings.recorded if wait.number == 1 and group.members else made_none
    return frozenset(behind), frozenset(unrecorded - behind)


def _is_stuck(wait: OpenCall, standings: Standings) -> bool:
    """Whether a rank is in a call that all known members made and none is known to have left."""
    if wait.call is None or not wait.call.reliable_state:
        return False
    completed = standings.groups[wait.key].completed
    return not any(number >= wait.number for number in completed.values())


def _missing_message(wait: OpenCall, standings: Standings) -> tuple[frozenset[int], frozenset[int]]:
    """The peer of a send or recv, unless it is in the matching call itself."""
    assert wait.peer is not None
    for other in standings.waits.get(wait.peer, ()):
        if other.peer != wait.rank or other.call is None or wait.call is None:
            continue
        if other.call.collective != wait.call.collective:
            return _NOBODY, _NOBODY
    peer = frozenset((wait.peer,))
    return (peer, _NOBODY) if wait.peer in standings.recorded else (_NOBODY, peer)


def _cycle(edges: Mapping[int, frozenset[int]]) -> set[int]:
    """The ranks of the smallest strongly connected component of at least two; empty without one."""
    if not edges:
        return set()
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = [(rank, awaited) for rank, of_rank in edges.items() for awaited in of_rank]
    size = 1 + max(map(max, pairs))
    graph = coo_array(([True] * len(pairs), tuple(zip(*pairs, strict=True))), shape=(size, size))
    components: dict[int, set[int]] = defaultdict(set)
    for rank, component in enumerate(connected_components(graph, connection="strong")[1]):
        components[component].add(rank)
    circles = [ranks for ranks in components.values() if len(ranks) > 1]
    return min(circles, key=lambda ranks: (len(ranks), min(ranks)), default=set())


def _reaching(
    edges_of: Collection[Mapping[int, frozenset[int]]], ends: Collection[int]
) -> set[int]:
    """The ranks that wait for one of ``ends``, directly or through others."""
    reached = set(ends)
    waiting: set[int] = set()
    changed = True
    while changed:
        changed = False
        for edges in edges_of:
            for rank, awaited in edges.items():
                if rank not in waiting and not awaited.isdisjoint(reached):
                    waiting.add(rank)
                    reached.add(rank)
                    changed = True
    return waiting
