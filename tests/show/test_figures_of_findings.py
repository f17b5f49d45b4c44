"""The charts and frames that findings give in Python."""

import pytest
from handmade import case, result, run

from torchcoll.core.errors import TorchcollError

pytest.importorskip("plotly")


def several(*sizes):
    return run(*(result(case=case(size_bytes=size), size_bytes=size) for size in sizes))


def test_plot_has_a_curve_and_the_calls_of_three_sizes():
    figures = several(1024, 4096, 16384, 65536).plot()
    titles = [figure.layout.title.text for figure in figures]
    assert titles[0] == "all_reduce"
    assert [t for t in titles if "in order" in t] == [
        f"all_reduce {size}: calls in order" for size in ("1K", "16K", "64K")
    ]
    (curve,) = [trace for trace in figures[0].data if trace.mode == "lines+markers"]
    assert list(curve.x) == [1024, 4096, 16384, 65536]
    assert repr(figures).startswith(f"<{len(figures)} figures: all_reduce; ")


def test_plot_of_nothing_says_so():
    with pytest.raises(TorchcollError, match="expected a run in which a case has a time"):
        run().plot()


def test_a_frame_of_cases_and_of_calls():
    measured = several(1024, 4096)
    cases = measured.frame()
    assert list(cases["size_bytes"]) == [1024, 4096]
    assert {"median_ns", "busbw_gbps", "collective"} <= {*cases.columns}
    calls = measured.frame("call")
    (first, *_) = measured.results
    steady = calls[(calls["kind"] == "steady") & (calls["size_bytes"] == 1024)]
    of_rank_1 = steady[steady["rank"] == 1]["time_ns"]
    assert list(of_rank_1) == list(first.time_ns["host"][1])
    assert len(calls[calls["kind"] == "cold"]) == 2 * sum(map(len, first.cold_ns))
    with pytest.raises(TorchcollError, match="each: got rank, expected"):
        measured.frame("rank")
