"""``export --trace``: when each call of each rank was, and how well that is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from error_form import error_tail, error_text
from handmade import case, result, run

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.file import save
from torchcoll.inputs import load
from torchcoll.report.chrome_trace import trace_text


def calls(text):
    """rank -> (kind, call, start in ns, duration in ns) of each event, in order."""
    found = {}
    for one in json.loads(text)["traceEvents"]:
        if one["ph"] == "X":
            start, ns = round(one["ts"] * 1000), round(one["dur"] * 1000)
            own = (one["args"]["kind"], one["args"]["call"], start, ns)
            found.setdefault(one["pid"], []).append(own)
    return found


def clocks(text):
    return json.loads(text)["otherData"]["clocks"]


def made(**changed):
    fields = {
        "cold_ns": [[50, 10], [40, 20]],
        "cold_start_ns": [[1_000_000, 1_000_100], [1_000_005, 1_000_102]],
        "time_ns": {"host": [[5, 6, 7], [8, 3, 9]]},
        "batches": [2, 1],
        "batch_start_ns": [1_000_200, 1_000_300],
        "ramp_up_ns": [[1, 2], [3, 1]],
        "start_ns": 1_000_000,
    }
    return result(2, **(fields | changed))


def test_recorded_starts_and_reckoned_ones():
    text = trace_text([run(made(), ranks=2)])
    # Steady calls begin together, when the slower rank of the call before has ended.
    assert calls(text) == {
        0: [
            ("cold", 0, 0, 50),
            ("cold", 1, 100, 10),
            ("ramp_up", 2, 200, 1),
            ("steady", 3, 203, 5),
            ("steady", 4, 211, 6),
            ("ramp_up", 5, 300, 2),
            ("steady", 6, 302, 7),
        ],
        1: [
            ("cold", 0, 5, 40),
            ("cold", 1, 102, 20),
            ("ramp_up", 2, 200, 3),
            ("steady", 3, 203, 8),
            ("steady", 4, 211, 3),
            ("ramp_up", 5, 300, 1),
            ("steady", 6, 302, 9),
        ],
    }
    assert clocks(text) == ["r1: one host, one monotonic clock: offsets 0"]
    told = {e["args"]["kind"]: e["args"]["start"] for e in json.loads(text)["traceEvents"]
            if e["ph"] == "X"}  # fmt: skip
    assert told["cold"] == "recorded" and told["steady"].startswith("reckoned")


def test_without_a_barrier_each_rank_goes_on_alone():
    one = made(
        case=case(mode="back-to-back"), ramp_up_ns=[], batches=[3], batch_start_ns=[1_000_200]
    )
    steady = {r: [c[2] for c in own if c[0] == "steady"] for r, own in
              calls(trace_text([run(one, ranks=2)])).items()}  # fmt: skip
    assert steady == {0: [200, 205, 211], 1: [200, 208, 211]}


def test_another_host_is_put_to_the_clock_of_the_first():
    # Rank 1's host counts 7000 ns ahead; behind the barrier both began within 2 ns of each other.
    starts = [[1_000_000, 1_000_100, 1_000_200], [1_009_000, 1_007_102, 1_007_198]]
    one = made(cold_ns=[[50, 10, 10], [40, 20, 10]], cold_start_ns=starts)
    hosts = [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}]
    text = trace_text([run(one, ranks=2, members=hosts)])
    # The median of -7002 and -6998 is -7000; call 0, which met at the store, does not count.
    assert [c[2] for c in calls(text)[1] if c[0] == "cold"] == [2000, 102, 198]
    (note,) = clocks(text)
    assert note.startswith("r1: 2 hosts, aligned by the starts of calls behind a barrier")
    assert "within 0.0 us" in note  # 2 ns


def test_hosts_that_nothing_aligns_are_said_to_be_apart():
    hosts = [{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}]
    text = trace_text([run(made(cold_start_ns=[]), ranks=2, members=hosts)])
    assert "whose clocks the file cannot align" in clocks(text)[0]


def test_the_command(tmp_path, capsys):
    save(run(made(), ranks=2), tmp_path / "x.jsonl")
    out = tmp_path / "trace.json"
    assert main(["export", "--trace", str(tmp_path / "x.jsonl"), "-o", str(out)]) == 0
    assert len(calls(out.read_text())[0]) == 7
    assert "note: clocks: " in capsys.readouterr().err
    assert main(["export", "--trace", "--format", "csv", str(tmp_path / "x.jsonl")]) == 2
    assert error_text("trace", "--format csv too", "one of them") in capsys.readouterr().err


def test_nothing_to_trace():
    with pytest.raises(
        UsageError, match=error_text("^trace", error_tail("no call", "result files"))
    ):
        trace_text([run()])


def test_a_real_launch_is_what_the_format_of_chrome_traces_asks_for():
    """Google's Trace Event Format, which Perfetto reads: events have ph, pid, tid and name; X has
    ts and dur in us; M names processes and threads. Slices of one thread nest or do not meet.
    """
    path = Path(__file__).parents[2] / "results/gloo-oneccl-2ranks/run-1.jsonl"
    found = json.loads(trace_text([load(path)]))
    assert isinstance(found["traceEvents"], list)
    assert found["displayTimeUnit"] in ("ms", "ns")
    slices = {}
    for one in found["traceEvents"]:
        assert isinstance(one["name"], str) and one["name"]
        assert type(one["pid"]) is int and type(one["tid"]) is int
        if one["ph"] == "M":
            assert one["name"].startswith(("process_", "thread_"))
            assert set(one["args"]) <= {"name", "labels", "sort_index"}
            continue
        assert one["ph"] == "X" and one["ts"] >= 0 and one["dur"] >= 0
        slices.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["dur"]))
    assert len(slices) == 2  # a rank a process
    for own in slices.values():
        assert len(own) > 1000
        ends = 0.0
        for start, lasts in sorted(own):
            assert start >= ends - 0.001  # us, of one after the other
            ends = start + lasts
