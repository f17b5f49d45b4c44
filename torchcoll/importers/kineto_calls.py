"""One communication event of a Kineto trace as a call: what was sent, in which group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchcoll.core.bounds import MOST_RANKS
from torchcoll.core.traffic import Group, TrafficCall
from torchcoll.importers.base import itemsize, whole
from torchcoll.importers.kineto_events import Event, Issued
from torchcoll.importers.torch_words import collective_of, dtype_of, product, ranks_in

# Arguments of the c10d operators, by torch's schema (torch/csrc/distributed/c10d/Ops.cpp).
_OUT_FIRST = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
_ROOT_AT = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3}
_PEER_AT = 2
UNKNOWN = -1  # bytes


def groups_of(info: Mapping[str, Any], calls: Iterable[Issued]) -> dict[str, Group]:
    """The groups that the profiler lists, and those that only calls tell.

    A group may have a backend for each type of device: that of the calls which tell their own
    parameters is the accelerator's.
    """
    calls = list(calls)
    on_device = any(call.has_param for call in calls)
    listed = info.get("pg_config")
    groups = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("pg_name"), str):
            ranks = _complete(one.get("ranks"), one.get("pg_size"))
            backend = _backend(str(one.get("backend_config") or ""), on_device)
            groups[one["pg_name"]] = Group(
                one["pg_name"], ranks, backend, str(one.get("pg_desc") or "")
            )
    for call in calls:
        args = call.event.args
        name = args.get("Process Group Name")
        known = groups.get(name) if isinstance(name, str) else None
        if isinstance(name, str) and (known is None or not known.ranks):
            ranks = _complete(args.get("Process Group Ranks"), args.get("Group size"))
            description = str(args.get("Process Group Description") or "")
            groups[name] = Group(
                name, ranks or _regular(args), known.backend if known else "", description
            )
    return _one_for_all(groups) if not on_device else groups


def _one_for_all(groups: dict[str, Group]) -> dict[str, Group]:
    """c10d operators do not tell their group: where all have the same ranks, one stands for all."""
    if len(groups) < 2 or len({(g.ranks, g.backend) for g in groups.values()}) > 1:
        return groups
    first = next(iter(groups.values()))
    name = " or ".join(groups)
    return {name: Group(name, first.ranks, first.backend)}


def _complete(ranks: object, size: object) -> tuple[int, ...]:
    """The ranks, unless the profiler has shortened their list."""
    found = ranks_in(ranks)
    return found if whole(size) in (None, len(found)) else ()


def _regular(args: Mapping[str, Any]) -> tuple[int, ...]:
    """Ranks at equal distances: what torch tells of a group beside a list that may be cut."""
    start, stride = whole(args.get("Global rank start")), whole(args.get("Global rank stride"))
    size = whole(args.get("Group size"))
    if start is None or not stride or not size or size > MOST_RANKS:
        return ()
    return tuple(range(start, start + size * stride, stride))


def _backend(config: str, on_device: bool) -> str:
    """Of ``cpu:gloo,cuda:nccl`` the one for such calls."""
    pairs = [part.split(":") for part in config.split(",") if ":" in part]
    fitting = [pair[1] for pair in pairs if (pair[0] != "cpu") == on_device]
    return (fitting or [pair[1] for pair in pairs] or [config])[0]


@dataclass
class Calls:
    """Makes calls of events of one rank. left: what is not told of some, and of how many."""

    rank: int
    groups: Mapping[str, Group]
    left: Counter[str] = field(default_factory=Counter)

    def make(self, one: Issued, dtype: str | None) -> TrafficCall:
        """Without time, step and number; both sizes UNKNOWN where one is not told.

        dtype: for operators that do not tell it themselves.
        """
        if one.has_param:
            return self._of_param(one)
        return self._of_operator(one.event, dtype)

    def _of_param(self, one: Issued) -> TrafficCall:
        args = one.event.args
        name = str(args["Collective name"])
        collective = collective_of(name)
        dtype = dtype_of(args.get("dtype"))
        group = args.get("Process Group Name")
        group = group if isinstance(group, str) else ""
        # `Rank` is the root of a rooted collective, else this rank: both count within the group.
        root = self._world(whole(args.get("Rank")), group) if collective in _ROOT_AT else None
        peer = whole(args.get("Dst Rank" if collective == "send" else "Src Rank"))
        sizes = [whole(args.get(f"{side} msg nelems")) for side in ("In", "Out")]
        splits = [ranks_in(args.get(f"{side} split size")) for side in ("In", "Out")]
        if name == "all_to_allv":  # the lists may be too long to be shown
            collective = "all_to_all_v"
        tensors = 1
        if "coalesced" in name and one.outer:
            tensors = max(1, len(_Arguments(one.outer).dims(_place_in(collective))))
        return self._call(
            collective, sizes, dtype, group, root, peer, splits, _asynchronous(one), tensors
        )

    def _of_operator(self, event: Event, dtype: str | None) -> TrafficCall:
        collective = collective_of(event.name)
        own = _Arguments(event)
        group = next(iter(self.groups)) if len(self.groups) == 1 else ""
        ranks = len(self.groups[group].ranks) if group else 0
        place = _place_in(collective)
        sizes = [own.elements(place), own.elements(0)]
        root = own.whole(_ROOT_AT[collective]) if collective in _ROOT_AT else None
        root = self._world(root, group)
        # Lists of lists show no shapes: they follow from the other side.
        if collective in ("all_gather", "gather"):
            sizes[1] = sizes[1] or (None if sizes[0] is None or not ranks else sizes[0] * ranks)
        if collective in ("reduce_scatter", "scatter"):
            sizes[0] = sizes[0] or (None if sizes[1] is None or not ranks else sizes[1] * ranks)
        peer = own.whole(_PEER_AT) if collective in ("send", "recv") else None
        splits: list[tuple[int, ...]] = [(), ()]
        if collective == "all_to_all":
            splits = own.splits()
        tensors = len(own.dims(place)) if "coalesced" in event.name else 1
        return self._call(
            collective,
            sizes,
            own.dtype(place) or own.dtype(0) or dtype,
            group,
            root,
            self._world(peer, group),
            splits,
            _asynchronous(Issued(event)),
            max(1, tensors),
        )

    def _call(
        self,
        collective: str,
        elements: Sequence[int | None],
        dtype: str | None,
        group: str,
        root: int | None,
        peer: int | None,
        splits: Sequence[tuple[int, ...]],
        asynchronous: bool | None,
        tensors: int,
    ) -> TrafficCall:
        if collective in ("barrier", "monitored_barrier"):
            return TrafficCall(collective, 0, 0, group=group, asynchronous=asynchronous)
        sides = list(elements)
        if collective in ("send", "recv"):
            sides[collective == "send"] = 0
        if root is not None and root != self.rank:  # only the root has both
            sides[1] = 0 if collective == "gather" else sides[1]
            sides[0] = 0 if collective == "scatter" else sides[0]
        each = itemsize(dtype)
        known = each is not None and all(n is not None and n * each < 1 << 62 for n in sides)
        nbytes = [(n or 0) * (each or 0) if known else UNKNOWN for n in sides]
        if not known:
            self.left[f"{collective}: {'dtype' if each is None else 'sizes'} not told"] += 1
        # Who gives sizes makes the uneven call, as in a capture: those of another rank may differ.
        if any(splits):
            collective = "all_to_all_v"
        sent = splits[0] or (1,) * len(splits[1])  # they count rows; without any, even ones
        shares = tuple(max(nbytes[0], 0) * rows // (sum(sent) or 1) for rows in sent)
        return TrafficCall(
            collective,
            nbytes[0],
            nbytes[1],
            dtype,
            root=root,
            peer=peer,
            group=group,
            asynchronous=asynchronous,
            tensors=tensors,
            splits=shares,
        )

    def _world(self, rank: int | None, group: str) -> int | None:
        """The rank of the world that has this rank in a group; None where that is not told."""
        ranks = self.groups[group].ranks if group in self.groups else ()
        return ranks[rank] if rank is not None and rank < len(ranks) else None


def _place_in(collective: str) -> int:
    return 1 if collective in _OUT_FIRST else 0


def _asynchronous(one: Issued) -> bool | None:
    """The operator tells it; record_param_comms itself only in newer torch."""
    values = _Arguments(one.outer or one.event).values
    values = [*values, str(one.event.args.get("Is asynchronized op")).capitalize()]
    told = next((value for value in values if value in ("True", "False")), None)
    return None if told is None else bool(told == "True")


def elements_of(event: Event) -> set[int]:
    """The elements of the sides of a c10d operator that it tells, to know its work by."""
    own = _Arguments(event)
    return {n for i in (0, 1) if (n := own.elements(i)) is not None}


class _Arguments:
    """The arguments of an operator as record_shapes keeps them."""

    def __init__(self, event: Event) -> None:
        names = ("Input type", "Input Dims", "Concrete Inputs")
        lists = (event.args.get(name) for name in names)
        self.types, self._dims, self.values = (
            one if isinstance(one, list) else [] for one in lists
        )

    def dims(self, place: int) -> list[Sequence[int]]:
        """The shape of each tensor; [] where the argument is no tensor or shows none."""
        if place >= min(len(self._dims), len(self.types)) or not self.types[place]:
            return []
        own = self._dims[place]
        if not isinstance(own, list) or self.types[place] in ("Scalar", "ScalarList"):
            return []
        shapes = own if self.types[place] == "TensorList" else [own]
        good = all(isinstance(s, list) and all(type(n) is int for n in s) for s in shapes)
        return shapes if good else []

    def elements(self, place: int) -> int | None:
        shapes = self.dims(place)
        counts = [product(shape) for shape in shapes]
        known = [count for count in counts if count is not None]
        return sum(known) if shapes and len(known) == len(counts) else None

    def dtype(self, place: int) -> str | None:
        return dtype_of(self.types[place]) if place < len(self.types) and self.dims(place) else None

    def whole(self, place: int) -> int | None:
        return whole(self.values[place]) if place < len(self.values) else None

    def splits(self) -> list[tuple[int, ...]]:
        """What an all_to_all sends to each rank and gets from it, () where all are alike.

        One tensor tells numbers of rows; of lists of tensors the sizes tell.
        """
        lists = [ranks_in(self.values[i]) if i < len(self.values) else () for i in (4, 3)]
        if self.types[:1] != ["TensorList"]:
            return lists
        shapes = [tuple(product(s) or 0 for s in self.dims(place)) for place in (1, 0)]
        return shapes if len({*shapes[0], *shapes[1]}) > 1 else [(), ()]
