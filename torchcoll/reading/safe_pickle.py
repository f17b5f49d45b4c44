"""Reads a pickle that holds nothing but lists, dicts, text and numbers; refuses any other.

A pickle is a program, and Python's own reader runs what it says: it imports modules and calls
functions. Its documented restriction, an ``Unpickler`` whose ``find_class`` raises, still fetches
objects from the registry of extensions, asks for persistent ids, and takes as much memory as the
file claims: ``LONG_BINPUT`` with the index 2**31 makes it allocate 16 GB. The file would have to be
scanned before, and what the scan and the reader understand differently would be a hole. So this is
a reader of its own, of the instructions that make plain values. There is no code in it that imports
or calls anything, and every other instruction is refused by name.

Limits, for a file of some size on disk (``core/bounds.py``): the memory of all values, the length
of a number, and the size of the whole as a tree. A list can be an item of a list twice, so a few
lines make a tree of 2**100 items, in which no reader would reach the end. Keys are text, bytes or
numbers of at most 64 bits: those of more can be chosen so that all have one place in a dict, and
tuples so deep that hashing them ends the process.
"""

from __future__ import annotations

import codecs
import os
import pickletools
import struct
from collections.abc import Callable
from typing import Any

from torchcoll.core.bounds import MOST_DEPTH, ByteBudget
from torchcoll.core.errors import UnreadableError

_LONGEST_NUMBER = 400  # characters, or bytes of a binary one
_INT64 = 1 << 63
_MOST_VALUES = 1 << 32  # that can be used again: what LONG_BINPUT can count
_ITEM_BYTES = 16  # memory of a place on the stack, in a list or in the memo
_VALUE_BYTES = 64  # of a value besides its content
_CONTAINER_BYTES = 120
# Of a real dump of torch, where stack frames are shared, the tree has 4 items and 30 characters per
# byte of the file.
_ITEMS, _ITEMS_PER_BYTE = 1_000_000, 16
_TEXT_BYTES, _TEXT_PER_BYTE = 64 << 20, 200
# How a pickle of a dict begins, of protocols 2 and later, 0 and 1.
_BEGINS = (b"\x80", b"(dp", b"}q")


def is_pickle(begin: bytes) -> bool:
    """Whether a file with this beginning can be the pickle of a dict."""
    return begin.startswith(_BEGINS)


def read_pickle(
    data: bytes, path: str | os.PathLike[str], problems: list[str] | None = None
) -> Any:
    """The value of a pickle.

    problems: with a list, a pickle that was cut off gives what it has, and the list gets a line.
    Raises UnreadableError for a pickle that needs anything else than plain values, and names what
    it needs; for one that is damaged or cut off; and for one that is too large.
    """
    reader = _Reader(data, path)
    try:
        try:
            value = _run(reader)
        except IndexError:
            cut = reader.position >= len(data)
            if problems is None or not cut:
                text = "a pickle that was cut off" if cut else "a damaged pickle"
                raise reader.error(text, "a whole one") from None
            problems.append(f"{path}: cut off after {len(data)} bytes")
            value = reader.unfinished()
    except ValueError as error:
        text = f"{error} at byte {reader.position}"
        raise reader.error(f"a damaged pickle ({text})", "a whole one") from None
    _check_tree(value, reader)
    return value


def _run(reader: _Reader) -> Any:
    """Raises IndexError at the end of the data, or for a value that is not on the stack.

    The instructions that make up nine tenths of a dump of torch are carried out here: a call for
    each takes three times as long. They put values on the stack or remember one, and what they
    cost is added to the budget every so often.
    """
    data, stack, marks, memo = reader.data, reader.stack, reader.marks, reader.memo
    position = held = 0
    try:
        while (code := data[position]) != _STOP:
            position += 1
            if code == _BINGET and data[position] in memo:
                stack.append(memo[data[position]])
                position += 1
                held += _ITEM_BYTES
            elif code == _LONG_BINGET and (index := _four(data, position)) in memo:
                stack.append(memo[index])
                position += 4
                held += _ITEM_BYTES
            elif code == _BININT1:
                stack.append(data[position])
                position += 1
                held += _ITEM_BYTES
            elif code == _MARK:
                if len(marks) == MOST_DEPTH:  # each of them opens a container
                    raise reader.too_deep()
                marks.append(len(stack))
                held += _ITEM_BYTES
            elif code == _LONG_BINPUT and len(stack) > (marks[-1] if marks else 0):
                memo[_four(data, position)] = stack[-1]
                position += 4
                held += _VALUE_BYTES
            else:
                instruction = _INSTRUCTIONS.get(code)
                reader.position = position
                if instruction is None:
                    raise reader.refused(code)
                instruction(reader)
                position = reader.position
            if held > _UNCOUNTED:
                reader.budget.add_bytes(held)
                held = 0
    finally:
        reader.position = max(position, reader.position)
    return reader.pop()


