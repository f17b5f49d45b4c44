"""Faults of a library, made to order: does verification see them?

On real gloo ranks: each case is called through torch.distributed, the inputs of all ranks are
exchanged, and what a faulty library would have left is put in place of what this one did. A fault
that leaves every byte as it should be (a maximum taken of one input twice) is void: told apart by
comparing bytes with what torch's own reductions make of the inputs, never by the patterns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torchcoll.bench.verify import Checker, allocate, turns_of
from torchcoll.core.case import Case, size_case
from torchcoll.core.collectives import COLLECTIVES, DTYPES

ELEMENTS = 37  # a block, of no type's row
SPLITS = {2: "1,2", 3: "1,2,3", 4: "1,2,3,1"}
FLOAT_OPS = ("sum", "prod", "min", "max", "avg")
ALL_OPS = (*FLOAT_OPS, "band", "bor", "bxor")
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def cases(ranks: int, dtypes: Sequence[str]) -> Iterator[Case]:
    """Every collective with data, every operation of the type, every placement."""
    for name, entry in COLLECTIVES.items():
        if not entry.has_data or (entry.power_of_two and ranks & (ranks - 1)):
            continue
        for dtype in dtypes:
            kinds = FLOAT_OPS if DTYPES[dtype].kind == "float" else ALL_OPS
            for op in kinds if entry.has_op else (None,):
                for in_place in entry.placements:
                    size_bytes = ELEMENTS * DTYPES[dtype].itemsize * entry.parts(ranks)
                    splits = SPLITS[ranks] if entry.has_splits else None
                    root = ranks - 1 if entry.has_root else None
                    facts = ("synchronized", "gloo", "cpu", splits)
                    yield Case(name, size_bytes, dtype, op, root, in_place, *facts)


def combine(op: str, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """torch's own reduction: of floats in float64, of integers in their type."""
    kind = rows[0].dtype
    stacked = torch.stack([row.double() if kind.is_floating_point else row for row in rows])
    if op in ("sum", "avg"):
        total = stacked.sum(0, dtype=stacked.dtype)
        if op == "sum":
            return total.to(kind)
        if kind.is_floating_point:
            return (total / len(rows)).to(kind)
        return torch.div(total.long(), len(rows), rounding_mode="trunc").to(kind)
    if op == "prod":
        return stacked.prod(0, dtype=stacked.dtype).to(kind)
    if op in ("min", "max"):
        return (stacked.amin(0) if op == "min" else stacked.amax(0)).to(kind)
    total = stacked[0].clone()
    for row in stacked[1:]:
        total = {"band": total & row, "bor": total | row, "bxor": total ^ row}[op]
    return total


def output(name: str, layout: Any, inputs: Sequence[torch.Tensor], reduced: Any) -> torch.Tensor:
    """What MPI's definitions leave on this rank. reduced(inputs): the reduction."""
    rank, root, count = layout.rank, layout.root, layout.count
    own = slice(rank * count, (rank + 1) * count)
    if name in ("all_reduce", "reduce"):
        return reduced(inputs)
    if name == "reduce_scatter":
        return reduced(inputs)[own]
    if name == "reduce_scatter_v":
        return reduced(inputs).split([layout.blocks.pair(0, to) for to in range(layout.ranks)])[
            rank
        ]
    if name in ("all_gather", "all_gather_v", "hypercube", "gather"):
        return torch.cat(list(inputs))
    if name == "broadcast":
        return inputs[root]
    if name == "scatter":
        return inputs[root][own]
    if name == "all_to_all":
        return torch.cat([values[own] for values in inputs])
    if name == "sendrecv":
        return inputs[rank - 1]
    places = range(layout.ranks)
    rows = [[layout.blocks.pair(source, to) for to in places] for source in places]
    parts = [values.split(row) for values, row in zip(inputs, rows, strict=True)]
    return torch.cat([part[rank] for part in parts])


