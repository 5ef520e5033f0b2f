"""The error for an option, an argument or a file that cannot be used."""

from collections.abc import (
  Callable,
  Collection,
  Container,
  Iterable,
  Iterator,
  Mapping,
)
import contextlib
import difflib
import os
import re
import traceback
from typing import Any

#: Folder of this package, and of other code that no user has written.
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = re.compile(r"site-packages|dist-packages|^<|[/\\]lib[/\\]python3")
_PARAMETER = re.compile(r"`([a-z][a-z_0-9]*)`")


class OptionError(ValueError):
  """An option or argument that cannot be used.

  The message is one line that names the parameter, the value found and the
  allowed values. In ``text`` parameters are written in backticks. ``str``
  removes the backticks, and the command line shows flags instead
  (``with_names``).
  """

  #: the errors of which this one lists the texts (``Faults``); else none
  parts: tuple["OptionError", ...] = ()

  def __init__(self, text: Any = ""):
    super().__init__(text)
    self.text = one_line(str(text))

  def __str__(self) -> str:
    return self.with_names()

  def with_names(self, prefix: str = "") -> str:
    """Returns the message with ``prefix`` before every parameter.

    Args:
      prefix: text to put before the name of a parameter, "--" for flags.

    Returns:
      The message without backticks.
    """
    return with_names(self.text, prefix)


#: What ``Faults.attempt`` returns in the place of a result.
FAULTY: Any = object()

#: A message lists so many faults at most.
_MOST_FAULTS = 20


class Faults:
  """Errors of parts that do not depend on each other, to be raised together.

  Who gives a table with several faults is told of all of them at once.

  Examples:
    >>> faults = Faults()
    >>> faults.attempt(check_one_of, "`a`=1", 1, ["x"]) is FAULTY
    True
    >>> faults.add(OptionError("`b`: missing"))
    >>> faults.raise_any()
    Traceback (most recent call last):
    fedjax_alg.errors.OptionError: 2 faults: (1) a=1: must be one of x (2) b: missing
  """

  def __init__(self) -> None:
    self._errors: dict[str, OptionError] = {}

  def add(self, error: OptionError) -> None:
    """Adds an error, or those that it lists; equal ones count once."""
    for part in error.parts or (error,):
      self._errors.setdefault(part.text, part)

  def attempt(self, fn: Callable[..., Any], *args: object) -> Any:
    """Calls a function.

    Args:
      fn: the function.
      *args: its arguments.

    Returns:
      Its result; ``FAULTY`` if it has raised an OptionError, which is added.
    """
    try:
      return fn(*args)
    except OptionError as error:
      self.add(error)
      return FAULTY

  def raise_any(self, kind: type[OptionError] = OptionError) -> None:
    """Raises what was added, if anything.

    Args:
      kind: the type of an error that has several.

    Raises:
      OptionError: the only error as it was, or one that lists all.
    """
    errors = list(self._errors.values())
    if len(errors) == 1:
      raise errors[0] from None
    if errors:
      listed = [
        f"({number}) {error.text}"
        for number, error in enumerate(errors[:_MOST_FAULTS], 1)
      ]
      others = len(errors) - len(listed)
      text = f"{len(errors)} faults: {' '.join(listed)}"
      error = kind(text + f" and {others:,} more" * bool(others))
      error.parts = tuple(errors)
      raise error from None


class UnreadError(OptionError):
  """An option that the method of a run would not read, or does not have."""

  @property
  def parameter(self) -> str:
    """The name of the option, which the message names first."""
    match = _PARAMETER.search(self.text)
    return match[1] if match else ""


class RunError(RuntimeError):
  """A run had to stop; the message is the one line the user sees."""


class RunFolderError(ValueError):
  """A folder does not hold a readable run; the message is one line.

  As in an ``OptionError``, ``text`` has parameters in backticks.
  """

  def __init__(self, text: str = ""):
    super().__init__(with_names(text))
    self.text = text


#: What a caller's own code may raise: ``sys.exit`` in it is an error like others,
#: and does not end the caller's process.
FAILURES = (Exception, SystemExit)


