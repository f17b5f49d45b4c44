"""What rank 0 prints while a run goes on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from error_form import error_tail, error_text
from handmade import Terminal, case, not_run, result, run

from torchcoll.bench.live import reporter
from torchcoll.core.errors import UsageError
from torchcoll.core.result import CaseResult, Choice, Run
from torchcoll.report.destination import ProgressLine, RunProgress

pytestmark = pytest.mark.usefixtures("fixed_columns")


class Pipe(io.StringIO):
    """Remembers what had been written at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[str] = []

    def flush(self) -> None:
        self.flushed.append(self.getvalue())


def report(
    monkeypatch: pytest.MonkeyPatch, out: Any, results: list[CaseResult], launch: Run, **how: Any
) -> None:
    """Let a reporter see these results one by one, as bench does."""
    monkeypatch.setattr(sys, "stdout", out)
    end, launch.end = launch.end, None
    reports = reporter(**how)
    reports.begin(launch, [r.case for r in results])
    for index, done in enumerate(results):
        reports.started(index, done.case)
        launch.results.append(done)
        reports.done(done)
    launch.end = end
    reports.end(launch)


HEAD = """\
torchcoll 0.1.0: all_reduce, float32, sum, in place
backend: gloo of torch 2.13.0; 8 ranks on vm, cpu
clock: host; mode: synchronized (a barrier before every call, outside the stamps)
time = max over ranks, the slowest rank
a case ends when its median is known within 5 %, or after 1 s; verification on; \
the same buffers in every call
low, high = p5, p95 within this run

"""
HEADINGS = """\
size      first    median       low      high       p99  calls     algbw     busbw  verified
          call                   p5       p95                       GB/s      GB/s
"""
ROWS = [
    " 64M  5.000 ms*  1.000 ms  910.0 us  1.090 ms         -     21    67.109   117.441  correct\n",
    "   8         -          -         -         -         -      0         -         -"
    "  unsupported [1]\n",
]
END = """\

[1] no avg
* first call over 3 times the median
first call 5.00 ms, steady after 2 calls
"""
# 64M in 1 ms, times 2 x 7/8.
ANSWER = (
    "all_reduce on 8 gloo ranks takes 1.00 ms and reaches 117 GB/s of busbw at 64M; 1 of 1 case "
    "correct, 1 unsupported; time to first result 5.00 ms; NO REFERENCE for gloo on cpu within one "
    "host\nNext: torchcoll check FILE --baseline EARLIER-RUN"
)


def two() -> list[CaseResult]:
    return [result(), not_run("unsupported", "no avg", size_bytes=8)]


def test_piped_rows_appear_one_by_one_and_line_up(monkeypatch):
    out = Pipe()
    report(monkeypatch, out, two(), run())
    assert out.getvalue() == HEAD + HEADINGS + "".join(ROWS) + END + f"{ANSWER}\n"
    # begin, started, done, started, done, end
    whole = HEAD + HEADINGS
    assert out.flushed[0] == out.flushed[1] == whole
    assert out.flushed[2] == out.flushed[3] == whole + ROWS[0]
    assert out.flushed[4] == whole + "".join(ROWS)


def test_quiet_leaves_the_rows(monkeypatch):
    out = Pipe()
    report(monkeypatch, out, two(), run(), quiet=True)
    notes = "\n[1] no avg\n* first call over 3 times the median\n"
    assert out.getvalue() == HEADINGS + "".join(ROWS) + notes + f"{ANSWER}\n"


def test_an_interrupted_run_says_so(monkeypatch):
    out = Pipe()
    ended = {"status": "interrupted", "reason": "SIGTERM"}
    report(monkeypatch, out, [result()], run(end=ended))
    last = "\nFAIL interrupted by SIGTERM; time to first result 5.00 ms\n"
    assert out.getvalue().endswith(last)
    assert out.getvalue().count("interrupted") == 1


def test_columns_are_wide_enough_for_what_is_still_to_come(monkeypatch):
    out = Pipe()
    gather = case(collective="reduce_scatter", in_place=False, size_bytes=1_000_001)
    results = [
        result(case=case(size_bytes=8)),
        result(case=gather, size_bytes=1_000_000, time_ns={"host": [[812] * 100] * 8}),
    ]
    report(monkeypatch, out, results, run())
    lines = out.getvalue().splitlines()
    first, second = (line for line in lines if line.endswith("  correct"))
    assert first.startswith("all_reduce      yes          8        8  5.000 ms*  1.000 ms")
    assert second.startswith("reduce_scatter  no     1000001  1000000  5.000 ms*    812 ns")
    assert first.index("  correct") == second.index("  correct")


def test_a_run_with_the_library_log_has_a_column_for_what_it_will_name(monkeypatch):
    out = Pipe()
    results = [result(choices=[Choice("RING", "SIMPLE", 24)]), result(case=case(size_bytes=8))]
    report(monkeypatch, out, results, run(header={"library_log": "x.logs"}))
    first, second = (line for line in out.getvalue().splitlines() if line.endswith("  correct"))
    assert "  RING/SIMPLE 24ch  " in first
    assert "  -                 " in second
    assert first.index("  correct") == second.index("  correct")


@pytest.mark.parametrize("form", ["csv", "json", "markdown"])
def test_machine_formats_print_one_document_at_the_end(monkeypatch, form, shown):
    out = Pipe()
    report(monkeypatch, out, two(), run(), format=form)
    assert out.flushed[:5] == [""] * 5
    assert out.getvalue() == shown(run(*two()), format=form)
    if form == "json":
        assert len(json.loads(out.getvalue())["rows"]) == 2


