"""Chakra execution traces: the calls of one rank as a graph, which simulators read.

A file is a row of protobuf messages, each after its length as a varint: first GlobalMetadata, then
a Node each. The schema is MLCommons' ``schema/protobuf/et_def.proto`` (mlcommons/chakra). No wheel
of it is on the package index, and of protobuf only varints, texts and messages are needed: so they
are read and written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.errors import UnreadableError
from torchcoll.core.opening import read_regular

VERSION = "0.0.4"  # of the files that ASTRA-sim brings
SUFFIX = ".et"

# NodeType and CollectiveCommType of the schema.
COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
KINDS = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}

# Before the output of each simulation, which does not say what it is of (importers/astra_sim.py).
CASE_LINE = "torchcoll case: collective={} size_bytes={} ranks={}"
STEP_LINE = "torchcoll step"
# What ASTRA-sim has a model of; a broadcast it only replays, of others it says 'Unsupported'.
SIMULATED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Fields of Node, and of AttributeProto those whose values are used here.
_ID, _NAME, _TYPE, _CONTROL, _DATA, _START, _DURATION, _ATTRIBUTE = 1, 2, 3, 4, 5, 6, 7, 10
_INT32, _INT64, _UINT32, _UINT64, _BOOL, _STRING = 7, 9, 11, 13, 27, 29
_WHOLE = (_INT32, _INT64, _UINT32, _UINT64)
_MOST_MESSAGE = 1 << 24
_WHAT = "execution trace"

Value = int | bool | str


@dataclass(frozen=True)
class ChakraNode:
    """One node. kind: COMP, COLLECTIVE, ...; after: the nodes that must have ended before it."""

    id: int
    name: str
    kind: int
    after: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)


def encoded(nodes: Iterable[ChakraNode]) -> bytes:
    """The file of these nodes."""
    messages = [_text(1, VERSION), *map(_node, nodes)]
    return b"".join(_varint(len(message)) + message for message in messages)


def _node(node: ChakraNode) -> bytes:
    parts = [_number(_ID, node.id), _text(_NAME, node.name), _number(_TYPE, node.kind)]
    parts += [_number(_DATA, other) for other in node.after]
    parts += [_number(_START, node.start_us), _number(_DURATION, node.duration_us)]
    for name, value in node.attributes.items():
        if isinstance(value, bool):
            content = _tag(_BOOL, _VARINT) + _varint(int(value))  # false is written too
        elif isinstance(value, str):
            content = _text(_STRING, value)
        else:
            content = _tag(_INT64, _VARINT) + _varint(value)
        parts.append(_message(_ATTRIBUTE, _text(1, name) + content))
    return b"".join(parts)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(number: int, value: int) -> bytes:
    """proto3 leaves a 0 out, but of an entry of a list, where it is a value."""
    return _tag(number, _VARINT) + _varint(value) if value or number == _DATA else b""


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _message(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content


def read_nodes(path: Path) -> list[ChakraNode]:
    """Raises UnreadableError for a file that is none, or that ends midway."""
    try:
        data = read_regular(path)
    except OSError as error:
        expected = f"a file that can be read ({error.strerror})"
        raise UnreadableError(_WHAT, path, expected) from None
    try:
        messages = list(_messages(data))
        if not messages:
            raise ValueError("it is empty")
        for number, _, _ in _fields(messages[0]):
            if number > 2:
                raise ValueError("its first message is no GlobalMetadata")
        return [_node_of(message) for message in messages[1:]]
    except (ValueError, UnicodeDecodeError) as error:
        expected = f"Chakra nodes, each after its length ({error})"
        raise UnreadableError(_WHAT, path, expected) from None


def _messages(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        length, place = _read_varint(data, place)
        if length > _MOST_MESSAGE or place + length > len(data):
            raise ValueError(f"cut off at byte {place}")
        yield data[place : place + length]
        place += length


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data) or shift > 63:
            raise ValueError(f"no number at byte {place}")
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes, bool]]:
    """(number, value, whether it is a varint) of each field."""
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        kind = tag & 7
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield tag >> 3, value, True
            continue
        if kind == _BYTES:
            length, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place + length > len(data):
            raise ValueError("a field that ends midway")
        yield tag >> 3, data[place : place + length], False
        place += length


def _node_of(data: bytes) -> ChakraNode:
    numbers = dict.fromkeys((_ID, _TYPE, _START, _DURATION), 0)
    name, after = "", []
    attributes: dict[str, Value] = {}
    for number, value, varint in _fields(data):
        if varint and isinstance(value, int):
            if number in numbers:
                numbers[number] = value
            elif number in (_DATA, _CONTROL):
                after.append(value)
        elif isinstance(value, bytes):
            if number == _NAME:
                name = value.decode()
            elif number in (_DATA, _CONTROL):  # packed, as protobuf's own libraries write them
                after += _packed(value)
            elif number == _ATTRIBUTE:
                key, found = _attribute(value)
                if found is not None:
                    attributes[key] = found
    return ChakraNode(
        numbers[_ID],
        name,
        numbers[_TYPE],
        tuple(after),
        numbers[_START],
        numbers[_DURATION],
        attributes,
    )


def _packed(data: bytes) -> list[int]:
    found, place = [], 0
    while place < len(data):
        value, place = _read_varint(data, place)
        found.append(value)
    return found


def _attribute(data: bytes) -> tuple[str, Value | None]:
    """Its name and value; None of a kind that no call has."""
    name = ""
    found: Value | None = None
    for number, value, _ in _fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number in _WHOLE and isinstance(value, int):
            found = value - (1 << 64) if value >> 63 else value
        elif number == _BOOL:
            found = bool(value)
        elif number == _STRING and isinstance(value, bytes):
            found = value.decode()
    return name, found
