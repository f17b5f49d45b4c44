"""Whose parameters the captured calls move: by name in the real model, on real ranks."""

import pytest
import torch
import torch.distributed as dist
from planned_models import Transformer, on_ranks, step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from torchcoll import Traffic, capture
from torchcoll.parts.training.ddp_buckets import bucket_names
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.traces import read_traffic
from torchcoll.parts.training.traffic_table import summarise_traffic

CAP = 1 / 1024


def saved(traffic, folder, name):
    path = folder / f"{name}.jsonl"
    traffic.save(path)
    return str(path)


def ddp(folder, unused):
    model = DistributedDataParallel(Transformer(), bucket_cap_mb=CAP, find_unused_parameters=unused)
    with capture() as traffic:
        for _ in range(5):
            step(model)
            traffic.step()
    return saved(traffic, folder, f"ddp{unused}") if dist.get_rank() == 0 else ""


def fsdp(folder):
    model = Transformer()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for block in model.blocks[:2]:
        fully_shard(block, mesh=mesh)
    fully_shard([model.blocks[2], model.head], mesh=mesh)
    fully_shard(model, mesh=mesh)
    with capture() as traffic, profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
        for _ in range(2):
            step(model)
            traffic.step()
    p.export_chrome_trace(str(folder / f"trace-rank{dist.get_rank()}.json"))
    return saved(traffic, folder, "fsdp") if dist.get_rank() == 0 else ""


def two_models(folder):
    """Of FSDP2 and of DDP, each with the same names; and an all_reduce of the program's own, of as
    many elements as a bucket, while autograd is at that parameter.
    """
    first, second = (torch.nn.Sequential(torch.nn.Linear(n, n, bias=False)) for n in (8, 16))
    for model in (first, second):
        fully_shard(model[0])
        fully_shard(model)
    weights = [torch.nn.Linear(n, n, bias=False) for n in (8, 16)]
    models = [DistributedDataParallel(torch.nn.Sequential(weight)) for weight in weights]
    weights[0].weight.register_post_accumulate_grad_hook(
        lambda parameter: dist.all_reduce(torch.ones(64))
    )
    with capture() as traffic:
        for _ in range(4):
            for model, n in ((first, 8), (second, 16), (models[0], 8), (models[1], 16)):
                model(torch.ones(2, n)).sum().backward()
            traffic.step()
    return saved(traffic, folder, "two") if dist.get_rank() == 0 else ""


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured")
    cases = {
        "ddp": lambda: ddp(folder, False),
        "unused": lambda: ddp(folder, True),
        "fsdp": lambda: fsdp(folder),
        "two": lambda: two_models(folder),
    }
    paths = on_ranks(folder, 2, cases)
    return {name: Traffic.load(path) for name, path in paths.items()} | {"folder": folder}


def modules(traffic, step):
    sent = ("all_reduce", "all_gather", "reduce_scatter")
    return [c.module for c in traffic.calls[0] if c.step == step and c.collective in sent]


def test_fsdp_calls_name_their_unit(captured):
    traffic, model = captured["fsdp"], Transformer()
    forward = ["(root)", "blocks.0", "blocks.1", "blocks.2, head"]
    named = dict(model.named_modules())
    assert all(name in named for unit in forward[1:] for name in unit.split(", "))
    gathered = [c.module for c in traffic.calls[0] if c.collective == "all_gather" and c.step == 1]
    reduced = [c for c in traffic.calls[0] if c.collective == "reduce_scatter" and c.step == 1]
    assert gathered[:4] == forward
    assert [c.module for c in reduced] == forward[::-1]
    for unit in forward:  # the sizes are those of the parameters by these names
        names = traffic.parameters[unit]
        sizes = [model.get_parameter(name).nbytes for name in names]
        total = next(c.bytes_in for c in reduced if c.module == unit)
        assert sum(sizes) <= total < sum(sizes) + 64 * len(names)  # dimension 0 is padded
    all_names = sorted(name for unit in forward for name in traffic.parameters[unit])
    assert all_names == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("case", ["ddp", "unused"])
def test_ddp_calls_name_the_parameters_of_their_bucket(captured, case):
    traffic, model = captured[case], Transformer()
    sent = [c for c in traffic.calls[0] if c.step == 4 and c.module]
    assert len(sent) > 1
    for call in sent:
        names = traffic.parameters[call.module]
        assert sum(model.get_parameter(name).nbytes for name in names) == call.bytes_in
    named = [name for call in sent for name in traffic.parameters[call.module]]
    assert sorted(named) == sorted(name for name, _ in model.named_parameters())


def test_two_models_with_equal_names_are_told_apart(captured):
    """8 x 8 and 16 x 16 float32, the hook's 64 float32 without a name."""
    calls = [c for c in captured["two"].calls[0] if c.step == 3]
    bytes_of = {(c.collective, c.module, c.bytes_in) for c in calls if c.collective != "all_gather"}
    assert bytes_of == {
        ("reduce_scatter", "0", 256),
        ("reduce_scatter", "0 (model 2)", 1024),
        ("all_reduce", "0.weight", 256),
        ("all_reduce", "0.weight (model 2)", 1024),
        ("all_reduce", "", 256),
    }


def test_kineto_names_the_same_units(captured):
    traced = read_traffic([captured["folder"] / "trace-rank0.json"])
    assert [(c.collective, c.module) for c in traced.calls[0]] == [
        (c.collective, c.module) for c in captured["fsdp"].calls[0]
    ]


def test_exposed_calls_add_up_to_what_the_step_waited(captured):
    table = summarise_traffic(Ledger(captured["fsdp"]))
    # All calls of FSDP2 on gloo block the program.
    assert table.exposed.share == pytest.approx(table.busy_ns / table.step_ns, rel=0.01)
    assert table.exposed.unknown == 0
    assert {row.module for row in table.exposed.modules} == {
        "(root)",
        "blocks.0",
        "blocks.1",
        "blocks.2, head",
    }
    calls = [c for c in captured["ddp"].calls[0] if c.module and c.exposed_ns is not None]
    assert {c.step for c in calls} >= {4}
    assert all(0 <= c.exposed_ns <= c.time_ns for c in calls)
    # The reducer sends its last bucket when the backward pass ends, and waits for it there. On a
    # busy machine it may have ended by then in some steps.
    assert sum(c.exposed_ns for c in calls) > 0


def test_bucket_names():
    assert bucket_names([["a.0.w"], ["a.0.w", "a.0.b"], ["e.w", "a.1.m.w"]]) == [
        "a.0.w",
        "a.0",
        "e to a.1",
    ]
    # Two parts of one block: by parameter.
    assert bucket_names([["a.0.w", "a.0.b"], ["a.0.x", "a.0.y"]]) == [
        "a.0.w to a.0.b",
        "a.0.x to a.0.y",
    ]
    assert bucket_names([["weight", "bias"]]) == ["weight to bias"]
