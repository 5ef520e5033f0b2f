"""Synthetic patients of four hospitals, as a frame that users have."""

import numpy as np

WARDS = ("surgery", "cardiology", "oncology")
STAGES = ("I", "II", "III")
MISSING = {"age": "median", "ward": "most_frequent"}


def frame(rows, seed):
  """Patients with an illness of one in five, and gaps in two columns."""
  import pandas as pd

  rng = np.random.default_rng(seed)
  age, ward = rng.integers(20, 90, rows), rng.integers(0, 3, rows)
  stage, marker = rng.integers(0, 3, rows), rng.normal(size=rows)
  logit = 0.03 * (age - 55) + 1.5 * (ward == 1) + 0.7 * (stage - 1) + marker - 2
  data = pd.DataFrame(
    {
      "hospital": rng.choice(["north", "south", "east", "west"], rows),
      "age": age.astype(float),
      "ward": pd.Categorical(np.array(WARDS)[ward], list(WARDS)),
      "stage": pd.Categorical.from_codes(stage, list(STAGES), ordered=True),
      "marker": marker,
      "ill": np.where(rng.random(rows) < 1 / (1 + np.exp(-logit)), "yes", "no"),
    }
  )
  data.loc[rng.choice(rows, rows // 20, replace=False), "age"] = np.nan
  data.loc[rng.choice(rows, rows // 20, replace=False), "ward"] = None
  return data
