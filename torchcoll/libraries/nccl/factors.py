"""What one turns at NCCL's use of the network, one factor at a time (NCCL's env.rst)."""

from __future__ import annotations

# cell -> variables. What NCCL does without them: 4 MiB buffers, 1 queue pair a connection, PXN on,
# GPUDirect RDMA by distance, NVLS on, channels by topology.
FACTORS: dict[str, dict[str, str]] = {
    **{
        f"channels{number}": {"NCCL_MIN_CTAS": str(number), "NCCL_MAX_CTAS": str(number)}
        for number in (4, 8, 16, 32)
    },
    **{f"buffers{mib}M": {"NCCL_BUFFSIZE": str(mib << 20)} for mib in (1, 2, 8, 16)},
    **{f"qps{number}": {"NCCL_IB_QPS_PER_CONNECTION": str(number)} for number in (2, 4, 8)},
    "no-pxn": {"NCCL_PXN_DISABLE": "1"},
    "no-gdr": {"NCCL_NET_GDR_LEVEL": "LOC"},
    "gdr-everywhere": {"NCCL_NET_GDR_LEVEL": "SYS"},
    "no-nvls": {"NCCL_NVLS_ENABLE": "0"},
}
