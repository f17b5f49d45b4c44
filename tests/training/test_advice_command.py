"""``torchcoll gradients --curve``, of DDP and FSDP2: what it takes, its forms, and its errors."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import pytest
from error_form import error_line, error_text
from made_curves import MIB, curve, line, spread_curve, traffic
from made_runs import run

import torchcoll
from torchcoll.cli import main

EIGHT = str(8 * MIB // 4)  # parameters of float32 in 8 MiB

MODEL = """\
import torch

def make():
    return torch.nn.ModuleList(torch.nn.Linear(512, 1024, bias=False) for _ in range(4))
"""


@pytest.fixture
def folder(in_tmp_path):
    for number, latency in enumerate((1, 1.01, 0.99)):
        torchcoll.save(curve(line(latency)), in_tmp_path / "runs" / f"{number}.jsonl")
    torchcoll.save(spread_curve(), in_tmp_path / "one.jsonl")
    (in_tmp_path / "advised.py").write_text(MODEL)
    return in_tmp_path


TABLE = """\
proposal: bucket_cap_mb=1; no worse: 2; exposed 2.000 ms, now 8.000 ms (now = the default cap, assumed)

gradients: 8 MiB of float32: 2,097,152 parameters of float32, without a model: even buckets
curve: all_reduce float32, on gloo, 2 ranks, synchronized, host clock; 256K to 64M, 3 runs
backward pass: 80.00 ms (given)
model: an all_reduce starts when its bucket is ready and the one before it has ended, and takes what the curve says
exposed = end of the last all_reduce - end of the backward pass; not in it: communication that slows the computation down, and ranks that wait for each other
low, high = the least and the most of the runs; 95 % over the runs, for all rows together
ratio = (backward + exposed) / that of the best

bucket_cap_mb  buckets  largest  all_reduce   exposed       low      high  ratio            95 %   exposed  result
                                   together                                                        16 bits
      default        2    7 MiB    10.00 ms  8.000 ms  7.990 ms  8.010 ms  1.073  1.073 to 1.073  4.500 ms  worse
            1        8    1 MiB    16.00 ms  2.000 ms  1.990 ms  2.010 ms  1.000               -  1.500 ms  best
            2        4    2 MiB    12.00 ms  3.000 ms  2.990 ms  3.010 ms  1.012  1.012 to 1.012  2.000 ms  within 2 %
            4        2    4 MiB    10.00 ms  5.000 ms  4.990 ms  5.010 ms  1.037  1.037 to 1.037  3.000 ms  worse
            8        1    8 MiB    9.000 ms  9.000 ms  8.990 ms  9.010 ms  1.085  1.085 to 1.085  5.000 ms  worse

