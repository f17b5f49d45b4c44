"""The exceptions of torchcoll and the exit codes that they become.

Every message has one form: ``WHAT: got VALUE, expected SET. NEXT ACTION``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every torchcoll command. A signal ends with 128 + its number."""

    OK = 0
    FAILED = 1  # some case failed, or a gate tripped
    USAGE = 2
    UNREADABLE = 3
    UNAVAILABLE = 4  # backend or device
    HANG = 5  # a rank hung, was lost, never came or raised an exception


_LONGEST_VALUE = 120  # characters of a value in a message


class TorchcollError(Exception):
    """Base of all errors that a user can cause; ``exit_code`` is the command's."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(
        self, what: str, value: object = None, expected: str = "", action: str = ""
    ) -> None:
        self.what, self.action = what, action
        text = what
        if value is not None:
            text += f": got {cut_text(one_line(value).strip() or 'an empty text', _LONGEST_VALUE)}"
            if expected:
                text += f", expected {expected}"
        elif expected:
            text += f": expected {expected}"
        if action:
            text = f"{text.rstrip('.')}. {action}"
        super().__init__(printable(_masked(text)))

    def line(self) -> str:
        """The one line a command prints."""
        return f"torchcoll: error: {self}"


class UsageError(TorchcollError, ValueError):
    """A flag, argument or Spec field that cannot be used (exit code 2)."""

    exit_code = ExitCode.USAGE


def choice(value: object, what: str, allowed: Iterable[object]) -> None:
    """Raises UsageError unless ``value`` is one of these. A None among them is not named."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise unknown(what, value, [each for each in allowed if each is not None])


def unknown(
    what: str,
    value: object,
    choices: Iterable[object],
    expected: str = "one of {}",
    action: str = "",
) -> UsageError:
    """The error for a name that is not among ``choices``. expected: {} stands for these."""
    names = [str(each) for each in choices]
    hint = f"{did_you_mean(value, names)} {action}".strip()
    return UsageError(what, value, expected.format(", ".join(names)), hint)


def literal(text: str) -> str:
    """Escape a text for the ``expected`` of ``unknown``, so that its braces are kept."""
    return text.replace("{", "{{").replace("}", "}}")


def nearest_names(
    value: object, choices: Iterable[str], least: float = 0.6, most: int = 1
) -> list[str]:
    """The most similar names, the nearest first; one alone if only dashes or a unit differ
    (``size`` is ``size_bytes``). least: difflib's ratio.
    """
    import difflib  # takes 6 ms, which only an error costs

    names = {name.lower(): name for name in choices}
    bare = str(value).lower().replace("-", "").replace("_", "")
    for name in names:
        if name.replace("-", "").replace("_", "") == bare:
            return [names[name]]
    with_unit = [name for name in names if bare and name.startswith(f"{str(value).lower()}_")]
    if with_unit:
        return [names[min(with_unit, key=len)]]
    alike = difflib.get_close_matches(str(value).lower(), names, n=most, cutoff=least)
    return [names[name] for name in alike]


def did_you_mean(
    value: object, choices: Iterable[str], least: float = 0.6, most: int = 1, before: str = ""
) -> str:
    """``Did you mean all_reduce?``, or '' if no name is similar. before: stands before names."""
    *names, last = [before + name for name in nearest_names(value, choices, least, most)] or [""]
    first = f"{', '.join(names)} or " if names else ""
    return f"Did you mean {first}{last}?" if last else ""


def nearest_option(message: str, options: Collection[str], help: str) -> str:
    """The next action for refused arguments: the most similar options, and the help."""
    arguments = message.partition("unrecognized arguments: ")[2].split()
    # Without the dashes, which would make all options similar.
    names = [name[2:] for name in options if name.startswith("--")]
    option = arguments[0].partition("=")[0].lstrip("-") if arguments else ""
    hint = did_you_mean(option, names, most=3, before="--") if option else ""
    return f"{hint} See {help}.".strip()


def nearest_file(path: object) -> str:
    """``Did you mean runs/a.jsonl?``: the most similar name in the folder; '' if there is none."""
    folder, name = os.path.split(str(path))
    try:
        inside = sorted(os.listdir(folder or "."))[:_MOST_FILES]
    except OSError:
        return ""
    similar = did_you_mean(name, inside, _LIKE, before=os.path.join(folder, ""))
    return similar if len(name) >= _LEAST_LETTERS else ""


