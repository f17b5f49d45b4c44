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
    heads = [Head("bucket_cap_mb", repeat=True), Head("buckets", drop=2), Head("largest", drop=3)]
    heads.append(Head("all_reduce", "together"))
    known = advice.backward_ns is not None
    if known:
        heads += [Head("exposed"), *([Head("low"), Head("high")] if spread else [])]
        heads += [Head("ratio", legend=_RATIO)]
        heads += [Head("95 %" if advice.launches > 1 else "range", drop=1)] if spread else []
        halved = any(row.exposed_16bit_ns is not None for row in advice.rows)
        heads += [Head("exposed", "16 bits", drop=4)] if halved else []
    elif spread:
        heads += [Head("low"), Head("high")]
    marked = any(row.verdict for row in advice.rows)
    heads += [Head("verdict", left=True)] if marked else []
    rows = []
    for row in advice.rows:
        cells = [row.name, str(row.buckets), format_bytes(row.largest_nbytes)]
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
        each = at.communication_ns if at.exposed_ns is None else at.exposed_ns
        what = "all_reduce" if at.exposed_ns is None else "exposed"
        all_of_them = _time(advice.accumulate * each)
        lines.append(
            f"{advice.accumulate} backward passes an optimiser step, at {at.name}: with no_sync in "
            f"all but the last {_time(each)} {what}, without it {all_of_them}"
        )
    return [*lines, *map(one_line, advice.notes)]


def _proposal(advice: Advice) -> list[str]:
    best, present = advice.best, advice.present
    if advice.backward_ns is None:
        told = ", ".join(f"{name} if it takes {_time(ns)}" for ns, name in advice.assumed)
        lines = [
            "no proposal: which is best depends on how long the backward pass takes: give it with "
            "--backward-ms (backward_ms of torchcoll.advise)"
        ]
        return [*lines, f"the model's best: {told}"] if told else lines
    if best is None:
        return ["no proposal: every setting needs sizes that were not measured"]
    if len(advice.rows) == 1:
        return ["no proposal: one setting alone, nothing to choose from"]
    line = f"proposal: {_named(best)}"
    if present and present.verdict in ("best", "within noise", "within 2 %"):
        what = "what was sent" if present.setting == "sent" else "the default"
        of = "" if present is best else f" of {_named(best)}"
        line = f"proposal: leave bucket_cap_mb as it is: {what} is {present.verdict}{of}"
    if best.setting == "cap" and advice.low_cap_mb != advice.high_cap_mb:
        line += f"; {advice.low_cap_mb:g} to {advice.high_cap_mb:g} are not shown over 2 % worse"
    line += f"; exposed {_time(best.exposed_ns)}"
    beyond = present and present.verdict == "beyond the curve"
    if present and present is not best and not beyond:
        line += f", now {_time(present.exposed_ns)}"
    lines = [line, "a proposal of a model: torchcoll.try_buckets measures real steps"]
    measured = advice.measured_ns
    if present is None or measured is None:
        return lines
    lines[0] += f"{', now' * bool(beyond)} (measured {_time(measured)}, with waits)"
    lines.append(
        f"measured: {one_line(advice.measured_as)}; median over passes and ranks, with the waits "
        "for other ranks"
    )
    modelled = present.exposed_ns or 0.0
    if not beyond and not modelled <= _FAR * measured <= _FAR**2 * modelled:
        lines.append(
            f"model and measurement of what was sent are more than {_FAR}x apart: {_time(modelled)}"
            f" and {_time(measured)}. What the model leaves out counts here: let try_buckets decide"
        )
    return lines


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
