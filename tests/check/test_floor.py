"""What no statistic removes: real runs of gloo and oneCCL that vary by 11 to 72 % per case."""

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import torchcoll
from torchcoll.cli import main

RUNS = Path(__file__).parents[2] / "results/gloo-oneccl-2ranks"
GOOD_RUNS = sorted(map(str, RUNS.glob("run-*.jsonl")))


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    path = tmp_path_factory.mktemp("baseline") / "good.json"
    assert (
        main(["check", "--learn", *map(str, sorted(RUNS.glob("run-*.jsonl"))), "-o", str(path)])
        == 0
    )
    return path


@pytest.fixture
def scaled(tmp_path):
    """Writes the last real run with the steady times of one case multiplied."""

    def write(factor, size_bytes=1024):
        run = torchcoll.load(RUNS / "run-6.jsonl")
        for index, result in enumerate(run.results):
            case = result.case
            if (case.collective, case.size_bytes, case.backend) != (
                "all_gather",
                size_bytes,
                "gloo",
            ):
                continue
            times = {
                clock: [[round(factor * ns) for ns in rank] for rank in ranks]
                for clock, ranks in result.time_ns.items()
            }
            run.results[index] = dataclasses.replace(result, time_ns=times)
        run.header["run_id"] = "scaled"
        torchcoll.save(run, tmp_path / "scaled.jsonl")
        return str(tmp_path / "scaled.jsonl")

    return write


def judged(path, baseline, capsys, *options):
    rc = main(["check", path, "--baseline", str(baseline), "--format", "json", *options])
    document = json.loads(capsys.readouterr().out)
    return rc, document


@pytest.mark.parametrize(
    ("factor", "word", "state", "rc"),
    [(10, "FAIL", "slow", 1), (2.5, "CANNOT TELL", "doubted", 2), (1, "CANNOT TELL", None, 2)],
)
def test_a_gate_passes_no_case_that_is_ten_times_slower(
    scaled, baseline, capsys, tmp_path, factor, word, state, rc
):
    junit, health = tmp_path / "check.xml", tmp_path / "health.jsonl"
    options = ("--gate", "--junit", str(junit), "--health", str(health))
    exit_code, document = judged(scaled(factor), baseline, capsys, *options)
    verdict = ElementTree.parse(junit).getroot()[0][0]
    assert [child.tag for child in verdict] == ["failure" if rc == 1 else "skipped"]
    event = json.loads(health.read_text())
    assert (event["verdict"], event["healthy"]) == (word, False if rc == 1 else None)
    assert (document["verdict"]["word"], exit_code) == (word, rc)
    states = {case["name"]: case["state"] for case in document["verdict"]["deviation"]["cases"]}
    if state:
        assert states["all_gather 1K gloo"] == state
        assert "all_gather 1K gloo" in document["answer"]["headline"]
    else:
        assert "slow" not in states.values()
        assert re.search(
            r"from run to run in 6[34] of 64 cases", " ".join(document["answer"]["details"])
        )


def test_a_baseline_of_noisy_runs_says_first_that_it_is_too_noisy(tmp_path, capsys):
    assert main(["check", "--learn", *GOOD_RUNS, "-o", str(tmp_path / "good.json")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(
        "baseline of 6 runs on 1 node: too noisy to notice a slowdown of 1.5x in 64 of 64 cases"
    )
    assert "Next: " in text and "e+" not in text


def test_what_cannot_be_told_names_the_next_step_and_the_cases(scaled, baseline, capsys):
    main(["check", scaled(2.5), "--baseline", str(baseline)])
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("CANNOT TELL all_gather 256K gloo 3.2x slower (")
    assert "all_gather 1K gloo 2.3x slower (" in text
    assert "Next: run it again" in text
    assert "3.2x slower" in text