def test_unknown_format_before_anything_is_measured():
    with pytest.raises(
        UsageError, match=error_text("^format", error_tail("xml", "one of table, markdown"))
    ):
        reporter("xml")


HIDDEN = "not shown in 80 columns: p99 (use a wider terminal, or --format json)"


def terminals(monkeypatch, columns):
    """stdout and stderr of a terminal of so many columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    return out, err


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_gets_rows_that_stay_and_a_line_of_progress(monkeypatch, rich):
    if not rich:
        for name in [n for n in sys.modules if n.split(".")[0] == "rich"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "rich", None)
    out, err = terminals(monkeypatch, 80)
    report(monkeypatch, out, two(), run())
    filled = (textwrap.fill(line, 80, subsequent_indent="  ") for line in ANSWER.splitlines())
    narrow = "\n".join(filled) + "\n"
    end = END.replace("\nfirst call", f"\n{HIDDEN}\nfirst call")
    assert out.text().split("\n\n", 1)[1] == (
        "size     first   median      low     high calls    algbw    busbw verified\n"
        "         call                 p5      p95           GB/s     GB/s\n"
        " 64M 5.000 ms* 1.000 ms 910.0 us 1.090 ms    21   67.109  117.441 correct\n"
        "   8        -         -        -        -     0        -        - unsupported\n"
        f"  [1]\n{end}{narrow}"
    )
    assert "[######......] 1/2  elapsed 0:00  left 0:00  all_reduce 8" in err.text()
    # Nothing is taken back but the line of progress: what else writes here destroys no table.
    assert "\x1b[1A" not in out.getvalue() + err.getvalue()
    assert ("\x1b[2m" in out.getvalue()) == rich  # 'unsupported' is dim


def test_a_narrow_terminal_gets_its_columns_in_turn(monkeypatch):
    out, _ = terminals(monkeypatch, 40)
    gather = case(collective="all_gather", op=None, in_place=False, size_bytes=8)
    results = [result(case=case(size_bytes=32)), result(case=gather, size_bytes=32)]
    report(monkeypatch, out, results, run())
    rows = [line for line in out.text().splitlines() if line.startswith(("size", "  32 "))]
    assert rows == [
        "size collective in      median    busbw",
        "  32 all_reduce yes   1.000 ms   <0.001",
        "  32 all_gather no    1.000 ms   <0.001",
        "size  verified",
        "  32  correct",
        "  32  correct",
    ]


def test_only_stdout_is_a_terminal(monkeypatch):
    out, _ = terminals(monkeypatch, 80)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    report(monkeypatch, out, two(), run())
    assert "[######......] 1/2" in out.text()


def test_nothing_is_printed_after_the_end(monkeypatch):
    """The thread that ends an interrupted run prints the last lines; the other may go on."""
    out = Pipe()
    monkeypatch.setattr(sys, "stdout", out)
    launch = run()
    reports = reporter()
    reports.begin(launch, [case()])
    launch.end = {"status": "interrupted", "reason": "SIGINT"}
    reports.end(launch)
    text = out.getvalue()
    assert text.endswith("\nno case has ended\nFAIL interrupted by SIGINT\n")
    reports.done(result())
    reports.end(launch)
    assert out.getvalue() == text


def test_a_closed_stdout_ends_the_printing_and_not_the_run(monkeypatch):
    out = Pipe()
    monkeypatch.setattr(sys, "stdout", out)
    reports = reporter()
    reports.begin(run(), [case()])
    out.close()
    reports.done(result())
    reports.end(run())
    monkeypatch.setattr(sys, "stdout", None)  # it was closed before the start
    monkeypatch.setattr(sys, "stderr", None)
    reports = reporter()
    reports.begin(run(), [case()])
    reports.started(0, case())
    reports.done(result())
    reports.end(run())


def test_a_reader_that_leaves_ends_the_printing_and_not_the_run():
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from handmade import *\n"
        "from torchcoll.bench.live import reporter\n"
        "r, done = reporter(), [result()] * 3\n"
        "r.begin(run(), [d.case for d in done])\n"
        "for i, d in enumerate(done):\n"
        "    sys.stdin.readline()\n"
        "    r.done(d)\n"
        "r.end(run())\n"
        "print('finished', file=sys.stderr)\n"
    )
    here = os.path.dirname(os.path.dirname(__file__))
    child = subprocess.Popen(
        [sys.executable, "-c", program, here, os.path.dirname(here)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout and child.stdin and child.stderr
    assert child.stdout.readline().startswith("torchcoll 0.1.0")
    child.stdout.close()
    child.stdin.write("\n\n\n")
    child.stdin.close()
    assert child.stderr.read() == "finished\n"
    child.stderr.close()
    assert child.wait() == 0


def test_progress_counts_and_estimates():
    times = iter([100.0, 100.0, 130.0, 4900.0])
    progress = RunProgress(4, now=lambda: next(times))
    assert progress.text() == "[............] 0/4  elapsed 0:00"
    progress.finished = 1
    assert progress.text("x 8") == "[###.........] 1/4  elapsed 0:30  left 1:30  x 8"
    progress.finished = 4
    assert progress.text() == "[############] 4/4  elapsed 1:20:00"


def test_progress_line_is_cut_on_a_terminal_and_absent_elsewhere():
    terminal, pipe = Terminal(), io.StringIO()
    for file in (terminal, pipe):
        line = ProgressLine(file, 10)
        line.show("123456789012")
        line.clear()
    assert terminal.getvalue() == "\r\x1b[K123456789\r\x1b[K"
    assert pipe.getvalue() == ""
