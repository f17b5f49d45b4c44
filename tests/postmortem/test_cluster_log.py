"""Lines of Slurm, Kubernetes, the kernel and launchers of MPI, quoted from real logs."""

# ruff: noqa: E501
# Lines of logs are as long as they are.
from __future__ import annotations

from pathlib import Path

import pytest

from tests.postmortem.logs import events, read_log


@pytest.mark.parametrize(
    ("text", "job", "when_s"),  # date -u -d '2020-07-11 22:48:26' +%s
    [
        # labsyspharm/mcmicro 163
        (
            "slurmstepd: error: *** JOB 13055114 ON compute-h-17-51 CANCELLED AT 2020-07-11T22:48:26 DUE TO TIME LIMIT ***",
            "13055114",
            1594507706,
        ),
        # SystemsGenetics/GEMmaker 242
        (
            "slurmstepd: error: *** JOB 32391783 ON cn119 CANCELLED AT 2021-06-18T13:05:36 DUE TO PREEMPTION ***",
            "32391783",
            1624021536,
        ),
        # desihub/desitarget 628
        (
            "slurmstepd: error: *** STEP 32233190.0 ON nid01934 CANCELLED AT 2020-07-03T02:59:56 DUE TO TIME LIMIT ***",
            "32233190",
            1593745196,
        ),
    ],
)
def test_slurm_cancels_a_job(tmp_path: Path, text: str, job: str, when_s: int) -> None:
    evidence = read_log(tmp_path, f"step 1\n{text}\n")
    (event,) = events(evidence)
    assert (event.kind, event.rank, event.place.line) == ("canceled", None, 2)
    assert "DUE TO" in event.text
    assert evidence.identities == {f"slurm {job}"}
    assert event.when_ns == when_s * 10**9


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (
            "4711.0           python                    ml         64 OUT_OF_ME+    0:125 ",
            "out_of_memory",
        ),
        ("4711|train|gpu|ml|64|OUT_OF_MEMORY|0:125", "out_of_memory"),
        (
            "4711              train        gpu         ml         64  NODE_FAIL      0:0 ",
            "node_failed",
        ),
        ("4711|train|gpu|ml|64|NODE_FAIL|0:0", "node_failed"),
        (
            "4711              train        gpu         ml         64    TIMEOUT      0:0 ",
            "canceled",
        ),
        ("4711|train|gpu|ml|64|CANCELLED by 1000|0:0", "canceled"),
    ],
)
def test_rows_of_sacct_with_blanks_and_bars(tmp_path: Path, row: str, kind: str) -> None:
    """The states of man sacct, in its default columns and with -P."""
    evidence = read_log(tmp_path, f"{row}\n", name="sacct.txt")
    (event,) = events(evidence)
    assert (event.kind, event.rank) == (kind, None)
    assert evidence.identities == {"slurm 4711"}


def test_first_task_that_failed_and_those_that_slurm_ended(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        "srun: error: node07: task 3: Killed\n"
        "srun: Terminating StepId=4711.0\n"
        "slurmstepd: error: *** STEP 4711.0 ON node07 CANCELLED AT 2026-11-24T18:00:00 ***\n"
        "srun: error: node08: tasks 4,6-7: Terminated\n"
        "srun: error: node07: tasks 0-2: Killed\n"
        "srun: error: node08: task 5: Exited with exit code 1\n",
    )
    (killed,) = events(evidence, "killed")
    assert (killed.rank, killed.signal, killed.node) == (3, 9, "node07")
    assert not events(evidence, "canceled")  # srun ended the step because of task 3
    ended = {e.rank: (e.signal, e.exit_code) for e in events(evidence, "exit")}
    assert ended == {
        0: (None, None),
        1: (None, None),
        2: (None, None),
        4: (None, None),
        5: (None, 1),
        6: (None, None),
        7: (None, None),
    }
    assert evidence.nodes[6] == "node08"


def test_out_of_memory_by_slurm(tmp_path: Path) -> None:
    # nextflow-io/nextflow 5932
    evidence = read_log(
        tmp_path,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: sdumont6156: task 0: Out Of Memory\n",
    )
    ranks = {(e.rank, e.signal) for e in events(evidence, "out_of_memory")}
    assert (0, 9) in ranks


