"""The result file: JSON Lines, one object a line, first key ``record``.

Records: header, ranks, phase, machine, started, case, event, end. The writer makes each line
durable and gives it a check sum (core/jsonl.py); the reader reports what it cannot use as
``problems`` and never throws on a broken line. ``load`` takes the output of other tools too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from torchcoll.core import errors
from torchcoll.core import result as records
from torchcoll.core.jsonl import TRUNCATED, UNUSABLE, LineWriter, lines_of, parse_line, read_records
from torchcoll.core.opening import MAKE_ROOM, files_in, not_written, open_to_write
from torchcoll.core.result import CaseResult, Run, check_lists
from torchcoll.core.soak_windows import SoakWindow
from torchcoll.core.variables import is_name

SCHEMA = "torchcoll/2"
_MANY_BYTES = 1 << 17  # of a line: from there on its samples are packed
_ENDINGS = ("signal", "hang", "lost_rank", "store")  # events that end a run
_LOCK_TRIES = 20  # tenths of a second
_LONGEST_NAME = 60  # characters of the name of a variable that is refused


class Writer:
    """Appends records to a new file; rank 0 has one. Refuses a file that exists.

    otherwise: what to do if the file cannot be written. when_full: the same for a full disk.
    further: append to an existing file instead.
    """

    def __init__(
        self,
        path: Path,
        otherwise: str = "Name another with --output, or none with --no-output.",
        further: bool = False,
    ) -> None:
        self.path = path
        self._refused = self._truncated = False
        self.when_full = MAKE_ROOM
        if str(path) == "-":  # tables go to stdout
            raise errors.UsageError("output", path, "a file", otherwise)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open_to_write(path, "r+b" if further else "xb", buffering=0)
            if not further:
                # ``append_end`` of other processes leaves the file alone while this process lives.
                # Some file systems have no locks.
                with contextlib.suppress(ImportError, OSError):
                    import fcntl

                    fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if self._file.seek(0, os.SEEK_END):
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":  # a record that was cut off
                    self._file.write(b"\n")
            self._lines = LineWriter.continuing(path) if further else LineWriter()
        except OSError as error:
            # A FileExistsError may also mean that the parent is a file.
            if isinstance(error, FileExistsError) and os.path.lexists(path):
                raise errors.UsageError(
                    "output", path, "a file that does not exist", "Name another file or remove it."
                ) from None
            refused = not_written("output", path, error)
            if isinstance(refused, errors.UsageError):
                expected = f"a file that can be written ({error.strerror})"
                refused = errors.UsageError("output", path, expected, otherwise)
            raise refused from None

    def write(self, record: str, data: dict[str, Any], durable: bool = False) -> None:
        """Write one line; ``durable``: on disk when this returns. Raises DiskFullError, once."""
        try:
            self.append([(record, data)], durable)
        except OSError as error:
            expected = "a disk that takes the next record"
            what = str(self.path)
            raise errors.DiskFullError(what, error.strerror, expected, self.when_full) from None

    def append(self, records: Iterable[tuple[str, dict[str, Any]]], durable: bool = False) -> None:
        """Write a line for each record, all in one write. Raises OSError if the disk refuses it."""
        if self._refused:
            return
        lines = [self._lines.line({"record": record, **data}) for record, data in records]
        self._check_size()
        rest = memoryview(b"".join(lines))
        try:
            while rest:  # a disk that is nearly full takes a part, and then refuses
                rest = rest[self._file.write(rest) :]
            if durable:
                os.fsync(self._file.fileno())
        except OSError:
            self._refused = True
            raise

    def _check_size(self) -> os.stat_result:
        """Notice that another process has truncated the file, which the next write would hide."""
        state = os.fstat(self._file.fileno())
        self._truncated = self._truncated or state.st_size < self._file.tell()
        return state

    def there(self) -> bool:
        """Whether the open file still has its name and everything that was written."""
        try:
            state = self._check_size()
            return not self._truncated and os.path.samestat(state, self.path.stat())
        except OSError:
            return False

    def close(self) -> None:
        self._file.close()

    def write_all(self, records: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Write all records of a file, and close it. Removes it if the disk refuses one."""
        try:
            for record, data in records:
                self.write(record, data)
        except errors.DiskFullError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            self.close()


def append_end(path: Path, run_id: str, event: dict[str, Any], end: dict[str, Any]) -> bool:
    """End the file of a rank 0 that is gone, from another rank. Returns False if the file is of
    another run, already has its end, or its writer lives.
    """
    try:
        import fcntl

        with open_to_write(path, "r+b") as file:
            # Each of several hosts has a rank that comes here, one after the other.
            for tried in range(_LOCK_TRIES):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if tried + 1 == _LOCK_TRIES:
                    return False
                time.sleep(0.1)
            if json.loads(file.readline()).get("run_id") != run_id:
                return False
            cases = 0
            for line in file:
                if line.startswith(b'{"record":"end"'):
                    return False
                cases += line.startswith(b'{"record":"case"')
            writer = Writer(path, further=True)
            writer.write("event", event)
            writer.write("end", {**end, "cases": cases}, durable=True)
            writer.close()
    except (ImportError, OSError, ValueError, AttributeError, errors.TorchcollError):
        return False
    return True


