"""The command on the ranks: what ``torchrun -m torchcoll.allreduce`` runs."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.options import Options, parse
from torchcoll.bench.stdout import own_stdout
from torchcoll.bench.watchdog import write_error_file
from torchcoll.core.case import fingerprint
from torchcoll.core.errors import (
    ExitCode,
    HangError,
    TorchcollError,
    UnavailableError,
    printable,
    tell,
)
from torchcoll.machine.launcher import ContradictionOnAllRanks, Launch, detect, likely_rank

if TYPE_CHECKING:
    from torchcoll.bench.output import Output
    from torchcoll.bench.session import Session


# torchrun ends rank 0 within 0.1 s when another rank has failed: rank 0 is to have its say first.
_AFTER_RANK_0_S = 0.5


Action = Callable[[Launch, list[str]], int]


def main(
    collective: str | None = None,
    argv: Sequence[str] | None = None,
    *,
    action: Action | None = None,
) -> None:
    """Measure and exit with the designed code; ``collective`` None is the suite.

    action: what is done with the launch and the words of the command line in place of the cases of
    a collective.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)

    def act(launch: Launch) -> int:
        if launch.rank and not {"-h", "--help"}.isdisjoint(arguments):
            return ExitCode.OK  # rank 0 prints it
        return (action or partial(_run_cases, collective))(launch, arguments)

    sys.exit(on_ranks(act))


def on_ranks(action: Callable[[Launch], int]) -> int:
    """The exit code of ``action``, or of its error, which rank 0 alone prints."""
    own_stdout()
    rank = likely_rank()
    # Where a launcher's variables make no sense on some ranks, rank 0 may not be one of them: each
    # speaks for itself.
    alone = True
    try:
        launch = detect()
        rank, alone = launch.rank, launch.rank == 0
        code = action(launch)
    except TorchcollError as error:
        if isinstance(error, ContradictionOnAllRanks):
            alone = rank == 0
        # A HangError that comes to here is of a rank that rank 0 cannot hear.
        complain(error.line(), rank, speaks=alone or isinstance(error, HangError))
        code = int(error.exit_code)
    if sys.stdout:  # None where it was closed before the start
        sys.stdout.flush()
    if rank and code:
        time.sleep(_AFTER_RANK_0_S)
    return int(code)


def _program(collective: str | None) -> str:
    from torchcoll.core.collectives import COLLECTIVES

    return f"torchcoll.{COLLECTIVES[collective].module if collective else 'suite'}"


def complain(line: str, rank: int, speaks: bool) -> None:
    if speaks:
        tell(line)
    write_error_file(line, rank)


def _run_cases(collective: str | None, launch: Launch, arguments: list[str]) -> int:
    options = parse(arguments, collective, _program(collective))
    if options.dry_run:
        return _dry_run(options, launch)
    return measure(options, launch, arguments, _sweep_cases)


def _dry_run(options: Options, launch: Launch) -> int:
    from torchcoll.bench.plan import plan, plan_lines

    if launch.rank == 0:
        ranks = options.ranks or launch.ranks
        spec, notes = options.asked(ranks)
        print("\n".join(map(printable, plan_lines(plan(spec, ranks)))))
        for note in notes:
            tell(f"torchcoll: warning: {note}")
    return ExitCode.OK


# Measures all there is; the text of what makes the exit code 1, on all ranks alike.
Sweep = Callable[["Session", "Output | None"], "str | None"]


def _sweep_cases(session: Session, output: Output | None) -> str | None:
    missing = session.control.decide(output and output.begin(session))
    session.sweep(missing)
    failure: str | None = session.control.decide(output and output.failure(session))
    return failure


def measure(options: Options, launch: Launch, arguments: list[str], sweep: Sweep) -> int:
    """The exit code of a launch in which ``sweep`` measures; raises what ends it before that."""
    start = time.perf_counter_ns()
    torch = import_torch()
    phases = {"import_torch": time.perf_counter_ns() - start}
    from torchcoll.bench.session import Session

    if options.rendezvous_file:
        launch = replace(launch, rendezvous_file=options.rendezvous_file)
    if options.ranks and not options.spec.communicates:
        launch = replace(launch, ranks=options.ranks)
    output = library_log = None
    if options.library_log:
        from torchcoll.bench.library_log import LibraryLog

        library_log = LibraryLog(lambda: output.path if output else None)
    if launch.rank == 0:
        from torchcoll.bench.output import Output

        output = Output(options, launch.ranks)

    def last_words(code: int, text: str, speaks: bool) -> None:
        if output:
            output.abandon(session.run)
        complain(f"torchcoll: error: {text}", launch.rank, speaks)

    session = Session(
        torch,
        options.spec,
        launch=launch,
        earlier=output.earlier if output else None,
        on_case=output.on_case if output and not options.other else None,
        emit=output.emit if output else (lambda record, data: None),
        asked=fingerprint(
            [
                options.spec.to_json(),
                options.resume,
                options.traffic,
                options.library_log,
                options.require_idle,
                repr(options.other),
            ]
        ),
        argv=arguments,
        phases=phases,
        on_last_words=last_words,
        library_log=library_log,
        require_idle=options.require_idle,
        result_file=lambda: output.path if output else None,
    )
    if output:
        output.run = session.run
    return _drive(session, output, sweep)


def import_torch() -> Any:
    # torch prints pages of C++ frames about a store that is gone; the message is ours to give.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(
            "torch", error, "torch 2.6 or newer in this Python", "pip install torch"
        ) from None
    return torch


def _drive(session: Session, output: Output | None, sweep: Sweep) -> int:
    """Run the session to its end; the exit code, equal on all ranks."""
    try:
        session.open()
        failure = sweep(session, output)
        code = ExitCode.FAILED if failure else ExitCode.OK
        session.finish("complete", code, failure or "")
    except HangError as error:
        if session.watchdog is None:
            raise
        session.watchdog.trouble(str(error), "hang")
    except TorchcollError as error:
        session.finish("failed", int(error.exit_code), str(error))
        raise
    except BaseException as error:
        # A fault of ours, or somebody's sys.exit: the others must not wait for this rank until the
        # timeout.
        if session.watchdog is None or session.control.ranks == 1:
            raise
        traceback.print_exc()
        session.watchdog.trouble(f"{type(error).__name__}: {error}")
    finally:
        session.close()
        if output:
            output.close(session.run)
    if output and output.lost and not failure:  # at the very end
        failure, code = output.lost, ExitCode.FAILED
    if failure:
        complain(f"torchcoll: error: {failure}", session.rank, speaks=session.rank == 0)
    return int(code)
