"""``torchcoll check``: is a run as good as its machine allows?"""

from __future__ import annotations

import argparse

from torchcoll.core.commands import SubCommand
from torchcoll.core.errors import ExitCode, UsageError, choice, tell
from torchcoll.core.parts import first_answer
from torchcoll.core.units import counted
from torchcoll.questions.check.baseline import BaselineRuns
from torchcoll.reading.inputs import add_reading_options


def check_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="result files, folders, quoted globs, output of other tools, label=PATH; - is stdin",
    )
    add_reading_options(parser)
    add(
        "--fabric",
        metavar="NAME",
        help="the fabric to judge by: nvswitch-h200, ib-ndr:8, ... (default: the fabric that is "
        "recognised)",
    )
    add(
        "--baseline",
        metavar="PATH",
        help="judge by this instead of a fabric: the result file of one run; or good runs, as a "
        "file of --learn, a folder or a store. With good runs, a slower run exits with 1",
    )
    add("--format", default="table", help="table (default), markdown or json")
    add(
        "--gate",
        action="store_true",
        help="exit with 1 if a verdict is FAIL, with 2 for CANNOT TELL and without a reference",
    )
    add("--junit", metavar="FILE", help="write the verdict and the cases as JUnit XML")
    add(
        "--health", metavar="FILE", help="write the verdict as a health event for schedulers (JSON)"
    )
    add(
        "--metrics",
        metavar="NAME.prom",
        help="write verdict and cases for Prometheus' node_exporter; replaces a file of that name",
    )
    add("--force", action="store_true", help="replace the files of --junit and --health")


def run_check(options: argparse.Namespace) -> ExitCode:
    from torchcoll.core.metrics import check_metrics, write_metrics
    from torchcoll.core.opening import not_written
    from torchcoll.core.result import Run
    from torchcoll.questions.check import show
    from torchcoll.questions.check.judging import judge
    from torchcoll.questions.check.limits import CANNOT_TELL, FAIL
    from torchcoll.reading.inputs import load_all
    from torchcoll.report.destination import check_new, write_file
    from torchcoll.stats.filters import keep_cases, read_runs

    choice(options.format, "format", show.FORMATS)
    for option in ("junit", "health"):
        if path := getattr(options, option):
            check_new(path, option, options.force)
    baseline: Run | BaselineRuns | None = None
    good_runs: BaselineRuns | None = None
    if options.metrics is not None:
        check_metrics(options.metrics)
    if options.baseline:
        baseline = good_runs = first_answer("answers", "baseline", options.baseline)
        if good_runs is None:
            baselines = load_all([options.baseline])
            if len(baselines) != 1:
                count_text = f"{len(baselines)} runs in {options.baseline}"
                raise UsageError("baseline", count_text, "a file of one run")
            (baseline,) = keep_cases(baselines, options.filter)
    runs = read_runs(options)
    for run in runs:
        if of_figures := run.source.get("ranks_of_busbw"):
            expected = f"{of_figures}, as every busbw of {run.source['file']} shows"
            raise UsageError("ranks", run.ranks, expected, "Leave --ranks out.")
    verdicts = [judge(run, options.fabric, baseline) for run in runs]
    show.show_verdicts(runs, verdicts, options.format)
    if options.junit:
        write_file(options.junit, show.junit_text(runs, verdicts), "junit", options.force)
    if options.health:
        write_file(options.health, show.health_text(runs, verdicts), "health", options.force)
    failed = any(verdict.word == FAIL for verdict in verdicts)
    if options.metrics is not None:
        one_run = baseline if isinstance(baseline, Run) else None
        metrics = show.check_metrics_of(runs, verdicts, one_run)
        try:
            write_metrics(check_metrics(options.metrics), metrics)
        except OSError as error:
            raise not_written("metrics", options.metrics, error) from None
    if not options.gate:
        # Good runs state an error rate, so what they call slow is no matter of taste.
        return ExitCode.FAILED if failed and good_runs else ExitCode.OK
    unclear = sum(verdict.word == CANNOT_TELL for verdict in verdicts)
    if unclear and not failed:
        raise UsageError(
            "gate",
            f"CANNOT TELL for {unclear} of {counted(len(runs), 'run')}",
            "PASS or FAIL",
            "The answer above names the next step.",
        )
    unjudged = sum(not verdict.judged for verdict in verdicts)
    refusal = UsageError(
        "gate",
        f"{unjudged} of {counted(len(runs), 'run')} without a reference",
        "runs that can be judged",
        "State what they are measured by: --fabric or --baseline RUN.",
    )
    if failed:
        if unjudged:
            tell(f"torchcoll: warning: {refusal}")
        return ExitCode.FAILED
    if unjudged:
        raise refusal
    return ExitCode.OK


COMMANDS = {
    "check": SubCommand(
        check_arguments,
        run_check,
        examples=(
            "torchcoll check run.jsonl --fabric nvswitch-h200 --gate",
            "torchcoll check tonight.jsonl --baseline accepted.jsonl --gate --junit check.xml",
            "torchcoll check --learn nightly/ -o good.json",
            "torchcoll check tonight.jsonl --baseline good.json",
            "torchcoll check tonight.jsonl --baseline accepted.jsonl --metrics torchcoll.prom",
        ),
        exit_1="with --gate: a verdict is FAIL; with good runs as --baseline: a run is slower",
        option_groups={
            "what is read": "--collective --ranks --filter",
            "what the run is judged by": "--fabric --baseline",
            "output": "--format --gate --junit --health --metrics --force",
        },
    ),
}
