"""nccl-tests' text, of all versions, and rccl-tests'.

Lines become launches here; ``parse_row`` reads one row. Sources: src/util.cu and src/common.cu
of nccl-tests from 2.0 to 2.19.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.variables import kept_variables
from torchcoll.importers.base import (
    TRUNCATED,
    Imported,
    ImportOptions,
    Line,
    collective_in,
    collective_named,
    dtype_named,
    make_run,
    ns_of_us,
    number,
    rounding,
    whole,
)
from torchcoll.importers.nccl_tests import (
    INTERLEAVED,
    STEP_1M,
    Block,
    NcclTestsLaunch,
    NcclTestsRow,
    ranks_of,
    repeats,
    results_of,
    version_text,
)
from torchcoll.importers.source import without_log
from torchcoll.libraries.nccl.algorithms import choices_of
from torchcoll.libraries.nccl.log import NcclLogReader

# -------------------------------------------------------------------------------------------------
# What NCCL's own messages in another tool's output tell: variables, its version, its choices.

_SET, _CALL = " set by environment to ", " Bytes -> "
_MOST = 4096  # messages that are remembered


class Messages:
    """Of one launch. ``take`` is called for every message of a log of any size."""

    def __init__(self) -> None:
        self._reader = NcclLogReader()
        self._known: set[str] = set()

    def take(self, text: str) -> None:
        """A message with its prefix (``host:pid:thread [0] NCCL INFO ...``).

        Most lines tell nothing of what is wanted here. A call comes once an iteration: equal ones
        of any process are read once.
        """
        if _CALL in text:
            message = text.partition(" NCCL ")[2]
            if message in self._known:
                return
            if len(self._known) < _MOST:
                self._known.add(message)
        elif _SET not in text and "CCL version" not in text:
            return
        self._reader.read([text.encode()])

    @property
    def variables(self) -> dict[str, str]:
        """Those that may be kept; of one that differs between the processes every value."""
        values: dict[str, dict[str, None]] = {}
        for process in self._reader.processes:
            for name, value in process.variables.items():
                values.setdefault(name, {})[value] = None
        return kept_variables({name: " | ".join(found) for name, found in values.items()})

    @property
    def versions(self) -> dict[str, str]:
        """``nccl`` or ``rccl`` -> its version, of the first process that tells it."""
        processes = reversed(self._reader.processes)
        return {one.library.lower(): one.version for one in processes if one.version}

    def choose(self, results: Iterable[CaseResult]) -> None:
        """Give each case what the library chose for its size."""
        calls = dict.fromkeys(call for process in self._reader.processes for call in process.calls)
        for result in results if calls else ():
            result.choices = choices_of(result, calls)


def begins_launch(text: str) -> bool:
    """True for a message of the start of a process, which may come before its first own line."""
    return _SET in text or "CCL version" in text


# -------------------------------------------------------------------------------------------------
# One row of nccl-tests' text: fields to figures.
#
# The columns come from the heading and are counted from the right (superbenchmark's way), because
# the left ones have come and gone: root, redop (blank for hypercube), Group.

_CHOICE = re.compile(r"[A-Za-z][\w*/]*\s+[A-Za-z][\w*/]*\s+(?:\d+|N/A)\s*$")
_IN_PLACE_ONLY = " " * 24  # the out-of-place block is 32 blanks; columns are 2 to 11 apart


def parse_row(
    line: int, text: str, names: Sequence[str], placed: Sequence[str]
) -> NcclTestsRow | None:
    """The row; None where fields are missing or are no numbers.

    ``names``: of the heading, [] without one. ``placed``: the placements named above the heading.
    """
    tokens = text.split()
    first = next((i for i, n in enumerate(names) if n in ("time", "cputime")), 0)
    body = list(names[first:]) if first else ["time", "algbw", "busbw", "#wrong"] * 2
    starts = [i for i, n in enumerate(body) if n in ("time", "cputime")]
    width = starts[1] - starts[0] if len(starts) > 1 else 4
    block_names = body[:width]
    tail = body[2 * width :] if len(starts) > 1 else []
    trailing = len(tail) + ("timestamp" in tail)
    if not tail and _CHOICE.search(text):  # rccl-tests -A, without names of its own
        del tokens[-3:]
    placements: list[list[str]] = []
    heads = len(tokens) - trailing - 2 * width
    if (len(starts) > 1 or not first) and 3 <= heads <= 5:
        cut = tokens[heads : heads + 2 * width]
        placements = [cut[:width], cut[width:]]
    if not placements:
        heads = len(tokens) - trailing - width
        single = len(starts) == 1 or _IN_PLACE_ONLY in text.strip()
        if not (3 <= heads <= 5 and single):
            return None
        figures = tokens[heads : heads + width]
        only_out = placed == ("out-of-place",)  # rccl-tests can leave one out
        placements = [figures, []] if only_out else [[], figures]
    head = tokens[:heads]
    size, count = whole(head[0]), whole(head[1])
    if size is None or count is None:
        return None
    op, root = _op_and_root(head[3:])
    old_ms = "res" in names
    blocks = []
    for place, figures in enumerate(placements):
        if figures:
            block = _block(figures, block_names, bool(place), 1e6 if old_ms else 1e3)
            if block is None:
                return None
            blocks.append(block)
    return NcclTestsRow(line, size, count, dtype_named(head[2]) or head[2], op, root, blocks)


def _op_and_root(rest: Sequence[str]) -> tuple[str | None, int | None]:
    op, root = None, None
    for token in rest:
        if token.removeprefix("-").isdecimal():
            root = whole(token)  # -1 is none
        elif token != "none":
            op = token
    return op, root


def _block(
    figures: Sequence[str], names: Sequence[str], in_place: bool, scale: float
) -> Block | None:
    values = dict(zip(names, figures, strict=False))
    raw = values.get("time") or values.get("cputime") or ""
    time = number(raw)
    algbw, busbw = number(values.get("algbw")), number(values.get("busbw"))
    wrong_text = values.get("#wrong") or values.get("wrong") or "N/A"
    if time is None or not time:
        return None
    odd = any(
        value is None and text not in ("inf", "nan", "-nan", "-inf")
        for value, text in ((algbw, values.get("algbw")), (busbw, values.get("busbw")))
    )
    if odd:
        return None
    wrong, error = None, None
    if "error" in values or "res" in values:
        error = number(values.get("error") or values.get("res"))
    elif wrong_text != "N/A":
        count = number(wrong_text.rstrip("*"))
        if count is None:
            return None
        wrong = int(count)
    return Block(
        in_place,
        time * scale,
        algbw,
        busbw,
        time_step_ns=rounding(raw) * scale,
        bw_step=rounding(values.get("busbw") or "0"),
        wrong=wrong,
        error=error,
        min_ns=ns_of_us(values.get("i_min")),
        max_ns=ns_of_us(values.get("i_max")),
        p99_ns=ns_of_us(values.get("i_p99")),
    )


# -------------------------------------------------------------------------------------------------

NAME = "nccl-tests"

_START = re.compile(r"Collective test starting:\s*(\S+)")
_CONCLUDED = re.compile(r"Collective test concluded:")
_PROGRAM = re.compile(
    r"(?<![a-zA-Z])([a-zA-Z_]+?)_perf(?:_mpi)?\b(?:.*?\s(?:-f|--stepfactor)[ =]?([\d.]+))?"
)
_VERSION = re.compile(r"nccl-tests version (\S+)(?:.*?nccl-library=(\d+))?")
_RCCL = re.compile(r"RCCL version\s*:?\s*(\S+)")
_NCCL = re.compile(r"NCCL version (\S+)")
_RCCL_TESTS = re.compile(r"rccl-tests: Version (\S+)")
_SETTINGS = re.compile(r"nThread (\d+) nGpus (\d+) minBytes")
_RANK = re.compile(
    r"Rank\s+(\d+)(?:\s+Group\s+\d+)?(?:\s+Pid\s+(\d+))? on\s+(\S+)\s+device\s+(\d+)"
    r"(?:\s+\[([^]]*)\])?\s*(.*)"
)
_HEADING = re.compile(r"#?\s*(?:size\s+count|bytes\s+N)\s+type\b.*\btime\b|.*\bcputime\b")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([\d.eE+-]+)")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)")
_REDUCING = re.compile(r"Reducing maxBytes to \d+.*")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]")
_ROW_HEAD = re.compile(r"\s*\d+\s+\d+\s+[a-z][a-z0-9]*\b")
_PLACEMENTS = re.compile(r"out-of-place|in-place")
_FRACTION = "-f {f} was read as {n}: nccl-tests takes a whole number{then}"


def sniff(head: Sequence[str]) -> bool:
    rows = 0
    for text in head:
        if _START.search(text) or _SETTINGS.search(text):
            return True
        if _HEADING.match(text) and "busbw" in text:
            return True
        rows += bool(_ROW.match(text) and len(text.split()) in range(11, 24))
    return rows > 1  # an excerpt without any heading


@dataclass
class _Part:
    """The lines of one nccl-tests process, as they are read."""

    line: int
    collective: str | None = None
    names: list[str] = field(default_factory=list)
    placements: tuple[str, ...] = ()  # of the line above the heading
    settings: dict[str, str] = field(default_factory=dict)
    members: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[NcclTestsRow] = field(default_factory=list)
    average: float | None = None
    started: bool = False
    concluded: bool = False
    failed: bool = False
    events: list[str] = field(default_factory=list)
    zeros: int = 0  # lines of rank 0
    messages: Messages = field(default_factory=Messages)

    @property
    def ended(self) -> bool:
        return self.concluded or self.average is not None or self.failed


def read(lines: Iterable[Line], options: ImportOptions) -> Imported:
    found = Imported()
    reader = _TextReader(found)
    for line, text in lines:
        reader.line(line, text)
    reader.end()
    parts = [part for part in reader.parts if part.rows or part.settings or part.started]
    crowd = [part for part in parts if part.zeros or part.settings]
    if _interleaved(crowd):
        for part in parts:
            for row in part.rows:
                found.refuse(row.line, INTERLEAVED.format(n=max(2, _width(crowd))))
        if not any(part.rows for part in parts):
            found.refuse(0, INTERLEAVED.format(n=max(2, _width(crowd))))
        return found
    for part in parts:
        found.runs += _run_of(part, options, found)
    alone = [run for run in found.runs if run.ranks == 1]
    if len(alone) > 1:
        found.warn(
            f"{len(alone)} outputs of one rank each: if one launch was to have {len(alone)} ranks, "
            "nccl-tests was built without MPI (build it with MPI=1)"
        )
    return found


def _width(parts: Sequence[_Part]) -> int:
    return max(len(parts), sum(part.zeros for part in parts))


def _interleaved(parts: Sequence[_Part]) -> bool:
    """Several first ranks before any test has ended, and no second rank anywhere."""
    if any(set(part.members) - {0} for part in parts):
        return False
    if any(part.zeros > 1 for part in parts):
        return True
    unfinished = [part for part in parts[:-1] if not part.ended]
    return len(parts) > 1 and len(unfinished) > 0 and all(p.zeros == 1 for p in parts if p.zeros)


class _TextReader:
    """Lines to parts. A heading of another test begins the next part."""

    def __init__(self, found: Imported) -> None:
        self.found = found
        self.parts: list[_Part] = []
        self.pending: tuple[int, str] | None = None  # a row that a log line has cut in two
        self.early = Messages()  # of the next launch: its other ranks may speak before its heading

    @property
    def part(self) -> _Part:
        if not self.parts:
            self.parts.append(_Part(1))
        return self.parts[-1]

    def line(self, line: int, text: str) -> None:
        if "NCCL" in text or "|CCL_" in text:
            rest, logged = without_log(text)
            if logged:
                self.message(text[len(rest) :])
                if rest.strip():
                    self.broken(line, rest)
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
        elif text.strip() and not text.isspace():
            self.other(line, text)

    def message(self, text: str) -> None:
        next_one = self.part.ended and begins_launch(text)
        (self.early if next_one else self.part.messages).take(text)

    def broken(self, line: int, text: str) -> None:
        """A piece of a row, before a message of a library."""
        if self.pending:
            self.pending = (self.pending[0], self.pending[1] + text)
        elif _ROW_HEAD.match(text):
            if parse_row(line, text, self.part.names, self.part.placements) is None:
                self.pending = (line, text)
            else:
                self.row(line, text)
        else:
            self.other(line, text)

    def refuse_pending(self) -> None:
        if self.pending:
            self.found.refuse(self.pending[0], "the row is cut off by other output")
            self.pending = None

    def end(self) -> None:
        self.refuse_pending()

    def row(self, line: int, text: str) -> None:
        part = self.part
        row = parse_row(line, text, part.names, part.placements)
        if row is None:
            self.found.refuse(line, "half a row: fields are missing, or are no numbers")
        else:
            part.rows.append(row)

    def other(self, line: int, text: str) -> None:
        part = self.part
        if match := _START.search(text):
            part = self.next_part(line, part.started or bool(part.rows) or bool(part.settings))
            part.started = True
            part.collective = collective_named(_plain_program(match[1])) or part.collective
        elif _SETTINGS.search(text):
            part = self.next_part(line, bool(part.settings or part.rows))
            part.settings = _settings(text)
        elif match := _RANK.search(text):
            self.member(part, match)
        elif found := _PLACEMENTS.findall(text):
            part.placements = tuple(found)
        elif _HEADING.match(text):
            if part.rows and part.ended:
                part = self.next_part(line, True)
            part.names = text.lstrip("# ").replace("#wrong", " #wrong").split()
        elif match := _AVERAGE.search(text):
            part.average = number(match[1])
        elif _BOUNDS.search(text):
            part.failed = True
        elif _CONCLUDED.search(text):
            part.concluded = True
        elif match := _VERSION.search(text):
            if part.started or part.rows:
                part = self.next_part(line, True)
            part.versions["nccl-tests"] = match[1]
            if match[2]:
                part.versions["nccl"] = version_text(match[2])
        elif match := _RCCL_TESTS.search(text):
            part.versions["rccl-tests"] = match[1]
        elif match := _RCCL.search(text):
            part.versions["rccl"] = match[1]
        elif match := _NCCL.search(text):
            part.versions.setdefault("nccl", match[1])
        elif match := _REDUCING.search(text):
            self.found.warn(f"the sweep ended early on purpose: {match[0].strip()}")
        elif "# error:" in text or "Test NCCL failure" in text or "Test CUDA failure" in text:
            part.events.append(text.strip(" #"))
        elif "_perf" in text and (match := _PROGRAM.search(text)):
            self.command(line, match)

    def command(self, line: int, match: re.Match[str]) -> None:
        name = collective_named(match[1].rpartition("/")[2])
        if name:
            part = self.next_part(line, bool(self.part.rows))
            part.collective = name
        if match[2] and "." in match[2] and (factor := number(match[2])) is not None:
            n = int(factor)
            then = "" if n > 1 else ", so that the sizes rise by the default step of 1 MiB"
            if factor != n:
                self.found.warn(_FRACTION.format(f=match[2], n=n, then=then))

    def next_part(self, line: int, needed: bool) -> _Part:
        if needed:
            before = self.part
            self.refuse_pending()
            self.parts.append(_Part(line))
            if not before.rows and not before.settings:  # a version line stands first
                self.parts[-1].versions = before.versions
                self.parts[-1].messages = before.messages
            else:
                self.parts[-1].messages, self.early = self.early, Messages()
        return self.part

    def member(self, part: _Part, match: re.Match[str]) -> None:
        rank = whole(match[1])
        part.zeros += rank == 0
        if rank is not None and rank < MOST_RANKS:
            part.members[rank] = {
                "rank": rank,
                "host": match[3],
                "pid": whole(match[2]) or 0,
                "device": f"cuda:{match[4]}",
                "device_name": match[6].strip(),
            }
            if match[5] and ":" in match[5]:
                part.members[rank]["pci"] = match[5]


def _plain_program(name: str) -> str:
    return os.path.basename(name).removesuffix("_mpi").removesuffix("_perf")


def _settings(text: str) -> dict[str, str]:
    found = dict(re.findall(r"(\w+):? (\d+)", text.replace(" iters:", "_iters:")))
    if step := re.search(r"step: (\d+)\((\w+)\)", text):
        found["step"], found["step_kind"] = step[1], step[2]
    if iters := re.search(r"(?<!warmup )(?<!agg )iters: (\d+)", text):
        found["iters"] = iters[1]
    return found


def _run_of(part: _Part, options: ImportOptions, found: Imported) -> list[Run]:
    rows = part.rows
    if not rows:
        return []
    name = found.choose("collective", options.collective, part.collective)
    if name is None and (name := collective_in(options.file)):
        found.warn(f"collective {name}: taken from the name of the file")
    if name is None:
        for row in rows:
            found.refuse(row.line, "the file does not name the collective: give --collective")
        return []
    launch = NcclTestsLaunch(name, cpu_time="cputime" in part.names)
    listed = max(part.members, default=-1) + 1
    launch.ranks = found.choose("ranks", options.ranks, listed) or 0
    if not launch.ranks:
        launch.ranks, where = ranks_of(rows, name)
        if launch.ranks:
            found.warn(f"{launch.ranks} ranks: recovered from {where}")
    launch.calls = whole(part.settings.get("iters"))
    if part.settings.get("graph", "0") != "0":
        launch.mode = "graph"
    if options.dtype:
        for row in rows:
            row.dtype = options.dtype
    entry = COLLECTIVES[name]
    for row in rows:
        row.root = (row.root or 0) if entry.has_root else None
    results = results_of(rows, launch, found)
    if text := repeats(results):
        found.warn(text)
    if part.settings.get("step_kind") == "bytes" and part.settings.get("step") == "1048576":
        found.warn(STEP_1M)
    _check_average(part, found)
    part.messages.choose(results)
    part.versions = part.messages.versions | part.versions
    rccl = "rccl" in part.versions or "rccl-tests" in part.versions
    tool = "rccl-tests" if rccl else "nccl-tests"
    library = part.versions.get("rccl" if rccl else "nccl")
    environment: dict[str, Any] = {}
    if library:
        environment["libraries"] = {"nccl": f"{'RCCL' if rccl else 'NCCL'} {library}"}
    if variables := part.messages.variables:
        environment["variables"] = variables
    members = [part.members[r] for r in sorted(part.members)]
    complete = len(members) == launch.ranks
    if not complete:
        hosts = list(dict.fromkeys(m["host"] for m in members))
        environment |= {"host": hosts[0]} if len(hosts) == 1 else {}
        names = list(dict.fromkeys(m["device_name"] for m in members if m["device_name"]))
        environment |= {"device_name": names[0]} if len(names) == 1 else {}
        members = []
    end: dict[str, Any] = {"status": "complete"}
    if not part.ended:
        end = {"status": TRUNCATED, "reason": "the output stops before its last lines"}
    if not results:
        return []
    return [
        make_run(
            results,
            options,
            {"tool": tool, "version": part.versions.get(tool), "format": "text"},
            ranks=launch.ranks,
            environment=environment,
            members=members,
            end=end,
            events=[{"kind": "error", "message": text} for text in part.events],
        )
    ]


def _check_average(part: _Part, found: Imported) -> None:
    """The footer's average is over all rows: where it is another, rows are missing."""
    bandwidths = [b.busbw for row in part.rows for b in row.blocks if b.busbw is not None]
    if part.average is None or not bandwidths:
        return
    average = sum(bandwidths) / len(bandwidths)
    if abs(average - part.average) > 0.01 * max(average, part.average) + 0.01:
        found.warn(
            f"average bus bandwidth {part.average:g} given, {average:.6g} of the rows that are "
            "here: rows are missing, or are another launch's"
        )
