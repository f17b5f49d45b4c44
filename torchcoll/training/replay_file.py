"""The traffic file of a replay: opened before anything is played, gone again where nothing was."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from torchcoll.bench.output import RUNS_FOLDER, open_again, open_default
from torchcoll.core.file import Writer


class ReplayFile:
    """Rank 0's."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self.path: Path | None = None
        self.writer: Writer | None = None
        self._made: list[Path] = []  # folders, the innermost first

    def emit(self, record: str, data: dict[str, Any]) -> None:
        """A record of the session, which writes its header before anything else."""
        if record != "header":
            return
        folder = Path(RUNS_FOLDER if self._name is None else self._name).absolute()
        folder = folder if self._name is None else folder.parent
        self._made = [one for one in (folder, *folder.parents) if not one.exists()]
        if self._name is None:
            self.path, self.writer = open_default("replay", data["spec"]["backend"], data["ranks"])
        else:
            self.path, self.writer = Path(self._name), Writer(Path(self._name), "Name another.")

    def look_after(self) -> str:
        """Where somebody has removed or moved the file: another, and what to say of it."""
        if self.writer is None or self.path is None or self.writer.there():
            return ""
        text = f"traffic file {self.path}: removed or moved while playing"
        again = open_again(self.path)
        if again is None:
            return f"{text}, and there is nowhere to write it again"
        self.writer.close()
        self.path, self.writer = again
        return f"{text}; all is in {self.path}"

    def drop(self) -> None:
        if self.writer:
            self.writer.discard_empty()
            self.writer = None
            with contextlib.suppress(OSError):  # another job may use it by now
                for folder in self._made:
                    folder.rmdir()
