"""A small file does not take the machine: the inputs of tests/hostile.py that matter most."""

from __future__ import annotations

import gzip
import json

import hostile
import pytest
from error_form import error_tail, got

from torchcoll.cli import main
from torchcoll.core import bounds, jsonl
from torchcoll.core.errors import UnreadableError
from torchcoll.core.traffic import Traffic
from torchcoll.libraries.job_logs import read_log
from torchcoll.libraries.nccl.log import NcclLogReader
from torchcoll.parts.training.traces import read_traffic
from torchcoll.reading import base
from torchcoll.reading.inputs import load

# What numpy, pandas and the interpreter map themselves is about 500 MB of address space.
LIMIT_BYTES = 1_800_000_000


@pytest.mark.parametrize(
    ("name", "logged"),
    [
        ("a dump of rank 90000000", got(error_tail("rank 90000000", "ranks from 0 to 1048575"))),
        ("zeros, log", "a .gz that unpacks to at most 256 MiB, or to 200 times its size. Where"),
        ("nested XML, log", got(error_tail("more", "at most 100 elements in each other"))),
        (
            "nested JSON, trace",
            "a traffic file of torchcoll, a Kineto trace, a Flight Recorder dump",
        ),
        ("a long line of a log", ""),
    ],
)
def test_what_it_takes(tmp_path, name, logged):
    path = hostile.write(name, tmp_path)
    done = hostile.read(name, path, LIMIT_BYTES)
    assert "Traceback" not in done.stderr and "MemoryError" not in done.stderr
    assert logged in done.stderr
    assert done.returncode == (3 if logged else 0)
    assert done.stderr.count("\n") == 1 or not logged


@pytest.mark.parametrize("command", ["show", "log", "convert"])
def test_a_bomb_is_refused_by_every_command(tmp_path, capsys, command, monkeypatch):
    """A 32nd of the limit, in a 32nd of the time; "zeros, log" has all of it."""
    assert bounds._UNPACKED_BYTES == 256 << 20
    monkeypatch.setattr(bounds, "_UNPACKED_BYTES", 8 << 20)
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b"0" * (1 << 20)) * 22)
    assert main([command, str(path)]) == 3
    assert "unpacks to at most 256 MiB" in capsys.readouterr().err


