"""What all importers share: their interface, and the functions that make results from figures.

An importer is a module, built in or named by an entry point of the group ``torchcoll.importers``::

    NAME = "osu"                                     the name for --from
    def sniff(head: Sequence[str]) -> bool           is it this format? head: the first lines
    def read(lines: Iterable[Line], options: ImportOptions) -> Imported
    LONG_LINES = True                                if it is JSON, with lines as they are

``lines`` are (line number, text) without ANSI codes and prefixes (source.py, writers.py); the lines
for ``sniff`` are alike. ``read`` never raises for the content of a file: a row that it
cannot use, or cannot separate from other text, is refused with its line number and a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from torchcoll.core.bounds import MOST_PROBLEMS, MOST_RANKS, MOST_ROWS
from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES, DTYPES, Layout, find_collective, find_dtype
from torchcoll.core.errors import UnreadableError, UsageError, choice
from torchcoll.core.result import CaseResult, Reported, Run, Verification
from torchcoll.core.units import format_ranges
from torchcoll.core.variables import masked, masked_texts

Line = tuple[int, str]
Value = TypeVar("Value", int, str)
# Sizes of types that torchcoll does not measure but that a log may have.
_OTHER_SIZES = {"bool": 1, "uint16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "complex128": 16}
_DIGITS = 30  # more digits than any number that ``whole`` accepts
MOST_NUMBER, MOST_WHOLE = 1e18, 1 << 62  # ``number`` and ``whole`` accept values below these


@dataclass(frozen=True)
class ImportOptions:
    """What the user tells about a file. columns: --map of a plain table."""

    file: str = ""
    ranks: int | None = None
    collective: str | None = None
    dtype: str | None = None
    backend: str | None = None
    statistic: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ranks is not None and not 1 <= self.ranks <= MOST_RANKS:
            raise UsageError("ranks", self.ranks, f"1 to {MOST_RANKS}")
        choice(self.statistic, "statistic", (None, "mean", "median", "min", "max"))
        if self.collective is not None:
            object.__setattr__(self, "collective", find_collective(self.collective).name)
        if self.dtype is not None:
            object.__setattr__(self, "dtype", find_dtype(self.dtype).name)


HALF_ROW = "half a row"  # begins the reason of a row that is not whole
WRAPPED = "rows are wrapped at the width of a terminal: give the output as nccl-tests printed it"


@dataclass(frozen=True)
class Refused:
    """A row that was not read. Line 0 means the whole file."""

    line: int
    reason: str

    @property
    def is_half(self) -> bool:
        return self.reason.startswith((HALF_ROW, WRAPPED))


@dataclass
class Imported:
    """The content of one file.

    rows: how many rows were read; a row of nccl-tests has two cases. importer: its name.
    own_warnings: of each run those that are not about all runs; [] where there are none.
    action: what to do next if nothing was read.
    """

    runs: list[Run] = field(default_factory=list)
    rows: int = 0
    refused: list[Refused] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    importer: str = ""
    own_warnings: list[list[str]] = field(default_factory=list)
    action: str = ""

    def refuse(self, line: int, reason: str) -> None:
        self.refused.append(Refused(line, reason))
        self.check_rows(len(self.refused))

    def take(self, rows: int = 1, most: int | None = None) -> None:
        """Count rows that were read. Raises UnreadableError for more than ``most`` in all."""
        self.rows += rows
        self.check_rows(self.rows, most)

    def check_rows(self, count: int, most: int | None = None) -> None:
        most = MOST_ROWS if most is None else most
        if count > most:
            raise UnreadableError("file", f"more than {most} rows", "less", "Split it.")

    def warn(self, text: str) -> None:
        if text not in self.warnings and len(self.warnings) < MOST_PROBLEMS:
            self.warnings.append(text)

    def choose(self, option: str, requested: Value | None, recorded: Value | None) -> Value | None:
        """The value of the user's option, or else of the file. Warns if the two differ."""
        if requested and recorded and requested != recorded:
            self.warn(f"--{option} {requested}, but the file says {recorded}")
        return requested or recorded

    def warnings_by_run(self) -> list[list[str]]:
        """The warnings of each run: its own, and those that are about all."""
        texts_by_run = self.own_warnings or [[]] * len(self.runs)
        about_some = {text for texts in texts_by_run for text in texts}
        return [
            [text for text in self.warnings if text in texts or text not in about_some]
            for texts in texts_by_run
        ]

    def refusals(self) -> list[tuple[str, str]]:
        """(line numbers as ranges, reason) for each distinct reason."""
        lines_by_reason: dict[str, list[int]] = {}
        for refused in self.refused:
            lines_by_reason.setdefault(refused.reason, []).append(refused.line)
        return [
            (format_ranges(lines) if any(lines) else "", why)
            for why, lines in lines_by_reason.items()
        ]


