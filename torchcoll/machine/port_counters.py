"""Reads counters of errors, drops and retransmissions of this host's network ports from sysfs."""

from __future__ import annotations

from pathlib import Path

from torchcoll.machine.placement import number_in, text_in

_INFINIBAND = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors"),
    *("port_rcv_remote_physical_errors", "port_xmit_discards", "local_link_integrity_errors"),
    *("excessive_buffer_overrun_errors", "port_xmit_constraint_errors"),
    *("port_rcv_constraint_errors", "VL15_dropped", "port_xmit_wait"),
)
# Counters that rise on a lossy RoCE network (NVIDIA: Understanding mlx5 Linux Counters).
_RDMA = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
# kernel: Documentation/networking/statistics.rst. rx_dropped counts frames of protocols that this
# host does not use, such as LLDP, so it rises on every healthy machine.
_ETHERNET = (
    *("rx_errors", "tx_errors", "rx_crc_errors", "rx_missed_errors", "tx_dropped"),
    *("tx_carrier_errors", "rx_dropped"),
)
NO_FAULT = ("port_xmit_wait", "rx_dropped")  # recorded, but never a warning
_LOOPBACK = "772"  # linux/if_arp.h

Counters = dict[str, dict[str, int]]


def counters(sysfs: str = "/sys") -> Counters:
    """The counters of each port: ``{"mlx5_0 port 1": {"symbol_error": 0, ...}, "eth0": {...}}``.

    Of the interfaces only physical devices are read. If there are none, as in a container, all
    interfaces but the loopback are read.
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


def _numbers(folder: Path, names: tuple[str, ...]) -> dict[str, int]:
    read = {name: number_in(folder / name) for name in names}
    return {name: number for name, number in read.items() if number is not None}
