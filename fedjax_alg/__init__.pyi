"""Federated learning algorithms as pure functions over PyTrees, in JAX.

A run:

  import fedjax_alg as fa
  fed = fa.federate("digits", partition="classes", num_clients=60)
  result = fa.run("ga_fsvrg", fed, cohort_size=12, rounds=60, seeds=3)
"""
# Written by docs/make_pages.py from the options and the registry.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import os
from typing import Any, ClassVar, overload

from fedjax_alg import models as models
from fedjax_alg import registry as registry
from fedjax_alg import testing as testing
from fedjax_alg._version import __version__ as __version__
from fedjax_alg.data.arrays import Examples
from fedjax_alg.data.federation import Federations
from fedjax_alg.engine import samplers
from fedjax_alg.registry import Entry
from fedjax_alg.runs import api
from fedjax_alg.runs.api import Callback
from fedjax_alg.hparams import HParams

from fedjax_alg.algorithms.asynchronous import ConstantFactor as ConstantFactor
from fedjax_alg.algorithms.asynchronous import HingeFactor as HingeFactor
from fedjax_alg.algorithms.asynchronous import PolynomialFactor as PolynomialFactor
from fedjax_alg.algorithms.baffle import BaffleAdam as BaffleAdam
from fedjax_alg.algorithms.baffle import OwnDirections as OwnDirections
from fedjax_alg.algorithms.baffle import SharedDirections as SharedDirections
from fedjax_alg.algorithms.cfl import FixedThresholds as FixedThresholds
from fedjax_alg.algorithms.cfl import RelativeThresholds as RelativeThresholds
from fedjax_alg.algorithms.common import CountCut as CountCut
from fedjax_alg.algorithms.common import DistanceCut as DistanceCut
from fedjax_alg.algorithms.common import SilhouetteCut as SilhouetteCut
from fedjax_alg.algorithms.conjugate import ConjugateServer as ConjugateServer
from fedjax_alg.algorithms.conjugate import LineSearchServer as LineSearchServer
from fedjax_alg.algorithms.diversified import AdaptiveServer as AdaptiveServer
from fedjax_alg.algorithms.diversified import GroupsByGradient as GroupsByGradient
from fedjax_alg.algorithms.diversified import GroupsByModel as GroupsByModel
from fedjax_alg.algorithms.diversified import OneModel as OneModel
from fedjax_alg.algorithms.fedavg import ProxUpdate as ProxUpdate
from fedjax_alg.algorithms.fedavg import SGDUpdate as SGDUpdate
from fedjax_alg.algorithms.fedcm import CMUpdate as CMUpdate
from fedjax_alg.algorithms.fedcm import ScaffoldMUpdate as ScaffoldMUpdate
from fedjax_alg.algorithms.feddrift import EagerDrift as EagerDrift
from fedjax_alg.algorithms.feddrift import HierarchicalDrift as HierarchicalDrift
from fedjax_alg.algorithms.feddrift import OracleKinds as OracleKinds
from fedjax_alg.algorithms.feddyn import DynUpdate as DynUpdate
from fedjax_alg.algorithms.fedexp import ExtrapolatedServer as ExtrapolatedServer
from fedjax_alg.algorithms.fedgroup import CosineStart as CosineStart
from fedjax_alg.algorithms.fedgroup import KMeansCenters as KMeansCenters
from fedjax_alg.algorithms.fedgroup import RandomCenters as RandomCenters
from fedjax_alg.algorithms.fedgroup import RandomStart as RandomStart
from fedjax_alg.algorithms.fedmuon import MuonUpdate as MuonUpdate
from fedjax_alg.algorithms.fednova import NovaUpdate as NovaUpdate
from fedjax_alg.algorithms.fedsam import LESAMUpdate as LESAMUpdate
from fedjax_alg.algorithms.fedsam import SAMUpdate as SAMUpdate
from fedjax_alg.algorithms.fesem import InitialModel as InitialModel
from fedjax_alg.algorithms.fesem import RandomCenter as RandomCenter
from fedjax_alg.algorithms.fesem import TrainedModel as TrainedModel
from fedjax_alg.algorithms.fsvrg import SVRGUpdate as SVRGUpdate
from fedjax_alg.algorithms.ifca import IndependentStart as IndependentStart
from fedjax_alg.algorithms.ifca import RejectedStart as RejectedStart
from fedjax_alg.algorithms.ifca import SharedStart as SharedStart
from fedjax_alg.algorithms.ifca import SpreadStart as SpreadStart
from fedjax_alg.algorithms.losac import ClientGradients as ClientGradients
from fedjax_alg.algorithms.losac import GradientTable as GradientTable
from fedjax_alg.algorithms.losac import LosacUpdate as LosacUpdate
from fedjax_alg.algorithms.mime import MimeAdam as MimeAdam
from fedjax_alg.algorithms.mime import MimeLiteUpdate as MimeLiteUpdate
from fedjax_alg.algorithms.mime import MimeMomentum as MimeMomentum
from fedjax_alg.algorithms.mime import MimeSGD as MimeSGD
from fedjax_alg.algorithms.mime import MimeUpdate as MimeUpdate
from fedjax_alg.algorithms.per_fedavg import ExactHessian as ExactHessian
from fedjax_alg.algorithms.per_fedavg import FirstOrder as FirstOrder
from fedjax_alg.algorithms.per_fedavg import HessianFree as HessianFree
from fedjax_alg.algorithms.scaffold import ScaffoldUpdate as ScaffoldUpdate
from fedjax_alg.base import Algorithm as Algorithm
from fedjax_alg.base import ClientData as ClientData
from fedjax_alg.base import Cohort as Cohort
from fedjax_alg.base import FedSpec as FedSpec
from fedjax_alg.base import Model as Model
from fedjax_alg.base import RoundAux as RoundAux
from fedjax_alg.base import RoundCost as RoundCost
from fedjax_alg.base import Shard as Shard
from fedjax_alg.central.steps import AdagradServer as AdagradServer
from fedjax_alg.central.steps import AdamServer as AdamServer
from fedjax_alg.central.steps import AverageServer as AverageServer
from fedjax_alg.central.steps import LookaheadServer as LookaheadServer
from fedjax_alg.central.steps import OptaxServer as OptaxServer
from fedjax_alg.central.steps import SGDServer as SGDServer
from fedjax_alg.central.steps import YogiServer as YogiServer
from fedjax_alg.client.optimizers import Adagrad as Adagrad
from fedjax_alg.client.optimizers import Adam as Adam
from fedjax_alg.client.optimizers import AdamW as AdamW
from fedjax_alg.client.optimizers import ConstantRate as ConstantRate
from fedjax_alg.client.optimizers import CosineDecay as CosineDecay
from fedjax_alg.client.optimizers import ExponentialDecay as ExponentialDecay
from fedjax_alg.client.optimizers import InverseSqrtDecay as InverseSqrtDecay
from fedjax_alg.client.optimizers import Momentum as Momentum
from fedjax_alg.client.optimizers import Nesterov as Nesterov
from fedjax_alg.client.optimizers import Optax as Optax
from fedjax_alg.client.optimizers import RMSProp as RMSProp
from fedjax_alg.client.optimizers import SGD as SGD
from fedjax_alg.client.optimizers import StepDecay as StepDecay
from fedjax_alg.data.arrays import from_arrays as from_arrays
from fedjax_alg.data.boundaries import Circle2 as Circle2
from fedjax_alg.data.boundaries import Sea4 as Sea4
from fedjax_alg.data.boundaries import Sine2 as Sine2
from fedjax_alg.data.client_files import ClientFiles as ClientFiles
from fedjax_alg.data.client_files import open_clients as open_clients
from fedjax_alg.data.client_files import write_clients as write_clients
from fedjax_alg.data.concepts import ConceptFile as ConceptFile
from fedjax_alg.data.concepts import NoConcepts as NoConcepts
from fedjax_alg.data.concepts import RecurringConcepts as RecurringConcepts
from fedjax_alg.data.concepts import StaggeredConcepts as StaggeredConcepts
from fedjax_alg.data.concepts import SwitchedConcepts as SwitchedConcepts
from fedjax_alg.data.concepts import TurnedConcepts as TurnedConcepts
from fedjax_alg.data.errors import DataError as DataError
from fedjax_alg.data.features import Backbone as Backbone
from fedjax_alg.data.features import Contrast as Contrast
from fedjax_alg.data.features import Flattened as Flattened
from fedjax_alg.data.features import Hog as Hog
from fedjax_alg.data.features import Images as Images
from fedjax_alg.data.features import LayerFeatures as LayerFeatures
from fedjax_alg.data.features import OwnFeatures as OwnFeatures
from fedjax_alg.data.features import RawFeatures as RawFeatures
from fedjax_alg.data.features import Standardize as Standardize
from fedjax_alg.data.federation import Federation as Federation
from fedjax_alg.data.femnist import Femnist as Femnist
from fedjax_alg.data.frames import from_dataframe as from_dataframe
from fedjax_alg.data.gathered import from_hf as from_hf
from fedjax_alg.data.gathered import from_torch as from_torch
from fedjax_alg.data.idx import Idx as Idx
from fedjax_alg.data.kind_changes import BoundaryKinds as BoundaryKinds
from fedjax_alg.data.kind_changes import NaturalKinds as NaturalKinds
from fedjax_alg.data.kind_changes import NoisyInputs as NoisyInputs
from fedjax_alg.data.kind_changes import NoisyInputsByDeviation as NoisyInputsByDeviation
from fedjax_alg.data.kind_changes import OwnKinds as OwnKinds
from fedjax_alg.data.kind_changes import PermutedLabels as PermutedLabels
from fedjax_alg.data.kind_changes import RotatedKinds as RotatedKinds
from fedjax_alg.data.kind_changes import SourceKinds as SourceKinds
from fedjax_alg.data.label_skew import Classes as Classes
from fedjax_alg.data.label_skew import Dirichlet as Dirichlet
from fedjax_alg.data.label_skew import Iid as Iid
from fedjax_alg.data.label_skew import Shards as Shards
from fedjax_alg.data.leaf import Leaf as Leaf
from fedjax_alg.data.location import Automatic
from fedjax_alg.data.location import OnDevice as OnDevice
from fedjax_alg.data.location import OnDisk as OnDisk
from fedjax_alg.data.location import OnHost as OnHost
from fedjax_alg.data.npz_source import Npz as Npz
from fedjax_alg.data.own_partition import OwnPartition as OwnPartition
from fedjax_alg.data.partition_file import PartitionFile as PartitionFile
from fedjax_alg.data.published import Natural as Natural
from fedjax_alg.data.published import Powerlaw as Powerlaw
from fedjax_alg.data.scikit_learn import Diabetes as Diabetes
from fedjax_alg.data.scikit_learn import Digits as Digits
from fedjax_alg.data.sent140 import Sent140 as Sent140
from fedjax_alg.data.series import window as window
from fedjax_alg.data.shakespeare import Shakespeare as Shakespeare
from fedjax_alg.data.shift import Increment as Increment
from fedjax_alg.data.shift import NoShift as NoShift
from fedjax_alg.data.shift import SwapAll as SwapAll
from fedjax_alg.data.shift import SwapPart as SwapPart
from fedjax_alg.data.sources import DataSet as DataSet
from fedjax_alg.data.streamed_rows import StreamedRows as StreamedRows
from fedjax_alg.data.synthetic import Synthetic as Synthetic
from fedjax_alg.data.tfds_source import Tfds as Tfds
from fedjax_alg.data.watch import Watch as Watch
from fedjax_alg.engine.clients import AutomaticMap as AutomaticMap
from fedjax_alg.engine.clients import LanesMap as LanesMap
from fedjax_alg.engine.clients import SequentialMap as SequentialMap
from fedjax_alg.engine.clients import VectorizedMap as VectorizedMap
from fedjax_alg.engine.evaluate import at_clients as at_clients
from fedjax_alg.engine.evaluate import confusion as confusion
from fedjax_alg.engine.late import DroppedStragglers as DroppedStragglers
from fedjax_alg.engine.late import KeptStragglers as KeptStragglers
from fedjax_alg.engine.late import NoStragglers as NoStragglers
from fedjax_alg.engine.late import Stragglers as Stragglers
from fedjax_alg.engine.processes import distributed as distributed
from fedjax_alg.engine.sampling import AvailabilityFile as AvailabilityFile
from fedjax_alg.engine.sampling import AvailabilitySampling as AvailabilitySampling
from fedjax_alg.engine.sampling import CyclicSampling as CyclicSampling
from fedjax_alg.engine.sampling import OwnSampling as OwnSampling
from fedjax_alg.engine.sampling import PoissonSampling as PoissonSampling
from fedjax_alg.engine.sampling import SizeSampling as SizeSampling
from fedjax_alg.engine.sampling import UniformSampling as UniformSampling
from fedjax_alg.engine.sharding import start as start
from fedjax_alg.errors import OptionError as OptionError
from fedjax_alg.errors import RunFolderError as RunFolderError
from fedjax_alg.exchange.aggregation import CenteredClipping as CenteredClipping
from fedjax_alg.exchange.aggregation import GeometricMedian as GeometricMedian
from fedjax_alg.exchange.aggregation import Krum as Krum
from fedjax_alg.exchange.aggregation import Median as Median
from fedjax_alg.exchange.aggregation import MultiKrum as MultiKrum
from fedjax_alg.exchange.aggregation import NormBound as NormBound
from fedjax_alg.exchange.aggregation import TrimmedMean as TrimmedMean
from fedjax_alg.exchange.aggregation import WeightedMean as WeightedMean
from fedjax_alg.exchange.attacks import Canary as Canary
from fedjax_alg.exchange.attacks import InnerProduct as InnerProduct
from fedjax_alg.exchange.attacks import LabelFlip as LabelFlip
from fedjax_alg.exchange.attacks import LittleIsEnough as LittleIsEnough
from fedjax_alg.exchange.attacks import ModelReplacement as ModelReplacement
from fedjax_alg.exchange.attacks import NoAttack as NoAttack
from fedjax_alg.exchange.attacks import RandomUpdates as RandomUpdates
from fedjax_alg.exchange.attacks import SignFlip as SignFlip
from fedjax_alg.exchange.compression import PowerSGD as PowerSGD
from fedjax_alg.exchange.compression import QSGD as QSGD
from fedjax_alg.exchange.compression import RandomK as RandomK
from fedjax_alg.exchange.compression import Sign as Sign
from fedjax_alg.exchange.compression import TopK as TopK
from fedjax_alg.exchange.compression import Uncompressed as Uncompressed
from fedjax_alg.exchange.privacy import AdaptiveClipping as AdaptiveClipping
from fedjax_alg.exchange.privacy import CorrelatedNoise as CorrelatedNoise
from fedjax_alg.exchange.privacy import FixedClipping as FixedClipping
from fedjax_alg.exchange.privacy import NoPrivacy as NoPrivacy
from fedjax_alg.exchange.weights import AgnosticWeights as AgnosticWeights
from fedjax_alg.exchange.weights import ExampleWeights as ExampleWeights
from fedjax_alg.exchange.weights import QFFLWeights as QFFLWeights
from fedjax_alg.exchange.weights import UniformWeights as UniformWeights
from fedjax_alg.extras.audit import Audit as Audit
from fedjax_alg.extras.backbones.weights import Weights as Weights
from fedjax_alg.extras.backbones.weights import load_weights as load_weights
from fedjax_alg.extras.gradients.hypergradient import Hypergradient as Hypergradient
from fedjax_alg.extras.gradients.tuning import GradientTuning as GradientTuning
from fedjax_alg.extras.unlearning.contributions import Contributions as Contributions
from fedjax_alg.extras.unlearning.contributions import contributions as contributions
from fedjax_alg.extras.unlearning.revision import add_clients as add
from fedjax_alg.extras.unlearning.revision import forget as forget
from fedjax_alg.least_squares.codes import ClassCode as ClassCode
from fedjax_alg.least_squares.codes import PositionCode as PositionCode
from fedjax_alg.least_squares.codes import RandomFilters as RandomFilters
from fedjax_alg.least_squares.layer_fits import AdaptiveBatch as AdaptiveBatch
from fedjax_alg.least_squares.layer_fits import FixedBatch as FixedBatch
from fedjax_alg.least_squares.private import NoisedMoments as NoisedMoments
from fedjax_alg.models.feature_map import BucketFeatures as BucketFeatures
from fedjax_alg.models.feature_map import FourierFeatures as FourierFeatures
from fedjax_alg.models.feature_map import NoFeatureMap as NoFeatureMap
from fedjax_alg.models.feature_map import ReLUFeatures as ReLUFeatures
from fedjax_alg.models.lora import FFALoRA as FFALoRA
from fedjax_alg.models.lora import FLoRA as FLoRA
from fedjax_alg.models.lora import FedExLoRA as FedExLoRA
from fedjax_alg.models.lora import FedIT as FedIT
from fedjax_alg.models.lora import NoAdapters as NoAdapters
from fedjax_alg.models.models import CNN as CNN
from fedjax_alg.models.models import LSTM as LSTM
from fedjax_alg.models.models import MLP as MLP
from fedjax_alg.models.models import ResNet18 as ResNet18
from fedjax_alg.models.models import Residual as Residual
from fedjax_alg.models.models import Softmax as Softmax
from fedjax_alg.models.models import Stack as Stack
from fedjax_alg.models.models import Transformer as Transformer
from fedjax_alg.models.resolve import OwnModel as OwnModel
from fedjax_alg.models.roles import PersonalAtEvaluation as PersonalAtEvaluation
from fedjax_alg.models.roles import PersonalFirst as PersonalFirst
from fedjax_alg.models.roles import PersonalTogether as PersonalTogether
from fedjax_alg.records.lock import HeldError as HeldError
from fedjax_alg.rounds.layerwise import KMeansClustering as KMeansClustering
from fedjax_alg.rounds.layerwise import NoClustering as NoClustering
from fedjax_alg.runs.advise import Advice as Advice
from fedjax_alg.runs.advise import advise as advise
from fedjax_alg.runs.compare import Comparison as Comparison
from fedjax_alg.runs.compare import compare as compare
from fedjax_alg.runs.dry_run import DryRun as DryRun
from fedjax_alg.runs.methods import MethodConfig as MethodConfig
from fedjax_alg.runs.play import NonFiniteError as NonFiniteError
from fedjax_alg.runs.play import Step as Step
from fedjax_alg.runs.power import sample_size as sample_size
from fedjax_alg.runs.progress import progress_bar as progress_bar
from fedjax_alg.runs.ranks import Ranking as Ranking
from fedjax_alg.runs.ranks import rank as rank
from fedjax_alg.runs.result import RunResult as RunResult
from fedjax_alg.runs.result import load_run as load_run
from fedjax_alg.runs.sinks import STOP as STOP
from fedjax_alg.runs.sweep import Sweep as Sweep
from fedjax_alg.runs.tensorboard import tensorboard as tensorboard
from fedjax_alg.tasks import Task as Task

