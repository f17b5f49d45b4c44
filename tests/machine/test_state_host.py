"""Shares of cores from a hand-made /proc with 100 ticks per second; sums computed by hand."""

import os

import pytest

from torchcoll.machine import state

RANK, CHILD, OTHER, BORN_LATER = 10, 11, 20, 30


def stat_line(pid, name, parent, utime, stime=0, born=5, ended=0):
    fields = ["S", parent, *[0] * 9, utime, stime, ended, 0, 20, 0, 1, 0, born, 4096]
    return f"{pid} ({name}) {' '.join(map(str, fields))}\n"


@pytest.fixture
def proc(tmp_path):
    def write(cpus, processes, allowed="0-1"):
        lines = [f"cpu{n} {' '.join(map(str, ticks))} 0 0" for n, ticks in cpus.items()]
        (tmp_path / "stat").write_text("\n".join(["cpu 1 1 1 1 1 1 1 1 0 0", *lines, "intr 1"]))
        (tmp_path / "loadavg").write_text("3.17 6.45 6.39 3/107 31530\n")
        for pid, line in processes.items():
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            (tmp_path / str(pid) / "stat").write_text(line)
            (tmp_path / str(pid) / "comm").write_text(f"p{pid}\n")
            status = f"Name:\tp{pid}\nCpus_allowed_list:\t{allowed}\n"
            (tmp_path / str(pid) / "status").write_text(status)
        return str(tmp_path)

    return write


# user nice system idle iowait irq softirq steal
IDLE = (0, 0, 0, 0, 0, 0, 0, 0)


def samples(proc, after, processes, seconds=2.0):
    """Two samples with this distance. The first has zero ticks and all processes except
    BORN_LATER.
    """
    first = state.sample(
        proc(
            dict.fromkeys(after, IDLE),
            {
                RANK: stat_line(RANK, "python3", 1, 0),
                CHILD: stat_line(CHILD, "worker", RANK, 500),
                OTHER: stat_line(OTHER, "some (job) x", 1, 1000),
            },
        )
    )
    root = proc(after, processes)
    last = state.sample(root)
    return first, state.Sample(first.seconds + seconds, last.cpus, last.processes), root


def test_who_used_the_cores(proc):
    """CPUs 0 and 1 worked 200 + 150 ticks in 2 s: 1.75 cores. The rank and its child spent 190,
    so others had 160: 0.8 cores. CPU 2, which the rank may not use, does not count.
    """
    first, last, root = samples(
        proc,
        {
            0: (150, 20, 30, 0, 0, 0, 0, 0),
            1: (100, 0, 50, 30, 5, 7, 3, 5),
            2: (200, 0, 0, 0, 0, 0, 0, 9),
        },
        {
            RANK: stat_line(RANK, "python3", 1, 100, 60),
            CHILD: stat_line(CHILD, "worker", RANK, 530),
            OTHER: stat_line(OTHER, "some (job) x", 1, 1070, ended=700),
            BORN_LATER: stat_line(BORN_LATER, "new", 1, 80, born=6000),
        },
    )
    assert state.allowed_cpus([RANK], root) == {0, 1}
    shares = state.shares(first, last, [RANK], {0, 1}, 100, root)
    user = state.user_name(os.getpid())  # who wrote the files
    assert shares == {
        "seconds": 2.0,
        "cores": 2,
        "busy_cores": 1.75,
        "stolen_cores": 0.025,
        "others_cores": 0.8,
        "processes": [
            {"pid": BORN_LATER, "name": "new", "user": user, "cores": 0.4},
            {"pid": OTHER, "name": "some (job) x", "user": user, "cores": 0.35},
        ],
    }


def test_a_number_that_was_given_again(proc):
    """The ticks of an earlier process with the same pid are not subtracted."""
    processes = {
        RANK: stat_line(RANK, "python3", 1, 0),
        OTHER: stat_line(OTHER, "new", 1, 20, born=9000),
    }
    first, last, root = samples(proc, {0: (20, 0, 0, 180, 0, 0, 0, 0)}, processes)
    shares = state.shares(first, last, [RANK], {0}, 100, root)
    assert [(p["name"], p["cores"]) for p in shares["processes"]] == [("new", 0.1)]


