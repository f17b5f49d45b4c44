"""How much of a step waits for communication: by hand, and of functional collectives on ranks."""

import dataclasses
import json
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from planned_models import on_ranks
from ranks import announce, await_event
from sent import MS, call, traffic

from torchcoll import Traffic, capture
from torchcoll.core.traffic import Group
from torchcoll.parts.training.ledger import Ledger
from torchcoll.parts.training.perfetto import traffic_trace
from torchcoll.parts.training.traffic_table import summarise_traffic


def waited():
    """[exposed, time] in ns of calls on rank 0: one waited for at once, and one after a pause."""
    tensor, work = torch.ones(4), []
    dist.barrier()
    with capture() as traffic:
        if dist.get_rank():
            await_event("before the call")
            time.sleep(0.2)
        else:
            announce("before the call")
        functional.all_reduce(tensor, "sum", dist.group.WORLD).wait()
        dist.barrier()
        hidden = functional.all_reduce(tensor, "sum", dist.group.WORLD)
        work.append(dist.all_reduce(tensor, async_op=True))
        if dist.get_rank() == 0:  # both have ended before it waits for them
            await_event("rank 1 has waited")
            while not work[0].is_completed():
                time.sleep(0.001)
            time.sleep(0.2)
        hidden.wait()
        work.pop().wait()
        if dist.get_rank():
            announce("rank 1 has waited")
        dist.all_reduce(tensor, async_op=True)  # nobody waits for it
        traffic.step()
    return [
        [call.exposed_ns, call.time_ns]
        for call in traffic.calls[dist.get_rank()]
        if call.collective == "all_reduce"
    ]


def test_of_functional_and_asynchronous_calls(tmp_path):
    at_once, hidden, hidden_too, unwaited = on_ranks(tmp_path, 2, {"waited": waited})["waited"]
    assert 0.1e9 < at_once[0] <= at_once[1]
    assert hidden[0] == hidden_too[0] == 0
    assert unwaited[0] is None


def sent(rank, group="3"):
    """Of 2 to 6 and 3 to 8 ms the program waits for 3 to 8; then for 1 ms on rank 1 alone."""
    layer = {"module": "layers.1", "group": group, "step": 0}
    root = {"module": "(root)", "group": group, "step": 0, "sequence": 2}
    return [
        call("all_gather", 100, **layer, start_ns=2 * MS, time_ns=4 * MS, exposed_ns=3 * MS),
        call(
            "all_gather",
            100,
            **layer,
            sequence=1,
            start_ns=3 * MS,
            time_ns=5 * MS,
            exposed_ns=2 * MS,
        ),
        call(
            "reduce_scatter",
            10,
            **root,
            start_ns=10 * MS,
            time_ns=(2 + rank) * MS,
            exposed_ns=rank * MS,
        ),
    ]


MESH = {"3": Group("3", (0, 1), "gloo", "mesh_dp")}


def test_by_hand():
    table = summarise_traffic(Ledger(traffic(sent, steps=1, groups=MESH)))
    exposed = table.exposed
    assert (exposed.total_ns, exposed.share, exposed.unknown) == (5.5 * MS, 0.055, 0)
    rows = [dataclasses.astuple(row) for row in exposed.modules]
    assert rows == [
        ("layers.1", "all_gather", 2, 200, 9 * MS, 5 * MS, 0.05, 5 * MS),
        ("(root)", "reduce_scatter", 1, 10, 3 * MS, MS, 0.01, MS / 2),
    ]
    assert exposed.most.text == "all_gather of layers.1"
    assert {row.group for row in table.rows} == {"mesh_dp"}


def test_the_answer_names_the_layer(shown):
    text = shown(traffic(sent, steps=1, groups=MESH))
    spent = "spends 5.50 ms on communication (6 %, most of it for the all_gather of layers.1)"
    assert f"a step of 100 ms {spent}; " in text
    assert "all_gather of layers.1: 5.00 ms" in text
    assert text.index("\nlayers.1  all_gather") < text.index("\n(root)    reduce_scatter")
    assert "group mesh_dp" in text


def test_waiting_is_apart_from_the_module_that_takes_most(shown):
    """Rank 0 waits 8 of 9 ms in the call of "4" to "5" for rank 1; "0" takes 2 ms without waiting.
    11 ms on rank 0, 3 ms on rank 1.
    Names of digits are quoted.
    """

    def late(rank):
        rest = {"group": "3", "step": 0, "clock": "host"}
        start, late_ns = 2 * MS, 8 * MS * rank
        return [
            call(
                "all_reduce",
                10,
                module="4 to 5",
                start_ns=start + late_ns,
                time_ns=9 * MS - late_ns,
                exposed_ns=9 * MS - late_ns,
                **rest,
            ),
            call(
                "all_reduce",
                10,
                module="0",
                sequence=1,
                start_ns=20 * MS,
                time_ns=2 * MS,
                exposed_ns=2 * MS,
                **rest,
            ),
        ]

    source = traffic(late, steps=1, groups=MESH)
    text = " ".join(shown(source).split())
    assert "7.00 ms on communication (7 %: 4 % waiting for other ranks, 3 % in calls, " in text
    assert 'in calls, most for the all_reduce of "0")' in text
    assert 'all_reduce of "0": 2.00 ms without waiting' in text


def test_perfetto_names_layers_and_dimensions():
    two = MESH | {"4": Group("4", (0, 1), "gloo", "mesh_dp"), "5": Group("5", (0, 1), "gloo")}
    calls = traffic(lambda rank: [*sent(rank), *sent(rank, "4"), *sent(rank, "5")], groups=two)
    events = json.loads(traffic_trace(Ledger(calls))[0])["traceEvents"]
    assert {"all_gather 100 layers.1", "reduce_scatter 10 (root)"} <= {e["name"] for e in events}
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"group mesh_dp (3)", "group mesh_dp (4)", "group 5"} <= tracks


def test_a_file_keeps_modules_and_their_parameters(tmp_path):
    saved = traffic(sent, steps=1, groups=MESH)
    saved.parameters = {"layers.1": ("layers.1.weight", "layers.1.bias")}
    saved.save(tmp_path / "traffic.jsonl")
    loaded = Traffic.load(tmp_path / "traffic.jsonl")
    assert (loaded.calls, loaded.parameters) == (saved.calls, saved.parameters)


def test_a_module_that_is_named_in_some_steps_has_the_median_of_these():
    """DDP's buckets have names from the third step on. Calls of 2, 4 and 6 ms."""

    def named_later(rank):
        return [
            call(
                module="head" if step else "",
                step=step,
                sequence=step,
                start_ns=100 * step * MS,
                time_ns=(2 + 2 * step) * MS,
            )
            for step in range(3)
        ]

    (row,) = summarise_traffic(Ledger(traffic(named_later, steps=3))).exposed.modules
    assert (row.module, row.time_per_step_ns) == ("head", 5 * MS)
