"""A table of text cells (Grid), and how it is printed. Every view uses this layout.

Cells are never cut. If the terminal is too narrow, whole columns are left out, the least important
first, and a line below the table names them. Columns that may not be left out are continued in
further tables below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torchcoll.core.answer import Answer, of_several
from torchcoll.report.destination import Destination

T = TypeVar("T")
_KEYS = 0.5  # of the terminal's width: the most that columns take which name the rows
_ANSWERS = {"good": "bold green", "bad": "bold red", "doubt": "bold yellow"}


@dataclass(frozen=True)
class Head:
    """The heading of a column, and how the column fits into a narrow terminal.

    first, second: the two lines of the heading; the second is often a unit.
    left: align to the left.
    drop: 0 is never left out; the columns with the largest number are left out first, together.
    width: the minimum width, for tables whose rows are printed before all of them are known.
    repeat: each of several tables has this column, which names the row (default: the first).
    legend: a line above the table that explains the column.
    numbered: from so many tables on, long names become numbers that are listed below (0: never).
    """

    first: str
    second: str = ""
    left: bool = False
    drop: int = 0
    width: int = 0
    repeat: bool = False
    legend: str = ""
    numbered: int = 0

    @property
    def text(self) -> str:
        return f"{self.first} {self.second}".strip()


@dataclass
class Grid:
    """A table of text cells, and the lines around it.

    rows: the cells by row and column. above, below: the lines before and after the table.
    styles: rich's style of each row, '' for most; colours only repeat what the text says.
    answer: printed before the tables, and again after them if they fill more than a screen.
    keys: of each row a key by which charts of a page link to it, '' for none; [] for no row.
    """

    heads: Sequence[Head]
    rows: list[list[str]]
    above: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    answer: Answer | None = None
    keys: list[str] = field(default_factory=list)

    def widths(self) -> list[int]:
        widths = [max(len(head.first), len(head.second)) for head in self.heads]
        columns = zip(*self.rows, strict=True)
        longest = [max(map(len, column)) for column in columns] or widths
        return list(map(max, widths, longest))

    def only(self, columns: Sequence[int]) -> Grid:
        return replace(
            self,
            heads=[self.heads[i] for i in columns],
            rows=[[row[i] for i in columns] for row in self.rows],
        )


def make_grid(
    columns: Sequence[tuple[Head, Callable[[T], str]]],
    items: Sequence[T],
    above: Sequence[str] = (),
    below: Sequence[str] = (),
) -> Grid:
    """A Grid with a row for each item, without the columns that are ``-`` in every row.

    columns: each with its heading and a function from an item to its cell. Without items the Grid
    is empty.
    """
    if not items:
        return Grid([], [])
    cells = [[cell(item) for item in items] for _, cell in columns]
    kept = [i for i, column in enumerate(cells) if set(column) != {"-"}]
    rows = [[cells[i][number] for i in kept] for number in range(len(items))]
    return Grid([columns[i][0] for i in kept], rows, list(above), list(below))


def grid_of_columns(
    columns: Sequence[tuple[Head, Sequence[str]]],
    above: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> Grid:
    """A Grid from headings with the cells below each."""
    rows = [list(cells) for cells in zip(*(cells for _, cells in columns), strict=True)]
    return Grid([head for head, _ in columns], rows, list(above), styles=list(styles))


def fit(heads: Sequence[Head], widths: Sequence[int], width: int) -> tuple[set[int], int]:
    """The columns to leave out so that a table fits into ``width``, and the gap between columns,
    which shrinks from 2 blanks to 1 before that. widths: of each column, in characters.
    """
    dropped: set[int] = set()
    while True:
        kept = [i for i in range(len(heads)) if i not in dropped]
        for gap in (2, 1):
            if sum(widths[i] for i in kept) + gap * (len(kept) - 1) <= width:
                return dropped, gap
        worst = max((heads[i].drop for i in kept), default=0)
        if worst == 0:
            return dropped, 1
        dropped |= {i for i in kept if heads[i].drop == worst}


def split_columns(heads: Sequence[Head], widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each of the tables that fit into ``width``; a wide column has its own."""
    dropped, gap = fit(heads, widths, width)
    kept = [i for i in range(len(heads)) if i not in dropped]
    if sum(widths[i] + gap for i in kept) - gap <= width:
        return [kept]
    repeated = [i for i in kept if heads[i].repeat] or kept[:1]
    tables: list[list[int]] = [[]]
    for i in kept:
        if i in repeated:
            continue
        if tables[-1] and sum(widths[j] + gap for j in [*repeated, *tables[-1], i]) - gap > width:
            tables.append([])
        tables[-1].append(i)
    return [[*repeated, *table] for table in tables]


def legends(heads: Iterable[Head]) -> list[str]:
    return list(dict.fromkeys(head.legend for head in heads if head.legend))


