"""Files that a command writes beside its output: none is overwritten, no link is followed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torchcoll.core.errors import UsageError

_ACTION = "Name another file, or replace it with --force."


def check_new(path: str | os.PathLike[str], what: str, force: bool = False) -> None:
    """Raises UsageError for a file that is there, a link too, unless ``force``: before the work.

    what: the option that names it, in the message.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        raise UsageError(what, path, "a file that can be written (Is a directory)")
    if os.path.lexists(path) and not force:
        raise UsageError(what, path, "a file that does not exist", _ACTION)


def write_file(
    path: str | os.PathLike[str], content: str | bytes, what: str, force: bool = False
) -> None:
    """A new file with this content; with ``force`` in place of what is there.

    Whole or not at all, and never through a link: a file of another name takes the place of what
    has the name (a link itself, not what it points to). Raises UsageError where it cannot be.
    """
    check_new(path, what, force)
    target = Path(path)
    new = target.with_name(f".{target.name}.{os.getpid()}")
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        with open(new if force else target, "xb") as file:
            file.write(data)
        if force:
            os.replace(new, target)
    except FileExistsError:
        raise UsageError(what, path, "a file that does not exist", _ACTION) from None
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        expected = f"a file that can be written ({error.strerror})"
        raise UsageError(what, path, expected) from None


def free_name(path: str) -> str:
    """The name, with a number where it is taken: ``torchcoll-2.png``."""
    stem, suffix = os.path.splitext(path)
    found, number = path, 1
    while os.path.lexists(found):
        number += 1
        found = f"{stem}-{number}{suffix}"
    return found
