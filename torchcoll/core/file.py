"""The result file: JSON Lines, one object a line, first key ``record``.

Records: header, ranks, phase, machine, started, case, event, end. The writer makes each line
durable and gives it a check sum (core/jsonl.py); the reader reports what it cannot use as
``problems`` and never throws on a broken line. ``load`` takes the output of other tools too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import glob
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import ForeignError, TorchcollError, UnreadableError, UsageError, tell
from torchcoll.core.jsonl import (
    TRUNCATED,
    UNUSABLE,
    LineWriter,
    lines_of,
    parse_line,
    read_records,
)
from torchcoll.core.opening import open_to_read, open_to_write
from torchcoll.core.paths import (
    STDIN,
    Inside,
    Source,
    expanded,
    from_stdin,
    is_manifest,
    is_stdin,
    named_path,
)
from torchcoll.core.result import (
    CaseResult,
    Run,
    SoakWindow,
    case_from_json,
    check_lists,
    check_texts,
    check_whole,
    or_none,
)

SCHEMA = "torchcoll/2"
_NAMED = 5  # files of a folder that are no results
_ENDINGS = ("signal", "hang", "lost_rank", "store")  # events that end a launch


class Writer:
    """Appends records to a new file; rank 0 has one. Refuses a file that exists.

    otherwise: what to do where it cannot be written. further: to a file that is there, instead.
    """

    def __init__(
        self,
        path: Path,
        otherwise: str = "Name another with --output, or none with --no-output.",
        further: bool = False,
    ) -> None:
        self.path = path
        self._refused = False
        if str(path) == "-":  # tables go to stdout
            raise UsageError("output", path, "a file", otherwise)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = open_to_write(path, "r+b" if further else "xb", buffering=0)
            if not further:
                self._own()
            if self._file.seek(0, os.SEEK_END):
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":  # a record that was cut off
                    self._file.write(b"\n")
            self._lines = LineWriter.going_on(path) if further else LineWriter()
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
                otherwise,
            ) from None

    def _own(self) -> None:
        """Nobody else ends the file while this process lives: what one writes at its end the other
        would write over. Not on file systems without locks.
        """
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def write(self, record: str, data: dict[str, Any], durable: bool = False) -> None:
        """One line in one write. ``durable``: on disk when this returns.

        Raises TorchcollError when the disk refuses it; later records are then dropped in silence.
        """
        try:
            self.append([(record, data)], durable)
        except OSError as error:
            raise TorchcollError(
                f"result file {self.path}",
                error.strerror,
                "a disk that takes the next record",
                "Make room, then go on with --resume (a soak begins anew).",
            ) from None

    def append(self, records: Iterable[tuple[str, dict[str, Any]]], durable: bool = False) -> None:
        """A line for each record, all in one write. Raises OSError where ``write`` raises."""
        if self._refused:
            return
        lines = [self._lines.line({"record": record, **data}) for record, data in records]
        rest = memoryview(b"".join(lines))
        try:
            while rest:  # a disk that is nearly full takes a part, and then refuses
                rest = rest[self._file.write(rest) :]
            if durable:
                os.fsync(self._file.fileno())
        except OSError:
            self._refused = True
            raise

    def there(self) -> bool:
        """Whether the open file is still the one of that name."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False

    def discard_empty(self) -> None:
        """Close the file; remove it where it is ours and nothing was written."""
        if self._file.closed:
            return
        if not os.fstat(self._file.fileno()).st_size and self.there():
            self.path.unlink()
        self._file.close()

    def close(self) -> None:
        self._file.close()


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
    """Write ``run`` to a new file, its continuations to FILE.2, ... beside it.

    Raises UsageError when one exists or cannot be written.
    """
    path = Path(path)
    for number, (launch, results) in enumerate(run.launches(), 1):
        part = dataclasses.replace(launch, results=results)
        if part.continuations:  # the rest of a merged run is that of its last launch
            part.events = [e for e in run.events if not _is_of(e, run.continuations)]
            part.end = part.in_flight = None
        writer = Writer(path if number == 1 else path.with_name(f"{path.name}.{number}"))
        try:
            for record, data in records_of(part):
                writer.write(record, data)
        finally:
            writer.close()


