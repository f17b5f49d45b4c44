"""Every variable that a library, a plug-in, a runtime or a launcher reads is recorded by name."""

import made_runs
import pytest

from torchcoll.core.run_facts import facts_of
from torchcoll.core.variables import JOB, RUNTIME, SETTINGS, kept_variables, kind_of
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.show.recipe import recipe_of
from torchcoll.stats.differences import differences_of, unknown_facts

# (variable, two values that people set). The names are those of the makers' documentation.
COMPARED = [
    ("OFI_NCCL_PROTOCOL", "SENDRECV", "RDMA"),  # aws-ofi-nccl
    ("UCC_TL_UCP_TUNE", "allreduce:0-4k:@knomial", "inf"),
    ("NVSHMEM_REMOTE_TRANSPORT", "ibrc", "libfabric"),
    ("MSCCLPP_SOCKET_IFNAME", "eth0", "ib0"),
    ("PSM3_NIC", "any", "0"),
    ("RDMAV_HUGEPAGES_SAFE", "1", "0"),
    ("MLX5_SINGLE_THREADED", "1", "0"),
    ("SHARP_COLL_ENABLE_SAT", "1", "0"),
    ("HPCX_UCC_DIR", "/opt/hpcx/ucc", "/opt/ucc"),
    ("UR_L0_USE_IMMEDIATE_COMMANDLISTS", "1", "2"),
    ("GPU_MAX_HW_QUEUES", "2", "8"),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", "100"),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments:False"),
    ("PYTORCH_ALLOC_CONF", "backend:native", "backend:cudaMallocAsync"),
    ("NVIDIA_VISIBLE_DEVICES", "all", "0,1"),
    ("NCCL_IB_HCA", "mlx5_0:1", "^mlx5_1"),
    ("FI_CXI_RX_MATCH_MODE", "hybrid", "software"),
    ("OMPI_MCA_pml", "ucx", "^ucx"),
]


def run_with(number=0, **variables):
    return made_runs.run(made_runs.measured(1000 + number), variables=kept_variables(variables))


@pytest.mark.parametrize(("name", "first", "second"), COMPARED)
def test_a_comparison_names_a_setting_that_differs(name, first, second):
    comparison = compare(run_with(1, **{name: first}), run_with(2, **{name: second}))
    texts = [str(difference) for difference in differences_of(comparison.base, comparison.new)]
    assert texts == [f"{name}: {first} -> {second}"]


@pytest.mark.parametrize(
    "name",
    [
        "FLUX_JOB_ID",
        "JSM_NAMESPACE_RANK",
        "SLURM_JOB_ID",
        "PMIX_RANK",
        "OMPI_COMM_WORLD_RANK",
        "I_MPI_HYDRA_UUID",
        "OMPI_MCA_orte_hnp_uri",
        "TORCHELASTIC_RESTART_COUNT",
    ],
)
def test_what_a_launcher_says_is_kept_and_no_difference(name):
    assert kind_of(name) == JOB
    run = run_with(**{name: "17"})
    assert run.environment["variables"] == {name: "17"}
    assert name not in facts_of(run)


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HOME", "https_proxy", "AWS_REGION", "PATH"])
def test_variables_of_nobody_here_are_not_kept(name):
    assert kept_variables({name: "1"}) == {}


def test_a_value_that_is_withheld_may_differ():
    """No digest shows it: a digest would also confirm a guess."""
    values = ("a person's note", "another note")
    runs = [run_with(n, UCX_REMARK=value) for n, value in enumerate(values)]
    assert all(run.environment["variables"] == {"UCX_REMARK": "***"} for run in runs)
    comparison = compare(*runs)
    assert differences_of(comparison.base, comparison.new) == []
    assert unknown_facts(comparison.base, comparison.new) == [
        "both sides withhold the value of UCX_REMARK: it may differ"
    ]
    comparison = compare(runs[0], run_with(2, UCX_REMARK="rc"))
    (difference,) = differences_of(comparison.base, comparison.new)
    assert str(difference) == "UCX_REMARK: *** -> rc"


def test_settings_are_set_again_and_what_the_process_has_is_not():
    run = run_with(OFI_NCCL_PROTOCOL="RDMA", CUDA_VISIBLE_DEVICES="0", SLURM_JOB_ID="7")
    assert [kind_of(name) for name in run.environment["variables"]] == [RUNTIME, SETTINGS, JOB]
    assert recipe_of(run).variables == {"OFI_NCCL_PROTOCOL": "RDMA"}
