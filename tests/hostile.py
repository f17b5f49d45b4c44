"""Small files that ask for a whole machine, and what reading them takes.

    python tests/hostile.py [NAME ...]

Each is read by the command in a process of its own; the table has its exit code, time (CPU) and
peak of memory. tests/test_hostile.py holds them to 1 GB.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MB = 1_000_000
_HEADER = b'{"record":"header","schema":"torchcoll/2","ranks":2}\n'
_TRAFFIC = (
    b'{"record":"header","schema":"torchcoll-traffic/2","source":"capture","ranks":1048576}\n'
)
_CASE = (
    b'{"record":"case","case":{"collective":"all_reduce","size_bytes":8},"status":"ok","ranks":2,'
)
_NCCL = b"n0:1:1 [0] NCCL INFO "


def _dump(ranks: str, entries: int = 1) -> bytes:
    entry = {
        "process_group": ["0", "default_pg"],
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": 1,
        "input_sizes": [[3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3]],
        "output_dtypes": ["Float"],
        "time_created_ns": 5,
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return json.dumps(
        {"version": "2.10", "pg_config": config, "entries": [entry] * entries}
    ).encode()


def _call(number: int) -> bytes:
    return (
        b'{"record":"call","rank":0,"collective":"all_reduce","bytes_in":8,"bytes_out":8,'
        b'"dtype":"float32","sequence":%d}\n' % number
    )


def _repeated(
    piece: bytes, size_bytes: int, before: bytes = b"", after: bytes = b""
) -> Iterator[bytes]:
    """Pieces of about 1 MB, so that the file and not its making takes memory."""
    yield before
    many = max(1, MB // len(piece))
    for _ in range(max(1, size_bytes // (many * len(piece)))):
        yield piece * many
    yield after


@dataclass(frozen=True)
class Hostile:
    """command: the words behind ``torchcoll``, and then the file. A name in .gz is packed."""

    command: str
    name: str
    content: Callable[[], Iterator[bytes]]


INPUTS = {
    "a dump of rank 90000000": Hostile(
        "trace", "rank0.json", lambda: iter([_dump("[0, 90000000]")])
    ),
    "a dump of rank 1048575": Hostile(
        "trace", "rank0.json", lambda: iter([_dump("[0, 1048575]", 2000)])
    ),
    "traffic of 1048576 ranks": Hostile(
        "show", "a.jsonl", lambda: iter([_TRAFFIC, *map(_call, range(2000)), b'{"record":"end"}\n'])
    ),
    "zeros, show": Hostile("show", "a.jsonl.gz", lambda: _repeated(b"0", 4000 * MB)),
    "zeros, log": Hostile("log", "a.log.gz", lambda: _repeated(b"0", 4000 * MB)),
    "zeros, trace": Hostile("trace", "rank0.json.gz", lambda: _repeated(b"0", 4000 * MB)),
    "zeros, convert": Hostile("convert", "a.txt.gz", lambda: _repeated(b"0", 4000 * MB)),
    "ends of lines, show": Hostile(
        "show", "a.jsonl.gz", lambda: _repeated(b"\n", 2000 * MB, _HEADER)
    ),
    "ends of lines, convert": Hostile("convert", "a.txt.gz", lambda: _repeated(b"\n", 2000 * MB)),
    "cases, show": Hostile(
        "show", "a.jsonl.gz", lambda: _repeated(_CASE + b'"size_bytes":8}\n', 2000 * MB, _HEADER)
    ),
    "numbers in a line, show": Hostile(
        "show",
        "a.jsonl.gz",
        lambda: _repeated(b"257,", 2000 * MB, _HEADER + _CASE + b'"cold_ns":[[', b"1]]}\n"),
    ),
    "lists in a line, show": Hostile(
        "show",
        "a.jsonl",
        lambda: _repeated(b"[],", 60 * MB, _HEADER + _CASE + b'"cold_ns":[', b"[]]}\n"),
    ),
    "broken records, show": Hostile(
        "show", "a.jsonl.gz", lambda: _repeated(b"x\n", 500 * MB, _HEADER)
    ),
    "events, trace": Hostile(
        "trace", "rank0.json.gz", lambda: _repeated(b"{},", 2000 * MB, b'{"traceEvents":[', b"{}]}")
    ),
    "calls, trace": Hostile(
        "trace",
        "rank0.json.gz",
        lambda: _repeated(
            b'{"ph":"X","cat":"cpu_op","name":"c10d::x","ts":1,"dur":9},',
            500 * MB,
            b'{"traceEvents":[',
            b"{}]}",
        ),
    ),
    "numbers, trace": Hostile(
        "trace", "rank0.json.gz", lambda: _repeated(b"257,", 2000 * MB, b'{"a":[', b"1]}")
    ),
    "messages, log": Hostile("log", "a.log.gz", lambda: _repeated(_NCCL + b"x\n", 2000 * MB)),
    "processes, log": Hostile(
        "log",
        "a.log",
        lambda: (b"n%d:1:1 [0] NCCL INFO NCCL version 2.20.3+cuda12\n" % n for n in range(500_000)),
    ),
    "communicators, log": Hostile(
        "log",
        "a.log.gz",
        lambda: _repeated(_NCCL + b"comm 0x1 rank 0 nranks 1 Init START\n", 2000 * MB),
    ),
    "handles, log": Hostile(
        "log", "a.log", lambda: (_NCCL + b"comm 0x%x rank 0 nranks 1\n" % n for n in range(20_000))
    ),
    "hosts inside lines, log": Hostile(
        "log",
        "a.log",
        lambda: (
            b"n%d:1:1 [0] NCCL INFO xm%d:1:1 [0] NCCL INFO x\n" % (n, n) for n in range(16_000)
        ),
    ),
    "plugins, log": Hostile(
        "log",
        "a.log.gz",
        lambda: _repeated(_NCCL + b"Successfully loaded external tuner plugin p\n", 2000 * MB),
    ),
    "letters, log": Hostile(
        "log",
        "a.log.gz",
        lambda: _repeated(2 * (8000 * b"a" + b" NCCL INFO x") + b"\n", 8 * MB),
    ),
    "rows, import": Hostile(
        "convert",
        "a.csv",
        lambda: _repeated(b"1024,3.5,1,1\n", 100 * MB, b"size,time,algbw,busbw\n"),
    ),
    "cut JSON, import": Hostile(
        "convert",
        "a.json",
        lambda: _repeated(b'{"size":8},', 20 * MB, b'{"nccl_version":1,"results":[', b'"'),
    ),
    "nested JSON, trace": Hostile(
        "trace", "rank0.json", lambda: _repeated(b"[", 50 * MB, b'{"a":')
    ),
    "nested JSON, show": Hostile("show", "a.jsonl", lambda: _repeated(b"[", 50 * MB, _HEADER)),
    "nested XML, log": Hostile("log", "a.xml", lambda: _repeated(b"<pci>", 20 * MB, b"<system>")),
    "elements, log": Hostile(
        "log", "a.xml.gz", lambda: _repeated(b"<gpu/>\n", 500 * MB, b"<system>", b"</system>")
    ),
    "devices, log": Hostile(
        "log",
        "a.xml",
        lambda: (
            part
            for parts in (
                [b'<system version="1"><cpu numaid="0">\n'],
                (
                    b'<pci busid="%d"><gpu dev="%d" rank="%d" sm="90"/></pci>\n' % (n, n, n)
                    for n in range(20000)
                ),
                (
                    b'<nic><net name="n%d" dev="%d" speed="1"/></nic>\n' % (n, n)
                    for n in range(20000)
                ),
                [b"</cpu></system>"],
            )
            for part in parts
        ),
    ),
    "a long line of a log": Hostile("log", "a.log", lambda: _repeated(b"a", 50 * MB, _NCCL)),
    "a long row, import": Hostile(
        "convert", "a.txt", lambda: _repeated(b"a ", 50 * MB, b"1 1 float [ ")
    ),
}


def write(name: str, folder: Path) -> Path:
    one = INPUTS[name]
    path = folder / one.name
    packed: dict[bytes, bytes] = {}  # members of a .gz, one behind the other, each packed once
    with open(path, "wb") as file:
        for part in one.content():
            if path.suffix == ".gz" and part not in packed:
                packed[part] = gzip.compress(part)
            file.write(packed.get(part, part))
    return path


def read(name: str, path: Path, limit_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command on this file, alone. limit_bytes: of its address space."""

    def limited() -> None:
        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    words = [sys.executable, "-m", "torchcoll", INPUTS[name].command, str(path)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        words, capture_output=True, text=True, preexec_fn=limited, env=environment, check=False
    )


def row(name: str, command: str, path: Path) -> str:
    """A line of the table: the command on this file, alone."""
    script = (
        "import resource, subprocess, sys\n"
        f"words = [sys.executable, '-m', 'torchcoll', *{command.split()!r}, {str(path)!r}]\n"
        "done = subprocess.run(words, capture_output=True, text=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss)\n"
        "said = done.stderr.strip() or done.stdout.strip() or '-'\n"
        "print(said.splitlines()[-1][:300])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    figures, said = done.stdout.splitlines()[:2]
    code, seconds, peak = figures.split()
    said = said.replace(str(path), path.name)
    return (
        f"{name:30}{path.stat().st_size:>12}{code:>6}{float(seconds):>9.1f}"
        f"{int(peak) * 1024 // MB:>7}  {said[:150]}"
    )


def heading() -> None:
    print(f"# Python {platform.python_version()}; CPU seconds; peak of the process")
    print(f"{'input':30}{'bytes':>12}{'exit':>6}{'seconds':>9}{'MB':>7}  said", flush=True)


def main() -> int:
    heading()
    for name in sys.argv[1:] or INPUTS:
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, INPUTS[name].command, write(name, Path(folder))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
