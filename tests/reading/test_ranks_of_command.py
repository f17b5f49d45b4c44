"""The number of ranks is often in the command line above the output."""

import pytest

import torchcoll

OSU = "# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n1024         9.80\n"


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("$ mpiexec -n 6 ./osu_allreduce", 6),
        ("mpirun --host a:2,b:2 -np 384 --map-by ppr:2:node ./osu_allreduce -m 1024:1024", 384),
        ("+ srun -N2 -n16 --mpi=pmix osu_allreduce", 16),
        ("srun --nodes=2 --ntasks=64 osu_allreduce", 64),
        ("mpirun -n=4 osu_allreduce", 4),
        ("osu_allreduce -n 5", 0),
    ],
)
def test_ranks_of_the_launcher(command, ranks, tmp_path):
    path = tmp_path / "osu.log"
    path.write_text(f"{command}\n{OSU}")
    run = torchcoll.load(path)
    assert run.ranks == ranks


def test_what_the_user_says_comes_first(tmp_path):
    path = tmp_path / "osu.log"
    path.write_text(f"mpiexec -n 6 osu_allreduce\n{OSU}")
    assert torchcoll.load(path, ranks=8).ranks == 8
