"""Rows of nccl-tests and rccl-tests, for all their formats, and NCCL's messages beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from torchcoll.core.case import BLOCKING, NATIVE
from torchcoll.core.collectives import COLLECTIVES, Collective
from torchcoll.core.result import CaseResult, Matrix, Reported
from torchcoll.core.units import counted, format_size
from torchcoll.core.variables import kept_variables
from torchcoll.libraries.nccl.algorithms import choices_of
from torchcoll.libraries.nccl.log import NcclLogReader
from torchcoll.libraries.nccl.slow_paths import MARKS, SlowPath, slow_paths
from torchcoll.reading.base import Imported, itemsize, make_result, number, ranks_in, whole

# The largest number of ranks that is tried for busbw / algbw.
_MOST = 100_000
_ROUNDED = 1.002  # between factors of rows whose last digits were rounded in another way
_NEAR = 0.02  # relative tolerance for rounded algbw, size and time


@dataclass(slots=True)
class Block:
    """The figures of a row for one placement (in or out of place).

    algbw, busbw: GB/s. wrong: number of wrong elements; None if not checked.
    time_step_ns, bw_step: half a unit in the last printed place.
    """

    in_place: bool | None
    time_ns: float
    algbw: float | None
    busbw: float | None
    time_step_ns: float = 0.0
    bw_step: float = 0.0
    wrong: int | None = None
    error: float | None = None
    min_ns: float | None = None
    max_ns: float | None = None
    p99_ns: float | None = None
    samples: Matrix = field(default_factory=list)
    cold: Matrix = field(default_factory=list)  # first call of each process, where it is known


@dataclass(slots=True)
class NcclTestsRow:
    """One row. size: in bytes. root: None for a collective without one."""

    line: int
    size: int
    count: int
    dtype: str
    op: str | None
    root: int | None
    blocks: list[Block]


@dataclass
class NcclTestsRun:
    """What is known about all rows. ranks: 0 if not known. contradicted_by: as of ``check_ranks``.

    over_ranks: how the times of the processes are combined (-a). buffers, implementation: as in
    Case. unaligned: elements of -u.
    """

    collective: str | None = None
    ranks: int = 0
    contradicted_by: str = ""
    backend: str = "nccl"
    device: str = "cuda"
    mode: str = "back-to-back"
    calls: int | None = None
    checked: bool = True
    cpu_time: bool = False
    over_ranks: str = "mean"
    buffers: str = "default"
    implementation: str = NATIVE
    unaligned: int = 0
    remarks: list[str] = field(default_factory=list)


# What -a combines the times of the processes by.
_OVER_RANKS = {"0": "rank0", "1": "mean", "2": "min", "3": "max"}
_REGISTRATION = {"1": "registered", "2": "symmetric"}
# NCCL's own names of the policies of -x (ncclConfig_t.CTAPolicy), as NCCL_CTA_POLICY takes them.
_CTA_POLICIES = {"0": "DEFAULT", "1": "EFFICIENCY", "2": "ZERO"}
_LONG_OPTIONS = {
    "--average": "-a",
    "--local_register": "-R",
    "--cta_policy": "-x",
    "--device_implementation": "-D",
    "--device_cta_count": "-V",
    "--unalign": "-u",
    "--blocking": "-z",
}
# What -z does between calls. Before 2.19.2 it was 0 or 1.
_BLOCKING = {"1": "blocking, barrier", "2": BLOCKING, "3": "synchronized"}


def apply_options(
    run: NcclTestsRun, args: Sequence[str], unaligned: int = 0, blocking: str = "0"
) -> dict[str, str]:
    """Set in ``run`` what options of nccl-tests change of the meaning of its times.

    Returns the NCCL variables that they set. -D N measures a kernel of nccl-tests in place of
    NCCL's, -V its number of CTAs; -z 1 includes a barrier. unaligned, blocking: -u and -z by the
    heading.
    """
    values: dict[str, str] = {}
    for option, value in pairwise([*args, ""]):
        name, equals, own_value = option.partition("=")
        flag = _LONG_OPTIONS.get(name, name)
        if flag in _LONG_OPTIONS.values():
            values[flag] = own_value if equals else value
        elif option[:2] in _LONG_OPTIONS.values() and not option.startswith("--"):
            values[option[:2]] = option[2:]  # -D2
    run.over_ranks = _OVER_RANKS.get(values.get("-a", "1"), "unknown")
    run.buffers = _REGISTRATION.get(values.get("-R", "0"), "default")
    device_kernel = whole(values.get("-D")) or 0
    if device_kernel > 0:
        ctas = values.get("-V", "16")
        run.implementation = f"nccl-tests-device-{device_kernel}-{ctas}-ctas"
        run.remarks.append(
            f"-D {device_kernel}: a kernel of nccl-tests with {ctas} CTAs (-V) in place of NCCL's"
        )
    run.unaligned = whole(values.get("-u")) or unaligned
    if run.unaligned:
        moved = f"moved by {run.unaligned} elements beyond their alignment"
        run.remarks.append(f"-u {run.unaligned}: buffers are {moved}")
    if values.get("-z") in _BLOCKING:
        blocking = values["-z"]
    if blocking in _BLOCKING and run.mode == "back-to-back":
        run.mode = _BLOCKING[blocking]
        if blocking == "1":
            run.remarks.append("-z 1: the time includes a barrier after every call")
    policy = _CTA_POLICIES.get(values.get("-x", ""))
    return {"NCCL_CTA_POLICY": f"{policy} (-x)"} if policy else {}


def judge(row: NcclTestsRow, run: NcclTestsRun) -> str:
    """Why a row cannot be used; '' if it can. Checks that size and count are consistent."""
    assert run.collective
    if not row.size:
        return "0 bytes: nothing was sent (the size was rounded down to nothing)"
    size = itemsize(row.dtype)
    if size is None or not row.count:
        return ""
    entry, bytes_of_rank = COLLECTIVES[run.collective], row.count * size
    if entry.has_splits:
        return ""
    quotient = row.size / bytes_of_rank
    if entry.parts(2) == 1:
        fits, expected = quotient == 1, "1"
    else:
        fits = quotient == run.ranks if run.ranks else quotient == int(quotient) and quotient >= 1
        expected = f"the ranks ({run.ranks or 'a whole number'})"
    if fits:
        return ""
    return (
        f"size / (count x {size} bytes) is {quotient:g}, for {run.collective} it is {expected}: "
        "another collective, type or number of ranks"
    )


def infer_ranks(rows: Sequence[NcclTestsRow], collective: str) -> tuple[int, str]:
    """(number of ranks, its origin) by size / count or else busbw / algbw; (0, '') if unknown."""
    entry = COLLECTIVES[collective]
    if entry.parts(2) != 1:
        quotients = {
            row.size / (row.count * size)
            for row in rows
            if row.count and row.size and (size := itemsize(row.dtype))
        }
        if len(quotients) == 1 and (ranks := quotients.pop()) >= 1 and ranks == int(ranks):
            return int(ranks), "size / count"
        return 0, ""
    if entry.bus_factor(2) == entry.bus_factor(3):
        return 0, ""
    low, high = _factors(rows)
    fit = []
    for n in range(2, _MOST) if low else ():
        factor = entry.bus_factor(n)
        if low <= factor <= high:
            fit.append(n)
        if factor > high or len(fit) > 1:
            break
    return (fit[0], "busbw / algbw") if len(fit) == 1 else (0, "")


def _factors(rows: Iterable[NcclTestsRow]) -> tuple[float, float]:
    """(lowest, highest) possible busbw / algbw: each pair of rounded figures leaves an interval. Of
    rows that contradict each other in a late digit, all that they allow.
    """
    low, high = 0.0, float("inf")
    for least, most in map(_factor, _precise_blocks(rows)):
        low, high = max(low, least), min(high, most)
    return (high, low) if high < low < _ROUNDED * high else (low, high)


def _precise_blocks(rows: Iterable[NcclTestsRow]) -> Iterator[Block]:
    """Yield the blocks whose figures are large in comparison to their rounding."""
    for row in rows:
        for block in row.blocks:
            if block.algbw and block.busbw and block.algbw > 10 * block.bw_step:
                yield block


def _factor(block: Block) -> tuple[float, float]:
    assert block.algbw and block.busbw is not None
    step = block.bw_step
    return (block.busbw - step) / (block.algbw + step), (block.busbw + step) / (block.algbw - step)


def contradicts_ranks(rows: Sequence[NcclTestsRow], collective: str, ranks: int) -> bool:
    """Whether every busbw differs from the one that this number of ranks would have."""
    factor = COLLECTIVES[collective].bus_factor(ranks)
    factors = [*map(_factor, _precise_blocks(rows))]
    return bool(factors) and not any(low <= factor <= high for low, high in factors)


def check_ranks(
    rows: Sequence[NcclTestsRow], collective: str, asked: int, imported: Imported
) -> str:
    """The number of ranks that every busbw is of, with a warning, if it is not the one of --ranks;
    '' otherwise.
    """
    inferred, source = infer_ranks(rows, collective)
    if not inferred or not contradicts_ranks(rows, collective, asked):
        return ""
    imported.warn(f"--ranks {asked}, but every {source} is that of {inferred} ranks")
    return str(inferred)


def fitting_collectives(
    rows: Sequence[NcclTestsRow], ranks: int = 0, since_2022: bool = False
) -> dict[str, str]:
    """Collectives of such rows -> the evidence. since_2022: the heading has #wrong, not error."""
    sent = [row for row in rows if row.size and row.count]
    low, high = _factors(sent)
    largest = max(_precise_blocks(sent), key=lambda block: block.algbw or 0, default=None)
    if not sent or largest is None or low > high:
        return {}
    assert largest.algbw and largest.busbw
    evidence = {}
    for entry in COLLECTIVES.values():
        if not entry.has_data or entry.has_splits:
            continue
        # sendrecv prints an operation, but does not use it: nobody chooses another one than sum.
        op = entry.has_op or entry.name == "sendrecv"
        if entry.name == "sendrecv" and {row.op for row in sent} != {"sum"}:
            continue
        if any((row.op is None) == op or (row.root is None) == entry.has_root for row in sent):
            continue
        inferred = infer_ranks(sent, entry.name)[0]
        several = entry.parts(2) != 1
        n = next((n for n in (ranks, inferred) if n and _fits(entry, n, sent, low, high)), 0)
        # With many ranks busbw / algbw shows that it is an all_reduce, but not how many ranks.
        least, most = entry.bus_factor(2), entry.bus_factor(_MOST)
        if not n and (several or ranks or inferred or least > high or most < low):
            continue
        how = [f"busbw / algbw is {largest.busbw / largest.algbw:.4g}"]
        if several:
            how.insert(0, f"size / count is that of {n} ranks")
        if entry.has_root:
            how.insert(0, "a root and a reduction" if entry.has_op else "a root")
        evidence[entry.name] = ", ".join(how)
    if "hypercube" in evidence and not since_2022:
        evidence["all_gather"] = "until June 2020 its algbw was its busbw"
    if _unchecked_in_place(sent) and "all_to_all" in evidence:  # nccl-tests never checks that one
        evidence.pop("all_gather", None)
    return evidence


