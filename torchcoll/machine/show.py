"""Output of ``torchcoll doctor``, from the same object that ``--json`` prints."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from torchcoll.core.answer import Answer
from torchcoll.core.errors import one_line, printable
from torchcoll.core.units import counted
from torchcoll.report.destination import Destination
from torchcoll.report.grid import Grid, Head, plain_lines, print_answer

_STYLES = {"no": "yellow", "error": "bold red", "warning": "yellow", "note": "cyan"}


def show_doctor(report: dict[str, Any], as_json: bool = False, file: TextIO | None = None) -> None:
    """Print the report as text, or as one JSON object."""
    out = Destination(file)
    if as_json:
        out.write(json.dumps({**report, "answer": answer_of(report).to_json()}, indent=1) + "\n")
    else:
        print_answer(answer_of(report), out)
        out.write("\n")
        for style, line in _lines(report, out.width):
            _print(out, style, line)
    out.flush()


def _print(out: Destination, style: str, line: str) -> None:
    console = out.console() if style else None
    if console is None:
        out.write(line + "\n")
        return
    from rich.text import Text

    # Only the first word of a line is coloured, or the whole line of a heading.
    text = Text(printable(line))
    start = len(line) - len(line.lstrip())
    text.stylize(style, start, len(line) if not start else line.index(" ", start))
    console.print(text, soft_wrap=True)


def answer_of(report: dict[str, Any]) -> Answer:
    """The headline: what can be used, and the worst trap."""
    names = [item["name"] for item in report["backends"] if item["usable"]]
    findings = report["findings"]
    counts = [(n, s) for s in _STYLES if (n := sum(item["severity"] == s for item in findings))]
    sentences = [f"usable here: {', '.join(names)}" if names else "no backend can be used here"]
    harmful = [(n, severity) for n, severity in counts if severity != "note"]
    sentences.append(", ".join(counted(*each) for each in harmful) or "no harmful setting found")
    items = [item for _, s in harmful[:1] for item in findings if item["severity"] == s]
    worst, step = (items[0]["what"], one_line(items[0]["action"])) if items else ("", "")
    text = "; ".join(sentences) + (f": {worst}" if worst else "")
    severities = {severity for _, severity in counts}
    bad = not names or "error" in severities
    level = "bad" if bad else "doubt" if "warning" in severities else "good"
    by_severity = {severity: number for number, severity in counts}
    named = (worst,) if worst else ()
    return Answer(one_line(text), level, by_severity, named, next_step=step)


Line = tuple[str, str]  # style, text


def _lines(report: dict[str, Any], width: int | None) -> Iterator[Line]:
    yield "bold", "Versions"
    versions = {"torchcoll": report["torchcoll"], **report["versions"]}
    version_texts = [f"{name} {text}" for name, text in versions.items() if text]
    yield from _wrapped(", ".join(map(one_line, version_texts)), "  ", "  ", width)
    lists = {"Devices": "devices", "Backends": "backends", "Network interfaces": "interfaces"}
    for title, key in lists.items():
        yield from _title(title)
        yield from _items(report[key], width)
    yield from _title("Ranks and devices")
    yield from _ranks(report, width)
    yield from _title("Communication libraries")
    yield from _libraries(report["libraries"], width)
    traps = report["findings"]
    notes = sum(trap["severity"] == "note" for trap in traps)
    title = f"Harmful settings: {len(traps) - notes or 'none'} found"
    yield from _title(f"{title}, and {counted(notes, 'note')}" if notes else title)
    for trap in traps:
        texts = [trap["what"], trap["why"], f"-> {trap['action']}"]
        yield from _marked(trap["severity"], texts, 11, width)


def _title(text: str) -> Iterator[Line]:
    yield from (("", ""), ("bold", text))


def _wrapped(text: str, first: str, subsequent: str, width: int | None) -> Iterator[Line]:
    if width is None:
        yield "", first + text
        return
    lines = textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=subsequent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines or [first]:
        yield "", line


def _marked(mark: str, texts: Sequence[str], indent: int, width: int | None) -> Iterator[Line]:
    """Lines like ``  no   cuda  reason``, further texts below. Only the mark has a style."""
    first = f"  {mark}".ljust(indent)
    for number, text in enumerate(filter(None, texts)):
        lead = first if number == 0 else " " * indent
        lines = list(_wrapped(one_line(text), lead, " " * indent, width))
        style = _STYLES.get(mark.split()[0], "") if number == 0 else ""
        yield style, lines[0][1]
        yield from lines[1:]


def _items(items: list[dict[str, Any]], width: int | None) -> Iterator[Line]:
    if not items:
        yield "", "  none was found"
    longest = max((len(item["name"]) for item in items), default=0)
    for item in items:
        mark = f"{'yes' if item['usable'] else 'no':<4} {item['name']}"
        action = f"-> {item['action']}" if item["action"] else ""
        texts = [item["detail"]] if item["usable"] else [item["reason"], action]
        yield from _marked(mark, texts, 2 + 5 + longest + 2, width)


def _ranks(report: dict[str, Any], width: int | None) -> Iterator[Line]:
    launch, rows = report["launch"], report["ranks"]
    if not rows:
        contradicting = "unknown: the launcher's variables contradict each other (below)"
        alone = launch["launcher"] == "none"
        yield "", f"  {'one rank: no launcher started this process' if alone else contradicting}"
        return
    job = f" in job {launch['job_id']}" if launch["job_id"] else ""
    summary = f"{launch['local_ranks']} of {launch['ranks']} ranks are on this host"
    yield from _wrapped(f"{summary}, started by {launch['launcher']}{job}", "  ", "  ", width)
    heads = [Head("rank"), Head("local"), Head("device", left=True), Head("PCI id", left=True)]
    heads += [Head("NUMA"), Head("nearest NIC", left=True), Head("name", left=True)]
    cells = []
    for row in rows:
        nics = row["nearest_nics"] or []
        near = ",".join(nic["name"] for nic in nics) + (f" ({nics[0]['shares']})" if nics else "")
        node = "" if row["numa_node"] is None else str(row["numa_node"])
        texts = [row["rank"], row["local_rank"], row["device"], row["pci_id"] or "", node, near]
        cells.append([one_line(text) for text in (*texts, row["device_name"] or "")])
    used = [i for i in range(len(heads)) if any(row[i] for row in cells)]
    grid = Grid([heads[i] for i in used], [[row[i] for i in used] for row in cells])
    for line in plain_lines(grid):
        yield "", f"  {line}"


def _libraries(libraries: list[dict[str, Any]], width: int | None) -> Iterator[Line]:
    if not libraries:
        yield "", "  none (a backend's library may be loaded by its first call)"
    for library in libraries:
        text = f"{library['name']} {library['version'] or 'of unknown version'} ({library['how']})"
        yield from _wrapped(one_line(text), "  ", "    ", width)
        # A path is not wrapped, so that it can be copied.
        yield "", f"    {one_line(library['path'])}"
