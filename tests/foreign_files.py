"""Small outputs of other tools."""

HEAD = """\
# nccl-tests version 2.19.6 nccl-headers=22902 nccl-library=22902
# Collective test starting: {program}
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20 \
agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on      node0 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4712 on      node0 device  1 [0000:28:00] NVIDIA H100 80GB HBM3
#
"""


NAMES = (
    f"#{'out-of-place':>73}{'in-place':>35}          \n"
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong "
    "    time   algbw   busbw  #wrong \n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)         "
    "    (us)  (GB/s)  (GB/s)         \n"
)


SMALL = (
    "           8             2     float     sum      -1    11.52    0.00    0.00       0"
    "    11.40    0.00    0.00       0\n"
)


# 1048576 B in 24.31 us are 43.13 GB/s; two ranks have the factor 1.
ROW = (
    "     1048576        262144     float     sum      -1    24.31   43.13   43.13       0"
    "    24.07   43.56   43.56       0\n"
)


FOOT = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 21.6725
#
# Collective test concluded: {program}
#
"""


def text(rows=SMALL + ROW, program="all_reduce_perf", names=NAMES, head=HEAD, foot=FOOT):
    return head.format(program=program) + names + rows + foot.format(program=program)


ONECCL = """\
options:
  processes:       4
  backend:         host
  buf_count:       1
  inplace:         0

datatype: float32
reduction: sum

#------------------------------------------------------------
# Benchmarking: {names}
# #processes: 4
#------------------------------------------------------------

        #bytes   #elem_count  #repetitions   t_min[usec]   t_max[usec]   t_avg[usec]  stddev[%]
             0             0            16         10.10         12.20         11.15       9.42
            12             3            16         10.10         12.20         11.15       9.42
2026:11:20-10:41:04:( 9855) |CCL_WARN| workers are disabled
          4096          1024            16         10.20         12.30         11.25       9.42

# All done
"""


IMB = """\
#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part
#----------------------------------------------------------------
# MPI_Datatype                   :   MPI_BYTE
# MPI_Datatype for reductions    :   MPI_FLOAT
# MPI_Op                         :   MPI_SUM

#----------------------------------------------------------------
# Benchmarking {name}
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.03         0.05         0.04
         4096         1000        10.20        12.30        11.25


# All processes entering MPI_Finalize

"""


OSU = """\
# OSU MPI{kind} {name} Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size         Avg Latency(us)     Min Latency(us)     Max Latency(us)  Iterations          \
Validation    P50 Tail Lat(us)    P99 Tail Lat(us)
1024                      3.31                3.10                3.70        1000                \
Pass                3.80                4.29
1048576                 108.07              107.86              108.46         100                \
Fail              108.56              109.05
"""


PARAM = (
    "\t PARAM COMM environment: {'world_size': 2, 'local_size': -1} \n"
    "\t backend: gloo nw-stack: pytorch-dist\n"
    "[Rank   0] host vm, device: cpu, local_rank: 0 world_size: 2\n"
    "\tCOMMS-RES                          total-size (B)  nElementsPerRank      Time(us):p50\n"
    "\tCOMMS-RES-all_reduce-float32              4096              1024             211.2       "
    "211.5       211.9       210.4       212.9          0.019       0.019                 0.0\n"
    "\tCOMMS-RES-QUANT-all_reduce-float32        4096  1024  1 2 3 4\n"
    "\tCOMMS-RES-all_reduce-float32              4096              1024\n"
    "\tCOMMS-RES        size (B) pingLatency(us):p50\n"
    "\tCOMMS-RES-recv-float32   8   1056.0 1089.4 1116.1 253.8 284.7 309.4 0 0 0 0\n"
)


DEEPSPEED = (
    "---- Performance of all_reduce on 8 devices ----------------\n"
    "Size (Bytes)         Description               Duration             Throughput (Gbps)    B\n"
    "64.0 B               16x4                      45.312 us            0.023              0.020\n"
)


RCCL = "numCycle,collective,ranks,size,type,redop,inplace,time,algbw,busbw,wrong"


def nccl_json(**changed):
    block = {"time": 24.31, "alg_bw": 43.133525, "bus_bw": 43.133525, "nwrong": 0.0}
    row = {
        "size": 1048576,
        "count": 262144,
        "type": "float",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": block,
        "in_place": None,
    }
    device = {"rank": 0, "pid": 1, "hostname": "n0", "device": 0, "device_info": "H100"}
    return {
        "version": 1,
        "args": ["./all_reduce_perf", "-f", "1.5"],
        "env": ["PATH=\\/usr", "AWS_SECRET=x", "NCCL_ALGO=Ring", "SLURM_JWT=eyJ"],
        "nccl_version": 22902,
        "config": {"nthreads": 1, "ngpus": 1, "iterations": 5, "devices": [device, device]},
        "results": [row | changed],
        "average_bus_bandwidith": {"bandwidith": 43.1, "okay": "unchecked"},
        "end_time": "2026-07-20 19:33:55",
    }
