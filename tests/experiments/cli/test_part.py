"""Parts of many runs: every run in one of them, equally many in each."""

from hypothesis import given, strategies as st
import pytest

from experiments.cli import config, part


@given(st.integers(0, 60), st.integers(1, 70))
def test_parts_share_all_runs_out(items, total):
  parts = [part.Part(k + 1, total).of(range(items)) for k in range(total)]
  assert sum(parts, []) == list(range(items))
  assert {len(own) for own in parts} <= {items // total, -(-items // total)}


def test_how_it_is_written():
  assert part.parse(None) is None
  assert part.parse("3/16") == (3, 16) and str(part.parse("3/16")) == "3/16"
  for text in ("0/2", "3/2", "1", "1/0", "-1/2", "1/2/3", "", " 1/2", "1/2\n"):
    with pytest.raises(config.UsageError, match="must be K/N"):
      part.parse(text)
