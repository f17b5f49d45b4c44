"""A second parser of rows of nccl-tests, OSU and IMB, which shares no code with torchcoll's.

It reads whole rows only, without prefixes and other programs' text, and takes nothing from headings
but what the rows are of.
"""

from __future__ import annotations

import re
from collections import Counter

_NCCL = re.compile(
    r" *(\d+) +(\d+) +[a-z]\w* +(?:[a-z]+ +)?(?:-?\d+ +)?([\d.]+) +[\d.]+ +[\d.]+ +(?:\S+)"
    r"(?: +([\d.]+) +[\d.]+ +[\d.]+ +\S+)? *"
)
_PAIR = re.compile(r" *(\d+) +([\d.]+) *")
_IMB = re.compile(r" *(\d+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) *")


def rows(text: str) -> Counter[tuple[int, float]]:
    """(size as printed, time in us as printed) of each figure, how often."""
    found: Counter[tuple[int, float]] = Counter()
    tool = ""
    for line in text.splitlines():
        if "type" in line and "algbw" in line:
            tool = "nccl"
        elif line.startswith("# OSU MPI"):
            tool = "osu"
        elif "#bytes" in line and "t_avg[usec]" in line:
            tool = "imb"
        elif tool == "nccl" and (match := _NCCL.fullmatch(line)):
            for time in filter(None, match.groups()[2:]):
                found[int(match[1]), float(time)] += 1
        elif tool == "osu" and (match := _PAIR.fullmatch(line)):
            found[int(match[1]), float(match[2])] += 1
        elif tool == "imb" and (match := _IMB.fullmatch(line)):
            found[int(match[1]), float(match[5])] += 1
    return found
