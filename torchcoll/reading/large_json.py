"""Reads large JSON documents item by item, and documents that were cut off.

A compressed trace of 100 MB is 2 GB of JSON and would need 10 GB of memory as objects.
"""

from __future__ import annotations

import codecs
import collections
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torchcoll.core.bounds import MOST_DEPTH, MOST_LINE, MOST_MEMBER, ByteBudget
from torchcoll.core.errors import UnreadableError
from torchcoll.reading.base import Line

_DECODER = json.JSONDecoder(strict=False)  # names of events may contain control characters
_SPACE = re.compile(r"[ \t\n\r]*")
_NEVER_SKIPPED = frozenset('{}[],:"')  # a token begins here, so there is no space to skip
_OPEN = frozenset(".eE+-")  # characters with which a number may continue
Member = tuple[str, Any, int, bool]  # key, value, its length as text, whether it is an item


def members(chunks: Iterable[bytes], arrays: Collection[str]) -> Iterator[Member]:
    """Yield each member of the outermost object; one in ``arrays`` as [], followed by its items.
    Raises ValueError, and RecursionError for deep nesting.
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
            more = not text.next_is("]")
            while more:
                yield (key, *text.value(), True)
                more = text.next_is(",")
                if not more:
                    text.expect("]")
        else:
            yield (key, *text.value(), False)
        if text.next_is("}"):
            text.end()
            return
        text.expect(",")


class _Text:
    """The rest of a text that is read in pieces."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass").decode
        self._text, self._position = "", 0
        self._ended = False

    def _more(self, least: int = 1) -> bool:
        """Read at least ``least`` more characters if there are more. False at the end."""
        pieces, length = [self._text[self._position :]], 0
        while length < least and not self._ended:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            decoded_chunk = self._decode(chunk or b"", final=self._ended)
            pieces.append(decoded_chunk)
            length += len(decoded_chunk)
        self._text, self._position = "".join(pieces), 0
        return bool(length)

    def _skip(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text) or not self._more():
                return

    def next_is(self, char: str) -> bool:
        """Whether the next token is ``char``, which is then consumed."""
        if self._text[self._position : self._position + 1] not in _NEVER_SKIPPED:
            self._skip()
        matches = self._text.startswith(char, self._position)
        self._position += matches
        return matches

    def expect(self, char: str) -> None:
        if not self.next_is(char):
            raise ValueError(f"no {char}")

    def value(self) -> tuple[Any, int]:
        """Read the next value: (value, its length as text)."""
        if self._text[self._position : self._position + 1] not in _NEVER_SKIPPED:
            self._skip()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
                # At the end of the text, 12 or 12. may be the beginning of a longer number.
                whole = end < len(self._text) and self._text[end] not in _OPEN
            except ValueError:
                whole = False
            have = len(self._text) - self._position
            if whole:
                break
            if have > MOST_MEMBER:
                raise ValueError("a member is too long")
            # Double the text: a long value is not decoded again for each piece of it.
            if not self._more(have):
                value, end = _DECODER.raw_decode(self._text, self._position)
                break
        length, self._position = end - self._position, end
        return value, length

    def end(self) -> None:
        self._skip()
        if self._position < len(self._text):
            raise ValueError("more behind the end")


# Infinite doubles as C's printf prints them, which is not JSON.
_BARE = re.compile(r"(?<=[:,\[])\s*-?(?:inf|nan)\b")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)
_LAST = 20  # positions at which the end of a document that was cut off is tried


def document(lines: Iterable[Line]) -> str:
    """The text of these lines. Raises UnreadableError if it is too long, or takes much memory."""
    texts, length = [], 0
    for _, text in lines:
        texts.append(text)
        length += len(text)
        if length > MOST_LINE:
            raise UnreadableError("file", "more than 64 MiB of JSON", "less", "Split it.")
    text = "\n".join(texts)
    ByteBudget("file", "JSON").add(text.encode("utf-8", "surrogatepass"))
    return text


def decode(text: str) -> tuple[Any, bool]:
    """Decode a document: (its content, whether it was cut off, up to its last whole object)."""
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
    """The last positions after a closed object, each with the text that closes all brackets."""
    ends: collections.deque[tuple[int, str]] = collections.deque(maxlen=_LAST)
    closing = ""  # what closes the open brackets, the innermost first
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
        elif char == '"':  # a string that does not end
            break
        if len(closing) > MOST_DEPTH:
            break
    return list(ends)
