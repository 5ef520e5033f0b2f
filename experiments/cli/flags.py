"""The flags of a run, in groups; the hyper-parameters' come from the registry.

``define`` fills a FlagValues of its own, so a process can parse many runs and
importing this module leaves the global flags alone.
"""

import dataclasses
from typing import Any

from absl import flags

from fedjax_alg import data, registry
from fedjax_alg.data import features as feature_kinds
from fedjax_alg.engine import clients, evaluate, loop
from fedjax_alg.errors import with_names
from fedjax_alg.hparams import allowed, condition
from fedjax_alg.models import DEFAULT_LAYERS, lstm, MODELS

DATASETS = ("digits", "synthetic", "mnist", "cifar10", "femnist", "sent140",
            "npz", "leaf")

#: name, type, default, help. A default of None means: see the help.
_Rows = tuple[tuple[str, Any, Any, str], ...]

GROUPS: dict[str, _Rows] = {
    "Run": (
        ("algorithm", str, None, "one of " + ", ".join(registry.ALGORITHMS)
         + "; composed where only --client_update or --server is given"),
        ("rounds", int, None, "communication rounds; default 100, of methods "
         "in closed form as many as the model has layers (pfedacnnl: twice "
         "that)"),
        ("participation", float, None,
         "share of the clients in each round, (0, 1]; default 0.1"),
        ("cohort_size", int, None,
         "number of clients in each round, instead of --participation"),
        ("seed", int, 0, "seed of the first run"),
        ("num_seeds", int, 1,
         "independent runs (seed, seed+1, ...) in one program"),
    ),
    "Data": (
        ("dataset", str, "digits", "one of " + ", ".join(DATASETS)),
        ("data_dir", str, None, "folder of the prepared TFDS data sets "
         "(mnist, cifar10, femnist, sent140); default $TFDS_DATA_DIR or "
         "~/tensorflow_datasets"),
        ("data_path", str, None, "your file: .npz with x_train, y_train, "
         "x_test, y_test[, client_train, client_test] (npz), or LEAF/FedProx "
         "json, a file or a folder with train/ and test/ (leaf), or .npz "
         "with x [n, 28, 28] uint8 and y, ten labels, in place of EMNIST "
         "(femnist)"),
        ("synthetic_alpha", float, 1.0,
         "spread of the clients' models (synthetic)"),
        ("synthetic_beta", float, 1.0,
         "spread of the clients' inputs (synthetic)"),
        ("synthetic_iid", bool, False,
         "one model and one input distribution for all clients (synthetic)"),
        ("femnist", str, data.FEMNIST_KINDS[0], "how letters are dealt, one of "
         + ", ".join(data.FEMNIST_KINDS) + ": fixed = each image once, leaky = "
         "as the published generator, which gives nearly all clients the same "
         "images, for training and for testing (femnist)"),
        ("sequence_length", int, 25, "words of a tweet that count (sent140)"),
    ),
    "Partition": (
        ("partition", str, None, "one of " + ", ".join(data.PARTITIONS)
         + "; default natural where the data has clients, else iid"),
        ("num_clients", int, None, "clients C; default 100 (digits, synthetic "
         "30, femnist 200), natural: all"),
        ("classes_per_client", int, 2, "classes a client holds (classes)"),
        ("min_classes_per_client", int, None, "with it, a client holds "
         "min..classes_per_client classes at random (classes)"),
        ("dirichlet_alpha", float, 0.5,
         "concentration of each class over clients (dirichlet)"),
        ("min_client_size", int, None,
         "fewest training examples of a client; default 10, natural 1; "
         "sent140: fewest tweets of a user, default 20"),
        ("size_sigma", float, 0.5,
         "log-normal sigma of the clients' sizes, 0: equal (iid, classes)"),
        ("local_test_fraction", float, 0.1,
         "part of its data a client keeps for testing (natural)"),
        ("partition_seed", int, None,
         "seed of the partition, shared by all --num_seeds; default --seed"),
        ("validation_clients", int, 0, "clients of the partition, chosen at "
         "random by --partition_seed, that never take part: the server holds "
         "their training examples as validation data, their local test "
         "examples are not used; C and --participation are of the others"),
        ("newcomers_at", list, None, "ROUND:COUNT[,ROUND:COUNT...]: COUNT of "
         "the clients, chosen at random by --partition_seed, take part only "
         "after ROUND rounds have been played; adds the protocol newcomers to "
         "--eval_protocols"),
    ),
    "Shift": (
        ("shift", str, "none", "how the clients' data change, one of "
         + ", ".join(data.SHIFTS) + ": swap_all = the members of random pairs "
         "exchange all their data, swap_part = all of one random class each, "
         "increment = clients hold 25, 50, 75, 100 % of their training data "
         "after 0, 1, 2, 3 changes"),
        ("shift_every", int, 50, "rounds between two changes; the round "
         "before one is always evaluated"),
        ("shift_share", float, 0.2, "share of the clients, (0, 1], that are "
         "paired at each change (swap_all, swap_part)"),
    ),
    "Features": (
        ("features", str, "none", "one of " + ", ".join(data.FEATURES)
         + "; hog as in the diversified paper, section V-A, contrast = each "
         "example less its mean, over sqrt(its variance + 0.001)"),
        ("hog_block", int, 7, "pixels of a block's side (hog)"),
        ("hog_stride", int, 3, "pixels between blocks (hog)"),
        ("hog_bins", int, 9, "angle bins over [0, 2 pi) (hog)"),
        ("hog_norm", str, "l2", "norm that divides each block: one of "
         + ", ".join(feature_kinds.HOG_NORMS) + " (hog)"),
        ("hog_scale", float, 1.0, "factor on all features (hog)"),
    ),
    "Model": (
        ("model", str, "softmax", "one of " + ", ".join(MODELS)),
        ("hidden", list, ["128"], "widths of the hidden layers (mlp)"),
        ("layers", list, list(DEFAULT_LAYERS), "hidden layers in order: "
         "convK-C = C channels, K x K pixels, zero padding, avgS or maxS = "
         "S x S pool, denseW = W units, flatten (stack)"),
        ("embedding", str, lstm.EMBEDDINGS[0], "numbers of a word, one of "
         + ", ".join(lstm.EMBEDDINGS) + ": frozen = constant random vectors, "
         "learned = parameters (lstm)"),
        ("vocabulary", int, 10_000, "words known, the most frequent of the "
         "training data (lstm)"),
        ("l2", float, 1e-4,
         "coefficient of (l2/2)||w||^2, bias included, on the mean loss"),
    ),
    "Clock": (
        ("device_cores", list, ["1", "4"], "least and most cores of a client's"
         " simulated machine, a whole number of them drawn for each client; "
         "the clock counts operations and floats, it changes no model"),
        ("core_gflops", float, 10.0,
         "10^9 operations a second of one simulated core"),
        ("bandwidth_gbps", list, ["100", "100"], "least and most 10^9 bits a "
         "second of a client's simulated link to the server (log-uniform)"),
        ("batch_ms", float, 1.0, "simulated milliseconds that a batch takes "
         "on any machine, whatever its size"),
        ("server_gflops", float, 1000.0,
         "10^9 operations a second of the simulated server"),
        ("clock_seed", int, 0, "seed of the simulated machines, the same for "
         "all --num_seeds"),
    ),
    "Evaluation": (
        ("eval_every", int, 5, "rounds between evaluations; the last round "
         "is always evaluated"),
        ("eval_protocols", list, list(evaluate.DEFAULT_PROTOCOLS),
         "of " + ", ".join(evaluate.PROTOCOLS) + ": global = the global "
         "model(s) on the whole test set (K models: the best, and their mean "
         "as global_mean), local = what each client would deploy on its own "
         "test split, preferred = each client's preferred global model on its "
         "own mixture of classes, validation = the global model(s) on the "
         "server's validation data (--validation_clients), train = the global "
         "model(s) on all clients' training data (K models: as global, and "
         "validation_mean, train_mean), newcomers = as local, of the clients "
         "of --newcomers_at, who are not in local, assigned = as local, of "
         "the clients that the algorithm has put into a group, copy = as "
         "local, of the client's own copy of the global model after its local "
         "work (pFedMe's w_k; only where there is one)"),
        ("targets", list, ["0.90", "0.95", "0.98"],
         "accuracies for rounds_to, first protocol"),
    ),
    "Output": (
        ("out_dir", str, None,
         "folder of the results; default out/<algorithm>_<dataset>"),
        ("resume", bool, False, "go on from the last checkpoint in --out_dir"),
        ("overwrite", bool, False, "delete what is in --out_dir"),
        ("dry_run", bool, False, "print the plan, shapes and memory; train "
         "and write nothing"),
        ("progress", bool, True, "show progress"),
    ),
    "Machine": (
        ("map_clients", str, "auto", "how clients are mapped: auto, "
         + ", ".join(clients.MODES) + "; auto: sequential on a CPU, else vmap"),
        ("client_chunk", int, 8, "clients per chunk and device (chunks)"),
        ("map_seeds", str, "auto", "how seeds are mapped: auto, "
         + ", ".join(loop.MAP_SEEDS)
         + "; auto: sequential on a CPU, else vmap (sequential needs less "
         "memory)"),
        ("host_devices", int, 0,
         "CPU cores to train clients on in parallel; 0: all"),
    ),
}

