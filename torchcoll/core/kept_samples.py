"""Samples that the ranks of a run keep in files of their own, because rank 0 would gather too many.

``RESULT.jsonl.samples/`` on the host of each rank has a file of JSON Lines for each rank: a header
with the run and the rank, then a record for each batch of calls that is not in the result file.
Reading the result file puts them into its cases (core/merged_samples.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnreadableError
from torchcoll.core.file import Writer
from torchcoll.core.jsonl import read_records
from torchcoll.core.result import check_lists, check_whole

SCHEMA = "torchcoll-samples/1"
FOLDER_ENDING = ".samples"  # RESULT.jsonl.samples is beside RESULT.jsonl
_WHAT = "file of kept samples"
Batches = dict[int, dict[str, Any]]  # of one rank in one case, by the number of the batch


class KeptSamples:
    """The file of one rank. Raises UsageError where it cannot be made, and where there is one."""

    def __init__(self, result: str, run_id: str, rank: int) -> None:
        folder = Path(f"{result}{FOLDER_ENDING}")
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
        """One batch of the current case. start: monotonic in ns, wall clock in us. Raises
        TorchcollError where the disk refuses it.
        """
        where = {
            "case": self.cases,
            "batch": batch,
            "start_ns": start[0],
            "start_wall_us": start[1],
        }
        self._writer.write("batch", {**where, "ramp_up_ns": list(ramp_up), "time_ns": clocks})

    def close(self) -> None:
        self._writer.close()


def read_kept(
    folders: Sequence[Path], problems: list[str]
) -> dict[tuple[str, int], dict[int, Batches]]:
    """{(run id, case): {rank: its batches}} of all files in ``folders``.

    problems: gets a line for each record that cannot be used. Raises UnreadableError for a file of
    another kind, and for two different records of a batch.
    """
    result: dict[tuple[str, int], dict[int, Batches]] = defaultdict(lambda: defaultdict(dict))
    for path in _files(folders):
        origin: dict[str, Any] = {}

        def header(data: dict[str, Any], origin: dict[str, Any] = origin) -> None:
            check_whole(data["rank"])
            origin |= {"run": str(data["run_id"]), "rank": data["rank"]}

        def take(
            record: str,
            data: dict[str, Any],
            line: bytes,
            origin: dict[str, Any] = origin,
            path: Path = path,
        ) -> None:
            check_whole(data["case"], data["batch"], data["start_ns"], data["start_wall_us"])
            check_lists(data["ramp_up_ns"], *data["time_ns"].values(), durations=True)
            batches = result[origin["run"], data["case"]][origin["rank"]]
            if batches.setdefault(data["batch"], data) != data:  # a copy is no harm
                raise UnreadableError(
                    f"{path}: batch {data['batch']} of case {data['case']}",
                    f"two different records of rank {origin['rank']}",
                    "samples of a batch once",
                    "Copy the files of the ranks again.",
                )

        read_records(path, problems, _WHAT, SCHEMA, header, take)
    return result


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(folder.glob("rank-*.jsonl"))
