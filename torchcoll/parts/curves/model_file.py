"""Read and write the file of a model, ``machine.json``: parameters and intervals, not the data.

Its objects have the fields of the dataclasses in model.py and size_law.py.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.opening import read_regular
from torchcoll.parts.curves.model import KindModel, MachineModel, Spread
from torchcoll.parts.curves.rank_laws import step_laws

MODEL_SCHEMA = "torchcoll-model/2"
_LARGEST_LOG = 600.0  # of a factor: exp of more overflows


def load_model(path: str | os.PathLike[str]) -> MachineModel:
    """Read a model. Raises UnreadableError for a file that is no model or has another schema."""
    path = Path(path)
    action = "torchcoll model fit RUN... -o machine.json makes one."
    try:
        data = json.loads(read_regular(path))
    except OSError as error:
        raise UnreadableError("model", f"{path} ({error.strerror})", "a file", action) from None
    except ValueError:
        raise UnreadableError(
            f"model {path}", "no JSON", f"schema {MODEL_SCHEMA}", action
        ) from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != MODEL_SCHEMA:
        schema_text = "none" if schema is None else schema
        raise UnreadableError(f"schema of {path}", schema_text, MODEL_SCHEMA, action)
    try:
        entries = tuple(map(_read_entry, data["entries"]))
        return MachineModel(entries, dict(data.get("machine") or {}), path)
    except (
        *(KeyError, TypeError, ValueError, IndexError, AttributeError),
        *(ArithmeticError, UsageError),
    ) as error:
        problem = f"{type(error).__name__} {error}"
        raise UnreadableError(f"model {path}", problem, "all parameters", action) from None


def model_text(model: MachineModel) -> str:
    """The text of a model's file: JSON with each value and its interval on one line."""
    text = json.dumps(model_object(model), indent=1)
    figures = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
    return figures.sub(lambda figure: f"[{' '.join(figure[1].split())}]", text) + "\n"


def model_object(model: MachineModel) -> dict[str, Any]:
    return {
        "schema": MODEL_SCHEMA,
        "units": "ns; GB/s = 10^9 bytes/s; three numbers are [value, low, high], a 90 % interval",
        "machine": dict(model.facts),
        "entries": [_json_of(entry) for entry in model.entries],
    }


def _json_of(value: Any) -> Any:
    """As JSON, with six digits of each number, which is more than any measurement resolves."""
    if is_dataclass(value):
        return {each.name: _json_of(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _json_of(each) for key, each in value.items() if each is not None}
    if isinstance(value, tuple):
        return [_json_of(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _of_json(kind: Any, data: Any) -> Any:
    """The value of this type of which ``_json_of`` made the data. Raises ValueError, TypeError or
    KeyError for any other data.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # X | None
        return None if data is None else _of_json(arguments[0], data)
    if origin is tuple:
        kinds = [arguments[0]] * len(data) if arguments[-1] is ... else arguments
        return tuple(_of_json(each, item) for each, item in zip(kinds, data, strict=True))
    if isinstance(kind, type) and is_dataclass(kind):
        kinds_of = get_type_hints(kind)
        return kind(**{name: _of_json(kinds_of[name], data[name]) for name in kinds_of})
    if kind is float and not math.isfinite(data):
        raise ValueError("a figure that is no number")
    return dict(data) if origin else kind(data)


def _read_entry(data: Mapping[str, Any]) -> KindModel:
    """One kind of case. Raises ValueError for laws that cannot be."""
    entry: KindModel = _of_json(KindModel, data)
    if entry.collective not in COLLECTIVES:
        raise ValueError(f"collective {entry.collective}")
    for curve in entry.over_sizes:
        _check(curve.low_bytes, curve.law.corrections, curve.spread)
        if not curve.law.pieces:
            raise ValueError("no range")
    if law := entry.over_ranks:
        _check(law.low_bytes, law.corrections, law.spread)
        if law.law not in [each.name for each in step_laws(entry.collective)]:
            raise ValueError(f"law {law.law} of {entry.collective}")
        if not (law.ranks and law.hosts):
            raise ValueError("a law over ranks that cannot be")
    return entry


def _check(low_bytes: int, corrections: Sequence[tuple[float, float]], spread: Spread) -> None:
    if low_bytes < 1:
        raise ValueError("sizes below one byte")
    if any(size <= 0 or abs(log) > _LARGEST_LOG for size, log in corrections):
        raise ValueError("a correction that cannot be")
    if not (0 < spread.low <= 1 <= spread.high and spread.below >= 1 and spread.above >= 1):
        raise ValueError("an interval without the value in it")