__all__ = [
  'Adagrad',
  'AdagradServer',
  'Adam',
  'AdamServer',
  'AdamW',
  'AdaptiveBatch',
  'AdaptiveClipping',
  'AdaptiveServer',
  'Advice',
  'AgnosticWeights',
  'Algorithm',
  'Audit',
  'AutomaticMap',
  'AvailabilityFile',
  'AvailabilitySampling',
  'AverageServer',
  'Backbone',
  'BaffleAdam',
  'BoundaryKinds',
  'BucketFeatures',
  'CMUpdate',
  'CNN',
  'Canary',
  'CenteredClipping',
  'Circle2',
  'ClassCode',
  'Classes',
  'ClientData',
  'ClientFiles',
  'ClientGradients',
  'Cohort',
  'Comparison',
  'ConceptFile',
  'ConjugateServer',
  'ConstantFactor',
  'ConstantRate',
  'Contrast',
  'Contributions',
  'CorrelatedNoise',
  'CosineDecay',
  'CosineStart',
  'CountCut',
  'CyclicSampling',
  'DataError',
  'DataSet',
  'Diabetes',
  'Digits',
  'Dirichlet',
  'DistanceCut',
  'DroppedStragglers',
  'DryRun',
  'DynUpdate',
  'EagerDrift',
  'ExactHessian',
  'ExampleWeights',
  'ExponentialDecay',
  'ExtrapolatedServer',
  'FFALoRA',
  'FLoRA',
  'FedExLoRA',
  'FedIT',
  'FedSpec',
  'Federation',
  'Femnist',
  'FirstOrder',
  'FixedBatch',
  'FixedClipping',
  'FixedThresholds',
  'Flattened',
  'FourierFeatures',
  'GeometricMedian',
  'GradientTable',
  'GradientTuning',
  'GroupsByGradient',
  'GroupsByModel',
  'HeldError',
  'HessianFree',
  'HierarchicalDrift',
  'HingeFactor',
  'Hog',
  'Hypergradient',
  'Idx',
  'Iid',
  'Images',
  'Increment',
  'IndependentStart',
  'InitialModel',
  'InnerProduct',
  'InverseSqrtDecay',
  'KMeansCenters',
  'KMeansClustering',
  'KeptStragglers',
  'Krum',
  'LESAMUpdate',
  'LSTM',
  'LabelFlip',
  'LanesMap',
  'LayerFeatures',
  'Leaf',
  'LineSearchServer',
  'LittleIsEnough',
  'LookaheadServer',
  'LosacUpdate',
  'MLP',
  'Median',
  'MethodConfig',
  'MimeAdam',
  'MimeLiteUpdate',
  'MimeMomentum',
  'MimeSGD',
  'MimeUpdate',
  'Model',
  'ModelReplacement',
  'Momentum',
  'MultiKrum',
  'MuonUpdate',
  'Natural',
  'NaturalKinds',
  'Nesterov',
  'NoAdapters',
  'NoAttack',
  'NoClustering',
  'NoConcepts',
  'NoFeatureMap',
  'NoPrivacy',
  'NoShift',
  'NoStragglers',
  'NoisedMoments',
  'NoisyInputs',
  'NoisyInputsByDeviation',
  'NonFiniteError',
  'NormBound',
  'NovaUpdate',
  'Npz',
  'OnDevice',
  'OnDisk',
  'OnHost',
  'OneModel',
  'Optax',
  'OptaxServer',
  'OptionError',
  'OracleKinds',
  'OwnDirections',
  'OwnFeatures',
  'OwnKinds',
  'OwnModel',
  'OwnPartition',
  'OwnSampling',
  'PartitionFile',
  'PermutedLabels',
  'PersonalAtEvaluation',
  'PersonalFirst',
  'PersonalTogether',
  'PoissonSampling',
  'PolynomialFactor',
  'PositionCode',
  'PowerSGD',
  'Powerlaw',
  'ProxUpdate',
  'QFFLWeights',
  'QSGD',
  'RMSProp',
  'RandomCenter',
  'RandomCenters',
  'RandomFilters',
  'RandomK',
  'RandomStart',
  'RandomUpdates',
  'Ranking',
  'RawFeatures',
  'ReLUFeatures',
  'RecurringConcepts',
  'RejectedStart',
  'RelativeThresholds',
  'ResNet18',
  'Residual',
  'RotatedKinds',
  'RoundAux',
  'RoundCost',
  'RunFolderError',
  'RunResult',
  'SAMUpdate',
  'SGD',
  'SGDServer',
  'SGDUpdate',
  'STOP',
  'SVRGUpdate',
  'ScaffoldMUpdate',
  'ScaffoldUpdate',
  'Sea4',
  'Sent140',
  'SequentialMap',
  'Shakespeare',
  'Shard',
  'Shards',
  'SharedDirections',
  'SharedStart',
  'Sign',
  'SignFlip',
  'SilhouetteCut',
  'Sine2',
  'SizeSampling',
  'Softmax',
  'SourceKinds',
  'SpreadStart',
  'Stack',
  'StaggeredConcepts',
  'Standardize',
  'Step',
  'StepDecay',
  'Stragglers',
  'StreamedRows',
  'SwapAll',
  'SwapPart',
  'Sweep',
  'SwitchedConcepts',
  'Synthetic',
  'Task',
  'Tfds',
  'TopK',
  'TrainedModel',
  'Transformer',
  'TrimmedMean',
  'TurnedConcepts',
  'Uncompressed',
  'UniformSampling',
  'UniformWeights',
  'VectorizedMap',
  'WeightedMean',
  'Watch',
  'Weights',
  'YogiServer',
  'add',
  'advise',
  'at_clients',
  'audit',
  'compare',
  'confusion',
  'contributions',
  'distributed',
  'dry_run',
  'federate',
  'forget',
  'from_arrays',
  'from_dataframe',
  'from_hf',
  'from_torch',
  'hypergradient',
  'load_run',
  'load_weights',
  'open_clients',
  'progress_bar',
  'rank',
  'run',
  'run_all',
  'sample_size',
  'start',
  'steps',
  'sweep',
  'tensorboard',
  'tune_by_gradient',
  'window',
  'write_clients',
]

