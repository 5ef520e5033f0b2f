"""AFL's accuracy on CIFAR-10, on features of the user's ResNet-18.

He et al. (CVPR 2025): 100 clients by Dirichlet(0.1), ResNet-18 with the weights that
torchvision trained on ImageNet. Settings are those of the public code
(ZHUANGHP/Analytic-federated-learning at 1e7c2d99: run.sh, dataset.py, afl.py): images
are resized to 224 and scaled by a mean and a deviation of 0.5, not by ImageNet's, for
training and testing. Every client has at least ten images, and adds a ridge of 1, which
the server removes.

Weights are not downloaded: ``--weights`` names a file of the user's. Two things
differ. The code rounds resized images to 256 levels, and it deals them by other draws
of the same shares, on which AFL's model does not depend.
"""

import dataclasses
import pathlib

import numpy as np

import fedjax_alg as fa
from fedjax_alg.data import Examples

from ...reports import rule
from .. import answers, figures, pages, report
from . import images, overview

NAME = "afl_cifar10"
#: The flag that names the file of the weights.
WEIGHTS = figures.OwnFile(
  "",
  "file with torchvision's weights of ResNet-18 (IMAGENET1K_V1), which afl_cifar10 "
  "reads; nothing is downloaded",
)


def make_features(weights: str, quick: bool = False) -> fa.Backbone:
  """The features of the authors' code, 512 numbers of an image.

  Args:
    weights: the file of the weights.
    quick: smaller images, and fewer layers.
  """
  features = fa.Backbone("resnet18", weights=weights, size=224, scale="halves")
  return dataclasses.replace(features, size=32, layer="block1") if quick else features


def run_afl(
  examples: Examples, features: fa.Backbone, clients: int = 100
) -> fa.RunResult:
  """Runs AFL on features of images.

  Args:
    examples: images of any size.
    features: those of ``make_features``.
    clients: number of clients.

  Raises:
    OptionError: the weights cannot be read, or are not those of a ResNet-18.
  """
  federation = fa.federate(
    examples, num_clients=clients, partition="dirichlet:0.1", features=features
  )
  return fa.run("afl", federation, client_ridge=1.0, remove_ridge=True)


def accuracy_table(
  request: figures.Request, folder: pathlib.Path
) -> tuple[list[pages.Block], list[answers.PaperAnswer]]:
  """The table and its answer; quick: ten clients with digits, beside no claim."""
  del folder
  weights = request.files.get("weights")
  if not weights:
    return [
      "The table is not run, needs torchvision's ResNet-18 (--weights=FILE, such as "
      "resnet18-f37072fd.pth)."
    ], []
  examples = images.load_images(request, "cifar10")
  if isinstance(examples, str):
    return [examples], []
  features = make_features(weights, request.quick)
  result = run_afl(examples, features, 10 if request.quick else 100)
  accuracy = 100 * np.asarray(result.metrics["global"]["accuracy"])[:, -1]
  (claim,) = report.load_claims("trust", NAME)
  _, table_answers = answers.of_accuracies(
    NAME, None if request.quick else claim, accuracy, 1
  )
  verdict = table_answers[0].words if table_answers else rule.NO_NUMBER
  published = f"{overview.format_published(NAME, claim.printed)} (quoted)"
  return [
    f"Accuracy in percent on all test images, {result.prepared.spec.num_clients} "
    "clients, one round. The model is the same for every partition.",
    pages.PublishedNumbers(
      [
        pages.Table(
          ["method", "published", "ours", "verdict"],
          [["AFL", published, f"{accuracy[0]:.2f}", verdict]],
        )
      ]
    ),
  ], table_answers