def test_children_that_end(proc):
    """What they had spent before comes to their parent: 500 + 40 of the rank's child, of which
    only 40 are of these two seconds.
    """
    first, last, _ = samples(
        proc,
        {0: (190, 0, 0, 10, 0, 0, 0, 0)},
        {RANK: stat_line(RANK, "python3", 1, 50, ended=540), OTHER: stat_line(OTHER, "x", 1, 1100)},
    )
    processes = {pid: p for pid, p in last.processes.items() if pid != CHILD}
    shares = state.shares(first, state.Sample(last.seconds, last.cpus, processes), [RANK], {0}, 100)
    assert shares["others_cores"] == 0.5  # (190 - 50 - 40) ticks in 2 s
    assert [p["pid"] for p in shares["processes"]] == [OTHER]


def test_what_started_the_ranks_is_no_other(proc):
    """torchrun above the rank, and the shell above torchrun, worked 60 + 10 of 150 ticks. What
    other children of the shell had spent when they ended does not count.
    """
    shell, torchrun = 40, 41
    before = {
        RANK: stat_line(RANK, "python3", torchrun, 0),
        torchrun: stat_line(torchrun, "pt_elastic", shell, 100),
        shell: stat_line(shell, "bash", 1, 5),
        OTHER: stat_line(OTHER, "x", shell, 0),
    }
    first = state.sample(proc({0: IDLE}, before))
    after = {
        RANK: stat_line(RANK, "python3", torchrun, 50),
        torchrun: stat_line(torchrun, "pt_elastic", shell, 150, 10),
        shell: stat_line(shell, "bash", 1, 15, ended=900),
        OTHER: stat_line(OTHER, "x", shell, 20),
    }
    root = proc({0: (150, 0, 0, 50, 0, 0, 0, 0)}, after)
    last = state.sample(root)
    last = state.Sample(first.seconds + 2.0, last.cpus, last.processes)
    shares = state.shares(first, last, [RANK], {0}, 100, root)
    assert shares["others_cores"] == 0.15  # (150 - 50 - 60 - 10) ticks in 2 s
    assert [p["pid"] for p in shares["processes"]] == [OTHER]


def test_ranks_that_cannot_be_seen(proc):
    """The ranks are in other containers, so their processes cannot be told from others."""
    processes = {RANK: stat_line(RANK, "python3", 1, 50)}
    first, last, root = samples(proc, {0: (60, 0, 0, 140, 0, 0, 0, 0)}, processes)
    shares = state.shares(first, last, [RANK, 999], {0}, 100, root)
    assert (shares["busy_cores"], shares["others_cores"], shares["processes"]) == (0.3, None, [])


def test_nothing_to_read(tmp_path):
    empty = state.sample(str(tmp_path))
    shares = state.shares(empty, empty, [1], {0}, 100)
    assert (shares["cores"], shares["others_cores"]) == (0, None)
    assert state.sample(str(tmp_path / "none")).processes == {}
    assert state.allowed_cpus([1], str(tmp_path)) == set()
    assert state.user_name(1, str(tmp_path)) is None
    assert set(state.settings({0}, str(tmp_path), str(tmp_path)).values()) == {None}


def test_settings(proc, tmp_path):
    root = proc({}, {})
    for cpu, core in ((0, 4), (1, 2), (2, 100)):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}"
        (folder / "thermal_throttle").mkdir(parents=True)
        (folder / "thermal_throttle/core_throttle_count").write_text(f"{core}\n")
        (folder / "thermal_throttle/package_throttle_count").write_text("9\n")
        (folder / "cpufreq").mkdir()
        (folder / "cpufreq/scaling_governor").write_text("performance\n")
    assert state.settings({0, 1}, root, root) == {
        "load": [3.17, 6.45, 6.39],
        "governor": "performance",
        "throttled_core": 6,
        "throttled_package": 9,
    }


def test_this_process():
    """The real /proc: the CPU time of this test is counted as that of the run."""
    first = state.sample()
    end = first.processes[os.getpid()].ticks + 3
    while state.sample().processes[os.getpid()].ticks < end:
        sum(range(100000))
    last = state.sample()
    cpus = state.allowed_cpus([os.getpid()])
    assert cpus == os.sched_getaffinity(0)
    shares = state.shares(first, last, [os.getpid()], cpus, os.sysconf("SC_CLK_TCK"))
    assert shares["cores"] == len(cpus) and shares["others_cores"] is not None
    assert os.getpid() not in [p["pid"] for p in shares["processes"]]
    assert state.process_name(os.getpid()) == last.processes[os.getpid()].name