def records_of(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a run in file order."""
    yield "header", {"schema": SCHEMA, **run.header}
    if run.members:
        yield "ranks", {"ranks": run.members}
    for name, ns in run.phases.items():
        yield "phase", {"name": name, "ns": ns}
    for state in run.machine:
        yield "machine", state
    for result in run.results:
        yield "case", result.to_json()
    for window in run.windows:
        yield "soak", window.to_json()
    for event in run.events:
        yield "event", event
    if run.in_flight is not None:
        yield "started", {"case": run.in_flight.to_json()}
    if run.end is not None:
        yield "end", {**run.end, "cases": len(run.results) + run.lost}


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """Write ``run`` and its continuations (FILE.2, ...) to new files. Raises UsageError."""
    if not isinstance(run, Run):
        action = "traffic.save(PATH) writes a Traffic." if hasattr(run, "calls") else ""
        action = "torchcoll.run returns it on rank 0 alone." if run is None else action
        raise errors.UsageError("run", type(run).__name__, "a Run", action)
    path = Path(errors.path_text(path, "path", "a path to write to"))
    for number, (member, results) in enumerate(run.all_runs(), 1):
        part = dataclasses.replace(member, results=results)
        if part.continuations:  # a merged run has the end of its last run
            later = [event for further in run.continuations for event in further.events]
            part.events = [e for e in run.events if not any(e is event for event in later)]
            part.end = part.in_flight = None
        writer = Writer(path if number == 1 else path.with_name(f"{path.name}.{number}"))
        writer.write_all(records_of(part))


def load_own(path: str | os.PathLike[str]) -> Run:
    """Load a result file of torchcoll. Raises UnreadableError for any other file."""
    path, *continuations = files_of_run(path)
    run = _read_file(path)
    for further in continuations:
        try:
            _merge(run, _read_file(further))
        except errors.UnreadableError as error:  # killed before its header was written
            run.problems.append(str(error))
    if run.end is None:
        run.problems.append(truncated_text(run))
    elif run.ending:
        run.problems.append(run.ending)
    return run


def truncated_text(run: Run) -> str:
    """The problem of a run whose file has no end record."""
    return TRUNCATED + (f"; in flight: {run.in_flight.describe()}" if run.in_flight else "")


def is_ours(path: str | os.PathLike[str]) -> bool:
    """Whether a file, also a damaged one, is torchcoll's. True without a file; False for ``-``."""
    if not os.path.isfile(path):
        return os.fspath(path) != "-"
    first = _first_line(path, 1 << 16)
    return b'"record"' in first and b'"schema"' in first


def _first_line(path: str | os.PathLike[str], longest: int) -> bytes:
    """The first line, or its beginning if it is longer; empty if the file cannot be read."""
    try:
        return next(lines_of(Path(path), [], longest=longest), b"")
    except errors.UnreadableError:
        return b""


def is_traffic(path: str | os.PathLike[str]) -> bool:
    """True for a traffic file of any version, and for a folder that holds one."""
    try:
        path = Path(path)
        if path.is_dir():
            return any(map(is_traffic, files_in(path)))
        line = _first_line(path, 1 << 20)
        if b"torchcoll-traffic/" not in line:  # decoding a large JSON of one line takes long
            return False
        return str(parse_line(line)["schema"]).startswith("torchcoll-traffic/")
    except (OSError, *UNUSABLE):
        return False


MODEL_START = re.compile(rb'"schema":\s*"torchcoll-model/')  # among the first bytes


def files_of_run(path: str | os.PathLike[str]) -> list[Path]:
    """The file of a run, and those with which --resume continued it, in order."""
    files = [Path(path)]
    while further := _continuation(files[0], len(files) + 1):
        files.append(further)
    return files


def _continuation(path: Path, number: int) -> Path | None:
    """FILE.2; for a compressed FILE.gz, FILE.gz.2 (--resume does not compress it) or FILE.2.gz."""
    stem = path.name.removesuffix(".gz")
    for name in (f"{path.name}.{number}", f"{stem}.{number}.gz", f"{stem}.{number}"):
        if os.path.isfile(path.with_name(name)):
            return path.with_name(name)
    return None


def _merge(run: Run, further: Run) -> None:
    repeated = {result.case for result in further.results}
    new = repeated - {result.case for result in run.results}
    run.results = [r for r in run.results if r.case not in repeated] + further.results
    for event in run.events:
        if event.get("kind") in _ENDINGS:
            event["resumed"] = True
    run.events += further.events
    run.problems += further.problems
    run.lost = max(0, run.lost - len(new)) + further.lost  # what was lost is run again
    run.end, run.in_flight = further.end, further.in_flight
    run.continuations.append(further)


def _read_file(path: Path) -> Run:
    """Raises UnreadableError if the first line is no torchcoll header."""
    run = Run(path=path)

    def header(data: dict[str, Any]) -> None:
        run.header = _header(data, path, run.problems)

    def take(record: str, data: dict[str, Any], line: bytes) -> None:
        if record == "case":
            _case(run, data, line)
        elif handler := _HANDLERS.get(record):
            handler(run, data)

    with uncollected():
        read_records(path, run.problems, "result file", SCHEMA, header, take)
    run.lost = max(0, (run.end or {}).get("cases", 0) - len(run.results))
    return run


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable the collector of reference cycles, which takes half of the time of a large file."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# The types of the fields that reports read: of the header, and of its spec.
_HEADER_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("run_id", "start_utc", "torchcoll", "connects"), (str,)),
    **dict.fromkeys(("source", "connects_of"), (dict,)),
}
_SPEC_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("factor", "precision", "max_time_s"), (int, float)),
    **dict.fromkeys(("iters", "warmup", "cold", "seed", "step_bytes"), (int,)),
    **dict.fromkeys(("check", "fresh_group"), (bool,)),
    **dict.fromkeys(("order", "splits"), (str,)),
    "labels": (dict,),
    "points": (list, tuple),
}


