"""An environment without schedulers, launchers and interfaces."""

from __future__ import annotations

import sys

import pytest
from launching import need, need_root, run
from slurm_cluster import Cluster

NAMES = ("PBS_NODEFILE", "PBS_O_WORKDIR", "LSB_HOSTS", "LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE")
NAMES += ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "I_MPI_HYDRA_UUID", "HYDI_CONTROL_FD")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHON", sys.executable)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    need_root()
    need("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "unshare", "hostname")
    if run(["unshare", "--mount", "--uts", "hostname", "n1"]).returncode:
        pytest.skip("this machine gives no namespaces")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
