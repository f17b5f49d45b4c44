"""The context of a capture: errors, files, what it leaves alone, and what it says it missed."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from error_form import error_text, expecting
from planned_models import on_ranks
from ranks import Job, announce, await_event
from torch.profiler import ProfilerActivity, profile

import torchcoll
from torchcoll.cli import main as torchcoll_command
from torchcoll.core.errors import UnavailableError, UsageError
from torchcoll.core.traffic import Traffic
from torchcoll.parts.training.capture import capture
from torchcoll.parts.training.traces import read_traffic

NO_GROUP = error_text("capture", "no process group", "init_process_group before it")
NESTED = error_text("capture", "one inside of another", "one at a time")


def refused(**arguments):
    """The error of a capture that does not begin."""
    with pytest.raises(UsageError) as error, capture(**arguments):
        raise AssertionError("it began")
    return str(error.value)


def test_outside_of_a_process_group():
    assert refused() == NO_GROUP
    assert torchcoll.capture is capture


def test_a_torch_without_distributed(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    expected = error_text("capture", "torch without torch.distributed", "one that has it")
    with pytest.raises(UnavailableError, match=f"^{expected}$"), capture():
        pass


def reduce(count=1):
    dist.all_reduce(torch.ones(count))


def nested():
    with capture() as traffic:
        reduce()
        calls_inside = refused()
        reduce()
    with capture():  # the one before is over
        pass
    return calls_inside, len(traffic.calls[0])


def paths():
    Path("file").write_text("")
    names = ["step.jsonl", "file", "file/below", "", 5]
    return [refused(path=name).replace(str(Path.cwd()), "HERE") for name in names]


def ended():
    with capture() as traffic:
        pass
    with pytest.raises(UsageError) as error:
        traffic.step()
    return str(error.value)


def no_path():
    before = sorted(Path().iterdir())
    with capture() as traffic:
        reduce()
    return sorted(Path().iterdir()) == before and traffic.path is None


def ours():
    """Whether a kernel stands above those of the backends: before, in and after a capture."""

    def call_site():
        return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")

    result = [call_site()]
    with capture():
        result.append(call_site())
    result.append(call_site())
    with pytest.raises(OfTheBody), capture():
        raise OfTheBody
    return [*result, call_site()]


class OfTheBody(Exception):
    pass


def raised():
    with pytest.raises(OfTheBody), capture("raised") as traffic:
        reduce(3)
        raise OfTheBody
    return str(traffic.path) == str(Path("raised/traffic-rank0.jsonl").absolute())


def additions(profiler):
    return sum(event.count for event in profiler.key_averages() if event.key == "aten::add_")


def work(times):
    for _ in range(times):
        torch.ones(3).add_(1)
    reduce()


def profilers():
    """The user's own, around a capture and inside of one."""
    with profile(activities=[ProfilerActivity.CPU]) as around:
        work(3)
        with capture() as first:
            work(5)
        work(7)
    with capture() as second:
        work(2)
        with profile(activities=[ProfilerActivity.CPU]) as inside:
            work(4)
        work(2)
    return additions(around), additions(inside), len(first.calls[0]), len(second.calls[0])


