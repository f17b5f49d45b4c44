"""A trap that was found: what it is, why it hurts, what to do."""

from __future__ import annotations

from dataclasses import dataclass

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """``name`` is stable, for scripts. ``severity``: error (a run fails or hangs), warning (numbers
    are not what they seem), note (good to know). ``backends``: where only these are touched; it is
    no more than a note where none of them can be used.
    """

    name: str
    severity: str
    what: str
    why: str
    action: str
    backends: tuple[str, ...] = ()
