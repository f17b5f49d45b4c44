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
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.implementations import IMPLEMENTATIONS
from torchcoll.core.summary import Row
from torchcoll.core.units import format_size
from torchcoll.pairs import pairs_run
from torchcoll.report.columns import COLUMNS
from torchcoll.verdict.rules import _packaged, packaged

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
    yield "What measures runs on every rank, under a launcher; what reads runs anywhere, without"
    yield from ("one. Sizes are `8`, `1K`, `25M`, `1.5G`, powers of 1024.", "")
    ranks = options._parser("torchcoll.suite", True)
    names = ", ".join(f"`torchcoll.{entry.module}`" for entry in COLLECTIVES.values())
    yield from ("## On the ranks", "")
    yield f"`torchrun --nproc-per-node N -m torchcoll.allreduce [options]`. Modules: {names}, and"
    yield "`torchcoll.suite` for several collectives at once, which alone has `--collectives` and"
    yield from ("`--traffic`. Letters are those of nccl-tests.", "")
    for group in ranks._action_groups:
        if group._group_actions and group.title in ("what to measure", "how to measure", "output"):
            yield from (f"### {group.title.capitalize()}", "")
            yield from _options(ranks, group._group_actions)
    yield from ("### torchcoll.pairs", "")
    yield "Of the options above those of a plain all_reduce that name sizes, dtype, calls, backend,"
    yield from ("device, time limit and output, and its own:", "")
    pairs = pairs_run._parser()
    yield from _options(pairs, pairs._actions)
    known = cli.commands()
    yield from ("## The console command", "")
    yield f"`torchcoll COMMAND`: {', '.join(f'[{n}](#torchcoll-{n})' for n in known)}."
    yield from ("", "")
    for name, (text, _, _) in known.items():
        whole = cli._parser(name, known)
        yield from _command(_subparsers(whole)[name], name, text)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(groups[0].choices) if groups else {}


def _command(parser: argparse.ArgumentParser, name: str, text: str) -> Iterator[str]:
    text = plain(text[:1].upper() + text[1:]).rstrip(".")
    yield from (f"### torchcoll {name}", "", f"{text}.", "")
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    yield from (f"    {_short(usage, parser)}", "")
    yield from _options(parser, parser._actions)
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

