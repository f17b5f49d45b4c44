"""launch/nightly: on a real Slurm of two nodes, with torchrun, and by the schemas of others."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import PATH, ROOT, need, need_root, run
from made_fleet import made_fleet
from made_runs import measured
from made_runs import run as made_run
from ranks import busy, past

import torchcoll

NIGHTLY = ROOT / "launch/nightly"
SMALL = {
    "COLLECTIVES": "all_reduce",
    "MIN_BYTES": "1K",
    "MAX_BYTES": "4K",
    "FACTOR": "4",
    "ARGS": "-n 5",
    "BACKEND": "gloo",
    "LABELS": "rack=r1",
}


def wait_until(condition, what, limit_s=60):
    began = time.monotonic()
    while not condition():
        assert not past(began, limit_s), what
        time.sleep(0.1)


SMALL_JOB = ("--ntasks-per-node=2", "--gpus-per-node=0")


def submit(cluster, folder, script, *options, **env):
    """The ids of the job and of its collector."""
    env = {**cluster.env, **SMALL, "STORE": f"{folder}/store.sqlite", **env}
    done = run(["bash", NIGHTLY / script, *options], env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    match = re.search(r"submitted job (?:array )?(\d+).*, and collector (\d+)", done.stdout)
    assert match, done.stdout
    return match[1], match[2]


def output(folder, job):
    return (folder / f"torchcoll-collect-{job}.out").read_text()


@pytest.mark.slurm
def test_a_night_on_slurm(cluster, tmp_path):
    """Each node alone; what the collector prints is what the commands say."""
    _, collector = submit(cluster, tmp_path, "slurm-nodes.sbatch", *SMALL_JOB)
    cluster.wait_for_job(collector)
    runs = [torchcoll.load(path) for path in sorted((tmp_path / "spool").iterdir())]
    assert sorted(run.labels["node"] for run in runs) == ["n1", "n2"]
    for each in runs:  # each on the node that its label says, with two ranks
        assert {member["host"] for member in each.members} == {each.labels["node"]}
        assert each.ranks == 2 and each.complete
        assert [result.status for result in each.results] == ["ok", "ok"]
    text = output(tmp_path, collector)
    assert "collected 2 runs (4 cases) from 2 files" in text
    assert "Cannot tell whether a node is slow (2 nodes, 1 night)" in text
    assert text.rstrip().endswith("; 2 are left")
    assert re.search(r"removed 0 runs \(0 cases\)", text)


@pytest.mark.slurm
def test_drained_nodes_get_no_job_and_no_command(cluster, tmp_path):
    """n1 is slow in a made store: the printed command drains it, and is not printed again."""
    times = lambda node, night, _: 1.1 if node == 1 and night >= 8 else 1  # noqa: E731
    (tmp_path / "spool").mkdir()
    for number, each in enumerate(made_fleet(12, 12, times)):
        node = f"n{number % 12}"
        each.header["spec"]["labels"] = {"node": node}
        torchcoll.save(each, tmp_path / "spool" / f"{number}.jsonl")
    env = {**cluster.env, "STORE": f"{tmp_path}/store.sqlite", "SPOOL": "spool", "KEEP": ""}
    env |= {"NIGHTLY_ARGS": "--night last", "NIGHT": "last"}
    done = run(["bash", NIGHTLY / "collect.sh"], env=env, cwd=tmp_path)
    assert done.returncode == 1 and "n1: 10 % slower in all collectives" in done.stdout
    drain = ["bash", NIGHTLY / "drain.sh"]
    first = run(drain, env=env, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    headline, command = first.stdout.splitlines()
    assert headline == "# 1 node to drain"
    assert shlex.split(command)[:4] == ["scontrol", "update", "nodename=n1", "state=drain"]
    state = lambda: run(["sinfo", "-hNn", "n1", "-o", "%T"], env=cluster.env).stdout.split()  # noqa: E731
    assert state() == ["idle"]  # nothing was run
    try:
        assert run(["bash", "-c", first.stdout], env=cluster.env).returncode == 0
        assert state() == ["drained"]
        again = run(drain, env=env, cwd=tmp_path)
        assert again.stdout.startswith("# 0 nodes to drain; 1 drained already")
        assert "scontrol" not in again.stdout
        job, collector = submit(
            cluster, tmp_path, "slurm-nodes.sbatch", "--begin=now+1hour", *SMALL_JOB
        )
        shown = run(["squeue", "-h", "-r", "-j", job, "-o", "%i %n"], env=cluster.env).stdout
        assert shown.split() == [f"{job}_0", "n2"]
        run(["scancel", job, collector], env=cluster.env)
    finally:
        run(["scontrol", "update", "nodename=n1", "state=resume"], env=cluster.env)
    wait_until(lambda: state() == ["idle"], "n1 is not idle again")


def test_drain_without_the_list_of_drained_nodes_prints_nothing(tmp_path):
    """Some of them might be named again."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    sinfo.chmod(0o755)
    done = run(["bash", NIGHTLY / "drain.sh"], env={"PATH": f"{tmp_path}:{PATH}"})
    assert done.returncode == 1
    assert (done.stdout, done.stderr) == ("", "Unable to contact slurm controller\n")


