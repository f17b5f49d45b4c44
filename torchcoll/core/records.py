"""The result file: JSON Lines, one object a line, first key ``record`` (DESIGN section 7).

Records: header, ranks, phase, started, case, event, end. The writer makes each line durable; the
reader reports what it cannot use as ``problems`` and never throws on a broken line.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from torchcoll.core.case import Case
from torchcoll.core.errors import TorchcollError, UnreadableError, UsageError
from torchcoll.core.result import CaseResult, Run

SCHEMA = "torchcoll/1"


class Writer:
    """Appends records to a new file; rank 0 has one. Refuses a file that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refused = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open(path, "xb", buffering=0)  # noqa: SIM115
        except OSError as error:
            # A FileExistsError may also mean that the parent is a file.
            if isinstance(error, FileExistsError) and os.path.lexists(path):
                raise UsageError(
                    "output", path, "a file that does not exist", "Name another file or remove it."
                ) from None
            raise UsageError(
                "output",
                path,
                f"a file that can be written ({error.strerror})",
                "Name another with --output, or none with --no-output.",
            ) from None

    def write(self, record: str, data: dict[str, Any], durable: bool = False) -> None:
        """One line in one write. ``durable``: on disk when this returns.

        Raises TorchcollError when the disk refuses it; later records are then dropped in silence.
        """
        if self._refused:
            return
        line = json.dumps({"record": record, **data}, separators=(",", ":"), allow_nan=False)
        rest = memoryview(line.encode() + b"\n")
        try:
            while rest:  # a disk that is nearly full takes a part, and then refuses
                rest = rest[self._file.write(rest) :]
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._refused = True
            raise TorchcollError(
                f"result file {self.path}",
                error.strerror,
                "a disk that takes the next record",
                "Make room, then go on with --resume.",
            ) from None

    def close(self) -> None:
        self._file.close()


def records_of(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a run in file order."""
    yield "header", {"schema": SCHEMA, **run.header}
    if run.members:
        yield "ranks", {"ranks": run.members}
    for name, ns in run.phases.items():
        yield "phase", {"name": name, "ns": ns}
    for result in run.results:
        yield "case", result.to_json()
    for event in run.events:
        yield "event", event
    if run.in_flight is not None:
        yield "started", {"case": run.in_flight.to_json()}
    if run.end is not None:
        yield "end", run.end


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """Write ``run`` to a new file. Raises UsageError when it exists or cannot be written."""
    writer = Writer(Path(path))
    try:
        for record, data in records_of(run):
            writer.write(record, data)
    finally:
        writer.close()


def load(path: str | os.PathLike[str]) -> Run:
    """The run in a result file, together with its continuations FILE.2, FILE.3, ... (--resume).

    A file without an ``end`` loads with what it has; ``run.problems`` says so. Raises
    UnreadableError when the file is missing, is not a torchcoll file, or has another major schema.
    """
    path = Path(path)
    run = _read_file(path)
    number = 2
    while os.path.isfile(further := path.with_name(f"{path.name}.{number}")):
        try:
            _merge(run, _read_file(further))
        except UnreadableError as error:  # killed before its header was written
            run.problems.append(str(error))
        number += 1
    _judge(run)
    return run


def _merge(run: Run, further: Run) -> None:
    repeated = {result.case for result in further.results}
    run.results = [r for r in run.results if r.case not in repeated] + further.results
    run.events += further.events
    run.problems += further.problems
    run.end, run.in_flight = further.end, further.in_flight


def _judge(run: Run) -> None:
    if run.end is None:
        flight = f"; in flight: {run.in_flight.describe()}" if run.in_flight else ""
        run.problems.append(f"truncated: the file has no end record{flight}")
    elif run.ending:
        run.problems.append(run.ending)


def _read_file(path: Path) -> Run:
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
            return read_lines(lines, path)
    except FileNotFoundError:
        raise UnreadableError("result file", path, "a file that exists") from None
    except IsADirectoryError:
        raise UnreadableError("result file", path, "a file, not a folder") from None
    except OSError as error:
        why = error.strerror or error  # gzip's own errors have no strerror
        raise UnreadableError("result file", path, f"a readable file ({why})") from None


def read_lines(lines: Iterable[bytes], path: Path) -> Run:
    """The run in these lines. Raises UnreadableError when the first is no torchcoll header."""
    run = Run(path=path)
    for number, line in enumerate(_until_cut(lines, run), 1):
        if number == 1:
            run.header = _header(line, path)
            continue
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            handler = _HANDLERS.get(data.pop("record"))
            if handler:
                handler(run, data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            cut = "" if line.endswith(b"\n") else " (cut off)"
            run.problems.append(f"{path}:{number}: unusable record{cut}: {_brief(error)}")
    if not run.header:
        raise UnreadableError("result file", path, "a torchcoll result file; this one is empty")
    return run


def _until_cut(lines: Iterable[bytes], run: Run) -> Iterator[bytes]:
    # A .gz that was copied in part gives its lines up to the cut.
    try:
        yield from lines
    except (EOFError, zlib.error) as error:
        run.problems.append(f"{run.path}: cut off or damaged: {_brief(error)}")


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def _header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
        schema = header["schema"] if header["record"] == "header" else None
        if not isinstance(schema, str) or not schema.startswith("torchcoll/"):
            raise KeyError
        if not all(isinstance(header.get(name) or {}, dict) for name in ("spec", "environment")):
            raise TypeError
        int(header.get("ranks") or 0)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnreadableError(
            "result file",
            path,
            'a torchcoll result file, whose first line holds "schema":"torchcoll/1"',
        ) from None
    if schema.split("/")[1].split(".")[0] != SCHEMA.split("/")[1]:
        raise UnreadableError(
            f"schema of {path}", schema, SCHEMA, "Install the torchcoll version that wrote it."
        )
    header.pop("record")
    return dict(header)


def _ranks(run: Run, data: dict[str, Any]) -> None:
    run.members = [dict(member) for member in data["ranks"]]


def _phase(run: Run, data: dict[str, Any]) -> None:
    run.phases[str(data["name"])] = [int(ns) for ns in data["ns"]]


def _started(run: Run, data: dict[str, Any]) -> None:
    run.in_flight = Case.from_json(data["case"])


def _case(run: Run, data: dict[str, Any]) -> None:
    run.results.append(CaseResult.from_json(data))
    run.in_flight = None


def _event(run: Run, data: dict[str, Any]) -> None:
    run.events.append(data)


def _end(run: Run, data: dict[str, Any]) -> None:
    run.end = data


_HANDLERS: dict[str, Callable[[Run, dict[str, Any]], None]] = {
    "ranks": _ranks,
    "phase": _phase,
    "started": _started,
    "case": _case,
    "event": _event,
    "end": _end,
}
