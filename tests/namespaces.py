"""Hosts on one machine: network namespaces on one bridge, each behind a link that can be shaped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchcoll.core.result import Run

CLONE_NEWNET, CLONE_NEWUTS, CLONE_NEWNS = 0x40000000, 0x04000000, 0x00020000
MS_SLAVE_ALL = 1 << 19 | 1 << 14  # MS_SLAVE | MS_REC
DEVICE = "v0"  # inside of each namespace
_PATH = f"/usr/sbin:/sbin:{os.environ.get('PATH', '')}"


@dataclass(frozen=True)
class Search:
    """What is measured on links of so many Mbit/s. burst: bytes that a link lets pass at once."""

    arguments: str
    mbit: float
    burst: str


SHORT = Search("--sizes 128K -n 5 -c 0", 200.0, "32kb")
# A burst below 64 KiB, the largest packet of TCP's offload on a virtual link, cuts it into frames:
# at 1 Gbit/s that takes both cores of a small machine, and what is measured is not the link.
DEFAULTS = Search("", 2000.0, "128kb")
# Of a link no more than one pair tells, so its calls have to be longer than those of SHORT.
PATH = Search("--sizes 2M -n 5 -c 0", 2000.0, "128kb")


class NoNamespaces(Exception):
    """This machine gives none; the text says what is missing."""


def before_all_others() -> None:
    """This process gets a core at once: a network does not wait for what else runs here, and a
    message that waits for the next tick of a scheduler (4 ms) is as slow as a busy link.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _run(*words: str) -> int:
    env = {**os.environ, "PATH": _PATH}
    try:
        return subprocess.run(words, env=env, capture_output=True).returncode
    except OSError:
        return 127


class Hosts:
    """``count`` namespaces, host i with the address 10.78.0.(i + 1), and links as in ``search``."""

    def __init__(self, count: int, search: Search) -> None:
        self.search = search
        self.names = [f"tc{os.getpid()}h{index}" for index in range(count)]
        self.switch = f"tc{os.getpid()}sw"  # where the bridge is

    @staticmethod
    def address(index: int) -> str:
        return f"10.78.0.{index + 1}"

    def shape(self, index: int, share: float = 1.0) -> None:
        """Both ends of this host's link: at most this share of the rate, either way."""
        rate = ("root", "tbf", "rate", f"{share * self.search.mbit:g}mbit")
        rate += ("burst", self.search.burst, "latency", "50ms")
        for where, device in ((self.names[index], DEVICE), (self.switch, f"b{index}")):
            if _run("tc", "-n", where, "qdisc", "replace", "dev", device, *rate):
                raise NoNamespaces("no token-bucket filter (sch_tbf)")

    def slow_path(self, ends: tuple[int, int], share: float) -> None:
        """What these two hosts send to each other goes at this share of the rate, each way; what
        else they send as before. Their links stay as they are, until they are shaped again.
        """
        for index, other in (ends, ends[::-1]):
            commands = [f"qdisc replace dev {DEVICE} root handle 1: htb default 10"]
            for number, mbit in (("1:10", self.search.mbit), ("1:20", share * self.search.mbit)):
                rate = f"{mbit:g}mbit burst {self.search.burst} cburst {self.search.burst}"
                wait = mbit * 1e6 / 8 * 0.05  # bytes: 50 ms, as in ``shape``
                commands += [
                    f"class add dev {DEVICE} parent 1: classid {number} htb rate {rate}",
                    f"qdisc add dev {DEVICE} parent {number} bfifo limit {wait:.0f}",
                ]
            commands += [
                f"filter add dev {DEVICE} parent 1: protocol ip prio 1 u32 match ip dst "
                f"{self.address(other)}/32 flowid 1:20"
            ]
            for command in commands:
                if _run("tc", "-n", self.names[index], *command.split()):
                    raise NoNamespaces("no hierarchical token bucket (sch_htb) or filter (cls_u32)")

    def enter(self, index: int) -> None:
        """This process is on that host from now on, with a host name of its own."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self.names[index]}") as file:
            failed = libc.setns(file.fileno(), CLONE_NEWNET)
        failed = failed or libc.unshare(CLONE_NEWUTS | CLONE_NEWNS)
        # As `ip netns exec` does: sysfs shows the interfaces of where it was mounted.
        failed = failed or libc.mount(b"", b"/", b"none", MS_SLAVE_ALL, None)
        failed = failed or libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None)
        if failed:
            raise OSError(ctypes.get_errno(), "entering a namespace")
        socket.sethostname(f"h{index}")
        before_all_others()

    def environment(self, rank: int) -> dict[str, str]:
        return {"MASTER_ADDR": self.address(0), "GLOO_SOCKET_IFNAME": DEVICE}


@contextlib.contextmanager
def hosts(count: int, search: Search) -> Iterator[Hosts]:
    """Made, each link shaped, and taken away. Raises NoNamespaces."""
    if os.geteuid():
        raise NoNamespaces("not root")
    made = Hosts(count, search)
    try:
        for name in (made.switch, *made.names):
            if _run("ip", "netns", "add", name):
                raise NoNamespaces("no network namespaces")
        bridge = made.switch
        if _run("ip", "-n", bridge, "link", "add", "br0", "type", "bridge"):
            raise NoNamespaces("no bridge")
        _run("ip", "-n", bridge, "addr", "add", f"{made.address(99)}/32", "dev", "br0")
        _run("ip", "-n", bridge, "link", "set", "br0", "up")
        for index, name in enumerate(made.names):
            peer = ("type", "veth", "peer", f"b{index}", "netns", bridge)
            if _run("ip", "link", "add", DEVICE, "netns", name, *peer):
                raise NoNamespaces("no veth")
            _run("ip", "-n", bridge, "link", "set", f"b{index}", "master", "br0", "up")
            _run("ip", "-n", name, "addr", "add", f"{made.address(index)}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _run("ip", "-n", name, "link", "set", device, "up")
        for index in range(count):
            made.shape(index)
        yield made
    finally:
        for name in (made.switch, *made.names):
            _run("ip", "netns", "del", name)


# The search for a culprit, used by tests/launch.
COUNT = 6


@contextlib.contextmanager
def trouble(made: Hosts, kind: str, culprits: Sequence[int]) -> Iterator[None]:
    """What is wrong with these hosts for a while: one ``slow`` link, at 60 % of the others, or a
    slow ``path`` between two hosts, at half of the rate.
    """
    if kind == "slow":
        made.shape(culprits[0], 0.6)
    if kind == "path":
        made.slow_path((culprits[0], culprits[1]), 0.5)
    try:
        yield
    finally:
        for index in culprits:
            made.shape(index)


def named(run: Run) -> list[str]:
    """The hosts that a run of torchcoll.pairs accuses; both ends of links, with a dash."""
    events = [event for event in run.events if event["kind"] == "suspect"]
    return [event.get("host") or "-".join(event["link"]) for event in events]
