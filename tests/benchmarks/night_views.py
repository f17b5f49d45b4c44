"""Do all views of a night say the same of every node?

For stores of simulated lives, night by night: the table of `nightly`, its exit code, line, JUnit
and drain list; the verdict of `check --baseline STORE` on the runs of the night, its exit code,
JUnit, health events and metrics; and `nightly` beside `check`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
from made_lives import FIRST_NIGHT, KEYS, KINDS, Life, made_life
from made_runs import measured, run

import torchcoll
from torchcoll.cli import main as torchcoll_main
from torchcoll.core.result import Run, Verification
from torchcoll.parts.fleet.address import parse_address
from torchcoll.parts.fleet.records import CaseSummary, RunSummary, summarise_run
from torchcoll.parts.fleet.series import format_night
from torchcoll.parts.fleet.writer import StoreWriter

NODES, NIGHTS, QUIET = 16, 44, 20
_EPOCH = datetime(1970, 1, 1, 22, tzinfo=timezone.utc)
_DRAIN = "drain {node}"


def run_of(life: Life, night: int, node: int, wrong: bool) -> Run:
    panel = life.panel
    facts = panel.environments[panel.environment[night, node]]
    results = [
        measured(
            int(np.exp(float(time))),
            key.ranks,
            collective=key.case.collective,
            size_bytes=key.case.size_bytes,
            op=None if key.case.collective.startswith("all_") else "sum",
            verification=Verification(checked=100, wrong=int(wrong)),
        )
        for key, time in zip(KEYS, panel.log_times[night, node], strict=True)
    ]
    for index, result in enumerate(results):
        if result.case.collective == "all_reduce":
            results[index] = replace(result, case=replace(result.case, op="sum"))
    start = _EPOCH + timedelta(days=FIRST_NIGHT + night, seconds=node)
    return run(
        *results,
        ranks=KEYS[0].ranks,
        hosts=[panel.nodes[node]],
        labels={"rack": facts["label=rack"]},
        environment={"libraries": {"nccl": facts["nccl"]}},
        header={
            "run_id": f"{night:03}-{node:03}",
            "start_utc": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    )


def earlier_runs(life: Life, until: int) -> Iterator[tuple[RunSummary, tuple[CaseSummary, ...]]]:
    """The summaries of all runs before a night, made from one summary for each set of facts."""
    templates: dict[int, tuple[RunSummary, tuple[CaseSummary, ...]]] = {}
    panel = life.panel
    for night in range(until):
        for node in np.flatnonzero(panel.environment[night] >= 0).tolist():
            number = int(panel.environment[night, node])
            if number not in templates:
                templates[number] = summarise_run(run_of(life, night, node, False))
            template, cases = templates[number]
            start = _EPOCH + timedelta(days=FIRST_NIGHT + night, seconds=node)
            name = panel.nodes[node]
            summary = replace(
                template,
                run_id=f"{night:03}-{node:03}",
                node=name,
                hosts=(name,),
                start_us=int(start.timestamp()) * 1_000_000,
            )
            times = np.exp(panel.log_times[night, node].astype(float)).astype(int).tolist()
            yield summary, [replace(c, time_ns=t) for c, t in zip(cases, times, strict=True)]


def printed(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = torchcoll_main(list(arguments))
    return code, out.getvalue()


def failing_tests(path: Path) -> set[str]:
    tree = ElementTree.parse(path)
    return {
        test.get("name", "") for test in tree.iter("testcase") if test.find("failure") is not None
    }


def nightly_views(store: str, folder: Path) -> tuple[dict[str, set[str]], list[str]]:
    """What `nightly` says: node -> results; and the contradictions between its own views."""
    junit = folder / "nightly.xml"
    code, text = printed(
        *("nightly", store, "--night", "last", "--format", "json", "--force"),
        *("--junit", str(junit), "--drain-command", _DRAIN),
    )
    data = json.loads(text)
    rows = data["rows"]
    said: dict[str, set[str]] = {}
    for row in rows:
        for node in row["nodes"] or [row["who"]]:
            said.setdefault(node, set()).add(row["result"])
    problems = []
    if (code == 1) != bool(rows):
        problems.append(f"nightly: exit code {code} with {len(rows)} rows")
    if failing_tests(junit) != {row["who"] for row in rows}:
        problems.append("nightly: JUnit fails for others than the rows")
    line = printed("nightly", store, "--night", "last", "--format", "line")
    word = {0: ": OK: ", 1: ": BAD: ", 2: ": CANNOT TELL: "}[code]
    if line[0] != code or word not in line[1]:
        problems.append(f"nightly: line {line} with exit code {code}")
    if rows and not any(row["who"] in line[1] for row in rows if row["who"] != "fleet"):
        fleet_alone = all(row["who"] == "fleet" for row in rows)
        if not fleet_alone:
            problems.append(f"nightly: the line names no row: {line[1]}")
    drained = {command.partition(" ")[2] for command in data["drain"]["commands"]}
    wrong = {row["who"] for row in rows if row["result"] == "wrong"}
    slow = {row["who"] for row in rows if row["result"] == "slow"} - wrong
    expected = wrong | (slow if len(slow) <= max(2, len(data["nodes"]) // 10) else set())
    if drained != expected:
        problems.append(f"nightly: drains {sorted(drained)}, open are {sorted(expected)}")
    if f"{len(drained)} node" not in data["drain"]["headline"]:
        problems.append(f"nightly: headline {data['drain']['headline']}")
    return said, problems


def check_views(store: str, files: Sequence[str], folder: Path) -> tuple[dict[str, str], list[str]]:
    """What `check --baseline STORE` says: node -> verdict; and the contradictions of its views."""
    junit, health, metrics = (folder / f"check.{end}" for end in ("xml", "health", "prom"))
    code, text = printed(
        *("check", *files, "--baseline", store, "--format", "json", "--force"),
        *("--junit", str(junit), "--health", str(health), "--metrics", str(metrics)),
    )
    nodes = [Path(file).stem for file in files]
    objects = json.loads(text)
    verdicts = [each["verdict"]["word"] for each in objects]
    problems = []
    if (code == 1) != ("FAIL" in verdicts):
        problems.append(f"check: exit code {code} with {Counter(verdicts)}")
    events = [json.loads(line) for line in health.read_text().splitlines()]
    healthy = {"PASS": True, "WARN": True, "FAIL": False}
    for verdict, event in zip(verdicts, events, strict=True):
        if event["verdict"] != verdict or event["healthy"] is not healthy.get(verdict):
            problems.append(f"check: {verdict}, health {event['verdict']} {event['healthy']}")
    suites = ElementTree.parse(junit).iter("testsuite")
    for verdict, suite in zip(verdicts, suites, strict=True):
        (test,) = [each for each in suite.iter("testcase") if each.get("name") == "verdict"]
        if (test.find("failure") is not None) != (verdict == "FAIL"):
            problems.append(f"check: {verdict}, JUnit another")
    pattern = re.compile(
        r'^torchcoll_verdict\{.*?node="([^"]*)".*?verdict="([^"]*)".*\} 1(?:\.0)?$', re.M
    )
    by_metrics = dict(pattern.findall(metrics.read_text()))
    for node, verdict in zip(nodes, verdicts, strict=True):
        if by_metrics.get(node) != verdict:
            problems.append(f"check: {node} {verdict}, metrics {by_metrics.get(node)}")
    return dict(zip(nodes, verdicts, strict=True)), problems


def beside(said: dict[str, set[str]], verdicts: dict[str, str]) -> list[str]:
    """Where `nightly` and `check` say the opposite of a node that ran."""
    problems = []
    for node, verdict in verdicts.items():
        of_node = said.get(node, set()) | said.get("fleet", set())
        if of_node and verdict == "PASS":
            problems.append(f"both: nightly {'+'.join(sorted(of_node))}, check PASS")
        if verdict == "FAIL" and not of_node:
            problems.append("both: nightly nothing, check FAIL")
    return problems


def views(options: argparse.Namespace) -> None:
    totals: Counter[str] = Counter()
    examples: dict[str, str] = {}
    pairs = node_nights = 0
    words: Counter[str] = Counter()
    for seed in range(options.fleets):
        kinds = options.kinds or KINDS
        kind = kinds[seed % len(kinds)]
        random = np.random.default_rng([options.seed, 4, seed])
        noise = options.noise[seed % len(options.noise)]
        life = made_life(
            kind,
            random,
            NODES,
            NIGHTS,
            quiet=QUIET,
            sigmas=options.sigmas,
            noise=noise,
            missing=0.02,
        )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            store = str(folder / "store.sqlite")
            writer = StoreWriter(parse_address(store, new=True))
            writer.write(list(earlier_runs(life, QUIET)))
            wrong_night, wrong_node = (
                int(random.integers(QUIET, NIGHTS)),
                int(random.integers(NODES)),
            )
            for night in range(QUIET, NIGHTS):
                files = []
                for node in np.flatnonzero(life.panel.environment[night] >= 0).tolist():
                    wrong = (night, node) == (wrong_night, wrong_node) and seed % 3 == 0
                    path = folder / str(night) / f"{life.panel.nodes[node]}.jsonl"
                    path.parent.mkdir(exist_ok=True)
                    torchcoll.save(run_of(life, night, node, wrong), path)
                    files.append(str(path))
                printed("collect", *files, "--into", store)
                if (night - QUIET) % 2:
                    printed("nightly", store, "--night", "last")
                    continue
                said, problems = nightly_views(store, folder)
                verdicts, more = check_views(store, files, folder)
                problems += more + beside(said, verdicts)
                pairs += 1
                node_nights += len(files)
                words.update(verdicts.values())
                for problem in problems:
                    group = re.sub(r"node\d+", "NODE", problem)
                    totals[group] += 1
                    where = f"fleet {seed} ({kind}), night {format_night(FIRST_NIGHT + night)}"
                    examples.setdefault(group, where)
    print(
        f"{options.fleets} stores of {NODES} nodes, {pairs} nights, {node_nights} runs of nodes; "
        f"noise {', '.join(options.noise)}; verdicts of check: "
        + ", ".join(f"{word} {count}" for word, count in words.most_common())
    )
    print(f"contradictions: {totals.total()}")
    for group, count in totals.most_common():
        print(f"{count} | {group} | {examples[group]}")
