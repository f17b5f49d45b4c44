"""``check --learn``, and ``check --baseline`` with its file, a folder and a store."""

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
from torchcoll.core.units import format_size
from torchcoll.parts.fleet.good_runs import GoodRun, GoodRuns, Limits, baseline_of, limits_of
from torchcoll.parts.fleet.learning import format_good_runs, read_good_runs
from torchcoll.parts.fleet.learning_show import detectable_text
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
    assert main(["check", "--learn", str(folder / "nightly"), "-o", str(folder / "good.json")]) == 0
    return folder


def check(made, name, *options):
    return main(["check", str(made / f"{name}.jsonl"), *options])


def joined(text):
    """Without the line breaks of long lines."""
    return " ".join(text.split())


def test_the_first_line_says_what_the_baseline_detects(made, tmp_path, capsys):
    out = tmp_path / "good.json"
    assert main(["check", "--learn", str(made / "nightly"), "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.endswith(f"\nwritten: {out}, 24 good runs\n")
    text = joined(text)
    baseline = baseline_of(*read_good_runs(out)[0])
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
        ((1.65, 2.7), "1.65x to 2.7x in one case"),
        ((2.1, 2.7), "2.1x to 2.7x in one case"),
    ],
)
def test_detectable_changes_have_their_units(effects, text):
    logs = np.log(effects)
    limits = Limits(0 * logs, logs, 0.01, 0.01, math.log(1.021), logs, logs, logs)
    assert detectable_text(limits) == f"2.1 % slower over all cases, or {text}"


def test_the_table_has_the_figures_of_the_file(made, tmp_path, capsys):
    out = tmp_path / "good.json"
    command = ["check", "--learn", str(made / "nightly"), "-o", str(out)]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    baseline = baseline_of(*read_good_runs(out)[0])
    shown = [re.split(r" {2,}", line)[:3] for line in lines if re.match(r"all_\w+ \d+[KM] ", line)]
    assert shown == [
        [
            f"{key.case.collective} {format_size(key.case.size_bytes)}",
            f"{math.exp(level) / 1e6:.3f} ms",
            f"{100 * spread:.2f} %",
        ]
        for key, level, spread in zip(baseline.keys, baseline.levels, baseline.spreads, strict=True)
    ]
    assert main(command) == 2  # the file is there
    assert main([*command, "--force"]) == 0


@pytest.mark.parametrize("baseline", ["good.json", "nightly", "nightly/*.jsonl"])
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
    rest = re.search(r"the other 9 cases are within ([0-9.]+) % of 24 good runs on 4 nodes", out)
    assert rest and float(rest[1]) < 2  # noise 0.2 %
    assert "over all 10 cases" not in out


def test_a_file_a_folder_and_a_store_give_equal_answers(made, tmp_path, capsys):
    store = str(tmp_path / "runs.sqlite")
    assert main(["collect", str(made / "nightly"), "--into", store]) == 0
    capsys.readouterr()
    for name in ("healthy", "slow", "one"):
        answers = []
        for baseline in (str(made / "good.json"), str(made / "nightly"), store):
            check(made, name, "--baseline", baseline, "--format", "json")
            document = json.loads(capsys.readouterr().out)
            answers.append(document["verdict"]["line"])
        assert len(set(answers)) == 1


def test_json_has_the_deviation_of_every_case(made, capsys):
    check(made, "one", "--baseline", str(made / "good.json"), "--format", "json")
    deviation = json.loads(capsys.readouterr().out)["verdict"]["deviation"]
    assert (deviation["runs"], deviation["nodes"], deviation["false_alarms"]) == (24, 4, 0.01)
    assert len(deviation["cases"]) == 10
    worst, *others = deviation["cases"]
    assert (worst["name"], worst["state"]) == ("all_gather 1M", "slow")
    assert worst["slower"] == pytest.approx(0.2, abs=0.01)
    assert worst["time_ns"] / worst["usual_ns"] == pytest.approx(1 + worst["slower"])
    assert {case["state"] for case in others} == {"as usual"}


@pytest.mark.parametrize("baseline", ["good.json", "nightly"])
def test_metrics_have_the_deviation_of_every_case(made, baseline, tmp_path):
    metrics = tmp_path / "slow.prom"
    options = ("--baseline", str(made / baseline), "--metrics", str(metrics))
    assert check(made, "slow", *options) == 1
    name = "torchcoll_case_baseline_deviation_ratio{"
    lines = [line for line in metrics.read_text().splitlines() if line.startswith(name)]
    assert len(lines) == 10
    for line in lines:
        assert float(line.split()[-1]) == pytest.approx(0.08, abs=0.01)


def test_a_good_run_is_judged_by_the_others(made, capsys):
    run = str(made / "nightly/0002-0001.jsonl")
    for baseline in ("nightly", "good.json"):
        assert main(["check", run, "--baseline", str(made / baseline)]) == 0
        assert "23 good runs on 4 nodes" in joined(capsys.readouterr().out)


def test_from_python(made):
    for baseline in (made / "good.json", str(made / "nightly")):
        assert torchcoll.check(str(made / "slow.jsonl"), baseline=baseline).word == "FAIL"
        assert torchcoll.check(str(made / "healthy.jsonl"), baseline=baseline).word == "PASS"


def test_other_versions_and_other_cases_are_said(made, tmp_path, capsys):
    run = new_run(tmp_path, "new", lambda case: 1, environment=lambda n, k: {"kernel": "6.2"})
    shorter = torchcoll.load(run)
    shorter.results = shorter.results[:7]
    torchcoll.save(shorter, tmp_path / "short.jsonl")
    path = str(tmp_path / "short.jsonl")
    assert main(["check", path, "--baseline", str(made / "good.json")]) == 0
    out = joined(capsys.readouterr().out)
    assert "over all 7 cases" in out
    assert "not as in the baseline: kernel 6.2 (baseline: 6.1)" in out
    assert "3 of the baseline's 10 cases not judged: the run has no time of them" in out


