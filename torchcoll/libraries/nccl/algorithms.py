"""Which algorithm and protocol NCCL chose for a call: its TUNING lines, and names of kernels.

Formats by version (NCCL's src/enqueue.cc, scheduler/symmetric_sched.cc, ce_coll.cc; RCCL alike)::

    <= 2.19      nothing (TRACE builds: as 2.20)
    2.20 - 2.22  1024 Bytes -> Algo 1 proto 0 time 12.3
    2.23         AllReduce: 1024 Bytes -> Algo 1 proto 0 time 12.3
    2.24 -       AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1} [...]
    2.27 -       AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 ...
    2.29 -       AllGather [Copy Engine]: 1024 Bytes -> cudaMemcpyBatchAsync

Rank 0 of a communicator writes them, once a call (once a capture for CUDA graphs). Calls that are
made of sends and receives (all_to_all, gather, scatter, sendrecv) have none.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchcoll.core.result import CaseResult, Choice
from torchcoll.core.units import MAX_BYTES
from torchcoll.libraries.known_variables import OF_NCCL, Forcing
from torchcoll.libraries.logged import LoggedCall

# torch's collectives that NCCL has kernels for.
FUNCTIONS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
_PLAIN = {name.replace("_", ""): name for name in (*ALGORITHMS, *PROTOCOLS)}
TOTAL, PER_RANK = "total", "per rank"
# torch's barrier is an all-reduce of so many bytes, and NCCL 2.20 to 2.22 names no function.
_BARRIER_BYTES = 4

_NUMBERED = re.compile(r"(?:(\w+): )?(\d+) Bytes -> Algo (\d+) +proto (\d+) +time [\d.]+", re.I)
_NAMED = re.compile(
    r"(\w+): (\d+) Bytes -> Algo (\w+) +proto (\w+) +channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}", re.I
)
_SYMMETRIC = re.compile(
    r"(\w+) \[Symmetric\]: (\d+) Bytes -> Kernel (\w+) nchannels (\d+) nthreads \d"
)
_COPIED = re.compile(r"(\w+) \[(Copy Engine|Hierarchical CE)\]: (\d+) Bytes -> \w")


def canonical(name: str) -> str | None:
    """``NVLS_TREE`` for NVLSTree, nvls_tree, ...; None where NCCL has no such name."""
    return _PLAIN.get(name.replace("_", "").upper())


def call_of(message: str) -> LoggedCall | None:
    """The call of a TUNING line; None for a line that is none, or not whole.

    A line that ends early is refused, not guessed: ``proto LL`` may be the start of LL128.
    """
    if found := _NAMED.search(message):
        function, size_bytes, algorithm, protocol, low, high = found.groups()
        names = canonical(algorithm), canonical(protocol)
        if names[0] not in ALGORITHMS or names[1] not in PROTOCOLS:
            return None
        channels = int(high) - int(low) + 1
        return LoggedCall(
            function, int(size_bytes), str(names[0]), str(names[1]), channels, PER_RANK
        )
    if found := _NUMBERED.search(message):
        function, size_bytes, algorithm, protocol = found.groups()
        if int(algorithm) >= len(ALGORITHMS) or int(protocol) >= len(PROTOCOLS):
            return None
        names = ALGORITHMS[int(algorithm)], PROTOCOLS[int(protocol)]
        return LoggedCall(function or "", int(size_bytes), *names, None, TOTAL)
    if found := _SYMMETRIC.search(message):
        kernel = found[3].removeprefix(f"{found[1]}_")
        return LoggedCall(found[1], int(found[2]), "SYMMETRIC", kernel, int(found[4]), PER_RANK)
    if found := _COPIED.search(message):
        function, engine, size_bytes = found.groups()
        name = "COPY_ENGINE" if engine == "Copy Engine" else "HIERARCHICAL_CE"
        return LoggedCall(function, int(size_bytes), name, basis=PER_RANK)
    return None


def logged_bytes(collective: str, size_bytes: int, ranks: int, basis: str) -> int:
    """The bytes that NCCL's log gives for a case of size S = ``size_bytes`` (nccl-tests' size).

    Up to 2.23 it gives what the cost model gets: all bytes of all ranks. From 2.24 on the count of
    the call: for all-gather what a rank sends, for reduce-scatter what it receives.
    """
    per_rank = basis == PER_RANK and collective in ("all_gather", "reduce_scatter")
    return size_bytes // ranks if per_rank and ranks else size_bytes


def choices_of(result: CaseResult, calls: Iterable[LoggedCall]) -> list[Choice]:
    """What NCCL chose for a case, each choice once, of ``calls`` that its log has beside it.

    Calls of other functions and sizes (barriers, another communicator's) are left out. [] for what
    NCCL has no line for, and for one rank, which communicates with nobody.
    """
    case, found = result.case, dict[Choice, None]()
    function = FUNCTIONS.get(case.collective)
    if function is None or result.ranks < 2 or not result.size_bytes:
        return []
    for call in calls:
        if call.function not in (function, ""):
            continue
        if not call.function and call.size <= _BARRIER_BYTES:
            continue
        if call.size == logged_bytes(case.collective, result.size_bytes, result.ranks, call.basis):
            found[Choice(call.algorithm, call.protocol, call.channels)] = None
    return list(found)


_KERNEL = re.compile(
    rf"nccl(?:Dev)?Kernel_(?!SendRecv)\w*?_({'|'.join(sorted(ALGORITHMS, key=len, reverse=True))})"
    r"_(LL128|LL|SIMPLE)(?![A-Za-z0-9])"
)
_SYMMETRIC_KERNEL = re.compile(r"ncclSymk?(?:Dev)?Kernel_[A-Za-z]+_(\w+?)(?:_[a-z]+_[a-z]+\d+)?\b")


def choice_of_kernel(name: str) -> Choice | None:
    """What the name of a CUDA kernel says: ``ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)``.

    A hint only: NCCL has kernels of its own for common combinations, and lets them run others too
    (NVIDIA/nccl#1595: RING_LL in the name where Simple was forced). None for other kernels, and for
    sends and receives, which have no algorithm (up to 2.18 their name says RING_SIMPLE).
    """
    if found := _KERNEL.search(name):
        return Choice(found[1], found[2], source="kernel name")
    if found := _SYMMETRIC_KERNEL.search(name):
        return Choice("SYMMETRIC", found[1], source="kernel name")
    return None


# -------------------------------------------------------------------------------------------------
# What NCCL_ALGO and NCCL_PROTO can force, by function and version (NCCL's src/graph/tuning.cc).
#
# Up to 2.23 a value is a list for all functions. Unknown words are ignored in silence, and where
# the list leaves a function nothing it runs Ring, in silence too. From 2.24 on a part of the value
# may name its function (``allreduce:tree``); unknown words end the launch, and so does a call for
# which nothing is left. There only values with a function are of use: ``NCCL_ALGO=nvls`` would take
# every algorithm from the broadcasts and barriers around the collective that is measured.

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


# -------------------------------------------------------------------------------------------------
# What one turns at NCCL's use of the network, one factor at a time (NCCL's env.rst).

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


# -------------------------------------------------------------------------------------------------
# The CSV file of NCCL's example tuner plugin (its sources: ext-tuner/example, from 2.30 on
# plugins/tuner/example).
#
# ::
#
#     collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks
#
# The plugin reads the lines in order and takes the first that matches; both ends of the sizes are
# inside; -1 is any number of nodes or ranks. Words that it does not know become allreduce, ring and
# simple without a word, so none are written but its own. It starts from one channel, and NCCL
# obeys: ``channels=-1``, and every call that no line matches, run on ONE channel, whatever its
# README says (plugin.c of 2.27.5 to 2.30.7). Hence a number in every line, and lines at the end
# that match whatever else there is.

MOST_CHANNELS = 64  # NCCL's MAXCHANNELS
_WIDTH = 98  # the plugin reads 255 characters of a line
_HEAD = (
    "For the example tuner plugin in NCCL's sources:",
    "NCCL_TUNER_PLUGIN=<path of libnccl-tuner-example.so> NCCL_TUNER_CONFIG_FILE=<this file>",
    "Plugin versions: 2.28.3 and later. In 2.27.5 to 2.27.7 a line that matches reads invalid",
    "memory; earlier ones read no such file. 2.28.3 and later also change constants of NCCL's",
    "cost model (Blackwell), with any file.",
    "Sizes: bytes, both ends inside; for allgather and reducescatter those of all ranks together.",
    "The first line that matches counts. What none matches would run on one channel.",
)
_REST = "Not measured: without these lines other calls would run on one channel."


@dataclass(frozen=True)
class TunerRule:
    """One line. function: NCCL's (AllReduce); algorithm, protocol: as in its log (NVLS_TREE, LL);
    high: None is no end; nodes, ranks: None is any.
    """

    function: str
    low: int
    high: int | None
    algorithm: str
    protocol: str
    channels: int
    nodes: int | None = None
    ranks: int | None = None

    def matches(self, function: str, size_bytes: int, ranks: int) -> bool:
        """Whether the plugin would take it; on the number of nodes that it was made for."""
        inside = self.low <= size_bytes <= (MAX_BYTES if self.high is None else self.high)
        return self.function == function and inside and self.ranks in (None, ranks)

    def line(self) -> str:
        """Raises ValueError for words that the plugin would misread in silence."""
        if (
            self.function not in FUNCTIONS.values()
            or self.algorithm not in ALGORITHMS
            or self.protocol not in PROTOCOLS
            or not 1 <= self.channels <= MOST_CHANNELS
        ):
            raise ValueError(f"no line of a tuner file: {self}")
        fields = (
            *(self.function.lower(), self.low, MAX_BYTES if self.high is None else self.high),
            *(self.algorithm.lower(), self.protocol.lower(), self.channels),
            *(-1 if number is None else number for number in (self.nodes, self.ranks)),
        )
        return ",".join(map(str, fields))


def tuner_csv(rules: Sequence[TunerRule], comments: Sequence[str]) -> str:
    """The file: comments, the rules, and Ring/Simple for every function at the end."""
    channels = max(rule.channels for rule in rules)
    rest = [TunerRule(name, 0, None, "RING", "SIMPLE", channels) for name in FUNCTIONS.values()]
    wrapped = [part for text in (*_HEAD, *comments) for part in textwrap.wrap(text, _WIDTH)]
    lines = [f"# {text}" for text in wrapped]
    lines.append("# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks")
    lines += [rule.line() for rule in rules]
    return "\n".join([*lines, f"# {_REST}", *(rule.line() for rule in rest), ""])
