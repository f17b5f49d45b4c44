"""Which cases and launches a curve over ranks leaves out, and why."""

from __future__ import annotations

from collections import Counter

from torchcoll.analysis.cold import Cold, cold
from torchcoll.analysis.repeats import FIRST_TWO
from torchcoll.analysis.sides import Measured, Reading, Side
from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import LIKELY
from torchcoll.core.units import counted


def unusable(files: Side) -> tuple[str, str]:
    """How many cases there are, and why each of them is in no curve."""
    items = files.measured("time", Reading())
    reasons = Counter(map(why_out, items))
    words = "; ".join(f"{number} {why}" for why, number in reasons.items())
    return f"none of {counted(len(items), 'case')}", f"{words}." if words else ""


def why_out(item: Measured) -> str:
    row, given = item.row, item.result.given
    if row.status != "ok":
        reason = row.reason.partition(LIKELY)[0]
        return f"{row.status} ({reason})" if reason else row.status
    if row.verified == "wrong":
        return "wrong"
    if not row.ranks:
        return "without a number of ranks"
    return "first calls alone" if given and given.first_call_ns else "without a time"


def cold_of(files: Side) -> Cold | None:
    try:
        return cold(files.runs)
    except UsageError:  # no first call is known
        return None


def later_launches(started: Cold | None) -> set[int]:
    """ids of the launches that were not the first of their kind in their job, where it matters."""
    rows = started.rows if started else []
    return {id(row.launch) for row in rows if row.in_job not in ("", "-", "1", FIRST_TWO)}
