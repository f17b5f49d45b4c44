"""``torchcoll compare`` of two captures of a training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torchcoll.core.errors import ExitCode, UsageError, choice
from torchcoll.core.units import counted
from torchcoll.questions.comparison.command import OTHERWISE, is_capture
from torchcoll.reading.inputs import split_label


def compare_captures(options: argparse.Namespace) -> ExitCode | None:
    """Compares the sides if all are captures; None where they are not."""
    captures = _captures(options.sides)
    if not captures:
        return None
    from torchcoll.core.traffic import Traffic
    from torchcoll.parts.training.traffic_comparison import compare_traffic
    from torchcoll.parts.training.traffic_comparison_show import show_traffic_comparisons
    from torchcoll.report.formats import FORMATS

    choice(options.format, "format", FORMATS)
    for name, unasked in {**OTHERWISE, "fail_on": None}.items():
        if (value := getattr(options, name)) != unasked:
            raise UsageError(name.replace("_", "-"), value, "none with captures of a training")
    (base_name, base), (new_name, new) = captures
    comparison = compare_traffic(Traffic.load(base), Traffic.load(new), (base_name, new_name))
    show_traffic_comparisons([comparison], options.format)
    return ExitCode.OK


def _captures(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """(name, path) of each side if all are captures of a training, otherwise [].

    A folder that also has result files stands for these. Raises UsageError unless there are two.
    """
    sides = [split_label(argument) for argument in arguments]
    captured = [is_capture(path) for _, path in sides]
    if not all(captured):  # traffic among results is left out
        return []
    if len(captured) != 2:
        number = counted(len(captured), "capture")
        raise UsageError("compare", number, "two captures, or results of measurements")
    names = [label or name for (label, _), name in zip(sides, ("base", "new"), strict=True)]
    return list(zip(names, (path for _, path in sides), strict=True))
