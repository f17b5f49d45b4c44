"""Buffers that are not in a cache, and buffers that are not aligned, on real ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from rank_faults import around_calls
from ranks import ticking

from torchcoll.bench import buffers
from torchcoll.bench.buffers import flush_bytes
from torchcoll.bench.verify import allocate
from torchcoll.core.case import Case, size_case
from torchcoll.core.spec import Spec
from torchcoll.machine.devices import Cpu

MIB = 1 << 20


def core_with(folder, *index_size_map):
    """/sys/devices/system/cpu of a machine whose cores all have these caches."""
    for core in range(64):
        for number, (size, cores) in enumerate(index_size_map):
            index = folder / f"cpu{core}/cache/index{number}"
            index.mkdir(parents=True)
            (index / "size").write_text(f"{size}\n")
            (index / "shared_cpu_map").write_text(f"{cores}\n")
    return folder


@pytest.mark.parametrize(
    ("ranks_here", "size_bytes"),
    [
        (1, 64 * MIB),  # twice 32 MiB
        (4, 64 * MIB),  # one rank on each cache
        (16, 16 * MIB),  # four ranks on each cache
        (64, 8 * MIB),  # not less than the caches that each core has for itself
    ],
)
def test_ranks_that_share_a_cache_overwrite_it_together(
    tmp_path, monkeypatch, ranks_here, size_bytes
):
    """64 cores, 16 of which share 32 MiB."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    cores = core_with(tmp_path, ("48K", "00000001"), ("32768K", "00000000,0000ffff"))
    assert flush_bytes(torch, Cpu(), ranks_here, cores) == size_bytes


def test_a_machine_that_does_not_tell_its_caches(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert flush_bytes(torch, Cpu(), 2, tmp_path) == 256 * MIB


@pytest.mark.parametrize(
    ("hip", "properties", "size_bytes"),
    [
        (None, {"L2_cache_size": 50 * MIB}, 100 * MIB),
        (None, {"last_level_cache_size": 208 * MIB}, 416 * MIB),
        (None, {}, 256 * MIB),
        # MI300X: 4 MiB of L2 for each die, and 256 MiB of Infinity Cache, which torch does not know
        # (AMD's data sheet of the MI300X).
        ("7.0.51831", {"L2_cache_size": 4 * MIB}, 512 * MIB),
        ("9.0.0", {"L2_cache_size": 300 * MIB}, 600 * MIB),
    ],
)
def test_the_cache_of_an_accelerator(hip, properties, size_bytes):
    module = SimpleNamespace(get_device_properties=lambda index: SimpleNamespace(**properties))
    fake = SimpleNamespace(get_device_module=lambda kind: module, version=SimpleNamespace(hip=hip))
    device = SimpleNamespace(kind="cuda", index=0)
    assert flush_bytes(fake, device, 8) == size_bytes


def test_the_caches_are_overwritten_before_every_call(launch):
    """Cold, warm-up, ramp-up, steady and checked ones. The file says by how much."""

    def setup(rank: int) -> None:
        ticking()
        original, flushed = buffers.flush_call, [0]
        buffers.flush_bytes = lambda *_: MIB

        def counted(torch, device, size_bytes):
            call = original(torch, device, size_bytes)

            def flush():
                flushed[0] += 1
                call()

            return flush

        def called(number, call):
            assert flushed[0], f"call {number}"
            flushed[0] = 0
            call()

        buffers.flush_call = counted
        around_calls("all_reduce", called)

    options = "--sizes 1K,8K --buffer-reuse flush -w 2 -n 4"
    run = launch("all_reduce", options, setup=setup).ended(0).run
    assert [result.status for result in run.results] == ["ok", "ok"]
    for result in run.results:
        assert (result.case.mode, result.case.buffer_reuse) == ("synchronized", "flush")
    assert [member["flush_bytes"] for member in run.members] == [MIB, MIB]


def test_on_accelerators_flushed_calls_are_synchronized():
    for reuse, mode in (("same", "back-to-back"), ("flush", "synchronized")):
        (case,) = Spec(device="cuda", backend="nccl", sizes="8", buffer_reuse=reuse).cases(2)
        assert case.mode == mode


@pytest.mark.parametrize("in_place", [True, False])
def test_both_buffers_are_misaligned(in_place):
    """torch aligns memory of the CPU to 64 bytes (c10/core/alignment.h)."""
    case = Case(
        "all_gather",
        1024,
        "float32",
        None,
        None,
        in_place,
        "synchronized",
        "gloo",
        "cpu",
        misalign_bytes=12,
    )
    sizing = size_case(case, 4, span_bytes=4096)
    buffers = allocate(torch, sizing, 0, "cpu")
    for place in (0, 2):
        buffers.move(place)
        assert [side.data_ptr() % 64 for side in (buffers.send, buffers.recv)] == [12, 12]
    # 4 slots of 1 KiB each, or 4 for each side, and the bytes before them.
    assert sizing.buffer_bytes(0) == (4096 + 12 if in_place else 2 * (4096 + 12))


def test_every_collective_with_misaligned_buffers(launch):
    """The values are verified; a barrier has no buffer."""
    options = "--collectives all --in-place both --sizes 600 -d float64 --cold 1 -n 2"
    run = launch(None, f"{options} --misalign 8", 2).ended(0).run
    for result in run.results:
        has_data = result.case.collective != "barrier"
        expected = (8, True) if has_data else (0, False)
        checked = bool(result.verification and result.verification.checked)
        if result.status != "unsupported":  # all_gather_v, of gloo
            assert (result.status, result.case.misalign_bytes, checked) == ("ok", *expected)
    assert {result.case.in_place for result in run.results} == {True, False}
