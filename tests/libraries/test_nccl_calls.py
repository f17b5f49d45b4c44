"""TUNING lines of NCCL's versions with their sizes, and names of kernels."""

from __future__ import annotations

import pytest

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Choice
from torchcoll.libraries.logged import LoggedCall, ranges
from torchcoll.libraries.nccl.algorithms import choices_of, kernel_choice, logged_bytes, parse_call

TOTAL, PER_RANK = "total", "per rank"


@pytest.mark.parametrize(
    ("line", "call"),
    [
        # 2.20.5 to 2.22.3 (enqueue.cc:1498, :1613): numbers, and no function.
        ("1024 Bytes -> Algo 1 proto 0 time 12.5", ("", 1024, "RING", "LL", None, TOTAL)),
        ("65536 Bytes -> Algo 5 proto 2 time 1", ("", 65536, "NVLS_TREE", "SIMPLE", None, TOTAL)),
        # 2.23.4 (enqueue.cc:1855), where PAT is new.
        (
            "AllGather: 4096 Bytes -> Algo 6 proto 2 time 22.4",
            ("AllGather", 4096, "PAT", "SIMPLE", None, TOTAL),
        ),
        # 2.24.3 to 2.30.7: as in a log of 2.29.7.
        (
            "Broadcast: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
            ("Broadcast", 16384, "RING", "LL", 2, PER_RANK),
        ),
        # 2.31, 2.32; and blogs write the names so.
        (
            "AllReduce: 8 Bytes -> Algo NVLSTree proto Simple channel{Lo..Hi}={2..17} "
            "cgaClusterSize 4",
            ("AllReduce", 8, "NVLS_TREE", "SIMPLE", 16, PER_RANK),
        ),
        # 2.27 (enqueue.cc:1429), and with nWorks from 2.28 on.
        (
            "AllReduce [Symmetric]: 2097152 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 16 "
            "nthreads 512 nWorks 1",
            ("AllReduce", 2097152, "SYMMETRIC", "RSxLDMC_AGxSTMC", 16, PER_RANK),
        ),
        # 2.29 and 2.30 (ce_coll.cc:1435, :1431).
        (
            "AllGather [Copy Engine]: 1048576 Bytes -> cudaMemcpyBatchAsync",
            ("AllGather", 1048576, "COPY_ENGINE", "", None, PER_RANK),
        ),
        (
            "AlltoAll [Hierarchical CE]: 64 Bytes -> RMA proxy + CE",
            ("AlltoAll", 64, "HIERARCHICAL_CE", "", None, PER_RANK),
        ),
    ],
)
def test_formats_by_version(line, call):
    assert parse_call(line) == LoggedCall(*call)


@pytest.mark.parametrize(
    "line",
    [
        "Broadcast: 16384 Bytes -> Algo RING proto LL",  # LL, or the start of LL128
        "Broadcast: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1",  # 1, or 15
        "AllReduce: 8 Bytes -> Algo DOUBLE_TREE proto LL channel{Lo..Hi}={0..1}",
        "AllReduce: 8 Bytes -> Algo RING proto WARP channel{Lo..Hi}={0..1}",
        "1024 Bytes -> Algo 9 proto 0 time 1.0",
        "1024 Bytes -> Algo 1 proto",
        "AllReduce: opCount 3 sendbuff 0x7f count 8",
    ],
)
def test_a_line_that_is_not_whole_or_not_known_is_no_call(line):
    assert parse_call(line) is None


@pytest.mark.parametrize(
    ("collective", "basis", "logged"),
    [
        # S = 1 MiB on 8 ranks. 2.23 logs elementSize * ncclFuncMaxSendRecvCount, 2.24 the count.
        ("all_reduce", TOTAL, 1048576),
        ("all_reduce", PER_RANK, 1048576),
        ("all_gather", TOTAL, 1048576),
        ("all_gather", PER_RANK, 131072),
        ("reduce_scatter", TOTAL, 1048576),
        ("reduce_scatter", PER_RANK, 131072),
        ("broadcast", PER_RANK, 1048576),
    ],
)
def test_what_bytes_are_in_the_log(collective, basis, logged):
    assert logged_bytes(collective, 1 << 20, 8, basis) == logged


