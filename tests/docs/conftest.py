"""What the tests of the pages share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs):
  """Equal programs are compiled once."""
  del share_programs
