"""Rules: what a fabric can reach, each number with its source. Files are TOML, one fabric each.

A fabric is how devices are connected: eight H200 on NVSwitch and eight H200 on PCIe are two
fabrics. Users add files of their own. An unknown key or a missing source is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from torchcoll.core import errors
from torchcoll.core.backends import backend_of
from torchcoll.core.collectives import DTYPES, OPS, find_collective
from torchcoll.core.opening import open_to_read
from torchcoll.core.plausibility import DeviceLimits
from torchcoll.core.summary import Row
from torchcoll.core.toml_text import toml_table
from torchcoll.core.units import parse_size

_FABRIC = ("name", "what", "devices", "nvlinks", "to_switch", "several_hosts", "parameter", "limit")
_LIMIT = (
    *("algorithm", "collectives", "busbw_gbps", "busbw_gbps_each", "from", "from_per_rank"),
    *("only", "source"),
)
# Fields of a Row, and whether it may have a value.
_ONLY: dict[str, Callable[[Any], bool]] = {
    "ranks": lambda value: type(value) is int and value > 0,
    "dtype": lambda value: value in DTYPES,
    "op": lambda value: value in OPS,
}
_MOST_BYTES = 1 << 16  # of a file of rules; ours have 1 KB
_MOST_GBPS = 1e9  # beyond, a figure is a slip
_LINKS = {"nvlinks", "to_switch"}  # a fabric is never known by the name of a GPU alone


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
    """The table of one file, checked but for its parameter."""

    table: Mapping[str, Any]
    path: str

    @property
    def name(self) -> str:
        return str(self.table["name"])

    def fabric(self, number: float | None = None) -> Fabric:
        limits = [_limit(limit, number) for limit in self.table["limit"]]
        return Fabric(
            self.name if number is None else f"{self.name}:{number:g}",
            self.table.get("what", ""),
            tuple(limits),
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


def read_rules(paths: Sequence[str | os.PathLike[str]]) -> dict[str, Rule]:
    """name -> the rule of each of the user's own files.

    Raises UnreadableError for a file that holds no rule, UsageError for two of one name.
    """
    rules: dict[str, Rule] = {}
    if not isinstance(paths, list | tuple):
        raise errors.UsageError("rules", type(paths).__name__, "a list of files")
    for path in paths:
        rule = _rule(Path(errors.path_text(path, "rules", "files")))
        if rule.name in rules:
            expected = f"another name than in {rules[rule.name].path}"
            raise errors.UsageError("rules", f"name {rule.name} in {path}", expected)
        rules[rule.name] = rule
    return rules


def load_fabric(text_of_option: str, own_rules: Mapping[str, Rule] | None = None) -> Fabric:
    """The fabric ``name`` or ``name:number`` of the user's own rules, or of the package.

    Raises UsageError for one that is not there, and for a wrong parameter.
    """
    if not isinstance(text_of_option, str):
        expected = "the name of a fabric, such as nvswitch-h100"
        raise errors.UsageError("fabric", type(text_of_option).__name__, expected)
    name, colon, text = text_of_option.partition(":")
    rule = (own_rules or {}).get(name)
    if rule is None:
        packaged_names = packaged()
        if name not in packaged_names:
            names = dict.fromkeys([*(own_rules or {}), *packaged_names])
            raise errors.unknown("fabric", name, names, action="Or add a file: --rules FILE.")
        parameter = _parameter(_packaged(name), text_of_option, text if colon else None)
        return _packaged_fabric(name, parameter)
    return rule.fabric(_parameter(rule, text_of_option, text if colon else None))


def guessable(own_rules: Mapping[str, Rule]) -> list[Fabric]:
    """The fabrics that a run can be known to be of, the user's own first."""
    local = [rule.fabric() for rule in own_rules.values() if _is_guessable(rule)]
    names = (name for name in packaged() if _is_guessable(_packaged(name)))
    return [*local, *(_packaged_fabric(name, None) for name in names)]


def _is_guessable(rule: Rule) -> bool:
    return bool(rule.table.get("devices")) and not rule.table.get("parameter")


def capped(limit: Limit, device: DeviceLimits | None) -> tuple[float, str]:
    """(busbw, source) of a limit of what connects hosts: within each, its GPUs' links are all that
    a ring has.
    """
    if device is None or device.ring_gbps >= limit.busbw_gbps:
        return limit.busbw_gbps, limit.source
    return device.ring_gbps, f"the NVLinks of a {device.name}, less than the interfaces of a node"


