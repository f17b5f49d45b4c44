"""ucc_perftest of several releases, as tools/perf/ucc_pt_benchmark.cc prints it."""

import pytest

from torchcoll.core.summary import summarise

HEAD = """\
Collective:             {name}
Memory type:            cuda
Datatype:               float32
Reduction:              {op}
Inplace:                {inplace}
Warmup:
  small                 10
  large                 10
Iterations:
  small                 50
  large                 50
{more}
"""
TIMES = """\
       Count        Size                Time, us
                                 avg         min         max
"""
FULL = """\
       Count        Size                Time, us                           {}Bandwidth, GB/s
                                 avg         min         max         avg         max         min
"""


def ucc(name, rows, heading=TIMES, op="N/A", inplace="0", more=""):
    return HEAD.format(name=name, op=op, inplace=inplace, more=more) + heading + rows


def summary_rows(output):
    return [summarise(result) for run in output.runs for result in run.results]


def row(*fields):
    return "".join(f"{field:12}" for field in fields) + "\n"


ROW = row(1024, 4096, 10.00, 9.00, 11.00)


def test_a_row(imported):
    output = imported(ucc("Allreduce", ROW, op="sum", inplace="1"), ranks=4)
    (case,) = summary_rows(output)
    assert (output.importer, case.collective, case.size_bytes, case.ranks) == (
        "ucc",
        "all_reduce",
        4096,
        4,
    )
    assert (case.dtype, case.op, case.in_place, case.device, case.backend) == (
        "float32",
        "sum",
        True,
        "cuda",
        "ucc",
    )
    assert (case.median_ns, case.calls, case.mode) == (10_000, 50, "synchronized")
    assert case.busbw_gbps == pytest.approx(1.5 * 4096 / 10_000)
    reported = output.runs[0].results[0].reported
    assert (reported.statistic, reported.over_ranks, reported.clock) == ("mean", "mean", "host")
    assert (reported.min_ns, reported.max_ns) == (9_000, 11_000)


@pytest.mark.parametrize(
    ("name", "collective", "size_bytes"),
    [
        ("Allgather", "all_gather", 16384),
        ("Allgatherv", "all_gather_v", 16384),
        ("Gather", "gather", 16384),
        ("Bcast", "broadcast", 4096),
        ("Reduce", "reduce", 4096),
    ],
)
def test_sizes_that_never_changed(imported, name, collective, size_bytes):
    (case,) = summary_rows(imported(ucc(name, ROW), ranks=4))
    assert (case.collective, case.size_bytes) == (collective, size_bytes)


# The output that introduced -F (openucx/ucc, pull request 223): 8 GPUs, 7 x 4 MiB in 682.48 us are
# 43.02 GB/s, so the size is that for one peer.
OLD = row(1048576, 4194304, 682.48, 649.85, 719.07, 43.02, 45.18, 40.83)
# Since release 1.5 the size is the whole: 7/8 x 32 MiB in 682.48 us.
NEW = row(8388608, 33554432, 682.48, 649.85, 719.07, 43.02, 45.18, 40.83)


@pytest.mark.parametrize(("line", "bus"), [(OLD, ""), (NEW, ""), (NEW, "Bus ")])
def test_the_bandwidth_shows_what_the_size_refers_to(imported, line, bus):
    output = imported(ucc("Alltoall", line, FULL.format(bus)), ranks=8)
    (case,) = summary_rows(output)
    assert (case.collective, case.size_bytes) == ("all_to_all", 33554432)
    assert case.busbw_gbps == pytest.approx(43.02, rel=1e-3)
    assert output.runs[0].results[0].warnings == []


def test_two_ranks_are_distinguished_too(imported):
    """Of 2 ranks busbw is size / time where the size is for a peer, and half of it where it is S:
    1 GB in 10 ms are 100 GB/s.
    """
    figures = (250_000_000, 1_000_000_000, 10000.0, 9000.0, 11000.0)
    for given, size_bytes in ((100.0, 2_000_000_000), (50.0, 1_000_000_000)):
        text = ucc("Reduce_scatter", row(*figures, given, 110.0, 90.0), FULL.format(""))
        output = imported(text, ranks=2)
        assert [case.size_bytes for case in summary_rows(output)] == [size_bytes]


def test_a_file_without_the_release_is_refused(imported):
    small = row(2, 8, 10.0, 9.0, 11.0, 0.0, 0.0, 0.0)
    for text in (ucc("Alltoall", ROW), ucc("Scatter", small, FULL.format(""))):
        output = imported(text, ranks=8)
        assert output.runs == []
        assert "ucc_perftest -F" in output.refused[0].reason
    # Only the newest releases name the mode.
    output = imported(ucc("Alltoall", ROW, more="Iteration mode:         isolated\n"), ranks=8)
    assert [case.size_bytes for case in summary_rows(output)] == [4096]


def test_ranks_are_needed_for_the_size_of_one_rank(imported):
    output = imported(ucc("Allgather", ROW))
    assert output.refused[0].reason.endswith("give --ranks")
    output = imported(ucc("Alltoall", OLD, FULL.format("")))
    assert output.refused[0].reason.endswith("give --ranks")
    # Nothing is left open where the size is the whole.
    output = imported(ucc("Alltoall", NEW, FULL.format("Bus ")))
    assert [case.size_bytes for case in summary_rows(output)] == [33554432]
    output = imported(ucc("Bcast", ROW))
    assert [(case.size_bytes, case.ranks) for case in summary_rows(output)] == [(4096, 0)]
    assert output.warnings == ["the file does not tell the ranks: give --ranks for bus bandwidth"]


def test_ranks_that_contradict_the_bandwidth(imported):
    """1 GB in 10 ms with a busbw of 150 is an all_reduce of 4 ranks, not of 2."""
    all_of_4 = row(250_000_000, 1_000_000_000, 10000.0, 9000.0, 11000.0, 150.0, 165.0, 135.0)
    text = ucc("Allreduce", all_of_4, FULL.format("Bus "), op="sum")
    assert imported(text, ranks=4).runs[0].results[0].warnings == []
    assert imported(text, ranks=2).runs[0].results[0].warnings == [
        "given busbw 150 GB/s, but 100 follows from size, time and ranks"
    ]


def test_several_tables_barriers_and_what_is_none(imported):
    barrier = ROW.replace("1024", " N/A").replace("4096", " N/A")
    output = imported(
        ucc("Bcast", ROW)
        + ucc("Barrier", barrier, inplace="N/A")
        + ucc("Memcpy", ROW)
        + ucc("Alltoallv", ROW)
        + ucc("Gatherv", ROW)
        + ucc("Reduce", ROW + "        2048        8192       10.00"),
        ranks=4,
    )
    assert [case.collective for case in summary_rows(output)] == ["broadcast", "barrier", "reduce"]
    assert [refused.reason for refused in output.refused] == [
        "Memcpy is no collective that torchcoll has",
        "the blocks of Alltoallv may be uneven, and the file does not tell them",
        "Gatherv is no collective that torchcoll has",
        "half a row: 3 fields, the heading has 5",
    ]


def test_streaming(imported):
    text = ucc("Bcast", ROW, more="Iteration mode:         streaming\n")
    assert [case.mode for case in summary_rows(imported(text))] == ["back-to-back"]
