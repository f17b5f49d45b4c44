"""One launch: set up, run the cases, collect the samples on rank 0.

``run`` is the public function; the command (bench/main.py) drives the same Session and adds a file
and a table.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from torchcoll.bench import backends, environment
from torchcoll.bench.control import GRACE_S, Control, open_store
from torchcoll.bench.launcher import Launch, detect
from torchcoll.bench.measure import measure_case
from torchcoll.bench.timing import nothing, time_isolated
from torchcoll.bench.watchdog import Progress, Watchdog
from torchcoll.core.case import Case, Sizing, Spec, fingerprint
from torchcoll.core.errors import ExitCode, HangError, TorchcollError, UsageError

if TYPE_CHECKING:  # imported on rank 0 alone: at thousands of ranks every import is paid
    from torchcoll.core.result import CaseResult, Run

OnCase = Callable[["CaseResult"], None]
COST_CALLS = 200  # calls of the no-op and the barrier whose median is the cost of measuring

_runs = 0  # sweeps in this process so far: each needs its own keys in a shared store


def run(spec: Spec, on_case: OnCase | None = None) -> Run | None:
    """Measure ``spec`` on all ranks of this launch; the Run on rank 0, None elsewhere.

    Uses the default process group when there is one (its backend, or ``spec.backend`` in a new
    group), else the launcher's variables, else one rank; leaves things as it found them.
    ``on_case`` is called on rank 0 with each CaseResult as it is ready. A rank that hangs or is
    lost ends all processes with exit code 5. Raises UsageError and UnavailableError.
    """
    import torch

    session = Session(torch, spec, on_case=on_case)
    lost = False
    try:
        session.open()
        session.sweep()
        session.finish()
    except TorchcollError as error:
        lost = isinstance(error, HangError)
        raise
    except BaseException:
        lost = True
        raise
    finally:
        session.close(lost)
    return session.run


class Recorder:
    """Rank 0's account of a launch: builds the Run and passes each record on (to the file)."""

    def __init__(self, run: Run, emit: Callable[[str, dict[str, Any]], None]) -> None:
        self.run = run
        self._emit = emit

    def header(self, data: dict[str, Any]) -> None:
        from torchcoll.core.records import SCHEMA

        self.run.header = {"schema": SCHEMA, **data}
        self._emit("header", self.run.header)

    def members(self, members: list[dict[str, Any]]) -> None:
        self.run.members = members
        self._emit("ranks", {"ranks": members})

    def phase(self, name: str, ns: list[int]) -> None:
        self.run.phases[name] = ns
        self._emit("phase", {"name": name, "ns": ns})

    def started(self, case: Case) -> None:
        self.run.in_flight = case
        self._emit("started", {"case": case.to_json()})

    def case(self, result: CaseResult) -> None:
        self.run.in_flight = None
        self.run.results.append(result)
        self._emit("case", result.to_json())

    def event(self, kind: str, message: str) -> None:
        event = {"kind": kind, "message": message, "utc": _utc()}
        self.run.events.append(event)
        self._emit("event", event)

    def end(self, status: str, exit_code: int, wall_s: float, reason: str) -> None:
        if self.run.end is None:
            self.run.end = {
                "status": status,
                "exit_code": exit_code,
                "wall_s": round(wall_s, 3),
                "reason": reason,
            }
            self._emit("end", self.run.end)


