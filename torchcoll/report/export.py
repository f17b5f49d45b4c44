"""nccl-tests' text, so that the gates and parsers which read it read torchcoll.

The format strings are those of nccl-tests 2.19 (src/util.cu). What differs is said in comment
lines, which every reader skips: the time is a median and not a mean, and a collective that torch
has in one placement only fills both blocks with that one measurement. nccl-tests itself has a form
for a missing out-of-place block (32 blanks), but its readers do not: microsoft/superbenchmark
counts fields from the right and would read the element count as the time, NVIDIA/cloudai drops
every row that has not 13 fields. For the same reason redop is 'none', never blank.

The counts of the heading are the least that any case runs, for they are printed before the cases;
what ran stands below the rows. As with nccl-tests' own ``-c 0``, 'OK' means that nothing was found
wrong; where nothing was checked a comment says so. A case that failed counts as out of bounds, and
a run that did not reach its end has no footer, like an nccl-tests that was killed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from torchcoll.core.case import NATIVE, Case
from torchcoll.core.collectives import has_splits
from torchcoll.core.errors import one_line
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.summary import Row
from torchcoll.report.columns import statistics_of
from torchcoll.report.formats import View
from torchcoll.report.header import NOT_ALIGNED, program_text, reported_text
from torchcoll.report.notes import SPLITS_LINE, outcome_lines, stop_lines

_LEAST_ITERS = 5  # the first batch of bench/stopping.py; what is slow ends after it

# torch's names -> ncclDataType names where they differ (nccl-tests src/common.cu).
_NCCL_TESTS_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_PROGRAMS = {"all_to_all": "alltoall", "all_to_all_v": "alltoallv"}
_READINGS = {"max": "the slowest rank", "mean": "the mean over ranks", "min": "the fastest rank"}


def program(collective: str) -> str:
    return f"{_PROGRAMS.get(collective, collective)}_perf"


def float_text(value: float, width: int) -> str:
    """getFloatStr of nccl-tests: fewer decimals as the number outgrows its column."""
    power = len(str(int(value))) if value >= 1 else 0
    if power < width - 2:
        return f"{value:{width}.2f}"
    if power < width - 1:
        return f"{value:{width}.1f}"
    if power < width + 1:
        return f"{value:{width}.0f}"
    return f"{value:{width}.{1 if width >= 7 else 0}e}"


def block_start(
    run: Run, cases: Sequence[Case], how: str = "max", members: Sequence[int] = ()
) -> list[str]:
    """The lines before the first row of one collective on one backend, in one sub-group."""
    first = cases[0]
    sizes = [case.size_bytes for case in cases]
    spec = run.header.get("spec") or {}
    if spec.get("step_bytes"):
        step = f"{spec['step_bytes']}(bytes)"
    else:
        step = f"{spec.get('factor') or 0:g}(factor)"
    # Warm-up is what runs before the timed calls.
    warmup = (spec.get("cold") or 0) + (spec.get("warmup") or 0)
    iters = spec.get("iters") if "iters" in spec else 0
    iters = _LEAST_ITERS if iters is None else iters
    group = f", sub-group {one_line(first.group)}" if first.group else ""
    by = f" by {one_line(first.implementation)}" if first.implementation != NATIVE else ""
    statistic = statistics_of([first])[0]
    elements = first.misalign_bytes // first.itemsize if first.misalign_bytes else 0
    unalign = f" unalign: {elements}" if elements else ""
    lines = [
        f"# {program_text(run)} in the text format of nccl-tests",
        f"# Collective test starting: {program(first.collective)}",
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} step: {step} warmup "
        f"iters: {warmup} iters: {iters} agg iters: {first.coalesce} validation: "
        f"{int(spec.get('check') or False)} graph: {int(first.mode == 'graph')}{unalign}",
        "# torchcoll: warmup iters and iters are the least of any case; below is what ran",
        f"# torchcoll: torch.distributed {first.collective} on {one_line(first.backend)}{by}, mode "
        f"{one_line(first.mode)}{group}",
        f"# torchcoll: time is the {statistic} over calls of {_READINGS.get(how, how)}",
    ]
    if text := reported_text(run):
        lines[-1] = f"# torchcoll: {text}"
    elif how == "max" and first.mode != "synchronized" and not first.back_to_back:
        lines.append(f"# torchcoll: {NOT_ALIGNED}")
    lines.append(f"# torchcoll: buffer reuse: {one_line(first.buffer_reuse)}")
    if run.ranks == 1:
        lines.append("# torchcoll: one rank, no communication")
    if not first.communicates:
        lines.append(f"# torchcoll: {one_line(first.backend)} backend: nothing was communicated")
    if has_splits(first.collective):
        splits = f"splits {one_line(first.splits)}; {first.collective}: {SPLITS_LINE}"
        lines.append(f"# torchcoll: {splits}")
    for in_place in (True, False):
        if all(case.in_place is in_place for case in cases):
            names = ("out-of-place", "in-place")
            lines.append(
                f"# torchcoll: measured {names[in_place]} only, "
                f"the {names[not in_place]} columns repeat it"
            )
    if any(case.in_place is None for case in cases):
        lines.append("# torchcoll: placement unknown, both columns hold the one figure")
    lines += ["#", "# Using devices", *map(_device_line, _members(run, members)), "#"]
    return lines + _heading()


def _members(run: Run, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Readers count ranks by these lines, so there is one even where nothing else is known."""
    members = run.members or [{"rank": rank} for rank in range(run.ranks)]
    chosen = [members[rank] for rank in ranks if 0 <= rank < len(members)] or members
    return [{**member, "rank": index} for index, member in enumerate(chosen)]


