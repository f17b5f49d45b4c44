"""A published entry as a run, so that what works on result files works on it too."""

from __future__ import annotations

from torchcoll.core.backends import BACKENDS, NCCL, ONECCL, of_family
from torchcoll.core.case import Case
from torchcoll.core.collectives import busbw_gbps
from torchcoll.core.result import CaseResult, Reported, Run
from torchcoll.questions.check.published import Publication, publications


def publication_named(name: str) -> Publication | None:
    """The entry with this id; None if there is none."""
    return next((publication for publication in publications() if publication.id == name), None)


def run_of(publication: Publication) -> Run:
    """The entry as a run without samples: the time of a call follows from its busbw."""
    backend = of_family(ONECCL if publication.library == ONECCL else NCCL)[0]
    device = BACKENDS[backend].devices[0]
    ranks, per_host = publication.ranks, max(1, publication.ranks // publication.hosts)
    results = []
    for (collective, size_bytes), by_placement in publication.figures.items():
        for in_place, gbps in by_placement.items():
            case = Case(collective, size_bytes, None, None, None, in_place, "unknown", backend,
                        device)  # fmt: skip
            # busbw is proportional to 1 / time.
            time_ns = (busbw_gbps(collective, size_bytes, ranks, 1.0) or 0.0) / gbps
            reported = Reported(time_ns, "mean", busbw_gbps=gbps, derived=True)
            results.append(
                CaseResult(
                    case, "ok", ranks, size_bytes=size_bytes, ordinal=None, reported=reported
                )
            )
    labels = {"gpu": publication.gpu, "hosts": str(publication.hosts)}
    if publication.host_gbit:
        labels["link_gbps"] = f"{publication.host_gbit / 8 / per_host:g}"
    members = [
        {"rank": rank, "host": f"host{rank // per_host}", "device": device,
         "device_name": publication.gpu}
        for rank in range(ranks)
    ]  # fmt: skip
    header = {
        "run_id": f"published:{publication.id}",
        "ranks": ranks,
        "source": {"tool": publication.tool, "file": publication.source},
        "spec": {"labels": labels},
        "environment": {},
    }
    return Run(header=header, members=members, results=results, end={"status": "complete"})
