"""What starting costs, printed: tables and markdown (report/cold_tables.py), CSV and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchcoll.report.cold_tables import cold_grids, over
from torchcoll.report.found import Found, show_found
from torchcoll.report.notes import found_lines

if TYPE_CHECKING:
    from torchcoll.analysis.cold import Cold, ColdRow, Scale
    from torchcoll.analysis.repeats import Pairs

SCHEMA = "torchcoll-cold/1"


def show_cold(found: Sequence[Cold], format: str = "table", file: TextIO | None = None) -> None:
    """Print what ``cold`` found. Raises UsageError for an unknown format."""
    show_found(
        [
            Found(cold_grids(one), list(map(row_record, one.rows)), cold_object(one))
            for one in found
        ],
        format,
        file,
    )


# -- objects ---------------------------------------------------------------------------------


def cold_object(found: Cold) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "rows": [row_record(row) for row in found.rows],
        "by_ranks": [_scale_record(scale) for scale in found.scales],
        "second_launch": [_pairs_record(pairs) for pairs in found.again],
        "late": [
            {**dataclasses.asdict(one), "kind": _known(one.kind), "extra_ns": one.extra_ns}
            for one in found.late
        ],
        "notes": found_lines(found.notes, found.runs),
    }


def row_record(row: ColdRow) -> dict[str, Any]:
    """One launch, flat: durations in ns, unknown is null."""
    part = row.largest_part
    return {
        "launch": row.name,
        "cell": row.launch.labels.get("cell"),
        "job": row.placed.job,
        "place_in_job": row.placed.place if row.placed.job else None,
        "start_utc": row.launch.header.get("start_utc"),
        **_known(row.kind),
        "ranks": row.ranks,
        "hosts": row.hosts,
        "first_call_ns": row.call_ns(1),
        "second_call_ns": row.call_ns(2),
        "third_call_ns": row.call_ns(3),
        "last_cold_call_ns": row.last_ns,
        "steady_ns": row.steady_ns,
        "steady_clock": row.clock,
        "second_over_first": over(row.call_ns(2), row.call_ns(1)),
        "second_over_third": over(row.call_ns(2), row.call_ns(3)),
        "first_over_steady": over(row.call_ns(1), row.steady_ns),
        "first_result_ns": row.first_result_ns,
        "new_communicator": row.own,
        "status": row.status,
        "first_call_slowest_rank": row.first.rank if row.first else None,
        "first_call_beyond_ns": row.first.beyond_ns if row.first else None,
        **{
            f"{name}_{field}": value
            for name, phase in row.phases.items()
            for field, value in (
                ("ns", phase.ns),
                ("slowest_rank", phase.rank),
                ("beyond_ns", phase.beyond_ns),
            )
        },
        **{f"nccl_init_{name}_ns": ns for name, ns in row.parts_ns.items()},
        "nccl_init_largest_part": part[0] if part else None,
    }


def _scale_record(scale: Scale) -> dict[str, Any]:
    again = _pairs_record(scale.again) if scale.again else None
    return {**dataclasses.asdict(scale), "kind": _known(scale.kind), "again": again}


def _pairs_record(pairs: Pairs) -> dict[str, Any]:
    judged, ratio = pairs.judged, pairs.judged.ratio
    return {
        "ranks": pairs.ranks,
        "figure": pairs.figure,
        "jobs": len(judged.base),
        "ratio": ratio.ratio if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "p_value": judged.p_value,
        "verdict": judged.verdict,
        "reason": judged.reason,
    }


def _known(kind: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kind.items() if value is not None}
