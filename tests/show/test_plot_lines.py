"""Result files as lines over sizes."""

import pytest
from error_form import error_text
from made_runs import given, make_runs, measured, run

from torchcoll.core.errors import UsageError
from torchcoll.questions.check.rules import Limit
from torchcoll.questions.show.plot import limits_of
from torchcoll.questions.show.size_charts import bandwidth_map, line_names, picture_of
from torchcoll.stats.sides import side


def lines_of(*runs, **choices):
    (lines,) = picture_of([side("", list(runs))], **choices).panels.values()
    return lines


def test_one_launch_is_a_line_of_medians_with_the_spread_of_its_calls():
    result = measured(1, time_ns={"host": [[100, 200, 300, 400, 500], [1, 1, 1, 1, 1]]})
    (line,) = lines_of(run(result, measured(9000, size_bytes=1 << 20)))
    first, last = line.points
    # Of 100 .. 500 the 5th percentile lies a fifth of the way from the first to the second.
    assert (first.size_bytes, first.time_ns, first.runs) == (1024, 300, 1)
    assert (first.low_ns, first.high_ns) == (pytest.approx(120), pytest.approx(480))
    # 2 ranks: the bus factor of all_reduce, 2 (n - 1) / n, is 1. 1 MiB in 9 us.
    assert last.busbw_gbps == pytest.approx((1 << 20) / 9000)


def test_several_launches_are_pooled_by_their_geometric_mean():
    (line,) = lines_of(*make_runs([{1024: 200}, {1024: 800}]))
    (point,) = line.points
    assert (point.time_ns, point.low_ns, point.high_ns) == (pytest.approx(400), 200, 800)
    assert point.runs == 2


def test_what_was_varied_on_purpose_makes_lines_and_the_rest_is_told():
    varied = [
        run(measured(100), variables={"NCCL_ALGO": name}, environment={"kernel": kernel})
        for name, kernel in (("Ring", "6.1"), ("Tree", "6.8"))
    ]
    found = picture_of([side("a", varied)])
    assert [line.values["NCCL_ALGO"] for line in found.panels["all_reduce"]] == ["Ring", "Tree"]
    assert found.notes == ["hidden: the runs of a are not alike in kernel (6.1, 6.8)"]


def test_machines_and_libraries_are_never_pooled():
    """The bus bandwidth of 480 and 235 GB/s has no mean that a machine had."""
    machines = [run(measured(ns), device_name=name) for ns, name in ((100, "H100"), (400, "A100"))]
    lines = lines_of(*machines)
    assert [(x.values["device_name"], x.points[0].time_ns) for x in lines] == [
        ("H100", 100),
        ("A100", 400),
    ]
    assert line_names(lines) == ["H100", "A100"]
    libraries = [
        run(measured(ns), environment={"libraries": {"gloo": name}})
        for ns, name in ((100, "gloo 1"), (400, "gloo 2"))
    ]
    lines = lines_of(*libraries)
    assert [p.time_ns for line in lines for p in line.points] == [100, 400]
    assert line_names(lines) == ["library gloo 1", "library gloo 2"]
    found = picture_of([side("a", [*machines, *libraries])])
    assert found.notes == []  # the names of the lines say it


