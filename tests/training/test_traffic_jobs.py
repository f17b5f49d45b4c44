"""Files of one job in a folder are one traffic; those of several jobs are told apart."""

import json
import pickle

import pytest
from foreign_traces import CREATED, INFO, entry, kernel, param, step

from torchcoll.cli import main
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.parts.training.traces import read_jobs, read_traffic

DAY_NS = 86_400 * 10**9


def dump(path, ranks=2, calls=2, later_ns=0, numbers=None, groups=None):
    """A dump of so many calls in the default group, written as a pickle."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    for name, members in (groups or {}).items():
        config[name] = {"name": name, "desc": "undefined", "ranks": str(members)}
    entries = [entry("all_reduce", n, process_group=("0", "default_pg"))
               for n in numbers or range(1, calls + 1)]  # fmt: skip
    for record in entries:
        record["time_created_ns"] += later_ns
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
    path.write_bytes(pickle.dumps(data, 2))


def trace(path, rank, later_us=0, first_step=1, world=2):
    events = [step(first_step, 0 + later_us, 5000), param("allreduce", later_us + 1000, 1, Seq=7)]
    events += [kernel("nccl", later_us + 1100, 200, 1)]
    info = INFO | {"rank": rank, "world_size": world}
    data = {"distributedInfo": info, "baseTimeNanoseconds": CREATED, "traceEvents": events}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def seen(jobs):
    """Of each job its ranks and the number of calls of each."""
    return [{rank: len(calls) for rank, calls in job.calls.items()} for job in jobs]


def test_the_ranks_of_one_job_in_folders_of_their_nodes(tmp_path):
    for rank in range(4):
        dump(tmp_path / f"node{rank // 2}" / f"nccl_trace_rank_{rank}", ranks=4, later_ns=rank)
    (job,) = read_jobs([tmp_path])
    assert seen([job]) == [{0: 2, 1: 2, 2: 2, 3: 2}]
    assert (job.ranks, job.path) == (4, tmp_path)
    assert not any("holds" in note for note in job.notes)


def test_two_jobs_in_two_folders(tmp_path):
    for number, name in enumerate(("before", "after"), 1):
        for rank in range(2):
            dump(tmp_path / name / f"nccl_trace_rank_{rank}", calls=number, later_ns=number * 10**9)
    jobs = read_jobs([tmp_path])
    assert seen(jobs) == [{0: 2, 1: 2}, {0: 1, 1: 1}]
    assert [job.path for job in jobs] == [tmp_path / "after", tmp_path / "before"]
    assert jobs[0].notes[0] == (
        f"{tmp_path} holds 2 jobs, told apart because rank 0 is in both after/nccl_trace_rank_0 "
        "and before/nccl_trace_rank_0: this is number 1, of nccl_trace_rank_0 and "
        "nccl_trace_rank_1"
    )
    with pytest.raises(UsageError, match="files of 2 jobs"):
        read_traffic([tmp_path])


def test_names_that_differ_in_more_than_the_rank(tmp_path):
    """Begun at the same time, so that only the names tell them apart."""
    for name, calls in (("a", 1), ("b", 2)):
        for rank in range(2):
            dump(tmp_path / f"{name}_rank{rank}.pickle", calls=calls, later_ns=ord(name))
    assert seen(read_jobs([tmp_path])) == [{0: 1, 1: 1}, {0: 2, 1: 2}]


def test_names_of_hosts_are_one_job(tmp_path):
    for rank in range(2):
        dump(tmp_path / f"{'xy'[rank]}-node_rank{rank}", later_ns=rank)
    assert seen(read_jobs([tmp_path])) == [{0: 2, 1: 2}]


def test_one_rank_again_later(tmp_path):
    """Names of tensorboard's handler, which have no rank: only the times tell the runs apart."""
    for run in range(2):
        for rank in range(2):
            trace(tmp_path / f"vm_{run}{rank}.{rank}5{run}.pt.trace.json", rank, run * 9e6 + rank)
    jobs = read_jobs([tmp_path])
    assert seen(jobs) == [{0: 1, 1: 1}] * 2
    starts = [[job.clocks[rank][1] - CREATED for rank in range(2)] for job in jobs]
    assert starts == [[0, 1000], [9 * 10**9, 9 * 10**9 + 1000]]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"ranks": 4}, "one has 2 ranks and the other 4"),
        ({"later_ns": DAY_NS + 10**9}, "they are more than a day apart"),
    ],
)
def test_contradictions(tmp_path, second, reason):
    dump(tmp_path / "a_rank0", groups={"1": [0, 1]})
    dump(tmp_path / "b_rank1", **second)
    jobs = read_jobs([tmp_path])
    assert seen(jobs) == [{0: 2}, {1: 2}]
    assert f"told apart because {reason}: this is number 2, of b_rank1" in jobs[1].notes[0]


