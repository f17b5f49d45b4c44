"""What is compared with what, what differs beside it, and different hardware."""

import pytest
from error_form import error_text
from made_runs import given, make_runs, measured, run

from torchcoll.core.errors import UsageError
from torchcoll.core.result import Reported, Verification
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import answer_of
from torchcoll.questions.comparison.show import comparison_object
from torchcoll.stats.sides import side


def one(ns=100, **changed):
    return run(measured(ns, **changed))


@pytest.mark.parametrize(
    ("base", "new", "what"),
    [
        ({"dtype": "float32"}, {"dtype": "bfloat16"}, "dtype (float32; bfloat16)"),
        (
            {"collective": "all_gather", "op": None},
            {"collective": "broadcast", "op": None},
            "collective (all_gather; broadcast)",
        ),
        ({"size_bytes": 1024}, {"size_bytes": 2048}, "size (1K; 2K)"),
        ({"op": "sum"}, {"op": "max"}, "op (sum; max)"),
        (
            {"op": "sum", "size_bytes": 8},
            {"op": "max", "size_bytes": 16},
            "op (sum; max) and size (8; 16)",
        ),
    ],
)
def test_nothing_in_common_names_what_keeps_them_apart(base, new, what):
    with pytest.raises(UsageError) as caught:
        compare(one(**base), one(**new))
    assert str(caught.value) == (
        error_text("cases", f"nothing in common in {what}", "cases that both sides have")
    )


def test_nothing_in_common_is_about_the_nearest_collective_and_its_ranks():
    pair = measured(9, collective="sendrecv", op=None, in_place=False, size_bytes=8)
    wide = measured(9, ranks=6, size_bytes=64)
    text = r"nothing in common in ranks \(6; 2\) and size \(64; 8\) of all_reduce"
    with pytest.raises(UsageError, match=text):
        compare(run(pair, wide), run(measured(9, size_bytes=8)))


def test_nothing_in_common_with_many_sizes():
    base = run(*(measured(9, size_bytes=n) for n in range(1, 90, 2)))
    new = run(*(measured(9, size_bytes=n) for n in range(2, 90, 2)))
    with pytest.raises(UsageError, match=r"in size \(1, 3, ..., 89; 2, 4, ..., 88\)"):
        compare(base, new)


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "note"),
    [
        ("backend", "gloo", "ccl", "the sides also differ in: backend (gloo -> ccl)"),
        ("in_place", True, False, "the sides also differ in: in_place (in place -> out of place)"),
        (
            "implementation",
            "own",
            "one_shot",
            "the sides also differ in: implementation (own -> one_shot)",
        ),
        (
            "buffer_reuse",
            "same",
            "rotate",
            "the sides also differ in: buffer_reuse (same -> rotate)",
        ),
        (
            "buffer_reuse",
            "unknown",
            "rotate",
            "matched without buffer_reuse: one side does not tell",
        ),
        ("misalign_bytes", 0, 4, "the sides also differ in: misalign_bytes (0 -> 4)"),
        ("dtype", "float32", None, "matched without dtype: one side does not tell"),
        ("in_place", None, False, "matched without in_place: one side does not tell"),
    ],
)
def test_what_may_differ_is_said(name, ours, theirs, note):
    found = compare(one(**{name: ours}), one(**{name: theirs}))
    assert [row.reason for row in found.rows] == ["1 run a side"]
    assert note in found.notes


@pytest.mark.parametrize(
    ("base", "new"),
    [
        # Imported before this was asked, and again since: one run of each.
        (["unknown", "rotate"], ["rotate", "rotate"]),
        (["unknown", "unknown"], ["unknown", "rotate"]),
        (["rotate", "unknown"], ["unknown", "rotate"]),
    ],
)
def test_launches_that_do_not_tell_are_taken_for_the_others(base, new):
    ours, theirs = ([one(100 + n, buffer_reuse=how) for n, how in enumerate(side, side is new)]
                    for side in (base, new))  # fmt: skip
    found = compare(ours, theirs)
    (row,) = found.rows
    assert (len(row.judged.base), len(row.judged.new)) == (2, 2)
    note = "some runs do not tell buffer_reuse: taken for rotate, as all others"
    assert found.notes.count(note) == 1
    assert not any(text.startswith("matched without") for text in found.notes)


