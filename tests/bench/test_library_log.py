"""--library-log on real gloo ranks, whose calls write what NCCL or oneCCL would."""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from error_form import error_line, error_text, expecting

from torchcoll.bench import library_log
from torchcoll.bench.library_log import LibraryLog, _Tail
from torchcoll.core.backends import BACKENDS
from torchcoll.core.errors import TorchcollError
from torchcoll.core.result import Choice

# NCCL 2.27: the names come upper case, and rank 0 alone tells what was chosen.
TIMINGS = (
    "node:7:7 [0] NCCL INFO Init timings - ncclCommInitRankConfig: rank {0} nranks 2 total 0.{0}4 "
    "(kernels 0.01, alloc 0.00, bootstrap 0.0{0}, allgathers 0.00, topo 0.00, graphs 0.00, "
    "connections 0.02, rest 0.00)\n"
)


def log_as_nccl(rank: int) -> None:
    """Line by line into NCCL_DEBUG_FILE, a barrier's small all-reduce before each call."""
    names = {"all_reduce": "AllReduce", "broadcast": "Broadcast"}
    reals = {name: getattr(dist, name) for name in names}
    for name, function in names.items():

        def call(tensor, *args, real=reals[name], function=function, **kwargs):
            size_bytes = tensor.numel() * tensor.element_size()
            path = os.environ["NCCL_DEBUG_FILE"].replace("%%", "%")
            first = not os.path.exists(path)
            with open(path, "a") as log:
                if first:
                    log.write(TIMINGS.format(rank))
                if rank == 0:
                    chosen = "LL channel{Lo..Hi}={0..0}"
                    if size_bytes > 64:
                        chosen = "SIMPLE channel{Lo..Hi}={0..3}"
                    algorithm = "TREE" if tensor.element_size() == 2 else "RING"
                    stated = "node:7:7 [0] NCCL INFO {}: {} Bytes -> Algo {} proto {}\n"
                    log.write(stated.format("AllReduce", 4, "RING", "LL channel{Lo..Hi}={0..0}"))
                    log.write(stated.format(function, size_bytes, algorithm, chosen))
            return real(tensor, *args, **kwargs)

        setattr(dist, name, call)


def as_library(library: str, log=lambda rank: None):
    """What makes gloo pass for the backend of that library."""

    def setup(rank: int) -> None:
        BACKENDS["gloo"] = replace(BACKENDS["gloo"], family=library)
        torch.cuda.nccl.version = lambda: (2, 28, 9)
        log(rank)

    return setup


def test_choices_are_those_of_the_calls_of_each_case(launch):
    setup = as_library("nccl", log_as_nccl)
    arguments = "--collectives all_reduce,broadcast,barrier --sizes 8,256 -n 3 --library-log"
    measured = launch(None, arguments, 2, setup=setup).ended(0)
    run = measured.run
    assert run.header["library_log"] == f"{measured.path.name}.logs"
    folder = measured.path.with_name(run.header["library_log"])
    assert sorted(p.name for p in folder.iterdir()) == ["nccl-rank0.log", "nccl-rank1.log"]
    ring = [Choice("RING", "LL", 1)], [Choice("RING", "SIMPLE", 4)]
    found = {(r.case.collective, r.case.size_bytes): r.choices for r in run.results}
    assert found == {
        ("all_reduce", 8): ring[0],
        ("all_reduce", 256): ring[1],
        ("broadcast", 8): ring[0],
        ("broadcast", 256): ring[1],
        ("barrier", 0): [],
    }
    variables = run.environment["variables"]
    assert variables["NCCL_DEBUG"] == "INFO"
    assert variables["NCCL_DEBUG_SUBSYS"] == "INIT,ENV,GRAPH,TUNING"
    # The file differs from rank to rank, and from run to run, and says nothing.
    assert "NCCL_DEBUG_FILE" not in variables
    assert not any(member.get("variables_that_differ") for member in run.members)
    # 0.04 and 0.14 s by rank, and the parts.
    assert run.phases["nccl_init"] == [40_000_000, 140_000_000]
    assert run.phases["nccl_init_bootstrap"] == [0, 10_000_000]
    assert run.phases["nccl_init_connections"] == [20_000_000, 20_000_000]
    (event,) = [e for e in run.events if e["kind"] == "library_log"]
    assert "a line a call on rank 0 and inside the stamps" in event["message"]
    table = measured.stdout()
    assert "RING/LL 1ch" in table and "RING/SIMPLE 4ch" in table
    assert f"library log: NCCL writes it to {folder.name}" in table


