"""Whether an exported setting did what it says, by the library's log of its launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchcoll.analysis.forced import others_than, requested
from torchcoll.core.result import CaseResult, Choice, Run
from torchcoll.libraries.nccl.calls import FUNCTIONS
from torchcoll.libraries.nccl.tuner import Rule
from torchcoll.libraries.oneccl.algorithms import variables_of
from torchcoll.libraries.oneccl.selection import algorithm_at


@dataclass(frozen=True)
class Ran:
    """A case. asked: as in ``Choice.label``. others: what the log names beside it; () where it is
    as asked.
    """

    collective: str
    nbytes: int
    asked: str
    others: tuple[str, ...]


def what_ran(runs: Iterable[Run], values: Mapping[str, str], rules: Sequence[Rule]) -> list[Ran]:
    """The cases of which the setting says what runs, and a log says what ran.

    values: the variables of the setting. rules: of the tuner file that they name, else none.
    """
    found = []
    for result in (result for run in runs for result in run.results):
        algorithm, protocol = _asked(result, values, rules)
        logged = [choice for choice in result.choices if choice.source == "log"]
        if logged and (algorithm or protocol):
            others = others_than(algorithm, protocol, logged)
            asked = Choice(algorithm or "any", protocol or "").label
            labels = tuple(dict.fromkeys(choice.label for choice in others))
            found.append(Ran(result.case.collective, result.nbytes, asked, labels))
    return found


def _asked(
    result: CaseResult, values: Mapping[str, str], rules: Sequence[Rule]
) -> tuple[str | None, str | None]:
    collective = result.case.collective
    for rule in rules:
        if rule.matches(FUNCTIONS.get(collective, ""), result.nbytes, result.ranks):
            return rule.algorithm, rule.protocol
    algorithm, protocol = requested(values, collective)
    for name in variables_of(collective):
        algorithm = algorithm or algorithm_at(values.get(name, ""), result.nbytes)
    return algorithm, protocol
