"""The real thing on one NVIDIA GPU: NCCL with one rank, and rehearsals with several.

Processes are started afresh: after a fork CUDA cannot be used. ``python tests/test_cuda.py`` runs
the same tests without pytest and what conftest.py needs; launch/one_gpu.sh --all does so.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from torchcoll import load
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.traffic import Group, Traffic, TrafficCall
from torchcoll.parts.curves.exports import TunerRule, tuner_csv

try:
    import pytest
except ImportError:
    pytest = None

ROOT = Path(__file__).resolve().parent.parent


def gpu_is_there() -> bool:
    """Asked of NVML: cuInit in this process would spoil the forks of other tests."""
    before = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        return torch.cuda.is_available()
    finally:
        if before is None:
            del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        else:
            os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = before


if pytest:
    pytestmark = [
        pytest.mark.cuda,
        pytest.mark.timeout(300),
        pytest.mark.skipif(
            not gpu_is_there(), reason=f"torch {torch.__version__} finds no NVIDIA GPU here"
        ),
    ]


class Without(Exception):
    """A reason not to run a test, where there is no pytest to be told."""


def skip(reason: str) -> None:
    if pytest:
        pytest.skip(reason)
    raise Without(reason)


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "TORCHELASTIC_"))},
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
    }


class Started:
    """The ranks of one command after they have ended. harm: done to the processes once the first
    case has begun; what then still runs when rank 0 has ended is killed.
    """

    def __init__(
        self,
        folder: Path,
        module: str,
        arguments: str,
        ranks: int = 1,
        variables: dict[str, str] | None = None,
        harm: Callable[[list[subprocess.Popen[str]]], object] | None = None,
    ) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.path = folder / f"run{time.monotonic_ns()}.jsonl"
        words = [*arguments.split(), "--output", str(self.path)]
        words += [] if "--timeout" in words else ["--timeout", "120"]
        command = [sys.executable, "-m", f"torchcoll.{module}", *words, "--format", "csv"]
        processes = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={**environment(rank, ranks, port), **(variables or {})},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            if harm:
                self._until_begun()
                harm(processes)
            stated = [processes[0].communicate(timeout=240)]
            for process in processes[1:]:
                if harm:
                    process.kill()
                stated.append(process.communicate(timeout=240))
        finally:
            for process in processes:
                process.kill()
        self.codes = [process.returncode for process in processes]
        self.stdout, self.stderr = zip(*stated, strict=True)

    def _until_begun(self) -> None:
        """The first case runs: its record is in the file; and its calls a second later."""
        began = time.monotonic()
        while not (self.path.exists() and b'{"record":"started"' in self.path.read_bytes()):
            assert time.monotonic() < began + 120
            time.sleep(0.05)
        time.sleep(1)

    def run(self):
        assert set(self.codes) == {0}, (self.codes, *self.stderr)
        return load(self.path)

    def only(self):
        (result,) = self.run().results
        return result


def median_ns(result, clock=None) -> float:
    """Over the calls, of the maximum over ranks."""
    matrix = result.time_ns[clock or next(iter(result.time_ns))]
    return statistics.median(max(column) for column in zip(*matrix, strict=True))


def check_all(run, ranks: int) -> None:
    """Every collective ran and its result is right."""
    seen = set()
    for result in run.results:
        name = result.case.collective
        seen.add(name)
        if ranks < COLLECTIVES[name].min_ranks:
            assert result.status == "skipped", (name, result.reason)
            continue
        assert result.status == "ok", (name, result.status, result.reason)
        assert result.ranks == ranks
        if COLLECTIVES[name].has_data:
            assert result.verification.checked and not result.verification.wrong, name
        assert set(result.time_ns) == {"device", "issue"}
        assert min(map(min, result.time_ns["device"])) >= 0
    assert seen == set(COLLECTIVES)


def test_all_collectives_with_one_rank(tmp_path):
    run = Started(tmp_path, "suite", "--sizes 4K,16M -n 20").run()
    check_all(run, 1)
    (member,) = run.members
    assert run.header["spec"]["backend"] == "nccl"  # by default, for the machine has a GPU
    assert run.header["environment"]["libraries"]["nccl"].startswith(("NCCL 2.", "RCCL 2."))
    assert member["implementation"]["nccl"] in ("ProcessGroupNCCL", "ProcessGroupNCCL2")
    assert member["device"] == "cuda:0" and member["device_name"]
    assert member["pci_id"] or member["uuid"]
    assert any(lib["name"].startswith(("libnccl", "librccl")) for lib in member["mapped"])
    assert {"device", "init_process_group", "cost_event", "cost_timed_loop"} <= set(run.phases)
    print(run.header["environment"]["libraries"]["nccl"], member["implementation"]["nccl"])


def test_every_type_and_reduction(tmp_path):
    options = "--collectives all_reduce,reduce_scatter --dtype float32,bfloat16,float16,int32"
    run = Started(tmp_path, "suite", f"{options} --op sum,prod,min,max,avg --sizes 64K -n 5").run()
    for result in run.results:
        what = (result.case.describe(), result.reason)
        assert result.status == "ok" and result.verification.wrong == 0, what


def test_modes(tmp_path):
    """Side by side; a replayed graph spares the host's part of a small call."""
    medians = {}
    for mode, clocks in (
        ("synchronized", {"host", "issue"}),
        ("back-to-back", {"device", "issue"}),
        ("blocking", {"host", "issue"}),
        ("graph", {"device", "issue"}),
    ):
        options = f"--mode {mode} --op avg --sizes 4K,64M -n 50"
        for result in Started(tmp_path, "allreduce", options).run().results:
            assert (result.status, set(result.time_ns)) == ("ok", clocks), result.reason
            assert result.verification.wrong == 0
            medians[mode, result.case.size_bytes] = median_ns(result)
    for (mode, size_bytes), ns in medians.items():
        print(f"{mode:9} {size_bytes:>9} bytes  median {ns / 1000:9.2f} us")
    small = {mode: ns for (mode, size_bytes), ns in medians.items() if size_bytes == 4096}
    assert small["graph"] < small["synchronized"]
    assert small["back-to-back"] < small["synchronized"]


