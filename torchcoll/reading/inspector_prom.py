"""NCCL Inspector's Prometheus text (``nccl_inspector_metrics_UUID.prom``), one file per GPU.

From 2.30 on (plugins/profiler/inspector/inspector_prom.cc) a file has means over the calls since it
was last written: of the time, and the geometric mean of busbw, for each communicator name,
collective, range of sizes and algorithm. It names the node and the GPU, but no rank and no call.
The text of 2.29 has single calls, which inspector.py reads.

Each mean includes waiting, so the GPU with the shortest mean waited least. It may have waited too,
in calls in which another was last, so its busbw is a lower bound, and no row has a bandwidth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.result import CaseResult, Reported
from torchcoll.reading import base
from torchcoll.reading.inspector_records import PER_RANK, is_last_call, metric_of, range_bytes

NAME = "nccl-inspector-prom"
_TIME, _BUSBW = "nccl_collective_exec_time_microseconds", "nccl_bus_bandwidth_gbs"
_LATE = 1.1  # a GPU is named if the next one takes so many times as long
_ROOTED = "rooted: GPUs leave at different times: no bandwidth"
_MEANS = (
    "means over the calls since the file was last written: a GPU that waits least may have waited, "
    "so that no bandwidth is known, only the least that it can be"
)


@dataclass(frozen=True)
class MetricBucket:
    """Calls that Inspector counts together. group: communicator id, else its name."""

    job: str
    group: str
    ranks: int
    collective: str
    size: str
    algorithm: str

    @property
    def low_bytes(self) -> int | None:
        """The lower end of the range, or the size where the text has it, as S of nccl-tests."""
        exact = base.whole(self.size)
        size_bytes = range_bytes(self.size) if exact is None else exact
        per_rank = self.collective in PER_RANK
        return size_bytes * self.ranks if per_rank and size_bytes else size_bytes


@dataclass
class BucketTimes:
    """By GPU (node, GPU): mean time in us, and busbw in GB/s."""

    times_us: dict[tuple[str, str], float] = field(default_factory=dict)
    busbw_gbps: dict[tuple[str, str], float] = field(default_factory=dict)


def sniff(head: Sequence[str]) -> bool:
    return any(text.startswith((_TIME, _BUSBW)) and not is_last_call(text) for text in head)


def read(lines: Iterable[base.Line], options: base.ImportOptions) -> base.Imported:
    return read_together([lines], options)


def read_together(
    files: Iterable[Iterable[base.Line]], options: base.ImportOptions
) -> base.Imported:
    """The runs in the files of several GPUs: one for each job."""
    imported = base.Imported()
    buckets: dict[MetricBucket, BucketTimes] = {}
    for lines in files:
        read_buckets(lines, buckets, imported)
    by_job: dict[str, list[MetricBucket]] = defaultdict(list)
    for bucket in buckets:
        by_job[bucket.job].append(bucket)
    for job, of_job in by_job.items():
        gpus = sorted({gpu for bucket in of_job for gpu in buckets[bucket].times_us})
        groups = {(bucket.group, bucket.ranks) for bucket in of_job}
        results = [
            _result(bucket, buckets[bucket], options, len(groups) > 1)
            for bucket in of_job
            if buckets[bucket].times_us
        ]
        if results:
            source = {"tool": "NCCL Inspector", "format": "Prometheus text", "job": job}
            members = [{"rank": rank, "host": node} for rank, (node, _) in enumerate(gpus)]
            run = base.make_run(results, options, source, ranks=len(gpus), members=members)
            imported.runs.append(run)
    if imported.runs:
        imported.warn(_MEANS)
        imported.warn("ranks are not in the text: GPUs are numbered by node and index")
    return imported


def read_buckets(
    lines: Iterable[base.Line], buckets: dict[MetricBucket, BucketTimes], imported: base.Imported
) -> None:
    """Add the metrics of one file."""
    for line, text in lines:
        text = text.strip()
        if not text or text.startswith("#"):
            continue
        metric = metric_of(text)
        if metric is None:
            imported.refuse(line, "half a row: no whole metric")
            continue
        name, labels, value = metric
        if name not in (_TIME, _BUSBW):
            continue
        collective = base.collective_named(labels.get("collective", ""))
        ranks = base.parse_ranks(labels.get("nranks"))
        size = labels.get("message_size_bytes") or labels.get("message_size", "")
        node, gpu = labels.get("node", ""), labels.get("gpu", "")
        job = labels.get("slurm_job_id", "unknown")[:80]
        group = (labels.get("comm_id") or labels.get("comm_name", "unknown"))[:80]
        if collective is None or not ranks or not (node and gpu):
            imported.refuse(line, "no collective, ranks, node or GPU")
            continue
        bucket = MetricBucket(
            job, group, ranks, collective, size[:40], labels.get("algo_proto", "")[:40]
        )
        if bucket.low_bytes is None:
            imported.refuse(line, f"message_size is {size[:40]}")
            continue
        of_bucket = buckets.setdefault(bucket, BucketTimes())
        values = of_bucket.times_us if name == _TIME else of_bucket.busbw_gbps
        values[node[:256], gpu[:40]] = value
        imported.take()


def _result(
    bucket: MetricBucket, values: BucketTimes, options: base.ImportOptions, grouped: bool
) -> CaseResult:
    times, size_bytes = values.times_us, bucket.low_bytes or 0
    last = min(times, key=lambda gpu: times[gpu])
    rooted = COLLECTIVES[bucket.collective].has_root
    remarks = [f"sizes from {bucket.size.replace('-', ' to ')}"] if "-" in bucket.size else []
    complete = False
    if rooted:
        remarks.append(_ROOTED)
    elif len(times) < bucket.ranks:
        seen = f"{len(times)} of {bucket.ranks} GPUs"
        remarks.append(f"{seen} are there: another may have arrived last: no bandwidth")
    elif len(times) > bucket.ranks:
        remarks.append(
            f"{len(times)} GPUs of communicators of {bucket.ranks} ranks with one name: which "
            "belong together is not known: no bandwidth"
        )
    else:
        complete = True
        if busbw := values.busbw_gbps.get(last):
            remarks.append(f"busbw is at least {busbw:.4g} GB/s, that of {last[1]} of {last[0]}")
        remarks += _late_text(last, times)
    reported = Reported(
        (times[last] if complete else sum(times.values()) / len(times)) * 1000,
        "mean",
        "min" if complete else "mean" if rooted else "unknown",
        "device",
        contradictory=True,  # no bandwidth
    )
    return base.make_result(
        bucket.collective,
        size_bytes,
        reported,
        ranks=bucket.ranks,
        dtype=options.dtype,
        backend=options.backend or "nccl",
        device="cuda",
        warnings=remarks,
        group=bucket.group if grouped else None,
    )


def _late_text(last: tuple[str, str], times: Mapping[tuple[str, str], float]) -> list[str]:
    """Who arrived last, where the next GPU takes clearly longer."""
    others = [time for gpu, time in times.items() if gpu != last]
    if not others or min(others) < _LATE * times[last] or not times[last]:
        return []
    return [
        f"the others wait for {last[1]} of {last[0]}: its mean time is {times[last]:.4g} us, "
        f"theirs {min(others):.4g} us or more"
    ]
