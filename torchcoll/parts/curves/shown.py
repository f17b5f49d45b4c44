"""How findings on sizes, ranks and algorithms are displayed."""

from torchcoll.parts.curves.algorithms import Algorithms
from torchcoll.parts.curves.algorithms_show import algorithms_grids, show_algorithms
from torchcoll.parts.curves.curves_charts import scaling_charts, transitions_charts
from torchcoll.parts.curves.model_fit import FittedModel
from torchcoll.parts.curves.model_show import show_fits
from torchcoll.parts.curves.scaling import Scaling
from torchcoll.parts.curves.scaling_show import show_scaling
from torchcoll.parts.curves.transitions import Transitions
from torchcoll.parts.curves.transitions_show import show_transitions, transitions_grids
from torchcoll.report.shown import Shown, last_answer

SHOWN = {
    Algorithms: Shown(show_algorithms, answer=lambda result: last_answer(algorithms_grids(result))),
    FittedModel: Shown(show_fits),
    Scaling: Shown(show_scaling, charts=scaling_charts, plotted=True),
    Transitions: Shown(
        show_transitions,
        charts=transitions_charts,
        plotted=True,
        answer=lambda result: last_answer(transitions_grids([result])),
    ),
}
