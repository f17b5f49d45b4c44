"""Lines of NCCL's log, and what its reader makes of them."""

from __future__ import annotations

from torchcoll.libraries.nccl.jobs import NcclJob, jobs
from torchcoll.libraries.nccl.log import NcclLogReader


def read(*texts: str, ending: str = "\n", file: str = "a.log") -> NcclLogReader:
    """Lines of one file; a line without a process is given one."""
    reader = NcclLogReader(file)
    reader.read(f"{text}{ending}".encode() for text in texts)
    return reader


def info(*messages: str, who: str = "node1:11:12 [0]") -> list[str]:
    return [f"{who} NCCL INFO {message}" for message in messages]


def only(reader: NcclLogReader) -> NcclJob:
    (job,) = jobs([reader])
    return job


def started(rank: int, nranks: int = 2, comm_id: str = "0xabc", handle: str = "") -> str:
    """As 2.18 and later."""
    handle = handle or f"0x5{rank:03x}"
    return (
        f"ncclCommInitRank comm {handle} rank {rank} nranks {nranks} cudaDev {rank} nvmlDev {rank} "
        f"busId {rank + 1}a000 commId {comm_id} - Init START"
    )
