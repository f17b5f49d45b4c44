"""The console command ``torchcoll``. Each command is imported when it runs, so that ``--help`` and
errors stay fast. An error is one line on stderr and the exit code of its exception.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn

from torchcoll import __version__
from torchcoll.core import errors
from torchcoll.core.commands import Listed, SubCommand
from torchcoll.core.parts import Part, first_answer, functions_of, missing_part, parts

# A container with its own torch may lack some of these (launch/ with NO_INSTALL=1).
_LIBRARIES = ("defusedxml", "numpy", "pandas", "rich", "scipy", "shtab", "torch")
_INTERRUPTED = 128 + 2  # SIGINT
_TO_MEASURE = "To measure: torchrun --nproc-per-node N -m torchcoll.allreduce"
_BROKEN_PIPE = 128 + 13  # SIGPIPE: the exit code of other commands when `head` closes the pipe


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError, which prints one line and no usage text."""

    def error(self, message: str) -> NoReturn:
        options = list(self._option_string_actions)
        for option in self._actions:  # argparse reports the options of an action of `model` here
            if isinstance(option, argparse._SubParsersAction):
                for parser in option.choices.values():
                    options += parser._option_string_actions
        action = errors.nearest_option(message, options, f"{self.prog} --help")
        raise errors.UsageError(f"{message[:1].lower()}{message[1:]}", action=action)


def _listed() -> Iterator[tuple[str, Listed, bool]]:
    """Yield (name, command with its full module, whether it runs on every rank), parts last."""
    for package, part in itertools.chain([("torchcoll", Part(KERNEL))], parts()):
        for name, entry in part.commands.items():
            full = entry._replace(module=f"{package}.{entry.module}")
            yield name, full, name in part.on_ranks


def commands() -> dict[str, Listed]:
    """Name -> command."""
    return {name: entry for name, entry, _ in _listed()}


def load_command(name: str, entry: Listed) -> SubCommand:
    """Import a command; no other one is needed."""
    command: SubCommand = importlib.import_module(entry.module).COMMANDS[name]
    return command


# The headings of ``torchcoll --help``, in their order.
GROUPS = ("machine", "compare", "training", "many nodes", "files", "other")
_EXAMPLES = "examples:"
# The commands of the kernel, in the order of --help. Parts have further ones (core/parts.py).
KERNEL = {
    "run": Listed("measure on the ranks of one host (starts torchrun)", "machine", "bench.command"),
    "doctor": Listed("show what works here, and known problems", "machine", "machine.command"),
    "show": Listed("print results as tables", "files", "questions.show.command"),
    "plot": Listed("draw time and bus bandwidth over sizes", "files", "questions.show.command"),
    "report": Listed("write all about some runs as one page", "files", "questions.show.command"),
    "check": Listed("judge a run by a fabric or a baseline", "machine", "questions.check.command"),
    "log": Listed("read logs of NCCL and oneCCL, and topologies", "files", "libraries.command"),
    "convert": Listed("convert results and other tools' output", "files", "reading.command"),
    "compare": Listed("compare two sides case by case", "compare", "questions.comparison.command"),
    "cold": Listed("show what first calls and set-up cost", "machine", "questions.startup.command"),
    "pairs": Listed("find the slow rank, host or link", "machine", "questions.pairs.command"),
}


