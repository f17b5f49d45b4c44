"""oneCCL, OSU, PARAM, DeepSpeed, nccl-tests' JSON, plain tables."""

import gzip
import json
from pathlib import Path

import pytest
from error_form import error_text
from foreign_files import ONECCL, OSU, PARAM, RCCL, nccl_json

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UnreadableError, UsageError
from torchcoll.core.summary import summarise
from torchcoll.reading.base import collective_in
from torchcoll.reading.nccl_tests import version_text


def summary_rows(imported_file):
    return [summarise(result) for run in imported_file.runs for result in run.results]


@pytest.mark.parametrize(
    ("name", "size_bytes", "count"),
    [
        ("allreduce", 4096, 1024),
        ("bcast", 4096, 1024),
        ("allgather", 16384, 1024),  # 4096 B of each of 4 ranks
        ("allgatherv", 16384, 1024),
        ("alltoall", 16384, 1024),
        ("reduce_scatter", 4096, 256),  # 4096 B is the whole input
    ],
)
def test_oneccl_sizes_become_those_of_nccl_tests(imported, name, size_bytes, count):
    result = imported(ONECCL.format(names=name))
    row = summary_rows(result)[-1]
    assert (row.size_bytes, row.count, row.ranks) == (size_bytes, count, 4)
    assert (row.median_ns, row.statistic, row.calls) == (11250, "mean", 16)
    assert (row.backend, row.device, row.in_place) == ("ccl", "cpu", False)
    assert row.algbw_gbps == pytest.approx(size_bytes / 11250)
    reported = result.runs[0].results[-1].reported
    printed = {"allgather": "per rank", "allgatherv": "per rank", "alltoall": "per peer"}.get(name)
    assert (reported.size_bytes, reported.size_basis) == (
        (4096, printed) if printed else (None, "")
    )


def test_lines_of_oneccl_that_are_no_rows_are_not_refused(imported):
    text = ONECCL.format(names="allreduce")
    end = "# All done"
    result = imported(text.replace(end, f"the nodes were busy then, all of them\n{end}"))
    assert (result.refused, result.rows) == (imported(text).refused, imported(text).rows)


def test_load_reads_what_an_importer_reads(in_tmp_path):
    """The table of ``ONECCL`` has 4 ranks in the file; a table of sizes has none."""
    (in_tmp_path / "one.txt").write_text(ONECCL.format(names="allreduce"))
    (in_tmp_path / "packed.gz").write_bytes(gzip.compress(Path("one.txt").read_bytes()))
    for path in ("one.txt", Path("packed.gz")):
        run = torchcoll.load(path)
        assert (run.source["tool"], run.ranks) == ("oneCCL benchmark", 4)
        assert {result.case.collective for result in run.results} == {"all_reduce"}

    Path("t.csv").write_text("size,time (us)\n1024,10\n4096,20\n")
    run = torchcoll.load("t.csv", collective="allgather", ranks=8)
    summary = [
        (r.case.collective, r.case.size_bytes, r.ranks, r.reported.time_ns) for r in run.results
    ]
    assert summary == [("all_gather", 1024, 8, 10e3), ("all_gather", 4096, 8, 20e3)]
    assert torchcoll.load("t.csv", collective="allgather").ranks == 0  # unknown


def test_what_load_refuses(in_tmp_path):
    def refused(error, path, **options):
        with pytest.raises(error) as caught:
            torchcoll.load(path, **options)
        return str(caught.value)

    Path("bin").write_bytes(b"\x7fELF\x02\x01\x01\x00")
    assert refused(UnreadableError, "bin") == error_text("file", "bin", "text; this one is binary")
    Path("prose").write_text("no table at all\n")
    assert refused(UnreadableError, "prose") == (
        error_text(
            "file",
            "prose",
            "a torchcoll result file, output of a benchmark, a log, or a trace. It begins with "
            "'no table at all'. Give the lines of the benchmark itself, with the heading of its "
            "table.",
        )
    )
    ours = Path(__file__).parents[2] / "results" / "h200-8gpu-kernels" / "nvidia.jsonl"
    assert refused(UsageError, ours, ranks=8) == (
        error_text("ranks", "8", f"none with {ours}: a result file has its own")
    )
    assert refused(UsageError, "prose", collective="all_sums").startswith(
        error_text("collective", "all_sums")
    )
    assert refused(UsageError, "prose", ranks=0).startswith(error_text("ranks", "0", "1 to "))


