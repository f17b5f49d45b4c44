"""The commands of this project's runs in results/ can be run again: small sizes, real ranks.

Each command runs here once as the file and three times more as the new runs. The test shows that
the cases of the recipe match those of the file, and that every run makes the same number of calls.
It shows nothing about times: each look at the clock takes a microsecond, so times do not vary.
With the noise of a real clock the verdict has an error of 3.5 % by design, see
results/benchmarks/again-*.txt.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Measured, ticking

from torchcoll.core.file import load_own
from torchcoll.parts.experiments.agreement import LEAST_RUNS, agreement
from torchcoll.questions.show.recipe import on_this_machine, recipe_of
from torchcoll.stats.matching import pairs_of
from torchcoll.stats.sides import Side, reading_of

RESULTS = Path(__file__).parents[2] / "results"
OWN = ("gloo-2ranks/run.jsonl", "gloo-oneccl-2ranks/run-1.jsonl")
SMALL = ("-b", "1K", "-e", "1K", "-n", "20", "-c", "0")  # the last of an option counts


def exact(rank: int) -> None:
    ticking()


def verdict_here(folder: Path, words: list[str], collective: str | None) -> str:
    runs = [
        Measured(folder / f"run{number}", collective, " ".join(words), setup=exact).ended(0).run
        for number in range(1 + LEAST_RUNS)
    ]
    file, new = Side("file", runs[:1]), Side("new runs", runs[1:])
    reading = reading_of(file, new, None)
    pairs = pairs_of(file.measured("time", reading), new.measured("time", reading))
    return agreement(pairs, 0.10).verdict


@pytest.mark.parametrize("name", OWN)
def test_the_command_of_the_file_is_reproduced_here(name, tmp_path):
    recipe = on_this_machine(recipe_of(load_own(RESULTS / name)), ["gloo"], 0)
    assert recipe.ranks == 2
    words = [*recipe.arguments, *SMALL]
    collective = None if recipe.module == "suite" else "all_reduce"
    assert verdict_here(tmp_path, words, collective) == "reproduced"
