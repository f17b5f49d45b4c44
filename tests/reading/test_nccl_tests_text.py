"""nccl-tests' text: all layouts of its versions, and what terminals and people do to it."""

import pytest
from error_form import error_text
from foreign_files import HEAD, NAMES, ROW, SMALL, text

from torchcoll.core.errors import UnreadableError
from torchcoll.core.summary import summarise
from torchcoll.reading.base import COMMAS
from torchcoll.reading.inputs import load, load_all
from torchcoll.reading.nccl_tests_text import HALVES


def cases(imported_file):
    return [result for run in imported_file.runs for result in run.results]


def test_the_ordinary_text(imported):
    result = imported(text())
    assert (result.rows, result.refused, result.warnings) == (2, [], [])
    (run,) = result.runs
    assert run.source == {
        "tool": "nccl-tests",
        "version": "2.19.6",
        "format": "text",
        "file": "x.log",
    }
    assert run.environment["libraries"] == {"nccl": "NCCL 2.29.2"}
    assert (run.ranks, run.complete) == (2, True)
    assert run.members[1]["host"] == "node0"
    assert run.members[1]["device_name"] == "NVIDIA H100 80GB HBM3"
    row = summarise(run.results[2])
    assert (row.size_bytes, row.count, row.dtype, row.op, row.root) == (
        1048576,
        262144,
        "float32",
        "sum",
        None,
    )
    assert (row.statistic, row.median_ns, row.calls, row.clock) == ("mean", 24310.0, 20, "host")
    assert (row.mode, row.backend, row.device) == ("back-to-back", "nccl", "cuda")
    assert row.buffer_reuse == "rotate"  # src/common.cu, startColl
    assert row.algbw_gbps == row.busbw_gbps == pytest.approx(43.1335, abs=1e-4)
    assert (row.in_place, summarise(run.results[3]).in_place) == (False, True)
    assert row.verified == "correct"


def test_per_iteration_columns(imported):
    names = NAMES.replace("#wrong ", "#wrong    i_min    i_max    i_p99    i_cv% ")
    names = names.replace("(GB/s)  ", "(GB/s)  ")
    row = (
        "     1048576        262144     float     sum      -1    24.31   43.13   43.13       0"
        "    23.58    34.03    33.00     8.31    24.07   43.56   43.56       0    23.34    33.69"
        "    33.69     8.31\n"
    )
    first, second = cases(imported(text(row, names=names, foot="")))
    assert (first.reported.min_ns, first.reported.max_ns, first.reported.p99_ns) == (
        23580,
        34030,
        33000,
    )
    assert (second.reported.time_ns, second.reported.min_ns) == (24070, 23340)


def test_time_stamps_are_two_words(imported):
    names = NAMES.replace("#wrong \n", "#wrong           timestamp\n")
    row = ROW.rstrip("\n") + "  2026-07-20 19:33:49\n"
    first, second = cases(imported(text(row, names=names, foot="")))
    assert (first.reported.time_ns, second.reported.time_ns) == (24310, 24070)


def test_cpu_time_is_no_time_of_the_operation(imported):
    result = imported(text(names=NAMES.replace("   time", "cputime")))
    row = summarise(cases(result)[2])
    assert (row.clock, row.median_ns, row.algbw_gbps) == ("issue", 24310.0, 43.13)
    assert "-C" in cases(result)[2].warnings[0]


def test_not_checked_is_not_correct(imported):
    result = imported(text(ROW.replace("       0", "     N/A"), foot=""))
    assert [summarise(r).verified for r in cases(result)] == ["unchecked"] * 2


def test_wrong_elements_make_the_case_wrong(imported):
    result = imported(text(ROW.replace("43.13       0", "43.13       7"), foot=""))
    assert [r.status for r in cases(result)] == ["wrong", "ok"]
    assert cases(result)[0].verification.wrong == 7


def test_hypercube_has_no_redop(imported):
    # 2 ranks: 131072 elements of 4 bytes to each; algbw counts half of 1 MiB.
    row = (
        "     1048576        131072     float                  -1    24.31   21.57   21.57       0"
        "    24.07   21.78   21.78       0\n"
    )
    result = imported(text(row, "hypercube_perf", foot=""))
    assert (result.rows, result.warnings) == (1, [])
    row = summarise(cases(result)[0])
    assert (row.collective, row.count, row.op) == ("hypercube", 131072, None)
    assert row.algbw_gbps == row.busbw_gbps == pytest.approx(21.567, abs=1e-3)


