"""How often torchcoll.pairs names the right host: 20 launches of each kind, on six namespaces.

Needs root, ip and tc. slow: one link at 60 % of the others; busy: a neighbour sends on one link;
none: nothing is wrong, and nobody is to be named.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from common import title

sys.path.insert(0, str(Path(__file__).parents[1]))

from namespaces import ARGUMENTS, COUNT, KINDS, MBIT, hosts, named, trouble
from ranks import Measured

LAUNCHES = 20


def main() -> None:
    launches = int(sys.argv[1]) if len(sys.argv) > 1 else LAUNCHES
    title(f"culprit: {COUNT} hosts at {MBIT:g} Mbit/s, torchcoll.pairs {ARGUMENTS}")
    with tempfile.TemporaryDirectory() as folder, hosts(COUNT, MBIT) as made:
        launched = {"environment": made.environment, "setup": made.enter}
        for kind in KINDS:
            right, others = 0, []
            for number in range(launches):
                culprit = number % COUNT
                with trouble(made, kind, culprit):
                    path = Path(folder) / f"{kind}{number}"
                    job = Measured(path, "pairs", ARGUMENTS, COUNT, **launched)
                    job.job.wait()
                found = named(job.run)
                expected = [] if kind == "none" else [f"h{culprit}"]
                right += found == expected
                if found != expected:
                    others.append(f"h{culprit}: {', '.join(found) or 'nobody'}")
            words = f"; else {'; '.join(others)}" if others else ""
            print(f"{kind}: {right} of {launches} right{words}", flush=True)


if __name__ == "__main__":
    main()
