"""Rank and number of ranks from the variables of launchers, and of launchers inside launchers."""

import pytest
from error_form import error_text

from torchcoll.core.errors import UsageError
from torchcoll.machine.launcher import BY_HAND, Launch, detect

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
INTEL_MPI = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4"}
PALS = {
    "PALS_RANKID": "5",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "4",
    "PALS_APID": "ab-1",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_ID": "77",
}
# flux-environment(7): Flux has no number of local ranks, and sets PMI_* as well.
FLUX = {
    "FLUX_TASK_RANK": "5",
    "FLUX_JOB_SIZE": "8",
    "FLUX_TASK_LOCAL_ID": "1",
    "FLUX_JOB_ID": "f2cSZ4pYb",
    "FLUX_JOB_NNODES": "2",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
}
# jsrun on LSF, by Lightning's LSFEnvironment; its MPI is Open MPI's.
JSRUN = {
    "JSM_NAMESPACE_RANK": "5",
    "JSM_NAMESPACE_SIZE": "8",
    "LSB_JOBID": "1234",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "4",
    **OPEN_MPI,
}
# As real launchers set them, with what they set besides.
REAL_OPEN_MPI = {  # 4.1.4, mpirun -n 2
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "874184705",
}
HYDRA = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMI_FD": "8",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}
REAL_MPICH = {**HYDRA, "HYDI_CONTROL_FD": "7"}  # 4.0.2
INTEL = {**HYDRA, "I_MPI_HYDRA_UUID": "e25c0000-c7ea-fabc", "I_MPI_PIN_INFO": "1"}  # 2021.19
REAL_SRUN = {  # 22.05, srun -N2 -n2
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-2]",
}
PALS_PMIX = {"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PALS_APID": "a-b", "PMIX_RANK": "1"}


@pytest.mark.parametrize(
    ("environ", "launcher", "job_id"),
    [
        (JSRUN, "jsrun", "1234"),
        (TORCHRUN, "torchrun", None),
        (INTEL_MPI, "MPI", None),
        (MPICH, "MPI", None),
        (PALS, "PALS", "ab-1"),
        (OPEN_MPI, "Open MPI", None),
        (SRUN, "srun", "77"),
    ],
)
def test_each_launcher(environ, launcher, job_id):
    assert detect(environ) == Launch(launcher, 5, 8, 1, 4, job_id)


def test_flux():
    assert detect(FLUX) == Launch("Flux", 5, 8, 1, 1, "f2cSZ4pYb")
    assert detect(FLUX).has_local_rank
    # A Flux instance in a job of Slurm: one broker on each node.
    outer = {**SRUN, "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    outer |= {"SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert detect({**outer, **FLUX}) == Launch("Flux", 5, 8, 1, 1, "f2cSZ4pYb")


def test_a_launcher_without_local_ranks():
    """The ranks of a host are counted when they meet (tests/bench/test_meeting.py)."""
    assert not detect({"PMI_RANK": "5", "PMI_SIZE": "8"}).has_local_rank
    assert not detect({"RANK": "5", "WORLD_SIZE": "8"}).has_local_rank


def test_no_launcher():
    assert detect({}) == Launch("none", 0, 1, 0, 1, None)
    assert detect({"HOME": "/root", "PBS_JOBID": "12.host"}) == Launch("none", job_id="12.host")


def test_the_process_environment_is_the_default(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert detect() == Launch("torchrun", 5, 8, 1, 4, None)


def test_srun_with_the_old_names():
    environ = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "3"}
    assert detect(environ) == Launch("srun", 1, 2, 0, 1, None)


def test_a_batch_script_without_srun_is_one_rank():
    """sbatch sets SLURM_PROCID=0 and SLURM_NTASKS=8 for the script itself."""
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}
    assert detect(environ) == Launch("none", job_id="77")