class RowsOnHostError(OptionError):
  """A program has asked for rows that are on the host."""


@contextlib.contextmanager
def no_exit() -> Iterator[None]:
  """Turns ``sys.exit`` in a caller's own code into an error of one line.

  Raises:
    OptionError: the code inside calls it; the message has its line.
  """
  try:
    yield
  except SystemExit as error:
    raise OptionError(
      f"your code must not end the process, {describe_error(error)}"
    ) from error


def with_names(text: str, prefix: str = "") -> str:
  """Replaces every `parameter` in backticks by ``prefix`` and its name.

  Args:
    text: a message with parameters in backticks.
    prefix: text to put before the name of a parameter, "--" for flags.

  Returns:
    The message without backticks.

  Examples:
    >>> with_names("`client_lr`=-1: must be more than 0", "--")
    '--client_lr=-1: must be more than 0'
  """
  return _PARAMETER.sub(lambda match: prefix + match.group(1), text)


#: Characters that stand for bytes of a path or an argument that are not of the
#: locale's encoding, and that no encoding has.
_UNDECODED = re.compile("[\ud800-\udfff]+")


def as_unicode(text: str) -> str:
  """Makes text that can be written in UTF-8.

  Args:
    text: for example a path, in which Python has a lone surrogate for each byte
      that is not of the locale's encoding.

  Returns:
    The text, in which such bytes are read as UTF-8 if they are it, and else written
    as \\udcff.
  """

  def read(match: re.Match[str]) -> str:
    try:
      return match[0].encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
      return ascii(match[0])[1:-1]

  return _UNDECODED.sub(read, text)


#: A longer word is shown by its two ends.
_LONG = 500


def one_line(text: str) -> str:
  """Makes one line that can be printed of any text.

  Args:
    text: a message, which may quote what a user or a file said.

  Returns:
    The text with line breaks as spaces, other characters that do not print
    (which could move the cursor) as \\x1b, and the middle of words of more than
    500 characters left out.
  """
  text = " ".join(line.strip() for line in as_unicode(text).splitlines()).strip()
  text = "".join(
    letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text
  )
  return re.sub(
    rf"\S{{{_LONG + 1},}}", lambda match: f"{match[0][:200]}...{match[0][-50:]}", text
  )


def reason(error: BaseException) -> str:
  """Says in one line and plain words why something failed.

  Args:
    error: an error of Python or of a library.

  Returns:
    For an error of the operating system the file and what it says of it, for
    others the first line of the message.
  """
  if isinstance(error, UnicodeDecodeError):
    return "not text in UTF-8"
  if isinstance(error, OSError) and error.strerror:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}"
  try:
    lines = str(error).strip().splitlines()
  except Exception:  # an error of somebody else's whose text fails
    lines = []
  return lines[0].strip() if lines else type(error).__name__


def describe_error(error: BaseException) -> str:
  """Says in one line what code of somebody else's raised.

  Args:
    error: an error of a model, a builder or a sampler that is not ours.

  Returns:
    The type of the error, its ``reason`` and the line of the code that is not
    ours: ``ValueError: too heavy, mine.py line 3``.
  """
  name, message = type(error).__name__, reason(error)
  theirs = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if not _LIBRARIES.search(frame.filename) and not frame.filename.startswith(_PACKAGE)
  ]
  where = f", {theirs[-1].filename} line {theirs[-1].lineno}" if theirs else ""
  return (name if message == name else f"{name}: {message}") + where


def a_type(value: object) -> str:
  """The type of a value with its article: "an int", "a str"."""
  name = type(value).__name__
  return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


#: Libraries whose models and tensors are given here now and then.
_LIBRARIES_OF_MODELS = frozenset(
  "torch tensorflow keras tf_keras sklearn haiku equinox transformers onnx mlx".split()
)


