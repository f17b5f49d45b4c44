"""Traffic and its cost as ``show`` prints them: by hand, see tests/sent.py."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest
from error_form import error_tail, error_text, got
from sent import MIB, MS, call, ddp, traffic

from torchcoll import cost
from torchcoll.cli import main
from torchcoll.core.case import Case
from torchcoll.core.errors import UsageError
from torchcoll.core.result import CaseResult, Run
from torchcoll.parts.training.traffic_table import TrafficRow

TABLE = """\
traffic: capture, 2 ranks, gloo, group 0, 2 ranks a group, host clock
steps 1-3 of 4; in each 5 calls, 84 MiB put in by a rank; a step takes 100 ms (slowest rank, \
median over them)
bytes a step: the input of one rank
time a step: the calls' times on their slowest ranks, which include waiting for other ranks, \
summed over a step; each row has its own median or mean over steps, so rows need not add up
exposed: the part of that time that no computation hides, an estimate

collective  bytes  dtype    async   calls   bytes      time    median    share   exposed
               in                  a step  a step    a step    a call  of step    a step
all_reduce    25M  float32  yes         3     75M  36.00 ms  12.00 ms   36.0 %         -
all_reduce     9M  float32  yes         1      9M  12.00 ms  12.00 ms   12.0 %         -
broadcast       8  int64    no          1       8  200.0 us  200.0 us    0.2 %  200.0 us

sizes: calls by the bytes that a rank puts into one

     bytes   calls   bytes
    put in  a step  a step
   8 to 16       1       8
 8M to 16M       1      9M
16M to 32M       3     75M

left out: step 0 of 4: 1 all_reduce 84M float32 in place of 3 all_reduce 25M float32, \
1 all_reduce 9M float32
2 calls of 2 ranks outside of the marked steps: left out
asynchronous calls overlap each other and the computation: their times add up to more than the \
step pays
one more thing
"""

COST = """\
20.0 ms of waiting and 28.0 ms of transfer per step, at most 3.00 ms of which is contention; \
Cannot tell whether rank 1 is late: the other rank waits 20.0 ms in a step of 100 ms for it (100 % \
of all waiting, last in 12 of 12 calls, 50 % by chance). Next: record about 64 steps

traffic compared with run r1
group 0 of 2 ranks, gloo, host clock, alone: synchronized, host clock, gloo, async, sum
wait, transfer and contention are estimates. All ranks end a collective together, so the shortest \
rank's time is the transfer, what the others have more is their wait for it. In step: from issue \
to completion on the slowest rank; on each rank it is queue + wait + transfer, where the queue is \
the time until the group can begin it. Contention: transfer - alone. Medians over the calls

collective  size  dtype    async  calls  queued   in step      wait  transfer     alone   contention
all_reduce   25M  float32  yes        9     0 %  12.00 ms  5.000 ms  7.000 ms  6.000 ms  <= 1.000 ms
all_reduce    9M  float32  yes        3     0 %  12.00 ms  5.000 ms  7.000 ms  7.500 ms    -500.0 us
broadcast      8  int64    no         3     0 %  200.0 us         -         -         -            \
-  [1]

[1] rooted: ranks leave at different times, so that the shortest need not be the last; broadcast \
is not in the run

who came last: the rank with the shortest time of a call; caused: the waiting of all other ranks \
in these calls
late = yes: this rank comes later than the others on average, and chance does not explain it \
(error 5 % over all ranks, groups and thirds of the time)

rank  calls     last in      by    caused     % of  late
             % of calls  chance            waiting
   1     12       100 %    50 %  60.00 ms    100 %  chance
   0     12         0 %    50 %      0 ns      0 %  chance

1 call not counted: outside of the steps that send alike
4 calls not counted: rooted: ranks leave at different times, so that the shortest need not be the \
last
1 call not counted: no time

