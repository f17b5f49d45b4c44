"""A step of a model from its config: wrappers, optimisers, pipelines, memory."""

import math

import pytest
import torch
from made_runs import measured, run
from parallel_models import Llama, Widths, llama_config

import torchcoll
from torchcoll.core.errors import UnusableError
from torchcoll.parts.curves.model_fit import fit_model
from torchcoll.parts.training.architectures import parse_config, read_architecture
from torchcoll.parts.training.config_plan import (
    StagePlan,
    TrainingOptions,
    plan_config,
    stage_blocks,
    stage_ends,
)
from torchcoll.parts.training.config_projection import PlanSetting, compare_layouts
from torchcoll.parts.training.layouts import parse_batch, parse_layout
from torchcoll.parts.training.sent_by_wrappers import (
    Parameter,
    assign_buckets,
)
from torchcoll.parts.training.step_program import (
    BACKWARD,
    FORWARD,
    BeginCall,
    Idle,
    PassWork,
    RepeatedActs,
    StepProgram,
)

BF16 = TrainingOptions("bfloat16")
FP32 = TrainingOptions("float32")


def plan(config, layout, batch="1x8", options=FP32):
    architecture = (
        read_architecture(config) if isinstance(config, str) else parse_config(config, "x")
    )
    return plan_config(architecture, parse_layout(layout), parse_batch(batch), options)


def sent(planned, *collectives):
    return [
        act.sent
        for act in planned.program.acts
        if isinstance(act, BeginCall) and (not collectives or act.sent.collective in collectives)
    ]


@pytest.fixture(scope="module")
def llama_8b():
    """On meta; its parameters are in the order of Hugging Face's."""
    with torch.device("meta"):
        return Llama(32, widths=Widths(4096, 32, 8, 14336, 128256)).to(torch.bfloat16)


def llama_step(model):
    model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()


def test_ddp_sends_the_buckets_of_the_order_of_its_gradients(llama_8b):
    """DDP splits no parameter: 161 buckets and one for the embedding, of 32 to 1002 MiB."""
    sizes = [call.size_bytes for call in sent(plan("llama-3-8b", "dp=8", options=BF16))]
    order = []
    for name, parameter in llama_8b.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: order.append(Parameter(name, tuple(p.shape), "bfloat16", 2))
        )
    with torch.device("meta"):
        llama_step(llama_8b)
    buckets = assign_buckets(order, [1 << 20, 25 << 20])
    assert sizes == [bucket.size_bytes for bucket in buckets]
    assert (len(sizes), sum(sizes)) == (162, 2 * 8_030_261_248)


@pytest.mark.parametrize("layout", ["fsdp=2,tp=2,sp", "dp=2,pp=2", "zero1=2,tp=2,pp=2x2,sp"])
def test_micro_batches_that_are_alike_are_simulated_once(layout):
    """A step of 10 micro-batches takes as long as one that has them all written down."""
    program = plan(llama_config(4), layout, "10x1x8").program
    (middle,) = [act for act in program.acts if isinstance(act, RepeatedActs)]
    assert middle.times == 7
    written = []
    for act in program.acts:
        written += list(act.acts) * act.times if isinstance(act, RepeatedActs) else [act]
    for ns in (1.0, 30.0):  # hidden, or longer than the computation
        passes = {FORWARD: 1000.0, BACKWARD: 2000.0}
        expected = StepProgram(tuple(written)).step_ns(lambda call, ns=ns: ns, passes)
        assert program.step_ns(lambda call, ns=ns: ns, passes) == pytest.approx(expected)
    assert program.counts == StepProgram(tuple(written)).counts


def test_experts_by_deepep():
    """16 ranks are 2 hosts: of 2 experts of a token on average 1.5 hosts, half of them its own."""
    config = llama_config(model_type="mixtral", num_local_experts=16)

    def exchanged(layout, **more):
        calls = sent(plan({**config, **more}, layout, options=BF16), "all_to_all")
        return [call.size_bytes for call in calls if "numbers" not in call.what][:2]

    token = 8 * 16 * 2  # 8 tokens of 16 columns, 2 bytes each
    assert exchanged("fsdp=16,ep=16") == [2 * token] * 2
    once = 1.5 * 0.5 / (15 / 16)
    assert exchanged("fsdp=16,ep=16,deepep") == [math.ceil(once * token)] * 2
    limited = 1 * 0.5 / (15 / 16)  # to the experts of one group
    assert exchanged("fsdp=16,ep=16,deepep", n_group=2, topk_group=1)[0] == math.ceil(
        limited * token
    )
    # 8 bits and a float32 for each 128 columns there, 16 bits back.
    assert exchanged("fsdp=16,ep=16,deepep-fp8") == [
        math.ceil(once * token / 2 * (1 + 4 / 128)),
        math.ceil(once * token),
    ]


