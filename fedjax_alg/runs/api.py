"""``run`` and ``steps`` train any algorithm on any federation from Python."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import os
from typing import Any

from fedjax_alg import files
from fedjax_alg.data import features
from fedjax_alg.data.federation import Federation, Federations
from fedjax_alg.engine import evaluate as evaluate_lib
from fedjax_alg.engine import samplers
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.hparams import HParams
from fedjax_alg.records import parameters
from fedjax_alg.runs import best as best_lib
from fedjax_alg.runs import layer_features, pooled, queue, store
from fedjax_alg.runs import plan as plan_lib
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.result import RunResult

# Data name a run, which they cannot read themselves.
features.layer_reader = layer_features.read_layer
features.layer_source = parameters.source_of_layers

#: A function that is called with every Step, for instance a progress bar.
Callback = Callable[[Step], object]


def as_callbacks(callbacks: Callback | Iterable[Callback]) -> tuple[Callback, ...]:
  """Makes a tuple of one callback or of several.

  Raises:
    OptionError: one is no function.
  """
  functions = (
    (callbacks,)
    if callable(callbacks) or not isinstance(callbacks, Iterable)
    else tuple(callbacks)
  )
  for function in functions:
    if not callable(function):
      raise OptionError(
        f"`callbacks`={function!r}: {a_type(function)}, must be functions of a Step"
      )
  return functions


def steps(algorithm: object, federation: Federation, **options: Any) -> Iterator[Step]:
  """Executes the same run as ``run`` and yields a ``Step`` at every evaluation.

  The arguments are checked when ``steps`` is called, before the first
  ``next``.

  Args:
    algorithm: see ``run``.
    federation: see ``run``; one partition only.
    **options: the other arguments of ``run``, without ``callbacks``, ``out_dir`` and
      what belongs to it, and ``keep_best``.

  Yields:
    A ``Step`` with ``round``, ``states``, ``metrics``, ``aux``, ... The states
    are on the devices, and the next step reuses their memory. Copy the states
    that you want to keep. ``step.result()`` gives the ``RunResult`` so far.

  Raises:
    OptionError, DataError: an argument that cannot be used.
    NonFiniteError: training became NaN or infinite.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=5)
    >>> for step in fa.steps("fedavg", fed, rounds=4, eval_every=2, cohort_size=2,
    ...                      evaluate=("global",)):
    ...   print(step.round, step.metrics["global"]["accuracy"].shape)
    2 (1,)
    4 (1,)
  """
  prepared = plan_lib.from_keywords(algorithm, federation, **options).prepare()
  plan_lib.warn(prepared, set())
  return queue.compile_steps(prepared)


def run(
  algorithm: object,
  federation: Federation | Federations,
  *,
  model: object = "softmax",
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  evaluate: object = evaluate_lib.DEFAULT_PROTOCOLS,
  eval_every: int = 5,
  callbacks: Callback | Iterable[Callback] = (),
  hparams: HParams | None = None,
  sampler: samplers.Sampler | None = None,
  init: object = None,
  out_dir: str | os.PathLike | None = None,
  overwrite: bool = False,
  allow_other_devices: bool = False,
  keep_best: object = None,
  **options: object,
) -> RunResult:
  """Trains an algorithm on a federation and evaluates it.

  On the same devices you get results bit-identical to ``python -m experiments.run``
  with the same options.

  Args:
    algorithm: a name of ``registry.ALGORITHMS``; or its configuration, such as
      ``fa.FedProx(mu=0.1)`` (a ``MethodConfig``); or a builder
      ``(model, hparams, *, map_clients) -> Algorithm`` with a dataclass of
      ``hparams.hyper`` fields, which may have the argument ``exchange``; or a
      ``registry.Entry``; or an ``Algorithm``; or ``"path/to/file.py:NAME"`` or
      ``"package.module:NAME"`` of one of these.
    federation: the clients with their data, made by ``federate``. With several
      partitions (``federate(..., partitions=5)``) each is run with one seed, for all
      rounds: without `stop_at` and `patience`.
    model: a part, such as ``fa.MLP((128, 64))``, or its text ``"mlp:128,64"``; a
      ``base.Model``, a flax.linen module, a flax.nnx module; or the file or module
      and the name of one of these; see ``models.as_model``.
    rounds: communication rounds. The default is 100; a method in closed form has one
      for each step: one for each layer, with more for the personal layers of
      pFedACnnL and the blocks of DeepAFL.
    cohort_size: S, the number of clients in each round.
    participation: the share of all clients in each round, an alternative to
      ``cohort_size``; 0.1 if neither is given.
    seeds: the number of seeds (0, 1, ...), or the seeds themselves. They do not
      change the partition, which has its seed in ``federate``.
    evaluate: protocols (``global``, ``local``, ..., see docs/architecture.md) and
      your own functions ``(params, x [B, ...], y [B], mask [B]) -> {name: sums}``.
      Such a function is called for every global model with blocks of the whole test
      set. It must ignore the examples where ``mask`` is false; the results of all
      blocks are added. ``at_clients(function)`` calls it for each client's model with
      blocks of its local test split.
    eval_every: rounds between evaluations; the last round is always evaluated.
    callbacks: one function, or several, called with every ``Step``, for
      instance ``progress_bar()``. If one returns ``fa.STOP``, the run ends at that
      evaluation, with its result.
    hparams: hyper-parameters to start from, instead of the defaults.
    sampler: your function that chooses the participants, (data, cohort_size, key,
      round) -> ids [cohort_size]; see ``engine.samplers.Sampler``. The option
      ``sampling`` takes parts and names.
    init: the parameters to start from: a pytree like the model's parameters, or like
      ``RunResult.global_params`` with one model, leaves [1, ...]; a file of
      safetensors or npz or a folder of orbax (``RunResult.export``), or the folder of
      a finished run, to use its global model of the first seed. With
      ``init_only="encoder/**"`` you only take the parameters that a pattern names,
      and the others are drawn. None: all are drawn from the seed.
    out_dir: a folder for the run. It gets a checkpoint of every evaluation. After an
      interruption, the same call continues, with results bit-identical to a run
      without one; a finished run is read. ``fedjax-alg run`` continues it, too. All
      other arguments must be the same, also your own model, algorithm and sampler,
      which are compared by what they compute. You can give more ``rounds``, but not
      fewer than have been run. With several partitions it has a folder for each,
      ``partition_0`` and so on. None: nothing is written.
    overwrite: whether a run that is in ``out_dir`` is replaced.
    allow_other_devices: whether a run continues on other devices or another JAX than
      it was begun with, where the last bits may differ.
    keep_best: whether to store the parameters of the best evaluated round of each
      seed in ``RunResult.best``. It is chosen with True on ``validation``, or with a
      protocol or PROTOCOL:METRIC that you name. Not with ``out_dir``. With several
      partitions every ``results[i].best`` is set.
    **options: hyper-parameters of the algorithm by name (``client_lr=0.3``),
      options of its exchange (``aggregator="median"``), and fields of
      ``runs.options.RunOptions`` (``l2``, ``hidden``, ``map_clients``,
      ``device_cores``, ``stop_at``, ``patience``, ...).

  Returns:
    The result; with several partitions a ``runs.pooled.PooledResult``, which has an
    entry for each partition instead of the seeds.

  Raises:
    OptionError, DataError: an argument that cannot be used; the message is
      one line that names it.
    NonFiniteError: training became NaN or infinite.
    RunFolderError: ``out_dir`` holds another run or something else, or it is in a
      bucket or cannot be written.
    HeldError: another process runs what is in ``out_dir``; it is a
      ``RunFolderError``.

  Examples:
    >>> import tempfile
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", partition="classes", num_clients=20)
    >>> result = fa.run("fedavg", fed, cohort_size=5, rounds=20, seeds=2,
    ...                 evaluate=("global",), eval_every=10, client_lr=0.3)
    >>> result.metrics["global"]["accuracy"].shape  # [seeds, evaluations]
    (2, 2)
    >>> bool((result.metrics["global"]["accuracy"][:, -1] > 0.5).all())
    True
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   again = fa.load_run(result.save(folder + "/first"))
    >>> again.rounds.tolist()
    [10, 20]
  """
  callbacks = as_callbacks(callbacks)
  if isinstance(federation, Federations):
    pooled.refuse_rules(federation, options)
    return pooled.over_partitions(
      lambda part, seeds, name: run(
        algorithm,
        part,
        model=model,
        rounds=rounds,
        cohort_size=cohort_size,
        participation=participation,
        seeds=seeds,
        evaluate=evaluate,
        eval_every=eval_every,
        callbacks=callbacks,
        hparams=hparams,
        sampler=sampler,
        init=init,
        out_dir=None if out_dir is None else os.path.join(out_dir, name),
        overwrite=overwrite,
        allow_other_devices=allow_other_devices,
        keep_best=keep_best,
        **options,
      ),
      federation,
      seeds,
    )
  plan = plan_lib.from_keywords(
    algorithm,
    federation,
    model=model,
    rounds=rounds,
    cohort_size=cohort_size,
    participation=participation,
    seeds=seeds,
    evaluate=evaluate,
    eval_every=eval_every,
    hparams=hparams,
    sampler=sampler,
    init=init,
    **options,
  )
  store.check_arguments(out_dir, overwrite, allow_other_devices)
  keeper = (
    None
    if keep_best is None or keep_best is False
    else best_lib.KeepBest(keep_best, plan)
  )
  if keeper is not None and out_dir is not None:
    raise OptionError(
      f"`keep_best`={keep_best}: not with `out_dir`, whose run may go on without the "
      "rounds before"
    )
  if out_dir is not None:
    (result,), _ = store.run_stored(
      [plan],
      [files.output_path(out_dir, "out_dir")],
      callbacks=callbacks,
      overwrite=overwrite,
      other_devices=allow_other_devices,
      parts=store.own_parts(algorithm, federation, dict(model=model, init=init)),
    )
    assert result is not None
    return result
  (result,), _ = queue.run_plans(
    [plan], callbacks if keeper is None else (*callbacks, keeper)
  )
  assert result is not None
  if keeper is not None:
    result.best = keeper.best()
  return result
