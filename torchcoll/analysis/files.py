"""The result files that a path, a folder or a pattern stands for."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from torchcoll.core.errors import UnreadableError
from torchcoll.core.records import is_manifest
from torchcoll.core.result import Run

Source = Run | str | os.PathLike[str]
_LOOKED_AT = 1000  # folders below one without files


def expanded(source: Source) -> list[Source]:
    """The files of a folder or a pattern. Raises UnreadableError where there are none."""
    if isinstance(source, Run):
        return [source]
    path = Path(source)
    if path.is_dir():
        inside = _files_in(path)
        if not inside:
            raise _no_files(path)
        own = [p for p in inside if p.name.endswith((".jsonl", ".jsonl.gz"))]
        return [*(own or inside)]
    if not path.exists() and glob.has_magic(str(source)):
        found = (Path(p) for p in sorted(glob.glob(str(source), recursive=True)))
        matches = [p for p in found if p.is_file() and not is_manifest(p)]
        if not matches:
            raise UnreadableError("result files", source, "a pattern that some file matches")
        return [*matches]
    return [source]


def _files_in(folder: Path) -> list[Path]:
    found = (p for p in sorted(folder.iterdir()) if p.is_file())
    return [p for p in found if p.name[0] != "." and not is_manifest(p)]


def _no_files(folder: Path) -> UnreadableError:
    """Names what may be meant, and takes none of it: folders may be before and after, or logs."""
    below = []
    # The folder of a matrix that has no result yet holds its logs.
    own = any(is_manifest(p) for p in folder.iterdir() if p.is_file())
    for place, (name, folders, _) in enumerate(() if own else os.walk(folder)):
        folders[:] = sorted(one for one in folders if one[0] != ".")
        if place >= _LOOKED_AT:
            break
        if count := len(_files_in(Path(name))):
            below.append(f"{name} ({count} file{'s' if count > 1 else ''})")
    several = ", ".join(below if len(below) < 5 else [*below[:3], f"... ({len(below)} folders)"])
    return UnreadableError(
        "folder",
        folder,
        "a folder with result files",
        f"Below it are {several}: name what is meant, or '{folder}/**/*' for all." * bool(below),
    )
