"""The views of a store: what they say of made runs."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from made_stores import (
    DAY_US,
    NOON_US,
    made_files,
    rows,
    summary,
    write,
)

from torchcoll.core.errors import UnreadableError
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.collect import collect
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.schema import META
from torchcoll.parts.fleet.sources import summaries_of


def of_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def test_runs_and_cases_of_both_databases(store, tmp_path):
    """Run 0 begins at 00:00 of January 1, in the night that began on December 31."""
    collect(made_files(tmp_path / "runs", 2), parse_address(store, new=True))
    first, second = rows(store, "SELECT * FROM runs_v1 ORDER BY run_id")
    assert (first["run_id"], first["node"], first["ranks"]) == ("run-0", "node0", 2)
    assert (first["device_name"], first["status"]) == ("Xeon", "complete")
    assert str(first["night"]) == "2025-12-31"
    assert str(second["night"]) == "2026-01-01"
    assert of_json(first["labels"]) == {"node": "node0", "rack": "r1"}
    assert of_json(first["facts"])["kernel"] == "6.0"
    start = first["start_utc"]
    if isinstance(start, str):
        assert start == "2026-01-01T00:00:00.000Z"
    else:
        assert start == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert first["time_utc"] == start
    cases = rows(store, "SELECT * FROM cases_v1 WHERE run_id = 'run-1' ORDER BY size_bytes")
    assert [case["time_ns"] for case in cases] == [1025, 4097, 16385]
    assert [case["case_name"] for case in cases] == [
        f"all_reduce {size} float32 sum in place, 2 ranks, gloo synchronized"
        for size in ("1K", "4K", "16K")
    ]
    # 2 ranks: busbw is algbw, 1024 bytes in 1025 ns.
    assert cases[0]["busbw_gbps"] == pytest.approx(1024 / 1025)
    assert cases[0]["first_call_ns"] == 3 * 1025
    assert {(case["status"], case["verified"], case["node"]) for case in cases} == {
        ("ok", "correct", "node1")
    }


def test_when_a_run_counts(store):
    """A start that is unknown, ahead of the receipt by more than 5 minutes, or in no calendar."""
    start = NOON_US + DAY_US
    write(
        store,
        (summary("a", 0, start_us=None, received_us=start), []),
        (summary("b", 0, start_us=start + 300_000_001, received_us=start), []),
        (summary("c", 0, start_us=start + 300_000_000, received_us=start), []),
        (summary("d", 0, start_us=(1 << 63) - 1, received_us=start - 1), []),
        (summary("e", 0, start_us=None, received_us=-(1 << 63)), []),
        (summary("f", 0, start_us=start, received_us=None), []),
    )
    nights = {row["node"]: row for row in rows(store, "SELECT * FROM runs_v1")}
    second = "2026-01-02"
    assert {node: str(row["night"]) for node, row in nights.items()} == {
        **{"a": second, "b": second, "c": second, "d": "2026-01-01", "e": "None", "f": second}
    }
    assert nights["a"]["start_utc"] is None
    assert nights["b"]["start_utc"] > nights["b"]["time_utc"]
    assert nights["c"]["start_utc"] == nights["c"]["time_utc"]
    assert nights["d"]["start_utc"] is None
    assert nights["e"]["time_utc"] is None


@pytest.mark.parametrize(
    ("version", "maker", "advice"),
    [
        (99, "99.0", "Use torchcoll 99.0 or newer."),
        (99, "0.1.0", "Use torchcoll newer than 0.1.0."),
        (1, "0.1.0", "Collect the result files into a new store."),
    ],
)
def test_a_store_of_another_version_is_refused(tmp_path, monkeypatch, version, maker, advice):
    """A build between releases may have made it, with the number of the one that reads."""
    monkeypatch.setattr("torchcoll.parts.fleet.schema.__version__", "0.1.0")
    path = str(tmp_path / "s.sqlite")
    collect(made_files(tmp_path / "runs", 1), parse_address(path, new=True))
    with Database(parse_address(path)).writing() as connection:
        connection.execute(META.update().values(version=version, torchcoll=maker))
    with pytest.raises(UnreadableError) as refused:
        summaries_of([path])
    assert str(refused.value).endswith(advice)
