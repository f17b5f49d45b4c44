"""Reads and writes Chakra execution traces: the calls of one rank as a graph, for simulators.

A file is a sequence of protobuf messages, each preceded by its length as a varint: GlobalMetadata
first, then one Node each. The schema is MLCommons' ``schema/protobuf/et_def.proto``
(mlcommons/chakra). There is no wheel of it on the package index, and only varints, texts and
messages of protobuf are needed, so this module implements them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.errors import UnreadableError
from torchcoll.core.opening import read_regular

VERSION = "0.0.4"  # version of the files that come with ASTRA-sim
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

# Printed before the output of each simulation, because ASTRA-sim's output does not name the case
# (importers/astra_sim.py reads it).
CASE_LINE = "torchcoll case: collective={} size_bytes={} ranks={}"
STEP_LINE = "torchcoll step"
# The collectives that ASTRA-sim models. It replays a broadcast as recorded, and prints
# 'Unsupported' for all others.
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
    """One node.

    kind: COMP, COLLECTIVE, SEND or RECV.
    after: ids of the nodes that must have ended before this one starts.
    """

    id: int
    name: str
    kind: int
    after: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)


def encode_nodes(nodes: Iterable[ChakraNode]) -> bytes:
    """The content of a file with these nodes."""
    messages = [_text(1, VERSION), *map(_encode_node, nodes)]
    return b"".join(_varint(len(message)) + message for message in messages)


def _encode_node(node: ChakraNode) -> bytes:
    fields = [_number(_ID, node.id), _text(_NAME, node.name), _number(_TYPE, node.kind)]
    fields += [_number(_DATA, dependency) for dependency in node.after]
    fields += [_number(_START, node.start_us), _number(_DURATION, node.duration_us)]
    for name, value in node.attributes.items():
        if isinstance(value, bool):
            content = _tag(_BOOL, _VARINT) + _varint(int(value))  # false is written too
        elif isinstance(value, str):
            content = _text(_STRING, value)
        else:
            content = _tag(_INT64, _VARINT) + _varint(value)
        fields.append(_message(_ATTRIBUTE, _text(1, name) + content))
    return b"".join(fields)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(number: int, value: int) -> bytes:
    """A varint field. proto3 omits a 0, except in a list, where it is an entry."""
    return _tag(number, _VARINT) + _varint(value) if value or number == _DATA else b""


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _message(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content


def read_nodes(path: Path) -> list[ChakraNode]:
    """Read the nodes of a file.

    Raises UnreadableError for a file that is not a Chakra trace, or that is cut off.
    """
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
        return [_decode_node(message) for message in messages[1:]]
    except (ValueError, UnicodeDecodeError) as error:
        expected = f"Chakra nodes, each after its length ({error})"
        raise UnreadableError(_WHAT, path, expected) from None


def _messages(data: bytes) -> Iterator[bytes]:
    offset = 0
    while offset < len(data):
        length, offset = _read_varint(data, offset)
        if length > _MOST_MESSAGE or offset + length > len(data):
            raise ValueError(f"cut off at byte {offset}")
        yield data[offset : offset + length]
        offset += length


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if offset >= len(data) or shift > 63:
            raise ValueError(f"no number at byte {offset}")
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes, bool]]:
    """Yield (number, value, whether it is a varint) for each field of a message."""
    offset = 0
    while offset < len(data):
        tag, offset = _read_varint(data, offset)
        kind = tag & 7
        if kind == _VARINT:
            value, offset = _read_varint(data, offset)
            yield tag >> 3, value, True
            continue
        if kind == _BYTES:
            length, offset = _read_varint(data, offset)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if offset + length > len(data):
            raise ValueError("a field that ends midway")
        yield tag >> 3, data[offset : offset + length], False
        offset += length


def _decode_node(data: bytes) -> ChakraNode:
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
                after += _decode_packed(value)
            elif number == _ATTRIBUTE:
                key, attribute_value = _decode_attribute(value)
                if attribute_value is not None:
                    attributes[key] = attribute_value
    return ChakraNode(
        numbers[_ID],
        name,
        numbers[_TYPE],
        tuple(after),
        numbers[_START],
        numbers[_DURATION],
        attributes,
    )


def _decode_packed(data: bytes) -> list[int]:
    values, offset = [], 0
    while offset < len(data):
        value, offset = _read_varint(data, offset)
        values.append(value)
    return values


def _decode_attribute(data: bytes) -> tuple[str, Value | None]:
    """(name, value) of an attribute; the value is None where no call has an attribute of its
    type.
    """
    name = ""
    content: Value | None = None
    for number, value, _ in _fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number in _WHOLE and isinstance(value, int):
            content = value - (1 << 64) if value >> 63 else value
        elif number == _BOOL:
            content = bool(value)
        elif number == _STRING and isinstance(value, bytes):
            content = value.decode()
    return name, content
