"""Devices and their clocks, without any: recording stand-ins for torch.cuda, torch.xpu and torch.

The order of calls and the nanoseconds are exact. What this cannot show is in tests/test_cuda.py.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from error_form import error_tail, error_text, expecting
from fake_machine import Graph, Machine
from made_runs import case
from ranks import busy

from torchcoll.bench.buffers import allocate_in_pool, deregister, register
from torchcoll.bench.communicators import Communicator, Communicators
from torchcoll.bench.options import parse
from torchcoll.bench.session import Rank
from torchcoll.bench.watchdog import Progress
from torchcoll.core.backends import BACKENDS
from torchcoll.core.case import size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import TorchcollError, UnavailableError
from torchcoll.core.spec import Spec
from torchcoll.machine import devices as devices
from torchcoll.machine.devices import Cpu, cost_of_measuring, open_device, refuse_shared
from torchcoll.machine.launcher import Launch
from torchcoll.questions.pairs.pairs_run import parse_pairs


def launched(local_rank=0, local_ranks=1):
    return Launch("torchrun", local_rank, local_ranks, local_rank, local_ranks)


@pytest.fixture(autouse=True)
def no_masks(monkeypatch):
    for name in (*devices._MASKS, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_a_rank_takes_the_device_of_its_number():
    machine = Machine(count=4)
    device = open_device(machine.torch, "cuda", launched(2, 4), shared=False)
    assert (device.kind, device.index, device.name) == ("cuda", 2, "cuda:2")
    assert machine.log == ["set_device 2", "zeros on cuda:2", "synchronize"]
    assert device.free_bytes() == 72


HOST = os.uname().nodename


@pytest.mark.parametrize(
    ("count", "local", "ranks", "recorded"),
    [
        (1, 1, 2, error_tail("2 with 1 cuda device", "at most 1")),
        (2, 3, 4, error_tail("4 with 2 cuda devices", "at most 2")),
        # A launcher that gives no size.
        (2, 3, 1, error_tail("4 with 2 cuda devices", "at most 2")),
    ],
)
def test_more_ranks_than_devices(count, local, ranks, recorded):
    with pytest.raises(UnavailableError) as caught:
        open_device(Machine(count=count).torch, "cuda", launched(local, ranks), shared=False)
    assert str(caught.value) == error_text(
        f"ranks on {HOST}",
        f"{recorded}. Start fewer ranks, or rehearse with several on one device: --rehearse.",
    )

    assert caught.value.exit_code == 4


def test_rehearsal_shares_the_devices():
    torch_ = Machine(count=2).torch
    opened = [open_device(torch_, "cuda", launched(r, 4), shared=True) for r in range(4)]
    assert [device.index for device in opened] == [0, 1, 0, 1]


@pytest.mark.parametrize("mask", devices._MASKS)
def test_launchers_that_show_each_rank_its_own_device(mask, monkeypatch):
    monkeypatch.setenv(mask, "3")
    assert open_device(Machine(count=1).torch, "cuda", launched(3, 4), shared=False).index == 0
    with pytest.raises(UnavailableError):  # two are shown to four ranks
        open_device(Machine(count=2).torch, "cuda", launched(3, 4), shared=False)


def test_no_device():
    with pytest.raises(UnavailableError) as caught:
        open_device(Machine("xpu", count=0).torch, "xpu", launched(), shared=False)
    assert str(caught.value) == error_text(
        "device xpu",
        "none that torch 2.99 can use",
        "at least one. torchcoll doctor says why; --device cpu measures on the CPU.",
    )


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("CUDA error: all CUDA-capable devices are busy", "torchcoll doctor says why."),
        (
            "CUDA error: all CUDA-capable devices are busy or unavailable",
            "Another process has it, or it is in exclusive mode: see nvidia-smi -q -d COMPUTE,"
            "PIDS.",
        ),
        ("CUDA error: out of memory", "Other processes have its memory: nvidia-smi names them."),
        (
            "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            "Update the driver, or install a torch for an older CUDA.",
        ),
    ],
)
def test_what_to_do_where_a_device_refuses(text, action):
    def refuse(index):
        raise RuntimeError(f"{text}\nCompile with ...")

    with pytest.raises(UnavailableError) as caught:
        open_device(Machine(set_device=refuse).torch, "cuda", launched(), shared=False)
    expected = expecting("one that this process can use")
    assert str(caught.value) == error_text("device cuda:0", f"{text}, {expected}. {action}")


def test_a_driver_older_than_the_runtime():
    """torch then has no device, and tells why when CUDA is initialised (torch/cuda/__init__.py)."""

    def refuse():
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 11040). Please update "
            "your GPU driver by downloading and installing a new version from the URL: ..."
        )

    with pytest.raises(UnavailableError) as caught:
        open_device(Machine(count=0, init=refuse).torch, "cuda", launched(), shared=False)
    assert str(caught.value) == error_text(
        "device cuda",
        "none that torch 2.99 can use (The NVIDIA driver on your system is too old "
        "(found version 11040))",
        "at least one. Update the driver, or install a torch that was built for an "
        "older CUDA; --device cpu measures on the CPU.",
    )


def test_slices_of_one_gpu():
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    device = Machine(get_device_name=lambda index: name).open()
    with pytest.raises(UnavailableError) as caught:
        refuse_shared([("a", "0000:01:00.0")] * 2, device.described)
    assert str(caught.value) == error_text(
        "device",
        "ranks 0 and 1 on MIG slices of 0000:01:00.0 of a",
        "a device for each rank. NCCL connects no slices of one GPU: one rank alone, "
        "or GPUs without MIG.",
    )


def test_free_memory_that_is_not_known():
    def refuse(index):
        raise RuntimeError("doesn't support querying the available free memory")

    assert Machine("xpu", mem_get_info=refuse).open().free_bytes() is None
    machine = Machine("xpu")
    del machine.module.mem_get_info
    assert machine.open().free_bytes() is None


def test_two_ranks_on_one_device_unasked():
    refuse_shared([("a", "0000:01:00.0"), ("a", "0000:02:00.0"), ("b", "0000:01:00.0")])
    refuse_shared([("a", None), ("a", None)])  # nothing is known, nothing is said
    with pytest.raises(UnavailableError) as caught:
        refuse_shared([("a", "0000:01:00.0"), ("b", "0000:01:00.0"), ("a", "0000:01:00.0")])
    assert str(caught.value) == error_text(
        "device",
        "ranks 0 and 2 on 0000:01:00.0 of a",
        "a device for each rank. Start fewer ranks, or rehearse with several on one "
        "device: --rehearse.",
    )


def test_cost_of_measuring():
    """Each reading of this clock takes 10 ns, which is the cost of an event here."""
    device, aligned = Machine().open(), []
    costs = cost_of_measuring(device, lambda: aligned.append(time.sleep(0.001)))
    assert list(costs) == ["cost_timed_loop", "cost_barrier", "cost_event"]
    assert len(aligned) == 50 and costs["cost_barrier"] > 1_000_000 > costs["cost_timed_loop"] > 0
    assert costs["cost_event"] == 10
    assert list(cost_of_measuring(Cpu(), None)) == ["cost_timed_loop"]


@pytest.mark.parametrize(
    ("calls", "each", "device_ns"),
    [
        (10, [10], [100_000]),
        (20, [10, 10], [100_000, 100_000]),
        (25, [10, 10, 5], [100_000, 100_000, 100_000]),
        (5, [5], [100_000]),
    ],
)
def test_on_xpu_an_event_stands_at_every_tenth_call(calls, each, device_ns):
    """An XPU event costs 0.1 ms, so a sample is the mean of ten calls."""
    machine = Machine("xpu", ms=[9.0, *[0.1] * calls])
    device = machine.open()
    assert device.calls_per_sample == 10
    clocks = device.clocks("back-to-back")
    device.stream(machine.call, calls, clocks, 1, [])
    expected = [*["event on xpu:0"] * (len(each) + 2), "record", "call", "record"]
    for count in each:
        expected += [*["stamp", "call", "stamp"] * count, "record"]
    assert machine.log == [*expected, "synchronize"]
    assert clocks["device"] == device_ns
    assert len(clocks["issue"]) == calls


def test_on_xpu_isolated_and_cold_calls_are_synchronised_before_both_stamps():
    machine = Machine("xpu")
    device = machine.open()
    device.synchronized(machine.call, lambda: None, 1, device.clocks("synchronized"))
    order = [entry for entry in machine.log if entry != "call"]
    assert order == ["synchronize", "stamp", "stamp", "synchronize", "stamp"]


def test_a_graph_is_captured_once_and_replayed():
    machine = Machine()
    device = machine.open()
    assert device.captures
    replay = device.graph(machine.call)
    assert machine.log == ["synchronize", "capture thread_local", "call", "captured"]
    machine.log.clear()
    clocks = device.clocks("graph")
    assert list(clocks) == ["device", "issue"]
    device.stream(replay, 2, clocks, 1, [])
    assert machine.log.count("replay") == 1 + 2 and "call" not in machine.log


def test_a_graph_on_xpu():
    """torch.xpu.graph has no capture_error_mode (torch/xpu/graphs.py of torch 2.13)."""
    machine = Machine("xpu")

    @contextlib.contextmanager
    def capture(graph):
        machine.note("capture")
        yield
        machine.note("captured")

    machine.module.XPUGraph, machine.module.graph = lambda: Graph(machine), capture
    device = machine.open()
    assert device.captures
    replay = device.graph(machine.call)
    assert machine.log == ["synchronize", "capture", "call", "captured"]
    replay()
    assert machine.log[-1] == "replay"


class Dist:
    """torch.distributed that writes down what it is asked. ``lazy``: whether NCCL's options have
    lazy_init, as in torch 2.15; there connecting does nothing while it is set.
    """

    def __init__(self, lazy=False, bound=None, connected=True, config=None):
        self.log = []
        self.default = self.group("default", bound)
        self.distributed_c10d = SimpleNamespace(_get_default_group=lambda: self.default)

        class Options:
            def __init__(self):
                if lazy:
                    self.lazy_init = False
                if config is not None:
                    self.config = SimpleNamespace(**config)

        # The names of torch/csrc/distributed/c10d/init.cpp since torch 2.10.
        self.ProcessGroupNCCL = SimpleNamespace(
            Options=Options, NCCL_CTA_POLICY_DEFAULT=0, NCCL_CTA_POLICY_ZERO=2
        )

    def group(self, name, bound=None):
        def connect(device):
            recorded = getattr(backend.options, "lazy_init", None)
            self.log.append(f"connect {name} {device} lazy={recorded}")

        backend = SimpleNamespace(eager_connect_single_device=connect, options=None)
        return SimpleNamespace(
            name=name, bound_device_id=bound, backend=backend, _get_backend=lambda device: backend
        )

    def init_process_group(self, name, store, rank, world_size, timeout, pg_options):
        recorded = getattr(pg_options, "lazy_init", None)
        self.log.append(f"init {name} lazy={recorded} LOCAL_RANK={os.environ.get('LOCAL_RANK')}")
        self.default.backend.options = pg_options

    def new_group(self, ranks, timeout, backend, pg_options):
        recorded = getattr(pg_options, "lazy_init", None)
        self.log.append(f"new_group {backend} {ranks} lazy={recorded}")
        assert timeout.total_seconds() == 630
        group = self.group(f"{backend}-{ranks}")
        group.backend.options = pg_options
        return group

    def destroy_process_group(self, group=None):
        self.log.append(f"destroy {group.name if group else 'default'}")

    def barrier(self, group=None, device_ids=None):
        self.log.append(f"barrier {group and group.name} {device_ids}")

    def get_backend_config(self):
        return "cpu:gloo,cuda:nccl"

    def PrefixStore(self, prefix, store):
        return store


def communicators(dist, backends="nccl", subgroups=((0, 1),), kind="cuda", existing=False, **spec):
    device = Cpu() if kind == "cpu" else Machine(kind, count=4).open()
    if kind != "cpu":
        device.index, device.name = 2, f"{kind}:2"
        device.synchronize = lambda: dist.log.append("synchronize")
    torch = SimpleNamespace(
        __version__="2.99", device=lambda name: name, distributed=dist, cuda=None, xpu=None
    )
    progress = Progress()
    local = Rank(torch, 0, 2, SimpleNamespace(store=None), progress, device, None)
    entries = tuple(BACKENDS[name] for name in backends.split(","))

    @contextlib.contextmanager
    def phase(name):
        dist.log.append(f"[{name}")
        yield
        dist.log.append(f"{name}]")

    progress.phase = phase
    groups = Communicators(local, Spec(**spec), subgroups, entries, existing)
    groups.open()
    return groups


def test_the_variable_of_the_launcher_is_put_back(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "7")
    dist = Dist()
    communicators(dist)
    assert "init nccl lazy=None LOCAL_RANK=2" in dist.log
    assert os.environ["LOCAL_RANK"] == "7"


@pytest.mark.parametrize(("lazy", "recorded"), [(False, None), (True, False)])
def test_eager_connects_in_a_phase_of_its_own(lazy, recorded):
    dist = Dist(lazy)
    communicators(dist, init="eager")
    assert dist.log[2:] == [
        "init_process_group]",
        "[communicator",
        f"connect default cuda:2 lazy={recorded}",  # while it is lazy, torch 2.15 does nothing
        "communicator]",
    ]


def test_eager_connects_sub_groups_too():
    dist = Dist(lazy=True)
    communicators(dist, subgroups=((0,), (1,)), init="eager")
    assert [line for line in dist.log if "connect" in line or "new" in line] == [
        "connect default cuda:2 lazy=False",
        "new_group nccl [0] lazy=True",
        "new_group nccl [1] lazy=True",
        "connect nccl-[0] cuda:2 lazy=False",
    ]


def test_registered_buffers_need_a_connection():
    dist = Dist()
    communicators(dist, buffers="registered")
    assert "connect default cuda:2 lazy=None" in dist.log
    dist = Dist()  # its rows are unsupported; the run is not
    communicators(dist, "gloo", kind="cpu", buffers="registered")
    assert not [line for line in dist.log if line.startswith("connect")]


def test_a_fresh_group_is_connected_as_asked_and_destroyed():
    dist = Dist(lazy=True)
    groups = communicators(dist, init="eager")
    del dist.log[:]
    with groups.of("nccl", ((0, 1),)) as fresh:
        assert (fresh.how, fresh.calls, fresh.ranks) == ("new_group", 0, (0, 1))
        assert fresh.connect_ns > 0
        dist.log.append("calls")
    assert dist.log == [
        "new_group nccl None lazy=True",
        "connect nccl-None cuda:2 lazy=False",
        "calls",
        "destroy nccl-None",
    ]


@pytest.mark.parametrize(
    ("lazy", "bound", "how"),
    [
        (False, "cuda:2", "split"),  # the user's group has a device_id: torch splits it
        (True, "cuda:2", "new_group"),  # told to be lazy: not split
        (False, None, "new_group"),
    ],
)
def test_a_split_is_no_cold_start_and_is_called_so(lazy, bound, how):
    groups = communicators(Dist(lazy, bound), existing=True)
    with groups.of("nccl", ((0, 1),)) as fresh:
        assert fresh.how == how


# Fields of NCCLConfig that torch has not set: NCCL_CONFIG_UNDEF_INT, and a text.
CONFIG = {"cta_policy": -(1 << 31), "split_share": -(1 << 31), "comm_name": None}


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ("cta_policy=zero", {"cta_policy": 2}),
        ("cta_policy=ZERO, comm_name=Ring7", {"cta_policy": 2, "comm_name": "Ring7"}),
        ("cta_policy=1", {"cta_policy": 1}),
    ],
)
def test_communicators_get_the_fields_of_the_configuration(asked, fields):
    """The default one and those that are made for a case."""
    dist = Dist(config=CONFIG)
    groups = communicators(dist, communicator_config=asked)
    with groups.of("nccl", ((0, 1),)) as fresh:
        for group in (dist.default, fresh.group):
            assert vars(group.backend.options.config) == CONFIG | fields
        assert fresh.how == "new_group"
    assert "connect default cuda:2 lazy=None" not in dist.log


@pytest.mark.parametrize("lazy", [False, True])
def test_what_splits_off_a_communicator_shares_with_it(lazy):
    """torch splits off a default group that is bound to a device, once that has connected."""
    dist = Dist(lazy=lazy, config=CONFIG)
    groups = communicators(dist, communicator_config="split_share=1")
    assert dist.default.bound_device_id == "cuda:2"
    assert f"connect default cuda:2 lazy={False if lazy else None}" in dist.log
    with groups.of("nccl", ((0, 1),)) as fresh:
        assert fresh.how == "split"
        assert fresh.group.backend.options.config.split_share == 1
        assert not getattr(fresh.group.backend.options, "lazy_init", False)


@pytest.mark.parametrize(
    ("dist", "options", "text"),
    [
        (
            Dist(config={"max_ctas": 1, "min_ctas": 1}),
            {"communicator_config": "cta_policy=zero"},
            expecting("one of max_ctas, min_ctas"),
        ),
        (Dist(), {"communicator_config": "cta_policy=zero"}, expecting("no fields")),
        (
            Dist(config=CONFIG),
            {"communicator_config": "cta_policy=fast"},
            error_text("communicator-config", "cta_policy=fast", "default, zero, a whole number"),
        ),
        (
            Dist(config=CONFIG),
            {"communicator_config": "split_share=1", "backends": "gloo", "kind": "cpu"},
            error_text(
                "communicator-config", "split_share=1 with gloo", "a backend that has one: nccl"
            ),
        ),
        (
            Dist(config=CONFIG),
            {"communicator_config": "split_share=1", "existing": True},
            error_text(
                "communicator-config",
                "split_share=1 in a group that was there",
                "a run that makes its own default group. Set the fields in the pg_options of your "
                "init_process_group.",
            ),
        ),
    ],
)
def test_a_configuration_that_cannot_be_had(dist, options, text):
    with pytest.raises(TorchcollError) as caught:
        communicators(dist, **options)
    assert text in str(caught.value)
    assert dist.log == []


def test_barrier_gets_the_device_on_nccl_only():
    dist = Dist()
    groups = communicators(dist, "xccl", kind="xpu")
    del dist.log[:]
    groups.align("xccl")()
    assert dist.log == ["barrier None None", "synchronize"]
    dist = Dist()
    groups = communicators(dist, "gloo", kind="cpu")
    del dist.log[:]
    groups.align("gloo")()
    assert dist.log == ["barrier None None"]


def test_a_group_that_was_found_has_had_calls():
    groups = communicators(Dist(), existing=True)
    with groups.of("nccl") as shared:
        assert isinstance(shared, Communicator)
        assert (shared.calls, shared.group, shared.how) == (None, None, "shared")
    groups.close()


def sizing(buffers):
    gpu = {"mode": "back-to-back", "backend": "nccl", "device": "cuda"}
    return size_case(case(size_bytes=64, buffers=buffers, **gpu), 2)


class Pools:
    """Stand-ins for torch.cuda's pools and a backend that registers them, with tensors on the
    CPU.
    """

    def __init__(self, **lacks):
        self.log = []

        @contextlib.contextmanager
        def use(pool):
            self.log.append(f"use {pool}")
            yield
            self.log.append(f"used {pool}")

        def register(pool, **options):
            self.log.append(f"register {pool} {options}")

        self.backend = SimpleNamespace(
            mem_allocator="allocator",
            register_mem_pool=register,
            deregister_mem_pool=lambda pool: self.log.append(f"deregister {pool}"),
        )
        cuda = SimpleNamespace(MemPool=lambda allocator: f"pool of {allocator}", use_mem_pool=use)
        self.torch = SimpleNamespace(
            __version__="2.99",
            cuda=cuda,
            device=torch.device,
            empty=torch.empty,
            float32=torch.float32,
            uint8=torch.uint8,
        )
        self.group = SimpleNamespace(_get_backend=lambda device: self.backend)

    def allocate(self, buffers):
        groups = allocate_in_pool(self.torch, sizing(buffers), 0, "cpu", self.group)
        register(self.torch, groups, buffers, "cpu", self.group)
        return groups


@pytest.mark.parametrize(("asked", "options"), [("registered", {}), ("symmetric", {"symm": True})])
def test_buffers_come_from_a_pool_of_the_communicator(asked, options):
    pools = Pools()
    buffers = pools.allocate(asked)
    assert buffers.recv.numel() == 16
    assert buffers.pool == "pool of allocator"
    deregister(pools.torch, buffers, "cpu", pools.group)
    assert pools.log == [
        "use pool of allocator",
        "used pool of allocator",
        f"register pool of allocator {options}",
        "deregister pool of allocator",
    ]


def test_torch_that_cannot_register():
    lacking = []
    for attribute in ("mem_allocator", "register_mem_pool"):
        pools = Pools()
        delattr(pools.backend, attribute)  # torch 2.6 has no mem_allocator
        lacking.append(pools)
    old = Pools()
    del old.torch.cuda.MemPool
    for pools in (*lacking, old):
        with pytest.raises(RuntimeError, match=r"^torch 2\.99 cannot register buffers with NCCL$"):
            pools.allocate("registered")


def test_torch_that_refuses_its_allocator():
    """As torch 2.11 does on one H200 without NVLink, with NCCL 2.28.9."""
    pools = Pools()
    refusal = "NCCL mem allocator is not supported in this NCCL version"

    class Backend:
        @property
        def mem_allocator(self):
            raise RuntimeError(refusal)

    pools.backend = Backend()
    reason = rf"needs NCCL 2\.19 and a GPU with multicast \(NVLink SHARP\): {refusal}$"
    with pytest.raises(RuntimeError, match=reason):
        pools.allocate("registered")


SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "one_gpu.sh"


def test_what_one_gpu_all_starts_is_understood(tmp_path):
    """Its python is a stand-in that records command lines, which are parsed here."""
    log, python = tmp_path / "log", tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
        printf '%s\\n' "$*" | tr '\\n' ' ' >>{log}
        echo >>{log}
        case $* in
            *version_info*) echo "3.12 $0" ;;
            *cuda.is_available*) echo yes ;;
        esac
        """
    )
    python.chmod(0o755)
    environment = {**os.environ, "NO_INSTALL": "1", "PYTHON": str(python), "RESULTS": str(tmp_path)}
    command = ["bash", str(SCRIPT), "--all"]
    subprocess.run(command, env=environment, capture_output=True, timeout=60 * busy())
    lines = [line.split() for line in log.read_text().splitlines()]
    started = [command for command in lines if command[:2] == ["-m", "torch.distributed.run"]]
    assert len(started) >= 12
    modes = set()
    for command in started:
        module = command[command.index("-m", 1) + 1].removeprefix("torchcoll.")
        arguments = command[command.index(f"torchcoll.{module}") + 1 :]
        if module == "pairs":
            parse_pairs(arguments)
        else:
            names = {entry.module: name for name, entry in COLLECTIVES.items()}
            modes.add(parse(arguments, names.get(module), module).spec.mode)
    assert modes == {None, "synchronized", "back-to-back", "blocking", "graph"}


