"""From a checked configuration to everything a run needs on the device."""

import functools
import hashlib
import os
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
import jax.numpy as jnp
import numpy as np

from experiments.cli import config as config_lib
from fedjax_alg import data, models, registry
from fedjax_alg.base import Algorithm, ClientData, Devices, FedSpec
from fedjax_alg.base import MapClients, Model
from fedjax_alg.engine import clients, clock, evaluate, cohorts, sharding

_COMPILATION_CACHE = os.path.expanduser("~/.cache/fedjax_alg/jax")

#: Rows of one piece of the whole test set, or of the validation rows; pieces
#: are shared out like clients.
_PIECE = 500


class Setting(NamedTuple):
  """A run, ready to start."""

  algorithm: Algorithm
  model: Model
  spec: FedSpec
  data: evaluate.EvaluationData  #: on the device(s)
  keys: cohorts.RunKeys  #: each [num_seeds]
  map_clients: MapClients
  map_seeds: str
  mesh: Mesh | None
  partition: data.Partition
  hashes: dict[str, str]  #: "data", "partition"
  label_histogram: np.ndarray  #: [C, L]
  plan: dict[str, Any]  #: facts for --dry_run and config.json


def start_devices(host_devices: int = 0) -> None:
  """Turns CPU cores into devices, unless JAX has started already.

  Compiled programs are kept in ~/.cache/fedjax_alg/jax, so a command given
  again, or a run resumed, starts at once; $JAX_COMPILATION_CACHE_DIR names
  another folder.
  """
  if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    jax.config.update("jax_compilation_cache_dir", _COMPILATION_CACHE)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
  try:
    sharding.use_host_cores(host_devices or None)
  except RuntimeError:
    pass


@functools.lru_cache(maxsize=2)
def _examples(dataset: str, source: tuple[Any, ...]) -> data.Examples:
  if dataset == "digits":
    return data.load_digits()
  if dataset == "synthetic":
    return data.synthetic(*source)
  if dataset == "npz":
    return data.load_npz(source[0])
  if dataset == "leaf":
    return data.load_leaf(source[0])
  if dataset == "femnist":
    return data.load_femnist(*source)
  if dataset == "sent140":
    return data.load_sent140(*source)
  return data.load_tfds(dataset, source[0])


@functools.lru_cache(maxsize=1)
def _features(
    dataset: str, source: tuple[Any, ...], kind: str, options: tuple[Any, ...]
) -> data.Examples:
  """Examples with their features computed; the last is kept for next time."""
  examples = _examples(dataset, source)
  x_train, x_test = data.make_features(kind, **dict(options))(
      examples.x_train, examples.x_test)
  return examples._replace(x_train=x_train, x_test=x_test)


def load_examples(config: config_lib.Config) -> data.Examples:
  """The data set of a run, features computed.

  Raises:
    DataError: it is not there or not usable; one line.
  """
  source: tuple[Any, ...]
  if config.dataset == "synthetic":
    source = (config.synthetic_alpha, config.synthetic_beta,
              config.num_clients, config.partition_seed, config.synthetic_iid)
  elif config.dataset in ("npz", "leaf"):
    source = (config.data_path,)
  elif config.dataset == "femnist":
    source = (config.femnist, config.num_clients, config.partition_seed,
              config.data_dir, config.data_path)
  elif config.dataset == "sent140":
    source = (config.min_client_size, config.vocabulary,
              config.sequence_length, config.partition_seed, config.data_dir)
  else:
    source = (config.data_dir,)
  options: tuple[Any, ...] = ()
  if config.features == "hog":
    options = (("block", config.hog_block), ("stride", config.hog_stride),
               ("bins", config.hog_bins), ("norm", config.hog_norm),
               ("scale", config.hog_scale))
  return _features(config.dataset, source, config.features, options)


def _partition(
    config: config_lib.Config, examples: data.Examples) -> data.Partition:
  kind = config.partition
  if kind is None:
    kind = "natural" if examples.client_train is not None else "iid"
  clients_asked = config.num_clients
  if clients_asked is None and kind != "natural":
    clients_asked = 100
  if config.dataset in ("synthetic", "femnist"):
    clients_asked = None  # its generator made them
  min_client_size = config.min_client_size
  if config.dataset == "sent140":
    min_client_size = None  # of tweets for training and testing, seen to
  partition = data.make_partition(
      kind, examples, clients_asked, config.partition_seed,
      classes_per_client=config.classes_per_client,
      min_classes_per_client=config.min_classes_per_client,
      dirichlet_alpha=config.dirichlet_alpha,
      min_client_size=min_client_size, size_sigma=config.size_sigma,
      local_test_fraction=config.local_test_fraction)
  return data.hold_out(
      partition, config.validation_clients, config.partition_seed)


def _pieces(first: int, total: int) -> evaluate.Pieces:
  offset = np.arange(0, total, _PIECE, dtype=np.int32)
  size = np.minimum(_PIECE, total - offset).astype(np.int32)
  return evaluate.Pieces(jnp.asarray(first + offset), jnp.asarray(size))


