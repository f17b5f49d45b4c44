"""The command line on the ranks: flags -> Spec and what to do with the output.

Names are chosen so that torchrun lets them pass: it takes for itself every long option that is a
prefix of one of its own, even behind the module name (tested with torchrun's own parser).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, NoReturn

from torchcoll.core.collectives import COLLECTIVES, DTYPES, OPS
from torchcoll.core.errors import UsageError, choice, nearest_option
from torchcoll.core.spec import ORDERS, Spec
from torchcoll.core.units import format_size, parse_duration, whole_number
from torchcoll.core.variables import masked_labels

# Options that Spec takes as they are, under their own name.
SOAK_ITERS = 20  # calls of a case in a round: in short rounds more calls are checked
_PLAIN = (
    "mode",
    "order",
    "fresh_group",
    "groups",
    "init",
    "communicator_config",
    "buffers",
    "buffer_reuse",
    "misalign_bytes",
    "implementation",
    "asynchronous",
    "rehearse",
    "concurrent",
    "mesh",
    "offset",
)
FOLDER_ENDING = ".logs"  # of --library-log: RESULT.jsonl.logs lies beside RESULT.jsonl
FORMATS = ("table", "markdown", "csv", "json")


# nccl-tests' ways of saying how many GPUs and threads.
_OF_THE_SUITE = ("--collectives", "--traffic")
_OF_NCCL_TESTS = ("-g", "--ngpus", "-t", "--nthreads", "-p", "--parallel_init")


@dataclass(frozen=True)
class Other:
    """What is measured in place of the cases of a collective, with options of its own.

    name: in the name of the file. header: further fields of the file's header.
    """

    name: str
    options: object
    header: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """What one command line asks for beside the Spec.

    With ``traffic``, a file that rank 0 alone reads, ``spec`` is what stands in the command line,
    and ``fields`` those of its fields that were given.
    """

    spec: Spec
    fields: Mapping[str, Any] = field(default_factory=dict)
    traffic: str | None = None
    output: str | None = None
    no_output: bool = False
    resume: str | None = None
    dry_run: bool = False
    ranks: int | None = None
    format: str = "table"
    quiet: bool = False
    verbose: bool = False
    library_log: bool = False
    gate: bool = False
    require_idle: bool = False
    rendezvous_file: str | None = None
    soak: str | None = None
    metrics: str | None = None
    other: Other | None = None

    def asked(self, ranks: int) -> tuple[Spec, list[str]]:
        """The Spec, and what of a traffic is not measured as it was. Reads the file, on rank 0.

        Raises UnreadableError, and UsageError for sub-groups of another number of ranks.
        """
        if self.traffic is None:
            return self.spec, []
        from torchcoll.core.traffic import Traffic

        traffic = Traffic.load(self.traffic)
        count = len(traffic.notes)
        spec = traffic.spec(**self.fields)
        notes = traffic.problems + traffic.notes[count:]
        if ranks != traffic.ranks:
            if spec.groups:
                expected = f"{traffic.ranks} as in {self.traffic}, for the sub-groups {spec.groups}"
                raise UsageError("ranks", ranks, expected)
            notes.append(f"sizes of {traffic.ranks} ranks, measured on {ranks}")
        return spec, notes


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = nearest_option(message, self._option_string_actions, f"python -m {self.prog} --help")
        if message.startswith("unrecognized arguments: "):
            option = message.split()[2].partition("=")[0]
            if option in _OF_NCCL_TESTS:
                hint = "The launcher says how many ranks: torchrun --nproc-per-node N."
            elif option in _OF_THE_SUITE and option not in self._option_string_actions:
                hint = f"{option} is an option of torchcoll.suite."
        raise UsageError(message, action=hint)


def _written(name: str, value: Any) -> str:
    """The default of a field of Spec, as the command line would have it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, (int, float)):
        return format_size(int(value)) if name.endswith("_bytes") else f"{value:g}"
    return str(value)


