"""Writes the pages of docs/reference/ that the code knows best: python docs/generate.py

The command line from its parsers, the file from its schema, columns, collectives, backends and
fabrics from their tables, the public API from its docstrings. They are kept, so that they can be
read without building anything; tests/docs/test_reference.py says when to run this again.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas

import torchcoll
from torchcoll import cli
from torchcoll.bench import options
from torchcoll.core.backends import BACKENDS
from torchcoll.core.collectives import COLLECTIVES, Collective
from torchcoll.core.implementations import IMPLEMENTATIONS
from torchcoll.core.summary import Row
from torchcoll.core.units import format_size
from torchcoll.core.variables import JOB, RUNTIME, SETTINGS, prefixes_of
from torchcoll.help import GROUPS
from torchcoll.questions.check.rules import _packaged, packaged
from torchcoll.questions.pairs import pairs_run
from torchcoll.report.columns import COLUMNS

REFERENCE = Path(__file__).parent / "reference"
# In the package, so that an installation has it; the site gets a copy.
_SCHEMA = Path(torchcoll.__file__).parent / "core/torchcoll-2.schema.json"
SCHEMA = json.loads(_SCHEMA.read_text())
_NOTE = "<!-- Made by docs/generate.py: change what it is made of. -->"


def main() -> None:
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)


def pages() -> dict[str, str]:
    """Name of a file in docs/reference/ -> its text."""
    made = {
        "commands.md": commands(),
        "file.md": file_format(),
        "columns.md": columns(),
        "tables.md": tables(),
        "api.md": api(),
        "exit-codes.md": exit_codes(),
    }
    texts = {name: "\n".join([_NOTE, "", *lines]).rstrip() + "\n" for name, lines in made.items()}
    return texts | {_SCHEMA.name: _SCHEMA.read_text()}  # JSON has no place for the note


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Of Markdown; a | in a cell is one."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def plain(text: str) -> str:
    """Text that Markdown is to leave as it is."""
    return re.sub(r"([*<])", r"\\\1", " ".join(text.split()))


# -------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    yield from ("# The command line", "")
    yield "Measuring runs on every rank, under a launcher. The other commands run anywhere, without"
    yield "a launcher. Sizes are in bytes; `K`, `M` and `G` are powers of 1024 (`25M`, `1.5G`)."
    yield ""
    ranks = options._parser("torchcoll.suite", True)
    yield from ("## On the ranks", "")
    yield from ("    torchrun --nproc-per-node N -m torchcoll.allreduce [options]", "")
    modules = ", ".join(f"`{entry.module}`" for entry in COLLECTIVES.values())
    yield f"The modules of `torchcoll` are {modules},"
    yield "and `suite` for several collectives in one run. Only `suite` has `--collectives` and"
    yield from ("`--traffic`. Short options have the letters of nccl-tests.", "")
    for group in ranks._action_groups:
        if group._group_actions and group.title in ("what to measure", "how to measure", "output"):
            yield from (f"### {group.title.capitalize()}", "")
            yield from _options(ranks, group._group_actions)
    yield from ("### torchcoll.pairs", "")
    yield "`torchcoll.pairs` takes the options above that name sizes, dtype, calls, backend,"
    yield from ("device, time limit and output, and these:", "")
    pairs = pairs_run._parser()
    yield from _options(pairs, pairs._actions)
    known = cli.commands()
    groups = {
        group: [name for name, command in known.items() if command.group == group]
        for group in GROUPS
    }
    yield from ("## The console command", "", "    torchcoll COMMAND [options]", "")
    rows = [
        (group, ", ".join(f"[{name}](#torchcoll-{name})" for name in names))
        for group, names in groups.items()
        if names
    ]
    yield from table(("group", "commands"), rows)
    for names in groups.values():
        for name in names:
            parser = _subparsers(cli._parser(name, known))[name]
            yield from _command(parser, name, known[name].help, known[name].examples)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(groups[0].choices) if groups else {}


def _command(
    parser: argparse.ArgumentParser, name: str, text: str, examples: Sequence[str] = ()
) -> Iterator[str]:
    text = plain(text[:1].upper() + text[1:]).rstrip(".")
    yield from (f"### torchcoll {name}", "", f"{text}.", "")
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    yield from (f"    {_short(usage, parser)}", "")
    yield from _options(parser, parser._actions)
    if examples:
        yield from ("Examples:", "", *(f"    {line}" for line in examples), "")
    # The actions of model: fit, predict, validate.
    told = {
        choice.dest: choice.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }
    for action, own in _subparsers(parser).items():
        yield from _command(own, f"{name} {action}", told.get(action, "").replace("%%", "%"))


def _short(usage: str, parser: argparse.ArgumentParser) -> str:
    """Options are listed below, and argparse's own form of them differs between Pythons."""
    if parser.usage:
        return usage
    if _subparsers(parser):
        return f"{parser.prog} {'|'.join(_subparsers(parser))} ..."
    places = [a for a in parser._actions if not a.option_strings]
    words = [f"[{a.metavar}]" if a.nargs in ("?", "*") else f"{a.metavar}" for a in places]
    several = ["..." if a.nargs in ("+", "*") else "" for a in places]
    said = [f"{word} {dots}".strip() for word, dots in zip(words, several, strict=True)]
    return " ".join([parser.prog, "[options]", *said])


