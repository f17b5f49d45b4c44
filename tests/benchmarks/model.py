"""How wrong `torchcoll model` is: left-out sizes and ranks, larger sizes, more hosts, a simulator.

    python tests/benchmarks/model.py [NAME=FILE,FILE,...] ... [--one-machine NAME] [--hosts FOLDER]

NAME=FILES: a set of result files or logs, each file a machine of its own; the seed's H200 tables in
results/ are always there. Each size between the ends is left out in turn, and everything, the
choice of the form included, is done again without it; the baseline is a monotone cubic (PCHIP)
through the others, in logarithms. third: the largest third of the sizes left out; with
--one-machine NAME the files of that set are one machine's, whose collectives tell it together.
--hosts: what model_hosts.py left: fitted on 2, 3 and 4 hosts, 6 and 8 are predicted.

series: NCCL-tests all_reduce on 2, 4 and 8 nodes of p3dn.24xlarge (8 V100 each, EFA), July 2019,
out of place, 8 B to 32 KiB (what of the published logs could be had), by Jacob Kahn:
gist.github.com/jacobkahn/a92f4425abf831ac0799fabe9079263d, 1fb3977e99056b7935a6c63dda1e145f and
3150a1a38abba40f58d8263d9c55969f.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy
from common import title

from torchcoll import load
from torchcoll.comparison.prediction import error_summary
from torchcoll.core.errors import TorchcollError
from torchcoll.curves.model_fit import fit_entries, fit_model, read_curves
from torchcoll.curves.model_sizes import Kinds
from torchcoll.curves.validation import OVER_SIZES, HeldOut, validate, validate_predicted
from torchcoll.stats.sides import side

RESULTS = Path(__file__).parents[2] / "results"
HEAD = "collective,ranks,size (B),time (us)\n"
# us on 16, 32 and 64 ranks, of 8 B, 16 B, ... 32 KiB.
SERIES = {
    16: "163.4 162.9 164.1 162.5 164.1 162.5 162.8 166.5 166.6 168.3 171.9 174.9 184.8",
    32: "319.4 320.9 317.2 321.3 319.6 318.1 317.8 320.9 324.5 326.3 327.5 336.5 343.3",
    64: "631.3 686.3 627.5 632.0 629.1 628.2 631.8 634.2 633.3 631.6 637.2 644.3 663.2",
}
# Geometric means of the errors on 2, 4 and 8 GPUs, in the documentation of ASTRA-sim (HGX-H100).
GEOMEANS = {2: 0.2063, 4: 0.1201, 8: 0.0969}


def left_out(sets: dict[str, list[str]]) -> None:
    print("\nleft-out sizes between the ends: mean error, beside the baseline on the same points")
    print(f"{'set':10} {'points':>6} {'model':>7} {'PCHIP':>7} {'ratio':>6} {'in 90 %':>9}")
    every: list[HeldOut] = []
    for name, files in sets.items():
        points = [point for file in files for point in of_sizes(file)]
        row(name, points)
        every += points
    row("pooled", every)


def of_sizes(file: str) -> list[HeldOut]:
    try:
        return [point for point in validate([file]).points if point.over == OVER_SIZES]
    except TorchcollError as error:
        print(f"{Path(file).name}: {error}", file=sys.stderr)
        return []


def row(name: str, points: Sequence[HeldOut]) -> None:
    model = numpy.mean([point.error for point in points])
    cubic = numpy.mean([point.baseline_error for point in points])
    held = numpy.mean([point.covered for point in points])
    print(
        f"{name:10} {len(points):6} {100 * model:6.2f} % {100 * cubic:5.2f} % {model / cubic:6.2f} "
        f"{100 * held:7.1f} %",
        flush=True,
    )


def larger(sets: dict[str, list[str]], machines: Sequence[str]) -> None:
    print("\nthe largest third of the sizes left out (and the largest size alone): mean error")
    for name, files in sets.items():
        third: list[tuple[float, bool]] = []
        last: list[tuple[float, bool]] = []
        for own in [files] if name in machines else [[file] for file in files]:
            try:
                kinds, _ = read_curves(side("files", own))
            except TorchcollError:
                continue
            third += smaller_sizes(kinds, 3)
            last += smaller_sizes(kinds, 0)
        held = numpy.mean([inside for _, inside in third])
        print(
            f"{name:10} third {100 * numpy.mean([error for error, _ in third]):6.1f} % of "
            f"{len(third)}, {100 * held:.0f} % in their interval; largest "
            f"{100 * numpy.mean([error for error, _ in last]):.1f} %",
            flush=True,
        )


def smaller_sizes(kinds: Kinds, part: int) -> list[tuple[float, bool]]:
    """Of each size left out (so large a part, or the largest one) its error, and whether it lies in
    its interval.
    """
    cut: Kinds = []
    for kind, curves in kinds:
        kept = []
        for curve in curves:
            n = len(curve.sizes) - (len(curve.sizes) // part if part else 1)
            if 4 <= n < len(curve.sizes):
                less = {"sizes": curve.sizes[:n], "times": curve.times[:n]}
                kept.append(replace(curve, errors=curve.errors[:n], **less))
        if kept:
            cut.append((kind, kept))
    found = []
    whole = {repr(kind): curves for kind, curves in kinds}
    for entry in fit_entries(cut):
        for curve in whole[repr(entry.kind)]:
            place = curve.ranks, curve.hosts
            for n in (one.sizes for one in entry.over_sizes if (one.ranks, one.hosts) == place):
                for size, time in zip(curve.sizes[n:], curve.times[n:], strict=True):
                    one = entry.predict(int(size), curve.ranks, curve.hosts or None)
                    found.append((abs(one.time_ns / time - 1), one.low_ns <= time <= one.high_ns))
    return found


def of_hosts(folder: Path) -> None:
    print("\nnetwork namespaces on one bridge, a token-bucket link each, 100 Mbit/s; gloo")
    print((folder / "idle.txt").read_text().rstrip())
    files = {int(p.name.split("hosts")[0]): str(p) for p in sorted(folder.glob("*.jsonl"))}
    model = fit_model([files[n] for n in (2, 3, 4)]).model
    sockets = {int(n): own for n, own in json.loads((folder / "goodput.json").read_text()).items()}
    print(
        "plain sockets on the same links, Mbit/s of payload (95.6 is 1448 of 1514 bytes a frame):"
    )
    for n, (one, ring) in sorted(sockets.items()):
        print(f"  {n} hosts: {one:.1f} one way, {ring:.1f} where each sends to the next at once")
    every, inside = [], []
    for entry in model.entries:
        law = entry.over_ranks
        assert law and law.between
        bandwidth = law.between[1]
        assert bandwidth
        # The root of a broadcast sends, and receives nothing; the others send while they receive.
        way = 0 if entry.collective == "broadcast" else 1
        rate, low, high = (8000 * gbps for gbps in bandwidth)
        goodput = float(numpy.mean([sockets[n][way] for n in (2, 3, 4)]))
        print(
            f"{entry.collective}: {law.law}, remaining {', '.join(law.remaining)}; bandwidth "
            f"{rate:.1f} Mbit/s ({low:.1f} to {high:.1f}), {rate / 100 - 1:+.1%} of the shaped, "
            f"{rate / goodput - 1:+.1%} of what sockets get ({goodput:.1f})"
        )
        for n in (6, 8):
            run = load(files[n])
            errors, held = [], []
            for result in run.results:
                if result.case.collective != entry.collective or result.status != "ok":
                    continue
                calls = numpy.array(result.time_ns["host"]).max(axis=0)
                time, size = float(numpy.median(calls)), result.size_bytes
                found = entry.predict(size, n)
                errors.append(abs(found.time_ns / time - 1))
                held.append(found.low_ns <= time <= found.high_ns)
            print(
                f"  {n} hosts: mean error {100 * numpy.mean(errors):.1f} %, worst "
                f"{100 * max(errors):.1f} %, {sum(held)} of {len(held)} in their 90 % interval"
            )
            every += errors
            inside += held
    print(
        f"  all: mean error {100 * numpy.mean(every):.1f} % of {len(every)}, {sum(inside)} in "
        "their interval",
        flush=True,
    )


def of_series(folder: Path) -> None:
    print("\npublished: NCCL all_reduce on 16 and 32 V100 (2 and 4 nodes), predicted: 64 (8 nodes)")
    lines = {
        n: [f"all_reduce,{n},{8 << i},{us}\n" for i, us in enumerate(text.split())]
        for n, text in SERIES.items()
    }
    (folder / "small.csv").write_text(HEAD + "".join([*lines[16], *lines[32]]))
    (entry,) = fit_model(str(folder / "small.csv")).model.entries
    law = entry.over_ranks
    assert law
    errors, held = [], 0
    for i, us in enumerate(SERIES[64].split()):
        found = entry.predict(8 << i, 64)
        errors.append(abs(found.time_ns / 1e3 / float(us) - 1))
        held += found.low_ns <= 1e3 * float(us) <= found.high_ns
    summary = error_summary(errors)
    print(
        f"{law.law}, remaining {', '.join(law.remaining)}: geomean {100 * summary.geomean:.2f} %, "
        f"mean {100 * summary.mean:.2f} %, worst {100 * summary.worst:.2f} %, {held} of "
        f"{len(errors)} in their interval",
        flush=True,
    )


def of_simulator(folder: Path) -> None:
    print("\nmodel validate --predicted: times made with the errors that the seed states")
    measured, predicted = [HEAD], [HEAD]
    for ranks, geomean in GEOMEANS.items():
        for step, factor in enumerate((0.25, 0.5, 1, 2, 4)):
            size, sign = 1 << (20 + 2 * step), -1 if step % 2 else 1
            us = 20 + ranks + size / 1e5
            measured.append(f"all_reduce,{ranks},{size},{us:.6f}\n")
            error = sign * geomean * factor
            predicted.append(f"all_reduce,{ranks},{size},{us * (1 + error):.6f}\n")
    (folder / "measured.csv").write_text("".join(measured))
    (folder / "sim.csv").write_text("".join(predicted))
    found = validate_predicted(str(folder / "sim.csv"), str(folder / "measured.csv"))
    for one in [*found.scenarios, found.overall]:
        assert one.errors
        print(
            f"  ranks {one.ranks or 'all'}: geomean {100 * one.errors.geomean:.2f} %, mean "
            f"{100 * one.errors.mean:.2f} %, worst {100 * one.errors.worst:.2f} %"
        )
    cube = math.prod(GEOMEANS.values()) ** (1 / 3)
    print(f"  (the geometric mean of the three: {100 * cube:.2f} %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", metavar="NAME=FILE,FILE,...")
    parser.add_argument("--hosts", type=Path)
    parser.add_argument("--one-machine", action="append", default=[], metavar="NAME")
    asked = parser.parse_args()
    sets = {name: files.split(",") for name, _, files in (s.partition("=") for s in asked.sets)}
    sets["h200"] = [str(p) for p in sorted((RESULTS / "h200-8gpu-kernels").glob("*.jsonl"))]
    title("model")
    for name, files in sets.items():
        print(f"{name}: {', '.join(Path(file).name for file in files)}")
    with tempfile.TemporaryDirectory() as folder:
        of_simulator(Path(folder))
        of_series(Path(folder))
    if asked.hosts:
        of_hosts(asked.hosts)
    larger(sets, asked.one_machine)
    left_out(sets)


if __name__ == "__main__":
    main()
