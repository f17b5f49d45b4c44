"""What stands before the first case: the header, and who the ranks are. Loaded on rank 0 alone."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from torchcoll.bench import environment
from torchcoll.core import crowding

if TYPE_CHECKING:
    from torchcoll.bench.backends import BackendEntry
    from torchcoll.bench.recorder import Recorder
    from torchcoll.bench.runner import Session


def header(session: Session) -> dict[str, Any]:
    """The data of the record ``header``."""
    spec, entries = session.spec, session.entries
    # Buffers are registered with a communicator, so it is connected before.
    early = spec.init == "eager" or spec.buffers != "default"

    def connects(entry: BackendEntry) -> str:
        if session.found_group:
            return "before"
        return "communicator" if early and entry.connects == "first call" else entry.connects

    several = {"connects_of": {e.name: connects(e) for e in entries}} if len(entries) > 1 else {}
    return {
        "run_id": uuid.uuid4().hex[:12],
        "start_utc": environment.utc_now(),
        "spec": spec.to_json(),
        "argv": session.argv,
        "ranks": session.ranks,
        "launcher": session.launch.launcher,
        "job_id": session.launch.job_id,
        "connects": connects(entries[0]),
        **several,
        "environment": environment.environment(session.torch, entries, session.device.name),
    }


def keep_members(
    session: Session,
    recorder: Recorder,
    gathered: list[dict[str, Any]],
    places: list[tuple[str, str | None]],
) -> None:
    """Record who the ranks are and what is odd about them. gathered: what each says of itself, with
    its variables, its phases and, from the first rank of each host, the state of the machine.
    """
    known = environment.variables()
    phases = [member.pop("phases") for member in gathered]
    states = [state for member in gathered if (state := member.pop("machine"))]
    if states:
        from torchcoll.bench.state.keep import keep_before, tell_links

        tell_links(gathered, states, places)
    for member in gathered:
        differs = environment.differences(member.pop("variables"), known)
        if differs:
            member["variables_that_differ"] = differs
    recorder.members(gathered)
    for name in phases[0]:
        recorder.phase(name, [phase.get(name, 0) for phase in phases])
    for host, text in crowding.crowded(gathered):
        recorder.event("warning", f"{host}: {text}")
    if states:
        # A program that has a group of its own has worked on the device until now.
        keep_before(recorder, states, looks_busy=not session.found_group)
    if session.spec.rehearse:
        from torchcoll.bench.rehearsal import MEANINGLESS

        recorder.event("rehearsal", MEANINGLESS)
