"""Copies standard input and pipes to files: readers look at a file twice, a pipe is read once."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from typing import Any

from torchcoll.core.errors import UnreadableError, call
from torchcoll.core.opening import is_descriptor, not_written, open_to_read, signals_held
from torchcoll.core.units import format_bytes

STDIN = "standard input"  # its name in messages
_stdin: list[str] = []  # the folder with the copy of stdin, once it was read
_pipes: dict[int, str] = {}  # inode of a pipe -> the file with its copy
_MOST_COPIED_BYTES = 4 << 30


def from_stdin(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The path of a file with all of stdin for ``-``, or of the pipe of ``<(COMMAND)``; any other
    path as it is. Raises UnreadableError for an input that seems to have no end.
    """
    if is_descriptor(path) and not os.path.isfile(path):
        name = os.fspath(path)
        inode = os.stat(name).st_ino  # numbers of descriptors are used again
        if inode not in _pipes:
            with open_to_read(name) as source:
                _pipes[inode] = _copied(source, name)
        return _pipes[inode]
    if path != "-":
        return path
    if not _stdin:
        _stdin.append(os.path.dirname(_copied(sys.stdin.buffer, STDIN)))
    return os.path.join(_stdin[0], "stdin")


def _copied(source: Any, name: str) -> str:
    """Copy a pipe to a file in a folder of its own. Messages call the file ``name``."""
    with signals_held():
        folder = tempfile.mkdtemp(prefix="torchcoll-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path, size_bytes = os.path.join(folder, "stdin"), 0
    call(path, name)
    with open(path, "wb", buffering=0) as file:
        while piece := source.read1(1 << 20):
            size_bytes += len(piece)
            if size_bytes > _MOST_COPIED_BYTES:
                most = format_bytes(_MOST_COPIED_BYTES)
                action = "Where it has an end: write it to a file, and name that."
                raise UnreadableError("input", name, f"at most {most} from a pipe", action)
            try:
                rest = memoryview(piece)
                while rest:  # a disk that is nearly full takes a part, and then refuses
                    rest = rest[file.write(rest) :]
            except OSError as error:
                raise not_written("copy of a pipe", path, error) from None
    return path


def is_stdin(path: str | os.PathLike[str]) -> bool:
    """Whether it is stdin or a pipe: ``-``, or what ``from_stdin`` wrote."""
    return path == "-" or os.path.dirname(path) in (*_stdin, *map(os.path.dirname, _pipes.values()))
