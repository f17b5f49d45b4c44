"""One case on one rank: buffers, first call, cold calls, steady calls, verification, samples."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchcoll.bench.communicators import Communicator, Refusal, first_call
from torchcoll.bench.verify import Buffers, Checker, allocate
from torchcoll.core.case import NATIVE, NotRun, SizedCase, split_batch
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import brief
from torchcoll.machine.devices import Call, nothing

if TYPE_CHECKING:
    from torchcoll.bench.buffers import Rotation
    from torchcoll.bench.concurrent import Work
    from torchcoll.bench.session import Rank
    from torchcoll.bench.sweep import Sweep
    from torchcoll.core.result import CaseResult


# Whatever interrupts the calls leaves threads asleep and caches cold: the next two calls are 4 to
# 15 % slow on an idle machine, up to ten on a loaded one. Ramp-up calls take no more than so long,
# but one always is made.
LEAD_CALLS, LEAD_NS = 10, 10_000_000
# Barriers that wake the ranks before a cold call. Their number is odd: gloo's two threads take
# operations by turns, and only after an odd number is a call on the thread of the call before it.
WAKE_BARRIERS = 9
# A soak looks for rare faults, so it checks one in so many calls, or more.
SOAK_CALLS_PER_CHECK = 10
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "memoryerror")


def measure_case(sweep: Sweep, sizing: SizedCase) -> list[CaseResult]:
    """Run the case. Returns its results on rank 0, one for each sub-group; elsewhere none."""
    fresh = sweep.subgroups if sweep.spec.fresh_group else ()
    # The communicator first: buffers are registered with it.
    with (
        sweep.communicators.of(sizing.case.backend, fresh) as communicator,
        _buffers(sweep, sizing, communicator.group) as buffers,
    ):
        if isinstance(buffers, NotRun):
            return sweep.gather_results(sizing, {}, **buffers._asdict())
        return _Measurement(sweep, sizing, buffers, communicator).measure()


@contextlib.contextmanager
def _buffers(sweep: Sweep, sizing: SizedCase, group: Any) -> Iterator[Buffers | NotRun]:
    """The buffers, or why not if some rank has none; then no rank goes on."""
    local, case = sweep.local, sizing.case
    torch, device, group_rank = local.torch, local.device.name, sweep.subgroup.index(local.rank)
    group = group or sweep.communicators.whole(case.backend)
    plain = case.buffers == "default" and case.by_backend
    buffers: Buffers | None = None
    if not plain:
        from torchcoll.bench import buffers as other_buffers

    def make() -> None:
        nonlocal buffers
        if plain:
            buffers = allocate(torch, sizing, group_rank, device)
        elif not case.by_backend:
            buffers = other_buffers.allocate_mapped(torch, sizing, group_rank, local.device)
        else:
            buffers = other_buffers.allocate_in_pool(torch, sizing, group_rank, device, group)
        if case.buffer_reuse == "flush":
            sweep.flush()  # has its memory from now on

    def connect() -> None:
        assert buffers is not None
        if not case.by_backend:
            other_buffers.map_together(case, buffers, group)
        else:
            other_buffers.register(torch, buffers, case.buffers, device, group)

    lacking = local.control.attempt(make, RuntimeError, MemoryError)
    if not plain and not lacking:
        lacking = local.control.attempt(connect, RuntimeError)
    if lacking:
        names, text = lacking
        memory = plain or _is_memory(text)
        text = f"no memory on {names}: {text}" if memory else text
        yield NotRun("oom" if memory else "unsupported", text)
    else:
        assert buffers is not None
        yield buffers
    if buffers is not None and buffers.pool is not None:
        other_buffers.deregister(torch, buffers, device, group)


class _Calls:
    """What a case calls on this rank, and what goes before its calls.

    once: the call. timed: that, or the replay of its captured graph; verification checks it too.
    align: goes before each call that is timed alone.
    rotation: the same as ``once`` if each call has other buffers.
    """

    def __init__(
        self, sweep: Sweep, sizing: SizedCase, buffers: Buffers, communicator: Communicator
    ) -> None:
        local, case = sweep.local, sizing.case
        self._device = local.device
        group_rank, beat = sweep.subgroup.index(local.rank), local.progress.beat
        self.checker = Checker(local.torch, sizing, group_rank, buffers, beat)
        self.refill = self.checker.refill
        self.rotation: Rotation | None = None

        def make() -> Call:
            call = prepare_call(local, sizing, group_rank, buffers, communicator.group)
            if not (case.asynchronous or case.coalesce > 1):
                return call
            from torchcoll.bench.calls import asynchronous_call, coalesced_call

            if case.asynchronous:
                return asynchronous_call(case, call)
            return coalesced_call(local, case, call, communicator)

        if sizing.slots > 1:
            from torchcoll.bench.buffers import Rotation

            self.rotation = Rotation(local.torch, sizing, group_rank, buffers, make, beat)
            self.refill = self.rotation.refill
        self.once: Call = self.rotation or make()
        self.timed = self.once
        self.barrier: Call = nothing
        if not sweep.alone:
            self.barrier = sweep.communicators.align(case.backend, communicator)
        self.flush: Call = sweep.flush() if case.buffer_reuse == "flush" else nothing
        # A flush is a pause: barriers wake the ranks after it, as before cold calls.
        self.align = self.barrier if self.flush is nothing else self.align_awake

    def capture(self) -> None:
        """Let ``timed`` be the replay of the captured call. Raises RuntimeError."""
        self.timed = self._device.graph(self.once)

    def align_awake(self) -> None:
        self.flush()
        for _ in range(WAKE_BARRIERS):
            self.barrier()


@dataclass
class _Steady:
    """The steady calls of a case, in batches."""

    sizes: list[int] = field(default_factory=list)  # calls of each batch
    ramp_up_calls: int = 0
    starts: list[tuple[int, int]] = field(default_factory=list)  # monotonic ns, wall us
    # On rank 0: [batch][rank][clock].
    samples: list[list[dict[str, list[int]]]] = field(default_factory=list)
    spent_ns: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("ramp_up", "barriers", "gathers"), 0)
    )
    stops: list[str] = field(default_factory=list)  # on rank 0: of each sub-group
    steady_ns: int | None = None
    after: int | None = None  # on rank 0: the cold calls after which calls were steady


class _Measurement:
    """One case on this rank, from its first call to its verification.

    samples: what is gathered in the end; durations in ns by kind of call.
    """

    def __init__(
        self, sweep: Sweep, sizing: SizedCase, buffers: Buffers, communicator: Communicator
    ) -> None:
        self.sweep, self.local, self.device = sweep, sweep.local, sweep.local.device
        self.sizing, self.buffers, self.communicator = sizing, buffers, communicator
        self.calls = _Calls(sweep, sizing, buffers, communicator)
        self.samples: dict[str, Any] = {"cold": [], "cold_start": [], "warmup": [], "ramp_up": []}
        self.samples["connect"] = communicator.connect_ns
        self.steady = _Steady()
        self.concurrent_calls = 0

    def measure(self) -> list[CaseResult]:
        local, case, calls, samples = self.local, self.sizing.case, self.calls, self.samples
        ordinal = self.communicator.calls if case.by_backend else None
        self._step("filling the buffers")
        # Poison touches the receive buffer: else call 0 would pay for its page faults.
        calls.checker.prepare()
        if calls.rotation:
            calls.rotation.refill()
        self._step("first call", samples["cold"])
        # A barrier would pay for connecting. Once connected, barriers take the place of ramp-up
        # calls: after a single barrier the first call takes 1.3 to 1.4 times as long as the others.
        align = calls.align_awake if self.communicator.used else nothing
        if align is nothing:
            calls.flush()
            local.control.start_together()
        refusal = first_call(local, case.describe(), lambda: self._timed_alone("cold", 1, align))
        if refusal:
            self.communicator.refused = True
            not_run = self._not_run(refusal)
            return self.sweep.gather_results(self.sizing, samples, **not_run._asdict())
        try:
            self._measure_cold()
            self._step("warm-up calls", samples["warmup"])
            self._timed_alone("warmup", self.sweep.spec.warmup)
            refused = self._measure_steady()
            if not refused and self.sweep.spec.works_concurrently:
                refused = self._measure_concurrent()
        except RuntimeError as error:
            local.abort(brief(error))
        self.sweep.has_called = self.communicator.used = True
        failed = refused or self._check()
        self._count(self._unchecked_calls * case.coalesce)
        steady = self.steady
        return self.sweep.gather_results(
            self.sizing,
            samples,
            steady=steady.samples,
            **(failed._asdict() if failed else {}),
            batches=steady.sizes,
            batch_start_ns=[start for start, _ in steady.starts],
            batch_start_wall_us=[wall for _, wall in steady.starts],
            spent_ns=steady.spent_ns,
            ordinal=ordinal,
            communicator=self.communicator.how,
            steady_after=steady.after,
            stops=steady.stops,
            steady_ns=steady.steady_ns,
            calls_per_sample=self._calls_per_sample,
        )

    def _step(self, doing: str, samples: Sequence[int] = ()) -> None:
        self.local.progress.step(f"{self.sizing.case.describe()}: {doing}", samples)

    def _not_run(self, refusal: Refusal) -> NotRun:
        """Why the case did not run. A communicator that has never connected is unusable after a
        first call that fails: oneCCL's next call waits for ever.
        """
        case, backend, text = self.sizing.case, self.communicator.backend, refusal.text
        if _is_memory(text) or not case.by_backend:
            return NotRun("oom" if _is_memory(text) else "unsupported", text)
        reason = backend.reason(case, text)
        connected = self.communicator.calls != 0 or backend.connects != "first call"
        if refusal.unsupported or connected or reason != text:
            return NotRun("unsupported", reason)
        reason = f"{backend.name} did not connect: {text}"
        self.sweep.communicators.unusable[backend.name] = reason
        return NotRun("failed", reason)

    def _count(self, calls: int) -> None:
        """Add to the calls of the communicator. Another implementation makes none of its own, but
        what aligned its calls may have connected it.
        """
        by_backend = self.sizing.case.by_backend
        if by_backend and self.communicator.calls is not None:
            self.communicator.calls += calls
        elif not by_backend and self.communicator.calls == 0:
            self.communicator.calls = None

    @property
    def _unchecked_calls(self) -> int:
        alone = len(self.samples["cold"]) + len(self.samples["warmup"])
        return alone + self.steady.ramp_up_calls + sum(self.steady.sizes) + self.concurrent_calls

    @property
    def _calls_per_sample(self) -> int:
        return self.device.calls_per_sample if self.sizing.case.queued else 1

    def _timed_alone(self, kind: str, calls: int, align: Call | None = None) -> None:
        """Calls one by one on the host clock, the device idle at both stamps."""
        clocks = {"host": self.samples[kind], "issue": []}
        if kind == "cold":
            clocks["start"] = self.samples["cold_start"]
        self.device.synchronized(self.calls.once, align or self.calls.align, calls, clocks)

    def _measure_cold(self) -> None:
        """Cold calls in blocks until rank 0's rule ends them. Barriers follow each exchange through
        the store, during which threads fall asleep.
        """
        local, cold, rule = self.local, self.samples["cold"], None
        if local.rank == 0:
            from torchcoll.bench.stopping import SteadyStateRule

            rule = SteadyStateRule(self.sweep.spec.cold)
            rule.add(cold)
        while calls := local.control.decide(rule and rule.next_block()):
            self._step("cold calls", cold)
            self._timed_alone("cold", 1, self.calls.align_awake)
            self._timed_alone("cold", calls - 1)
            if rule:
                rule.add(cold[-calls:])
        if rule:
            self.steady.after = rule.steady_after

    def _measure_steady(self) -> NotRun | None:
        """Batches of calls until rank 0's stopping rules end them; why not if no rank began."""
        local, spec, rule, steady = self.local, self.sweep.spec, None, self.steady
        case, now = self.sizing.case, time.perf_counter_ns
        if local.rank == 0:
            from torchcoll.bench.stopping import StoppingRules, most_in_batch, present

            rule = StoppingRules(
                [
                    subgroup
                    for subgroup in self.sweep.subgroups
                    if present(subgroup, local.control.ranks)
                ],
                *(local.ranks, spec.iters, spec.precision, spec.max_time_s),
                expected_ns=self.samples["cold"][-1],
                means=case.back_to_back,
                most_batch=most_in_batch(local.control.ranks, len(self.device.clocks(case.mode))),
            )
        if case.mode == "graph":
            self._step("graph capture")
            if failed := local.control.attempt(self.calls.capture, RuntimeError):
                return NotRun("unsupported", f"graph capture: {failed[1]}")
        leads = max(1, min(LEAD_CALLS, LEAD_NS // max(1, self.samples["cold"][-1])))
        leads = local.control.decide(leads)
        began = accounted = now()
        while size := local.control.decide(rule and rule.next_batch(now() - began)):
            decided = now()
            self.calls.refill()
            start = (now(), time.time_ns() // 1000)
            clocks, ramp_up = self._batch(leads, size)
            ended = now()
            steady.sizes.append(size)
            steady.ramp_up_calls += len(ramp_up)
            steady.starts.append(start)
            self.samples["ramp_up"] += ramp_up
            everyone = local.control.gather(clocks)
            if rule:
                rule.add(everyone, case.back_to_back, size)
                steady.samples.append(everyone)
            calls_ns = _time_of_calls(size, ramp_up, clocks, self._calls_per_sample)
            steady.spent_ns["ramp_up"] += sum(ramp_up)
            steady.spent_ns["gathers"] += decided - accounted + now() - ended
            steady.spent_ns["barriers"] += max(0, ended - start[0] - calls_ns)
            accounted = now()
        if rule:
            steady.stops, steady.steady_ns = rule.reasons, round(rule.elapsed_ns)
        return None

    def _batch(self, leads: int, size: int) -> tuple[dict[str, list[int]], list[int]]:
        """The samples of ``size`` steady calls, by clock, and of the ramp-up calls before."""
        case, device, calls = self.sizing.case, self.device, self.calls
        clocks, ramp_up = device.clocks(case.mode), list[int]()
        live = clocks["issue"] if "issue" in clocks else clocks["host"]
        if case.back_to_back:
            self._step("steady calls", live)
            calls.align()
            measure = device.stream if case.queued else device.blocking
            measure(calls.timed, size, clocks, leads, ramp_up)
        else:
            self._step("ramp-up calls", ramp_up)
            device.synchronized(calls.timed, calls.align, leads, {"host": ramp_up, "issue": []})
            self._step("steady calls", live)
            device.synchronized(calls.timed, calls.align, size, clocks)
        return clocks, ramp_up

    def _measure_concurrent(self) -> NotRun | None:
        """What --concurrent asks for; why not if some rank has no room for the work."""
        from torchcoll.bench import concurrent

        local, spec, calls = self.local, self.sweep.spec, self.calls
        work: Work | None = None

        def make() -> None:
            nonlocal work
            work = concurrent.computation(local.torch, str(spec.concurrent), self.device)

        failed = local.control.attempt(make, RuntimeError, MemoryError)
        if failed or work is None:
            names, text = failed or ("", "")
            return NotRun("oom", f"no memory for {spec.concurrent} on {names}: {text}")
        name = self.sizing.case.describe()
        blocks = concurrent.measure_concurrent(
            local, calls.timed, work, calls.refill, calls.align, name
        )
        self.concurrent_calls = blocks.pop("all_calls")
        self.samples["concurrent"] = blocks
        return None

    def _check(self) -> NotRun | None:
        """Verify fresh calls, one or two, of a soak a tenth; why not if some rank could not."""
        local, sizing, calls, samples = self.local, self.sizing, self.calls, self.samples
        checks = self.sweep.spec.check and self.communicator.backend.communicates
        checks = checks and sizing.size_bytes > 0
        if not (checks and sizing.case.verifiable):
            if checks:
                samples["unverified"] = True
            return None
        self._step("verification")
        checker, failure = calls.checker, ""
        checked = wrong = changed = 0
        repeats = 1
        if self.sweep.digested:
            once = len(checker.turns)
            repeats = math.ceil(self._unchecked_calls / (SOAK_CALLS_PER_CHECK - 1) / once)
            samples["calls"] = self._unchecked_calls + repeats * once
            samples["checked_calls"] = repeats * once
        for turn in checker.turns * repeats:
            if calls.rotation:  # which goes on with each call
                calls.rotation.stand()
            checker.prepare(turn)
            try:
                calls.align()
                calls.timed()
                self.buffers.receive()
                self.device.synchronize()
            except RuntimeError as error:
                local.abort(brief(error))
            self._count(sizing.case.coalesce)
            try:
                elements, differing = checker.count_wrong()
                changed += checker.count_changed()
                if differing and "first_wrong" not in samples:
                    samples["first_wrong"] = checker.first_wrong()
                if self.sweep.digested:
                    # Keep the digest of each turn: the first, or the last that differs from it.
                    digests = samples.setdefault("digests", {})
                    digest, key = list(checker.digest()), str(turn)
                    if digests.setdefault(key, digest) != digest:
                        digests[key] = digest
            except (RuntimeError, MemoryError) as error:
                failure = failure or brief(error)
            else:
                checked, wrong = checked + elements, wrong + differing
        if failed := local.control.failed(failure):
            names, text = failed
            status = "oom" if _is_memory(text) else "failed"
            return NotRun(status, f"verification on {names}: {text}")
        samples.update(checked=checked, wrong=wrong, changed=changed)
        return None


def _time_of_calls(
    size: int, ramp_up: Sequence[int], clocks: dict[str, list[int]], calls_per_sample: int
) -> int:
    """The time in ns of the calls of a batch of ``size``, ramp-up calls included."""
    samples = next(iter(clocks.values()))  # may be means of several calls
    calls = split_batch(size, calls_per_sample)
    return sum(ramp_up) + sum(ns * count for ns, count in zip(samples, calls, strict=True))


def prepare_call(
    local: Rank, sizing: SizedCase, group_rank: int, buffers: Buffers, group: Any
) -> Call:
    """The call of the case on the rank ``group_rank`` of the group."""
    case, op = sizing.case, None
    if case.implementation != NATIVE:
        from torchcoll.bench.calls import functional_call, kernel_call

        if case.through_api:
            return functional_call(local, sizing, group_rank, buffers, group)
        return kernel_call(local, case, buffers, group)
    if case.op:
        name = "PRODUCT" if case.op == "prod" else case.op.upper()
        op = getattr(local.dist.ReduceOp, name)
    prepare = COLLECTIVES[case.collective].prepare
    return prepare(local.dist, sizing.layout(group_rank), buffers.send, buffers.recv, op, group)


def _is_memory(text: str) -> bool:
    return any(symptom in text.lower() for symptom in _OUT_OF_MEMORY)
