"""Some of the inputs of tests/fuzz.py, and those that were once uncaught."""

import fuzz
import pytest


@pytest.mark.parametrize("name", fuzz.READERS)
def test_nothing_but_our_own_errors(tmp_path, name):
    outcome = fuzz.run(name, range(20), tmp_path)
    assert outcome.uncaught == {}
    assert outcome.counts["read"] and sum(outcome.counts.values()) == 20


def test_many_shapes_of_public_files(tmp_path):
    outcome = fuzz.run("threads", range(20, 150), tmp_path)
    assert outcome.uncaught == {}


@pytest.mark.parametrize("name", fuzz.READERS)
def test_what_was_not_changed_is_read(tmp_path, name):
    reader = fuzz.READERS[name]
    for seed in reader.seeds:
        (tmp_path / reader.name).write_bytes(seed if isinstance(seed, bytes) else seed.encode())
        reader.read(tmp_path / reader.name)  # raises what is wrong


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("DeepSpeed", "16x4", f"{HUGE}x4"),
        ("DeepSpeed", "on 8 devices", f"on {HUGE} devices"),
        ("DeepSpeed", "  2                   12.34", f"  {HUGE}  12.34"),
        ("nccl-tests text", "Rank  0 Group", f"Rank  {HUGE} Group"),
        ("nccl-tests text", "Pid   4711", f"Pid   {HUGE}"),
        ("nccl-tests text", "     sum      -1", "     sum      ²"),
        ("nccl-tests JSON", '"    -1"', '"²"'),
        ("nccl-tests JSON", '"    -1"', f'"{HUGE}"'),
        ("nccl-tests JSON", '"nthreads": 1', '"nthreads": 90000000'),
        ("nccl-tests JSON", '"errors": [', '"errors": 7, "more": ['),
        ("Kineto", '"External id": 5', '"External id": [5]'),
        ("Kineto", " 250\n", " 1e308\n"),
        ("Flight Recorder", "3,\n     4", "1e308,\n     1e308"),
        ("Flight Recorder", "send 0->1", f"send 0->{HUGE}"),
        ("traffic", '"start_ns": 5000', '"start_ns": {}'),
        ("manifest", '"seconds": 3.25, ', ""),
        ("manifest", '"seconds": 3.25', '"seconds": 1e308'),
        ("manifest", '"seconds": 3.25', '"seconds": true'),
        ("manifest", '"arguments": []', '"arguments": 1.5'),
    ],
)  # fmt: skip
def test_what_was_uncaught(tmp_path, name, old, new):
    reader = fuzz.READERS[name]
    seed = next(seed for seed in reader.seeds if isinstance(seed, str) and old in seed)
    (tmp_path / reader.name).write_text(seed.replace(old, new, 1))
    try:
        reader.read(tmp_path / reader.name)
    except fuzz.TorchcollError as error:
        assert error.line().isprintable()


def test_a_number_of_ranks_is_no_memory(tmp_path):
    """A set of as many ranks as a record claims took 15 GB."""
    reader = fuzz.READERS["NCCL Inspector traffic"]
    seed = next(seed for seed in reader.seeds if '"n_ranks": 2' in seed)
    path = tmp_path / reader.name
    path.write_text(seed.replace('"n_ranks": 2', f'"n_ranks": {10**15}', 1))
    traffic = fuzz.read_traffic([path])
    assert traffic.ranks < 10**6 and any("were not read" in note for note in traffic.notes)
