"""The traffic file of a replay: opened before the first play, removed if nothing was written."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from torchcoll.bench.output import RUNS_FOLDER, open_again, open_default
from torchcoll.core.file import Writer


class ReplayFile:
    """The traffic file that rank 0 writes."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self.path: Path | None = None
        self.writer: Writer | None = None
        self._new_folders: list[Path] = []  # folders that the replay makes, the innermost first

    def emit(self, record: str, data: dict[str, Any]) -> None:
        """Takes a record of the session and opens the file at the header, which comes first."""
        if record != "header":
            return
        folder = Path(RUNS_FOLDER if self._name is None else self._name).absolute()
        folder = folder if self._name is None else folder.parent
        self._new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
        if self._name is None:
            self.path, self.writer = open_default("replay", data["spec"]["backend"], data["ranks"])
        else:
            self.path, self.writer = Path(self._name), Writer(Path(self._name), "Name another.")

    def replace_if_removed(self) -> str:
        """Opens another file if the first was removed, moved or truncated, and returns a message
        about it, or ''.
        """
        if self.writer is None or self.path is None or self.writer.there():
            return ""
        text = f"traffic file {self.path}: removed, moved or truncated while playing"
        replacement = open_again(self.path)
        if replacement is None:
            return f"{text}, and there is nowhere to write it again"
        self.writer.close()
        self.path, self.writer = replacement
        return f"{text}; all is in {self.path}"

    def close(self) -> None:
        """Closes the file and removes it and its new folders if it is empty."""
        if self.writer:
            self.writer.discard_empty()
            self.writer = None
            with contextlib.suppress(OSError):  # another job may use it by now
                for folder in self._new_folders:
                    folder.rmdir()