def library_of(value: object) -> str:
  """The other library that a model, a class of models or a tensor is of.

  Args:
    value: any object; its library need not be installed.

  Returns:
    The name of the library, such as torch; "" if it is of none of those.
  """
  kind = value if isinstance(value, type) else type(value)
  for base in kind.__mro__:
    library = (getattr(base, "__module__", None) or "").partition(".")[0]
    if library in _LIBRARIES_OF_MODELS:
      return library
  return ""


#: Similarity, from 0 to 1, from which a known name is suggested. One wrong
#: letter in a name of four gives 0.75; fedadam and pfedme have 0.62.
_SIMILAR = 0.75

#: The same for names of other libraries, which stand for another name here: one
#: wrong letter in a name of ten.
_SIMILAR_FOREIGN = 0.9


def normalize_name(name: object) -> str:
  """Removes what people write differently: case, spaces, dashes, ...

  Args:
    name: any text.

  Returns:
    Its letters and digits in lower case: MA-FSVRG and ma_fsvrg are both
    mafsvrg.
  """
  return "".join(letter for letter in str(name).casefold() if letter.isalnum())


#: Options of version 0.3.0 -> the choice of whose parts they are fields, with an
#: example.
_MOVED = {
  "label_norm": "`clustering`, such as kmeans:norm=l2",
  "personalize": "`personal_ridge`, where none is without personal layers",
  "code_centred": "`code`, such as class:centred",
  "code_high_passed": "`code`, such as position:1",
  "max_batch_size": "`adaptive_batch`, such as up_to:256",
  "concept_rounds": "`concepts`, such as switch:rounds=50",
  "concept_steps": "`concepts`, such as switch:10",
  "concept_data": "`concepts`, such as switch:data=all",
  "kind_shares": "`kinds`, such as rotate:0,90,shares=2:1",
  "kind_data": "`kinds`, such as rotate:0,90,data=all",
  "base_momentum": "`base`, such as momentum:0.9",
  "base_beta2": "`base`, such as adam:beta2=0.99",
  "base_eps": "`base`, such as adam:eps=1e-3",
  "staleness_power": "`staleness`, such as polynomial:0.5",
  "staleness_slope": "`staleness`, such as hinge:10",
  "staleness_free": "`staleness`, such as hinge:free=4",
  "clip": "`protocol`, such as per_client:clip=0.3",
  "eps1": "`thresholds`, such as fixed:0.4",
  "eps2": "`thresholds`, such as fixed:eps2=1.6",
  "eps1_share": "`thresholds`, such as relative:0.5",
  "drift_threshold": "`variant`, such as hierarchical:0.2 or eager:0.2",
  "drift_measure": "`variant`, such as hierarchical:measure=loss",
  "merge_threshold": "`variant`, such as hierarchical:merge=0.4",
  "isolation": "`variant`, such as hierarchical:isolation=2",
  "distance_threshold": "`cut`, such as distance:8.5",
  "reject_share": "`group_init`, such as reject:0.1",
  "hf_delta": "`hessian`, such as hf:0.001",
  "direction": "`cold_start`, such as cosine:latest",
  "similarity": "`centers`, such as kmeans:similarity=madc",
  "pretrain_scale": "`centers`, such as kmeans:20",
  "first_gradients": "`variant`, such as client:full",
  "eps2_share": "`thresholds`, such as relative:eps2_share=1.5",
  "error_feedback": "`compress_up`, such as topk:0.1,feedback=false",
  "tolerated": "`aggregator`, such as trimmed_mean:0.3",
  "aggregator_radius": "`aggregator`, such as norm_bound:5",
  "aggregator_iterations": "`aggregator`, such as geometric_median:20",
  "attackers": "`attack`, such as label_flip:0.3",
  "attack_scale": "`attack`, such as sign_flip:0.3,4",
  "attack_seed": "`attack`, such as label_flip:0.3,seed=1",
  "client_beta1": "`client_optimizer`, such as adam:0.9",
  "client_beta2": "`client_optimizer`, such as adam:beta2=0.99",
  "client_eps": "`client_optimizer`, such as adam:eps=1e-6",
  "client_lr_over": "`client_lr_schedule`, such as step:0.5,10,over=steps",
  "client_lr_period": "`client_lr_schedule`, such as cosine:100",
  "client_lr_decay": "`client_lr_schedule`, such as exponential:0.99",
  "hog_block": "`features`, such as hog:4",
  "hog_stride": "`features`, such as hog:7,2",
  "hog_bins": "`features`, such as hog:bins=8",
  "hog_norm": "`features`, such as hog:norm=none",
  "hog_scale": "`features`, such as hog:scale=255",
  "partition_file": "`partition`, such as file:out/first/partition.npz",
  "classes_per_client": "`partition`, such as classes:2 or shards:2",
  "min_classes_per_client": "`partition`, such as classes:2,fewest=1",
  "random_classes": "`partition`, such as classes:2,random",
  "dirichlet_alpha": "`partition`, such as dirichlet:0.1",
  "dirichlet_even": "`partition`, such as dirichlet:0.1,even",
  "min_client_size": "`partition`, such as iid:min_size=5",
  "size_sigma": "`partition`, such as iid:size_sigma=0",
  "quantity_alpha": "`partition`, such as iid:size_alpha=0.5",
  "local_test_fraction": "`partition`, such as natural:test_share=0.2",
  "local_test_stratified": "`partition`, such as natural:stratified",
  "clip_norm": "`private`, such as fixed:clip=1",
  "noise_multiplier": "`private`, such as fixed:noise=2",
  "noise_at": "`private`, such as fixed:at=clients",
  "noise_bands": "`private`, such as ftrl:bands=20",
  "noise_buffers": "`private`, such as ftrl:buffers=3",
  "delta": "`private`, such as fixed:delta=1e-6",
  "clip_quantile": "`private`, such as adaptive:quantile=0.8",
  "clip_lr": "`private`, such as adaptive:lr=0.1",
  "count_noise": "`private`, such as adaptive:count_noise=5",
  "moment_norm": "`private`, such as moments:clip=10",
  "input_norm": "`private`, such as moments:unit=3",
  "data_path": "`dataset`, such as npz:mine.npz",
  "synthetic_alpha": "`dataset`, such as synthetic:0.5",
  "synthetic_beta": "`dataset`, such as synthetic:beta=0.5",
  "synthetic_iid": "`dataset`, such as synthetic:iid",
  "client_examples": "`dataset`, such as sine2:500",
  "label_noise": "`dataset`, such as sine2:noise=0.1",
  "femnist": "`dataset`, such as femnist:leaky",
  "sequence_length": "`dataset`, such as sent140:40",
  "window_stride": "`dataset`, such as shakespeare:plays,stride=10",
  "shift_every": "`shift`, such as swap_all:50",
  "shift_share": "`shift`, such as swap_all:share=0.1",
  "hidden": "`model`, such as mlp:128,64",
  "layers": "`model`, such as stack:conv5-32,max2,dense128",
  "embedding": "`model`, such as lstm:embedding=learned",
  "embedding_size": "`model`, such as lstm:embedding_size=64",
  "lstm_widths": "`model`, such as lstm:256,256",
  "norm": "`model`, such as resnet18:batch",
  "resnet_width": "`model`, such as resnet18:width=32",
  "d_model": "`model`, such as transformer:d_model=64",
  "blocks": "`model`, such as transformer:blocks=4",
  "block_features": "`model`, such as residual:features=512",
  "heads": "`model`, such as transformer:heads=8",
  "remat": "`model`, such as resnet18:remat",
  "num_features": "`feature_map`, such as fourier:500",
  "rbf_gamma": "`feature_map`, such as fourier:gamma=0.1",
  "bit_thresholds": "`feature_map`, such as buckets:0.2,0.6",
  "group_size": "`feature_map`, such as buckets:group_size=5",
  "feature_seed": "`feature_map`, such as relu:seed=3",
  "personal_when": "`personal`, such as first:rate=0.05",
  "personal_rate": "`personal`, such as together:0.05",
  "personal_fit": "`personal`, such as evaluation:steps=20",
  "partial_work": "`stragglers`, such as kept:0.5 or dropped:0.5",
  "client_lanes": "`map_clients`, such as lanes:8",
  "lora_rank": "`lora`, such as fedit:4",
  "lora_alpha": "`lora`, such as fedit:4,alpha=8",
  "lora_aggregation": "`lora`, such as fedex:4",
  "draw": "`sampling`, such as uniform:draw=bijection",
  "availability": "`sampling`, such as availability:0.2,0.8",
  "availability_file": "`sampling`, such as availability_file:phones.txt",
  "availability_seed": "`sampling`, such as availability:seed=3",
  "availability_day": "`sampling`, such as availability:day=24",
}

