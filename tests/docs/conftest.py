"""What the tests of the pages share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs, one_device):
  """Equal programs are compiled once, for one device."""
  del share_programs, one_device