def _utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class Session:
    """The life of one launch on one rank. ``recorder`` and ``run`` exist on rank 0 alone.

    open -> sweep -> finish -> close. ``asked`` is a hash that must be equal on all ranks.
    ``phases`` are durations that the caller has measured already. ``on_last_words`` (exit code,
    text, whether this rank speaks for all) is the command's: with it signals are taken too.
    ``earlier`` gives rank 0's Spec, where it comes from a file that only rank 0 reads.
    """

    def __init__(
        self,
        torch: Any,
        spec: Spec,
        on_case: OnCase | None = None,
        launch: Launch | None = None,
        emit: Callable[[str, dict[str, Any]], None] = lambda record, data: None,
        asked: str = "",
        argv: list[str] | None = None,
        phases: dict[str, int] | None = None,
        earlier: Callable[[], Spec] | None = None,
        on_last_words: Callable[[int, str, bool], None] | None = None,
    ) -> None:
        self.torch = torch
        self.dist = torch.distributed
        self.spec = spec
        self.on_case = on_case
        self.found_group = bool(self.dist.is_available() and self.dist.is_initialized())
        self.launch = launch or self._launch()
        self.rank, self.ranks = self.launch.rank, self.launch.ranks
        self.phases = dict(phases or {})
        self.argv = argv
        self.progress = Progress()
        self.watchdog: Watchdog | None = None
        self.ordinals: Counter[Any] = Counter()  # calls that each communicator has made
        self.group: Any = None  # None: the default group
        self._asked = asked or fingerprint(spec.to_json())
        self._earlier = earlier
        self._on_last_words = on_last_words
        self._began = time.monotonic()
        self._made_group = False
        self._cost_known = False
        self.recorder: Recorder | None = None
        if self.rank == 0:
            from torchcoll.core.result import Run

            self.recorder = Recorder(Run(), emit)

    @property
    def _fake(self) -> bool:
        """A world of which this process is the only rank."""
        return self.spec.backend == "fake" and not self.found_group

    @property
    def run(self) -> Run | None:
        return self.recorder.run if self.recorder else None

    def _launch(self) -> Launch:
        if not self.found_group:
            return detect()
        return Launch("process group", self.dist.get_rank(), self.dist.get_world_size())

    # -- set-up ------------------------------------------------------------------------------

    def open(self) -> None:
        """Rendezvous, hello, header, process group, ranks and phases. Collective."""
        self._rendezvous()
        self._hello()
        self._on_rank_0(lambda recorder: self._read_earlier())
        self.spec = Spec.from_json(self.control.decide(self.spec.to_json()))
        self.control.timeout_s = self.spec.timeout_s
        backend = self.spec.backend
        if self.found_group and backend is None:
            backend = self.dist.get_backend()
        self.entry, self.device = backends.choose_backend(self.torch, backend, self.spec.device)
        self.spec = replace(self.spec, backend=self.entry.name, device=self.device)
        self.sizings = self.spec.sizings(self.ranks)
        self._on_rank_0(lambda recorder: recorder.header(self._header()))
        self._connect()
        self._exchange_members()

    def _read_earlier(self) -> None:
        if self._earlier:
            self.spec = self._earlier()

    def _on_rank_0(self, action: Callable[[Recorder], None]) -> None:
        """What may fail on rank 0 alone (opening the file): then every rank raises its error."""
        failure = None
        if self.recorder:
            try:
                action(self.recorder)
            except TorchcollError as error:
                failure = error
        told = self.control.decide(failure and [str(failure), int(failure.exit_code)])
        if told:
            refusal = failure or TorchcollError(told[0])
            refusal.exit_code = ExitCode(told[1])
            raise refusal

    @contextlib.contextmanager
    def _phase(self, name: str) -> Any:
        self.progress.step(name)
        start = time.perf_counter_ns()
        yield
        self.phases[name] = time.perf_counter_ns() - start

    def _rendezvous(self) -> None:
        global _runs
        _runs += 1
        with self._phase("rendezvous"):
            if self._fake:
                store = self.dist.HashStore()
            elif self.found_group:
                store = self.dist.distributed_c10d._get_default_store()
            else:
                store = open_store(self.torch, self.launch, self.spec.timeout_s)
        # A fake world has one participant, which agrees with itself.
        participants = 1 if self._fake else self.ranks
        store = self.dist.PrefixStore(f"sweep{_runs}", store)
        self.store = store
        self.control = Control(store, self.rank, participants, self.spec.timeout_s)
        try:
            client = store.clone() if participants > 1 else store
        except RuntimeError:
            raise HangError("rendezvous: lost the store of rank 0 at once") from None
        self.watchdog = Watchdog(
            self.control,
            client,
            self.progress,
            self._last_words,
            signals=self._on_last_words is not None,
        )

    def _hello(self) -> None:
        """Every rank says who it is and what it was asked; the odd one is named."""
        words = {
            "host": environment.hostname(),
            "pid": os.getpid(),
            "rank": self.rank,
            "asked": self._asked,
            "argv": " ".join(self.argv or []),
        }
        self.control.members = self.control.all_gather(words)
        self.progress.step("hello")
        votes = Counter(member["asked"] for member in self.control.members)
        if len(votes) > 1:
            usual = votes.most_common(1)[0][0]
            like = next(m for m in self.control.members if m["asked"] == usual)
            odd = [m for m in self.control.members if m["asked"] != usual]
            names = ", ".join(self.control.name(m["rank"]) for m in odd[:16])
            raise UsageError(
                f"arguments of {names}",
                odd[0]["argv"] or "another Spec",
                f"as on {self.control.name(like['rank'])}: {like['argv'] or 'no arguments'}",
                "Start all ranks with the same arguments.",
            )

    def _header(self) -> dict[str, Any]:
        return {
            "run_id": uuid.uuid4().hex[:12],
            "start_utc": _utc(),
            "spec": self.spec.to_json(),
            "argv": self.argv,
            "ranks": self.ranks,
            "launcher": self.launch.launcher,
            "job_id": self.launch.job_id,
            "connects": "before" if self.found_group else self.entry.connects,
            "environment": environment.environment(self.torch, self.entry.name),
        }

    def _connect(self) -> None:
        if self.found_group:
            backend = self.dist.get_backend()
            if self.spec.backend in (None, backend):
                return
            self.group = self.dist.new_group(backend=self.entry.name)
            self._made_group = True
            return
        with self._phase("device"):
            self.torch.zeros(1, device=self.device)
        with self._phase("init_process_group"):
            self.dist.init_process_group(
                self.entry.name,
                store=backends.group_store(self.torch, self.entry.name, self.store),
                rank=self.rank,
                world_size=self.ranks,
                # Ours comes first and can name the ranks; this one is the last resort.
                timeout=timedelta(seconds=2 * self.spec.timeout_s + 30),
            )
        self._made_group = True

    def _exchange_members(self) -> None:
        own = environment.member(self.launch, self.device)
        known = environment.variables()
        gathered = self.control.gather({**own, "variables": known, "phases": self.phases})
        self.control.decide()
        if not self.recorder:
            return
        phases = [member.pop("phases") for member in gathered]
        for member in gathered:
            differs = environment.differences(member.pop("variables"), known)
            if differs:
                member["variables_that_differ"] = differs
        self.recorder.members(gathered)
        for name in phases[0]:
            self.recorder.phase(name, [phase.get(name, 0) for phase in phases])
        for host, text in environment.crowded(gathered):
            self.recorder.event("warning", f"{host}: {text}")

    # -- the sweep ---------------------------------------------------------------------------

    def sweep(self, which: Sequence[int] | None = None) -> None:
        """Run the cases of these indices (None: all); results go to recorder and ``on_case``."""
        for index in range(len(self.sizings)) if which is None else which:
            self._one_case(self.sizings[index])

    def _one_case(self, sizing: Sizing) -> None:
        self.progress.step(sizing.case.describe())
        verdict = self._agree_on_case(sizing)
        self._on_rank_0(lambda recorder: recorder.started(sizing.case))
        result = measure_case(self, sizing, verdict)
        self._on_rank_0(lambda recorder: self._keep(recorder, result))
        if not self._cost_known:
            self._cost_of_measuring()

    def _keep(self, recorder: Recorder, result: CaseResult | None) -> None:
        assert result is not None
        recorder.case(result)
        if self.on_case:
            self.on_case(result)

    def _agree_on_case(self, sizing: Sizing) -> list[str] | None:
        """[status, reason] where the case is not to run: decided by rank 0 for all."""
        division = sizing.division
        splits = [division.sent, division.received] if division else []
        seen = fingerprint([sizing.case.to_json(), sizing.count, splits])
        words = self.control.gather({"case": seen, "free": environment.free_nbytes()})
        verdict: list[str] | None = None
        if self.recorder:
            from torchcoll.bench.admission import admit

            verdict = admit(sizing, words, self.control, self.spec.check)
        verdict = self.control.decide(verdict)
        if verdict and verdict[0] == "disagreement":
            raise UsageError(*verdict[1:])
        return verdict

    def _cost_of_measuring(self) -> None:
        """Recorded after the first case: a barrier before it would pay for its connecting."""
        self._cost_known = True
        loop: list[int] = []
        barrier: list[int] = []
        time_isolated(nothing, nothing, loop, COST_CALLS)
        if self.entry.communicates and self.ranks > 1:
            time_isolated(self.align, nothing, barrier, COST_CALLS // 4)
        costs = {"cost_timed_loop": loop, "cost_barrier": barrier}
        middles = {name: sorted(ns)[len(ns) // 2] for name, ns in costs.items() if ns}
        gathered = self.control.gather(middles)
        if self.recorder:
            for name in middles:
                self.recorder.phase(name, [costs[name] for costs in gathered])

    def align(self) -> None:
        """A barrier on the data group."""
        self.dist.barrier(self.group)

    # -- the end -----------------------------------------------------------------------------

    def finish(self, status: str = "complete", exit_code: int = 0, reason: str = "") -> None:
        """The ``end`` record."""
        if self.recorder:
            self.recorder.end(status, exit_code, time.monotonic() - self._began, reason)

    def close(self, lost: bool = False) -> None:
        """Leave together and put back what was made here; ``lost``: without the others."""
        if self.watchdog is None:
            return
        self.watchdog.parting = True
        try:
            if lost:
                return
            if self._made_group and self.group is not None:
                self.dist.destroy_process_group(self.group)
            elif self._made_group:
                # gloo aborts when a peer's process ends before this rank has left the group.
                with contextlib.suppress(TorchcollError):
                    self.control.farewell()
                self.dist.destroy_process_group()
            elif not self.found_group:
                # Refused by all ranks alike: the others are to read that from rank 0's store.
                with contextlib.suppress(TorchcollError):
                    self.control.gather(None, GRACE_S)
        finally:
            self.watchdog.close()
            self.watchdog = None

    def _last_words(self, status: str, code: int, kind: str, text: str, speaks: bool) -> None:
        if self.recorder:
            with contextlib.suppress(Exception):  # a full disk must not silence this rank
                if kind == "hang" and self.run and self.run.in_flight:
                    self.recorder.case(_timed_out(self.run.in_flight, self.ranks, text))
                self.recorder.event(kind, text)
                self.finish(status, code, text)
        if self._on_last_words:
            self._on_last_words(code, text, speaks)
        elif speaks:
            print(f"torchcoll: error: {text}", file=sys.stderr)


def _timed_out(case: Case, ranks: int, text: str) -> CaseResult:
    from torchcoll.core.result import CaseResult

    return CaseResult(case, "timeout", ranks, reason=text)
