"""Errors and warnings of every command take one line each."""

import warnings

from experiments.cli.guard import guarded
from fedjax_alg.errors import OptionError


def test_an_error_and_a_warning_are_one_line_each(capsys):
  before = warnings.showwarning

  def command(argv):
    warnings.simplefilter("always")
    warnings.warn("no roles found in a.txt,\nb.txt", stacklevel=1)
    raise OptionError(f"`rounds`={argv[0]}: must be\nat least 1")

  assert guarded(command, ["0"]) == 2
  assert capsys.readouterr().err == (
      "warning: no roles found in a.txt, b.txt\n"
      "error: --rounds=0: must be at least 1\n")
  assert warnings.showwarning is before
