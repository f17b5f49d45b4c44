"""The baseline of ``check``: a file of ``torchcoll baseline``, TOML with a table per kind of
machine, which people can read; or the good runs of a folder, a glob or a store.

Times in the file are in us, spreads and changes in percent of the time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from torchcoll.core.case import Case
from torchcoll.core.errors import UnreadableError, UsageError, one_line
from torchcoll.core.opening import open_to_read
from torchcoll.core.result import Run
from torchcoll.core.toml_text import toml_key, toml_string, toml_table
from torchcoll.core.units import counted, parse_utc
from torchcoll.parts.fleet import good_runs
from torchcoll.parts.fleet.baseline_runs import (
    Selection,
    machine_text,
    select_baselines,
    versions_of,
)
from torchcoll.parts.fleet.change_text import case_names
from torchcoll.parts.fleet.records import OK, CaseKey, RunSummary, summarise_run
from torchcoll.parts.fleet.series import Summaries
from torchcoll.parts.fleet.sources import summaries_of

MARK = "torchcoll_baseline"  # the first key of the file: its version
VERSION = 2
_MOST_BYTES = 64 << 20
_EXPECTED = "a file that torchcoll baseline wrote"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Fields of a case that most cases have: they are left out of the file.
_DEFAULTS = {name: field.default for name, field in Case.__dataclass_fields__.items()}


def format_time_utc(start_us: int | None) -> str:
    """``2026-11-23T22:00:00Z``; '' where the time is not known."""
    if start_us is None:
        return ""
    return (_EPOCH + timedelta(microseconds=start_us)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _number(value: float) -> str:
    """With 7 significant digits, so that a file gives the same answers as its runs."""
    if math.isnan(value):
        return "nan"
    text = f"{value:.7g}"
    return text if any(c in text for c in ".e") else f"{text}.0"


def _change(effect: float) -> str:
    return _number(100 * math.expm1(effect))


def format_baselines(baselines: Sequence[good_runs.Baseline], paths: Sequence[str] = ()) -> str:
    """The text of the file. paths: where the runs were read, for a comment."""
    first = baselines[0]
    lines = [
        "# How long the cases of healthy runs take, written by torchcoll baseline",
        *([f"# from {one_line(' '.join(paths))}"] if paths else []),
        "# torchcoll check RUN --baseline FILE judges a run by it.",
        f"{MARK} = {VERSION}",
        "",
        "# A healthy run fails with at most this probability, over all of its cases.",
        f"false_alarms_percent = {_number(100 * first.false_alarms)}",
        "# A smaller slowdown is not reported.",
        f"threshold_percent = {_number(100 * first.threshold)}",
    ]
    for baseline in baselines:
        lines += ["", *_machine_lines(baseline)]
    return "\n".join(lines) + "\n"


def _machine_lines(baseline: good_runs.Baseline) -> list[str]:
    limits = good_runs.limits_of(baseline)
    lines = [
        "[[machine]]",
        f"device_name = {toml_string(baseline.device_name)}",
        f"ranks = {baseline.ranks}",
        f"run_count = {len(baseline.run_ids)}",
    ]
    for name, start_us in (("first_run", baseline.first_us), ("last_run", baseline.last_us)):
        if start_us is not None:
            lines.append(f"{name} = {toml_string(format_time_utc(start_us))}")
    lines += [
        "# The mean over all cases, from run to run: its standard deviation, the degrees of",
        "# freedom of that, and the slowdown of a run that is found 9 times in 10.",
        f"spread_percent = {_number(100 * baseline.run_spread)}",
        f"degrees = {_number(baseline.degrees)}",
        f"detectable_percent = {_change(limits.run_detectable)}",
        "# Whether each node has usual times of its own.",
        f"by_node = {str(baseline.by_node).lower()}",
        "",
        "[machine.versions]",
    ]
    for name, values in baseline.versions.items():
        lines.append(f"{toml_key(name)} = [{', '.join(map(toml_string, values))}]")
    names = case_names([case.key for case in baseline.cases])
    for name, case, detectable in zip(
        names, baseline.cases, limits.case_detectable.tolist(), strict=True
    ):
        lines += [
            "",
            "[[machine.case]]",
            f"name = {toml_string(name)}",
            f"usual_us = {_number(case.usual_ns / 1e3)}",
            f"spread_percent = {_number(100 * case.spread)}",
            f"degrees = {_number(case.degrees)}",
            f"slowest_percent = {_change(case.slowest)}",
            f"runs = {case.runs}",
            f"detectable_percent = {_change(detectable)}",
            f"case = {_inline_case(case.key)}",
        ]
    lines += [
        "",
        "# How much slower each node usually is than usual_us, in each case above.",
        "[machine.nodes]",
    ]
    for name, node in baseline.nodes.items():
        entry = f"runs = {node.runs}"
        if baseline.by_node:
            entry += f", slower_percent = [{', '.join(map(_change, node.effects))}]"
        lines.append(f"{toml_key(name)} = {{ {entry} }}")
    lines += ["", "[machine.runs]", "ids = ["]
    return [*lines, *(f"  {toml_string(run_id)}," for run_id in baseline.run_ids), "]"]


def _inline_case(key: CaseKey) -> str:
    fields = {
        name: value
        for name, value in key.case.to_json().items()
        if value is not None and value != _DEFAULTS[name]
    }
    fields |= {"statistic": key.statistic, "clock": key.clock}
    texts = []
    for name, value in fields.items():
        if isinstance(value, bool):
            texts.append(f"{name} = {str(value).lower()}")
        else:
            shown = toml_string(value) if isinstance(value, str) else value
            texts.append(f"{name} = {shown}")
    return f"{{ {', '.join(texts)} }}"


def read_baselines(path: str | os.PathLike[str]) -> tuple[good_runs.Baseline, ...]:
    """The baselines of a file. Raises UnreadableError for one that cannot be read, or that
    ``torchcoll baseline`` did not write.
    """
    try:
        with open_to_read(Path(path)) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableError(
            "baseline", path, f"a file that can be read ({error.strerror})"
        ) from None
    if len(content) > _MOST_BYTES:
        raise UnreadableError("baseline", path, f"a file of at most {_MOST_BYTES >> 20} MiB")
    try:
        table = toml_table(content.decode())
    except ImportError:
        raise UsageError(
            "baseline", f"{path} without tomli", "Python 3.11, or tomli", "pip install tomli"
        ) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML
        raise UnreadableError("baseline", f"{path} ({error})", _EXPECTED) from None
    if MARK not in table:
        raise UnreadableError("baseline", f"{path} without {MARK}", _EXPECTED)
    if table[MARK] != VERSION:
        raise UnreadableError(
            "baseline",
            f"version {table[MARK]} of {path}",
            f"version {VERSION}, which this one reads",
        )
    try:
        threshold, false_alarms = (
            _positive(table[name]) / 100 for name in ("threshold_percent", "false_alarms_percent")
        )
        if not (threshold < 1 and false_alarms < 1):
            raise ValueError("a share of 100 % or more")
        baselines = tuple(
            _baseline(machine, threshold, false_alarms) for machine in table["machine"]
        )
    except KeyError as error:
        raise UnreadableError("baseline", f"{path} without {error.args[0]}", _EXPECTED) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UnreadableError("baseline", f"{path} ({error})", _EXPECTED) from None
    if not baselines:
        raise UnreadableError("baseline", f"{path} without a machine", _EXPECTED)
    return baselines


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{value} is not above 0")
    return float(value)


def _whole(value: object) -> int:
    if _positive(value) != int(value):  # type: ignore[call-overload]
        raise ValueError(f"{value} is no whole number")
    return int(value)  # type: ignore[call-overload,no-any-return]


def _baseline(
    machine: Mapping[str, Any], threshold: float, false_alarms: float
) -> good_runs.Baseline:
    """Raises KeyError, TypeError, ValueError or AttributeError for what cannot be."""
    ranks = _whole(machine["ranks"])
    by_node = machine["by_node"] is True
    cases = tuple(
        good_runs.CaseUsual(
            CaseKey.from_json({**_key_fields(case["case"]), "ranks": ranks}),
            1e3 * _positive(case["usual_us"]),
            _positive(case["spread_percent"]) / 100,
            _whole(case["runs"]),
            _positive(case["degrees"]),
            math.log1p(case["slowest_percent"] / 100),
        )
        for case in machine["case"]
    )
    if not cases or len({case.key for case in cases}) != len(cases):
        raise ValueError("no case, or one twice")
    nodes = {}
    for name, node in machine["nodes"].items():
        changes = node["slower_percent"] if by_node else [0.0] * len(cases)
        if len(changes) != len(cases):
            raise ValueError(f"{len(changes)} changes of node {name} for {len(cases)} cases")
        nodes[name] = good_runs.NodeUsual(
            tuple(math.log1p(change / 100) for change in changes), _whole(node["runs"])
        )
    if not nodes:
        raise ValueError("no node")
    times = [_time_us(machine.get(name, "")) for name in ("first_run", "last_run")]
    return good_runs.Baseline(
        device_name=str(machine["device_name"]),
        ranks=ranks,
        run_ids=tuple(map(str, machine["runs"]["ids"])),
        first_us=times[0],
        last_us=times[1],
        nodes=nodes,
        by_node=by_node,
        cases=cases,
        run_spread=_positive(machine["spread_percent"]) / 100,
        degrees=_positive(machine["degrees"]),
        versions={name: tuple(map(str, values)) for name, values in machine["versions"].items()},
        threshold=threshold,
        false_alarms=false_alarms,
    )


def _key_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What CaseKey.from_json reads, but for the ranks."""
    case = {name: fields.get(name, _absent(name)) for name in Case.__dataclass_fields__}
    return {"case": case, "statistic": fields["statistic"], "clock": fields["clock"]}


