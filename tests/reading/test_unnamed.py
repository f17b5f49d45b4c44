"""Tables of nccl-tests without a name: collective and ranks are inferred from the figures."""

import pytest
from foreign_files import HEAD, NAMES, text

import torchcoll
from torchcoll.reading.registry import import_file


def row(size, count, op, root, us, algbw, factor, wrong="0"):
    """Both placements with the same figures; ``wrong``: of the one in place."""
    figures = f"{us:8.2f} {algbw:7.2f} {algbw * factor:7.2f}"
    return f"{size:12} {count:12}     float {op:>7} {root:>7} {figures} 0 {figures} {wrong}\n"


# 64 MiB in 1 ms are 67.108864 GB/s. busbw / algbw of 8 ranks by nccl-tests' PERFORMANCE.md.
S, US, GBPS = 67108864, 1000.0, 67.108864


@pytest.mark.parametrize(
    ("count", "op", "root", "factor", "wrong", "name", "how"),
    [
        (S // 4, "sum", -1, 1.75, "0", "all_reduce", "busbw / algbw is 1.75"),
        (S // 4, "sum", 0, 1, "0", "reduce", "a root and a reduction, busbw / algbw is 1"),
        (S // 4, "none", 0, 1, "0", "broadcast", "a root, busbw / algbw is 1"),
        (
            S // 32,
            "sum",
            -1,
            7 / 8,
            "0",
            "reduce_scatter",
            "size / count is that of 8 ranks, busbw ",
        ),
        (
            S // 32,
            "none",
            -1,
            7 / 8,
            "N/A",
            "all_to_all",
            "size / count is that of 8 ranks, busbw ",
        ),
    ],
)
def test_the_collective_that_the_figures_leave(imported, count, op, root, factor, wrong, name, how):
    result = imported(NAMES + row(S, count, op, root, US, GBPS, factor, wrong))
    assert [r.case.collective for r in result.runs[0].results] == [name] * 2
    assert result.warnings[0].startswith(f"taken for {name}: {how}")


@pytest.mark.parametrize(
    ("count", "op", "root", "factor", "names"),
    [
        (S // 4, "sum", -1, 1, "all_reduce and sendrecv"),
        (S // 32, "none", -1, 7 / 8, "all_gather and all_to_all"),
        (S // 32, "none", 0, 7 / 8, "gather and scatter"),
    ],
)
def test_what_they_leave_open_is_refused_with_the_choice(imported, count, op, root, factor, names):
    result = imported(NAMES + row(S, count, op, root, US, GBPS, factor))
    assert [r.reason for r in result.refused] == [
        f"the file does not name the collective, and its figures fit {names}: give --collective"
    ]


@pytest.mark.parametrize(
    ("above", "op"),
    [("NCCL version 2.4.7ms0+cuda10.0\n", "sum"), ("NCCL version 2.19.3+cuda12.3\n", "max")],
)
def test_no_sendrecv_before_nccl_2_7_nor_with_an_operation_of_choice(imported, above, op):
    """NCCL 2.7 brought ncclSend; sendrecv_perf prints `sum`, and nobody asks it for max."""
    table = above + NAMES + row(S, S // 4, op, -1, US, GBPS, 1)
    assert [r.case.collective for r in imported(table).runs[0].results] == ["all_reduce"] * 2
    with_send = imported(table.replace("2.4.7", "2.10.3").replace(" max ", " sum "))
    assert "all_reduce and sendrecv" in with_send.refused[0].reason


def test_all_gather_until_june_2020_printed_what_hypercube_does(imported):
    """Both (n - 1) S / n / t as algbw and as busbw: all_gather.cu of nccl-tests before ec1b5e2."""
    line = row(S, S // 8, "", -1, US, GBPS / 2, 1)  # of 2 ranks
    result = imported(line)
    assert "its figures fit hypercube and all_gather: give" in result.refused[0].reason
    # Since 2022 the heading says #wrong: then all_gather's algbw is S / t.
    result = imported(NAMES + line)
    assert [r.case.collective for r in result.runs[0].results] == ["hypercube"] * 2


def test_a_small_bandwidth_is_compared_within_its_rounding(imported):
    """0.07 GB/s of 1 KiB in 15.35 us, which are 0.0667: all_reduce of 2 ranks is not left out."""
    result = imported(NAMES + row(1024, 256, "sum", -1, 15.35, 0.07, 1))
    assert "fit all_reduce and sendrecv" in result.refused[0].reason


def test_a_title_is_used_if_the_figures_fit(imported):
    table = NAMES + row(S, S // 32, "none", -1, US, GBPS, 7 / 8)
    result = imported(f"## All-Gather on 8 GPUs\n\n{table}")
    assert result.runs[0].results[0].case.collective == "all_gather"
    assert result.warnings[0] == "collective all_gather: taken from line 1"
    result = imported(f"## Broadcast\n\n{table}")
    assert result.refused[0].reason == (
        "line 1 names broadcast, but the figures are those of all_gather or all_to_all: "
        "give --collective"
    )


def test_one_pasted_row(imported):
    line = row(S, S // 4, "sum", -1, US, GBPS, 1.75)
    result = imported(line)
    assert (result.runs[0].ranks, result.runs[0].complete) == (8, True)
    assert imported(line, collective="all_reduce", ranks=8).warnings == []


def ranks(count):
    line = "#  Rank {:2} Group  0 Pid   {} on      node0 device  0 [0000:18:00] NVIDIA H100\n"
    return "".join(line.format(n, 4000 + n) for n in range(count))


def test_a_list_of_ranks_belongs_to_the_table_below_it(imported):
    """A page of tables for 2, 4 and 8 ranks, without the lines that name the tests."""
    page = ""
    for count, factor in ((2, 1), (4, 1.5), (8, 1.75)):
        page += ranks(count) + NAMES + row(S, S // 4, "sum", -1, US, GBPS, factor)
        page += f"# Avg bus bandwidth    : {GBPS * factor:.4f}\n"
    result = imported(page, collective="all_reduce")
    assert [run.ranks for run in result.runs] == [2, 4, 8]
    assert (result.refused, result.warnings) == ([], [])
    assert [len(run.members) for run in result.runs] == [2, 4, 8]


def test_a_heading_below_rows_begins_another_table(imported):
    tables = [row(S, S // 4, "sum", -1, US, GBPS, factor) for factor in (1.75, 1.5)]
    result = imported(NAMES.join(["", *tables]))
    assert [run.ranks for run in result.runs] == [8, 4]


def test_a_list_that_every_busbw_contradicts(imported):
    head = HEAD.format(program="all_reduce_perf").replace("Rank  1", "Rank 15")
    result = imported(head + NAMES + row(S, S // 4, "sum", -1, US, GBPS, 1.75))
    assert result.runs[0].ranks == 8
    assert result.warnings == ["16 ranks are listed, but every busbw / algbw is that of 8: 8 taken"]
    # What is told by hand is what the user wants; the figures that disagree are said.
    result = imported(head + NAMES + row(S, S // 4, "sum", -1, US, GBPS, 1.75), ranks=16)
    assert result.runs[0].ranks == 16
    assert any("do not follow" in text for text in result.warnings)
    assert "--ranks 16, but every busbw / algbw is that of 8 ranks" in result.warnings


def test_other_formats_name_what_they_refuse(imported):
    title = "OSU MPI Multi Latency Test v7.4"
    result = imported(f"# {title}\n# Size          Latency (us)\n8          1.17\n")
    assert result.refused[0].reason == f"{title}: between pairs of ranks, no collective"
    result = imported("# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n8  N/A\n")
    assert result.refused[0].reason == "Avg Latency(us) is N/A"


def test_a_file_with_two_runs(imported):
    assert [run.ranks for run in imported(text(foot="") + text(foot="")).runs] == [2, 2]


def test_warnings_of_a_table_belong_to_its_run_only(tmp_path):
    """A page with two unnamed tables for 8 and 4 ranks: busbw / algbw is 1.75 and 1.5."""
    page = tmp_path / "page.txt"
    tables = [row(S, S // 4, "sum", -1, US, GBPS, factor) for factor in (1.75, 1.5)]
    page.write_text(NAMES.join(["", *tables]))
    result = import_file(str(page))
    warnings = [[event["message"] for event in run.events] for run in result.runs]
    assert [run.ranks for run in result.runs] == [8, 4]
    assert [any("8 ranks" in text for text in texts) for texts in warnings] == [True, False]
    assert [any("4 ranks" in text for text in texts) for texts in warnings] == [False, True]


@pytest.mark.parametrize(
    "prose",
    [
        " Blocking Enabled: wait for completion and barrier after each collective",
        "the broadcast of the model is measured later",
        "# reduce the number of channels first",
    ],
)
def test_prose_above_a_table_is_no_name(prose, tmp_path):
    """busbw / algbw is 1.5: of 4 ranks, all_reduce alone."""
    path = tmp_path / "output.log"
    path.write_text(
        f"{prose}\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"
        "   134217728      33554432     float     sum      -1   593.65  226.09  339.13       0\n"
        "   268435456      67108864     float     sum      -1  1187.29  226.09  339.14       0\n"
    )
    run = torchcoll.load(path, ranks=4)
    assert {result.case.collective for result in run.results} == {"all_reduce"}
