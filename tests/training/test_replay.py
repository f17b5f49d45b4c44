"""A captured step played on real ranks, and everything that is refused before it is."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from error_form import error_line, error_text
from foreign_traces import INFO, kernel, param, step
from torch.distributed.run import get_args_parser

import torchcoll
from torchcoll import cli
from torchcoll.bench import control, departure
from torchcoll.core import shared_cores
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.training import command as command
from torchcoll.parts.training.replay import replay

MS = 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
UNTOLD = ("send", "recv", "reduce_scatter", "reduce_scatter_v")


def reduced(size_bytes: int = 64, group: str = "", **fields) -> TrafficCall:
    values = {"dtype": "float32", "op": "sum", "group": group, **fields}
    return TrafficCall("all_reduce", size_bytes, size_bytes, **values)


def message(
    collective: str, peer: int, size_bytes: int = 64, asynchronous: bool = True
) -> TrafficCall:
    sides = (size_bytes, 0) if collective == "send" else (0, size_bytes)
    return TrafficCall(collective, *sides, "float32", peer=peer, asynchronous=asynchronous)


def every_collective(rank: int) -> list[TrafficCall]:
    """All that has a size, on 2 ranks, as the rank would see it."""
    calls = []
    for name, entry in COLLECTIVES.items():
        if name in ("all_to_all_v", "sendrecv", "hypercube"):
            continue
        sides = {
            **{"all_gather": (64, 128), "reduce_scatter": (128, 64), "barrier": (0, 0)},
            **{"gather": (64, 0 if rank == 0 else 128), "scatter": (0 if rank == 0 else 128, 64)},
        }
        for asynchronous in (False, True):
            call = TrafficCall(
                name,
                *sides.get(name, (128, 128)),
                "float32" if entry.has_data else None,
                op="max" if entry.has_op else None,
                root=1 if entry.has_root else None,
                group="pair",
                asynchronous=asynchronous,
            )
            calls.append(call)
    # Rank 0 keeps 1 byte and sends 3, rank 1 sends all of its 5.
    splits = ((1, 3), (5, 0))[rank]
    received = (6, 3)[rank]
    calls.append(TrafficCall("all_to_all_v", sum(splits), received, splits=splits, group="pair"))
    return calls


def messages(rank: int) -> list[TrafficCall]:
    """Both send before they receive: as a batch they can. Then one after the other."""
    combined = [message("send", 1 - rank), message("recv", 1 - rank)]
    turn = [message("send", 1, 8, False), message("recv", 0, 8, False)]
    return [*combined, turn[rank]]


def marked(calls: list[TrafficCall], steps: int = 2) -> list[TrafficCall]:
    return [replace(call, step=step) for step in range(steps) for call in calls]


def traffic(*ranks: list[TrafficCall], size: int | None = None, **groups) -> Traffic:
    named = {name: Group(name, members) for name, members in groups.items()}
    return Traffic(ranks=size or len(ranks), calls=dict(enumerate(ranks)), groups=named)


def stated(call: TrafficCall) -> TrafficCall:
    """The call without what belongs to one play of it."""
    at_once = bool(call.asynchronous)
    return replace(call, sequence=0, step=None, start_ns=None, time_ns=None, asynchronous=at_once)


def console(*arguments: str):
    def target() -> None:
        sys.exit(cli.main(["replay", *arguments]))

    return target


def errors(job) -> list[str]:
    texts = [job.text(rank) for rank in job.pids]
    return [line for text in texts for line in text.splitlines() if "torchcoll: error" in line]


def test_every_kind_of_call(jobs, tmp_path):
    """The command, on the file of all ranks."""
    calls_by_rank = [every_collective(rank) + messages(rank) for rank in (0, 1)]
    reported = traffic(*map(marked, calls_by_rank), pair=(0, 1))
    reported.groups["pair"] = Group("pair", (0, 1), "nccl", "tensor parallel")
    reported.steps = {0: [(0, 7 * MS), (7 * MS, 9 * MS)], 1: [(0, 7 * MS), (7 * MS, 10 * MS)]}
    reported.save(tmp_path / "t.jsonl")

    def setup(rank: int) -> None:
        shared_cores.oversubscribed_hosts = lambda members: [("here", "3 ranks on 1 core")]

    job = jobs(tmp_path, console("t.jsonl", "--steps", "3", "-J", "out.jsonl"), 2, setup=setup)
    assert job.codes() == [0, 0], job.text(0) + job.text(1)
    assert job.text(0) == "traffic file: out.jsonl\n" and job.text(1) == ""
    assert "all_to_all_v" in job.text(0, "stdout") and job.text(1, "stdout") == ""
    recorded = Traffic.load(tmp_path / "out.jsonl")
    assert not recorded.problems
    assert (recorded.source, recorded.ranks, sorted(recorded.calls)) == ("replay", 2, [0, 1])
    assert recorded.groups == {
        "pair": Group("pair", (0, 1), "gloo", "tensor parallel"),
        "default": Group("default", (0, 1), "gloo"),
    }
    assert recorded.environment["libraries"] == {"gloo": recorded.environment["libraries"]["gloo"]}
    for rank, calls in recorded.calls.items():
        expected = [
            replace(stated(call), group=call.group or "default") for call in calls_by_rank[rank]
        ]
        # The first play stands before the marked steps.
        assert [call.step for call in calls] == [step for step in (None, 0, 1, 2) for _ in expected]
        size = len(expected)
        plays = [calls[i : i + size] for i in range(0, len(calls), size)]
        for play in plays:
            assert [stated(call) for call in play] == expected
        assert {call.clock for call in calls} == {"host"}
        for call in calls:  # of some asynchronous ones gloo does not tell the end
            if not (call.asynchronous and call.collective in UNTOLD and call.time_ns is None):
                assert call.time_ns > 0
        starts = [call.start_ns for call in calls]
        assert starts == sorted(starts) and starts[0] == 0
        spans = recorded.steps[rank]
        for number, (start, end) in enumerate(spans):
            inside = [call for call in calls if call.step == number]
            assert all(start <= call.start_ns <= end for call in inside)
        # Numbered in each group, messages for each peer and direction, as a capture numbers them.
        numbers = [call.sequence for call in calls if call.group == "pair"]
        assert numbers == list(range(4 * sum(call.group == "pair" for call in expected)))
    assert "replay of step 1 of t.jsonl: no gaps between calls, and nothing was computed" in (
        recorded.notes
    )
    output = job.text(0, "stdout")
    sentence = r"the calls of step 1 take \S+ ms alone on 2 gloo ranks; in training the step took "
    assert re.match(sentence + "3.00 ms\n", output)
    assert "here: 3 ranks on 1 core" in recorded.notes


def test_what_torch_is_asked_for(jobs, tmp_path):
    """Sub-groups, roots and async_op reach torch; calls that are alike share their buffers."""

    def target() -> None:
        seen = []
        true = dist.all_reduce

        def all_reduce(tensor, op, group, async_op=False):
            members = dist.get_process_group_ranks(group or dist.group.WORLD)
            arguments = [members, tensor.nbytes, str(tensor.dtype), str(op), async_op]
            seen.append([*arguments, tensor.data_ptr()])
            return true(tensor, op, group, async_op=async_op)

        dist.all_reduce = all_reduce

        def calls(group):
            return [
                reduced(64, group, asynchronous=True),
                reduced(64, group),
                reduced(32, op="max"),
            ]

        parts = [calls("ab"[rank % 2]) for rank in range(4)]
        reported = traffic(*parts, a=(0, 2), b=(1, 3))
        result = replay(reported, backend="gloo", steps=1)
        with open(f"seen{os.environ['RANK']}.json", "w") as file:
            json.dump([seen, result and sorted(result.groups)], file)

    job = jobs(tmp_path, target, 4)
    assert job.codes() == [0] * 4, job.text(0) + job.text(1)
    for rank in range(4):
        seen, groups = json.loads((tmp_path / f"seen{rank}.json").read_text())
        pair = [rank % 2, rank % 2 + 2]
        total, largest = "RedOpType.SUM", "RedOpType.MAX"
        expected = [
            [pair, 64, "torch.float32", total, True],
            [pair, 64, "torch.float32", total, False],
            [[0, 1, 2, 3], 32, "torch.float32", largest, False],
        ]
        assert [arguments[:-1] for arguments in seen] == expected * 2
        assert seen[0][-1] == seen[1][-1] == seen[3][-1] != seen[2][-1]
        if rank == 0:
            assert groups == ["a", "b", "default"]


def test_an_asynchronous_call_is_waited_for_where_it_had_ended(jobs, tmp_path):
    def target() -> None:
        seen = []
        true = dist.all_reduce

        class Work:
            def __init__(self, work, size_bytes):
                self.work, self.size_bytes = work, size_bytes

            def wait(self):
                seen.append(f"wait {self.size_bytes}")
                self.work.wait()

            def get_future(self):
                return self.work.get_future()

        def all_reduce(tensor, op, group, async_op=False):
            seen.append(f"issue {tensor.nbytes}")
            work = true(tensor, op, group, async_op=async_op)
            return Work(work, tensor.nbytes) if async_op else work

        dist.all_reduce = all_reduce
        calls = [
            reduced(8, asynchronous=True, start_ns=0, time_ns=9 * MS),
            reduced(16, asynchronous=True, start_ns=1 * MS, time_ns=2 * MS),
            reduced(24, start_ns=4 * MS, time_ns=1 * MS),
        ]
        replay(traffic(calls, calls), steps=1)
        if os.environ["RANK"] == "0":
            print(json.dumps(seen))

    job = jobs(tmp_path, target, 2)
    assert job.codes() == [0, 0], job.text(0) + job.text(1)
    once = ["issue 8", "issue 16", "wait 16", "issue 24", "wait 8"]
    assert json.loads(job.text(0, "stdout")) == once * 2


def test_a_mesh_on_half_of_its_ranks(jobs, tmp_path):
    """dp=2 x tp=2: tensor parallel stays whole, data parallel disappears."""
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    parts = [
        [
            reduced(64, f"tp{rank // 2}"),
            reduced(256, f"dp{rank % 2}"),
            message("send", (rank + 2) % 4),
        ]
        for rank in range(4)
    ]
    traffic(*parts, **groups).save(tmp_path / "t.jsonl")
    out = tmp_path / "replayed.jsonl"
    arguments = (str(tmp_path / "t.jsonl"), "--shrink", "--steps", "1", "-J", str(out))
    job = jobs(tmp_path / "job", console(*arguments), 2)
    assert {ended.code for ended in job.wait(60).values()} == {0}, errors(job)
    replayed = Traffic.load(out)
    assert [[c.bytes_in for c in replayed.calls[rank] if c.step == 0] for rank in (0, 1)] == [
        [64]
    ] * 2
    assert replayed.groups["tp0"].ranks == (0, 1)
    assert replayed.notes[-2:] != [] and any(
        "captured on 4 ranks; ranks 0 to 1 are played" in note for note in replayed.notes
    )
    # 256 bytes of all_reduce and 64 of send on each of 2 ranks.
    assert any("2 all_reduce, 2 send" in note and "640 B" in note for note in replayed.notes)


def test_traces_of_a_profiler(jobs, tmp_path):
    """Of nccl, played on gloo: what belongs to the kernels of the trace is gone."""
    (tmp_path / "traces").mkdir()
    for rank in (0, 1):
        events = [step(3, 0, 900), param("allreduce", 100, 1), kernel(NCCL, 200, 300, 1)]
        data = {"distributedInfo": {**INFO, "rank": rank}, "traceEvents": events}
        (tmp_path / "traces" / f"rank{rank}.json").write_text(json.dumps(data))
    out = tmp_path / "replayed.jsonl"
    arguments = (str(tmp_path / "traces"), "--backend", "gloo", "--steps", "1", "-J", str(out))
    job = jobs(tmp_path / "job", console(*arguments), 2)
    assert {ended.code for ended in job.wait(60).values()} == {0}, errors(job)
    training = "in training the step took 900 us, and they were in flight for 300 us of it"
    assert training in " ".join(job.text(0, "stdout").split())
    _, played = Traffic.load(out).calls[0]
    assert (played.bytes_in, played.clock, played.algorithm) == (1000, "host", "")


def test_in_the_launch_that_captured_it(jobs, tmp_path):
    """Each rank has its own calls, and the process group is the user's."""

    def target() -> None:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        row = (0, 1) if rank < 2 else (2, 3)
        calls = [reduced(64, "row", start_ns=0, time_ns=1), reduced(256, "row", asynchronous=True)]
        reported = Traffic(ranks=4, calls={rank: calls}, groups={"row": Group("row", row)})
        run = torchcoll.run(reported.spec(iters=2, check=True))
        result = torchcoll.replay(reported, steps=2)
        value = torch.ones(1)
        dist.all_reduce(value)
        assert value.item() == 4
        if rank == 0:
            facts = [
                [
                    [r.case.size_bytes, r.case.asynchronous, r.case.group, r.members]
                    for r in run.results
                ],
                [[r.status, r.verification.wrong] for r in run.results],
                {rank: len(calls) for rank, calls in result.calls.items()},
                {name: group.ranks for name, group in result.groups.items()},
            ]
            with open("seen.json", "w") as file:
                json.dump(facts, file)
        else:
            assert run is None and result is None
        dist.barrier()
        dist.destroy_process_group()

    job = jobs(tmp_path, target, 4)
    assert job.codes() == [0] * 4, "".join(job.text(rank) for rank in range(4))
    rows, checks, calls, groups = json.loads((tmp_path / "seen.json").read_text())
    assert rows == [
        [64, False, "0,1;2,3/0", [0, 1]],
        [64, False, "0,1;2,3/1", [2, 3]],
        [256, True, "0,1;2,3/0", [0, 1]],
        [256, True, "0,1;2,3/1", [2, 3]],
    ]
    assert checks == [["ok", 0]] * 4
    assert calls == {str(rank): 2 * 3 for rank in range(4)}
    assert groups == {"row": [0, 1], "row@2": [2, 3]}


