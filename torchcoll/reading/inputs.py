"""Resolves the arguments of commands: a file, a folder, a pattern, ``label=PATH`` or stdin.

A file is a result of torchcoll, output of another tool (which becomes runs), captured traffic, the
manifest of a matrix, or a library's log or topology.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchcoll.core import errors
from torchcoll.core.case import Case
from torchcoll.core.errors import ForeignError, UnreadableError, UsageError
from torchcoll.core.file import is_ours, is_traffic, load_own
from torchcoll.core.opening import STDIN, files_in, from_stdin, is_stdin, open_to_read
from torchcoll.core.result import Run
from torchcoll.core.skipping import may_skip, skip
from torchcoll.core.units import counted, shorten

if TYPE_CHECKING:
    from torchcoll.core.traffic import Traffic
    from torchcoll.libraries.dumps import Dump
    from torchcoll.libraries.job_logs import LogReader

# `torchcoll matrix` keeps its manifest in the folder of its result files.
MANIFEST, MATRIX_SCHEMA = "manifest.jsonl", "torchcoll-matrix/1"
Source = Run | str | os.PathLike[str]
K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
# The options that supply what output of another tool may lack.
IMPORT_OPTIONS = ("collective", "ranks")
# Endings of reports, pictures, notes and scripts: in a folder or pattern they are no results.
_DOCUMENTS = (".md", ".html", ".svg", ".png", ".pdf", ".py", ".sh", ".ipynb")
_NAMED = 5  # at most so many skipped files are named
_LOOKED_AT = 1000  # at most so many subfolders of a folder without files are searched


def read_each(arguments: Mapping[K, T], read: Callable[[T], V]) -> dict[K, V]:
    """``read`` of each argument, without those that cannot be read (see ``core.skipping``)."""
    values: dict[K, V] = {}
    refused: list[UnreadableError] = []
    for key, argument in arguments.items():
        try:
            values[key] = read(argument)
        except UnreadableError as error:
            if not may_skip():
                raise
            refused.append(error)
    skip(refused if values else refused[:1], bool(values))
    return values


def load(
    path: str | os.PathLike[str], *, collective: str | None = None, ranks: int | None = None
) -> Run | Any:
    """Load a result file, or the output of another tool, as a Run; a folder or pattern as a list.

    path: a result file, read together with its continuations FILE.2, FILE.3, ... (--resume), or
    output of another tool, compressed or not. collective, ranks: what that output does not state.

    A file without an ``end`` record is loaded as far as it goes, and ``run.problems`` says so.
    Raises UnreadableError if the file is missing, has an unknown format or another major schema, or
    holds several runs or nothing usable. Raises UsageError for an impossible collective or ranks,
    and for either with a result file, which states its own.
    """
    path = errors.path_text(path, "file", "a path; runs and traffic need no load")
    if os.path.isdir(path) or (not os.path.exists(path) and glob.has_magic(os.fspath(path))):
        runs = load_all(expand(path), collective=collective, ranks=ranks)
        check_import_options(runs, collective, ranks)
        return runs
    return load_one(path, collective, ranks)


def load_one(
    path: str | os.PathLike[str], collective: str | None = None, ranks: int | None = None
) -> Run:
    """Load one file, as ``load`` does."""
    read = os.fspath(from_stdin(path))
    if is_ours(read):
        check_import_options([], collective, ranks, f"none with {path}: a result file has its own")
        return _unnamed(load_own(read))
    runs = _imported(read, collective, ranks)
    if len(runs) > 1:
        name = shlex.quote(os.fspath(path))
        action = f"torchcoll convert {name} -o RUN.jsonl writes a file of each; compare, show, ..."
        text = f"{len(runs)} runs in {path}"
        raise UnreadableError("file", text, "a file of one run", f"{action} take all.")
    return runs[0]


def load_all(
    sources: Iterable[Source], *, collective: str | None = None, ranks: int | None = None
) -> list[Run]:
    """Load the runs in these files, each file once. FILE.2 belongs to the run of FILE.

    sources: files, or Runs, which are returned unchanged. collective, ranks: what the output of
    other tools does not state. Skipped files are named on stderr: traffic, and files of a folder
    that no importer reads. Raises UnreadableError for a file that cannot be read, for output of
    another tool without a usable row, and if all files are traffic or manifests of ``torchcoll
    matrix``.
    """
    runs: dict[str, Run] = {}
    traffic: list[str] = []
    manifests: list[str] = []
    foreign: dict[str, UnreadableError] = {}
    refused: list[UnreadableError] = []
    sources = [source if isinstance(source, Run) else from_stdin(source) for source in sources]
    for number, source in enumerate(sources):
        if isinstance(source, Run):
            runs[f"{number}"] = source
            continue
        path, ours = os.fspath(source), is_ours(source)
        real = os.path.realpath(path)
        try:
            if not ours:
                imported = _imported(path, collective, ranks)
                runs |= {f"{number} {index}": run for index, run in enumerate(imported)}
            elif is_traffic(path):
                traffic.append(path)
            elif is_manifest(path):  # `DIR/*.jsonl` of a matrix
                manifests.append(path)
            elif real in runs:
                runs[real].problems.append(f"{path} was named twice: it is shown once")
            else:
                runs[real] = load_own(path)
        except UnreadableError as error:
            if not may_skip() and (ours or not isinstance(source, Inside)):
                raise
            if not ours and _holds_no_results(source, error):
                foreign[path] = error
            else:
                refused.append(error)
    if foreign and not (runs or traffic or manifests or refused):
        raise _none_of(list(foreign), foreign)
    others = bool(runs or traffic or manifests)
    skip(list({str(error): error for error in refused}.values()), others)
    if foreign:
        number_of_files, names = counted(len(foreign), "file"), shorten(list(foreign), _NAMED)
        errors.tell(f"torchcoll: note: skipped {number_of_files} without results: {names}")
    if not runs and traffic:
        actual = f"traffic alone: {shorten(traffic, 1)}"
        action = "torchcoll show FILE shows traffic; in Python torchcoll.Traffic.load reads it."
        raise UnreadableError("result files", actual, "results", action)
    if not runs and manifests:  # no run of the matrix has written a file
        raise UnreadableError("result files", f"{manifests[0]} alone", "result files of its runs")
    note_traffic(traffic)
    for run in list(runs.values()):
        for continuation in run.continuations:
            if continuation.path and runs.pop(os.path.realpath(continuation.path), None):
                run.problems.append(
                    f"{continuation.path} is a part of {run.path}: it is shown once"
                )
    return [_unnamed(run) for run in runs.values()]


def resolve_sources(
    arguments: Iterable[str], collective: str | None = None, ranks: int | None = None
) -> list[Source]:
    """Sources for ``load_all``: ``label=PATH`` and output of other tools with collective or ranks
    become Runs, other paths stay paths.
    """
    resolved = _resolved(arguments, collective, ranks)
    check_import_options(
        [source for source in resolved if isinstance(source, Run)], collective, ranks
    )
    return resolved


def _resolved(arguments: Iterable[str], collective: str | None, ranks: int | None) -> list[Source]:
    has_options = collective is not None or ranks is not None

    def read(argument: str) -> list[Source]:
        label, path = split_label(argument)
        files = expand(path) if label or has_options else []
        if not label and all(isinstance(source, Run) or is_ours(source) for source in files):
            return [path]
        runs = load_all(files, collective=collective, ranks=ranks)
        runs = select_cases(runs, label)
        for run in runs if label else ():
            # The user's label replaces the one that matrix or versus gave the run.
            name, equals, value = label.partition("=")  # NCCL_ALGO=Ring is a setting of the run
            labels = {**({name: value} if equals else {}), **run.labels, "cell": label}
            run.header["spec"] = {**(run.header.get("spec") or {}), "labels": labels}
        return [*runs]

    read_sources = read_each(dict(enumerate(arguments)), read)
    return [source for sources in read_sources.values() for source in sources]


def select_cases(runs: Sequence[Run], label: str) -> list[Run]:
    """The runs with the cases of a label such as ``backend:gloo``; all for other labels. Raises
    UsageError for no field of a case, and without a case.
    """
    name, colon, value = label.partition(":")
    if not colon or not name.isidentifier():
        return [*runs]
    if not _selects(label):
        raise UsageError("label", label, "a field of a case before ':', such as backend:gloo")
    for run in runs:
        run.results = [result for result in run.results if str(getattr(result.case, name)) == value]
    kept = [run for run in runs if run.results]
    if not kept:
        raise UsageError("label", label, f"a {name} that some case has")
    return kept


def check_import_options(
    runs: Iterable[Run],
    collective: str | None,
    ranks: int | None,
    expected: str = "output of another tool: a result file has its own",
) -> None:
    """Raise UsageError if collective or ranks is given and no run comes from another tool."""
    options = [("collective", collective), ("ranks", ranks)]
    name, value = next(((n, v) for n, v in options if v is not None), ("", None))
    # A run that was imported and saved has a path: it is a result file now.
    if name and not any(run.source and run.path is None for run in runs):
        raise UsageError(name, value, expected)


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands share that read results."""
    parser.add_argument(
        "--collective",
        metavar="NAME",
        help="the collective, for output of another tool that does not name it",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="number of ranks, for output of another tool that does not state it",
    )
    add_filter(parser)


