"""Intel MPI Benchmarks: IMB-MPI1 of several releases, as its source prints them."""

import pytest

from torchcoll.cli import main
from torchcoll.core.summary import summarise

TITLE = """\
#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks {version}, MPI-1 part
#----------------------------------------------------------------
# Date                  : Mon Nov 23 06:45:10 2026
# Machine               : x86_64
# MPI Version           : 3.1
# MPI Thread Environment:


# Calling sequence was:

# ./IMB-MPI1 -msglog 2:10 {arguments}

# Minimum message length in bytes:   0
# Maximum message length in bytes:   1024
#
# MPI_Datatype                   :   MPI_BYTE
# MPI_Datatype for reductions    :   MPI_FLOAT
# MPI_Op                         :   MPI_SUM
#
#

# List of Benchmarks to run:

# {name}
"""
SECTION = """
#----------------------------------------------------------------
# Benchmarking {name}
# #processes = {ranks}
{more}#----------------------------------------------------------------
"""
TIMES = "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n"
ROWS = """\
            0         1000         0.03         0.05         0.04
         4096         1000        10.20        12.30        11.25
"""
END = "\n\n# All processes entering MPI_Finalize\n\n"


def imb(*tables, version="2021.3", arguments="", name="Allreduce", end=END):
    title = TITLE.format(version=version, arguments=arguments, name=name)
    return title + "".join(tables) + end


def table(name, ranks=4, rows=ROWS, heading=TIMES, more=""):
    return SECTION.format(name=name, ranks=ranks, more=more) + heading + rows


def summary_rows(output):
    return [summarise(result) for run in output.runs for result in run.results]


def test_a_row_is_a_mean_over_ranks_of_a_mean_over_calls(imported):
    output = imported(imb(table("Allreduce")))
    assert (output.importer, output.rows, output.warnings) == ("imb", 1, [])
    (run,) = output.runs
    (result,), (row,) = run.results, summary_rows(output)
    assert (row.collective, row.size_bytes, row.ranks, row.dtype, row.op) == (
        "all_reduce",
        4096,
        4,
        "float32",
        "sum",
    )
    assert (row.median_ns, row.calls) == (11250, 1000)
    reported = result.reported
    assert (reported.min_ns, reported.max_ns) == (10200, 12300)
    assert (reported.statistic, reported.over_ranks, reported.clock) == ("mean", "mean", "host")
    assert (row.mode, row.backend, row.device, row.verified) == (
        "synchronized",
        "mpi",
        "cpu",
        "unchecked",
    )
    # 2 (4 - 1) / 4 x 4096 B / 11.25 us
    assert row.busbw_gbps == pytest.approx(1.5 * 4096 / 11250)
    assert run.source == {
        "tool": "Intel MPI Benchmarks",
        "version": "2021.3",
        "format": "text",
        "file": "x.log",
    }
    assert run.complete
    assert [(r.line, r.reason) for r in output.refused] == [(32, "0 bytes: nothing was sent")]


@pytest.mark.parametrize(
    ("name", "collective", "size_bytes", "basis"),
    [
        # The guide: every process inputs X bytes and receives X * np.
        ("Allgather", "all_gather", 16384, "per rank"),
        ("Allgatherv", "all_gather_v", 16384, "per rank"),
        # X * np bytes in, X for each process.
        ("Alltoall", "all_to_all", 16384, "per peer"),
        ("Alltoallv", "all_to_all_v", 16384, "per peer"),
        # The root has X * np bytes.
        ("Gather", "gather", 16384, "per rank"),
        ("Scatter", "scatter", 16384, "per rank"),
        # A vector of X / sizeof(float) * np items.
        ("Reduce_scatter", "reduce_scatter", 16384, "per rank"),
        ("Reduce_scatter_block", "reduce_scatter", 16384, "per rank"),
        # X bytes in all.
        ("Bcast", "broadcast", 4096, ""),
        ("Reduce", "reduce", 4096, ""),
    ],
)
def test_bytes_become_the_size_of_nccl_tests(imported, name, collective, size_bytes, basis):
    output = imported(imb(table(name), name=name))
    (row,) = summary_rows(output)
    (result,) = output.runs[0].results
    assert (row.collective, row.size_bytes) == (collective, size_bytes)
    printed = (4096, basis) if basis else (None, "")
    assert (result.reported.size_bytes, result.reported.size_basis) == printed
    factor = {"broadcast": 1, "reduce": 1}.get(collective, 3 / 4)
    assert row.busbw_gbps == pytest.approx(factor * size_bytes / 11250)
    reduces = name.startswith("Reduce")
    assert (row.dtype, row.op) == (("float32", "sum") if reduces else ("uint8", None))


