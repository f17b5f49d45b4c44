"""Rank 0's records of a run: header, members, states of the hosts, and the result of each case
from the samples of all ranks. Loaded on rank 0 alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcoll.bench.stopping import present
from torchcoll.bench.verify import tolerance_ulp
from torchcoll.core import result as records
from torchcoll.core import shared_cores
from torchcoll.core.case import Case, SizedCase, size_case
from torchcoll.core.file import SCHEMA
from torchcoll.core.result import CaseResult, Run, Verification
from torchcoll.core.soak_windows import SoakWindow
from torchcoll.core.variables import SET_ON_PURPOSE, masked, masked_labels, masked_texts
from torchcoll.machine import environment
from torchcoll.machine.environment import utc_now
from torchcoll.machine.state import before, during

if TYPE_CHECKING:
    from torchcoll.bench.session import Session
    from torchcoll.core.backends import BackendEntry
    from torchcoll.machine.setting_traps import Finding


class Recorder:
    """Builds the Run of rank 0, and passes each record to ``emit`` (for the file). Secrets in
    labels and in texts that may quote an error are masked here.
    """

    def __init__(
        self, emit: Callable[[str, dict[str, Any]], None] = lambda record, data: None
    ) -> None:
        self.run = Run()
        self._emit = emit

    def header(self, data: dict[str, Any]) -> None:
        spec = dict(data["spec"])
        spec["labels"] = masked_labels(spec["labels"])
        self.run.header = {"schema": SCHEMA, **data, "spec": spec}
        self._emit("header", self.run.header)

    def members(self, members: list[dict[str, Any]]) -> None:
        self.run.members = members
        self._emit("ranks", {"ranks": members})

    def phase(self, name: str, ns: list[int]) -> None:
        self.run.phases[name] = ns
        self._emit("phase", {"name": name, "ns": ns})

    def machine(self, state: dict[str, Any]) -> None:
        self.run.machine.append(state)
        self._emit("machine", state)

    def started(self, case: Case) -> None:
        self.run.in_flight = case
        self._emit("started", {"case": case.to_json()})

    def case(self, result: CaseResult) -> None:
        self.run.in_flight = None
        result.reason = masked(result.reason)
        result.warnings = masked_texts(result.warnings)
        self.run.results.append(result)
        self._emit("case", result.to_json())

    def window(self, window: SoakWindow) -> None:
        self.run.windows.append(window)
        self._emit("soak", window.to_json())

    def timed_out(self, ranks: int, text: str) -> None:
        """The case in flight, if there is one, hangs."""
        if self.run.in_flight:
            self.case(CaseResult(self.run.in_flight, "timeout", ranks, reason=text))

    def event(self, kind: str, message: str, **more: Any) -> None:
        event = masked_texts({"kind": kind, "message": message, "utc": utc_now(), **more})
        self.run.events.append(event)
        self._emit("event", event)

    def end(self, status: str, exit_code: int, wall_s: float, reason: str) -> None:
        if self.run.end is None:
            self.run.end = {
                "status": status,
                "exit_code": exit_code,
                "wall_s": round(wall_s, 3),
                "reason": masked(reason),
                "cases": len(self.run.results),
            }
            self._emit("end", self.run.end)


def header(session: Session, argv: list[str] | None) -> dict[str, Any]:
    """The data of the record ``header``."""
    spec, entries, local = session.spec, session.entries, session.local

    def connects(entry: BackendEntry) -> str:
        if session.found_group:
            return "before"
        early = spec.connects_early and entry.connects == "first call"
        return "communicator" if early else entry.connects

    configured = any(entry.options for entry in entries)
    config = {"communicator_config": spec.communicator_config or "default"} if configured else {}
    several = {"connects_of": {e.name: connects(e) for e in entries}} if len(entries) > 1 else {}
    return {
        "run_id": uuid.uuid4().hex[:12],
        "start_utc": environment.utc_now(),
        "spec": spec.to_json(),
        "argv": argv,
        "ranks": local.ranks,
        "launcher": session.launch.launcher,
        "job_id": session.launch.job_id,
        "connects": connects(entries[0]),
        **several,
        "environment": {**environment.environment(local.torch, entries), **config},
    }


def keep_members(
    session: Session,
    recorder: Recorder,
    gathered: list[dict[str, Any]],
    cards: list[tuple[str, str | None]],
) -> None:
    """Record who the ranks are and what is unusual about them. gathered: of each rank its member,
    variables, phases and machine. cards: (host, card) of each.
    """
    variables = environment.variables()
    phases = [member.pop("phases") for member in gathered]
    states = [state for member in gathered if (state := member.pop("machine"))]
    if states:
        tell_links(gathered, states, cards)
    for member in gathered:
        differs = environment.differences(member.pop("variables"), variables)
        if differs:
            member["variables_that_differ"] = differs
    recorder.members(gathered)
    for name in phases[0]:
        recorder.phase(name, [phase.get(name, 0) for phase in phases])
    for host, text in (
        *shared_cores.oversubscribed_hosts(gathered),
        *shared_cores.hosts_with_isolated_gpus(gathered),
    ):
        recorder.event("warning", f"{host}: {text}")
    _keep_traps(session, recorder, gathered)
    for state in states:
        recorder.machine(state)
        # A program that has a group of its own has worked on the device until now.
        for text in before(state, looks_busy=not session.found_group):
            recorder.event("machine", text)
    if session.spec.rehearse:
        from torchcoll.bench.rehearsal import MEANINGLESS

        recorder.event("rehearsal", MEANINGLESS)


def _keep_traps(session: Session, recorder: Recorder, members: Sequence[Mapping[str, Any]]) -> None:
    """Record the settings of each host that are traps for the backends of this run."""
    from torchcoll.machine.setting_traps import Settings, setting_traps

    names = {entry.name for entry in session.entries}
    torch, kind = session.local.torch, session.local.device.kind
    bindings = kind == "cpu" and any(entry.module and entry.family for entry in session.entries)
    on_purpose = session.environ.get(SET_ON_PURPOSE, "").split(",")
    environ = {k: v for k, v in session.environ.items() if k not in on_purpose}
    # A user who has named the CPU does not miss a GPU.
    hip, cuda = torch.version.hip, torch.version.cuda
    gpu_build = "" if session.cpu_named else "hip" if hip else "cuda" if cuda else ""
    hosts_of_finding: dict[tuple[str, str], tuple[Finding, list[str]]] = {}
    for host, here in shared_cores.by_host(members).items():
        cores = len(shared_cores.cores_of(here)) or 2 * len(here)  # if unknown: enough
        settings = Settings(environ, session.launch.launcher, len(here), cores, bindings, gpu_build)
        for finding in setting_traps(settings):
            is_set = any(name in environ for name in finding.variables)
            if finding.severity == "note" and not is_set:
                continue
            if not finding.backends or names & set(finding.backends):
                hosts_of_finding.setdefault((finding.name, finding.what), (finding, []))[1].append(
                    host
                )
    for finding, hosts in hosts_of_finding.values():
        recorder.event(
            "setting",
            f"{finding.what}. {finding.why} {finding.action}",
            name=finding.name,
            what=finding.what,
            hosts=hosts,
            backends=sorted(names & set(finding.backends)),
            variables=list(finding.variables),
        )


_UNVERIFIED = (
    "not verified: the calls of a group reduce the same buffer in place, so the values depend on "
    "their order"
)
_NO_RANK = "no rank of the sub-group is there: a fake world has one"


def results_of(
    subgroups: Sequence[tuple[int, ...]],
    sizing: SizedCase,
    gathered: list[dict[str, Any]],
    steady: Sequence[list[dict[str, list[int]]]],
    stops: Sequence[str] = (),
    **facts: Any,
) -> list[CaseResult]:
    """The result of each sub-group. steady: [batch][rank][clock]. stops: of each sub-group that has
    a rank here. facts: of CaseResult.
    """
    for rank, facts_of_rank in enumerate(gathered):
        facts_of_rank["time"] = {
            clock: [ns for batch in steady for ns in batch[rank][clock]]
            for clock in (steady[0][rank] if steady else ())
        }
    if len(subgroups) == 1:
        return [_result(sizing, subgroups[0], gathered, stop="".join(stops), **facts)]
    results, left = [], iter(stops)
    for number, subgroup in enumerate(subgroups):
        case = replace(sizing.case, group=f"{sizing.case.group}/{number}")
        sized = size_case(case, len(subgroup))
        there = present(subgroup, len(gathered))
        if there or facts.get("status", "ok") != "ok":  # a case is refused for all sub-groups
            ranks = [gathered[rank] for rank in there] or [{}]
            result = _result(sized, subgroup, ranks, stop=next(left, ""), **facts)
        else:
            result = _sized(sized, "skipped", len(subgroup), reason=_NO_RANK)
        result.members = list(subgroup)
        results.append(result)
    return results


def _result(
    sizing: SizedCase,
    ranks: Sequence[int],
    gathered: list[dict[str, Any]],
    status: str = "ok",
    **facts: Any,
) -> CaseResult:
    result = _sized(sizing, status, sizing.ranks, **facts)
    first = gathered[0]
    if not first.get("cold"):
        return result
    result.cold_ns = [s["cold"] for s in gathered]
    result.cold_start_ns = [s["cold_start"] for s in gathered]
    result.ramp_up_ns = [s["ramp_up"] for s in gathered] if first["ramp_up"] else []
    result.warmup_ns = [s["warmup"] for s in gathered] if first["warmup"] else []
    result.time_ns = {
        clock: [s["time"][clock] for s in gathered]
        for clock, durations in first["time"].items()
        if durations
    }
    if first["connect"] is not None:
        result.connect_ns = [s["connect"] for s in gathered]
    if "concurrent" in first:
        names = records.CONCURRENT_BLOCKS
        blocks = {name: [s["concurrent"][name] for s in gathered] for name in names}
        result.concurrent = records.ConcurrentBlocks.from_json({**first["concurrent"], **blocks})
    if "checked" in first:
        counts = [(s["checked"], s["wrong"], s["changed"]) for s in gathered]
        _verify(result, ranks, counts, tolerance_ulp(sizing.case, sizing.ranks))
        for rank, of_rank in zip(ranks, gathered, strict=True):
            if of_rank.get("first_wrong"):
                element, value, expected = of_rank["first_wrong"]
                result.reason += (
                    f"; first on rank {rank}, element {element}: {value} for {expected}"
                )
                break
    warnings = [_UNVERIFIED] if first.get("unverified") else []
    if result.steady_after is None:
        warnings.append(f"rank 0 saw no steady state in the first {len(result.cold_ns[0])} calls")
    if result.calls_per_sample > 1:
        warnings.append(
            f"each sample is the mean of up to {result.calls_per_sample} calls: "
            "events cost too much here"
        )
    result.warnings = warnings
    return result


def result_of_pair(case: Case, ranks: list[int], gathered: list[Any]) -> CaseResult:
    """The result of a pair of ranks or of nodes. gathered: of each rank its cold and steady
    durations, and (elements checked, elements wrong) or None.
    """
    result = _sized(
        size_case(case, 2),
        "ok",
        len(ranks),
        cold_ns=[cold for cold, _, _ in gathered],
        time_ns={"host": [steady for _, steady, _ in gathered]},
        batches=[len(gathered[0][1])],
        members=ranks,
        ordinal=None,  # the calls of a connection are not counted
        stop="count",
    )
    if gathered[0][2]:
        _verify(result, ranks, [(*checked, 0) for _, _, checked in gathered])
    return result


def _sized(sizing: SizedCase, status: str, ranks: int, **facts: Any) -> CaseResult:
    names = ("count", "size_bytes", "bytes_in", "bytes_out", "busiest_bytes")
    sizes = {name: getattr(sizing, name) for name in names}
    return CaseResult(sizing.case, status, ranks, **sizes, **facts)


def _verify(
    result: CaseResult, ranks: Sequence[int], counts: list[tuple[int, int, int]], tolerance: int = 0
) -> None:
    """counts: elements checked, elements wrong and elements of the input changed, of each rank."""
    checked, wrong, changed = (sum(column) for column in zip(*counts, strict=True))
    odd = tuple(rank for rank, (_, *n) in zip(ranks, counts, strict=True) if any(n))
    result.verification = Verification(checked, wrong, odd, tolerance, changed)
    reasons = [f"{wrong} of {checked} elements wrong"] if wrong else []
    reasons += [f"{changed} elements of the input changed"] if changed else []
    if reasons:
        result.status = "wrong"
        result.reason = ", ".join(reasons)


State = dict[str, Any]


def keep_after(recorder: Recorder, pairs: list[tuple[State, State]], kind: str) -> None:
    """Record the states of each host after the run. pairs: before and after, of each host."""
    for first, last in pairs:
        recorder.machine(last)
        for text in during(first, last, kind):
            recorder.event("machine", text)


def tell_links(
    members: list[dict[str, Any]], states: list[State], cards: list[tuple[str, str | None]]
) -> None:
    """Add ``nvlinks`` and ``nvlink_to_switch`` of each rank's GPU to its member, if known."""
    devices = {(s["host"], device["place"]): device for s in states for device in s["devices"]}
    for member, card in zip(members, cards, strict=True):
        device = devices.get(card, {})
        if device.get("nvlinks") is not None:
            member["nvlinks"] = device["nvlinks"]
            if "unknown" not in device["nvlink_to"]:
                member["nvlink_to_switch"] = set(device["nvlink_to"]) == {"switch"}