def _four(data: bytes, position: int) -> int:
    """The number of four bytes. Raises IndexError at the end of the data."""
    first, second, third, fourth = (
        data[position],
        data[position + 1],
        data[position + 2],
        data[position + 3],
    )
    return first | second << 8 | third << 16 | fourth << 24


_STOP, _MARK, _BININT1 = b".(K"
_BINGET, _LONG_BINGET, _LONG_BINPUT = b"hjr"
_UNCOUNTED = 1 << 20  # bytes that are not yet added to the budget
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}


class _Reader:
    """The state of reading.

    stack: values that are in no container yet; marks: lengths that it had at each ``MARK``.
    memo: values that can be used again, by number.
    """

    def __init__(self, data: bytes, path: str | os.PathLike[str]) -> None:
        self.data, self.path, self.position = data, path, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.budget = ByteBudget("pickle", path)

    def error(self, value: str, expected: str) -> UnreadableError:
        return UnreadableError(f"pickle {self.path}", value, expected)

    def too_deep(self) -> UnreadableError:
        return self.error(f"more than {MOST_DEPTH} levels of lists", "fewer")

    def refused(self, code: int) -> UnreadableError:
        """The error for an instruction that makes something else than a plain value."""
        name = _NAMES.get(code)
        if name is None:
            return self.error(f"a damaged pickle (byte {code} is no instruction)", "a whole one")
        needs = name
        try:
            if name in ("GLOBAL", "INST"):
                needs = f"{self.text()}.{self.text()}"
            elif name == "STACK_GLOBAL":
                needs = ".".join(text for text in self.stack[-2:] if isinstance(text, str))
            elif name == "PERSID":
                needs = f"the persistent id {self.text()}"
            elif name.startswith("EXT"):
                size = int(name[3:])
                needs = f"extension {int.from_bytes(self.take(size), 'little')}"
        except IndexError:  # the name was cut off
            pass
        return self.error(
            f"one that needs {needs or name}",
            "lists, dicts, text and numbers alone: nothing else is made from a pickle, since that "
            "can run code",
        )

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            self.position = len(self.data)
            raise IndexError
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        text = self.take(end - self.position if end >= 0 else len(self.data))
        self.position += 1
        return text

    def text(self) -> str:
        return self.line().decode("utf-8", "replace")

    def length(self, size: int) -> int:
        """An unsigned number of ``size`` bytes."""
        return int.from_bytes(self.take(size), "little")

    def push(self, value: Any, size_bytes: int = _VALUE_BYTES) -> None:
        self.budget.add_bytes(size_bytes + _ITEM_BYTES)
        self.stack.append(value)

    def pop_items(self) -> list[Any]:
        """The values since the last mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        self.budget.add_bytes(_ITEM_BYTES * len(items))
        return items

    def unfinished(self) -> Any:
        """The outermost container, with all that was read of it; None if it had not begun."""
        while self.marks:
            items, container = self.pop_items(), self.stack[-1] if self.stack else None
            if isinstance(container, list):
                container += items
            elif isinstance(container, dict):
                _set_pairs(container, items[: len(items) // 2 * 2])
        return self.stack[0] if self.stack else None

    def top(self, kind: type) -> Any:
        """The value on top of the stack, above the last mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise IndexError
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"{type(self.stack[-1]).__name__} in place of {kind.__name__}")
        return self.stack[-1]

    def pop(self) -> Any:
        """Take the value on top of the stack, above the last mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise IndexError
        return self.stack.pop()


def _key(value: Any) -> Any:
    """A value as the key of a dict. Raises ValueError if it cannot be one, see above."""
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise ValueError("a key of more than 64 bits")
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    raise ValueError(f"a key that is a {type(value).__name__}")


def _constant(value: Any) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(value, 0)


def _unpacked(layout: str) -> Callable[[_Reader], None]:
    number = struct.Struct(layout)

    def push(reader: _Reader) -> None:
        reader.push(number.unpack(reader.take(number.size))[0])

    return push


def _text_number(kind: type[int] | type[float]) -> Callable[[_Reader], None]:
    """A number in a line of text; ``I00`` and ``I01`` are truth values."""

    def push(reader: _Reader) -> None:
        text = reader.text()
        if len(text) > _LONGEST_NUMBER:
            raise ValueError(f"a number of {len(text)} characters")
        truth = {"00": False, "01": True}.get(text) if kind is int else None
        reader.push(kind(text.removesuffix("L")) if truth is None else truth)

    return push


def _long(size: int) -> Callable[[_Reader], None]:
    """A signed number whose length is a number of ``size`` bytes."""

    def push(reader: _Reader) -> None:
        length = reader.length(size)
        if length > _LONGEST_NUMBER:
            raise ValueError(f"a number of {length} bytes")
        reader.push(int.from_bytes(reader.take(length), "little", signed=True))

    return push


def _content(size: int, decode: Callable[[bytes], Any]) -> Callable[[_Reader], None]:
    """Text or bytes whose length is a number of ``size`` bytes."""

    def push(reader: _Reader) -> None:
        content = reader.take(reader.length(size))
        # A character may take 4 bytes of memory.
        reader.push(decode(content), _VALUE_BYTES + 4 * len(content))

    return push


def _utf8(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def _unicode(reader: _Reader) -> None:
    content = reader.line()
    text = codecs.decode(content, "raw-unicode-escape")
    reader.push(text, _VALUE_BYTES + 4 * len(content))


def _empty(make: type) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(make(), _CONTAINER_BYTES)


def _make_list(reader: _Reader) -> None:
    reader.push(reader.pop_items(), _CONTAINER_BYTES)


def _make_tuple(reader: _Reader) -> None:
    reader.push(tuple(reader.pop_items()), _CONTAINER_BYTES)


def _short_tuple(length: int) -> Callable[[_Reader], None]:
    def push(reader: _Reader) -> None:
        items = [reader.pop() for _ in range(length)]
        reader.push(tuple(reversed(items)), _CONTAINER_BYTES)

    return push


def _set_pairs(target: dict[Any, Any], items: list[Any]) -> None:
    if len(items) % 2:
        raise ValueError("a key without a value")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_key(key)] = value


def _make_dict(reader: _Reader) -> None:
    value: dict[Any, Any] = {}
    _set_pairs(value, reader.pop_items())
    reader.push(value, _CONTAINER_BYTES)


def _append(reader: _Reader) -> None:
    value = reader.pop()
    reader.budget.add_bytes(_ITEM_BYTES)
    reader.top(list).append(value)


def _extend(reader: _Reader) -> None:
    items = reader.pop_items()
    reader.top(list).extend(items)


def _set_item(reader: _Reader) -> None:
    value, key = reader.pop(), reader.pop()
    reader.budget.add_bytes(_CONTAINER_BYTES)
    reader.top(dict)[_key(key)] = value


def _set_items(reader: _Reader) -> None:
    items = reader.pop_items()
    reader.budget.add_bytes(_CONTAINER_BYTES // 2 * len(items))
    _set_pairs(reader.top(dict), items)


def _add_members(reader: _Reader) -> None:
    items = reader.pop_items()
    reader.budget.add_bytes(_CONTAINER_BYTES * len(items))
    reader.top(set).update(map(_key, items))


def _drop(reader: _Reader) -> None:
    """Python's own reader takes POP on a mark for POP_MARK."""
    if reader.marks and reader.marks[-1] == len(reader.stack):
        reader.marks.pop()
    else:
        reader.stack.pop()


