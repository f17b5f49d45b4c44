"""Lines of NCCL's log that are known and tell nothing that a table here shows.

First words, and beginnings, of the INFO texts in ``libnccl.so.2`` 2.21.5 and 2.30.7 and in logs of
2.8 to 2.30 and of RCCL 2.26 to 2.30. A line that is not among them is counted as unknown: another
version may say something new.
"""

from __future__ import annotations

import re

_TEXT = """
    Affinity Allocated Assigned Bootstrap Bootstrap: bootstrapSplit: CC Call Check Communicator
    Connected Could Cross-clique DMABUF DMA-BUF DMA_BUF Dmabuf ENV/Plugin: Enabled Failed GDRCOPY
    GIN GIN/Plugin: GPU Generated HIP Hipruntime Ignoring Imported Initialized Kernel LSA Launch
    Loading Local MNNVL MSCCL MSCCL++ Made Max Mem MemManager: NET NET/IB NET/OFI NET/Plugin
    NET/Plugin: NET/Socket NVLS New P2P PARAM: PROFILER/Plugin: PXN Plugin Protocol Proxy RAS
    RMA/Plugin: ROCr Rank Received Ring Search Setting Skipping Socket Successfully Symmetric
    TOPO/NET TUNER/Plugin: Topology Tree Tuning UDS: Using rank threadThresholds timings:
    ncclTopoGetCpuAffinity: ncclTopoPopulateNics
"""
_WORDS = frozenset(_TEXT.split())
_BEGINNINGS = (
    *("=== ", "===", "+ ", "- ", "[Proxy", "[Service", "GPU/", "CPU/", "NET/", "NVS/", "PCI/"),
    *("NIC/", "C2C", "GIN/", "Comm config ", "(", "ncclOs"),
)
# src/misc/utils.cc:233 memory stack hunk: the ALLOC subsystem. ` 0 : NET/0 GPU/0 ...`: a channel of
# a graph. opCount: the COLL subsystem, a line a call and rank.
_SHAPES = re.compile(
    r"\S+\.(?:cc|cpp|h):\d+ |\s*\d+ : (?:NET|GPU)/|\w+: opCount [0-9a-f]+ sendbuff "
)


def is_known(word: str, message: str) -> bool:
    """Whether a message, of this first word, is one of NCCL's own that is not needed."""
    if message.startswith("Bootstrap timings"):
        return False
    return (
        word in _WORDS
        or not word
        or message.lstrip().startswith(_BEGINNINGS)
        or bool(_SHAPES.match(message))
        or " set to " in message
    )
