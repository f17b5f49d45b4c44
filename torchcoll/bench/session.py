"""One run from top to bottom: the ranks meet, agree, open device and groups, sweep, and close.

The command (bench/main.py) runs the same Sweep as ``run``, and adds a file and a table.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torchcoll.bench import control as exchange
from torchcoll.bench.communicators import Communicators
from torchcoll.bench.control import Control
from torchcoll.bench.sweep import OnCase, Sweep
from torchcoll.bench.watchdog import Progress, Watchdog, no_progress, print_error
from torchcoll.core import backends, errors
from torchcoll.core.case import fingerprint
from torchcoll.core.errors import ExitCode, TorchcollError
from torchcoll.core.spec import Spec
from torchcoll.core.units import shorten
from torchcoll.core.variables import masked_words
from torchcoll.machine import environment
from torchcoll.machine.devices import open_device, refuse_shared
from torchcoll.machine.launcher import Launch, detect

if TYPE_CHECKING:
    from torchcoll.bench.departure import Departure
    from torchcoll.bench.library_log import LibraryLog
    from torchcoll.bench.recorder import Recorder
    from torchcoll.core.result import Run
    from torchcoll.machine.devices import Device
    from torchcoll.machine.host_watch import Watch

_HOSTS_NAMED = 4  # of the ranks that have come, on the terminal
_MOST_SAMPLES = 32_000_000  # of a case, in the memory and the file of rank 0
Cards = list[tuple[str, str | None]]  # host and card (or device) of each rank
Subgroups = tuple[tuple[int, ...], ...]  # ranks of the run in each sub-group


@dataclass(frozen=True)
class Rank:
    """This rank among the others: what code on the ranks needs of an open session."""

    torch: Any  # the module
    rank: int  # the number of this rank
    ranks: int  # how many there are
    control: Control  # agreement with the other ranks through the store
    progress: Progress  # what the watchdog sees of this rank
    device: Device  # where its buffers are
    departure: Departure  # ends the run

    @property
    def dist(self) -> Any:
        """torch.distributed."""
        return self.torch.distributed

    def abort(self, text: str, code: ExitCode | None = None) -> NoReturn:
        """End the run for an error of this rank alone. code: of a user's mistake."""
        self.departure.abort(text, code=code)


@dataclass(frozen=True)
class SessionOptions:
    """What a program or a command asks of a run.

    asked: a hash that must be equal on all ranks; '' for that of the spec.
    argv, phases: arguments of the command, and durations in ns measured already, for the file.
    earlier: returns rank 0's Spec if it comes from a file that only rank 0 reads.
    on_exit: called just before the process exits on a signal or an error. Only a command has it:
        then signals are handled, and an error of this rank alone ends the process with a report.
    soak_s: rounds are repeated for so long (bench/soak.py), or until SIGUSR1.
    on_progress: called on rank 0 with a short description of each step of the setup.
    """

    spec: Spec
    launch: Launch | None = None
    asked: str = ""
    argv: Sequence[str] | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    earlier: Callable[[], Spec] | None = None
    library_log: bool = False
    recorder: Recorder | None = None
    on_exit: Callable[[], None] | None = None
    soak_s: float | None = None
    on_progress: Callable[[str], None] = no_progress


def run(spec: Spec, on_case: OnCase | None = None) -> Run | None:
    """Measure ``spec`` on all ranks of this run; the Run on rank 0, None elsewhere.

    Uses the default process group when there is one, else the launcher's variables, else one rank.
    ``on_case`` is called on rank 0 with each CaseResult. A rank that hangs, is lost or leaves by an
    error of its own ends the others with exit code 5. Raises UsageError and UnavailableError.
    """
    if not isinstance(spec, Spec):
        action = "traffic.spec() makes one of a Traffic."
        raise errors.UsageError("spec", type(spec).__name__, "a torchcoll.Spec", action)
    import torch

    with opened(torch, SessionOptions(spec)) as session:
        Sweep(session, on_case=on_case).run()
        session.finish(*session.outcome())
    return session.run