def _header(header: dict[str, Any], path: Path, problems: list[str]) -> dict[str, Any]:
    """The usable part of a header. Raises one of UNUSABLE for a file that is to be refused."""
    if not all(isinstance(header.get(name) or {}, dict) for name in ("spec", "environment")):
        raise TypeError
    records.check_ranks(*records.or_none(header.get("ranks")))
    header.pop("record")
    problems += [f"{path}:1: unusable field {name}" for name in _unusable_fields(header)]
    return dict(header)


def _unusable_fields(header: dict[str, Any]) -> Iterator[str]:
    """Remove the fields that no report can read, and yield their names."""
    spec, environment = header.get("spec") or {}, header.get("environment") or {}
    of_environment: dict[str, tuple[type, ...]] = dict.fromkeys(environment, (str, int, float))
    of_environment |= dict.fromkeys(("libraries", "variables"), (dict,))
    yield from _remove(header, _HEADER_TYPES)
    yield from _remove(spec, _SPEC_TYPES)
    yield from _remove(environment, of_environment)
    variables = environment.get("variables") or {}
    of_texts = (header.get("source"), header.get("connects_of"), spec.get("labels"))
    for texts in (*of_texts, environment.get("libraries"), variables):
        yield from _remove(texts or {}, dict.fromkeys(texts or {}, (str,)))
    # A shell would not take these as names of variables, and might run them as commands.
    for name in [name for name in variables if not is_name(name)]:
        del variables[name]
        yield f"variables: {errors.one_line(name)[:_LONGEST_NAME]}"


def _remove(fields: dict[str, Any], types: Mapping[str, tuple[type, ...]]) -> Iterator[str]:
    """Remove the fields of other types, and yield their names."""
    for name in types.keys() & fields.keys():
        value = fields[name]
        too_large = type(value) is int and abs(value) >= records.BOUND
        if too_large or (value is not None and type(value) not in types[name]):
            del fields[name]
            yield name


def _ranks(run: Run, data: dict[str, Any]) -> None:
    members = [dict(member) for member in data["ranks"]]
    for member in members:
        records.check_texts(*(member.get(name) for name in ("host", "device", "device_name")))
        records.check_whole(*records.or_none(member.get("pid")))
        records.check_ranks(*records.or_none(member.get("rank")))
        if not isinstance(member.get("variables_that_differ") or {}, dict):
            raise TypeError("variables are no object")
    run.members = members


def _phase(run: Run, data: dict[str, Any]) -> None:
    check_lists(data["ns"])
    run.phases[str(data["name"])] = data["ns"]


def _machine(run: Run, data: dict[str, Any]) -> None:
    records.check_texts(data.get("when"), data.get("host"), data.get("utc"))
    run.machine.append(data)


def _started(run: Run, data: dict[str, Any]) -> None:
    run.in_flight = records.case_from_json(data["case"])


def _case(run: Run, data: dict[str, Any], line: bytes) -> None:
    run.results.append(CaseResult.from_json(data, large=len(line) > _MANY_BYTES))
    run.in_flight = None


def _event(run: Run, data: dict[str, Any]) -> None:
    records.check_texts(data.get("kind"), data.get("message"), data.get("utc"))
    run.events.append(data)


def _end(run: Run, data: dict[str, Any]) -> None:
    records.check_texts(data.get("status"), data.get("reason"))
    records.check_whole(data.get("cases", 0))
    run.end = data


_HANDLERS: dict[str, Callable[[Run, dict[str, Any]], None]] = {
    "ranks": _ranks,
    "phase": _phase,
    "machine": _machine,
    "started": _started,
    "event": _event,
    "soak": lambda run, data: run.windows.append(SoakWindow.from_json(data)),
    "end": _end,
}
