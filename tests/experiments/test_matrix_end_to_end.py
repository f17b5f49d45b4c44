"""A real matrix: runs that measure, and a library that is really preloaded."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from torchcoll import load
from torchcoll.cli import main


def a_library():
    """Any that this process has: it is copied under the name of one that communicates."""
    with open("/proc/self/maps") as maps:
        paths = (line.split()[-1] for line in maps)
        return next((p for p in paths if os.path.basename(p).startswith("libm.so")), None)


def test_two_libraries(in_tmp_path, monkeypatch, capfd):
    library = a_library()
    if library is None:
        pytest.skip("Python has no libm.so mapped")
    paths = [in_tmp_path / folder / "libucc.so.1" for folder in ("old", "new")]
    for path in paths:
        path.parent.mkdir()
        shutil.copy(library, path)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    axis = f"library={paths[0]},{paths[1]}"
    command = [sys.executable, "-m", "torchcoll.allreduce", "--sizes", "{size}", "-n", "2"]
    command += ["--backend", "gloo", "--cold", "1"]
    options = ["--axis", axis, "--axis", "size=8\\,1K", "--env", "OMP_NUM_THREADS=1"]
    code = main(["matrix", *options, "--runs", "1", "-o", "D", "--", *command])
    out, err = capfd.readouterr()
    lines = Path("D/manifest.jsonl").read_text().splitlines()[1:]
    records = [json.loads(line) for line in lines]
    assert code == 0, err
    assert sorted((r["cell"], r["run"], r["status"]) for r in records) == [
        ("new-libucc.so.1", 1, "ok"),
        ("old-libucc.so.1", 1, "ok"),
    ]
    run = load("D/old-libucc.so.1-1.jsonl")
    assert run.complete and [result.case.size_bytes for result in run.results] == [8, 1024]
    assert run.labels["library"] == str(paths[0])
    assert run.environment["variables"]["OMP_NUM_THREADS"] == "1"
    assert run.environment["variables"]["LD_PRELOAD"] == str(paths[0])
    assert "1 rank (no communication)" in Path("D/logs/old-libucc.so.1-1.log").read_text()
    assert "1 of 1" in out
    assert re.search(r"old-libucc\.so\.1 +1 of 1 +\d+\.\d s$", out, re.MULTILINE)
    # One folder has the runs of all cells: what would make two sides of them.
    assert main(["compare", "D"]) == 2
    err = capfd.readouterr().err
    sides = shlex.split(err.partition("Name two of its 2 cells: torchcoll compare ")[2])
    assert main(["compare", *sides[:-1], sides[-1].removesuffix(".")]) == 0
    assert "new-libucc.so.1 (" in capfd.readouterr().out
