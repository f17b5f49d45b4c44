"""The command line on the ranks: torchrun lets every option pass; every bad value is one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from error_form import error_line, error_text
from torch.distributed.run import get_args_parser

from torchcoll.bench import options
from torchcoll.bench.options import parse
from torchcoll.cli import main
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.questions.pairs import pairs_run

SWITCHES = ("--fresh-group", "--dry-run", "--no-output", "--quiet", "-h", "--help", "--rehearse")
SWITCHES += ("--async", "--bisect", "--verbose")


def all_options() -> set[str]:
    parsers = [options._parser("torchcoll.suite", several) for several in (True, False)]
    parsers.append(pairs_run._parser())
    return {name for p in parsers for action in p._actions for name in action.option_strings}


@pytest.mark.parametrize("option", sorted(all_options()))
def test_torchrun_lets_it_pass(option):
    """torchrun takes every prefix of its own options for itself, behind the module name too."""
    forms = [[option]] if option in SWITCHES else [[option, "1"]]
    if option.startswith("--") and option not in SWITCHES:
        forms.append([f"{option}=1"])
    for form in forms:
        for before in ([], ["-b", "8"]):
            reported = ["--nproc-per-node", "2", "-m", "torchcoll.allreduce", *before, *form]
            parsed = get_args_parser().parse_args(reported)
            assert parsed.training_script == "torchcoll.allreduce"
            assert parsed.training_script_args == [*before, *form]
            assert parsed.nproc_per_node == "2"


def test_defaults():
    found = parse([], "all_reduce", "x")
    spec = found.spec
    assert spec.collectives == ("all_reduce",)
    assert (spec.dtypes, spec.ops, spec.roots, spec.in_place) == (
        ("float32",),
        ("sum",),
        (0,),
        None,
    )
    assert spec.size_list()[0] == 8 and spec.size_list()[-1] == 128 << 20
    assert len(spec.size_list()) == 13
    assert (spec.iters, spec.warmup, spec.cold, spec.check) == (None, 0, 3, True)
    assert (spec.precision, spec.max_time_s, spec.timeout_s) == (0.05, 1.0, 300.0)
    assert (found.output, found.no_output, found.format) == (None, False, "table")
    assert (found.dry_run, found.quiet, found.resume, found.ranks) == (False, False, None, None)
    assert parse([], None, "x").spec.collectives == tuple(COLLECTIVES)


def test_everything_given():
    line = (
        "--collectives allreduce,MPI_Bcast -b 1K -e 1M -f 2 -d f32,bf16 -o sum,max -r 0,1 "
        "--in-place both --splits seed:3 --backend gloo --device cpu --mode back-to-back -n 7 -w 2 "
        "--cold 4 --precision 0.1 --max-time 2.5 --fresh-group -c 0 --order shuffled --seed 5 -T 9 "
        "-J out.jsonl --label a=b --label kernel=6.8=x --format csv --quiet"
    )
    line = line.replace("f32", "fp32")
    found = parse(line.split(), None, "x")
    spec = found.spec
    assert spec.collectives == ("all_reduce", "broadcast")
    assert spec.size_list()[:2] == (1024, 2048) and spec.size_list()[-1] == 1 << 20
    assert (spec.dtypes, spec.ops) == (("float32", "bfloat16"), ("sum", "max"))
    assert (spec.roots, spec.in_place, spec.splits) == ((0, 1), "both", "seed:3")
    assert (spec.backend, spec.device, spec.mode) == ("gloo", "cpu", "back-to-back")
    assert (spec.iters, spec.warmup, spec.cold, spec.fresh_group) == (7, 2, 4, True)
    assert (spec.precision, spec.max_time_s, spec.timeout_s, spec.check) == (0.1, 2.5, 9.0, False)
    assert (spec.order, spec.seed, dict(spec.labels)) == (
        "shuffled",
        5,
        {"a": "b", "kernel": "6.8=x"},
    )
    assert (found.output, found.format, found.quiet) == ("out.jsonl", "csv", True)


SIZES = "a number of bytes with an optional K, M, G or T (binary), such as 8, 1K, 25M or 1.5G"
DTYPES = (
    "float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, float8_e4m3fn, "
    "float8_e5m2"
)
NAMES = ", ".join(COLLECTIVES)
WHOLE = "a whole number from 0 on"
FORMATS = "table, markdown, csv, json"
# Of the options; tests/core/test_spec.py has the values that a Spec refuses.
BAD = [
    ("--dtype float33", error_text("dtype", "float33", f"one of {DTYPES}. Did you mean float32?")),
    (
        "--sizes 1KB",
        error_text("sizes", "1KB", f"{SIZES}. Write 1K (1 x 1024 bytes) or 1000 (decimal)."),
    ),
    (f"--sizes {10**30}", error_text("sizes", 10**30, f"0 to {2**63 - 1} bytes")),
    ("-b -1", error_text("min-bytes", "-1", SIZES)),
    ("--min-bytes=", error_text("min-bytes", "an empty text", SIZES)),
    ("-e 1e3", error_text("max-bytes", "1e3", SIZES)),
    ("--in-place 2", error_text("in-place", "2", "one of 0, 1, both")),
    ("-c 2", error_text("check", "2", "one of 0, 1")),
    ("--label novalue", error_text("label", "novalue", "KEY=VALUE, such as kernel=6.8.0-generic")),
    ("--label =x", error_text("label", "=x", "KEY=VALUE, such as kernel=6.8.0-generic")),
    ("--format xml", error_text("format", "xml", f"one of {FORMATS}")),
    (
        "--ranks 4",
        error_text(
            "ranks",
            "4",
            "--dry-run or --backend fake with it. The launcher sets the number of ranks: "
            "torchrun --nproc-per-node N.",
        ),
    ),
    ("--ranks 0 --dry-run", error_text("ranks", "0", "a whole number from 1 on")),
    ("--ranks x --dry-run", error_text("ranks", "x", "a whole number from 1 on")),
    ("--output a --no-output", error_text("output", "--output a and --no-output", "one of them")),
    ("--output=", error_text("output", "an empty text", "a name")),
    ("--resume=", error_text("resume", "an empty text", "a name")),
    ("--backend=", error_text("backend", "an empty text", "a name")),
    ("--device=", error_text("device", "an empty text", "a name")),
    ("--traffic=", error_text("traffic", "an empty text", "a name")),
    ("--bogus", "unrecognized arguments: --bogus. See python -m torchcoll.suite --help."),
    (
        "--siz 1K",
        "unrecognized arguments: --siz 1K. Did you mean --sizes? See python -m torchcoll.suite "
        "--help.",
    ),
    ("extra", "unrecognized arguments: extra. See python -m torchcoll.suite --help."),
    ("-n", "argument -n/--iters: expected one argument. See python -m torchcoll.suite --help."),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_value(line, message):
    with pytest.raises(UsageError) as caught:
        parse(line.split(), None, "torchcoll.suite")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--minbytes 8", "Did you mean --min-bytes? See python -m torchcoll.allreduce --help."),
        ("-g 8", "The launcher says how many ranks: torchrun --nproc-per-node N."),
    ],
)
def test_an_option_that_is_no_such_one_is_told_the_nearest(line, hint):
    with pytest.raises(UsageError) as caught:
        parse(line.split(), "all_reduce", "torchcoll.allreduce")
    assert str(caught.value) == f"unrecognized arguments: {line}. {hint}"


# What only a run finds: exit code, line.
BAD_ON_RANKS = [
    ("--root 2", 2, error_text("root", "2", "0 to 1 (2 ranks)")),
    ("-i 1", 2, error_text("sizes", "more than 100000 sizes", "at most 100000. ")),
    ("--collectives all_to_all_v --splits 1,2,3", 2, error_text("splits", "1,2,3", "2 weights")),
    ("--backend xccl", 4, error_text("backend", "xccl", "")),
    ("--backend nonsense", 4, error_text("backend", "nonsense", "")),
    ("--device cuda", 4, error_text("device", "cuda", "")),
    (
        "--output /dev/null/x",
        2,
        error_text("output", "/dev/null/x", "a file that can be written ("),
    ),
    ("--output /dev/null", 2, error_text("output", "/dev/null", "a file that does not exist. ")),
    ("--resume absent.jsonl", 3, "file: got absent.jsonl, expected a file that exists"),
    ("--sizes 1KB", 2, error_text("sizes", "1KB", "")),
    ("--bogus", 2, "unrecognized arguments: --bogus. "),
]


def late_rank_0(rank):
    """By all of the half second that the others wait for it, over the full second."""
    time.time = lambda: 1000.2 if rank == 0 else 999.7


@pytest.mark.parametrize(("arguments", "code", "message"), BAD_ON_RANKS)
def test_one_line_from_rank_0(launch, arguments, code, message):
    """Once, without a traceback; the other ranks leave with the same code, and nothing is run."""
    # Two torchrun-like error files: its message is the last thing that torchrun prints.
    measured = launch(
        None,
        arguments,
        2,
        output=False,
        environment=lambda rank: {"TORCHELASTIC_ERROR_FILE": f"error{rank}.json"},
        setup=late_rank_0,
    ).ended(code)
    assert measured.stderr(0).startswith(f"torchcoll: error: {message}"), measured.stderr(0)
    assert measured.stderr(0).count("\n") == 1
    assert (measured.stdout(0), measured.stdout(1), measured.stderr(1)) == ("", "", "")
    folder = measured.job.folder
    assert not (folder / "torchcoll-runs").exists()
    stated = [measured.error_file(rank) for rank in (0, 1)]
    assert stated[0]["message"] == measured.stderr(0).strip()
    assert stated[0]["timestamp"] < stated[1]["timestamp"], "torchrun shows the earliest"


def test_help_is_printed_once(launch):
    measured = launch("all_reduce", "--help", 2, output=False).ended(0)
    assert measured.stdout(0).startswith("usage: torchcoll.allreduce ")
    assert all(name in measured.stdout(0) for name in ("-b", "--iters", "--backend", "--check"))
    assert measured.stdout(1) == ""
    assert len(max(measured.stdout(0).splitlines(), key=len)) <= 100


def test_contradictory_launchers_complain_once(launch):
    """RANK and WORLD_SIZE were left behind by a script; mpirun started two ranks."""

    def environment(rank: int) -> dict[str, str]:
        return {"RANK": "0", "WORLD_SIZE": "1", "PMI_RANK": str(rank), "PMI_SIZE": "2"}

    measured = launch("all_reduce", "", 2, output=False, environment=environment).ended(2)
    (line,) = measured.errors()
    assert line.startswith(error_line("launcher variables", "rank 0 of 1 from torchrun"))
    assert "rank 0 of 2 from MPI" in line


def test_dry_run_prints_once_and_starts_nothing(launch):
    measured = launch("all_reduce", "--dry-run --ranks 1024", 2, output=False).ended(0)
    assert "1024 ranks" in measured.stdout(0)
    assert (measured.stdout(1), measured.stderr(0)) == ("", "")
    assert sorted(p.name for p in measured.job.folder.iterdir()) == [
        "0.stderr",
        "0.stdout",
        "1.stderr",
        "1.stdout",
    ]


# torchcoll run: arguments are checked before torchrun starts (tests/bench/test_bench_torchrun.py).
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("-n 2 allreduce --size 8", ("--size 8", "Did you mean --sizes?")),
        ("-n 2 allreduce --sizes 1KB", ("1KB",)),
        ("-n 2 alreduce", (error_text("collective", "alreduce"), "all_reduce")),
        ("-n 0 allreduce", (error_text("n", "0"), "a whole number from 1 on")),
        ("-n two allreduce", (error_text("n", "two"),)),
        ("-n 2", (error_text("collective", "none"), "torchcoll run -n 2 allreduce")),
        ("allreduce -n 2", (error_text("n", "none"), "before the collective")),
        ("-n 2 suite --collectives x", ("x",)),
    ],
)
def test_wrong_arguments_are_one_line_and_start_nothing(monkeypatch, capsys, words, parts):
    monkeypatch.setattr(os, "execv", None)
    assert main(["run", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("torchcoll: error: ") and all(part in line for part in parts)


def test_the_check_loads_no_torch():
    code = (
        "import sys; from torchcoll.cli import main\n"
        "assert main(['run', '-n', '2', 'allreduce', '--size', '8']) == 2\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
