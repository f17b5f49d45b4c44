"""Rules: what a fabric can reach, each number with its source. Files are TOML, one fabric each.

A fabric is how devices are connected, not which they are: eight H200 on NVSwitch and eight H200 on
PCIe are two. Users add their own files; a file with an unknown key or without a source is refused.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from torchcoll.core.collectives import find_collective
from torchcoll.core.errors import TorchcollError, UsageError
from torchcoll.core.units import parse_size

_FABRIC = {"name", "what", "devices", "nvlinks", "to_switch", "several_hosts", "parameter", "limit"}
_LIMIT = {"algorithm", "collectives", "busbw_gbps", "busbw_gbps_each", "from", "source"}


@dataclass(frozen=True)
class Limit:
    """busbw that an algorithm can reach, for these collectives from ``nbytes`` on."""

    algorithm: str
    collectives: tuple[str, ...]
    busbw_gbps: float
    nbytes: int
    source: str


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


def packaged() -> list[str]:
    """The names of the fabrics that torchcoll knows."""
    files = resources.files("torchcoll").joinpath("rules").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_fabric(stated: str, own: Sequence[str | os.PathLike[str]] = ()) -> Fabric:
    """The fabric ``name`` or ``name:number`` of the user's own rules, or of the package.

    Raises UsageError for one that is not there, and for a wrong parameter.
    """
    name, colon, text = stated.partition(":")
    tables = {str(table.get("name")): (table, path) for table, path in _own(own)}
    if name not in tables:
        known = packaged()
        if name not in known:
            names = ", ".join([*tables, *known])
            raise UsageError("fabric", name, f"one of {names}", "Or add a file: --rules FILE.")
        tables[name] = _packaged_table(name)
    table, path = tables[name]
    return _fabric(table, path, _parameter(table, stated, text) if colon else None)


def guessable() -> list[Fabric]:
    """The fabrics that a run can be known to be of."""
    found = []
    for name in packaged():
        table, path = _packaged_table(name)
        if table.get("devices"):
            found.append(_fabric(table, path, None))
    return found


def _packaged_table(name: str) -> tuple[dict[str, Any], str]:
    return _table(resources.files("torchcoll").joinpath("rules").joinpath(f"{name}.toml"))


def _own(paths: Iterable[str | os.PathLike[str]]) -> list[tuple[dict[str, Any], str]]:
    return [_table(Path(path)) for path in paths]


def _table(file: Any) -> tuple[dict[str, Any], str]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(file.read_bytes().decode()), str(file)
    except OSError as error:
        raise UsageError("rules", file, f"a file that can be read ({error.strerror})") from None
    except ValueError as error:  # not UTF-8, not TOML
        raise UsageError("rules", f"{file} ({error})", "a TOML file") from None


def _parameter(table: Mapping[str, Any], stated: str, text: str) -> float:
    what = table.get("parameter")
    if not what:
        raise UsageError("fabric", stated, f"{table.get('name')} without a number")
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise UsageError("fabric", stated, f"{table.get('name')}:N, N the {what}, above 0")
    return number


def _fabric(table: Mapping[str, Any], path: str, parameter: float | None) -> Fabric:
    def refuse(what: str, expected: str) -> UsageError:
        return UsageError("rules", f"{what} in {path}", expected)

    name = table.get("name")
    if unknown := set(table) - _FABRIC:
        raise refuse(f"key {sorted(unknown)[0]}", f"some of {', '.join(sorted(_FABRIC))}")
    if not isinstance(name, str) or not isinstance(table.get("several_hosts"), bool):
        raise refuse("no name or no several_hosts", "name = TEXT and several_hosts = true or false")
    if table.get("parameter") and parameter is None:
        raise UsageError("fabric", name, f"{name}:N, N the {table['parameter']}")
    limits = []
    for limit in table.get("limit") or []:
        if unknown := set(limit) - _LIMIT:
            raise refuse(f"key {sorted(unknown)[0]}", f"some of {', '.join(sorted(_LIMIT))}")
        if not limit.get("source"):
            raise refuse("a limit without a source", "source = where the number comes from")
        each = limit.get("busbw_gbps_each")
        number = each * parameter if each and parameter else limit.get("busbw_gbps")
        if not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise refuse(f"busbw_gbps {number}", "GB/s above 0")
        try:
            names = tuple(find_collective(c).name for c in limit.get("collectives") or ())
            nbytes = parse_size(limit.get("from", 1), "from")
        except (TorchcollError, TypeError) as error:
            raise refuse(f"{error}", "names of collectives, and a size such as 128M") from None
        limits.append(Limit(limit.get("algorithm", ""), names, number, nbytes, limit["source"]))
    if not limits:
        raise refuse("no limit", "at least one [[limit]]")
    return Fabric(
        name if parameter is None else f"{name}:{parameter:g}",
        str(table.get("what", "")),
        tuple(limits),
        table["several_hosts"],
        tuple(table.get("devices") or ()),
        table.get("nvlinks"),
        table.get("to_switch"),
    )
