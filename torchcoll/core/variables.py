"""Which environment variables a result file keeps, of our own runs and of imported ones; and what
is masked of them, of command lines and of labels, because it is or may be a secret.

A name is judged by its words, so that what changes how a collective runs stays readable:
I_MPI_PIN_DOMAIN, NCCL_IB_PKEY (a partition), ..._PINNED, ..._CREDITS. What a person says freely (a
comment, the command line of a job) is masked whole: nobody knows what stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from torchcoll.core.backends import PREFIXES as BACKEND_PREFIXES

# Variables that change how a collective runs. Everything else stays private.
_PREFIXES = (
    *(*BACKEND_PREFIXES, "MPIR_", "MPICH_"),
    *("ZE_", "NEO_", "SYCL_", "ONEAPI_", "HSA_", "HIP_", "ROCR_", "TORCH_", "TORCHELASTIC_"),
    *("OMP_", "KMP_", "MKL_", "GOMP_", "PBS_", "PALS_", "PMI_", "PMIX_", "SLURM_", "OMPI_"),
    *("CUDA_CACHE_", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "LD_PRELOAD"),
    *("MASTER_ADDR", "MASTER_PORT", "LSB_", "HYDRA_", "HYDI_"),
)
MASK = "***"
# In any part of a name. What a label or an option may be called without being a secret comes below.
_PLAIN = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|JWT|COOKIE|CRED(?!IT(?!ENTIAL))|BEARER|SIGNATURE|API_?K|"
    r"ACCESS_?KEY|PRIVATE_?KEY|PWD"
)
_SECRET = re.compile(r"KEY|PASS|AUTH|SESSION")
_WORDS = {"PW", "PIN", "SIG"}
_FREE_TEXT = {"COMMENT", "CMD", "COMMAND", "ARGV"}
# Pinning of ranks; partitions and memory keys of RDMA, which are numbers of a fabric.
_NO_SECRETS = re.compile(r"(?:^I_MPI_PIN|(?<=IB_)PKEY|(?<=_)[RLM]KEY)(?![A-Z])")
_NUMBER = re.compile(r"[\d.,]{1,12}[kKMGT]?")


def is_secret(name: str) -> bool:
    """Whether a variable of that name may hold a secret, or whatever a person wrote."""
    upper = _NO_SECRETS.sub("", name.upper())
    words = set(re.split(r"[^A-Z]+", upper))
    found = _PLAIN.search(upper) or _SECRET.search(upper)
    return bool(found) or not words.isdisjoint(_WORDS | _FREE_TEXT)


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


def masked(text: str) -> str:
    """Without the ``user:password@`` and ``token@`` of addresses, and what follows ``token=``."""
    if "@" not in text and "=" not in text and "earer" not in text.lower():
        return text
    return re.sub(r"[^\s'\"]+", lambda found: _masked_word(found[0]), _BEARER.sub(MASK, text))


_BEARER = re.compile(r"(?<=bearer )[^\s'\"]+", re.IGNORECASE)


def _masked_word(word: str) -> str:
    before, at, host = word.rpartition("@")
    name, equals, value = word.partition("=")
    if equals and value and _says_secret(name, value):
        return f"{name}={MASK}"
    if "=" in value and "@" not in name:  # --label=api_token=x
        return f"{name}={_masked_word(value)}"
    if not at or ":" not in before:
        return word
    scheme = before.find("://")
    # Without a scheme what stands before `user:` may be a name: `proxy=user:password@host`.
    first = scheme + 3 if scheme >= 0 else _after_separator(before[: before.find(":")])
    return f"{before[:first]}{MASK}@{host}"


def _after_separator(text: str) -> int:
    return max(map(text.rfind, "=,;(")) + 1


def _says_secret(name: str, value: str) -> bool:
    """Of what people name themselves (labels, axes, options) less is taken for a secret: a label
    ``pin=on`` or ``tokens=4096`` that were masked would make different launches alike.
    """
    plain = name.upper().replace("-", "_")
    return bool(_PLAIN.search(plain)) and not _NUMBER.fullmatch(value)


def masked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as a file may keep them."""
    return {k: MASK if v and _says_secret(k, v) else masked(v) for k, v in labels.items()}


def masked_words(words: Sequence[str]) -> list[str]:
    """A command line as a file may keep it: ``--api-token x``, ``NAME_TOKEN=x``, ``user:pass@``."""
    found = [masked(word) for word in words]
    for place, (option, value) in enumerate(pairwise(words), 1):
        if option.startswith("-") and "=" not in option and _says_secret(option, value):
            found[place] = MASK
    return found
