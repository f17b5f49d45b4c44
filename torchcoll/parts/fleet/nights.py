"""To which night a run belongs, by UTC; and whose clock cannot be right."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import numpy.typing as npt

from torchcoll.core.errors import UsageError
from torchcoll.parts.fleet.series import UNKNOWN_START, RunOverview, Summaries

Ints = npt.NDArray[np.int64]
NO_NIGHT = np.iinfo(np.int64).min  # neither start nor receipt of the run is known
_DAY_US = 86_400_000_000
_CLOCK_OFF_US = 300_000_000  # 5 minutes: more than any transfer is early
_EPOCH = date(1970, 1, 1)


def parse_night_start(text: str) -> int:
    """Microseconds after midnight UTC at which a night begins, from ``HH:MM``.

    Raises UsageError for anything else.
    """
    hours, colon, minutes = text.partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and len(text) <= 5):
        raise UsageError("night-start", text, "a time of day in UTC such as 12:00")
    if int(hours) > 23 or int(minutes) > 59:
        raise UsageError("night-start", text, "a time of day in UTC from 00:00 to 23:59")
    return (int(hours) * 60 + int(minutes)) * 60_000_000


def parse_night(text: str, what: str = "night") -> int:
    """The number of a night, in days since 1970-01-01, from its date. Raises UsageError."""
    try:
        return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        raise UsageError(what, text, "a date such as 2026-11-22") from None


def format_night(night: int) -> str:
    """The date on which the night begins."""
    return (_EPOCH + timedelta(days=int(night))).isoformat()


def ahead_of_receipt(summaries: Summaries) -> npt.NDArray[np.bool_]:
    """Runs [R] that were received over 5 minutes before they began: the clock of their host is
    wrong. A clock that is behind cannot be told from a run that was collected late.
    """
    both_times = (summaries.start_us != UNKNOWN_START) & (summaries.received_us != UNKNOWN_START)
    ahead: npt.NDArray[np.bool_] = summaries.start_us > summaries.received_us + _CLOCK_OFF_US
    ahead &= both_times
    return ahead


def nights_of(summaries: Summaries, night_start_us: int) -> Ints:
    """The night of each run [R], in days since 1970-01-01.

    A run whose start is not recorded, or cannot be right, is of the night in which it was received.
    """
    unknown = (summaries.start_us == UNKNOWN_START) | ahead_of_receipt(summaries)
    when = np.where(unknown, summaries.received_us, summaries.start_us)
    night = (when - night_start_us) // _DAY_US
    return np.where(when == UNKNOWN_START, NO_NIGHT, night)


def overview_of(summaries: Summaries, night_start_us: int) -> RunOverview:
    """As ``run_overview`` of a store."""
    nights = nights_of(summaries, night_start_us)
    names = summaries.nodes
    dated = nights != NO_NIGHT
    nodes, node = np.unique(summaries.node[dated], return_inverse=True)
    first = np.full(len(nodes), np.iinfo(nights.dtype).max)
    last = np.full(len(nodes), np.iinfo(nights.dtype).min)
    np.minimum.at(first, node, nights[dated])
    np.maximum.at(last, node, nights[dated])
    of_nodes = {
        names[number]: (int(first[i]), int(last[i]))
        for i, number in enumerate(nodes.tolist())
        if names[number]
    }
    return RunOverview(
        tuple(np.unique(nights[nights != NO_NIGHT]).tolist()),
        of_nodes,
        int((nights == NO_NIGHT).sum()),
        tuple(sorted({names[node] for node in summaries.node[ahead_of_receipt(summaries)]})),
    )
