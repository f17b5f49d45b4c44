"""Every command that reads, on all of results/, examples/ and tests/reading/threads/: what each
answer and table has to keep to.

- The output begins with the answer, whose first paragraph fits into two lines of 100 characters.
- Where the level is not good, the answer names the next step.
- An answer is only 'good' if it states what would have been found, or a measured figure.
- No number has an exponent, and no plural follows a 1.
- At most four notes stand below a table.
- Where a table is divided into blocks for a narrow terminal, each block names its rows.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from torchcoll.cli import commands, main
from torchcoll.core.answer import Answer
from torchcoll.report import grid as grids
from torchcoll.report.grid import Grid, split_columns

ROOT = Path(__file__).parents[1]
WIDTH = 80
MOST_NOTES = 4
FOLDERS = sorted(
    f"results/{path.name}"
    for path in (ROOT / "results").iterdir()
    if path.is_dir() and path.name not in ("benchmarks", "published")
)
ONE_FOLDER = (
    "show @",
    "show @ --view ranks",
    "show @ --view calls",
    "show @ --view pivot:collective",
    "show @ --published",
    "show @ --explain",
    "check @",
    "convert @",
    "log @",
    "algorithms @",
    "cold @",
    "curve @",
    "scaling @",
    "model fit @ -o /dev/null --force",
    "postmortem @",
    "nightly @ --night last",
    "check --learn @ -o /tmp/good.json --force",
    "trace @",
)
# The six runs of this folder say the same in a view, at six times the cost; `show @` and commands
# about many runs have all six.
FIRST_RUNS = {"results/gloo-oneccl-2ranks": "results/gloo-oneccl-2ranks/run-[12].jsonl"}
OF_FIRST_RUNS = (
    "show @ --",
    "convert @",
    "algorithms @",
    "curve @",
    "scaling @",
    "model fit @",
)
SHORT = {"GLOO": "gloo-oneccl-2ranks", "H200": "h200-8gpu-kernels"}
OTHERS = (
    "show --published",
    "show results/*/*.jsonl",
    "check GLOO/run-2.jsonl --baseline GLOO/run-1.jsonl",
    "check H200/nvidia.jsonl --fabric nvswitch-h200",
    "check H200/nvidia.jsonl --baseline H200/generic.jsonl",
    "pairs results/pairs-6hosts/slow-link.jsonl",
    "compare H200/generic.jsonl H200/nvidia.jsonl",
    "compare H200/generic.jsonl H200/nvidia.jsonl --all",
    "compare results/a100-8gpu-baseline/curve.jsonl results/a100-8gpu-baseline/curve-3gpu.jsonl",
    "compare backend:gloo=GLOO backend:ccl=GLOO",
    "compare backend:gloo=GLOO backend:ccl=GLOO --all",
    "compare old=GLOO/run-[123].jsonl new=GLOO/run-[456].jsonl",
    "compare measured=H200/generic.jsonl model=results/simulator-hgx-h100/analytical.csv",
    "model predict 8xH100 --sizes 1M,1G --ranks 8..64",
    "model predict list",
    "plan llama-3-8b --parallel fsdp=64 --machine 8xH100",
    "plan llama-3-8b --parallel dp=8,tp=8 --machine 8xH100",
    "gradients --machine 8xH100",
)
# These measure, start runs, or draw a picture or a page.
NOT_READING = {"run", "doctor", "versus", "bisect", "again", "matrix", "collect", "replay"}
NOT_READING |= {"plot", "report"}
LINES = [
    line.replace("@", FIRST_RUNS.get(folder, folder) if line.startswith(OF_FIRST_RUNS) else folder)
    for line in ONE_FOLDER
    for folder in FOLDERS
]
LINES += [*OTHERS, "trace examples/inspector", "postmortem examples/stuck-rank"]
LINES += [f"show {path.relative_to(ROOT)}" for path in sorted(ROOT.glob("tests/reading/threads/*"))]
# Known exceptions: the beginning of a line of LINES, and why it stands.
MANY_NOTES = (
    ("show --published", "each line is the source of a figure"),
    ("plan ", "assumptions of the plan"),
)

_EXPONENT = re.compile(r"\d\.?\d*e[+-]\d+")
_PLURAL = re.compile(
    r"(?<![\d.,/:-])1 (?:more )?(?:others|cases|runs|files|ranks|hosts|nodes|sizes|steps|calls|rows"
    r"|lines|seconds|minutes|hours|days|pairs|GPUs|collectives|kinds|curves|numbers|sides|groups)\b"
)
_NOTHING = re.compile(r"^(?:no|none|nothing)\b", re.IGNORECASE)


@dataclass
class Printed:
    """What a command printed.

    code: exit code. text, errors: stdout and stderr. answers, tables: what was displayed.
    """

    code: int = 0
    text: str = ""
    errors: str = ""
    answers: list[Answer] = field(default_factory=list)
    tables: list[Grid] = field(default_factory=list)


@contextlib.contextmanager
def recording(printed: Printed, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Adds to ``printed`` the answers and tables that commands print in this block."""
    print_grid, print_answer = grids.print_grid, grids.print_answer

    def record_grid(grid, out):
        printed.tables.append(grid)
        print_grid(grid, out)

    def record_answer(answer, out):
        printed.answers.append(answer)
        print_answer(answer, out)

    with patch.context() as context:
        context.setattr(grids, "print_grid", record_grid)
        context.setattr(grids, "print_answer", record_answer)
        yield