def join(parts: Sequence[Imported]) -> Imported:
    """What was read of several texts as one. Warnings remain with the runs of their text."""
    whole = Imported()
    for part in parts:
        whole.runs += part.runs
        whole.own_warnings += part.warnings_by_run()
        whole.take(part.rows)
        whole.refused += part.refused
        whole.action = whole.action or part.action
        for text in part.warnings:
            whole.warn(text)
    return whole


class Importer(Protocol):
    """The interface of an importer module; see the top of this file."""

    NAME: str

    def sniff(self, head: Sequence[str]) -> bool: ...

    def read(self, lines: Iterable[Line], options: ImportOptions) -> Imported: ...


# Grouped digits like 1,048,576 and 1,234.5; not 1,234, whose comma may be a decimal one.
_GROUPED = re.compile(r"\d{1,3}(?:(?:,\d{3}){2,}|,\d{3}(?=\.))(?:\.\d+)?")
_GROUPED_WHOLE = re.compile(r"\d{1,3}(?:,\d{3})+")


def number(text: object) -> float | None:
    """``text`` as a finite number >= 0; None for anything else."""
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        if not (isinstance(text, str) and _GROUPED.fullmatch(text.strip())):
            return None
        value = float(text.replace(",", ""))
    return value if 0 <= value < MOST_NUMBER else None  # NaN fails this comparison


COMMAS = (
    "figures with a comma, which may stand for the decimal point or group thousands: write 1234.5"
)


def no_figure(name: str, text: str) -> str:
    """Why ``number`` does not accept a cell. All cells with a comma have the same reason."""
    return COMMAS if re.search(r"\d,\d", text) else f"{name} is {text}"


def ns_of_us(text: object) -> float | None:
    """A time in microseconds as nanoseconds; None if it is not a number."""
    value = number(text)
    return None if value is None else value * 1e3


def whole(text: object) -> int | None:
    """``text`` as a whole number >= 0 of at most 62 bits; None for anything else."""
    if isinstance(text, bool) or (isinstance(text, float) and not text.is_integer()):
        return None
    try:
        value = int(text)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        if not (isinstance(text, str) and _GROUPED_WHOLE.fullmatch(text.strip())):
            return None
        value = int(text.replace(",", "")[:_DIGITS])
    return value if 0 <= value < MOST_WHOLE else None


def parse_ranks(text: object) -> int | None:
    """``text`` as a number of ranks; None if it is not one."""
    value = whole(text)
    return value if value and value <= MOST_RANKS else None


def collective_named(text: str) -> str | None:
    """torch's name of a collective in any tool's spelling; None if it is not a collective."""
    try:
        return find_collective(text).name
    except UsageError:
        return None


