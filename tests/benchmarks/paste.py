"""What people paste, as the importers read it: rows present, read, refused, and wrong values.

    python tests/benchmarks/paste.py FOLDER...

FOLDER: outputs of other tools; the name of a file up to `__` is the repository that it is from.
A second, small reader goes over each text file of nccl-tests by splitting lines and counting from
the right: every row that it knows must be read with the same size and times or be refused by its
number, and nothing else may be read. Then come fifty damaged forms of one table, made here.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from common import title  # noqa: E402
from foreign_files import FOOT, HEAD, NAMES  # noqa: E402

from torchcoll import cli  # noqa: E402
from torchcoll.core.errors import TorchcollError  # noqa: E402
from torchcoll.core.result import CaseResult  # noqa: E402
from torchcoll.importers.base import Imported, ImportOptions  # noqa: E402
from torchcoll.importers.registry import import_file  # noqa: E402

TYPES = {
    *("float", "half", "double", "int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("bfloat16", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "char", "int"),
}
Figures = tuple[float, ...]  # size, then time and busbw of each placement


@dataclass
class Found:
    """Line -> figures, as the small reader has them; line 0: a whole file that it cannot judge."""

    rows: dict[int, Figures]
    others: int = 0  # lines with a type and too few figures: rows that are cut


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", text) else text)
    except ValueError:
        return None


def by_hand(text: str) -> Found:
    """The rows of nccl-tests in a text without -I, -S or -A: columns by their place after the type.

    size count TYPE [redop] [root] time algbw busbw wrong [time algbw busbw wrong]
    """
    found = Found({})
    for line, raw in enumerate(text.splitlines(), 1):
        raw = re.sub(r"\x1b\[[\d;]*m|\[[\w.@-]*\d+,\d+\]<\w+>:", " ", raw)
        words = raw.split()
        at = next((i for i, word in enumerate(words) if word in TYPES and i >= 2), 0)
        if not at:
            continue
        # What stands before the size may be glued to it by a mark: ``0:8``.
        size = _number(re.split(r"[:>|\]]", words[at - 2])[-1])
        count = _number(words[at - 1])
        if size is None or count is None:
            continue
        rest = words[at + 1 :]
        while rest and (rest[0].isalpha() or re.fullmatch(r"-?\d", rest[0])):
            rest = rest[1:]
        figures = [_number(word) for word in rest]
        if len(rest) in (4, 8) and None not in (figures[:3] + figures[4:7]):
            pick = (0, 2, 4, 6) if len(rest) == 8 else (0, 2)
            found.rows[line] = (size, *(figures[i] or 0.0 for i in pick))
        elif rest:
            found.others += 1
    return found


def as_read(found: Imported) -> Counter[Figures]:
    """Size, time in us and busbw of each case."""
    cases = [result for run in found.runs for result in run.results]
    return Counter(_figures(case) for case in cases)


def _figures(case: CaseResult) -> Figures:
    assert case.reported
    time, busbw = case.reported.time_ns or 0, case.reported.busbw_gbps
    return case.size_bytes, round(time / 1e3, 3), -1.0 if busbw is None else busbw


def wrong_values(found: Imported, hand: Found) -> int:
    """Cases that no row of the small reader has, and rows neither read nor refused."""
    refused = {one.line for one in found.refused}
    rows = {line: figures for line, figures in hand.rows.items() if line not in refused}
    expected, read = Counter(_cases(Found(rows))), as_read(found)
    return sum((read - expected).values()) + sum((expected - read).values())


def _cases(found: Found) -> list[Figures]:
    """Size, time and busbw of each placement."""
    return [
        (size, round(time, 3), busbw)
        for size, *figures in found.rows.values()
        for time, busbw in zip(figures[::2], figures[1::2], strict=True)
    ]


def row(name: str, path: str, known: ImportOptions, made: Found | None = None) -> tuple[int, int]:
    """One line of the table; (rows read, wrong values). made: the rows of a form made here, whose
    cases must be among these: the small reader puts no pieces together.
    """
    try:
        found = import_file(path, known)
    except TorchcollError as error:
        text = str(error).replace(path, os.path.basename(path))
        print(f"{name:70}  {'-':>7}  {0:>5}  {'-':>7}  {'-':>5}  {text[:150]}")
        return 0, 0
    by = by_hand(Path(path).read_text(errors="replace"))
    nccl = found.importer == "nccl-tests"
    # The oldest has ms in place of us, -I and -S other columns: the small reader knows neither.
    head = Path(path).read_text(errors="replace")
    nccl = nccl and not re.search(r"busbw\s+res|i_min|timestamp", head)
    if made:
        wrong = sum((Counter(set(as_read(found))) - Counter(set(_cases(made)))).values())
    else:
        wrong = wrong_values(found, by) if nccl else 0
    present = found.rows + len(found.refused)
    whys = "; ".join(f"{lines}: {why}"[:110] for lines, why in found.refusals()[:2])
    taken = [text for text in found.warnings if "taken" in text or "recovered" in text]
    shown = wrong if nccl else "-"
    remark = whys or "; ".join(taken)[:110]
    print(
        f"{name:70}  {present:>7}  {found.rows:>5}  {len(found.refused):>7}  {shown:>5}  {remark}"
    )
    return found.rows, wrong


def elsewhere(path: Path) -> str:
    """Of what is no table of a benchmark: the command that reads it and its answer; else ''."""
    if path.name == "README.md":
        return "a text about these files"
    log = path.parent.name == "nccl-logs" or path.name.startswith("ccl_log")
    command = "log" if log else {".xml": "limits", ".jsonl": "show"}.get(path.suffix)
    if command is None:
        return ""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = cli.main([command, str(path)])
    last = out.getvalue().strip().splitlines()[-1].replace(str(path), path.name)
    return f"torchcoll {command}, exit {code:d}: {last[:130]}"


# -- fifty damaged forms ---------------------------------------------------------------------


def table() -> list[str]:
    """Eight rows of all_reduce on 8 ranks, with figures that follow from each other."""
    rows = []
    for power in range(13, 29, 2):
        size, us = 1 << power, 20 + (1 << power) / 150e3
        figures = [
            f"  {t:7.2f}  {size / t / 1e3:6.2f}  {size / t / 1e3 * 1.75:6.2f}       0"
            for t in (us, us * 1.01)
        ]
        rows.append(f"{size:12}  {size // 4:12}     float     sum      -1{''.join(figures)}")
    head = HEAD.format(program="all_reduce_perf")
    ranks = "".join(
        f"#  Rank {r:2} Group  0 Pid   {4711 + r} on      node0 device {r:2} "
        f"[0000:{r + 16:02x}:00] NVIDIA H100 80GB HBM3\n"
        for r in range(8)
    )
    head = re.sub(r"(?:#  Rank.*\n)+", ranks, head)
    return [*head.splitlines(), *NAMES.splitlines(), *rows, *_foot(rows)]


def _foot(rows: list[str]) -> list[str]:
    busbw = [float(row.split()[i]) for row in rows for i in (7, 11)]
    text = FOOT.format(program="all_reduce_perf")
    return text.replace("21.6725", f"{sum(busbw) / len(busbw):g}").splitlines()


LOG = "node0:4711:4720 [0] NCCL INFO Launch mode Parallel"
PREFIXES = {
    "three blanks and mpirun's tag": "   [1,0]<stdout>:",
    "prterun's tag": "[prterun-node0-4711@1,0]<stdout>: ",
    "pdsh": "node0: ",
    "srun -l": " 0: ",
    "kubectl --prefix": "[pod/nccl-launcher-x7k2p/nccl] ",
    "kubectl, stamp with offset": "2026-07-20T19:33:49.123456789+02:00 ",
    "docker-compose": "nccl-test-1  | ",
    "a quote": "> ",
    "a bullet": "- ",
    "Jenkins": "[2026-07-20T19:33:49.123Z] ",
    "logger": "Jul 20 19:33:49 node0 nccl[4711]: ",
    "Python's logging": "2026-07-20 19:33:49,123 INFO nccl: ",
    "a mail's quote of a quote": ">> > ",
    "stern": "nccl-launcher-x7k2p nccl ",
    "colour": "\x1b[32m",
    "torchrun": "[default0]:",
    "ansible": "node0 | SUCCESS | rc=0 >> ",
    "a tab": "\t",
    "a number of the line": "  17\t",
    "grep -n": "17:",
}


def variants() -> Iterator[tuple[str, str, ImportOptions]]:
    """Name, text, and what is told of it."""
    lines, none = table(), ImportOptions()
    rng = random.Random(0)
    first = next(i for i, line in enumerate(lines) if re.match(r"\s+\d", line))
    rows = lines[first : first + 8]
    for name, prefix in PREFIXES.items():
        counted = (
            prefix.replace("17", str(n)) if "17" in prefix and "2026" not in prefix else prefix
            for n in range(1, 99)
        )
        pairs = zip(counted, lines, strict=False)
        yield f"prefix: {name}", "\n".join(p + line for p, line in pairs), none
    yield "rows alone", "\n".join(rows), none
    yield "one row", rows[-1], none
    words = rows[-1].split()
    two = [*words[:7], words[6], *words[8:11], words[10], *words[12:]]
    yield "one row of two ranks, unnamed", " ".join(two), none
    yield "the heading and rows", "\n".join(lines[first - 3 : first + 8]), none
    yield "no heading above the rows", "\n".join(lines[: first - 3] + rows), none
    yield "blanks at the end of each line", "\n".join(line + "   " for line in lines), none
    yield "one blank between columns", "\n".join(re.sub(r" +", " ", line) for line in lines), none
    yield "tabs between columns", "\n".join(re.sub(r" {2,}", "\t", line) for line in lines), none
    yield "Windows' ends of lines", "\r\n".join(lines), none
    yield "an empty line between", "\n\n".join(lines), none
    for cut in (30, 47, 60, 75, 88, 101, 118):
        half = [*lines[: first + 4], lines[first + 4][:cut]]
        yield f"ends in column {cut} of a row", "\n".join(half), none
    for at in (20, 52, 66, 90):
        cut = [*lines[: first + 2], rows[2][:at] + LOG, rows[2][at:], *lines[first + 3 :]]
        yield f"a message in column {at} of a row", "\n".join(cut), none
    glued = [*lines[: first + 2], LOG + rows[2].strip(), *lines[first + 3 :]]
    yield "a row runs into a message", "\n".join(glued), none
    spaced = [*lines[: first + 2], LOG + rows[2], *lines[first + 3 :]]
    yield "a message, then a row in its line", "\n".join(spaced), none
    tagged = [line[:30] + "[1,0]<stdout>:" + line[30:] for line in rows]
    yield "a tag inside each row", "\n".join([*lines[:first], *tagged, *lines[first + 8 :]]), none
    joined = [*lines[: first + 2], rows[2] + rows[3], *lines[first + 4 :]]
    yield "two rows in one line", "\n".join(joined), none
    grouped = [re.sub(r"^( +)(\d+)( +)(\d+)", _grouped, line) for line in rows]
    yield "thousands separators", "\n".join([*lines[:first], *grouped, *lines[first + 8 :]]), none
    na = [*lines[: first + 2], rows[2].replace(rows[2].split()[5], "N/A"), *lines[first + 3 :]]
    yield "a time that is N/A", "\n".join(na), none
    wrong = [line.replace("Rank  7", "Rank 15") for line in lines]
    yield "a rank list that every busbw contradicts", "\n".join(wrong), none
    unnamed = [line for line in lines if "all_reduce" not in line]
    yield "no name of the collective", "\n".join(unnamed), none
    yield "the name below all", "\n".join([*unnamed, "all_reduce_perf -b 8"]), none
    shuffled = rows[:]
    rng.shuffle(shuffled)
    yield "rows in another order", "\n".join([*lines[:first], *shuffled, *lines[first + 8 :]]), none
    yield "twice", "\n".join(lines + lines), none
    yield "a second list and table below", "\n".join(lines + lines[5:]), none


def _grouped(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]):,}{match[3]}{int(match[4]):,}"


HEADING = (
    f"{'file':70}  {'present':>7}  {'read':>5}  {'refused':>7}  {'wrong':>5}  "
    "why, or what was worked out"
)


def main() -> None:
    title("What people paste")
    files = read = wrong = 0
    for folder in sys.argv[1:]:
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        print(f"\n{len(paths)} files of {Path(folder).name}\n{HEADING}")
        for path in paths:
            files += 1
            if told := elsewhere(path):
                print(f"{path.name:70}  {'-':>7}  {'-':>5}  {'-':>7}  {'-':>5}  {told}")
                continue
            own = row(path.name, str(path), ImportOptions())
            read, wrong = read + own[0], wrong + own[1]
    print(f"{files} files: {read} rows read, {wrong} wrong values")
    print(f"\nforms of one table of 8 rows\n{HEADING}")
    made = list(variants())
    read = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, text, known) in enumerate(made):
            path = os.path.join(folder, f"paste-{number}.txt")
            Path(path).write_text(text, newline="")
            own = row(name, path, known, by_hand("\n".join(table())))
            read, wrong = read + own[0], wrong + own[1]
    print(f"{len(made)} forms: {read} rows read, {wrong} wrong values")


if __name__ == "__main__":
    main()
