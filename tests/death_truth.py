"""What the evidence of a dead job can tell: the truth table of tests/benchmarks/postmortem.py.

It was written and committed before ``torchcoll postmortem`` was first run on these jobs, and it
uses nothing of torchcoll. ``truth`` is a function of what was done to the job (Death) and which
files are kept. What a file contains follows from how the job was broken:

- Flight Recorder dumps (fr) are written by a rank when it fails, and by every rank that still runs
  Python when somebody asks while the job hangs. They have the number of the last collective of each
  group, not of send and recv, and say nothing of what completed. A rank that was killed, stopped
  or aborted leaves none.
- Rings have the last calls of their rank in every group, send and recv too, until its end.
- Traffic has calls that ended, with times. A call that hangs is not in it.
- Stderr of the rank that failed first has its own exception. The others write that a peer closed
  the connection or that they timed out, and on one host all peers have the same address.
- Stacks and py-spy dumps show where each rank stood while the job hung.
- The launcher's log has the first rank that *ended*. Where a rank hangs that is another one, and
  after two sizes it can be an innocent that gloo aborted. So an exit code says who it was only if
  it is that of SIGKILL.

Hence the table, v the victim and w a rank that was left waiting for it:

====================  ============================================================================
fault                 decidable by
====================  ============================================================================
order, size, skip     standing (fr or ring) of v and of two more of its group; with one more the two
                      are symmetric: two ranks, two calls, no majority. Both have to be named, or v
                      alone if earlier steps show what a step looks like.
skip of the last      standing of v and of w: v is at its end, and w waits.
step
sigkill, oom_kill     the launcher's line for v; standing of v and w; the kernel's line, if ring or
                      stacks of v or the launcher say which rank the process was
exception, disk,      stderr of v; standing of v and w
memory
sigstop, sleep,       standing of v and w; dumps of the stacks of v and w by one tool
stuck, interrupt
slow                  times (ring or traffic) of v and w; fr of all ranks, if there is no send/recv
blackhole             the kernel's line
====================  ============================================================================

Standing is compared only within a group, so in a mesh w is of the row or column of v, and in a
pipeline a stage beside it. In a pipeline the dumps of all ranks are equal, except for other calls.

The rest cannot be told. Where something distinguishes v from the others, if not beyond doubt (such
as all others waiting, so that v is left), an answer may name it, but need not: 'hinted'. Elsewhere
to name v is a guess.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from death_evidence import Source
from dying_jobs import STALLS, Death

VERDICTS = (DECIDABLE, SYMMETRIC, HINTED, UNDECIDABLE) = (
    "decidable",
    "symmetric",
    "hinted",
    "undecidable",
)


@dataclass(frozen=True)
class Truth:
    """verdict: one of the four above. named: the ranks that a right answer names. alone: whether
    the victim alone is right as well. kinds: words of the answer that fit the fault.
    """

    verdict: str
    named: frozenset[int]
    alone: bool
    kinds: frozenset[str]


# What a right answer may call it. Without the file that says why, a rank has only stopped.
_KINDS = {
    "order": {"mismatch"},
    "size": {"mismatch"},
    "skip": {"mismatch", "missing_call", "stopped"},
    "sigkill": {"killed", "stopped", "missing_call"},
    "oom_kill": {"out_of_memory", "killed", "stopped", "missing_call"},
    "sigstop": {"stopped", "killed", "user_code", "missing_call"},
    "exception": {"exception", "stopped", "missing_call", "user_code"},
    "disk": {"disk_full", "exception", "stopped", "missing_call", "user_code"},
    "memory": {"out_of_memory", "exception", "stopped", "missing_call", "user_code"},
    "sleep": {"user_code", "stopped", "missing_call", "slow"},
    "stuck": {"user_code", "stopped", "missing_call", "slow"},
    "slow": {"slow", "user_code"},
    "blackhole": {"link", "node_failed"},
    "handled_kill": {"killed", "stopped", "missing_call"},
    "handled_sleep": {"user_code", "stopped", "missing_call", "slow"},
    "leave": {"exit", "killed", "stopped", "missing_call"},
    "interrupt": {"user_code", "stopped", "missing_call", "slow"},
    "early_stack": {"killed", "stopped", "missing_call"},
}


def differs(death: Death) -> bool:
    """Whether the victim makes another call than its group, in place of none at all."""
    return death.fault in ("order", "size") or (death.fault == "skip" and death.form % 2 == 0)


def truth(death: Death, kept: Collection[Source]) -> Truth:
    v = death.victim
    kinds = frozenset(_KINDS[death.fault])

    def of(*wanted: str) -> set[int]:
        return {s.rank for s in kept if s.kind in wanted and s.rank is not None}

    launcher, kernel = Source("launcher") in kept, Source("kernel") in kept
    waiters = set(death.waiters)
    if differs(death):
        standing, group = of("fr", "ring"), set(death.metrics_group)
        peers = (standing & group) - {v}
        if v in standing and len(peers) >= 2:
            return Truth(DECIDABLE, frozenset({v}), True, kinds)
        if v in standing and peers:
            return Truth(SYMMETRIC, frozenset({v, *peers}), death.step > 0, kinds)
        known = standing
    else:
        known = of("ring") if death.work == "pipe" else of("fr", "ring")
        if death.fault not in ("slow", "blackhole") and v in known and known & waiters:
            return Truth(DECIDABLE, frozenset({v}), True, kinds)
    decided = {
        "sigkill": launcher,
        "handled_kill": launcher,
        "early_stack": launcher,
        "oom_kill": launcher or (kernel and v in of("ring", "stacks")),
        "exception": v in of("stderr"),
        "disk": v in of("stderr"),
        "memory": v in of("stderr"),
        "slow": any(v in of(kind) and of(kind) & waiters for kind in ("ring", "traffic"))
        or (death.work != "pipe" and len(of("fr")) == death.ranks),
        "blackhole": kernel,
    }
    if death.fault in STALLS:
        decided[death.fault] = any(v in of(k) and of(k) & waiters for k in ("stacks", "py-spy"))
    if decided.get(death.fault):
        return Truth(DECIDABLE, frozenset({v}), True, kinds)
    return Truth(
        HINTED if _hinted(death, kept, known) else UNDECIDABLE, frozenset({v}), True, kinds
    )


def _hinted(death: Death, kept: Collection[Source], known: set[int]) -> bool:
    """Whether something kept distinguishes the victim from the others, if not beyond doubt.

    known: ranks whose standing is known.
    """
    v = death.victim

    def of(*wanted: str) -> set[int]:
        return {s.rank for s in kept if s.kind in wanted and s.rank is not None}

    launcher = Source("launcher") in kept
    if death.fault == "blackhole":  # between two ranks there is one link: both may be named
        return death.ranks == 2
    if death.fault == "slow":
        return v in of("fr", "ring", "traffic") and len(of("fr", "ring", "traffic")) > 1
    eliminated = set(range(death.ranks)) - {v} <= known
    if differs(death):
        # The tracebacks show which call each was in.
        return eliminated or (v in of("stderr", "stacks") and len(of("stderr", "stacks")) > 1)
    # The launcher lists the victim first (exception, disk, memory), as the one that it had to end
    # (sigstop, sleep, stuck), or not among those that failed (skip).
    own_end = v in of("stderr") and len(of("stderr")) > 1  # alone without a word of a lost peer
    return eliminated or launcher or own_end or v in of("fr", "ring", "stacks", "py-spy")
