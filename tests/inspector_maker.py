"""Makes folders as NCCL Inspector writes them, of simulated jobs whose truth is known.

The formats follow NCCL's sources, not our reader: ext-profiler/inspector/inspector.cc of 2.28.3 and
2.29.3 (the last call of each dump), inspector_json.cc and inspector_prom.cc of
plugins/profiler/inspector in 2.30.7 (all calls of a ring), and the README of format v4.3.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
}
VERSIONS = ("2.28", "2.29", "2.30", "2.30 verbose", "2.31", "2.31 v4.2", "2.29 prom", "2.30 prom")
START_US = 1_763_000_000_000_000
GPUS_PER_NODE = 8


@dataclass
class Group:
    """A communicator: its members by rank in it, and its calls: (collective, S in bytes)."""

    identity: str
    label: str
    members: tuple[int, ...]
    calls: list[tuple[str, int]]


@dataclass
class Call:
    """One call: S, its true time in us, and by member of the group when it arrived, in us."""

    group: Group
    name: str
    number: int
    size_bytes: int
    transfer_us: float
    arrived_us: dict[int, float]
    end_us: float = 0.0

    def exec_us(self, rank: int) -> int:
        """As Inspector: whole microseconds of the kernel, which waits for the other ranks."""
        return int(self.end_us - self.arrived_us[rank])


@dataclass
class MadeJob:
    """late: the rank that is late, or None. busbw: (group, collective, S) -> GB/s, the truth."""

    ranks: int
    groups: list[Group]
    late: int | None
    calls: list[Call] = field(default_factory=list)
    busbw: dict[tuple[str, str, int], float] = field(default_factory=dict)
    first_pid: int = 1000
    begin_us: int = START_US


def bus_factor(name: str, ranks: int) -> float:
    return (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks


def make_groups(ranks: int, kind: str, tag: str) -> list[Group]:
    """kind: world, mesh (world, dp and tp) or parts (dp and tp alone)."""
    world = Group(f"0x{tag}0", "default_pg", tuple(range(ranks)), [("all_reduce", 1 << 22)])
    if kind == "world" or ranks < 4:
        world.calls = [
            ("all_reduce", 1 << 22),
            ("all_gather", 1 << 21),
            ("reduce_scatter", 1 << 23),
        ]
        return [world]
    groups = [
        Group(f"0x{tag}a{k}", "tp", (2 * k, 2 * k + 1), [("all_reduce", 1 << 20)])
        for k in range(ranks // 2)
    ]
    groups += [
        Group(f"0x{tag}b{k}", "dp", tuple(range(k, ranks, 2)), [("reduce_scatter", 1 << 24)])
        for k in range(2)
    ]
    return [*groups, world] if kind == "mesh" else groups


def simulate(
    ranks: int,
    kind: str,
    late: int | None,
    steps: int,
    seed: int,
    tag: str = "5d2a",
    delay_us: float = 4000.0,
    jitter_us: float = 400.0,
) -> MadeJob:
    """Every rank computes between its calls; the late one needs ``delay_us`` more for each step."""
    generator = random.Random(seed)
    job = MadeJob(ranks, make_groups(ranks, kind, tag), late)
    clock = [0.0] * ranks
    numbers: dict[tuple[str, str], int] = {}
    for _ in range(steps):
        for rank in range(ranks):
            clock[rank] += 2000 + generator.uniform(0, jitter_us)
            clock[rank] += delay_us if rank == late else 0
        for group in job.groups:
            for name, size_bytes in group.calls:
                for rank in group.members:
                    clock[rank] += 300 + generator.uniform(0, jitter_us)
                n = len(group.members)
                gbps = 20.0 + 10 * math.log2(n)
                truth_us = size_bytes * bus_factor(name, n) / gbps / 1000 + 150
                transfer_us = truth_us * generator.uniform(0.998, 1.002)
                number = numbers.get((group.identity, name), 0)
                numbers[group.identity, name] = number + 1
                arrived = {rank: clock[rank] for rank in group.members}
                call = Call(group, name, number, size_bytes, transfer_us, arrived)
                call.end_us = max(arrived.values()) + transfer_us
                for rank in group.members:
                    clock[rank] = call.end_us
                job.calls.append(call)
                busbw = size_bytes * bus_factor(name, n) / truth_us / 1000
                job.busbw[group.identity, name, size_bytes] = busbw
    return job


def write(
    job: MadeJob,
    folder: Path,
    version: str,
    seed: int = 0,
    missing: tuple[int, ...] = (),
    cut: float = 1.0,
    skew_us: int = 3_000_000,
) -> None:
    """Write the files of all ranks but ``missing``. cut: which share of a file is left.

    skew_us: by how much the clocks of nodes differ.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(seed)
    nodes = -(-job.ranks // GPUS_PER_NODE)
    offsets = [generator.randint(-skew_us, skew_us) for _ in range(nodes)]
    for rank in range(job.ranks):
        node = f"node{rank // GPUS_PER_NODE:03d}"
        calls = [call for call in job.calls if rank in call.arrived_us]
        offset = job.begin_us + offsets[rank // GPUS_PER_NODE]
        if rank in missing:
            continue
        if version.endswith("prom"):
            name = f"nccl_inspector_metrics_GPU-{job.first_pid + rank:08x}.prom"
            text = (_prom_29 if "2.29" in version else _prom_30)(job, rank, node, calls, offset)
        else:
            name = f"{node}-pid{job.first_pid + rank}.log"
            text = _json(job, rank, node, calls, offset, version, generator)
        (folder / name).write_text(text[: int(len(text) * cut)])


def _dumps(calls: list[Call], period_us: float, phase_us: float) -> list[list[Call]]:
    """The calls that each periodic dump finds completed since the last one."""
    by_dump: dict[int, list[Call]] = {}
    for call in calls:
        by_dump.setdefault(int((call.end_us + phase_us) // period_us), []).append(call)
    return [by_dump[key] for key in sorted(by_dump)]


def _line(record: object) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"


def _json(
    job: MadeJob,
    rank: int,
    node: str,
    calls: list[Call],
    offset: int,
    version: str,
    generator: random.Random,
) -> str:
    newer = not version.startswith(("2.28", "2.29"))
    batched = version == "2.31"
    nodes = -(-job.ranks // GPUS_PER_NODE)
    form = {"2.31": "v4.3", "2.31 v4.2": "v4.2"}.get(version, "v4.0")
    # Dumps of 2.28 keep the last call alone. 500 us is the interval of NCCL's README.
    period = 200_000.0 if newer else 500.0
    lines = []
    for dump in _dumps(calls, period, generator.uniform(0, period)):
        when = offset + int(dump[-1].end_us) + 500
        metadata = {
            "inspector_output_format_version": form,
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": when,
            "hostname": node,
            "pid": job.first_pid + rank,
        }
        for group in dict.fromkeys(call.group.identity for call in dump):
            of_group = [call for call in dump if call.group.identity == group]
            written = of_group if newer else of_group[-1:]
            first = of_group[0].group
            header = {
                "id": group,
                **({"comm_name": first.label} if newer else {}),
                "rank": first.members.index(rank),
                "n_ranks": len(first.members),
                "nnodes": min(nodes, len(first.members)),
            }
            head = {"header": header, "metadata": metadata}
            if batched:
                zero = dict.fromkeys(("p2p_records", "p2p_dropped_total"), 0)
                stats = {"coll_records": len(written), "coll_dropped_since_last_dump": 0, **zero}
                lines.append(_line({**head, "dump_stats": stats}))
            for call in written:
                perf = _perf(call, rank, offset, version)
                lines.append(_line({"coll_perf": perf} if batched else {**head, "coll_perf": perf}))
    return "".join(lines)


def _perf(call: Call, rank: int, offset: int, version: str) -> dict[str, object]:
    n = len(call.group.members)
    us = call.exec_us(rank)
    per_rank = call.name != "all_reduce"
    algbw = call.size_bytes / 1e9 / (us / 1e6)
    perf: dict[str, object] = {"coll": NAMES[call.name]}
    if version.startswith("2.31"):
        perf |= {"coll_algo": "RING", "coll_proto": "SIMPLE"}
    perf |= {
        "coll_sn": call.number,
        "coll_msg_size_bytes": call.size_bytes // n if per_rank else call.size_bytes,
        "coll_exec_time_us": us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": round(algbw, 6),
        "coll_busbw_gbs": round(algbw * bus_factor(call.name, n), 6),
    }
    if version == "2.30 verbose":
        begin = offset + int(call.arrived_us[rank])
        channel = {
            "channel_id": 0,
            "kernel_start_sn": 3,
            "kernel_stop_sn": 5,
            "kernel_record_sn": 4,
        }
        stamps = {
            "channel_id": 0,
            "kernel_start_ts": begin,
            "kernel_stop_ts": begin + us,
            "kernel_record_ts": begin + us,
        }
        perf["event_trace_sn"] = {
            "coll_start_sn": 1,
            "coll_stop_sn": 2,
            "kernel_events": [channel],
        }
        perf["event_trace_ts"] = {
            "coll_start_ts": begin - 60,
            "coll_stop_ts": begin - 55,
            "kernel_events": [stamps],
        }
    return perf


def _range(size_bytes: int) -> str:
    """As inspectorPromFormatMessageSizeRange."""
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < 4:
        value, unit = value / 1024, unit + 1
    low = max(1, math.floor(value))
    return f"{low}-{low + 1}{('B', 'KB', 'MB', 'GB', 'TB')[unit]}"


def _prom_30(job: MadeJob, rank: int, node: str, calls: list[Call], offset: int) -> str:
    """Of each bucket the mean time, and the geometric mean of busbw."""
    buckets: dict[tuple[str, str, str, int], list[Call]] = {}
    for call in calls:
        size_bytes = int(_perf(call, rank, 0, "2.30")["coll_msg_size_bytes"])  # type: ignore[call-overload]
        n = len(call.group.members)
        buckets.setdefault((call.group.label, NAMES[call.name], _range(size_bytes), n), []).append(
            call
        )
    text = ""
    for (label, name, size, n), of_bucket in buckets.items():
        nodes = -(-job.ranks // GPUS_PER_NODE)
        labels = (
            f'version="v5.1",slurm_job_id="{job.first_pid}",node="{node}",'
            f'gpu="GPU{rank % GPUS_PER_NODE}",comm_name="{label}",n_nodes="{nodes}",nranks="{n}",'
            f'collective="{name}",message_size="{size}",algo_proto="RING_SIMPLE"'
        )
        times = [call.exec_us(rank) for call in of_bucket]
        logs = [
            math.log(call.size_bytes * bus_factor(call.name, n) / 1000 / us)
            for call, us in zip(of_bucket, times, strict=True)
        ]
        text += f"nccl_bus_bandwidth_gbs{{{labels}}} {math.exp(sum(logs) / len(logs)):.6g}\n"
        mean = sum(times) / len(times)
        text += f"nccl_collective_exec_time_microseconds{{{labels}}} {mean:.6g}\n"
    return text


def _prom_29(job: MadeJob, rank: int, node: str, calls: list[Call], offset: int) -> str:
    """Of each communicator its last call."""
    text = ""
    for call in {call.group.identity: call for call in calls}.values():
        n = len(call.group.members)
        us = call.exec_us(rank)
        size_bytes = int(_perf(call, rank, 0, "2.29")["coll_msg_size_bytes"])  # type: ignore[call-overload]
        labels = (
            f'comm_id="{call.group.identity}",hostname="{node}",'
            f'rank="{call.group.members.index(rank)}",slurm_job="unknown",slurm_job_id="unknown",'
            f'nranks="{n}",n_nodes="1",gpu_device_id="GPU{rank % GPUS_PER_NODE}",'
            f'collective="{NAMES[call.name]}",coll_sn="{call.number}",'
            f'timestamp="2025-11-13T02:13:20Z",message_size="{size_bytes / (1 << 20):.2f}MB"'
        )
        algbw = call.size_bytes / 1000 / us
        text += (
            f"nccl_algorithm_bandwidth_gbs{{{labels}}} {algbw:.6g}\n"
            f"nccl_bus_bandwidth_gbs{{{labels}}} {algbw * bus_factor(call.name, n):.6g}\n"
            f"nccl_collective_exec_time_microseconds{{{labels}}} {us:.6g}\n"
        )
    return text
