"""Where ranks meet that no launcher has told: derived alike on all, or one clear line."""

import socket
import threading
import time

import pytest
import torch
from error_form import error_line, error_tail, error_text, expecting
from hypothesis import given
from hypothesis import strategies as st
from ranks import free_port, past

from torchcoll.bench import meeting
from torchcoll.bench.control import Control, open_store
from torchcoll.bench.main import main
from torchcoll.bench.meeting import Master, expand_hosts, find_master, launch_key
from torchcoll.core.backends import BACKENDS
from torchcoll.core.errors import HangError, UnavailableError, UsageError
from torchcoll.machine.launcher import BY_HAND, Launch
from torchcoll.machine.placement import check_interfaces, interface_problem

HERE = Launch("MPICH", 1, 2, 1, 2)
SRUN = Launch("srun", 3, 8, 1, 2, "7")
STEP = {
    **{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_NODES": "4"},
    **{"SLURM_STEP_NODELIST": "n[03-06]", "SLURM_JOB_NODELIST": "n[01-08]"},
}
APART = Launch("Open MPI", 3, 8, 1, 2)
OMPI = {"PMIX_NAMESPACE": "874184705"}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", "n1"),
        ("node[01-03,07],gpu5", "node01 node02 node03 node07 gpu5"),
        ("a[9-11]", "a9 a10 a11"),
        ("a[098-101]", "a098 a099 a100 a101"),
        ("r[1-2]n[3,5]", "r1n3 r1n5 r2n3 r2n5"),
        ("n[1-2]-ib.site,x-1", "n1-ib.site n2-ib.site x-1"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
    ],
)
def test_slurm_lists(text, hosts):
    assert expand_hosts(text) == hosts.split()


@pytest.mark.parametrize("text", ["", "n[", "n[1", "n]1", "n[2-1]", "n[a]", "n[]", "a,,b", ",a"])
def test_what_is_no_slurm_list(text):
    with pytest.raises(UsageError, match=error_text("SLURM_X", ".*", "a Slurm list")):
        expand_hosts(text, "SLURM_X")


@given(st.integers(0, 120), st.integers(0, 120), st.integers(1, 5))
def test_a_range_is_its_numbers(low, more, width):
    names = expand_hosts(f"n[{low:0{width}}-{low + more}]")
    assert [int(name[1:]) for name in names] == list(range(low, low + more + 1))
    assert len(set(map(len, names))) == 1 or width < 4


@pytest.mark.parametrize(
    ("launch", "environ", "host", "source"),
    [
        (SRUN, STEP, "n03", "SLURM_STEP_NODELIST"),
        (SRUN, {**STEP, "SLURM_STEP_NUM_NODES": "1"}, "127.0.0.1", ""),
        (SRUN, {**STEP, "SLURM_STEP_NODELIST": ""}, "n01", "SLURM_JOB_NODELIST"),
        # mpirun's daemons are a step without the first host
        (APART, {**STEP, **OMPI}, "n01", "SLURM_JOB_NODELIST"),
        (Launch("Open MPI", 1, 2, 1, 2), {**STEP, **OMPI}, "127.0.0.1", ""),
        (APART, {**OMPI, "LSB_MCPU_HOSTS": "b 4 a 4", "LSB_HOSTS": "x"}, "b", "LSB_MCPU_HOSTS"),
        (APART, {**OMPI, "LSB_HOSTS": "c c a a"}, "c", "LSB_HOSTS"),
        (APART, {**OMPI, **STEP, "MASTER_ADDR": "h"}, "h", ""),
    ],
)
def test_the_host_of_rank_0(launch, environ, host, source):
    master = find_master(launch, environ)
    assert (master.host, master.source) == (host, source)
    assert master.port in range(20000, 30000)