_LIKE = 0.75  # endings are similar anyway
_LEAST_LETTERS = 3  # any two shorter names are similar
_MOST_FILES = 2000  # of a folder: comparing each with the name takes 5 us a character


def looks_like_file(text: str) -> bool:
    """Whether an argument, which could also be a name, is meant as a file. It need not exist."""
    endings = (".json", ".jsonl", ".gz", ".csv", ".log", ".txt")
    return os.path.exists(text) or os.sep in text or text.endswith(endings)


def path_text(value: object, what: str, expected: str = "a path") -> str:
    """The path as text. Raises UsageError for anything but text and path-like objects."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise UsageError(what, type(value).__name__, expected)
    return text


def text_items(value: object, what: str) -> list[str]:
    """The items of a text with commas, or of several texts. Raises UsageError for anything else."""
    items: Iterable[object] = ()
    if isinstance(value, str):
        items = value.split(",")
    elif isinstance(value, list | tuple | set | frozenset | dict):
        items = value
    else:
        raise UsageError(what, type(value).__name__, "text, or a list of it")
    for item in items:
        if not isinstance(item, str):
            raise UsageError(what, type(item).__name__, "text, or a list of it")
    return [str(item) for item in items]


class UnreadableError(TorchcollError):
    """An input file that is missing, foreign or broken (exit code 3)."""

    exit_code = ExitCode.UNREADABLE


def missing_file(path: object) -> UnreadableError:
    """The error for a file that does not exist. It names the most similar file of the folder."""
    name = cut_text(one_line(path).strip() or "an empty name", _LONGEST_VALUE)
    return UnreadableError("file", name, "a file that exists", action=nearest_file(path))


class DiskFullError(TorchcollError):
    """A disk or a quota that refuses to take more (exit code 1)."""


class UnusableError(UsageError):
    """An input without anything that the command can use: no case with a time, no pair (exit code
    3, as for a file). A ValueError in Python, where a Run can be passed in place of a file.
    """

    exit_code = ExitCode.UNREADABLE


def install_text(extra: str) -> str:
    """How to install an extra: from a checkout, as torchcoll is on no package index."""
    return f"In a checkout of torchcoll: python -m pip install '.[{extra}]'."


class ForeignError(UnreadableError):
    """A file that is neither a result nor in a format of an importer."""


class UnavailableError(TorchcollError):
    """A backend or device that this process cannot use (exit code 4)."""

    exit_code = ExitCode.UNAVAILABLE


class HangError(TorchcollError):
    """A rank that hangs, is lost or never came (exit code 5)."""

    exit_code = ExitCode.HANG


def brief(error: BaseException) -> str:
    """The first sentence of an error, without what C++ puts before it; never empty."""
    text = (str(error).strip().splitlines() or [""])[0]
    text = re.sub(r"^\[(enforce fail at )?[^\]]*:\d+\]\s*(\w+ == \w+\. )?", "", text)
    return text.split(". ")[0][:160] or type(error).__name__


_called: dict[str, str] = {}


def call(path: str, name: str) -> None:
    """Print ``name`` in place of the path of a temporary file, which the user did not name."""
    _called[path] = name


def printable(text: str) -> str:
    """Replace what a terminal would obey (ESC, bidi marks, line ends) and surrogates by blanks."""
    for path, name in _called.items():
        text = text.replace(path, name)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def one_line(text: object) -> str:
    """Text from a file or a library on one line, without control characters."""
    return printable(" ".join(str(text).split()))


def cut_text(text: str, most: int) -> str:
    """The text, or its beginning with ``...``, in at most ``most`` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def tell(text: str) -> None:
    """Print one line on stderr, which programs that read stdout do not get. Secrets are masked."""
    print(printable(_masked(text)), file=sys.stderr, flush=True)


def print_traceback() -> None:
    """Print the traceback of the exception that is handled now on stderr. Secrets are masked."""
    import traceback

    sys.stderr.write(_masked(traceback.format_exc()))
    sys.stderr.flush()


def _masked(text: str) -> str:
    from torchcoll.core.variables import masked  # only an error needs its expressions

    return masked(text)
