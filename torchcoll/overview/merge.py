"""``torchcoll merge``: the samples that ranks have kept on their own disks, in one result file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torchcoll.core.case import split_batch
from torchcoll.core.errors import UsageError
from torchcoll.core.file import files_of_run, load_own
from torchcoll.core.kept_samples import FOLDER_ENDING, Batches, read_kept
from torchcoll.core.result import CaseResult, KeptBatches, Run
from torchcoll.core.units import counted


def merge_kept(path: str, folders: Sequence[str] = ()) -> Run:
    """The run of a result file with all samples of its cases.

    folders: where the files of the ranks are; none is those beside the result file. Raises
    UsageError where the file lacks nothing, and for ranks whose samples are not there.
    """
    run = load_own(path)
    if not any(result.kept for result in run.results):
        raise UsageError("merge", path, "a file whose ranks have kept samples: this one has all")
    defaults = [f"{file}{FOLDER_ENDING}" for file in files_of_run(path)]
    sources = [Path(folder) for folder in folders or defaults]
    kept = read_kept(sources, run.problems)
    for member, results in run.all_runs():
        run_id = str(member.header.get("run_id"))
        for result in results:
            if result.kept:
                batches = kept.get((run_id, result.kept.case), {})
                ranks = list(result.members) or list(range(result.ranks))
                lacking = [rank for rank in ranks if not _has_all(batches.get(rank), result.kept)]
                if lacking:
                    raise _missing(run, result, lacking, sources)
                _fill(result, result.kept, [batches[rank] for rank in ranks])
    return run


def _has_all(batches: Batches | None, kept: KeptBatches) -> bool:
    return {*kept.numbers} <= (batches or {}).keys()


def _missing(
    run: Run, result: CaseResult, ranks: Sequence[int], sources: Sequence[Path]
) -> UsageError:
    hosts = {rank: str(run.members[rank].get("host")) for rank in ranks if rank < len(run.members)}
    names = ", ".join(dict.fromkeys(hosts.values()))
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return UsageError(
        f"merge: samples of {result.case.describe()}",
        f"not all of rank {ranks[0]}{more} in {', '.join(map(str, sources))}",
        f"those of {counted(result.ranks, 'rank')}",
        f"Copy the folder *{FOLDER_ENDING} of {names[:200]} to here, and name all folders.",
    )


def _fill(result: CaseResult, kept: KeptBatches, ranks: Sequence[Batches]) -> None:
    """Put the batches of all ranks in order. ranks: by rank of the case. The start of a batch that
    was kept is that of its first rank; the result file has those of rank 0.
    """
    for clock, matrix in result.time_ns.items():
        counts = [len(split_batch(size, result.calls_per_sample)) for size in result.batches]
        if matrix and len(matrix[0]) != sum(counts):
            counts = list(result.batches)
        result.time_ns[clock] = [
            _joined(row, counts, kept, {n: batch["time_ns"][clock] for n, batch in batches.items()})
            for row, batches in zip(matrix, ranks, strict=True)
        ]
    leads = max(map(len, result.ramp_up_ns), default=0) // len(result.batches)
    if leads:
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
