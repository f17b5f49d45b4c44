"""Several ranks on one GPU: what is set for them, and what is no rehearsal. The GPU's own tests
are in tests/test_cuda.py.
"""

import os

import pytest
from error_form import error_tail, error_text

from torchcoll.bench.rehearsal import VARIABLES, begin, rehearse
from torchcoll.core.errors import UnavailableError, UsageError


def test_each_rank_is_a_host_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "environ", {"NCCL_SOCKET_IFNAME": "eth0"})
    over = rehearse("nccl", "cuda", 1)
    first = dict(os.environ)
    assert first == VARIABLES | {"NCCL_HOSTID": "torchcoll-rehearsal-1"}
    assert first["NCCL_SOCKET_IFNAME"] == "lo"
    assert (first["NCCL_P2P_DISABLE"], first["NCCL_SHM_DISABLE"]) == ("1", "1")
    over()
    assert os.environ == {"NCCL_SOCKET_IFNAME": "eth0"}
    rehearse("nccl", "cuda", 2)
    assert os.environ["NCCL_HOSTID"] != first["NCCL_HOSTID"]


@pytest.mark.parametrize(("backend", "kind"), [("gloo", "cpu"), ("gloo", "cuda"), ("xccl", "xpu")])
def test_only_nccl_rehearses(backend, kind):
    with pytest.raises(UnavailableError) as caught:
        rehearse(backend, kind, 0)
    assert str(caught.value) == error_text("rehearse", f"{backend} on {kind}", "nccl on cuda")


@pytest.mark.parametrize(
    ("in_group", "hosts", "line"),
    [
        (True, "a", error_tail("inside a process group", "a run of its own")),
        (False, "abb", error_tail("ranks on 2 hosts", "one host, one GPU")),
    ],
)
def test_what_is_no_rehearsal(in_group, hosts, line):
    with pytest.raises(UsageError) as caught:
        begin(in_group, hosts, "nccl", "cuda", rank=0)
    assert str(caught.value) == error_text("rehearse", line)
