"""The Grafana dashboard: its queries, on a PostgreSQL server, against values worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import grafana
import psycopg
import pytest
from made_stores import figures, key, summary, write

BEGIN, END = "2026-01-01T00:00:00Z", "2026-01-31T00:00:00Z"
SMALL = "all_reduce 1K float32 sum in place, 2 ranks, gloo synchronized"
LARGE = "all_reduce 1M float32 sum in place, 2 ranks, gloo synchronized"
NIGHTS = [datetime(2026, 1, day, 12, tzinfo=timezone.utc) for day in (1, 2)]
STARTS = [night.replace(hour=20) for night in NIGHTS]
CHOSEN: dict[str, Any] = {"device": "H200", "case": [SMALL, LARGE], "node": "b", "fact": "nccl"}


@pytest.fixture
def ask(postgres_store: str) -> Callable[..., list[tuple[Any, ...]]]:
    """Three nodes in two nights of January, one night of March, and an A100.

    Small: 100 ns, 100 ns (b), 200 ns (c); large: 1000, 1100, 2000. busbw is 1000 / ns. In the
    second night b has a wrong result, c fails in one case and its run is cut.
    """
    large = key(size_bytes=1 << 20)

    def cases(small_ns: float, large_ns: float) -> list[Any]:
        return [figures(small_ns), figures(large_ns, key=large)]

    wrong = figures(1.0, key=large, status="wrong", reason="it's wrong")
    failed = figures(None, key=large, status="failed", reason="timeout")
    cut = {"status": "truncated", "exit_code": None, "path": "c.jsonl"}
    write(
        postgres_store,
        (summary("a", 0), cases(100, 1000)),
        (summary("b", 0), cases(100, 1100)),
        (summary("c", 0), cases(200, 2000)),
        (summary("a", 1, facts={"nccl": "2.28"}), cases(100, 1000)),
        (summary("b", 1, facts={}), [figures(100), wrong]),
        (summary("c", 1, **cut), [figures(300), failed]),
        (summary("b", 70), cases(1, 1)),
        (summary("x", 1, device_name="A100"), cases(7, 7)),
    )

    def query(name: str, **changed: Any) -> list[tuple[Any, ...]]:
        sql = grafana.expand(grafana.queries()[name], BEGIN, END, CHOSEN | changed)
        with psycopg.connect(postgres_store) as connection:
            return connection.execute(sql).fetchall()  # type: ignore[arg-type]

    return query


EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "variable device": [("A100",), ("H200",)],
    "variable case": [(LARGE,), (SMALL,)],
    "variable node": [("a",), ("b",), ("c",)],
    "variable fact": [("nccl",)],
    "Last night": [(NIGHTS[1], 3, 1, 1, 1)],
    "Bus bandwidth: median over nodes, slowest and fastest node": [
        (NIGHTS[0], SMALL, 10.0, 5.0, 10.0),
        (NIGHTS[0], LARGE, 1000 / 1100, 0.5, 1.0),
        (NIGHTS[1], SMALL, 10.0, 1000 / 300, 10.0),
        (NIGHTS[1], LARGE, 1.0, 1.0, 1.0),
    ],
    # Ten times the time of a call, in seconds.
    "First call: median over nodes and slowest node": [
        (NIGHTS[0], SMALL, 1e-6, 2e-6),
        (NIGHTS[0], LARGE, 11e-6, 20e-6),
        (NIGHTS[1], SMALL, 1e-6, 3e-6),
        (NIGHTS[1], LARGE, 10e-6, 10e-6),
    ],
    "Runs per version of ${fact}": [
        (NIGHTS[0], "2.27", 3),
        (NIGHTS[1], "2.27", 1),
        (NIGHTS[1], "2.28", 1),
        (NIGHTS[1], "not recorded", 1),
    ],
    "${node}: bus bandwidth, with the median of the fleet": [
        (STARTS[0], SMALL, 10.0),
        (STARTS[0], LARGE, 1000 / 1100),
        (STARTS[1], SMALL, 10.0),
    ],
    "${node}: bus bandwidth, with the median of the fleet, query B": [
        (NIGHTS[0], SMALL, 10.0),
        (NIGHTS[0], LARGE, 1000 / 1100),
        (NIGHTS[1], SMALL, 10.0),
        (NIGHTS[1], LARGE, 1.0),
    ],
    "Incomplete runs, wrong results and failed cases per night": [
        (NIGHTS[0], 0, 0, 0),
        (NIGHTS[1], 1, 1, 1),
    ],
    "Wrong results and failed cases": [
        (STARTS[1], "b", LARGE, "wrong", "it's wrong", "b-1-0", ""),
        (STARTS[1], "c", LARGE, "failed", "timeout", "c-1-0", "c.jsonl"),
    ],
    "Incomplete runs": [(STARTS[1], "c", "truncated", None, 1.0, "c-1-0", "c.jsonl")],
}


@pytest.mark.postgres
def test_each_query(ask):
    assert set(grafana.queries()) == set(EXPECTED)
    for name, expected in EXPECTED.items():
        rows = ask(name)
        assert len(rows) == len(expected), name
        for row, values in zip(rows, expected, strict=True):
            for value, right in zip(row, values, strict=True):
                near = pytest.approx(right) if isinstance(right, float) else right
                assert value == near, (name, row)


@pytest.mark.postgres
def test_names_that_are_not_there_or_hostile(ask):
    for hostile in ("it's", "'; DROP TABLE runs; --", "$1 %s :x"):
        changed = {"device": hostile, "case": [hostile], "node": hostile, "fact": hostile}
        for name in EXPECTED:
            if name == "Last night":  # a sum over nothing
                assert ask(name, **changed) == [(None, 0, 0, 0, 0)]
            elif name != "variable device":
                assert ask(name, **changed) == [], name
    assert ask("Last night")[0][1] == 3


def test_the_document():
    """What Grafana needs and a person does not see: ids, places that do not overlap, one source."""
    loaded = grafana.dashboard()
    panels = loaded["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = set()
    for panel in panels:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in places and x < 24
                places.add((x, y))
    variables = {each["name"]: each for each in loaded["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    source = {"type": "postgres", "uid": "${datasource}"}
    for panel in panels:
        assert panel.get("datasource", source) == source
        assert all(target["datasource"] == source for target in panel.get("targets", ()))
    for name, sql in grafana.queries().items():
        # Views alone: the tables below them may change with any version of the store.
        tables = set(re.findall(r"(?:FROM|JOIN) (\w+)", sql))
        assert tables and all(table.endswith("_v1") for table in tables), name
        assert set(re.findall(r"\$\{(\w+)", sql)) <= {*variables}, name
        assert "$__timeFilter(" in sql, name
    for panel in panels:
        for target in panel.get("targets", ()):
            ordered = re.search(r"ORDER BY 1\b", target["rawSql"])
            assert target["format"] == "table" or ordered, panel["title"]  # long to wide wants it
