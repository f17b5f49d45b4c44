"""How a comparison is displayed."""

from torchcoll.questions.comparison.compare import Comparison
from torchcoll.questions.comparison.show import show_comparisons
from torchcoll.questions.comparison.speed_up_charts import speed_up_charts
from torchcoll.report.shown import Shown

SHOWN = {Comparison: Shown(show_comparisons, takes_every=True, charts=speed_up_charts)}
