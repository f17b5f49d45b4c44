"""What a table is about, in words: the kind of case and what tells it from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchcoll.core.units import format_size
from torchcoll.report.output import one_line

_ALWAYS = ("collective", "nbytes", "dtype", "op", "ranks", "backend")
_PLAIN = ("collective", "dtype", "op", "backend")


def kind_texts(kinds: Sequence[Mapping[str, Any]], always: Sequence[str] = _ALWAYS) -> list[str]:
    """``all_reduce, float32, sum, 8 ranks, nccl, NCCL_ALGO Ring`` of each: the usual names, and
    those in which the kinds differ.
    """
    names = dict.fromkeys(name for kind in kinds for name in kind)
    varying = [n for n in names if len({repr(kind.get(n)) for kind in kinds}) > 1]
    return [_text(kind, [*always, *varying]) for kind in kinds]


def _text(kind: Mapping[str, Any], names: Sequence[str]) -> str:
    words = []
    for name in dict.fromkeys(names):
        value = kind.get(name)
        if value is None:
            continue
        if name == "in_place":
            words.append("in place" if value else "out of place")
        elif name == "ranks":
            words.append(f"{value} rank{'s' * (value != 1)}")
        elif name == "nbytes":
            words.append(f"{format_size(value)} bytes" if value < 1024 else format_size(value))
        elif name in _PLAIN:
            words.append(one_line(value))
        else:
            words.append(f"{one_line(name.removeprefix('label='))} {one_line(value)}")
    return ", ".join(words)
