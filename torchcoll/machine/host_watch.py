"""Reads the state of a host before and after a run, on one rank of each host; never during
calls.
"""

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
    process_name,
    sample,
    settings,
    shares,
    user_name,
    why_busy,
)

_WINDOW_S = 0.5


class Watch:
    """Reads the state of one host.

    kind: cpu, cuda or xpu.
    device_ids: PCI id or UUID of the card of each rank on this host.
    pids: process ids of those ranks.
    library: NVML; by default the driver's.
    """

    def __init__(
        self,
        kind: str,
        device_ids: Iterable[str],
        pids: Iterable[int],
        proc: str = "/proc",
        sysfs: str = "/sys",
        library: Any = None,
    ) -> None:
        self._kind = kind
        self._device_ids = list(device_ids)
        self._pids = set(pids)
        self._proc, self._sysfs, self._library = proc, sysfs, library
        self._cpus = allowed_cpus(self._pids, proc)
        self._first: Sample | None = None
        self._before: dict[str, Any] = {}

    def before(self) -> dict[str, Any]:
        """Read and return the record ``machine`` before the run.

        Keys: when, host, utc, took_ns, cpu (``state.settings``), devices (``nvidia_gpus``,
        ``amd_gpus`` or ``intel_gpus``; ``others`` are processes of other runs, None if not known)
        and network (``port_counters.counters``).
        """
        self._before = self._look("before")
        self._first = sample(self._proc)
        return self._before

    def states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The records before and after the run. Needs an earlier call of ``before``."""
        return self._before, self.after()

    def after(self) -> dict[str, Any]:
        """Read the record after the run. Its ``cpu`` also has who used the cores
        (``state.shares``).
        """
        assert self._first is not None
        last = sample(self._proc)
        state = self._look("after")
        state["cpu"] |= self._shares(self._first, last)
        return state

    def why_busy(self, state: dict[str, Any]) -> str | None:
        """Why --require-idle refuses to start in this state, or None.

        On CPUs this waits half a second to measure the load of the cores.
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

    def _look(self, phase: str) -> dict[str, Any]:
        start = time.perf_counter_ns()
        state = {
            "when": phase,
            "host": hostname(),
            "utc": utc_now(),
            "cpu": settings(self._cpus, self._proc, self._sysfs),
            "devices": self._devices(),
            "network": counters(self._sysfs),
        }
        return {**state, "took_ns": time.perf_counter_ns() - start}

    def _devices(self) -> list[dict[str, Any]]:
        from torchcoll.machine.amd_gpus import amd_gpus, is_amd

        # Several ranks may use a card: its partitions or tiles, or one device in a rehearsal.
        device_ids = list(dict.fromkeys(self._device_ids))
        if self._kind == "cuda" and all(is_amd(place, self._sysfs) for place in device_ids):
            devices = amd_gpus(device_ids, self._sysfs)
        elif self._kind == "cuda":
            from torchcoll.machine import gpu_state

            devices = gpu_state.nvidia_gpus(device_ids, self._library or gpu_state.load())
        elif self._kind == "xpu":
            from torchcoll.machine.intel_gpus import intel_gpus

            devices = intel_gpus(device_ids, self._sysfs)
        else:
            return []
        run_pids = family(self._pids, sample(self._proc).processes)
        for device in devices:
            listed = device.pop("processes", None)
            foreign = foreign_processes(listed, run_pids, self._device_ids.count(device["place"]))
            device["others"] = foreign and [self._named(process) for process in foreign]
        return devices

    def _named(self, process: dict[str, Any]) -> dict[str, Any]:
        pid = process["pid"]
        if pid is None:
            return process
        name = process.get("name") or process_name(pid, self._proc)
        return {**process, "name": name, "user": user_name(pid, self._proc)}


def foreign_processes(
    listed: list[dict[str, Any]] | None, run_pids: set[int], ranks: int
) -> list[dict[str, Any]] | None:
    """The processes on a device that do not belong to this run; None if that is not known.

    listed: processes on the device. run_pids: processes of this run on this host.
    ranks: how many ranks of this run have a context on the device.

    The ranks must be in the list. If none of ``run_pids`` is, the list has pids of another
    namespace (container): then ``ranks`` of its processes belong to this run, and the others are
    returned without pid and name. An empty list hides all processes.
    """
    if not listed:
        return None
    if any(process["pid"] in run_pids for process in listed):
        return [process for process in listed if process["pid"] not in run_pids]
    return [{"pid": None, "name": None, "size_bytes": None} for _ in listed[ranks:]]
