"""``torchcoll run``: the ranks of one host, started once the arguments have been checked."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import NoReturn

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import UnavailableError, UsageError

_SUITE = "suite"


def run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "torchcoll run -n N COLLECTIVE [options of the collective]"
    add = parser.add_argument
    add("-n", "--nproc-per-node", metavar="N", help="number of ranks, all on this host")
    add(
        "words",
        nargs=argparse.REMAINDER,
        metavar="COLLECTIVE ...",
        help=(
            "a module (allreduce, ..., suite) and its options; torchcoll run -n 1 "
            "COLLECTIVE --help lists them"
        ),
    )


def run_ranks(options: argparse.Namespace) -> NoReturn:
    """Check the arguments of a collective, and become the torchrun that measures it."""
    from torchcoll.bench.options import number, parse
    from torchcoll.core.collectives import find_collective
    from torchcoll.core.units import whole_number

    if options.nproc_per_node is None:
        action = "Name it before the collective: torchcoll run -n 2 allreduce."
        raise UsageError("n", "none", "a number of ranks", action)
    ranks = whole_number(number(options.nproc_per_node, int), "n", 1)
    if not options.words:
        raise UsageError("collective", "none", "its name", "Such as: torchcoll run -n 2 allreduce.")
    name, *arguments = options.words
    collective = None if name == _SUITE else find_collective(name)
    module = f"torchcoll.{collective.module if collective else _SUITE}"
    asked = parse(arguments, collective.name if collective else None, module)
    asked.asked(ranks)[0].cases(ranks)
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError(
            "torch", "none", "torch 2.6 or newer in this Python", "pip install torch."
        )
    # What torchrun sets, with a warning of five lines, where it is not set.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    launcher_argv = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    os.execv(sys.executable, [sys.executable, *launcher_argv, "-m", module, *arguments])


COMMANDS = {
    "run": SubCommand(
        run_arguments,
        run_ranks,
        examples=(
            "torchcoll run -n 8 allreduce --sizes 1K,1M,1G",
            "torchcoll run -n 2 suite --backend gloo -J run.jsonl",
        ),
        exit_1="a case failed or was wrong, no case ran, or a rank ended with any other code",
    )
}
