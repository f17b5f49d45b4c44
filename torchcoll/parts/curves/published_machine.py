"""Machines that others measured: `--machine 8xH100`, or a type of machine such as `aws-p5`.

Their times follow the law of curves/published_law.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

from torchcoll.core.collectives import find_collective
from torchcoll.core.errors import UsageError
from torchcoll.core.plausibility import device_named
from torchcoll.core.units import counted, format_size
from torchcoll.parts.curves.predictor import PredictedCase, Prediction, bounded, least_ns
from torchcoll.parts.curves.published_law import (
    PREDICTED,
    QUANTILE,
    PublishedLaw,
    law_point,
    links_of,
    links_of_kind,
    published_law,
)
from torchcoll.questions.check.limit_share import MachineLinks
from torchcoll.questions.check.published import Publication, publications

# GiB of one GPU, as torch reports its "total capacity" when memory runs out; of several sizes of a
# name the largest. Of a GH200 by its data sheet.
_MEMORY_GIB = {
    "V100": 31.7,
    "A100": 79.1,
    "H100": 79.1,
    "H200": 139.8,
    "GH200": 134.1,
    "B200": 178.3,
    "GB200": 184.3,
    "MI300X": 191.7,
}
LARGEST_MEMORY = (1 << 30) * max(_MEMORY_GIB.values())  # bytes of one GPU


@dataclass(frozen=True)
class PublishedMachine:
    """A machine with the links of a published one.

    name: as in `--machine`.
    type: the type of machine whose runs tell its own deviation from the law; '' for a kind.
    runs: the published runs of it.
    """

    name: str
    type: str
    links: MachineLinks
    runs: tuple[Publication, ...] = field(repr=False)

    @cached_property
    def _law(self) -> PublishedLaw:
        return published_law()

    @property
    def intervals(self) -> str:
        return "90 % intervals: such that they hold for 90 % of published machines when left out"

    @property
    def measured_ranks(self) -> list[int]:
        return sorted({run.ranks for run in self.runs})

    @property
    def measured_sizes(self) -> tuple[int, int]:
        sizes = [size for run in self.runs for _, size in run.figures]
        return min(sizes), max(sizes)

    @property
    def ranks_per_host(self) -> float:
        return float(self.links.linked)

    @property
    def memory_bytes(self) -> float | None:
        """The memory of one GPU that torch can use; None if unknown."""
        gib = _MEMORY_GIB.get(self.links.gpu)
        return None if gib is None else (1 << 30) * gib

    def hosts_for(self, ranks: int) -> int:
        return max(1, math.ceil(ranks / self.links.linked))

    def predict(
        self, collective: str, size_bytes: int, ranks: int, hosts: int | None = None
    ) -> Prediction:
        """The time of a call. hosts: groups of linked GPUs; by default as few as the ranks need.

        Raises UsageError for another collective than those of the law, for fewer than two ranks,
        and for more ranks than the hosts have GPUs.
        """
        name = self._predicted(collective)
        if size_bytes < 1 or ranks < 2:
            requested = f"{size_bytes} B on {ranks} ranks"
            raise UsageError("prediction", requested, "at least 1 byte and 2 ranks")
        fewest = self.hosts_for(ranks)
        hosts = hosts or fewest
        if not fewest <= hosts <= ranks:
            expected = f"{fewest} to {ranks}: {self.links.linked} GPUs of {self.name} are linked"
            raise UsageError("hosts", f"{hosts} for {ranks} ranks", expected)
        links = self.links
        law_case = (name, size_bytes, ranks, hosts)
        point = law_point(links, self.type, *law_case)
        if point is None:
            raise UsageError("machine", self.name, "one whose links are known", _FIT)
        predicted = self._law.predict([point])
        log = float(predicted.logs[0])
        half = QUANTILE * float(predicted.deviations[0])
        prediction = Prediction(
            math.exp(log),
            math.exp(log - half),
            math.exp(log + half),
            self._beyond(size_bytes, hosts),
            float(predicted.common[0]),
        )
        host_gbps = None if links.doubt else links.nics_gbps
        return bounded(prediction, least_ns(*law_case, device_named(links.gpu), host_gbps))

    def predict_at_once(
        self, collective: str, size_bytes: int, ranks: int, groups: int, hosts: int | None = None
    ) -> Prediction | None:
        return None  # the published runs have one group each

    def _beyond(self, size_bytes: int, hosts: int) -> str:
        """How far a call is from the published ones."""
        sizes = [size for run in self.runs for _, size in run.figures]
        counts = sorted({max(1, round(run.ranks / run.linked)) for run in self.runs})
        texts = []
        if not min(sizes) <= size_bytes <= max(sizes):
            texts.append(f"published: {format_size(min(sizes))} to {format_size(max(sizes))}")
        if not counts[0] <= hosts <= counts[-1]:
            listed = ", ".join(map(str, counts))
            noun = "host" if counts == [1] else "hosts"
            texts.append(f"published on {listed} {noun}, not on {hosts}")
        return "; ".join(texts)

    def cases(self, collective: str | None = None) -> Sequence[PredictedCase]:
        names = [self._predicted(collective)] if collective else PREDICTED
        return [PredictedCase({"collective": name}, partial(self.predict, name)) for name in names]

    def _predicted(self, collective: str) -> str:
        """torch's name of the collective. Raises UsageError if the law does not have it."""
        name = find_collective(collective).name
        self.check_collectives([name])
        return name

    def check_collectives(self, collectives: Iterable[str]) -> None:
        missing = [name for name in dict.fromkeys(collectives) if name not in PREDICTED]
        if missing:
            what = "collectives" if len(missing) > 1 else "collective"
            expected = f"one of {', '.join(PREDICTED)}"
            raise UsageError(what, ", ".join(missing), expected, _FIT)

    def on_cpu(self, collectives: Iterable[str]) -> bool:
        return False

    def notes(self, ranks: int | None = None) -> list[str]:
        links = self.links
        what = counted(len(self.runs), "published run")
        text = (
            f"times of {self.name} come from {what} of such machines and from their limits, not "
            "from yours: torchcoll show --published lists them with their sources"
        )
        if ranks is not None and ranks <= links.linked:
            return [text]
        unit = f"host of {links.linked} GPUs"
        if links.linked > 8:
            unit = f"group of {links.linked} linked GPUs"
        source = "assumed" if links.doubt else "published"
        return [f"{text}; {8 * links.nics_gbps:.0f} Gbit/s of network per {unit} ({source})"]


