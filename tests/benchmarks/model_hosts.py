"""Collectives over 2, 3, 4, 6 and 8 hosts with links of a known rate, for benchmarks/model.py.

    python tests/benchmarks/model_hosts.py FOLDER [--mbit 100] [--runs 1] 2 3 4 6 8

The hosts are network namespaces on one bridge, each behind a token-bucket link (root, ip and tc
needed). FOLDER gets a result file a run, and a line in idle.txt: how busy the machine was, for
a link is what is measured only where the CPUs are idle. goodput.json: what plain sockets get on the
same links, which is what a collective can get: the filter counts headers too. One host sends to
another, or each to the next one at once, so that acknowledgements go between the data of a ring.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from culprit import busy_seconds
from namespaces import Hosts, Search, hosts
from ranks import Measured

SENT, ROUNDS, PORT = 8 << 20, 5, 7801

COLLECTIVES = "all_reduce,all_gather,broadcast"
SIZES = "64K,128K,256K,512K,1M,2M,4M"


def goodput(made: Hosts, senders: int, count: int) -> float:
    """Mbit/s of payload: the first hosts send SENT bytes each to the next one, at once; until the
    last has all, the median of ROUNDS.
    """
    ends = [socket.socketpair() for _ in range(count)]
    children = []
    for index, (_, theirs) in enumerate(ends):
        pid = os.fork()
        if not pid:
            try:
                plain_sockets(made, index, senders, count, theirs)
            finally:
                os._exit(1)
        children.append(pid)
    mine = [own for own, _ in ends]

    def together() -> None:
        for own in mine:
            assert own.recv(1) == b"."
        for own in mine:
            own.send(b".")

    together()  # listening
    together()  # connected
    times = []
    for _ in range(ROUNDS):
        together()
        began = time.perf_counter()
        for own in mine:
            assert own.recv(1) == b"."
        times.append(time.perf_counter() - began)
        for own in mine:
            own.send(b".")
    for pid in children:
        os.waitpid(pid, 0)
    return 8 * SENT / statistics.median(times) / 1e6


def plain_sockets(made: Hosts, index: int, senders: int, count: int, parent: socket.socket) -> None:
    """In a child: what host ``index`` does; it leaves the process."""

    def together() -> None:
        parent.send(b".")
        parent.recv(1)

    made.enter(index)
    data = bytes(SENT)
    with socket.create_server((made.address(index), PORT)) as server:
        together()
        following = (index + 1) % count
        out = socket.create_connection((made.address(following), PORT)) if index < senders else None
        into = server.accept()[0] if (index - 1) % count < senders else None
        together()
        for _ in range(ROUNDS):
            together()
            sender = threading.Thread(target=out.sendall, args=(data,)) if out else None
            if sender:
                sender.start()
            left = SENT if into else 0
            while into and left:
                left -= len(into.recv(1 << 16))
            if sender:
                sender.join()
            together()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("counts", nargs="+", type=int)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--runs", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    arguments = f"--collectives {COLLECTIVES} --sizes {SIZES} -n 8 -w 1 -c 0"
    search = Search(arguments, asked.mbit, "32kb")
    for count in asked.counts:
        rates = asked.folder / "goodput.json"
        known = json.loads(rates.read_text()) if rates.exists() else {}
        if str(count) not in known:
            with hosts(count, search) as made:
                known[str(count)] = [goodput(made, senders, count) for senders in (1, count)]
            one, ring = known[str(count)]
            print(f"{count} hosts, plain sockets: {one:.1f} Mbit/s one way, {ring:.1f} in a ring")
            rates.write_text(json.dumps(known))
        for launch in range(asked.runs):
            name = f"{count}hosts-{launch + 1}"
            if (asked.folder / f"{name}.jsonl").exists():
                continue
            with hosts(count, search) as made:
                began, before = time.monotonic(), busy_seconds()
                where = {"environment": made.environment, "setup": made.enter}
                job = Measured(asked.folder / name, None, arguments, count, **where)
                job.ended(0, 280)
                seconds, after = time.monotonic() - began, busy_seconds()
            cores = seconds * len(os.sched_getaffinity(0))
            ranks, interrupts, idle = ((b - a) / cores for a, b in zip(before, after, strict=True))
            run = job.run
            line = (
                f"{name}: {len(run.results)} cases in {seconds:.0f} s; of the CPUs the ranks took "
            )
            line += f"{ranks:.0%}, interrupts {interrupts:.0%}, idle were {idle:.0%}"
            with (asked.folder / "idle.txt").open("a") as file:
                file.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
