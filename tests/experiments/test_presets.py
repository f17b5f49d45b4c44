"""What presets hold to be valid; expected values from NCCL's and oneCCL's documentation."""

from importlib import metadata

import pytest
from error_form import error_text

from torchcoll.core.errors import UsageError
from torchcoll.parts.experiments import presets
from torchcoll.parts.experiments.blocks import make_plan

THREE = ("ll", "ll128", "simple")


def cells(words, preset, **options):
    options.setdefault("environ", {"PATH": "/bin:/usr/bin"})
    plan, notes = make_plan(["true", *words.split()], presets=[preset], **options)
    return {cell.name: cell for cell in plan.cells}, notes


def nccl(words, version="2.27.5"):
    return cells(words, "nccl-algorithms", nccl_version=version)[0]


def test_nccl_all_reduce():
    """ncclTopoTuneModel: Tree and Ring with three protocols; NVLS and CollNet with Simple."""
    found = nccl("-m torchcoll.allreduce")
    somewhere = ("nvls", "nvlstree", "collnetdirect", "collnetchain")
    everywhere = [f"{a}-{p}" for a in ("ring", "tree") for p in THREE]
    assert set(found) == {"auto", *everywhere, *(f"{a}-simple" for a in somewhere)}
    assert found["tree-ll128"].variables == {
        "NCCL_ALGO": "allreduce:tree",
        "NCCL_PROTO": "allreduce:ll128",
    }
    # Whatever the caller has set.
    assert found["auto"].variables == {"NCCL_ALGO": None, "NCCL_PROTO": None}
    assert found["auto"].arguments == ()


def test_nccl_before_2_24():
    """No function prefix, and nothing that would silently be Ring."""
    found = nccl("-m torchcoll.allreduce", "2.23.4")
    assert set(found) == {"auto", *(f"{a}-{p}" for a in ("ring", "tree") for p in THREE)}
    assert found["ring-ll"].variables == {"NCCL_ALGO": "ring", "NCCL_PROTO": "ll"}


@pytest.mark.parametrize("module", ["allgather", "reducescatter"])
def test_nccl_all_gather_and_reduce_scatter(module):
    rings = {f"ring-{p}" for p in THREE}
    others = {"nvls-simple", "pat-simple", "collnetdirect-simple"}
    assert set(nccl(f"-m torchcoll.{module}")) == {"auto", *rings, *others}


@pytest.mark.parametrize("module", ["broadcast", "reduce"])
def test_nccl_broadcast_and_reduce(module):
    assert set(nccl(f"-m torchcoll.{module}")) == {"auto", *(f"ring-{p}" for p in THREE)}


def test_a_suite_is_narrowed_to_what_is_forced():
    words = "-m torchcoll.suite --collectives allreduce,all_gather,alltoall"
    found, notes = cells(words, "nccl-algorithms", nccl_version="2.27.5")
    assert notes == ["left out, NCCL has one way for each: all_to_all"]
    assert found["tree-ll"].arguments == ("--collectives", "all_reduce")
    assert found["pat-simple"].arguments == ("--collectives", "all_gather")
    both = found["ring-ll"]
    assert both.arguments == found["auto"].arguments == ("--collectives", "all_reduce,all_gather")
    assert both.variables["NCCL_ALGO"] == "allreduce:ring;allgather:ring"


def test_the_nccl_of_this_python(monkeypatch):
    installed = {"nvidia-nccl-cu12": "2.23.4"}

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError
        return installed[name]

    monkeypatch.setattr(presets.metadata, "version", version)
    found, _ = cells("-m torchcoll.allreduce", "nccl-algorithms")
    assert "tree-ll" in found and "nvls-simple" not in found
    with pytest.raises(UsageError, match=error_text("^nccl-version", "none, and no NCCL")):
        cells("-m torchcoll.allreduce", "nccl-algorithms", axes=["library=/bin/sh"])
    installed["nvidia-nccl-cu13"] = "2.27.5"
    with pytest.raises(UsageError, match=error_text("^nccl-version", r"2\.23\.4 and 2\.27\.5", "")):
        cells("-m torchcoll.allreduce", "nccl-algorithms")


def test_oneccl_on_a_cpu():
    found, notes = cells("-m torchcoll.allreduce --device cpu", "oneccl-algorithms")
    # 'direct' needs MPI, 'topo' a GPU.
    names = {"rabenseifner", "nreduce", "ring", "double_tree", "recursive_doubling", "2d"}
    assert set(found) == {"auto", *names}
    assert found["ring"].variables == {"CCL_ALLREDUCE": "ring"}
    assert found["auto"].variables == {"CCL_ALLREDUCE": None}
    assert notes == ["direct is left out: it needs --env CCL_ATL_TRANSPORT=mpi and an mpirun"]
    found, notes = cells(
        "-m torchcoll.allgather --device cpu",
        "oneccl-algorithms",
        variables=["CCL_ATL_TRANSPORT=mpi"],
    )
    assert set(found) == {"auto", "direct", "naive", "flat", "multi_bcast", "ring"}
    assert found["flat"].variables["CCL_ALLGATHERV"] == "flat"
    assert notes == []


def test_oneccl_on_a_gpu():
    """There the thresholds choose, and a named algorithm only without SYCL kernels."""
    found, _ = cells("-m torchcoll.allreduce --backend xccl", "oneccl-algorithms")
    assert found["ring"].variables["CCL_ENABLE_SYCL_KERNELS"] == "0"
    assert "topo" in found
    assert found["auto"].variables["CCL_ENABLE_SYCL_KERNELS"] is None
    small = {k: v for k, v in found["sycl-small-0"].variables.items() if v is not None}
    assert small == {"CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD": "0"}
    assert {n for n in found if n.startswith("sycl")} == {
        "sycl-ll-0",
        "sycl-ll-64K",
        "sycl-small-0",
        "sycl-small-2M",
        "sycl-medium-0",
        "sycl-medium-64M",
    }


@pytest.mark.parametrize(
    ("words", "preset", "options", "line"),
    [
        (
            "-m torchcoll.allreduce",
            "nccl",
            {},
            error_text(
                "preset",
                "nccl",
                "one of nccl-algorithms, oneccl-algorithms",
            ),
        ),
        (
            "-m torchcoll.allreduce",
            "nccl-algorithms",
            {"nccl_version": "new"},
            error_text("nccl-version", "new", "a version such as 2.27.5"),
        ),
        (
            "-m torchcoll.alltoall",
            "nccl-algorithms",
            {},
            error_text(
                "collective",
                "all_to_all",
                "one of all_reduce, all_gather, reduce_scatter, broadcast, reduce. For others "
                "NCCL has nothing to choose from.",
            ),
        ),
        (
            "-m torchcoll.allreduce",
            "oneccl-algorithms",
            {},
            error_text(
                "preset oneccl-algorithms",
                "no --device in the command",
                "--device cpu or --device xpu. oneCCL chooses among other algorithms on each.",
            ),
        ),
    ],
)
def test_what_a_preset_cannot_do(words, preset, options, line):
    with pytest.raises(UsageError) as error:
        cells(words, preset, **options)
    assert str(error.value) == line
