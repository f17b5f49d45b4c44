"""What no machine does: bounds by hand from the bandwidth of links and memories."""

from __future__ import annotations

import pytest

from torchcoll.core.case import Case
from torchcoll.core.plausibility import (
    LEAST_CALL_NS,
    ceiling_gbps,
    doubts_of,
    stated_link_gbps,
    summarise_run,
)
from torchcoll.core.result import CaseResult, Given, Run

MIB = 1 << 20
A100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H200"
OWN = "likely the time of enqueueing alone"
FOREIGN = (
    "likely one rank only (no MPI in the build?), a wrong number of ranks, the time of enqueueing "
    "alone or data that never left a cache"
)


def measured(nbytes, ns, ranks=8, clock="device", **changed):
    """Three calls of ``ns`` on every rank."""
    fields = {
        **{"collective": "all_reduce", "dtype": "float32", "op": "sum", "root": None},
        **{"in_place": True, "cadence": "stream", "backend": "nccl", "device": "cuda"},
    }
    asked = Case(nbytes=nbytes, **(fields | changed))
    return CaseResult(asked, "ok", ranks, nbytes=nbytes, time_ns={clock: [[ns] * 3] * ranks})


def launch(*results, device=A100, source=None, **labels):
    header = {"spec": {"labels": labels}, "source": source or {}}
    return Run(header=header, members=[{"device_name": device}] * 8, results=list(results))


def doubt(result, **how):
    return doubts_of(launch(result, **how)).get(id(result), "")


def algbw(gbps, nbytes=64 * MIB, **changed):
    return measured(nbytes, round(nbytes / gbps), **changed)


def test_beyond_the_links_of_a_generation():
    # 300 GB/s of an A100 and 5 %: busbw 315, algbw 180 on 8 ranks.
    assert doubt(algbw(179)) == ""
    assert doubt(algbw(181)) == (
        f"busbw beyond all links of one A100 (300 GB/s in one direction): {OWN}"
    )
    # Not an all_reduce: algbw is busbw.
    assert doubt(algbw(314, collective="broadcast", op=None, root=0)) == ""
    assert doubt(algbw(316, collective="broadcast", op=None, root=0)).startswith("busbw beyond")


def test_a_switch_that_reduces_lifts_all_reduce():
    # 450 GB/s and 5 % are an algbw of 472.5, whatever the ranks.
    assert doubt(algbw(472), device=H200) == ""
    assert doubt(algbw(473), device=H200).startswith("busbw beyond all links of one H200 (450 ")
    gather = {"collective": "all_gather", "op": None}
    assert doubt(algbw(539, **gather), device=H200) == ""  # busbw 471.6
    assert doubt(algbw(541, **gather), device=H200).startswith("busbw beyond")
    assert ceiling_gbps("all_reduce", 8, 450, True) == 450 * 1.75
    assert ceiling_gbps("all_reduce", 8, 450, False) == 450
    assert ceiling_gbps("all_gather", 8, 450, True) == 450


def test_two_ranks_gain_nothing_by_the_switch_and_unknown_devices_have_no_bound():
    assert ceiling_gbps("all_reduce", 2, 450, True) == 450
    assert doubt(algbw(5000, ranks=2), device="NVIDIA GeForce RTX 5090") == ""
    assert doubt(algbw(5000, device="cpu", backend="gloo", clock="host")) == ""


def test_stated_links_are_a_bound_on_any_device():
    slow = {"device": "cpu", "backend": "gloo", "clock": "host"}
    # 1 GB/s, 5 %, and twice 7/8 for a network that reduces: algbw 1.05.
    assert doubt(algbw(1.04, **slow), device="AMD EPYC", link_gbps="1") == ""
    assert doubt(algbw(1.06, **slow), device="AMD EPYC", link_gbps="1") == (
        "busbw beyond the links that were stated (1 GB/s in one direction): likely the time of "
        "enqueueing alone or links that are faster than was stated"
    )
    # Eight H100 with NVLS reach 480 GB/s of busbw over 450: no lie.
    assert doubt(algbw(480 / 1.75), device="NVIDIA H100 80GB HBM3", link_gbps="450") == ""
    # Eight A100 cannot: their switches do not reduce.
    assert doubt(algbw(320 / 1.75), device=A100, link_gbps="300").startswith("busbw beyond")


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "inf", "nan", None, []])
def test_a_stated_bandwidth_that_is_none(text):
    assert stated_link_gbps(launch(link_gbps=text)) is None
    assert stated_link_gbps(launch()) is None
    assert stated_link_gbps(launch(link_gbps="2.5e1")) == 25


