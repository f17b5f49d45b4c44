"""How the answer of ``torchcoll bisect`` is displayed: one sentence, and a row for each version."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.answer import CANNOT_TELL, Answer
from torchcoll.core.errors import one_line
from torchcoll.core.units import counted, format_change, format_percent, shorten
from torchcoll.report.formats import Forms, print_results
from torchcoll.report.grid import Head, make_grid

if TYPE_CHECKING:
    from torchcoll.parts.experiments.version_search import VersionRuns

SCHEMA = "torchcoll-bisect/1"
_MOST_CASES = 3
_FEW_RUNS = 20  # a search that needs more runs is continued up to this number, at least
_WORDS = {"time": ("slower", "faster"), "first-call": ("slower to start", "faster to start")}


def answer_of(state: VersionRuns) -> Answer:
    """At which version it changed, by how much, and how sure; or why there is no such version."""
    names = [one_line(name) for name in state.names]
    posterior = state.posterior
    runs = counted(state.runs, "run")
    details = (
        *(
            f"skipped {one_line(state.plan.cells[version].version)}: {one_line(reason)}"
            for version, reason in sorted(state.skipped.items())
        ),
        *(text for version in state.faults for text in version.texts),
    )
    if state.stopped == "too few":
        return Answer("fewer than two versions start", "doubt", details=details)
    first, last = names[0], names[-1]
    if state.stopped == "none":
        limit = format_percent(state.threshold)
        text = f"no change above {limit} between {first} and {last} (95 %); {runs}"
        return Answer(text, "doubt" if state.faults else "good", details=details)
    if state.stopped == "step":
        before, after = posterior.best - 1, posterior.best
        difference = state.change(before, after)
        if state.metric == "wrong":
            what = "became wrong" if difference > 0 else "became correct"
        else:
            what = f"became {format_change(math.exp(difference), *_WORDS[state.metric])}"
        cases = " and ".join(map(one_line, state.cases))
        if len(state.cases) > _MOST_CASES:
            every = {case for of_version in state.figures for run in of_version for case in run}
            cases = f"{len(state.cases)} of {len(every)} cases"
        text = f"{cases} {what} between {names[before]} and {names[after]} (95 %); {runs}"
        return Answer(text, "bad", worst=(names[after],), details=details)
    if state.stopped == "several":
        if posterior.creep > posterior.two:
            what = f"it changes gradually from {first} to {last}"
        else:
            pair = [f"between {names[k - 1]} and {names[k]}" for k in posterior.pair]
            what = f"it changes more than once, about {' and '.join(pair)}"
        return Answer(f"no single version: {what}; {runs}", "doubt", details=details)
    more = f"make more runs (--runs {max(2 * state.most, _FEW_RUNS)})" if state.stopped else ""
    change = posterior.change_range
    if change is not None:
        between = f"between {names[change[0]]} and {names[change[1]]}"
        text = f"the change is {between} (95 %), at which version is not decided; {runs}"
        return Answer(text, "doubt", details=details, next_step=more)
    ends = (0, len(posterior.runs) - 1)
    verb, scope = f"differs from {first}", f"after {runs}"
    if state.metric != "wrong" and all(posterior.runs[end] for end in ends):
        factor = math.exp(state.change(*ends))
        verb = f"is {_WORDS[state.metric][factor < 1]} than {first}"
        scope = f": it looks {format_change(factor)}, but {runs} vary too much"
    return Answer(
        last,
        "doubt",
        details=details,
        verb=verb,
        scope=scope,
        certainty=CANNOT_TELL,
        next_step=more,
    )


def show_versions(state: VersionRuns, format: str, file: TextIO | None = None) -> None:
    """Print the answer and the versions that ran. Raises UsageError for an unknown format."""
    posterior = state.posterior
    reference = next((v for v in range(len(posterior.runs)) if posterior.runs[v]), 0)
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(state.names):
        runs = int(posterior.runs[number])
        ratio = wrong = None  # of a version that has not run
        if runs:
            mean = posterior.sums[number] / runs
            if state.metric == "wrong":
                wrong = float(mean)
            else:
                ratio = math.exp(mean - posterior.sums[reference] / posterior.runs[reference])
        rows.append(
            {
                "version": name,
                "runs": runs,
                "ratio": ratio,
                "wrong": wrong,
                "probability": float(posterior.step[number]),
            }
        )
    grid = make_grid(
        [
            (Head("version", left=True), lambda row: one_line(row["version"])),
            (Head("runs"), lambda row: str(row["runs"])),
            (
                Head("time", "of the first"),
                lambda row: "-" if row["ratio"] is None else f"{row['ratio']:.3f}",
            ),
            (
                Head("probability", "of a step here"),
                lambda row: f"{100 * row['probability']:.0f} %",
            ),
        ],
        rows,
    )
    grid.answer = answer_of(state)
    cases = shorten(list(map(one_line, state.cases)), _MOST_CASES)
    grid.below = [f"over {cases}", f"runs: {state.path}"]
    if state.stopped == "none":
        first = one_line(state.names[0])
        grid.below.append(f"if {first} is slow already, begin with an older version")
    if not state.stopped:
        grid.below.append("interrupted: the same command continues")
    low, high = posterior.range() if posterior.step.sum() > 0 else (0, 0)
    change: tuple[int, int] | None = (max(0, low - 1), high)
    if state.stopped in ("runs", ""):
        change = posterior.change_range
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "result": {"runs": "not decided"}.get(state.stopped, state.stopped),
        "range": None if change is None else [state.names[number] for number in change],
        "faults": {version.side: version.to_json() for version in state.faults},
        "cases": state.cases,
        "runs": state.runs,
        "rows": rows,
    }
    print_results([Forms([grid], document)], format, file)
