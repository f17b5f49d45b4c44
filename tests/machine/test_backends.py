"""Choice of backend and device, and several backends in one run."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from error_form import error_line, error_tail, error_text
from torch.overrides import TorchFunctionMode

from torchcoll.core import backends
from torchcoll.core.backends import BACKENDS, choose_backends, is_nccl
from torchcoll.core.errors import TorchcollError, UnavailableError, UsageError
from torchcoll.machine import environment, provenance


def machine(kinds=(), built=("gloo",), capability=None, distributed=True):
    """A stand-in for torch with these accelerators and backends."""

    def is_backend_available(name):
        return name in built

    def present(kind):
        return SimpleNamespace(is_available=lambda: kind in kinds)

    group = SimpleNamespace(
        is_available=lambda: distributed,
        is_backend_available=is_backend_available,
        is_nccl_available=lambda: "nccl" in built,
        is_xccl_available=lambda: "xccl" in built,
        Backend=SimpleNamespace(backend_capability=capability or {}),
    )
    return SimpleNamespace(
        __version__="2.99", distributed=group, cuda=present("cuda"), xpu=present("xpu")
    )


def chosen(kinds=(), built=("gloo",), backend=None, device=None, **options):
    entries, kind = choose_backends(machine(kinds, built, **options), backend, device)
    return ",".join(entry.name for entry in entries), kind


@pytest.fixture
def bindings(monkeypatch):
    """Records the names of imported modules. All imports succeed except those in ``fails``."""

    class Imports(list):
        fails = MappingProxyType({})

    imports = Imports()

    def import_module(name):
        imports.append(name)
        if name in imports.fails:
            raise imports.fails[name]
        return SimpleNamespace(__version__="2.8.0")

    monkeypatch.setattr(backends.importlib, "import_module", import_module)
    return imports


IPEX, CCL = "intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"


@pytest.mark.parametrize(
    ("kinds", "built", "expected"),
    [
        ((), ("gloo",), ("gloo", "cpu")),
        (("cuda",), ("gloo", "nccl"), ("nccl", "cuda")),
        (("cuda", "xpu"), ("gloo", "nccl", "xccl"), ("nccl", "cuda")),
        ((), ("gloo", "nccl"), ("gloo", "cpu")),  # a CUDA build, no GPU
        (("cuda",), ("gloo",), ("gloo", "cpu")),  # a GPU, torch without NCCL
        (("xpu",), ("gloo", "xccl"), ("xccl", "xpu")),
        (("xpu",), ("gloo", "ccl"), ("ccl", "xpu")),
    ],
)
def test_what_the_machine_has(kinds, built, expected, bindings):
    assert chosen(kinds, built) == expected


@pytest.mark.parametrize(
    ("kinds", "backend", "device", "expected"),
    [
        (("cuda",), "gloo", None, ("gloo", "cpu")),
        (("cuda",), "gloo", "cuda", ("gloo", "cuda")),
        (("cuda",), None, "cpu", ("gloo", "cpu")),
        (("cuda", "xpu"), None, "xpu", ("xccl", "xpu")),
        (("cuda",), "gloo,nccl", None, ("gloo,nccl", "cuda")),
        (("xpu",), "xccl,ccl", None, ("xccl,ccl", "xpu")),
        (("xpu",), "gloo,ccl", None, ("gloo,ccl", "cpu")),
        ((), "ccl", None, ("ccl", "cpu")),
        (("xpu",), "ccl", "cpu", ("ccl", "cpu")),
        ((), "NCCL", None, ("nccl", "cuda")),  # opening the device says what is missing
        ((), "fake", None, ("fake", "cpu")),
        (("cuda",), "fake", "cuda", ("fake", "cuda")),
    ],
)
def test_what_is_asked_for(kinds, backend, device, expected, bindings):
    assert chosen(kinds, ("gloo", "nccl", "xccl", "ccl"), backend, device) == expected


def test_any_name_that_torch_accepts_is_passed_on():
    can = {"mpi": ["cpu", "cuda"], "nccl-legacy": ["cuda"], "odd": ["hpu", "xpu"]}
    built = ("gloo", "mpi", "nccl-legacy", "odd", "plug_in")
    assert chosen((), built, "mpi", capability=can) == ("mpi", "cpu")
    assert chosen(("cuda",), built, "mpi", "cuda", capability=can) == ("mpi", "cuda")
    assert chosen((), built, "plug_in", capability=can) == ("plug_in", "cpu")
    assert chosen(("xpu",), built, "odd", capability=can) == ("odd", "xpu")
    arguments = ("cuda",), ("nccl", "nccl-legacy"), "nccl,nccl-legacy"
    assert chosen(*arguments, capability=can) == ("nccl,nccl-legacy", "cuda")
    (entry,), _ = choose_backends(machine(("cuda",), built, can), "nccl-legacy", None)
    assert (entry.eager, entry.library, entry.devices) == (True, "libnccl", ("cuda",))


def test_nccl_by_all_its_names():
    assert all(map(is_nccl, ("nccl", "nccl2", "nccl-lazy", "nccl-legacy")))
    assert not any(map(is_nccl, ("xccl", "ccl", "gloo", "ncclx")))


@pytest.mark.parametrize(
    ("kinds", "backend", "device", "message"),
    [
        ((), "ncl", None, error_text("backend", "ncl", "one that this torch has: gloo, fake")),
        ((), "cpu:gloo", None, error_text("backend", "cpu:gloo", "one that this torch has: ")),
        ((), "undefined", None, error_text("backend", "undefined", "one that this torch has: ")),
        ((), "", None, error_text("backend", "an empty text", "one that this torch has: ")),
        (
            (),
            "nccl",
            None,
            error_text(
                "backend",
                "nccl",
                "one that torch 2.99 was built with. It needs a CUDA (or ROCm) build of torch: "
                "see pytorch.org.",
            ),
        ),
        (
            (),
            "xccl",
            None,
            error_text(
                "backend",
                "xccl",
                "one that torch 2.99 was built with. It needs an XPU build of torch 2.8 or "
                "newer: see pytorch.org.",
            ),
        ),
        (
            (),
            None,
            "cuda",
            error_text("device", "cuda", "one that machine and torch have. torchcoll"),
        ),
        ((), "gloo", "xpu", error_text("device", "xpu", "cpu or cuda for gloo")),
        ((), "gloo", "gpu", error_text("device", "gpu", "cpu or cuda for gloo")),
    ],
)
def test_what_is_not_there(kinds, backend, device, message):
    with pytest.raises(UnavailableError) as caught:
        chosen(kinds, ("gloo", "undefined", "cpu:gloo"), backend, device)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("backend", "device", "error", "message"),
    [
        (
            "nccl,xccl",
            None,
            UnavailableError,
            error_text("device", "nccl,xccl", "backends with a device in common"),
        ),
        ("gloo,nccl", "cpu", UnavailableError, error_text("device", "cpu", "cuda for gloo,nccl")),
        ("gloo,gloo", None, UsageError, error_text("backend", "gloo,gloo", "each backend once")),
        (
            "gloo,fake",
            None,
            UsageError,
            error_text("backend", "gloo,fake", "fake alone. It communicates with no other rank."),
        ),
        (
            "nccl",
            "cuda:1",
            UsageError,
            error_text("device", "cuda:1", "cpu, cuda or xpu. Rank l of a host takes device l."),
        ),
    ],
)
def test_what_does_not_go_together(backend, device, error, message):
    with pytest.raises(error) as caught:
        chosen(("cuda", "xpu"), ("gloo", "nccl", "xccl"), backend, device)
    assert str(caught.value) == message


def test_torch_without_distributed():
    with pytest.raises(UnavailableError) as caught:
        chosen(distributed=False)
    assert str(caught.value) == error_text(
        "torch", "2.99 without torch.distributed", "a build that has it"
    )


def test_ccl_on_the_cpu_imports_the_bindings_alone(bindings):
    chosen((), ("gloo", "ccl"), "ccl")
    assert bindings == [CCL]


def test_ccl_with_an_xpu_imports_ipex_first(bindings):
    chosen(("xpu",), ("gloo", "ccl"), "ccl")
    assert bindings == [IPEX, CCL]


@pytest.mark.parametrize("backend", ["gloo", "nccl", "xccl", "fake", "gloo,xccl"])
def test_nothing_else_imports_them(backend, bindings):
    with contextlib.suppress(TorchcollError):  # gloo and xccl have no device in common
        chosen(("xpu", "cuda"), ("gloo", "nccl", "xccl"), backend)
    assert bindings == []


MISSING = (
    "Install oneccl_bindings_for_pytorch of the same minor version as torch (retired after 2.8), "
    "or build it for this torch: see docs/measure.md."
)


def test_bindings_without_their_library_give_the_doctors_error(bindings):
    text = "libccl.so.1: cannot open shared object file: No such file or directory"
    bindings.fails = {CCL: ImportError(text)}
    with pytest.raises(UnavailableError) as caught:
        chosen((), ("gloo", "ccl"), "ccl")
    assert str(caught.value) == error_text(
        "backend ccl",
        f"ImportError: {text}",
        f"{CCL} for torch 2.99. Source oneCCL's setvars.sh, so that the loader finds libccl.so.1.",
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError(f"No module named '{CCL}'"), f"No module named '{CCL}'"),
        (OSError("undefined symbol: _ZN3c10\n  in libccl"), "undefined symbol: _ZN3c10 in libccl"),
    ],
)
def test_bindings_that_are_not_installed_or_of_another_torch(bindings, error, said):
    bindings.fails = {CCL: error}
    with pytest.raises(UnavailableError) as caught:
        chosen((), ("gloo",), "ccl")
    assert str(caught.value) == error_text(
        "backend ccl", f"{type(error).__name__}: {said}", f"{CCL} for torch 2.99. {MISSING}"
    )


def test_ipex_of_another_torch_dies_with_an_attribute_error(bindings):
    """IPEX prints this on stdout and then calls os.exit, which does not exist."""
    bindings.fails = {IPEX: AttributeError("module 'os' has no attribute 'exit'")}
    with pytest.raises(UnavailableError) as caught:
        chosen(("xpu",), ("gloo", "ccl"), "ccl")
    assert str(caught.value) == error_text(
        IPEX,
        "AttributeError: module 'os' has no attribute 'exit'",
        f"the version for torch 2.99, which ccl on xpu needs. {MISSING}",
    )

    assert CCL not in bindings


def test_bindings_that_do_not_register_ccl(bindings):
    with pytest.raises(
        UnavailableError, match=error_text("^backend", error_tail("ccl", r"one that torch 2\.99"))
    ):
        chosen((), ("gloo",), "ccl")


@pytest.mark.parametrize(
    ("backend", "hip", "expected"),
    [
        ("nccl", None, "NCCL 2.28.9"),
        ("nccl", "6.2", "RCCL 2.28.9"),
        ("nccl-legacy", None, "NCCL 2.28.9"),
        ("xccl", None, "oneCCL of torch 2.99"),
        ("ccl", None, "oneCCL bindings 2.8.0"),
        ("gloo", None, "gloo of torch 2.99"),
        ("mpi", None, "mpi of torch 2.99"),
    ],
)
def test_the_library_that_communicates(backend, hip, expected, bindings):
    fake = SimpleNamespace(
        __version__="2.99",
        version=SimpleNamespace(hip=hip),
        cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 28, 9))),
    )
    assert environment.library_version(fake, backends.backend_of(backend)) == expected


@pytest.mark.parametrize(
    ("backend", "expected"),
    [("ccl", "oneCCL 2021.14.0, bindings 2.8.0"), ("xccl", "oneCCL 2021.14.0 of torch 2.99")],
)
def test_the_version_of_oneccl(backend, expected, bindings, monkeypatch):
    monkeypatch.setattr(provenance, "oneccl_version", lambda: "2021.14.0")
    fake = SimpleNamespace(__version__="2.99")
    assert environment.library_version(fake, BACKENDS[backend]) == expected


def test_the_implementation_that_ran():
    class ProcessGroupNCCL2:
        pass

    def group(backend):
        return SimpleNamespace(_get_backend=lambda device: backend)

    device = SimpleNamespace(device=lambda name: name)
    assert backends.implementation(device, group(ProcessGroupNCCL2()), "cuda:0") == (
        "ProcessGroupNCCL2"
    )
    wrapped = SimpleNamespace(wrapped_pg=ProcessGroupNCCL2())  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    assert backends.implementation(device, group(wrapped), "cuda:0") == "ProcessGroupNCCL2"

    class Mine:
        def _get_backend(self, device):
            raise RuntimeError("Backends of type CUSTOM")

    assert backends.implementation(device, Mine(), "cuda:0") == "Mine"


@pytest.mark.parametrize(
    ("config", "kind", "kinds", "expected"),
    [
        ("cpu:gloo,cuda:nccl", None, (), "gloo"),
        ("cpu:gloo,cuda:nccl", None, ("cuda",), "nccl"),
        ("cpu:gloo,cuda:nccl", "cpu", ("cuda",), "gloo"),
        ("cuda:nccl", "cpu", ("cuda",), None),
        ("cuda:nccl", None, (), None),
        ("cpu:echo", None, ("cuda",), "echo"),  # whose class may call itself gloo
    ],
)
def test_the_backend_of_a_group_that_is_there(config, kind, kinds, expected):
    fake = machine(kinds)
    fake.distributed.get_backend_config = lambda: config
    assert backends.current_backend(fake, kind) == expected


def echo(rank):
    """Register gloo a second time under another name."""
    dist.Backend.register_backend(
        "echo",
        lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout),
        devices=["cpu"],
    )


def test_two_backends_in_one_run(launch):
    options = "--backend gloo,echo --sizes 64,1K,4K -n 5 --cold 2"
    measured = launch("all_reduce", options, 2, setup=echo).ended(0)
    run = measured.run
    order = [(r.case.backend, r.case.size_bytes) for r in run.results]
    assert order == [  # A B B A
        ("gloo", 64),
        ("echo", 64),
        ("echo", 1024),
        ("gloo", 1024),
        ("gloo", 4096),
        ("echo", 4096),
    ]
    for result in run.results:
        assert result.status == "ok"
        assert result.verification.checked and not result.verification.wrong
    ordinals: dict[str, list[int]] = {"gloo": [], "echo": []}
    for result in run.results:
        ordinals[result.case.backend].append(result.ordinal)
    for backend, seen in ordinals.items():
        backend_results = [r for r in run.results if r.case.backend == backend]
        # One to verify.
        calls = [len(r.cold_ns[0]) + len(r.ramp_up_ns[0]) + 5 + 1 for r in backend_results]
        assert seen == [0, calls[0], calls[0] + calls[1]]
    assert run.header["spec"]["backend"] == "gloo,echo"
    assert set(run.header["environment"]["libraries"]) == {"gloo", "echo"}
    assert {"init_process_group", "new_group_echo"} <= set(run.phases)
    assert set(run.members[1]["implementation"]) == {"gloo", "echo"}
    rows = [
        line.split()[:2]
        for line in measured.stdout().splitlines()
        if "correct" in line and "cases" not in line
    ]
    sizes = {64: "64", 1024: "1K", 4096: "4K"}
    assert rows == [[backend, sizes[size_bytes]] for backend, size_bytes in order]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--backend gloo,fake", 2, error_text("backend", "gloo,fake", "fake alone. ")),
        ("--rehearse", 4, error_text("rehearse", "gloo on cpu", "nccl on cuda")),
        ("--backend echo --init eager", 4, error_text("init", "eager with echo", "lazy. ")),
    ],
)
def test_refusals_are_one_line(launch, options, code, message):
    measured = launch("all_reduce", f"{options} --sizes 64 -n 1", 2, output=False, setup=echo)
    measured.ended(code)
    (line,) = measured.errors()
    assert line.startswith(f"torchcoll: error: {message}")
    assert "Traceback" not in measured.stderr() + measured.stderr(1)


def test_eager_on_gloo(launch):
    """gloo connects in init_process_group in any case."""
    run = launch("all_reduce", "--init eager --sizes 64 -n 2", 2).ended(0).run
    assert run.results[0].status == "ok"
    assert run.header["spec"]["init"] == "eager"
    assert set(run.phases) >= {"init_process_group", "communicator"}


def test_a_group_of_another_name_is_found(jobs, tmp_path):
    """Inside the user's own process group, whose backend calls itself gloo."""

    def target():
        import torchcoll

        echo(0)
        dist.init_process_group("echo")
        run = torchcoll.run(torchcoll.Spec(sizes=(64,), iters=1))
        second_run = torchcoll.run(torchcoll.Spec(sizes=(64,), iters=1, backend="gloo"))
        if run:
            names = [r.results[0].case.backend for r in (run, second_run)]
            ordinals = [r.results[0].ordinal for r in (run, second_run)]
            Path("seen.json").write_text(json.dumps([names, ordinals]))
        dist.destroy_process_group()

    job = jobs(tmp_path, target, 2)
    assert job.codes() == [0, 0], job.text(0) + job.text(1)
    assert json.loads((tmp_path / "seen.json").read_text()) == [["echo", "gloo"], [None, 0]]


