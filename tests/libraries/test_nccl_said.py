"""The content of each kind of message in NCCL's log, in each version's format."""

from __future__ import annotations

import pytest
from nccl_log_lines import info, only, read, started

from torchcoll.libraries.nccl.jobs import jobs
from torchcoll.libraries.nccl.messages import Tuned


def test_a_communicator_of_2_27():
    rank0 = info(
        "NCCL git version master 3619159",
        "cudaDriverVersion 12090",
        started(0),
        "Bootstrap timings total 0.031000 (create 0.01, send 0.02, recv 0.00, ring 0.00, "
        "delay 0.00)",
        "comm 0x5000 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
        "Pattern 4, crossNic 0, nChannels 12, bw 30.000000/20.5, type NVL/PIX, sameChannels 1",
        "Channel 00/02 : 0 1",
        "Channel 01/02 : 0 1",
        "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
        "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels "
        "per peer",
        "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        "NVLS comm 0x5000 headRank 0 nHeads 2 buffSize 1048576 nvlsPerRankSize 1 nvlsTotalSize 2",
        started(0).replace("START", "COMPLETE"),
        "Init timings - ncclCommInitRank: rank 0 nranks 2 total 2.34 (kernels 0.41, alloc 1.19, "
        "bootstrap 0.12, allgathers 0.01, topo 0.08, graphs 0.01, connections 0.52, rest 0.00)",
        "TUNER/Plugin: Using Example (v5)",
        "comm 0x5000 rank 0 nranks 2 cudaDev 0 busId 1a000 - Destroy COMPLETE",
    )
    rank1 = info(started(1), who="node1:21:22 [1]")
    reader = read(*rank0, *rank1)
    assert reader.tally.counts == {"understood": 15, "known": 2}
    job = only(reader)
    (group,) = job.communicators
    assert (group.nranks, group.nodes, group.state) == (2, 1, "destroyed on 1, not complete on 1")
    rank_0, rank_1 = group.members
    assert rank_0.made_by == "ncclCommInitRank"
    assert rank_0.rings == {0: (0, 1), 1: (0, 1)}
    assert rank_0.channels == {"coll": 24, "collnet": 24, "nvls": 16, "p2p": 32}
    assert rank_0.nvls and not rank_1.nvls
    assert rank_0.timings["alloc"] == 1.19 and rank_0.timings["total"] == 2.34
    assert rank_0.bootstrap["total"] == 0.031
    process = job.processes[0]
    assert (process.git, process.driver, process.nvls) == ("master 3619159", "12090", "yes")
    assert process.tuner == "Example (v5)"


@pytest.mark.parametrize(
    ("line", "phases"),
    [
        # 2.22 names no function and has no alloc.
        (
            "Init timings: rank 0 nranks 2 total 0.17 (kernels 0.12, bootstrap 0.03, allgathers "
            "0.00, topo 0.00, graphs 0.00, connections 0.02, rest 0.00)",
            8,
        ),
        # Cut in the middle, as stdout of a node is: what stands there is kept, 'rest' is missing.
        ("Init timings - ncclCommInitRank: rank 0 nranks 2 total 3.68 (kernels 0.34, alloc ", 2),
    ],
)
def test_init_timings_of_2_22_and_cut(line, phases):
    reader = read(*info(started(0), line))
    (group,) = only(reader).communicators
    assert len(group.members[0].timings) == phases
    assert ("rest" in group.members[0].timings) == (phases > 2)
    assert reader.tally.counts["cut"] == (phases == 2)


def test_2_30_puts_the_rank_first():
    reader = read(*info(f"[Rank 1] {started(1)}"))
    (group,) = only(reader).communicators
    assert [(m.rank, m.comm_id) for m in group.members] == [(1, "0xabc")]


def test_ranks_meet_by_the_comm_id_in_several_files():
    """Two jobs of two ranks; each rank has a file, and the processes have equal names."""
    readers = [
        read(*info(started(rank, comm_id=comm_id)), file=f"{job}{rank}.log")
        for rank in (0, 1)
        for job, comm_id in (("a", "0x1"), ("b", "0x2"))
    ]
    result = jobs(readers)
    assert [job.files for job in result] == [["a0.log", "a1.log"], ["b0.log", "b1.log"]]
    assert [len(job.communicators) for job in result] == [1, 1]


@pytest.mark.parametrize(
    "splits",
    [
        "splitCount 1 color {} key 0- Init START",  # 2.22 to 2.29, without a blank
        "childCount 1 color {} key 0- Init START",  # 2.30
        "color {} key 0 commId 0xc{} - Init START",  # 2.21
    ],
)
def test_splits_by_parent_and_color(splits):
    lines = []
    for rank in range(4):
        color, who = rank % 2, f"node1:{rank + 1}1:12 [{rank}]"
        split = f"ncclCommSplit comm 0x6{rank} rank {rank // 2} nranks 2 cudaDev 0 busId 1a000 "
        split += f"parent 0x5{rank:03x} " + splits.format(color, color)
        lines += info(started(rank, 4), split, who=who)
    job = only(read(*lines))
    assert [(g.nranks, len(g.members)) for g in job.communicators] == [(4, 4), (2, 2), (2, 2)]
    assert job.communicators[1].parent is not None


