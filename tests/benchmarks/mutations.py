"""The power of verification: every collective, type, operation and placement on 2, 3 and 4 ranks,
and what a faulty library would leave (tests/mutations.py), counted.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections import Counter
from pathlib import Path

from common import fork_ranks, title

from torchcoll.core.collectives import DTYPES

_path = Path(__file__).parents[1] / "mutations.py"
_spec = importlib.util.spec_from_file_location("faults", _path)
assert _spec and _spec.loader
faults = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faults)

if __name__ == "__main__":
    title("mutations of the answer: seen, undetected, void (no byte differs beyond the allowance)")
    print("ranks  type            cases  faults  seen  undetected  void        false alarms")
    voids: Counter[str] = Counter()
    for ranks in (2, 3, 4):
        for dtype in sys.argv[1:] or DTYPES:
            with tempfile.TemporaryDirectory() as folder:
                path = str(Path(folder) / "store")
                rows = fork_ranks(ranks, faults.gloo_campaign, ranks, path, (dtype,))
            found = faults.outcome(rows)
            void, missed, all_of = len(found["void"]), len(found["undetected"]), found["faults"]
            false = len(found["alarms"]) + len(found["false"])
            share = f"{void} ({100 * void / all_of:.1f} %)"
            print(
                f"{ranks:5}  {dtype:14}  {found['cases']:5}  {all_of:6}  "
                f"{all_of - void - missed:4}  {missed:10}  {share:12}{false:10}",
                flush=True,
            )
            voids.update(name.rstrip("0123456789").strip() for _, name in found["void"])
    print("\nvoid, by fault:")
    for name, many in voids.most_common():
        print(f"{many:6}  {name}")
