"""The archive of the acceptance kit: what was proven, and the files that show it, without secrets.

A gzipped tar with one folder. Its first member is ``acceptance.json``, which holds the results; the
others are the table as text and the files of the parts. Secrets in all texts are masked
(core/variables.py). Names of hosts and users stay.

Reading takes ``acceptance.json`` alone and unpacks nothing; but every member is looked at, so that
an archive with a member that would be written elsewhere is refused.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from torchcoll import __version__
from torchcoll.acceptance.kit import MachineUnderTest
from torchcoll.acceptance.part_result import PartResult
from torchcoll.acceptance.running import Report
from torchcoll.core.checksums import LineWriter
from torchcoll.core.errors import UnreadableError, printable
from torchcoll.core.jsonl import parse_line
from torchcoll.core.opening import replace_file
from torchcoll.core.variables import masked, masked_texts

SCHEMA = "torchcoll-acceptance/1"
_WHAT = "acceptance archive"
_INDEX = "acceptance.json"
_MOST_BYTES = 8 << 20  # of a file; a longer one is cut in the middle
_SKIPPED = re.compile(r"^trace-rank\d+\.json$")  # the profiler's: megabytes, and read already
_MOST_UNPACKED = 1 << 30
_MOST_MEMBERS = 20_000
_MOST_INDEX = 8 << 20


def clean_records(lines: bytes) -> bytes:
    """A file of torchcoll's own records with masked texts, and checksums that fit them."""
    writer, cleaned = LineWriter(), []
    for line in lines.splitlines():
        record = parse_line(line)
        record.pop("line", None)
        record.pop("crc", None)
        cleaned.append(writer.line(masked_texts(record)))
    return b"".join(cleaned)


def clean_file(path: Path) -> bytes:
    """The content of a file as it may leave this machine.

    A text is masked as a whole, because a key in PEM form has many lines.
    """
    content = path.read_bytes()
    if path.suffix == ".jsonl":
        with contextlib.suppress(ValueError, KeyError, AttributeError, RecursionError):
            return clean_records(content)
    if len(content) > _MOST_BYTES:
        half = _MOST_BYTES // 2
        content = content[:half] + b"\n... (cut here)\n" + content[-half:]
    return masked(content.decode("utf-8", "replace")).encode()