def _fits(
    entry: Collective, ranks: int, rows: Sequence[NcclTestsRow], low: float, high: float
) -> bool:
    """Whether the figures can be those of this collective on this number of ranks."""
    run = NcclTestsRun(entry.name, ranks)
    if not low <= entry.bus_factor(ranks) <= high or any(judge(row, run) for row in rows):
        return False
    shares = [
        (block.algbw * block.time_ns / row.size, block.bw_step / block.algbw)
        for row in rows
        for block in row.blocks
        if block.algbw and block.algbw > 10 * block.bw_step
    ]
    near = max(_NEAR, min((rounded for _, rounded in shares), default=0.0))
    share = median(share for share, _ in shares) if shares else 0.0
    moved = entry.moved(ranks)  # 0 of one rank
    return moved > 0 and abs(share / moved - 1) <= near


def _unchecked_in_place(rows: Sequence[NcclTestsRow]) -> bool:
    checked = {
        bool(block.in_place): block.wrong is not None or block.error is not None
        for row in rows
        for block in row.blocks
    }
    return checked == {False: True, True: False}


def make_results(
    rows: Iterable[NcclTestsRow], run: NcclTestsRun, imported: Imported
) -> list[CaseResult]:
    """Make the results of these rows. Rows that cannot be used are refused in ``imported``."""
    results: list[CaseResult] = []
    odd = []
    for row in rows:
        if why := judge(row, run):
            imported.refuse(row.line, why)
            continue
        imported.take()
        for block in row.blocks:
            result = _result(row, block, run)
            if _disagrees(row.size, block, run):
                odd.append(row.line)
                given = f"given algbw {block.algbw:g}, busbw {block.busbw:g}"
                text = f"{given} do not follow from size, time and ranks"
                result.warnings = [*result.warnings, text]
            results.append(result)
    if odd:
        imported.warn(
            f"{len(odd)} of {len(results)} bandwidths do not follow from size, time and ranks: "
            f"the first in line {odd[0]}"
        )
    return results


