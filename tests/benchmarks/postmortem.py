"""800 dead jobs: does ``torchcoll postmortem`` name the rank that broke, and no innocent one?

    python tests/benchmarks/postmortem.py FOLDER [--seed N]
    python tests/benchmarks/postmortem.py FOLDER --by-evidence

80 real gloo jobs of tests/dying_jobs.py die (those in FOLDER/live are not made again), and 720 more
folders are made of them: nine of each, with a random half of the files, in mixed formats and
layouts, with unrelated files, and some with a second job that is healthy. What an answer may say
follows from the truth table of tests/death_truth.py. Root, ip and tc are needed for the lost links,
py-spy for its dumps.

An innocent named alone is an answer that names ranks without the victim, or a rank of the healthy
job. An answer that names nobody, but offers candidates without the victim, is counted beside it.
The time is that of ``python -m torchcoll postmortem`` as a process, on a sample.

``--by-evidence`` judges each of the 80 jobs by what people really have: the console alone (torchrun
--tee), one log for each rank with the launcher's, Flight Recorder dumps, the capture, and all of
these in one folder, with the lines of each rank twice.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import title

sys.path.insert(0, str(Path(__file__).parents[1]))

import death_evidence
from death_evidence import Source, read_facts, sources
from death_truth import (
    DECIDABLE,
    HINTED,
    SYMMETRIC,
    UNDECIDABLE,
    VERDICTS,
    Truth,
    differs,
    truth,
)
from dying_jobs import FAULTS, HEALTHY, Death, deaths, make, make_all

from torchcoll.cli import main as torchcoll_main

VARIANTS, TIMED = 9, 60
HEALTHY_SHARE = 0.3  # of the variants


@dataclass
class Case:
    """A folder of evidence and what it can tell. ours: names of files that are of the dead job."""

    name: str
    folder: Path
    death: Death
    host: str  # of the victim
    truth: Truth
    kept: list[Source]
    ours: set[str] = field(default_factory=set)


# Verdicts about an answer.
NAMED, BOTH, NOT_NAMED = "named", "both named", "not named"
INNOCENT, MISLED = "innocent alone", "candidates without the victim"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="other variants of the same jobs")
    parser.add_argument("--by-evidence", action="store_true")
    options = parser.parse_args()
    title("tests/benchmarks/postmortem.py: 80 dead jobs, and 720 folders made of them")
    live = options.folder / "live"
    for line in make_all(deaths(), live):
        print(line)
    if not (live / "healthy" / "facts.json").exists():
        make(HEALTHY, live / "healthy")
    if options.by_evidence:
        return show_by_evidence(live, options.folder / "by-evidence")
    cases = list(write_cases(live, options.folder / "cases", options.seed))
    answers = [answer(case) for case in cases]
    verdicts = [judge(case, jobs) for case, jobs in zip(cases, answers, strict=True)]
    misses = list(misses_of(cases, answers, verdicts))
    (options.folder / "misses.txt").write_text("\n".join(misses) + "\n")
    show(cases, answers, verdicts)
    show_times(cases)
    return int(INNOCENT in verdicts)


def write_cases(live: Path, target: Path, seed: int) -> Iterator[Case]:
    """The folders, always the same for the same jobs and seed."""
    shutil.rmtree(target, ignore_errors=True)
    healthy = read_facts(live / "healthy")
    for death in deaths():
        job = live / f"{death.number:02}"
        if not (job / "facts.json").exists():
            continue
        facts = read_facts(job)
        everything = sources(job, facts)
        for variant in range(VARIANTS + 1):
            rng = random.Random(seed + 1000 * death.number + variant)
            kept = everything
            if variant:
                half = rng.sample(everything, max(1, len(everything) // 2))
                kept = [source for source in everything if source in half]
            name = f"{death.number:02}-{variant}"
            folder = target / name
            # truth() is asked before anything is written, and knows nothing of the layout.
            case = Case(
                name,
                folder,
                death,
                facts["hosts"][death.victim],
                truth(death, kept),
                kept,
            )
            style = death_evidence.style_of(facts, rng)
            second = variant > 0 and rng.random() < HEALTHY_SHARE
            own = folder / "run-a" if second else folder
            death_evidence.write(job, facts, kept, own, style, rng, mixed=variant > 0)
            case.ours = {str(p.relative_to(folder)) for p in own.rglob("*") if p.is_file()}
            if second:
                death_evidence.write(
                    live / "healthy",
                    healthy,
                    sources(live / "healthy", healthy),
                    folder / "run-b",
                    rng.choice(death_evidence.STYLES),
                    rng,
                    mixed=True,
                )
            yield case


# What people have: name -> (styles of logs, kinds of sources).
EVIDENCE = {
    "console": (("tee",), ("stderr", "launcher")),
    "logs": (("torchrun",), ("stderr", "launcher")),
    "fr": ((), ("fr",)),
    "capture": ((), ("ring", "stacks", "traffic")),
    "all": (
        ("torchrun", "tee"),
        ("stderr", "launcher", "fr", "ring", "stacks", "traffic", "kernel"),
    ),
}


def show_by_evidence(live: Path, target: Path) -> int:
    """Print, for each kind of evidence, how many jobs are answered how, and what was missed."""
    shutil.rmtree(target, ignore_errors=True)
    print("evidence   jobs  right  others too  a choice  undecided  innocent alone  jobs split")
    missed, any_innocent = [], False
    for name, (styles, kinds) in EVIDENCE.items():
        counts: Counter[str] = Counter()
        for death in deaths():
            job = live / f"{death.number:02}"
            facts = read_facts(job)
            kept = [source for source in sources(job, facts) if source.kind in kinds]
            if not any(source.kind == kinds[0] for source in kept):
                continue
            folder = target / name / f"{death.number:02}"
            rng = random.Random(death.number)
            logs = [source for source in kept if source.kind in ("stderr", "launcher")]
            for index, style in enumerate(styles or ("files",)):
                written = kept if index == 0 else logs  # the lines of each rank a second time
                death_evidence.write(job, facts, written, folder, style, rng, mixed=False)
            host = facts["hosts"][death.victim]
            case = Case(f"{death.number:02}", folder, death, host, truth(death, kept), kept)
            document = document_of(case)
            verdict = by_evidence(case, document)
            counts["split"] += len(document.get("jobs", [])) > 1
            counts[verdict] += 1
            if verdict != "right":
                headline = document.get("answer", {}).get("headline", "says nothing")
                missed.append(
                    f"{name}: {folder} {verdict}: {death.fault} (form {death.form}) {death.work}, "
                    f"{death.ranks} ranks, victim {death.victim}: {headline}"
                )
        any_innocent |= bool(counts["innocent"])
        total = counts.total() - counts["split"]
        print(
            f"{name:10} {total:4}  {counts['right']:5}  {counts['others']:10}  "
            f"{counts['choice']:8}  {counts['undecided']:9}  {counts['innocent']:14}  "
            f"{counts['split']:10}"
        )
    (target / "misses.txt").write_text("\n".join(missed) + "\n")
    return int(any_innocent)


def by_evidence(case: Case, document: dict[str, Any]) -> str:
    """The verdict about the first answer: right, others, choice, undecided or innocent."""
    death, jobs = case.death, document.get("jobs", [])
    named = {
        int(name.removeprefix("rank "))
        for name in document.get("answer", {}).get("worst", ())
        if name.removeprefix("rank ").isdigit()
    } | {rank for job in jobs for rank in job["culprits"]}
    choice = {rank for job in jobs for rank in job["candidates"]}
    if death.fault == "blackhole" and any(case.host in job["nodes"] for job in jobs):
        return "right"
    if named == {death.victim} or (named == {0, 1} and death.ranks == 2 and differs(death)):
        return "right"
    if death.victim in named:
        return "others"
    if named:
        return "innocent"
    return "choice" if death.victim in choice else "undecided"


def answer(case: Case) -> list[dict[str, Any]]:
    """The jobs of the answer of the command, in this process. None where it refuses."""
    jobs: list[dict[str, Any]] = document_of(case).get("jobs", [])
    return jobs


def document_of(case: Case) -> dict[str, Any]:
    """What the command prints as JSON; {} if no file says anything."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        code = torchcoll_main(["postmortem", str(case.folder), "--format", "json"])
    if code == 3:  # no file says anything
        return {}
    if code:
        raise AssertionError(f"{case.name}: exit code {code}")
    document: dict[str, Any] = json.loads(output.getvalue())
    return document


