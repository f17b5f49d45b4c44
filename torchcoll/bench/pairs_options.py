"""The command line of ``torchrun -m torchcoll.pairs``: its own options, and some of the others'."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace

from torchcoll.bench.options import Options, Parser, number, parse
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import Spec
from torchcoll.core.tournament import BY, ITERS, LATENCY_NBYTES, SIZES, THRESHOLD, PairOptions
from torchcoll.core.units import parse_share, whole_number

# Fields of Spec that mean something here; the others are refused.
_OWN = (
    *("collectives", "sizes", "dtypes", "backend", "device", "iters", "check", "timeout_s"),
    *("labels", "rehearse"),
)


def _parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="torchcoll.pairs",
        description="Measure every pair of ranks or nodes, and say which one is slow. Pairs of a "
        "round run at the same time, every pair meets once; the slow ones run again alone, then "
        "all ranks do all_reduce together. Exit code 1 where a suspect is left.",
        epilog="Further, as torchcoll.allreduce --help has them: --sizes (8M) -n (10) -d -c -T "
        "--backend --device --rehearse --rendezvous-file -J --no-output --label "
        "--library-log --format --quiet --gate --dry-run --ranks --require-idle.",
        allow_abbrev=False,
    )
    p.add_argument(
        "--by",
        default=BY[0],
        help="rank (default): every rank with every other; node: all ranks of a node with those of "
        "another at once, first with first, second with second",
    )
    p.add_argument(
        "--threshold",
        metavar="SHARE",
        default=str(THRESHOLD),
        help=f"slower than the others by this share, and an outlier, is suspect "
        f"({100 * THRESHOLD:g}%%)",
    )
    p.add_argument(
        "--bisect",
        action="store_true",
        help="then halve the ranks (nodes) with all_reduce until the slow group is small: for "
        "faults that pairs do not show",
    )
    p.add_argument("--ranks-per-node", help="of --dry-run --by node")
    return p


def parse_pairs(argv: Sequence[str]) -> Options:
    """The Options of a command line. Raises UsageError."""
    own, rest = _parser().parse_known_args(list(argv))
    options = parse(rest, "all_reduce", "torchcoll.pairs")
    spec, plain = options.spec, Spec()
    for field in fields(Spec):
        given = getattr(spec, field.name)
        if field.name not in _OWN and given != getattr(plain, field.name):
            flag = field.name.replace("_", "-")
            raise UsageError(flag, given, "none: torchcoll.pairs has no such choice")
    if options.resume:
        raise UsageError("resume", options.resume, "none: pairs are measured in one go")
    if options.format not in ("table", "markdown", "csv", "json"):
        raise UsageError("format", options.format, "one of table, markdown, csv, json")
    sizes = spec.sizes or SIZES
    if min(sizes) <= LATENCY_NBYTES:
        expected = f"more than {LATENCY_NBYTES} bytes"
        raise UsageError("sizes", min(sizes), expected, "The latency is measured in any case.")
    for nbytes in sizes:
        if nbytes % LATENCY_NBYTES:  # of every type a whole number of elements
            raise UsageError("sizes", nbytes, f"a multiple of {LATENCY_NBYTES} bytes")
    if len(spec.dtypes) > 1:
        raise UsageError("dtype", ",".join(spec.dtypes), "one type")
    iters = ITERS if spec.iters is None else spec.iters
    whole_number(iters, "iters", 1)
    threshold = parse_share(own.threshold, "threshold")
    per_node = own.ranks_per_node
    if per_node is not None:
        per_node = whole_number(number(per_node, int), "ranks-per-node", 1)
        if not options.dry_run:
            raise UsageError("ranks-per-node", per_node, "--dry-run beside it")
    pairs = PairOptions(own.by, own.bisect, threshold, per_node)
    return replace(options, spec=replace(spec, sizes=sizes, iters=iters), pairs=pairs)
