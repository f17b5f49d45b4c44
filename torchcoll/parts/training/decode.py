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
from torchcoll.core.traffic import Group


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

_RANKS = ("root_rank", "dst", "src")  # arguments: the rank that a call names
# The fields of a call of these are not determined by the sizes and dtypes of its tensors.
_UNCACHED = ("c10d::alltoall_", "c10d::alltoall_base_", "c10d::recv_any_source_")
_MOST_CACHED = 10_000  # kinds of calls of one operator; a training sends some tens

# c10d::ReduceOp::RedOpType, by number.
_REDUCTIONS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")


class Schema:
    """An operator of torch that is called many times a step, and where its arguments are.

    Asking torch for them takes 10 us, so it is done once for each operator. Calls with equal sizes,
    dtypes and ranks are decoded once.

    - values of a call: one for each of ``arguments``, as ``fill`` returns them.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        self.operator = OPERATORS.get(name)
        positions = {argument: i for i, argument in enumerate(arguments)}
        self._group_at = positions.get("process_group", positions.get("group_name"))
        self._op_at = positions.get("reduce_op")
        self._async_at = positions.get("async_op", positions.get("asyncOp"))
        self._defaults = tuple(i == self._async_at or None for i in range(len(self.arguments)))
        self._sent_at = self._received_at = None
        if self.operator:
            self._sent_at = positions.get(self.operator.sent)
            self._received_at = positions.get(self.operator.received)
        self._rank_at = next((positions[k] for k in _RANKS if k in positions), None)
        self._varies = self.operator is None or name in _UNCACHED
        self._fields: dict[tuple[Any, ...], dict[str, Any]] = {}

    @classmethod
    def of(cls, func: Any) -> Schema:
        return cls(func._schema.name, tuple(a.name for a in func._schema.arguments))

    @property
    def communicates(self) -> bool:
        """Whether the operator takes a process group; check_for_nan, for example, does not."""
        return self._group_at is not None

    def fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Returns the values of a call; torch omits those with their default value, which become
        None.
        """
        if not kwargs:
            return args + self._defaults[len(args) :]
        bound = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        return [bound.get(k, v) for k, v in zip(self.arguments, self._defaults, strict=True)]

    def group(self, values: Sequence[Any]) -> Any:
        return None if self._group_at is None else values[self._group_at]

    def op(self, values: Sequence[Any]) -> Any:
        """Returns torch's own reduce op, which ``reduction`` reads; None if there is none."""
        return None if self._op_at is None else values[self._op_at]

    def sent(self, values: Sequence[Any]) -> Any:
        return None if self._sent_at is None else values[self._sent_at]

    def received(self, values: Sequence[Any]) -> Any:
        return None if self._received_at is None else values[self._received_at]

    def first_tensor(self, values: Sequence[Any]) -> torch.Tensor | None:
        """Returns a tensor of the call, by which its device and layout are known."""
        at = self._received_at if self._sent_at is None else self._sent_at
        first = None if at is None else values[at]
        while isinstance(first, list | tuple):  # like ``tensors``, but faster
            first = first[0] if first else None
        if isinstance(first, torch.Tensor):
            return first
        return next(tensors(list(values)), None)  # a list whose first is empty; unknown operators

    def asynchronous(self, values: Sequence[Any]) -> bool | None:
        """Returns whether the call is asynchronous.

        None for send and recv, and for the few operators of torch 2.6 that do not record it.
        """
        return None if self._async_at is None else bool(values[self._async_at])

    def fields(self, values: Sequence[Any], result: Any, group: Group) -> dict[str, Any]:
        """Returns the fields of a TrafficCall that describe what was sent, all but ``op``.

        The caller must not change them: calls that are alike have the same dictionary.

        - result: what the operator returned.
        - group: its process group, in the names of the Traffic.
        """
        key: tuple[Any, ...] | None = None
        if not self._varies:
            key = (
                group.name,
                None if self._sent_at is None else _sizes(values[self._sent_at]),
                None if self._received_at is None else _sizes(values[self._received_at]),
                None if self._rank_at is None else values[self._rank_at],
                None if self._async_at is None else values[self._async_at],
            )
            if key in self._fields:
                return self._fields[key]
        fields = decode(self.name, dict(zip(self.arguments, values, strict=True)), result)
        fields["asynchronous"] = self.asynchronous(values)
        fields["group"] = group.name
        to_world_ranks(fields, group.ranks)
        if key and len(self._fields) < _MOST_CACHED:
            self._fields[key] = fields
        return fields


def _sizes(value: Any) -> Any:
    """Returns what ``decode`` needs of the tensors in an argument, as a part of a key."""
    if isinstance(value, torch.Tensor):
        size = value.nbytes if value.layout is torch.strided else size_bytes([value])
        return size, value.dtype, value.layout
    if isinstance(value, list | tuple):
        return tuple([_sizes(item) for item in value])
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

    - name: torch's name of the operator, which an operator that is not in OPERATORS keeps.
    - bound: its arguments by name.
    - result: what the operator returned.

    In the returned fields, root and peer are ranks of the group, and there is no op.
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
    name: str, bound: dict[str, Any], sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]
) -> tuple[int, ...] | None:
    """Returns the bytes sent to each rank of the group, or None for an even all_to_all.

    A call with explicit sizes counts as uneven even if they are all equal: those of another rank
    may differ.
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
