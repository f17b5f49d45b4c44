"""The results: the samples of one case, and a whole run as it is loaded from its file."""

from __future__ import annotations

import dataclasses
import shlex
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.case import Case, flat_dict, known_fields
from torchcoll.core.display import Displayed, as_one_line
from torchcoll.core.spec import Spec
from torchcoll.core.units import counted, shorten

if TYPE_CHECKING:
    from torchcoll.core.soak_windows import SoakWindow

# Status of a case. Only 'ok' and 'wrong' carry steady timings that were completed as planned, and
# only 'ok' may enter a comparison.
STATUSES = ("ok", "wrong", "oom", "timeout", "unsupported", "skipped", "failed")
# These are facts about what was asked, not failures of a run.
EXPECTED_STATUSES = ("ok", "unsupported", "skipped")

Matrix = Sequence[Sequence[int]]  # [rank][call], nanoseconds
_WHOLE = {int}
BOUND = 1 << 63  # numbers from here on are no measurement, and overflow a float in a product


def check_whole(*numbers: object) -> None:
    """Raises TypeError unless all are whole numbers of 63 bits."""
    for number in numbers:
        if type(number) is not int or not -BOUND < number < BOUND:
            raise TypeError("not a whole number of 63 bits")


def check_ranks(*ranks: object) -> None:
    """Raises TypeError or ValueError unless all are ranks, or numbers of ranks, of a possible run.
    Reports make lists of that length.
    """
    check_whole(*ranks)
    if not all(0 <= rank <= MOST_RANKS for rank in ranks):  # type: ignore[operator]
        raise ValueError(f"more than {MOST_RANKS} ranks")


def or_none(*numbers: object) -> tuple[object, ...]:
    """The numbers without None, for check_whole: ``x or 0`` would also take {} and '' for 0."""
    return tuple(number for number in numbers if number is not None)


def check_texts(*texts: object) -> None:
    """Raises TypeError unless all are texts, or None."""
    if not all(text is None or isinstance(text, str) for text in texts):
        raise TypeError("not a text")


def check_lists(*lists: object, durations: bool = False) -> None:
    """Raises TypeError unless all are lists of whole numbers of 63 bits; ValueError for durations
    below 0.
    """
    least = 0 if durations else 1 - BOUND
    for numbers in lists:
        if not isinstance(numbers, list | tuple) or not _WHOLE.issuperset(map(type, numbers)):
            raise TypeError("not a list of whole numbers")
        # There are many samples, and the extremes are found at C speed.
        if numbers and not (least <= min(numbers) and max(numbers) < BOUND):
            check_whole(min(numbers), max(numbers))
            raise ValueError("a duration below 0")


class Packed(array):  # type: ignore[type-arg]  # no array[int] before Python 3.12
    """The samples of one rank in a case that has many. It reads like the list, and equals it.

    A list takes 40 bytes a sample and more: 4096 ranks with 240 cases took 1.1 GB.
    """

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return self.tolist() == (other.tolist() if isinstance(other, array) else other)

    def __repr__(self) -> str:
        return repr(self.tolist())


def _packed(matrix: Matrix, durations: bool) -> Matrix:
    """The matrix in Packed rows. Raises as ``check_lists`` does, in two thirds of the time."""
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
    """``Case.from_json`` for files, with a check of the numbers. Raises ValueError or TypeError."""
    case = Case.from_json(data)
    check_whole(case.size_bytes, *or_none(case.root), case.coalesce, case.misalign_bytes)
    if case.size_bytes < 0 or case.coalesce < 1 or case.misalign_bytes < 0:
        raise ValueError("a case of negative size")
    return case


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of the verification of results.

    checked, wrong: numbers of elements, over all ranks and verified calls.
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


# ``over_ranks`` of ranks that did not begin together. The time of each rank includes its waiting,
# so the shortest time, of the last rank to arrive, is the time of the call.
LAST_TO_ARRIVE = "last to arrive"
# Fields of Reported that are no floating-point figures.
_FLAGS = ("derived", "contradictory")
_NO_FIGURES = {"statistic", "over_ranks", "clock", "calls", "size_bytes", "size_basis", *_FLAGS}