def exchanged(send: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """The inputs of all ranks."""
    octets = torch.zeros(max(lengths) * send.element_size(), dtype=torch.uint8)
    octets[: len(send) * send.element_size()] = send.view(torch.uint8)
    found = [torch.empty_like(octets) for _ in lengths]
    dist.all_gather(found, octets)
    sized = zip(found, lengths, strict=True)
    return [one[: n * send.element_size()].clone().view(send.dtype) for one, n in sized]


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    bits = BITS[one.element_size()]
    return one.view(bits) == other.view(bits)


class Faults:
    """What a faulty library leaves on this rank, for one call. ``before``: what lay there."""

    def __init__(self, case: Case, layout: Any, inputs: list[torch.Tensor], before: Any) -> None:
        self.case, self.layout, self.inputs, self.before = case, layout, inputs, before
        self.right = self.made()

    def made(self, inputs: Any = None, op: str | None = None) -> torch.Tensor:
        used = self.inputs if inputs is None else inputs
        name, kept = self.case.collective, len(self.before)
        if not kept or (self.case.collective == "reduce" and self.layout.rank != self.layout.root):
            return self.before.clone()
        ranks = len(self.inputs)

        def reduced(rows: Any) -> torch.Tensor:
            if (op or self.case.op) == "avg" and self.before.dtype.is_floating_point:
                # Of a missing or doubled contribution: still over all ranks.
                total = torch.stack([row.double() for row in rows]).sum(0)
                return (total / ranks).to(self.before.dtype)
            return combine(op or self.case.op or "", rows)

        return output(name, self.layout, used, reduced).clone()

    def all(self, stale: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        rank, ranks, count = self.layout.rank, len(self.inputs), self.layout.count
        unwritten = self.right.clone()
        unwritten[-1:] = self.before[-1:]
        yield "last element unwritten on all ranks", unwritten
        yield "nothing written", self.before
        yield "stale", stale
        yield "shifted by an element", self.right.roll(1)
        half = count if len(self.right) >= 2 * count > 0 else len(self.right) // 2
        swapped = self.right.clone()
        swapped[:half], swapped[half : 2 * half] = self.right[half : 2 * half], self.right[:half]
        yield "blocks swapped", swapped
        for one in range(ranks):
            mine = one == rank
            yield f"last element unwritten on rank {one}", unwritten if mine else self.right
            for bit in (0, 3, 8 * self.right.element_size() - 1):
                flipped = self.right.clone()
                if mine and len(flipped):
                    octets = flipped.view(torch.uint8)
                    octets[-flipped.element_size() + bit // 8] ^= 1 << bit % 8
                yield f"bit {bit} on rank {one}", flipped
            if self.case.op:
                others = [*self.inputs[:one], *self.inputs[one + 1 :]]
                yield f"without rank {one}", self.made(others)
                yield f"twice rank {one}", self.made([*self.inputs, self.inputs[one]])
            else:
                lacking = self.right.clone()
                for segment in COLLECTIVES[self.case.collective].segments(self.layout):
                    if segment.source == one:
                        place = slice(segment.offset, segment.offset + segment.length)
                        lacking[place] = self.before[place]
                yield f"without rank {one}", lacking
        if self.case.op:
            kinds = FLOAT_OPS if self.right.dtype.is_floating_point else ALL_OPS
            for op in kinds:
                if op != self.case.op:
                    yield f"{op} instead", self.made(op=op)
        if self.case.root is not None:
            yield "wrong root", self._of_another_root()

    def _of_another_root(self) -> torch.Tensor:
        """Of rooted results the right root keeps what it had; of rooted inputs another's come."""
        if self.case.collective == "broadcast":
            return self.inputs[0].clone()
        if self.case.collective == "scatter":  # the next rank's block of the input
            count, ranks = self.layout.count, len(self.inputs)
            after = (self.layout.rank + 1) % ranks
            return self.inputs[self.layout.root][after * count : (after + 1) * count].clone()
        return self.before.clone()


def differs(case: Case, ranks: int, bad: torch.Tensor, right: torch.Tensor) -> bool:
    """Beyond the stated allowance: avg of floats over 3 ranks, 3 ulp of the largest partial mean,
    which is 2/3.
    """
    if case.op == "avg" and right.dtype.is_floating_point and ranks == 3:
        allowed = 3 * torch.finfo(right.dtype).eps * 2 / 3
        return bool((~((bad.double() - right.double()).abs() <= allowed)).any())
    return not bool(same_bytes(bad, right).all())


def campaign(rank: int, ranks: int, dtypes: Sequence[str], call: Callable[..., Any]) -> list[Any]:
    """[case, fault, bytes differ, found] on this rank, over the checked calls of each case; with
    fault '' for the library as it is: False, whether it was called wrong.
    """
    warnings.simplefilter("ignore")
    rows: list[Any] = []
    for case in cases(ranks, dtypes):
        sizing = size_case(case, ranks)
        layout = sizing.layout(rank)
        buffers = allocate(torch, sizing, rank, "cpu")
        checker = Checker(torch, sizing, rank, buffers)
        lengths = [sizing.elements(place)[0] for place in range(ranks)]
        checker.refill()
        previous = Faults(case, layout, exchanged(buffers.send, lengths), buffers.recv.clone())
        stale, found = previous.right, {}
        key = f"{case.describe()}{' in place' if case.in_place else ''}"
        for turn in turns_of(case):
            checker.prepare(turn)
            send, before = buffers.send.clone(), buffers.recv.clone()
            faults = Faults(case, layout, exchanged(buffers.send, lengths), before)
            if not call(case, layout, buffers):
                buffers.recv.copy_(faults.right)
            alarms = checker.count_wrong()[1] + checker.count_changed()
            faults_of_turn = [("", faults.right), *faults.all(stale)]
            for name, bad in faults_of_turn:
                # In place the input lies in the output, or round it.
                buffers.send.view(torch.uint8).copy_(send.view(torch.uint8))
                buffers.recv.view(torch.uint8).copy_(bad.view(torch.uint8))
                wrong = checker.count_wrong()[1] + checker.count_changed()
                changed = name != "" and differs(case, ranks, bad, faults.right)
                if COLLECTIVES[case.collective].rooted_output:
                    changed &= rank == case.root  # nobody looks at the others' buffers
                total = found.setdefault(name, [False, False])
                total[0] |= changed
                total[1] |= bool(wrong) or (name == "" and bool(alarms))
            if not case.in_place and len(send):
                buffers.recv.view(torch.uint8).copy_(faults.right.view(torch.uint8))
                buffers.send.view(torch.uint8)[-1] ^= 1
                found["an input changed"] = [True, checker.count_changed() == 1]
            stale = faults.right
        rows += [[key, name, *seen] for name, seen in found.items()]
    return rows


def called(case: Case, layout: Any, buffers: Any) -> bool:
    """The case through torch.distributed; False where gloo does not take it."""
    op = None
    # gloo cannot divide whole numbers, and on a busy machine torch may say so in a later call only,
    # or never: then the buffer is wrong, and verification says so.
    if case.op == "avg" and not getattr(torch, case.dtype).is_floating_point:
        return False
    if case.op:
        op = getattr(dist.ReduceOp, "PRODUCT" if case.op == "prod" else case.op.upper())
    entry = COLLECTIVES[case.collective]
    before = buffers.recv.clone()
    try:
        entry.prepare(dist, layout, buffers.send, buffers.recv, op, None)()
    except (RuntimeError, ValueError):
        buffers.recv.copy_(before)
        return False
    return True


def gloo_campaign(rank: int, ranks: int, path: str, dtypes: Sequence[str]) -> list[Any]:
    torch.set_num_threads(1)
    store = dist.FileStore(path, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    rows = campaign(rank, ranks, dtypes, called)
    dist.barrier()
    dist.destroy_process_group()
    return rows


def outcome(of_ranks: Sequence[list[Any]]) -> dict[str, Any]:
    """Over the ranks of a run: false alarms, undetected, void and seen (case, fault)."""
    stated: dict[tuple[str, str], list[bool]] = {}
    for rows in of_ranks:
        for key, name, changed, found in rows:
            # A rank on which bytes differ must see it itself.
            total = stated.setdefault((key, name), [False, False, False])
            total[0] |= changed
            total[1] |= found
            total[2] |= changed and not found
    faults = {pair: seen for pair, seen in stated.items() if pair[1]}
    return {
        "cases": len({key for key, _ in stated}),
        "faults": len(faults),
        "alarms": [key for (key, name), seen in stated.items() if not name and seen[1]],
        "undetected": [pair for pair, (changed, _, missed) in faults.items() if changed and missed],
        "void": [pair for pair, (changed, _, _) in faults.items() if not changed],
        "false": [pair for pair, (changed, found, _) in faults.items() if found and not changed],
    }
