"""The process groups that cases run on: one for each backend, sub-groups, and fresh ones; and the
first call on them, which all ranks may be refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcoll.core.backends import BackendEntry, backend_of, current_backend, group_store
from torchcoll.core.errors import HangError, TorchcollError, UnavailableError, UsageError, brief
from torchcoll.core.spec import SPLIT_FIELD

if TYPE_CHECKING:
    from torchcoll.bench.session import Rank, Subgroups
    from torchcoll.core.spec import Spec

# A rank that does not answer for so long after this rank was refused a call is in trouble. Half of
# a shorter --timeout, at whose end the library refuses a rank that waits in vain.
REFUSAL_S = 10.0
# How torch and its backends say that they have no such call, type or device.
_NOT_THERE = re.compile(r"(?i)support|implement|unconvertible|no backend type")


@dataclass
class Communicator:
    """The process group that the calls of a case use on this rank."""

    backend: BackendEntry
    group: Any  # None is the default group
    ranks: tuple[int, ...]  # ranks of the run in it
    # Calls of torchcoll without barriers for alignment; None if others had made some before.
    calls: int | None = 0
    how: str = "shared"  # or how a fresh one was made: new_group, or split off its parent by torch
    connect_ns: int | None = None
    used: bool = False  # torchcoll has made calls on it, so a barrier does not connect it
    refused: bool = False  # all ranks were refused a call on it


class Communicators:
    """All process groups of a session. in_group: the program had a default group before."""

    def __init__(
        self,
        local: Rank,
        spec: Spec,
        subgroups: Subgroups,
        entries: Sequence[BackendEntry],
        in_group: bool,
    ) -> None:
        self._local, self._dist = local, local.dist
        self._spec, self._subgroups, self._entries = spec, subgroups, entries
        self._in_group = in_group
        self._config = spec.config_fields
        self._split = SPLIT_FIELD in self._config
        self._eager = spec.connects_early
        # torchcoll's own timeout is shorter and names ranks; this one is the last resort.
        self._timeout = timedelta(seconds=2 * spec.timeout_s + 30)
        self._whole: dict[str, Any] = {}  # backend -> group of all ranks
        self._made: list[Any] = []  # groups to destroy, None for the default one
        self._shared: dict[str, Communicator] = {}
        self.unusable: dict[str, str] = {}  # backend -> why its first call did not connect

    def open(self) -> None:
        """Make the groups."""
        local, there, phase = self._local, None, self._local.progress.phase
        self._check_config()
        sizes = {len(subgroup) for subgroup in self._subgroups}
        for size in sizes - {max(sizes)}:
            self._spec.sizings(size)  # refuses a root or splits that a sub-group cannot have
        if self._in_group:
            there = current_backend(local.torch, local.device.kind)
        for index, entry in enumerate(self._entries):
            if index == 0 and not self._in_group:
                with phase("init_process_group"), self._device_stated():
                    self._dist.init_process_group(
                        entry.name,
                        store=group_store(local.torch, entry.name, local.control.store),
                        rank=local.rank,
                        world_size=local.ranks,
                        timeout=self._timeout,
                        pg_options=self._options(entry),
                    )
                self._made.append(None)
                self._whole[entry.name] = None
            elif entry.name == there:
                self._whole[entry.name] = None
            else:
                with phase(f"new_group_{entry.name}"):
                    self._whole[entry.name] = self._new(entry, None)
        with phase("communicator") if self._eager else contextlib.nullcontext():
            for entry in self._entries:
                self._connect(entry, self._whole[entry.name])
                if self._split and entry.options and self._whole[entry.name] is None:
                    # From now on torch splits new groups off the default one.
                    self._object(None).bound_device_id = local.torch.device(local.device.name)
                self._shared[entry.name] = self._over_subgroups(entry, self._subgroups, fresh=False)

    @contextlib.contextmanager
    def _device_stated(self) -> Iterator[None]:
        """Set LOCAL_RANK to the index of the device, which torch 2.15's NCCL binds. Slurm sets no
        such variable. A device_id would do too, but makes older torch connect.
        """
        index, before = self._local.device.index, os.environ.get("LOCAL_RANK")
        if index is not None:
            os.environ["LOCAL_RANK"] = str(index)
        try:
            yield
        finally:
            if before is not None:
                os.environ["LOCAL_RANK"] = before
            elif index is not None:
                del os.environ["LOCAL_RANK"]

    def _options(self, entry: BackendEntry) -> Any:
        """The options of a new group, with the fields of --communicator-config. torch 2.15's NCCL
        connects when it is made unless it is lazy: then ``_connect`` does, and its time is known.
        """
        group_class = getattr(self._dist, entry.options, None) if entry.options else None
        if group_class is None:
            return None
        options, is_asked = group_class.Options(), bool(self._config)
        if hasattr(options, "lazy_init") and not self._splits(entry):
            options.lazy_init = is_asked = True
        for name, text in self._config.items():
            value = self._config_value(group_class, options, name, text)
            setattr(options.config, name, value)
        return options if is_asked else None

    def _check_config(self) -> None:
        """Raise UnavailableError or UsageError for a field that no backend has, or its value."""
        if not self._config:
            return
        text, what = self._spec.communicator_config, "communicator-config"
        able = [entry for entry in self._entries if entry.options]
        if not able:
            names = ", ".join(entry.name for entry in self._entries)
            raise UnavailableError(what, f"{text} with {names}", "a backend that has one: nccl")
        if self._in_group:
            expected = "a run that makes its own default group"
            action = "Set the fields in the pg_options of your init_process_group."
            raise UnavailableError(what, f"{text} in a group that was there", expected, action)
        for entry in able:
            self._options(entry)

    def _config_value(self, group_class: Any, options: Any, name: str, text: str) -> Any:
        """The value of a field: a constant (``zero``: NCCL_CTA_POLICY_ZERO), a number or a text."""
        config, what = getattr(options, "config", None), "communicator-config"
        if not hasattr(config, name):
            public = (field for field in dir(config) if not field.startswith("_"))
            names = [field for field in public if not callable(getattr(config, field))]
            torch_version = f"torch {self._local.torch.__version__}"
            expected = f"one of {', '.join(names)}" if names else "no fields"
            raise UnavailableError(what, f"{name} with {torch_version}", expected)
        start = f"{name}_".upper()
        constants = {
            constant.partition(start)[2].lower(): constant
            for constant in dir(group_class)
            if start in constant
        }
        if text.lower() in constants:
            return getattr(group_class, constants[text.lower()])
        if text.isdecimal():
            return int(text)
        if isinstance(getattr(config, name), int):
            expected = ", ".join([*constants, "a whole number"])
            raise UsageError(what, f"{name}={text}", expected)
        return text

    def _connect(self, entry: BackendEntry, group: Any) -> None:
        """With --init eager: connect now, if the backend would connect in the first call."""
        if not self._eager or entry.connects != "first call":
            return
        if not entry.eager:
            if self._spec.init == "lazy":
                return  # asked for buffers that it does not have: its rows say so
            raise UnavailableError(
                "init", f"eager with {entry.name}", "lazy", f"{entry.name} has no eager connect."
            )
        device = self._local.torch.device(self._local.device.name)
        backend = self._object(group)._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        options: Any = getattr(backend, "options", None)
        if hasattr(options, "lazy_init"):
            options.lazy_init = False  # else the call below does nothing
        backend.eager_connect_single_device(device)

    def _new(self, entry: BackendEntry, ranks: list[int] | None) -> Any:
        with self._device_stated():
            group = self._dist.new_group(
                ranks, timeout=self._timeout, backend=entry.name, pg_options=self._options(entry)
            )
        if ranks is None or self._local.rank in ranks:
            self._made.append(group)
        return group

    def _over_subgroups(
        self, entry: BackendEntry, subgroups: Subgroups, fresh: bool
    ) -> Communicator:
        """The communicator of this rank: all ranks, or its sub-group of ``--groups``."""
        whole = len(subgroups) == 1
        if whole and not fresh:
            group = self._whole[entry.name]
            used = self._in_group and group is None
            return Communicator(entry, group, subgroups[0], None if used else 0)
        how = "shared"
        if fresh:
            how = "split" if self._splits(entry) else "new_group"
        communicator: Communicator | None = None
        for subgroup in subgroups:  # every rank takes part in the making of every group
            group = self._new(entry, None if whole else list(subgroup))
            if self._local.rank in subgroup:
                communicator = Communicator(entry, group, subgroup, how=how)
        assert communicator is not None
        self._connect(entry, communicator.group)
        return communicator

    def over(self, entry: BackendEntry, ranks: tuple[int, ...]) -> Any:
        """A group of these ranks of the run; None for the default one. Collective."""
        if len(ranks) == self._local.ranks:
            return self._whole[entry.name]
        return self._new(entry, list(ranks))

    def _splits(self, entry: BackendEntry) -> bool:
        """Whether torch splits a new group off the default one, which is bound to a device."""
        if not entry.options or not (self._in_group or None in self._made):
            return False
        options = getattr(self._dist, entry.options, None)
        lazy = options is not None and hasattr(options.Options(), "lazy_init")
        bound = getattr(self._object(None), "bound_device_id", None)
        return bool(bound) and (self._split or not lazy)

    @contextlib.contextmanager
    def of(self, backend: str, fresh_subgroups: Subgroups = ()) -> Iterator[Communicator]:
        """The communicator for a case: the shared one, or one of its own (``fresh_subgroups``)."""
        if not fresh_subgroups:
            with self._watched(self._shared[backend]) as shared:
                yield shared
            if shared.refused:
                self._shared[backend] = self._renewed(shared)
            return
        count, start = len(self._made), time.perf_counter_ns()
        fresh = self._over_subgroups(self._shared[backend].backend, fresh_subgroups, fresh=True)
        fresh.connect_ns = time.perf_counter_ns() - start
        try:
            with self._watched(fresh):
                yield fresh
        finally:
            self._local.progress.groups = ()
            for group in self._made[count:]:
                self._dist.destroy_process_group(group)
            del self._made[count:]

    def _renewed(self, refused: Communicator) -> Communicator:
        """The communicator after one whose call all ranks were refused: a new one where part of the
        call may still run (gloo) and a barrier would raise. Collective.
        """
        entry = refused.backend
        if not entry.barrier_rethrows:
            refused.refused = False
            return refused
        if len(self._subgroups) == 1:
            self._whole[entry.name] = self._new(entry, None)
        renewed = self._over_subgroups(entry, self._subgroups, fresh=False)
        # It continues the old group's count, so that no later case looks like the first of the run.
        renewed.calls, renewed.used = refused.calls, refused.used
        if refused.group is not None:  # the default group lasts as long as the run
            self._made.remove(refused.group)
            self._dist.destroy_process_group(refused.group)
        return renewed

    @contextlib.contextmanager
    def _watched(self, communicator: Communicator) -> Iterator[Communicator]:
        """Let the watchdog ask how many calls torch has counted, also after an error."""
        progress, group = self._local.progress, self._object(communicator.group)
        whole = self.whole(communicator.backend.name)
        progress.groups = (group,) if group is whole else (group, whole)
        progress.subgroup = communicator.ranks[0]
        progress.begin()
        yield communicator
        progress.groups = ()

    def whole(self, backend: str) -> Any:
        """The group of all ranks; for the default one torch's object."""
        return self._object(self._whole[backend])

    def _object(self, group: Any) -> Any:
        return group or self._dist.distributed_c10d._get_default_group()

    def align(self, backend: str, communicator: Communicator | None = None) -> Callable[[], object]:
        """A complete barrier over all ranks, by the measured communicator if it has all ranks."""
        group = self._whole[backend]
        if communicator and len(communicator.ranks) == self._local.ranks:
            group = communicator.group
        barrier = self.barrier(group, backend)
        device = self._local.device
        if device.kind == "cpu":
            return barrier

        def align() -> None:
            barrier()
            device.synchronize()

        return align

    def barrier(self, group: Any, backend: str) -> Callable[[], object]:
        if backend_of(backend).guesses_device:
            return partial(self._dist.barrier, group, device_ids=[self._local.device.index])
        return partial(self._dist.barrier, group)

    def close(self) -> None:
        """Destroy what was made here, the default group last."""
        self._local.progress.groups = ()
        default = None in self._made
        for group in reversed([group for group in self._made if group is not None]):
            self._dist.destroy_process_group(group)
        if default:
            self._dist.destroy_process_group()
        self._made.clear()


class Refusal(NamedTuple):
    """Why the first call failed on all ranks. unsupported: the library has no such call."""

    text: str
    unsupported: bool


def first_call(local: Rank, what: str, call: Callable[[], object] | None) -> Refusal | None:
    """Make the first call of its kind, in which a backend reports what it cannot do. Collective.

    call: None if this rank has none to make.

    Returns why every rank refused the call, or None. Raises TorchcollError with the names of the
    ranks if only some were refused, and UsageError for an unknown value of a variable.
    """
    refusal: Refusal | None = None
    try:
        if call:
            call()
    except Exception as error:
        refusal = Refusal(brief(error), _is_unsupported(error))
    control = local.control
    try:
        answer = None if call is None else refusal or ""
        limit_s = min(REFUSAL_S, control.timeout_s / 2) if refusal else None
        answers = control.gather(answer, limit_s)
        refused = [rank for rank, text in enumerate(answers) if text]
        # If other ranks made the call, the ranks that were refused are named.
        names = control.names(refused) if "" in answers else ""
        first = control.decide([answers[refused[0]], names] if refused else None, limit_s)
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