@dataclass(slots=True)
class Reported:
    """The figures of a case in a source without samples; None for a figure that it does not have.

    time_ns: the duration of a call.
    statistic: how it was computed from the calls (mean, median, ...).
    over_ranks: how it was computed from the ranks (max, mean, median, rank0, unknown,
    LAST_TO_ARRIVE).
    clock: ``host`` (until the call is complete), ``device``, ``issue`` (until the call returned) or
    ``unknown``.
    algbw_gbps, busbw_gbps: as the source has them; kept if it has no time, or to be checked against
    the time.
    derived: time_ns was computed from algbw_gbps.
    contradictory: the time cannot belong to these bandwidths. Tables then show the bandwidths of
    the source, and never those that would follow from the time.
    size_bytes, size_basis: the size as the source prints it, if it is not the size S of the case
    but a size per rank or per peer.

    A row of one call that is the first of its size in the process has ``first_call_ns`` and
    calls = 1: it is ``one_cold_call``, which is no time of steady calls.
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
        return self.calls == 1 and self.first_call_ns is not None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reported:
        """Unknown fields are ignored. Raises TypeError on a broken one."""
        reported = cls(**known_fields(cls, data))
        for name in cls.__dataclass_fields__.keys() - _NO_FIGURES:
            value = getattr(reported, name)
            if value is not None and (type(value) not in (int, float) or not 0 <= value < BOUND):
                raise TypeError(f"{name} is not a number from 0 on")
        texts = (reported.statistic, reported.over_ranks, reported.clock, reported.size_basis)
        flags = [getattr(reported, name) for name in _FLAGS]
        if not all(isinstance(text, str) for text in texts) or {*map(type, flags)} != {bool}:
            raise TypeError("a given figure has a field of another type")
        check_whole(*or_none(reported.calls, reported.size_bytes))
        return reported


@dataclass(frozen=True)
class Choice:
    """What the communication library chose for calls of a case, by its own log.

    algorithm, protocol: names of the library (RING, NVLS, recursive_doubling; LL, LL128, SIMPLE; ''
    if it has none).
    channels: the number of channels; None if it is unknown.
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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """Unknown fields are ignored. Raises KeyError or TypeError on a broken one."""
        choice = cls(**known_fields(cls, data))
        if not all(isinstance(t, str) for t in (choice.algorithm, choice.protocol, choice.source)):
            raise TypeError("not a text")
        check_whole(*or_none(choice.channels))
        return choice


