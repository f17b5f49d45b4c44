"""DDP with ``torchcoll.ddp_hook`` and without: the same gradients, and the buckets by hand."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from error_form import error_text
from planned_models import Mlp, Partial, Transformer, inputs, on_ranks
from torch.nn.parallel import DistributedDataParallel

import torchcoll
from torchcoll.core.errors import UsageError
from torchcoll.core.traffic import Group, Traffic
from torchcoll.training.capture import capture
from torchcoll.training.hook import ddp_hook

STEPS = 3
MODELS = {"mlp": Mlp, "transformer": Transformer, "partial": lambda: Partial(unused=True)}


def made(name, state=None, **how):
    """DDP of the same weights on all ranks and for every call."""
    torch.manual_seed(1)
    model = DistributedDataParallel(MODELS[name](), find_unused_parameters=name == "partial", **how)
    if state is not None:
        model.register_comm_hook(state, ddp_hook)
    return model


def train(model, traffic=None):
    """Gradients of each step: of other inputs on each rank and in each step."""
    torch.manual_seed(dist.get_rank())
    outcomes = []
    for _ in range(STEPS):
        model.zero_grad()
        model(inputs(model.module)).square().sum().backward()
        outcomes.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        if traffic is not None:
            traffic.step()
    return outcomes


def equal(ours, expected):
    pairs = [pair for a, b in zip(ours, expected, strict=True) for pair in zip(a, b, strict=True)]
    graded = [(a, b) for a, b in pairs if a is not None or b is not None]
    assert any(bool(a.count_nonzero()) for a, _ in graded)
    return all(torch.equal(a, b) for a, b in graded)


def same(name, **how):
    """Bit for bit, in every step, in every parameter."""
    traffic = Traffic()
    ours, expected = train(made(name, traffic, **how), traffic), train(made(name, **how))
    return equal(ours, expected)


def recorded():
    traffic = Traffic()
    train(made("mlp", traffic, bucket_cap_mb=10 / 1024), traffic)
    (group,) = traffic.groups.values()
    assert group == Group("0", tuple(range(dist.get_world_size())), "gloo", "default_pg")
    (calls,) = traffic.calls.values()
    spans = traffic.steps[dist.get_rank()]
    assert len(spans) == STEPS and spans == sorted(spans)
    assert [c.sequence for c in calls] == list(range(len(calls)))
    assert all(c.time_ns > 0 and c.start_ns >= 0 for c in calls)
    assert {(c.collective, c.op, c.asynchronous) for c in calls} == {("all_reduce", "sum", True)}
    assert traffic.ranks == dist.get_world_size()
    return {
        "calls": [(c.step, c.bytes_in, c.dtype) for c in calls],
        "buckets": traffic.environment["ddp_buckets"],
        "notes": traffic.notes,
    }


def captured():
    """The capture sees the all_reduce of the hook, which then records no call."""
    with capture() as traffic:
        model = made("mlp", traffic)
        before = len(traffic.calls[dist.get_rank()])
        train(model, traffic)
    calls = [c for c in traffic.calls[dist.get_rank()] if c.collective == "all_reduce"]
    train(model)  # the hook stays when the capture is over
    assert before == 0  # DDP's broadcasts are in step 0, as nothing was marked before
    return len(calls), traffic.environment["ddp_buckets"], [c.bytes_in for c in calls]


def own_group():
    group = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return None
    traffic = Traffic()
    ours = train(made("mlp", (traffic, group), process_group=group))
    expected = train(made("mlp", process_group=group))
    (outcomes,) = traffic.groups.values()
    assert outcomes.ranks == (0, 1)
    return equal(ours, expected)


def refused(state):
    with pytest.raises(UsageError) as error:
        ddp_hook(state, None)
    return str(error.value)


CASES = {
    2: {
        **{name: lambda name=name: same(name) for name in MODELS},
        "views": lambda: same("mlp", gradient_as_bucket_view=True),
        "small": lambda: same("transformer", bucket_cap_mb=1 / 1024),
        "recorded": recorded,
        "captured": captured,
    },
    # 1 / 3 is no number of a computer: to divide by 3 gives other gradients.
    3: {**{name: lambda name=name: same(name) for name in MODELS}, "own group": own_group},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return {
        ranks: on_ranks(tmp_path_factory.mktemp(f"on{ranks}"), ranks, cases)
        for ranks, cases in CASES.items()
    }


SAME = [
    (ranks, name)
    for ranks in CASES
    for name in CASES[ranks]
    if name not in ("recorded", "captured")
]


@pytest.mark.parametrize(("ranks", "name"), SAME)
def test_gradients_are_those_of_ddp_to_the_last_bit(outcomes, ranks, name):
    assert outcomes[ranks][name] is True


def bucket(index, floats, parameters):
    sizes = {"size_bytes": 4 * floats, "dtype": "float32", "parameters": parameters}
    return {"index": index, **sizes}


def test_buckets(outcomes):
    """All in one in the first step; then a bucket ends with the gradient that fills 10 KiB.

    They come last layer first, bias before weight: (10 + 300) + (30 + 1920) + (64 + 2560) floats
    are the first to be 2560 or more; 40 + 960 are left.
    """
    recorded = outcomes[2]["recorded"]
    assert recorded["buckets"] == [
        [bucket(0, 5884, 8)],
        [bucket(0, 4884, 6), bucket(1, 1000, 2)],
    ]
    assert recorded["calls"] == [
        [0, 4 * 5884, "float32"],
        *([step, 4 * floats, "float32"] for step in (1, 2) for floats in (4884, 1000)),
    ]
    assert recorded["notes"] == [
        "DDP's gradient buckets alone: a hook sees no other collective, and of the first step what "
        "comes after its first bucket"
    ]


def test_in_a_capture_no_bucket_is_counted_twice(outcomes):
    assert outcomes[2]["captured"] == [STEPS, [[bucket(0, 5884, 8)]], [4 * 5884] * STEPS]


def test_states_that_are_none():
    expected = "a Traffic, or (Traffic, process group)"
    assert refused(None) == error_text("state of ddp_hook", "NoneType", expected)
    assert refused((1, 2)) == error_text("state of ddp_hook", "int", expected)
    assert torchcoll.ddp_hook is ddp_hook
    planned = Traffic(calls={0: []})
    assert refused(planned) == (
        error_text("state of ddp_hook", "a Traffic that holds calls", "a new one, or a capture's")
    )
