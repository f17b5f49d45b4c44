"""What CCL_<COLLECTIVE> and the CCL_SYCL thresholds can force (oneCCL's env-variables.rst).

On a GPU oneCCL ignores ``CCL_<COLLECTIVE>`` while its SYCL kernels are enabled, which is the
default since 2021.14; thresholds choose among those kernels. An algorithm that a library does not
have ends the run at the first collective. The GPU part has never run on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torchcoll.core.errors import UsageError, unknown
from torchcoll.core.units import format_size
from torchcoll.libraries.known_variables import Forcing
from torchcoll.libraries.oneccl.variables import NAMES

# torch's collective -> (variables, algorithms). Where torch may call either of two oneCCL
# functions, the variables of both are set.
_ALGORITHMS: dict[str, tuple[tuple[str, ...], str]] = {
    "all_reduce": (
        ("CCL_ALLREDUCE",),
        "direct rabenseifner nreduce ring double_tree recursive_doubling 2d topo",
    ),
    "all_gather": (("CCL_ALLGATHER", "CCL_ALLGATHERV"), "direct naive flat multi_bcast ring topo"),
    "reduce": (("CCL_REDUCE",), "direct rabenseifner tree double_tree topo"),
    "reduce_scatter": (("CCL_REDUCE_SCATTER",), "direct naive ring topo"),
    "broadcast": (("CCL_BCAST", "CCL_BROADCAST"), "direct ring double_tree naive topo"),
    "all_to_all": (("CCL_ALLTOALL",), "direct naive scatter topo"),
    "all_to_all_v": (("CCL_ALLTOALLV",), "direct naive scatter topo"),
    "barrier": (("CCL_BARRIER",), "direct ring"),
}
COLLECTIVES = tuple(_ALGORITHMS)
# For these collectives the size in a selection is the size of the message. For the others it may be
# the bytes of one rank or of all ranks: oneCCL does not document it.
SIZED = ("all_reduce", "broadcast", "reduce")
KERNELS = "CCL_ENABLE_SYCL_KERNELS"
# torch's collective -> its name in the thresholds.
_SYCL = {"all_reduce": "ALLREDUCE", "all_gather": "ALLGATHERV", "reduce_scatter": "REDUCE_SCATTER"}
# 0 disables a kernel; the other value is four to sixteen times the default (2022.2: LL 4 KiB, SMALL
# 512 KiB, MEDIUM 16 MiB). A higher value would exceed the kernels' temporary buffers.
_THRESHOLDS = {"LL": (0, 64 << 10), "SMALL": (0, 2 << 20), "MEDIUM": (0, 64 << 20)}


def variables_of(collective: str) -> tuple[str, ...]:
    """The variables that choose the algorithm of torch's ``collective``; () where none does."""
    return _ALGORITHMS[collective][0] if collective in _ALGORITHMS else ()


_REFUSED = re.compile(r"unknown algorithm name '([^']*)'")  # algo_from_str of its selectors


def refused_value(text: str, environ: Mapping[str, str]) -> UsageError | None:
    """The error if this text of oneCCL says that it does not know a forced algorithm; or None."""
    match = _REFUSED.search(text)
    if not match:
        return None
    value = match[1]
    for variables, algorithms in _ALGORITHMS.values():
        for variable in variables:
            if value in re.split("[:;]", environ.get(variable, "")):
                names = [name for name in algorithms.split() if name != value]
                return unknown(variable, value, names, "an algorithm of this oneCCL: {}")
    return UsageError("algorithm", value, "one that this oneCCL has", "Check the CCL_* variables.")


def forcings(collectives: Sequence[str], device: str, mpi: bool) -> list[Forcing]:
    """The algorithms and thresholds on ``device`` (cpu or xpu). Without ``mpi``, oneCCL silently
    replaces ``direct``, which is skipped.
    """
    known_collectives = [name for name in collectives if name in _ALGORITHMS]
    left_out = {*(() if mpi else ("direct",)), *(() if device == "xpu" else ("topo",))}
    able: dict[str, list[str]] = {}  # algorithm -> collectives
    for name in known_collectives:
        for algorithm in _ALGORITHMS[name][1].split():
            if algorithm not in left_out:
                able.setdefault(algorithm, []).append(name)
    combinations = []
    for algorithm, names in able.items():
        settings = {variable: algorithm for name in names for variable in _ALGORITHMS[name][0]}
        if device == "xpu":
            settings[KERNELS] = "0"
        combinations.append(Forcing(algorithm, tuple(names), settings))
    return combinations + (_thresholds(known_collectives) if device == "xpu" else [])


def _thresholds(collectives: Sequence[str]) -> list[Forcing]:
    able = tuple(name for name in collectives if name in _SYCL)
    combinations = []
    for stage, sizes in _THRESHOLDS.items():
        names = {name: f"CCL_SYCL_{_SYCL[name]}_{stage}_THRESHOLD" for name in able}
        names = {name: variable for name, variable in names.items() if variable in NAMES}
        for size_bytes in sizes if names else ():
            settings = dict.fromkeys(names.values(), str(size_bytes))
            name = f"sycl-{stage.lower()}-{format_size(size_bytes)}"
            combinations.append(Forcing(name, tuple(names), settings))
    return combinations


# oneCCL's selection by size: ``recursive_doubling:0-8192;ring:8193-max`` (env-variables.rst).
# Sizes are in bytes, and both ends belong to a range.


def selection(spans: Iterable[tuple[str, int, int | None]]) -> str:
    """The value of ``CCL_<COLLECTIVE>`` for ascending spans (algorithm, low, high or None)."""
    ends = [(name, low, "max" if high is None else high) for name, low, high in spans]
    several = [f"{name}:{low}-{high}" for name, low, high in ends]
    return ";".join(several) if len(several) > 1 else ends[0][0]
