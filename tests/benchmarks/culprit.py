"""How often torchcoll.pairs names the right host or link, on six namespaces (root, ip, tc needed).

    culprit.py FILE                         what FILE has, as a table
    culprit.py FILE none=300 path50=60 path70=60 slow=60 busy=20    until FILE has so many of each
    culprit.py FILE --short slow=20 busy=20 none=20     the same with 128K and 5 calls, 200 Mbit/s

Each run adds a line to FILE and its result file to FILE.runs, so a campaign of hours can be cut
anywhere (--seconds S) and goes on with the same command. path50 and path70: what two hosts send to
each other goes at 50 or 70 % of the rate, their links being sound; slow: the link of one host at
60 %; busy: a neighbour sends on one link; none: nothing is wrong, and nobody is to be named.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from common import title

sys.path.insert(0, str(Path(__file__).parents[1]))

from namespaces import COUNT, DEFAULTS, KINDS, PATHS, SHORT, Hosts, hosts, named, trouble
from ranks import Measured

_LINKS = list(itertools.combinations(range(COUNT), 2))


def busy_seconds() -> tuple[float, float, float]:
    """(CPU time of the ranks so far, of all cores in interrupts, of all cores at rest), s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    idle, waits, hard, soft = [
        int(word) / 100 for word in Path("/proc/stat").read_text().split()[4:8]
    ]
    return used.ru_utime + used.ru_stime, hard + soft, idle + waits


def launched(made: Hosts, kind: str, number: int, folder: Path) -> dict[str, Any]:
    """One run: who was the culprit, who was named, and how busy the machine was."""
    culprits = _LINKS[number % len(_LINKS)] if kind in PATHS else (number % COUNT,)
    culprits = () if kind == "none" else culprits
    began, before = time.monotonic(), busy_seconds()
    with trouble(made, kind, culprits):
        where = {"environment": made.environment, "setup": made.enter}
        job = Measured(folder / f"{kind}{number}", "pairs", made.search.arguments, COUNT, **where)
        job.job.wait(300)
    seconds, after = time.monotonic() - began, busy_seconds()
    cores = (
        seconds * len(os.sched_getaffinity(0)),
        *(b - a for a, b in zip(before, after, strict=True)),
    )
    run = job.run
    with gzip.open(job.path.with_suffix(".jsonl.gz"), "wb") as packed:
        packed.write(job.path.read_bytes())
    job.path.unlink()
    return {
        "kind": kind,
        "short": made.search is SHORT,
        "culprits": [f"h{index}" for index in culprits],
        "named": named(run),
        "exit_code": run.end and run.end["exit_code"],
        "said": [
            line
            for line in job.stdout().splitlines()
            if line.startswith(_SAID) or "too noisy" in line
        ],
        "seconds": round(seconds, 2),
        "ranks_share": round(cores[1] / cores[0], 3),
        "interrupts_share": round(cores[2] / cores[0], 3),
        "idle_share": round(cores[3] / cores[0], 3),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


_SAID = ("SUSPECT", "not alone", "no suspect")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict[str, Any]]) -> None:
    for short, search in ((False, DEFAULTS), (True, SHORT)):
        own = [row for row in rows if row["short"] == short]
        if not own:
            continue
        print(
            f"{COUNT} hosts at {search.mbit:g} Mbit/s, torchcoll.pairs {search.arguments}".strip()
        )
        for kind in dict.fromkeys(row["kind"] for row in own):
            _line(kind, [row for row in own if row["kind"] == kind])
        for name in ("ranks", "interrupts", "idle"):
            shares = sorted(row[f"{name}_share"] for row in own)
            low, middle, high = (shares[int(q * (len(shares) - 1))] for q in (0.05, 0.5, 0.95))
            print(f"  CPU {name}: {middle:.0%} (5 to 95 % of the runs: {low:.0%} to {high:.0%})")


def _line(kind: str, rows: list[dict[str, Any]]) -> None:
    right, others = 0, Counter[str]()
    for row in rows:
        expected = ["-".join(row["culprits"])] if row["culprits"] else []
        if row["named"] == expected:
            right += 1
        else:
            others[_words(expected, row["named"])] += 1
    text = f"  {kind}: {right} of {len(rows)} right"
    if kind == "none":
        text = f"  none: {len(rows) - right} of {len(rows)} healthy runs accuse somebody"
        if right == len(rows):  # 95 %; Hanley and Lippman-Hand, JAMA 249, 1983
            text += f" (below {3 / len(rows):.1%}, rule of three)"
    if kind in PATHS:
        hosts_named = sum(any("-" not in name for name in row["named"]) for row in rows)
        text += f", a host accused in {hosts_named}"
    for what, words in (
        ("suspected in the rounds, cleared alone", "not alone"),
        ("noisy", "noisy"),
    ):
        count = sum(any(words in line for line in row["said"]) for row in rows)
        text += f"; {what} in {count}"
    print(text)
    for words, count in others.items():
        print(f"    else {count} x {words}")


def _words(expected: list[str], found: list[str]) -> str:
    return f"{', '.join(expected) or 'nobody'}: {', '.join(found) or 'nobody'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("asked", nargs="*", metavar="KIND=RUNS")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    reported = parser.parse_args()
    asked = {kind: int(count) for kind, count in (word.split("=") for word in reported.asked)}
    if unknown := asked.keys() - {*KINDS, *PATHS}:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    search, until = SHORT if reported.short else DEFAULTS, time.monotonic() + reported.seconds
    kept = reported.file.with_name(f"{reported.file.name}.runs")
    kept.mkdir(parents=True, exist_ok=True)
    done = Counter(row["kind"] for row in read(reported.file) if row["short"] == reported.short)
    if asked:
        with hosts(COUNT, search) as made:
            while time.monotonic() < until:
                # The kind that is furthest behind: a campaign cut short has some of each.
                kind = min(asked, key=lambda kind: done[kind] / max(asked[kind], 1))
                if done[kind] >= asked[kind]:
                    break
                with tempfile.TemporaryDirectory(dir=kept) as folder:
                    row = launched(made, kind, done[kind], Path(folder))
                    for file in Path(folder).glob("*.gz"):
                        file.rename(kept / f"{'short-' if reported.short else ''}{file.name}")
                with reported.file.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                done[kind] += 1
    title("culprit")
    table(read(reported.file))


if __name__ == "__main__":
    main()
