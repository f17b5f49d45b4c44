#!/usr/bin/env python3
"""Makes questions/check/published.toml of the tables here: python results/published/make.py

machines.csv has a line for each run that somebody published, with its source; figures.csv the
figures of each. What has a reason in left_out stays here and is in no file of the package.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.units import format_size

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "torchcoll" / "questions/check/published.toml"
TEXTS = (
    "id",
    "type",
    "machine",
    "gpu",
    "network",
    "library",
    "versions",
    "tool",
    "date",
    "who",
    "source",
    "note",
)
HEAD = "# Made by results/published/make.py: change the tables there.\n"


def table(name: str) -> list[dict[str, str]]:
    with open(HERE / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def figure(line: dict[str, str], ranks: int) -> str:
    """One line: busbw by placement; of a time alone that of the buffer as it is (in place)."""
    size = int(line["size_bytes"])
    out, within = line["out_of_place_gbps"], line["in_place_gbps"]
    if not out and not within:
        factor = COLLECTIVES[line["collective"]].bus_factor(ranks)
        within = f"{size / float(line['time_us']) / 1000 * factor:.4g}"
    parts = [f"collective = {json.dumps(line['collective'])}"]
    parts += [f"size = {json.dumps(format_size(size) if size % 1024 == 0 else str(size))}"]
    places = {"out_of_place": out, "in_place": within}
    parts += [f"{name} = {float(text)}" for name, text in places.items() if text]
    return f"  {{ {', '.join(parts)} }},\n"


def text() -> str:
    figures = table("figures.csv")
    parts = [HEAD]
    for machine in table("machines.csv"):
        if machine["left_out"]:
            continue
        parts.append("\n[[run]]\n")
        parts += [f"{key} = {json.dumps(machine[key], ensure_ascii=False)}\n" for key in TEXTS]
        parts += [f"{key} = {int(machine[key])}\n" for key in ("hosts", "ranks")]
        linked = machine["linked"] or int(machine["ranks"]) // int(machine["hosts"])
        parts += [f"linked = {linked}\n"]
        parts += [f"host_gbit = {machine['host_gbit']}\n"] if machine["host_gbit"] else []
        own = [line for line in figures if line["machine"] == machine["id"]]
        parts += ["figures = [\n", *(figure(line, int(machine["ranks"])) for line in own), "]\n"]
    return "".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else OUT).write_text(text(), encoding="utf-8")
