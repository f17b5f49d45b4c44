"""One case on one rank: buffers, cold calls, steady calls, verification, samples to rank 0."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchcoll.bench.buffers import Buffers, allocate
from torchcoll.bench.timing import time_isolated, time_stream
from torchcoll.bench.verify import Checker, tolerance_ulp
from torchcoll.core.case import Sizing
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import HangError, TorchcollError

if TYPE_CHECKING:
    from torchcoll.bench.runner import Session
    from torchcoll.core.result import CaseResult

# Ranks that refuse a call do so at once; one that says nothing for so long after this rank was
# refused is in trouble.
REFUSAL_S = 10.0
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc")


def measure_case(session: Session, sizing: Sizing, verdict: list[str] | None) -> CaseResult | None:
    """Run the case unless ``verdict`` says otherwise; the result on rank 0, None elsewhere."""
    if verdict:
        return _result(session, sizing, {}, status=verdict[0], reason=verdict[1])
    with _buffers(session, sizing) as buffers:
        if isinstance(buffers, str):
            return _result(session, sizing, {}, status="oom", reason=buffers)
        with _communicator(session) as made:
            return _Measurement(session, sizing, buffers).measure(made)


@contextlib.contextmanager
def _buffers(session: Session, sizing: Sizing) -> Iterator[Buffers | str]:
    """The buffers, or why some rank has none: then no rank goes on."""
    buffers, failure = None, ""
    try:
        buffers = allocate(session.torch, sizing, session.rank, session.device)
    except (RuntimeError, MemoryError) as error:
        failure = _brief(error)
    failures = session.control.all_gather(failure)
    lacking = [rank for rank, text in enumerate(failures) if text]
    if buffers is None or lacking:
        names = ", ".join(session.control.name(rank) for rank in lacking[:16])
        yield f"no memory on {names}: {failures[lacking[0]]}"
    else:
        yield buffers


@contextlib.contextmanager
def _communicator(session: Session) -> Iterator[dict[str, Any]]:
    """The shared communicator, or one made for this case (--fresh-group) and destroyed after it."""
    if not session.spec.fresh_group:
        yield {}
        return
    shared, start = session.group, time.perf_counter_ns()
    session.progress.step("new_group")
    session.group = session.dist.new_group(backend=session.entry.name)
    made = {"how": "new_group", "ns": time.perf_counter_ns() - start}
    try:
        yield made
    finally:
        session.dist.destroy_process_group(session.group)
        session.group = shared


class _Measurement:
    def __init__(self, session: Session, sizing: Sizing, buffers: Buffers) -> None:
        self.session = session
        self.sizing = sizing
        self.spec = session.spec
        case, dist = sizing.case, session.dist
        op = case.op and getattr(dist.ReduceOp, "PRODUCT" if case.op == "prod" else case.op.upper())
        self.call = COLLECTIVES[case.collective].prepare(
            session.torch,
            dist,
            sizing.layout(session.rank),
            buffers.send,
            buffers.recv,
            op,
            session.group,
        )
        self.checker = Checker(session.torch, sizing, session.rank, buffers)
        alone = session.ranks == 1 or not session.entry.communicates
        self.align = (lambda: None) if alone else session.align
        self.batches: list[int] = []
        self.settled: int | None = None
        self.stop = ""

    def measure(self, made: dict[str, Any]) -> CaseResult | None:
        session, name = self.session, self.sizing.case.describe()
        ordinal = session.ordinals[session.group]
        samples: dict[str, Any] = {"cold": [], "warmup": [], "steady": [], **made}
        self.checker.refill()
        refused = self._first_call(samples["cold"], name)
        if refused:
            return _result(session, self.sizing, samples, status=refused[0], reason=refused[1])
        try:
            self._cold(samples["cold"], name)
            session.progress.step(f"{name}: warm-up calls", samples["warmup"])
            time_isolated(self.call, self.align, samples["warmup"], self.spec.warmup)
            self._steady(samples["steady"], name)
            checked = self._check(samples, name)
        except RuntimeError as error:
            assert session.watchdog is not None
            session.watchdog.trouble(_brief(error))
        calls = len(samples["cold"]) + len(samples["warmup"]) + len(samples["steady"]) + checked
        session.ordinals[session.group] += calls
        return _result(
            session,
            self.sizing,
            samples,
            batches=self.batches,
            ordinal=ordinal,
            settled=self.settled,
            stop=self.stop,
        )

    def _first_call(self, cold: list[int], name: str) -> list[str] | None:
        """Call 0, aligned through the store; [status, reason] where all ranks were refused."""
        session, failure = self.session, ""
        session.progress.step(f"{name}: first call", cold)
        session.control.align()
        try:
            time_isolated(self.call, _no_alignment, cold, 1)
        except Exception as error:
            failure = _brief(error)
        limit = REFUSAL_S if failure else None
        try:
            failures = session.control.all_gather(failure, limit)
        except HangError:
            if not failure:
                raise
            assert session.watchdog is not None
            session.watchdog.trouble(failure)
        if not any(failures):
            return None
        if all(failures):
            memory = any(word in failures[0].lower() for word in _OUT_OF_MEMORY)
            return ["oom" if memory else "unsupported", failures[0]]
        odd = [rank for rank, text in enumerate(failures) if text]
        names = ", ".join(session.control.name(rank) for rank in odd[:16])
        raise TorchcollError(f"{name} failed on {names} alone: {failures[odd[0]]}")

    def _cold(self, cold: list[int], name: str) -> None:
        """Calls 1, 2, ... one by one until rank 0's settling rule is content."""
        session, rule = self.session, None
        if session.rank == 0:
            from torchcoll.bench.stopping import SettlingRule

            rule = SettlingRule(self.spec.cold)
            rule.add(cold[0])
        while len(cold) < self.spec.cold or session.control.decide(rule and not rule.done):
            session.progress.step(f"{name}: cold call {len(cold)}")
            time_isolated(self.call, self.align, cold, 1)
            if rule:
                rule.add(cold[-1])
        if rule:
            self.settled = rule.settled

    def _steady(self, steady: list[int], name: str) -> None:
        session, spec, rule = self.session, self.spec, None
        if session.rank == 0:
            from torchcoll.bench.stopping import StoppingRule

            rule = StoppingRule(session.ranks, spec.iters, spec.precision, spec.max_time_s)
        began = time.perf_counter_ns()
        while size := session.control.decide(
            rule and rule.next_batch(time.perf_counter_ns() - began)
        ):
            self.checker.refill()
            batch: list[int] = []
            session.progress.step(f"{name}: steady calls", batch)
            if self.sizing.case.cadence == "isolated":
                time_isolated(self.call, self.align, batch, size)
            else:
                self.align()
                time_stream(self.call, batch, size)
            steady += batch
            self.batches.append(size)
            if rule:
                rule.add(batch)
        if rule:
            self.stop = rule.reason

    def _check(self, samples: dict[str, Any], name: str) -> int:
        """One more call on fresh data; the number of calls made."""
        session = self.session
        if not (self.spec.check and session.entry.communicates and self.sizing.nbytes):
            return 0
        session.progress.step(f"{name}: verification")
        self.checker.prepare()
        self.align()
        self.call()
        samples["checked"], samples["wrong"] = self.checker.count_wrong()
        return 1


