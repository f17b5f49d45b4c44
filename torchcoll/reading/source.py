"""Reads the lines of another tool's file: unpacked, decoded, without ANSI codes.

The text of programs is taken out of JSON too: of one object per line, as Docker and log shippers
write, and of notebooks and test runners, which have texts or lists of lines anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torchcoll.core.bounds import MOST_DEPTH, MOST_PROBLEMS, MOST_TEXT
from torchcoll.core.errors import UnreadableError
from torchcoll.core.jsonl import chunks_of
from torchcoll.core.opening import STDIN, from_stdin, is_stdin
from torchcoll.reading.base import Line

_BLOCK = 1 << 16  # bytes of lines that are decoded at once, since work for each line would be slow
_WINDOW = 2000  # lines
_LONGEST = 1 << 24  # bytes; a longer line is not text
_CONTROLS = bytes([*range(9), *range(14, 27)])  # characters that no text has


class Source:
    """A file to import: ``windows`` has its first lines, for sniffing, and ``lines`` all.

    start: its first lines as they are. in_json: whether the lines are inside of JSON.
    """

    def __init__(self, path: str) -> None:
        self.path = str(from_stdin(path))
        self.name = STDIN if is_stdin(self.path) else path
        self.in_json = False
        self._problems: list[str] = []
        self._cut: list[int] = []  # lines that were cut
        self.start = next(self._blocks(), b"")
        if not self.start and self.problem:
            raise UnreadableError("file", path, f"a readable file ({self.problem})")

    @property
    def problem(self) -> str:
        """What went wrong while reading; '' if nothing."""
        return self._problems[0].removeprefix(f"{self.path}: ") if self._problems else ""

    @property
    def binary(self) -> bool:
        """Whether it has null bytes without being UTF-16, or many control characters."""
        if self.start.startswith((b"\xff\xfe", b"\xfe\xff")):
            return False
        odd = len(self.start) - len(self.start.translate(None, _CONTROLS))
        return b"\0" in self.start or odd > len(self.start) // 10

    def windows(self) -> Iterator[list[str]]:
        """Yield lists of lines without the messages of libraries, for sniffing."""
        window: list[str] = []
        for lines in self._cleaned():
            for text in lines:
                if "NCCL INFO" not in text and "|CCL_" not in text:
                    window.append(text[:MOST_TEXT])
                    if len(window) >= _WINDOW:
                        yield window
                        window = []
        yield window

    def lines(self, most: int | None = None) -> Iterator[Line]:
        """All lines with their numbers. Longer ones are cut at ``most`` characters."""
        self._cut, first = [], 1
        for lines in self._cleaned():
            for number, text in enumerate(lines, first):
                if most is not None and len(text) > most:
                    if len(self._cut) < MOST_PROBLEMS:
                        self._cut.append(number)
                    text = text[:most]
                yield number, text
            first += len(lines)

    @property
    def cut(self) -> str:
        """A warning about lines that were cut; '' if there are none."""
        if not self._cut:
            return ""
        count = f"{len(self._cut)} lines" if len(self._cut) > 1 else "a line"
        return f"{count} longer than {MOST_TEXT} characters: cut there; the first is {self._cut[0]}"

    def _cleaned(self) -> Iterator[list[str]]:
        texts = _decoded(self._blocks(), self.start)
        if self.in_json:
            return map(cleaned, map("\n".join, text_of_json(texts, self.name)))
        return map(cleaned, texts)

    def _blocks(self) -> Iterator[bytes]:
        """Yield whole lines, but for lines longer than _LONGEST."""
        rest = bytearray()
        for piece in chunks_of(Path(self.path), self._problems, "file", lined=True):
            rest += piece
            if b"\n" not in piece and len(rest) <= _LONGEST:
                continue
            while end := rest.find(b"\n", _BLOCK, _LONGEST) + 1 or rest.rfind(b"\n") + 1:
                yield bytes(rest[:end])
                del rest[:end]
            if len(rest) > _LONGEST:
                yield bytes(rest)
                rest.clear()
        if rest:
            yield bytes(rest)


def _decoded(blocks: Iterable[bytes], start: bytes) -> Iterator[str]:
    """Decode blocks as UTF-8, other lines as Latin-1, and UTF-16 by its first bytes."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):  # PowerShell's '>'
        yield "\n".join(b"".join(blocks).decode("utf-16", "replace").splitlines())
        return
    first = True
    for block in blocks:
        try:
            text = block.decode()
        except UnicodeDecodeError:
            text = "\n".join(map(_decoded_line, block.split(b"\n")))
        if first:
            text, first = text.removeprefix("\ufeff"), False
        yield text.removesuffix("\n")


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def cleaned(text: str) -> list[str]:
    """The lines of a text without ANSI codes and earlier states of a bar."""
    lines = text.split("\n")
    # Most texts have none of these, and a check of many lines at once is cheap.
    if "\x1b" in text:
        lines = [_ANSI.sub("", line) for line in lines]
    if "\r" in text:
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return lines


_MOST = 64 << 20  # characters of a document that is not one object per line
_TEXTS = ("log", "message", "line", "msg", "text", "textPayload")
_PODS = ("pod", "pod_name", "container", "host", "hostname", "node")
_MIN_LISTED = 2


def text_of_json(blocks: Iterable[str], name: str) -> Iterator[list[str]]:
    """Yield lists of lines. blocks: the lines of the file. name: the file, for errors."""
    blocks = iter(blocks)
    first = next(blocks, "")
    if _text_of_line(first.partition("\n")[0]) is not None:
        yield _texts_of_lines(first)
        yield from map(_texts_of_lines, blocks)
        return
    document, characters = [first], len(first)
    for block in blocks:
        document.append(block)
        characters += len(block)
        if characters > _MOST:
            raise UnreadableError("file", f"{name}: JSON of more than {_MOST >> 20} MB", "less")
    try:
        value = json.loads("\n".join(document))
    except (ValueError, RecursionError):
        return
    yield [line for text in _texts(value, 0) for line in text.splitlines()]


def _texts_of_lines(block: str) -> list[str]:
    return [_text_of_line(line) or "" for line in block.split("\n")]


def _text_of_line(line: str) -> str | None:
    """The text of an object; None if it has none. A pod that it names becomes a prefix."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    text = next((record[key] for key in _TEXTS if isinstance(record.get(key), str)), None)
    labels = record.get("labels") or record.get("kubernetes") or record.get("stream") or {}
    if text is None or not isinstance(labels, dict):
        return text
    pod = next((labels[key] for key in _PODS if isinstance(labels.get(key), str)), None)
    text = text.rstrip("\n").replace("\n", " ")
    return f"[pod/{pod}/log] {text}" if pod else text


def _texts(value: Any, depth: int) -> Iterator[str]:
    """The texts of several lines in a document, and the lists of lines, in their order."""
    if depth > MOST_DEPTH:
        return
    if isinstance(value, str):
        if "\n" in value:
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each, depth + 1)
    elif isinstance(value, list):
        if len(value) >= _MIN_LISTED and all(isinstance(each, str) for each in value):
            yield "".join(each if each.endswith("\n") else f"{each}\n" for each in value)
        elif value and all(_is_stamped(each) for each in value):  # Loki: [time, line]
            yield "".join(f"{line}\n" for _, line in value)
        else:
            for each in value:
                yield from _texts(each, depth + 1)


def _is_stamped(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, str) for each in value)
        and value[0].isdecimal()
    )
