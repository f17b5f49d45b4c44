"""``torchcoll bisect``: the posterior by hand, searches with little noise, and the command."""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from error_form import error_text
from made_runs import measured, run

from torchcoll.cli import main
from torchcoll.parts.experiments.version_search import (
    figures_of,
    next_version,
    posterior_of,
    same_ends,
)

# A run of version vN that measures nothing: 16M is SLOWER from version FROM on, and noise is 0.2 %.
RUN = """
import json, os, random, sys
words = sys.argv[1:]
version, path = int(words[0][1:]), words[words.index("--output") + 1]
if words[0] == os.environ.get("BROKEN"):
    sys.exit(2)
labels = dict(word.split("=", 1) for word in words if "=" in word)
noise = random.Random(f"{version}/{labels['run']}").gauss(
    1, float(os.environ.get("NOISE", "0.002"))
)
late = version >= int(os.environ["FROM"])
def case(size, ns):
    asked = dict(collective="all_reduce", size_bytes=size, dtype="float32", op="sum", root=None,
                 in_place=True, mode="synchronized", backend="gloo", device="cpu")
    status = "wrong" if late and "WRONG" in os.environ and size > 1024 else "ok"
    return dict(record="case", case=asked, status=status, ranks=2, size_bytes=size,
                time_ns=dict(host=[[int(ns)] * 3] * 2))
with open(path, "x") as file:
    for record in (
        dict(record="header", schema="torchcoll/2", ranks=2, launcher="torchrun",
             spec=dict(labels=labels), environment=dict(variables={})),
        dict(record="ranks", ranks=[dict(rank=rank, host="vm", device="cpu") for rank in (0, 1)]),
        case(1024, 1e5 * noise),
        case(1 << 24, 1e6 * noise * (1.062 if late else 1)),
        dict(record="end", status="complete", exit_code=0, wall_s=0.1),
    ):
        print(json.dumps(record), file=file)
"""


def by_hand(columns, y, scales):
    """Log of the averaged integrand, with the matrices written out."""
    y = np.asarray(y, float) - np.mean(y)
    x = np.asarray(columns, float).T
    x = x - x.mean(axis=0)
    total = y @ y + len(y) * 1e-8
    values = []
    for g in scales:
        inner = np.linalg.inv(x.T @ x + np.eye(x.shape[1]) / g)
        rest = total - y @ x @ inner @ x.T @ y
        determinant = np.linalg.det(np.eye(x.shape[1]) + g * x.T @ x)
        values.append(determinant**-0.5 * rest ** (-(len(y) - 1) / 2))
    return math.log(np.mean(values))


def test_posterior_of_four_versions_by_hand():
    ran = [0, 3, 0, 3, 1, 2, 2]
    y = [0.0, 0.05, 0.01, 0.06, 0.005, 0.052, 0.049]
    posterior = posterior_of(4, ran, y)
    weights = {"none": 0.2 * (np.var(y) * 7 + 7e-8) ** -3}
    for k in (1, 2, 3):
        column = [[version >= k for version in ran]]
        weights[k] = 0.767 / 3 * math.exp(by_hand(column, y, (1, 4, 16, 100)))
    for pair in ((1, 2), (1, 3), (2, 3)):
        columns = [[version >= k for version in ran] for k in pair]
        weights[pair] = 0.03 / 3 * math.exp(by_hand(columns, y, (9,)))
    weights["creep"] = 0.003 * math.exp(
        by_hand([[version / 3 for version in ran]], y, (1, 4, 16, 100))
    )
    total = sum(weights.values())
    assert posterior.none == pytest.approx(weights["none"] / total, rel=1e-9)
    assert posterior.step.tolist() == pytest.approx(
        [0.0, *(weights[k] / total for k in (1, 2, 3))], rel=1e-9
    )
    assert posterior.creep == pytest.approx(weights["creep"] / total, rel=1e-9)
    assert posterior.best == 2


