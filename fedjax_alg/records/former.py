"""What a run of version 0.3.0 has written of its options, in today's words.

Options of one alternative of a choice became fields of its part (``part``), so their
names are gone. ``errors.did_you_mean`` says where they are now.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from fedjax_alg import own, registry
from fedjax_alg.algorithms.common import DistanceCut
from fedjax_alg.client.optimizers import ClientOptimizer
from fedjax_alg.data.features import Hog
from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine.clients import CLIENT_MAPS
from fedjax_alg.engine.late import DroppedStragglers, KeptStragglers, Stragglers
from fedjax_alg.engine.sampling import SAMPLING
from fedjax_alg.exchange import ExchangeOptions, privacy
from fedjax_alg.exchange.weights import Choice as Weights
from fedjax_alg.least_squares import private
from fedjax_alg.least_squares.layer_fits import AdaptiveBatch
from fedjax_alg.models.feature_map import FEATURE_MAPS
from fedjax_alg.models.lora import LORA_CHOICE
from fedjax_alg.models.models import NAMED_MODELS
from fedjax_alg.models.roles import PERSONAL
from fedjax_alg.part import parts_of, read_part
from fedjax_alg.rounds.layerwise import KMeansClustering

#: Options that choose how messages are compressed.
_COMPRESSORS = ("compress_up", "compress_down")
#: Choices and their options that are fields of its parts -> the names of the fields. A
#: run of 0.3.0 has all of them, or none.
_FIELDS = (
  (
    "base",
    {"base_momentum": "beta", "base_beta2": "beta2", "base_eps": "eps"},
  ),
  (
    "staleness",
    {"staleness_power": "power", "staleness_slope": "slope", "staleness_free": "free"},
  ),
  ("protocol", {"clip": "clip", "uplink": "uplink"}),
  (
    "thresholds",
    {name: name for name in ("eps1", "eps2", "eps1_share", "eps2_share")},
  ),
  (
    "variant",
    {
      "drift_threshold": "threshold",
      "drift_measure": "measure",
      "merge_threshold": "merge",
      "isolation": "isolation",
    },
  ),
  ("first_group", {"pretrain_steps": "steps"}),
  ("group_init", {"reject_share": "share"}),
  ("hessian", {"hf_delta": "delta"}),
  ("cold_start", {"direction": "direction"}),
  (
    "centers",
    {name: name for name in ("pretrain_scale", "similarity", "group_count")},
  ),
  ("variant", {"first_gradients": "first_gradients"}),
  # The grid, and those of its halves that FedBuff and BAFFLE have.
  (
    "client_update",
    {
      name: name
      for name in (
        *("mu", "option", "base", "variant", "alpha", "gradient_weight", "rho"),
        *("gradient_share", "newton_schulz", "local_scaling", "aggregate_scaling"),
      )
    },
  ),
  ("client_update", {"mu": "mu"}),
  (
    "server",
    {
      name: name
      for name in (
        *("beta1", "beta2", "eps", "tau", "central_rule", "aggregate_lr", "beta_rule"),
        *("gamma", "initial_step", "line_search_test", "max_tries", "epsilon"),
        *("average_iterates", "extrapolation_momentum"),
      )
    }
    | {"server_momentum": "momentum"},
  ),
  (
    "server",
    {name: name for name in ("beta1", "beta2", "eps", "tau")}
    | {"server_momentum": "momentum"},
  ),
  (
    "server",
    {name: name for name in ("beta1", "beta2", "eps")}
    | {"server_momentum": "momentum"},
  ),
  (
    "grouping",
    {
      name: name
      for name in (
        *("num_models", "threshold", "split", "centre_projection", "group_count"),
        *("anchors", "gradient_step", "group_mean"),
      )
    },
  ),
  (
    "aggregator",
    {
      "tolerated": "tolerated",
      "aggregator_radius": "radius",
      "aggregator_iterations": "iterations",
    },
  ),
  (
    "attack",
    {"attackers": "share", "attack_scale": "scale", "attack_seed": "seed"},
  ),
  (
    "private",
    {
      "clip_norm": "clip",
      "noise_multiplier": "noise",
      "noise_at": "at",
      "noise_bands": "bands",
      "noise_buffers": "buffers",
      "delta": "delta",
      "clip_quantile": "quantile",
      "clip_lr": "lr",
      "count_noise": "count_noise",
    },
  ),
  (
    "private",
    {
      "moment_norm": "clip",
      "noise_multiplier": "noise",
      "delta": "delta",
      "input_norm": "unit",
    },
  ),
  (
    "client_optimizer",
    {
      "client_momentum": "momentum",
      "client_beta1": "beta1",
      "client_beta2": "beta2",
      "client_eps": "eps",
    },
  ),
  (
    "client_lr_schedule",
    {
      "client_lr_over": "over",
      "client_lr_period": "period",
      "client_lr_decay": "decay",
    },
  ),
  (
    "partition",
    {
      "partition_file": "path",
      "classes_per_client": "per_client",
      "min_classes_per_client": "fewest",
      "random_classes": "random",
      "dirichlet_alpha": "alpha",
      "dirichlet_even": "even",
      "min_client_size": "min_size",
      "size_sigma": "size_sigma",
      "quantity_alpha": "size_alpha",
      "local_test_fraction": "test_share",
      "local_test_stratified": "stratified",
    },
  ),
  (
    "dataset",
    {
      "data_path": "path",
      "synthetic_alpha": "alpha",
      "synthetic_beta": "beta",
      "synthetic_iid": "iid",
      "client_examples": "examples",
      "label_noise": "noise",
      "femnist": "leaky",
      "sequence_length": "length",
      "window_stride": "stride",
    },
  ),
  ("shift", {"shift_every": "every", "shift_share": "share"}),
  ("features", {f"hog_{field.name}": field.name for field in dataclasses.fields(Hog)}),
  (
    "model",
    {
      "hidden": "hidden",
      "layers": "layers",
      "embedding": "embedding",
      "embedding_size": "embedding_size",
      "lstm_widths": "widths",
      "norm": "norm",
      "resnet_width": "width",
      "d_model": "d_model",
      "blocks": "blocks",
      "block_features": "features",
      "heads": "heads",
      "remat": "remat",
    },
  ),
  (
    "feature_map",
    {
      "num_features": "num_features",
      "rbf_gamma": "gamma",
      "bit_thresholds": "thresholds",
      "group_size": "group_size",
      "feature_seed": "seed",
    },
  ),
  ("code", {"code_high_passed": "high_passed", "code_centred": "centred"}),
  ("map_clients", {"client_lanes": "number"}),
  ("lora", {"lora_rank": "rank", "lora_alpha": "alpha"}),
  ("personal", {"personal_rate": "rate", "personal_fit": "steps"}),
  (
    "sampling",
    {
      "availability_least": "least",
      "availability_most": "most",
      "availability_file": "path",
      "availability_seed": "seed",
      "availability_day": "day",
      "draw": "draw",
    },
  ),
)


def _of_methods() -> dict[str, Any]:
  """Option of a method -> its alternatives, those of all methods that have it."""
  choices: dict[str, Any] = {}
  for entry in registry.ALGORITHMS.values():
    for name, field in entry.fields.items():
      if parts_of(field.type):
        choices[name] = choices.get(name, field.type) | field.type
  return choices


#: Option -> its alternatives.
_CHOICES: dict[str, Any] = {
  **_of_methods(),
  **{
    field.name: field.type
    for options in (ExchangeOptions, ClientOptimizer, DataOptions)
    for field in dataclasses.fields(options)
  },
  "private": privacy.Choice | private.Choice,
  "model": NAMED_MODELS,
  "feature_map": FEATURE_MAPS,
  "sampling": SAMPLING,
  "map_clients": CLIENT_MAPS,
  "lora": LORA_CHOICE,
  "personal": PERSONAL,
}


def in_parts(facts: Mapping[str, Any]) -> dict[str, Any]:
  """Rewrites the options in a config.json that are fields of a part today.

  Args:
    facts: the content of config.json, of any version.

  Returns:
    The same with options as ``identity.list_facts`` has them.
  """
  if "hparams" not in facts:
    return dict(facts)
  now = {
    **facts,
    "hparams": _cut(_layer_fits(_weights(_compressors(facts["hparams"])))),
  }
  if isinstance(now.get("data"), Mapping):
    now["data"] = _kinds(_concepts(now["data"]))
  if isinstance(now.get("run"), Mapping):
    now["run"] = _renamed(_availability(now["run"]))
  sources = dict(now.get("sources", {}))
  if "availability_file" in sources:
    sources["sampling"] = sources.pop("availability_file")
    now["sources"] = sources
  entry = registry.ALGORITHMS.get(facts.get("algorithm", ""))
  if entry and now["hparams"].get("double") in ("auto", "float64"):
    # Both were float64, which is the only double precision today.
    now["hparams"].pop("double")
  choices = {name: field.type for name, field in entry.fields.items()} if entry else {}
  for group in ("hparams", "data", "run"):
    for choice, fields in _FIELDS if isinstance(now.get(group), Mapping) else ():
      # Others may have an option of the same name: FedNova a momentum.
      if choice in now[group] and fields.keys() <= now[group].keys():
        kind = choices.get(choice) if group == "hparams" else None
        kind = kind if parts_of(kind) else _CHOICES[choice]
        now[group] = _with_fields(choice, kind, fields, now[group])
  if now.get("model") is not None and isinstance(now.get("run"), Mapping):
    now["model"] = now["run"].get("model", now["model"])  # None: the caller's own
  return now


def _weights(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which weights have one text; 0.3.0 had any number in it."""
  text = str(hparams.get("client_weights", ""))
  if text.startswith(("qffl:", "agnostic")):
    return {
      **hparams,
      "client_weights": str(read_part("client_weights", text, Weights)),
    }
  return dict(hparams)


