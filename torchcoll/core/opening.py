"""Opens files safely: writing follows no link, and reading neither waits nor goes on for ever.

Standard input and pipes are copied to files: readers look at a file twice, a pipe is read once.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from torchcoll.core.bounds import UnpackBudget
from torchcoll.core.errors import DiskFullError, TorchcollError, UnreadableError, UsageError, call
from torchcoll.core.units import format_bytes

# Windows has neither: there only the checks of os.fstat remain.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO waits for its other end
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Errors of a disk that takes no more: full, over a quota or a file's limit, or broken.
DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
MAKE_ROOM = "Make room, then run the same command again."
# Characters of the 255 bytes that a name may have.
_LONGEST = 60
_PACKED_BYTES = 1 << 16  # of a compressed file, that are read at once


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delay signals that end a command until a temporary file will surely be removed."""
    earlier = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def not_written(
    what: str, path: object, error: OSError, expected: str = "a file that can be written"
) -> TorchcollError:
    """DiskFullError if the disk refuses it, else UsageError. what: the option with the path."""
    if error.errno in DISK_REFUSES:
        return DiskFullError(what, path, f"room for it on the disk ({error.strerror})", MAKE_ROOM)
    return UsageError(what, path, f"{expected} ({error.strerror})")


class NotRegularError(OSError):
    """Not a regular file: ``strerror`` names the file and says what it is."""


def open_to_write(
    path: str | os.PathLike[str],
    mode: str,
    buffering: int = -1,
    folder: str | os.PathLike[str] | None = None,
) -> IO[Any]:
    """``open`` for writing, of a regular file or a new one, without following a link.

    folder: the folder that the user named, by default the one that ``path`` is in; links on the way
    to it are followed. Raises OSError; NotRegularError for what is not a regular file.
    """
    with _opened_parent(Path(path), folder) as (parent, name):

        def opener(_: str, flags: int) -> int:
            return _checked(os.open(name, flags | _NO_LINK | _NO_WAIT, 0o666, dir_fd=parent), path)

        try:
            return open(path, mode, buffering, opener=opener)
        except OSError as error:
            raise _explained(error, path) from None


def open_to_read(path: str | os.PathLike[str]) -> BufferedReader:
    """``open`` of a regular file, or a descriptor. Raises OSError; NotRegularError for a FIFO."""
    if is_descriptor(path):
        return open(path, "rb")
    try:
        return open(
            path, "rb", opener=lambda name, flags: _checked(os.open(name, flags | _NO_WAIT), path)
        )
    except IsADirectoryError:
        raise
    except OSError as error:
        raise _explained(error, path, follow=True) from None


def common_folder(paths: Iterable[str | os.PathLike[str]]) -> str:
    """The deepest folder that all paths are in; '' if there is none."""
    try:
        return os.path.commonpath([os.fspath(path) for path in paths])
    except ValueError:
        return ""


def files_in(folder: Path) -> list[Path]:
    """The files of a folder, sorted, without its subfolders. Raises OSError."""
    return [path for path in sorted(folder.iterdir()) if path.is_file()]


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All of a regular file. Raises as ``open_to_read`` does."""
    with open_to_read(path) as file:
        return file.read()


def unpack(file: IO[bytes], budget: UnpackBudget) -> Iterator[bytes]:
    """Yield pieces of at most 1 MiB. Raises zlib.error for a damaged file, EOFError for one that
    was cut off, and UnreadableError for a bomb.
    """
    unpacker, packed = zlib.decompressobj(31), 0  # with gzip's header
    while data := file.read(_PACKED_BYTES):
        packed += len(data)
        while data:
            if unpacker.eof:  # another compressed file after the first
                unpacker = zlib.decompressobj(31)
            piece = unpacker.decompress(data, 1 << 20)
            budget.add(len(piece), packed)
            yield piece
            data = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    if not unpacker.eof:
        raise EOFError


_DESCRIPTOR = re.compile(r"/dev/(?:stdin|fd/\d+)|/proc/(?:self|\d+)/fd/\d+")


def is_descriptor(path: object) -> bool:
    """Whether the path is that of an open file, such as a shell makes for ``<(zcat run.gz)``."""
    return isinstance(path, str | os.PathLike) and bool(_DESCRIPTOR.fullmatch(os.fspath(path)))


def replace_file(path: Path, data: bytes, only_new: bool = False) -> None:
    """Write a file in one step, so that a reader has the earlier content or the new one.

    A link of that name is replaced. What is no file, such as /dev/null, is written to as it is.
    only_new: refuse a name that is taken. Raises OSError, and then leaves nothing behind.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not only_new and not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            path.write_bytes(data)
            return
    new = path if only_new else path.with_name(f".{path.name[:_LONGEST]}.{os.getpid()}")
    if not only_new:
        new.unlink(missing_ok=True)  # of a process that was killed
    with open(new, "xb") as file:  # O_EXCL follows no link
        try:
            file.write(data)
            file.flush()
            if not only_new:
                os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def make_folder(path: Path) -> None:
    """Make a folder if it does not exist. Raises as ``check_folder`` does."""
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    check_folder(path)


def check_folder(path: Path) -> None:
    """Raises OSError if there is no folder. It is a NotRegularError also for a link to a folder."""
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise _not_regular(path, mode)


def move(source: Path, target: Path, folder: Path) -> None:
    """Rename a file of ``folder`` to a name below it. Raises OSError as ``open_to_write`` does."""
    with _opened_parent(target, folder) as (parent, name):
        os.rename(source, name, dst_dir_fd=parent)


@contextlib.contextmanager
def _opened_parent(
    path: Path, folder: str | os.PathLike[str] | None
) -> Iterator[tuple[int | None, str]]:
    """(descriptor of the folder of ``path``, name there), or (None, path) right in ``folder``."""
    below = path.relative_to(folder).parts if folder is not None else ()
    if len(below) < 2:
        yield None, os.fspath(path)
        return
    parent = os.open(Path(*path.parts[: -len(below)]), os.O_RDONLY)
    try:
        for number, name in enumerate(below[:-1], -len(below) + 1):
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=parent)
            except OSError as error:
                raise _explained(error, Path(*path.parts[:number])) from None
            os.close(parent)
            parent = inner
        yield parent, below[-1]
    finally:
        os.close(parent)


def _explained(error: OSError, path: str | os.PathLike[str], follow: bool = False) -> OSError:
    """The error that says what the path is, if that is the reason; else the error itself."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR):
        with contextlib.suppress(OSError):
            mode = os.stat(path, follow_symlinks=follow).st_mode
            if stat.S_IFMT(mode) in _KINDS:
                return _not_regular(path, mode)
    return error


def _checked(descriptor: int, path: str | os.PathLike[str]) -> int:
    """The descriptor of a regular file; any other is closed."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise _not_regular(path, mode)


def _not_regular(path: str | os.PathLike[str], mode: int) -> NotRegularError:
    name = os.path.basename(path) or os.fspath(path)
    kind = _KINDS.get(stat.S_IFMT(mode), "no directory" if stat.S_ISREG(mode) else "no file")
    return NotRegularError(errno.EINVAL, f"{name} is {kind}", os.fspath(path))


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
