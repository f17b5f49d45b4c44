"""What an attack found was mended: does a test fail where the mend is taken out again?

    python tests/benchmarks/regressions.py [POINT ...]

In a copy of the repository, one mend at a time: its text is replaced, the tests that are named run,
and the first that fails is told. Where the text is not there any more the table has to follow it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mend:
    """edits: texts of the file, each there once, and what stands there without the mend. tests:
    below tests/.
    """

    point: str
    what: str
    file: str
    edits: dict[str, str]
    tests: str


REFUSED = "bench/test_nothing_lost.py"
SUMS = "core/test_checksums.py"
LEAVING = "bench/test_leaving.py"
FAULTS = "bench/test_bench_faults.py"
PLACES = "bench/test_culprit.py bench/test_whereabouts.py"
SECRETS = "core/test_secrets.py"
HOSTILE = "test_hostile.py"
ODD = "found = _not_waiting(words, names) or _out_of_step(words, names) or _owing(words, names)"
MENDS = (
    Mend(
        "1",
        "a run without one measured case is no success",
        "core/result.py",
        {'if not bad and not any(result.status == "ok" for result in results):': "if False:"},
        REFUSED,
    ),
    Mend(
        "1",
        "a refusal and an end of patience are told apart: the same outcome for each --timeout",
        "bench/measure.py",
        {"limit_s = min(REFUSAL_S, local.control.timeout_s / 2)": "limit_s = None"},
        REFUSED,
    ),
    Mend(
        "2",
        "a line that does not match its check sum is left out",
        "core/checksums.py",
        {"if not any(zlib.crc32(body, crc) == recorded for crc in self._crcs):": "if False:"},
        SUMS,
    ),
    Mend(
        "2",
        "lines that are lost, doubled or swapped are named",
        "core/checksums.py",
        {"return self._place(number)": 'return ""'},
        SUMS,
    ),
    Mend(
        "2",
        "two files in one are refused, with the line to split at",
        "core/jsonl.py",
        {
            'if data["record"] == "header":': "if False:",
            "if starts_another_file(line):": "if False:",
        },
        SUMS,
    ),
    Mend(
        "2",
        "end tells how many cases there were",
        "core/file.py",
        {'run.lost = max(0, (run.end or {}).get("cases", 0) - len(run.results))': ("run.lost = 0")},
        SUMS,
    ),
    Mend(
        "3",
        "a file that is taken away is written again, and is no success",
        "bench/output.py",
        {"if self._nowhere or not (self._writer and self.path) or self._writer.there():": "if 1:"},
        REFUSED,
    ),
    Mend(
        "3",
        "a --resume of a file with a wrong case exits with 1",
        "bench/output.py",
        {"[*self._earlier, *self.run.results]": "self.run.results"},
        REFUSED,
    ),
    Mend(
        "4",
        "a manifest that is not ours stays",
        "matrix/folder.py",
        {"if number == 0 and not ours:": "if False:"},
        "matrix/test_run.py",
    ),
    Mend(
        "5",
        "the thread that asks the store is joined",
        "bench/watchdog.py",
        {"self._thread.join(GRACE_S)": "pass"},
        LEAVING,
    ),
    Mend(
        "5",
        "after the end nothing else is told: no words",
        "bench/watchdog.py",
        {
            "            if self.over is None:\n                self._final_report(": (
                "            if True:\n                self._final_report("
            )
        },
        LEAVING,
    ),
    Mend(
        "5",
        "after the end nothing else is told: the exit code is that of end",
        "bench/watchdog.py",
        {"code = int(code) if self.over is None else self.over": "code = int(code)"},
        LEAVING,
    ),
    Mend(
        "6",
        "who sleeps or spins in code of its own is named",
        "bench/culprit.py",
        {ODD: ODD.replace("_not_waiting(words, names) or ", "")},
        f"{PLACES} {FAULTS}",
    ),
    Mend(
        "6",
        "who left a call out is named, not who waits for it",
        "bench/culprit.py",
        {ODD: ODD.replace("_out_of_step(words, names) or ", "")},
        f"{PLACES} {FAULTS}",
    ),
    Mend(
        "6",
        "who hangs in the control exchange is named",
        "bench/culprit.py",
        {ODD: ODD.replace(" or _owing(words, names)", "")},
        f"{PLACES} {FAULTS}",
    ),
    Mend(
        "6",
        "who is in another call is named",
        "bench/culprit.py",
        {"found = found or _other_call(words, names)\n": "pass\n"},
        f"{PLACES} {FAULTS}",
    ),
    Mend(
        "6",
        "who sleeps or spins inside of the collective is named",
        "bench/culprit.py",
        {"return found or _unlike(words, names) or _behind": "return found or _behind"},
        f"{PLACES} {FAULTS}",
    ),
    Mend(
        "6",
        "the state of this rank's threads is looked at while it waits",
        "bench/watchdog.py",
        {"            self._where.look()\n": ""},
        f"{PLACES} {FAULTS}",
    ),
    Mend(
        "6",
        "a rank that can have no thread tells the others",
        "bench/session.py",
        {
            "            if participants > 1:\n                alarm(": (
                "            if False:\n                alarm("
            )
        },
        FAULTS,
    ),
    Mend(
        "7",
        "at the launcher's signal the lost rank is the news",
        "bench/watchdog.py",
        {"lost, buffers, still = self._lost_before(name)": 'lost, buffers, still = [], "", ""'},
        FAULTS,
    ),
    Mend(
        "7",
        "another rank ends the file of rank 0 that is gone",
        "bench/session.py",
        {"elif speaks and self.file and self.watchdog.rank_0_ended:": "elif False:"},
        FAULTS,
    ),
    Mend(
        "7",
        "and of none that lives",
        "core/file.py",
        {
            "                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n": (
                "                    pass\n"
            )
        },
        LEAVING,
    ),
    Mend(
        "8",
        "each rank of a pinned host has its own cores",
        "machine/doctor_facts.py",
        {
            "local_cpus if rank == launch.local_rank else self.neighbours.get(rank, default)": (
                "local_cpus"
            )
        },
        "machine/test_doctor.py",
    ),
    Mend(
        "9",
        "ranks that a file may claim",
        "core/bounds.py",
        {"MOST_RANKS = 1 << 20": "MOST_RANKS = 1 << 40"},
        f"{HOSTILE} overview/test_foreign.py",
    ),
    Mend(
        "9",
        "bytes that a .gz may unpack to",
        "core/bounds.py",
        {"if self._size_bytes > _UNPACKED_BYTES + _UNPACKED_RATIO * packed:": "if False:"},
        HOSTILE,
    ),
    Mend(
        "9",
        "memory that the records of a file may take",
        "core/bounds.py",
        {"if self._size_bytes > self._most:": "if False:"},
        HOSTILE,
    ),
    Mend(
        "9",
        "events of a packed trace",
        "core/bounds.py",
        {"self._left -= _KEPT * kept + left": "self._left -= 0"},
        HOSTILE,
    ),
    Mend(
        "9",
        "depth of XML",
        "libraries/nccl/xml_tree.py",
        {"if self._depth > MOST_DEPTH or self._count > _MOST_NODES:": "if False:"},
        f"{HOSTILE} libraries/test_nccl_topology.py",
    ),
    Mend(
        "9",
        "length of a line",
        "core/jsonl.py",
        {"return line[:longest]": "return line"},
        f"{HOSTILE} core/test_records.py importers libraries",
    ),
    Mend(
        "9",
        "a line of a log that tells nothing is looked into once",
        "libraries/nccl/log.py",
        {"elif skipped := passed.get(raw[position:]):": "elif skipped := None:"},
        HOSTILE,
    ),
    Mend(
        "9",
        "samples of many ranks are kept in 8 bytes each",
        "core/file.py",
        {"large=len(line) > _MANY_BYTES": "large=False"},
        "core/test_packed.py",
    ),
    Mend(
        "9",
        "a table reads the steady calls of many ranks once",
        "report/notes.py",
        {"steady_times(result, clock) if times is None else times": "steady_times(result, clock)"},
        "core/test_packed.py",
    ),
    Mend(
        "9",
        "rows of a table",
        "importers/base.py",
        {"if count > most:": "if False:"},
        HOSTILE,
    ),
    Mend(
        "10",
        "user:password@ in values",
        "core/variables.py",
        {'return f"{token[: user.start()]}{MASK}{token[at:]}"': "return token"},
        SECRETS,
    ),
    Mend(
        "10",
        "names with BEARER, SIGNATURE, APIK, PWD",
        "core/variables.py",
        {"|BEARER|": "|", 'r"SIGNATURE|API_?K|': 'r"', "|PWD|": "|"},
        SECRETS,
    ),
    Mend(
        "10",
        "names with SESSION",
        "core/variables.py",
        {'"KEY|PASS|AUTH|SESSION"': '"KEY|PASS|AUTH"'},
        SECRETS,
    ),
    Mend(
        "10",
        "names with PW, PIN",
        "core/variables.py",
        {', "PW"}': "}", '{"PIN", "SIG", "PAT"': '{"PAT"'},
        SECRETS,
    ),
    Mend(
        "10",
        "comments and command lines of jobs",
        "core/variables.py",
        {
            '_FREE_TEXT = {"COMMENT", "CMD", "COMMAND", "ARGV", "NOTE"}': (
                "_FREE_TEXT: set[str] = set()"
            )
        },
        SECRETS,
    ),
    Mend(
        "10",
        "matrix --env in the manifest",
        "core/variables.py",
        {
            "return {k: v if v is None else masked_value(k, v) for k, v in variables.items()}": (
                "return dict(variables)"
            )
        },
        SECRETS,
    ),
    Mend(
        "11",
        "control characters are blanks",
        "core/errors.py",
        {"return text if text.isprintable() else": "return text if True else"},
        "report/test_control_characters.py",
    ),
    Mend(
        "11",
        "cells that a spreadsheet would run",
        "report/formats.py",
        {
            'return f"\'{text}" if _FORMULA.match(text) and': (
                "return text if _FORMULA.match(text) and"
            )
        },
        "report/test_control_characters.py",
    ),
    Mend(
        "12",
        "a whole number of more digits than Python reads, in a cell",
        "importers/base.py",
        {'.replace(",", "")[:_DIGITS]': '.replace(",", "")'},
        "importers",
    ),
    Mend(
        "12",
        "and as --step",
        "training/command.py",
        {"and len(text) < _DIGITS": ""},
        "training",
    ),
    Mend(
        "12",
        "'²' is no digit of --step",
        "training/command.py",
        {"text.isascii() and text.isdigit() and": "text.isdigit() and"},
        "training",
    ),
    Mend(
        "12",
        "'²' is no digit of a launcher's variable",
        "machine/launcher.py",
        {"digits.isascii() and digits.isdigit()": "digits.isdigit()"},
        "launch/test_launch_launcher.py machine",
    ),
    Mend(
        "12",
        "an External id that cannot be hashed",
        "importers/kineto_events.py",
        {"return value if isinstance(value, (int, str)) else None": "return value"},
        "importers test_fuzz.py",
    ),
    Mend(
        "12",
        "exp of a figure that no float holds",
        "stats/ratios.py",
        {
            "return sys.float_info.max if logarithm >= _LARGEST else math.exp(logarithm)": (
                "return math.exp(logarithm)"
            )
        },
        "stats/test_statistics.py",
    ),
    Mend(
        "12",
        "seconds of a manifest that are none",
        "matrix/folder.py",
        {
            "return value is None or (type(value) in (int, float) and 0 <= value < 1e9)": (
                "return True"
            )
        },
        "matrix/test_run.py",
    ),
    Mend(
        "12",
        "a lone surrogate in a label that is drawn",
        "report/pictures.py",
        {'plain = one_line(text).replace("$", r"\\$")': 'plain = str(text).replace("$", r"\\$")'},
        "report/test_control_characters.py",
    ),
    Mend(
        "12",
        "a field that is {} is no 0",
        "core/result.py",
        {
            "return tuple(number for number in numbers if number is not None)": (
                "return tuple(number or 0 for number in numbers)"
            )
        },
        "core/test_traffic.py training/test_traffic_table.py",
    ),
    Mend(
        "13",
        "reasons of an import that read nothing are on stderr",
        "importers/command.py",
        {"file=sys.stderr if aside else None": "file=None"},
        "importers/test_import_command.py",
    ),
    Mend(
        "13",
        "what is there is not overwritten without --force",
        "report/destination.py",
        {"if os.path.lexists(path) and not force:": "if False:"},
        "report/test_files.py",
    ),
    Mend(
        "13",
        "no link is followed",
        "core/opening.py",
        {
            'with open(new, "xb") as file:': 'with open(path, "wb") as file:',
            "            if not only_new:\n                os.replace(new, path)\n": "",
        },
        "report/test_files.py",
    ),
    Mend(
        "13",
        "a failed replay leaves no empty folder",
        "training/replay_file.py",
        {"                    folder.rmdir()": "                    pass"},
        f"{REFUSED} training/test_replay.py",
    ),
    Mend(
        "14",
        "calls are grouped without a device",
        "core/backends.py",
        {'            groups_alone=("cpu",),\n': ""},
        "machine/test_oneccl.py",
    ),
    Mend(
        "14",
        "what a backend lacks is said in words",
        "core/backends.py",
        {
            'lacking = next(filter(None, (lack.of(case) for lack in self.lacks)), "")': (
                'lacking = ""'
            )
        },
        "machine/test_oneccl.py",
    ),
    Mend(
        "14",
        "the library's version",
        "machine/provenance.py",
        {"version = _oneccl_version(path)": "pass"},
        "machine",
    ),
    Mend(
        "14",
        "first calls by backend",
        "core/summary.py",
        {"ran = [r for r in ran if r.case.backend == backend] if backend else ran": "pass"},
        "core machine startup overview/test_show.py comparison",
    ),
    Mend(
        "14",
        "stdout is the table's alone",
        "bench/main.py",
        {"    own_stdout()\n": ""},
        "machine/test_oneccl.py",
    ),
    Mend(
        "15",
        "threads of oneCCL are no processes",
        "libraries/oneccl/log.py",
        {"thread=bool(match[2])": "thread=False"},
        "libraries/test_oneccl_log.py",
    ),
    Mend(
        "16",
        "sparse bytes are read before the call",
        "training/capture.py",
        {"early = sparse and operator is not None": "early = False"},
        "training/test_capture_calls.py training/test_capture_models.py",
    ),
    Mend(
        "16",
        "a group that was made again under its name",
        "core/traffic.py",
        {
            "        while (\n            self.groups.setdefault": (
                "        while False and (\n            self.groups.setdefault"
            )
        },
        "training/test_capture.py training/test_traffic_table.py core/test_traffic.py",
    ),
    Mend(
        "16",
        "a restarted job writes beside its first capture",
        "training/capture_file.py",
        {
            "if not os.path.lexists(folder / name):": "if True:",
            "if not isinstance(reason, FileExistsError) or not os.path.lexists(folder / name):": (
                "if True:"
            ),
        },
        "training/test_capture.py",
    ),
    Mend(
        "26",
        "a link inside a folder that is written into is not followed",
        "core/opening.py",
        {'_NO_LINK = getattr(os, "O_NOFOLLOW", 0)': "_NO_LINK = 0"},
        "core/test_opening.py",
    ),
    Mend(
        "26",
        "tokens with a prefix of their maker are masked under any name",
        "core/variables.py",
        {"    text = _prefixed().sub(MASK, text)\n": ""},
        "core/test_secret_shapes.py",
    ),
    Mend(
        "26",
        "a FIFO on the command line is refused",
        "core/opening.py",
        {"    if stat.S_ISREG(mode):\n        return descriptor\n": "    return descriptor\n"},
        "test_inputs.py",
    ),
    Mend(
        "26",
        "a law that is off by 2 % is named though the noise is smaller",
        "curves/growth.py",
        {"MARGIN = 0.02": "MARGIN = 0.0"},
        "curves/test_growth.py",
    ),
    Mend(
        "26",
        "a setting that slows the library is in the verdict",
        "verdict/judging.py",
        {'        *_stated(run, "setting"),\n': ""},
        "verdict/test_judge.py bench/test_bench_file.py machine",
    ),
    Mend(
        "26",
        "a gate that judged nothing exits with 2",
        "verdict/command.py",
        {"    if unjudged:\n        raise refusal\n": ""},
        "verdict/test_verdict_command.py",
    ),
)


class First:
    """The first test that fails, as a plugin of pytest."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.name = self.name or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def failing(copy: Path, tests: list[str]) -> str:
    """The name of the first, '' where all pass; by a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        import pytest

        first = First()
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=[first])
        os.write(write, (first.name or f"pytest ended with {code!r}" if code else "").encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        name = said.read()
    os.waitpid(child, 0)
    return name


def without(copy: Path, mend: Mend, count: int) -> str:
    """The test that fails without it."""
    path = copy / "torchcoll" / mend.file
    text = whole = path.read_text()
    for old, new in mend.edits.items():
        if text.count(old) != 1:
            return f"NOT THERE ONCE: {old}"
        text = text.replace(old, new)
    try:
        # Python tells what it has compiled by the time of the file, in seconds, and its length.
        path.write_text(text)
        os.utime(path, (count, count))
        name = failing(copy, [f"tests/{test}" for test in mend.tests.split()])
    finally:
        path.write_text(whole)
    return name or "NONE FAILS"


def main() -> None:
    import torch

    # torchcoll itself is loaded by each process anew.
    for name in ("pandas", "scipy.stats", "matplotlib.figure", "rich.console", "torch._dynamo"):
        importlib.import_module(name)
    print(
        f"regressions put back one by one: torch {torch.__version__}, Python "
        f"{sys.version.split()[0]}, {date.today()}\n"
    )
    print(f"{'point':5}  {'without it':75}  the first test that fails")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "torchcoll"
        ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "torchcoll-runs")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for count, mend in enumerate(MENDS, 1):
            if not sys.argv[1:] or mend.point in sys.argv[1:]:
                name = without(copy, mend, count).removeprefix("tests/")
                print(f"{mend.point:5}  {mend.what:75}  {name}", flush=True)


if __name__ == "__main__":
    main()
