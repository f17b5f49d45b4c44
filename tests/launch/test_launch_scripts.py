"""launch/pbs.sh, slurm.sbatch and kubernetes.yaml over stand-ins for what is not here."""

import ast
import os
import re
import shutil
import sys

import pytest
from error_form import error_text
from kubernetes_schema import JOB, SERVICE
from launching import PATH, ROOT, need, run
from ranks import Job

import torchcoll
from torchcoll.bench.main import main

LAUNCH = ROOT / "launch"
SCRIPTS = [
    "local.sh",
    "install.sh",
    "one_gpu.sh",
    "mpi.sh",
    "pbs.sh",
    "slurm.sbatch",
]
NIGHTLY = sorted(f"nightly/{path.name}" for path in (LAUNCH / "nightly").iterdir())
SCRIPTS += [name for name in NIGHTLY if name.endswith((".sh", ".sbatch"))]


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck(name):
    need("shellcheck")
    done = run(["shellcheck", "-x", f"launch/{name}"], cwd=ROOT)
    assert done.returncode == 0, done.stdout


MANIFESTS = {path.name for path in LAUNCH.glob("kubernetes*.yaml")}


@pytest.mark.parametrize("name", sorted({*SCRIPTS, *NIGHTLY, *MANIFESTS, "README.md"}))
def test_no_path_of_a_site(name):
    text = (LAUNCH / name).read_text()
    allowed = ("/usr/bin/env", "/dev/null", "/dev/shm", "/sys/class", "/results", "/torchcoll")
    allowed += (
        "/run/torchcoll/",
        "/var/lib/torchcoll/",
        "/etc/systemd/system/",
        "/etc/mpi/",
        "/bin/bash",
    )
    paths = re.findall(r"(?<![\w.:$})*/>])/(?!/)[a-z][\w./-]*", text)
    assert [path for path in paths if not path.startswith((*allowed, "/path/to/"))] == []


def program(folder, name, text):
    """A stand-in on PATH; returns the environment that finds it."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{PATH}"}


END = '{"record":"end","status":"complete","exit_code":0,'
# What PALS' mpiexec is documented to take and to set, no more: it has never been here. It writes
# down what it would start.
PALS = f"""#!{sys.executable}
import os, sys
words, env, options = sys.argv[1:], dict(os.environ), {{}}
while words[0].startswith("-"):
    name, value = words.pop(0), words.pop(0)
    if name == "--env":
        key, _, value = value.partition("=")
        env[key] = value
    else:
        options[name.lstrip("-")] = value
for name in ("PBS_NODEFILE", "PBS_JOBID"):
    del env[name]
ranks = []
for rank in range(int(options["np"])):
    local = str(rank % int(options["ppn"]))
    own = dict(PALS_RANKID=str(rank), PALS_LOCAL_RANKID=local, PALS_APID="ab-1")
    own["PMIX_RANK"] = str(rank)
    ranks.append(own)
with open("started", "a") as file:
    print([options, words, env, ranks], file=file)
with open(words[words.index("-J") + 1], "w") as file:  # so that the script goes on
    file.write({END!r})