#: Names of options in other libraries and papers, ``normalize_name`` -> its names
#: here, of which the first that is known counts.
_SYNONYMS: dict[str, tuple[str, ...]] = {
  foreign: tuple(names)
  for others, *names in (
    (
      "lr learningrate clientlearningrate locallr locallearningrate etal stepsize eta",
      "client_lr",
      "softmax",  # logistic regression, of models
    ),
    (
      "serverlearningrate globallr globallearningrate centrallr centrallearningrate"
      " etag",
      "server_lr",
    ),
    (
      "epochs epoch numepochs nepochs numlocalepochs localnumepochs localepoch localep"
      " clientepochs e",
      "local_epochs",
    ),
    ("steps numsteps numlocalsteps localnumsteps localupdates", "local_steps"),
    (
      "batch bs lbs localbs minibatch minibatchsize clientbatchsize localbatchsize b",
      "batch_size",
    ),
    (
      "clients nclients users numusers parties nparties numparties numpartitions"
      " numsupernodes numnodes nc",
      "num_clients",
    ),
    (
      "numrounds nrounds communicationrounds commround globalrounds numserverrounds"
      " numiterations centralnumiterations gr t",
      "rounds",
    ),
    (
      "fraction frac fractionfit fractiontrain clientfraction sample samplefraction"
      " joinratio jr samplingrate c",
      "participation",
    ),
    (
      "clientsperround numclientsperround cohort participants numparticipants"
      " numactiveusers",
      "cohort_size",
    ),
    ("momentum", "client_momentum", "server_momentum", "beta"),
    ("optimizer opt", "client_optimizer"),
    ("serveroptimizer centraloptimizer", "server"),
    ("weightdecay wd", "l2"),
    ("alpha dirichlet diralpha concentration", "partition", "dirichlet"),
    ("proximalmu prox", "mu"),
    ("strategy method algo alg", "algorithm"),
    ("data datasetname dataname", "dataset"),
    ("net arch architecture modelname", "model"),
    ("noniid", "partition", "dirichlet"),
    ("randomseed rngseed initseed manualseed", "seed", "seeds"),
    ("times trials numtrials repeats repetitions runs numruns nseeds", "num_seeds"),
    (
      "out output savedir logdir rootdir resultsdir savefoldername restore ckpt load "
      "checkpointdir",
      "out_dir",
      "out",
    ),
    ("evalgap evalfreq evalinterval evaluationfrequency testevery", "eval_every"),
    ("samples numsamples", "train_examples"),
    ("droprate clientdroprate", "dropout"),
    ("gradclip maxgradnorm localmaxgradnorm", "client_clip"),
    ("clippingbound clippingnorm dp differentialprivacy", "private"),
    ("nummaliciousnodes nummalicious byzantine numbyzantine", "attack"),
    ("aggregation aggregationrule defense", "aggregator"),
    ("quantize quantization compressor", "compress_up"),
    ("testratio testsplit", "partition"),
    ("valfraction validationfraction", "validation_clients"),
    ("wandb mlflow", "callback"),
    # Commands.
    ("train simulate start", "run"),
    ("download", "prepare"),
    ("plot", "compare"),
    ("grid gridsearch", "sweep"),
    # Values, where others name a data set, a partition, a model or a method.
    ("classes numclassesperclient classperclient", "partition", "classes"),
    ("dir labeldir noniidlabeldir", "dirichlet"),
    ("pat pathological", "classes"),
    ("homo", "iid"),
    ("mclr mlr logistic logisticregression", "softmax"),
    ("dnn", "mlp"),
    ("lenet lenet5 simplecnn", "cnn"),
    ("fmnist", "fashion_mnist"),
    ("peravg pfedavg maml", "per_fedavg"),
    ("hypcluster", "ifca"),
  )
  for foreign in others.split()
}


