"""The command on the ranks: what ``torchrun -m torchcoll.allreduce`` runs."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.options import Options, parse
from torchcoll.bench.watchdog import no_progress, print_error
from torchcoll.core import errors
from torchcoll.core.case import fingerprint
from torchcoll.core.errors import ExitCode, TorchcollError
from torchcoll.core.units import parse_duration
from torchcoll.machine.launcher import ContradictionOnAllRanks, Launch, detect, likely_rank

if TYPE_CHECKING:
    from torchcoll.bench.output import Output
    from torchcoll.bench.session import Session


# torchrun ends rank 0 within 0.1 s when another rank has failed: rank 0 must report first.
_AFTER_RANK_0_S = 0.5

Action = Callable[[Launch, list[str]], int]


def main(
    collective: str | None = None,
    argv: Sequence[str] | None = None,
    *,
    action: Action | None = None,
) -> None:
    """Measure (None: the suite), or call ``action``, and exit with the exit code of the run."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def act(launch: Launch) -> int:
        if launch.rank and not {"-h", "--help"}.isdisjoint(arguments):
            return ExitCode.OK  # rank 0 prints it
        return (action or partial(_run_cases, collective))(launch, arguments)

    sys.exit(on_ranks(act))


def separate_stdout() -> None:
    """Give Python's stdout a descriptor of its own, and make descriptor 1 a copy of stderr: oneCCL
    and gloo of older torch log on stdout, in the middle of the table. Nothing happens if a
    descriptor is closed or is no file (a test that captures it).
    """
    with contextlib.suppress(AttributeError, OSError, io.UnsupportedOperation):
        old = sys.stdout
        if old.fileno() != 1:
            return
        old.flush()
        kept = os.dup(1)
        try:
            os.dup2(2, 1)
        except OSError:
            os.close(kept)
            return
        buffering = 1 if old.line_buffering else -1
        sys.stdout = open(  # noqa: SIM115
            kept, "w", buffering, encoding=old.encoding, errors=old.errors
        )


def on_ranks(action: Callable[[Launch], int]) -> int:
    """The exit code of ``action``, or of its error, which rank 0 alone prints."""
    separate_stdout()
    rank = likely_rank()
    # If a launcher's variables make no sense on some ranks, rank 0 may not be one of them: so each
    # rank prints its own error.
    speaks = True
    try:
        launch = detect()
        rank, speaks = launch.rank, launch.rank == 0
        code = action(launch)
    except TorchcollError as error:
        if isinstance(error, ContradictionOnAllRanks):
            speaks = rank == 0
        # A HangError that is raised to here is of a rank that cannot reach rank 0.
        print_error(error.line(), rank, speaks=speaks or isinstance(error, errors.HangError))
        code = int(error.exit_code)
    except Exception:  # Python would print it with the secrets in its texts
        errors.print_traceback()
        code = int(ExitCode.FAILED)
    if sys.stdout:  # None where it was closed before the start
        sys.stdout.flush()
    if rank and code:
        time.sleep(_AFTER_RANK_0_S)
    return int(code)


def _run_cases(collective: str | None, launch: Launch, arguments: list[str]) -> int:
    from torchcoll.core.collectives import COLLECTIVES

    module = COLLECTIVES[collective].module if collective else "suite"
    options = parse(arguments, collective, f"torchcoll.{module}")
    if options.dry_run:
        from torchcoll.bench.plan import plan_lines

        if launch.rank == 0:
            ranks = options.ranks or launch.ranks
            spec, notes = options.asked(ranks)
            print("\n".join(map(errors.printable, plan_lines(spec, ranks))))
            for note in notes:
                errors.tell(f"torchcoll: warning: {note}")
        return ExitCode.OK
    return measure(options, launch, arguments, _sweep_cases)


# Measures everything, and returns the text of what makes the exit code 1, on all ranks.
Work = Callable[["Session", "Output | None"], "str | None"]


def _sweep_cases(session: Session, output: Output | None) -> str | None:
    from torchcoll.bench.sweep import Sweep

    control = session.local.control
    missing = control.decide(output and output.begin(session))
    sweep = Sweep(session, on_case=output.on_case if output else None)
    if session.soak_s is None:
        sweep.run(missing)
    else:
        from torchcoll.bench.soak import soak

        stop = soak(sweep, session.soak_s, output.tell_round if output else None)
        if stop:
            return stop
    failure: str | None = control.decide(output and output.failure())
    return failure


def measure(options: Options, launch: Launch, arguments: list[str], work: Work) -> int:
    """The exit code, equal on all ranks, of a run in which ``work`` measures."""
    on_progress = _terminal() if launch.rank == 0 and not options.quiet else no_progress
    on_progress("importing torch")
    start = time.perf_counter_ns()
    torch = import_torch()
    phases = {"import_torch": time.perf_counter_ns() - start}
    from torchcoll.bench.session import SessionOptions, opened

    if options.rendezvous_file:
        launch = replace(launch, rendezvous_file=options.rendezvous_file)
    if options.ranks and not options.spec.communicates:
        launch = replace(launch, ranks=options.ranks)
    output = None
    if launch.rank == 0:
        from torchcoll.bench.output import Output

        output = Output(options, launch.ranks)
    asked = [options.spec.to_json(), options.resume, options.traffic, options.library_log]
    asked += [repr(options.other), options.soak]
    what = SessionOptions(
        options.spec,
        launch,
        asked=fingerprint(asked),
        argv=arguments,
        phases=phases,
        earlier=output.earlier if output else None,
        library_log=options.library_log,
        recorder=output.recorder if output else None,
        on_exit=output.abandon if output else (lambda: None),
        soak_s=None if options.soak is None else parse_duration(options.soak, "soak"),
        on_progress=on_progress,
    )
    try:
        with opened(torch, what) as session:
            session.local.progress.on_progress = no_progress
            on_progress("")
            failure, code = work(session, output), ExitCode.FAILED
            session.finish(code if failure else ExitCode.OK, failure or "")
            # Before this rank leaves with the others: once one has failed torchrun ends them all.
            if output:
                output.close()
                if output.lost and not failure:  # at the very end
                    failure, code = output.lost, ExitCode.FAILED
            if failure:
                print_error(f"torchcoll: error: {failure}", launch.rank, speaks=launch.rank == 0)
    finally:
        on_progress("")
        if output:
            output.close()
    return code if failure else ExitCode.OK


def _terminal() -> Callable[[str], None]:
    """A function that replaces the last line on rank 0's terminal; '' clears it."""
    from torchcoll.report.destination import ProgressLine, is_terminal

    if not (sys.stderr and is_terminal(sys.stderr)):
        return no_progress
    line = ProgressLine(sys.stderr, shutil.get_terminal_size().columns)
    return lambda text: line.show(f"torchcoll: {text}") if text else line.clear()


def import_torch() -> Any:
    # torch prints pages of C++ frames about a store that is gone; torchcoll prints one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        import torch
    except ImportError as error:
        raise errors.UnavailableError(
            "torch", error, "torch 2.6 or newer in this Python", "pip install torch"
        ) from None
    return torch