_Dataset = Digits | Diabetes | Watch | Synthetic | Sine2 | Circle2 | Sea4 | Tfds | Femnist | Sent140 | Shakespeare | Idx | Npz | Leaf | ClientFiles | str | None
_Partition = Iid | Classes | Shards | Dirichlet | Powerlaw | Natural | PartitionFile | OwnPartition | str | None
_Kinds = NaturalKinds | RotatedKinds | PermutedLabels | NoisyInputs | NoisyInputsByDeviation | SourceKinds | BoundaryKinds | OwnKinds | str
_Concepts = NoConcepts | SwitchedConcepts | StaggeredConcepts | RecurringConcepts | TurnedConcepts | ConceptFile | str
_Shift = NoShift | SwapAll | SwapPart | Increment | str
_Features = RawFeatures | Flattened | Images | Standardize | Contrast | Hog | Backbone | OwnFeatures | LayerFeatures | str
_DataOn = Automatic | OnDevice | OnHost | OnDisk | str
_Sampling = UniformSampling | SizeSampling | AvailabilitySampling | AvailabilityFile | PoissonSampling | CyclicSampling | OwnSampling | str
_Stragglers = NoStragglers | Stragglers | KeptStragglers | DroppedStragglers | str
_Model = Softmax | MLP | CNN | Stack | Residual | LSTM | ResNet18 | Transformer | OwnModel | str
_Lora = NoAdapters | FedIT | FFALoRA | FedExLoRA | FLoRA | str
_FeatureMap = NoFeatureMap | FourierFeatures | ReLUFeatures | BucketFeatures | str
_Personal = PersonalTogether | PersonalFirst | PersonalAtEvaluation | str
_MapClients = AutomaticMap | SequentialMap | VectorizedMap | LanesMap | str
_ClientWeights = ExampleWeights | UniformWeights | QFFLWeights | AgnosticWeights | str
_ClientOptimizer = SGD | Momentum | Nesterov | Adam | AdamW | RMSProp | Adagrad | Optax | str
_ClientLrSchedule = ConstantRate | CosineDecay | ExponentialDecay | StepDecay | InverseSqrtDecay | str
_Attack = NoAttack | LabelFlip | SignFlip | RandomUpdates | ModelReplacement | LittleIsEnough | InnerProduct | Canary | str
_Aggregator = WeightedMean | Median | TrimmedMean | Krum | MultiKrum | GeometricMedian | CenteredClipping | NormBound | str
_CompressUp = Uncompressed | TopK | RandomK | QSGD | Sign | PowerSGD | str
_Private = NoPrivacy | FixedClipping | AdaptiveClipping | CorrelatedNoise | str
_ClientWeights_ = ExampleWeights | UniformWeights | str
_Base = MimeSGD | MimeMomentum | MimeAdam | str
_Variant = ClientGradients | GradientTable | str
_Hessian = FirstOrder | HessianFree | ExactHessian | str
_Server = AverageServer | SGDServer | AdamServer | YogiServer | AdagradServer | AdaptiveServer | ConjugateServer | LineSearchServer | ExtrapolatedServer | LookaheadServer | OptaxServer | str
_ClientUpdate = SGDUpdate | ProxUpdate | SVRGUpdate | ScaffoldUpdate | MimeUpdate | MimeLiteUpdate | LosacUpdate | NovaUpdate | DynUpdate | CMUpdate | ScaffoldMUpdate | MuonUpdate | SAMUpdate | LESAMUpdate | str
_Centers = KMeansCenters | RandomCenters | str
_ColdStart = CosineStart | RandomStart | str
_GroupInit = SharedStart | IndependentStart | RejectedStart | SpreadStart | str
_GroupInit_ = SharedStart | IndependentStart | str
_FirstGroup = TrainedModel | InitialModel | RandomCenter | str
_Thresholds = FixedThresholds | RelativeThresholds | str
_Cut = CountCut | DistanceCut | SilhouetteCut | str
_Variant_ = HierarchicalDrift | EagerDrift | OracleKinds | str
_Code = PositionCode | ClassCode | RandomFilters | str
_AdaptiveBatch = FixedBatch | AdaptiveBatch | str
_Private_ = NoPrivacy | NoisedMoments | str
_Clustering = NoClustering | KMeansClustering | str
_Protocol = SharedDirections | OwnDirections | str
_Server_ = SGDServer | BaffleAdam | str
_Grouping = OneModel | GroupsByModel | GroupsByGradient | str
_Staleness = ConstantFactor | PolynomialFactor | HingeFactor | str
_ClientUpdate_ = SGDUpdate | ProxUpdate | NovaUpdate | str
_Server__ = AverageServer | SGDServer | AdamServer | YogiServer | AdagradServer | str
_Algorithm = str | MethodConfig | Entry | Algorithm | Callable[..., Algorithm]

@overload
def federate(
  source: str | DataSet | Examples = ...,
  *,
  partitions: int,
  seed: int | None = None,
  task: str | None = None,
  data_dir: str | None = None,
  partition: _Partition = None,
  num_clients: int | None = None,
  train_examples: int | None = None,
  partition_seed: int | None = None,
  validation_clients: int = 0,
  without: object = None,
  newcomers_at: Sequence[tuple[int, int]] | str | None = None,
  kinds: _Kinds = NaturalKinds(shares=''),
  concepts: _Concepts = NoConcepts(),
  shift: _Shift = NoShift(),
  features: _Features = RawFeatures(),
  store: str = 'auto',
  data_on: _DataOn = Automatic(window_mb=128.0),
  vocabulary: int = 10000,
) -> Federations: ...

@overload
def federate(
  source: str | DataSet | Examples = ...,
  *,
  seed: int | None = None,
  task: str | None = None,
  data_dir: str | None = None,
  partition: _Partition = None,
  num_clients: int | None = None,
  train_examples: int | None = None,
  partition_seed: int | None = None,
  validation_clients: int = 0,
  without: object = None,
  newcomers_at: Sequence[tuple[int, int]] | str | None = None,
  kinds: _Kinds = NaturalKinds(shares=''),
  concepts: _Concepts = NoConcepts(),
  shift: _Shift = NoShift(),
  features: _Features = RawFeatures(),
  store: str = 'auto',
  data_on: _DataOn = Automatic(window_mb=128.0),
  vocabulary: int = 10000,
) -> Federation: ...

def run(
  algorithm: _Algorithm,
  federation: Federation | Federations,
  *,
  model: object = 'softmax',
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  evaluate: object = ...,
  eval_every: int = 5,
  callbacks: Callback | Iterable[Callback] = ...,
  hparams: HParams | None = None,
  sampler: samplers.Sampler | None = None,
  init: object = None,
  out_dir: str | os.PathLike | None = None,
  overwrite: bool = False,
  allow_other_devices: bool = False,
  keep_best: object = None,
  sampling: _Sampling = UniformSampling(draw='auto'),
  dropout: float = 0.0,
  stragglers: _Stragglers = NoStragglers(),
  deadline_s: float | None = None,
  lora: _Lora = NoAdapters(),
  feature_map: _FeatureMap = NoFeatureMap(),
  l2: float = 0.0001,
  l2_of: str = 'mean',
  compute_dtype: str = 'float32',
  class_weights: float | Sequence[float] | str | None = None,
  augment: Sequence[str] | str = (),
  init_only: Sequence[str] | str = (),
  roles: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
  personal: _Personal = PersonalTogether(rate=0.0, steps=0),
  model_state: str = 'global',
  device_cores: Sequence[int] | str = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: Sequence[float] | str = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
  clock_seed: int = 0,
  targets: Sequence[float] | str = (0.9, 0.95, 0.98),
  stop_at: str | None = None,
  patience: str | None = None,
  map_clients: _MapClients = AutomaticMap(),
  map_seeds: str = 'auto',
  shard_frozen: bool = False,
  host_devices: int = 0,
  rounding_seed: int = 0,
  client_lr: float = ...,
  server_lr: float = ...,
  client_weights: _ClientWeights | _ClientWeights_ = ...,
  local_steps: int = ...,
  local_epochs: int = ...,
  batch_size: int = ...,
  microbatch_size: int = ...,
  client_optimizer: _ClientOptimizer = ...,
  client_weight_decay: float = ...,
  client_clip: float = ...,
  client_lr_schedule: _ClientLrSchedule = ...,
  attack: _Attack = ...,
  aggregator: _Aggregator = ...,
  compress_up: _CompressUp = ...,
  compress_down: _CompressUp = ...,
  private: _Private | _Private_ = ...,
  mu: float = ...,
  server_momentum: float = ...,
  beta1: float = ...,
  tau: float = ...,
  beta2: float = ...,
  local_scaling: bool = ...,
  aggregate_scaling: str = ...,
  num_models: int = ...,
  threshold: int = ...,
  split: str = ...,
  centre_projection: bool = ...,
  group_count: str = ...,
  anchors: str = ...,
  eps: float = ...,
  central_rule: str = ...,
  accelerate: bool = ...,
  gradient_step: float = ...,
  group_mean: str = ...,
  aggregate_lr: float = ...,
  beta_rule: str = ...,
  gamma: float = ...,
  initial_step: float = ...,
  line_search_test: str = ...,
  max_tries: int = ...,
  option: str = ...,
  epsilon: float = ...,
  average_iterates: bool = ...,
  extrapolation_momentum: float = ...,
  gradient_weight: float = ...,
  gradient_share: float = ...,
  newton_schulz: int = ...,
  rho: float = ...,
  communication: float = ...,
  base: _Base = ...,
  variant: _Variant | _Variant_ = ...,
  client_momentum: float = ...,
  tau_eff: str = ...,
  alpha: float = ...,
  adapt_lr: float = ...,
  hessian: _Hessian = ...,
  server: _Server | _Server_ | _Server__ = ...,
  client_update: _ClientUpdate | _ClientUpdate_ = ...,
  num_groups: int = ...,
  centers: _Centers = ...,
  cold_start: _ColdStart = ...,
  pretrain_steps: int = ...,
  eta_g: float = ...,
  inter_group: str = ...,
  migration: float = ...,
  averaging: str = ...,
  group_init: _GroupInit | _GroupInit_ = ...,
  common_layers: str = ...,
  first_group: _FirstGroup = ...,
  max_groups: int = ...,
  thresholds: _Thresholds = ...,
  gamma_max: float = ...,
  linkage: str = ...,
  split_after: int = ...,
  cluster_after: int = ...,
  metric: str = ...,
  cut: _Cut = ...,
  num_vectors: int = ...,
  subspace: str = ...,
  angle: str = ...,
  step_rounds: int = ...,
  history_steps: int = ...,
  num_components: int = ...,
  lam: float = ...,
  sigma: float = ...,
  estimate_every: int = ...,
  local_start: str = ...,
  ridge: float | Sequence[float] | str = ...,
  ridge_unit: str = ...,
  bias: str = ...,
  code: _Code = ...,
  normalize: bool = ...,
  precision: str = ...,
  adaptive_batch: _AdaptiveBatch = ...,
  outputs: str = ...,
  store_sums: bool = ...,
  clustering: _Clustering = ...,
  personal_ridge: float | Sequence[float] | str = ...,
  client_ridge: float = ...,
  remove_ridge: bool = ...,
  distance: str = ...,
  shrinkage: float = ...,
  refinement_ridge: float | Sequence[float] | str = ...,
  refinement_weight: float = ...,
  refinement_features: int = ...,
  refinement_seed: int = ...,
  block_ridge: float = ...,
  uplink: str = ...,
  directions: int = ...,
  smoothing: float = ...,
  protocol: _Protocol = ...,
  steps_per_round: int = ...,
  scheme: str = ...,
  ema: float = ...,
  inner_steps: int = ...,
  personal_lr: float = ...,
  personal_steps: int = ...,
  personal_start: str = ...,
  personal_weight: float = ...,
  adaptive_weight: bool = ...,
  grouping: _Grouping = ...,
  concurrency: int = ...,
  staleness: _Staleness = ...,
  mixing: float = ...,
  memory_size: int = ...,
  line_search_steps: int = ...,
) -> RunResult: ...

