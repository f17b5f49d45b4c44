"""launch/slurm.sbatch on a real Slurm of two nodes."""

import os
import shutil

import pytest
from launching import PATH

import torchcoll
from torchcoll.core.collectives import COLLECTIVES

pytestmark = pytest.mark.slurm


def test_two_ranks_on_two_nodes(cluster, tmp_path):
    code, out = cluster.batch(
        tmp_path,
        **{"MIN_BYTES": "1K", "MAX_BYTES": "4K", "RUNS": "1", "ARGS": "-n 5"},
        **{"VARIANT": "loopback", "LABELS": "driver=none firmware=2"},
    )
    assert code == 0, out
    files = list((tmp_path / "torchcoll-runs").iterdir())
    assert len(files) == 1
    run = torchcoll.load(files[0])
    assert run.complete and not run.problems
    assert [member["host"] for member in run.members] == ["n1", "n2"]
    job = run.header["job_id"]
    assert files[0].name == f"slurm-{job}-1.jsonl"
    assert run.header["launcher"] == "srun"
    assert "MASTER_ADDR" not in run.environment["variables"]  # derived from the list of nodes
    labels = {"variant": "loopback", "driver": "none", "firmware": "2", "run": "1"}
    assert run.spec.labels == {**labels, "kernel": os.uname().release}
    even = [name for name, entry in COLLECTIVES.items() if entry.has_data and not entry.has_splits]
    assert sorted((r.case.collective, r.status) for r in run.results) == sorted(
        (name, "ok") for name in even for _ in ("1K", "4K")
    )
    # Two CPUs a node, one task on each.
    bound = "--cpus-per-task=2 --distribution=block:block"
    assert out.startswith(f"+ srun --kill-on-bad-exit=1 {bound} ")


def test_a_step_that_outlives_its_run_is_cancelled(cluster, tmp_path):
    """As one of which a node is lost. The minute that it is given is shorter here."""
    sleep = shutil.which("sleep")
    programs = {"outlive": f'"$@"\nexec {sleep} 600\n', "sleep": f"exec {sleep} 0.05\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    code, out = cluster.batch(
        tmp_path,
        **{"MIN_BYTES": "1K", "MAX_BYTES": "1K", "RUNS": "1", "ARGS": "-n 2"},
        **{"COLLECTIVES": "all_reduce", "WRAP": f"{tmp_path}/outlive"},
        **{"PATH": f"{tmp_path}:{PATH}"},
    )
    assert code == 0, out
    assert "after the run: scancel ends its step" in out
    (file,) = (tmp_path / "torchcoll-runs").iterdir()
    assert torchcoll.load(file).complete


def test_a_launch_that_cannot_start_is_the_last(cluster, tmp_path):
    """Nine more of the same say no more. srun gives the exit code of the rank that it ended."""
    code, out = cluster.batch(tmp_path, MIN_BYTES="1KB", RUNS="10")
    assert code in (2, 128 + 15)
    assert out.count("+ srun") == 1
    assert out.count("torchcoll: error: ") == 1, out
