"""torchrun end to end: a measurement, an error, and what is imported on the ranks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from error_form import error_line
from ranks import NO_NAMES, free_port, without_names

from torchcoll import load

# As sitecustomize: tells what rank 1 has loaded: torch alone, and all at exit.
SPY = """
import os
if os.environ.get("RANK") == "1":
    import atexit, sys
    import torch, torch.distributed
    def tell(name):
        with open(name, "w") as file:
            file.write(" ".join(sys.modules))
    tell("bare")
    atexit.register(tell, "modules")
"""


def run(python, folder, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **NO_NAMES, **variables}
    done = subprocess.run(
        [python, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    done.stderr = without_names(done.stderr)
    return done


def torchrun(python, folder, *arguments: str, **variables: str):
    """torchrun and its ranks are forked: ``measured`` pays for new interpreters, as a user does."""
    port = ["--master-port", str(free_port())]  # another may run here
    words = ["torch.distributed.run", "--nproc-per-node", "2", *port, *arguments]
    return run(python, folder, *words, OMP_NUM_THREADS="1", **variables)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """``torchcoll run``, which becomes torchrun."""
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "sitecustomize.py").write_text(SPY)
    words = ["--sizes", "8,1K", "-n", "20", "-J", "run.jsonl", "--label", "by=torchrun"]
    python_path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    words = ["torchcoll", "run", "-n", "2", "allreduce", *words]
    return folder, run(sys.executable, folder, *words, PYTHONPATH=python_path)


def test_a_measurement(measured):
    folder, done = measured
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("torchcoll ")
    assert sum(line.split()[:1] in (["8"], ["1K"]) and "correct" in line for line in lines) == 2
    assert done.stderr == "result file: run.jsonl\n"
    file = load(folder / "run.jsonl")
    assert file.complete and file.ranks == 2 and file.labels == {"by": "torchrun"}
    assert file.header["launcher"] == "torchrun"
    assert file.header["argv"][0] == "--sizes"
    assert [result.case.size_bytes for result in file.results] == [8, 1024]


def test_imports_of_a_rank(measured):
    """At thousands of ranks every import is paid on a shared file system."""
    folder, _ = measured
    loaded = (folder / "modules").read_text().split()
    ours = [name for name in loaded if name.partition(".")[0] == "torchcoll"]
    assert len(ours) <= 25, ours
    assert "torchcoll.bench.session" in ours
    bare = {name.partition(".")[0] for name in (folder / "bare").read_text().split()}
    assert "torch" in bare and "torchcoll" not in bare
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - bare - set(sys.stdlib_module_names) == {"torchcoll"}


def test_an_error_is_the_last_line(python, tmp_path):
    """torchrun buries what a rank prints under its own report, and repeats the error file last."""
    done = torchrun(python, tmp_path, "-m", "torchcoll.allreduce", "--sizes", "1KB")
    line = error_line(
        "sizes",
        "1KB",
        "a number of bytes with an optional K, M, G or T (binary), such as 8, 1K, 25M "
        "or 1.5G. Write 1K (1 x 1024 bytes) or 1000 (decimal).",
    )
    assert done.returncode == 1  # torchrun's for whatever a rank returns
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines.count(line) == 1, "rank 0 says it once"
    repeated = [text for text in lines if text.strip(" -=")]
    assert repeated[-1].strip().removeprefix("msg").strip(' ":').endswith(line), repeated[-3:]
    assert "Traceback" not in done.stderr.partition(line)[0]
    assert list(tmp_path.iterdir()) == []
