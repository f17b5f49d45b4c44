"""Whether an exported setting did what it says, in lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcoll.report.algorithms import sizes_text
from torchcoll.report.output import one_line

if TYPE_CHECKING:
    from torchcoll.analysis.checked import Ran


def ran_lines(ran: Sequence[Ran], cases: int) -> list[str]:
    """ran: the cases of which the log tells what ran; cases: all that were launched."""
    if not ran:
        return ["what ran is not told: the launches kept no log of the library (--library-log)"]
    other: dict[tuple[str, str, str], dict[int, None]] = {}
    for one in ran:
        if one.others:
            key = one.collective, ", ".join(one.others), one.asked
            other.setdefault(key, {})[one.nbytes] = None
    right = sum(not one.others for one in ran)
    of = f"{len(ran)} cases" + (f" that the log tells of, of {cases}" if len(ran) < cases else "")
    lines = [f"the library's log: as exported in {right} of {of}"]
    for (collective, names, asked), sizes in other.items():
        text = f"{collective} ran {names}, not {asked}, at {sizes_text(list(sizes))}"
        lines.append(f"NOT AS EXPORTED: {one_line(text)}")
    return lines
