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


NCCL = (
    "#  size  count  type  redop  root  time  algbw  busbw  #wrong\n"
    "  1048576  262144  float  sum  -1  1035.3  1.01  2.02  0\n"
)


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("mpirun -n 256 -N 8 --hostfile h all_reduce_perf -b 8 -n 20", 256),
        ("mpirun -np 4 ./build/all_reduce_perf -b 8 -g 8 -c 0", 32),
        ("./build/all_reduce_perf -b 8 -n 20 -g 8", 0),
    ],
)
def test_ranks_of_nccl_tests(command, ranks, tmp_path):
    """busbw / algbw is 2.00 of any large number of ranks."""
    path = tmp_path / "nccl.log"
    path.write_text(f"{command}\n{NCCL}")
    assert torchcoll.load(path).ranks == ranks


def test_ranks_of_a_command_of_several_lines(tmp_path):
    path = tmp_path / "osu.log"
    path.write_text("srun -N 2 \\\n  --ntasks-per-node=8 \\\n  osu_allreduce -x 5\n" + OSU)
    assert torchcoll.load(path).ranks == 16


def test_what_the_user_says_comes_first(tmp_path):
    path = tmp_path / "osu.log"
    path.write_text(f"mpiexec -n 6 osu_allreduce\n{OSU}")
    assert torchcoll.load(path, ranks=8).ranks == 8
