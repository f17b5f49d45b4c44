"""``torchcoll PATH...``: what is this, and what does it say?

The command is found by the content of the files.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torchcoll.core.errors import ExitCode, ForeignError, UnreadableError, one_line, tell
from torchcoll.core.opening import files_in
from torchcoll.core.other_commands import begin_of, end_of, reading_commands
from torchcoll.core.parts import functions_of
from torchcoll.core.stdin import from_stdin, is_stdin

# The most urgent first: a dead job is told before what it measured.
_URGENCY = ("postmortem", "pairs", "show", "trace", "nightly", "plan", "log")
_MOST_FILES = 1000  # of a folder
_EXCERPT = 100  # characters of a file that is not recognised
# Commands that take one file, with their arguments before it; the others take all files at once.
_BY_FILE = {"plan": ["--ranks", "8", "--config"], "nightly": ["--night", "last"]}

_OF_FOLDERS = ("postmortem",)  # the files of a dead job belong together

Main = Callable[[Sequence[str]], int]


def are_paths(arguments: Sequence[str]) -> bool:
    """Whether the first argument is a file, a folder, a pattern that matches, or stdin."""
    first = arguments[0]
    return first == "-" or os.path.exists(first) or bool(glob.has_magic(first) and glob.glob(first))


def answer_paths(arguments: Sequence[str], main: Main) -> int:
    """Answer these files and folders, one answer for each kind, the most urgent first, and print
    the commands that did. Returns the worst of their exit codes.

    main: runs a command, given its arguments.

    Raises UnreadableError if no command reads any of the files.
    """
    from torchcoll.reading.inputs import expand, load_all

    by_command: dict[str, list[str]] = {}
    also, unread = [], []
    for argument in arguments:
        of_argument = _by_command(argument)
        names = sorted(of_argument, key=_urgency)
        if not names:
            unread.append(argument)
        # Of one file the most urgent answer; a folder has files of several kinds.
        answering = names if os.path.isdir(argument) else names[:1]
        also += [[name, argument] for name in names[len(answering) :]]
        for name in answering:
            by_command.setdefault(name, []).extend(of_argument[name])
    codes: list[int] = []
    lines: list[str] = []
    for name in sorted(by_command, key=_urgency):
        paths = by_command[name]
        for together in [[path] for path in paths] if name in _BY_FILE else [paths]:
            if lines:
                print()
            command = [name, *_BY_FILE.get(name, ()), *together]
            code, errors = _run(command, main)
            second = next((each for each in also if [each[1]] == together), None)
            if code == ExitCode.UNREADABLE and second:
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
            reason = _unknown(path) if isinstance(error, ForeignError) else error
            if not lines and path == unread[-1]:
                raise reason from None
            tell(reason.line())
            codes.append(int(reason.exit_code))
        else:
            codes.append(main(["show", path]))
            lines.append(shlex.join(["torchcoll", "show", path]))
    print()
    for line in lines:
        print(f"answered by: {line}")
    for each in also:
        print(f"also: {shlex.join(['torchcoll', *each])}")
    return max(codes)


def _run(command: Sequence[str], main: Main) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = main(command)
    return code, errors.getvalue()


def _urgency(name: str) -> int:
    return _URGENCY.index(name) if name in _URGENCY else len(_URGENCY)


def _by_command(argument: str) -> dict[str, list[str]]:
    """The commands that answer a file, a folder or a pattern -> what they are given.

    A command that reads all of the recognised files is given the folder. So is one of _OF_FOLDERS.
    """
    files: dict[str, list[str]] = {}
    for path in _files(argument):
        for name in _commands_of_file(path):
            files.setdefault(name, []).append(path)
    if not os.path.isdir(argument):
        return {name: [argument] for name in files}
    recognised = {path for paths in files.values() for path in paths}
    return {
        name: [argument] if name in _OF_FOLDERS or len(paths) == len(recognised) else paths
        for name, paths in files.items()
    }


def _files(argument: str) -> Iterator[str]:
    if is_stdin(argument):
        yield os.fspath(from_stdin(argument))
    elif os.path.isdir(argument):
        for number, path in enumerate(files_in(Path(argument))):
            if number == _MOST_FILES:
                return
            yield os.fspath(path)
    elif os.path.exists(argument):
        yield argument
    else:
        yield from sorted(glob.glob(argument, recursive=True))


def _commands_of_file(path: str) -> list[str]:
    """The commands that recognise the beginning or the end of a file."""
    text = begin_of(path) + b"\n" + end_of(path)
    names = [name for reads in functions_of("answers", "reads") if (name := reads(path, text))]
    return [*dict.fromkeys([*names, *reading_commands(text)])]


def _unknown(path: str) -> UnreadableError:
    lines = begin_of(path).decode(errors="replace").splitlines() if os.path.isfile(path) else []
    line = next((line.strip() for line in lines if line.strip()), "")
    seen = f"{one_line(line)[:_EXCERPT]!r} in {path}" if line else path
    return UnreadableError(
        "file",
        seen,
        "results of a benchmark, a log of a library or of a job, a trace, or a topology",
        "If it has columns of sizes and times: torchcoll convert FILE --map size=NAME,time_us=NAME "
        "-o RUN.jsonl.",
    )
