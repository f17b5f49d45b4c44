"""Lists the importers, finds the one for a file, and imports the file.

A third party adds a format with a module as described in reading/base.py and an entry point::

    [options.entry_points]
    torchcoll.importers =
        mine = my_package.my_importer
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import cast

from torchcoll.core.bounds import MOST_TEXT
from torchcoll.core.errors import ForeignError, UnreadableError, UsageError, choice, one_line
from torchcoll.core.file import MODEL_START, is_ours, uncollected
from torchcoll.core.opening import from_stdin, is_stdin
from torchcoll.core.other_commands import TRACE, reading_command, without_collectives
from torchcoll.core.result import Run
from torchcoll.core.units import shorten
from torchcoll.reading.base import (
    Imported,
    Importer,
    ImportOptions,
    Line,
    collective_of_title,
    join,
)
from torchcoll.reading.base import number as base_number
from torchcoll.reading.source import Source
from torchcoll.reading.writers import Writers, unwrapped, wrapping_width

GROUP = "torchcoll.importers"
_PLAIN = "plain"
_EXCERPT = 80  # characters
# Bytes of a file that is read again, unwrapped; characters of lines that are sorted by writer.
_MOST_WRAPPED, _MOST_APART = 16 << 20, 128 << 20
# In the order of sniffing. Formats that are recognised by less evidence come later.
BUILT_IN = (
    "nccl_tests_json",
    "nccl_tests_text",
    "imb",
    "oneccl",
    "param",
    "deepspeed",
    "pair_files",
    "osu",
    "ucc",
    "plain",
)

# How JSON begins. Logs of containers, notebooks and test runners contain a benchmark's text in
# their members, with escaped line ends.
_JSON = re.compile(rb'\s*(?:\{\s*"|\[\s*[\[{"])')


@cache
def importers() -> dict[str, Importer]:
    """Name -> importer. Importers of entry points come first and can replace built-in ones."""
    by_name: dict[str, Importer] = {}
    for point in entry_points(group=GROUP):
        try:
            module = cast(Importer, point.load())
            by_name[module.NAME] = module
        except Exception as error:  # code of others, which must not raise unknown errors here
            what = f"entry point {point.name} of {GROUP}"
            given, action = f"{type(error).__name__}: {error}", "Repair or uninstall its package."
            expected = "a module with NAME, sniff and read"
            raise UnreadableError(what, given, expected, action) from None
    for name in BUILT_IN:
        module = cast(Importer, importlib.import_module(f"torchcoll.reading.{name}"))
        by_name.setdefault(module.NAME, module)
    return by_name


def _has_long_lines(importer: Importer) -> bool:
    """Whether it reads JSON, whose lines are long and have no prefixes."""
    return bool(getattr(importer, "LONG_LINES", False))


def import_file(
    path: str, options: ImportOptions | None = None, name: str | None = None
) -> Imported:
    """Import a file; ``-`` is stdin. name: the importer, else found by sniffing. Raises
    UnreadableError, and UsageError for no importer.
    """
    choice(name, "from", (None, *importers()))
    if options and options.columns:  # only a plain table has columns to name
        if name not in (None, _PLAIN):
            raise UsageError("map", f"columns for {name}", f"them for --from {_PLAIN} alone")
        name = _PLAIN
    source = Source(path)
    if not source.start.strip():
        raise UnreadableError("file", source.name, "output of a benchmark; this one is empty")
    # Else reading all lines of a trace would take minutes.
    is_trace = not name and TRACE.match(source.start)
    if is_trace or source.binary:
        expected = "results; this is what a training sent"
        expected = expected if is_trace else "text; this one is binary"
        command = reading_command(source.start, path, "show")
        raise UnreadableError("file", source.name, expected, command)
    importer, writers, sample = _recognised(source, name)
    if _JSON.match(source.start) and (importer is None or not _has_long_lines(importer)):
        source.in_json = True
        importer, writers, sample = _recognised(source, name)
    if importer is None:
        if MODEL_START.search(source.start):
            action = "torchcoll model predict reads it."
            raise UnreadableError("file", source.name, "results; this is a model", action)
        tool, instead = without_collectives(source.start)
        if tool:
            expected = f"results of collectives; this is output of {tool}"
            raise ForeignError("file", source.name, expected, instead)
        expected = "a torchcoll result file, output of a benchmark, a log, or a trace"
        action = reading_command(source.start, path, "show") or _nearest(path, sample)
        raise ForeignError("file", source.name, expected, action)
    options = options or ImportOptions()
    file_name = "stdin" if is_stdin(path) else os.path.basename(path)
    options = ImportOptions(**{**vars(options), "file": options.file or file_name})
    long_lines = _has_long_lines(importer)
    lines: Iterable[Line] = source.lines(None if long_lines else MOST_TEXT)
    with uncollected():  # there are many rows, and they have no reference cycles
        imported = _read_lines(importer, lines, options, writers, sample)
        cut = any(refused.is_half for refused in imported.refused)
        width = wrapping_width(sample) if cut and not long_lines else 0
        if width and os.path.getsize(source.path) < _MOST_WRAPPED:
            joined = unwrapped(source.lines(MOST_TEXT), width)
            whole = _read_lines(importer, joined, options, writers, sample)
            if whole.rows > imported.rows:
                imported = whole
    for problem in filter(None, (source.cut, source.problem)):
        imported.warn(problem)
    imported.importer = importer.NAME
    if options.statistic and importer.NAME != _PLAIN:
        imported.warn(f"--statistic {options.statistic} is for plain tables: not used")
    refusals = [
        f"refused: {source.name}{f':{lines}' if lines else ''}: {why}"
        for lines, why in imported.refusals()
    ]
    for run, warnings in zip(imported.runs, imported.warnings_by_run(), strict=True):
        # Events are saved in the result file, problems are not.
        run.events += [{"kind": "import", "message": text} for text in (*warnings, *refusals)]
    return imported


def _recognised(source: Source, name: str | None) -> tuple[Importer | None, Writers, list[str]]:
    """The importer of a file, who wrote it, and its first lines."""
    windows = source.windows()
    sample = next(windows)
    writers = Writers(sample)
    if name:
        return importers()[name], writers, sample
    for lines in itertools.chain([sample], windows):
        messages = [written.text for written in writers.lines(enumerate(lines))]
        for each in importers().values():
            if each.sniff(lines if _has_long_lines(each) else messages):
                return each, writers, sample
    return None, writers, sample


def _read_lines(
    importer: Importer,
    lines: Iterable[Line],
    options: ImportOptions,
    writers: Writers,
    sample: Sequence[str],
) -> Imported:
    """Read the lines of a file: apart for each writer, where several print a table."""
    if _has_long_lines(importer):
        return importer.read(iter(lines), options)
    texts: dict[str, list[str]] = {}
    nodes: dict[str, str] = {}
    for written in writers.lines(enumerate(sample)):
        texts.setdefault(written.writer, []).append(written.text)
        nodes[written.writer] = written.node
    authors = [name for name, lines in texts.items() if name and importer.sniff(lines)]
    if len(authors) < 2:
        stripped = ((each.number, each.text) for each in writers.lines(lines))
        imported = importer.read(stripped, options)
        return _by(imported, nodes[authors[0]]) if authors else imported
    by_writer: dict[str, list[Line]] = {}
    characters = 0
    for written in writers.lines(lines):
        characters += len(written.text)
        if characters > _MOST_APART:
            given = f"{len(authors)} writers in more than {_MOST_APART >> 20} MB"
            action = f"Take one out: grep '{written.prefix}' FILE > TEXT"
            raise UnreadableError("file", given, "less", action)
        by_writer.setdefault(written.writer, []).append((written.number, written.text))
    named = [name for name in by_writer if name]
    parts = (importer.read(iter(by_writer[name]), options) for name in named)
    return join([_by(part, nodes[name], name) for part, name in zip(parts, named, strict=True)])


def _by(imported: Imported, node: str, writer: str = "") -> Imported:
    """Record who printed the runs, as far as their own lines do not tell."""
    for run in imported.runs:
        if node and not run.members:
            run.header["environment"].setdefault("host", node)
        if writer:
            labels = run.header.setdefault("spec", {}).setdefault("labels", {})
            labels["writer"] = writer
    return imported


def _nearest(path: str, lines: Sequence[str]) -> str:
    """The line that came nearest to a row of results, and one thing to try."""
    shares = [
        (sum(base_number(field) is not None for field in fields) / len(fields), -index)
        for index, text in enumerate(lines)
        if len(fields := text.replace(",", " ").replace("|", " ").split()) > 1
    ]
    share, index = max(shares, default=(0.0, 0))
    name = "-" if is_stdin(path) else shlex.quote(path)
    if share < 0.5:  # of its fields are numbers
        first = next((text.strip() for text in lines if text.strip()), "")
        start = f"It begins with {one_line(first)[:_EXCERPT]!r}. " if first else ""
        return f"{start}Give the lines of the benchmark itself, with the heading of its table."
    shown = one_line(lines[-index].strip())[:_EXCERPT]
    row, *above = (_cells(text) for text in reversed(lines[: 1 - index]))
    headings = (
        each for each in above if row and len(each) == len(row) and all(map(_is_name, each))
    )
    size, *others = next(headings, ["NAME", "NAME"])
    time = next((each for each in others if _TIME_NAME.search(each)), others[0])
    pairs = shlex.quote(f"size={one_line(size)},time={one_line(time)}")
    named_by = filter(None, map(collective_of_title, lines))
    return (
        f"Line {1 - index} came nearest: {shown!r}. Name its columns: torchcoll convert {name} "
        f"--map {pairs} --collective {next(named_by, 'all_reduce')} -o RUN.jsonl."
    )


def _cells(text: str) -> list[str]:
    """The cells of a row between bars or commas; [] for other lines."""
    cells = [cell.strip() for cell in re.split(r"[|,\t]", text.strip().strip("|"))]
    return cells if len(cells) > 1 else []


_TIME_NAME = re.compile(r"time|laten|duration|(?<!/)\b[mun\u00b5]?s(?:ec)?\b", re.IGNORECASE)


def _is_name(cell: str) -> bool:
    return cell[:1].isalpha() and base_number(cell) is None


def runs_in(path: str, *, collective: str | None = None, ranks: int | None = None) -> list[Run]:
    """The runs in another tool's output. Raises UnreadableError if nothing could be read."""
    imported = import_file(path, ImportOptions(collective=collective, ranks=ranks))
    if not imported.runs:
        raise nothing_read(path, imported)
    return imported.runs