def without_repeated_lines(grids: Sequence[Grid]) -> list[Grid]:
    """The grids, without legends and lines above that an earlier grid has already."""
    seen: set[str] = set()
    result = []
    for grid in grids:
        heads = [replace(h, legend="") if h.legend in seen else h for h in grid.heads]
        above = [line for line in grid.above if line not in seen]
        seen |= {*grid.above, *legends(grid.heads)}
        result.append(replace(grid, heads=heads, above=above))
    return result


def hidden_note(heads: Sequence[Head], dropped: set[int], width: int) -> str:
    names = ", ".join(heads[i].text for i in sorted(dropped))
    return f"not shown in {width} columns: {names} (use a wider terminal, or --format json)"


def head_lines(heads: Sequence[Head], widths: Sequence[int], gap: int) -> Iterator[str]:
    """Yields the first line of the headings, and the second if any column has one."""
    for line_name in ("first", "second"):
        cells = [getattr(head, line_name) for head in heads]
        if any(cells):
            yield row_line(cells, heads, widths, gap)


def row_line(cells: Sequence[str], heads: Sequence[Head], widths: Sequence[int], gap: int) -> str:
    return (row_template(heads, widths, gap) % tuple(cells)).rstrip()


def row_template(heads: Sequence[Head], widths: Sequence[int], gap: int) -> str:
    """The format of a line for ``%`` and a tuple of cells; built once, because rows are many."""
    pairs = zip(heads, widths, strict=True)
    return (" " * gap).join(f"%{'-' * head.left}{width}s" for head, width in pairs)


def plain_lines(grid: Grid, gap: int = 2) -> Iterator[str]:
    """The table in ASCII, each column as wide as its widest cell."""
    widths = grid.widths()
    yield from head_lines(grid.heads, widths, gap)
    template = row_template(grid.heads, widths, gap)
    for row in grid.rows:
        yield (template % tuple(row)).rstrip()


def _naming_rows(grid: Grid, width: int) -> Grid:
    """The grid, with ``repeat`` for as many first columns as it takes to name each row."""
    declared = [i for i, head in enumerate(grid.heads) if head.repeat] or [0]
    widths = grid.widths()
    for number in range(len(grid.heads)):
        keys = sorted({*declared, *range(number)})
        if sum(widths[i] + 1 for i in keys) > _KEYS * width:
            break
        if len({tuple(row[i] for i in keys) for row in grid.rows}) == len(grid.rows):
            heads = [replace(h, repeat=i in keys) for i, h in enumerate(grid.heads)]
            return replace(grid, heads=heads)
    return grid


_SCREEN = 15  # lines: after more than these the answer is repeated
_LONG = 0.3  # of the terminal's width: columns of longer names may be numbered


def _numbered(grid: Grid, width: int) -> Grid:
    """The grid with numbers instead of long names, if it would need too many tables otherwise."""
    widths = grid.widths()
    tables = len(split_columns(grid.heads, widths, width))
    columns = [
        i
        for i, head in enumerate(grid.heads)
        if head.numbered and tables >= head.numbered and widths[i] > _LONG * width
    ]
    if not columns:
        return grid
    rows, below = [list(row) for row in grid.rows], []
    for i in columns:
        numbers = {name: f"#{n}" for n, name in enumerate(dict.fromkeys(r[i] for r in rows), 1)}
        for row in rows:
            row[i] = numbers[row[i]]
        below += [f"{number}: {name}" for name, number in numbers.items()]
    return replace(grid, rows=rows, below=[*below, *grid.below])


def print_grid(grid: Grid, out: Destination) -> None:
    """Prints the lines above, the table and the lines below, in the form that ``out`` can show."""
    grid = _naming_rows(_numbered(grid, out.width), out.width) if grid.rows else grid
    widths = grid.widths()
    dropped, gap = fit(grid.heads, widths, out.width) if grid.rows else (set(), 2)
    below = list(grid.below)
    if dropped:
        below.insert(0, hidden_note(grid.heads, dropped, out.width))
    kept = [head for i, head in enumerate(grid.heads) if i not in dropped]
    above = [*grid.above, *(legends(kept) if grid.rows else [])]
    out.lines(above)
    tables = split_columns(grid.heads, widths, out.width) if grid.rows else []
    for number, columns in enumerate(tables):
        if number or above:
            out.write("\n")
        lines = list(plain_lines(grid.only(columns), gap))
        heads = ["bold"] * (len(lines) - len(grid.rows))
        out.lines_unwrapped(lines, [*heads, *grid.styles])
    if (below or grid.answer) and grid.rows:
        out.write("\n")
    out.lines(below)
    if grid.answer:
        print_answer(grid.answer, out)


