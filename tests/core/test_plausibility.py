"""What no machine does: bounds by hand from the bandwidth of links and memories."""

import pytest

from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.plausibility import (
    LEAST_CALL_NS,
    ceiling_gbps,
    crossing,
    doubts_of,
    link_unused,
    stated_link_gbps,
    summarise_run,
)
from torchcoll.core.result import CaseResult, Reported, Run

MIB = 1 << 20
A100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H200"
OWN = "likely the time of enqueueing alone"
FOREIGN = (
    "likely one rank only (no MPI in the build?), a wrong number of ranks, the time of enqueueing "
    "alone or data that never left a cache"
)


def measured(size_bytes, ns, ranks=8, clock="device", **changed):
    """Three calls of ``ns`` on every rank."""
    fields = {
        **{"collective": "all_reduce", "dtype": "float32", "op": "sum", "root": None},
        **{"in_place": True, "mode": "back-to-back", "backend": "nccl", "device": "cuda"},
    }
    asked = Case(size_bytes=size_bytes, **(fields | changed))
    return CaseResult(
        asked, "ok", ranks, size_bytes=size_bytes, time_ns={clock: [[ns] * 3] * ranks}
    )


def launch(*results, device=A100, source=None, **labels):
    header = {"spec": {"labels": labels}, "source": source or {}}
    return Run(header=header, members=[{"device_name": device}] * 8, results=list(results))


def doubt(result, **how):
    return doubts_of(launch(result, **how))[0]


def algbw(gbps, size_bytes=64 * MIB, **changed):
    return measured(size_bytes, round(size_bytes / gbps), **changed)


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


def on_hosts(result, *ranks, device="NVIDIA H100 80GB HBM3", **labels):
    """A run with so many ranks on each host."""
    run = launch(result, device=device, **labels)
    names = [f"node{host}" for host, many in enumerate(ranks) for _ in range(many)]
    run.members = [{"device_name": device, "host": host} for host in names]
    return run


def doubt_on(result, *ranks, **how):
    return doubts_of(on_hosts(result, *ranks, **how))[0]


def busbw(gbps, ranks, factor, **changed):
    return measured(64 * MIB, round(64 * MIB * factor / gbps), ranks=ranks, **changed)


def test_the_readme_s_own_label_on_a_correct_run():
    """Two nodes of eight H100, 369 GB/s (NVIDIA/nccl-tests#309) over eight interfaces of 50."""
    assert doubt_on(busbw(369, 16, 1.875), 8, 8, link_gbps="50") == ""
    # All eight carry S once at least, at 400 GB/s: busbw 750 and 5 %; an H100's bound is higher.
    assert doubt_on(busbw(787, 16, 1.875), 8, 8, link_gbps="50") == ""
    assert doubt_on(busbw(788, 16, 1.875), 8, 8, link_gbps="50") == (
        "busbw beyond what the stated links carry between hosts (50 GB/s a rank in one direction, "
        f"8 ranks a host): {OWN} or links that are faster than was stated"
    )


# What must cross, over S and the ranks of a host, by hand: two hosts of 8; four of 2; 3 and 1.
CROSSING = {
    "all_reduce": (1 / 8, 1 / 2, 1 / 3),
    "reduce": (1 / 8, 1 / 2, 1 / 3),
    "broadcast": (1 / 8, 1 / 2, 1 / 3),
    # Half of S comes in; six eighths; three quarters, to the host with one rank.
    "all_gather": (1 / 16, 3 / 8, 1 / 4),
    "reduce_scatter": (1 / 16, 3 / 8, 1 / 4),
    "hypercube": (1 / 16, 3 / 8, 1 / 4),
    "gather": (1 / 16, 3 / 8, 1 / 12),
    "scatter": (1 / 16, 3 / 8, 1 / 12),
    # Eight ranks with half of S each; two with three quarters; three with a quarter.
    "all_to_all": (1 / 2, 3 / 4, 1 / 4),
    # One neighbour of eight, of two, of three is elsewhere.
    "sendrecv": (1 / 8, 1 / 2, 1 / 3),
    "all_to_all_v": (0, 0, 0),  # splits may keep all within a host
    "reduce_scatter_v": (0, 0, 0),
    "all_gather_v": (0, 0, 0),
    "barrier": (0, 0, 0),
}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_must_cross(collective):
    layouts = (["a"] * 8 + ["b"] * 8, [*"aabbccdd"], [*"aaab"])
    found = tuple(crossing(collective, hosts, 0) for hosts in layouts)
    assert found == pytest.approx(CROSSING[collective])
    assert crossing(collective, ["a"] * 8, 0) == 0


def test_what_must_cross_depends_on_root_and_order():
    assert crossing("gather", [*"aaab"], 3) == pytest.approx(1 / 4)  # three quarters come in
    assert crossing("sendrecv", [*"abab"], None) == 1  # every rank sends away


