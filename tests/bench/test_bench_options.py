"""The command line on the ranks: torchrun lets every option pass; every bad value is one line."""

from __future__ import annotations

import time

import pytest
from torch.distributed.run import get_args_parser

from torchcoll.bench import options
from torchcoll.bench.options import parse
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.pairs import pairs_run

# nccl-tests' letters, and what torchcoll adds.
OPTIONS = (
    *("-b", "--min-bytes", "-e", "--max-bytes", "-f", "--factor", "-i", "--step-bytes", "--sizes"),
    *("-n", "--iters", "-w", "--warmup", "-d", "--dtype", "-o", "--op", "-r", "--root"),
    *("-c", "--check", "-T", "--timeout", "-J", "--output", "--collectives", "--backend"),
    *("--device", "--mode", "--in-place", "--precision", "--max-time", "--cold", "--label"),
    *(
        "--fresh-group",
        "--buffer-reuse",
        "--splits",
        "--order",
        "--seed",
        "--ranks",
        "--dry-run",
        "--resume",
    ),
    *("--no-output", "--format", "--quiet", "-h", "--help", "--async", "--buffers", "--groups"),
    *("--init", "--coalesce", "--rehearse", "--traffic", "--gate"),
)
SWITCHES = ("--fresh-group", "--dry-run", "--no-output", "--quiet", "-h", "--help", "--rehearse")
SWITCHES += ("--async", "--gate", "--bisect", "--verbose")


def all_options() -> set[str]:
    parsers = [options._parser("torchcoll.suite", several) for several in (True, False)]
    parsers.append(pairs_run._parser())
    return {name for p in parsers for action in p._actions for name in action.option_strings}


def test_the_designed_options_exist():
    assert set(OPTIONS) <= all_options()


@pytest.mark.parametrize("option", sorted({*OPTIONS, *all_options()}))
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
FORMATS = "table, markdown, csv, json, nccl-tests"
BAD = [
    ("--dtype float33", f"dtype: got float33, expected one of {DTYPES}. Did you mean float32?"),
    ("--dtype=", f"dtype: got an empty text, expected one of {DTYPES}"),
    ("-o mean", "op: got mean, expected one of sum, prod, min, max, avg, band, bor, bxor"),
    ("--collectives allreduce,foo", f"collective: got foo, expected one of {NAMES}"),
    ("--collectives=", f"collective: got an empty text, expected one of {NAMES}"),
    (
        "--sizes 1KB",
        f"sizes: got 1KB, expected {SIZES}. Write 1K (1 x 1024 bytes) or 1000 (decimal).",
    ),
    ("--sizes=", f"sizes: got an empty text, expected {SIZES}"),
    ("--sizes 1K,", f"sizes: got an empty text, expected {SIZES}"),
    ("--sizes 0", "sizes: got 0, expected at least 1 byte"),
    (f"--sizes {10**30}", f"sizes: got {10**30}, expected 0 to {2**63 - 1} bytes"),
    ("-b -1", f"min-bytes: got -1, expected {SIZES}"),
    ("-b 0x10", f"min-bytes: got 0x10, expected {SIZES}"),
    ("--min-bytes=", f"min-bytes: got an empty text, expected {SIZES}"),
    ("-b 0", "min-bytes: got 0, expected at least 1 byte"),
    ("-b 2K -e 1K", "min-bytes (-b): got 2K, expected at most max-bytes (-e), which is 1K"),
    ("-e 1e3", f"max-bytes: got 1e3, expected {SIZES}"),
    ("-f 1", "factor: got 1.0, expected a number above 1"),
    ("-f 0.5", "factor: got 0.5, expected a number above 1"),
    ("-f x", "factor: got x, expected a number"),
    ("-i 0", "step-bytes: got 0, expected at least 1 byte"),
    ("-r -1", f"root: got -1, expected {WHOLE}"),
    ("-r x", f"root: got x, expected {WHOLE}"),
    ("--in-place 2", "in-place: got 2, expected one of 0, 1, both"),
    ("-c 2", "check: got 2, expected one of 0, 1"),
    ("-n -1", f"iters: got -1, expected {WHOLE}"),
    ("-n 1.5", f"iters: got 1.5, expected {WHOLE}"),
    ("-w -1", f"warmup: got -1, expected {WHOLE}"),
    ("--cold 0", "cold: got 0, expected a whole number from 1 on"),
    ("--precision 0", "precision: got 0.0, expected above 0, at most 1e+07"),
    ("--max-time 0", "max-time: got 0.0, expected above 0, at most 1e+07"),
    ("-T 0", "timeout: got 0.0, expected above 0, at most 1e+07"),
    ("--order backwards", "order: got backwards, expected one of size, shuffled, interleaved"),
    ("--buffer-reuse cold", "buffer-reuse: got cold, expected one of same, rotate"),
    ("--seed -1", f"seed: got -1, expected {WHOLE}"),
    ("--label novalue", "label: got novalue, expected KEY=VALUE, such as kernel=6.8.0-generic"),
    ("--label =x", "label: got =x, expected KEY=VALUE, such as kernel=6.8.0-generic"),
    ("--format xml", f"format: got xml, expected one of {FORMATS}"),
    (
        "--ranks 4",
        "ranks: got 4, expected --dry-run or --backend fake with it. "
        "The launcher sets the number of ranks: torchrun --nproc-per-node N.",
    ),
    ("--ranks 0 --dry-run", "ranks: got 0, expected a whole number from 1 on"),
    ("--ranks x --dry-run", "ranks: got x, expected a whole number from 1 on"),
    ("--output a --no-output", "output: got --output a and --no-output, expected one of them"),
    ("--output=", "output: got an empty text, expected a name"),
    ("--resume=", "resume: got an empty text, expected a name"),
    ("--backend=", "backend: got an empty text, expected a name"),
    ("--device=", "device: got an empty text, expected a name"),
    ("--traffic=", "traffic: got an empty text, expected a name"),
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
        ("--collectives all", "--collectives is an option of torchcoll.suite."),
        ("-g 8", "The launcher says how many ranks: torchrun --nproc-per-node N."),
    ],
)
def test_an_option_that_is_no_such_one_is_told_the_nearest(line, hint):
    with pytest.raises(UsageError) as caught:
        parse(line.split(), "all_reduce", "torchcoll.allreduce")
    assert str(caught.value) == f"unrecognized arguments: {line}. {hint}"


