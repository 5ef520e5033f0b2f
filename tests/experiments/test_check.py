"""The command that checks a method of one's own (tests/docs has its example)."""

import pytest

from experiments import check

NUMBER = 7


@pytest.mark.fast
@pytest.mark.parametrize(
  "words, message",
  [
    ([], "give one method: path/to/file.py:NAME or package.module:NAME"),
    (["mine.py"], "--algorithm=mine.py: a file needs the name in it"),
    (["mine.py:ENTRY"], "--algorithm=mine.py:ENTRY: there is no file"),
    (["tests.experiments.test_check:NUMBER"], "is an int; must be a registry.Entry"),
  ],
)
def test_the_command_says_what_it_needs(words, message, capsys):
  assert check.main(words) == 2
  assert message in capsys.readouterr().err
