"""A table in Markdown or CSV: the form of most published figures.

``--map size=Size,algbw='Algbw (GB/s)'`` names its columns; without it, names that say what they
are are found. A heading of Markdown above a table names its collective. Sizes are binary (16GB is
16 x 2^30 bytes), as nccl-tests has it; units of times and bandwidths are read from the heading.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence

from torchcoll.core.bandwidth import algbw_gbps
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.core.result import CaseResult, Given
from torchcoll.importers.base import (
    Imported,
    Line,
    Options,
    collective_in,
    collective_named,
    dtype_named,
    make_result,
    make_run,
    number,
    whole,
)

NAME = "plain"
KEYS = ("size", "time", "algbw", "busbw", "collective", "ranks", "dtype", "op")
_WORDS = {
    "size": r"(?:message |msg )?(?:size|bytes)\b",
    "time": r"(?:avg |mean |median )?(?:time|latency|duration)\b",
    "algbw": r"alg(?:orithm)? ?(?:bw|bandwidth)\b",
    "busbw": r"bus ?(?:bw|bandwidth)\b",
    "collective": r"(?:collective|operation)\b",
    "ranks": r"(?:n_?)?(?:ranks|gpus)\b|world.?size\b",
    "dtype": r"(?:dtype|data ?type)\b",
    "op": r"(?:red)?op\b",
}
_SIZE = re.compile(r"([\d.]+)\s*([kmgt]?)(i?)(b(?:ytes)?)?", re.IGNORECASE)
_SCALE = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_BANDWIDTHS = {
    "gb/s": 1.0,
    "gbps": 1 / 8,
    "gbit/s": 1 / 8,
    "gib/s": 1.073741824,
    "mb/s": 1e-3,
    "gbyte/s": 1.0,
}
_ONLY = {"nccl": "cuda", "xccl": "xpu"}  # backends that have one kind of device
_RULE = re.compile(r"\s*\|?[\s:|-]*-{2,}[\s:|-]*$")


def sniff(head: Sequence[str]) -> bool:
    for text in head:
        fields = _fields(text)
        if len(fields) > 1:
            found = _columns(fields, {})
            if "size" in found and {"time", "algbw", "busbw"} & set(found):
                return True
    return False


def read(lines: Iterable[Line], options: Options) -> Imported:
    for key in options.columns:
        if key not in KEYS:
            raise UsageError("map", key, f"one of {', '.join(KEYS)}")
    found = Imported()
    reader = _Reader(options, found)
    for line, text in lines:
        reader.line(line, text)
    if not reader.tables:
        named = ", ".join(options.columns.values())
        found.refuse(
            0,
            f"no table has the columns {named}"
            if named
            else "no table with one column each of size and time or bandwidth: name them by --map",
        )
    for ranks, results in reader.results.items():
        source = {"tool": "a published table", "format": f"({reader.form})"}
        found.runs.append(make_run(results, options, source, ranks=ranks))
    return found


def _fields(text: str) -> list[str]:
    plain = text.strip()
    if plain.startswith("|") or (plain.count("|") > 1 and "," not in plain):
        return [field.strip(" *`") for field in plain.strip("|").split("|")]
    if "," in plain or "\t" in plain or ";" in plain:
        delimiter = "," if "," in plain else "\t" if "\t" in plain else ";"
        try:
            return [
                f.strip() for f in next(csv.reader([plain.lstrip("#")], delimiter=delimiter), [])
            ]
        except csv.Error:
            return []
    return []


def _columns(fields: Sequence[str], chosen: Mapping[str, str]) -> dict[str, int]:
    """key -> place in the table. What is chosen must be there; the rest is found by its name."""
    if chosen:
        places = {key: fields.index(name) for key, name in chosen.items() if name in fields}
        return places if len(places) == len(chosen) else {}
    found: dict[str, int] = {}
    for key, word in _WORDS.items():
        matches = [i for i, field in enumerate(fields) if re.match(word, field, re.IGNORECASE)]
        if len(matches) == 1:
            found[key] = matches[0]
        elif len(matches) > 1 and key in ("time", "algbw", "busbw"):
            return {}  # two systems beside each other: --map says which
    return found


def size_of(text: str) -> int | None:
    """``16GB``, ``16 GiB``, ``16G`` and ``1048576`` as bytes, binary; None for no size."""
    match = _SIZE.fullmatch(text.strip().replace(",", ""))
    value = number(match[1]) if match else None
    if match is None or value is None:
        return None
    return whole(value * 1024 ** _SCALE[match[2].lower()])


class _Reader:
    def __init__(self, options: Options, found: Imported) -> None:
        self.options, self.found = options, found
        self.heading: str | None = None
        self.columns: dict[str, int] = {}
        self.names: list[str] = []
        self.tables, self.form = 0, "table"
        self.results: dict[int, list[CaseResult]] = {}

    def line(self, line: int, text: str) -> None:
        plain = text.strip()
        if plain.startswith("#") and "|" not in plain and "," not in plain:
            self.heading, self.columns = collective_in(plain), {}
            return
        fields = _fields(text)
        if len(fields) < 2 or _RULE.fullmatch(text):
            if not fields:
                self.columns = {} if not plain or self.form == "Markdown" else self.columns
            return
        columns = _columns(fields, self.options.columns)
        if columns and ("size" in columns or self.options.columns):
            self.columns, self.names = columns, fields
            self.tables += 1
            self.form = "Markdown" if plain.startswith("|") else "CSV"
            return
        if not self.columns:
            return
        if len(fields) != len(self.names):
            why = f"half a row: {len(fields)} fields, the heading has {len(self.names)}"
            self.found.refuse(line, why)
            return
        result = self.result({key: fields[i] for key, i in self.columns.items()})
        if isinstance(result, str):
            self.found.refuse(line, result)
        else:
            self.found.rows += 1
            self.results.setdefault(result.ranks, []).append(result)

    def unit(self, key: str, units: Mapping[str, float], default: float) -> float:
        """The scale that the heading of a column names."""
        words = re.split(r"[\s()\[\]_]+", self.names[self.columns[key]].lower())
        return next((units[word] for word in words if word in units), default)

    def result(self, record: Mapping[str, str]) -> CaseResult | str:
        options = self.options
        named = record.get("collective")
        name = options.collective or (collective_named(named) if named else self.heading)
        if name is None and (name := collective_in(options.file)):
            self.found.warn(f"collective {name}: taken from the name of the file")
        if name is None:
            return "the table does not name the collective: give --collective"
        nbytes = size_of(record.get("size", ""))
        if not nbytes:
            return f"no size: {record.get('size')!r}"
        ranks = options.ranks or whole(record.get("ranks")) or 0
        figures = {key: number(record.get(key)) for key in ("time", "algbw", "busbw")}
        if not any(figures.values()):
            return "no figure"
        time, algbw, busbw = figures["time"], figures["algbw"], figures["busbw"]
        if time is not None:
            time *= self.unit("time", _TIMES, 1e3)
        if algbw is not None:
            algbw *= self.unit("algbw", _BANDWIDTHS, 1.0)
        if busbw is not None:
            busbw *= self.unit("busbw", _BANDWIDTHS, 1.0)
        entry, derived = COLLECTIVES[name], False
        if not time:
            if algbw is None and busbw is not None and ranks > 1:
                algbw = busbw / entry.bus_factor(ranks)
            if algbw:
                time, derived = _time_of(name, nbytes, ranks, algbw), True
        if derived and not time:
            derived = False
        given = Given(
            time or None,
            statistic=options.statistic or "unknown",
            clock="unknown",
            algbw_gbps=algbw,
            busbw_gbps=busbw,
            derived=derived,
        )
        return make_result(
            name,
            nbytes,
            given,
            ranks=ranks,
            dtype=options.dtype or dtype_named(record.get("dtype")),
            op=record.get("op") or None,
            backend=options.backend or "unknown",
            device=_ONLY.get(options.backend or "", "unknown"),
        )


def _time_of(name: str, nbytes: int, ranks: int, algbw: float) -> float | None:
    """The time that gives this algbw: S / algbw, hypercube's with its share; None if unknown."""
    if not ranks:
        return nbytes / algbw if COLLECTIVES[name].moved(2) == 1 else None
    at_one = algbw_gbps(name, nbytes, ranks, 1.0)
    return at_one / algbw if at_one else None
