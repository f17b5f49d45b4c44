"""A run as one Markdown block, for an issue or a chat (``show --quote``)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from torchcoll.core.answer import Answer
from torchcoll.core.case import DIMENSIONS
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import one_line
from torchcoll.core.result import Run
from torchcoll.core.summary import Row
from torchcoll.core.units import counted, format_bandwidth, format_ns, format_size, format_time
from torchcoll.report.grid import Head, escape_markdown, make_grid, markdown_text
from torchcoll.report.header import header_lines, kind_texts
from torchcoll.report.notes import run_problems

_MOST_KINDS = 6
_VERSIONS = ("torch", "python", "driver", "kernel")


def quote_text(run: Run, answer: Answer, rows: Sequence[Row]) -> str:
    """The answer, a table, and how the run was made, with versions and the id of the run.

    Of each kind of case the table has the smallest size, the size with the largest bandwidth and
    the largest size, with the interval of the calls.
    """
    right = [row for row in rows if row.is_right and row.median_ns]
    dimensions = [{name: getattr(row, name) for name in DIMENSIONS} for row in right]
    rows_by_kind: dict[str, list[Row]] = {}
    for kind, row in zip(kind_texts(dimensions, ("collective",)), right, strict=True):
        rows_by_kind.setdefault(kind, []).append(row)
    shown = []
    for kind, of_kind in list(rows_by_kind.items())[:_MOST_KINDS]:
        ordered = sorted(of_kind, key=lambda row: row.size_bytes_requested)
        fastest = max(ordered, key=lambda row: row.busbw_gbps or 0)
        shown += [(kind, row) for row in ordered if row in (ordered[0], fastest, ordered[-1])]
    columns = [
        (Head("case", left=True), lambda item: _case_text(*item)),
        (Head("time"), lambda item: format_time(item[1].median_ns)),
        (Head("p5 to p95 of the calls"), lambda item: _spread_text(item[1])),
        (Head("calls"), lambda item: str(item[1].calls or "-")),
        (Head("busbw GB/s"), lambda item: format_bandwidth(item[1].busbw_gbps)),
    ]
    below = header_lines(run, rows)[:4]
    versions = [f"{n} {one_line(run.environment[n])}" for n in _VERSIONS if run.environment.get(n)]
    below += [f"versions: {', '.join(versions)}"] if versions else []
    below += run_problems(run)
    if len(shown) < len(right):
        below.append(f"{counted(len(right) - len(shown), 'more case')} in the file")
    if not run.source:  # an imported run cannot be measured again
        argv = list(map(one_line, run.header.get("argv") or ()))
        options = f", measured with {shlex.join(argv)}" if argv else ""
        name = one_line(run.header.get("run_id") or (run.path.name if run.path else ""))
        again = f", again with torchcoll again {shlex.quote(name)}" if name else ""
        below.append(f"run {name or 'without an id'}{options}{again}")
    table = markdown_text(make_grid(columns, shown))
    facts = "".join(f"- {escape_markdown(line)}\n" for line in below)
    return f"**{escape_markdown(one_line(answer.headline))}**\n\n{table}\n{facts}"


def _case_text(kind: str, row: Row) -> str:
    has_data = COLLECTIVES[row.collective].has_data
    return f"{kind} {format_size(row.size_bytes_requested)}" if has_data else kind


def _spread_text(row: Row) -> str:
    if not row.low_ns or not row.high_ns:
        return "-"
    return f"{format_ns(row.low_ns, 3)} to {format_ns(row.high_ns, 3)}"