@contextlib.contextmanager
def opened(torch: Any, options: SessionOptions) -> Iterator[Session]:
    """The session of a run, closed in any case. A rank that leaves alone raises the alarm. The run
    is complete with exit code 0 unless ``finish`` has recorded another end.
    """
    meeting = Rendezvous(torch, options)  # meet; before that there is nobody to tell
    departure = meeting.watchdog.departure
    is_command, alone = options.on_exit is not None, False
    try:
        session = Session(meeting, options)  # agree and open
        yield session  # sweep
        if meeting.code is None:
            session.finish()
    except TorchcollError as error:
        alone = isinstance(error, errors.HangError)
        if alone and is_command:
            kind = "store" if isinstance(error, exchange.DamagedError) else "hang"
            departure.abort(str(error), kind, waited=isinstance(error, exchange.NoWordError))
        meeting.finish("failed", int(error.exit_code), str(error))
        raise
    except BaseException as error:
        # A fault of torchcoll, or sys.exit in the user's code: the others must not wait for this
        # rank until the timeout.
        alone = meeting.control.ranks > 1
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        if alone and is_command:
            # Any question to the store may find it gone, torch's making of a group too.
            if isinstance(error, torch.distributed.DistNetworkError):
                departure.abort(str(meeting.control.cut_off(error)), "hang")
            errors.print_traceback()
            departure.abort(text)
        if not alone and meeting.code is None:
            meeting.finish("failed", ExitCode.FAILED, text)
        departure.raise_alarm(text)
        raise
    finally:
        meeting.close(alone)


class Rendezvous:
    """This rank once it has met the others: it can agree with them and is watched. Raises
    TorchcollError if this rank finds no store or can have no threads; nothing is open then.
    """

    def __init__(self, torch: Any, options: SessionOptions) -> None:
        dist = torch.distributed
        self.torch = torch
        self.environ = dict(os.environ)  # as it was before this run sets variables of its own
        self.found_group = bool(dist.is_available() and dist.is_initialized())
        self.launch = options.launch or (_launch_of_group(dist) if self.found_group else detect())
        self.progress = Progress(on_progress=options.on_progress, phases=dict(options.phases))
        self.undo = contextlib.ExitStack()
        self.file: list[str] | None = None
        self.code: int | None = None
        self._began = time.monotonic()
        self._on_exit = options.on_exit
        self.recorder = options.recorder
        if self.launch.rank == 0 and self.recorder is None:
            from torchcoll.bench.recorder import Recorder

            self.recorder = Recorder()
        # In a fake world this process is the only rank, and agrees with itself.
        fake = not (options.spec.communicates or self.found_group)
        participants, limit_s = 1 if fake else self.launch.ranks, options.spec.timeout_s
        with self.progress.phase("rendezvous"):
            store = exchange.store_of(torch, self.launch, limit_s, self.found_group, fake)
        # Until here rank 0 waits for no rank. The others wait for it, and leave if it is away.
        start_up_s = time.monotonic() - self._began
        run_store, client = exchange.run_stores(dist, store, participants > 1)
        self.control = Control(run_store, self.launch.rank, participants, limit_s)
        try:
            self.watchdog = Watchdog(
                self.control,
                client,
                self.progress,
                self._final_report,
                signals=options.on_exit is not None,
                stops=options.soak_s is not None,
                start_up_s=start_up_s if self.launch.rank == 0 else 0.0,
            )
        except RuntimeError as error:
            if participants > 1:
                status = {**self.progress.status(), "cause": str(error)}
                exchange.alarm(client, self.launch.rank, status)
            from torchcoll.bench.meeting import no_thread

            raise no_thread(error) from None

    def finish(self, status: str, exit_code: int, reason: str = "") -> None:
        """Write the record ``end``: what happens later is not recorded."""
        self.code = int(exit_code)
        if self.recorder:
            self.recorder.end(status, exit_code, time.monotonic() - self._began, reason)
            self._account_closed()

    def _account_closed(self) -> None:
        self.watchdog.departure.closed_code = self.code

    def close(self, alone: bool) -> None:
        """Leave together with the other ranks, unless ``alone``, and undo what was made here."""
        self.watchdog.departure.parting.set()
        dist = self.torch.distributed
        try:
            if alone:
                return
            with contextlib.suppress(TorchcollError, RuntimeError):
                if not self.found_group and dist.is_available() and dist.is_initialized():
                    # gloo aborts if a peer's process ends before this rank has left the group.
                    self.control.leave(self._account_closed)
                else:
                    # All ranks were refused, or the group is the program's: the others must read
                    # rank 0's last value from its store before its program may end.
                    self.control.gather(None, exchange.GRACE_S)
            self.undo.close()
        finally:
            self.watchdog.close()
            del self.watchdog  # with its connection, which would stay until Python collects cycles

    def _final_report(self, status: str, code: int, kind: str, text: str, speaks: bool) -> None:
        """The FinalReport of bench/departure.py."""
        if kind != "signal" and self.launch.rank == 0 and not self.control.hosts:
            from torchcoll.bench.meeting import why_none_came

            import_s = self.progress.phases.get("import_torch", 0) / 1e9
            text += why_none_came(self.launch, self.control.timeout_s, import_s)
        if self.recorder:
            with contextlib.suppress(Exception):  # a full disk must not silence this rank
                if kind == "hang":
                    self.recorder.timed_out(self.launch.ranks, text)
                self.recorder.event(kind, text)
                self.finish(status, code, text)
        elif speaks and self.file and self.watchdog.departure.rank_0_ended:
            wall_s = round(time.monotonic() - self._began, 3)
            with contextlib.suppress(ImportError):
                from torchcoll.core.file import append_end

                append_end(
                    Path(self.file[0]),
                    self.file[1],
                    {"kind": kind, "message": text, "utc": environment.utc_now()},
                    {"status": status, "exit_code": code, "wall_s": wall_s, "reason": text},
                )
        if self._on_exit:
            self._on_exit()
            print_error(f"torchcoll: error: {text}", self.launch.rank, speaks)
        elif speaks:
            errors.tell(f"torchcoll: error: {text}")


