"""Which environment variables a result file keeps, of our own runs and of imported ones; and what
of them, of command lines and of labels is masked, because it is or may be a secret.

The name of a variable is judged by its words, so that what changes how a collective runs stays
readable: I_MPI_PIN_DOMAIN, NCCL_IB_PKEY (a partition), ..._PINNED, ..._CREDITS. What a person says
freely (a comment, the command line of a job) is masked whole: nobody knows what is in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from torchcoll.core.backends import PREFIXES as BACKEND_PREFIXES
from torchcoll.core.secrets import MASK, is_secret_option, is_secret_setting, masked, names_secret

# Variables that change how a collective runs. Everything else stays private.
_PREFIXES = (
    *(*BACKEND_PREFIXES, "MPIR_", "MPICH_"),
    *("ZE_", "NEO_", "SYCL_", "ONEAPI_", "HSA_", "HIP_", "ROCR_", "TORCH_", "TORCHELASTIC_"),
    *("OMP_", "KMP_", "MKL_", "GOMP_", "PBS_", "PALS_", "PMI_", "PMIX_", "SLURM_", "OMPI_"),
    *("CUDA_CACHE_", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "LD_PRELOAD"),
    *("MASTER_ADDR", "MASTER_PORT", "LSB_", "HYDRA_", "HYDI_"),
)
# Of variables more is a secret than of what people name themselves (core/secrets.py).
_SECRET = re.compile(r"KEY|PASS|AUTH|SESSION")
_WORDS = {"PIN", "SIG", "PAT", "SALT", "CERT"}
_FREE_TEXT = {"COMMENT", "CMD", "COMMAND", "ARGV"}
# Pinning of ranks; partitions and memory keys of RDMA, which are numbers of a fabric; NCCL's
# algorithm PAT; by what oneCCL finds a schedule again.
_NO_SECRETS = re.compile(
    r"(?:^I_MPI_PIN|(?<=IB_)PKEY|(?<=_)[RLM]KEY|^NCCL_PAT(?=_ENABLE|_NDIMS)|^CCL_CACHE_KEY)"
    r"(?![A-Z])"
)


def is_secret(name: str) -> bool:
    """Whether a variable of that name may hold a secret, or whatever a person wrote."""
    upper = _NO_SECRETS.sub("", name.upper())
    words = set(re.split(r"[^A-Z]+", upper))
    return (
        names_secret(upper)
        or bool(_SECRET.search(upper))
        or not words.isdisjoint(_WORDS | _FREE_TEXT)
    )


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the allow-list, sorted by name; what is secret masked."""
    return {
        name: masked_value(name, value)
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES)
    }


def masked_value(name: str, value: str) -> str:
    """The value of an environment variable as it may be kept and shown."""
    return MASK if value and is_secret(name) else masked(value)


def masked_variables(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """None, a variable that is taken away, stays."""
    return {k: v if v is None else masked_value(k, v) for k, v in variables.items()}


def masked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as a file may keep them."""
    return {k: MASK if is_secret_setting(k, v) else masked(v) for k, v in labels.items()}


def masked_words(words: Sequence[str]) -> list[str]:
    """A command line as a file may keep it: ``--api-token x``, ``NAME_TOKEN=x``, ``user:pass@``."""
    shown = [masked(word) for word in words]
    for index, (option, value) in enumerate(pairwise(words), 1):
        if option.startswith("-") and "=" not in option and is_secret_option(option, value):
            shown[index] = MASK
    return shown
