"""NCCL Inspector's files of a job: which belong together, and whose time is the time of a call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchcoll.cli import main
from torchcoll.core.summary import summarise
from torchcoll.reading.inputs import load
from torchcoll.reading.traces import read_jobs

NAME = "nccl-inspector"
MIB = 1 << 20
HOUR_US = 3_600_000_000


def record(rank, number, us, *, ranks=2, pid=None, coll="AllReduce", comm="0x7f", at=0, **perf):
    header = {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": 1}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "dump_timestamp_us": 1_763_000_000_000_000 + at,
        "hostname": f"n{rank // 2}",
        "pid": 100 + rank if pid is None else pid,
    }
    fields = {
        "coll": coll,
        "coll_sn": number,
        "coll_msg_size_bytes": MIB,
        "coll_exec_time_us": us,
        "coll_timing_source": "kernel_gpu",
    }
    return {"header": header, "metadata": metadata, "coll_perf": fields | perf}


def save(folder: Path, *records) -> Path:
    """Each process' records in a file of its own, as Inspector names it."""
    folder.mkdir(exist_ok=True)
    for each in records:
        data = each["metadata"]
        with open(folder / f"{data['hostname']}-pid{data['pid']}.log", "a") as file:
            file.write(json.dumps(each) + "\n")
    return folder


def test_the_files_of_one_job_are_one_run_of_the_last_rank_to_arrive(tmp_path):
    times = {0: (1000, 1040), 1: (100, 110)}  # rank 1 is last in both calls
    folder = save(tmp_path / "d", *(record(r, n, times[r][n]) for r in (0, 1) for n in (0, 1)))
    (run,) = load(folder)
    (result,) = run.results
    assert result.time_ns == {"device": [[1_000_000, 1_040_000], [100_000, 110_000]]}
    row = summarise(result)
    # Median of 100 and 110 us: 105 us; 1 MiB / 105 us = 9.986 GB/s, on 2 ranks busbw too.
    assert (row.median_ns, row.calls) == (105_000, 2)
    assert row.busbw_gbps == pytest.approx(9.98644, rel=1e-5)
    # No reading over ranks may take the time of a rank that waited.
    assert {summarise(result, how).median_ns for how in ("max", "mean", "rank0")} == {105_000}


