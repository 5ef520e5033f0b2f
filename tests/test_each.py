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


def test_cases_have_fixtures_and_do_not_see_what_others_patch(monkeypatch):
  before = os.environ.get("A_CASE")

  @each("case", range(2))
  def check(monkeypatch, case):
    assert os.environ.get("A_CASE") == before
    monkeypatch.setenv("A_CASE", str(case))

  check(monkeypatch=monkeypatch)
  assert os.environ.get("A_CASE") == before


def test_a_table_keeps_the_name_and_the_marks_and_is_not_empty():
  assert marked.__name__ == "marked" and marked.__doc__ == "What it says."
  assert [mark.name for mark in marked.pytestmark] == ["fast"]
  with pytest.raises(AssertionError, match="no case"):
    each("case", [])
