"""The results: the samples of one case, and a whole run as it is loaded from its file."""

from __future__ import annotations

import dataclasses
import shlex
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.case import Case, flat_dict, known_fields
from torchcoll.core.display import Displayed, as_one_line
from torchcoll.core.spec import Spec
from torchcoll.core.units import counted, shorten

if TYPE_CHECKING:
    from torchcoll.core.soak_windows import SoakWindow

# Status of a case. Only 'ok' and 'wrong' have all timings, and only 'ok' is compared.
STATUSES = ("ok", "wrong", "oom", "timeout", "unsupported", "skipped", "failed")
# These are facts about what was asked, not failures of a run.
EXPECTED_STATUSES = ("ok", "unsupported", "skipped")

Matrix = Sequence[Sequence[int]]  # [rank][call], nanoseconds
_WHOLE = {int}
_Record = TypeVar("_Record")
BOUND = 1 << 63  # numbers from here on are no measurement, and overflow a float in a product


def check_whole(*numbers: object) -> None:
    """Raises TypeError unless all are whole numbers of 63 bits."""
    for number in numbers:
        if type(number) is not int or not -BOUND < number < BOUND:
            raise TypeError("not a whole number of 63 bits")


def check_ranks(*ranks: object) -> None:
    """Raises TypeError or ValueError unless all are ranks, or numbers of ranks, that can be."""
    check_whole(*ranks)
    if not all(0 <= rank <= MOST_RANKS for rank in ranks):  # type: ignore[operator]
        raise ValueError(f"more than {MOST_RANKS} ranks")


def or_none(*numbers: object) -> tuple[object, ...]:
    """The numbers without None, for check_whole."""
    return tuple(number for number in numbers if number is not None)


def check_texts(*texts: object) -> None:
    """Raises TypeError unless all are texts, or None."""
    if not all(text is None or isinstance(text, str) for text in texts):
        raise TypeError("not a text")


def check_lists(*lists: object, durations: bool = False) -> None:
    """Raises TypeError unless all are lists of whole numbers; ValueError for durations below 0."""
    least = 0 if durations else 1 - BOUND
    for numbers in lists:
        if not isinstance(numbers, list | tuple) or not _WHOLE.issuperset(map(type, numbers)):
            raise TypeError("not a list of whole numbers")
        # There are many samples, and the extremes are found at C speed.
        if numbers and not (least <= min(numbers) and max(numbers) < BOUND):
            check_whole(min(numbers), max(numbers))
            raise ValueError("a duration below 0")


_SCALARS = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def _check(kind: str, value: Any, signed: bool) -> None:
    """Raises TypeError or ValueError unless the value is of this annotation of plain JSON."""
    if types := _SCALARS.get(kind):
        if type(value) not in types:
            raise TypeError(f"not of type {kind}")
        if int in types and not (1 - BOUND if signed else 0) <= value < BOUND:
            raise ValueError("a number out of range")
    elif kind in ("Sequence[int]", "tuple[int, ...]"):
        check_lists(value, durations=not signed)
    elif kind == "Sequence[str]":
        check_texts(*value)
    elif kind == "Matrix":
        if not isinstance(value, list | tuple):
            raise TypeError("samples are not lists by rank")
        check_lists(*(row for row in value if type(row) is not Packed), durations=not signed)
    elif kind.startswith("dict[str, "):
        for each in value.values():
            _check(kind[len("dict[str, ") : -1], each, signed)


@cache
def _kinds_of(cls: Any) -> list[tuple[str, str, bool, bool]]:
    """(name, annotation without None, whether it may be None, and below 0) of each field."""
    kinds = []
    for f in dataclasses.fields(cls):
        kind, signed = str(f.type), any(name in f.name for name in ("start", "began", "logged"))
        kinds.append((f.name, kind.removesuffix(" | None"), kind.endswith(" | None"), signed))
    return kinds


def read_fields(cls: type[_Record], data: Mapping[str, Any]) -> _Record:
    """The dataclass from a record of a file, checked. Unknown fields are ignored."""
    record = cls(**known_fields(cls, data))
    check_fields(record)
    return record


def check_fields(record: Any) -> None:
    """Raises TypeError or ValueError unless all values have their types. Stamps may be below 0."""
    cls: Any = type(record)
    for name, kind, optional, signed in _kinds_of(cls):
        value = getattr(record, name)
        if not (optional and value is None):
            _check(kind, value, signed)