"""


def start(folder, arguments, reported, ranks):
    """The ranks that were written down, forked: two imports of torch less a run."""
    unset = dict.fromkeys(("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))

    def target():
        os.chdir(folder)
        main("all_reduce", arguments)

    environment = [{**unset, **reported, **own} for own in ranks]
    return Job(folder / "ranks", target, len(ranks), environment=environment.__getitem__)


def test_pbs_and_pals(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("localhost\nlocalhost\n")
    env = {
        **program(tmp_path / "bin", "mpiexec", PALS),
        **{"PBS_JOBID": "8987483.server-1", "PBS_NODEFILE": str(nodes)},
        **{"PBS_O_WORKDIR": str(tmp_path), "RANKS_PER_NODE": "2", "BACKEND": "gloo"},
        **{"ARGS": "-n 2 --quiet", "LABELS": "iter=4", "MAX_BYTES": "8"},
        **{"CXI_DEVICES": str(tmp_path)},  # Slingshot's devices are there
    }
    done = run(["bash", LAUNCH / "pbs.sh"], env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith("NUM_OF_NODES 1 TOTAL_NUM_RANKS 2 RANKS_PER_NODE 2\n+ mpiexec ")
    bind = "list:1-2:9-10:17-18:25-26:33-34:41-42:52-53:60-61:68-69:76-77:84-85:92-93"
    files = sorted((tmp_path / "torchcoll-runs").iterdir())
    assert [f.name for f in files] == [f"pbs-8987483-2ranks-{n}.jsonl" for n in (1, 2)]
    lines = (tmp_path / "started").read_text().splitlines()
    for number, (file, line) in enumerate(zip(files, lines, strict=True), 1):
        options, words, reported, ranks = ast.literal_eval(line)
        assert options == {"np": "2", "ppn": "2", "cpu-bind": bind}
        assert words[:3] == [sys.executable, "-m", "torchcoll.allreduce"]
        file.unlink()
        assert start(tmp_path, words[3:], reported, ranks).codes() == [0, 0]
        assert file.read_text().splitlines()[-1].startswith(END)
        found = torchcoll.load(file)
        assert found.complete
        assert found.header["launcher"] == "PALS"
        assert found.spec.labels == {"run": str(number), "iter": "4"}
        assert [r.case.size_bytes for r in found.results] == [4, 8]
        assert all(len(r.cold_ns[0]) >= 3 for r in found.results)
        known = found.environment["variables"]
        assert known["FI_CXI_RX_MATCH_MODE"] == "software"
        assert known["MPIR_CVAR_CH4_MT_MODEL"] == "lockless"
        assert known["MASTER_PORT"] == str(20000 + (8987483 * 10 + number) % 10000)


@pytest.mark.parametrize(("devices", "there"), [("", True), ("nothing", False)])
def test_pbs_has_the_settings_of_slingshot_on_slingshot_alone(tmp_path, devices, there):
    nodes = tmp_path / "nodes"
    nodes.write_text("localhost\n")
    env = {
        **program(tmp_path / "bin", "mpiexec", PALS),
        **{"PBS_JOBID": "1.server", "PBS_NODEFILE": str(nodes), "PBS_O_WORKDIR": str(tmp_path)},
        **{"CXI_DEVICES": str(tmp_path / devices), "RUNS": "1"},
    }
    done = run(["bash", LAUNCH / "pbs.sh"], env=env, cwd=tmp_path)
    assert ("FI_CXI_RX_MATCH_MODE=software" in done.stdout) is there
    assert ("FI_PROVIDER=cxi" in done.stdout) is there
    assert "CCL_ATL_TRANSPORT=mpi" in done.stdout


def test_pbs_of_many_nodes(tmp_path):
    """12 ranks on each node that the job was given, a line a node or a line a core."""
    nodes = tmp_path / "nodes"
    nodes.write_text("".join(f"x{n}.site\n" * 2 for n in (3, 1, 2, 4)))
    env = {
        **program(tmp_path / "bin", "mpiexec", "#!/bin/sh\nexit 4\n"),
        **{"PBS_JOBID": "17[3].s", "PBS_NODEFILE": str(nodes), "PBS_O_WORKDIR": str(tmp_path)},
        **{"BACKEND": "ccl", "ONECCL": "", "MASTER_SUFFIX": ".fast"},
    }
    done = run(["bash", LAUNCH / "pbs.sh"], env=env)
    assert done.returncode == 4
    first, command = done.stdout.splitlines()  # what cannot start is not started again
    assert first == "NUM_OF_NODES 4 TOTAL_NUM_RANKS 48 RANKS_PER_NODE 12"
    for words in (
        "mpiexec --np 48 -ppn 12 --cpu-bind list:1-2:",
        "--env MASTER_ADDR=x3.site.fast --env MASTER_PORT=20171 --env WORLD_SIZE=48",
        "-m torchcoll.allreduce --backend ccl -b 4 -e 2K -f 2 --label run=1",
    ):
        assert words in command
    assert "CCL_" not in command


def test_one_pbs_job_for_each_number_of_nodes(tmp_path):
    env = program(tmp_path / "bin", "qsub", '#!/bin/sh\necho "submitted $*"\n')
    script = LAUNCH / "pbs.sh"
    done = run(["bash", script, "-A", "me"], env={**env, "NODES": "1 64"})
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if line.startswith("submitted")] == [
        f"submitted -V -l select={nodes} -A me {script}" for nodes in (1, 64)
    ]


def test_one_slurm_job_for_each_variant(tmp_path):
    env = program(tmp_path / "bin", "sbatch", '#!/bin/sh\necho "$VARIANT: $*"\n')
    script = LAUNCH / "slurm.sbatch"
    env["VARIANTS"] = "generic:--nodelist=a nvidia:--constraint=x:--reservation=y"
    done = run(["bash", script, "-p", "gpu"], env=env)
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if not line.startswith("+")] == [
        f"generic: --nodelist=a -p gpu {script}",
        f"nvidia: --constraint=x --reservation=y -p gpu {script}",
    ]


def test_the_slurm_script_repeats_the_report(tmp_path):
    """Eight ranks, ten programs, 1M to 16G by 4, ten runs; a case that fails stops none."""
    end = '{"record":"end","status":"complete","exit_code":1,"wall_s":2}'
    stand_in = f"#!/bin/sh\nfor file; do :; done\necho '{end}' >$file\nexit 143\n"
    env = program(tmp_path / "bin", "srun", stand_in)
    env |= {"SLURM_JOB_ID": "5", "WRAP": "apptainer exec --nv i.sif", "SRUN_ARGS": "--label"}
    done = run(["bash", LAUNCH / "slurm.sbatch"], env=env, cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    start = f"+ srun --kill-on-bad-exit=1 --label apptainer exec --nv i.sif {sys.executable} -m"
    assert lines[0].startswith(f"{start} torchcoll.suite --collectives sendrecv,reduce,")
    assert " -b 1M -e 16G -f 4 --label kernel=" in lines[0]
    assert lines[9].endswith("--label run=10 -J torchcoll-runs/slurm-5-10.jsonl")
    assert "#SBATCH --ntasks-per-node=8\n" in (LAUNCH / "slurm.sbatch").read_text()


def test_a_slurm_step_that_outlives_its_run_is_cancelled(tmp_path):
    """srun waits for ever for the exit of a task on a node that is gone."""
    end = '{"record":"end","status":"failed","exit_code":5,"wall_s":2}'
    wait = f"while [ ! -e cancelled ]; do {shutil.which('sleep')} 0.05; done\nexit 143\n"
    srun = f"#!/bin/sh\nfor file; do :; done\necho '{end}' >$file\n{wait}"
    env = program(tmp_path / "bin", "srun", srun)
    program(tmp_path / "bin", "sleep", "#!/bin/sh\n")
    program(tmp_path / "bin", "squeue", "#!/bin/sh\nprintf '5.batch\\n5.0\\n'\n")
    program(tmp_path / "bin", "scancel", '#!/bin/sh\necho "$@" >cancelled\n')
    env |= {"SLURM_JOB_ID": "5"}
    done = run(["bash", LAUNCH / "slurm.sbatch"], env=env, cwd=tmp_path)
    assert done.returncode == 143
    assert (tmp_path / "cancelled").read_text() == "5.0\n"
    assert done.stdout.count("+ srun") == 1
    assert done.stderr.endswith("after the run: scancel ends its step\n")


@pytest.mark.parametrize(
    ("told", "options"),
    [
        # 192 CPUs for 8 tasks; sbatch's own number; another way; srun's own; nodes that differ.
        (
            {"SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_JOB_CPUS_PER_NODE": "192(x2)"},
            "--cpus-per-task=24 --distribution=block:block ",
        ),
        (
            {
                "SLURM_TASKS_PER_NODE": "8",
                "SLURM_JOB_CPUS_PER_NODE": "192",
                "SLURM_CPUS_PER_TASK": "12",
            },
            "--cpus-per-task=12 --distribution=block:block ",
        ),
        (
            {
                "SLURM_TASKS_PER_NODE": "8",
                "SLURM_JOB_CPUS_PER_NODE": "192",
                "CPU_BIND": "--cpu-bind=none",
            },
            "--cpu-bind=none ",
        ),
        (
            {
                "SLURM_TASKS_PER_NODE": "8",
                "SLURM_JOB_CPUS_PER_NODE": "192",
                "CPU_BIND": " ",
            },
            "",
        ),
        ({"SLURM_TASKS_PER_NODE": "8(x2),4", "SLURM_JOB_CPUS_PER_NODE": "192(x2),64"}, ""),
        ({"SLURM_TASKS_PER_NODE": "8", "SLURM_JOB_CPUS_PER_NODE": "4"}, ""),
        ({}, ""),
    ],
)
def test_slurm_gives_each_rank_its_share_of_the_cores(tmp_path, told, options):
    env = program(tmp_path / "bin", "srun", "#!/bin/sh\nexit 1\n") | {"SLURM_JOB_ID": "5", **told}
    done = run(["bash", LAUNCH / "slurm.sbatch"], env=env, cwd=tmp_path)
    start = f"+ srun --kill-on-bad-exit=1 {options}{sys.executable} -m torchcoll.suite "
    assert done.stdout.startswith(start), done.stderr


@pytest.mark.parametrize(("code", "expected"), [(0, 1), (5, 5), (143, 143)])
def test_a_launch_without_an_end_is_the_last(tmp_path, code, expected):
    env = program(tmp_path / "bin", "srun", f"#!/bin/sh\nexit {code}\n") | {"SLURM_JOB_ID": "5"}
    done = run(["bash", LAUNCH / "slurm.sbatch"], env=env, cwd=tmp_path)
    assert (done.returncode, done.stdout.count("+ srun")) == (expected, 1)


@pytest.mark.parametrize(
    ("script", "env", "line"),
    [
        (
            "slurm.sbatch",
            {},
            error_text("slurm.sbatch", "no Slurm job", "one. Start it with: sbatch "),
        ),
        (
            "slurm.sbatch",
            {"VARIANTS": "a"},
            error_text("VARIANTS", "'a'", "NAME:OPTION[:OPTION...]"),
        ),
        ("pbs.sh", {}, error_text("pbs.sh", "no PBS job", "one. Start it with: qsub ")),
    ],
)
def test_outside_a_job(script, env, line):
    done = run(["bash", LAUNCH / script], env=env)
    assert done.returncode == 2
    assert done.stderr.startswith(f"torchcoll: error: {line}")


def manifests_of(name):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return list(yaml.safe_load_all((LAUNCH / name).read_text()))


@pytest.fixture
def manifests():
    return manifests_of("kubernetes.yaml")


def test_the_schema(manifests):
    jsonschema = pytest.importorskip("jsonschema")
    for manifest, schema in zip(manifests, (SERVICE, JOB), strict=True):
        jsonschema.validate(manifest, schema)


def test_the_schema_of_kubernetes_itself(manifests):
    validate = pytest.importorskip("kubernetes_validate", reason="22 MB, for those who have it")
    for manifest in manifests:
        validate.validate(manifest, validate.latest_version(), strict=True)


def test_what_holds_the_pods_together(manifests):
    service, job = manifests
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    env = {item["name"]: item["value"] for item in container["env"]}
    assert spec["completions"] == spec["parallelism"] == int(env["NNODES"])
    assert container["resources"]["limits"] == {"nvidia.com/gpu": int(env["GPUS"])}
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["medium"] == "Memory"
    assert pod["restartPolicy"] == "Never"
    labels = job["spec"]["template"]["metadata"]["labels"]
    term = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert term["labelSelector"]["matchLabels"] == labels
    assert "privileged" not in str(manifests)


@pytest.mark.parametrize(("index", "code"), [("0", 0), ("1", 0), ("0", 3)])
def test_what_a_pod_runs(manifests, tmp_path, index, code):
    job = manifests[1]
    container = job["spec"]["template"]["spec"]["containers"][0]
    env = {item["name"]: item["value"] for item in container["env"]}
    (tmp_path / "run.jsonl").write_text('{"record": "header"}\n')
    stand_in = f'#!/bin/sh\necho "torchrun $*"\nexit {code}\n'
    env |= program(tmp_path / "bin", "torchrun", stand_in) | {"JOB_COMPLETION_INDEX": index}
    command = [word.replace("cat /results", f"cat {tmp_path}") for word in container["command"]]
    done = run(command, env=env)
    assert done.returncode == code
    line, *rest = done.stdout.splitlines()
    name = job["metadata"]["name"]
    assert line.startswith(
        f"torchrun --nnodes 2 --node-rank {index} --nproc-per-node 8 "
        f"--master-addr {name}-0.{name} --master-port 29500 -m torchcoll.suite --collectives all_"
    )
    assert rest == (['{"record": "header"}'] if index == "0" else [])


def test_a_jobset_runs_the_same_pods(manifests):
    """But for the name of pod 0, which JobSet makes of its own, the job's and two indices."""
    (jobset,) = manifests_of("kubernetes-jobset.yaml")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert (replicated["replicas"], jobset["spec"]["failurePolicy"]["maxRestarts"]) == (1, 0)
    network = jobset["spec"]["network"]
    address = f"{jobset['metadata']['name']}-{replicated['name']}-0-0.{network['subdomain']}"
    job, of_jobset = manifests[1]["spec"], replicated["template"]["spec"]
    plain = {name: job[name] for name in ("completions", "parallelism", "backoffLimit")}
    assert {name: of_jobset[name] for name in plain} == plain
    pod, expected = of_jobset["template"]["spec"], job["template"]["spec"]
    pod["containers"][0]["command"][2] = " ".join(pod["containers"][0]["command"][2].split())
    script = expected["containers"][0]["command"][2].replace("torchcoll-0.torchcoll", address)
    expected["containers"][0]["command"][2] = " ".join(script.split())
    assert pod == {name: expected[name] for name in expected if name != "subdomain"}


