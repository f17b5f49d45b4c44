"""A number in a small file does not decide how much memory or time a command takes.

Each input claims ranks, calls, batches or layers that it does not have. The commands run under a
limit of memory, so without a bound they end with a MemoryError.
"""

import json
import resource
import subprocess
import sys

import pytest
from made_runs import measured, run

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.file import load_own, save

LARGE = 9_000_000_000_000
LIMIT_BYTES = 2_000_000_000


def forge(path, **changed):
    """A run of two cases whose records of cases have these fields, without check sums."""
    made = run(measured(100_000), measured(200_000, size_bytes=1 << 20))
    made.header |= {"argv": ["-n", "5"], "spec": {"collectives": ["all_reduce"]}}
    made.header.pop("ranks")
    made.members = []
    save(made, path)
    lines = []
    for line in path.read_text().splitlines():
        record = {k: v for k, v in json.loads(line).items() if k not in ("crc", "line")}
        if record["record"] == "case":
            record |= changed
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    return path


def command(*arguments):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))

    return subprocess.run(
        [sys.executable, "-m", "torchcoll", *map(str, arguments)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        check=False,
    )


REPORTED = {"time_ns": None, "first_call_ns": 5.0, "calls": 1, "statistic": "mean"}
ONE_CALL = {
    "ordinal": LARGE,
    "cold_ns": [],
    "time_ns": {},
    "reported": REPORTED | {"over_ranks": "max", "clock": "host", "derived": False},
}


@pytest.mark.parametrize(
    ("changed", "arguments", "code"),
    [
        (ONE_CALL, ["cold", "FILE"], 0),
        ({"batches": [LARGE, LARGE]}, ["show", "FILE", "--view", "calls"], 0),
        ({"ranks": MOST_RANKS}, ["show", "FILE", "--format", "csv"], 0),
    ],
    ids=["ordinal", "batches", "ranks"],
)
def test_a_result_file(tmp_path, monkeypatch, changed, arguments, code):
    monkeypatch.chdir(tmp_path)
    forge(tmp_path / "FILE", **changed)
    done = command(*arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize(
    "changed",
    [
        {"ranks": MOST_RANKS + 1},
        {"ranks": -1},
        {"members": [0, MOST_RANKS + 1]},
        {"batches": [-1]},
        {"verification": {"checked": 10, "wrong": 2, "wrong_ranks": [MOST_RANKS + 1]}},
    ],
)
def test_a_case_that_no_run_has_is_a_problem_of_the_file(tmp_path, changed):
    read = load_own(forge(tmp_path / "run.jsonl", **changed))
    assert read.results == []
    assert len([text for text in read.problems if "unusable record: " in text]) == 2


def test_a_case_of_the_most_ranks_is_read(tmp_path):
    assert len(load_own(forge(tmp_path / "run.jsonl", ranks=MOST_RANKS)).results) == 2


def test_a_config_of_a_model(tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 90_000_000,
        "num_attention_heads": 32,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    done = command("plan", path, "--parallel", "dp=8", "--batch", "1x8192")
    assert done.returncode == 3
    assert done.stderr == (
        "torchcoll: error: config: got num_hidden_layers = 90000000, expected at most 10000 "
        "layers\n"
    )
