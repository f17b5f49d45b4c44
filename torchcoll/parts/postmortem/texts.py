"""What programs say when a job dies: one table, used for whole files and for single lines.

``TEXTS`` prove a cause. ``LINES`` say what kind of evidence any other line is. Terminals wrap
pastes, so the patterns of ``TEXTS`` allow a line break where one is usual.

To add a text: one entry in ``TEXTS``, and one sample with its answer in
tests/postmortem/test_known_texts.py, or a log in tests/postmortem/public/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_SHARED_MEMORY = (
    "give the container more shared memory: docker --shm-size=16g or --ipc=host, in Kubernetes an "
    "emptyDir with medium: Memory at /dev/shm"
)
DEVICE_MEMORY = "use a smaller batch, activation checkpointing or more shards"
HOST_MEMORY = (
    "give the job more memory (Slurm --mem, a Kubernetes limit), or use fewer data-loader workers"
)
_FIRST_OF_OTHERS = "look for the first error of {host}, not at the last lines"
KILLED = "look for the out-of-memory killer (dmesg -T | grep -i oom) and the job's memory limit"
KILLED_BY = {
    "SIGKILL": KILLED,
    "SIGSEGV": "set PYTHONFAULTHANDLER=1 to get its stack, and look at its core dump (gdb)",
    "SIGBUS": "look whether /dev/shm is full (df -h /dev/shm): docker --shm-size=16g or --ipc=host",
    "SIGABRT": "look at its last lines for the text of the abort: a failed check, or double free",
    "SIGTERM": "ask the scheduler who ended it: sacct -j JOB, or kubectl describe pod",
}
SAME_CALLS = "make all ranks of the group call the same collectives in the same order"
LINK = "check the link: ibstat, ibqueryerrors, the cable and the switch port"
_ALL_NODES = (
    "start torchrun on all nodes with the same --nnodes, --rdzv-id and --rdzv-endpoint, and look "
    "at the nodes that did not come"
)


@dataclass(frozen=True)
class Text:
    """A text that proves a cause.

    - source: who prints it: project and file or function, and the versions where known.
    - cause: the cause, as diagnosis.KINDS has it, with blanks.
    - pattern: the text; its groups fill ``says`` and ``remedy``.
    - says: the finding. ``{rank}`` is who wrote the line, ``{any}`` the first group that is not
      empty, ``{host}`` the host that the line is of, or names.
    - remedy: what to do now, as an imperative.
    - whose: ``writer`` if the rank that writes the line is the culprit, ``named`` if the groups
      ``rank``, ``rank2`` or ``ranks`` are, '' if no rank can be named.
    - weak: it is only said if nothing else tells what happened: it follows from a first failure, or
      leaves open whose it is.
    """

    source: str
    cause: str
    pattern: re.Pattern[str]
    says: str
    remedy: str
    whose: str = ""
    weak: bool = False

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """Words of which each match has one; () if the pattern does not tell. Looking for them is a
        hundred times faster than the pattern.
        """
        literals = [max(_plain_runs(part), key=len, default="") for part in _parts(self.pattern)]
        return tuple(literals) if min(map(len, literals)) >= _SHORTEST else ()


_SHORTEST = 4


def _parts(pattern: re.Pattern[str]) -> list[str]:
    """The alternatives of a pattern, without what stands in parentheses."""
    text, depth = "", 0
    for index, character in enumerate(pattern.pattern):
        escaped = pattern.pattern[index - 1 : index] == "\\"
        depth += 0 if escaped else {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            text += character
        elif character == "(" and depth == 1:
            text += "("
    return re.split(r"(?<!\\)\|", text)


def _plain_runs(part: str) -> list[str]:
    """The stretches of a pattern that stand for themselves."""
    part = re.sub(r"\\.|\[[^\]]*\]|\{[^}]*\}", "(", part)
    return re.findall(r"[\w /:'-]+(?![?*+{])", re.sub(r".[?*+]", "(", part))


def _text(
    source: str,
    cause: str,
    pattern: str,
    says: str,
    remedy: str,
    whose: str = "",
    weak: bool = False,
) -> Text:
    return Text(source, cause, re.compile(pattern, re.S), says, remedy, whose, weak)


# In the order of what is said first.
TEXTS = (
    _text(
        "CUDA cudaErrorECCUncorrectable; NVIDIA driver in dmesg",
        "device error",
        r"uncorrectable ECC error|Xid.{0,40}: (?:48|63|64|94|95)\b",
        "an uncorrectable memory error of the GPU ended {rank}",
        "drain the node and reset or replace the GPU: nvidia-smi -q -d ECC shows the counters",
        "writer",
    ),
    _text(
        "NVIDIA driver, in dmesg (Xid 79)",
        "device error",
        r"Xid.{0,40}: 79\b|NVRM:\s+(?:GPU \S+ )?(?:GPU )?(?:has )?fallen off the bus",
        "a GPU of {host} has fallen off the bus",
        "drain the node, and check the GPU's power, temperature and seat before it comes back",
    ),
    _text(
        "CUDA cudaErrorNvlinkUncorrectable; NVIDIA driver in dmesg",
        "device error",
        r"uncorrectable NVLink error|Xid.{0,40}: (?:74|14[59]|150)\b",
        "an NVLink error of the GPU ended {rank}",
        "drain the node, and look at the links of its GPUs: nvidia-smi nvlink --errorcounters",
        "writer",
    ),
    _text(
        "NVIDIA driver, in dmesg",
        "device error",
        r"Xid \(PCI:([\w:.]+)\): (?:119|120)\b",
        "GPU {0} of {host} stopped answering its driver (GSP, Xid 119)",
        "drain the node and reset its GPUs; if it comes back, update the driver or switch GSP off "
        "(NVreg_EnableGpuFirmware=0)",
    ),
    _text(
        "CUDA error 802, cudaErrorSystemNotReady",
        "device error",
        r"Error 802\b|Cuda failure 802\b|system not yet initialized",
        "CUDA is not ready for {rank}: system not yet initialized (error 802)",
        "start the fabric manager of the node, in the version of its driver: systemctl status "
        "nvidia-fabricmanager",
        "writer",
    ),
    _text(
        "CUDA error 46, cudaErrorDevicesUnavailable",
        "device busy",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        "another process uses the GPU of {rank}",
        "end the process that has the GPU (nvidia-smi), and check that its compute mode is Default",
        "writer",
    ),
    _text(
        "NCCL src/transport/net_ib.cc: IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_FATAL",
        "link",
        r"NCCL WARN NET/IB ?: ?(?:Got async event : (local catastrophic error)|"
        r"\S+ async fatal event[^:\n]{0,300}: ([\w ]+))",
        "the network device of {host} failed: {any}",
        "look at the adapter and its firmware (dmesg -T | grep mlx5), then " + LINK,
    ),
    _text(
        "NCCL src/misc/shmutils.cc",
        "shared memory",
        r"NCCL WARN Call to (?:shm_)?open failed ?: Permission denied",
        "NCCL is not allowed to write to /dev/shm",
        "give the user of the job access: chmod 1777 /dev/shm",
    ),
    _text(
        "NCCL src/misc/shmutils.cc; torch utils/data/_utils/signal_handling.py",
        "shared memory",
        r"failed to extend /dev/shm/|Error while creating shared memory segment"
        r"|posix_fallocate failed : No space left|insufficient shared memory \(shm\)",
        "/dev/shm is full",
        _SHARED_MEMORY,
    ),
    _text(
        "NCCL src/init.cc, 2.5 to 2.29",
        "duplicate GPU",
        r"Duplicate GPU detected : rank (?P<rank>\d+) and rank (?P<rank2>\d+) both on CUDA device "
        r"(\w+)",
        "ranks {0} and {1} use the same GPU ({2})",
        "choose the GPU by the local rank: torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        "named",
    ),
    _text(
        "NCCL src/init.cc, since 2.23; src/bootstrap.cc",
        "version mismatch",
        r"[Mm]ismatched NCCL version detected : rank (\d+)|NCCL version mismatch",
        "ranks use different versions of NCCL",
        "install the same torch and NCCL on all nodes",
    ),
    _text(
        "CUDA error 217, in NCCL src/transport/shm.cc",
        "no peer access",
        r"transport/shm\.cc.{0,20}NCCL WARN Cuda failure (?:217 )?'peer access is not supported",
        "NCCL shares host memory by CUDA, which needs peer access that these devices do not have",
        "set NCCL_CUMEM_HOST_ENABLE=0",
    ),
    _text(
        "CUDA error 217, in NCCL src/transport/p2p.cc",
        "no peer access",
        r"peer access is not supported between these two devices",
        "NCCL uses peer access between two GPUs that do not support it",
        "set NCCL_P2P_DISABLE=1, or start ranks on GPUs that have it (nvidia-smi topo -p2p r)",
    ),
    _text(
        "torch distributed_c10d.py",
        "never formed",
        r"Timed out initializing process group in store based barrier on rank: \d+, for key: "
        r"\S+ \(world_size=(?P<world>\d+), worker_count=(?P<came>\d+), timeout=([\d:]+)\)",
        "the job never formed: {came} of {world} ranks came within {2}",
        "look at the nodes whose ranks did not start",
    ),
    _text(
        "torch csrc/distributed/c10d/socket.cpp",
        "never formed",
        r"client socket has timed out after (?P<after>\d{1,12})\s*(?P<unit>m?s)?\w* while trying "
        r"to connect to \(?\[?([^\s,\])]+)\]?, (\d+)\)",
        "the job never formed: nothing listened at {2}:{3} for {after}, or it cannot be reached",
        "check MASTER_ADDR and MASTER_PORT, that rank 0 runs, and that no firewall is between",
    ),
    _text(
        "torch csrc/distributed/c10d/socket.cpp; errno 98",
        "never formed",
        r"EADDRINUSE|[Aa]ddress already in use",
        "the job never formed: its port is taken",
        "end the job that has the port, or choose another: torchrun --master-port, or --rdzv-"
        "endpoint with port 0 on one node",
    ),
    _text(
        "torch csrc/distributed/c10d/TCPStore.cpp",
        "never formed",
        r"Timed out (?:after \d+ seconds )?waiting for clients\. (\d+)/(\d+)\s+clients joined",
        "the job never formed: {0} of {1} ranks came",
        "look at the nodes whose ranks did not start",
    ),
    _text(
        "torch elastic/rendezvous/c10d_rendezvous_backend.py",
        "never formed",
        r"[Tt]he connection to the C10d store has failed",
        "the job never formed: the rendezvous endpoint cannot be reached",
        "check --rdzv-endpoint (host and port) from each node, and that its host runs the first "
        "node",
    ),
    _text(
        "torch elastic/rendezvous/api.py",
        "never formed",
        r"RendezvousTimeoutError",
        "the job never formed: not all nodes came to the rendezvous in time",
        _ALL_NODES,
    ),
    _text(
        "DeepSpeed launcher/runner.py; pdsh",
        "never formed",
        r"(?:host=|pdsh@\S+ )(?P<host>[\w.-]+)(?: was not reachable via ssh|: ssh exited with exit "
        r"code 255)",
        "the job never formed: {host} cannot be reached by ssh",
        "set up ssh without a password to each host of the hostfile, and try it: ssh {host} true",
    ),
    _text(
        "torch elastic/utils/store.py, csrc/distributed/c10d/TCPStore.cpp",
        "never formed",
        r"wait timeout after (?P<after>\d{1,12})\s*(?P<unit>ms), keys: \S*torchelastic/role_info",
        "the job never formed: the launchers of other nodes did not come within {after}",
        _ALL_NODES,
    ),
    _text(
        "oneCCL src/atl/util/pm/pmi_resizable_rt",
        "never formed",
        r"\|CCL_ERROR\|.{0,60}kvs_get_value: KVS get error: timeout",
        "the job never formed: oneCCL's key-value store did not answer in time",
        "submit again, with a longer CCL_KVS_CONNECTION_TIMEOUT; at thousands of ranks the process "
        "manager may be too busy",
    ),
    _text(
        "oneCCL src/atl/ofi/atl_ofi.cpp",
        "no network",
        r"\|CCL_ERROR\|.{0,200}?(?:can't find suitable provider|can not open network providers)",
        "oneCCL found no network provider of libfabric that it can use",
        "set FI_PROVIDER to one that `fi_info` lists (tcp always works), or "
        "CCL_ATL_TRANSPORT=mpi below mpirun",
    ),
    _text(
        "NCCL src/transport.cc, since 2.12",
        "no network",
        r"No transport found for rank (\d+)(?:\[\w+\])? -> rank (\d+)",
        "ranks {0} and {1} have no way to reach each other",
        "check that both hosts see the same network (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) and that P2P "
        "or shared memory is not switched off on one of them",
    ),
    _text(
        "NCCL src/bootstrap.cc, since 2.4; src/misc/socket.cc, since 2.8",
        "no network",
        r"[Nn]o socket interface found|connecting to address\s+with family \d+ is neither AF_INET|"
        r"Socket creation failed : Address family not supported",
        "NCCL found no network interface that it can use",
        "check NCCL_SOCKET_IFNAME against `ip addr`: it must name an interface of every host",
    ),
    _text(
        "NCCL src/misc/ibvwrap.cc",
        "no network",
        r"ibv_modify_qp failed with (?:error )?(?:\d+ )?(Network is unreachable|No route to host|"
        r"Connection timed out|Invalid argument)",
        "the network device of {host} does not reach the device of its peer ({any})",
        "use devices of one fabric (NCCL_IB_HCA); for RoCE choose the GID with NCCL_IB_GID_INDEX "
        "(show_gids), and check the routes between the subnets",
    ),
    _text(
        "NCCL src/misc/ibvwrap.cc; aws-ofi-nccl",
        "locked memory",
        r"ibv_(?:create_cq|create_qp|reg_mr\w*) failed with error (Cannot allocate memory)|"
        r"NET/OFI Unable to register memory[^\n]{0,120}Error: ([\w ]+)",
        "the network adapter could not register memory ({any})",
        "raise the limit of locked memory: ulimit -l unlimited, in containers --ulimit memlock=-1",
    ),
    _text(
        "CUDA errors 100, 101, 35; torch ProcessGroupNCCL.cpp",
        "device missing",
        r"CUDA error: (invalid device ordinal)|(no CUDA-capable device is detected)|"
        r"(CUDA driver version is insufficient for CUDA runtime version)|"
        r"Cuda failure (?:101 )?'(invalid device ordinal)'|"
        r"ProcessGroupNCCL is only supported with GPUs, (no GPUs found)",
        "{rank} has no GPU to use: {any}",
        "start as many ranks on a host as it has visible GPUs (nvidia-smi -L, "
        "CUDA_VISIBLE_DEVICES)",
        "writer",
    ),
    _text(
        "torch ProcessGroupWrapper.cpp",
        "mismatch",
        r"Detected mismatch between collectives on ranks\.\s*Rank (?P<rank>\d+) is running "
        r"collective: CollectiveFingerPrint\((?:SequenceNumber=(?P<n1>\d+),?\s*)?"
        r"OpType=(?P<op1>\w+)(?:, TensorShape=\[(?P<shape1>[\d, ]*)\])?.{0,600}?"
        r"Rank (?P<rank2>\d+) is running\s+collective: CollectiveFingerPrint\("
        r"(?:SequenceNumber=(?P<n2>\d+),?\s*)?OpType=(?P<op2>\w+)"
        r"(?:, TensorShape=\[(?P<shape2>[\d, ]*)\])?",
        "ranks {rank_} and {rank2} are at different calls: {call1} and {call2}",
        SAME_CALLS,
        "named",
    ),
    _text(
        "torch ProcessGroupWrapper.cpp, older versions",
        "mismatch",
        r"Detected mismatch between collectives on ranks\.\s*Rank (?P<rank>\d+) is running "
        r"(?:inconsistent )?collective: CollectiveFingerPrint\((?:SequenceNumber=\d+,?\s*)?"
        r"OpType=(?P<op1>\w+)",
        "rank {rank_} is in another collective than the others: {op1}",
        SAME_CALLS + ". The text of newer versions of torch has the calls of both ranks",
        "named",
    ),
    _text(
        "NCCL src/init.cc, 2.4 to 2.7",
        "mismatch",
        r"Mismatched collective detected, please check your collective calls at and around rank "
        r"(?P<rank>\d+)",
        "NCCL found different collectives at or near rank {0}",
        "compare the calls of that rank and its neighbours: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL",
        "named",
    ),
    _text(
        "NCCL src/transport/net_ib.cc, 2.3 to 2.19",
        "mismatch",
        r"peer (\S+?)<\d+> collective mismatch error, local size (\d+) remote size (\d+)",
        "two ranks made a different call, or with another size: {1} bytes here, {2} from {0}",
        "make all ranks call the same collectives with the same sizes (TORCH_DISTRIBUTED_DEBUG="
        "DETAIL names them), and set the same NCCL_* variables on all nodes",
    ),
    _text(
        "torch csrc/distributed/c10d/reducer.cpp",
        "mismatch",
        r"DDP expects same model across all ranks, but Rank \d+ has .{0,80}?rank (?P<rank>\d+) has "
        r"inconsistent",
        "rank {0} has another model than the others",
        "build the same model, with the same parameters that require gradients, on all ranks",
        "named",
    ),
    _text(
        "gloo transport/tcp/pair.cc",
        "different sizes",
        r"op\.preamble\.length <= op\.nbytes\.? (\d+) vs (\d+)",
        "ranks passed different sizes: one sent {0} bytes where another one expected {1}",
        "make all ranks pass the same sizes, and " + SAME_CALLS,
    ),
    _text(
        "torch csrc/distributed/c10d/reducer.cpp",
        "unused parameters",
        r"Expected to have finished reduction in the prior iteration",
        "parameters of {rank} got no gradient in the last step",
        "set find_unused_parameters=True in DistributedDataParallel, or leave out these parameters "
        "(TORCH_DISTRIBUTED_DEBUG=DETAIL names them)",
        "writer",
    ),
    _text(
        "Ray python/ray/exceptions.py, OutOfMemoryError; src/ray/raylet/node_manager.cc",
        "out of memory",
        r"(?:Memory on the node \(|killed due to memory pressure \(OOM\).{0,200}?)"
        r"(?:ID: \w+, )?IP: (?P<host>[\w.:]+)",
        "Ray killed a process on {host}, because the memory of this node was full",
        "start fewer workers on a node, or give it more memory; RAY_memory_usage_threshold is the "
        "limit",
    ),
    _text(
        "torch c10/cuda/CUDACachingAllocator.cpp; CUDA error 2",
        "out of memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|HIP out of memory|"
        r"(?:Cuda|HIP) failure (?:\d+ )?'out of memory'",
        "{rank} ran out of device memory",
        DEVICE_MEMORY,
        "writer",
    ),
    _text(
        "Linux mm/oom_kill.c; slurmstepd; Kubernetes",
        "out of memory",
        r"oom[-_]kill(?:er)?[ :]|Out of memory: Killed process|oom[-_]kill event|OOMKilled",
        "the kernel killed a process because the host's memory was full",
        HOST_MEMORY,
    ),
    _text(
        "NCCL src/misc/shmutils.cc",
        "shared memory",
        r"Error while attaching to shared memory segment /dev/shm/\S+ .{0,40}No such file",
        "a rank did not find the shared memory of another rank of its host in /dev/shm",
        "look whether that rank ended first, and whether all ranks of the host see one /dev/shm: "
        "containers need --ipc=host",
        weak=True,
    ),
    _text(
        "torch utils/data/_utils/signal_handling.py, dataloader.py",
        "out of memory",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) "
        r"(?:is killed by signal: Killed|exited unexpectedly)",
        "a data-loader worker of {rank} was killed, mostly because the host's memory is full",
        "look for the out-of-memory killer (dmesg -T | grep -i oom), and use fewer data-loader "
        "workers",
        "writer",
    ),
    _text(
        "errno 24; Python multiprocessing/reduction.py",
        "open files",
        r"received 0 items of ancdata|Too many open files",
        "{rank} ran out of file descriptors",
        "raise the limit of open files (ulimit -n 65536), or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        "writer",
    ),
    _text(
        "errno 28",
        "disk full",
        r"No space left on device",
        "a disk is full",
        "free space where the job writes (checkpoints, caches, /tmp)",
        weak=True,
    ),
    _text(
        "torch ProcessGroupNCCL.cpp, broadcastUniqueNCCLID",
        "rank missing",
        r"\[(\d+)\] is setting up NCCL communicator and retrieving\s+ncclUniqueId from "
        r"\[(?P<rank>\d+)\][^\n]{0,80}\s?[^\n]{0,80}(?:Connection reset|Connection was|closed)",
        "rank {1} ended before it published the NCCL id, for which rank {0} waited",
        "look at the first error of rank {1}",
        "named",
    ),
    _text(
        "torch ProcessGroupNCCL.cpp, broadcastUniqueNCCLID",
        "rank missing",
        r"\[(\d+)\] is setting up NCCL communicator and retrieving\s+ncclUniqueId from "
        r"\[(?P<rank>\d+)\]",
        "rank {1} did not come: rank {0} waited for it to publish the NCCL id",
        "look at what rank {1} does before its first collective, and raise the timeout if it is "
        "only slow",
        "named",
    ),
    _text(
        "torch ProcessGroupGloo.cpp, monitoredBarrier",
        "rank missing",
        r"Ranks? (?P<ranks>\d+(?:, \d+)*) failed to pass monitoredBarrier",
        "{ranks} did not come to a barrier",
        "look at what {ranks} did instead",
    ),
    _text(
        "torch ProcessGroupGloo.cpp, monitoredBarrier",
        "rank missing",
        r"Rank (\d+) successfully reached monitoredBarrier, but received errors while waiting for "
        r"send/recv from rank (?P<rank>\d+)",
        "rank {1} did not answer in a barrier in which rank {0} waited",
        "look at the log of rank {1}: it ended, or reports itself which rank is missing",
        "named",
    ),
    _text(
        "torchcoll postmortem --live, of /proc/PID/status",
        "killed",
        r"rank (?P<rank>\d+): process (\d+) is in state [Tt] \(",
        "rank {0} (process {1}) is stopped by a signal or a debugger",
        "let it go on with kill -CONT {1}, or look who stopped it",
        "named",
    ),
    _text(
        "torch TraceUtils.h, retrieveDesyncReport",
        "rank missing",
        r"\[(?P<ranks>\d+(?:, \d+)*)\] finished collective #(\d+), but didn't join collective",
        "{ranks} did not come to the call after number {1}, which other ranks had begun",
        "look at what {ranks} did instead: log, stack (py-spy dump) and node",
        "named",
    ),
    _text(
        "Open MPI orte/tools/orterun; MPICH Hydra",
        "killed",
        r"(?:process rank|RANK) (?P<rank>\d+) (?:with )?PID \d+ (?:on node|RUNNING AT) "
        r"(?P<host>\S+)(?: exited on\s+signal |\n=\s+KILLED BY SIGNAL: (?!9\b))(\d+)",
        "rank {0} on {host} was killed by {signal}, as mpirun reports",
        "{killed}",
        "named",
    ),
    _text(
        "MPICH Hydra",
        "killed",
        r"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)\n=\s+KILLED BY SIGNAL: (9)\b",
        "rank {0} on {host} was killed by SIGKILL, as mpirun reports",
        KILLED,
        "named",
        weak=True,  # mpirun ends the other ranks with it
    ),
    _text(
        "Open MPI ompi/runtime; MPICH src/mpi/init",
        "exit",
        r"MPI_ABORT was invoked on rank (?P<rank>\d+)|MPI_Abort\(MPI_COMM_WORLD, -?\d+\) - process "
        r"(?P<rank2>\d+)",
        "rank {any} ended the job with MPI_Abort",
        "look at the last lines of this rank for the reason",
        "named",
    ),
    _text(
        "torch multiprocessing/spawn.py",
        "killed",
        r"ProcessExitedException: process (?P<rank>\d+) terminated with (signal \w+|exit code \d+)",
        "rank {0} ended with {1}, as torch.multiprocessing.spawn reports",
        "look at the last lines of this rank, and for a killed one at dmesg -T | grep -i oom",
        "named",
    ),
    _text(
        "Lightning strategies/launchers/subprocess_script.py",
        "killed",
        r"\[rank: (?P<rank>\d+)\] Child process with PID (\d+) terminated with code -(\d+)",
        "rank {0} (process {1}) was killed by {signal}",
        "{killed}",
        "named",
    ),
    _text(
        "vLLM v1/executor/multiproc_executor.py",
        "killed",
        r"Worker proc VllmWorker-(?P<rank>\d+) died unexpectedly",
        "worker {0} of vLLM died without a word of its own",
        "look at the log above for its first error, and for the out-of-memory killer in dmesg -T",
        "named",
    ),
    _text(
        "Ray python/ray/exceptions.py, ActorDiedError",
        "killed",
        r"actor died unexpectedly before finishing.{0,300}?\bpid: (\d+).{0,300}?"
        r"\bip: \[?([\w.:]+?)\]?[\s(]",
        "the actor of process {0} on {1} died; Ray does not know why",
        "look on {1} for the out-of-memory killer (dmesg -T | grep -i oom) and in "
        "/tmp/ray/session_latest/logs for the last words of process {0}",
    ),
    _text(
        "Ray src/ray/gcs",
        "killed",
        r"Worker IP address: (\S+) Worker port: \d+ Worker PID: (\d+) Worker exit type: "
        r"SYSTEM_ERROR",
        "worker process {1} on {0} died; Ray does not know why",
        "look on {0} for the out-of-memory killer (dmesg -T | grep -i oom) and in "
        "/tmp/ray/session_latest/logs for the last words of process {1}",
    ),
    _text(
        "DeepSpeed launcher/launch.py, sigkill_handler",
        "killed",
        r"launch\.py:\d+:sigkill_handler\].{0,4000}?exits with return code = -(\d+)",
        "a rank was killed by {signal}; DeepSpeed's launcher does not say which one",
        "{killed}",
    ),
    _text(
        "torch distributed/launch.py, before 1.9",
        "killed",
        r"CalledProcessError: Command [^\n]{0,4000}died with <Signals\.SIG\w+: (\d+)>",
        "a rank was killed by {signal}; its launcher does not say which one",
        "{killed}",
    ),
    _text(
        "Open MPI orte/mca/errmgr; PRRTE",
        "node failed",
        r"(?:ORTE|PRTE) has lost communication with .{0,300}?(?:Remote daemon\s*: \S+ on node|"
        r"hostname:)\s+(?P<host>\S+)",
        "mpirun lost {host}: the node, its network, or mpirun's daemon there failed",
        "look at this node: dmesg -T (out-of-memory killer, restarts), kubectl describe pod, and "
        "its network",
    ),
    _text(
        "Kubernetes pkg/kubelet/eviction",
        "canceled",
        r"Reason:\s+Evicted\s.{0,300}?low on resource: ([\w-]+)",
        "the pod was evicted, because its node was low on {0}",
        "free {0} on the node, or request as much as the pod uses",
    ),
    _text(
        "Python; torch utils/data/dataloader.py",
        "hang",
        r"torch/utils/data/dataloader\.py.{0,3000}?\nKeyboardInterrupt",
        "the job hung and a person ended it with Ctrl-C: its main process waited for the data "
        "loader",
        "look at the data loader: run with num_workers=0, and time one read of the dataset",
    ),
    _text(
        "torch elastic/agent/server/api.py",
        "canceled",
        r"Received (?:1|Signals\.SIGHUP) death signal|closing signal SIGHUP",
        "the job was ended by SIGHUP: the terminal or login session that started it was closed",
        "start it below nohup, tmux or screen, or by the scheduler",
    ),
    _text(
        "CUDA errors 700, 710, 719, 716, 209; RCCL",
        "device error",
        r"CUDA error: (an illegal memory access was encountered|device-side assert triggered|"
        r"unspecified launch failure|misaligned address|no kernel image is available)"
        r"|(?:Cuda failure|HIP failure|hipIpcGetMemHandle failed)(?: \d+)?(?: :)? ?'?([\w ]+)",
        "a CUDA error ended {rank}: {any}",
        "run once with CUDA_LAUNCH_BLOCKING=1 to find the kernel; if the error stays with a node, "
        "drain the node; after an update check that driver and CUDA version fit",
        "writer",
    ),
    _text(
        "NCCL src/misc/argcheck.cc",
        "invalid argument",
        r"NCCL WARN (\w+) : invalid root (-?\d+) \(root should be in the (\S+) range\)",
        "NCCL's {0} got an invalid root, {1}, on a communicator that has ranks {2}",
        "the communicator was destroyed or has another size: look for the first NCCL WARN, and "
        "check that torch and NCCL versions fit",
    ),
    _text(
        "torch ProcessGroupNCCL.cpp, heartbeat monitor",
        "watchdog stuck",
        r"watchdog got stuck for (\d+) seconds|Heartbeat monitor timed out|"
        r"detected no heartbeat of its watchdog",
        "{rank} hung in a call of CUDA or NCCL: its watchdog itself made no progress",
        "take the stack of that rank while it hangs (py-spy dump --native): another thread may "
        "hold the GIL, or a node was much later than the others",
        "writer",
        weak=True,
    ),
    _text(
        "torch elastic/multiprocessing/api.py; rich, for accelerate",
        "killed",
        r"failed \(exitcode: -9\) local_rank: (\d+)|"
        r"rank\s?(\d+) \(local.rank: \d+\)\s*exitcode\s*: -9",
        "local rank {any} was killed by SIGKILL",
        KILLED,
        weak=True,
    ),
    _text(
        "torch elastic/agent/server/api.py",
        "canceled",
        r"Received (?:15|Signals\.SIGTERM) death signal",
        "torchrun got SIGTERM: the job was ended from outside",
        "ask the scheduler who ended it: sacct -j JOB, kubectl describe pod, or a preemption",
        weak=True,
    ),
    _text(
        "torch elastic/agent/server/api.py",
        "canceled",
        r"Received (?:2|Signals\.SIGINT) death signal",
        "a person ended the job with Ctrl-C",
        "if it hung, take stacks while it hangs: torchcoll postmortem --live FOLDER",
        weak=True,
    ),
    _text(
        "bash",
        "killed",
        r"line \d+: +(\d+) (Killed|Segmentation fault|Bus error|Aborted)\b",
        "process {0} was killed ({1}), as the shell reports",
        "look for the out-of-memory killer (dmesg -T | grep -i oom), and at the last lines of the "
        "process",
        weak=True,
    ),
    _text(
        "torch elastic/multiprocessing/api.py",
        "exit",
        r"failed \(exitcode: (\d+)\) local_rank: (\d+)",
        "local rank {1} ended with exit code {0}",
        "look at its traceback: stderr of that rank (torchrun --log-dir LOGS --redirects 3)",
        weak=True,
    ),
    _text(
        "torch elastic/rendezvous/api.py",
        "never formed",
        r"RendezvousClosedError",
        "the job could not form again: its rendezvous was closed",
        "start all nodes again with another --rdzv-id",
        weak=True,
    ),
    _text(
        "torch ProcessGroupNCCL.cpp, heartbeat monitor",
        "first timeout",
        r"Received a dump signal due to a collective timeout from rank (\d+)",
        "rank {0} was the first whose call did not end",
        "look at the ranks that rank {0} waited for: its log names the call",
        weak=True,
    ),
    _text(
        "torch csrc/distributed/c10d/TCPStore.cpp, Utils.hpp",
        "store gone",
        r"sendBytes failed on SocketImpl|TCPStore server has shut down too early|"
        r"failed to recv, got 0 bytes|"
        r"Connection was likely closed\. Did the remote server shutdown",
        "the store of rank 0 is gone: rank 0, or the launcher on its host, ended first",
        "look at the first error of rank 0 and at the launcher's output on its host",
        weak=True,
    ),
    _text(
        "torch csrc/distributed/c10d/TCPStore.cpp",
        "rank missing",
        r"wait timeout after (?P<after>\d{1,12})\s*(?P<unit>ms), keys: (?P<key>[^\s,]+)",
        "{rank} waited {after} in the store for another rank, which did not write {key}",
        "look at the logs of the other ranks: one did not come to the same call, such as new_group",
        weak=True,
    ),
    _text(
        "gloo rendezvous/context.cc, in torch ProcessGroupGloo.cpp",
        "no network",
        r"Gloo connectFullMesh failed with",
        "gloo could not connect all ranks to each other",
        "set GLOO_SOCKET_IFNAME to an interface that the other hosts reach, and look whether a "
        "rank ended first",
        weak=True,
    ),
    _text(
        "NCCL src/proxy.cc, since 2.12",
        "peer lost",
        r"Failed to execute operation Connect from rank (?P<rank>\d+), retcode (6)\b",
        "the connection to rank {0} failed (NCCL's code {1})",
        "look at the first error of rank {0}: it ended first, or the network between is broken",
        "named",
        weak=True,
    ),
    _text(
        "NCCL src/transport/net_ib.cc: 2.3 to 2.22; with the device since 2.23",
        "link",
        r"NCCL WARN NET/IB ?:? ?(?:\S+ )?Got (?:non-fatal )?async (?:error )?event ?: ([\w ]+)",
        "the network device of {host} reported: {0}",
        LINK,
        weak=True,
    ),
    _text(
        "NCCL src/transport/net_ib.cc, since 2.10; ibv_wc_status 4",
        "link",
        r"Got completion from peer (\S+?)(?:<\d+>)? with (?:error|status=?) ?(?:\w+\()?4\b",
        "a transfer over InfiniBand or RoCE to {0} failed with status 4, local protection error: "
        "the adapter may not access the memory",
        "check GPUDirect RDMA: the nvidia-peermem module, ACS and IOMMU off; "
        "NCCL_NET_GDR_LEVEL=LOC switches it off",
        weak=True,
    ),
    _text(
        "NCCL src/transport/net_ib.cc, since 2.10",
        "link",
        r"NET/IB\w? ?:? ?Got completion from peer (\S+?(?:<\d+>)?) with (?:error|status=?) ?(\w+)",
        "a transfer over InfiniBand or RoCE to {0} failed (status {1})",
        "look whether that host's process ended first; if not, " + LINK,
        weak=True,
    ),
    _text(
        "NCCL src/misc/socket.cc; gloo transport/tcp/pair.cc",
        "peer lost",
        r"[Cc]onnection closed by remote peer (\S+?)<\d+>|"
        r"Call to (?:recv|send) (?:from|to) ([\w.:-]+)<\d+> failed : (?:[\w ]+)|"
        r"gloo/transport/\S{1,40}\]\s+(?:Read error|Connection closed by peer|writev?) "
        r"\[([\w.:]+)\]:\d+",
        "the connection to {any} broke",
        _FIRST_OF_OTHERS,
        weak=True,
    ),
)

# What kind of evidence a line is (JobEvent.kind), the first that fits. Errors of a class
# that torch and gloo raise because another rank is missing are complaints, unless they say more.
LINES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "mismatch",
            r"Detected mismatch between collectives|op\.preamble\.length|preamble\.roffset|"
            r"Mismatched collective detected|collective mismatch error|[Mm]essage truncated",
        ),
        (
            "out_of_memory",
            r"^(?:\w+\.)*MemoryError\b|OutOfMemoryError|"
            r"(?:CUDA|HIP|XPU|MPS|NPU)(?: error:)? out of memory|"
            r"CUBLAS_STATUS_ALLOC_FAILED|can't allocate memory|Cannot allocate memory|"
            r"Unable to allocate .{1,40} for an array|OUT_OF_(?:DEVICE|HOST)_MEMORY|"
            r"Cuda failure.{0,9}out of mem",
        ),
        (
            "disk_full",
            r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]|"
            r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|iostream error",
        ),
        ("exception", r"Cuda failure|HIP failure|uncorrectable (?:NVLink|ECC) error|CUDA error: "),
        (
            "timeout",
            r"[Tt]imed out waiting|[Ss]ocket [Tt]imeout|[Ww]ait timeout|[Tt]imed out after|"
            r"Read timeout|collective operation timeout|failed to pass monitoredBarrier|"
            r"Application timeout|timed out in monitoredBarrier|client socket has timed out|"
            r"barrier timeout after|timeout in call to|Operation timed out|"
            r"socket .{1,200} timed out after|Timed out initializing process group",
        ),
        (
            "link",
            r"NET/IB ?: .{0,120}(?:async (?:fatal )?event|Got (?:non-fatal )?async event).{0,80}|"
            r"NET/IB: Device \d+ marked as failed|NCCL WARN.{0,80}[Ll]ink (?:is )?down",
        ),
        (
            "peer_lost",
            r"successfully reached monitoredBarrier|"
            r"[Cc]onnection (?:was )?(?:closed|reset|refused|aborted|timed out)|pair closure|"
            r"[Bb]roken pipe|recvValue|Failed to (?:recv|send), (?:got|sent) 0 bytes|"
            r"remote process exited|Socket (?:unexpectedly )?closed|Got completion from peer|"
            r"NET/IB ?: Got completion with error|Socket recv failed|Accept failed|"
            r"(?:NCCL|communicator).{0,40}(?:aborted|abort flag)|[Ss]ocketPollConnect|"
            r"Call to (?:recv|send|connect|accept)\b|NET/Socket : socket progress error|"
            r"[Cc]onnect(?:ion)?\b.{0,200}(?:failed|refused|timed out|reset|returned)|"
            r"recv(?:ing)? .{0,40}failed|ncclRemoteError|ncclSystemError|DistNetworkError|"
            r"DistStoreError|DistBackendError|NCCL (?:error|communicator)|\[c10d\]|"
            r"ProcessGroup(?:NCCL|Gloo|XCCL)|SignalException|KeyboardInterrupt|ChildFailedError",
        ),
    )
)


def kind_of(text: str) -> str:
    """What kind of evidence an error with this text is: as JobEvent.kind, ``exception``
    if no entry fits.
    """
    return next((kind for kind, pattern in LINES if pattern.search(text)), "exception")


def known_text(text: str) -> Text | None:
    """The entry of TEXTS that fits a line."""
    return next((each for each in TEXTS if each.pattern.search(text)), None)
