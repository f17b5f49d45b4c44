"""Good runs as the baseline of ``torchcoll check``, of a file, a folder, a glob or a store."""

from __future__ import annotations

import argparse
import glob
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchcoll.core.opening import open_to_read
from torchcoll.core.result import Run
from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_ns, format_percent, plural, shorten
from torchcoll.parts.fleet.address import is_store
from torchcoll.questions.check.limits import CANNOT_TELL, FAIL, PASS, WARN, Phrase
from torchcoll.stats.power import ACT_ON_ALL

if TYPE_CHECKING:
    from torchcoll.parts.fleet.baseline_file import BaselineSource, JudgedByGoodRuns
    from torchcoll.parts.fleet.good_runs import CaseDeviation

_NAMED = 3  # slow cases
_FIRST_BYTES = 4096


@dataclass(frozen=True)
class CheckedRun:
    """A run judged by good runs, for ``check``."""

    judged: JudgedByGoodRuns
    name: str

    def phrases(self) -> list[Phrase]:
        return good_runs_phrases(self.judged, self.name)

    def deviations(self, run: Run, rows: Sequence[Row]) -> dict[int, float]:
        from torchcoll.parts.fleet.baseline_file import share
        from torchcoll.parts.fleet.records import CaseKey

        effects = {case.key: case.effect for case in self.judged.judged.cases}
        keys = [CaseKey.of(result, row) for result, row in zip(run.results, rows, strict=True)]
        return {
            id(row): share(effects[key])
            for key, row in zip(keys, rows, strict=True)
            if key in effects
        }

    @property
    def next_step(self) -> str:
        from torchcoll.parts.fleet import good_runs

        judged = self.judged.judged
        if judged.state != good_runs.DOUBTED:
            return ""
        if judged.cases_that_are(good_runs.DOUBTED):
            return "run it again: a real slowdown stays"
        if 2 * len(judged.cases_that_are(good_runs.TOO_NOISY)) > len(judged.cases):
            return (
                "measure on a quieter machine (torchcoll doctor names what is busy), or give more "
                "time to each case (--max-time)"
            )
        return f"collect more good runs than {len(judged.baseline.run_ids)}"

    def notable_cases(self) -> list[tuple[str, str, str, str, str]]:
        from torchcoll.parts.fleet import good_runs
        from torchcoll.parts.fleet.change_text import slower

        return [
            (name, format_ns(case.time_ns), format_ns(case.usual_ns), slower(case.effect), state)
            for name, case in zip(self.judged.names, self.judged.judged.cases, strict=True)
            if (state := case.state) != good_runs.AS_USUAL
        ]

    def to_json(self) -> dict[str, Any]:
        return self.judged.to_json()


@dataclass(frozen=True)
class CheckBaseline:
    """Good runs that judge the runs of ``check``."""

    source: BaselineSource

    def judge(self, run: Run) -> CheckedRun:
        return CheckedRun(self.source.judge(run), self.source.name)


def good_runs(path: str) -> CheckBaseline | None:
    """The good runs of a path; None for any other file, which is one run. Raises UnreadableError
    and UsageError as BaselineSource.read.
    """
    several = path.endswith(".toml") or os.path.isdir(path) or is_store(path)
    if not several and (os.path.exists(path) or not glob.has_magic(path)):
        return None
    from torchcoll.parts.fleet.baseline_file import BaselineSource

    return CheckBaseline(BaselineSource.read(path))


def baseline_in_rules(options: argparse.Namespace) -> None:
    """``check --rules FILE``: a file that torchcoll baseline wrote is a baseline."""
    if not options.baseline and len(options.rules) == 1 and _is_baseline_file(options.rules[0]):
        options.baseline = options.rules.pop()


