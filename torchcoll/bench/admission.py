"""Whether all ranks are about to do the same, and whether there is room for it.

Rank 0 decides for all ranks from what each says before a case. Loaded there, and where ranks
disagree.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torchcoll.bench.control import Control
from torchcoll.bench.plan import impossible, needs_bytes
from torchcoll.core.case import NotRun, SizedCase, fingerprint
from torchcoll.core.errors import UsageError
from torchcoll.core.spec import Spec
from torchcoll.core.units import format_bytes

FREE_SHARE = 0.8  # of the free memory of a host; the rest is for what else lives there
_LONG = 60  # characters of a value
# Each rank may have made its Spec of what it sent itself.
_SAME_TRAFFIC = (
    "The ranks sent different calls: save the traffic of each, and measure all of it with "
    "torchcoll.suite --traffic FOLDER."
)


def odd_ranks(answers: Sequence[str]) -> list[int]:
    """The ranks whose answer is not that of the most."""
    usual = Counter(answers).most_common(1)[0][0]
    return [rank for rank, answer in enumerate(answers) if answer != usual]


def of_arguments(control: Control, hellos: Sequence[Mapping[str, str]], spec: Spec) -> UsageError:
    """The error of ranks that were started otherwise, by ``asked`` and ``argv`` of the hello.

    hellos: of every rank on rank 0, none elsewhere. Every rank calls it: Specs that programs made
    are sent to rank 0 here alone, and the fields that differ are named.
    """
    specs: list[dict[str, list[str]]] = []
    if control.decide(not any(hello["argv"] for hello in hellos)):
        fields = spec.to_json()
        texts = {name: json.dumps(value) for name, value in fields.items()}
        texts["points"] = f"{len(spec.points)} calls"
        short = {
            name: text if len(text) <= _LONG else f"{text[:_LONG]}..."
            for name, text in texts.items()
        }
        specs = control.gather(
            {name: [fingerprint(value), short[name]] for name, value in fields.items()}
        )
    refusal: list[str] = []
    if hellos:
        odd = odd_ranks([hello["asked"] for hello in hellos])
        others = {*odd}
        like = next(rank for rank in range(len(hellos)) if rank not in others)
        argv, expected = hellos[odd[0]]["argv"], hellos[like]["argv"]
        if specs:
            argv, expected = (
                ", ".join(
                    f"{name} {specs[rank].get(name, ['', 'unknown'])[1]}"
                    for name in specs[like]
                    if specs[odd[0]].get(name) != specs[like][name]
                )
                or "another Spec"
                for rank in (odd[0], like)
            )
        refusal = [
            f"arguments of {control.names(odd)}",
            argv or "no arguments",
            f"as on {control.name(like)}: {expected or 'no arguments'}",
        ]
    what, value, expected = control.decide(refusal)
    action = _SAME_TRAFFIC if spec.points else "Start all ranks with the same arguments."
    return UsageError(what, value, expected, action)


def disagreement(
    sizing: SizedCase, answers: Sequence[Mapping[str, Any]], control: Control
) -> list[str] | None:
    """The arguments of a UsageError where the ranks are not about to run the same case.

    answers: as of ``admit``.
    """
    hashes = [answer["case"] for answer in answers]
    if len(set(hashes)) == 1:
        return None
    return [
        f"case on {control.names(odd_ranks(hashes))}",
        "another case than the other ranks",
        f"the same on all ranks (rank 0: {sizing.case.describe()})",
        "Start all ranks with the same arguments, files and torchcoll version.",
    ]


def admit(
    sizing: SizedCase,
    parts: Sequence[Sequence[int]],
    answers: Sequence[Mapping[str, Any]],
    check: bool,
) -> NotRun | None:
    """None to run the case, else why not.

    sizing: that of the largest of the sub-groups ``parts``. answers: from each rank ``case`` (a
    hash of it), ``where`` its buffers live and the ``free`` bytes there. check: whether the results
    are verified, which needs memory too.
    """
    for ranks in sorted({len(part) for part in parts}):
        if refused := impossible(sizing.case, ranks):
            return refused
    needs = needs_bytes(sizing, check)
    # With the fake backend this process is the only one of all ranks.
    of_rank = {
        rank: needs[place]
        for part in parts
        for place, rank in enumerate(part)
        if rank < len(answers)
    }
    text = lacks_memory(of_rank, answers)
    return NotRun("skipped", text) if text else None


def lacks_memory(needs: Mapping[int, int], answers: Sequence[Mapping[str, Any]]) -> str:
    """Where the ranks together need more bytes than may be taken; '' where there is enough.

    needs: bytes by rank. answers: as of ``admit``.
    """
    need: defaultdict[str, int] = defaultdict(int)
    free: dict[str, int] = {}
    ranks: Counter[str] = Counter()
    for rank, size_bytes in needs.items():
        where = answers[rank]["where"]
        need[where] += size_bytes
        free[where] = min(free.get(where, answers[rank]["free"]), answers[rank]["free"])
        ranks[where] += 1
    for where, size_bytes in need.items():
        if size_bytes > FREE_SHARE * free[where]:
            return (
                f"needs {format_bytes(size_bytes)} ({size_bytes} bytes, {ranks[where]} ranks) on "
                f"{where}, "
                f"80 % of the free {format_bytes(free[where])} ({free[where]} bytes) is less"
            )
    return ""
