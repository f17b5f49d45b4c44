"""Lines of torch's C++ code and of torchrun. Texts are of real logs: the issue is named with each."""

# ruff: noqa: E501
# Lines of logs are as long as they are.
from __future__ import annotations

from pathlib import Path

import pytest

from tests.postmortem.logs import events, read_log


def test_watchdog_and_its_numbers(tmp_path: Path) -> None:
    # XPixelGroup/BasicSR 737, torch 2.6
    evidence = read_log(
        tmp_path,
        "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, "
        "NumelOut=9801523, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
        "[rank1]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID "
        "0(default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at "
        "work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807.\n",
    )
    (event,) = events(evidence)
    assert (event.kind, event.rank, event.number, event.collective) == (
        "timeout",
        1,
        808,
        "all_reduce",
    )
    assert event.group == "0"
    assert event.place.line == 1
    assert evidence.groups["0"].description == "default_pg"
    assert evidence.last_number == {(1, "0"): 811}
    assert evidence.last_completed == {(1, "0"): 807}
    assert event.when_ns is not None and event.when_ns % 10**9 == 903881913


# torch 2.11 with NCCL 2.28.9: the watchdog's complaint about an error in the background.
_ASYNC = (
    "[rank2]:[E1128 03:15:57.080222286 ProcessGroupNCCL.cpp:612] [Rank 2] Collective WorkNCCL("
    "SeqNum={failed}, OpType=_ALLGATHER_BASE, NumelIn=1024, NumelOut=3072, Timeout(ms)=20000) "
    "raised the following async exception: NCCL error: {error}, NCCL version 2.28.9\n"
    "{name}: A call failed.\n"
    "Last error:\n"
    "{last}\n"
    "[rank2]:[E1128 03:15:57.081328463 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) "
    "Rank 2]  failure detected by watchdog at work sequence id: {failed} PG status: last enqueued "
    "work: 10, last completed work: {completed}\n"
)


@pytest.mark.parametrize(
    ("failed", "named"),
    [
        (10, ("0", 10, "all_gather")),
        # Calls 7 to 10 were under way, and any of them may be the one in which the rank was.
        (7, (None, None, None)),
    ],
)
def test_an_error_in_the_background_names_a_call_only_if_no_later_was_issued(
    tmp_path: Path, failed: int, named: tuple[object, ...]
) -> None:
    text = _ASYNC.format(
        failed=failed,
        completed=failed - 1,
        error="remote process exited or there was a network error",
        name="ncclRemoteError",
        last="socketProgress: Connection closed by remote peer localhost<57532>",
    )
    (event,) = events(read_log(tmp_path, text))
    assert (event.kind, event.rank) == ("peer_lost", 2)
    assert (event.group, event.number, event.collective) == named


def test_a_message_that_nccl_truncated_is_a_mismatch(tmp_path: Path) -> None:
    text = _ASYNC.format(
        failed=8,
        completed=7,
        error="invalid usage (run with NCCL_DEBUG=WARN for details)",
        name="ncclInvalidUsage",
        last="NET/Socket : peer 127.0.0.1<34370> message truncated : receiving 87424 bytes "
        "instead of 65536. There may be a mismatch in collective sizes",
    )
    (event,) = events(read_log(tmp_path, text, "rank2.log"))
    assert (event.kind, event.rank, event.number, event.place.line) == ("mismatch", 2, None, 4)


def test_an_error_of_nccl_in_a_traceback_is_not_of_the_call_that_raised(tmp_path: Path) -> None:
    text = (
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/home/a/train.py", line 28, in <module>\n'
        "[rank2]:     dist.all_gather_into_tensor(out, y)\n"
        '[rank2]:   File "/venv/lib/python3.12/site-packages/torch/distributed/'
        'distributed_c10d.py", line 4186, in all_gather_into_tensor\n'
        "[rank2]:     work = group._allgather_base(output_tensor, input_tensor, opts)\n"
        "[rank2]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3780, "
        "remote process exited or there was a network error, NCCL version 2.28.9\n"
    )
    (event,) = events(read_log(tmp_path, text))
    assert (event.kind, event.rank, event.collective) == ("peer_lost", 2, None)