def test_what_an_mpijob_runs(tmp_path):
    (job,) = manifests_of("kubernetes-mpijob.yaml")
    launcher, worker = job["spec"]["mpiReplicaSpecs"].values()
    gpus = worker["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == job["spec"]["slotsPerWorker"]
    container = launcher["template"]["spec"]["containers"][0]
    (tmp_path / "hostfile").write_text("torchcoll-worker-0.torchcoll.svc slots=8\nother slots=8\n")
    env = {item["name"]: item["value"] for item in container["env"]}
    stand_in = '#!/bin/sh\necho "mpirun $*"\ncase $* in *suite*) exit 3;; esac\n'
    env |= program(tmp_path / "bin", "mpirun", stand_in)
    command = [word.replace("/etc/mpi", str(tmp_path)) for word in container["command"]]
    done = run(command, env=env)
    assert done.returncode == 3
    measured, shown = done.stdout.splitlines()
    ranks = worker["replicas"] * gpus
    assert f" -np {ranks} --map-by ppr:{gpus}:node " in measured
    assert " MASTER_ADDR=torchcoll-worker-0.torchcoll.svc " in measured
    assert measured.endswith("-b 1M -e 4G -f 4 -J /results/run.jsonl")
    assert shown.endswith("--host torchcoll-worker-0.torchcoll.svc cat /results/run.jsonl")
