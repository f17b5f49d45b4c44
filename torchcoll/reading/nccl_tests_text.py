"""Reads the text output of nccl-tests, of all versions, and of rccl-tests.

This module groups lines into runs; nccl_tests_rows.py parses the rows. Sources: src/util.cu and
src/common.cu of nccl-tests 2.0 to 2.19.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import Run
from torchcoll.core.variables import kept_variables
from torchcoll.reading import base, nccl_tests
from torchcoll.reading.nccl_tests import SET, Messages
from torchcoll.reading.nccl_tests_rows import RowParser
from torchcoll.reading.table_reader import NOTE
from torchcoll.reading.writers import log_hosts, without_log

NAME = "nccl-tests"

_START = re.compile(r"Collective test starting:\s*(\S+)")
_BLOCKING = re.compile(r"^# Blocking Enabled: (.*)")
_CONCLUDED = re.compile(r"Collective test concluded:\s*(\S*)")
_PROGRAM = re.compile(r"(?<![a-zA-Z])([a-zA-Z_]+?)_perf(?:_mpi)?\b")
_VARIABLE = re.compile(r"(?<![\w$])(NCCL_[A-Z0-9_]{1,60})=([^\s'\"$;]{1,200})")
_VERSION = re.compile(r"nccl-tests version (\S+)(?:.*?nccl-library=(\d+))?")
_RCCL = re.compile(r"RCCL version\s*:?\s*(\S+)")
_NCCL = re.compile(r"NCCL version (\S+)")
_RCCL_TESTS = re.compile(r"rccl-tests: Version (\S+)")
_SETTINGS = re.compile(r"nThread (\d+) nGpus (\d+) minBytes")
_RANK = re.compile(
    r"Rank\s+(\d+)(?:\s+Group\s+\d+)?(?:\s+Pid\s+(\d+))? on\s+(\S+)\s+device\s+(\d+)"
    r"(?:\s+\[([^]]*)\])?\s*(.*)"
)
_HEADING = re.compile(
    r"#?\s*(?:size\s+count|bytes\s+N)\s+type\b.*(?:\btime\b.*\bbusbw\b|\bcputime\b)"
)
_NUMBERS = r"\d[\d,]*\s+\d[\d,]*\s+"
_TYPE = r"[a-z][a-z0-9_]*\s+(?:[a-z]+\s+)?-?\d"
# The rest of a row that other output runs into. It cannot be read, but must be reported.
_HOLDS = re.compile(
    rf"\d\s+\d[\d,]*\s+{_TYPE}[\d.]*(?:\s+[\d.]+){{2}}|\d\s+{_TYPE}[\d.]*(?:\s+[\d.]+){{5}}"
)
_BEGUN = re.compile(r"\s*\d[\d,]*(?:\s+\d[\d,]*)?\s*$")  # the size, and the count, of a row
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.eE+-]+)")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)")
_REDUCING = re.compile(r"Reducing maxBytes to \d+.*")
_ROW = re.compile(rf"\s*{_NUMBERS}[a-z]")
_ROW_HEAD = re.compile(rf"\s*{_NUMBERS}[a-z][a-z0-9_]*\b")
_PLACEMENTS = re.compile(r"out-of-place|in-place")
_HOST_LINES, _HOST_CHARACTERS = 1000, 1000  # of a line, in which names of hosts are looked for
_LEAST = 6  # fields of a row: size, count, type, time, algbw, busbw
_STARRED = re.compile(r"\d[\d.e+-]*\*")  # an error above nccl-tests' own limit
_ABOVE, _TITLE = 8, 80  # lines and characters of titles: longer lines are prose
_SUFFIXED = re.compile(r"\s*\d[\d.,]*[KMGT]?i?B?\s+\d[\d.,]*[KMGT]?\s+[a-z]\w*\s+\S+(?:\s+\S+){3}")
SUFFIXES = "sizes or counts with a suffix such as 1M are rounded: nccl-tests prints all digits"
SIDE_BY_SIDE = "rows of several tables side by side: put each table into a file of its own"
RUN_INTO = "a row that other output runs into: where it begins cannot be told"
PASTED = "the tables have no last lines of nccl-tests: the last table may be cut off"
HALVES = "rows with the figures out of place alone: nccl-tests printed none in place, or was ended"


def sniff(head: Sequence[str]) -> bool:
    rows, parser = [], RowParser((), ())
    for text in head:
        heading = _HEADING.match(text) and "busbw" in text
        if heading or _START.search(text) or _SETTINGS.search(text):
            return True
        if _ROW.match(text) and len(text.split()) in range(11, 24):
            rows.append(text)
    # An excerpt without a heading, which may be a single row.
    return len(rows) > 1 or any(not isinstance(parser.row(0, row), str) for row in rows)


@dataclass
class _TestOutput:
    """The output of one nccl-tests process.

    names: columns of the heading. above: texts above the heading. zeros: number of lines of rank 0.
    launched: ranks by the command line. title: the line above a table of several. wrong: number of
    wrong results. pasted: whether the table before, of the same paste, has no last lines either.
    """

    line: int
    collective: str | None = None
    names: list[str] = field(default_factory=list)
    parser: RowParser = field(default_factory=lambda: RowParser((), ()))
    above: list[base.Line] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    members: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[nccl_tests.NcclTestsRow] = field(default_factory=list)
    average: float | None = None
    started: bool = False
    concluded: bool = False
    failed: bool = False
    pasted: bool = False
    wrong: int = 0
    verdict: str = ""
    title: str = ""
    first_title: str = ""
    events: list[str] = field(default_factory=list)
    zeros: int = 0
    launched: int = 0
    variables: dict[str, str] = field(default_factory=dict)  # of the command line
    messages: Messages = field(default_factory=Messages)

    @property
    def ended(self) -> bool:
        return self.concluded or self.average is not None or self.failed


def read(lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
    imported = base.Imported()
    lines = iter(lines)
    first = list(itertools.islice(lines, _HOST_LINES))
    reader = _TextReader(imported, log_hosts(text[:_HOST_CHARACTERS] for _, text in first))
    for line, text in itertools.chain(first, lines):
        reader.line(line, text)
    reader.end()
    outputs = [each for each in reader.outputs if each.rows or each.settings or each.started]
    crowd = [output for output in outputs if output.zeros or output.settings]
    if _interleaved(crowd):
        number = max(2, len(crowd), sum(output.zeros for output in crowd))
        for line in [row.line for output in outputs for row in output.rows] or [0]:
            imported.refuse(line, nccl_tests.INTERLEAVED.format(n=number))
        return imported
    tables = sum(bool(output.rows) for output in outputs)
    parts = [imported]
    for output in outputs:
        if tables > 1:
            output.title = output.title or output.first_title
        parts.append(base.Imported())
        if run := _make_run(output, options, parts[-1]):
            parts[-1].runs.append(run)
    joined = base.join(parts)
    alone = sum(run.ranks == 1 for run in joined.runs)
    if alone > 1:
        joined.warn(
            f"{alone} outputs of one rank each: if one run was to have {alone} ranks, "
            "nccl-tests was built without MPI (build it with MPI=1)"
        )
    return joined


def _interleaved(outputs: Sequence[_TestOutput]) -> bool:
    """Whether tests without MPI ran at once: several ranks 0 before one ends, and no rank 1."""
    if any(set(output.members) - {0} for output in outputs):
        return False
    if any(output.zeros > 1 for output in outputs):
        return True
    return not all(output.ended for output in outputs[:-1])


# What the tables of one test have in common.
_SHARED = ("collective", "names", "parser", "settings", "args", "launched", "members", "versions")


class _TextReader:
    """Groups lines into outputs. The heading of another test begins the next output."""

    def __init__(self, imported: base.Imported, hosts: Collection[str]) -> None:
        self.hosts = hosts
        self.imported = imported
        self.outputs: list[_TestOutput] = []
        self.pending: tuple[int, str] | None = None  # the begin of a row that a log line has split
        self.failed: tuple[int, str, str] | None = None  # a row that cannot be read, and why
        self.next_messages = Messages()  # messages of the next run's ranks before its heading
        self.placements: tuple[str, ...] = ()  # placements in the line above a heading
        self.above: deque[base.Line] = deque(maxlen=_ABOVE)  # texts since the last row

    @property
    def output(self) -> _TestOutput:
        if not self.outputs:
            self.outputs.append(_TestOutput(1))
        return self.outputs[-1]

    def line(self, line: int, text: str) -> None:
        if self.failed:
            self.refuse_failed(text)
        if "NCCL" in text or "|CCL_" in text:
            before, logged = without_log(text, self.hosts)
            if logged:
                self.message(text[len(before) :])
                if _HOLDS.search(text, len(before)):
                    self.imported.refuse(line, RUN_INTO)
                if before.strip():
                    self.broken(line, before)
                return
        if self.pending:
            first, start = self.pending
            if not text.strip() or text.lstrip()[:1] == "#" or _ROW.match(text):
                self.refuse_pending()
            else:
                self.pending = None
                self.row(first, start + text)
                return
        if _ROW.match(text):
            self.row(line, text)
        elif text and not text.isspace():
            self.other(line, text)

    def message(self, text: str) -> None:
        # Messages from the start of a process may precede nccl-tests' first line.
        next_one = self.output.ended and (SET in text or "CCL version" in text)
        (self.next_messages if next_one else self.output.messages).take(text)

    def broken(self, line: int, text: str) -> None:
        """Read the text before a message of a library, which may be a fragment of a row."""
        if self.pending:
            self.pending = (self.pending[0], self.pending[1] + text)
        elif _ROW_HEAD.match(text):
            if isinstance(self.output.parser.row(line, text), str):
                self.pending = (line, text)
            else:
                self.row(line, text)
        elif _BEGUN.match(text) and self.output.names:
            self.pending = (line, text)
        else:
            self.other(line, text)

    def refuse_pending(self) -> None:
        if self.pending:
            self.imported.refuse(self.pending[0], "the row is cut off by other output")
            self.pending = None

    def refuse_failed(self, following: str = "") -> None:
        """Refuse the row that failed. The next line may be its continuation."""
        if self.failed:
            (line, text, why), self.failed = self.failed, None
            whole_row = RowParser((), ()).row(line, text + following) if following.strip() else ""
            half = self.output.parser.half(line, text) if isinstance(whole_row, str) else ""
            if not isinstance(half, str) and (
                _ROW.match(following) or not following.strip()[:1].isdigit()
            ):
                self.output.rows.append(half)
                self.imported.warn(HALVES)
                return
            self.imported.refuse(line, why if isinstance(whole_row, str) else base.WRAPPED)

    def end(self) -> None:
        self.refuse_failed()
        self.refuse_pending()

    def row(self, line: int, text: str) -> None:
        row = self.output.parser.row(line, text)
        if isinstance(row, str) and _side_by_side(text):
            row = SIDE_BY_SIDE
        elif isinstance(row, str) and len(pieces := NOTE.split(text, maxsplit=1)) > 1:
            without = self.output.parser.row(line, pieces[0])
            row = row if isinstance(without, str) else without
        if not isinstance(row, str):
            if self._begins_table(row):
                self._next_table(line)
            else:
                self._entitle(self.output)
        self.above.clear()
        if isinstance(row, str):
            self.failed = line, text, row
            return
        self.output.rows.append(row)
        starred = next((field for field in text.split() if _STARRED.fullmatch(field)), "")
        if starred and "error" in self.output.names:
            self.output.verdict = self.output.verdict or f"error {starred} in line {line}"
            self.output.wrong += 1

    def _begins_table(self, row: nccl_tests.NcclTestsRow) -> bool:
        """Whether a row is of another table than the rows before."""
        rows = self.output.rows
        if not rows:
            return False
        again = row.size < rows[-1].size or (row.size == rows[-1].size and len(rows) == 1)
        return self.output.ended or (again and bool(self._title()))

    def _title(self) -> str:
        """The last line of text since the row before, '' if there is none."""
        texts = [base.plain_title(text) for _, text in self.above]
        titles = [text for text in texts if any(map(str.isalnum, text)) and text[0] != "("]
        return titles[-1] if titles and len(titles[-1]) <= _TITLE else ""

    def _entitle(self, output: _TestOutput) -> None:
        """The line above the first line of an output is its title."""
        last = next((text for _, text in reversed(self.above) if text.strip(" #*`")), "")
        if not output.rows and (not output.first_title or last.rstrip(" *_").endswith(":")):
            output.first_title = self._title()
            self.above.clear()

    def _next_table(self, line: int) -> None:
        """Begin a table of the same test: same collective, ranks and columns."""
        before = self.output
        before.title = before.title or before.first_title
        pasted = bool(before.title and self._title()) and not before.ended
        before.concluded = True
        self.next_output(line, True)
        for name in _SHARED:
            setattr(self.output, name, getattr(before, name))
        self.output.above = [*before.above, *self.above]
        self.output.started, self.output.title = before.started, self._title()
        self.output.pasted = pasted

    def other(self, line: int, text: str) -> None:
        output = self.output
        if match := _START.search(text):
            begun = output.started or bool(output.rows) or bool(output.settings)
            output = self.next_output(line, begun)
            output.started = True
            self._entitle(output)
            output.collective = base.collective_named(_plain_program(match[1])) or output.collective
        elif _SETTINGS.search(text):
            output = self.next_output(line, bool(output.settings or output.rows))
            output.settings = nccl_tests.settings_of(text)
            self._entitle(output)
        elif match := _BLOCKING.search(text):
            output.settings["blocking"] = nccl_tests.blocking_option(match[1])
        elif match := _RANK.search(text):
            # The list of ranks is above its table. In the oldest versions each rank prints its own
            # line, after the table.
            next_list = output.ended or base.whole(match[1]) == 0
            self.member(self.next_output(line, bool(output.rows) and next_list), match)
        elif placements := _PLACEMENTS.findall(text):
            self.placements = tuple(placements)
        elif _HEADING.match(text):
            if output.rows:
                self._next_table(line)
            output = self.output
            output.above += [line for line in self.above if line not in output.above]
            output.names = text.lstrip("# ").replace("#wrong", " #wrong").split()
            output.parser = RowParser(output.names, self.placements)
        elif match := _AVERAGE.search(text) or _BOUNDS.search(text):
            if match.re is _AVERAGE:
                output.average = base.number(match[1])
            output.failed = output.failed or match.re is _BOUNDS
            if output.verdict or output.wrong:
                return
            if match.re is _BOUNDS and (count := base.whole(match[1])):
                output.wrong = count
            elif nccl_tests.SAYS_FAILED in text:
                output.verdict = " ".join(text.strip("# ").split())
        elif match := _CONCLUDED.search(text):
            output.concluded = True
            output.collective = output.collective or base.collective_named(_plain_program(match[1]))
        elif match := _VERSION.search(text):
            if output.started or output.rows:
                output = self.next_output(line, True)
            output.versions["nccl-tests"] = match[1]
            self._entitle(output)
            if match[2]:
                output.versions["nccl"] = nccl_tests.version_text(match[2])
        elif match := _RCCL_TESTS.search(text):
            output.versions["rccl-tests"] = match[1]
        elif match := _RCCL.search(text):
            output.versions["rccl"] = match[1]
        elif match := _NCCL.search(text):
            output.versions.setdefault("nccl", match[1])
        elif match := _REDUCING.search(text):
            self.imported.warn(f"the sweep ended early on purpose: {match[0].strip()}")
        elif "# error:" in text or "Test NCCL failure" in text or "Test CUDA failure" in text:
            output.events.append(text.strip(" #"))
        elif "_perf" in text and (match := _PROGRAM.search(text)):
            self.command(line, match)
        elif output.names and _SUFFIXED.match(text):
            self.imported.refuse(line, SUFFIXES)
        elif _HOLDS.search(text):
            self.imported.refuse(line, RUN_INTO)
        elif len(text) < _TITLE:
            self.above.append((line, text))

    def command(self, line: int, match: re.Match[str]) -> None:
        name = base.collective_named(match[1].rpartition("/")[2])
        if name:
            output = self.next_output(line, bool(self.output.rows))
            output.collective = name
            self._entitle(output)
            output.args = match.string[match.end(1) :].split()
            output.launched = nccl_tests.launched_ranks(match.string)
            launcher = match.string[: match.start(1)]
            output.variables = kept_variables(dict(_VARIABLE.findall(launcher)))
            if text := nccl_tests.fraction(output.args):
                self.imported.warn(text)

    def next_output(self, line: int, needed: bool) -> _TestOutput:
        if needed:
            before = self.output
            self.refuse_pending()
            self.outputs.append(_TestOutput(line))
            if not before.rows and not before.settings:  # the output so far is only a version line
                self.outputs[-1].versions = before.versions
                self.outputs[-1].messages = before.messages
            else:
                self.outputs[-1].messages, self.next_messages = self.next_messages, Messages()
        return self.output

    def member(self, output: _TestOutput, match: re.Match[str]) -> None:
        rank = base.whole(match[1])
        output.zeros += rank == 0
        if rank is not None and rank < MOST_RANKS:
            output.members[rank] = {
                "rank": rank,
                "host": match[3],
                "pid": base.whole(match[2]) or 0,
                "device": f"cuda:{match[4]}",
                "device_name": match[6].strip(),
            }
            if ":" in (match[5] or ""):
                output.members[rank]["pci"] = match[5]


def _side_by_side(text: str) -> bool:
    """Whether a line has two rows side by side, as ``paste`` and ``diff -y`` print them."""
    tokens = [token for token in text.split() if token not in ("|", "<", ">")]
    half, odd = divmod(len(tokens), 2)
    return not odd and half > _LEAST and bool(_ROW.match(" ".join(tokens[half:])))


def _plain_program(name: str) -> str:
    return os.path.basename(name).removesuffix("_mpi").removesuffix("_perf")


def _make_run(
    output: _TestOutput, options: base.ImportOptions, imported: base.Imported
) -> Run | None:
    rows = output.rows
    if not rows:
        return None
    listed = max(output.members, default=-1) + 1
    name = imported.choose("collective", options.collective, output.collective)
    name = name or _unnamed(output, options, options.ranks or listed, imported)
    if name is None:
        return None
    run = nccl_tests.NcclTestsRun(name, cpu_time="cputime" in output.names)
    run.ranks = imported.choose("ranks", options.ranks, listed) or 0
    inferred, source = nccl_tests.infer_ranks(rows, name)
    if options.ranks:
        run.contradicted_by = nccl_tests.check_ranks(rows, name, options.ranks, imported)
    elif inferred and not listed:
        imported.warn(f"{inferred} ranks: recovered from {source}")
        run.ranks = inferred
    elif inferred and nccl_tests.contradicts_ranks(rows, name, listed):
        imported.warn(
            f"{listed} ranks are listed, but every {source} is that of {inferred}: {inferred} taken"
        )
        run.ranks = inferred
    elif not run.ranks and output.launched:
        imported.warn(f"{output.launched} ranks: taken from the command line")
        run.ranks = output.launched
    run.calls = base.whole(output.settings.get("iters"))
    if output.settings.get("graph", "0") != "0":
        run.mode = "graph"
    unaligned = base.whole(output.settings.get("unalign")) or 0
    blocking = output.settings.get("blocking", "0")
    set_variables = nccl_tests.apply_options(run, output.args, unaligned, blocking)
    for row in rows:
        row.dtype = options.dtype or row.dtype
        row.root = (row.root or 0) if COLLECTIVES[name].has_root else None
    end: dict[str, Any] = {"status": "complete"}
    if output.verdict or output.wrong:
        end = nccl_tests.failed_end(output.verdict, output.wrong, rows)
    results = nccl_tests.make_results(rows, run, imported)
    if output.settings.get("step_kind") == "bytes" and output.settings.get("step") == "1048576":
        imported.warn(nccl_tests.STEP_1M)
    _check_average(output, imported)
    output.messages.choose(results)
    if text := output.messages.expectation(results):
        imported.warn(text)
    output.versions = output.messages.versions | output.versions
    rccl = "rccl" in output.versions or "rccl-tests" in output.versions
    tool = "rccl-tests" if rccl else "nccl-tests"
    library = output.versions.get("rccl" if rccl else "nccl")
    environment: dict[str, Any] = {}
    if library:
        environment["libraries"] = {"nccl": f"{'RCCL' if rccl else 'NCCL'} {library}"}
    if variables := output.variables | output.messages.variables | set_variables:
        environment["variables"] = variables
    members = [output.members[r] for r in sorted(output.members)]
    if len(members) != run.ranks:
        hosts = {m["host"] for m in members}
        environment |= {"host": hosts.pop()} if len(hosts) == 1 else {}
        names = {m["device_name"] for m in members} - {""}
        environment |= {"device_name": names.pop()} if len(names) == 1 else {}
        members = []
    excerpt = not (output.ended or output.started or output.settings or output.members)
    if output.pasted and not output.ended:
        imported.warn(PASTED)
    elif not (output.ended or excerpt or output.verdict):
        end = {"status": base.TRUNCATED, "reason": "the output stops before its last lines"}
    if not results:
        return None
    form = "text, an excerpt" if excerpt else "text"
    events = [{"kind": "error", "message": text} for text in output.events]
    for path in output.messages.slow_paths({m["host"] for m in output.members.values()}):
        events.append({"kind": "slow_path", "message": path.text, "remedy": path.remedy})
    run_of_table = base.make_run(
        results,
        options,
        {
            "tool": tool,
            "version": output.versions.get(tool),
            "format": form,
            "ranks_of_busbw": run.contradicted_by,
        },
        ranks=run.ranks,
        environment=environment,
        members=members,
        end=end,
        events=events,
    )
    if output.title:
        run_of_table.header["spec"] = {"labels": nccl_tests.title_labels(output.title)}
    return run_of_table


# Tests that nccl-tests has since NCCL 2.7.
_BY_SEND = ("sendrecv", "all_to_all", "gather", "scatter", "hypercube")


def _unnamed(
    output: _TestOutput, options: base.ImportOptions, ranks: int, imported: base.Imported
) -> str | None:
    """The collective of a table that no line of nccl-tests names; None if its rows are refused."""
    fits = nccl_tests.fitting_collectives(output.rows, ranks, "#wrong" in output.names)
    nccl = (output.messages.versions | output.versions).get("nccl", "")
    if "res" in output.names or re.match(r"2\.[0-6]\b", nccl):  # before NCCL had send and receive
        fits = {name: how for name, how in fits.items() if name not in _BY_SEND}
    titles = [(f"line {n}", base.collective_of_title(text)) for n, text in reversed(output.above)]
    named = [*titles, ("the name of the file", base.collective_in(options.file))]
    origin, name = next((source for source in named if source[1]), ("", None))
    if name and (name in fits or not fits):
        imported.warn(f"collective {name}: taken from {origin}")
        return name
    if name:
        why = f"{origin} names {name}, but the figures are those of {' or '.join(fits)}"
    elif len(fits) == 1:
        ((name, how),) = fits.items()
        imported.warn(f"taken for {name}: {how}")
        return name
    else:
        several = f", and its figures fit {' and '.join(fits)}" if fits else ""
        why = f"the file does not name the collective{several}"
    if fits:  # others would be refused
        first, *further = fits
        either = f" (or {', '.join(further)})" if further else ""
        action = f"torchcoll convert FILE --collective {first} -o RUN.jsonl takes it"
        imported.action = f"{action}{either}."
    for row in output.rows:
        imported.refuse(row.line, f"{why}: give --collective")
    return None


def _check_average(output: _TestOutput, imported: base.Imported) -> None:
    """Warn if the footer's average, which is over all rows, differs: then rows are missing."""
    bandwidths = [b.busbw for row in output.rows for b in row.blocks if b.busbw is not None]
    if output.average is None or not bandwidths:
        return
    average = sum(bandwidths) / len(bandwidths)
    if abs(average - output.average) > 0.01 * max(average, output.average) + 0.01:
        imported.warn(
            f"average bus bandwidth {output.average:g} given, {average:.6g} of the rows that are "
            "here: rows are missing, or are another run's"
        )
