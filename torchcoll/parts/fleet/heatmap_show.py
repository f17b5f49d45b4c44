"""The nodes and cases of a night as a picture: how much slower each node is in each case."""

from __future__ import annotations

import numpy as np

from torchcoll.core.errors import UsageError, one_line
from torchcoll.parts.fleet.node_report import FleetFinding, case_names

_MOST_NAMES = 60  # of nodes beside the picture: more cannot be read


def write_heatmap(finding: FleetFinding, path: str, force: bool = False) -> None:
    """Draws the largest set of peers, slowest node first, and writes it to a PNG, SVG or PDF file.

    Raises UsageError if no node has a case, and UnavailableError without matplotlib.
    """
    from torchcoll.report.pictures import check_path, new_figure, write_figure

    check_path(path, force)

    if not finding.judged:
        raise UsageError("plot", path, "nodes with cases that can be compared")
    judged = finding.judged[0]
    order = np.argsort(-judged.effects)
    change = 100 * np.expm1(judged.case_effects[order])
    names = case_names(judged.peers.keys)
    figure, ((axes,),) = new_figure(1, 1)
    figure.set_size_inches(max(7.0, 3 + 0.25 * len(names)), min(30.0, 3 + 0.16 * len(order)))
    limit = max(5.0, 100 * finding.threshold)
    image = axes.imshow(change, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    if len(order) <= _MOST_NAMES:
        nodes = [one_line(judged.peers.nodes[n]) for n in order.tolist()]
        axes.set_yticks(range(len(order)), nodes, fontsize=7)
    axes.set_ylabel(f"{len(order)} nodes, slowest first")
    axes.set_title(f"time compared with the median node, night of {finding.night or 'unknown'}")
    figure.colorbar(image, ax=axes, label="slower (%)")
    write_figure(figure, path)