class Packed(array):  # type: ignore[type-arg]  # no array[int] before Python 3.12
    """The samples of one rank in a case that has many: reads like the list, takes a fifth."""

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return self.tolist() == (other.tolist() if isinstance(other, array) else other)

    def __repr__(self) -> str:
        return repr(self.tolist())


def _packed(matrix: Matrix, durations: bool) -> Matrix:
    """The matrix in Packed rows. Raises as ``check_lists`` does, but faster."""
    if not isinstance(matrix, list | tuple):
        raise TypeError("samples are not lists by rank")
    for row in matrix:
        if not isinstance(row, list) or not _WHOLE.issuperset(map(type, row)):
            raise TypeError("not a list of whole numbers")
        if durations and row and min(row) < 0:
            raise ValueError("a duration below 0")
    try:
        return [Packed("q", row) for row in matrix]
    except OverflowError:
        raise TypeError("not a whole number of 63 bits") from None


def _listed(matrix: Matrix) -> Matrix:
    """The matrix as lists, for JSON."""
    packed = matrix and isinstance(matrix[0], Packed)
    return [list(row) for row in matrix] if packed else list(matrix)


def case_from_json(data: Mapping[str, Any]) -> Case:
    """``Case.from_json`` with a check of the numbers. Raises ValueError or TypeError."""
    case = Case.from_json(data)
    check_fields(case)
    if case.coalesce < 1:
        raise ValueError("a group of no call")
    return case


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of the verification; numbers of elements, over all ranks and calls.

    tolerance_ulp: units in the last place that are allowed; 0 if values must be equal.
    changed: elements of the input that a call out of place has changed.
    """

    checked: int
    wrong: int
    wrong_ranks: tuple[int, ...] = ()
    tolerance_ulp: int = 0
    changed: int = 0

    @property
    def failed(self) -> bool:
        return bool(self.wrong or self.changed)


@dataclass(slots=True)
class Reported:
    """The figures of a case in a source without samples; None for a figure that it does not have.

    statistic, over_ranks: how the time was computed from the calls, and from the ranks.
    clock: ``host``, ``device``, ``issue`` (until the call returned) or ``unknown``.
    derived: time_ns was computed from algbw_gbps.
    contradictory: the time cannot belong to these bandwidths, which tables show as they are.
    size_bytes, size_basis: the size as the source prints it, per rank or per peer; None for S.
    """

    time_ns: float | None
    statistic: str = "unknown"
    over_ranks: str = "unknown"
    clock: str = "unknown"
    calls: int | None = None
    first_call_ns: float | None = None
    min_ns: float | None = None
    max_ns: float | None = None
    p99_ns: float | None = None
    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    derived: bool = False
    size_bytes: int | None = None
    size_basis: str = ""
    contradictory: bool = False

    @property
    def one_cold_call(self) -> bool:
        """Whether it is the first call of its size in the process, not a time of steady calls."""
        return self.calls == 1 and self.first_call_ns is not None


@dataclass(frozen=True)
class Choice:
    """What the communication library chose for a case: its names for algorithm and protocol.

    source: ``log`` or ``kernel name``, which is only a hint.
    """

    algorithm: str
    protocol: str = ""
    channels: int | None = None
    source: str = "log"

    @property
    def label(self) -> str:
        """``RING/LL``: what is compared between sizes. The channels grow with the size anyway."""
        return f"{self.algorithm}/{self.protocol}" if self.protocol else self.algorithm

    @property
    def text(self) -> str:
        """``RING/LL 2ch``, or ``RING/LL?`` for the hint of a kernel's name."""
        text = self.label if self.source == "log" else f"{self.label}?"
        return text if self.channels is None else f"{text} {self.channels}ch"