def compiled():
    """The model stays compiled, and what it sends is seen."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def model(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    with capture() as traffic:
        for _ in range(3):
            model(torch.ones(4))
    return len(graphs), [call.bytes_in for call in traffic.calls[0]]


def optimizers(count):
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    return [torch.optim.SGD([parameter]) for parameter in parameters]


def marked(of_step, steps=3):
    """How many calls are in each step that a capture marks."""
    with capture() as traffic:
        for number in range(steps):
            reduce()
            of_step(traffic, number)
    steps_of_calls = [call.step for call in traffic.calls[0]]
    return [steps_of_calls.count(step) for step in range(len(traffic.steps.get(0, [])))]


def optimizer_marks():
    """An optimizer marks the steps until the training does; of several the first one."""
    first, second = optimizers(2)

    def two(traffic, number):
        first.step()
        reduce()
        second.step()

    def marks_itself(traffic, number):
        first.step()
        traffic.step()

    def marks_before(traffic, number):
        traffic.step()
        first.step()

    def compiled_step(traffic, number):
        torch.compile(first.step, backend="eager")()

    def nothing(traffic, number):
        pass

    cases = (two, marks_itself, marks_before, compiled_step, nothing)
    counts = {case.__name__: marked(case) for case in cases}
    with capture(every=2) as sampled:  # steps 1 and 3
        for _ in range(5):
            reduce()
            first.step()
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    return counts, len(sampled.steps[0]), len(hooks)


def another_thread():
    with capture() as traffic:
        reduce()
        thread = threading.Thread(target=lambda: reduce(2))
        thread.start()
        thread.join()
        reduce(3)
    return [(call.sequence, call.bytes_in) for call in traffic.calls[0]]


def inference():
    with capture() as traffic, torch.inference_mode():
        reduce()
        functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).wait()
    return [call.bytes_in for call in traffic.calls[0]]


def made_of_others():
    """An operator that makes a call of another one."""
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("torchcoll_twice(Tensor x, str group_name) -> Tensor")
    library.impl("torchcoll_twice", lambda x, group_name: (reduce(), x + 1)[1], "CPU")
    with capture() as traffic:
        torch.ops.c10d.torchcoll_twice(torch.ones(5), dist.group.WORLD.group_name)
    return [(call.collective, call.bytes_in) for call in traffic.calls[0]]


def failed():
    """A call that torch refuses is none."""
    with capture() as traffic:
        with pytest.raises((RuntimeError, ValueError)):
            dist.all_gather_into_tensor(torch.empty(3), torch.ones(2))
        reduce()
    return [call.collective for call in traffic.calls[0]], traffic.notes


def unknown_group():
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("torchcoll_odd(Tensor x, str group_name) -> Tensor")
    library.impl("torchcoll_odd", lambda x, group_name: x + 1, "CPU")
    with capture() as traffic:
        result = torch.ops.c10d.torchcoll_odd(torch.ones(1), "nobody")
    return result.item(), len(traffic.calls[0]), traffic.notes


def unreadable():
    """An error of ours is none of the training's."""

    def broken(*_):
        raise TypeError

    sys.modules["torchcoll.parts.training.decode"].decode = broken  # dies with this rank
    tensor = torch.ones(1)
    with capture() as traffic:
        dist.all_reduce(tensor)
    return tensor.item(), len(traffic.calls[0]), traffic.notes


