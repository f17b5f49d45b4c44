"""Sub-groups at once, asynchronous and coalesced calls, and graphs that are not captured."""

import contextlib
import json
import time
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from error_form import error_line, error_text
from ranks import past

import torchcoll
from torchcoll.bench import measure
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.plausibility import summarise_run
from torchcoll.machine.devices import Cpu

NAMES = tuple(COLLECTIVES)
# gloo's all_gather takes blocks of one length only.
NOT_ON_GLOO = {name for name, entry in COLLECTIVES.items() if entry.blocks == "received"}
HYPERCUBE_NEEDS = "hypercube needs a power of two of ranks, here 3"


def by_case(run):
    """(collective, root, sub-group) -> result."""
    return {(r.case.collective, r.case.root, r.case.group): r for r in run.results}


def one_leads(rank):
    """One call before each batch, where up to ten are made for timings that no test looks at."""
    measure.LEAD_CALLS = 1


@pytest.mark.parametrize(
    ("names", "groups", "members"),
    [
        (NAMES, "3,0;2,1", [[0, 3], [1, 2]]),
        # Once formed they are lists of ranks like the first: the order of blocks, and a root.
        (("all_gather", "scatter"), "mod:2", [[0, 2], [1, 3]]),
    ],
)
def test_every_collective_in_sub_groups(launch, names, groups, members):
    options = f"--collectives {','.join(names)} --groups {groups} --sizes 240 -r 0,1 -n 3"
    run = launch(None, options, 4, setup=one_leads).ended(0).run
    found = by_case(run)
    rooted = sum(COLLECTIVES[name].has_root for name in names)
    assert len(run.results) == len(found) == 2 * (len(names) + rooted)
    for (name, _, group), result in found.items():
        place = int(group.rpartition("/")[2])
        assert result.members == members[place], (name, group)
        if name in NOT_ON_GLOO:
            assert (result.status, result.ranks) == ("unsupported", 2)
            continue
        assert (result.status, result.ranks, result.stop) == ("ok", 2, "count"), (name, group)
        assert [len(ns) for ns in result.time_ns["host"]] == [3, 3]
        assert len(result.cold_ns) == 2
        if COLLECTIVES[name].has_data:
            # uneven shares are rounded
            assert result.size_bytes == (236 if COLLECTIVES[name].has_splits else 240)
            assert result.verification.checked and not result.verification.wrong, (name, group)


def test_parts_of_different_size(launch):
    """Each group has its own counts, bytes and bandwidth."""
    options = "--collectives all_reduce,all_gather,reduce_scatter,hypercube --groups 0,2,3;1"
    run = launch(None, f"{options} --sizes 240 -n 2", 4).ended(0).run
    found = {(r.case.collective, r.ranks): r for r in run.results}
    assert [r.members for r in run.results[:2]] == [[0, 2, 3], [1]]
    gathered = found["all_gather", 3]
    assert (gathered.count, gathered.bytes_in, gathered.bytes_out) == (20, 80, 240)
    alone = found["all_gather", 1]
    assert (alone.count, alone.bytes_in, alone.bytes_out) == (60, 240, 240)
    scattered = found["reduce_scatter", 3]
    assert (scattered.count, scattered.bytes_in, scattered.bytes_out) == (20, 240, 80)
    for (name, ranks), result in found.items():
        if name == "hypercube":  # refused for all, where one group cannot
            assert (result.status, result.reason) == ("skipped", HYPERCUBE_NEEDS)
        else:
            assert result.status == "ok" and result.verification.wrong == 0
            checked = result.bytes_out // 4 * ranks
            assert result.verification.checked == checked, (name, ranks)
    rows = {(row.collective, row.ranks): row for row in summarise_run(run)}
    assert rows["all_reduce", 3].algbw_gbps == 240 / rows["all_reduce", 3].median_ns
    assert rows["all_reduce", 3].busbw_gbps == pytest.approx(
        4 / 3 * rows["all_reduce", 3].algbw_gbps
    )
    assert rows["all_reduce", 1].busbw_gbps is None


def test_a_wrong_group_is_named(launch):
    """One element of one sub-group: the other one is not to blame."""

    def spoil(rank):
        if rank != 3:
            return
        once = measure._Measurement._check

        def check(self):
            timed = self.calls.timed

            def call():
                timed()
                self.buffers.recv[0] += 1

            self.calls.timed = call
            return once(self)

        measure._Measurement._check = check

    measured = launch("all_reduce", "--groups mod:2 --sizes 64 -n 1", 4, setup=spoil)
    run = measured.ended(1).run
    assert [(r.case.group, r.status) for r in run.results] == [
        ("mod:2/0", "ok"),
        ("mod:2/1", "wrong"),
    ]
    check = run.results[1].verification
    assert (check.wrong, check.wrong_ranks) == (1, (3,))  # a rank of the run


