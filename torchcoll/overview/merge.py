"""``torchcoll merge``: the samples that ranks have kept on their own disks, in one result file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torchcoll.core.case import count_samples
from torchcoll.core.errors import UnusableError, UsageError
from torchcoll.core.file import files_of_run, load_own
from torchcoll.core.kept_samples import FOLDER_ENDING, Batches, read_kept
from torchcoll.core.result import CaseResult, KeptBatches, Run
from torchcoll.core.units import counted


def merge_kept(path: str, folders: Sequence[str] = ()) -> Run:
    """The run of a result file with all samples of its cases.

    folders: where the files of the ranks are; none is those beside the result file. Raises
    UsageError where the file lacks nothing, for ranks whose samples are not there, and for samples
    that are not as many as the calls; UnreadableError for two different records of a batch.
    """
    run = load_own(path)
    if not any(result.kept for result in run.results):
        raise UnusableError("merge", path, "a file whose ranks have kept samples: this one has all")
    defaults = [f"{file}{FOLDER_ENDING}" for file in files_of_run(path)]
    sources = [Path(folder) for folder in folders or defaults]
    problems: list[str] = []
    kept = read_kept(sources, problems)
    run.problems += problems
    for member, results in run.all_runs():
        run_id = str(member.header.get("run_id"))
        for result in results:
            if result.kept:
                batches = kept.get((run_id, result.kept.case), {})
                ranks = list(result.members) or list(range(result.ranks))
                lacking = [rank for rank in ranks if not _has_all(batches.get(rank), result.kept)]
                if lacking:
                    raise _missing(run, result, lacking, sources, problems)
                for rank in ranks:
                    _check_lengths(result, result.kept, rank, batches[rank])
                _fill(result, result.kept, [batches[rank] for rank in ranks])
    return run


def _has_all(batches: Batches | None, kept: KeptBatches) -> bool:
    return {*kept.numbers} <= (batches or {}).keys()


def _check_lengths(result: CaseResult, kept: KeptBatches, rank: int, batches: Batches) -> None:
    """Raises UsageError unless each batch has a sample of each clock for each of its calls."""
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
                raise UsageError(
                    f"merge: samples of {result.case.describe()}",
                    f"{len(samples)} {which} in batch {number} of rank {rank}",
                    str(count),
                    "Copy the file of the rank again.",
                )


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


def _missing(
    run: Run,
    result: CaseResult,
    ranks: Sequence[int],
    sources: Sequence[Path],
    problems: Sequence[str],
) -> UsageError:
    """problems: of the files of the ranks."""
    hosts = {rank: str(run.members[rank].get("host")) for rank in ranks if rank < len(run.members)}
    names = ", ".join(dict.fromkeys(hosts.values()))
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return UsageError(
        f"merge: samples of {result.case.describe()}",
        f"not all of rank {ranks[0]}{more} in {', '.join(map(str, sources))}",
        f"those of {counted(result.ranks, 'rank')}",
        problems[0]
        if problems
        else f"Copy the folder *{FOLDER_ENDING} of {names[:200]} to here, and name all folders.",
    )


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