@lru_cache(maxsize=64)  # called with the name of the file for each row
def collective_in(text: str) -> str | None:
    """The collective in ``2. All_reduce`` or ``nccl_allgather.log``; None for none or several."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower())
    names = set()
    spellings = {name for c in COLLECTIVES.values() for name in (c.name, *c.aliases)}
    spellings |= {name.replace("_", "") for name in spellings}
    for spelling in sorted(spellings, key=len, reverse=True):
        pattern = rf"(?<![a-z]){spelling}(?![a-z])"
        if re.search(pattern, plain):
            names.add(find_collective(spelling).name)
            plain = re.sub(pattern, "#", plain)
    return names.pop() if len(names) == 1 else None


@lru_cache(maxsize=64)
def dtype_named(text: str | None) -> str | None:
    """torch's name of a type. A type that torch does not have keeps its name; None for no text."""
    if not text:
        return None
    plain = re.sub(r"^(mpi|nccl|ncclfloat)_", "", text.strip().lower())
    try:
        return find_dtype(plain).name
    except UsageError:
        return plain


def itemsize(dtype: str | None) -> int | None:
    """Bytes of one element; None for an unknown type."""
    if dtype in DTYPES:
        return DTYPES[dtype].itemsize
    return _OTHER_SIZES.get(dtype or "")


def mpi_dtype(text: str) -> str | None:
    """torch's name of an MPI type, such as ``MPI_FLOAT`` or MPICH's ``MPIX_C_BF16``."""
    plain = dtype_named(re.sub(r"^MPIX?_(?:C_)?", "", text.strip()))
    return "uint8" if plain == "byte" else plain


def basis(collective: str) -> str:
    """What a source's size refers to if it is an argument of the call and not S."""
    return "per peer" if collective.startswith("all_to_all") else "per rank"