a proposal of a model: torchcoll.try_buckets measures real steps
16 bits an element (a compression hook) at 1: exposed 1.500 ms for 2.000 ms; backward + exposed 0.994 of it (0.994 to 0.994)
4 backward passes an optimiser step, at 1: with no_sync in all but the last 2.000 ms exposed, without it 8.000 ms
16 bits an element: the times of float32 with fewer bytes; what compressing itself takes is not in it
"""  # noqa: E501


def test_the_table(folder, capsys):
    asked = f"gradients --parameters {EIGHT} --bucket-cap-mb 1,2,4,8 --backward-ms 80"
    assert main([*asked.split(), "--accumulate", "4", "--curve", "runs"]) == 0
    proposal = TABLE.partition("\n")[0]
    assert capsys.readouterr().out == f"{TABLE}{proposal}\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_no_word_is_lost_on_a_narrow_terminal(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal()
    advice = torchcoll.advise(int(EIGHT), "one.jsonl", caps_mb=[1, 8], backward_ms=80)
    torchcoll.show(advice, file=out)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert "ratio = (backward + exposed) / that of the best" in lines
    # What the result stands on stays as long as the result.
    (heads,) = [line for line in lines if "result" in line]
    assert heads.split()[-3:] == ["ratio", "range", "result"]
    assert "range = least and most ratio with the median, the 5th and the 95th" in " ".join(lines)
    assert any(line.startswith("not shown in 80 columns: ") for line in lines)


def test_a_model_is_planned_for_each_cap(folder, capsys):
    # 4 tensors of 2 MiB; 25 MiB hold them all. One run, 8 ms of backward.
    arguments = "gradients advised:make --backward-ms 8 --format json --bucket-cap-mb 3,25"
    assert main([*arguments.split(), "--curve", "one.jsonl"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["size_bytes"]) == ("torchcoll-advice/1", 8 * MIB)
    assert document["curve"]["runs"] == 1 and document["curve"]["sizes"] == [MIB // 4, 64 * MIB]
    # Default: 2 and 6 MiB, 8 - 8 + 7. 3: two of 4 MiB, 4 + 10 - 8. 25: 9.
    rows = {row["name"]: row["exposed_ns"] for row in document["rows"]}
    assert rows == pytest.approx({"default": 7e6, "3": 6e6, "25": 9e6})
    assert (document["best"], document["backward_source"]) == ("3", "given")
    assert any("order of the gradients assumed" in note for note in document["notes"])


def test_captured_traffic_in_place_of_a_model(folder, capsys):
    steady = [(2, 12), (2, 14), (4, 20)]
    traffic([[(8, 5)], steady, steady]).save(folder / "traffic.jsonl")
    assert main(["gradients", "traffic.jsonl", "--format", "csv", "--curve", "runs/0.jsonl"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == ["default", "1", "2", "5", "as sent"]
    # Sent were 2, 2 and 4 MiB: 5 MiB hold them all, 10 too.
    results = ["unknown", "could be as sent", "could be as sent", "worse", "best"]
    assert [row["result"] for row in rows] == results
    assert float(rows[-1]["exposed_ns"]) == pytest.approx(5e6)


def test_without_a_backward_time(folder, capsys):
    asked = f"gradients --parameters {EIGHT} --bucket-cap-mb 1,2,4,8 --format markdown --curve"
    assert main([*asked.split(), *(f"runs/{n}.jsonl" for n in range(3))]) == 0
    text = capsys.readouterr().out
    assert (
        "- no proposal: which is best depends on how long the backward pass takes: give it with "
        "--backward-ms (backward_ms of torchcoll.advise)\n"
    ) in text
    best = "default if it takes 2.500 ms, 2 if it takes 10.00 ms, 1 if it takes 40.00 ms"
    assert f"- the model's best: {best}\n" in text
    base = "1/4, 1 and 4 times all_reduce together of default (10.00 ms)"
    assert f"- these times are assumed: {base}\n" in text
    assert "exposed" not in text


def test_without_a_backward_time_what_is_always_best_is_proposed(folder, capsys):
    # On CPUs nothing is hidden: the sums decide, 16 ms in 8 buckets, 10 ms by default.
    torchcoll.save(curve(device="cpu"), folder / "cpu.jsonl")
    asked = f"gradients --parameters {EIGHT} --bucket-cap-mb 1 --format markdown --curve cpu.jsonl"
    assert main(asked.split()) == 0
    text = capsys.readouterr().out
    assert (
        "- proposal: leave bucket_cap_mb unset: the default leaves least exposed whether the "
        "backward pass takes 2.500 ms, 10.00 ms or 40.00 ms; with --backward-ms (backward_ms of "
        "torchcoll.advise) by how much, and whether it is more than noise\n"
    ) in text
    assert "no proposal" not in text
    base = "1/4, 1 and 4 times all_reduce together of default (10.00 ms)"
    assert f"- these times are assumed: {base}\n" in text


def test_a_proposal_among_those_whose_buckets_are_known(folder, capsys):
    # 80 ms hide all but the last bucket, 2 MiB: 3 ms, of one bucket 9.
    sent = [(4, 12), (2, 14), (2, 20)]
    traffic([sent, sent]).save(folder / "traffic.jsonl")
    arguments = "gradients traffic.jsonl --bucket-cap-mb 1,8 --backward-ms 80 --curve runs/0.jsonl"
    assert main(arguments.split()) == 0
    text = capsys.readouterr().out
    assert (
        "\nproposal: leave bucket_cap_mb as it is: what was sent is best of those whose buckets "
        "are known; exposed 3.000 ms\n"
    ) in text
    assert re.search(r"^ +1 +>= 3 +(- +)+could be as sent$", text, re.MULTILINE)
    assert "\ncould be as sent: this may be the cap that was set, or a smaller one, which" in text
    assert "\nunknown: sent buckets are larger than that cap (the default's first is 1 MiB)" in text


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        # Slow calls (p95) leave 16 ms exposed by default, 18 with 2 MiB.
        ("--backward-ms 8 --bucket-cap-mb 1,2", "leave bucket_cap_mb unset: the default is "
         "within noise of bucket_cap_mb=2; no worse: 1; exposed 6.000 ms, now "
         "8.000 ms (now = the default cap, assumed)"),
        ("--backward-ms 8 --bucket-cap-mb 100", "leave bucket_cap_mb unset: the default is "
         "best; exposed 8.000 ms"),
    ],
)  # fmt: skip
def test_proposals(folder, capsys, asked, first):
    arguments = f"gradients --parameters {EIGHT} {asked} --curve one.jsonl"
    assert main(arguments.split()) == 0
    assert capsys.readouterr().out.startswith(f"proposal: {first}")


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("--curve", "argument --curve: expected at least one argument"),
        ("--curve nothing.jsonl --parameters 9", error_text("file", "nothing.jsonl")),
        ("--curve one.jsonl", error_text("gradients", "neither a model nor --parameters",
            "a model or --parameters. Name the model before --curve.")),
        ("advised:make --parameters 9 --curve one.jsonl", error_text("gradients", "both",
            "a model")),
        ("--parameters many --curve one.jsonl", error_text("parameters", "many", "a number")),
        ("--parameters 9 --backward-ms soon --curve one.jsonl", error_text("backward-ms",
            "soon", "a number")),
        ("--parameters 9 --dtype int8 --curve one.jsonl", error_text("dtype", "int8",
            "a floating-")),
        ("advised:make --dtype bf16 --curve one.jsonl", error_text("dtype", "bf16", "none")),
        ("advised:make --fsdp Linear --curve one.jsonl", error_text("ranks of the curve", "2",
            "64, as all_gather has in the group shard. Measure it: torchrun "
            "--nproc-per-node 64 ")),
        ("--parameters 7e9", error_text("parameters", "7e9", "--curve RUN with it")),
        ("advised:make --backward-ms 9", error_text("backward-ms", "9", "--curve RUN with it")),
        ("", error_text("model", "none", "package.module:factory, such as train:make_model")),
    ],
)  # fmt: skip
def test_errors(folder, capsys, asked, text):
    assert main(["gradients", *asked.split()]) in (2, 3)
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith("torchcoll: error: ") and text in output.err


def test_a_folder_of_captured_files(folder, capsys):
    whole = traffic([[(8, 5)]] * 3)
    for rank in range(2):
        rank_traffic = dataclasses.replace(whole, calls={rank: whole.calls[rank]}, steps={})
        rank_traffic.save(folder / "sent" / f"traffic-rank{rank}.jsonl")
    assert main(["gradients", "sent", "--format", "csv", "--curve", "runs/0.jsonl"]) == 0
    assert "as sent" in capsys.readouterr().out
    assert main(["gradients", "sent"]) == 2  # without a curve
    assert capsys.readouterr().err == (
        error_line(
            "model",
            "sent",
            "package.module:factory. Traffic takes --curve RUN with it; `torchcoll trace` "
            "shows what it sends.\n",
        )
    )


SHARDED_MODEL = """\
from torch import nn

