"""``torchcoll again``: the command of a file, the verdict by hand, and a whole rerun."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from error_form import error_line, error_text
from made_runs import measured, run

from torchcoll.bench.options import parse
from torchcoll.cli import main
from torchcoll.core.errors import UnavailableError, UnusableError, UsageError
from torchcoll.core.file import save
from torchcoll.core.result import Verification
from torchcoll.core.spec import Spec
from torchcoll.parts.experiments.again_command import _plan
from torchcoll.parts.experiments.again_show import Rerun
from torchcoll.parts.experiments.agreement import agreement, judge
from torchcoll.questions.show.recipe import (
    on_this_machine,
    recipe_of,
    unset_settings,
)
from torchcoll.stats.matching import pairs_of
from torchcoll.stats.sides import Reading, Side

FAKE = Path(__file__).parents[1] / "fake_launch.py"


def made(argv: list[str], collectives: list[str], **changed) -> object:
    header = {"argv": argv, "spec": {"collectives": collectives}}
    return run(measured(1000), header=header, **changed)


@pytest.mark.parametrize(
    ("argv", "collectives", "command"),
    [
        (
            ["--sizes", "1K", "-n", "20", "-J", "old.jsonl", "--label", "a=b"],
            ["all_reduce"],
            "torchrun --nproc-per-node 2 -m torchcoll.allreduce --sizes 1K -n 20",
        ),
        (
            ["--collectives", "all_gather", "--output=old.jsonl", "--no-output", "-Jx.jsonl"],
            ["all_gather"],
            "torchrun --nproc-per-node 2 -m torchcoll.suite --collectives all_gather",
        ),
        (
            ["-b", "8"],
            ["all_reduce", "broadcast"],
            "torchrun --nproc-per-node 2 -m torchcoll.suite -b 8",
        ),
    ],
)
def test_command_of_a_file(argv, collectives, command):
    assert " ".join(recipe_of(made(argv, collectives)).command()) == command


def test_command_with_another_launcher():
    recipe = recipe_of(made(["-n", "5"], ["all_reduce"]))
    words = recipe.command(["srun", "--nodes", "2", "python", "-m"])
    assert words == ["srun", "--nodes", "2", "python", "-m", "torchcoll.allreduce", "-n", "5"]


def test_settings_are_those_of_the_file():
    variables = {
        "NCCL_ALGO": "Ring",
        "MASTER_PORT": "29500",
        "SLURM_JOB_ID": "7",
        "OMP_NUM_THREADS": "1",
        "FI_SECRET": "***",
    }
    recipe = recipe_of(made([], ["all_reduce"], variables=variables))
    assert recipe.variables == {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"}
    assert recipe.notes == ("the values of FI_SECRET are masked in the file",)
    here = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Tree", "HOME": "/", "OMP_NUM_THREADS": "4"}
    assert unset_settings(recipe, here).variables == {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "1",
        "NCCL_PROTO": None,
    }


def test_another_tool_is_measured_as_its_cases_were():
    results = [measured(1000, size_bytes=size, ranks=8, in_place=True) for size in (1024, 1 << 20)]
    recipe = recipe_of(run(*results, ranks=8, source={"tool": "nccl-tests"}))
    assert " ".join(recipe.command()) == (
        "torchrun --nproc-per-node 8 -m torchcoll.allreduce --sizes 1K,1M --in-place 1 "
        "--mode synchronized"
    )
    assert "the file is of nccl-tests" in recipe.notes[0]


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({}, []),
        ({"collective": "broadcast", "op": None, "root": 3}, ["--root", "3"]),
        ({"misalign_bytes": 4}, ["--misalign", "4"]),
        ({"buffers": "symmetric"}, ["--buffers", "symmetric"]),
        ({"buffer_reuse": "rotate"}, ["--buffer-reuse", "rotate"]),
        ({"buffer_reuse": "unknown"}, []),
        ({"coalesce": 4}, ["--coalesce", "4"]),
        ({"implementation": "one_shot"}, ["--implementation", "one_shot"]),
        ({"group": "mod:2/1"}, ["--groups", "mod:2"]),
        ({"group": "div:4"}, ["--groups", "div:4"]),
        ({"group": "0,1;2,3/0"}, ["--groups", "0,1;2,3"]),
        ({"group": "DP_GROUP/1"}, []),
        ({"group": "7/1"}, []),
    ],
)
def test_settings_of_another_tool_are_options(changed, options):
    case = {"device": "cuda", "backend": "nccl", "mode": "back-to-back"} | changed
    result = measured(1000, ranks=8)
    result.case = replace(result.case, **case)
    recipe = recipe_of(run(result, ranks=8, source={"tool": "nccl-tests"}))
    always = ("--sizes", "1K", "--in-place", "1")
    assert recipe.arguments == (*always, *options, "--mode", "back-to-back")


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        # Also the default of the device, so that the command means the same on any machine.
        ({"mode": "back-to-back"}, ["--mode", "back-to-back"]),
        ({"mode": "synchronized"}, ["--mode", "synchronized"]),
        ({"mode": "synchronized", "device": "cpu"}, ["--mode", "synchronized"]),
        ({"mode": "blocking"}, ["--mode", "blocking"]),
        ({"mode": "unknown"}, []),
        ({"mode": "back-to-back", "asynchronous": True}, ["--mode", "back-to-back", "--async"]),
    ],
)
def test_mode_of_another_tool_is_an_option(changed, options):
    result = measured(1000, ranks=8)
    result.case = replace(result.case, **{"device": "cuda", "backend": "nccl"} | changed)
    recipe = recipe_of(run(result, ranks=8, source={"tool": "nccl-tests"}))
    assert recipe.arguments == ("--sizes", "1K", "--in-place", "1", *options)


@pytest.mark.parametrize("header", [{"argv": ["--groups", "mod:2"]}, {"argv": None}])
def test_sub_groups_run_with_the_ranks_of_the_whole_run(header):
    """Each case has the 4 ranks of its sub-group, and the run has 8."""
    spec = {"collectives": ["all_reduce"], "groups": "mod:2"}
    results = [measured(1000, ranks=4, group=f"mod:2/{number}") for number in (0, 1)]
    recipe = recipe_of(run(*results, ranks=8, header=header | {"spec": spec}))
    assert recipe.ranks == 8
    assert recipe.arguments.count("--groups") == 1


@pytest.mark.parametrize(
    ("cases", "actual", "expected"),
    [
        (
            [{"mode": "blocking, barrier"}],
            "mode 'blocking, barrier'",
            "one of synchronized, back-to-back, blocking, graph",
        ),
        (
            [{"mode": "blocking"}, {}],
            "cases that differ in mode (blocking, synchronized)",
            "one mode for all cases",
        ),
        (
            [{"misalign_bytes": 4}, {"misalign_bytes": 2, "dtype": "float16"}],
            "buffers misaligned by 2 bytes and 4 bytes",
            "one offset for all cases",
        ),
        (
            [{"implementation": "nccl-tests-device-1-16-ctas"}],
            "collectives of nccl-tests-device-1-16-ctas",
            "collectives of the library",
        ),
        (
            [{"buffer_reuse": "rotate"}, {}],
            "cases that differ in buffer reuse (rotate, same)",
            "one buffer reuse for all cases",
        ),
        (
            [{"buffer_reuse": "rotate", "mode": "graph"}],
            "graphs with rotating buffers",
            "the same buffers in every call, or no graphs",
        ),
        (
            [{"coalesce": 4}, {}],
            "cases that differ in coalesce (4, 1)",
            "one coalesce for all cases",
        ),
        (
            [{"asynchronous": True}, {}],
            "cases that differ in kind of calls (asynchronous, synchronous)",
            "one kind of calls for all cases",
        ),
        (
            [{"implementation": "functional"}, {}],
            "cases that differ in implementation (functional, own)",
            "one implementation for all cases",
        ),
        (
            [{"group": "mod:2/0"}, {}],
            "cases that differ in grouping (mod:2, one group)",
            "one grouping for all cases",
        ),
    ],
)
def test_settings_that_torchcoll_does_not_have_are_refused(cases, actual, expected):
    results = [measured(1000) for _ in cases]
    for result, changed in zip(results, cases, strict=True):
        result.case = replace(result.case, **changed)
    with pytest.raises(UnusableError) as caught:
        recipe_of(run(*results, source={"tool": "nccl-tests"}))
    actual += ", which torchcoll cannot run again"
    assert str(caught.value) == error_text("file", actual, expected)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"asynchronous": True, "buffer_reuse": "rotate", "iters": 10},
        {"buffer_reuse": "flush", "warmup": 3, "cold": 5, "check": False, "rehearse": True},
        {"implementation": "own,functional", "precision": 0.01},
        {"coalesce": 4, "groups": "mod:2", "max_time_s": 0.25, "fresh_group": True},
        {"collectives": "broadcast,reduce", "roots": (0, 2), "in_place": "both", "seed": 3},
        {"collectives": "all_reduce,all_gather", "in_place": False},
        {"collectives": "all_reduce,all_gather"},  # each in its own default placement
        {"collectives": "all_to_all_v", "splits": "pair:seed:4", "dtypes": "bfloat16,float32"},
        {"backend": "gloo,fake", "mode": "blocking", "order": "interleaved", "init": "eager"},
        {"backend": "nccl", "device": "cuda", "buffers": "symmetric"},
        {"backend": "nccl", "device": "cuda", "communicator_config": "max_ctas=8,min_ctas=2"},
        {"sizes": "1000,4K", "ops": "max", "misalign_bytes": 8, "timeout_s": 20.5},
        {"concurrent": "matmul:64K", "iters": 0},
    ],
)
def test_a_run_from_python_is_run_with_the_spec_of_its_file(changed):
    """``torchcoll.run`` records no command, but a Spec with a default for each field."""
    known = {"sizes": "1K,16K", "collectives": "all_reduce", "backend": "gloo", "device": "cpu"}
    spec = Spec(**known | changed)
    results = []
    for case in spec.cases(4):
        result = measured(1000, ranks=4)
        result.case = replace(case, group=f"{case.group}/0" if case.group else None)
        results.append(result)
    header = {"argv": None, "spec": json.loads(json.dumps(spec.to_json()))}
    recipe = recipe_of(run(*results, ranks=4, header=header, variables={"GLOO_X": "1"}))
    assert recipe.variables == {"GLOO_X": "1"}
    collective = None if recipe.module == "suite" else spec.collectives[0]
    again = parse(recipe.arguments, collective, recipe.module).spec
    mode = spec.cases(4)[0].mode  # explicit in the command
    assert again == replace(spec, mode=mode)


def test_backends_that_are_not_here_are_left_out():
    both = [measured(1000, backend=name) for name in ("gloo", "ccl")]
    header = {"argv": ["--backend", "gloo,ccl"], "spec": {"collectives": ["all_reduce"]}}
    recipe = on_this_machine(recipe_of(run(*both, header=header)), ["gloo"], 0)
    assert recipe.command()[-2:] == ["--backend", "gloo"]  # the last one counts
    assert recipe.notes == ("not run, because it cannot be used here: ccl",)


def test_fewer_devices_run_fewer_ranks():
    result = measured(1000, ranks=8, device="cuda", backend="nccl")
    header = {"argv": [], "spec": {"collectives": ["all_reduce"]}}
    recipe = on_this_machine(recipe_of(run(result, ranks=8, header=header)), ["nccl"], 2)
    assert recipe.command()[:3] == ["torchrun", "--nproc-per-node", "2"]
    assert recipe.notes == ("2 devices here, so 2 of 8 ranks",)


def test_ranks_run_in_the_python_of_torchcoll_whatever_path_has(monkeypatch):
    monkeypatch.setenv("PATH", "")
    header = {"argv": [], "spec": {"collectives": ["all_reduce"]}}
    plan = _plan(recipe_of(run(measured(1000), header=header)), [], 3)
    ranks = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    assert plan.command.argv[:5] == (sys.executable, *ranks)


def test_another_device_is_refused_with_what_to_do():
    result = measured(1000, device="cuda", backend="nccl")
    header = {"argv": [], "spec": {"collectives": ["all_reduce"]}}
    with pytest.raises(UnavailableError) as caught:
        on_this_machine(recipe_of(run(result, header=header)), ["gloo"], 0)
    expected = "what the file ran on (2 ranks). torchcoll again FILE --dry-run prints the command."
    assert str(caught.value) == error_text("this machine", "no nccl on cuda", expected)


def test_several_hosts_need_a_launcher():
    header = {"argv": [], "spec": {"collectives": ["all_reduce"]}}
    four = run(measured(1000, ranks=4), ranks=4, hosts=["a", "b"], header=header)
    with pytest.raises(UsageError) as caught:
        on_this_machine(recipe_of(four), ["gloo"], 0)
    assert "--launcher 'srun --nodes 2 --ntasks-per-node 2 python -m'" in str(caught.value)


def judged(file: float, new: list[float], threshold: float = 0.1):
    logs = {number: math.log(value) for number, value in enumerate(new)}
    return judge([("case", {0: math.log(file)}, logs)], threshold)


def test_verdict_by_hand():
    """Logs -0.01, 0, 0.01: s = 0.01, and the standard error is 0.01 sqrt(4/3) = 0.011547."""
    new = [math.exp(-0.01), 1.0, math.exp(0.01)]
    result = judged(1.0, new)
    assert (result.verdict, result.runs, result.file_runs) == ("reproduced", 3, 1)
    # Over all cases the error is 2.5 %: t(0.9875, 2) = 6.2053. The interval is of the same level.
    assert result.high == pytest.approx(math.exp(0.0716523), rel=1e-5)
    assert judged(math.exp(-0.0716), new).verdict == "cannot tell"
    assert judged(math.exp(-0.0717), new).verdict == "not reproduced"
    # t(0.975, 2) = 4.3027: 0.04968. ln 1.1 is 0.09531, of which 0.04563 are left for a difference.
    assert result.cases[0].bound == pytest.approx(math.expm1(0.0496826), rel=1e-5)
    assert judged(math.exp(-0.0456), new).verdict == "reproduced"
    assert judged(math.exp(0.0457), new).verdict == "cannot tell"
    assert judged(1.0, new, threshold=0.05).verdict == "cannot tell"


def test_a_ratio_outside_the_printed_interval_is_refused():
    """Logs of mean 0 with squares of 0.0054: s = 0.03286, t(0.9875, 5) = 3.1634, standard error
    s sqrt(7/6) = 0.03550, so the noise is up to 0.1123.
    """
    new = [math.exp(log) for log in (0, 0.02, -0.03, 0.05, -0.04, 0.0)]
    low = judged(math.exp(0.112), new)
    assert low.verdict == "cannot tell" and low.ratio < low.high
    high = judged(math.exp(0.113), new)
    assert high.verdict == "not reproduced" and high.ratio > high.high


def test_a_quiet_mean_does_not_hide_a_noisy_case():
    """In the last case the logs are 0.05 times (-1, -1, -1, 1, 1, 1), so s = 0.05477 and 29 % are
    not excluded: t(0.975, 5) = 2.5706, times s sqrt(7/6) is 0.1521, and 0.1 + 0.1521 = 0.2521.
    """
    quiet = {number: 0.001 * sign for number, sign in enumerate((-1, 1, -1, 1, -1, 1))}
    noisy = {number: 0.05 * sign for number, sign in enumerate((-1, -1, -1, 1, 1, 1))}
    cases = [(f"case {n}", {0: 0.0}, quiet) for n in range(9)]
    result = judge([*cases, ("claim", {0: -0.1}, noisy)], 0.1)
    assert result.high < 1.1  # the interval of the mean
    assert result.verdict == "cannot tell"
    assert [case.name for case in result.open_cases] == ["claim"]
    assert result.cases[-1].bound == pytest.approx(math.expm1(0.2521), rel=1e-3)
    answer = Rerun("old.jsonl", result, [], [], "again").answer
    # Of the 29 %, noise alone is exp(0.1521) - 1 = 16 %. The mean of the ten cases differs by 0.01.
    assert answer.headline == (
        "Cannot tell whether old.jsonl is reproduced: the new runs are 1.0 % slower over all "
        "cases, but differences up to 29 % cannot be excluded (1 of 10 cases, most in claim; 10 % "
        "was asked; 6 runs)"
    )
    assert answer.next_step == "make more runs (--runs 12)"


def test_runs_that_vary_by_more_than_a_factor_of_2_say_so():
    """No bound of 278x: the runs vary, and the case that looks farthest off is named."""
    quiet = judged(1.0, [math.exp(-0.01), 1.0, math.exp(0.01)])
    noisiest = replace(quiet.cases[0], name="noisy", ratio=0.63, bound=277.0)
    furthest = replace(quiet.cases[0], name="far", ratio=8.7, bound=12.0)
    result = replace(quiet, verdict="cannot tell", cases=(noisiest, furthest), threshold=0.1)
    assert Rerun("fast.jsonl", result, [], [], "again").answer.text == (
        "Cannot tell whether fast.jsonl is reproduced: 3 runs vary too much to exclude a "
        "difference of 10 % in 2 of 2 cases (most in noisy); far looks 8.7x faster. Next: make "
        "more runs (--runs 6)"
    )


def test_one_case_that_differs_is_found_among_many():
    """Seven cases that agree; the eighth is 18 % shorter in the file."""
    new = {number: 0.01 * (number - 2) for number in range(5)}
    cases = [(f"case {n}", {0: 0.0}, new) for n in range(7)]
    result = judge([*cases, ("odd", {0: -0.2}, new)], 0.1)
    assert result.verdict == "not reproduced"
    assert result.worst is not None and result.worst.name == "odd"
    assert [case.name for case in result.cases if case.differs] == ["odd"]


def test_cases_without_three_new_runs_are_not_judged():
    assert judge([("case", {0: 0.0}, {0: 0.0, 1: 0.0})], 0.1).verdict == "not comparable"


def test_sentences():
    result = judged(math.exp(-0.2), [math.exp(-0.01), 1.0, math.exp(0.01)])
    answer = Rerun("old.jsonl", result, ["kernel: 6.1 -> 6.2"], [], "again").answer
    assert answer.level == "bad"
    assert answer.headline.startswith(
        "not reproduced old.jsonl: the new runs are 22 % slower over all cases, and runs differ by"
    )
    assert answer.details == ("differences: kernel: 6.1 -> 6.2",)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of 3 runs' figures, which the stand-in of a run reproduces: 8 bytes in 1000 ns."""
    monkeypatch.chdir(tmp_path)
    assert main([*again_words("made"), "--dry-run"]) == 3  # no such file
    os.makedirs("made")
    options = "--output made/a.jsonl --label cell=x --label run=1"
    subprocess.run([sys.executable, "-S", str(FAKE), *options.split()], check=True)
    lines = Path("made/a.jsonl").read_text().splitlines()
    return Path("made/a.jsonl"), lines


