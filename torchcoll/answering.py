"""``torchcoll PATH...``: what is this, by its content, and what does it say? Without a path: what
is here, and what is next?
"""

from __future__ import annotations

import contextlib
import glob
import io
import itertools
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from torchcoll.core.errors import ExitCode, UnreadableError, missing_file, one_line, tell
from torchcoll.core.opening import files_in, from_stdin, is_stdin, read_regular
from torchcoll.core.other_commands import begin_of, end_of, reading_commands
from torchcoll.core.parts import functions_of
from torchcoll.core.units import counted

# The most urgent first: a dead job comes before what it measured.
_URGENCY = ("postmortem", "pairs", "compare", "show", "trace", "nightly", "plan", "log")
_MOST_FILES = 1000  # of a folder
_MOST_FOLDERS, _MOST_OF_A_FOLDER = 100, 50  # that are listed, and of each the files looked at
_MOST_HERE = 200  # files of the current folder that are looked at
# Commands that take one file, with their arguments before it; the others take all files at once.
_BY_FILE = {"plan": ["--ranks", "8"], "nightly": ["--night", "last"], "compare": []}

_OF_FOLDERS = ("postmortem",)  # the files of a dead job belong together
_MOST_DOCUMENT = 4 << 20  # bytes of an issue whose parts are answered

Main = Callable[[Sequence[str]], int]


def are_paths(arguments: Sequence[str]) -> bool:
    """Whether the first argument is a file, a folder, a pattern that matches, or stdin."""
    first = arguments[0]
    return first == "-" or os.path.exists(first) or bool(glob.has_magic(first) and glob.glob(first))


def check_missing(argument: str) -> None:
    """Raises UnreadableError for a word that is meant to be a file: it has a folder or a suffix."""
    folder, name = os.path.split(argument)
    if folder or (os.path.splitext(name)[1] and " " not in name):
        raise missing_file(argument)


def answer_paths(arguments: Sequence[str], main: Main) -> int:
    """Answer files and folders, the most urgent first, print the commands that did, and return the
    worst exit code. Raises UnreadableError if none reads any.
    """
    from torchcoll.reading.inputs import expand, load_all

    by_command: dict[str, list[str]] = {}
    also, unread = [], []
    for argument in arguments:
        if listing := _listing(argument):
            print("\n".join(listing))
            if len(arguments) == 1:
                return int(ExitCode.OK)
            continue
        of_argument, less = _by_command(argument)
        also += [[name, argument] for name in less]
        names = sorted(of_argument, key=_urgency)
        if not names:
            unread.append(argument)
        # Of one file the most urgent answer; a folder, and an issue, has several kinds.
        several = os.path.isdir(argument) or _is_document(argument)
        answering = names if several else names[:1]
        also += [[name, argument] for name in names[len(answering) :]]
        if os.path.isdir(argument) and "compare" in names:
            also.append(["show", argument])
        for name in answering:
            by_command.setdefault(name, []).extend(of_argument[name])
    codes: list[int] = []
    lines: list[str] = []
    names = sorted(by_command, key=_urgency)
    if len(names) > 1:
        print(f"{len(names)} answers, the most urgent first: {', '.join(names)}\n")
    for name in names:
        for together in _groups(name, by_command[name]):
            if lines:
                print()
            command = [name, *_BY_FILE.get(name, ()), *together]
            code, errors = _run(command, main)
            second = next((each for each in also if [each[1]] == together), None)
            if code in (ExitCode.UNREADABLE, ExitCode.USAGE) and second:
                also.remove(second)
                command = second
                code, errors = _run(command, main)
            sys.stderr.write(errors)
            codes.append(code)
            lines.append(shlex.join(["torchcoll", *command]))
    for path in unread:
        try:
            load_all(expand(path))
        except UnreadableError as error:
            if not lines and path == unread[-1]:
                raise
            tell(error.line())
            codes.append(int(error.exit_code))
        else:
            name = _command_of_results(path)
            codes.append(main([name, path]))
            lines.append(shlex.join(["torchcoll", name, path]))
    print()
    for line in lines:
        print(f"answered by: {line}")
    for each in also:
        print(f"also: {shlex.join(['torchcoll', *each])}")
    return max(codes)


