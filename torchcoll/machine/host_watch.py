"""The state of this host before and after a run. One rank of each host looks; never in between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from torchcoll.machine.environment import hostname, utc_now
from torchcoll.machine.port_counters import counters
from torchcoll.machine.state import (
    Sample,
    allowed_cpus,
    family,
    name_of,
    sample,
    settings,
    shares,
    user_of,
    why_busy,
)

_WINDOW_S = 0.5


class Watch:
    """Looks at one host. kind: cpu, cuda or xpu. places: PCI ids or UUIDs of the devices of the
    ranks here, one a rank. pids: those ranks. library: of NVML, else the driver's own.
    """

    def __init__(
        self,
        kind: str,
        places: Iterable[str],
        pids: Iterable[int],
        proc: str = "/proc",
        sysfs: str = "/sys",
        library: Any = None,
    ) -> None:
        self._kind = kind
        self._ranks_on = list(places)
        self._pids = set(pids)
        self._proc, self._sysfs, self._library = proc, sysfs, library
        self._cpus = allowed_cpus(self._pids, proc)
        self._first: Sample | None = None
        self._before: dict[str, Any] = {}

    def before(self) -> dict[str, Any]:
        """The record ``machine`` before the run: when, host, utc, took_ns, cpu (of host.settings),
        devices (of nvml.gpus or intel.gpus, with ``others``: processes that are not of this
        run, None where that is not known), network (of network.counters).
        """
        self._before = self._look("before")
        self._first = sample(self._proc)
        return self._before

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The states before and after the run; ``before`` has been called."""
        return self._before, self.after()

    def after(self) -> dict[str, Any]:
        """As before; ``cpu`` tells also who used the cores since then (host.shares)."""
        assert self._first is not None
        last = sample(self._proc)
        state = self._look("after")
        state["cpu"] |= self._shares(self._first, last)
        return state

    def why_busy(self, state: dict[str, Any]) -> str | None:
        """Why --require-idle refuses this state, or None; on CPUs the cores are watched for half a
        second, in which the ranks wait.
        """

        shares = None
        if self._kind == "cpu":
            first = sample(self._proc)
            time.sleep(_WINDOW_S)
            shares = self._shares(first, sample(self._proc))
        return why_busy(state, shares)

    def _shares(self, first: Sample, last: Sample) -> dict[str, Any]:
        hz = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        return shares(first, last, self._pids, self._cpus, hz, self._proc)

    def _look(self, when: str) -> dict[str, Any]:
        start = time.perf_counter_ns()
        state = {
            "when": when,
            "host": hostname(),
            "utc": utc_now(),
            "cpu": settings(self._cpus, self._proc, self._sysfs),
            "devices": self._devices(),
            "network": counters(self._sysfs),
        }
        return {**state, "took_ns": time.perf_counter_ns() - start}

    def _devices(self) -> list[dict[str, Any]]:
        places = list(dict.fromkeys(self._ranks_on))  # a rehearsal has several ranks on one
        if self._kind == "cuda":
            from torchcoll.machine import gpu_state

            found = gpu_state.nvidia_gpus(places, self._library or gpu_state.load())
        elif self._kind == "xpu":
            from torchcoll.machine.intel_gpus import intel_gpus

            found = intel_gpus(places, self._sysfs)
        else:
            return []
        own = family(self._pids, sample(self._proc).processes)
        for device in found:
            listed = device.pop("processes", None)
            others = strangers(listed, own, self._ranks_on.count(device["place"]))
            device["others"] = others and [self._named(process) for process in others]
        return found

    def _named(self, process: dict[str, Any]) -> dict[str, Any]:
        pid = process["pid"]
        if pid is None:
            return process
        name = process.get("name") or name_of(pid, self._proc)
        return {**process, "name": name, "user": user_of(pid, self._proc)}


def strangers(
    listed: list[dict[str, Any]] | None, own: set[int], ranks: int
) -> list[dict[str, Any]] | None:
    """Which of the processes on a device are not of this run; None: not known.

    ``ranks`` of ours have a context there, so a list without any of ``own`` is that of another
    namespace of pids: an empty one hides all; in another, so many are ours and the rest are
    processes without a name.
    """
    if not listed:
        return None
    if any(process["pid"] in own for process in listed):
        return [process for process in listed if process["pid"] not in own]
    return [{"pid": None, "name": None, "size_bytes": None} for _ in listed[ranks:]]
