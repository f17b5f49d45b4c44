"""``check --metrics``: the exposition format of Prometheus, to the letter."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import made_runs
import pytest
from error_form import error_text

import torchcoll
from torchcoll.cli import main
from torchcoll.core.metrics import case_labels, metrics_text, run_labels
from torchcoll.core.result import Run, Verification
from torchcoll.questions.check.judging import judge
from torchcoll.questions.check.show import check_metrics_of

HEADER = {"start_utc": "2026-01-01T00:00:00Z"}  # 1767225600


def of_two_ranks(ns: int = 100_000, **changed: Any) -> Run:
    """On GPUs 4 and 5 of one node: an all_reduce of 1K, one that is wrong, one that cannot be."""
    wrong = made_runs.measured(5, size_bytes=64, verification=Verification(checked=16, wrong=3))
    skipped = made_runs.measured(5, size_bytes=32, status="unsupported", time_ns={})
    run = made_runs.run(
        made_runs.measured(ns, backend="nccl", device="cuda", in_place=False),
        wrong,
        skipped,
        **{
            "hosts": ["node037.cluster"],
            "labels": {"node": "node037"},
            "device_name": "H200",
            "variables": {"SLURM_JOB_ID": "4711", "CUDA_VISIBLE_DEVICES": "4,5"},
            "environment": {"libraries": {"nccl": "NCCL 2.27.7"}},
            "header": HEADER,
            **changed,
        },
    )
    for rank, member in enumerate(run.members):
        member["device"] = f"cuda:{rank}"
    return run


def text_of(*runs: Run, baseline: Run | None = None) -> str:
    verdicts = [judge(run) for run in runs]
    return metrics_text(check_metrics_of(runs, verdicts, baseline))


COMMON = 'job="torchcoll",host="node037.cluster",node="node037",world_size="2",slurm_job_id="4711"'
CASE = (
    'collective="all_reduce",size_bytes="1024",dtype="float32",op="sum",in_place="false",'
    'backend="nccl"'
)
WRONG = (
    'collective="all_reduce",size_bytes="64",dtype="float32",op="sum",in_place="true",'
    'backend="gloo"'
)
# 1024 bytes in 100 us on 2 ranks: 0.01024 GB/s. 80 us in the baseline.
EXPECTED = f"""\
# HELP torchcoll_verdict 1 for the verdict of torchcoll check on the run, 0 for the other verdicts.
# TYPE torchcoll_verdict gauge
torchcoll_verdict{{{COMMON},verdict="FAIL"}} 1
torchcoll_verdict{{{COMMON},verdict="CANNOT TELL"}} 0
torchcoll_verdict{{{COMMON},verdict="WARN"}} 0
torchcoll_verdict{{{COMMON},verdict="PASS"}} 0
torchcoll_verdict{{{COMMON},verdict="NO REFERENCE"}} 0
# HELP torchcoll_run_start_timestamp_seconds When the run began, in seconds since 1970.
# TYPE torchcoll_run_start_timestamp_seconds gauge
torchcoll_run_start_timestamp_seconds{{{COMMON}}} 1767225600
# HELP torchcoll_case_ok 1 if the case was measured, 0 if it failed or gave wrong results.
# TYPE torchcoll_case_ok gauge
torchcoll_case_ok{{{COMMON},{CASE}}} 1
torchcoll_case_ok{{{COMMON},{WRONG}}} 0
# HELP torchcoll_case_time_seconds Median time of one call, on the slowest rank.
# TYPE torchcoll_case_time_seconds gauge
torchcoll_case_time_seconds{{{COMMON},{CASE}}} 0.0001
# HELP torchcoll_case_bus_bandwidth_gbs Bus bandwidth in GB/s, as nccl-tests computes it.
# TYPE torchcoll_case_bus_bandwidth_gbs gauge
torchcoll_case_bus_bandwidth_gbs{{{COMMON},{CASE}}} 0.01024
# HELP torchcoll_case_baseline_deviation_ratio Time / time in the baseline - 1: 0.08 is 8 % slower.
# TYPE torchcoll_case_baseline_deviation_ratio gauge
torchcoll_case_baseline_deviation_ratio{{{COMMON},{CASE}}} 0.25
"""


def test_the_whole_text():
    assert text_of(of_two_ranks(), baseline=of_two_ranks(80_000)) == EXPECTED


def test_the_command(tmp_path, capsys):
    for name, ns in (("run", 100_000), ("base", 80_000)):
        run = of_two_ranks(ns)
        run.results = run.results[:1]
        torchcoll.save(run, tmp_path / f"{name}.jsonl")
    command = ["check", str(tmp_path / "run.jsonl"), "--metrics", str(tmp_path / "nightly.prom")]
    assert main([*command, "--baseline", str(tmp_path / "base.jsonl"), "--gate"]) == 0
    text = (tmp_path / "nightly.prom").read_text()
    # 80 % of the speed of the baseline is a WARN.
    assert f'torchcoll_verdict{{{COMMON},verdict="WARN"}} 1\n' in text
    assert f"torchcoll_case_baseline_deviation_ratio{{{COMMON},{CASE}}} 0.25\n" in text
    # A second time replaces the file; without a baseline there is no deviation.
    assert main([*command, "--gate"]) == 2
    text = (tmp_path / "nightly.prom").read_text()
    assert f'torchcoll_verdict{{{COMMON},verdict="NO REFERENCE"}} 1\n' in text
    assert "deviation" not in text
    capsys.readouterr()
    assert main([*command[:3], str(tmp_path / "nightly.txt")]) == 2
    assert error_text("metrics", str(tmp_path / "nightly.txt")) in capsys.readouterr().err


def test_labels_of_hosts_gpus_and_jobs():
    run = made_runs.run(hosts=["a", "b"], ranks=4)
    assert run_labels(run) == {"job": "torchcoll", "world_size": 4}
    one = made_runs.run(ranks=1, labels={"job": "nightly"})
    one.members[0]["device"] = "cuda:3"
    assert run_labels(one) == {
        **{"job": "nightly", "host": "vm", "node": "vm", "gpu": "3", "world_size": 1}
    }
    # UUIDs name no index: the one that the process saw is left.
    one.environment["variables"]["CUDA_VISIBLE_DEVICES"] = "GPU-1,GPU-2,GPU-3,GPU-4"
    assert run_labels(one)["gpu"] == "3"


def test_what_differs_in_how_it_was_measured_has_series_of_its_own():
    plain = made_runs.measured(1000).case
    cases = [
        plain,
        replace(plain, buffer_reuse="rotate"),
        replace(plain, buffer_reuse="flush"),
        replace(plain, misalign_bytes=4),
        replace(plain, mode="blocking"),
    ]
    own = [{*case_labels(case).items()} - {*case_labels(plain).items()} for case in cases]
    assert own == [
        set(),
        {("buffer_reuse", "rotate")},
        {("buffer_reuse", "flush")},
        {("misalign_bytes", 4)},
        {("blocking", "true")},
    ]


def test_of_two_runs_of_a_node_the_later_one_counts():
    later = of_two_ranks(200_000, header={"start_utc": "2026-01-02T00:00:00Z"})
    for runs in ((of_two_ranks(), later), (later, of_two_ranks())):
        text = text_of(*runs)
        assert f"torchcoll_run_start_timestamp_seconds{{{COMMON}}} 1767312000\n" in text
        assert re.findall(r"^torchcoll_case_time_seconds\{.*\} (.*)$", text, re.M) == ["0.0002"]


def test_a_case_that_was_measured_twice():
    run = made_runs.run(made_runs.measured(100), made_runs.measured(200), header=HEADER)
    times = re.findall(r"^torchcoll_case_time_seconds\{(.*)\} (.*)$", text_of(run), re.M)
    assert [value for _, value in times] == ["1e-07", "2e-07"]
    assert times[1][0] == times[0][0] + ',repeat="2"'


HOSTILE = 'a"b\\c\nd}\r\x00,x="1"é{}'
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_LINE = re.compile(
    rf"(?:# (?:HELP|TYPE) [a-zA-Z_:][a-zA-Z0-9_:]* [^\n]*"
    rf"|[a-zA-Z_:][a-zA-Z0-9_:]*\{{{_LABEL}(?:,{_LABEL})*\}} \S+)"
)


def unescape(value: str) -> str:
    replaced = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
    return re.sub(r"\\.", lambda match: replaced[match[0]], value)


@pytest.mark.parametrize("text", [HOSTILE, "\\", '"', "\\n", "\n\n", "\\\\\n", " "])
def test_hostile_labels(text):
    """Whatever a label, a host, a job or a library is called, the line stays one, and whole."""
    run = of_two_ranks(
        hosts=[text],
        labels={"node": text, "job": text},
        variables={"SLURM_JOB_ID": text},
        environment={"libraries": {text: text, "9": text, "__name__": text}, "torch": text},
        device_name=text,
    )
    lines = text_of(run).split("\n")
    assert lines.pop() == ""
    for line in lines:
        assert _LINE.fullmatch(line), line
    series = [line for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series)) == 10
    for line in series:
        values = dict(re.findall(r'(\w+)="((?:[^"\\\n]|\\["\\n])*)"', line))
        assert [unescape(values[name]) for name in ("job", "node", "slurm_job_id")] == [text] * 3


def test_lone_surrogates_are_written(tmp_path):
    run = of_two_ranks(labels={"node": "n\udcff"})
    torchcoll.save(run, tmp_path / "run.jsonl")
    assert main(["check", str(tmp_path / "run.jsonl"), "--metrics", str(tmp_path / "a.prom")]) == 0
    assert 'node="n' in (tmp_path / "a.prom").read_text()
