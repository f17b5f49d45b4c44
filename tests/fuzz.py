"""Every reader on inputs that are nearly right: nothing may be raised but torchcoll's own errors.

    python tests/fuzz.py [--count 5000] [--first 0] [READER ...]

Each input is a small real-looking one that was changed in one to four places, and is read and shown
as the commands do it. The same number always makes the same input. The time is that of the CPU: a
busy machine is no fault of a reader. tests/test_fuzz.py runs some of each.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import pickle
import pickletools
import platform
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import made_rings

from torchcoll.cli import main as torchcoll_main
from torchcoll.core.errors import TorchcollError, UnreadableError
from torchcoll.core.traffic import Traffic
from torchcoll.libraries.dumps import read_dump
from torchcoll.libraries.job_logs import file_rows, group_jobs, job_log, read_log
from torchcoll.libraries.show import show_logs
from torchcoll.parts.experiments.blocks import make_plan
from torchcoll.parts.experiments.folder import Folder
from torchcoll.parts.experiments.matrix_command import show_summary
from torchcoll.parts.experiments.run import summary
from torchcoll.parts.postmortem import (
    call_evidence,
    job_clusters,
    log_evidence,
    stack_evidence,
)
from torchcoll.parts.postmortem.diagnose import diagnose
from torchcoll.parts.training.traces import read_traffic
from torchcoll.parts.training.traffic_show import VIEWS, show_traffic
from torchcoll.questions.show.show import show
from torchcoll.reading.inputs import load
from torchcoll.reading.registry import import_file

LIMIT_S = 1.0
# One real-looking input a file.
INPUTS = Path(__file__).parent / "fuzz_inputs"
LOGS = ("torch.log", "torchrun.log", "cluster.log", "pod.log", "job_nccl.log", "ras.log")
_FOLDER = Path(__file__).parent / "reading" / "threads"
_TRUTHS = [json.loads(line) for line in (_FOLDER / "truth.jsonl").read_text().splitlines()]
_THREADS = tuple((_FOLDER / each["file"]).read_text() for each in _TRUTHS if "cases" in each)
_DEAD = tuple(p.read_text() for p in sorted((INPUTS.parent / "postmortem/public").glob("*.log")))
_PAIRS = tuple((_FOLDER / each["file"]).read_text() for each in _TRUTHS if "pairs" in each)
# In batches: format v4.3, in which the first record of a communicator has what all have in common.
INSPECTOR = ("inspector.jsonl", "inspector_batches.jsonl")


def seed(name: str) -> str:
    """The text of an input."""
    return (INPUTS / name).read_bytes().decode()


def _lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


_COMMAND = ["true", "-m", "torchcoll.allreduce"]
_PLAN, _ = make_plan(_COMMAND, ["NCCL_NTHREADS=64,128"], runs=2)
MANIFEST = _lines(
    {"record": "matrix", "schema": "torchcoll-matrix/1", "spec": _PLAN.to_json()},
    *(
        {
            "record": "run",
            "cell": cell.name,
            "run": 1,
            "status": "ok",
            "reason": "",
            "seconds": 3.25,
            "exit_code": 0,
            "file": f"{cell.name}-1.jsonl",
            "axes": {},
            "variables": {},
        }
        for cell in _PLAN.cells
    ),
)


def _shown(*results: Any) -> None:
    for format in ("table", "csv", "json"):
        show(*results, format=format, file=io.StringIO())


def _result(path: Path) -> None:
    _shown(load(path))


def _importer(name: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        imported = import_file(str(path), None, name)
        imported.refusals()
        if imported.runs:
            _shown(*imported.runs)

    return read


def _imported(path: Path) -> None:
    imported = import_file(str(path))
    imported.refusals()


def _answered(path: Path) -> None:
    """As ``torchcoll PATH``."""
    with contextlib.redirect_stdout(io.StringIO()):
        code = torchcoll_main([str(path)])
    if code not in (0, 1):
        raise UnreadableError("file", "x", "y")


def _dumps(path: Path) -> None:
    """A file next to one of the same rank and one of another."""
    data = path.read_bytes()
    for name, content in (
        ("rank1.json", data),
        ("b-rank0.json", seed("flight_recorder.json").encode()),
    ):
        (path.parent / name).write_bytes(content)
    _shown(read_traffic([path.parent]))


def _arrived(path: Path) -> None:
    """As ``torchcoll trace``, with all views."""
    for format in ("table", "csv", "json"):
        show_traffic([read_traffic([path])], format, io.StringIO(), VIEWS)


def _evidence(reader: ModuleType) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        if reader.recognizes(path, path.read_bytes()[: 1 << 16]):
            evidence = reader.read_evidence(path, path.name)
            for item in evidence:
                item.check_ranks()
            for job in job_clusters.jobs_of(
                [job_clusters.FileEvidence(path.name, e) for e in evidence]
            ):
                diagnose(job)

    return read


# The texts of a ring without check sums, so that changes reach what they guard; then the calls.
_RING = b"\n\n".join(
    (
        _lines(made_rings.HEADER, made_rings.GROUP, *made_rings.TEXTS).strip().encode(),
        made_rings.call(4096, 7, 1_000_500_000) + made_rings.call(1, 8, 0),
    )
)


def _ring(path: Path) -> None:
    texts, _, calls = path.read_bytes().partition(b"\n\n")
    path.write_bytes((made_rings.ring()[:64] + texts).ljust(1 << 16, b"\0") + calls)
    _evidence(call_evidence)(path)


def _log(path: Path) -> None:
    reader, _ = read_log(str(path))
    for format in ("table", "json"):
        jobs = [job_log(job) for job in group_jobs([reader])]
        show_logs(jobs, file_rows([reader]), format, io.StringIO())


def _dump(path: Path) -> None:
    dump, _ = read_dump(str(path))
    for format in ("table", "json"):
        show_logs([], [], format, io.StringIO(), dumps=[dump])


def _manifest(path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), Folder(path.parent, _PLAN.to_json()) as folder:
        show_summary(summary(_PLAN, folder), [])


@dataclasses.dataclass(frozen=True)
class Reader:
    """read: reads and shows a file. inputs: names in INPUTS. name: of the file that is read. made:
    inputs that are made here.
    """

    read: Callable[[Path], object]
    inputs: tuple[str, ...]
    name: str = "input"
    made: tuple[str | bytes, ...] = ()

    @functools.cached_property
    def seeds(self) -> tuple[str | bytes, ...]:
        return (*map(seed, self.inputs), *self.made)


def _pickled(*protocols: int) -> tuple[bytes, ...]:
    dump = json.loads(seed("flight_recorder.json"))
    return tuple(pickle.dumps(dump, protocol) for protocol in protocols)


def _read_traffic(path: Path) -> None:
    _shown(read_traffic([path]))


READERS = {
    "result file": Reader(_result, ("result.jsonl",), "a.jsonl"),
    "traffic": Reader(lambda path: _shown(Traffic.load(path)), ("traffic.jsonl",), "a.jsonl"),
    "nccl-tests text": Reader(_importer("nccl-tests"), ("nccl_tests.txt",)),
    "nccl-tests JSON": Reader(_importer("nccl-tests-json"), ("nccl_tests.json",)),
    "oneCCL benchmark": Reader(_importer("oneccl"), ("oneccl.txt", "oneccl.csv")),
    "OSU": Reader(_importer("osu"), ("osu.txt",)),
    "Intel MPI Benchmarks": Reader(_importer("imb"), ("imb.txt",)),
    "UCC perftest": Reader(_importer("ucc"), ("ucc.txt",)),
    "PARAM": Reader(_importer("param"), ("param.txt",)),
    "DeepSpeed": Reader(_importer("deepspeed"), ("deepspeed.txt",)),
    "NCCL Inspector traffic": Reader(_arrived, INSPECTOR, "n0-pid7.log"),
    "pairs": Reader(_importer("pairs"), (), made=_PAIRS),
    "threads": Reader(_imported, (), made=_THREADS),
    "torchcoll PATH": Reader(_answered, (), "input.txt", made=_THREADS),
    "plain table": Reader(_importer("plain"), ("plain.md", "rccl.csv")),
    "Kineto": Reader(_read_traffic, ("kineto.json",), "rank0.json"),
    "Flight Recorder": Reader(_read_traffic, ("flight_recorder.json",), "rank0.json"),
    "Flight Recorder pickle": Reader(_read_traffic, (), "rank0.pickle", _pickled(2, 3, 4)),
    "dumps of several jobs": Reader(_dumps, ("flight_recorder.json",), "rank0.json"),
    "recorder evidence": Reader(
        _evidence(call_evidence), ("flight_recorder.json",), "rank0.json", _pickled(2)
    ),
    "log evidence": Reader(_evidence(log_evidence), LOGS, "rank3.log", made=_DEAD),
    "stack evidence": Reader(_evidence(stack_evidence), ("stacks.txt",), "rank3.txt"),
    "call ring": Reader(_ring, (), made=(_RING,)),
    "capture evidence": Reader(_evidence(call_evidence), ("ring_stacks.txt",)),
    "NCCL log": Reader(_log, ("nccl.log",)),
    "oneCCL log": Reader(_log, ("oneccl.log",)),
    "XML": Reader(_dump, ("topology.xml",)),
    "manifest": Reader(_manifest, (), "manifest.jsonl", (MANIFEST,)),
}

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_VALUE = re.compile(r'"[^"\n]*"|-?\d+(?:\.\d+)?|\[[^\[\]]*\]|null|true|false')
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBERS = (
    "9" * 5000,
    "1e308",
    "-1",
    "0",
    "²",
    "٣",
    "1e999",
    "NaN",
    "Infinity",
    "9" * 20,
    "1e-320",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "0.1",
    "-0",
    "1e18",
    "007",
    "1" * 400,
    "2147483647",
    "1048577",
    "0x10",
    "1_000",
    "+1",
    ".",
    "1e",
    "-1e308",
    "90000000",
)
_VALUES = (
    "{}",
    "[]",
    "null",
    "true",
    "false",
    '""',
    "[[]]",
    "[null]",
    '{"a": []}',
    '"x"',
    "0",
    "-1",
    "1.5",
    "[1e308]",
    "[-1]",
    "[1, 2, 3]",
    '"\\ud800"',
    '"\\u0000"',
    "9" * 5000,
    '[{"a": 1}]',
    "1e400",
    "[[1e308]]",
    '["²"]',
    '"[0, 90000000]"',
    '"[' + "0," * 50 + '0]"',
    "[0, 90000000]",
    "[[[]]]",
)
_WORDS = (
    "",
    "\x1b[31m",
    "\x00",
    "\u202e",
    "²",
    "é",
    "a b",
    "=1+1",
    "null",
    "x" * 300,
    "\ud800",
    "%s",
)


def changed(text: str | bytes, random: random.Random) -> bytes:
    """The input with one to four changes."""
    if isinstance(text, bytes):
        for _ in range(random.randint(1, 4)):
            text = random.choice(_BINARY_CHANGES)(text, random)
        return text
    for _ in range(random.randint(1, 4)):
        text = random.choice(_CHANGES)(text, random)
    data = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.05 and data:
        index = random.randrange(len(data))
        data = data[:index] + bytes([random.randrange(256)]) + data[index + 1 :]
    return data


def _replaced(pattern: re.Pattern[str], by: tuple[str, ...]) -> Callable[[str, random.Random], str]:
    def change(text: str, random: random.Random) -> str:
        matches = list(pattern.finditer(text))
        if not matches:
            return text
        match = random.choice(matches)
        return text[: match.start()] + random.choice(by) + text[match.end() :]

    return change


def _other_value(text: str, random: random.Random) -> str:
    """One value in the place of another of the same input."""
    matches = list(_VALUE.finditer(text))
    if not matches:
        return text
    match, other = random.choice(matches), random.choice(matches)
    return text[: match.start()] + other[0] + text[match.end() :]


def _cut(text: str, random: random.Random) -> str:
    return text[: random.randrange(len(text) + 1)]


def _without(text: str, random: random.Random) -> str:
    start = random.randrange(len(text) + 1)
    return text[:start] + text[start + random.randint(1, 40) :]


def _line(text: str, random: random.Random) -> str:
    """A line twice, away, or elsewhere."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    line = random.choice(lines)
    if random.random() < 0.5:
        lines.remove(line)
    if random.random() < 0.7:
        lines.insert(random.randrange(len(lines) + 1), line)
    return "".join(lines)