def run_all(
  algorithms: Iterable[str | MethodConfig] | Mapping[str, object],
  federation: Federation | Federations,
  *,
  callbacks: api.Callback | Iterable[api.Callback] = ...,
  out_dir: str | os.PathLike | None = None,
  overwrite: bool = False,
  allow_other_devices: bool = False,
  keep_best: object = None,
  model: Any = 'softmax',
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  evaluate: Any = ...,
  eval_every: int = 5,
  hparams: HParams | None = None,
  sampler: Any = None,
  init: Any = None,
  sampling: _Sampling = UniformSampling(draw='auto'),
  dropout: float = 0.0,
  stragglers: _Stragglers = NoStragglers(),
  deadline_s: float | None = None,
  lora: _Lora = NoAdapters(),
  feature_map: _FeatureMap = NoFeatureMap(),
  l2: float = 0.0001,
  l2_of: str = 'mean',
  compute_dtype: str = 'float32',
  class_weights: float | Sequence[float] | str | None = None,
  augment: Sequence[str] | str = (),
  init_only: Sequence[str] | str = (),
  roles: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
  personal: _Personal = PersonalTogether(rate=0.0, steps=0),
  model_state: str = 'global',
  device_cores: Sequence[int] | str = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: Sequence[float] | str = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
  clock_seed: int = 0,
  targets: Sequence[float] | str = (0.9, 0.95, 0.98),
  stop_at: str | None = None,
  patience: str | None = None,
  map_clients: _MapClients = AutomaticMap(),
  map_seeds: str = 'auto',
  shard_frozen: bool = False,
  host_devices: int = 0,
  rounding_seed: int = 0,
  client_lr: float = ...,
  server_lr: float = ...,
  client_weights: _ClientWeights | _ClientWeights_ = ...,
  local_steps: int = ...,
  local_epochs: int = ...,
  batch_size: int = ...,
  microbatch_size: int = ...,
  client_optimizer: _ClientOptimizer = ...,
  client_weight_decay: float = ...,
  client_clip: float = ...,
  client_lr_schedule: _ClientLrSchedule = ...,
  attack: _Attack = ...,
  aggregator: _Aggregator = ...,
  compress_up: _CompressUp = ...,
  compress_down: _CompressUp = ...,
  private: _Private | _Private_ = ...,
  mu: float = ...,
  server_momentum: float = ...,
  beta1: float = ...,
  tau: float = ...,
  beta2: float = ...,
  local_scaling: bool = ...,
  aggregate_scaling: str = ...,
  num_models: int = ...,
  threshold: int = ...,
  split: str = ...,
  centre_projection: bool = ...,
  group_count: str = ...,
  anchors: str = ...,
  eps: float = ...,
  central_rule: str = ...,
  accelerate: bool = ...,
  gradient_step: float = ...,
  group_mean: str = ...,
  aggregate_lr: float = ...,
  beta_rule: str = ...,
  gamma: float = ...,
  initial_step: float = ...,
  line_search_test: str = ...,
  max_tries: int = ...,
  option: str = ...,
  epsilon: float = ...,
  average_iterates: bool = ...,
  extrapolation_momentum: float = ...,
  gradient_weight: float = ...,
  gradient_share: float = ...,
  newton_schulz: int = ...,
  rho: float = ...,
  communication: float = ...,
  base: _Base = ...,
  variant: _Variant | _Variant_ = ...,
  client_momentum: float = ...,
  tau_eff: str = ...,
  alpha: float = ...,
  adapt_lr: float = ...,
  hessian: _Hessian = ...,
  server: _Server | _Server_ | _Server__ = ...,
  client_update: _ClientUpdate | _ClientUpdate_ = ...,
  num_groups: int = ...,
  centers: _Centers = ...,
  cold_start: _ColdStart = ...,
  pretrain_steps: int = ...,
  eta_g: float = ...,
  inter_group: str = ...,
  migration: float = ...,
  averaging: str = ...,
  group_init: _GroupInit | _GroupInit_ = ...,
  common_layers: str = ...,
  first_group: _FirstGroup = ...,
  max_groups: int = ...,
  thresholds: _Thresholds = ...,
  gamma_max: float = ...,
  linkage: str = ...,
  split_after: int = ...,
  cluster_after: int = ...,
  metric: str = ...,
  cut: _Cut = ...,
  num_vectors: int = ...,
  subspace: str = ...,
  angle: str = ...,
  step_rounds: int = ...,
  history_steps: int = ...,
  num_components: int = ...,
  lam: float = ...,
  sigma: float = ...,
  estimate_every: int = ...,
  local_start: str = ...,
  ridge: float | Sequence[float] | str = ...,
  ridge_unit: str = ...,
  bias: str = ...,
  code: _Code = ...,
  normalize: bool = ...,
  precision: str = ...,
  adaptive_batch: _AdaptiveBatch = ...,
  outputs: str = ...,
  store_sums: bool = ...,
  clustering: _Clustering = ...,
  personal_ridge: float | Sequence[float] | str = ...,
  client_ridge: float = ...,
  remove_ridge: bool = ...,
  distance: str = ...,
  shrinkage: float = ...,
  refinement_ridge: float | Sequence[float] | str = ...,
  refinement_weight: float = ...,
  refinement_features: int = ...,
  refinement_seed: int = ...,
  block_ridge: float = ...,
  uplink: str = ...,
  directions: int = ...,
  smoothing: float = ...,
  protocol: _Protocol = ...,
  steps_per_round: int = ...,
  scheme: str = ...,
  ema: float = ...,
  inner_steps: int = ...,
  personal_lr: float = ...,
  personal_steps: int = ...,
  personal_start: str = ...,
  personal_weight: float = ...,
  adaptive_weight: bool = ...,
  grouping: _Grouping = ...,
  concurrency: int = ...,
  staleness: _Staleness = ...,
  mixing: float = ...,
  memory_size: int = ...,
  line_search_steps: int = ...,
) -> dict[str, RunResult]: ...

def steps(
  algorithm: _Algorithm,
  federation: Federation,
  *,
  model: Any = 'softmax',
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  evaluate: Any = ...,
  eval_every: int = 5,
  hparams: HParams | None = None,
  sampler: Any = None,
  init: Any = None,
  sampling: _Sampling = UniformSampling(draw='auto'),
  dropout: float = 0.0,
  stragglers: _Stragglers = NoStragglers(),
  deadline_s: float | None = None,
  lora: _Lora = NoAdapters(),
  feature_map: _FeatureMap = NoFeatureMap(),
  l2: float = 0.0001,
  l2_of: str = 'mean',
  compute_dtype: str = 'float32',
  class_weights: float | Sequence[float] | str | None = None,
  augment: Sequence[str] | str = (),
  init_only: Sequence[str] | str = (),
  roles: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
  personal: _Personal = PersonalTogether(rate=0.0, steps=0),
  model_state: str = 'global',
  device_cores: Sequence[int] | str = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: Sequence[float] | str = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
  clock_seed: int = 0,
  targets: Sequence[float] | str = (0.9, 0.95, 0.98),
  stop_at: str | None = None,
  patience: str | None = None,
  map_clients: _MapClients = AutomaticMap(),
  map_seeds: str = 'auto',
  shard_frozen: bool = False,
  host_devices: int = 0,
  rounding_seed: int = 0,
  client_lr: float = ...,
  server_lr: float = ...,
  client_weights: _ClientWeights | _ClientWeights_ = ...,
  local_steps: int = ...,
  local_epochs: int = ...,
  batch_size: int = ...,
  microbatch_size: int = ...,
  client_optimizer: _ClientOptimizer = ...,
  client_weight_decay: float = ...,
  client_clip: float = ...,
  client_lr_schedule: _ClientLrSchedule = ...,
  attack: _Attack = ...,
  aggregator: _Aggregator = ...,
  compress_up: _CompressUp = ...,
  compress_down: _CompressUp = ...,
  private: _Private | _Private_ = ...,
  mu: float = ...,
  server_momentum: float = ...,
  beta1: float = ...,
  tau: float = ...,
  beta2: float = ...,
  local_scaling: bool = ...,
  aggregate_scaling: str = ...,
  num_models: int = ...,
  threshold: int = ...,
  split: str = ...,
  centre_projection: bool = ...,
  group_count: str = ...,
  anchors: str = ...,
  eps: float = ...,
  central_rule: str = ...,
  accelerate: bool = ...,
  gradient_step: float = ...,
  group_mean: str = ...,
  aggregate_lr: float = ...,
  beta_rule: str = ...,
  gamma: float = ...,
  initial_step: float = ...,
  line_search_test: str = ...,
  max_tries: int = ...,
  option: str = ...,
  epsilon: float = ...,
  average_iterates: bool = ...,
  extrapolation_momentum: float = ...,
  gradient_weight: float = ...,
  gradient_share: float = ...,
  newton_schulz: int = ...,
  rho: float = ...,
  communication: float = ...,
  base: _Base = ...,
  variant: _Variant | _Variant_ = ...,
  client_momentum: float = ...,
  tau_eff: str = ...,
  alpha: float = ...,
  adapt_lr: float = ...,
  hessian: _Hessian = ...,
  server: _Server | _Server_ | _Server__ = ...,
  client_update: _ClientUpdate | _ClientUpdate_ = ...,
  num_groups: int = ...,
  centers: _Centers = ...,
  cold_start: _ColdStart = ...,
  pretrain_steps: int = ...,
  eta_g: float = ...,
  inter_group: str = ...,
  migration: float = ...,
  averaging: str = ...,
  group_init: _GroupInit | _GroupInit_ = ...,
  common_layers: str = ...,
  first_group: _FirstGroup = ...,
  max_groups: int = ...,
  thresholds: _Thresholds = ...,
  gamma_max: float = ...,
  linkage: str = ...,
  split_after: int = ...,
  cluster_after: int = ...,
  metric: str = ...,
  cut: _Cut = ...,
  num_vectors: int = ...,
  subspace: str = ...,
  angle: str = ...,
  step_rounds: int = ...,
  history_steps: int = ...,
  num_components: int = ...,
  lam: float = ...,
  sigma: float = ...,
  estimate_every: int = ...,
  local_start: str = ...,
  ridge: float | Sequence[float] | str = ...,
  ridge_unit: str = ...,
  bias: str = ...,
  code: _Code = ...,
  normalize: bool = ...,
  precision: str = ...,
  adaptive_batch: _AdaptiveBatch = ...,
  outputs: str = ...,
  store_sums: bool = ...,
  clustering: _Clustering = ...,
  personal_ridge: float | Sequence[float] | str = ...,
  client_ridge: float = ...,
  remove_ridge: bool = ...,
  distance: str = ...,
  shrinkage: float = ...,
  refinement_ridge: float | Sequence[float] | str = ...,
  refinement_weight: float = ...,
  refinement_features: int = ...,
  refinement_seed: int = ...,
  block_ridge: float = ...,
  uplink: str = ...,
  directions: int = ...,
  smoothing: float = ...,
  protocol: _Protocol = ...,
  steps_per_round: int = ...,
  scheme: str = ...,
  ema: float = ...,
  inner_steps: int = ...,
  personal_lr: float = ...,
  personal_steps: int = ...,
  personal_start: str = ...,
  personal_weight: float = ...,
  adaptive_weight: bool = ...,
  grouping: _Grouping = ...,
  concurrency: int = ...,
  staleness: _Staleness = ...,
  mixing: float = ...,
  memory_size: int = ...,
  line_search_steps: int = ...,
) -> Iterator[Step]: ...

