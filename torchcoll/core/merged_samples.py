"""Puts the samples that the ranks of a run kept in files of their own into its cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torchcoll.core.case import count_samples
from torchcoll.core.errors import UnreadableError
from torchcoll.core.file import files_of_run
from torchcoll.core.kept_samples import FOLDER_ENDING, Batches, read_kept
from torchcoll.core.result import CaseResult, KeptBatches, Run
from torchcoll.core.units import format_ranges


def add_kept_samples(run: Run, path: str) -> None:
    """Complete the cases of a run with the samples in the folders FILE.samples beside its files.

    A case whose samples are missing, damaged, or not as many as its calls stays as the result file
    has it, and ``run.problems`` says why.
    """
    folders = [Path(f"{file}{FOLDER_ENDING}") for file in files_of_run(path)]
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
                batches = kept.get((run_id, result.kept.case), {})
                _complete(run, result, result.kept, batches)


def _complete(
    run: Run, result: CaseResult, kept: KeptBatches, batches: Mapping[int, Batches]
) -> None:
    ranks = list(result.members) or list(range(result.ranks))
    lacking = [rank for rank in ranks if not _has_all(batches.get(rank), kept)]
    problem = f"no samples of ranks {format_ranges(lacking)}" if lacking else ""
    if not problem:
        problem = next(
            filter(None, (_wrong_length(result, kept, rank, batches[rank]) for rank in ranks)), ""
        )
    if problem:
        run.problems.append(f"samples kept of {result.case.describe()}: {problem}; not used")
    else:
        _fill(result, kept, [batches[rank] for rank in ranks])


def _has_all(batches: Batches | None, kept: KeptBatches) -> bool:
    return {*kept.numbers} <= (batches or {}).keys()


def _wrong_length(result: CaseResult, kept: KeptBatches, rank: int, batches: Batches) -> str:
    """Why the batches do not have a sample of each clock for each call; '' if they have."""
    for number in kept.numbers:
        batch = batches[number]
        expected = {
            f"of clock {clock}": (batch["time_ns"].get(clock, ()), size)
            for clock in result.time_ns
            if (size := _counts(result, clock, kept.sizes)[number])
        }
        expected["before the batch"] = (batch["ramp_up_ns"], _leads(result))
        for which, (samples, count) in expected.items():
            if len(samples) != count:
                return f"{len(samples)} {which} in batch {number} of rank {rank}, not {count}"
    return ""


def _counts(result: CaseResult, clock: str, sizes: Sequence[int]) -> list[int]:
    """Samples of a clock in batches of ``sizes`` calls; 0 where the clock has none at all."""
    matrix = result.time_ns[clock]
    if not matrix or not matrix[0]:
        return [0] * len(sizes)
    each = result.calls_per_sample
    samples = sum(count_samples(size, each) for size in result.batches)
    if len(matrix[0]) != samples:  # a sample for each call
        return list(sizes)
    return [count_samples(size, each) for size in sizes]


def _leads(result: CaseResult) -> int:
    """Calls before each batch that have a sample."""
    return max(map(len, result.ramp_up_ns), default=0) // len(result.batches)


def _fill(result: CaseResult, kept: KeptBatches, ranks: Sequence[Batches]) -> None:
    """Put the batches of all ranks in order. ranks: by rank of the case. The start of a batch that
    was kept is that of its first rank; the result file has those of rank 0.
    """
    for clock, matrix in result.time_ns.items():
        counts = _counts(result, clock, result.batches)
        result.time_ns[clock] = [
            _joined(
                row,
                counts,
                kept,
                {n: batch["time_ns"].get(clock, []) for n, batch in batches.items()},
            )
            for row, batches in zip(matrix, ranks, strict=True)
        ]
    if leads := _leads(result):
        counts = [leads] * len(result.batches)
        result.ramp_up_ns = [
            _joined(row, counts, kept, {n: batch["ramp_up_ns"] for n, batch in batches.items()})
            for row, batches in zip(result.ramp_up_ns, ranks, strict=True)
        ]
    ones = [1] * len(result.batches)
    starts = {n: [batch["start_ns"]] for n, batch in ranks[0].items()}
    result.batch_start_ns = _joined(result.batch_start_ns, ones, kept, starts)
    starts = {n: [batch["start_wall_us"]] for n, batch in ranks[0].items()}
    result.batch_start_wall_us = _joined(result.batch_start_wall_us, ones, kept, starts)
    result.batches = list(kept.sizes)
    result.warnings = [text for text in result.warnings if text != kept.note]
    result.kept = None


def _joined(
    row: Sequence[int],
    counts: Sequence[int],
    kept: KeptBatches,
    batches: Mapping[int, Sequence[int]],
) -> list[int]:
    """The samples of one rank in order. row, counts: those of the result file, and how many of them
    each of its batches has; batches: those kept, by number.
    """

    def pieces() -> Iterator[Sequence[int]]:
        samples, position = list(row), 0
        sizes = iter(counts)
        for number in range(len(kept.sizes)):
            if number % kept.every:
                yield batches[number]
            else:
                size = next(sizes)
                yield samples[position : position + size]
                position += size

    return [sample for piece in pieces() for sample in piece]
