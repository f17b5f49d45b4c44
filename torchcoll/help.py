"""The commands of ``torchcoll`` by what they are for, with examples: what ``--help`` prints."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Generator, Mapping

from torchcoll.core.commands import Listed, SubCommand

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
    """argparse's HelpFormatter, except that it does not wrap examples or groups of commands.

    The commands are listed only in their groups, not in argparse's own list.
    """

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
