"""Federated learning algorithms as pure functions over PyTrees, in JAX.

A run:

  import fedjax_alg as fa
  fed = fa.federate("digits", partition="classes", num_clients=60)
  result = fa.run("ga_fsvrg", fed, cohort_size=12, rounds=60, seeds=3)
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedjax_alg import optional
from fedjax_alg._version import __version__ as __version__
from fedjax_alg.algorithms.asynchronous import (
  ConstantFactor,
  HingeFactor,
  PolynomialFactor,
)
from fedjax_alg.algorithms.baffle import BaffleAdam, OwnDirections, SharedDirections
from fedjax_alg.algorithms.cfl import FixedThresholds, RelativeThresholds
from fedjax_alg.algorithms.common import CountCut, DistanceCut, SilhouetteCut
from fedjax_alg.algorithms.conjugate import ConjugateServer, LineSearchServer
from fedjax_alg.algorithms.diversified import (
  AdaptiveServer,
  GroupsByGradient,
  GroupsByModel,
  OneModel,
)
from fedjax_alg.algorithms.fedavg import ProxUpdate, SGDUpdate
from fedjax_alg.algorithms.fedcm import CMUpdate, ScaffoldMUpdate
from fedjax_alg.algorithms.feddrift import EagerDrift, HierarchicalDrift, OracleKinds
from fedjax_alg.algorithms.feddyn import DynUpdate
from fedjax_alg.algorithms.fedexp import ExtrapolatedServer
from fedjax_alg.algorithms.fedgroup import (
  CosineStart,
  KMeansCenters,
  RandomCenters,
  RandomStart,
)
from fedjax_alg.algorithms.fedmuon import MuonUpdate
from fedjax_alg.algorithms.fednova import NovaUpdate
from fedjax_alg.algorithms.fedsam import LESAMUpdate, SAMUpdate
from fedjax_alg.algorithms.fesem import InitialModel, RandomCenter, TrainedModel
from fedjax_alg.algorithms.fsvrg import SVRGUpdate
from fedjax_alg.algorithms.ifca import (
  IndependentStart,
  RejectedStart,
  SharedStart,
  SpreadStart,
)
from fedjax_alg.algorithms.losac import ClientGradients, GradientTable, LosacUpdate
from fedjax_alg.algorithms.mime import (
  MimeAdam,
  MimeLiteUpdate,
  MimeMomentum,
  MimeSGD,
  MimeUpdate,
)
from fedjax_alg.algorithms.per_fedavg import ExactHessian, FirstOrder, HessianFree
from fedjax_alg.algorithms.scaffold import ScaffoldUpdate
from fedjax_alg.base import (
  Algorithm,
  ClientData,
  Cohort,
  FedSpec,
  Model,
  RoundAux,
  RoundCost,
  Shard,
)
from fedjax_alg.central.steps import (
  AdagradServer,
  AdamServer,
  AverageServer,
  LookaheadServer,
  OptaxServer,
  SGDServer,
  YogiServer,
)
from fedjax_alg.client.optimizers import (
  SGD,
  Adagrad,
  Adam,
  AdamW,
  ConstantRate,
  CosineDecay,
  ExponentialDecay,
  InverseSqrtDecay,
  Momentum,
  Nesterov,
  Optax,
  RMSProp,
  StepDecay,
)
from fedjax_alg.data.arrays import from_arrays
from fedjax_alg.data.boundaries import Circle2, Sea4, Sine2
from fedjax_alg.data.client_files import ClientFiles, open_clients, write_clients
from fedjax_alg.data.concepts import (
  ConceptFile,
  NoConcepts,
  RecurringConcepts,
  StaggeredConcepts,
  SwitchedConcepts,
  TurnedConcepts,
)
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.features import (
  Backbone,
  Contrast,
  Flattened,
  Hog,
  Images,
  LayerFeatures,
  OwnFeatures,
  RawFeatures,
  Standardize,
)
from fedjax_alg.data.federation import Federation, federate
from fedjax_alg.data.femnist import Femnist
from fedjax_alg.data.frames import from_dataframe
from fedjax_alg.data.gathered import from_hf, from_torch
from fedjax_alg.data.idx import Idx
from fedjax_alg.data.kind_changes import (
  BoundaryKinds,
  NaturalKinds,
  NoisyInputs,
  NoisyInputsByDeviation,
  OwnKinds,
  PermutedLabels,
  RotatedKinds,
  SourceKinds,
)
from fedjax_alg.data.label_skew import Classes, Dirichlet, Iid, Shards
from fedjax_alg.data.leaf import Leaf
from fedjax_alg.data.location import OnDevice, OnDisk, OnHost
from fedjax_alg.data.npz_source import Npz
from fedjax_alg.data.own_partition import OwnPartition
from fedjax_alg.data.partition_file import PartitionFile
from fedjax_alg.data.published import Natural, Powerlaw
from fedjax_alg.data.scikit_learn import Diabetes, Digits
from fedjax_alg.data.sent140 import Sent140
from fedjax_alg.data.series import window
from fedjax_alg.data.shakespeare import Shakespeare
from fedjax_alg.data.shift import Increment, NoShift, SwapAll, SwapPart
from fedjax_alg.data.sources import DataSet
from fedjax_alg.data.streamed_rows import StreamedRows
from fedjax_alg.data.synthetic import Synthetic
from fedjax_alg.data.tfds_source import Tfds
from fedjax_alg.data.watch import Watch
from fedjax_alg.engine import fingerprint as _fingerprint
from fedjax_alg.engine.clients import (
  AutomaticMap,
  LanesMap,
  SequentialMap,
  VectorizedMap,
)
from fedjax_alg.engine.evaluate import at_clients, confusion
from fedjax_alg.engine.late import (
  DroppedStragglers,
  KeptStragglers,
  NoStragglers,
  Stragglers,
)
from fedjax_alg.engine.processes import distributed
from fedjax_alg.engine.sampling import (
  AvailabilityFile,
  AvailabilitySampling,
  CyclicSampling,
  OwnSampling,
  PoissonSampling,
  SizeSampling,
  UniformSampling,
)
from fedjax_alg.engine.sharding import start
from fedjax_alg.errors import OptionError, RunFolderError
from fedjax_alg.exchange.aggregation import (
  CenteredClipping,
  GeometricMedian,
  Krum,
  Median,
  MultiKrum,
  NormBound,
  TrimmedMean,
  WeightedMean,
)
from fedjax_alg.exchange.attacks import (
  Canary,
  InnerProduct,
  LabelFlip,
  LittleIsEnough,
  ModelReplacement,
  NoAttack,
  RandomUpdates,
  SignFlip,
)
from fedjax_alg.exchange.compression import (
  QSGD,
  PowerSGD,
  RandomK,
  Sign,
  TopK,
  Uncompressed,
)
from fedjax_alg.exchange.privacy import (
  AdaptiveClipping,
  CorrelatedNoise,
  FixedClipping,
  NoPrivacy,
)
from fedjax_alg.exchange.weights import (
  AgnosticWeights,
  ExampleWeights,
  QFFLWeights,
  UniformWeights,
)
from fedjax_alg.least_squares.codes import ClassCode, PositionCode, RandomFilters
from fedjax_alg.least_squares.layer_fits import AdaptiveBatch, FixedBatch
from fedjax_alg.least_squares.private import NoisedMoments
from fedjax_alg.models.feature_map import (
  BucketFeatures,
  FourierFeatures,
  NoFeatureMap,
  ReLUFeatures,
)
from fedjax_alg.models.lora import FedExLoRA, FedIT, FFALoRA, FLoRA, NoAdapters
from fedjax_alg.models.models import (
  CNN,
  LSTM,
  MLP,
  Residual,
  ResNet18,
  Softmax,
  Stack,
  Transformer,
)
from fedjax_alg.models.resolve import OwnModel
from fedjax_alg.models.roles import (
  PersonalAtEvaluation,
  PersonalFirst,
  PersonalTogether,
)
from fedjax_alg.records.lock import HeldError
from fedjax_alg.rounds.layerwise import KMeansClustering, NoClustering
from fedjax_alg.runs import methods as _methods
from fedjax_alg.runs.advise import Advice, advise
from fedjax_alg.runs.api import run, steps
from fedjax_alg.runs.compare import Comparison, compare
from fedjax_alg.runs.dry_run import DryRun, dry_run
from fedjax_alg.runs.methods import MethodConfig
from fedjax_alg.runs.play import NonFiniteError, Step
from fedjax_alg.runs.power import sample_size
from fedjax_alg.runs.progress import progress_bar
from fedjax_alg.runs.ranks import Ranking, rank
from fedjax_alg.runs.result import RunResult, load_run
from fedjax_alg.runs.run_all import run_all
from fedjax_alg.runs.sinks import STOP
from fedjax_alg.runs.sweep import Sweep, sweep
from fedjax_alg.runs.tensorboard import tensorboard
from fedjax_alg.tasks import Task

if TYPE_CHECKING:  # Imported where they are used: extras, and ``testing``.
  from fedjax_alg import testing as testing
  from fedjax_alg.extras.audit import Audit, audit
  from fedjax_alg.extras.backbones.weights import Weights, load_weights
  from fedjax_alg.extras.gradients.hypergradient import Hypergradient, hypergradient
  from fedjax_alg.extras.gradients.tuning import GradientTuning, tune_by_gradient
  from fedjax_alg.extras.unlearning.contributions import Contributions, contributions
  from fedjax_alg.extras.unlearning.revision import add_clients as add
  from fedjax_alg.extras.unlearning.revision import forget

__all__ = [
  "Adagrad",
  "AdagradServer",
  "Adam",
  "AdamServer",
  "AdamW",
  "AdaptiveBatch",
  "AdaptiveClipping",
  "AdaptiveServer",
  "Advice",
  "AgnosticWeights",
  "Algorithm",
  "Audit",
  "AutomaticMap",
  "AvailabilityFile",
  "AvailabilitySampling",
  "AverageServer",
  "Backbone",
  "BaffleAdam",
  "BoundaryKinds",
  "BucketFeatures",
  "CMUpdate",
  "CNN",
  "Canary",
  "CenteredClipping",
  "Circle2",
  "ClassCode",
  "Classes",
  "ClientData",
  "ClientFiles",
  "ClientGradients",
  "Cohort",
  "Comparison",
  "ConceptFile",
  "ConjugateServer",
  "ConstantFactor",
  "ConstantRate",
  "Contrast",
  "Contributions",
  "CorrelatedNoise",
  "CosineDecay",
  "CosineStart",
  "CountCut",
  "CyclicSampling",
  "DataError",
  "DataSet",
  "Diabetes",
  "Digits",
  "Dirichlet",
  "DistanceCut",
  "DroppedStragglers",
  "DryRun",
  "DynUpdate",
  "EagerDrift",
  "ExactHessian",
  "ExampleWeights",
  "ExponentialDecay",
  "ExtrapolatedServer",
  "FFALoRA",
  "FLoRA",
  "FedExLoRA",
  "FedIT",
  "FedSpec",
  "Federation",
  "Femnist",
  "FirstOrder",
  "FixedBatch",
  "FixedClipping",
  "FixedThresholds",
  "Flattened",
  "FourierFeatures",
  "GeometricMedian",
  "GradientTable",
  "GradientTuning",
  "GroupsByGradient",
  "GroupsByModel",
  "HeldError",
  "HessianFree",
  "HierarchicalDrift",
  "HingeFactor",
  "Hog",
  "Hypergradient",
  "Idx",
  "Iid",
  "Images",
  "Increment",
  "IndependentStart",
  "InitialModel",
  "InnerProduct",
  "InverseSqrtDecay",
  "KMeansCenters",
  "KMeansClustering",
  "KeptStragglers",
  "Krum",
  "LESAMUpdate",
  "LSTM",
  "LabelFlip",
  "LanesMap",
  "LayerFeatures",
  "Leaf",
  "LineSearchServer",
  "LittleIsEnough",
  "LookaheadServer",
  "LosacUpdate",
  "MLP",
  "Median",
  "MethodConfig",
  "MimeAdam",
  "MimeLiteUpdate",
  "MimeMomentum",
  "MimeSGD",
  "MimeUpdate",
  "Model",
  "ModelReplacement",
  "Momentum",
  "MultiKrum",
  "MuonUpdate",
  "Natural",
  "NaturalKinds",
  "Nesterov",
  "NoAdapters",
  "NoAttack",
  "NoClustering",
  "NoConcepts",
  "NoFeatureMap",
  "NoPrivacy",
  "NoShift",
  "NoStragglers",
  "NoisedMoments",
  "NoisyInputs",
  "NoisyInputsByDeviation",
  "NonFiniteError",
  "NormBound",
  "NovaUpdate",
  "Npz",
  "OnDevice",
  "OnDisk",
  "OnHost",
  "OneModel",
  "Optax",
  "OptaxServer",
  "OptionError",
  "OracleKinds",
  "OwnDirections",
  "OwnFeatures",
  "OwnKinds",
  "OwnModel",
  "OwnPartition",
  "OwnSampling",
  "PartitionFile",
  "PermutedLabels",
  "PersonalAtEvaluation",
  "PersonalFirst",
  "PersonalTogether",
  "PoissonSampling",
  "PolynomialFactor",
  "PositionCode",
  "PowerSGD",
  "Powerlaw",
  "ProxUpdate",
  "QFFLWeights",
  "QSGD",
  "RMSProp",
  "RandomCenter",
  "RandomCenters",
  "RandomFilters",
  "RandomK",
  "RandomStart",
  "RandomUpdates",
  "Ranking",
  "RawFeatures",
  "ReLUFeatures",
  "RecurringConcepts",
  "RejectedStart",
  "RelativeThresholds",
  "ResNet18",
  "Residual",
  "RotatedKinds",
  "RoundAux",
  "RoundCost",
  "RunFolderError",
  "RunResult",
  "SAMUpdate",
  "SGD",
  "SGDServer",
  "SGDUpdate",
  "STOP",
  "SVRGUpdate",
  "ScaffoldMUpdate",
  "ScaffoldUpdate",
  "Sea4",
  "Sent140",
  "SequentialMap",
  "Shakespeare",
  "Shard",
  "Shards",
  "SharedDirections",
  "SharedStart",
  "Sign",
  "SignFlip",
  "SilhouetteCut",
  "Sine2",
  "SizeSampling",
  "Softmax",
  "SourceKinds",
  "SpreadStart",
  "Stack",
  "StaggeredConcepts",
  "Standardize",
  "Step",
  "StepDecay",
  "Stragglers",
  "StreamedRows",
  "SwapAll",
  "SwapPart",
  "Sweep",
  "SwitchedConcepts",
  "Synthetic",
  "Task",
  "Tfds",
  "TopK",
  "TrainedModel",
  "Transformer",
  "TrimmedMean",
  "TurnedConcepts",
  "Uncompressed",
  "UniformSampling",
  "UniformWeights",
  "VectorizedMap",
  "WeightedMean",
  "Watch",
  "Weights",
  "YogiServer",
  "add",
  "advise",
  "at_clients",
  "audit",
  "compare",
  "confusion",
  "contributions",
  "distributed",
  "dry_run",
  "federate",
  "forget",
  "from_arrays",
  "from_dataframe",
  "from_hf",
  "from_torch",
  "hypergradient",
  "load_run",
  "load_weights",
  "open_clients",
  "progress_bar",
  "rank",
  "run",
  "run_all",
  "sample_size",
  "start",
  "steps",
  "sweep",
  "tensorboard",
  "tune_by_gradient",
  "window",
  "write_clients",
]


def __getattr__(name: str) -> Any:
  """The class of a method, a public name of an extra (``optional``), or ``testing``."""
  if name == "testing":
    return importlib.import_module(f"{__name__}.testing")
  if name in _methods.config_names():
    return _methods.config_class(name)
  if name not in optional.PUBLIC:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  module, attribute = optional.PUBLIC[name]
  value = getattr(optional.load_extra(module, f"fa.{name}"), attribute)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *optional.PUBLIC, *_methods.config_names(), "testing"})


_fingerprint.remember_imports()
