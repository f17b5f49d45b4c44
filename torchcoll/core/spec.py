"""What to measure: a Spec is a whole sweep, a product of sizes, types and so on, or exact calls."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torchcoll.core import case as base
from torchcoll.core import collectives as table
from torchcoll.core.backends import DEFAULT, communicates
from torchcoll.core.case import Case, Field, SizedCase, with_settings
from torchcoll.core.collectives import has_splits
from torchcoll.core.errors import UsageError, choice
from torchcoll.core.units import counted, format_size, parse_size

if TYPE_CHECKING:
    from torchcoll.core.splits import Weights

    Given = TypeVar("Given", contravariant=True)
    Held = TypeVar("Held", covariant=True)

    class Reads(Generic[Given, Held]):
        """The type of a field that is given in more forms than the one that it holds."""

        def __get__(self, instance: object, owner: object) -> Held: ...
        def __set__(self, instance: object, value: Given) -> None: ...


SPLIT_FIELD = "split_share"  # of a communicator's configuration: needs a group to split from
WORKS = ("matmul", "copy", "both")  # concurrent work; or background:LABEL
LEAST_WORK = 1024  # bytes: with less, what is timed is how it is issued
_BACKGROUND = "background:"
_MOST_S = 1e7  # seconds: 115 days; beyond that clocks overflow and a typing error is likelier
MAX_SIZES = 100_000  # a longer list is a typing error (`-i 1`), not a benchmark


def _names(value: Any, every: Iterable[str] = ()) -> tuple[str, ...]:
    """The items of a text with commas, or of a sequence. every: what ``all`` stands for."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    names = tuple(str(part) for part in value)
    return tuple(every) if every and names == ("all",) else names