@pytest.mark.slurm
def test_slurmd_checks_and_drains(cluster, tmp_path):
    """slurmd runs both scripts: a failed verdict of n1 drains it, and the job runs on n2."""
    shown = lambda *what: run(["scontrol", "show", *what], env=cluster.env).stdout  # noqa: E731
    python = tmp_path / "python"
    # check fails on n1
    python.write_text('#!/bin/sh\ncase $*:$(hostname) in *" check "*:n1) exit 1 ;; esac\n')
    python.chmod(0o755)
    state = f"STATE={tmp_path}/$(hostname)/health"
    cluster.set_hook(
        "health",
        f"export PATH={PATH} SLURM_CONF={cluster.env['SLURM_CONF']}\n"
        f"{state} PYTHON={python} RANKS=2 exec {NIGHTLY}/healthcheck.sh",
    )
    verdicts = {node: tmp_path / node / "health" for node in ("n1", "n2")}
    try:
        wait_until(lambda: all(path.exists() for path in verdicts.values()), "no verdict")
        cluster.set_hook("health", "")
        words = {node: path.read_text().split()[1] for node, path in verdicts.items()}
        assert words == {"n1": "fail", "n2": "pass"}
        cluster.set_hook("prolog", f"{state} exec {NIGHTLY}/prolog.sh")
        for node in ("n1", "n2"):
            job = run(
                ["sbatch", "--parsable", f"-w{node}", "--output=/dev/null", "--wrap=true"],
                env=cluster.env,
            ).stdout.strip()
            if node == "n1":
                wait_until(lambda: "DRAIN" in shown("node", "n1"), "n1 is not drained")
                assert "JobState=COMPLETED" not in shown("job", job)
                run(["scancel", job], env=cluster.env)
            else:
                assert "JobState=COMPLETED" in cluster.wait_for_job(job)
                assert "DRAIN" not in shown("node", "n2")
    finally:
        cluster.set_hook("health", "")
        cluster.set_hook("prolog", "")
        run(["scontrol", "update", "nodename=n1", "state=resume"], env=cluster.env)


@pytest.fixture
def node(tmp_path):
    """The environment of healthcheck.sh on a node that scontrol says to be idle."""
    need("flock", "pgrep", "setsid")
    programs = tmp_path / "bin"
    programs.mkdir()
    set_state(tmp_path, "IDLE")
    return {
        "PATH": f"{programs}:{PATH}",
        "STATE": str(tmp_path / "state/health"),
        "NODE": "n1",
        "RANKS": "2",
        "ARGS": "--collectives all_reduce -b 1K -e 4K -f 4 -n 3 --backend gloo",
    }