@dataclass(frozen=True)
class ConcurrentBlocks:
    """Blocks of calls alone, of work on the same device alone, and of both at once, in turn.

    calls, repeats: of the collective and of the work in one block, equal on all ranks.
    alone_ns, work_ns, both_calls_ns, both_work_ns, both_ns: [rank][block] in ns from the start of
    the block until the calls, the work, or both had ended.
    """

    work: str
    threads: int | None
    calls: int
    repeats: int
    alone_ns: Matrix
    work_ns: Matrix
    both_calls_ns: Matrix
    both_work_ns: Matrix
    both_ns: Matrix

    @property
    def blocks(self) -> int:
        return len(self.alone_ns[0]) if self.alone_ns else 0

    @property
    def uncovered(self) -> int:
        """The number of blocks that the work of some rank did not cover."""
        by_rank = zip(self.both_ns, self.both_work_ns, strict=True)
        short = [[w < _COVERED * t for t, w in zip(*pair, strict=True)] for pair in by_rank]
        return sum(map(any, zip(*short, strict=True)))

    @property
    def covered(self) -> bool:
        return self.uncovered <= _FEW_BLOCKS * self.blocks

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConcurrentBlocks:
        """Unknown fields are ignored. Raises KeyError, TypeError or ValueError on a broken one."""
        blocks = read_fields(cls, data)
        matrices = [getattr(blocks, name) for name in CONCURRENT_BLOCKS]
        if len({(len(m), *map(len, m)) for m in matrices}) > 1:
            raise ValueError("blocks of unlike number")
        if min(blocks.calls, blocks.repeats) < 1:
            raise ValueError("a block of nothing")
        return blocks


_COVERED = 0.95  # the work must run for this share of the time of the calls
_FEW_BLOCKS = 0.1  # this share of the blocks may be uncovered
CONCURRENT_BLOCKS = ("alone_ns", "work_ns", "both_calls_ns", "both_work_ns", "both_ns")


# Slots, and () for empty fields, save 2 KB a case: a table of another tool has a million.
@dataclass(slots=True, repr=False, eq=False)
class CaseResult:
    """One case as it ran: raw samples of all ranks, nothing derived. ranks, count, bytes_in and
    bytes_out are 0 if an imported file does not have them.

    cold_ns[rank][k]: the first calls in order, host clock, device complete at both stamps.
    warmup_ns[rank][k]: further calls before the steady ones.
    cold_start_ns[rank][k]: when each cold call began, on the monotonic clock of the rank's host.
    time_ns[clock][rank][i]: the steady calls; ``batches`` are their batch sizes in order.
    busiest_bytes: with uneven blocks, the most that one rank sends to others or receives from them.
    ramp_up_ns[rank][i]: calls before each batch, which are slow after the interruption.
    start_ns, start_wall_us: when the case began on rank 0, by its monotonic clock, and in us since
    1970 by its wall clock. batch_start_ns, batch_start_wall_us: of each batch.
    spent_ns: rank 0's wall time: ``case``, and of it ``ramp_up``, ``barriers`` and ``gathers``.
    members: ranks of the run whose samples these are, in the order of the sub-group.
    ordinal: number of torchcoll's calls on the communicator before call 0, barriers aside (0: call
    0 had to connect; None: others had used the communicator).
    steady_after: cold calls before the calls became steady; None if they did not.
    stop: why the steady calls ended: count, precision, time or cap.
    steady_ns: how long they took on rank 0, with everything between them.
    """

    case: Case
    status: str
    ranks: int
    reason: str = ""
    count: int = 0
    size_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    busiest_bytes: int | None = None
    cold_ns: Matrix = ()
    warmup_ns: Matrix = ()
    time_ns: dict[str, Matrix] = field(default_factory=dict)
    ramp_up_ns: Matrix = ()
    batches: Sequence[int] = ()
    start_ns: int | None = None
    start_wall_us: int | None = None
    cold_start_ns: Matrix = ()
    batch_start_ns: Sequence[int] = ()
    batch_start_wall_us: Sequence[int] = ()
    spent_ns: dict[str, int] = field(default_factory=dict)
    calls_per_sample: int = 1  # above 1 a sample is the mean of so many calls
    members: Sequence[int] = ()  # ranks of the sub-group; none is all
    ordinal: int | None = 0
    communicator: str = "shared"  # or how --fresh-group made its own
    connect_ns: Sequence[int] = ()  # [rank]: what making its own took
    steady_after: int | None = None
    stop: str = ""
    steady_ns: int | None = None
    verification: Verification | None = None
    warnings: Sequence[str] = ()
    reported: Reported | None = None
    choices: Sequence[Choice] = ()
    concurrent: ConcurrentBlocks | None = None

    def __repr__(self) -> str:
        ranks = counted(self.ranks, "rank")
        return as_one_line(f"CaseResult {self.case.describe()}: {self.status}, {ranks}")

    def __eq__(self, other: object) -> bool:
        """Whether a file would have the same record for both."""
        return isinstance(other, CaseResult) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_right(self) -> bool:
        """False without a result, or with a wrong one; implausible figures do not count here."""
        return self.status == "ok" and not (self.verification and self.verification.failed)

    @property
    def expected(self) -> bool:
        """False for what makes the command exit with 1."""
        return self.status in EXPECTED_STATUSES

    def to_json(self) -> dict[str, Any]:
        data = flat_dict(self)
        data |= {name: _listed(data[name]) for name in _SEQUENCES}
        data["time_ns"] = {clock: _listed(matrix) for clock, matrix in self.time_ns.items()}
        data["case"] = self.case.to_json()
        data["choices"] = [dataclasses.asdict(choice) for choice in self.choices]
        if self.verification:
            data["verification"] = flat_dict(self.verification)
        if self.reported:
            data["reported"] = flat_dict(self.reported)
            if not self.reported.contradictory:
                del data["reported"]["contradictory"]
        if self.concurrent:
            data["concurrent"] = dataclasses.asdict(self.concurrent)
        for name in _LEFT_OUT:
            if data[name] is None or data[name] == []:
                del data[name]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], large: bool = False) -> CaseResult:
        """Raises KeyError, TypeError or ValueError for a broken one. large: samples are packed."""
        values = known_fields(cls, data)
        values["case"] = case_from_json(data["case"])
        if values.get("verification") is not None:
            ranks = tuple(data["verification"].get("wrong_ranks", ()))
            values["verification"] = read_fields(
                Verification, {**data["verification"], "wrong_ranks": ranks}
            )
            check_ranks(*ranks)
        if values.get("reported") is not None:
            values["reported"] = read_fields(Reported, data["reported"])
        values["choices"] = [read_fields(Choice, choice) for choice in data.get("choices") or ()]
        if values.get("concurrent") is not None:
            values["concurrent"] = ConcurrentBlocks.from_json(data["concurrent"])
        result = cls(**values)
        if large:
            for name in _MATRICES:
                setattr(result, name, _packed(getattr(result, name), name != "cold_start_ns"))
            result.time_ns = {clock: _packed(m, True) for clock, m in result.time_ns.items()}
        check_fields(result)
        check_ranks(result.ranks, *result.members)
        if result.calls_per_sample < 1:
            raise ValueError("samples of no call")
        return result