def test_a_log_without_choices_says_so(launch):
    measured = launch("all_reduce", "--sizes 8 -n 2 --library-log", setup=as_library("nccl"))
    run = measured.ended(0).run
    assert [result.choices for result in run.results] == [[]]
    messages = [e["message"] for e in run.events if e["kind"] == "library_log"]
    assert "names no algorithm for any case: NCCL does from 2.20 on" in messages[1]
    assert "nccl_init" not in run.phases


def test_oneccl_logs_to_stdout_which_the_table_keeps(launch):
    def log(rank: int) -> None:
        libc, real = ctypes.CDLL(None), dist.all_reduce

        def call(tensor, *args, **kwargs):
            text = "selected algo: coll allreduce, count {}, algo {}"
            for count, algo in ((0, "direct"), (tensor.numel(), "ring")):  # 2021 asks twice
                line = text.format(count, algo)
                libc.printf(b"2026:11:20-10:39:35:(%5d) |CCL_DEBUG| %s\n", 12, line.encode())
            return real(tensor, *args, **kwargs)

        dist.all_reduce = call

    setup = as_library("oneccl", log)
    measured = launch("all_reduce", "--sizes 8,256 -n 2 --library-log", setup=setup).ended(0)
    run = measured.run
    assert [result.choices for result in run.results] == [[Choice("ring")]] * 2
    assert run.environment["variables"]["CCL_LOG_LEVEL"] == "debug"
    assert "CCL_DEBUG" not in measured.stdout() + measured.stdout(1)
    assert " ring " in measured.stdout()
    for rank in range(2):
        text = Path(f"{measured.path}.logs/oneccl-rank{rank}.log").read_text()
        assert text.count("count 64, algo ring") > 2
    (event,) = [e for e in run.events if e["kind"] == "library_log"]
    assert "no time here is one of a run without --library-log" in event["message"]


def test_sub_groups_ask_their_own_rank_0(launch):
    def log(rank: int) -> None:
        real = dist.all_reduce

        def call(tensor, *args, **kwargs):
            with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
                chosen = ("RING", "TREE")[rank % 2]
                log.write(
                    f"h:1:1 [0] NCCL INFO AllReduce: {tensor.numel() * 4} Bytes -> Algo {chosen} "
                    "proto LL channel{Lo..Hi}={0..0}\n"
                )
            return real(tensor, *args, **kwargs)

        dist.all_reduce = call

    setup = as_library("nccl", log)
    arguments = "--sizes 64 -n 2 --groups mod:2 --library-log"
    results = launch("all_reduce", arguments, 4, setup=setup).ended(0).run.results
    labels = {r.case.group: [c.label for c in r.choices] for r in results}
    assert labels == {"mod:2/0": ["RING/LL"], "mod:2/1": ["TREE/LL"]}


def test_pairs_have_a_log_too(launch):
    setup = as_library("nccl", log_as_nccl)
    arguments = "--sizes 256 -n 1 -c 0 --threshold 0.9999 --library-log"
    measured = launch("pairs", arguments, 2, setup=setup).ended(0)
    assert measured.run.header["library_log"] == f"{measured.path.name}.logs"
    # Sends and receives name no algorithm; what all ranks do together has one.
    labels = [(r.case.collective, [c.label for c in r.choices]) for r in measured.run.results]
    assert labels[-1] == ("all_reduce", ["RING/SIMPLE"])
    assert {label for name, found in labels[:-1] for label in found} == set()


def test_gloo_writes_no_such_log(launch):
    measured = launch("all_reduce", "--sizes 8 --library-log").ended(4)
    assert measured.errors() == [
        error_line(
            "library-log",
            "gloo",
            "a backend whose library writes a log: nccl, xccl or ccl. gloo writes no such "
            "log: leave --library-log out.",
        )
    ]
    assert not measured.path.exists()


def refused(monkeypatch, names: str, **environ: str) -> str:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "CCL_LOG_LEVEL"):
        monkeypatch.setenv(name, "-")  # so that it is put back after the test
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    log = LibraryLog.__new__(LibraryLog)
    log._kept = []
    try:
        log.ask_for([BACKENDS[name] for name in names.split(",")])
    except TorchcollError as error:
        return str(error)
    return ", ".join(log._kept)


SETS_IT = ". --library-log sets it: unset it, or leave --library-log out."


