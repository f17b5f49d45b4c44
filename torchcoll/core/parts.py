"""The parts of torchcoll: what plugs into the kernel, which names none of them.

A part is a folder of ``torchcoll/parts``, or a package that an entry point of the group
``torchcoll.parts`` names. Its module ``part`` has a ``PART``, which names modules of its package
and functions as ``module:function``: nothing is imported before it is needed.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import itertools
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from torchcoll.core.commands import Listed
from torchcoll.core.errors import one_line, tell

GROUP = "torchcoll.parts"


class Part(NamedTuple):
    """What a part adds.

    - commands: the commands that it adds to ``torchcoll``.
    - on_ranks: names of commands that a launcher starts on every rank (no other part extends them).
    - public: public name of ``torchcoll`` -> the module that defines it.
    - options: command of the kernel -> ``function(parser)``, which adds options to it.
    - extends: command of the kernel -> ``function(options)``, which takes it over where it returns
      an exit code; None leaves it to the kernel, with the options as the function has left them.
    - sections: place of a page -> ``function(draft)``; ``PLACES`` of questions/page/page_draft.py
      says what each place is for, and which return something.
    - shows: module of the kernel -> the module with ``SHOWN`` of its findings (report/shown.py).
    - answers: question of the kernel -> the function that answers it, with None where the question
      is for others:
      ``recognises(argument)``: whether the argument of ``report`` is a store of this part;
      ``compares(base, new)``: the comparison of two Traffics;
      ``baseline(path)``: the good runs of a path (questions/check/baseline.py, BaselineRuns);
      ``reads(path, text)``: the command that answers a file, of which ``text`` is the beginning and
      the end (``torchcoll PATH``);
      ``files(arguments)``: argument of ``report`` -> the section and charts of the answer that it
      alone gives, such as why its job ended;
      ``cells(folder)``: the names of the sides that a folder holds.
    """

    commands: Mapping[str, Listed] = {}
    on_ranks: Sequence[str] = ()
    public: Mapping[str, str] = {}
    options: Mapping[str, str] = {}
    extends: Mapping[str, str] = {}
    sections: Mapping[str, str] = {}
    shows: Mapping[str, str] = {}
    answers: Mapping[str, str] = {}


def parts() -> Iterator[tuple[str, Part]]:
    """Yield (package, its part): the parts of torchcoll by name, then installed ones."""
    yield from _own_parts().items()
    yield from _installed_parts().items()


@cache
def _own_parts() -> dict[str, Part]:
    folder = importlib.import_module("torchcoll.parts")
    names = [f"{folder.__name__}.{m.name}" for m in pkgutil.iter_modules(folder.__path__)]
    return {name: importlib.import_module(f"{name}.part").PART for name in names}


def _any_installed() -> bool:
    """Whether any distribution has such an entry point; importlib.metadata would be slow."""
    patterns = (f"{glob.escape(folder)}/*-info/entry_points.txt" for folder in sys.path)
    for path in itertools.chain.from_iterable(map(glob.glob, patterns)):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            if f"[{GROUP}]" in file.read():
                return True
    return False


@cache
def _installed_parts() -> dict[str, Part]:
    if not _any_installed():
        return {}
    from importlib import metadata

    installed = {}
    for entry in metadata.entry_points(group=GROUP):
        try:
            installed[entry.value] = importlib.import_module(f"{entry.value}.part").PART
        except Exception as error:  # other people's code must not stop every command
            why = one_line(f"{type(error).__name__}: {error}")
            tell(f"torchcoll: warning: the part {one_line(entry.value)} is left out: {why}")
    return installed


def modules_of(table: str, name: str) -> Iterator[str]:
    """Yield the modules, with packages, that parts have under this name in a mapping of Part."""
    for package, part in parts():
        if (module := getattr(part, table).get(name)) is not None:
            yield f"{package}.{module}"


def functions_of(table: str, name: str) -> Iterator[Callable[..., Any]]:
    """Yield the functions that parts have under this name in a mapping of Part."""
    for reference in modules_of(table, name):
        module, _, function = reference.partition(":")
        yield getattr(importlib.import_module(module), function)


def first_answer(table: str, name: str, *arguments: Any) -> Any:
    """The first answer of any part that is not None."""
    answers = (function(*arguments) for function in functions_of(table, name))
    return next((answer for answer in answers if answer is not None), None)


def missing_part(error: ModuleNotFoundError) -> str:
    """The name of the part of torchcoll that is missing; '' if another module is missing."""
    package, _, name = (error.name or "").rpartition(".")
    return name if package == "torchcoll.parts" else ""