@pytest.mark.parametrize(
    ("reported", "arguments", "code", "line"),
    [
        (
            traffic([reduced()], size=4),
            "",
            2,
            error_text(
                "ranks",
                "2",
                "4, as the step was captured on. --shrink plays what is left of its groups. "
                "Its sizes can be measured on 2: torchcoll.suite --traffic.",
            ),
        ),
        (
            traffic([reduced()]),
            "",
            2,
            error_text(
                "ranks",
                "2",
                "1, as the step was captured on. Its sizes can be measured on 2: "
                "torchcoll.suite --traffic.",
            ),
        ),
        (
            traffic([message("send", 1)], [reduced()]),
            "",
            2,
            error_text(
                "traffic",
                "rank 0 sends 1 message to rank 1, rank 1 receives 0 from it",
                "parts that fit together. Replay the files of one capture, of all its ranks.",
            ),
        ),
        (
            traffic([reduced(step=0)], [reduced(step=1)]),
            "",
            2,
            error_text(
                "traffic",
                "no step that all ranks have",
                "a captured step. Replay the files of one capture, of all its ranks.",
            ),
        ),
        (
            traffic([message("send", 1)], size=2),
            "",
            2,
            error_text(
                "rank 1 (HOST): traffic",
                "no calls of rank 1",
                "calls of all ranks. Put the files of all ranks into one folder.",
            ),
        ),
        (traffic([], []), "", 2, error_text("traffic", "no calls", "a captured step. Replay")),
        (
            traffic([reduced(op="band")], [reduced(op="band")]),
            "",
            4,
            error_text("replay", "all_reduce 64 float32 band: "),
        ),
        (traffic([], []), "--backend fake", 2, error_text("backend", "fake", "one that commun")),
        (traffic([], []), "--backend none", 4, error_text("backend", "none", "one that this")),
        (traffic([], []), "--steps 0", 2, error_text("steps", "0", "a whole number from 1 on")),
        (
            traffic([], []),
            "-J t.jsonl",
            2,
            error_text("output", "t.jsonl", "a file that does n"),
        ),
    ],
)
def test_one_line_from_rank_0(jobs, tmp_path, reported, arguments, code, line):
    """And no file is left."""
    reported.save(tmp_path / "t.jsonl")
    job = jobs(
        tmp_path / "in", console("../t.jsonl", *arguments.replace("t.js", "../t.js").split()), 2
    )
    assert job.codes() == [code, code], job.text(0) + job.text(1)
    (error,) = errors(job)
    expected = f"torchcoll: error: {line}".replace("HOST", socket.gethostname())
    assert error.replace("../", "").startswith(expected), error
    assert error in job.text(0)
    assert not list((tmp_path / "in").rglob("*.jsonl"))
    assert not (tmp_path / "in" / "torchcoll-runs").exists()


