"""Two sides compared case by case: what differs, how much, and whether that is evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import overload

from torchcoll.core import errors
from torchcoll.core.answer import Answer
from torchcoll.core.case import value_text
from torchcoll.core.display import Displayed, as_one_line
from torchcoll.core.parts import first_answer
from torchcoll.core.summary import OVER_RANKS
from torchcoll.core.traffic import Traffic
from torchcoll.core.units import format_size
from torchcoll.questions.comparison import prediction, results
from torchcoll.reading.inputs import Source
from torchcoll.stats import differences
from torchcoll.stats.across_hardware import Profile, Start, profile, start
from torchcoll.stats.differences import Difference
from torchcoll.stats.filters import Condition, conditions
from torchcoll.stats.matching import NAMES, Pair, pairs_of, sizes_of_sides, value_of
from torchcoll.stats.ratios import Ratio, geometric
from torchcoll.stats.side_faults import SideFaults, cut_runs, fault_runs, side_faults
from torchcoll.stats.sides import (
    METRICS,
    Measured,
    Reading,
    Side,
    check_together,
    named_side,
    reading_of,
    start_of,
    values_by_name,
)
from torchcoll.stats.statistics import (
    FEWEST,
    Outlier,
    StartModes,
    common_share,
    side_ratio,
    start_modes,
)

THRESHOLD = 0.02  # a change below it is nothing that anyone would act on
_LONGEST_NAME = 40
_ENDINGS = {"", ".jsonl", ".json", ".txt", ".log", ".out", ".csv", ".md"}


@dataclass(repr=False)
class Comparison(Displayed):
    """The result of ``compare``.

    - looks: judged by ``versus``, after every round.
    - profiles: on different hardware, (first pair, base, new) of each table.
    - settings: if no case has a ratio, what differs or is known of one side only.
    - left_out: the files of the outliers. outliers: the same runs.
    - starts: the first calls of base and new, if each has one backend.
    - modes: set if runs start in one of two modes.
    - errors: of a model, over all cases and over each scenario.
    - case_differences: without ``settings``, the dimensions of the cases that differ.
    """

    base: Side
    new: Side
    metric: str
    threshold: float
    reading: str
    rows: list[results.Compared]
    differences: list[Difference]
    notes: list[str] = field(default_factory=list)
    looks: bool = False
    by: tuple[str, ...] = ()
    profiles: list[tuple[Pair, Profile, Profile]] = field(default_factory=list)
    settings: list[Difference] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    outliers: tuple[Outlier, ...] = ()
    starts: tuple[Start, ...] = ()
    modes: StartModes | None = None
    errors: list[prediction.ScenarioError] = field(default_factory=list)
    case_differences: list[Difference] = field(default_factory=list)

    @cached_property
    def answer(self) -> Answer:
        """Whether the new side may replace the base: its faults, what changed, and how sure."""
        from torchcoll.questions.comparison.conclusion_show import answer_of

        return answer_of(self)

    def __repr__(self) -> str:
        return as_one_line(f"Comparison: {self.answer.headline}")

    @cached_property
    def side_names(self) -> tuple[str, str]:
        """What the sides are called in sentences and heads: ``gloo`` of ``backend:gloo``.

        Sides without names are called after their files or folders if these differ.
        """
        sides = (self.base, self.new)
        names = [errors.one_line(side.only[1] if side.only else side.name) for side in sides]
        if names == ["base", "new"]:
            paths = [PurePath(side.where) for side in sides]
            files = [errors.one_line(path.name.removesuffix(".gz")) for path in paths]
            stems = [file.removesuffix(PurePath(file).suffix) for file in files]
            if stems[0] != stems[1] and {PurePath(file).suffix for file in files} <= _ENDINGS:
                files = stems
            short = all(0 < len(file) <= _LONGEST_NAME for file in files)
            one_path = not any(", " in side.where for side in sides)
            if files[0] != files[1] and short and one_path and not set("".join(files)) & set("*?["):
                names = files
        if names[0] == names[1]:
            names = [errors.one_line(side.name) for side in sides]
        return names[0], names[1]

    @cached_property
    def _item_names(self) -> dict[int, str]:
        return {
            id(row): name for row, name in zip(self.rows, results.names_of(self.rows), strict=True)
        }

    def name_of(self, item: results.Compared) -> str:
        """The name of one of ``rows``: what varies among them."""
        return self._item_names[id(item)]

    @cached_property
    def faults(self) -> tuple[SideFaults, SideFaults]:
        """What of the base and of the new side is in no figure.

        A prediction, and a side on other hardware, lacks no case: nobody asked for the same ones.
        """
        lacking = not self.errors and not self.across_hardware
        sides = []
        for number, side in enumerate((self.base, self.new)):
            cases, missing, of_other = [], [], 0
            for row in self.rows:
                mine, other = (row.pair.base, row.pair.new)[:: -1 if number else 1]
                of_other += bool(other)
                cases.append((self.name_of(row), mine))
                has_none = not any(m.row.is_right for m in mine) and not fault_runs(mine)
                if lacking and has_none and any(m.figure and m.row.is_right for m in other):
                    missing.append(self.name_of(row) or row.row.collective)
            factors = [each.factor for each in self.outliers if each.run[0] == number]
            speeds = [results.speed_up(factor, self.more_is_faster) for factor in factors]
            name = self.side_names[number]
            faults = side_faults(name, len(side.runs), cases, missing, speeds, cut_runs(side))
            sides.append(replace(faults, cases=of_other))
        return sides[0], sides[1]

    @property
    def across_hardware(self) -> bool:
        """Whether the sides can only be shown next to each other: no case has a ratio."""
        return bool(self.profiles) and not self.ranked

    @property
    def one_backend(self) -> bool:
        """Whether the first calls of both sides are of one backend."""
        return len({start.backend for start in self.starts}) == 1

    @property
    def tally(self) -> dict[str, int]:
        """The number of cases with each result."""
        return dict(Counter(row.result for row in self.rows))

    @property
    def more_is_faster(self) -> bool:
        return self.metric != "time"

    @cached_property
    def over_all(self) -> Ratio | None:
        """new / base of the mean over the tested cases, from the runs that have all of them.

        None for a single case, for fewer than FEWEST runs, and for ``versus``, whose looks its
        interval does not count.
        """
        tested = [row.pair for row in self.rows if row.judged.p_value is not None]
        if len(tested) < 2 or self.looks:
            return None
        orders, out = (
            results.Orders([row.pair for row in self.rows]),
            [o.run for o in self.outliers],
        )
        cases = [results.figures_of(pair, orders).without(out) for pair in tested]
        by_run = [dict(zip(case.runs, case.values, strict=True)) for case in cases]
        first = cases[0].without([r for r in cases[0].runs if not all(r in of for of in by_run)])
        means = tuple(geometric([of[run] for of in by_run]) or 0.0 for run in first.runs)
        mean = replace(first, values=means)
        if min(len(mean.of(side)) for side in (0, 1)) < FEWEST:
            return None
        ratio = side_ratio(mean, common_share(cases))
        return ratio if ratio.p_value is not None else None

    @property
    def ranked(self) -> list[results.Compared]:
        """The cases with a ratio, the one that slowed down most first."""
        with_ratio = [row for row in self.rows if row.ratio is not None]
        return sorted(with_ratio, key=lambda row: row.ratio or 0, reverse=not self.more_is_faster)

    @property
    def judged(self) -> list[results.Judged]:
        return [row.judged for row in self.rows]

    @property
    def one_after_the_other(self) -> bool:
        """Whether a case was tested of which one side was measured before the other."""
        return any(case.p_value is not None and not case.interleaved for case in self.judged)


@overload
def compare(base: Traffic, new: Traffic) -> Displayed: ...


@overload
def compare(
    base: Source | Side | Sequence[Source],
    new: Source | Side | Sequence[Source] | None = None,
    *,
    threshold: float = THRESHOLD,
    metric: str = "time",
    over_ranks: str | None = None,
    filter: str | Sequence[str] = (),
    by: str | Sequence[str] = (),
) -> Comparison: ...


def compare(
    base: Traffic | Source | Side | Sequence[Source],
    new: Traffic | Source | Side | Sequence[Source] | None = None,
    *,
    threshold: float = THRESHOLD,
    metric: str = "time",
    over_ranks: str | None = None,
    filter: str | Sequence[str] = (),
    by: str | Sequence[str] = (),
) -> Comparison | Displayed:
    """``new`` against ``base``: Runs, files, folders or globs; several are the runs of a side.
    As on the command line ``label=PATH`` names a side, and of ``backend:gloo=PATH`` only those
    cases count.

    threshold: changes below it are the same (0.02 = 2 %). metric: time, algbw, busbw. over_ranks:
    max (the default), mean, min, rank0. filter: conditions such as ``collective=all_reduce`` and
    ``size>=1M``. by: names that cases must agree in to be compared.

    Two Traffics, such as captures of a training, are compared step by step, as ``torchcoll compare
    FOLDER FOLDER`` does: what they send, how long it takes and which rank the others wait for. The
    result is a TrafficComparison, and there are no options.

    Raises UsageError for choices that do not exist, for sides without a common case, and for
    rehearsals among real runs, and for a Traffic with anything but another one; UnreadableError
    for a file.
    """
    if isinstance(base, Traffic) and isinstance(new, Traffic):
        if (threshold, metric, over_ranks, filter, by) != (THRESHOLD, "time", None, (), ()):
            raise errors.UsageError("compare", "options", "none with captures of a training")
        compared: Displayed | None = first_answer("answers", "compares", base, new)
        if compared is None:
            action = "This needs torchcoll's part training."
            raise errors.UnavailableError("training", "none", "it installed", action)
        return compared
    for name, side in (("base", base), ("new", new)):
        if isinstance(side, Traffic):
            action = "Load both: torchcoll.compare(Traffic.load(A), Traffic.load(B))."
            raise errors.UsageError(name, "a Traffic", "a Traffic on both sides or on none", action)
    assert not isinstance(base, Traffic) and not isinstance(new, Traffic)
    if not (isinstance(threshold, (int, float)) and 0 < threshold < 1):
        raise errors.UsageError("threshold", threshold, "above 0 % and below 100 %")
    if new is None:
        side_of(base, "base")  # says what is wrong with it
        action = "The folder of a versus: torchcoll compare FOLDER."
        raise errors.UsageError("compare", "one side", "two: base and new", action)
    sides = matched(base, new, metric, over_ranks, filter, by)
    cases, separate = results.measured_cases(sides.pairs, sides.base, sides.new, metric)
    judged = results.judge(cases, threshold, metric != "time")
    return comparison_of(sides, judged, separate, threshold)


def side_of(sources: Source | Side | Sequence[Source], name: str) -> Side:
    return sources if isinstance(sources, Side) else named_side(name, sources)


@dataclass(frozen=True)
class Matched:
    """Two sides and their cases, not judged yet. by: as in ``compare``."""

    base: Side
    new: Side
    metric: str
    reading: str
    pairs: Sequence[Pair]
    by: tuple[str, ...] = ()


def matched(
    base: Source | Side | Sequence[Source],
    new: Source | Side | Sequence[Source],
    metric: str = "time",
    over_ranks: str | None = None,
    filter: str | Sequence[str] = (),
    by: str | Sequence[str] = (),
) -> Matched:
    """As ``compare``, which raises what this raises."""
    errors.choice(metric, "metric", METRICS)
    if over_ranks is not None:
        errors.choice(over_ranks, "over-ranks", OVER_RANKS)
    ours, theirs = side_of(base, "base"), side_of(new, "new")
    check_together(ours, theirs)
    names = tuple(name.strip() for name in errors.text_items(by, "by")) if by != "" else ()
    available = {*NAMES, *values_by_name(ours), *values_by_name(theirs)}
    for name in names:
        if name not in available:
            facts = sorted(available - set(NAMES))
            expected = f"one of {', '.join(NAMES)}, or {', '.join(facts)}"
            raise errors.UsageError("by", name, expected, errors.did_you_mean(name, available))
    if not names and prediction.has_model(ours, theirs):
        names = prediction.scenarios(ours, theirs)
    pairs, reading = _pairs_of(ours, theirs, metric, over_ranks, conditions(filter), names)
    return Matched(ours, theirs, metric, reading, pairs, names)


def comparison_of(
    sides: Matched,
    judged: Sequence[results.Judged],
    outliers: Sequence[Outlier],
    threshold: float,
    looks: bool = False,
) -> Comparison:
    """The comparison of judged cases, those of ``compare`` or, with looks, of ``versus``."""
    base, new, pairs, metric = sides.base, sides.new, sides.pairs, sides.metric
    out = [outlier.run for outlier in outliers]
    rows = [
        results.compared_row(pair, case, metric != "time", out)
        for pair, case in zip(pairs, judged, strict=True)
    ]
    unlike = any(row.judged.unlike for row in rows)
    across = unlike and all(row.ratio is None for row in rows)
    settings = differences.all_differences(base, new, pairs) if across else []
    dimensions = [d for d in differences.dimensions_of(pairs) if d.base and d.new]
    chosen_by = _chosen_by(base, new)
    paths = [
        str(side.runs[number].path or f"run {number + 1} of {side.name}")
        for side, number in (((base, new)[which], number) for which, number in out)
    ]
    matched = [results.figures_of(pair) for pair in pairs if pair.matched]
    return Comparison(
        base,
        new,
        metric,
        threshold,
        sides.reading,
        rows,
        differences=[
            *differences.differences_of(base, new),
            *differences.method_differences(pairs),
        ],
        notes=[
            *map(results.outlier_text, paths, outliers),
            *_notes(sides, rows, bool(settings)),
        ],
        looks=looks,
        by=sides.by,
        profiles=_profiles(rows, base, new) if unlike else [],
        settings=settings,
        left_out=paths,
        outliers=tuple(outliers),
        starts=_starts(pairs, base, new),
        modes=start_modes(matched, more_is_faster=metric != "time"),
        errors=prediction.scenario_errors(base, new, rows),
        case_differences=[] if settings else [d for d in dimensions if d.name != chosen_by],
    )


def _pairs_of(
    base: Side,
    new: Side,
    metric: str,
    over_ranks: str | None,
    wanted: Sequence[Condition],
    by: Sequence[str],
) -> tuple[list[Pair], str]:
    reading = reading_of(base, new, over_ranks)
    only = [conditions([f"{s.only[0]}={s.only[1]}"] if s.only else []) for s in (base, new)]
    sides = []
    for side, terms in zip((base, new), only, strict=True):
        cases = side.measured(metric, reading)
        if side.only:
            _check_only(side, side.only, terms, cases)
        sides.append([m for m in cases if all(c.holds(m) for c in [*wanted, *terms])])
    ours, theirs = sides
    asked = [term.name for side_filters in only for term in side_filters]
    if wanted and not (ours or theirs):
        texts = ",".join(c.text for c in wanted)
        raise errors.UsageError("filter", texts, "conditions that some case fulfils")
    return pairs_of(ours, theirs, by, asked), _reading_text(base, new, reading)


def _check_only(
    side: Side, only: tuple[str, str], terms: Sequence[Condition], cases: Sequence[Measured]
) -> None:
    """Raises UsageError if no case has the value that the side is named after."""
    if not cases or any(all(term.holds(case) for term in terms) for case in cases):
        return
    name, value = only
    values = dict.fromkeys(
        format_size(case.row.size_bytes_requested)
        if name == "size"
        else value_text(name, value_of(case, name))
        for case in cases
    )
    where = errors.literal(side.where or "that side")
    raise errors.unknown(name, value, values, f"a value that some case of {where} has: {{}}")


def _reading_text(base: Side, new: Side, reading: Reading) -> str:
    ours, theirs = base.read_as(reading), new.read_as(reading)
    if ours == theirs or not (ours and theirs):
        return ours or theirs or str(reading)
    return f"{base.name}: {ours}; {new.name}: {theirs}"


def _profiles(
    rows: Sequence[results.Compared], base: Side, new: Side
) -> list[tuple[Pair, Profile, Profile]]:
    """The limits of each side in each table, from all sizes of that side."""
    profiles = []
    for table in results.tables_of([row for row in rows if row.matched]):
        pair = table[0].pair
        ours, theirs = sizes_of_sides(pair, [row.pair for row in rows])
        profiles.append((pair, profile(base, ours), profile(new, theirs)))
    return profiles


def _starts(pairs: Sequence[Pair], base: Side, new: Side) -> tuple[Start, ...]:
    """The first calls of both sides, each of which has one backend."""
    ours = start(base, (m.result.case.backend for pair in pairs for m in pair.base))
    theirs = start(new, (m.result.case.backend for pair in pairs for m in pair.new))
    return (ours, theirs) if ours and theirs else ()


def _chosen_by(base: Side, new: Side) -> str:
    """The dimension whose values name both sides, such as backend; '' if there is none."""
    names = {side.only[0] if side.only else "" for side in (base, new)}
    return names.pop() if len(names) == 1 else ""


def _notes(sides: Matched, rows: Sequence[results.Compared], in_settings: bool) -> list[str]:
    """What a reader must know of the figures. in_settings: whether what differs is a table."""
    base, new, pairs = sides.base, sides.new, sides.pairs
    notes = differences.assumed_lines(pairs)
    if not in_settings:
        notes = [
            *differences.dimension_lines(pairs, _chosen_by(base, new)),
            *notes,
            *differences.unknown_facts(base, new),
        ]
    reported = [r.reported for s in (base, new) for r in s.results if r.reported and not r.time_ns]
    if any(each.statistic == "mean" and not each.one_cold_call for each in reported):
        samples = base.keeps_samples or new.keeps_samples
        like = "; samples are read as means too" if samples else ""
        notes.append(f"some figures are means, and no single calls are known{like}")
    notes += differences.mixture_lines(base, new, sides.by)
    if base.rehearsals:
        notes.append("all runs are rehearsals: ranks shared a GPU, and no time means anything")
    # Ratios of cases that communicate nothing are of the cost of a call.
    with_ratio = [row.row for row in rows if row.judged.ratio]
    if any(row.ranks == 1 for row in with_ratio):
        notes.append("one rank, no communication: the times are of the calls alone")
    for name in dict.fromkeys(row.backend for row in with_ratio if not row.communicates):
        notes.append(f"{name} backend: nothing was communicated, the times are of the calls alone")
    matched = [pair for pair in pairs if pair.matched]
    base_checks = {m.row.verified for pair in matched for m in pair.base}
    new_checks = {m.row.verified for pair in matched for m in pair.new}
    if new_checks == {"unchecked"} and base_checks - {"unchecked"}:
        notes.append(f"no result of {new.name} was verified; those of the base were")
    starts = {start_of(part) for side in (base, new) for part in side.parts}
    if None in starts and any(row.judged.p_value is not None for row in rows):
        notes.append(results.NO_STARTS)
    return notes
