"""Read and write the file of a model, ``machine.json``: parameters and intervals, not the data."""

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
from torchcoll.core.opening import read_regular
from torchcoll.parts.curves.model import (
    Figure,
    KindModel,
    Link,
    MachineModel,
    OverRanks,
    OverSizes,
    Spread,
)
from torchcoll.parts.curves.rank_laws import step_laws
from torchcoll.parts.curves.size_law import Piece, SizeLaw

MODEL_SCHEMA = "torchcoll-model/1"
_PLAIN = ("ranks", "hosts", "low_bytes", "high_bytes", "sizes")


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
    entries = []
    for entry in model.entries:
        record: dict[str, Any] = {
            "kind": {k: v for k, v in entry.kind.items() if v is not None},
            "over_sizes": [_sizes_object(sizes) for sizes in entry.over_sizes],
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


def _sizes_object(curve: OverSizes) -> dict[str, Any]:
    pieces = zip(curve.law.pieces, curve.latencies, curve.bandwidths, strict=True)
    return {
        **{name: getattr(curve, name) for name in _PLAIN},
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
            for (size, _), figure in zip(curve.law.corrections, curve.factors, strict=True)
        ],
        "smooth": curve.law.smooth,
        "bandwidth_beyond_gbps": _digits(curve.beyond),
        "bandwidth_beyond_of": curve.beyond_of,
        "interval": _spread_object(curve.spread),
    }


def _ranks_object(law: OverRanks) -> dict[str, Any]:
    def link(figures: Link | None) -> Any:
        if figures is None:
            return None
        return {"step_ns": _digits(figures[0]), "bandwidth_gbps": _digits(figures[1])}

    return {
        "law": law.law,
        "remaining": list(law.remaining),
        "supported": law.supported,
        "ranks": list(law.ranks),
        "hosts": list(law.hosts),
        "low_bytes": law.low_bytes,
        "high_bytes": law.high_bytes,
        "launch_ns": _digits(law.launch_ns),
        "within_host": link(law.within),
        "between_hosts": link(law.between),
        "corrections": [
            {"size_bytes": round(size), "factor": _digits(figure)}
            for size, figure in law.corrections
        ],
        "interval": _spread_object(law.spread),
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
    """Round to six digits, which is more than any measurement resolves."""
    return None if figure is None else [float(f"{value:.6g}") for value in figure]


def _optional_figure(data: Any) -> Figure | None:
    return None if data is None else _figure(data)


def _figure(data: Any) -> Figure:
    value, low, high = (float(number) for number in data)
    if not all(map(math.isfinite, (value, low, high))):
        raise ValueError("a figure that is no number")
    return value, low, high


def _read_spread(data: Mapping[str, Any]) -> Spread:
    names = ("low", "high", "wider_each_doubling_below", "wider_each_doubling_above")
    low, high, below, above = (float(data[name]) for name in names)
    if not (0 < low <= 1 <= high and below >= 1 and above >= 1):
        raise ValueError("an interval without the value in it")
    return Spread(low, high, below, above, int(data["left_out"]))


def _read_entry(data: Mapping[str, Any]) -> KindModel:
    kind = dict(data["kind"])
    if kind["collective"] not in COLLECTIVES:
        raise ValueError(f"collective {kind['collective']}")
    ranks = data.get("over_ranks")
    if ranks and ranks["law"] not in [law.name for law in step_laws(kind["collective"])]:
        raise ValueError(f"law {ranks['law']} of {kind['collective']}")
    return KindModel(
        kind,
        tuple(map(_read_sizes, data["over_sizes"])),
        _read_ranks(ranks) if ranks else None,
        str(data.get("no_law_over_ranks") or ""),
    )


def _read_sizes(data: Mapping[str, Any]) -> OverSizes:
    latencies = tuple(_optional_figure(size_range["latency_ns"]) for size_range in data["ranges"])
    bandwidths = tuple(_optional_figure(each["bandwidth_gbps"]) for each in data["ranges"])
    pieces = tuple(
        Piece(
            float(size_range["low_bytes"]),
            float(size_range["high_bytes"]),
            a[0] if a else 0.0,
            1 / b[0] if b else 0.0,
        )
        for size_range, a, b in zip(data["ranges"], latencies, bandwidths, strict=True)
    )
    corrections = [
        (float(correction["size_bytes"]), _figure(correction["factor"]))
        for correction in data["corrections"]
    ]
    if not pieces:
        raise ValueError("no range")
    beyond = _optional_figure(data["bandwidth_beyond_gbps"])
    logs = tuple((size, math.log(figure[0])) for size, figure in corrections)
    law = SizeLaw(pieces, logs, 1 / beyond[0] if beyond else 0.0, data["smooth"] is True)
    ranks, hosts, low, high, sizes = (int(data[name]) for name in _PLAIN)
    if low < 1:
        raise ValueError("sizes below one byte")
    return OverSizes(
        ranks,
        hosts,
        low,
        high,
        sizes,
        law,
        latencies,
        bandwidths,
        tuple(figure for _, figure in corrections),
        beyond,
        int(data["bandwidth_beyond_of"]),
        _read_spread(data["interval"]),
    )


def _read_ranks(data: Mapping[str, Any]) -> OverRanks:
    def link(name: str) -> Link | None:
        link_data = data[name]
        return link_data and (
            _optional_figure(link_data["step_ns"]),
            _optional_figure(link_data["bandwidth_gbps"]),
        )

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
        _optional_figure(data["launch_ns"]),
        link("within_host"),
        link("between_hosts"),
        tuple((float(c["size_bytes"]), _figure(c["factor"])) for c in data["corrections"]),
        _read_spread(data["interval"]),
        data["supported"] is True,
    )