def set_state(folder, state):
    """A scontrol that prints this state of a node in the middle of its line, as the real one."""
    program = folder / "bin/scontrol"
    program.write_text(f"#!/bin/sh\necho 'NodeName=n1 Arch=x86_64 State={state} Weight=1'\n")
    program.chmod(0o755)


def stand_in(folder, text):
    """PYTHON of healthcheck.sh."""
    program = folder / "bin/python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return {"PYTHON": str(program)}


def check_health(env):
    """The verdict and its reason, after a check that must exit with 0 and leave only its files."""
    done = run([NIGHTLY / "healthcheck.sh"], env=env)
    assert done.returncode == 0
    state = Path(env["STATE"])
    if not state.exists():
        return None
    assert {path.name for path in state.parent.iterdir()} <= {"health", "health.lock", "health.log"}
    written, verdict, reason = state.read_text().strip().split(" ", 2)
    assert abs(time.time() - int(written)) < 600
    return verdict, reason


def test_a_real_health_check(python, node, tmp_path):
    """Two ranks of gloo against a baseline that is far too fast."""
    cases = [measured(100, size_bytes=size) for size in (1024, 4096)]
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    if model is None:
        pytest.skip("/proc/cpuinfo names no model")
    baseline = made_run(*cases, device_name=model[1].strip())
    torchcoll.save(baseline, tmp_path / "baseline.jsonl")
    env = {**node, "PYTHON": python, "DEADLINE_S": "300"}
    env["CHECK"] = f"--baseline {tmp_path}/baseline.jsonl"
    verdict, reason = check_health(env)
    assert verdict == "fail", reason
    assert reason.startswith("FAIL ")
    assert run([NIGHTLY / "prolog.sh"], env=env).returncode == 1


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("exit 0", "pass"),
        ("exit 1", "fail"),
        # a case failed, but check finds the run good enough
        ("case $* in *suite*) exit 1 ;; esac", "pass"),
        ("case $* in *check*) exit 2 ;; esac", "unknown"),  # no reference
        ("exit 4", "unknown"),  # no device
        ("exit 5", "unknown"),  # a rank was lost
        ("kill -SEGV $$", "unknown"),
    ],
)
def test_the_verdict_is_that_of_check(node, tmp_path, text, verdict):
    found = check_health({**node, **stand_in(tmp_path, text)})
    assert found[0] == verdict


def test_a_python_that_is_not_there(node):
    assert check_health({**node, "PYTHON": "/nowhere/python"})[0] == "unknown"


@pytest.mark.parametrize("state", ["ALLOCATED", "MIXED", "DOWN", "IDLE*", "IDLE+RESERVED", ""])
def test_a_node_that_is_not_idle_is_not_measured(node, tmp_path, state):
    set_state(tmp_path, state)
    env = {**node, **stand_in(tmp_path, f"touch {tmp_path}/measured")}
    assert check_health(env) is None
    assert not (tmp_path / "measured").exists()


def test_a_drained_node_without_jobs_is_measured(node, tmp_path):
    set_state(tmp_path, "IDLE+DRAIN")
    assert check_health({**node, **stand_in(tmp_path, "exit 0")})[0] == "pass"


def test_the_last_verdict_stays_where_nothing_is_measured(node, tmp_path):
    state = Path(node["STATE"])
    state.parent.mkdir()
    state.write_text(f"{int(time.time())} fail slow\n")
    set_state(tmp_path, "ALLOCATED")
    assert check_health(node) == ("fail", "slow")


# Long enough for two shells to start on a busy machine.
SOON = {"DEADLINE_S": f"{2 * busy():.0f}"}
# Both ignore SIGTERM, and have a child of their own.
HANGS = """trap '' TERM
echo $$ >>{0}/pids
sleep 600 &
echo $! >>{0}/pids
touch {0}/started
wait"""


