"""What people paste of dead jobs, in the shape of public threads, and what each leads to.

Names, addresses and figures are made up. Each input stands for a kind: its answer was written from
the text, not from what the code printed.
"""

import re
from pathlib import Path

import pytest

from torchcoll.cli import main
from torchcoll.parts.postmortem.texts import TEXTS

PUBLIC = Path(__file__).parent / "public"


def watchdog(rank, number=512, operation="ALLREDUCE", prefix=""):
    return (
        f"{prefix}[rank{rank}]:[E321 02:07:08.40{rank} ProcessGroupNCCL.cpp:607] [Rank {rank}] "
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, "
        f"OpType={operation}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600060 "
        "milliseconds before timing out.\n"
    )


def hydra(rank, number):
    # bsc-performance-tools/extrae 101
    return (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        f"=   RANK {rank} PID 244737{rank} RUNNING AT node0009\n"
        f"=   KILLED BY SIGNAL: {number} (Killed)\n"
    )


FIVE_OF_SIX = "".join(watchdog(rank) for rank in (0, 1, 2, 4, 5))
# (input, words of the first sentence, words of what to do)
TABLE = {
    "five of six ranks wait": (
        FIVE_OF_SIX,
        "Probably rank 3 does not come to all_reduce",
        "py-spy",
    ),
    "all that report wait": (
        watchdog(0) + watchdog(1),
        "ranks 0-1 wait in all_reduce number 512 for a rank that is not in this log",
        "collect the logs of all ranks",
    ),
    "line numbers of a tool in front are no ranks": (
        watchdog(0, prefix="[80746] ") + watchdog(4, prefix="[80747] "),
        "ranks 0 and 4 wait in all_reduce number 512",
        "collect the logs",
    ),
    "wrapped by a terminal": (
        watchdog(3).replace("timeout: ", "timeout:\n").replace("NumelOut=", "NumelOut=\n"),
        "rank 3 waits in all_reduce number 512",
        "collect the logs",
    ),
    "ranks that are at the call without a timeout of their own, and one that is not": (
        watchdog(0)
        + watchdog(4)
        + "".join(
            f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1664] [PG 1 Rank {rank}] Exception (either an "
            "error or timeout) detected by watchdog at work: 512, last enqueued NCCL work: 514, "
            "last completed NCCL work: 511.\n"
            for rank in (2, 3)
        ),
        "for a rank that is not in this log; ranks 2-3 completed number 511 last, and wait there "
        "too; rank 1 did not report",
        "collect the logs of all ranks: look at rank 1 first",
    ),
    "a rank that tokenizes": (
        "Tokenizing train set:  12%|##   | 8/64 [09:51<68:30, 74.02s/it]\r\n" + watchdog(1),
        "Probably rank 0 still prepared data (8 of 64 after 09:51) while rank 1 waited in",
        "prepare the data before the first collective, or raise timeout= of init_process_group",
    ),
    "a rank that trains is not preparing": (
        "Epoch 1:  12%|##   | 8/64 [09:51<68:30, 74.02s/it]\r\n" + watchdog(1),
        "rank 0 did not report; the last progress bar stands at 8 of 64 after 09:51",
        "collect the logs of all ranks",
    ),
    "another call": (
        watchdog(0, 91, "_ALLGATHER_BASE")
        + watchdog(1, 89, "BROADCAST")
        + watchdog(2, 89, "BROADCAST"),
        "rank 0 is 2 calls ahead (all_gather number 91, the others broadcast number 89)",
        "if call 89 was another collective on rank 0, mend the order",
    ),
    "one call behind": (
        watchdog(0, 90) + watchdog(1, 89) + watchdog(2, 90),
        "rank 1 is one call behind (call 89, the others 90)",
        "look at its GPU, link and host; if call 89 was another collective on the other ranks",
    ),
    "one of two ranks behind": (
        watchdog(0, 89) + watchdog(1, 90),
        "rank 0 is one call behind (call 89, the other 90)",
        "look at its GPU, link and host",
    ),
    "behind and ahead": (
        "".join(watchdog(rank, number) for rank, number in enumerate((90, 88, 90, 90, 93, 90))),
        "ranks 1 and 4 are behind or ahead (call 88 and 93, the others 90)",
        "if call 90 was another collective on ranks 1 and 4, mend",
    ),
    "another operation with the same number": (
        watchdog(0) + watchdog(1, operation="BROADCAST") + watchdog(2),
        "rank 1 is in another call: broadcast number 512, while ranks 0 and 2 wait in all_reduce",
        "same order",
    ),
    "another size": (
        watchdog(0) + watchdog(1).replace("NumelIn=8", "NumelIn=9") + watchdog(2),
        "rank 1 is in a call of another size: all_reduce number 512 of 9 elements, while ranks 0 "
        "and 2 wait in all_reduce number 512 of 8 elements",
        "same order",
    ),
    "older torch without a number": (
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, "
        "Timeout(ms)=1800000) ran for 1800012 milliseconds before timing out.\n",
        "rank 2 waits in broadcast for a rank that is not in this log",
        "collect",
    ),
    "shared memory of NCCL": (
        "pod-a:77:91 [2] misc/shmutils.cc:71 NCCL WARN Error: failed to extend "
        "/dev/shm/nccl-Ab12Cd to 9637892 bytes\n",
        "/dev/shm is full on pod-a",
        "--shm-size",
    ),
    "shared memory of a data loader": (
        "RuntimeError: DataLoader worker (pid 91) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory. ERROR: Unexpected bus error "
        "encountered in worker. This might be caused by insufficient shared memory (shm).\n",
        "/dev/shm is full",
        "--shm-size",
    ),
    "the rank nearest to the message": (
        "1: [rank11]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n",
        "ended rank 11",
        "drain the node",
    ),
    "NCCL's mismatch": (
        "g5:39:41 [7] init.cc:1247 NCCL WARN Mismatched collective detected, please check your "
        "collective calls at and around rank 12.\n",
        "NCCL found different collectives at or near rank 12",
        "NCCL_DEBUG_SUBSYS=COLL",
    ),
    "nothing listens": (
        "[E socket.cpp:957] [c10d] The client socket has timed out after 900s while trying to "
        "connect to (192.0.2.99, 29511).\n",
        "the job never formed: nothing listened at 192.0.2.99:29511 for 900 s (15 min), or",
        "MASTER_PORT",
    ),
    "nothing listens, in old torch": (
        "RuntimeError: The client socket has timed out after 60s while trying to connect to "
        "(node0, 1234).\n",
        "nothing listened at node0:1234 for 60 s, or",
        "MASTER_PORT",
    ),
    "nothing listens, in milliseconds": (
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while "
        "trying to connect to (10.0.0.1, 29500).\n",
        "nothing listened at 10.0.0.1:29500 for 600 s (10 min), or",
        "MASTER_PORT",
    ),
    "port taken": (
        "RuntimeError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use\n",
        "the job never formed: its port is taken",
        "--master-port",
    ),
    "desync report of torch": (
        "\t     [2, 5] finished collective #41, but didn't join collective #42 (count from 1)\n",
        "ranks 2 and 5 did not come to the call after number 41",
        "py-spy",
    ),
    "Hydra kills the others": (
        hydra(1, 9) + hydra(2, 11) + hydra(3, 9),
        "rank 2 on node0009 was killed by SIGSEGV, as mpirun reports",
        "core dump",
    ),
    "MPI_Abort": (
        "application called MPI_Abort(MPI_COMM_WORLD, 5) - process 3\n",
        "rank 3 ended the job with MPI_Abort",
        "last lines",
    ),
    "clients": (
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 "
        "clients joined.\n",
        "the job never formed: 3 of 4 ranks came",
        "did not start",
    ),
    "monitored barrier": (
        "RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 1800000 ms\n",
        "ranks 4-7 did not come to a barrier",
        "look at what ranks 4-7 did",
    ),
    "monitored barrier, one rank": (
        "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 30000 ms\n",
        "rank 3 did not come to a barrier",
        "look at what rank 3 did",
    ),
    "no transport": (
        "n3:47:49 [3] transport.cc:41 NCCL WARN No transport found for rank 3[3b000] -> rank "
        "0[d9000]\n",
        "ranks 3 and 0 have no way to reach each other",
        "NCCL_SOCKET_IFNAME",
    ),
    "peer": (
        "g9:18:22 [1] proxy.cc:1119 NCCL WARN [Proxy Service 9] Failed to execute operation "
        "Connect from rank 14, retcode 6\n",
        "the connection to rank 14 failed (NCCL's code 6)",
        "first error of rank 14",
    ),
    "DDP's parameters": (
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 62 params, while "
        "rank 1 has inconsistent 6 params.\n",
        "rank 1 has another model than the others",
        "same model",
    ),
    "no interface": (
        "[trainer0|0]:ncclInternalError: Internal check failed.\n[trainer0|0]:Last error:\n"
        "[trainer0|0]:ncclSocketInit: connecting to address  with family 59936 is neither "
        "AF_INET(2) nor AF_INET6(10)\n",
        "NCCL found no network interface that it can use",
        "NCCL_SOCKET_IFNAME",
    ),
    "locked memory": (
        "h2:41:46 [7] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot "
        "allocate memory\n",
        "could not register memory (Cannot allocate memory)",
        "ulimit -l",
    ),
    "libfabric's registration": (
        "192.0.2.3: ip-192-0-2-3:14:29 [5] register_mr_buffers:465 NCCL WARN NET/OFI Unable to "
        "register memory (type = 1) for device 0. RC: 12, Error: Cannot allocate memory\n",
        "could not register memory (Cannot allocate memory)",
        "memlock",
    ),
    "more ranks than GPUs": (
        "[rank3]: RuntimeError: CUDA error: invalid device ordinal\n",
        "rank 3",
        "",
    ),
    "the first timeout": (
        "[rank4]:[E327 ProcessGroupNCCL.cpp:1346] [PG 0 Rank 4] Received a dump signal due to a "
        "collective timeout from rank 2 and we will try our best to dump the debug info.\n",
        "rank 2",
        "",
    ),
    "the store is gone": (
        "[rank1]:[W1229 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67, "
        "addr=[h1]:36214, remote=[h0]:43145): Broken pipe\n",
        "rank 0",
        "",
    ),
    "no right to write to shared memory": (
        "h4:12:40 [0] misc/shmutils.cc:87 NCCL WARN Call to shm_open failed : Permission denied\n",
        "NCCL is not allowed to write to /dev/shm",
        "chmod 1777 /dev/shm",
    ),
    "two versions of NCCL": (
        "h4:12:40 [1] bootstrap.cc:98 NCCL WARN Mismatched NCCL version detected : rank 4 is "
        "22005 and this is 22105\n",
        "ranks use different versions of NCCL",
        "install the same torch and NCCL",
    ),
    "the shared memory of a rank that is gone": (
        "h4:12:40 [1] misc/shmutils.cc:64 NCCL WARN Error while attaching to shared memory segment "
        "/dev/shm/nccl-Zk31 (size 5767520), error: No such file or directory (2)\n",
        "a rank did not find the shared memory of another rank of its host",
        "--ipc=host",
    ),
    "a data-loader worker is killed": (
        "[rank2]: RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. \n",
        "data-loader worker",
        "oom",
    ),
    "disk full": (
        "OSError: [Errno 28] No space left on device: '/scratch/step-900.pt'\n",
        "a disk is full",
        "free space",
    ),
    "stopped by a signal": (
        "rank 3: process 4711 is in state T (stopped)\n",
        "rank 3 (process 4711) is stopped by a signal or a debugger",
        "kill -CONT 4711",
    ),
    "torch.multiprocessing.spawn": (
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal "
        "SIGSEGV\n",
        "rank 1 ended with signal SIGSEGV, as torch.multiprocessing.spawn reports",
        "last lines of this rank",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_paste_leads_to_its_cause_and_what_to_do(name, tmp_path, capsys):
    content, says, remedy = TABLE[name]
    path = tmp_path / "paste.log"
    path.write_text(content)
    assert main(["postmortem", str(path)]) == 0
    first = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert says in first
    assert remedy in first


@pytest.mark.parametrize("name", TABLE)
def test_a_paste_is_recognised(name, tmp_path, capsys):
    path = tmp_path / "paste.log"
    path.write_text(TABLE[name][0])
    main([str(path)])
    assert f"answered by: torchcoll postmortem {path}\n" in capsys.readouterr().out


def test_no_innocent_is_named_where_ranks_of_the_paste_report_otherwise(tmp_path, capsys):
    """Ranks 2 and 3 report without a timeout of their own: rank 1 may have been cut away."""
    path = tmp_path / "paste.log"
    more = "[rank3]:[E ProcessGroupNCCL.cpp:1664] [PG 1 Rank 3] Exception detected by watchdog\n"
    path.write_text(watchdog(0) + watchdog(4) + watchdog(5) + more)
    main(["postmortem", str(path)])
    first = capsys.readouterr().out
    assert first.startswith("ranks 0 and 4-5 wait in all_reduce number 512")
    assert "Probably" not in first


def test_the_next_line_may_be_of_another_rank(tmp_path, capsys):
    path = tmp_path / "paste.log"
    path.write_text(f"  what():  CUDA error: uncorrectable ECC error\n{watchdog(0)}{watchdog(1)}")
    main(["postmortem", str(path)])
    assert "an uncorrectable memory error of the GPU ended a rank\n" in capsys.readouterr().out


def test_the_line_of_the_rank_that_is_behind_is_evidence(tmp_path, capsys):
    path = tmp_path / "paste.log"
    path.write_text(watchdog(0, 90) + watchdog(1, 89) + watchdog(2, 90))
    main(["postmortem", str(path)])
    out = " ".join(capsys.readouterr().out.split())
    assert "evidence: rank 1: a call did not end in time" not in out
    assert re.search(r"evidence: rank 1: Watchdog caught .{0,60}SeqNum=89.*\[paste\.log:2\]", out)
    assert "the launcher itself printed" not in out


def test_an_exception_that_repeats_a_line_is_not_quoted_again(tmp_path, capsys):
    text = "Rank 3 failed to pass monitoredBarrier in 30000 ms"
    (tmp_path / "paste.log").write_text(f"[rank0]:[E] {text}\nRuntimeError: {text}\n")
    main(["postmortem", str(tmp_path)])
    assert capsys.readouterr().out.count(text) == 1


def table_of(rank, local):
    """What torchrun prints where only this rank failed."""
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/home/u/train.py", line 301, in <module>\n'
        f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "Failures:\n  <NO_OTHER_FAILURES>\n---\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-11-28_14:00:11\n  host      : node03\n"
        f"  rank      : {rank} (local_rank: {local})\n  exitcode  : 1 (pid: 4105)\n"
        "  error_file: <N/A>\n  traceback : To enable traceback see: ...\n====\n"
    )


@pytest.mark.parametrize(
    ("local", "certainty", "reason"),
    [
        (5, "(likely)", "torchrun on node03 reports no other failure"),
        (1, "(likely)", "no file says anything about ranks 0-3, which may have failed before"),
    ],
)
def test_torchrun_accounts_for_the_other_ranks_of_its_host(
    local, certainty, reason, tmp_path, capsys
):
    (tmp_path / "torchrun.log").write_text(table_of(5, local))
    main(["postmortem", str(tmp_path)])
    out = " ".join(capsys.readouterr().out.split())
    assert f"ran out of device memory {certainty}" in out
    assert reason in out
    assert ("no file says" in out) == (local == 1)


def test_an_xid_is_evidence_whatever_ended_the_job(tmp_path, capsys):
    (tmp_path / "torchrun.log").write_text(table_of(5, 5))
    xid = "NVRM: Xid (PCI:0000:52:00): 31, pid=3002, name=python, Ch 1, MMU Fault"
    (tmp_path / "dmesg.txt").write_text(f"[1234.1] {xid}\n")
    main(["postmortem", str(tmp_path)])
    out = " ".join(capsys.readouterr().out.split())
    assert "rank 5 on node03 ran out of device memory" in out
    assert f"evidence: [1234.1] {xid}" in out


@pytest.mark.parametrize(
    ("name", "stamp"),
    [
        ("h7-dmesg.txt", "[2026-03-21T02:01:11,204118+01:00] "),
        ("dmesg.h7.log", "[Sat Mar 21 01:01:11 2026] "),
        ("kern.log", "Mar 21 01:01:11 h7 kernel: [  812.204118] "),
    ],
)
@pytest.mark.parametrize(
    ("xid", "says", "remedy"),
    [
        ("79, pid=812, name=python3, GPU has fallen off the bus.", "(Xid 79)", "seat before"),
        ("48, pid=812, DBE (double bit error)", "memory error of the GPU", "-q -d ECC"),
    ],
)
def test_an_xid_explains_an_error_of_cuda_on_its_host(
    name, stamp, xid, says, remedy, tmp_path, capsys
):
    (tmp_path / "slurm-41.out").write_text(
        "5: [rank5]: Traceback (most recent call last):\n"
        '5: [rank5]:   File "/src/fit.py", line 71, in step\n'
        "5: [rank5]:     out = model(batch)\n"
        "5: [rank5]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"
        + watchdog(2, prefix="2: ")
        + "srun: error: h7: task 5: Exited with exit code 1\n"
    )
    after = "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    lines = [f"{stamp}NVRM: Xid (PCI:0000:3b:00): {text}\n" for text in (xid, xid, after)]
    (tmp_path / name).write_text("".join(lines))
    assert main(["postmortem", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "rank 5 on h7 ended with a fault of its hardware" in out
    assert says in out and remedy in out and "drain h7 and reboot it" in out
    assert "fix src/fit.py" not in out
    for host, when in (("h8", stamp), ("h7", stamp.replace("21", "01", 1))):
        text = "".join(lines).replace(stamp, when).replace("h7 kernel", f"{host} kernel")
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name.replace("h7", host)).write_text(text)
        main(["postmortem", str(tmp_path)])
        out = capsys.readouterr().out
        assert "[src/fit.py:71 step]" in out and "hardware" not in out, (host, when)
        (tmp_path / name.replace("h7", host)).unlink()


def test_a_log_of_a_healthy_job_says_nothing(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {n} loss {1 / n:.3f}\n" for n in range(1, 200)))
    assert main(["postmortem", str(path)]) == 3


def test_an_unknown_failure_is_quoted(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text("step 1\nstep 2\nE77 flow: fatal: the capacitor is empty\nbye\n")
    assert main(["postmortem", str(path)]) == 3
    assert "failure is: E77 flow: fatal: the capacitor is empty." in capsys.readouterr().err


def test_numbers_of_any_length_are_no_traceback(tmp_path):
    path = tmp_path / "paste.log"
    path.write_text(f"failed (exitcode: {'9' * 5000}) local_rank: 1\n{watchdog('9' * 5000)}")
    assert main(["postmortem", str(path)]) in (0, 3)


def test_each_text_has_a_source_and_words_to_look_for_first():
    """Without such words a console of 300 MB takes half a second for each pattern."""
    assert [text.says for text in TEXTS if not re.match(r"[\w ]{2,}", text.source)] == []
    assert [text.says for text in TEXTS if not text.literals] == []


def test_each_text_has_a_sample():
    samples = [content for content, _, _ in TABLE.values()]
    samples += [path.read_text() for path in sorted(PUBLIC.glob("*.log"))]
    without = [text.says for text in TEXTS if not any(map(text.pattern.search, samples))]
    assert without == []