def test_a_side_that_does_not_tell_is_compared_with_each_kind():
    theirs = [one(100 + n, buffer_reuse=how) for n, how in enumerate(("unknown", "same", "rotate"))]
    found = compare(one(99, buffer_reuse="unknown"), theirs)
    assert [row.ratio for row in found.rows] == pytest.approx([100 / 99, 101 / 99, 102 / 99])
    assert "matched without buffer_reuse: one side does not tell" in found.notes


@pytest.mark.parametrize(
    ("ours", "theirs", "how"),
    [
        ({"mode": "synchronized"}, {"mode": "back-to-back"}, "mode synchronized / back-to-back"),
        ({"time_ns": {"device": [[9] * 3] * 2}}, {}, "clock device / host"),
    ],
)
def test_another_way_to_measure_is_no_evidence(ours, theirs, how):
    base = [run(measured(ns, **ours)) for ns in (100, 101, 102)]
    new = [run(measured(ns, **theirs)) for ns in (200, 202, 204)]
    (row,) = compare(base, new).rows
    assert (row.result, row.reason) == ("inconclusive", f"measured in different ways: {how}")
    assert row.ratio and row.judged.p_value is None
    # Asked for by the names of the sides, it is judged like all else.
    name, (one, other) = how.split()[0], how.split()[1::2]
    sides = side(f"{name}:{one}", base), side(f"{name}:{other}", new)
    (row,) = compare(*sides).rows
    assert row.result in ("faster", "slower")


def test_two_kinds_of_one_side_are_compared_apart():
    base = one(100)
    new = run(measured(110, backend="ccl"), measured(130, backend="mpi"))
    found = compare(base, new)
    assert [round(row.ratio, 2) for row in found.rows] == [1.1, 1.3]
    assert [row.pair.side_values[1]["backend"] for row in found.rows] == ["ccl", "mpi"]
    float32, both = one(100), run(measured(110), measured(130, dtype="bfloat16"))
    rows = compare(float32, both).rows
    assert [(row.result, row.reason) for row in rows] == [
        ("inconclusive", "1 run a side"),
        ("not comparable", "only in new"),
    ]


def test_requested_bytes_match_where_both_have_them():
    base, new = one(size_bytes=1000, ranks=2), run(measured(100, size_bytes=1000))
    base.results[0].size_bytes = 996
    (row,) = compare(base, new).rows
    assert row.notes == ("actual sizes differ: 996, 1000 bytes",)


def test_actual_bytes_match_what_was_imported():
    ours = one(size_bytes=1000)
    ours.results[0].size_bytes = 992
    theirs = run(given(100, size_bytes=992, clock="host"), source={"tool": "nccl-tests"})
    (row,) = compare(ours, theirs).rows
    assert (row.pair.size_bytes, row.reason) == (992, "single means, 1 run a side")


def test_a_clock_that_is_not_told_is_not_the_other_sides():
    theirs = run(given(100), source={"tool": "a published table"})
    theirs.results[0].reported = Reported(100, "mean")
    ours = run(measured(100), measured(0, size_bytes=8, status="unsupported", time_ns={}))
    found = compare(ours, theirs)
    # Its clock is nobody's; a case that did not run is still one of its own side's.
    assert [
        (row.matched, row.pair.side_values[1]["clock"]) for row in found.rows if row.matched
    ] == [(True, None)]
    assert {row.pair.side_values[0]["clock"] for row in found.rows} == {"host"}
    (note,) = (note for note in found.notes if note.startswith("matched without"))
    assert "clock" in note
    assert not any("clock (" in note for note in found.notes)


def test_what_differs_is_said_without_a_ratio_too():
    found = compare(one(ranks=2), run(measured(100, ranks=4), ranks=4))
    assert [(each.name, each.base, each.new) for each in found.settings] == [
        ("ranks", ("2",), ("4",))
    ]
    assert not any(note.startswith("the sides also differ") for note in found.notes)
    wrong = run(measured(100, backend="ccl", verification=Verification(checked=9, wrong=1)))
    found = compare(one(), wrong)
    assert "the sides also differ in: backend (gloo -> ccl)" in found.notes


def test_an_unknown_number_of_ranks_matches_any():
    theirs = run(given(100, ranks=0), source={"tool": "osu"}, ranks=0)
    found = compare(one(), theirs)
    assert found.rows[0].result == "inconclusive"
    assert "matched without ranks, mode: one side does not tell" not in found.notes
    assert any(note.startswith("matched without ranks") for note in found.notes)


