"""Result files made by hand for a store, and what a store holds in a form that can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_runs
import numpy as np
from sqlalchemy import select

import torchcoll
from torchcoll.store.address import parse_address
from torchcoll.store.connecting import Database
from torchcoll.store.schema import CASE_KEYS, CASES, ENVIRONMENTS, FILES, RUNS
from torchcoll.store.series import Summaries

SIZES = (1024, 4096, 16384)


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