def is_ours(case: Case, job: dict[str, Any]) -> bool:
    return any(file["file"] in case.ours for file in job["files"])


def judge(case: Case, jobs: list[dict[str, Any]]) -> str:
    """One of the verdicts above, over all jobs of the answer."""
    victim, right = case.death.victim, case.truth.named
    verdicts = []
    for job in jobs:
        culprits, candidates = set(job["culprits"]), set(job["candidates"])
        if not is_ours(case, job):
            verdicts.append(INNOCENT if culprits else MISLED if candidates else NOT_NAMED)
        elif case.death.fault == "blackhole" and (victim in culprits or case.host in job["nodes"]):
            # Both ends of a link may be named.
            verdicts.append(NAMED if len(culprits) <= 2 and len(job["nodes"]) <= 2 else NOT_NAMED)
        elif not culprits and not candidates:
            verdicts.append(NOT_NAMED)
        elif victim not in culprits | candidates:
            verdicts.append(INNOCENT if culprits else MISLED)
        elif case.truth.verdict == SYMMETRIC and (culprits == right or candidates == right):
            verdicts.append(BOTH)
        elif culprits == {victim}:
            verdicts.append(NAMED if case.truth.alone else INNOCENT)
        else:
            verdicts.append(NOT_NAMED)
    for verdict in (INNOCENT, MISLED, NAMED, BOTH):
        if verdict in verdicts:
            return verdict
    return NOT_NAMED


