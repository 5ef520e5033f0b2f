"""How an error names parameters in a library and on a command line."""

import pickle

import numpy as np
import pytest

from fedjax_alg.data.errors import DataError
from fedjax_alg.errors import (
  FAULTY,
  Faults,
  OptionError,
  as_unicode,
  check_one_of,
  closest,
  describe_error,
  did_you_mean,
  is_one_of,
  normalize_name,
  one_line,
  reason,
  with_names,
)
from tests.each import each

TEXT = "`num_clients`=0: `x2` must be at least 1, not `--`, `A` or `a b`"


def test_parameters_lose_their_backticks_and_nothing_else_does():
  assert with_names(TEXT) == (
    "num_clients=0: x2 must be at least 1, not `--`, `A` or `a b`"
  )
  assert with_names("no parameter, `") == "no parameter, `"


def test_a_command_line_puts_its_prefix_before_every_parameter():
  assert with_names(TEXT, "--") == (
    "--num_clients=0: --x2 must be at least 1, not `--`, `A` or `a b`"
  )


@pytest.mark.parametrize("kind", [OptionError, DataError])
def test_an_error_shows_names_and_keeps_what_a_command_line_needs(
  kind: type[OptionError],
):
  error = kind(TEXT)
  assert issubclass(kind, ValueError)  # what callers catch
  assert str(error) == with_names(TEXT)
  assert error.with_names("--") == with_names(TEXT, "--")
  restored = pickle.loads(pickle.dumps(error))  # between processes
  assert type(restored) is kind and restored.text == error.text == TEXT


def test_an_error_may_wrap_another():
  assert str(OptionError(OSError("`data_dir`: gone"))) == "data_dir: gone"
  assert str(OptionError()) == ""


def test_undecoded_bytes_are_read_or_written_out():
  """The lone surrogates of a path are in no encoding."""
  name = "a\u00e9\u65e5"
  undecoded = name.encode().decode("ascii", "surrogateescape")
  assert undecoded != name and as_unicode(undecoded) == as_unicode(name) == name
  assert as_unicode("x\udcff\ud800y") == r"x\udcff\ud800y"
  assert one_line(undecoded) == name


@each("value", [["a"], {"a": 1}, {"a"}, np.array(["a"]), 1, None])
def test_what_is_no_name_is_none_of_them(value):
  """A list ended in a TypeError, and an array of one entry passed."""
  assert not is_one_of(value, ("a", "b")) and not is_one_of(value, {"a": 1})
  assert is_one_of("a", ("a", "b"))
  with pytest.raises(OptionError, match="^x: must be one of a, b$"):
    check_one_of("x", value, ("a", "b"))


def test_a_message_is_one_line_that_can_be_printed():
  assert one_line("a\n b  c\r\nd ") == "a b  c d"
  assert one_line("`x`=\x1b[31m\0\udcff") == r"`x`=\x1b[31m\x00\udcff"
  long = "x=" + "9" * 5000
  short = f"x={'9' * 198}...{'9' * 49}:"
  assert one_line(f"{long}: must be") == f"{short} must be"
  assert one_line("9" * 500) == "9" * 500
  assert str(OptionError("`hidden`=\n3")) == "hidden= 3"


@pytest.mark.parametrize(
  "error, why, description",
  [
    (ValueError("too\nheavy"), "too", "ValueError: too"),
    (ValueError(), "ValueError", "ValueError"),
    (
      FileNotFoundError(2, "No such file", "a.txt"),
      "a.txt: No such file",
      "FileNotFoundError: a.txt: No such file",
    ),
    (OSError("odd"), "odd", "OSError: odd"),
  ],
)
def test_an_error_of_somebody_else_in_one_line(error, why, description):
  assert (reason(error), describe_error(error)) == (why, description)


NAMES = ("fedavg", "ma_fsvrg", "pfedme", "ifca", "client_lr", "classes", "rounds")


@each(
  "name, meant",
  [
    ("FedAvg", "fedavg"),
    ("fed-avg", "fedavg"),
    ("fed_avg", "fedavg"),
    ("Fed Avg", "fedavg"),
    ("MA-FSVRG", "ma_fsvrg"),
    ("fedvg", "fedavg"),
    ("fedavgg", "fedavg"),
    ("ifac", "ifca"),
    ("clientlr", "client_lr"),
    ("class", "classes"),
    # Misspelt names of other libraries.
    ("num_round", "rounds"),
    ("learning_rates", "client_lr"),
    ("client_learning_rates", "client_lr"),
    ("num_epoch", None),  # means local_epochs, which is not known here
    ("clients_per_rounds", None),
    ("time", None),  # not "times", which is the number of seeds elsewhere
    ("fedadam", None),
    ("feddyn", None),
    ("fednova", None),
    ("fedsgd", None),
    ("fedma", None),
    ("", None),
    ("--", None),
  ],
)
def test_a_name_is_suggested_only_if_it_is_similar(name, meant):
  assert closest(name, NAMES) == meant
  assert did_you_mean(name, NAMES) == (f", did you mean {meant!r}?" if meant else "")


def test_what_people_write_differently():
  assert normalize_name("FL+HC") == normalize_name("fl_hc") == "flhc"


def test_faults_are_raised_together():
  """One as it was, several as a list, those of a list beside the others."""
  faults = Faults()
  faults.raise_any()
  assert faults.attempt(int, "3") == 3
  assert faults.attempt(check_one_of, "`a`=1", 1, ["x"]) is FAULTY
  with pytest.raises(OptionError, match="^a=1: must be one of x$"):
    faults.raise_any(DataError)
  inner = Faults()
  for number in (1, 2, 2):
    inner.add(DataError(f"`b`={number}"))
  assert faults.attempt(inner.raise_any, DataError) is FAULTY
  with pytest.raises(DataError) as error:
    faults.raise_any(DataError)
  assert error.value.with_names("--") == (
    "3 faults: (1) --a=1: must be one of x (2) --b=1 (3) --b=2"
  )
  many = Faults()
  for number in range(1030):
    many.add(OptionError(f"user {number}"))
  with pytest.raises(OptionError, match="^1030 faults: .* user 19 and 1,010 more$"):
    many.raise_any()
  with pytest.raises(ZeroDivisionError):
    many.attempt(lambda: 1 // 0)
