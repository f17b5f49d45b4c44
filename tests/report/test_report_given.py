"""Imported runs: figures of the source, shown as what they are."""

import json

import pytest
from handmade import case, result, run

from torchcoll.core.file import save
from torchcoll.core.result import CaseResult, Reported
from torchcoll.reading.inputs import load

pytestmark = pytest.mark.usefixtures("fixed_columns")

MIB = 1 << 20


def imported(**changed):
    asked = case(in_place=None, op=None, dtype=None, mode="unknown", backend="nccl", size_bytes=MIB)
    reported = {"time_ns": 100_000, "statistic": "mean", "over_ranks": "max", "clock": "host"}
    made = CaseResult(
        asked,
        "ok",
        changed.pop("ranks", 8),
        size_bytes=MIB,
        reported=Reported(**{**reported, **changed}),
    )
    launch = run(made, ranks=made.ranks)
    source = {"tool": "nccl-tests", "version": "2.19.6", "format": "text"}
    launch.header = {"ranks": made.ranks, "source": source}
    launch.members, launch.phases = [], {}
    return launch


def test_the_table_names_the_source_and_calls_a_mean_a_mean(shown):
    text = shown(imported())
    # 1M in 100 us, times 2 x 7/8.
    assert text.rpartition("\n\n")[2].startswith(
        "all_reduce on 8 nccl ranks takes 100 us and reaches 18.4 GB/s of busbw at 1M; "
        "NO REFERENCE "
    )
    lines = text.splitlines()
    assert lines[0] == "imported from nccl-tests 2.19.6 text: all_reduce"
    assert lines[1] == "backend: nccl; 8 ranks"
    assert (
        "time: mean over calls, max over ranks, as published (the source has no samples)" in lines
    )
    head = next(i for i, line in enumerate(lines) if line.lstrip().startswith("size"))
    assert lines[head].split() == ["size", "mean", "algbw", "busbw", "verified"]
    assert lines[head + 2].split() == ["1M", "100.0", "us", "10.486", "18.350", "unchecked"]


def test_pivot_says_what_the_figures_of_the_source_are(shown):
    first = imported(over_ranks="mean")
    first.events = [{"kind": "import", "message": "rows are missing"}]
    first.header["source"]["file"] = "a.out"
    second = imported(over_ranks="unknown")
    lines = shown(first, second, view="pivot:file", metric="time").splitlines()
    stated = "mean over calls, mean over ranks or mean over calls"
    assert lines[2].startswith(
        f"{stated} (imported figures: as their source has them); clock: host"
    )
    assert "aligned" not in lines[2]
    assert any(line.startswith("mean time by file") for line in lines)
    assert "a.out: import: rows are missing" in lines
    # Beside our own samples both readings are told.
    own = run(result(case=case(mode="back-to-back")), ranks=8)
    line = shown(first, own, view="pivot:file").splitlines()[2]
    assert line.startswith("period over calls, max over ranks or mean over calls, mean over ranks")
    own = run(result(case=case(mode="unknown")), ranks=8)
    line = shown(first, own, view="pivot:file").splitlines()[2]
    assert line.startswith("median over calls, max over ranks or mean over calls, mean over ranks")
    assert "ranks are not aligned: the maximum over ranks" in line


def test_unknown_ranks_are_said_and_leave_no_busbw(shown):
    text = shown(imported(ranks=0))
    assert "ranks: unknown" in text
    assert " ".join(text.split()).count("1M 100.0 us 10.486 - unchecked") == 1
    text = shown(imported(ranks=0), columns="all")
    assert "0 ranks" not in text


def test_given_figures_survive_the_file(tmp_path, shown):
    before = imported(p99_ns=2.5e5, algbw_gbps=10.49, calls=20, derived=False)
    save(before, tmp_path / "a.jsonl")
    after = load(tmp_path / "a.jsonl")
    assert after.results == before.results
    assert after.source["tool"] == "nccl-tests"
    rows = json.loads(shown(after, format="json"))["rows"]
    assert (rows[0]["statistic"], rows[0]["p99_ns"], rows[0]["in_place"]) == ("mean", 2.5e5, None)


def test_a_broken_given_is_a_problem_of_its_line(tmp_path):
    for broken in ({"time_ns": "1"}, {"time_ns": -1}, {"time_ns": 1, "clock": None}, {}, 3):
        path = tmp_path / "b.jsonl"
        path.unlink(missing_ok=True)
        save(imported(), path)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        records[1]["reported"] = broken
        for record in records:  # as by hand: no check sum that would refuse it
            del record["crc"]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        found = load(path)
        assert found.results == []
        assert found.problems[0].startswith(f"{path}:2: unusable record")
        assert "check sum" not in found.problems[0]
