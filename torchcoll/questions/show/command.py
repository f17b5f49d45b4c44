"""``torchcoll show``, ``plot`` and ``report``."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UnreadableError, UsageError, printable, tell
from torchcoll.core.units import format_bytes
from torchcoll.reading.inputs import IMPORT_OPTIONS, add_over_ranks, add_reading_options

if TYPE_CHECKING:
    from torchcoll.core.result import Run
    from torchcoll.report.page import Page


def show_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE",
        help="result or traffic files, folders, quoted globs, output of other tools, or "
        "label=PATH; - is stdin",
    )
    add_reading_options(parser)
    add("--format", default="table", help="table (default), markdown, csv or json")
    add(
        "--columns",
        metavar="NAMES",
        help="columns to show: names of fields, separated by commas, or all",
    )
    add(
        "--percentiles",
        metavar="P",
        help="percentiles to show as further columns, such as 50,90,99.9",
    )
    add_over_ranks(parser)
    add(
        "--clock",
        help="which clock's times to show: host, device or issue (default: device where it was "
        "recorded)",
    )
    add(
        "--view",
        metavar="VIEW",
        help="cases: a row for each case (default; on a terminal, several collectives over sizes "
        "are one table of busbw); ranks: which rank is slow; calls: every call in order; "
        "pivot:KEY: a row for each size and a column for each collective, backend, label=NAME, "
        "file, ...",
    )
    add("--metric", help="what --view pivot:KEY shows: busbw (default), algbw or time")
    add(
        "--all",
        dest="every",
        action="store_true",
        help="show every table of more than 20 files, every rank of more than 64, every case of "
        "--view ranks",
    )
    add(
        "--explain",
        nargs="*",
        metavar="WORD",
        help="show how the figures of one row were computed: a collective, a size, or both "
        "(all_reduce 8M)",
    )
    add(
        "--published",
        action="store_true",
        help="show published figures of such machines with their sources; without a FILE: all of "
        "them",
    )
    add(
        "--quote",
        action="store_true",
        help="print a Markdown block for an issue: figures, intervals, machine, versions, run",
    )
    add(
        "--verbose",
        action="store_true",
        help="show the phases of the start and the cost of measuring too",
    )


def run_show(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.file import uncollected

    with uncollected():
        return _shown(options)


def _selects(filter: str) -> Callable[[str, int, int], bool]:
    """Returns the rule by collective, size in bytes and ranks that selects published figures."""
    from torchcoll.stats.filters import conditions

    wanted = conditions(filter)
    for term in wanted:
        if term.name not in ("collective", "size", "ranks"):
            expected = "conditions on collective, size or ranks, which published figures have"
            raise UsageError("filter", term.text, expected)

    def selects(collective: str, size_bytes: int, ranks: int) -> bool:
        values = {"collective": collective, "size": size_bytes, "ranks": ranks}
        return all(term.selects(values[term.name]) for term in wanted)

    return selects


def _shown(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.result import Run
    from torchcoll.questions.show.show import show
    from torchcoll.reading.inputs import (
        load_all,
        note_traffic,
        resolve_sources,
        split_results_and_traffic,
    )
    from torchcoll.report.notes import note_lines
    from torchcoll.stats.filters import keep_cases

    sources = resolve_sources(options.files, options.collective, options.ranks)
    loaded = [source for source in sources if isinstance(source, Run)]
    files, traffic = split_results_and_traffic(
        os.fspath(source) for source in sources if not isinstance(source, Run)
    )
    if traffic and not files and not loaded:
        return _show_traffic(options, traffic)
    if traffic:
        note_traffic(traffic)
    runs = load_all([*loaded, *files])
    if options.published and not runs:
        from torchcoll.questions.check.published_show import show_published

        show_published([], options.format, selects=_selects(options.filter))
        return ExitCode.OK
    if options.filter:
        runs = keep_cases(runs, options.filter)
    if options.explain is not None:
        if options.format not in (None, "table"):
            raise UsageError("format", options.format, "table with --explain")
        _explain(runs, options.explain)
        return ExitCode.OK
    if options.published:
        from torchcoll.questions.check.published_show import show_published

        show_published(runs, options.format)
        return ExitCode.OK
    if options.quote:
        from torchcoll.core.plausibility import summarise_run
        from torchcoll.questions.show.show import table_grid
        from torchcoll.report.quote import quote_text

        for run in runs:
            answer = table_grid(run).answer
            print(quote_text(run, answer, summarise_run(run)) if answer else "")
        return ExitCode.OK
    show(*runs, **_choices(options))
    for text in note_lines(options.format, runs):
        tell(f"torchcoll: {text}")
    return ExitCode.OK


def _explain(runs: Sequence[Run], requested: Sequence[str]) -> None:
    from torchcoll.questions.show.explain import asked, explained
    from torchcoll.questions.show.show import title_of
    from torchcoll.report.destination import Destination
    from torchcoll.report.grid import print_grids

    row = asked(requested)
    out = Destination()
    titles = [title_of(run) if len(runs) > 1 else "" for run in runs]
    titled = [(title, explained(run, *row)) for title, run in zip(titles, runs, strict=True)]
    print_grids(titled, "table", out)
    out.flush()


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    names = (
        "files",
        "run",
        "explain",
        "published",
        "quote",
        "filter",
    )
    left_out = (*names, *IMPORT_OPTIONS)
    return {k: v for k, v in vars(options).items() if k not in left_out}


def _show_traffic(options: argparse.Namespace, paths: Sequence[str]) -> ExitCode:
    from torchcoll.core.traffic import Traffic
    from torchcoll.questions.show.show import show

    if options.filter:
        raise UsageError("filter", options.filter, "result files with it, not traffic")
    if options.explain is not None:
        raise UnreadableError("file", paths[0], "results; this is what a training sent")
    captures = [Traffic.load(path) for path in paths]
    show(*captures, **_choices(options))
    for traffic in captures if options.format in ("csv", "json") else ():
        for problem in traffic.problems:
            tell(f"torchcoll: warning: {problem}")
    return ExitCode.OK


def plot_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sides",
        nargs="+",
        metavar="SIDE",
        help="a file, a folder, a quoted glob, or label=PATH; files with one label are runs of "
        "one curve",
    )
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="a .png, .svg or .pdf (default: torchcoll.png, or torchcoll-2.png, ...)",
    )
    add("--force", action="store_true", help="replace the picture")
    add_over_ranks(parser)
    add_reading_options(parser)
    add(
        "--fabric",
        metavar="NAME",
        help=("draw the limits of this fabric: nvswitch-h200, ib-ndr:8, ..."),
    )


def run_plot(options: argparse.Namespace) -> ExitCode:
    from torchcoll.questions.show.plot import plot
    from torchcoll.reading.inputs import (
        check_import_options,
        drop_non_results,
        expand,
        load_all,
        read_each,
        select_cases,
        split_label,
    )
    from torchcoll.report.destination import free_name
    from torchcoll.report.pictures import check_path

    path = options.output or ("torchcoll.png" if options.force else free_name("torchcoll.png"))
    check_path(path, options.force)
    named: dict[str, list[str]] = {}
    for argument in drop_non_results(options.sides):
        label, path_of_side = split_label(argument)
        named.setdefault(label or _name(argument, named), []).append(path_of_side)
    hints = {name: getattr(options, name) for name in IMPORT_OPTIONS}

    def read(paths: Sequence[str]) -> list[Run]:
        return load_all((file for path in paths for file in expand(path)), **hints)

    sides = read_each(named, read)
    sides = {label: select_cases(runs, label) for label, runs in sides.items()}
    check_import_options([run for runs in sides.values() for run in runs], **hints)
    choices = {name: getattr(options, name) for name in ("over_ranks", "filter", "fabric")}
    written = plot(sides, path, **choices)
    print("\n".join(map(printable, filter(None, (written.text, f"picture: {path}")))))
    return ExitCode.OK


def _name(path: str, taken: Container[str]) -> str:
    """The name of the file; of its folder too where that is taken."""
    whole = os.path.abspath(path)
    last = os.path.basename(whole).removesuffix(".gz")
    stem = last.rpartition(".")[0] or last
    longer = os.path.join(os.path.basename(os.path.dirname(whole)), stem)
    return next((name for name in (stem, longer) if name not in taken), path)


def report_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="result files, traffic, logs, topology files, output of other tools, folders of them "
        "(of torchcoll matrix and versus too), a store of torchcoll collect; label=PATH makes "
        "sides, which are compared with the first",
    )
    add(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="report.html, one page with charts that needs nothing else; or report.md, with its "
        "pictures in files of their own",
    )
    add("--force", action="store_true", help="replace the page and its pictures")
    add_reading_options(parser)
    add("--fabric", metavar="NAME", help="the fabric to judge by: nvswitch-h200, ib-ndr:8, ...")


def run_report(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from torchcoll.core.file import uncollected
    from torchcoll.questions.page.document import page_of
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.report.page import html_text, page_markdown

    path = Path(options.output)
    if path.suffix.lower() not in (".html", ".md"):
        raise UsageError("output", path, "a file that ends in .html or .md")
    if not path.parent.is_dir():
        raise UsageError("output", path, "a folder that exists")
    check_new(path, "output", options.force)
    argv = ["torchcoll", "report", *options.files, "-o", options.output]
    for name in ("filter", "fabric", *IMPORT_OPTIONS):
        if value := getattr(options, name):
            argv += [f"--{name}", str(value)]
    inline = path.suffix.lower() == ".html"
    with uncollected():
        page = page_of(
            options.files,
            options.filter,
            options.fabric,
            shlex.join(argv),
            inline,
            collective=options.collective,
            ranks=options.ranks,
        )
        if inline:
            html = html_text(page)
            write_file(path, html, "output", options.force)
            _print_written(page, f"{path} ({format_bytes(len(html))})")
            return ExitCode.OK
        pictures = [picture for section in page.sections for picture in section.pictures]
        names = [f"{path.stem}-{number}.svg" for number in range(1, len(pictures) + 1)]
        for name in names:
            check_new(path.with_name(name), "output", options.force)
        write_file(path, page_markdown(page, names), "output", options.force)
        for name, picture in zip(names, pictures, strict=True):
            write_file(path.with_name(name), picture.svg, "output", options.force)
    pictures_text = f", pictures: {', '.join(names)}" if names else ""
    _print_written(page, f"{path}{pictures_text}")
    return ExitCode.OK


def _print_written(page: Page, files: str) -> None:
    """Print the first answer of a page, and where the page is."""
    from torchcoll.report.destination import Destination
    from torchcoll.report.grid import print_answer

    if page.answers:
        out = Destination(None)
        print_answer(page.answers[0], out)
        out.flush()
    print(printable(f"report: {files}"))


COMMANDS = {
    "show": SubCommand(
        show_arguments,
        run_show,
        examples=(
            "torchcoll show run.jsonl",
            "torchcoll show nccl-tests.log",
            "torchcoll show run.jsonl --view ranks",
            "torchcoll show run.jsonl --explain all_gather 1M",
            "torchcoll show run.jsonl --columns size_bytes,median_ns,busbw_gbps --format csv",
        ),
        option_groups={
            "what is read": "--collective --ranks --filter",
            "what is shown": (
                "--view --columns --percentiles --over-ranks --clock --metric --all "
                "--verbose --explain"
            ),
            "what is shown next to it": "--published",
            "output": "--format --quote",
        },
    ),
    "plot": SubCommand(
        plot_arguments,
        run_plot,
        examples=("torchcoll plot run.jsonl -o curve.png",),
    ),
    "report": SubCommand(
        report_arguments,
        run_report,
        examples=(
            "torchcoll report runs/ -o report.html",
            "torchcoll report before=a/ after=b/ -o report.md",
        ),
    ),
}
