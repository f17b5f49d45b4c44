"""Samples that the ranks of a run keep in files of their own, because rank 0 would gather too many.

``RESULT.jsonl.samples/`` on the host of each rank has a file of JSON Lines for each rank: a header
with the run and the rank, then a record for each batch of calls that is not in the result file.
``add_kept_samples`` puts these batches into the cases of the result file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torchcoll.core.case import count_samples
from torchcoll.core.errors import UnreadableError
from torchcoll.core.file import Writer, files_of_run
from torchcoll.core.jsonl import read_records
from torchcoll.core.result import CaseResult, KeptBatches, Run, check_lists, check_whole
from torchcoll.core.units import format_ranges

SCHEMA = "torchcoll-samples/1"
_FOLDER_ENDING = ".samples"  # RESULT.jsonl.samples is next to RESULT.jsonl
_WHAT = "file of kept samples"
Batches = dict[int, dict[str, Any]]  # number of the batch -> its record, of one rank in one case


class KeptSamples:
    """The file of one rank. Raises UsageError if it cannot be made or exists already."""

    def __init__(self, result: str, run_id: str, rank: int) -> None:
        folder = Path(f"{result}{_FOLDER_ENDING}")
        self.cases = 0  # that have kept batches, the current one included
        self._writer = Writer(folder / f"rank-{rank:05d}.jsonl", "Make room for them there.")
        self._writer.write("header", {"schema": SCHEMA, "run_id": run_id, "rank": rank})

    def write(
        self,
        batch: int,
        start: tuple[int, int],
        ramp_up: Sequence[int],
        clocks: dict[str, list[int]],
    ) -> None:
        """Write one batch of the current case.

        start: monotonic clock in ns, wall clock in us.
        Raises TorchcollError if the disk refuses it.
        """
        record = {
            "case": self.cases,
            "batch": batch,
            "start_ns": start[0],
            "start_wall_us": start[1],
            "ramp_up_ns": list(ramp_up),
            "time_ns": clocks,
        }
        self._writer.write("batch", record)

    def close(self) -> None:
        self._writer.close()


Kept = dict[tuple[str, int], dict[int, Batches]]  # (run id, case) -> rank -> its batches


def read_kept(folders: Sequence[Path], problems: list[str]) -> Kept:
    """Read the files of all ranks in ``folders``.

    problems: gets a line for each record that cannot be used. Raises UnreadableError for a file of
    another kind, and for two different records of a batch.
    """
    kept: Kept = defaultdict(lambda: defaultdict(dict))
    for path in (path for folder in folders for path in sorted(folder.glob("rank-*.jsonl"))):
        reader = _RankFile(path, kept)
        read_records(path, problems, _WHAT, SCHEMA, reader.header, reader.take)
    return kept


class _RankFile:
    """Reads the file of one rank into ``kept``."""

    def __init__(self, path: Path, kept: Kept) -> None:
        self._path, self._kept = path, kept
        self._run_id, self._rank = "", 0

    def header(self, data: dict[str, Any]) -> None:
        check_whole(data["rank"])
        self._run_id, self._rank = str(data["run_id"]), data["rank"]

    def take(self, record: str, data: dict[str, Any], line: bytes) -> None:
        check_whole(data["case"], data["batch"], data["start_ns"], data["start_wall_us"])
        check_lists(data["ramp_up_ns"], *data["time_ns"].values(), durations=True)
        batches = self._kept[self._run_id, data["case"]][self._rank]
        if batches.setdefault(data["batch"], data) != data:  # an equal copy is no harm
            raise UnreadableError(
                f"{self._path}: batch {data['batch']} of case {data['case']}",
                f"two different records of rank {self._rank}",
                "samples of a batch once",
                "Copy the files of the ranks again.",
            )


def add_kept_samples(run: Run, path: str) -> None:
    """Complete the cases of a run with the samples in the folders FILE.samples next to its files.

    A case whose samples are missing, damaged, or not as many as its calls remains as it is in the
    result file, and ``run.problems`` says why.
    """
    folders = [Path(f"{file}{_FOLDER_ENDING}") for file in files_of_run(path)]
    folders = [folder for folder in folders if folder.is_dir()]
    if not folders or not any(result.kept for result in run.results):
        return
    try:
        kept = read_kept(folders, run.problems)
    except UnreadableError as error:
        run.problems.append(str(error))
        return
    for member, results in run.all_runs():
        run_id = str(member.header.get("run_id"))
        for result in results:
            if result.kept:
                by_rank = kept.get((run_id, result.kept.case), {})
                if problem := _complete(result, result.kept, by_rank):
                    name = result.case.describe()
                    run.problems.append(f"samples kept of {name}: {problem}; not used")


def _complete(result: CaseResult, kept: KeptBatches, by_rank: Mapping[int, Batches]) -> str:
    """Add the kept batches to a case. Returns why they cannot be used, or ''."""
    ranks = list(result.members) or list(range(result.ranks))
    numbers = set(kept.numbers)
    lacking = [rank for rank in ranks if not numbers <= by_rank.get(rank, {}).keys()]
    if lacking:
        return f"no samples of ranks {format_ranges(lacking)}"
    for rank in ranks:
        for number in kept.numbers:
            if problem := _wrong_length(result, kept.sizes[number], by_rank[rank][number]):
                samples, expected = problem
                return f"{samples} in batch {number} of rank {rank}, not {expected}"
    _merge(result, kept, [by_rank[rank] for rank in ranks])
    return ""


def _wrong_length(
    result: CaseResult, calls: int, batch: Mapping[str, Any]
) -> tuple[str, int] | None:
    """('19 of clock host', expected number) of samples that are not one for each call of a batch.

    calls: number of calls in the batch.
    """
    for clock in result.time_ns:
        (expected,) = _count_samples(result, clock, [calls])
        actual = len(batch["time_ns"].get(clock, ()))
        if expected and actual != expected:
            return f"{actual} of clock {clock}", expected
    expected, actual = _ramp_up_calls(result), len(batch["ramp_up_ns"])
    return (f"{actual} before the batch", expected) if actual != expected else None


def _count_samples(result: CaseResult, clock: str, sizes: Sequence[int]) -> list[int]:
    """Samples of a clock in each batch of ``sizes`` calls; 0 if the clock has none."""
    matrix = result.time_ns[clock]
    if not matrix or not matrix[0]:
        return [0] * len(sizes)
    each = result.calls_per_sample
    if len(matrix[0]) != sum(count_samples(size, each) for size in result.batches):
        return list(sizes)  # this clock is read at every call
    return [count_samples(size, each) for size in sizes]


def _ramp_up_calls(result: CaseResult) -> int:
    """The number of ramp-up calls before each batch that have a sample."""
    return max(map(len, result.ramp_up_ns), default=0) // len(result.batches)


def _merge(result: CaseResult, kept: KeptBatches, by_rank: Sequence[Batches]) -> None:
    """Put the batches of the result file and the kept batches of all ranks in order.

    by_rank: by rank of the case. The start of a kept batch is the start on the first rank; the
    result file has the starts on rank 0.
    """

    def joined(row: Sequence[int], counts: Sequence[int], batches: Mapping[int, Any]) -> list[int]:
        """The samples of one rank.

        row, counts: samples of the result file, and how many each of its batches has. batches:
        number of a kept batch -> its samples.
        """
        samples, sizes = iter(row), iter(counts)
        whole: list[int] = []
        for number in range(len(kept.sizes)):
            whole += batches[number] if number % kept.every else islice(samples, next(sizes))
        return whole

    for clock, matrix in result.time_ns.items():
        counts = _count_samples(result, clock, result.batches)
        result.time_ns[clock] = [
            joined(row, counts, {n: b["time_ns"].get(clock, []) for n, b in batches.items()})
            for row, batches in zip(matrix, by_rank, strict=True)
        ]
    if calls := _ramp_up_calls(result):
        counts = [calls] * len(result.batches)
        result.ramp_up_ns = [
            joined(row, counts, {n: b["ramp_up_ns"] for n, b in batches.items()})
            for row, batches in zip(result.ramp_up_ns, by_rank, strict=True)
        ]
    ones, first = [1] * len(result.batches), by_rank[0].items()
    starts = {n: [batch["start_ns"]] for n, batch in first}
    result.batch_start_ns = joined(result.batch_start_ns, ones, starts)
    starts = {n: [batch["start_wall_us"]] for n, batch in first}
    result.batch_start_wall_us = joined(result.batch_start_wall_us, ones, starts)
    result.batches = list(kept.sizes)
    result.warnings = [text for text in result.warnings if text != kept.note]
    result.kept = None
