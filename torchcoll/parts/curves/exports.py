"""Export the winners of ``algorithms``: variables, a tuner file of NCCL or selections of oneCCL.

Between two measured sizes with different winners the setting changes at their geometric mean:
nothing was measured in between, and this size has the same ratio to both. The winner of the
smallest size also applies below it, and the winner of the largest size above it.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcoll.core.errors import UsageError
from torchcoll.core.units import MAX_BYTES, format_size
from torchcoll.core.variables import exports, named
from torchcoll.libraries.known_variables import FORCING
from torchcoll.libraries.nccl import forced as nccl_forced
from torchcoll.libraries.nccl.algorithms import ALGORITHMS, FUNCTIONS, PROTOCOLS
from torchcoll.libraries.oneccl import algorithms as oneccl
from torchcoll.libraries.oneccl.algorithms import selection
from torchcoll.parts.curves.forced_cells import requested

if TYPE_CHECKING:
    from torchcoll.parts.curves.algorithms import Algorithms
    from torchcoll.parts.curves.contest import CellAt, Table, WinnerRange


_LOSSES = (
    "lost by it: the library's own choice, also for sizes, types and communicators (other groups, "
    "numbers of ranks) that were not measured"
)


def limits(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int | None]]:
    """(first, last byte) of each setting, from the smallest and largest size where it won.

    There are no gaps: the first setting begins at 0, and the last has no end (None).
    """
    middles = [math.isqrt(a[1] * b[0]) for a, b in itertools.pairwise(spans)]
    return list(zip([0, *(m + 1 for m in middles)], [*middles, None], strict=True))


def variables(result: Algorithms) -> dict[str, str]:
    """The variables of the cell that wins at all sizes, for each collective.

    Raises UsageError if the winner changes with the size, because a variable has one value.
    """
    merged: dict[str, list[str]] = {}
    for table in _unambiguous_tables(result, ("collective",)):
        collective, ranges = table.common["collective"], table.ranges
        if len(ranges) > 1:
            of_oneccl = any(n.startswith("CCL_") for r in ranges for n in r.winner.settings)
            option = "--export-oneccl" if of_oneccl else "--export-tuner FILE"
            raise UsageError(
                f"export-env of {collective}",
                _ranges_text(ranges),
                "one winner at all sizes",
                f"By size: {option}.",
            )
        own_variables = {*nccl_forced.VARIABLES, *oneccl.variables_of(collective)}
        for name, value in ranges[0].winner.settings.items():
            if name in FORCING and name not in own_variables:
                continue  # it forces another collective of oneCCL
            if name in nccl_forced.VARIABLES:
                value = _nccl_value(value, table)
            merged.setdefault(name, []).append(value)
    values = {name: list(dict.fromkeys(several)) for name, several in merged.items()}
    for name, several in values.items():
        if len(several) > 1 and not (
            name in nccl_forced.VARIABLES and all(":" in v for v in several)
        ):
            raise UsageError(
                f"export-env {name}", " and ".join(several), "one value for all collectives",
                "Narrow it: --filter collective=all_reduce.",
            )  # fmt: skip
    return {name: ";".join(several) for name, several in values.items()}


def _nccl_value(value: str, table: Table) -> str:
    """The value for this collective: from NCCL 2.24 on prefixed by the function, because without
    the prefix the setting would also apply to PyTorch's barrier.
    """
    function = FUNCTIONS.get(table.common["collective"], "").lower()
    for clause in value.split(";"):
        name, colon, value_text = clause.rpartition(":")
        if name.lower() == function or not colon:
            with_function = bool(colon) or nccl_forced.version_key(table.library or "") >= (2, 24)
            return f"{function}:{value_text.lower()}" if with_function and function else value_text
    return value


def selections(result: Algorithms) -> dict[str, str]:
    """``CCL_<COLLECTIVE>`` by size. Raises UsageError for winners that it cannot express."""
    merged: dict[str, str] = {}
    for table in _unambiguous_tables(result, ("collective",)):
        collective, ranges = table.common["collective"], table.ranges
        names = oneccl.variables_of(collective)
        spans = [(winner_range.low_bytes, winner_range.high_bytes) for winner_range in ranges]
        clauses = []
        for winner_range, (low, high) in zip(ranges, limits(spans), strict=True):
            algorithm = requested(winner_range.winner.settings, collective)[0]
            if (
                not names
                or algorithm is None
                or set(winner_range.winner.settings) & set(nccl_forced.VARIABLES)
            ):
                one_algorithm = f"cells that set {names[0]} to one algorithm"
                raise UsageError(
                    "export-oneccl", winner_range.winner.name,
                    one_algorithm if names else "a collective of oneCCL",
                )  # fmt: skip
            clauses.append((algorithm, low, high))
        if len(clauses) > 1 and collective not in oneccl.SIZED:
            raise UsageError(
                f"export-oneccl of {collective}", _ranges_text(ranges),
                f"one winner at all sizes, or one of {', '.join(oneccl.SIZED)}",
                "Which size oneCCL goes by there is not documented.",
            )  # fmt: skip
        settings_by_range = [
            {n: v for n, v in winner_range.winner.settings.items() if n not in FORCING}
            for winner_range in ranges
        ]
        if any(
            other_settings != settings_by_range[0] or merged.get(n, v) != v
            for other_settings in settings_by_range
            for n, v in other_settings.items()
        ):
            raise UsageError(
                "export-oneccl", _ranges_text(ranges), "winners that agree in all other variables"
            )
        merged |= settings_by_range[0] | dict.fromkeys(names, selection(clauses))
    return merged


def export_lines(result: Algorithms, values: Mapping[str, str], by_size: bool) -> list[str]:
    """A shell snippet: the variables, with comments on their origin and on what they cost."""
    lines = [f"# {text}" for text in _origin(result)]
    lines.append(f"# {_LOSSES}")
    if by_size:
        lines.append("# between two measured sizes: changed at their geometric middle")
    return [*lines, *exports(named(values))]


def tuner_text(result: Algorithms) -> str:
    """The content of the file of NCCL's tuner plugin.

    Raises UsageError if the algorithm, the protocol or the number of channels is not known.
    """
    rules: list[TunerRule] = []
    for table in _unambiguous_tables(result, ("collective", "ranks")):
        name = table.common["collective"]
        if name not in FUNCTIONS:
            raise UsageError("export-tuner", name, f"one of {', '.join(FUNCTIONS)}")
        spans: list[tuple[int, int]] = []
        chosen: list[tuple[str, str, int]] = []
        for size_bytes, at in _winning_cells(table):
            setting = _setting(table, at, size_bytes)
            if chosen and chosen[-1] == setting:
                spans[-1] = (spans[-1][0], size_bytes)
            else:
                spans.append((size_bytes, size_bytes))
                chosen.append(setting)
        scope = (table.hosts or None, table.common.get("ranks"))
        rules += [
            TunerRule(FUNCTIONS[name], low, high, *setting, *scope)
            for (low, high), setting in zip(limits(spans), chosen, strict=True)
        ]
    between = "Between two measured sizes the line changes at their geometric middle."
    return tuner_csv(rules, [*_origin(result), between])


def _winning_cells(table: Table) -> Iterator[tuple[int, CellAt]]:
    """Yields each measured size with the winner of its range."""
    for winner_range in table.ranges:
        for size in table.sizes:
            if winner_range.low_bytes <= size.size_bytes <= winner_range.high_bytes:
                for at in (size.auto, *size.cells):
                    if at and at.cell.settings == winner_range.winner.settings and at.values:
                        yield size.size_bytes, at


def _setting(table: Table, at: CellAt, size_bytes: int) -> tuple[str, str, int]:
    """(algorithm, protocol, channels) that ran according to the log, or as requested without a log.

    Raises UsageError if one of them is not known.
    """
    logged = [choice for choice in at.choices if choice.source == "log"]
    labels = {(choice.algorithm, choice.protocol) for choice in logged}
    requested_names = requested(at.cell.settings, table.common["collective"])
    algorithm, protocol = labels.pop() if len(labels) == 1 else requested_names
    subject = f"export-tuner: {at.cell.name} at {format_size(size_bytes)}"
    if algorithm is None or not protocol:
        missing = "algorithm" if algorithm is None else "protocol"
        raise UsageError(
            subject,
            f"no known {missing}",
            "both algorithm and protocol",
            "Force both, or keep the log: --library-log.",
        )
    if algorithm not in ALGORITHMS:
        raise UsageError(subject, algorithm, f"what a tuner can choose: {', '.join(ALGORITHMS)}")
    channel_counts = [choice.channels for choice in logged if choice.channels]
    if not channel_counts:
        raise UsageError(
            subject,
            "no known number of channels",
            "one in the log",
            "Measure with --library-log (NCCL 2.24 or later).",
        )
    return algorithm, protocol, max(channel_counts)


def _unambiguous_tables(result: Algorithms, names: Sequence[str]) -> list[Table]:
    """The tables with winners. Raises UsageError if the setting cannot tell two of them apart.

    names: the fields of a case that the setting can distinguish.
    """
    tables = [table for table in result.tables if table.ranges]
    for table in tables:
        matching = [t for t in tables if all(t.common[n] == table.common[n] for n in names)]
        if len(matching) > 1:
            values = {n: dict.fromkeys(str(t.common[n]) for t in matching) for n in table.common}
            several = {n: each for n, each in values.items() if len(each) > 1}
            differ = [f"{n} ({', '.join(each)})" for n, each in several.items()]
            raise UsageError(
                f"export of {table.common['collective']}",
                f"{len(matching)} tables that differ in {' and '.join(differ)}",
                "one: the setting cannot tell them apart",
                "Narrow it: --filter dtype=float32,in_place=yes,ranks=8.",
            )
    return tables


def _ranges_text(ranges: Sequence[WinnerRange]) -> str:
    return ", ".join(f"{each.winner.name} at {each.span}" for each in ranges)


def _origin(result: Algorithms) -> list[str]:
    """Lines on where each setting comes from, and how AUTO compares there."""
    lines = ["By torchcoll algorithms."]
    for table in result.tables:
        if not table.ranges:
            continue
        names = ("collective", "dtype", "op", "ranks", "backend")
        facts = [f"{table.common[n]}{' ranks' * (n == 'ranks')}" for n in names if table.common[n]]
        lines.append(f"{', '.join(facts)}, {table.library or 'library unknown'}: "
                     f"{_ranges_text(table.ranges)}")  # fmt: skip
        if statement := table.statement(result.threshold):
            lines.append(statement)
        winners = [each.winner.name for each in table.ranges]
        bad = [name for name in winners if name in table.unchecked]
        if bad:
            lines.append(f"NOT VERIFIED: {', '.join(dict.fromkeys(bad))}")
        disobeying = {
            at.cell.name: at.disobeyed[0].label for _, at in _winning_cells(table) if at.disobeyed
        }
        lines += [f"NOT AS ASKED: {name} ran {label}" for name, label in disobeying.items()]
    return lines


# The CSV file of NCCL's example tuner plugin (in its sources: ext-tuner/example, from 2.30 on
# plugins/tuner/example). The plugin uses the first line that matches. Both ends of a range of sizes
# belong to it; -1 is any number of nodes or ranks. The plugin silently reads a name that it does
# not know as allreduce, ring or simple, so only names that it knows are written. Calls with
# ``channels=-1``, and calls that no line matches, run on ONE channel, whatever its README says
# (plugin.c of 2.27.5 to 2.30.7). Hence every line has a number of channels, and the last lines
# match all other calls.

MOST_CHANNELS = 64  # NCCL's MAXCHANNELS
_WIDTH = 98  # the plugin reads 255 characters of a line
_HEAD = (
    "For the example tuner plugin in NCCL's sources:",
    "NCCL_TUNER_PLUGIN=<path of libnccl-tuner-example.so> NCCL_TUNER_CONFIG_FILE=<this file>",
    "Plugin versions: 2.30.3 and later, with any NCCL from 2.28. In those of 2.27.5 to 2.29.7 a",
    "line that matches reads invalid memory: ranks die of SIGSEGV. Earlier ones read no such file.",
    "2.28.3 and later also change constants of NCCL's cost model (Blackwell), with any file.",
    "Sizes: bytes, both ends inside; for allgather and reducescatter those of all ranks together.",
    "The first line that matches counts. What none matches would run on one channel.",
)
_REST = "Not measured: without these lines other calls would run on one channel."


@dataclass(frozen=True)
class TunerRule:
    """One line of the file.

    function: NCCL's name (AllReduce).
    low, high: sizes in bytes, both included; high None is no end.
    algorithm, protocol: names as in NCCL's log (NVLS_TREE, LL).
    nodes, ranks: None is any number.
    """

    function: str
    low: int
    high: int | None
    algorithm: str
    protocol: str
    channels: int
    nodes: int | None = None
    ranks: int | None = None

    def line(self) -> str:
        """The text of the line. Raises ValueError for a name that the plugin would misread."""
        if (
            self.function not in FUNCTIONS.values()
            or self.algorithm not in ALGORITHMS
            or self.protocol not in PROTOCOLS
            or not 1 <= self.channels <= MOST_CHANNELS
        ):
            raise ValueError(f"no line of a tuner file: {self}")
        fields = (
            self.function.lower(),
            self.low,
            MAX_BYTES if self.high is None else self.high,
            self.algorithm.lower(),
            self.protocol.lower(),
            self.channels,
            -1 if self.nodes is None else self.nodes,
            -1 if self.ranks is None else self.ranks,
        )
        return ",".join(map(str, fields))


def tuner_csv(rules: Sequence[TunerRule], comments: Sequence[str]) -> str:
    """The content of the file: comments, the rules, and last Ring/Simple for every function."""
    channels = max(rule.channels for rule in rules)
    fallbacks = [
        TunerRule(name, 0, None, "RING", "SIMPLE", channels) for name in FUNCTIONS.values()
    ]
    wrapped = [piece for text in (*_HEAD, *comments) for piece in textwrap.wrap(text, _WIDTH)]
    lines = [f"# {text}" for text in wrapped]
    lines.append("# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks")
    lines += [rule.line() for rule in rules]
    return "\n".join([*lines, f"# {_REST}", *(rule.line() for rule in fallbacks), ""])
