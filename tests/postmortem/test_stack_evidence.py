"""Stack dumps of py-spy (its README and src/stack_trace.rs tell the formats) and of faulthandler."""

# ruff: noqa: E501
# Lines of dumps are as long as they are.
from __future__ import annotations

import faulthandler
import tempfile
from pathlib import Path

import pytest

from torchcoll.parts.postmortem import stack_evidence
from torchcoll.parts.postmortem.evidence import JobEvidence
from torchcoll.parts.postmortem.stack_evidence import Frame, describe

_TORCH = "/venv/lib/python3.11/site-packages/torch"
_DUMP = """\
Process 4711: python3 -u train.py --rank 3
Python v3.11.9 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    {frames}
    <module> (train.py:120)
Thread 4800 (idle): "Thread-1 (_pin_memory_loop)"
    wait (threading.py:331)
    run (threading.py:982)
"""
_IN_COLLECTIVE = (
    f"all_reduce ({_TORCH}/distributed/distributed_c10d.py:2810)\n"
    f"    wrapper ({_TORCH}/distributed/c10d_logger.py:83)\n"
    "    step (train.py:88)"
)


def _read(folder: Path, text: str, name: str = "stacks.txt") -> JobEvidence:
    path = folder / name
    path.write_text(text)
    assert stack_evidence.recognizes(path, text.encode()[: 1 << 16])
    (evidence,) = stack_evidence.read_evidence(path, name)
    return evidence


def test_a_rank_in_a_collective(tmp_path: Path) -> None:
    evidence = _read(tmp_path, _DUMP.format(frames=_IN_COLLECTIVE))
    (event,) = evidence.events
    assert (event.kind, event.rank, event.pid, event.collective) == ("stack", 3, 4711, "all_reduce")
    assert "train.py:88 step" in event.text
    assert event.place.line == 4
    assert evidence.pids == {3: 4711}


def test_a_rank_in_user_code(tmp_path: Path) -> None:
    evidence = _read(tmp_path, _DUMP.format(frames="augment (data.py:12)\n    load (data.py:40)"))
    (event,) = evidence.events
    assert event.collective is None
    assert event.text == "in user code: data.py:12 augment"


@pytest.mark.parametrize("library", ["gzip.py", "/usr/lib/python3.11/gzip.py", "json/decoder.py"])
def test_a_rank_that_reads_a_file_stands_where_its_code_asks_for_it(
    library: str, tmp_path: Path
) -> None:
    frames = f"read ({library}:507)\n    open_part (src/parts.py:31)\n    run (src/parts.py:60)"
    (event,) = _read(tmp_path, _DUMP.format(frames=frames)).events
    shown = "/".join(library.split("/")[-2:])
    assert event.text == f"in user code: src/parts.py:31 open_part, in {shown}:507 read"


def test_a_rank_that_waits_for_a_queue_or_runs_a_file_of_its_own(tmp_path: Path) -> None:
    frames = "wait (threading.py:327)\n    fetch (feed.py:31)"
    (event,) = _read(tmp_path, _DUMP.format(frames=frames)).events
    assert (event.text, event.collective) == (
        "waits: threading.py:327 wait, called from feed.py:31 fetch",
        "wait",
    )
    (event,) = _read(tmp_path, _DUMP.format(frames="step (code/train.py:9)")).events
    assert event.text == "in user code: code/train.py:9 step"


def test_a_rank_in_the_data_loader(tmp_path: Path) -> None:
    frames = (
        "select (selectors.py:415)\n    wait (multiprocessing/connection.py:947)\n"
        f"    _try_get_data ({_TORCH}/utils/data/dataloader.py:1131)\n"
        f"    __next__ ({_TORCH}/utils/data/dataloader.py:630)"
    )
    text, collective = describe(
        [
            Frame("selectors.py", 415, "select"),
            Frame(f"{_TORCH}/utils/data/dataloader.py", 1131, "_try_get_data"),
            Frame("train.py", 88, "<module>"),
        ]
    )
    assert (text.partition(":")[0], collective) == ("in the data loader", None)
    (event,) = _read(tmp_path, _DUMP.format(frames=frames)).events
    assert event.collective is None


def test_a_wait_for_the_device_is_no_user_code() -> None:
    frames = [
        Frame(f"{_TORCH}/cuda/__init__.py", 985, "synchronize"),
        Frame("train.py", 88, "<module>"),
    ]
    assert describe(frames)[1] == "wait"


def test_torchcoll_s_own_capture_is_no_user_code() -> None:
    frames = [
        Frame("torchcoll/parts/training/waits.py", 45, "Waits.start.<locals>.wait"),
        Frame("torchcoll/parts/training/capture.py", 459, "_Recording._time_call"),
        Frame("torch/distributed/distributed_c10d.py", 4387, "all_gather_single"),
        Frame("train.py", 307, "Training.forward_backward"),
    ]
    assert describe(frames)[1] == "all_gather"


def test_what_faulthandler_writes(tmp_path: Path) -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        text = file.read()
    evidence = _read(tmp_path, text, "stack-rank5.txt")
    (event,) = evidence.events
    assert event.rank == 5
    assert "test_what_faulthandler_writes" in event.text


def test_logs_are_no_stack_dumps(tmp_path: Path) -> None:
    assert not stack_evidence.recognizes(tmp_path / "a.log", b"Process 12 started\nstep 1\n")
