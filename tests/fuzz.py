"""Every reader on inputs that are nearly right: nothing may be raised but torchcoll's own errors.

    python tests/fuzz.py [--count 5000] [--first 0] [READER ...]

Each input is a small real-looking one that was changed in one to four places, and is read and shown
as the commands do it. The same number always makes the same input. The time is that of the CPU: a
busy machine is no fault of a reader. tests/test_fuzz.py runs some of each.
"""

# ruff: noqa: E501
# The inputs are as long as they are.
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import pickle
import pickletools
import platform
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import made_rings
from fuzz_logs import LOGS, STACKS, STACKS_JSON

from torchcoll.core.errors import TorchcollError
from torchcoll.core.traffic import Traffic
from torchcoll.libraries.dumps import read_dump
from torchcoll.libraries.job_logs import file_rows, job_log
from torchcoll.libraries.log_files import group_jobs, read_log
from torchcoll.libraries.show import show_logs
from torchcoll.parts.experiments.blocks import make_plan
from torchcoll.parts.experiments.folder import Folder
from torchcoll.parts.experiments.matrix_command import show_summary
from torchcoll.parts.experiments.run import summary
from torchcoll.parts.postmortem import (
    capture_evidence,
    inspector_evidence,
    kineto_evidence,
    log_evidence,
    recorder_evidence,
    stack_evidence,
)
from torchcoll.parts.training.traffic_show import show_traffic
from torchcoll.questions.check.rules import read_rules
from torchcoll.questions.show.show import show
from torchcoll.reading.inputs import load
from torchcoll.reading.registry import import_file
from torchcoll.reading.traces import read_jobs, read_traffic
from torchcoll.report.reference import load_points

LIMIT_S = 1.0


def _lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


