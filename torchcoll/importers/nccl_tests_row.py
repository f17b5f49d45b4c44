"""One row of nccl-tests' text: fields to figures.

The columns come from the heading and are counted from the right (superbenchmark's way), because
the left ones have come and gone: root, redop (blank for hypercube), Group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchcoll.importers.base import dtype_named, ns_of_us, number, rounding, whole
from torchcoll.importers.nccl_tests import Block, Row

_CHOICE = re.compile(r"[A-Za-z][\w*/]*\s+[A-Za-z][\w*/]*\s+(?:\d+|N/A)\s*$")
_IN_PLACE_ONLY = " " * 24  # the out-of-place block is 32 blanks; columns are 2 to 11 apart


def parse_row(line: int, text: str, names: Sequence[str], placed: Sequence[str]) -> Row | None:
    """The row; None where fields are missing or are no numbers.

    ``names``: of the heading, [] without one. ``placed``: the placements named above the heading.
    """
    tokens = text.split()
    first = next((i for i, n in enumerate(names) if n in ("time", "cputime")), 0)
    body = list(names[first:]) if first else ["time", "algbw", "busbw", "#wrong"] * 2
    starts = [i for i, n in enumerate(body) if n in ("time", "cputime")]
    width = starts[1] - starts[0] if len(starts) > 1 else 4
    block_names = body[:width]
    tail = body[2 * width :] if len(starts) > 1 else []
    trailing = len(tail) + ("timestamp" in tail)
    if not tail and _CHOICE.search(text):  # rccl-tests -A, without names of its own
        del tokens[-3:]
    placements: list[list[str]] = []
    heads = len(tokens) - trailing - 2 * width
    if (len(starts) > 1 or not first) and 3 <= heads <= 5:
        cut = tokens[heads : heads + 2 * width]
        placements = [cut[:width], cut[width:]]
    if not placements:
        heads = len(tokens) - trailing - width
        single = len(starts) == 1 or _IN_PLACE_ONLY in text.strip()
        if not (3 <= heads <= 5 and single):
            return None
        figures = tokens[heads : heads + width]
        only_out = placed == ("out-of-place",)  # rccl-tests can leave one out
        placements = [figures, []] if only_out else [[], figures]
    head = tokens[:heads]
    size, count = whole(head[0]), whole(head[1])
    if size is None or count is None:
        return None
    op, root = _op_and_root(head[3:])
    old_ms = "res" in names
    blocks = []
    for place, figures in enumerate(placements):
        if figures:
            block = _block(figures, block_names, bool(place), 1e6 if old_ms else 1e3)
            if block is None:
                return None
            blocks.append(block)
    return Row(line, size, count, dtype_named(head[2]) or head[2], op, root, blocks)


def _op_and_root(rest: Sequence[str]) -> tuple[str | None, int | None]:
    op, root = None, None
    for token in rest:
        if token.removeprefix("-").isdecimal():
            root = whole(token)  # -1 is none
        elif token != "none":
            op = token
    return op, root


def _block(
    figures: Sequence[str], names: Sequence[str], in_place: bool, scale: float
) -> Block | None:
    values = dict(zip(names, figures, strict=False))
    raw = values.get("time") or values.get("cputime") or ""
    time = number(raw)
    algbw, busbw = number(values.get("algbw")), number(values.get("busbw"))
    wrong_text = values.get("#wrong") or values.get("wrong") or "N/A"
    if time is None or not time:
        return None
    odd = any(
        value is None and text not in ("inf", "nan", "-nan", "-inf")
        for value, text in ((algbw, values.get("algbw")), (busbw, values.get("busbw")))
    )
    if odd:
        return None
    wrong, error = None, None
    if "error" in values or "res" in values:
        error = number(values.get("error") or values.get("res"))
    elif wrong_text != "N/A":
        count = number(wrong_text.rstrip("*"))
        if count is None:
            return None
        wrong = int(count)
    return Block(
        in_place,
        time * scale,
        algbw,
        busbw,
        time_step_ns=rounding(raw) * scale,
        bw_step=rounding(values.get("busbw") or "0"),
        wrong=wrong,
        error=error,
        min_ns=ns_of_us(values.get("i_min")),
        max_ns=ns_of_us(values.get("i_max")),
        p99_ns=ns_of_us(values.get("i_p99")),
    )