def test_the_first_line_of_the_node_file(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("x4.site\nx4.site\nx2.site\n")
    pals = Launch("PALS", 5, 8, 1, 4, "12.s")
    environ = {"PBS_NODEFILE": str(nodes), "PALS_APID": "a-b"}
    assert find_master(pals, environ).host == "x4.site"
    environ["MASTER_PORT"] = "1234"
    assert find_master(pals, environ) == Master("x4.site", 1234, "PBS_NODEFILE")


def test_the_port_is_of_the_step():
    """Alike on all ranks; another step, another job, another try of it: another port."""
    ports = [
        find_master(Launch("srun", rank, 8, rank % 2, 2, job), {**STEP, **names}).port
        for rank in (0, 5)
        for job, names in [
            ("7", {}),
            ("7", {"SLURM_STEP_ID": "2"}),
            ("8", {"SLURM_JOB_ID": "8"}),
            ("7", {"SLURM_RESTART_COUNT": "1"}),
        ]
    ]
    assert ports[:4] == ports[4:]
    assert len(set(ports)) == 4


def test_ports_of_neighbouring_jobs_rarely_meet():
    ports = {
        find_master(SRUN, {**STEP, "SLURM_JOB_ID": str(job)}).port for job in range(5000, 5100)
    }
    assert len(ports) > 97


@pytest.mark.parametrize(
    ("launcher", "environ", "key"),
    [
        ("srun", STEP, "7.1.0"),
        ("PALS", {"PALS_APID": "a-b", "PMIX_NAMESPACE": "x"}, "a-b"),
        ("Intel MPI", {"I_MPI_HYDRA_UUID": "u-1"}, "u-1"),
        ("Open MPI", OMPI, "874184705"),
        ("MPICH", {}, "12.s"),
        (BY_HAND, {"PMIX_NAMESPACE": "x"}, None),
    ],
)
def test_what_names_a_launch(launcher, environ, key):
    assert launch_key(Launch(launcher, 1, 8, 0, 2, "12.s"), environ) == key


def test_ranks_below_one_launcher_process(monkeypatch):
    """MPICH sets nothing of its own: the process that started the ranks is the same for all."""
    assert launch_key(HERE, {}) is None  # pytest is no launcher
    with open("/proc/self/stat") as file:
        own = file.read().partition("(")[2].rpartition(")")[0]
    monkeypatch.setattr(meeting, "_PROCESSES", (own,))
    monkeypatch.setattr(meeting.os, "getppid", meeting.os.getpid)
    assert launch_key(HERE, {}) == f".{meeting.os.getpid()}"


@pytest.mark.parametrize(
    ("launch", "environ", "line"),
    [
        (
            APART,
            {},
            error_text(
                "MASTER_ADDR and MASTER_PORT of 8 ranks from Open MPI",
                "neither",
                "the host of rank 0 and a free port there. Give all ranks MASTER_ADDR and "
                "MASTER_PORT, or --rendezvous-file PATH in a folder that all hosts share.",
            ),
        ),
        (
            APART,
            OMPI,
            error_text(
                "MASTER_ADDR of 8 ranks from Open MPI",
                "none",
                "the host of rank 0 and a free port there. Give all ranks MASTER_ADDR, or "
                "--rendezvous-file PATH in a folder that all hosts share.",
            ),
        ),
        (
            Launch(BY_HAND, 0, 2, 0, 2),
            STEP,
            error_text(
                "MASTER_ADDR and MASTER_PORT of 2 ranks from RANK and WORLD_SIZE",
                "neither",
                "the host of rank 0 and a free port there. Give all ranks MASTER_ADDR and "
                "MASTER_PORT, or --rendezvous-file PATH in a folder that all hosts share.",
            ),
        ),
        (
            SRUN,
            {**STEP, "SLURM_DISTRIBUTION": "arbitrary"},
            error_text(
                "MASTER_ADDR of 8 ranks from srun",
                "none, and with SLURM_DISTRIBUTION=arbitrary SLURM_STEP_NODELIST is in another "
                "order",
                "",
            ),
        ),
        (SRUN, {**STEP, "SLURM_HET_SIZE": "2"}, "of one component of a heterogeneous job"),
        (
            APART,
            {"MASTER_ADDR": "a", "MASTER_PORT": "http"},
            error_text("MASTER_PORT", "http", "a p"),
        ),
        (
            APART,
            {"MASTER_PORT": "65536"},
            error_text("MASTER_PORT", "65536", "a port from 1 to 65535"),
        ),
        (APART, {"MASTER_PORT": "-1"}, error_text("MASTER_PORT", "-1", "a port from 1 to 65535")),
    ],
)
def test_nothing_says_where(launch, environ, line):
    with pytest.raises(UsageError) as caught:
        find_master(launch, environ)
    assert line in str(caught.value)


def test_a_node_file_that_only_rank_0_has():
    environ = {"PBS_NODEFILE": "/nowhere/nodes", **OMPI}
    with pytest.raises(
        HangError, match=r"no MASTER_ADDR, and PBS_NODEFILE /nowhere/nodes: No such"
    ):
        find_master(APART, environ)
    with pytest.raises(UsageError, match="PBS_NODEFILE /nowhere/nodes"):
        find_master(Launch("Open MPI", 0, 8, 0, 2), environ)


def meet(launches, timeout_s=60.0):
    """What each rank of ``runs`` gets from an all_gather over the store, or its error."""
    answers = [None] * len(launches)

    def rank(number):
        try:
            launch = launches[number]
            store = open_store(torch, launch, timeout_s)
            control = Control(store, launch.rank, launch.ranks, timeout_s)
            answers[number] = control.decide(control.gather(launch.rank))
            control.leave()
        except Exception as error:
            answers[number] = error

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(len(launches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_ranks_of_one_host_meet(monkeypatch):
    monkeypatch.setenv("PMIX_NAMESPACE", f"test{time.time_ns()}")
    launches = [Launch("Open MPI", rank, 3, rank, 3) for rank in range(3)]
    assert meet(launches) == [[0, 1, 2]] * 3
    assert meet(launches) == [[0, 1, 2]] * 3  # at once again, on the same port


def test_ranks_meet_in_a_file(tmp_path):
    path = tmp_path / "meet"
    launches = [Launch(BY_HAND, r, 2, r, 2, rendezvous_file=str(path)) for r in (1, 0)]
    assert meet(launches) == [[0, 1]] * 2
    path.write_text("left over")
    late, first = meet(launches, 0.5)
    assert str(first) == error_text(
        "rendezvous-file",
        f"{path}, left over from an earlier run or used by another",
        "a file that does not exist. Remove it, or name another.",
    )

    assert str(late) == error_text(
        "rendezvous-file", f"{path}, which is no store", "a new file's path"
    )


def test_the_store_of_a_launch_that_crashed(tmp_path):
    path = tmp_path / "meet"
    store = torch.distributed.FileStore(str(path), -1)
    torch.distributed.PrefixStore("torchcoll", store).set("g1/1", "1")
    launches = [Launch(BY_HAND, r, 2, r, 2, rendezvous_file=str(path)) for r in (1, 0)]
    late, first = meet(launches, 0.5)
    assert "left over from an earlier run" in str(first)
    assert isinstance(late, HangError)


def test_a_file_for_each_job(tmp_path, monkeypatch):
    """The key of the run makes what is left of an earlier one harmless."""
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-host/1@1")
    path = tmp_path / "meet"
    path.write_text("left over")
    launches = [Launch("Open MPI", r, 2, 0, 1, rendezvous_file=str(path)) for r in (0, 1)]
    assert meet(launches) == [[0, 1]] * 2
    (tmp_path / "meet.prterun-host_1_1").write_text("")
    assert "left over" in str(meet(launches[:1])[0])


def test_a_file_that_cannot_be(tmp_path):
    path = tmp_path / "no" / "file"
    first, late = meet(
        [Launch(BY_HAND, r, 2, r, 2, rendezvous_file=str(path)) for r in (0, 1)], 0.3
    )
    assert str(first) == error_text(
        "rendezvous-file", f"{path} (No such file or directory)", "a path that can be written"
    )

    assert str(late).startswith(
        error_text("rendezvous-file", f"no {path} on {socket.gethostname()} within ")
    )
    assert "all hosts share the folder" in str(late)


def test_a_file_that_torch_cannot_share(tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("Function not implemented\nException raised from lock")

    monkeypatch.setattr(torch.distributed, "FileStore", refuse)
    path = tmp_path / "meet"
    launch = Launch(BY_HAND, 0, 2, 0, 2, rendezvous_file=str(path))
    with pytest.raises(UsageError) as caught:
        open_store(torch, launch, 1)
    what = f"{path} (Function not implemented)"
    assert str(caught.value) == error_text("rendezvous-file", what, "a file to share")


def unreachable(monkeypatch, host, port, timeout_s):
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", str(port))
    start = time.monotonic()
    with pytest.raises(HangError) as caught:
        open_store(torch, Launch("MPICH", 1, 2), timeout_s)
    assert not past(start, 30)
    return str(caught.value)


def test_nobody_listens(monkeypatch):
    port = free_port()
    text = unreachable(monkeypatch, "127.0.0.1", port, 0.4)
    assert text.startswith(
        error_text(
            f"rendezvous of rank 1 ({socket.gethostname()})",
            f"no store at 127.0.0.1:{port} within 0.4 s (Connection ",
        )
    )
    stated = "Check MASTER_ADDR and MASTER_PORT of this rank, and that rank 0 was started."
    assert text.endswith(stated)


def test_who_told_this_rank_where_to_look_is_named(monkeypatch):
    """Another rank may have read another list."""
    port = free_port()
    monkeypatch.setenv("LSB_HOSTS", "127.0.0.1 192.0.2.78")
    monkeypatch.setenv("MASTER_PORT", str(port))
    with pytest.raises(HangError) as caught:
        open_store(torch, Launch("Open MPI", 1, 2, 0, 1), 0.2)
    assert error_text("", f"no store at 127.0.0.1:{port} (of LSB_HOSTS) within 0.2 s (") in str(
        caught.value
    )


def test_a_host_without_a_name(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(meeting.socket, "create_connection", unknown)
    text = unreachable(monkeypatch, "nohost", 29500, 0.2)
    here = socket.gethostname()
    assert f"no store at nohost:29500 within 0.2 s (the name does not resolve on {here}: " in text
    monkeypatch.setattr(meeting, "_NAME_S", 0.3)
    assert "within 0.3 s" in unreachable(monkeypatch, "nohost", 29500, 60.0)


def test_a_port_in_use(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(UnavailableError) as caught:
            open_store(torch, Launch("Open MPI", 0, 2, 0, 2), 0.5)
    assert str(caught.value).endswith("Set MASTER_PORT to one, alike for all ranks.")
    assert error_tail(" in use by another program", "a free port") in str(caught.value)


def test_rank_0_is_not_where_the_list_says(monkeypatch):
    monkeypatch.setenv("LSB_HOSTS", "192.0.2.77 192.0.2.78")  # a batch host, say
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(UsageError) as caught:
        open_store(torch, Launch("Open MPI", 0, 2, 0, 1), 0.5)
    own = socket.gethostname()
    assert str(caught.value) == error_text(
        "MASTER_ADDR",
        f"192.0.2.77 from LSB_HOSTS, while rank 0 runs on {own}",
        f"the host of rank 0. Set MASTER_ADDR={own} for all ranks.",
    )


def test_the_command_says_so(monkeypatch, capfd):
    port = free_port()
    names = {"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        main("all_reduce", ["--timeout", "0.3", "--no-output"])
    assert caught.value.code == 5
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    own = f"rank 1 ({socket.gethostname()})"
    stated = error_line(f"rendezvous of {own}", f"no store at 127.0.0.1:{port} within ")
    assert err.startswith(stated)


THERE = {"lo": True, "eth0": True, "ib0": True, "ib1": False, "docker0": True}


@pytest.mark.parametrize(
    ("backend", "value", "problem"),
    [
        ("gloo", "eth0", ""),
        ("gloo", "eth0,ib0", ""),
        ("gloo", "eth", "no interface eth"),
        ("gloo", "eth0,ib7", "no interface ib7"),
        ("gloo", "=eth0", "no interface =eth0"),
        ("gloo", "ib1", "ib1 has no address"),
        ("gloo", "eth0,", "an empty name"),
        ("nccl", "eth", ""),
        ("nccl", "eth,ib", ""),
        ("nccl", "hsn,ib", ""),
        ("nccl", "=eth0", ""),
        ("nccl", "=eth", "it matches none with an address"),
        ("nccl", "ib1", "it matches none with an address"),
        ("nccl", "^docker,lo", ""),
        ("nccl", "^lo,eth,ib,docker", "it matches none with an address"),
        ("nccl", "^=lo", ""),
        ("nccl", "eth0:8000", ""),
    ],
)
def test_interfaces(backend, value, problem):
    assert interface_problem(backend == "nccl", value, THERE) == problem


def test_interfaces_of_this_host(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    check_interfaces([BACKENDS[name] for name in ("gloo", "nccl", "xccl")])
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=hsn7")
    check_interfaces([BACKENDS[name] for name in ("gloo", "xccl")])  # not NCCL's turn
    with pytest.raises(UnavailableError) as caught:
        check_interfaces(map(BACKENDS.get, ("gloo", "nccl")))
    text = str(caught.value)
    assert text.startswith(
        error_text("NCCL_SOCKET_IFNAME", f"=hsn7 on {socket.gethostname()} (it matches ")
    )
    assert expecting("one of ") in text and "lo" in text
    assert text.endswith("Correct or unset NCCL_SOCKET_IFNAME.")
