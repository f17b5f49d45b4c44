"""``torchcoll gradients``: what a model's gradients send, without running it, and what it costs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from torchcoll.core.buckets import BucketPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        nargs="?",
        metavar="MODULE:FACTORY",
        help="a function without arguments that makes the model, such as train:make_model; it is "
        "called with meta as the default device, so that no memory is needed",
    )
    add("--bucket-cap-mb", metavar="MIB", help="a table for each: 10,25,100; default: DDP's own")
    add("--find-unused", action="store_true", help="as DDP's find_unused_parameters")
    add(
        "--fsdp",
        metavar="CLASSES",
        help="instead of DDP's buckets what FSDP2 sends, with these module classes wrapped",
    )
    add("--ranks", type=int, metavar="N", help="of --fsdp (default 64)")
    add(
        "--curve",
        nargs="+",
        metavar="RUN",
        help="which bucket_cap_mb (those named, or 1 to 800) leaves least communication exposed on "
        "measured all_reduce over sizes; several files are launches. For a model, the file or "
        "folder of a captured traffic in its place, or --parameters",
    )
    add("--parameters", metavar="N", help="of --curve without a model: so many, such as 7e9")
    add("--dtype", metavar="NAME", help="of --parameters: float32, bfloat16, ...")
    add("--backward-ms", metavar="MS", help="of --curve: what a backward pass takes by itself")
    add(
        "--accumulate",
        type=int,
        metavar="N",
        help="of --curve: backward passes an optimiser step (default: one, where traffic leaves no "
        "doubt)",
    )
    add("--format", default="table", help="table, markdown, csv or json")


_OF_TRAFFIC = "Traffic takes --curve RUN beside it; `torchcoll trace` shows what it sends."
_OF_CURVE = ("parameters", "dtype", "backward_ms", "accumulate")


def run(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.traffic_file import is_traffic
    from torchcoll.report.found import FORMATS
    from torchcoll.report.view import choice

    choice(options.format, "format", FORMATS)
    if options.curve is not None:
        return _show_advice(options)
    for name in _OF_CURVE:
        if (value := getattr(options, name)) is not None:
            raise UsageError(name.replace("_", "-"), value, "--curve RUN beside it")
    if options.model is None:
        raise UsageError("model", "none", "package.module:factory, such as train:make_model")
    if options.fsdp is not None:
        return _show_shards(options)
    if is_traffic(options.model):
        raise UsageError("model", options.model, "package.module:factory", _OF_TRAFFIC)
    if options.ranks is not None:
        raise UsageError("ranks", options.ranks, "none without --fsdp: DDP's buckets have no ranks")

    from torchcoll.report.buckets import show_plans

    plans = _plans(options, _caps(options.bucket_cap_mb))
    show_plans(plans, options.format, model=options.model)
    return ExitCode.OK


def _plans(options: argparse.Namespace, caps: Sequence[float | None]) -> list[BucketPlan]:
    """A plan for each cap."""
    from torchcoll.bench.main import import_torch

    import_torch()  # or says in one line that there is none
    from torchcoll.train.buckets import gradient_buckets
    from torchcoll.train.factory import model_of

    model = model_of(options.model)
    return [gradient_buckets(model, cap, find_unused=options.find_unused) for cap in caps]


def _show_advice(options: argparse.Namespace) -> ExitCode:
    from torchcoll.analysis.gradients import CAPS_MB, advise
    from torchcoll.core.traffic_file import is_traffic
    from torchcoll.importers.registry import read_all
    from torchcoll.report.text import show

    if options.fsdp is not None:
        action = "FSDP2 has no bucket_cap_mb. Measure what each choice of --fsdp sends."
        raise UsageError("fsdp", f"{options.fsdp} with --curve", "DDP's gradients", action)
    if (options.model is None) == (options.parameters is None):
        got = "neither a model nor --parameters" if options.model is None else "both"
        action = "" if options.model else "The model stands before --curve."
        raise UsageError("gradients", got, "a model or --parameters", action)
    text = options.bucket_cap_mb
    caps = None if text is None else [cap for cap in _caps(text) if cap is not None]
    gradients: Any = options.model
    if options.model is None:
        gradients = _number(options.parameters, "parameters")
    elif not is_traffic(options.model):
        gradients, caps = _plans(options, [None, *(caps or CAPS_MB)]), None
    backward = options.backward_ms
    found = advise(
        gradients,
        options.curve,
        caps_mb=caps,
        backward_ms=None if backward is None else _number(backward, "backward-ms"),
        dtype=options.dtype,
        accumulate=options.accumulate,
        reader=read_all,
    )
    show(found, format=options.format)
    return ExitCode.OK


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(what, text, "a number") from None


def _caps(text: str | None) -> list[float | None]:
    if text is None:
        return [None]
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError("bucket-cap-mb", text, "numbers of MiB, such as 10,25,100") from None


def _show_shards(options: argparse.Namespace) -> ExitCode:
    if options.bucket_cap_mb is not None or options.find_unused:
        got = "--bucket-cap-mb" if options.bucket_cap_mb is not None else "--find-unused"
        raise UsageError("fsdp", f"{options.fsdp} and {got}", "one of them: the other is DDP's")

    from torchcoll.bench.main import import_torch
    from torchcoll.report.text import show

    import_torch()
    from torchcoll.train.factory import model_of
    from torchcoll.train.shards import shard_traffic

    model = model_of(options.model)
    asked = options.fsdp.split(",")
    known = {type(module).__name__ for module in model.modules()}
    for name in asked:
        if name not in known:
            raise UsageError("fsdp", name, f"classes of the model: {', '.join(sorted(known))}")
    ranks = 64 if options.ranks is None else options.ranks
    show(
        shard_traffic(model, lambda name, module: type(module).__name__ in asked, ranks),
        format=options.format,
    )
    return ExitCode.OK