def dry_run(
  algorithm: _Algorithm,
  federation: Federation | Federations,
  *,
  callbacks: object = ...,
  out_dir: object = None,
  overwrite: bool = False,
  allow_other_devices: bool = False,
  keep_best: object = None,
  model: Any = 'softmax',
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  evaluate: Any = ...,
  eval_every: int = 5,
  hparams: HParams | None = None,
  sampler: Any = None,
  init: Any = None,
  sampling: _Sampling = UniformSampling(draw='auto'),
  dropout: float = 0.0,
  stragglers: _Stragglers = NoStragglers(),
  deadline_s: float | None = None,
  lora: _Lora = NoAdapters(),
  feature_map: _FeatureMap = NoFeatureMap(),
  l2: float = 0.0001,
  l2_of: str = 'mean',
  compute_dtype: str = 'float32',
  class_weights: float | Sequence[float] | str | None = None,
  augment: Sequence[str] | str = (),
  init_only: Sequence[str] | str = (),
  roles: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
  personal: _Personal = PersonalTogether(rate=0.0, steps=0),
  model_state: str = 'global',
  device_cores: Sequence[int] | str = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: Sequence[float] | str = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
  clock_seed: int = 0,
  targets: Sequence[float] | str = (0.9, 0.95, 0.98),
  stop_at: str | None = None,
  patience: str | None = None,
  map_clients: _MapClients = AutomaticMap(),
  map_seeds: str = 'auto',
  shard_frozen: bool = False,
  host_devices: int = 0,
  rounding_seed: int = 0,
  client_lr: float = ...,
  server_lr: float = ...,
  client_weights: _ClientWeights | _ClientWeights_ = ...,
  local_steps: int = ...,
  local_epochs: int = ...,
  batch_size: int = ...,
  microbatch_size: int = ...,
  client_optimizer: _ClientOptimizer = ...,
  client_weight_decay: float = ...,
  client_clip: float = ...,
  client_lr_schedule: _ClientLrSchedule = ...,
  attack: _Attack = ...,
  aggregator: _Aggregator = ...,
  compress_up: _CompressUp = ...,
  compress_down: _CompressUp = ...,
  private: _Private | _Private_ = ...,
  mu: float = ...,
  server_momentum: float = ...,
  beta1: float = ...,
  tau: float = ...,
  beta2: float = ...,
  local_scaling: bool = ...,
  aggregate_scaling: str = ...,
  num_models: int = ...,
  threshold: int = ...,
  split: str = ...,
  centre_projection: bool = ...,
  group_count: str = ...,
  anchors: str = ...,
  eps: float = ...,
  central_rule: str = ...,
  accelerate: bool = ...,
  gradient_step: float = ...,
  group_mean: str = ...,
  aggregate_lr: float = ...,
  beta_rule: str = ...,
  gamma: float = ...,
  initial_step: float = ...,
  line_search_test: str = ...,
  max_tries: int = ...,
  option: str = ...,
  epsilon: float = ...,
  average_iterates: bool = ...,
  extrapolation_momentum: float = ...,
  gradient_weight: float = ...,
  gradient_share: float = ...,
  newton_schulz: int = ...,
  rho: float = ...,
  communication: float = ...,
  base: _Base = ...,
  variant: _Variant | _Variant_ = ...,
  client_momentum: float = ...,
  tau_eff: str = ...,
  alpha: float = ...,
  adapt_lr: float = ...,
  hessian: _Hessian = ...,
  server: _Server | _Server_ | _Server__ = ...,
  client_update: _ClientUpdate | _ClientUpdate_ = ...,
  num_groups: int = ...,
  centers: _Centers = ...,
  cold_start: _ColdStart = ...,
  pretrain_steps: int = ...,
  eta_g: float = ...,
  inter_group: str = ...,
  migration: float = ...,
  averaging: str = ...,
  group_init: _GroupInit | _GroupInit_ = ...,
  common_layers: str = ...,
  first_group: _FirstGroup = ...,
  max_groups: int = ...,
  thresholds: _Thresholds = ...,
  gamma_max: float = ...,
  linkage: str = ...,
  split_after: int = ...,
  cluster_after: int = ...,
  metric: str = ...,
  cut: _Cut = ...,
  num_vectors: int = ...,
  subspace: str = ...,
  angle: str = ...,
  step_rounds: int = ...,
  history_steps: int = ...,
  num_components: int = ...,
  lam: float = ...,
  sigma: float = ...,
  estimate_every: int = ...,
  local_start: str = ...,
  ridge: float | Sequence[float] | str = ...,
  ridge_unit: str = ...,
  bias: str = ...,
  code: _Code = ...,
  normalize: bool = ...,
  precision: str = ...,
  adaptive_batch: _AdaptiveBatch = ...,
  outputs: str = ...,
  store_sums: bool = ...,
  clustering: _Clustering = ...,
  personal_ridge: float | Sequence[float] | str = ...,
  client_ridge: float = ...,
  remove_ridge: bool = ...,
  distance: str = ...,
  shrinkage: float = ...,
  refinement_ridge: float | Sequence[float] | str = ...,
  refinement_weight: float = ...,
  refinement_features: int = ...,
  refinement_seed: int = ...,
  block_ridge: float = ...,
  uplink: str = ...,
  directions: int = ...,
  smoothing: float = ...,
  protocol: _Protocol = ...,
  steps_per_round: int = ...,
  scheme: str = ...,
  ema: float = ...,
  inner_steps: int = ...,
  personal_lr: float = ...,
  personal_steps: int = ...,
  personal_start: str = ...,
  personal_weight: float = ...,
  adaptive_weight: bool = ...,
  grouping: _Grouping = ...,
  concurrency: int = ...,
  staleness: _Staleness = ...,
  mixing: float = ...,
  memory_size: int = ...,
  line_search_steps: int = ...,
) -> DryRun: ...

def sweep(
  algorithm: _Algorithm,
  federation: Federation | Federations,
  *,
  grid: Mapping[str, Sequence[object]],
  callbacks: Callback | Iterable[Callback] = ...,
  out_dir: str | os.PathLike | None = None,
  overwrite: bool = False,
  allow_other_devices: bool = False,
  model: Any = 'softmax',
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  evaluate: Any = ...,
  eval_every: int = 5,
  hparams: HParams | None = None,
  sampler: Any = None,
  init: Any = None,
  sampling: _Sampling = UniformSampling(draw='auto'),
  dropout: float = 0.0,
  stragglers: _Stragglers = NoStragglers(),
  deadline_s: float | None = None,
  lora: _Lora = NoAdapters(),
  feature_map: _FeatureMap = NoFeatureMap(),
  l2: float = 0.0001,
  l2_of: str = 'mean',
  compute_dtype: str = 'float32',
  class_weights: float | Sequence[float] | str | None = None,
  augment: Sequence[str] | str = (),
  init_only: Sequence[str] | str = (),
  roles: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
  personal: _Personal = PersonalTogether(rate=0.0, steps=0),
  model_state: str = 'global',
  device_cores: Sequence[int] | str = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: Sequence[float] | str = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
  clock_seed: int = 0,
  targets: Sequence[float] | str = (0.9, 0.95, 0.98),
  stop_at: str | None = None,
  patience: str | None = None,
  map_clients: _MapClients = AutomaticMap(),
  map_seeds: str = 'auto',
  shard_frozen: bool = False,
  host_devices: int = 0,
  rounding_seed: int = 0,
  client_lr: float = ...,
  server_lr: float = ...,
  client_weights: _ClientWeights | _ClientWeights_ = ...,
  local_steps: int = ...,
  local_epochs: int = ...,
  batch_size: int = ...,
  microbatch_size: int = ...,
  client_optimizer: _ClientOptimizer = ...,
  client_weight_decay: float = ...,
  client_clip: float = ...,
  client_lr_schedule: _ClientLrSchedule = ...,
  attack: _Attack = ...,
  aggregator: _Aggregator = ...,
  compress_up: _CompressUp = ...,
  compress_down: _CompressUp = ...,
  private: _Private | _Private_ = ...,
  mu: float = ...,
  server_momentum: float = ...,
  beta1: float = ...,
  tau: float = ...,
  beta2: float = ...,
  local_scaling: bool = ...,
  aggregate_scaling: str = ...,
  num_models: int = ...,
  threshold: int = ...,
  split: str = ...,
  centre_projection: bool = ...,
  group_count: str = ...,
  anchors: str = ...,
  eps: float = ...,
  central_rule: str = ...,
  accelerate: bool = ...,
  gradient_step: float = ...,
  group_mean: str = ...,
  aggregate_lr: float = ...,
  beta_rule: str = ...,
  gamma: float = ...,
  initial_step: float = ...,
  line_search_test: str = ...,
  max_tries: int = ...,
  option: str = ...,
  epsilon: float = ...,
  average_iterates: bool = ...,
  extrapolation_momentum: float = ...,
  gradient_weight: float = ...,
  gradient_share: float = ...,
  newton_schulz: int = ...,
  rho: float = ...,
  communication: float = ...,
  base: _Base = ...,
  variant: _Variant | _Variant_ = ...,
  client_momentum: float = ...,
  tau_eff: str = ...,
  alpha: float = ...,
  adapt_lr: float = ...,
  hessian: _Hessian = ...,
  server: _Server | _Server_ | _Server__ = ...,
  client_update: _ClientUpdate | _ClientUpdate_ = ...,
  num_groups: int = ...,
  centers: _Centers = ...,
  cold_start: _ColdStart = ...,
  pretrain_steps: int = ...,
  eta_g: float = ...,
  inter_group: str = ...,
  migration: float = ...,
  averaging: str = ...,
  group_init: _GroupInit | _GroupInit_ = ...,
  common_layers: str = ...,
  first_group: _FirstGroup = ...,
  max_groups: int = ...,
  thresholds: _Thresholds = ...,
  gamma_max: float = ...,
  linkage: str = ...,
  split_after: int = ...,
  cluster_after: int = ...,
  metric: str = ...,
  cut: _Cut = ...,
  num_vectors: int = ...,
  subspace: str = ...,
  angle: str = ...,
  step_rounds: int = ...,
  history_steps: int = ...,
  num_components: int = ...,
  lam: float = ...,
  sigma: float = ...,
  estimate_every: int = ...,
  local_start: str = ...,
  ridge: float | Sequence[float] | str = ...,
  ridge_unit: str = ...,
  bias: str = ...,
  code: _Code = ...,
  normalize: bool = ...,
  precision: str = ...,
  adaptive_batch: _AdaptiveBatch = ...,
  outputs: str = ...,
  store_sums: bool = ...,
  clustering: _Clustering = ...,
  personal_ridge: float | Sequence[float] | str = ...,
  client_ridge: float = ...,
  remove_ridge: bool = ...,
  distance: str = ...,
  shrinkage: float = ...,
  refinement_ridge: float | Sequence[float] | str = ...,
  refinement_weight: float = ...,
  refinement_features: int = ...,
  refinement_seed: int = ...,
  block_ridge: float = ...,
  uplink: str = ...,
  directions: int = ...,
  smoothing: float = ...,
  protocol: _Protocol = ...,
  steps_per_round: int = ...,
  scheme: str = ...,
  ema: float = ...,
  inner_steps: int = ...,
  personal_lr: float = ...,
  personal_steps: int = ...,
  personal_start: str = ...,
  personal_weight: float = ...,
  adaptive_weight: bool = ...,
  grouping: _Grouping = ...,
  concurrency: int = ...,
  staleness: _Staleness = ...,
  mixing: float = ...,
  memory_size: int = ...,
  line_search_steps: int = ...,
) -> Sweep: ...