@pytest.mark.parametrize(
    ("changed", "short"),
    [
        ({}, True),
        ({"cadence": "graph"}, False),
        ({"coalesce": 8}, False),
        ({"device": "cpu", "backend": "gloo"}, False),
        ({"device": "unknown"}, False),
        ({"clock": "issue"}, False),
        ({"rehearsal": True}, False),
        ({"backend": "fake"}, False),
        ({"ranks": 1}, False),
    ],
)
def test_shorter_than_launching_a_kernel(changed, short):
    text = f"shorter than launching a kernel ({LEAST_CALL_NS} ns): {OWN}"
    assert doubt(measured(8, 1499, **changed)) == (text if short else "")
    assert doubt(measured(8, 1500, **changed)) == ""


def copies(gbps, latency=3000, sizes=(1, 4, 16), **changed):
    return [measured(n * MIB, round(latency + n * MIB / gbps), **changed) for n in sizes]


def test_a_copy_within_the_device():
    # Half of 2039 GB/s is 1019.5; 75 % of it is 765 and 102 % are 1040.
    for gbps, found in ((760, False), (770, True), (1035, True), (1045, False)):
        run = launch(*copies(gbps))
        texts = set(doubts_of(run).values())
        copy = (
            f"3 sizes follow 3.0 us + S / {gbps} GB/s, as a copy within one A100 does (memory of "
            # 240 GB/s over 14/8 are 137.
            f"2039 GB/s), {gbps / (240 / 1.75):.1f} times the 137 GB/s algbw of a ring of 8: {OWN}"
        )
        assert (texts == {copy}) == found


def test_too_few_sizes_and_small_ones_are_no_law():
    assert all(
        "follow" not in text for text in doubts_of(launch(*copies(800, sizes=(1, 4)))).values()
    )
    twice = copies(800, sizes=(4, 4, 16))
    assert all("follow" not in text for text in doubts_of(launch(*twice)).values())
    # Two placements are two sweeps.
    apart = [*copies(800, sizes=(1, 4)), *copies(800, sizes=(16, 64), in_place=False)]
    assert all("follow" not in text for text in doubts_of(launch(*apart)).values())


def test_an_import_has_more_causes():
    source = {"tool": "a published table"}
    assert doubt(algbw(181), source=source).endswith(f": {FOREIGN}")


def test_one_rank_of_nccl_tests_is_named():
    figure = Given(4630.0, "mean", clock="host", algbw_gbps=226.5, busbw_gbps=0.0)
    result = measured(MIB, 0, ranks=1)
    result.time_ns, result.given = {}, figure
    assert doubt(result, source={"tool": "nccl-tests"}) == (
        "one rank: busbw is 0, for nothing was communicated. If there were to be more: nccl-tests "
        "built without MPI (build it with MPI=1) starts tests that never meet, or -g is missing"
    )
    assert doubt(result, source={"tool": "OSU"}) == ""
    assert doubt(measured(MIB, 9000, ranks=1)) == ""


def test_rows_say_so_and_the_reading_over_ranks_changes_nothing():
    good, bad = algbw(100), algbw(400)
    run = launch(good, bad)
    for how in ("max", "mean", "min", "rank0"):
        rows = summarise_run(run, how)
        assert [row.status for row in rows] == ["ok", "implausible"]
        assert rows[1].reason.startswith("busbw beyond")
    failed = CaseResult(good.case, "oom", 8, "no memory")
    assert summarise_run(launch(failed))[0].status == "oom"


def test_rows_that_are_known_are_not_read_again(monkeypatch):
    run = launch(algbw(100), algbw(400))
    rows = summarise_run(run)
    from torchcoll.core import plausibility

    monkeypatch.setattr(plausibility, "summarise", None)  # calling it fails
    assert doubts_of(run, rows).keys() == {id(run.results[1])}
