"""The console command ``torchcoll``. The command.py of each package adds its sub-commands.

Errors are one line on stderr and the exit code of the exception. What a
sub-command needs is imported inside it: ``--help`` and errors cost nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torchcoll
from torchcoll import __version__
from torchcoll.core.errors import (
    ExitCode,
    TorchcollError,
    UnavailableError,
    UnreadableError,
    UsageError,
    choice,
    nearest_option,
    tell,
    unknown,
)
from torchcoll.help import Formatter, examples_text, groups_text

# A command that a launcher starts on every rank: rank 0 alone prints, and one package is loaded.
_ON_RANKS = {"replay": "training"}
# An image that brings its own torch may lack some (NO_INSTALL=1).
_LIBRARIES = ("defusedxml", "numpy", "pandas", "rich", "scipy", "shtab", "torch")
_INTERRUPTED = 128 + 2  # SIGINT
_TO_MEASURE = "To measure: torchrun --nproc-per-node N -m torchcoll.allreduce"
_BROKEN_PIPE = 128 + 13  # SIGPIPE: what other commands end with when `head` has read enough


_OUTPUT = re.compile("^unrecognized arguments:.* (-o|--output)(=| |$)")
_WRITERS = (
    "What writes files: torchcoll export FILE -o ROWS.csv, torchcoll report PATH -o PAGE.html."
)


# Options that ``show`` had, and what has them now.
_JUDGING = ("--baseline", "--fabric", "--gate", "--health", "--junit", "--rules")
_MOVED = {
    **{option: f"check FILE {option}" for option in _JUDGING},
    "--against": "check FILE --baseline",
    "--calls": "show FILE --view calls",
    "--per-rank": "show FILE --view ranks",
    "--pivot": "show FILE --view pivot:KEY",
}


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are UsageErrors: one line, no usage text before it."""

    def error(self, message: str) -> NoReturn:
        known = list(self._option_string_actions)
        for each in self._actions:  # argparse reports the options of an action of `model` here
            if isinstance(each, argparse._SubParsersAction):
                for parser in each.choices.values():
                    known += parser._option_string_actions
        action = nearest_option(message, known, f"{self.prog} --help")
        if _OUTPUT.search(message):  # of a command that has none
            action = f"{self.prog} prints. {_WRITERS}"
        moved = [_MOVED[word] for word in re.split("[ =]", message) if word in _MOVED]
        if moved and self.prog == "torchcoll show":
            action = f"Write torchcoll {moved[0]}."
        raise UsageError(f"{message[:1].lower()}{message[1:]}", action=action)


# Command -> (help, ``add_arguments(parser)``, ``run(options) -> ExitCode``)
Commands = dict[str, tuple[str, Callable[..., None], Callable[..., int]]]


def commands(*packages: str) -> Commands:
    """The commands of these packages, or of all: ``COMMANDS`` of their command.py."""
    added: Commands = {}
    for name in packages or [each.name for each in pkgutil.iter_modules(torchcoll.__path__)]:
        if (Path(torchcoll.__path__[0]) / name / "command.py").exists():
            added |= importlib.import_module(f"torchcoll.{name}.command").COMMANDS
    return dict(sorted(added.items()))


_SHELLS = ("bash", "zsh", "tcsh")  # shtab's others have not been tried
_PATHS = dict.fromkeys(("FILE", "RUN", "SIDE", "PATH", "STORE", "CASE|METRIC|FILE"), "FILE")
_PATHS["DIR"] = "DIRECTORY"


class _PrintCompletion(argparse.Action):
    """``--print-completion SHELL``: the script by which a shell completes, then the end."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: Any = None) -> None:
        choice(shell, "print-completion", _SHELLS)
        import shtab

        known = commands()
        whole = _parser("", known)
        (subparsers,) = (a for a in whole._actions if isinstance(a, argparse._SubParsersAction))
        for name, (_text, add_arguments, _run) in known.items():
            add_arguments(subparsers.choices[name])
            for action in subparsers.choices[name]._actions:
                if action.metavar in _PATHS:  # without it shtab completes no file names
                    action.complete = getattr(shtab, _PATHS[action.metavar])
        print(shtab.complete(whole, shell))
        parser.exit()


def _parser(chosen: str, known: Commands) -> _Parser:
    parser = _Parser(
        prog="torchcoll",
        allow_abbrev=False,
        formatter_class=Formatter,
        description="Benchmark the collectives of torch.distributed, and read, compare and explain "
        f"what was measured. {_TO_MEASURE} (one rank: python -m torchcoll.allreduce).",
        epilog=f"{groups_text({name: text for name, (text, *_) in known.items()})}\n\n"
        "torchcoll COMMAND --help prints the options and examples of a command",
    )
    parser.add_argument("--version", action="version", version=f"torchcoll {__version__}")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        metavar="SHELL",
        default=argparse.SUPPRESS,  # the names that are left are those of the command
        help="print what makes bash, zsh or tcsh complete commands, options and file names",
    )
    subparsers = parser.add_subparsers(
        metavar="COMMAND", required=True, dest="command", help="one of those below"
    )
    for name, (text, add_arguments, run) in known.items():
        command = subparsers.add_parser(
            name,
            help=text,
            description=f"{text[:1].upper()}{text[1:]}.",
            epilog=examples_text(name),
            allow_abbrev=False,
            formatter_class=Formatter,
        )
        if name == chosen:
            add_arguments(command)
            command.set_defaults(run=run)
    return parser


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    first = argv[0] if argv else ""
    known = commands(_ON_RANKS[first]) if first in _ON_RANKS else commands()
    if not argv:
        argv = ["--help"]
    elif first not in known and not first.startswith("-"):
        raise unknown("command", first, known, action=f"{_TO_MEASURE}.")
    parser = _parser(first, known)
    options, rest = parser.parse_known_args(argv)
    if rest:  # argparse would point to the help of the whole
        own = (a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        next(own)[first].error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments, rank = list(sys.argv[1:] if argv is None else argv), 0
    try:
        if arguments and arguments[0] in _ON_RANKS:
            from torchcoll.machine.launcher import likely_rank

            rank = likely_rank()
        if rank and not {"-h", "--help"}.isdisjoint(arguments):
            return int(ExitCode.OK)  # rank 0 prints it
        options = _parsed(arguments)
        name = options.command
        del options.command
        if name in _ON_RANKS:
            code = options.run(options)
        else:
            from torchcoll.report.waiting import waiting

            with waiting(f"torchcoll {name}"):
                code = options.run(options)
        if sys.stdout:  # None where it was closed before the start (`>&-`)
            sys.stdout.flush()
        return int(code)
    except TorchcollError as error:
        if arguments and arguments[0] in _ON_RANKS:
            from torchcoll.bench.main import complain

            complain(error.line(), rank, speaks=rank == 0)
        else:
            tell(error.line())
        return int(error.exit_code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _LIBRARIES:
            raise
        refusal = UnavailableError(
            missing, "none", "it installed", f"python -m pip install {missing}."
        )
        tell(refusal.line())
        return int(refusal.exit_code)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.filename is not None:
            expected = f"a file that can be used ({error.strerror})"
            refused = UnreadableError("file", error.filename, expected)
            tell(refused.line())
            return int(refused.exit_code)
        # Python flushes stdout at exit and would complain there: give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _BROKEN_PIPE
        tell(TorchcollError(f"cannot write to stdout ({error.strerror})").line())
        return int(ExitCode.FAILED)
