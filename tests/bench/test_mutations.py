"""The power of verification: what a faulty library would leave, on real ranks, is seen or is void.

results/benchmarks/mutations-2026-11-28.txt has every type on 2, 3 and 4 ranks.
"""

import json

import mutations
import pytest
import torch


@pytest.mark.parametrize(
    ("ranks", "dtypes"),
    [(2, ("float32", "int8", "float8_e5m2")), (3, ("bfloat16",))],
)
def test_every_fault_that_changes_a_byte_is_seen(jobs, tmp_path, ranks, dtypes):
    def target():
        import os

        rank = int(os.environ["RANK"])
        rows = mutations.gloo_campaign(rank, ranks, str(tmp_path / "store"), dtypes)
        (tmp_path / f"{rank}.json").write_text(json.dumps(rows))

    assert jobs(tmp_path / "job", target, ranks).codes() == [0] * ranks
    found = mutations.outcome(
        [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    )
    if torch.__version__.startswith("2.6."):  # whose gloo sums in reduce_scatter, whatever the op
        assert all(name.startswith("reduce_scatter ") for name in found["alarms"])
        assert not any(" sum " in name for name in found["alarms"])
        found["alarms"] = []
    assert found["alarms"] == found["undetected"] == found["false"] == []
    assert found["cases"] > 15 * len(dtypes) and found["faults"] > 20 * found["cases"]
    assert len(found["void"]) < 0.2 * found["faults"]


def test_a_blind_check_would_be_told(jobs, tmp_path):
    """The campaign itself can fail: a comparison that sees nothing leaves all undetected."""

    def target():
        import os

        rank = int(os.environ["RANK"])
        mutations.Checker.count_wrong = lambda self: (1, 0)
        mutations.Checker.count_changed = lambda self: 0
        rows = mutations.gloo_campaign(rank, 2, str(tmp_path / "store"), ("int32",))
        (tmp_path / f"{rank}.json").write_text(json.dumps(rows))

    assert jobs(tmp_path / "job", target, 2).codes() == [0, 0]
    found = mutations.outcome(
        [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    )
    assert len(found["undetected"]) + len(found["void"]) == found["faults"]
