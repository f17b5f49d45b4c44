"""torchcoll.pairs on real ranks: what it measures, writes and says, and how it fails."""

import itertools
import json
import os
import re
import socket
import time

import pytest
from error_form import error_line, error_text
from ranks import ticking

from torchcoll import load, save
from torchcoll.bench.options import Options
from torchcoll.cli import main as torchcoll
from torchcoll.core.errors import UsageError
from torchcoll.machine import environment
from torchcoll.questions.pairs import pairs_run
from torchcoll.questions.pairs.matches import EXCHANGE, LATENCY, SEND, read_pairs
from torchcoll.questions.pairs.pairs_run import parse_pairs

# On a busy machine any rank may be slow for a while: with this threshold nobody is a suspect.
CALM = "--sizes 1K,4K -n 2 --threshold 0.9999"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    from ranks import Measured

    folder = tmp_path_factory.mktemp("pairs") / "run"
    return Measured(folder, "pairs", CALM, 5).ended(0)


def test_every_pair_has_its_samples(measured):
    run = measured.run
    found = read_pairs(run)
    every = [(a, b) for a in range(5) for b in range(a + 1, 5)]
    assert found.pairs == every
    assert found.failed == [] and found.alone == []
    assert {k: sorted(v) for k, v in found.times.items()} == {
        (LATENCY, 8): every,
        (EXCHANGE, 1024): every,
        (EXCHANGE, 4096): every,
        (SEND, 1024): sorted(every + [p[::-1] for p in every]),
        (SEND, 4096): sorted(every + [p[::-1] for p in every]),
    }
    assert all(result.start_ns and result.start_wall_us for result in run.results)
    assert run.problems == []
    one = next(r for r in run.results if r.case.group == "pair/1-4" and r.case.size_bytes == 4096)
    assert (one.members, one.ranks, one.count) == ([1, 4], 2, 1024)
    assert [len(calls) for calls in one.cold_ns] == [1, 1]
    assert [len(calls) for calls in one.time_ns["host"]] == [2, 2]
    assert (one.verification.checked, one.verification.wrong) == (2048, 0)
    latency = next(r for r in run.results if r.case.group == "pair/1-4")
    assert [len(calls) for calls in latency.time_ns["host"]] == [20, 20]


def test_all_ranks_together_come_last(measured):
    *_, last = measured.run.results
    assert (last.case.collective, last.case.size_bytes, last.case.group) == (
        "all_reduce",
        4096,
        None,
    )
    assert (last.ranks, last.status) == (5, "ok")
    assert measured.run.complete


def test_what_is_printed(measured):
    text = measured.stdout()
    assert "5 ranks, gloo on cpu, float32: 10 of 10 pairs, in rounds of disjoint pairs" in text
    assert re.search("4K both ways at once, [GM]B/s sent by each rank", text)
    assert "all ranks together, all_reduce 4K float32 sum on gloo:" in text
    enough = len(os.sched_getaffinity(0)) >= 5  # cores, a rank each
    assert ("is slow (" if enough else "no rank can be judged; ranks wait for a core") in text
    assert text.isascii()


def test_torchcoll_pairs_reads_the_file(measured, capsys):
    assert torchcoll(["pairs", str(measured.path), "--threshold", "99.99%"]) == 0
    assert capsys.readouterr().out == measured.stdout()
    assert (
        torchcoll(["pairs", str(measured.path), "--threshold", "0.9999", "--format", "json"]) == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "torchcoll-pairs/1"
    assert len(data["rows"]) == 10 * 7
    assert data["largest_group"] == [0, 1, 2, 3, 4]
    assert torchcoll(["show", str(measured.path)]) in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            ["--threshold", "2"],
            2,
            error_text("threshold", "2", "a share above 0 and below 1, such"),
        ),
        (
            ["--format", "html"],
            2,
            error_text("format", "html", "one of table, markdown, csv, json"),
        ),
    ],
)
def test_reading_refuses(measured, capsys, arguments, code, text):
    assert torchcoll(["pairs", str(measured.path), *arguments]) == code
    assert text in capsys.readouterr().err


def test_a_file_without_pairs(launch, capsys):
    other = launch("all_reduce", "--sizes 8 -n 1", 1).ended(0)
    assert torchcoll(["pairs", str(other.path)]) == 3
    stated = capsys.readouterr().err
    assert error_text("pairs", other.path, "a result file of torchcoll.pairs") in stated


def on_hosts(size):
    def setup(rank):
        environment.hostname = lambda: f"node{rank // size}"

    return setup


