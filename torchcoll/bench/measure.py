"""One case on one rank: buffers, cold calls, steady calls, verification, samples to rank 0."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcoll.bench.communicators import Communicator
from torchcoll.bench.verify import Buffers, Checker, allocate
from torchcoll.core.backends import backend_of
from torchcoll.core.case import NATIVE, Case, NotRun, SizedCase, size_case, split_batch
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import HangError, TorchcollError, UsageError, brief
from torchcoll.machine.devices import Call, nothing

if TYPE_CHECKING:
    from torchcoll.bench.buffers import Cycle, Rotation
    from torchcoll.bench.concurrent import Work
    from torchcoll.bench.session import Rank
    from torchcoll.bench.sweep import Sweep
    from torchcoll.core.kept_samples import KeptSamples
    from torchcoll.core.result import CaseResult, KeptBatches


# Ranks that refuse a call do so at once; one that says nothing for so long after this rank was
# refused is in trouble. Half of a --timeout below twice that: a rank that waits in the library, in
# vain, is refused too when its group's patience ends, and that must not look as if all were refused
# alike (as where rank 0 refuses a variable before it has told the others where to find it).
REFUSAL_S = 10.0
# Whatever interrupts the calls (a decision, samples to rank 0, a refill) leaves threads asleep and
# caches cold: the next two calls are 4 to 15 % slow on an idle machine, up to ten on a loaded one
# (tests/benchmarks/steady.py). The pause is what counts: a refill alone changes nothing, waiting
# for 1 ms does. Long calls do not notice: they lead for no more than so long, and one always does.
LEAD_CALLS, LEAD_NS = 10, 10_000_000
# Barriers that wake the ranks before a cold call, where lead calls would be cold calls themselves.
# Their number is odd: gloo's two threads take operations by turns, and a thread's first call of a
# size is slow. Only after an odd number is a call on the thread of the call before it, as in a loop
# of barrier and call.
WAKE_BARRIERS = 9
# A soak looks for rare faults, so it checks one in so many calls, or more.
SOAK_CALLS_PER_CHECK = 10
# If blocks move on from call to call, so many positions are verified, each by a call of its own.
MOST_CHECKED_POSITIONS = 8
# How torch and its backends say that they have no such call, type or device.
_NOT_THERE = re.compile(r"(?i)support|implement|unconvertible|no backend type")
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "memoryerror")


class Refusal(NamedTuple):
    """What all ranks were told by their first call. unsupported: that it does not exist there; else
    it has failed.
    """

    text: str
    unsupported: bool


def first_call(local: Rank, what: str, call: Callable[[], object] | None) -> Refusal | None:
    """The first call of its kind, in which a backend says what it cannot do. Collective; None: this
    rank has none to make.

    What all ranks were refused, None where none was: either way they go on together. Raises
    TorchcollError with the names of those that were refused alone, and UsageError where the library
    does not know the value of a variable. Where others do not come back from the call, the run
    ends.
    """
    refusal: Refusal | None = None
    try:
        if call:
            call()
    except Exception as error:
        refusal = Refusal(brief(error), _is_unsupported(error))
    control = local.control
    try:
        refusal_text = None if call is None else refusal or ""
        limit_s = min(REFUSAL_S, control.timeout_s / 2) if refusal else None
        answers = control.gather(refusal_text, limit_s)
        refused = [rank for rank, text in enumerate(answers) if text]
        # The first refusal, and who was refused where some were not; '' where all were.
        alone = [rank for rank, text in enumerate(answers) if text == ""] and control.names(refused)
        first = control.decide([answers[refused[0]], alone or ""] if refused else None, limit_s)
    except HangError:
        if not refusal:
            raise
        mistake = _refused_value(refusal.text)
        local.abort(str(mistake or refusal.text), mistake.exit_code if mistake else None)
    if not first:
        return None
    (text, unsupported), names = first
    if mistake := _refused_value(text):
        raise mistake
    if not names:
        return Refusal(text, unsupported)
    raise TorchcollError(f"{what} failed on {names} alone: {text}")


def _is_unsupported(error: Exception) -> bool:
    """Whether a call was refused for what it asked, rather than that it failed."""
    kinds = (NotImplementedError, TypeError, ValueError, IndexError)
    return isinstance(error, kinds) or bool(_NOT_THERE.search(str(error)))


def _refused_value(text: str) -> UsageError | None:
    from torchcoll.libraries.oneccl.algorithms import refused_value

    return refused_value(text, os.environ)


def measure_case(sweep: Sweep, asked: SizedCase, not_run: NotRun | None) -> list[CaseResult]:
    """Run the case, sized for the largest sub-group, unless ``not_run`` says why not.

    The results on rank 0, one for each sub-group; elsewhere none.
    """
    sizing = size_case(asked.case, len(sweep.part), span_bytes=asked.span_bytes)
    not_run = not_run or _cannot_run(sweep, asked.case)
    if not_run:
        return _results(sweep, sizing, {}, **not_run._asdict())
    try:
        return _measured(sweep, sizing)
    finally:
        sweep.local.device.release()  # when nothing holds the buffers any more


def _measured(sweep: Sweep, sizing: SizedCase) -> list[CaseResult]:
    backend, fresh = sizing.case.backend, sweep.parts if sweep.spec.fresh_group else ()
    # The communicator first: buffers are registered with it.
    with (
        sweep.communicators.of(backend, fresh) as communicator,
        _buffers(sweep, sizing, communicator.group) as buffers,
    ):
        if isinstance(buffers, NotRun):
            return _results(sweep, sizing, {}, **buffers._asdict())
        return _Measurement(sweep, sizing, buffers, communicator).measure()


def _cannot_run(sweep: Sweep, case: Case) -> NotRun | None:
    """What torch has no way to do, and what a backend that never connected cannot do; equal on all
    ranks.
    """
    local = sweep.local
    if reason := sweep.communicators.unusable.get(case.backend):
        return NotRun("failed", reason)
    reason = ""
    if case.mode == "graph" and not local.device.captures:
        reason = f"torch {local.torch.__version__} captures no graphs on {local.device.kind}"
    elif case.mode == "graph" and not COLLECTIVES[case.collective].has_data:
        reason = f"a {case.collective} waits on the host, which no graph can capture"
    elif case.mode == "graph" and "rotating:" in (case.splits or ""):
        reason = "a graph replays one call, but the blocks of rotating: move on from call to call"
    elif case.buffers != "default" and not backend_of(case.backend).buffers:
        reason = f"{case.backend} has no {case.buffers} buffers"
    elif sweep.spec.concurrent_collective and case.device in backend_of(case.backend).one_at_a_time:
        # Two threads with a call each wait for each other's ranks for ever.
        reason = f"{case.backend} on {case.device} runs one call at a time, so two cannot overlap"
    return NotRun("unsupported", reason) if reason else None


@contextlib.contextmanager
def _buffers(sweep: Sweep, sizing: SizedCase, group: Any) -> Iterator[Buffers | NotRun]:
    """The buffers, or why not where some rank has none: then no rank goes on."""
    local = sweep.local
    torch, device = local.torch, local.device.name
    buffers, failure = None, ""
    place = sweep.part.index(local.rank)
    group = group or sweep.communicators.whole(sizing.case.backend)
    plain = sizing.case.buffers == "default" and sizing.case.by_backend
    try:
        if plain:
            buffers = allocate(torch, sizing, place, device)
        elif not sizing.case.by_backend:
            from torchcoll.bench.symmetric import allocate_mapped

            buffers = allocate_mapped(torch, sizing, place, local.device)
        else:
            from torchcoll.bench.buffers import allocate_in_pool, register

            buffers = allocate_in_pool(torch, sizing, place, device, group)
        if sizing.case.buffer_reuse == "flush":
            sweep.flush()  # has its memory from now on
    except (RuntimeError, MemoryError) as error:
        failure = brief(error)
    lacking = local.control.failed(failure)
    if not sizing.case.by_backend and buffers is not None and not lacking:
        from torchcoll.bench.symmetric import map_together

        try:
            map_together(sizing.case, buffers, group)
        except RuntimeError as error:
            failure = brief(error)
        lacking = local.control.failed(failure)
    elif buffers is not None and buffers.pool is not None and not lacking:
        try:
            register(torch, buffers, sizing.case.buffers, device, group)
        except RuntimeError as error:
            failure = brief(error)
        lacking = local.control.failed(failure)
    if lacking:
        names, text = lacking
        memory = plain or _is_memory(text)
        text = f"no memory on {names}: {text}" if memory else text
        yield NotRun("oom" if memory else "unsupported", text)
    else:
        assert buffers is not None
        yield buffers
    if buffers is not None and buffers.pool is not None:
        from torchcoll.bench.buffers import deregister

        deregister(torch, buffers, device, group)


class _Measurement:
    def __init__(
        self, sweep: Sweep, sizing: SizedCase, buffers: Buffers, communicator: Communicator
    ) -> None:
        self.sweep = sweep
        self.local = local = sweep.local
        self.sizing = sizing
        self.buffers = buffers
        self.spec = sweep.spec
        self.device = local.device
        self.communicator = communicator
        self.place = sweep.part.index(local.rank)
        case = sizing.case
        beat = local.progress.beat
        self.rotation: Rotation | None = None
        self.checker = Checker(local.torch, sizing, self.place, buffers, beat)
        self.refill = self.checker.refill

        def made(sizing: SizedCase = sizing) -> Call:
            call = prepared(local, sizing, self.place, buffers, communicator.group)
            if case.asynchronous or case.coalesce > 1:
                from torchcoll.bench.calls import called

                return called(local, case, call, communicator)
            return call

        if sizing.slots > 1:
            from torchcoll.bench.buffers import Cycle, Rotation

            self.rotation = Rotation(local.torch, sizing, self.place, buffers, made, beat)
            self.refill = self.rotation.refill
        self.cycle: Cycle | None = None
        if sizing.positions > 1:
            from torchcoll.bench.buffers import Cycle

            self.cycle = Cycle([made(sizing.at(k)) for k in range(sizing.positions)])
        self.call = self.rotation or self.cycle or made()
        self.timed = self.call  # or its captured graph: what is timed is what is verified
        self.barrier: Call = nothing
        if not sweep.alone:
            self.barrier = sweep.communicators.align(case.backend, communicator)
        self.flush: Call = sweep.flush() if case.buffer_reuse == "flush" else nothing
        # A flush is a pause: barriers wake the ranks after it, as before cold calls.
        self.align = self.barrier if self.flush is nothing else self._aligned_awake
        self.cold: list[int] = []
        self.cold_starts: list[int] = []
        self.warmup: list[int] = []
        self.lead: list[int] = []
        self.batch_starts: list[tuple[int, int]] = []  # monotonic in ns, wall in us
        self.spent = dict.fromkeys(("ramp_up", "barriers", "gathers"), 0)
        self.gathered: list[list[dict[str, list[int]]]] = []  # rank 0: [batch][rank][clock]
        self.batches: list[int] = []  # those gathered
        self.sizes: list[int] = []  # all
        self.kept: KeptBatches | None = None
        self.steady_after: int | None = None
        self.stops: list[str] = []  # rank 0: of each sub-group
        self.steady_ns: int | None = None
        self.concurrent_calls = self.ramp_up_calls = 0

    def measure(self) -> list[CaseResult]:
        local, case = self.local, self.sizing.case
        name = case.describe()
        ordinal = self.communicator.calls if case.by_backend else None
        samples: dict[str, Any] = {"cold": self.cold, "cold_start": self.cold_starts}
        samples |= {"warmup": self.warmup, "ramp_up": self.lead}
        samples["connect"] = self.communicator.connect_ns
        local.progress.step(f"{name}: filling the buffers")
        # Poison touches the receive buffer: else call 0 would pay for its page faults.
        self.checker.prepare()
        if self.rotation:
            self.rotation.refill()
        local.progress.step(f"{name}: first call", self.cold)
        # A barrier would pay for connecting. Where that is done, barriers take the place of lead
        # calls: after one alone the first call is 1.3 to 1.4 of the others.
        align = self._aligned_awake if self.communicator.used else nothing
        if align is nothing:
            self.flush()
            local.control.start_together()
        refusal = first_call(local, name, lambda: self._timed_alone(self.cold, 1, align))
        if refusal:
            self.communicator.refused = True
            not_run = self._not_run(refusal)
            return _results(self.sweep, self.sizing, samples, **not_run._asdict())
        try:
            self._cold(name)
            local.progress.step(f"{name}: warm-up calls", self.warmup)
            self._timed_alone(self.warmup, self.spec.warmup)
            refused = self._measure_steady(name) or self._concurrent(samples, name)
        except RuntimeError as error:
            local.abort(brief(error))
        self.sweep.has_called = self.communicator.used = True
        failed = refused or self._check(samples, name)
        expected_ns = None
        alone = not (case.asynchronous or case.coalesce > 1 or self.rotation or self.cycle)
        library_log = self.sweep.library_log
        if library_log and alone and case.implementation == NATIVE:
            local.progress.step(f"{name}: what the library expects")
            expected_ns = library_log.expected_ns(local, self.call, self.communicator)
        self._count(self._unchecked_calls * case.coalesce)
        return _results(
            self.sweep,
            self.sizing,
            samples,
            steady=self.gathered,
            **(failed._asdict() if failed else {}),
            batches=self.batches,
            batch_start_ns=[start for start, _ in self.batch_starts],
            batch_start_wall_us=[wall for _, wall in self.batch_starts],
            spent_ns=self.spent,
            ordinal=ordinal,
            communicator=self.communicator.how,
            steady_after=self.steady_after,
            stops=self.stops,
            steady_ns=self.steady_ns,
            calls_per_sample=self._calls_per_sample,
            expected_ns=expected_ns,
            kept=self.kept,
        )

    def _not_run(self, refusal: Refusal) -> NotRun:
        """Why the case did not run. A first call that fails on a communicator that has never
        connected leaves it in no state to be used again: oneCCL's next call waits for ever.
        """
        case, backend = self.sizing.case, self.communicator.backend
        if _is_memory(refusal.text):
            return NotRun("oom", refusal.text)
        if not case.by_backend:
            return NotRun("unsupported", refusal.text)
        reason = backend.reason(case, refusal.text)
        connected = self.communicator.calls != 0 or backend.connects != "first call"
        if refusal.unsupported or connected or reason != refusal.text:
            return NotRun("unsupported", reason)
        reason = f"{backend.name} did not connect: {refusal.text}"
        self.sweep.communicators.unusable[backend.name] = reason
        return NotRun("failed", reason)

    def _count(self, calls: int) -> None:
        """Calls that another implementation made are none of the communicator's; but what aligned
        them may have connected it, so that its own first call to come is not known to be cold.
        """
        by_backend = self.sizing.case.by_backend
        if by_backend and self.communicator.calls is not None:
            self.communicator.calls += calls
        elif not by_backend and self.communicator.calls == 0:
            self.communicator.calls = None

    @property
    def _unchecked_calls(self) -> int:
        timed = len(self.cold) + len(self.warmup) + self.ramp_up_calls + sum(self.sizes)
        return timed + self.concurrent_calls

    @property
    def _calls_per_sample(self) -> int:
        return self.device.calls_per_sample if self.sizing.case.queued else 1

    def _aligned_awake(self) -> None:
        self.flush()
        for _ in range(WAKE_BARRIERS):
            self.barrier()

    def _timed_alone(self, durations: list[int], calls: int, align: Call | None = None) -> None:
        """Calls one by one on the host clock, the device idle at both stamps."""
        clocks = {"host": durations, "issue": []}
        if durations is self.cold:
            clocks["start"] = self.cold_starts
        self.device.synchronized(self.call, align or self.align, calls, clocks)

    def _cold(self, name: str) -> None:
        """Calls 1, 2, ... one by one, in blocks, until rank 0's settling rule is content.

        Barriers lie between an exchange through the store, during which threads fall asleep, and
        the next call: a call directly after it takes 1.4 of the steady ones, in a bare loop 1.2.
        """
        local, cold, rule = self.local, self.cold, None
        if local.rank == 0:
            from torchcoll.bench.stopping import SteadyStateRule

            rule = SteadyStateRule(self.spec.cold)
            rule.add(cold)
        while calls := local.control.decide(rule and rule.next_block()):
            local.progress.step(f"{name}: cold calls", cold)
            self._timed_alone(cold, 1, self._aligned_awake)
            self._timed_alone(cold, calls - 1)
            if rule:
                rule.add(cold[-calls:])
        if rule:
            self.steady_after = rule.steady_after

    def _captured(self, name: str) -> tuple[Call, NotRun | None]:
        """The replay of the captured call, or why not where some rank has none."""
        replay, failure = self.call, ""
        self.local.progress.step(f"{name}: graph capture")
        try:
            replay = self.device.graph(self.call)
        except RuntimeError as error:
            failure = brief(error)
        failed = self.local.control.failed(failure)
        return replay, NotRun("unsupported", f"graph capture: {failed[1]}") if failed else None

    def _measure_steady(self, name: str) -> NotRun | None:
        """Batches until rank 0's stopping rules are content with the times of the calls; why not
        where no rank began.
        """
        local, spec, rule = self.local, self.spec, None
        case, now, every = self.sizing.case, time.perf_counter_ns, 1
        if local.rank == 0:
            from torchcoll.bench.stopping import StoppingRules, present, split_samples

            kinds = len(self.device.clocks(case.mode))
            most, every = split_samples(local.control.ranks, kinds, spec.iters)
            if not self.sweep.keeps:
                every = 1
            rule = StoppingRules(
                [part for part in self.sweep.parts if present(part, local.control.ranks)],
                *(local.ranks, spec.iters, spec.precision, spec.max_time_s),
                expected_ns=self.cold[-1],
                means=case.back_to_back,
                most_batch=most,
            )
        if case.mode == "graph":
            self.timed, refused = self._captured(name)
            if refused:
                return refused
        leads = max(1, min(LEAD_CALLS, LEAD_NS // max(1, self.cold[-1])))
        leads, every = local.control.decide([leads, every])
        kept = self.sweep.kept_samples() if every > 1 else None
        began = accounted = now()
        while size := local.control.decide(rule and rule.next_batch(now() - began)):
            decided = now()
            self.refill()
            start = (now(), time.time_ns() // 1000)
            clocks, lead = self._batch(name, leads, size)
            ended = now()
            number = len(self.sizes)
            self.sizes.append(size)
            self.ramp_up_calls += len(lead)
            if kept and number % every:
                self._keep(kept, number, start, lead, clocks)
                if rule:
                    rule.skip(size)
            else:
                self.batch_starts.append(start)
                self.lead += lead
                self.batches.append(size)
                everyone = local.control.gather(clocks)
                if rule:
                    rule.add(everyone, case.back_to_back, size)
                    self.gathered.append(everyone)
            steady = self._account(size, lead, clocks)
            self.spent["gathers"] += decided - accounted + now() - ended
            self.spent["barriers"] += max(0, ended - start[0] - steady)
            accounted = now()
        if kept and len(self.sizes) > len(self.batches):
            from torchcoll.core.result import KeptBatches

            self.kept = KeptBatches(kept.cases, tuple(self.sizes), every)
        if rule:
            self.stops, self.steady_ns = rule.reasons, round(rule.elapsed_ns)
        return None

    def _keep(
        self,
        kept: KeptSamples,
        number: int,
        start: tuple[int, int],
        lead: Sequence[int],
        clocks: dict[str, list[int]],
    ) -> None:
        """The samples of a batch to this rank's own file."""
        failure = ""
        try:
            kept.write(number, start, lead, clocks)
        except TorchcollError as error:
            failure = str(error)
        if failed := self.local.control.failed(failure):
            raise TorchcollError("{}: {}".format(*failed))

    def _batch(self, name: str, leads: int, size: int) -> tuple[dict[str, list[int]], list[int]]:
        """The samples of ``size`` steady calls, by clock, and of the ramp-up calls before."""
        case, device, progress = self.sizing.case, self.device, self.local.progress
        if self.cycle:  # so that steady call k of a batch has position k
            self.cycle.begin(-leads)
        clocks, lead = device.clocks(case.mode), list[int]()
        live = clocks["issue"] if "issue" in clocks else clocks["host"]
        if case.back_to_back:
            progress.step(f"{name}: steady calls", live)
            self.align()
            measure = device.stream if case.queued else device.blocking
            measure(self.timed, size, clocks, leads, lead)
        else:
            progress.step(f"{name}: ramp-up calls", lead)
            device.synchronized(self.timed, self.align, leads, {"host": lead, "issue": []})
            progress.step(f"{name}: steady calls", live)
            device.synchronized(self.timed, self.align, size, clocks)
        return clocks, lead

    def _account(self, size: int, lead: Sequence[int], clocks: dict[str, list[int]]) -> int:
        """The time of the calls of a batch of ``size``, ramp-up calls included, in ns."""
        steady = next(iter(clocks.values()))  # samples may be means of several calls
        calls: int = sum(map(operator.mul, steady, split_batch(size, self._calls_per_sample)))
        self.spent["ramp_up"] += sum(lead)
        return sum(lead) + calls

    def _concurrent(self, samples: dict[str, Any], name: str) -> NotRun | None:
        """What --concurrent asks for; why not where some rank has no room for the work."""
        if not self.spec.works_concurrently:
            return None
        from torchcoll.bench.concurrent import (
            collective,
            computation,
            measure_concurrent,
            measure_offset,
        )

        local, failure = self.local, ""
        with contextlib.ExitStack() as stack:
            work: Work | None = None
            try:
                if self.spec.concurrent_collective:
                    work = stack.enter_context(collective(self.sweep, self.sizing, prepared))
                else:
                    work = computation(local.torch, str(self.spec.concurrent), self.device)
            except (RuntimeError, MemoryError) as error:
                failure = brief(error)
            failed = local.control.failed(failure)
            if failed or work is None:
                names, text = failed or ("", "")
                return NotRun("oom", f"no memory for {self.spec.concurrent} on {names}: {text}")
            if self.spec.concurrent_collective:
                # Connecting two groups at the same time may never end, so this one connects alone.
                local.progress.step(f"{name}: first call of {work.name}")
                refusal = first_call(local, work.name, work)
                self.device.synchronize()
                if refusal:
                    return NotRun("unsupported", f"{work.name}: {refusal.text}")
            blocks = (local, self.timed, work, self.refill, self.align, name)
            if self.spec.offset is None:
                blocks_measured = measure_concurrent(*blocks)
            else:
                blocks_measured = measure_offset(*blocks, self.spec.offset)
        self.concurrent_calls = blocks_measured.pop("all_calls")
        samples["concurrent"] = blocks_measured
        return None

    def _check(self, samples: dict[str, Any], name: str) -> NotRun | None:
        """One more call on fresh data, two where one cannot tell; why not where some rank could
        not check. A soak repeats them until it has checked a tenth of the calls.
        """
        local, failure = self.local, ""
        sizing = self.sizing
        if not (self.spec.check and self.communicator.backend.communicates):
            return None
        if not sizing.size_bytes:
            return None
        if not sizing.case.verifiable:
            samples["unverified"] = True
            return None
        local.progress.step(f"{name}: verification")
        checked = wrong = changed = 0
        positions = range(min(sizing.positions, MOST_CHECKED_POSITIONS))
        once = [*itertools.product(self.checker.turns, positions)]
        repeats = 1
        if self.sweep.digested:
            repeats = math.ceil(self._unchecked_calls / (SOAK_CALLS_PER_CHECK - 1) / len(once))
            samples["calls"] = self._unchecked_calls + repeats * len(once)
            samples["checked_calls"] = repeats * len(once)
        for turn, position in once * repeats:
            if self.rotation:  # which goes on with each call
                self.rotation.stand()
            if self.cycle:
                self.cycle.begin(position)
                self.checker.check_at(position)
            self.checker.prepare(turn)
            try:
                self.align()
                self.timed()
                self.buffers.receive()
                self.device.synchronize()
            except RuntimeError as error:
                local.abort(brief(error))
            self._count(sizing.case.coalesce)
            try:
                elements, differing = self.checker.count_wrong()
                changed += self.checker.count_changed()
                if differing and "first_wrong" not in samples:
                    samples["first_wrong"] = self.checker.first_wrong()
                if self.sweep.digested:
                    self._digest(samples, turn, position)
            except (RuntimeError, MemoryError) as error:
                failure = failure or brief(error)
            else:
                checked, wrong = checked + elements, wrong + differing
        failed = local.control.failed(failure)
        if failed is None:
            samples.update(checked=checked, wrong=wrong, changed=changed)
            return None
        names, text = failed
        status = "oom" if _is_memory(text) else "failed"
        return NotRun(status, f"verification on {names}: {text}")

    def _digest(self, samples: dict[str, Any], turn: int, position: int) -> None:
        """Keep the digest of the output of this turn and position: the first, or the last that is
        unlike the first.
        """
        digests = samples.setdefault("digests", {})
        digest, name = list(self.checker.digest()), f"{turn} {position}"
        if digests.setdefault(name, digest) != digest:
            digests[name] = digest