def test_a_group_of_other_ranks_is_no_contradiction(tmp_path):
    """Each rank has a group 1 of its own row of a mesh, as split_group makes them."""
    dump(tmp_path / "a_rank0", ranks=4, groups={"1": [0, 1]})
    dump(tmp_path / "b_rank2", ranks=4, groups={"1": [2, 3]}, later_ns=5)
    (job,) = read_jobs([tmp_path])
    assert [group.ranks for group in job.groups.values()] == [(0, 1, 2, 3), (0, 1), (2, 3)]


def test_dumps_and_traces_of_one_job(tmp_path):
    for rank in range(2):
        dump(tmp_path / f"nccl_trace_rank_{rank}", later_ns=rank)
        trace(tmp_path / f"trace_rank{rank}.json", rank)
    jobs = read_jobs([tmp_path])
    assert [(job.source, len(job.calls)) for job in jobs] == [
        ("flight recorder", 2),
        ("kineto", 2),
    ]
    assert "holds 2 kinds of files: this is number 1" in jobs[0].notes[0]


def test_files_that_are_named_are_one_job(tmp_path):
    for folder in "ab":
        dump(tmp_path / folder / "rank0", later_ns=ord(folder))
    with pytest.raises(UsageError, match="rank 0 twice"):
        read_jobs([tmp_path / "a" / "rank0", tmp_path / "b" / "rank0"])
    with pytest.raises(UsageError, match="rank 0 twice"):
        read_jobs([tmp_path / "a", tmp_path / "b"])


def test_first_steps_are_compared_within_a_job(tmp_path):
    for rank in range(2):
        for first in (1, 20):
            trace(tmp_path / f"{first}" / f"rank{rank}.json", rank, first * 1e6, first_step=first)
    assert [len(job.calls) for job in read_jobs([tmp_path])] == [2, 2]
    trace(tmp_path / "1" / "rank1.json", 1, 1e6, first_step=2)
    with pytest.raises(UsageError, match="first step"):
        read_jobs([tmp_path])


def test_files_of_other_formats_are_left_out(tmp_path):
    dump(tmp_path / "nccl_trace_rank_0")
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (job,) = read_jobs([tmp_path])
    assert job.notes[0] == f"left out 1 file of other formats: {tmp_path / 'config.json'}"
    (tmp_path / "nccl_trace_rank_0").unlink()
    with pytest.raises(UnreadableError, match=r"config\.json"):
        read_jobs([tmp_path])


def test_the_command_shows_every_job(tmp_path, capsys):
    for number, name in enumerate("ab", 1):
        for rank in range(2):
            dump(tmp_path / name / f"rank{rank}", calls=number, later_ns=number * 10**9)
    assert main(["trace", str(tmp_path), "--format", "json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [document["traffic"]["path"] for document in documents] == [
        str(tmp_path / name) for name in "ab"
    ]
    assert main(["trace", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("holds 2 jobs") == 2
    assert main(["trace", str(tmp_path), "-o", str(tmp_path / "x.jsonl")]) == 2
    assert "Name its files" in capsys.readouterr().err