def test_a_file_that_was_cut_is_named_as_the_cause(jobs, tmp_path):
    reported = traffic(marked([reduced()]), marked([reduced()]))
    reported.save(tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:-2]))  # the last call of rank 1 and the end
    job = jobs(tmp_path / "in", console("../cut.jsonl", "--steps", "1"), 2)
    assert job.codes() == [0, 0], job.text(0)  # step 0 is whole
    (tmp_path / "cut.jsonl").write_text("".join(lines[:-3]))  # rank 1 has no call
    job = jobs(tmp_path / "again", console("../cut.jsonl", "--steps", "1"), 2)
    assert job.codes() == [2, 2]
    assert errors(job) == [
        error_line(
            "traffic",
            "rank 1 makes no call in the group of ranks 0,1, where rank 0 does",
            "parts that fit together. ../cut.jsonl: truncated: the file has no end record. "
            "Replay the files of one capture, of all its ranks.",
        )
    ]


def test_no_such_file(jobs, tmp_path):
    job = jobs(tmp_path, console("nothing.jsonl", "-J", "out.jsonl"), 2)
    assert job.codes() == [3, 3]
    assert errors(job) == ["torchcoll: error: file: got nothing.jsonl, expected a file that exists"]
    assert not (tmp_path / "out.jsonl").exists()


