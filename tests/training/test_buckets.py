"""Plans of DDP's buckets, against the buckets that DDP really makes and sends on gloo ranks."""

from __future__ import annotations

import inspect
import itertools
import random

import pytest
import torch
import torch.distributed as dist
from error_form import error_text
from planned_models import Mlp, Partial, Transformer, Watch, on_ranks, step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchcoll import gradient_buckets
from torchcoll.core.errors import UsageError
from torchcoll.parts.training.buckets import describe
from torchcoll.parts.training.plans import Bucket
from torchcoll.parts.training.sent_by_wrappers import assign_buckets

LISTS = "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel).parameters
KIB = 1 / 1024  # MiB

MODELS = {
    "mlp": Mlp,
    "transformer": Transformer,
    "tied": lambda: Transformer(1, tied=True),
    "frozen": lambda: Partial(unused=False),
    "unused": lambda: Partial(unused=True),
}
CAPS = {"default": None, "1K": KIB, "5K": 5 * KIB, "0": 0, "25": 25}
CAPS |= {"1K,2K,4K": [KIB, 2 * KIB, 4 * KIB]} if LISTS else {}
CASES = [
    (model, cap, unused)
    for model, cap, unused in itertools.product(MODELS, CAPS, (False, True))
    if unused or model != "unused"  # DDP cannot run it
]


