"""Reads a pickle that holds nothing but lists, dicts, text and numbers; refuses any other.

A pickle is a program, and Python's own reader runs what it says. So this is Python's reader that is
written in Python, with the instructions that make plain values and no others.

Limits: the memory of all values, the length of a number, and the size of the whole as a tree (a
list can be an item of a list twice, so a few lines make 2**100 items). Keys are text, bytes or
numbers of at most 64 bits, which cannot be chosen so that all have one place in a dict.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import pickletools
from typing import Any

from torchcoll.core.bounds import MOST_DEPTH, ByteBudget
from torchcoll.core.errors import UnreadableError

_LONGEST_NUMBER = 400  # bytes
_INT64 = 1 << 63
_ITEM_BYTES, _PAIR_ITEM_BYTES = 16, 60  # memory of an item of a list, of a key or value
# The instructions that are carried out, by the memory in bytes of each, without its content.
_SAFE = {
    16: "MARK STOP PROTO FRAME NONE NEWTRUE NEWFALSE BININT1 EMPTY_TUPLE APPEND APPENDS SETITEM "
    "SETITEMS ADDITEMS BINGET LONG_BINGET",
    80: "BININT BININT2 BINFLOAT LONG1 LONG4 SHORT_BINUNICODE BINUNICODE BINUNICODE8 "
    "SHORT_BINBYTES BINBYTES BINBYTES8 BINPUT LONG_BINPUT MEMOIZE",
    136: "EMPTY_LIST TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT EMPTY_SET",
}
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
_COSTS = {
    code: cost for cost, names in _SAFE.items() for code in _NAMES if _NAMES[code] in names.split()
}
_UNCOUNTED = 1 << 20  # bytes that are not yet added to the budget
# Of a real dump of torch, where stack frames are shared, the tree has 4 items and 30 characters per
# byte of the file.
_ITEMS, _ITEMS_PER_BYTE = 1_000_000, 16
_TEXT_BYTES, _TEXT_PER_BYTE = 64 << 20, 200
_CONTAINERS = frozenset((list, tuple, dict, set))


def is_pickle(begin: bytes) -> bool:
    """Whether a file begins as a pickle of protocol 2 or later, which torch and its users write."""
    return begin.startswith(b"\x80")


def read_pickle(
    data: bytes, path: str | os.PathLike[str], problems: list[str] | None = None
) -> Any:
    """The value of a pickle; with ``problems`` also of one that was cut off. Raises UnreadableError
    for other than plain values, damage or size.
    """
    reader = _PlainReader(data, path)
    try:
        try:
            value = reader.load()
        except (IndexError, pickle.UnpicklingError) as error:
            # An UnpicklingError is for a length of 2**63 bytes or more.
            cut = reader.file.tell() >= len(data) or isinstance(error, pickle.UnpicklingError)
            if problems is None or not cut:
                text = "a pickle that was cut off" if cut else "a damaged pickle"
                raise reader.error(text, "a whole one") from None
            problems.append(f"{path}: cut off after {len(data)} bytes")
            value = reader.unfinished()
    except ValueError as error:
        text = f"{error} at byte {reader.file.tell()}"
        raise reader.error(f"a damaged pickle ({text})", "a whole one") from None
    _check_tree(value, reader, len(data))
    return value


class _Memo(dict[int, Any]):
    def __missing__(self, index: int) -> Any:
        raise ValueError(f"value {index} is used before it was made")


class _PlainReader(pickle._Unpickler):
    """``dispatch`` has the methods of the instructions in ``_SAFE``, those of this class first."""

    def __init__(self, data: bytes, path: str | os.PathLike[str]) -> None:
        self.file, self.path = io.BytesIO(data), path
        super().__init__(self.file)
        self.memo = _Memo()
        self.stack: list[Any] = []  # since the last mark
        self.metastack: list[list[Any]] = []  # below each mark
        self.append = self.stack.append
        self.budget, self.held = ByteBudget("pickle", path), 0

    def load(self) -> Any:
        """Raises IndexError at the end of the data, or for a value that is not on the stack."""
        next_byte, dispatch = self.file.read, dict[int, Any](self.dispatch)
        while (byte := next_byte(1)) != pickle.STOP:
            code = byte[0]
            if code not in dispatch:
                raise self.refused(code)
            self.held += _COSTS[code]
            if self.held > _UNCOUNTED:
                self.budget.add_bytes(self.held)
                self.held = 0
            dispatch[code](self)
        self.file.seek(-1, io.SEEK_CUR)  # it is not cut off here, if the stack is empty
        return self.stack.pop()

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
        with contextlib.suppress(IndexError):  # the name was cut off
            if name in ("GLOBAL", "INST"):
                needs = f"{self.text()}.{self.text()}"
            elif name == "STACK_GLOBAL":
                needs = ".".join(text for text in self.stack[-2:] if isinstance(text, str))
        expected = "lists, dicts, text and numbers alone: anything else can run code"
        return self.error(f"one that needs {needs or name}", expected)

    def unfinished(self) -> Any:
        """The outermost container, with all that was read of it; None if it had not begun."""
        while self.metastack:
            items, container = self.pop_mark(), self.stack[-1] if self.stack else None
            if isinstance(container, list):
                container += items
            elif isinstance(container, dict):
                self.set_pairs(container, items[: len(items) // 2 * 2])
        return self.stack[0] if self.stack else None

    def read(self, size: int) -> bytes:
        piece = self.file.read(size)
        if len(piece) < size:
            raise IndexError
        if size > 8:  # text or bytes: a character may take 4 bytes of memory
            self.held += 4 * size
        return piece

    def text(self) -> str:
        line = self.file.readline()
        if not line.endswith(b"\n"):
            raise IndexError
        return line[:-1].decode("utf-8", "replace")

    def pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.metastack.pop()
        self.append = self.stack.append
        self.held += _ITEM_BYTES * len(items)
        return items

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"{type(self.stack[-1]).__name__} in place of {kind.__name__}")
        return self.stack[-1]

    def set_pairs(self, target: dict[Any, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise ValueError("a key without a value")
        self.held += _PAIR_ITEM_BYTES * len(items)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    # Protocol and frames say nothing that is needed.

    def load_proto(self) -> None:
        self.read(1)

    def load_frame(self) -> None:
        self.read(8)

    def load_mark(self) -> None:
        if len(self.metastack) == MOST_DEPTH:  # each of them opens a container
            raise self.too_deep()
        self.metastack.append(self.stack)
        self.stack = []
        self.append = self.stack.append

    def load_long4(self) -> None:
        length = int.from_bytes(self.read(4), "little")
        if length > _LONGEST_NUMBER:
            raise ValueError(f"a number of {length} bytes")
        self.append(int.from_bytes(self.read(length), "little", signed=True))

    def load_append(self) -> None:
        value = self.stack.pop()
        self.top(list).append(value)

    def load_appends(self) -> None:
        items = self.pop_mark()
        self.top(list).extend(items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_pairs(self.top(dict), [key, value])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self.set_pairs(self.top(dict), items)

    def load_additems(self) -> None:
        items = self.pop_mark()
        self.held += 2 * _PAIR_ITEM_BYTES * len(items)
        self.top(set).update(map(_key, items))


def _key(value: Any) -> Any:
    """A value as the key of a dict. Raises ValueError if it cannot be one, see above."""
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise ValueError("a key of more than 64 bits")
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    raise ValueError(f"a key that is a {type(value).__name__}")


_PlainReader.dispatch = {
    code: getattr(_PlainReader, load.__name__)
    for code, load in pickle._Unpickler.dispatch.items()
    if code in _COSTS
}


def _check_tree(value: Any, reader: _PlainReader, size_bytes: int) -> None:
    """Raise UnreadableError if the value, seen as a tree, is too large or too deep to be read."""
    most_items = max(_ITEMS, _ITEMS_PER_BYTE * size_bytes)
    most_text = max(_TEXT_BYTES, _TEXT_PER_BYTE * size_bytes)
    measured: dict[int, tuple[int, int, int]] = {}
    open_: set[int] = set()  # those whose children are being measured

    def measure(container: Any) -> tuple[int, int, int]:
        """(items, characters, levels) of a container."""
        if id(container) in open_:
            raise reader.error("a container that contains itself", "a tree of values")
        if len(open_) == MOST_DEPTH:
            raise reader.too_deep()
        open_.add(id(container))
        items = text = levels = 0
        children = (container, container.values()) if type(container) is dict else (container,)
        for child in itertools.chain(*children):
            kind = type(child)
            items += 1
            if kind is str or kind is bytes:
                text += len(child)
            elif kind in _CONTAINERS:
                inner = measured.get(id(child)) or measure(child)
                items += inner[0]
                text += inner[1]
                levels = max(levels, inner[2])
        if items > most_items or text > most_text:
            raise reader.error(
                "values that are repeated too often",
                f"at most {most_items} of them, with {most_text >> 20} MiB of text",
            )
        if levels == MOST_DEPTH:
            raise reader.too_deep()
        open_.discard(id(container))
        measured[id(container)] = items, text, levels + 1
        return measured[id(container)]

    if type(value) in _CONTAINERS:
        measure(value)
