"""Run pytest on several parts of the tests at the same time.

    python tests/side_by_side.py LOGS PART...

A part is the arguments of one pytest, as one word. Each pytest is forked from this process, which
has imported torch and torchcoll: each new interpreter would spend six seconds of CPU on it. The
first part prints to stdout, the output of part N goes to LOGS/N, and each exit code to LOGS/codeN.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

TESTS = Path(__file__).parent
# As for `python -m pytest`: the current folder, and not the folder of this file.
sys.path[0] = os.getcwd()


def run_part(number: int, arguments: list[str], logs: Path) -> int:
    """Run pytest in this process, which is a fork, and return the exit code of pytest."""
    import pytest

    if number:
        with open(logs / str(number), "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    # Each part remembers which tests failed in a folder of its own.
    return pytest.main(["-q", "-o", f"cache_dir={logs}/cache{number}", *arguments])


def main(logs: Path, parts: list[str]) -> None:
    gc.disable()  # nothing that is imported is garbage
    sys.path.append(str(TESTS))
    import ranks  # noqa: F401  torch, and all of torchcoll

    sys.path.pop()
    gc.freeze()
    processes = {}
    for number, part in enumerate(parts):
        pid = os.fork()
        if not pid:
            code = 3
            try:
                code = run_part(number, part.split(), logs)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)  # what was registered to run at exit belongs to the parent
        processes[pid] = number
    while processes:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        (logs / f"code{processes.pop(pid)}").write_text(f"{code}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