def _options(parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]) -> Iterator[str]:
    formatter = argparse.HelpFormatter(parser.prog)
    rows = []
    for action in actions:
        if "--help" in action.option_strings or action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            return
        value = ""
        if action.nargs != 0:
            value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        names = [f"`{name}`" for name in action.option_strings] or [f"`{value}`"]
        if value and action.option_strings:
            names[-1] = f"`{action.option_strings[-1]} {value}`"
        text = plain(formatter._expand_help(action)) if action.help else ""
        stated = "default" in text or text.endswith(")")
        if action.default not in (None, False, argparse.SUPPRESS, [], "") and not stated:
            text += f" (default {action.default})"
        rows.append((", ".join(names), text))
    yield from table(("option", "meaning"), rows)


# -------------------------------------------------------------------------------------------------

_EXIT_CODES = (
    ("0", "OK", "success; an `unsupported` or `skipped` case is no failure"),
    ("1", "FAILED", "a case failed, a gate tripped, or the answer is bad: see the table below"),
    (
        "2",
        "USAGE",
        "an option or argument that is not valid, inputs that do not fit each other, too few runs; "
        "`check --gate` for a run without a reference; `compare --fail-on` where a case looks "
        "twice as slow and is not decided",
    ),
    (
        "3",
        "UNREADABLE",
        "an input that is missing, foreign or broken, or that lacks what the command needs, such "
        "as cases with a time, pairs or first calls",
    ),
    (
        "4",
        "UNAVAILABLE",
        "a backend, device or library that this process cannot use; `doctor`: no usable backend",
    ),
    ("5", "HANG", "a rank hung, was lost, never came or raised an exception"),
    ("128 + n", "", "ended by signal n: 130 is Ctrl-C, 141 a closed pipe"),
)
_ABOUT_EXIT_CODES = """An error is one line on stderr without a traceback:
`torchcoll: error: WHAT: got VALUE, expected SET. NEXT ACTION`. Under a launcher rank 0 prints it.

torchrun turns every failure into 1, also under `torchcoll run`, where only a wrong argument is 2.
The `end` record of the [result file](file.md) has the code, and with `TORCHELASTIC_ERROR_FILE`
torchrun repeats the line last. A rank that is lost after the `end` record, while the ranks leave,
gives the others 5 and does not change the record. Open MPI may end the ranks before their line
reaches the terminal; the record has it. From Python the same errors are exceptions:
`torchcoll.TorchcollError` and its subclasses, with `exit_code`.

## Exit code 1 of each command

On the ranks (`torchcoll.allreduce` and its like, `torchcoll.suite`): a case failed or was wrong, or
no case was measured. `torchcoll.pairs`: the same, or a suspect link.

Every command exits with 1 if the disk or the reader of stdout refuses what it writes, and
if it cannot read one file of several, which it names and skips.
"""


def exit_codes() -> Iterator[str]:
    yield from ("# Exit codes", "")
    yield from table(("code", "name", "meaning"), _EXIT_CODES)
    yield from (*_ABOUT_EXIT_CODES.splitlines(), "")
    ordered = sorted(cli.commands().items(), key=lambda item: GROUPS.index(item[1].group))
    rows = [(f"`{name}`", command.exit_1 or "-") for name, command in ordered]
    yield from table(("command", "exit code 1"), rows)


# -------------------------------------------------------------------------------------------------