def test_tasks_are_agents_if_srun_started_torchrun(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        "W1124 19:22:44.635000 26612 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 26706 closing signal SIGTERM\n"
        "srun: error: node08: task 1: Exited with exit code 1\n",
    )
    assert not evidence.events
    assert not evidence.nodes


def test_node_failures(tmp_path: Path) -> None:
    evidence = read_log(tmp_path, "srun: error: Node failure on node09\n")
    (event,) = events(evidence)
    assert (event.kind, event.node) == ("node_failed", "node09")


@pytest.mark.parametrize(
    "text",
    [
        "Nov 24 18:00:00 node07 kernel: [12345.6] Out of memory: Killed process 4711 (python3) total-vm:94368604kB, anon-rss:65012348kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:128kB oom_score_adj:0",
        "Nov 24 18:00:00 node07 kernel: Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:6kB",
    ],
)
def test_the_kernel_kills_for_memory(tmp_path: Path, text: str) -> None:
    evidence = read_log(tmp_path, f"{text}\n", "messages")
    (event,) = events(evidence)
    assert (event.kind, event.pid, event.node) == ("out_of_memory", 4711, "node07")
    assert event.signal == 9
    assert event.when_ns is not None


def test_both_lines_of_one_kill_are_one_event(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        "[  300.2] Out of memory: Killed process 4711 (python3) total-vm:1kB\n",
        "node07/dmesg.txt",
    )
    (event,) = events(evidence)
    assert (event.node, event.when_ns) == ("node07", None)


@pytest.mark.parametrize(
    ("text", "kind", "pid"),
    [
        # NVIDIA/nvidia-docker 1553
        (
            "[1084456.074562] NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.",
            "node_failed",
            None,
        ),
        ("[1.2] NVRM: Xid (PCI:0000:09:00): 94, pid=4711, name=python3, Ch 1", "exception", 4711),
        (
            "[1.2] NVRM: Xid (PCI:0000:09:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6",
            "link",
            None,
        ),
        ("[1.2] mlx5_core 0000:81:00.0 ens1f0np0: Link down", "link", None),
        ("[1.2] igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down", "link", None),
        ("[1.2] python3[4711]: segfault at 0 ip 00 sp 00 error 4 in libtorch.so", "killed", 4711),
    ],
)
def test_faults_in_the_kernel_log(tmp_path: Path, text: str, kind: str, pid: int | None) -> None:
    evidence = read_log(tmp_path, f"{text}\n", "dmesg-node03.txt")
    (event,) = events(evidence)
    assert (event.kind, event.pid, event.node) == (kind, pid, "node03")


def test_a_channel_that_ended_with_its_process_is_no_fault(tmp_path: Path) -> None:
    # NVIDIA/open-gpu-kernel-modules 1150
    evidence = read_log(
        tmp_path,
        "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001\n",
        "dmesg.txt",
    )
    assert not evidence.events


# kubectl describe pod, shortened.
_POD = """\
Name:             job-worker-2
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


def test_a_pod_that_was_killed_for_its_memory(tmp_path: Path) -> None:
    evidence = read_log(tmp_path, _POD, "pods.txt")
    (event,) = events(evidence)
    assert (event.kind, event.rank, event.node) == ("out_of_memory", 3, "node07")
    assert (event.signal, event.exit_code) == (9, 137)
    assert evidence.nodes == {3: "node07"}


@pytest.mark.parametrize(
    ("text", "kind", "node"),
    [
        (
            "3m    Warning   Evicted        pod/job-worker-2   The node was low on resource: memory.",
            "canceled",
            "",
        ),
        (
            "2m    Normal    NodeNotReady   node/node07        Node node07 status is now: NodeNotReady",
            "node_failed",
            "node07",
        ),
    ],
)
def test_events_of_kubernetes(tmp_path: Path, text: str, kind: str, node: str) -> None:
    evidence = read_log(tmp_path, f"LAST SEEN   TYPE   REASON\n{text}\n", "events.txt")
    (event,) = events(evidence)
    assert (event.kind, event.node) == (kind, node)


def test_a_log_of_nothing_but_training_says_nothing(tmp_path: Path) -> None:
    text = "".join(f"step {i} loss {1 / (i + 1)} reason: none error: 0.1\n" for i in range(2000))
    assert not read_log(tmp_path, text).events