def alive(pids):
    """Those that run, and are no zombies."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found += [pid] if state != "Z" else []
    return found


def test_a_hanging_check_ends_at_its_deadline_with_all_its_children(node, tmp_path):
    env = {**node, **stand_in(tmp_path, HANGS.format(tmp_path)), **SOON}
    assert check_health(env) == ("unknown", f"no verdict after {SOON['DEADLINE_S']} s")
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 4  # two ranks, each with a child
    wait_until(lambda: not alive(pids), "a child is alive")


def test_a_scontrol_that_hangs_ends_at_the_deadline(node, tmp_path):
    (tmp_path / "bin/scontrol").write_text(f"#!/bin/sh\n{HANGS.format(tmp_path)}\n")
    assert check_health({**node, **SOON}) == ("unknown", f"no verdict after {SOON['DEADLINE_S']} s")
    wait_until(lambda: not alive((tmp_path / "pids").read_text().split()), "scontrol is alive")


@pytest.fixture
def hanging(node, tmp_path) -> Iterator[subprocess.Popen[bytes]]:
    """A check whose ranks hang, once they have started."""
    env = {**os.environ, **node, **stand_in(tmp_path, HANGS.format(tmp_path)), "DEADLINE_S": "300"}
    check = subprocess.Popen([NIGHTLY / "healthcheck.sh"], env=env, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tmp_path / "started").exists(), "the check did not start")
        yield check
    finally:
        check.kill()
        check.wait()
        for pid in alive((tmp_path / "pids").read_text().split()):
            os.kill(int(pid), signal.SIGKILL)


def test_a_check_that_slurm_ends(hanging, node, tmp_path):
    hanging.terminate()
    assert hanging.wait(60) == 0
    wait_until(lambda: not alive((tmp_path / "pids").read_text().split()), "a child is alive")
    assert not Path(node["STATE"]).exists()


def test_a_job_that_starts_ends_the_check(hanging, node, tmp_path):
    """slurmstepd calls itself '[JOB.STEP]' (as test_a_night_on_slurm has it on a real node)."""
    step = subprocess.Popen(["slurmstepd: [1.batch]", "600"], executable=shutil.which("sleep"))
    try:
        assert hanging.wait(60) == 0
    finally:
        step.kill()
        step.wait()
    wait_until(lambda: not alive((tmp_path / "pids").read_text().split()), "a child is alive")
    assert not Path(node["STATE"]).exists()


def test_a_second_check_at_the_same_time_does_nothing(hanging, node, tmp_path):
    assert check_health({**node, **stand_in(tmp_path, "exit 0")}) is None
    assert hanging.poll() is None


@pytest.mark.slurm
def test_a_job_step_is_recognised(cluster, tmp_path):
    """The title of a real slurmstepd is what healthcheck.sh looks for."""
    (pattern,) = re.findall(r"pgrep -f '([^']+)'", (NIGHTLY / "healthcheck.sh").read_text())
    wrap = f"--wrap=pgrep -f '{pattern}' >{tmp_path}/pids"
    done = run(["sbatch", "--parsable", "--output=/dev/null", wrap], env=cluster.env)
    assert "JobState=COMPLETED" in cluster.wait_for_job(done.stdout.strip())
    assert (tmp_path / "pids").read_text().split()


NOW = int(time.time())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{NOW} fail FAIL 51 % of the baseline\n", 1),
        (f"{NOW - 80000} fail x\n", 1),
        (f"{NOW - 90000} fail x\n", 0),  # older than a day
        (f"{NOW + 3600} fail x\n", 0),  # from the future
        (f"{NOW} pass x\n", 0),
        (f"{NOW} unknown x\n", 0),
        (f"{NOW} failure x\n", 0),
        (f"{NOW} FAIL x\n", 0),
        (f"{NOW} fail", 0),  # cut off in mid-write
        ("", 0),
        ("\n", 0),
        ("fail\n", 0),
        (f"0{NOW} fail x\n", 0),
        ("1e9 fail x\n", 0),
        (f"-{NOW} fail x\n", 0),
        (f"{NOW}$(exit) fail x\n", 0),
        ("9" * 30 + " fail x\n", 0),
        ("\0\0\0\xff\n", 0),
        ("a[$(reboot)] fail x\n", 0),
    ],
)
def test_prolog(tmp_path, text, code):
    state = tmp_path / "health"
    state.write_text(text, encoding="latin-1")
    done = run([NIGHTLY / "prolog.sh"], env={"STATE": str(state)})
    assert done.returncode == code
    assert ("failed its health check" in done.stderr) is bool(code)


def test_prolog_says_why_and_starts_no_program(tmp_path):
    state = tmp_path / "health"
    state.write_text(f"{int(time.time())} fail FAIL 51 % of the baseline\n")
    done = run(["/bin/bash", NIGHTLY / "prolog.sh"], env={"STATE": str(state), "PATH": "/nowhere"})
    assert (done.returncode, done.stderr) == (
        1,
        "torchcoll: this node failed its health check: FAIL 51 % of the baseline\n",
    )


@pytest.mark.parametrize("fault", ["missing", "folder", "fifo", "owner", "age"])
def test_prolog_lets_the_job_start_on_any_fault_of_its_own(tmp_path, fault):
    state = tmp_path / "health"
    env = {"STATE": str(state)}
    if fault == "folder":
        state.mkdir()
    elif fault == "fifo":
        os.mkfifo(state)
    elif fault != "missing":
        state.write_text(f"{int(time.time())} fail x\n")
    if fault == "owner":
        need_root()
        os.chown(state, 65534, 65534)  # any user could have written it
    if fault == "age":
        env["MAX_AGE_S"] = "a day"
    assert run([NIGHTLY / "prolog.sh"], env=env).returncode == 0


def test_a_node_measures_spools_and_collects(python, tmp_path):
    """torchrun with two ranks; a file that could not be moved in an earlier night comes along."""
    local = tmp_path / "local"
    local.mkdir()
    torchcoll.save(made_run(measured(1000), labels={"node": "earlier"}), local / "earlier.jsonl")
    env = {
        **SMALL,
        "PYTHON": python,
        "GPUS": "2",
        "SPOOL": str(tmp_path / "spool"),
        "LOCAL": str(local),
        "STORE": str(tmp_path / "store.sqlite"),
    }
    done = run(["bash", NIGHTLY / "node.sh"], env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "collected 2 runs (3 cases) from 2 files" in done.stdout
    assert list(local.iterdir()) == []
    (path,) = (tmp_path / "spool").glob("*T*Z.jsonl")
    measured_run = torchcoll.load(path)
    assert measured_run.complete and measured_run.ranks == 2
    assert measured_run.labels["rack"] == "r1"
    assert measured_run.labels["node"] == path.name.rpartition("-")[0]


def test_a_run_that_fails_is_the_exit_code(python, tmp_path):
    env = {**SMALL, "PYTHON": python, "MIN_BYTES": "1KB", "GPUS": "1", "SPOOL": str(tmp_path)}
    assert run(["bash", NIGHTLY / "node.sh"], env=env, cwd=tmp_path).returncode != 0


def test_the_collector_goes_on_after_an_unreadable_file(python, tmp_path):
    env = {"PYTHON": python, "NIGHTLY_ARGS": "--night last"}
    spool = tmp_path / "spool"
    spool.mkdir()
    for number, each in enumerate(made_fleet(10)):
        torchcoll.save(each, spool / f"{number}.jsonl")
    (spool / "broken.jsonl").write_text('{"record":"header","schema":"torchcoll/99"}\n')
    done = run(["bash", NIGHTLY / "collect.sh"], cwd=tmp_path, env=env)
    assert done.returncode in (1, 2, 3)  # 2: it cannot tell, after one night
    assert "collected 10 runs (100 cases)" in done.stdout
    assert "Cannot tell whether a node is slow (10 nodes, 1 night)" in done.stdout
    assert len(list(spool.iterdir())) == 11
