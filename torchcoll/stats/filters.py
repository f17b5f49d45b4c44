"""``--filter collective=all_reduce,size>=1M``: which cases of the runs a command uses."""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchcoll.core.case import SETTINGS
from torchcoll.core.collectives import find_collective
from torchcoll.core.errors import UsageError, choice, text_items
from torchcoll.core.result import Run
from torchcoll.core.units import parse_size
from torchcoll.reading.inputs import expand, load_all, resolve_sources
from torchcoll.stats.matching import NAMES, value_of
from torchcoll.stats.sides import Measured, Reading, Side

_FORM = re.compile(r"\s*(\w+)\s*(>=|<=|!=|=|>|<)\s*(\S.*?)\s*")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    **{">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
}
_NUMBERS = ("ranks", "root", *(setting.name for setting in SETTINGS if setting.kind is int))
_FLAGS = ("in_place", *(setting.name for setting in SETTINGS if setting.kind is bool))
_SET = "NAME=VALUE, NAME!=VALUE, size>=1M, ... with commas (VALUE|VALUE for several)"


@dataclass(frozen=True)
class Condition:
    """One condition; ``values`` are alternatives, of which the orders have one."""

    text: str
    name: str
    sign: str
    values: tuple[Any, ...]

    def holds(self, item: Measured) -> bool:
        size = self.name == "size"
        return self.selects(item.row.size_bytes_requested if size else value_of(item, self.name))

    def selects(self, value: Any) -> bool:
        """Returns whether the condition holds for a case with this value."""
        if self.sign in _ORDERS:
            return value is not None and _ORDERS[self.sign](value, self.values[0])
        return (value in self.values) == (self.sign == "=")


def conditions(filter: str | Sequence[str]) -> list[Condition]:
    """Parse a text with commas, or several texts. Raises UsageError for a bad condition."""
    return [_condition(text) for text in text_items(filter, "filter") if text.strip()]


def keep_cases(runs: Sequence[Run], filter: str | Sequence[str]) -> list[Run]:
    """The runs with the cases that the filter selects. Raises UsageError if there is none."""
    wanted = conditions(filter)
    if not wanted:
        return list(runs)
    for run in runs:
        items = Side("", [run]).measured("time", Reading())
        run.results = [m.result for m in items if all(term.holds(m) for term in wanted)]
    kept = [run for run in runs if run.results]
    if not kept:
        raise UsageError("filter", filter, "conditions that some case fulfils")
    return kept


def read_runs(options: argparse.Namespace) -> list[Run]:
    """The runs of ``options.files``, read as ``inputs.add_reading_options`` states."""
    sources = resolve_sources(options.files, options.collective, options.ranks)
    runs = load_all(file for source in sources for file in expand(source))
    return keep_cases(runs, options.filter)


def _condition(text: str) -> Condition:
    match = _FORM.fullmatch(text)
    if not match:
        bare = text.strip().isidentifier()  # the shell took the rest for a file
        raise UsageError("filter", text, _SET, "Quote it: --filter 'size>=1M'." if bare else "")
    name, sign, value = match.groups()
    choice(name, "filter name", ("size", *NAMES))
    texts = [part.strip() for part in value.split("|")]
    if sign in _ORDERS and (name not in (*_NUMBERS, "size") or len(texts) > 1):
        raise UsageError("filter", text, f"= or != with {name}, or one number behind {sign}")
    return Condition(text.strip(), name, sign, tuple(_value(name, part) for part in texts))


def _value(name: str, text: str) -> Any:
    if name == "size":
        return parse_size(text, "filter size")
    if name == "collective":
        return find_collective(text).name
    if name in _FLAGS:
        if text not in ("yes", "no", "true", "false"):
            raise UsageError(f"filter {name}", text, "yes or no")
        return text in ("yes", "true")
    if name in _NUMBERS:
        if not text.isdecimal() or len(text) > 9:
            raise UsageError(f"filter {name}", text, "a whole number")
        return int(text)
    return text
