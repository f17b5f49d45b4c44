"""What the arguments of a command stand for: a file, a folder, a pattern, ``label=PATH``, stdin.

A file is a result of torchcoll, output of another tool (which becomes runs), captured traffic, the
manifest of a matrix, a library's log or its topology. Every command asks here which of these an
argument is.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import ForeignError, UnreadableError, UsageError, one_line, tell
from torchcoll.core.file import is_ours, is_traffic, load_own
from torchcoll.core.opening import open_to_read
from torchcoll.core.result import Run
from torchcoll.core.stdin import STDIN, from_stdin, is_stdin

if TYPE_CHECKING:
    from torchcoll.core.traffic import Traffic
    from torchcoll.libraries.dumps import Dump
    from torchcoll.libraries.log_files import LogReader

# What `torchcoll matrix` keeps beside the result files of its runs.
MANIFEST, MATRIX_SCHEMA = "manifest.jsonl", "torchcoll-matrix/1"
Source = Run | str | os.PathLike[str]
# What output of another tool may not tell, as options of the commands that read it.
TOLD = ("collective", "ranks")
_DISPLAYED = (".md", ".html", ".svg", ".png", ".pdf")
_NAMED = 5  # files of a folder that are no results
_LOOKED_AT = 1000  # folders below one without files


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
    read = os.fspath(from_stdin(path))
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
    names or that collective and ranks are told of. The label becomes that of the run, ``cell``.
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
            # The name that was given counts more than what a matrix or versus called the run.
            labels = {**_assigned(label), **run.labels, "cell": label}
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


def add_told(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--collective",
        metavar="NAME",
        help="the collective, for output of another tool that does not name it",
    )
    add(
        "--ranks",
        type=int,
        metavar="N",
        help="number of ranks, for output of another tool that does not say it",
    )


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


def results_and_traffic(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """The result files (or output of other tools) of these paths, and the captured traffic.

    A folder that holds traffic alone stays one path, since its ranks are joined.
    """
    from torchcoll.core.traffic import RANK_FILE

    results: list[str] = []
    traffic: list[str] = []
    for path in paths:
        files = [os.fspath(file) for file in expanded(path) if not isinstance(file, Run)]
        captured = [f for f in files if os.path.basename(f).startswith(RANK_FILE) or is_traffic(f)]
        results += [file for file in files if file not in captured]
        traffic += [path] if captured == files and os.path.isdir(path) else captured
    return results, traffic


@dataclass
class Material:
    """Everything that the arguments of a command hold.

    folders: the arguments that are folders. notes: why files of folders were left out, and what was
    wrong with others. arguments: those that hold ``runs``, ``traffic`` or ``logs``, by this name.
    """

    runs: list[Run] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    dumps: list[Dump] = field(default_factory=list)
    logs: list[LogReader] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    arguments: dict[str, list[str]] = field(default_factory=dict)


def read_material(arguments: Sequence[str]) -> Material:
    """Result files, output of other tools, traffic, logs and topology files, folders of them,
    ``label=PATH``. Raises UnreadableError for a file that is none of these, and where nothing is.
    """
    from torchcoll.core.traffic import join_folder

    material = Material()
    results: list[str] = []
    for argument in arguments:
        label, named = named_path(argument)
        if label:
            results.append(argument)
            material.arguments.setdefault("runs", []).append(argument)
            continue
        path = str(from_stdin(named))
        kinds: set[str] = set()
        if os.path.isdir(path):
            material.folders.append(path)
            for file in _results_and_logs_in(path):
                try:
                    kinds.add(_read_file(file, material, results))
                except UnreadableError as error:
                    material.notes.append(f"left out: {error}")
        else:
            kinds = {_read_file(str(file), material, results) for file in expanded(path)}
        for kind in sorted(kinds):
            material.arguments.setdefault(kind, []).append(argument)

    # Files of one folder are the ranks of a capture, where they fit together: of several captures
    # the last, as when the folder itself is loaded.
    ranks_of: dict[Path, list[Traffic]] = {}
    for traffic in material.traffic:
        ranks_of.setdefault(Path(traffic.path or "").parent, []).append(traffic)
    material.traffic = []
    for folder, ranks in ranks_of.items():
        try:
            material.traffic += [join_folder(ranks, folder)] if len(ranks) > 1 else ranks
        except UsageError:
            material.traffic += ranks

    material.runs += load_all(sources_of(results))
    if not (material.runs or material.traffic or material.dumps or material.logs):
        why = one_line(material.notes[0]) if material.notes else ""
        raise UnreadableError("report", "nothing to report", "results, traffic or logs", why)
    return material


def _results_and_logs_in(folder: str) -> list[str]:
    """Its results, or all of its files, and the logs that lie beside results."""
    from torchcoll.libraries.log_files import list_log_files

    files = [str(file) for file in expanded(folder)]
    with contextlib.suppress(UnreadableError):  # none
        files += list_log_files([folder])
    # A report of the folder may be kept in it: its tables would be read as another tool's.
    return [file for file in dict.fromkeys(files) if not file.endswith(_DISPLAYED)]


def _read_file(file: str, material: Material, results: list[str]) -> str:
    """Adds a file to the material, or its path to the results, and returns its kind, as in
    ``Material.arguments``. Raises UnreadableError for a file of no known kind.
    """
    from torchcoll.core.traffic import Traffic
    from torchcoll.libraries.dumps import read_dump
    from torchcoll.libraries.log_files import read_log
    from torchcoll.libraries.nccl.xml_tree import is_dump

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
        material.runs += load_all([file])
        return "runs"
    except UnreadableError as refused:
        try:
            log, problems = read_log(file)
        except UnreadableError:
            raise refused from None
    material.logs.append(log)
    material.notes += problems
    return "logs"


def expanded(source: Source) -> list[Source]:
    """The files of a folder or a pattern. Raises UnreadableError where there are none."""
    if isinstance(source, Run):
        return [source]
    source = from_stdin(source)
    path = Path(source)
    if path.is_dir():
        inside = _files_in(path)
        if not inside:
            raise _no_files(path)
        own = [p for p in inside if p.name.endswith((".jsonl", ".jsonl.gz"))]
        return [Inside(p) for p in own or inside]
    if not path.exists() and glob.has_magic(str(source)):
        found = (Path(p) for p in sorted(glob.glob(str(source), recursive=True)))
        matches = [p for p in found if p.is_file() and not is_manifest(p)]
        if not matches:
            raise UnreadableError("result files", source, "a pattern that some file matches")
        return [Inside(p) for p in matches]
    return [source]


def named_path(argument: str) -> tuple[str, str]:
    """(label, path) of ``label=PATH``, where the label may be ``NAME=VALUE``; of a path ("", path).

    Raises UsageError where one of them is empty.
    """
    label, found, path = argument.partition("=")
    if not found or os.path.exists(argument) or glob.glob(argument):
        return "", argument
    while "=" in path and not os.path.exists(path) and not glob.glob(path):
        more, _, path = path.partition("=")
        label += f"={more}"
    if not label or not path:
        raise UsageError("file", argument, "a path, or label=PATH")
    return label, path


class Inside(str):
    """A file that a folder or a pattern stands for: nobody named it, so it may be of any kind."""


def is_manifest(path: str | os.PathLike[str]) -> bool:
    """Whether the file is the manifest of ``torchcoll matrix``, which is no result."""
    if os.path.basename(path) != MANIFEST or not os.path.isfile(path):
        return False
    with contextlib.suppress(OSError), open_to_read(path) as file:
        return file.read(100).startswith(b'{"record":"matrix"')
    return False


def leave_out(traffic: Sequence[str]) -> None:
    """One line on stderr that names these traffic files; none where there are none."""
    if traffic:
        several = [*traffic[:3], f"... ({len(traffic)} files)"] if len(traffic) > 4 else traffic
        text = f"{' '.join(', '.join(several).split())}; torchcoll show FILE shows what it holds"
        tell(f"torchcoll: note: traffic is no result, left out: {text}")


def _without_traffic(
    sources: Iterable[Source], collective: str | None = None, ranks: int | None = None
) -> list[Run | str]:
    """Our own files stay paths, those of other tools become Runs, traffic is left out."""
    found: list[Run | str] = []
    traffic: list[str] = []
    foreign: dict[str, UnreadableError] = {}
    for source in sources:
        if isinstance(source, Run):
            found.append(source)
            continue
        source = from_stdin(source)
        if not is_ours(source):
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


def _files_in(folder: Path) -> list[Path]:
    found = (p for p in sorted(folder.iterdir()) if p.is_file())
    return [p for p in found if p.name[0] != "." and not is_manifest(p)]


def _no_files(folder: Path) -> UnreadableError:
    """Names what may be meant, and takes none of it: folders may be before and after, or logs."""
    below = []
    # The folder of a matrix that has no result yet holds its logs.
    own = any(is_manifest(p) for p in folder.iterdir() if p.is_file())
    for place, (name, folders, _) in enumerate(() if own else os.walk(folder)):
        folders[:] = sorted(one for one in folders if one[0] != ".")
        if place >= _LOOKED_AT:
            break
        if count := len(_files_in(Path(name))):
            below.append(f"{name} ({count} file{'s' if count > 1 else ''})")
    several = ", ".join(below if len(below) < 5 else [*below[:3], f"... ({len(below)} folders)"])
    return UnreadableError(
        "folder",
        folder,
        "a folder with result files",
        f"Below it are {several}: name what is meant, or '{folder}/**/*' for all." * bool(below),
    )


def _unnamed(run: Run) -> Run:
    """Without the path of what ``from_stdin`` wrote, which nobody can use again."""
    if run.path and is_stdin(run.path):
        run.problems = [text.replace(str(run.path), STDIN) for text in run.problems]
        run.path = None
    return run


def _assigned(label: str) -> dict[str, str]:
    """``NCCL_ALGO=Ring`` as a label of that name: what a run was told to use."""
    name, equals, value = label.partition("=")
    return {name: value} if equals else {}


def _imported(
    path: str | os.PathLike[str], collective: str | None = None, ranks: int | None = None
) -> list[Run]:
    # Here alone: no rank and no result file pays for the importers.
    from torchcoll.importers.registry import runs_in

    return runs_in(os.fspath(path), collective, ranks)
