"""Formats sizes, times and bandwidths as text, and parses sizes, durations and numbers of ranks.

``parse_size`` reads back what ``format_size`` wrote. ``K M G T`` are binary, as in nccl-tests.
``1KB`` is refused, because some people read it as 1000 bytes and others as 1024.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from fractions import Fraction
from functools import lru_cache

from torchcoll.core.errors import UsageError

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NUMBER = r"([0-9]{1,40}(?:\.[0-9]{1,40})?)"  # Python refuses to parse thousands of digits
_SIZE = re.compile(_NUMBER + r"([kKmMgGtT]?)")
_COUNT = re.compile(r"[0-9]{1,20}")
_SHARE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(%?)")
_AMBIGUOUS = re.compile(_NUMBER + r"\s*([kKmMgGtT])(i?)[bB]")
MAX_BYTES = (1 << 63) - 1  # every communication library accepts a signed 64-bit count

_SIZE_SET = "a number of bytes with an optional K, M, G or T (binary), such as 8, 1K, 25M or 1.5G"


def parse_size(text: str | int, what: str = "size") -> int:
    """Parse bytes: ``8``, ``1K``, ``1.5G``. Raises UsageError, also for a fraction of a byte."""
    if isinstance(text, int) and not isinstance(text, bool):
        value = Fraction(text)
    else:
        text = str(text).strip()
        if ambiguous := _AMBIGUOUS.fullmatch(text):
            number, suffix, binary = ambiguous.groups()
            suffix = suffix.upper()
            decimal = Fraction(number) * 1000 ** ("KMGT".index(suffix) + 1)
            other = "" if binary or decimal.denominator > 1 else f" or {decimal} (decimal)"
            action = f"Write {number}{suffix} ({number} x {_SUFFIXES[suffix]} bytes){other}."
            raise UsageError(what, text, _SIZE_SET, action)
        match = _SIZE.fullmatch(text)
        if not match:
            raise UsageError(what, text, _SIZE_SET)
        value = Fraction(match[1]) * _SUFFIXES[match[2].upper()]
    if value.denominator != 1:
        raise UsageError(what, text, "a whole number of bytes")
    if not 0 <= value <= MAX_BYTES:
        raise UsageError(what, text, f"0 to {MAX_BYTES} bytes")
    return int(value)


MOST_RANKS = 1 << 24


def parse_ranks(text: str) -> list[int]:
    """Ascending ranks from ``64``, ``8,12`` or ``8..4096`` (doubling). Raises UsageError."""

    def number(text: str) -> int:
        if not _COUNT.fullmatch(text) or not 2 <= int(text) <= MOST_RANKS:
            raise UsageError("ranks", text, f"whole numbers from 2 to {MOST_RANKS}, or 8..4096")
        return int(text)

    return _parse_list(text, "ranks", number, 2)


def parse_sizes(text: str) -> list[int]:
    """Parse sizes: ``25M``, ``1K,25M`` or ``1K..1G`` (factor 4, including the last), as above."""
    return _parse_list(text, "sizes", lambda size: parse_size(size, "sizes"), 4)


def _parse_list(text: str, what: str, read: Callable[[str], int], factor: int) -> list[int]:
    """Parse a list of numbers and ranges. Raises UsageError. read: parses one number."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dots, last = (bound.strip() for bound in part.partition(".."))
        low = read(first)
        high = read(last) if dots else low
        if not 0 < low <= high:
            raise UsageError(what, part.strip(), "from above 0, and not down")
        while low <= high:
            numbers.append(low)
            low *= factor
        if dots and numbers[-1] != high:
            numbers.append(high)
    return sorted(set(numbers))


def whole_number(value: object, what: str, least: int) -> int:
    """Return the value if it is a whole number of at least ``least``. Raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(what, value, f"a whole number from {least} on")
    return value


_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str, what: str) -> float:
    """Parse a duration (``200us``, ``90s``, ``30m``, ``8h``, ``2d``) in s. Raises UsageError."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    with contextlib.suppress(ValueError, KeyError):
        seconds = float(number) * _SECONDS[text[len(number) :]]
        if 0 < seconds < float("inf"):
            return seconds
    raise UsageError(what, text, "a time above 0 with its unit: 90s, 30m, 8h, 2ms")


def parse_utc(text: str) -> datetime:
    """Parse an ISO time; without an offset it is one of UTC. Raises ValueError."""
    # Python 3.10 does not read Z.
    when = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)


