"""The process groups that cases run on: one for each backend, sub-groups, and fresh ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from torchcoll.bench.backends import BackendEntry, found_backend, group_store
from torchcoll.core.errors import UnavailableError

if TYPE_CHECKING:
    from torchcoll.bench.runner import Session


@dataclass
class Communicator:
    """What one case's calls go through on this rank.

    ``group`` None is the default group. ``ranks``: ranks of the launch in it. ``calls``: calls that
    torchcoll has made on it, barriers for alignment aside; None: others had made some before.
    ``how``: shared, or how a fresh one was made.
    """

    backend: BackendEntry
    group: Any
    ranks: tuple[int, ...]
    calls: int | None = 0
    how: str = "shared"
    connect_ns: int | None = None


class Communicators:
    """All of one session. ``align`` is a barrier over all ranks on the backend of the case."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._dist = session.dist
        self._whole: dict[str, Any] = {}  # backend -> group of all ranks
        self._made: list[Any] = []  # groups to destroy, None for the default one
        self._shared: dict[str, Communicator] = {}

    def open(self, phase: Callable[[str], Any]) -> None:
        """Make the groups; ``phase`` times each step."""
        session, there = self._session, None
        if session.found_group:
            there = found_backend(session.torch, session.device.kind)
        for place, entry in enumerate(session.entries):
            if place == 0 and not session.found_group:
                with phase("init_process_group"):
                    self._init(entry)
                self._whole[entry.name] = None
            elif entry.name == there:
                self._whole[entry.name] = None
            else:
                with phase(f"new_group_{entry.name}"):
                    self._whole[entry.name] = self._new(entry, None)
        if session.spec.init == "eager":
            with phase("communicator"):
                for entry in session.entries:
                    self._connect(entry)
        for entry in session.entries:
            self._shared[entry.name] = self._over_parts(entry, "shared")

    def _init(self, entry: BackendEntry) -> None:
        session = self._session
        self._dist.init_process_group(
            entry.name,
            store=group_store(session.torch, entry.name, session.store),
            rank=session.rank,
            world_size=session.ranks,
            # Ours comes first and can name the ranks; this one is the last resort.
            timeout=timedelta(seconds=2 * session.spec.timeout_s + 30),
            **self._lazy_options(entry),
        )
        self._made.append(None)

    def _lazy_options(self, entry: BackendEntry) -> dict[str, Any]:
        """torch 2.15's NCCL connects eagerly unless told otherwise; no device_id before it."""
        options = getattr(self._dist, "ProcessGroupNCCL", None) if entry.name == "nccl" else None
        if options is None or not hasattr(options.Options(), "lazy_init"):
            return {}
        lazy = options.Options()
        lazy.lazy_init = self._session.spec.init == "lazy"
        return {"pg_options": lazy}

    def _connect(self, entry: BackendEntry) -> None:
        """Connect now what would connect in the first call."""
        if entry.connects != "first call":
            return
        session = self._session
        device = session.torch.device(session.device.name)
        backend = self.whole(entry.name)._get_backend(device)
        if not hasattr(backend, "eager_connect_single_device"):
            raise UnavailableError(
                "init", f"eager with {entry.name}", "lazy", f"{entry.name} has no eager connect."
            )
        backend.eager_connect_single_device(device)

    def _new(self, entry: BackendEntry, ranks: list[int] | None) -> Any:
        group = self._dist.new_group(ranks, backend=entry.name)
        if ranks is None or self._session.rank in ranks:
            self._made.append(group)
        return group

    def _over_parts(self, entry: BackendEntry, how: str) -> Communicator:
        """The communicator of this rank: all ranks, or its sub-group of ``--groups``."""
        session = self._session
        if len(session.parts) == 1:
            group = self._new(entry, None) if how != "shared" else self._whole[entry.name]
            used = session.found_group and group is None
            return Communicator(entry, group, session.parts[0], None if used else 0, how)
        own: Communicator | None = None
        for part in session.parts:  # every rank takes part in the making of every group
            group = self._new(entry, list(part))
            if session.rank in part:
                own = Communicator(entry, group, part, how=how)
        assert own is not None
        return own

    @contextlib.contextmanager
    def of(self, backend: str) -> Iterator[Communicator]:
        """The communicator for a case; with --fresh-group made for it and destroyed after it."""
        if not self._session.spec.fresh_group:
            yield self._shared[backend]
            return
        made, start = len(self._made), time.perf_counter_ns()
        fresh = self._over_parts(self._shared[backend].backend, "new_group")
        fresh.connect_ns = time.perf_counter_ns() - start
        try:
            yield fresh
        finally:
            for group in self._made[made:]:
                self._dist.destroy_process_group(group)
            del self._made[made:]

    def whole(self, backend: str) -> Any:
        """The group of all ranks; torch's object for the default one too."""
        return self._whole[backend] or self._dist.distributed_c10d._get_default_group()

    def align(self, backend: str) -> Callable[[], object]:
        """A barrier over all ranks; it completes before it returns, on the device too."""
        barrier = self.barrier(self._whole[backend], backend)
        device = self._session.device
        if device.kind == "cpu":
            return barrier

        def align() -> None:
            barrier()
            device.synchronize()

        return align

    def barrier(self, group: Any, backend: str) -> Callable[[], object]:
        if backend == "nccl":  # which would guess the device from the rank
            return partial(self._dist.barrier, group, device_ids=[self._session.device.index])
        return partial(self._dist.barrier, group)

    def close(self) -> None:
        """Destroy what was made here, the default group last."""
        default = None in self._made
        for group in reversed([group for group in self._made if group is not None]):
            self._dist.destroy_process_group(group)
        if default:
            self._dist.destroy_process_group()
        self._made.clear()

    @property
    def owns_default(self) -> bool:
        return None in self._made