def _whole_test(built: data.FederatedData) -> Any:
  """The test set in pieces; the local splits' rows where they are all of it."""
  whole, total = built.test, len(built.global_y)
  if not built.whole_is_local:
    order = np.arange(total)
    whole = data.client_data(
        np.asarray(built.global_x), np.asarray(built.global_y), order,
        order[:1], np.array([total]))
  return whole._replace(**_pieces(0, total)._asdict())


def _validation(built: data.FederatedData) -> evaluate.Pieces | None:
  """The server's rows in pieces."""
  if built.train.validation is None:
    return None
  first, total = np.asarray(built.train.validation).tolist()
  return _pieces(first, total)


@functools.lru_cache(maxsize=1)
def _place(key: Any) -> Any:
  """The data of a run on its devices; the last is kept for the next run."""
  config, mesh = key.config, key.mesh
  examples = load_examples(config)
  partition = _partition(config, examples)
  joins = None
  if config.newcomers_at:
    joins = data.with_newcomers(
        partition, config.newcomers_at, config.partition_seed)
  built = data.build(examples, partition, lambda *x: x, joins)
  placed = evaluate.EvaluationData(
      built.train, built.test, _whole_test(built),
      jnp.asarray(built.label_histogram, jnp.float32), _validation(built),
      None if joins is None else jnp.asarray(joins > 0))
  # NumPy views of what lies on the first device: the others share its memory.
  placed = sharding.replicate(jax.tree.map(np.asarray, placed), mesh)
  hashes = {"data": built.hash, "partition": data.partition_hash(partition)}
  return (placed, partition, hashes, built.label_histogram,
          examples.num_classes, examples.name)


def _devices(config: config_lib.Config, num_clients: int) -> Devices:
  """The clients' simulated machines, in NumPy."""
  return jax.tree.map(np.asarray, clock.make_devices(
      config.clock_seed, num_clients, cores=config.device_cores,
      core_gflops=config.core_gflops, bandwidth_gbps=config.bandwidth_gbps,
      batch_ms=config.batch_ms, server_gflops=config.server_gflops))


class _DataKey:
  """Compares configurations by what decides their data."""

  _NAMES = ("dataset", "data_dir", "data_path", "synthetic_alpha",
            "synthetic_beta", "synthetic_iid", "femnist", "vocabulary",
            "sequence_length", "partition", "num_clients",
            "classes_per_client", "min_classes_per_client", "dirichlet_alpha",
            "min_client_size", "size_sigma", "local_test_fraction",
            "partition_seed", "validation_clients", "newcomers_at",
            "features", "hog_block", "hog_stride", "hog_bins", "hog_norm",
            "hog_scale")

  def __init__(self, config: config_lib.Config, mesh: Mesh | None):
    self.config, self.mesh = config, mesh
    self.what = tuple(config.values[name] for name in self._NAMES)

  def __hash__(self) -> int:
    return hash(self.what)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _DataKey) and (
        self.what == other.what and self.mesh == other.mesh)


def _check_adapts(config: config_lib.Config, train: ClientData) -> None:
  """A client that adapts the model must have something to adapt it on."""
  empty = np.flatnonzero(np.asarray(train.size) == 0)
  protocol = next((p for p in config.eval_protocols
                   if p in evaluate.PER_CLIENT), None)
  if registry.get(config.algorithm).adapts and len(empty) and protocol:
    raise config_lib.UsageError(
        f"--eval_protocols={protocol}: {config.algorithm} adapts the model on "
        f"each client's training data, and client {empty[0]} has none")


def _check_words(
    config: config_lib.Config, train: ClientData, test: ClientData) -> None:
  """Word ids go with --model=lstm and nothing else does (the user's data)."""
  ids = train.x.dtype == jnp.int32
  if ids != (config.model == "lstm"):
    raise config_lib.UsageError(
        f"--model={config.model}: " + (
            "cannot read word ids (int32 x), only --model=lstm does" if ids
            else f"needs word ids, but x is {train.x.dtype} (only int32)"))
  known = config.vocabulary + data.SPECIAL_TOKENS
  low = min(int(rows.x.min()) for rows in (train, test)) if ids else 0
  high = max(int(rows.x.max()) for rows in (train, test)) if ids else 0
  if not 0 <= low <= high < known:
    raise config_lib.UsageError(
        f"--vocabulary={config.vocabulary}: word ids must lie in [0, {known})"
        f", the data's lie in [{low}, {high}]")


