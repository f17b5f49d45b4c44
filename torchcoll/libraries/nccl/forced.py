"""What NCCL_ALGO and NCCL_PROTO can force, by function and version (NCCL's src/graph/tuning.cc).

Up to 2.23 a value is a list for all functions. Unknown words are ignored in silence, and where
the list leaves a function nothing it runs Ring, in silence too. From 2.24 on a part of the value
may name its function (``allreduce:tree``); unknown words end the run, and so does a call for
which nothing is left. There only values with a function are of use: ``NCCL_ALGO=nvls`` would take
every algorithm from the broadcasts and barriers around the collective that is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torchcoll.libraries.known_variables import OF_NCCL, Forcing
from torchcoll.libraries.nccl.algorithms import FUNCTIONS

VARIABLES = OF_NCCL
_FUNCTION_PREFIX = (2, 24)
_PROTOCOLS = ("ll", "ll128", "simple")
# With every protocol, on every machine.
_EVERYWHERE: dict[str, tuple[str, ...]] = dict.fromkeys(FUNCTIONS.values(), ("ring",))
_EVERYWHERE["AllReduce"] = ("ring", "tree")
# With Simple alone, and only where the machine has what they need: an NVSwitch; two nodes or more;
# a SHARP plug-in; one GPU a node (pat). Elsewhere NCCL says UNAVAILABLE from 2.24 on. Before, Ring
# would be measured under their name, so they are left out there.
_SOMEWHERE = {
    "AllReduce": ("nvls", "nvlstree", "collnetdirect", "collnetchain"),
    "AllGather": ("nvls", "pat", "collnetdirect"),
    "ReduceScatter": ("nvls", "pat", "collnetdirect"),
}
UNAVAILABLE = "no algorithm/protocol available for function"
_WORDS = {
    "NCCL_ALGO": ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"),
    "NCCL_PROTO": _PROTOCOLS,
}


def missing(one_host: bool, nvls: bool | None, sharp: bool = True) -> dict[str, str]:
    """Algorithm -> what it lacks, of those that cannot run. nvls: whether switches within a host
    reduce, None where that is not known; sharp: whether those between hosts may.
    """
    found = dict.fromkeys(("nvls", "nvlstree"), "no NVSwitch that reduces") if nvls is False else {}
    if not sharp:
        found |= dict.fromkeys(("collnetdirect", "collnetchain"), "no network with SHARP")
    if one_host:
        several = ("nvlstree", "collnetdirect", "collnetchain", "pat")
        found |= {name: "one host" for name in several if name not in found}
    return found


def forcings(
    collectives: Sequence[str], version: str, without: Iterable[str] = ()
) -> list[Forcing]:
    """Every combination of algorithm and protocol that exists for one of ``collectives``, but those
    of the algorithms ``without``.
    """
    found = []
    prefixed = version_key(version) >= _FUNCTION_PREFIX
    functions = {name: FUNCTIONS[name] for name in collectives if name in FUNCTIONS}
    for algorithm, protocol in _combinations(prefixed):
        if algorithm in without:
            continue
        able = tuple(
            name
            for name, function in functions.items()
            if algorithm in _EVERYWHERE[function]
            or (algorithm in _SOMEWHERE.get(function, ()) and protocol == "simple")
        )
        if able:
            words = [functions[name].lower() for name in able]
            values = (_value(words if prefixed else [], word) for word in (algorithm, protocol))
            settings = dict(zip(VARIABLES, values, strict=True))
            found.append(Forcing(f"{algorithm}-{protocol}", able, settings))
    return found


def _combinations(prefixed: bool) -> list[tuple[str, str]]:
    everywhere = dict.fromkeys(a for names in _EVERYWHERE.values() for a in names)
    found = [(algorithm, protocol) for algorithm in everywhere for protocol in _PROTOCOLS]
    somewhere = dict.fromkeys(a for names in _SOMEWHERE.values() for a in names)
    return found + [(algorithm, "simple") for algorithm in somewhere if prefixed]


def _value(functions: Iterable[str], word: str) -> str:
    return ";".join(f"{function}:{word}" for function in functions) or word


def unknown_word(name: str, value: str) -> str | None:
    """The first word of a value of NCCL_ALGO or NCCL_PROTO that no NCCL knows."""
    functions = {function.lower() for function in FUNCTIONS.values()}
    for part in value.lower().split(";"):
        function, colon, words = part.rpartition(":")
        if colon and function not in functions:
            return function
        for word in words.removeprefix("^").split(","):
            if word not in _WORDS[name]:
                return word
    return None


def misread(variables: Mapping[str, str | None], version: str) -> str | None:
    """The variable that names a function where NCCL ``version`` (``2.21.5``) ignores that."""
    if not version or version_key(version) >= _FUNCTION_PREFIX:
        return None
    return next((name for name in VARIABLES if ":" in (variables.get(name) or "")), None)


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


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
