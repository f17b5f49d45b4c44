"""Takes the text of programs out of JSON: logs of containers, notebooks, test runners.

Docker and log shippers write one object per line; the text is in one of its members. Other
documents have whole texts, or lists of lines, anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from torchcoll.core.bounds import MOST_DEPTH
from torchcoll.core.errors import UnreadableError

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