def synonym(name: str, names: Iterable[str]) -> str | None:
  """Finds the known name of what other libraries and papers call ``name``.

  Args:
    name: their name.
    names: the known names.

  Returns:
    The known name; None if there is none.
  """
  return _meaning(normalize_name(name), _by_letters(names))


def _by_letters(names: Iterable[str]) -> dict[str, str]:
  """``normalize_name`` -> the first name that has these letters."""
  letters: dict[str, str] = {}
  for name in names:
    letters.setdefault(normalize_name(name), name)
  return letters


def _meaning(letters: str, known: Mapping[str, str]) -> str | None:
  """The known name that a normalized foreign one stands for."""
  for meaning in map(normalize_name, _SYNONYMS.get(letters, ())):
    if meaning in known:
      return known[meaning]
  return None


def closest(name: str, names: Iterable[str]) -> str | None:
  """Finds the known name that a misspelt or foreign one stands for.

  Args:
    name: the unknown name.
    names: the known names.

  Returns:
    The known name that other libraries call so (``lr`` is ``client_lr``), else
    the one whose name, here or in other libraries, is the most similar; None if
    none is similar.
  """
  letters, known = normalize_name(name), _by_letters(names)
  meant = _meaning(letters, known)
  if meant:
    return meant
  foreign = {
    other: meaning for other in _SYNONYMS if (meaning := _meaning(other, known))
  }
  near = difflib.get_close_matches(letters, list(known), 1, _SIMILAR)
  near += difflib.get_close_matches(letters, list(foreign), 1, _SIMILAR_FOREIGN)
  for match in difflib.get_close_matches(letters, near, 1, 0):
    return known.get(match) or foreign[match]
  return None


