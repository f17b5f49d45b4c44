"""Figures for Prometheus, in the text that node_exporter's textfile collector reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchcoll.core.errors import UsageError
from torchcoll.core.opening import replace_file

_ENDING = ".prom"


@dataclass(frozen=True)
class Metric:
    """name without ``torchcoll_``; values: (labels, value) of each series. All are gauges."""

    name: str
    help: str
    values: Sequence[tuple[Mapping[str, object], float]]


def metrics_name(text: str | os.PathLike[str]) -> Path:
    """Absolute. Raises UsageError for one that nobody reads."""
    if not isinstance(text, str | os.PathLike) or Path(text).suffix != _ENDING:
        shown = text if isinstance(text, str | os.PathLike) and os.fspath(text) else repr(text)
        raise UsageError("metrics", shown, f"NAME{_ENDING}: node_exporter reads no other file")
    return Path(text).absolute()


def check_metrics(text: str | os.PathLike[str]) -> Path:
    """The file to write, absolute. Raises UsageError where that cannot be, or nobody reads it."""
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
    """In one step: who reads meanwhile has the earlier figures, or these. Raises OSError."""
    lines = []
    for metric in metrics:
        name = f"torchcoll_{metric.name}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(labels)} {value:.10g}" for labels, value in metric.values]
    replace_file(path, "\n".join([*lines, ""]).encode())  # UTF-8, as the format has it


def _labels(labels: Mapping[str, object]) -> str:
    """As https://prometheus.io/docs/instrumenting/exposition_formats/ has them."""
    pairs = []
    for name, value in labels.items():
        text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        pairs.append(f'{name}="{text}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""
