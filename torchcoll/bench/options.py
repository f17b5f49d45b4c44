"""The command line on the ranks: flags -> Spec and what to do with the output. torchrun takes for
itself every long option that is a prefix of one of its own, even behind the module name.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from torchcoll.core.case import HOW, WHAT, Field
from torchcoll.core.errors import UsageError, choice, nearest_option
from torchcoll.core.spec import Spec
from torchcoll.core.units import format_size, parse_duration, whole_number
from torchcoll.core.variables import masked_labels

SOAK_ITERS = 20  # calls of a case in a round: in short rounds more calls are checked
FOLDER_ENDING = ".logs"  # of --library-log: RESULT.jsonl.logs lies beside RESULT.jsonl
FORMATS = ("table", "markdown", "csv", "json")
# Options that are not fields of Spec.
_TRAFFIC = Field(
    "traffic",
    "replay the calls of a training, as torchcoll.capture saved them (a file or a folder)",
    metavar="FILE",
)
_RUN = (
    Field(
        "soak",
        "repeat all cases for this long (90s, 30m, 8h) in rounds of 20 calls a case (see -n), "
        "and check a tenth of the calls; SIGUSR1 ends it",
        metavar="TIME",
    ),
    Field(
        "rendezvous_file",
        "meet in this file, in a folder that all hosts share, in place of MASTER_ADDR:MASTER_PORT",
        metavar="PATH",
    ),
)
_OUTPUT = (
    Field("output", "result file (default: torchcoll-runs/...jsonl)", short="-J"),
    Field("no_output", "write no result file", bool),
    Field("resume", "run the cases that FILE lacks", metavar="FILE"),
    Field(
        "library_log",
        "record the log of NCCL or oneCCL too: the table then has algorithms, but calls are slower",
        bool,
    ),
    Field("format", f"{', '.join(FORMATS)} (table)"),
    Field("quiet", "print no header and no progress", bool),
    Field("verbose", "print the phases of the start and the cost of measuring too", bool),
    Field("dry_run", "print the cases and run nothing", bool),
    Field("ranks", "number of ranks to assume with --dry-run or --backend fake"),
)


# nccl-tests' ways of saying how many GPUs and threads.
_OF_NCCL_TESTS = ("-g", "--ngpus", "-t", "--nthreads", "-p", "--parallel_init")


@dataclass(frozen=True)
class Other:
    """What is measured in place of the cases of a collective, with options of its own.

    name: in the name of the file. header: further fields of the file's header.
    """

    name: str
    options: object
    header: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """What one command line asks for beside the Spec.

    traffic: a file that rank 0 alone reads. spec: what stands in the command line.
    fields: those of the fields of spec that were given.
    """

    spec: Spec
    fields: Mapping[str, Any] = field(default_factory=dict)
    traffic: str | None = None
    output: str | None = None
    no_output: bool = False
    resume: str | None = None
    dry_run: bool = False
    ranks: int | None = None
    format: str = "table"
    quiet: bool = False
    verbose: bool = False
    library_log: bool = False
    rendezvous_file: str | None = None
    soak: str | None = None
    other: Other | None = None

    def asked(self, ranks: int) -> tuple[Spec, list[str]]:
        """The Spec, and what of a traffic is not measured as it was. Reads the file, on rank 0.
        Raises UnreadableError, and UsageError for sub-groups of another number of ranks.
        """
        if self.traffic is None:
            return self.spec, []
        from torchcoll.core.traffic import Traffic

        traffic = Traffic.load(self.traffic)
        count = len(traffic.notes)
        spec = traffic.spec(**self.fields)
        notes = traffic.problems + traffic.notes[count:]
        if ranks != traffic.ranks:
            if spec.groups:
                expected = f"{traffic.ranks} as in {self.traffic}, for the sub-groups {spec.groups}"
                raise UsageError("ranks", ranks, expected)
            notes.append(f"sizes of {traffic.ranks} ranks, measured on {ranks}")
        return spec, notes


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = nearest_option(message, self._option_string_actions, f"python -m {self.prog} --help")
        if message.startswith("unrecognized arguments: "):
            option = message.split()[2].partition("=")[0]
            if option in _OF_NCCL_TESTS:
                hint = "The launcher says how many ranks: torchrun --nproc-per-node N."
        raise UsageError(message, action=hint)


def _add(group: argparse._ArgumentGroup, entries: Iterable[Field]) -> None:
    defaults = {each.name: each.default for each in fields(Spec)}
    for entry in entries:
        text = entry.help.replace("{default}", _written(entry, defaults.get(entry.name)))
        flags = [flag for flag in (entry.short, f"--{entry.flag}") if flag]
        if entry.takes_value:
            metavar = entry.metavar or entry.flag.replace("-", "_").upper()
            group.add_argument(*flags, dest=entry.name, metavar=metavar, help=text)
        else:
            group.add_argument(*flags, dest=entry.name, action="store_true", help=text)


def _written(entry: Field, value: Any) -> str:
    """The default of a field, as the command line would have it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, (int, float)):
        return format_size(int(value)) if entry.is_size else f"{value:g}"
    return str(value)


