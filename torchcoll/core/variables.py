"""Which environment variables a result file keeps, of our own runs and of imported ones."""

from __future__ import annotations

from collections.abc import Mapping

# Variables that change how a collective runs. Everything else stays private.
_PREFIXES = (
    *("NCCL_", "RCCL_", "CCL_", "FI_", "I_MPI_", "MPIR_", "MPICH_", "UCX_", "GLOO_", "TP_"),
    *("ZE_", "NEO_", "SYCL_", "ONEAPI_", "HSA_", "HIP_", "ROCR_", "TORCH_", "TORCHELASTIC_"),
    *("OMP_", "KMP_", "MKL_", "GOMP_", "PBS_", "PALS_", "PMI_", "PMIX_", "SLURM_", "OMPI_"),
    *("CUDA_CACHE_", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "LD_PRELOAD"),
    *("MASTER_ADDR", "MASTER_PORT", "LSB_", "HYDRA_", "HYDI_"),
)
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "JWT", "COOKIE", "CRED", "AUTH")


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the allow-list, sorted by name; values of names that look secret are masked."""
    return {
        name: "***" if any(word in name.upper() for word in _SECRET) else value
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES)
    }
