"""The file of ``torchcoll baseline``: TOML with a table per kind of machine, which people can read.

Times are in us, spreads and changes in percent of the time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from torchcoll.core.case import Case
from torchcoll.core.errors import UnreadableError, UsageError, one_line
from torchcoll.core.opening import open_to_read
from torchcoll.core.toml_text import toml_key, toml_string, toml_table
from torchcoll.parts.fleet.good_runs import Baseline, CaseUsual, NodeUsual, limits_of
from torchcoll.parts.fleet.node_report import case_names
from torchcoll.parts.fleet.records import CaseKey

MARK = "torchcoll_baseline"  # the first key of the file: its version
VERSION = 1
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


def format_baselines(baselines: Sequence[Baseline], paths: Sequence[str] = ()) -> str:
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


def _machine_lines(baseline: Baseline) -> list[str]:
    limits = limits_of(baseline)
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


def read_baselines(path: str | os.PathLike[str]) -> tuple[Baseline, ...]:
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


def _baseline(machine: Mapping[str, Any], threshold: float, false_alarms: float) -> Baseline:
    """Raises KeyError, TypeError, ValueError or AttributeError for what cannot be."""
    ranks = _whole(machine["ranks"])
    by_node = machine["by_node"] is True
    cases = tuple(
        CaseUsual(
            CaseKey.from_json({**_key_fields(case["case"]), "ranks": ranks}),
            1e3 * _positive(case["usual_us"]),
            _positive(case["spread_percent"]) / 100,
            _whole(case["runs"]),
            _positive(case["degrees"]),
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
        nodes[name] = NodeUsual(
            tuple(math.log1p(change / 100) for change in changes), _whole(node["runs"])
        )
    if not nodes:
        raise ValueError("no node")
    times = [_time_us(machine.get(name, "")) for name in ("first_run", "last_run")]
    return Baseline(
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
    if not text:
        return None
    when = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return int((when - _EPOCH).total_seconds() * 1e6)
