"""What an argument is: a store, which is an SQLite file or a PostgreSQL database, or good runs.

Nothing here imports SQLAlchemy: a command that is given files alone needs none.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from torchcoll.core.errors import (
    UnavailableError,
    UnreadableError,
    UsageError,
    install_text,
    missing_file,
)
from torchcoll.core.opening import open_to_read

DEFAULT_STORE = "torchcoll.sqlite"
INSTALL = install_text("store")
_MAGIC = b"SQLite format 3\0"
_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")
MARK = "torchcoll_good_runs"  # the first key of a file of ``check --learn``: its version
_FIRST_BYTES = 64
_EXPECTED = "the path of an SQLite file, or postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True)
class StoreAddress:
    """Where a store is.

    name: what is printed, which holds no password. path: of an SQLite file, None for PostgreSQL.
    url: of a PostgreSQL database, with its password if it has one; '' for SQLite.
    """

    name: str
    path: Path | None = None
    url: str = field(default="", repr=False)


def is_store(argument: str | os.PathLike[str]) -> bool:
    """Whether an argument is a store: a URL, or a file that SQLite wrote."""
    text = os.fspath(argument)
    if _scheme(text):
        return True
    try:
        if not os.path.isfile(text):
            return False
        with open_to_read(text) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def is_good_runs(path: str | os.PathLike[str]) -> bool:
    """Whether ``torchcoll check --learn`` wrote a file."""
    try:
        with open_to_read(path) as file:
            return f'"{MARK}"'.encode() in file.read(_FIRST_BYTES)
    except OSError:
        return False


def parse_address(argument: str, *, new: bool = False) -> StoreAddress:
    """Returns the address of a store; new: the file need not exist yet.

    Raises UsageError for another kind of database or a malformed URL, UnreadableError for a file
    that is missing or that SQLite did not write, UnavailableError where a library is missing.
    """
    scheme = _scheme(argument)
    if scheme:
        address = _parse_url(argument, scheme)
        _require("psycopg")
        return address
    path = Path(argument)
    if not argument or path.is_dir():
        raise (UsageError if new else UnreadableError)("store", argument, _EXPECTED)
    if not path.exists():
        if not new:
            raise missing_file(argument)
        if not path.absolute().parent.is_dir():
            raise UsageError("store", argument, "a file in a folder that exists")
    # A collect that was killed before its first commit leaves an empty file.
    elif not is_store(path) and not (new and path.is_file() and path.stat().st_size == 0):
        raise UnreadableError("store", argument, _EXPECTED)
    _require()
    return StoreAddress(argument, path=path.absolute())


def _scheme(text: str) -> str:
    """``postgresql`` of a URL; '' of a path, also of one that holds ``://`` and exists."""
    scheme, separator, _ = text.partition("://")
    return scheme.lower() if separator and "/" not in scheme and not os.path.exists(text) else ""


def _parse_url(text: str, scheme: str) -> StoreAddress:
    """No message shows the URL itself, which may hold a password anywhere if it is malformed."""
    if scheme not in _POSTGRESQL:
        raise UsageError("store", f"a URL of {scheme}", _EXPECTED)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        refused = "a malformed URL (not shown: it may hold a password)"
        action = "Write special characters of the password as %XX, or keep it in ~/.pgpass."
        raise UsageError("store", refused, "postgresql://USER@HOST:PORT/DATABASE", action) from None
    user = f"{unquote(parts.username)}@" if parts.username else ""
    shown = f"{user}{host}{f':{port}' if port else ''}{parts.path}"
    return StoreAddress(f"postgresql://{shown}", url=text.partition("://")[2])


def _require(driver: str = "") -> None:
    """Raises UnavailableError unless SQLAlchemy and the driver of the database are installed."""
    for module, name in (("sqlalchemy", "SQLAlchemy 2"), (driver, f"{driver} 3")):
        if module and importlib.util.find_spec(module) is None:
            raise UnavailableError("store", f"no {module}", name, INSTALL)