def _is_of(event: dict[str, Any], runs: Iterable[Run]) -> bool:
    return any(event is own for run in runs for own in run.events)


def _unnamed(run: Run) -> Run:
    """Without the path of what ``from_stdin`` wrote, which nobody can use again."""
    if run.path and is_stdin(run.path):
        run.problems = [text.replace(str(run.path), STDIN) for text in run.problems]
        run.path = None
    return run


def load(
    path: str | os.PathLike[str], *, collective: str | None = None, ranks: int | None = None
) -> Run | Any:
    """The run in a result file, together with its continuations FILE.2, FILE.3, ... (--resume); or
    in the output of another tool, packed or not, of whatever format an importer knows. Of a folder,
    or a glob, the list of all runs in it.

    A file without an ``end`` loads with what it has; ``run.problems`` says so. collective, ranks:
    of another tool's output that does not tell them. Raises UnreadableError when the file is
    missing, of no known format, holds nothing usable or several runs, or has another major schema;
    UsageError for a collective or ranks that cannot be, or of a result file, which tells its own.
    """
    if os.path.isdir(path) or (not os.path.exists(path) and glob.has_magic(os.fspath(path))):
        runs = load_all(expanded(path), collective=collective, ranks=ranks)
        check_told(runs, collective, ranks)
        return runs
    return load_one(path, collective, ranks)


def load_one(
    path: str | os.PathLike[str], collective: str | None = None, ranks: int | None = None
) -> Run:
    """As ``load``, of a file alone."""
    read = os.fspath(from_stdin(path))  # type: ignore[arg-type]
    if is_ours(read):
        for name, value in (("collective", collective), ("ranks", ranks)):
            if value is not None:
                raise UsageError(name, value, f"none with {path}: a result file tells its own")
        return _unnamed(load_own(read))
    runs = _imported(read, collective, ranks)
    if len(runs) > 1:
        way = f"torchcoll import {shlex.quote(os.fspath(path))} -o RUN.jsonl writes a file of each"
        action = f"{way}; compare, show, ... take all."
        raise UnreadableError("file", f"{len(runs)} runs in {path}", "a file of one run", action)
    return runs[0]


def _imported(
    path: str | os.PathLike[str], collective: str | None = None, ranks: int | None = None
) -> list[Run]:
    # Here alone: no rank and no result file pays for the importers.
    from torchcoll.importers.registry import runs_in

    return runs_in(os.fspath(path), collective, ranks)


def load_own(path: str | os.PathLike[str]) -> Run:
    """As ``load``, of a result file of torchcoll alone: what goes on with a launch, or judges it,
    takes no other. Raises UnreadableError for any other.
    """
    path = Path(path)
    run = _read_file(path)
    number = 2
    while further := _continuation(path, number):
        try:
            _merge(run, _read_file(further))
        except UnreadableError as error:  # killed before its header was written
            run.problems.append(str(error))
        number += 1
    _judge(run)
    return run


def load_all(
    sources: Iterable[Source], *, collective: str | None = None, ranks: int | None = None
) -> list[Run]:
    """The runs in these files, none twice: FILE.2 is read with FILE, and is no run beside it.

    Output of other tools is read too, with all of its runs; collective, ranks: of what does not
    tell them. What was left out is a problem of the run that has it; traffic files, which a replay
    puts beside the results, and files of a folder that no importer knows, are named on stderr. A
    Run stays as it is. Raises UnreadableError for a file that cannot be read, for another tool's
    of which nothing could be, and for traffic alone.
    """
    runs: dict[str | int, Run] = {}
    for number, source in enumerate(_without_traffic(sources, collective, ranks)):
        if isinstance(source, Run):
            runs[number] = source
            continue
        if is_manifest(source):  # `DIR/*.jsonl` of a matrix
            continue
        real = os.path.realpath(source)
        if real in runs:
            runs[real].problems.append(f"{source} was named twice: it is shown once")
        else:
            runs[real] = load_own(source)
    for run in list(runs.values()):
        for part in run.continuations:
            if part.path and runs.pop(os.path.realpath(part.path), None):
                run.problems.append(f"{part.path} is a part of {run.path}: it is shown once")
    return [_unnamed(run) for run in runs.values()]


