"""The console command ``torchcoll``. Each sub-command is a module of torchcoll/commands.

Errors are one line on stderr and the exit code of the exception. What a
sub-command needs is imported inside it: ``--help`` and errors cost nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from torchcoll import __version__
from torchcoll.core.errors import ExitCode, TorchcollError, UnavailableError, UsageError, tell

_ON_RANKS = "replay"  # the command that a launcher starts on every rank: rank 0 alone speaks
# An image that brings its own torch may lack some (NO_INSTALL=1).
_LIBRARIES = ("defusedxml", "numpy", "pandas", "rich", "scipy", "torch")
_INTERRUPTED = 128 + 2  # SIGINT
_TO_MEASURE = "To measure: torchrun --nproc-per-node N -m torchcoll.allreduce"
_BROKEN_PIPE = 128 + 13  # SIGPIPE: what other commands end with when `head` has read enough


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are UsageErrors: one line, no usage text before it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].lower()}{message[1:]}", action=f"See {self.prog} --help.")


# name -> (help, module that has ``add_arguments(parser)`` and ``run(options) -> ExitCode``)
COMMANDS: dict[str, tuple[str, str]] = {
    "show": ("print result files as tables", "show"),
    "compare": (
        "what differs between launches, case by case, and whether it is evidence",
        "compare",
    ),
    "import": ("read other tools' output: nccl-tests, oneCCL, OSU, ...", "importing"),
    "export": ("write result files as other tools read them", "export"),
    "replay": ("on ranks: play a captured training step again, without the model", "replay"),
    "gradients": ("which buckets of gradients a model sends, planned on meta", "gradients"),
    "trace": (
        "what a training sends: captured files, profiler traces, Flight Recorder dumps",
        "trace",
    ),
    "plot": ("time and bus bandwidth over sizes as a picture", "plot"),
    "transitions": ("where the behaviour changes with size: regimes and zones", "transitions"),
    "algorithms": (
        "which forced algorithm wins at each size, and what AUTO loses; settings of it",
        "algorithms",
    ),
    "cold": ("what starting costs: set-up, first calls, launches of one job", "cold"),
    "scaling": ("time and first call against the number of ranks, and how they grow", "scaling"),
    "log": ("what NCCL, RCCL and oneCCL say of themselves: logs, topology and graph files", "log"),
    "matrix": ("many launches: variables, ranks, libraries; each cell in turn", "matrix"),
    "pairs": ("which rank, node or link is slow, from a file of torchcoll.pairs", "pairs"),
    "doctor": (
        "what this process can use: devices, backends, launchers, networks; and known traps",
        "doctor",
    ),
}


def _parser(chosen: str) -> _Parser:
    parser = _Parser(
        prog="torchcoll",
        allow_abbrev=False,
        description="What a collective costs, measured through torch.distributed. "
        f"{_TO_MEASURE} (one rank: python -m torchcoll.allreduce).",
    )
    parser.add_argument("--version", action="version", version=f"torchcoll {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name, (text, module) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == chosen:
            own = importlib.import_module(f"torchcoll.commands.{module}")
            own.add_arguments(command)
            command.set_defaults(run=own.run)
    return parser


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    if not argv or (argv[0] not in COMMANDS and not argv[0].startswith("-")):
        got = argv[0] if argv else "none"
        raise UsageError("command", got, f"one of {', '.join(COMMANDS)}", f"{_TO_MEASURE}.")
    return _parser(argv[0]).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments, rank = list(sys.argv[1:] if argv is None else argv), 0
    try:
        if arguments[:1] == [_ON_RANKS]:
            from torchcoll.bench.launcher import likely_rank

            rank = likely_rank()
        if rank and not {"-h", "--help"}.isdisjoint(arguments):
            return int(ExitCode.OK)  # rank 0 prints it
        options = _parsed(arguments)
        del options.command
        code = options.run(options)
        if sys.stdout:  # None where it was closed before the start (`>&-`)
            sys.stdout.flush()
        return int(code)
    except TorchcollError as error:
        if arguments[:1] == [_ON_RANKS]:
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
        # Python flushes stdout at exit and would complain there: give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return _BROKEN_PIPE
        tell(TorchcollError(f"cannot write to stdout ({error.strerror})").line())
        return int(ExitCode.FAILED)
