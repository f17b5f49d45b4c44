"""NCCL Inspector's files of a job: which belong together, and whose time is the time of a call."""

from __future__ import annotations

import json
from pathlib import Path

from torchcoll.cli import main
from torchcoll.parts.training.traces import read_traffic

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


def times(traffic):
    return {rank: [call.time_ns for call in calls] for rank, calls in traffic.calls.items()}


def test_communicators_of_one_job_are_groups_of_its_traffic(tmp_path):
    """Ranks 0 and 2 are group 0xa, 1 and 3 are 0xb, and 0x7f is the world."""
    records = [record(r, 0, 50, ranks=4) for r in range(4)]
    for rank in range(4):
        part = record(rank, 0, 20 + rank, comm="0xa" if rank % 2 == 0 else "0xb")
        part["header"]["rank"] = rank // 2
        records.append(part)
    traffic = read_traffic([save(tmp_path / "d", *records)])
    assert traffic.ranks == 4
    assert {name: group.ranks for name, group in traffic.groups.items()} == {
        "0x7f": (0, 1, 2, 3),
        "0xa": (0, 2),
        "0xb": (1, 3),
    }
    assert times(traffic)[3] == [50_000, 23_000]


def test_of_a_restart_with_the_same_communicator_the_later_calls_are_read(tmp_path):
    """NCCL_COMM_ID gives the communicator the same identity."""
    first = [record(r, n, 10 + r) for r in (0, 1) for n in (0, 1)]
    second = [record(r, n, 20 + r, pid=600 + r, at=HOUR_US) for r in (0, 1) for n in (0, 1)]
    traffic = read_traffic([save(tmp_path / "d", *second, *first)])
    assert times(traffic) == {0: [20_000] * 2, 1: [21_000] * 2}
    assert any("4 calls are recorded twice" in note for note in traffic.notes)


def test_of_jobs_without_a_common_communicator_the_latest_is_read(tmp_path):
    records = [record(r, 0, 20, comm="0x70", pid=300 + r, at=7) for r in (0, 1)]
    records += [record(r, 0, 10) for r in (0, 1)]
    traffic = read_traffic([save(tmp_path / "d", *records)])
    assert times(traffic) == {0: [20_000], 1: [20_000]}
    assert any("2 jobs" in note and "left out 0x7f of 2 ranks" in note for note in traffic.notes)


def test_a_file_that_is_there_twice_counts_once(tmp_path):
    folder = save(tmp_path / "d", *(record(r, 0, 10 + r) for r in (0, 1)))
    (folder / "copy.log").write_text((folder / "n0-pid100.log").read_text())
    traffic = read_traffic([folder])
    assert times(traffic) == {0: [10_000], 1: [11_000]}
    assert "1 records are there twice: each counts once" in traffic.notes


def test_records_without_a_collective_or_a_time_are_left_out(tmp_path):
    """NCCL 2.28.9 has records of collective_cpu without a time."""
    records = [record(0, 0, 0, coll_timing_source="collective_cpu"), record(0, 1, 10)]
    folder = save(tmp_path / "d", *records, record(0, 2, 5, coll="AllSums"))
    traffic = read_traffic([folder])
    assert times(traffic) == {0: [10_000]}
    assert "2 lines of Inspector's were not read" in traffic.notes


def batch(rank, *calls):
    """Format v4.3: one dump_stats record, followed by the records of one communicator."""
    whole = record(rank, 0, 1.0)
    stats = {"coll_records": len(calls), "coll_dropped_since_last_dump": 7}
    marker = {"header": whole["header"], "metadata": whole["metadata"], "dump_stats": stats}
    perfs = [{"coll_perf": record(rank, *call)["coll_perf"]} for call in calls]
    return "".join(json.dumps(each) + "\n" for each in (marker, *perfs))


def test_records_take_the_header_of_their_batch(tmp_path):
    text = batch(0, (1, 10), (2, 20)) + batch(1, (1, 11))
    lost = batch(1, (2, 22))[40:]  # its header is cut
    (tmp_path / "n0-pid1.log").write_text(text + lost)
    traffic = read_traffic([tmp_path / "n0-pid1.log"])
    assert times(traffic) == {0: [10_000, 20_000], 1: [11_000]}
    assert any(note.startswith("14 collectives were overwritten") for note in traffic.notes)
    assert "2 lines of Inspector's were not read" in traffic.notes


def test_show_names_the_command_that_reads_them(tmp_path, capsys):
    folder = save(tmp_path / "d", record(0, 0, 10), record(2, 0, 10, ranks=4))
    assert main(["show", str(folder)]) == 3
    assert "torchcoll trace" in capsys.readouterr().err


def test_traffic_numbers_the_calls_of_all_collectives_together(tmp_path):
    """NCCL counts each collective from 0, so all_reduce 0 and all_gather 0 are different calls."""
    records = [
        record(r, number, 10 + r, coll=coll, at=at)
        for at, (coll, number) in enumerate((("AllReduce", 0), ("AllGather", 0), ("AllReduce", 1)))
        for r in (0, 1)
    ]
    traffic = read_traffic([save(tmp_path / "d", *records)])
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
    traffic = read_traffic([folder])
    send = next(call for call in traffic.calls[0] if call.collective == "send")
    assert (send.peer, send.bytes_in, send.bytes_out, send.time_ns) == (1, 512, 0, 7000)


def test_processes_without_a_common_communicator_are_numbered_by_host(tmp_path):
    """Two pairs that a third communicator chains: 0-1 in 0xa, 1-2 in 0xb."""
    records = []
    for comm, members in (("0xa", (0, 1)), ("0xb", (1, 2))):
        for place, process in enumerate(members):
            each = record(process, 0, 10, comm=comm)
            each["header"]["rank"] = place
            records.append(each)
    traffic = read_traffic([save(tmp_path / "d", *records)])
    assert {name: group.ranks for name, group in traffic.groups.items()} == {
        "0xa": (0, 1),
        "0xb": (1, 2),
    }
    assert any("numbered by the host" in note for note in traffic.notes)
