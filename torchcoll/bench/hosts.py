"""The state of the machines before and after a run: one rank of each host looks, all hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcoll.core.errors import UnavailableError

if TYPE_CHECKING:  # loaded on the ranks that look, and on rank 0
    from torchcoll.bench.recorder import Recorder
    from torchcoll.bench.runner import Session
    from torchcoll.bench.state.watch import Watch


class Hosts:
    """The first rank of each host looks at it; ``before`` is what it saw, None on other ranks.

    places: host and device of each rank. Collective. Raises UnavailableError on all ranks with
    ``require_idle`` where others use a host.
    """

    def __init__(
        self, session: Session, places: Sequence[tuple[str, str | None]], require_idle: bool
    ) -> None:
        self._session = session
        self._watch: Watch | None = None
        self.before: dict[str, Any] | None = None
        here, _ = places[session.rank]
        on_host = [rank for rank, (host, _) in enumerate(places) if host == here]
        busy = None
        if session.rank == on_host[0]:
            from torchcoll.bench.state.watch import Watch

            devices = [place for rank in on_host if (place := places[rank][1])]
            pids = [session.control.members[rank]["pid"] for rank in on_host]
            self._watch = Watch(session.device.kind, devices, pids)
            self.before = self._watch.before()
            busy = self._watch.why_busy(self.before) if require_idle else None
        # Asked in any case: no phase is to begin with waiting for those who look.
        found = [text for text in session.control.all_gather(busy) if text]
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise UnavailableError(
                "require-idle",
                f"{found[0]}{more}",
                "a machine that nobody else uses",
                "Wait, end that, or leave --require-idle out.",
            )

    def look_again(self) -> None:
        """Record the state after the run, and what has changed. Collective."""
        session = self._session
        session.progress.step("state of the machine")
        states = session.control.gather(self._watch and [self.before, self._watch.after()])

        def keep(recorder: Recorder) -> None:
            from torchcoll.bench.state.keep import keep_after

            keep_after(recorder, list(filter(None, states)), session.device.kind)

        session.on_rank_0(keep)
