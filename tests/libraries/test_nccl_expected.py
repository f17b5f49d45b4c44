"""The times that NCCL expects by the tuning table in its log; figures computed by hand."""

import dataclasses
import json
from pathlib import Path

import pytest
from error_form import error_line

import torchcoll
from torchcoll.cli import main
from torchcoll.core.plausibility import summarise_run
from torchcoll.libraries.nccl.messages import Tuned
from torchcoll.libraries.shares import TuningTables, time_ns

KERNELS = Path(__file__).parents[2] / "results" / "h200-8gpu-kernels" / "nvidia.jsonl"
# The lines that NCCL 2.30 writes on rank 0 of eight, with the figures of its model for eight H100.
LOG = """\
n0:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9 - Init START
n0:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
n0:1:1 [0] NCCL INFO   Algorithm   |                            Tree                  |                            Ring                  |
n0:1:1 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
n0:1:1 [0] NCCL INFO  Max NThreads |            512 |            640 |            512 |            512 |            640 |            512 |
n0:1:1 [0] NCCL INFO     AllGather |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |    10.8/ 161.1 |    27.3/ 378.5 |    32.2/ 411.4 |
n0:1:1 [0] NCCL INFO     AllReduce |    15.2/  43.6 |    31.5/ 128.8 |    64.4/ 165.6 |    15.0/  80.6 |    40.6/ 189.3 |    56.0/ 205.7 |
n0:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9 - Init COMPLETE
"""  # noqa: E501


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "nccl.log"
    path.write_text(LOG)
    return str(path)


def row(**how):
    rows = summarise_run(torchcoll.load(KERNELS))
    first = next(r for r in rows if r.collective == "all_reduce")
    return dataclasses.replace(first, **how)


@pytest.mark.parametrize(
    ("size_bytes", "us"),
    [
        (1024, 15.0127),  # RING/LL: 15.0 + 1024 / 80600; the tree's is 15.2 and more
        # RING/SIMPLE: 56.0 + 67108864 / 205700: 382.25; LL128 40.6 + 354.5 = 395.1
        (64 << 20, 382.247),
    ],
)
def test_the_fastest_of_the_table(log, size_bytes, us):
    expected_ns = TuningTables([log]).expected_ns(row(size_bytes=size_bytes))
    assert expected_ns == pytest.approx(1000 * us, rel=1e-4)


def test_the_algorithm_that_ran(log):
    """A tree at 1 MiB: log2(2^20 / 64) = 14, where tuning.cc takes 0.5 of Simple's bandwidth."""
    expected_ns = TuningTables([log]).expected_ns(row(size_bytes=1 << 20, algorithm="TREE/SIMPLE"))
    assert expected_ns == pytest.approx(1000 * (64.4 + 1048576 / (165.6 * 0.5) / 1000))
    # Not in the table.
    assert TuningTables([log]).expected_ns(row(algorithm="NVLS/SIMPLE")) is None


def test_rings_over_hosts_have_a_plateau():
    cell = Tuned("AllReduce", "RING", "SIMPLE", 100.0, 50.0)
    # 64 bytes a channel and rank: 16 ranks x 8 channels x 64 = 8192
    assert time_ns(cell, 8192, 16, 2, 8) == pytest.approx(140_000 + 8192 / 50)
    assert time_ns(cell, 8191, 16, 2, 8) == pytest.approx(100_000 + 8191 / 50)
    assert time_ns(cell, 8192, 16, 1, 8) == pytest.approx(100_000 + 8192 / 50)


@pytest.mark.parametrize("how", [{"ranks": 4}, {"collective": "all_to_all"}, {"coalesce": 2}])
def test_cases_that_the_table_lacks(log, how):
    assert TuningTables([log]).expected_ns(row(**how)) is None


def test_show_has_the_expected_and_the_measured_time(log, capsys):
    assert main(["show", str(KERNELS), "--nccl-log", log]) == 0
    out = capsys.readouterr().out
    assert "library expects: what its own cost model says of a call" in out
    assert main(["show", str(KERNELS), "--nccl-log", log, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    (gathered,) = (r for r in rows if (r["collective"], r["size_bytes"]) == ("all_gather", 1 << 30))
    assert gathered["expected_ns"] == pytest.approx(32200 + (1 << 30) / 411.4)


def test_a_log_without_a_table_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("no.log").write_text(LOG.splitlines()[0] + "\n")
    assert main(["show", str(KERNELS), "--nccl-log", "no.log"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(error_line("nccl-log", "no.log", "a log with NCCL's tuning table"))
    assert err.count("\n") == 1
