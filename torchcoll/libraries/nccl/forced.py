"""What NCCL_ALGO and NCCL_PROTO can force (NCCL's src/graph/tuning.cc).

Up to 2.23 a value is one list for all functions. NCCL silently ignores unknown names, and
silently runs Ring if the list leaves a function no algorithm. From 2.24 on a clause of the value
may name its function (``allreduce:tree``). An unknown name then ends the run, and so does a call
for which no algorithm is left. So from 2.24 on only values with a function are useful:
``NCCL_ALGO=nvls`` would leave no algorithm for the broadcasts and barriers around the collective
that is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torchcoll.libraries.known_variables import NCCL_CHOICES, Forcing
from torchcoll.libraries.nccl.algorithms import FUNCTIONS

VARIABLES = NCCL_CHOICES
_FUNCTION_PREFIX = (2, 24)
_PROTOCOLS = ("ll", "ll128", "simple")
# Algorithms that exist on every machine, with every protocol.
_EVERYWHERE: dict[str, tuple[str, ...]] = dict.fromkeys(FUNCTIONS.values(), ("ring",))
_EVERYWHERE["AllReduce"] = ("ring", "tree")
# Algorithms that exist with Simple only, and only on machines that have what they need: an
# NVSwitch; two nodes or more; a SHARP plug-in; one GPU per node (pat). On other machines NCCL
# reports UNAVAILABLE from 2.24 on. Before 2.24 Ring would be measured under their name, so they are
# not forced there.
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


def missing(one_host: bool, nvls: bool | None) -> dict[str, str]:
    """Algorithm -> what it lacks. nvls: whether switches of a host reduce; None: unknown."""
    reasons: dict[str, str] = {}
    if nvls is False:
        reasons |= dict.fromkeys(("nvls", "nvlstree"), "no NVSwitch that reduces")
    if one_host:
        several = ("nvlstree", "collnetdirect", "collnetchain", "pat")
        reasons |= {name: "one host" for name in several if name not in reasons}
    return reasons


def forcings(
    collectives: Sequence[str], version: str, without: Iterable[str] = ()
) -> list[Forcing]:
    """Every algorithm and protocol of ``collectives``, but for the algorithms ``without``."""
    combinations = []
    prefixed = version_key(version) >= _FUNCTION_PREFIX
    functions = {name: FUNCTIONS[name] for name in collectives if name in FUNCTIONS}
    everywhere = dict.fromkeys(a for names in _EVERYWHERE.values() for a in names)
    somewhere = dict.fromkeys(a for names in _SOMEWHERE.values() for a in names)
    pairs = [(algorithm, protocol) for algorithm in everywhere for protocol in _PROTOCOLS]
    for algorithm, protocol in pairs + [(name, "simple") for name in somewhere if prefixed]:
        if algorithm in without:
            continue
        supported = tuple(
            name
            for name, function in functions.items()
            if algorithm in _EVERYWHERE[function]
            or (algorithm in _SOMEWHERE.get(function, ()) and protocol == "simple")
        )
        if supported:
            of = [functions[name].lower() for name in supported] if prefixed else []
            values = (_value(of, value) for value in (algorithm, protocol))
            settings = dict(zip(VARIABLES, values, strict=True))
            combinations.append(Forcing(f"{algorithm}-{protocol}", supported, settings))
    return combinations


def _value(functions: Iterable[str], setting: str) -> str:
    return ";".join(f"{function}:{setting}" for function in functions) or setting


def unknown_word(name: str, value: str) -> str | None:
    """The first name in a value of NCCL_ALGO or NCCL_PROTO that no version of NCCL knows."""
    functions = {function.lower() for function in FUNCTIONS.values()}
    for clause in value.lower().split(";"):
        function, colon, choices = clause.rpartition(":")
        if colon and function not in functions:
            return function
        for choice in choices.removeprefix("^").split(","):
            if choice not in _WORDS[name]:
                return choice
    return None


def misread(variables: Mapping[str, str | None], version: str) -> str | None:
    """The variable whose value names a function, which NCCL ``version`` (``2.21.5``) ignores."""
    if not version or version_key(version) >= _FUNCTION_PREFIX:
        return None
    return next((name for name in VARIABLES if ":" in (variables.get(name) or "")), None)


def version_key(version: str) -> tuple[int, ...]:
    """(major, minor) of a version, for comparisons."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
