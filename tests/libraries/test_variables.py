"""Names of variables: known ones, misspelt ones, and those of other software."""

import re
from pathlib import Path

import pytest

from torchcoll.libraries.known_variables import unknown_variables
from torchcoll.libraries.nccl import variables as nccl
from torchcoll.libraries.oneccl import variables as oneccl


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NCCL_DEBG", "NCCL_DEBUG"),
        ("NCCL_DEBUG_SUBSYSTEM", "NCCL_DEBUG_SUBSYS"),
        ("NCCL_SOCKET_IFACE", "NCCL_SOCKET_IFNAME"),
        ("NCCL_BUFFER_SIZE", "NCCL_BUFFSIZE"),
        ("NCCL_ALGORITHM", "NCCL_ALGO"),
        ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("NCCL_ENABLE_MONITORING", "TORCH_NCCL_ENABLE_MONITORING"),
        ("TORCH_NCCL_DEBUG", "NCCL_DEBUG"),
        ("TORCH_NCCL_BLOCKNG_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
        ("CCL_ALL_REDUCE", "CCL_ALLREDUCE"),
        ("CCL_ALLREDUCE_ALGO", "CCL_ALLREDUCE"),
        ("CCL_REDUCE_SCATER", "CCL_REDUCE_SCATTER"),
        ("CCL_WORKERS_OFFLOAD", "CCL_WORKER_OFFLOAD"),
        ("NCCL_FOO", None),
        ("CCL_FOO", None),
    ],
)
def test_misspelt_names(name, near):
    assert unknown_variables({name: "1"}) == [(name, near)]


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "NCCL_SOCKET_IFNAME",
        "NCCL_HOSTID",
        "NCCL_MULTI_RANK_GPU_ENABLE",
        "NCCL_TREE_THRESHOLD",
        "NCCL_PAT_ENABLE",
        "NCCL_BLOCKING_WAIT",
        "NCCL_RINGS",
        "NCCL_VERSION",  # NVIDIA's images set it
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_SOMETHING_NEWER",
        "CCL_ROOT",
        "CCL_WORKER_OFFLOAD",
        "CCL_BARRIER",
        "CCL_ZE_IPC_EXCHANGE",
        "CCL_SAME_STREAM",
        # Names of plug-ins and other programs are not judged.
        "NCCL_TESTS_SPLIT",
        "NCCL_FASTRAK_IFNAME",
        "NCCL_TUNER_CONFIG_FILE",
        "RCCL_ANYTHING",
        "OFI_NCCL_PROTOCOL",
        "MY_NCCL_DEBG",
        "PATH",
        "CCLD",
        "NCCL",
    ],
)
def test_no_false_alarm(name):
    assert unknown_variables({name: "1"}) == []


def test_every_listed_name_is_one():
    for name in nccl.NAMES | nccl.TORCH_NAMES | oneccl.NAMES:
        assert re.fullmatch(r"(TORCH_)?N?CCL_[A-Z0-9_]+", name), name
    assert len(nccl.NAMES) > 280
    assert len(oneccl.NAMES) > 300
    assert set(oneccl.ALGORITHMS) - oneccl.NAMES == {
        # Nothing goes out of the host in these.
        "CCL_BARRIER_SCALEOUT",
        "CCL_BCAST_SCALEOUT",
        "CCL_BROADCAST_SCALEOUT",
        "CCL_RECV_SCALEOUT",
        "CCL_SEND_SCALEOUT",
    }


def test_torch_knows_no_other_name():
    """The headers of the installed torch name the variables that its NCCL backend reads."""
    torch = pytest.importorskip("torch")
    headers = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    texts = (path.read_text(errors="replace") for path in headers.glob("*NCCL*.hpp"))
    names = {n for text in texts for n in re.findall(r'"((?:TORCH_)?NCCL_[A-Z0-9_]+)"', text)}
    assert names - nccl.TORCH_NAMES - nccl.NAMES == set()


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("NCCL_ALGO", "2.21.5", True),
        ("NCCL_ALGO", "2.29.7", True),
        ("NCCL_ALGO", "2.10.3", None),
        ("NCCL_ALGO", "2.40.1", None),
        ("NCCL_GIN_ENABLE", "2.27.5", False),
        ("NCCL_GIN_ENABLE", "2.28.9", None),  # between two versions that were read
        ("NCCL_GIN_ENABLE", "2.30.7", True),
        ("NCCL_PAT_ENABLE", "2.21.5", False),
        ("NCCL_PAT_ENABLE", "2.27.5", True),
        ("NCCL_PAT_ENABLE", "2.32.3", False),
        ("NCCL_PAT_ENABLE", "2.32.3+cuda13.0", False),
        ("NCCL_TREE_THRESHOLD", "2.27.5", False),
        ("NCCL_VERSION", "2.27.5", None),
        ("NCCL_FOO", "2.27.5", None),
    ],
)
def test_which_version_reads_a_name(name, version, expected):
    assert nccl.reads(name, version) is expected