# XPU without any: the real path over gloo.
BINDINGS = """
import torch.distributed as dist

__version__ = "2.8.0+standin"
dist.Backend.register_backend(
    "ccl",
    lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout),
    devices=["xpu", "cpu"],
)
"""


class OnCpu(TorchFunctionMode):
    """Creates on the CPU what is requested on xpu."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("xpu"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class StandInEvent:
    """An event with the host's time: it tests the order of calls, not the times of an XPU."""

    made = 0

    def __init__(self, device, enable_timing):
        import time

        assert device.startswith("xpu:") and enable_timing
        type(self).made += 1
        self._now = time.perf_counter_ns

    def record(self):
        self.at = self._now()

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e6


def xpu_machine(folder):
    """For a child: two XPUs, and Intel's modules in ``folder``."""
    (folder / f"{CCL}.py").write_text(BINDINGS)
    (folder / f"{IPEX}.py").write_text("__version__ = '2.8.0'\n")

    def setup(rank):
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        properties = SimpleNamespace(name="Stand-in Max 1550", uuid=f"uuid-{rank}")
        vars(torch.xpu).update(
            is_available=lambda: True,
            device_count=lambda: 2,
            set_device=lambda index: None,
            synchronize=lambda: None,
            empty_cache=lambda: None,
            mem_get_info=lambda index: (1 << 30, 1 << 31),
            get_device_properties=lambda index: properties,
        )
        torch.Event = StandInEvent
        OnCpu().__enter__()

    return setup


