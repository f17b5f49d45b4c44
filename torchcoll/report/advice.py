"""What ``advise`` found, as a table and as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.core.units import format_bytes, format_ratio, format_size, format_time
from torchcoll.report.found import Found, show_found
from torchcoll.report.grid import Grid, Head
from torchcoll.report.output import one_line

if TYPE_CHECKING:
    from torchcoll.analysis.gradients import Advice
    from torchcoll.analysis.overlap import Proposal

ADVICE_SCHEMA = "torchcoll-advice/1"
_STYLES = {"best": "green", "worse": "dim", "beyond the curve": "yellow"}
_MODEL = (
    "model: an all_reduce starts when its bucket is ready and the one before it has ended, and "
    "takes what the curve says",
    "exposed = end of the last all_reduce - end of the backward pass; not in it: communication "
    "that slows the computation down, and ranks that wait for each other",
)
_MODEL_OF_CPUS = (
    "model: every all_reduce takes what the curve says, and on CPUs none of it is hidden: it takes "
    "the cores that compute",
    "exposed = all all_reduce calls of a backward pass; not in it: ranks that wait for each other",
)
_FAR = 2  # a model that is further from what was measured says so


def show_advice(found: Sequence[Advice], format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``advise`` found. Raises UsageError for an unknown format."""
    show_found(
        [Found([advice_grid(one)], advice_records(one), advice_object(one)) for one in found],
        format,
        file,
    )


def advice_grid(advice: Advice) -> Grid:
    """What was given and the model above, a row for each setting, the proposal below."""
    spread = any(row.communication_low_ns is not None for row in advice.rows)
    heads = [Head("bucket_cap_mb", repeat=True), Head("buckets", drop=2), Head("largest", drop=4)]
    known = advice.backward_ns is not None
    heads.append(Head("all_reduce", "together", drop=1 if known else 0))
    if known:
        # The interval of the ratio is what the verdict stands on: it stays as long as that does.
        heads += [Head("exposed"), *([Head("low", drop=3), Head("high", drop=3)] if spread else [])]
        heads += [Head("ratio", legend=_RATIO)]
        if spread:
            heads.append(Head("95 %") if advice.launches > 1 else Head("range", legend=_RANGE))
        halved = any(row.exposed_16bit_ns is not None for row in advice.rows)
        heads += [Head("exposed", "16 bits", drop=5)] if halved else []
    elif spread:
        heads += [Head("low"), Head("high")]
    marked = any(row.verdict for row in advice.rows)
    heads += [Head("verdict", left=True)] if marked else []
    rows = []
    for row in advice.rows:
        largest = "-" if row.largest_nbytes is None else format_bytes(row.largest_nbytes)
        buckets = "-" if row.buckets is None else str(row.buckets)
        cells = [row.name, ">= " * (row.verdict == "could be as sent") + buckets, largest]
        cells.append(format_time(row.communication_ns))
        if known:
            cells.append(format_time(row.exposed_ns))
            low, high = row.exposed_low_ns, row.exposed_high_ns
            cells += [format_time(low), format_time(high)] if spread else []
            cells.append(format_ratio(row.ratio))
            own = row is not advice.best
            cells += [_between(row.ratio_low, row.ratio_high) if own else "-"] if spread else []
            cells += [format_time(row.exposed_16bit_ns)] if halved else []
        elif spread:
            cells += [format_time(row.communication_low_ns), format_time(row.communication_high_ns)]
        rows.append([*cells, *([row.verdict] if marked else [])])
    styles = [_STYLES.get(row.verdict, "") for row in advice.rows]
    return Grid(heads, rows, _above(advice, spread), _below(advice), styles)


_RATIO = "ratio = (backward + exposed) / that of the best"
_RANGE = (
    "range = least and most ratio with the median, the 5th and the 95th percentile of the curve's "
    "calls; within noise = it reaches down to 1"
)


