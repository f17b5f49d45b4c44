"""A printed bandwidth that contradicts the printed time: both are shown."""

import pytest

from torchcoll.core.summary import summarise

LOGGER = (
    "Comm. Op            Message Size        Count               Total Latency(ms)   "
    "Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)    \n"
)
BENCH = (
    "---- Performance of {name} on 8 devices ----------------\n"
    "Size (Bytes)         Description               Duration             Throughput (Gbps)"
    "    BusBW (Gbps)        \n"
)


def only(imported):
    (result,) = imported.runs[0].results
    return result, summarise(result)


def test_deepspeed_logger(imported):
    """10,240 B in 0.22 ms are 0.0465 GB/s; the logger's mean of the calls is 0.56 Gbit/s."""
    cells = ("", "10.0 KB", "16", "3.50", "0.22", "0.56", "0.56")
    row = "".join(f"{cell:<20}" for cell in cells)
    result, shown = only(imported(f"{LOGGER}broadcast\n{row}\n", ranks=4))
    assert shown.busbw_gbps == pytest.approx(0.046545, rel=1e-4)
    assert result.warnings[-1] == (
        "given busbw 0.07 GB/s, but 0.0465455 follows from size, time and ranks"
    )


def test_deepspeed_logger_agrees_as_far_as_its_time_is_rounded(imported):
    """0.06 ms is 0.055 to 0.065: 2,048 B in them are 0.0315 to 0.0372 GB/s."""
    cells = ("", "2.0 KB", "16", "0.96", "0.06", "0.29", "0.29")
    row = "".join(f"{cell:<20}" for cell in cells)
    result, _ = only(imported(f"{LOGGER}broadcast\n{row}\n", ranks=4))
    assert [text for text in result.warnings if "given" in text] == []


@pytest.mark.parametrize(
    ("name", "busbw", "contradicts"),
    [
        # 268,435,456 B in 1.432 ms, x 2 x 7/8: 328.046 GB/s are 2,624 Gbit/s.
        ("all_reduce", "2624.274", False),
        ("all_reduce", "262.427", True),
        # Of a share of each of 8 ranks, x 7/8.
        ("all_gather", "10497.1", False),
    ],
)
def test_deepspeed_bench(imported, name, busbw, contradicts):
    row = (
        f"256.0 MB             67108864x4                1.432 ms             1.000      {busbw}\n"
    )
    result, _ = only(imported(BENCH.format(name=name) + row))
    assert bool(result.warnings) is contradicts
    if contradicts:
        assert result.warnings == [
            "given busbw 32.8034 GB/s, but 328.046 follows from size, time and ranks"
        ]