def make():
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(3)))
"""


@pytest.fixture
def sharded(in_tmp_path):
    for number, slower in enumerate((1, 1.1, 0.9)):
        gathers = curve(line(slower), collective="all_gather", op=None)
        reduces = curve(line(2 * slower), collective="reduce_scatter")
        combined = run(*gathers.results, *reduces.results)
        torchcoll.save(combined, in_tmp_path / f"{number}.jsonl")
    (in_tmp_path / "sharded_model.py").write_text(SHARDED_MODEL)
    return in_tmp_path


SHARDED = ["gradients", "sharded_model:make", "--fsdp", "Linear", "--ranks", "2"]
SHARD_TABLE = """\
proposal: 2 units of 2, kept: 6.995 ms of 11.99 ms of communication exposed, at its peak 6 MiB more
a proposal of a model: measure real steps before you trust it
FSDP2 on 2 ranks
curve: all_gather float32, on gloo, 2 ranks, synchronized, host clock; 256K to 64M, 3 runs
curve: reduce_scatter float32, on gloo, 2 ranks, synchronized, host clock; 256K to 64M, 3 runs
passes without communication: forward 3.000 ms (taken for half), backward 6.000 ms
model: an all_gather runs during the computation of the unit before, a reduce_scatter during that of the unit after; calls of one group run one after the other
exposed = end of the step - both passes; not in it: copying in and out, communication that slows the computation down, ranks that wait for each other
held = what one rank keeps of parameters and gradients; peak = whole parameters and gradients at the worst moment, besides
low, high = the least and the most of the runs; 95 % over the runs, for all rows together
ratio = (passes + exposed) / that of the best

