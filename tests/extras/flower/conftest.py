"""Runs of this room use one device."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def fixture_one_device(one_device):
  """See tests/conftest.py."""
  del one_device