def test_fresh_sub_groups(launch):
    options = "--groups div:2 --fresh-group --sizes 64,128 -n 2"
    run = launch("all_reduce", options, 4).ended(0).run
    assert len(run.results) == 4
    for result in run.results:
        assert (result.ordinal, result.communicator, result.status) == (0, "new_group", "ok")
        assert len(result.connect_ns) == 2 and min(result.connect_ns) > 0


def test_every_rank_alone(launch):
    """One rank measures no communication, in a sub-group neither."""
    run = launch("all_reduce", "--groups mod:2 --sizes 64 -n 2", 2).ended(0).run
    assert [(r.members, r.ranks, r.status) for r in run.results] == [([0], 1, "ok"), ([1], 1, "ok")]
    assert [row.busbw_gbps for row in summarise_run(run)] == [None, None]


@pytest.mark.parametrize(
    ("collective", "options", "stated"),
    [
        (
            "all_reduce",
            "--groups col:2",
            error_text("groups", "col:2", "mod:N, div:N, or a list of ranks such as 0,1;2,3"),
        ),
        (
            "all_reduce",
            "--groups 0,1;1,2",
            error_text("groups", "0,1;1,2", "each of the ranks 0 to 2 once"),
        ),
        ("broadcast", "--groups 0,1;2 -r 1", error_text("root", "1", "0 to 0 (1 rank)")),
    ],
)
def test_groups_that_cannot_be(launch, collective, options, stated):
    measured = launch(collective, f"{options} --sizes 64 -n 1", 3, output=False).ended(2)
    assert measured.errors() == [f"torchcoll: error: {stated}"]


def test_splits_that_a_sub_group_cannot_have(launch):
    measured = launch(
        "all_to_all_v", "--groups 0,1;2 --splits 1,2 --sizes 64 -n 1", 3, output=False
    )
    (line,) = measured.ended(2).errors()
    assert line.startswith(error_line("splits", ""))


def test_asynchronous_calls(launch):
    """All but those that are several calls."""
    run = launch(None, "--collectives all --async --sizes 240 -n 3", 2).ended(0).run
    found = {r.case.collective: r for r in run.results}
    assert set(found) == set(NAMES)
    for name, result in found.items():
        assert result.case.asynchronous
        if name in ("sendrecv", "hypercube"):
            assert result.status == "unsupported"
            assert result.reason == f"{name} is several calls, which wait for each other"
            assert not result.cold_ns
        elif name in NOT_ON_GLOO:
            assert (result.status, result.reason) == (
                "unsupported",
                "gloo has no all_gather of blocks that differ",
            )
        else:
            assert (result.status, result.stop) == ("ok", "count"), (name, result.reason)
            assert not COLLECTIVES[name].has_data or result.verification.wrong == 0


def test_async_op_is_asked_for_and_waited_for(launch):
    def watch(rank):
        true = dist.all_reduce

        class Work:
            def __init__(self, work):
                self.work = work

            def wait(self):
                print("wait")
                self.work.wait()

        def all_reduce(tensor, op, group, async_op=False):
            print("async_op", async_op)
            work = true(tensor, op, group, async_op=async_op)
            return Work(work) if async_op else work

        dist.all_reduce = all_reduce

    options = "--async --sizes 64 -n 0 --cold 20 --quiet"
    measured = launch("all_reduce", options, 2, setup=watch).ended(0)
    stated = [line for line in measured.stdout(1).splitlines() if line]
    # The last one verifies: what was timed is what is verified.
    assert stated == ["async_op True", "wait"] * 21


def test_coalesced_calls_on_gloo(launch):
    """gloo has no groups of calls, and says so; nothing hangs."""
    run = launch(None, "--collectives all --coalesce 4 --sizes 240 -n 3", 2).ended(1).run
    reasons = {r.case.collective: r.reason for r in run.results}
    assert {r.status for r in run.results} == {"unsupported"}
    assert reasons.pop("barrier") == "a barrier waits on the host, so several are no group"
    for name in ("sendrecv", "hypercube"):
        assert reasons.pop(name) == f"{name} is a group of calls itself"
    for name in NOT_ON_GLOO:
        assert reasons.pop(name) == "gloo has no all_gather of blocks that differ"
    for name, reason in reasons.items():
        assert "gloo" in reason and "oalescing" in reason, (name, reason)


def test_a_refused_group_of_calls_is_closed(jobs, tmp_path):
    """torch leaves it open, and would swallow every later call of the user's own group."""

    def target():
        import torchcoll

        dist.init_process_group("gloo")
        run = torchcoll.run(torchcoll.Spec(sizes=(64,), iters=1, coalesce=2))
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        if run:
            facts = [run.results[0].status, tensor.item()]
            Path("seen.json").write_text(json.dumps(facts))
        dist.destroy_process_group()

    job = jobs(tmp_path, target, 2)
    assert job.codes() == [0, 0], job.text(0) + job.text(1)
    assert json.loads((tmp_path / "seen.json").read_text()) == ["unsupported", 2.0]


def with_groups(rank):
    """A stand-in for a backend that has groups of calls."""
    dist._coalescing_manager = lambda group, device: contextlib.nullcontext()


