"""Rules: what a fabric can reach, each number with its source. Files are TOML, one fabric each.

A fabric is how devices are connected: eight H200 on NVSwitch and eight H200 on PCIe are two
fabrics.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from torchcoll.core import errors
from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import find_collective
from torchcoll.core.plausibility import DeviceLimits
from torchcoll.core.summary import Row
from torchcoll.core.units import parse_size

_MOST_GBPS = 1e9  # beyond, a figure is a slip


def toml_table(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError for invalid TOML, ImportError if Python 3.10 lacks tomli."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    table: dict[str, Any] = tomllib.loads(text)
    return table


@dataclass(frozen=True)
class Limit:
    """busbw that an algorithm can reach, for these collectives.

    From ``size_bytes`` on, and from ``bytes_per_rank`` for each rank: what a ring costs beside its
    bandwidth grows with the ranks. only: fields of a Row and the values that they may have; what a
    source does not tell of type and operation is taken for nccl-tests' default, which all have.
    """

    algorithm: str
    collectives: tuple[str, ...]
    busbw_gbps: float
    source: str
    size_bytes: int = 1
    bytes_per_rank: int = 0
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def least(self, ranks: int) -> int:
        return max(self.size_bytes, self.bytes_per_rank * ranks)

    def holds(self, row: Row) -> bool:
        """Whether the row can be measured by it."""
        if row.collective not in self.collectives or row.size_bytes < self.least(row.ranks):
            return False
        pairs = ((getattr(row, name), values) for name, values in self.only.items())
        return all(value is None or value in values for value, values in pairs)


@dataclass(frozen=True)
class Fabric:
    """How the ranks are connected, and its limits.

    devices, nvlinks, to_switch: what a run must show to be known as this fabric without being told;
    no devices: it is never guessed. several_hosts: whether it connects hosts or lies within one.
    """

    name: str
    what: str
    limits: tuple[Limit, ...]
    several_hosts: bool
    devices: tuple[str, ...] = ()
    nvlinks: int | None = None
    to_switch: bool | None = None

    def connects(self, row: Row) -> bool:
        """Whether it is what the row went through: gloo goes through the hosts' memory, and
        sub-groups share what connects hosts.
        """
        if self.several_hosts:
            return not row.group
        return row.device != "cpu" and not backend_of(row.backend).staged


@dataclass(frozen=True)
class Rule:
    """The table of one file."""

    table: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.table["name"])

    def fabric(self, number: float | None = None) -> Fabric:
        return Fabric(
            self.name if number is None else f"{self.name}:{number:g}",
            self.table.get("what", ""),
            tuple(_limit(limit, number) for limit in self.table["limit"]),
            self.table["several_hosts"],
            tuple(self.table.get("devices", ())),
            self.table.get("nvlinks"),
            self.table.get("to_switch"),
        )


@cache  # the package does not change while it runs, and every verdict asks
def packaged() -> tuple[str, ...]:
    """The names of the fabrics that torchcoll knows."""
    files = resources.files("torchcoll").joinpath("rules").iterdir()
    names = (file.name for file in files)
    return tuple(sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml")))


def load_fabric(text_of_option: str) -> Fabric:
    """The fabric ``name`` or ``name:number``.

    Raises UsageError for one that is not there, and for a wrong parameter.
    """
    if not isinstance(text_of_option, str):
        expected = "the name of a fabric, such as nvswitch-h100"
        raise errors.UsageError("fabric", type(text_of_option).__name__, expected)
    name, colon, text = text_of_option.partition(":")
    if name not in packaged():
        raise errors.unknown("fabric", name, packaged())
    what = packaged_rule(name).table.get("parameter")
    if not what:
        if colon:
            raise errors.UsageError("fabric", text_of_option, f"{name} without a number")
        return _packaged_fabric(name, None)
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < _MOST_GBPS:
        raise errors.UsageError("fabric", text_of_option, f"{name}:N, N the {what}, above 0")
    return _packaged_fabric(name, number)


def guessable() -> list[Fabric]:
    """The fabrics that a run can be known to be of."""
    tables = {name: packaged_rule(name).table for name in packaged()}
    return [
        _packaged_fabric(name, None)
        for name, table in tables.items()
        if table.get("devices") and not table.get("parameter")
    ]


def capped(limit: Limit, device: DeviceLimits | None) -> tuple[float, str]:
    """(busbw, source) of a limit of what connects hosts: within each, its GPUs' links are all that
    a ring has.
    """
    if device is None or device.ring_gbps >= limit.busbw_gbps:
        return limit.busbw_gbps, limit.source
    return device.ring_gbps, f"the NVLinks of a {device.name}, less than the interfaces of a node"


@cache  # 2,000 runs that are judged are not 36,000 readings of the same 18 files
def packaged_rule(name: str) -> Rule:
    file = resources.files("torchcoll").joinpath("rules").joinpath(f"{name}.toml")
    return Rule(toml_table(file.read_text(encoding="utf-8")))


@lru_cache(maxsize=256)
def _packaged_fabric(name: str, number: float | None) -> Fabric:
    return packaged_rule(name).fabric(number)


def _limit(limit: Mapping[str, Any], number: float | None) -> Limit:
    gbps = limit["busbw_gbps"] if number is None else limit["busbw_gbps_each"] * number
    return Limit(
        limit["algorithm"],
        tuple(find_collective(name).name for name in limit["collectives"]),
        float(gbps),
        limit["source"],
        parse_size(limit.get("from", 1), "from"),
        parse_size(limit.get("from_per_rank", 0), "from_per_rank"),
        {key: tuple(values) for key, values in limit.get("only", {}).items()},
    )
