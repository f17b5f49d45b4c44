"""``try_buckets`` on real gloo ranks, its results on times made by hand."""

import importlib
import json

import pytest
import torch
import torch.distributed as dist
from error_form import error_text
from ranks import Job
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Ddp

import torchcoll
from torchcoll.core.errors import UsageError
from torchcoll.parts.training.trial import Trial, TrialRow


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))


def step(model):
    model(torch.ones(4, 64)).sum().backward()


def make(cap):
    return Ddp(small(), bucket_cap_mb=cap)


def what_is_measured():
    caps_made, steps = [], []

    def counted_make(cap):
        caps_made.append(cap)
        return make(cap)

    def counted_step(model):
        steps.append(model.bucket_bytes_cap)
        step(model)

    caps = [25, None, 0.05]
    outcome = torchcoll.try_buckets(
        counted_make, counted_step, caps, rounds=2, steps=3, skip=2, seed=1
    )
    plain = [[row.cap_mb, row.times_ns, row.ratio, row.result] for row in outcome.rows]
    return [
        caps_made,
        len(steps),
        plain,
        [outcome.ranks, outcome.backend, outcome.device, outcome.notes],
    ]


def one_module_wrapped_again():
    """Bytes that all reducers of one module have sent."""
    module, sent = small(), []

    def counting(state, bucket):
        state.append(bucket.buffer().nbytes)
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def make_again(cap):
        model = Ddp(module, bucket_cap_mb=cap)
        model.register_comm_hook(sent, counting)
        return model

    torchcoll.try_buckets(make_again, step, [25, 1], rounds=2, steps=1, skip=2)
    return sum(sent)


def refused(*args, **choices):
    try:
        torchcoll.try_buckets(*args, **choices)
    except UsageError as error:
        return str(error)


def on_all_ranks():
    dist.init_process_group("gloo")
    collected = {
        "measured": what_is_measured(),
        "again": one_module_wrapped_again(),
        "seeds": refused(make, step, [25, 1], seed=dist.get_rank()),
        "no ddp": refused(lambda cap: small(), step, [25, 1]),
        "no cap": refused(lambda cap: make(3), step, [5, 4]),
    }
    dist.barrier()
    print(json.dumps(collected))


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """What each of two ranks returned, all of it in one job."""
    importlib.import_module("torch._dynamo")  # DDP does: once here, and not in each rank
    ended = Job(tmp_path_factory.mktemp("job"), on_all_ranks, 2).wait()
    assert [process.code for process in ended.values()] == [0, 0], ended[0].stderr
    return [json.loads(process.stdout) for process in ended.values()]


def test_every_rank_has_the_same_trial(on_ranks):
    first, second = (output["measured"] for output in on_ranks)
    assert first == second
    caps_made, steps, rows, facts = first
    assert [sorted(caps_made[i : i + 3], key=str) for i in (0, 3)] == [[0.05, 25, None]] * 2
    assert caps_made[:3] != caps_made[3:]  # shuffled
    assert steps == 2 * 3 * (2 + 3)
    assert [row[0] for row in rows] == [25, None, 0.05]
    assert all([len(round_ns) for round_ns in row[1]] == [3] * 2 for row in rows)
    assert all(ns > 0 for row in rows for round_ns in row[1] for ns in round_ns)
    assert rows[0][2:] == [[1, 1, 1], "base"]
    assert facts == [2, "gloo", "cpu", []]


def test_a_module_may_be_wrapped_again(on_ranks):
    """Each step sends its gradients once, whatever reducers the module had before."""
    size_bytes = 4 * (64 * 256 + 256 + 256 * 8 + 8)
    assert [output["again"] for output in on_ranks] == [2 * 2 * 3 * size_bytes] * 2


def test_ranks_that_ask_for_different_things(on_ranks):
    text = error_text(
        "try_buckets",
        "other caps_mb, rounds, steps, skip or seed on some rank",
        "the same on all ranks",
    )
    assert [output["seeds"] for output in on_ranks] == [text] * 2


def test_what_make_ddp_returns(on_ranks):
    assert on_ranks[0]["no ddp"] == error_text("make_ddp", "Sequential", "DistributedDataParallel")
    text = error_text("make_ddp", "one with bucket_cap_mb 3", "{}. Pass its argument on as")
    assert on_ranks[0]["no cap"].startswith((text.format(5), text.format(4)))


def test_one_rank_communicates_nothing(tmp_path):
    def alone():
        dist.init_process_group("gloo")
        outcome = torchcoll.try_buckets(make, step, [25, 1], rounds=2, steps=1, skip=2)
        print(*outcome.notes)

    importlib.import_module("torch._dynamo")
    (ended,) = Job(tmp_path, alone, 1).wait().values()
    assert ended.stdout == "1 rank: nothing was communicated\n", ended.stderr


