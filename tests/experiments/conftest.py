"""What the tests of the commands share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs):
  """Equal programs are compiled once."""
  del share_programs


@pytest.fixture(autouse=True)
def fixture_without_pictures(no_pictures):
  """Runs draw theirs only for fixtures of a whole module."""
  del no_pictures