def test_rank_in_a_subgroup_is_not_the_rank(tmp_path: Path) -> None:
    # NVIDIA-NeMo/RL, Ray's prefix; rank 9 of the world is rank 1 of its group
    evidence = read_log(
        tmp_path,
        "(MegatronPolicyWorker[rank=9] pid=3098846) [rank9]:[E129 16:38:47.769886452 "
        "ProcessGroupNCCL.cpp:2241] [PG ID 12 PG GUID 100(EXPERT_MODEL_PARALLEL_GROUP) Rank 1]  "
        "failure detected by watchdog at work sequence id: 52229 PG status: last enqueued work: "
        "52258, last completed work: 52228\n",
    )
    assert evidence.last_number == {(9, "100"): 52258}
    assert evidence.last_completed == {(9, "100"): 52228}
    assert evidence.groups["100"].description == "EXPERT_MODEL_PARALLEL_GROUP"


def test_a_rank_that_only_heard_of_a_timeout_blames_nobody(tmp_path: Path) -> None:
    # a job of 16 ranks on Frontier: ranks 8 to 15 waited in work 167, rank 2 did not come to it
    evidence = read_log(
        tmp_path,
        "[rank2]:[E703 17:54:18.884528282 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID "
        "0(default_pg) Rank 2] Received a dump signal due to a collective timeout from  rank 10 "
        "and we will try our best to dump the debug info. Last enqueued NCCL work: 166, last "
        "completed NCCL work: 166.This is most likely caused by incorrect usages\n",
    )
    assert not evidence.events
    assert evidence.last_number == evidence.last_completed == {(2, "0"): 166}


def test_watchdog_of_torch_2_1_within_a_progress_bar(tmp_path: Path) -> None:
    # pytorch 118369
    evidence = read_log(
        tmp_path,
        "Epoch 0:   6%|6  | 32039/500150\rEpoch 0:   6%|6  | 32040/500150 [6:28:43]"
        "[E ProcessGroupNCCL.cpp:458] [Rank 7] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=64088, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25625251 "
        "milliseconds before timing out.\n",
    )
    (event,) = events(evidence, "timeout")
    assert (event.rank, event.number) == (7, 64088)


def test_fingerprints_of_debug_mode_name_both_ranks(tmp_path: Path) -> None:
    # modelscope/ms-swift 9443
    evidence = read_log(
        tmp_path,
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/a/train.py", line 121, in <module>\n'
        "[rank1]:     main()\n"
        "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running "
        "collective: CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUCE, "
        "TensorShape=[195812480], TensorDtypes=BFloat16, TensorDeviceTypes=TensorOptions("
        "dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false "
        "(default), pinned_memory=false (default), memory_format=(nullopt))), but Rank 0 is "
        "running collective: CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUCE, "
        "TensorShape=[51123456], TensorDtypes=BFloat16, TensorDeviceTypes=TensorOptions("
        "dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false "
        "(default), pinned_memory=false (default), memory_format=(nullopt))).Collectives differ "
        "in the following aspects: \tTensor Tensor shapes: 195812480vs 51123456\n",
    )
    (event,) = events(evidence)
    assert (event.kind, event.rank, event.about) == ("mismatch", 1, (0,))
    assert event.collective == "all_reduce"
    assert "Tensor shapes: 195812480vs 51123456" in event.text
    assert "dtype" not in event.text  # it would be taken for what differs


def test_monitored_barrier_names_who_is_missing(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        "[E1124 18:00:00.123456789 ProcessGroupGloo.cpp:67] [Rank 0]: Ranks 2, 5 failed to pass "
        "monitoredBarrier in 30000 ms\n",
    )
    (event,) = events(evidence)
    assert (event.kind, event.rank, event.about) == ("timeout", 0, (2, 5))