def prepared(local: Rank, sizing: SizedCase, place: int, buffers: Buffers, group: Any) -> Call:
    """The call of the case on that rank of the group."""
    case, op = sizing.case, None
    if case.through_api:
        from torchcoll.bench.functional import prepare_call

        return prepare_call(local, sizing, place, buffers, group)
    if case.implementation != NATIVE:
        from torchcoll.bench.symmetric import called_on

        return called_on(local, case, buffers, group)
    if case.op:
        name = "PRODUCT" if case.op == "prod" else case.op.upper()
        op = getattr(local.dist.ReduceOp, name)
    prepare = COLLECTIVES[case.collective].prepare
    return prepare(local.dist, sizing.layout(place), buffers.send, buffers.recv, op, group)


def _results(
    sweep: Sweep,
    sizing: SizedCase,
    samples: dict[str, Any],
    steady: Sequence[list[dict[str, list[int]]]] = (),
    **facts: Any,
) -> list[CaseResult]:
    """Gather every rank's samples; on rank 0 the CaseResult of each sub-group.

    ``steady`` [batch][rank][clock] has been gathered already. facts: as of results_of.
    """
    local = sweep.local
    local.progress.step(f"{sizing.case.describe()}: samples to rank 0")
    gathered = sweep.gathered = local.control.gather(samples)
    if local.rank:
        return []
    from torchcoll.bench.recorder import results_of

    return results_of(sweep.parts, sizing, gathered, steady, **facts)


def _is_memory(text: str) -> bool:
    return any(symptom in text.lower() for symptom in _OUT_OF_MEMORY)
