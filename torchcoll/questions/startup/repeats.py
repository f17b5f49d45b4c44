"""Runs of one scheduler job in order of time: does the second one start faster than the first?

The job is the replicate: each gives the ratio of its second to its first run, so that what the
nodes of a job have in common cancels. A single job gives a ratio without evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchcoll.core.result import Run

_EQUAL = 1.000001
_ALIKE = 1.1  # nobody would act on a smaller ratio of two starts


@dataclass(frozen=True)
class Placed:
    """The position of a run.

    job: None without a scheduler. place: from 1, of ``of`` runs in the job. order: among all runs.
    """

    job: str | None
    place: int
    of: int
    order: int


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


def in_job(runs: Sequence[Placed], again: Sequence[float]) -> list[str]:
    """The position in its job of each run of one kind and number of ranks.

    It is ``1``, ``2``, ``3 to 5`` for all later ones, or ``-`` without a job. It is '' for all runs
    if no job has several runs, or if each has two that take about as long; a ratio that is the same
    in all jobs is no noise. again: the ratios of second runs to first ones.
    """
    numbers: dict[tuple[str, int], list[int]] = {}
    for placed in runs:
        if placed.job is not None:
            numbers.setdefault((placed.job, placed.order - placed.place), []).append(placed.place)
    most = max(map(len, numbers.values()), default=0)
    alike = max(again, default=1.0) / min(again, default=1.0) > _EQUAL
    alike = alike and max(*again, 1.0) / min(*again, 1.0) <= _ALIKE
    if most < 2 or (alike and most == 2):
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


def second_runs(runs: Likes) -> dict[tuple[str, int], list[float]]:
    """The ratios of the second to the first run of each job, by kind and number of ranks.

    runs: (kind, ranks, position, figure, name of the figure).
    """
    jobs: dict[tuple[str, int, str], list[tuple[Placed, float, str]]] = {}
    for kind, ranks, placed, ns, name in runs:
        if placed.job is not None:
            # Two jobs of one name stand at different places.
            key = f"{placed.job} {placed.order - placed.place}"
            jobs.setdefault((kind, ranks, key), []).append((placed, ns, name))
    ratios: dict[tuple[str, int], list[float]] = {}
    for (kind, ranks, _), of_job in jobs.items():
        first, *later = sorted(of_job, key=lambda each: each[0].place)
        if later and first[2] == later[0][2]:
            ratios.setdefault((kind, ranks), []).append(later[0][1] / first[1])
    return ratios
