"""--buffer-reuse rotate: where calls find their buffers, and that those are what is verified."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from ranks import ticking

from torchcoll.bench import measure
from torchcoll.bench.buffers import MOST_SLOTS, Rotation
from torchcoll.bench.verify import Checker, allocate
from torchcoll.core.case import Case, size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.spec import Spec

NAMES = [name for name, entry in COLLECTIVES.items() if entry.has_data]


def case(collective: str, size_bytes: int, in_place: bool | None = None) -> Case:
    entry = COLLECTIVES[collective]
    where = entry.placements[0] if in_place is None else in_place
    return Case(
        collective,
        size_bytes,
        "float32",
        "sum" if entry.has_op else None,
        1 if entry.has_root else None,
        where,
        "synchronized",
        "gloo",
        "cpu",
        splits="seed:0" if entry.has_splits else None,
        buffer_reuse="rotate",
    )


def walked(
    collective: str, size_bytes: int, span: int, rank: int = 1, in_place: bool | None = None
):
    """SizedCase, buffers, the rotation, and what each call was made with: (send, recv)."""
    sizing = size_case(case(collective, size_bytes, in_place), 4, span_bytes=span)
    buffers = allocate(torch, sizing, rank, "cpu")
    made: list[tuple[Any, Any]] = []

    def call():
        made.append((buffers.send, buffers.recv))
        own = made[-1]
        return lambda: own

    rotation = Rotation(torch, sizing, rank, buffers, call, list)
    return sizing, buffers, rotation, made


def test_each_call_takes_the_next_place_and_the_last_is_followed_by_the_first():
    """nccl-tests: shift = size * (iter % (maxbytes / size)): 0, 256, 512, 768, 0, ... elements."""
    _, buffers, rotation, made = walked("all_reduce", 1024, 4096 + 1000)
    assert len(made) == 4
    start = buffers.rooms[1].data_ptr()
    taken = [(rotation()[1].data_ptr() - start) // 4 for _ in range(6)]
    assert taken == [0, 256, 512, 768, 0, 256]
    assert all(len(recv) == 256 for _, recv in made)


@pytest.mark.parametrize("in_place", [False, True])
def test_both_buffers_are_shifted_alike(in_place):
    """By the larger side, on every rank: rank 1 sends the second block of its place."""
    _, buffers, rotation, _ = walked("all_gather", 1024, 4096, in_place=in_place)
    rooms = [room.data_ptr() for room in buffers.rooms]
    assert (rooms[0] == rooms[1]) == in_place
    for place in range(4):
        send, recv = rotation()
        assert (recv.data_ptr() - rooms[1], len(recv)) == (1024 * place, 256)
        own = 256 if in_place else 0
        assert (send.data_ptr() - rooms[0], len(send)) == (1024 * place + own, 64)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_have_nothing_to_send_or_receive(rank):
    for name, empty in (("gather", 1), ("scatter", 0)):
        _, buffers, rotation, _ = walked(name, 1024, 4096, rank=rank, in_place=False)
        held = [len(room) for room in buffers.rooms]
        assert [n == 0 for n in held] == [rank == 0 and side == empty for side in (0, 1)]
        rotation.refill()
        assert all(len(side) <= 256 for _ in range(5) for side in rotation())


def test_more_places_than_calls_can_be_made_for():
    """8 bytes in 128 MiB have a million places, 128 bytes apart."""
    sizing, _, rotation, made = walked("all_reduce", 8, 1 << 20)
    assert sizing.slots == 1 << 13
    assert len(made) == MOST_SLOTS == 2048
    first = rotation()[1].data_ptr()
    last = [rotation()[1].data_ptr() for _ in range(MOST_SLOTS)]
    assert (last[-2] - first, last[-1]) == (128 * (MOST_SLOTS - 1), first)


def test_every_place_has_input_and_has_been_touched():
    """Page faults belong to no call; NaN would be slow on some machines."""
    _, buffers, rotation, _ = walked("all_gather", 1024, 4096 + 512, in_place=False)
    for room in buffers.rooms:
        room.fill_(7777)
    rotation()
    rotation.refill()
    send, recv = buffers.rooms
    assert (len(send), len(recv)) == (1024, 1024)
    assert not (send == 7777).any() and not send.isnan().any()
    assert recv.isnan().all(), "poisoned"
    recv.fill_(5)
    rotation.refill()
    assert (recv == 5).all(), "touched once"


def test_the_checked_call_is_verified_where_it_wrote():
    """Right answers at the place of the last call are no answer at that of the next."""
    sizing, buffers, rotation, _ = walked("broadcast", 1024, 4096, rank=1)
    checker = Checker(torch, sizing, 1, buffers)  # rank 1 is the root: its input is the answer
    rotation.refill()
    rotation(), rotation()
    rotation.stand()
    checker.prepare()
    _, recv = rotation()
    assert recv.data_ptr() - buffers.rooms[1].data_ptr() == 2 * 1024
    assert checker.count_wrong() == (256, 0)
    recv[200] += 1
    assert checker.count_wrong() == (256, 1)
    recv[200] -= 1
    buffers.rooms[1][:512] = 99  # the places of other calls
    buffers.rooms[1][768:] = 99
    assert checker.count_wrong() == (256, 0)


def test_the_largest_of_the_sweep_is_walked_through():
    spec = Spec(collectives="all_reduce,all_gather", sizes="1K,4K,10000", buffer_reuse="rotate")
    spans = {sizing.span_bytes for sizing in spec.sizings(2)}
    assert spans == {10_000}
    assert [s.slots for s in spec.sizings(2)] == [9, 2, 1] * 2
    same = dataclasses.replace(spec, buffer_reuse="same")
    assert {s.span_bytes for s in same.sizings(2)} == {0}


def test_every_collective_on_real_ranks(launch):
    options = f"--collectives {','.join(NAMES)} --in-place both --splits 1,2"
    # 8 places, and more than one turn.
    options += " --sizes 1K,8K --buffer-reuse rotate -n 10"
    run = launch(None, options, 2, setup=lambda rank: ticking()).ended(0).run
    placements = sum(len(COLLECTIVES[name].placements) for name in NAMES)
    assert len(run.results) == 2 * placements
    for result in run.results:
        if COLLECTIVES[result.case.collective].blocks == "received":  # gloo has no such all_gather
            assert result.status == "unsupported"
            continue
        assert (result.status, result.case.buffer_reuse) == ("ok", "rotate"), result.case
        assert result.verification.checked and not result.verification.wrong, result.case
    assert run.spec.buffer_reuse == "rotate"


def test_a_fault_at_the_place_of_the_checked_call_is_found(launch):
    """And one in a place that another call used is not held against it."""

    def setup(rank: int) -> None:
        entry = COLLECTIVES["all_reduce"]
        measure.LEAD_CALLS, measure.LEAD_NS = 4, 10**12  # however long the calls take here

        def prepare(dist, layout, send, recv, op, group):
            call = entry.prepare(dist, layout, send, recv, op, group)
            # 4 places of 1K: 20 cold calls and 4 ramp-up calls are whole turns.
            place = recv.storage_offset() // 256

            def spoilt():
                call()
                if place == 1:
                    recv[7] += 1

            return spoilt

        COLLECTIVES["all_reduce"] = dataclasses.replace(entry, prepare=prepare)

    # Cold calls end at 3 or go on to 20: the settling rule decides, so 20 are asked for.
    options = "--sizes 1K,4K --buffer-reuse rotate --cold 20"
    for steady, wrong in ((1, 2), (2, 0)):  # call 21 is at place 1, call 22 at place 2
        measured = launch("all_reduce", f"{options} -n {steady}", 2, setup=setup)
        measured.ended(1 if wrong else 0)
        assert measured.run.results[0].verification.wrong == wrong


def test_asynchronous_calls_walk_too(launch):
    run = launch("all_reduce", "--sizes 1K,16K --buffer-reuse rotate -n 20 --async", 2).ended(0).run
    assert [(r.status, r.verification.wrong) for r in run.results] == [("ok", 0)] * 2
