"""What rank 0 makes of the states of all hosts: records, warnings, and the links of each rank."""

from __future__ import annotations

from typing import Any

from torchcoll.bench.recorder import Recorder
from torchcoll.bench.state.concerns import before, during

State = dict[str, Any]


def keep_before(recorder: Recorder, states: list[State], looks_busy: bool) -> None:
    """``looks_busy``: see concerns.before."""
    for state in states:
        recorder.machine(state)
        for text in before(state, looks_busy):
            recorder.event("machine", text)


def keep_after(recorder: Recorder, pairs: list[tuple[State, State]], kind: str) -> None:
    """The states of each host before and after; kind: of the devices that communicated."""
    for first, last in pairs:
        recorder.machine(last)
        for text in during(first, last, kind):
            recorder.event("machine", text)


def tell_links(
    members: list[dict[str, Any]], states: list[State], places: list[tuple[str, str | None]]
) -> None:
    """``nvlinks`` and ``nvlink_to_switch`` of each rank's GPU, where its driver tells them.

    places: host and device of each rank.
    """
    known = {(s["host"], device["place"]): device for s in states for device in s["devices"]}
    for member, place in zip(members, places, strict=True):
        device = known.get(place, {})
        if device.get("nvlinks") is not None:
            member["nvlinks"] = device["nvlinks"]
            if "unknown" not in device["nvlink_to"]:
                member["nvlink_to_switch"] = set(device["nvlink_to"]) == {"switch"}
