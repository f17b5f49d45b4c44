"""Does `trace` name the late rank, and `show` the bandwidth of the last rank, of Inspector's files?

python tests/benchmarks/inspector.py

40 folders of simulated jobs in the formats of NCCL 2.28 to 2.31 and Prometheus text
(tests/inspector_maker.py): 2 to 64 ranks, 1 to 35 communicators, one or two jobs, a late rank or
none, clocks of nodes up to 3 s apart, files missing or cut off. The truth is the simulation's.

How often an innocent rank is named is measured by late_ranks.py.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from inspector_maker import GPUS_PER_NODE, START_US, MadeJob, simulate, write

from torchcoll.core.summary import summarise
from torchcoll.core.traffic import Traffic
from torchcoll.importers.traces import read_jobs
from torchcoll.inputs import expand, load_all
from torchcoll.training.arrivals import find_arrivals

# ranks, kind, late, version, missing files, share of the files that is left, jobs
CASES = [
    *((n, "world", late, "2.28", (), 1.0, 1) for n, late in ((2, 1), (8, 5), (16, None), (64, 33))),
    *((n, "mesh", late, "2.28", (), 1.0, 1) for n, late in ((4, 2), (8, None), (32, 17))),
    *((n, "world", late, "2.29", (), 1.0, 1) for n, late in ((2, None), (8, 0))),
    *((n, "mesh", late, "2.30", (), 1.0, 1) for n, late in ((4, None), (8, 3), (16, 15), (64, 40))),
    *((n, "world", late, "2.30", (), 1.0, 1) for n, late in ((2, None), (8, 7), (64, None))),
    *((n, "parts", late, "2.30", (), 1.0, 1) for n, late in ((8, 6), (16, None))),
    *((n, "mesh", late, "2.30 verbose", (), 1.0, 1) for n, late in ((8, 2), (16, None))),
    *((n, "mesh", late, "2.31", (), 1.0, 1) for n, late in ((4, 0), (8, None), (32, 9), (64, 63))),
    *((n, "world", late, "2.31 v4.2", (), 1.0, 1) for n, late in ((2, 0), (8, None))),
    *((n, "world", late, "2.30 prom", (), 1.0, 1) for n, late in ((2, 1), (8, 3), (16, None))),
    *((n, "mesh", late, "2.30 prom", (), 1.0, 1) for n, late in ((8, 5),)),
    (8, "world", 4, "2.29 prom", (), 1.0, 1),
    (8, "world", 4, "2.30", (6,), 1.0, 1),
    (8, "mesh", 4, "2.31", (0,), 1.0, 1),
    (8, "mesh", 4, "2.30", (4,), 1.0, 1),
    (16, "mesh", 3, "2.28", (8, 9), 1.0, 1),
    (8, "world", 2, "2.31", (), 0.7, 1),
    (16, "mesh", 11, "2.30", (), 0.6, 1),
    (64, "parts", 21, "2.31", (), 1.0, 1),
    (8, "world", 5, "2.30", (), 1.0, 2),
    (8, "mesh", 1, "2.31", (), 1.0, 2),
]
STEPS = 60
RESTART_US = 3_600_000_000


@dataclass
class Outcome:
    who: str
    right: bool
    worst: float
    rows: int
    without: int


def main() -> None:
    assert len(CASES) == 40
    print(
        "case  ranks  kind   version       files  job   late  named             right  "
        "busbw rows  max error"
    )
    wrong, worst, began = 0, 0.0, time.time()
    for number, (ranks, kind, late, version, missing, cut, count) in enumerate(CASES):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "dump")
            jobs = []
            for turn in range(count):
                # A restart has the same communicators (NCCL_COMM_ID), and another late rank.
                at = late if late is None or not turn else (late + 3) % ranks
                job = simulate(ranks, kind, at, STEPS, seed=100 * number + turn)
                job.begin_us, job.first_pid = START_US + turn * RESTART_US, 1000 + 5000 * turn
                write(job, folder, version, number, missing, cut)
                jobs.append(job)
            files = len(list(folder.iterdir()))
            for place, outcome in enumerate(judge(folder, jobs, version, missing)):
                late_text = "none" if jobs[place].late is None else str(jobs[place].late)
                wrong += not outcome.right
                worst = max(worst, outcome.worst)
                print(
                    f"{number:4d}  {ranks:5d}  {kind:5s}  {version:12s}  {files:5d}  "
                    f"{place + 1}/{count}  {late_text:>4}  {outcome.who:16s}  "
                    f"{'yes' if outcome.right else 'NO':5s}  {outcome.rows:4d} of "
                    f"{outcome.rows + outcome.without:<4d} {100 * outcome.worst:8.2f} %"
                )
    print(f"\nwrong about who is late: {wrong}; largest error of busbw: {100 * worst:.2f} %")
    print(f"{time.time() - began:.0f} s for making and reading all")


def judge(
    folder: Path, jobs: list[MadeJob], version: str, missing: tuple[int, ...]
) -> list[Outcome]:
    runs = load_all(expand(folder))
    assert len(runs) == len(jobs), (len(runs), len(jobs))
    named = [] if version == "2.30 prom" else read_jobs([folder])
    outcomes = []
    for place, (job, run) in enumerate(zip(jobs, runs, strict=True)):
        truth = {}
        for (identity, name, size_bytes), gbps in job.busbw.items():
            group = next(g for g in job.groups if g.identity == identity)
            truth[name, size_bytes, len(group.members)] = gbps
        errors, without = [], 0
        for result in run.results:
            row = summarise(result)
            if row.busbw_gbps is None:
                without += 1
                for text in result.warnings:  # Prometheus text: a lower bound
                    if text.startswith("busbw is at least "):
                        least = float(text.split()[4])
                        per_size = [
                            g
                            for (n, _, r), g in truth.items()
                            if (n, r) == (row.collective, row.ranks)
                        ]
                        assert least <= 1.01 * max(per_size), (least, per_size)
                continue
            errors.append(
                abs(row.busbw_gbps / truth[row.collective, row.size_bytes, row.ranks] - 1)
            )
        if version == "2.30 prom":
            who, right = late_gpu(run.results, job)
        else:
            who, right = late_rank(named[place], job, version, missing)
        outcomes.append(Outcome(who, right, max(errors, default=0.0), len(errors), without))
    return outcomes


def late_rank(
    traffic: Traffic, job: MadeJob, version: str, missing: tuple[int, ...]
) -> tuple[str, bool]:
    """Who is named, and whether that is the late rank. Where the files cannot tell (no communicator
    of the late rank is complete, or one call of each), nobody may be named without doubt.
    """
    arrivals = find_arrivals(traffic)
    late = arrivals.late if arrivals else []
    sure = {row.rank for row in late if not row.doubt}
    doubtful = {row.rank for row in late if row.doubt}
    complete = [g for g in job.groups if not set(g.members) & set(missing)]
    decidable = job.late is not None and any(job.late in g.members for g in complete)
    expected = {job.late} if decidable and version != "2.29 prom" else set()
    text = ",".join(map(str, sorted(sure))) or ("not told" if arrivals is None else "none")
    text += f" (doubt: {','.join(map(str, sorted(doubtful)))})" * bool(doubtful)
    return text, sure == expected


def late_gpu(results: object, job: MadeJob) -> tuple[str, bool]:
    """As ``late_rank``, of Prometheus text, which names GPUs. Several communicators of one name
    cannot be told apart, and here the one of all ranks is called when all have waited already.
    """
    marker = "the others wait for "
    named = {
        text.removeprefix(marker).split(":")[0]
        for result in results  # type: ignore[attr-defined]
        for text in result.warnings
        if text.startswith(marker)
    }
    late = job.late
    expected = (
        {f"GPU{late % GPUS_PER_NODE} of node{late // GPUS_PER_NODE:03d}"}
        if late is not None and len(job.groups) == 1
        else set()
    )
    return ",".join(sorted(named)) or "none", named == expected


if __name__ == "__main__":
    main()
