"""Evidence of jobs that never were, for tests of ``torchcoll postmortem``."""

from torchcoll.core.traffic import Group
from torchcoll.parts.postmortem import evidence

SECOND = 10**9
START = 1_790_000_000 * SECOND


def call(rank, number, collective="all_reduce", *, group="0", size=(1024,), state="completed",
         **more):  # fmt: skip
    """A call that completed, issued 0.1 s after the one before."""
    more.setdefault("created_ns", START + number * SECOND // 10)
    return evidence.CallSeen(
        rank,
        group,
        number,
        collective,
        evidence.Place(f"dump_rank{rank}.json"),
        sizes_in=None if size is None else (size,),
        dtype=more.pop("dtype", "float32"),
        state=state,
        **more,
    )


def calls_to(rank, last, *, state="completed", **more):
    """The calls 1 to ``last`` of a rank; the last one in this state."""
    return [
        call(rank, number, state=state if number == last else "completed", **more)
        for number in range(1, last + 1)
    ]


def event(kind, rank=None, text="", *, seconds=None, line=1, path=None, **more):
    path = path or (f"log_rank{rank}.txt" if rank is not None else "log.txt")
    when_ns = None if seconds is None else START + round(seconds * SECOND)
    return evidence.JobEvent(
        kind, evidence.Place(path, line), text or kind, rank, when_ns=when_ns, **more
    )


def job(*parts, ranks=4, groups=None, nodes=None, logs=None):
    """A job of these calls and events. groups: name -> ranks, besides the default group. nodes: a
    node for each rank, or a number of ranks per node. logs: ranks of which a log was read.
    """
    made = evidence.JobEvidence(name="job", ranks=ranks)
    made.groups["0"] = Group("0", tuple(range(ranks)), description="default_pg")
    for name, members in (groups or {}).items():
        made.groups[name] = Group(name, tuple(members))
    for part in parts:
        for item in part if isinstance(part, list) else [part]:
            (made.calls if isinstance(item, evidence.CallSeen) else made.events).append(item)
    if isinstance(nodes, int):
        nodes = [f"node{rank // nodes}" for rank in range(ranks)]
    for rank, node in enumerate(nodes or ()):
        made.nodes[rank] = node
    for rank in sorted({item.rank for item in made.calls}):
        made.files.append(
            evidence.FileRead(f"dump_rank{rank}.json", "Flight Recorder dump", (rank,))
        )
    logged = {item.rank for item in made.events if item.rank is not None} | set(logs or ())
    for rank in sorted(logged):
        made.files.append(evidence.FileRead(f"log_rank{rank}.txt", "stderr", (rank,)))
    return made