_FIT = "Measure it: torchcoll model fit RUN... -o machine.json, then --machine machine.json."


@cache
def published_machines() -> dict[str, PublishedMachine]:
    """All machines of the published set by name: types of machine, then kinds such as 8xH100.

    Those whose links are not known are left out.
    """
    runs = publications()
    machines: dict[str, PublishedMachine] = {}
    for name in sorted({run.type for run in runs}):
        of_type = tuple(run for run in runs if run.type == name)
        links = max((links_of(run, runs) for run in of_type), key=lambda x: (x.linked, -x.doubt))
        machines[name] = PublishedMachine(name, name, links, of_type)
    kinds: dict[tuple[int, str], list[Publication]] = {}
    for run in runs:
        kinds.setdefault((run.linked, run.gpu), []).append(run)
    for (linked, gpu), of_kind in sorted(kinds.items(), key=lambda item: (item[0][1], item[0][0])):
        links = links_of_kind(gpu, linked, runs)
        name = f"{linked}x{gpu.replace(' ', '')}"
        machines[name] = PublishedMachine(name, "", links, tuple(of_kind))
    return {
        name: machine
        for name, machine in machines.items()
        if law_point(machine.links, "", PREDICTED[0], 1 << 20, 2 * machine.links.linked, 2)
    }