def test_torchrun_inside_srun():
    """Slurm numbers the torchrun processes, not the ranks."""
    srun = {**SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    assert detect({**srun, **TORCHRUN}) == Launch("torchrun", 5, 8, 1, 4, "77")
    second_rank = {**TORCHRUN, "RANK": "1", "WORLD_SIZE": "2"}
    assert detect({**srun, **second_rank}).launcher == "torchrun"


def test_launchers_that_agree():
    """Scripts set RANK and WORLD_SIZE for torch from what srun or mpirun gave them."""
    by_hand = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert detect({**SRUN, **by_hand}).ranks == 8
    assert detect({**INTEL_MPI, **SRUN}).ranks == 8  # srun --mpi=pmi2


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (REAL_OPEN_MPI, Launch("Open MPI", 1, 2, 1, 2)),
        (REAL_MPICH, Launch("MPICH", 1, 2, 1, 2)),
        (INTEL, Launch("Intel MPI", 1, 2, 1, 2)),
        (HYDRA, Launch("MPI", 1, 2, 1, 2)),
        (REAL_SRUN, Launch("srun", 1, 2, 0, 1, "7")),
        # srun --mpi=pmi2 and --mpi=pmix
        ({**REAL_SRUN, "PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("srun", 1, 2, 0, 1, "7")),
        ({**REAL_SRUN, "PMIX_RANK": "1"}, Launch("srun", 1, 2, 0, 1, "7")),
        ({**PALS_PMIX, "WORLD_SIZE": "2"}, Launch("PALS", 1, 2, 1, 1, "a-b")),
        ({**PALS_PMIX, "PMI_RANK": "1", "WORLD_SIZE": "2"}, Launch("PALS", 1, 2, 1, 1, "a-b")),
        ({**PALS_PMIX, **HYDRA}, Launch("PALS", 1, 2, 1, 1, "a-b")),
        ({"PMIX_RANK": "1", "WORLD_SIZE": "2"}, Launch("PMIx", 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launch(BY_HAND, 1, 2)),
        # RANK made from the launcher's: the launcher is what started it.
        ({**REAL_SRUN, "RANK": "1", "WORLD_SIZE": "2"}, Launch("srun", 1, 2, 0, 1, "7")),
        ({**REAL_OPEN_MPI, "WORLD_SIZE": "2"}, Launch("Open MPI", 1, 2, 1, 2)),
    ],
)
def test_whose_ranks(environ, expected):
    assert detect(environ) == expected


@pytest.mark.parametrize(
    "started",
    [
        REAL_OPEN_MPI,
        REAL_MPICH,
        INTEL,
        {"RANK": "1", "WORLD_SIZE": "2"},
        {**REAL_SRUN, **REAL_OPEN_MPI},
    ],
)
def test_ranks_of_a_launcher_that_srun_started(started):
    """Slurm's variables are of the daemons, or of the shell that mpirun was called from."""
    outer = {**REAL_SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "2"}
    assert (detect({**started, **outer}).rank, detect({**started, **outer}).ranks) == (1, 2)


@pytest.mark.parametrize("started", [REAL_OPEN_MPI, REAL_MPICH])
def test_both_ranks_on_one_of_two_nodes(started):
    """salloc -N2, mpirun -n 2: as many daemons as ranks, numbered otherwise."""
    daemon = {**REAL_SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert detect({**started, **daemon}).rank == 1
    with pytest.raises(UsageError):  # two tasks a node are no daemons
        detect({**started, **daemon, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"})


def test_srun_of_many_under_a_stale_rank():
    """Eight runs of one rank each, had RANK won in silence."""
    many = {**REAL_SRUN, "SLURM_STEP_NUM_TASKS": "8"}
    with pytest.raises(UsageError, match=r"rank 0 of 1 from torchrun.*rank 1 of 8 from srun"):
        detect({**many, "RANK": "0", "WORLD_SIZE": "1"})


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "batch", ""])
def test_a_shell_in_a_job_is_one_rank(step):
    """Slurm numbers the steps of sbatch and salloc themselves from the top."""
    assert detect({**REAL_SRUN, "SLURM_STEP_ID": step}) == Launch("none", job_id="7")


@pytest.mark.parametrize(("node", "local"), [("0", 4), ("1", 4), ("2", 3)])
def test_local_ranks_of_an_uneven_step(node, local):
    environ = {
        **REAL_SRUN,
        "SLURM_STEP_NUM_TASKS": "11",
        "SLURM_NODEID": node,
        "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    }
    assert detect(environ).local_ranks == local


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "1", **OPEN_MPI},
            ("rank 0 of 1 from torchrun", "rank 5 of 8 from Open MPI", "RANK", "OMPI_COMM_WORLD"),
        ),
        (
            {"RANK": "3", "WORLD_SIZE": "8", **SRUN},
            ("rank 3 of 8 from torchrun", "rank 5 of 8 from srun", "SLURM_PROCID"),
        ),
        (
            {**MPICH, "PMI_RANK": "2", **OPEN_MPI},
            ("rank 5 of 8 from Open MPI", "rank 2 of 8 from MPI", "PMI_RANK"),
        ),
    ],
)
def test_a_contradiction_names_both(environ, names):
    with pytest.raises(UsageError) as caught:
        detect(environ)
    assert all(name in str(caught.value) for name in names), str(caught.value)


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"RANK": "1"},
            error_text(
                "launcher variables",
                "RANK without WORLD_SIZE",
                "both or neither. Set WORLD_SIZE, or start with torchrun.",
            ),
        ),
        (
            {"WORLD_SIZE": "2"},
            error_text(
                "launcher variables",
                "WORLD_SIZE without RANK",
                "both or neither. Set RANK, or start with torchrun.",
            ),
        ),
        (
            {"PMI_RANK": "1"},
            error_text(
                "launcher variables",
                "PMI_RANK without PMI_SIZE",
                "both or neither. Set PMI_SIZE, or start with torchrun.",
            ),
        ),
        (
            {"RANK": "2", "WORLD_SIZE": "2"},
            error_text(
                "launcher variables", "RANK=2 with WORLD_SIZE=2", "a rank below the number of ranks"
            ),
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "0"},
            error_text(
                "launcher variables", "RANK=0 with WORLD_SIZE=0", "a rank below the number of ranks"
            ),
        ),
        (
            PALS_PMIX,
            error_text(
                "launcher variables",
                "PALS_RANKID without PALS_SIZE",
                "both or neither. Set WORLD_SIZE to the number of ranks, alike for all.",
            ),
        ),
        (
            {"PMIX_RANK": "1"},
            error_text(
                "launcher variables",
                "PMIX_RANK without WORLD_SIZE",
                "both or neither. Set WORLD_SIZE to the number of ranks, alike for all.",
            ),
        ),
        (
            {**REAL_OPEN_MPI, "WORLD_SIZE": "4"},
            error_text(
                "launcher variables",
                "rank 1 of 2 from Open MPI and WORLD_SIZE=4",
                "launchers that agree. Unset WORLD_SIZE.",
            ),
        ),
        (
            {**REAL_OPEN_MPI, "RANK": "1"},
            error_text(
                "launcher variables",
                "RANK without WORLD_SIZE",
                "both or neither. Set WORLD_SIZE, or start with torchrun.",
            ),
        ),
        (
            {**PALS_PMIX, "WORLD_SIZE": "1"},
            error_text(
                "launcher variables",
                "PALS_RANKID=1 with WORLD_SIZE=1",
                "a rank below the number of ranks",
            ),
        ),
        (
            {**REAL_SRUN, "SLURM_STEP_TASKS_PER_NODE": "many"},
            error_text("launcher variable SLURM_STEP_TASKS_PER_NODE", "many", "a whole number"),
        ),
    ],
)
def test_half_a_set_and_nonsense(environ, line):
    with pytest.raises(UsageError) as caught:
        detect(environ)
    assert str(caught.value) == line


@pytest.mark.parametrize("text", ["²", "٣", "x", "1.5", "-1"])
def test_a_variable_that_is_no_number(text):
    """Python takes the first two for digits; of the first int() knows nothing."""
    with pytest.raises(UsageError) as caught:
        detect({"RANK": text, "WORLD_SIZE": "2"})
    assert str(caught.value) == error_text("launcher variable RANK", text, "a whole number")
