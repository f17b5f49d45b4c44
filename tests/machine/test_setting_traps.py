"""Settings of one host's ranks that make calls slow or hang."""

from __future__ import annotations

import pytest

from torchcoll.machine.setting_traps import Settings, setting_traps


def names(environ=None, launcher="torchrun", ranks=2, cores=2, ccl_on_cpu=True):
    settings = Settings(environ or {}, launcher, ranks, cores, ccl_on_cpu)
    return [finding.name for finding in setting_traps(settings)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["ccl_worker_offload"]),
        ({"environ": {"CCL_WORKER_OFFLOAD": "1"}}, ["ccl_worker_offload"]),
        ({"environ": {"CCL_WORKER_OFFLOAD": "0"}}, []),
        ({"cores": 4}, []),  # a core for each worker
        ({"cores": 3}, ["ccl_worker_offload"]),
        ({"ranks": 1, "cores": 1}, []),
        ({"ccl_on_cpu": False}, []),
        # oneCCL turns its workers off by itself under an MPI launcher.
        ({"launcher": "Intel MPI"}, []),
        ({"launcher": "srun"}, ["ccl_worker_offload"]),
        (
            {"cores": 8, "environ": {"CCL_ATL_TRANSPORT": "mpi"}},
            ["ccl_atl_transport"],
        ),
        ({"cores": 8, "launcher": "MPICH", "environ": {"CCL_ATL_TRANSPORT": "mpi"}}, []),
        ({"cores": 8, "environ": {"CCL_LOG_LEVEL": "debug"}}, ["slowed"]),
        ({"cores": 8, "environ": {"CCL_LOG_LEVEL": "warn"}}, []),
        (
            {"cores": 8, "environ": {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "TRACE"}},
            ["slowed", "slowed"],
        ),
    ],
)
def test_traps(changes, expected):
    assert names(**changes) == expected