def test_the_mode_names_what_there_is():
    with pytest.raises(
        UsageError, match=r"^mode: got busy, expected .*synchronized, back-to-back, graph$"
    ):
        parse(["--mode", "busy"], None, "x")


# What only a launch finds: exit code, line.
BAD_ON_RANKS = [
    ("--root 2", 2, "root: got 2, expected 0 to 1 (2 ranks)"),
    ("-i 1", 2, "sizes: got more than 100000 sizes, expected at most 100000. "),
    ("--collectives all_to_all_v --splits 1,2,3", 2, "splits: got 1,2,3, expected 2 weights"),
    ("--backend xccl", 4, "backend: got xccl, expected "),
    ("--backend nonsense", 4, "backend: got nonsense, expected "),
    ("--device cuda", 4, "device: got cuda, expected "),
    ("--output /dev/null/x", 2, "output: got /dev/null/x, expected a file that can be written ("),
    ("--output /dev/null", 2, "output: got /dev/null, expected a file that does not exist. "),
    ("--resume /nonexistent", 3, "result file: got /nonexistent, expected a file that exists"),
    ("--sizes 1KB", 2, "sizes: got 1KB, expected "),
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


def test_an_existing_output_is_kept(launch, tmp_path):
    (tmp_path / "old.jsonl").write_text("precious\n")
    measured = launch("barrier", f"-n 1 --output {tmp_path}/old.jsonl", 2, output=False).ended(2)
    assert measured.errors() == [
        f"torchcoll: error: output: got {tmp_path}/old.jsonl, expected a file that does not exist. "
        "Name another file or remove it."
    ]
    assert (tmp_path / "old.jsonl").read_text() == "precious\n"


def test_help_is_printed_once(launch):
    measured = launch("all_reduce", "--help", 2, output=False).ended(0)
    assert measured.stdout(0).startswith("usage: torchcoll.allreduce ")
    of_suite = ("--collectives", "--traffic")
    assert all(option in measured.stdout(0) for option in OPTIONS if option not in of_suite)
    assert measured.stdout(1) == ""
    assert len(max(measured.stdout(0).splitlines(), key=len)) <= 100


def test_contradictory_launchers_complain_once(launch):
    """RANK and WORLD_SIZE were left behind by a script; mpirun started two ranks."""

    def environment(rank: int) -> dict[str, str]:
        return {"RANK": "0", "WORLD_SIZE": "1", "PMI_RANK": str(rank), "PMI_SIZE": "2"}

    measured = launch("all_reduce", "", 2, output=False, environment=environment).ended(2)
    (line,) = measured.errors()
    assert line.startswith("torchcoll: error: launcher variables: got rank 0 of 1 from torchrun")
    assert "rank 0 of 2 from MPI" in line


def test_dry_run_prints_once_and_starts_nothing(launch):
    measured = launch("all_reduce", "--dry-run --ranks 1024", 2, output=False).ended(0)
    assert "1024 ranks" in measured.stdout(0)
    assert (measured.stdout(1), measured.stderr(0)) == ("", "")
    assert sorted(p.name for p in measured.job.folder.iterdir()) == [
        *("0.stderr", "0.stdout", "1.stderr", "1.stdout")
    ]
