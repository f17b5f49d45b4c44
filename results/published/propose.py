#!/usr/bin/env python3
"""Checks a proposed entry of the published set: python results/published/propose.py FOLDER

The folder has one result file (of torchcoll, or of a tool that torchcoll reads) and an about.md
with a line `- **KEY**: VALUE` for each key that the result does not tell. Prints what is missing
or impossible and ends with exit code 1, or prints the lines for machines.csv and figures.csv.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from torchcoll.core.errors import TorchcollError
from torchcoll.core.plausibility import IMPLAUSIBLE, summarise_run
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.summary import Row
from torchcoll.reading.inputs import load_all

HERE = Path(__file__).parent
LINE = re.compile(r"- \*\*([\w ]+)\*\*: *(.+)")
# What a line of machines.csv needs, and an example for whoever has to write it.
NEEDED = {
    "id": "site-h100-2hosts",
    "machine": "AWS p5.48xlarge",
    "gpu": "H100",
    "hosts": "2",
    "ranks": "16",
    "network": "EFA, 3200 Gbit/s a host",
    "library": "nccl, rccl or oneccl",
    "versions": "NCCL 2.27.5, CUDA 12.8, or unknown",
    "tool": "nccl-tests 2.17.6",
    "date": "2026-11-27, or unknown",
    "who": "who published it",
    "source": "https://github.com/OWNER/REPOSITORY/blob/COMMIT/FILE",
}
OPTIONAL = ("type", "linked", "host_gbit", "note")


def facts_of(run: Run, about: str) -> dict[str, str]:
    """What about.md states, and otherwise what the result tells."""
    names = {str(member["device_name"]) for member in run.members if member.get("device_name")}
    facts = {
        "gpu": run.labels.get("gpu", "") or (names.pop() if len(names) == 1 else ""),
        "hosts": str(hosts_of(run) or ""),
        "ranks": str(run.ranks or ""),
        "tool": str(run.source.get("tool", "")) if run.source else "torchcoll",
        "date": str(run.header.get("start_utc", ""))[:10],
    }
    stated = (LINE.match(line) for line in about.splitlines())
    facts |= {match[1].lower(): match[2].strip() for match in stated if match}
    return {key: value for key, value in facts.items() if value}


def problems_of(facts: dict[str, str], rows: list[Row], ids: set[str]) -> list[str]:
    """What is missing or wrong, a line each."""
    problems = [
        f"missing: {key}. Add a line to about.md: - **{key}**: {example}"
        for key, example in NEEDED.items()
        if key not in facts
    ]
    if facts.get("id") in ids:
        problems.append(f"id: {facts['id']} exists already in machines.csv")
    if not re.fullmatch(r"https://\S+", facts.get("source", "https://x")):
        problems.append(f"source: {facts['source']}, expected an https address")
    if not re.fullmatch(r"20\d\d-\d\d(-\d\d)?|unknown", facts.get("date", "unknown")):
        problems.append(f"date: {facts['date']}, expected YYYY-MM-DD, YYYY-MM or unknown")
    for row in rows:
        if row.status == IMPLAUSIBLE:
            problems.append(f"implausible: {row.collective} {row.size_bytes} bytes: {row.reason}")
    if not any(row.status == "ok" and row.busbw_gbps for row in rows):
        problems.append(
            "missing: a case with a bandwidth. One rank, or cases that failed, have none"
        )
    return problems


def main() -> int:
    if len(sys.argv) != 2 or not (folder := Path(sys.argv[1])).is_dir():
        print("usage: python results/published/propose.py FOLDER", file=sys.stderr)
        return 2
    about = folder / "about.md"
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path != about]
    if len(files) != 1:
        print(f"missing: one result file next to about.md; {folder} has {len(files)}")
        return 1
    try:
        (run,) = load_all([str(files[0])])
    except (TorchcollError, ValueError) as error:
        print(f"result file: {error}")
        return 1
    facts = facts_of(run, about.read_text(encoding="utf-8") if about.exists() else "")
    # Plausibility needs the GPUs and hosts, which about.md may state.
    labels = {key: facts[key] for key in ("gpu", "hosts") if key in facts}
    if "host_gbit" in facts and run.ranks:
        per_host = run.ranks / int(facts.get("hosts", 1))
        labels["link_gbps"] = f"{float(facts['host_gbit']) / 8 / per_host:g}"
    spec = run.header.get("spec") or {}
    run.header["spec"] = {**spec, "labels": {**run.labels, **labels}}
    rows = summarise_run(run)
    with open(HERE / "machines.csv", newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        ids, columns = {line["id"] for line in reader}, list(reader.fieldnames or ())
    if problems := problems_of(facts, rows, ids):
        print("\n".join(problems))
        return 1
    facts = {"type": facts["id"], **facts}
    writer = csv.writer(sys.stdout, lineterminator="\n")
    print("machines.csv:")
    writer.writerow([facts.get(column, "") for column in columns])
    print("figures.csv:")
    for row in rows:
        if row.status != "ok" or not row.busbw_gbps:
            continue
        busbw, algbw = (f"{value:.4g}" for value in (row.busbw_gbps, row.algbw_gbps or 0.0))
        placed = ("", busbw, "") if row.in_place else (busbw, "", algbw)
        writer.writerow(
            [facts["id"], row.collective, row.size_bytes, row.dtype or "unknown", *placed, ""]
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