@pytest.mark.parametrize(("layout", "group"), [("fsdp=8,ep=8", "ep"), ("zero1=1,tp=8,sp", "tp")])
def test_calls_beside_the_computation(layout, group):
    def step_ns(word):
        program = plan("mixtral-8x7b", layout + word, "1x64", BF16).program
        passes = {FORWARD: 1e6, BACKWARD: 2e6}
        return program.step_ns(lambda call: 5.0 if call.group == group else 0.0, passes)

    assert step_ns("") > 3e6 + 5 * 32
    assert step_ns(f",{group}-overlap") < 3e6 + 5 * 20  # the loss, and what follows


def test_a_bucket_cap_is_a_part_of_a_layout():
    """Layers of 2720 float32, embedding and head of 512, a norm of 16: caps of 1 and 8 kB."""
    sizes = {
        cap: [call.size_bytes for call in sent(plan(llama_config(), f"dp@{cap}=2"))]
        for cap in (1 / 1024, 8 / 1024, 25)
    }
    assert len(sizes[1 / 1024]) > len(sizes[8 / 1024]) > len(sizes[25]) == 1
    assert {sum(each) for each in sizes.values()} == {4 * 6480}


def test_micro_batches():
    """FSDP2 sends in each, DDP in the last."""
    assert len(sent(plan(llama_config(), "fsdp=2", "3x1x8"))) == 3 * len(
        sent(plan(llama_config(), "fsdp=2"))
    )
    assert len(sent(plan(llama_config(), "dp=2", "3x1x8"))) == 1


def test_zero1_reduces_and_gathers_padded_buckets():
    """One bucket: embedding and head 512 each, a layer 2688, norms of 16 take 64; 6720 elements
    padded to a multiple of the least common multiple of 3 ranks and 128.
    """
    config, padded = llama_config(), 18 * 384
    calls = sent(plan(config, "zero1=3", options=BF16))
    # Parameters in bfloat16; gradients in float32, unless --reduce-dtype says otherwise.
    assert [(call.collective, call.size_bytes) for call in calls] == [
        ("all_gather", 2 * padded),
        ("reduce_scatter", 4 * padded),
    ]
    options = TrainingOptions("bfloat16", "", "bfloat16")
    (call,) = sent(plan(config, "zero1=3", options=options), "reduce_scatter")
    assert call.size_bytes == 2 * padded


