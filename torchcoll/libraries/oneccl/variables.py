"""The environment variables that oneCCL reads.

The names are those of the effective values that the library prints with ``CCL_LOG_LEVEL=info``
(2021.14 and 2022.2, CPU), and the strings in the ``libccl.so`` of the wheels ``oneccl`` 2021.14.0
and 2022.2.0 and ``oneccl-cpu`` 2022.2.0. Short names are built in machine code, so their absence in
a library proves nothing. Therefore there are no periods of versions as there are for NCCL.
"""

from __future__ import annotations

from pathlib import Path

VERSIONS = ("2021.14.0", "2022.2.0")

# A line of the file has a name without CCL_; SUB_COMMUICATOR is the library's own spelling.
_NAMES = Path(__file__).with_name("variables.txt").read_text()

# oneccl_bindings_for_pytorch reads these (src/ProcessGroupCCL.cpp), not the library.
_BINDINGS = "BLOCKING_WAIT SAME_STREAM"

NAMES = frozenset(f"CCL_{name}" for name in f"{_NAMES} {_BINDINGS}".split())

# ``CCL_<COLLECTIVE>`` names the algorithm of a collective (doc/rst/source/env-variables.rst).
_COLLECTIVES = """
    ALLGATHER ALLGATHERV ALLREDUCE ALLTOALL ALLTOALLV BARRIER BCAST BROADCAST GATHER RECV REDUCE
    REDUCE_SCATTER SCATTER SEND
"""
COLLECTIVES = tuple(f"CCL_{name}" for name in _COLLECTIVES.split())
ALGORITHMS = (*COLLECTIVES, *(f"{name}_SCALEOUT" for name in COLLECTIVES))