# avg, because with one rank a sum in place is no work at all; avg multiplies by 1/1.
AGAINST_A_BARE_LOOP = """
import json, statistics, sys
import torch, torch.distributed as dist
import torch.utils.benchmark
import torchcoll

CALLS, SIZE_BYTES = 200, 512 << 20
torch.cuda.set_device(0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.zeros(SIZE_BYTES // 4, device="cuda:0")

def bare():
    events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        event.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) * 1e6 for a, b in zip(events, events[1:])]
    return statistics.median(times)

def ours():
    spec = torchcoll.Spec(
        collectives="all_reduce", ops="avg", sizes=(SIZE_BYTES,), iters=CALLS, check=False,
        backend="nccl",
    )
    (result,) = torchcoll.run(spec).results
    assert result.status == "ok", result.reason
    return statistics.median(result.time_ns["device"][0])

# Its host clock over many calls, the device idle at both ends: of long calls what they take.
timer = torch.utils.benchmark.Timer(
    "dist.all_reduce(tensor, dist.ReduceOp.AVG)", globals={"dist": dist, "tensor": tensor}
)

def theirs():
    return timer.timeit(CALLS).mean * 1e9

bare()
loop, mine, timed = [], [], []
for _ in range(5):
    loop.append(bare())
    mine.append(ours())
    timed.append(theirs())
dist.destroy_process_group()
print(json.dumps([statistics.median(ns) for ns in (loop, timed, mine)]))
"""


