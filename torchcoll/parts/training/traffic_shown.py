"""How traffic is displayed: what a training sent, or would send."""

from torchcoll.core.traffic import Traffic
from torchcoll.parts.training.traffic_charts import traffic_charts
from torchcoll.parts.training.traffic_show import show_traffic
from torchcoll.parts.training.traffic_table import traffic_frame
from torchcoll.report.shown import Shown

TRAFFIC = Shown(show_traffic, options=("columns",), charts=traffic_charts, frame=traffic_frame)
SHOWN = {Traffic: TRAFFIC}
