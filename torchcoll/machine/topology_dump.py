"""Makes NCCL write its topology and graph files of this machine, in a child process.

The child creates one communicator of all visible GPUs in one process (ncclCommInitAll, as
torch.cuda.nccl does), because the topology of a communicator has only its own GPUs. This also
works on AMD, where RCCL reads the same variables.
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
    """Have NCCL write into the folder and return the files: the topology, and the graphs if any.

    Raises UnavailableError if NCCL did not write the topology.
    """
    paths = [str(folder / "topology.xml"), str(folder / "graph.xml")]
    code, _, stderr = run([sys.executable, "-c", _PROGRAM, *paths], _TIMEOUT_S)
    files = [path for path in paths if os.path.isfile(path)]
    if not code and paths[0] in files:
        return files
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    raise UnavailableError(
        "limits of this machine",
        lines[-1] if code and lines else "no NCCL_TOPO_DUMP_FILE from NCCL",
        "GPUs and NCCL",
        "Where they are, set NCCL_TOPO_DUMP_FILE=topo.xml for a run; then torchcoll log topo.xml.",
    )