def again_words(path: str) -> list[str]:
    launcher = f"{sys.executable} -S {FAKE}"
    return ["again", path, "--runs", "3", "-o", "new", "--quiet", "--launcher", launcher]


def test_the_whole_command(file, capsys):
    path, _ = file
    code = main([*again_words(str(path)), "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0, document
    assert document["schema"] == "torchcoll-again/1"
    assert (document["verdict"], document["runs"]) == ("reproduced", 3)
    # The labels that every run of the command has are no difference.
    assert not [text for text in document["differences"] if text.startswith("label=")]
    assert len(list(Path("new").glob("again-*.jsonl"))) == 3


def test_new_runs_that_are_wrong_reproduce_nothing(file, capsys):
    path, _ = file
    words = again_words(str(path))
    words[-1] += " wrong"
    assert main([*words, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["answer"]["level"] == "bad"
    assert document["answer"]["counts"]["wrong"] == 1
    assert document["answer"]["headline"].startswith(
        "wrong results in 3 of 3 runs of the rerun (all_reduce 8 float32 sum on gloo). "
    )
    assert document["faults"]["faults"][0]["runs"] == 3


def test_a_wrong_run_is_no_figure_of_the_others():
    """Two of five runs are wrong and take half as long: the file's time is that of the others."""
    items = [
        [measured(1000, status=status, verification=Verification(8, wrong))]
        for status, wrong in [("ok", 0), ("ok", 0), ("ok", 0), ("wrong", 3), ("wrong", 3)]
    ]
    for number, (one,) in enumerate(items):
        one.time_ns["host"] = [[(500 if one.status == "wrong" else 1000) + number] * 3] * 2
    new = Side("new", [run(*cases) for cases in items]).measured("time", Reading())
    old = Side("file", [run(measured(1001))]).measured("time", Reading())
    found = agreement(pairs_of(old, new), 0.1)
    assert (found.verdict, found.runs) == ("reproduced", 3)


def test_what_differs_in_the_cases_is_listed(file, capsys):
    """The stand-in measures synchronized calls; the file does not say which buffers it used."""
    path, lines = file
    changes = {"mode": "blocking", "buffer_reuse": "unknown"}
    records = [json.loads(line) for line in lines]
    for record in records:
        if record["record"] == "case":
            record["case"] |= changes
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    main([*again_words(str(path)), "--format", "json"])
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert differences[0] == "mode: blocking -> synchronized"
    assert differences[-1] == "buffer_reuse: not known -> same"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--runs", "2"], error_text("runs", "2", "a whole number from 3 on")),
        (["--threshold", "x"], error_text("threshold", "x", "a share above 0 and below 1")),
    ],
)
def test_refused(tmp_path, monkeypatch, capsys, options, line):
    monkeypatch.chdir(tmp_path)
    assert main(["again", "a.jsonl", *options]) == 2
    assert line[:40] in capsys.readouterr().err


def test_a_run_is_found_by_its_hash(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = made(["--sizes", "1K"], ["all_reduce"])
    source.header["run_id"] = "80f257f7d1a8"
    (tmp_path / "torchcoll-runs").mkdir()
    save(source, tmp_path / "torchcoll-runs/x.jsonl.gz")
    assert main(["again", "80f257f7", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "-m torchcoll.allreduce --sizes 1K" in shown.out
    assert "6 runs into again-x; nothing was started; each of them:\n" in shown.err
    assert main(["again", "80f257f7d1a9", "--dry-run"]) == 3
    assert capsys.readouterr().err.strip() == error_line(
        "hash of a run",
        "80f257f7d1a9 in 0 files of ., torchcoll-runs, results",
        "one file. Name its file, or where it is: torchcoll again 80f257f7d1a9 FOLDER.",
    )
    (tmp_path / "a/b").mkdir(parents=True)
    save(source, tmp_path / "a/b/y.jsonl")
    assert main(["again", "80f257f7d1a8", "a", "--dry-run"]) == 0
    capsys.readouterr()
    assert main(["again", "80f257f7d1a8", "a", "torchcoll-runs", "--dry-run"]) == 3
    two = "Name one of a/b/y.jsonl, torchcoll-runs/x.jsonl.gz.\n"
    assert capsys.readouterr().err.endswith(two)


def test_ranks_of_several_hosts_are_not_put_on_one_in_silence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "1048576 262144 float sum -1 99.06 10.585 19.847 0\n"
    heading = "# size count type redop root time algbw busbw #wrong\n"
    (tmp_path / "t.txt").write_text(f"{heading}{rows}# Out of bounds values : 0 OK\n")
    assert main(["again", "t.txt", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("torchrun --nproc-per-node 16 ")
    assert "16 ranks on one host, as the file names no hosts; on 2 hosts: --launcher" in shown.err


def test_a_busy_machine_is_named_in_the_next_step():
    quiet = judged(1.0, [math.exp(-0.01), 1.0, math.exp(0.01)])
    noisy = replace(quiet.cases[0], name="noisy", ratio=0.63, bound=277.0)
    result = replace(quiet, verdict="cannot tell", cases=(noisy,), threshold=0.1)
    busy = "vm: other processes used 1.2 of 2 cores during the run"
    assert Rerun("a.jsonl", result, [], [], "again", disturbance=busy).answer.next_step == (
        "measure again while vm does nothing else (other processes used 1.2 of 2 cores during the "
        "run), with --runs 6"
    )
