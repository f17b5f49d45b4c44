"""One point of a sweep: a Case, its element counts on a number of ranks, and its sub-groups.

``FIELDS`` is the table of what a Spec asks for and its cases have; docs/extending.md has a recipe.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torchcoll.core.backends import communicates
from torchcoll.core.collectives import COLLECTIVES, DTYPES, OPS, Layout
from torchcoll.core.errors import UsageError, one_line
from torchcoll.core.units import format_size

if TYPE_CHECKING:
    from torchcoll.core.splits import Division, Weights

NATIVE = "own"  # value of ``implementation``: the backend's own collective
# Values of ``implementation`` that call the backend through another API of torch.
APIS = FUNCTIONAL, DTENSOR = ("functional", "dtensor")

MODES = ("synchronized", "back-to-back", "blocking", "graph")
QUEUED = ("back-to-back", "graph")
BLOCKING = "blocking"  # nccl-tests' -z 2
ORDERS = ("size", "shuffled", "interleaved")

# The memory of verification besides the buffers: chunks of this size, and for each element two
# float64 and a comparison, as avg needs.
CHECK_CHUNK_BYTES = 64 << 20
CHECK_ELEMENT_BYTES = 24
# Slots of a rotated buffer begin at multiples of this: a cache line of a GPU, or two of a CPU.
SLOT_BYTES = 128


class NotRun(NamedTuple):
    """Why a case was not run: the ``status`` of its result, and the reason that is shown."""

    status: str
    reason: str


def known_fields(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a record that are fields of the dataclass. A later version may have more."""
    return {name: value for name, value in data.items() if name in cls.__dataclass_fields__}