_FILE = """# The result file

A result file is JSON Lines: one object per line, whose first key is `record`. The JSON schema
(draft 2020-12) [torchcoll-2.schema.json](torchcoll-2.schema.json) describes all lines. This page is
made from it, and a test checks every result file of the repository against it.

- **Units**: times are whole nanoseconds (`_ns`), sizes are bytes (`_bytes`). Bandwidths are not
  stored. They are computed from time and size. There is no NaN and no Infinity: an unknown value is
  `null`, or the field is missing.
- **Crashes**: rank 0 writes the header before the process group exists, and each later line as soon
  as its content is available. After a crash the file loads with all complete cases, and the last
  `started` line names the case that was running. A file without an `end` line loads with a warning
  that it is truncated.
- **Resume**: `--resume FILE` writes the missing cases into `FILE.2`. Reading FILE reads both.
- **Versions**: readers ignore fields and records that they do not know. A file of another major
  version of the schema is refused, with the version to install.
- **Checksums**: each line ends with `"line":N,"crc":"XXXXXXXX"`. N is the number of the line. The
  CRC-32 of zlib covers the bytes before `,"crc"`, and starts with the CRC of the header (the
  header's own starts with 0). A line that was changed, damaged, lost or duplicated is not used, and
  reported below the table. A file whose header has no checksum is read without checking.
- **Variables**: the file names each environment variable that a communication library, a plug-in,
  a runtime below it or a launcher reads; the last section lists the prefixes. The value is kept
  if it has a documented form: numbers with units, words, addresses, devices, interfaces and
  paths, and lists or `key=value` lists of them. It is withheld (`***`) if it has another form, if
  it looks like a secret, or if the name is that of a secret or of a comment. There is no digest
  of a withheld value: whoever can compare digests can also test guesses of a password. `compare`
  says that such a value may differ.
- **Secrets**: tokens (`hf_`, `ghp_`, `AKIA`), PEM keys, `Authorization` headers, `?sig=`,
  `user:password@`, `password=x`, `--token x` and passwords of programs (`curl -u`, `sshpass -p`)
  are masked in labels, command lines, errors, events and log texts. A secret that looks like an
  ordinary word stays if nothing near it says what it is.

Two other formats use the same lines and checksums:

- traffic files, which record [what a training sends](../gradients.md): schema `torchcoll-traffic/2`
  with the records header, group, step, computing, apart, call, note, environment and end
  (`torchcoll/core/traffic.py`);
- the manifest that `torchcoll matrix` keeps in its folder: schema `torchcoll-matrix/1`.
"""
_ORDER = ("header", "ranks", "phase", "machine", "started", "case", "soak", "event", "end")
_INSIDE = ("spec", "case_key", "soak_case", "verification", "reported", "choice", "concurrent")


def file_format() -> Iterator[str]:
    yield from _FILE.splitlines()
    yield ""
    for name in (*_ORDER, *_INSIDE):
        entry = SCHEMA["$defs"][name]
        title = f"record `{name}`" if name in _ORDER else f"inside: `{name}`"
        yield from (f"## {title}", "", entry["description"], "")
        rows = []
        for field, about in entry["properties"].items():
            if field not in ("record", "line", "crc"):
                missing = "" if field in entry["required"] else " (may be missing)"
                rows.append((f"`{field}`{missing}", _kind(about), about.get("description", "")))
        yield from table(("field", "type", "meaning"), rows)
    yield from ("## variables", "")
    texts = {
        SETTINGS: "change how a collective runs; `torchcoll again` sets them again",
        RUNTIME: "what the process has of devices, threads and torch",
        JOB: "what a launcher says of one job; no difference between runs",
    }
    rows = [
        (", ".join(f"`{prefix}`" for prefix in sorted(prefixes_of(kind))), text)
        for kind, text in texts.items()
    ]
    yield from table(("names begin with (the longest prefix decides)", "meaning"), rows)


def _kind(about: dict[str, Any]) -> str:
    if "$ref" in about:
        return f"`{about['$ref'].rsplit('/', 1)[1]}`"
    if "anyOf" in about:
        return " or ".join(map(_kind, about["anyOf"]))
    if "enum" in about:
        return ", ".join(about["enum"])
    kinds = about["type"] if isinstance(about["type"], list) else [about["type"]]
    return " or ".join(kinds)


# -------------------------------------------------------------------------------------------------