def test_nodes_meet_all_ranks_at_once(launch):
    job = launch("pairs", f"--by node {CALM}", 5, setup=on_hosts(2)).ended(0)
    found = read_pairs(job.run)
    assert found.units == ((0, 1), (2, 3), (4,))
    assert found.hosts == ("node0", "node1", "node2")
    ranks = {r.case.group: r.members for r in job.run.results if r.members}
    assert ranks == {"node/0-1": [0, 1, 2, 3], "node/0-2": [0, 4], "node/1-2": [2, 4]}
    assert "3 nodes of 5 ranks, first with first, second with second, all at once" in job.stdout()


def test_a_slow_rank_ends_with_1_and_its_node(launch):
    def sluggish(rank):
        on_hosts(1)(rank)
        pairs_run.LATENCY_ITERS = 2
        clock = ticking()
        if rank == 2:
            made = pairs_run.PairsRun._call

            def slow(*args):
                call, wait = made(*args), clock.call(itertools.repeat(20_000_000))
                return lambda: (call(), wait())

            pairs_run.PairsRun._call = slow

    job = launch("pairs", "--sizes 1K -n 1 -c 0 --threshold 0.5", 4, setup=sluggish).ended(1)
    (error,) = job.errors()
    assert error.startswith("torchcoll: error: suspect: rank 2 (node2): ")
    assert " % of the others' speed " in error
    stated = [e for e in job.run.events if e["kind"] == "suspect" and e.get("host")]
    assert [(e["host"], e["ranks"]) for e in stated] == [("node2", [2])]
    assert "SUSPECT rank 2 (node2)" in job.stdout()
    assert job.run.end["exit_code"] == 1
    alone = read_pairs(job.run).alone
    assert len(alone) == 4  # passes
    for again in (times for tables in alone for times in tables.values()):
        # Its three pairs, and three usual ones beside them: all there are of four ranks.
        assert {tuple(sorted(pair)) for pair in again} == set(itertools.combinations(range(4), 2))
    assert torchcoll(["pairs", str(job.path)]) == 1


def test_who_is_slow_only_beside_the_others_is_cleared_by_one_pass(launch):
    def sluggish(rank):
        on_hosts(1)(rank)
        pairs_run.LATENCY_ITERS = 2
        clock, made, went, rules = (
            ticking(),
            pairs_run.PairsRun._call,
            pairs_run.PairsRun._round,
            [""],
        )

        def stated(self, met, text, rule, cases):
            rules[0] = rule
            went(self, met, text, rule, cases)

        def slow(*args):
            call, wait = made(*args), clock.call(itertools.repeat(20_000_000))
            return lambda: (call(), rank == 2 and rules[0] == "pair" and wait())

        pairs_run.PairsRun._round, pairs_run.PairsRun._call = stated, slow

    job = launch("pairs", "--sizes 1K -n 1 -c 0 --threshold 0.5", 4, setup=sluggish).ended(0)
    assert re.search(r"not alone: rank 2 \(node2\): \d+ % of the others' speed", job.stdout())
    assert len(read_pairs(job.run).alone) == 1
    assert not [e for e in job.run.events if e["kind"] == "suspect"]


def test_ranks_that_share_a_core_accuse_nobody(launch):
    """One rank is a sleeper, and all are on one core: nobody can tell the two apart."""

    def sluggish(rank):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        made = pairs_run.PairsRun._call
        pairs_run.PairsRun._call = lambda *args: (
            lambda call: lambda: (call(), time.sleep(0.01 * (rank == 2)))
        )(made(*args))
        pairs_run.LATENCY_ITERS = 2

    job = launch("pairs", "--sizes 1K -n 1 -c 0 --threshold 0.5", 4, setup=sluggish).ended(0)
    assert not [e for e in job.run.events if e["kind"] == "suspect"]
    assert "ranks wait for a core: those pairs accuse nobody" in job.stdout()
    assert "no rank can be judged; ranks wait for a core" in job.stdout()
    assert torchcoll(["pairs", str(job.path)]) == 0


def test_reading_a_failed_case_ends_with_1(measured, tmp_path, capsys):
    run = load(measured.path)
    run.results[0].status = "failed"
    save(run, tmp_path / "failed.jsonl")
    assert torchcoll(["pairs", str(tmp_path / "failed.jsonl"), "--threshold", "0.9999"]) == 1
    assert "not complete: 9 of 10 pairs" in capsys.readouterr().out


