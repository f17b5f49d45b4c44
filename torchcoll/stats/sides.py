"""The two sides of a comparison: their runs, and what is known of each."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from torchcoll.core import summary
from torchcoll.core.display import OneLine
from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import doubted, doubts_of
from torchcoll.core.result import CaseResult, Run, run_numbers
from torchcoll.core.run_facts import facts_of
from torchcoll.core.units import parse_utc
from torchcoll.libraries.known_variables import NCCL_CHOICES
from torchcoll.reading.inputs import Source, expand, load_all, split_label

METRICS = {"time": "median_ns", "algbw": "algbw_gbps", "busbw": "busbw_gbps"}

UNTIL_PRECISE = "until precise"  # without -n
NOT_KNOWN = "not known"  # a variable of a run that tells none
UNSET = "unset"
_ENVIRONMENT = "environment"  # of an imported file: "whole" if it has all variables that were set
# Settings that torchcoll records in lower case, and what a run had that does not record them: gloo
# has no configuration of communicators, and earlier versions could not set one.
SETTINGS = {"communicator_config": "default"}
_TELLING = 3  # so many figures of an imported run make it one that cannot be another
_REHEARSALS = "rehearsals: ranks shared a GPU, and no time means anything"
TORCHCOLL = "torchcoll"
ONECCL_BENCHMARK = "oneCCL benchmark"  # as reading/oneccl.py names it
PUBLISHED = "a published table"  # as reading/plain.py names the source of a table


@dataclass(frozen=True)
class Measured:
    """One case of one run. ``figure``: what enters the comparison; None if there is none."""

    row: summary.Row
    result: CaseResult
    run: int  # the number of its file on its side
    figure: float | None
    facts: dict[str, str]
    knows_requested: bool  # False: imported, the size in the file is the actual one
    start: float | None = None  # of the run that measured it, in seconds; None is unknown
    iters: str = ""  # what its run asked for; '' is unknown
    part: int = 0  # the number of its run among ``parts`` of its side


@dataclass(frozen=True)
class Reading:
    """How the samples of a case become one duration."""

    over_ranks: str = "max"
    mean: bool = False  # over the calls; else their median, or the period of calls back to back

    def __str__(self) -> str:
        return self._text("median")

    def of(self, result: CaseResult) -> str:
        """How the figure of a case was computed from calls and ranks, as far as it is known."""
        if not result.time_ns and result.reported:
            text = summary.reported_reading(result.reported)
            return f"{text}, as published" if result.reported.over_ranks == "unknown" else text
        has_period = summary.has_period(result, summary.default_clock(result))
        return self._text(summary.PERIOD if has_period else "median")

    def _text(self, usual: str) -> str:
        return f"{'mean' if self.mean else usual} over calls, {self.over_ranks} over ranks"


@dataclass(repr=False)
class Side(OneLine):
    """One side: its name, its runs, and where they were asked for."""

    name: str
    runs: list[Run] = field(default_factory=list)
    where: str = ""

    @property
    def only(self) -> tuple[str, str] | None:
        """(dimension, value) of a side named ``backend:gloo``, which has only these cases."""
        dimension, colon, value = self.name.partition(":")
        # NCCL_IB_HCA=mlx5_0:1 is a setting.
        return (dimension, value) if colon and dimension.isidentifier() else None

    @property
    def parts(self) -> list[Run]:
        """All runs, including the earlier ones of --resume."""
        return [part for run in self.runs for part, _ in run.all_runs()]

    @property
    def results(self) -> list[CaseResult]:
        return [result for run in self.runs for result in run.results]

    @property
    def keeps_samples(self) -> bool:
        return any(result.time_ns for result in self.results)

    @property
    def tools(self) -> set[str]:
        """The tools that measured the runs; PUBLISHED: nobody here did."""
        return {str(run.source.get("tool")) if run.source else TORCHCOLL for run in self.runs}

    def traps(self, compared: Collection[str] = ()) -> list[str]:
        """Settings that are traps for the backends, unless they are all ``compared``."""
        cases = [result.case for result in self.results]
        if self.only:
            dimension, value = self.only
            cases = [case for case in cases if str(getattr(case, dimension, value)) == value]
        backends = {case.backend for case in cases}
        events = [event for run in self.parts for event in run.events]
        texts = [
            str(event.get("message"))
            for event in events
            if event.get("kind") == "setting"
            and (not event.get("backends") or backends & set(event["backends"]))
            and not ((event.get("variables") or ()) and {*event["variables"]} <= {*compared})
        ]
        return list(dict.fromkeys(texts))

    @property
    def rehearsals(self) -> int:
        """How many runs shared one GPU among several ranks."""
        return sum(
            bool((run.header.get("spec") or {}).get("rehearse"))
            or any(event.get("kind") == "rehearsal" for event in run.events)
            for run in self.parts
        )

    @property
    def rehearsal_note(self) -> str:
        """A note on the rehearsals; '' if there are none."""
        return _REHEARSALS if self.rehearsals else ""

    def read_as(self, reading: Reading) -> str:
        """How the figures were computed from calls and ranks; '' if no case has one."""
        texts = (reading.of(r) for r in self.results if r.time_ns or r.reported)
        return " or ".join(dict.fromkeys(texts))

    def measured(self, metric: str, reading: Reading) -> list[Measured]:
        """Every case of every run, read for ``metric``."""
        rows: list[Measured] = []
        before = 0  # runs
        for number, run in enumerate(self.runs):
            parts = [(known_of(p), start_of(p), _iters_of(p)) for p, _ in run.all_runs()]
            libraries, doubts = summary.libraries_of(run), doubts_of(run)
            each = zip(run_numbers(run), run.results, libraries, doubts, strict=True)
            for part, result, library, doubt in sorted(each, key=itemgetter(0)):
                row = summary.summarise(result, reading.over_ranks, library=library)
                if reading.mean and result.time_ns:
                    row = _read_as_mean(row, result, reading.over_ranks)
                row = doubted(row, doubt)
                figure: float | None = getattr(row, METRICS[metric])
                # A duration of nothing has no logarithm; only a broken clock gives one.
                figure = figure if figure and 0 < figure < math.inf else None
                if row.statistic == summary.COLD_CALL:  # the next one may take a thousandth of it
                    figure = None
                facts, start, iters = parts[part]
                knows, place = not run.source, before + part
                rows += [Measured(row, result, number, figure, facts, knows, start, iters, place)]
            before += len(parts)
        return rows


def _iters_of(run: Run) -> str:
    """The number of calls that a run requested, or UNTIL_PRECISE; '' if it is not known."""
    spec = run.header.get("spec") or {}
    if run.source or "iters" not in spec:
        return ""
    return UNTIL_PRECISE if spec["iters"] is None else str(spec["iters"])


def start_of(run: Run) -> float | None:
    """When a run began, in seconds of UTC; None if it is not known."""
    text = str(run.header.get("start_utc") or "")
    try:
        return parse_utc(text).timestamp()
    except (ValueError, OverflowError):
        return None


def reading_of(base: Side, new: Side, over_ranks: str | None) -> Reading:
    """How samples are read: as means if a source has only means, over the ranks as it says."""
    reported = [r.reported for s in (base, new) for r in s.results if r.reported and not r.time_ns]
    how = over_ranks or "max"
    if over_ranks is None and reported:
        named = {r.over_ranks if r.over_ranks in summary.OVER_RANKS else "mean" for r in reported}
        how = named.pop() if len(named) == 1 else "mean"
    return Reading(how, mean=any(each.statistic == "mean" for each in reported))


def _read_as_mean(row: summary.Row, result: CaseResult, how: str) -> summary.Row:
    """The row with the mean over the calls in place of the median."""
    mean = summary.mean_time(result, row.clock, how)
    if not mean or not row.median_ns:
        return row
    scale = row.median_ns / mean
    names = [name for name in ("algbw_gbps", "busbw_gbps") if getattr(row, name) is not None]
    speeds = {name: getattr(row, name) * scale for name in names}
    return dataclasses.replace(row, statistic="mean", median_ns=mean, **speeds)


def unnamed_files(runs: Sequence[Run]) -> dict[int, str]:
    """{number of the run: its file} of runs that other tools measured, and that name neither host
    nor device: several such files may be of several machines. {} if there is one such file.
    """
    files = {
        number: os.path.basename(str(run.path or run.source.get("file") or ""))
        for number, run in enumerate(runs)
        if run.source and not any(m.get("host") or m.get("device_name") for m in run.members)
    }
    return files if len({*files.values()}) > 1 else {}


def unnamed_note(side: Side) -> str:
    """What the runs of a side leave open, '' if they name their machines."""
    count = len({*unnamed_files(side.runs).values()})
    which = f"{side.name}: " if side.name else ""
    return f"{which}{count} files name no device and may be of several machines" if count else ""


def known_of(run: Run) -> dict[str, str]:
    """Everything known of a run by name: environment, devices, labels."""
    facts = facts_of(run)
    devices = [str(m["device_name"]) for m in run.members if m.get("device_name")]
    if devices:
        facts["device_name"] = ", ".join(dict.fromkeys(devices))
    for member in run.members[:1]:
        for library in member.get("mapped") or []:
            if isinstance(library, dict) and library.get("version"):
                facts[f"mapped {library.get('name')}"] = str(library["version"])
    source = [run.source[name] for name in ("tool", "version") if run.source.get(name)]
    facts["source"] = " ".join(source) or ("imported" if run.source else "torchcoll")
    if run.source.get("environment"):
        facts[_ENVIRONMENT] = run.source["environment"]
    return facts | {f"label={name}": value for name, value in run.labels.items()}


def side(
    name: str,
    sources: Source | Sequence[Source],
    collective: str | None = None,
    ranks: int | None = None,
) -> Side:
    """A side made of a Run, a file, a folder, a glob, or several. Raises UsageError."""
    several = _several(name, sources)
    files: list[Source] = [each for source in several for each in expand(source)]
    if not files:
        raise UsageError(name, "no file", "at least one result file")
    paths = [str(source) for source in several if not isinstance(source, Run)]
    runs = _without_copies(load_all(files, collective=collective, ranks=ranks))
    return Side(name, runs, ", ".join(paths if len(paths) < 4 else [paths[0], "..."]))


def _several(name: str, sources: object) -> list[Source]:
    """Runs and paths, one or several. Raises UsageError for anything else."""
    several: list[Any] = [sources]
    if isinstance(sources, Iterable) and not isinstance(sources, (str, os.PathLike)):
        several = list(sources)
    for source in several:
        if not isinstance(source, (Run, str, os.PathLike)):
            expected = "a Run, a file, a folder, a glob, or a list of them"
            action = "torchcoll.run returns it on rank 0 alone." if source is None else ""
            raise UsageError(name or "side", type(source).__name__, expected, action)
    return several


def named_side(name: str, sources: Source | Sequence[Source]) -> Side:
    """As ``side``; ``label=PATH`` names it. Raises UsageError for two labels."""
    several = _several(name, sources)
    parts = [split_label(each) if isinstance(each, str) else ("", each) for each in several]
    labels = list(dict.fromkeys(label for label, _ in parts if label))
    if len(labels) > 1:
        raise UsageError(name, f"sides named {' and '.join(labels)}", "runs of one side")
    return side(labels[0] if labels else name, [path for _, path in parts])


def _without_copies(runs: Sequence[Run]) -> list[Run]:
    """Each run once, as a copy is no replicate. The run that stays has it as a problem."""
    kept: dict[object, Run] = {}
    for number, run in enumerate(runs):
        first = kept.setdefault(identity_of(run) or number, run)
        if first is not run:
            first.problems.append(f"{run.path or 'another run'} holds the same run: left out")
    return list(kept.values())


def identity_of(run: Run) -> object:
    """What only this run has: start and cold calls, or enough imported figures; or None."""
    if not run.source:
        start = run.header.get("start_utc")
        return (start, repr([r.cold_ns for r in run.results])) if start else None
    figures = [(r.case, r.reported.time_ns) for r in run.results if r.reported]
    return (run.ranks, *figures) if len({time for _, time in figures}) >= _TELLING else None


def _file_of(run: Run) -> str:
    return str(run.path or run.source.get("file") or "")


def check_together(base: Side, new: Side) -> None:
    """Raises UsageError if the two sides must not be compared."""
    if base.only and new.only and base.only != new.only:
        shared: set[str] = set()  # two backends of one run are two sides
        copies: dict[object, str] = {}
    else:
        shared = {os.path.realpath(run.path) for run in base.runs if run.path}
        copies = {identity_of(run): file for run in base.runs if (file := _file_of(run))}
        copies.pop(None, None)
    doubled = [
        (run, copies.get(identity_of(run), _file_of(run)))
        for run in new.runs
        if (_file_of(run) and identity_of(run) in copies)
        or (run.path and os.path.realpath(run.path) in shared)
    ]
    if doubled:
        run, copy = doubled[0]
        given = f"{_file_of(run)}, the same run as {copy}"
        action = "Name two different files or folders."
        if len({result.case.backend for result in run.results}) > 1:
            action = "Two backends of one run: backend:gloo=PATH backend:ccl=PATH."
        if len(doubled) == len(new.runs) > 1:
            given = f"the same {len(doubled)} runs as {base.name}"
        raise UsageError(new.name, given, f"a run that is not in {base.name}", action)
    rehearsals = base.rehearsals + new.rehearsals
    runs = len(base.parts) + len(new.parts)
    if 0 < rehearsals < runs:
        among = f"{rehearsals} rehearsals (--rehearse) among {runs} runs"
        action = "What shares one GPU says nothing about time."
        raise UsageError("runs", among, "real ones alone", action)


def values_by_name(side: Side) -> dict[str, list[str]]:
    """The different values of each fact that a run of the side has, in order."""
    return values_of_facts([known_of(run) for run in side.parts])


def values_of_facts(facts: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    """The different values of each fact, in order, including those of runs that lack it."""
    values: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for fact in facts for name in fact):
        if name.isupper() or name in SETTINGS:
            texts = [value_of_fact(fact, name) for fact in facts]
        else:
            texts = [fact.get(name, "unknown") for fact in facts]
        values[name] = list(dict.fromkeys(texts))
    return values


def value_of_fact(facts: Mapping[str, str], name: str) -> str:
    """A fact of a run; ``unset``; ``not known`` if the file cannot say. NCCL's log names every
    variable of NCCL_CHOICES that is set.
    """
    if name in facts:
        return facts[name]
    if name in SETTINGS:
        return SETTINGS[name]
    records_variables = name in NCCL_CHOICES and any(other.startswith("NCCL_") for other in facts)
    records_variables |= "torch" in facts or _ENVIRONMENT in facts
    return UNSET if records_variables or not name.isupper() else NOT_KNOWN