def _result(row: NcclTestsRow, block: Block, run: NcclTestsRun) -> CaseResult:
    assert run.collective
    remarks = [*run.remarks]
    if run.cpu_time:
        remarks.append("the time is that of the call on the CPU (-C), not of the operation")
    if block.error:
        remarks.append(f"largest error {block.error:g}, as the source gives it")
    reported = Reported(
        block.time_ns,
        "mean",
        run.over_ranks,
        "issue" if run.cpu_time else "host",
        run.calls,
        min_ns=block.min_ns,
        max_ns=block.max_ns,
        p99_ns=block.p99_ns,
        algbw_gbps=block.algbw,
        busbw_gbps=block.busbw,
    )
    result = make_result(
        run.collective,
        row.size,
        reported,
        **{name: getattr(run, name) for name in ("ranks", "mode", "backend", "device")},
        **{name: getattr(row, name) for name in ("dtype", "op", "root", "count")},
        in_place=block.in_place,
        wrong=0 if block.error == 0 else block.wrong,
        checked=max(1, row.count),
        warnings=remarks,
        buffer_reuse="rotate",  # common.cu, startColl
    )
    if (run.buffers, run.implementation, run.unaligned) != ("default", NATIVE, 0):
        result.case = replace(
            result.case,
            buffers=run.buffers,
            implementation=run.implementation,
            misalign_bytes=run.unaligned * (itemsize(row.dtype) or 1),
        )
    if block.samples:
        result.time_ns = {"device": block.samples}
        result.stop = "count"
        result.cold_ns = block.cold
    return result


