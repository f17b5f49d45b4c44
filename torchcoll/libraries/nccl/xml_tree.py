"""Reads the topology files of NCCL and RCCL as a tree of plain nodes.

The root of NCCL_TOPO_DUMP_FILE is ``<system>`` (src/graph/xml.cc). Each communicator overwrites the
file, and people send parts of it. So a file that ends early is read up to the cut, and the elements
that the cut left open are marked. NCCL writes no DTD and no entities, so files with them are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchcoll.core.bounds import MOST_DEPTH, MOST_TEXT
from torchcoll.core.errors import UnreadableError
from torchcoll.core.jsonl import lines_of
from torchcoll.core.stdin import from_stdin

_ACTION = (
    "Give a file that NCCL wrote (NCCL_TOPO_DUMP_FILE=topo.xml); torchcoll show reads results."
)
_WHAT = "XML"
_MOST_NODES = 100_000
# expat's error codes for a text that ends early: no element, an open token, half a character, an
# open CDATA section.
_CUT = (3, 5, 6, 20)
_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|!--|!DOCTYPE|system|graphs)")


@dataclass(eq=False)
class Node:
    """One element. whole: its end was read."""

    tag: str
    attributes: dict[str, str]
    parent: Node | None = field(default=None, repr=False)
    children: list[Node] = field(default_factory=list, repr=False)
    whole: bool = False

    def text(self, name: str) -> str:
        return self.attributes.get(name, "").strip()

    def whole_number(self, name: str) -> int | None:
        """A decimal or ``0x`` number; None for any other text."""
        text = self.text(name)
        try:
            value = int(text, 16 if text.lower().startswith("0x") else 10)
        except ValueError:
            return None
        return value if abs(value) < 1 << 64 else None  # identifiers have 64 bits

    def yes(self, name: str) -> bool | None:
        value = self.whole_number(name)
        return None if value is None else value != 0

    def each(self, *tags: str) -> Iterator[Node]:
        return (child for child in self.children if child.tag in tags)

    def walk(self) -> Iterator[Node]:
        """All nodes below this one, in the order of the file. Not recursive: a tree can be deep."""
        waiting = self.children[::-1]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children[::-1]

    def above(self) -> Iterator[Node]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent


class _Builder:
    """Builds the nodes from expat's callbacks. ``root`` is set by the first element."""

    def __init__(self, path: str) -> None:
        self.root: Node | None = None
        self._open: Node | None = None
        self._path = path
        self._depth = self._count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > MOST_DEPTH or self._count > _MOST_NODES:
            expected = f"at most {_MOST_NODES} elements"
            if self._depth > MOST_DEPTH:
                expected = f"at most {MOST_DEPTH} elements in each other"
            raise UnreadableError(f"XML {self._path}", "more", expected)
        node = Node(tag, attributes, self._open)
        if self._open is not None:
            self._open.children.append(node)
        self.root = self.root or node
        self._open = node

    def end(self, tag: str) -> None:
        self._depth -= 1
        if self._open is not None:
            self._open.whole = True
            self._open = self._open.parent

    def close(self) -> None:
        return None


def is_dump(path: str) -> bool:
    """Whether a file (also .gz) begins as these XML files do. A log may begin with another ``<``.

    Raises UnreadableError for a file that cannot be read.
    """
    lines = (line for line in lines_of(Path(path), [], "log", MOST_TEXT) if line.strip())
    return bool(_BEGINS.match(next(lines, b"")))


def read_tree(path: str) -> tuple[Node, list[str]]:
    """Read a file: (its root, what was wrong with it, for example where it ends early).

    Raises UnreadableError for a file that cannot be read, is not well formed, has a DTD, or has
    another root.
    """
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser, ParseError

    problems: list[str] = []
    path = str(from_stdin(path))
    builder = _Builder(path)
    parser = DefusedXMLParser(target=builder, forbid_dtd=True)
    try:
        for line in lines_of(Path(path), problems, _WHAT):
            parser.feed(line)
        parser.close()
    except DefusedXmlException:
        raise UnreadableError(_WHAT, path, "a file without DTD and entities") from None
    except ParseError as error:
        if error.code not in _CUT or builder.root is None:
            raise UnreadableError(_WHAT, path, f"well-formed XML ({error})", _ACTION) from None
        if not problems:
            problems.append(f"{path}: cut off ({error}): the part before that is read")
    except (LookupError, ValueError) as error:  # an encoding that Python does not have
        raise UnreadableError(_WHAT, path, f"well-formed XML ({error})", _ACTION) from None
    root = builder.root
    if root is None or root.tag != "system":
        actual = f"<{root.tag}> in {path}" if root else path
        raise UnreadableError(_WHAT, actual, "<system> (NCCL_TOPO_DUMP_FILE)")
    return root, problems
