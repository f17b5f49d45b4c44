"""How cases and changes of times are written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchcoll.core.errors import one_line
from torchcoll.core.units import (
    counted,
    format_change,
    format_difference,
    format_factor,
    format_size,
)
from torchcoll.parts.fleet.records import CaseKey

# Sentences have the speed of what is faster. Signed columns and JSON have the change of the time.
TIME_LEGEND = "time: change of the time of a call; -20 % is 0.8 times the time, 25 % faster"


def percent(effect: float) -> str:
    """A difference of log times as a change of the time: ``8.0 %``, without its sign."""
    return format_difference(math.exp(effect))


def slower(effect: float) -> str:
    """A difference of log times as a change of the time: ``8.0 % slower``."""
    return format_change(math.exp(effect))


def in_one_unit(effects: Sequence[float]) -> list[str]:
    """Differences of log times, without their signs: ``8.0 %``; if one is twice the time or more,
    all as factors: ``1.08x``.
    """
    ratios = [math.exp(abs(effect)) for effect in effects]
    format_ratio = format_factor if max(ratios, default=1.0) >= 2 else format_difference
    return [format_ratio(ratio) for ratio in ratios]


def machine_text(device_name: str, ranks: int) -> str:
    return f"{one_line(device_name) or 'device not recorded'}, {counted(ranks, 'rank')}"


def case_names(keys: Sequence[CaseKey]) -> list[str]:
    """A short name of each case: collective and size, and whatever else tells the cases apart."""

    def words(key: CaseKey) -> dict[str, str]:
        case = key.case.to_json()
        placed = {True: "in place", False: "out of place", None: ""}[key.case.in_place]
        named = {"in_place": placed, "ranks": f"{key.ranks} ranks", "statistic": key.statistic}
        fields = {name: str(value) for name, value in case.items() if value is not None}
        return {**fields, **named, "clock": key.clock}

    described = [words(key) for key in keys]
    hidden = ("collective", "size_bytes")
    values: dict[str, dict[str, set[str | None]]] = {}  # field -> collective -> its values
    for name in dict.fromkeys(name for item in described for name in item):
        for key, item in zip(keys, described, strict=True):
            of_collective = values.setdefault(name, {})
            of_collective.setdefault(key.case.collective, set()).add(item.get(name))
    varying = [
        name
        for name, of_collective in values.items()
        if name not in hidden and any(len(several) > 1 for several in of_collective.values())
    ]
    return [
        " ".join(
            [
                key.case.collective,
                format_size(key.case.size_bytes),
                *(item[name] for name in varying if item.get(name)),
            ]
        )
        for key, item in zip(keys, described, strict=True)
    ]