def test_a_rank_that_stops_is_named(jobs, tmp_path, monkeypatch):
    """Nobody waits for longer than the timeout."""
    for module in (control, departure):
        monkeypatch.setattr(module, "GRACE_S", 0.5)

    def setup(rank: int) -> None:
        true = dist.all_reduce

        def all_reduce(tensor, *args, **options):
            if tensor.nbytes == 32:
                os.kill(os.getpid(), signal.SIGSTOP)
            return true(tensor, *args, **options)

        if rank == 1:
            dist.all_reduce = all_reduce

    calls = [reduced(start_ns=0, time_ns=1), reduced(32, start_ns=2 * MS, time_ns=1)]
    traffic(calls, calls).save(tmp_path / "t.jsonl")
    job = jobs(tmp_path, console("t.jsonl", "-T", "3"), 2, setup=setup)
    job.until(lambda: job.running() == [1])
    (line,) = errors(job)
    assert line.startswith("torchcoll: error: lost rank 1 (")
    assert "replay: first play" in line
    assert not list(tmp_path.rglob("*replay*.jsonl"))


def test_torchrun_lets_every_option_pass():
    parser = argparse.ArgumentParser()
    command.replay_arguments(parser)
    names = {name: a.nargs for a in parser._actions for name in a.option_strings}
    assert {"--backend", "--steps", "--timeout", "-T", "--output", "-J"} <= set(names)
    for name, nargs in names.items():
        for form in [[name], [f"{name}=1"]] if nargs == 0 else [[name, "1"], [f"{name}=1"]]:
            reported = ["--nproc-per-node", "2", "-m", "torchcoll", "replay", "t.jsonl", *form]
            parsed = get_args_parser().parse_args(reported)
            assert parsed.training_script == "torchcoll"
            assert parsed.training_script_args == ["replay", "t.jsonl", *form]


def test_the_default_file(jobs, tmp_path):
    calls = [reduced()]
    traffic(calls, calls).save(tmp_path / "t.jsonl")
    job = jobs(tmp_path, console("t.jsonl", "--format", "json", "--backend", "gloo"), 2)
    assert job.codes() == [0, 0], job.text(0)
    (path,) = (tmp_path / "torchcoll-runs").iterdir()
    assert path.name.endswith("-replay-gloo-2ranks.jsonl")
    assert job.text(0) == f"traffic file: torchcoll-runs/{path.name}\n"
    (row,) = json.loads(job.text(0, "stdout"))["rows"]
    assert (row["collective"], row["calls_per_step"]) == ("all_reduce", 1)
    assert len(Traffic.load(path).steps[0]) == 10
