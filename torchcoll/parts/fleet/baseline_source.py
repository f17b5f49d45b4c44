"""Where the baseline of ``check`` comes from: a file of ``torchcoll baseline``, or the good runs of
a folder, a glob or a store.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.result import Run
from torchcoll.core.units import counted
from torchcoll.parts.fleet.baseline_file import read_baselines
from torchcoll.parts.fleet.baseline_runs import (
    Selection,
    machine_text,
    select_baselines,
    versions_of,
)
from torchcoll.parts.fleet.good_runs import CannotJudge, RunJudged, judge_new_run
from torchcoll.parts.fleet.node_report import case_names
from torchcoll.parts.fleet.records import OK, RunSummary, summarise_run
from torchcoll.parts.fleet.series import Summaries
from torchcoll.parts.fleet.sources import summaries_of


@dataclass(frozen=True)
class JudgedByGoodRuns:
    """A run judged by good runs, with the names of its cases, worst first.

    differences: versions that the run has and no run of the baseline, a clause each. left_out: how
    many runs of the folder or store are not in the baseline. notes: what makes it doubtful.
    further: cases of the run that the baseline lacks. member: whether the run is itself one of the
    baseline's.
    """

    judged: RunJudged
    names: tuple[str, ...]
    differences: tuple[str, ...]
    left_out: int
    notes: tuple[str, ...]
    further: int
    member: bool

    def to_json(self) -> dict[str, Any]:
        """Changes and limits as shares of the usual time, 0.08 for 8 % slower."""
        judged = self.judged
        return {
            "runs": len(judged.baseline.run_ids),
            "nodes": len(judged.baseline.nodes),
            "false_alarms": judged.baseline.false_alarms,
            "slower": share(judged.effect),
            "limit": share(judged.limits.run_limit),
            "detectable": share(judged.limits.run_detectable),
            "cases": [
                {
                    "name": name,
                    **case.key.to_row(),
                    "time_ns": case.time_ns,
                    "usual_ns": case.usual_ns,
                    "slower": share(case.effect),
                    "limit": share(case.limit),
                    "slow": case.slow,
                }
                for name, case in zip(self.names, judged.cases, strict=True)
            ],
        }


def share(effect: float) -> float:
    """A difference of log times as a share of the usual time, with 6 digits."""
    return float(f"{math.expm1(effect):.6g}")


@dataclass
class BaselineSource:
    """The baselines of a file, folder or store; ``judge`` judges one run by the one of its kind.

    A run that is itself in the folder or store is judged by the others.
    """

    name: str
    _selection: Selection | None = None
    _summaries: Summaries | None = None
    _run_ids: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> BaselineSource:
        """Raises UnreadableError for what cannot be read, UsageError for a file of another kind."""
        text = os.fspath(path)
        if text.endswith(".toml"):
            return cls(text, Selection(read_baselines(text)))
        summaries = summaries_of([text])
        return cls(text, None, summaries, frozenset(summaries.run_ids))

    def _selection_without(self, run_id: str) -> Selection:
        if self._summaries is not None and run_id in self._run_ids:
            return select_baselines(self._summaries, without=run_id)
        if self._selection is None:
            assert self._summaries is not None
            self._selection = select_baselines(self._summaries)
        return self._selection

    def judge(self, run: Run) -> JudgedByGoodRuns:
        """Raises UsageError if the good runs are too few, or none is of this run's kind of machine,
        node or cases.
        """
        summary, cases = summarise_run(run)
        selection = self._selection_without(summary.run_id)
        kind = (summary.device_name, summary.ranks)
        baseline = next((b for b in selection.baselines if (b.device_name, b.ranks) == kind), None)
        if baseline is None:
            available = "; ".join(machine_text(b.device_name, b.ranks) for b in selection.baselines)
            few = f" ({'; '.join(selection.too_few)})" if selection.too_few else ""
            raise UsageError(
                "baseline", f"{available}{few}", f"{machine_text(*kind)}, as this run has"
            )
        times = {case.key: case.time_ns for case in cases if case.status == OK and case.time_ns}
        try:
            judged = judge_new_run(baseline, summary.node, times)
        except CannotJudge as error:
            raise UsageError("baseline", one_line(error), error.expected) from None
        usual = {case.key for case in baseline.cases}
        return JudgedByGoodRuns(
            judged,
            tuple(case_names([case.key for case in judged.cases])),
            _differences(summary, judged),
            len(selection.left_out),
            selection.notes,
            len(set(times) - usual),
            summary.run_id in baseline.run_ids,
        )


def _differences(summary: RunSummary, judged: RunJudged) -> tuple[str, ...]:
    usual = judged.baseline.versions
    return tuple(
        f"{one_line(name)} {one_line(value)} (baseline: {one_line(', '.join(usual[name]))})"
        for name, value in versions_of(summary.facts).items()
        if name in usual and value not in usual[name]
    )


def good_runs_text(judged: RunJudged) -> str:
    """``24 good runs on 8 nodes``."""
    text = counted(len(judged.baseline.run_ids), "good run")
    return f"{text} on {counted(len(judged.baseline.nodes), 'node')}"
