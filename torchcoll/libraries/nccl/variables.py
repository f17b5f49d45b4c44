"""The environment variables that NCCL and torch's NCCL backend read.

The names are the strings in ``libnccl.so.2`` of the wheels in VERSIONS, without constants of the
source. So for each of these versions it is known whether it reads a name. For versions in between
it is not.
"""

from __future__ import annotations

import re
from pathlib import Path

VERSIONS = ("2.21.5", "2.27.5", "2.30.7", "2.32.3")  # nvidia-nccl-cu12 and -cu13 on PyPI

# Name -> (first, last) of VERSIONS that read it. A line of the file has these without NCCL_.
_LINES = Path(__file__).with_name("variables.txt").read_text().splitlines()
_PERIODS = {f"NCCL_{name}": (first, last) for first, last, name in map(str.split, _LINES)}

# Variables that were removed before VERSIONS -> their replacement (NCCL's
# docs/userguide/source/env.rst).
REMOVED = {
    "NCCL_CHECKS_DISABLE": "NCCL_CHECK_POINTERS since 2.2.12",
    "NCCL_IB_CUDA_SUPPORT": "NCCL_NET_GDR_LEVEL since 2.4",
    "NCCL_LL_THRESHOLD": "NCCL_PROTO since 2.5",
    "NCCL_SINGLE_RING_THRESHOLD": "nothing since 2.3",
    "NCCL_TREE_THRESHOLD": "NCCL_ALGO since 2.5",
}

# Variables that other software sets or reads: NVIDIA's images and build scripts; RCCL (its
# docs/api-reference/env-variables.rst); the example tuner plugin; torch's names before
# TORCH_NCCL_*; and two that NCCL documents after 2.32.3.
_ELSEWHERE = """
    HOME INCLUDE_DIR LIBRARY LIB_DIR ROOT ROOT_DIR VERSION
    RINGS RINGS_REMAP
    TUNER_CONFIG_FILE
    ASYNC_ERROR_HANDLING BLOCKING_WAIT DESYNC_DEBUG ENABLE_TIMING
    USE_TENSOR_REGISTER_ALLOCATOR_HOOK
    PSK SOCKET_MAGIC
"""

# Prefixes of variables of other software: nccl-tests; plug-ins for networks (Google's TCPX and
# FasTrak, NVIDIA's SHARP and IBext), profilers (Inspector) and tuners; Meta's NCCLX. RCCL_* and
# OFI_NCCL_* do not begin with NCCL_ and are not checked at all.
_OPEN = """
    TESTS GPUDIRECTTCPX FASTRAK SHIMNET GIB SHARP IBEXT UCX PLUGIN INSPECTOR PROFILE PROFILER TUNER
    CTRAN COLLTRACE
"""
OPEN = tuple(f"NCCL_{name}_" for name in _OPEN.split())

NAMES = frozenset({*_PERIODS, *REMOVED, *(f"NCCL_{name}" for name in _ELSEWHERE.split())})

# torch/csrc/distributed/c10d/*.hpp of torch 2.13, and what other versions from 2.6 to 2.15 read.
_TORCH = """
    ASYNC_ERROR_HANDLING AVOID_RECORD_STREAMS BCAST_UNIQUEID BLOCKING_WAIT COORD_CHECK_MILSEC
    CUDA_EVENT_CACHE DEBUG_INFO_PIPE_FILE DEBUG_INFO_TEMP_FILE DESYNC_DEBUG DUMP_ON_TIMEOUT
    ENABLE_MONITORING ENABLE_TIMING EXTRA_DUMP_ON_EXEC HEARTBEAT_TIMEOUT_SEC HIGH_PRIORITY
    LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN NAN_CHECK NONBLOCKING_TIMEOUT PROPAGATE_ERROR
    RANKS_PER_ROOT RETHROW_CUDA_ERRORS SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING
    TEARDOWN_ON_TIMEOUT TRACE_BUFFER_SIZE TRACE_CPP_STACK USE_COMM_NONBLOCKING
    USE_TENSOR_REGISTER_ALLOCATOR_HOOK WAIT_TIMEOUT_DUMP_MILSEC
"""
TORCH_NAMES = frozenset(f"TORCH_NCCL_{name}" for name in _TORCH.split())


def reads(name: str, version: str) -> bool | None:
    """Whether NCCL ``version`` (``2.27.5``) reads ``name``; None where that is not known."""
    if name in REMOVED:
        return False
    span = _PERIODS.get(name)
    if span is None:
        return None
    first, last = (VERSIONS.index(v) for v in span)
    if _key(span[0]) <= _key(version) <= _key(span[1]):
        return True
    if first and _key(version) <= _key(VERSIONS[first - 1]):
        return False
    if last + 1 < len(VERSIONS) and _key(version) >= _key(VERSIONS[last + 1]):
        return False
    return None


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