def _check_samples(spec: Spec, ranks: int) -> None:
    """Raises UsageError for more calls of a case than rank 0 has room for."""
    if (spec.iters or 0) * ranks > _MOST_SAMPLES:
        most = _MOST_SAMPLES // ranks
        expected = f"at most {most} on {ranks} ranks, whose times rank 0 gathers"
        raise errors.UsageError("iters", spec.iters, expected, "--soak measures for hours.")


def _launch_of_group(dist: Any) -> Launch:
    """The launch of a rank of the default process group."""
    local_rank, has_local_rank = os.environ.get("LOCAL_RANK"), "LOCAL_RANK" in os.environ
    numbers = (dist.get_rank(), dist.get_world_size(), int(local_rank or 0))
    return Launch("process group", *numbers, has_local_rank=has_local_rank)


class Session:
    """What is open on one rank: the run, its device and its communicators. Made collectively.

    spec, subgroups, sizings: rank 0's Spec, its sub-groups and its cases. recorder, run: rank 0's.
    """

    def __init__(self, meeting: Rendezvous, options: SessionOptions) -> None:
        self._meeting = meeting
        self.launch, self.found_group = meeting.launch, meeting.found_group
        self.environ = meeting.environ
        self.recorder = meeting.recorder
        self.soak_s = options.soak_s
        self.flush_bytes = 0  # what each flush overwrites on this rank; 0 without one
        torch, control = meeting.torch, meeting.control

        # Agree: who the ranks are, and on rank 0's Spec.
        argv = None if options.argv is None else masked_words(list(options.argv))
        of_rank_0 = options.spec.to_json()
        self._hello(options.asked or fingerprint(of_rank_0), argv, options.spec)
        self.cpu_named = options.spec.device == "cpu" or options.spec.backend is not None

        def read_spec(recorder: Recorder) -> None:
            nonlocal of_rank_0
            if options.earlier:
                of_rank_0 = options.earlier().to_json()

        self.on_rank_0(read_spec)
        spec = Spec.from_json(control.decide(of_rank_0))
        control.timeout_s = spec.timeout_s

        # Open: the device, the file's header, the library's log, the process groups.
        self.library_log: LibraryLog | None = None
        if options.library_log:
            from torchcoll.bench.library_log import LibraryLog

            self.library_log = LibraryLog()
        self.entries, device, cards, card = self._open_device(spec)
        number, ranks = self.launch.rank, self.launch.ranks
        departure = meeting.watchdog.departure
        self.local = Rank(torch, number, ranks, control, meeting.progress, device, departure)
        # On the first rank of each host, where ranks communicate: the state of the machine.
        self.watch: Watch | None = None
        state: dict[str, Any] | None = None
        if self.entries[0].communicates:
            state = self._watch_host(card)
        names = ",".join(entry.name for entry in self.entries)
        self.spec = replace(spec, backend=names, device=device.kind)
        _check_samples(self.spec, ranks)
        self.subgroups: Subgroups = self.spec.subgroups(ranks)
        self.sizings = self.spec.sizings(max(map(len, self.subgroups)))

        def write_header(recorder: Recorder) -> None:
            from torchcoll.bench.recorder import header

            recorder.header(header(self, argv))
            if path := recorder.run.path:
                meeting.file = [os.path.abspath(path), recorder.run.header["run_id"]]

        self.on_rank_0(write_header)
        meeting.file = control.decide(meeting.file)
        if self.library_log:
            meeting.undo.callback(self.library_log.close)
            self.library_log.start(self.local, self.recorder)
        self.communicators = Communicators(
            self.local, self.spec, self.subgroups, self.entries, self.found_group
        )
        meeting.undo.callback(self.communicators.close)
        self.communicators.open()
        self._exchange_members(cards, state)

    @property
    def run(self) -> Run | None:
        return self.recorder.run if self.recorder else None

    @property
    def file(self) -> tuple[str, str] | None:
        """Path of the result file, if rank 0 writes one, and the id of the run."""
        file = self._meeting.file
        return (file[0], file[1]) if file else None

    @property
    def asked_to_stop(self) -> bool:
        """Whether this rank got SIGUSR1, if it is handled."""
        return self._meeting.watchdog.asked_to_stop

    def on_rank_0(self, action: Callable[[Recorder], object]) -> None:
        """Do what may fail on rank 0 alone, such as opening a file: all ranks raise its error."""
        failure = None
        if self.recorder:
            try:
                action(self.recorder)
            except TorchcollError as error:
                failure = error
        control = self._meeting.control
        failure_of_rank_0 = control.decide(failure and [str(failure), int(failure.exit_code)])
        if failure_of_rank_0:
            refusal = failure or TorchcollError(failure_of_rank_0[0])
            refusal.exit_code = ExitCode(failure_of_rank_0[1])
            raise refusal

    def finish(self, exit_code: int = ExitCode.OK, reason: str = "") -> None:
        """Record the end of a run that is complete."""
        self._meeting.finish("complete", exit_code, reason)

    def outcome(self) -> tuple[int, str]:
        """Exit code and reason of a complete sweep; 0 on other ranks, which keep no results."""
        if not self.run:
            return ExitCode.OK, ""
        from torchcoll.core.result import stated_shortfall

        reason = stated_shortfall(self.run.results)
        return (ExitCode.FAILED if reason else ExitCode.OK), reason

    def _hello(self, asked: str, argv: list[str] | None, spec: Spec) -> None:
        """Every rank says who it is and what it was asked; the odd one is named."""
        control, progress = self._meeting.control, self._meeting.progress
        hello = {"host": environment.hostname(), "asked": asked, "argv": " ".join(argv or [])}

        def report_arrivals(hellos: Sequence[Any]) -> None:
            hosts = list(dict.fromkeys([hello["host"], *(other["host"] for other in hellos)]))
            where = shorten(hosts, _HOSTS_NAMED, ", ...")
            count = f"{len(hellos) + 1} of {control.ranks}"
            progress.on_progress(f"waiting for ranks: {count} here ({where})")

        if progress.on_progress is not no_progress and control.ranks > 1:
            control.came = report_arrivals
        hellos = control.gather(hello)
        control.share_hosts([hello["host"] for hello in hellos])
        control.came = None
        here = [rank for rank, host in enumerate(control.hosts) if host == hello["host"]]
        control.pids = dict(zip(here, control.share(os.getpid(), here), strict=True))
        launch = self.launch
        local_rank = launch.local_rank if launch.has_local_rank else here.index(launch.rank)
        local_ranks = max(launch.local_ranks, len(here))
        self.launch = replace(launch, local_rank=local_rank, local_ranks=local_ranks)
        progress.step("hello")
        if control.decide(len({hello["asked"] for hello in hellos}) > 1):
            from torchcoll.bench.plan import arguments_differ

            raise arguments_differ(control, hellos, spec)

    def _open_device(
        self, spec: Spec
    ) -> tuple[tuple[backends.BackendEntry, ...], Device, Cards, str | None]:
        """(backends, device, cards of all ranks on rank 0, own card), or the error of any rank."""
        meeting = self._meeting
        torch, control = meeting.torch, meeting.control
        refusal, card, identity = None, None, None
        try:
            names, kind = spec.backend, spec.device
            if self.found_group and names is None:
                names = backends.current_backend(torch, kind)
            entries, kind = backends.choose_backends(torch, names, kind)
            if self.library_log:
                self.library_log.ask_for(entries)
            if spec.rehearse:
                from torchcoll.bench.rehearsal import begin

                undo = begin(self.found_group, control.hosts, entries[0].name, kind, control.rank)
                meeting.undo.callback(undo)
            if any(entry.interfaces in os.environ for entry in entries):
                from torchcoll.machine.placement import check_interfaces

                check_interfaces(entries)
            with meeting.progress.phase("device"):
                device = open_device(torch, kind, self.launch, spec.rehearse)
            card, identity = environment.device_place(torch, device)
        except TorchcollError as error:
            refusal = error
        devices = control.agree(refusal, [card, identity])
        meeting.watchdog.pauses.all_started()  # all ranks have read rank 0's decision in the hello
        located = list(zip(control.hosts, devices, strict=False))
        if device.kind != "cpu" and not spec.rehearse:
            identities = [(host, identity_of_rank) for host, (_, identity_of_rank) in located]
            self.on_rank_0(lambda recorder: refuse_shared(identities, device.described))
        cards = [(host, card_of_rank) for host, (card_of_rank, _) in located]
        return entries, device, cards, card

    def _watch_host(self, card: str | None) -> dict[str, Any] | None:
        """The state of this host before the run, on its first rank; else None. Collective."""
        control, state = self.local.control, None
        here = [*control.pids]
        cards = control.share(card, here)
        if self.local.rank == here[0]:
            from torchcoll.machine.host_watch import Watch

            devices = [device for device in cards if device]
            self.watch = Watch(self.local.device.kind, devices, [*control.pids.values()])
            state = self.watch.before()
        control.align()  # no phase may begin with waiting for the ranks that look
        return state

    def _exchange_members(self, cards: Cards, state: dict[str, Any] | None) -> None:
        """Rank 0 records who the ranks are. state: of this host, from its first rank."""
        torch, device = self.local.torch, self.local.device
        implementations = {
            entry.name: backends.implementation(
                torch, self.communicators.whole(entry.name), device.name
            )
            for entry in self.entries
        }
        flushed: dict[str, int] = {}
        if self.spec.buffer_reuse == "flush":
            from torchcoll.bench.buffers import flush_bytes

            self.flush_bytes = flush_bytes(torch, device, len(self.local.control.pids))
            flushed["flush_bytes"] = self.flush_bytes
        gathered = self.local.control.gather(
            {
                **environment.member(torch, self.launch, device),
                **flushed,
                "implementation": implementations,
                "variables": environment.variables(),
                "phases": self.local.progress.phases,
                "machine": state,
            }
        )

        def keep(recorder: Recorder) -> None:
            from torchcoll.bench.recorder import keep_members

            keep_members(self, recorder, gathered, cards)

        self.on_rank_0(keep)
