"""Who is about to do something else. Real ranks that disagree are in test_bench_faults.py."""

from __future__ import annotations

import socket

import pytest
import torch.distributed as dist
from error_form import error_text

import torchcoll
from torchcoll.bench.plan import odd_ranks

HOST = socket.gethostname()


@pytest.mark.parametrize(
    ("words", "odd"),
    [("aab", [2]), ("baa", [0]), ("abacad", [1, 3, 5]), ("aa", []), ("ab", [1]), ("abb", [0])],
)
def test_the_odd_ranks(words, odd):
    assert odd_ranks(words) == odd


def test_a_program_whose_specs_differ_is_told_in_what(tmp_path, jobs):
    sizes = [",".join(map(str, range(8, 400, 8))), "8", "8"]
    got = "sizes [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 12..."

    def target() -> None:
        dist.init_process_group("gloo")
        try:
            torchcoll.run(torchcoll.Spec(sizes=sizes[dist.get_rank()], timeout_s=60))
        finally:
            dist.destroy_process_group()

    job = jobs(tmp_path, target, 3)
    assert job.codes() == [1, 1, 1]
    for rank in range(3):
        last = job.text(rank).splitlines()[-1]
        assert error_text(f"arguments of rank 0 ({HOST})", got, "as on rank 1 (") in last
        assert last.endswith(": sizes [8]. Start all ranks with the same arguments.")
