"""Runs of this room share programs and use one device."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def fixture_shared_programs(share_programs, one_device):
  """See tests/conftest.py."""
  del share_programs, one_device
