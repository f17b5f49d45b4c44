"""Launchers inside launchers, sets with a hole, and what real ones set beside what we read."""

from __future__ import annotations

import pytest
from error_form import error_text

from torchcoll.core.errors import UsageError
from torchcoll.machine.launcher import BY_HAND, Launch, detect

OPEN_MPI = {  # 4.1.4, mpirun -n 2
    **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
    **{"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_RANK": "1", "PMIX_NAMESPACE": "874184705"},
}
HYDRA = {
    **{"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "8"},
    **{"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
}
MPICH = {**HYDRA, "HYDI_CONTROL_FD": "7"}  # 4.0.2
INTEL = {**HYDRA, "I_MPI_HYDRA_UUID": "e25c0000-c7ea-fabc", "I_MPI_PIN_INFO": "1"}  # 2021.19
SRUN = {  # 22.05, srun -N2 -n2
    **{"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"},
    **{"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"},
    **{"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"},
}
PALS_PMIX = {"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PALS_APID": "a-b", "PMIX_RANK": "1"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (OPEN_MPI, Launch("Open MPI", 1, 2, 1, 2)),
        (MPICH, Launch("MPICH", 1, 2, 1, 2)),
        (INTEL, Launch("Intel MPI", 1, 2, 1, 2)),
        (HYDRA, Launch("MPI", 1, 2, 1, 2)),
        (SRUN, Launch("srun", 1, 2, 0, 1, "7")),
        # srun --mpi=pmi2 and --mpi=pmix
        ({**SRUN, "PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("srun", 1, 2, 0, 1, "7")),
        ({**SRUN, "PMIX_RANK": "1"}, Launch("srun", 1, 2, 0, 1, "7")),
        ({**PALS_PMIX, "WORLD_SIZE": "2"}, Launch("PALS", 1, 2, 1, 1, "a-b")),
        ({**PALS_PMIX, "PMI_RANK": "1", "WORLD_SIZE": "2"}, Launch("PALS", 1, 2, 1, 1, "a-b")),
        ({**PALS_PMIX, **HYDRA}, Launch("PALS", 1, 2, 1, 1, "a-b")),
        ({"PMIX_RANK": "1", "WORLD_SIZE": "2"}, Launch("PMIx", 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launch(BY_HAND, 1, 2)),
        # RANK made from the launcher's: the launcher is what started it.
        ({**SRUN, "RANK": "1", "WORLD_SIZE": "2"}, Launch("srun", 1, 2, 0, 1, "7")),
        ({**OPEN_MPI, "WORLD_SIZE": "2"}, Launch("Open MPI", 1, 2, 1, 2)),
    ],
)
def test_whose_ranks(environ, expected):
    assert detect(environ) == expected


@pytest.mark.parametrize(
    "started", [OPEN_MPI, MPICH, INTEL, {"RANK": "1", "WORLD_SIZE": "2"}, {**SRUN, **OPEN_MPI}]
)
def test_ranks_of_a_launcher_that_srun_started(started):
    """Slurm's variables are of the daemons, or of the shell that mpirun was called from."""
    outer = {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "2"}
    assert (detect({**started, **outer}).rank, detect({**started, **outer}).ranks) == (1, 2)


@pytest.mark.parametrize("started", [OPEN_MPI, MPICH])
def test_both_ranks_on_one_of_two_nodes(started):
    """salloc -N2, mpirun -n 2: as many daemons as ranks, numbered otherwise."""
    daemon = {**SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert detect({**started, **daemon}).rank == 1
    with pytest.raises(UsageError):  # two tasks a node are no daemons
        detect({**started, **daemon, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"})


def test_srun_of_many_under_a_stale_rank():
    """Eight runs of one rank each, had RANK won in silence."""
    many = {**SRUN, "SLURM_STEP_NUM_TASKS": "8"}
    with pytest.raises(UsageError, match=r"rank 0 of 1 from torchrun.*rank 1 of 8 from srun"):
        detect({**many, "RANK": "0", "WORLD_SIZE": "1"})


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "batch", ""])
def test_a_shell_in_a_job_is_one_rank(step):
    """Slurm numbers the steps of sbatch and salloc themselves from the top."""
    assert detect({**SRUN, "SLURM_STEP_ID": step}) == Launch("none", job_id="7")


@pytest.mark.parametrize(("node", "local"), [("0", 4), ("1", 4), ("2", 3)])
def test_local_ranks_of_an_uneven_step(node, local):
    environ = {
        **{**SRUN, "SLURM_STEP_NUM_TASKS": "11", "SLURM_NODEID": node},
        "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    }
    assert detect(environ).local_ranks == local


@pytest.mark.parametrize(
    ("environ", "line"),
    [
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
            {**OPEN_MPI, "WORLD_SIZE": "4"},
            error_text(
                "launcher variables",
                "rank 1 of 2 from Open MPI and WORLD_SIZE=4",
                "launchers that agree. Unset WORLD_SIZE.",
            ),
        ),
        (
            {**OPEN_MPI, "RANK": "1"},
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
            {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "many"},
            error_text("launcher variable SLURM_STEP_TASKS_PER_NODE", "many", "a whole number"),
        ),
    ],
)
def test_a_hole_is_named(environ, line):
    with pytest.raises(UsageError) as caught:
        detect(environ)
    assert str(caught.value) == line


@pytest.mark.parametrize("text", ["²", "٣", "x", "1.5", "-1"])
def test_a_variable_that_is_no_number(text):
    """Python takes the first two for digits; of the first int() knows nothing."""
    with pytest.raises(UsageError) as caught:
        detect({"RANK": text, "WORLD_SIZE": "2"})
    assert str(caught.value) == error_text("launcher variable RANK", text, "a whole number")
