"""The console command ``torchcoll``. Each sub-command is a function in COMMANDS.

Errors are one line on stderr and the exit code of the exception (DESIGN section 8). What a
sub-command needs is imported inside it: ``--help`` and errors cost nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TextIO

from torchcoll import __version__
from torchcoll.core.errors import ExitCode, TorchcollError, UnreadableError, UsageError

if TYPE_CHECKING:
    from torchcoll.core.result import Run

_INTERRUPTED = 128 + 2  # SIGINT
_TO_MEASURE = "To measure: torchrun --nproc-per-node N -m torchcoll.allreduce"
_BROKEN_PIPE = 128 + 13  # SIGPIPE: what other commands end with when `head` has read enough


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are UsageErrors: one line, no usage text before it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].lower()}{message[1:]}", action=f"See {self.prog} --help.")


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="result files, or output of other tools")
    add(
        "--reference",
        metavar="FILE",
        help="beside the bandwidths those of a file of points (results/points.json) or of a run",
    )
    add("--format", default="table", help="table, markdown, csv, json or nccl-tests")
    add("--columns", metavar="NAMES", help="names of Row fields with commas, or all")
    add("--percentiles", metavar="P", help="further columns, such as 50,90,99.9")
    add("--over-ranks", default="max", metavar="HOW", help="max, mean, min or rank0")
    add("--clock", help="host, device or issue; default: the device's where it was read")
    add(
        "--pivot",
        metavar="KEY",
        help="sizes down, a column for each collective, backend, ranks, label=KEY, file, ...",
    )
    add("--metric", help="of --pivot: busbw (the default), algbw or time")
    add("--per-rank", action="store_true", help="each rank's own times in each case")
    add("--calls", action="store_true", help="every call of each case in order")


def _show(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.records import load_all
    from torchcoll.importers.registry import resolve
    from torchcoll.report.output import one_line
    from torchcoll.report.text import show

    runs = load_all(resolve(options.files))
    if options.reference and runs:
        return _show_reference(runs, options)
    choices = {k: v for k, v in vars(options).items() if k not in ("files", "run", "reference")}
    show(*runs, **choices)
    for run in runs if options.format in ("csv", "json") else ():  # others show them below
        for problem in run.problems:
            where = "" if str(run.path) in problem else f"{run.path}: "
            print(f"torchcoll: warning: {one_line(where + problem)}", file=sys.stderr)
    return ExitCode.OK


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sides",
        nargs="+",
        metavar="SIDE",
        help="BASE and NEW: a file, a folder, a quoted glob, or label=PATH; several files of a "
        "side (one label; without labels all behind the first) are its launches; "
        "backend:gloo=PATH takes those cases alone",
    )
    add("--threshold", default="2%", metavar="SHARE", help="less is the same (default 2%%)")
    add("--metric", default="time", help="time (the default), algbw or busbw")
    add("--over-ranks", metavar="HOW", help="max (the default), mean, min or rank0")
    add("--filter", default="", metavar="TEXT", help="such as collective=all_reduce,size>=1M")
    add("--by", default="", metavar="NAMES", help="what cases must agree in too, such as kernel")
    add("--fit", action="store_true", help="latency and bandwidth in place of every size")
    add("--fail-on", metavar="GATE", help="slower, slower:5%%, unclear, incomparable: exit 1")
    add("--format", default="table", help="table, markdown, csv or json")


def _compare(options: argparse.Namespace) -> ExitCode:
    from torchcoll.analysis.compare import compare
    from torchcoll.analysis.gate import parse_gate, parse_share, tripped, untested
    from torchcoll.analysis.sides import side, sides_of
    from torchcoll.core.records import load_all
    from torchcoll.importers.registry import resolve
    from torchcoll.report.compare import FORMATS, show_comparisons, told_beside
    from torchcoll.report.view import choice

    gate = parse_gate(options.fail_on) if options.fail_on is not None else {}
    threshold = parse_share(options.threshold, "threshold")
    choice(options.format, "format", FORMATS)
    base, *others = [
        side(name, paths, lambda files: load_all(resolve(str(file) for file in files)))
        for name, paths in sides_of(options.sides)
    ]
    found = [
        compare(
            base,
            new,
            threshold=threshold,
            metric=options.metric,
            over_ranks=options.over_ranks,
            filter=options.filter,
            by=options.by,
            fit=options.fit,
        )
        for new in others
    ]
    show_comparisons(found, options.format)
    if options.format in ("csv", "json"):  # the tables hold them
        for text in told_beside(found, options.format):
            print(f"torchcoll: {text}", file=sys.stderr)
    failed = tripped(gate, [one.judged for each in found for one in each.fitted or each.rows])
    if not failed:
        if text := untested(gate, found):
            print(f"torchcoll: warning: --fail-on {options.fail_on}: {text}", file=sys.stderr)
        return ExitCode.OK
    words = ", ".join(f"{count} {verdict}" for verdict, count in failed.items())
    print(f"torchcoll: --fail-on {options.fail_on}: {words}", file=sys.stderr)
    return ExitCode.FAILED


def _show_reference(runs: Sequence[Run], options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.records import load_all
    from torchcoll.importers.registry import resolve
    from torchcoll.report.reference import is_points, load_points, points_of, show_beside

    if options.format not in ("table", "markdown"):
        expected = "one of table, markdown with --reference"
        raise UsageError("format", options.format, expected)
    path = options.reference
    if is_points(path):
        points = load_points(path)
    else:
        points = [p for run in load_all(resolve([path])) for p in points_of(run)]
    show_beside(runs, points, options.format)
    return ExitCode.OK


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="output of another tool; - is stdin, .gz is read")
    add("-o", "--output", metavar="RUN", help="write it as a result file; several runs: RUN-2, ...")
    add("--from", dest="importer", metavar="NAME", help="the format, where sniffing does not do")
    add("--map", metavar="PAIRS", help="columns of a plain table: size=Size,algbw='Algbw (GB/s)'")
    add("--ranks", type=int, metavar="N", help="where the file does not tell them")
    add("--collective", metavar="NAME", help="where the file does not tell it")
    add("--dtype", metavar="NAME", help="where the file does not tell it")
    add("--backend", metavar="NAME", help="where the file does not tell it")
    add(
        "--statistic",
        metavar="NAME",
        help="what a plain table's figures are: mean, median, min, max",
    )
    add("--label", action="append", default=[], metavar="K=V", help="kept in the result file")


def _import(options: argparse.Namespace) -> ExitCode:
    from torchcoll.importers import command
    from torchcoll.importers.base import Options
    from torchcoll.importers.registry import import_file, is_ours, nothing_read
    from torchcoll.report.output import one_line

    known = Options(
        ranks=options.ranks,
        collective=options.collective,
        dtype=options.dtype,
        backend=options.backend,
        statistic=options.statistic,
        columns=command.columns_of(options.map),
    )
    labels = command.labels_of(options.label)
    runs: list[Run] = []
    code = ExitCode.OK
    for path in options.files:
        try:
            if path != "-" and os.path.isfile(path) and is_ours(path):
                raise UnreadableError("file", path, "output of another tool; this one is ours")
            found = import_file(path, known, options.importer)
        except UnreadableError as error:
            print(error.line(), file=sys.stderr)
            code = ExitCode.UNREADABLE
            continue
        for line in command.report_lines(path, found):
            print(one_line(line))
        if not found.runs:
            code = ExitCode.UNREADABLE
            if not found.refused:
                print(nothing_read(path, found).line(), file=sys.stderr)
        runs += found.runs
    for run in runs:
        if labels:
            run.header["spec"] = {"labels": labels}
    if options.output and runs:
        for written in command.write(runs, options.output):
            print(f"written: {one_line(written)}")
    return code


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="result files, or output of other tools")
    add("--format", required=True, help="nccl-tests, csv, json or parquet")
    add("-o", "--output", metavar="FILE", help="default: stdout (parquet needs a file)")


def _export(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.records import load_all
    from torchcoll.importers.registry import resolve
    from torchcoll.report.text import show

    formats = ("nccl-tests", "csv", "json", "parquet")
    if options.format not in formats:
        raise UsageError("format", options.format, f"one of {', '.join(formats)}")
    if options.output and os.path.lexists(options.output):
        action = "Name another file or remove it."
        raise UsageError("output", options.output, "a file that does not exist", action)
    runs = load_all(resolve(options.files))
    if options.format == "parquet":
        from torchcoll.analysis.parquet import write_parquet

        if not options.output:
            raise UsageError("output", "none", "a file", "Parquet is binary: name one with -o.")
        write_parquet(runs, options.output)
    elif options.output:
        with _created(options.output) as file:
            show(*runs, format=options.format, file=file)
    else:
        show(*runs, format=options.format)
    return ExitCode.OK


def _created(path: str) -> TextIO:
    try:
        return open(path, "x", encoding="utf-8")
    except OSError as error:
        expected = f"a file that can be written ({error.strerror})"
        raise UsageError("output", path, expected) from None


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one object with stable names")


def _doctor(options: argparse.Namespace) -> ExitCode:
    from torchcoll.bench.doctor.examine import examine
    from torchcoll.report.doctor import show_doctor

    report = examine()
    if report is None:  # under a launcher rank 0 speaks
        return ExitCode.OK
    show_doctor(report, options.json)
    return ExitCode.OK if report["usable"] else ExitCode.UNAVAILABLE


# name -> (help, adds its arguments, runs it)
Command = tuple[
    str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], ExitCode]
]
COMMANDS: dict[str, Command] = {
    "show": ("print result files as tables", _show_arguments, _show),
    "compare": (
        "what differs between launches, case by case, and whether it is evidence",
        _compare_arguments,
        _compare,
    ),
    "import": (
        "read other tools' output: nccl-tests, oneCCL, OSU, ...",
        _import_arguments,
        _import,
    ),
    "export": ("write result files as other tools read them", _export_arguments, _export),
    "doctor": (
        "what this process can use: devices, backends, launchers, networks; and known traps",
        _doctor_arguments,
        _doctor,
    ),
}


def _parser() -> _Parser:
    parser = _Parser(
        prog="torchcoll",
        allow_abbrev=False,
        description="What a collective costs, measured through torch.distributed. "
        f"{_TO_MEASURE} (one rank: python -m torchcoll.allreduce).",
    )
    parser.add_argument("--version", action="version", version=f"torchcoll {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name, (text, add_arguments, run) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        add_arguments(command)
        command.set_defaults(run=run)
    return parser


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    if not argv or (argv[0] not in COMMANDS and not argv[0].startswith("-")):
        got = argv[0] if argv else "none"
        raise UsageError("command", got, f"one of {', '.join(COMMANDS)}", f"{_TO_MEASURE}.")
    return _parser().parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        options = _parsed(sys.argv[1:] if argv is None else argv)
        del options.command
        code = options.run(options)
        if sys.stdout:  # None where it was closed before the start (`>&-`)
            sys.stdout.flush()
        return int(code)
    except TorchcollError as error:
        print(error.line(), file=sys.stderr)
        return int(error.exit_code)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        # Python flushes stdout at exit and would complain there: give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _BROKEN_PIPE
        print(TorchcollError(f"cannot write to stdout ({error.strerror})").line(), file=sys.stderr)
        return int(ExitCode.FAILED)
