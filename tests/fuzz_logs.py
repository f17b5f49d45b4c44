"""Logs and stack dumps that tests/fuzz.py changes. Their origins are in tests/postmortem."""

# ruff: noqa: E501
# Lines of logs are as long as they are.
from __future__ import annotations

import json

TORCH_LOG = """[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.
[rank1]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807.
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t     [2, 5] finished collective #41, but didn't join collective #42 (count from 1)
[E1124 18:00:00.123456789 ProcessGroupGloo.cpp:67] [Rank 0]: Ranks 2, 5 failed to pass monitoredBarrier in 30000 ms
[default1]:[rank9]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUCE, TensorShape=[195812480]), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUCE, TensorShape=[51123456])).Collectives differ in the following aspects: Tensor Tensor shapes: 195812480vs 51123456
[default2]:Fatal Python error: Segmentation fault

Current thread 0x00007f1234567890 (most recent call first):
  File "a.py", line 12 in f
  File "a.py", line 20 in <module>
"""
TORCHRUN_LOG = """[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/a/job.py", line 18, in <module>
[rank2]:     for i in range(3): dist.all_reduce(t)
[rank2]:   File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in w
[rank2]:     return func(*args, **kwargs)
[rank2]:   File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank2]:     work.wait()
[rank2]: RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:51414. This is typically caused by a remote worker crashing.
W1124 19:22:44.635000 26612 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 26706 closing signal SIGTERM
W1124 19:22:44.642000 26612 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 26708 closing signal SIGTERM
W1124 19:23:14.642000 26612 torch/distributed/elastic/multiprocessing/api.py:1047] Unable to shutdown process 26706 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL
E1124 19:23:14.709000 26612 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 26707) of binary: /venv/bin/python
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
job.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-24_19:22:44
  host      : node07
  rank      : 8 (local_rank: 0)
  exitcode  : -9 (pid: 26706)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 26706
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_19:22:44
  host      : node07
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 26707)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 26707
=======================================================
"""
CLUSTER_LOG = """srun: error: node07: tasks 3,5-6: Killed
srun: Terminating StepId=4711.0
slurmstepd: error: *** JOB 4711 ON node07 CANCELLED AT 2026-11-24T18:00:00 DUE TO TIME LIMIT ***
Nov 24 18:00:00 node07 kernel: [12345.6] Out of memory: Killed process 4711 (python3) total-vm:9kB
2026-11-24T18:00:00+0000 node07 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=4712,uid=1000
[Tue Nov 24 18:00:00 2026] NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.
[1.2] mlx5_core 0000:81:00.0 ens1f0np0: Link down
mpirun noticed that process rank 2 with PID 4711 on node node07 exited on signal 9 (Killed).
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 6 PID 2447372 RUNNING AT node0009
=   KILLED BY SIGNAL: 9 (Killed)
"""
POD = """Name:             job-worker-2
Namespace:        default
Node:             node07/10.0.0.7
Containers:
  pytorch:
    State:          Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Tue, 29 Apr 2025 13:43:32 +0800
      Finished:     Tue, 29 Apr 2025 14:10:51 +0800
    Restart Count:  0
    Environment:
      MASTER_ADDR:  job-master-0
      RANK:         3
Events:
  Type     Reason   Age   From     Message
"""
NCCL_LOG = """node08:4712:4712 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xfa93 - Init COMPLETE
node08:4712:4800 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.9<35411> failed : Connection refused
2026:11:20-10:52:48:20832:[1] |CCL_ERROR| atl_ofi.cpp:1016 poll: fi_cq_readerr: err: 113
"""
RAS = """NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124
"""
STACKS = """Process 4711: python3 -u train.py --rank 3
Python v3.11.9 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2810)
    <module> (train.py:120)
Thread 4800 (idle): "Thread-1 (_pin_memory_loop)"
    wait (threading.py:331)
"""
_FRAME = {"name": "step", "filename": "/a/train.py", "line": 7, "locals": None}
STACKS_JSON = json.dumps(
    [
        {
            "pid": 11,
            "thread_id": 1,
            "thread_name": name,
            "frames": [_FRAME, {**_FRAME, "name": "<module>"}],
            "process_info": {"pid": 11, "command_line": "python train.py", "parent": None},
        }
        for name in ("Thread-1", "MainThread")
    ],
    indent=1,
)
LOGS = (TORCH_LOG, TORCHRUN_LOG, CLUSTER_LOG, POD, NCCL_LOG, RAS)