def _absent(name: str) -> Any:
    """The value of a field that the file leaves out: its default, or None where it has none."""
    default = _DEFAULTS[name]
    return default if isinstance(default, (str, bool, int)) else None


def _time_us(text: str) -> int | None:
    return int((parse_utc(text) - _EPOCH).total_seconds() * 1e6) if text else None


@dataclass(frozen=True)
class JudgedByGoodRuns:
    """A run judged by good runs, with the names of its cases, worst first.

    differences: versions that the run has and no run of the baseline, a clause each. left_out: how
    many runs of the folder or store are not in the baseline. notes: what makes it doubtful.
    further: cases of the run that the baseline lacks. member: whether the run is itself one of the
    baseline's.
    """

    judged: good_runs.RunJudged
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
            "state": judged.state,
            "cases": [
                {
                    "name": name,
                    **case.key.to_row(),
                    "time_ns": case.time_ns,
                    "usual_ns": case.usual_ns,
                    "slower": share(case.effect),
                    "limit": share(case.limit),
                    "detectable": share(case.detectable),
                    "state": case.state,
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
            judged = good_runs.judge_new_run(baseline, summary.node, times)
        except good_runs.CannotJudge as error:
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


def _differences(summary: RunSummary, judged: good_runs.RunJudged) -> tuple[str, ...]:
    usual = judged.baseline.versions
    return tuple(
        f"{one_line(name)} {one_line(value)} (baseline: {one_line(', '.join(usual[name]))})"
        for name, value in versions_of(summary.facts).items()
        if name in usual and value not in usual[name]
    )


def good_runs_text(judged: good_runs.RunJudged) -> str:
    """``24 good runs on 8 nodes``."""
    text = counted(len(judged.baseline.run_ids), "good run")
    return f"{text} on {counted(len(judged.baseline.nodes), 'node')}"
