"""oneCCL's log of 2021.14 and 2022.2, at its levels warn, info and debug."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Choice
from torchcoll.libraries.job_logs import job_log
from torchcoll.libraries.oneccl.log import OneCclLogReader, Selected, choices_of, jobs

OF_2021 = "2026:11:20-10:39:35:( 8707) |CCL_{}| "
OF_2022 = "2026:11:20-10:52:30:20751:[0] |CCL_{}| "
EARLY_2022 = "2026:11:20-10:52:29:20752 |CCL_{}| "  # before the rank is known


def read(*lines: str, file: str = "a.txt") -> OneCclLogReader:
    reader = OneCclLogReader(file)
    reader.read(f"{line}\n".encode() for line in lines)
    return reader


def info(text: str, prefix: str = OF_2022, level: str = "INFO") -> str:
    return prefix.format(level) + text


@pytest.mark.parametrize("prefix", [OF_2021, OF_2022, EARLY_2022, "[0] " + OF_2021])
def test_both_forms_of_the_prefix(prefix):
    reader = read(
        info("library version: Gold-2021.14.0 2024-10-16T 10:56:37Z (HEAD/47c53310)", prefix),
        info("libfabric version: 1.21.0-impi", prefix),
        info("process launcher: none, local_proc_idx: 0, local_proc_count: 2", prefix),
        info("provider: tcp", prefix),
        info("atl-ofi:", prefix),
        "{",
        "  prov_count: 1",
        "}",
        "rank 0/2 backend=ccl init=6.6 ms",
    )
    (process,) = reader.processes
    assert process.version == "Gold-2021.14.0 2024-10-16T 10:56:37Z (HEAD/47c53310)"
    facts = process.libfabric, process.launcher, process.provider, process.transport
    assert facts == ("1.21.0-impi", "none", "tcp", "atl-ofi")
    assert reader.tally.counts == {"understood": 5, "known": 3, "other": 1}


def test_values_and_what_is_not_the_default():
    reader = read(
        info("value of CCL_WORKER_OFFLOAD changed to be 0 (default:1)", level="WARN"),
        info("env_parser.hpp:108 set_value: value of CCL_X changed to be a b (default:<c>)"),
        info("CCL_ALLREDUCE: ring:0-8192;direct:8193-max"),
        info("CCL_ALLGATHER: <not specified>"),
        info("did not find MPI-launcher specific variables", level="WARN"),
    )
    (process,) = reader.processes
    assert process.changed == {"CCL_WORKER_OFFLOAD": ("0", "1"), "CCL_X": ("a b", "<c>")}
    assert process.warnings == {"did not find MPI-launcher specific variables": 1}


def test_the_selection_tables_of_debug():
    reader = read(
        info("selector_impl.hpp:211 print: ", level="DEBUG"),
        "allreduce selection",
        "  main table",
        "    [0 - max]: topo",
        "  fallback table",
        "    [0 - 8192]: recursive_doubling",
        "    [8193 - max]: ring",
        "",
        info("comm.cpp:1 init: {", level="DEBUG"),
        "   { rank: 0, size: 2, id: 2 }",
        "}",
        "main table",  # of another program
    )
    assert list(reader.processes[0].selection) == [
        Selected("allreduce", "main", 0, None, "topo"),
        Selected("allreduce", "fallback", 0, 8192, "recursive_doubling"),
        Selected("allreduce", "fallback", 8193, None, "ring"),
    ]
    assert reader.tally.counts == {"known": 4, "understood": 6, "other": 2}


@pytest.mark.parametrize(
    ("line", "call"),
    [
        (
            "selector_impl.hpp:355 get: selected algo: coll alltoall, count 1048576, algo scatter",
            ("alltoall", 1048576, "scatter"),
        ),
        ("selected algo: coll allreduce, count 4, algo 2d", ("allreduce", 4, "2d")),
        (
            "invoking small allreduce kernel, count:256 datatype: FLOAT32",
            ("allreduce", 256, "sycl/small"),
        ),
        (
            "invoking allreduce LL256 kernel arc_allreduce, count:1 datatype: FLOAT32",
            ("allreduce", 1, "sycl/LL256 arc_allreduce"),
        ),
        (
            "|CCL_SYCL| broadcast selects small kernel, count: 12 datatype: INT8",
            ("broadcast", 12, "sycl/small"),
        ),
        # 2021 asks the selector twice, a kernel is told again when it is done, and that there will
        # be one of SYCL's is told before.
        ("selected algo: coll allreduce, count 0, algo direct", None),
        ("selected algo: coll allreduce, algo topo sycl", None),
        ("invoking small allreduce kernel, count:256 datatype: FLOAT32 done", None),
        ("|CCL_SYCL| allreduce selects sycl-kernels count: 256, datatype: FLOAT32", None),
    ],
)
def test_calls(line, call):
    reader = read(info(line, level="DEBUG"))
    (process,) = reader.processes
    assert [(c.function, c.size, c.label) for c in process.calls] == ([call] if call else [])
    assert reader.tally.counts == {"understood" if call else "known": 1}


def test_a_call_that_was_cut():
    reader = read(info("selected algo: coll allreduce, count 4, al", level="DEBUG"))
    assert reader.tally.counts == {"cut": 1}


def test_two_lines_whose_end_came_too_late():
    line = info("selected algo: coll allreduce, count 4, algo ring", OF_2021, "DEBUG")
    second_line = line.replace("8707", "8708")
    reader = read(line + second_line, "")
    assert [(p.number, sum(p.calls.values())) for p in reader.processes] == [(8707, 1), (8708, 1)]
    assert [c.algorithm for p in reader.processes for c in p.calls] == ["ring", "ring"]
    assert reader.tally.counts == {"understood": 1, "other": 1}


def test_what_went_wrong():
    text = "selector_allreduce.cpp:93 algo_from_str: EXCEPTION: unknown algorithm name 'bogus'"
    reader = read(info(text, level="ERROR"), "[vm:1:0:1] Caught signal 11 (Segmentation fault)")
    assert list(reader.processes[0].warnings) == [
        text,
        "[vm:1:0:1] Caught signal 11 (Segmentation fault)",
    ]


# As UCX writes it: the pid is padded, and a host may have a name with a blank.
@pytest.mark.parametrize("place", ["vm:8708:0:8708", "vm:8708 :0:8708", "GB10 host:8708:0:8708"])
def test_a_crash_is_that_of_a_rank(place):
    text = f"[{place}] Caught signal 11 (Segmentation fault: address not mapped to object at (nil))"
    reader = read(coord(0, 2, 8707), coord(1, 2, 8708), coord(0, 2, 8707), text)
    (job,) = jobs([reader])
    assert job.crashes == ["rank 1 (Segmentation fault)"]
    reader = read(info("value of CCL_LOG_LEVEL changed to be info (default:warn)", OF_2021), text)
    (job,) = jobs([reader])
    assert [process.crash for process in job.processes] == ["Segmentation fault"]


def coord(rank: int, size: int, number: int) -> str:
    text = f"coord: global [ idx {rank}, cnt {size} ], local [ idx {rank}, cnt {size} ]"
    return info(text, f"2026:11:20-10:39:35:({number:5d}) |CCL_{{}}| ")


def test_processes_of_one_run_and_of_several():
    first_run = [read(coord(rank, 2, rank + 1), file=f"a{rank}.txt") for rank in range(2)]
    second_run = [
        read(coord(0, 2, 7), coord(1, 2, 8), info("CCL_LOG_LEVEL: info", OF_2021), file="b.txt")
    ]
    result = jobs([*first_run, *second_run])
    assert [(job.files, job.size, len(job.processes)) for job in result] == [
        (["a0.txt", "a1.txt"], 2, 2),
        (["b.txt"], 2, 3),  # with a thread that does not say its rank
    ]


@pytest.mark.parametrize(
    ("collective", "function", "size", "choices"),
    [
        ("all_reduce", "allreduce", 1000, ["ring"]),
        ("all_gather", "allgatherv", 4000, ["ring"]),  # the selector adds the ranks up
        ("all_gather", "allgather", 1000, ["ring"]),
        ("all_gather", "allgather", 999, []),
        ("all_reduce", "allgather", 1000, []),
        ("sendrecv", "send", 1000, []),
    ],
)
def test_choices_of_a_case(collective, function, size, choices):
    case = Case(collective, 16000, "float32", None, None, True, "synchronized", "ccl", "cpu")
    result = CaseResult(case, "ok", 4, count=1000, size_bytes=16000)
    line = info(f"selected algo: coll {function}, count {size}, algo ring", level="DEBUG")
    calls = read(line).processes[0].calls
    assert choices_of(result, calls) == [Choice(name) for name in choices]


GOOD = [
    coord(0, 2, 7),
    info("value of CCL_X changed to be 0 (default:1)", level="WARN"),
    info("selector_impl.hpp:211 print: ", level="DEBUG"),
    "allreduce selection",
    "  main table",
    "    [0 - 8192]: topo",
    info("selected algo: coll allreduce, count 4, algo ring", level="DEBUG"),
]


@given(
    st.integers(0, len(GOOD) - 1), st.integers(0, 100), st.integers(0, 30), st.sampled_from(GOOD)
)
def test_edited_lines_are_read_or_counted(number, start, length, inserted):
    line = GOOD[number]
    lines = [*GOOD[:number], line[:start] + inserted + line[start + length :], *GOOD[number + 1 :]]
    reader = read(*lines)
    assert reader.tally.lines == len(GOOD)
    assert sum(len(job.processes) for job in jobs([reader])) == len(reader.processes)


def test_threads_are_no_processes():
    """2021 logs ids of threads: the bindings call from other threads than the one that created the
    communicator.
    """
    readers = [
        read(
            coord(rank, 2, 10 + rank),
            info("CCL_LOG_LEVEL: debug", f"2026:11:22-07:28:17:({20 + rank:5d}) |CCL_{{}}| "),
            file=f"oneccl-rank{rank}.log",
        )
        for rank in range(2)
    ]
    (job,) = jobs(readers)
    assert (job.whole, job.threads, job.size) == (2, 4, 2)
    facts = job_log(job).facts
    assert (facts["processes"], facts["threads"], facts["ranks"]) == (2, 4, 2)


def test_threads_without_a_rank():
    facts = job_log(jobs([read(info("CCL_LOG_LEVEL: info", OF_2021))])[0]).facts
    assert facts["threads"] == 1 and "processes" not in facts


def test_2022_numbers_processes():
    (job,) = jobs([read(info("CCL_LOG_LEVEL: info", EARLY_2022), file="a.txt")])
    facts = job_log(job).facts
    assert facts["processes"] == 1 and "threads" not in facts
