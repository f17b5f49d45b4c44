"""What torchcoll exports in nccl-tests' format is not taken for a launch of nccl-tests."""

from __future__ import annotations

import pytest

from torchcoll.cli import main
from torchcoll.core.summary import summarise
from torchcoll.importers.registry import import_file

HEAD = """\
# {what} in the text format of nccl-tests
# Collective test starting: {collective}_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1024 step: 0(factor) warmup iters: 0 iters: 0 agg iters: 1
# torchcoll: torch.distributed {collective} on gloo, mode synchronized
# torchcoll: {reading}
# torchcoll: {placement}
#
# Using devices
#  Rank  0 Group  0 Pid      7 on         vm device  0 [0x00] cpu
#  Rank  1 Group  0 Pid      8 on         vm device  0 [0x00] cpu
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
        1024           256     float     sum      -1    20.00    0.05    0.05       0    20.00    0.05    0.05       0
# torchcoll: calls a case: warmup 2, timed 30
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.05
# Collective test concluded: {collective}_perf
"""  # noqa: E501
OURS = "time is the median over calls of the slowest rank"
REPEATED = "measured in-place only, the out-of-place columns repeat it"


def block(what="torchcoll", reading=OURS, placement=REPEATED, collective="all_reduce"):
    return HEAD.format(what=what, reading=reading, placement=placement, collective=collective)


def test_its_comments_are_believed(imported):
    found = imported(block())
    assert (found.importer, found.rows) == ("torchcoll-text", 1)
    (result,) = found.runs[0].results
    row = summarise(result)
    assert (row.backend, row.device, row.mode, row.clock) == (
        "gloo",
        "unknown",
        "synchronized",
        "unknown",
    )
    assert (row.in_place, row.statistic, row.calls, row.median_ns) == (True, "median", 30, 20_000)
    assert result.reported.over_ranks == "max"
    assert found.runs[0].source["tool"] == "torchcoll"
    assert [member["host"] for member in found.runs[0].members] == ["vm", "vm"]


def test_it_did_not_walk_through_its_buffers_as_nccl_tests_does(imported):
    """Unless it says so; what earlier versions wrote says nothing."""
    assert imported(block()).runs[0].results[0].case.buffer_reuse == "unknown"
    for how in ("same", "rotate"):
        stated = block(reading=f"{OURS}\n# torchcoll: buffer reuse: {how}")
        assert imported(stated).runs[0].results[0].case.buffer_reuse == how


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("time is the median over calls of the mean over ranks", ("median", "mean")),
        ("time = mean over calls, rank0 over ranks: figures of the source", ("mean", "rank0")),
        (
            "time = mean over calls, over ranks: unknown, computed from the bandwidth given: x",
            ("mean", "unknown"),
        ),
    ],
)
def test_what_the_figure_is(imported, reading, expected):
    placement = "placement unknown, both columns hold the one figure"
    what = "imported from a published table (CSV)"
    (result,) = imported(block(what, reading, placement)).runs[0].results
    assert (result.reported.statistic, result.reported.over_ranks) == expected
    assert result.case.in_place is None


def test_several_blocks(imported):
    found = imported(block() + block(collective="broadcast"))
    assert [r.case.collective for run in found.runs for r in run.results] == [
        "all_reduce",
        "broadcast",
    ]


def test_export_and_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all_reduce.csv").write_text("size,time (us),ranks\n1M,50,4\n")
    assert main(["export", "all_reduce.csv", "--format", "nccl-tests", "-o", "x.txt"]) == 0
    (result,) = import_file("x.txt").runs[0].results
    row = summarise(result)
    assert (row.backend, row.mode, row.in_place, row.dtype) == ("unknown", "unknown", None, None)
    assert (row.median_ns, row.ranks, row.statistic) == (50_000, 4, "unknown")