# (busbw, collective, factor, ranks on each host, label): what machines really reach.
REAL = {
    "H100, NVLS": (480, 1.75, (8,), "50", "NVIDIA H100 80GB HBM3"),
    "H100, the GPU's links": (480, 1.75, (8,), "450", "NVIDIA H100 80GB HBM3"),
    "H100, NVLSTree, 2 nodes": (479, 1.875, (8, 8), "50", "NVIDIA H100 80GB HBM3"),
    "H100, SHARP, 4 nodes": (470, 1.9375, (8,) * 4, "50", "NVIDIA H100 80GB HBM3"),
    "H800, NVLSTree, 2 nodes of 12.5": (161, 1.875, (8, 8), "12.5", "NVIDIA H800"),
    "H20, NVLSTree, 2 nodes": (474, 1.875, (8, 8), "50", "NVIDIA H20"),
    "A100, 2 nodes": (192, 1.875, (8, 8), "25", A100),
    "MI300X, 2 nodes": (350, 1.875, (8, 8), "50", "AMD Instinct MI300X"),
    "B300, 2 nodes": (780, 1.875, (8, 8), "100", "NVIDIA B300 SXM6 AC"),
    "GB200 NVL72": (840, 2 * 71 / 72, (4,) * 18, "50", "NVIDIA GB200"),
}


@pytest.mark.parametrize("name", REAL)
def test_what_machines_reach_is_plausible(name):
    figure, factor, ranks, label, device = REAL[name]
    result = busbw(figure, sum(ranks), factor)
    assert doubt_on(result, *ranks, link_gbps=label, device=device) == ""


def test_where_the_label_is_of_no_use_it_is_said():
    """It was a bound within a host too: what shares a host does not cross the link."""
    slow = algbw(300, device="cpu", backend="gloo", clock="host")
    for run, why in (
        (on_hosts(slow, 8, device="AMD EPYC", link_gbps="1"), "all ranks share one host"),
        (launch(slow, link_gbps="1"), "which ranks share a host is unknown"),
        (
            on_hosts(slow, 4, 4, device="NVIDIA GB200", link_gbps="1"),
            "the GPUs' own links may connect",
        ),
        (
            on_hosts(slow, 4, 4, device="NVIDIA VR200", link_gbps="1"),
            "the GPUs' own links may connect",
        ),
        (on_hosts(slow, 4, 4, device="AMD Instinct MI450X", link_gbps="1"), "the GPUs' own links"),
    ):
        assert link_unused(run).startswith(f"label link_gbps not used: {why}")
        assert "stated" not in doubts_of(run)[0]
    for labels in ({"link_gbps": "1"}, {}, {"link_gbps": "x"}):
        assert link_unused(on_hosts(slow, 4, 4, **labels)) == ""


def test_sub_groups_are_bound_by_their_own_hosts():
    """Of two hosts with two ranks each: within a host nothing crosses."""
    inside = busbw(300, 2, 1.0, device="cpu", backend="gloo", clock="host")
    across = busbw(300, 2, 1.0, device="cpu", backend="gloo", clock="host")
    inside.members, across.members = [0, 1], [0, 2]
    run = on_hosts(inside, 2, 2, device="AMD EPYC", link_gbps="1")
    run.results.append(across)
    assert list(map(bool, doubts_of(run))) == [False, True]


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "inf", "nan", None, []])
def test_a_stated_bandwidth_that_is_none(text):
    assert stated_link_gbps(launch(link_gbps=text)) is None
    assert stated_link_gbps(launch()) is None
    assert stated_link_gbps(launch(link_gbps="2.5e1")) == 25


@pytest.mark.parametrize(
    ("changed", "short"),
    [
        ({}, True),
        ({"mode": "graph"}, False),
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
        texts = set(doubts_of(run))
        copy = (
            f"3 sizes follow 3.0 us + S / {gbps} GB/s, as a copy within one A100 does (memory of "
            # 240 GB/s over 14/8 are 137.
            f"2039 GB/s), {gbps / (240 / 1.75):.1f} times the 137 GB/s algbw of a ring of 8: {OWN}"
        )
        assert (texts == {copy}) == found


def test_too_few_sizes_and_small_ones_are_no_law():
    assert all("follow" not in text for text in doubts_of(launch(*copies(800, sizes=(1, 4)))))
    twice = copies(800, sizes=(4, 4, 16))
    assert all("follow" not in text for text in doubts_of(launch(*twice)))
    # Two placements are two sweeps.
    separate = [*copies(800, sizes=(1, 4)), *copies(800, sizes=(16, 64), in_place=False)]
    assert all("follow" not in text for text in doubts_of(launch(*separate)))


def test_an_import_has_more_causes():
    source = {"tool": "a published table"}
    assert doubt(algbw(181), source=source).endswith(f": {FOREIGN}")


def test_one_rank_of_nccl_tests_is_named():
    figure = Reported(4630.0, "mean", clock="host", algbw_gbps=226.5, busbw_gbps=0.0)
    result = measured(MIB, 0, ranks=1)
    result.time_ns, result.reported = {}, figure
    assert doubt(result, source={"tool": "nccl-tests"}) == (
        "one rank: busbw is 0, for nothing was communicated: likely nccl-tests built without "
        "MPI (build it with MPI=1), which starts tests that never meet, or -g is missing"
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
