"""The stdout of a rank that measures: the table's alone.

oneCCL logs on stdout, from C++ and on every rank, gloo of older torch too: in the middle of the
table, or of a JSON document. So the table keeps stdout by a descriptor of its own, and descriptor 1
goes where stderr goes. Kept in a file until the table has ended, such lines would be lost where the
rank is killed, which is when they are wanted.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys


def own_stdout() -> None:
    """Python's stdout becomes a descriptor of its own, and descriptor 1 another name of stderr.

    Nothing happens where one of them is closed or is no file (a test that captures it).
    """
    with contextlib.suppress(AttributeError, OSError, io.UnsupportedOperation):
        old = sys.stdout
        if old.fileno() != 1:
            return
        old.flush()
        flush_c()
        kept = os.dup(1)
        try:
            os.dup2(2, 1)
        except OSError:
            os.close(kept)
            return
        buffering = 1 if old.line_buffering else -1
        sys.stdout = open(  # noqa: SIM115
            kept, "w", buffering, encoding=old.encoding, errors=old.errors
        )


def flush_c() -> None:
    """What C's stdio still holds: it keeps more where descriptor 1 is a file."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)
