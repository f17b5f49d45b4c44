"""Large files as real jobs write them: no bound that is meant for bombs may refuse them.

    python tests/benchmarks/large.py [trace|result|log ...]

trace: 100 MB packed, the events of a real training step on gloo, profiled with stacks, again and
again at later times. result: 160 MB of 4096 ranks. log: 500 MB of NCCL_DEBUG=INFO of 4096
processes, with a line for each call. The columns are those of tests/hostile.py.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

MB = 1_000_000


def _step(rank: int, port: int, path: str) -> None:
    """Three steps of a small transformer layer with DDP; rank 0 writes their trace."""
    import torch
    import torch.distributed as dist
    from common import tcp_store
    from torch.profiler import ProfilerActivity, profile

    dist.init_process_group("gloo", store=tcp_store(rank, 2, port), rank=rank, world_size=2)
    layers = [torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, record_shapes=True, with_stack=True) as prof:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 16, 64)).square().mean().backward()
            optimizer.step()
            prof.step()
    if rank == 0:
        prof.export_chrome_trace(path)
    dist.destroy_process_group()


def trace(path: Path, size_bytes: int = 100 * MB) -> None:
    from common import fork_ranks, free_port

    with tempfile.TemporaryDirectory() as folder:
        one = f"{folder}/trace.json"
        fork_ranks(2, _step, free_port(), one)
        data = json.loads(Path(one).read_text())
    events = data.pop("traceEvents")
    timed = [event for event in events if event.get("ph") == "X"]
    # What one of these is, with a mark where its time stands.
    pieces = [json.dumps({**event, "ts": "@"}).split('"@"') for event in timed]
    times = [float(event["ts"]) for event in timed]
    length = max(times) - min(times) + 1000

    def parts() -> Iterator[bytes]:
        yield json.dumps(data).encode()[:-1] + b', "traceEvents": ['
        for count in range(1 << 30):
            shifted = (f"{time + count * length:.3f}" for time in times)
            texts = (a + ts + b for (a, b), ts in zip(pieces, shifted, strict=True))
            yield ",\n".join(texts).encode() + b",\n"

    end = json.dumps({"ph": "i", "ts": 0, "name": "end"}).encode() + b"]}"
    _packed(path, parts(), end, size_bytes)


def _packed(path: Path, parts: Iterator[bytes], end: bytes, size_bytes: int) -> None:
    packer = zlib.compressobj(6, wbits=31)
    with open(path, "wb") as file:
        for part in parts:
            file.write(packer.compress(part))
            if file.tell() > size_bytes:
                break
        file.write(packer.compress(end) + packer.flush())


def result(path: Path) -> None:
    import scale

    from torchcoll.core.file import save

    scale.SIZES = 240
    save(scale.synthetic(4096), str(path))


def log(path: Path) -> None:
    """What each process says as it begins, then its calls, in turns of the processes."""
    import fuzz

    ranks = 4096
    said = [line.partition("] ")[2] for line in fuzz.NCCL_LOG.splitlines()[:-2]]
    said += [
        f"NCCL INFO Channel {channel:02}/0 : RANK[0] -> 1[1] via NET/IB/{channel % 8}/GDRDMA"
        for channel in range(32)
    ]
    with open(path, "wb") as file:
        for rank in range(ranks):
            before = f"node{rank // 8}:{1000 + rank}:{1000 + rank} [{rank % 8}] "
            texts = (
                text.replace("rank 0 nran", f"rank {rank} nran")
                .replace("nranks 2", f"nranks {ranks}")
                .replace("RANK", str(rank))
                for text in said
            )
            file.write("".join(f"{before}{text}\n" for text in texts).encode())
        for call in range(1 << 30):
            for rank in range(ranks):
                before = f"node{rank // 8}:{1000 + rank}:{1000 + rank} [{rank % 8}] NCCL INFO"
                line = (
                    f"{before} AllReduce: {1024 << call % 16} Bytes -> Algo RING proto LL "
                    "channel{Lo..Hi}={0..7}\n"
                    f"{before} AllReduce: opCount {call:x} sendbuff 0x7f0000000000 recvbuff "
                    f"0x7f0000000000 count {256 << call % 16} datatype 7 op 0 root 0 comm 0x59 "
                    f"[nranks={ranks}] stream 0\n"
                )
                file.write(line.encode())
            if file.tell() > 500 * MB:
                return


LARGE: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "trace": ("trace", "rank0.json.gz", trace),
    "result": ("show", "run.jsonl", result),
    "log": ("log", "nccl.log", log),
}


def main() -> None:
    import hostile

    hostile.heading()
    for name in sys.argv[1:] or LARGE:
        command, file, write = LARGE[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file
            # In a process of its own: what it leaves in memory is no part of the reading.
            if (child := os.fork()) == 0:
                code: Any = 1
                try:
                    write(path)
                    code = 0
                finally:
                    os._exit(code)
            if os.waitpid(child, 0)[1]:
                sys.exit(f"{name}: not written")
            print(hostile.row(f"large {name}, {command}", command, path), flush=True)


if __name__ == "__main__":
    main()
