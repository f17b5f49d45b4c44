"""Open MPI's own mpirun, and launch/mpi.sh over it and over stand-ins for the others."""

import sys

import pytest
from error_form import error_text
from launching import ROOT, need, run

import torchcoll

SCRIPT = ROOT / "launch/mpi.sh"
SMALL = ("-b", "1K", "-e", "4K", "-n", "5")


@pytest.mark.mpi
def test_the_script_over_mpirun(python, tmp_path):
    need("mpirun")
    if "Open MPI" not in run(["mpirun", "--version"]).stdout:
        pytest.skip("mpirun is not Open MPI's")
    words = ["bash", SCRIPT, "all_gather", *SMALL, "-J", "run.jsonl"]
    done = run(words, cwd=tmp_path, env={"PYTHON": python})
    assert done.returncode == 0, done.stderr
    run_ = torchcoll.load(tmp_path / "run.jsonl")
    assert run_.complete and run_.ranks == 2
    assert run_.header["launcher"] == "Open MPI"
    assert [member["local_rank"] for member in run_.members] == [0, 1]
    cases = [(result.case.collective, result.status) for result in run_.results]
    assert cases == [("all_gather", "ok")] * 2
    assert "\x1b" not in done.stdout  # Open MPI gives the ranks a terminal
    assert done.stderr.startswith("+ /")


def stand_in(folder, version):
    """An mpiexec that says its version and else what it was given, a word a line."""
    path = folder / "mpiexec"
    path.write_text(
        f"#!/bin/sh\n[ \"$1\" != --version ] || {{ echo '{version}'; exit; }}\n"
        "printf '%s\\n' \"$@\"\n"
    )
    path.chmod(0o755)
    return {"MPIEXEC": str(path)}


HYDRA = "HYDRA build details:"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.19.0"
OPEN = "mpirun (Open MPI) 5.0.3"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (OPEN, "-n 4 --bind-to none --map-by ppr:2:node --hostfile {hosts} -x OMP_NUM_THREADS=1"),
        (INTEL, "-n 4 -f {hosts} -ppn 2 -genv OMP_NUM_THREADS 1 -genv MASTER_ADDR n7 -genv"),
        (HYDRA, "-n 4 -f {hosts} -ppn 2 -genv OMP_NUM_THREADS 1 -genv MASTER_ADDR n7 -genv"),
    ],
)
def test_what_each_mpi_is_given(tmp_path, version, words):
    hosts = tmp_path / "hosts"
    hosts.write_text("# ours\n\nn7:2 slots=2\nn8 slots=2\n")
    env = {**stand_in(tmp_path, version), "NPROC": "4", "PPN": "2", "HOSTFILE": str(hosts)}
    done = run(["bash", SCRIPT, "-b", "1K"], env=env)
    assert done.returncode == 0, done.stderr
    reported = done.stdout.replace("--allow-run-as-root\n", "").split("\n")
    assert " ".join(reported).startswith(words.format(hosts=hosts))
    assert " ".join(reported).rstrip().endswith(f"{sys.executable} -m torchcoll.allreduce -b 1K")
    assert any("MASTER_ADDR" in word for word in reported)


def test_one_host_needs_no_address(tmp_path):
    done = run(["bash", SCRIPT], env=stand_in(tmp_path, OPEN))
    assert "MASTER_ADDR" not in done.stdout
    assert ":OVERSUBSCRIBE" in done.stdout.split()


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"NPROC": "two"}, error_text("NPROC", "'two'", "a whole number from 1")),
        ({"PPN": "0"}, error_text("PPN", "'0'", "a whole number from 1")),
        ({"HOSTFILE": "/no/file"}, error_text("HOSTFILE", "'/no/file'", "a file that can be read")),
        ({"MPIEXEC": "true"}, error_text("true --version", "''", "Open MPI, Intel MPI or MPICH")),
        ({"MPIEXEC": "false"}, error_text("false --version", "an error: ")),
        ({"PYTHON": "/no/python"}, error_text("PYTHON", "one that does not run", "a python with")),
    ],
)
def test_bad_input(env, line):
    done = run(["bash", SCRIPT], env=env)
    assert done.returncode == 2
    assert done.stderr.startswith(f"torchcoll: error: {line}")
    assert done.stderr.count("\n") == 1