def make_result(
    collective: str,
    size_bytes: int,
    reported: Reported,
    *,
    ranks: int = 0,
    dtype: str | None = None,
    op: str | None = None,
    root: int | None = None,
    in_place: bool | None = None,
    mode: str = "unknown",
    backend: str = "unknown",
    device: str = "unknown",
    count: int | None = None,
    wrong: int | None = None,
    checked: int = 0,
    warnings: Sequence[str] = (),
    coalesce: int = 1,
    buffer_reuse: str = "unknown",
    group: str | None = None,
) -> CaseResult:
    """Make a result. size_bytes: S of nccl-tests. ranks: 0 is unknown. wrong: of ``checked``."""
    entry = COLLECTIVES[collective]
    case = Case(
        collective,
        size_bytes,
        dtype if entry.has_data else None,
        op if entry.has_op else None,
        root if entry.has_root else None,
        in_place,
        mode,
        backend,
        device,
        coalesce=coalesce,
        buffer_reuse=buffer_reuse,
        group=group,
    )
    bytes_in = bytes_out = 0
    size = itemsize(dtype)
    if count is None and size and (ranks or entry.parts(2) == 1):
        count = size_bytes // (size * entry.parts(ranks or 1))
    if ranks and entry.has_data and not entry.has_splits:
        # Computed in bytes, so that the type need not be known, and for the root, which has the
        # most.
        layout = Layout(root or 0, ranks, size_bytes // entry.parts(ranks), root or 0)
        bytes_in, bytes_out = entry.elements(layout)
    return CaseResult(
        case,
        "wrong" if wrong and checked else "ok",
        ranks,
        count=count or 0,
        size_bytes=size_bytes,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        ordinal=None,
        verification=Verification(checked, wrong) if wrong is not None and checked else None,
        warnings=list(warnings),
        reported=reported,
    )


def make_run(
    results: Sequence[CaseResult],
    options: ImportOptions,
    source: Mapping[str, str | None],
    *,
    ranks: int = 0,
    environment: Mapping[str, Any] | None = None,
    start_utc: str | None = None,
    members: Sequence[Mapping[str, Any]] = (),
    end: Mapping[str, Any] | None = None,
    events: Sequence[Mapping[str, Any]] = (),
) -> Run:
    """Make a run of a source. It is complete unless ``end`` tells otherwise. Secrets are masked."""
    origin = {k: masked(str(v)) for k, v in source.items() if v}
    header: dict[str, Any] = {
        "run_id": f"{origin.get('tool', 'import')}:{options.file}",
        "ranks": ranks,
        "source": {**origin, "file": options.file},
        "environment": dict(environment or {}),
    }
    if start_utc:
        header["start_utc"] = start_utc
    return Run(
        header=header,
        members=[dict(member) for member in members],
        results=list(results),
        events=masked_texts(events),
        end=masked_texts(end or {"status": "complete"}),
    )


# A command line up to the program, whose own options may have the same names.
_LAUNCHER = re.compile(
    r"\b(mpi(?:run|exec)[\w.]*|srun|prun|aprun|jsrun|torchrun|nccom-test)\b"
    r"((?:\s+(?!\S*(?:_perf|osu_|IMB-|python|\.py\b|\.sh\b|\./))\S+){0,60})"
)
_RANKS = re.compile(r"\s(?:--?np?|--ntasks|-r)(?:\s+|=)?(\d{1,7})\b")
_NODES = re.compile(r"\s(?:-N|--nodes|--nnodes)(?:\s+|=)?(\d{1,6})\b")
_PER_NODE = re.compile(r"\s--(?:ntasks-per-node|nproc[-_]per[-_]node)(?:\s+|=)(\d{1,6})\b")
# Lines of benchmarks.
_STATED = re.compile(r"\bon (\d{1,7}) MPI ranks\b|\bprocesses=(\d{1,7})\b")


def ranks_in(text: str) -> int | None:
    """The number of ranks that a command line of a launcher, or a line of a benchmark, states."""
    if match := _STATED.search(text):
        return parse_ranks(match[1] or match[2])
    launcher = _LAUNCHER.search(text)
    if launcher is None:
        return None
    options = f"{launcher[2]} "
    if match := _RANKS.search(options):
        return parse_ranks(match[1])
    per_node, nodes = _PER_NODE.search(options), _NODES.search(options)
    if per_node and (nodes or launcher[1] == "torchrun"):
        return parse_ranks(int(per_node[1]) * int(nodes[1] if nodes else 1))
    return None


# Collectives whose names are words of English, in prose about something else.
_WORDS = ("reduce", "broadcast", "gather", "scatter", "barrier")
_MOST_WORDS = 4  # of a title


def collective_of_title(text: str) -> str | None:
    """The collective that a line above a table names; None for prose."""
    name = collective_in(text)
    prose = len(re.findall(r"[A-Za-z]+", text)) > _MOST_WORDS
    return None if prose and name in _WORDS and f"{name}_perf" not in text else name


_MARKUP = (
    (re.compile(r"<[/a-zA-Z][^<>]*>"), ""),
    (re.compile(r"!?\[([^]]+)]\([^)]*\)"), r"\1"),
    (re.compile(r"(\*{1,3}|~~|`+)(?=\S)(.+?)(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<!\w)(_{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)"), r"\2"),
)
_AROUND_TITLE = " #\t:*=`>-\uff1a"


def plain_title(text: str) -> str:
    """The words of a line above a table, without the Markdown and HTML around them."""
    for pattern, kept in _MARKUP:
        text = pattern.sub(kept, text)
    return " ".join(text.strip(_AROUND_TITLE).split())


TRUNCATED = "truncated"
_ROUNDED = 0.05  # published figures are rounded, and each is a separate mean


def contradiction(
    name: str, printed_gbps: float | None, expected_gbps: float | None, basis: str, step: float
) -> str:
    """A text if a bandwidth contradicts the one from ``basis``; else ''. step: of rounding."""
    if not printed_gbps or not expected_gbps:
        return ""
    if abs(printed_gbps - expected_gbps) <= _ROUNDED * expected_gbps + step:
        return ""
    return f"given {name} {printed_gbps:.6g} GB/s, but {expected_gbps:.6g} follows from {basis}"


def rounding(text: str) -> float:
    """Half a unit in the last place of a printed number."""
    mantissa, _, power = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    exponent = 0
    if power:
        exponent = min(whole(power.lstrip("+-")) or 0, 300) * (-1 if power[0] == "-" else 1)
    return float(0.5 * 10.0 ** (exponent - min(decimals, 300)))