def test_what_differs_between_the_environments_comes_first():
    base = run(measured(100), labels={"node": "a"}, variables={"GLOO_X": "1"})
    environment = {"kernel": "6.8", "libraries": {"gloo": "gloo 2"}}
    new = run(measured(100), labels={"node": "b"}, environment=environment, hosts=["vm2"])
    assert [str(d) for d in compare(base, new).differences] == [
        "label=node: a -> b",
        "hosts: vm -> vm2",
        "kernel: 6.1 -> 6.8",
        "GLOO_X: 1 -> unset",
        "gloo: gloo 1 -> gloo 2",
    ]
    assert compare(one(), one()).differences == []


def test_what_only_one_side_tells_may_differ():
    found = compare(one(), run(given(100), source={"tool": "osu", "version": "7.4"}))
    assert [str(d) for d in found.differences] == ["source: torchcoll -> osu 7.4"]
    assert "new does not tell torch, kernel, hosts, device_name: it may differ" in found.notes


def test_hidden_dimensions_are_reported_and_by_keeps_them_apart():
    ring, tree = ({"variables": {"NCCL_ALGO": name}} for name in ("Ring", "Tree"))
    base = [run(measured(100), **ring), run(measured(200), **tree)]
    new = [run(measured(101), **ring), run(measured(150), **tree)]
    found = compare(base, new)
    assert [line for line in found.notes if line.startswith("hidden")] == [
        f"hidden: the runs of {side} are not alike in NCCL_ALGO (Ring, Tree) "
        "(--by NAME keeps them apart)"
        for side in ("base", "new")
    ]
    separate = compare(base, new, by="NCCL_ALGO")
    assert [round(row.ratio, 2) for row in separate.rows] == [1.01, 0.75]
    assert not any(line.startswith("hidden") for line in separate.notes)


MANY = run(
    *(measured(100, size_bytes=n) for n in (1024, 1 << 20, 2 << 20)),
    *(measured(100, size_bytes=n, collective="all_gather", op=None) for n in (1024, 1 << 20)),
)


@pytest.mark.parametrize(
    ("text", "cases"),
    [
        ("", 5),
        ("size>=1M", 3),
        ("size > 1M", 1),
        ("size<1M,collective=allreduce", 1),
        ("collective!=all_reduce", 2),
        ("collective=all_reduce|allgather,size=1K", 2),
        ("in_place=yes,ranks<=2,backend=gloo", 5),
        ("op=sum", 3),
    ],
)
def test_filter(text, cases):
    assert len(compare(MANY, MANY, filter=text).rows) == cases


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "size",
            error_text("filter", "size", "NAME=VALUE, NAME!=VALUE, size>=1M, ... with commas "),
        ),
        ("speed=1", error_text("filter name", "speed", "one of size, collective, dtype, op, root")),
        (
            "size>1KB",
            error_text("filter size", "1KB", "a number of bytes with an optional K, M, G"),
        ),
        ("collective=scan", error_text("collective", "scan", "one of all_reduce, ")),
        ("dtype>float", error_text("filter", "dtype>float", "= or != with dtype, or one number")),
        ("size>=1M|2M", error_text("filter", "size>=1M|2M", "= or != with size, or one number")),
        ("ranks=x", error_text("filter ranks", "x", "a whole number")),
        ("in_place=maybe", error_text("filter in_place", "maybe", "yes or no")),
        ("size>1G", error_text("filter", "size>1G", "conditions that some case fulfils")),
    ],
)
def test_bad_filters(text, error):
    with pytest.raises(UsageError) as caught:
        compare(MANY, MANY, filter=text)
    assert str(caught.value).startswith(error)


