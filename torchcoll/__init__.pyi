"""The public names for type checkers, which do not see those that ``__init__.py`` loads lazily."""

from torchcoll.bench.session import run as run
from torchcoll.comparison.compare import Comparison as Comparison
from torchcoll.comparison.compare import compare as compare
from torchcoll.core.case import Case as Case
from torchcoll.core.errors import TorchcollError as TorchcollError
from torchcoll.core.file import save as save
from torchcoll.core.result import Run as Run
from torchcoll.core.spec import Spec as Spec
from torchcoll.core.traffic import Traffic as Traffic
from torchcoll.curves.model_fit import FittedModel as FittedModel
from torchcoll.curves.model_fit import fit_model as fit_model
from torchcoll.curves.named_machines import predict as predict
from torchcoll.curves.predictor import Prediction as Prediction
from torchcoll.curves.scaling import Scaling as Scaling
from torchcoll.curves.scaling import scaling as scaling
from torchcoll.curves.transitions import Transitions as Transitions
from torchcoll.curves.transitions import transitions as transitions
from torchcoll.forcing.algorithms import Algorithms as Algorithms
from torchcoll.forcing.algorithms import algorithms as algorithms
from torchcoll.inputs import load as load
from torchcoll.overview.frames import table as table
from torchcoll.overview.plot import plot as plot
from torchcoll.overview.show import show as show
from torchcoll.startup.cold import Cold as Cold
from torchcoll.startup.cold import cold as cold
from torchcoll.training.bucket_trial import try_buckets as try_buckets
from torchcoll.training.buckets import gradient_buckets as gradient_buckets
from torchcoll.training.capture import capture as capture
from torchcoll.training.config_projection import LayoutComparison as LayoutComparison
from torchcoll.training.cost import Cost as Cost
from torchcoll.training.cost import cost as cost
from torchcoll.training.planning import plan as plan
from torchcoll.training.plans import BucketPlan as BucketPlan
from torchcoll.training.plans import Trial as Trial
from torchcoll.training.projection import Plan as Plan
from torchcoll.training.replay import replay as replay
from torchcoll.training.sharded import ShardPlan as ShardPlan
from torchcoll.training.shards import shard_traffic as shard_traffic
from torchcoll.training.traffic_comparison import TrafficComparison as TrafficComparison
from torchcoll.verdict.judging import Verdict as Verdict
from torchcoll.verdict.judging import check as check

__version__: str
__all__: list[str]