def test_zero1_has_one_bucket_on_later_stages_and_the_shared_embedding_alone():
    config = llama_config(4, tie_word_embeddings=True, hidden_size=4096, vocab_size=10_000)
    config |= {"intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32}
    architecture = parse_config(config, "x")
    layout, batch = parse_layout("zero1=2,pp=2"), parse_batch("2x1x8")
    matrix = 4 * 10_000 * 4096  # a multiple of 128 elements
    per_stage = []
    for stage in (0, 1):
        chunks = stage_blocks(architecture, layout, stage)
        planner = StagePlan(architecture, layout, batch, BF16, stage, chunks)
        per_stage.append([s.size_bytes for s in sent(planner.plan(), "reduce_scatter")])
    first, last = per_stage
    assert len(first) > 2 and first[-1] == matrix  # 40 million elements each, the embedding last
    assert len(last) == 2 and last[0] == matrix


def test_zero1_with_sequence_parallel_is_megatrons():
    """Of each of 2 layers both inputs, and that of the head, are gathered again in the backward
    pass; the norms' gradients are one call: 5 of 16 elements.
    """
    regathered = sent(plan(llama_config(), "zero1=2,tp=2,sp"), "all_gather")
    once = sent(plan(llama_config(), "fsdp=2,tp=2,sp"), "all_gather")
    assert [c.group for c in regathered].count("tp") == [c.group for c in once].count("tp") + 5
    norms = [c for c in sent(plan(llama_config(), "zero1=2,tp=2,sp")) if "norms" in c.what]
    assert [call.size_bytes for call in norms] == [4 * 5 * 16]


def test_gradients_are_reduced_over_context_parallel_ranks_too():
    (call,) = sent(plan(llama_config(), "dp=1,cp=2"), "all_reduce")
    assert call.size_bytes == 4 * parse_config(llama_config(), "x").parameters


def test_zero1_closes_buckets_of_40_million_elements():
    """Llama-3-8B: the head is the first, the embedding in the last."""
    calls = sent(plan("llama-3-8b", "zero1=8", options=BF16), "reduce_scatter")
    assert calls[0].size_bytes == 4 * 128256 * 4096
    assert all(call.size_bytes >= 160_000_000 for call in calls)
    assert sum(call.size_bytes for call in calls) == pytest.approx(4 * 8_030_261_248, rel=1e-6)


def test_calls_name_the_modules_behind_them():
    def named(layout, *collectives, batch="1x8"):
        return [
            (act.sent.group, act.module)
            for act in plan(llama_config(), layout, batch).program.acts
            if isinstance(act, BeginCall) and act.sent.collective in collectives
        ]

    layers = ["model.layers.0", "model.layers.1"]
    # FSDP2's units, and the layer whose activations are gathered over tp before both of its halves.
    gathers = [name for group, name in named("fsdp=2,tp=2,sp", "all_gather") if group == "fsdp"]
    assert gathers[:3] == ["(root)", *layers]
    scatters = [name for group, name in named("fsdp=2,tp=2,sp", "reduce_scatter") if group == "tp"]
    assert scatters[:5] == ["model.embed_tokens", *(name for name in layers for _ in range(2))]
    assert named("dp=2", "all_reduce") == [("dp", "model.embed_tokens to lm_head")]
    assert named("zero1=2", "all_gather") == [("zero1", "model.embed_tokens to lm_head")]
    # The first stage sends the output of its last layer, the second the gradient of its first.
    assert set(named("dp=1,pp=2", "sendrecv", batch="2x1x8")) <= {("pp", name) for name in layers}
    experts = plan("mixtral-8x7b", "fsdp=8,ep=8").program.modules
    assert {name for sent, names in experts.items() if sent.group == "ep" for name in names} == {
        f"model.layers.{n}" for n in range(32)
    }


def machine_of_groups(most=1 << 18):
    """Two ranks alone take 1 ns for each byte, two such groups at once 3 ns up to the most."""
    sizes = [1 << n for n in range(2, 20, 2)]
    alone = run(*(measured(1000 + size, size_bytes=size) for size in sizes))
    places = [(size, number) for size in sizes if size <= most for number in (0, 1)]
    at_once = run(
        *(
            measured(1000 + 3 * n, size_bytes=n, group=f"div:2/{k}", members=[2 * k, 2 * k + 1])
            for n, k in places
        ),
        ranks=4,
    )
    four = run(*(measured(1000 + size, ranks=4, size_bytes=size) for size in sizes), ranks=4)
    return fit_model([alone, four, at_once]).model


def test_groups_of_a_layout_call_at_once():
    machine = machine_of_groups()
    architecture, batch = parse_config(llama_config(), "x"), parse_batch("1x8")
    for layout, factor in (("dp=2", 1), ("dp=2,tp=2", 3)):
        step = PlanSetting(machine, architecture, batch, FP32, None).step(parse_layout(layout))
        for row in step.rows:
            expected = 1000 + factor * row.size_bytes
            assert row.prediction.time_ns == pytest.approx(expected, rel=0.01), (layout, row)


@pytest.mark.parametrize(
    ("layout", "layers", "ends"),
    [
        # generate_llm_fqn_per_model_part of torchtitan 0.3.0: embedding and head count as layers.
        ("fsdp=1,pp=4", 80, [0, 20, 41, 61, 80]),
        ("fsdp=1,pp=2", 126, [0, 63, 126]),
        ("fsdp=1,pp=4x2", 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),  # with first_stage_less_layers 0
        ("zero1=1,pp=4", 80, [0, 20, 40, 60, 80]),
        # With --account-for-embedding-in-pipeline-split, and for the loss.
        ("zero1=1,pp=2x4", 14, [0, 1, 3, 5, 7, 9, 11, 13, 14]),
        ("zero1=1,pp=2x2", 2, [0, 0, 1, 2, 2]),
    ],
)
def test_layers_of_the_stages(layout, layers, ends):
    assert stage_ends(layers, parse_layout(layout)) == ends


def test_experts_with_few_tokens_wait_for_the_memory_of_the_gpu():
    """32 layers of 8 experts of 3 matrices of 4096 x 14336: 12 bytes of each at 3.35 TB/s are
    161.5 ms. 64 tokens compute in 2 ms.
    """
    for layout, least_ms in (("fsdp=8", 161.5), ("fsdp=8,ep=8", 161.5 / 8)):
        step = torchcoll.plan("mixtral-8x7b", layout, batch="1x64", machine="8xH100").step
        assert least_ms < step.compute.ns[0] / 1e6 < least_ms + 2, layout
    busy = torchcoll.plan("mixtral-8x7b", "fsdp=8,ep=8", batch="4x4096", machine="8xH100").step
    rates = read_architecture("mixtral-8x7b").flops_of_token(4096, masked=True) / 0.38 / 989e12
    assert busy.compute.ns[0] == pytest.approx(1e9 * 4 * 4096 * rates)


def test_the_stages_of_a_pipeline_compute_it_all_and_wait():
    """4 micro-batches on 2 stages: idle for 1 of them, a quarter of the computation, and while the
    second one computes the head.
    """
    planned = plan(llama_config(4), "fsdp=1,pp=2", "4x1x8")
    shares = {phase: 0.0 for phase in (FORWARD, BACKWARD)}
    for act in planned.program.acts:
        if isinstance(act, PassWork):
            shares[act.phase] += act.share
    assert shares == pytest.approx({FORWARD: 1.0, BACKWARD: 1.0})
    (idle,) = [act for act in planned.program.acts if isinstance(act, Idle)]
    # Two layers of 2720 parameters and attention over 4 tokens of 16 columns, for 2 heads of a key;
    # the head has a matrix of 32 x 16, and a norm.
    layers, head = 2 * (2720 + 4 * 2 * 16), 32 * 16 + 16
    more = (layers + head) / (layers + head / 2) - 1
    assert (idle.times, len(idle.waited)) == (1.0, 2)
    assert idle.share == pytest.approx(0.25 + more)
    passes = {FORWARD: 100.0, BACKWARD: 200.0}
    # 300 of computation, 75 idle, and 2 sends of 5 at the ends; the other sends overlap.
    expected = 300 + 75 + 300 * more + 10
    assert planned.program.step_ns(lambda call: 5.0, passes) == pytest.approx(expected)


def test_a_tied_embedding_is_reduced_between_the_ends_of_a_pipeline():
    planned = plan(llama_config(tie_word_embeddings=True), "dp=2,pp=2")
    (call,) = [call for call in sent(planned) if call.group == "embedding"]
    assert (call.collective, call.size_bytes) == ("all_reduce", 4 * 32 * 16)


def test_fewer_experts_than_ranks_are_sharded_by_columns():
    """2 local experts over 4 ranks: no padding of experts, 2 x 3 matrices of 40 x 16."""
    config = llama_config(model_type="mixtral", num_local_experts=4)
    calls = [call for call in sent(plan(config, "fsdp=8,ep=2")) if call.group == "edp"]
    assert {call.size_bytes for call in calls} == {4 * 2 * 3 * 40 * 16}


# Columns of what a layer of llama_config keeps for its backward pass: the inputs of two norms and
# those of attention and feed-forward block; queries, keys, values and attention's output; gate, up
# and their product. In bytes of 16-bit types for a token.
HALVES, ATTENTION, PRODUCT = 4 * 16, 16 + 8 + 8 + 16, 3 * 40
LAYER = 2 * (HALVES + ATTENTION + PRODUCT)


def test_activations_of_llama_3_8b():
    """34 bytes for each token and hidden column, by hand from its published widths."""
    memory = plan("llama-3-8b", "fsdp=8", "1x1024", BF16).memory
    assert memory.activations == 34 * 32 * 1024 * 4096


def test_a_pipeline_of_fsdp_keeps_whole_gradients_between_micro_batches():
    """Until the last micro-batch scatters them: 2 bytes for each parameter of the first stage. With
    as many micro-batches as stages, the backward passes of the last virtual stage come first.
    """
    layer = 16 * (16 + 8 + 8 + 16) + 3 * 16 * 40 + 2 * 16
    # Gathered parameters and whole gradients in the backward pass, those that are kept, and what is
    # received for each micro-batch: a gradient of 8 tokens, with two virtual stages three times.
    stage, received = 2 * (layer + 32 * 16), 2 * 8 * 16
    two, four = (plan(llama_config(), "fsdp=2,pp=2", f"{n}x1x8", BF16).memory for n in (2, 4))
    assert two.buffers == 3 * stage + 2 * received
    assert four.buffers == 3 * stage + 4 * received
    one, both = (plan(llama_config(4), "fsdp=2,pp=2x2", f"{n}x1x8", BF16).memory for n in (2, 4))
    assert both.buffers - one.buffers == 2 * layer + 2 * 3 * received


def test_memory_of_ddp_and_fsdp():
    """Of 1 000 000 bytes: DDP has the buckets too; FSDP2 a quarter of parameters and states."""
    config = llama_config()
    size_bytes = 4 * parse_config(config, "x").parameters
    memory = plan(config, "dp=4").memory
    assert (memory.parameters, memory.gradients) == (size_bytes, size_bytes)
    assert (memory.optimizer, memory.buffers) == (2 * size_bytes, size_bytes)
    # Of 2 layers and 8 tokens; twice the bytes of 16-bit types in float32.
    assert memory.activations == 2 * LAYER * 2 * 8
    memory = plan(config, "fsdp=4").memory
    assert memory.parameters == memory.gradients == size_bytes / 4
    assert memory.optimizer == size_bytes / 2


def test_activation_memory():
    planned = plan(llama_config(), "fsdp=4,ckpt", options=BF16)
    assert planned.memory.activations == 2 * 2 * 8 * 16
    # The first of 2 stages has 2 micro-batches in flight, of one layer.
    split = plan_config(
        parse_config(llama_config(), "x"), parse_layout("pp=2"), parse_batch("4x1x8"), BF16
    )
    assert split.memory.activations == LAYER * 8 * 2
    # With 2 virtual stages 2 (2 - 1) + (2 - 1) 2 + 1 = 5 passes of a chunk, of one layer each.
    split = plan_config(
        parse_config(llama_config(4), "x"), parse_layout("pp=2x2"), parse_batch("4x1x8"), BF16
    )
    assert split.memory.activations == LAYER * 8 * 5


def test_peak_memory():
    """8 tokens and 32 logits of 12 bytes, 6 in Megatron-LM, 16 in torch's loss_parallel, with the
    inputs of the head and its norm; or a whole layer, the gradient of its input and two of 40
    columns.
    """
    assert plan(llama_config(), "fsdp=4", options=BF16).memory.peak == 8 * (12 * 32 + 4 * 16)
    split = plan(llama_config(), "dp=4,tp=2,sp", options=BF16).memory.peak
    assert split == 8 * (16 * 32 / 2 + 2 * (16 + 16 / 2))
    assert plan(llama_config(), "zero1=4", options=BF16).memory.peak == 8 * (6 * 32 + 4 * 16)
    memory = plan(llama_config(vocab_size=8), "fsdp=4,ckpt", options=BF16).memory
    assert memory.peak == 8 * (LAYER + 2 * (16 + 2 * 40))
    # Each of two norms keeps a tensor of 4 bytes besides, the gate's function one of 2.
    assert memory.unfused == (2 * 4 * 16 + 2 * 40) * 8
    # Logits of 131072 tokens: 16.8e9.
    memory = plan("llama-3-8b", "fsdp=8,ckpt", "1x131072", BF16).memory
    assert memory.peak == 131072 * (12 * 128256 + 4 * 4096)


def test_selective_checkpointing_is_between_none_and_full():
    none, selective, full = (
        plan("llama-3-8b", layout, "2x8192", BF16).memory.activations
        for layout in ("fsdp=8", "fsdp=8,sac", "fsdp=8,ckpt")
    )
    assert full == 2 * 32 * 4096 * 16384
    # The input, half of the outputs of seven matrices, and that of attention.
    assert selective == 2 * 32 * 16384 * (
        4096 + (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096) / 2 + 4096
    )
    assert full < selective < none


def test_activation_memory_of_experts():
    """Of each token the attention, the router's 4 columns, and of 2 visits an input, an output and
    three tensors of 40 columns; 2 layers.
    """
    config = llama_config(model_type="mixtral", num_local_experts=4)
    assert plan(config, "fsdp=8", options=BF16).memory.activations == 2 * 8 * (
        2 * (HALVES + ATTENTION + 4) + 2 * (4 * 16 + 6 * 40)
    )


def test_layouts_that_do_not_fit_get_more_micro_batches():
    """8 times the tokens of a data-parallel rank: 8 x 8 x 8192, in micro-batches of 2 sequences."""
    architecture = read_architecture("llama-3-70b")
    layouts = [parse_layout(text) for text in ("fsdp=2,tp=8,sp", "fsdp=16")]

    def compared(memory_bytes):
        setting = PlanSetting(None, architecture, parse_batch("8x1x8192"), BF16, None)
        rows = compare_layouts(setting, layouts, memory_bytes).rows
        return {row.layout.name: row for row in rows}

    free = compared(None)["fsdp=2,tp=8,sp"]
    assert free.batch == parse_batch("8x8x8192")
    for limit, batch in ((2 * free.memory_bytes, "8x8x8192"), (1e9, "64x1x8192")):
        row = compared(limit)["fsdp=2,tp=8,sp"]
        assert row.batch == parse_batch(batch)
        alone = plan_config(architecture, layouts[0], parse_batch(batch), BF16)
        assert row.memory_bytes == alone.memory.total
        assert (row.fits == "no") == (limit == 1e9)


def test_comparison_keeps_the_tokens_and_begins_with_the_fastest():
    architecture = parse_config(llama_config(), "x")
    layouts = [parse_layout(text) for text in ("dp=8", "fsdp=8", "zero1=8", "fsdp=4,tp=2")]
    setting = PlanSetting(None, architecture, parse_batch("1x8"), FP32, None)
    comparison = compare_layouts(setting, layouts)
    assert "64 tokens in a step" in comparison.what
    assert comparison.rows == sorted(comparison.rows, key=lambda row: row.cost)
    # Within so many bytes only the layouts that shard the parameters fit.
    needed = {row.layout.name: row.memory_bytes for row in comparison.rows}
    limit = needed["fsdp=8"]
    limited = compare_layouts(setting, layouts, limit)
    fits = {row.layout.name: row.fits for row in limited.rows if not row.layout.checkpoint}
    # The plan's memory may be off by 10 %.
    assert {name: word != "no" for name, word in fits.items()} == {
        name: size <= 1.1 * limit for name, size in needed.items() if name in fits
    }
    assert fits["fsdp=8"] == "tight" and fits["dp=8"] == "no"
    assert "zero1=8,ckpt" in {row.layout.name for row in limited.rows}  # only so it fits
    assert limited.rows[-1].fits == "no"
    costs = {row.layout.name: row.cost for row in comparison.rows}
    batches = {row.layout.name: row.batch for row in comparison.rows}
    assert batches["fsdp=4,tp=2"] == parse_batch("1x2x8")
    # Half of an all_gather and of a reduce_scatter is as much as an all_reduce.
    assert costs["zero1=8"] == pytest.approx(costs["dp=8"], rel=0.05)  # its padding
    assert costs["fsdp=8"] > costs["dp=8"]


@pytest.mark.parametrize(("word", "ms"), [("", 300), (",sac", 350), (",ckpt", 400)])
def test_checkpointing_computes_more(word, ms):
    """A forward pass more than the three of forward and backward, or half of one."""
    plan = torchcoll.plan(
        "llama-3-8b", f"fsdp=8{word}", machine="8xH100", batch="1x128", step_ms=300.0
    )
    assert plan.compute_ns == pytest.approx(ms * 1e6)
    assert any("times the forward and backward pass" in note for note in plan.notes) == bool(word)


def test_models_with_the_parameters_of_another_type():
    """Kimi K2 is a DeepSeek V3 by another name; a model of text and images is its text part."""
    text = llama_config(model_type="qwen3", head_dim=4)
    expected = parse_config(text, "x").parameters
    several = {"model_type": "qwen3_vl", "text_config": {**text, "model_type": "qwen3_vl_text"}}
    architecture = parse_config(several, "x")
    assert (architecture.parameters, architecture.source) == (expected, "x (its text part)")
    with pytest.raises(UnusableError, match="model_type qwen3_vl"):
        parse_config({"model_type": "qwen3_vl"}, "x")
