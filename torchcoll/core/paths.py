"""What the arguments of a command stand for: files, folders, patterns, stdin, ``label=PATH``."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import glob
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from torchcoll.core.errors import UnreadableError, UsageError, call
from torchcoll.core.opening import is_descriptor, open_to_read
from torchcoll.core.result import Run
from torchcoll.core.units import format_bytes

# What `torchcoll matrix` keeps beside the result files of its launches.
MANIFEST, MATRIX_SCHEMA = "manifest.jsonl", "torchcoll-matrix/1"
Source = Run | str | os.PathLike[str]
STDIN = "standard input"  # its name in messages
_stdin: list[str] = []  # the folder that it was put into
_pipes: dict[int, str] = {}  # inode of a pipe -> what it was copied to
_MOST_COPIED_BYTES = 4 << 30
_LOOKED_AT = 1000  # folders below one without files


def from_stdin(path: Source) -> Source:
    """Of ``-`` a file with all of stdin, which is read once; of ``<(COMMAND)``, which a shell makes
    the path of a pipe, likewise; anything else as it is.

    Raises UnreadableError where there is no end in sight.
    """
    if is_descriptor(path) and not os.path.isfile(path):  # type: ignore[arg-type]
        name = os.fspath(path)  # type: ignore[arg-type]
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
    """A file with what a pipe gives, in a folder of its own; messages call it ``name``."""
    folder = tempfile.mkdtemp(prefix="torchcoll-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path, size_bytes = os.path.join(folder, "stdin"), 0
    call(path, name)
    with open(path, "wb") as file:
        while piece := source.read1(1 << 20):
            size_bytes += len(piece)
            if size_bytes > _MOST_COPIED_BYTES:
                most = format_bytes(_MOST_COPIED_BYTES)
                action = "Where it has an end: write it to a file, and name that."
                raise UnreadableError("input", name, f"at most {most} from a pipe", action)
            file.write(piece)
    return path


def is_stdin(path: str | os.PathLike[str]) -> bool:
    """Whether it is stdin: ``-``, or what ``from_stdin`` wrote."""
    return path == "-" or (bool(_stdin) and os.path.dirname(path) == _stdin[0])


def expanded(source: Source) -> list[Source]:
    """The files of a folder or a pattern. Raises UnreadableError where there are none."""
    source = from_stdin(source)
    if isinstance(source, Run):
        return [source]
    path = Path(source)
    if path.is_dir():
        inside = _files_in(path)
        if not inside:
            raise _no_files(path)
        own = [p for p in inside if p.name.endswith((".jsonl", ".jsonl.gz"))]
        return [Inside(p) for p in own or inside]
    if not path.exists() and glob.has_magic(str(source)):
        found = (Path(p) for p in sorted(glob.glob(str(source), recursive=True)))
        matches = [p for p in found if p.is_file() and not is_manifest(p)]
        if not matches:
            raise UnreadableError("result files", source, "a pattern that some file matches")
        return [Inside(p) for p in matches]
    return [source]


def _files_in(folder: Path) -> list[Path]:
    found = (p for p in sorted(folder.iterdir()) if p.is_file())
    return [p for p in found if p.name[0] != "." and not is_manifest(p)]


def _no_files(folder: Path) -> UnreadableError:
    """Names what may be meant, and takes none of it: folders may be before and after, or logs."""
    below = []
    # The folder of a matrix that has no result yet holds its logs.
    own = any(is_manifest(p) for p in folder.iterdir() if p.is_file())
    for place, (name, folders, _) in enumerate(() if own else os.walk(folder)):
        folders[:] = sorted(one for one in folders if one[0] != ".")
        if place >= _LOOKED_AT:
            break
        if count := len(_files_in(Path(name))):
            below.append(f"{name} ({count} file{'s' if count > 1 else ''})")
    several = ", ".join(below if len(below) < 5 else [*below[:3], f"... ({len(below)} folders)"])
    return UnreadableError(
        "folder",
        folder,
        "a folder with result files",
        f"Below it are {several}: name what is meant, or '{folder}/**/*' for all." * bool(below),
    )


def named_path(argument: str) -> tuple[str, str]:
    """(label, path) of ``label=PATH``, where the label may be ``NAME=VALUE``; of a path ("", path).

    Raises UsageError where one of them is empty.
    """
    label, found, path = argument.partition("=")
    if not found or os.path.exists(argument):
        return "", argument
    while "=" in path and not os.path.exists(path) and not glob.glob(path):
        more, _, path = path.partition("=")
        label += f"={more}"
    if not label or not path:
        raise UsageError("file", argument, "a path, or label=PATH")
    return label, path


class Inside(str):
    """A file that a folder or a pattern stands for: nobody named it, so it may be of any kind."""


def is_manifest(path: str | os.PathLike[str]) -> bool:
    """Whether the file is the manifest of ``torchcoll matrix``, which is no result."""
    if os.path.basename(path) != MANIFEST or not os.path.isfile(path):
        return False
    with contextlib.suppress(OSError), open_to_read(path) as file:
        return file.read(100).startswith(b'{"record":"matrix"')
    return False


# What output of another tool may not tell, as options of the commands that read it.
TOLD = ("collective", "ranks")


def add_told(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--collective", metavar="NAME", help="of output of another tool that does not tell it")
    add("--ranks", type=int, metavar="N", help="of output of another tool that does not tell them")