def real(model, cap, unused):
    """DDP's own account of its buckets, and what was sent in its first and in its third step."""
    torch.manual_seed(0)
    network = MODELS[model]()
    names = [name for name, p in network.named_parameters() if p.requires_grad]
    caps = CAPS[cap]
    how = {"bucket_cap_mb_list" if isinstance(caps, list) else "bucket_cap_mb": caps}
    ddp = DistributedDataParallel(network, find_unused_parameters=unused, **how)
    sent = []
    for _ in range(3):
        with Watch() as watch:
            step(ddp)
        sent.append([call for call in watch.sent if call[0] == "allreduce_"])
    text = ddp._get_ddp_logging_data()
    members = text.get("rebuilt_per_bucket_param_indices")
    return {
        "sizes": text["bucket_sizes"],
        "rebuilt": text.get("rebuilt_bucket_sizes"),
        "members": members
        and [[names[int(i)] for i in bucket.split()] for bucket in members.split(",")],
        "first": sent[0],
        "steady": sent[2],
    }


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of every case on 2 ranks."""
    cases = {f"{case}": lambda case=case: real(*case) for case in CASES}
    return on_ranks(tmp_path_factory.mktemp("ddp"), 2, cases)


def sizes(buckets):
    return ", ".join(str(bucket.size_bytes) for bucket in buckets)


def sent(traffic):
    (calls,) = traffic.calls.values()
    return [["allreduce_", call.dtype, call.bytes_in, call.bytes_out] for call in calls]


def check(plan, ddp, find_unused, ranks=2):
    assert sizes(plan.first_step) == ddp["sizes"]
    assert sent(plan.traffic(ranks, first_step=True)) == ddp["first"]
    assert sent(plan.traffic(ranks)) == ddp["steady"]
    if find_unused:
        assert ddp["rebuilt"] is None
        assert plan.buckets == plan.first_step
    else:
        assert sizes(plan.buckets) == ddp["rebuilt"]
        assert [list(bucket.parameters) for bucket in plan.buckets] == ddp["members"]


@pytest.mark.parametrize(("model", "cap", "find_unused"), CASES)
def test_the_plan_is_what_ddp_sends(outcomes, model, cap, find_unused):
    plan = gradient_buckets(MODELS[model](), CAPS[cap], step, find_unused)
    check(plan, outcomes[f"{(model, cap, find_unused)}"], find_unused)
    assert plan.order == ("registered" if find_unused else "from step")


def test_the_plan_on_4_ranks_of_a_model_on_meta(tmp_path):
    case = ("transformer", "5K", False)
    ddp = on_ranks(tmp_path, 4, {"it": lambda: real(*case)})["it"]
    with torch.device("meta"):
        model = Transformer()
    check(gradient_buckets(model, 5 * KIB, step), ddp, False, ranks=4)


def test_the_last_bucket_can_be_the_small_one(tmp_path, monkeypatch):
    """DDP_SET_LAST_BUCKET_CAP is read by reducer.cpp."""
    plain = gradient_buckets(Mlp(), [KIB, 2 * KIB] if LISTS else KIB, step)
    monkeypatch.setenv("DDP_SET_LAST_BUCKET_CAP", "1")
    ddp = on_ranks(tmp_path, 2, {"it": lambda: real("mlp", "1K", False)})["it"]
    turned = gradient_buckets(Mlp(), KIB, step)
    check(turned, ddp, False)
    assert turned.buckets != plain.buckets


def test_buckets_are_those_of_torchs_own_function():
    """Random parameters of up to 4 dtypes, in a random order of gradients and as registered."""
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    for seed in range(200):
        draw = random.Random(seed)
        tensors = [
            torch.empty(draw.randint(1, 50), dtype=draw.choice(dtypes), device="meta")
            for _ in range(draw.randint(1, 20))
        ]
        limits = [draw.choice([10, 100, 1000]), draw.choice([50, 200, 5000])]
        order = draw.sample(range(len(tensors)), len(tensors))
        parameters = [describe(str(n), nn.Parameter(t)) for n, t in enumerate(tensors)]

        def names(buckets):
            return [[int(name) for name in bucket.parameters] for bucket in buckets]

        of_torch = dist._compute_bucket_assignment_by_size(
            [tensors[n] for n in order], limits, [], order
        )[0]
        ordered = assign_buckets([parameters[n] for n in order], limits, True)
        assert names(ordered) == of_torch
        registered = dist._compute_bucket_assignment_by_size(tensors, limits)[0][::-1]
        assert names(assign_buckets(parameters, limits, False)) == registered


def test_by_hand():
    """Gradients come last layer first, bias before weight; a bucket closes at 8 KiB."""
    plan = gradient_buckets(Mlp(), 8 * KIB, step)
    # 10 + 300 + 30 floats and 64 x 30; 64 + 2560; 40 + 960.
    assert plan.buckets == (
        Bucket(
            4 * (10 + 300 + 30 + 1920),
            "float32",
            ("layers.3.bias", "layers.3.weight", "layers.2.bias", "layers.2.weight"),
        ),
        Bucket(4 * (64 + 2560), "float32", ("layers.1.bias", "layers.1.weight")),
        Bucket(4 * (40 + 960), "float32", ("layers.0.bias", "layers.0.weight")),
    )
    total = 4 * (1000 + 2624 + 1950 + 310)
    assert (plan.size_bytes, plan.bucket_cap_mb, plan.notes) == (total, 8 * KIB, ())
    assert [(b.size_bytes, len(b.parameters)) for b in plan.first_step] == [(total, 8)]


def test_without_a_step_the_order_is_assumed():
    plan = gradient_buckets(Transformer(1), KIB)
    assert plan.order == "assumed"
    assert plan.notes == (
        "order of the gradients assumed: the reverse of registration (gradient_buckets with a step "
        "learns it)",
    )
    # The position table is registered first, and so assumed to be last. It is not.
    assert plan.buckets[-1].parameters[-1] == "position"
    learned = gradient_buckets(Transformer(1), KIB, step)
    assert learned.buckets[-1].parameters[-1] == "embed.weight"


def test_the_default_is_1_mib_and_then_25():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 10, 1 << 10, bias=False) for _ in range(16)))
    # 4 MiB each: the first alone reaches 1 MiB, then 7 reach 25 MiB.
    assert [b.size_bytes >> 20 for b in gradient_buckets(model).buckets] == [4, 28, 28, 4]
    assert [b.size_bytes >> 20 for b in gradient_buckets(model, 25).buckets] == [28, 28, 8]


def test_what_find_unused_adds():
    plan = gradient_buckets(Partial(unused=True), None, step, find_unused=True)
    assert plan.unused == ("unused.weight", "unused.bias")
    assert plan.used_map_bytes == 4 * 10
    assert plan.traffic(3).calls[0][-1].bytes_in == 40
    assert plan.notes == (
        "find_unused: DDP keeps the buckets of the first step, and sends 4 bytes a parameter more "
        "to tell which were used",
        "without a gradient in the step, sent as zeros: unused.weight, unused.bias",
        # mean and variance of 30 floats, and a count of 8 bytes
        "not in the plan: DDP's broadcast of the buffers (248 B) before each forward",
    )


def test_what_ddp_ignores_is_left_out():
    model = Mlp()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["layers.0.weight"])
    (bucket,) = gradient_buckets(model).buckets
    assert (len(bucket.parameters), "layers.0.weight" in bucket.parameters) == (7, False)


def test_the_model_is_not_touched():
    model = Mlp()
    model.cache = torch.ones(3)  # a tensor that is neither parameter nor buffer
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen = []

    def once(copied):
        seen.append(copied)
        assert copied is not model
        tensors = [*copied.parameters(), copied.cache, torch.ones(2)]
        assert {t.device.type for t in tensors} == {"meta"}
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.add_(1)
        step(copied)

    gradient_buckets(model, step=once)
    assert len(seen) == 1
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) and parameter.grad is None
        assert not parameter._post_accumulate_grad_hooks
    assert model.cache.device.type == "cpu"


def test_gradients_of_several_backwards_count_once():
    def twice(model):
        step(model)
        step(model)

    assert gradient_buckets(Mlp(), KIB, twice) == gradient_buckets(Mlp(), KIB, step)


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)


def ignoring():
    model = nn.Sequential(nn.Linear(2, 2))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, ["0.weight", "0.bias"]
    )
    return model


class Uncopied(Mlp):
    def __deepcopy__(self, memo):
        raise TypeError("not this one")


@pytest.mark.parametrize(
    ("model", "how", "line"),
    [
        (7, {}, error_text("model", "int", "a torch.nn.Module")),
        (nn.ReLU(), {}, error_text("model", "no parameter with a gradient", "one or more")),
        (
            nn.Linear(2, 2).requires_grad_(False),
            {},
            error_text("model", "no parameter with a gradient", "one or more"),
        ),
        (
            nn.LazyLinear(3),
            {},
            error_text(
                "model",
                "weight without a shape",
                "shapes. Run one forward first: it is a lazy module.",
            ),
        ),
        (
            Sparse(),
            {},
            error_text(
                "model",
                "sparse gradients of table",
                "dense ones. The bytes of sparse ones depend on the data: capture a step.",
            ),
        ),
        (
            ignoring(),
            {},
            error_text("model", "only parameters that DDP is to ignore", "one or more others"),
        ),
        (Mlp(), {"bucket_cap_mb": -1}, error_text("bucket_cap_mb", "-1", "0 to 8796093022207 MiB")),
        (
            Mlp(),
            {"bucket_cap_mb": "25"},
            error_text("bucket_cap_mb", "25", "a number of MiB, or a list of them"),
        ),
        (
            Mlp(),
            {"bucket_cap_mb": True},
            error_text("bucket_cap_mb", "True", "a number of MiB, or a list of them"),
        ),
        (
            Mlp(),
            {"bucket_cap_mb": []},
            error_text("bucket_cap_mb", "[]", "a number of MiB, or a list of them"),
        ),
        (
            Mlp(),
            {"bucket_cap_mb": float("nan")},
            error_text("bucket_cap_mb", "nan", "a number of MiB, or a list of them"),
        ),
        (
            Partial(unused=True),
            {"step": step},
            error_text(
                "step",
                "no gradient for unused.weight, unused.bias",
                "one for every parameter. Else DDP stops in its second step: use find_unused, "
                "or freeze them.",
            ),
        ),
        (
            Mlp(),
            {"step": lambda model: None},
            error_text("step", "no gradient for any parameter", "a backward in it"),
        ),
        (
            Mlp(),
            {"step": lambda model: 1 / 0},
            error_text(
                "step",
                "ZeroDivisionError: division by zero",
                "one forward and backward on meta. Make its inputs inside of it, and read no "
                "values (item(), print).",
            ),
        ),
        (
            Uncopied(),
            {"step": step},
            error_text(
                "model",
                "one that cannot be copied (TypeError: not this one)",
                "a model that copy.deepcopy takes",
            ),
        ),
    ],
)
def test_bad_input(model, how, line):
    with pytest.raises(UsageError) as caught:
        gradient_buckets(model, **how)
    assert str(caught.value) == line


def test_a_wrapped_model_is_refused(tmp_path):
    def case():
        with pytest.raises(UsageError) as caught:
            gradient_buckets(DistributedDataParallel(Mlp()))
        return str(caught.value)

    assert on_ranks(tmp_path, 1, {"it": case})["it"] == error_text(
        "model", "DistributedDataParallel", "the model inside. Pass model.module."
    )


def test_a_list_of_caps_where_ddp_takes_none(monkeypatch):
    def old(self, module, bucket_cap_mb=None): ...

    monkeypatch.setattr(DistributedDataParallel, "__init__", old)
    monkeypatch.setattr(torch, "__version__", "2.6.0")
    with pytest.raises(UsageError) as caught:
        gradient_buckets(Mlp(), [1, 25])
    assert str(caught.value) == error_text(
        "bucket_cap_mb",
        "a list, which the DDP of torch 2.6.0 does not take",
        "one number of MiB",
    )