def test_the_stand_ins_are_like_torch():
    """The installed torch has every name that the stand-ins have; 2.6 to 2.15 were checked."""
    import inspect

    dist = torch.distributed
    for module in (torch.cuda, torch.xpu):
        for name in ("set_device", "synchronize", "mem_get_info", "empty_cache", "device_count"):
            assert callable(getattr(module, name))
    assert torch.get_device_module("cuda") is torch.cuda
    assert torch.get_device_module("xpu") is torch.xpu
    assert hasattr(torch.cuda, "CUDAGraph") and not hasattr(torch.xpu, "CUDAGraph")
    if hasattr(torch.xpu, "XPUGraph"):  # not in torch 2.6
        assert "capture_error_mode" not in inspect.signature(torch.xpu.graph).parameters
    wanted = {
        torch.cuda.graph.__init__: "capture_error_mode",
        torch.cuda.use_mem_pool: "pool",
        torch.cuda.MemPool.__init__: "allocator",
        dist.new_group: "pg_options",
        dist.init_process_group: "pg_options",
        dist.barrier: "device_ids",
        dist._coalescing_manager: "device",
    }
    for function, parameter in wanted.items():
        assert parameter in inspect.signature(function).parameters, function
    event = torch.Event("cpu", enable_timing=True)
    for name in ("record", "elapsed_time", "synchronize"):
        assert callable(getattr(event, name))
    assert hasattr(dist.distributed_c10d.Backend, "backend_capability")
    assert hasattr(dist.distributed_c10d._world, "pg_coalesce_state")
    for cls in filter(None, (getattr(dist, "ProcessGroupNCCL", None),)):
        for name in ("eager_connect_single_device", "register_mem_pool", "deregister_mem_pool"):
            assert hasattr(cls, name)
        # torch 2.14 has ProcessGroupNCCL2, but its options have no lazy_init.
        assert not hasattr(cls.Options(), "lazy_init") or hasattr(dist, "ProcessGroupNCCL2")
