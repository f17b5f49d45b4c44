"""The CSV file of NCCL's example tuner plugin (its sources: ext-tuner/example, from 2.30 on
plugins/tuner/example).

::

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks

The plugin reads the lines in order and takes the first that matches; both ends of the sizes are
inside; -1 is any number of nodes or ranks. Words that it does not know become allreduce, ring and
simple without a word, so none are written but its own. It starts from one channel, and NCCL
obeys: ``channels=-1``, and every call that no line matches, run on ONE channel, whatever its
README says (plugin.c of 2.27.5 to 2.30.7). Hence a number in every line, and lines at the end
that match whatever else there is.
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