class Formatter(argparse.HelpFormatter):
    """A HelpFormatter that wraps no examples, and lists commands only in their groups."""

    def _iter_indented_subactions(
        self, action: argparse.Action
    ) -> Generator[argparse.Action, None, None]:
        if self._prog == "torchcoll" and isinstance(action, argparse._SubParsersAction):
            return
        yield from super()._iter_indented_subactions(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith((_EXAMPLES, *GROUPS)):
            return text
        return super()._fill_text(text, width, indent)


def examples_text(command: SubCommand) -> str:
    """What stands below the options of a command."""
    lines = [_EXAMPLES, *(f"  {line}" for line in command.examples)] if command.examples else []
    if command.exit_1:
        text = f"exit code 1: {command.exit_1}"
        lines += ["", *textwrap.wrap(text, 78, subsequent_indent="  ")]
    return "\n".join(lines)


def group_options(parser: argparse.ArgumentParser, command: SubCommand) -> None:
    """Move options of the parser below the headings of ``command.option_groups``."""
    for heading, names in command.option_groups.items():
        group = parser.add_argument_group(heading)
        for name in names.split():
            action = parser._option_string_actions[name]
            parser._optionals._group_actions.remove(action)
            group._group_actions.append(action)


def groups_text(commands: Mapping[str, Listed]) -> str:
    """The commands by group, in the order of ``commands``."""
    lines: list[str] = []
    for group in GROUPS:
        names = [name for name, command in commands.items() if command.group == group]
        if names:
            lines += ["", f"{group}:"] if lines else [f"{group}:"]
            lines += [f"  {name:12} {commands[name].help}" for name in names]
    return "\n".join(lines)


_SHELLS = ("bash", "zsh", "tcsh")  # the other shells of shtab have not been tested
_PATHS = dict.fromkeys(("FILE", "RUN", "SIDE", "PATH", "STORE"), "FILE")
_PATHS["DIR"] = "DIRECTORY"


class _PrintCompletion(argparse.Action):
    """``--print-completion SHELL``: print the completion script of this shell and exit."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: Any = None) -> None:
        errors.choice(shell, "print-completion", _SHELLS)
        import shtab

        main_parser = _parser(available := commands(), available)
        (subparsers,) = (
            a for a in main_parser._actions if isinstance(a, argparse._SubParsersAction)
        )
        for subparser in subparsers.choices.values():
            for action in subparser._actions:
                if action.metavar in _PATHS:  # shtab completes file names only where told to
                    action.complete = getattr(shtab, _PATHS[action.metavar])
        print(shtab.complete(main_parser, shell))
        parser.exit()


def _add_options(name: str, command: SubCommand, parser: argparse.ArgumentParser) -> None:
    for add in (command.add_arguments, *functions_of("options", name)):
        add(parser)


def _parser(chosen: Iterable[str], available: Mapping[str, Listed]) -> _Parser:
    """The parser of the chosen commands. Its help lists all available ones."""
    parser = _Parser(
        prog="torchcoll",
        allow_abbrev=False,
        formatter_class=Formatter,
        description="Benchmark the collectives of torch.distributed, and read, compare and explain "
        f"what was measured. {_TO_MEASURE} (one rank: python -m torchcoll.allreduce). To read what "
        "you have: torchcoll PATH... says what a file or a folder is, and what it says.",
        epilog=f"{groups_text(available)}\n\n"
        "torchcoll COMMAND --help prints the options and examples of a command",
    )
    parser.add_argument("--version", action="version", version=f"torchcoll {__version__}")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        metavar="SHELL",
        default=argparse.SUPPRESS,  # keep it out of the Namespace that the command gets
        help="print what makes bash, zsh or tcsh complete commands, options and file names",
    )
    subparsers = parser.add_subparsers(
        metavar="COMMAND", required=True, dest="command", help="one of those below"
    )
    for name in chosen:
        entry = available[name]
        command = load_command(name, entry)
        subparser = subparsers.add_parser(
            name,
            help=entry.help,
            description=f"{entry.help[:1].upper()}{entry.help[1:]}.",
            epilog=examples_text(command),
            allow_abbrev=False,
            formatter_class=Formatter,
        )
        _add_options(name, command, subparser)
        group_options(subparser, command)
        subparser.set_defaults(run=command.run)
    return parser


def _parse(argv: Sequence[str], entry: Listed | None) -> argparse.Namespace:
    """Parse for the command of the first word (None: another). Raises UsageError."""
    if entry is None and (not argv or argv[0] == "-" or not argv[0].startswith("-")):
        return _answer_without_command(argv)
    first = argv[0]
    parser = _parser([first], {first: entry}) if entry else _parser((), commands())
    options, unrecognized = parser.parse_known_args(argv)
    if unrecognized:  # by default argparse would refer to `torchcoll --help`
        command_parsers = (
            a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)
        )
        next(command_parsers)[first].error(f"unrecognized arguments: {' '.join(unrecognized)}")
    return options


_CONTENTION = "torchrun ... -m torchcoll.allreduce --concurrent copy, then torchcoll show FILE."
_NO_COMMANDS = {  # names of other programs, and of pages of the documentation
    "baseline": "torchcoll check --learn RUNS -o FILE learns one.",
    "concurrent": _CONTENTION,
    "contention": _CONTENTION,
    "explain": "torchcoll show FILE --explain explains one row.",
    "fleet": "torchcoll nightly PATH... judges the nodes of a fleet.",
    "limits": "torchcoll log TOPOLOGY.xml prints the limits of a topology.",
    "measure": "torchcoll run -n 2 allreduce measures.",
    "overlap": _CONTENTION,
    "prove": "torchcoll doctor --prove shows what holds on this machine.",
    "published": "torchcoll show FILE --published compares with published runs.",
    "slow": "torchcoll show FILE --view ranks names slow ranks, torchcoll pairs slow links.",
    "export": "torchcoll show FILE --format csv (or json, markdown) prints results as data.",
    "import": "torchcoll convert LOG -o RUN.jsonl reads a log of another tool.",
}


def _answer_without_command(argv: Sequence[str]) -> argparse.Namespace:
    """What says what a path is. Raises UsageError for what is neither a command nor a path."""
    from torchcoll.answering import answer_paths, are_paths, check_missing, describe_here

    if not argv:
        return argparse.Namespace(command="", run=lambda options: describe_here())
    if are_paths(argv):
        return argparse.Namespace(command="", run=lambda options: answer_paths(argv, main))
    check_missing(argv[0])
    known = _NO_COMMANDS.get(argv[0])
    nearest = known or errors.did_you_mean(argv[0], commands(), least=0.5, most=3)
    action = f"{nearest} torchcoll --help lists the commands. {_TO_MEASURE}."
    raise errors.UsageError("command", argv[0], "a command", action.lstrip())


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as an exception, for temporary files; not if ignored."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    handled = []
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGTERM, signal.SIGHUP)
        handled = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments, rank = list(sys.argv[1:] if argv is None else argv), 0
    entry, on_ranks = None, False
    try:
        if arguments and not arguments[0].startswith("-"):
            found = ((entry, on) for name, entry, on in _listed() if name == arguments[0])
            entry, on_ranks = next(found, (None, False))
        if on_ranks:
            from torchcoll.machine.launcher import likely_rank

            rank = likely_rank()
        if rank and not {"-h", "--help"}.isdisjoint(arguments):
            return int(errors.ExitCode.OK)  # rank 0 prints the help
        options = _parse(arguments, entry)
        name = options.command
        del options.command
        if on_ranks:
            code = options.run(options)
        else:
            from torchcoll.core.skipping import skipping_unreadable
            from torchcoll.report.destination import show_waiting

            waiting = show_waiting(f"torchcoll {name}")
            with _ending_in_order(), waiting, skipping_unreadable() as skipped:
                code = first_answer("extends", name, options)
                code = options.run(options) if code is None else code
            code = code or errors.ExitCode.FAILED if skipped else code
        if sys.stdout:  # None if it was closed before the start (`>&-`)
            sys.stdout.flush()
        return int(code)
    except errors.TorchcollError as error:
        if on_ranks:
            from torchcoll.bench.watchdog import print_error

            print_error(error.line(), rank, speaks=rank == 0)
        else:
            errors.tell(error.line())
        return int(error.exit_code)
    except ModuleNotFoundError as error:
        part = missing_part(error)
        missing = part or (error.name or "").partition(".")[0]
        if missing not in _LIBRARIES and not part:
            raise
        install = f"python -m pip install {missing}."
        action = f"This command needs torchcoll's part {part}." if part else install
        refusal = errors.UnavailableError(missing, "none", "it installed", action)
        errors.tell(refusal.line())
        return int(refusal.exit_code)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.filename is not None:
            from torchcoll.core.opening import DISK_REFUSES, not_written

            expected = f"a file that can be used ({error.strerror})"
            refused: errors.TorchcollError = errors.UnreadableError(
                "file", error.filename, expected
            )
            if error.errno in DISK_REFUSES:
                refused = not_written("file", error.filename, error)
            errors.tell(refused.line())
            return int(refused.exit_code)
        # Python flushes stdout at exit, which would fail again: let it write to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _BROKEN_PIPE
        errors.tell(errors.TorchcollError(f"cannot write to stdout ({error.strerror})").line())
        return int(errors.ExitCode.FAILED)