def columns() -> Iterator[str]:
    yield from ("# Columns", "")
    yield "A row is a case. `--columns`, JSON, CSV and `torchcoll.table` use these names. Values"
    yield "are numbers in base units, and unknown values are null. A table on a terminal shows the"
    yield from ("columns that vary, and prints the others above the table.", "")
    hidden = [f.name for f in dataclasses.fields(Row) if hasattr(pandas.Series, f.name)]
    names = ", ".join(f"`{name}`" for name in hidden)
    yield f"pandas has attributes named {names}, so read these columns of a"
    yield from ('row as `row["mode"]`, not as `row.mode`.', "")
    said = dict(re.findall(r"(?m)^    (\w+): [^#\n]+  # (.*)$", inspect.getsource(Row)))
    rows = []
    for field in dataclasses.fields(Row):
        head = COLUMNS[field.name].head
        heading = f"{head.first} {head.second}".strip()
        kind = str(field.type).replace(" | None", " or null")
        rows.append((f"`{field.name}`", heading, kind, said[field.name]))
    yield from table(("name", "heading", "type", "meaning"), rows)
    yield "`--percentiles 50,90` adds `p50_ns` and `p90_ns`. The tables of `compare`, `cold`,"
    yield "`curve` and other commands have columns of their own, whose names `--format json`"
    yield "prints."


# -------------------------------------------------------------------------------------------------


def _algbw(entry: Collective) -> str:
    if not entry.has_data:
        return "-"
    if entry.moved(8) == 1:
        return "S / t"
    assert all(entry.moved(n) == (n - 1) / n for n in (2, 4, 8))
    return "S (n - 1) / n / t"


def _busbw(entry: Collective) -> str:
    if not entry.has_data:
        return "-"
    if entry.has_splits:
        return "B / t"
    return "algbw" if entry.factor[0] == "1" else f"algbw x {entry.factor[0]}"


def _parts(entry: Collective) -> str:
    return "n blocks" if entry.parts(8) == 8 else "1 block"


def tables() -> Iterator[str]:
    yield from ("# Collectives, backends, fabrics", "", "## Collectives", "")
    yield "The formulas are those of nccl-tests (`doc/PERFORMANCE.md` in its repository):"
    yield ""
    yield "- S: the size in the tables, in bytes, as nccl-tests counts it"
    yield "- t: the time of a call"
    yield "- n: the number of ranks"
    yield "- algbw = S / t, except for hypercube"
    yield "- busbw = algbw x bus factor, which can be compared with the bandwidth of the links for"
    yield "  any number of ranks"
    yield ""
    rows: list[tuple[str, ...]] = [
        (
            f"`{entry.name}`",
            _algbw(entry),
            _busbw(entry),
            "" if not entry.has_data or entry.has_splits else f"{entry.bus_factor(8):g}",
            "" if not entry.has_data or entry.has_splits else _parts(entry),
        )
        for entry in COLLECTIVES.values()
    ]
    yield from table(
        ("collective", "algbw", "busbw", "bus factor at n = 8", "S is divided into"), rows
    )
    uneven = ", ".join(f"`{entry.name}`" for entry in COLLECTIVES.values() if entry.has_splits)
    yield f"**Uneven blocks** ({uneven}):"
    yield ""
    yield "- `--splits` divides S among the ranks ([patterns](../measure.md#uneven-blocks))."
    yield "- S is the most that one rank sends or receives, its own block included. For"
    yield "  reduce_scatter_v and all_gather_v these are all blocks together."
    yield "- B is the most that one rank sends to other ranks, or receives from them. Its own block"
    yield "  does not count."
    yield "- Example: with weights 1,2,4 and S = 280 bytes, the blocks of reduce_scatter_v and"
    yield "  all_gather_v have 40, 80 and 160 bytes, and B is 240 bytes."
    yield ""
    yield from ("What each collective takes:", "")
    rows = []
    for entry in COLLECTIVES.values():
        both = {False: "out of place", True: "in place"}
        rows.append(
            (
                f"`{entry.name}`",
                f"`torchcoll.{entry.module}`",
                "yes" if entry.has_root else "-",
                "yes" if entry.has_op else "-",
                " or ".join(both[p] for p in entry.placements) if entry.has_data else "-",
                ", ".join(f"`{alias}`" for alias in entry.aliases) or "-",
            )
        )
    head = ("collective", "module", "root", "op", "placement (first: default)", "other names")
    yield from table(head, rows)
    yield from ("## Backends", "")
    rows = [
        (
            f"`{entry.name}`",
            ", ".join(entry.devices),
            f"`{entry.module}`" if entry.module else "torch",
            entry.connects,
            ("yes" if entry.promised else "passed on to torch, not tested")
            if entry.communicates
            else "communicates nothing",
        )
        for entry in BACKENDS.values()
    ]
    head = ("name", "devices", "comes from", "connects in", "supported")
    yield from table(head, rows)
    yield from ("## Implementations", "")
    yield "Kernels of `torch.ops.symm_mem` that replace the backend's"
    yield from ("([what they are](../measure.md#other-implementations)):", "")
    rows = [
        (
            f"`{name}`",
            collective,
            f"`{kernel.operator}`",
            "in place" if kernel.in_place else "out of place",
            "yes" if kernel.multicast else "-",
        )
        for name, kernels in IMPLEMENTATIONS.items()
        for collective, kernel in kernels.items()
    ]
    yield from table(("name", "collective", "operator", "placement", "needs multicast"), rows)
    yield from ("## Fabrics", "")
    yield "The limits that [the verdict](../healthy.md) compares a run with, each with its source."
    yield from ("`--rules FILE` adds your own.", "")
    rows = []
    for rule in map(_packaged, packaged()):
        parameter = rule.table.get("parameter", "")
        fabric = rule.fabric(1 if parameter else None)
        name = f"`{rule.name}:N`" if parameter else f"`{rule.name}`"
        for limit in fabric.limits:
            gbps = f"{limit.busbw_gbps:g}{' x ' + parameter if parameter else ''}"
            size = format_size(limit.size_bytes) if limit.size_bytes > 1 else "any"
            of = ", ".join(limit.collectives)
            source = plain(limit.source)
            rows.append((name, plain(fabric.what), limit.algorithm, of, gbps, size, source))
    fabric_head = (
        "fabric",
        "what",
        "algorithm",
        "collectives",
        "busbw, GB/s",
        "from size",
        "source",
    )
    yield from table(fabric_head, rows)


