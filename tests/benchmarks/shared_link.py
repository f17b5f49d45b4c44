"""Two hosts and one shaped link: do two collectives at once, and one beside a stream of a known
rate, share it as they must? Root, ip and tc needed.

python tests/benchmarks/shared_link.py [MBIT]     100 Mbit/s

busbw counts what a rank sends over the link one way: S bytes for an all_reduce of S on two ranks.
The rate of the link is what one collective alone gets. Expected: two at once have half of it each
and all of it together, on groups of their own (--groups) and as calls and work (--concurrent); with
an offset of half a call, the other half is shared: 1.5 times as long for both; with UDP at 40 %
of the rate of the link one way, what is left of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from common import title

sys.path.insert(0, str(Path(__file__).parents[1]))

from namespaces import DEVICE, Hosts, Search, hosts
from ranks import Measured

from torchcoll.contention.overlap import overlaps
from torchcoll.core.result import Run
from torchcoll.core.summary import summarise

SIZE, CALLS, PORT, DATAGRAM = "4M", 8, 9009, 1400
SHARE = 0.4


def measured(made: Hosts, folder: Path, ranks: int, words: str) -> Run:
    """Ranks on both hosts, half on each."""

    def enter(rank: int) -> None:
        made.enter(2 * rank // ranks)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the link is slow enough

    job = Measured(
        folder / f"{time.monotonic_ns()}",
        "all_reduce",
        f"--sizes {SIZE} -n {CALLS} -c 0 {words}",
        ranks,
        setup=enter,
        environment=lambda rank: {"MASTER_ADDR": made.address(0), "GLOO_SOCKET_IFNAME": DEVICE},
    )
    return job.ended(0, 600).run


def rates(run: Run) -> list[float]:
    """Mbit/s of payload, of each sub-group: by the median of its calls."""
    return [8000 * (summarise(one).busbw_gbps or 0.0) for one in run.results]


@contextlib.contextmanager
def stream(made: Hosts, mbit: float) -> Iterator[list[float]]:
    """UDP from host 0 to host 1 at this rate; what is given holds at the end what arrived."""
    arrived: list[float] = []
    reading, writing = os.pipe()
    receiver = os.fork()
    if not receiver:
        made.enter(1)
        received, ends = 0, [0.0, 0.0]
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
            sink.bind((made.address(1), PORT))
            sink.settimeout(0.2)
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    received += len(sink.recv(2048)) + 42  # headers of UDP, IP and Ethernet
                    ends = [ends[0] or time.monotonic(), time.monotonic()]
        os.write(writing, str(8e-6 * received / max(ends[1] - ends[0], 1e-9)).encode())
        os._exit(0)
    sender = os.fork()
    if not sender:
        made.enter(0)
        gap, due = 8e-6 * (DATAGRAM + 42) / mbit, time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
            source.connect((made.address(1), PORT))
            while True:
                due += gap
                time.sleep(max(0.0, due - time.monotonic()))
                with contextlib.suppress(OSError):
                    source.send(bytes(DATAGRAM))
    try:
        yield arrived
    finally:
        os.kill(sender, signal.SIGKILL)
        os.kill(receiver, signal.SIGTERM)
        arrived.append(float(os.read(reading, 64)))
        for pid in (sender, receiver):
            os.waitpid(pid, 0)


def said(what: str, got: float, expected: float) -> None:
    print(f"{what}: {got:.2f}, must be {expected:.2f}: {100 * (got / expected - 1):+.1f} %")


def main() -> None:
    mbit = float(sys.argv[1]) if len(sys.argv) > 1 else 100.0
    title(f"a link of {mbit:g} Mbit/s, shared; all_reduce of {SIZE}, {CALLS} calls")
    with tempfile.TemporaryDirectory() as name, hosts(2, Search("", mbit, "32kb")) as made:
        folder = Path(name)
        (alone,) = rates(measured(made, folder, 2, ""))
        print(f"alone: {alone:.1f} Mbit/s of payload")
        (again,) = rates(measured(made, folder, 2, ""))
        said("A/A, Mbit/s", again, alone)
        both = rates(measured(made, folder, 4, "--groups mod:2"))
        said("two groups at once, the sum in Mbit/s", sum(both), alone)
        for place, own in enumerate(both):
            said(f"  slowdown of group {place}", alone / own, 2.0)
        (one,) = overlaps(measured(made, folder, 2, "--groups div:2 --concurrent all_reduce:div:2"))
        assert one.busbw_gbps
        said("calls beside another all_reduce, slowdown", one.slowdown.value, 2.0)
        said("  slowdown of the other", one.work_slowdown.value, 2.0)
        said("  the sum at once in Mbit/s", 8000 * one.busbw_gbps[1], 8000 * one.busbw_gbps[0])
        half_ns = one.calls_ns / 2
        words = f"--groups div:2 --concurrent all_reduce:div:2 --offset {half_ns / 1e6:.0f}ms"
        for way in overlaps(measured(made, folder, 2, words)):
            late = way.offset_ns or 0.0
            print(f"single calls, the other {late / 1e6:.0f} ms after it")
            # What is left of the call when the other begins is shared: it takes twice as long.
            said("  slowdown", way.slowdown.value, 2.0 - late / way.calls_ns)
            said("  slowdown of the other", way.work_slowdown.value, 2.0 - late / way.calls_ns)
        with stream(made, SHARE * mbit) as arrived:
            (concurrent,) = rates(measured(made, folder, 2, "--concurrent background:udp"))
        print(f"beside UDP, of which {arrived[0]:.1f} Mbit/s arrived: {concurrent:.1f} Mbit/s")
        said("  left, of alone", concurrent / alone, 1 - arrived[0] / mbit)


if __name__ == "__main__":
    main()
