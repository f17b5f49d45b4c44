"""Large JSON documents, and those that were cut off.

A trace of 100 MB packed is 2 GB of JSON and would be 10 GB of objects, of which few are wanted:
so each event is decoded on its own, and what nobody keeps is gone before the next.
"""

from __future__ import annotations

import codecs
import collections
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torchcoll.core.bounds import (
    MOST_DEPTH,
    MOST_LINE,
    MOST_MEMBER,
    Held,
)
from torchcoll.core.errors import UnreadableError
from torchcoll.importers.base import Line

_DECODER = json.JSONDecoder(strict=False)  # names of events may hold control characters
_SPACE = re.compile(r"[ \t\n\r]*")
_NEVER_SKIPPED = frozenset('{}[],:"')  # what is there to be read; '' is the end of a piece
_OPEN = frozenset(".eE+-")  # a number that goes on
_BATCH = 1 << 18  # characters of items that are decoded at once
_BOUNDARY = re.compile(r"\}\s*,\s*(?=\{)")  # likely between two items that are objects
_TRIED = 3  # boundaries that turn out to be within an item, before each item is decoded alone
Member = tuple[str, Any, int, bool]  # key, value, its length as text, whether it is of items


def members(chunks: Iterable[bytes], arrays: Collection[str]) -> Iterator[Member]:
    """Each member of the outermost object; of those named in ``arrays`` lists of some items each,
    in order, behind an empty list.

    Raises ValueError for what is no such JSON, or has a member of more than MOST_MEMBER characters;
    RecursionError where it is nested too deep.
    """
    text = _Text(chunks)
    text.expect("{")
    if text.next_is("}"):
        return
    while True:
        key, _ = text.value()
        if not isinstance(key, str):
            raise ValueError("no name of a member")
        text.expect(":")
        if key in arrays and text.next_is("["):
            yield key, [], 0, False  # its items follow
            if not text.next_is("]"):
                while True:
                    items, length = text.items()
                    if items:
                        yield key, items, length, True
                    value, length = text.value()
                    yield key, [value], length, True
                    if not text.next_is(","):
                        text.expect("]")
                        break
        else:
            yield (key, *text.value(), False)
        if text.next_is("}"):
            text.end()
            return
        text.expect(",")


class _Text:
    """What is left of a text that comes in pieces."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass").decode
        self._text, self._place = "", 0
        self._ended = False
        self._tries = _TRIED

    def _more(self, size_bytes: int = 1) -> bool:
        """At least so much more text, if there is; False at the end."""
        pieces, length = [self._text[self._place :]], 0
        while length < size_bytes and not self._ended:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            decoded_chunk = self._decode(chunk or b"", final=self._ended)
            pieces.append(decoded_chunk)
            length += len(decoded_chunk)
        self._text, self._place = "".join(pieces), 0
        return bool(length)

    def _skip(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._place)
            self._place = match.end() if match else self._place
            if self._place < len(self._text) or not self._more():
                return

    def next_is(self, char: str) -> bool:
        """Whether the next one is this, which is then read."""
        if self._text[self._place : self._place + 1] not in _NEVER_SKIPPED:
            self._skip()
        matches = self._text.startswith(char, self._place)
        self._place += matches
        return matches

    def expect(self, char: str) -> None:
        if not self.next_is(char):
            raise ValueError(f"no {char}")

    def value(self) -> tuple[Any, int]:
        """The next value, and its length as text."""
        if self._text[self._place : self._place + 1] not in _NEVER_SKIPPED:
            self._skip()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._place)
                # 12 at the end may be the begin of 123, and so may 12 before a point at the end.
                whole = end < len(self._text) and self._text[end] not in _OPEN
            except ValueError:
                whole = False
            have = len(self._text) - self._place
            if whole:
                break
            if have > MOST_MEMBER:
                raise ValueError("a member is too long")
            # As much again, so that a long value is not begun anew for each piece of it.
            if not self._more(have):
                value, end = _DECODER.raw_decode(self._text, self._place)
                break
        length, self._place = end - self._place, end
        return value, length

    def items(self) -> tuple[list[Any], int]:
        """Items that stand here with a comma behind each, and their length; [] is none of them.

        What begins at the beginning of an item and is a list's content, is whole items: a text that
        ends inside of one leaves something open.
        """
        if not self._tries:
            return [], 0
        if len(self._text) - self._place < _BATCH:
            self._more(_BATCH)
        latest = self._text.rfind("}", self._place, len(self._text) - _BATCH // 8)
        boundary = _BOUNDARY.search(self._text, max(latest, self._place))
        if latest < 0 or boundary is None:
            return [], 0
        try:
            items = _DECODER.decode(f"[{self._text[self._place : boundary.start() + 1]}]")
        except (ValueError, RecursionError):
            self._tries -= 1
            return [], 0
        self._tries = _TRIED
        length, self._place = boundary.end() - self._place, boundary.end()
        return items, length

    def end(self) -> None:
        self._skip()
        if self._place < len(self._text):
            raise ValueError("more behind the end")


# C's printf of an infinite double, which is no JSON; NaN is printed as a string.
_BARE = re.compile(r"(?<=[:,\[])\s*-?(?:inf|nan)\b")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)
_LAST = 20  # places at which a document that was cut off may be whole


def document(lines: Iterable[Line]) -> str:
    """The text of these lines. Raises UnreadableError for more than a document has."""
    texts, length = [], 0
    for _, text in lines:
        texts.append(text)
        length += len(text)
        if length > MOST_LINE:
            raise UnreadableError("file", "more than 64 MiB of JSON", "less", "Split it.")
    text = "\n".join(texts)
    Held("file", "JSON").add(text.encode("utf-8", "surrogatepass"))
    return text


def decode(text: str) -> tuple[Any, bool]:
    """(the document, whether it was cut off). Of a cut one, everything up to its last whole row."""
    text = text.strip()
    bare = _BARE.sub(" null", text)
    for attempt in (text, bare) if bare != text else (text,):
        try:
            return json.loads(attempt), False
        except (ValueError, RecursionError):
            continue
    for end, closing in reversed(_ends(bare)):
        try:
            return json.loads(bare[:end] + closing), True
        except (ValueError, RecursionError):
            continue
    return None, True


def _ends(text: str) -> list[tuple[int, str]]:
    """The last places behind a closed object, and what closes the brackets that are open there."""
    ends: collections.deque[tuple[int, str]] = collections.deque(maxlen=_LAST)
    closing = ""  # what is open, the innermost first
    for token in _TOKEN.finditer(text):
        char = token[0]
        if char == "{":
            closing = "}" + closing
        elif char == "[":
            closing = "]" + closing
        elif char in "}]":
            if not closing.startswith(char):
                break
            closing = closing[1:]
            if char == "}":
                ends.append((token.end(), closing))
        elif char == '"':  # a text that is open to the end
            break
        if len(closing) > MOST_DEPTH:
            break
    return list(ends)
