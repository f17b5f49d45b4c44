"""How a training is laid out over its ranks: the degrees of each parallelism, the groups, and the
calls inside of a layer.

Neighbouring ranks are those of ``tp``, then of ``cp``, of the data-parallel dimensions, and of
``pp``, as in torchtitan (torchtitan/distributed/parallel_dims.py: pp, dp_replicate, dp_shard, cp,
tp) and in Megatron-LM's default order (tp-cp-ep-dp-pp). Expert parallelism takes its ranks from the
data-parallel and context-parallel ones, so that ``ep`` is no factor of the number of ranks.

Calls of tensor, sequence, context and expert parallelism: sizes are those of nccl-tests (S).
``act`` is the activations of a micro-batch on one rank of tp: tokens / cp x hidden columns.

- Tensor parallelism (M. Shoeybi et al., arXiv 1909.08053, section 3): an all_reduce of ``act``
  after attention and after the feed-forward block, and one of the gradient before each in the
  backward pass. Each block has one input, as with PrepareModuleInput of torch and in Megatron-LM.
- With sequence parallelism (V. Korthikanti et al., arXiv 2205.05198, section 4.2.2): an all_gather
  before and a reduce_scatter after each block, in both passes. The gradients of the norms are
  all-reduced over tp. With ``regather``, as in that section, and always with ``zero1``, the input
  of a block and of the head is gathered again for the gradients of the weights, which torch's
  DTensor keeps
  (megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
- ``tp-overlap``: Megatron-LM's --tp-comm-overlap, torchtitan's asynchronous tensor parallelism. The
  calls are sent in pieces beside the matrix product that makes or needs them, and the plan waits
  for none of them.
- Embedding, head and loss are split by the vocabulary (``loss_parallel``): three all_reduce of a
  float32 for each token.
- Context parallelism: torch's ring attention
  (torch/distributed/tensor/experimental/_context_parallel/_attention.py, _templated_ring_attention
  and _templated_ring_attention_backward): one all_gather of keys and values in
  each pass, as is the default; the gradients of keys and values go around the ring in float32, cp
  sends. A send is an all_to_all_single there, of which all goes to the next rank (permute_tensor of
  torch/distributed/_functional_collectives.py).
- Expert parallelism (torchtitan/models/common/token_dispatcher.py, AllToAllTokenDispatcher):
  all_to_all of the numbers of tokens, of the tokens to their experts, and of the results back; in
  the backward pass the last two again. Tokens are taken as spread evenly over the experts.
  Megatron-LM also sends the routing probabilities, which the plan leaves out
  (megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher).
- Expert parallelism with tp: as in MoEAlltoAllTokenDispatcher, with the default of
  --expert-tensor-parallel-size: the experts are split over tp, and the tokens gathered and their
  results scattered over it.
  torchtitan takes the ranks of tp for ep instead (torchtitan/distributed/parallel_dims.py).
- DeepEP (deepseek-ai/DeepEP, csrc/kernels/internode.cu) sends one copy of a token to each host, and
  within a host to each rank, where an expert of the token is; its kernels are for hosts of 8
  (csrc/kernels/configs.cuh, NUM_MAX_NVL_PEERS). Node-limited routing (``topk_group`` of a config
  with ``n_group``) limits the hosts. With 8 bits a token has a float32 for each 128 columns, and
  what goes to the experts, in both passes, has 8 bits (arXiv 2412.19437, section 3.3).
- Activation checkpointing of whole layers repeats the calls of the forward pass in the backward
  pass: with ``zero1`` all of them (megatron/core/tensor_parallel/random.py, CheckpointFunction),
  elsewhere without the last one, whose result is not needed (torch.utils.checkpoint stops early).

``tests/training/test_layer_calls.py`` compares these with captures of DTensor's.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from torchcoll.core.collectives import find_dtype
from torchcoll.core.errors import UsageError, unknown
from torchcoll.parts.training.architectures import EMBEDDING, HEAD, MODULE, Architecture, ModelBlock
from torchcoll.parts.training.step_program import SentCall

DP, ZERO1, ZERO2, FSDP, HSDP = "dp", "zero1", "zero2", "fsdp", "hsdp"
# What replicates or shards the model; of each layout one.
DATA_PARALLEL = {
    DP: "DDP",
    ZERO1: "Megatron-LM's distributed optimizer",
    ZERO2: "FSDP2 with reshard_after_forward=False",
    FSDP: "FSDP2",
    HSDP: "FSDP2 with replicas",
}
_OTHERS = ("tp", "pp", "cp", "ep")
FULL, SELECTIVE = "ckpt", "sac"  # activation checkpointing
# Exchange of tokens by DeepEP, and with 8 bits to the experts.
DEEPEP, DEEPEP_FP8 = "deepep", "deepep-fp8"
# Activations of tp, and tokens of experts, are sent beside the computation.
TP_OVERLAP, EP_OVERLAP = "tp-overlap", "ep-overlap"
REGATHER = "regather"  # inputs of sequence parallelism are gathered again, not kept
# Words without a number.
_FLAGS = ("sp", REGATHER, TP_OVERLAP, FULL, SELECTIVE, DEEPEP, DEEPEP_FP8, EP_OVERLAP)
_WORDS = (*DATA_PARALLEL, *_OTHERS, *_FLAGS)
_ZERO3 = "ZeRO-3 is fsdp here. What DeepSpeed itself sends is not planned."
_FORM = "degrees such as fsdp=64, hsdp=8x8, fsdp=8,tp=8,sp or dp=8,tp=8,pp=4x2, each 1 or more"


@dataclass(frozen=True)
class ParallelLayout:
    """The degrees of a layout.

    - data: a name of DATA_PARALLEL.
    - replicas, shards: copies of the model, and ranks over which one copy is sharded (ZERO1: its
      optimizer state). 0: to be set from the number of ranks (``on``).
    - virtual: virtual stages of each rank of the pipeline.
    - sequence_parallel: the activations between the layers' matrices are sharded over tp.
    - regather: what sequence parallelism gathers is not kept for the backward pass.
    - checkpoint: FULL or SELECTIVE: layers, or parts of them, are computed again in the backward
      pass.
    - cap_mb: DDP's bucket_cap_mb; None for its default.
    - dispatch: DEEPEP or DEEPEP_FP8; '' for all_to_all.
    - tp_overlap, ep_overlap: the activations of tp are sent in pieces beside the matrices that
      need them; tokens are exchanged beside the computation of another micro-batch.
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
    regather: bool = False
    checkpoint: str = ""
    cap_mb: float | None = None
    dispatch: str = ""
    tp_overlap: bool = False
    ep_overlap: bool = False

    @property
    def ranks(self) -> int:
        return self.replicas * self.shards * self.inner

    @property
    def inner(self) -> int:
        """Ranks of one data-parallel rank."""
        return self.tp * self.pp * self.cp

    @property
    def megatron(self) -> bool:
        """Whether it is a layout of Megatron-LM, not of torch."""
        return self.data == ZERO1

    @property
    def regathers(self) -> bool:
        """Whether the inputs that sequence parallelism gathers are gathered again."""
        return self.regather or self.megatron

    @property
    def sharded(self) -> bool:
        """Whether the parameters are sharded by FSDP2."""
        return self.data in (ZERO2, FSDP, HSDP)

    @property
    def name(self) -> str:
        """The layout as ``--parallel`` takes it."""
        count = self.replicas * self.shards
        cap = "" if self.cap_mb is None else f"@{self.cap_mb:g}"
        size = f"{self.replicas}x{self.shards}" if self.data == HSDP else f"{count}"
        texts = {
            f"{self.data}{cap}={size}": count > 1 or self.inner == 1 or self.data != FSDP,
            f"tp={self.tp}": self.tp > 1,
            f"pp={self.pp}" + (f"x{self.virtual}" if self.virtual > 1 else ""): self.pp > 1,
            f"cp={self.cp}": self.cp > 1,
            f"ep={self.ep}": self.ep > 1,
            self.dispatch: self.dispatch,
            EP_OVERLAP: self.ep_overlap,
            "sp": self.sequence_parallel,
            REGATHER: self.regather,
            TP_OVERLAP: self.tp_overlap,
            self.checkpoint: self.checkpoint,
        }
        return ",".join(text for text, shown in texts.items() if shown)

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees by name, without those that are 1."""
        if self.data == HSDP:
            data = {"replicate": self.replicas, "shard": self.shards}
        else:
            data = {self.data: self.replicas * self.shards}
        return {name: n for name, n in {**data, **self.words}.items() if n > 1}

    @property
    def words(self) -> dict[str, int]:
        """The degrees of tp, pp, cp and ep that are not 1."""
        degrees = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        return {name: n for name, n in degrees.items() if n > 1}

    @property
    def kinds(self) -> tuple[int, int]:
        """The number of words in the name, with replicas, and the degree of cp: the least is the
        simplest layout.
        """
        return self.name.count(",") + 1 + (self.data == HSDP), self.cp

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
            raise LayoutError("ranks", ranks, f"a multiple of {fixed}, for {text}")
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
    cap_mb: float | None = None
    for item in text.split(separator):
        name, equals, number = item.strip().partition("=")
        name, at, cap = name.partition("@")
        if at:
            cap_mb = _parse_cap(name, cap, text, option)
        if name not in _WORDS:
            if name.startswith("zero3") or name.endswith("-deepspeed"):
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
        regather=REGATHER in values,
        checkpoint=next((name for name in (FULL, SELECTIVE) if name in values), ""),
        cap_mb=cap_mb,
        dispatch=next((name for name in (DEEPEP, DEEPEP_FP8) if name in values), ""),
        tp_overlap=TP_OVERLAP in values,
        ep_overlap=EP_OVERLAP in values,
    )
    for first, second in ((FULL, SELECTIVE), (DEEPEP, DEEPEP_FP8)):
        if first in values and second in values:
            raise UsageError(option, text, f"one of {first} and {second}")
    if (layout.dispatch or layout.ep_overlap) and layout.ep < 2:
        expected = f"ep=2 or more with {layout.dispatch or EP_OVERLAP}"
        raise UsageError(option, text, expected)
    for flag in (REGATHER, TP_OVERLAP):
        if flag in values and not layout.sequence_parallel:
            raise UsageError(option, text, f"sp with {flag}, whose gathered inputs it needs")
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


def _parse_cap(name: str, cap: str, text: str, option: str) -> float:
    """Returns the bucket_cap_mb of ``dp@25``. Raises UsageError for anything else."""
    try:
        value = float(cap)
    except ValueError:
        value = -1.0
    if name != DP or not 0 < value < 1 << 20:
        raise UsageError(option, text, "a bucket_cap_mb after dp@, such as dp@25")
    return value


class LayoutError(UsageError):
    """A layout that the model or the number of ranks cannot have."""

    def __init__(self, what: str, value: object, expected: str, action: str = "") -> None:
        super().__init__(what, value, expected, action)
        self.value, self.expected = value, expected


def _divided(architecture: Architecture, experts: bool) -> list[tuple[str, int]]:
    """Returns what tp divides; experts: with the columns of an expert."""
    numbers = [
        ("attention heads", architecture.heads),
        ("key/value heads", architecture.key_heads),
        ("feed-forward columns", architecture.feed_forward),
        ("columns of an expert", architecture.expert_columns if experts else 0),
        ("hidden columns", architecture.hidden),
    ]
    return [(what, number) for what, number in numbers if number]


def possible_degrees(name: str, architecture: Architecture, ranks: int = 0) -> str:
    """Returns a clause with the degrees of tp or ep that divide the model and the ranks.

    - ranks: 0 if they do not matter.
    """
    numbers = (number for _, number in _divided(architecture, experts=True))
    whole = architecture.experts if name == "ep" else math.gcd(*numbers)
    degrees = [n for n in range(2, whole + 1) if whole % n == ranks % n == 0]
    return f"{name} can be {', '.join(map(str, degrees[:8])) or 1}"


def check_layout(layout: ParallelLayout, architecture: Architecture, micro_batches: int) -> None:
    """Raises LayoutError for a layout that the model cannot have."""
    tp, layers = layout.tp, len(architecture.layers)
    if architecture.model_type == MODULE and (layout.inner > 1 or layout.ep > 1):
        expected = f"{', '.join(DATA_PARALLEL)} alone, for a model from its code"
        raise LayoutError("parallel", layout.name, expected, "A config.json says how it is split.")
    for what, number in _divided(architecture, layout.ep == 1 or tp > 1):
        if number % tp:
            expected = f"a divisor of the {number} {what}: {possible_degrees('tp', architecture)}"
            raise LayoutError("parallel", f"tp={tp}", expected)
    stages = layout.pp * layout.virtual
    # A first and a last stage may have the embedding and the head alone.
    most = layers + 2 if layout.pp > 1 else 1
    if stages > most:
        actual = f"pp={layout.pp}" + (f"x{layout.virtual}" if layout.virtual > 1 else "")
        raise LayoutError("parallel", actual, f"at most {most} stages for {layers} layers")
    if layout.virtual > 1 and micro_batches % layout.pp:
        expected = f"a multiple of pp={layout.pp} micro-batches, as interleaving needs"
        raise LayoutError("batch", f"{micro_batches} micro-batches", expected)
    if layout.ep > 1:
        if not architecture.experts:
            raise LayoutError("parallel", f"ep={layout.ep}", "a model with experts")
        shards = layout.shards if layout.sharded else layout.replicas * layout.shards
        of_ranks = (shards * layout.cp, "data-parallel ranks (with cp)")
        for number, what in ((architecture.experts, "experts"), of_ranks):
            if number % layout.ep:
                degrees = possible_degrees("ep", architecture, shards * layout.cp)
                expected = f"a divisor of the {number} {what}: {degrees}"
                raise LayoutError("parallel", f"ep={layout.ep}", expected)
        if tp > 1 and not layout.sequence_parallel:
            expected = "sp with ep and tp: the tokens are sharded over tp"
            with_sp = layout.name.replace(f"tp={tp}", f"tp={tp},sp")
            raise LayoutError("parallel", layout.name, expected, f"Write {with_sp}.")


def parse_layouts(
    text: str, ranks: int | None, architecture: Architecture
) -> tuple[list[ParallelLayout], list[str]]:
    """Returns the layouts of ``dp,fsdp,hsdp,fsdp+tp=8`` on the same number of ranks, and why others
    of the text are left out: the model or the ranks cannot have them.

    - ranks: this number; None for that of the first layout, all of whose degrees are then given.

    Raises UsageError for what is no layout, and if no layout is possible.
    """
    layouts: list[ParallelLayout] = []
    left_out = []
    first: LayoutError | None = None
    for item in text.split(","):
        try:
            layout = parse_layout(item, ranks, "+", "compare")
            check_layout(layout, architecture, layout.pp)
        except LayoutError as error:
            first = first or error
            named = re.findall(r"(tp|ep)=(\d+)", item)
            wrong = [name for name, n in named if ranks and ranks % int(n)]
            expected = error.expected
            if error.what == "ranks" and wrong:
                expected += f": {possible_degrees(wrong[0], architecture, ranks or 0)}"
            left_out.append(f"{item.strip()} is left out: got {error.value}, expected {expected}")
            continue
        ranks = ranks or layout.ranks
        if layout.ranks != ranks:
            actual = f"{layout.name} = {layout.ranks} ranks"
            raise UsageError("compare", actual, f"{ranks} ranks in each")
        layouts.append(layout)
    if first is not None and not layouts:
        raise UsageError("compare", text, left_out[0].partition(", expected ")[2], first.action)
    return list(dict.fromkeys(layouts)), left_out


_REDUCED, _GATHERED, _SCATTERED = "all_reduce", "all_gather", "reduce_scatter"
_EXCHANGED, _SENT = "all_to_all", "sendrecv"


@dataclass(frozen=True)
class Batch:
    """What one data-parallel rank computes in a step.

    - micro_batches: how many forward and backward passes; each of so many sequences of tokens (a
      fraction in strong scaling).
    """

    micro_batches: int
    sequences: int
    tokens: float

    @property
    def tokens_each(self) -> float:
        """Tokens of a micro-batch."""
        return self.sequences * self.tokens

    @property
    def text(self) -> str:
        each = f"{self.sequences} x {self.tokens:g} tokens"
        return f"{self.micro_batches} micro-batches of {each}" if self.micro_batches > 1 else each


def parse_batch(text: str) -> Batch:
    """Returns the batch of ``SEQUENCESxTOKENS`` or ``MICROBATCHESxSEQUENCESxTOKENS``."""
    numbers = text.split("x")
    whole = all(number.isdecimal() and 1 <= int(number) <= 1 << 40 for number in numbers)
    if len(numbers) not in (2, 3) or not whole:
        expected = "SEQUENCESxTOKENS of a rank, such as 1x8192, or with micro-batches 16x1x8192"
        raise UsageError("batch", text, expected)
    *micro_batches, sequences, tokens = map(int, numbers)
    return Batch(micro_batches[0] if micro_batches else 1, sequences, tokens)


@dataclass(frozen=True)
class BlockCalls:
    """The blocking calls of a block, outside of its experts and inside of them."""

    forward: tuple[SentCall, ...] = ()
    backward: tuple[SentCall, ...] = ()
    experts_forward: tuple[SentCall, ...] = ()
    experts_backward: tuple[SentCall, ...] = ()
    norm_gradients: tuple[SentCall, ...] = ()


def block_calls(
    architecture: Architecture,
    block: ModelBlock,
    layout: ParallelLayout,
    batch: Batch,
    dtype: str,
) -> BlockCalls:
    """Returns the calls of one micro-batch in a block, in their order.

    - dtype: of the activations.
    """
    itemsize = find_dtype(dtype).itemsize
    tokens = batch.tokens_each / layout.cp
    act = math.ceil(tokens * architecture.hidden * itemsize)
    tp, sp, megatron = layout.tp > 1, layout.sequence_parallel, layout.data == ZERO1
    gather = SentCall("tp", _GATHERED, act, "activations")
    scatter = SentCall("tp", _SCATTERED, act, "activations")
    reduce = SentCall("tp", _REDUCED, act, "activations")
    norms = tuple(SentCall("tp", _REDUCED, n * itemsize, "gradients of norms") for n in block.norms)
    norms = norms if sp else ()
    if block.kind == EMBEDDING:
        if not tp or not architecture.vocabulary:
            return BlockCalls()
        if sp:
            return BlockCalls((scatter,), (gather,), norm_gradients=norms)
        return BlockCalls((reduce,))
    if block.kind == HEAD:
        if not tp or not architecture.vocabulary:
            return BlockCalls(norm_gradients=norms)
        loss = SentCall("tp", _REDUCED, math.ceil(tokens * 4), "loss")
        before = (gather,) if sp else ()
        again = (gather,) if sp and layout.regathers else ()
        backward = (*again, scatter if sp else reduce)
        return BlockCalls((*before, loss, loss, loss), backward, (), (), norms)
    halves = ((gather, scatter) if sp else (reduce,)) if tp else ()
    keys_forward, keys_backward = _keys(architecture, layout, batch, dtype)
    routed, routed_backward = _experts(architecture, layout, batch, dtype)
    routed_here = bool(routed) and block.moe
    # Without routed experts on other ranks, the feed-forward block is split like any other.
    dense = halves if not routed_here or architecture.shared_experts else ()
    attention = (*halves[:1], *keys_forward, *halves[1:]) if sp else (*keys_forward, *halves)
    forward = (*attention, *dense)
    again = (gather,) if sp and layout.regathers else ()
    dense_backward = (*dense[:1], *again, *dense[1:]) if dense else ()
    backward = (*dense_backward, *halves[:1], *keys_backward, *again, *halves[1:])
    if not sp:
        backward = (*dense, *keys_backward, *halves)
    experts_forward = routed if routed_here else ()
    experts_backward = routed_backward if routed_here else ()
    if layout.checkpoint == FULL:
        stops_early = dense and not routed_here and not megatron
        repeated = forward[:-1] if stops_early else forward
        # The gradient of the last reduce_scatter is gathered before anything is computed again.
        first = backward[:1] if sp and stops_early else ()
        backward = (*first, *repeated, *backward[len(first) :])
        experts_backward = (*experts_forward, *experts_backward)
    return BlockCalls(forward, backward, experts_forward, experts_backward, norms)


def _keys(
    architecture: Architecture, layout: ParallelLayout, batch: Batch, dtype: str
) -> tuple[tuple[SentCall, ...], tuple[SentCall, ...]]:
    """Returns the calls of context parallelism in the attention of a layer, of both passes."""
    if layout.cp < 2:
        return (), ()
    elements = batch.tokens_each * architecture.key_columns / layout.tp / layout.cp
    local = math.ceil(elements * find_dtype(dtype).itemsize)
    what = "keys and values"
    kept = [SentCall("cp", _GATHERED, local * layout.cp, what)]
    gradient = SentCall("cp", _SENT, math.ceil(4 * elements), "their gradients")
    return tuple(kept), (*kept, *[gradient] * layout.cp)


def _experts(
    architecture: Architecture, layout: ParallelLayout, batch: Batch, dtype: str
) -> tuple[tuple[SentCall, ...], tuple[SentCall, ...]]:
    """Returns the calls around the routed experts of a layer, of both passes."""
    if layout.ep < 2:
        return (), ()
    split = layout.tp if layout.sequence_parallel else 1
    visits = batch.tokens_each / layout.cp / split * architecture.top_k
    itemsize = find_dtype(dtype).itemsize
    columns = architecture.expert_input or architecture.hidden
    if layout.dispatch:
        visits *= _copies(architecture, layout) / architecture.top_k
    size_bytes = math.ceil(visits * columns * itemsize)
    numbers = SentCall("ep", _EXCHANGED, 8 * architecture.experts, "numbers of tokens")
    sent_bytes = size_bytes
    if layout.dispatch == DEEPEP_FP8:
        sent_bytes = math.ceil(visits * columns * (1 + 4 / 128))
    there = SentCall("ep", _EXCHANGED, sent_bytes, "tokens to experts")
    back = SentCall("ep", _EXCHANGED, size_bytes, "results of experts")
    if layout.tp < 2:
        return (numbers, there, back), (there, back)
    gathered = SentCall("tp", _GATHERED, size_bytes * split, "tokens of experts")
    scattered = SentCall("tp", _SCATTERED, size_bytes * split, "tokens of experts")
    inside = (there, gathered, scattered, back)
    return (numbers, *inside), inside


LINKED = 8  # ranks of a host for DeepEP


def _copies(architecture: Architecture, layout: ParallelLayout) -> float:
    """Returns how many copies of a token DeepEP sends: the hosts, or within a host the ranks, that
    top_k experts at random are on.
    """
    places = layout.ep / LINKED if layout.ep > LINKED else float(layout.ep)
    visited = places
    if layout.ep > LINKED and architecture.expert_groups:
        visited = min(places, architecture.expert_groups)
    copies = visited * (1 - (1 - 1 / visited) ** architecture.top_k)
    # An all_to_all keeps 1 / ep of its bytes on its rank, DeepEP those to its own host or rank.
    return copies * (1 - 1 / places) / (1 - 1 / layout.ep)
