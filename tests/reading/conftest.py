from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchcoll.reading.base import Imported, ImportOptions
from torchcoll.reading.registry import import_file


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Imported]:
    """A function that writes text or bytes to a file and imports it."""

    def run(
        text: str | bytes, name: str = "x.log", importer: Any = None, **options: Any
    ) -> Imported:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return import_file(str(path), ImportOptions(**options), importer)

    return run
