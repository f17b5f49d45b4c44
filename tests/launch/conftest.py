"""An environment without schedulers, launchers and interfaces."""

from __future__ import annotations

import sys

import pytest

NAMES = ("PBS_NODEFILE", "PBS_O_WORKDIR", "LSB_HOSTS", "LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE")
NAMES += ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "I_MPI_HYDRA_UUID", "HYDI_CONTROL_FD")


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHON", sys.executable)
