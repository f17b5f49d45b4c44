"""What commands print about the data in results/, for a comparison before and after a change.

    python tests/benchmarks/outputs.py FOLDER          writes a file for each command
    python tests/benchmarks/outputs.py BEFORE AFTER    lists the outputs that differ

Each file holds the command, what it printed on stdout and stderr, and its exit code. Pictures,
pages and exports go through a temporary folder; a file made there is part of the output.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

GLOO = "results/gloo-oneccl-2ranks"
FIRST = f"{GLOO}/run-1.jsonl"
A100 = "results/a100-8gpu-baseline/curve.jsonl"
H200 = "results/h200-8gpu-kernels"
MOVES = "results/nccl-transitions/a100-8gpu.jsonl"
COLD = "results/oneccl-cold-scaling"
SIMULATED = "results/simulator-hgx-h100/analytical.csv"
RUNS = [FIRST, A100, f"{H200}/generic.jsonl", MOVES, f"{COLD}/synthetic-12ranks.txt", SIMULATED]
FORMATS = ["table", "markdown", "csv", "json"]


def commands() -> list[str]:
    """Every command line, about 200 of them."""
    lines = []
    for run in RUNS:
        lines += [f"show {run}"]
        lines += [f"show {run} --format {style}" for style in FORMATS[1:]]
        lines += [
            f"show {run} {option}"
            for option in (
                "--verbose",
                "--all",
                "--view",
                "ranks",
                "--view pivot:size",
                "--over-ranks mean",
                "--percentiles 50,90",
                "--columns collective,size,median,busbw",
            )
        ]
        lines += [f"cold {run}", f"cold {run} --format json", f"transitions {run}"]
        lines += [f"transitions {run} --format json", f"scaling {run}", f"explain {run}"]
        lines += [f"explain all_reduce 1M {run}", f"explain busbw {run}", f"explain verdict {run}"]
        lines += [f"export {run} --format csv", f"export {run} --format nccl-tests"]
        lines += [f"report {run} -o page.md", f"model fit {run} -o machine.json", f"trace {run}"]
        lines += [f"log {run}", f"limits {run}", f"algorithms {run}", f"pairs {run}"]
    for fabric in ("nvswitch-h200", "nvswitch-a100", "ib-ndr:8", "nonsense"):
        lines += [f"check {H200}/generic.jsonl --fabric {fabric}"]
        lines += [f"check {A100} --fabric {fabric} --gate"]
    gloo, ccl = f"backend:gloo={GLOO}", f"backend:ccl={GLOO}"
    kernels = f"generic={H200}/generic.jsonl nvidia={H200}/nvidia.jsonl"
    for style in FORMATS:
        lines += [f"compare {gloo} {ccl} --format {style}", f"compare {kernels} --format {style}"]
        lines += [f"cold {GLOO} --format {style}", f"scaling {COLD} --format {style}"]
    lines += [
        f"compare {gloo} {ccl} --all",
        f"compare {gloo} {ccl} --metric first",
        f"compare {gloo} {ccl} --fail-on slower:5%",
        f"compare {ccl} {gloo} --fail-on slower:5%",
        f"compare {gloo} {ccl} --fit",
        f"compare {gloo} {ccl} --by size",
        f"compare {gloo} {ccl} --only inconclusive",
        f"compare {gloo} {ccl} --filter all_reduce",
        f"compare {kernels} --all",
        f"compare {kernels} --fit",
        f"compare {A100} {H200}/generic.jsonl",
        f"compare {GLOO} {A100}",
        f"compare {FIRST} {GLOO}/run-2.jsonl",
        f"show {GLOO}",
        f"show {GLOO} --format json",
        f"show {GLOO} --baseline {FIRST}",
        f"show {COLD}",
        f"show {H200}",
        f"scaling {COLD} --sizes 1K,1M",
        f"scaling {COLD} --link-gbps 25",
        f"transitions {GLOO}",
        f"transitions {MOVES} --refine",
        f"report {GLOO} -o page.md",
        f"report {gloo} {ccl} -o page.md",
        f"report {kernels} -o page.md",
        f"report {GLOO} -o page.html",
        f"model fit {A100} results/a100-8gpu-baseline/curve-3gpu.jsonl -o machine.json",
        f"model validate {A100} results/a100-8gpu-baseline/curve-3gpu.jsonl",
        f"model validate {H200}/generic.jsonl",
        f"import {SIMULATED} -o out.jsonl",
        "show --published",
        "show --published --format json",
        "show --published --collective all_reduce --ranks 8",
        "gradients --parameters 8e9",
        "plan --machine nowhere.json --config llama-3-8b --parallel dp=8",
        "show nowhere.jsonl",
        "show results/README.md",
        "compare only-one",
        "doctor --nonsense",
    ]
    return lines


def settle(text: str, folder: str) -> str:
    """``text`` without what differs between two runs of the same code."""
    text = text.replace(folder, "TEMPORARY").replace(str(ROOT), "ROOT")
    return re.sub(r"took \d+(\.\d+)? m?s", "took TIME", text)


def output(line: str) -> str:
    """What ``line`` prints and writes, with its exit code."""
    from torchcoll import cli

    stdout, stderr = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        os.symlink(ROOT / "results", f"{folder}/results")
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                try:
                    code: object = cli.main(shlex.split(line))
                except SystemExit as error:
                    code = error.code
                except BaseException:
                    code = traceback.format_exc()
        finally:
            os.chdir(here)
        written = [
            f"--- {path.name}\n{path.read_text(errors='replace')}"
            for path in sorted(Path(folder).iterdir())
            if path.is_file()
        ]
    parts = [f"$ {line}", stdout.getvalue(), "--- stderr", stderr.getvalue(), f"exit {code}"]
    return settle("\n".join([*parts, *written]), folder)


def compare(before: Path, after: Path) -> None:
    """Print each output that differs, with its first changed line and the number of them."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.txt")})
    differing = 0
    for name in names:
        old, new = (
            (folder / name).read_text().splitlines() if (folder / name).exists() else []
            for folder in (before, after)
        )
        if old == new:
            continue
        differing += 1
        changes = [
            line
            for line in difflib.unified_diff(old, new, lineterm="", n=0)
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        print(f"{(new or old)[0]}  ({len(changes)} lines)")
        for line in changes[:2]:
            print(f"    {line[:150]}")
    print(f"{differing} of {len(names)} outputs differ")


def main() -> None:
    if len(sys.argv) == 3:
        compare(Path(sys.argv[1]), Path(sys.argv[2]))
        return
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["COLUMNS"] = "100"
    for number, line in enumerate(commands()):
        name = re.sub(r"[^A-Za-z0-9]+", "-", line)[:100].strip("-")
        (folder / f"{name}-{number:03}.txt").write_text(output(line))
    print(f"{number + 1} commands -> {folder}")


if __name__ == "__main__":
    main()
