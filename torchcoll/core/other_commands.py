"""Finds the command of torchcoll that reads a file, for the error of another command."""

from __future__ import annotations

import os
import re
import shlex
import zlib

from torchcoll.core.bounds import GZIP
from torchcoll.core.opening import is_stdin
from torchcoll.core.parts import functions_of

_BEGIN = 1 << 16  # bytes that are looked at
# A profiler's trace (Kineto), or a dump of the Flight Recorder, as JSON or as a pickle.
TRACE = re.compile(
    rb'\A\s*\{[^\0]*?"(?:traceEvents|pg_config|pg_status|collective_seq_id)"\s*:'
    rb"|\A\x80[\s\S]*?pg_(?:config|status)"
)
# In the order in which they are tried: a log may hold the output of a benchmark, and `show` reads
# it then.
_READERS = (
    ("trace", TRACE),
    ("trace", re.compile(rb'\A\s*\{[^\n]*"schema":\s*"torchcoll-traffic/')),
    ("show", re.compile(rb'\A\s*\{[^\n]*"record":[^\n]*"schema":\s*"torchcoll/')),
    ("log", re.compile(rb"\A(?:\xef\xbb\xbf)?\s*(?:<(?:\?|!--)[^>]*>\s*)*<system\b")),
    (
        "pairs",
        re.compile(
            rb"# OSU MPI[\w-]* (?:(?:Bi-Directional )?Bandwidth|Latency|(?:MPI_)?(?:Put|Get)[\w ]*)"
            rb" Test|^[ \t]*(?:RDMA_(?:Read|Write)|Send)\b[^\n]{0,60} BW Test",
            re.MULTILINE,
        ),
    ),
    (
        "show",
        re.compile(
            rb"# nThread \d+ nGpus |Avg bus bandwidth|# OSU MPI|# Benchmarking:? |MPI Benchmarks? "
            rb"|COMMS-RES|---- Performance of |Time, us|data_size\(Bytes\)"
        ),
    ),
    ("nightly", re.compile(rb"\ASQLite format 3\0")),
    ("trace", re.compile(rb'"coll_exec_time_us"')),
    ("log", re.compile(rb" NCCL (?:INFO|WARN|TRACE|CALL) |\d\)? ?\|CCL_[A-Z]+\|")),
)
# What to do instead of reading figures of pairs of ranks.
PAIRS = "torchrun -m torchcoll.pairs measures the links between ranks."
# Tools whose output has no collectives, how it is recognised, and what to do instead.
_WITHOUT_COLLECTIVES = (
    (
        "nvbandwidth, which copies between GPUs and hosts",
        re.compile(rb'^[ \t]*nvbandwidth Version:|"nvbandwidth"\s*:', re.MULTILINE),
        PAIRS,
    ),
    (
        "perftest, which sends between two hosts",
        re.compile(
            rb"^[ \t]*(?:RDMA_(?:Read|Write)|Send|Atomic)\b[^\n]{0,60} (?:BW|Latency) Test"
            rb"|^[ \t]*#bytes[ \t]+#iterations[ \t]",
            re.MULTILINE,
        ),
        PAIRS,
    ),
    (
        "NCCL's RAS, which reports the state of a job",
        re.compile(rb"\bper node +per process +\(total\)"),
        "torchcoll postmortem reads it with what else a job left.",
    ),
)


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