def _between(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{format_ratio(low)} to {format_ratio(high)}"


def _time(ns: float | None) -> str:
    return format_time(ns).strip()


def _above(advice: Advice, spread: bool) -> list[str]:
    row, (least, most) = advice.curve, advice.sizes
    words = [row.dtype, f"on {row.backend}", f"{row.ranks or 'unknown'} ranks"]
    words += [row.cadence, f"{row.clock} clock"]
    launches = f"{advice.launches} launch{'es' if advice.launches > 1 else ''}"
    lines = [
        f"gradients: {format_bytes(advice.nbytes)} of {advice.dtype or 'unknown type'}: "
        f"{one_line(advice.what)}",
        f"curve: all_reduce {', '.join(one_line(w) for w in words if w)}; "
        f"{format_size(least)} to {format_size(most)}, {launches}",
    ]
    if advice.backward_ns is not None:
        source = one_line(advice.backward_source)
        model = _MODEL_OF_CPUS if advice.curve.device == "cpu" else _MODEL
        lines += [f"backward pass: {_time(advice.backward_ns)} ({source})", *model]
    if spread and advice.launches > 1:
        lines.append("low, high = the least and the most of the launches; 95 % over the launches")
    elif spread:
        lines.append("low, high = with the 5th and the 95th percentile of the curve's calls")
    return lines


def _below(advice: Advice) -> list[str]:
    lines = _proposal(advice)
    best = advice.best
    if best and advice.compression and best.exposed_16bit_ns is not None:
        ratio, low, high = advice.compression
        interval = "" if low is None else f" ({_between(low, high)})"
        noise = ", within noise" if (low or 2) <= 1 <= (high or 0) else ""
        lines.append(
            f"16 bits an element (a compression hook) at {best.name}: exposed "
            f"{_time(best.exposed_16bit_ns)} for {_time(best.exposed_ns)}; backward + exposed "
            f"{format_ratio(ratio)} of it{interval}{noise}"
        )
    at = best or next((row for row in advice.rows if row.setting == "sent"), advice.rows[0])
    if advice.accumulate > 1:
        each = (at.communication_ns if at.exposed_ns is None else at.exposed_ns) or 0.0
        what = "all_reduce" if at.exposed_ns is None else "exposed"
        all_of_them = _time(advice.accumulate * each)
        lines.append(
            f"{advice.accumulate} backward passes an optimiser step, at {at.name}: with no_sync in "
            f"all but the last {_time(each)} {what}, without it {all_of_them}"
        )
    return [*lines, *map(one_line, advice.notes)]


def _proposal(advice: Advice) -> list[str]:
    best, present = advice.best, advice.present
    if len(advice.judged) < 2:
        why = "there are no two settings whose buckets are known, of measured sizes, and differ"
        if advice.measured_ns is not None:
            why += f"; exposed now (measured {_time(advice.measured_ns)}, with waits)"
        return [f"no proposal: {why}", *_measured(advice)]
    if advice.backward_ns is None or best is None:
        return _assumed(advice)
    line = f"proposal: {_named(best)}"
    told = {row.verdict for row in advice.rows}
    known = " of those whose buckets are known" * bool(told & {"unknown", "could be as sent"})
    if present and present.verdict in ("best", "within noise", "within 2 %"):
        of = known if present is best else f" of {_named(best)}"
        line = f"proposal: {_left(present)} is {present.verdict}{of}"
    fine = [row for row in advice.judged if row.verdict in ("within noise", "within 2 %")]
    others = ", ".join(row.name for row in fine if row.setting == "cap")
    if best.setting == "cap" and others:
        line += f"; as good within noise or 2 %: {others}"
    line += f"; exposed {_time(best.exposed_ns)}"
    if present and present is not best and present.verdict != "beyond the curve":
        line += f", now {_time(present.exposed_ns)}"
        line += " (now = the default cap, assumed)" * (present.setting == "default")
    if advice.measured_ns is not None:
        line += f" (measured {_time(advice.measured_ns)}, with waits)"
    return [
        line,
        "a proposal of a model: torchcoll.try_buckets measures real steps",
        *_measured(advice),
    ]


def _measured(advice: Advice) -> list[str]:
    """What it is that the traffic had exposed, and whether the model of it is far from that."""
    present, measured = advice.present, advice.measured_ns
    if present is None or measured is None:
        return []
    lines = [
        f"measured: {one_line(advice.measured_as)}; median over passes and ranks, with the waits "
        "for other ranks"
    ]
    modelled = present.exposed_ns
    if modelled is None or present.verdict == "beyond the curve":
        return lines
    if not modelled <= _FAR * measured <= _FAR**2 * modelled:
        lines.append(
            f"model and measurement of what was sent are more than {_FAR}x apart: {_time(modelled)}"
            f" and {_time(measured)}. What the model leaves out counts here: let try_buckets decide"
        )
    return lines


def _assumed(advice: Advice) -> list[str]:
    """Without a backward time: what is best whatever it is, or for which."""
    best, present = advice.best, advice.present
    times = [_time(ns) for ns, _ in advice.assumed]
    if best is None:
        told = ", ".join(f"{name} if it takes {_time(ns)}" for ns, name in advice.assumed)
        lines = [
            "no proposal: which is best depends on how long the backward pass takes: give it with "
            "--backward-ms (backward_ms of torchcoll.advise)",
            f"the model's best: {told}",
        ]
    else:
        what = f"{_left(best)} leaves" if best is present else f"{_named(best)} leaves"
        lines = [
            f"proposal: {what} least exposed whether the backward pass takes "
            f"{', '.join(times[:-1])} or {times[-1]}; with --backward-ms (backward_ms of "
            "torchcoll.advise) by how much, and whether it is more than noise",
            "a proposal of a model: torchcoll.try_buckets measures real steps",
        ]
    base = present or advice.rows[0]
    of = f"all_reduce together of {base.name} ({_time(base.communication_ns)})"
    return [*lines, f"these times are assumed: 1/4, 1 and 4 times {of}"]


def _left(row: Proposal) -> str:
    """The words for what is there already. Nothing tells that a model's DDP has the default."""
    if row.setting == "sent":
        return "leave bucket_cap_mb as it is: what was sent"
    return "leave bucket_cap_mb unset: the default"


def _named(row: Proposal) -> str:
    if row.setting in ("sent", "default"):
        return row.name
    return f"bucket_cap_mb{'_list' if row.setting == 'caps' else ''}={row.name}"


def advice_object(advice: Advice) -> dict[str, Any]:
    row = advice.curve
    names = ("collective", "dtype", "op", "ranks", "backend", "device", "cadence", "clock")
    curve = {name: getattr(row, name) for name in names}
    plain = ["what", "nbytes", "dtype", "backward_ns", "backward_source", "accumulate"]
    plain += ["measured_ns", "measured_as"]
    ratio, low, high = advice.compression or (None, None, None)
    return {
        "schema": ADVICE_SCHEMA,
        **{name: getattr(advice, name) for name in plain},
        "curve": {**curve, "sizes": list(advice.sizes), "launches": advice.launches},
        "best": advice.best.name if advice.best else None,
        "low_cap_mb": advice.low_cap_mb,
        "high_cap_mb": advice.high_cap_mb,
        "compression": {"ratio": ratio, "ratio_low": low, "ratio_high": high},
        "assumed": [{"backward_ns": ns, "best": name} for ns, name in advice.assumed],
        "notes": advice.notes,
        "rows": advice_records(advice),
    }


def advice_records(advice: Advice) -> list[dict[str, Any]]:
    return [{"name": row.name, **vars(row), "caps_mb": list(row.caps_mb)} for row in advice.rows]
