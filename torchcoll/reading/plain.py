"""Reads plain tables, as most figures are published: Markdown, CSV, columns between blanks, boxes.

``--map size=Size,algbw='Algbw (GB/s)'`` names the columns. Without it columns with usual names are
recognised. A heading above a table names its collective. Sizes are binary (16GB is 16 x 2^30).
Units are read from the headings, with a warning if they are unclear.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from torchcoll.core.backends import only_device
from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES, algbw_gbps
from torchcoll.core.errors import choice
from torchcoll.core.result import CaseResult, Reported
from torchcoll.core.units import counted, shorten
from torchcoll.reading import base, nccl_tests
from torchcoll.reading.nccl_tests import Block, NcclTestsRow
from torchcoll.reading.table_reader import NOTHING_SENT, TableReader, half_row

NAME = "plain"
ODD = "bandwidths do not follow from size, time and ranks"
KEYS = ("size", "time", "algbw", "busbw", "collective", "ranks", "dtype", "op")
# (key, name of the column without its unit), the likeliest first.
_COLUMN_NAMES = (
    ("size", r"(?:message |msg |payload |data |buffer )?(?:size|sz|bytes)$"),
    ("size", r"message|msg|payload|(?:message|transfer) (?:length|len)"),
    ("size", r"elements|elems|count"),
    ("min", r"t?min(?: time| latency| lat)?|(?:time|latency|lat) min"),
    ("max", r"t?max(?: time| latency| lat)?|(?:time|latency|lat) max"),
    ("time", r"(?:avg|mean|average) (?:time|latency|lat|duration)|t ?avg|avg|mean"),
    ("time", r"(?:median |p50 )(?:time|latency|lat|duration)|t?p50|median"),
    ("time", r"(?:time|latency|lat|duration)\b.*"),
    ("time", r".*"),  # the name of a system, with a unit of time
    ("algbw", r"alg(?:orithm)? ?(?:bw|bandwidth)"),
    ("busbw", r"bus ?(?:bw|bandwidth)"),
    ("collective", r"(?:collective|operation|test)\b.*"),
    ("ranks", r"(?:n ?)?(?:ranks|gpus)\b.*|world ?size"),
    ("dtype", r"dtype|data ?type|type"),
    ("op", r"(?:red)?op"),
)
_UNIT = re.compile(r"[\[(][^\])]*[\])]")
_MEAN, _MEDIAN = re.compile(r"\b(?:t?avg|mean|average)\b"), re.compile(r"\b(?:t?p50|median)\b")
_SIZE_CELL = re.compile(r"([\d.]+)\s*([kmgt]?)(i?)(b(?:ytes)?)?", re.IGNORECASE)
_SCALE = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NONE = ("", "-", "n/a", "na", "none", "null")  # texts of a cell without a figure
_OWN = "size_bytes_requested"
_BLANKS = "  "  # the delimiter of columns between blanks
_FIGURE = re.compile(r"([\d.,]+)\s*([a-zA-Zµμ/]+)")
_TITLE = 80  # characters
_STEP = 0.01  # a small bandwidth is printed with two decimals, or as 0
_NUMBERED = re.compile(r"\W*(?:(?:run|test|case|trial|iter\w*)\W*)?\d*\W*", re.IGNORECASE)
_RULES = " \t:|+-=\u2500\u253c\u250c\u2510\u2514\u2518\u251c\u2524\u252c\u2534"
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_GUARD = re.compile(r"^'(?='*[=@+-])")  # prevents that a spreadsheet runs a cell: report/formats.py


def sniff(head: Sequence[str]) -> bool:
    return any(
        "size" in columns and len(columns) > 1
        for text in head
        if len(fields := _fields(text)) > 1
        for columns in (_candidates(fields),)
    )


def read(lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
    for key in options.columns:
        choice(key, "map", KEYS)
    return _PlainTableReader.read(lines, options)


def _fields(text: str, heading: str = "") -> list[str]:
    """The cells of a line; [] for a line that is not of a table. heading: its delimiter."""
    plain = text.strip().replace("\u2502", "|").replace("\u2503", "|")
    delimiter = heading if heading and heading in plain else _delimiter(plain)
    if delimiter == "|":
        return [field.strip(" *`") for field in plain.strip("|").split("|")]
    if delimiter == _BLANKS:
        return re.split(r"\s{2,}|\t+", plain.lstrip("# "))
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
    return next((delimiter for delimiter in (",", "\t", ";", _BLANKS) if delimiter in text), "")


def _candidates(fields: Sequence[str]) -> dict[str, list[int]]:
    """Key -> indices of the columns that have the likeliest name for it; {} for other lines."""
    candidates: dict[str, tuple[int, list[int]]] = {}
    for index, field in enumerate(fields):
        if len(field) > _TITLE:  # prose
            continue
        name = " ".join(_UNIT.sub(" ", field.lower().replace("_", " ")).strip(" #").split())
        # A word 's' is a name, such as that of a mode, and no unit.
        units = _SPLIT.split(field.lower()) if _UNIT.search(field) else field.lower().split("_")
        timed = any(token in _TIMES for token in units)
        for rank, (key, pattern) in enumerate(_COLUMN_NAMES):
            unit_needed = pattern == ".*" or key in ("min", "max")
            if (timed or not unit_needed) and re.fullmatch(pattern, _without_unit(name)):
                if rank < candidates.get(key, (len(_COLUMN_NAMES),))[0]:
                    candidates[key] = rank, []
                if rank == candidates[key][0]:
                    candidates[key][1].append(index)
                break
    columns = {key: indices for key, (_, indices) in candidates.items()}
    if _OWN in fields:  # convert wrote it, and it has less than the result file
        return {}
    return columns if "size" in columns and {"time", "algbw", "busbw"} & set(columns) else {}


def _without_unit(name: str) -> str:
    """The name of a column without a unit as its last word: ``time us``, ``size mb``."""
    first, _, last = name.rpartition(" ")
    unit = last in _TIMES or _SIZE_HEADING.fullmatch(last) or _BANDWIDTH.fullmatch(last)
    return first if first and unit and last != "bytes" else name


def _columns(fields: Sequence[str], chosen: Mapping[str, str]) -> dict[str, int]:
    """Key -> index of its column; {} if one of ``chosen`` is missing."""
    if chosen:
        indices = {key: fields.index(name) for key, name in chosen.items() if name in fields}
        return indices if len(indices) == len(chosen) else {}
    return {key: of[0] for key, of in _candidates(fields).items() if len(of) == 1}


def parse_size(text: str, unit: int = 1) -> int | None:
    """``16GB``, ``16 GiB`` or ``16G`` in bytes; None for others. unit: bytes of a bare number."""
    match = _SIZE_CELL.fullmatch(text.strip().replace(",", ""))
    value = base.number(match[1]) if match else None
    if match is None or value is None:
        return None
    scale = 1024 ** _SCALE[match[2].lower()] if match[2] or match[4] else unit
    return base.whole(float(round(value * scale)))


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
_NCCOM = re.compile(r"\bnccom-test\b.*?\s(all\w|redsct|reds|sendrecv)\b")
_NCCOM_NAMES = {
    **{"allr": "all_reduce", "allg": "all_gather", "alla": "all_to_all"},
    **dict.fromkeys(("redsct", "reds"), "reduce_scatter"),
}
_ALGORITHM = re.compile(r"Algorithm:\s+(\w+)")  # gloo's benchmark, which sends floats
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


class _PlainTableReader(TableReader):
    RANKS_UNTOLD = True

    def __init__(self, options: base.ImportOptions) -> None:
        super().__init__(options)
        self.heading: str | None = None
        self.dtype: str | None = None
        self.columns: dict[str, int] = {}
        self.names: list[str] = []
        self.tables, self.form, self.delimiter = 0, "table", ""
        self.contradictory_lines: list[int] = []  # of rows with ODD bandwidths
        self.rows: list[tuple[int, dict[str, str]]] = []  # of the table that is being read
        self.title = ""  # the last line of text above the table
        self.parts, self.titles = 0, dict[int, str]()
        self.cases: set[Case] = set()  # of the tables of this part
        self.fits: list[str] = []  # collectives that its figures can be of
        self.inferred: dict[str, int] = {}  # collective -> ranks, by its figures

    def end(self) -> None:
        self.end_table()
        odd = self.contradictory_lines
        if not self.tables and not self.imported.refused:
            named = ", ".join(self.options.columns.values())
            why = "no table with one column each of size and time or bandwidth: name them by --map"
            self.imported.refuse(0, f"no table has the columns {named}" if named else why)
        if odd:
            count = f"{len(odd)} of {counted(self.imported.rows, 'row')}: {ODD}"
            self.imported.warn(f"{count}: the first in line {odd[0]}")
        source = {"tool": "a published table", "format": f"({self.form})"}
        for (ranks, part), results in self.results.items():
            run = base.make_run(results, self.options, source, ranks=ranks)
            if self.parts and (title := self.titles.get(part)):
                run.header["spec"] = {"labels": {"table": title}}
            self.imported.runs.append(run)

    def run_of(self, result: CaseResult) -> tuple[int, int]:
        """A run for each number of ranks, and for a table with the cases of an earlier one."""
        return result.ranks, self.parts

    def line(self, line: int, text: str) -> None:
        plain = text.lstrip("> \t").rstrip()
        if _ALGORITHM.match(plain):
            self.dtype = "float32"
        if match := _NCCOM.search(plain):
            self.heading = _NCCOM_NAMES.get(match[1])
        if plain.startswith("#") and "|" not in plain and "," not in plain and _BLANKS not in plain:
            self.end_table()
            self.title = base.plain_title(plain)
            self.heading = base.collective_of_title(plain)
            return
        fields = _fields(text, self.delimiter)
        if self.is_rule(plain, fields):
            return
        # Below a heading of columns between blanks a row begins with its size.
        row_or_units = self.form != "blanks" or plain[:1].isdigit() or plain.startswith("(")
        if len(fields) < 2 or (self.columns and not row_or_units):
            if self.columns and plain and self.form != "CSV":
                self.end_table()
            if not self.columns and any(map(str.isalnum, plain)):
                self.title = base.plain_title(plain)[:_TITLE]
                self.heading = base.collective_of_title(plain) or self.heading
            if len(fields) < 2:
                return
        several = {} if self.options.columns else _candidates(fields)
        columns = _columns(fields, self.options.columns)
        if several and not {"time", "algbw", "busbw"} & set(columns):
            self.refuse_several(line, fields, several)
        elif columns and ("size" in columns or self.options.columns):
            self.begin_table(text, fields, columns)
        elif self.columns:
            self.row(line, plain, fields)
        elif name := base.collective_of_title(plain):
            self.heading = name

    def begin_table(self, text: str, fields: list[str], columns: dict[str, int]) -> None:
        self.end_table()
        self.columns, self.names = columns, fields
        self.tables += 1
        self.delimiter = _delimiter(text.strip().replace("\u2502", "|"))
        forms = {"|": "Markdown", _BLANKS: "blanks"}
        self.form = forms.get(self.delimiter, "CSV")

    def refuse_several(
        self, line: int, fields: Sequence[str], several: Mapping[str, Sequence[int]]
    ) -> None:
        """Refuse a table with columns of several systems; the next action names one of them."""
        key = next(key for key in ("time", "algbw", "busbw") if key in several)
        names = [fields[index] for index in several[key]]
        shown = shorten([repr(name) for name in names], 3, "columns")
        self.imported.refuse(line, f"several columns of {key}: {shown}: name one by --map")
        pairs = shlex.quote(f"size={fields[several['size'][0]]},{key}={names[0]}")
        self.imported.action = f"torchcoll convert FILE --map {pairs} -o RUN.jsonl takes it."

    def row(self, line: int, plain: str, fields: list[str]) -> None:
        if self.form == "blanks" and len(fields) != len(self.names):
            fields = plain.split()
        if len(fields) == len(self.names):
            self.rows.append((line, {key: fields[i] for key, i in self.columns.items()}))
            self.imported.check_rows(len(self.rows))
        elif not all(field.startswith("(") for field in plain.split()):  # a line of units
            self.imported.refuse(line, half_row(fields, self.names))

    def end_table(self) -> None:
        """Add the rows of a table. Its figures may tell the collective and the ranks."""
        rows, self.rows = self.rows, []
        shaped = _as_nccl_tests(rows)
        self.fits = [*nccl_tests.fitting_collectives(shaped, 0, True)]
        entries = self.fits or list(COLLECTIVES)
        self.inferred = {n: nccl_tests.infer_ranks(shaped, n)[0] for n in entries if shaped}
        results = [(line, self.case(line, record)) for line, record in rows]
        cases = {each.case for _, each in results if isinstance(each, CaseResult)}
        if cases & self.cases:
            self.parts, self.cases = self.parts + 1, set()
        self.cases |= cases
        if cases:
            self.titles.setdefault(self.parts, self.title)
        for line, result in results:
            self.add(line, result)
        self.columns, self.delimiter = {}, ""

    def is_rule(self, text: str, fields: Sequence[str]) -> bool:
        """Whether this is a line of dashes between or around rows, also quoted."""
        if not text or not text.strip(_RULES):
            return bool(text)
        if "--" not in text or not self.columns:
            return False
        cells = [fields[i] for i in self.columns.values()] if len(fields) == len(self.names) else []
        return bool(cells and not "".join(cells).strip(" :-"))

    @property
    def statistic(self) -> str:
        """The statistic that the heading of the times names."""
        heading = self.names[self.columns["time"]].lower() if "time" in self.columns else ""
        plain = heading.replace("_", " ").replace("(", " ")
        return "mean" if _MEAN.search(plain) else "median" if _MEDIAN.search(plain) else "unknown"

    def figure(self, key: str, text: str, pointed: bool) -> float | None:
        """A cell in ns or GB/s, by its unit or the heading's. Raises ValueError."""
        if text.lower() in _NONE:
            return None
        unit_of = time_unit if key in ("time", "min", "max") else bandwidth_unit
        if match := _FIGURE.fullmatch(text):
            text, (scale, doubt) = match[1], unit_of(match[2])
        else:
            scale, doubt = unit_of(self.names[self.columns[key]])
        if pointed and _THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
        value = base.number(text)
        if value is None:
            raise ValueError(
                base.COMMAS if "," in text else f"{key} is no number from 0 on: {text}"
            )
        if doubt:
            self.imported.warn(doubt)
        return value * scale

    def figures(self, record: Mapping[str, str]) -> dict[str, float | None]:
        """The times and bandwidths of a row. Raises ValueError as ``figure`` does."""
        texts = {key: record.get(key, "") for key in ("time", "algbw", "busbw", "min", "max")}
        pointed = any("." in text for text in texts.values())
        figures = {key: self.figure(key, text, pointed) for key, text in texts.items()}
        if not any(figures[key] for key in ("time", "algbw", "busbw")):
            raise ValueError("no figure")
        return figures

    def collective(self, record: Mapping[str, str]) -> tuple[str | None, str]:
        """The collective of a row, and why there is none."""
        options = self.options
        cell = record.get("collective", "")
        recorded = self.heading
        if not _NUMBERED.fullmatch(cell):
            recorded = base.collective_named(cell) or base.collective_in(cell)
            if recorded is None and not options.collective:
                return None, f"{cell} is no collective that torchcoll has: give --collective"
        if not options.collective and recorded in (None, "reduce") and len(self.fits) == 1:
            self.imported.warn(f"taken for {self.fits[0]}: by busbw / algbw")
            return self.fits[0], ""
        name = self.imported.choose("collective", options.collective, recorded)
        if name is None and (name := base.collective_in(options.file)):
            self.imported.warn(f"collective {name}: taken from the name of the file")
        if name:
            return name, ""
        if options.ranks or "ranks" in self.columns or self.inferred:
            return None, "the table does not name the collective: give --collective"
        return None, "the table names no collective and no ranks: give --collective and --ranks"

    def case(self, line: int, record: Mapping[str, str]) -> CaseResult | str:
        options = self.options
        name, why = self.collective(record)
        if name is None:
            return why
        dtype = options.dtype or base.dtype_named(record.get("dtype")) or self.dtype
        scale, why = size_unit(self.names[self.columns["size"]]) if "size" in record else (1, "")
        if why and (itemsize := base.itemsize(dtype)):
            scale, why = itemsize, ""
        size_bytes = parse_size(record.get("size", ""), scale)
        if why:
            return why
        if not size_bytes:
            zero = record.get("size", "").strip() == "0"
            return NOTHING_SENT if zero else f"no size: {record.get('size')!r}"
        ranks = (
            self.imported.choose("ranks", options.ranks, base.parse_ranks(record.get("ranks"))) or 0
        )
        if not ranks and record.get("ranks", "").lower() not in _NONE:
            return f"ranks: {record['ranks']!r}"
        ranks = ranks or self.inferred.get(name, 0)
        self.imported.choose("dtype", options.dtype, base.dtype_named(record.get("dtype")))
        try:
            figures = self.figures(record)
        except ValueError as error:
            return str(error)
        time, algbw, busbw = (figures[key] for key in ("time", "algbw", "busbw"))
        entry, derived = COLLECTIVES[name], False
        # The share of hypercube needs the ranks; S / t is the algbw of the others.
        moved_bytes = algbw_gbps(name, size_bytes, ranks or 2, 1.0)
        if not ranks and entry.moved(2) != 1:
            moved_bytes = None
        by_time = moved_bytes / time if moved_bytes and time else None
        if not time:
            if algbw is None and busbw is not None and ranks > 1:
                algbw = busbw / entry.bus_factor(ranks)
            if algbw and moved_bytes:
                time, derived = moved_bytes / algbw, True
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
            statistic=options.statistic or self.statistic,
            clock="unknown",
            min_ns=figures["min"],
            max_ns=figures["max"],
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
            dtype=dtype,
            op=record.get("op") or None,
            backend=options.backend or "unknown",
            device=only_device(options.backend) or "unknown",
            warnings=contradictions,
        )


def _as_nccl_tests(rows: Sequence[tuple[int, dict[str, str]]]) -> list[NcclTestsRow]:
    """Rows that name an operation, a type and both bandwidths, with these figures alone."""
    shaped = []
    for line, record in rows:
        algbw, busbw = base.number(record.get("algbw")), base.number(record.get("busbw"))
        size = parse_size(record.get("size", ""))
        if algbw and busbw and size and record.get("op") and record.get("dtype"):
            steps = base.rounding(record["busbw"])
            block = Block(None, size / algbw, algbw, busbw, 0.0, steps)
            op = None if record["op"] == "none" else record["op"]
            shaped.append(NcclTestsRow(line, size, 1, "", op, None, [block]))
    return shaped