def ours_of(case: Case, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The job of the answer that has the victim's files; the first, where it was split."""
    found = [job for job in jobs if is_ours(case, job)]
    named = [job for job in found if job["culprits"] or job["candidates"]]
    return (named or found or [{"kind": "unknown", "headline": "refused", "certainty": ""}])[0]


def misses_of(
    cases: list[Case], answers: list[list[dict[str, Any]]], verdicts: list[str]
) -> Iterator[str]:
    for case, jobs, verdict in zip(cases, answers, verdicts, strict=True):
        expected = case.truth.verdict
        good = {
            DECIDABLE: verdict == NAMED,
            SYMMETRIC: verdict in (BOTH, NAMED),
            HINTED: verdict in (NAMED, NOT_NAMED),
            UNDECIDABLE: verdict == NOT_NAMED,
        }[expected]
        if good:
            continue
        job = ours_of(case, jobs)
        kept = defaultdict(list)
        for source in case.kept:
            kept[source.kind].append(source.rank)
        told = " ".join(
            kind if ranks == [None] else f"{kind}{ranks}" for kind, ranks in kept.items()
        )
        death = case.death
        yield (
            f"{verdict.upper()}: {case.folder} {death.fault} (form {death.form}) {death.work}, "
            f"{death.ranks} ranks, victim {death.victim}, {expected} {sorted(case.truth.named)}\n"
            f"    kept {told}\n"
            f"    answer of {len(jobs)} jobs: {job['kind']} {job['certainty']}, culprits "
            f"{job.get('culprits')}, candidates {job.get('candidates')}: {job['headline']}"
        )


def show(cases: list[Case], answers: list[list[dict[str, Any]]], verdicts: list[str]) -> None:
    counts: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    kinds: Counter[bool] = Counter()
    for case, jobs, verdict in zip(cases, answers, verdicts, strict=True):
        for row in (case.death.fault, "all"):
            counts[row][case.truth.verdict, verdict] += 1
        if verdict in (NAMED, BOTH):
            kinds[ours_of(case, jobs)["kind"] in case.truth.kinds] += 1
    print(
        "\n                    decidable            symmetric           hinted          cannot be "
        "told     innocent  candidates"
        "\nfault      folders  all named            all both victim     all named not   all not"
        " named     alone  without victim"
    )
    for fault in (*FAULTS, "all"):
        row = counts[fault]
        innocent = sum(row[verdict, INNOCENT] for verdict in VERDICTS)
        misled = sum(row[verdict, MISLED] for verdict in VERDICTS)
        decidable, named = _all(row, DECIDABLE), row[DECIDABLE, NAMED]
        share = f"({100 * named / decidable:.1f} %)" if decidable else ""
        print(
            f"{fault:10} {row.total():7}  {decidable:3} {named:5} {share:9}    "
            f"{_all(row, SYMMETRIC):5} {row[SYMMETRIC, BOTH]:4} {row[SYMMETRIC, NAMED]:6}   "
            f"{_all(row, HINTED):5} {row[HINTED, NAMED]:5} {row[HINTED, NOT_NAMED]:3}   "
            f"{_all(row, UNDECIDABLE):3} {row[UNDECIDABLE, NOT_NAMED]:3} "
            f"{row[UNDECIDABLE, NAMED]:5}   {innocent:8} {misled:8}"
        )
    print(
        f"\nOf {kinds.total()} answers that name the victim, {kinds[True]} call what happened by a "
        "kind that fits the fault."
    )


def _all(row: Counter[tuple[str, str]], verdict: str) -> int:
    return sum(number for (truth_verdict, _), number in row.items() if truth_verdict == verdict)


def show_times(cases: list[Case]) -> None:
    sample = random.Random(0).sample(cases, min(TIMED, len(cases)))
    words = (sys.executable, "-m", "torchcoll", "postmortem")
    seconds = []
    for case in sample:
        began = time.perf_counter()
        subprocess.run([*words, str(case.folder)], capture_output=True)
        seconds.append(time.perf_counter() - began)
    print(
        f"Time to the answer as a process: median {statistics.median(seconds):.2f} s, longest "
        f"{max(seconds):.2f} s ({len(sample)} folders, load average {os.getloadavg()[0]:.1f})."
    )


if __name__ == "__main__":
    sys.exit(main())