def _disagrees(size: int, block: Block, run: NcclTestsRun) -> bool:
    """Whether a printed bandwidth contradicts the one that size, time and ranks give."""
    assert run.collective
    entry, n = COLLECTIVES[run.collective], run.ranks or 2
    algbw, busbw, time = block.algbw, block.busbw, block.time_ns
    if run.ranks == 1 or run.cpu_time or algbw is None or busbw is None or not time:
        return False
    if not run.ranks and (entry.moved(2) != 1 or entry.bus_factor(2) != entry.bus_factor(3)):
        return False
    moved = entry.moved(n)
    factor = moved * entry.bus_factor(n)
    low = size / (time + block.time_step_ns)
    high = size / max(time - block.time_step_ns, 1e-3)
    step = block.bw_step
    return not (
        (low * moved - step) * 0.999 <= algbw <= (high * moved + step) * 1.001
        and (low * factor - step) * 0.999 <= busbw <= (high * factor + step) * 1.001
    )


SAYS_FAILED = "FAILED"  # of a test in its last lines: wrong values, or less bandwidth than asked


def failed_end(verdict: str, wrong: int, rows: Sequence[NcclTestsRow]) -> dict[str, Any]:
    """The ``end`` of a run that says it failed. verdict: its words, or ''; then it only counts
    ``wrong`` results, and without wrong rows all become unchecked.
    """
    reason = f"nccl-tests itself says {verdict}"
    if not verdict:
        blocks = [block for row in rows for block in row.blocks]
        shown = any(block.wrong for block in blocks)
        for block in () if shown else blocks:
            block.wrong = block.error = None
        where = "" if shown else ", not in the rows shown"
        reason = f"nccl-tests counts {counted(wrong, 'wrong result')}{where}"
    return {"status": "failed", "reason": reason, "wrong_results": wrong}


_FORCED = re.compile(r"(?:NCCL_)?(ALGO|PROTO) ?[=:] ?(\w+)[ ,;]*")


def title_labels(title: str) -> dict[str, str]:
    """``NCCL_ALGO`` and ``NCCL_PROTO`` if a title names only these, else ``table``."""
    forced = {f"NCCL_{name}": value for name, value in _FORCED.findall(title)}
    return forced if forced and not _FORCED.sub("", title) else {"table": title}


def launched_ranks(command: str) -> int:
    """The ranks of a command line: processes, each with -t threads of -g GPUs; 0 if not known."""
    options = command.partition("_perf")[2]
    each = [int(match[1]) for match in re.finditer(r"\s-[gt]\s*(\d{1,3})\b", options)]
    return (ranks_in(command) or 0) * math.prod(each)


def blocking_option(text: str) -> str:
    """The value of -z that a heading describes."""
    if "no barrier" in text:
        return "2"
    return "3" if "time excludes barrier" in text else "1"


