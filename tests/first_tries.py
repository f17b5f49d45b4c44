"""Judges ``torchcoll FILE`` by the inputs of tests/reading/threads and their right answers.

Each line of ``truth.jsonl`` has the file, its origin, and the answer: the command, and of results
the number of runs and cases, the collective, ranks and wrong results of the first run; of pairs
their number; and what the answer says.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from torchcoll.cli import main
from torchcoll.core.errors import TorchcollError
from torchcoll.core.result import Run
from torchcoll.reading.inputs import expand, load_all

THREADS = Path(__file__).parent / "reading" / "threads"
ANSWERED = "answered by: torchcoll "


def read_truth() -> list[dict[str, Any]]:
    lines = (THREADS / "truth.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def answer(path: Path) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of ``torchcoll PATH``."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(path)])
    return code, out.getvalue(), err.getvalue()


def _failed(run: Run) -> bool:
    """Whether a run has wrong results, or its tool says that it failed."""
    ends_badly = bool(run.end and run.end.get("status") == "failed")
    return ends_badly or any(result.status == "wrong" for result in run.results)


def differences(truth: dict[str, Any]) -> tuple[list[str], bool]:
    """(what is not as it should be, whether a wrong figure is among it)."""
    path = THREADS / truth["file"]
    _, out, err = answer(path)
    commands = [
        line.removeprefix(ANSWERED).split()[0]
        for line in out.splitlines()
        if line.startswith(ANSWERED)
    ]
    found = []
    expected = [truth["command"], *truth.get("also", "").split()]
    if commands[: len(expected)] != expected:
        found.append(f"answered by {commands}, expected {expected}: {err.strip()[:300]}")
    if truth["says"] not in " ".join(out.split()):
        found.append(f"does not say {truth['says']!r}: {out[:200]!r}")
    wrong = False
    try:
        runs = load_all(expand(path)) if {"cases", "pairs"} & set(truth) else []
    except TorchcollError as error:
        return [*found, error.line()], False
    if "cases" in truth:
        figures = {
            "runs": len(runs),
            "cases": sum(len(run.results) for run in runs),
            "collective": runs[0].results[0].case.collective,
            "ranks": runs[0].ranks,
            "wrong": int(any(map(_failed, runs))),
        }
        for name, value in figures.items():
            if value != truth[name]:
                found.append(f"{name}: {value}, expected {truth[name]}")
                wrong = wrong or (name not in ("runs", "cases") and bool(value))
    if "pairs" in truth:
        groups = {result.case.group for run in runs for result in run.results}
        if len(groups) != truth["pairs"]:
            found.append(f"pairs: {len(groups)}, expected {truth['pairs']}")
    return found, wrong
