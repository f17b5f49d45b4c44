"""What the arguments of ``torchcoll report`` hold: runs, traffic, logs, topologies, folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchcoll.core.errors import UnreadableError, UsageError, one_line
from torchcoll.core.file import is_ours, is_traffic
from torchcoll.core.result import Run
from torchcoll.core.stdin import from_stdin
from torchcoll.core.traffic import Traffic, join_folder
from torchcoll.inputs import expanded, load_all, named_path, sources_of
from torchcoll.libraries.nccl.xml_tree import is_dump

if TYPE_CHECKING:
    from torchcoll.libraries.dumps import Dump
    from torchcoll.libraries.log_files import LogReader


@dataclass
class Material:
    """What the arguments of a report hold. folders: of a torchcoll matrix or versus. named: the
    arguments that hold some, by the kind of what they hold.
    """

    runs: list[Run] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    dumps: list[Dump] = field(default_factory=list)
    logs: list[LogReader] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    named: dict[str, list[str]] = field(default_factory=dict)

    def holds(self) -> tuple[int, int, int]:
        return len(self.runs), len(self.traffic), len(self.dumps) + len(self.logs)


def material_of(arguments: Sequence[str]) -> Material:
    """Result files, output of other tools, traffic, logs and topology files, folders of them,
    ``label=PATH``. Raises UnreadableError for a file that is none of these, and where nothing is.
    """
    found = Material()
    results: list[str] = []
    for argument in arguments:
        label, named = named_path(argument)
        before = (*found.holds(), len(results))
        if label:
            results.append(argument)
            found.named.setdefault("runs", []).append(argument)
            continue
        path = str(from_stdin(named))
        if os.path.isdir(path):
            found.folders.append(path)
            for file in _inside(path):
                try:
                    _sort(file, found, results)
                except UnreadableError as error:
                    found.notes.append(f"left out: {error}")
        else:
            for one in expanded(path):
                _sort(str(one), found, results)
        after = (*found.holds(), len(results))
        more = [now > then for now, then in zip(after, before, strict=True)]
        for kind, here in (("runs", more[0] or more[3]), ("traffic", more[1]), ("logs", more[2])):
            if here:
                found.named.setdefault(kind, []).append(argument)
    found.traffic = _joined(found.traffic)
    found.runs += load_all(sources_of(results))
    if not (found.runs or found.traffic or found.dumps or found.logs):
        why = one_line(found.notes[0]) if found.notes else ""
        raise UnreadableError("report", "nothing to report", "results, traffic or logs", why)
    return found


def _joined(parts: Sequence[Traffic]) -> list[Traffic]:
    """Files of one folder are the ranks of a capture, where they fit together: of several the last,
    as when the folder itself is loaded.
    """
    folders: dict[Path, list[Traffic]] = {}
    for part in parts:
        folders.setdefault(Path(part.path or "").parent, []).append(part)
    found: list[Traffic] = []
    for folder, own in folders.items():
        try:
            found.append(join_folder(own, folder) if len(own) > 1 else own[0])
        except UsageError:
            found += own
    return found


_DRAWN = (".md", ".html", ".svg", ".png", ".pdf")


def _inside(folder: str) -> list[str]:
    """Its results, or all of its files, and the logs that lie beside results."""
    from torchcoll.libraries.log_files import files_of

    logs: list[str] = []
    with contextlib.suppress(UnreadableError):  # none
        logs = files_of([folder])
    own = [str(file) for file in expanded(folder)]
    # A report of the folder may be kept in it: its tables would be read as another tool's.
    found = dict.fromkeys([*own, *logs])
    return [file for file in found if not file.endswith(_DRAWN)]


def _sort(file: str, found: Material, results: list[str]) -> None:
    """Puts a file to its kind. Raises UnreadableError for one that is of none."""
    from torchcoll.libraries.dumps import read_dump
    from torchcoll.libraries.log_files import read_log

    if is_ours(file):
        if is_traffic(file):
            found.traffic.append(Traffic.load(file))
        else:
            results.append(file)
        return
    if is_dump(file):
        dump, problems = read_dump(file)
        dump.facts["fabrics"] = []
        found.dumps.append(dump)
        found.notes += problems
        return
    try:
        found.runs += load_all([file])
    except UnreadableError as refused:
        try:
            log, problems = read_log(file)
        except UnreadableError:
            raise refused from None
        found.logs.append(log)
        found.notes += problems