def _no_alignment() -> None:
    """Call 0 was aligned through the store."""


def _result(
    session: Session, sizing: Sizing, samples: dict[str, Any], **facts: Any
) -> CaseResult | None:
    """Gather every rank's samples; the CaseResult on rank 0."""
    session.progress.step(f"{sizing.case.describe()}: samples to rank 0")
    gathered = session.control.gather(samples)
    if session.rank:
        return None
    from torchcoll.core.result import CaseResult, Verification

    result = CaseResult(
        sizing.case,
        facts.pop("status", "ok"),
        sizing.ranks,
        count=sizing.count,
        nbytes=sizing.nbytes,
        nbytes_in=sizing.nbytes_in,
        nbytes_out=sizing.nbytes_out,
        **facts,
    )
    if not any(any(s.get(kind) for kind in ("cold", "steady")) for s in gathered):
        return result
    result.cold_ns = [s["cold"] for s in gathered]
    result.warmup_ns = [s["warmup"] for s in gathered] if samples["warmup"] else []
    result.time_ns = {"host": [s["steady"] for s in gathered]} if samples["steady"] else {}
    if "how" in samples:
        result.communicator = samples["how"]
        result.connect_ns = [s["ns"] for s in gathered]
    if "checked" in samples:
        wrong = [s["wrong"] for s in gathered]
        result.verification = Verification(
            checked=sum(s["checked"] for s in gathered),
            wrong=sum(wrong),
            wrong_ranks=tuple(rank for rank, count in enumerate(wrong) if count),
            tolerance_ulp=tolerance_ulp(sizing.case, sizing.ranks),
        )
        if result.verification.wrong:
            result.status = "wrong"
            result.reason = (
                f"{result.verification.wrong} of {result.verification.checked} elements wrong"
            )
    if result.settled is None:
        result.warnings.append(f"cold calls did not settle within {len(result.cold_ns[0])}")
    return result


def _brief(error: BaseException) -> str:
    """The first sentence of an error, without the source path that C++ puts before it."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    text = re.sub(r"^\[[^\]]*\.\w+:\d+\]\s*", "", text)
    return text.split(". ")[0][:160]