_CASE = {
    "collective": "all_reduce",
    "size_bytes": 1024,
    "dtype": "float32",
    "op": "sum",
    "root": None,
    "in_place": True,
    "mode": "synchronized",
    "backend": "gloo",
    "device": "cpu",
}
_RESULT = {
    "record": "case",
    "case": _CASE,
    "status": "ok",
    "ranks": 2,
    "count": 256,
    "size_bytes": 1024,
    "bytes_in": 1024,
    "bytes_out": 1024,
    "cold_ns": [[9000, 500], [8000, 510]],
    "warmup_ns": [[450], [460]],
    "time_ns": {"host": [[400, 410, 390], [420, 400, 395]]},
    "batches": [3],
    "members": [],
    "ordinal": 0,
    "steady_after": 2,
    "stop": "count",
    "verification": {"checked": 512, "wrong": 0, "wrong_ranks": [], "tolerance_ulp": 0},
    "warnings": ["a"],
    "choices": [{"algorithm": "RING", "protocol": "LL", "channels": 2}],
}
_HEADER = {
    "record": "header",
    "schema": "torchcoll/2",
    "run_id": "ab12",
    "ranks": 2,
    "start_utc": "2026-11-22T05:00:00+00:00",
    "argv": ["-b", "8"],
    "spec": {"collectives": ["all_reduce"], "sizes": [1024], "labels": {"a": "b"}, "iters": 3},
    "environment": {
        "torch": "2.8.0",
        "host": "n0",
        "libraries": {"gloo": "x"},
        "variables": {"NCCL_ALGO": "Ring"},
    },
}
RESULT = _lines(
    _HEADER,
    {
        "record": "ranks",
        "ranks": [{"rank": r, "host": "n0", "pid": 7, "device": "cpu"} for r in (0, 1)],
    },
    {"record": "phase", "name": "import_torch", "ns": [5, 6]},
    {"record": "machine", "when": "before", "host": "n0", "utc": "x", "load": 1.5},
    {"record": "started", "case": _CASE},
    _RESULT,
    {**_RESULT, "case": {**_CASE, "size_bytes": 4096}, "size_bytes": 4096, "count": 1024},
    {"record": "event", "kind": "warning", "message": "text"},
    {"record": "end", "status": "complete", "exit_code": 0, "wall_s": 1.5},
)
TRAFFIC = _lines(
    {
        "record": "header",
        "schema": "torchcoll-traffic/2",
        "source": "capture",
        "ranks": 2,
        "environment": {"torch": "2.8.0"},
    },
    {
        "record": "group",
        "name": "0",
        "ranks": [0, 1],
        "backend": "gloo",
        "description": "default_pg",
    },
    {"record": "step", "rank": 0, "spans_ns": [[0, 9000000]]},
    {
        "record": "call",
        "rank": 0,
        "collective": "all_reduce",
        "bytes_in": 1024,
        "bytes_out": 1024,
        "dtype": "float32",
        "op": "sum",
        "group": "0",
        "step": 0,
        "start_ns": 5000,
        "time_ns": 900,
    },
    {
        "record": "call",
        "rank": 0,
        "collective": "all_to_all_v",
        "bytes_in": 64,
        "bytes_out": 64,
        "dtype": "int64",
        "group": "0",
        "sequence": 1,
        "start_ns": 90000,
        "splits": [32, 32],
    },
    {
        "record": "call",
        "rank": 0,
        "collective": "send",
        "bytes_in": 64,
        "bytes_out": 0,
        "peer": 1,
        "group": "0",
        "start_ns": 95000,
        "time_ns": 7,
        "exposed_ns": 5,
    },
    {"record": "note", "text": "3 calls were not seen"},
    {"record": "end", "status": "complete"},
)
_EXPLAINED = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#"""
NCCL_TEXT = f"""# Collective test starting: all_reduce_perf
# nccl-tests version 2.17.6 nccl-headers=22902 nccl-library=22902
{_EXPLAINED}
# Using devices
#  Rank  0 Group  0 Pid   4711 on      node0 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4712 on      node0 device  1 [0000:2a:00] NVIDIA H100 80GB HBM3
node0:4711:4711 [0] NCCL INFO NCCL_ALGO set by environment to Ring.
node0:4711:4711 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}
#
#                                                              out-of-place
# in-place       size         count      type   redop    root     time   algbw   busbw #wrong
# time   algbw   busbw #wrong        (B)    (elements)                               (us)  (GB/s)
# (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    12.26    0.08    0.08      0    12.38    0.08    0.08      0
        2048           512     float     sum      -1    12.75    0.16    0.16      0    12.64    0.16    0.16      0
        4096          1024     float     sum      -1    12.91    0.32    0.32      0    12.99    0.32    0.32      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.1867
#
# Collective test concluded: all_reduce_perf
"""
NCCL_JSON = json.dumps(
    {
        "version": 3,
        "start_time": "2026-07-20 19:33:49",
        "args": ["./all_reduce_perf", "-b", "8", "-f", "1.5", "-n", "2"],
        "env": ["PATH=\\/usr\\/bin", "NCCL_DEBUG=WARN"],
        "nccl_version": 22902,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "iterations": 2,
            "graph": 0,
            "devices": [
                {"rank": r, "pid": 4711, "hostname": "node0", "device": r, "device_info": "H100"}
                for r in (0, 1)
            ],
        },
        "results": [
            {
                "size": 1048576,
                "count": 262144,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "in_place": {"time": 24.31, "alg_bw": 43.1, "bus_bw": 43.1, "nwrong": 0.0},
                "in_place_per_iter": {
                    "min_us": 23.5,
                    "max_us": 34.0,
                    "p99_us": 34.0,
                    "times_us": [34.0, 23.5],
                    "per_process_max_times_us": [[34.0, 23.5], [33.0, 23.9]],
                },
            }
        ],
        "errors": [""],
        "end_time": "2026-07-20 19:33:59",
    },
    indent=1,
)
ONECCL_TEXT = """
options:
  processes:       2
  backend:         host
  iters:           20
  warmup_iters:    5
  buf_count:       1
  check:           last
  inplace:         0
  collectives:     allreduce

datatype: float32
reduction: sum

#------------------------------------------------------------
# Benchmarking: allreduce
# #processes: 2
#------------------------------------------------------------

        #bytes  #elem_count   #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   stddev[%]
          1024          256             20       120.70       123.48       122.09        0.94
       1048576       262144             20      1120.70      1123.48      1122.09        0.94

# All done
"""
ONECCL_CSV = """#ranks,collective,reduction,dtype,dtype_size,#elements/buffer,message_size,#buffers,#repetitions,t_min[usec],t_max[usec],t_avg[usec],stddev[%],wait_t_avg[usec]
2,allreduce,sum,float32,4,256,1024,1,16,120.703,123.484,122.094,0.947018,100.211
2,allgather,,float32,4,256,1024,1,16,110.703,113.484,112.094,0.947018,100.211
2,allgatherv,,float32,4,256,1024,1,16,110.703,113.484,112.094,0.947018,100.211
"""
OSU = """
# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_CHAR.
# Size         Avg Latency(us)     Min Latency(us)     Max Latency(us)  Iterations
# Validation
1                         3.21                3.00                3.60        1000                Pass
1024                      3.31                3.10                3.70        1000                Pass
"""
IMB = """
#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part
# MPI_Datatype for reductions    :   MPI_FLOAT
# Benchmarking Multi-Allreduce
# ( 2 groups of 2 processes each running simultaneous )
# Group  0:     0    1
# Group  1:     2    3
        Group       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         4096           20        10.00        12.00        11.00
            1         4096           20        20.00        22.00        21.00
# Benchmarking Reduce_scatter
# #processes = 4
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         4096         1000        10.20        12.30        11.25
         8192 out-of-mem.; needed X=   0.001 GB
# All processes entering MPI_Finalize
"""
UCC = """
Collective:             Allreduce
Memory type:            cuda
Datatype:               float32
Reduction:              sum
Inplace:                0
Iterations:
  small                 10
  large                 10

       Count        Size                Time, us                       Bus Bandwidth, GB/s
                                 avg         min         max         avg         max         min
     1048576     4194304      682.48      649.85      719.07       43.02       45.18       40.83
"""
PARAM = """\t PARAM COMM environment: {'world_size': 2, 'local_size': -1, 'global_rank': 0}
\t backend: gloo nw-stack: pytorch-dist args.b: 8
Hello from Rank 0: [Rank   0] host vm, device: cpu, local_rank: 0 world_size: 2
\tCOMMS-RES                          total-size (B)  nElementsPerRank      Time(us):p50         p75         p95         Min         Max    AlgBW(GB/s) BusBW(GB/s) TotalTime(us):p50
\tCOMMS-RES-all_reduce-float32                 8                 2            2299.2      2383.9      2451.5      2130.0      2468.5          0.000       0.000                 0.0
"""
DEEPSPEED = """
---- Performance of all_reduce on 8 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
64.0 B               16x4                      45.312 us            0.023                0.020
256.0 MB             67108864x4                1.432 ms             2999.170             2624.274
Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)
all_reduce
                    128.0 MB            2                   12.34               6.17                34.1                29.8
"""
INSPECTOR = "".join(
    json.dumps(
        {
            "header": {"id": "0x9a", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "hostname": "n0", "pid": 7},
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": sn,
                "coll_msg_size_bytes": 1048576,
                "coll_exec_time_us": 60.5,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 17.0,
                "coll_busbw_gbs": 17.0,
            },
        }
    )
    + "\n"
    for sn in (1, 2)
    for rank in (0, 1)
)
_VERBOSE = {
    "event_trace_ts": {
        "coll_start_ts": 1763000000000001,
        "coll_stop_ts": 1763000000000002,
        "kernel_events": [{"channel_id": 0, "kernel_start_ts": 1763000000000003}],
    }
}
_PERF = json.loads(INSPECTOR.splitlines()[0])["coll_perf"]
# Format v4.3: what the records of a communicator have in common stands in the first.
INSPECTOR_BATCHES = "".join(
    json.dumps(each) + "\n"
    for rank in (0, 1)
    for each in (
        {
            "header": {"id": "0x9a", "comm_name": "dp", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {"dump_timestamp_us": 1763000000000000, "hostname": "n0", "pid": 7 + rank},
            "dump_stats": {"coll_records": 8, "coll_dropped_since_last_dump": 2, "p2p_records": 1},
        },
        *(
            {"coll_perf": {**_PERF, "coll_sn": sn, "coll_exec_time_us": 20 + 30 * rank, **_VERBOSE}}
            for sn in range(8)
        ),
        {
            "p2p_perf": {
                "p2p": "Send",
                "p2p_sn": 1,
                "p2p_peer": 1 - rank,
                "p2p_msg_size_bytes": 512,
                "p2p_exec_time_us": 5,
            }
        },
    )
)
INSPECTOR_LAST = "".join(
    f'nccl_collective_exec_time_microseconds{{comm_id="0x9",hostname="n0",rank="{rank}",nranks="2",gpu_device_id="GPU{rank}",collective="AllReduce",coll_sn="4",timestamp="2025-11-13T02:13:20Z",message_size="2.00MB"}} {40 + rank}\n'
    for rank in (0, 1)
)
INSPECTOR_METRICS = "# TYPE nccl_bus_bandwidth_gbs gauge\n" + "".join(
    f'{name}{{version="v5.1",slurm_job_id="7",node="n0",gpu="GPU{rank}",comm_name="DP Group 0",n_nodes="1",nranks="2",collective="AllReduce",message_size="4-5MB",algo_proto="RING_LL"}} {value * (1 + rank)}\n'
    for rank in (0, 1)
    for name, value in (
        ("nccl_bus_bandwidth_gbs", 20.5),
        ("nccl_collective_exec_time_microseconds", 100),
    )
)
RCCL = """numCycle,collective,ranks,size,type,redop,inplace,time,algbw,busbw,wrong
0,AllReduce,8,1048576,float,sum,0,45.3,23.1,40.5,0
0,AllReduce,8,2097152,float,sum,1,55.3,37.9,66.3,0
"""
PLAIN = """# all_reduce of 8 GPUs

| Size | Time (us) | Algbw (GB/s) | Busbw (GB/s) | ranks |
|------|-----------|--------------|--------------|-------|
| 16KB | 25.1 | 0.65 | 1.14 | 8 |
| 16MB | 125.1 | 134.1 | 234.7 | 8 |
"""


def _trace() -> str:
    info = {
        "backend": "nccl",
        "rank": 0,
        "world_size": 2,
        "pg_config": [
            {
                "pg_name": "0",
                "pg_desc": "default_pg",
                "pg_size": 2,
                "ranks": [0, 1],
                "backend_config": "cpu:gloo,cuda:nccl",
            }
        ],
    }
    args = {
        "External id": 5,
        "Collective name": "allreduce",
        "dtype": "Float",
        "Rank": 0,
        "In msg nelems": 250,
        "Out msg nelems": 250,
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
        "In split size": "[]",
        "Out split size": "[]",
        "Seq": 1,
    }
    one = {"ph": "X", "pid": 9, "tid": 1, "cat": "cpu_op"}
    shown = {
        "Input type": ["TensorList", "", "Scalar"],
        "Input Dims": [[[250]], [], []],
        "Concrete Inputs": ["", "", "False"],
    }
    events = [
        {
            **one,
            "name": "ProfilerStep#3",
            "cat": "user_annotation",
            "ts": 90.5,
            "dur": 300,
            "args": {},
        },
        {**one, "name": "c10d::allreduce_", "ts": 100.125, "dur": 20, "args": shown},
        {**one, "name": "record_param_comms", "ts": 101, "dur": 10, "args": args},
        {
            **one,
            "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
            "cat": "kernel",
            "ts": 130,
            "dur": 40.5,
            "tid": 20,
            "args": {"External id": 5, "device": 0},
        },
        {
            **one,
            "name": "gemm",
            "cat": "kernel",
            "ts": 140,
            "dur": 5,
            "tid": 7,
            "args": {"device": 0},
        },
        {**one, "name": "aten::mm", "ts": 150, "dur": 9, "args": {}},
        {
            **one,
            "name": "c10d::send",
            "ts": 160,
            "dur": 9,
            "args": {
                "Input type": ["TensorList", "", "Scalar"],
                "Input Dims": [[[8]], [], []],
                "Concrete Inputs": ["", "", "1"],
            },
        },
        {
            **one,
            "name": "gloo:all_reduce",
            "ts": 161,
            "dur": 9,
            "tid": 3,
            "args": {"Input type": ["float"], "Input Dims": [[250]]},
        },
    ]
    return json.dumps(
        {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}, indent=1
    )


def _flight() -> str:
    def entry(name: str, number: int, sizes: Any) -> dict[str, Any]:
        return {
            "record_id": number,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number + 1,
            "profiling_name": name,
            "duration_ms": 2.5,
            "time_created_ns": 1700000000000000000 + number,
            "input_sizes": sizes,
            "input_dtypes": ["Float"],
            "output_sizes": sizes,
            "output_dtypes": ["Float"],
            "state": "completed",
        }

    entries = [entry("nccl:all_reduce", 0, [[3, 4]]), entry("nccl:send 0->1", 1, [[12]])]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return json.dumps({"version": "2.10", "pg_config": config, "entries": entries}, indent=1)


NCCL_LOG = """node0:12:12 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
node0:12:12 [0] NCCL INFO cudaDriverVersion 12090
node0:12:12 [0] NCCL INFO NCCL version 2.29.7+cuda12.9
node0:12:12 [0] NCCL INFO NCCL_ALGO set by environment to Ring.
node0:12:12 [0] NCCL INFO Using network Socket
node0:12:12 [0] NCCL INFO ncclCommInitRank comm 0x59 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 2000 commId 0x95 - Init START
node0:12:12 [0] NCCL INFO Bootstrap timings total 0.000643 (create 0.000018, send 0.000067, delay 0.000000)
node0:12:12 [0] NCCL INFO comm 0x59 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
node0:12:12 [0] NCCL INFO Channel 00/02 : 0 1
node0:12:12 [0] NCCL INFO Channel 01/02 : 0 1
node0:12:12 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
node0:12:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node0:12:12 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 44.000000/44.000000, type SYS/PIX, sameChannels 1
node0:12:12 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
node0:12:12 [0] NCCL INFO ncclCommInitRank comm 0x59 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 2000 commId 0x95 - Init COMPLETE
node0:12:12 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 2 total 0.15 (kernels 0.12, alloc 0.02, bootstrap 0.00, allgathers 0.00, topo 0.01, graphs 0.00, connections 0.00, rest 0.00)
node0:12:12 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
node0:12:12 [0] NCCL WARN Call to connect failed
"""
ONECCL_LOG = """2026:11:20-10:52:29:20751 |CCL_WARN| value of CCL_LOG_LEVEL changed to be debug (default:warn)
2026:11:20-10:52:29:20751 |CCL_INFO| process launcher: none, local_proc_idx: 0, local_proc_count: 2
2026:11:20-10:52:29:20751 |CCL_DEBUG| communicator_impl.hpp:149 create_communicator: size 2, rank 0
2026:11:20-10:52:29:20751 |CCL_INFO| library version: 2021.14
2026:11:20-10:52:29:20751:[0] |CCL_INFO| atl-ofi: coord: global [ idx 0, cnt 2 ]
2026:11:20-10:52:29:20751:[0] |CCL_INFO| print:
allreduce selection
main table
[0 - 4095]: recursive_doubling
[4096 - max]: ring
2026:11:20-10:52:29:20751:[0] |CCL_DEBUG| selected algo: coll allreduce, count 256, algo ring
"""
TOPOLOGY = """<system version="1">
  <cpu numaid="0" affinity="00000000,00ffffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0001:00:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1">
        <nvlink target="0002:00:00.0" count="12" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0002:00:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="" link_width="0">
      <gpu dev="1" sm="80" rank="1" gdr="1"/>
    </pci>
    <nic>
      <net name="eth0" dev="0" speed="100000" port="0" latency="0.000000" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
"""
GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="12" speedinter="12" latencyinter="0" typeintra="SYS" typeinter="PIX" samechannels="0">
    <channel>
      <net dev="0"/>
      <gpu dev="0"/>
      <gpu dev="1"/>
    </channel>
  </graph>
</graphs>
"""
RULES = """name = "mine"
what = "several nodes; state the rails: mine:8"
several_hosts = true
parameter = "rails of a node"
[[limit]]
algorithm = "ring"
collectives = ["all_reduce", "all_gather"]
busbw_gbps_each = 50
from_per_rank = "64M"
source = "400 Gbit/s a rail"
[limit.only]
ranks = [16, 32]
dtype = ["float32"]
"""
_COMMAND = ["true", "-m", "torchcoll.allreduce"]
_PLAN, _ = make_plan(_COMMAND, ["NCCL_NTHREADS=64,128"], runs=2)
MANIFEST = _lines(
    {"record": "matrix", "schema": "torchcoll-matrix/1", "spec": _PLAN.to_json()},
    *(
        {
            "record": "run",
            "cell": cell.name,
            "run": 1,
            "attempt": 1,
            "status": "ok",
            "reason": "",
            "seconds": 3.25,
            "exit_code": 0,
            "file": f"{cell.name}-1.jsonl",
            "axes": {},
            "variables": {},
        }
        for cell in _PLAN.cells
    ),
)
POINTS = json.dumps(
    {
        "points": [
            {
                "name": "a",
                "collective": "all_reduce",
                "size_bytes": 1048576,
                "ranks": 8,
                "busbw_gbps": 234.5,
                "status": "measured",
                "why": "",
                "source": "x",
            }
        ]
    }
)


def _shown(*found: Any) -> None:
    for format in ("table", "csv", "json"):
        show(*found, format=format, file=io.StringIO())


def _result(path: Path) -> None:
    _shown(load(path))


def _importer(name: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        found = import_file(str(path), None, name)
        found.refusals()
        if found.runs:
            _shown(*found.runs)

    return read


def _dumps(path: Path) -> None:
    """A file next to one of the same rank and one of another."""
    data = path.read_bytes()
    for name, content in (("rank1.json", data), ("b-rank0.json", _flight().encode())):
        (path.parent / name).write_bytes(content)
    _shown(*read_jobs([path.parent]))


def _arrived(path: Path) -> None:
    """As ``torchcoll trace``, with who came last."""
    for format in ("table", "csv", "json"):
        show_traffic(read_jobs([path]), format, io.StringIO(), arrivals=True)


def _evidence(reader: ModuleType) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        if reader.recognizes(path, path.read_bytes()[: 1 << 16]):
            reader.read_evidence(path, path.name)

    return read


# The texts of a ring without check sums, so that changes reach what they guard; then the calls.
_RING = b"\n\n".join(
    (
        _lines(made_rings.HEADER, made_rings.GROUP, *made_rings.TEXTS).strip().encode(),
        made_rings.call(4096, 7, 1_000_500_000) + made_rings.call(1, 8, 0),
    )
)


def _ring(path: Path) -> None:
    texts, _, calls = path.read_bytes().partition(b"\n\n")
    path.write_bytes((made_rings.ring()[:64] + texts).ljust(1 << 16, b"\0") + calls)
    _evidence(capture_evidence)(path)


def _log(path: Path) -> None:
    reader, _ = read_log(str(path))
    for format in ("table", "json"):
        jobs = [job_log(job) for job in group_jobs([reader])]
        show_logs(jobs, file_rows([reader]), format, io.StringIO())


def _dump(path: Path) -> None:
    dump, _ = read_dump(str(path))
    for format in ("table", "json"):
        show_logs([], [], format, io.StringIO(), dumps=[dump])


def _rules(path: Path) -> None:
    for rule in read_rules([path]).values():
        rule.fabric(8.0 if rule.table.get("parameter") else None)


def _manifest(path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), Folder(path.parent, _PLAN.to_json()) as folder:
        show_summary(summary(_PLAN, folder), [])


@dataclasses.dataclass(frozen=True)
class Reader:
    read: Callable[[Path], None]
    seeds: tuple[str | bytes, ...]
    name: str = "input"


READERS = {
    "result file": Reader(_result, (RESULT,), "a.jsonl"),
    "traffic": Reader(lambda path: _shown(Traffic.load(path)), (TRAFFIC,), "a.jsonl"),
    "nccl-tests text": Reader(_importer("nccl-tests"), (NCCL_TEXT,)),
    "nccl-tests JSON": Reader(_importer("nccl-tests-json"), (NCCL_JSON,)),
    "oneCCL benchmark": Reader(_importer("oneccl"), (ONECCL_TEXT, ONECCL_CSV)),
    "OSU": Reader(_importer("osu"), (OSU,)),
    "Intel MPI Benchmarks": Reader(_importer("imb"), (IMB,)),
    "UCC perftest": Reader(_importer("ucc"), (UCC,)),
    "PARAM": Reader(_importer("param"), (PARAM,)),
    "DeepSpeed": Reader(_importer("deepspeed"), (DEEPSPEED,)),
    "NCCL Inspector": Reader(
        _importer("nccl-inspector"), (INSPECTOR, INSPECTOR_BATCHES, INSPECTOR_LAST)
    ),
    "NCCL Inspector metrics": Reader(_importer("nccl-inspector-prom"), (INSPECTOR_METRICS,)),
    "NCCL Inspector traffic": Reader(
        _arrived, (INSPECTOR, INSPECTOR_BATCHES, INSPECTOR_LAST), "n0-pid7.log"
    ),
    "Inspector evidence": Reader(
        _evidence(inspector_evidence),
        (INSPECTOR, INSPECTOR_BATCHES, INSPECTOR_LAST, INSPECTOR_METRICS),
        "n0-pid7.log",
    ),
    "plain table": Reader(_importer("plain"), (PLAIN, RCCL)),
    "Kineto": Reader(lambda path: _shown(read_traffic([path])), (_trace(),), "rank0.json"),
    "Flight Recorder": Reader(
        lambda path: _shown(read_traffic([path])), (_flight(),), "rank0.json"
    ),
    "Flight Recorder pickle": Reader(
        lambda path: _shown(read_traffic([path])),
        tuple(pickle.dumps(json.loads(_flight()), protocol) for protocol in range(5)),
        "rank0.pickle",
    ),
    "dumps of several jobs": Reader(_dumps, (_flight(),), "rank0.json"),
    "recorder evidence": Reader(
        _evidence(recorder_evidence),
        (_flight(), pickle.dumps(json.loads(_flight()), 2)),
        "rank0.json",
    ),
    "Kineto evidence": Reader(_evidence(kineto_evidence), (_trace(),), "rank0.json"),
    "log evidence": Reader(_evidence(log_evidence), LOGS, "rank3.log"),
    "stack evidence": Reader(_evidence(stack_evidence), (STACKS, STACKS_JSON), "rank3.txt"),
    "call ring": Reader(_ring, (_RING,)),
    "capture evidence": Reader(_evidence(capture_evidence), (made_rings.STACKS, TRAFFIC, RESULT)),
    "NCCL log": Reader(_log, (NCCL_LOG,)),
    "oneCCL log": Reader(_log, (ONECCL_LOG,)),
    "XML": Reader(_dump, (TOPOLOGY, GRAPHS)),
    "rules": Reader(_rules, (RULES,)),
    "manifest": Reader(_manifest, (MANIFEST,), "manifest.jsonl"),
    "points": Reader(lambda path: load_points(str(path)), (POINTS,)),  # type: ignore[arg-type,return-value]
}

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_VALUE = re.compile(r'"[^"\n]*"|-?\d+(?:\.\d+)?|\[[^\[\]]*\]|null|true|false')
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBERS = (
    *("9" * 5000, "1e308", "-1", "0", "²", "٣", "1e999", "NaN", "Infinity", "9" * 20, "1e-320"),
    *(
        "4294967296",
        "9223372036854775807",
        "9223372036854775808",
        "0.1",
        "-0",
        "1e18",
        "007",
        "1" * 400,
    ),
    *("2147483647", "1048577", "0x10", "1_000", "+1", ".", "1e", "-1e308", "90000000"),
)
_VALUES = (
    *(
        "{}",
        "[]",
        "null",
        "true",
        "false",
        '""',
        "[[]]",
        "[null]",
        '{"a": []}',
        '"x"',
        "0",
        "-1",
        "1.5",
    ),
    *("[1e308]", "[-1]", "[1, 2, 3]", '"\\ud800"', '"\\u0000"', "9" * 5000, '[{"a": 1}]', "1e400"),
    *("[[1e308]]", '["²"]', '"[0, 90000000]"', '"[' + "0," * 50 + '0]"', "[0, 90000000]", "[[[]]]"),
)
_WORDS = (
    "",
    "\x1b[31m",
    "\x00",
    "\u202e",
    "²",
    "é",
    "a b",
    "=1+1",
    "null",
    "x" * 300,
    "\ud800",
    "%s",
)


def changed(text: str | bytes, random: random.Random) -> bytes:
    """The input with one to four changes."""
    if isinstance(text, bytes):
        for _ in range(random.randint(1, 4)):
            text = random.choice(_BINARY_CHANGES)(text, random)
        return text
    for _ in range(random.randint(1, 4)):
        text = random.choice(_CHANGES)(text, random)
    data = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.05 and data:
        place = random.randrange(len(data))
        data = data[:place] + bytes([random.randrange(256)]) + data[place + 1 :]
    return data


def _replaced(pattern: re.Pattern[str], by: tuple[str, ...]) -> Callable[[str, random.Random], str]:
    def change(text: str, random: random.Random) -> str:
        found = list(pattern.finditer(text))
        if not found:
            return text
        match = random.choice(found)
        return text[: match.start()] + random.choice(by) + text[match.end() :]

    return change


def _other_value(text: str, random: random.Random) -> str:
    """One value in the place of another of the same input."""
    found = list(_VALUE.finditer(text))
    if not found:
        return text
    match, other = random.choice(found), random.choice(found)
    return text[: match.start()] + other[0] + text[match.end() :]


def _cut(text: str, random: random.Random) -> str:
    return text[: random.randrange(len(text) + 1)]


def _without(text: str, random: random.Random) -> str:
    start = random.randrange(len(text) + 1)
    return text[:start] + text[start + random.randint(1, 40) :]


def _line(text: str, random: random.Random) -> str:
    """A line twice, away, or elsewhere."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    line = random.choice(lines)
    if random.random() < 0.5:
        lines.remove(line)
    if random.random() < 0.7:
        lines.insert(random.randrange(len(lines) + 1), line)
    return "".join(lines)


def _repeated(text: str, random: random.Random) -> str:
    """A character or a short piece, many times."""
    if not text:
        return text
    start = random.randrange(len(text))
    piece = text[start : start + random.choice((1, 1, 2, 5, 20))]
    return text[:start] + piece * random.choice((3, 100, 3000)) + text[start:]


def _nested(text: str, random: random.Random) -> str:
    place = random.randrange(len(text) + 1)
    return text[:place] + random.choice(("[", "{", '{"a":', "<a>", "(")) * 3000 + text[place:]


_CHANGES = (
    *[_replaced(_NUMBER, _NUMBERS)] * 3,
    *[_replaced(_VALUE, _VALUES)] * 3,
    *[_replaced(_WORD, _WORDS)] * 2,
    *(_other_value, _other_value, _cut, _without, _line, _repeated, _nested),
)


def _other_byte(data: bytes, random: random.Random) -> bytes:
    """Half of them instructions of a pickle."""
    place = random.randrange(len(data) + 1)
    byte = random.choice(_INSTRUCTIONS) if random.random() < 0.5 else random.randbytes(1)
    return data[:place] + byte + data[place + 1 :]


def _more_bytes(data: bytes, random: random.Random) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.choice(_PIECES) + data[place:]


def _repeated_bytes(data: bytes, random: random.Random) -> bytes:
    start = random.randrange(len(data) + 1)
    piece = data[start : start + random.choice((1, 2, 5, 40))]
    return data[:start] + piece * random.choice((2, 100, 3000)) + data[start:]


def _without_bytes(data: bytes, random: random.Random) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + data[start + random.randint(1, 40) :]


def _cut_bytes(data: bytes, random: random.Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _moved_bytes(data: bytes, random: random.Random) -> bytes:
    """A piece of it in place of another."""
    first, second = (random.randrange(len(data) + 1) for _ in range(2))
    length = random.randint(1, 60)
    return data[:first] + data[second : second + length] + data[first + length :]


_INSTRUCTIONS = tuple(code.code.encode("latin-1") for code in pickletools.opcodes)
_PIECES = (
    *(
        b"cos\nsystem\n",
        b"cbuiltins\neval\n(Vx\ntR",
        b"\x8c\x02os\x8c\x06system\x93)R",
        b"]q\0h\0a",
    ),
    *(b"B\xff\xff\xff\xff", b"\x8e" + b"\xff" * 8, b"\x8b\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f"),
    *(b"]" * 3000, b"(" * 3000, b"}" * 3000, b"2" * 3000, b"1" * 50, b"\x85" * 3000, b"\x86" * 20),
    *(
        b"L" + b"9" * 5000 + b"L\n",
        b"F1e999\n",
        b"G\x7f\xf8" + b"\0" * 6,
        b"\x8a\xff" + b"\xff" * 255,
    ),
    *(b"X\x03\0\0\0\xed\xa0\x80", b"\x95" + b"\xff" * 8, b"I00\n", b"\x88", b"N", b"K\x01", b")"),
)
_BINARY_CHANGES = (
    *(_other_byte, _other_byte, _other_byte, _more_bytes, _more_bytes),
    *(_repeated_bytes, _without_bytes, _cut_bytes, _moved_bytes),
)


@dataclasses.dataclass
class Found:
    """What happened to the inputs of one reader."""

    outcomes: Counter[str] = dataclasses.field(default_factory=Counter)
    uncaught: dict[str, int] = dataclasses.field(
        default_factory=dict
    )  # where -> number of an input
    slow: list[int] = dataclasses.field(default_factory=list)
    longest_s: float = 0.0


def run(name: str, numbers: range, folder: Path) -> Found:
    """Read these inputs of a reader."""
    reader, found = READERS[name], Found()
    path = folder / reader.name
    for number in numbers:
        source = random.Random(f"{name}/{number}")
        path.write_bytes(changed(source.choice(reader.seeds), source))
        began = time.process_time()
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                reader.read(path)
            found.outcomes["read"] += 1
        except TorchcollError as error:
            assert error.line().isprintable(), f"{name} {number}: {error.line()!r}"
            found.outcomes["refused"] += 1
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = (
                f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno} {last.name}"
            )
            found.uncaught.setdefault(where, number)
            found.outcomes["uncaught"] += 1
        seconds = time.process_time() - began
        found.longest_s = max(found.longest_s, seconds)
        if seconds > LIMIT_S:
            found.slow.append(number)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="show where the first one was raised")
    options = parser.parse_args()
    print(
        f"# Python {platform.python_version()}, inputs {options.first} to {options.first + options.count - 1}"
    )
    print(
        f"{'reader':20}{'inputs':>8}{'read':>8}{'refused':>9}{'uncaught':>10}{'over 1 s':>10}{'longest':>10}"
    )
    bad = 0
    for name in options.readers or READERS:
        with tempfile.TemporaryDirectory() as folder:
            found = run(name, range(options.first, options.first + options.count), Path(folder))
        counts = [found.outcomes[kind] for kind in ("read", "refused", "uncaught")]
        print(
            f"{name:20}{options.count:>8}{counts[0]:>8}{counts[1]:>9}{counts[2]:>10}"
            f"{len(found.slow):>10}{found.longest_s:>8.2f} s",
            flush=True,
        )
        for where, number in found.uncaught.items():
            print(f"    {where}: input {number}", file=sys.stderr)
        for number in found.slow[:3]:
            print(f"    over {LIMIT_S:g} s: input {number}", file=sys.stderr)
        bad += counts[2] + len(found.slow)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"# largest memory of the process: {peak_mib} MiB")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
