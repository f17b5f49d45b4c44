"""Which variables of a file's environment dump are kept; everything else stays private."""

from __future__ import annotations

from collections.abc import Iterable

# Those of bench/environment.py, which this room may not import (a test holds them together).
PREFIXES = (
    *("NCCL_", "RCCL_", "CCL_", "FI_", "I_MPI_", "MPIR_", "MPICH_", "UCX_", "GLOO_", "TP_"),
    *("ZE_", "NEO_", "SYCL_", "ONEAPI_", "HSA_", "HIP_", "ROCR_", "TORCH_", "TORCHELASTIC_"),
    *("OMP_", "KMP_", "MKL_", "GOMP_", "PBS_", "PALS_", "PMI_", "PMIX_", "SLURM_", "OMPI_"),
    *("CUDA_CACHE_", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "LD_PRELOAD"),
    *("MASTER_ADDR", "MASTER_PORT", "LSB_", "HYDRA_", "HYDI_"),
)
SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "JWT", "COOKIE", "CRED", "AUTH")


def allowed(pairs: Iterable[str]) -> dict[str, str]:
    """The variables that are kept, of ``NAME=VALUE`` texts; values of secret names are masked."""
    found = {}
    for name, equals, value in sorted(pair.partition("=") for pair in pairs):
        if equals and name.startswith(PREFIXES):
            found[name] = "***" if any(word in name.upper() for word in SECRET) else value
    return found