def test_a_failed_run_fails_whatever_its_times(made, tmp_path, capsys):
    run = made_fleet(4, 1)[3]
    run.end = {"status": "failed", "exit_code": 1}
    torchcoll.save(run, tmp_path / "failed.jsonl")
    path = str(tmp_path / "failed.jsonl")
    assert main(["check", path, "--baseline", str(made / "good.json")]) == 1
    assert capsys.readouterr().out.startswith("FAIL")


def test_a_baseline_of_another_machine_or_node_is_an_error(made, tmp_path, capsys):
    baseline = ["--baseline", str(made / "good.json")]
    run = made_fleet(6, 1)[5]
    torchcoll.save(run, tmp_path / "node005.jsonl")
    assert main(["check", str(tmp_path / "node005.jsonl"), *baseline]) == 2
    error = capsys.readouterr().err
    assert error.startswith("torchcoll: error: baseline: got ") and error.count("\n") == 1
    assert "got good runs of node000, node001 and 2 more for a run of node005, expected " in error
    run.members[0]["device_name"] = run.members[1]["device_name"] = "Other"
    torchcoll.save(run, tmp_path / "other.jsonl")
    assert main(["check", str(tmp_path / "other.jsonl"), *baseline]) == 2
    expected = error_line("baseline", "Xeon, 2 ranks", "Other, 2 ranks, as this run has\n")
    assert capsys.readouterr().err == expected


def test_too_few_runs(tmp_path, capsys):
    for run in made_fleet(1, 2):
        torchcoll.save(run, tmp_path / f"{run.header['run_id']}.jsonl")
    out = tmp_path / "good.json"
    few = error_text("baseline", "2 good runs of Xeon, 2 ranks, 1 more needed", "at least 3 ")
    assert main(["check", "--learn", str(tmp_path), "-o", str(out)]) == 2
    assert few in capsys.readouterr().err
    assert not out.exists()
    torchcoll.save(made_fleet(1, 3)[2], tmp_path / "third.jsonl")
    assert main(["check", str(tmp_path / "0000-0000.jsonl"), "--baseline", str(tmp_path)]) == 2
    # The run that is judged does not count.
    assert capsys.readouterr().err == error_line("baseline", "2 good runs", "1 more\n")


def test_options_that_cannot_be(made, tmp_path, capsys):
    out = tmp_path / "good.json"
    learn = ["check", "--learn", str(made / "nightly")]
    for command, what in (
        ([*learn, "-o", str(out), "--format", "xml"], "format"),
        (learn, "output"),
        (["check", str(made / "healthy.jsonl"), "-o", str(out)], "output"),
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"torchcoll: error: {what}: got ") and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"torchcoll_good_runs": 1', '"torchcoll_good_runs": 2', "version 2 and not 1"),
        ('"machines": [', '"machines": ', "JSONDecodeError"),
        ('"ranks": 2,', "", "ranks"),
        ('"times_ns": [', '"times_ns": [-1,', "ValueError"),
        ('"collective": "all_reduce"', '"collective": "all"', "unknown collective all"),
        ('"run_id"', '"run"', "run_id"),
    ],
)
def test_a_file_that_was_spoilt_is_one_line(made, tmp_path, capsys, old, new, text):
    content = (made / "good.json").read_text()
    assert old in content
    spoilt = tmp_path / "spoilt.json"
    spoilt.write_text(content.replace(old, new, 1))
    assert check(made, "healthy", "--baseline", str(spoilt)) == 3
    error = capsys.readouterr().err
    assert error.startswith("torchcoll: error: baseline: got ") and error.count("\n") == 1
    assert text in error


def test_a_file_that_is_not_there(made, tmp_path, capsys):
    assert check(made, "healthy", "--baseline", str(tmp_path / "none.json")) == 3
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
    good = GoodRuns("GPU = [x]", 8, runs, keys, table, versions)
    path = tmp_path / "good.json"
    path.write_text(format_good_runs([good, good]), encoding="utf-8")
    (first, second), _ = read_good_runs(path)
    assert first.runs == second.runs == good.runs
    assert (first.keys, first.versions) == (keys, versions)
    assert first.log_times == pytest.approx(table, abs=1e-6, nan_ok=True)
    baseline, read = baseline_of(good), baseline_of(first)
    for name in nodes:
        ours, theirs = limits_of(baseline, name), limits_of(read, name)
        assert ours.run_limit == pytest.approx(theirs.run_limit, rel=1e-4)
        assert ours.case_limits == pytest.approx(theirs.case_limits, rel=1e-4)


def test_a_baseline_of_few_runs_says_how_many_would_do(tmp_path, capsys):
    """A run 5 % slower is not quite found by 6 runs; it is by as many as the next step says."""
    new = made_fleet(1, 1, noise=0.0)[0]
    new.header["run_id"] = "new"
    torchcoll.save(new, tmp_path / "new.jsonl")

    def judged_by(count):
        folder = tmp_path / f"good{count}"
        folder.mkdir()
        for run in made_fleet(1, count, noise=0.01, seed=5):
            torchcoll.save(run, folder / f"{run.header['run_id']}.jsonl")
        main(["check", str(tmp_path / "new.jsonl"), "--baseline", str(folder)])
        return joined(capsys.readouterr().out)

    few = judged_by(6)
    assert few.startswith("CANNOT TELL a slowdown below 5.5 %: this run is ")
    (number,) = re.findall(r"Next: learn from about (\d+) good runs, not 6 ", few)
    assert judged_by(int(number)).startswith("PASS as usual")