def _groups(name: str, paths: Sequence[str]) -> list[list[str]]:
    """The paths that one call of a command answers: ``show`` takes other tools' files apart."""
    if name in _BY_FILE:
        return [[path] for path in paths]
    if name != "show":
        return [[*paths]]
    from torchcoll.core.file import is_ours

    ours = [path for path in paths if os.path.isdir(path) or is_ours(path)]
    return [group for group in (ours, [path for path in paths if path not in ours]) if group]


def _run(command: Sequence[str], main: Main) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = main(command)
    return code, errors.getvalue()


def _urgency(name: str) -> int:
    return _URGENCY.index(name) if name in _URGENCY else len(_URGENCY)


def _by_command(argument: str) -> tuple[dict[str, list[str]], list[str]]:
    """(commands that answer a file, folder or pattern -> their arguments, further ones for few
    files of many). A folder stands for all of its files.
    """
    from torchcoll.reading.inputs import MANIFEST

    files: dict[str, list[str]] = {}
    for path in _files(argument):
        for name in _commands_of_file(path):
            files.setdefault(name, []).append(path)
    if not os.path.isdir(argument):
        if "show" in files and _command_of_results(argument) == "compare":
            files["compare"] = files.pop("show")
        return {name: [argument] for name in files}, []
    if "show" in files and os.path.exists(os.path.join(argument, MANIFEST)):
        del files["show"]  # the runs of two sides or more
        files["compare"] = [argument]
    less = [name for name in _OF_FOLDERS if len(files.get(name, ())) < len(files.get("show", ()))]
    if not less and {*files.get("log", ())} <= {*files.get("postmortem", ())}:
        less.append("log")  # postmortem's answer has its warnings
    less = [name for name in less if files.pop(name, None)]
    recognised = {path for paths in files.values() for path in paths}
    return {
        name: [argument]
        if name in (*_OF_FOLDERS, "compare") or len(paths) == len(recognised)
        else paths
        for name, paths in files.items()
    }, less


def _listing(argument: str) -> list[str]:
    """Of a folder of folders with results: a line for each, and what to do; [] of any other."""
    if not os.path.isdir(argument):
        return []
    lines = []
    folders = [path for path in Path(argument).iterdir() if path.is_dir() and path.name[0] != "."]
    for folder in sorted(folders)[:_MOST_FOLDERS]:
        kinds = Counter(
            name
            for path in _files_below(os.fspath(folder), _MOST_OF_A_FOLDER)
            for name in _commands_of_file(path)[:1]
        )
        if set(kinds) - {*_OF_FOLDERS}:
            texts = [f"{counted(many, 'file')} for {name}" for name, many in kinds.most_common()]
            lines.append(f"{folder}: {', '.join(texts)}")
    if len(lines) < 2:
        return []
    name = shlex.quote(argument.rstrip("/"))
    return [
        f"{argument} has {len(lines)} folders of results. Next: torchcoll {name}/NAME answers one",
        "",
        *lines,
    ]


def _files(argument: str) -> Iterator[str]:
    if is_stdin(argument):
        yield os.fspath(from_stdin(argument))
    elif os.path.isdir(argument):
        here = files_in(Path(argument))
        # A launcher's log folder has nothing but folders.
        below = [] if here else _files_below(argument, _MOST_FILES)
        yield from [*map(os.fspath, here), *below][:_MOST_FILES]
    elif os.path.exists(argument):
        yield argument
    else:
        yield from sorted(glob.glob(argument, recursive=True))


def _files_below(folder: str, most: int) -> list[str]:
    """The first files of a folder and its subfolders, without those that are hidden."""

    def walk() -> Iterator[str]:
        for path, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if name[0] != ".")
            paths = (os.path.join(path, name) for name in sorted(names) if name[0] != ".")
            yield from filter(os.path.isfile, paths)

    return [*itertools.islice(walk(), most)]