def _unique(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _default(value: Any) -> Any:
    """The default of a field of type ``Reads``."""
    return value


@dataclass(frozen=True)
@with_settings
class Spec:
    """A whole sweep. The fields are the options of the command line: FIELDS of core/case.py.

    collectives, dtypes, ops, sizes, roots: several as a sequence, or as a text with commas.
    step_bytes, in_place, mode, backend, device, iters: None for what the help calls the default.
    labels: what to record in the result file.
    points: exact calls in place of the product of collectives, dtypes, ops and sizes.
    Raises UsageError naming the field.
    """

    collectives: Reads[str | Iterable[str], tuple[str, ...]] = _default((table.DEFAULT_COLLECTIVE,))
    min_bytes: Reads[int | str, int] = _default(8)
    max_bytes: Reads[int | str, int] = _default(128 << 20)
    factor: float = 4.0
    step_bytes: Reads[int | str | None, int | None] = _default(None)
    sizes: Reads[str | Iterable[int | str], tuple[int, ...]] = _default(())
    dtypes: Reads[str | Iterable[str], tuple[str, ...]] = _default(("float32",))
    ops: Reads[str | Iterable[str], tuple[str, ...]] = _default(("sum",))
    roots: Reads[int | str | Iterable[int | str], tuple[int, ...]] = _default((0,))
    in_place: bool | str | None = None
    mode: str | None = None
    backend: str | None = None
    device: str | None = None
    iters: int | None = None
    warmup: int = 0
    cold: int = 3
    fresh_group: bool = False
    precision: float = 0.05
    max_time_s: float = 1.0
    check: bool = True
    timeout_s: float = 300.0
    order: str = "size"
    seed: int = 0
    splits: str = "seed:0"
    init: str = "lazy"
    communicator_config: str = ""
    buffers: str = "default"
    buffer_reuse: str = "same"
    misalign_bytes: Reads[int | str, int] = _default(0)
    implementation: str = base.NATIVE
    groups: str | None = None
    asynchronous: bool = False
    coalesce: int = 1
    rehearse: bool = False
    concurrent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    points: Reads[Iterable[object], tuple[ExactCall, ...]] = _default(())

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("points", self.points or ())
        if self.points:
            put("points", read_points(self.points))
            for name, values in spec_fields(self.points).items():
                put(name, values)
        names = _names(self.collectives, table.COLLECTIVES)
        put("collectives", _unique(table.find_collective(name).name for name in names))
        names = _names(self.dtypes, table.COMMON_DTYPES)
        put("dtypes", _unique(table.find_dtype(name).name for name in names))
        put("ops", _unique(table.find_op(name) for name in _names(self.ops, table.OPS)))
        for entry, value in self._entries():
            if entry.is_size:
                put(entry.name, parse_size(value, entry.flag))
        put("communicator_config", ",".join(f"{n}={v}" for n, v in self.config_fields.items()))
        sizes = self.sizes.split(",") if isinstance(self.sizes, str) else self.sizes
        put("sizes", _unique(parse_size(size, "sizes") for size in sizes))
        roots: Any = self.roots
        if isinstance(roots, str):
            roots = roots.split(",")
        elif not isinstance(roots, Iterable):
            roots = (roots,)
        put("roots", _unique(_number(root, "root", int, 0) for root in roots))
        put("labels", dict(self.labels))
        if self.concurrent is not None:
            put("concurrent", read_work(self.concurrent))
            if self.concurrent.startswith(_BACKGROUND):
                put("labels", {**self.labels, "concurrent": self.concurrent})
        if isinstance(self.backend, str):
            put("backend", ",".join(_names(self.backend.lower())))
        if self.implementation != base.NATIVE:
            from torchcoll.core.implementations import find_implementations

            implementations, backend = find_implementations(self.implementation, self.backend)
            put("implementation", ",".join(implementations))
            put("backend", backend)
        for name in ("collectives", "dtypes", "ops", "roots"):
            if not getattr(self, name):
                raise UsageError(name, "none", "at least one")
        for entry, value in self._entries():
            if entry.kind in (int, float):
                put(entry.name, _number(value, entry.flag, entry.kind, entry.least))
        self._check_ranges()

    def _entries(self) -> Iterable[tuple[Field, Any]]:
        """The entries of the table with the values of their fields, except for a default None."""
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name in base.FIELDS and not (value is None and each.default is None):
                yield base.FIELDS[each.name], value

    def _check_ranges(self) -> None:
        if self.sizes:
            if min(self.sizes) < 1:
                raise UsageError("sizes", min(self.sizes), "at least 1 byte")
        else:
            if self.min_bytes < 1:
                raise UsageError("min-bytes", self.min_bytes, "at least 1 byte")
            if self.min_bytes > self.max_bytes:
                expected = f"at most max-bytes (-e), which is {format_size(self.max_bytes)}"
                raise UsageError("min-bytes (-b)", format_size(self.min_bytes), expected)
            if self.step_bytes is not None:
                if self.step_bytes < 1:
                    raise UsageError("step-bytes", self.step_bytes, "at least 1 byte")
            elif not (math.isfinite(self.factor) and self.factor > 1):
                raise UsageError("factor", self.factor, "a number above 1")
        for entry, value in self._entries():
            if entry.choices:
                choice(value, entry.flag, entry.choices)
        if self.buffer_reuse == "rotate" and self.mode == "graph":
            action = "A captured graph keeps the buffers of the call that it captured."
            raise UsageError("buffer-reuse", "rotate with --mode graph", "one of them", action)
        if self.buffer_reuse == "flush":
            if self.mode not in (None, "synchronized"):
                action = "Caches are flushed between calls, while none is running."
                value = f"flush with --mode {self.mode}"
                raise UsageError("buffer-reuse", value, "--mode synchronized", action)
            if self.works_concurrently:
                raise UsageError("buffer-reuse", "flush with --concurrent", "one of them")
        if self.mode == base.BLOCKING and self.works_concurrently:
            raise UsageError("mode", "blocking with --concurrent", "one of them")
        if self.misalign_bytes:
            dtypes = [table.DTYPES[name] for name in self.dtypes]
            largest = max(dtypes, key=lambda dtype: dtype.itemsize)
            if self.misalign_bytes % largest.itemsize:
                value = f"{self.misalign_bytes} with {largest.name}"
                expected = f"a multiple of {largest.itemsize} bytes"
                raise UsageError("misalign", value, expected, "A buffer begins at a whole element.")
            if self.misalign_bytes >= base.SLOT_BYTES:
                expected = f"less than {base.SLOT_BYTES} bytes"
                raise UsageError("misalign", self.misalign_bytes, expected)
        asynchronous = self.asynchronous or any(point.asynchronous for point in self.points)
        if asynchronous and self.coalesce > 1:
            raise UsageError("coalesce", f"{self.coalesce} with --async", "one of them")
        for name in ("precision", "max_time_s", "timeout_s"):
            value = getattr(self, name)
            if not 0 < value <= _MOST_S:
                raise UsageError(base.FIELDS[name].flag, value, f"above 0, at most {_MOST_S:g}")
        if self.precision >= 1:
            raise UsageError("precision", self.precision, "a number below 1", "5 % is 0.05.")

    def size_list(self) -> tuple[int, ...]:
        """The requested sizes, as nccl-tests has them. Raises UsageError beyond 100000."""
        if self.sizes:
            return self.sizes
        sizes: list[int] = []
        with localcontext() as context:
            # 60 digits hold every whole size and its product; exact fractions grow until
            # `-f 1.001` takes minutes.
            context.prec, context.rounding = 60, ROUND_HALF_EVEN
            factor, exact = Decimal(str(self.factor)), Decimal(self.min_bytes)
            while (size := round(exact)) <= self.max_bytes:
                sizes.append(size)
                exact = exact + self.step_bytes if self.step_bytes else exact * factor
                if len(sizes) > MAX_SIZES:
                    value, most = f"more than {MAX_SIZES} sizes", f"at most {MAX_SIZES}"
                    raise UsageError("sizes", value, most, "Use a larger factor or step.")
        return _unique(sizes)

    def cases(self, ranks: int) -> tuple[Case, ...]:
        """All cases in the order of running. Raises UsageError for a root that is no rank."""
        return tuple(sizing.case for sizing in self.sizings(ranks))

    def sizings(self, ranks: int) -> tuple[SizedCase, ...]:
        """The cases with their counts; weights are read once for all."""
        for root in self.roots:
            if not 0 <= root < ranks:
                raise UsageError("root", root, f"0 to {ranks - 1} ({counted(ranks, 'rank')})")
        weights: dict[str, Weights] = {}
        if self.has_splits:
            from torchcoll.core.splits import split_rules, split_weights

            weights = {rule: split_weights(rule, ranks) for rule in split_rules(self.splits)}
            of_splits = filter(has_splits, self.collectives)
            others = [name for name in of_splits if table.COLLECTIVES[name].blocks != table.BOTH]
            if others and len(weights) > 1:
                what = f"{self.splits} of {others[0]}"
                raise UsageError("splits", what, "pair: of all_to_all_v alone")
        by_key: dict[tuple[Any, ...], SizedCase] = {}
        for case in self._product():
            sizing = base.size_case(case, ranks, weights.get(case.splits or ""))
            key = (dataclasses.replace(case, size_bytes=sizing.size_bytes), sizing.count)
            by_key.setdefault(key, sizing)
        sizings = list(by_key.values())
        if self.buffer_reuse == "rotate":
            span = max((max(s.bytes_in, s.bytes_out) for s in sizings), default=0)
            sizings = [dataclasses.replace(sizing, span_bytes=span) for sizing in sizings]
        if self.order == "shuffled":
            random.Random(self.seed).shuffle(sizings)
        return tuple(sizings)

    def subgroups(self, ranks: int) -> tuple[tuple[int, ...], ...]:
        """The sub-groups of so many ranks, at least one. Raises UsageError if they do not fit."""
        return base.partition(self.groups, ranks) if self.groups else (tuple(range(ranks)),)

    @property
    def backends(self) -> tuple[str, ...]:
        return _names(self.backend or DEFAULT)

    @property
    def config_fields(self) -> dict[str, str]:
        """The fields of ``communicator_config``. Raises UsageError."""
        config: dict[str, str] = {}
        for part in filter(None, self.communicator_config.split(",")):
            name, _, value = (text.strip() for text in part.partition("="))
            if not (name.isidentifier() and value):
                expected = "NAME=VALUE, such as cta_policy=zero,split_share=1"
                raise UsageError("communicator-config", part, expected)
            config[name] = value
        return config

    @property
    def connects_early(self) -> bool:
        """Whether the communicators connect before the first call, as for registered buffers."""
        early = self.init == "eager" or self.buffers != "default"
        return early or SPLIT_FIELD in self.config_fields

    @property
    def communicates(self) -> bool:
        """Whether any of its backends sends anything between ranks."""
        return any(map(communicates, self.backends))

    @property
    def works_concurrently(self) -> bool:
        """Whether this run itself runs other work during its calls."""
        return bool(self.concurrent) and not str(self.concurrent).startswith(_BACKGROUND)

    @property
    def has_splits(self) -> bool:
        """Whether any of its collectives divides its buffers as ``splits`` says."""
        return any(map(has_splits, self.collectives))

    def _calls(self) -> Iterable[tuple[str, str | None, str | None, tuple[int, ...], bool]]:
        """(collective, dtype, op, sizes, asynchronous) of every call to measure."""
        for point in self.points:
            asynchronous = point.asynchronous or self.asynchronous
            yield point.collective, point.dtype, point.op, (point.size_bytes,), asynchronous
        for name in () if self.points else self.collectives:
            entry = table.COLLECTIVES[name]
            for dtype in self.dtypes if entry.has_data else (None,):
                for op in self.ops if entry.has_op else (None,):
                    sizes = self.size_list() if entry.has_data else (0,)
                    yield name, dtype, op, sizes, self.asynchronous

    def _product(self) -> Iterable[Case]:
        rules: tuple[str, ...] = ()
        if self.has_splits:
            from torchcoll.core.splits import split_rules

            rules = split_rules(self.splits)
        device = self.device or "cpu"
        forth = list(itertools.product(self.backends, _names(self.implementation)))
        back, turns = forth[::-1], itertools.count()
        one_by_one = device == "cpu" or self.buffer_reuse == "flush"
        mode = self.mode or ("synchronized" if one_by_one else "back-to-back")
        for name, dtype, op, sizes, asynchronous in self._calls():
            entry = table.COLLECTIVES[name]
            settings = {setting.name: getattr(self, setting.name) for setting in base.SETTINGS}
            settings |= {"asynchronous": asynchronous}
            settings |= {"group": self.groups, "rehearsal": self.rehearse}
            if not entry.has_data:
                settings["misalign_bytes"] = 0
            placements: Sequence[bool | None] = (None,)
            if self.in_place is not None and entry.has_data:
                both_placements = self.in_place == "both"
                placements = entry.placements if both_placements else (bool(self.in_place),)
            for root, in_place, size_bytes, splits in itertools.product(
                self.roots if entry.has_root else (None,),
                placements,
                sizes,
                rules if entry.has_splits else (None,),
            ):
                # A B B A: what drifts with time favours neither.
                for backend, by in back if next(turns) % 2 else forth:
                    placed = _default_placement(name, by) if in_place is None else in_place
                    what = (name, size_bytes, dtype, op, root, placed, mode, backend, device)
                    yield Case(*what, splits=splits, implementation=by, **settings)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spec:
        """Unknown fields are ignored."""
        return cls(**base.known_fields(cls, data))


def _default_placement(collective: str, implementation: str) -> bool:
    """Whether the calls are in place if the Spec does not say it."""
    default = table.COLLECTIVES[collective].placements[0]
    if implementation == base.NATIVE:
        return default
    from torchcoll.core.implementations import placement_of

    other = placement_of(implementation, collective)
    return default if other is None else other


def read_work(text: str) -> str:
    """Check a description of concurrent work: ``matmul:1M`` (a matrix of so many bytes),
    ``copy:64M``, ``both`` or ``background:LABEL``. Raises UsageError.
    """
    name, colon, rest = str(text).partition(":")
    if f"{name}:" == _BACKGROUND and rest:
        return text
    if name not in WORKS:
        expected = f"{', '.join(WORKS)}, each with :SIZE, or {_BACKGROUND}LABEL"
        raise UsageError("concurrent", text, expected)
    if colon and parse_size(rest, "concurrent") < LEAST_WORK:
        raise UsageError("concurrent", text, f"a size of at least {LEAST_WORK} bytes")
    return text


def _number(value: Any, what: str, kind: type, least: int | None = None) -> Any:
    expected = "a whole number" if kind is int else "a number"
    if least is not None:
        expected += f" from {least} on"
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(what, value, expected) from None
    changed = not isinstance(value, str) and number != value  # 2.5 is no whole number; nor is nan
    if isinstance(value, bool) or changed or (least is not None and number < least):
        raise UsageError(what, value, expected)
    return number


# Exact calls to measure, in place of a product. core/traffic_spec.py makes them from a Traffic.


@dataclass(frozen=True)
class ExactCall:
    """One call. dtype and op are None where it has none."""

    collective: str
    size_bytes: int
    dtype: str | None = None
    op: str | None = None
    asynchronous: bool = False


_EXPECTED = "(collective, size_bytes, dtype, op, asynchronous)"


def read_points(points: Any) -> tuple[ExactCall, ...]:
    """Read exact calls, and keep each once: an ExactCall, a sequence of its fields, or a mapping. A
    dtype and an op that are left out are float32 and sum. Raises UsageError.
    """
    if isinstance(points, str) or not isinstance(points, Iterable):
        raise UsageError("points", points, f"a list of {_EXPECTED}")
    return tuple(dict.fromkeys(map(_read_point, points)))


def _read_point(point: Any) -> ExactCall:
    given = point
    try:
        if not isinstance(point, ExactCall):
            point = ExactCall(**point) if isinstance(point, Mapping) else ExactCall(*point)
    except TypeError:
        raise UsageError("points", given, f"{_EXPECTED} each") from None
    if not isinstance(point.asynchronous, bool):
        raise UsageError("points", given, "True or False for asynchronous")
    entry = table.find_collective(point.collective)
    size_bytes = parse_size(point.size_bytes, "points")
    if entry.has_data and not size_bytes:
        raise UsageError("points", f"{entry.name} of 0 bytes", "at least 1 byte")
    return ExactCall(
        entry.name,
        size_bytes if entry.has_data else 0,
        table.find_dtype(point.dtype or "float32").name if entry.has_data else None,
        table.find_op(point.op or "sum") if entry.has_op else None,
        point.asynchronous,
    )


def spec_fields(points: Iterable[ExactCall]) -> dict[str, tuple[Any, ...]]:
    """The values of the points, for the fields of a Spec that would otherwise be a product."""
    columns = zip(*map(astuple, points), strict=True)
    collectives, sizes, dtypes, ops, _ = (_unique(filter(None, column)) for column in columns)
    fields = {
        "collectives": collectives,
        "sizes": tuple(sorted(sizes)),
        "dtypes": dtypes,
        "ops": ops,
    }
    return {name: values for name, values in fields.items() if values}
