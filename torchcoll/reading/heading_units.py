"""Reads the unit in the heading of a column. Case matters: GBps is not Gbps."""

from __future__ import annotations

import re

_SPLIT = re.compile(r"[\s()\[\]_,;:-]+")
_TIMES = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1.0),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microseconds"), 1e3),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1e6),
    **dict.fromkeys(("s", "sec", "secs", "seconds"), 1e9),
}
_BANDWIDTH = re.compile(r"([kKmMgGtT])(i?)(B|b|[Bb]ytes?|[Bb]its?)(?:/s|/sec|/second|ps)")
_SIZE_HEADING = re.compile(r"([KMGT]?)(i?)(B|bytes?)", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_ELEMENTS = {"elements", "elems", "elem", "count", "items"}
# torchcoll's own names, where _gbps is 10^9 bytes per second (docs/glossary.md).
_OURS = ("algbw_gbps", "busbw_gbps")

Unit = tuple[float, str]  # (scale, a warning if the unit is uncertain, or '')


def time_unit(heading: str) -> Unit:
    """Nanoseconds in one unit of the heading."""
    for token in _SPLIT.split(heading.lower()):
        if token in _TIMES:
            return _TIMES[token], ""
    return 1e3, f"the heading {heading!r} names no unit: taken as us"


def bandwidth_unit(heading: str) -> Unit:
    """GB/s in one unit. K, M, G are powers of 1000, Ki, Mi, Gi of 1024; b is a bit."""
    if heading in _OURS:
        return 1.0, ""
    for token in _SPLIT.split(heading):
        if match := _BANDWIDTH.fullmatch(token):
            prefix, binary, unit = match.groups()
            scale = (1024 if binary else 1000) ** _POWER[prefix.lower()] / 1e9
            # All lower case: the case says nothing.
            if token.islower() and unit == "b" and prefix != "k":
                bits = token.endswith("ps")
                taken = "bits" if bits else "bytes"
                return scale / (8 if bits else 1), f"{token} in {heading!r}: taken as {taken}"
            return scale / (8 if unit in ("b", "bit", "bits", "Bit", "Bits") else 1), ""
    return 1.0, f"the heading {heading!r} names no unit: taken as GB/s"


def size_unit(heading: str) -> tuple[int, str]:
    """(bytes in one unit, in powers of 1024; why the sizes cannot be used, or '')."""
    tokens = _SPLIT.split(heading)
    if not _ELEMENTS.isdisjoint(token.lower() for token in tokens):
        return 1, f"the sizes under {heading!r} are no bytes"
    for token in tokens:
        if match := _SIZE_HEADING.fullmatch(token):
            return 1024 ** _POWER[match[1].lower()], ""
    return 1, ""