def test_the_xpu_branch_runs(launch, tmp_path):
    """ccl on xpu by Intel's bindings: the whole path, over gloo."""
    options = "--backend ccl --sizes 64,4K -n 25"
    measured = launch("all_reduce", options, 2, setup=xpu_machine(tmp_path)).ended(0)
    run = measured.run
    assert run.header["spec"]["device"] == "xpu"
    assert run.header["environment"]["libraries"] == {"ccl": "oneCCL bindings 2.8.0+standin"}
    assert [m["device"] for m in run.members] == ["xpu:0", "xpu:1"]
    assert run.members[0]["device_name"] == "Stand-in Max 1550"
    assert "cost_event" in run.phases
    for result in run.results:
        assert (result.status, result.case.mode) == ("ok", "back-to-back")
        assert result.verification.wrong == 0
        assert result.batches == [25]
        assert result.calls_per_sample == 10
        assert [len(ns) for ns in result.time_ns["device"]] == [3, 3]  # 10, 10 and 5 calls
        assert [len(ns) for ns in result.time_ns["issue"]] == [25, 25]
        assert result.warnings[-1] == (
            "each sample is the mean of up to 10 calls: events cost too much here"
        )


def test_two_ranks_on_one_xpu(launch, tmp_path):
    """The device is identified by its UUID, as torch has no PCI id of XPUs."""
    setup = xpu_machine(tmp_path)

    def share_device(rank):
        setup(0)

    options = "--backend ccl --sizes 64 -n 1"
    (line,) = launch("all_reduce", options, 2, output=False, setup=share_device).ended(4).errors()
    assert line.startswith(error_line("device", "ranks 0 and 1 on uuid-0 of "))
    assert line.endswith("or rehearse with several on one device: --rehearse.")
