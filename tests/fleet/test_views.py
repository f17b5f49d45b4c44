"""The views of a store: what they say of made runs."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from made_stores import (
    DAY_US,
    NOON_US,
    figures,
    key,
    made_files,
    made_run,
    rows,
    summary,
    write,
)
from sqlalchemy import text

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UnreadableError
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.collect import collect
from torchcoll.parts.fleet.connecting import Database
from torchcoll.parts.fleet.records import CaseSummary
from torchcoll.parts.fleet.schema import META
from torchcoll.parts.fleet.sources import summaries_of
from torchcoll.parts.fleet.writer import StoreWriter


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


@pytest.mark.postgres
def test_nights(postgres_store):
    """Four nodes, of which d is twice as slow in one of two cases; a has measured twice."""
    large = key(size_bytes=1 << 20)

    def cases(small_ns: float, large_ns: float) -> list[CaseSummary]:
        return [figures(small_ns), figures(large_ns, key=large)]

    wrong = figures(1.0, key=large, status="wrong", reason="3 elements wrong")
    failed = figures(None, key=large, status="failed", reason="timeout")
    write(
        postgres_store,
        (summary("a", 0), cases(90, 1000)),
        (summary("a", 0, 1), cases(110, 1000)),
        (summary("b", 0), cases(100, 1100)),
        (summary("c", 0, status="interrupted", facts={"nccl": "2.28"}), cases(120, 900)),
        (summary("d", 0), cases(100, 2000)),
        (summary("b", 1), [figures(100), wrong]),
        (summary("c", 1), [figures(300), failed]),
        # A run over two hosts, and one of other devices: no peers of these.
        (summary("", 0, ranks=4), [figures(5, key=key(4))]),
        (summary("x", 0, device_name="A100"), cases(7, 7)),
    )
    names = "night, node, runs, incomplete_runs, cases, wrong, failed, compared_cases, peers"
    nodes = rows(
        postgres_store,
        f"SELECT {names}, time_ratio, worst_time_ratio, worst_case_name FROM node_nights_v1 "
        "WHERE device_name = 'H200' ORDER BY night, node",
    )
    first, second = date(2026, 1, 1), date(2026, 1, 2)
    counts = [tuple(row[name] for name in names.split(", ")) for row in nodes]
    assert counts == [
        (first, "a", 2, 0, 4, 0, 0, 2, 3),
        (first, "b", 1, 0, 2, 0, 0, 2, 3),
        (first, "c", 1, 1, 2, 0, 0, 2, 3),
        (first, "d", 1, 0, 2, 0, 0, 2, 3),
        (second, "b", 1, 0, 2, 1, 0, 1, 1),
        (second, "c", 1, 0, 2, 0, 1, 1, 1),
    ]
    # Small: 100, 100, 120, 100 (median 100). Large: 1000, 1100, 900, 2000 (median 1050).
    ratios = {row["node"]: (row["time_ratio"], row["worst_time_ratio"]) for row in nodes[:4]}
    assert ratios["a"] == pytest.approx(((1 + 1000 / 1050) / 2, 1))
    assert ratios["c"] == pytest.approx(((1.2 + 900 / 1050) / 2, 1.2))
    assert ratios["d"] == pytest.approx(((1 + 2000 / 1050) / 2, 2000 / 1050))
    assert nodes[3]["worst_case_name"].startswith("all_reduce 1M float32 sum in place, 2 ranks")
    # The second night: 100 and 300, median 200.
    assert [row["time_ratio"] for row in nodes[4:]] == [0.5, 1.5]
    (alone,) = rows(postgres_store, "SELECT * FROM node_nights_v1 WHERE node = 'x'")
    assert (alone["time_ratio"], alone["worst_case_name"], alone["compared_cases"]) == (
        None,
        None,
        0,
    )

    cases_of = rows(
        postgres_store,
        "SELECT * FROM case_nights_v1 WHERE device_name = 'H200' ORDER BY night, ranks, size_bytes",
    )
    columns = ("nodes", "wrong", "failed", "time_ns_median", "time_ns_min", "time_ns_max")
    assert [(row["night"], *(row[name] for name in columns)) for row in cases_of] == [
        (first, 4, 0, 0, 100, 100, 120),
        (first, 4, 0, 0, 1050, 900, 2000),
        (first, 1, 0, 0, 5, 5, 5),
        (second, 2, 0, 0, 200, 100, 300),
        (second, 0, 1, 1, None, None, None),
    ]
    # busbw is 1000 / ns here, and a's median of two runs is of 1000/90 and 1000/110.
    of_a = (1000 / 90 + 1000 / 110) / 2
    assert cases_of[0]["busbw_gbps_median"] == 10
    assert cases_of[0]["busbw_gbps_max"] == pytest.approx(of_a)
    assert cases_of[0]["busbw_gbps_min"] == pytest.approx(1000 / 120)
    assert (cases_of[0]["first_call_ns_median"], cases_of[0]["first_call_ns_max"]) == (1000, 1200)
    assert cases_of[0]["night_utc"] == datetime(2026, 1, 1, 12, tzinfo=timezone.utc)

    environments = rows(
        postgres_store,
        "SELECT night, nodes, runs, facts FROM environment_nights_v1 "
        "WHERE device_name = 'H200' ORDER BY night, nodes",
    )
    assert [tuple(row.values()) for row in environments] == [
        (first, 1, 1, {"nccl": "2.28"}),
        (first, 4, 5, {"nccl": "2.27"}),
        (second, 2, 2, {"nccl": "2.27"}),
    ]


def nights_of(store: str) -> list[tuple[Any, ...]]:
    queries = (
        "SELECT night, device_name, case_sha256, nodes, time_ns_median FROM case_nights_v1",
        "SELECT night, node, runs, time_ratio FROM node_nights_v1",
        "SELECT night, nodes, runs, facts::text FROM environment_nights_v1",
    )
    return sorted(tuple(map(str, row.values())) for query in queries for row in rows(store, query))


@pytest.mark.postgres
def test_nights_follow_what_is_collected(postgres_url, postgres_store, tmp_path):
    """In whatever order runs come and are replaced: as in a store that never had others."""
    files = made_files(tmp_path / "runs", 40)
    address = parse_address(postgres_store, new=True)
    for part in (files[20:], files[:30], files[5:]):
        collect(part, address)
    moved = made_run(7, header={"run_id": "run-7", "start_utc": "2026-01-20T00:00:00Z"})
    Path(files[7]).unlink()
    torchcoll.save(moved, files[7])
    collect(files, address)  # the file of this run has changed: it began on another day
    everything = nights_of(postgres_store)
    assert len({row[0] for row in everything}) == 39  # run 7 is of the night of run 19
    fresh = f"{postgres_url}/fresh"
    import psycopg

    with psycopg.connect(f"{postgres_url}/postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE fresh")
    collect(files, parse_address(fresh, new=True))
    assert nights_of(fresh) == everything
    with Database(address).reading() as connection:
        assert connection.execute(text("SELECT count(*) FROM stale_nights")).scalar() == 0


@pytest.mark.postgres
def test_nights_after_a_prune(postgres_store):
    old = NOON_US - 1000 * DAY_US
    runs = [(summary("a", 0, n, start_us=old, received_us=old), [figures(9)]) for n in range(3)]
    write(postgres_store, *runs, (summary("a", 0, 9), [figures(9)]))
    assert len(rows(postgres_store, "SELECT 1 FROM case_nights_v1")) == 2
    assert main(["collect", "--into", postgres_store, "--prune", "900d"]) == 0
    assert [row["night"] for row in rows(postgres_store, "SELECT night FROM node_nights_v1")] == [
        date(2026, 1, 1)
    ]
    assert len(rows(postgres_store, "SELECT 1 FROM case_nights_v1")) == 1


@pytest.mark.postgres
def test_a_collect_that_ended_before_the_views_were_refreshed(postgres_store, tmp_path):
    address = parse_address(postgres_store, new=True)
    with StoreWriter(address) as writer:
        writer.write([(summary("a", 0), [figures(9)])])
    assert rows(postgres_store, "SELECT * FROM node_nights_v1") == []
    collect(made_files(tmp_path / "runs", 1), address)
    assert len(rows(postgres_store, "SELECT * FROM node_nights_v1")) == 2


def test_hostile_names(store):
    """Quotes, percent signs and colons are text wherever they come from."""
    name = "it's %s :night {x} \"--\n"
    run = summary(name, 0, device_name=name, labels={name: name}, facts={name: name})
    write(store, (run, [figures(9, reason=name)]))
    (row,) = rows(store, "SELECT * FROM cases_v1")
    assert (row["node"], row["device_name"], row["reason"]) == (name, name, name)
    assert of_json(row["labels"]) == {name: name}


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
