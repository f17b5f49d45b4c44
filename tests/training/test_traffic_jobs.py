"""Files of one job in a folder are one traffic; of several jobs the latest is read."""

import json
import pickle

import pytest
from foreign_traces import CREATED, INFO, entry, kernel, param, step

from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.parts.training.traces import read_traffic

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


def seen(job):
    """The number of calls of each rank."""
    return {rank: len(calls) for rank, calls in job.calls.items()}


def test_the_ranks_of_one_job_in_folders_of_their_nodes(tmp_path):
    for rank in range(4):
        dump(tmp_path / f"{'xy'[rank // 2]}" / f"trace_rank_{rank}", ranks=4, later_ns=rank)
    job = read_traffic([tmp_path])
    assert seen(job) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert (job.ranks, job.path) == (4, tmp_path)
    assert not any("left out" in note for note in job.notes)


def test_of_two_jobs_in_two_folders_the_latest_is_read(tmp_path):
    for number, name in enumerate(("before", "after"), 1):
        for rank in range(2):
            dump(tmp_path / name / f"nccl_trace_rank_{rank}", calls=number, later_ns=number * 10**9)
    job = read_traffic([tmp_path])
    assert seen(job) == {0: 2, 1: 2}
    assert job.path == tmp_path / "after"
    assert job.notes[0] == (
        f"{tmp_path}: its latest job is read; left out "
        "before/nccl_trace_rank_0, before/nccl_trace_rank_1"
    )


def test_names_of_tensorboard_have_no_rank(tmp_path):
    """Only the times tell the runs apart."""
    for run in range(2):
        for rank in range(2):
            trace(tmp_path / f"vm_{run}{rank}.{rank}5{run}.pt.trace.json", rank, run * 9e6 + rank)
    job = read_traffic([tmp_path])
    assert seen(job) == {0: 1, 1: 1}
    starts = [job.clocks[rank][1] - CREATED for rank in range(2)]
    assert starts == [9 * 10**9, 9 * 10**9 + 1000]


def test_a_job_that_wrote_fewer_ranks(tmp_path):
    for name, rank, later_ns in (("a0", 0, 0), ("a1", 1, 5), ("b1", 1, 10**9)):
        trace(tmp_path / f"{name}.json", rank, later_ns / 1000)
    assert seen(read_traffic([tmp_path])) == {1: 1}


def test_files_more_than_a_day_apart_are_two_jobs(tmp_path):
    trace(tmp_path / "a_rank0.json", 0)
    trace(tmp_path / "b_rank1.json", 1, (DAY_NS + 10**9) / 1000)
    assert seen(read_traffic([tmp_path])) == {1: 1}
    trace(tmp_path / "b_rank1.json", 1, (DAY_NS - 10**9) / 1000)
    assert seen(read_traffic([tmp_path])) == {0: 1, 1: 1}


def test_groups_of_rows_of_a_mesh(tmp_path):
    """Each rank has a group 1 of its own row, as split_group makes them."""
    dump(tmp_path / "a_rank0", ranks=4, groups={"1": [0, 1]})
    dump(tmp_path / "b_rank2", ranks=4, groups={"1": [2, 3]}, later_ns=5)
    job = read_traffic([tmp_path])
    assert [group.ranks for group in job.groups.values()] == [(0, 1, 2, 3), (0, 1), (2, 3)]


def test_traces_are_read_before_dumps_of_the_same_job(tmp_path):
    for rank in range(2):
        dump(tmp_path / f"nccl_trace_rank_{rank}", later_ns=rank)
        trace(tmp_path / f"trace_rank{rank}.json", rank)
    job = read_traffic([tmp_path])
    assert (job.source, len(job.calls)) == ("kineto", 2)
    assert job.notes[0].endswith("left out nccl_trace_rank_0, nccl_trace_rank_1")


def test_files_that_are_named_are_one_job(tmp_path):
    for folder in "ab":
        dump(tmp_path / folder / "rank0", later_ns=ord(folder))
    with pytest.raises(UsageError, match="rank 0 twice"):
        read_traffic([tmp_path / "a" / "rank0", tmp_path / "b" / "rank0"])
    with pytest.raises(UsageError, match="rank 0 twice"):
        read_traffic([tmp_path / "a", tmp_path / "b"])


def test_first_steps_are_compared_within_a_job(tmp_path):
    for rank in range(2):
        for first in (1, 20):
            trace(tmp_path / f"{first}" / f"rank{rank}.json", rank, first * 1e6, first_step=first)
    assert len(read_traffic([tmp_path]).calls) == 2
    trace(tmp_path / "20" / "rank1.json", 1, 20e6, first_step=21)
    with pytest.raises(UsageError, match="first step"):
        read_traffic([tmp_path])


def test_files_of_other_formats_are_left_out(tmp_path):
    dump(tmp_path / "nccl_trace_rank_0")
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    job = read_traffic([tmp_path])
    assert job.notes[0] == f"left out 1 file of other formats: {tmp_path / 'config.json'}"
    (tmp_path / "nccl_trace_rank_0").unlink()
    with pytest.raises(UnreadableError, match=r"config\.json"):
        read_traffic([tmp_path])