def test_up_to_2_17_only_the_end_of_init_is_logged():
    lines = []
    for rank in range(2):
        lines += info(
            *(["Channel 00/01 :    0   1"] if rank == 0 else []),
            f"comm 0x5{rank} rank {rank} nranks 2 cudaDev {rank} busId 1a000 - Init COMPLETE",
            *(["Channel 00/01 :    1   0"] if rank == 0 else []),
            f"comm 0x6{rank} rank {rank} nranks 2 cudaDev {rank} busId 1a000 - Init COMPLETE",
            who=f"node1:{rank + 1}1:12 [{rank}]",
        )
    job = only(read(*lines))
    assert [(len(g.members), g.rings) for g in job.communicators] == [
        (2, {0: (0, 1)}),
        (2, {0: (1, 0)}),
    ]


def test_one_process_with_all_gpus():
    """With nccl-tests -g 2 a process has a thread for each rank."""
    lines = [line for r in (0, 1) for line in info(started(r), who=f"node1:11:2{r} [{r}]")]
    lines += info("Channel 00/01 : 0 1", who="node1:11:20 [0]")
    job = only(read(*lines))
    assert len(job.processes) == 1
    assert [[m.rings for m in g.members] for g in job.communicators] == [[{0: (0, 1)}, {}]]


def test_a_process_of_the_same_number_in_the_next_container():
    first, second = (
        info("NCCL version 2.27.5+cuda12.9", started(0, 1, n), complete(0, 1, n))
        for n in ("0x1", "0x2")
    )
    result = jobs([read(*first, *second)])
    assert [len(job.processes) for job in result] == [1, 1]


def complete(rank: int, nranks: int, comm_id: str) -> str:
    return started(rank, nranks, comm_id).replace("START", "COMPLETE")


def test_processes_that_name_no_communicator_are_together_by_file():
    lines = [
        *info("NCCL version 2.29.7+cuda12.9"),
        *info("Using network IB", who="node1:13:13 [1]"),
    ]
    readers = [read(*lines, file="a.log"), read(*lines, file="b.log")]
    assert [(job.files, len(job.processes)) for job in jobs(readers)] == [
        (["a.log"], 2),
        (["b.log"], 2),
    ]
    # The log of a process goes on in the next file.
    readers = [read(*info(started(0)), file="a.log"), read(*info("Using network IB"), file="b.log")]
    assert [job.files for job in jobs(readers)] == [["a.log", "b.log"]]


@pytest.mark.parametrize(
    ("line", "kind", "pair"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read", (0, 1)),
        ("Channel 03 : 6[ca000] -> 4[31000] via P2P/IPC", "P2P/IPC", (6, 4)),  # <= 2.16
        ("Channel 02 : 2[1a000] -> 3[1b000] via SHM/direct/direct", "SHM/direct/direct", (2, 3)),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA", "NET/IB/GDRDMA", (0, 8)),
        ("Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/3(2)/GDRDMA", "NET/IB/GDRDMA", (8, 0)),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/3[31000]", "P2P/indirect", (0, 1)),
        # RCCL goes on behind it.
        ("Channel 00/0 : 0[83000] -> 1[3000] via P2P/IPC comm 0x1 nRanks 02", "P2P/IPC", (0, 1)),
    ],
)
def test_transports(line, kind, pair):
    (process,) = read(*info(line, line)).processes
    assert (process.transports, process.pairs) == ({kind: 2}, {kind: {pair}})


NINE = "  Protocol    |  LL | LL128 | Simple |  LL | LL128 | Simple |  LL | LL128 | Simple |"


def test_the_tuning_table_from_2_18_on():
    """The last block has one algorithm and a row of nine protocols (2.29.7)."""
    reader = read(
        *info(
            "  Algorithm   |              Tree              |              Ring               |",
            NINE,
            " Max NThreads |      512 |      640 |      512 |      512 |       640 |       256 |",
            "    AllReduce |  16.8/   0.5 |  31.0/   0.0 |  36.4/   1.9 |  16.6/   1.2 | "
            " 31.0/   0.0 |  36.4/   2.4 |",
            "  Algorithm   |                             PAT                  |",
            NINE,
            "    AllGather |     0.0/   0.0 |     0.0/   0.0 |    17.6/   3.6 |",
        )
    )
    (group,) = only(reader).communicators
    assert [cell for cell in group.tuning if cell.algbw_gbps] == [
        Tuned("AllReduce", "TREE", "LL", 16.8, 0.5),
        Tuned("AllReduce", "TREE", "SIMPLE", 36.4, 1.9),
        Tuned("AllReduce", "RING", "LL", 16.6, 1.2),
        Tuned("AllReduce", "RING", "SIMPLE", 36.4, 2.4),
        Tuned("AllGather", "PAT", "SIMPLE", 17.6, 3.6),
    ]
    assert reader.tally.counts == {"understood": 4, "known": 3}


def test_the_tuning_table_up_to_2_17():
    reader = read(
        *info(
            "Latency/AlgBw |    Tree/    LL |    Ring/Simple | CollNet/Simple |",
            " Max NThreads |            512 |            256 |            512 |",
            "    Broadcast |     0.0/   0.0 |    18.0/   9.0 |     0.0/   0.0 |",
            "    AllReduce |     6.3/   1.0 |    18.0/",  # cut
        )
    )
    (group,) = only(reader).communicators
    assert group.tuning == [
        Tuned("Broadcast", "TREE", "LL", 0.0, 0.0),
        Tuned("Broadcast", "RING", "SIMPLE", 18.0, 9.0),
        Tuned("Broadcast", "COLLNET", "SIMPLE", 0.0, 0.0),
    ]
    assert reader.tally.counts == {"understood": 2, "known": 1, "cut": 1}
    assert reader.tally.examples[0][0] == 4
