"""The names of environment variables in shell code that torchcoll prints: a ``Name``, which mypy
enforces, as a name cannot be quoted: ``NCCL_X=1; rm -r ~; NCCL_Y`` from a file would become code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NewType, TypeVar

from torchcoll.core.variables import masked_value, masked_words

Name = NewType("Name", str)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_Value = TypeVar("_Value")


def is_name(text: str) -> bool:
    """Whether a shell takes the text as the name of a variable."""
    return bool(_NAME.fullmatch(text))


def name_of(text: str) -> Name:
    """The text as a Name. Raises ValueError if a shell does not take it as one."""
    if not is_name(text):
        raise ValueError(f"{text!r} is no name of a variable")
    return Name(text)


def named(variables: Mapping[str, _Value]) -> dict[Name, _Value]:
    """The variables of a file whose names are names."""
    return {Name(name): value for name, value in variables.items() if is_name(name)}


def assignments(variables: Mapping[Name, str | None]) -> str:
    """The words in front of a command: ``env -u NCCL_PROTO NCCL_ALGO=Ring``."""
    unset = [
        argument for name, value in variables.items() if value is None for argument in ("-u", name)
    ]
    settings = [f"{n}={shlex.quote(v)}" for n, v in variables.items() if v is not None]
    return " ".join([*(["env", *unset] if unset else []), *settings])


def exports(variables: Mapping[Name, str]) -> list[str]:
    """``export NCCL_ALGO=Ring``: a line for each variable."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def command_line(argv: Sequence[str], variables: Mapping[Name, str | None]) -> str:
    """As it can be typed, but for secrets: ``env -u NCCL_PROTO NCCL_ALGO=Ring torchrun ...``."""
    shown = {n: v if v is None else masked_value(n, v) for n, v in variables.items()}
    return " ".join(filter(None, [assignments(shown), shlex.join(masked_words(argv))]))
