"""Published tables: headings with and without units, and figures that contradict each other."""

import pytest

from torchcoll.core.summary import summarise


def table(imported, heading, row, **options):
    result = imported(f"{heading}\n{row}\n", "all_reduce.csv", **options)
    return result, [summarise(r) for run in result.runs for r in run.results]


@pytest.mark.parametrize(
    ("heading", "cell", "size_bytes"),
    [
        ("size", "1024", 1024),
        ("Size (B)", "1024", 1024),
        ("message size [KiB]", "4", 4 << 10),
        ("Size (MB)", "16", 16 << 20),
        ("size_mb", "1.5", 3 << 19),
        ("Size (MB)", "2G", 2 << 30),  # the cell's own unit wins
    ],
)
def test_the_unit_of_a_size(imported, heading, cell, size_bytes):
    (row,) = table(imported, f"{heading},time (us)", f"{cell},5")[1]
    assert (row.size_bytes, row.median_ns) == (size_bytes, 5000)


@pytest.mark.parametrize(
    ("heading", "gbps", "doubt"),
    [
        ("busbw (GB/s)", 80, ""),
        ("busbw (GBps)", 80, ""),
        ("busbw (Gbps)", 10, ""),
        ("busbw (Gb/s)", 10, ""),
        ("busbw [Gbit/s]", 10, ""),
        ("busbw (GiB/s)", 85.89934592, ""),
        ("busbw (MB/s)", 0.08, ""),
        ("busbw_gbps", 80, ""),  # torchcoll's own name
        ("busbw (gbps)", 10, "gbps in 'busbw (gbps)': taken as bits"),
        ("busbw", 80, "the heading 'busbw' names no unit: taken as GB/s"),
    ],
)
def test_the_unit_of_a_bandwidth(imported, heading, gbps, doubt):
    result, (row,) = table(imported, f"size,{heading}", "1M,80", ranks=2)
    assert row.busbw_gbps == pytest.approx(gbps)
    assert result.warnings[1:] == [doubt] * bool(doubt)


@pytest.mark.parametrize(
    ("heading", "ns"), [("time_ms", 5e6), ("Latency (usec)", 5e3), ("time (s)", 5e9), ("time", 5e3)]
)
def test_the_unit_of_a_time(imported, heading, ns):
    result, (row,) = table(imported, f"size,{heading}", "1M,5")
    assert row.median_ns == ns
    assert ("the heading 'time' names no unit: taken as us" in result.warnings) is (
        heading == "time"
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1M,-5,4,10", "time is no number from 0 on: -5"),
        ("1M,5,4,inf", "busbw is no number from 0 on: inf"),
        ("1M,5,many,10", "ranks: 'many'"),
        ("1M,5,999999999,10", "ranks: '999999999'"),
        ("-1M,5,4,10", "no size: '-1M'"),
    ],
)
def test_a_cell_that_is_no_number_is_refused(imported, row, reason):
    result, rows = table(imported, "size,time (us),ranks,busbw (GB/s)", row)
    assert (rows, [refusal.reason for refusal in result.refused]) == ([], [reason])


def test_sizes_in_elements_are_refused(imported):
    result, rows = table(imported, "size (elements),time (us)", "1M,5")
    assert rows == []
    assert result.refused[0].reason == "the sizes under 'size (elements)' are no bytes"


@pytest.mark.parametrize(
    ("busbw", "odd"),
    [("15.73", False), ("15", False), ("10.49", True), ("125.8", True), ("-", False)],
)
def test_inconsistent_bandwidths_are_reported(imported, busbw, odd):
    # 2^20 bytes in 100 us are 10.486 GB/s, of 4 ranks 15.729 GB/s of busbw.
    result, (row,) = table(imported, "size,time (us),ranks,busbw (GB/s)", f"1M,100,4,{busbw}")
    assert row.busbw_gbps == pytest.approx(float(busbw) if odd else 15.72864)
    warning = f"given busbw {busbw} GB/s, but 15.7286 follows from size, time and ranks"
    assert result.runs[0].results[0].warnings == [warning] * odd
    message = "1 of 1 row: bandwidths do not follow from size, time and ranks: the first in line 2"
    assert (message in result.warnings) is odd


def test_options_that_contradict_the_file_are_reported(imported):
    heading, row = "collective,size,time (us),ranks,dtype", "broadcast,1M,5,8,float"
    options = {"collective": "all_reduce", "ranks": 4, "dtype": "int8"}
    result, (first,) = table(imported, heading, row, **options)
    assert (first.collective, first.ranks, first.dtype) == ("all_reduce", 4, "int8")
    assert result.warnings == [
        "--collective all_reduce, but the file says broadcast",
        "--ranks 4, but the file says 8",
        "--dtype int8, but the file says float32",
    ]
