"""The commands of ``torchcoll`` by what they are for, with examples: what ``--help`` prints."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Generator

# Group -> command -> examples. A command that another package adds is listed below the groups.
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "measure": {
        "run": (
            "torchcoll run -n 8 allreduce --sizes 1K,1M,1G",
            "torchcoll run -n 2 suite --backend gloo -J run.jsonl",
        ),
        "doctor": (
            "torchcoll doctor",
            "torchcoll doctor --prove",
            "torchcoll doctor --prove clock,verification --backend nccl -o proof/",
        ),
    },
    "read": {
        "show": (
            "torchcoll show run.jsonl",
            "torchcoll show nccl-tests.log",
            "torchcoll show run.jsonl --view ranks",
            "torchcoll show run.jsonl --explain all_gather 1M",
            "torchcoll show run.jsonl --columns size_bytes,median_ns,busbw_gbps --format csv",
        ),
        "check": (
            "torchcoll check run.jsonl --fabric nvswitch-h200 --gate",
            "torchcoll check tonight.jsonl --baseline accepted.jsonl --gate --junit check.xml",
            "torchcoll check tonight.jsonl --baseline baseline.toml",
            "torchcoll check tonight.jsonl --baseline accepted.jsonl --metrics torchcoll.prom",
        ),
        "log": ("torchcoll log nccl.log", "torchcoll log topo.xml graph.xml"),
        "convert": (
            "torchcoll convert nccl-tests.log -o run.jsonl",
            "torchcoll convert table.md --from plain --map size=Size,algbw=Algbw --ranks 8 "
            "-o run.jsonl",
            "torchcoll convert run.jsonl -o rows.csv",
            "torchcoll convert torchcoll.sqlite -o runs.parquet",
        ),
        "plot": ("torchcoll plot run.jsonl -o curve.png",),
        "report": (
            "torchcoll report runs/ -o report.html",
            "torchcoll report before=a/ after=b/ -o report.md",
        ),
    },
    "compare": {
        "compare": (
            "torchcoll compare before/ after/",
            "torchcoll compare backend:nccl=runs/ backend:gloo=runs/",
            "torchcoll compare before/ after/ --fail-on slower:5%",
        ),
        "versus": (
            "torchcoll versus --env NCCL_ALGO=Ring,Tree -o algo -- torchrun --nproc-per-node 8 "
            "-m torchcoll.allreduce --sizes 1M,64M",
            "torchcoll versus --resume algo",
        ),
        "bisect": (
            "torchcoll bisect --axis venv=v1,v2,v3,v4 -o search -- torchrun --nproc-per-node 8 "
            "-m torchcoll.allreduce -b 1M -e 1G",
            "torchcoll bisect --axis v=2.11.0,2.12.0,2.13.0 -o search -- venvs/{v}/bin/torchrun "
            "--nproc-per-node 8 -m torchcoll.allreduce",
        ),
        "again": (
            "torchcoll again run.jsonl",
            "torchcoll again run.jsonl --dry-run",
            "torchcoll again run.jsonl --launcher 'srun --nodes 2 --ntasks-per-node 8 python -m'",
        ),
        "algorithms": (
            "torchcoll algorithms matrix/",
            "torchcoll algorithms matrix/ --export-tuner tuner.csv",
        ),
    },
    "explain times": {
        "cold": ("torchcoll cold runs/",),
        "curve": ("torchcoll curve run.jsonl", "torchcoll curve runs/ --refine"),
        "scaling": ("torchcoll scaling runs/", "torchcoll scaling runs/ --plot scaling.png"),
        "pairs": ("torchcoll pairs pairs.jsonl",),
        "model": (
            "torchcoll model fit runs/ -o machine.json",
            "torchcoll model predict machine.json --sizes 1M,1G --ranks 64",
            "torchcoll model validate runs/",
        ),
    },
    "jobs that failed": {
        "postmortem": (
            "torchcoll postmortem job-4711/",
            "torchcoll postmortem job-4711/ --format json",
        ),
    },
    "many runs": {
        "matrix": (
            "torchcoll matrix --env NCCL_ALGO=,Ring,Tree --runs 6 -o matrix -- torchrun "
            "--nproc-per-node 8 -m torchcoll.allreduce",
            "torchcoll matrix --preset scaling --up-to 8 --dry-run -o m -- torchrun "
            "--nproc-per-node {ranks} -m torchcoll.allreduce",
        ),
        "fleet": (
            "torchcoll fleet nightly/",
            "torchcoll fleet nightly/ --expected-nodes nodes.txt --junit fleet.xml",
        ),
        "history": (
            "torchcoll history nightly/",
            "torchcoll history nightly/ --accept 2026-11-01",
        ),
        "baseline": (
            "torchcoll baseline nightly/ -o baseline.toml",
            "torchcoll baseline nightly/ -o baseline.toml --accept 2026-11-01 --force",
        ),
        "collect": (
            "torchcoll collect runs/",
            "torchcoll collect --into torchcoll.sqlite --prune 400d --spare baseline.toml",
            "torchcoll collect 'spool/*/*.jsonl' --into postgresql://torchcoll@db/torchcoll",
        ),
    },
    "training": {
        "trace": ("torchcoll trace traffic/", "torchcoll trace profile.json --step typical"),
        "gradients": (
            "torchcoll gradients torchvision.models:resnet50",
            "torchcoll gradients traffic/ --machine 8xH100",
        ),
        "plan": (
            "torchcoll plan --config llama-3-8b --parallel fsdp=64 --machine 8xH100",
            "torchcoll plan --machine machine.json --traffic traffic/ --ranks 8..512",
        ),
        "replay": ("torchrun --nproc-per-node 8 -m torchcoll replay traffic/",),
    },
}
# Command -> when its exit code is 1. The other commands exit with 1 only if the disk or the reader
# of stdout refuses what they write.
FAILURES: dict[str, str] = {
    "run": "a case failed or was wrong, no case ran, or a rank ended with any other code",
    "doctor": "with --prove: a part failed",
    "check": "with --gate: a verdict is FAIL; with good runs as --baseline: a run is slower",
    "compare": "with --fail-on: a case has this result, or is wrong, failed or missing in NEW",
    "versus": "a run failed twice in a row, a result was wrong or failed, or too few runs to judge",
    "bisect": "there is no single version, or it is not decided",
    "again": "not reproduced, cannot tell, or cannot be compared",
    "algorithms": "with --check: a run failed, a case is slower or wrong, or another algorithm ran",
    "pairs": "a rank, host or link is suspect, or a pair has no time",
    "model": "validate --predicted: the file lacks cases that were measured",
    "matrix": "a run failed, or took longer than --cell-timeout",
    "fleet": "a node failed, is slow or missing, or a group of nodes is slow",
    "history": "the times became longer and have not recovered",
    "replay": "the file that is being written was removed",
}
_EXAMPLES = "examples:"


class Formatter(argparse.HelpFormatter):
    """argparse's HelpFormatter, except that it does not wrap examples or groups of commands.

    The commands are listed only in their groups, not in argparse's own list.
    """

    def _iter_indented_subactions(
        self, action: argparse.Action
    ) -> Generator[argparse.Action, None, None]:
        if self._prog == "torchcoll" and isinstance(action, argparse._SubParsersAction):
            return
        yield from super()._iter_indented_subactions(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith((_EXAMPLES, *GROUPS)):
            return text
        return super()._fill_text(text, width, indent)


def examples_text(command: str) -> str | None:
    """The epilog of ``torchcoll COMMAND --help``; None for a command without examples."""
    for commands in GROUPS.values():
        if command in commands:
            lines = [_EXAMPLES, *(f"  {line}" for line in commands[command])]
            if when := FAILURES.get(command):
                lines += ["", *textwrap.wrap(f"exit code 1: {when}", 78, subsequent_indent="  ")]
            return "\n".join(lines)
    return None


def groups_text(helps: dict[str, str]) -> str:
    """List all commands with their help by group. helps: command -> its line of help."""
    groups = {group: [*commands] for group, commands in GROUPS.items()}
    grouped = {name for names in groups.values() for name in names}
    groups["other"] = sorted(set(helps) - grouped)
    lines: list[str] = []
    for group, names in groups.items():
        available = [name for name in names if name in helps]
        if available:
            lines += ["", f"{group}:"] if lines else [f"{group}:"]
            lines += [f"  {name:12} {helps[name]}" for name in available]
    return "\n".join(lines)