#: flag -> (other flag, its values): read only then.
CONDITIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "data_dir": ("dataset", ("mnist", "cifar10", "femnist", "sent140")),
    "data_path": ("dataset", ("npz", "leaf", "femnist")),
    "synthetic_alpha": ("dataset", ("synthetic",)),
    "synthetic_beta": ("dataset", ("synthetic",)),
    "synthetic_iid": ("dataset", ("synthetic",)),
    "femnist": ("dataset", ("femnist",)),
    "sequence_length": ("dataset", ("sent140",)),
    "classes_per_client": ("partition", ("classes",)),
    "min_classes_per_client": ("partition", ("classes",)),
    "dirichlet_alpha": ("partition", ("dirichlet",)),
    "size_sigma": ("partition", ("iid", "classes")),
    "shift_every": ("shift", data.SHIFTS[1:]),
    "shift_share": ("shift", data.SWAPS),
    "min_client_size": (
        "partition", ("iid", "classes", "dirichlet", "natural")),
    "local_test_fraction": ("partition", ("natural",)),
    "hog_block": ("features", ("hog",)),
    "hog_stride": ("features", ("hog",)),
    "hog_bins": ("features", ("hog",)),
    "hog_norm": ("features", ("hog",)),
    "hog_scale": ("features", ("hog",)),
    "hidden": ("model", ("mlp",)),
    "layers": ("model", ("stack",)),
    "embedding": ("model", ("lstm",)),
    "vocabulary": ("model", ("lstm",)),
    "client_chunk": ("map_clients", ("chunks",)),
}

