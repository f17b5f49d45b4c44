"""Good runs as the baseline of ``torchcoll check``, of a file, a folder, a glob or a store."""

from __future__ import annotations

import argparse
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchcoll.core.opening import open_to_read
from torchcoll.core.result import Run
from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_ns, format_percent
from torchcoll.parts.fleet.address import is_store
from torchcoll.questions.check.limits import FAIL, PASS, Phrase

if TYPE_CHECKING:
    from torchcoll.parts.fleet.baseline_file import BaselineSource, JudgedByGoodRuns

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
    from torchcoll.parts.fleet.baseline_file import good_runs_text
    from torchcoll.parts.fleet.baseline_show import detectable_text
    from torchcoll.parts.fleet.fleet_show import percent, slower

    judged = judged_run.judged
    limits, count = judged.limits, len(judged.cases)
    runs = good_runs_text(judged)
    texts = [
        f"{case_name} {slower(case.effect)} ({format_ns(case.time_ns)}, usually "
        f"{format_ns(case.usual_ns)}, healthy below {percent(case.limit)} slower)"
        for case, case_name in zip(judged.cases, judged_run.names, strict=True)
    ]
    slow = len(judged.slow_cases)
    named = ", ".join(texts[: min(slow, _NAMED)])
    more = f" and {counted(slow - _NAMED, 'more case')}" if slow > _NAMED else ""
    over_all = f"{counted(count, 'case')}" if count == 1 else f"all {count} cases"
    if judged.slow_overall:
        text = (
            f"{slower(judged.effect)} than usual over {over_all} (healthy below "
            f"{percent(limits.run_limit)} slower; {runs})"
        )
        text += f"; {named}{more}" if slow else f"; most in {texts[0]}"
        phrase = Phrase(FAIL, text)
    elif slow:
        verb = "is" if slow == 1 else "are"
        text = f"{slow} of {counted(count, 'case')} {verb} slower than usual: {named}{more}; "
        phrase = Phrase(FAIL, f"{text}{slower(judged.effect)} over {over_all} ({runs})")
    else:
        slowdown = detectable_text(limits)
        false_alarms = format_percent(judged.baseline.false_alarms)
        phrase = Phrase(
            PASS,
            f"as usual: {slower(judged.effect)} over {over_all} than {runs}; a run that is "
            f"{slowdown}, is detected 9 times in 10 (false alarms {false_alarms} per run)",
        )
    facts = []
    if judged_run.differences:
        facts.append(f"not as in the baseline: {', '.join(judged_run.differences)}")
    if judged.missing:
        of = judged.missing + count
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
    return [phrase, *(Phrase("", fact) for fact in facts)]