def hypergradient(
  algorithm: _Algorithm,
  federation: Federation,
  *,
  by: str | Sequence[str],
  last: int | None = 1,
  model: Any = 'softmax',
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  eval_every: int = 5,
  hparams: HParams | None = None,
  sampler: Any = None,
  init: Any = None,
  sampling: _Sampling = UniformSampling(draw='auto'),
  dropout: float = 0.0,
  stragglers: _Stragglers = NoStragglers(),
  deadline_s: float | None = None,
  lora: _Lora = NoAdapters(),
  feature_map: _FeatureMap = NoFeatureMap(),
  l2: float = 0.0001,
  l2_of: str = 'mean',
  compute_dtype: str = 'float32',
  class_weights: float | Sequence[float] | str | None = None,
  augment: Sequence[str] | str = (),
  init_only: Sequence[str] | str = (),
  roles: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
  personal: _Personal = PersonalTogether(rate=0.0, steps=0),
  model_state: str = 'global',
  device_cores: Sequence[int] | str = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: Sequence[float] | str = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
  clock_seed: int = 0,
  targets: Sequence[float] | str = (0.9, 0.95, 0.98),
  map_clients: _MapClients = AutomaticMap(),
  map_seeds: str = 'auto',
  shard_frozen: bool = False,
  host_devices: int = 0,
  rounding_seed: int = 0,
  client_lr: float = ...,
  server_lr: float = ...,
  client_weights: _ClientWeights | _ClientWeights_ = ...,
  local_steps: int = ...,
  local_epochs: int = ...,
  batch_size: int = ...,
  microbatch_size: int = ...,
  client_optimizer: _ClientOptimizer = ...,
  client_weight_decay: float = ...,
  client_clip: float = ...,
  client_lr_schedule: _ClientLrSchedule = ...,
  attack: _Attack = ...,
  aggregator: _Aggregator = ...,
  compress_up: _CompressUp = ...,
  compress_down: _CompressUp = ...,
  private: _Private | _Private_ = ...,
  mu: float = ...,
  server_momentum: float = ...,
  beta1: float = ...,
  tau: float = ...,
  beta2: float = ...,
  local_scaling: bool = ...,
  aggregate_scaling: str = ...,
  num_models: int = ...,
  threshold: int = ...,
  split: str = ...,
  centre_projection: bool = ...,
  group_count: str = ...,
  anchors: str = ...,
  eps: float = ...,
  central_rule: str = ...,
  accelerate: bool = ...,
  gradient_step: float = ...,
  group_mean: str = ...,
  aggregate_lr: float = ...,
  beta_rule: str = ...,
  gamma: float = ...,
  initial_step: float = ...,
  line_search_test: str = ...,
  max_tries: int = ...,
  option: str = ...,
  epsilon: float = ...,
  average_iterates: bool = ...,
  extrapolation_momentum: float = ...,
  gradient_weight: float = ...,
  gradient_share: float = ...,
  newton_schulz: int = ...,
  rho: float = ...,
  communication: float = ...,
  base: _Base = ...,
  variant: _Variant | _Variant_ = ...,
  client_momentum: float = ...,
  tau_eff: str = ...,
  alpha: float = ...,
  adapt_lr: float = ...,
  hessian: _Hessian = ...,
  server: _Server | _Server_ | _Server__ = ...,
  client_update: _ClientUpdate | _ClientUpdate_ = ...,
  num_groups: int = ...,
  centers: _Centers = ...,
  cold_start: _ColdStart = ...,
  pretrain_steps: int = ...,
  eta_g: float = ...,
  inter_group: str = ...,
  migration: float = ...,
  averaging: str = ...,
  group_init: _GroupInit | _GroupInit_ = ...,
  common_layers: str = ...,
  first_group: _FirstGroup = ...,
  max_groups: int = ...,
  thresholds: _Thresholds = ...,
  gamma_max: float = ...,
  linkage: str = ...,
  split_after: int = ...,
  cluster_after: int = ...,
  metric: str = ...,
  cut: _Cut = ...,
  num_vectors: int = ...,
  subspace: str = ...,
  angle: str = ...,
  step_rounds: int = ...,
  history_steps: int = ...,
  num_components: int = ...,
  lam: float = ...,
  sigma: float = ...,
  estimate_every: int = ...,
  local_start: str = ...,
  ridge: float | Sequence[float] | str = ...,
  ridge_unit: str = ...,
  bias: str = ...,
  code: _Code = ...,
  normalize: bool = ...,
  precision: str = ...,
  adaptive_batch: _AdaptiveBatch = ...,
  outputs: str = ...,
  store_sums: bool = ...,
  clustering: _Clustering = ...,
  personal_ridge: float | Sequence[float] | str = ...,
  client_ridge: float = ...,
  remove_ridge: bool = ...,
  distance: str = ...,
  shrinkage: float = ...,
  refinement_ridge: float | Sequence[float] | str = ...,
  refinement_weight: float = ...,
  refinement_features: int = ...,
  refinement_seed: int = ...,
  block_ridge: float = ...,
  uplink: str = ...,
  directions: int = ...,
  smoothing: float = ...,
  protocol: _Protocol = ...,
  steps_per_round: int = ...,
  scheme: str = ...,
  ema: float = ...,
  inner_steps: int = ...,
  personal_lr: float = ...,
  personal_steps: int = ...,
  personal_start: str = ...,
  personal_weight: float = ...,
  adaptive_weight: bool = ...,
  grouping: _Grouping = ...,
  concurrency: int = ...,
  staleness: _Staleness = ...,
  mixing: float = ...,
  memory_size: int = ...,
  line_search_steps: int = ...,
) -> Hypergradient: ...

def tune_by_gradient(
  algorithm: _Algorithm,
  federation: Federation,
  *,
  by: str | Sequence[str],
  outer_steps: int = ...,
  halvings: int = ...,
  last: int | None = 1,
  model: Any = 'softmax',
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  eval_every: int = 5,
  hparams: HParams | None = None,
  sampler: Any = None,
  init: Any = None,
  sampling: _Sampling = UniformSampling(draw='auto'),
  dropout: float = 0.0,
  stragglers: _Stragglers = NoStragglers(),
  deadline_s: float | None = None,
  lora: _Lora = NoAdapters(),
  feature_map: _FeatureMap = NoFeatureMap(),
  l2: float = 0.0001,
  l2_of: str = 'mean',
  compute_dtype: str = 'float32',
  class_weights: float | Sequence[float] | str | None = None,
  augment: Sequence[str] | str = (),
  init_only: Sequence[str] | str = (),
  roles: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
  personal: _Personal = PersonalTogether(rate=0.0, steps=0),
  model_state: str = 'global',
  device_cores: Sequence[int] | str = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: Sequence[float] | str = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
  clock_seed: int = 0,
  targets: Sequence[float] | str = (0.9, 0.95, 0.98),
  map_clients: _MapClients = AutomaticMap(),
  map_seeds: str = 'auto',
  shard_frozen: bool = False,
  host_devices: int = 0,
  rounding_seed: int = 0,
  client_lr: float = ...,
  server_lr: float = ...,
  client_weights: _ClientWeights | _ClientWeights_ = ...,
  local_steps: int = ...,
  local_epochs: int = ...,
  batch_size: int = ...,
  microbatch_size: int = ...,
  client_optimizer: _ClientOptimizer = ...,
  client_weight_decay: float = ...,
  client_clip: float = ...,
  client_lr_schedule: _ClientLrSchedule = ...,
  attack: _Attack = ...,
  aggregator: _Aggregator = ...,
  compress_up: _CompressUp = ...,
  compress_down: _CompressUp = ...,
  private: _Private | _Private_ = ...,
  mu: float = ...,
  server_momentum: float = ...,
  beta1: float = ...,
  tau: float = ...,
  beta2: float = ...,
  local_scaling: bool = ...,
  aggregate_scaling: str = ...,
  num_models: int = ...,
  threshold: int = ...,
  split: str = ...,
  centre_projection: bool = ...,
  group_count: str = ...,
  anchors: str = ...,
  eps: float = ...,
  central_rule: str = ...,
  accelerate: bool = ...,
  gradient_step: float = ...,
  group_mean: str = ...,
  aggregate_lr: float = ...,
  beta_rule: str = ...,
  gamma: float = ...,
  initial_step: float = ...,
  line_search_test: str = ...,
  max_tries: int = ...,
  option: str = ...,
  epsilon: float = ...,
  average_iterates: bool = ...,
  extrapolation_momentum: float = ...,
  gradient_weight: float = ...,
  gradient_share: float = ...,
  newton_schulz: int = ...,
  rho: float = ...,
  communication: float = ...,
  base: _Base = ...,
  variant: _Variant | _Variant_ = ...,
  client_momentum: float = ...,
  tau_eff: str = ...,
  alpha: float = ...,
  adapt_lr: float = ...,
  hessian: _Hessian = ...,
  server: _Server | _Server_ | _Server__ = ...,
  client_update: _ClientUpdate | _ClientUpdate_ = ...,
  num_groups: int = ...,
  centers: _Centers = ...,
  cold_start: _ColdStart = ...,
  pretrain_steps: int = ...,
  eta_g: float = ...,
  inter_group: str = ...,
  migration: float = ...,
  averaging: str = ...,
  group_init: _GroupInit | _GroupInit_ = ...,
  common_layers: str = ...,
  first_group: _FirstGroup = ...,
  max_groups: int = ...,
  thresholds: _Thresholds = ...,
  gamma_max: float = ...,
  linkage: str = ...,
  split_after: int = ...,
  cluster_after: int = ...,
  metric: str = ...,
  cut: _Cut = ...,
  num_vectors: int = ...,
  subspace: str = ...,
  angle: str = ...,
  step_rounds: int = ...,
  history_steps: int = ...,
  num_components: int = ...,
  lam: float = ...,
  sigma: float = ...,
  estimate_every: int = ...,
  local_start: str = ...,
  ridge: float | Sequence[float] | str = ...,
  ridge_unit: str = ...,
  bias: str = ...,
  code: _Code = ...,
  normalize: bool = ...,
  precision: str = ...,
  adaptive_batch: _AdaptiveBatch = ...,
  outputs: str = ...,
  store_sums: bool = ...,
  clustering: _Clustering = ...,
  personal_ridge: float | Sequence[float] | str = ...,
  client_ridge: float = ...,
  remove_ridge: bool = ...,
  distance: str = ...,
  shrinkage: float = ...,
  refinement_ridge: float | Sequence[float] | str = ...,
  refinement_weight: float = ...,
  refinement_features: int = ...,
  refinement_seed: int = ...,
  block_ridge: float = ...,
  uplink: str = ...,
  directions: int = ...,
  smoothing: float = ...,
  protocol: _Protocol = ...,
  steps_per_round: int = ...,
  scheme: str = ...,
  ema: float = ...,
  inner_steps: int = ...,
  personal_lr: float = ...,
  personal_steps: int = ...,
  personal_start: str = ...,
  personal_weight: float = ...,
  adaptive_weight: bool = ...,
  grouping: _Grouping = ...,
  concurrency: int = ...,
  staleness: _Staleness = ...,
  mixing: float = ...,
  memory_size: int = ...,
  line_search_steps: int = ...,
) -> GradientTuning: ...