def sources_of(
    arguments: Iterable[str], collective: str | None = None, ranks: int | None = None
) -> list[Source]:
    """What these arguments of a command stand for: paths, and the Runs of those that ``label=PATH``
    names or that collective and ranks are told of. The label becomes that of the launch, ``cell``.
    """
    found: list[Source] = []
    told = collective is not None or ranks is not None
    for argument in arguments:
        label, path = named_path(argument)
        files = expanded(path) if label or told else []
        if not label and all(isinstance(one, Run) or is_ours(one) for one in files):
            found.append(path)
            continue
        runs = load_all(files, collective=collective, ranks=ranks)
        for run in runs if label else ():
            # The name that was given counts more than what a matrix or versus called the launch.
            labels = {"cell": label, **_assigned(label), **run.labels} | {"cell": label}
            run.header["spec"] = {**(run.header.get("spec") or {}), "labels": labels}
        found += runs
    if told:
        check_told([one for one in found if isinstance(one, Run)], collective, ranks)
    return found


def check_told(runs: Iterable[Run], collective: str | None, ranks: int | None) -> None:
    """Raises UsageError where what was told is of no use to any of these."""
    told = [("collective", collective), ("ranks", ranks)]
    name, value = next(((n, v) for n, v in told if v is not None), ("", None))
    # What was imported and saved has a file of its own.
    if name and not any(run.source and run.path is None for run in runs):
        raise UsageError(name, value, "output of another tool: a result file tells its own")


def _assigned(label: str) -> dict[str, str]:
    """``NCCL_ALGO=Ring`` as a label of that name: what a launch was told to use."""
    name, equals, value = label.partition("=")
    return {name: value} if equals else {}


def _without_traffic(
    sources: Iterable[Source], collective: str | None = None, ranks: int | None = None
) -> list[Run | str]:
    """Our own files stay paths, those of other tools become Runs, traffic is left out."""
    found: list[Run | str] = []
    traffic: list[str] = []
    foreign: dict[str, UnreadableError] = {}
    for source in map(from_stdin, sources):
        if isinstance(source, Run):
            found.append(source)
        elif not is_ours(source):
            try:
                found += _imported(source, collective, ranks)
            except UnreadableError as error:
                if not isinstance(source, Inside):
                    raise
                foreign[source] = error
        else:
            (traffic if is_traffic(source) else found).append(os.fspath(source))
    others = [path for path, error in foreign.items() if isinstance(error, ForeignError)]
    broken = [error for error in foreign.values() if not isinstance(error, ForeignError)]
    if foreign and not found:
        raise broken[0] if broken else _none_of(others, foreign)
    for left in broken[:_NAMED]:
        tell(f"torchcoll: note: left out: {left}")
    if len(broken) > _NAMED:
        tell(f"torchcoll: note: left out: {len(broken) - _NAMED} files more that could not be read")
    if others:
        tell(f"torchcoll: note: left out, for they are no results: {_first_of(others)}")
    if traffic and all(isinstance(one, str) and is_manifest(one) for one in found):
        more = f" and {len(traffic) - 1} more" * (len(traffic) > 1)
        got = f"traffic alone: {traffic[0]}{more}"
        raise UnreadableError("result files", got, "results", "torchcoll show FILE shows traffic.")
    leave_out(traffic)
    return found


def _none_of(paths: Sequence[str], errors: Mapping[str, UnreadableError]) -> UnreadableError:
    """What refuses files of folders and patterns of which none is a result."""
    if len(paths) == 1:
        return errors[paths[0]]
    folders = {os.path.dirname(path) or "." for path in paths}
    inside = [p for folder in folders for p in glob.glob(f"{glob.escape(folder)}/*/*.jsonl")]
    below = list(dict.fromkeys(os.path.dirname(path) for path in sorted(inside)))
    return UnreadableError(
        "result files", _first_of(paths), "a torchcoll result file, or output of another tool",
        f"Name a folder of them: {_first_of(below)}." if below else "",
    )  # fmt: skip


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def with_results(arguments: Sequence[str], least: int = 1) -> list[str]:
    """Where each argument is a side: without those of ``DIR/*.jsonl`` that are traffic, named on
    stderr, or a manifest. Fewer than ``least`` left: all, so that reading them says what they are.
    """
    traffic = [path for path in arguments if os.path.isfile(path) and is_traffic(path)]
    found = [path for path in arguments if not (path in traffic or is_manifest(path))]
    if len(found) < least:
        return list(arguments)
    leave_out(traffic)
    return found