def test_the_first_call_of_a_case_is_that_of_its_slowest_rank():
    figures = figures_of(run(measured(100, cold_ns=[[900, 50], [800, 2000]])), "first-call")
    assert list(figures.values()) == [pytest.approx(math.log(900))]


def test_the_next_run_is_where_it_tells_most():
    """Before version 8 of 16 or not is one bit: no other version divides the probability so."""
    posterior = posterior_of(16, [0, 15] * 3, [0.0, 0.05, 0.001, 0.051, 0.0, 0.05])
    assert next_version(posterior) in (7, 8)
    assert posterior.information[next_version(posterior)] > posterior.information[1] > 0
    # The step is sure, but the ends ran only twice: a second step could hide there.
    ran = [0, 15, 0, 15, *[7, 8] * 6]
    posterior = posterior_of(16, ran, [0.05 * (v >= 8) + 0.001 * (-1) ** v for v in ran])
    assert (posterior.located, posterior.decided, next_version(posterior)) == (True, "", 0)


def searched(truth, noise=0.001, most=60):
    """The result of a search whose runs alternate by +- noise."""
    ran, logs = [], []
    for number in range(most):
        posterior = posterior_of(len(truth), ran, logs)
        if posterior.decided:
            return posterior.decided, posterior, number
        version = next_version(posterior)
        ran.append(version)
        logs.append(truth[version] + noise * (-1) ** ran.count(version))
    return "", posterior_of(len(truth), ran, logs), most


@pytest.mark.parametrize("k", [1, 2, 17, 31])
def test_a_clear_step_is_found_among_32_versions(k):
    result, posterior, runs = searched([0.05 * (version >= k) for version in range(32)])
    assert (result, posterior.best) == ("step", k)
    assert runs <= 20  # 5 halvings, and two runs of each version that matters


def test_two_steps_are_no_single_version():
    truth = [0.05 * (version >= 9) + 0.05 * (version >= 20) for version in range(32)]
    assert searched(truth)[0] == "several"


def test_a_creep_is_no_single_version():
    assert searched([0.1 * version / 31 for version in range(32)])[0] == "several"


def test_ends_that_are_alike():
    ran = [0, 7] * 4
    posterior = posterior_of(8, ran, [0.001, 0.002, -0.001, 0.0, 0.001, -0.002, 0.0, 0.001])
    assert same_ends(posterior, 0.02)
    assert not same_ends(posterior, 0.0005)
    assert not same_ends(posterior_of(8, ran[:6], [0.0] * 6), 0.02)  # three runs of each


def test_a_range_is_named_only_where_a_change_is_shown():
    """a and c, two runs each. Logs 0, 0.3 and 0.1, 0.4: the difference of the means, 0.1, is 0.47
    of its standard error (0.2121). Logs 0, 0.001 and 0.1, 0.101: it is 141 of them.
    """
    ran = [0, 2, 0, 2]
    open_ = posterior_of(3, ran, [0.0, 0.1, 0.3, 0.4])
    assert open_.none > 0.05 and open_.change_range is None
    shown = posterior_of(3, ran, [0.0, 0.1, 0.001, 0.101])
    assert shown.none < 0.05 and shown.change_range == (0, 2)
    # The times of b are those of a: the step is before c.
    shown = posterior_of(3, [*ran, 1, 1], [0.0, 0.1, 0.001, 0.101, 0.0, 0.001])
    assert (shown.best, shown.change_range) == (2, (1, 2))


