"""The cases of a run one after the other: agreed on, measured, and recorded on rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.bench.measure import measure_case
from torchcoll.core.backends import backend_of
from torchcoll.core.case import Case, NotRun, SizedCase, fingerprint, size_case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UsageError
from torchcoll.machine import environment
from torchcoll.machine.devices import Call, cost_of_measuring

if TYPE_CHECKING:
    from torchcoll.bench.communicators import Communicators
    from torchcoll.bench.recorder import Recorder
    from torchcoll.bench.session import Rank, Session, Subgroups
    from torchcoll.core.result import CaseResult
    from torchcoll.core.spec import Spec

OnCase = Callable[["CaseResult"], None]


class Sweep:
    """The cases that run on an open session.

    spec, subgroups: None for those of the session. on_case: called on rank 0 with each result.
    """

    def __init__(
        self,
        session: Session,
        spec: Spec | None = None,
        subgroups: Subgroups | None = None,
        on_case: OnCase | None = None,
    ) -> None:
        self.session = session
        self.local: Rank = session.local
        self.communicators: Communicators = session.communicators
        self.library_log = session.library_log
        self.spec: Spec = spec or session.spec
        self.subgroups: Subgroups = subgroups or session.subgroups
        self.subgroup: tuple[int, ...] = next(
            subgroup for subgroup in self.subgroups if self.local.rank in subgroup
        )
        # Nothing is communicated: one rank, or the fake backend.
        self.alone: bool = self.local.ranks == 1 or not session.entries[0].communicates
        self.has_called = False  # some case has made all of its calls
        self.digested = False  # --soak: the output of every checked call has a digest
        self.gathered: list[dict[str, Any]] = []  # rank 0: samples of each rank for the last case
        self._cost_known = False
        self._on_case = on_case
        self._flush: Call | None = None
        self._weights = ""  # hash of the weights of uneven blocks
        if self.spec.has_splits:
            from torchcoll.core.splits import split_rules, split_weights

            rule = split_rules(self.spec.splits)[0]
            weights = split_weights(rule, max(map(len, self.subgroups)))
            self._weights = fingerprint([list(row) for row in weights.rows])

    def flush(self) -> Call:
        """Overwrites the caches, for --buffer-reuse flush. Raises torch's out-of-memory error."""
        if self._flush is None:
            from torchcoll.bench.buffers import flush_call

            local = self.local
            self._flush = flush_call(local.torch, local.device, self.session.flush_bytes)
        return self._flush

    def run(self, which: Sequence[int] | None = None) -> None:
        """Run the session's cases of these indices (None: all)."""
        sizings = self.session.sizings
        for index in range(len(sizings)) if which is None else which:
            self.one_case(sizings[index])
        self.finish(look=which != [])

    def finish(self, look: bool = True) -> None:
        """After the last case: record the library's own timings and the state of the machine."""
        session, local = self.session, self.local
        if session.library_log:
            session.library_log.keep_timings(session)
        if not (look and session.entries[0].communicates):
            return
        local.progress.step("state of the machine")
        states, failure = None, ""
        try:
            states = session.watch and session.watch.states()
        except OSError as error:  # the measurement is worth keeping without it
            failure = f"{error}"
        answers = local.control.gather([states, failure])

        def keep(recorder: Recorder) -> None:
            from torchcoll.bench.recorder import keep_after

            keep_after(recorder, [pair for pair, _ in answers if pair], local.device.kind)
            for rank, (_, text) in enumerate(answers):
                if text:
                    who = local.control.name(rank)
                    recorder.event(
                        "warning", f"no state of the machine after the run: {who}: {text}"
                    )

        session.on_rank_0(keep)

    def one_case(self, sizing: SizedCase) -> None:
        """Measure a case; its results go to the recorder and ``on_case``."""
        self.session.on_rank_0(lambda recorder: recorder.started(sizing.case))
        results = self.measured(sizing)

        def keep(recorder: Recorder) -> None:
            for result in results:
                recorder.case(result)
                if self._on_case:
                    self._on_case(result)

        self.session.on_rank_0(keep)
        if self.has_called and not self._cost_known:
            self._record_cost_of_measuring(sizing.case.backend)
            self._cost_known = True

    def measured(self, asked: SizedCase) -> list[CaseResult]:
        """The result of each sub-group, on rank 0. asked: sized for the largest sub-group."""
        case = asked.case
        start_ns, wall_us = time.perf_counter_ns(), time.time_ns() // 1000
        self.local.progress.step(case.describe())
        not_run = self.agree_on_case(asked) or self._cannot_run(case)
        sizing = size_case(case, len(self.subgroup), span_bytes=asked.span_bytes)
        if not_run:
            results = self.gather_results(sizing, {}, **not_run._asdict())
        else:
            try:
                results = measure_case(self, sizing)
            finally:
                self.local.device.release()  # nothing holds the buffers any more
        for result in results:
            result.start_ns, result.start_wall_us = start_ns, wall_us
            result.spent_ns["case"] = time.perf_counter_ns() - start_ns
        if self.library_log:
            self.library_log.join(self, case, results)
        return results

    def agree_on_case(self, sizing: SizedCase) -> NotRun | None:
        """None to run the case, or why not, by rank 0. Raises UsageError if the ranks differ."""
        control = self.local.control
        seen = fingerprint([sizing.case.to_json(), sizing.count, self._weights])
        answers = control.gather({"case": seen, **environment.free_memory(self.local.device)})
        decision = None
        if self.session.recorder:
            from torchcoll.bench.plan import admit

            decision = admit(sizing, self.subgroups, answers, self.spec.check, control)
        refusal, reason = control.decide(decision)
        if refusal:
            raise UsageError(*refusal)
        return NotRun(*reason) if reason else None

    def _cannot_run(self, case: Case) -> NotRun | None:
        """What torch or the backend cannot do; equal on all ranks."""
        local, backend = self.local, backend_of(case.backend)
        if reason := self.communicators.unusable.get(backend.name):
            return NotRun("failed", reason)
        reason = ""
        if case.mode == "graph" and not local.device.captures:
            reason = f"torch {local.torch.__version__} captures no graphs on {local.device.kind}"
        elif case.mode == "graph" and not COLLECTIVES[case.collective].has_data:
            reason = f"a {case.collective} waits on the host, which no graph can capture"
        elif case.buffers != "default" and not backend.buffers:
            reason = f"{backend.name} has no {case.buffers} buffers"
        return NotRun("unsupported", reason) if reason else None

    def gather_results(
        self,
        sizing: SizedCase,
        samples: dict[str, Any],
        steady: Sequence[list[dict[str, list[int]]]] = (),
        **facts: Any,
    ) -> list[CaseResult]:
        """Gather samples; on rank 0 the results. steady: [batch][rank][clock]. See results_of."""
        local = self.local
        local.progress.step(f"{sizing.case.describe()}: samples to rank 0")
        self.gathered = local.control.gather(samples)
        if local.rank:
            return []
        from torchcoll.bench.recorder import results_of

        return results_of(self.subgroups, sizing, self.gathered, steady, **facts)

    def _record_cost_of_measuring(self, backend: str) -> None:
        """Called after the first case that ran: a barrier before it would pay for connecting."""
        align = None if self.alone else self.communicators.align(backend)
        costs = cost_of_measuring(self.local.device, align)
        gathered = self.local.control.gather(costs)

        def keep(recorder: Recorder) -> None:
            for name in costs:
                recorder.phase(name, [of_rank[name] for of_rank in gathered])

        self.session.on_rank_0(keep)
