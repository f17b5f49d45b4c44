"""What is wrong with files reaches those who read CSV and JSON."""

import csv
import io
import json

import pytest
from made_runs import measured, run

from torchcoll.cli import main
from torchcoll.core.file import save

CUT = "truncated: the file has no end record"
NCCL = {"libraries": {"nccl": "nccl 2.27.5"}}


@pytest.fixture
def two_cut_files(tmp_path, monkeypatch):
    """A run with nothing forced and one with ring, each without its last line."""
    monkeypatch.chdir(tmp_path)
    for cell, variables in (("auto", {}), ("ring", {"NCCL_ALGO": "allreduce:ring"})):
        results = [
            measured(100_000, size_bytes=n, backend="nccl", device="cuda")
            for n in (1024, 2048, 4096)
        ]
        path = tmp_path / f"{cell}.jsonl"
        labels = {"cell": cell, "run": "1"}
        save(
            run(*results, labels=labels, variables=variables, rehearse=True, environment=NCCL), path
        )
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    return ["auto.jsonl", "ring.jsonl"]


@pytest.mark.parametrize("command", ["algorithms", "cold", "scaling", "curve"])
def test_cut_files_are_told_in_every_format(two_cut_files, capsys, command):
    warnings = [f"torchcoll: warning: {path}: {CUT}" for path in two_cut_files]
    assert main([command, *two_cut_files]) == 0
    out, err = capsys.readouterr()
    assert f"2 of 2 runs: {CUT}" in out
    assert err == ""  # it stands in the tables
    assert main([command, *two_cut_files, "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    list(csv.DictReader(io.StringIO(out), strict=True))
    assert CUT not in out
    rehearsals = "torchcoll: note: rehearsals: ranks shared a GPU, and no time means anything"
    assert err.splitlines()[:2] == warnings
    assert rehearsals in err.splitlines()
    assert main([command, *two_cut_files, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert f"2 of 2 runs: {CUT}" in json.loads(out)["notes"]
    assert err.splitlines() == warnings