def _repeated(text: str, random: random.Random) -> str:
    """A character or a short piece, many times."""
    if not text:
        return text
    start = random.randrange(len(text))
    piece = text[start : start + random.choice((1, 1, 2, 5, 20))]
    return text[:start] + piece * random.choice((3, 100, 3000)) + text[start:]


def _nested(text: str, random: random.Random) -> str:
    index = random.randrange(len(text) + 1)
    return text[:index] + random.choice(("[", "{", '{"a":', "<a>", "(")) * 3000 + text[index:]


_CHANGES = (
    *[_replaced(_NUMBER, _NUMBERS)] * 3,
    *[_replaced(_VALUE, _VALUES)] * 3,
    *[_replaced(_WORD, _WORDS)] * 2,
    _other_value,
    _other_value,
    _cut,
    _without,
    _line,
    _repeated,
    _nested,
)


def _other_byte(data: bytes, random: random.Random) -> bytes:
    """Half of them instructions of a pickle."""
    index = random.randrange(len(data) + 1)
    byte = random.choice(_INSTRUCTIONS) if random.random() < 0.5 else random.randbytes(1)
    return data[:index] + byte + data[index + 1 :]


def _more_bytes(data: bytes, random: random.Random) -> bytes:
    index = random.randrange(len(data) + 1)
    return data[:index] + random.choice(_PIECES) + data[index:]