def did_you_mean(name: str, names: Iterable[str]) -> str:
  """Makes a hint for a misspelt name.

  Args:
    name: the unknown name.
    names: the known names.

  Returns:
    ", did you mean 'x'?" for the ``closest`` known name, or where an option of
    version 0.3.0 has gone, or an empty string if there is neither. Case, dashes,
    underscores and spaces make no difference.

  Examples:
    >>> did_you_mean("fedprx", ["fedavg", "fedprox"])
    ", did you mean 'fedprox'?"
  """
  if name in _MOVED:
    return f", now a field of {_MOVED[name]}"
  suggestion = closest(name, names)
  return f", did you mean {suggestion!r}?" if suggestion else ""


def is_one_of(value: object, allowed: Container[Any]) -> bool:
  """Whether a value of any type is one of some."""
  try:
    hash(value)
  except TypeError:  # a list, an array
    return False
  return value in allowed


def check_one_of(label: str, value: object, allowed: Collection[str]) -> None:
  """Refuses a value that is none of those allowed.

  Args:
    label: how the message names the value.
    value: the value.
    allowed: those that are allowed.

  Raises:
    OptionError: it is none of them.
  """
  if not is_one_of(value, allowed):
    raise OptionError(f"{label}: must be one of {', '.join(allowed)}")


def check_known(
  name: str, value: object, choices: Collection[Any], alternative: str = ""
) -> None:
  """Refuses a value of an option that is no known name.

  Args:
    name: the option.
    value: its value.
    choices: the known names.
    alternative: what else it may be, for the message.

  Raises:
    OptionError: it is none of them; the message says what was meant, if that
      can be told.
  """
  if not is_one_of(value, choices):
    raise OptionError(
      f"`{name}`={value}: unknown{did_you_mean(str(value), choices)} (one of "
      f"{', '.join(map(str, choices))}{alternative})"
    )