def test_the_device_clock_against_a_bare_event_loop_and_torchs_timer(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AGAINST_A_BARE_LOOP],
        cwd=tmp_path,
        env={k: v for k, v in environment(0, 1, 0).items() if not k.startswith("MASTER_")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    loop, timer, ours = json.loads(done.stdout.splitlines()[-1])
    print(f"all_reduce avg 512M, 1 rank: bare event loop {loop / 1000:.2f} us,")
    print(f"torch.utils.benchmark {timer / 1000:.2f} us, torchcoll's device clock")
    print(f"{ours / 1000:.2f} us, ratios {ours / loop:.4f} and {ours / timer:.4f}")
    assert loop > 50_000, "no work was done"
    assert 0.97 <= ours / loop <= 1.03
    assert 0.97 <= ours / timer <= 1.03


def test_registered_buffers(tmp_path):
    """Where torch offers it; else the reason, and 1: nothing was measured."""
    for buffers in ("registered", "symmetric"):
        for fresh in ("", "--fresh-group"):
            options = f"--buffers {buffers} --sizes 1M,16M -n 10 {fresh}"
            started = Started(tmp_path, "allreduce", options)
            results = load(started.path).results
            assert len(results) == 2
            refused = all(result.status == "unsupported" for result in results)
            assert started.codes == [1 if refused else 0], started.stderr
            for result in results:
                print(buffers, fresh, result.status, result.reason)
                if result.status == "unsupported":
                    assert result.reason
                else:
                    assert result.status == "ok" and result.verification.wrong == 0


def test_symmetric_memory_with_one_rank(tmp_path):
    """Each kernel that torch and the device have is right, and timed as all else is."""
    names = "own,one_shot,two_shot,multimem,multimem_one_shot"
    options = f"--collectives all_reduce,all_gather,reduce_scatter --implementation {names}"
    run = Started(tmp_path, "suite", f"{options} --backend nccl --sizes 64K,16M -n 20").run()
    for result in run.results:
        case = result.case
        print(case.describe(), result.status, result.reason)
        assert result.status in ("ok", "unsupported"), result.reason
        if result.status == "ok":
            assert result.verification.wrong == 0 and result.verification.checked
            print(f"  first {result.cold_ns[0][0] / 1e3:.1f} us, {median_ns(result) / 1e3:.1f} us")
        else:
            assert result.reason and case.implementation != "own"
    ran = {r.case.implementation for r in run.results if r.status == "ok"}
    assert "own" in ran
    if len(ran) == 1:
        skip("this torch and GPU run none of them with one rank")


def test_symmetric_memory_of_several_ranks_on_one_gpu(tmp_path):
    """torch refuses memory of one device on two ranks: said, and the run goes on."""
    options = "--rehearse --implementation nccl,two_shot --sizes 64K -n 5"
    own, other = Started(tmp_path, "allreduce", options, 2).run().results
    print(other.status, other.reason)
    assert own.status == "ok" and own.verification.wrong == 0
    assert other.status in ("ok", "unsupported") and (other.status == "ok" or other.reason)


def test_asynchronous_and_coalesced(tmp_path):
    for option in ("--async", "--coalesce 4"):
        names = "all_reduce,all_gather,reduce_scatter"
        run = Started(tmp_path, "suite", f"--collectives {names} {option} --sizes 1M -n 10").run()
        assert len(run.results) == 3
        for result in run.results:
            assert result.status == "ok", (option, result.case.collective, result.reason)
            # The calls of one group in place sum up the same buffer: there is nothing to compare.
            if result.case.verifiable:
                assert result.verification.wrong == 0
            else:
                assert result.case.coalesce > 1 and result.case.in_place


PRODUCTS = """
import torch
a = torch.full((4096, 4096), 1 / 4096, device="cuda")
out = torch.empty_like(a)
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
for _ in range(2):
    begin.record()
    for _ in range(50):
        torch.mm(a, a, out=out)
    end.record()
    torch.cuda.synchronize()
print(begin.elapsed_time(end) * 1e6 / 50)
"""


def test_beside(tmp_path):
    """A product alone, on a stream of its own, takes as long as in a bare loop: within 20 %. At
    once nothing ends before the longer of both would alone.
    """
    for ranks, options in ((1, ""), (2, "--rehearse")):
        words = f"{options} --sizes 64M --op avg -n 20 --concurrent matmul:64M"
        found = Started(tmp_path, "allreduce", words, ranks).only().concurrent
        assert (found.work, found.threads, len(found.alone_ns)) == ("matmul:64M", None, ranks)
        alone, both = (min(map(min, times)) for times in (found.work_ns, found.both_ns))
        print(f"{ranks} ranks: {found.repeats} products alone {alone} ns, at once {both} ns")
        assert both > 0.9 * alone
        if ranks == 1:
            done = subprocess.run(
                [sys.executable, "-c", PRODUCTS], capture_output=True, text=True, timeout=120
            )
            bare = float(done.stdout)
            own = statistics.median(found.work_ns[0]) / found.repeats
            print(f"a product: bare loop {bare:.0f} ns, torchcoll {own:.0f} ns")
            assert 0.8 < own / bare < 1.2


def test_implementations_side_by_side(tmp_path):
    """torch 2.15 has two under the names nccl and nccl-legacy."""
    if not torch.distributed.is_backend_available("nccl-legacy"):
        skip(f"torch {torch.__version__} has one nccl")
    run = Started(tmp_path, "allreduce", "--backend nccl,nccl-legacy --sizes 1M,4M -n 10").run()
    assert [r.case.backend for r in run.results] == ["nccl", "nccl-legacy", "nccl-legacy", "nccl"]
    assert {r.status for r in run.results} == {"ok"}
    made = run.members[0]["implementation"]
    assert made["nccl-legacy"] == "ProcessGroupNCCL"
    print(made)


# The state of the machine.
SMI = "index,clocks.max.sm,clocks.max.mem,enforced.power.limit,persistence_mode"


def test_the_state_before_and_after(tmp_path):
    """Ours is the driver's library, theirs nvidia-smi: what does not change must agree."""
    run = Started(tmp_path, "allreduce", "--op avg --sizes 256M --max-time 2").run()
    states = [state["devices"][0] for state in run.machine]
    for state in states:
        print(json.dumps(state))
    print([event["message"] for event in run.events if event["kind"] == "machine"])
    if torch.version.hip or not shutil.which("nvidia-smi"):
        skip("no nvidia-smi to compare with")
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader,nounits"]
    done = subprocess.run([*command, "-i", states[0]["place"]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    theirs = [word.strip() for word in done.stdout.split(",")]
    names = ("index", "sm_clock_max_mhz", "mem_clock_max_mhz")
    assert [str(states[0][name]) for name in names] == theirs[:3]
    if theirs[3][0].isdigit():
        assert states[0]["power_limit_w"] == float(theirs[3])
    assert states[0]["persistence"] == (theirs[4] == "Enabled")
    assert states[1]["busy_percent"] > 50  # it has just done this for two seconds
    assert 0 < states[1]["sm_clock_mhz"] <= states[1]["sm_clock_max_mhz"]


def test_doctor(tmp_path):
    """It finds the GPU and NCCL usable, and says so first."""
    done = subprocess.run(
        [sys.executable, "-m", "torchcoll", "doctor"],
        cwd=tmp_path,
        env={k: v for k, v in environment(0, 1, 0).items() if k == "PYTHONPATH" or k in os.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(done.stdout, done.stderr)
    assert done.returncode in (0, 1), done.returncode  # 1: a trap that is an error
    lines = [line.split() for line in done.stdout.splitlines()]
    for name in ("cuda", "nccl"):
        assert [words[0] for words in lines if words[1:2] == [name]] == ["yes"], name


BUSY = """
import time, torch
a = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
began = time.monotonic()
while time.monotonic() < began + 120:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
    if time.monotonic() > began + 2:
        print("busy", flush=True)
"""


def test_a_busy_gpu_is_noticed(tmp_path):
    """Another process works on it: its number is named if it can be seen, else how busy it is."""
    if torch.version.hip:
        skip("the state of AMD's devices is not read")
    words = [sys.executable, "-c", BUSY]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "busy\n"
            run = Started(tmp_path, "allreduce", "--sizes 4K -n 5").run()
        finally:
            other.kill()
    stated = [event["message"] for event in run.events if event["kind"] == "machine"]
    print(*stated, sep="\n")
    assert any("% busy" in text and " before the run" in text for text in stated)


def test_rehearsal(tmp_path):
    """All collectives, verified; the figures mean nothing and the file says so."""
    for ranks in (2, 4):
        run = Started(tmp_path, "suite", "--rehearse --sizes 4K,256K -n 5 -r 1", ranks).run()
        check_all(run, ranks)
        assert any(event["kind"] == "rehearsal" for event in run.events)
        hosts = {m["variables_that_differ"]["NCCL_HOSTID"] for m in run.members[1:]}
        assert len(hosts) == ranks - 1


def test_rehearsal_in_sub_groups(tmp_path):
    options = "--rehearse --groups mod:2 --sizes 4K -n 5"
    results = Started(tmp_path, "allreduce", options, 4).run().results
    assert [r.members for r in results] == [[0, 2], [1, 3]]
    assert [(r.status, r.verification.wrong) for r in results] == [("ok", 0)] * 2


def replayed(folder, ranks: int, arguments: str = "") -> Traffic:
    """Two steps of a file: asynchronous and synchronous calls, and messages both ways."""
    group = {"group": "a", "op": "sum", "asynchronous": True}
    reported = Traffic(ranks=ranks, groups={"a": Group("a", tuple(range(ranks)))})
    for rank in range(ranks):
        calls = reported.calls[rank] = [
            TrafficCall("all_reduce", 1 << 20, 1 << 20, "bfloat16", **group),
            TrafficCall("all_gather", 4096, 4096 * ranks, "float32", group="a"),
            TrafficCall("barrier", 0, 0, group="a"),
        ]
        if ranks > 1:
            peer = (rank + 1) % ranks
            calls.append(TrafficCall("send", 1024, 0, "float32", peer=peer, group="a"))
            peer = (rank - 1) % ranks
            calls.append(TrafficCall("recv", 0, 1024, "float32", peer=peer, group="a"))
    reported.save(folder / "given.jsonl")
    started = Started(folder, "__main__", f"replay given.jsonl --steps 2 {arguments}", ranks)
    assert set(started.codes) == {0}, (started.codes, *started.stderr)
    return Traffic.load(started.path)


def check_replay(found: Traffic, ranks: int) -> None:
    assert found.groups["a"].backend == "nccl" and len(found.calls) == ranks
    for rank, calls in found.calls.items():
        assert len(calls) == 3 * (5 if ranks > 1 else 3)
        assert {call.clock for call in calls} == {"device"}
        for call in calls:
            assert call.collective == "barrier" or call.time_ns > 0, call
        for step, (start, end) in enumerate(found.steps[rank]):
            own = [call for call in calls if call.step == step]
            assert start <= own[0].start_ns and sum(c.time_ns for c in own[:1]) < end - start


def test_replay(tmp_path):
    for ranks, options in ((1, ""), (2, "--rehearse")):
        (tmp_path / str(ranks)).mkdir()
        check_replay(replayed(tmp_path / str(ranks), ranks, options), ranks)


CAPTURED = """
import json, sys, torch, torch.distributed as dist, torchcoll
from torch.nn.parallel import DistributedDataParallel
from torchcoll.bench.rehearsal import rehearse
rank, ranks = int(sys.argv[1]), int(sys.argv[2])
if ranks > 1:
    rehearse("nccl", "cuda", rank)
torch.cuda.set_device(0)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(1000, 500).cuda(), device_ids=[0])
with torchcoll.capture("traffic/") as traffic:
    for _ in range(4):
        model(torch.ones(8, 1000, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        traffic.step()
dist.barrier()
dist.destroy_process_group()
"""


def captured(folder: Path, script: str, ranks: int) -> Traffic:
    """What the ranks of a script that captures into ``traffic/`` send."""
    folder.mkdir()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(ranks)],
            cwd=folder,
            env=environment(rank, ranks, port),
        )
        for rank in range(ranks)
    ]
    assert [process.wait(timeout=240) for process in processes] == [0] * ranks
    traffic = Traffic.load(folder / "traffic")
    assert sorted(traffic.calls) == list(range(ranks))
    return traffic


def test_capture_of_fsdp2(tmp_path):
    """A step gathers the shares of all parameters and scatters their gradients: with 2 ranks and
    even rows 4 x (1000 x 500 + 500) bytes of reduce_scatter, half of it of all_gather.
    """
    script = CAPTURED.replace(
        "DistributedDataParallel(torch.nn.Linear(1000, 500).cuda(), device_ids=[0])",
        "torch.distributed.fsdp.fully_shard(torch.nn.Linear(1000, 500).cuda())",
    ).replace("import json", "import torch.distributed.fsdp, json")
    found = captured(tmp_path / "2", script, 2)
    for calls in found.calls.values():
        last = [call for call in calls if call.step == 3]
        print(last, *found.notes, sep="\n")
        sent = {
            name: sum(call.bytes_in for call in last if call.collective == name)
            for name in ("all_gather", "reduce_scatter")
        }
        whole = 4 * (1000 * 500 + 500)
        assert sent == {"all_gather": whole // 2, "reduce_scatter": whole}
        assert all(call.clock == "device" for call in last)


def test_capture_of_ddp(tmp_path):
    """The bytes are those of the parameters, 4 x (1000 x 500 + 500); NCCL tells the durations."""
    for ranks in (1, 2):
        found = captured(tmp_path / str(ranks), CAPTURED, ranks)
        for calls in found.calls.values():
            last = [call for call in calls if call.step == 3 and call.collective == "all_reduce"]
            print(last, *found.notes, sep="\n")
            assert sum(call.bytes_in for call in last) == 4 * (1000 * 500 + 500)
            assert all(call.clock == "device" and call.time_ns > 0 for call in last)


def test_forced_algorithms_are_what_nccl_did(tmp_path):
    """Requested, effective as the log has it, and right: the cells of --preset nccl-algorithms."""
    named = torch.cuda.nccl.version() >= (2, 24)
    for ranks in (2, 4):
        for algorithm, protocol in (("ring", "ll"), ("ring", "simple"), ("tree", "ll")):
            values = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
            values = {k: f"allreduce:{v}" for k, v in values.items()} if named else values
            options = "--rehearse --library-log --sizes 4K,1M -n 5"
            run = Started(tmp_path, "allreduce", options, ranks, values).run()
            for result in run.results:
                print(ranks, algorithm, protocol, [choice.text for choice in result.choices])
                assert result.status == "ok" and not result.verification.wrong
                assert [c.label.lower() for c in result.choices] == [f"{algorithm}/{protocol}"]


TUNER_PLUGIN = "NCCL_TUNER_PLUGIN"


def test_a_tuner_file_is_obeyed(tmp_path):
    """torchcoll's file, read by NCCL's example plugin (plugins/tuner/example of 2.30.3 or later,
    make): below 64K LL, Simple above. Earlier plugins end the ranks with SIGSEGV.
    """
    plugin = os.environ.get(TUNER_PLUGIN, "")
    if not Path(plugin).is_file():
        skip(f"{TUNER_PLUGIN} is no file: build NCCL's example and name it")
    rules = [
        TunerRule("AllReduce", 0, 65535, "RING", "LL", 1),
        TunerRule("AllReduce", 65536, None, "RING", "SIMPLE", 1),
    ]
    file = tmp_path / "tuner.csv"
    file.write_text(tuner_csv(rules, []))
    values = {TUNER_PLUGIN: plugin, "NCCL_TUNER_CONFIG_FILE": str(file)}
    options = "--rehearse --library-log --sizes 4K,1M -n 5"
    for result in Started(tmp_path, "allreduce", options, 2, values).run().results:
        protocol = "LL" if result.case.size_bytes == 4096 else "SIMPLE"
        print([choice.text for choice in result.choices])
        assert [choice.label for choice in result.choices] == [f"RING/{protocol}"]


def test_a_rank_that_is_lost(tmp_path):
    """Rank 0 names it and leaves with 5, well before --timeout."""
    began = time.monotonic()
    options = "--rehearse --sizes 4K --max-time 100 --precision 0.00001"
    started = Started(tmp_path, "allreduce", options, 2, harm=lambda p: p[1].kill())
    line = check_left(started, "lost rank 1 (")
    print(line, f"{time.monotonic() - began:.1f} s")
    assert time.monotonic() < began + 110


def test_a_rank_that_hangs(tmp_path):
    """Stopped: rank 0 says so after --timeout, though NCCL's kernel waits on the GPU for ever."""
    options = "--rehearse --sizes 4K --max-time 100 --precision 0.00001 --timeout 10"
    stop = lambda processes: processes[1].send_signal(signal.SIGSTOP)  # noqa: E731
    started = Started(tmp_path, "allreduce", options, 2, harm=stop)
    print(check_left(started, "its process is stopped; "))


def check_left(started: Started, stated: str) -> str:
    """The one error line of rank 0; the file says the same and can be read."""
    assert started.codes[0] == 5, started.stderr
    (line,) = (line for line in started.stderr[0].splitlines() if "torchcoll: error" in line)
    assert stated in line and "all_reduce 4K" in line
    run = load(started.path)
    assert run.end["exit_code"] == 5 and run.events[-1]["kind"] in ("hang", "lost_rank")
    assert not any(result.status == "ok" for result in run.results)
    return line


def test_pairs_of_a_rehearsal(tmp_path):
    """Every pair of three ranks, verified; what shares a GPU accuses nobody that counts."""
    started = Started(tmp_path, "pairs", "--rehearse --sizes 64K -n 5", 3)
    assert set(started.codes) <= {0, 1}, (started.codes, *started.stderr)
    run = load(started.path)
    pairs = {r.case.group for r in run.results if (r.case.group or "").startswith("pair/")}
    assert pairs == {"pair/0-1", "pair/0-2", "pair/1-2"}
    assert all(result.status == "ok" for result in run.results)


def test_the_first_call_pays(tmp_path):
    for ranks, options in ((1, ""), (2, "--rehearse")):
        result = Started(tmp_path, "allreduce", f"{options} --sizes 64K -n 20", ranks).only()
        first = max(ns[0] for ns in result.cold_ns)
        print(
            f"{ranks} ranks: first call {first / 1e6:.1f} ms, then {median_ns(result) / 1e3:.1f} us"
        )
        assert result.ordinal == 0
        assert first > 3 * median_ns(result)


def test_eager_and_lazy(tmp_path):
    """What the first call pays for, eager connecting pays for in a phase of its own."""
    first, phase = {}, {}
    for init in ("lazy", "eager"):
        options = f"--rehearse --init {init} --sizes 64K -n 5"
        run = Started(tmp_path, "allreduce", options, 2).run()
        first[init] = max(ns[0] for ns in run.results[0].cold_ns)
        phase[init] = max(run.phases.get("communicator", [0]))
        print(f"{init}: communicator {phase[init] / 1e6:.1f} ms, first {first[init] / 1e6:.1f} ms")
        assert run.header["connects"] == ("communicator" if init == "eager" else "first call")
    assert phase["lazy"] == 0
    assert first["eager"] < first["lazy"]
    assert phase["eager"] > 0.2 * first["lazy"]


def main() -> int:
    """Without pytest: every test of this file, its output below its name."""
    tests = [
        (name, function)
        for name, function in globals().items()
        if name.startswith("test_") and inspect.isfunction(function)
    ]
    failed = skipped = 0
    for name, function in tests:
        began = time.monotonic()
        print(f"-- {name}", flush=True)
        try:
            with tempfile.TemporaryDirectory() as folder:
                function(Path(folder))
            verdict = "passed"
        except Without as reason:
            verdict, skipped = f"skipped ({reason})", skipped + 1
        except Exception:
            traceback.print_exc(file=sys.stdout)
            verdict, failed = "FAILED", failed + 1
        print(f"   {verdict} in {time.monotonic() - began:.1f} s", flush=True)
    print(f"{len(tests) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