# Of torch 2.13 with gloo on one host, shortened: rank 1 of three was killed.
_KILLED = """\
[rank2]: Traceback (most recent call last):
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


def test_torchrun_tells_who_died_and_whom_it_ended_itself(tmp_path: Path) -> None:
    evidence = read_log(tmp_path, _KILLED)
    (killed,) = events(evidence, "killed")
    assert (killed.rank, killed.signal, killed.pid, killed.node) == (9, 9, 26707, "node07")
    # Rank 8 also died of SIGKILL, which torchrun sent.
    (ended,) = events(evidence, "exit")
    assert (ended.rank, ended.signal, ended.exit_code) == (8, None, None)
    (lost,) = events(evidence, "peer_lost")
    assert (lost.rank, lost.addresses, lost.collective) == (2, ("10.0.0.2",), "all_reduce")
    assert not events(evidence, "exception")  # the launcher's own traceback is none
    assert evidence.pids == {8: 26706, 9: 26707}
    assert evidence.nodes == {8: "node07", 9: "node07"}


def test_torchrun_is_told_to_end(tmp_path: Path) -> None:
    # torch/distributed/elastic/agent/server/api.py
    evidence = read_log(
        tmp_path,
        "W1124 20:08:34.653292 22352 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers\n",
    )
    (event,) = events(evidence)
    assert (event.kind, event.rank, event.signal) == ("canceled", None, 15)


def test_gloo_mismatch_without_a_rank_is_of_the_rank_that_aborted(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at /__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] "
        "op.preamble.length <= op.nbytes. 668 vs 336. Received data size doesn't match expected "
        "size. Is there a distributed collective mismatch in your code?\n"
        "Root Cause (first observed failure):\n"
        "[0]:\n"
        "  time      : 2026-11-24_19:23:37\n"
        "  host      : node07\n"
        "  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : -6 (pid: 27298)  (SIGABRT)\n"
        "  error_file: <N/A>\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 27298\n",
    )
    (event,) = events(evidence, "mismatch")
    assert event.rank == 1
    assert [(e.rank, e.signal) for e in events(evidence, "exit", "killed")] == [(1, None)]


@pytest.mark.parametrize("first", ["-9", "1"])
def test_without_its_warnings_sigkill_is_torchruns_if_the_first_failure_is_none(
    first: str, tmp_path: Path
) -> None:
    """After a rank that was killed, somebody may have killed the other ranks as well."""
    table = _KILLED[_KILLED.index("Failures:") :]
    second = table[table.index("[1]:") : table.index("-----", table.index("[1]:"))]
    second = second.replace("26706", "26709").replace("rank      : 8", "rank      : 7")
    table = table.replace("-9 (pid: 26707)", f"{first} (pid: 26707)")
    evidence = read_log(tmp_path, table.replace("Failures:\n", f"Failures:\n{second}"))
    kind, number = ("killed", 9) if first == "-9" else ("exit", None)
    assert [(e.kind, e.rank, e.signal) for e in evidence.events] == [
        (kind, 7, number),
        (kind, 8, number),
        (kind, 9, number),
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ValueError: bad sample 17", "exception"),
        ("MemoryError", "out_of_memory"),
        # pytorch 2.5, torch.OutOfMemoryError
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a "
            "total capacity of 79.10 GiB",
            "out_of_memory",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 1099511627776 bytes.",
            "out_of_memory",
        ),
        ("OSError: [Errno 28] No space left on device: '/ckpt/step_100.pt'", "disk_full"),
        (
            "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly",
            "exception",
        ),
        (
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was "
            "likely closed. Did the remote server shutdown or crash?",
            "peer_lost",
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed "
            "out waiting 1800000ms for recv operation to complete",
            "timeout",
        ),
        (
            "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /a/b",
            "timeout",
        ),
        ("BrokenPipeError: [Errno 32] Broken pipe", "peer_lost"),
    ],
)
def test_exceptions_by_what_they_say(tmp_path: Path, text: str, kind: str) -> None:
    evidence = read_log(
        tmp_path,
        "step 1 loss 2.5\n"
        "Traceback (most recent call last):\n"
        '  File "/home/a/train.py", line 88, in load\n'
        "    item = read(path)\n"
        '  File "/venv/lib/python3.11/site-packages/numpy/core.py", line 12, in read\n'
        f"{text}\n",
        "logs/rank3.err",
    )
    (event,) = events(evidence)
    assert (event.kind, event.rank, event.place.line) == (kind, 3, 6)
    assert "train.py:88 load" in event.text


def test_tracebacks_of_two_ranks_in_one_file(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        "0: Traceback (most recent call last):\n"
        "3: Traceback (most recent call last):\n"
        '3:   File "a.py", line 1, in f\n'
        '0:   File "b.py", line 2, in g\n'
        "0: KeyError: 'x'\n"
        "3: ValueError: y\n"
        "0: \n3: \n1: a\n1: b\n",
    )
    assert [(e.rank, e.text) for e in evidence.events] == [
        (0, "KeyError: 'x' [b.py:2 g]"),
        (3, "ValueError: y [a.py:1 f]"),
    ]


def test_a_message_below_the_name_of_its_exception(tmp_path: Path) -> None:
    """As gloo's, after which the rank only noticed that another one was missing."""
    text = (
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "train.py", line 40, in main\n'
        "[rank2]: RuntimeError: \n"
        "[rank2]: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out "
        "waiting 6000ms for send operation to complete\n"
    )
    (event,) = events(read_log(tmp_path, text))
    assert (event.kind, event.rank, event.place.line) == ("timeout", 2, 3)