def test_show_says_whose_time_it_is(tmp_path, capsys):
    folder = save(tmp_path / "d", *(record(r, 0, 10 + 90 * r) for r in (0, 1)))
    assert main(["show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "that of the last rank to arrive" in text
    assert " 10.00 us " in text


def test_calls_without_a_rank_give_no_bandwidth(tmp_path):
    records = [record(r, n, 10 * (r + 1), ranks=3) for n in (0, 1) for r in (0, 1)]
    (run,) = load(save(tmp_path / "d", *records))
    row = summarise(run.results[0])
    assert (row.busbw_gbps, row.algbw_gbps, row.ranks) == (None, None, 3)
    assert run.results[0].time_ns == {}
    assert "no call has the records of all 3 ranks" in run.results[0].warnings[0]


def test_a_rooted_collective_gives_no_bandwidth(tmp_path):
    records = [record(r, 0, 10 * (r + 1), coll="Broadcast") for r in (0, 1)]
    (run,) = load(save(tmp_path / "d", *records))
    assert summarise(run.results[0]).busbw_gbps is None
    assert run.results[0].warnings[0].startswith("rooted")


def test_communicators_of_one_job_are_groups_of_one_run(tmp_path):
    """Ranks 0 and 2 are group 0xa, 1 and 3 are 0xb, and 0x7f is the world."""
    records = [record(r, 0, 50, ranks=4) for r in range(4)]
    for rank in range(4):
        part = record(rank, 0, 20 + rank, comm="0xa" if rank % 2 == 0 else "0xb")
        part["header"]["rank"] = rank // 2
        records.append(part)
    (run,) = load(save(tmp_path / "d", *records))
    assert run.ranks == 4
    members = {result.case.group: list(result.members) for result in run.results}
    assert members == {"0x7f": [0, 1, 2, 3], "0xa": [0, 2], "0xb": [1, 3]}
    medians = {result.case.group: summarise(result).median_ns for result in run.results}
    assert medians == {"0x7f": 50_000, "0xa": 20_000, "0xb": 21_000}


def test_of_a_restart_with_the_same_communicator_the_later_calls_are_read(tmp_path):
    """NCCL_COMM_ID gives the communicator the same identity."""
    first = [record(r, n, 10 + r) for r in (0, 1) for n in (0, 1)]
    second = [record(r, n, 20 + r, pid=600 + r, at=HOUR_US) for r in (0, 1) for n in (0, 1)]
    (run,) = load(save(tmp_path / "d", *second, *first))
    assert run.results[0].time_ns == {"device": [[20_000] * 2, [21_000] * 2]}
    assert any("4 calls are recorded twice" in event["message"] for event in run.events)


def test_jobs_without_a_common_communicator_are_told_apart(tmp_path):
    records = [record(r, 0, 10) for r in (0, 1)]
    records += [record(r, 0, 20, comm="0x80", pid=300 + r, at=7) for r in (0, 1)]
    runs = load(save(tmp_path / "d", *records))
    assert [run.header["source"]["job"] for run in runs] == [
        "0x7f of 2 ranks from 2025-11-13 02:13:20Z",
        "0x80 of 2 ranks from 2025-11-13 02:13:20Z",
    ]
    assert len({run.header["run_id"] for run in runs}) == 2


def test_a_file_that_is_there_twice_counts_once(tmp_path):
    folder = save(tmp_path / "d", *(record(r, 0, 10 + r) for r in (0, 1)))
    (folder / "copy.log").write_text((folder / "n0-pid100.log").read_text())
    (run,) = load(folder)
    assert run.results[0].time_ns == {"device": [[10_000], [11_000]]}
    assert any("1 records are there twice" in event["message"] for event in run.events)


def test_calls_of_several_clocks_are_left_out(tmp_path):
    records = [record(0, 0, 10), record(1, 0, 99, coll_timing_source="collective_cpu")]
    records += [record(r, 1, 20 + r) for r in (0, 1)]
    (run,) = load(save(tmp_path / "d", *records))
    assert run.results[0].time_ns == {"device": [[20_000], [21_000]]}
    assert run.results[0].warnings[0].startswith("1 of 2 calls have several clocks")


def test_import_merges_the_files_of_a_job(tmp_path):
    folder = save(tmp_path / "d", *(record(r, 0, 10 + r) for r in (0, 1)))
    target = tmp_path / "run.jsonl"
    assert main(["convert", *map(str, sorted(folder.iterdir())), "-o", str(target)]) == 0
    assert load(target).results[0].time_ns == {"device": [[10_000], [11_000]]}
    assert summarise(load(target).results[0]).median_ns == 10_000


def test_traffic_numbers_the_calls_of_all_collectives_together(tmp_path):
    """NCCL counts each collective from 0, so all_reduce 0 and all_gather 0 are different calls."""
    records = [
        record(r, number, 10 + r, coll=coll, at=at)
        for at, (coll, number) in enumerate((("AllReduce", 0), ("AllGather", 0), ("AllReduce", 1)))
        for r in (0, 1)
    ]
    (traffic,) = read_jobs([save(tmp_path / "d", *records)])
    for rank in (0, 1):
        calls = traffic.calls[rank]
        assert [(c.collective, c.sequence) for c in calls] == [
            ("all_reduce", 0),
            ("all_gather", 1),
            ("all_reduce", 2),
        ]
        # Of AllGather, Inspector has the bytes of one rank.
        assert [(c.bytes_in, c.bytes_out) for c in calls] == [
            (MIB, MIB),
            (MIB, 2 * MIB),
            (MIB, MIB),
        ]
    assert traffic.groups["0x7f"].ranks == (0, 1)


def test_messages_are_traffic(tmp_path):
    """A p2p_perf record of 2.30; ``rank`` and ``p2p_peer`` are ranks of the communicator."""
    message = record(0, 0, 1)
    message["p2p_perf"] = {
        "p2p": "Send",
        "p2p_sn": 3,
        "p2p_peer": 1,
        "p2p_msg_size_bytes": 512,
        "p2p_exec_time_us": 7,
        "p2p_timing_source": "kernel_gpu",
    }
    del message["coll_perf"]
    folder = save(tmp_path / "d", message, *(record(r, 0, 10) for r in (0, 1)))
    (traffic,) = read_jobs([folder])
    send = next(call for call in traffic.calls[0] if call.collective == "send")
    assert (send.peer, send.bytes_in, send.bytes_out, send.time_ns) == (1, 512, 0, 7000)


def test_a_message_without_a_kind_is_refused(imported):
    result = imported(
        json.dumps({"header": {"n_ranks": 2}, "p2p_perf": {"p2p": ""}}), importer=NAME
    )
    assert [refused.reason for refused in result.refused] == [
        "point-to-point: neither Send nor Recv"
    ]


def test_processes_without_a_common_communicator_are_numbered_by_host(tmp_path):
    """Two pairs that a third communicator chains: 0-1 in 0xa, 1-2 in 0xb."""
    records = []
    for comm, members in (("0xa", (0, 1)), ("0xb", (1, 2))):
        for place, process in enumerate(members):
            each = record(process, 0, 10, comm=comm)
            each["header"]["rank"] = place
            records.append(each)
    (traffic,) = read_jobs([save(tmp_path / "d", *records)])
    assert {name: group.ranks for name, group in traffic.groups.items()} == {
        "0xa": (0, 1),
        "0xb": (1, 2),
    }
    assert any("numbered by the host" in note for note in traffic.notes)
