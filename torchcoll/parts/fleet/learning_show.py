"""How ``check --learn`` displays what it wrote, and ``check --baseline`` what it judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.answer import Answer
from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.result import Run
from torchcoll.core.summary import Row
from torchcoll.core.units import (
    counted,
    format_factor,
    format_ns,
    format_percent,
    plural,
    shorten,
    shorten_list,
)
from torchcoll.parts.fleet import good_runs
from torchcoll.parts.fleet.change_text import case_names, in_one_unit, machine_text, percent, slower
from torchcoll.parts.fleet.good_runs import Baseline, GoodRuns, Limits, RunJudged
from torchcoll.parts.fleet.learning import Learned, RunLeftOut, versions_of
from torchcoll.parts.fleet.records import DAY_US, OK, CaseKey, summarise_run
from torchcoll.parts.fleet.series import format_night
from torchcoll.questions.check.limits import (
    CANNOT_TELL,
    DOUBTED_FACTOR,
    FAIL,
    PASS,
    WARN,
    Phrase,
)
from torchcoll.report.grid import Grid, Head
from torchcoll.stats.power import ACT_ON_ALL, ACT_ON_CASE

_NAMED = 3  # slow cases
_LEFT_OUT = 10  # runs left out that are named
_ALIKE = 1.2  # ratio of the detectable changes of two cases that are given as one


_QUIETER = (
    "measure on a quieter machine (torchcoll doctor names what is busy), or give more time to each "
    "case (--max-time)"
)
_MOST_NOISY = 5  # rows of cases that are too noisy; the other ones are counted


def detectable_text(limits: Limits) -> str:
    """``2.1 % slower over all cases, or 3.1 to 4.0 % in one case``"""
    in_cases = sorted(limits.case_detectable.tolist())
    lowest, text = in_one_unit([in_cases[0], in_cases[-1]])
    if in_cases[-1] > _ALIKE * in_cases[0]:
        text = f"{lowest.removesuffix(' %')} to {text}"
    return f"{percent(limits.run_detectable)} slower over all cases, or {text} in one case"


def _answer_of(baseline: Baseline, limits: Limits, left_out: int) -> Answer:
    runs, cases = len(baseline.good.runs), len(baseline.keys)
    noisy = int((limits.case_detectable > math.log1p(ACT_ON_CASE)).sum())
    name = f"baseline of {counted(runs, 'run')} on {counted(len(baseline.nodes), 'node')}"
    detectable = (
        f"a run that is {detectable_text(limits)}, is detected 9 times in 10; false alarms "
        f"{format_percent(good_runs.FALSE_ALARMS)} per run"
    )
    details = (f"{counted(left_out, 'run')} left out",) if left_out else ()
    counts = {"runs": runs, "nodes": len(baseline.nodes), "cases": cases, "left out": left_out}
    texts = []
    if noisy:
        texts.append(f"a slowdown of 1.5x in {noisy} of {counted(cases, 'case')}")
    if limits.run_detectable > math.log1p(ACT_ON_ALL):
        texts.append("one of 5 % over all cases")
    if not texts:
        subject = f"{name}, {counted(cases, 'case')}: {detectable}"
        return Answer(subject, "good", counts, details=details)
    return Answer(
        f"{name}: too noisy to notice {', or '.join(texts)}",
        "doubt",
        counts,
        details=(detectable, *details),
        next_step="measure on a quieter machine, or collect more good runs",
    )


def baseline_grid(baseline: Baseline, learned: Learned) -> Grid:
    """The cases of a baseline, and what was left out of it."""
    good, limits = baseline.good, good_runs.limits_of(baseline)
    changes = in_one_unit([*limits.case_named.tolist(), *limits.case_detectable.tolist()])
    cells = [
        [
            name,
            format_ns(math.exp(level)),
            f"{100 * spread:.2f} %",
            f"{named} slower",
            f"{detectable} slower",
        ]
        for name, level, spread, named, detectable in zip(
            case_names(baseline.keys),
            baseline.levels.tolist(),
            baseline.spreads.tolist(),
            changes[: len(baseline.keys)],
            changes[len(baseline.keys) :],
            strict=True,
        )
    ]
    heads = [
        Head("case", left=True),
        Head("usual", "time"),
        Head("spread", "of runs"),
        Head("named", "from", drop=1),
        Head("detected", "9 in 10"),
    ]
    dates = [format_night(run.start_us // DAY_US) for run in good.runs if run.start_us is not None]
    when = f", {dates[0]} to {dates[-1]}" if dates else ""
    above = [f"{machine_text(good.device_name, good.ranks)}{when}"]
    below = [f"note: {text}" for text in doubts(good)]
    left_out: tuple[RunLeftOut, ...] = ()
    if baseline is learned.baselines[0]:
        left_out = learned.left_out
        below += [f"too few: {text}" for text in learned.too_few]
        texts = [f"{one_line(each.path or each.run_id)}: {each.reason}" for each in left_out]
        below += [f"left out: {text}" for text in shorten_list(texts, _LEFT_OUT, "{} more runs")]
    answer = _answer_of(baseline, limits, len(left_out))
    return Grid(heads, cells, above=above, below=below, answer=answer)


def doubts(good: GoodRuns) -> list[str]:
    """What makes a baseline doubtful."""
    starts = [run.start_us for run in good.runs if run.start_us is not None]
    if starts and max(starts) - min(starts) < DAY_US:
        return [
            "all runs are of one day: what changes from day to day is not in the spread, and the "
            "false alarms will be more"
        ]
    return []


@dataclass(frozen=True)
class GoodRunsBaseline:
    """Good runs that judge the runs of ``check``: one set for each device model and number of
    ranks. answers: run_id -> what ``nightly`` says of a run among them, '' for nothing.
    """

    machines: Sequence[GoodRuns]
    answers: Mapping[str, str]

    def judge(self, run: Run) -> CheckedRun:
        """Judges a run by the good runs but itself.

        Raises UsageError if the good runs are too few, or none is of this run's kind of machine,
        node or cases.
        """
        summary, cases = summarise_run(run)
        kind = (summary.device_name, summary.ranks)
        good = next(
            (each for each in self.machines if (each.device_name, each.ranks) == kind), None
        )
        if good is None:
            available = "; ".join(machine_text(g.device_name, g.ranks) for g in self.machines)
            raise UsageError("baseline", available, f"{machine_text(*kind)}, as this run has")
        baseline = good_runs.baseline_of(good.without(summary.run_id))
        times = {case.key: case.time_ns for case in cases if case.status == OK and case.time_ns}
        judged = good_runs.judge_new_run(baseline, summary.node, times)
        facts = []
        usual = good.versions
        differences = [
            f"{one_line(name)} {one_line(value)} (baseline: {one_line(', '.join(usual[name]))})"
            for name, value in versions_of(summary.facts).items()
            if name in usual and value not in usual[name]
        ]
        if differences:
            facts.append(f"not as in the baseline: {', '.join(differences)}")
        count = len(baseline.keys)
        if missing := count - len(judged.cases):
            of = counted(count, "case")
            facts.append(
                f"{missing} of the baseline's {of} not judged: the run has no time of them"
            )
        if further := len(times.keys() - {*baseline.keys}):
            facts.append(f"{counted(further, 'case')} of this run not in the baseline")
        names = tuple(case_names([case.key for case in judged.cases]))
        answer = self.answers.get(summary.run_id)
        return CheckedRun(judged, names, tuple(facts + doubts(good)), answer)


@dataclass(frozen=True)
class CheckedRun:
    """A run judged by good runs, with the names of its cases. facts: what limits the verdict.

    nightly: what it says of this run, '' for nothing; None if it has not judged the run.
    """

    judged: RunJudged
    names: tuple[str, ...]
    facts: tuple[str, ...]
    nightly: str | None = None

    @property
    def state(self) -> str:
        """``nightly`` knows more nights of the node, and its peers: both say the same."""
        if self.nightly:
            return good_runs.SLOW
        twice = any(case.effect >= math.log(DOUBTED_FACTOR) for case in self.judged.cases)
        if self.judged.state == good_runs.SLOW and self.nightly == "" and not twice:
            return good_runs.PROBABLY_SLOW
        return self.judged.state

    def phrases(self) -> list[Phrase]:
        verdict, texts = self._sentences()
        return [
            Phrase(verdict, texts[0]),
            *(Phrase("", text) for text in (*texts[1:], *self.facts)),
        ]

    def _named(self, state: str) -> str:
        """The cases in this state, the slowest of them with their times."""
        texts = [
            f"{name} {slower(case.effect)} ({format_ns(case.time_ns)}, usually "
            f"{format_ns(case.usual_ns)})"
            for case, name in zip(self.judged.cases, self.names, strict=True)
            if case.state == state
        ]
        return shorten(texts, _NAMED, " and {} more")

    def _rest(self) -> str:
        """What is known of the cases that are not slow; '' unless all of them are as usual."""
        rest = [case for case in self.judged.cases if case.state != good_runs.SLOW]
        if not rest or any(case.state != good_runs.AS_USUAL for case in rest):
            return ""
        most = percent(max(abs(case.effect) for case in rest))
        noun = plural(len(rest), "other case is", f"other {len(rest)} cases are")
        return f"the {noun} within {most} of {self.judged.baseline.text}"

    def _sentences(self) -> tuple[str, list[str]]:
        """The word, what it says, and what else is known."""
        judged, limits = self.judged, self.judged.limits
        count = len(judged.cases)
        over_all = counted(count, "case") if count == 1 else f"all {count} cases"
        mean = f"{slower(judged.effect)} over {over_all} than {judged.baseline.text}"
        slow = self._named(good_runs.SLOW)
        if self.nightly and judged.state != good_runs.SLOW:
            return FAIL, [f"torchcoll nightly: {one_line(self.nightly)}", f"this run: {mean}"]
        if self.state != judged.state:
            probable = f"probably slower: {slow or mean}"
            return WARN, [probable, "torchcoll nightly says nothing about this run yet"]
        if judged.slow_overall:
            most = f"most in {self.names[0]}, {slower(judged.cases[0].effect)}"
            return FAIL, [f"{mean} (healthy below {percent(limits.run_limit)})", slow or most]
        if slow:
            return FAIL, [slow, self._rest() or mean]
        noisy = judged.cases_that_are(good_runs.TOO_NOISY)
        noise = []
        if noisy:
            spreads = percent_range(sorted(case.spread for case in noisy))
            noise.append(
                f"the runs vary by {spreads} from run to run in {len(noisy)} of "
                f"{counted(count, 'case')}, which hides a case 1.5x slower"
            )
        if judged.state == good_runs.DOUBTED:
            doubted = self._named(good_runs.DOUBTED)
            texts = [doubted] if doubted else []
            texts += noise
            if limits.run_detectable > math.log1p(ACT_ON_ALL) and not doubted:
                detectable = percent(limits.run_detectable)
                worst = format_factor(math.exp(judged.cases[0].effect))
                texts.append(f"a slowdown below {detectable}: this run is {mean}")
                return CANNOT_TELL, [*texts, f"no case is over {worst}"]
            return CANNOT_TELL, [*texts, mean]
        if judged.state == good_runs.PROBABLY_SLOW:
            probable = self._named(good_runs.PROBABLY_SLOW)
            texts = [f"probably slower: {probable}"] if probable else []
            if judged.effect > limits.run_named and not probable:
                texts.append(f"probably slower over {over_all}")
            return WARN, [*texts, *noise, mean]
        detectable = f"a run that is {detectable_text(limits)}, would have been found"
        false_alarms = format_percent(good_runs.FALSE_ALARMS)
        return PASS, [f"as usual: {mean}", f"{detectable} (false alarms {false_alarms} per run)"]

    @property
    def next_step(self) -> str:
        judged = self.judged
        if self.state == good_runs.SLOW:
            return "run it again; if it stays slow, torchcoll doctor and torchcoll pairs find why"
        if judged.state == good_runs.AS_USUAL:
            return ""
        if self.state == good_runs.PROBABLY_SLOW and not judged.cases_that_are(good_runs.TOO_NOISY):
            return "run it again: a real slowdown stays"
        if judged.cases_that_are(good_runs.DOUBTED):
            return "run it again: a real slowdown stays"
        if 2 * len(judged.cases_that_are(good_runs.TOO_NOISY)) > len(judged.cases):
            return _QUIETER
        more = good_runs.runs_needed(judged.baseline)
        return (
            f"learn from about {more} good runs, not {len(judged.baseline.good.runs)}"
            if more
            else _QUIETER
        )

    def deviations(self, run: Run, rows: Sequence[Row]) -> dict[int, float]:
        effects = {case.key: case.effect for case in self.judged.cases}
        keys = [CaseKey.of(result, row) for result, row in zip(run.results, rows, strict=True)]
        return {
            id(row): _share(effects[key])
            for key, row in zip(keys, rows, strict=True)
            if key in effects
        }

    def notable_cases(self) -> list[tuple[str, str, str, str, str]]:
        judged = zip(self.names, self.judged.cases, strict=True)
        unusual = [(name, case) for name, case in judged if case.state != good_runs.AS_USUAL]
        changes = in_one_unit([case.effect for _, case in unusual])
        notable = [
            (
                name,
                format_ns(case.time_ns),
                format_ns(case.usual_ns),
                f"{change} {'slower' if case.effect > 0 else 'faster'}",
                case.state,
            )
            for (name, case), change in zip(unusual, changes, strict=True)
        ]
        noisy = [case for case in notable if case[-1] == good_runs.TOO_NOISY]
        if hidden := noisy[_MOST_NOISY:]:
            notable = [case for case in notable if case not in hidden]
            more = f"and {counted(len(hidden), 'more case')}"
            notable.append((more, "", "", "", good_runs.TOO_NOISY))
        return notable

    def to_json(self) -> dict[str, Any]:
        """Changes and limits as shares of the usual time, 0.08 for 8 % slower."""
        judged = self.judged
        return {
            "runs": len(judged.baseline.good.runs),
            "nodes": len(judged.baseline.nodes),
            "false_alarms": good_runs.FALSE_ALARMS,
            "slower": _share(judged.effect),
            "limit": _share(judged.limits.run_limit),
            "detectable": _share(judged.limits.run_detectable),
            "state": self.state,
            "cases": [
                {
                    "name": name,
                    **case.key.to_row(),
                    "time_ns": case.time_ns,
                    "usual_ns": case.usual_ns,
                    "slower": _share(case.effect),
                    "limit": _share(case.limit),
                    "detectable": _share(case.detectable),
                    "state": case.state,
                }
                for name, case in zip(self.names, judged.cases, strict=True)
            ],
        }


def _share(effect: float) -> float:
    """A difference of log times as a share of the usual time, with 6 digits."""
    return float(f"{math.expm1(effect):.6g}")


def percent_range(shares: Sequence[float]) -> str:
    """``12 to 49 %`` of ascending shares, ``12 %`` where both ends are the same."""
    low, high = (f"{100 * shares[end]:.0f}" for end in (0, -1))
    return f"{low} to {high} %" if low != high else f"{high} %"
