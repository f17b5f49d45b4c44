"""The times of ranks in a step, their clocks, and the trace for Perfetto: worked out by hand."""

import dataclasses
import json

import pytest
import torch
from error_form import error_text, expecting
from foreign_traces import INFO, event, kernel, param, step
from sent import MS, call, traffic

from torchcoll.cli import main
from torchcoll.core.traffic import Traffic, join
from torchcoll.parts.training.arrivals import find_arrivals
from torchcoll.parts.training.joined import join_ranks, measure_offsets
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.perfetto import traffic_trace
from torchcoll.parts.training.traces import read_traffic
from torchcoll.parts.training.traffic_show import traffic_answer
from torchcoll.parts.training.traffic_table import summarise_traffic

AHEAD = 1000 * MS  # rank 1's clock


def ran(start_ms, end_ms, ahead=0, **changed):
    """A kernel, issued 1 ms before it began."""
    start = start_ms * MS + ahead
    fields = {"start_ns": start - MS, "began_ns": start, "time_ns": (end_ms - start_ms) * MS}
    return call(clock="device", **({"step": 0} | fields | changed))


def spans(*times_ms, ahead=0):
    return [(start * MS + ahead, end * MS + ahead) for start, end in times_ms]


def made(clocks=True):
    """Both ranks begin and end together; rank 1 comes last to the one call, 30 ms after rank 0.

            0        20  30   40  50       70        90  100
    rank 0  computing-----|                 |computing-----|
                     |all_reduce------------|
    rank 1  computing-----------|           |computing|
                                  |all_red--|
    """
    calls_by_rank = {0: [ran(20, 70)], 1: [ran(50, 70, AHEAD)]}
    recorded = traffic(lambda rank: calls_by_rank[rank])
    recorded.steps = {0: spans((0, 100)), 1: spans((0, 100), ahead=AHEAD)}
    recorded.computing = {0: spans((0, 30), (70, 100)), 1: spans((0, 40), (70, 90), ahead=AHEAD)}
    recorded.source = "kineto"
    if clocks:
        recorded.clocks = {0: ("here", AHEAD), 1: ("here", 0)}
    return recorded


def ranks_of(recorded):
    return summarise_traffic(Ledger(recorded)).ranks


def test_what_a_step_is_made_of():
    zero, one = ranks_of(made())
    names = ("computing_ns", "in_flight_ns", "exposed_ns", "idle_ns", "wait_ns")
    assert [getattr(zero, name) / MS for name in names] == [60, 50, 40, 0, 30]
    assert [getattr(one, name) / MS for name in names] == [60, 20, 20, 20, 0]