def test_oneccl_times_an_empty_reduce_scatter(imported):
    result = imported(ONECCL.format(names="reduce_scatter"))
    assert result.rows == 1
    assert [(r.line, r.reason.split(":")[0]) for r in result.refused] == [
        (16, "0 bytes"),
        (17, "reduce_scatter of 3 elements on 4 ranks does nothing in oneCCL"),
    ]


def test_oneccl_sums_are_refused(imported):
    result = imported(ONECCL.format(names="allreduce bcast"))
    assert (result.rows, len(result.refused)) == (0, 3)
    assert "the sum over several collectives (allreduce, bcast)" in result.refused[0].reason


CSV = (
    "#ranks,collective,reduction,dtype,dtype_size,#elements/buffer,message_size,#buffers,"
    "#repetitions,t_min[usec],t_max[usec],t_avg[usec],stddev[%],wait_t_avg[usec]\n"
)


def test_oneccl_csv(imported):
    result = imported(
        CSV
        + "2,allreduce,sum,float32,4,1024,4096,1,16,10.2024,12.3024,11.2524,9.33125,4.2\n"
        + "2,allgather,,bfloat16,2,1024,2048,2,16,20.1,22.2,21.1,1.2,8.8\n"
        + "2,allgather,,bfloat16,2,10"
    )
    first, second = summary_rows(result)
    assert (first.collective, first.op, first.median_ns) == ("all_reduce", "sum", 11252.4)
    assert (second.size_bytes, second.coalesce, second.op) == (4096, 2, None)
    # Two buffers of 2048 B from each of 2 ranks in 21.1 us.
    assert second.algbw_gbps == pytest.approx(8192 / 21100)
    assert [r.line for r in result.refused] == [4]


def test_oneccl_csv_repeats_a_sum_once_for_each_name(imported):
    row = "2,{},sum,float32,4,1024,4096,1,16,10.2024,12.3024,11.2524,9.33125,4.2\n"
    result = imported(CSV + row.format("allreduce") + row.format("reduce"))
    assert (result.rows, len(result.refused)) == (0, 2)


FIRST_CALLS = """\
options:
  processes:       {ranks}
  backend:         sycl
  iters:           {iters}
  warmup_iters:    {warmup}
  buf_count:       1
  check:           {check}

datatype: float32
reduction: sum
# Benchmarking: allreduce
# #processes: {ranks}
        #bytes   #elem_count  #repetitions   t_min[usec]   t_max[usec]   t_avg[usec]  stddev[%]
             0             0             1          1.00        900.00        700.00       9.42
             4             1             1         10.10   1000000.00      990000.00       0.42
             8             2             1         10.20         12.30         11.25       9.42
# All done
"""


def first_calls(ranks=24, iters=1, warmup=0, check="off"):
    return FIRST_CALLS.format(ranks=ranks, iters=iters, warmup=warmup, check=check)


def test_oneccl_rows_of_one_iteration_are_the_calls_of_the_process(imported):
    result = imported(first_calls())
    (run,) = result.runs
    # The row of 0 elements sent nothing, and is a call all the same.
    calls = [
        (r.ordinal, r.size_bytes, r.reported.first_call_ns, r.reported.time_ns) for r in run.results
    ]
    assert calls == [(0, 0, 900e3, 700e3), (1, 4, 1e9, 990e6), (2, 8, 12300, 11250)]
    assert result.warnings == [
        "-i 1 -w 0: each row is one call, in the order of the process; torchcoll cold reads them so"
    ]
    assert "run" not in run.source


