"""A test of many cases names all that fail."""

import os

import pytest

from tests.each import each


@each("number", [1])
@pytest.mark.fast
def marked(number):
  """What it says."""
  assert number


def test_every_case_that_fails_is_named():
  """One that stops at the first hides the others until it is mended."""

  @each("number, word", [(1, "one"), (2, "two"), (3, "three")])
  def check(number, word):
    assert number == 2, word
    with pytest.raises(ValueError):
      int(word)

  with pytest.raises(AssertionError, match="2 of 3 cases fail") as caught:
    check()
  text = str(caught.value)
  assert "1, 'one'" in text and "3, 'three'" in text and "'two'" not in text
  assert caught.value.__cause__ is not None  # its traceback is shown


def test_an_error_that_did_not_come_is_a_fault_of_its_case():
  @each("text", ["x", "1"])
  def check(text):
    with pytest.raises(ValueError):
      int(text)

  with pytest.raises(AssertionError, match="1 of 2 cases"):
    check()


def test_a_case_does_not_see_what_others_patch_and_write(monkeypatch, tmp_path):
  """Else the next one is refused for what is left of the last."""

  @each("case", range(3))
  def check(monkeypatch, tmp_path, case):
    assert "A_CASE" not in os.environ and not any(tmp_path.iterdir())
    monkeypatch.setenv("A_CASE", str(case))
    (tmp_path / "file").touch()

  check(monkeypatch=monkeypatch, tmp_path=tmp_path)
  assert "A_CASE" not in os.environ


def test_a_table_keeps_the_name_and_the_marks_and_is_not_empty():
  assert marked.__name__ == "marked" and marked.__doc__ == "What it says."
  assert [mark.name for mark in marked.pytestmark] == ["fast"]
  with pytest.raises(AssertionError, match="no case"):
    each("case", [])