def test_a_rank_is_called_late_beyond_chance_alone():
    """Last in 6 of 6 steps is 1/64 for each of two ranks, in 5 of 5 1/32: 1/16 for both. The nine
    calls of a step are one: they go together.
    """

    def in_steps(count):
        calls_by_rank = [[], []]
        for number in range(9 * count):
            begun, position = 10 * number, {"step": number // 9, "sequence": number}
            calls_by_rank[0].append(ran(begun + 2, begun + 8, **position))
            calls_by_rank[1].append(ran(begun + 4, begun + 8, AHEAD, **position))
        recorded = traffic(lambda rank: calls_by_rank[rank])
        marks = [(90 * number, 90 * number + 90) for number in range(count)]
        recorded.steps = {0: spans(*marks), 1: spans(*marks, ahead=AHEAD)}
        recorded.source = "kineto"
        return find_arrivals(Ledger(recorded))

    for count in (1, 5):
        assert in_steps(count).late == []
        assert [row.last / row.calls for row in in_steps(count).ranks] == [1, 0]
    arrivals = in_steps(6)
    assert [row.rank for row in arrivals.late] == [1]
    assert [row.caused_ns for row in arrivals.ranks] == [6 * 9 * 2 * MS, 0]
    assert arrivals.answer.headline.startswith("rank 1 is late: ")


def by_calls(result):
    joined, _ = join_ranks(result)
    return measure_offsets(
        result,
        dict.fromkeys(joined_call for rank_calls in joined.values() for joined_call in rank_calls),
    )


def test_bounds_of_two_calls():
    """Of the first call 20 - 1070 <= added <= 70 - 1050, of the second 80 - 1083 and 82 - 1081; the
    ends differ by 1000 and 1001, whose median 1000.5 lies within -1003 and -999.
    """
    recorded = made(clocks=False)
    recorded.calls[0].append(ran(80, 82, sequence=1))
    recorded.calls[1].append(ran(81, 83, AHEAD, sequence=1))
    offsets = by_calls(recorded)
    assert offsets.added_ns == {0: 0, 1: -1000.5 * MS}
    assert offsets.error_ns == {0: 0, 1: 2.5 * MS}
    assert "at most 2.50 ms off" in offsets.text


def test_calls_that_contradict_each_other_align_nothing():
    recorded = made(clocks=False)
    recorded.calls[0].append(ran(80, 82, sequence=1))
    recorded.calls[1].append(ran(380, 382, AHEAD, sequence=1))
    assert by_calls(recorded).added_ns == {0: 0}
    (message,) = traffic_trace(Ledger(recorded))[1]
    assert "no one offset fits all calls" in message
    assert message.endswith("their events are right among themselves only")


def test_a_rooted_call_aligns_nothing():
    recorded = made(clocks=False)
    for rank, (rank_call,) in recorded.calls.items():
        recorded.calls[rank] = [dataclasses.replace(rank_call, collective="broadcast", root=0)]
    problem = Ledger(recorded).offsets.problem
    assert problem.startswith("the clocks of rank 1 cannot be aligned with rank 0")
    assert [rank.wait_ns for rank in ranks_of(recorded)] == [None, None]


def _captured(folder):
    import torch
    import torch.distributed as dist

    import torchcoll

    dist.init_process_group("gloo")
    with torchcoll.capture(folder) as seen:
        for _ in range(5):
            dist.all_reduce(torch.zeros(8))
            seen.step()
    dist.destroy_process_group()


def test_the_clock_of_a_host_lies_within_what_calls_tell(jobs, tmp_path):
    """A real capture: what its clock says, against what would be measured without it."""
    jobs(tmp_path, lambda: _captured(tmp_path / "run"), 2).wait()
    recorded = Traffic.load(tmp_path / "run")
    same_clock = by_calls(recorded)
    assert same_clock.text == "one host, one clock: no error"
    recorded.clocks = {}
    measured = by_calls(recorded)
    assert abs(measured.added_ns[1] - same_clock.added_ns[1]) <= measured.error_ns[1]
    ranks = ranks_of(recorded)
    assert [(rank.computing_ns, rank.idle_ns) for rank in ranks] == [(None, None)] * 2
    exposed = [rank.in_flight_ns for rank in ranks]
    if torch.__version__.startswith("2.6."):  # does not tell that the program waits for each call
        exposed = [None, None]
    assert [rank.exposed_ns for rank in ranks] == exposed


def kineto(folder, rank, *events, **info):
    folder.mkdir(exist_ok=True)
    data = {"traceEvents": list(events), "distributedInfo": {**INFO, "rank": rank, **info}}
    (folder / f"rank{rank}.json").write_text(json.dumps(data))


def profiled(folder, ranks=(0, 1)):
    """In us: all_reduce runs 300 to 500, a matmul until 400; a kernel of NCCL without a call 600 to
    700; the step is 0 to 1000."""
    for rank in ranks:
        kineto(
            folder,
            rank,
            step(5, 0, 1000),
            param("allreduce", 100, 7),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 300, 200, 7),
            event("gemm", 150, 250, "kernel", device=0, tid=7, correlation=99),
            event("ncclDevKernel_SendRecv", 600, 100, "kernel", device=0, tid=21, correlation=98),
        )
    return folder


@pytest.mark.parametrize(
    ("longer", "why"),
    [
        (70, "it computes 150 us in a step, the others 80.0 us"),
        (0, "it is idle 170 us in a step, the others 100 us"),
    ],
)
def test_what_the_late_rank_does_longer(tmp_path, longer, why):
    """In us, in each of 10 steps of 300: rank 1 begins its all_reduce 70 later than the others."""
    three = {"Group_size": 3, "Process_Group_Ranks": "[0, 1, 2]"}
    for rank in range(3):
        late, events = 70 * (rank == 1), []
        for n, start in enumerate(range(0, 3000, 300)):
            events += [
                step(n, start, 300),
                event("gemm", start, 80 + longer * (rank == 1), "kernel", device=0, tid=7),
                param("allreduce", start + 5, n, **three),
                kernel("ncclKernel", start + 180 + late, 120 - late, n),
            ]
        kineto(tmp_path / "run", rank, *events, world_size=3, pg_config=[])
    ledger = Ledger(read_traffic([tmp_path / "run"]))
    answer = traffic_answer(summarise_traffic(ledger))
    late = "rank 1 is late: the other ranks wait 70.0 us in a step of 300 us for it"
    assert answer.headline.startswith(f"{late} (")
    assert answer.details[0] == why


