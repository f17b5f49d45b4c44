"""One run from its start to its end: the ranks meet, agree, open devices and groups, and leave.

``run`` is the public function; the command (bench/main.py) runs the same Sweep on the same Session
and adds a file and a table.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torchcoll.bench.communicators import Communicators
from torchcoll.bench.control import (
    GRACE_S,
    Control,
    DamagedError,
    NoWordError,
    alarm,
    own_part,
    store_of,
)
from torchcoll.bench.sweep import OnCase, Sweep
from torchcoll.bench.watchdog import Progress, Watchdog, no_progress, print_error
from torchcoll.core import backends
from torchcoll.core.case import fingerprint
from torchcoll.core.errors import (
    ExitCode,
    HangError,
    TorchcollError,
    UnavailableError,
    UsageError,
    print_traceback,
    tell,
)
from torchcoll.core.spec import Spec
from torchcoll.core.units import shorten
from torchcoll.core.variables import masked_words
from torchcoll.machine import environment
from torchcoll.machine.devices import open_device, refuse_shared
from torchcoll.machine.launcher import Launch, detect

if TYPE_CHECKING:
    from torchcoll.bench.library_log import LibraryLog
    from torchcoll.bench.recorder import Recorder
    from torchcoll.core.backends import BackendEntry
    from torchcoll.core.result import Run
    from torchcoll.machine.devices import Device
    from torchcoll.machine.host_watch import Watch

_HOSTS_NAMED = 4  # of those that have come, on the terminal
Places = list[tuple[str, str | None]]  # host and card (or device) of each rank
Parts = tuple[tuple[int, ...], ...]  # ranks of the run in each sub-group


@dataclass(frozen=True)
class Rank:
    """This rank among the others: what code on the ranks needs of an open session.

    torch: the module. rank, ranks: this rank's number and how many there are. control: agreement
    with the other ranks through the store. progress: what the watchdog sees of this rank. device:
    where its buffers are. watchdog: ends the run.
    """

    torch: Any
    rank: int
    ranks: int
    control: Control
    progress: Progress
    device: Device
    watchdog: Watchdog

    @property
    def dist(self) -> Any:
        """torch.distributed."""
        return self.torch.distributed

    def abort(self, text: str, code: ExitCode | None = None) -> NoReturn:
        """End the run for what this rank alone has met; the watchdogs say where each rank is.

        code: the exit code of a user's mistake, whose text is printed as it is.
        """
        self.watchdog.abort(text, code=code)


@dataclass(frozen=True)
class SessionOptions:
    """What a program or a command asks of a run.

    asked: a hash that must be equal on all ranks; '' is that of the spec. phases: durations that
    the caller has measured already. earlier: gives rank 0's Spec, where it comes from a file that
    only rank 0 reads. library_log: --library-log. require_idle: refuse to open where others use the
    machine. recorder: rank 0's, of one who does more with it than to keep it in memory; its run has
    the path of the result file once the header is written.

    soak_s: for so long rounds are repeated (bench/soak.py), which SIGUSR1 ends.
    on_progress: called on rank 0 with a short description of each setup step.

    on_leaving: of a command, whose process this is: called where the process ends at once. With it
    signals are taken, and what goes wrong here alone ends the process with what is known of it.
    """

    spec: Spec
    launch: Launch | None = None
    asked: str = ""
    argv: Sequence[str] | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    earlier: Callable[[], Spec] | None = None
    library_log: bool = False
    require_idle: bool = False
    recorder: Recorder | None = None
    on_leaving: Callable[[], None] | None = None
    soak_s: float | None = None
    on_progress: Callable[[str], None] = no_progress


def run(spec: Spec, on_case: OnCase | None = None) -> Run | None:
    """Measure ``spec`` on all ranks of this run; the Run on rank 0, None elsewhere.

    Uses the default process group when there is one (its backend, or ``spec.backend`` in a new
    group), else the launcher's variables, else one rank; leaves things as it found them.
    ``on_case`` is called on rank 0 with each CaseResult as it is ready. A rank that hangs, is lost
    or leaves by an error of its own (in ``on_case``, Ctrl-C) ends the processes of the others with
    exit code 5. Raises UsageError and UnavailableError, on all ranks.
    """
    if not isinstance(spec, Spec):
        action = "traffic.spec() makes one of a Traffic."
        raise UsageError("spec", type(spec).__name__, "a torchcoll.Spec", action)
    import torch

    with opened(torch, SessionOptions(spec)) as session:
        Sweep(session, on_case=on_case).run()
        session.finish(*session.outcome())
    return session.run


@contextlib.contextmanager
def opened(torch: Any, options: SessionOptions) -> Iterator[Session]:
    """What is open, closed whatever happens; the other ranks are told where this one goes alone.

    Complete with exit code 0 unless ``finish`` has said otherwise.
    """
    meeting = Rendezvous(torch, options)  # where there is none, there is nobody to tell
    ours, lost = options.on_leaving is not None, False
    try:
        session = Session(meeting, options)
        yield session
        if meeting.code is None:
            session.finish()
    except TorchcollError as error:
        lost = isinstance(error, HangError)
        if lost and ours:
            kind = "store" if isinstance(error, DamagedError) else "hang"
            meeting.watchdog.abort(str(error), kind, waited=isinstance(error, NoWordError))
        meeting.finish("failed", int(error.exit_code), str(error))
        raise
    except BaseException as error:
        # A fault of ours, or somebody's sys.exit: the others must not wait for this rank until the
        # timeout.
        lost = meeting.control.ranks > 1
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        if lost and ours:
            # Whatever asks the store may be what finds it gone, torch's making of a group too.
            if isinstance(error, torch.distributed.DistNetworkError):
                meeting.watchdog.abort(str(meeting.control.cut_off(error)), "hang")
            print_traceback()
            meeting.watchdog.abort(text)
        if not lost and meeting.code is None:
            meeting.finish("failed", ExitCode.FAILED, text)
        meeting.watchdog.raise_alarm(text)
        raise
    finally:
        meeting.close(lost)


class Rendezvous:
    """This rank where it has met the others: it can agree with them, is watched, and keeps the
    account of the run, on rank 0 with a ``recorder``.

    Raises what stands against it on this rank; nothing is open then. ``undo``: what is put back in
    the end. ``file``: where rank 0 writes, and the run's id, from the header on. ``code``: the
    run's exit code, from its end on.
    """

    def __init__(self, torch: Any, options: SessionOptions) -> None:
        dist = torch.distributed
        self.torch = torch
        self.environ = dict(os.environ)  # as it was before this run sets variables of its own
        self.found_group = bool(dist.is_available() and dist.is_initialized())
        self.launch = options.launch or self._launch()
        self.phases = dict(options.phases)
        self.progress = Progress(on_progress=options.on_progress)
        self.undo = contextlib.ExitStack()
        self.file: list[str] | None = None
        self.code: int | None = None
        self._began = time.monotonic()
        self._on_leaving = options.on_leaving
        self.recorder = options.recorder
        if self.launch.rank == 0 and self.recorder is None:
            from torchcoll.bench.recorder import Recorder

            self.recorder = Recorder()
        # A world of which this process is the only rank agrees with itself.
        fake = not (options.spec.communicates or self.found_group)
        participants, limit_s = 1 if fake else self.launch.ranks, options.spec.timeout_s
        with self.phase("rendezvous"):
            store = store_of(torch, self.launch, limit_s, self.found_group, fake)
        # Until here rank 0 waits for nobody; the others wait for it, and leave where it is away.
        start_up_s = time.monotonic() - self._began
        subgroup_store, client = own_part(dist, store, participants > 1)
        self.control = Control(subgroup_store, self.launch.rank, participants, limit_s)
        try:
            self.watchdog = Watchdog(
                self.control,
                client,
                self.progress,
                self._final_report,
                signals=options.on_leaving is not None,
                stops=options.soak_s is not None,
                start_up_s=start_up_s if self.launch.rank == 0 else 0.0,
            )
        except RuntimeError as error:
            if participants > 1:
                alarm(client, self.launch.rank, {**self.progress.status(), "cause": str(error)})
            from torchcoll.bench.meeting import no_thread

            raise no_thread(error) from None

    def _launch(self) -> Launch:
        if not self.found_group:
            return detect()
        dist, local_rank = self.torch.distributed, os.environ.get("LOCAL_RANK")
        return Launch(
            "process group",
            dist.get_rank(),
            dist.get_world_size(),
            int(local_rank or 0),
            has_local_rank=local_rank is not None,
        )

    @contextlib.contextmanager
    def phase(self, name: str) -> Any:
        self.progress.step(name)
        start = time.perf_counter_ns()
        yield
        self.phases[name] = time.perf_counter_ns() - start

    def finish(self, status: str, exit_code: int, reason: str = "") -> None:
        """The ``end`` record: nothing that comes after it is told any more."""
        self.code = int(exit_code)
        if self.recorder:
            self.recorder.end(status, exit_code, time.monotonic() - self._began, reason)
            self._account_closed()

    def _account_closed(self) -> None:
        self.watchdog.over = self.code

    def close(self, lost: bool) -> None:
        """Leave together and put back what was made here; ``lost``: without the others."""
        self.watchdog.parting.set()
        dist = self.torch.distributed
        try:
            if lost:
                return
            if not self.found_group and dist.is_available() and dist.is_initialized():
                # gloo aborts when a peer's process ends before this rank has left the group.
                with contextlib.suppress(TorchcollError, RuntimeError):
                    self.control.leave(self._account_closed)
            else:
                # Refused by all ranks alike, or in a group that was there: the others are to read
                # rank 0's last word from its store before its program may end.
                with contextlib.suppress(TorchcollError, RuntimeError):
                    self.control.gather(None, GRACE_S)
            self.undo.close()
        finally:
            self.watchdog.close()
            del self.watchdog  # with its connection, which would stay until Python collects cycles

    def _final_report(self, status: str, code: int, kind: str, text: str, speaks: bool) -> None:
        if kind != "signal" and self.launch.rank == 0 and not self.control.hosts:
            from torchcoll.bench.meeting import why_none_came

            import_s = self.phases.get("import_torch", 0) / 1e9
            text += why_none_came(self.launch, self.control.timeout_s, import_s)
        if self.recorder:
            with contextlib.suppress(Exception):  # a full disk must not silence this rank
                if kind == "hang":
                    self.recorder.timed_out(self.launch.ranks, text)
                self.recorder.event(kind, text)
                self.finish(status, code, text)
        elif speaks and self.file and self.watchdog.rank_0_ended:
            wall_s = round(time.monotonic() - self._began, 3)
            with contextlib.suppress(ImportError):
                from torchcoll.core.file import append_end

                append_end(
                    Path(self.file[0]),
                    self.file[1],
                    {"kind": kind, "message": text, "utc": environment.utc_now()},
                    {"status": status, "exit_code": code, "wall_s": wall_s, "reason": text},
                )
        if self._on_leaving:
            self._on_leaving()
            print_error(f"torchcoll: error: {text}", self.launch.rank, speaks)
        elif speaks:
            tell(f"torchcoll: error: {text}")


class Session:
    """What is open on one rank: the run, its device and its communicators.

    Made by ``opened``, complete from then on. Making it is collective: hello, device, header,
    process groups, ranks and phases. ``local`` is this rank. ``recorder`` and ``run`` exist on rank
    0 alone. spec, parts, sizings: what was asked, as it is on this run, its sub-groups and its
    cases.
    """

    def __init__(self, meeting: Rendezvous, options: SessionOptions) -> None:
        self._meeting = meeting
        self.launch, self.found_group = meeting.launch, meeting.found_group
        self.environ = meeting.environ
        self.recorder = meeting.recorder
        self.soak_s = options.soak_s
        self.flush_bytes = 0  # what each flush overwrites on this rank; 0 without one
        torch, control = meeting.torch, meeting.control

        argv = None if options.argv is None else masked_words(list(options.argv))
        self._hello(options.asked or fingerprint(options.spec.to_json()), argv, options.spec)
        spec = options.spec  # rank 0's, on every rank
        self.cpu_named = spec.device == "cpu" or spec.backend is not None

        def read_spec(recorder: Recorder) -> None:
            nonlocal spec
            spec = options.earlier() if options.earlier else spec

        self.on_rank_0(read_spec)
        spec = Spec.from_json(control.decide(spec.to_json()))
        control.timeout_s = spec.timeout_s
        self.library_log: LibraryLog | None = None
        if options.library_log:
            from torchcoll.bench.library_log import LibraryLog

            self.library_log = LibraryLog()
        self.entries, device, places, place = self._open_device(spec)
        number, ranks = self.launch.rank, self.launch.ranks
        self.local = Rank(torch, number, ranks, control, meeting.progress, device, meeting.watchdog)
        # On the first rank of each host, where ranks communicate: the state of the machine.
        self.watch: Watch | None = None
        state: dict[str, Any] | None = None
        if self.entries[0].communicates:
            state = self._watch_host(place, options.require_idle)
        names = ",".join(entry.name for entry in self.entries)
        self.spec = replace(spec, backend=names, device=device.kind)
        self.parts: Parts = self.spec.parts(ranks)
        self.sizings = self.spec.sizings(max(map(len, self.parts)))

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
            self.local, self.spec, self.parts, self.entries, self.found_group
        )
        meeting.undo.callback(self.communicators.close)
        self.communicators.open(meeting.phase)
        self._exchange_members(places, state)

    @property
    def run(self) -> Run | None:
        return self.recorder.run if self.recorder else None

    def on_rank_0(self, action: Callable[[Recorder], object]) -> None:
        """What may fail on rank 0 alone (opening the file): then every rank raises its error."""
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

    @property
    def file(self) -> tuple[str, str] | None:
        """The result file, where rank 0 writes one, and the id of the run."""
        file = self._meeting.file
        return (file[0], file[1]) if file else None

    @property
    def asked_to_stop(self) -> bool:
        """Whether this rank got SIGUSR1, where it is taken."""
        return self._meeting.watchdog.asked_to_stop

    def finish(self, exit_code: int = ExitCode.OK, reason: str = "") -> None:
        """What was asked has run, and came to this."""
        self._meeting.finish("complete", exit_code, reason)

    def outcome(self) -> tuple[int, str]:
        """Exit code and reason of cases that came to their end, as the command has them. On ranks
        other than 0, which keep no results, 0.
        """
        if not self.run:
            return ExitCode.OK, ""
        from torchcoll.core.result import stated_shortfall

        reason = stated_shortfall(self.run.results)
        return (ExitCode.FAILED if reason else ExitCode.OK), reason

    def _hello(self, asked: str, argv: list[str] | None, spec: Spec) -> None:
        """Every rank says who it is and what it was asked; the odd one is named."""
        control, progress = self._meeting.control, self._meeting.progress
        hello = {
            "host": environment.hostname(),
            "asked": asked,
            "argv": " ".join(argv or []),
        }

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
            from torchcoll.bench.admission import of_arguments

            raise of_arguments(control, hellos, spec)

    def _open_device(
        self, spec: Spec
    ) -> tuple[tuple[BackendEntry, ...], Device, Places, str | None]:
        """Backends, this rank's device, on rank 0 the card of each rank, and this rank's card; what
        any lacks, every rank raises.
        """
        meeting = self._meeting
        torch, control = meeting.torch, meeting.control
        refusal, place, identity = None, None, None
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
            with meeting.phase("device"):
                device = open_device(torch, kind, self.launch, spec.rehearse)
            place, identity = environment.device_place(torch, device)
        except TorchcollError as error:
            refusal = error
        devices = control.agree(refusal, [place, identity])
        meeting.watchdog.all_started()  # all ranks have read what rank 0 decided in the hello
        located = list(zip(control.hosts, devices, strict=False))
        places: Places = [(host, place_of_rank) for host, (place_of_rank, _) in located]
        if device.kind != "cpu" and not spec.rehearse:
            identities: Places = [
                (host, identity_of_rank) for host, (_, identity_of_rank) in located
            ]
            self.on_rank_0(lambda recorder: refuse_shared(identities, device.described))
        return entries, device, places, place

    def _watch_host(self, place: str | None, require_idle: bool) -> dict[str, Any] | None:
        """The first rank of each host looks at it: the state before the run, None on other ranks.

        place: the device of this rank. Collective. Raises UnavailableError on all ranks with
        ``require_idle`` where others use a host.
        """
        control, state, busy = self.local.control, None, None
        here = [*control.pids]
        places = control.share(place, here)
        if self.local.rank == here[0]:
            from torchcoll.machine.host_watch import Watch

            devices = [device for device in places if device]
            self.watch = Watch(self.local.device.kind, devices, [*control.pids.values()])
            state = self.watch.before()
            busy = self.watch.why_busy(state) if require_idle else None
        # Asked in any case: no phase is to begin with waiting for those who look.
        reasons = [reason for reason in control.gather(busy) if reason]
        reason = control.decide([reasons[0], len(reasons)] if reasons else None)
        if reason:
            more = f" (and {reason[1] - 1} more)" if reason[1] > 1 else ""
            raise UnavailableError(
                "require-idle",
                f"{reason[0]}{more}",
                "a machine that nobody else uses",
                "Wait, end that, or leave --require-idle out.",
            )
        return state

    def _exchange_members(self, places: Places, state: dict[str, Any] | None) -> None:
        """Rank 0 records who the ranks are. state: that of this host, from its first rank."""
        torch, device = self.local.torch, self.local.device
        implementations = {
            entry.name: backends.implementation(
                torch, self.communicators.whole(entry.name), device.name
            )
            for entry in self.entries
        }
        flushed: dict[str, int] = {}
        if self.spec.buffer_reuse == "flush":
            from torchcoll.bench.caches import flush_bytes

            self.flush_bytes = flush_bytes(torch, device, len(self.local.control.pids))
            flushed["flush_bytes"] = self.flush_bytes
        gathered = self.local.control.gather(
            {
                **environment.member(torch, self.launch, device),
                **flushed,
                "implementation": implementations,
                "communicators": self.communicators.growth,
                "variables": environment.variables(),
                "phases": self._meeting.phases,
                "machine": state,
            }
        )

        def keep(recorder: Recorder) -> None:
            from torchcoll.bench.recorder import keep_members

            keep_members(self, recorder, gathered, places)

        self.on_rank_0(keep)
