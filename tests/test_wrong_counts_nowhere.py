"""A result whose status is ok and whose values are wrong, as a reader of another tool may give it.

One property says so, of a case and of its row; every figure goes by it.
"""

import pytest
from made_runs import measured, run

from torchcoll.core.result import Verification
from torchcoll.core.summary import summarise
from torchcoll.parts.curves.scaling import exclusion_reason
from torchcoll.parts.experiments.version_search import figures_of
from torchcoll.parts.fleet.records import _summarise_case
from torchcoll.questions.check.baseline import baseline_pairs
from torchcoll.questions.check.judging import check
from torchcoll.questions.check.show import _case_series
from torchcoll.questions.comparison.compare import compare
from torchcoll.questions.page.charts import sampled
from torchcoll.stats.sides import Reading, Side

WRONG = measured(100, verification=Verification(8, 3))
RIGHT = measured(100, verification=Verification(8, 0))


def test_the_property():
    rows = summarise(RIGHT), summarise(WRONG), summarise(measured(100, status="timeout"))
    assert [row.outcome for row in rows] == ["ok", "wrong", "timeout"]
    assert [row.is_right for row in rows] == [True, False, False]
    assert [one.is_right for one in (RIGHT, WRONG)] == [True, False]
    unchecked = measured(100, verification=None)
    assert unchecked.is_right and summarise(unchecked).is_right
    assert summarise(measured(100, status="wrong", verification=None)).outcome == "wrong"


@pytest.mark.parametrize("result", [RIGHT, WRONG], ids=["right", "wrong"])
def test_every_figure_goes_by_it(result):
    right = result is RIGHT
    one, row = run(result), summarise(result)
    (item,) = Side("", [one]).measured("time", Reading())
    assert (compare(run(RIGHT), one).rows[0].ratio is not None) == right
    assert bool(sampled(one)) == right
    assert bool(figures_of(one, "time")) == right
    assert figures_of(one, "wrong") == {result.case.describe(): float(not right)}
    assert bool(baseline_pairs([row], one)) == right
    assert ("wrong" in exclusion_reason(item)) != right
    names = [name for name, *_ in _case_series(row, {}, None)]
    assert ("case_time_seconds" in names) == right
    assert (check(one).word != "FAIL") == right
    assert (_summarise_case(result, None).status == "ok") == right