def leave_out(traffic: Sequence[str]) -> None:
    """One line on stderr that names these traffic files; none where there are none."""
    if traffic:
        several = [*traffic[:3], f"... ({len(traffic)} files)"] if len(traffic) > 4 else traffic
        text = f"{' '.join(', '.join(several).split())}; torchcoll show FILE shows what it holds"
        tell(f"torchcoll: note: traffic is no result, left out: {text}")


# -------------------------------------------------------------------------------------------------
# What a file is, by its first line.


def is_ours(path: str | os.PathLike[str]) -> bool:
    """True where the first line is that of a file of torchcoll, also a damaged one, and for what is
    no file: that is missed as a result file. ``-`` is stdin, which other tools' output comes from.
    """
    if not os.path.isfile(path):
        return os.fspath(path) != "-"
    first = _first_line(path, 1 << 16)
    return b'"record"' in first and b'"schema"' in first


def _first_line(path: str | os.PathLike[str], longest: int) -> bytes:
    """Its beginning where it is longer; empty where it cannot be read."""
    try:
        return next(lines_of(Path(path), [], longest=longest), b"")
    except UnreadableError:
        return b""


def is_traffic(path: str | os.PathLike[str]) -> bool:
    """True for a traffic file of any version, and for a folder that holds one."""
    try:
        path = Path(path)
        if path.is_dir():
            return any(is_traffic(file) for file in path.iterdir() if file.is_file())
        line = _first_line(path, 1 << 20)
        # A large JSON of one line is not worth decoding for that.
        return b"torchcoll-traffic/" in line and str(parse_line(line)["schema"]).startswith(
            "torchcoll-traffic/"
        )
    except (OSError, *UNUSABLE):
        return False


MODEL_START = re.compile(rb'"schema":\s*"torchcoll-model/')  # among the first bytes


def is_model(path: str | os.PathLike[str]) -> bool:
    """True for what `torchcoll model fit` wrote, of any version."""
    try:
        with open_to_read(path) as file:
            return bool(MODEL_START.search(file.read(1 << 12)))
    except OSError:
        return False


def _continuation(path: Path, number: int) -> Path | None:
    """FILE.2; of a packed FILE.gz, which --resume does not pack again, FILE.gz.2 or FILE.2.gz."""
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


def _judge(run: Run) -> None:
    if run.end is None:
        flight = f"; in flight: {run.in_flight.describe()}" if run.in_flight else ""
        run.problems.append(f"{TRUNCATED}{flight}")
    elif run.ending:
        run.problems.append(run.ending)


def _read_file(path: Path) -> Run:
    """Raises UnreadableError when the first line is no torchcoll header."""
    run = Run(path=path)
    with uncollected():
        _read_records(path, run)
    run.lost = max(0, (run.end or {}).get("cases", 0) - len(run.results))
    run.problems += _backward_stamps(run)
    return run


def _backward_stamps(run: Run) -> Iterator[str]:
    """Stamps that are earlier than those before them: of the monotonic clock a damaged file, of the
    wall clock one that was set meanwhile. One line each.
    """
    clocks = (
        ("monotonic", "start_ns", "batch_start_ns", "the file is damaged, or of two launches"),
        ("wall", "start_wall_us", "batch_start_wall_us", "the clock was set meanwhile"),
    )
    for clock, start, batches, why in clocks:
        last = None
        for result in run.results:
            began = getattr(result, start)
            own = [one for one in (last, began) if one is not None]
            # Sub-groups run their batches at the same time: only the starts are in order.
            within = [began, *getattr(result, batches)] if began is not None else []
            if own != sorted(own) or within != sorted(within):
                case = result.case.describe()
                yield f"{run.path}: {clock} stamps run backwards at {case}: {why}"
                break
            last = began if began is not None else last


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles, of which records have none: it would go through all that was
    read again and again, which is half of the time of a file of 100 000 cases.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_records(path: Path, run: Run) -> None:
    def header(data: dict[str, Any]) -> None:
        run.header = _header(data, path, run.problems)

    def take(record: str, data: dict[str, Any], line: bytes) -> None:
        if record == "case":
            _case(run, data, line)
        elif handler := _HANDLERS.get(record):
            handler(run, data)

    read_records(path, run.problems, "result file", SCHEMA, header, take)


