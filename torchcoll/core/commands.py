"""What a sub-command of ``torchcoll`` is: a line in a table, and an entry of ``COMMANDS``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Listed(NamedTuple):
    """A sub-command in ``torchcoll --help``: its line, heading, and module with ``COMMANDS``."""

    help: str
    group: str
    module: str = "command"


class SubCommand(NamedTuple):
    """A sub-command, in ``COMMANDS`` of its module.

    - examples: below the help of the command.
    - exit_1: when its exit code is 1, besides what is true of all commands.
    - option_groups: headings in its ``--help`` -> the options below each; from ten options on.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: Sequence[str] = ()
    exit_1: str = ""
    option_groups: Mapping[str, str] = {}