def audit(
  algorithm: _Algorithm,
  federation: Federation,
  *,
  canaries: int = 200,
  error: float = 0.05,
  model: Any = 'softmax',
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  evaluate: Any = ...,
  eval_every: int = 5,
  hparams: HParams | None = None,
  sampler: Any = None,
  init: Any = None,
  sampling: _Sampling = UniformSampling(draw='auto'),
  dropout: float = 0.0,
  stragglers: _Stragglers = NoStragglers(),
  deadline_s: float | None = None,
  lora: _Lora = NoAdapters(),
  feature_map: _FeatureMap = NoFeatureMap(),
  l2: float = 0.0001,
  l2_of: str = 'mean',
  compute_dtype: str = 'float32',
  class_weights: float | Sequence[float] | str | None = None,
  augment: Sequence[str] | str = (),
  init_only: Sequence[str] | str = (),
  roles: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
  personal: _Personal = PersonalTogether(rate=0.0, steps=0),
  model_state: str = 'global',
  device_cores: Sequence[int] | str = (1, 4),
  core_gflops: float = 10.0,
  bandwidth_gbps: Sequence[float] | str = (100.0, 100.0),
  batch_ms: float = 1.0,
  server_gflops: float = 1000.0,
  clock_seed: int = 0,
  targets: Sequence[float] | str = (0.9, 0.95, 0.98),
  stop_at: str | None = None,
  patience: str | None = None,
  map_clients: _MapClients = AutomaticMap(),
  map_seeds: str = 'auto',
  shard_frozen: bool = False,
  host_devices: int = 0,
  rounding_seed: int = 0,
  client_lr: float = ...,
  server_lr: float = ...,
  client_weights: _ClientWeights | _ClientWeights_ = ...,
  local_steps: int = ...,
  local_epochs: int = ...,
  batch_size: int = ...,
  microbatch_size: int = ...,
  client_optimizer: _ClientOptimizer = ...,
  client_weight_decay: float = ...,
  client_clip: float = ...,
  client_lr_schedule: _ClientLrSchedule = ...,
  attack: _Attack = ...,
  aggregator: _Aggregator = ...,
  compress_up: _CompressUp = ...,
  compress_down: _CompressUp = ...,
  private: _Private | _Private_ = ...,
  mu: float = ...,
  server_momentum: float = ...,
  beta1: float = ...,
  tau: float = ...,
  beta2: float = ...,
  local_scaling: bool = ...,
  aggregate_scaling: str = ...,
  num_models: int = ...,
  threshold: int = ...,
  split: str = ...,
  centre_projection: bool = ...,
  group_count: str = ...,
  anchors: str = ...,
  eps: float = ...,
  central_rule: str = ...,
  accelerate: bool = ...,
  gradient_step: float = ...,
  group_mean: str = ...,
  aggregate_lr: float = ...,
  beta_rule: str = ...,
  gamma: float = ...,
  initial_step: float = ...,
  line_search_test: str = ...,
  max_tries: int = ...,
  option: str = ...,
  epsilon: float = ...,
  average_iterates: bool = ...,
  extrapolation_momentum: float = ...,
  gradient_weight: float = ...,
  gradient_share: float = ...,
  newton_schulz: int = ...,
  rho: float = ...,
  communication: float = ...,
  base: _Base = ...,
  variant: _Variant | _Variant_ = ...,
  client_momentum: float = ...,
  tau_eff: str = ...,
  alpha: float = ...,
  adapt_lr: float = ...,
  hessian: _Hessian = ...,
  server: _Server | _Server_ | _Server__ = ...,
  client_update: _ClientUpdate | _ClientUpdate_ = ...,
  num_groups: int = ...,
  centers: _Centers = ...,
  cold_start: _ColdStart = ...,
  pretrain_steps: int = ...,
  eta_g: float = ...,
  inter_group: str = ...,
  migration: float = ...,
  averaging: str = ...,
  group_init: _GroupInit | _GroupInit_ = ...,
  common_layers: str = ...,
  first_group: _FirstGroup = ...,
  max_groups: int = ...,
  thresholds: _Thresholds = ...,
  gamma_max: float = ...,
  linkage: str = ...,
  split_after: int = ...,
  cluster_after: int = ...,
  metric: str = ...,
  cut: _Cut = ...,
  num_vectors: int = ...,
  subspace: str = ...,
  angle: str = ...,
  step_rounds: int = ...,
  history_steps: int = ...,
  num_components: int = ...,
  lam: float = ...,
  sigma: float = ...,
  estimate_every: int = ...,
  local_start: str = ...,
  ridge: float | Sequence[float] | str = ...,
  ridge_unit: str = ...,
  bias: str = ...,
  code: _Code = ...,
  normalize: bool = ...,
  precision: str = ...,
  adaptive_batch: _AdaptiveBatch = ...,
  outputs: str = ...,
  store_sums: bool = ...,
  clustering: _Clustering = ...,
  personal_ridge: float | Sequence[float] | str = ...,
  client_ridge: float = ...,
  remove_ridge: bool = ...,
  distance: str = ...,
  shrinkage: float = ...,
  refinement_ridge: float | Sequence[float] | str = ...,
  refinement_weight: float = ...,
  refinement_features: int = ...,
  refinement_seed: int = ...,
  block_ridge: float = ...,
  uplink: str = ...,
  directions: int = ...,
  smoothing: float = ...,
  protocol: _Protocol = ...,
  steps_per_round: int = ...,
  scheme: str = ...,
  ema: float = ...,
  inner_steps: int = ...,
  personal_lr: float = ...,
  personal_steps: int = ...,
  personal_start: str = ...,
  personal_weight: float = ...,
  adaptive_weight: bool = ...,
  grouping: _Grouping = ...,
  concurrency: int = ...,
  staleness: _Staleness = ...,
  mixing: float = ...,
  memory_size: int = ...,
  line_search_steps: int = ...,
) -> Audit: ...

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvg(MethodConfig):
  """FedAvg (McMahan et al., AISTATS 2017)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedPer(MethodConfig):
  """FedPer (Arivazhagan et al., arXiv:1912.00818)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class LGFedAvg(MethodConfig):
  """LG-FedAvg (Liang et al., arXiv:2001.01523)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedRep(MethodConfig):
  """FedRep (Collins et al., ICML 2021)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedBABU(MethodConfig):
  """FedBABU (Oh et al., ICLR 2022)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedBN(MethodConfig):
  """FedBN (Li et al., ICLR 2021)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedProx(MethodConfig):
  """FedProx (Li et al., MLSys 2020)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  mu: float = 0.1
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgM(MethodConfig):
  """FedAvgM (Hsu et al., arXiv:1909.06335)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  server_momentum: float = 0.9
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAdagrad(MethodConfig):
  """FedAdagrad (Reddi et al., ICLR 2021)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 0.1
  client_weights: _ClientWeights = ExampleWeights()
  beta1: float = 0.0
  tau: float = 0.001
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedYogi(MethodConfig):
  """FedYogi (Reddi et al., ICLR 2021)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 0.01
  client_weights: _ClientWeights = ExampleWeights()
  beta1: float = 0.9
  beta2: float = 0.99
  tau: float = 0.001
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAdam(MethodConfig):
  """FedAdam (Reddi et al., ICLR 2021)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 0.01
  client_weights: _ClientWeights = ExampleWeights()
  beta1: float = 0.9
  beta2: float = 0.99
  tau: float = 0.001
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FSVRG(MethodConfig):
  """FSVRG (Konecny et al., arXiv:1610.02527)."""

  METHOD: ClassVar[str]
  client_lr: float = 12.0
  local_scaling: bool = True
  aggregate_scaling: str = 'all'
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class MAFSVRG(MethodConfig):
  """MA-FSVRG (Zhao, Cai, Lu, IEEE TNNLS 2024)."""

  METHOD: ClassVar[str]
  client_lr: float = 12.0
  local_scaling: bool = True
  aggregate_scaling: str = 'all'
  num_models: int = 4
  threshold: int = 4
  split: str = 'farthest'
  centre_projection: bool = True
  group_count: str = 'fixed'
  anchors: str = 'all'
  beta1: float = 0.9
  beta2: float = 0.999
  eps: float = 1e-08
  central_rule: str = 'corrected'
  accelerate: bool = True
  server_lr: float = 0.02
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class GAFSVRG(MethodConfig):
  """GA-FSVRG (Zhao, Cai, Lu, IEEE TNNLS 2024)."""

  METHOD: ClassVar[str]
  client_lr: float = 12.0
  local_scaling: bool = True
  aggregate_scaling: str = 'all'
  num_models: int = 4
  threshold: int = 4
  split: str = 'farthest'
  centre_projection: bool = True
  group_count: str = 'fixed'
  anchors: str = 'all'
  beta1: float = 0.9
  beta2: float = 0.999
  eps: float = 1e-08
  central_rule: str = 'corrected'
  accelerate: bool = True
  server_lr: float = 0.02
  gradient_step: float = 1.0
  group_mean: str = 'gradients'
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class CFSVRG(MethodConfig):
  """CFSVRG (Zhao, Cai, Lu: conjugated central acceleration)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.3
  local_scaling: bool = True
  aggregate_scaling: str = 'all'
  aggregate_lr: float = 1.0
  beta_rule: str = 'fr'
  server_lr: float = 0.02
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class CLSFSVRG(MethodConfig):
  """CLSFSVRG (Zhao, Cai, Lu: conjugated central acceleration)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.3
  local_scaling: bool = True
  aggregate_scaling: str = 'all'
  aggregate_lr: float = 1.0
  beta_rule: str = 'fr'
  gamma: float = 0.8
  initial_step: float = 1.0
  line_search_test: str = 'half_gradient'
  max_tries: int = 40
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class SCAFFOLD(MethodConfig):
  """SCAFFOLD (Karimireddy et al., ICML 2020)."""

  METHOD: ClassVar[str]
  option: str = 'II'
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedExP(MethodConfig):
  """FedExP (Jhunjhunwala et al., ICLR 2023)."""

  METHOD: ClassVar[str]
  mu: float = 0.0
  epsilon: float = 0.001
  average_iterates: bool = True
  extrapolation_momentum: float = 0.0
  client_lr: float = 0.1
  client_weights: _ClientWeights = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedACG(MethodConfig):
  """FedACG (Kim et al., CVPR 2024)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights = UniformWeights()
  server_momentum: float = 0.85
  mu: float = 0.001
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedCM(MethodConfig):
  """FedCM (Xu et al., arXiv:2106.10874)."""

  METHOD: ClassVar[str]
  gradient_weight: float = 0.1
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class SCAFFOLDM(MethodConfig):
  """SCAFFOLD-M (Cheng et al., ICLR 2024)."""

  METHOD: ClassVar[str]
  gradient_weight: float = 0.1
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = UniformWeights()
  option: str = 'II'
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedMuon(MethodConfig):
  """FedMuon (Takezawa et al., ICLR 2026)."""

  METHOD: ClassVar[str]
  gradient_share: float = 0.1
  newton_schulz: int = 5
  client_lr: float = 0.01
  server_lr: float = 1.0
  client_weights: _ClientWeights = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedSAM(MethodConfig):
  """FedSAM (Qu et al., ICML 2022)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  rho: float = 0.05
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedLESAM(MethodConfig):
  """FedLESAM (Fan et al., ICML 2024)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights = ExampleWeights()
  rho: float = 0.05
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaffnew(MethodConfig):
  """Scaffnew (Mishchenko et al., ICML 2022)."""

  METHOD: ClassVar[str]
  batch_size: int = 10
  client_lr: float = 0.1
  communication: float = 0.1
  client_weights: _ClientWeights_ = UniformWeights()
  attack: _Attack = NoAttack()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedADMM(MethodConfig):
  """FedADMM (Gong et al., ICDE 2022)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  rho: float = 0.1
  client_weights: _ClientWeights_ = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mime(MethodConfig):
  """Mime (Karimireddy et al., arXiv:2008.03606)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights_ = UniformWeights()
  base: _Base = MimeSGD()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class MimeLite(MethodConfig):
  """MimeLite (Karimireddy et al., arXiv:2008.03606)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights_ = UniformWeights()
  base: _Base = MimeSGD()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class MimeSVRG(MethodConfig):
  """MimeSVRG (Karimireddy et al., arXiv:2008.03606)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights_ = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class LoSAC(MethodConfig):
  """LoSAC (Chen et al., ACM TKDD 2023; reconstructed)."""

  METHOD: ClassVar[str]
  variant: _Variant = ClientGradients(first_gradients='zeros')
  client_lr: float = 0.1
  server_lr: float = 1.0
  client_weights: _ClientWeights_ = UniformWeights()
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedNova(MethodConfig):
  """FedNova (Wang et al., NeurIPS 2020)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  mu: float = 0.0
  client_momentum: float = 0.0
  tau_eff: str = 'normaliser'
  client_weights: _ClientWeights_ = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedDyn(MethodConfig):
  """FedDyn (Acar et al., ICLR 2021)."""

  METHOD: ClassVar[str]
  alpha: float = 0.1
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()

@dataclasses.dataclass(frozen=True, kw_only=True)
class PerFedAvg(MethodConfig):
  """PFedAvg (Fallah et al., NeurIPS 2020)."""

  METHOD: ClassVar[str]
  adapt_lr: float = 0.01
  client_lr: float = 0.1
  server_lr: float = 1.0
  hessian: _Hessian = FirstOrder()
  client_weights: _ClientWeights_ = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedGroup(MethodConfig):
  """FedGroup (Duan et al., FedGroup, 2020)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  num_groups: int = 3
  centers: _Centers = KMeansCenters(pretrain_scale=20, similarity='edc', group_count='fixed')
  cold_start: _ColdStart = CosineStart(direction='initial')
  pretrain_steps: int = 50
  eta_g: float = 0.0
  inter_group: str = 'printed'
  migration: float = 0.2
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedGrouProx(MethodConfig):
  """FedGrouProx (Duan et al., FedGroup, 2020)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  num_groups: int = 3
  centers: _Centers = KMeansCenters(pretrain_scale=20, similarity='edc', group_count='fixed')
  cold_start: _ColdStart = CosineStart(direction='initial')
  pretrain_steps: int = 50
  eta_g: float = 0.0
  inter_group: str = 'printed'
  migration: float = 0.2
  mu: float = 0.1
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class IFCA(MethodConfig):
  """IFCA (Ghosh et al., NeurIPS 2020)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  num_groups: int = 3
  averaging: str = 'model'
  group_init: _GroupInit = IndependentStart()
  common_layers: str = ''
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FeSEM(MethodConfig):
  """FeSEM (Xie et al., arXiv:2005.01026)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  num_groups: int = 3
  group_init: _GroupInit_ = IndependentStart()
  first_group: _FirstGroup = TrainedModel(steps=50)
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class CFL(MethodConfig):
  """CFL (Sattler et al., IEEE TNNLS 2020)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  max_groups: int = 8
  thresholds: _Thresholds = FixedThresholds(eps1=0.4, eps2=1.6)
  gamma_max: float = 0.0
  linkage: str = 'complete'
  split_after: int = 20
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FLHC(MethodConfig):
  """FL+HC (Briggs et al., IJCNN 2020)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  max_groups: int = 5
  cluster_after: int = 10
  metric: str = 'l1'
  linkage: str = 'complete'
  cut: _Cut = CountCut()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class PACFL(MethodConfig):
  """PACFL (Vahidian et al., AAAI 2023)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  max_groups: int = 5
  num_vectors: int = 5
  subspace: str = 'all'
  angle: str = 'smallest'
  linkage: str = 'average'
  cut: _Cut = CountCut()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedDrift(MethodConfig):
  """FedDrift (Jothimurugesan et al., AISTATS 2023)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  max_groups: int = 10
  variant: _Variant_ = HierarchicalDrift(threshold=0.1, measure='error', merge=0.0, isolation=1)
  step_rounds: int = 200
  history_steps: int = 10
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedEM(MethodConfig):
  """FedEM (Marfoq et al., NeurIPS 2021)."""

  METHOD: ClassVar[str]
  num_components: int = 3
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedSoft(MethodConfig):
  """FedSoft (Ruan, Joe-Wong, AAAI 2022)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  client_weights: _ClientWeights_ = ExampleWeights()
  num_groups: int = 3
  lam: float = 0.1
  sigma: float = 0.0001
  estimate_every: int = 1
  local_start: str = 'personal'
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedACnnL(MethodConfig):
  """FedACnnL (Gu et al., arXiv:2502.06915)."""

  METHOD: ClassVar[str]
  ridge: float | Sequence[float] | str = '1'
  ridge_unit: str = 'absolute'
  bias: str = 'ones'
  code: _Code = PositionCode(high_passed=0, centred=False)
  normalize: bool = False
  precision: str = 'float64'
  batch_size: int = 32
  adaptive_batch: _AdaptiveBatch = AdaptiveBatch(most=512)
  outputs: str = 'auto'
  store_sums: bool = False
  private: _Private_ = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class PFedACnnL(MethodConfig):
  """pFedACnnL (Gu et al., arXiv:2502.06915)."""

  METHOD: ClassVar[str]
  ridge: float | Sequence[float] | str = '1'
  ridge_unit: str = 'absolute'
  bias: str = 'ones'
  code: _Code = PositionCode(high_passed=0, centred=False)
  normalize: bool = False
  precision: str = 'float64'
  batch_size: int = 32
  adaptive_batch: _AdaptiveBatch = AdaptiveBatch(most=512)
  store_sums: bool = False
  clustering: _Clustering = KMeansClustering(num_groups=2, norm='l1')
  personal_ridge: float | Sequence[float] | str = '100'

