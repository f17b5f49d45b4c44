"""How a training is laid out over its ranks: the degrees of each parallelism, and the groups.

Neighbouring ranks are those of ``tp``, then of ``cp``, of the data-parallel dimensions, and of
``pp``, as in torchtitan (torchtitan/distributed/parallel_dims.py: pp, dp_replicate, dp_shard, cp,
tp) and in Megatron-LM's default order (tp-cp-ep-dp-pp). Expert parallelism takes its ranks from the
data-parallel and context-parallel ones, so that ``ep`` is no factor of the number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchcoll.core.errors import UsageError, unknown
from torchcoll.parts.training.architectures import MODULE, Architecture

DP, ZERO1, ZERO2, FSDP, HSDP = "dp", "zero1", "zero2", "fsdp", "hsdp"
TORCH_ZERO = "zero-torch"
DEEPSPEED1, DEEPSPEED2 = "zero1-deepspeed", "zero2-deepspeed"
# What replicates or shards the model; of each layout one.
DATA_PARALLEL = {
    DP: "DDP",
    ZERO1: "Megatron-LM's distributed optimizer",
    TORCH_ZERO: "DDP and ZeroRedundancyOptimizer",
    DEEPSPEED1: "DeepSpeed ZeRO 1",
    DEEPSPEED2: "DeepSpeed ZeRO 2",
    ZERO2: "FSDP2 with reshard_after_forward=False",
    FSDP: "FSDP2",
    HSDP: "FSDP2 with replicas",
}
_OTHERS = ("tp", "pp", "cp", "ep")
_FLAGS = ("sp", "overlap")  # without a number
_WORDS = (*DATA_PARALLEL, *_OTHERS, *_FLAGS)
_ZERO3 = "ZeRO-3 is fsdp here; DeepSpeed's own ZeRO-3 is not planned."
_FORM = "degrees such as fsdp=64, hsdp=8x8, fsdp=8,tp=8,sp or dp=8,tp=8,pp=4x2, each 1 or more"


@dataclass(frozen=True)
class ParallelLayout:
    """The degrees of a layout.

    - data: a name of DATA_PARALLEL.
    - replicas, shards: copies of the model, and ranks over which one copy is sharded (ZERO1: its
      optimizer state). 0: to be set from the number of ranks (``on``).
    - virtual: virtual stages of each rank of the pipeline.
    - sequence_parallel: the activations between the layers' matrices are sharded over tp.
    - overlap: DeepSpeed's overlap_comm, which is off by default with ZeRO 1 and 2.
    """

    data: str = FSDP
    replicas: int = 1
    shards: int = 1
    tp: int = 1
    pp: int = 1
    virtual: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    overlap: bool = False

    @property
    def ranks(self) -> int:
        return self.replicas * self.shards * self.inner

    @property
    def inner(self) -> int:
        """Ranks of one data-parallel rank."""
        return self.tp * self.pp * self.cp

    @property
    def sharded(self) -> bool:
        """Whether the parameters are sharded by FSDP2."""
        return self.data in (ZERO2, FSDP, HSDP)

    @property
    def deepspeed(self) -> bool:
        return self.data in (DEEPSPEED1, DEEPSPEED2)

    @property
    def name(self) -> str:
        """The layout as ``--parallel`` takes it."""
        count = self.replicas * self.shards
        texts = [f"{self.data}={self.replicas}x{self.shards}" if self.data == HSDP else ""]
        if self.data != HSDP and (count > 1 or self.inner == 1):
            texts = [f"{self.data}={count}"]
        texts.append(f"tp={self.tp}" if self.tp > 1 else "")
        virtual = f"x{self.virtual}" if self.virtual > 1 else ""
        texts.append(f"pp={self.pp}{virtual}" if self.pp > 1 else "")
        texts.append(f"cp={self.cp}" if self.cp > 1 else "")
        texts.append(f"ep={self.ep}" if self.ep > 1 else "")
        texts.append("sp" if self.sequence_parallel else "")
        texts.append("overlap" if self.overlap else "")
        return ",".join(filter(None, texts))

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees by name, without those that are 1."""
        if self.data == HSDP:
            data = {"replicate": self.replicas, "shard": self.shards}
        else:
            data = {self.data: self.replicas * self.shards}
        others = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        return {name: n for name, n in {**data, **others}.items() if n > 1}

    def groups(self) -> dict[str, tuple[int, int]]:
        """Returns the number of ranks of each group, and how many ranks lie from one to the next.

        The ranks of context parallelism have the same parameters, so that the data-parallel groups
        include them.
        """
        shards, replicas = self.shards * self.cp, self.replicas
        if not self.sharded:
            shards, replicas = self.replicas * self.shards * self.cp, 1
        groups = {
            "tp": (self.tp, 1),
            "cp": (self.cp, self.tp),
            self.data_group: (shards, self.tp),
            "replicate": (replicas, shards * self.tp),
            "ep": (self.ep, self.tp),
            "edp": (shards // self.ep, self.tp * self.ep),
            "pp": (self.pp, self.ranks // self.pp),
            "embedding": (min(self.pp, 2), self.ranks // self.pp * max(1, self.pp - 1)),
        }
        return {name: group for name, group in groups.items() if group[0] > 1}

    @property
    def data_group(self) -> str:
        """The name of the group over which gradients are reduced or scattered."""
        return "shard" if self.data == HSDP else self.data

    def on(self, ranks: int) -> ParallelLayout:
        """Returns the layout on this many ranks: the data-parallel degree takes what remains.

        With HSDP the number of replicas grows, and their size stays. Raises UsageError for ranks
        that do not divide.
        """
        fixed = self.inner * (max(1, self.shards) if self.data == HSDP else 1)
        if ranks % fixed or ranks < fixed:
            text = self.name if self.replicas * self.shards else f"{self.inner} (tp x pp x cp)"
            raise UsageError("ranks", ranks, f"a multiple of {fixed}, for {text}")
        count = ranks // fixed
        if self.data not in (DP, HSDP):
            return replace(self, replicas=1, shards=count)
        return replace(self, replicas=count, shards=max(1, self.shards))


def parse_layout(
    text: str, ranks: int | None = None, separator: str = ",", option: str = "parallel"
) -> ParallelLayout:
    """Returns the layout of ``fsdp=8,tp=8,pp=4x2,sp``.

    - ranks: with it, a data-parallel degree without a number takes the remaining ranks; without
      one, it is fsdp. ``hsdp`` without numbers shards over 8 ranks.
    - option: the name of the option, for errors.

    Raises UsageError for anything else.
    """
    values: dict[str, tuple[int, ...]] = {}
    for item in text.split(separator):
        name, equals, number = item.strip().partition("=")
        if name not in _WORDS:
            if name.startswith("zero3"):
                raise UsageError(option, name, f"one of {', '.join(_WORDS)}", _ZERO3)
            raise unknown(option, name or text, _WORDS)
        if name in values:
            raise UsageError(option, f"{name} twice", "each once")
        numbers = number.split("x") if equals else []
        most = 2 if name in ("hsdp", "pp") else 0 if name in _FLAGS else 1
        wrong = any(not n.isdecimal() or not 1 <= int(n) <= 1 << 24 for n in numbers)
        if wrong or len(numbers) > most or (not numbers and name in _OTHERS):
            raise UsageError(option, text, _FORM)
        if name == HSDP and len(numbers) == 1:
            raise UsageError(option, item, "hsdp=REPLICASxSHARDS, such as hsdp=8x8")
        values[name] = tuple(map(int, numbers))
    data = [name for name in DATA_PARALLEL if name in values]
    if len(data) > 1:
        raise UsageError(option, text, f"one of {' and '.join(data)}")
    kind = data[0] if data else FSDP
    pipeline = values.get("pp", (1,))
    layout = ParallelLayout(
        data=kind,
        tp=values.get("tp", (1,))[0],
        pp=pipeline[0],
        virtual=pipeline[1] if len(pipeline) > 1 else 1,
        cp=values.get("cp", (1,))[0],
        ep=values.get("ep", (1,))[0],
        sequence_parallel="sp" in values,
        overlap="overlap" in values,
    )
    if layout.overlap and not layout.deepspeed:
        expected = f"{DEEPSPEED1} or {DEEPSPEED2} with overlap, which is DeepSpeed's overlap_comm"
        raise UsageError(option, text, expected)
    if layout.sequence_parallel and layout.tp < 2:
        raise UsageError(option, text, "tp=2 or more with sp, which shards over its ranks")
    if layout.virtual > 1 and layout.pp < 2:
        raise UsageError(option, text, "pp=2 or more with virtual stages")
    given = values.get(kind, ())
    if not given:
        if ranks is None:
            if data:
                raise UsageError(option, text, f"a number, such as {kind}=8, or --ranks N")
            return layout
        shards = min(8, max(1, ranks // layout.inner)) if kind == HSDP else 1
        return replace(layout, replicas=1, shards=shards).on(ranks)
    if kind == HSDP:
        layout = replace(layout, replicas=given[0], shards=given[1])
    elif kind == DP:
        layout = replace(layout, replicas=given[0])
    else:
        layout = replace(layout, shards=given[0])
    return layout


def check_layout(layout: ParallelLayout, architecture: Architecture, micro_batches: int) -> None:
    """Raises UsageError for a layout that the model cannot have."""
    tp, layers = layout.tp, len(architecture.layers)
    if architecture.model_type == MODULE and (layout.inner > 1 or layout.ep > 1):
        expected = f"{', '.join(DATA_PARALLEL)} alone, for a model from its code"
        raise UsageError("parallel", layout.name, expected, "A config.json says how it is split.")
    if layout.deepspeed and (layout.inner > 1 or layout.ep > 1):
        raise UsageError("parallel", layout.name, f"{layout.data} without tp, pp, cp and ep")
    divided = [("attention heads", architecture.heads), ("key/value heads", architecture.key_heads)]
    divided.append(("feed-forward columns", architecture.feed_forward))
    if layout.ep == 1 or layout.tp > 1:
        divided.append(("columns of an expert", architecture.expert_columns))
    divided.append(("hidden columns", architecture.hidden))
    for what, number in divided:
        if number % tp:
            raise UsageError("parallel", f"tp={tp}", f"a divisor of the {number} {what}")
    stages = layout.pp * layout.virtual
    if stages > layers:
        actual = f"pp={layout.pp}" + (f"x{layout.virtual}" if layout.virtual > 1 else "")
        raise UsageError("parallel", actual, f"at most as many stages as the {layers} layers")
    if layout.virtual > 1 and micro_batches % layout.pp:
        expected = f"a multiple of pp={layout.pp} micro-batches, as interleaving needs"
        raise UsageError("batch", f"{micro_batches} micro-batches", expected)
    if layout.ep > 1:
        if not architecture.experts:
            raise UsageError("parallel", f"ep={layout.ep}", "a model with experts")
        if architecture.experts % layout.ep:
            expected = f"a divisor of the {architecture.experts} experts"
            raise UsageError("parallel", f"ep={layout.ep}", expected)
        shards = layout.shards if layout.sharded else layout.replicas * layout.shards
        if shards * layout.cp % layout.ep:
            expected = f"a divisor of the {shards * layout.cp} data-parallel ranks (with cp)"
            raise UsageError("parallel", f"ep={layout.ep}", expected)
        if tp > 1 and not layout.sequence_parallel:
            expected = "sp with ep and tp: the tokens are sharded over tp"
            with_sp = layout.name.replace(f"tp={tp}", f"tp={tp},sp")
            raise UsageError("parallel", layout.name, expected, f"Write {with_sp}.")


def parse_layouts(text: str, ranks: int | None) -> list[ParallelLayout]:
    """Returns the layouts of ``dp,fsdp,hsdp,fsdp+tp=8`` on the same number of ranks.

    ranks: this number; None for that of the first layout, all of whose degrees are then given.
    """
    layouts: list[ParallelLayout] = []
    for item in text.split(","):
        layouts.append(parse_layout(item, ranks, "+", "compare"))
        ranks = ranks or layouts[0].ranks
    wrong = next((layout for layout in layouts if layout.ranks != ranks), None)
    if wrong is not None:
        raise UsageError("compare", f"{wrong.name} = {wrong.ranks} ranks", f"{ranks} ranks in each")
    return list(dict.fromkeys(layouts))


def degrees_text(layout: ParallelLayout) -> str:
    """Returns for example ``fsdp=8 x tp=8 = 64 ranks``."""
    texts = [f"{name}={n}" for name, n in layout.degrees.items() if name != "ep"]
    product = math.prod(n for name, n in layout.degrees.items() if name != "ep")
    return f"{' x '.join(texts)} = {product} ranks"