def _device_line(member: dict[str, Any]) -> str:
    device = str(member.get("device") or "")
    index = device.rpartition(":")[2]
    name = one_line(member.get("device_name") or device or "unknown")
    return (
        f"#  Rank {member.get('rank', 0):2} Group  0 Pid {member.get('pid') or 0:6} "
        f"on {one_line(member.get('host') or 'unknown'):>10} "
        f"device {index if index.isascii() and index.isdigit() else 0:>2} [0x00] {name}"
    )


def _heading() -> list[str]:
    names = ("size", "count", "type", "redop", "root")
    units = ("(B)", "(elements)", "", "", "")
    figures, of_figures = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    form = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}" + "  {:>7}  {:>6}  {:>6}  {:>6}" * 2 + " "
    placements = "           out-of-place                       in-place          "
    return [
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}".format(*[""] * 5) + placements,
        form.format(*names, *figures, *figures),
        form.format(*units, *of_figures, *of_figures),
    ]


def _block(row: Row, result: CaseResult) -> str:
    check = result.verification
    wrong = "    N/A" if row.verified == "unchecked" or not check else f"  {check.wrong:6g}"
    # Calls in one group are timed together, and nccl-tests divides too (-m).
    time_us = (row.median_ns or 0) / 1000 / row.coalesce
    return (
        f"  {float_text(time_us, 7)}  {float_text(row.algbw_gbps or 0, 6)}"
        f"  {float_text(row.busbw_gbps or 0, 6)}{wrong}"
    )


Pair = tuple[Row, CaseResult]


def row_text(out_of_place: Pair | None, in_place: Pair | None) -> str:
    """One row; a placement that was not measured repeats the other."""
    first, second = out_of_place or in_place, in_place or out_of_place
    assert first and second
    row = first[0]
    kind, op = one_line(row.dtype or "none"), one_line(row.op or "none")
    root = -1 if row.root is None else row.root
    kind = _NCCL_TESTS_TYPES.get(kind, kind)
    start = f"{row.size_bytes:12}  {row.count:12}  {kind:>8}  {op:>6}  {root:6}"
    return start + _block(*first) + _block(*second)


def block_end(name: str, pairs: Sequence[Pair], failed: int = 0) -> list[str]:
    """The last lines; the average is nccl-tests', over all sizes and placements.

    ``failed``: cases that have no row; one that is wrong has its elements.
    """
    wrong = sum(r.verification.wrong for _, r in pairs if r.verification)
    rows = [row for row, _ in pairs]
    failed += sum(row.status == "wrong" and row.verified != "wrong" for row in rows)
    bandwidths = [row.busbw_gbps or 0.0 for row in rows]
    average = sum(bandwidths) / len(bandwidths) if bandwidths else 0.0
    comments = []
    if pairs:  # what the heading could not know
        steady = [row.calls for row, _ in pairs]
        before = [sum(len(m[0]) for m in (r.cold_ns, r.warmup_ns) if m) for _, r in pairs]
        comments.append(f"calls a case: warmup {_range_text(before)}, timed {_range_text(steady)}")
    comments += stop_lines(rows)
    if failed:
        comments.append(f"failed cases: {failed}, each counted as out of bounds")
    unchecked = sum(row.verified == "unchecked" for row in rows)
    if not wrong + failed and (unchecked or not rows):
        # nccl-tests says OK too where it was not to check (-c 0), and readers expect it.
        count = f"{unchecked} of {len(rows)} rows were not verified" if rows else "no rows"
        comments.append(f"{count}: OK only says that nothing was found wrong")
    wrong += failed
    return [
        *(f"# torchcoll: {text}" for text in comments),
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {average:g} ",
        "#",
        f"# Collective test concluded: {name}",
        "#",
        "",
    ]