@pytest.fixture
def bisect(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("fake_run.py").write_text(RUN + "# torchcoll\n")

    def run(versions, *options, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        words = ["bisect", "--axis", f"v={versions}", "-o", "runs", "--quiet", *options]
        code = main([*words, "--", sys.executable, "-S", "fake_run.py", "{v}"])
        return code, capsys.readouterr()

    return run


VERSIONS = ",".join(f"v{number}" for number in range(1, 17))


def test_the_command_names_the_version_and_the_case(bisect):
    code, printed = bisect(VERSIONS, "--format", "json", FROM="12")
    document = json.loads(printed.out)
    assert code == 0
    assert (document["result"], document["range"]) == ("step", ["v11", "v12"])
    assert document["cases"] == ["all_reduce 16M float32 sum on gloo"]
    headline = document["answer"]["headline"]
    assert headline.startswith("all_reduce 16M float32 sum on gloo became 6.")
    assert "slower between v11 and v12 (95 %)" in headline
    again = json.loads(bisect(VERSIONS, "--format", "json")[1].out)
    assert again["runs"] == document["runs"], "the same folder runs nothing twice"


def test_a_version_that_does_not_start_is_skipped(bisect):
    code, printed = bisect(VERSIONS, FROM="12", BROKEN="v12")
    assert code == 0
    assert "between v11 and v13 (95 %)" in printed.out.replace("\n  ", " ")
    assert "skipped v12: exit code 2" in printed.out.replace("\n  ", " ")


def test_a_script_that_passes_its_arguments_to_another_script(bisect, monkeypatch):
    """Neither the command nor the first script names torchcoll."""
    Path("bench.sh").write_text(f'#!/bin/sh\nexec {sys.executable} -S fake_run.py "$@"\n')
    monkeypatch.setenv("FROM", "2")
    words = ["bisect", "--axis", "v=v1,v2,v3", "-o", "runs", "--quiet", "--runs", "4", "--"]
    assert main([*words, "sh", "bench.sh", "{v}"]) == 1  # not decided yet
    assert len(list(Path("runs").glob("*.jsonl"))) == 5  # four runs and the manifest


def test_a_script_that_ignores_its_arguments_runs_once(bisect, capsys):
    Path("bench.sh").write_text("echo done >> ran\n")
    words = ["bisect", "--axis", "v=v1,v2,v3", "-o", "runs", "--quiet", "--"]
    assert main([*words, "sh", "bench.sh", "{v}"]) == 2
    assert Path("ran").read_text() == "done\n"
    assert capsys.readouterr().err == (
        "torchcoll: error: the command ended without writing the file that torchcoll added as "
        "--output FILE. Does the script pass its arguments on? Its output is in "
        "runs/logs/v_v1-1.log.\n"
    )


def test_a_script_that_starts_no_version(bisect, capsys):
    Path("bench.sh").write_text("exit 7\n")
    words = ["bisect", "--axis", "v=v1,v2,v3", "-o", "runs", "--quiet", "--"]
    assert main([*words, "sh", "bench.sh", "{v}"]) == 2
    assert capsys.readouterr().err.endswith(
        error_text(
            "versions",
            "none that starts (exit code 7: no result file)",
            "2 or more. Its output is in runs/logs. Does the script pass its arguments on?\n",
        )
    )


def test_a_case_that_became_wrong(bisect):
    code, printed = bisect(VERSIONS, "--metric", "wrong", FROM="5", WRONG="1")
    assert code == 0
    assert "became wrong between v4 and v5" in printed.out


def test_wrong_results_of_a_version_are_said(bisect):
    """The times change nowhere, and from v12 on every result of a size is wrong."""
    code, printed = bisect(VERSIONS, "--format", "json", FROM="12", WRONG="1")
    document = json.loads(printed.out)
    assert document["answer"]["level"] == "doubt" and code == 1
    assert document["answer"]["headline"].startswith("no change above 2 % between v1 and v16")
    wrong = [text for text in document["answer"]["details"] if text.startswith("wrong results in")]
    assert any(re.match(r"wrong results in (\d+) of \1 runs of v16 \(", text) for text in wrong)
    assert "v1" not in document["faults"] and "v16" in document["faults"]


def test_no_change(bisect):
    code, printed = bisect(VERSIONS, FROM="99")
    assert code == 0
    assert printed.out.startswith("no change above 2 % between v1 and v16 (95 %)")


def test_noise_that_shows_neither_a_change_nor_none(bisect):
    code, printed = bisect("v1,v2,v3", "--runs", "6", FROM="99", NOISE="0.3")
    assert code == 1
    assert printed.out.replace("\n  ", " ").startswith(
        "Cannot tell whether v3 is slower than v1: it looks 0.1 % slower, but 6 runs vary too "
        "much\nNext: make more runs (--runs 20)\n"
    )
    rows = [line.split()[:3] for line in printed.out.splitlines() if line[:1] == "v"][1:]
    assert rows[1] == ["v2", "0", "-"], "a version that did not run has its row"
    document = json.loads(
        bisect("v1,v2,v3", "--runs", "6", "--format", "json", FROM="99", NOISE="0.3")[1].out
    )
    assert (document["result"], document["range"]) == ("not decided", None)


def test_an_unset_value_is_called_unset(bisect, capsys, monkeypatch):
    words = ["bisect", "--env", "MALLOC_=,1,2", "-o", "runs", "--quiet", "--runs", "6", "--"]
    monkeypatch.setenv("FROM", "99")
    monkeypatch.setenv("NOISE", "0.3")
    assert main([*words, sys.executable, "-S", "fake_run.py", "v1"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Cannot tell whether 2 is ") and " than unset: it looks " in out
    assert "auto" not in out and re.search(r"^unset +[2-4] ", out, re.MULTILINE)


def test_a_dry_run_starts_nothing(bisect, capsys):
    code = main(["bisect", "--axis", "v=2.11,2.12,2.13", "-o", "D", "--dry-run", "--",
                 "venvs/{v}/bin/torchrun", "-m", "torchcoll.allreduce"])  # fmt: skip
    printed = capsys.readouterr()
    assert code == 0 and not Path("D").exists()
    assert printed.err == (
        "at most 180 runs of 3 versions, until the version is found; nothing was started; the "
        "first 3 runs:\ntorchcoll: note: this machine does not have venvs/2.11/bin/torchrun, "
        "venvs/2.12/bin/torchrun, venvs/2.13/bin/torchrun\n"
    )
    starts = [line.split("/bin/")[0] for line in printed.out.splitlines()]
    assert starts == ["venvs/2.11", "venvs/2.12", "venvs/2.13"]


def test_a_dry_run_needs_neither_a_folder_nor_the_environments(bisect, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    words = ["bisect", "--axis", "venv=/no/v1,/no/v2,/no/v3"]
    command = ["--", sys.executable, "-m", "torchcoll.allreduce"]
    assert main([*words, "--dry-run", *command]) == 0
    out, err = capsys.readouterr()
    start = "env -u PYTHONHOME VIRTUAL_ENV=/no/v1 PATH=/no/v1/bin:$PATH "
    assert out.startswith(start) and " --output DIR/v1-1.jsonl " in out
    assert err.endswith(
        "note: this machine does not have /no/v1/bin/python, /no/v2/bin/python, /no/v3/bin/python\n"
    )
    assert main([*words, "-o", "D", *command]) == 2
    expected = error_text("axis venv", "/no/v1", "the path of a folder with bin/python")
    assert expected in capsys.readouterr().err and not Path("D").exists()


@pytest.mark.parametrize(
    ("versions", "options", "line"),
    [
        (
            "v1,v2",
            [],
            error_text("versions", "2 in 1 options", "at least 3 in one --axis or --env"),
        ),
        (
            VERSIONS,
            ["--metric", "speed"],
            error_text("metric", "speed", "one of time, first-call, wrong"),
        ),
        (VERSIONS, ["--runs", "3"], error_text("runs", "3", "a whole number from 4 on")),
    ],
)
def test_refused(bisect, versions, options, line):
    code, printed = bisect(versions, *options, FROM="5")
    assert code == 2
    assert line[:30] in printed.err