@pytest.mark.parametrize(
    ("caps", "choices", "text"),
    [
        (25, {}, error_text("caps_mb", "25", "a list of MiB, such as [25, 50, 100]")),
        ("25", {}, error_text("caps_mb", "'25'", "a list of MiB")),
        ([25], {}, error_text("caps_mb", "1 of them", "2 or more")),
        ([25, 25], {}, error_text("caps_mb", "25 twice", "each once")),
        ([25, 0], {}, error_text("caps_mb", "0", "numbers of MiB above 0, or None")),
        ([25, float("inf")], {}, error_text("caps_mb", "inf", "numbers of MiB above 0")),
        ([25, 1], {"rounds": 1}, error_text("rounds", "1", "a whole number from 2 on")),
        ([25, 1], {"skip": 1}, error_text("skip", "1", "a whole number from 2 on")),
        (
            [25, 1],
            {},
            error_text("try_buckets", "no process group", "init_process_group before it"),
        ),
    ],
)
def test_what_is_refused(caps, choices, text):
    with pytest.raises(UsageError) as caught:
        torchcoll.try_buckets(lambda cap: None, step, caps, **choices)
    assert str(caught.value).startswith(text)


MS = 1_000_000


def trial(*rounds, caps=(25, None, 1)):
    """Rounds of (ms with each cap); two steps each, 1 ms apart around it."""
    times = [[[round((ms - 0.5) * MS), round((ms + 0.5) * MS)] for ms in cap_rounds]
             for cap_rounds in zip(*rounds, strict=True)]  # fmt: skip
    rows = [
        TrialRow(cap, cap_rounds, times[0]) for cap, cap_rounds in zip(caps, times, strict=True)
    ]
    return Trial(rows, 2, "gloo", "cpu", len(rounds), 2, 3, 0)


def test_verdicts():
    # Ratios: 0.9 in each round; 1.01 in each; 0.9 and 1.1.
    outcome = trial((10, 9, 10.1, 9), (20, 18, 20.2, 22), caps=(25, None, 1, 2))
    assert [row.result for row in outcome.rows] == ["base", "faster", "within 2 %", "within noise"]
    assert outcome.rows[1].ratio == pytest.approx((0.9, 0.9, 0.9))
    assert outcome.best.name == "default"
    assert outcome.rows[0].median_ns == 15 * MS


TABLE = """\
Probably bucket_cap_mb=default is 1.11x faster than 25 (95 %: 1.11x, one run)
Next: repeat the run to be certain

training steps of DistributedDataParallel: gloo, cpu, 2 ranks
2 rounds of 2 steps of the slowest rank, after 3 that are left out
ratio: step / step with 25, its 95 % interval over the rounds

bucket_cap_mb      step  ratio            95 %  result
                 median
           25  15.00 ms  1.000               -  base
      default  13.50 ms  0.900  0.900 to 0.900  faster
            1  30.00 ms  2.000  2.000 to 2.000  slower

Probably bucket_cap_mb=default is 1.11x faster than 25 (95 %: 1.11x, one run)
"""


def test_the_answer():
    """Two rounds with 1.5 and 1.6: the logarithms' mean is 0.4377 and its error 0.0323; t of 1
    degree is 12.71. exp(0.4377 -+ 0.4101) is 1.028 to 2.336. With 0.9 and 1.1 nothing is known.
    """
    answer = trial((10, 15), (10, 16), caps=(25, 1)).answer
    assert answer.text == "keep bucket_cap_mb=25; 1 was 55 % slower (95 %: 1.03x to 2.3x, one run)"
    assert answer.level == "good"
    answer = trial((10, 9), (10, 11), caps=(25, 1)).answer
    assert answer.headline.startswith(
        "Cannot tell whether bucket_cap_mb=1 is faster than 25 (it was"
    )
    assert answer.headline.endswith("x, not significant)")
    assert answer.next_step == "try_buckets with rounds=8"


def test_the_table(capsys):
    torchcoll.show(trial((10, 9, 20), (20, 18, 40)))
    assert capsys.readouterr().out == TABLE


def test_for_machines(capsys):
    outcome = trial((10, 9, 20), (20, 18, 40))
    torchcoll.show(outcome, format="json")
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["best"], document["rounds"]) == (
        "torchcoll-trial/1",
        "default",
        2,
    )
    assert document["rows"][0]["times_ns"] == [[9_500_000, 10_500_000], [19_500_000, 20_500_000]]
    torchcoll.show(outcome, format="csv")
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("cap_mb,name,median_ns,result,ratio")
    assert [line.split(",")[1] for line in lines] == ["25", "default", "1"]
