"""Base classes of results: their repr is one line, and a notebook displays them as tables."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator, Sized
from typing import Any

from torchcoll.core.answer import Answer
from torchcoll.core.errors import cut_text, one_line

_LONGEST = 200  # characters of a line
_LONGEST_TEXT = 60  # of one value in it


class OneLine:
    """A dataclass, made with ``repr=False``, whose repr is one short line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return as_one_line(f"{type(self).__name__}: {', '.join(_values_of(self))}".rstrip(": "))


def as_one_line(text: str) -> str:
    """The text as a repr: without control characters, and cut to the longest line."""
    return f"<{cut_text(one_line(text), _LONGEST - 2)}>"


def _values_of(shown: Any) -> Iterator[str]:
    """Yield ``metric=time`` or, for a container, ``rows[10]`` for each field that is not empty."""
    for field in dataclasses.fields(shown):
        value = getattr(shown, field.name)
        if not field.repr or value is None or (isinstance(value, Sized) and not len(value)):
            continue
        if isinstance(value, str | os.PathLike):
            yield f"{field.name}={cut_text(str(value), _LONGEST_TEXT)}"
        elif isinstance(value, bool | int | float | OneLine):
            yield f"{field.name}={value!r}"
        elif isinstance(value, Sized):
            yield f"{field.name}[{len(value)}]"


class Displayed(OneLine):
    """A result that a notebook displays as a table and charts when it is the value of a cell."""

    __slots__ = ()

    @property
    def answer(self) -> Answer | None:
        """The sentence of the command that displays it, as data; None if there is none."""
        # By name, as below.
        show = importlib.import_module("torchcoll.questions.show.show")
        answer: Answer | None = show.answer_of(self)
        return answer

    def _ipython_display_(self) -> None:
        importlib.import_module("torchcoll.questions.page.notebook").display(self)

    def _repr_html_(self) -> str:
        # By name: packages know what they compute, and only `questions/show` how it is printed.
        html: str = importlib.import_module("torchcoll.questions.show.show").html_of(self)
        return html
