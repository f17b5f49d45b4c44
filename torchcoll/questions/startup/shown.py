"""How what ``cold`` found is displayed."""

from torchcoll.questions.startup.cold import Cold
from torchcoll.questions.startup.cold_charts import cold_charts, start_charts
from torchcoll.questions.startup.show import cold_grids, show_cold
from torchcoll.report.shown import Shown, last_answer

SHOWN = {
    Cold: Shown(
        show_cold,
        charts=lambda cold: [*start_charts(cold), *cold_charts(cold)],
        plotted=True,
        answer=lambda cold: last_answer(cold_grids(cold)),
    )
}