def _drop_to_mark(reader: _Reader) -> None:
    reader.pop_items()


def _duplicate(reader: _Reader) -> None:
    value = reader.pop()
    reader.stack.append(value)
    reader.push(value, 0)


def _text_index(reader: _Reader) -> int:
    text = reader.text()
    index = int(text) if len(text) <= _LONGEST_NUMBER else -1
    if not 0 <= index < _MOST_VALUES:
        raise ValueError("an index that is none")
    return index


def _remember(index: Callable[[_Reader], int]) -> Callable[[_Reader], None]:
    def put(reader: _Reader) -> None:
        value = reader.pop()
        reader.stack.append(value)
        reader.budget.add_bytes(_VALUE_BYTES)
        reader.memo[index(reader)] = value

    return put


def _recall(index: Callable[[_Reader], int]) -> Callable[[_Reader], None]:
    def get(reader: _Reader) -> None:
        number = index(reader)
        if number not in reader.memo:
            raise ValueError(f"value {number} is used before it was made")
        reader.push(reader.memo[number], 0)

    return get


def _index(size: int) -> Callable[[_Reader], int]:
    return lambda reader: reader.length(size)


def _skip(size: int) -> Callable[[_Reader], None]:
    """Protocol and frames say nothing that is needed."""

    def skip(reader: _Reader) -> None:
        reader.take(size)

    return skip