def flat_dict(record: Any) -> dict[str, Any]:
    """``dataclasses.asdict`` for flat dataclasses, ten times as fast."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


@dataclass(frozen=True)
class Field:
    """A field of a Spec, and its option on the command line of the ranks.

    name: one that ends with ``_bytes`` is read as a size: ``1K``.
    help: ``{default}`` stands for the default of the field.
    kind: the type of a value. An option of kind bool takes no value, unless there are ``texts``.
    least: the smallest number that is allowed. choices: all allowed values; () for another check.
    texts: the texts that the option takes, and their values; {} for any text.
    metavar: what the help calls the value; '' for the name of the option.
    short: the short flag. option: the long flag, if it is not the name: ``--min-bytes``.
    """

    name: str
    help: str
    kind: type = str
    least: int | None = None
    choices: tuple[Any, ...] = ()
    texts: Mapping[str, Any] = field(default_factory=dict)
    metavar: str = ""
    short: str = ""
    option: str = ""

    @property
    def flag(self) -> str:
        """The long flag without dashes, as messages name the field: ``min-bytes``."""
        name = self.option.removeprefix("--") or self.name.removesuffix("_s")
        return name.replace("_", "-")

    @property
    def takes_value(self) -> bool:
        return self.kind is not bool or bool(self.texts)

    @property
    def is_size(self) -> bool:
        return self.name.endswith("_bytes")


@dataclass(frozen=True, kw_only=True)
class Setting(Field):
    """A field that every case of the Spec has too, under the same name. Rows, files and tables get
    it, and runs that differ in it are kept apart.

    default: its value unless asked for. Its kind is str, int or bool.
    head: the two lines of the heading of its column.
    compared: sides that have no value in common are compared all the same, with a footnote.
    title: how JUnit names a value that is not the default; '' if it does not.
    label: its name in Prometheus, if not that of the field.
    """

    default: Any
    head: tuple[str, str]
    compared: bool = True
    title: str = "{name} {value}"
    label: str = ""


# The options of a Spec, in the order of the help. A Setting is also a field of each case.
WHAT = (
    Field("collectives", f"all, or several of {', '.join(COLLECTIVES)}"),
    Field("min_bytes", "smallest size ({default})", int, short="-b"),
    Field("max_bytes", "largest size ({default})", int, short="-e"),
    Field("factor", "from one size to the next: 2, 1.15 ({default})", float, short="-f"),
    Field("step_bytes", "step between sizes in bytes, in place of a factor", int, short="-i"),
    Field("sizes", "a list of sizes in place of a range: 1K,1M,25M"),
    Field("dtypes", f"all, or of {', '.join(DTYPES)} ({{default}})", short="-d", option="--dtype"),
    Field("ops", f"all, or of {', '.join(OPS)} ({{default}})", short="-o", option="--op"),
    Field("roots", "rank, or ranks with commas ({default})", short="-r", option="--root"),
    Field(
        "in_place",
        "0, 1 or both (each collective's own default)",
        bool,
        choices=(None, True, False, "both"),
        texts={"0": False, "1": True, "both": "both"},
    ),
    Field(
        "splits", "of uneven blocks: balanced, zipf:A, hot:K, seed:N, 1,2,4 or a file ({default})"
    ),
    Field(
        "backend",
        "of torch: nccl, gloo, ...; several, with commas, alternate (default: the machine's)",
    ),
    Field("device", "cpu, cuda or xpu (default: what the backend uses)"),
    Field("groups", "sub-groups that run at once: mod:2, div:4 or 0,1;2,3 (default: one group)"),
)
HOW = (
    Field(
        "mode",
        "synchronized (a barrier before each call; the default on CPU), back-to-back (else the "
        "default), blocking (each rank waits for the call before) or graph (replayed)",
        choices=(None, *MODES),
    ),
    Field("iters", "steady calls; 0 is none (default: as --precision decides)", int, 0, short="-n"),
    Field("warmup", "timed calls between cold and steady ({default})", int, 0, short="-w"),
    Field("cold", "at least so many cold calls ({default})", int, 1),
    Field("precision", "without -n, know the median to +- this share ({default})", float),
    Field("max_time_s", "without -n, at most so many seconds of steady calls ({default})", float),
    Field("fresh_group", "make a new communicator for every case", bool),
    Field("init", "lazy or eager: when to connect ({default})", choices=("lazy", "eager")),
    Field(
        "communicator_config",
        "of nccl's communicators, with commas: cta_policy=zero,split_share=1,max_ctas=8",
        metavar="NAME=VALUE",
    ),
    Setting(
        "buffers",
        "memory: default, or on nccl registered or symmetric (mapped by all GPUs)",
        choices=("default", "registered", "symmetric"),
        default="default",
        head=("buffers", ""),
        title="{value} buffers",
    ),
    Setting(
        "buffer_reuse",
        "same in every call, rotate through the largest, or flush the caches ({default})",
        choices=("same", "rotate", "flush"),
        default="same",
        head=("buffer", "reuse"),
        title="",
    ),
    Setting(
        "misalign_bytes",
        "begin the buffers so many bytes after an aligned address: 4 (0)",
        int,
        metavar="BYTES",
        default=0,
        head=("misaligned", "bytes"),
        title="misaligned by {value}",
        option="--misalign",
    ),
    Field(
        "implementation",
        "what makes the calls: own (the backend), functional or dtensor (torch's APIs), or kernels "
        "of symmetric memory: one_shot, two_shot, multimem, multimem_one_shot ({default})",
    ),
    Setting(
        "asynchronous",
        "pass async_op=True, as DDP does",
        bool,
        default=False,
        head=("async", ""),
        title="async",
        label="async_op",
        option="--async",
    ),
    Setting(
        "coalesce",
        "so many calls in one group ({default})",
        int,
        least=1,
        default=1,
        head=("calls in", "a group"),
        compared=False,
    ),
    Field("rehearse", "nccl ranks share one GPU, to try a command: times mean nothing", bool),
    Field(
        "concurrent",
        "measure each case alone, the work alone, and both: matmul, copy or both, with :SIZE; "
        "background:LABEL only records that other work ran",
        metavar="WORK",
    ),
    Field("check", "verify results ({default})", bool, texts={"0": False, "1": True}, short="-c"),
    Field("order", f"{' or '.join(ORDERS)} ({{default}})", choices=ORDERS),
    Field("seed", "of --order shuffled ({default})", int, 0),
    Field("timeout_s", "seconds without progress that are a hang ({default})", float, short="-T"),
)
FIELDS = {entry.name: entry for entry in (*WHAT, *HOW)}
SETTINGS = tuple(entry for entry in FIELDS.values() if isinstance(entry, Setting))
# What distinguishes cases, in the order of the columns.
DIMENSIONS = (
    "collective",
    "backend",
    "implementation",
    "device",
    "ranks",
    "dtype",
    "op",
    "root",
    "in_place",
    "group",
    *(setting.name for setting in SETTINGS),
    "rehearsal",
    "splits",
    "communicator",
    "mode",
    "clock",
)

_T = TypeVar("_T")


def with_settings(cls: type[_T]) -> type[_T]:
    """Add the settings that a class does not write itself for checkers and editors, as fields."""
    for setting in SETTINGS:
        if setting.name not in cls.__annotations__:
            cls.__annotations__[setting.name] = setting.kind.__name__
            setattr(cls, setting.name, setting.default)
    return cls


# slots=True saves memory: a large file of another tool has a million cases.
@dataclass(frozen=True, slots=True)
@with_settings
class Case:
    """One point of the sweep: hashable, equal on all ranks, the grouping key of every analysis.

    A field that an imported file does not state is None, or ``unknown``. FIELDS explains them.

    size_bytes: the requested size S; the CaseResult has the actual size.
    group: the rule of the sub-groups (``mod:2``), in results with their number (``mod:2/0``).
    coalesce: calls in one group, timed together (nccl-tests' -m); size_bytes is that of one.
    rehearsal: several ranks shared one GPU, so there is no bandwidth.
    """

    collective: str
    size_bytes: int
    dtype: str | None
    op: str | None
    root: int | None
    in_place: bool | None
    mode: str
    backend: str
    device: str
    splits: str | None = None
    group: str | None = None
    buffers: str = "default"
    asynchronous: bool = False
    coalesce: int = 1
    rehearsal: bool = False
    buffer_reuse: str = "same"
    implementation: str = NATIVE
    misalign_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return flat_dict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """Read a case; unknown fields are ignored. Raises ValueError for an unknown collective."""
        case = cls(**known_fields(cls, data))
        if case.collective not in COLLECTIVES:
            raise ValueError(f"unknown collective {case.collective}")
        return case

    @property
    def back_to_back(self) -> bool:
        """True if there is no barrier between steady calls: what is measured is their period."""
        return self.queued or self.mode == BLOCKING

    @property
    def queued(self) -> bool:
        """True if a call may be issued before the one before it is complete."""
        return self.mode in QUEUED

    @property
    def communicates(self) -> bool:
        """False for a backend that sends nothing between ranks."""
        return communicates(self.backend)

    @property
    def through_api(self) -> bool:
        """True if functional collectives or DTensor call the backend, and allocate each result."""
        return self.implementation in APIS

    @property
    def by_backend(self) -> bool:
        """True if the backend makes the calls; False for kernels that take its place."""
        return self.implementation == NATIVE or self.through_api

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 1 without a dtype."""
        return DTYPES[self.dtype].itemsize if self.dtype else 1

    @property
    def uneven_side(self) -> str:
        """The side of the call that takes a tensor per uneven block; '' for even blocks."""
        return COLLECTIVES[self.collective].blocks

    @property
    def verifiable(self) -> bool:
        """False if the calls of a group reduce one buffer in place, in any order."""
        return not (self.coalesce > 1 and self.in_place and self.op)

    def describe(self) -> str:
        """How messages name the case: ``all_reduce 1K float32 sum on gloo``."""
        size = format_size(self.size_bytes) if COLLECTIVES[self.collective].has_data else None
        root = None if self.root is None else f"root {self.root}"
        maker = f"on {self.backend}"
        maker += f" by {self.implementation}" if self.implementation != NATIVE else ""
        parts = (self.collective, size, self.dtype, self.op, root, maker)
        return " ".join(w for w in parts if w)


@dataclass(frozen=True)
class SizedCase:
    """A case on a number of ranks, with its element counts.

    count: the count argument of the call, in elements; with uneven blocks the largest block that a
    rank sends to another.
    size_bytes: the actual size S.
    division: how the elements are divided into uneven blocks; None for even blocks.
    span_bytes: the least size of the buffers if calls rotate through them; 0 without rotation.
    """

    case: Case
    ranks: int
    count: int
    size_bytes: int
    division: Division | None = None
    span_bytes: int = 0

    def layout(self, rank: int) -> Layout:
        """The layout of the buffers of a rank."""
        return Layout(rank, self.ranks, self.count, self.case.root or 0, self.division)

    def elements(self, rank: int) -> tuple[int, int]:
        """Elements of the send and of the receive buffer of a rank, for one call."""
        return COLLECTIVES[self.case.collective].elements(self.layout(rank))

    def _widest(self, side: int) -> int:
        # With even blocks all ranks except the root are alike.
        ranks = range(self.ranks) if self.division else (0, self.case.root or 0)
        return max(self.elements(rank)[side] for rank in ranks) * self.case.itemsize

    @property
    def bytes_in(self) -> int:
        """Bytes of the largest send buffer of all ranks."""
        return self._widest(0)

    @property
    def bytes_out(self) -> int:
        """Bytes of the largest receive buffer of all ranks."""
        return self._widest(1)

    @property
    def busiest_bytes(self) -> int | None:
        """The field of this name in CaseResult, for uneven blocks; None for even blocks."""
        if self.division is None:
            return None
        kept = COLLECTIVES[self.case.collective].kept
        moved = (max(self.elements(rank)) - kept(self.layout(rank)) for rank in range(self.ranks))
        return max(moved) * self.case.itemsize

    @cached_property
    def stride(self) -> int:
        """Elements from one slot of a rotated buffer to the next: the larger buffer, rounded up."""
        largest = max(self.bytes_in, self.bytes_out)
        return -(-largest // SLOT_BYTES) * SLOT_BYTES // self.case.itemsize

    @property
    def slots(self) -> int:
        """Number of slots that calls rotate through."""
        stride_bytes = self.stride * self.case.itemsize
        return max(1, self.span_bytes // stride_bytes) if stride_bytes else 1

    def buffer_elements(self, rank: int) -> tuple[int, int]:
        """Elements of the send and of the receive buffer of a rank, with all slots."""
        sent, received = self.elements(rank)
        if not self.span_bytes or self.slots == 1:
            return sent, received
        total = self.slots * self.stride
        return (total if sent else 0), (total if received else 0)

    def buffer_bytes(self, rank: int) -> int:
        """Bytes that a rank allocates for its buffers."""
        sent, received = self.buffer_elements(rank)
        elements = max(sent, received) if self.case.in_place else sent + received
        buffers = 1 if self.case.in_place else 2
        return elements * self.case.itemsize + buffers * self.case.misalign_bytes


def size_case(
    case: Case, ranks: int, weights: Weights | None = None, span_bytes: int = 0
) -> SizedCase:
    """Compute the element counts of a case. With uneven blocks S is the most that any rank sends or
    receives, as in nccl-tests' alltoallv. weights: None reads the rule of ``case.splits``.
    """
    entry = COLLECTIVES[case.collective]
    if not entry.has_data:
        return SizedCase(case, ranks, 0, 0)
    if entry.divide:
        from torchcoll.core.splits import split_weights

        elements = max(1, case.size_bytes // case.itemsize)
        division = entry.divide(weights or split_weights(case.splits or "", ranks), elements)
        layouts = (Layout(rank, ranks, 0, case.root or 0, division) for rank in range(ranks))
        size_bytes = max(max(entry.elements(layout)) for layout in layouts) * case.itemsize
        return SizedCase(case, ranks, division.largest_pair, size_bytes, division, span_bytes)
    parts = entry.parts(ranks)
    count = max(1, case.size_bytes // (case.itemsize * parts))
    size_bytes = count * case.itemsize * parts
    return SizedCase(case, ranks, count, size_bytes, span_bytes=span_bytes)


def need_bytes(sizing: SizedCase, rank: int, check: bool) -> int:
    """Bytes of a rank for a case: its buffers, and a chunk for verification if ``check``."""
    buffers = sizing.buffer_bytes(rank)
    case = sizing.case
    if case.through_api:
        buffers += sizing.bytes_out
    if not (check and case.verifiable):
        return buffers
    sent, received = sizing.elements(rank)
    if COLLECTIVES[case.collective].rooted_output and rank != case.root:
        received = 0  # only the root's output is verified
    checked = received if case.in_place else max(sent, received)
    return buffers + min(CHECK_CHUNK_BYTES, checked * CHECK_ELEMENT_BYTES)


def split_batch(calls: int, each: int) -> list[int]:
    """The number of calls in each sample of a batch: ``each``, and what remains in the last."""
    return [each] * (calls // each) + ([calls % each] if calls % each else [])


def count_samples(calls: int, each: int) -> int:
    """The length of ``split_batch``. A file may claim more calls than fit into a list."""
    return -(-calls // each)


def fingerprint(data: Any) -> str:
    """A short hash of JSON-serialisable data, which ranks compare to find differing arguments."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Sub-groups that run the collective at the same time, their ranks in ascending order. ``mod:2``:
# ranks with the same r mod 2. ``div:4``: with the same r div 4. ``0,1;2,3``: every rank once.

_EXPECTED = "mod:N, div:N, or a list of ranks such as 0,1;2,3"
_LONGEST_LIST = 40  # characters: a longer list is written as a rule if there is one for it

Ranks = tuple[int, ...]


def partition(groups: str, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Divide so many ranks into sub-groups by a rule or list. Raises UsageError."""
    rule, colon, text = groups.partition(":")
    if colon:
        if rule not in ("mod", "div") or not text.isdecimal() or int(text) < 1:
            raise UsageError("groups", groups, _EXPECTED)
        number = int(text)
        colours = [rank % number if rule == "mod" else rank // number for rank in range(ranks)]
        return tuple(
            tuple(rank for rank in range(ranks) if colours[rank] == colour)
            for colour in sorted(set(colours))
        )
    try:
        subgroups = tuple(
            tuple(sorted(map(int, subgroup.split(",")))) for subgroup in groups.split(";")
        )
    except ValueError:
        raise UsageError("groups", groups, _EXPECTED) from None
    if sorted(rank for subgroup in subgroups for rank in subgroup) != list(range(ranks)):
        raise UsageError("groups", groups, f"each of the ranks 0 to {ranks - 1} once")
    return subgroups


def partition_text(subgroups: Collection[Ranks]) -> str:
    """Format sub-groups as ``partition`` reads them: ``0,1;2,3``, or a rule for a long list."""
    text = ";".join(",".join(map(str, subgroup)) for subgroup in subgroups)
    if len(text) > _LONGEST_LIST:
        ranks = sum(map(len, subgroups))
        longest = max(map(len, subgroups))
        for rule in (f"div:{longest}", f"mod:{len(subgroups)}"):
            if set(partition(rule, ranks)) == set(subgroups):
                return rule
    return text


def partitions(
    groups: Iterable[Ranks], ranks: int, seen: Collection[int]
) -> list[tuple[Ranks, ...]]:
    """Find the partitions of all ranks that the groups of a job belong to.

    A group of a mesh (every s-th rank, k of them) belongs to the dimension with this s and k. Other
    groups are combined if they share no rank. A rank of ``seen`` (whose calls were recorded) in no
    group is alone; others are assumed to be in the groups of the mesh.
    """
    meshes: dict[tuple[Ranks, ...], list[Ranks]] = {}
    loose: list[list[Ranks]] = []
    for group in sorted(groups):
        mesh = mesh_of(group, ranks)
        if mesh:
            meshes.setdefault(mesh, []).append(group)
            continue
        fitting = (d for d in loose if set(group).isdisjoint(itertools.chain(*d)))
        if division := next(fitting, None):
            division.append(group)
        else:
            loose.append([group])
    for mesh, subgroups in meshes.items():
        free = (each for each in mesh if not set(each) & set(seen))
        subgroups += [subgroup for subgroup in free if subgroup not in subgroups]
    return [_filled(division, ranks) for division in (*meshes.values(), *loose)]


def _filled(division: list[Ranks], ranks: int) -> tuple[Ranks, ...]:
    """Add each rank that is in no group as a group of its own."""
    used = {rank for subgroup in division for rank in subgroup}
    return tuple(sorted([*division, *((rank,) for rank in range(ranks) if rank not in used)]))


def mesh_of(group: Ranks, ranks: int) -> tuple[Ranks, ...]:
    """All groups of the mesh dimension that this group belongs to; () if it belongs to none."""
    step, size = group[1] - group[0] if len(group) > 1 else 1, len(group)
    block = step * size
    if group != tuple(range(group[0], group[0] + block, step)) or ranks % block:
        return ()
    subgroups = tuple(
        tuple(range(start + offset, start + offset + block, step))
        for start in range(0, ranks, block)
        for offset in range(step)
    )
    return subgroups if group in subgroups else ()


def value_text(name: str, value: Any) -> str:
    """A value of a dimension: ``float32``, ``out of place``, ``-`` if there is none."""
    if name == "in_place" and value is not None:
        return "in place" if value else "out of place"
    return "-" if value is None else one_line(value)
