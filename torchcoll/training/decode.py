"""What a c10d operator of torch sends: its arguments -> fields of a TrafficCall.

Source: the schemas in torch/csrc/distributed/c10d/Ops.cpp. Arguments are found by their names in
them: torch has added some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchcoll.core.collectives import exchange_with_splits, uneven


@dataclass(frozen=True)
class Operator:
    """An operator of c10d: its collective, and which arguments hold what is sent and received."""

    collective: str
    sent: str = ""
    received: str = ""


# Where both are the same argument, every rank is counted with it, as in core/collectives.py: what
# the others hold in a broadcast is no input, but it is what torch is given.
_C10D = {
    "allreduce_": Operator("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": Operator("all_reduce", "tensors", "tensors"),
    "broadcast_": Operator("broadcast", "tensors", "tensors"),
    "reduce_": Operator("reduce", "tensors", "tensors"),
    "allgather_": Operator("all_gather", "input_tensors", "output_tensors"),
    "_allgather_base_": Operator("all_gather", "input_tensor", "output_tensor"),
    "allgather_coalesced_": Operator("all_gather", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": Operator("all_gather", "inputs", "outputs"),
    "reduce_scatter_": Operator("reduce_scatter", "input_tensors", "output_tensors"),
    "_reduce_scatter_base_": Operator("reduce_scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": Operator("reduce_scatter", "inputs", "outputs"),
    "alltoall_": Operator("all_to_all", "input_tensors", "output_tensors"),
    "alltoall_base_": Operator("all_to_all", "input", "output"),
    "gather_": Operator("gather", "input_tensors", "output_tensors"),
    "gather_into_tensor_": Operator("gather", "input_tensor", "output_tensor"),
    "scatter_": Operator("scatter", "input_tensors", "output_tensors"),
    "send": Operator("send", sent="tensors"),
    "recv_": Operator("recv", received="tensors"),
    "recv_any_source_": Operator("recv", received="tensors"),
    "barrier": Operator("barrier"),
    "monitored_barrier_": Operator("monitored_barrier"),
}
OPERATORS = {f"c10d::{name}": operator for name, operator in _C10D.items()}

# c10d::ReduceOp::RedOpType, by number.
_REDUCTIONS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")


@dataclass(frozen=True)
class Schema:
    """What torch says of an operator. Asking torch costs 10 us: once for each operator."""

    name: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, func: Any) -> Schema:
        return cls(func._schema.name, tuple(a.name for a in func._schema.arguments))

    @property
    def communicates(self) -> bool:
        """True where it is told a process group: check_for_nan is not."""
        return "process_group" in self.arguments or "group_name" in self.arguments

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name. torch leaves out those that have their default."""
        return {**dict(zip(self.arguments, args, strict=False)), **kwargs}

    def asynchronous(self, bound: dict[str, Any]) -> bool | None:
        """None for send and recv, and where torch does not say: 2.6 does for a few."""
        for name in ("async_op", "asyncOp"):
            if name in self.arguments:
                return bool(bound.get(name, True))
        return None


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument, in lists of lists too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def size_bytes(held: Sequence[torch.Tensor]) -> int:
    return sum(
        tensor.nbytes
        if tensor.layout is torch.strided
        else tensor._indices().nbytes + tensor._values().nbytes
        for tensor in held
    )


def decode(name: str, bound: dict[str, Any], result: Any) -> dict[str, Any]:
    """The fields of a TrafficCall that tell what was sent. name: of the operator in torch.

    An operator that is in no table keeps torch's name, and has the bytes of the tensors that it was
    given and that it returned. root and peer are ranks of the group: see ``of_world``. op is
    torch's own object, for ``reduction``.
    """
    operator = OPERATORS.get(name)
    if operator:
        collective = operator.collective
        sent = list(tensors(bound.get(operator.sent)))
        received = list(tensors(bound.get(operator.received)))
    else:
        collective, sent = name, list(tensors(list(bound.values())))
        received = list(tensors(result))
    dtypes = {tensor.dtype for tensor in (*sent, *received)}  # none in a barrier
    fields: dict[str, Any] = {
        "bytes_in": size_bytes(sent),
        "bytes_out": size_bytes(received),
        "dtype": str(dtypes.pop()).removeprefix("torch.") if len(dtypes) == 1 else None,
        "op": bound.get("reduce_op"),
    }
    if "coalesced" in name:
        fields["tensors"] = max(1, len(sent))
    if exchange := exchange_with_splits(collective):
        splits = _splits(name, bound, sent, received)
        if splits is not None:
            collective, fields["splits"] = exchange, splits
    elif "coalesced" not in name and max(len(sent), len(received)) > 1:  # a block of each rank
        sizes = ([size_bytes([tensor]) for tensor in side] for side in (sent, received))
        collective = uneven(collective, *sizes)
    if sent and sent[0].layout is not torch.strided:
        collective = f"sparse_{collective}"  # gloo: several all_gather of what differs by rank
    fields["collective"] = collective
    if "root_rank" in bound:
        fields["root"] = bound["root_rank"]
    elif collective in ("send", "recv"):
        fields["peer"] = bound.get("dst", bound.get("src"))
    return fields


def of_world(fields: dict[str, Any], ranks: Sequence[int]) -> None:
    """Turns root and peer, ranks of the group, into ranks of the world; None where not known."""
    for name in ("root", "peer"):
        place = fields.get(name)
        if place is not None:
            fields[name] = ranks[place] if 0 <= place < len(ranks) else None


def reduction(op: Any) -> str | None:
    """sum, max, ... of a ReduceOp of torch; None where there is none. To ask torch takes 35 us
    in a step of DDP, more than the rest of ``decode``: not to be done while the peers may wait.
    """
    read = getattr(op, "op", None)  # torch 2.6 has no way to ask
    number = read() if callable(read) else None
    return _REDUCTIONS[number] if isinstance(number, int) and number < len(_REDUCTIONS) else None


def _splits(
    name: str,
    bound: dict[str, Any],
    sent: Sequence[torch.Tensor],
    received: Sequence[torch.Tensor],
) -> tuple[int, ...] | None:
    """Bytes to each rank of the group; None for an even all_to_all.

    Who gives sizes makes the uneven call, also where they are even: those of another rank need not
    be, and the ranks should agree on what the call is. Functional calls always give them.
    """
    if name == "c10d::alltoall_":
        sizes = [tensor.nbytes for tensor in sent]
        even = len({*sizes, *(tensor.nbytes for tensor in received)}) == 1
        return None if even else tuple(sizes)
    rows = list(bound.get("input_split_sizes") or ())
    theirs = list(bound.get("output_split_sizes") or ())
    if not rows and not theirs:
        return None
    if not rows:  # even here, and uneven from the others
        return (sent[0].nbytes // len(theirs),) * len(theirs)
    row = sent[0].element_size() * sent[0].shape[1:].numel()
    return tuple(count * row for count in rows)