def test_first_calls_are_no_times(in_tmp_path, capsys):
    (in_tmp_path / "a.log").write_text(first_calls())
    (in_tmp_path / "b.log").write_text(first_calls().replace("990000.00", "990.00"))
    assert main(["show", "a.log"]) == 0
    out = capsys.readouterr().out
    assert "time: one cold call, mean over ranks, as published (the source has no samples)" in out
    assert "mean  calls" not in out
    assert [line.split()[-4:] for line in out.splitlines() if line.startswith("   4")] == [
        ["1", "-", "-", "unchecked"]
    ]
    assert main(["compare", "a.log", "b.log"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("none of 3 cases can be compared; first calls of a process: ")
    assert "\n3 cases not shown: first calls of a process: " in out
    assert "ratio" not in out
    assert main(["compare", "a.log", "b.log", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(r["result"], r["reason"], r["ratio"], r["base"], r["new"]) for r in rows} == {
        ("not comparable", "first calls of a process: torchcoll cold", None, None, None)
    }


@pytest.mark.parametrize("asked", [{"iters": 16}, {"warmup": 1}])
def test_oneccl_means_are_no_first_calls(imported, asked):
    results = imported(first_calls(**asked)).runs[0].results
    assert [(r.ordinal, r.reported.first_call_ns) for r in results] == [(None, None)] * 2


def test_oneccl_output_of_a_job_with_several_runs(imported):
    cut = first_calls(48).split("             8")[0]
    result = imported(f"+ mpiexec\n{first_calls()}+ mpiexec\n{cut}\n+ mpiexec\n{first_calls(48)}")
    assert [(run.ranks, len(run.results), run.source["run"]) for run in result.runs] == [
        (24, 3, "1"),
        (48, 2, "2"),
        (48, 3, "3"),
    ]
    assert [run.end["status"] for run in result.runs] == ["complete", "truncated", "complete"]
    assert [run.results[1].ordinal for run in result.runs] == [1, 1, 1]
    assert "the output of 3 runs, one after the other" in result.warnings


def test_osu(imported):
    result = imported(OSU.format(kind="-CUDA", name="Allreduce"), ranks=4)
    assert result.warnings == []
    first, second = summary_rows(result)
    assert (first.size_bytes, first.median_ns, first.calls, first.p99_ns) == (
        1024,
        3310,
        1000,
        4290,
    )
    assert (first.device, first.dtype, first.ranks, first.verified) == (
        "cuda",
        "float32",
        4,
        "correct",
    )
    assert second.status == "wrong"
    assert second.busbw_gbps == pytest.approx(1048576 / 108070 * 1.5)
    assert result.runs[0].source["version"] == "7.4"


def test_osu_without_ranks_has_no_bus_bandwidth(imported):
    result = imported(OSU.format(kind="", name="Allreduce"))
    assert [(r.ranks, r.busbw_gbps) for r in summary_rows(result)] == [(0, None)] * 2
    result = imported(OSU.format(kind="", name="Allgather"))
    assert (result.rows, len(result.refused)) == (0, 2)
    assert "give --ranks" in result.refused[0].reason
    result = imported(OSU.format(kind="", name="Allgather"), ranks=4)
    assert [r.size_bytes for r in summary_rows(result)] == [4096, 4194304]


def test_osu_barrier_and_python(imported):
    barrier = "# OSU MPI Barrier Latency Test v5.9\n# Avg Latency(us)\n             2.31\n"
    (row,) = summary_rows(imported(barrier))
    assert (row.collective, row.median_ns) == ("barrier", 2310)
    python = "# OMB Python MPI Allreduce Test\n# Size (B)          Latency (us)\n8   1.50\n"
    (row,) = summary_rows(imported(python))
    assert (row.collective, row.size_bytes, row.median_ns) == ("all_reduce", 8, 1500)


def test_param(imported):
    result = imported(PARAM)
    (row,) = summary_rows(result)
    assert (row.collective, row.backend, row.device, row.ranks) == ("all_reduce", "gloo", "cpu", 2)
    assert (row.median_ns, row.count) == (211200, 1024)
    reported = result.runs[0].results[0].reported
    assert (reported.statistic, reported.over_ranks, reported.max_ns) == ("mean", "median", 212900)
    assert [(r.line, r.reason.split(":")[0]) for r in result.refused] == [
        (6, "quantised"),
        (7, "half a row"),
        (9, "point-to-point latency of two ranks"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("  4096              1024             211.2", "  4.5 1024 211.2", "size is 4.5"),
        ("  4096              1024             211.2", "  4096 1024 0", "p50 is 0"),
        ("  4096              1024             211.2", "  0 0 211.2", "0 bytes: nothing was sent"),
    ],
)
def test_figures_of_param_that_cannot_be(imported, old, new, reason):
    result = imported(PARAM.replace(old, new, 1))
    assert (result.rows, result.refused[0].reason) == (0, reason)


@pytest.mark.parametrize(
    "row",
    [
        "256.0 MB             67108864x4                1.432 ms             2999.170           26",
        "268435456            67108864x4                1432.0               2999.170           26",
    ],
)
def test_deepspeed_throughput_is_not_used(imported, row):
    unit = "" if "ms" in row else " (us)"
    result = imported(
        "---- Performance of all_reduce on 8 devices ----------------\n"
        f"Size (Bytes)         Description               Duration{unit}             Throughput\n"
        f"------------------------------------------\n{row}\n"
    )
    (slow_row,) = summary_rows(result)
    assert (slow_row.size_bytes, slow_row.median_ns, slow_row.ranks) == (268435456, 1432000, 8)
    # 187, not 2999 Gbps = 375 GB/s.
    assert slow_row.algbw_gbps == pytest.approx(268435456 / 1432000)


HEADING = "Comm. Op            Message Size        Count               "
SUMMARY = (
    f"{HEADING}Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)    \n"
)


def logged(size, *figures):
    return " " * 20 + "".join(f"{field: <20}" for field in (size, *figures)) + "\n"


def test_deepspeed_logger_names_the_callers_with_debug(imported):
    # deepspeed/comm/utils.py get_debug_log_name: the operation, then its caller.
    result = imported(
        SUMMARY
        + "broadcast | [Caller Func: _broadcast_model]\n"
        + logged("2.0 KB", 146, 9.39, 0.06, 0.52, 0.48)
        + "reduce_scatter_tensor | [Caller Func: reduce_scatter_fn]\n"
        + logged("678.86 MB", 80, 1527.17, 13.94, 1211.75, 1136.01),
        ranks=16,
    )
    assert [(r.collective, r.median_ns) for r in summary_rows(result)] == [
        ("broadcast", 60_000),
        ("reduce_scatter", 13_940_000),
    ]


def test_deepspeed_logger_straggler_effect_is_no_duration(imported):
    result = imported(
        SUMMARY
        + "all_reduce\n"
        + logged("1.0 MB", 10, 20.0, 2.0, 8.0, 7.0)
        + "_______________________________\nBreakdown with straggler effect\n"
        + "-------------------------------\n"
        + f"{HEADING}Total comm lat(ms)  Total straggler(ms) Avg comm lat(ms)    "
        + "Avg straggler(ms)   \nall_reduce\n"
        + logged("1.0 MB", 10, 15.0, 5.0, 1.5, 0.5)
    )
    assert [r.median_ns for r in summary_rows(result)] == [2_000_000]
    assert [(r.line, r.reason.split(":")[0]) for r in result.refused] == [(9, "straggler effect")]


@pytest.mark.parametrize(
    ("operation", "size_bytes"),
    [
        # What the argument ``tensor`` of each is (deepspeed/comm/comm.py): a rank's share ...
        ("all_gather_into_tensor", 8192),
        ("gather", 8192),
        ("scatter", 8192),
        # ... or the whole.
        ("reduce_scatter_tensor", 1024),
        ("all_to_all_single", 1024),
        ("all_reduce", 1024),
    ],
)
def test_deepspeed_logger_sizes(imported, operation, size_bytes):
    result = imported(
        SUMMARY + f"{operation}\n" + logged("1024.0 B", 3, 4.5, 1.5, 99.0, 99.0), ranks=8
    )
    assert result.importer == "deepspeed"
    (row,) = summary_rows(result)
    assert (row.size_bytes, row.ranks, row.calls) == (size_bytes, 8, 3)
    assert (row.median_ns, row.clock) == (1_500_000, "unknown")
    assert row.statistic == "mean without the slowest and fastest tenth"
    # Not its 99 Gbit/s: all_reduce is 2 S / t there.
    assert row.algbw_gbps == pytest.approx(size_bytes / 1_500_000)
    reported = result.runs[0].results[0].reported
    assert (reported.size_bytes, reported.size_basis) == (
        (1024, "per rank") if size_bytes > 1024 else (None, "")
    )
    assert reported.over_ranks == "rank0"


def test_nccl_json_keeps_no_environment_but_the_allowed(imported, tmp_path):
    result = imported(json.dumps(nccl_json()))
    (row,) = summary_rows(result)
    assert (row.in_place, row.median_ns, row.ranks, row.verified) == (False, 24310, 2, "correct")
    environment = result.runs[0].environment
    assert environment["variables"] == {"NCCL_ALGO": "Ring", "SLURM_JWT": "***"}
    assert "AWS" not in str(result.runs[0].header)
    assert result.warnings[0].startswith("-f 1.5 was read as 1: ")


def test_nccl_json_with_bare_inf_and_cut_off(imported):
    text = json.dumps(nccl_json()).replace('"bus_bw": 43.133525', '"bus_bw": inf')
    (row,) = summary_rows(imported(text))
    assert row.busbw_gbps == pytest.approx(43.1335, abs=1e-4)  # from the time
    cut = text[: text.index('"average_bus')]
    result = imported(cut)
    assert (result.rows, result.runs[0].end["status"]) == (1, "truncated")
    assert "cut off" in result.warnings[0]
    assert imported(text[: text.index('"results"')] + '"results": [{"size"').rows == 0


def test_nccl_json_samples(imported):
    times = [[10.0, 20.0, 30.0], [11.0, 19.0, 31.0]]
    each = {"times_us": [11.0, 20.0, 31.0], "per_process_max_times_us": times, "p99_us": 31.0}
    imported_file = imported(json.dumps(nccl_json(out_of_place_per_iter=each)))
    (result,) = imported_file.runs[0].results
    assert result.time_ns == {"device": [[10000, 20000, 30000], [11000, 19000, 31000]]}
    # Back to back: 61 us of the slower rank, by 3 calls.
    assert summarise(result).median_ns == pytest.approx(61000 / 3)
    assert summarise(result, clock="host").statistic == "mean"


@pytest.mark.parametrize("ranks", [None, 4])
def test_nccl_json_samples_of_processes_with_several_ranks(imported, ranks):
    """Each of two processes stalls once: both took 140 us for 5 calls. Maxima of each call: 230."""
    times = [[100.0, 10.0, 10.0, 10.0, 10.0], [10.0, 100.0, 10.0, 10.0, 10.0]]
    data = nccl_json(out_of_place_per_iter={"per_process_max_times_us": times})
    imported_file = imported(json.dumps(data), ranks=ranks)
    (result,) = imported_file.runs[0].results
    assert (result.ranks, len(result.time_ns["device"])) == ((4, 1) if ranks else (2, 2))
    assert summarise(result).median_ns == 28_000
    message = "2 processes, not of 4 ranks: kept as those of the process that took longest"
    assert any(message in text for text in imported_file.warnings) == bool(ranks)


def test_nccl_json_samples_of_one_process_of_two(imported):
    """Nothing says that the process has both ranks: it gets none of them."""
    data = nccl_json(out_of_place_per_iter={"per_process_max_times_us": [[10.0, 20.0]]})
    (result,) = imported(json.dumps(data)).runs[0].results
    assert (result.ranks, result.time_ns, result.members) == (2, {"device": [[10000, 20000]]}, ())


def test_nccl_json_cpu_time(imported):
    block = {"cpu_time": 2.5, "alg_bw": 43.1, "bus_bw": 43.1, "nwrong": None}
    (row,) = summary_rows(imported(json.dumps(nccl_json(out_of_place=block))))
    assert (row.clock, row.algbw_gbps, row.verified) == ("issue", 43.1, "unchecked")


MARKDOWN = """\
# Report

### 1. All_gather

| Size    | Algbw (GB/s) - A | Algbw (GB/s) - B |
|---------|------------------|------------------|
| 1MB     | 19.63            | 20.35            |
| 16GB    | 421.78           |                  |

### 6. Hypercube

| Size    | Algbw (GB/s) - A | Algbw (GB/s) - B |
|---------|------------------|------------------|
| 1MB     | 9.31             | 5.17             |
| 4MB     | 35.95            |
"""


def test_markdown_with_a_map(imported):
    columns = {"size": "Size", "algbw": "Algbw (GB/s) - B"}
    result = imported(MARKDOWN, importer="plain", columns=columns, ranks=8)
    assert (result.rows, [(r.line, r.reason) for r in result.refused]) == (
        2,
        [(8, "no figure"), (15, "half a row: 2 fields, the heading has 3")],
    )
    gather, cube = summary_rows(result)
    assert (gather.collective, gather.size_bytes, gather.algbw_gbps) == (
        "all_gather",
        1 << 20,
        20.35,
    )
    assert gather.busbw_gbps == pytest.approx(20.35 * 7 / 8)
    assert (cube.collective, cube.algbw_gbps) == ("hypercube", pytest.approx(5.17))
    assert result.runs[0].results[0].reported.derived
    assert (gather.in_place, gather.dtype, gather.backend) == (None, None, "unknown")


def test_two_systems_side_by_side_need_a_map(imported):
    result = imported(MARKDOWN, importer="plain")
    assert result.runs == []
    assert "name them by --map" in result.refused[0].reason


def test_a_map_that_no_table_has(imported):
    result = imported(MARKDOWN, importer="plain", columns={"size": "Size", "time": "Zeit"})
    assert result.refused[0].reason == "no table has the columns Size, Zeit"
    with pytest.raises(UsageError, match=error_text("map", "speed", "one of size, time")):
        imported(MARKDOWN, importer="plain", columns={"speed": "Size"})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nccl_allreduce.log", "all_reduce"),
        ("2. All_reduce", "all_reduce"),
        ("reduce-scatter-8.txt", "reduce_scatter"),
        ("reduce_and_broadcast.txt", None),
        ("preduced.txt", None),
        ("### 3. All_to_all", "all_to_all"),
    ],
)
def test_a_collective_in_a_name(text, name):
    assert collective_in(text) == name


def test_versions():
    assert [version_text(v) for v in (22902, 2708, "x")] == ["2.29.2", "2.7.8", "x"]


def test_csv_of_rccl_tests_is_a_plain_table(imported):
    result = imported(f"{RCCL}\n1,AllReduce,2,1048576,float,sum,0,24.31,43.13,43.13,0\n")
    (row,) = summary_rows(result)
    assert (result.importer, row.collective, row.ranks, row.size_bytes) == (
        "plain",
        "all_reduce",
        2,
        1 << 20,
    )
    assert (row.median_ns, row.busbw_gbps) == (24310, pytest.approx(43.13, rel=1e-3))