@cache  # 2,000 runs that are judged are not 36,000 readings of the same 18 files
def _packaged(name: str) -> Rule:
    return _rule(resources.files("torchcoll").joinpath("rules").joinpath(f"{name}.toml"))


@lru_cache(maxsize=256)
def _packaged_fabric(name: str, number: float | None) -> Fabric:
    return _packaged(name).fabric(number)


def _parameter(rule: Rule, fabric: str, text: str | None) -> float | None:
    what = rule.table.get("parameter")
    if not what:
        if text is not None:
            raise errors.UsageError("fabric", fabric, f"{rule.name} without a number")
        return None
    try:
        number = float(text or "")
    except ValueError:
        number = 0.0
    if not 0 < number < _MOST_GBPS:
        raise errors.UsageError("fabric", fabric, f"{rule.name}:N, N the {what}, above 0")
    return number


def _rule(file: Any) -> Rule:
    try:
        # One of the package may be in an archive.
        with open_to_read(file) if isinstance(file, Path) else file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise errors.UnreadableError("rules", file, f"a file of at most {_MOST_BYTES} bytes")
        table = toml_table(content.decode())
    except ImportError:
        raise errors.UsageError(
            "rules", f"{file} without tomli", "Python 3.11, or tomli", "pip install tomli"
        ) from None
    except OSError as error:
        raise errors.UnreadableError(
            "rules", file, f"a file that can be read ({error.strerror})"
        ) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML
        raise errors.UnreadableError("rules", f"{file} ({error})", "a TOML file") from None
    rule = Rule(table, str(file))
    try:
        _check_keys(table, _FABRIC)
        fabric = rule.fabric(1.0 if table.get("parameter") else None)
        if ":" in rule.name or type(fabric.several_hosts) is not bool:
            raise ValueError("name has a colon, or several_hosts is not true or false")
        if fabric.devices and not (_LINKS.issubset(table) and isinstance(table["devices"], list)):
            raise ValueError("devices is a list, and needs nvlinks and to_switch too")
    except (KeyError, TypeError, ValueError, AttributeError, errors.TorchcollError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        expected = "a fabric, as docs/healthy.md shows one"
        raise errors.UnreadableError("rules", f"{file} ({why})", expected) from None
    return rule


def _limit(limit: Mapping[str, Any], number: float | None) -> Limit:
    """Raises KeyError, TypeError, ValueError or UsageError for what cannot be a limit."""
    _check_keys(limit, _LIMIT)
    only = {name: tuple(values) for name, values in limit.get("only", {}).items()}
    _check_keys(only, tuple(_ONLY))
    for name, values in only.items():
        # What no case has would make a limit that never holds.
        if not values or not all(map(_ONLY[name], values)):
            raise ValueError(f"only {name} {list(values)}")
    if ("busbw_gbps" in limit) == ("busbw_gbps_each" in limit):
        raise ValueError("one of busbw_gbps and busbw_gbps_each is needed")
    if "busbw_gbps_each" in limit and number is None:
        raise ValueError("busbw_gbps_each without parameter = TEXT: what it is for each of")
    gbps = limit["busbw_gbps"] if "busbw_gbps" in limit else limit["busbw_gbps_each"] * number
    if not 0 < gbps < _MOST_GBPS or isinstance(gbps, bool):
        raise ValueError(f"busbw_gbps {gbps}")
    if not (limit["source"].strip() and limit["algorithm"].strip() and limit["collectives"]):
        raise ValueError("source, algorithm and collectives may not be empty")
    if not isinstance(limit["collectives"], list):
        raise TypeError("collectives is no list")
    return Limit(
        limit["algorithm"],
        tuple(find_collective(name).name for name in limit["collectives"]),
        float(gbps),
        limit["source"],
        parse_size(limit.get("from", 1), "from"),
        parse_size(limit.get("from_per_rank", 0), "from_per_rank"),
        only,
    )


def _check_keys(table: Mapping[str, Any], names: Sequence[str]) -> None:
    if wrong := sorted(set(table) - set(names)):
        raise ValueError(f"key {wrong[0]}. {errors.did_you_mean(wrong[0], names)}".rstrip(". "))
