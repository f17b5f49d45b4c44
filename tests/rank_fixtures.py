from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Job, Measured

from torchcoll.bench import main, watchdog

Launch = Callable[..., Measured]


@pytest.fixture(autouse=True)
def no_torchrun_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_AFTER_RANK_0_S", 0.0)


@pytest.fixture
def less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks soon ask whether another saw trouble. How long they wait for its answer stays: one that
    lives gives it, and on a busy machine not in a fraction of a second.
    """
    monkeypatch.setattr(watchdog, "_QUIET_S", 0.3)


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
def launch(tmp_path: Path) -> Iterator[Launch]:
    """``run("all_reduce", "-n 2", 2)``: the command on so many ranks, with a result file."""
    started: list[Measured] = []

    def start(
        collective: str | None, arguments: str, ranks: int = 2, output: bool = True, **options: Any
    ) -> Measured:
        folder = tmp_path / f"run{len(started) + 1}"
        started.append(Measured(folder, collective, arguments, ranks, output, **options))
        return started[-1]

    yield start
    for measured in started:
        measured.job.kill()
