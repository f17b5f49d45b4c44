"""Find what each run forced (its cell), and whether the library obeyed, according to its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torchcoll.core.backends import backend_of
from torchcoll.core.result import Choice
from torchcoll.core.variables import is_name
from torchcoll.libraries.known_variables import FORCING
from torchcoll.libraries.nccl import forced as nccl_forced
from torchcoll.libraries.nccl.algorithms import FUNCTIONS, canonical
from torchcoll.libraries.oneccl.algorithms import variables_of

AUTO = "auto"
_LIBRARY = ("NCCL_", "RCCL_", "CCL_")
_OF_LOGS = ("NCCL_DEBUG", "CCL_LOG")
_NONE = ("", "-", "auto", "default", "none", "unset")  # labels which mean that nothing is forced


@dataclass(frozen=True)
class Forced:
    """A cell: the variables that were set in it. A cell without settings is AUTO."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def auto(self) -> bool:
        return not self.settings


def forced_settings(
    facts: Mapping[str, str], varied: Sequence[str], backend: str
) -> dict[str, str]:
    """The variables of a run that force a choice, or that only some of the runs set.

    If the file does not record a forcing variable, a label of its name (``--label NCCL_ALGO=Ring``)
    counts instead. {} for a backend that reads no such variable, because its cells differ only by
    noise.
    """
    if not backend_of(backend).forced:
        return {}
    settings = {}
    for name in filter(is_name, dict.fromkeys((*FORCING, *varied))):
        value = facts.get(name)
        if not value and name in FORCING:
            label = facts.get(f"label={name}", "")
            value = "" if label.strip().lower() in _NONE else label
        if value:
            settings[name] = value
    return settings


def records_variables(facts: Mapping[str, str]) -> bool:
    """Whether a file records variables; imported files without any may have had some set."""
    return "torch" in facts or any(name.startswith(_LIBRARY) for name in facts)


def varied_variables(runs: Iterable[Mapping[str, str]]) -> list[str]:
    """The library variables that some runs set and others leave unset.

    A variable that all runs set, to several values, is an axis that separates tables. Files that
    record no variables do not count.
    """
    facts = [run_facts for run_facts in runs if records_variables(run_facts)]
    names = dict.fromkeys(n for run_facts in facts for n in run_facts if n.startswith(_LIBRARY))
    wanted = [n for n in names if not n.startswith(_OF_LOGS)]
    return [n for n in wanted if any(n not in run_facts for run_facts in facts)]


def cell_name(settings: Mapping[str, str], labels: Iterable[str | None]) -> str:
    """The name of a cell: ``auto``, the label ``cell`` if all runs agree on it, or as ``ring-ll``.

    A label ``auto`` is ignored if the runs force something, as by variables of the shell.
    """
    if not settings:
        return AUTO
    names = set(labels)
    if len(names) == 1 and (name := names.pop()) and name.split("-")[0] != AUTO:
        return name
    texts = [
        "+".join(dict.fromkeys(clause.rpartition(":")[2].lower() for clause in value.split(";")))
        if name in FORCING
        else f"{name}={value}"
        for name, value in settings.items()
    ]
    return "-".join(dict.fromkeys(texts))


def requested_name(value: str, collective: str) -> str | None:
    """The algorithm or protocol that NCCL_ALGO or NCCL_PROTO = ``value`` names for a collective.

    None if it is not a single name (a list, an exclusion, or for another function).
    """
    function = FUNCTIONS.get(collective, "").lower()
    match = None
    for clause in value.lower().split(";"):
        name, colon, text = clause.rpartition(":")
        if not colon or name == function:
            match = text
    return match if match and re.fullmatch(r"\w+", match) else None


def requested(settings: Mapping[str, str], collective: str) -> tuple[str | None, str | None]:
    """(algorithm, protocol) in the words of the library's log; None for one that is not forced."""
    algorithm, protocol = (
        canonical(requested_name(settings.get(name, ""), collective) or "")
        for name in nccl_forced.VARIABLES
    )
    if algorithm is None:
        collective_variables = variables_of(collective)
        values = {value for name, value in settings.items() if name in collective_variables}
        algorithm = values.pop() if len(values) == 1 else None
        algorithm = algorithm if algorithm and re.fullmatch(r"\w+", algorithm) else None
    return algorithm, protocol


def disobeyed(
    settings: Mapping[str, str], collective: str, choices: Iterable[Choice]
) -> list[Choice]:
    """The choices in the log that differ from the request; [] if none do, or without a log.

    NCCL up to 2.23 silently runs Ring if a forced algorithm does not exist for the function. oneCCL
    runs recursive_doubling instead of ``direct`` on transports other than MPI.
    """
    algorithm, protocol = requested(settings, collective)
    return [
        choice
        for choice in choices
        if choice.source == "log"
        and (
            (algorithm and choice.algorithm.lower() != algorithm.lower())
            or (protocol and choice.protocol and choice.protocol.lower() != protocol.lower())
        )
    ]
