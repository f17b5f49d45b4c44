"""What a measurement depends on: variables, hosts, cores and free memory."""

from __future__ import annotations

import sys

import pytest

from torchcoll.machine import environment
from torchcoll.machine.environment import differences, free_bytes, variables

KEPT = {
    **{"NCCL_ALGO": "Ring", "RCCL_MSCCL_ENABLE": "1", "CCL_WORKER_COUNT": "4"},
    **{"FI_PROVIDER": "cxi", "I_MPI_FABRICS": "ofi", "MPIR_CVAR_CH4": "1", "UCX_TLS": "rc"},
    **{"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "ZE_AFFINITY_MASK": "0"},
    **{"SYCL_CACHE": "1", "NEO_CACHE_DIR": "/tmp", "HSA_NO_SCRATCH_RECLAIM": "1"},
    **{"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCHELASTIC_RESTART_COUNT": "0"},
    **{"OMP_NUM_THREADS": "1", "KMP_AFFINITY": "compact", "PBS_NODENUM": "0"},
    **{"PALS_NODEID": "0", "PMI_SIZE": "2", "SLURM_NNODES": "2", "OMPI_MCA_btl": "tcp"},
    **{"CUDA_VISIBLE_DEVICES": "0", "CUDA_CACHE_PATH": "/tmp", "CUDA_MODULE_LOADING": "EAGER"},
}


def test_only_the_allow_list_is_recorded():
    private = {
        **{"HOME": "/home/me", "USER": "me", "AWS_SESSION": "x", "PATH": "/bin", "MY_NCCL_": "1"},
        **{"SSH_AUTH_SOCK": "/tmp/x", "CUDA_HOME": "/usr/local/cuda", "PYTHONPATH": "/x"},
        **{"TORCHELASTIC_ERROR_FILE": "/tmp/e.json", "TORCHELASTIC_RUN_ID": "none"},
    }
    assert variables({**private, **KEPT}) == KEPT
    assert list(variables(KEPT)) == sorted(KEPT)


@pytest.mark.parametrize(
    "name",
    ["NCCL_API_KEY", "SLURM_JWT_TOKEN", "I_MPI_SECRET_X", "UCX_PASSWORD", "PMI_security_key"],
)
def test_values_of_secret_names_are_masked(name):
    assert variables({name: "hunter2"}) == {name: "***"}


def test_differences():
    reference = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1", "SLURM_PROCID": "0", "UCX_TLS": "rc"}
    rank_variables = {
        "NCCL_ALGO": "Tree",
        "OMP_NUM_THREADS": "1",
        "SLURM_PROCID": "3",
        "FI_PROVIDER": "x",
    }
    assert differences(rank_variables, reference) == {
        "FI_PROVIDER": "x",
        "NCCL_ALGO": "Tree",
        "UCX_TLS": None,
    }
    assert differences(reference, reference) == {}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Write /proc/meminfo, /proc/self/cgroup and cgroup files of an imaginary host."""
    monkeypatch.setattr(environment, "_PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(environment, "_CGROUPS", str(tmp_path / "cgroup"))

    def write(available_kib: int | None, cgroup: str = "", **files: str) -> None:
        texts = {"proc/self/cgroup": cgroup}
        if available_kib is not None:
            texts["proc/meminfo"] = (
                f"MemTotal:       16000000 kB\nMemFree:         1000000 kB\n"
                f"MemAvailable:   {available_kib} kB\nBuffers:           10 kB\n"
            )
        for name, text in (texts | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


def limits(folder: str, most: str, used: int, cache: int, v1: bool = False) -> dict[str, str]:
    limit, usage = ("limit_in_bytes", "usage_in_bytes") if v1 else ("max", "current")
    return {
        f"cgroup/{folder}memory.{limit}": f"{most}\n",
        f"cgroup/{folder}memory.{usage}": f"{used}\n",
        f"cgroup/{folder}memory.stat": (
            f"anon 77\n{'total_' if v1 else ''}inactive_file {cache}\nactive_file 5\n"
        ),
    }


def test_available_memory(host):
    host(8_000_000)
    assert free_bytes() == 8_000_000 * 1024


@pytest.mark.parametrize(
    ("available_kib", "cgroup", "files", "free"),
    [
        # Cached files count as used in a cgroup, but can be freed: 1000 - 800 + 500.
        (8_000_000, "0::/job/step\n", limits("job/step/", "1000", 800, 500), 700),
        (1, "0::/job\n", limits("job/", "1000000", 800, 0), 1024),  # more limit than memory
        # In a container the path is the host's, which is not mounted; the root has the limit.
        (8_000_000, "0::/kubepods/pod1/abc\n", limits("", "3000", 1000, 0), 2000),
        (8_000_000, "0::/job\n", limits("job/", "1000", 1200, 0), 0),  # beyond the limit
    ],
)
def test_a_cgroup_limit(host, available_kib, cgroup, files, free):
    host(available_kib, cgroup, **files)
    assert free_bytes() == free


def test_a_limit_of_the_cgroup_above(host):
    """Slurm and systemd limit the cgroup of the job or the user; the step's own limit is `max`."""
    files = limits("job/step/", "max", 800, 0) | limits("job/", "5000", 1000, 0)
    host(8_000_000, "0::/job/step\n", **files)
    assert free_bytes() == 4000


def test_cgroups_of_version_1(host):
    cgroup = "12:cpu,cpuacct:/a\n7:memory:/slurm/job_1\n1:name=systemd:/x\n"
    files = limits("memory/slurm/job_1/", "2000", 500, 100, v1=True)
    files |= limits("memory/", str((1 << 63) - 4096), 12, 0, v1=True)
    host(8_000_000, cgroup, **files)
    assert free_bytes() == 1600


def test_unknown_is_no_limit(host):
    host(None)
    assert free_bytes() == sys.maxsize
