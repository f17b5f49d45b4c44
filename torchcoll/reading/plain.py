"""Reads tables in Markdown or CSV, the format of most published figures.

``--map size=Size,algbw='Algbw (GB/s)'`` names the columns. Without it columns with usual names are
recognised. A heading of Markdown above a table names its collective. Sizes are binary (16GB is
16 x 2^30 bytes), as in nccl-tests. Units are read from the headings, with a warning if they are
unclear. Bandwidths that do not follow from size, time and ranks are kept with a warning: the time
may be in another unit than its heading says.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from torchcoll.core.backends import only_device
from torchcoll.core.collectives import COLLECTIVES, algbw_gbps
from torchcoll.core.errors import choice
from torchcoll.core.result import CaseResult, Reported
from torchcoll.core.units import counted
from torchcoll.reading import base

NAME = "plain"
ODD = "bandwidths do not follow from size, time and ranks"
KEYS = ("size", "time", "algbw", "busbw", "collective", "ranks", "dtype", "op")
_COLUMN_NAMES = {
    "size": r"(?:message |msg )?(?:size|bytes)\b",
    "time": r"(?:avg |mean |median )?(?:time|latency|duration)\b",
    "algbw": r"alg(?:orithm)? ?(?:bw|bandwidth)\b",
    "busbw": r"bus ?(?:bw|bandwidth)\b",
    "collective": r"(?:collective|operation|test)\b",
    "ranks": r"(?:n ?)?(?:ranks|gpus)\b|world ?size\b",
    "dtype": r"(?:dtype|data ?type)\b",
    "op": r"(?:red)?op\b",
}
_SIZE_CELL = re.compile(r"([\d.]+)\s*([kmgt]?)(i?)(b(?:ytes)?)?", re.IGNORECASE)
_SCALE = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NONE = ("", "-", "n/a", "na", "none", "null")  # texts of a cell without a figure
_STEP = 0.01  # a small bandwidth is printed with two decimals, or as 0
_NUMBERED = re.compile(r"\W*(?:(?:run|test|case|trial|iter\w*)\W*)?\d*\W*", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_GUARD = re.compile(r"^'(?='*[=@+-])")  # prevents that a spreadsheet runs a cell: report/formats.py


def sniff(head: Sequence[str]) -> bool:
    for text in head:
        fields = _fields(text)
        if len(fields) > 1:
            columns = _columns(fields, {})
            if "size" in columns and {"time", "algbw", "busbw"} & set(columns):
                return True
    return False


def read(lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
    for key in options.columns:
        choice(key, "map", KEYS)
    return _PlainTableReader.read(lines, options)


def _fields(text: str, heading: str = "") -> list[str]:
    """The cells of a line; [] for a line that is not of a table.

    heading: the delimiter of the heading above.

    The text before the first bar of a quoted table (``> | Size |``) becomes a cell in the heading
    and in all rows.
    """
    plain = text.strip()
    delimiter = heading if heading and heading in plain else _delimiter(plain)
    if delimiter == "|":
        return [field.strip(" *`") for field in plain.strip("|").split("|")]
    if delimiter:
        try:
            fields = next(csv.reader([plain.lstrip("#")], delimiter=delimiter), [])
            return [_GUARD.sub("", field.strip()) for field in fields]
        except csv.Error:
            return []
    return []


def _delimiter(text: str) -> str:
    """The delimiter between the cells of a line; '' for a line that is not of a table."""
    bars = text.count("|")
    if text.startswith("|") or (bars > 1 and bars >= text.count(",")):
        return "|"
    return next((delimiter for delimiter in ",\t;" if delimiter in text), "")


def _columns(fields: Sequence[str], chosen: Mapping[str, str]) -> dict[str, int]:
    """Key -> index of its column, for the columns in ``chosen`` or else those with usual names.

    {} if a chosen column is missing, or if there is no unique column.
    """
    if chosen:
        indices = {key: fields.index(name) for key, name in chosen.items() if name in fields}
        return indices if len(indices) == len(chosen) else {}
    columns: dict[str, int] = {}
    plain = [field.replace("_", " ") for field in fields]
    if not any(re.match(_COLUMN_NAMES["size"], field, re.IGNORECASE) for field in plain):
        return {}  # a row and not a heading
    for key, pattern in _COLUMN_NAMES.items():
        matches = [i for i, field in enumerate(plain) if re.match(pattern, field, re.IGNORECASE)]
        if len(matches) == 1:
            columns[key] = matches[0]
        elif len(matches) > 1 and key in ("time", "algbw", "busbw"):
            return {}  # two systems side by side: --map must choose
    return columns


def parse_size(text: str, unit: int = 1) -> int | None:
    """Parse ``16GB``, ``16 GiB``, ``16G`` or ``1048576`` as bytes, with binary prefixes; None if it
    is not a size.

    unit: bytes in one unit of a number without a suffix.
    """
    match = _SIZE_CELL.fullmatch(text.strip().replace(",", ""))
    value = base.number(match[1]) if match else None
    if match is None or value is None:
        return None
    return base.whole(value * (1024 ** _SCALE[match[2].lower()] if match[2] or match[4] else unit))


def _figures(record: Mapping[str, str]) -> dict[str, float | None] | str:
    """Printed time and bandwidths; a text about the first cell that is not a number."""
    figures = {}
    texts = {key: record.get(key, "") for key in ("time", "algbw", "busbw")}
    pointed = any("." in text for text in texts.values())  # then commas group thousands
    for key, text in texts.items():
        if pointed and _THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
        figures[key] = None if text.lower() in _NONE else base.number(text)
        if figures[key] is None and text.lower() not in _NONE:
            return base.COMMAS if "," in text else f"{key} is no number from 0 on: {text}"
    return figures if any(figures.values()) else "no figure"


# Units in the headings of columns. Case matters: GBps is not Gbps.

_SPLIT = re.compile(r"[\s()\[\]_,;:-]+")
_TIMES = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1.0),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microseconds"), 1e3),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1e6),
    **dict.fromkeys(("s", "sec", "secs", "seconds"), 1e9),
}
_BANDWIDTH = re.compile(r"([kKmMgGtT])(i?)(B|b|[Bb]ytes?|[Bb]its?)(?:/s|/sec|/second|ps)")
_SIZE_HEADING = re.compile(r"([KMGT]?)(i?)(B|bytes?)", re.IGNORECASE)
_ELEMENTS = {"elements", "elems", "elem", "count", "items"}
# torchcoll's own names, where _gbps is 10^9 bytes per second (docs/glossary.md).
_OURS = ("algbw_gbps", "busbw_gbps")

Unit = tuple[float, str]  # (scale, a warning if the unit is uncertain, or '')


def time_unit(heading: str) -> Unit:
    """Nanoseconds in one unit of the heading."""
    for token in _SPLIT.split(heading.lower()):
        if token in _TIMES:
            return _TIMES[token], ""
    return 1e3, f"the heading {heading!r} names no unit: taken as us"


def bandwidth_unit(heading: str) -> Unit:
    """GB/s in one unit. K, M, G are powers of 1000, Ki, Mi, Gi of 1024; b is a bit."""
    if heading in _OURS:
        return 1.0, ""
    for token in _SPLIT.split(heading):
        if match := _BANDWIDTH.fullmatch(token):
            prefix, binary, unit = match.groups()
            scale = (1024 if binary else 1000) ** _SCALE[prefix.lower()] / 1e9
            # All lower case: the case says nothing.
            if token.islower() and unit == "b" and prefix != "k":
                bits = token.endswith("ps")
                taken = "bits" if bits else "bytes"
                return scale / (8 if bits else 1), f"{token} in {heading!r}: taken as {taken}"
            return scale / (8 if unit in ("b", "bit", "bits", "Bit", "Bits") else 1), ""
    return 1.0, f"the heading {heading!r} names no unit: taken as GB/s"


def size_unit(heading: str) -> tuple[int, str]:
    """(bytes in one unit, in powers of 1024; why the sizes cannot be used, or '')."""
    tokens = _SPLIT.split(heading)
    if not _ELEMENTS.isdisjoint(token.lower() for token in tokens):
        return 1, f"the sizes under {heading!r} are no bytes"
    for token in tokens:
        if match := _SIZE_HEADING.fullmatch(token):
            return 1024 ** _SCALE[match[1].lower()], ""
    return 1, ""


class _PlainTableReader(base.TableReader):
    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.heading: str | None = None
        self.columns: dict[str, int] = {}
        self.names: list[str] = []
        self.tables, self.form, self.delimiter = 0, "table", ""
        self.contradictory_lines: list[int] = []  # of rows with ODD bandwidths

    def end(self) -> None:
        odd = self.contradictory_lines
        if not self.tables:
            named = ", ".join(self.options.columns.values())
            why = "no table with one column each of size and time or bandwidth: name them by --map"
            self.imported.refuse(0, f"no table has the columns {named}" if named else why)
        if odd:
            count = f"{len(odd)} of {counted(self.imported.rows, 'row')}: {ODD}"
            self.imported.warn(f"{count}: the first in line {odd[0]}")
        source = {"tool": "a published table", "format": f"({self.form})"}
        self.imported.runs += base.runs_of_ranks(self.results, self.options, source)

    def line(self, line: int, text: str) -> None:
        plain = text.lstrip("> \t").rstrip()
        if plain.startswith("#") and "|" not in plain and "," not in plain:
            self.heading, self.columns = base.collective_in(plain), {}
            return
        fields = _fields(text, self.delimiter)
        if len(fields) < 2 or self.is_rule(plain, fields):
            if not fields:
                self.columns = {} if not plain or self.form == "Markdown" else self.columns
            return
        columns = _columns(fields, self.options.columns)
        if columns and ("size" in columns or self.options.columns):
            self.columns, self.names = columns, fields
            self.tables += 1
            self.delimiter = _delimiter(text.strip())
            self.form = "Markdown" if self.delimiter == "|" else "CSV"
            return
        if not self.columns:
            return
        if len(fields) != len(self.names):
            self.imported.refuse(line, base.half_row(fields, self.names))
            return
        self.add(line, self.result(line, {key: fields[i] for key, i in self.columns.items()}))

    def is_rule(self, text: str, fields: Sequence[str]) -> bool:
        """Whether this is the line below a heading of Markdown: ``|---|:--|``, also quoted."""
        if "--" not in text:
            return False
        cells = [fields[i] for i in self.columns.values()] if len(fields) == len(self.names) else []
        return not text.strip(" \t:|-") or bool(cells and not "".join(cells).strip(" :-"))

    def unit(self, key: str, unit_of: Callable[[str], Unit]) -> float:
        """The scale by the unit in the heading of a column. Warns if the unit is uncertain."""
        scale, doubt = unit_of(self.names[self.columns[key]])
        if doubt:
            self.imported.warn(doubt)
        return scale

    def result(self, line: int, record: Mapping[str, str]) -> CaseResult | str:
        options = self.options
        cell = record.get("collective", "")
        recorded = self.heading
        if not _NUMBERED.fullmatch(cell):
            recorded = base.collective_named(cell) or base.collective_in(cell)
            if recorded is None and not options.collective:
                return f"{cell} is no collective that torchcoll has: give --collective"
        name = self.imported.choose("collective", options.collective, recorded)
        if name is None and (name := base.collective_in(options.file)):
            self.imported.warn(f"collective {name}: taken from the name of the file")
        if name is None:
            return "the table does not name the collective: give --collective"
        scale, why = size_unit(self.names[self.columns["size"]]) if "size" in record else (1, "")
        size_bytes = parse_size(record.get("size", ""), scale)
        if why or not size_bytes:
            return why or f"no size: {record.get('size')!r}"
        ranks = (
            self.imported.choose("ranks", options.ranks, base.parse_ranks(record.get("ranks"))) or 0
        )
        if not ranks and record.get("ranks", "").lower() not in _NONE:
            return f"ranks: {record['ranks']!r}"
        figures = _figures(record)
        if isinstance(figures, str):
            return figures
        units = (("time", time_unit), ("algbw", bandwidth_unit), ("busbw", bandwidth_unit))
        time, algbw, busbw = (
            None if (figure := figures[key]) is None else figure * self.unit(key, unit_of)
            for key, unit_of in units
        )
        entry, derived = COLLECTIVES[name], False
        by_time = _expected_algbw(name, size_bytes, ranks, time or 0)
        if not time:
            if algbw is None and busbw is not None and ranks > 1:
                algbw = busbw / entry.bus_factor(ranks)
            if algbw:
                time, derived = _expected_time(name, size_bytes, ranks, algbw), True
        if derived and not base.number(time):  # 0, or too large for a time
            time, derived = None, False
        follow = by_time or algbw  # the busbw that follows from either
        busbw_expected = follow * entry.bus_factor(ranks) if follow and ranks > 1 else None
        pairs = (("algbw", algbw, by_time), ("busbw", busbw, busbw_expected))
        texts = (base.contradiction(*pair, "size, time and ranks", _STEP) for pair in pairs)
        contradictions = [text for text in texts if text]
        if contradictions:
            self.contradictory_lines.append(line)
        reported = Reported(
            time or None,
            statistic=options.statistic or "unknown",
            clock="unknown",
            algbw_gbps=algbw,
            busbw_gbps=busbw,
            derived=derived,
            contradictory=bool(contradictions),
        )
        return base.make_result(
            name,
            size_bytes,
            reported,
            ranks=ranks,
            dtype=self.imported.choose(
                "dtype", options.dtype, base.dtype_named(record.get("dtype"))
            ),
            op=record.get("op") or None,
            backend=options.backend or "unknown",
            device=only_device(options.backend) or "unknown",
            warnings=contradictions,
        )


def _expected_algbw(name: str, size_bytes: int, ranks: int, time: float) -> float | None:
    """The algbw by size and time: S / t, for hypercube times its share, which needs the ranks.

    None without a time, or if it is not known.
    """
    if ranks or not time:
        return algbw_gbps(name, size_bytes, ranks, time)
    return size_bytes / time if COLLECTIVES[name].moved(2) == 1 else None


def _expected_time(name: str, size_bytes: int, ranks: int, algbw: float) -> float | None:
    """The time by size and algbw: S / algbw, for hypercube times its share; None if not known."""
    if not ranks:
        return size_bytes / algbw if COLLECTIVES[name].moved(2) == 1 else None
    at_one = algbw_gbps(name, size_bytes, ranks, 1.0)
    return at_one / algbw if at_one else None
