"""The repr of what public functions return: one short line, however much it holds."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest
from torch import nn

import torchcoll
from torchcoll.core.case import Case
from torchcoll.core.display import OneLine
from torchcoll.core.result import CaseResult, Run
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.questions.check.judging import Verdict
from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.results import Compared

LONGEST = 200
SIZES = [1 << k for k in range(10, 20)]


def launch(ranks=2, slower=1.0, backend="gloo", samples=2000):
    """10 sizes, each with 2,000 calls on each rank: some 500,000 characters as Python writes it."""
    results = []
    for size_bytes in SIZES:
        shape = ("all_reduce", size_bytes, "float32", "sum", None, True)
        case = Case(*shape, "synchronized", backend, "cpu")
        times = [[int(slower * (50_000 + size_bytes + i % 7)) for i in range(samples)]] * ranks
        result = CaseResult(case, "ok", ranks, count=size_bytes // 4, size_bytes=size_bytes)
        result.bytes_in = result.bytes_out = size_bytes
        result.cold_ns, result.time_ns = [[9_000_000, 200_000]] * ranks, {"host": times}
        result.batches, result.ordinal = [samples], 0
        results.append(result)
    header = {"ranks": ranks, "start_utc": f"2026-01-01T00:00:{ranks:02}Z", "run_id": "x"}
    return Run(header, results=results, end={"status": "complete", "cases": 10})


def forced(algorithm):
    run = launch(backend="nccl")
    run.header["environment"] = {"variables": {"NCCL_ALGO": algorithm}}
    return run


def sent(count=5000):
    calls = {
        rank: [
            TrafficCall(
                "all_reduce", 4096, 4096, "float32", "sum", group="0", sequence=i, step=i // 50,
                asynchronous=False, start_ns=1000 * i, time_ns=900 + rank,
            )
            for i in range(count)
        ]
        for rank in (0, 1)
    }  # fmt: skip
    steps = {rank: [(50_000 * k, 50_000 * (k + 1)) for k in range(count // 50)] for rank in (0, 1)}
    return Traffic("capture", 2, calls, {"0": Group("0", (0, 1), "gloo")}, steps)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(40)])

    def forward(self, x):
        return self.layers(x)


def drawn(tmp_path):
    pytest.importorskip("matplotlib")
    return torchcoll.plot(launch(), tmp_path / "a.svg")


RESULTS = {
    "Run": lambda path: launch(),
    "CaseResult": lambda path: launch().results[0],
    "Traffic": lambda path: sent(),
    "Comparison": lambda path: torchcoll.compare(launch(), launch(slower=1.5)),
    "TrafficComparison": lambda path: torchcoll.compare(sent(), sent(100)),
    "Side": lambda path: torchcoll.compare(launch(), launch(slower=1.5)).base,
    "Cold": lambda path: torchcoll.cold([launch(), launch(4)]),
    "Transitions": lambda path: torchcoll.transitions(launch()),
    "Scaling": lambda path: torchcoll.scaling([launch(2), launch(4), launch(8)]),
    "FittedModel": lambda path: torchcoll.fit_model([launch(2), launch(4)]),
    "MachineModel": lambda path: torchcoll.fit_model(launch(2)).model,
    "Algorithms": lambda path: torchcoll.algorithms([forced("Ring"), forced("Tree")]),
    "Plan": lambda path: torchcoll.plan("gpt2", "dp=8"),
    "LayoutComparison": lambda path: torchcoll.compare_plans("gpt2", "dp,fsdp", ranks=8),
    "Postmortem": lambda path: torchcoll.postmortem("examples/stuck-rank"),
    "WrittenPicture": drawn,
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_one_short_line(name, tmp_path):
    found = RESULTS[name](tmp_path)
    assert type(found).__name__ == name
    text = repr(found)
    assert name in text
    assert len(text) <= LONGEST + 20 * (name == "WrittenPicture") and text.isprintable(), text[
        :1000
    ]


def test_the_facts_of_a_line():
    run = launch()
    assert repr(run) == "<Run x: 10 cases of all_reduce, 2 ranks, complete>"
    run.end = None
    assert repr(run) == "<Run x: 10 cases of all_reduce, 2 ranks, truncated>"
    assert repr(run.results[0]).endswith(": ok, 2 ranks>")
    assert repr(sent(100)) == "<Traffic: capture, 200 calls of 2 of 2 ranks, 2 steps>"
    compared = torchcoll.compare(run, run)
    assert repr(compared) == f"<Comparison: {compared.answer.headline}>"
    assert repr(compared.rows[0]).startswith("<Compared: all_reduce 1K inconclusive (1 run a side)")
    run.header["run_id"] = "a\x1b[31m\nb"
    assert repr(run).isprintable()


def test_no_result_brings_the_repr_of_all_that_it_holds_back():
    """A dataclass makes its own unless it is told not to."""
    classes = []
    for package in pkgutil.walk_packages(torchcoll.__path__, "torchcoll."):
        if package.name.count(".") < 2:
            continue
        for _, kind in inspect.getmembers(importlib.import_module(package.name), inspect.isclass):
            if issubclass(kind, OneLine) and dataclasses.is_dataclass(kind):
                classes.append(kind)
    assert len(set(classes)) > 10
    for kind in classes:
        of_their_own = [each.__repr__ for each in (Run, Traffic, Verdict, Comparison, Compared)]
        assert kind.__repr__ in (OneLine.__repr__, *of_their_own), kind
