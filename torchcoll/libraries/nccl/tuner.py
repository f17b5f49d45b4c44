"""Writes the CSV file of NCCL's example tuner plugin (in its sources: ext-tuner/example, from 2.30
on plugins/tuner/example).

::

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks

The plugin uses the first line that matches. Both ends of a range of sizes belong to it; -1 is any
number of nodes or ranks. The plugin silently reads a name that it does not know as allreduce, ring
or simple, so only names that it knows are written. Calls with ``channels=-1``, and calls that no
line matches, run on ONE channel, whatever its README says (plugin.c of 2.27.5 to 2.30.7). Hence
every line has a number of channels, and the last lines match all other calls.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from torchcoll.core.units import MAX_BYTES
from torchcoll.libraries.nccl.algorithms import ALGORITHMS, FUNCTIONS, PROTOCOLS

MOST_CHANNELS = 64  # NCCL's MAXCHANNELS
_WIDTH = 98  # the plugin reads 255 characters of a line
_HEAD = (
    "For the example tuner plugin in NCCL's sources:",
    "NCCL_TUNER_PLUGIN=<path of libnccl-tuner-example.so> NCCL_TUNER_CONFIG_FILE=<this file>",
    "Plugin versions: 2.30.3 and later, with any NCCL from 2.28. In those of 2.27.5 to 2.29.7 a",
    "line that matches reads invalid memory: ranks die of SIGSEGV. Earlier ones read no such file.",
    "2.28.3 and later also change constants of NCCL's cost model (Blackwell), with any file.",
    "Sizes: bytes, both ends inside; for allgather and reducescatter those of all ranks together.",
    "The first line that matches counts. What none matches would run on one channel.",
)
_REST = "Not measured: without these lines other calls would run on one channel."


@dataclass(frozen=True)
class TunerRule:
    """One line of the file.

    function: NCCL's name (AllReduce).
    low, high: sizes in bytes, both included; high None is no end.
    algorithm, protocol: names as in NCCL's log (NVLS_TREE, LL).
    nodes, ranks: None is any number.
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
        """Whether the plugin would use this line, given the number of nodes that it is for."""
        inside = self.low <= size_bytes <= (MAX_BYTES if self.high is None else self.high)
        return self.function == function and inside and self.ranks in (None, ranks)

    def line(self) -> str:
        """The text of the line. Raises ValueError for a name that the plugin would misread."""
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
    """The content of the file: comments, the rules, and last Ring/Simple for every function."""
    channels = max(rule.channels for rule in rules)
    fallbacks = [
        TunerRule(name, 0, None, "RING", "SIMPLE", channels) for name in FUNCTIONS.values()
    ]
    wrapped = [piece for text in (*_HEAD, *comments) for piece in textwrap.wrap(text, _WIDTH)]
    lines = [f"# {text}" for text in wrapped]
    lines.append("# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks")
    lines += [rule.line() for rule in rules]
    return "\n".join([*lines, f"# {_REST}", *(rule.line() for rule in fallbacks), ""])
