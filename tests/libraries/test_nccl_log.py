"""Logs of NCCL and RCCL: as each version writes them, and as real terminals garble them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_log_lines import info, only, read, started

from torchcoll.libraries.nccl.jobs import jobs
from torchcoll.libraries.nccl.log import NcclLogReader


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[1,3]<stdout>:",  # mpirun --tag-output
        "Thu Jul 18 15:41:05 2024<stdout>:",
        "3: ",  # srun -l
        "[default3]:",  # torchrun
        "(RayWorkerWrapper pid=927) ",
        "[2026-11-20 15:39:39] ",  # NCCL_DEBUG_TIMESTAMP_LEVELS=INFO, from 2.26 on
        "\x1b[36m",
    ],
)
def test_text_before_a_line_does_not_matter(prefix):
    (line,) = info("NCCL version 2.27.5+cuda12.9", who="node-1.a:11:12 [3]")
    reader = read(prefix + line)
    (process,) = reader.processes
    assert (process.host.removeprefix("36m"), process.pid) == ("node-1.a", 11)
    assert process.version == "2.27.5+cuda12.9"
    assert reader.tally.counts == {"understood": 1}


def test_crlf_is_no_part_of_a_value():
    reader = read(*info("NCCL_ALGO set by environment to Ring", "Using network IB"), ending="\r\n")
    assert reader.processes[0].variables == {"NCCL_ALGO": "Ring"}
    assert reader.processes[0].network == "IB"


def test_a_host_that_was_edited_away():
    reader = read("node [0] NCCL INFO Using network Socket")
    assert [(p.host, p.network) for p in reader.processes] == [("", "Socket")]


def test_before_the_device_is_open_its_number_is_ignored():
    # libnccl 2.21.5 without a driver.
    line = "vm:7:7 [-2130771969] misc/cudawrap.cc:182 NCCL WARN Cuda failure 'no driver'"
    (process,) = read(line).processes
    assert (process.host, process.pid) == ("vm", 7)


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        # <= 2.25; 2.26 with a time; 2.30 with a function.
        ("node1:11:12 [0] init.cc:9 NCCL WARN Bad", "Bad (init.cc:9)"),
        ("[2026-11-20 15:39:39] node1:11:12 [0] init.cc:9 NCCL WARN Bad", "Bad (init.cc:9)"),
        (
            "[2026-11-20 15:39:39] node1:11:12 [0] init.cc:9 (ncclInit) NCCL WARN Bad",
            "Bad (init.cc:9 (ncclInit))",
        ),
    ],
)
def test_warnings_with_their_place(line, warning):
    reader = read("", line, line)
    assert reader.processes[0].warnings == {warning: 2}
    assert reader.tally.counts == {"other": 1, "understood": 2}


def test_a_trace_build_names_choices_before_2_20():
    prefix = "node1:11:12 [0] 1234.500000 getAlgoInfo:1185 NCCL TRACE "
    reader = read(prefix + "1024 Bytes -> Algo 1 proto 0 time 12.5", prefix + "Cubes and spheres")
    (process,) = reader.processes
    assert [(call.size, call.label) for call in process.calls] == [(1024, "RING/LL")]
    assert reader.tally.counts == {"understood": 1, "known": 1}


def test_the_version_up_to_2_23_has_no_process():
    reader = read("NCCL version 2.18.6+cuda12.1", *info("Using network IB"))
    assert only(reader).version == "2.18.6+cuda12.1"
    assert reader.tally.counts == {"understood": 2}


def test_rccl_is_distinguished_from_nccl():
    lines = info("RCCL version : 2.27.7-HEAD:0d2c4fd")
    reader = read(*lines, "HIP version  : 7.2.26015-fc0010cf6a", "Hostname     : TARS")
    assert [(p.library, p.version) for p in reader.processes] == [("RCCL", "2.27.7-HEAD:0d2c4fd")]
    assert reader.tally.counts == {"understood": 1, "other": 2}


def test_lines_of_other_processes_in_a_line():
    """Eight ranks of 2.27 write to one stdout through buffers of 4096 bytes."""
    whole = info("Using network IB", who="gpu-1:1800:1800 [3]")
    whole += info("Using network IB", who="gpu-1:1804:1804 [7]")
    reader = read(
        *whole,
        "gpu-1:1800:1800 [3] NCCL INFO ncclCommInitRankConfig comm 0x55a7 rank 3 nranks 8 cudaDev "
        "3 nvmlDev 3 busId 86gpu-1:1804:1804 [7] NCCL INFO ncclCommInitRankConfig comm 0x563b "
        "rank 7 nranks 8 cudaDev 7 nvmlDev 7 busId ca000 commId 0xd4a8 - Init COMPLETE",
        "000 commId 0xd4a8 - Init COMPLETE",
        "gpu-1:1804:1804 [7] NCCL INFO Init timings - ncclCommInitRankConfig: rank 7 nranks 8 "
        "total 2.34 (kernels 0.41, alloc gpu-1:1800:1800 [3] NCCL INFO Channel 00/0 : 3[3] -> 2[2] "
        "via P2P/IPC",
        "gpu-1:1800:1800 [3] NCCL INFO Channel 01/0 : 3[3] -> 2[2] via P2P/Igpu-1:1804:1804 [7] "
        "NCCL INFO Channel 01/0 : 7[7] -> 6[6] via P2P/IPC",
    )
    three, seven = reader.processes
    assert (three.pid, seven.pid) == (1800, 1804)
    # The line within the one that was cut off is read in full.
    assert [(m.rank, m.comm_id) for m in three.members] == [(3, "")]
    assert [(m.rank, m.complete) for m in seven.members] == [(7, True)]
    assert seven.members[0].timings == {"total": 2.34, "kernels": 0.41}
    assert (three.transports, seven.transports) == ({"P2P/IPC": 1}, {"P2P/IPC": 1})
    assert reader.tally.counts == {"understood": 2, "cut": 3, "other": 1}


def test_every_line_is_counted_once():
    reader = read(
        "Epoch 1: NCCL backend, loss 0.1",
        *info("AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 1 datatype 7 op 0 root 0"),
        *info("misc/utils.cc:233 memory stack hunk malloc(65536)", "+ NVL[370.8] - NVS/0"),
        *info("Channel 00/0 : 0[0] -> 1["),
        *info("Quantum entanglement ready on 8 GPUs"),
        "node1:11:12 NCCL CALL ncclAllReduce(0x1)",
        "     Function |       LL     LL128    Simple   |          Tree           Ring",
        "AllReduce | 7 | of another program",
    )
    counts = {"other": 1, "known": 6, "cut": 1, "unknown": 1}
    assert reader.tally.counts == counts
    assert reader.tally.lines == 9
    examples = [(n, text.partition("INFO ")[2]) for n, text in reader.tally.examples]
    assert examples == [
        (5, "Channel 00/0 : 0[0] -> 1["),
        (6, "Quantum entanglement ready on 8 GPUs"),
    ]


def test_bytes_that_are_no_text():
    reader = NcclLogReader()
    reader.read([b"\xff\xfe NCCL INFO \x80\x81\n", b"n\xe9:1:1 [0] NCCL INFO Using network IB\n"])
    assert reader.tally.counts == {"unknown": 1, "understood": 1}


def test_a_number_that_is_none():
    digits = "9" * 5000
    reader = read(
        f"node1:{digits}:1 [0] NCCL INFO Using network IB",
        *info(f"Channel {digits}/02 : 0 1", f"AllReduce: {digits} Bytes -> Algo RING proto LL"),
    )
    assert reader.tally.counts == {"understood": 1, "cut": 2}
    assert [process.pid for process in reader.processes] == [0, 11]


GOOD = info(
    started(0),
    "ncclCommSplit comm 0x6 rank 0 nranks 2 cudaDev 0 busId 1a parent 0x5 splitCount 1 color 7",
    "Init timings - ncclCommInitRank: rank 0 nranks 2 total 2.34 (kernels 0.41, rest 0.00)",
    "Channel 00/02 : 0 1",
    "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
    "  Algorithm   |              Ring               |",
    "    AllReduce |  16.8/   0.5 |  31.0/   0.0 |  36.4/   1.9 |",
    "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
)


@given(
    st.sampled_from(GOOD),
    st.integers(0, 200),
    st.integers(0, 30),
    st.sampled_from([*GOOD, *"-.1f"]),
)
def test_edited_lines_are_read_or_counted(line, start, length, inserted):
    """A part of a line is removed, or replaced by another line or a stray character."""
    reader = read(GOOD[0], line[:start] + inserted + line[start + length :], *GOOD)
    assert reader.tally.lines == len(GOOD) + 2
    assert sum(len(job.processes) for job in jobs([reader])) == len(reader.processes)


def test_a_cut_line_makes_no_process():
    """`node1:47` and a line of node2 in one; a line that lost its first characters."""
    lines = [
        line
        for rank, host in enumerate(("node1", "node2"))
        for line in info(started(rank), who=f"{host}:{11 + rank}:20 [0]")
    ]
    cut = info("Using network IB", who="node1:47node2:12:20 [0]")
    cut += info("Using network IB", who="de1:11:20 [0]")
    job = only(read(*lines, *cut))
    assert [(p.host, p.pid, p.network) for p in job.processes] == [
        ("node1", 11, "IB"),
        ("node2", 12, "IB"),
    ]
    # Where the cut line is the first of its process, the name of the next one counts.
    first = read(*cut[:1], *lines[1:])
    assert [p.host for p in first.processes] == ["node2"]
    # Names that a dash parts are two hosts, in containers of one process number.
    reader = read(*info("Using network IB", who="n-1:7:7 [0]"), *info("a", who="my-n-1:7:7 [0]"))
    assert [p.host for p in reader.processes] == ["n-1", "my-n-1"]


HOSTS = ("x3006c0s1b0n0", "x3006c0s1b1n0")
PIDS = (41, 151, 1061, 10071)


def spoken(rank: int) -> str:
    """The 64 lines that one of four ranks on two nodes writes."""
    channels = [f"Channel {n:02d}/0 : {rank}[0] -> {rank ^ 1}[0] via NET/IB/0" for n in range(62)]
    who = f"{HOSTS[rank // 2]}:{PIDS[rank]}:{PIDS[rank]} [0]"
    lines = info(started(rank, 4), *channels, "Connected all rings", who=who)
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("block", [4096, 1024, 1000])
def test_outputs_that_run_into_each_other_name_no_host(block):
    """Each process writes a block of its buffer at a time, which ends anywhere in a line: `Chan`
    and `x3006c0s1b1n0:141:` of another process become `Chanx3006c0s1b1n0:141:`.
    """
    left, text = [spoken(rank) for rank in range(4)], ""
    while any(left):
        text += "".join(text[:block] for text in left)
        left = [text[block:] for text in left]
    reader = read(*text.splitlines())
    assert reader.tally.counts["cut"] > 0
    job = only(reader)
    assert (sorted(job.hosts), [p.pid for p in job.processes]) == ([*HOSTS], [*PIDS])
    assert [m.rank for m in job.communicators[0].members] == [0, 1, 2, 3]


def test_a_file_of_cut_lines_alone_is_read():
    line = info(started(0))[0][:60] + info("Using network IB")[0]
    assert [process.pid for process in read(line).processes] == [11]


def test_cut_lines_are_reported_with_not_complete():
    whole = "Init COMPLETE"
    lines = [*info(started(0), f"ncclCommInitRank comm 0x5000 rank 0 nranks 2 - {whole}")]
    second_rank = info(started(1), who="node2:12:20 [0]")
    second_rank += info("Using network IB", who="node2:12:20 [0]")
    spliced = second_rank[0][:60] + info("Using network IB")[0]
    (group,) = only(read(*lines, *second_rank, spliced)).communicators
    assert group.state == "complete on 1, not complete on 1 (1 line of the log cut)"
