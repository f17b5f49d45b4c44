"""What was said after one night, and the memory of the model between two nights."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from torchcoll.parts.fleet.fleet_model import FleetModel
from torchcoll.parts.fleet.fleet_state import FEWEST_PEERS
from torchcoll.parts.fleet.following import NODE_ERROR
from torchcoll.parts.fleet.groups import FactChange
from torchcoll.parts.fleet.incident import Incident
from torchcoll.parts.fleet.noise import SeriesNoise, quiet_mean, quiet_median
from torchcoll.parts.fleet.peers import FEWEST, outlying
from torchcoll.parts.fleet.records import CaseKey
from torchcoll.stats.distributions import normal_quantile, t_quantile

_ERROR = 0.01  # probability that a healthy night has a node that is slow tonight
_TAILS = 4.0  # degrees of freedom of a single night: it may be far out
_ARRAYS = (
    "times",
    "known",
    "fleet",
    "usual",
    "weights",
    "seen",
    "first",
    "free_from",
    "fleet_usual",
)


@dataclass(frozen=True)
class SlowTonight:
    """A node, or the fleet, that was slow in one night alone, so far. by_peers: compared with its
    peers, because its own usual times are not known yet.
    """

    node: str
    effect: float
    where: str
    by_peers: bool


@dataclass(frozen=True)
class Snapshot:
    """What was said of the nodes of one device model and number of ranks after one night.

    incidents: those that are open. tonight: nodes that are slow in this night alone. nodes: how
    many had a run, of which has_usual have usual times. nights: how many had a run. detectable: the
    slowdown of one node in all cases that would be found in 7 nights, as a difference of log times;
    None if no node has usual times.
    first_calls: this is about the first calls, not about the steady times.
    """

    device_name: str
    ranks: int
    night: int
    incidents: tuple[Incident, ...]
    tonight: tuple[SlowTonight, ...]
    nodes: int
    has_usual: int
    nights: int
    cases: int
    detectable: float | None
    first_calls: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Snapshot:
        """Raises KeyError or TypeError for what no snapshot can be."""
        incidents = tuple(map(Incident.from_json, data["incidents"]))
        tonight = tuple(SlowTonight(**each) for each in data["tonight"])
        return cls(**{**data, "incidents": incidents, "tonight": tonight})


def snapshot_of(model: FleetModel, device_name: str, ranks: int, nights: int) -> Snapshot:
    present = np.isfinite(model.times[-1]).any(axis=1)
    return Snapshot(
        device_name,
        ranks,
        model.night,
        tuple(each for each in model.incidents if each.is_open),
        () if model.first_calls else tuple(slow_tonight(model)),
        int(present.sum()),
        int((present & (model.baseline.nights > 0)).sum()),
        nights,
        len(model.keys),
        detectable(model),
        model.first_calls,
    )


def detectable(model: FleetModel) -> float | None:
    """The step of the median node in all cases that is found within 7 nights 9 times in 10."""
    noise = model.noise
    has_usual = model.baseline.nights > 0
    if noise is None or not has_usual.any():
        return None
    scale = float(np.median(noise.scale[has_usual, 0]))
    degrees = float(np.median(noise.degrees[has_usual, 0]))
    nights = int(np.median(model.baseline.nights[has_usual]))
    variance = noise.factors[7] / 7 + noise.factors[nights] / nights
    needed = t_quantile(1 - NODE_ERROR, degrees) * math.sqrt(variance)
    missed = normal_quantile(0.9) * math.sqrt(noise.factors[7] / 7)
    return max(model.least + missed * scale, (needed + missed) * scale)


def slow_tonight(model: FleetModel) -> list[SlowTonight]:
    """Nodes that are slow in this night alone: compared with their own usual times, and where these
    are not known yet, with their peers.
    """
    present = np.isfinite(model.times[-1]).any(axis=1)
    blamed = {each.subject for each in model.incidents if each.is_open and each.scope != "group"}
    results: list[SlowTonight] = []
    has_usual = present & (model.baseline.nights > 0)
    noise = model.noise
    if noise is not None and has_usual.any():
        names, left = [*model.names], model.left(nights=1)[0]
        scale = noise.scale * np.sqrt(1 + 1 / np.maximum(model.baseline.nights, 1))[:, None]
        left[
            [not usual or name in blamed for usual, name in zip(has_usual, names, strict=True)]
        ] = 0
        if model.fleet_noise is not None and len(names) > FEWEST_PEERS and "" not in blamed:
            names.append("fleet")
            left = np.concatenate([left, model.cases_over_nights(-1)[-1:]])
            scale = np.concatenate(
                [scale, np.maximum(model.fleet_noise.scale, model.night_error())]
            )
        with np.errstate(invalid="ignore"):
            errors = np.nan_to_num(model.project(left) / scale) * math.sqrt(2)
        chances = special.stdtr(_TAILS, -errors)
        # Benjamini and Hochberg (1995): where many nodes are slow, each is with less evidence.
        ordered = np.sort(chances, axis=None)
        allowed = ordered <= _ERROR * np.arange(1, ordered.size + 1) / ordered.size
        limit = float(ordered[allowed].max(initial=0.0))
        for node in np.flatnonzero((chances <= limit).any(axis=1)).tolist():
            subset = model.subsets[int(np.argmin(chances[node]))]
            cases = model.slow_cases(left[node], subset)
            effect = float(model.over(left[node][None], cases)[0])
            if effect > model.least:
                results.append(SlowTonight(names[node], effect, model.where(cases), False))
    new = present & (model.baseline.nights == 0)
    if new.any() and present.sum() >= FEWEST:
        times = np.where(present[:, None], model.times[-1].astype(np.float64), np.nan)
        left = times - quiet_median(times)
        for subset in model.subsets:
            over = quiet_mean(left[:, subset.cases], axis=1)
            ratios = outlying(over, _ERROR / len(model.subsets))
            named = {each.node for each in results}
            for node in np.flatnonzero((ratios > 1) & new & (over > model.least)).tolist():
                if model.names[node] in named:
                    continue
                cases = model.slow_cases(left[node], subset)
                effect = float(left[node][cases].mean())
                results.append(SlowTonight(model.names[node], effect, model.where(cases), True))
    return sorted(results, key=lambda each: -each.effect)


def pack(model: FleetModel) -> bytes:
    """The memory of the model, for a store."""
    about = {
        "night": model.night,
        "least": model.least,
        "fleet_free_from": model.fleet_free_from,
        "nights": model.nights,
        "names": model.names,
        "keys": [key.to_json() for key in model.keys],
        "facts": [dict(each) for each in model.facts],
        "changes": [asdict(each) for each in model.changes],
        "incidents": [each.to_json() for each in model.incidents],
    }
    arrays = {name: getattr(model, name) for name in _ARRAYS}
    for prefix, baseline in (("node", model.baseline), ("fleet", model.fleet_baseline)):
        arrays |= {f"{prefix}_{name}": values for name, values in vars(baseline).items()}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def unpack(data: bytes) -> FleetModel:
    """The model of ``pack``. Raises ValueError, KeyError or TypeError for what cannot be one."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        about = json.loads(arrays["about"].tobytes())
        model = FleetModel(0.0)
        model.grow(about["names"], [CaseKey.from_json(key) for key in about["keys"]])
        for name in _ARRAYS:
            getattr(model, name)[:] = arrays[name]
        for prefix, held in (("node", model.baseline), ("fleet", model.fleet_baseline)):
            for name, values in vars(held).items():
                values[:] = arrays[f"{prefix}_{name}"]
    model.least, model.night = float(about["least"]), int(about["night"])
    model.fleet_free_from, model.nights = int(about["fleet_free_from"]), int(about["nights"])
    model.facts = about["facts"]
    model.changes = [FactChange(**each) for each in about["changes"]]
    model.incidents = [Incident.from_json(each) for each in about["incidents"]]
    if model.baseline.nights.any():
        model.noise = SeriesNoise.of(model.baseline)
    if model.fleet_baseline.nights.any():
        model.fleet_noise = SeriesNoise.of(model.fleet_baseline)
    return model
