"""Decodes torch's c10d operators: from the arguments of a call to the fields of a TrafficCall.

Source: the schemas in torch/csrc/distributed/c10d/Ops.cpp. Arguments are looked up by the names
used there, because later versions of torch have added some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchcoll.core.collectives import exchange_with_splits, uneven


@dataclass(frozen=True)
class Operator:
    """The collective of a c10d operator, and the arguments that hold what is sent and received."""

    collective: str
    sent: str = ""
    received: str = ""


# Where sent and received are the same argument, its bytes count on every rank, as in
# core/collectives.py. In a broadcast the tensors of other ranks are not inputs, but torch is given
# them all the same.
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
    """The name and arguments of an operator.

    Asking torch for them takes 10 us, so it is done once for each operator.
    """

    name: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, func: Any) -> Schema:
        return cls(func._schema.name, tuple(a.name for a in func._schema.arguments))

    @property
    def communicates(self) -> bool:
        """Whether the operator takes a process group; check_for_nan, for example, does not."""
        return "process_group" in self.arguments or "group_name" in self.arguments

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call by name; torch omits those with their default value."""
        return {**dict(zip(self.arguments, args, strict=False)), **kwargs}

    def asynchronous(self, bound: dict[str, Any]) -> bool | None:
        """Returns whether the call is asynchronous.

        None for send and recv, and for the few operators of torch 2.6 that do not record it.
        """
        for name in ("async_op", "asyncOp"):
            if name in self.arguments:
                return bool(bound.get(name, True))
        return None


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in an argument, including those in nested lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def size_bytes(values: Sequence[torch.Tensor]) -> int:
    """Returns the bytes of the tensors; of sparse ones those of indices and values."""
    return sum(
        tensor.nbytes
        if tensor.layout is torch.strided
        else tensor._indices().nbytes + tensor._values().nbytes
        for tensor in values
    )


def decode(name: str, bound: dict[str, Any], result: Any) -> dict[str, Any]:
    """Returns the fields of a TrafficCall that describe what was sent.

    - name: torch's name of the operator. An operator that is not in OPERATORS keeps this name, and
      its sizes are those of the tensors in its arguments and its result.
    - bound: its arguments by name.
    - result: what the operator returned.

    In the returned fields, root and peer are ranks of the group (``to_world_ranks`` converts them),
    and op is torch's own object (``reduction`` converts it).
    """
    operator = OPERATORS.get(name)
    if operator:
        collective = operator.collective
        sent = list(tensors(bound.get(operator.sent)))
        received = list(tensors(bound.get(operator.received)))
    else:
        collective, sent = name, list(tensors(list(bound.values())))
        received = list(tensors(result))
    dtypes = {tensor.dtype for tensor in (*sent, *received)}  # empty for a barrier
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
    elif "coalesced" not in name and max(len(sent), len(received)) > 1:  # one block per rank
        sizes = ([size_bytes([tensor]) for tensor in side] for side in (sent, received))
        collective = uneven(collective, *sizes)
    if sent and sent[0].layout is not torch.strided:
        collective = f"sparse_{collective}"  # gloo sends it as several all_gather calls
    fields["collective"] = collective
    if "root_rank" in bound:
        fields["root"] = bound["root_rank"]
    elif collective in ("send", "recv"):
        fields["peer"] = bound.get("dst", bound.get("src"))
    return fields


def to_world_ranks(fields: dict[str, Any], ranks: Sequence[int]) -> None:
    """Converts root and peer from ranks of the group to ranks of the world; None if unknown."""
    for name in ("root", "peer"):
        group_rank = fields.get(name)
        if group_rank is not None:
            fields[name] = ranks[group_rank] if 0 <= group_rank < len(ranks) else None


def reduction(op: Any) -> str | None:
    """Returns the name of a torch ReduceOp (sum, max, ...), or None if there is none.

    Asking torch takes 35 us in a DDP step, more than the rest of ``decode``, so this must not be
    called while the peers may be waiting.
    """
    read = getattr(op, "op", None)  # torch 2.6 cannot tell
    number = read() if callable(read) else None
    return _REDUCTIONS[number] if isinstance(number, int) and number < len(_REDUCTIONS) else None


def _splits(
    name: str,
    bound: dict[str, Any],
    sent: Sequence[torch.Tensor],
    received: Sequence[torch.Tensor],
) -> tuple[int, ...] | None:
    """Returns the bytes sent to each rank of the group, or None for an even all_to_all.

    A call with explicit sizes counts as uneven even if they are all equal: those of another rank
    may differ, and all ranks must agree on what the call is. Functional collectives always pass
    sizes.
    """
    if name == "c10d::alltoall_":
        sizes = [tensor.nbytes for tensor in sent]
        even = len({*sizes, *(tensor.nbytes for tensor in received)}) == 1
        return None if even else tuple(sizes)
    input_rows = list(bound.get("input_split_sizes") or ())
    output_rows = list(bound.get("output_split_sizes") or ())
    if not input_rows and not output_rows:
        return None
    if not input_rows:  # this rank sends equal blocks, but receives unequal ones
        return (sent[0].nbytes // len(output_rows),) * len(output_rows)
    row_bytes = sent[0].element_size() * sent[0].shape[1:].numel()
    return tuple(count * row_bytes for count in input_rows)