def result(collective: str, size_bytes: int, ranks: int = 8) -> CaseResult:
    case = Case(collective, size_bytes, "float32", None, None, True, "synchronized", "nccl", "cuda")
    return CaseResult(case, "ok", ranks, size_bytes=size_bytes)


def lines(*texts: str) -> list[LoggedCall]:
    return [call for text in texts if (call := parse_call(text))]


def test_choices_are_of_the_function_and_the_size():
    calls = lines(
        "AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",  # a barrier
        "AllGather: 131072 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3}",
        "AllGather: 131072 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3}",
        "AllGather: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}",
        "AllReduce: 131072 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..7}",
    )
    assert choices_of(result("all_gather", 1 << 20), calls) == [Choice("RING", "LL128", 4)]
    assert choices_of(result("reduce_scatter", 1 << 20), calls) == []
    # Calls of one case may be served by more than one.
    several = lines(
        "AllReduce: 64 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
        "AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
    )
    expected = [Choice("TREE", "LL", 1), Choice("RING", "LL", 2)]
    assert choices_of(result("all_reduce", 64), several) == expected


def test_up_to_2_22_no_function_is_named():
    calls = lines("4 Bytes -> Algo 0 proto 0 time 9.1", "1048576 Bytes -> Algo 1 proto 2 time 99.0")
    assert choices_of(result("all_gather", 1 << 20), calls) == [Choice("RING", "SIMPLE")]
    # The barrier of torch is an all-reduce of 4 bytes: whose line that is, nobody knows.
    assert choices_of(result("broadcast", 4), calls) == []


def test_what_has_no_choice():
    call = lines("AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}")
    assert choices_of(result("all_reduce", 64, ranks=1), call) == []
    assert choices_of(result("all_to_all", 64), call) == []
    assert choices_of(result("barrier", 0), lines("0 Bytes -> Algo 1 proto 0 time 1.0")) == []


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "RING/LL",
        ),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long)", "RING/LL"),
        ("ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclDevComm*)", "TREE/LL128"),  # before 2.19
        ("ncclDevKernel_AllReduce_Sum_f32_NVLS_TREE_SIMPLE", "NVLS_TREE/SIMPLE"),
        ("ncclDevKernel_AllReduce_Sum_f16_COLLNET_CHAIN_SIMPLE", "COLLNET_CHAIN/SIMPLE"),
        ("ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(ncclSymkDevArgs)", "SYMMETRIC/AGxLLMC_R"),
        ("ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)", "SYMMETRIC/LL"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)", None),
        ("void at::native::vectorized_elementwise_kernel<4>", None),
    ],
)
def test_the_name_of_a_kernel_is_a_hint(name, label):
    choice = kernel_choice(name)
    assert (choice and choice.label) == label
    if choice:
        assert choice.source == "kernel name"
        assert choice.text == f"{label}?"


def test_neighbouring_sizes_with_the_same_choice_are_one_range():
    from collections import Counter

    def call(size: int, protocol: str, channels: int) -> LoggedCall:
        return LoggedCall("AllReduce", size, "RING", protocol, channels, PER_RANK)

    calls = Counter(
        {
            call(8, "LL", 1): 3,
            call(64, "LL", 2): 2,
            call(512, "LL", 2): 1,
            call(512, "SIMPLE", 4): 1,
            call(4096, "SIMPLE", 8): 5,
        }
    )
    summary = [(r.low, r.high, r.labels, r.channels, r.calls, r.sizes) for r in ranges(calls)]
    assert summary == [
        (8, 64, ("RING/LL",), (1, 2), 5, 2),
        (512, 512, ("RING/LL", "RING/SIMPLE"), (2, 4), 2, 1),
        (4096, 4096, ("RING/SIMPLE",), (8,), 5, 1),
    ]
