"""The table of aiconfigurator: its names and units, and what it has no place for."""

from __future__ import annotations

import pandas
import pytest
from error_form import error_text, got
from handmade import MIB, case, result, run

import torchcoll
from torchcoll.cli import main
from torchcoll.core.errors import UsageError
from torchcoll.report.aiconfigurator import COLUMNS, perf_rows

LIBRARIES = {"nccl": "NCCL 2.27.3", "xccl": "oneCCL 2021.17.2", "gloo": "gloo of torch 2.13.0"}


def nccl(collective="all_reduce", size_bytes=64 * MIB, ms=1, **changed):
    """Eight ranks whose calls take so many ms on the slowest, half of it on the others."""
    op = "sum" if "reduce" in collective else None
    fields = {"mode": "back-to-back", "backend": "nccl", "device": "cuda", "dtype": "bfloat16"}
    fields |= {"collective": collective, "size_bytes": size_bytes, "op": op, "in_place": False}
    times = [[round(ms * 1e6)] * 5, *([[round(ms * 5e5)] * 5] * 7)]
    return result(case=case(**(fields | changed)), time_ns={"device": times}, cold=())


def measured(*results, **changed):
    made = run(*results, header={"environment": {"libraries": LIBRARIES}}, **changed)
    for member in made.members:
        member["device_name"] = "NVIDIA H100 80GB HBM3"
    return made


def test_names_and_units():
    """64 MiB of bfloat16 are 32 Mi elements, of int8 64 Mi; 1 ms is 1. Out of place comes first."""
    results = [
        nccl(),
        nccl(ms=2, in_place=True),
        nccl("all_to_all", dtype="int8", ms=0.25),
        nccl("reduce_scatter", dtype="float8_e4m3fn", size_bytes=1024, ms=0.0105),
        nccl("all_gather", in_place=True, ms=3),
    ]
    rows, notes = perf_rows([measured(*results)])
    assert notes == []
    assert {tuple(row) for row in rows} == {COLUMNS}
    assert {row["version"] for row in rows} == {"2.27.3"}
    assert {row["device"] for row in rows} == {"NVIDIA H100 80GB HBM3"}
    names = ("op_name", "kernel_source", "nccl_dtype", "num_gpus", "message_size", "latency")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("all_gather", "NCCL", "half", 8, 32 << 20, 3.0),
        ("all_reduce", "NCCL", "half", 8, 32 << 20, 1.0),
        ("alltoall", "NCCL", "int8", 8, 64 << 20, 0.25),
        ("reduce_scatter", "NCCL", "fp8", 8, 1024, 0.0105),
    ]


def test_several_runs_have_one_row():
    """The reader takes the first row of a point alone: the median of 1, 2 and 6 ms."""
    (row,), _ = perf_rows([measured(nccl(ms=ms)) for ms in (1, 6, 2)])
    assert row["latency"] == 2.0


def test_what_has_no_place():
    results = [nccl(), nccl(dtype="float32"), nccl("broadcast"), nccl(backend="gloo")]
    results += [nccl(size_bytes=1024, mode="synchronized")]
    results += [nccl(misalign_bytes=4), nccl(buffer_reuse="flush"), nccl(implementation="dtensor")]
    rows, notes = perf_rows([measured(*results)])
    assert len(rows) == 2
    assert notes == [
        "1 case not exported: float32 (measure with -d bfloat16)",
        "1 case not exported: broadcast",
        "1 case not exported: gloo is neither NCCL nor oneCCL",
        "1 case not exported: with misaligned buffers",
        "1 case not exported: with flushed caches",
        "1 case not exported: dtensor through torch's API",
        "times of mode synchronized: aiconfigurator's own are of calls back to back (--mode "
        "back-to-back)",
    ]
    with pytest.raises(UsageError, match=got("1 case not exported: gloo is neither")):
        perf_rows([measured(nccl(backend="gloo"))])
    with pytest.raises(UsageError, match=got("cases of NCCL and oneCCL")):
        perf_rows([measured(nccl(), nccl(backend="xccl"))])
    with pytest.raises(UsageError, match=got("mode back-to-back and graph for all_reduce half")):
        perf_rows([measured(nccl(), nccl(mode="graph"))])
    with pytest.raises(UsageError, match=got("buffer_reuse same and rotate for all_reduce half")):
        perf_rows([measured(nccl(), nccl(buffer_reuse="rotate"))])


def test_a_table_is_of_one_system():
    """1 and 3 ms of different machines have no median."""
    one = measured(nccl())
    other = measured(nccl(ms=3))
    for member in other.members:
        member["device_name"] = "NVIDIA A100-SXM4-80GB"
    names = "device NVIDIA H100 80GB HBM3 and NVIDIA A100-SXM4-80GB"
    with pytest.raises(UsageError, match=got(names)):
        perf_rows([one, other])

    other = measured(nccl(ms=3))
    other.environment["libraries"] = LIBRARIES | {"nccl": "NCCL 2.19.3"}
    with pytest.raises(UsageError, match=got("library NCCL 2.27.3 and NCCL 2.19.3")):
        perf_rows([one, other])

    other = measured(nccl(size_bytes=1024, ms=3))  # another point of the same curve
    for member in other.members:
        member["host"] = f"node{member['rank'] // 4}"
    with pytest.raises(UsageError, match=got("8 ranks on 1 host and 2 hosts")):
        perf_rows([one, other])


def test_a_sub_group_is_not_the_world():
    (row,), notes = perf_rows([measured(nccl(), nccl(ms=9, group="mod:1/0"))])
    assert row["latency"] == 1.0
    assert notes == [
        "1 case not exported: of a sub-group that ran next to others (run as many ranks alone)"
    ]


def test_the_command(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    torchcoll.save(measured(nccl()), path)
    assert main(["export", str(path), "--format", "aiconfigurator"]) == 0
    assert capsys.readouterr().out == (
        "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
        "torchcoll,2.27.3,NVIDIA H100 80GB HBM3,all_reduce,NCCL,half,8,33554432,1.0\n"
    )


def test_parquet(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    path = tmp_path / "run.jsonl"
    torchcoll.save(measured(nccl()), path)
    table = tmp_path / "nccl_perf.parquet"
    assert main(["export", str(path), "--format", "aiconfigurator", "-o", str(table)]) == 0
    (row,) = pandas.read_parquet(table).to_dict("records")
    assert (row["num_gpus"], row["message_size"], row["latency"]) == (8, 32 << 20, 1.0)
    assert main(["export", str(path), "--format", "aiconfigurator", "-o", str(table)]) == 2
    assert error_text("output", table, "a file that does not exist") in capsys.readouterr().err