# What reports read of a header, beside texts: field of the spec -> its types.
_SPEC_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("factor", "precision", "max_time_s"), (int, float)),
    **dict.fromkeys(("iters", "warmup", "cold", "seed", "step_bytes"), (int,)),
    **dict.fromkeys(("check", "fresh_group"), (bool,)),
    **dict.fromkeys(("order", "splits"), (str,)),
    "labels": (dict,),
    "points": (list, tuple),
}


def _header(header: dict[str, Any], path: Path, problems: list[str]) -> dict[str, Any]:
    """The usable part of a header; of UNUSABLE it raises what refuses the file."""
    if not all(isinstance(header.get(name) or {}, dict) for name in ("spec", "environment")):
        raise TypeError
    check_whole(*or_none(header.get("ranks")))
    if not 0 <= (header.get("ranks") or 0) <= MOST_RANKS:
        raise ValueError
    header.pop("record")
    for name in _unusable_fields(header):
        problems.append(f"{path}:1: unusable field {name}")
    return dict(header)


def _unusable_fields(header: dict[str, Any]) -> Iterator[str]:
    """Removes what no report can read, and names it; the cases are worth more than a field."""
    spec, environment = header.get("spec") or {}, header.get("environment") or {}
    yield from _remove(header, "source", (dict,))
    for name in list(header.get("source") or {}):
        yield from _remove(header["source"], name, (str,))
    for name in ("run_id", "start_utc", "torchcoll", "connects"):
        yield from _remove(header, name, (str,))
    yield from _remove(header, "connects_of", (dict,))
    for name in list(header.get("connects_of") or {}):
        yield from _remove(header["connects_of"], name, (str,))
    for name, types in _SPEC_TYPES.items():
        yield from _remove(spec, name, types)
    for name in list(environment):
        own = (dict,) if name in ("libraries", "variables") else (str, int, float)
        yield from _remove(environment, name, own)
    for texts in (spec.get("labels"), environment.get("libraries"), environment.get("variables")):
        texts = texts or {}
        for name in list(texts):
            yield from _remove(texts, name, (str,))


def _remove(fields: dict[str, Any], name: str, types: tuple[type, ...]) -> Iterator[str]:
    value = fields.get(name)
    try:
        if value is not None and type(value) not in types:
            raise TypeError
        if type(value) is int:
            check_whole(value)
    except TypeError:
        del fields[name]
        yield name


def _ranks(run: Run, data: dict[str, Any]) -> None:
    members = [dict(member) for member in data["ranks"]]
    for member in members:
        check_texts(*(member.get(name) for name in ("host", "device", "device_name")))
        check_whole(*or_none(*(member.get(name) for name in ("rank", "pid"))))
    run.members = members


def _phase(run: Run, data: dict[str, Any]) -> None:
    check_lists(data["ns"])
    run.phases[str(data["name"])] = data["ns"]


def _machine(run: Run, data: dict[str, Any]) -> None:
    check_texts(data.get("when"), data.get("host"), data.get("utc"))
    run.machine.append(data)


def _stated(run: Run, case: dict[str, Any]) -> dict[str, Any]:
    """The fields of a case, also of a version that did not tell how buffers are reused: it had one
    way. Of what it imported, which has a source, it did not know.
    """
    return {"buffer_reuse": "unknown" if run.source else "same", **case}


def _started(run: Run, data: dict[str, Any]) -> None:
    run.in_flight = case_from_json(_stated(run, data["case"]))


def _case(run: Run, data: dict[str, Any], line: bytes) -> None:
    data["case"] = _stated(run, data["case"])
    run.results.append(CaseResult.from_json(data, line))
    run.in_flight = None


def _event(run: Run, data: dict[str, Any]) -> None:
    check_texts(data.get("kind"), data.get("message"), data.get("utc"))
    run.events.append(data)


def _end(run: Run, data: dict[str, Any]) -> None:
    check_texts(data.get("status"), data.get("reason"))
    check_whole(data.get("cases", 0))
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