@pytest.mark.parametrize(
    ("version", "size_bytes"),
    [
        ("2021.3", 16384),
        ("2019 Update 6", 16384),
        ("2019 Update 1", 16384),
        # src_c/IMB_reduce_scatter.c up to tag v2019.0 divides the bytes among the ranks.
        ("2019", 4096),
        ("2018 Update 1", 4096),
        ("4.1 Update 1", 4096),
    ],
)
def test_reduce_scatter_was_counted_as_a_whole_until_2019(imported, version, size_bytes):
    output = imported(imb(table("Reduce_scatter"), version=version))
    assert [row.size_bytes for row in summary_rows(output)] == [size_bytes]
    assert output.runs[0].source["version"] == version


def test_reduce_scatter_of_an_unknown_release_is_refused(imported):
    output = imported(table("Reduce_scatter") + table("Allreduce"))
    assert [row.collective for row in summary_rows(output)] == ["all_reduce"]
    assert "since 2019 Update 1 of one rank's part" in output.refused[1].reason


@pytest.mark.parametrize(
    "title",
    [
        "#    Intel (R) MPI Benchmark Suite V3.2.2, MPI-1 part    ",
        "#    Intel (R) MPI Benchmark Suite V3.2.2, MPI1 part    ",
        "#    PALLAS MPI Benchmark Suite V3.2.2, MPI-1 part    ",
    ],
)
def test_older_titles(imported, title):
    text = imb(table("Allreduce"))
    output = imported(text.replace("#    Intel(R) MPI Benchmarks 2021.3, MPI-1 part", title))
    assert output.runs[0].source["version"] == "3.2.2"
    # Before 2017 no barrier stood between the calls unless asked for.
    assert summary_rows(output)[0].mode == "unknown"


def test_missing_barriers_between_calls_are_reported(imported):
    for arguments, mode in (("-sync off", "back-to-back"), ("-sync on", "synchronized")):
        output = imported(imb(table("Bcast"), arguments=arguments))
        assert summary_rows(output)[0].mode == mode


BARRIER = """\
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1000         1.10         1.30         1.20
"""
SENDRECV = """\
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
         4096         1000        10.20        12.30        11.25       666.02
"""
PINGPONG = """\
       #bytes #repetitions      t[usec]   Mbytes/sec
            0         1000         1.00         0.00
         4096         1000         2.00      2048.00
"""
UNIBAND = """\
       #bytes #repetitions   Mbytes/sec      Msg/sec
         4096         1000      2048.00       500000
"""


def test_barrier_and_sendrecv(imported):
    """Both are timed as a loop; the Mbytes/sec of Sendrecv count both directions."""
    output = imported(
        imb(
            table("Barrier", heading="", rows=BARRIER), table("Sendrecv", rows=SENDRECV, heading="")
        )
    )
    barrier, sendrecv = summary_rows(output)
    assert (barrier.collective, barrier.size_bytes, barrier.median_ns) == ("barrier", 0, 1200)
    assert (sendrecv.collective, sendrecv.size_bytes) == ("sendrecv", 4096)
    assert sendrecv.busbw_gbps == pytest.approx(4096 / 11250)
    assert (barrier.mode, sendrecv.mode) == ("back-to-back", "back-to-back")


