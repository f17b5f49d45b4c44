"""Runs of torchcoll.pairs made by hand."""

import io
import itertools

from torchcoll.core.case import Case
from torchcoll.core.result import CaseResult, Run
from torchcoll.questions.pairs.show import show_pairs


def pairs_run(ranks, slow, per_host=1, size=1 << 20):
    """1 MiB in 0.1 ms (10.486 GB/s), pairs of ``slow`` at a half; no scatter."""
    run = Run(header={"ranks": ranks, "run_id": "abc"}, end={"status": "complete"})
    run.members = [{"rank": r, "host": f"n{r // per_host}"} for r in range(ranks)]
    for a, b in itertools.combinations(range(ranks), 2):
        factor = 2 if slow in (a, b) else 1
        for size_bytes, root, ns in ((8, None, 5000), *((size, r, 100_000) for r in (None, 0, 1))):
            case = Case(
                "sendrecv", size_bytes, "float32", None, root, False, "synchronized", "g", "cpu"
            )
            case = Case.from_json(case.to_json() | {"group": f"pair/{a}-{b}"})
            times = {"host": [[ns * (factor if size_bytes > 8 else 1)] * 3] * 2}
            result = CaseResult(case, "ok", 2, size_bytes=size_bytes, time_ns=times, members=[a, b])
            run.results.append(result)
    return run


def shown(run, format="table", out=None, **options):
    out = out or io.StringIO()
    assert show_pairs(run, format, file=out, **options) is True
    return out.getvalue()