choice                   calls  largest  together   exposed    hidden       low      high  ratio            95 %   held   peak  result
3 units, resharded           9    1 MiB  20.98 ms  11.98 ms  8.998 ms  10.90 ms  13.20 ms  1.311  1.134 to 1.516  3 MiB  4 MiB  inconclusive
2 units of 2, resharded      6    2 MiB  16.99 ms  8.992 ms  7.994 ms  8.500 ms  9.600 ms  1.125  1.082 to 1.168  3 MiB  5 MiB  inconclusive
3 units, kept                6    1 MiB  14.98 ms  8.982 ms  6.000 ms  8.100 ms  9.900 ms  1.122  0.990 to 1.271  3 MiB  5 MiB  within noise
2 units of 2, kept           4    2 MiB  11.99 ms  6.995 ms  4.994 ms  6.700 ms  7.400 ms  1.000               -  3 MiB  6 MiB  best

assumed: each unit runs once a step, in the order of registration, and every trainable parameter gets a gradient
inconclusive: slower on these curves, but perhaps by no more than 20 %, as far as real steps may be from the model
"""  # noqa: E501


def test_the_table_of_shards(sharded, capsys):
    files = ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert main([*SHARDED, "--backward-ms", "6", "--curve", *files]) == 0
    assert capsys.readouterr().out == SHARD_TABLE


def test_json_of_shards(sharded, capsys):
    command = [*SHARDED, "--reshard", "false", "--together", "1,3", "--format", "json"]
    assert main([*command, "--curve", "0.jsonl", "--backward-ms", "6"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["choice"] for row in document["rows"]] == ["3 units, kept", "1 unit of 3, kept"]
    assert document["best"] == "3 units, kept"
    assert document["curves"][0]["measured"]["collective"] == "all_gather"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--together", "0"], error_text("together", "0", "one whole number")),
        (["--together", "1,2"], error_text("together", "1,2", "one whole number")),
        (
            ["--reshard", "maybe"],
            error_text("reshard", "maybe", "true, false or a number of ranks"),
        ),
        (
            ["--reshard", "3"],
            error_text(
                "reshard_after_forward",
                "3",
                "True, False, or a divisor of the 2 ranks that are sharded over",
            ),
        ),
        (
            ["--curve", "0.jsonl", "--accumulate", "2"],
            error_text("accumulate", "2", "none with --fsdp"),
        ),
    ],
)
def test_errors_of_shards(sharded, capsys, options, line):
    assert main([*SHARDED, *options]) == 2
    assert capsys.readouterr().err == f"torchcoll: error: {line}\n"


def test_a_machine_gives_what_plan_gives(capsys):
    """Communication, its exposed part, and the intervals of both; the whole step is 1.5 backward
    passes.
    """
    model, machine = "planned_models:Transformer", ["--machine", "8xH100", "--format", "json"]
    for backward_ms in ("0.5", "8"):
        step_ms = str(1.5 * float(backward_ms))
        words = [model, "--fsdp", "Block", "--ranks", "64", "--backward-ms", backward_ms]
        assert main(["gradients", *words, *machine]) == 0
        advice = json.loads(capsys.readouterr().out)
        words = ["--config", model, "--parallel", "fsdp=64", "--dtype", "float32"]
        assert main(["plan", *words, "--step-ms", step_ms, *machine]) == 0
        plan = json.loads(capsys.readouterr().out)["step"]
        row = advice["rows"][0]
        assert (row["choice"], row["calls"]) == ("3 units, resharded", plan["calls"])
        for end in ("", "low_", "high_"):
            assert row[f"communication_{end}ns"] == pytest.approx(plan[f"comm_{end}ns"])
            assert row[f"exposed_{end}ns"] == pytest.approx(plan[f"exposed_{end}ns"])
        assert advice["machine"] == "8xH100"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            [],
            error_text(
                "machine",
                "8xH100",
                "--fsdp CLASSES with it. For DDP: torchcoll plan --config MODULE:FACTORY "
                "--parallel dp=N --machine.",
            ),
        ),
        (
            ["--fsdp", "Linear", "--curve", "0.jsonl"],
            error_text("machine", "8xH100 and --curve", "one of them"),
        ),
    ],
)
def test_errors_of_machines(capsys, options, line):
    assert main(["gradients", "sharded_model:make", "--machine", "8xH100", *options]) == 2
    assert capsys.readouterr().err == f"torchcoll: error: {line}\n"


def test_options_of_fsdp_alone(sharded, capsys):
    assert main(["gradients", "sharded_model:make", "--replicas", "2"]) == 2
    assert capsys.readouterr().err == (error_line("replicas", "2", "--fsdp CLASSES with it\n"))