def test_what_is_no_collective_is_named(imported):
    tables = [
        table("PingPong", 2, PINGPONG, ""),
        table("Biband", 4, UNIBAND, ""),
        table("Exchange", 4, SENDRECV, ""),
        table("Gatherv"),
        table("Bcast"),
    ]
    output = imported(imb(*tables))
    assert [row.collective for row in summary_rows(output)] == ["broadcast"]
    reasons = [why for _, why in output.refusals()]
    assert reasons == [
        "PingPong: between pairs of ranks, no collective",
        "Biband: between pairs of ranks, no collective",
        "Exchange is no collective that torchcoll has",
        "Gatherv is no collective that torchcoll has",
        "0 bytes: nothing was sent",
    ]


def test_pairs_alone_are_one_line(tmp_path, capsys):
    path = tmp_path / "imb.txt"
    path.write_text(imb(table("PingPong", 2, PINGPONG, "")))
    assert main(["show", str(path)]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "PingPong: between pairs of ranks, no collective" in err
    assert err.endswith("torchrun -m torchcoll.pairs measures the links between ranks.\n")


def test_numbers_of_processes_are_runs_of_their_own(imported):
    waiting = "# ( 2 additional processes waiting in MPI_Barrier)\n"
    output = imported(
        imb(table("Allgather", 2, more=waiting), table("Allgather", 4), table("Bcast", 2))
    )
    assert [(run.ranks, len(run.results)) for run in output.runs] == [(2, 2), (4, 1)]
    assert [row.size_bytes for row in summary_rows(output)] == [8192, 4096, 16384]


GROUPS = """
#----------------------------------------------------------------
# Benchmarking Multi-Allreduce
# ( 2 groups of 2 processes each running simultaneous )
# Group  0:     0    1
#
# Group  1:     2    3
#
#----------------------------------------------------------------
"""
MULTI = """\
        Group       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]

            0            0           20         0.17         0.29         0.23
            1            0           20         0.16         0.27         0.21

            0         4096           20        10.00        12.00        11.00
            1         4096           20        20.00        22.00        21.00
"""


def test_concurrent_groups(imported):
    for rows in (MULTI, TIMES + ROWS):  # a row of each group, or of all
        output = imported(imb(GROUPS + rows, table("Bcast")))
        assert [row.collective for row in summary_rows(output)] == ["broadcast"]
        assert output.refused[0].reason == "groups that ran at once (-multi) are not read"


def test_one_group_has_its_column_too(imported):
    output = imported(
        imb(table("Allreduce", rows=MULTI.replace("            1 ", "\n#"), heading=""))
    )
    assert [(row.ranks, row.group) for row in summary_rows(output)] == [(4, None)]


FAILED = {
    "out-of-mem.": 'needed X=   0.001 GB; use flag "-mem X" or MAX_MEM_USAGE>=X (IMB_mem_info.h)',
    "time-out.": 'Time limit (secs_per_sample * msg_sizes_list_len) is over; use "-time X"',
    "int-overflow.": "The production rank*size caused int overflow for given sample",
}


@pytest.mark.parametrize("name", FAILED)
def test_sizes_that_imb_did_not_measure(imported, name):
    rows = f"{ROWS}         8192 {name}; {FAILED[name]}\n"
    output = imported(imb(table("Allgather", rows=rows)))
    assert [row.size_bytes for row in summary_rows(output)] == [16384]
    line, reason = output.refused[1].line, output.refused[1].reason
    assert (line, reason) == (34, f"IMB did not measure this size: {name.strip('.')}")


def test_output_that_was_cut(imported):
    output = imported(imb(table("Allreduce"), end="        16384         1000  "))
    assert output.refused[1].reason == "half a row: 2 fields, the heading has 5"
    (run,) = output.runs
    assert run.end["status"] == "truncated" and "MPI_Finalize" in run.ending


def test_the_output_of_several_programs(imported):
    output = imported(f"+ mpirun\n{imb(table('Bcast'))}+ mpirun\n{imb(table('Bcast', 8), end='')}")
    assert [(run.ranks, run.source["run"]) for run in output.runs] == [(4, "1"), (8, "2")]
    assert [run.end["status"] for run in output.runs] == ["complete", "truncated"]
    assert "the output of 2 runs, one after the other" in output.warnings


def test_a_pasted_table_needs_its_name(imported):
    pasted = TIMES + ROWS
    output = imported(pasted)
    assert output.runs == []
    assert output.refused[-1].reason == "the table names no collective: give --collective"
    output = imported(pasted, collective="broadcast", ranks=4)
    assert [(row.collective, row.ranks) for row in summary_rows(output)] == [("broadcast", 4)]
    assert output.runs[0].complete


def test_the_size_of_one_rank_needs_the_ranks(imported):
    output = imported(f"# Benchmarking Allgather\n{TIMES}{ROWS}")
    assert output.refused[-1].reason == "the size of all_gather is for one rank: give --ranks"


def test_bytes_beyond_whole_elements_are_not_sent(imported):
    """IMB_allreduce: s_num = size / s_size."""
    rows = ROWS.replace("         4096", "         4099").replace("    0 ", "    3 ", 1)
    output = imported(imb(table("Allreduce", rows=rows)))
    assert [row.size_bytes for row in summary_rows(output)] == [4096]
    assert output.refused[0].reason == "less than one element: nothing was sent"


def test_types_and_reduction_of_the_title(imported):
    text = imb(table("Allreduce"), table("Bcast"))
    text = text.replace("MPI_FLOAT", "MPI_INT").replace("MPI_BYTE", "MPI_DOUBLE")
    output = imported(text.replace("MPI_SUM", "MPI_MAX"))
    assert [(row.dtype, row.op) for row in summary_rows(output)] == [
        ("int32", "max"),
        ("float64", None),
    ]


def test_the_half_types_of_mpich(imported):
    text = imb(table("Allreduce")).replace("MPI_FLOAT", "MPIX_C_BF16")
    assert [row.dtype for row in summary_rows(imported(text))] == ["bfloat16"]


def test_checked_results(imported):
    """Built with -DCHECK: a column of defects, of which more than 1e-2 is a failure."""
    heading = TIMES.rstrip("\n") + "      defects\n"
    rows = "".join(
        f"         4096         1000        10.20        12.30        11.25         {defects}\n"
        for defects in ("0.00", "1.00")
    )
    output = imported(imb(table("Allreduce", rows=rows, heading=heading)))
    assert [row.verified for row in summary_rows(output)] == ["correct", "wrong"]
    checks = [result.verification for result in output.runs[0].results]
    assert [(check.wrong, check.checked) for check in checks] == [(0, 1), (1, 1)]


def test_two_benchmarks_of_one_collective_are_not_mixed(imported):
    output = imported(imb(table("Reduce_scatter"), table("Reduce_scatter_block")))
    assert len(summary_rows(output)) == 1
    assert output.refused[-1].reason == (
        "Reduce_scatter_block: reduce_scatter is read from Reduce_scatter of the same output"
    )


def test_rows_after_prefixes(imported):
    text = "".join(f"[1,0]<stdout>: {line}\n" for line in imb(table("Bcast")).splitlines())
    output = imported(text)
    assert [(row.collective, row.ranks) for row in summary_rows(output)] == [("broadcast", 4)]
    indented = "".join(f"    {line}\n" for line in imb(table("Allreduce")).splitlines())
    assert len(summary_rows(imported(indented))) == 1


def test_a_gpu_build_does_not_name_its_device(imported):
    text = imb(table("Allreduce")).replace("MPI-1 part", "MPI-1 part (GPU)")
    assert [row.device for row in summary_rows(imported(text))] == ["unknown"]


def test_other_programs_of_the_suite_are_named(imported):
    heading = (
        "       #bytes #repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]\n"
        "         4096         1000         20.0         11.0         10.0         10.0\n"
    )
    text = imb(table("Iallreduce", heading=heading, rows="")).replace("MPI-1 part", "MPI-NBC part")
    assert imported(text).refused[0].reason == "Iallreduce is no collective that torchcoll has"