SIZES = {1024: 10_000, 1 << 20: 20_000, 4 << 20: 50_000}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"device_name": "PVC"}, "different hardware: device names Xeon and PVC"),
        ({"hosts": ["a", "b"]}, "different hardware: numbers of hosts 1 and 2"),
    ],
)
def test_different_hardware_has_no_faster_and_slower(changed, reason):
    base, new = (
        make_runs([SIZES] * 3),
        make_runs([{n: 2 * t for n, t in SIZES.items()}] * 3, **changed),
    )
    found = compare(base, new)
    assert {(row.result, row.reason, row.ratio) for row in found.rows} == {
        ("not comparable", reason, None)
    }
    ((_, ours, theirs),) = found.profiles
    # 4 MiB in 50 us are 83.9 GB/s, 1 MiB in 20 us are 52.4: above half of it; 1 KiB is not.
    assert ours.best_gbps == pytest.approx((4 << 20) / 50_000)
    assert (ours.below_bytes, ours.half_bytes) == (1024, 1 << 20)
    assert (ours.floor_bytes, ours.floor_ns) == (1024, 10_000)
    assert theirs.floor_ns == pytest.approx(20_000)
    assert ours.first_result_ns == 30_000  # the first call of the run, thrice the others


def test_each_side_is_judged_by_all_of_its_own_sizes():
    base, new = make_runs([{1024: 10_000}]), make_runs([{8: 5_000, **SIZES}], device_name="PVC")
    ((_, ours, theirs),) = compare(base, new).profiles
    # Its one size is its best: nobody knows how much of the time is latency.
    assert (ours.best_gbps, ours.floor_bytes, ours.floor_ns) == (pytest.approx(0.1024), 1024, None)
    assert (ours.below_bytes, ours.half_bytes) == (None, 1024)
    assert (theirs.best_gbps, theirs.floor_ns) == (pytest.approx((4 << 20) / 50_000), 5_000)


def test_other_devices_and_ranks():
    found = compare(one(), run(measured(9_000, device="cuda", backend="nccl"), device_name=None))
    assert found.rows[0].reason == "different hardware: devices cpu and cuda"
    found = compare(one(ranks=2), run(measured(100, ranks=4), ranks=4))
    assert found.rows[0].reason == "different numbers of ranks: 2 and 4"
    assert len(found.profiles) == 1


def test_another_host_of_the_same_kind_is_no_other_hardware():
    found = compare(one(), run(measured(100), hosts=["vm2"]))
    assert found.rows[0].reason == "1 run a side"


def test_time_to_first_result_counts_connecting():
    changed = {"header": {"connects": "init_process_group"}, "device_name": "PVC"}
    late = run(measured(100), phases={"init_process_group": [1_000, 5_000]}, **changed)
    eager = run(measured(100), phases={"communicator": [7_000, 6_000]})
    own = run(measured(100, connect_ns=[9_000, 1]))
    used = run(measured(100), header={"connects": "before"})
    for base, expected in ((eager, 7_300), (own, 9_300), (used, None)):
        ((_, ours, theirs),) = compare(base, late).profiles
        assert (ours.first_result_ns, theirs.first_result_ns) == (expected, 5_300)


def two_backends(*first_ms):
    """gloo, which connects within init_process_group (10 ms), then ccl."""
    cold = [[[round(ms * 1e6)] * 2] * 2 for ms in first_ms]
    header = {"connects": "init_process_group"}
    header["connects_of"] = {"gloo": "init_process_group", "ccl": "first call"}
    header["spec"] = {"backend": "gloo,ccl"}
    return run(
        measured(100, backend="gloo", cold_ns=cold[0], ordinal=0),
        measured(50, backend="ccl", cold_ns=cold[1], ordinal=0),
        header=header,
        phases={"init_process_group": [10_000_000, 9_000_000]},
    )


def test_two_backends_are_compared_by_their_first_calls_too():
    launch = [two_backends(4, 800), two_backends(9, 1250)]
    ours, theirs = (side(f"backend:{name}", launch) for name in ("gloo", "ccl"))
    found = compare(ours, theirs)
    # Geometric means, as cold has them: of 4 and 9 ms, 800 and 1250; connecting takes gloo 10 ms
    # before: 14 and 19, of which it is the root of 266.
    expected = [("gloo", 6e6, 266**0.5 * 1e6), ("ccl", 1e9, 1e9)]
    found_starts = [(one.backend, one.first_call_ns, one.first_result_ns) for one in found.starts]
    assert found_starts == [
        (name, pytest.approx(call), pytest.approx(all)) for name, call, all in expected
    ]
    detail = "time to first result (connecting and first call): gloo 16.3 ms, ccl 1.00 s"
    assert detail in answer_of(found).details
    assert comparison_object(found)["starts"][1]["first_result_ns"] == pytest.approx(1e9)
    # Of one backend they are not told, unless they changed.
    assert "first" not in answer_of(compare(one(), one())).text
