"""Finds the command of torchcoll that reads a file, for the error of another command."""

from __future__ import annotations

import os
import re
import shlex
import zlib
from pathlib import Path

from torchcoll.core.bounds import GZIP
from torchcoll.core.opening import is_stdin
from torchcoll.core.parts import functions_of
from torchcoll.core.toml_text import toml_table

_BEGIN = 1 << 16  # bytes that are looked at
# A profiler's trace (Kineto), or a dump of the Flight Recorder, as JSON or as a pickle.
TRACE = re.compile(
    rb'\A\s*\{[^\0]*?"(?:traceEvents|pg_config|pg_status|collective_seq_id)"\s*:'
    rb"|\A\x80[\s\S]*?pg_(?:config|status)"
)
_TABLE = toml_table(Path(__file__).with_name("recognised.toml").read_text(encoding="utf-8"))
# (command, pattern), in the order in which they are tried.
_READERS = [("trace", TRACE)]
_READERS += [(each["command"], re.compile(each["pattern"].encode())) for each in _TABLE["reader"]]
# What to do instead of reading figures of pairs of ranks.
PAIRS = "torchrun -m torchcoll.pairs measures the links between ranks."
# (tool, pattern, next action) of tools whose output has no collectives.
_WITHOUT_COLLECTIVES = [
    (each["tool"], re.compile(each["pattern"].encode()), each.get("action", PAIRS))
    for each in _TABLE["without_collectives"]
]


def without_collectives(begin: bytes) -> tuple[str, str]:
    """(tool, next action) for the output of a tool without collectives; else ('', '')."""
    for tool, pattern, action in _WITHOUT_COLLECTIVES:
        if pattern.search(begin):
            return tool, action
    return "", ""


def reading_command(begin: bytes, path: str, command: str) -> str:
    """'torchcoll log x.log reads it.' for a file that begins so; '' if only ``command`` does."""
    names = reading_commands(begin)
    names += [name for reads in functions_of("answers", "reads") if (name := reads(path, begin))]
    if not names or names[0] == command:
        return ""
    return f"torchcoll {names[0]} {'-' if is_stdin(path) else shlex.quote(str(path))} reads it."


def reading_commands(text: bytes) -> list[str]:
    """The commands of the kernel that read a file with this text at its beginning or end."""
    return [*dict.fromkeys(name for name, pattern in _READERS if pattern.search(text))]


def end_of(path: str) -> bytes:
    """The last bytes of a file that is not compressed; b'' if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BEGIN))
            end = file.read(_BEGIN)
            file.seek(0)
            return b"" if file.read(len(GZIP)) == GZIP else end
    except OSError:
        return b""


def begin_of(path: str) -> bytes:
    """The first bytes of a file, decompressed; b'' if it cannot be read, or is a pipe or device."""
    if not os.path.isfile(path):
        return b""
    try:
        with open(path, "rb") as file:
            begin = file.read(_BEGIN)
        if begin.startswith(GZIP):
            return zlib.decompressobj(31).decompress(begin, _BEGIN)
        return begin
    except (OSError, zlib.error):
        return b""
