"""Reads stack dumps of py-spy, as text and as JSON, and faulthandler's where it has a file of its
own.

py-spy dump: ``Process 4711: python train.py``, then a stack for each thread, innermost frame first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.errors import UnreadableError
from torchcoll.core.opening import open_to_read
from torchcoll.core.variables import masked
from torchcoll.parts.postmortem.evidence import FileRead, JobEvent, JobEvidence, Place
from torchcoll.parts.postmortem.log_evidence import identities_of_path, rank_of_path
from torchcoll.parts.postmortem.traceback_log import Frame, describe
from torchcoll.reading.base import whole

_WHAT = "stack dump"
_MOST_BYTES = 64 << 20
_MOST_FRAMES = 1000
_PROCESS = re.compile(r"Process (\d{1,10}): ?(.*)")
_THREAD = re.compile(
    r'Thread (0x[0-9A-Fa-f]+|\d{1,20})(?: \(([\w+ ]{1,30})\))?(?:: "(.{0,100})")?$'
)
_FRAME = re.compile(r"    (\S.{0,300}?) \((.{1,500}?)(?::(\d{1,9}))?\)$")
_FAULT_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[.{0,60}\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'  File "(.{1,500})", line (\d{1,9}) in (.{1,200})')
_HEAD = re.compile(
    rb"(?:\A|\n)(?:Process \d+: .*\n(?:Python v|\s*\n)|Thread \d+ \((?:idle|active))"
)
_FAULT_HEAD = re.compile(
    rb"\A(?:Timeout \(.{5,20}\)!\s*\n)?(?:Current thread|Thread) 0x[0-9a-f]+"
    rb".{0,70}most recent call first"
)


def recognizes(path: Path, begin: bytes) -> bool:
    if begin.lstrip()[:1] == b"[":
        return b'"thread_id"' in begin and b'"frames"' in begin
    return bool(_HEAD.search(begin[:4096]) or _FAULT_HEAD.match(begin))


def read_evidence(path: Path, shown: str) -> list[JobEvidence]:
    """Where the main thread of each process of the file stood. Raises UnreadableError."""
    with open_to_read(path) as file:
        data = file.read(_MOST_BYTES)
    evidence = JobEvidence(identities=identities_of_path(shown))
    file_rank = rank_of_path(shown)
    if data.lstrip()[:1] == b"[":
        stacks = list(_json_stacks(data, shown))
    else:
        stacks = list(_text_stacks(data.decode("utf-8", "replace")))
    several = len({pid for _, pid, _, _ in stacks}) > 1
    for line, pid, command, frames in stacks:
        rank = None if several else file_rank
        if rank is None and (match := re.search(r"--rank[= ](\d{1,7})", command)):
            rank = int(match[1])
        rank = rank if rank is None or rank < MOST_RANKS else None
        text, collective = describe(frames)
        if text:
            place = Place(shown, line)
            event = JobEvent("stack", place, masked(text), rank, collective=collective, pid=pid)
            evidence.events.append(event)
        if rank is not None and pid is not None:
            evidence.pids[rank] = pid
    ranks = () if several or file_rank is None else (file_rank,)
    evidence.files = [FileRead(shown, _WHAT, ranks)]
    return [evidence] if evidence.events else []


_Stack = tuple["int | None", "int | None", str, list[Frame]]  # line, pid, command line, frames


def _text_stacks(text: str) -> Iterator[_Stack]:
    """The stack of the main thread of each process: that with its name, or else the last one whose
    outermost frame is a module.
    """
    pid: int | None = None
    command = ""
    threads: list[tuple[int, str, list[Frame]]] = []

    def main() -> Iterator[_Stack]:
        named = [thread for thread in threads if thread[1] == "MainThread"]
        modules = [t for t in threads if t[2] and t[2][-1].function == "<module>"]
        for line, _, frames in [*named, *modules, *threads[:1]][:1]:
            yield line, pid, command, frames

    for number, line in enumerate(text.splitlines(), 1):
        if match := _PROCESS.match(line):
            yield from main()
            threads = []
            pid, command = int(match[1]), match[2]
        elif match := _THREAD.match(line):
            threads.append((number, match[3] or "", []))
        elif _FAULT_THREAD.match(line):
            threads.append((number, "", []))
        elif threads and len(threads[-1][2]) < _MOST_FRAMES:
            if match := _FRAME.match(line):
                where = int(match[3]) if match[3] else None
                threads[-1][2].append(Frame(match[2], where, match[1]))
            elif match := _FAULT_FRAME.match(line):
                threads[-1][2].append(Frame(match[1], int(match[2]), match[3]))
    yield from main()


def _json_stacks(data: bytes, shown: str) -> Iterator[_Stack]:
    try:
        threads = json.loads(data)
    except (ValueError, RecursionError):
        raise UnreadableError(_WHAT, shown, "complete JSON of py-spy dump --json") from None
    by_process: dict[int | None, list[dict[str, Any]]] = {}
    for thread in threads if isinstance(threads, list) else ():
        if isinstance(thread, dict):
            by_process.setdefault(whole(thread.get("pid")), []).append(thread)
    for pid, members in by_process.items():
        named = [thread for thread in members if thread.get("thread_name") == "MainThread"]
        thread = (named or members)[0]
        info = thread.get("process_info")
        command = str(info.get("command_line", "")) if isinstance(info, dict) else ""
        frames = thread.get("frames")
        yield (
            None,
            pid,
            command,
            [
                Frame(
                    str(frame.get("filename") or frame.get("short_filename") or ""),
                    whole(frame.get("line")),
                    str(frame.get("name") or ""),
                )
                for frame in (frames if isinstance(frames, list) else ())[:_MOST_FRAMES]
                if isinstance(frame, dict)
            ],
        )
