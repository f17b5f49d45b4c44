"""capture(every=N): which steps are kept, what stands between, metrics, and what hours tell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from error_form import error_text, expecting
from planned_models import Mlp, on_ranks
from planned_models import step as train_step
from ranks import busy
from torch.distributed.fsdp import fully_shard

import torchcoll
from torchcoll.core.errors import UsageError
from torchcoll.core.metrics import write_metrics
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training.arrivals import find_arrivals
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.recorded_calls import CallRecorder, GroupNames
from torchcoll.parts.training.sampled import Sampling, StepMetrics, step_metrics
from torchcoll.parts.training.traffic_show import show_traffic
from torchcoll.parts.training.traffic_table import Stretch, over_time

FSDP_ON_CPU = hasattr(torch.cpu.Stream(), "record_event")  # not in torch 2.6


def ours() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")


def steps(count, **how):
    """Step k reduces k + 1 float32: bytes tell the step. And whether kernels of ours were there."""
    inner = []
    with torchcoll.capture(**how) as traffic:
        for number in range(count):
            inner.append(ours())
            dist.all_reduce(torch.ones(number + 1))
            traffic.step()
    inner.append(ours())
    rank = dist.get_rank()
    sizes = [call.bytes_in for call in traffic.calls[rank]]
    numbers = [call.step for call in traffic.calls[rank]]
    spans = len(traffic.steps.get(rank, ()))
    notes = [note for note in traffic.notes if "was captured" in note]
    return sizes, numbers, spans, inner, notes, traffic.environment.get("every")


def every_third():
    return steps(9, every=3)


def every_step_with_metrics():
    outcomes = steps(9, metrics="step.prom")
    dist.barrier()
    return [*outcomes, Path("step.prom").read_text() if dist.get_rank() == 0 else ""]


def metrics_of_the_node():
    """In a folder that each rank names in its own way, as $TMPDIR does; a second one after it."""
    folder = Path(f"node{dist.get_rank()}")
    folder.mkdir()
    for name in ("first.prom", "second.prom"):
        steps(9, metrics=folder / name)
    dist.barrier()
    return sorted(str(path) for path in Path().glob("node*/*"))


def refused():
    errors = []
    metrics = [{"metrics": path} for path in ("x.txt", 5, "")]
    for how in ({"every": 0}, {"every": True}, {"every": 2.5}, *metrics):
        with pytest.raises(UsageError) as error, torchcoll.capture(**how):
            raise AssertionError("it began")
        errors.append(str(error.value))
    Path(f"refused{dist.get_rank()}").write_text("\n".join(errors))
    dist.barrier()
    return [Path(f"refused{rank}").read_text().splitlines() for rank in (0, 1)]


def told_in_a_file():
    """What a folder of it says; one that is not asked for has no such table."""
    steps(60, path="hours", every=2)
    steps(3, path="all")
    dist.barrier()
    if dist.get_rank() == 0:
        with open("shown", "w") as file:
            show_traffic([Traffic.load("hours"), Traffic.load("all")], file=file)
    return Path("shown").read_text() if dist.get_rank() == 0 else ""


def straggler():
    """FSDP2, with rank 1 asleep in each step."""
    model = Mlp()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    train_step(model)
    with torchcoll.capture("late") as traffic:
        for _ in range(64):
            time.sleep(0.06 * busy() * dist.get_rank())
            train_step(model)
            traffic.step()
    dist.barrier()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def outcomes(folder):
    cases = [every_third, every_step_with_metrics, metrics_of_the_node, told_in_a_file]
    cases += [straggler] * FSDP_ON_CPU
    return on_ranks(folder, 2, {case.__name__: case for case in cases})


def test_one_step_in_three(outcomes):
    """Nothing of ours is there in the others."""
    sizes, numbers, spans, inner, notes, every = outcomes["every_third"]
    assert sizes == [8, 20, 32]
    assert (numbers, spans, every) == ([0, 1, 2], 3, 3)
    assert inner == [*[False, True, False] * 3, False]
    text = "a step in 3 was captured: step k here is step 1 + 3 k of the 9 that were marked"
    assert notes == [text]


def test_metrics_of_every_step(outcomes):
    sizes, _, spans, inner, notes, every, text = outcomes["every_step_with_metrics"]
    assert sizes == [4 * (number + 1) for number in range(9)]
    assert (spans, inner, notes, every) == (9, [*[True] * 9, False], [], None)
    lines = text.splitlines()
    # Each is told at the mark after it, once both have said it: the last is not.
    labels = 'job="torchcoll",world_size="2"'
    assert any(f"torchcoll_step{{{labels}}} {number}" in lines for number in range(8))
    of_wait = f'torchcoll_step_wait_seconds{{{labels},group="0"}} '
    assert any(line.startswith(of_wait) for line in lines)


def test_metrics_in_a_folder_of_the_node(outcomes):
    assert outcomes["metrics_of_the_node"] == ["node0/first.prom", "node0/second.prom"]


def test_what_trace_says(outcomes):
    text = outcomes["told_in_a_file"]
    assert text.count("over time: ") == 1
    assert "a step in 2 was captured: step k here is step 1 + 2 k of the 60 that were" in text


@pytest.mark.skipif(not FSDP_ON_CPU, reason="this FSDP2 does not run on cpu")
def test_trace_names_the_straggler(outcomes, folder):
    arrivals = find_arrivals(Ledger(torchcoll.Traffic.load(folder / "late")))
    assert [row.rank for row in arrivals.late] == [1]


def test_what_is_refused(tmp_path):
    """By both ranks alike."""
    (tmp_path / "job").mkdir()
    number = "a whole number of steps from 1 on"
    ending = expecting("NAME.prom: node_exporter reads no other file")
    expected = [
        error_text("every", "0", number),
        error_text("every", "True", number),
        error_text("every", "2.5", number),
        error_text("metrics", f"x.txt, {ending}"),
        error_text("metrics", f"5, {ending}"),
        error_text("metrics", f"'', {ending}"),
    ]
    assert on_ranks(tmp_path / "job", 2, {"refused": refused})["refused"] == [expected] * 2


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


ALL_REDUCE = {"collective": "all_reduce", "bytes_out": 4, "dtype": "float32", "op": "sum"}


def issued(recorder, size):
    """An all_reduce of so many bytes, which has not ended."""
    call = recorder.begin()
    group = GroupNames(recorder.traffic).group(dist.group.WORLD, torch.device("cpu")).name
    fields = {**ALL_REDUCE, "bytes_in": size, "asynchronous": True, "group": group}
    recorder.add(call, fields, None)
    return call


class Lagging:
    """Sampled steps whose call ends so many marks after its own, as on an accelerator, until
    ``stuck``: then it never does.
    """

    def __init__(self, every, lag, metrics):
        self.recorder = CallRecorder(Traffic())
        self.sampling = Sampling(every, self.recorder, *[lambda: None] * 2, self.poll, metrics)
        self.running, self.marks, self.lag, self.stuck = [], 0, lag, False

    def poll(self):
        while self.running and self.running[0][0] + self.lag <= self.marks and not self.stuck:
            self.running.pop(0)[1].end()

    def step(self):
        """Step k, from 0 on, has a call of k bytes."""
        if self.marks % self.sampling.every == 1 % self.sampling.every:
            self.running.append((self.marks, issued(self.recorder, self.marks)))
        self.sampling.step()
        self.marks += 1


class Told:
    """What StepMetrics would be told: (step, turn, bytes of its calls)."""

    def __init__(self):
        self.steps = []

    def report(self):
        pass

    def add(self, number, turn, span, calls):
        self.steps.append((number, turn, [call.bytes_in for call in calls]))


@pytest.mark.parametrize(("every", "lag"), [(1, 0), (1, 1), (1, 3), (5, 0), (5, 2), (5, 7)])
def test_figures_of_a_step_are_of_its_own_calls(alone, every, lag):
    metrics = Told()
    steps = Lagging(every, lag, metrics)
    for _ in range(21):
        steps.step()
    captured = range(1 % every, 21, every)
    # The last mark is that of step 20: what has ended by then.
    assert metrics.steps == [(k, turn, [k]) for turn, k in enumerate(captured) if k + lag <= 20]


def test_ranks_that_learn_of_ends_some_steps_apart(alone, tmp_path):
    """Rank 0 a mark after the step, rank 1 three. A rank that says no more holds up the file."""
    store, path = dist.HashStore(), tmp_path / "step.prom"
    ranks = [
        Lagging(1, lag, StepMetrics(path, store, "x", rank, 2)) for rank, lag in enumerate((1, 3))
    ]

    def told_after(steps):
        for _ in range(steps):
            for rank in ranks:
                rank.step()
        return int(re.search(r"^torchcoll_step{.*} (\d+)$", path.read_text(), re.M)[1])

    # Rank 1 learns of step 16 at mark 19, after rank 0 had looked.
    assert told_after(20) == 15
    ranks[1].stuck = True
    assert told_after(20) == 16
    ranks[1].stuck = False
    assert told_after(20) == 55


def test_metrics_that_cannot_be_written_end_alone(alone, tmp_path, capsys):
    steps = Lagging(1, 0, StepMetrics(tmp_path / "none" / "a.prom", dist.HashStore(), "x", 0, 1))
    for _ in range(3):
        steps.step()
    (warning,) = capsys.readouterr().err.splitlines()
    assert "warning: metrics: " in warning and "the capture goes on without them" in warning


def test_the_figures_of_a_step():
    """Two groups. In that of all, rank 1 was 1 ms in 2 calls, the others 3 and 4 ms: they waited up
    to 3 ms for it, and 5 ms together. In 'tp' the ranks saw other numbers of calls: no figures.
    """
    busy = [{"0": [2, 3_000_000], "tp": [1, 5]}, {"0": [2, 1_000_000], "tp": [2, 5]}]
    busy += [{"0": [2, 4_000_000]}]
    took = (20_000_000, 21_000_000, 19_000_000)
    statuses = [{"step": 101, "took_ns": t, "busy": b} for t, b in zip(took, busy, strict=True)]
    common = {"job": "torchcoll", "slurm_job_id": "17"}
    calls_by_rank = {**common, "group": "0"}
    assert {metric.name: metric.values for metric in step_metrics(statuses, 1e9, common)} == {
        "step": [(common, 101)],
        "step_timestamp_seconds": [(common, 1e9)],
        "step_seconds": [(common, 0.021)],
        "step_transfer_seconds": [(calls_by_rank, 0.001)],
        "step_wait_seconds": [(calls_by_rank, pytest.approx(0.003))],
        "step_slowest_rank": [(calls_by_rank, 1.0)],
        "step_caused_seconds": [(calls_by_rank, pytest.approx(0.005))],
    }


def test_the_text_is_utf_8_whatever_the_locale(tmp_path):
    code = (
        "import locale; assert locale.getpreferredencoding(False) != 'UTF-8'\n"
        "from pathlib import Path; from torchcoll.core.metrics import Metric, write_metrics\n"
        "write_metrics(Path('a.prom'), [Metric('x', 'X.', [({'group': 'b\\xe4r'}, 1)])])"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | plain, check=True)
    assert b'torchcoll_x{group="b\xc3\xa4r"} 1\n' in (tmp_path / "a.prom").read_bytes()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_leaves_no_file(tmp_path, monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(error):
        write_metrics(tmp_path / "a.prom", [])
    assert list(tmp_path.iterdir()) == []


def test_hours():
    """Two hours and a half, a step of 1 s every minute, 2 s from the second hour on. One call a
    step: the rank that is late takes 10 ms, the other 30 ms: rank 0 first, then rank 1. 2.5 h in at
    most 24 rows: of 10 minutes.
    """
    steps, calls = [], {0: [], 1: []}
    for minute in range(150):
        start = 60_000_000_000 * minute
        steps.append((start, start + (1_000_000_000 if minute < 60 else 2_000_000_000)))
        late = int(minute >= 60)
        for rank in (0, 1):
            took = 10_000_000 if rank == late else 30_000_000
            calls[rank].append(
                TrafficCall(
                    "all_reduce",
                    8,
                    8,
                    "float32",
                    "sum",
                    **{"group": "0", "sequence": minute, "step": minute, "asynchronous": False},
                    **{"start_ns": start, "time_ns": took},
                )
            )
    traffic = Traffic("capture", 2, calls, {"0": Group("0", (0, 1), "gloo")})
    traffic.steps = {0: steps, 1: steps}
    assert over_time(Ledger(traffic)) is None
    traffic.environment["every"] = 60
    outcomes = over_time(Ledger(traffic))
    early = Stretch(0, 600, 10, 1e9, 20e6, 10e6, 0, 1.0)
    assert outcomes.stretches[0] == early
    assert outcomes.stretches[-1] == Stretch(8400, 9000, 10, 2e9, 20e6, 10e6, 1, 1.0)
    assert len(outcomes.stretches) == 15
    # Log means of eight stretches: 0 in the first three (minutes 0 to 56), log 2 in the last four.
    assert outcomes.drift.value == pytest.approx(1.0)
    # 24 minutes, and 10, 60 and 240 hours in at most 24 rows.
    for scale, length_s in ((0.16, 60), (4, 1800), (24, 10_800), (96, 43_200)):
        stretched = [(round(scale * begin), round(scale * begin) + 1) for begin, _ in steps]
        traffic.steps = {0: stretched, 1: stretched}
        lengths = {
            stretch.to_s - stretch.from_s for stretch in over_time(Ledger(traffic)).stretches
        }
        assert lengths == {length_s}