def test_the_map_has_a_row_for_each_machine_and_no_text_where_none_fits():
    sizes = [1 << n for n in range(10, 40)]
    machines = [
        run(*(measured(n // speed, size_bytes=n) for n in sizes), device_name=name)
        for speed, name in ((400, "H100"), (100, "A100"))
    ]
    for number, fits in ((5, True), (30, False)):
        few = [run(*of.results[-number:], device_name=name)
               for of, name in zip(machines, ("H100", "A100"), strict=True)]  # fmt: skip
        drawn = bandwidth_map(picture_of([side("", few)]), {})
        (trace,) = drawn.traces
        assert trace["y"] == ["all_reduce, H100", "all_reduce, A100"]
        assert [row[-1] for row in trace["text"]] == ["400", "100"]
        assert ("texttemplate" in trace) == fits


def test_colours_of_the_map_are_shares_of_the_limit_where_it_is_known():
    """1 KiB in 1 ns or 4 ns on 2 ranks: 1024 and 256 GB/s."""
    each = [run(measured(1, collective="all_reduce"), measured(4, collective="broadcast", op=None),
                measured(4, collective="hypercube", op=None))]  # fmt: skip
    picture = picture_of([side("", each)])
    ring = "x", Limit("ring", ("all_reduce", "broadcast"), 1024.0, "")
    nvls = "x", Limit("NVLS", ("all_reduce",), 2048.0, "")
    (trace,) = bandwidth_map(picture, {}, [ring, nvls]).traces
    assert trace["y"] == ["all_reduce, of 2048", "broadcast, of 1024"]
    assert [row[-1] for row in trace["z"]] == [0.5, 0.25]
    assert [row[-1] for row in trace["text"]] == ["50 %", "25 %"]
    assert [row[-1] for row in trace["customdata"]] == ["1024", "256"]
    drawn = bandwidth_map(picture, {}, [ring])
    assert "small sizes are bound by latency" in drawn.caption[0]
    assert "no row: hypercube" in drawn.caption[1]
    low = "x", Limit("ring", ("all_reduce", "broadcast"), 1000.0, "")
    drawn = bandwidth_map(picture, {}, [low])
    assert [row[-1] for row in drawn.traces[0]["text"]] == ["102 %!", "26 %"]
    assert drawn.caption[1].startswith("!: above the limit")
    (trace,) = bandwidth_map(picture, {}).traces
    assert len(trace["y"]) == 3 and max(row[-1] for row in trace["z"]) == 1


def test_an_imported_run_has_the_limits_of_the_fabric_that_its_labels_leave():
    labels = {"gpu": "NVIDIA H200", "hosts": "1"}
    cases = [measured(1 << 20, ranks=8, size_bytes=1 << 34, backend="nccl", device="cuda")]
    published = run(*cases, ranks=8, labels=labels, source={"tool": "nccl-tests"})
    named = {name for name, _ in limits_of([published], None)}
    assert named == {"nvswitch-h200"}
    assert limits_of([run(*cases, ranks=8)], None) == []


def test_sides_are_never_pooled():
    one, other = make_runs([100]), make_runs([400], environment={"kernel": "6.8"})
    found = picture_of([side("a", one), side("b", other)])
    assert [(x.side, x.points[0].time_ns) for x in found.panels["all_reduce"]] == [
        ("a", 100),
        ("b", 400),
    ]
    assert found.notes == ["the sides are not alike in kernel (6.1, 6.8)"]


def test_a_source_without_samples_has_no_spread():
    (line,) = lines_of(run(given(100.0), source={"tool": "osu"}))
    assert (line.points[0].low_ns, line.points[0].high_ns) == (None, None)


def test_a_rehearsal_says_so():
    found = picture_of([side("a", [run(measured(100), rehearse=True)])])
    assert found.notes == ["rehearsals: ranks shared a GPU, and no time means anything"]


def test_the_filter():
    both = run(measured(100), measured(300, size_bytes=1 << 20))
    (line,) = lines_of(both, filter="size>=1M")
    assert [p.size_bytes for p in line.points] == [1 << 20]
    with pytest.raises(UsageError, match="none with a time and a size with dtype=int8"):
        lines_of(both, filter="dtype=int8")


def test_nothing_to_draw():
    failed = measured(1, status="unsupported", cold_ns=[], time_ns={})
    with pytest.raises(UsageError, match=error_text("cases", "none with a time and a size", "")):
        lines_of(run(failed))


def test_what_has_no_time_is_counted():
    failed = [measured(1, status="oom", cold_ns=[], time_ns={}, size_bytes=n) for n in (4096, 8192)]
    assert picture_of([side("", [run(measured(100), *failed)])]).notes == [
        "the run ran out of memory (4K, 8K)"
    ]
    runs = [
        run(measured(100), measured(1, status="timeout", time_ns={}, size_bytes=8)),
        run(measured(100)),
    ]
    assert picture_of([side("a", runs)]).notes == ["1 of 2 runs of a timed out (8)"]
