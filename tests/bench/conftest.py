from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Job, command

from torchcoll import load
from torchcoll.bench import main
from torchcoll.core.result import CaseResult, Run


class Measured:
    """A job of the command and the file that it writes."""

    def __init__(self, job: Job, path: Path) -> None:
        self.job = job
        self.path = path

    @property
    def run(self) -> Run:
        return load(self.path)

    def ended(self, codes: int | list[int], timeout_s: float = 60) -> Measured:
        """After the job, whose ranks all left with this exit code (or these)."""
        ended = self.job.wait(timeout_s)
        expected = [codes] * len(ended) if isinstance(codes, int) else codes
        told = "\n".join(e.stderr for e in ended.values())
        assert [e.code for e in ended.values()] == expected, told
        return self

    def stderr(self, rank: int = 0) -> str:
        return self.job.text(rank)

    def stdout(self, rank: int = 0) -> str:
        return self.job.text(rank, "stdout")

    def errors(self) -> list[str]:
        """The error lines of all ranks."""
        texts = [self.job.text(rank) for rank in self.job.pids]
        return [line for text in texts for line in text.splitlines() if "torchcoll: error" in line]

    def error_file(self, rank: int) -> dict[str, Any]:
        """What torchrun is told, where TORCHELASTIC_ERROR_FILE is error<RANK>.json."""
        data: dict[str, Any] = json.loads((self.job.folder / f"error{rank}.json").read_text())
        return data

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def only(self) -> CaseResult:
        (result,) = self.run.results
        return result


Launch = Callable[..., Measured]


@pytest.fixture(autouse=True)
def no_torchrun_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_AFTER_RANK_0_S", 0.0)


@pytest.fixture
def jobs() -> Iterator[Callable[..., Job]]:
    """Starts jobs; what still runs when the test ends is killed."""
    started: list[Job] = []

    def start(*args: Any, **options: Any) -> Job:
        started.append(Job(*args, **options))
        return started[-1]

    yield start
    for job in started:
        job.kill()


@pytest.fixture
def launch(jobs: Callable[..., Job], tmp_path: Path) -> Launch:
    """``launch("all_reduce", "-n 2", 2)``: the command on so many ranks, with a result file."""
    number = 0

    def start(
        collective: str | None, arguments: str, ranks: int = 2, output: bool = True, **options: Any
    ) -> Measured:
        nonlocal number
        number += 1
        path = tmp_path / f"run{number}.jsonl"
        words = f"{arguments} --output {path}" if output else arguments
        target = command(collective, words)
        return Measured(jobs(tmp_path / f"job{number}", target, ranks, **options), path)

    return start
