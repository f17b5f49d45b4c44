"""Settings of one host's ranks that make calls slow, hang, or measure something else."""

from types import SimpleNamespace

import pytest
from made_runs import measured

from torchcoll.bench.recorder import Recorder, _keep_traps
from torchcoll.core.backends import BACKENDS
from torchcoll.machine.setting_traps import CONDITIONS, Settings, setting_traps, trap_table
from torchcoll.questions.check.judging import judge
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.comparison.conclusion_show import settings_notes

# For 8 ranks of torchrun on 4 cores, beside GPUs that a torch 2.14 for CUDA sees: a setting of each
# kind, and a value of the same variable that is none.
KINDS = [
    ("ccl_atl_transport", {"CCL_ATL_TRANSPORT": "mpi"}, {"CCL_ATL_TRANSPORT": "ofi"}),
    ("ccl_worker_offload", {"CCL_WORKER_OFFLOAD": "1"}, {"CCL_WORKER_OFFLOAD": "0"}),
    ("slowed", {"NCCL_DEBUG": "TRACE"}, {"NCCL_DEBUG": "INFO"}),
    ("forced", {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": ""}),
    ("switched_off", {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "0"}),
    ("switched_off", {"NCCL_NVLS_ENABLE": "0"}, {"NCCL_NVLS_ENABLE": "1"}),
    ("ze_affinity_mask", {"ZE_AFFINITY_MASK": "0"}, {"ZE_AFFINITY_MASK": "0,1,2,3,4,5,6,7"}),
    ("hidden_devices", {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "0,1"}),
]


def names(environ=None, launcher="torchrun", ranks=2, cores=2, ccl_on_cpu=True):
    settings = Settings(environ or {}, launcher, ranks, cores, ccl_on_cpu)
    return [finding.name for finding in setting_traps(settings)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["ccl_worker_offload"]),
        ({"environ": {"CCL_WORKER_OFFLOAD": "1"}}, ["ccl_worker_offload"]),
        ({"environ": {"CCL_WORKER_OFFLOAD": "0"}}, []),
        ({"cores": 4}, []),  # a core for each worker
        ({"cores": 3}, ["ccl_worker_offload"]),
        ({"ranks": 1, "cores": 1}, []),
        ({"ccl_on_cpu": False}, []),
        # oneCCL turns its workers off by itself under an MPI launcher.
        ({"launcher": "Intel MPI"}, []),
        ({"launcher": "srun"}, ["ccl_worker_offload"]),
        ({"cores": 8, "environ": {"CCL_ATL_TRANSPORT": "mpi"}}, ["ccl_atl_transport"]),
        ({"cores": 8, "launcher": "MPICH", "environ": {"CCL_ATL_TRANSPORT": "mpi"}}, []),
        ({"cores": 8, "environ": {"CCL_LOG_LEVEL": "debug"}}, ["slowed"]),
        ({"cores": 8, "environ": {"CCL_LOG_LEVEL": "warn"}}, []),
        (
            {"cores": 8, "environ": {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "TRACE"}},
            ["slowed", "slowed"],
        ),
    ],
)
def test_traps(changes, expected):
    assert names(**changes) == expected


def test_a_setting_of_each_kind_is_here():
    traps = trap_table()["setting"]
    assert {name for name, _, _ in KINDS} == {*(trap["name"] for trap in traps), "hidden_devices"}
    assert {trap["when"] for trap in traps if "when" in trap} == {*CONDITIONS}


def recorded(environ, cpu_named=False):
    """The run of 8 ranks of one host that rank 0 records with these variables.

    No such machine is here: its torch, ranks and devices are stand-ins.
    """
    backend = "nccl"
    if any(name.startswith(("CCL_", "ZE_")) for name in environ):
        backend = "ccl"
    version = SimpleNamespace(cuda="13.0", hip=None)
    session = SimpleNamespace(
        entries=[BACKENDS[backend]],
        environ=environ,
        launch=SimpleNamespace(launcher="torchrun"),
        cpu_named=cpu_named,
        local=SimpleNamespace(
            torch=SimpleNamespace(version=version, __version__="2.14.0"),
            device=SimpleNamespace(kind="cpu" if backend == "ccl" else "cuda"),
        ),
    )
    recorder = Recorder()
    recorder.header(
        {
            "spec": {"labels": {}},
            "ranks": 8,
            "environment": {"variables": environ, "torch": "2.14.0"},
        }
    )
    members = [{"rank": rank, "host": "n1", "affinity": "0-3"} for rank in range(8)]
    recorder.members(members)
    _keep_traps(session, recorder, members)
    recorder.case(measured(1000, 8, backend=backend, in_place=False))
    recorder.end("complete", 0, 1.0, "")
    return recorder.run


@pytest.mark.parametrize(("name", "harmful", "harmless"), KINDS)
def test_a_run_its_verdict_and_a_comparison_name_each_kind(name, harmful, harmless):
    run = recorded(harmful)
    (event,) = (e for e in run.events if e.get("name") == name)
    assert event["variables"] == [*harmful]
    assert any(p.word == "WARN" and p.text == event["message"] for p in judge(run).phrases)
    assert name not in {e.get("name") for e in recorded(harmless).events}

    # Another run with the same setting: it is no difference between them.
    (note,) = [
        text
        for text in settings_notes(compare(run, recorded({**harmful, "NCCL_NTHREADS": ""})))
        if event["what"] in text
    ]
    assert note == f"on both sides, {event['message']}"


def test_what_a_comparison_is_about_is_no_trap_of_it():
    ring, tree = recorded({"NCCL_ALGO": "Ring"}), recorded({"NCCL_ALGO": "Tree"})
    assert [event["name"] for run in (ring, tree) for event in run.events] == ["forced"] * 2
    assert settings_notes(compare(ring, tree)) == []
    both = recorded({"NCCL_ALGO": "Tree", "NCCL_P2P_DISABLE": "1"})
    (note,) = settings_notes(compare(ring, both))
    assert "NCCL_P2P_DISABLE=1 in the environment" in note


def test_what_torchcoll_has_set_is_no_trap():
    environ = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL", "TORCHCOLL_SET": "NCCL_ALGO"}
    (event,) = recorded(environ).events
    assert event["what"] == "NCCL_PROTO=LL in the environment"


def test_who_has_named_a_backend_misses_no_gpu():
    assert recorded({"CUDA_VISIBLE_DEVICES": ""}, cpu_named=True).events == []
