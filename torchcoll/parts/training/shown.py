"""How what a training sends, plans and costs are displayed."""

from torchcoll.parts.training.config_projection import LayoutComparison
from torchcoll.parts.training.layouts_show import layouts_answer, show_layouts
from torchcoll.parts.training.plan_charts import layouts_charts, plan_charts
from torchcoll.parts.training.plan_show import plan_answer, show_training_plans
from torchcoll.parts.training.projection import Plan
from torchcoll.parts.training.traffic_comparison_show import (
    TrafficComparison,
    show_traffic_comparisons,
)
from torchcoll.parts.training.trial import Trial
from torchcoll.parts.training.trial_show import show_trials
from torchcoll.report.shown import Shown

SHOWN = {
    LayoutComparison: Shown(
        show_layouts, charts=layouts_charts, plotted=True, answer=layouts_answer
    ),
    Plan: Shown(show_training_plans, charts=plan_charts, plotted=True, answer=plan_answer),
    TrafficComparison: Shown(show_traffic_comparisons),
    Trial: Shown(show_trials),
}
