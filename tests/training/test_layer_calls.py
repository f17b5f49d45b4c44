"""Planned calls of tensor, sequence and pipeline parallelism against captures on gloo."""

import torch
import torch.distributed as dist
from parallel_models import (
    HEADS,
    HIDDEN,
    KEY_HEADS,
    TOKENS,
    Llama,
    MixtureOfExperts,
    RingAttention,
    llama_config,
    split_over_tp,
    train_step,
)
from planned_models import on_ranks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.experimental._context_parallel._attention import set_rotate_method

from torchcoll import capture
from torchcoll.parts.training.architectures import parse_config
from torchcoll.parts.training.config_plan import TrainingOptions, plan_config
from torchcoll.parts.training.layouts import check_layout, parse_batch, parse_layout
from torchcoll.parts.training.step_program import BeginCall

LAYERS = 3


def sizes(call):
    """The size S of nccl-tests: an all_gather's output, a reduce_scatter's input."""
    return max(call.bytes_in, call.bytes_out)


def captured(traffic, names):
    """[group, collective, size] of rank 0; ``names``: of its groups, by their ranks."""
    if dist.get_rank():
        return None
    return [
        [
            names[tuple(traffic.members(call))],
            call.collective if call.collective != "send" else "sendrecv",
            sizes(call),
        ]
        for call in traffic.calls[0]
        if call.collective != "recv"
    ]


def tp(sequence_parallel, checkpoint=False):
    model = Llama(LAYERS)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    split_over_tp(model, mesh, sequence_parallel)
    if checkpoint:
        for number, layer in enumerate(model.layers):
            model.layers[number] = checkpoint_wrapper(layer)
    with capture() as traffic:
        train_step(model, parallel_loss=True)
    return captured(traffic, {(0, 1): "tp"})


def fsdp_tp():
    model = Llama(LAYERS)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    split_over_tp(model, mesh["tp"], True)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh["fsdp"])
    with capture() as traffic:
        train_step(model, parallel_loss=True)
    return captured(traffic, {(0, 1): "tp", (0, 2): "fsdp"})


def hsdp(micro_batches=1):
    model = Llama(LAYERS)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh)
    with capture() as traffic:
        for _ in range(micro_batches):
            train_step(model)
    return captured(traffic, {(0, 1): "shard", (0, 2): "replicate"})


def pipeline(virtual, micro_batches, sharded=False):
    """What rank 0 sends; a step before it lets the stages learn each other's shapes."""
    ranks, rank = 2, dist.get_rank() // (2 if sharded else 1)
    device = torch.device("cpu")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "fsdp")) if sharded else None
    group = mesh["pp"].get_group() if mesh else None
    stages = []
    for number in range(rank, ranks * virtual, ranks):
        model = Llama(LAYERS - 1 if virtual == 1 else 1, number, ranks * virtual)
        if mesh:
            for module in (*model.layers, model):
                fully_shard(module, mesh=mesh["fsdp"], reshard_after_forward=False)
        stages.append(PipelineStage(model, number, ranks * virtual, device, group=group))

    def loss(out, target):
        return torch.nn.functional.cross_entropy(out.flatten(0, 1), target.flatten())

    if virtual == 1:
        schedule = Schedule1F1B(stages[0], micro_batches, loss_fn=loss)
    else:
        schedule = ScheduleInterleaved1F1B(stages, micro_batches, loss_fn=loss)
    tokens = torch.zeros(micro_batches, TOKENS, dtype=torch.long)
    for step in range(2):
        arguments = (tokens,) if rank == 0 else ()
        target = {"target": tokens} if rank == ranks - 1 else {}
        if step == 0:
            schedule.step(*arguments, **target)
            continue
        with capture() as traffic:
            schedule.step(*arguments, **target)
    names = {(0, 1): "fsdp", (0, 2): "pp"} if sharded else {(0, 1): "pp"}
    return captured(traffic, names)


def context():
    """One layer's attention: 8 tokens over the ranks, as many heads as the plan's keys have."""
    set_rotate_method("allgather")
    local = TOKENS // dist.get_world_size()
    head = HIDDEN // HEADS
    heads = (1, KEY_HEADS, local, head)
    query, key, value = (torch.randn(heads, requires_grad=True) for _ in range(3))
    with capture() as traffic:
        RingAttention.apply(query, key, value).sum().backward()
    calls = captured(traffic, {tuple(range(dist.get_world_size())): "cp"})
    # A send to the next rank is an all_to_all_single of which the other ranks get nothing.
    name = {"all_to_all_v": "sendrecv"}
    return calls and [[group, name.get(what, what), size] for group, what, size in calls]


