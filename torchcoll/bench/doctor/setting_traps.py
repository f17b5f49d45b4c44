"""Settings that are left in the environment and colour every number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchcoll.bench.doctor.facts import Facts
from torchcoll.bench.doctor.finding import Finding
from torchcoll.libraries.oneccl import variables as oneccl

_NCCL, _ONECCL = ("nccl",), ("xccl", "ccl")
_FORCING = (
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_MIN_CTAS"),
    *("NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_TUNER_PLUGIN"),
    *("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE", "NCCL_LAUNCH_MODE"),
)
_OFF = (
    *("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVB_DISABLE"),
    *("NCCL_PXN_DISABLE", "NCCL_NET_DISABLE_INTRA"),
)
# Name: values that matter, what they do.
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": (r"[^0].*", "every kernel is waited for"),
    "TORCH_DISTRIBUTED_DEBUG": (r"(?i)detail", "every collective is checked over gloo before"),
    "TORCH_NCCL_BLOCKING_WAIT": (r"[^0].*", "every wait blocks the host"),
    "TORCH_NCCL_NAN_CHECK": (r"[^0].*", "every input is searched for NaN"),
    "NCCL_DEBUG": (r"(?i)trace", "every call is logged"),
    "NCCL_CHECK_POINTERS": (r"[^0].*", "every pointer is checked"),
    "CCL_LOG_LEVEL": (r"(?i)debug|trace", "every call is logged"),
    # DLcomm's docs/fixes/05: with it calls return when they are done, without it when enqueued.
    "CCL_OP_SYNC": (r"[^0].*", "every call is waited for"),
}


def _set(facts: Facts, names: Iterable[str]) -> list[str]:
    """``NAME=value`` of those that are set."""
    return [f"{n}={facts.environ[n]}" for n in names if facts.environ.get(n)]


def forced(facts: Facts) -> Iterator[Finding]:
    for names, backends in ((_FORCING, _NCCL), (oneccl.ALGORITHMS, _ONECCL)):
        found = _set(facts, names)
        if found:
            yield Finding(
                "forced",
                "warning",
                f"{', '.join(found)} in the environment",
                "The library does not choose by itself: this colours every number.",
                "Unset it, unless it is what you measure.",
                backends,
            )


def switched_off(facts: Facts) -> Iterator[Finding]:
    found = [text for text in _set(facts, _OFF) if not text.endswith("=0")]
    found += [t for t in _set(facts, ("NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE")) if t[-2:] == "=0"]
    if found:
        yield Finding(
            "switched_off",
            "warning",
            f"{', '.join(found)} in the environment",
            "A transport that the machine may have is not used: bandwidth is not the machine's.",
            "Unset it; it is often left over from looking for a fault.",
            _NCCL,
        )


def slowed(facts: Facts) -> Iterator[Finding]:
    for name, (values, effect) in _SLOW.items():
        value = facts.environ.get(name, "")
        if re.fullmatch(values, value):
            yield Finding(
                "slowed",
                "warning",
                f"{name}={value} in the environment",
                f"With it {effect}: times are longer than training's.",
                "Unset it to measure.",
                _NCCL if "NCCL" in name else _ONECCL if name.startswith("CCL") else (),
            )


CHECKS = (forced, switched_off, slowed)