def _is_document(argument: str) -> bool:
    """Whether an argument is an issue or a mail with several outputs between fences."""
    files = list(_files(argument))
    return len(files) == 1 and len(_parts(files[0])) > 1


def _parts(path: str) -> list[bytes]:
    """The texts between the fences of an issue; [] of any other file."""
    from torchcoll.reading.writers import document_parts

    if not os.path.isfile(path) or os.path.getsize(path) > _MOST_DOCUMENT:
        return []
    data = read_regular(path)
    if b"```" not in data and b"~~~" not in data:
        return []  # most files: their lines need not be looked at
    lines = data.decode(errors="replace").splitlines()
    parts = document_parts(enumerate(lines, 1))
    return ["\n".join(text for _, text in part.lines).encode() for part in parts]


def _command_of_results(argument: str) -> str:
    """``compare`` for a file with two tables, ``pairs`` for one of pairs, otherwise ``show``."""
    from torchcoll.reading.inputs import load_all
    from torchcoll.reading.registry import two_tables

    (path, *more) = _files(argument)
    if more or os.path.getsize(path) > _MOST_DOCUMENT:
        return "show"
    try:
        if tables := two_tables(path):  # what failed comes first
            runs = [run for _, run in tables]
            right = all(run.complete and all(r.is_right for r in run.results) for run in runs)
            return "compare" if right else "show"
        pairs = any(run.source.get("format") == "pairs" for run in load_all([path]))
    except UnreadableError:
        return "show"
    return "pairs" if pairs else "show"


def _commands_of_file(path: str) -> list[str]:
    """The commands that recognise the beginning or the end of a file, or a part of an issue."""
    texts = [("part.txt", part) for part in _parts(path)]
    texts = texts or [(path, begin_of(path) + b"\n" + end_of(path))]
    return [*dict.fromkeys(name for text in texts for name in _commands_of_text(*text))]


def _commands_of_text(path: str, text: bytes) -> list[str]:
    names = [name for reads in functions_of("answers", "reads") if (name := reads(path, text))]
    return [*dict.fromkeys([*names, *reading_commands(text)])]


def describe_here() -> int:
    """What is in this folder and on this machine, and the next command: three lines."""
    files = [os.fspath(path) for path in files_in(Path()) if path.name[0] != "."]
    kinds = Counter(name for path in files[:_MOST_HERE] for name in _commands_of_file(path)[:1])
    runs = len(glob.glob("torchcoll-runs/*.jsonl"))
    parts = [f"{counted(number, 'file')} for torchcoll {name}" for name, number in kinds.items()]
    parts += [f"{counted(runs, 'result file')} in torchcoll-runs"] if runs else []
    print(f"in this folder: {', '.join(parts) or 'nothing that torchcoll reads'}")
    gpus = _gpus()
    cores = counted(os.cpu_count() or 1, "core")
    torch = "torch is installed" if find_spec("torch") else "torch is not installed"
    print(f"on this machine: {', '.join([*gpus, cores]) if gpus else f'no GPU, {cores}'}; {torch}")
    ranks = sum(int(text.split()[0]) for text in gpus) or 2
    measure = f"torchrun --nproc-per-node {ranks} -m torchcoll.allreduce"
    command = "torchcoll ." if kinds else "torchcoll torchcoll-runs" if runs else measure
    print(f"next: {command} (torchcoll --help lists all commands)")
    return int(ExitCode.OK)


def _gpus() -> list[str]:
    """``8 x NVIDIA H100 80GB HBM3``, by the drivers' files."""
    names = []
    for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
        with contextlib.suppress(OSError):
            lines = Path(path).read_text(errors="replace").splitlines()
            names += [x.partition(":")[2].strip() for x in lines if x.startswith("Model:")][:1]
    names += ["AMD GPU"] * len(glob.glob("/sys/class/kfd/kfd/topology/nodes/*/mem_banks/0"))
    return [f"{number} x {one_line(name)}" for name, number in Counter(names).items()]