def test_a_log_that_packs_as_real_ones_do_may_be_long():
    """50 million lines of 100 bytes, 80 to 1; a bomb is 1000 to 1."""
    lines, unpacked = 50_000_000, 5_000_000_000
    bounds.UnpackBudget("file", "nccl.log.gz").add(unpacked, unpacked // 80, lines)
    with pytest.raises(UnreadableError):
        bounds.UnpackBudget("file", "nccl.log.gz").add(unpacked, unpacked // 1000, lines)


def test_how_many_short_lines_a_bomb_may_have():
    """Lines of 23 bytes, 400 to 1: what a reader does with each takes longer than to unpack it."""
    growth, lines = bounds.UnpackBudget("log", "a.log.gz"), 0
    with pytest.raises(UnreadableError):
        for lines in range(1, 2_000_000):
            growth.add(23, lines * 23 // 400, lines=1)


def test_what_is_done_with_each_line_of_a_packed_log(tmp_path, monkeypatch):
    """20 000 lines of two processes, of which each says two things that are not needed: as many
    are looked into, and no line is asked for alone.
    """
    looked = []
    read_message = NcclLogReader._read_message
    monkeypatch.setattr(
        NcclLogReader,
        "_read_message",
        lambda self, raw, *rest: looked.append(raw) or read_message(self, raw, *rest),
    )
    monkeypatch.setattr(gzip.GzipFile, "readline", None)
    logged = [b"n0:1:1 [0] NCCL INFO x\n", b"n1:1:1 [0] NCCL INFO Max NVTX\n"]
    logged += [b"n1:1:1 [0] NCCL INFO x\n", b"n0:1:1 [0] NCCL INFO Max NVTX\n"]
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"".join(logged) * 5000))
    reader, problems = read_log(str(path))
    assert (looked, problems) == (logged[:2], [])
    assert reader.tally.counts == {"unknown": 10_000, "known": 10_000}
    assert reader.tally.examples == [
        (1, "n0:1:1 [0] NCCL INFO x"),
        (3, "n1:1:1 [0] NCCL INFO x"),
        (5, "n0:1:1 [0] NCCL INFO x"),
        (7, "n1:1:1 [0] NCCL INFO x"),
        (9, "n0:1:1 [0] NCCL INFO x"),
    ]
    assert [(p.host, p.pid) for p in reader.processes] == [("n0", 1), ("n1", 1)]


def calls_of_traffic(count):
    """Lines of 273 bytes, as Traffic.save writes them of a trace."""
    yield b'{"record":"header","schema":"torchcoll-traffic/2","source":"trace","ranks":8}\n'
    for number in range(count):
        yield (
            b'{"record":"call","rank":0,"collective":"all_reduce","bytes_in":26214400,'
            b'"bytes_out":26214400,"dtype":"bfloat16","op":"sum","group":"0","sequence":%d,'
            b'"step":12,"asynchronous":true,"start_ns":%d,"time_ns":%d,"clock":"device",'
            b'"exposed_ns":51234,"algorithm":"RING/LL"}\n'
            % (number, 10**12 + 400_000 * number, 300_000 + number)
        )
    yield b'{"record":"end","status":"complete"}\n'


@pytest.mark.parametrize("packed", [False, True])
def test_the_traffic_of_a_long_capture_is_read(tmp_path, monkeypatch, packed):
    """250 000 calls, 68 MB plain, are 200 MB of memory. Here a tenth of them, in a tenth of the
    room.
    """
    for name in ("_HELD_BYTES", "_UNPACKED_BYTES"):
        monkeypatch.setattr(bounds, name, getattr(bounds, name) // 10)
    path = tmp_path / "traffic.jsonl"
    with gzip.open(path, "wb", 1) if packed else open(path, "wb") as file:
        file.writelines(calls_of_traffic(25_000))
    traffic = Traffic.load(path)
    assert (traffic.problems, len(traffic.calls[0])) == ([], 25_000)


@pytest.mark.parametrize("packed", [False, True])
def test_what_to_do_with_a_file_that_is_too_large(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(bounds, "_HELD_BYTES", 1000)
    monkeypatch.setattr(bounds, "_HELD_RATIO", 1)
    path = tmp_path / "traffic.jsonl"
    content = b"".join(calls_of_traffic(10))
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UnreadableError) as caught:
        Traffic.load(path)
    action = "Split it; a compressed file may take more once it is unpacked."
    assert str(caught.value).endswith(f" times the size of the file. {action}")


def test_what_packs_as_real_files_do_is_read(tmp_path):
    """A file of 10 000 equal cases packs 100 to 1 and more, and is small."""
    case = {**dict.fromkeys(("dtype", "op", "root", "in_place")), "collective": "all_reduce"}
    case |= {"size_bytes": 8, "mode": "synchronized", "backend": "gloo", "device": "cpu"}
    record = {"record": "case", "case": case, "status": "ok", "ranks": 2, "size_bytes": 8}
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"record":"header","schema":"torchcoll/2","ranks":2}\n')
        file.write((json.dumps(record) + "\n") * 10_000)
        file.write('{"record":"end","status":"complete"}\n')
    assert path.stat().st_size * 100 < 10_000 * len(json.dumps(record))
    assert len(load(path).results) == 10_000


def test_no_text_is_made_of_what_is_not_told(tmp_path, monkeypatch):
    """Of 1500 lines that are no record 1000 are told; the others are not even parsed."""
    parsed, parse = [], jsonl.parse_line
    monkeypatch.setattr(jsonl, "parse_line", lambda line: parsed.append(line) or parse(line))
    path = tmp_path / "a.jsonl"
    header = '{"record":"header","schema":"torchcoll/2","ranks":2}\n'
    path.write_text(header + "x\n" * 1500 + '{"record":"end","status":"complete"}\n')
    problems = load(path).problems
    assert (len(problems), problems[-1]) == (1001, f"{path}: 500 more unusable records")
    assert parsed.count(b"x\n") == 1000


def test_a_line_that_would_not_fit_is_not_parsed(tmp_path, monkeypatch):
    """A megabyte of empty lists, which are 64 bytes each."""
    monkeypatch.setattr(bounds, "_HELD_BYTES", 30_000_000)
    parsed, parse = [], jsonl.parse_line
    monkeypatch.setattr(jsonl, "parse_line", lambda line: parsed.append(line) or parse(line))
    path = tmp_path / "a.jsonl"
    header = '{"record":"header","schema":"torchcoll/2","ranks":2}\n'
    path.write_text(header + '{"record":"case","cold_ns":[' + "[]," * 350_000 + "[]]}\n")
    with pytest.raises(UnreadableError, match="records that fit into 1 GB"):
        load(path)
    assert len(parsed) == 1


def test_a_table_of_too_many_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(base, "MOST_ROWS", 100)
    path = tmp_path / "all_reduce.csv"
    path.write_text("size,time (us)\n" + "1024,3.5\n" * 101)
    assert main(["convert", str(path)]) == 3
    assert got(error_tail("more than 100 rows", "less. Split it.")) in capsys.readouterr().err


def test_a_table_of_300_000_rows_is_not_refused():
    """A sweep of every size, in both placements, at 2 KB of memory a row."""
    imported = base.Imported()
    imported.take(300_000)
    assert imported.rows == 300_000


def test_a_line_of_text_that_is_too_long_is_said(tmp_path, capsys):
    path = tmp_path / "all_reduce.csv"
    path.write_text("size,time (us)\n1024,3.5\n" + "9" * 20_000 + ",3\n")
    assert main(["convert", str(path)]) == 0
    assert (
        "a line longer than 16384 characters: cut there; the first is 3" in capsys.readouterr().out
    )


ISSUED = {
    **{"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": 1, "dur": 9},
    "args": {"Input type": ["TensorList"], "Input Dims": [[[250]]], "Concrete Inputs": [""]},
}
RAN = {
    **{"ph": "X", "cat": "cpu_op", "name": "gloo:all_reduce", "ts": 2, "dur": 9},
    "args": {"Input type": ["float"], "Input Dims": [[250]]},
}


def test_what_a_trace_has_beside_communication_takes_little(tmp_path, monkeypatch):
    """1000 frames of Python, and 300 operators with 2 KB of shapes, in the room of 400 of them."""
    monkeypatch.setattr(bounds, "_HELD_BYTES", 120_000)
    monkeypatch.setattr(bounds, "_HELD_RATIO", 0)
    frame = {"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 9}
    shapes = {"Input Dims": [[1000, 1000]] * 200}
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9, "args": shapes}
    events = [frame] * 1000 + [operator] * 300 + [ISSUED, RAN]
    path = tmp_path / "rank0.json"
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    assert [call.bytes_in for call in read_traffic([path]).calls[0]] == [1000]


def test_how_many_events_a_packed_trace_may_have(tmp_path):
    """1.2 million events in 20 MB are real; as many in 400 KB are a bomb."""
    path = tmp_path / "rank0.json.gz"
    for size, refused in ((20_000_000, False), (400_000, True)):
        with open(path, "wb") as file:
            file.truncate(size)
        events, count = bounds.EventBudget(path), 0
        try:
            for count in range(1_200_000):
                events.add(count % 2, 1 - count % 2)
        except UnreadableError as error:
            assert "gunzip it, and name the plain file" in str(error)
        assert (count < 1_199_999) == refused
