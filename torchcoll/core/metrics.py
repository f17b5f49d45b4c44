"""Figures for Prometheus, in the text that node_exporter's textfile collector reads.

Labels are those that other exporters have, so that their series can be joined: ``node`` and
``slurm_job_id`` as NCCL Inspector, ``gpu`` as DCGM's exporter (the index, ``0``).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcoll.core.backends import VISIBLE_GPUS
from torchcoll.core.case import BLOCKING, NATIVE, SETTINGS, Case, Setting
from torchcoll.core.errors import UsageError
from torchcoll.core.opening import replace_file
from torchcoll.core.result import Run
from torchcoll.core.run_facts import host_names, node_of

Labels = Mapping[str, object]

_ENDING = ".prom"
JOB = "torchcoll"  # the label job, where the run has none of that name
_INDEX = re.compile(r"\w+:(\d+)", re.ASCII)


@dataclass(frozen=True)
class Metric:
    """A gauge. name: without ``torchcoll_``. values: (labels, value) of each series."""

    name: str
    help: str
    values: Sequence[tuple[Labels, float]]


def metrics_name(text: str | os.PathLike[str]) -> Path:
    """The absolute path. Raises UsageError for a name that node_exporter does not read."""
    if not isinstance(text, str | os.PathLike) or Path(text).suffix != _ENDING:
        shown = text if isinstance(text, str | os.PathLike) and os.fspath(text) else repr(text)
        raise UsageError("metrics", shown, f"NAME{_ENDING}: node_exporter reads no other file")
    return Path(text).absolute()


def check_metrics(text: str | os.PathLike[str]) -> Path:
    """As ``metrics_name``. Raises UsageError also for a file that cannot be written."""
    path = metrics_name(text)
    expected = "a file in a folder that is there and can be written"
    try:
        folder = path.is_dir()
        writable = path.parent.is_dir() and os.access(path.parent, os.W_OK)
    except OSError as error:
        raise UsageError("metrics", text, f"{expected} ({error.strerror})") from None
    if folder or not writable:
        raise UsageError("metrics", text, expected)
    return path


def write_metrics(path: Path, metrics: Sequence[Metric]) -> None:
    """Replace the file in one step, for readers at any time. Raises OSError."""
    replace_file(path, metrics_text(metrics).encode(errors="backslashreplace"))


def metrics_text(metrics: Sequence[Metric]) -> str:
    """The text of a file of metrics."""
    lines = []
    for metric in metrics:
        name = f"torchcoll_{metric.name}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_label_text(labels)} {value:.10g}" for labels, value in metric.values]
    return "\n".join([*lines, ""])


def run_labels(run: Run) -> dict[str, object]:
    """The labels of figures of all ranks: several hosts have no host, several ranks no gpu."""
    hosts = host_names(run.members) or host_names([run.environment])
    labels = {
        "job": run.labels.get("job") or JOB,
        "host": hosts[0] if len(hosts) == 1 else None,
        "node": node_of(run),
        "gpu": _gpu(run, run.members[0]) if len(run.members) == 1 else None,
        "world_size": run.ranks or None,
        "slurm_job_id": (run.environment.get("variables") or {}).get("SLURM_JOB_ID"),
    }
    return _without_empty(labels)


def _gpu(run: Run, member: Mapping[str, Any]) -> str | None:
    """The index of a rank's GPU on its host, as far as the recorded variables show it."""
    match = _INDEX.fullmatch(str(member.get("device") or ""))
    if match is None:
        return None
    variables = {
        **(run.environment.get("variables") or {}),
        **(member.get("variables_that_differ") or {}),
    }
    for name in VISIBLE_GPUS:
        visible = str(variables.get(name) or "").split(",")
        index = int(match[1])
        if index < len(visible) and all(re.fullmatch(r"\d+", each, re.ASCII) for each in visible):
            return visible[index]
    return match[1]


def case_labels(case: Case) -> dict[str, object]:
    """The labels of a case. A setting with its default has no label."""
    placement = {True: "true", False: "false", None: None}[case.in_place]
    labels = {
        **{n: getattr(case, n) for n in ("collective", "size_bytes", "dtype", "op", "root")},
        "in_place": placement,
        **{name: getattr(case, name) for name in ("backend", "group", "splits")},
        "implementation": None if case.implementation == NATIVE else case.implementation,
        **{setting.label or setting.name: _label(setting, case) for setting in SETTINGS},
        "graph": "true" if case.mode == "graph" else None,
        "blocking": "true" if case.mode == BLOCKING else None,
    }
    return _without_empty(labels)


def _label(setting: Setting, case: Case) -> object:
    value = getattr(case, setting.name)
    return None if value in (setting.default, "unknown") else "true" if value is True else value


def unique_labels(several: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Add ``repeat`` 2, 3, ... to equal label sets, which Prometheus refuses."""
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    unique = []
    for labels in several:
        key = tuple((name, str(value)) for name, value in labels.items())
        counts[key] += 1
        unique.append({**labels, **({"repeat": counts[key]} if counts[key] > 1 else {})})
    return unique


def _without_empty(labels: Mapping[str, object]) -> dict[str, object]:
    """The labels with a value: Prometheus takes an empty label for a missing one."""
    return {name: value for name, value in labels.items() if value not in (None, "")}


def _label_text(labels: Labels) -> str:
    """Format labels (https://prometheus.io/docs/instrumenting/exposition_formats/)."""
    pairs = []
    for name, value in labels.items():
        text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{text}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""
