"""What ``torchcoll versus`` says: a line after every round, the tables, and its answer."""

from __future__ import annotations

import shlex
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.answer import Answer, worst_level
from torchcoll.core.errors import one_line
from torchcoll.core.units import (
    counted,
    format_duration,
    format_percent,
    format_ratio,
)
from torchcoll.parts.experiments.matrix_command import RunWatcher
from torchcoll.questions.comparison import wording
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.conclusion_show import counts_of
from torchcoll.questions.comparison.results import (
    beyond,
    resolution_text,
    speed_up,
    tables_of,
    titles_of,
)
from torchcoll.questions.comparison.show import case_grid, comparison_object, drift_lines
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Grid

if TYPE_CHECKING:
    from torchcoll.parts.experiments.blocks import PlannedRun
    from torchcoll.parts.experiments.folder import Folder
    from torchcoll.parts.experiments.versus import Repeat, Standing, Versus

SCHEMA = "torchcoll-versus/1"
_MOST_NAMED = 5
_TOLD = ("label=cell", "label=run")  # the name of the side, and the number of its run
_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.5)  # that are proposed


def round_text(state: Versus) -> str:
    """``round 4: 5 of 7 decided: 1K 4K same, 4M 16M slower; open: 64K 1.012x faster so far``."""
    names = state.titles[1:]
    several = len(names) > 1
    texts = [
        f"{f'{one_line(name)}: ' if several else ''}{_standing_text(standing)}"
        for name, standing in zip(names, state.standing, strict=True)
    ]
    return f"round {state.round}: {'. '.join(texts)}"


def _standing_text(standing: Standing) -> str:
    names = [
        " ".join(filter(None, [title, pair.size_text])) or pair.collective
        for pair, title in zip(standing.pairs, titles_of(standing.pairs), strict=True)
    ]
    rows = zip(names, standing.cases, strict=True)
    with_ratio = [(name, case) for name, case in rows if case.ratio]
    groups = []
    for result in ("same", "slower", "faster"):
        if of_result := [name for name, case in with_ratio if case.result == result]:
            groups.append(f"{_listed(of_result, ' ')} {result}")
    still_open = [
        f"{name} {wording.change_text(speed_up(case.ratio.ratio, False))}"
        for name, case in with_ratio
        if case.result == "inconclusive" and case.ratio
    ]
    text = f"{len(with_ratio) - len(still_open)} of {len(with_ratio)} decided"
    text += f": {', '.join(groups)}" if groups else ""
    return text + (f"; open, so far: {_listed(still_open, ', ')}" if still_open else "")


def _listed(names: Sequence[str], between: str) -> str:
    if len(names) <= _MOST_NAMED:
        return between.join(names)
    return f"{between.join([*names[: _MOST_NAMED - 1], '...', names[-1]])} ({len(names)})"


class Live(RunWatcher):
    """Progress on stderr, with a line for each round and each repeat."""

    tells_each_run = False

    def __init__(self, state: Versus, folder: Folder, quiet: bool) -> None:
        super().__init__(state.plan, folder, quiet, state.most * len(state.plan.cells))
        self._state = state
        names = " and ".join(one_line(name) for name in state.titles)
        self.note(f"{names} in turn, at most {state.most} runs of each, into {folder.path}")
        for _ in state.news():  # of the runs that were there
            pass

    def began(self, job: PlannedRun) -> None:
        self._tell_news()
        super().began(job)

    def close(self) -> None:
        self._tell_news()
        super().close()

    def _tell_news(self) -> None:
        for event in self._state.news():
            self.note(repeat_text(event) if event else round_text(self._state))


def repeat_text(repeat: Repeat) -> str:
    return (
        f"{repeat.job.title} is an outlier, {format_ratio(repeat.factor)} times as long as the "
        "others: it is kept, excluded and repeated"
    )


def answer(state: Versus, comparisons: Sequence[Comparison], folder: str) -> Answer:
    """The answers of all comparisons, and what would decide the inconclusive cases."""
    answers = [comparison.answer for comparison in comparisons]
    results = {row.result for each in comparisons for row in each.rows if row.matched}
    merged = answers[0]
    if len(answers) > 1:
        merged = Answer(
            ". ".join(each.headline for each in answers),
            worst_level(*(each.level for each in answers)),
            worst=tuple(name for each in answers for name in each.worst),
            details=tuple(dict.fromkeys(text for each in answers for text in each.details)),
        )
    ends = [f"not ended: {counted(state.round, 'round')} so far"] if not state.stopped else []
    return replace(
        merged,
        counts=counts_of(comparisons),
        details=(*ends, *merged.details),
        next_step=_next_step(state, comparisons, folder) if "inconclusive" in results else "",
    )