def test_a_profiler_trace_tells_computation_and_communication_of_no_call(tmp_path):
    recorded = read_traffic([profiled(tmp_path / "run")])
    rank = ranks_of(recorded)[0]
    assert (rank.computing_ns, rank.in_flight_ns) == (250_000, 300_000)
    assert (rank.exposed_ns, rank.idle_ns) == (200_000, 1_000_000 - 250_000 - 200_000)
    # ... and so does the file of it.
    recorded.save(tmp_path / "all.jsonl")
    reloaded = Traffic.load(tmp_path / "all.jsonl")
    assert (reloaded.computing, reloaded.apart, reloaded.calls) == (
        recorded.computing,
        recorded.apart,
        recorded.calls,
    )


def command(capsys, *arguments):
    code = main(["trace", *map(str, arguments)])
    return (code, *capsys.readouterr())


def test_the_command(tmp_path, capsys):
    folder, trace = profiled(tmp_path / "run"), tmp_path / "t.json"
    code, out, err = command(capsys, folder, "--perfetto", trace)
    assert (code, err.splitlines()[0]) == (0, f"torchcoll: trace: {trace}")
    table = [line.split()[:3] for line in out.split("most of it")[1].splitlines()[1:6]]
    assert table == [
        ["step", "1.000", "ms"],
        ["computing", "250.0", "us"],
        ["in", "flight", "300.0"],
        ["exposed", "200.0", "us"],
        ["waiting", "0", "ns"],
    ]
    code, out, _ = command(capsys, folder, "--format", "json")
    rank = json.loads(out)["ranks"][0]
    assert (rank["step_ns"], rank["idle_ns"]) == (1_000_000, 550_000)
    code, out, _ = command(capsys, folder, "--view", "ranks,calls")
    assert "by rank:\ncomputing + exposed + idle = the step\n" in out and "all_reduce" in out
    code, _, err = command(capsys, folder, "--perfetto", trace)
    assert (code, expecting("a file that does not exist") in err) == (2, True)


def test_perfetto_shows_ranks_on_one_clock_and_no_two_events_on_a_thread(tmp_path):
    recorded = made(clocks=False)
    recorded.calls[0].append(ran(60, 65, sequence=1))
    recorded.calls[1].append(ran(60, 65, AHEAD, sequence=1))
    text, (message,) = traffic_trace(Ledger(recorded))
    document = json.loads(text)
    assert document["otherData"]["clocks"] == [message] and "at most 5.00 ms off" in message
    tracks = {}
    for event_value in document["traceEvents"]:
        if event_value["ph"] == "X":
            tracks.setdefault((event_value["pid"], event_value["tid"]), []).append(
                (event_value["ts"], event_value["dur"])
            )
    for intervals in tracks.values():
        for (start, time), (after, _) in zip(
            sorted(intervals), sorted(intervals)[1:], strict=False
        ):
            assert start + time <= after
    begins = {
        (event_value["pid"], event_value["name"]): event_value["ts"]
        for event_value in document["traceEvents"]
        if event_value["ph"] == "X" and event_value["cat"] == "step"
    }
    assert begins == {(0, "step 0"): 0, (1, "step 0"): 0}


def test_the_trace_has_communication_of_no_known_call_and_no_empty_note():
    recorded = made()
    recorded.apart = {1: spans((92, 98), ahead=AHEAD)}
    text, _ = traffic_trace(Ledger(recorded))
    (untold,) = (
        event_value
        for event_value in json.loads(text)["traceEvents"]
        if event_value["name"] == "unknown call"
    )
    assert (untold["pid"], untold["dur"]) == (1, 6000)  # us
    alone = traffic(lambda rank: [ran(20, 70)], 1)
    assert traffic_trace(Ledger(alone))[1] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--view", "sizes"], error_text("view", "sizes", "one of calls")),
    ],
)
def test_bad_options_are_one_line(tmp_path, capsys, arguments, text):
    code, out, err = command(capsys, profiled(tmp_path / "run"), *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert text in err


def test_calls_without_times_are_one_line(tmp_path, capsys):
    traffic(lambda rank: [call(step=0)]).save(tmp_path / "all.jsonl")
    code, _, err = command(capsys, tmp_path / "all.jsonl", "--perfetto", tmp_path / "t.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "with times" in err


def test_ranks_of_different_sources_keep_their_own_clocks():
    whole = made()
    traffics = [
        dataclasses.replace(
            whole,
            calls={r: whole.calls[r]}, steps={r: whole.steps[r]}, clocks={r: whole.clocks[r]},
            computing={r: whole.computing[r]},
        )
        for r in (0, 1)
    ]  # fmt: skip
    reloaded = join(traffics)
    assert (reloaded.clocks, reloaded.computing) == (whole.clocks, whole.computing)