def arguments_of(line: str) -> list[str]:
    for name, folder in SHORT.items():
        line = line.replace(name, f"results/{folder}")
    return line.split()


@pytest.fixture(scope="module")
def all_printed() -> dict[str, Printed]:
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("COLUMNS", str(WIDTH))
        for line in LINES:
            out, err = io.StringIO(), io.StringIO()
            printed = found[line] = Printed()
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                recording(printed, patch),
            ):
                printed.code = main(arguments_of(line))
            printed.text, printed.errors = out.getvalue(), err.getvalue()
    return found


def check(offences: Iterable[tuple[str, str]], known: Sequence[tuple[str, str]] = ()) -> None:
    """offences: the line of a command, and what is wrong. known: the beginning of a line, and why
    it is not mended. A reason that is not needed any more is wrong too.
    """
    found = list(offences)
    starts = [start for start, _ in known]
    assert [each for each in found if not each[0].startswith(tuple(starts))] == []
    unneeded = [s for s in starts if not any(line.startswith(s) for line, _ in found)]
    assert unneeded == []


def test_every_command_is_here():
    assert {line.split()[0] for line in LINES} | NOT_READING == set(commands())


def test_what_a_command_can_use_is_read_without_a_word_about_other_files(all_printed):
    """Reports, pictures, notes and scripts of results/ are no results."""
    check((line, p.errors) for line, p in all_printed.items() if "skipped" in p.errors)


def test_most_commands_answer(all_printed):
    answered = [p for p in all_printed.values() if p.text]
    assert len(answered) > 0.6 * len(LINES)
    for line, p in all_printed.items():
        if not p.text:
            assert p.code in (2, 3) and p.errors.startswith("torchcoll: "), line


def test_good_states_what_would_have_been_found_or_a_figure(all_printed):
    def offences() -> Iterator[tuple[str, str]]:
        for line, p in all_printed.items():
            for answer in p.answers:
                negative = _NOTHING.match(answer.headline)
                measured = bool(re.search(r"\d", answer.headline)) and not negative
                if answer.level == "good" and answer.detectable is None and not measured:
                    yield line, answer.headline

    check(offences())


def test_each_output_begins_with_its_answer(all_printed):
    def begins(p: Printed) -> bool:
        first = p.answers[0].lines[0] if p.answers else "no answer"
        return " ".join(p.text.split()).startswith(" ".join(first.split()))

    check((line, p.text[:80]) for line, p in all_printed.items() if p.text and not begins(p))


def test_an_answer_is_short_and_names_the_next_step(all_printed):
    def offences() -> Iterator[tuple[str, str]]:
        for line, p in all_printed.items():
            yield from ((line, a.lines[0]) for a in p.answers if len(a.lines[0]) > 200)
            if p.answers and p.answers[0].level in ("doubt", "bad") and not p.answers[0].next_step:
                yield line, p.answers[0].headline

    check(offences())


def test_no_number_has_an_exponent(all_printed):
    found = ((line, m[0]) for line, p in all_printed.items() for m in _EXPONENT.finditer(p.text))
    check(found, [("show tests/reading/threads/", "the largest error as nccl-tests prints it")])


def test_no_plural_follows_a_one(all_printed):
    check((line, m[0]) for line, p in all_printed.items() for m in _PLURAL.finditer(p.text))


def test_at_most_four_notes_stand_below_a_table(all_printed):
    def offences() -> Iterator[tuple[str, str]]:
        for line, p in all_printed.items():
            for grid in p.tables:
                if len(grid.below) > MOST_NOTES:
                    yield line, grid.below[MOST_NOTES]

    check(offences(), MANY_NOTES)


def test_each_block_of_a_divided_table_names_its_rows(all_printed):
    divided = 0
    for line, p in all_printed.items():
        for each in p.tables:
            if not each.rows:
                continue
            grid = grids._naming_rows(each, WIDTH)
            blocks = split_columns(grid.heads, grid.widths(), WIDTH)
            if len(blocks) < 2 or len(set(map(tuple, each.rows))) < len(each.rows):
                continue
            divided += 1
            common = sorted(set(blocks[0]).intersection(*blocks[1:]))
            names = [tuple(row[i] for i in common) for row in grid.rows]
            assert len(set(names)) == len(names), (line, [head.text for head in grid.heads])
    assert divided > 10
