"""The end of a result file whose writer, rank 0, is gone: another rank that reaches it appends it.

Loaded when that has happened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchcoll.core.errors import TorchcollError
from torchcoll.core.records import Writer


def append_end(path: Path, run_id: str, event: dict[str, Any], end: dict[str, Any]) -> bool:
    """Whether the event and the end were written: not where the file is another's or not to be
    reached from here, and not where it has its end already.
    """
    try:
        import fcntl

        with open(path, "r+b") as file:
            # Of several hosts each has a rank that comes here: one after the other.
            fcntl.flock(file, fcntl.LOCK_EX)
            if json.loads(file.readline()).get("run_id") != run_id:
                return False
            cases = 0
            for line in file:
                if line.startswith(b'{"record":"end"'):
                    return False
                cases += line.startswith(b'{"record":"case"')
            writer = Writer(path, further=True)
            writer.write("event", event)
            writer.write("end", {**end, "cases": cases}, durable=True)
            writer.close()
    except (ImportError, OSError, ValueError, AttributeError, TorchcollError):
        return False
    return True