def _repeated_bytes(data: bytes, random: random.Random) -> bytes:
    start = random.randrange(len(data) + 1)
    piece = data[start : start + random.choice((1, 2, 5, 40))]
    return data[:start] + piece * random.choice((2, 100, 3000)) + data[start:]


def _without_bytes(data: bytes, random: random.Random) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + data[start + random.randint(1, 40) :]


def _cut_bytes(data: bytes, random: random.Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _moved_bytes(data: bytes, random: random.Random) -> bytes:
    """A piece of it in place of another."""
    first, second = (random.randrange(len(data) + 1) for _ in range(2))
    length = random.randint(1, 60)
    return data[:first] + data[second : second + length] + data[first + length :]


_INSTRUCTIONS = tuple(code.code.encode("latin-1") for code in pickletools.opcodes)
_PIECES = (
    b"cos\nsystem\n",
    b"cbuiltins\neval\n(Vx\ntR",
    b"\x8c\x02os\x8c\x06system\x93)R",
    b"]q\0h\0a",
    b"B\xff\xff\xff\xff",
    b"\x8e" + b"\xff" * 8,
    b"\x8b\xff\xff\xff\x7f",
    b"r\xff\xff\xff\x7f",
    b"]" * 3000,
    b"(" * 3000,
    b"}" * 3000,
    b"2" * 3000,
    b"1" * 50,
    b"\x85" * 3000,
    b"\x86" * 20,
    b"L" + b"9" * 5000 + b"L\n",
    b"F1e999\n",
    b"G\x7f\xf8" + b"\0" * 6,
    b"\x8a\xff" + b"\xff" * 255,
    b"X\x03\0\0\0\xed\xa0\x80",
    b"\x95" + b"\xff" * 8,
    b"I00\n",
    b"\x88",
    b"N",
    b"K\x01",
    b")",
)
_BINARY_CHANGES = (
    _other_byte,
    _other_byte,
    _other_byte,
    _more_bytes,
    _more_bytes,
    _repeated_bytes,
    _without_bytes,
    _cut_bytes,
    _moved_bytes,
)


@dataclasses.dataclass
class Outcome:
    """What happened to the inputs of one reader."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    uncaught: dict[str, int] = dataclasses.field(
        default_factory=dict
    )  # where -> number of an input
    slow: list[int] = dataclasses.field(default_factory=list)
    longest_s: float = 0.0


def run(name: str, numbers: range, folder: Path) -> Outcome:
    """Read these inputs of a reader."""
    reader, outcome = READERS[name], Outcome()
    path = folder / reader.name
    for number in numbers:
        source = random.Random(f"{name}/{number}")
        path.write_bytes(changed(source.choice(reader.seeds), source))
        began = time.process_time()
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                reader.read(path)
            outcome.counts["read"] += 1
        except TorchcollError as error:
            assert error.line().isprintable(), f"{name} {number}: {error.line()!r}"
            outcome.counts["refused"] += 1
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = (
                f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno} {last.name}"
            )
            outcome.uncaught.setdefault(where, number)
            outcome.counts["uncaught"] += 1
        seconds = time.process_time() - began
        outcome.longest_s = max(outcome.longest_s, seconds)
        if seconds > LIMIT_S:
            outcome.slow.append(number)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="show where the first one was raised")
    options = parser.parse_args()
    last = options.first + options.count - 1
    print(f"# Python {platform.python_version()}, inputs {options.first} to {last}")
    heads = f"{'inputs':>8}{'read':>8}{'refused':>9}{'uncaught':>10}{'over 1 s':>10}{'longest':>10}"
    print(f"{'reader':20}{heads}")
    bad = 0
    for name in options.readers or READERS:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(name, range(options.first, options.first + options.count), Path(folder))
        counts = [outcome.counts[kind] for kind in ("read", "refused", "uncaught")]
        print(
            f"{name:20}{options.count:>8}{counts[0]:>8}{counts[1]:>9}{counts[2]:>10}"
            f"{len(outcome.slow):>10}{outcome.longest_s:>8.2f} s",
            flush=True,
        )
        for where, number in outcome.uncaught.items():
            print(f"    {where}: input {number}", file=sys.stderr)
        for number in outcome.slow[:3]:
            print(f"    over {LIMIT_S:g} s: input {number}", file=sys.stderr)
        bad += counts[2] + len(outcome.slow)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"# largest memory of the process: {peak_mib} MiB")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
