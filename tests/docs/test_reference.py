"""docs/reference/: what is generated is current, and the schema is that of the files."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ranks import Measured

from torchcoll import cli
from torchcoll.core.case import Case
from torchcoll.core.errors import ExitCode
from torchcoll.core.file import SCHEMA as CURRENT
from torchcoll.core.parts import functions_of
from torchcoll.core.result import CaseResult, Choice, ConcurrentBlocks, Reported, Verification
from torchcoll.core.soak_windows import SoakCase, SoakWindow
from torchcoll.core.spec import Spec

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
SCHEMA = json.loads((ROOT / "torchcoll/core/torchcoll-2.schema.json").read_text())
KEPT = [path for path in (*ROOT.glob("results/*/*.jsonl"), *ROOT.glob("examples/*/*.jsonl"))]
RECORDS = [each["$ref"].rsplit("/", 1)[1] for each in SCHEMA["oneOf"]]


def test_generated_pages_are_current():
    """Else: python docs/generate.py"""
    generate = runpy.run_path(str(ROOT / "docs/generate.py"))
    assert (ROOT / "docs/nightly.md").read_text() == generate["nightly"]()
    for name, text in generate["pages"]().items():
        assert (REFERENCE / name).read_text() == text, f"{name}: python docs/generate.py"
    # What the page of the file links to is read by programs.
    assert json.loads((REFERENCE / "torchcoll-2.schema.json").read_text()) == SCHEMA


def test_every_exit_code_has_its_line():
    page = (REFERENCE / "exit-codes.md").read_text()
    for code in ExitCode:
        assert f"| {code.value} | {code.name} |" in page


def loaded():
    return {name: cli.load_command(name, entry) for name, entry in cli.commands().items()}


def commands_that_can_fail() -> set[str]:
    """Those whose function, or another one of a command.py that it refers to, has ExitCode.FAILED
    or becomes torchrun; or that of a part which extends the command.
    """
    functions: dict[str, list[ast.AST]] = {}
    for path in (ROOT / "torchcoll").rglob("*command.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                functions.setdefault(node.name, []).append(node)

    def fails(name: str, seen: set[str]) -> bool:
        seen.add(name)
        nodes = [node for function in functions[name] for node in ast.walk(function)]
        if {"FAILED", "execv"} & {n.attr for n in nodes if isinstance(n, ast.Attribute)}:
            return True
        names = {n.id for n in nodes if isinstance(n, ast.Name)} & functions.keys() - seen
        return any(fails(name, seen) for name in names)

    return {
        name
        for name, command in loaded().items()
        if any(fails(one.__name__, set()) for one in (command.run, *functions_of("extends", name)))
    }


def test_exit_code_1_is_documented_for_each_command_that_can_fail():
    assert commands_that_can_fail() == {n for n, c in loaded().items() if c.exit_1}
    page = (REFERENCE / "exit-codes.md").read_text()
    for name, command in loaded().items():
        assert f"| `{name}` | {command.exit_1 or '-'} |" in page


def of(record: str) -> jsonschema.Draft202012Validator:
    """For one record: what is wrong is then named, and not 'none of eight'."""
    whole = {k: v for k, v in SCHEMA.items() if k != "oneOf"}
    return jsonschema.Draft202012Validator({**whole, "$ref": f"#/$defs/{record}"})


WHOLE = jsonschema.Draft202012Validator(SCHEMA)
OF = {record: of(record) for record in RECORDS}
INSIDE = {name: name for name in ("spec", "verification", "reported", "concurrent")}


def unknown(data: dict[str, Any], name: str) -> set[str]:
    """Fields that the schema does not tell, in what it has a table of; not those without a value,
    which earlier versions wrote.
    """
    fields = SCHEMA["$defs"][name]["properties"]
    found = {f"{name}.{key}" for key in data if key not in fields and data[key] is not None}
    for key, value in data.items():
        inside = "case_key" if key == "case" else INSIDE.get(key)
        if inside and isinstance(value, dict):
            found |= unknown(value, inside)
    return found


def shortened(value: Any) -> Any:
    """The same with three of many samples: jsonschema takes 3 us for each."""
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shortened(each) for each in (value if len(value) < 10 else value[:2] + value[-1:])]
    return value


def offences(path: Path) -> list[str]:
    """What of the file is not as the schema says, and what it does not say."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        data = shortened(json.loads(line))
        problems = [error.message for error in OF[data["record"]].iter_errors(data)]
        problems += unknown(data, data["record"])
        found += [f"{path.name}:{number}: {problem[:200]}" for problem in problems]
    return found


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["title"] == CURRENT
    assert len(KEPT) >= 10


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_of_the_repository_are_as_the_schema_says(path):
    assert offences(path) == []


def test_files_that_are_written_are_as_the_schema_says(tmp_path):
    several = "--collectives all_reduce,all_to_all_v,reduce,barrier --sizes 64 -n 5 --label a=b"
    suite = Measured(tmp_path / "suite", None, several).ended(0)
    again = Measured(
        tmp_path / "fresh", "all_reduce", "--sizes 64 --fresh-group -n 2 --concurrent copy:4K"
    )
    again.ended(0)
    pairs = Measured(tmp_path / "pairs", "pairs", "--sizes 4K -n 2 --threshold 0.9999").ended(0)
    soak = Measured(tmp_path / "soak", "all_reduce", "--sizes 64 -n 2 --soak 0.5s").ended(0)
    assert '"record":"soak"' in soak.path.read_text()
    for one in (suite, again, pairs, soak):
        assert offences(one.path) == []
    records = {json.loads(line)["record"] for line in suite.path.read_text().splitlines()}
    assert records >= {*RECORDS} - {"event", "soak"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("case", CaseResult),
        ("case_key", Case),
        ("spec", Spec),
        ("verification", Verification),
        ("reported", Reported),
        ("choice", Choice),
        ("concurrent", ConcurrentBlocks),
        ("soak", SoakWindow),
        ("soak_case", SoakCase),
    ],
)
def test_the_schema_has_the_fields_of_the_code(name, kind):
    stated = set(SCHEMA["$defs"][name]["properties"]) - {"record", "line", "crc"}
    assert stated == {field.name for field in dataclasses.fields(kind)}


def changed(record: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    found = copy.deepcopy(record)
    *way, last = path.split(".")
    place = found
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return found


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("header", "schema", "torchcoll/1"),
        ("header", "schema", "torchcoll/3"),
        ("header", "run_id", None),
        ("header", "crc", "XYZ"),
        ("phase", "ns", [-1]),
        ("phase", "ns", [1.5]),
        ("case", "status", "fine"),
        ("case", "time_ns.host", [[1, 2], [3, -4]]),
        ("case", "time_ns.host", [1, 2]),
        ("case", "case.size_bytes", "1K"),
        ("case", "case.mode", None),
        ("case", "cold_ns", [["1"]]),
        ("end", "status", "done"),
        ("end", "record", "ende"),
    ],
)
def test_what_is_no_record_is_refused(name, path, value):
    lines = (ROOT / "results/gloo-oneccl-2ranks/run-1.jsonl").read_text().splitlines()
    record = next(r for r in map(json.loads, lines) if r["record"] == name)
    assert WHOLE.is_valid(record)
    assert not WHOLE.is_valid(changed(record, path, value))