def _check_memory(
    config: config_lib.Config, algorithm: Algorithm, model: Model,
    spec: FedSpec) -> None:
  """Refuses a state that this machine cannot hold."""
  key = jax.random.key(0)
  shapes = jax.eval_shape(
      lambda key: algorithm.init(model.init(key), spec, key), key)
  needed = config.num_seeds * sum(
      leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
  have = memory_bytes()
  if needed > have:
    name = f"--algorithm={config.algorithm}"
    if config.hparams.get("variant") == "table":
      name = "--variant=table"
    raise config_lib.UsageError(
        f"{name}: what is kept between rounds needs {needed / 2**30:.3g} GB "
        f"for {config.num_seeds} seed(s), the machine has "
        f"{have / 2**30:.3g} GB (allowed: fewer clients or seeds, a smaller "
        "model" + (", or --variant=client)" if "table" in name else ")"))


def memory_bytes() -> int:
  """Memory of the device that keeps the state."""
  stats = jax.devices()[0].memory_stats()
  if stats and "bytes_limit" in stats:
    return int(stats["bytes_limit"])
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def make_setting(config: config_lib.Config) -> Setting:
  """Loads, partitions, places; builds the model and the algorithm.

  Raises:
    DataError, UsageError, ValueError: one line that names the flag.
  """
  start_devices(config.host_devices)
  mesh = sharding.clients_mesh()
  placed, partition, hashes, histogram, num_classes, name = _place(
      _DataKey(config, mesh))
  num_clients = partition.num_clients
  # Not with the data: other machines are no reason to load these again.
  placed = placed._replace(train=placed.train._replace(
      devices=sharding.replicate(_devices(config, num_clients), mesh)))
  size = config_lib.cohort_size(config.values, config.hparams, num_clients)
  on_cpu = jax.default_backend() == "cpu"
  mode = config.map_clients
  if mode == "auto":
    mode = "sequential" if on_cpu else "vmap"
  map_seeds = config.map_seeds
  if map_seeds == "auto":
    # Methods in closed form compute in float64, which no outer vmap keeps.
    closed = registry.get(config.algorithm).rounds is not None
    map_seeds = "sequential" if (
        on_cpu or closed or config.num_seeds == 1) else "vmap"
  map_clients = clients.make_map_clients(
      mode, chunk=config.client_chunk, mesh=mesh)
  shape = tuple(placed.train.x.shape[1:])
  _check_words(config, placed.train, placed.whole_test)
  model = models.make_model(
      config.model, shape, num_classes, l2=config.l2, hidden=config.hidden,
      layers=config.layers,
      tokens=config.vocabulary + data.SPECIAL_TOKENS,
      embedding=config.embedding)
  algorithm = registry.build(
      config.algorithm, model, map_clients=map_clients, **config.hparams)
  _check_adapts(config, placed.train)
  train_size = np.asarray(placed.train.size)
  spec = FedSpec(num_clients, size, num_classes, shape, int(train_size.sum()))
  _check_memory(config, algorithm, model, spec)
  keys = jax.tree.map(lambda *k: jnp.stack(k),
                      *[cohorts.run_keys(seed) for seed in config.seeds])
  keys = sharding.replicate(keys, mesh)
  plan = {
      "data": name, "clients": num_clients, "cohort_size": size,
      "newcomers": sum(count for _, count in config.newcomers_at or ()),
      "train_examples": int(train_size.sum()),
      "validation_examples": 0 if placed.validation is None else int(
          np.asarray(placed.validation.size).sum()),
      "test_examples": int(np.asarray(placed.whole_test.size).sum()),
      "client_size": {"min": int(train_size.min()),
                      "mean": float(train_size.mean()),
                      "max": int(train_size.max())},
      "example_shape": list(shape), "classes": num_classes,
      "parameters": sum(
          leaf.size for leaf in jax.tree.leaves(
              jax.eval_shape(model.init, jax.random.key(0)))),
      "map_clients": mode, "map_seeds": map_seeds,
      "devices": [str(d) for d in jax.devices()]}
  return Setting(algorithm, model, spec, placed, keys, map_clients, map_seeds,
                 mesh, partition, hashes, histogram, plan)


def partition_facts(setting: Setting) -> dict[str, Any]:
  """partition.json: the split itself, its flags, hash and sizes."""
  partition = setting.partition
  histogram = hashlib.sha256(setting.label_histogram.tobytes()).hexdigest()
  held = partition.held_out
  validation: dict[str, Any] = {}
  if held is not None:
    validation = {
        "validation_clients": held.clients.tolist(),
        "validation_order": held.train_order.tolist(),
        "validation_size": held.train_size.tolist(),
        "validation_test_order": held.test_order.tolist()}
  joins = setting.data.train.joins
  if joins is not None:
    validation["joins"] = np.asarray(joins).tolist()
  return {
      "name": partition.name, "flags": partition.flags,
      "hash": setting.hashes["partition"], "pooled": partition.pooled,
      "train_order": partition.train_order.tolist(),
      "train_offset": partition.train_offset.tolist(),
      "train_size": partition.train_size.tolist(),
      "test_order": partition.test_order.tolist(),
      "test_offset": partition.test_offset.tolist(),
      "test_size": partition.test_size.tolist(), **validation,
      "label_histogram": setting.label_histogram.tolist(),
      "label_histogram_hash": histogram}