def _range_text(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


Group = tuple[str, str, str, str]  # collective, backend, implementation, sub-group


class NcclTests:
    """Lines as results come: a block for each collective on each backend, in each sub-group.

    Where a size is measured in both placements its row waits for the second. Where the cases of
    the collectives are mixed (``--order shuffled``, sub-groups) everything waits for the end,
    because a block that has concluded cannot be resumed.
    """

    def __init__(self, run: Run, cases: Sequence[Case], view: View | None = None) -> None:
        self._run = run
        self._view = view or View()
        self._cases: dict[Group, list[Case]] = {}
        self._group_cases(cases)
        changes = sum(_group(a) != _group(b) for a, b in itertools.pairwise(cases))
        # Of sub-groups only the results have the names.
        mixed = changes >= max(1, len(self._cases)) or any(case.group for case in cases)
        self._live = not mixed
        self._waiting: list[CaseResult] = []
        self._open: Group | None = None
        self._pairs: list[Pair] = []
        self._failed = 0
        self._unpaired: dict[Case, Pair] = {}

    def _group_cases(self, cases: Sequence[Case]) -> None:
        self._asked = set(cases)
        self._cases = {}
        for case in cases:
            self._cases.setdefault(_group(case), []).append(case)

    def done(self, result: CaseResult) -> Iterator[str]:
        if self._live:
            yield from self._add_result(result)
        else:
            self._waiting.append(result)

    def end(self) -> Iterator[str]:
        if self._waiting:
            self._group_cases([result.case for result in self._waiting])
        order = {group: index for index, group in enumerate(self._cases)}
        for result in sorted(self._waiting, key=lambda r: order[_group(r.case)]):
            yield from self._add_result(result)
        self._waiting = []
        yield from self._close_block(concluded=self._run.complete)
        yield from (f"# torchcoll: {line}" for line in outcome_lines(self._run))

    def _add_result(self, result: CaseResult) -> Iterator[str]:
        group = _group(result.case)
        if group != self._open:
            yield from self._close_block()
            self._open = group
            how = self._view.over_ranks
            yield from block_start(self._run, self._cases[group], how, result.members)
        row = self._view.row(result)
        if result.status not in ("ok", "wrong") or row.median_ns is None:
            self._failed += not result.expected
            reason = f": {one_line(result.reason)}" if result.reason else ""
            yield f"# {one_line(result.status)}: {one_line(result.case.describe())}{reason}"
            return
        self._pairs.append((row, result))
        key = dataclasses.replace(result.case, in_place=False)
        other_placement = dataclasses.replace(result.case, in_place=not result.case.in_place)
        if other_placement in self._asked and key not in self._unpaired:
            self._unpaired[key] = (row, result)
        else:
            yield _pair_line((row, result), self._unpaired.pop(key, None))

    def _close_block(self, concluded: bool = True) -> Iterator[str]:
        if self._open is None:
            return
        for pair in self._unpaired.values():
            yield _pair_line(pair, None)
        if concluded:
            yield from block_end(program(self._open[0]), self._pairs, self._failed)
        self._open, self._pairs, self._unpaired, self._failed = None, [], {}, 0


def _group(case: Case) -> Group:
    return case.collective, case.backend, case.implementation, case.group or ""


def _pair_line(pair: Pair, other_placement: Pair | None) -> str:
    first, second = (other_placement, pair) if pair[0].in_place else (pair, other_placement)
    return row_text(first, second)


def run_text(run: Run, view: View) -> str:
    """The whole text of a run."""
    text = NcclTests(run, [result.case for result in run.results], view)
    lines = [line for result in run.results for line in text.done(result)]
    lines += text.end()
    return "".join(f"{line}\n" for line in lines)