def parse_share(text: str, what: str) -> float:
    """Parse a share above 0 and below 1, such as ``2%`` or ``0.02``. Raises UsageError."""
    match = _SHARE.fullmatch(text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise UsageError(what, text, "a share above 0 and below 1, such as 2% or 0.02")
    return share


@lru_cache(maxsize=1024)  # called for every row, with few different sizes
def format_size(size_bytes: int) -> str:
    """Format a size as the shortest exact text: ``1K``, ``1.5G``, ``1000000``."""
    for suffix in "TGMK":
        unit = _SUFFIXES[suffix]
        if size_bytes >= unit and 100 * size_bytes % unit == 0:
            return f"{size_bytes / unit:.2f}".rstrip("0").rstrip(".") + suffix
    return str(size_bytes)


def size_text(size_bytes: int) -> str:
    """``format_size`` for a sentence: ``8 B`` below 1K."""
    return format_size(size_bytes) if size_bytes >= 1024 else f"{size_bytes} B"


def format_bytes(size_bytes: float) -> str:
    """Format an amount of memory, rounded to three digits: ``512 B``, ``1.5 GiB``."""
    for suffix in "TGMK":
        if size_bytes >= _SUFFIXES[suffix]:
            scaled = size_bytes / _SUFFIXES[suffix]
            # %g would write 1023 as 1.02e+03.
            return f"{scaled:.3g} {suffix}iB" if scaled < 999.5 else f"{scaled:.0f} {suffix}iB"
    return f"{size_bytes:.0f} B"


_TIME_UNITS = (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s ", 10**9))


def format_time(ns: float | None, digits: int = 4) -> str:
    """For a column: ``812 ns``, ``155.2 us``, ``1.203 s ``, with significant ``digits``."""
    if ns is None:
        return "-"
    for unit, scale in _TIME_UNITS:
        value = ns / scale
        # 999.95 us would be rounded to '1000.0 us', so the rounded value decides about the unit.
        shown = f"{value:.0f}" if unit == "ns" else f"{value:.{digits}g}"
        if float(shown) < 1000 or unit == "s ":
            break
    if unit == "ns":
        return f"{value:.0f} ns"
    whole = len(str(int(float(f"{value:.{digits}g}"))))
    return f"{value:.{max(0, digits - whole)}f} {unit}"


def format_ns(ns: float | None, digits: int = 4) -> str:
    """Format a duration for a sentence: as ``format_time``, without a blank after ``s``."""
    return format_time(ns, digits).strip()


def format_duration(seconds: float | None) -> str:
    """Format seconds as ``15 s``, ``3 min 15 s`` or ``2 h 5 min``; None is ``-``."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_bandwidth(gbps: float | None) -> str:
    """Format GB/s (10**9 bytes) with three decimals, so that columns line up; None is ``-``."""
    if gbps is None:
        return "-"
    if 0 < gbps < 0.0005:
        return "<0.001"
    return f"{gbps:.3f}"


def format_ratio(ratio: float | None) -> str:
    """Three decimals or three digits, never an exponent: 0.00571, 1.040, 29000. None is ``-``."""
    if ratio is None:
        return "-"
    if ratio < 1e-9:
        return "0.000" if ratio <= 0 else "<0.000000001"
    if ratio > 1e9:
        return ">1000000000"
    if ratio >= 100:  # %g would write 29000 as 2.9e+04
        return f"{float(f'{ratio:.4g}'):.{int(ratio < 1000)}f}"
    # The rounded value decides: 0.09996 is 0.100, 0.009996 is 0.0100.
    power = int(f"{ratio:.2e}".partition("e")[2])
    return f"{ratio:.{max(3, 2 - power)}f}"


def format_digits(value: float, digits: int = 3) -> str:
    """Format a number with so many digits, whole numbers whole: ``0.0123``, ``2``, ``29154``."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2]))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_percent(share: float) -> str:
    """Format a share as a percentage: 0.025 as ``2.5 %``."""
    return f"{100 * share:g} %"


def format_share(share: float | None) -> str:
    """Format a share as a percentage with one decimal; None is ``-``."""
    return "-" if share is None else f"{100 * share:.1f} %"


def format_factor(factor: float) -> str:
    """Format a factor with enough digits to tell it from 1: ``13x``, ``4.6x``, ``1.003x``."""
    if factor >= 99.5:
        return f"{float(f'{factor:.3g}'):.0f}x"  # %g would write 29000 as 2.9e+04
    away = abs(math.log(factor))
    digits = 0 if factor >= 9.95 else 1 if factor >= 1.995 else 2 if away >= 0.0095 else 3
    return f"{factor:.{digits}f}x"


_TWICE = 1.995  # shown as 2.0x


def format_difference(ratio: float) -> str:
    """How far two times with this ratio are apart: ``8.0 %``, or ``24x`` from twice on."""
    factor = max(ratio, 1 / ratio)
    if factor >= _TWICE:
        return format_factor(factor)
    percent = 100 * (factor - 1)
    return f"{percent:.{int(percent < 9.95)}f} %"


def format_change(ratio: float, longer: str = "slower", shorter: str = "faster") -> str:
    """A change of a time by this ratio: ``8.0 % slower``, ``24x slower``, ``3.0 % faster``."""
    return f"{format_difference(ratio)} {longer if ratio > 1 else shorter}"


def format_ranges(numbers: Iterable[int]) -> str:
    """Format whole numbers in short: ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def plural(number: float, noun: str, several: str = "") -> str:
    """The noun or verb that goes with a number: ``case`` for 1, otherwise ``cases`` or several."""
    return noun if number == 1 else several or f"{noun}s"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 case``, ``2 cases``."""
    return f"{number} {plural(number, noun)}"


def shorten_list(texts: Sequence[str], most: int, rest: str = "{} more") -> list[str]:
    """The first ``most`` texts, and if there are more, ``rest`` with the number left out."""
    left_out = len(texts) - most
    return [*texts[:most], _rest_text(rest, left_out)] if left_out > 0 else [*texts]


def _rest_text(rest: str, left_out: int) -> str:
    """``2 more cases``, ``1 more case``."""
    text = rest.format(left_out)
    return re.sub(r"(1 more (?:such )?\w+)s\b", r"\1", text) if left_out == 1 else text


def shorten_middle(texts: Sequence[str], most: int, first: int = 2) -> list[str]:
    """The texts; if there are more than ``most``, the first ones, ``...`` and the last one."""
    return [*texts] if len(texts) <= most else [*texts[:first], "...", texts[-1]]


def shorten(
    texts: Sequence[str], most: int, rest: str = " and {} more", between: str = ", "
) -> str:
    """Join the first ``most`` texts: ``a, b and 3 more``. rest: what stands for the others."""
    left_out = len(texts) - most
    return between.join(texts[:most]) + (_rest_text(rest, left_out) if left_out > 0 else "")
