"""The model of a machine: what collectives take by size and by ranks, and how wrong it is.

A file of parameters and intervals, no measured points: ``machine.json``, schema torchcoll-model/1.
``load_model(path).predict(collective, size_bytes, ranks)`` is what other rooms call.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from torchcoll.core.collectives import COLLECTIVES, find_collective
from torchcoll.core.errors import UnreadableError, UsageError, brief
from torchcoll.core.opening import read_regular
from torchcoll.core.units import counted, format_size
from torchcoll.curves.rank_laws import StepLaw, step_laws
from torchcoll.curves.size_law import Piece, SizeLaw, factors

MODEL_SCHEMA = "torchcoll-model/1"
BESIDE = "beside"  # of a kind: the work beside which its calls were measured
TOO_SHORT = "too_short"  # of the facts: what is wrong with that

# Value, and the ends of its 90 % interval. None in its place: too small to be told from nothing,
# and nothing in the law.
Figure = tuple[float, float, float]


# Of a step in ns, and GB/s.
Link = tuple[Figure | None, Figure | None]


class Prediction(NamedTuple):
    """Nanoseconds with their 90 % interval. beyond: how far outside of the data, '' within."""

    time_ns: float
    low_ns: float
    high_ns: float
    beyond: str


@dataclass(frozen=True)
class Spread:
    """The 90 % interval around a prediction, as factors: low and high within the data; for each
    doubling below or above them (of the size, or of the ranks) it is wider by these. points: left
    out to find it.
    """

    low: float
    high: float
    below: float
    above: float
    points: int

    def logs(self, below: float, above: float) -> tuple[float, float]:
        """Logarithms of both ends, so many doublings outside."""
        wider = below * math.log(self.below) + above * math.log(self.above)
        return math.log(self.low) - wider, math.log(self.high) + wider


@dataclass(frozen=True)
class OverSizes:
    """One number of ranks that was measured: its law over sizes. figures: of each piece its latency
    (ns) and bandwidth (GB/s, size over time) with their intervals; of each correction its factor;
    beyond: the bandwidth from the largest size on; beyond_of: the collectives that tell it.
    """

    ranks: int
    hosts: int
    low_bytes: int
    high_bytes: int
    sizes: int
    law: SizeLaw
    latencies: tuple[Figure | None, ...]
    bandwidths: tuple[Figure | None, ...]
    factors: tuple[Figure, ...]
    beyond: Figure | None
    beyond_of: int
    spread: Spread


@dataclass(frozen=True)
class OverRanks:
    """The law over ranks: launch_ns + steps x a step's latency + share x size / bandwidth.

    remaining: the laws that leaving out cannot tell from it. within, between: of links in a host
    and between hosts (step_ns, bandwidth_gbps); None where only the others were measured. Where
    hosts are not known, all is ``within``.
    """

    law: str
    remaining: tuple[str, ...]
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    low_bytes: int
    high_bytes: int
    launch_ns: Figure | None
    within: Link | None
    between: Link | None
    corrections: tuple[tuple[float, Figure], ...]
    spread: Spread

    def log_time(self, steps: StepLaw, size_bytes: int, ranks: int, hosts: int) -> float:
        row = terms(steps, size_bytes, ranks, hosts, min(self.hosts) > 1)
        figures = [self.launch_ns[0] if self.launch_ns else 0.0]
        for link in (self.within, self.between):
            step, bandwidth = link or (None, None)
            figures += [step[0] if step else 0.0, 1 / bandwidth[0] if bandwidth else 0.0]
        time = sum(a * b for a, b in zip(row, figures, strict=True))
        logs = tuple((size, math.log(factor[0])) for size, factor in self.corrections)
        return math.log(max(time, 1e-3)) + float(factors(logs, numpy.array([size_bytes]))[0])


def terms(
    steps: StepLaw, size_bytes: float, ranks: int, hosts: int, only_between: bool = False
) -> tuple[float, float, float, float, float]:
    """How often each parameter counts: launch, a step within a host, a byte within, a step between
    hosts, a byte between. Steps between hosts are those of the law over hosts; the bytes of several
    hosts are taken for those that the links between them carry, the slower ones.
    """
    share = steps.share(ranks) * size_bytes
    if only_between:
        return (1.0, 0.0, 0.0, steps.steps(ranks), share)
    if hosts < 2:
        return (1.0, steps.steps(ranks), share, 0.0, 0.0)
    across = min(steps.steps(hosts), steps.steps(ranks))
    return (1.0, steps.steps(ranks) - across, 0.0, across, share)


@dataclass(frozen=True)
class KindModel:
    """One kind of case: its laws over sizes, and over ranks where enough were measured; why_not:
    why there is none.
    """

    kind: Mapping[str, Any]
    over_sizes: tuple[OverSizes, ...]
    over_ranks: OverRanks | None
    why_not: str = ""

    @property
    def collective(self) -> str:
        return str(self.kind["collective"])

    @property
    def beside(self) -> str:
        """The work beside which its calls were; '' alone."""
        return str(self.kind.get(BESIDE) or "")

    @property
    def ranks_per_host(self) -> float | None:
        """Of the fullest host that was measured; None where no hosts are known."""
        return max((one.ranks / one.hosts for one in self.over_sizes if one.hosts), default=None)

    def predict(self, size_bytes: int, ranks: int, hosts: int | None = None) -> Prediction:
        """hosts: None is as many as the ranks need on hosts as full as the measured ones.

        Raises UsageError for a number of ranks that no law reaches.
        """
        if size_bytes < 1 or ranks < 2:
            got = f"{size_bytes} B on {ranks} ranks"
            raise UsageError("prediction", got, "at least 1 byte and 2 ranks")
        for one in self.over_sizes:
            if one.ranks == ranks and (hosts is None or one.hosts in (0, hosts)):
                return self._on_measured(one, size_bytes)
        if self.over_ranks is None:
            raise self._other_ranks(ranks, hosts)
        return self._on_others(self.over_ranks, size_bytes, ranks, hosts)

    def _other_ranks(self, ranks: int, hosts: int | None) -> UsageError:
        """What refuses them where there is no law over ranks."""
        own = self.over_sizes[-1]
        got, known = str(ranks), str(own.ranks)
        if hosts and own.ranks == ranks:
            got, known = f"{got} on {counted(hosts, 'host')}", f"{known} on {own.hosts}"
        other = own.ranks // 2 if own.ranks > 3 else 5 - own.ranks  # of 2 it is 3, of 3 it is 2
        sizes = f"-b {format_size(own.low_bytes)} -e {format_size(own.high_bytes)}"
        return UsageError(
            "ranks",
            got,
            f"{known}, no other number was measured",
            f"Measure another: {_launch(self.collective, other)} {sizes} -J FILE; then "
            "torchcoll model fit with both files.",
        )

    def _on_measured(self, one: OverSizes, size_bytes: int) -> Prediction:
        log = float(one.law.logs(numpy.array([float(size_bytes)]))[0])
        below, above = doublings(size_bytes, one.low_bytes, one.high_bytes)
        text = _beyond(size_bytes, one.low_bytes, one.high_bytes)
        if above and one.beyond_of > 1:
            text += f", where {one.beyond_of} collectives tell the slope together"
        return _prediction(log, one.spread.logs(below, above), [text])

    def _on_others(
        self, law: OverRanks, size_bytes: int, ranks: int, hosts: int | None
    ) -> Prediction:
        texts = []
        if max(law.hosts) < 2:  # 0: not known
            if hosts and hosts > 1:
                expected = "1: links between hosts were not measured"
                action = (
                    "Measure on two hosts or more too; then torchcoll model fit with all files."
                )
                raise UsageError("hosts", hosts, expected, action)
            hosts = 1
            if ranks > law.ranks[-1]:
                where = "on one host" if any(law.hosts) else "on hosts like those, not known"
                texts.append(f"as if {where}: links between hosts were not measured")
        hosts = hosts or max(1, math.ceil(ranks / (self.ranks_per_host or ranks) - 1e-9))
        steps = next(one for one in step_laws(self.collective) if one.name == law.law)
        if hosts > 1 and (law.between is None or law.between[1] is None):
            texts.append("no bandwidth between hosts was found in the data")
        log = law.log_time(steps, size_bytes, ranks, hosts)
        low, high = law.spread.logs(*doublings(ranks, law.ranks[0], law.ranks[-1]))
        inner = [one.spread.logs(0, 0) for one in self.over_sizes]
        # Numbers of ranks that were not measured are known no better than those that were.
        low, high = min(low, *(a for a, _ in inner)), max(high, *(b for _, b in inner))
        below, above = doublings(size_bytes, law.low_bytes, law.high_bytes)
        if below or above:  # as the laws over sizes were wrong there
            widths = [one.spread.logs(below, above) for one in self.over_sizes]
            low += min(a[0] - b[0] for a, b in zip(widths, inner, strict=True))
            high += max(a[1] - b[1] for a, b in zip(widths, inner, strict=True))
            texts.append(_beyond(size_bytes, law.low_bytes, law.high_bytes))
        if ranks > law.ranks[-1]:
            texts.append(f"{_times(ranks / law.ranks[-1])}x the most ranks ({law.ranks[-1]})")
        elif ranks < law.ranks[0]:
            texts.append(f"1/{_times(law.ranks[0] / ranks)} of the fewest ranks ({law.ranks[0]})")
        return _prediction(log, (low, high), texts)


_AS_LARGE = 1.01  # 64K are 65532 bytes where three ranks have a block each


def _launch(collective: str, ranks: int) -> str:
    return f"torchrun --nproc-per-node {ranks} -m torchcoll.{COLLECTIVES[collective].module}"


def doublings(value: float, low: float, high: float) -> tuple[float, float]:
    """How far below ``low`` and above ``high``; 0 within."""
    below, above = (ratio if ratio > _AS_LARGE else 1 for ratio in (low / value, value / high))
    return math.log2(below), math.log2(above)


def _beyond(size_bytes: int, low: int, high: int) -> str:
    below, above = doublings(size_bytes, low, high)
    if above:
        return f"{_times(size_bytes / high)}x the largest size ({format_size(high)})"
    if below:
        return f"1/{_times(low / size_bytes)} of the smallest size ({format_size(low)})"
    return ""


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 100 else f"{ratio:.0f}"


def _prediction(log: float, ends: tuple[float, float], texts: Sequence[str]) -> Prediction:
    low, high = (math.exp(min(700.0, log + end)) for end in ends)
    return Prediction(math.exp(min(700.0, log)), low, high, "; ".join(filter(None, texts)))


@dataclass(frozen=True)
class MachineModel:
    """What ``model fit`` found, or its file. facts: what is known of the machine."""

    entries: tuple[KindModel, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    def entry(self, collective: str, **kind: Any) -> KindModel:
        """The one of this collective whose kind has these values (dtype, in_place, ...); of
        several the one that was measured on the most numbers of ranks, then at the most sizes.

        Raises UsageError where there is none.
        """
        name = find_collective(collective).name
        own = [
            one
            for one in self.entries
            if one.collective == name and all(one.kind.get(k) == v for k, v in kind.items())
        ]
        if not own:
            got = " ".join([name, *(f"{k}={v}" for k, v in kind.items())])
            raise self.lacks(name, got)
        return max(own, key=lambda one: (len(one.over_sizes), sum(o.sizes for o in one.over_sizes)))

    def lacks(self, collective: str, got: str) -> UsageError:
        """What refuses a collective that was not measured, and how to have it measured."""
        known = ", ".join(dict.fromkeys(one.collective for one in self.entries))
        ranks = sorted({over.ranks for one in self.entries for over in one.over_sizes})
        each = ", ".join(map(str, ranks)) if ranks else "2 or more"
        action = f"Measure it, on {each} ranks: {_launch(collective, ranks[-1] if ranks else 2)} "
        action += "-b 1K -e 64M -J FILE; then torchcoll model fit with this file too."
        return UsageError("collective", got, f"what the model has: {known}", action)

    def predict(
        self, collective: str, size_bytes: int, ranks: int, hosts: int | None = None, **kind: Any
    ) -> Prediction:
        """Nanoseconds with their 90 % interval, and how far beyond the data; see ``entry`` and
        ``KindModel.predict``. size_bytes: the size S of nccl-tests.
        """
        return self.entry(collective, **kind).predict(size_bytes, ranks, hosts)


# -- tables of predictions -------------------------------------------------------------------

WIDEST = 100.0  # the ends of an interval: where they differ by more, nothing is predicted


@dataclass(frozen=True)
class PredictedRow:
    """One size on one number of ranks; prediction: None where it would be no more than a guess, or
    no law reaches so far; reason: which; action: what to do about it.
    """

    kind: Mapping[str, Any]
    ranks: int
    size_bytes: int
    prediction: Prediction | None
    reason: str = ""
    action: str = ""


def predict_all(
    model: MachineModel, ranks: Sequence[int], sizes: Sequence[int], collective: str | None = None
) -> list[PredictedRow]:
    """Every kind of case of the model, or of one collective.

    Raises UsageError where nothing can be predicted, with the first reason.
    """
    name = find_collective(collective).name if collective else None
    entries = [one for one in model.entries if name in (None, one.collective)]
    if name and not entries:
        raise model.lacks(name, name)
    rows, first = [], None
    for entry in entries:
        for n in ranks:
            for size in sizes:
                try:
                    found, reason, action = entry.predict(size, n), "", ""
                except UsageError as error:
                    found, reason, first = None, brief(error), first or error
                    action = error.action
                if found and (reason := only_a_guess(found)):
                    found, action = None, MORE_DATA
                rows.append(PredictedRow(entry.kind, n, size, found, reason, action))
    if all(row.prediction is None for row in rows):
        got = f"none: each 90 % interval is wider than {WIDEST:g}x"
        raise first or UsageError(
            "prediction", got, f"what is nearer to {_data(entries)}", MORE_DATA
        )
    return rows


def _data(entries: Sequence[KindModel]) -> str:
    measured = [one for entry in entries for one in entry.over_sizes]
    ranks = ", ".join(map(str, sorted({one.ranks for one in measured})))
    low = format_size(min(one.low_bytes for one in measured))
    return f"the data ({ranks} ranks, {low} to {format_size(max(o.high_bytes for o in measured))})"


MORE_DATA = "Measure nearer sizes, or more numbers of ranks, and fit again."


def too_wide(low_ns: float, high_ns: float) -> bool:
    """Whether an interval with these ends says nothing."""
    return high_ns > WIDEST * low_ns


def only_a_guess(found: Prediction) -> str:
    """Why it says nothing; '' where it is a prediction."""
    if not too_wide(found.low_ns, found.high_ns):
        return ""
    where = f"{found.beyond}: " if found.beyond else ""
    return f"{where}its 90 % interval is wider than {WIDEST:g}x"


# -- the file --------------------------------------------------------------------------------


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
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", _on_one_line, text) + "\n"


def _on_one_line(found: re.Match[str]) -> str:
    return f"[{' '.join(found[1].split())}]"


def model_object(model: MachineModel) -> dict[str, Any]:
    return {
        "schema": MODEL_SCHEMA,
        "units": "ns; GB/s = 10^9 bytes/s; each figure is [value, low, high], a 90 % interval",
        "machine": dict(model.facts),
        "entries": [_entry_object(one) for one in model.entries],
    }


def _entry_object(entry: KindModel) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": {k: v for k, v in entry.kind.items() if v is not None},
        "over_sizes": [_sizes_object(one) for one in entry.over_sizes],
    }
    if entry.over_ranks:
        found["over_ranks"] = _ranks_object(entry.over_ranks)
    else:
        found["no_law_over_ranks"] = entry.why_not
    return found


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


_PLAIN = ("ranks", "hosts", "low_bytes", "high_bytes", "sizes")


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
