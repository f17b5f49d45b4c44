"""Traffic as ``show`` prints them: by hand, see tests/sent.py."""

import csv
import dataclasses
import io
import json

import pytest
from error_form import error_tail, error_text, got
from sent import MIB, MS, call, ddp, traffic

from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.core.result import Run
from torchcoll.parts.training.traffic_comparison_show import compare_traffic
from torchcoll.parts.training.traffic_table import TrafficRow

TABLE = """\
traffic: capture, 2 ranks, gloo, group 0, 2 ranks a group, host clock, steps 1-3 of 4, median over \
them
in flight: a collective runs; exposed: it runs, and the rank does nothing else; waiting: for the \
last rank of a call; each the mean of the ranks

             a step    share  most of it
step       100.0 ms  100.0 %  on rank 0
computing         -        -  not recorded: traces of torch.profiler have it
in flight  35.20 ms   35.2 %  on rank 0
exposed           -        -  not known of 4 calls a step
waiting    10.00 ms   10.0 %  for rank 1: 100 % of all waiting

bytes a step: the input of one rank
time a step: of the calls on their slowest ranks, added up; they may overlap
waiting: for the last rank of each call, on the rank that waited longest
transfer: from when all ranks had begun a call; medians of columns need not add up

collective  bytes  dtype    async   calls   bytes      time   waiting  transfer    median    \
share   exposed
               in                  a step  a step    a step    a step    a step    a call  \
of step    a step
all_reduce    25M  float32  yes         3     75M  36.00 ms  15.00 ms  21.00 ms  12.00 ms   \
36.0 %         -
all_reduce     9M  float32  yes         1      9M  12.00 ms  5.000 ms  7.000 ms  12.00 ms   \
12.0 %         -
broadcast       8  int64    no          1       8  200.0 us         -         -  200.0 us    \
0.2 %  200.0 us

left out: step 0 of 4, with other calls than most steps
2 calls of 2 ranks outside of the marked steps: left out
one more thing
"""


def sent():
    recorded = traffic(ddp, steps=4)
    recorded.notes.append("one more thing")
    recorded.clocks = {rank: ("one host", 0) for rank in recorded.calls}
    return recorded


SENTENCE = "a step of 100 ms has a collective in flight for 35.2 ms (35 %)"
ANSWER = f"{SENTENCE}; each rank sends 84 MiB a step in 4 all_reduce, 1 broadcast"
LATE = (
    "\nCannot tell whether rank 1 is late: the other rank waits 20.0 ms in a step of 100 ms for it "
    "(100 % of all waiting, last in 12 of 12 calls, 50 % by chance)\nNext: record about 64 steps\n"
)


def test_the_table(shown):
    assert shown(sent()) == TABLE + ANSWER + LATE


def test_a_replay_is_compared_with_its_calls_in_training(shown):
    replayed = sent()
    replayed.source = "replay"
    replayed.environment["replay"] = {"step": 7, "step_ns": 500 * MS, "in_flight_ns": 40 * MS}
    text = shown(replayed)
    assert "the calls of step 7 take 100 ms alone on 2 gloo ranks; " in text
    assert "in training the step took 500 ms, and they were in flight for 40.0 ms of it" in text
    rows = [line.split()[0] for line in text.splitlines() if line[:1].isalpha()]
    assert "step" in rows and "computing" not in rows and "exposed" not in rows


def test_columns_that_nobody_needs_are_left_out(shown):
    """No marks: no share. No times: no times. One dtype: in the header."""
    assert shown(traffic(lambda rank: [call()], ranks=4, recorded=[0, 1])) == (
        "traffic: capture, ranks 0-1 of 4, gloo, float32, group 0, 4 ranks a group, async\n"
        "bytes a step: the input of one rank\n\n"
        "collective  bytes   calls   bytes\n"
        "               in  a step  a step\n"
        "all_reduce     1M       1      1M\n\n"
        "no step is marked: all calls are one step\n"
        "each rank sends 1 MiB in all in 1 all_reduce (no steps are marked)\n"
    )


def test_no_calls(shown):
    assert shown(traffic(lambda rank: [], ranks=1)) == (
        "traffic: capture, 1 rank\nno calls\n\nno step is marked: all calls are one step\n"
    )


def test_on_a_narrow_terminal_whole_columns_go(on_terminal):
    text = on_terminal(sent(), columns=60)
    assert "not shown in 60 columns:" in text and "median a call" in text
    assert all(len(line) <= 60 for line in text.splitlines())


def test_markdown(shown):
    text = shown(sent(), format="markdown")
    assert (
        "| all_reduce | 25M | float32 | yes | 3 | 75M | 36.00 ms | 15.00 ms | 21.00 ms | "
        "12.00 ms | 36.0 % | - |" in text
    )
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
    names = ["answer", "schema", "traffic", "rows", "exposed", "modules", "ranks", "arrivals"]
    assert list(document) == names
    assert document["schema"] == "torchcoll-traffic-rows/1"
    text = document["traffic"]
    assert (text["steps"], text["total"], text["step_ns"]) == ([1, 2, 3], 4, 100 * MS)
    assert (text["ranks"], text["recorded"], text["source"]) == (2, [0, 1], "capture")
    assert text["notes"][-1] == "one more thing"
    assert document["rows"][0]["bytes_per_step"] == 75 * MIB


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"view": "pivot:ranks"}, error_text("view", "pivot:ranks", "none with Traffic")),
        ({"metric": "time"}, error_text("metric", "time", "none with Traffic")),
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
        UsageError,
        match=error_text("^show", error_tail("Traffic and TrafficComparison", "things of one ki")),
    ):
        shown(sent(), compare_traffic(sent(), sent()))
    with pytest.raises(
        UsageError, match=error_text("^show", error_tail("Traffic and a run", "things of one k"))
    ):
        shown(sent(), Run())
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
    assert capsys.readouterr().out == f"{ANSWER}{LATE}\n{table}{SENTENCE}\n"


def test_the_command_refuses_what_is_for_runs(tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    sent().save(path)
    assert main(["show", str(path), "--filter", "ranks=2"]) == 2
    assert error_text("filter", "ranks=2", "result files with it, not") in capsys.readouterr().err
    assert main(["check", str(path)]) == 3
    assert got("traffic alone") in capsys.readouterr().err
    assert main(["show", str(path), str(tmp_path / "other.jsonl")]) == 3
    assert "error: file: got" in capsys.readouterr().err


def test_a_cut_file_is_shown_and_said_to_be(tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    sent().save(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    warning = f"{path}: truncated: the file has no end record"
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"{warning}\n{SENTENCE}\n")
    assert main(["show", str(path), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["traffic"]["problems"] == [warning]
    assert err == f"torchcoll: warning: {warning}\n"
