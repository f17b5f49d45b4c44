"""The command that every run is made of: any launcher in front of a module of torchcoll."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchcoll.core.collectives import COLLECTIVES, find_collective
from torchcoll.core.errors import UsageError, nearest_file

SUITE = "suite"
_MODULES = {entry.module: entry.name for entry in COLLECTIVES.values()}
_MODULE = re.compile(rf"(?:-m)?torchcoll\.({'|'.join([*_MODULES, SUITE])})")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
# What a matrix says itself.
_OURS = (("-J", "--output"), ("--no-output",), ("--resume",), ("--dry-run",))
_SUFFIXES = (".sh", ".py")


@dataclass(frozen=True)
class Command:
    """A command that starts torchcoll.

    argv: as given, with placeholders. module: ``suite``, ``allreduce``, ...; empty for a script
    that starts one. arguments: those after the module or the script.
    """

    argv: tuple[str, ...]
    module: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def placeholders(self) -> list[str]:
        names = (name for argument in self.argv for name in _PLACEHOLDER.findall(argument))
        return list(dict.fromkeys(names))

    def filled(self, axes: Mapping[str, str]) -> list[str]:
        return [_PLACEHOLDER.sub(lambda match: axes[match[1]], argument) for argument in self.argv]

    def option(self, *names: str) -> str | None:
        """The last value of an option, as argparse takes it: ``-n 0``, ``-n0``, ``--iters=0``."""
        value = None
        for number, argument in enumerate(self.arguments):
            for name in names:
                rest = argument[len(name) :]
                if argument == name:
                    value = next(iter(self.arguments[number + 1 :]), "")
                elif argument.startswith(name) and (rest[0] == "=" or not name.startswith("--")):
                    value = rest.removeprefix("=")
        return value

    def collectives(self) -> tuple[str, ...]:
        """torch's names of what it measures. Raises UsageError where the command does not tell."""
        if self.module in _MODULES:
            return (_MODULES[self.module],)
        if self.module != SUITE:
            raise UsageError(
                "command", " ".join(self.argv), "a module in it that names the collective"
            )
        asked = self.option("--collectives") or "all"
        if asked == "all":
            return tuple(COLLECTIVES)
        return tuple(dict.fromkeys(find_collective(name).name for name in asked.split(",")))


def command_of(argv: Sequence[str]) -> Command:
    """The command behind ``--``. Raises UsageError for one that cannot be a run of a matrix."""
    if not argv:
        raise UsageError(
            "command",
            "none",
            "a run of torchcoll behind --",
            "Such as: -- torchrun --nproc-per-node 2 -m torchcoll.allreduce",
        )
    ran = _collective_of_run(argv)
    places = [n for n, argument in enumerate(argv) if _MODULE.fullmatch(argument)]
    places = places or ([] if ran is None else [ran]) or _script_places(argv)
    if not places:
        raise UsageError(
            "command",
            " ".join(argv),
            "a module of torchcoll in it, or the path of a script that starts one",
            "Such as: torchrun --nproc-per-node 2 -m torchcoll.allreduce",
        )
    match = _MODULE.fullmatch(argv[places[0]])
    module = match[1] if match else ""
    if ran in places:
        name = argv[ran]
        module = SUITE if name == SUITE else find_collective(name).module
    command = Command(tuple(argv), module, tuple(argv[places[0] + 1 :]))
    for names in _OURS:
        if (value := command.option(*names)) is not None:
            raise UsageError(
                "command", f"{names[-1]} {value}".strip(), f"no {names[-1]}: a matrix sets it"
            )
    for argument in command.arguments:
        if re.match(r"(--label=)?(cell|run)=", argument):
            raise UsageError("command", f"--label {argument}", "other labels: a matrix sets these")
    return command


def _collective_of_run(argv: Sequence[str]) -> int | None:
    """Where ``torchcoll run -n N COLLECTIVE`` (also ``python -m torchcoll run``) has the
    collective; None in any other command.

    Raises UsageError if the command has no collective, or no number of ranks.
    """
    runs = [
        number
        for number in range(1, len(argv))
        if argv[number] == "run" and os.path.basename(argv[number - 1]) == "torchcoll"
    ]
    if not runs:
        return None
    place = runs[0] + 1
    while place < len(argv) and argv[place].startswith("-"):
        place += 2 if argv[place] in ("-n", "--nproc-per-node") else 1
    if place >= len(argv) or place == runs[0] + 1:
        raise UsageError(
            "command",
            " ".join(argv),
            "a number of ranks and a collective",
            "Such as: torchcoll run -n 2 allreduce",
        )
    return place


def _script_places(argv: Sequence[str]) -> list[int]:
    """The words that may be a script or program that starts torchcoll through others: those behind
    the first word, which may be a launcher, come first. Only a run shows whether it does.

    Raises UsageError for a script that does not exist.
    """

    def may_be_script(number: int, argument: str) -> bool:
        in_path = number == 0 and os.sep not in argument
        if _PLACEHOLDER.search(argument):  # each value is checked where it is known
            return not in_path and (number == 0 or argument.endswith(_SUFFIXES))
        return not in_path and os.path.isfile(argument)

    # A script of its own may be about to write the other files that it is given.
    own_script = os.sep in argv[0] and os.path.isfile(argv[0])
    places = []
    for number, argument in enumerate(argv):
        if may_be_script(number, argument):
            places.append(number)
            continue
        required = os.sep in argument if number == 0 else argument.endswith(_SUFFIXES)
        if required and not own_script and not any(places):
            value = f"{argument}, which does not exist"
            raise UsageError("command", value, "an existing script", nearest_file(argument))
    return sorted(places, key=lambda number: (number == 0, number))


def check_placeholders(command: Command, axes: Iterable[str], free: Iterable[str]) -> None:
    """Raises UsageError for a placeholder without an axis, and an axis that nothing takes up.

    free: axes that work without a placeholder.
    """
    names = list(axes)
    for name in command.placeholders:
        if name not in names:
            raise UsageError(
                "command", f"{{{name}}}", "placeholders that have an axis", f"--axis {name}=V1,V2"
            )
    for name in names:
        if name not in command.placeholders and name not in free:
            raise UsageError(
                f"axis {name}",
                f"no {{{name}}} in the command",
                "a placeholder for it",
                "Without one all its cells would measure the same.",
            )


def check_program(argv: Sequence[str], path: str | None, what: str = "command") -> None:
    """Raises UsageError where it cannot be started; ``path``: PATH of its cell."""
    if shutil.which(argv[0], path=path) is None:
        if os.sep in argv[0]:
            raise UsageError(what, argv[0], "a program that exists and can be run")
        folder = os.path.dirname(sys.executable)
        local = shutil.which(argv[0], path=folder)
        action = f"There is one at {local}: activate its environment." if local else ""
        raise UsageError(what, argv[0], "a program in PATH", action)