def test_in_place_only(imported):
    row = ROW[:52] + " " * 32 + ROW[52 + 33 :]
    result = imported(text(row, foot=""))
    (only,) = cases(result)
    assert (only.case.in_place, only.reported.time_ns) == (True, 24070)


def test_half_a_row_is_refused_by_its_line(imported):
    whole = text(SMALL, foot="")
    for cut, fields in ((60, 6), (78, 8), (100, 11)):
        result = imported(whole + ROW[:cut])
        assert result.rows == 1
        assert [(r.line, r.reason) for r in result.refused] == [
            (13, f"half a row: {fields} fields of 13")
        ]
        assert result.runs[0].end["status"] == "truncated"


def test_a_row_that_ends_after_the_figures_out_of_place_is_read(imported):
    """The last row of a job that was killed, or all rows of a test that prints none in place."""
    result = imported(text(SMALL, foot="") + ROW[:86])
    assert (result.rows, result.refused) == (2, [])
    assert [case.case.in_place for case in cases(result)] == [False, True, False]
    assert result.warnings == [HALVES]


def test_old_columns_in_milliseconds(imported):
    old = """\
nThread 1 nGpus 2 minBytes 1048576 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20
NCCL version 2.4.7ms0+cuda10.0
# Rank 0 on a device 0 [0x00] Tesla V100-SXM2-16GB
# out-of-place in-place
# bytes N type op time algbw busbw res time algbw busbw res
# Rank 1 on b device 0 [0x00] Tesla V100-SXM2-16GB
1048576 262144 float sum 2.059 0.51 0.51 N/A 3.314 0.32 0.32 N/A
"""
    result = imported(old)
    assert result.warnings == ["taken for all_reduce: busbw / algbw is 1"]
    row = summarise(cases(result)[0])
    # 1048576 B in 2.059 ms.
    assert (row.median_ns, row.ranks) == (pytest.approx(2_059_000), 2)
    assert row.algbw_gbps == pytest.approx(0.5093, abs=1e-4)
    assert result.runs[0].environment["libraries"]["nccl"] == "NCCL 2.4.7ms0+cuda10.0"


OLD_GATHER = """\
#                                             out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
hostname:3442:3442 [0] NCCL INFO Launch mode Parallel
           0             0   float    34.27    0.00    0.00    N/A    33.57    0.00    0.00    N/A
       32768          1024   float    34.54    0.95    0.83  0e+00    35.23    0.93    0.81  2e-07
"""


def test_the_error_column_and_ranks_from_size_over_count(imported):
    result = imported(OLD_GATHER, "nccl_allgather.log")
    assert result.warnings == [
        "collective all_gather: taken from the name of the file",
        "8 ranks: recovered from size / count",
    ]
    assert [(r.line, r.reason[:7]) for r in result.refused] == [(4, "0 bytes")]
    first, second = cases(result)
    assert (summarise(first).verified, summarise(second).verified) == ("correct", "unchecked")
    assert second.warnings == ["largest error 2e-07, as the source gives it"]
    assert (first.count, first.bytes_in, first.bytes_out) == (1024, 4096, 32768)
    assert summarise(first).busbw_gbps == pytest.approx(32768 / 34540 * 7 / 8)


def test_size_and_count_are_checked(imported):
    result = imported(OLD_GATHER, collective="all_reduce")
    assert result.rows == 0
    assert "size / (count x 4 bytes) is 8, for all_reduce it is 1" in result.refused[1].reason
    result = imported(OLD_GATHER, collective="all_gather", ranks=4)
    assert "is 8, for all_gather it is the ranks (4)" in result.refused[1].reason


def test_ranks_from_the_bus_factor_only_where_one_number_fits(imported):
    row = (
        "  2147483648     536870912     float     sum      -1  5784.75  371.23  {:.2f}       0"
        "  5728.40  374.88  702.90       0\n"
    )
    result = imported(NAMES + row.format(696.06), collective="all_reduce")
    assert (result.runs[0].ranks, result.warnings) == (
        16,
        ["16 ranks: recovered from busbw / algbw"],
    )
    # Small figures fit many numbers of ranks: unknown.
    result = imported(NAMES + SMALL, collective="all_reduce")
    assert result.runs[0].ranks == 0
    assert summarise(cases(result)[0]).busbw_gbps == 0.0  # as given


