"""How what ``cold`` found is displayed."""

from torchcoll.questions.startup.cold import Cold
from torchcoll.questions.startup.cold_charts import cold_charts
from torchcoll.questions.startup.show import cold_figure, show_cold
from torchcoll.report.shown import Shown

SHOWN = {Cold: Shown(show_cold, figure=cold_figure, charts=cold_charts)}
