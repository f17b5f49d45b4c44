"""Ring files made by hand, from the layout in the docstring of core/call_ring.py."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

HEADER = {
    "record": "header",
    "schema": "torchcoll-ring/1",
    "rank": 1,
    "ranks": 4,
    "host": "node07",
    "pid": 4711,
    "start_ns": 1_000_000_000,
    "capture": "2026-11-24T03:00:00+00:00 1f2e",
    "slurm_job_id": "99",
    "torchelastic_run_id": "none",
}
GROUP = {
    "record": "group",
    "id": 1,
    "name": "0",
    "spaced": True,
    "ranks": [0, 4, 1],
    "backend": "gloo",
    "description": "default_pg",
}
TEXTS = [
    {"record": "text", "id": 1, "text": "all_reduce"},
    {"record": "text", "id": 2, "text": "float32"},
    {"record": "text", "id": 3, "text": "train.py:88 step"},
    {"record": "text", "id": 4, "text": "send"},
]


def lines(*records):
    """JSON lines with the check sums of core/jsonl.py."""
    data, header_crc = b"", 0
    for number, record in enumerate(records, 1):
        body = json.dumps({**record, "line": number}, separators=(",", ":"))[:-1].encode()
        crc = zlib.crc32(body, header_crc)
        header_crc = crc if number == 1 else header_crc
        data += body + b',"crc":"%08x"}\n' % crc
    return data


def call(serial, number, state, *, collective=1, peer=-1, size_bytes=400, group=1):
    body = struct.pack(
        "<QqqqIHHHHii",
        serial,
        1_000_000_000 + 1000 * serial,
        size_bytes,
        size_bytes,
        number,
        group,
        collective,
        2,
        3,
        peer,
        -1,
    )
    return body + struct.pack("<Iq", zlib.crc32(body), state)


def ring(*calls, records=(), header=HEADER, alive_ns=2_000_000_000):
    """A whole file: call ``serial`` at its place, everything else zeros."""
    texts = lines(header, GROUP, *TEXTS, *records)
    slots = {struct.unpack_from("<Q", data)[0] % 4096: data for data in calls}
    prefix = struct.pack("<24s16xq", b"torchcoll call ring 1\n", alive_ns).ljust(64, b"\0")
    body = b"".join(slots.get(index, bytes(64)) for index in range(4096))
    return (prefix + texts).ljust(1 << 16, b"\0") + body


STACKS = (Path(__file__).parent / "fuzz_inputs" / "ring_stacks.txt").read_text()