def _layer_fits(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which groups, batches and pulls are choices with none."""
  now = dict(hparams)
  if "label_norm" in now:
    groups, norm = now.pop("num_groups"), now.pop("label_norm")
    grouped = now["clustering"] and groups > 1
    now["clustering"] = str(KMeansClustering(groups, norm)) if grouped else "none"
    if not now.pop("personalize"):
      now["personal_ridge"] = "none"
  if "max_batch_size" in now:
    most = now.pop("max_batch_size")
    now["adaptive_batch"] = (
      str(AdaptiveBatch(most)) if now["adaptive_batch"] else "none"
    )
  return now


def _concepts(data: Mapping[str, Any]) -> dict[str, Any]:
  """Options of data in which one part says how kinds change."""
  now = dict(data)
  if "concept_rounds" not in now:
    return now
  word, steps = now["concepts"], now.pop("concept_steps")
  fields = [f"rounds={now.pop('concept_rounds')}", f"data={now.pop('concept_data')}"]
  if word is None:
    return now | {"concepts": "none"}
  if word in ("switch", "staggered", "recurring"):
    words = [f"{word}:{steps}"]
  else:
    words = [f"{word},steps={steps}" if word.startswith("turns:") else f"file:{word}"]
  text = ",".join([*words, *fields])
  return now | {"concepts": str(read_part("concepts", text, _CHOICES["concepts"]))}


def _kinds(data: Mapping[str, Any]) -> dict[str, Any]:
  """Options of data in which one part says the kinds of clients."""
  now = dict(data)
  if "kind_shares" not in now:
    return now
  word, shares, of_kind = (
    now.pop(name) for name in ("kinds", "kind_shares", "kind_data")
  )
  if word is None:
    words = ["natural"]
  else:
    place, _, last = word.rpartition(":")
    is_counted = last.isdecimal() and own.is_own(place)
    words = [f"{place},{last}" if is_counted else word]
  if shares is not None:
    words.append("shares=" + ":".join(f"{share:g}" for share in shares))
  if of_kind != "split":
    words.append(f"data={of_kind}")
  text = ",".join(words)
  if word is None:  # the only word without a list of numbers, or a number
    text = text.replace(",", ":", 1)
  return now | {"kinds": text}


def _availability(run: Mapping[str, Any]) -> dict[str, Any]:
  """Options of a run with a choice for files, and a number for each end."""
  if "availability" not in run:
    return dict(run)
  now = {name: value for name, value in run.items() if name != "availability"}
  now["availability_least"], now["availability_most"] = run["availability"]
  if now["sampling"] == "availability" and now.get("availability_file") is not None:
    now["sampling"] = "availability_file"
  return now


def _late(stragglers: str | None, work: str) -> str:
  """The text of stragglers, SHARE or SHARE:MOST before, with what becomes of it."""
  if stragglers is None:
    return "none"
  share, _, most = stragglers.partition(":")
  part = {"auto": Stragglers, "keep": KeptStragglers, "drop": DroppedStragglers}[work]
  numbers = [float(share)]
  if most and part is not DroppedStragglers:
    numbers.append(float(most))
  return str(part(*numbers))


def _renamed(run: Mapping[str, Any]) -> dict[str, Any]:
  """Options of a run with the choices' names; adapters of rank 0 are none."""
  now = dict(run)
  if "lora_aggregation" in now:
    aggregation = now.pop("lora_aggregation")
    now["lora"] = aggregation if now["lora_rank"] else "none"
  if "partial_work" in now:
    now["stragglers"] = _late(now["stragglers"], now.pop("partial_work"))
  if "personal_when" in now:
    now["personal"] = now.pop("personal_when")
  return now


def _cut(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which one choice says where a tree is cut."""
  now = dict(hparams)
  if "distance_threshold" in now and "group_count" in now:
    threshold, word = now.pop("distance_threshold"), now.pop("group_count")
    if word == "fixed":
      word = str(DistanceCut(threshold)) if threshold else "count"
    now["cut"] = word
  return now


def _compressors(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which a compressor says that it has no error feedback."""
  now = {name: value for name, value in hparams.items() if name != "error_feedback"}
  for name in _COMPRESSORS if len(now) < len(hparams) else ():
    text: str = now[name]
    if not hparams["error_feedback"] and not text.startswith(("none", "qsgd")):
      text = f"{text}{',' if ':' in text else ':'}feedback=false"
    now[name] = str(read_part(name, text, _CHOICES[name]))
  return now


def _with_fields(
  choice: str, kinds: object, fields: Mapping[str, str], options: Mapping[str, Any]
) -> dict[str, Any]:
  """Options in which the part of a choice has its numbers.

  Args:
    choice: its name.
    kinds: its alternatives.
    fields: option -> the name of the field.
    options: option -> value.
  """
  now = {name: value for name, value in options.items() if name not in fields}
  if now[choice] in ("fourier", "relu") and options.get("num_features") == 0:
    now[choice] = "none"  # which it stood for
  if choice == "grouping" and options["num_models"] == 1:
    now[choice] = "none"
  word = now[choice]
  if word is None or ":" in word:
    return now
  kind = next((part for part in parts_of(kinds) if part.WORD == word), None)
  if kind is None:  # a name of TFDS
    return now
  known = {field.name for field in dataclasses.fields(kind)}
  values = {
    field: options[name] == "leaky" if name == "femnist" else options[name]
    for name, field in fields.items()
    # None, and no iterations, stood for the default.
    if field in known
    and options[name] is not None
    and (field != "iterations" or options[name])
  }
  # A value could be there without being read.
  if values.get("noise") == 0:
    values = {k: v for k, v in values.items() if k not in privacy.OF_NOISE}
  if values.get("buffers"):
    values.pop("bands", None)
  return now | {choice: str(kind(**values))}
