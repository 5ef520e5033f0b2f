"""Every module of the library has tests where one looks for them."""

import pathlib
import re

from tests.each import each

_TESTS = pathlib.Path(__file__).resolve().parent
_LIBRARY = _TESTS.parent / "fedjax_alg"

#: module -> its tests, where they are not in the file of the same name:
#: types, base classes and parts that are tested through what they make up.
ELSEWHERE = {
  "algorithms/common": "contract/test_registry",
  **{
    module: "algorithms/test_acceleration"
    for module in (
      "algorithms/fedacg",
      "algorithms/fedadmm",
      "algorithms/fedcm",
      "algorithms/fedexp",
      "algorithms/fedmuon",
      "algorithms/fedsam",
      "algorithms/scaffnew",
      "client/global_momentum",
      "client/sharpness",
      "named_optimizers",
    )
  },
  **{
    module: "algorithms/test_analytic_family"
    for module in (
      "algorithms/afl_dual",
      "algorithms/deepafl",
      "algorithms/fed3r",
      "algorithms/fedcof",
      "algorithms/fedncm",
      "algorithms/safle",
      "least_squares/class_means",
      "least_squares/heads",
      "models/residual",
    )
  },
  "base": "contract/test_contract",
  "registry": "contract/test_registry",
  "client/sgd": "client/test_local_training",
  "client/svrg": "client/test_local_training",
  "client/update": "rounds/test_two_halves",
  "data/allocate": "data/test_partition",
  "data/errors": "test_errors",
  "data/examples": "data/test_partition",
  "data/label_skew": "data/test_partition",
  "data/leaf": "data/test_sources",
  "data/own_partition": "data/test_partition",
  "data/published": "data/test_partition",
  "data/tfds_source": "data/test_sources",
  "extras/flower/client": "extras/flower/test_server",
  "extras/flower/export": "extras/flower/test_setting",
  "extras/flower/flower": "extras/flower/test_server",
  "extras/flower/remote": "extras/flower/test_server",
  "exchange/links": "rounds/test_two_halves",
  "metrics/groups": "metrics/test_metrics",
  "metrics/names": "metrics/test_metrics",
  "models/lora": "extras/lora/test_adapters",
  "models/adapt": "models/test_resolve",
  "models/flops": "models/test_layers",
  "rounds/closed_form": "least_squares/test_closed_form",
  "rounds/layerwise": "algorithms/test_fedacnnl",
  "rounds/expected": "contract/test_contract",
  "rounds/k_models": "rounds/test_two_halves",
  "rounds/local_training": "rounds/test_two_halves",
  "rounds/loss_weights": "exchange/test_weights",
  "rounds/one_model": "rounds/test_two_halves",
  "engine/availability": "engine/test_sampling",
  "runs/texts": "runs/test_compare",
  "runs/sinks": "runs/test_queue",
  "trackers": "runs/test_trackers",
  "split": "test_trees",
  "tasks/classification": "tasks/test_measures",
  "tasks/counts": "tasks/test_measures",
  "tasks/dense": "tasks/test_measures",
  "tasks/multi_label": "tasks/test_measures",
  "tasks/regression": "tasks/test_measures",
  "tasks/tokens": "tasks/test_measures",
  "testing/bench": "contract/test_contract",
  "testing/roles": "contract/test_parameter_roles",
  "typing": "test_hparams",
}

MODULES = sorted(
  path.relative_to(_LIBRARY).with_suffix("").as_posix()
  for path in _LIBRARY.rglob("*.py")
  if not path.stem.startswith("_")
)


def mirror(module):
  room, _, name = module.rpartition("/")
  return "/".join(filter(None, (room, f"test_{name}")))


@each("module", MODULES)
def test_a_module_has_tests(module):
  tests = _TESTS / f"{ELSEWHERE.get(module, mirror(module))}.py"
  assert tests.is_file(), f"write {tests}, or say in ELSEWHERE where {module} is tested"
  assert re.search(r"^def test_", tests.read_text("utf-8"), re.MULTILINE)


def test_the_exceptions_are_some():
  for module in ELSEWHERE:
    assert module in MODULES, f"{module} is gone: take it out"
    assert not (_TESTS / f"{mirror(module)}.py").exists(), (
      f"{module} has a file of its own now: take it out"
    )
