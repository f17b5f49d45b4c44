"""The two tables are the only places that name collectives and backends (DESIGN, sections 5, 6)."""

import ast
from pathlib import Path

import pytest
from source_files import nodes

import torchcoll
from torchcoll.core.backends import BACKENDS
from torchcoll.core.collectives import COLLECTIVES

PACKAGE = Path(torchcoll.__file__).parent
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
NAMES = {*COLLECTIVES, *BACKENDS}
TABLES = {"core/collectives.py": {*COLLECTIVES}, "core/backends.py": {*BACKENDS}}
STUBS = {
    f"{name}.py": {one.name} for one in COLLECTIVES.values() for name in (one.module, one.name)
}
# Packages whose subject is what others call things.
FOREIGN = {
    "reading": "collectives and backends as other tools have them",
    "libraries": "what a library calls its functions, and its own name",
}
# File: names, and why they stand there. None decides what torchcoll does with a collective or a
# backend of its own table.
EXCEPTIONS = {
    "core/backends.py": (
        {"sendrecv", "hypercube", "reduce_scatter"},
        "what a backend lacks is a fact about the backend",
    ),
    "core/implementations.py": (
        {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v"},
        "the tables of kernels in a backend's place, and of other APIs that call it",
    ),
    "report/header.py": ({"barrier"}, "a label: the cost of the barrier between calls"),
    "parts/curves/model.py": ({"reduce_scatter"}, "derived from all_reduce by the ring's algebra"),
    "questions/check/limit_share.py": ({"all_to_all"}, "its limit is that of the interfaces"),
    "parts/curves/published_law.py": (
        {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"},
        "derived from all_reduce by the ring's algebra",
    ),
    "parts/postmortem/standing.py": (
        {"all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "barrier"},
        "which calls must have equal sizes, and what gloo records under another name",
    ),
    "parts/postmortem/call_evidence.py": (
        {"gloo"},
        "the Flight Recorder's states depend on it",
    ),
    "parts/training/flight_dump.py": (
        {"gloo", "barrier"},
        "the Flight Recorder's states and sizes depend on them",
    ),
    "parts/training/measured_step.py": (
        {"all_gather", "reduce_scatter"},
        "what FSDP2 copies for",
    ),
    "parts/training/decode.py": (
        {
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "broadcast",
            "reduce",
            "gather",
            "scatter",
            "barrier",
        },
        "torch's own operators",
    ),
    "parts/training/sharded_program.py": (
        {"all_gather", "reduce_scatter", "all_reduce"},
        "what FSDP2 calls",
    ),
    "parts/training/layouts.py": (
        {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "sendrecv"},
        "what tensor, context and expert parallel layers call",
    ),
    "parts/training/config_plan.py": (
        {"all_gather", "reduce_scatter", "all_reduce", "sendrecv"},
        "what optimisers and pipelines call",
    ),
    "parts/training/captured_plan.py": (
        {"all_gather", "reduce_scatter"},
        "what FSDP2 calls",
    ),
    "parts/training/projection.py": ({"sendrecv", "all_gather"}, "what stands for a message"),
    "parts/training/inspector.py": (
        {"all_gather", "reduce_scatter", "nccl"},
        "as others name them",
    ),
    "parts/training/kineto.py": (
        {"barrier", "scatter", "gather", "broadcast", "reduce", "reduce_scatter"}
        | {"all_reduce", "all_gather", "all_to_all", "all_to_all_v"},
        "as a profiler names them",
    ),
}


def named(source):
    """The names of collectives and backends that are whole texts in the source."""
    return {n.value for n in nodes(source) if isinstance(n, ast.Constant) and n.value in NAMES}


def allowed(path):
    place = path.as_posix()
    names, _ = EXCEPTIONS.get(place, (set(), ""))
    return names | TABLES.get(place, set()) | STUBS.get(place, set())


def test_only_the_tables_name_them():
    """A property of the entry says what its name would: has_splits, communicates, only_device."""
    by_file = {
        path: named((PACKAGE / path).read_text()) - allowed(path)
        for path in FILES
        if path.parts[0] not in FOREIGN
    }
    assert {str(path): names for path, names in by_file.items() if names} == {}


@pytest.mark.parametrize("place", EXCEPTIONS)
def test_every_exception_is_one(place):
    names, reason = EXCEPTIONS[place]
    assert names <= named((PACKAGE / place).read_text())
    assert reason


def test_the_check_itself():
    text = 'if row.backend == "fake" or row.collective in ("all_to_all_v", "barriers"): pass'
    assert named(text) == {"fake", "all_to_all_v"}
    assert named('"""About all_reduce on gloo."""\nhelp = "gloo, nccl"') == set()