# -------------------------------------------------------------------------------------------------

_API = """# Python

```python
import torchcoll

run = torchcoll.run(torchcoll.Spec(sizes="1K,1M"))
if run is not None:  # the Run on rank 0, None on the others
    torchcoll.show(run)
    frame = torchcoll.table(run)  # pandas, one row a case
    torchcoll.save(run, "run.jsonl")  # a new file
    run = torchcoll.load("run.jsonl")  # .results .environment .complete .problems
    kernels = [f"results/h200-8gpu-kernels/{name}.jsonl" for name in ("generic", "nvidia")]
    comparison = torchcoll.compare(*kernels)  # .rows .tally .differences .notes
    torchcoll.show(comparison)
```

- `run` uses the existing process group and does not change it. Without one it uses the variables
  of the launcher, or else runs on one rank.
- `show` prints the result of every other function.
- `import torchcoll` loads neither torch nor pandas. They are loaded when they are first used.
- Only the names on this page are public. Other names may change.

`examples/python_api.py` is a complete program:

```bash
torchrun --nproc-per-node 2 examples/python_api.py
```
"""


def api() -> Iterator[str]:
    yield from _API.splitlines()
    yield ""
    for name in torchcoll.__all__:
        thing = getattr(torchcoll, name)
        yield from (f"## {name}", "")
        if not isinstance(thing, type):
            yield from (f"`{name}{_signature(thing)}`", "")
        text = re.sub(r"``([^`]*)``", r"`\1`", inspect.getdoc(thing) or "")
        yield from (re.sub(r"(?m)(?<=\w)\*|\*(?=\w)", r"\\*", text), "")
        if isinstance(thing, type) and dataclasses.is_dataclass(thing):
            fields = [f.name for f in dataclasses.fields(thing)]
            yield from (f"Fields: {', '.join(f'`{field}`' for field in fields)}.", "")


def _signature(function: Any) -> str:
    """Without the types, which the text tells in words."""
    parameters = []
    for each in inspect.signature(function).parameters.values():
        parameters.append(each.replace(annotation=inspect.Parameter.empty))
    return str(inspect.Signature(parameters))


if __name__ == "__main__":
    main()
