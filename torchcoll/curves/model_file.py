"""The file of a model, ``machine.json``: parameters and intervals, no measured points."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.jsonl import rename_old_keys
from torchcoll.core.opening import read_regular
from torchcoll.curves.model import (
    Figure,
    KindModel,
    Link,
    MachineModel,
    OverRanks,
    OverSizes,
    Spread,
)
from torchcoll.curves.rank_laws import step_laws
from torchcoll.curves.size_law import Piece, SizeLaw

MODEL_SCHEMA = "torchcoll-model/1"
_PLAIN = ("ranks", "hosts", "low_bytes", "high_bytes", "sizes")


def load_model(path: str | os.PathLike[str]) -> MachineModel:
    """Raises UnreadableError for what is no model, or one of another schema."""
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
        got = "none" if schema is None else schema
        raise UnreadableError(f"schema of {path}", got, MODEL_SCHEMA, action)
    try:
        entries = tuple(map(_entry_of, data["entries"]))
        return MachineModel(entries, dict(data.get("machine") or {}), path)
    except (
        *(KeyError, TypeError, ValueError, IndexError, AttributeError),
        *(ArithmeticError, UsageError),
    ) as error:
        got = f"{type(error).__name__} {error}"
        raise UnreadableError(f"model {path}", got, "all parameters", action) from None


def model_text(model: MachineModel) -> str:
    """The file: JSON, a figure and its interval on one line."""
    text = json.dumps(model_object(model), indent=1)
    figures = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
    return figures.sub(lambda figure: f"[{' '.join(figure[1].split())}]", text) + "\n"


def model_object(model: MachineModel) -> dict[str, Any]:
    entries = []
    for entry in model.entries:
        record: dict[str, Any] = {
            "kind": {k: v for k, v in entry.kind.items() if v is not None},
            "over_sizes": [_sizes_object(one) for one in entry.over_sizes],
        }
        if entry.over_ranks:
            record["over_ranks"] = _ranks_object(entry.over_ranks)
        else:
            record["no_law_over_ranks"] = entry.why_not
        entries.append(record)
    return {
        "schema": MODEL_SCHEMA,
        "units": "ns; GB/s = 10^9 bytes/s; each figure is [value, low, high], a 90 % interval",
        "machine": dict(model.facts),
        "entries": entries,
    }


def _sizes_object(one: OverSizes) -> dict[str, Any]:
    pieces = zip(one.law.pieces, one.latencies, one.bandwidths, strict=True)
    return {
        **{name: getattr(one, name) for name in _PLAIN},
        "ranges": [
            {
                "low_bytes": round(piece.low_bytes),
                "high_bytes": round(piece.high_bytes),
                "latency_ns": _digits(latency),
                "bandwidth_gbps": _digits(bandwidth),
            }
            for piece, latency, bandwidth in pieces
        ],
        "corrections": [
            {"size_bytes": round(size), "factor": _digits(figure)}
            for (size, _), figure in zip(one.law.corrections, one.factors, strict=True)
        ],
        "smooth": one.law.smooth,
        "bandwidth_beyond_gbps": _digits(one.beyond),
        "bandwidth_beyond_of": one.beyond_of,
        "interval": _spread_object(one.spread),
    }


def _ranks_object(one: OverRanks) -> dict[str, Any]:
    def link(figures: Link | None) -> Any:
        if figures is None:
            return None
        return {"step_ns": _digits(figures[0]), "bandwidth_gbps": _digits(figures[1])}

    return {
        "law": one.law,
        "remaining": list(one.remaining),
        "ranks": list(one.ranks),
        "hosts": list(one.hosts),
        "low_bytes": one.low_bytes,
        "high_bytes": one.high_bytes,
        "launch_ns": _digits(one.launch_ns),
        "within_host": link(one.within),
        "between_hosts": link(one.between),
        "corrections": [
            {"size_bytes": round(size), "factor": _digits(figure)}
            for size, figure in one.corrections
        ],
        "interval": _spread_object(one.spread),
    }


def _spread_object(spread: Spread) -> dict[str, Any]:
    return {
        "low": round(spread.low, 5),
        "high": round(spread.high, 5),
        "wider_each_doubling_below": round(spread.below, 5),
        "wider_each_doubling_above": round(spread.above, 5),
        "left_out": spread.points,
    }


def _digits(figure: Figure | None) -> list[float] | None:
    """Six digits: more are none of a measurement."""
    return None if figure is None else [float(f"{value:.6g}") for value in figure]


def _known(data: Any) -> Figure | None:
    return None if data is None else _figure(data)


def _figure(data: Any) -> Figure:
    value, low, high = (float(number) for number in data)
    if not all(map(math.isfinite, (value, low, high))):
        raise ValueError("a figure that is no number")
    return value, low, high


def _spread_of(data: Mapping[str, Any]) -> Spread:
    names = ("low", "high", "wider_each_doubling_below", "wider_each_doubling_above")
    low, high, below, above = (float(data[name]) for name in names)
    if not (0 < low <= 1 <= high and below >= 1 and above >= 1):
        raise ValueError("an interval without the value in it")
    return Spread(low, high, below, above, int(data["left_out"]))


def _entry_of(data: Mapping[str, Any]) -> KindModel:
    kind = dict(data["kind"])
    rename_old_keys(kind)
    if kind["collective"] not in COLLECTIVES:
        raise ValueError(f"collective {kind['collective']}")
    ranks = data.get("over_ranks")
    if ranks and ranks["law"] not in [one.name for one in step_laws(kind["collective"])]:
        raise ValueError(f"law {ranks['law']} of {kind['collective']}")
    return KindModel(
        kind,
        tuple(map(_sizes_of, data["over_sizes"])),
        _ranks_of(ranks) if ranks else None,
        str(data.get("no_law_over_ranks") or ""),
    )


def _sizes_of(data: Mapping[str, Any]) -> OverSizes:
    latencies = tuple(_known(one["latency_ns"]) for one in data["ranges"])
    bandwidths = tuple(_known(one["bandwidth_gbps"]) for one in data["ranges"])
    pieces = tuple(
        Piece(
            float(one["low_bytes"]),
            float(one["high_bytes"]),
            a[0] if a else 0.0,
            1 / b[0] if b else 0.0,
        )
        for one, a, b in zip(data["ranges"], latencies, bandwidths, strict=True)
    )
    own = [(float(one["size_bytes"]), _figure(one["factor"])) for one in data["corrections"]]
    if not pieces:
        raise ValueError("no range")
    beyond = _known(data["bandwidth_beyond_gbps"])
    logs = tuple((size, math.log(figure[0])) for size, figure in own)
    law = SizeLaw(pieces, logs, 1 / beyond[0] if beyond else 0.0, data["smooth"] is True)
    ranks, hosts, low, high, sizes = (int(data[name]) for name in _PLAIN)
    if low < 1:
        raise ValueError("sizes below one byte")
    told_by = int(data.get("bandwidth_beyond_of", 1))  # files of before do not have it
    return OverSizes(
        *(ranks, hosts, low, high, sizes, law, latencies, bandwidths),
        *(tuple(figure for _, figure in own), beyond, told_by, _spread_of(data["interval"])),
    )


def _ranks_of(data: Mapping[str, Any]) -> OverRanks:
    def link(name: str) -> Link | None:
        one = data[name]
        return one and (_known(one["step_ns"]), _known(one["bandwidth_gbps"]))

    ranks, hosts = tuple(map(int, data["ranks"])), tuple(map(int, data["hosts"]))
    if not (ranks and hosts and int(data["low_bytes"]) > 0):
        raise ValueError("a law over ranks that cannot be")
    return OverRanks(
        str(data["law"]),
        tuple(map(str, data["remaining"])),
        ranks,
        hosts,
        int(data["low_bytes"]),
        int(data["high_bytes"]),
        _known(data["launch_ns"]),
        link("within_host"),
        link("between_hosts"),
        tuple((float(c["size_bytes"]), _figure(c["factor"])) for c in data["corrections"]),
        _spread_of(data["interval"]),
    )
