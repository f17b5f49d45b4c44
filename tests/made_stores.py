"""Result files and summaries made by hand for a store, and what a store holds, to be compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import made_runs
import numpy as np
from sqlalchemy import select, text

import torchcoll
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.records import CaseKey, CaseSummary, RunSummary
from torchcoll.parts.fleet.schema import CASE_KEYS, CASES, ENVIRONMENTS, FILES, RUNS
from torchcoll.parts.fleet.series import Summaries
from torchcoll.parts.fleet.writer import StoreWriter

SIZES = (1024, 4096, 16384)
DAY_US = 86_400_000_000
NOON_US = 1_767_268_800_000_000  # 2026-01-01T12:00:00Z: the first night begins


def made_run(number: int, sizes: tuple[int, ...] = SIZES, **changed: Any) -> torchcoll.Run:
    """Run ``number``, a day after the one before, on one of four nodes; its case of size S takes
    S + number ns.
    """
    cases = [made_runs.measured(size + number, size_bytes=size) for size in sizes]
    header = {
        "run_id": f"run-{number}",
        "start_utc": f"2026-{1 + number // 28:02}-{1 + number % 28:02}T00:00:00Z",
    }
    environment = {"kernel": f"6.{number // 3}"}
    labels = {"node": f"node{number % 4}", "rack": "r1"}
    defaults = {"header": header, "environment": environment, "labels": labels}
    return made_runs.run(*cases, **(defaults | changed))


def made_files(folder: Path, count: int) -> list[str]:
    folder.mkdir(exist_ok=True)
    paths = [str(folder / f"run-{number:03}.jsonl") for number in range(count)]
    for number, path in enumerate(paths):
        torchcoll.save(made_run(number), path)
    return paths


def dump(store: str) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in a store but ids and the time at which it was collected, in a fixed order."""
    kept = [column for column in RUNS.c if column.name not in ("id", "environment_id")]
    kept = [column for column in kept if column.name != "collected_us"]
    figures = [column for column in CASES.c if column.name not in ("run", "case_key")]
    queries = {
        "runs": select(*kept, ENVIRONMENTS.c.facts).join(ENVIRONMENTS),
        "cases": select(RUNS.c.run_id, CASE_KEYS.c.key, *figures)
        .select_from(CASES)
        .join(RUNS, CASES.c.run == RUNS.c.id)
        .join(CASE_KEYS, CASES.c.case_key == CASE_KEYS.c.id),
        "files": select(FILES),
    }
    with Database(parse_address(store)).reading() as connection:
        return {
            name: sorted((tuple(row) for row in connection.execute(query)), key=repr)
            for name, query in queries.items()
        }


def described(summaries: Summaries) -> list[Any]:
    """The runs by run_id, with all that the columns say of each: the order does not count."""
    runs = []
    for index, run_id in enumerate(summaries.run_ids):
        of_run = np.flatnonzero(summaries.run == index)
        cases = [
            (
                repr(summaries.keys[summaries.key[case]]),
                repr(float(summaries.time_ns[case])),
                int(summaries.status[case]),
            )
            for case in of_run
        ]
        runs.append(
            (
                run_id,
                summaries.paths[index],
                summaries.nodes[summaries.node[index]],
                sorted(summaries.environments[summaries.environment[index]].items()),
                tuple(summaries.strata[summaries.stratum[index]]),
                int(summaries.start_us[index]),
                int(summaries.received_us[index]),
                int(summaries.run_status[index]),
                sorted(cases),
            )
        )
    return sorted(runs)


def key(ranks: int = 2, **changed: Any) -> CaseKey:
    return CaseKey(made_runs.measured(1, **changed).case, ranks, "median", "host")


def summary(node: str, night: int, number: int = 0, **changed: Any) -> RunSummary:
    """A run of 8 hours after the night has begun."""
    start = NOON_US + night * DAY_US + 8 * 3_600_000_000
    values: dict[str, Any] = {
        "run_id": f"{node}-{night}-{number}",
        "path": "",
        "file_sha256": "",
        "node": node,
        "hosts": (node,),
        "ranks": 2,
        "device_name": "H200",
        "start_us": start,
        "received_us": start + 60_000_000,
        "status": "complete",
        "exit_code": 0,
        "wall_s": 1.0,
        "facts": {"nccl": "2.27"},
        "labels": {"rack": "r1"},
    }
    return RunSummary(**values | changed)


def figures(time_ns: float | None, **changed: Any) -> CaseSummary:
    values: dict[str, Any] = {
        "key": key(),
        "status": "ok",
        "time_ns": time_ns,
        "busbw_gbps": None if time_ns is None else 1000 / time_ns,
        "first_call_ns": None if time_ns is None else 10 * time_ns,
    }
    return CaseSummary(**values | changed)


def rows(store: str, query: str) -> list[Mapping[str, Any]]:
    with Database(parse_address(store)).reading() as connection:
        return [dict(row._mapping) for row in connection.execute(text(query))]


def write(store: str, *runs: tuple[RunSummary, list[CaseSummary]]) -> None:
    StoreWriter(parse_address(store, new=True)).write(runs)
