"""Reads the state of a host before and after a run, on one rank of each host; never during
calls. The state is that of its CPUs, GPUs and network ports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchcoll.machine import state as host_state
from torchcoll.machine.environment import hostname, utc_now
from torchcoll.machine.placement import number_in, text_in
from torchcoll.machine.state import Sample

# Error counters of InfiniBand ports.
_INFINIBAND = """
    symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors
    port_xmit_discards local_link_integrity_errors excessive_buffer_overrun_errors
    port_xmit_constraint_errors port_rcv_constraint_errors VL15_dropped port_xmit_wait
"""
# Counters that rise on a lossy RoCE network (NVIDIA: Understanding mlx5 Linux Counters).
_RDMA = "out_of_sequence packet_seq_err local_ack_timeout_err rnr_nak_retry_err"
# kernel: Documentation/networking/statistics.rst. rx_dropped counts frames of protocols that this
# host does not use, such as LLDP, so it rises on every healthy machine (state.py).
_ETHERNET = """
    rx_errors tx_errors rx_crc_errors rx_missed_errors tx_dropped tx_carrier_errors rx_dropped
"""
_LOOPBACK = "772"  # linux/if_arp.h

Counters = dict[str, dict[str, int]]


class Watch:
    """Reads the state of one host.

    kind: cpu, cuda or xpu. device_ids: PCI id or UUID of the card of each rank on this host.
    pids: process ids of those ranks. library: NVML; by default the driver's.
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
        self._cpus = host_state.allowed_cpus(self._pids, proc)
        self._first: Sample | None = None
        self._before: dict[str, Any] = {}

    def before(self) -> dict[str, Any]:
        """Read and return the record ``machine`` before the run.

        Keys: when, host, utc, took_ns, cpu (``state.settings``), devices (``nvidia_gpus``,
        ``amd_gpus`` or ``intel_gpus``; ``others`` are processes of other runs, None if not known)
        and network (``counters``).
        """
        self._before = self._look("before")
        self._first = host_state.sample(self._proc)
        return self._before

    def states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The records before and after the run, the last with ``state.shares``."""
        assert self._first is not None
        last = host_state.sample(self._proc)
        state = self._look("after")
        hz = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        state["cpu"] |= host_state.shares(self._first, last, self._pids, self._cpus, hz, self._proc)
        return self._before, state

    def _look(self, phase: str) -> dict[str, Any]:
        start = time.perf_counter_ns()
        state = {
            "when": phase,
            "host": hostname(),
            "utc": utc_now(),
            "cpu": host_state.settings(self._cpus, self._proc, self._sysfs),
            "devices": self._devices(),
            "network": counters(self._sysfs),
        }
        return {**state, "took_ns": time.perf_counter_ns() - start}

    def _devices(self) -> list[dict[str, Any]]:
        if self._kind not in ("cuda", "xpu"):
            return []
        from torchcoll.machine import gpu_state

        # Several ranks may use a card: its partitions or tiles, or one device in a rehearsal.
        device_ids = list(dict.fromkeys(self._device_ids))
        if self._kind == "xpu":
            devices = gpu_state.intel_gpus(device_ids, self._sysfs)
        elif all(gpu_state.is_amd(place, self._sysfs) for place in device_ids):
            devices = gpu_state.amd_gpus(device_ids, self._sysfs)
        else:
            devices = gpu_state.nvidia_gpus(device_ids, self._library or gpu_state.load())
        run_pids = host_state.family(self._pids, host_state.sample(self._proc).processes)
        for device in devices:
            listed = device.pop("processes", None)
            foreign = foreign_processes(listed, run_pids, self._device_ids.count(device["place"]))
            device["others"] = foreign and [self._named(process) for process in foreign]
        return devices

    def _named(self, process: dict[str, Any]) -> dict[str, Any]:
        pid = process["pid"]
        if pid is None:
            return process
        name = process.get("name") or host_state.process_name(pid, self._proc)
        return {**process, "name": name, "user": host_state.user_name(pid, self._proc)}


def foreign_processes(
    listed: list[dict[str, Any]] | None, run_pids: set[int], ranks: int
) -> list[dict[str, Any]] | None:
    """The processes on a device that do not belong to this run; None if that is not known.

    listed: processes on the device; an empty list hides all. run_pids: of this run on this host.
    ranks: how many ranks of this run have a context on the device. If none of ``run_pids`` is
    listed, the pids are of another namespace: the others are returned without pid and name.
    """
    if not listed:
        return None
    if any(process["pid"] in run_pids for process in listed):
        return [process for process in listed if process["pid"] not in run_pids]
    return [{"pid": None, "name": None, "size_bytes": None} for _ in listed[ranks:]]


def counters(sysfs: str = "/sys") -> Counters:
    """The counters of each port: ``{"mlx5_0 port 1": {"symbol_error": 0, ...}, "eth0": {...}}``, of
    physical interfaces, or if there are none, as in a container, of all but the loopback.
    """
    ports: Counters = {}
    for port in sorted(Path(sysfs, "class/infiniband").glob("*/ports/*")):
        name = f"{port.parent.parent.name} port {port.name}"
        read = {**_numbers(port / "counters", _INFINIBAND), **_numbers(port / "hw_counters", _RDMA)}
        if read:
            ports[name] = read
    interfaces = [
        entry
        for entry in sorted(Path(sysfs, "class/net").glob("*"))
        if (entry / "statistics").exists() and text_in(entry / "type") != _LOOPBACK
    ]
    physical = [entry for entry in interfaces if (entry / "device").exists()]
    for entry in physical or interfaces:
        read = _numbers(entry / "statistics", _ETHERNET)
        if read:
            ports[entry.name] = read
    return ports


def _numbers(folder: Path, names: str) -> dict[str, int]:
    read = {name: number_in(folder / name) for name in names.split()}
    return {name: number for name, number in read.items() if number is not None}
