"""``torchcoll doctor --prove`` on two forked gloo ranks, as it is and with planted defects."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

import handmade
import pytest
from ranks import Job, Ticking, busy

import torchcoll
from torchcoll import cli
from torchcoll.bench import watchdog
from torchcoll.bench.verify import Checker
from torchcoll.core.file import save
from torchcoll.core.result import Choice
from torchcoll.machine.devices import Cpu
from torchcoll.machine.processes import Ended
from torchcoll.parts.proof import fault_probe, judge, probes, prove
from torchcoll.parts.proof.judge import FAILED, NOT_RUN, NOT_SHOWN, PROVEN
from torchcoll.parts.proof.prove import CLAIMS, Kit, MachineUnderTest
from torchcoll.parts.training.traces import read_traffic

GLOO = MachineUnderTest("gloo", "cpu", "", "gloo of torch", ranks=2)


def steady_time(rank: int, extra_look: bool = False) -> None:
    """In a rank: each look at the clock takes a microsecond, so that noise has no part in ratios.

    extra_look: torchcoll's own loop looks once more within its stamps.
    """
    clock = Ticking()
    names = {"perf_counter_ns": staticmethod(clock.now), "monotonic": staticmethod(monotonic)}
    probes.time = type("Time", (), names)
    Cpu.__init__.__defaults__ = (clock.now,)
    watchdog._QUIET_S = 0.3
    probes.describe_other_work = lambda first: ""
    probes.VERIFIED_TYPES = ("bfloat16",)
    probes.PAIRS = 1
    if extra_look:
        synchronized = Cpu.synchronized

        def slower(self, call, align, calls, clocks):
            synchronized(self, lambda: (call(), clock.now()), align, calls, clocks)

        Cpu.synchronized = slower


def forked(setup: Callable[[int], object] = steady_time, after=lambda folder: None):
    """A starter of a Kit: the module on two forked ranks."""

    def start(module, arguments, variables, limit_s, log) -> Ended:
        def target() -> None:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)

        job = Job(log.parent, target, 2, setup=setup, environment=variables)
        try:
            ended = job.wait().values()
        finally:
            job.kill()
        log.write_text("\n".join(rank.stderr for rank in ended))
        after(log.parent)
        return Ended(max(abs(rank.code) for rank in ended), 0.0)

    return start


def kit(folder: Path, start=None, machine: MachineUnderTest = GLOO) -> Kit:
    return Kit(folder, machine, start or forked(), timeout_s=3)


def part(folder: Path, name: str, start=None, machine: MachineUnderTest = GLOO):
    return prove.run_part(kit(folder, start, machine), name)


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    """(report, folder) of one run of all parts but the stopped rank, which takes its timeout."""
    folder = tmp_path_factory.mktemp("proof")
    importlib.import_module("torch._dynamo")  # DDP does: once here, and not in each rank
    names = [name for name in CLAIMS if name != "stopped-rank"]
    return prove.run_parts(kit(folder), names), folder


def test_the_parts_on_two_gloo_ranks(proven):
    report, _ = proven
    statuses = {result.name: result.status for result in report.parts}
    assert statuses == {
        "verification": PROVEN,
        "clock": PROVEN,
        "forced-algorithms": NOT_SHOWN,
        "capture": PROVEN,
        "killed-rank": PROVEN,
    }, [(r.name, r.status, r.reason) for r in report.parts]
    reasons = {result.name: result.reason for result in report.parts}
    # Six collectives without a root on two ranks, and three faults; without a fault once.
    assert reasons["verification"] == "18 planted errors seen, none reported in 6 others"
    # A microsecond a call in both: see steady_time.
    assert reasons["clock"] == "torchcoll / bare is 1, within 0.97 to 1.03"
    # DDP, all_gather and broadcast in each of four steps, and what DDP broadcasts of its buckets.
    assert int(reasons["capture"].split()[2]) >= 12
    assert reasons["killed-rank"].startswith("the file names rank 1, ")


def test_a_stopped_rank_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(prove, "_STOPPED_S", 5.0)
    result = part(tmp_path, "stopped-rank")
    assert result.status == PROVEN, result
    assert result.reason.startswith("the file names rank 1, ")


def nccl(**changed) -> MachineUnderTest:
    return replace(GLOO, backend="nccl", family="nccl", library="NCCL 2.27.5", **changed)


def test_clock_fails_where_the_loop_takes_longer(tmp_path):
    result = part(tmp_path, "clock", forked(lambda rank: steady_time(rank, True)))
    # Two microseconds for one.
    text = "torchcoll / bare (host 4K) is 2 (2 to 2), not 0.97 to 1.03"
    assert (result.status, result.reason) == (FAILED, text)


def blind(rank: int) -> None:
    steady_time(rank)
    Checker.count_wrong = lambda self: (self._buffers.recv.numel(), 0)


def test_verification_fails_where_it_sees_nothing(tmp_path):
    result = part(tmp_path, "verification", forked(blind))
    assert result.status == FAILED
    assert result.reason.startswith("24 of 24 cases are judged wrong: ")


def logs(name: str):
    """A starter: the log of the library names this algorithm whatever was forced."""

    def start(module, arguments, variables, limit_s, log) -> Ended:
        assert variables["NCCL_ALGO"] in ("allreduce:ring", "allreduce:tree")
        case = handmade.case(backend="nccl", device="cuda", mode="back-to-back")
        file = log.parent / arguments[arguments.index("-J") + 1]
        save(handmade.run(handmade.result(case=case, choices=[Choice(name, "SIMPLE")])), file)
        return Ended(0, 0.0)

    return start


def test_forced_algorithms_fail_where_the_log_names_another(tmp_path):
    result = part(tmp_path, "forced-algorithms", logs("TREE"), nccl())
    assert (result.status, result.reason) == (
        FAILED,
        "ring-simple was forced, all_reduce of 64M ran TREE/SIMPLE",
    )


def test_forced_algorithms_are_proven_by_the_log(tmp_path):
    def start(module, arguments, variables, limit_s, log):
        name = variables["NCCL_ALGO"].rpartition(":")[2].upper()
        return logs(name)(module, arguments, variables, limit_s, log)

    assert part(tmp_path, "forced-algorithms", start, nccl()).status == PROVEN


def test_capture_fails_where_it_misses_a_call(proven, tmp_path):
    folder = proven[1] / "capture"
    lines = (folder / "captured" / "traffic-rank0.jsonl").read_text().splitlines(keepends=True)
    lost = next(line for line in lines if '"broadcast"' in line and '"bytes_in":512' in line)
    edited = tmp_path / "traffic-rank0.jsonl"
    edited.write_text("".join(line for line in lines if line != lost))
    profiled = read_traffic([folder / "trace-rank0.json"])
    result = judge.judge_capture(read_traffic([edited]), profiled)
    assert result.status == FAILED
    assert result.reason.startswith("the capture misses 1 call of broadcast of 512")


def test_a_rank_that_the_file_does_not_name_fails(tmp_path):
    """Rank 0, which writes the file, is killed in place of rank 1: nothing says so."""

    def kill_rank_0(rank: int) -> None:
        steady_time(rank)
        if rank == 0:
            fault_probe.plant("kill", 20, "0")

    result = part(tmp_path, "killed-rank", forked(kill_rank_0))
    assert result.status == FAILED, result


def test_a_part_that_fails_does_not_stop_the_others(tmp_path):
    def start(*_):
        raise RuntimeError("planted")

    names = ["clock", "forced-algorithms"]
    report = prove.run_parts(kit(tmp_path, start), names)
    assert [result.status for result in report.parts] == [FAILED, NOT_SHOWN]
    assert report.parts[0].reason == "the part itself failed: RuntimeError: planted"


def test_a_part_that_hangs_is_ended_within_its_limit(tmp_path, monkeypatch):
    limit_s = math.ceil(busy())
    monkeypatch.setitem(CLAIMS, "clock", replace(CLAIMS["clock"], limit_s=limit_s))

    def start(module, arguments, variables, limit_s, log):
        return prove.run_command(
            ["sh", "-c", "echo waiting; exec sleep 99"], variables, limit_s, log
        )

    result = part(tmp_path, "clock", start)
    reason = f"it did not end within its {limit_s} s: waiting"
    assert (result.status, result.reason) == (FAILED, reason)


def test_ctrl_c_leaves_the_parts_that_were_run(tmp_path):
    def start(*_):
        raise KeyboardInterrupt

    names = ["forced-algorithms", "clock", "capture"]
    report = prove.run_parts(kit(tmp_path, start), names)
    assert [result.status for result in report.parts] == [NOT_SHOWN, NOT_RUN, NOT_RUN]


def test_one_rank_shows_what_it_can(tmp_path):
    result = part(tmp_path, "killed-rank", machine=replace(GLOO, ranks=1))
    assert (result.status, result.reason) == (NOT_SHOWN, "one rank communicates with no other")


def facts(**changed) -> dict:
    return {
        "backend": "nccl",
        "device": "cuda",
        "devices": 1,
        "names": ["NVIDIA H100 80GB HBM3"],
        "shares_device": True,
        "family": "nccl",
        "library": "NCCL 2.27.5",
        "busy": "",
        **changed,
    }


def described(ranks: int | None = None, launcher: str | None = None, **changed) -> MachineUnderTest:
    options = argparse.Namespace(ranks=ranks, launcher=launcher)
    return prove.describe(facts(**changed), options)


def test_how_many_ranks_a_machine_gets():
    assert (described().ranks, described().shared) == (2, True)
    eight = described(devices=8)
    assert (eight.ranks, eight.shared) == (8, False)
    assert described(device="cpu", devices=0, shares_device=False).ranks == 2
    assert described(launcher="srun", devices=8).ranks is None


def test_a_device_that_takes_one_rank():
    intel = {"backend": "xccl", "device": "xpu", "shares_device": False}
    machine = described(**intel)
    assert (machine.ranks, machine.shared) == (1, False)
    with pytest.raises(torchcoll.TorchcollError, match="ranks: got 2, expected at most 1"):
        described(ranks=2, **intel)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--prove clok", "prove: got clok"),
        ("--prove clock --ranks 0", "ranks: got 0"),
        ("--backend gloo", "backend: got gloo, expected --prove with it"),
    ],
)
def test_bad_arguments_are_one_line(arguments, expected, capsys):
    assert cli.main(["doctor", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.fixture
def signals():
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_a_machine_without_the_device_is_one_line(signals, monkeypatch, capsys):
    def look(command, variables, limit_s, log):
        log.write_text(
            "torchcoll: error: device cuda: got none that torch can use (The NVIDIA driver on your "
            "system is too old), expected at least one. Update the driver.\n"
        )

    monkeypatch.setattr(prove, "run_command", look)
    assert cli.main(["doctor", "--prove", "--backend", "nccl"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "driver on your system is too old" in line


@pytest.mark.parametrize("json_too", [False, True])
def test_the_whole_command(signals, tmp_path, monkeypatch, capsys, json_too):
    monkeypatch.setattr(prove, "look", lambda options, folder: GLOO)
    monkeypatch.setattr(prove, "starter", lambda prefix: forked())
    words = ["doctor", "--prove", "verification,forced-algorithms", "-o", str(tmp_path / "kept")]
    assert cli.main([*words, *(["--json"] if json_too else [])]) == 0
    out = capsys.readouterr().out
    if json_too:
        assert [p["status"] for p in json.loads(out)["parts"]] == [PROVEN, NOT_SHOWN]
    else:
        assert out.startswith("1 of 2 parts proven on 2 ranks on cpu, gloo of torch")
    assert (tmp_path / "kept" / "verification" / "verification.json").exists()
    assert cli.main(words) == 2
    assert "a folder that is new or empty" in capsys.readouterr().err


def test_a_busy_machine_is_no_failure():
    pairs = [[2.0, 1.0]] * 20
    same = [[1.0, 1.0]] * 20
    compared = [{"clock": "host", "size_bytes": 4096, "pairs": pairs, "aa": same}]
    assert judge.judge_clock({"busy": "", "compared": compared}).status == FAILED
    busy = "other programs used 1.6 of 2 cores"
    result = judge.judge_clock({"busy": busy, "compared": compared})
    assert result.status == NOT_SHOWN
    assert result.reason.startswith(busy)


@pytest.mark.parametrize(
    ("n", "low", "high"),
    # The largest k with P(k <= Binomial(n, 1/2) <= n - k) of at least 90 %: 1 of 5 (93.75 %),
    # 2 of 10 (97.9 %, with 3 89.1 %), 6 of 20 (95.9 %, with 7 88.5 %).
    [(5, 1, 5), (10, 2, 9), (20, 6, 15)],
)
def test_the_interval_of_a_median(n, low, high):
    assert judge.median_interval(range(n, 0, -1)) == ((n + 1) / 2, low, high)


def test_a_ratio_is_proven_only_as_a_whole_interval():
    def status(ours, same):
        pairs = [[ratio, 1.0] for ratio in ours]
        compared = {
            "clock": "host",
            "size_bytes": 8,
            "pairs": pairs,
            "aa": [[a, 1.0] for a in same],
        }
        return judge.judge_clock({"busy": "", "compared": [compared]}).status

    even = [1.0] * 10
    assert status([1.02] * 10, even) == PROVEN
    assert status([1.02] * 5 + [1.04] * 5, even) == NOT_SHOWN
    assert status([1.04] * 10, even) == FAILED
    assert status([1.0] * 10, [0.9] * 5 + [1.1] * 5) == NOT_SHOWN
