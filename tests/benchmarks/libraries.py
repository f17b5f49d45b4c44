"""What packages would save that torchcoll does without: orjson, psutil, nvidia-ml-py.

    python tests/benchmarks/libraries.py FOLDER

Each is installed beside torchcoll by hand; FOLDER keeps the files that are read. Reading is CPU
time of whole loads in one process, ours / with orjson, in turns; an A/A row is ours / ours. orjson
reads no whole number beyond 64 bits as one (it gives a float), so such lines go to json, as do all
that it refuses. Imports are ours / with the package, of new processes: what one rank a host pays.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import paired_ratio, title

from torchcoll.core import jsonl
from torchcoll.core.file import save
from torchcoll.core.traffic import load as load_traffic
from torchcoll.inputs import load
from torchcoll.machine import state

PAIRS = 8
ZERO = bytes(ord("0") if chr(byte).isdecimal() else 32 for byte in range(128)) + b" " * 128
LONG = b"0" * 19
OWN = jsonl.parse_line


def with_orjson(line: bytes) -> Any:
    import orjson

    if LONG not in line.translate(ZERO):
        try:
            return orjson.loads(line)
        except ValueError:
            pass
    return OWN(line)


def seconds_of(work: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def read(path: Path, loaded: Callable[[Path], Any], parse: Callable[[bytes], Any]) -> float:
    jsonl.parse_line = parse
    try:
        return seconds_of(lambda: loaded(path))
    finally:
        jsonl.parse_line = OWN


def start_of(imports: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {imports}"], check=True)
    return time.perf_counter() - start


def with_psutil() -> list[Any]:
    import psutil

    found: list[Any] = [psutil.cpu_times(percpu=True)]
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                found.append((process.ppid(), process.name(), process.cpu_times()))
                found.append(process.create_time())
        except psutil.Error:
            pass
    return found


def row(name: str, ours: Callable[[], float], other: Callable[[], float]) -> None:
    ours(), other()  # what the first one pays is no one's
    pairs = [(ours(), other()) for _ in range(PAIRS)]
    again = [(ours(), ours()) for _ in range(PAIRS)]
    least = [min(times) for times in zip(*pairs, strict=True)]
    print(
        f"{name}: {least[0]:.4f} s and {least[1]:.4f} s at least; ours / other "
        f"{paired_ratio(pairs)}; A/A {paired_ratio(again)}",
        flush=True,
    )


def main(folder: Path) -> None:
    title("libraries that torchcoll does without")
    result, traffic = folder / "result.jsonl", folder / "traffic.jsonl"
    if not result.exists():
        sys.path.insert(0, str(Path(__file__).parents[1]))
        import scale
        from test_hostile import calls_of_traffic

        scale.SIZES = 40
        save(scale.synthetic(4096), str(result))
        with open(traffic, "wb") as file:
            file.writelines(calls_of_traffic(100_000))
    for path, loaded in ((result, load), (traffic, load_traffic)):
        row(
            f"orjson, {path.name} of {os.path.getsize(path) / 1e6:.0f} MB",
            lambda path=path, loaded=loaded: read(path, loaded, OWN),
            lambda path=path, loaded=loaded: read(path, loaded, with_orjson),
        )
    count = len(state.sample().processes)
    row(
        f"psutil, a look at {count} processes",
        lambda: seconds_of(state.sample),
        lambda: seconds_of(with_psutil),
    )
    base = "torchcoll.machine.state, torchcoll.machine.gpu_state"
    for name in ("psutil", "pynvml"):
        row(
            f"{name}, import", lambda: start_of(base), lambda name=name: start_of(f"{base}, {name}")
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