@dataclass(frozen=True)
class ConcurrentBlocks:
    """Blocks of calls alone, of work on the same device alone, and of both at once, in turn.

    work: ``matmul:1M`` and the like (core/spec.py).
    work_bus_bytes: for a collective, the bytes that one repeat counts for busbw; None for other
    work.
    threads: CPU threads of a matrix product; None on accelerators.
    calls, repeats: of the collective and of the work in one block, equal on all ranks.

    Each matrix is [rank][block] in ns from the start of the block. alone_ns, work_ns: until the
    calls, or the work, had ended alone. both_calls_ns, both_work_ns, both_ns: until the calls, the
    work, and both had ended, when they ran at once.

    offset_ns: None if a block is a sequence of calls during a sequence of work. With ``--offset``
    the calls of a block are made one by one, each aligned and with one repeat of the work. In the
    blocks of later_* the work starts so long after the call: later_work_ns is counted from the
    start of the work, and later_begins_ns is the mean delay of that start.
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
    work_bus_bytes: int | None = None
    offset_ns: int | None = None
    later_calls_ns: Matrix = field(default_factory=list)
    later_work_ns: Matrix = field(default_factory=list)
    later_ns: Matrix = field(default_factory=list)
    later_begins_ns: Matrix = field(default_factory=list)

    @property
    def blocks(self) -> int:
        return len(self.alone_ns[0]) if self.alone_ns else 0

    @property
    def call_ns(self) -> float:
        """The time of one call of the slowest rank during the work: the median over the blocks."""
        last: list[float] = sorted(max(block) for block in zip(*self.both_calls_ns, strict=True))
        middle = len(last) // 2
        return (last[middle] + last[~middle]) / 2 / self.calls

    @property
    def uncovered(self) -> int:
        """The number of blocks that the work of some rank did not cover to the end. 0 with an
        offset, where the work is a single call, which may end first.
        """
        if self.offset_ns is not None:
            return 0
        by_rank = zip(self.both_ns, self.both_work_ns, strict=True)
        short = [[w < _COVERED * t for t, w in zip(*pair, strict=True)] for pair in by_rank]
        return sum(map(any, zip(*short, strict=True)))

    @property
    def covered(self) -> bool:
        return self.uncovered <= _FEW_BLOCKS * self.blocks

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConcurrentBlocks:
        """Unknown fields are ignored. Raises KeyError, TypeError or ValueError on a broken one."""
        blocks = cls(**known_fields(cls, data))
        later = blocks.offset_ns is not None
        names = CONCURRENT_BLOCKS + LATER_BLOCKS if later else CONCURRENT_BLOCKS
        matrices = [getattr(blocks, name) for name in names]
        for matrix in matrices:
            if not isinstance(matrix, list):
                raise TypeError("blocks are not lists by rank")
            check_lists(*matrix, durations=True)
        if len({(len(m), *map(len, m)) for m in matrices}) > 1:
            raise ValueError("blocks of unlike number")
        unknown = or_none(blocks.threads, blocks.work_bus_bytes, blocks.offset_ns)
        check_whole(blocks.calls, blocks.repeats, *unknown)
        if not isinstance(blocks.work, str) or min(blocks.calls, blocks.repeats) < 1:
            raise ValueError("a block of nothing")
        return blocks


_COVERED = 0.95  # the work must run for this share of the time of the calls
_FEW_BLOCKS = 0.1  # this share of the blocks may be uncovered
CONCURRENT_BLOCKS = ("alone_ns", "work_ns", "both_calls_ns", "both_work_ns", "both_ns")
LATER_BLOCKS = ("later_calls_ns", "later_work_ns", "later_ns", "later_begins_ns")


@dataclass(frozen=True)
class KeptBatches:
    """Batches of calls whose samples are in files of the ranks (core/kept_samples.py), because they
    are too many for one file.

    case: the number of the case in those files.
    sizes: calls of each batch of the case, in order.
    every: the result file has the samples of batches 0, every, 2 every, ...
    """

    case: int
    sizes: tuple[int, ...]
    every: int

    @property
    def numbers(self) -> list[int]:
        """The batches that are not in the result file."""
        return [number for number in range(len(self.sizes)) if number % self.every]

    @property
    def note(self) -> str:
        """The footnote of a result file that has only a part of the calls."""
        calls, kept = sum(self.sizes), sum(self.sizes[number] for number in self.numbers)
        return (
            f"{kept} of {calls} steady calls are not in this file: each rank has its own in the "
            "folder FILE.samples of its host. Beside the file they are read with it"
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KeptBatches:
        check_lists(data["sizes"])
        check_whole(data["case"], data["every"])
        if data["every"] < 1:
            raise ValueError("a result file has one of every so many batches")
        kept = cls(data["case"], tuple(data["sizes"]), data["every"])
        if not kept.numbers:
            raise ValueError("no batch that is kept elsewhere")
        return kept


# Slots, and () for empty fields: a table of another tool has a million rows, each of which would
# otherwise have a dictionary of 1.2 KB and twelve empty lists of 0.7 KB.
@dataclass(slots=True, repr=False, eq=False)
class CaseResult:
    """One case as it ran: raw samples of all ranks, nothing derived.

    ranks, count, bytes_in and bytes_out are 0 if an imported file does not have them.
    reported: the figures of an imported file without samples.

    cold_ns[rank][k]: the first calls in order, host clock, device complete at both stamps.
    warmup_ns[rank][k]: further calls before the steady ones, same clock.
    cold_start_ns[rank][k]: when each of the cold calls began, on the monotonic clock of the rank's
    host. Ranks of one host can be compared with each other, ranks of several hosts cannot.
    time_ns[clock][rank][i]: the steady calls; ``batches`` are their batch sizes in order.
    For a large case of a file the samples of a rank are Packed instead of a list.
    busiest_bytes: with uneven blocks, the most bytes that one rank sends to other ranks or receives
    from them; None if unknown.
    ramp_up_ns[rank][i]: calls that ran before each batch, the same number before each, on the clock
    that is shown. Any interruption makes the next calls slow, so these are not steady.
    start_ns, start_wall_us: when the case began on rank 0, by its monotonic clock, and in us since
    1970 by its wall clock (in ns it would exceed 2^53, and common JSON tools would round it); None
    if unknown. batch_start_ns, batch_start_wall_us: the same for each batch, before its ramp-up.
    spent_ns: rank 0's wall time: ``case`` is all of it; ``ramp_up`` (calls), ``barriers`` (aligning
    steady and ramp-up calls) and ``gathers`` (decisions and samples) are parts of it.
    members: ranks of the run whose samples these are, in the order of the sub-group.
    ordinal: number of calls that torchcoll had made on the communicator before call 0, without the
    barriers for alignment (0: call 0 had to connect; None: others had used the communicator).
    steady_after: cold calls before the calls became steady; None if they did not within their
    limit.
    choices: algorithms that the log of the communication library has for the case; empty if
    unknown.
    concurrent: what --concurrent measured, after the steady calls.
    expected_ns: the time of a call by the library's own model; None if unknown.
    stop: why the steady calls ended: count, precision, time or cap.
    steady_ns: how long they took on rank 0, with everything between them; None if unknown.
    kept: the calls whose samples the ranks keep; None if all calls are here.
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
    expected_ns: int | None = None
    kept: KeptBatches | None = None

    def __repr__(self) -> str:
        ranks = counted(self.ranks, "rank")
        return as_one_line(f"CaseResult {self.case.describe()}: {self.status}, {ranks}")

    def __eq__(self, other: object) -> bool:
        """Whether a file would have the same record for both."""
        return isinstance(other, CaseResult) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    @property
    def last_to_arrive(self) -> bool:
        """Whether the time of a call is that of the last rank to arrive."""
        return self.reported is not None and self.reported.over_ranks == LAST_TO_ARRIVE

    @property
    def is_right(self) -> bool:
        """False without a result, or with a wrong one. ``Row.is_right`` is also False for
        implausible figures, which only the whole run shows.
        """
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
        if self.kept:
            data["kept"] = dataclasses.asdict(self.kept)
        if self.concurrent:
            data["concurrent"] = dataclasses.asdict(self.concurrent)
            if self.concurrent.offset_ns is None:
                for name in ("offset_ns", *LATER_BLOCKS):
                    del data["concurrent"][name]
        for name in _LEFT_OUT:
            if data[name] is None or data[name] == []:
                del data[name]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], large: bool = False) -> CaseResult:
        """Unknown fields are ignored. Raises KeyError, TypeError or ValueError for a broken one.

        large: whether the samples are so many that they are packed.
        """
        values = known_fields(cls, data)
        values["case"] = case_from_json(data["case"])
        if values.get("verification") is not None:
            verification = known_fields(Verification, data["verification"])
            verification["wrong_ranks"] = tuple(verification.get("wrong_ranks", ()))
            values["verification"] = Verification(**verification)
        if values.get("reported") is not None:
            values["reported"] = Reported.from_json(data["reported"])
        values["choices"] = [Choice.from_json(choice) for choice in data.get("choices") or ()]
        if values.get("kept") is not None:
            values["kept"] = KeptBatches.from_json(data["kept"])
        if values.get("concurrent") is not None:
            values["concurrent"] = ConcurrentBlocks.from_json(data["concurrent"])
        result = cls(**values)
        result._check_types(large)
        return result

    def _check_types(self, large: bool) -> None:
        """Raises TypeError or ValueError for values that no report could read."""

        def checked(matrix: Any, durations: bool) -> Matrix:
            if not isinstance(matrix, list | tuple):
                raise TypeError("samples are not lists by rank")
            if large:
                return _packed(matrix, durations)
            check_lists(*matrix, durations=durations)
            return matrix

        for name in _MATRICES:
            setattr(self, name, checked(getattr(self, name), name != "cold_start_ns"))
        self.time_ns = {clock: checked(matrix, True) for clock, matrix in self.time_ns.items()}
        check_lists(self.members, self.connect_ns)
        check_lists(self.batches, durations=True)
        check_ranks(*self.members)
        check_lists(self.batch_start_ns, self.batch_start_wall_us)
        check_lists(list(self.spent_ns.values()), durations=True)
        check_whole(*(at for at in (self.start_ns, self.start_wall_us) if at is not None))
        check_whole(self.count, self.size_bytes, self.bytes_in, self.bytes_out)
        check_ranks(self.ranks)
        check_whole(*or_none(self.ordinal, self.steady_after), self.calls_per_sample)
        check_whole(*or_none(self.busiest_bytes, self.steady_ns, self.expected_ns))
        check_texts(self.reason, self.stop, *self.warnings)
        if not isinstance(self.status, str) or not isinstance(self.communicator, str):
            raise TypeError("status and communicator are texts")
        if min(self.size_bytes, self.busiest_bytes or 0) < 0 or self.calls_per_sample < 1:
            raise ValueError("a result of negative size")
        if self.verification:
            check = self.verification
            check_whole(check.checked, check.wrong, check.tolerance_ulp, check.changed)
            check_ranks(*check.wrong_ranks)