def add_over_ranks(parser: argparse.ArgumentParser, default: str | None = "max") -> None:
    """Add ``--over-ranks``. default: None for what the data asks for, which is max for a call."""
    parser.add_argument(
        "--over-ranks",
        default=default,
        metavar="HOW",
        help="how to combine the ranks of a call: max (default), mean, min or rank0",
    )


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Add ``--filter``, for commands that read only result files of torchcoll."""
    parser.add_argument(
        "--filter",
        default="",
        metavar="TEXT",
        help="select cases, such as collective=all_reduce,size>=1M",
    )


def drop_non_results(arguments: Sequence[str], least: int = 1) -> list[str]:
    """Drop traffic and manifests, which ``DIR/*.jsonl`` matches too, unless fewer than ``least``
    are left: reading them says what they are.
    """
    traffic = [path for path in arguments if os.path.isfile(path) and is_traffic(path)]
    results = [path for path in arguments if not (path in traffic or is_manifest(path))]
    if len(results) < least:
        return list(arguments)
    note_traffic(traffic)
    return results


def split_results_and_traffic(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split paths into files of results (or of other tools' output) and captured traffic."""
    from torchcoll.core.traffic import RANK_FILE

    results: list[str] = []
    traffic: list[str] = []
    for path in paths:
        files = [os.fspath(file) for file in expand(path) if not isinstance(file, Run)]
        captured = [f for f in files if os.path.basename(f).startswith(RANK_FILE) or is_traffic(f)]
        results += [file for file in files if file not in captured]
        traffic += [path] if captured == files and os.path.isdir(path) else captured
    return results, traffic


@dataclass
class Material:
    """Everything that the arguments of a command hold.

    folders: the arguments that are folders.
    notes: why files of folders were skipped, and the problems of files that were read.
    arguments: kind of content (``runs``, ``traffic`` or ``logs``) -> the arguments that hold it.
    """

    runs: list[Run] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    dumps: list[Dump] = field(default_factory=list)
    logs: list[LogReader] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    arguments: dict[str, list[str]] = field(default_factory=dict)


def read_material(
    arguments: Sequence[str], collective: str | None = None, ranks: int | None = None
) -> Material:
    """Read results, output of other tools, traffic, logs and topologies. Raises UnreadableError for
    any other file, and without anything to read.
    """
    from torchcoll.core.traffic import join_folder

    material = Material()
    results: list[str] = []
    refused: list[UnreadableError] = []
    for argument in arguments:
        label, named = split_label(argument)
        if label:
            results.append(argument)
            material.arguments.setdefault("runs", []).append(argument)
            continue
        path = str(from_stdin(named))
        kinds: set[str] = set()
        if os.path.isdir(path):
            material.folders.append(path)
        for file in _results_and_logs_in(path) if os.path.isdir(path) else map(str, expand(path)):
            try:
                kinds.add(_read_file(file, material, results, collective, ranks))
            except UnreadableError as error:
                if os.path.isdir(path):
                    material.notes.append(f"skipped: {error}")
                elif not may_skip():
                    raise
                else:
                    refused.append(error)
        for kind in sorted(kinds):
            material.arguments.setdefault(kind, []).append(argument)

    # The traffic files of a folder are the ranks of one capture, if they fit together. The last of
    # several captures is taken, as when the folder itself is loaded.
    captures: dict[Path, list[Traffic]] = {}
    for traffic in material.traffic:
        captures.setdefault(Path(traffic.path or "").parent, []).append(traffic)
    material.traffic = []
    for folder, captured in captures.items():
        with contextlib.suppress(UsageError):
            captured = [join_folder(captured, folder)] if len(captured) > 1 else captured
        material.traffic += captured

    skip(refused, bool(results or material.arguments))
    material.runs += load_all(_resolved(results, collective, ranks))
    check_import_options(material.runs, collective, ranks)
    if not (material.runs or material.traffic or material.dumps or material.logs):
        why = errors.one_line(material.notes[0]) if material.notes else ""
        raise UnreadableError("report", "nothing to report", "results, traffic or logs", why)
    return material


def _results_and_logs_in(folder: str) -> list[str]:
    """List the result files of a folder (all files if it has none), and its logs."""
    from torchcoll.libraries.job_logs import list_log_files

    files = [str(file) for file in expand(folder)]
    with contextlib.suppress(UnreadableError):  # none
        files += list_log_files([folder])
    return [file for file in dict.fromkeys(files) if not file.endswith(_DOCUMENTS)]


def _read_file(
    file: str,
    material: Material,
    results: list[str],
    collective: str | None = None,
    ranks: int | None = None,
) -> str:
    """Add a file to the material, or its path to the results; returns its kind."""
    from torchcoll.core.traffic import Traffic
    from torchcoll.libraries.dumps import read_dump
    from torchcoll.libraries.job_logs import read_log
    from torchcoll.libraries.nccl.topology import is_dump

    if is_ours(file):
        if is_traffic(file):
            material.traffic.append(Traffic.load(file))
            return "traffic"
        results.append(file)
        return "runs"
    if is_dump(file):
        dump, problems = read_dump(file)
        dump.facts["fabrics"] = []
        material.dumps.append(dump)
        material.notes += problems
        return "logs"
    try:
        material.runs += load_all([file], collective=collective, ranks=ranks)
        return "runs"
    except UnreadableError as refused:
        try:
            log, problems = read_log(file)
        except UnreadableError:
            raise refused from None
    material.logs.append(log)
    material.notes += problems
    return "logs"


def expand(source: Source) -> list[Source]:
    """List the files of a folder or a pattern. Raises UnreadableError if there are none."""
    if isinstance(source, Run):
        return [source]
    source = from_stdin(source)
    path = Path(source)
    if path.is_dir():
        files = _result_files(path)
        if not files:
            raise _no_files(path)
        jsonl_files = [p for p in files if p.name.endswith((".jsonl", ".jsonl.gz")) and is_ours(p)]
        return [Inside(p) for p in jsonl_files or _without_documents(files)]
    if not path.exists() and glob.has_magic(str(source)):
        paths = (Path(p) for p in sorted(glob.glob(str(source), recursive=True)))
        matches = [p for p in paths if p.is_file() and not is_manifest(p)]
        if not matches:
            raise UnreadableError("result files", source, "a pattern that some file matches")
        return [Inside(p) for p in _without_documents(matches)]
    return [source]


def _without_documents(paths: list[Path]) -> list[Path]:
    """The paths without reports, pictures, notes and scripts, unless there is nothing else."""
    return [path for path in paths if not path.name.endswith(_DOCUMENTS)] or paths


def split_label(argument: str) -> tuple[str, str]:
    """(label, path) of ``label=PATH`` or ``N=V=PATH``; label '' without. Raises UsageError."""
    label, equals, path = argument.partition("=")
    if not equals or os.path.exists(argument) or glob.glob(argument):
        return "", argument
    while "=" in path and not os.path.exists(path) and not glob.glob(path):
        more, _, path = path.partition("=")
        label += f"={more}"
    if not label or not path:
        raise UsageError("file", argument, "a path, or label=PATH")
    before, _, selector = label.rpartition("=")
    if before and _selects(selector):
        action = f"{selector} names the side itself: {selector}={path}."
        raise UsageError("label", label, "one label: NAME=PATH, or FIELD:VALUE=PATH", action)
    return label, path


def _selects(label: str) -> bool:
    """Whether the label selects cases by a field, such as ``backend:gloo``."""
    name, colon, _ = label.partition(":")
    return bool(colon) and name in {field.name for field in fields(Case)}


class Inside(str):
    """A file of a folder or pattern: the user did not name it, so any kind of file is allowed."""


def is_manifest(path: str | os.PathLike[str]) -> bool:
    """Whether the file is the manifest of ``torchcoll matrix``, which is not a result."""
    if os.path.basename(path) != MANIFEST or not os.path.isfile(path):
        return False
    with contextlib.suppress(OSError), open_to_read(path) as file:
        return file.read(100).startswith(b'{"record":"matrix"')
    return False


def note_traffic(traffic: Sequence[str]) -> None:
    """Print one line on stderr that names these skipped traffic files, if there are any."""
    if traffic:
        text = f"{shorten(traffic, 4)}; torchcoll show FILE shows what it holds"
        errors.tell(f"torchcoll: note: skipped traffic, which holds no results: {text}")


def _holds_no_results(source: str | os.PathLike[str], error: UnreadableError) -> bool:
    """Whether a file that cannot be read is just another file beside the results."""
    path = os.fspath(source)
    if isinstance(error, ForeignError):
        return isinstance(source, Inside) or path.endswith(_DOCUMENTS)
    if path.endswith(".md"):
        with open_to_read(path) as file:
            return b"\n## What was run\n" in file.read(1 << 16)
    return path.endswith((".py", ".sh"))


def _none_of(paths: Sequence[str], errors: Mapping[str, UnreadableError]) -> UnreadableError:
    """The error for folders and patterns without a single result."""
    first = errors[paths[0]]
    if len(paths) == 1 or "reads it" in str(first):
        return first
    expected = "a torchcoll result file, or output of another tool"
    return UnreadableError("result files", shorten(paths, _NAMED), expected)


def _result_files(folder: Path) -> list[Path]:
    return [p for p in files_in(folder) if p.name[0] != "." and not is_manifest(p)]


def _no_files(folder: Path) -> UnreadableError:
    """The error for a folder without files. It lists the subfolders that have some."""
    subfolders = []
    # A matrix without a result yet has no result in its subfolders either, only logs.
    is_matrix = any(map(is_manifest, files_in(folder)))
    for visited, (name, folders, _) in enumerate(() if is_matrix else os.walk(folder)):
        folders[:] = sorted(child for child in folders if child[0] != ".")
        if visited >= _LOOKED_AT:
            break
        if count := len(_result_files(Path(name))):
            subfolders.append(f"{name} ({counted(count, 'file')})")
    action = (
        f"Below it are {shorten(subfolders, 4)}: name what is meant, or '{folder}/**/*' for all."
    )
    action = action if subfolders else ""
    return UnreadableError("folder", folder, "a folder with result files", action)


def _unnamed(run: Run) -> Run:
    """Remove the path of a copy of stdin, which the user cannot open."""
    if run.path and is_stdin(run.path):
        run.problems = [text.replace(str(run.path), STDIN) for text in run.problems]
        run.path = None
    return run


def _imported(
    path: str | os.PathLike[str], collective: str | None = None, ranks: int | None = None
) -> list[Run]:
    # Imported here, so that neither ranks nor readers of result files load the importers.
    from torchcoll.reading.registry import runs_in

    return runs_in(os.fspath(path), collective=collective, ranks=ranks)