def two_tables(
    path: str, collective: str | None = None, ranks: int | None = None
) -> list[tuple[str, Run]]:
    """(name, run) of the two tables of a file with the same cases, as Before and After; else []."""
    path = os.fspath(from_stdin(path))
    if not os.path.isfile(path) or is_ours(path):
        return []
    runs = runs_in(path, collective=collective, ranks=ranks)
    if len(runs) != 2 or runs[0].ranks != runs[1].ranks:
        return []
    first, second = ({result.case for result in run.results} for run in runs)
    if not first & second:
        return []
    titles = [str(run.labels.get("table", "")) for run in runs]
    if not all(titles) or titles[0] == titles[1]:
        titles = ["first", "second"]
    return [*zip(titles, runs, strict=True)]


_EXAMPLES = {"--collective": "all_reduce", "--ranks": "8"}


def nothing_read(path: str, imported: Imported, output: str = "RUN.jsonl") -> UnreadableError:
    """The error for a file without any readable row. output: the file of ``torchcoll convert``."""
    if not is_stdin(path) and os.path.abspath(path).startswith(os.getcwd() + os.sep):
        path = min(path, os.path.relpath(path), key=len)
    refusals = imported.refusals()
    if not refusals:
        text = "; ".join(imported.warnings) or "no rows"
        return UnreadableError(f"{path} ({imported.importer})", text, "rows of results")
    lines, why = refusals[0]
    count = len(imported.refused)
    location = f"{path}:{shorten(lines.split(','), 3, ',...', ',')}" if lines else path
    more = f" ({count} rows refused, {len(refusals)} reasons)" if len(refusals) > 1 else ""
    name = "-" if is_stdin(path) else shlex.quote(path)
    action = imported.action.replace(" FILE ", f" {name} ")
    if not action and (lacking := [option for option in _EXAMPLES if option in why]):
        options = " ".join(f"{option} {_EXAMPLES[option]}" for option in lacking)
        action = f"Such as: torchcoll convert {name} {options} -o RUN.jsonl."
    action = action.replace("RUN.jsonl", shlex.quote(output))
    return UnreadableError(f"{location}: {why}{more}", action=action)
