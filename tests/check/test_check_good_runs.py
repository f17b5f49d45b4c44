"""``torchcoll baseline``, and ``check --baseline`` with its file, a folder and a store."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from error_form import error_line, error_text
from made_fleet import made_fleet

import torchcoll
from torchcoll.cli import main
from torchcoll.core.case import Case
from torchcoll.parts.fleet.baseline_file import format_baselines, read_baselines
from torchcoll.parts.fleet.baseline_show import detectable_text
from torchcoll.parts.fleet.good_runs import GoodRun, GoodRuns, Limits, baseline_of, limits_of
from torchcoll.parts.fleet.records import CaseKey


def new_run(folder, name, factor, night=40, **changed):
    """A run of node003 whose case number c takes factor(c) times as long; noise 0.2 %."""
    times = lambda node, made, case: factor(case)  # noqa: E731
    run = made_fleet(4, 1, times=times, seed=night, **changed)[3]
    run.header["run_id"] = name
    torchcoll.save(run, folder / f"{name}.jsonl")
    return str(folder / f"{name}.jsonl")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with 6 nights of 4 nodes, its baseline, and three new runs."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "nightly").mkdir()
    for run in made_fleet(4, 6):
        torchcoll.save(run, folder / f"nightly/{run.header['run_id']}.jsonl")
    new_run(folder, "healthy", lambda case: 1)
    new_run(folder, "slow", lambda case: 1.08)
    new_run(folder, "one", lambda case: 1.2 if case == 7 else 1)
    assert main(["baseline", str(folder / "nightly"), "-o", str(folder / "baseline.toml")]) == 0
    return folder


def check(made, name, *options):
    return main(["check", str(made / f"{name}.jsonl"), *options])


def joined(text):
    """Without the line breaks of long lines."""
    return " ".join(text.split())


def test_the_first_line_says_what_the_baseline_detects(made, tmp_path, capsys):
    out = tmp_path / "b.toml"
    assert main(["baseline", str(made / "nightly"), "-o", str(out)]) == 0
    text = joined(capsys.readouterr().out)
    (baseline,) = read_baselines(out)
    limits = limits_of(baseline)
    over_all = f"{100 * math.expm1(limits.run_detectable):.1f} % slower over all cases"
    assert text.startswith(f"baseline of 24 runs on 4 nodes, 10 cases: a run that is {over_all}, ")
    assert "is detected 9 times in 10; false alarms 1 % per run" in text
    assert limits.run_detectable < 0.03  # noise 0.2 %
    assert "2026-10-01 to 2026-10-06" in text


@pytest.mark.parametrize(
    ("effects", "text"),
    [
        ((1.031, 1.04), "3.1 to 4.0 % in one case"),
        ((1.031, 1.031), "3.1 % in one case"),
        ((1.65, 2.7), "65 % to 2.7x in one case"),
        ((2.1, 2.7), "2.1x to 2.7x in one case"),
    ],
)
def test_detectable_changes_have_their_units(effects, text):
    logs = np.log(effects)
    limits = Limits(0 * logs, logs, 0.01, 0.01, math.log(1.021), logs, logs, logs)
    assert detectable_text(limits) == f"2.1 % slower over all cases, or {text}"


def test_json_and_the_file_have_the_same_figures(made, tmp_path, capsys):
    out = tmp_path / "b.toml"
    command = ["baseline", str(made / "nightly"), "-o", str(out), "--format", "json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    (baseline,) = read_baselines(out)
    assert document["answer"]["counts"] == {"runs": 24, "nodes": 4, "cases": 10, "left out": 0}
    for row, case in zip(document["rows"], baseline.cases, strict=True):
        assert (row["collective"], row["ranks"]) == (case.key.case.collective, 2)
        assert row["usual_ns"] == pytest.approx(case.usual_ns, rel=1e-6)
        assert row["spread"] == pytest.approx(case.spread, rel=1e-6)
    assert main(command) == 2  # the file is there
    assert main([*command, "--force"]) == 0


@pytest.mark.parametrize("baseline", ["baseline.toml", "nightly", "nightly/*.jsonl"])
def test_healthy_slow_and_slow_in_one_case(made, baseline, capsys):
    options = ("--baseline", str(made / baseline))
    assert check(made, "healthy", *options) == 0
    out = joined(capsys.readouterr().out)
    assert out.startswith("PASS as usual: 0.")
    assert "24 good runs on 4 nodes; a run that is" in out
    assert check(made, "slow", *options) == 1
    out = joined(capsys.readouterr().out)
    assert out.startswith("FAIL ")
    assert float(out.split()[1]) == pytest.approx(8, abs=0.7)
    mean = r"% slower over all 10 cases than 24 good runs on 4 nodes \(healthy below [0-9.]+ %\)"
    assert re.search(mean, out)
    assert check(made, "one", *options) == 1
    out = joined(capsys.readouterr().out)
    assert out.startswith("FAIL all_gather 1M ")
    change = out.split()[3]
    assert float(change) == pytest.approx(20, abs=1)


def test_a_file_a_folder_and_a_store_give_equal_answers(made, tmp_path, capsys):
    store = str(tmp_path / "runs.sqlite")
    assert main(["collect", str(made / "nightly"), "--into", store]) == 0
    capsys.readouterr()
    for name in ("healthy", "slow", "one"):
        answers = []
        for baseline in (str(made / "baseline.toml"), str(made / "nightly"), store):
            check(made, name, "--baseline", baseline, "--format", "json")
            document = json.loads(capsys.readouterr().out)
            answers.append(document["verdict"]["line"])
        assert len(set(answers)) == 1


def test_json_has_the_deviation_of_every_case(made, capsys):
    check(made, "one", "--baseline", str(made / "baseline.toml"), "--format", "json")
    deviation = json.loads(capsys.readouterr().out)["verdict"]["deviation"]
    assert (deviation["runs"], deviation["nodes"], deviation["false_alarms"]) == (24, 4, 0.01)
    assert len(deviation["cases"]) == 10
    worst, *others = deviation["cases"]
    assert (worst["name"], worst["state"]) == ("all_gather 1M", "slow")
    assert worst["slower"] == pytest.approx(0.2, abs=0.01)
    assert worst["time_ns"] / worst["usual_ns"] == pytest.approx(1 + worst["slower"])
    assert {case["state"] for case in others} == {"as usual"}


@pytest.mark.parametrize("baseline", ["baseline.toml", "nightly"])
def test_metrics_have_the_deviation_of_every_case(made, baseline, tmp_path):
    metrics = tmp_path / "slow.prom"
    options = ("--baseline", str(made / baseline), "--metrics", str(metrics))
    assert check(made, "slow", *options) == 1
    name = "torchcoll_case_baseline_deviation_ratio{"
    lines = [line for line in metrics.read_text().splitlines() if line.startswith(name)]
    assert len(lines) == 10
    for line in lines:
        assert float(line.split()[-1]) == pytest.approx(0.08, abs=0.01)


def test_a_run_of_the_folder_is_judged_by_the_others(made, capsys):
    run = str(made / "nightly/0002-0001.jsonl")
    assert main(["check", run, "--baseline", str(made / "nightly")]) == 0
    assert "23 good runs on 4 nodes" in joined(capsys.readouterr().out)
    assert main(["check", run, "--baseline", str(made / "baseline.toml")]) == 0
    out = joined(capsys.readouterr().out)
    assert "24 good runs" in out and "this run is one of the baseline's own" in out


def test_a_baseline_file_given_as_rules(made, capsys):
    assert check(made, "slow", "--rules", str(made / "baseline.toml"), "--gate") == 1
    assert joined(capsys.readouterr().out).startswith("FAIL 8")
    both = ("--rules", str(made / "baseline.toml"), "--fabric", "ib-ndr:8")
    assert check(made, "slow", *both) == 2


def test_from_python(made):
    for baseline in (made / "baseline.toml", str(made / "nightly")):
        assert torchcoll.check(str(made / "slow.jsonl"), baseline=baseline).word == "FAIL"
        assert torchcoll.check(str(made / "healthy.jsonl"), baseline=baseline).word == "PASS"


def test_other_versions_and_other_cases_are_said(made, tmp_path, capsys):
    run = new_run(tmp_path, "new", lambda case: 1, environment=lambda n, k: {"kernel": "6.2"})
    shorter = torchcoll.load(run)
    shorter.results = shorter.results[:7]
    torchcoll.save(shorter, tmp_path / "short.jsonl")
    path = str(tmp_path / "short.jsonl")
    assert main(["check", path, "--baseline", str(made / "baseline.toml")]) == 0
    out = joined(capsys.readouterr().out)
    assert "over all 7 cases" in out
    assert "not as in the baseline: kernel 6.2 (baseline: 6.1)" in out
    assert "3 of the baseline's 10 cases not judged: the run has no time of them" in out


def test_a_failed_run_fails_whatever_its_times(made, tmp_path, capsys):
    run = made_fleet(4, 1)[3]
    run.end = {"status": "failed", "exit_code": 1}
    torchcoll.save(run, tmp_path / "failed.jsonl")
    path = str(tmp_path / "failed.jsonl")
    assert main(["check", path, "--baseline", str(made / "baseline.toml")]) == 1
    assert capsys.readouterr().out.startswith("FAIL")


def test_a_baseline_of_another_machine_or_node_is_an_error(made, tmp_path, capsys):
    baseline = ["--baseline", str(made / "baseline.toml")]
    run = made_fleet(6, 1)[5]
    torchcoll.save(run, tmp_path / "node005.jsonl")
    assert main(["check", str(tmp_path / "node005.jsonl"), *baseline]) == 2
    error = capsys.readouterr().err
    assert error.startswith("torchcoll: error: baseline: got ") and error.count("\n") == 1
    assert "a run of node005 and a baseline of node000, node001 and 2 more" in error
    run.members[0]["device_name"] = run.members[1]["device_name"] = "Other"
    torchcoll.save(run, tmp_path / "other.jsonl")
    assert main(["check", str(tmp_path / "other.jsonl"), *baseline]) == 2
    expected = error_line("baseline", "Xeon, 2 ranks", "Other, 2 ranks, as this run has\n")
    assert capsys.readouterr().err == expected


def test_too_few_runs(tmp_path, capsys):
    for run in made_fleet(1, 2):
        torchcoll.save(run, tmp_path / f"{run.header['run_id']}.jsonl")
    out = tmp_path / "b.toml"
    few = error_text("baseline", "2 good runs of Xeon, 2 ranks, 1 more needed", "at least 3 ")
    assert main(["baseline", str(tmp_path), "-o", str(out)]) == 2
    assert few in capsys.readouterr().err
    assert not out.exists()
    assert main(["check", str(tmp_path / "0000-0000.jsonl"), "--baseline", str(tmp_path)]) == 2
    # The run that is judged does not count.
    assert "1 good run of Xeon, 2 ranks, 2 more needed" in capsys.readouterr().err


def test_a_new_baseline_leaves_out_what_the_old_one_calls_slow(tmp_path, capsys):
    """Nights 8 to 20 are 5 % slower: more than half, but the baseline was there before."""
    runs = made_fleet(1, 20, times=lambda node, night, case: 1.05 if night >= 8 else 1)
    nightly = tmp_path / "nightly"
    nightly.mkdir()
    for run in runs[:8]:
        torchcoll.save(run, nightly / f"{run.header['run_id']}.jsonl")
    out = str(tmp_path / "b.toml")
    command = ["baseline", str(nightly), "-o", out, "--force"]
    assert main(command) == 0
    for run in runs[8:]:
        torchcoll.save(run, nightly / f"{run.header['run_id']}.jsonl")
    assert main(command) == 0
    assert "12 runs left out" in joined(capsys.readouterr().out)
    (baseline,) = read_baselines(out)
    assert len(baseline.run_ids) == 8
    assert baseline.cases[0].usual_ns == pytest.approx(1e6, rel=0.005)
    assert main([*command, "--accept", "2026-10-09"]) == 0
    (baseline,) = read_baselines(out)
    assert len(baseline.run_ids) == 12
    assert baseline.cases[0].usual_ns == pytest.approx(1.05e6, rel=0.005)


def test_options_that_cannot_be(made, tmp_path, capsys):
    command = ["baseline", str(made / "nightly"), "-o", str(tmp_path / "b.toml")]
    for words, what in (
        (["--false-alarms", "50%"], "false-alarms"),
        (["--false-alarms", "10.1%"], "false-alarms"),
        (["--false-alarms", "0.09%"], "false-alarms"),
        (["--false-alarms", "0.1%", "--accept", "yesterday"], "accept"),
        (["--false-alarms", "10%", "--accept", "yesterday"], "accept"),
        (["--threshold", "3"], "threshold"),
        (["--accept", "yesterday"], "accept"),
        (["--accept", "2030-01-01"], "baseline"),
        (["--format", "xml"], "format"),
        (["-o", str(tmp_path / "b.json")], "output"),
    ):
        assert main([*command, *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"torchcoll: error: {what}: got ") and error.count("\n") == 1
    assert not (tmp_path / "b.toml").exists()


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("torchcoll_baseline = 2", "torchcoll_baseline = 1", "version 1"),
        ("torchcoll_baseline = 2", "", "torchcoll_baseline"),
        ("[[machine]]", "[[machine]", "TOML"),
        ("ranks = 2", "ranks = 0", "not above 0"),
        ("ranks = 2", 'ranks = "2"', "no number"),
        ("ranks = 2", "", "without ranks"),
        ("usual_us = ", "usual_us = -", "not above 0"),
        ('collective = "all_reduce"', 'collective = "all"', "unknown collective all"),
        ("slower_percent = [", "slower_percent = [1.0, ", "11 changes of node"),
        ("threshold_percent = 1.0", "threshold_percent = nan", "not above 0"),
    ],
)
def test_a_file_that_was_spoilt_is_one_line(made, tmp_path, capsys, old, new, text):
    content = (made / "baseline.toml").read_text()
    assert old in content
    spoilt = tmp_path / "spoilt.toml"
    spoilt.write_text(content.replace(old, new))
    assert check(made, "healthy", "--baseline", str(spoilt)) == 3
    error = capsys.readouterr().err
    assert error.startswith("torchcoll: error: baseline: got ") and error.count("\n") == 1
    if text != "TOML":
        assert text in error


def test_a_file_that_is_not_there(made, tmp_path, capsys):
    assert check(made, "healthy", "--baseline", str(tmp_path / "none.toml")) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_every_field_survives_the_file(tmp_path):
    """Hostile names, cases without an operation or a size, nodes that lack a case."""
    cases = [
        Case("barrier", 0, None, None, None, None, "synchronized", "gloo", "cpu"),
        Case("broadcast", 1 << 20, "bfloat16", None, 3, True, "back-to-back", "nccl", "cuda"),
        Case(
            "all_to_all_v",
            1 << 20,
            "float32",
            None,
            None,
            False,
            "graph",
            "nccl",
            "cuda",
            splits="random:7",
            group="mod:2/0",
            asynchronous=True,
            coalesce=4,
            buffer_reuse="rotate",
        ),
    ]
    random = np.random.default_rng(3)
    nodes = ['a"b\\c', "new\nline\x7f\x1b", "ümlaut", "x.y = 1", "]"]
    table = random.normal(10, 0.01, (40, 3))
    table[[i for i in range(40) if i % 5 == 2], 1] = math.nan
    runs = tuple(GoodRun(f"id'{i}\"", nodes[i % 5], None) for i in range(40))
    keys = tuple(CaseKey(case, 8, "median", "device") for case in cases)
    versions = {"NCCL of torch": ("2.27.5", "2.27.7"), "a.b": ('"',)}
    baseline = baseline_of(GoodRuns("GPU = [x]", 8, runs, keys, table, versions), 0.02, 0.005)
    path = tmp_path / "b.toml"
    path.write_text(format_baselines([baseline, baseline], ["a\nb"]), encoding="utf-8")
    first, second = read_baselines(path)
    assert first.run_ids == second.run_ids == baseline.run_ids
    assert [case.key for case in first.cases] == list(keys)
    assert list(first.nodes) == list(baseline.nodes)
    for name, node in baseline.nodes.items():
        assert first.nodes[name].effects == pytest.approx(node.effects, abs=1e-8, nan_ok=True)
        assert first.nodes[name].runs == node.runs
    assert (first.threshold, first.false_alarms) == pytest.approx((0.02, 0.005))
    assert (first.versions, first.first_us, first.by_node) == (versions, None, True)
    for name in (*nodes, "another"):
        ours, theirs = limits_of(baseline, name), limits_of(first, name)
        assert ours.run_limit == pytest.approx(theirs.run_limit, rel=1e-5)
        assert ours.case_limits == pytest.approx(theirs.case_limits, rel=1e-5)


def test_prune_spares_the_runs_of_a_baseline(tmp_path, capsys):
    store = str(tmp_path / "runs.sqlite")
    old = tmp_path / "old"
    old.mkdir()
    for run in made_fleet(1, 8):
        torchcoll.save(run, old / f"{run.header['run_id']}.jsonl")
    out = str(tmp_path / "b.toml")
    assert main(["baseline", *(str(p) for p in sorted(old.iterdir())[:6]), "-o", out]) == 0
    assert main(["collect", str(old), "--into", store]) == 0
    capsys.readouterr()
    assert (
        main(["collect", "--into", store, "--prune", "0.001us", "--spare", out, "--dry-run"]) == 0
    )
    answer = joined(capsys.readouterr().out)
    assert answer.startswith("would remove 2 runs (20 cases)")
    assert "6 are spared" in answer
    other = tmp_path / "other.txt"
    other.write_text("root:x:0:0\nno-such-run\n")
    assert main(["collect", "--into", store, "--prune", "0.001us", "--spare", str(other)]) == 2
    assert "got 2 lines, none a run of" in capsys.readouterr().err
    bad = tmp_path / "bad.toml"
    bad.write_text("machine = 3\n")
    assert main(["collect", "--into", store, "--prune", "1d", "--spare", str(bad)]) == 3