_BY_NAME: dict[str, Callable[[_Reader], None]] = {
    "PROTO": _skip(1),
    "FRAME": _skip(8),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "INT": _text_number(int),
    "LONG": _text_number(int),
    "FLOAT": _text_number(float),
    "BININT": _unpacked("<i"),
    "BININT1": _unpacked("<B"),
    "BININT2": _unpacked("<H"),
    "BINFLOAT": _unpacked(">d"),
    "LONG1": _long(1),
    "LONG4": _long(4),
    "UNICODE": _unicode,
    "SHORT_BINUNICODE": _content(1, _utf8),
    "BINUNICODE": _content(4, _utf8),
    "BINUNICODE8": _content(8, _utf8),
    "SHORT_BINBYTES": _content(1, bytes),
    "BINBYTES": _content(4, bytes),
    "BINBYTES8": _content(8, bytes),
    "POP": _drop,
    "POP_MARK": _drop_to_mark,
    "DUP": _duplicate,
    "EMPTY_LIST": _empty(list),
    "LIST": _make_list,
    "APPEND": _append,
    "APPENDS": _extend,
    "EMPTY_TUPLE": _constant(()),
    "TUPLE": _make_tuple,
    "TUPLE1": _short_tuple(1),
    "TUPLE2": _short_tuple(2),
    "TUPLE3": _short_tuple(3),
    "EMPTY_DICT": _empty(dict),
    "DICT": _make_dict,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "EMPTY_SET": _empty(set),
    "ADDITEMS": _add_members,
    "PUT": _remember(_text_index),
    "BINPUT": _remember(_index(1)),
    "LONG_BINPUT": _remember(_index(4)),
    "MEMOIZE": _remember(lambda reader: len(reader.memo)),
    "GET": _recall(_text_index),
    "BINGET": _recall(_index(1)),
    "LONG_BINGET": _recall(_index(4)),
}
_INSTRUCTIONS = {ord(code.code): _BY_NAME[code.name] for code in pickletools.opcodes
                 if code.name in _BY_NAME}  # fmt: skip


def _check_tree(value: Any, reader: _Reader) -> None:
    """Raise UnreadableError if the value, seen as a tree, is too large or too deep to be read.

    Each container is measured once, after its children, so that what is shared costs nothing here.
    """
    size_bytes = len(reader.data)
    most_items = max(_ITEMS, _ITEMS_PER_BYTE * size_bytes)
    most_text = max(_TEXT_BYTES, _TEXT_PER_BYTE * size_bytes)
    measured: dict[int, tuple[int, int, int]] = {}  # items, characters, levels
    open_: set[int] = set()  # those whose children are being measured
    pending = [value] if type(value) in _CONTAINERS else []
    while pending:
        current = pending[-1]
        if id(current) in measured:  # an item twice in one list
            pending.pop()
            continue
        items = text = levels = 0
        unmeasured = []
        # Keys are no containers.
        for key in current if type(current) is dict else ():
            items += 1
            text += len(key) if type(key) is str else 0
        for child in current.values() if type(current) is dict else current:
            kind = type(child)
            items += 1
            if kind is str or kind is bytes:
                text += len(child)
            elif kind in _CONTAINERS:
                if (inner := measured.get(id(child))) is None:
                    unmeasured.append(child)
                else:
                    items += inner[0]
                    text += inner[1]
                    levels = max(levels, inner[2])
        if unmeasured:
            open_.add(id(current))
            if not open_.isdisjoint(map(id, unmeasured)):
                raise reader.error("a container that contains itself", "a tree of values")
            pending += unmeasured
            continue
        if items > most_items or text > most_text:
            raise reader.error(
                "values that are repeated too often",
                f"at most {most_items} of them, with {most_text >> 20} MiB of text",
            )
        if levels >= MOST_DEPTH:
            raise reader.too_deep()
        measured[id(current)] = items, text, levels + 1
        open_.discard(id(current))
        pending.pop()


_CONTAINERS = frozenset((list, tuple, dict, set))