def _next_step(state: Versus, comparisons: Sequence[Comparison], folder: str) -> str:
    """What would decide the inconclusive cases, and what it costs."""
    number, decides = state.runs_on(comparisons)
    undecided = [row for each in comparisons for row in each.rows if row.result == "inconclusive"]
    change = max((row.judged.resolution or 0.0 for row in undecided), default=0.0)
    threshold = comparisons[0].threshold
    doubt = f"the difference is too near the threshold of {format_percent(threshold)} to decide"
    if change > threshold:
        doubt = resolution_text(change)
    if number is None:
        if change <= threshold:
            return f"start again with a larger --threshold: {doubt}"
        larger = next((each for each in _THRESHOLDS if each >= change), None)
        start = f", or start again with --threshold {format_percent(larger)}" if larger else ""
        return f"{wording.QUIETER}{start.replace(' %', '%')}; at this noise {doubt}"
    more = "" if decides else f", which decides some cases: at this noise {doubt}"
    ratios = [row.judged.ratio for row in undecided if row.judged.ratio]
    may_be_same = any(not beyond(ratio, threshold) for ratio in ratios)
    if number > state.same_most and may_be_same:  # which --resume would never find
        return f"start again in a new folder with --runs {number}{_cost(state, number)}{more}"
    runs = f" --runs {number}" if number > state.most else ""
    runs += _cost(state, number - state.round)
    return f"torchcoll versus --resume {shlex.quote(folder)}{runs}{more}"


def _cost(state: Versus, rounds: int) -> str:
    """`` (12 rounds, about 8 min)``, by the runs so far; '' without a number or a time."""
    times = [
        [float((r.end or {}).get("wall_s") or 0) for r in c.runs] for c in state.cells.values()
    ]
    seconds = rounds * sum(sum(of_cell) / max(1, len(of_cell)) for of_cell in times)
    return f" ({counted(rounds, 'round')}, about {format_duration(seconds)})" if seconds > 0 else ""


def show_versus(
    state: Versus,
    comparisons: Sequence[Comparison],
    folder: str,
    ended: str,
    format: str = "table",
    file: TextIO | None = None,
) -> None:
    """Print the results of the last look. ended: why it was the last one; '' if it was not.

    Raises UsageError for an unknown format.
    """
    grids = versus_grids(state, comparisons, folder, ended)
    grids[-1].answer = answer(state, comparisons, folder)
    document = _object(state, comparisons, folder, ended)
    print_results([Forms(grids, document, _records(comparisons))], format, file)


def versus_grids(
    state: Versus, comparisons: Sequence[Comparison], folder: str, ended: str
) -> list[Grid]:
    varied = {f"label={name}" for cell in state.plan.cells for name in cell.settings}
    grids = [grid for comparison in comparisons for grid in _grids(comparison, varied)]
    return [*grids, Grid([], [], below=_below(state, comparisons, folder, ended))]


def _grids(comparison: Comparison, varied: Set[str]) -> list[Grid]:
    """varied: labels of the settings that name the sides."""
    rows = [row for row in comparison.rows if row.matched]
    tables = tables_of(rows)
    titles = titles_of([table[0].pair for table in tables])
    notes: dict[str, int] = {}
    grids = [
        case_grid(comparison, t, title, notes) for t, title in zip(tables, titles, strict=True)
    ]
    base, new = comparison.side_names
    above = [
        f"base: {base}; new: {new}; time: {comparison.reading}",
        "speed-up: how many times as fast the new side is",
    ]
    differ = [one_line(str(d)) for d in comparison.differences if d.name not in {*_TOLD, *varied}]
    above += [f"differences: {'; '.join(differ)}"] if differ else []
    below = [f"[{number}] {text}" for text, number in notes.items()] + drift_lines(comparison)
    alone = sum(not row.matched for row in comparison.rows)
    below += [f"{counted(alone, 'case')} on one side only"] if alone else []
    below += [one_line(note) for note in comparison.notes]
    return [Grid([], [], above=above), *grids, Grid([], [], below=below)]


def _below(state: Versus, comparisons: Sequence[Comparison], folder: str, ended: str) -> list[str]:
    rounds = f"{counted(state.round, 'round')} ({_runs_text(state)})"
    number, _ = state.runs_on(comparisons)
    needs = [f"beyond the original {state.same_most} runs of each, `same` is no longer reported"]
    return [
        *(needs if number and number > state.same_most else []),
        (f"ended after {rounds}: {ended}" if ended else f"{rounds} so far: it has not ended"),
        f"results, logs and manifest: {folder}",
    ]


def _runs_text(state: Versus) -> str:
    counts = zip(state.titles, state.runs.values(), strict=True)
    return ", ".join(f"{number} of {one_line(title)}" for title, number in counts)


def _object(
    state: Versus, comparisons: Sequence[Comparison], folder: str, ended: str
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "ended": ended,
        "rounds": state.round,
        "runs": state.runs,
        "folder": folder,
        "comparisons": [comparison_object(comparison) for comparison in comparisons],
    }


def _records(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {"base_name": comparison.base.name, "new_name": comparison.new.name, **row}
        | {"notes": "; ".join(row["notes"])}
        for comparison in comparisons
        for row in comparison_object(comparison)["rows"]
    ]
