"""The example of FSDP2 on two gloo ranks. That of DDP is a command of docs/gradients.md: what it
prints is looked at where the commands run, in test_readme.py.
"""

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
        assert [process.code for process in ended.values()] == [0, 0], ended[0].stderr
        return [process.stdout for process in ended.values()]

    return run


# Not in torch 2.6, whose FSDP2 fails without it on the CPU.
FSDP_ON_CPU = hasattr(torch.cpu.Stream(), "record_event")


@pytest.mark.skipif(not FSDP_ON_CPU, reason="this FSDP2 does not run on cpu")
def test_fsdp_profile(on_two_ranks):
    first, second = on_two_ranks("fsdp_profile")
    assert second == ""
    # A layer has 198272 parameters, half of them on each rank.
    assert re.search(r"\nall_gather +387.25K +774.5K +8 +3098K ", first)
    assert first.endswith("the plan is what was sent\n")
