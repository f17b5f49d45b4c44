"""The examples, each on two gloo ranks."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from ranks import Job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def on_two_ranks(tmp_path, monkeypatch):
    """What each rank of an example printed. It is imported here, once for both."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    importlib.import_module("torch._dynamo")  # DDP imports it: for seconds, on each rank

    def run(name):
        main = importlib.import_module(name).main
        ended = Job(tmp_path, main, 2, setup=lambda rank: sys.argv.append(str(tmp_path))).wait()
        assert [one.code for one in ended.values()] == [0, 0], ended[0].stderr
        return [one.stdout for one in ended.values()]

    return run


def test_ddp_profile(on_two_ranks, tmp_path):
    first, second = on_two_ranks("ddp_profile")
    assert second == ""
    # 256 x 128 embedding, 32 x 128 positions, 4 layers of 198272, the head with its bias.
    size_bytes = 4 * (256 * 128 + 32 * 128 + 4 * 198272 + 128 * 256 + 256)
    assert size_bytes == 3371 << 10
    assert "1 all_reduce 3371K float32 in place of" in first  # the first step
    assert "3.29 MiB put in by a rank" in first
    assert "gradients: 3.29 MiB of float32: 4 all_reduce a step, taken for one" in first
    assert first.count("\nrank  calls  last  share") == 1  # the late ranks of cost
    assert "\nbucket_cap_mb  buckets " in first and "\nproposal: " in first
    assert "\nleast ratio: bucket_cap_mb " in first
    assert sorted(path.name for path in tmp_path.glob("traffic-*")) == [
        "traffic-rank0.jsonl",
        "traffic-rank1.jsonl",
    ]


# Not in torch 2.6, whose FSDP2 fails without it on the CPU.
FSDP_ON_CPU = hasattr(torch.cpu.Stream(), "record_event")


@pytest.mark.skipif(not FSDP_ON_CPU, reason="this FSDP2 does not run on cpu")
def test_fsdp_profile(on_two_ranks):
    first, second = on_two_ranks("fsdp_profile")
    assert second == ""
    # A layer has 198272 parameters, half of them on each rank.
    assert re.search(r"\nall_gather +387.25K +774.5K +8 +3098K\n", first)
    assert first.endswith("the plan is what was sent\n")
