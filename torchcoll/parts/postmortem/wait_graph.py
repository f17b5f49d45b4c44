"""Who waited for whom when nothing moved any more: from the open calls of all ranks to the ranks
that the others wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torchcoll.parts.postmortem.standing import OpenCall, Standings

_NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Edge:
    """A rank waits in a call. behind: ranks whose records end before that call. unrecorded: ranks
    of which no record of that group exists.
    """

    wait: OpenCall
    behind: frozenset[int]
    unrecorded: frozenset[int]


@dataclass
class WaitGraph:
    """roots: ranks that others wait for, and that wait for nobody themselves. cycle: ranks that
    wait for each other, if no root explains it. unrecorded: ranks without a record that others may
    wait for. waiting: ranks that wait for any of these, directly or through others.
    """

    edges: list[Edge] = field(default_factory=list)
    roots: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()
    unrecorded: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()

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
    """The ranks of the smallest strongly connected component of at least two ranks; empty if there
    is none (Tarjan's algorithm, without recursion).
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    components: list[set[int]] = []
    for start in sorted(edges):
        if start in index:
            continue
        work = [(start, iter(sorted(edges[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            rank, left = work[-1]
            awaited = next(left, None)
            if awaited is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[rank])
                if low[rank] == index[rank]:
                    component: set[int] = set()
                    while rank not in component:
                        component.add(stack.pop())
                    on_stack -= component
                    if len(component) > 1:
                        components.append(component)
            elif awaited not in index:
                index[awaited] = low[awaited] = len(index)
                stack.append(awaited)
                on_stack.add(awaited)
                work.append((awaited, iter(sorted(edges.get(awaited, ())))))
            elif awaited in on_stack:
                low[rank] = min(low[rank], index[awaited])
    return min(components, key=lambda ranks: (len(ranks), min(ranks)), default=set())


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