@dataclasses.dataclass(frozen=True, kw_only=True)
class AFL(MethodConfig):
  """AFL (analytic FL, He et al., CVPR 2025; agnostic FL is `client_weights`=agnostic)."""

  METHOD: ClassVar[str]
  outputs: str = 'auto'
  store_sums: bool = False
  client_ridge: float = 1.0
  remove_ridge: bool = True
  bias: str = 'none'
  private: _Private_ = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class Fed3R(MethodConfig):
  """Fed3R (Fani et al., ICML 2024)."""

  METHOD: ClassVar[str]
  outputs: str = 'auto'
  store_sums: bool = False
  ridge: float | Sequence[float] | str = '0.01'
  normalize: bool = True
  bias: str = 'ones'

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedNCM(MethodConfig):
  """FedNCM (Legate et al., NeurIPS 2023)."""

  METHOD: ClassVar[str]
  store_sums: bool = False
  distance: str = 'cosine'

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedCOF(MethodConfig):
  """FedCOF (Goswami et al., NeurIPS 2025)."""

  METHOD: ClassVar[str]
  store_sums: bool = False
  shrinkage: float = 0.1
  normalize: bool = True

@dataclasses.dataclass(frozen=True, kw_only=True)
class AFLDual(MethodConfig):
  """AFL dual (Fan et al., arXiv:2508.10732; APFL of Deng et al. is `algorithm`=apfl)."""

  METHOD: ClassVar[str]
  store_sums: bool = False
  client_ridge: float = 1.0
  remove_ridge: bool = True
  bias: str = 'none'
  refinement_ridge: float | Sequence[float] | str = '10'
  refinement_weight: float = 1.0
  refinement_features: int = 256
  refinement_seed: int = 0
  private: _Private_ = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepAFL(MethodConfig):
  """DeepAFL (Tang et al., ICLR 2026)."""

  METHOD: ClassVar[str]
  outputs: str = 'auto'
  store_sums: bool = False
  ridge: float | Sequence[float] | str = '1'
  block_ridge: float = 0.05

@dataclasses.dataclass(frozen=True, kw_only=True)
class SAFLe(MethodConfig):
  """SAFLe (Bacellar et al., CVPR 2026)."""

  METHOD: ClassVar[str]
  outputs: str = 'auto'
  store_sums: bool = False
  ridge: float | Sequence[float] | str = '1'
  private: _Private_ = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedZO(MethodConfig):
  """FedZO (Fang et al., IEEE TSP 2022)."""

  METHOD: ClassVar[str]
  uplink: str = 'vector'
  directions: int = 20
  smoothing: float = 0.001
  client_lr: float = 0.02
  server_lr: float = 1.0
  client_weights: _ClientWeights_ = UniformWeights()
  local_steps: int = 5
  local_epochs: int = 1
  batch_size: int = 25
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class BAFFLE(MethodConfig):
  """BAFFLE (Feng et al., ECCV 2024)."""

  METHOD: ClassVar[str]
  protocol: _Protocol = SharedDirections()
  steps_per_round: int = 1
  batch_size: int = 32
  directions: int = 100
  smoothing: float = 0.0001
  scheme: str = 'forward'
  server: _Server_ = BaffleAdam(beta1=0.9, beta2=0.99, eps=1e-08)
  server_lr: float = 0.01
  ema: float = 0.995

@dataclasses.dataclass(frozen=True, kw_only=True)
class PFedMe(MethodConfig):
  """pFedMe (Dinh et al., NeurIPS 2020)."""

  METHOD: ClassVar[str]
  inner_steps: int = 5
  lam: float = 15.0
  personal_lr: float = 0.1
  client_lr: float = 0.005
  server_lr: float = 1.0
  client_weights: _ClientWeights_ = UniformWeights()
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 20
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class PFedZO(MethodConfig):
  """pFedZO (Chen et al., ICPP 2024; reconstructed)."""

  METHOD: ClassVar[str]
  inner_steps: int = 5
  lam: float = 15.0
  personal_lr: float = 0.1
  client_lr: float = 0.005
  server_lr: float = 1.0
  client_weights: _ClientWeights_ = UniformWeights()
  directions: int = 20
  smoothing: float = 0.001
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 20
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class Ditto(MethodConfig):
  """Ditto (Li et al., ICML 2021)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  lam: float = 1.0
  personal_lr: float = 0.1
  personal_steps: int = 0
  personal_start: str = 'received'
  client_weights: _ClientWeights_ = ExampleWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class APFL(MethodConfig):
  """APFL (Deng et al., arXiv:2003.13461)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  server_lr: float = 1.0
  personal_weight: float = 0.5
  adaptive_weight: bool = False
  personal_start: str = 'received'
  client_weights: _ClientWeights_ = UniformWeights()
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class Composed(MethodConfig):
  """composed (any `client_update` with any `server`)."""

  METHOD: ClassVar[str]
  server: _Server = AverageServer()
  server_lr: float = 0.0
  client_update: _ClientUpdate = SGDUpdate()
  grouping: _Grouping = OneModel()
  client_weights: _ClientWeights = ExampleWeights()
  client_lr: float = 0.0
  local_steps: int = 20
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAsync(MethodConfig):
  """FedAsync (Xie et al., arXiv:1903.03934)."""

  METHOD: ClassVar[str]
  concurrency: int = 0
  staleness: _Staleness = PolynomialFactor(power=0.5)
  client_lr: float = 0.1
  mixing: float = 0.6
  mu: float = 0.005
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()

@dataclasses.dataclass(frozen=True, kw_only=True)
class FedBuff(MethodConfig):
  """FedBuff (Nguyen et al., AISTATS 2022)."""

  METHOD: ClassVar[str]
  concurrency: int = 0
  staleness: _Staleness = PolynomialFactor(power=0.5)
  client_update: _ClientUpdate_ = SGDUpdate()
  server: _Server__ = AverageServer()
  client_weights: _ClientWeights_ = UniformWeights()
  client_lr: float = 0.1
  server_lr: float = 1.0
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
  attack: _Attack = NoAttack()
  aggregator: _Aggregator = WeightedMean()
  compress_up: _CompressUp = Uncompressed()
  compress_down: _CompressUp = Uncompressed()
  private: _Private = NoPrivacy()

@dataclasses.dataclass(frozen=True, kw_only=True)
class Central(MethodConfig):
  """pooled optimum (reference)."""

  METHOD: ClassVar[str]
  memory_size: int = 10
  line_search_steps: int = 20

@dataclasses.dataclass(frozen=True, kw_only=True)
class Local(MethodConfig):
  """each client alone (reference)."""

  METHOD: ClassVar[str]
  client_lr: float = 0.1
  local_steps: int = 0
  local_epochs: int = 1
  batch_size: int = 10
  microbatch_size: int = 0
  client_optimizer: _ClientOptimizer = SGD()
  client_weight_decay: float = 0.0
  client_clip: float = 0.0
  client_lr_schedule: _ClientLrSchedule = ConstantRate()
