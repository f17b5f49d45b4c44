"""NCCL's topology and graph files of this machine, which a child has NCCL write.

The child makes one communicator of all GPUs that it sees, in one process (ncclCommInitAll, as
torch.cuda.nccl does it): a communicator of one GPU would have NCCL leave the others out of its
tree. The same on AMD, where RCCL knows both variables.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torchcoll.core.errors import UnavailableError
from torchcoll.machine.doctor_facts import run

_TIMEOUT_S = 180.0
_NO_GPU = "no GPU that torch can use"
_PROGRAM = f"""
import os, sys
os.environ["NCCL_TOPO_DUMP_FILE"], os.environ["NCCL_GRAPH_DUMP_FILE"] = sys.argv[1:]
try:
    import torch
except ImportError:
    sys.exit("no torch")
if not torch.cuda.device_count():
    sys.exit("{_NO_GPU}")
from torch.cuda import nccl
nccl.all_reduce([torch.zeros(1, device=f"cuda:{{n}}") for n in range(torch.cuda.device_count())])
"""


def dump_topology(folder: Path) -> list[str]:
    """The files that NCCL wrote into the folder: its topology, and its graphs where there are any.

    Raises UnavailableError where it wrote none.
    """
    paths = [str(folder / "topology.xml"), str(folder / "graph.xml")]
    code, _, stderr = run([sys.executable, "-c", _PROGRAM, *paths], _TIMEOUT_S)
    found = [path for path in paths if os.path.isfile(path)]
    if not code and paths[0] in found:
        return found
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    raise UnavailableError(
        "limits of this machine",
        said[-1] if code and said else "no NCCL_TOPO_DUMP_FILE from NCCL",
        "GPUs and NCCL",
        "Where they are, set NCCL_TOPO_DUMP_FILE=topo.xml for a run; then torchcoll limits "
        "topo.xml.",
    )
