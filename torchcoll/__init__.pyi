from torchcoll.analysis.algorithms import algorithms as algorithms
from torchcoll.analysis.cold import cold as cold
from torchcoll.analysis.compare import compare as compare
from torchcoll.analysis.cost import cost as cost
from torchcoll.analysis.gradients import advise as advise
from torchcoll.analysis.scaling import scaling as scaling
from torchcoll.analysis.table import table as table
from torchcoll.analysis.transitions import transitions as transitions
from torchcoll.bench.replay import replay as replay
from torchcoll.bench.runner import run as run
from torchcoll.core.case import Case as Case
from torchcoll.core.errors import TorchcollError as TorchcollError
from torchcoll.core.records import load as load
from torchcoll.core.records import save as save
from torchcoll.core.result import Run as Run
from torchcoll.core.spec import Spec as Spec
from torchcoll.core.traffic import Traffic as Traffic
from torchcoll.report.plot import plot as plot
from torchcoll.report.text import show as show
from torchcoll.train.buckets import gradient_buckets as gradient_buckets
from torchcoll.train.capture import capture as capture
from torchcoll.train.hook import ddp_hook as ddp_hook
from torchcoll.train.shards import shard_traffic as shard_traffic
from torchcoll.train.try_buckets import try_buckets as try_buckets

__version__: str
__all__: list[str]
