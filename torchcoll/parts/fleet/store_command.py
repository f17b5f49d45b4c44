"""``torchcoll collect``: results into a store, and old ones out of it."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UnreadableError, UsageError, printable, tell
from torchcoll.core.opening import not_written
from torchcoll.core.toml_text import toml_table
from torchcoll.core.units import counted, parse_duration
from torchcoll.parts.fleet.address import DEFAULT_STORE, parse_address
from torchcoll.parts.fleet.mounts import network_file_system

_NAMED = 5
_STORE = "an SQLite file, or postgresql://USER@HOST/DATABASE"


def collect_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "paths",
        nargs="*",
        metavar="PATH",
        help="result files, folders, quoted globs, output of other tools, label=PATH",
    )
    add(
        "--into",
        default=DEFAULT_STORE,
        metavar="STORE",
        help=f"{_STORE} (default: {DEFAULT_STORE} in the current folder)",
    )
    add(
        "--reread",
        action="store_true",
        help="read unchanged files again too, and replace their runs",
    )
    add(
        "--prune",
        metavar="TIME",
        help="then remove runs that are older, such as 400d; the age of a run counts from its "
        "start, or from when its file was last written, whichever is later",
    )
    add(
        "--spare",
        metavar="FILE",
        help="with --prune, keep these runs whatever their age: those of a file of torchcoll "
        "baseline (.toml), or the run ids of a text file, one per line; # begins a comment",
    )
    add("--dry-run", action="store_true", help="with --prune: say what would be removed")


def run_collect(options: argparse.Namespace) -> ExitCode:
    if options.prune is None:
        for name in ("spare", "dry_run"):
            if value := getattr(options, name):
                value = value if name == "spare" else "it"
                raise UsageError(name.replace("_", "-"), value, "--prune TIME with it")
        if not options.paths:
            raise UsageError("collect", "no path", "results to collect, or --prune TIME")
    elif options.paths and options.dry_run:
        raise UsageError("dry-run", "paths with it", "--prune alone: collecting changes the store")
    keep_s = None if options.prune is None else parse_duration(options.prune, "prune")
    spare = _read_ids(options.spare) if options.spare else []
    code = _collect(options) if options.paths else ExitCode.OK
    if keep_s is not None:
        _prune(options, keep_s, spare)
    return code


def _collect(options: argparse.Namespace) -> ExitCode:
    from torchcoll.parts.fleet.collect import collect

    address = parse_address(options.into, new=True)
    if address.path is not None and (network := network_file_system(address.path)):
        tell(
            f"torchcoll: warning: {address.name} is on a network file system ({network}), on which "
            "SQLite's locks may fail and damage the store. Keep it on a local disk, or use "
            "PostgreSQL."
        )
    collected = collect(
        options.paths,
        address,
        reread=options.reread,
        on_error=lambda message: tell(f"torchcoll: error: {message}"),
    )
    counts = collected.counts
    verb = "was" if counts.unchanged == 1 else "were"
    answer = (
        f"collected {counted(counts.runs, 'run')} ({counted(counts.cases, 'case')}) from "
        f"{counted(collected.files, 'file')} into {address.name}; {counts.unchanged} {verb} there "
        "already"
    )
    if counts.replaced:
        answer += f", {counts.replaced} replaced by what the files hold now"
    if collected.unreadable:
        answer += f"; {counted(len(collected.unreadable), 'path')} could not be read"
    print(printable(answer))
    if collected.no_results:
        names = ", ".join(collected.no_results[:_NAMED])
        more = len(collected.no_results) - _NAMED
        rest = f" and {more} more" if more > 0 else ""
        number = counted(len(collected.no_results), "file")
        tell(f"torchcoll: note: no results in {number}, skipped: {names}{rest}")
    return ExitCode.UNREADABLE if collected.unreadable else ExitCode.OK


def _prune(options: argparse.Namespace, keep_s: float, spare: Sequence[str]) -> None:
    from torchcoll.parts.fleet.prune import prune

    address = parse_address(options.into)
    before_s = time.time() - keep_s
    pruned = prune(address, int(before_s * 1e6), spare, dry_run=options.dry_run)
    limit = datetime.fromtimestamp(max(before_s, 0), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = (
        f"{'would remove' if options.dry_run else 'removed'} {counted(pruned.runs, 'run')} "
        f"({counted(pruned.cases, 'case')}) from before {limit} from {address.name}; "
        f"{pruned.left} {'is' if pruned.left == 1 else 'are'} left"
    )
    if options.spare:
        answer += f", of which {pruned.spared} {'is' if pruned.spared == 1 else 'are'} spared"
    print(printable(answer))
    if pruned.unknown:
        names = ", ".join(pruned.unknown[:_NAMED])
        rest = f" and {len(pruned.unknown) - _NAMED} more" if len(pruned.unknown) > _NAMED else ""
        tell(f"torchcoll: warning: {options.spare}: not in {address.name}: {names}{rest}")


def _read_ids(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except UnicodeDecodeError:
        raise UnreadableError("spare", path, "a text file with a run id per line") from None
    if path.endswith(".toml"):
        try:
            machines = toml_table(Path(path).read_text(encoding="utf-8"))["machine"]
            return [str(run_id) for machine in machines for run_id in machine["runs"]["ids"]]
        except (ValueError, KeyError, TypeError, ImportError):
            raise UnreadableError("spare", path, "a file that torchcoll baseline wrote") from None
    return [line for line in lines if line]


def convert_store(options: argparse.Namespace) -> ExitCode | None:
    """``convert`` of a store; None of anything else. Writes beside the file of -o and renames: a
    store may be larger than memory.
    """
    from torchcoll.parts.fleet.address import is_store, parse_address
    from torchcoll.reading.command import check_output
    from torchcoll.report.destination import check_new

    store = next(filter(is_store, options.files), None)
    if store is None:
        return None
    check_output(options)
    address = parse_address(store)
    if len(options.files) > 1:
        raise UsageError("files", f"{len(options.files)} arguments", "a store alone")
    if not (options.output or "").endswith(".parquet"):
        expected = "a file that ends in .parquet: the samples are in the result files"
        raise UsageError("output", options.output or "none", expected, "Name one with -o.")
    from torchcoll.parts.fleet.parquet import write_store_parquet

    part = f"{options.output}.{os.getpid()}"
    try:
        with open(part, "xb") as file:
            cases = write_store_parquet(address, file)
        check_new(options.output, "output", options.force)
        os.replace(part, options.output)
    except OSError as error:
        raise not_written("output", options.output, error) from None
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    print(printable(f"{counted(cases, 'case')} of {address.name} written to {options.output}"))
    return ExitCode.OK


COMMANDS = {
    "collect": SubCommand(
        "keep results in a store, for fleet and history",
        collect_arguments,
        run_collect,
        "many runs",
        examples=(
            "torchcoll collect runs/",
            "torchcoll collect --into torchcoll.sqlite --prune 400d --spare baseline.toml",
            "torchcoll collect 'spool/*/*.jsonl' --into postgresql://torchcoll@db/torchcoll",
        ),
    ),
}