def _parser(program: str, several: bool) -> argparse.ArgumentParser:
    p = Parser(
        prog=program,
        description="Measure a collective of torch.distributed on all ranks of this run.",
        epilog="Sizes: 8, 1K, 25M, 1.5G (K, M, G, T are powers of 1024). Start with torchrun, "
        "srun or mpiexec; without a launcher there is one rank.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # Spec and Options have the defaults
    )
    what = p.add_argument_group("what to measure")
    if several:
        _add(what, WHAT[:1])
        _add(what, (_TRAFFIC,))
    _add(what, WHAT[1:])
    how = p.add_argument_group("how to measure")
    _add(how, HOW)
    _add(how, _RUN)
    out = p.add_argument_group("output")
    _add(out, _OUTPUT[:3])
    out.add_argument(
        "--label", action="append", metavar="KEY=VALUE", help="a label to record in the result file"
    )
    _add(out, _OUTPUT[3:])
    return p


def parse(argv: Sequence[str], collective: str | None, program: str) -> Options:
    """The Options of a command line; ``collective`` None is the suite. Raises UsageError."""
    given = vars(_parser(program, collective is None).parse_args(list(argv)))
    for name in ("output", "resume", "backend", "device", "traffic"):
        if given.get(name) == "":  # `--output "$UNSET"` is not the default
            raise UsageError(name, "", "a name")
    fields: dict[str, Any] = {"collectives": collective} if collective else {}
    for entry in (*WHAT, *HOW):
        if entry.name in given:
            fields[entry.name] = _value(entry, given.pop(entry.name))
    if "label" in given:
        fields["labels"] = masked_labels(dict(_label(text) for text in given.pop("label")))
    ranks = given.pop("ranks", None)
    if ranks is not None:
        ranks = whole_number(number(ranks, int), "ranks", 1)
    choice(given.get("format", "table"), "format", FORMATS)
    if "soak" in given and not fields.keys() & {"iters", "precision", "max_time_s"}:
        fields["iters"] = SOAK_ITERS
    spec = Spec(**{"collectives": "all", **fields})
    options = Options(spec=spec, fields=fields, ranks=ranks, **given)
    if ranks is not None and spec.communicates and not options.dry_run:
        action = "The launcher sets the number of ranks: torchrun --nproc-per-node N."
        raise UsageError("ranks", ranks, "--dry-run or --backend fake with it", action)
    if options.dry_run and options.resume:
        raise UsageError("resume", f"{options.resume} with --dry-run", "one of them")
    if options.soak is not None:
        parse_duration(options.soak, "soak")
        if spec.iters == 0:
            raise UsageError("soak", f"{options.soak} with -n 0", "steady calls to repeat")
        for name, value in (("resume", options.resume), ("traffic", options.traffic)):
            if value:
                raise UsageError("soak", f"{options.soak} with --{name}", "one of them")
    if options.no_output and options.output:
        raise UsageError("output", f"--output {options.output} and --no-output", "one of them")
    if options.no_output and options.library_log:
        action = "The log lies next to the result file."
        raise UsageError("library-log", "--library-log and --no-output", "one of them", action)
    return options


def number(text: str, kind: type) -> Any:
    """The number, or the text as it is: Spec refuses it with the field's own words."""
    try:
        return kind(text)
    except ValueError:
        return text


def _value(entry: Field, given: Any) -> Any:
    if entry.texts:
        choice(given, entry.flag, entry.texts)
        return entry.texts[given]
    if entry.kind in (int, float) and not entry.is_size:
        return number(given, entry.kind)
    return given


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError("label", text, "KEY=VALUE, such as kernel=6.8.0-generic")
    return key, value
