"""The public names for type checkers, which do not see those that ``__init__.py`` loads lazily."""

from torchcoll.bench.session import run as run
from torchcoll.core.case import Case as Case
from torchcoll.core.errors import TorchcollError as TorchcollError
from torchcoll.core.file import save as save
from torchcoll.core.result import Run as Run
from torchcoll.core.spec import Spec as Spec
from torchcoll.core.traffic import Traffic as Traffic
from torchcoll.parts.curves.algorithms import Algorithms as Algorithms
from torchcoll.parts.curves.algorithms import algorithms as algorithms
from torchcoll.parts.curves.model_fit import FittedModel as FittedModel
from torchcoll.parts.curves.model_fit import fit_model as fit_model
from torchcoll.parts.curves.named_machines import predict as predict
from torchcoll.parts.curves.predictor import Prediction as Prediction
from torchcoll.parts.curves.scaling import Scaling as Scaling
from torchcoll.parts.curves.scaling import scaling as scaling
from torchcoll.parts.curves.transitions import Transitions as Transitions
from torchcoll.parts.curves.transitions import transitions as transitions
from torchcoll.parts.postmortem.show import Postmortem as Postmortem
from torchcoll.parts.postmortem.show import postmortem as postmortem
from torchcoll.parts.training.bucket_trial import try_buckets as try_buckets
from torchcoll.parts.training.capture import capture as capture
from torchcoll.parts.training.config_projection import LayoutComparison as LayoutComparison
from torchcoll.parts.training.planning import compare_plans as compare_plans
from torchcoll.parts.training.planning import plan as plan
from torchcoll.parts.training.projection import Plan as Plan
from torchcoll.parts.training.replay import replay as replay
from torchcoll.parts.training.traffic_comparison_show import TrafficComparison as TrafficComparison
from torchcoll.parts.training.trial import Trial as Trial
from torchcoll.questions.check.judging import Verdict as Verdict
from torchcoll.questions.check.judging import check as check
from torchcoll.questions.comparison.compare import Comparison as Comparison
from torchcoll.questions.comparison.compare import compare as compare
from torchcoll.questions.show.frames import table as table
from torchcoll.questions.show.plot import plot as plot
from torchcoll.questions.show.show import show as show
from torchcoll.questions.startup.cold import Cold as Cold
from torchcoll.questions.startup.cold import cold as cold
from torchcoll.reading.inputs import load as load

__version__: str
__all__: list[str]