def _is_baseline_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that torchcoll baseline wrote it."""
    try:
        with open_to_read(path) as file:
            return b"\ntorchcoll_baseline = " in file.read(_FIRST_BYTES)
    except OSError:
        return False


def good_runs_phrases(judged_run: JudgedByGoodRuns, name: str) -> list[Phrase]:
    """name: of the file, folder or store."""
    judged = judged_run.judged
    facts = []
    if judged_run.differences:
        facts.append(f"not as in the baseline: {', '.join(judged_run.differences)}")
    if judged.missing:
        of = judged.missing + len(judged.cases)
        facts.append(
            f"{judged.missing} of the baseline's {counted(of, 'case')} not judged: "
            "the run has no time of them"
        )
    if judged_run.further:
        facts.append(f"{counted(judged_run.further, 'case')} of this run not in the baseline")
    if judged_run.left_out:
        facts.append(f"{counted(judged_run.left_out, 'run')} of {name} left out of the baseline")
    facts += judged_run.notes
    if judged_run.member:
        facts.append("this run is one of the baseline's own")
    return [_phrase(judged_run), *(Phrase("", fact) for fact in facts)]


def _phrase(judged_run: JudgedByGoodRuns) -> Phrase:
    from torchcoll.parts.fleet import good_runs
    from torchcoll.parts.fleet.baseline_file import good_runs_text
    from torchcoll.parts.fleet.baseline_show import detectable_text
    from torchcoll.parts.fleet.change_text import percent, slower

    judged = judged_run.judged
    limits, count, runs = judged.limits, len(judged.cases), good_runs_text(judged)
    over_all = f"{counted(count, 'case')}" if count == 1 else f"all {count} cases"
    mean = f"{slower(judged.effect)} over {over_all} than {runs}"

    def named(state: str) -> str:
        texts = [
            f"{case_name} {slower(case.effect)} ({format_ns(case.time_ns)}, usually "
            f"{format_ns(case.usual_ns)})"
            for case, case_name in zip(judged.cases, judged_run.names, strict=True)
            if case.state == state
        ]
        return shorten(texts, _NAMED, " and {} more")

    slow, doubted, probable = (
        named(state) for state in (good_runs.SLOW, good_runs.DOUBTED, good_runs.PROBABLY_SLOW)
    )
    noisy = judged.cases_that_are(good_runs.TOO_NOISY)
    noise = ""
    if noisy:
        spreads = sorted(_spreads(judged_run, noisy))
        noise = (
            f"{len(noisy)} of {counted(count, 'case')} {plural(len(noisy), 'varies', 'vary')} by "
            f"{percent_range(spreads)} from run to run, which hides a case 1.5x slower"
        )
    if judged.slow_overall:
        most = f"; most in {judged_run.names[0]}, {slower(judged.cases[0].effect)}"
        text = f"{mean} (healthy below {percent(limits.run_limit)})"
        return Phrase(FAIL, text + most)
    if slow:
        return Phrase(FAIL, f"{slow}; {mean}")
    if judged.state == good_runs.DOUBTED:
        texts = [doubted] if doubted else []
        texts += [noise] if noise else []
        if limits.run_detectable > math.log1p(ACT_ON_ALL) and not doubted:
            detectable = percent(limits.run_detectable)
            texts.append(f"over {over_all} only a slowdown of {detectable} would be found")
        return Phrase(CANNOT_TELL, "; ".join([*texts, mean]))
    if judged.state == good_runs.PROBABLY_SLOW:
        texts = [f"probably slower: {probable}"] if probable else []
        if judged.effect > limits.run_named and not probable:
            texts.append(f"probably slower over {over_all}")
        texts += [noise] if noise else []
        return Phrase(WARN, "; ".join([*texts, mean]))
    detectable = f"a run that is {detectable_text(limits)}, would have been found"
    false_alarms = format_percent(judged.baseline.false_alarms)
    return Phrase(PASS, f"as usual: {mean}; {detectable} (false alarms {false_alarms} per run)")


def _spreads(judged_run: JudgedByGoodRuns, cases: Sequence[CaseDeviation]) -> list[float]:
    """How much these cases vary from run to run, as shares of their time."""
    spreads = {case.key: case.spread for case in judged_run.judged.baseline.cases}
    return [spreads[case.key] for case in cases]


def percent_range(shares: Sequence[float]) -> str:
    """``12 to 49 %`` of ascending shares, ``12 %`` where both ends are the same."""
    low, high = (f"{100 * shares[end]:.0f}" for end in (0, -1))
    return f"{low} to {high} %" if low != high else f"{high} %"