CASES = (
    nested,
    paths,
    ended,
    no_path,
    ours,
    raised,
    profilers,
    compiled,
    optimizer_marks,
    another_thread,
)
CASES += (inference, made_of_others, failed, unknown_group, unreadable)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What each of CASES returned on one rank; and where its files are."""
    folder = tmp_path_factory.mktemp("alone")
    return {**on_ranks(folder, 1, {case.__name__: case for case in CASES}), "folder": folder}


def test_nested(alone):
    assert alone["nested"] == [NESTED, 2]


def test_paths_that_are_no_folder(alone):
    folder = expecting("a folder: each rank writes its own file")
    text = expecting("a folder that can be made (Not a directory)")
    assert alone["paths"] == [
        error_text("path", f"HERE/step.jsonl, {folder}"),
        error_text("path", f"HERE/file, {folder}"),
        error_text("path", f"HERE/file/below, {text}"),
        error_text("path", f"'', {folder}"),
        error_text("path", f"5, {folder}"),
    ]


def test_a_step_after_the_end(alone):
    assert alone["ended"].startswith(error_text("step", "no capture", "a step inside of"))


def test_nothing_is_written_without_a_path(alone):
    assert alone["no_path"] is True


def test_nothing_is_in_the_way_without_a_capture(alone):
    assert alone["ours"] == [False, True, False, False]


def test_the_file_is_written_when_the_body_raises(alone):
    assert alone["raised"] is True
    traffic = Traffic.load(alone["folder"] / "raised")
    assert [call.bytes_in for call in traffic.calls[0]] == [12]
    assert (len(traffic.problems), traffic.ranks) == (1, 1)
    assert traffic.environment["torch"] == torch.__version__


def test_profilers_of_the_user_keep_all_their_events(alone):
    """And show no more than without a capture."""
    assert alone["profilers"] == [3 + 5 + 7, 4, 1, 3]


def test_a_compiled_model_stays_compiled(alone):
    assert alone["compiled"] == [1, [16, 16, 16]]


def test_an_optimizer_marks_steps_until_the_training_does(alone):
    """Steps of one call; after the first optimizer the second one has a call of the next step."""
    counts, sampled, hooks = alone["optimizer_marks"]
    assert counts == {
        "two": [1, 2, 2],
        "marks_itself": [1, 1, 1],
        "marks_before": [1, 1, 1],
        "compiled_step": [],  # the compiler would break the graph of the optimizer
        "nothing": [],
    }
    assert sampled == 2
    assert hooks == 0  # after the captures


def test_calls_of_another_thread_are_seen(alone):
    assert alone["another_thread"] == [[0, 4], [1, 8], [2, 12]]


def test_calls_in_inference_mode_are_seen(alone):
    assert alone["inference"] == [4, 8]


def test_a_call_that_is_made_of_others_is_one(alone):
    assert alone["made_of_others"] == [["c10d::torchcoll_twice", 20]]


def test_a_call_that_fails_is_none(alone):
    calls, notes = alone["failed"]
    assert calls == ["all_reduce"]
    assert not [note for note in notes if "missing" in note]


def test_what_cannot_be_read_is_counted_and_disturbs_nothing(alone):
    text = "1 calls of c10d::torchcoll_odd are missing: their process group is not known"
    assert alone["unknown_group"] == [2, 0, [text]]
    text = "1 calls of c10d::allreduce_ are missing: they could not be read (TypeError)"
    assert alone["unreadable"] == [1, 0, [text]]


def test_a_late_rank_is_in_the_durations(tmp_path):
    """From issue to completion: not until the call returns, which an asynchronous one does at once.

    And a call that has not ended is kept.
    """

    def case():
        late = dist.get_rank() == 1
        dist.barrier()
        with capture("late") as traffic:
            if late:
                await_event("before the call")
                time.sleep(0.2)
            else:
                announce("before the call")
            dist.all_reduce(torch.ones(1))
            traffic.step()
            if late:
                await_event("issued")
                time.sleep(0.2)
            work = dist.all_reduce(torch.ones(1), async_op=True)
            if not late:
                announce("issued")
            work.wait()
            traffic.step()
            if not late:
                pending = dist.all_reduce(torch.ones(1), async_op=True)
        if late:
            dist.all_reduce(torch.ones(1))
        else:
            pending.wait()

    on_ranks(tmp_path, 2, {"it": case})
    early, late = Traffic.load(tmp_path / "late").calls.values()
    assert all(call.time_ns > 50e6 for call in early[:2])
    assert [call.step for call in early] == [0, 1, None]  # None: after the last mark
    assert early[2].time_ns is None or early[2].time_ns > 0  # as fast as the other rank is
    assert len(late) == 2


def restarted(folder, into, victim=None):
    """A job of 2 ranks that captures; one of them may be lost before the end."""

    def target():
        dist.init_process_group("gloo")
        with capture(into) as traffic:
            reduce(1 if victim is not None else 2)
            dist.barrier()
            if dist.get_rank() == victim:
                os._exit(9)
        name = traffic.path.name
        (Path(folder) / f"{dist.get_rank()}.name").write_text(name)
        os._exit(0)

    job = Job(folder, target, 2)
    try:
        codes = [ended.code for ended in job.wait().values()]
    finally:
        job.kill()
    assert codes == [0, 9] if victim is not None else [0, 0], job.text(0)
    return [path.read_text() for path in sorted(Path(folder).glob("*.name"))]


def test_a_restarted_job_writes_beside_its_first_capture(tmp_path, capsys):
    """The last capture is read, of all its ranks, whatever the files of each are called."""
    into = tmp_path / "traffic"
    assert restarted(tmp_path / "one", into, victim=1) == ["traffic-rank0.jsonl"]
    before = (into / "traffic-rank0.jsonl").read_bytes()
    second = ["traffic-rank0-2.jsonl", "traffic-rank1-2.jsonl"]  # the victim left a file too
    assert restarted(tmp_path / "two", into) == second
    assert (into / "traffic-rank0.jsonl").read_bytes() == before

    first = Traffic.load(into / "traffic-rank0.jsonl")
    for recorded in (Traffic.load(into), read_traffic([into])):
        assert {rank: calls[0].bytes_in for rank, calls in recorded.calls.items()} == {0: 8, 1: 8}
        begun = recorded.environment["capture"].split(" ")[0]
        note = f"{into} holds 2 captures: this is the last, begun {begun}; left out: "
        assert f"{note}traffic-rank0.jsonl, traffic-rank1.jsonl" in recorded.notes
        assert begun > first.environment["capture"].split(" ")[0]
    assert torchcoll_command(["trace", str(into)]) == 0
    assert "left out: traffic-rank0.jsonl, " in " ".join(capsys.readouterr().out.split())
    # A file that is named is read; two captures are no traffic.
    assert Traffic.load(into / "traffic-rank0.jsonl").calls[0][0].bytes_in == 4
    with pytest.raises(UsageError, match=error_text("^capture in .*/traffic-rank1-2.jsonl", "20")):
        read_traffic([into / "traffic-rank0.jsonl", into / "traffic-rank1-2.jsonl"])
    third = ["traffic-rank0-3.jsonl", "traffic-rank1-3.jsonl"]
    assert restarted(tmp_path / "three", into) == third


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="destroying hangs there")
def test_a_group_made_again_under_its_name_with_other_members(tmp_path):
    """torch begins to count again when all groups were destroyed."""

    def target():
        def life(number, members):
            store = dist.FileStore(str(tmp_path / f"store{number}"), 3)
            rank = int(os.environ["RANK"])
            dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
            group = dist.new_group(members)
            yield
            if rank in members:
                dist.all_reduce(torch.ones(number), group=group)
            dist.barrier()
            dist.destroy_process_group()

        first = life(1, [0, 1])
        next(first)
        with capture(tmp_path / "traffic"):
            next(first, None)
            for number, members in ((2, [0, 2]), (3, [0, 1])):
                for _ in life(number, members):
                    pass
        os._exit(0)

    job = Job(tmp_path / "job", target, 3)
    try:
        assert job.codes() == [0, 0, 0], job.text(0)
    finally:
        job.kill()
    recorded = Traffic.load(tmp_path / "traffic")
    sent = {
        rank: [
            (call.bytes_in, recorded.groups[call.group].ranks, call.sequence)
            for call in calls
            if call.collective == "all_reduce"
        ]
        for rank, calls in recorded.calls.items()
    }
    assert sent == {
        0: [(4, (0, 1), 0), (8, (0, 2), 0), (12, (0, 1), 1)],
        1: [(4, (0, 1), 0), (12, (0, 1), 1)],
        2: [(8, (0, 2), 0)],
    }
    names = [call.group for call in recorded.calls[0] if call.collective == "all_reduce"]
    assert names[1] == f"{names[0]}@2" and names[2] == names[0]
    assert [call.group for call in recorded.calls[2] if call.collective == "all_reduce"] == names[
        1:2
    ]