def test_rows_that_contradict_each_other_in_the_last_digit_tell_the_ranks(imported):
    """Rounded twice, as by a spreadsheet: busbw / algbw is 1.8751, 1.8748 and 1.8754."""
    result = imported(
        NAMES
        + "".join(
            f"  {size}     {size // 4}     float     sum      -1  {us}  {algbw}  {busbw}       0\n"
            for size, us, algbw, busbw in (
                (8388608, 1411.2, 5.944, 11.146),
                (33554432, 2490.1, 13.475, 25.263),
                (134217728, 6390.4, 21.003, 39.387),
            )
        )
    )
    assert (result.runs[0].ranks, result.runs[0].results[0].case.collective) == (16, "all_reduce")


def test_inconsistent_bandwidths_are_reported(imported):
    result = imported(text(ROW.replace("43.13   43.13", "43.13   75.48"), foot=""))
    assert result.warnings == [
        "1 of 2 bandwidths do not follow from size, time and ranks: the first in line 12"
    ]
    assert "given algbw 43.13, busbw 75.48" in cases(result)[0].warnings[0]


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "[1,3]<stderr>: ", " 0: ", "[rank0]: ", "\x1b[32m", "[0] "]
)
def test_prefixes_of_launchers(imported, prefix):
    result = imported("".join(f"{prefix}{line}\n" for line in text().splitlines()))
    assert (result.rows, result.refused, result.runs[0].ranks) == (2, [], 2)
    assert cases(result)[2].reported.time_ns == 24310


@pytest.mark.parametrize("cut", [51, 60, 85, 91, 119])
def test_a_library_message_within_a_row(imported, cut):
    log = "node0:4711:4720 [0] NCCL INFO Launch mode Parallel\n"
    rows = SMALL + ROW[:cut] + log + log + ROW[cut:]
    result = imported(text(rows, foot=""))
    assert (result.rows, result.refused) == (2, [])
    assert [r.reported.time_ns for r in cases(result)[2:]] == [24310, 24070]


def test_several_tests_in_one_file_are_several_runs(imported):
    second = text(program="broadcast_perf", rows=ROW.replace("sum      -1", "none      0"))
    result = imported(text() + "%%% next %%%\n" + second)
    assert [(r.results[0].case.collective, len(r.results)) for r in result.runs] == [
        ("all_reduce", 4),
        ("broadcast", 2),
    ]
    assert result.runs[1].results[0].case.root == 0
    assert result.runs[1].source["version"] == "2.19.6"


def test_repeated_sizes_are_all_kept(imported):
    result = imported(text(ROW + ROW, foot=""))
    assert len(cases(result)) == 4


ONE = "\n".join(line for line in HEAD.splitlines() if "Rank  1" not in line) + "\n"


def test_interleaved_outputs_of_one_rank_are_named(imported):
    ones = [
        line
        for pair in zip(text(head=ONE).splitlines(), text(head=ONE).splitlines(), strict=True)
        for line in pair
    ]
    result = imported("\n".join(ones))
    assert (result.rows, result.runs) == (0, [])
    assert "2 outputs of one rank each lie in each other" in result.refused[0].reason
    assert "Build it with MPI=1" in result.refused[0].reason


def test_one_rank_outputs_one_after_the_other_are_a_warning(imported):
    alone = ROW.replace("43.13   43.13", "43.13    0.00").replace("43.56   43.56", "43.56    0.00")
    result = imported(text(alone, head=ONE, foot="# Avg bus bandwidth    : 0\n") * 2)
    assert len(result.runs) == 2
    assert "2 outputs of one rank each" in result.warnings[-1]