def test_bytes_of_coalesced_calls(launch):
    """Timed together: N times the bytes, and N calls of the communicator."""
    options = "--coalesce 4 --sizes 1K,2K -n 3 --cold 20"
    measured = launch("all_reduce", options, 2, setup=with_groups).ended(0)
    first, second = measured.run.results
    assert (first.case.coalesce, first.status, first.size_bytes) == (4, "ok", 1024)
    # Four sums of one buffer give what no pattern foresees: not verified, and the row says why.
    assert first.verification is None
    reason = (
        "not verified: the calls of a group reduce the same buffer in place, so the values depend "
        "on their order"
    )
    assert first.warnings[:1] == [reason]
    assert f"[1] {reason}" in measured.stdout()
    assert [len(ns) for ns in first.time_ns["host"]] == [3, 3]
    assert second.ordinal == 4 * (20 + len(first.ramp_up_ns[0]) + 3)
    row = summarise_run(measured.run)[0]
    assert (row.coalesce, row.size_bytes) == (4, 1024)
    assert row.algbw_gbps == 4 * 1024 / row.median_ns


def test_only_reductions_in_place_are_not_verified_in_a_group(launch):
    """Out of place each call of a group puts out the same; with -c 0 nobody expects a check."""
    options = "--coalesce 4 --sizes 1K -n 3"
    result = launch("reduce_scatter", options, 2, setup=with_groups).ended(0).only()
    # 256 float32 over 2 ranks: each puts out 128.
    assert (result.verification.checked, result.verification.failed) == (2 * 128, False)
    result = launch("all_reduce", f"{options} -c 0", 2, setup=with_groups).ended(0).only()
    assert result.verification is None
    assert not any("verified" in text for text in result.warnings)


def captures(refused):
    """The CPU as a device that captures; ranks in ``refused`` fail to."""

    def setup(rank):
        def graph(self, call):
            if rank in refused:
                raise RuntimeError("operation not permitted when stream is capturing\nwhere ...")
            return call

        Cpu.captures = True
        Cpu.graph = graph

    return setup


def test_a_graph_is_replayed(launch):
    options = "--collectives all_reduce,barrier --mode graph --sizes 64 -n 4"
    first, barrier = launch(None, options, 2, setup=captures([])).ended(0).run.results
    assert (first.status, first.case.mode, first.stop) == ("ok", "graph", "count")
    assert first.verification.wrong == 0
    assert (barrier.status, barrier.reason) == (
        "unsupported",
        "a barrier waits on the host, which no graph can capture",
    )


@pytest.mark.parametrize("refused", [[0, 1], [1]])
def test_a_graph_that_is_not_captured_ends_the_case_alone(launch, refused):
    options = "--mode graph --sizes 64,128 -n 4"
    run = launch("all_reduce", options, 2, setup=captures(refused)).ended(1).run
    for result in run.results:
        assert (result.status, result.reason) == (
            "unsupported",
            "graph capture: operation not permitted when stream is capturing",
        )
        assert result.cold_ns and not result.time_ns and result.verification is None
    assert run.results[1].ordinal == len(run.results[0].cold_ns[0])


@pytest.mark.parametrize("options", ["", "--fresh-group"])
def test_memory_is_given_back_when_the_buffers_are_gone(launch, options):
    """Else the next case would find the device as full as it was."""

    def watch(rank):
        made = []
        true = measure.allocate

        def allocate(*args):
            buffers = true(*args)
            made.append(weakref.ref(buffers.recv))
            return buffers

        def release(self):
            began = time.monotonic()  # gloo's thread lets go a moment after the call's end
            while (alive := sum(there() is not None for there in made)) and not past(began, 30):
                time.sleep(0.01)
            print("alive", alive, "of", len(made))

        measure.allocate = allocate
        Cpu.release = release

    arguments = f"--sizes 64,128 -n 2 --quiet {options}"
    measured = launch("all_gather", arguments, 2, setup=watch).ended(0)
    stated = [line for line in measured.stdout(1).splitlines() if line]
    assert stated == ["alive 0 of 1", "alive 0 of 2"]


def test_resume_runs_a_case_again_whose_sub_groups_are_not_all_there(launch):
    whole = launch("all_reduce", "--groups mod:2 --sizes 1K,4K -n 1", 4)
    whole.ended(0)
    lines = whole.path.read_text().splitlines(keepends=True)
    cases = [i for i, line in enumerate(lines) if '"record":"case"' in line]
    whole.path.write_text("".join(lines[: cases[-1]]))  # the last sub-group of 4K is lost
    launch("all_reduce", f"--resume {whole.path}", 4, output=False).ended(0)
    results = torchcoll.load(whole.path).results
    assert sorted((r.case.size_bytes, r.case.group) for r in results) == [
        (1024, "mod:2/0"),
        (1024, "mod:2/1"),
        (4096, "mod:2/0"),
        (4096, "mod:2/1"),
    ]
