"""The parts of a proof: each starts ranks as a user would, and has the files that they
leave judged (proof/judge.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchcoll.core.backends import NCCL, ONECCL
from torchcoll.core.collectives import DEFAULT_COLLECTIVE, find_collective
from torchcoll.parts.proof import judge
from torchcoll.parts.proof.kit import Kit
from torchcoll.parts.proof.part_result import NOT_SHOWN, PartResult
from torchcoll.reading.traces import read_traffic


def _clock(kit: Kit) -> PartResult:
    return judge.judge_clock(kit.probe("clock", "clock", kit.pairs), kit.note)


def _first_call(kit: Kit) -> PartResult:
    evidence = kit.probe("first-call", "first-call", kit.rounds)
    return judge.judge_first_call(evidence, kit.note)


def _verification(kit: Kit) -> PartResult:
    return judge.judge_verification(kit.probe("verification", "verification"))


def _forced(kit: Kit) -> PartResult:
    name, machine = "forced-algorithms", kit.machine
    from torchcoll.libraries.nccl import forced as nccl_forced
    from torchcoll.libraries.oneccl import algorithms as oneccl
    from torchcoll.parts.curves.forced_check import logged_cases

    collectives = (DEFAULT_COLLECTIVE,)
    if machine.family == NCCL:
        version = machine.library.rpartition(" ")[2]
        forcings = nccl_forced.forcings(collectives, version)
        chosen = [f for f in forcings if f.name in ("ring-simple", "tree-simple")]
    elif machine.family == ONECCL:
        chosen = oneccl.forcings(collectives, machine.device, mpi=False)[:2]
    else:
        text = f"no variable chooses an algorithm of {machine.backend}, and it writes no log"
        return PartResult(name, NOT_SHOWN, text)
    forced = []
    module = f"torchcoll.{find_collective(DEFAULT_COLLECTIVE).module}"
    for forcing in chosen:
        file = f"{forcing.name}.jsonl"
        arguments = ["--library-log", "--sizes", "64K,4M", "-n", "20", "-J", file, *kit.flags]
        kit.on_ranks(name, module, arguments, forcing.variables)
        cases = logged_cases([kit.results(name, file)], forcing.variables, ())
        others = [
            (case.collective, case.size_bytes, ", ".join(case.mismatches))
            for case in cases
            if case.mismatches
        ]
        forced.append((forcing.name, len(cases), others))
    return judge.judge_forced(forced, kit.note)


def _capture(kit: Kit) -> PartResult:
    evidence = kit.probe("capture", "capture")
    folder = kit.part_folder("capture")
    captured = read_traffic([folder / evidence["capture"] / "traffic-rank0.jsonl"])
    profiled = read_traffic([folder / evidence["trace"]])
    return judge.judge_capture(captured, profiled, kit.note)


_AT_CALL = 20  # past the cold calls


def _hit(kit: Kit, part: str, fault: str) -> PartResult:
    timeout_s, file = kit.timeout_s, f"{fault}.jsonl"
    arguments = [
        fault,
        str(_AT_CALL),
        str(timeout_s + _STOPPED_S),
        "--sizes",
        "64K",
        "-n",
        "100000",
    ]
    arguments += ["-c", "0", "-T", f"{timeout_s:g}", "-J", file, *kit.flags]
    ended = kit.on_ranks(part, "torchcoll.parts.proof.fault_probe", arguments)
    run = kit.results(part, file)
    wall_s = float((run.end or {}).get("wall_s") or 0.0)
    most_s = timeout_s + _GRACE_S
    return judge.judge_fault(part, run, wall_s, most_s, ended.exit_code)


_GRACE_S = 30.0  # for the other ranks to report (bench/control.py), and for the start
_STOPPED_S = 15.0  # after its --timeout the others have reported, and a stopped rank may be killed


def _killed(kit: Kit) -> PartResult:
    return _hit(kit, "killed-rank", "kill")


def _stopped(kit: Kit) -> PartResult:
    return _hit(kit, "stopped-rank", "stop")


@dataclass(frozen=True)
class Claim:
    """question: what it answers. limit_s: of each start of ranks. several: needs two ranks."""

    run: Callable[[Kit], PartResult]
    question: str
    limit_s: float
    several: bool = False


# In the order in which they run; all limits together are below MOST_S.
CLAIMS: dict[str, Claim] = {
    "verification": Claim(_verification, "does verification see planted errors?", 120),
    "clock": Claim(_clock, "is a time of torchcoll that of a bare loop?", 150),
    "first-call": Claim(_first_call, "is its first call that of a bare script?", 150, True),
    "forced-algorithms": Claim(_forced, "does the library run what is forced?", 75, True),
    "capture": Claim(_capture, "does a capture see what the profiler sees?", 90, True),
    "killed-rank": Claim(_killed, "is a rank named that was killed?", 100, True),
    "stopped-rank": Claim(_stopped, "is a rank named that has stopped?", 100, True),
}