def experts():
    """fsdp=4,ep=2: experts are sharded over the 2 ranks that have the same."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("edp", "ep"))
    model = Llama(LAYERS)
    for layer in model.layers:
        layer.mlp = MixtureOfExperts(4, 2, mesh["ep"].get_group())
        fully_shard(layer.mlp.experts, mesh=mesh["edp"])
    whole = init_device_mesh("cpu", (4,))
    for module in (*model.layers, model):
        fully_shard(module, mesh=whole)
    with capture() as traffic:
        train_step(model)
    calls = captured(traffic, {(0, 1): "ep", (0, 2): "edp", (0, 1, 2, 3): "fsdp"})
    name = {"all_to_all_v": "all_to_all"}
    return calls and [[group, name.get(what, what), size] for group, what, size in calls]


def planned(layout_text, batch="1x8", layers=LAYERS, config=None):
    architecture = parse_config(config or llama_config(layers), "small")
    layout, batch = parse_layout(layout_text), parse_batch(batch)
    check_layout(layout, architecture, batch.micro_batches)
    plan = plan_config(architecture, layout, batch, TrainingOptions("float32"))
    return [
        [act.sent.group, act.sent.collective, act.sent.size_bytes]
        for act in plan.program.acts
        if isinstance(act, BeginCall)
    ]


def by_group(calls):
    groups = {}
    for group, collective, size_bytes in calls:
        groups.setdefault(group, []).append((collective, size_bytes))
    return groups


def test_two_ranks(tmp_path):
    cases = {
        "tp": lambda: tp(False),
        "sp": lambda: tp(True),
        "tp checkpoint": lambda: tp(False, checkpoint=True),
        "sp checkpoint": lambda: tp(True, checkpoint=True),
        "pp": lambda: pipeline(1, 4),
        "pp interleaved": lambda: pipeline(2, 4),
        "cp": context,
    }
    result = on_ranks(tmp_path, 2, cases)
    assert by_group(result["cp"])["cp"] == planned_groups("cp=2", layers=1)["cp"]
    # Without FSDP the gradients of norms stay partial sums: nothing reduces them.
    norms = ["tp", "all_reduce", 4 * HIDDEN]

    def without_norms(calls):
        return by_group([call for call in calls if call != norms])

    assert by_group(result["tp"]) == planned_groups("tp=2")
    assert by_group(result["sp"]) == without_norms(planned("tp=2,sp"))
    assert by_group(result["tp checkpoint"]) == planned_groups("tp=2,ckpt")
    assert by_group(result["sp checkpoint"]) == without_norms(planned("tp=2,sp,ckpt"))
    activations = ("sendrecv", 4 * TOKENS * HIDDEN)
    # Rank 0 has the first stage: it sends activations, and no gradient to a stage before it.
    assert by_group(result["pp"])["pp"] == [activations] * 4
    assert planned("pp=2", "4x1x8", layers=4).count(["pp", *activations]) == 4
    # With two virtual stages it has the first and the third: 2 x 4 activations, 4 gradients.
    assert by_group(result["pp interleaved"])["pp"] == [activations] * 12
    assert planned("pp=2x2", "4x1x8", layers=4).count(["pp", *activations]) == 12


def planned_groups(layout, **options):
    return by_group(planned(layout, **options))


def test_four_ranks(tmp_path):
    cases = {
        "fsdp tp": fsdp_tp,
        "hsdp": hsdp,
        "hsdp 2": lambda: hsdp(2),
        "pp fsdp": lambda: pipeline(1, 4, sharded=True),
        "cp": context,
        "ep": experts,
    }
    result = on_ranks(tmp_path, 4, cases)
    assert by_group(result["cp"])["cp"] == planned_groups("cp=4", layers=1)["cp"]
    config = llama_config(LAYERS, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
    plan = planned_groups("fsdp=4,ep=2", config=config)
    assert by_group(result["ep"]) == plan
    assert by_group(result["fsdp tp"]) == planned_groups("fsdp=2,tp=2,sp")
    assert result["hsdp"] == planned("hsdp=2x2")
    assert result["hsdp 2"] == planned("hsdp=2x2", "2x1x8")
    sharded = by_group(result["pp fsdp"])
    # The plan is that of the stage with the head: as many bytes as that with the embedding.
    assert sorted(sharded["pp"]) == [("sendrecv", 4 * TOKENS * HIDDEN)] * 4
    plan = planned_groups("fsdp=2,pp=2", batch="4x1x8", layers=4)
    assert [name for name, _ in sharded["fsdp"]] == [name for name, _ in plan["fsdp"]]