def test_a_lost_rank_names_the_pair(launch):
    def dies(rank):
        if rank == 2:
            pairs_run.PairsRun._verified = lambda *args: os._exit(9)

    job = launch("pairs", "--sizes 1K -n 1", 3, setup=dies)
    ended = job.job.wait()
    assert [e.code for e in ended.values()] == [5, 5, 9]
    (error,) = job.errors()
    assert "lost rank 2" in error and "round 1 of 3 (1-2)" in error
    assert load(job.path).end["exit_code"] == 5


def refuse(*args):
    raise RuntimeError("send isn't implemented on backend [cpu]")


def test_a_backend_that_cannot_send(launch):
    def setup(rank):
        import torch

        torch.distributed.batch_isend_irecv = refuse

    job = launch("pairs", "--sizes 1K -n 1", 3, setup=setup).ended(4)
    (error,) = job.errors()
    assert error == error_line(
        "pairs",
        "gloo on cpu: send isn't implemented on backend [cpu]",
        "a backend that sends from rank to rank. Choose another with --backend.",
    )


def test_ranks_that_alone_cannot_send_are_named(launch):
    """In the first round of 5 ranks one has no pair, and nothing to be refused."""

    def setup(rank):
        import torch

        def nothing(*args):
            return []

        torch.distributed.batch_isend_irecv = refuse if rank in (1, 2) else nothing

    job = launch("pairs", "--sizes 1K -n 1", 5, setup=setup).ended(1)
    host = socket.gethostname()
    assert job.errors() == [
        f"torchcoll: error: pairs: sending failed on rank 1 ({host}), rank 2 ({host}) alone: "
        "send isn't implemented on backend [cpu]"
    ]


def test_wrong_data_is_a_failure(launch):
    def setup(rank):
        if rank == 1:
            pairs_run.Checker._fill = lambda self, source: self._buffers.send.zero_()

    job = launch("pairs", "--sizes 1K -n 1 --threshold 0.9999", 2, setup=setup).ended(1)
    wrong = [r for r in job.run.results if r.status == "wrong"]
    assert [(r.case.group, r.case.size_bytes) for r in wrong][:2] == [
        ("pair/0-1", 8),
        ("pair/0-1", 1024),
    ]
    assert wrong[1].verification.wrong_ranks == (0,)
    assert "elements wrong" in job.errors()[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", error_text("pairs", "1 rank", "2 ranks or more. torchrun --nproc-per-node N.")),
        ("--by rack", error_text("by", "rack", "one of rank, node")),
        ("--threshold x", error_text("threshold", "x", "a share above 0 and below 1, such as 2%")),
        ("--dry-run", error_text("pairs", "1 rank", "2 ranks or more.")),
    ],
)
def test_bad_input_ends_with_2(launch, arguments, text):
    job = launch("pairs", arguments, 1, output=False).ended(2)
    assert text in job.stderr()


def test_a_backend_that_sends_nothing():
    with pytest.raises(UsageError, match=error_text("backend", "fake", "one that communicates")):
        pairs_run.refuse_lone("fake", 4)
    with pytest.raises(UsageError, match=error_text("backend", "gloo,ccl", "one backend")):
        pairs_run.refuse_lone("gloo,ccl", 4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--mode back-to-back", error_text("mode", "back-to-back", "none: torchcoll.pairs")),
        ("--seed 1", error_text("seed", "1", "none: torchcoll.pairs has no such choice")),
        ("--resume x", error_text("resume", "x", "none: pairs are measured in one go")),
        ("--format nccl-tests", error_text("format", "nccl-tests", "one of table, markdown, csv")),
        (
            "--sizes 8",
            error_text("sizes", "8", "more than 8 bytes. The latency is measured in any"),
        ),
        ("--sizes 1001", error_text("sizes", "1001", "a multiple of 8 bytes")),
        ("-d float32,int32", error_text("dtype", "float32,int32", "one type")),
        ("-n 0", error_text("iters", "0", "a whole number from 1 on")),
        ("--ranks-per-node 0", error_text("ranks-per-node", "0", "a whole number from 1 on")),
        ("--ranks-per-node 2", error_text("ranks-per-node", "2", "--dry-run with it")),
    ],
)
def test_options_that_are_refused(arguments, text):
    with pytest.raises(UsageError) as caught:
        parse_pairs(arguments.split())
    assert text in str(caught.value)


def test_defaults():
    options, pairs = parse_pairs([])
    assert isinstance(options, Options)
    assert (options.spec.sizes, options.spec.iters) == ((8 << 20,), 10)
    assert (pairs.by, pairs.threshold) == ("rank", 0.2)


def test_dry_run(launch):
    job = launch("pairs", "--dry-run --ranks 64 --backend fake", 1, output=False).ended(0)
    assert "64 ranks: 2016 pairs in 63 rounds of 32 at once." in job.stdout()