def settings_of(text: str) -> dict[str, str]:
    """The options in the first line of an output: ``minBytes``, ``iters``, ``step_kind``, ..."""
    settings = dict(re.findall(r"(\w+):? (\d+)", text.replace(" iters:", "_iters:")))
    if step := re.search(r"step: (\d+)\((\w+)\)", text):
        settings["step"], settings["step_kind"] = step[1], step[2]
    if iters := re.search(r"(?<!warmup )(?<!agg )iters: (\d+)", text):
        settings["iters"] = iters[1]
    return settings


def fraction(args: Sequence[str]) -> str:
    """A warning about a -f that nccl-tests reads as another number; '' without one."""
    for flag, value in pairwise(args):
        factor = number(value) if flag in ("-f", "--stepfactor") else None
        if factor is not None and factor != int(factor):
            then = ", so that the sizes rise by the default step of 1 MiB" if factor < 2 else ""
            return f"-f {value} was read as {int(factor)}: nccl-tests takes a whole number{then}"
    return ""


def version_text(code: object) -> str:
    """The version for a code of nccl.h: 22902 is 2.29.2; before 2.9 the form was 2708 for 2.7.8."""
    value = whole(code)
    if value is None:
        return str(code)
    base = 10000 if value >= 10000 else 1000
    return f"{value // base}.{value % base // 100}.{value % 100}"


INTERLEAVED = (
    "{n} outputs of one rank each lie in each other: nccl-tests was built without MPI, so the "
    "launcher started {n} tests that never met. Build it with MPI=1"
)
STEP_1M = (
    "sizes rise by 1 MiB: nccl-tests reads -f as a whole number, and -f 1.15 as this default step; "
    "if a factor was meant, the sizes are not those that were asked for"
)


_EXPECTED = re.compile(r"\b(\d{1,15}) Bytes -> Algo \S+ proto \S+ time (\d{1,12}(?:\.\d+)?)")
_MOST_FACTORS = 4
SET, _CALL = " set by environment to ", " Bytes -> "
_MARKS = (_CALL, SET, "CCL version", "Using network", " nNodes ", *MARKS)


class Messages:
    """The messages of NCCL's log in the output of one run."""

    def __init__(self) -> None:
        self._reader = NcclLogReader()
        self._expected_us: dict[int, float] = {}  # size -> the time that NCCL's tuning expects

    def take(self, text: str) -> None:
        """Read a message with its prefix; most are not needed, and skipped."""
        if any(mark in text for mark in _MARKS):
            self._reader.read([text.encode()])
            if match := _EXPECTED.search(text):
                self._expected_us[int(match[1])] = float(match[2])

    def slow_paths(self, hosts: Collection[str]) -> list[SlowPath]:
        return slow_paths(self._reader.processes, len(hosts))

    @property
    def variables(self) -> dict[str, str]:
        """The variables that may be kept, with all values of one that differs between processes."""
        values: dict[str, dict[str, None]] = {}
        for process in self._reader.processes:
            for name, value in process.variables.items():
                values.setdefault(name, {})[value] = None
        return kept_variables({name: " | ".join(texts) for name, texts in values.items()})

    @property
    def versions(self) -> dict[str, str]:
        """``nccl`` or ``rccl`` -> its version, by the first process that logged it."""
        processes = [process for process in self._reader.processes if process.version]
        return {process.library.lower(): process.version for process in reversed(processes)}

    def expectation(self, results: Iterable[CaseResult]) -> str:
        """How many times as long as NCCL expected the calls took, by size; '' if not known."""
        factors = {
            result.size_bytes: result.reported.time_ns / 1e3 / expected
            for result in results
            if result.reported and result.reported.time_ns
            if COLLECTIVES[result.case.collective].parts(2) == 1
            if (expected := self._expected_us.get(result.size_bytes))
        }
        if not factors:
            return ""
        last = max(factors)
        smaller = [f"{format_size(n)} {factors[n]:.2g}x" for n in sorted(factors) if n != last]
        more = f" ({', '.join(smaller[-_MOST_FACTORS:])})" if smaller else ""
        long = f"{factors[last]:.2g} times as long as NCCL expected"
        return f"at {format_size(last)} a call took {long}{more}"

    def choose(self, results: Iterable[CaseResult]) -> None:
        """Set ``choices`` of each result to what the library chose for its size."""
        calls = dict.fromkeys(call for process in self._reader.processes for call in process.calls)
        for result in results if calls else ():
            result.choices = choices_of(result, calls)