def test_an_exception_without_a_message_is_kept(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "t.py", line 4, in main\nRuntimeError:\n'
    (event,) = events(read_log(tmp_path, text, "rank1.log"))
    assert (event.kind, event.rank) == ("exception", 1)


def test_an_exception_that_the_rank_survived_is_not_reported(tmp_path: Path) -> None:
    head = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    evidence = read_log(
        tmp_path,
        f"{head}ConnectionError: wandb is away\n"
        + "step\n" * 400
        + f"{head}RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[10.0.0.2]:51414\n",
        "rank0.log",
    )
    assert [event.kind for event in evidence.events] == ["peer_lost"]


def test_colours_and_secrets_are_not_kept(tmp_path: Path) -> None:
    evidence = read_log(
        tmp_path,
        "\x1b[31m[rank4]: Traceback (most recent call last):\x1b[0m\n"
        '\x1b[31m[rank4]:   File "a.py", line 1, in f\x1b[0m\n'
        "\x1b[31m[rank4]: ValueError: api_key=hf_abcdefghijklmnopqrstuvwxyz0123\x1b[0m\n",
    )
    (event,) = events(evidence)
    assert event.rank == 4
    assert event.text.startswith("ValueError: ")
    assert "hf_" not in event.text and "\x1b" not in event.text


def test_labels_of_torchrun_are_ranks_of_the_host(tmp_path: Path) -> None:
    # On the second host of two with 8 ranks each, the label is default1 and the rank 9.
    evidence = read_log(
        tmp_path,
        "[default1]:[rank9]: Traceback (most recent call last):\n"
        '[default1]:[rank9]:   File "a.py", line 1, in f\n'
        "[default1]:[rank9]: ValueError: y\n"
        "[default2]:Fatal Python error: Segmentation fault\n",
    )
    assert [(e.kind, e.rank) for e in evidence.events] == [("exception", 9), ("killed", 10)]
    assert evidence.events[1].signal == 11
