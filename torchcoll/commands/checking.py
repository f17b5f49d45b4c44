"""``torchcoll algorithms --check``: AUTO and an exported setting, launched again and compared."""

from __future__ import annotations

import argparse
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchcoll.core.errors import ExitCode, TorchcollError, UsageError, printable, tell

if TYPE_CHECKING:
    from torchcoll.analysis.algorithms import Algorithms
    from torchcoll.analysis.exports import Exported
    from torchcoll.matrix.recheck import Recheck


def check(found: Algorithms, exported: Exported, options: argparse.Namespace) -> ExitCode | int:
    """Launch what is missing of the check, then say what it shows.

    Behind variables it is comments: the output stays what a shell can read. FAILED where a launch
    failed, or a case is slower, wrong, or was run by another algorithm. Raises UsageError where
    nothing can be launched.
    """
    from torchcoll.analysis.checked import what_ran
    from torchcoll.analysis.compare import compare
    from torchcoll.analysis.exports import TUNER_PLUGIN, check_command
    from torchcoll.analysis.sides import side
    from torchcoll.commands.matrix import launch
    from torchcoll.report.checked import ran_lines
    from torchcoll.report.compare import show_comparisons

    before = "" if exported.rules else "# "
    matrix = Path(options.files[0])
    if not (len(options.files) == len(found.matrices) == 1 and matrix.is_dir()):
        print(f"{before}check: {check_command(exported.values)}", flush=True)
        raise UsageError(
            "check", " ".join(options.files), "the folder of one torchcoll matrix",
            "How these were launched is not known; the command printed checks it.",
        )  # fmt: skip
    if exported.rules and not os.environ.get(TUNER_PLUGIN):
        raise UsageError(
            "check", f"no {TUNER_PLUGIN} in the environment",
            "the path of the plugin that reads the file", "Set it and start the same again.",
        )  # fmt: skip
    again = _recheck(matrix, found, exported)
    folder = again.folder(matrix, exported.text)
    code = launch(again.plan, folder, table=False)
    if code not in (ExitCode.OK, ExitCode.FAILED):
        tell(f"torchcoll: {folder}: the same command again goes on")
        return code
    paths = again.files(folder)
    for name, own in zip(("auto", "exported"), paths, strict=True):
        if not own:
            raise TorchcollError("check", f"no result of {name}", "launches", f"See {folder}/logs.")
    sides = [side(n, p) for n, p in zip(("auto", "exported"), paths, strict=True)]
    compared = compare(
        *sides, threshold=found.threshold, over_ranks=options.over_ranks, by=again.by
    )
    ran = what_ran(sides[1].runs, exported.values, exported.rules)
    out = io.StringIO()
    show_comparisons([compared], options.format, out)
    lines = [*out.getvalue().splitlines(), *ran_lines(ran, len(sides[1].results))]
    print("\n".join(printable(f"{before}{line}".rstrip()) for line in lines))
    bad = compared.tally.get("slower") or any(one.others for one in ran)
    return ExitCode.FAILED if bad else code


def _recheck(matrix: Path, found: Algorithms, exported: Exported) -> Recheck:
    from torchcoll.bench.environment import variables
    from torchcoll.matrix.recheck import recheck

    forced = {n for table in found.tables for cell in table.cells for n in cell.settings}
    collectives = [str(table.common["collective"]) for table in found.tables if table.ranges]
    return recheck(
        matrix,
        found.matrices[0],
        exported.values,
        forced,
        found.learned,
        list(dict.fromkeys(collectives)),
        variables,
    )