def write_archive(path: Path, report: Report, folder: Path, table: str) -> None:
    """Write the archive, in place of one that is there; it is complete at any time.

    folder: of the kit, with a folder for each part. table: the results as text.
    """
    index = {
        "schema": SCHEMA,
        "torchcoll": __version__,
        "status": report.status,
        "start_utc": report.start_utc,
        "wall_s": report.wall_s,
        "machine": masked_texts(asdict(report.machine)),
        "parts": [masked_texts(part.to_json()) for part in report.parts],
    }
    top = path.name.removesuffix(".tar.gz")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        _add(tar, f"{top}/{_INDEX}", json.dumps(index, indent=1).encode())
        _add(tar, f"{top}/table.txt", masked(table).encode())
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.is_symlink() and not _SKIPPED.match(file.name):
                name = masked(str(file.relative_to(folder)))
                _add(tar, f"{top}/{name}", clean_file(file))
    replace_file(path, packed.getvalue())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """No owner, group or time of the file: they are this machine's."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    tar.addfile(member, io.BytesIO(content))


@dataclass(frozen=True)
class Accepted:
    """An archive that was read. files: its other members."""

    path: str
    torchcoll: str
    report: Report
    files: tuple[str, ...] = field(default=())


def read_archive(path: str | os.PathLike[str]) -> Accepted:
    """Read an archive. Raises UnreadableError for what is none, or is damaged, hostile, or of
    another version.
    """
    files, index = list[str](), None
    try:
        for name, content in _members(path):
            if content is None:
                files.append(name)
            else:
                index = content
    except FileNotFoundError:
        raise UnreadableError(_WHAT, path, "a file that exists") from None
    except IsADirectoryError:
        raise UnreadableError(_WHAT, path, "a file, not a folder") from None
    except (EOFError, zlib.error, tarfile.TarError, OSError) as error:
        cut = isinstance(error, EOFError | zlib.error) or "unexpected end" in str(error)
        if cut:
            action = "It is cut off or damaged: copy it again."
            raise UnreadableError(_WHAT, path, "a whole one", action) from None
        if isinstance(error, OSError) and error.errno:
            expected = f"a readable file ({error.strerror})"
            raise UnreadableError(_WHAT, path, expected) from None
        action = "launch/acceptance.sh writes torchcoll-acceptance-....tar.gz."
        raise UnreadableError(_WHAT, path, "a gzipped tar", action) from None
    if index is None:
        action = "It is no archive of launch/acceptance.sh."
        raise UnreadableError(_WHAT, path, f"a member {_INDEX}", action)
    return _read_index(path, index, files)


def _read_index(path: str | os.PathLike[str], content: bytes, files: list[str]) -> Accepted:
    try:
        data = parse_line(content)
        schema = data["schema"]
        if not isinstance(schema, str) or not schema.startswith("torchcoll-acceptance/"):
            raise ValueError
        if schema.split("/")[1].split(".")[0] != SCHEMA.split("/")[1]:
            wrote = printable(str(data.get("torchcoll") or "another version"))[:40]
            action = f"Install the torchcoll version that wrote it ({wrote})."
            raise UnreadableError(f"schema of {path}", schema, SCHEMA, action)
        machine = _read_machine(data["machine"])
        parts = [PartResult.from_json(part) for part in data["parts"]]
        texts = (data["status"], data["start_utc"], data["torchcoll"])
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("not a text")
        report = Report(machine, parts, texts[0], texts[1], float(data["wall_s"]))
        return Accepted(str(path), texts[2], report, tuple(files))
    except UnreadableError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        expected = f'one that launch/acceptance.sh wrote ("schema":"{SCHEMA}")'
        raise UnreadableError(f"{_INDEX} of {path}", "another content", expected) from None


def _read_machine(data: Mapping[str, Any]) -> MachineUnderTest:
    texts = [data[name] for name in ("backend", "device", "family", "library", "why_one")]
    if not all(isinstance(text, str) for text in texts) or not isinstance(data["facts"], dict):
        raise TypeError("not a text")
    ranks = data["ranks"]
    if ranks is not None and (isinstance(ranks, bool) or not isinstance(ranks, int)):
        raise TypeError("not a number")
    backend, device, family, library, why_one = texts
    names = data["facts"].get("names") or []
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise TypeError("not a list of texts")
    shared, facts = data["shared"] is True, data["facts"]
    return MachineUnderTest(backend, device, ranks, shared, family, library, why_one, None, facts)


class _Bounded(io.RawIOBase):
    """What is unpacked, up to a limit: a few bytes may unpack to any number."""

    def __init__(self, source: gzip.GzipFile, path: object) -> None:
        self._source, self._path, self._left = source, path, _MOST_UNPACKED

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._source.read1(min(len(buffer), 1 << 20))
        self._left -= len(piece)
        if self._left < 0:
            raise UnreadableError(_WHAT, self._path, "at most 1 GiB of content")
        buffer[: len(piece)] = piece
        return len(piece)


def _members(path: str | os.PathLike[str]) -> Iterator[tuple[str, bytes | None]]:
    """(name, None) of each member, with the content of the index. Raises UnreadableError for a
    member that is no plain file below one folder.
    """
    with gzip.open(path, "rb") as packed:
        stream = io.BufferedReader(_Bounded(packed, path), 1 << 20)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= _MOST_MEMBERS:
                    raise UnreadableError(_WHAT, path, f"at most {_MOST_MEMBERS} members")
                parts = PurePosixPath(member.name).parts
                plain = member.isreg() and not member.name.startswith("/") and ".." not in parts
                if plain and len(parts) < 2:
                    raise UnreadableError(_WHAT, path, "an archive of launch/acceptance.sh")
                if not (plain or member.isdir()):
                    raise UnreadableError(
                        f"member of {path}",
                        member.name,
                        "a plain file below one folder",
                        "Do not unpack this archive.",
                    )
                if parts[1:] != (_INDEX,):
                    yield "/".join(parts[1:]), None
                    continue
                if member.size > _MOST_INDEX:
                    raise UnreadableError(_WHAT, path, f"an {_INDEX} of at most 8 MiB")
                content = tar.extractfile(member)
                yield _INDEX, content.read() if content else b""
