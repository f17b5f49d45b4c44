"""``torchrun ... -m torchcoll replay``: a captured training step, played again on all ranks."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import ExitCode, UsageError, tell

if TYPE_CHECKING:
    from torchcoll.bench.launcher import Launch
    from torchcoll.core.records import Writer

_FORMATS = ("table", "markdown", "csv", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "torchrun --nproc-per-node N -m torchcoll replay FILE [options]"
    add = parser.add_argument
    add("file", metavar="FILE", help="what torchcoll.capture saved, or a folder of such files")
    add("--backend", help="as when measuring (default: what the machine has)")
    add("--device", help="cpu, cuda or xpu")
    add("--steps", type=int, default=10, help="play the step so often (default 10)")
    add(
        "--compute",
        action="store_true",
        help="sleep in the gaps between calls as long as the training did something else",
    )
    add("--rehearse", action="store_true", help="several nccl ranks on one GPU")
    add("-T", "--timeout", type=float, default=300.0, help="seconds that are a hang (default 300)")
    add("-J", "--output", metavar="FILE", help="traffic file (torchcoll-runs/...-replay-....jsonl)")
    add("--format", default="table", help=", ".join(_FORMATS))


def run(options: argparse.Namespace) -> int:
    from torchcoll.bench.main import on_ranks

    return on_ranks(lambda launch: _replay(options, launch))


def _replay(options: argparse.Namespace, launch: Launch) -> int:
    from torchcoll.bench.main import complain, import_torch
    from torchcoll.core.case import fingerprint
    from torchcoll.core.spec import Spec

    if options.format not in _FORMATS:
        raise UsageError("format", options.format, f"one of {', '.join(_FORMATS)}")
    spec = Spec(
        backend=options.backend,
        device=options.device,
        timeout_s=options.timeout,
        rehearse=options.rehearse,
    )
    torch = import_torch()
    from torchcoll.bench.replay import play
    from torchcoll.bench.runner import Session
    from torchcoll.core.traffic import Traffic

    file = _File(options.output)

    def last_words(code: int, text: str, speaks: bool) -> None:
        file.drop()
        complain(f"torchcoll: error: {text}", launch.rank, speaks)

    session = Session(
        torch,
        spec,
        launch=launch,
        asked=fingerprint([spec.to_json(), options.file, options.steps, options.compute]),
        argv=sys.argv[1:],
        emit=file.emit,
        on_last_words=last_words,
    )
    try:
        found = play(session, lambda: Traffic.load(options.file), options.steps, options.compute)
        if found is not None and file.writer:
            from torchcoll.report.text import show

            lost, there = file.look_after(), file.writer.there()
            found.write(file.writer)
            found.path = file.path
            if there:
                tell(f"traffic file: {file.path}")
            show(found, format=options.format)
            if lost:
                complain(f"torchcoll: error: {lost}", launch.rank, speaks=True)
                return ExitCode.FAILED
    finally:
        file.drop()
    return ExitCode.OK


class _File:
    """Rank 0's, opened before anything is played; gone again where nothing was."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self.path: Path | None = None
        self.writer: Writer | None = None
        self._made: list[Path] = []  # folders, the innermost first

    def emit(self, record: str, data: dict[str, Any]) -> None:
        """A record of the session, which writes its header before anything else."""
        from torchcoll.bench.output import RUNS_FOLDER, open_default
        from torchcoll.core.records import Writer

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
        from torchcoll.bench.output import open_again

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