def test_load_is_for_one_run(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text(text(head=ONE) * 2)
    with pytest.raises(UnreadableError) as caught:
        load(path)
    assert str(caught.value) == error_text(
        "file",
        f"2 runs in {path}",
        f"a file of one run. torchcoll convert {path}"
        " -o RUN.jsonl writes a file of each; compare, show, ... take all.",
    )

    assert len(load_all([path])) == 2


def test_a_fractional_factor_is_reported(imported):
    result = imported("$ mpirun -np 2 ./all_reduce_perf -b 1M -e 256M -f 1.15\n" + text())
    assert result.warnings == [
        "-f 1.15 was read as 1: nccl-tests takes a whole number, so that the sizes rise by the "
        "default step of 1 MiB"
    ]
    result = imported(text().replace("step: 2(factor)", "step: 1048576(bytes)"))
    assert "nccl-tests reads -f as a whole number" in result.warnings[0]


def test_the_average_shows_that_rows_are_missing(imported):
    result = imported(text(SMALL))
    assert result.warnings == [
        "average bus bandwidth 21.6725 given, 0 of the rows that are here: rows are missing, or "
        "are another run's"
    ]


def test_errors_and_a_shortened_sweep(imported):
    lines = "# Reducing maxBytes to 1048576 due to memory limitation\n"
    result = imported(text(ROW + "node0: Test NCCL failure common.cu:958 'x'\n", foot=lines))
    assert result.runs[0].events[0]["message"].startswith("node0: Test NCCL failure")
    assert "Reducing maxBytes to 1048576" in result.warnings[0]


def test_rccl_is_called_rccl(imported):
    result = imported(text().replace("# Using", "RCCL version : 2.27.7-HEAD:0d2c4fd\n# Using"))
    assert result.runs[0].source["tool"] == "rccl-tests"
    assert result.runs[0].environment["libraries"] == {"nccl": "RCCL 2.27.7-HEAD:0d2c4fd"}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "choice", ["    RING    SIMPLE          56", "     N/A       N/A         N/A"]
)
def test_rccl_columns_of_the_algorithm(imported, named, choice):
    names = NAMES.replace("#wrong \n", "#wrong     algo     proto  nchannels\n") if named else NAMES
    result = imported(text(ROW.rstrip("\n") + choice + "\n", names=names, foot=""))
    assert [r.reported.time_ns for r in cases(result)] == [24310, 24070]


@pytest.mark.parametrize(("placement", "in_place"), [("out-of-place", False), ("in-place", True)])
def test_rccl_can_leave_one_placement_out(imported, placement, in_place):
    names = (
        f"#{placement:>73}\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
    )
    result = imported(text(ROW[:85] + "\n", names=names, foot=""))
    assert [(r.case.in_place, r.reported.time_ns) for r in cases(result)] == [(in_place, 24310)]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("24.31", "N/A", "half a row: time is N/A"),
        ("24.31", "0.00", "half a row: time is 0.00"),
        ("43.13   43.13", "43.13   43,13", COMMAS),
        (" 1048576 ", " 5000000000000000000 ", "half a row: size and count are"),
    ],
)
def test_an_odd_row_among_rows_that_look_alike(imported, old, new, why):
    imported_file = imported(text(SMALL + ROW + ROW.replace(old, new, 1) + ROW, foot=""))
    assert [result.reported.time_ns for result in cases(imported_file)] == [11520, 11400] + 2 * [
        24310,
        24070,
    ]
    assert [(r.line, r.reason[: len(why)]) for r in imported_file.refused] == [(14, why)]


def test_figures_of_rows_that_look_alike_are_each_their_own(imported):
    # nan is what a time of 0 gives; so many elements wrong; not checked in place; other columns.
    rows = [
        ROW,
        ROW.replace("43.13   43.13       0", "  nan     nan       0"),
        ROW.replace("43.13       0", "43.13       7"),
        ROW.replace("43.56       0", "43.56     N/A"),
        ROW.replace("float", " half").replace("262144", "524288"),
        ROW.replace("24.07   43.56   43.56", "2407.1    0.44    0.44"),
    ]
    results = cases(imported(text("".join(rows), foot="")))
    assert [r.reported.algbw_gbps for r in results[::2]] == [43.13, None, *[43.13] * 4]
    assert [r.reported.time_ns for r in results[1::2]] == [24070] * 5 + [pytest.approx(2407100)]
    assert [r.status for r in results] == ["ok"] * 4 + ["wrong"] + ["ok"] * 7
    verified = [r.verification.checked if r.verification else None for r in results[6:10]]
    assert verified == [262144, None, 524288, 524288]
    assert [r.case.dtype for r in results[7:]] == ["float32", *["float16"] * 2, *["float32"] * 2]
    results[10].time_ns["host"] = [[1]]
    assert (results[0].time_ns, results[10].time_ns) == ({}, {"host": [[1]]})


def test_ranks_of_one_move_nothing(imported):
    # Unnamed, as of one rank: the figures could be a hypercube's, which sends nothing there.
    row = ROW.replace("   sum", "      ").replace("24.31", "20.01").replace("24.07", "20.01")
    result = imported(row, ranks=1)
    assert "the file does not name the collective" in result.refused[0].reason
