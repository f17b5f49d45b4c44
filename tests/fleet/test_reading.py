"""A store gives the same Summaries as the files that were collected into it."""

import json
from pathlib import Path

import made_runs
import numpy as np
import pytest
from made_stores import described, made_files, made_run

import torchcoll
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.collect import collect
from torchcoll.parts.fleet.read import summaries_of_store
from torchcoll.parts.fleet.records import summarise_run
from torchcoll.parts.fleet.sources import summaries_of
from torchcoll.parts.fleet.writer import StoreWriter, storable

RESULTS = Path(__file__).resolve().parents[2] / "results"
DAY_US = 86_400_000_000
NEW_YEAR_US = 1_767_225_600_000_000  # 2026-01-01


def test_results_of_the_repository(store):
    folders = [str(path) for path in sorted(RESULTS.iterdir()) if any(path.glob("*.jsonl*"))]
    assert len(folders) >= 4
    collected = collect(folders, parse_address(store, new=True))
    assert collected.unreadable == []
    from_files = summaries_of(folders)
    assert described(summaries_of([store])) == described(from_files)
    assert collected.counts["runs"] == len(from_files) > 10
    assert collected.counts["cases"] == len(from_files.run) > 500


def test_made_runs(store, tmp_path):
    """Runs that failed, that were cut, without a start, with a case measured twice."""
    files = made_files(tmp_path / "runs", 10)
    odd = tmp_path / "odd"
    odd.mkdir()
    twice = [made_runs.measured(ns, size_bytes=64) for ns in (70, 90)]
    failed = made_runs.measured(1, size_bytes=8, status="timeout", reason="it hung", time_ns={})
    torchcoll.save(made_runs.run(*twice, failed, header={"run_id": "twice"}), odd / "twice.jsonl")
    header = {"run_id": "dateless", "start_utc": None}
    torchcoll.save(made_runs.run(*twice[:1], header=header), odd / "dateless.jsonl")
    text = Path(files[0]).read_text().splitlines(keepends=True)
    (odd / "cut.jsonl").write_text("".join(text[:-1]).replace("run-0", "cut"))
    arguments = [str(tmp_path / "runs"), str(odd)]
    collect(arguments, parse_address(store, new=True))
    assert described(summaries_of([store])) == described(summaries_of(arguments))
    (cases,) = [run[-1] for run in described(summaries_of([store])) if run[0] == "twice"]
    assert sorted(time for _, time, _ in cases) == ["70.0", "90.0", "nan"]


def test_output_of_another_tool(store, tmp_path):
    table = "| size | time_us |\n|---|---|\n| 1024 | 5 |\n| 2048 | 7 |\n"
    (tmp_path / "table.md").write_text("all_reduce on 4 ranks\n\n" + table)
    log = str(RESULTS / "h200-8gpu-kernels")
    collect([f"node=n7={log}"], parse_address(store, new=True))
    from_files = summaries_of([f"node=n7={log}"])
    assert described(summaries_of([store])) == described(from_files)


def test_a_period(store, tmp_path):
    collect(made_files(tmp_path / "runs", 10), parse_address(store, new=True))
    since, until = NEW_YEAR_US + 3 * DAY_US, NEW_YEAR_US + 5 * DAY_US
    chosen = summaries_of_store(parse_address(store), since, until)
    assert chosen.run_ids == ["run-3", "run-4"]
    assert len(chosen.run) == 6


def test_a_store_is_read_alone(store, tmp_path):
    files = made_files(tmp_path / "runs", 2)
    collect(files, parse_address(store, new=True))
    with pytest.raises(UsageError, match="got 2 with a store, expected the store alone"):
        summaries_of([store, files[0]])


def test_environments_are_shared(store, tmp_path):
    collect(made_files(tmp_path / "runs", 10), parse_address(store, new=True))
    summaries = summaries_of([store])
    # Four kernels, of three runs each and of one; the label rack, but not the node's name.
    assert len(summaries.environments) == 4
    assert np.bincount(summaries.environment).tolist() == [3, 3, 3, 1]
    assert all(each["label=rack"] == "r1" for each in summaries.environments)
    assert not any("label=node" in each for each in summaries.environments)


HOSTILE = "'; DROP TABLE runs; -- \0 \x1b[31m \u202e <b>&\"\\ \ud800"


def test_hostile_texts(store):
    """They are kept as they are, but for NUL and a lone surrogate, which no database holds."""
    run = made_run(1, labels={"node": HOSTILE, HOSTILE: HOSTILE}, device_name=HOSTILE)
    StoreWriter(parse_address(store, new=True)).write([storable(*summarise_run(run))])
    summaries = summaries_of([store])
    kept = HOSTILE.replace("\0", "\\0").replace("\ud800", "\\ud800")
    assert list(summaries.nodes) == [kept]
    (facts,) = summaries.environments
    assert facts[f"label={kept}"] == kept
    assert json.loads(json.dumps(facts)) == facts


def test_an_empty_store(store):
    StoreWriter(parse_address(store, new=True))
    with pytest.raises(UnreadableError, match="runs: got none"):
        summaries_of([store])