_SEQUENCES = tuple(f.name for f in dataclasses.fields(CaseResult) if f.default == ())
# What a record does not have where it is unknown or empty.
_LEFT_OUT = ("busiest_bytes", "steady_ns", "reported", "choices", "concurrent")
_MATRICES = {f.name for f in dataclasses.fields(CaseResult) if f.type == "Matrix"}


def shortfall(results: Sequence[CaseResult]) -> tuple[str, CaseResult] | None:
    """(``1 wrong of 3 cases``, the first of them) if a run has failed, or measured nothing."""
    bad, lead = [result for result in results if not result.expected], ""
    if not bad and not any(result.status == "ok" for result in results):
        bad, lead = list(results), "nothing was measured: "
    if not bad:
        return None
    counts = Counter(result.status for result in bad)
    statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{lead}{statuses} of {counted(len(results), 'case')}", bad[0]


def stated_shortfall(results: Sequence[CaseResult]) -> str:
    """``shortfall`` as one text with the reason of its first case; '' if nothing failed."""
    short = shortfall(results)
    if not short:
        return ""
    first = short[1]
    return f"{short[0]}. First: {first.case.describe()}: {first.reason}"


@dataclass(repr=False)
class Run(Displayed):
    """One run, as loaded or as just measured.

    header: the first record (run_id, start, argv, environment, ...).
    phases: set-up phase -> ns per rank.
    machine: the state of each host before and after the run (machine/state.py).
    end: the last record; None if the file is truncated.
    in_flight: the case that had started and not ended.
    lost: number of cases that the file had, by its end, and that could not be read.
    continuations: the runs of --resume; ``results`` and ``events`` have theirs too.
    windows: the windows of --soak.
    """

    header: dict[str, Any] = field(default_factory=dict)
    members: list[dict[str, Any]] = field(default_factory=list)
    phases: dict[str, list[int]] = field(default_factory=dict)
    machine: list[dict[str, Any]] = field(default_factory=list)
    results: list[CaseResult] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    in_flight: Case | None = None
    problems: list[str] = field(default_factory=list)
    lost: int = 0
    path: Path | None = None
    continuations: list[Run] = field(default_factory=list)
    windows: list[SoakWindow] = field(default_factory=list)

    def __repr__(self) -> str:
        names = list(dict.fromkeys(result.case.collective for result in self.results))
        of = f" of {shorten(names, 2)}" if names else ""
        where = self.path or self.source.get("file") or self.header.get("run_id") or "unnamed"
        ended = (self.end or {}).get("status", "truncated")
        held = f"{counted(len(self.results), 'case')}{of}, {counted(self.ranks, 'rank')}"
        return as_one_line(f"Run {str(where)[-80:]}: {held}, {ended}")

    def plot(self) -> Sequence[Any]:
        """The run as plotly Figures. Raises UsageError without a time, and UnavailableError."""
        figures: Sequence[Any] = import_module("torchcoll.questions.page.notebook").figures_of(self)
        return figures

    def frame(self, each: str = "case") -> Any:
        """The run as a tidy pandas DataFrame: times in ns, bandwidths in GB/s.

        each: ``case``, with the columns of ``torchcoll.table``; or ``call``, a row for each case,
        clock, rank and call: ``kind`` is cold, warmup, ramp_up or steady. Raises UsageError.
        """
        return import_module("torchcoll.questions.show.frames").run_frame(self, each)

    @property
    def spec(self) -> Spec:
        return Spec.from_json(self.header.get("spec") or {})

    @property
    def ranks(self) -> int:
        return int(self.header.get("ranks") or (self.results[0].ranks if self.results else 0))

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, host and variables of rank 0."""
        environment: dict[str, Any] = self.header.get("environment") or {}
        return environment

    @property
    def source(self) -> dict[str, str]:
        """For an imported run, its tool, version, format and file; {} for a run of torchcoll."""
        source: dict[str, str] = self.header.get("source") or {}
        return source

    @property
    def complete(self) -> bool:
        """True if every requested case has its record."""
        return self.end is not None and self.end.get("status") == "complete" and not self.lost

    @property
    def ending(self) -> str:
        """How a run ended that is not complete, as one line; '' for other runs."""
        if self.end is None or self.complete:
            return ""
        status, reason = self.end.get("status"), self.end.get("reason")
        if status == "complete":
            return f"damaged: {counted(self.lost, 'case')} of the file cannot be read"
        if status == "interrupted" and reason:
            return f"interrupted by {reason}"
        return f"{status}: {reason or 'no reason given'}"

    @property
    def way_on(self) -> str:
        """How to run the missing cases of a file, as an imperative; '' if they cannot be run."""
        # Another tool's run cannot go on, and a soak begins anew.
        if self.path is None or self.complete or self.source or self.windows:
            return ""
        if any((result.case.group or "").startswith(("pair", "node")) for result in self.results):
            return ""  # pairs are measured in one go
        base = self.path.with_suffix("")  # FILE.2 is resumed as FILE
        path = base if self.path.suffix[1:].isdecimal() and base.is_file() else self.path
        name = shlex.quote(str(path))
        return f"run the rest: torchrun ... -m torchcoll.suite --resume {name}"

    def all_runs(self) -> list[tuple[Run, list[CaseResult]]]:
        """This run and its continuations, each with the part of ``results`` that it measured."""
        runs: list[tuple[Run, list[CaseResult]]] = [(r, []) for r in (self, *self.continuations)]
        for number, result in zip(run_numbers(self), self.results, strict=True):
            runs[number][1].append(result)
        return runs

    @property
    def labels(self) -> dict[str, str]:
        return dict((self.header.get("spec") or {}).get("labels") or {})


def run_numbers(run: Run) -> list[int]:
    """For each result, the index in ``run.all_runs()`` of the run that measured it."""
    # The result of a later run replaces the earlier result of the same case.
    of_others = {r.case: n for n, other in enumerate(run.continuations, 1) for r in other.results}
    return [of_others.get(result.case, 0) for result in run.results]
