"""What a sub-command of ``torchcoll`` is: an entry of ``COMMANDS`` in a command.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class SubCommand(NamedTuple):
    """A sub-command.

    - help: its line in ``torchcoll --help``; group: the heading above it there.
    - examples: below the help of the command.
    - exit_1: when its exit code is 1; other commands exit with 1 only if the disk or the reader of
      stdout refuses what they write, or if they skip one file of several.
    - option_groups: headings of its options in ``--help`` -> the options below each. A command with
      ten options or more has them.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    group: str = "other"
    examples: Sequence[str] = ()
    exit_1: str = ""
    option_groups: Mapping[str, str] = {}
