"""Running things as a user on a cluster would, for the run tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Debian's Slurm and iproute2 are in sbin, which is not on everybody's PATH.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def need(*programs: str) -> None:
    """Skip where one of ``programs`` is missing."""
    for program in programs:
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"{program} is not installed")


def need_root() -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("needs root")


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "PATH": PATH, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
