"""These tests compare formulas: programs are compiled the quick way."""

import pytest

from tests import problems


@pytest.fixture(scope="module", autouse=True)
def fixture_quick_compilation():
  """Most of the time here is compilation."""
  with problems.quick_compilation():
    yield