#: Flags that say where and how, not what: a resumed run may change them.
NEUTRAL = ("out_dir", "resume", "overwrite", "dry_run", "progress", "data_dir",
           "rounds", "targets")

_DEFINERS: dict[type, Any] = {
    int: flags.DEFINE_integer, float: flags.DEFINE_float,
    bool: flags.DEFINE_bool, str: flags.DEFINE_string,
    list: flags.DEFINE_list}


def run_flags() -> dict[str, Any]:
  """name -> default of every flag that is no hyper-parameter."""
  return {name: default for rows in GROUPS.values()
          for name, _, default, _ in rows}


def hyper_fields() -> dict[str, dataclasses.Field]:
  """name -> field of every algorithm's hyper-parameters (first that has it).

  Raises:
    TypeError: two algorithms use one name with two types.
  """
  fields: dict[str, dataclasses.Field] = {}
  for entry in registry.ALGORITHMS.values():
    for field in dataclasses.fields(entry.hparams):
      known = fields.setdefault(field.name, field)
      if type(known.default) is not type(field.default):
        raise TypeError(f"hyper-parameter {field.name} has two types")
  return fields


def readers(name: str) -> list[str]:
  """The algorithms that read a hyper-parameter."""
  return [algorithm for algorithm, entry in registry.ALGORITHMS.items()
          if name in (f.name for f in dataclasses.fields(entry.hparams))]


def _as_flags(text: str) -> str:
  return with_names(text, "--")


def define(values: flags.FlagValues) -> None:
  """Defines all flags of a run in ``values``."""
  for rows in GROUPS.values():
    for name, kind, default, text in rows:
      _DEFINERS[kind](name, default, text, flag_values=values)
  for name, field in hyper_fields().items():
    # None: not given, so the chosen algorithm's own default holds.
    _DEFINERS[type(field.default)](
        name, None, _as_flags(field.metadata["help"]), flag_values=values)


def help_text(program: str, algorithm: str | None) -> str:
  """``--help``: the groups, or one algorithm's hyper-parameters."""
  lines = [f"usage: python -m {program} --algorithm=NAME [flags]", ""]
  if algorithm is not None:
    entry = registry.get(algorithm)
    lines = [f"{algorithm}: {entry.label} ({_as_flags(entry.paper)})", "",
             "Hyper-parameters:"]
    fields = dataclasses.fields(entry.hparams)
    names = {field.name for field in fields}
    # What others depend on comes first.
    first = {field.metadata["when"][0] for field in fields
             if field.metadata["when"]}
    for field in sorted(fields, key=lambda field: field.name not in first):
      notes = [f"default {field.default}"]
      if allowed(field):
        notes.append(allowed(field))
      when = field.metadata["when"]
      if when and when[0] in names:
        notes.append(f"only with {_as_flags(condition(when))}")
      if field.metadata["source"]:
        notes.append("source: " + field.metadata["source"])
      lines.append(f"  --{field.name}: {_as_flags(field.metadata['help'])}\n"
                   f"      ({'; '.join(notes)})")
    lines += ["", f"Flags of every run: python -m {program} --help"]
    return "\n".join(lines)
  for group, rows in GROUPS.items():
    lines.append(f"{group}:")
    for name, kind, default, text in rows:
      shown = ",".join(default or ()) if kind is list else default
      if kind is bool:
        shown = str(default).lower()
      tail = "" if default is None else f" (default {shown})"
      lines.append(f"  --{name}: {text}{tail}")
    lines.append("")
  lines.append("Algorithms; --algorithm=NAME --help shows their flags:")
  for name, entry in registry.ALGORITHMS.items():
    lines.append(f"  {name:10} {entry.label} ({_as_flags(entry.paper)})")
  lines += ["", "--flagfile=FILE reads flags from a file; a name such as "
            "diversified/headline.flags", "is looked for in "
            "experiments/presets/ too."]
  return "\n".join(lines)