@pytest.mark.parametrize(
    ("names", "environ", "stated"),
    [
        (
            "nccl",
            {"NCCL_DEBUG": "WARN"},
            error_text("NCCL_DEBUG", "WARN", "it unset, INFO or TRACE"),
        ),
        (
            "nccl",
            {"NCCL_DEBUG_SUBSYS": "^TUNING"},
            error_text("NCCL_DEBUG_SUBSYS", "^TUNING", "it unset, ALL, or INIT and TUNING in it"),
        ),
        ("nccl", {"NCCL_DEBUG_FILE": "/x"}, error_text("NCCL_DEBUG_FILE", "/x", "it unset")),
        (
            "ccl",
            {"CCL_LOG_LEVEL": "info"},
            error_text("CCL_LOG_LEVEL", "info", "it unset, debug or"),
        ),
        ("xccl", {"CCL_LOG_FILE": "/x"}, error_text("CCL_LOG_FILE", "/x", "it unset")),
    ],
)
def test_what_the_user_set_is_never_overwritten(monkeypatch, names, environ, stated):
    text = refused(monkeypatch, names, **environ)
    assert text.startswith(f"library-log: {stated}")
    assert text.endswith(SETS_IT)


def test_what_serves_is_kept_and_told(monkeypatch):
    kept = refused(monkeypatch, "nccl,gloo", NCCL_DEBUG="trace", NCCL_DEBUG_SUBSYS="all")
    assert kept == "NCCL_DEBUG=trace, NCCL_DEBUG_SUBSYS=all"
    assert refused(monkeypatch, "ccl", CCL_LOG_LEVEL="trace") == "CCL_LOG_LEVEL=trace"


def test_a_folder_of_an_earlier_run_is_not_written_into(launch, tmp_path):
    folder = tmp_path / "run1.jsonl.logs"
    folder.mkdir()
    arguments = "--sizes 8 --library-log"
    measured = launch("all_reduce", arguments, setup=as_library("nccl")).ended(2)
    assert measured.errors() == [
        error_line(
            "library-log",
            folder,
            "a folder that does not exist. Remove it, or name another file with --output.",
        )
    ]
    assert not measured.path.exists()


@pytest.mark.parametrize("library", ["nccl", "oneccl"])
def test_a_log_that_is_there_on_another_host_stays(launch, library):
    """Rank 0 sees its own host's folder alone."""

    def setup(rank: int) -> None:
        as_library(library)(rank)
        if rank == 1:

            def makedirs(path, exist_ok):
                os.makedirs(path, exist_ok=True)
                Path(path, f"{library}-rank1.log").write_text("of somebody else")

            library_log.os = type("os", (), {**vars(os), "makedirs": makedirs})

    measured = launch("all_reduce", "--sizes 8 --library-log", setup=setup).ended(2)
    (line,) = measured.errors()
    assert "a folder that rank 1 (" in line and "(File exists)" in line
    folder = Path(f"{measured.path}.logs")
    assert Path(folder, f"{library}-rank1.log").read_text() == "of somebody else"


def test_a_rank_that_cannot_write_is_named(launch):
    def setup(rank: int) -> None:
        as_library("nccl")(rank)
        if rank == 1:  # another host, without the folder's file system

            def makedirs(*args, **kwargs):
                raise OSError(30, "Read-only file system")

            library_log.os = type("os", (), {**vars(os), "makedirs": makedirs})

    measured = launch("all_reduce", "--sizes 8 --library-log", setup=setup).ended(2)
    (line,) = measured.errors()
    assert error_text("library-log", "") in line
    assert expecting("a folder that rank 1 (") in line
    assert line.endswith("can write (Read-only file system)")


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "log"
    tail = _Tail(str(path), "nccl")
    assert list(tail.calls()) == []
    line = "h:1:1 [0] NCCL INFO AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n"
    with open(path, "w") as log:
        log.write(line + line[:70])
        log.flush()
        assert [call.size for call in tail.calls()] == [64]
        log.write(line[70:].replace("64", "128"))
        log.flush()
        assert [(call.size, call.protocol) for call in tail.calls()] == [(64, "LL")]
    assert list(tail.calls()) == []
    tail.close()


def test_a_link_in_place_of_the_folder_is_not_followed(launch, tmp_path):
    """Somebody puts it there between the look at the name and its use."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def setup(rank: int) -> None:
        as_library("oneccl")(rank)

        def makedirs(path, exist_ok):
            with contextlib.suppress(FileExistsError):
                os.symlink(elsewhere, path)

        library_log.os = type("os", (), {**vars(os), "makedirs": makedirs})

    measured = launch("all_reduce", "--sizes 8 --library-log", setup=setup).ended(2)
    (line,) = measured.errors()
    assert "a folder that rank 0 (" in line and "logs is a symbolic link)" in line
    assert list(elsewhere.iterdir()) == []
