"""How results show themselves: as one line, and in a notebook as what ``torchcoll.show`` prints."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator, Sized
from typing import Any

from torchcoll.core.errors import one_line

_LONGEST = 200  # characters of a line
_LONGEST_TEXT = 60  # of one value in it


class OneLine:
    """A dataclass whose repr is one short line: a result may hold millions of samples.

    The dataclass must be made with ``repr=False``, or it gets the repr of all that it holds.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return as_one_line(f"{type(self).__name__}: {', '.join(_values_of(self))}".rstrip(": "))


def as_one_line(text: str) -> str:
    """The text as a repr: without what a terminal would obey, and cut."""
    text = one_line(text)
    return f"<{text if len(text) <= _LONGEST - 2 else text[: _LONGEST - 5] + '...'}>"


def _values_of(shown: Any) -> Iterator[str]:
    """``metric=time``, ``rows[10]``: each field that holds something, of a container its length."""
    for field in dataclasses.fields(shown):
        value = getattr(shown, field.name)
        if not field.repr or value is None or (isinstance(value, Sized) and not len(value)):
            continue
        if isinstance(value, str | os.PathLike):
            text = str(value)
            cut = len(text) > _LONGEST_TEXT
            yield f"{field.name}={text[: _LONGEST_TEXT - 3]}..." if cut else f"{field.name}={text}"
        elif isinstance(value, bool | int | float | OneLine):
            yield f"{field.name}={value!r}"
        elif isinstance(value, Sized):
            yield f"{field.name}[{len(value)}]"


class Displayed(OneLine):
    """A result that a notebook displays as a table and charts when it is the value of a cell."""

    __slots__ = ()

    def _ipython_display_(self) -> None:
        # By name, as below.
        importlib.import_module("torchcoll.questions.page.notebook").display(self)

    def _repr_html_(self) -> str:
        # By name: packages know what they compute, and only `questions/show` how it is printed.
        html: str = importlib.import_module("torchcoll.questions.show.show").html_of(self)
        return html