_SEQUENCES = tuple(f.name for f in dataclasses.fields(CaseResult) if f.default == ())
# What a record does not have where it is unknown or empty.
_LEFT_OUT = (
    "busiest_bytes",
    "steady_ns",
    "reported",
    "choices",
    "concurrent",
    "expected_ns",
    "kept",
)
_MATRICES = {f.name for f in dataclasses.fields(CaseResult) if f.type == "Matrix"}


def shortfall(results: Sequence[CaseResult]) -> tuple[str, CaseResult] | None:
    """(``1 wrong of 3 cases``, the first of these cases) if a run with these results has failed. It
    has also failed if no case was measured, whatever the reason. None if it has not failed.
    """
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
    statuses, first = short
    return f"{statuses}. First: {first.case.describe()}: {first.reason}"


@dataclass(repr=False)
class Run(Displayed):
    """One run, as loaded or as just measured.

    header: the first record (run_id, start, argv, environment, ...).
    members: a dict for each rank.
    phases: set-up phase -> ns per rank.
    machine: the state of each host before and after the run (machine/state.py).
    events: what happened besides the cases.
    end: the last record; None if the file is truncated.
    in_flight: the case that had started and not ended.
    problems: a line for each thing that is wrong with the file.
    lost: number of cases that the file had, by its end, and that could not be read.
    continuations: the runs of --resume, each as in its own file; ``results`` and ``events`` have
    theirs too.
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
        cases = f"{counted(len(self.results), 'case')}{of}"
        ranks = counted(self.ranks, "rank")
        return as_one_line(f"Run {str(where)[-80:]}: {cases}, {ranks}, {ended}")

    def plot(self) -> Sequence[Any]:
        """Interactive charts of the run, which a notebook displays: a sequence of plotly Figures.

        Time and bus bandwidth over sizes, a figure for each collective; first and second calls; the
        calls in order of the smallest, the middle and the largest size; ranks by sizes.
        ``torchcoll.plot`` draws a picture into a file. Raises UsageError if no case has a time,
        UnavailableError without plotly (torchcoll[report]).
        """
        figures: Sequence[Any] = import_module("torchcoll.questions.page.notebook").figures_of(self)
        return figures

    def frame(self, each: str = "case") -> Any:
        """The run as a tidy pandas DataFrame, with units in the names of the columns.

        each: ``case``, a row for each case, with the columns of ``torchcoll.table``: times in ns,
        bandwidths in GB/s. Or ``call``, a row for each case, clock, rank and call, cold calls
        included: ``rank``, ``clock``, ``kind`` (cold, warmup, ramp_up or steady), ``call`` (its
        number in the case), ``calls_per_sample`` and ``time_ns``.

        Raises UsageError for another value of ``each``.
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
        """The command that runs the missing cases of a file, as one line; '' if there is none."""
        if self.path is None or self.complete or self.source:  # another tool's cannot go on
            return ""
        if self.windows:
            return ""  # a soak begins anew
        if any((result.case.group or "").startswith(("pair", "node")) for result in self.results):
            return ""  # pairs are measured in one go
        base = self.path.with_suffix("")  # FILE.2 is resumed as FILE
        path = base if self.path.suffix[1:].isdecimal() and base.is_file() else self.path
        name = shlex.quote(str(path))
        return f"to run the rest: torchrun ... -m torchcoll.suite --resume {name}"

    def all_runs(self) -> list[tuple[Run, list[CaseResult]]]:
        """This run and its continuations, each with the part of ``results`` that it measured."""
        runs: list[tuple[Run, list[CaseResult]]] = [(r, []) for r in (self, *self.continuations)]
        for number, result in zip(run_numbers(self), self.results, strict=True):
            runs[number][1].append(result)
        return runs

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = (self.header.get("spec") or {}).get("labels") or {}
        return labels


def run_numbers(run: Run) -> list[int]:
    """For each result, the index in ``run.all_runs()`` of the run that measured it."""
    if not run.continuations:
        return [0] * len(run.results)
    # The result of a later run replaces the earlier result of the same case.
    of_others = {r.case: n for n, other in enumerate(run.continuations, 1) for r in other.results}
    return [of_others.get(result.case, 0) for result in run.results]