def print_answer(answer: Answer, out: Destination) -> None:
    """Prints the lines of the answer, the first in colour if the terminal shows colours."""
    first, *further = answer.lines
    length = None if answer.level else len(answer.headline)  # what was not judged is plain
    out.styled(first, _ANSWERS.get(answer.level, "bold"), length)
    out.lines(further)


def _without_same_columns(grids: Sequence[Grid], width: int) -> list[Grid]:
    """The grids without each column that one of them must leave out; the first says so."""
    texts: set[str] = set()
    for grid in grids:
        if grid.rows:
            drawn = _numbered(grid, width)
            dropped, _ = fit(drawn.heads, drawn.widths(), width)
            texts |= {drawn.heads[i].text for i in dropped}
    noted: set[str] = set()
    result = []
    for grid in grids:
        dropped = {i for i, head in enumerate(grid.heads) if head.drop and head.text in texts}
        kept = [i for i in range(len(grid.heads)) if i not in dropped]
        note = hidden_note(grid.heads, dropped, width)
        below = [note, *grid.below] if dropped and note not in noted else grid.below
        noted.add(note)
        result.append(replace(grid.only(kept), below=below) if dropped else grid)
    return result


def print_grids(
    titled: Sequence[tuple[str, list[Grid]]],
    format: str,
    out: Destination,
    over_all: Answer | None = None,
) -> None:
    """Prints grids below their titles ('' for none), as text or markdown. Their answers, or
    ``over_all``, are printed first, and again after the tables if these fill a screen. Answers of
    several titles become one.
    """
    grids_of_all = [grid for _, grids in titled for grid in grids]
    named = [(title, grid.answer) for title, grids in titled for grid in grids if grid.answer]
    if not over_all and len(named) > 1 and all(title for title, _ in named):
        over_all = of_several(named)
        if len({answer.headline for _, answer in named}) == 1:
            titled = [(title, [replace(g, answer=None) for g in grids]) for title, grids in titled]
            titled = [(title, grids) for title, grids in titled if any(map(_has_lines, grids))]
    answers = [over_all] if over_all else [grid.answer for grid in grids_of_all if grid.answer]
    lines = sum(len(g.above) + len(g.rows) + len(g.below) for g in grids_of_all)
    for answer in answers:
        if format == "markdown":
            out.write(markdown_text(Grid([], [], answer=answer)))
        else:
            print_answer(answer, out)
    repeated = format == "table" and lines > _SCREEN
    titled = [
        (
            title,
            [
                replace(grid, answer=_again(grid.answer, bool(over_all) or repeated))
                for grid in grids
            ],
        )
        for title, grids in titled
    ]
    between = "\n" if answers else ""
    if format == "table":
        fitting = iter(_without_same_columns([g for _, grids in titled for g in grids], out.width))
        titled = [(title, [next(fitting) for _ in grids]) for title, grids in titled]
    for title, grids in titled:
        if title:
            out.write(between + (f"## {title}\n\n" if format == "markdown" else f"{title}\n"))
            between = ""
        for grid in grids:
            if not (_has_lines(grid) or grid.answer):
                continue
            out.write(between)
            between = "\n"
            if format == "markdown":
                out.write(markdown_text(grid))
            else:
                print_grid(grid, out)
    if over_all and repeated:
        out.write("\n")
        print_answer(_again(over_all, True) or over_all, out)


def _has_lines(grid: Grid) -> bool:
    return bool(grid.above or grid.rows or grid.below)


def _again(answer: Answer | None, repeated: bool) -> Answer | None:
    """The answer below the tables: its first line; of what was not judged the sentence alone."""
    if answer is None or not repeated:
        return None
    return answer.with_sentence(answer.lines[0] if answer.level else answer.headline, alone=True)


def escape_markdown(text: str) -> str:
    # Text from a file of unknown origin must not become a tag, code or a link.
    text = text.strip().replace("\\", "\\\\")
    for character in "|*<`":
        text = text.replace(character, f"\\{character}")
    return text.replace("](", "]\\(")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def markdown_text(grid: Grid) -> str:
    """The grid as markdown. The lines above and below are lists, to keep their line ends."""
    above = [*grid.above, *(legends(grid.heads) if grid.rows else [])]
    if grid.answer:
        above[:0] = grid.answer.lines
    text = "".join(f"- {escape_markdown(line)}\n" for line in above)
    if grid.rows:
        text += "\n" if text else ""
        text += _row([escape_markdown(head.text) for head in grid.heads])
        text += _row([":---" if head.left else "---:" for head in grid.heads])
        text += "".join(_row([escape_markdown(cell) for cell in row]) for row in grid.rows)
    if grid.below:
        text += "\n" if text else ""
        text += "".join(f"- {escape_markdown(line)}\n" for line in grid.below)
    return text