_FILE = """# The result file

JSON Lines: one object a line, the first key is `record`. The lines are described by a JSON schema
(draft 2020-12), [torchcoll-2.schema.json](torchcoll-2.schema.json), of which this page is made; a
test holds every file of the repository, and one that is written, against it.

- Times are whole nanoseconds (`_ns`), sizes bytes (`_bytes`); bandwidths are never stored, always
  derived. There is no NaN and no Infinity: unknown is `null`, or the field is not there.
- Rank 0 writes. The file gets its header before the process group exists, and a line in one write
  as soon as it is known: after a crash it loads with all complete cases, and the last `started`
  names the case in flight. A file without `end` is truncated: it loads, and that is said.
- `--resume FILE` writes what is missing into `FILE.2`; reading FILE reads both.
- Readers ignore fields and records that they do not know. A file of another major schema is refused
  with the version to install.
- Each line ends with `"line":N,"crc":"XXXXXXXX"`: its number, and the CRC-32 (zlib's) of the bytes
  before `,"crc"`, begun with the crc of the header (that of the header with 0). A line that was
  changed, damaged, lost or doubled is told below the table, and not used. A file whose header has
  none is read without. Traffic files and the manifest of `torchcoll matrix` have the same.
- Environment variables are those of an allow-list of prefixes (NCCL_, CCL_, FI_, SLURM_, ...);
  secrets in them are masked: values whose name says so, and in any value, label, command line or
  text of a log known tokens (`hf_`, `ghp_`, `AKIA`), `Authorization` headers, `?sig=` and
  `user:password@`.

Two relatives: what [a training sends](../gradients.md) is in a traffic file, schema
`torchcoll-traffic/2` (header, group, step, computing, apart, call, note, environment, end:
`torchcoll/core/traffic.py`), and
`torchcoll matrix` keeps a manifest, `torchcoll-matrix/1`, beside its launches.
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
    yield "One row a case. The names are those of `--columns`, JSON, CSV and `torchcoll.table`; a"
    yield "value is a number in base units, and unknown is null. A table on a terminal shows those"
    yield from ("that vary, and says the others above it.", "")
    hidden = [f.name for f in dataclasses.fields(Row) if hasattr(pandas.Series, f.name)]
    yield f"A row of pandas hides {', '.join(f'`{n}`' for n in hidden)} behind attributes of its"
    yield from ('own: read them as `row["mode"]`.', "")
    said = dict(re.findall(r"(?m)^    (\w+): [^#\n]+  # (.*)$", inspect.getsource(Row)))
    rows = []
    for field in dataclasses.fields(Row):
        head = COLUMNS[field.name].head
        heading = f"{head.first} {head.second}".strip()
        kind = str(field.type).replace(" | None", " or null")
        rows.append((f"`{field.name}`", heading, kind, said[field.name]))
    yield from table(("name", "heading", "type", "meaning"), rows)
    yield "`--percentiles 50,90` adds `p50_ns` and `p90_ns`. What `compare`, `cold`, `transitions`"
    yield "and the other commands find has columns of its own; `--format json` names them."


# -------------------------------------------------------------------------------------------------


def tables() -> Iterator[str]:
    yield from ("# Collectives, backends, fabrics", "", "## Collectives", "")
    yield "S is the size of the tables, as nccl-tests counts it. algbw = S / time; busbw = algbw x"
    yield "bus factor, the share that each link must carry (nccl-tests, doc/PERFORMANCE.md). parts:"
    yield from ("S is divided into so many blocks of `count` elements.", "")
    uneven = ", ".join(f"`{entry.name}`" for entry in COLLECTIVES.values() if entry.has_splits)
    yield f"Uneven blocks ({uneven}) are divided by"
    yield "`--splits`. S is the most that one rank sends or receives, its own block included: for a"
    yield "scattered reduction and for a gather, all blocks together. busbw is what the busiest"
    yield "rank sends to the others, or receives from them, over the time: its own block does not"
    yield "travel. With weights 1,2,4 and S = 280 bytes, blocks are 40, 80 and 160 bytes, and"
    yield from ("busbw = 240 bytes / time. The algbw of hypercube counts (n - 1) / n of S.", "")
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
                str(entry.parts(8)) if entry.has_data and not entry.has_splits else "-",
                "busiest rank" if entry.has_splits else entry.factor[0] if entry.has_data else "-",
                ", ".join(f"`{alias}`" for alias in entry.aliases) or "-",
            )
        )
    head = ("name", "module", "root", "op", "placement (first: default)", "parts at 8 ranks")
    yield from table((*head, "bus factor of n ranks", "also accepted"), rows)
    yield from ("## Backends", "")
    rows = [
        (
            f"`{entry.name}`",
            ", ".join(entry.devices),
            f"`{entry.module}`" if entry.module else "torch",
            entry.connects,
            ", ".join(f"`{p}`" for p in entry.prefixes) or "-",
            ("yes" if entry.promised else "passed on to torch, nothing is promised")
            if entry.communicates
            else "communicates nothing",
        )
        for entry in BACKENDS.values()
    ]
    head = ("name", "devices", "comes from", "connects in", "variables kept", "supported")
    yield from table(head, rows)
    yield from ("## Implementations", "")
    yield "Kernels of `torch.ops.symm_mem` in the backend's place"
    yield from ("([what they are](../measure.md#other-implementations)).", "")
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
    yield "What [the verdict](../healthy.md) measures by: the limits that torchcoll knows, each"
    yield from ("with its source. `--rules FILE` adds your own.", "")
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
    head = ("fabric", "what", "algorithm", "collectives", "busbw, GB/s", "from size", "source")
    yield from table(head, rows)


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
    found = torchcoll.compare(*kernels)  # .rows .tally .differences .notes
    torchcoll.show(found)
```

`run` uses the process group that is there and leaves it as it was; without one it uses the
launcher's variables, else it is one rank. `show` prints what any of the others returns. Names are
loaded when they are first used: `import torchcoll` loads neither torch nor pandas. This is all that
is public; other names may change. `examples/python_api.py` is a whole program:

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