left out: step 0 of 4: 1 all_reduce 84M float32 in place of 3 all_reduce 25M float32, \
1 all_reduce 9M float32
2 calls of 2 ranks outside of the marked steps: left out
the end of 24 asynchronous calls is recorded up to 5 ms late, so in step and transfer may be that \
much too long and wait wrong by as much; a contention below that is shown as an upper bound (<=)
"""


def sent():
    recorded = traffic(ddp, steps=4)
    recorded.notes.append("one more thing")
    recorded.clocks = {rank: ("one host", 0) for rank in recorded.calls}
    return recorded


def alone():
    case = Case("all_reduce", 0, "float32", "sum", None, True, "synchronized", "gloo", "cpu")
    results = [
        CaseResult(
            dataclasses.replace(case, size_bytes=size_bytes, asynchronous=True),
            "ok",
            2,
            size_bytes=size_bytes,
            time_ns={"host": [[ns] * 3] * 2},
        )
        for size_bytes, ns in ((25 * MIB, 6 * MS), (9 * MIB, 15 * MS // 2))
    ]
    return Run(header={"run_id": "r1", "ranks": 2}, results=results)


ANSWER = (
    "a step takes 100 ms, 42 % of it with a collective in flight; 4 all_reduce, 1 broadcast, "
    "84 MiB per rank\n"
)


def test_the_table(shown):
    assert shown(sent()) == TABLE + ANSWER


def test_columns_that_nobody_needs_are_left_out(shown):
    """No marks: no share. No times: no times. One dtype: in the header."""
    assert shown(traffic(lambda rank: [call()], ranks=4, recorded=[0, 1])) == (
        "traffic: capture, ranks 0-1 of 4, gloo, float32, group 0, 4 ranks a group, async\n"
        "1 call, 1 MiB put in by a rank\n"
        "bytes a step: the input of one rank\n\n"
        "collective  bytes   calls   bytes\n"
        "               in  a step  a step\n"
        "all_reduce     1M       1      1M\n\n"
        "sizes: calls by the bytes that a rank puts into one\n\n"
        "   bytes   calls   bytes\n"
        "  put in  a step  a step\n"
        "1M to 2M       1      1M\n\n"
        "no step is marked: all calls are one step\n"
        "1 all_reduce, 1 MiB per rank in all (no steps are marked)\n"
    )


def test_no_calls(shown):
    assert shown(traffic(lambda rank: [], ranks=1)) == (
        "traffic: capture, 1 rank\nno calls\n\nno step is marked: all calls are one step\n"
    )


def test_on_a_narrow_terminal_whole_columns_go(on_terminal):
    text = on_terminal(sent(), columns=60)
    assert "not shown in 60 columns: median a call, share of step (use" in text
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "share" in on_terminal(sent(), columns=60, names="collective,bytes_in,share")


def test_markdown(shown):
    text = shown(sent(), format="markdown")
    assert (
        "| all_reduce | 25M | float32 | yes | 3 | 75M | 36.00 ms | 12.00 ms | 36.0 % | - |" in text
    )
    assert "| 16M to 32M | 3 | 75M |" in text
    assert "- one more thing" in text


def test_csv_has_every_field_in_base_units(shown):
    names = [field.name for field in dataclasses.fields(TrafficRow)]
    first, *_ = rows = list(csv.DictReader(io.StringIO(shown(sent(), format="csv"))))
    assert list(first) == names
    assert len(rows) == 3
    assert first["time_per_step_ns"] == "36000000.0"
    assert (first["op"], first["exposed_ns"], first["asynchronous"]) == ("", "", "True")


def test_csv_of_several_names_the_file(shown):
    rows = list(csv.DictReader(io.StringIO(shown(sent(), sent(), format="csv"))))
    assert [row["file"] for row in rows] == ["traffic"] * 6


def test_json(shown):
    document = json.loads(shown(sent(), format="json"))
    assert list(document) == ["answer", "schema", "traffic", "rows", "exposed", "modules", "sizes"]
    assert document["schema"] == "torchcoll-traffic-rows/1"
    text = document["traffic"]
    assert (text["steps"], text["total"], text["step_ns"]) == ([1, 2, 3], 4, 100 * MS)
    assert (text["ranks"], text["recorded"], text["source"]) == (2, [0, 1], "capture")
    assert text["notes"][-1] == "one more thing"
    assert document["rows"][0]["bytes_per_step"] == 75 * MIB
    assert document["sizes"][0] == {
        **{"ranks": "0-1", "low_bytes": 8, "high_bytes": 16},
        **{"calls_per_step": 1, "bytes_per_step": 8},
    }


def test_chosen_columns(shown):
    assert shown(sent(), format="csv", columns="collective,bytes_in") == (
        f"collective,bytes_in\nall_reduce,{25 * MIB}\nall_reduce,{9 * MIB}\nbroadcast,8\n"
    )
    assert "clock" in shown(sent(), columns="all")
    with pytest.raises(
        UsageError, match=error_text("^columns", error_tail("busbw", "all, or some of collect"))
    ):
        shown(sent(), columns="busbw")


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"view": "pivot:ranks"}, error_text("view", "pivot:ranks", "none with Traffic")),
        ({"metric": "time"}, error_text("metric", "time", "none with Traffic")),
        ({"clock": "host"}, error_text("clock", "host", "none with Traffic")),
        ({"percentiles": "50"}, error_text("percentiles", "50", "none with Traffic")),
        ({"over_ranks": "min"}, error_text("over-ranks", "min", "none with Traffic")),
        ({"view": "ranks"}, error_text("view", "ranks", "none with Traffic")),
        ({"view": "calls"}, error_text("view", "calls", "none with Traffic")),
        (
            {"format": "nccl-tests"},
            error_text("format", "nccl-tests", "one of table, markdown, csv"),
        ),
    ],
)
def test_what_has_no_effect_is_refused(shown, choices, text):
    with pytest.raises(UsageError, match=f"^{text}"):
        shown(sent(), **choices)


def test_things_of_two_kinds_are_refused(shown):
    with pytest.raises(
        UsageError, match=error_text("^show", error_tail("Traffic and Cost", "things of one ki"))
    ):
        shown(sent(), cost(sent(), alone()))
    with pytest.raises(
        UsageError, match=error_text("^show", error_tail("Traffic and a run", "things of one k"))
    ):
        shown(sent(), alone())
    with pytest.raises(
        UsageError,
        match=error_text("^show", error_tail("int", "a run, a file, or what a function")),
    ):
        shown(3)


def test_the_command_shows_a_traffic_file(tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    sent().save(path)
    assert main(["show", str(path)]) == 0
    table = TABLE.replace("traffic:", f"{path}:", 1)
    assert capsys.readouterr().out == f"{ANSWER}\n{table}{ANSWER}"
    assert main(["show", str(path), "--format", "csv", "--columns", "group"]) == 0
    assert capsys.readouterr().out == "group\n0\n0\n0\n"


def test_the_command_refuses_what_is_for_runs(tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    sent().save(path)
    assert main(["show", str(path), "--reference", "points.json"]) == 2
    assert error_text("reference", "points.json", "result files with it, not") in (
        capsys.readouterr().err
    )
    assert main(["check", str(path)]) == 3
    assert got("traffic alone") in capsys.readouterr().err
    assert main(["show", str(path), str(tmp_path / "other.jsonl")]) == 3
    assert "result file: got" in capsys.readouterr().err


def test_a_cut_file_is_shown_and_said_to_be(tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    sent().save(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    warning = f"{path}: truncated: the file has no end record"
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"{warning}\n{ANSWER}")
    assert main(["show", str(path), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["traffic"]["problems"] == [warning]
    assert err == f"torchcoll: warning: {warning}\n"


def test_cost(shown):
    assert shown(cost(sent(), alone())) == COST


def test_cost_answers_first_what_a_step_costs(shown):
    """Rank 1 comes 5 ms late to one call of 8 ms in each step: 5 ms of waiting, 3 of transfer."""

    def calls_of(rank):
        for step in range(8):
            took = (3 if rank else 8) * MS
            yield call(
                size_bytes=25 * MIB,
                step=step,
                sequence=step,
                start_ns=100 * step * MS + 8 * MS - took,
                time_ns=took,
                asynchronous=False,
            )

    text = shown(cost(traffic(calls_of, steps=8), alone()))
    assert text.startswith(
        "5.00 ms of waiting and 3.00 ms of transfer per step, 0 ns of which is contention; rank 1 "
        "is late: the other rank waits 5.00 ms in a step of 100 ms for it ("
    )
    assert text.count("is late: ") == 1


def test_cost_says_of_how_many_calls_the_contention_is_unknown(shown):
    """Alone, the calls of 25 MiB took 6 ms: 1 ms less than in the step. 9 MiB was not measured."""
    run = alone()
    del run.results[1]
    assert shown(cost(sent(), run)).startswith(
        "20.0 ms of waiting and 28.0 ms of transfer per step, at most 3.00 ms of which is "
        "contention (unknown for 3 of 12 calls); "
    )
    assert shown(cost(sent(), Run())).startswith(
        "20.0 ms of waiting and 28.0 ms of transfer per step; "
    )


def test_cost_of_one_rank(shown):
    text = shown(cost(traffic(lambda rank: [call(time_ns=MS)], recorded=[0]), alone()))
    assert "[1] 1 of the 2 ranks of its group were recorded; not measured at 1M" in text
    assert "who came last" not in text


def test_cost_without_calls(shown):
    assert "no calls\n" in shown(cost(traffic(lambda rank: []), alone()))


def test_cost_has_no_column_of_nothing(shown):
    """An empty one is a character wider in a terminal than its text."""
    costs = cost(traffic(lambda rank: [call(size_bytes=25 * MIB, time_ns=MS)]), alone())
    for format, line in (("table", "-5.000 ms"), ("markdown", "-5.000 ms |")):
        text = shown(costs, format=format)
        (row,) = [line for line in text.splitlines() if "all_reduce" in line]
        assert row.endswith(line)


def test_cost_names_ties(shown):
    text = shown(cost(traffic(lambda rank: [call(time_ns=MS, asynchronous=False)]), alone()))
    assert "; no rank is late (the ranks came to each call at the same time, " in text


def test_cost_for_machines(shown):
    costs = cost(sent(), alone())
    document = json.loads(shown(costs, format="json"))
    assert document["schema"] == "torchcoll-cost/1"
    assert document["rows"][0]["contention_ns"] == MS
    # In three steps four calls.
    assert document["arrivals"]["ranks"][0]["caused_ns"] == 3 * 4 * 5 * MS
    rows = list(csv.DictReader(io.StringIO(shown(costs, format="csv"))))
    assert [row["wait_ns"] for row in rows] == ["5000000.0", "5000000.0", ""]
    assert "| all_reduce | 25M | float32 | yes | 9 | 0 % |" in shown(costs, format="markdown")
