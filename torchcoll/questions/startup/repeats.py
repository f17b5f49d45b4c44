"""Runs of one scheduler job in order of time: does the second one start faster than the first?

The job is the replicate: each gives the ratio of its second to its first run, so that what the
nodes of a job have in common cancels. A single job gives a ratio without evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchcoll.core.result import Run
from torchcoll.questions.comparison.results import Judged, judge
from torchcoll.stats.ratios import paired_ratio

THRESHOLD = 0.1  # nobody would act on a smaller difference of two starts


@dataclass(frozen=True)
class Placed:
    """The position of a run.

    job: None without a scheduler. place: from 1, of ``of`` runs in the job. order: among all runs.
    """

    job: str | None
    place: int
    of: int
    order: int


@dataclass(frozen=True)
class RunPairs:
    """Second runs compared with the first runs of their jobs, one pair per job.

    figure: what is compared. judged: ``base`` has the first runs.
    """

    kind: str
    ranks: tuple[int, ...]
    figure: str
    judged: Judged


def places_of(runs: Sequence[Run]) -> list[Placed]:
    """The position of each run. A run without a job counts as a job of its own.

    Runs are ordered by start if it is known (in seconds; ties keep the order of reading). Runs
    whose output follows each other in one file are those of one job script.
    """
    # ISO 8601 in UTC: sorts as text.
    starts = [str(run.header.get("start_utc") or "") for run in runs]
    jobs: dict[str, list[int]] = {}
    names: dict[str, str | None] = {}
    for number, run in enumerate(runs):
        job = run.header.get("job_id")
        file, section = run.source.get("file"), run.source.get("run")
        name: str | None
        if job:
            key, name = f"job {job}", str(job)
        elif file and section:
            # Files of one name from several folders: their numbers begin again.
            times = 1
            while any(
                runs[earlier].source.get("run") == section
                for earlier in jobs.get(f"file {file} {times}", ())
            ):
                times += 1
            key, name = f"file {file} {times}", file
        else:
            key, name = f"run {number}", None
        names[key] = name
        jobs.setdefault(key, []).append(number)
    for members in jobs.values():
        members.sort(key=lambda number: starts[number])
    places: dict[int, Placed] = {}
    for key, members in sorted(jobs.items(), key=lambda item: starts[item[1][0]]):
        for place, number in enumerate(members, 1):
            places[number] = Placed(names[key], place, len(members), len(places))
    return [places[number] for number in range(len(runs))]


def in_job(runs: Sequence[Placed], again: Sequence[RunPairs]) -> list[str]:
    """The position in its job of each run of one kind and number of ranks.

    It is ``1``, ``2``, ``3 to 5`` for all later ones, or ``-`` without a job. It is '' for all runs
    if no job has several runs, or if ``again`` shows that second runs, of jobs of two, are as fast
    as first ones.
    """
    numbers: dict[tuple[str, int], list[int]] = {}
    for placed in runs:
        if placed.job is not None:
            numbers.setdefault((placed.job, placed.order - placed.place), []).append(placed.place)
    most = max(map(len, numbers.values()), default=0)
    results = {pair.judged.result for pair in again}
    same = "same" in results and not results & {"faster", "slower"}
    if most < 2 or (same and most == 2):
        return ["" for _ in runs]
    rest = "3" if most == 3 else f"3 to {most}"
    texts = []
    for placed in runs:
        if placed.job is None:
            texts.append("-")
            continue
        places = sorted(numbers[placed.job, placed.order - placed.place])
        number = places.index(placed.place) + 1
        texts.append(rest if number > 2 else str(number))
    return texts


Likes = Sequence[tuple[str, int, Placed, float, str]]
_Found = dict[tuple[str, int], list[tuple[float, float, str]]]


def pairs_of(runs: Likes) -> tuple[dict[tuple[str, int], RunPairs], list[RunPairs]]:
    """The pairs of each kind and number of ranks, and of each kind over all numbers of ranks.

    runs: (kind, ranks, position, figure, name of the figure). The first two runs of one kind in a
    job are a pair. Holm is over all pairs.
    """
    by_kind: _Found = {}
    for key, firsts in _jobs(runs):
        if len(firsts) > 1 and firsts[0][2] == firsts[1][2]:
            by_kind.setdefault(key, []).append((firsts[0][1], firsts[1][1], firsts[0][2]))
    return _pairs(by_kind)


def _jobs(runs: Likes) -> list[tuple[tuple[str, int], list[tuple[Placed, float, str]]]]:
    """The runs of each kind, number of ranks and job, in their order."""
    jobs: dict[tuple[str, int, str], list[tuple[Placed, float, str]]] = {}
    for kind, ranks, placed, ns, name in runs:
        if placed.job is not None:
            # Two jobs of one name stand at different places.
            key = f"{placed.job} {placed.order - placed.place}"
            jobs.setdefault((kind, ranks, key), []).append((placed, ns, name))
    return [
        ((kind, ranks), sorted(firsts, key=lambda first: first[0].place))
        for (kind, ranks, _), firsts in jobs.items()
    ]


def _pairs(by_kind: _Found) -> tuple[dict[tuple[str, int], RunPairs], list[RunPairs]]:
    groups: list[tuple[str, tuple[int, ...], list[tuple[float, float, str]]]] = [
        (kind, (ranks,), pairs_of_ranks) for (kind, ranks), pairs_of_ranks in by_kind.items()
    ]
    for kind in dict.fromkeys(kind for kind, _ in by_kind):
        several = {ranks: pairs for (name, ranks), pairs in by_kind.items() if name == kind}
        if len(several) > 1:
            whole = [pair for pairs in several.values() for pair in pairs]
            groups.append((kind, tuple(sorted(several)), whole))
    measures = []
    for _, _, pairs_of_ranks in groups:
        base = tuple(first for first, *_ in pairs_of_ranks)
        new = tuple(second for _, second, *_ in pairs_of_ranks)
        ratio = paired_ratio(base, new)
        reason = "" if ratio.p_value is not None else "the jobs are equal: no spread to judge by"
        reason = "1 job" if len(base) == 1 else reason
        measures.append(Judged(base, new, "inconclusive", reason, ratio))
    run_pairs = []
    judged = judge(measures, THRESHOLD, more_is_faster=False)
    for (kind, ranks, pairs_of_ranks), result in zip(groups, judged, strict=True):
        of_jobs = replace(result, reason=result.reason.replace(" runs", " jobs"))
        run_pairs.append(RunPairs(kind, ranks, pairs_of_ranks[0][2], of_jobs))
    each = {(pair.kind, pair.ranks[0]): pair for pair in run_pairs if len(pair.ranks) == 1}
    return each, [pair for pair in run_pairs if len(pair.ranks) > 1]