def _parser(program: str, several: bool) -> argparse.ArgumentParser:
    default = SimpleNamespace(**{f.name: _written(f.name, f.default) for f in fields(Spec)})
    p = Parser(
        prog=program,
        description="Measure a collective of torch.distributed on all ranks of this run.",
        epilog="Sizes: 8, 1K, 25M, 1.5G (K, M, G, T are powers of 1024). Start with torchrun, "
        "srun or mpiexec; without a launcher there is one rank.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    text: dict[str, Any] = {"default": argparse.SUPPRESS}
    what = p.add_argument_group("what to measure")
    if several:
        what.add_argument(
            "--collectives", help=f"all, or several of {', '.join(COLLECTIVES)}", **text
        )
        what.add_argument(
            "--traffic",
            metavar="FILE",
            help=(
                "replay the calls of a training, as torchcoll.capture saved them (a "
                "file or a folder)"
            ),
            **text,
        )
    what.add_argument("-b", "--min-bytes", help=f"smallest size ({default.min_bytes})", **text)
    what.add_argument("-e", "--max-bytes", help=f"largest size ({default.max_bytes})", **text)
    what.add_argument(
        "-f",
        "--factor",
        help=f"each size is the one before times this: 2, 4, 1.15 ({default.factor})",
        **text,
    )
    what.add_argument(
        "-i", "--step-bytes", help="step between sizes in bytes, in place of a factor", **text
    )
    what.add_argument("--sizes", help="a list of sizes in place of a range: 1K,1M,25M", **text)
    what.add_argument(
        "-d", "--dtype", help=f"all, or of {', '.join(DTYPES)} ({default.dtypes})", **text
    )
    what.add_argument("-o", "--op", help=f"all, or of {', '.join(OPS)} ({default.ops})", **text)
    what.add_argument("-r", "--root", help=f"rank, or ranks with commas ({default.roots})", **text)
    what.add_argument("--in-place", help="0, 1 or both (each collective's own default)", **text)
    what.add_argument(
        "--splits",
        help=(
            "of uneven blocks: balanced, zipf:S, hot:K, rotating:K, seed:N, weights 1,2,4 or a "
            f"matrix file; combine: or pair: may stand before it ({default.splits})"
        ),
        **text,
    )
    what.add_argument(
        "--backend",
        help=(
            "nccl, xccl, ccl, gloo, fake or another backend of torch; several, "
            "separated by commas, alternate (default: what the machine has)"
        ),
        **text,
    )
    what.add_argument("--device", help="cpu, cuda or xpu (default: what the backend uses)", **text)
    what.add_argument(
        "--groups",
        help=("run in several sub-groups at once: mod:2, div:4, or 0,1;2,3 (default: one group)"),
        **text,
    )
    how = p.add_argument_group("how to measure")
    how.add_argument(
        "--mode",
        help=(
            "synchronized: a barrier before every call; back-to-back: no barrier; blocking: each "
            "rank waits until a call is complete, without a barrier; graph: captured once and "
            "replayed (default: synchronized on CPU, else back-to-back)"
        ),
        **text,
    )
    how.add_argument(
        "-n",
        "--iters",
        help=(
            "number of steady calls per case; 0: only cold calls (default: as "
            "--precision and --max-time decide)"
        ),
        **text,
    )
    how.add_argument(
        "-w", "--warmup", help=f"timed calls between cold and steady ({default.warmup})", **text
    )
    how.add_argument("--cold", help=f"at least so many cold calls ({default.cold})", **text)
    how.add_argument(
        "--precision",
        help="without -n, end a case once its median is known to this share: 0.05 is +- 5 %% "
        f"({default.precision})",
        **text,
    )
    how.add_argument(
        "--max-time",
        help=f"without -n, end a case after so many seconds of steady calls ({default.max_time_s})",
        **text,
    )
    how.add_argument(
        "--fresh-group", action="store_true", help="make a new communicator for every case", **text
    )
    how.add_argument("--init", help=f"lazy or eager: when to connect ({default.init})", **text)
    how.add_argument(
        "--communicator-config",
        metavar="NAME=VALUE",
        help="fields of the configuration of communicators that this torch has for nccl, with "
        "commas: cta_policy=zero, split_share=1, max_ctas=8, ...",
        **text,
    )
    how.add_argument(
        "--buffers",
        help=(
            "kind of memory: default, or on nccl registered (with the communicator)"
            " or symmetric (mapped by all GPUs) (default)"
        ),
        **text,
    )
    how.add_argument(
        "--buffer-reuse",
        help="same buffers in every call, rotate through the largest of the sweep, or flush: the "
        f"same buffers, after the caches were overwritten ({default.buffer_reuse})",
        **text,
    )
    how.add_argument(
        "--misalign",
        metavar="BYTES",
        dest="misalign_bytes",
        help="begin the buffers so many bytes after an aligned address: 4 (0)",
        **text,
    )
    how.add_argument(
        "--implementation",
        help="what makes the calls: own (the backend, or its name), the backend through torch's "
        "functional collectives (functional) or DTensor (dtensor), or kernels of torch's symmetric "
        "memory: one_shot, two_shot, multimem, multimem_one_shot; several: each case by each "
        f"({default.implementation})",
        **text,
    )
    how.add_argument(
        "--async",
        action="store_true",
        dest="asynchronous",
        help="pass async_op=True, as DDP does",
        **text,
    )
    how.add_argument("--coalesce", help=f"so many calls in one group ({default.coalesce})", **text)
    how.add_argument(
        "--rehearse",
        action="store_true",
        help=(
            "try a command for several GPUs on one: the nccl ranks share it, so times mean nothing"
        ),
        **text,
    )
    how.add_argument(
        "--concurrent",
        metavar="WORK",
        help=(
            "measure each case alone, the work alone, and both together; work: "
            "matmul, copy or both, with :SIZE, or COLLECTIVE:GROUPS; "
            "background:LABEL only records that other work ran"
        ),
        **text,
    )
    how.add_argument(
        "--mesh",
        metavar="AxB",
        help=(
            "measure each case in columns of B ranks, once alone and once with the rows running too"
        ),
        **text,
    )
    how.add_argument(
        "--offset",
        metavar="TIME",
        help=(
            "with --concurrent COLLECTIVE:GROUPS or --mesh: start the other "
            "collective this long after each call (2ms)"
        ),
        **text,
    )
    how.add_argument("-c", "--check", help=f"verify the results, 0 or 1 ({default.check})", **text)
    how.add_argument("--order", help=f"{' or '.join(ORDERS)} ({default.order})", **text)
    how.add_argument("--seed", help=f"of --order shuffled ({default.seed})", **text)
    how.add_argument(
        "-T",
        "--timeout",
        help=f"seconds without progress that are a hang ({default.timeout_s})",
        **text,
    )
    how.add_argument(
        "--soak",
        metavar="TIME",
        help=(
            "repeat all cases for this long (90s, 30m, 8h) in rounds of 20 calls a case (see -n), "
            "and check a tenth of the calls; SIGUSR1 ends it"
        ),
        **text,
    )
    how.add_argument(
        "--metrics",
        metavar="FILE",
        help=("with --soak: rank 0 keeps NAME.prom up to date, for Prometheus' node_exporter"),
        **text,
    )
    how.add_argument(
        "--require-idle",
        action="store_true",
        help=("refuse to start while another process uses a device (on cpu: 5%% of the cores)"),
        **text,
    )
    how.add_argument(
        "--rendezvous-file",
        metavar="PATH",
        help=(
            "meet in this file, in a folder that all hosts share, in place of "
            "MASTER_ADDR:MASTER_PORT"
        ),
        **text,
    )
    out = p.add_argument_group("output")
    out.add_argument(
        "-J", "--output", help="result file (default: torchcoll-runs/...jsonl)", **text
    )
    out.add_argument("--no-output", action="store_true", help="write no result file", **text)
    out.add_argument("--resume", metavar="FILE", help="run the cases that FILE lacks", **text)
    out.add_argument(
        "--label",
        action="append",
        metavar="KEY=VALUE",
        help="a label to record in the result file",
        **text,
    )
    out.add_argument(
        "--library-log",
        action="store_true",
        help=(
            "record the log of NCCL or oneCCL too: the table then has algorithms, "
            "but calls are slower"
        ),
        **text,
    )
    out.add_argument("--format", help=f"{', '.join(FORMATS)} (table)", **text)
    out.add_argument("--quiet", action="store_true", help="print no header and no progress", **text)
    out.add_argument(
        "--verbose",
        action="store_true",
        help="print the phases of the start and the cost of measuring too",
        **text,
    )
    out.add_argument(
        "--gate",
        action="store_true",
        help="exit with 1 if the verdict is FAIL, with 2 if nothing can be judged",
        **text,
    )
    out.add_argument(
        "--dry-run", action="store_true", help="print the cases and run nothing", **text
    )
    out.add_argument(
        "--ranks", help="number of ranks to assume with --dry-run or --backend fake", **text
    )
    return p


def parse(argv: Sequence[str], collective: str | None, program: str) -> Options:
    """The Options of a command line; ``collective`` None is the suite. Raises UsageError."""
    given = vars(_parser(program, collective is None).parse_args(list(argv)))
    for name in ("output", "resume", "backend", "device", "traffic"):
        if given.get(name) == "":  # `--output "$UNSET"` is not the default
            raise UsageError(name, "", "a name")
    fields: dict[str, Any] = {}
    if collective or "collectives" in given:
        fields["collectives"] = collective or given.pop("collectives")
    renamed = {"dtype": "dtypes", "op": "ops", "max_time": "max_time_s", "timeout": "timeout_s"}
    for name in ("dtype", "op", "min_bytes", "max_bytes", "sizes", "splits", "backend", "device"):
        if name in given:
            fields[renamed.get(name, name)] = given.pop(name)
    for name in _PLAIN:
        if name in given:
            fields[name] = given.pop(name)
    for name in ("iters", "warmup", "cold", "seed", "coalesce"):
        if name in given:
            fields[name] = number(given.pop(name), int)
    for name in ("factor", "precision", "max_time", "timeout"):
        if name in given:
            fields[renamed.get(name, name)] = number(given.pop(name), float)
    if "step_bytes" in given:
        fields["step_bytes"] = given.pop("step_bytes")
    if "root" in given:
        fields["roots"] = tuple(number(root, int) for root in given.pop("root").split(","))
    if "in_place" in given:
        fields["in_place"] = _one_of(
            "in-place", given.pop("in_place"), {"0": False, "1": True, "both": "both"}
        )
    if "check" in given:
        fields["check"] = _one_of("check", given.pop("check"), {"0": False, "1": True})
    if "label" in given:
        fields["labels"] = masked_labels(dict(_label(text) for text in given.pop("label")))
    ranks = given.pop("ranks", None)
    if ranks is not None:
        ranks = whole_number(number(ranks, int), "ranks", 1)
    formats = {name: name for name in FORMATS}
    given["format"] = _one_of("format", given.get("format", "table"), formats)
    if "soak" in given and not fields.keys() & {"iters", "precision", "max_time_s"}:
        fields["iters"] = SOAK_ITERS
    spec = Spec(**{"collectives": "all", **fields})
    options = Options(spec=spec, fields=fields, ranks=ranks, **given)
    if ranks is not None and spec.communicates and not options.dry_run:
        raise UsageError(
            "ranks",
            ranks,
            "--dry-run or --backend fake with it",
            "The launcher sets the number of ranks: torchrun --nproc-per-node N.",
        )
    if options.dry_run and options.resume:
        raise UsageError("resume", f"{options.resume} with --dry-run", "one of them")
    if options.metrics is not None:
        if options.soak is None:
            raise UsageError("metrics", options.metrics, "--soak TIME with it")
        from torchcoll.core.metrics import metrics_name

        metrics_name(options.metrics)
    if options.soak is not None:
        parse_duration(options.soak, "soak")
        if spec.iters == 0:
            raise UsageError("soak", f"{options.soak} with -n 0", "steady calls to repeat")
        for name, value in (("resume", options.resume), ("traffic", options.traffic)):
            if value:
                raise UsageError("soak", f"{options.soak} with --{name}", "one of them")
    if options.no_output and options.output:
        raise UsageError("output", f"--output {options.output} and --no-output", "one of them")
    if options.no_output and options.library_log:
        action = "The log lies next to the result file."
        raise UsageError("library-log", "--library-log and --no-output", "one of them", action)
    return options


def number(text: str, kind: type) -> Any:
    """The number, or the text as it is: Spec refuses it with the field's own words."""
    try:
        return kind(text)
    except ValueError:
        return text


def _one_of(what: str, text: str, values: dict[str, Any]) -> Any:
    choice(text, what, values)
    return values[text]


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError("label", text, "KEY=VALUE, such as kernel=6.8.0-generic")
    return key, value
